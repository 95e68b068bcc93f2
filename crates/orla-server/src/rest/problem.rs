//! Failures as problem documents (RFC 9457). No I/O.

use http::{Response, StatusCode};
use orla_marketplace::{JsonText, RuntimeError, Violation};
use orla_mcp::call_result::plain_output;
use serde_json::{Value, json};

use super::Answer;
use crate::http::body::Body;
use crate::http::response::status_of;
use crate::idempotency::StoredAnswer;

/// The media type of a problem document.
pub(super) const MEDIA_TYPE: &str = "application/problem+json";

/// The reason why a request has no output.
pub(super) struct Problem {
    status: StatusCode,
    /// A stable word: that of [`RuntimeError::kind`], or `invalid-argument`, `not-found`, `conflict`.
    kind: String,
    /// One sentence for the caller.
    detail: String,
    violations: Vec<Violation>,
    /// The output before the failure.
    output: Option<JsonText>,
    retry_after: Option<u64>,
}

impl Problem {
    pub(super) fn new(status: StatusCode, kind: &str, detail: impl Into<String>) -> Self {
        let is_passing =
            matches!(status, StatusCode::TOO_MANY_REQUESTS | StatusCode::SERVICE_UNAVAILABLE);
        Self {
            status,
            kind: kind.to_owned(),
            detail: detail.into(),
            violations: Vec::new(),
            output: None,
            retry_after: is_passing.then_some(1),
        }
    }

    /// The problem that an error of a call is.
    pub(super) fn of(error: &RuntimeError) -> Self {
        let kind = match error {
            RuntimeError::Structured { error, .. } => error.kind.to_string(),
            error => error.kind().to_owned(),
        };
        let violations = match error {
            RuntimeError::InvalidInput { violations, .. }
            | RuntimeError::InvalidOutput { violations, .. } => violations.clone(),
            _ => Vec::new(),
        };
        let output = error.outcome().filter(|outcome| {
            // The outcome of a quota error is about the quota, and the outcome of a structured error is
            // the error itself.
            !matches!(error, RuntimeError::Quota { .. } | RuntimeError::Structured { .. })
                && (outcome.structured.is_some() || outcome.content.is_some())
        });
        let output = output.and_then(|outcome| plain_output(outcome).ok());
        let plain = Self::new(status_of(error), &kind, error.to_string());
        let wait = error.retry_after();
        let retry_after = wait.map(|wait| u64::try_from(wait.as_nanos().div_ceil(1_000_000_000)));
        let retry_after = retry_after.map(|seconds| seconds.unwrap_or(u64::MAX).max(1));
        // A client that repeats a call which may have run makes it twice.
        let soon = plain.retry_after.filter(|_| error.never_ran());
        Self { violations, output, retry_after: retry_after.or(soon), ..plain }
    }

    /// Returns the document.
    pub(super) fn json(&self) -> String {
        let title = self.status.canonical_reason().unwrap_or("Error");
        let mut document = json!({
            "type": "about:blank",
            "title": title,
            "status": self.status.as_u16(),
            "detail": self.detail,
            "kind": self.kind,
        });
        let shown = |violation: &Violation| json!({"path": violation.path, "expected": violation.expected, "got": violation.got});
        document["violations"] = self.violations.iter().map(shown).collect::<Value>();
        let mut text = document.to_string();
        if let Some(output) = &self.output
            && text.pop().is_some()
        {
            text.push_str(&format!(r#","output":{output}}}"#));
        }
        text
    }

    pub(super) fn into_answer(self) -> Answer {
        let body = self.json().into();
        let stored = StoredAnswer { status: self.status, retry_after: self.retry_after, body };
        stored.into()
    }

    pub(super) fn into_response(self) -> Response<Body> {
        self.into_answer().into_response()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use orla_marketplace::Outcome;
    use std::time::Duration;

    #[test]
    fn a_problem_document_has_status_kind_and_violations() {
        let violation =
            Violation { path: "input.a".into(), expected: "a number".into(), got: "\"x\"".into() };
        let error = RuntimeError::InvalidInput { id: "add".into(), violations: vec![violation] };
        let document: Value = serde_json::from_str(&Problem::of(&error).json()).unwrap();
        assert_eq!(document["status"], 400);
        assert_eq!(document["title"], "Bad Request");
        assert_eq!(document["kind"], "invalid-input");
        assert_eq!(
            document["violations"],
            json!([{"path": "input.a", "expected": "a number", "got": "\"x\""}])
        );
    }

    #[test]
    fn the_output_before_a_failure_keeps_its_text() {
        let structured = orla_marketplace::Payload::from_json(JsonText::parse(r#"{"n":1.10}"#).unwrap());
        let outcome = Outcome { structured: Some(structured), ..Outcome::default() };
        let error = RuntimeError::TimedOut {
            id: "slow".into(),
            limit: Duration::from_secs(1),
            outcome: Some(Box::new(outcome)),
        };
        let problem = Problem::of(&error);
        assert_eq!(problem.status, StatusCode::GATEWAY_TIMEOUT);
        assert!(problem.json().ends_with(r#","output":{"n":1.10}}"#), "{}", problem.json());
    }

    #[test]
    fn a_quota_error_has_a_retry_after() {
        let error = RuntimeError::quota("a", "quotas[0]", "1 call", Duration::from_millis(1200));
        let answer = Problem::of(&error).into_answer();
        assert_eq!(
            (answer.stored.status, answer.stored.retry_after),
            (StatusCode::TOO_MANY_REQUESTS, Some(2))
        );
    }

    #[test]
    fn only_a_call_that_has_not_run_is_to_be_repeated() {
        let unavailable = |source| RuntimeError::Unavailable {
            id: "pay".into(),
            reason: "it ended during the call".into(),
            source,
        };
        let not_sent = orla_marketplace::NotSent("connection refused".into());
        assert_eq!(Problem::of(&unavailable(Some(Box::new(not_sent)))).retry_after, Some(1));
        assert_eq!(Problem::of(&unavailable(None)).retry_after, None);
        let stopped = RuntimeError::Stopped { id: "pay".into(), outcome: None };
        assert_eq!(Problem::of(&stopped).retry_after, None);
    }
}
