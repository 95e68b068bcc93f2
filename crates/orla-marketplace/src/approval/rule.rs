//! The rules for approvals: data of the configuration.

use std::time::Duration;

use serde_json::Value as Json;

use super::MayAnswer;
use crate::catalog::Entry;
use crate::id::Pattern;
use crate::manifest::ANNOTATIONS;
use crate::principal::{Callers, Principal};

/// A rule that selects calls that a user must approve.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct ApprovalRule {
    /// Its name in logs and the audit, such as `approve[0]`.
    pub name: String,
    /// The capabilities, by id or MCP name.
    pub capabilities: Vec<Pattern>,
    /// MCP annotations that the capability must have, with these values. An absent annotation does
    /// not match.
    pub annotations: Vec<(String, bool)>,
    /// The callers.
    pub to: Callers,
    /// How long a call waits for its approval: 5 min.
    pub expires: Duration,
    /// The callers who may answer. `None`: the caller's own client, and callers with the permission
    /// `approvals:answer`.
    pub by: Option<Callers>,
}

impl ApprovalRule {
    /// Returns a rule for all calls.
    pub fn new(name: impl Into<String>) -> Self {
        Self {
            name: name.into(),
            capabilities: vec![Pattern::new("*")],
            annotations: Vec::new(),
            to: Callers::everyone(),
            expires: Duration::from_secs(300),
            by: None,
        }
    }

    /// Returns whether a call of this capability by this caller needs an approval.
    pub fn concerns(&self, caller: Option<&Principal>, entry: &Entry) -> bool {
        self.is_about(entry) && self.to.matches(caller)
    }

    /// Returns whether every call of this capability needs an approval.
    pub fn concerns_everyone(&self, entry: &Entry) -> bool {
        self.is_about(entry) && self.to.is_everyone()
    }

    fn is_about(&self, entry: &Entry) -> bool {
        let (id, name) = (&entry.manifest.id, &entry.name);
        self.capabilities.iter().any(|pattern| pattern.fits(id, name)) && self.is_annotated(entry)
    }

    fn is_annotated(&self, entry: &Entry) -> bool {
        if self.annotations.is_empty() {
            return true;
        }
        let text = entry.manifest.metadata.get(ANNOTATIONS).map_or("{}", String::as_str);
        let has: Json = serde_json::from_str(text).unwrap_or_default();
        self.annotations
            .iter()
            .all(|(name, value)| has.get(name).and_then(Json::as_bool) == Some(*value))
    }

    /// Returns whether this caller may answer a question about its own or another caller's call.
    pub(super) fn may_answer(
        &self,
        caller: Option<&Principal>,
        is_own: bool,
        may_answer: MayAnswer,
    ) -> bool {
        match (&self.by, may_answer) {
            (Some(by), _) => by.matches(caller),
            (None, MayAnswer::None) => false,
            (None, MayAnswer::OfOthers) => !is_own,
            (None, MayAnswer::All) => true,
        }
    }

    /// Returns whether the client of the call may be asked.
    pub(super) fn may_ask_client_of(&self, caller: Option<&Principal>) -> bool {
        self.by.as_ref().is_none_or(|by| by.matches(caller))
    }
}
