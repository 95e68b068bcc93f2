//! Remarks about a tools directory, packages, prompts and the configuration: collected while a snapshot is made,
//! shown by `orla check` and the log.

use std::fmt::Display;

use orla_marketplace::Redactor;
use orla_marketplace::id::mcp_name;
use orla_providers::tool::Loaded;

/// The text between an id and the reason in the problem of a capability that a rule excludes.
pub(crate) const NOT_SERVED: &str = ": not served";

/// Findings for the owner, each a sentence with its place.
#[derive(Clone, Debug, Default)]
pub(crate) struct Findings {
    /// Declarations that work and may be unintended.
    pub(crate) warnings: Vec<String>,
    /// Declarations that are not in force.
    pub(crate) problems: Vec<String>,
    /// Files that are not tools, with the reasons.
    pub(crate) skipped: Vec<String>,
    /// How many prompts are served.
    pub(crate) prompts: usize,
}

impl Findings {
    /// The remarks about a tools directory.
    pub(crate) fn of(found: &Loaded) -> Self {
        Self {
            warnings: sentences(&found.warnings),
            problems: sentences(&found.problems),
            skipped: sentences(&found.skipped),
            prompts: 0,
        }
    }

    /// Returns why the capability with this id or MCP name is not served, if a rule of the configuration
    /// is the reason.
    pub(crate) fn why_not_served(&self, name: &str) -> Option<&str> {
        let is_of_name = |finding: &&String| {
            let id = finding.split_once(NOT_SERVED).map(|(id, _)| id);
            id.is_some_and(|id| id == name || mcp_name(id) == name)
        };
        self.problems.iter().find(is_of_name).map(String::as_str)
    }

    /// Adds the warnings and problems that are not in the lists yet, and returns them.
    pub(crate) fn add_new(&mut self, found: Self) -> Self {
        let add = |known: &mut Vec<String>, mut found: Vec<String>| {
            found.retain(|text| !known.contains(text));
            known.extend_from_slice(&found);
            found
        };
        let warnings = add(&mut self.warnings, found.warnings);
        Self { warnings, problems: add(&mut self.problems, found.problems), ..Self::default() }
    }

    /// Replaces secrets, which a path or an address may have.
    pub(crate) fn redact(&mut self, redactor: &Redactor) {
        let texts = self.warnings.iter_mut().chain(&mut self.problems).chain(&mut self.skipped);
        texts.for_each(|text| redactor.replace(text));
    }

    /// Writes everything to the log.
    pub(crate) fn log(&self) {
        for problem in &self.problems {
            tracing::warn!("{problem}");
        }
        for warning in &self.warnings {
            tracing::warn!("{warning}");
        }
        for skipped in &self.skipped {
            tracing::debug!("not a tool: {skipped}");
        }
    }
}

/// One sentence for each.
pub(crate) fn sentences(findings: &[impl Display]) -> Vec<String> {
    findings.iter().map(ToString::to_string).collect()
}
