//! The information about capabilities for the checker of programs.

use std::sync::Arc;

use rtfs::{Capability, Diagnostic, Options, Severity, Signatures, Source};
use serde_json::{Value as Json, json};

use crate::catalog::Catalog;
use crate::principal::Principal;

/// The capabilities of a catalogue that one caller may see. The caller learns nothing about capabilities
/// that it may not call.
pub struct Served {
    catalog: Arc<Catalog>,
    principal: Option<Principal>,
}

impl Served {
    /// Returns the capabilities of this catalogue that `principal` may call; without a principal, those
    /// that need no permission.
    pub fn new(catalog: Arc<Catalog>, principal: Option<Principal>) -> Self {
        Self { catalog, principal }
    }
}

impl Signatures for Served {
    fn capability(&self, id: &str) -> Capability {
        let principal = self.principal.as_ref();
        let entry = match self.catalog.get(id) {
            Some(entry) if self.catalog.permits(principal, entry).is_ok() => entry,
            // The policy conceals neither its existence nor its input.
            Some(_) if !self.catalog.conceals() => return Capability::Undisclosed,
            _ => {
                let similar = self.catalog.similar_for(principal, id).into_iter();
                // Programs call by id; similar names are tool names.
                let id_of = |name: String| {
                    self.catalog.get(&name).map_or(name, |entry| entry.manifest.id.clone())
                };
                return Capability::Unknown { similar: similar.map(id_of).collect() };
            }
        };
        let manifest = &entry.manifest;
        Capability::Known {
            input: manifest.input_schema.clone(),
            output: manifest.output_schema.clone(),
        }
    }
}

/// Returns all problems of a program for a caller who would run it with these capabilities.
pub(super) fn check(text: &str, options: &Options, served: Served) -> Vec<Diagnostic> {
    rtfs::check(&Source::new("", text), options, Some(Arc::new(served)))
}

/// Returns a finding as data.
pub(super) fn described(found: &Diagnostic) -> Json {
    json!({
        "line": found.position.line,
        "column": found.position.column,
        "severity": found.severity.as_str(),
        "kind": found.kind,
        "message": found.message,
    })
}

/// Returns whether a program cannot run, or would fail at some point.
pub(super) fn has_errors(found: &[Diagnostic]) -> bool {
    found.iter().any(|found| found.severity == Severity::Error)
}
