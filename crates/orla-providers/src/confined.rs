//! Reports how far the process of a call was confined, and which operation was probably refused.

use std::path::Path;

use orla_marketplace::{JsonText, RuntimeError, SandboxLevel};
use orla_process::confinement::{Refusal, Sandbox};
use serde::Serialize;
use serde_json::{Map, Value, json};

/// The member of a result's `_meta` that describes the process of the call.
pub(crate) const EXECUTION: &str = "orla/execution";

/// How far the process was confined.
#[derive(Clone, Debug, Serialize)]
pub(crate) struct Confined<'a> {
    level: &'static str,
    #[serde(skip_serializing_if = "Option::is_none")]
    profile: Option<&'a str>,
    /// The operation that was probably refused to a failed program.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) refused: Option<Refused>,
}

/// An operation that was probably refused to a program.
#[derive(Clone, Debug, Serialize)]
pub(crate) struct Refused {
    /// The operation in words: `write below /srv/data`.
    tried: String,
    /// The permission that would probably allow the operation, if any.
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
        let level = sandbox.map_or(SandboxLevel::Unconfined, Sandbox::level);
        // A profile that only sets limits does not count as confinement.
        let profile = sandbox.filter(|_| level != SandboxLevel::Unconfined).and_then(Sandbox::profile);
        Self { level: level.name(), profile, refused: None }
    }

    /// Returns the operation that was probably refused, judged by the program's output. `directory` is
    /// its working directory; without one, relative paths are ignored.
    pub(crate) fn refused(
        sandbox: Option<&Sandbox>,
        written: &str,
        directory: Option<&Path>,
    ) -> Option<Refused> {
        let sandbox = sandbox.filter(|sandbox| sandbox.level() == SandboxLevel::Enforced)?;
        let Refusal { tried, permission } = sandbox.refusal(written, directory)?;
        Some(Refused { tried, permission })
    }
}

/// Adds the operation that was probably refused to a failure that a process reported. Only its result is
/// examined, because standard error may concern the calls of other callers. Only absolute paths count,
/// because other names may not be files.
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

/// Returns the texts of content blocks, at least one line for each.
fn texts(content: &str) -> Option<String> {
    let blocks: Vec<Value> = serde_json::from_str(content).ok()?;
    let texts = blocks.iter().filter_map(|block| block["text"].as_str());
    Some(texts.collect::<Vec<_>>().join("\n"))
}
