//! The dialogue: `orla rtfs` at a terminal. What is defined stays, and everything that is served can be called.
//!
//! Each entry is a program on top of those before it ([`Options::base`]); its definitions are open, so
//! that a later entry may replace them. An `import` or a macro holds for the entry that it stands in.
//! Ctrl-C ends what runs, or empties the line; Ctrl-D ends the dialogue.

mod editor;

use std::fs;
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt};
use std::path::PathBuf;
use std::sync::Arc;
use std::time::{Duration, Instant};

use orla_marketplace::program::{TraceSink, drive};
use orla_marketplace::rtfs::layout::is_unfinished;
use orla_marketplace::rtfs::{Limits, Options, Program, Run, Source as Text, Value, all_names, compile};
use orla_marketplace::{Call, NoticeSink, discovery};
use rustyline::error::ReadlineError;
use rustyline::history::FileHistory;
use rustyline::{CompletionType, Config, Editor};

use super::{LONGEST, Session, show};
use crate::{Failure, programs, render};
use editor::Assistant;

/// The most entries of the history that are kept.
const HISTORY: usize = 1_000;

const HELP: &str = "\
:doc NAME     what a definition or a capability does, and takes
:type EXPR    the type of a value
:time EXPR    how long a value takes
:help         this
:quit         the end; so is Ctrl-D
Everything else is RTFS: (call :math.add {:a 1 :b 2}). An entry goes on while something is open.
";

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
        // One that is not there yet or cannot be read is none.
        let _ = editor.load_history(history);
    }
    let mut dialogue = Dialogue { session, before: None };
    session.app.marketplace().prepare_listing().await;
    render::note(&format!("orla {}: RTFS. :help explains, Ctrl-D ends.", env!("CARGO_PKG_VERSION")));
    loop {
        editor.set_helper(Some(Assistant::new(dialogue.names())));
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
    }
    if let Some(history) = &history {
        let _ = editor.save_history(history);
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
    /// What was run before, with the values of its definitions.
    before: Option<(Arc<Program>, Run)>,
}

