//! Converts another instance's answer to an outcome. Pure.
//!
//! | answer | outcome |
//! |---|---|
//! | `{"value"}`, `{"content"}`, `{"meta"}`, or several of them | the outcome that the capability gave there |
//! | `{"error": {kind, …}}` | the error that it was there: of the same kind, with its message, its data and what came with it; what is unknown or not permitted there is so there, and not here |

use std::borrow::Cow;
use std::time::Duration;

use bytes::Bytes;
use orla_marketplace::json::value_from_json;
use orla_marketplace::rtfs::{Error, Origin, Position};
use orla_marketplace::{
    Answered, BoxError, CallContext, JsonText, Outcome, Payload, RuntimeError, RuntimeResult,
    Undeclared, Violation,
};
use serde::Deserialize;
use serde_json::value::{RawValue, to_raw_value};

use crate::wire::present;

/// The maximum number of characters of a message.
const MAX_MESSAGE: usize = 16 * 1024;
/// The maximum number of violations or similar names.
const MAX_LISTED: usize = 100;

/// The members of an answer.
#[derive(Deserialize)]
struct Response<'a> {
    #[serde(borrow, default, deserialize_with = "present")]
    value: Option<&'a RawValue>,
    #[serde(borrow)]
    content: Option<&'a RawValue>,
    #[serde(borrow)]
    meta: Option<&'a RawValue>,
    #[serde(borrow)]
    error: Option<&'a RawValue>,
    /// The output that accompanies an error.
    #[serde(borrow)]
    outcome: Option<&'a RawValue>,
}

#[derive(Deserialize)]
struct RemoteError<'a> {
    #[serde(borrow)]
    kind: Cow<'a, str>,
    #[serde(borrow, default)]
    message: Cow<'a, str>,
    #[serde(borrow)]
    data: Option<&'a RawValue>,
    #[serde(borrow)]
    capability: Option<Cow<'a, str>>,
    at: Option<At>,
    #[serde(borrow)]
    cause: Option<&'a RawValue>,
    #[serde(borrow)]
    detail: Option<&'a RawValue>,
}

/// A place in a program.
#[derive(Deserialize)]
struct At {
    #[serde(default)]
    line: u32,
    #[serde(default)]
    column: u32,
}

#[derive(Default, Deserialize)]
#[serde(default)]
struct Detail {
    running: usize,
    waiting: usize,
    retry_after_ms: u64,
    reason: Option<String>,
    /// Whether the same call fails again until a declaration is changed.
    lasting: bool,
    what: Option<String>,
    reported: bool,
    /// Whether the call was cancelled because the instance stops.
    stopping: bool,
    /// The whole text of a program's error.
    #[serde(rename = "told")]
    text: Option<String>,
    code: Option<i64>,
    message: Option<String>,
    data: Option<Box<RawValue>>,
}

#[derive(Deserialize)]
struct Broken {
    path: String,
    expected: String,
    got: String,
}

/// A call of another instance, for error messages.
#[derive(Clone, Copy)]
pub struct Request<'a> {
    /// The context of the local call.
    pub ctx: &'a CallContext,
    /// The other instance: `the remote instance HOST`.
    pub instance: &'a str,
    /// The capability's id at the other instance.
    pub capability: &'a str,
}

/// Returns the outcome of a complete answer, or its error; `None` if it is not an answer of an instance.
pub fn read(request: Request<'_>, body: &Bytes) -> Option<RuntimeResult<Outcome>> {
    let answer = serde_json::from_slice::<Response<'_>>(body).ok()?;
    let Some(error) = answer.error else { return outcome(body, &answer).map(Ok) };
    let remote = serde_json::from_str::<RemoteError<'_>>(error.get()).ok()?;
    let came = answer.outcome.and_then(|came| {
        let parts: Response<'_> = serde_json::from_str(came.get()).ok()?;
        outcome(body, &parts)
    });
    Some(Err(same(request, &remote, error, came)))
}

fn outcome(body: &Bytes, answer: &Response<'_>) -> Option<Outcome> {
    let part = |raw: Option<&RawValue>| raw.map(|raw| JsonText::slice_of(body, raw));
    let starts = |raw: Option<&RawValue>, with: char| raw.is_none_or(|raw| raw.get().starts_with(with));
    // A value that is not a list of blocks, or not an object, could not be passed on.
    if !starts(answer.content, '[') || !starts(answer.meta, '{') {
        return None;
    }
    let is_any = answer.value.is_some() || answer.content.is_some() || answer.meta.is_some();
    is_any.then(|| Outcome {
        structured: part(answer.value).map(Payload::from_json),
        content: part(answer.content),
        meta: part(answer.meta),
        ..Outcome::default()
    })
}

