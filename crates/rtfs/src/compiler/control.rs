//! Choices, loops over collections, threading.

use super::ir::{Each, Id, Ir, Loop, Merge, Var};
use super::lower::{Binding, Lower};
use super::macros::OWN;
use crate::syntax::{Kind, NodeId, Span};
use crate::value::Value;

/// The purpose of a comprehension's body.
#[derive(Clone, Copy)]
enum Goal<'n> {
    Collect(NodeId),
    Effects(&'n [NodeId]),
}

impl Lower<'_> {
    pub(super) fn cond(&mut self, node: NodeId, args: &[NodeId]) -> Id {
        let span = self.tree.span(node);
        if args.len() % 2 == 1 {
            return self.fail(node, "`cond` needs a value for each condition: (cond a 1 b 2 :else 3)");
        }
        let mut clauses = Vec::new();
        let mut last = None;
        for pair in args.chunks_exact(2) {
            let always = matches!(self.tree.kind(pair[0]), Kind::Keyword | Kind::True);
            if last.is_some()
                && let Some(checking) = &mut self.session.checking
            {
                let message = "nothing ever reaches this clause: what comes before it covers everything";
                checking.warn("unreachable", self.tree.span(pair[0]), message.to_owned());
            }
            let test = self.expr(pair[0]);
            let value = self.tail(pair[1]);
            if always && last.is_none() {
                last = Some(value);
            } else if last.is_none() {
                clauses.push((test, value));
            }
        }
        let last = last.unwrap_or_else(|| self.nil(span));
        if clauses.is_empty() { last } else { self.add(Ir::Cond(clauses, last), span) }
    }

    /// `(case x :a 1 (:b :c) 2 default)`: the constants are not evaluated.
    pub(super) fn case(&mut self, node: NodeId, args: &[NodeId]) -> Id {
        let span = self.tree.span(node);
        let Some((&subject, clauses)) = args.split_first() else {
            return self.fail(node, "`case` takes a value and clauses: (case x :a 1 default)");
        };
        let subject = self.expr(subject);
        let var = self.new_var();
        let mut choices = Vec::new();
        for pair in clauses.chunks_exact(2) {
            let constants = if self.tree.kind(pair[0]) == Kind::List {
                self.tree.forms(pair[0])
            } else {
                vec![pair[0]]
            };
            let tests: Vec<_> = constants
                .into_iter()
                .map(|constant| {
                    let constant = match self.tree.kind(constant) {
                        Kind::Quote => self.expr(constant),
                        _ => self.quoted(constant),
                    };
                    let whole = self.add(Ir::Local(var), span);
                    self.native("=", vec![whole, constant], span)
                })
                .collect();
            let test = if tests.len() == 1 { tests[0] } else { self.add(Ir::Or(tests), span) };
            let value = self.tail(pair[1]);
            choices.push((test, value));
        }
        let default = match clauses {
            [.., default] if clauses.len() % 2 == 1 => self.tail(*default),
            _ => self.no_match(var, span),
        };
        let chosen =
            if choices.is_empty() { default } else { self.add(Ir::Cond(choices, default), span) };
        self.matches.push(chosen);
        self.add(Ir::Let(vec![(var, subject)], chosen), span)
    }

    pub(super) fn no_match(&mut self, var: Var, span: Span) -> Id {
        let whole = self.add(Ir::Local(var), span);
        self.native("%no-match", vec![whole], span)
    }

    pub(super) fn for_form(&mut self, node: NodeId, args: &[NodeId]) -> Id {
        let span = self.tree.span(node);
        let [clauses, body] = args else {
            return self.fail(node, "`for` takes bindings and one body: (for [x xs] …)");
        };
        let empty = self.add(Ir::Vector(Vec::new()), span);
        let recur = self.recur.take();
        let id = self.comprehension(*clauses, Goal::Collect(*body), empty, span);
        self.recur = recur;
        id
    }

    pub(super) fn doseq(&mut self, node: NodeId, args: &[NodeId]) -> Id {
        let span = self.tree.span(node);
        let [clauses, body @ ..] = args else {
            return self.fail(node, "`doseq` takes bindings and a body: (doseq [x xs] …)");
        };
        let nil = self.nil(span);
        let recur = self.recur.take();
        let id = self.comprehension(*clauses, Goal::Effects(body), nil, span);
        self.recur = recur;
        id
    }

    fn comprehension(&mut self, clauses: NodeId, goal: Goal<'_>, start: Id, span: Span) -> Id {
        let parts = self.tree.kids(clauses).to_vec();
        if self.tree.kind(clauses) != Kind::Vector || parts.len() < 2 || parts.len() % 2 == 1 {
            return self.fail(clauses, "bindings are expected here, as [x xs :when (odd? x) y ys]");
        }
        if self.tree.kind(parts[0]) == Kind::Keyword {
            return self.fail(parts[0], "a binding comes first, as [x xs :when (odd? x)]");
        }
        let scope = self.scope.len();
        let id = self.over(&parts, goal, start, span);
        self.scope.truncate(scope);
        id
    }

    /// Returns a loop over the first binding; `start` is the collection so far.
    fn over(&mut self, parts: &[NodeId], goal: Goal<'_>, start: Id, span: Span) -> Id {
        let (pattern, collection) = (parts[0], parts[1]);
        let collection = self.expr(collection);
        let collects = matches!(goal, Goal::Collect(_));
        let sum = self.new_var();
        let item = self.new_var();
        let at = self.tree.span(pattern);
        let mut lets = Vec::new();
        match self.tree.symbol(pattern).map(str::to_owned) {
            Some(name) => {
                self.bind(&name, Binding::Local(item));
                self.note(pattern);
            }
            None => {
                let whole = self.add(Ir::Local(item), at);
                self.destructure(pattern, whole, &mut lets);
            }
        }
        let mut body = self.clauses_of(&parts[2..], goal, sum, span);
        if !lets.is_empty() {
            body = self.add(Ir::Let(lets, body), span);
        }
        let exit = self.so_far(goal, sum, span);
        let vars = if collects { vec![(sum, start)] } else { Vec::new() };
        self.add(
            Ir::Loop(Box::new(Loop { vars, each: Some(Each { item, collection, exit }), body })),
            span,
        )
    }

    fn so_far(&mut self, goal: Goal<'_>, sum: Var, span: Span) -> Id {
        match goal {
            Goal::Collect(_) => self.add(Ir::Local(sum), span),
            Goal::Effects(_) => self.nil(span),
        }
    }

    fn again(&mut self, goal: Goal<'_>, sum: Id, span: Span) -> Id {
        match goal {
            Goal::Collect(_) => self.add(Ir::Recur(vec![sum]), span),
            Goal::Effects(_) => {
                let next = self.add(Ir::Recur(Vec::new()), span);
                self.add(Ir::Do(vec![sum, next]), span)
            }
        }
    }

    fn clauses_of(&mut self, parts: &[NodeId], goal: Goal<'_>, sum: Var, span: Span) -> Id {
        let [first, second, rest @ ..] = parts else {
            let id = match goal {
                Goal::Collect(body) => {
                    let value = self.expr(body);
                    let so_far = self.add(Ir::Local(sum), span);
                    self.add(Ir::Push(so_far, value), span)
                }
                Goal::Effects(body) => self.body(body, span),
            };
            return self.again(goal, id, span);
        };
        match self.tree.keyword(*first) {
            Some(word @ ("when" | "while")) => {
                let is_when = word == "when";
                let test = self.expr(*second);
                let yes = self.clauses_of(rest, goal, sum, span);
                let mut no = self.so_far(goal, sum, span);
                if is_when {
                    no = self.again(goal, no, span);
                }
                self.add(Ir::If(test, yes, no), span)
            }
            Some("let") => {
                let mut lets = Vec::new();
                self.bindings(*second, &mut lets);
                let inner = self.clauses_of(rest, goal, sum, span);
                self.add(Ir::Let(lets, inner), span)
            }
            Some(other) => {
                let message = format!("`:{other}` is not :when, :while or :let");
                self.fail(*first, message)
            }
            None => {
                let start = self.so_far(goal, sum, span);
                let inner = self.over(parts, goal, start, span);
                self.again(goal, inner, span)
            }
        }
    }

    /// `(%iter [x xs] [acc init …] body exit)`: a loop whose `recur` advances to the next item.
    pub(super) fn iter_form(&mut self, args: &[NodeId], span: Span) -> Id {
        let [each, accumulators, body, exit] = args else { return self.nil(span) };
        let each = self.tree.kids(*each).to_vec();
        let collection = self.expr(each[1]);
        let scope = self.scope.len();
        let pairs = self.pairs(*accumulators);
        let inits: Vec<_> = pairs.iter().map(|pair| self.expr(pair.value)).collect();
        let mut vars = Vec::new();
        for (pair, init) in pairs.iter().zip(inits) {
            let name = self.tree.symbol(pair.pattern).unwrap_or_default().to_owned();
            vars.push((self.bind_var(&name), init));
        }
        let exit = self.expr(*exit);
        let name = self.tree.symbol(each[0]).unwrap_or_default().to_owned();
        let item = self.bind_var(&name);
        let recur = self.recur.replace(vars.len());
        let body = self.tail(*body);
        self.recur = recur;
        self.scope.truncate(scope);
        self.add(
            Ir::Loop(Box::new(Loop { vars, each: Some(Each { item, collection, exit }), body })),
            span,
        )
    }

    /// `(%merging [later earlier items] compare)`
    pub(super) fn merge_form(&mut self, args: &[NodeId], span: Span) -> Id {
        let [names, compare] = args else { return self.nil(span) };
        let &[later, earlier, items] = self.tree.kids(*names) else { return self.nil(span) };
        let items = self.expr(items);
        let scope = self.scope.len();
        let [later, earlier] = [later, earlier].map(|name| {
            let name = self.tree.symbol(name).unwrap_or_default().to_owned();
            self.bind_var(&name)
        });
        let recur = self.recur.take();
        let compare = self.expr(*compare);
        self.recur = recur;
        self.scope.truncate(scope);
        self.add(Ir::Merge(Box::new(Merge { items, later, earlier, compare })), span)
    }

    /// `(dotimes [i n] body…)`
    pub(super) fn dotimes(&mut self, node: NodeId, args: &[NodeId]) -> Id {
        let span = self.tree.span(node);
        let (name, count, body) = match args {
            [bindings, body @ ..] => match self.tree.kids(*bindings) {
                [name, count] if self.tree.kind(*name) == Kind::Symbol => (*name, *count, body),
                _ => return self.fail(*bindings, "one binding is expected here, as [i 10]"),
            },
            [] => return self.fail(node, "`dotimes` takes a binding and a body: (dotimes [i 10] …)"),
        };
        let count = self.expr(count);
        let limit = self.new_var();
        let zero = self.constant(0, span);
        let scope = self.scope.len();
        let name = self.tree.symbol(name).unwrap_or_default().to_owned();
        let i = self.bind_var(&name);
        let (read, read_limit) = (self.add(Ir::Local(i), span), self.add(Ir::Local(limit), span));
        let test = self.native("<", vec![read, read_limit], span);
        let recur = self.recur.take();
        let body = self.body(body, span);
        self.recur = recur;
        self.scope.truncate(scope);
        let read = self.add(Ir::Local(i), span);
        let next = self.native("inc", vec![read], span);
        let again = self.add(Ir::Recur(vec![next]), span);
        let yes = self.add(Ir::Do(vec![body, again]), span);
        let nil = self.nil(span);
        let body = self.add(Ir::If(test, yes, nil), span);
        let looped =
            self.add(Ir::Loop(Box::new(Loop { vars: vec![(i, zero)], each: None, body })), span);
        self.add(Ir::Let(vec![(limit, count)], looped), span)
    }

    /// Returns `form` with `value` as its first or last argument.
    fn threaded(&mut self, form: NodeId, value: NodeId, last: bool) -> NodeId {
        let span = self.tree.span(form);
        if self.tree.kind(form) != Kind::List || self.tree.kids(form).is_empty() {
            return self.tree.with_parts(Kind::List, span, &[form, value]);
        }
        let mut parts = self.tree.kids(form).to_vec();
        let at = if last { parts.len() } else { 1 };
        parts.insert(at, value);
        self.tree.with_parts(Kind::List, span, &parts)
    }

    pub(super) fn thread(&mut self, name: &str, node: NodeId, args: &[NodeId]) -> Id {
        let Some((&first, forms)) = args.split_first() else {
            return self.fail(node, format!("`{name}` takes a value and forms"));
        };
        let form = forms.iter().fold(first, |value, &form| self.threaded(form, value, name == "->>"));
        self.tail(form)
    }

    pub(super) fn thread_as(&mut self, node: NodeId, args: &[NodeId]) -> Id {
        let span = self.tree.span(node);
        let (&[value, name], forms) = args.split_at(args.len().min(2)) else {
            return self.fail(node, "`as->` takes a value, a name and forms: (as-> x n …)");
        };
        let scope = self.scope.len();
        let mut lets = Vec::new();
        let first = self.expr(value);
        self.destructure(name, first, &mut lets);
        let Some((&last, others)) = forms.split_last() else { return self.tail(value) };
        for &form in others {
            let value = self.expr(form);
            self.destructure(name, value, &mut lets);
        }
        let body = self.tail(last);
        self.scope.truncate(scope);
        self.add(Ir::Let(lets, body), span)
    }

    /// Returns a local that no program can name, and a form that reads it.
    fn hidden(&mut self, span: Span) -> (Var, NodeId) {
        let var = self.new_var();
        let name = format!("\u{0}{var}");
        self.bind(&name, Binding::Local(var));
        (var, self.tree.push_symbol(span, &name))
    }

    pub(super) fn thread_some(&mut self, name: &str, node: NodeId, args: &[NodeId]) -> Id {
        let span = self.tree.span(node);
        let Some((&first, forms)) = args.split_first() else {
            return self.fail(node, format!("`{name}` takes a value and forms"));
        };
        let scope = self.scope.len();
        let recur = self.recur.take();
        // Each step gets the value of the previous one. After a nil, the result is nil.
        let mut value = self.expr(first);
        let mut lets = Vec::new();
        for &form in forms {
            let (var, read) = self.hidden(span);
            lets.push((var, value));
            let form = self.threaded(form, read, name == "some->>");
            let next = self.expr(form);
            let (again, nil) = (self.add(Ir::Local(var), span), self.nil(span));
            let is_nil = self.native("=", vec![again, nil], span);
            let nil = self.nil(span);
            value = self.add(Ir::If(is_nil, nil, next), span);
        }
        self.recur = recur;
        self.scope.truncate(scope);
        if lets.is_empty() { value } else { self.add(Ir::Let(lets, value), span) }
    }

    pub(super) fn thread_cond(&mut self, name: &str, node: NodeId, args: &[NodeId]) -> Id {
        let span = self.tree.span(node);
        let Some((&first, clauses)) = args.split_first().filter(|(_, clauses)| clauses.len() % 2 == 0)
        else {
            return self.fail(node, format!("`{name}` takes a value, and conditions with forms"));
        };
        let scope = self.scope.len();
        let recur = self.recur.take();
        let mut value = self.expr(first);
        let mut lets = Vec::new();
        for pair in clauses.chunks_exact(2) {
            let (var, read) = self.hidden(span);
            lets.push((var, value));
            let test = self.expr(pair[0]);
            let form = self.threaded(pair[1], read, name == "cond->>");
            let yes = self.expr(form);
            let no = self.add(Ir::Local(var), span);
            value = self.add(Ir::If(test, yes, no), span);
        }
        self.recur = recur;
        self.scope.truncate(scope);
        if lets.is_empty() { value } else { self.add(Ir::Let(lets, value), span) }
    }

    /// Builds a quoted form with parts to fill in.
    pub(super) fn quasiquote(&mut self, node: NodeId) -> Id {
        self.fresh.push(std::collections::HashMap::new());
        let id = self.quasi(node, 0);
        self.fresh.pop();
        id
    }

    fn quasi(&mut self, node: NodeId, level: usize) -> Id {
        let span = self.tree.span(node);
        let kids = self.tree.kids(node).to_vec();
        match self.tree.kind(node) {
            Kind::Unquote if level == 0 => self.expr(kids[0]),
            Kind::Splice if level == 0 => self.fail(node, "`~@` stands outside of a collection"),
            Kind::Symbol => {
                let name = self.tree.symbol(node).unwrap_or_default().to_owned();
                let name = match name.strip_suffix('#') {
                    Some(stem) if !stem.is_empty() => self.fresh_name(stem),
                    _ if self.session.home.contains(&name) => format!("{OWN}{}{name}", self.prefix),
                    _ => name,
                };
                self.add(Ir::Const(Value::Symbol(crate::Symbol::new(name))), span)
            }
            Kind::List => {
                if let [head, form] = kids[..]
                    && level == 0
                    && self.tree.is_symbol(head, "unquote")
                {
                    return self.expr(form);
                }
                self.quasi_parts("%list", &kids, level, span)
            }
            Kind::Vector => self.quasi_parts("vec", &kids, level, span),
            Kind::Set => self.quasi_parts("set", &kids, level, span),
            Kind::Map => self.quasi_parts("%map", &kids, level, span),
            kind @ (Kind::Quote | Kind::Quasiquote | Kind::Unquote | Kind::Splice) => {
                let (name, level) = match kind {
                    Kind::Quote => ("quote", level),
                    Kind::Quasiquote => ("quasiquote", level + 1),
                    Kind::Unquote => ("unquote", level.saturating_sub(1)),
                    _ => ("unquote-splicing", level.saturating_sub(1)),
                };
                let head = self.tree.push_symbol(span, name);
                self.quasi_parts("%list", &[head, kids[0]], level, span)
            }
            Kind::FnLiteral => {
                let names = self.tree.fn_literal_params(node);
                let params: Vec<_> =
                    names.iter().map(|name| self.tree.push_symbol(span, name)).collect();
                let params = self.tree.with_parts(Kind::Vector, span, &params);
                let body = self.tree.with_parts(Kind::List, span, &kids);
                let head = self.tree.push_symbol(span, "fn");
                self.quasi_parts("%list", &[head, params, body], level, span)
            }
            _ => self.quoted(node),
        }
    }

    fn fresh_name(&mut self, stem: &str) -> String {
        self.session.fresh += 1;
        let name = format!("{stem}__{}__auto", self.session.fresh);
        let names = self.fresh.last_mut().expect("inside of a quasiquote");
        names.entry(stem.to_owned()).or_insert(name).clone()
    }

    fn quasi_parts(&mut self, make: &str, kids: &[NodeId], level: usize, span: Span) -> Id {
        let mut parts = Vec::new();
        let mut group = Vec::new();
        for &kid in kids {
            let inner = self.tree.kids(kid).to_vec();
            if self.tree.kind(kid) == Kind::Splice && level == 0 {
                if !group.is_empty() {
                    parts.push(self.add(Ir::Vector(std::mem::take(&mut group)), span));
                }
                let spliced = self.expr(inner[0]);
                parts.push(self.native("vec", vec![spliced], span));
            } else {
                group.push(self.quasi(kid, level));
            }
        }
        if !group.is_empty() || parts.is_empty() {
            parts.push(self.add(Ir::Vector(group), span));
        }
        let all = if parts.len() == 1 { parts[0] } else { self.native("%concat", parts, span) };
        self.native(make, vec![all], span)
    }
}
