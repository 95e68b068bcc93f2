//! What the checker of programs may know of capabilities.

use std::sync::Arc;

use rtfs::{Capability, Diagnostic, Options, Severity, Signatures, Source};
use serde_json::{Value as Json, json};

use crate::catalog::Catalog;
use crate::permission::Principal;

/// The capabilities of a catalogue, as someone may see them who calls them: of what they may not call, they learn
/// nothing.
pub struct Served {
    catalog: Arc<Catalog>,
    principal: Option<Principal>,
}

impl Served {
    /// What `principal` may call of this catalogue; of all that needs no permission, if there is none.
    pub fn new(catalog: Arc<Catalog>, principal: Option<Principal>) -> Self {
        Self { catalog, principal }
    }
}

impl Signatures for Served {
    fn capability(&self, id: &str) -> Capability {
        let principal = self.principal.as_ref();
        let entry = match self.catalog.get(id) {
            Some(entry) if self.catalog.permits(principal, entry).is_ok() => entry,
            // That it is there is no secret, and what it takes is.
            Some(_) if !self.catalog.conceals() => return Capability::Unsaid,
            _ => {
                let similar = self.catalog.similar_for(principal, id).into_iter();
                // Programs call by the id; what is similar are names of tools.
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

/// All that is wrong with a program for someone who would run it beside these capabilities.
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