/// Returns the same error as at the other instance. Texts that could refer to this instance name the
/// other one.
fn same(
    request: Request<'_>,
    remote: &RemoteError<'_>,
    error: &RawValue,
    came: Option<Outcome>,
) -> RuntimeError {
    let Request { ctx, instance, capability } = request;
    let id = ctx.name.to_string();
    let at_instance = |what: String| format!("{instance}: {what}");
    let detail: Detail =
        remote.detail.and_then(|detail| serde_json::from_str(detail.get()).ok()).unwrap_or_default();
    let message: String = remote.message.chars().take(MAX_MESSAGE).collect();
    let texts = || -> Vec<String> {
        let texts: Vec<String> = data(remote).unwrap_or_default();
        texts.into_iter().take(MAX_LISTED).collect()
    };
    let outcome = |came: Option<Outcome>| came.map(Box::new);
    let structured_error = |text: Option<String>| structured_error(id.clone(), remote, error, text);
    let at_remote = |text: String| at_remote(id.clone(), error, &text);
    if detail.text.is_some() || remote.at.is_some() {
        return structured_error(detail.text);
    }
    match &*remote.kind {
        "unknown-capability" => {
            let near = texts().first().map(|near| format!("; did you mean {near}?")).unwrap_or_default();
            at_remote(format!("{id} failed: {instance} has no capability {capability}{near}"))
        }
        "invalid-input" => match violations(remote) {
            Some(violations) => RuntimeError::InvalidInput { id, violations },
            None => structured_error(None),
        },
        "invalid-output" => match violations(remote) {
            Some(violations) => RuntimeError::InvalidOutput {
                id,
                violations,
                outcome: Box::new(came.unwrap_or_default()),
            },
            None => structured_error(None),
        },
        "denied" => match data::<String>(remote) {
            Some(permission) if message.is_empty() || message.ends_with(&permission) => at_remote(
                format!("{id} failed: {instance} does not permit {capability}: it needs {permission}"),
            ),
            _ => structured_error(None),
        },
        "timeout" => RuntimeError::TimedOut { id, limit: ctx.timeout, outcome: outcome(came) },
        // No local caller has cancelled it.
        "cancelled" if detail.stopping => RuntimeError::Unavailable {
            id,
            reason: at_instance("it stopped before the call had ended".to_owned()),
            source: outcome(came).map(|came| Box::new(Answered(came)) as BoxError),
        },
        "cancelled" => RuntimeError::Cancelled { id, outcome: outcome(came) },
        "busy" => RuntimeError::Busy { id, running: detail.running, waiting: detail.waiting },
        "quota" => {
            let wait = Duration::from_millis(detail.retry_after_ms);
            RuntimeError::quota(id, String::new(), at_instance(detail.what.unwrap_or(message)), wait)
        }
        "unavailable" => {
            let reason = at_instance(detail.reason.unwrap_or(message));
            let source = match (detail.lasting, outcome(came)) {
                (true, _) => Some(Box::new(Undeclared) as BoxError),
                (false, came) => came.map(|came| Box::new(Answered(came)) as BoxError),
            };
            RuntimeError::Unavailable { id, reason, source }
        }
        "limit" if came.is_none() => RuntimeError::Limit { id, what: detail.what.unwrap_or(message) },
        "panicked" => RuntimeError::Panicked { id },
        _ => match (detail, came) {
            (Detail { reported: true, .. }, Some(came)) => RuntimeError::reported(id, came),
            (Detail { code: Some(code), message: Some(said), data, .. }, _) => {
                let data = data.filter(|data| data.get() != "null").map(JsonText::from);
                RuntimeError::Refused { id, code, message: said, data }
            }
            (_, Some(came)) => RuntimeError::Failed { id, message, outcome: Some(Box::new(came)) },
            (_, None) => structured_error(None),
        },
    }
}

/// Returns an error of the other instance, in words that name that instance.
fn at_remote(id: String, error: &RawValue, text: &str) -> RuntimeError {
    let reworded = || {
        let mut json: serde_json::Value = serde_json::from_str(error.get()).ok()?;
        json.as_object_mut()?.insert("message".to_owned(), text.into());
        to_raw_value(&json).ok()
    };
    let remote = reworded();
    let remote = remote.as_deref().and_then(|raw| Some((serde_json::from_str(raw.get()).ok()?, raw)));
    match remote {
        Some((remote, raw)) => structured_error(id, &remote, raw, None),
        None => RuntimeError::Failed { id, message: text.to_owned(), outcome: None },
    }
}

