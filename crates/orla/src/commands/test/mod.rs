//! `orla test`: runs cases with expected results against the capabilities of the configuration.

mod case;
mod expect;
mod replay;
mod report;
mod update;

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};

use orla_marketplace::{Call, JsonText, Outcome, Payload, RuntimeError, RuntimeResult};
use orla_mcp::call_result::plain_json;
use orla_providers::tool::naming::CASES;
use orla_server::call_result_json;
use serde_json::Value;

use super::call::until_stopped;
use crate::app::App;
use crate::cli::Test;
use crate::config::{Config, Source, read_text};
use crate::signals::Signals;
use crate::{Failure, render};
use case::{Case, Target, cases};
use expect::Ended;
use replay::Recording;

/// The largest file of cases that is read.
const MAX_FILE: u64 = 16 << 20;

/// How one case went.
struct Outcomes {
    name: String,
    file: PathBuf,
    /// The differences; empty if the case passed.
    differences: Vec<String>,
    took: Duration,
    /// How long the calls that a recording answered took when they were recorded, together.
    recorded: Option<Duration>,
}

pub(crate) fn run(test: &Test, source: &Source) -> Result<(), Failure> {
    let config = super::load(source)?;
    let _log = super::log(&config);
    // Before anything is started.
    let files = if test.files.is_empty() { beside_tools(&config)? } else { test.files.clone() };
    let mut found: Vec<Case> = Vec::new();
    let mut problems = Vec::new();
    for file in &files {
        match read_text(file, MAX_FILE) {
            Ok(text) => match cases(file, &text, tool_of(file).as_deref()) {
                Ok(cases) => found.extend(cases),
                Err(wrong) => problems.extend(wrong),
            },
            Err(problem) => problems.push(problem),
        }
    }
    if !problems.is_empty() {
        return Err(Failure::usage_with(problems));
    }
    let runtime = super::small_runtime()?;
    let done = runtime.block_on(async {
        let app = App::build_local(&config)?;
        let mut signals = Signals::install().map_err(|err| Failure::failed(err.to_string()))?;
        let cancellation = tokio_util::sync::CancellationToken::new();
        let mut outcomes = Vec::new();
        for case in &found {
            let one = run_case(&app, &config, case, test, &cancellation);
            outcomes.push(until_stopped(one, &cancellation, &mut signals).await?);
            if cancellation.is_cancelled() {
                app.end_providers().await;
                return Err(Failure::failed("stopped"));
            }
        }
        app.end_providers().await;
        Ok(outcomes)
    });
    runtime.shutdown_background();
    let outcomes = done?;
    let outcomes = match test.update {
        true => update::apply(&found, outcomes)?,
        false => outcomes.into_iter().map(|(outcome, _)| outcome).collect(),
    };
    if let Some(path) = &test.junit {
        std::fs::write(path, report::junit(&outcomes)).map_err(|err| {
            Failure::failed(format!("{}: {}", path.display(), crate::config::reason(&err)))
        })?;
    }
    match test.json {
        true => super::print_json(&report::json(&outcomes))?,
        false => render::out(&report::text(&outcomes)),
    }
    match outcomes.iter().all(|outcome| outcome.differences.is_empty()) {
        true => Ok(()),
        false => Err(Failure::failed_silently()),
    }
}

/// Returns the files with cases in the tools directory.
fn beside_tools(config: &Config) -> Result<Vec<PathBuf>, Failure> {
    let dir = &config.tools_dir;
    let entries = std::fs::read_dir(dir).into_iter().flatten().filter_map(Result::ok);
    let mut files: Vec<PathBuf> =
        entries.map(|entry| entry.path()).filter(|path| tool_of(path).is_some()).collect();
    files.sort();
    match files.is_empty() {
        true => Err(Failure::usage(format!(
            "no cases: name files, or put NAME.test.yaml beside the tool NAME in {}",
            dir.display()
        ))),
        false => Ok(files),
    }
}

/// Returns the name of the tool next to a file of cases.
fn tool_of(file: &Path) -> Option<String> {
    let name = file.file_name()?.to_str()?;
    let stem = CASES.iter().find_map(|end| name.strip_suffix(end))?;
    Some(stem.to_owned()).filter(|stem| !stem.is_empty())
}

/// Runs a case. Also returns the result of the call, for `--update`.
async fn run_case(
    app: &App,
    config: &Config,
    case: &Case,
    test: &Test,
    cancellation: &tokio_util::sync::CancellationToken,
) -> (Outcomes, Option<Value>) {
    let began = Instant::now();
    let (target, input) = match &case.target {
        Target::Capability(name) => (name.clone(), Ok(case.input.clone())),
        Target::Program(text) => {
            let program = Value::from(&**text);
            let input = format!("{{\"program\":{program},\"input\":{}}}", case.input);
            ("rtfs".to_owned(), JsonText::parse(input))
        }
    };
    let mut call = Call::to(target);
    call.scope.is_task = app.marketplace().snapshot().requires_task(&call.target);
    call.timeout = config.is_asked_for("timeout").then_some(config.timeout);
    call.scope.cancellation = cancellation.clone();
    let recording =
        test.replay.then(|| Arc::new(Recording::of(&case.calls, case.expect.error.as_deref())));
    if let Some(recording) = &recording {
        recording.stand_in(app.marketplace());
        call.scope.answers = Some(Arc::clone(recording) as _);
    }
    let ended = match input {
        Ok(input) => {
            let result = app.marketplace().call(call.with(Payload::from_json(input))).await;
            match case.target {
                Target::Program(_) => value_of(ended(result)),
                Target::Capability(_) => ended(result),
            }
        }
        Err(err) => error("invalid-input", err.to_string()),
    };
    let mut differences = case.expect.differences(&ended);
    if let Some(recording) = &recording {
        differences.extend(recording.left_over());
    }
    let got = match &ended {
        Ended::Output(text) => serde_json::from_str(text).ok(),
        Ended::Error { .. } => None,
    };
    let (name, file) = (case.name.clone(), case.place.file.clone());
    let recorded = recording.map(|recording| recording.recorded_time());
    (Outcomes { name, file, differences, took: began.elapsed(), recorded }, got)
}

/// Returns how a call ended, as plain JSON.
fn ended(result: RuntimeResult<Outcome>) -> Ended {
    match result {
        Ok(outcome) => {
            let bare: RuntimeResult<Outcome> = Ok(Outcome { meta: None, ..outcome });
            let text = call_result_json(&bare);
            let plain = JsonText::parse(text).map(|result| plain_json(&result));
            match plain {
                Ok(json) => Ended::Output(json.as_str().to_owned()),
                Err(err) => error("invalid-output", err.to_string()),
            }
        }
        Err(failed) => match &failed {
            RuntimeError::Structured { error, .. } => Ended::Error {
                kind: error.kind.to_string(),
                outside: failed.kind(),
                message: failed.to_string(),
            },
            _ => error(failed.kind(), failed.to_string()),
        },
    }
}

fn error(kind: &'static str, message: String) -> Ended {
    Ended::Error { kind: kind.to_owned(), outside: kind, message }
}

/// Returns the value of a program, which the tool `rtfs` returns as the member `value`.
fn value_of(ended: Ended) -> Ended {
    #[derive(serde::Deserialize)]
    struct Returned<'a> {
        #[serde(borrow)]
        value: &'a serde_json::value::RawValue,
    }
    match ended {
        Ended::Output(text) => {
            let value = serde_json::from_str(&text).map(|Returned { value }| value.get().to_owned());
            Ended::Output(value.unwrap_or(text))
        }
        error @ Ended::Error { .. } => error,
    }
}
