//! The dialogue: `orla rtfs` at a terminal. Definitions stay, and every served capability can be called.
//!
//! Each entry is a program on top of those before it ([`Options::base`]): definitions, types, macros and
//! imports stay, and a later entry may replace them. `*1`, `*2` and `*3` are the last values, `*e` is
//! the last error. Ctrl-C ends the running program and its calls, or empties the line; Ctrl-D ends the
//! dialogue.

mod editor;
mod explain;

use std::fs;
use std::io::IsTerminal;
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Instant;

use orla_marketplace::program::{Trace, TraceSink, drive};
use orla_marketplace::rtfs::layout::{is_unfinished, pretty};
use orla_marketplace::rtfs::{Error, Options, Program, Run, Source as Text, Value, compile, counted};
use orla_marketplace::{Call, discovery};
use rustyline::error::ReadlineError;
use rustyline::history::FileHistory;
use rustyline::{CompletionType, Config, Editor};

use super::{LONGEST, Session, show};
use crate::render::{Styled, progress};
use crate::{Failure, programs, render};
use editor::{Assistant, coloured};
use orla_marketplace::program::complete::Words;

/// The maximum number of entries of the history that are kept.
const HISTORY: usize = 1_000;
/// How many capabilities `:find` shows at most.
const FOUND: usize = 20;
/// The last values, and the last error.
const LAST: [&str; 4] = ["*1", "*2", "*3", "*e"];

const HELP: &str = "\
Everything is RTFS: (call :math.add {:a 1 :b 2}). An entry goes on while something is open.
*1 *2 *3 are the last values, *e is the last error. Tab completes names, capabilities and what they take.

:doc NAME     what a form, a function or a capability does, and takes
:type EXPR    its type; no capability is called
:time EXPR    its value, and what it cost
:find WORDS   capabilities that are about it
:load FILE    runs a file as if it were written here
:help         this
:quit         the end; so is Ctrl-D. Ctrl-C ends what runs.
";

const COMMANDS: [&str; 7] = [":doc", ":find", ":help", ":load", ":quit", ":time", ":type"];

/// Talks until the person at the terminal has enough.
pub(super) async fn run(session: &Session<'_>) -> Result<(), Failure> {
    let failed = |err: ReadlineError| Failure::failed(format!("the terminal cannot be used: {err}"));
    let settings = Config::builder()
        .completion_type(CompletionType::List)
        .max_history_size(HISTORY)
        .map_err(failed)?
        .auto_add_history(true)
        .build();
    let mut editor: Editor<Assistant, FileHistory> = Editor::with_config(settings).map_err(failed)?;
    let history = history();
    if let Some(history) = &history {
        // A history that does not exist yet or cannot be read is empty.
        let _ = editor.load_history(history);
    }
    let mut dialogue = Dialogue { session, before: None, last: Default::default() };
    render::note(&format!("orla {}: RTFS. :help explains, Ctrl-D ends.", env!("CARGO_PKG_VERSION")));
    let is_coloured = render::stdout_has_colours();
    loop {
        let market = session.app.marketplace();
        market.prepare_listing().await;
        editor.set_helper(Some(Assistant::new(dialogue.words(), market.snapshot(), is_coloured)));
        match editor.readline("rtfs> ") {
            Ok(entry) => {
                if !dialogue.answer(entry.trim()).await {
                    break;
                }
            }
            Err(ReadlineError::Interrupted) => {}
            Err(ReadlineError::Eof) => break,
            Err(err) => return Err(failed(err)),
        }
        // Kept after each entry, as a dialogue may end in many ways.
        if let Some(history) = &history {
            let _ = editor.save_history(history);
        }
    }
    Ok(())
}

