//! `orla rtfs`: runs programs beside the capabilities, once, or line by line for other programs.

mod check;
mod dialogue;
mod fmt;

use std::io::{BufRead, IsTerminal, Read};
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use orla_marketplace::program::{Job, Trace, TraceSink, run as run_program};
use orla_marketplace::rtfs::json::{value_from_json, value_to_json};
use orla_marketplace::rtfs::{
    Diagnostics, Error, Limits, Options, Position, Program, Source as Text, TypeExpr, Value, compile,
};
use orla_marketplace::{Call, Notice, NoticeSink};
use serde::{Deserialize, Serialize};

use super::call::until_stopped;
use super::records::CallRecords;
use crate::app::App;
use crate::config::{Config, Source};
use crate::programs::{self, MAX_PROGRAM};
use crate::render::progress;
use crate::signals::Signals;
use crate::text::json_problem;
use crate::{Failure, cli, render};

/// The largest line of `--jsonl`, in bytes.
const MAX_LINE: u64 = 16 * 1024 * 1024;
/// The timeout of a program without `--timeout`. The program may call slow capabilities.
const LONGEST: Duration = Duration::from_secs(24 * 60 * 60);
/// The label of the progress bar of a program without a name.
const PROGRAM: &str = "program";
/// The name under which a program sees its input.
const INPUT: &str = "input";

pub(crate) fn run(rtfs: &cli::Rtfs, source: &Source) -> Result<(), Failure> {
    match &rtfs.command {
        Some(cli::RtfsCommand::Check(check)) => return check::run(check, source),
        Some(cli::RtfsCommand::Fmt { check, files }) => return fmt::run(files, *check),
        None => {}
    }
    let config = super::load(source)?;
    let _log = super::log(&config);
    let input = rtfs.input.as_deref().map_or(Ok(Value::Nil), |json| {
        let problem = |err| json_problem(json).unwrap_or_else(|| ToString::to_string(&err));
        value_from_json(json).map_err(|err| Failure::usage(format!("--input: {}", problem(err))))
    })?;
    let runtime = super::small_runtime()?;
    let done = runtime.block_on(async {
        let app = App::build_local(&config)?;
        let records = CallRecords::of(&app, &config)?;
        let limits = config.programs.limits();
        let session = Session { app: &app, config: &config, limits, traced: rtfs.trace };
        let done = match &rtfs.jsonl {
            true => session.lines().await,
            false if is_dialogue(rtfs) => dialogue::run(&session).await,
            false => match text(rtfs) {
                Ok(text) => session.once(&text, input, rtfs.json).await,
                Err(failure) => Err(failure),
            },
        };
        app.end_providers().await;
        records.end().await;
        done
    });
    runtime.shutdown_background();
    done
}

/// Returns whether to start the interactive prompt at a terminal.
fn is_dialogue(rtfs: &cli::Rtfs) -> bool {
    rtfs.file.is_none() && rtfs.expression.is_none() && std::io::stdin().is_terminal()
}

/// Returns the text of the program: an argument, a file or standard input.
fn text(rtfs: &cli::Rtfs) -> Result<Text, Failure> {
    match (&rtfs.expression, rtfs.file.as_deref()) {
        (Some(expression), _) => Ok(Text::new("", expression.as_str())),
        (None, file) => read(file.unwrap_or(Path::new("-"))).map_err(Failure::failed),
    }
}

/// Returns the text of a file; `-` is standard input.
fn read(file: &Path) -> Result<Text, String> {
    if file != Path::new("-") {
        let shown = file.display();
        let text = programs::read(file).map_err(|why| format!("{shown} cannot be read: {why}"))?;
        return Ok(Text::new(shown.to_string(), text));
    }
    let mut text = String::new();
    let read = std::io::stdin().take(MAX_PROGRAM + 1).read_to_string(&mut text);
    read.map_err(|err| format!("standard input cannot be read: {err}"))?;
    match text.len() as u64 > MAX_PROGRAM {
        true => Err(format!("a program has at most {MAX_PROGRAM} bytes")),
        false => Ok(Text::new("", text)),
    }
}

