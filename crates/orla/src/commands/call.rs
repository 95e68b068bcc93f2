//! `orla call`: one capability, through the same path as every client's call, here or on a server.

use std::path::Path;
use std::time::Duration;

use orla_marketplace::json::{JsonError, RawObject, value_from_json};
use orla_marketplace::rtfs::text::excerpt;
use orla_marketplace::{
    Call, JsonText, LogLevel, Notice, Outcome, Payload, Progress, RuntimeError, is_waiting_message,
};
use orla_packages::lock;
use orla_server::call_result_json;
use serde_json::value::RawValue;
use serde_json::{Value, json};
use tokio_util::sync::CancellationToken;

use super::client::{Reply, Server};
use super::records::CallRecords;
use crate::app::App;
use crate::call_result::CallResult;
use crate::config::{Config, Source};
use crate::packages::project_of;
use crate::render::progress::{self, Bar};
use crate::signals::{Signals, Stop};
use crate::{Failure, cli, render};

/// Bytes of an argument that a message repeats.
const SHOWN: usize = 60;
/// An object, as an argument of a shell.
const EXAMPLE: &str = r#"'{"key": "value"}'"#;

pub(crate) fn run(call: &cli::Call, source: &Source) -> Result<(), Failure> {
    let input = input(call.json.as_deref(), &call.arguments).map_err(Failure::usage)?;
    let config = super::load_local_or_for_client(call.url.as_deref(), source)?;
    let _log = super::log(&config);
    let runtime = super::small_runtime()?;
    let done = runtime.block_on(async {
        match &call.url {
            Some(url) => call_remote(call, &config, &Server::at(Some(url), &config)?, input).await,
            None => call_local(call, &config, input).await,
        }
    });
    runtime.shutdown_background();
    done
}

/// Waits for work that runs in this process. A signal cancels the work. A second signal drops it without waiting for
/// the grace period of its processes, and is an error.
pub(super) async fn until_stopped<T>(
    work: impl Future<Output = T>,
    cancellation: &CancellationToken,
    signals: &mut Signals,
) -> Result<T, Failure> {
    tokio::pin!(work);
    tokio::select! {
        result = &mut work => Ok(result),
        stop = signals.end() => {
            cancellation.cancel();
            tokio::select! {
                result = &mut work => Ok(result),
                _ = signals.end() => Err(stopped(stop)),
            }
        }
    }
}

/// Runs the call in this process. A signal cancels it, which ends its process group.
async fn call_local(call: &cli::Call, config: &Config, input: JsonText) -> Result<(), Failure> {
    let app = App::build_local(config)?;
    if let Some(provider) = &call.alone
        && !is_served_alone(&app, provider, &call.name).await?
    {
        app.end_providers().await;
        return Ok(());
    }
    let records = CallRecords::of(&app, config)?;
    let mut request = Call::to(call.name.as_str()).with(Payload::from_json(input));
    // A timeout on the command line also applies to a tool that would take longer.
    request.timeout = config.is_asked_for("timeout").then_some(config.timeout);
    let cancellation = request.scope.cancellation.clone();
    if render::stderr_is_terminal() {
        request.scope.notices = progress::sink(&call.name, |_| true);
    }
    let mut signals = Signals::install().map_err(|err| Failure::failed(err.to_string()))?;
    let result = until_stopped(app.marketplace().call(request), &cancellation, &mut signals).await?;
    // Before the providers end: processes that end then have not failed.
    let unknown = match &result {
        Err(err @ RuntimeError::Unknown { .. }) => {
            Some(app.findings().why_not_served(&call.name).map_or_else(
                || {
                    let mut lines = vec![err.to_string()];
                    lines.extend(why_unknown(&app, config, &call.name));
                    lines
                },
                |why| vec![why.to_owned()],
            ))
        }
        _ => None,
    };
    app.end_providers().await;
    records.end().await;
    if let Some(lines) = unknown {
        return Err(Failure::failed_with(lines));
    }
    let is_denied = matches!(result, Err(RuntimeError::Denied { scopes: Some(_), .. }));
    show(call, &result).map_err(|mut failure| {
        if is_denied && !call.raw {
            failure.lines.push(AS_ANONYMOUS.to_owned());
        }
        failure
    })
}