/// Returns an error that is passed on unchanged: a program's, or one with more data than its kind has
/// fields. `text` is for the caller, if it says more than the message.
fn structured_error(
    id: String,
    remote: &RemoteError<'_>,
    error: &RawValue,
    text: Option<String>,
) -> RuntimeError {
    let cut = |text: &str| -> String { text.chars().take(MAX_MESSAGE).collect() };
    let value = |json: Option<&RawValue>| {
        json.and_then(|json| value_from_json(json.get()).ok()).unwrap_or_default()
    };
    let message = match cut(&remote.message) {
        message if message.is_empty() => format!("{id} failed there ({})", cut(&remote.kind)),
        message => message,
    };
    let mut same = Error::new(cut(&remote.kind), message).with_data(value(remote.data));
    same.capability = remote.capability.as_deref().map(cut);
    same.cause = value(remote.cause);
    same.at = remote.at.as_ref().map(|at| {
        let position = Position { line: at.line, column: at.column };
        Box::new(Origin { position, source: None })
    });
    let message = text.map_or_else(|| same.message.clone(), |text| cut(&text));
    let structured = JsonText::parse(format!(r#"{{"error":{}}}"#, error.get())).ok();
    let structured = structured.map(Payload::from_json);
    RuntimeError::structured(id, message, same, structured)
}

fn data<T: for<'de> Deserialize<'de>>(remote: &RemoteError<'_>) -> Option<T> {
    serde_json::from_str(remote.data?.get()).ok()
}

fn violations(remote: &RemoteError<'_>) -> Option<Vec<Violation>> {
    let broken: Vec<Broken> = data(remote)?;
    let of = |Broken { path, expected, got }| Violation { path, expected, got };
    (!broken.is_empty()).then(|| broken.into_iter().take(MAX_LISTED).map(of).collect())
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn request(ctx: &CallContext) -> Request<'_> {
        Request { ctx, instance: "the remote instance b:1", capability: "there" }
    }

    fn read_text(body: &str) -> RuntimeResult<Outcome> {
        let body = Bytes::copy_from_slice(body.as_bytes());
        read(request(&CallContext::for_tests("far")), &body)
            .unwrap_or_else(|| Err(RuntimeError::Generic("no answer of an instance".to_owned())))
    }

    #[test]
    fn a_value_comes_to_the_last_digit_and_content_beside_it() {
        let outcome =
            read_text(r#"{"value": {"n": 1.10}, "content": [], "meta": {"a": 1e400}}"#).unwrap();
        assert_eq!(outcome.structured.unwrap().json().unwrap().as_str(), r#"{"n": 1.10}"#);
        assert_eq!(outcome.content.unwrap().as_str(), "[]");
        assert_eq!(outcome.meta.unwrap().as_str(), r#"{"a": 1e400}"#);
        let nothing = read_text(r#"{"value": null}"#).unwrap();
        assert_eq!(nothing.structured.unwrap().json().unwrap().as_str(), "null");
        let content = read_text(r#"{"content": [{"type": "text", "text": "a"}]}"#).unwrap();
        assert!(content.structured.is_none() && content.content.is_some());
    }

    #[test]
    fn an_error_is_the_same_error_here() {
        for (body, kind, words) in [
            (
                r#"{"kind": "unknown-capability", "message": "", "data": ["near"]}"#,
                "unknown-capability",
                "far failed: the remote instance b:1 has no capability there; did you mean near?",
            ),
            (
                r#"{"kind": "invalid-input", "data": [{"path": "input.a", "expected": ":int", "got": "\"x\""}]}"#,
                "invalid-input",
                "far: invalid input: input.a",
            ),
            (
                r#"{"kind": "denied", "data": "net:h"}"#,
                "denied",
                "far failed: the remote instance b:1 does not permit there: it needs net:h",
            ),
            (r#"{"kind": "timeout"}"#, "timeout", "far timed out after 30 s"),
            (
                r#"{"kind": "busy", "detail": {"running": 3, "waiting": 4}}"#,
                "busy",
                "3 calls are running and 4",
            ),
            (
                r#"{"kind": "unavailable", "message": "m", "detail": {"reason": "r"}}"#,
                "unavailable",
                "far is unavailable: the remote instance b:1: r",
            ),
            (
                r#"{"kind": "limit", "detail": {"what": "the hop limit"}}"#,
                "limit",
                "far reached a limit: the hop limit",
            ),
            (r#"{"kind": "failed", "message": "it broke"}"#, "failed", "it broke"),
            (
                r#"{"kind": "failed", "message": "m", "detail": {"code": -7, "message": "no"}}"#,
                "failed",
                "no (code -7)",
            ),
            (r#"{"kind": "division-by-zero", "message": "1/0", "at": {"line": 1}}"#, "failed", "1/0"),
            (r#"{"kind": "panicked"}"#, "panicked", "internal error"),
            (
                r#"{"kind": "denied", "message": "not on Sundays", "data": {"why": 1}}"#,
                "denied",
                "Sundays",
            ),
            (r#"{"kind": "denied", "message": "not on Sundays", "data": "x"}"#, "denied", "Sundays"),
            (r#"{"kind": "denied"}"#, "denied", "far failed there (denied)"),
            (
                r#"{"kind": "limit", "message": "m", "at": {"line": 1, "column": 2}, "detail": {"told": "1:2: m"}}"#,
                "limit",
                "1:2: m",
            ),
        ] {
            let error = read_text(&format!(r#"{{"error": {body}}}"#)).unwrap_err();
            assert_eq!(error.kind(), kind, "{body}");
            assert!(error.to_string().contains(words), "{body}: {error}");
        }
    }

    #[test]
    fn an_error_keeps_its_outcome() {
        let body = r#"{"error": {"kind": "failed", "message": "m", "detail": {"reported": true}},
            "outcome": {"content": [{"type": "text", "text": "it says"}]}}"#;
        let error = read_text(body).unwrap_err();
        assert!(
            matches!(&error, RuntimeError::Reported { message, .. } if message == "it says"),
            "{error:?}"
        );
        let error =
            read_text(r#"{"error": {"kind": "type", "message": "m", "at": {"line": 3}}}"#).unwrap_err();
        let shown = error.outcome().unwrap().structured.as_ref().unwrap().json().unwrap();
        assert!(shown.as_str().contains(r#""at": {"line": 3}"#), "{}", shown.as_str());
    }

    #[test]
    fn a_lasting_unavailability_stays_lasting() {
        for (detail, is_transient) in [(r#"{"reason": "r"}"#, true), (r#"{"lasting": true}"#, false)] {
            let body = format!(r#"{{"error": {{"kind": "unavailable", "detail": {detail}}}}}"#);
            assert_eq!(read_text(&body).unwrap_err().is_transient(), is_transient, "{detail}");
        }
    }

    #[test]
    fn an_unavailable_provider_keeps_its_outcome() {
        let body = r#"{"error": {"kind": "unavailable", "message": "m", "detail": {"reason": "r"}},
            "outcome": {"value": {"n": 1.10}}}"#;
        let error = read_text(body).unwrap_err();
        assert_eq!(error.kind(), "unavailable");
        let value = error.outcome().unwrap().structured.as_ref().unwrap().json().unwrap();
        assert_eq!(value.as_str(), r#"{"n": 1.10}"#);
    }

    #[test]
    fn a_program_catches_errors_of_a_remote_program() {
        let body = r#"{"error": {"kind": "mine", "message": "m", "capability": "x", "data": {"n": 1},
            "at": {"line": 3, "column": 4}, "cause": {"at": {"line": 5, "column": 6}}}}"#;
        let Err(RuntimeError::Structured { error, .. }) = read_text(body) else { panic!("{body}") };
        let here = error.through("far");
        assert_eq!(
            (&*here.kind, &*here.message, here.data.pr_str()),
            ("mine", "m", "{:n 1}".to_owned())
        );
        assert_eq!(here.report(), "mine: m\nin far at 3:4\nin x at 5:6");
    }

    #[test]
    fn foreign_answers_are_recognised() {
        let ctx = CallContext::for_tests("far");
        for body in ["hello", "{}", r#"{"content": 7}"#, r#"{"error": 7}"#, ""] {
            assert!(read(request(&ctx), &Bytes::from_static(body.as_bytes())).is_none(), "{body}");
        }
    }

    proptest! {
        #[test]
        fn any_answer_can_be_read(body in r#"[\{\}\[\]",:a-z0-9 ]{0,60}"#, kind in "[a-z-]{0,20}", data in any::<u8>()) {
            let _ = read_text(&body);
            let body = format!(r#"{{"error":{{"kind":"{kind}","data":{data},"detail":{{"code":{data}}}}}}}"#);
            prop_assert!(read_text(&body).is_err());
        }
    }
}
