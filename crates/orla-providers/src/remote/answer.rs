//! Turns another instance's answer into an outcome. Pure.
//!
//! | answer | outcome |
//! |---|---|
//! | that of an instance of orla | what [`federation::read`] makes of it |
//! | anything else, with 408, 425, 429, 502, 503, 504 | [`RuntimeError::Unavailable`] |
//! | anything else | [`RuntimeError::Failed`] |

use bytes::Bytes;
use orla_marketplace::{CallContext, Outcome, RuntimeError, RuntimeResult};
use orla_mcp::federation;
use reqwest::StatusCode;

/// A call of another instance, for error messages.
#[derive(Clone, Copy)]
pub(super) struct Request<'a> {
    pub(super) ctx: &'a CallContext,
    pub(super) host: &'a str,
    /// The capability's id at the other instance.
    pub(super) capability: &'a str,
    pub(super) has_token: bool,
}

/// Returns the outcome of a complete answer.
pub(super) fn read(request: Request<'_>, status: StatusCode, body: &Bytes) -> RuntimeResult<Outcome> {
    let Request { ctx, host, capability, .. } = request;
    let instance = format!("the remote instance {host}");
    match federation::read(federation::Request { ctx, instance: &instance, capability }, body) {
        Some(Ok(outcome)) if status.is_success() => Ok(outcome),
        Some(Err(error)) => Err(error),
        _ => Err(foreign(request, status)),
    }
}

/// Returns the error for an answer that is not from an instance of orla, or for an instance that refuses
/// the caller.
fn foreign(request: Request<'_>, status: StatusCode) -> RuntimeError {
    let Request { ctx, host, has_token, .. } = request;
    let id = ctx.name.to_string();
    if matches!(status.as_u16(), 408 | 425 | 429 | 502 | 503 | 504) {
        let reason = format!("{host} answers {status}; trying again may help");
        return RuntimeError::Unavailable { id, reason, source: None };
    }
    let hint = match status.as_u16() {
        401 | 403 if has_token => "; the configured token is not accepted",
        401 | 403 => "; it needs a token, and none is configured",
        300..=399 => "; redirects are not followed",
        200..=299 => " and nothing that a remote instance answers",
        404 => "; no instance of orla answers at this endpoint",
        500..=599 => "; trying again may help",
        _ => "",
    };
    let message = format!("{id} failed: {host} answers {status}{hint}");
    RuntimeError::Failed { id, message, outcome: None }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn foreign_answers_are_distinguished() {
        let ctx = CallContext::for_tests("far");
        let request = Request { ctx: &ctx, host: "b:1", capability: "there", has_token: true };
        for (status, body, words) in [
            (200, "hello", "b:1 answers 200 OK and nothing that a remote instance answers"),
            (200, "{}", "nothing that"),
            (200, r#"{"content": 7}"#, "nothing that"),
            (401, "no", "token is not accepted"),
            (404, "not found", "no instance of orla"),
            (302, "", "redirects are not followed"),
            (503, "", "trying again may help"),
            (500, r#"{"value": 1}"#, "b:1 answers 500 Internal Server Error; trying again may help"),
        ] {
            let status = StatusCode::from_u16(status).unwrap();
            let error = read(request, status, &Bytes::from_static(body.as_bytes())).unwrap_err();
            assert!(error.to_string().contains(words), "{status}: {error}");
        }
    }
}
