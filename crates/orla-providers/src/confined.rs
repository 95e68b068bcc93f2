//! How far the process of a call was confined, and what it was probably refused.

use std::path::Path;

use orla_marketplace::{JsonText, RuntimeError};
use orla_process::confinement::{Level, Refusal, Sandbox};
use serde::Serialize;
use serde_json::{Map, Value, json};

/// The member of a result's `_meta` that is about the process of the call.
pub(crate) const EXECUTION: &str = "orla/execution";

/// How far the process was confined.
#[derive(Clone, Debug, Serialize)]
pub(crate) struct Confined<'a> {
    level: &'static str,
    #[serde(skip_serializing_if = "Option::is_none")]
    profile: Option<&'a str>,
    /// What a program that failed was probably refused.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) refused: Option<Refused>,
}

/// What a program was probably refused.
#[derive(Clone, Debug, Serialize)]
pub(crate) struct Refused {
    /// In words: `write below /srv/data`.
    tried: String,
    /// The permission that would probably allow it; absent if none does.
    #[serde(skip_serializing_if = "Option::is_none")]
    permission: Option<String>,
}

impl Default for Confined<'_> {
    fn default() -> Self {
        Self::of(None)
    }
}

impl<'a> Confined<'a> {
    pub(crate) fn of(sandbox: Option<&'a Sandbox>) -> Self {
        let level = sandbox.map_or(Level::Unconfined, Sandbox::level);
        // One for limits alone says nothing of confinement.
        let profile = sandbox.filter(|_| level != Level::Unconfined).and_then(Sandbox::profile);
        Self { level: level.name(), profile, refused: None }
    }

    /// What the program was refused, going by what it wrote. `directory` is where it ran; without one, relative paths are
    /// passed over.
    pub(crate) fn refused(
        sandbox: Option<&Sandbox>,
        written: &str,
        directory: Option<&Path>,
    ) -> Option<Refused> {
        let sandbox = sandbox.filter(|sandbox| sandbox.level() == Level::Enforced)?;
        let Refusal { tried, permission } = sandbox.refusal(written, directory)?;
        Some(Refused { tried, permission })
    }
}

/// Adds to a failure that a process reported what it was probably refused, going by its result: standard error may be about the
/// calls of others. Only absolute paths count: other names may not be files.
pub(crate) fn explained(error: RuntimeError, sandbox: Option<&Sandbox>) -> RuntimeError {
    let RuntimeError::Reported { id, message, mut outcome } = error else { return error };
    let content = outcome.content.as_ref().map_or(&*message, |content| content.as_str());
    let texts = texts(content).unwrap_or_else(|| message.clone());
    if let Some(refused) = Confined::refused(sandbox, &texts, None) {
        let meta = outcome.meta.as_ref();
        let meta = meta.and_then(|meta| serde_json::from_str::<Map<String, Value>>(meta.as_str()).ok());
        let mut meta = meta.unwrap_or_default();
        let confined = Confined { refused: Some(refused), ..Confined::of(sandbox) };
        meta.insert(EXECUTION.to_owned(), json!({"sandbox": confined}));
        outcome.meta = JsonText::of(&meta).ok().or(outcome.meta);
    }
    RuntimeError::Reported { id, message, outcome }
}

/// The texts of content blocks, a line each at least.
fn texts(content: &str) -> Option<String> {
    let blocks: Vec<Value> = serde_json::from_str(content).ok()?;
    let texts = blocks.iter().filter_map(|block| block["text"].as_str());
    Some(texts.collect::<Vec<_>>().join("\n"))
}
