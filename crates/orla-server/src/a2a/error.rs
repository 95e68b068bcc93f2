//! The protocol's errors in the form of HTTP+JSON.

use a2a::{A2AError, error_code, error_reason, errordetails};
use http::StatusCode;
use serde_json::{Value, json};

/// Returns the status of an error over HTTP+JSON (A2A §5.4).
pub(super) fn status(error: &A2AError) -> StatusCode {
    match error.code {
        // The path has no operation.
        error_code::METHOD_NOT_FOUND => StatusCode::NOT_FOUND,
        _ => StatusCode::from_u16(error.http_status_code()).unwrap_or(StatusCode::INTERNAL_SERVER_ERROR),
    }
}

/// Returns the error as HTTP+JSON has it (A2A §11.6): a `google.rpc.Status`.
pub(super) fn rest(status: StatusCode, error: &A2AError) -> Value {
    let info = json!({
        "@type": errordetails::ERROR_INFO_TYPE,
        "reason": error_reason(error.code),
        "domain": errordetails::PROTOCOL_DOMAIN,
    });
    let body = json!({"code": status.as_u16(), "status": name(error.code), "message": error.message, "details": [info]});
    json!({ "error": body })
}

/// Returns the name of the gRPC status of an error (A2A §5.4).
fn name(code: i32) -> &'static str {
    match code {
        error_code::TASK_NOT_FOUND | error_code::METHOD_NOT_FOUND => "NOT_FOUND",
        error_code::TASK_NOT_CANCELABLE
        | error_code::PUSH_NOTIFICATION_NOT_SUPPORTED
        | error_code::UNSUPPORTED_OPERATION
        | error_code::EXTENDED_CARD_NOT_CONFIGURED
        | error_code::EXTENSION_SUPPORT_REQUIRED
        | error_code::VERSION_NOT_SUPPORTED => "FAILED_PRECONDITION",
        error_code::CONTENT_TYPE_NOT_SUPPORTED
        | error_code::PARSE_ERROR
        | error_code::INVALID_REQUEST
        | error_code::INVALID_PARAMS => "INVALID_ARGUMENT",
        _ => "INTERNAL",
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_error_is_a_status_with_its_reason() {
        for (error, code, name, reason) in [
            (A2AError::task_not_found("t"), 404, "NOT_FOUND", "TASK_NOT_FOUND"),
            (A2AError::version_not_supported("9"), 400, "FAILED_PRECONDITION", "VERSION_NOT_SUPPORTED"),
            (
                A2AError::content_type_not_supported(),
                400,
                "INVALID_ARGUMENT",
                "CONTENT_TYPE_NOT_SUPPORTED",
            ),
            (A2AError::method_not_found("x"), 404, "NOT_FOUND", "METHOD_NOT_FOUND"),
            (A2AError::internal("x"), 500, "INTERNAL", "INTERNAL_ERROR"),
        ] {
            let body = rest(status(&error), &error);
            assert_eq!((status(&error).as_u16(), &body["error"]["code"]), (code, &json!(code)));
            assert_eq!(body["error"]["status"], name);
            assert_eq!(body["error"]["details"][0]["reason"], reason);
        }
    }
}
