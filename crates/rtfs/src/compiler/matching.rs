//! `(match x pattern body pattern when guard body …)`
//!
//! A pattern becomes a sequence of tests. Its names are assigned during the tests, so that a clause is
//! one condition and one body.

use super::ir::{Id, Ir, Var};
use super::lower::{Binding, Lower};
use crate::syntax::{Kind, NodeId};
use crate::value::Value;

impl Lower<'_> {
    pub(super) fn match_form(&mut self, node: NodeId, args: &[NodeId]) -> Id {
        let span = self.tree.span(node);
        let Some((&subject, mut clauses)) = args.split_first() else {
            return self.fail(node, "`match` takes a value and clauses: (match x pattern body …)");
        };
        let subject = self.expr(subject);
        let var = self.new_var();
        let mut choices = Vec::new();
        while let Some((&pattern, rest)) = clauses.split_first() {
            let (guard, body, rest) = match rest {
                [word, guard, body, rest @ ..] if self.tree.is_symbol(*word, "when") => {
                    (Some(*guard), *body, rest)
                }
                [body, rest @ ..] => (None, *body, rest),
                [] => return self.fail(pattern, "this pattern has no body"),
            };
            clauses = rest;
            let scope = self.scope.len();
            let mut tests = Vec::new();
            let mut names = Vec::new();
            self.pattern(pattern, var, &mut tests, &mut names);
            if let Some(guard) = guard {
                tests.push(self.expr(guard));
            }
            let at = self.tree.span(pattern);
            let test = match tests.len() {
                0 => self.constant(true, at),
                1 => tests[0],
                _ => self.add(Ir::And(tests), at),
            };
            let body = self.tail(body);
            self.scope.truncate(scope);
            choices.push((test, body));
        }
        let none = self.no_match(var, span);
        let chosen = if choices.is_empty() { none } else { self.add(Ir::Cond(choices, none), span) };
        self.matches.push(chosen);
        self.add(Ir::Let(vec![(var, subject)], chosen), span)
    }

    /// Adds the tests of `var`. `names` are those bound so far by this clause, so that the alternatives
    /// of `(:or …)` bind the same locals.
    fn pattern(&mut self, node: NodeId, var: Var, tests: &mut Vec<Id>, names: &mut Vec<(String, Var)>) {
        let span = self.tree.span(node);
        match self.tree.kind(node) {
            Kind::Symbol => {
                let name = self.tree.symbol(node).unwrap_or_default().to_owned();
                if name != "_" {
                    self.assign(&name, node, var, tests, names);
                }
            }
            Kind::Vector => self.vector_pattern(node, var, tests, names),
            Kind::Map => self.map_pattern(node, var, tests, names),
            Kind::List => self.special_pattern(node, var, tests, names),
            Kind::Quote
            | Kind::Nil
            | Kind::True
            | Kind::False
            | Kind::Const
            | Kind::Verbatim
            | Kind::Keyword
            | Kind::Set => {
                let whole = self.add(Ir::Local(var), span);
                let literal = if self.tree.kind(node) == Kind::Quote {
                    self.expr(node)
                } else {
                    self.quoted(node)
                };
                tests.push(self.native("=", vec![whole, literal], span));
            }
            _ => {
                self.fail(node, "this is no pattern: literals, names, _, [a b & rest], {:k p}, (:or p q), (:as name p) and (:type T p) are");
            }
        }
    }

    fn assign(
        &mut self,
        name: &str,
        node: NodeId,
        var: Var,
        tests: &mut Vec<Id>,
        names: &mut Vec<(String, Var)>,
    ) {
        let span = self.tree.span(node);
        let target = match names.iter().find(|(known, _)| known == name) {
            Some(&(_, target)) => target,
            None => {
                let target = self.new_var();
                names.push((name.to_owned(), target));
                target
            }
        };
        // The alternatives of a pattern bind the same name. A use of the name counts for all of them.
        let known = self.scope.iter().rev().find(|bound| bound.what == Binding::Local(target));
        let note =
            known.filter(|bound| bound.frame == self.frames.len() - 1).and_then(|bound| bound.note);
        self.bind(name, Binding::Local(target));
        match (note, self.scope.last_mut()) {
            (Some(note), Some(bound)) => bound.note = Some(note),
            _ => self.note(node),
        }
        let whole = self.add(Ir::Local(var), span);
        tests.push(self.add(Ir::Assign(target, whole), span));
    }

    /// Returns a new local with a part of the value, to be tested next.
    fn part(&mut self, value: Id, tests: &mut Vec<Id>, node: NodeId) -> Var {
        let var = self.new_var();
        let span = self.tree.span(node);
        tests.push(self.add(Ir::Assign(var, value), span));
        var
    }

    fn vector_pattern(
        &mut self,
        node: NodeId,
        var: Var,
        tests: &mut Vec<Id>,
        names: &mut Vec<(String, Var)>,
    ) {
        let span = self.tree.span(node);
        let mut kids = self.tree.kids(node).to_vec();
        let mut all = None;
        if let [.., word, name] = kids[..]
            && self.tree.keyword(word) == Some("as")
            && let Some(text) = self.tree.symbol(name)
        {
            all = Some((text.to_owned(), name));
            kids.truncate(kids.len() - 2);
        }
        let amp = kids.iter().position(|&kid| self.tree.is_symbol(kid, "&"));
        let fixed = &kids[..amp.unwrap_or(kids.len())];
        let whole = self.add(Ir::Local(var), span);
        let n = self.constant(fixed.len() as i64, span);
        let exact = self.constant(amp.is_none(), span);
        tests.push(self.native("%has-items", vec![whole, n, exact], span));
        if let Some((text, name)) = all {
            self.assign(&text, name, var, tests, names);
        }
        for (at, &kid) in fixed.iter().enumerate() {
            if self.tree.is_symbol(kid, "_") {
                continue;
            }
            let whole = self.add(Ir::Local(var), span);
            let n = self.constant(at as i64, span);
            let value = self.native("%nth", vec![whole, n], span);
            let part = self.part(value, tests, kid);
            self.pattern(kid, part, tests, names);
        }
        if let Some(amp) = amp {
            let [rest] = kids[amp + 1..] else {
                self.fail(kids[amp], "one pattern must follow `&`");
                return;
            };
            let whole = self.add(Ir::Local(var), span);
            let n = self.constant(amp as i64, span);
            let value = self.native("%rest-from", vec![whole, n], span);
            let part = self.part(value, tests, rest);
            self.pattern(rest, part, tests, names);
        }
    }

    fn map_pattern(
        &mut self,
        node: NodeId,
        var: Var,
        tests: &mut Vec<Id>,
        names: &mut Vec<(String, Var)>,
    ) {
        let span = self.tree.span(node);
        let forms = self.tree.forms(node);
        let whole = self.add(Ir::Local(var), span);
        tests.push(self.native("map?", vec![whole], span));
        for pair in forms.chunks_exact(2) {
            let (key_node, mut pattern) = (pair[0], pair[1]);
            if !self.is_constant(key_node) {
                self.fail(key_node, "a key in a pattern is a keyword, a string or another literal");
                continue;
            }
            let key = self.quoted(key_node);
            let kids = self.tree.kids(pattern).to_vec();
            let optional = self.tree.kind(pattern) == Kind::List
                && kids.len() == 2
                && self.tree.keyword(kids[0]) == Some("opt");
            if optional {
                pattern = kids[1];
            } else {
                let whole = self.add(Ir::Local(var), span);
                tests.push(self.native("%has", vec![whole, key], span));
            }
            if self.tree.is_symbol(pattern, "_") {
                continue;
            }
            let whole = self.add(Ir::Local(var), span);
            let value = self.native("%get", vec![whole, key], span);
            let part = self.part(value, tests, pattern);
            if !optional || self.tree.kind(pattern) == Kind::Symbol {
                self.pattern(pattern, part, tests, names);
                continue;
            }
            // The value is absent, or matches the pattern.
            let mut inner = Vec::new();
            self.pattern(pattern, part, &mut inner, names);
            let whole = self.add(Ir::Local(var), span);
            let has = self.native("%has", vec![whole, key], span);
            let absent = self.native("not", vec![has], span);
            let matches = self.add(Ir::And(inner), span);
            tests.push(self.add(Ir::Or(vec![absent, matches]), span));
        }
    }

    /// `(:or p q)`, `(:as name p)`, `(:type TYPE p?)`
    fn special_pattern(
        &mut self,
        node: NodeId,
        var: Var,
        tests: &mut Vec<Id>,
        names: &mut Vec<(String, Var)>,
    ) {
        let span = self.tree.span(node);
        let kids = self.tree.kids(node).to_vec();
        let head = kids.first().and_then(|&head| self.tree.keyword(head)).map(str::to_owned);
        match (head.as_deref(), &kids[..]) {
            (Some("or"), [_, alternatives @ ..]) if !alternatives.is_empty() => {
                let mut choices = Vec::new();
                for &alternative in alternatives {
                    let mut inner = Vec::new();
                    self.pattern(alternative, var, &mut inner, names);
                    choices.push(match inner.len() {
                        0 => self.constant(true, span),
                        _ => self.add(Ir::And(inner), span),
                    });
                }
                tests.push(self.add(Ir::Or(choices), span));
            }
            (Some("as"), [_, name, pattern]) if self.tree.kind(*name) == Kind::Symbol => {
                let text = self.tree.symbol(*name).unwrap_or_default().to_owned();
                self.assign(&text, *name, var, tests, names);
                self.pattern(*pattern, var, tests, names);
            }
            (Some("type"), [_, ty, rest @ ..]) if rest.len() <= 1 => {
                let whole = self.add(Ir::Local(var), span);
                let ty = self.type_data(*ty);
                tests.push(self.native("%is", vec![whole, ty], span));
                if let [pattern] = rest {
                    self.pattern(*pattern, var, tests, names);
                }
            }
            (None, []) => {
                let whole = self.add(Ir::Local(var), span);
                let empty = self.add(Ir::Const(Value::vector(Vec::new()).unwrap_or_default()), span);
                tests.push(self.native("=", vec![whole, empty], span));
            }
            _ => {
                self.fail(node, "a pattern in parentheses is (:or p q), (:as name p) or (:type T p)");
            }
        }
    }
}