impl Dialogue<'_> {
    /// Answers an entry; false when it was the last.
    async fn answer(&mut self, entry: &str) -> bool {
        let (command, rest) = entry.split_once(char::is_whitespace).unwrap_or((entry, ""));
        let rest = rest.trim();
        let answer = match command {
            "" => return true,
            ":quit" | ":q" | ":exit" => return false,
            ":help" | ":h" => Ok(HELP.trim_end().to_owned()),
            ":doc" => Ok(self.doc(rest.trim_start_matches(':'))),
            ":type" => {
                let program = format!("(type-of (do {rest}\n))");
                self.evaluate(&program).await.map(|(value, _)| value.pr_str())
            }
            ":time" => {
                let began = Instant::now();
                self.evaluate(rest).await.map(|(value, steps)| {
                    let ms = began.elapsed().as_secs_f64() * 1000.0;
                    format!("{}\n{ms:.3} ms, {steps} steps", value.pr_str())
                })
            }
            _ => self.evaluate(entry).await.map(|(value, _)| value.pr_str()),
        };
        match answer {
            Ok(text) => render::line(&text),
            Err(text) => render::err(&format!("{text}\n")),
        }
        true
    }

    /// The value of a text, and the steps that it took.
    async fn evaluate(&mut self, text: &str) -> Result<(Value, u64), String> {
        let options = Options {
            modules: Some(programs::modules_beside(None)),
            base: self.before.as_ref().map(|(program, _)| Arc::clone(program)),
            open: true,
            inputs: Vec::new(),
        };
        let program =
            compile(&Text::new("", text), &options).map_err(|problems| problems.to_string())?;
        let limits = Limits::default();
        let run = match self.before.take() {
            Some((_, before)) => Run::continuing(Arc::clone(&program), limits, before),
            None => Run::new(Arc::clone(&program), limits, &[]),
        };
        let mut call = Call::to("rtfs");
        let config = self.session.config;
        let asked = config.is_asked_for("timeout").then_some(config.timeout);
        call.timeout = Some(asked.unwrap_or(LONGEST));
        call.notices = NoticeSink::new(|notice| render::note(&super::super::call::shown(&notice)));
        let market = self.session.app.marketplace();
        let ctx = market.program_context(&call);
        let trace = match self.session.traced {
            true => TraceSink::new(|trace| show(&trace)),
            false => TraceSink::default(),
        };
        let running = drive(market, run, &trace, &ctx);
        tokio::pin!(running);
        let (run, result) = loop {
            tokio::select! {
                done = &mut running => break done,
                _ = tokio::signal::ctrl_c() => call.cancellation.cancel(),
                // Says nothing by itself; a terminal that is gone is noticed at the next line.
                () = tokio::time::sleep(Duration::from_secs(3600)) => {}
            }
        };
        let steps = limits.steps.saturating_sub(run.steps_left());
        self.before = Some((program, run));
        result.map(|value| (value, steps)).map_err(|error| error.report())
    }

    /// What there is to say about a name.
    fn doc(&self, name: &str) -> String {
        let mut globals = self.before.iter().flat_map(|(program, _)| program.globals());
        if let Some(global) = globals.rfind(|global| &*global.name == name) {
            let params = global.params.join(" ");
            let head =
                if global.params.is_empty() { name.to_owned() } else { format!("({name} [{params}])") };
            return match &global.doc {
                Some(doc) => format!("{head}\n{doc}"),
                None => head,
            };
        }
        let market = self.session.app.marketplace();
        if let Some(entry) = market.get(name) {
            let described = discovery::description(&entry);
            let types: Vec<String> = ["input", "output"]
                .into_iter()
                .filter_map(|side| Some(format!("{side}: {}", described.get(side)?)))
                .collect();
            let lines = [format!(":{}", entry.manifest.id), entry.manifest.description.clone()];
            return lines.into_iter().chain(types).collect::<Vec<_>>().join("\n");
        }
        match all_names().binary_search(&name) {
            Ok(_) => format!("{name} is a function of the standard library"),
            Err(_) => format!("nothing is called {name}"),
        }
    }

    /// What can be completed: names, capabilities and commands.
    fn names(&self) -> Vec<String> {
        let mut names: Vec<String> = all_names().into_iter().map(str::to_owned).collect();
        names.extend(FORMS.iter().map(|name| (*name).to_owned()));
        let globals = self.before.iter().flat_map(|(program, _)| program.globals());
        names.extend(globals.map(|global| global.name.to_string()).filter(|name| !name.contains('\0')));
        let catalog = self.session.app.marketplace().snapshot();
        names.extend(catalog.entries().iter().map(|entry| format!(":{}", entry.manifest.id)));
        names.extend([":doc", ":type", ":time", ":help", ":quit"].map(str::to_owned));
        names.sort_unstable();
        names.dedup();
        names
    }
}

/// The forms that are no functions.
const FORMS: [&str; 34] = [
    "and",
    "as->",
    "call",
    "case",
    "capabilities",
    "catch",
    "cond",
    "cond->",
    "def",
    "defmacro",
    "defn",
    "defstruct",
    "deftype-alias",
    "describe",
    "do",
    "doseq",
    "finally",
    "fn",
    "for",
    "if",
    "if-let",
    "import",
    "let",
    "log",
    "loop",
    "match",
    "or",
    "parallel",
    "race",
    "recur",
    "settle",
    "some->",
    "try",
    "when",
];

/// Whether an entry needs another line.
fn goes_on(entry: &str) -> bool {
    let text = entry.trim_start();
    let text = [":type", ":time"].iter().find_map(|command| text.strip_prefix(command)).unwrap_or(text);
    is_unfinished(text)
}
