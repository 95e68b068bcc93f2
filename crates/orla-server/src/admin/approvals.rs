//! `/approvals`: the calls that wait for a person's approval, and their answers.
//!
//! `GET /approvals` is a JSON array of `{id, capability, principal, identified_by, input, expires_at,
//! call_id, answerable, node?}`, the first to expire first. `node` is the node of the cluster at which
//! the call waits, if it is another node (`other_nodes`). `POST /approvals/ID` with `{"approve": true |
//! false}` answers one. A caller sees the questions that it may answer, and those about its own calls.

mod local;
pub(crate) mod other_nodes;

use std::time::SystemTime;

use bytes::Bytes;
use chrono::{DateTime, SecondsFormat, Utc};
use http::{Response, StatusCode};
use orla_marketplace::{AnswerError, Principal};
use serde::Deserialize;
use serde_json::json;

use crate::http::body::Body;
use crate::http::response::{forbidden, json as json_response, malformed, refused};
use crate::state::Core;
use crate::waiting::{ApprovalRefused, ApprovalRequest};

/// Returns the calls that wait at this node and at the other nodes.
pub(crate) async fn all(core: &Core, principal: Option<&Principal>) -> Vec<ApprovalRequest> {
    let mut all = local::waiting(core, principal, local::has_others(core));
    all.extend(other_nodes::waiting(core, principal).await);
    all.sort_by_key(|waiting| waiting.expires_at);
    all
}

/// Returns the questions as a JSON array. The inputs are the original texts, without secrets.
pub(crate) async fn render(core: &Core, principal: Option<&Principal>) -> String {
    let all = all(core, principal).await;
    format!("[{}]", all.iter().map(row).collect::<Vec<_>>().join(","))
}

fn row(waiting: &ApprovalRequest) -> String {
    let text = |value: serde_json::Value| value.to_string();
    let node = waiting.node.as_ref().map(|node| format!(r#","node":{}"#, text(json!(node))));
    format!(
        r#"{{"id":{},"capability":{},"principal":{},"identified_by":{},"input":{},"expires_at":{},"call_id":{},"answerable":{}{}}}"#,
        text(json!(waiting.id)),
        text(json!(waiting.capability)),
        text(json!(waiting.principal.as_ref().map(Principal::name))),
        text(json!(waiting.principal.as_ref().map(|it| it.identified_by().to_string()))),
        waiting.input.as_str(),
        text(json!(instant(waiting.expires_at))),
        text(json!(&*waiting.call_id)),
        waiting.is_answerable,
        node.unwrap_or_default(),
    )
}

/// Returns an instant as RFC 3339 writes it, in UTC.
fn instant(at: SystemTime) -> String {
    DateTime::<Utc>::from(at).to_rfc3339_opts(SecondsFormat::Millis, true)
}

/// Answers the question with this id, about a call here or at another node.
///
/// # Errors
///
/// Returns why the question cannot be answered.
pub(crate) async fn decide(
    core: &Core,
    principal: Option<&Principal>,
    id: &str,
    approve: bool,
) -> Result<(), ApprovalRefused> {
    match local::decide(core, principal, local::has_others(core), id, approve) {
        Err(AnswerError::Unknown) => other_nodes::decide(core, principal, id, approve).await,
        decided => Ok(decided?),
    }
}

/// Answers the question with this id.
pub(crate) async fn answer(
    core: &Core,
    principal: Option<&Principal>,
    id: &str,
    body: &Bytes,
) -> Response<Body> {
    #[derive(Deserialize)]
    #[serde(deny_unknown_fields)]
    struct Answer {
        approve: bool,
    }
    let Ok(Answer { approve }) = serde_json::from_slice(body) else {
        let expected = r#"expected {"approve": true} or {"approve": false}"#;
        return malformed(expected);
    };
    match decide(core, principal, id, approve).await {
        Ok(()) => {
            let decision = if approve { "approved" } else { "denied" };
            json_response(StatusCode::OK, json!({"id": id, "decision": decision}).to_string())
        }
        Err(error) => {
            let kind = match error.status() {
                StatusCode::FORBIDDEN => return forbidden(error.to_string()),
                StatusCode::NOT_FOUND => "not-found",
                _ => "unavailable",
            };
            refused(error.status(), kind, &error.to_string())
        }
    }
}
