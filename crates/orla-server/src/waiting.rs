//! Calls that wait for an approval, in the form for people.

use std::borrow::Cow;
use std::sync::Arc;
use std::time::SystemTime;

use http::StatusCode;
use orla_marketplace::{AnswerError, JsonText, PendingApproval, Principal, Redactor};
use serde_json::value::RawValue;

/// A call that waits for an approval, at this or another node, in the form for its caller and its
/// approvers.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct ApprovalRequest {
    /// The id with which it is answered.
    pub id: String,
    /// The id of the capability.
    pub capability: String,
    /// The caller.
    pub principal: Option<Principal>,
    /// The input.
    pub input: JsonText,
    /// When the question expires.
    pub expires_at: SystemTime,
    /// The call.
    pub call_id: Arc<str>,
    /// Whether the caller that sees it may answer it.
    pub is_answerable: bool,
    /// The node at which it waits, if it is another node.
    pub node: Option<String>,
}

/// The reason why a question cannot be answered.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum ApprovalRefused {
    /// See the marketplace.
    #[error(transparent)]
    Local(#[from] AnswerError),
    /// It may wait at a node that does not answer.
    #[error(
        "no call waits for an approval with this id here, and node {0} does not answer: it may have taken the answer; look at the list"
    )]
    Unreachable(String),
}

impl ApprovalRefused {
    /// Returns the status of the response.
    pub fn status(&self) -> StatusCode {
        match self {
            Self::Local(AnswerError::NotAllowed) => StatusCode::FORBIDDEN,
            Self::Local(_) => StatusCode::NOT_FOUND,
            Self::Unreachable(_) => StatusCode::SERVICE_UNAVAILABLE,
        }
    }
}

impl ApprovalRequest {
    /// One of this node.
    pub(crate) fn local(pending: PendingApproval, secrets: &Redactor) -> Self {
        let null = || JsonText::from(RawValue::NULL.to_owned());
        let input = pending.input.json().map_or_else(|_| null(), Clone::clone);
        let input = match secrets.text(input.as_str()) {
            Cow::Borrowed(_) => input,
            Cow::Owned(text) => JsonText::parse(text).unwrap_or_else(|_| null()),
        };
        Self {
            id: pending.id,
            capability: pending.capability,
            principal: pending.principal,
            input,
            expires_at: pending.expires_at,
            call_id: pending.call_id,
            is_answerable: pending.is_answerable,
            node: None,
        }
    }
}
