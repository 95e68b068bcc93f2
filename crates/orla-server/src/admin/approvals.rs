//! `/approvals`: the calls that wait for a person's approval, and the answers to them.
//!
//! `GET /approvals` is a JSON array of `{id, capability, principal, identified_by, input,
//! expires_at, call_id, answerable}`, the oldest first.
//! `POST /approvals/ID` with `{"approve": true | false}` answers one. A caller sees the questions that it may answer, and
//! those about its own calls.

use std::sync::Arc;
use std::time::SystemTime;

use bytes::Bytes;
use chrono::{DateTime, SecondsFormat, Utc};
use http::{Response, StatusCode};
use orla_marketplace::{AnswerError, JsonText, MayAnswer, PendingApproval, Principal};
use serde::Deserialize;
use serde_json::json;

use crate::http::body::Body;
use crate::http::response::{json as json_response, malformed, refused};
use crate::state::Core;

/// The permission to see and answer the questions of rules that do not say by whom they are answered.
const ANSWER: &str = "approvals:answer";

/// Which questions the policy lets this caller answer. Where there are several callers, a caller that was identified does
/// not approve its own calls: what made the call has its credential, and could approve it without a person.
pub(crate) fn may_answer(core: &Core, principal: Option<&Principal>) -> MayAnswer {
    let has_others = || core.tls.asks_clients() || core.settings.load().auth.has_several_callers();
    match core.market.snapshot().permits_part(principal, "approvals", ANSWER) {
        false => MayAnswer::None,
        true if principal.is_some() && has_others() => MayAnswer::OfOthers,
        true => MayAnswer::All,
    }
}

/// The questions, as a JSON array. The inputs are the texts that came.
pub(crate) fn render(core: &Core, principal: Option<&Principal>) -> String {
    let pending = core.market.approvals().pending(principal, may_answer(core, principal));
    format!("[{}]", pending.iter().map(row).collect::<Vec<_>>().join(","))
}

fn row(pending: &PendingApproval) -> String {
    let text = |value: serde_json::Value| value.to_string();
    let input = pending.input.json().map_or("null", JsonText::as_str);
    format!(
        r#"{{"id":{},"capability":{},"principal":{},"identified_by":{},"input":{input},"expires_at":{},"call_id":{},"answerable":{}}}"#,
        text(json!(pending.id)),
        text(json!(pending.capability)),
        text(json!(pending.principal.as_ref().map(Principal::name))),
        text(json!(pending.principal.as_ref().map(|it| it.identified_by().to_string()))),
        text(json!(instant(pending.expires_at))),
        text(json!(&*pending.call_id)),
        pending.is_answerable,
    )
}

/// An instant as RFC 3339 writes it, in UTC.
fn instant(at: SystemTime) -> String {
    DateTime::<Utc>::from(at).to_rfc3339_opts(SecondsFormat::Millis, true)
}

/// Answers the question with this id.
pub(crate) fn answer(
    core: &Arc<Core>,
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
    let approvals = core.market.approvals();
    match approvals.answer(id, principal, may_answer(core, principal), approve) {
        Ok(()) => {
            let decision = if approve { "approved" } else { "denied" };
            json_response(StatusCode::OK, json!({"id": id, "decision": decision}).to_string())
        }
        Err(error @ AnswerError::NotAllowed) => {
            refused(StatusCode::FORBIDDEN, "denied", &error.to_string())
        }
        Err(error) => refused(StatusCode::NOT_FOUND, "not-found", &error.to_string()),
    }
}