/// The hint for a call of this process that the policy denies.
const AS_ANONYMOUS: &str =
    "without --url, a call is anonymous; with --url and ORLA_TOKEN, it has the rights of that token";

/// Starts one provider, and whether it serves the capability of a call. A provider that was named itself is only started.
async fn is_served_alone(app: &App, provider: &str, name: &str) -> Result<bool, Failure> {
    let process = app.process_for(provider).ok().flatten();
    let process = process.ok_or_else(|| Failure::failed(format!("{provider} is not served")))?;
    app.learn_from(&*process).await;
    let is_served = app.marketplace().snapshot().get(name).is_some();
    match process.status().last_failure {
        Some(failure) if !is_served || name == provider => {
            Err(Failure::failed(format!("{provider}: {failure}")))
        }
        _ if is_served || name == provider => Ok(is_served),
        _ => Err(Failure::failed(super::not_served(&app.marketplace().snapshot(), name))),
    }
}

fn show(call: &cli::Call, result: &Result<Outcome, RuntimeError>) -> Result<(), Failure> {
    if call.raw {
        render::json_line(&call_result_json(result));
        return if result.is_ok() { Ok(()) } else { Err(Failure::failed_silently()) };
    }
    let answer = CallResult::of(result)
        .map_err(|err| Failure::failed(format!("the result is malformed: {err}")))?;
    print(call, &answer)
}

/// Prints a result. A failure may have a hint for the shell.
fn print(call: &cli::Call, answer: &CallResult) -> Result<(), Failure> {
    answer.print(call.output.as_deref()).map_err(|mut failure| {
        if let Some(hint) = failure.lines.first().and_then(|error| quoting_hint(error, &call.arguments))
        {
            failure.lines.push(hint);
        }
        failure
    })
}

/// Returns a hint for passing an argument as text, if the error says that text was expected.
fn quoting_hint(error: &str, arguments: &[String]) -> Option<String> {
    arguments.iter().find_map(|argument| {
        let (key, value) = argument.split_once('=')?;
        let is_meant = error.contains(&format!("input.{key}: expected a string, got "));
        let is_other = serde_json::from_str::<Value>(value).is_ok_and(|value| !value.is_string());
        (is_meant && is_other)
            .then(|| format!("{value} is read as JSON; as a text, write '{key}={}'", Value::from(value)))
    })
}

/// Returns the reason for an unknown name: a file that is not a tool, a capsule that could not start, a lock that cannot be
/// read, or no reason at all.
fn why_unknown(app: &App, config: &Config, name: &str) -> Vec<String> {
    let findings = app.findings();
    let is_of_name = |finding: &&String| {
        let path = finding.split(": ").next().unwrap_or_default();
        Path::new(path).file_stem().is_some_and(|stem| stem == name)
    };
    let mut lines: Vec<String> = findings.skipped.iter().filter(is_of_name).cloned().collect();
    for entry in app.marketplace().list() {
        let is_of_entry = name
            .strip_prefix(&*entry.name)
            .is_some_and(|rest| rest.starts_with("__") || rest.starts_with('.'));
        if let Some(failure) = app.marketplace().status(&entry).last_failure.filter(|_| is_of_entry) {
            lines.push(format!("{}: {failure}", entry.name));
        }
    }
    // Without the lock, no package is served.
    let lock = format!("{}:", project_of(config).join(lock::FILE).display());
    lines.extend(findings.problems.iter().filter(|problem| problem.starts_with(&lock)).cloned());
    if app.marketplace().snapshot().listed().next().is_none() {
        lines.extend(findings.warnings.iter().cloned());
    }
    lines
}