/// Compiles a program. The modules that it imports are files beside it: `my.mod` is `my/mod.rtfs`.
fn compiled(text: &Text, beside: Option<&Path>) -> Result<Arc<Program>, Diagnostics> {
    compile(text, &options(beside))
}

fn options(beside: Option<&Path>) -> Options {
    let modules = programs::modules_beside(beside);
    Options { modules: Some(modules), inputs: vec![INPUT.to_owned()], ..Options::default() }
}

/// The context in which programs run.
struct Session<'a> {
    app: &'a App,
    config: &'a Config,
    limits: Limits,
    traced: bool,
}

impl Session<'_> {
    /// Runs one program and prints its value.
    async fn once(&self, text: &Text, input: Value, as_json: bool) -> Result<(), Failure> {
        let beside = Path::new(text.name()).parent();
        let program = match compiled(text, beside) {
            Ok(program) => program,
            Err(problems) => {
                render::err(&format!("{problems}\n"));
                return Err(Failure::failed_silently());
            }
        };
        let mut signals = Signals::install().map_err(|err| Failure::failed(err.to_string()))?;
        let mut call = Call::to("rtfs");
        let asked = self.config.is_asked_for("timeout").then_some(self.config.timeout);
        call.timeout = Some(asked.unwrap_or(LONGEST));
        call.scope.notices = self.notices();
        let cancellation = call.scope.cancellation.clone();
        let ctx = self.app.marketplace().program_context(&call);
        let trace =
            if self.traced { TraceSink::new(|trace| show(&trace)) } else { TraceSink::default() };
        let job = Job { inputs: vec![(INPUT, input)], trace, limits: self.limits, ..Job::new(program) };
        let running = run_program(self.app.marketplace(), job, &ctx);
        let result = until_stopped(running, &cancellation, &mut signals).await?;
        let value = result.map_err(|error| {
            render::err(&format!("{}\n", error.report()));
            Failure::failed_silently()
        })?;
        let printed = match as_json {
            true => value_to_json(&value)
                .map_err(|err| Failure::failed(format!("the result cannot be given as JSON: {err}")))?,
            false => value.pr_str(),
        };
        match as_json {
            true => render::json_line(&printed),
            false => render::line(&printed),
        }
        Ok(())
    }

    /// Shows the log messages of programs, and at a terminal the progress of programs and calls. A trace has the
    /// log already.
    fn notices(&self) -> NoticeSink {
        let wants: fn(&Notice) -> bool = match (self.traced, render::stderr_is_terminal()) {
            (false, true) => |_| true,
            (false, false) => |notice| !matches!(notice, Notice::Progress(_)),
            (true, true) => |notice| !matches!(notice, Notice::Log { .. }),
            (true, false) => |notice| matches!(notice, Notice::Text(_)),
        };
        progress::sink(PROGRAM, wants)
    }

    /// Answers each line of standard input with one of standard output, until the input ends.
    async fn lines(&self) -> Result<(), Failure> {
        let mut input = std::io::stdin().lock();
        let mut line = Vec::new();
        loop {
            line.clear();
            let read = (&mut input).take(MAX_LINE).read_until(b'\n', &mut line);
            let read =
                read.map_err(|err| Failure::failed(format!("standard input cannot be read: {err}")))?;
            if read == 0 {
                return Ok(());
            }
            if line.trim_ascii().is_empty() {
                continue;
            }
            let read = read_line(&line);
            let answer = match read {
                Ok(line) => self.answer(&line).await,
                Err(why) => {
                    let message = format!(r#"expected a line {{"src": "…"}}: {why}"#);
                    LineResult::failed("invalid-argument", &message, None)
                }
            };
            let text = answer.text().map_err(|err| Failure::failed(err.to_string()))?;
            render::json_line(&text);
        }
    }

    async fn answer(&self, line: &Line) -> LineResult {
        let ty = match line.r#type.as_deref().map(TypeExpr::parse).transpose() {
            Ok(ty) => ty,
            Err(invalid) => {
                return LineResult::failed("syntax", &format!("invalid type: {invalid}"), None);
            }
        };
        let program = match compiled(&Text::new("", line.src.as_str()), None) {
            Ok(program) => program,
            Err(Diagnostics(problems)) => {
                let first = problems.first();
                let message = first.map_or("", |problem| &problem.message);
                return LineResult::failed("syntax", message, first.map(|problem| problem.position));
            }
        };
        let mut call = Call::to("rtfs");
        call.timeout = Some(self.config.timeout);
        call.scope.notices = self.notices();
        let ctx = self.app.marketplace().program_context(&call);
        let trace =
            if self.traced { TraceSink::new(|trace| show(&trace)) } else { TraceSink::default() };
        let job =
            Job { inputs: vec![(INPUT, Value::Nil)], trace, limits: self.limits, ..Job::new(program) };
        match run_program(self.app.marketplace(), job, &ctx).await {
            Ok(value) => LineResult::Value(LineValue {
                value: value.pr_str(),
                r#type: value.type_name(),
                json: value_to_json(&value)
                    .ok()
                    .and_then(|json| serde_json::value::RawValue::from_string(json).ok()),
                matches: ty.map(|ty| ty.admits(&value)),
            }),
            Err(error) => {
                LineResult::failed(&error.kind, &error.message, error.at.as_ref().map(|at| at.position))
            }
        }
    }
}

