//! Tests that the checker does not understand: the types of the tested values are widened.
//!
//! `(if (text? x) (upper x) x)` runs for every `x`, if `text?` is correct. In a branch that is taken
//! only if a test holds, the tested value can therefore have any type. After a test of the standard
//! library about the content of a value (`empty?`, `every?`, `<`), the value keeps its kind. Values that
//! were computed from a tested value are widened too.

use super::branch::predicate;
use super::ty::Ty;
use super::walk::{Slot, Walker};
use crate::builtins;
use crate::compiler::ir::{Id, Ir, Var};

/// The maximum number of forms of one test that are examined.
const MAX_FORMS: u32 = 200;

/// The maximum number of remembered sources of a local.
const MAX_SOURCES: usize = 8;

/// The information that a test may give about a value.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum About {
    /// The content, or the value within its kind.
    Content,
    /// Anything.
    Kind,
}

impl Walker<'_> {
    /// Widens the values that a test examines in a way that the checker does not understand, in both
    /// branches.
    pub(super) fn doubt(&mut self, test: Id) {
        let mut found = Vec::new();
        self.looked_at(test, &mut found);
        for (slot, about) in found {
            let known = self.slot(slot);
            let less = match about {
                About::Content => Ty::of(known.kinds),
                About::Kind => Ty::ANY,
            };
            if known.detail().is_some() || known.kinds != less.kinds {
                self.put(slot, less);
            }
        }
    }

    /// Records that a local was given the value of a form.
    pub(super) fn remember(&mut self, var: Var, value: Id) {
        let mut found = Vec::new();
        self.sources(value, About::Content, &mut MAX_FORMS.clone(), &mut found);
        found.truncate(MAX_SOURCES);
        if !found.is_empty() {
            self.frame().sources.insert(var, found);
        }
    }

    fn looked_at(&mut self, test: Id, found: &mut Vec<(Slot, About)>) {
        let view = self.view;
        match view.arena.get(test) {
            Ir::And(parts) | Ir::Or(parts) => {
                parts.iter().take(MAX_FORMS as usize).for_each(|&part| self.looked_at(part, found));
            }
            Ir::Native(number, args) => {
                let name = builtins::native(*number).name;
                match (name, &args[..]) {
                    ("not", [inner]) => self.looked_at(*inner, found),
                    // The functions that patterns expand to.
                    (name, _) if name.starts_with('%') && name != "%is" => {}
                    ("=" | "%is", _) => args.iter().for_each(|&arg| self.part(arg, found)),
                    (name, [arg]) if predicate(name).is_some() => self.part(*arg, found),
                    _ => self.sources(test, About::Content, &mut MAX_FORMS.clone(), found),
                }
            }
            Ir::Assign(..) => {}
            _ => self.part(test, found),
        }
    }

    /// A local itself is understood, but its sources are not.
    fn part(&mut self, form: Id, found: &mut Vec<(Slot, About)>) {
        match self.view.arena.get(form) {
            Ir::Local(var) => found.extend(self.frame().sources.get(var).into_iter().flatten()),
            _ => self.sources(form, About::Content, &mut MAX_FORMS.clone(), found),
        }
    }

    /// Collects all locals that a form is computed from.
    fn sources(&mut self, form: Id, about: About, left: &mut u32, found: &mut Vec<(Slot, About)>) {
        let Some(fewer) = left.checked_sub(1) else { return };
        *left = fewer;
        let view = self.view;
        let mut all = |walker: &mut Self, ids: &[Id], about| {
            ids.iter().for_each(|&id| walker.sources(id, about, left, found));
        };
        match view.arena.get(form) {
            Ir::Local(var) => {
                let of = self.frame().sources.get(var).cloned().unwrap_or_default();
                found.push((Slot::Local(*var), about));
                found.extend(of);
            }
            Ir::Up(at) => found.push((Slot::Up(*at), about)),
            Ir::Global(global) => found.push((Slot::Global(*global), about)),
            Ir::Native(number, args) => {
                let name = builtins::native(*number).name;
                match (name, &args[..]) {
                    // The member of a collection that was found determines the kind.
                    ("contains?" | "get" | "find" | "%get", [of, keys @ ..]) => {
                        all(self, &[*of], about);
                        all(self, keys, About::Kind);
                    }
                    (name, args) => all(self, args, if tells_kind(name) { About::Kind } else { about }),
                }
            }
            Ir::CallCode(code, args) => {
                let known = view.session.name_of_code(*code).is_some_and(|name| name != "apply");
                all(self, args, if known { about } else { About::Kind });
            }
            Ir::Key(_, of) => all(self, &[*of], about),
            Ir::Call(_, args) => all(self, args, About::Kind),
            Ir::Apply(_, args) => all(self, &[*args], About::Kind),
            Ir::Fn(at) => all(self, &view.functions[*at].captures, About::Kind),
            Ir::And(ids) | Ir::Or(ids) | Ir::Do(ids) | Ir::Vector(ids) | Ir::Map(ids) | Ir::Set(ids) => {
                all(self, ids, about);
            }
            Ir::If(a, b, c) => all(self, &[*a, *b, *c], About::Kind),
            Ir::Cond(clauses, last) => {
                for &(test, value) in clauses {
                    all(self, &[test, value], About::Kind);
                }
                all(self, &[*last], About::Kind);
            }
            Ir::Let(lets, body) => {
                for &(_, value) in lets {
                    all(self, &[value], About::Kind);
                }
                all(self, &[*body], About::Kind);
            }
            Ir::Try(form) => all(self, &[form.body], About::Kind),
            Ir::Check(value, _) | Ir::Assign(_, value) => all(self, &[*value], about),
            _ => {}
        }
    }
}

/// Returns whether the result of a function depends on the kind of its argument.
fn tells_kind(name: &str) -> bool {
    const NAMES: [&str; 16] = [
        "type-name",
        "type-of",
        "coll?",
        "seq?",
        "sequential?",
        "nan?",
        "%is",
        "=",
        "!=",
        "not=",
        "==",
        "identical?",
        "compare",
        "str",
        "pr-str",
        "hash",
    ];
    NAMES.contains(&name) || predicate(name).is_some()
}