/// Runs the call on a server. The server cancels the call when the connection ends, which happens when
/// this process ends or after the requested timeout.
async fn call_remote(
    call: &cli::Call,
    config: &Config,
    server: &Server,
    input: JsonText,
) -> Result<(), Failure> {
    let arguments: Box<RawValue> = RawValue::from_string(input.as_str().to_owned())
        .map_err(|err| Failure::failed(err.to_string()))?;
    let mut params = vec![("name", to_raw(&call.name)?), ("arguments", arguments)];
    let is_terminal = render::stderr_is_terminal();
    // On a terminal, the same output as for a local call: its progress, and its messages of every level.
    let wanted = match is_terminal {
        true => json!({"progressToken": 1, "io.modelcontextprotocol/logLevel": "debug"}),
        false => json!({"io.modelcontextprotocol/logLevel": "notice"}),
    };
    params.push(("_meta", to_raw(&wanted)?));
    let bar = Bar::new(&call.name);
    let mut signals = Signals::install().map_err(|err| Failure::failed(err.to_string()))?;
    let reply = tokio::select! {
        reply = server.request("tools/call", &call.name, &params, |message| {
            match received(message) {
                Some(Notice::Log { message, .. }) if is_waiting_message(&message) => {
                    render::note(&message);
                }
                Some(notice) if is_terminal => bar.show(&notice),
                _ => {}
            }
        }) => reply?,
        stop = signals.end() => return Err(stopped(stop)),
        limit = asked_timeout(config) => {
            drop(bar);
            let id = call.name.clone();
            return show(call, &Err(RuntimeError::TimedOut { id, limit, outcome: None }));
        }
    };
    drop(bar);
    let result = match reply {
        Reply::Result(result) => result,
        Reply::Error(message) => return Err(Failure::failed(message)),
    };
    let answer = CallResult::parse(&result)
        .map_err(|err| Failure::failed(format!("the answer is malformed: {err}")))?;
    if call.raw {
        render::json_line(&result);
        return if answer.is_error() { Err(Failure::failed_silently()) } else { Ok(()) };
    }
    print(call, &answer)
}

/// Waits for the timeout of the command line or the environment, or forever if there is none.
async fn asked_timeout(config: &Config) -> Duration {
    if !config.is_asked_for("timeout") {
        return std::future::pending().await;
    }
    tokio::time::sleep(config.timeout).await;
    config.timeout
}

fn to_raw(value: &impl serde::Serialize) -> Result<Box<RawValue>, Failure> {
    serde_json::value::to_raw_value(value).map_err(|err| Failure::failed(err.to_string()))
}

pub(super) fn stopped(stop: Stop) -> Failure {
    Failure::failed(format!("stopped by {}", stop.name()))
}

/// Returns a message of the server during a call, if it is shown.
fn received(message: &Value) -> Option<Notice> {
    let params = &message["params"];
    match message["method"].as_str()? {
        "notifications/progress" => Some(Notice::Progress(Progress {
            progress: params["progress"].as_f64()?,
            total: params["total"].as_f64(),
            message: params["message"].as_str().map(str::to_owned),
        })),
        "notifications/message" => {
            let data = &params["data"];
            let level = params["level"].as_str().and_then(|level| level.parse().ok());
            Some(Notice::Log {
                level: level.unwrap_or(LogLevel::Info),
                message: data.as_str().map_or_else(|| data.to_string(), str::to_owned).into(),
            })
        }
        _ => None,
    }
}

/// Returns the arguments of the command line as one JSON object: `--json` first, then each `key=value`
/// in its order. Numbers keep their text.
pub(super) fn input(object: Option<&str>, arguments: &[String]) -> Result<JsonText, String> {
    let mut members: Vec<(String, String)> = Vec::new();
    if let Some(text) = object {
        members = object_members(text).map_err(|problem| format!("--json: {problem}"))?;
    }
    for argument in arguments {
        let (key, value) =
            argument.split_once('=').filter(|(key, _)| !key.is_empty()).ok_or_else(|| {
                let is_object = argument.trim_start().starts_with('{');
                let hint = if is_object { "; pass a whole object with --json" } else { "" };
                format!("{argument:?}: expected key=value{hint}")
            })?;
        let value = match serde_json::from_str::<&RawValue>(value) {
            Ok(raw) => raw.get().to_owned(),
            Err(_) => Value::from(value).to_string(),
        };
        match members.iter_mut().find(|(known, _)| known == key) {
            Some((_, old)) => *old = value,
            None => members.push((key.to_owned(), value)),
        }
    }
    let members: Vec<String> =
        members.into_iter().map(|(key, value)| format!("{}:{value}", Value::from(key))).collect();
    JsonText::parse(format!("{{{}}}", members.join(","))).map_err(|err| err.to_string())
}

