//! The checker: finds the mistakes of a program without running it.
//!
//! [`check`] reports the errors of [`compile`](crate::compile). In a program that compiles, it
//! reports code that must fail when it is reached: undefined names, wrong numbers of arguments,
//! values of types that a function, an annotation or a capability does not take. It also reports
//! code that is surely a mistake: unreachable patterns, unused bindings.
//!
//! # How it works
//!
//! It walks once over the compiler's forms, in which names are resolved and macros expanded
//! (`walk`). For each value, it knows the possible kinds and perhaps the shape (`ty`): from
//! literals, annotations, the signatures of the standard library, and the types of capabilities
//! ([`Signatures`]). A test narrows the type of its value (`branch`), and so does every call that
//! succeeds. What is known of a parameter at the end of its function is what the function needs,
//! so callers are checked without annotations.
//!
//! # Invariants
//!
//! - Only code that cannot succeed is an error: two types clash if no value has both. Code that
//!   may succeed is not reported.
//! - A form is not reported if a test that guards it may know more than the checker (`doubt`).
//! - A mistake that a `catch` may be meant for is a warning.
//! - The time is linear in the program, findings are at most [`MAX_FINDINGS`], recursion is bounded.
//!
//! # Deliberately absent
//!
//! Types of loop variables from one iteration to the next, and of values that pass through
//! functions with unknown callers: they can be anything.

mod branch;
mod call;
mod capability;
mod clash;
mod doubt;
mod function;
mod parts;
mod standard;
#[cfg(test)]
mod tests;
mod ty;
mod walk;

use std::collections::HashMap;
use std::rc::Rc;
use std::sync::Arc;

use crate::compiler::{self, Options};
use crate::syntax::{Diagnostic, Severity, Source, Span};
use crate::types::TypeExpr;
use ty::Ty;
pub(crate) use walk::View;

/// The maximum number of findings of one check, in the order of the text.
pub const MAX_FINDINGS: usize = 100;

/// The maximum number of capabilities that are looked up for a program.
const MAX_CAPABILITIES: usize = 1_000;

/// The schemas of the capabilities that a program may call.
pub trait Signatures: Send + Sync {
    /// Returns the capability of this id.
    fn capability(&self, id: &str) -> Capability;
}

/// The information about a capability.
#[derive(Clone, Debug)]
pub enum Capability {
    /// The capability exists.
    Known {
        /// The input type, if declared.
        input: Option<TypeExpr>,
        /// The output type, if declared.
        output: Option<TypeExpr>,
    },
    /// No capability has this id.
    Unknown {
        /// Similar ids, the nearest first.
        similar: Vec<String>,
    },
    /// No information may be given about it.
    Undisclosed,
}

/// Returns all problems of a program, in the order of the text, at most [`MAX_FINDINGS`]; empty if there
/// are none. Without `signatures`, capabilities are not checked.
pub fn check(
    source: &Source,
    options: &Options,
    signatures: Option<Arc<dyn Signatures>>,
) -> Vec<Diagnostic> {
    let state = State { signatures, ..State::default() };
    let (mut all, state, broken) = match compiler::compile_checked(source, options, state) {
        Ok(done) => done,
        Err(unread) => return unread.0,
    };
    let is_broken = |span: Span| {
        let at = broken.partition_point(|form| form.end <= span.start);
        broken.get(at).is_some_and(|form| form.start <= span.start)
    };
    let mut found = state.finish();
    // Consequences of a syntax error are not reported.
    found.retain(|found| !is_broken(found.span));
    // If the same mistake is found in several ways, the most severe finding is kept.
    found.sort_by(|a, b| {
        (a.span.start, &a.message, a.severity).cmp(&(b.span.start, &b.message, b.severity))
    });
    found.dedup_by(|a, b| a.span == b.span && a.message == b.message);
    found.sort_by_key(|found| (found.span.start, found.severity));
    found.truncate(MAX_FINDINGS);
    all.extend(found.into_iter().map(|Found { span, severity, kind, message }| Diagnostic {
        severity,
        kind,
        ..Diagnostic::new(source, span, message)
    }));
    all.sort_by_key(|diagnostic| diagnostic.span.start);
    all.truncate(MAX_FINDINGS);
    all
}

/// The findings and the knowledge of a check, over all texts of a program.
#[derive(Default)]
pub(crate) struct State {
    signatures: Option<Arc<dyn Signatures>>,
    capabilities: HashMap<String, Rc<Capability>>,
    notes: Vec<Note>,
    found: Vec<Found>,
    /// The types of top-level names.
    globals: HashMap<u32, Ty>,
    /// The nesting depth of modules that are being compiled. Their own texts report their mistakes.
    foreign: u32,
}

/// A binding that should be used.
struct Note {
    span: Span,
    name: String,
    is_used: bool,
}

struct Found {
    span: Span,
    severity: Severity,
    kind: &'static str,
    message: String,
}

impl State {
    /// Records that a name was bound; returns its number.
    pub(crate) fn bound(&mut self, name: &str, span: Span) -> Option<u32> {
        if self.foreign > 0 || name.starts_with('_') {
            return None;
        }
        self.notes.push(Note { span, name: name.to_owned(), is_used: false });
        Some((self.notes.len() - 1) as u32)
    }

    /// Records that the name of this number was used.
    pub(crate) fn used(&mut self, note: u32) {
        if let Some(note) = self.notes.get_mut(note as usize) {
            note.is_used = true;
        }
    }

    /// Records the beginning of a module's text.
    pub(crate) fn enter_module(&mut self) {
        self.foreign += 1;
    }

    /// Records the end of a module's text.
    pub(crate) fn leave_module(&mut self) {
        self.foreign -= 1;
    }

    /// Returns the information about a capability, which is requested once; `None` without signatures.
    fn capability(&mut self, id: &str) -> Option<Rc<Capability>> {
        let signatures = self.signatures.as_ref()?;
        if let Some(known) = self.capabilities.get(id) {
            return Some(Rc::clone(known));
        }
        // No real program calls so many.
        if self.capabilities.len() > MAX_CAPABILITIES {
            return None;
        }
        let known = Rc::new(signatures.capability(id));
        self.capabilities.insert(id.to_owned(), Rc::clone(&known));
        Some(known)
    }

    pub(crate) fn warn(&mut self, kind: &'static str, span: Span, message: String) {
        self.add(Severity::Warning, kind, span, message);
    }

    fn add(&mut self, severity: Severity, kind: &'static str, span: Span, message: String) {
        // The findings are sorted later: the first found are not the first in the text.
        const KEPT: usize = 20 * MAX_FINDINGS;
        if self.foreign == 0 && self.found.len() < KEPT {
            self.found.push(Found { span, severity, kind, message });
        }
    }

    fn finish(mut self) -> Vec<Found> {
        for note in std::mem::take(&mut self.notes) {
            if !note.is_used {
                let message =
                    format!("`{}` is never used; `_` in its place says that this is meant", note.name);
                self.add(Severity::Warning, "unused", note.span, message);
            }
        }
        self.found
    }
}
