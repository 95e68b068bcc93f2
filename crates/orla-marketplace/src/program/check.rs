//! What the checker of programs may know about capabilities.

use std::sync::Arc;

use rtfs::{Capability, Diagnostic, Options, Severity, Signatures, Source};
use serde_json::{Value as Json, json};

use crate::catalog::Catalog;
use crate::principal::Principal;

/// The capabilities of a catalogue, as one caller may see them. The caller learns nothing about those that it may
/// not call.
pub struct Served {
    catalog: Arc<Catalog>,
    principal: Option<Principal>,
}

impl Served {
    /// The capabilities of this catalogue that `principal` may call; without a principal, those that need no
    /// permission.
    pub fn new(catalog: Arc<Catalog>, principal: Option<Principal>) -> Self {
        Self { catalog, principal }
    }
}

impl Signatures for Served {
    fn capability(&self, id: &str) -> Capability {
        let principal = self.principal.as_ref();
        let entry = match self.catalog.get(id) {
            Some(entry) if self.catalog.permits(principal, entry).is_ok() => entry,
            // Its existence is no secret, and neither is its input.
            Some(_) if !self.catalog.conceals() => return Capability::Unsaid,
            _ => {
                let similar = self.catalog.similar_for(principal, id).into_iter();
                // Programs call by id; similar names are names of tools.
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

/// All problems of a program for a caller who would run it beside these capabilities.
pub(super) fn check(text: &str, options: &Options, served: Served) -> Vec<Diagnostic> {
    rtfs::check(&Source::new("", text), options, Some(Arc::new(served)))
}

/// A finding as data.
pub(super) fn described(found: &Diagnostic) -> Json {
    json!({
        "line": found.position.line,
        "column": found.position.column,
        "severity": found.severity.as_str(),
        "kind": found.kind,
        "message": found.message,
    })
}

/// Whether a program cannot be run, or not without failing somewhere.
pub(super) fn has_errors(found: &[Diagnostic]) -> bool {
    found.iter().any(|found| found.severity == Severity::Error)
}