/// Where the history is kept: a file that its owner alone can read.
fn history() -> Option<PathBuf> {
    let var = |name| std::env::var_os(name).filter(|value| !value.is_empty()).map(PathBuf::from);
    let state = var("XDG_STATE_HOME").or_else(|| Some(var("HOME")?.join(".local/state")))?;
    let directory = state.join("orla");
    fs::DirBuilder::new().recursive(true).mode(0o700).create(&directory).ok()?;
    let path = directory.join("rtfs_history");
    fs::OpenOptions::new().append(true).create(true).mode(0o600).open(&path).ok()?;
    Some(path)
}

struct Dialogue<'a> {
    session: &'a Session<'a>,
    /// The previous program, with the values of its definitions.
    before: Option<(Arc<Program>, Run)>,
    /// The values of [`LAST`].
    last: [Value; LAST.len()],
}

/// The result of an evaluation.
struct Evaluated {
    value: Value,
    steps: u64,
    calls: u64,
}

impl Dialogue<'_> {
    /// Answers an entry; false when it was the last.
    async fn answer(&mut self, entry: &str) -> bool {
        let (command, rest) = entry.split_once(char::is_whitespace).unwrap_or((entry, ""));
        let rest = rest.trim();
        let answer = match command {
            "" => return true,
            ":quit" | ":q" | ":exit" => return false,
            ":help" | ":h" => Ok(Styled::lines(HELP.trim_end())),
            ":doc" => Ok(Styled::lines(&self.doc(rest))),
            ":type" => self.type_of(rest).await.map(|text| Styled::lines(&text)),
            ":time" => self.timed(rest).await,
            ":find" => Ok(Styled::lines(&self.find(rest))),
            ":load" => self.load(Path::new(rest)).await,
            _ => self.value_of(Text::new("", entry), None).await,
        };
        match answer {
            Ok(text) => render::styled_line(&text),
            Err(text) => render::err(&format!("{text}\n")),
        }
        true
    }

    async fn value_of(&mut self, text: Text, beside: Option<&Path>) -> Result<Styled, String> {
        let evaluated = self.evaluate(text, beside).await?;
        Ok(shown(&evaluated.value))
    }

    async fn timed(&mut self, text: &str) -> Result<Styled, String> {
        let began = Instant::now();
        let Evaluated { value, steps, calls } = self.evaluate(Text::new("", text), None).await?;
        let ms = began.elapsed().as_secs_f64() * 1000.0;
        let calls = if calls == 0 { String::new() } else { format!(", {}", counted(calls, "call")) };
        let mut answer = shown(&value);
        answer.push(&format!("\n{ms:.3} ms, {}{calls}", counted(steps, "step")));
        Ok(answer)
    }

    async fn load(&mut self, file: &Path) -> Result<Styled, String> {
        let text =
            programs::read(file).map_err(|why| format!("{} cannot be read: {why}", file.display()))?;
        let text = Text::new(file.display().to_string(), text);
        self.value_of(text, file.parent()).await
    }

    /// Compiles a text on top of the previous program.
    fn compiled(&self, text: &Text, beside: Option<&Path>) -> Result<Arc<Program>, String> {
        let options = Options {
            modules: Some(programs::modules_beside(beside)),
            base: self.before.as_ref().map(|(program, _)| Arc::clone(program)),
            open: true,
            inputs: LAST.iter().map(|name| (*name).to_owned()).collect(),
            macro_steps: Options::default().macro_steps,
        };
        compile(text, &options).map_err(|problems| problems.to_string())
    }

    /// Evaluates a text; its value, or its error, is one of the last from now on.
    async fn evaluate(&mut self, text: Text, beside: Option<&Path>) -> Result<Evaluated, String> {
        let program = self.compiled(&text, beside)?;
        let limits = self.session.limits;
        let mut run = match self.before.take() {
            Some((_, before)) => Run::continuing(Arc::clone(&program), limits, before),
            None => Run::new(Arc::clone(&program), limits, &[]),
        };
        for (name, value) in LAST.into_iter().zip(&self.last) {
            run.give(name, value.clone());
        }
        let calls = Arc::new(AtomicU64::new(0));
        let (run, result) = self.driven(run, &calls).await;
        let steps = limits.steps.saturating_sub(run.steps_left());
        self.before = Some((program, run));
        let [first, second, third, error] = &mut self.last;
        match result {
            Ok(value) => {
                *third = std::mem::replace(second, std::mem::replace(first, value.clone()));
                Ok(Evaluated { value, steps, calls: calls.load(Ordering::Relaxed) })
            }
            Err(failure) => {
                *error = failure.to_value();
                Err(failure.report())
            }
        }
    }

    /// Drives a run until it ends or Ctrl-C ends it.
    async fn driven(&self, run: Run, calls: &Arc<AtomicU64>) -> (Run, Result<Value, Error>) {
        let mut call = Call::to("rtfs");
        let config = self.session.config;
        let asked = config.is_asked_for("timeout").then_some(config.timeout);
        call.timeout = Some(asked.unwrap_or(LONGEST));
        call.scope.notices = progress::sink("program", |_| true);
        let market = self.session.app.marketplace();
        let ctx = market.program_context(&call);
        let (is_traced, calls) = (self.session.traced, Arc::clone(calls));
        let trace = TraceSink::new(move |trace| {
            calls.fetch_add(u64::from(matches!(trace, Trace::Called { .. })), Ordering::Relaxed);
            if is_traced {
                show(&trace);
            }
        });
        let running = drive(market, run, &trace, &ctx);
        tokio::pin!(running);
        loop {
            tokio::select! {
                done = &mut running => return done,
                _ = tokio::signal::ctrl_c() => call.scope.cancellation.cancel(),
            }
        }
    }

    /// Capabilities that are about it.
    fn find(&self, words: &str) -> String {
        let catalog = self.session.app.marketplace().snapshot();
        let found = discovery::search(&catalog, words, FOUND, None);
        if found.hits.is_empty() {
            return format!("nothing that is about {words:?}");
        }
        let row = |hit: &orla_marketplace::Hit| {
            let manifest = &hit.entry.manifest;
            vec![format!(":{}", manifest.id), manifest.description.clone()]
        };
        let rows: Vec<Vec<String>> = found.hits.iter().map(row).collect();
        render::table(&["CAPABILITY", "DESCRIPTION"], &rows, render::width()).trim_end().to_owned()
    }

    /// Returns the possible completions.
    fn words(&self) -> Words {
        let mut own: Vec<String> = COMMANDS.map(str::to_owned).into();
        let mut functions = Vec::new();
        if let Some((program, _)) = &self.before {
            own.extend(program.macros().map(str::to_owned));
            for global in program.globals().iter().filter(|global| !global.name.contains('\0')) {
                own.push(global.name.to_string());
                if !global.params.is_empty() {
                    functions.push((global.name.to_string(), global.params.join(" ")));
                }
            }
        }
        let catalog = self.session.app.marketplace().snapshot();
        let ids = catalog.entries().iter().map(|entry| entry.manifest.id.as_str());
        Words { functions, ..Words::new(own, ids) }
    }
}

/// Returns a value for the person at the terminal.
fn shown(value: &Value) -> Styled {
    // Elsewhere than at a terminal, one line is a value.
    let width = if std::io::stdout().is_terminal() { render::width() } else { usize::MAX };
    let text = pretty(value, width);
    if render::stdout_has_colours() { coloured(&text, None) } else { Styled::lines(&text) }
}

/// Returns whether an entry needs another line.
fn is_incomplete(entry: &str) -> bool {
    let text = entry.trim_start();
    let (command, rest) = text.split_once(char::is_whitespace).unwrap_or((text, ""));
    match command {
        ":type" | ":time" => is_unfinished(rest),
        command if COMMANDS.contains(&command) => false,
        _ => is_unfinished(text),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_entry_goes_on_while_something_is_open() {
        for (entry, more) in [
            ("(+ 1", true),
            ("(+ 1)", false),
            (":time (f", true),
            (":doc map", false),
            (":find it's", false),
            ("'", true),
        ] {
            assert_eq!(is_incomplete(entry), more, "{entry}");
        }
    }
}