/// Parses one line of `--jsonl`.
///
/// # Errors
///
/// Returns what is wrong with it.
fn read_line(line: &[u8]) -> Result<Line, String> {
    if !line.trim_ascii().starts_with(b"{") {
        return Err("an object is expected".to_owned());
    }
    serde_json::from_slice(line).map_err(|err| {
        let text = String::from_utf8_lossy(line);
        let problem = json_problem(text.trim()).unwrap_or_else(|| err.to_string());
        match problem.starts_with("missing field") {
            true => "src is missing".to_owned(),
            false => problem.split(" at line ").next().unwrap_or_default().to_owned(),
        }
    })
}

/// One line of `--jsonl`.
#[derive(Deserialize)]
struct Line {
    src: String,
    r#type: Option<String>,
}

enum LineResult {
    Value(LineValue),
    Failed(Problem),
}

#[derive(Serialize)]
struct LineValue {
    value: String,
    r#type: &'static str,
    #[serde(skip_serializing_if = "Option::is_none")]
    json: Option<Box<serde_json::value::RawValue>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    matches: Option<bool>,
}

#[derive(Serialize)]
struct Problem {
    kind: String,
    message: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    line: Option<u32>,
    #[serde(skip_serializing_if = "Option::is_none")]
    column: Option<u32>,
}

impl LineResult {
    fn failed(kind: &str, message: &str, at: Option<Position>) -> Self {
        let problem = Problem {
            kind: kind.to_owned(),
            message: message.to_owned(),
            line: at.map(|at| at.line),
            column: at.map(|at| at.column),
        };
        Self::Failed(problem)
    }

    fn text(&self) -> serde_json::Result<String> {
        match self {
            Self::Value(given) => serde_json::to_string(given),
            Self::Failed(problem) => serde_json::to_string(&serde_json::json!({ "error": problem })),
        }
    }
}

/// One line for one step of a program.
fn show(trace: &Trace) {
    let line = match trace {
        Trace::Called { id, input, result, duration, at } => {
            let place = at.map_or_else(String::new, |at| format!("{}:{} ", at.line, at.column));
            let ms = duration.as_secs_f64() * 1000.0;
            let gave = match result {
                Ok(value) => excerpt(value),
                Err(Error { kind, message, .. }) => format!("{kind}: {message}"),
            };
            format!("{place}call {id} {} → {gave} ({ms:.1} ms)", excerpt(input))
        }
        Trace::Step { name } => format!("step {name}"),
        Trace::Logged { level, message, data: Value::Nil } => format!("log {level} {message}"),
        Trace::Logged { level, message, data } => format!("log {level} {message} {}", excerpt(data)),
        _ => return,
    };
    render::err(&format!("{line}\n"));
}

/// Returns the beginning of a value that a trace shows.
fn excerpt(value: &Value) -> String {
    render::cut(&value.pr_str(), 200)
}