/// Returns the members of an object as they were written.
fn object_members(text: &str) -> Result<Vec<(String, String)>, String> {
    // Numbers that only a text can hold are passed on; the value is made only to find errors.
    let RawObject(members) = serde_json::from_str(text).map_err(|_| match value_from_json(text) {
        Err(JsonError { problem, .. }) => format!("{problem}; write an object such as {EXAMPLE}"),
        Ok(_) => format!("expected an object such as {EXAMPLE}, got {}", excerpt(text.trim(), SHOWN)),
    })?;
    Ok(members.into_iter().map(|(name, value)| (name.into_owned(), value.get().to_owned())).collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn made(object: Option<&str>, arguments: &[&str]) -> Result<String, String> {
        let arguments: Vec<String> = arguments.iter().map(|argument| (*argument).to_owned()).collect();
        input(object, &arguments).map(|json| json.as_str().to_owned())
    }

    #[test]
    fn arguments_are_json_where_they_parse_and_text_where_they_do_not() {
        let cases = [
            (None, &[][..], "{}"),
            (
                None,
                &["b=1", "a=x y", "c=true", "d=", "e=\"1\""],
                r#"{"b":1,"a":"x y","c":true,"d":"","e":"1"}"#,
            ),
            (
                None,
                &["n=1.10", "big=18446744073709551616", "l=[1, 2]"],
                r#"{"n":1.10,"big":18446744073709551616,"l":[1, 2]}"#,
            ),
            (None, &["q=a=b", "q2={x}"], r#"{"q":"a=b","q2":"{x}"}"#),
            (Some(r#" {"a": 1.0, "b": 2} "#), &["b=3", "c=4"], r#"{"a":1.0,"b":3,"c":4}"#),
        ];
        for (object, arguments, expected) in cases {
            assert_eq!(made(object, arguments).as_deref(), Ok(expected));
        }
    }

    #[test]
    fn a_number_where_a_text_is_expected_is_answered_with_how_to_write_it() {
        let arguments = ["folder=2026", "n=1"].map(str::to_owned);
        let error = "pack: invalid input: input.folder: expected a string, got 2026";
        let hint = quoting_hint(error, &arguments).unwrap();
        assert_eq!(hint, "2026 is read as JSON; as a text, write 'folder=\"2026\"'");
        assert_eq!(
            quoting_hint("pack: invalid input: input.n: expected true or false, got 1", &arguments),
            None
        );
    }

    #[test]
    fn invalid_arguments_are_explained() {
        assert_eq!(made(None, &["path"]).unwrap_err(), "\"path\": expected key=value");
        assert_eq!(made(None, &["=x"]).unwrap_err(), "\"=x\": expected key=value");
        let whole = made(None, &["{\"a\":1}"]).unwrap_err();
        assert!(whole.ends_with("expected key=value; pass a whole object with --json"), "{whole}");
        assert_eq!(
            made(Some("[1]"), &[]).unwrap_err(),
            r#"--json: expected an object such as '{"key": "value"}', got [1]"#
        );
        for text in ["{", "{'a': 1}"] {
            let problem = made(Some(text), &[]).unwrap_err();
            assert!(problem.starts_with("--json: expected a key in quotes, got "), "{problem}");
        }
    }

    #[test]
    fn a_remote_call_gives_the_same_as_a_local_call() {
        let progress = json!({"method": "notifications/progress", "params": {"progress": 1, "total": 3, "message": "m"}});
        let expected = Progress { progress: 1.0, total: Some(3.0), message: Some("m".to_owned()) };
        assert_eq!(received(&progress), Some(Notice::Progress(expected)));
        let log = json!({"method": "notifications/message", "params": {"level": "warning", "data": "careful"}});
        let expected = Notice::Log { level: LogLevel::Warning, message: "careful".into() };
        assert_eq!(received(&log), Some(expected));
        assert_eq!(received(&json!({"method": "x"})), None);
    }
}
