//! Writes the result of a call in the exchange format. Pure.

use orla_marketplace::json::value_to_json;
use orla_marketplace::rtfs::Value;
use orla_marketplace::{JsonText, Outcome, RuntimeError, RuntimeResult, Violation, millis_up, program};
use serde_json::{Value as Json, json};

/// Returns an outcome as a JSON object for [`read`](super::read).
///
/// # Errors
/// A value that JSON cannot hold.
pub fn write(outcome: &Outcome) -> RuntimeResult<String> {
    members(outcome).map(|members| format!("{{{members}}}"))
}

/// Returns an error as a JSON object for [`read`](super::read), with all data that is needed to
/// reconstruct it.
pub fn write_error(error: &RuntimeError) -> String {
    let mut error_json = described(error);
    if let Some(detail) = detail(error) {
        error_json["error"]["detail"] = detail;
    }
    let mut message = error_json.to_string();
    let is_structured = matches!(error, RuntimeError::Structured { .. });
    let outcome = error.outcome().filter(|_| !is_structured);
    if let Some(members) = outcome.and_then(|outcome| members(outcome).ok()) {
        // The data is outside of the error, so that its numbers keep their text.
        message.pop();
        message.push_str(&format!(r#","outcome":{{{members}}}}}"#));
    }
    message
}

/// Returns an error as data: `{"error": {kind, message, data, at}}`.
pub fn described(error: &RuntimeError) -> Json {
    if let RuntimeError::Structured { error, .. } = error {
        return json!({ "error": program::described(error) });
    }
    let mut described =
        json!({"kind": error.kind(), "message": error.to_string(), "data": null, "at": null});
    let data = match error {
        RuntimeError::InvalidInput { violations, .. }
        | RuntimeError::InvalidOutput { violations, .. } => {
            let shown = |violation: &Violation| json!({"path": violation.path, "expected": violation.expected, "got": violation.got});
            Some(violations.iter().map(shown).collect())
        }
        RuntimeError::Denied { permission, .. } => Some(json!(permission)),
        RuntimeError::Quota { limit, retry_after, .. } => {
            Some(json!({"limit": limit, "retry_after_ms": millis_up(*retry_after)}))
        }
        RuntimeError::Unknown { similar, .. } => Some(json!(similar)),
        RuntimeError::Refused { code, message, data, .. } => {
            Some(refusal(*code, message, data.as_ref()))
        }
        error => error.outcome().and_then(|outcome| outcome.value().ok()).map(|value| as_json(&value)),
    };
    if let Some(data) = data {
        described["data"] = data;
    }
    json!({ "error": described })
}

fn members(outcome: &Outcome) -> RuntimeResult<String> {
    let structured = outcome.structured.as_ref().map(|value| value.json()).transpose()?;
    let members =
        [("value", structured), ("content", outcome.content.as_ref()), ("meta", outcome.meta.as_ref())];
    let mut text = String::new();
    for (name, json) in members {
        if let Some(json) = json {
            text.push_str(&format!(r#"{}"{name}":{json}"#, if text.is_empty() { "" } else { "," }));
        }
    }
    // The empty value is a value too.
    Ok(if text.is_empty() { r#""value":null"#.to_owned() } else { text })
}

/// Returns the details of an error that its sentence does not contain in a parseable form.
fn detail(error: &RuntimeError) -> Option<Json> {
    Some(match error {
        RuntimeError::Busy { running, waiting, .. } => json!({"running": running, "waiting": waiting}),
        RuntimeError::Quota { limit, retry_after, .. } => {
            json!({"what": limit, "retry_after_ms": millis_up(*retry_after)})
        }
        RuntimeError::Unavailable { reason, .. } if error.is_transient() => json!({ "reason": reason }),
        RuntimeError::Unavailable { reason, .. } => json!({"reason": reason, "lasting": true}),
        RuntimeError::Limit { what, .. } => json!({ "what": what }),
        RuntimeError::Stopped { .. } => json!({"stopping": true}),
        RuntimeError::Reported { .. } => json!({"reported": true}),
        RuntimeError::Structured { message, .. } => json!({ "told": message }),
        RuntimeError::Refused { code, message, data, .. } => refusal(*code, message, data.as_ref()),
        _ => return None,
    })
}

/// Returns the content of an MCP server's error.
fn refusal(code: i64, message: &str, data: Option<&JsonText>) -> Json {
    let data = data.and_then(|data| serde_json::from_str::<Json>(data.as_str()).ok());
    json!({"code": code, "message": message, "data": data})
}

/// Returns a value for observers. A value that is not data is shown as text.
pub fn as_json(value: &Value) -> Json {
    let json = value_to_json(value).ok().and_then(|json| serde_json::from_str(&json).ok());
    json.unwrap_or_else(|| Json::String(value.pr_str()))
}

#[cfg(test)]
mod tests {
    use super::*;
    use orla_marketplace::{Payload, Undeclared, rtfs};

    fn text(result: RuntimeResult<Outcome>) -> String {
        match result {
            Ok(outcome) => write(&outcome).unwrap(),
            Err(error) => write_error(&error),
        }
    }

    #[test]
    fn the_members_of_an_error_are_those_that_instances_read() {
        // `read` parses these names; a new name would be lost between two versions.
        let error = RuntimeError::Structured {
            id: "a".to_owned(),
            message: "1:2: m".to_owned(),
            error: Box::new(rtfs::Error::new("busy", "m")),
            outcome: None,
        };
        assert_eq!(detail(&error), Some(json!({"told": "1:2: m"})));
        let error =
            RuntimeError::Unavailable { id: "a".to_owned(), reason: "r".to_owned(), source: None };
        assert_eq!(detail(&error), Some(json!({"reason": "r"})));
        let error = RuntimeError::Unavailable {
            id: "a".to_owned(),
            reason: "r".to_owned(),
            source: Some(Box::new(Undeclared)),
        };
        assert_eq!(detail(&error), Some(json!({"reason": "r", "lasting": true})));
    }

    #[test]
    fn a_refusal_is_written_in_the_form_that_programs_catch() {
        let data = JsonText::parse(r#"{"k":1}"#).ok();
        let error =
            RuntimeError::Refused { id: "a".into(), code: -32050, message: "custom".into(), data };
        let data = &described(&error)["error"]["data"];
        assert_eq!(*data, json!({"code": -32050, "message": "custom", "data": {"k": 1}}));
    }

    #[test]
    fn an_outcome_is_written_exactly() {
        let json = |text: &str| JsonText::parse(text.to_owned()).unwrap();
        let outcome = Outcome {
            structured: Some(Payload::from_json(json(r#"{"n":1.10}"#))),
            content: Some(json("[]")),
            meta: Some(json(r#"{"a":1e400}"#)),
            ..Outcome::default()
        };
        let members = r#""value":{"n":1.10},"content":[],"meta":{"a":1e400}"#;
        assert_eq!(text(Ok(outcome.clone())), format!("{{{members}}}"));
        assert_eq!(text(Ok(Outcome::default())), r#"{"value":null}"#);
        let failed = text(Err(RuntimeError::reported("x", outcome)));
        assert!(failed.ends_with(&format!(r#","outcome":{{{members}}}}}"#)), "{failed}");
        assert!(failed.contains(r#""detail":{"reported":true}"#), "{failed}");
    }
}
