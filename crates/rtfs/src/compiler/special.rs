//! The special forms: their list, and those that bind and choose.

use super::ir::{Id, Ir, Loop};
use super::lower::{Binding, Lower};
use crate::error::counted;
use crate::machine::op::{ForkKind, HostOp};
use crate::syntax::{Kind, NodeId, Span};
use crate::value::Value;

/// Names that are suggested for misspelt ones, in addition to those of the standard library.
pub(crate) const NAMES: &[&str] = &[
    "def",
    "defn",
    "defmacro",
    "defstruct",
    "deftype-alias",
    "fn",
    "let",
    "do",
    "if",
    "if-not",
    "if-let",
    "when",
    "when-not",
    "when-let",
    "unless",
    "cond",
    "case",
    "and",
    "or",
    "loop",
    "recur",
    "for",
    "doseq",
    "dotimes",
    "match",
    "->",
    "->>",
    "as->",
    "some->",
    "some->>",
    "cond->",
    "cond->>",
    "try",
    "catch",
    "finally",
    "throw",
    "quote",
    "macroexpand",
    "module",
    "import",
    "call",
    "parallel",
    "race",
    "settle",
    "step",
    "is?",
    "check",
];

impl Lower<'_> {
    /// Lowers `(name args…)` if the name is a special form.
    pub(super) fn special(&mut self, name: &str, node: NodeId, args: &[NodeId]) -> Option<Id> {
        let is_loop = matches!(name, "loop" | "for" | "doseq" | "dotimes");
        if !is_loop
            && !matches!(
                name,
                "let" | "let*" | "try" | "match" | "case" | "if-let" | "when-let" | "some->"
            )
        {
            return self.special_form(name, node, args);
        }
        // These forms need registers, of which a function has a limited number. If there are few left,
        // the form is moved into another function.
        if self.is_crowded() && (is_loop || !self.mentions_recur(node)) {
            let function = self.thunk(node);
            return Some(self.add(Ir::Call(function, Vec::new()), self.tree.span(node)));
        }
        let frame = self.frames.len() - 1;
        self.frames[frame].open += 1;
        let id = self.special_form(name, node, args);
        self.frames[frame].open -= 1;
        id
    }

    pub(super) fn special_form(&mut self, name: &str, node: NodeId, args: &[NodeId]) -> Option<Id> {
        let span = self.tree.span(node);
        Some(match name {
            "def" => self.def(node, args),
            "defn" => self.defn(node, args),
            "fn" | "fn*" | "lambda" => self.fn_form(node, args),
            "let" | "let*" => self.let_form(node, args),
            "do" => self.body(args, span),
            "if" => self.if_form(node, args, false),
            "if-not" => self.if_form(node, args, true),
            "when" | "unless" | "when-not" => self.when(name, node, args),
            "if-let" | "when-let" | "if-some" | "when-some" => self.if_let(name, node, args),
            "and" | "or" => self.and_or(name, args, span),
            "cond" => self.cond(node, args),
            "case" => self.case(node, args),
            "loop" => self.loop_form(node, args),
            "recur" => self.recur_form(node, args),
            "for" => self.for_form(node, args),
            "doseq" => self.doseq(node, args),
            "dotimes" => self.dotimes(node, args),
            "match" => self.match_form(node, args),
            "->" | "->>" => self.thread(name, node, args),
            "as->" => self.thread_as(node, args),
            "some->" | "some->>" => self.thread_some(name, node, args),
            "cond->" | "cond->>" => self.thread_cond(name, node, args),
            "try" => self.try_form(node, args),
            "throw" => match args {
                [thrown] => {
                    let thrown = self.expr(*thrown);
                    self.add(Ir::Throw(thrown), span)
                }
                _ => self.fail(node, "`throw` takes one value: (throw {:kind :my-kind :message \"…\"})"),
            },
            "quote" => match args {
                [form] => self.quoted(*form),
                _ => self.fail(node, "`quote` takes one form"),
            },
            "quasiquote" if args.len() == 1 => self.quasiquote(args[0]),
            "defmacro" => self.defmacro(node, args),
            "macroexpand" => self.macroexpand(node, args),
            "module" => self.module(node, args),
            "import" => self.import(node, args),
            "deftype-alias" => self.type_alias(node, args),
            "defstruct" => self.defstruct(node, args),
            "is?" | "check" => self.type_check(name, node, args),
            "call" => self.host(HostOp::Call, node, args, 1, usize::MAX),
            "parallel" => self.parallel(node, args),
            "race" | "settle" => {
                let kind = if name == "race" { ForkKind::Race } else { ForkKind::Settle };
                self.fork(kind, args, span)
            }
            "step" => self.step(node, args),
            "comment" => self.nil(span),
            _ if self.is_prelude && name.starts_with('%') => return self.internal(name, node, args),
            _ => return None,
        })
    }

    /// Lowers `[pattern expr …]`, for `let` and similar forms.
    pub(super) fn let_form(&mut self, node: NodeId, args: &[NodeId]) -> Id {
        let span = self.tree.span(node);
        let [bindings, body @ ..] = args else {
            return self.fail(node, "`let` takes bindings and a body: (let [x 1] …)");
        };
        if let Some(split) = self.split_bindings(node, *bindings, body) {
            return self.tail(split);
        }
        let scope = self.scope.len();
        let mut lets = Vec::new();
        self.bindings(*bindings, &mut lets);
        let body = self.body(body, span);
        self.scope.truncate(scope);
        if lets.is_empty() { body } else { self.add(Ir::Let(lets, body), span) }
    }

    /// Returns whether the function that is being lowered already has many locals.
    pub(super) fn is_crowded(&self) -> bool {
        self.frames.last().is_some_and(|frame| frame.vars > 150 || frame.open > 40)
    }

    pub(super) fn mentions_recur(&self, node: NodeId) -> bool {
        let mut open = vec![node];
        while let Some(node) = open.pop() {
            if self.tree.is_symbol(node, "recur") {
                return true;
            }
            open.extend(self.tree.kids(node));
        }
        false
    }

    /// Splits many bindings: a few here, and the others in a nested `let`.
    pub(super) fn split_bindings(
        &mut self,
        node: NodeId,
        bindings: NodeId,
        body: &[NodeId],
    ) -> Option<NodeId> {
        const MANY: usize = 64;
        if self.tree.kids(bindings).len() <= 2 * MANY {
            return None;
        }
        let errors = self.errors.len();
        let pairs = self.pairs(bindings);
        let last = pairs.get(MANY - 1)?.value;
        let kids = self.tree.kids(bindings).to_vec();
        let at = kids.iter().position(|&kid| kid == last)? + 1;
        if self.errors.len() > errors || at == kids.len() {
            return None;
        }
        let span = self.tree.span(node);
        let head = self.tree.push_symbol(span, "let");
        let rest = self.tree.with_parts(Kind::Vector, span, &kids[at..]);
        let inner: Vec<_> = [head, rest].into_iter().chain(body.iter().copied()).collect();
        let inner = self.tree.with_parts(Kind::List, span, &inner);
        let first = self.tree.with_parts(Kind::Vector, span, &kids[..at]);
        Some(self.tree.with_parts(Kind::List, span, &[head, first, inner]))
    }

    pub(super) fn if_form(&mut self, node: NodeId, args: &[NodeId], not: bool) -> Id {
        let span = self.tree.span(node);
        let (test, yes, no) = match args {
            [test, yes] => (*test, *yes, None),
            [test, yes, no] => (*test, *yes, Some(*no)),
            _ => return self.fail(node, "`if` takes a condition and one or two branches: (if c a b)"),
        };
        let test = self.expr(test);
        let yes = self.tail(yes);
        let no = match no {
            Some(no) => self.tail(no),
            None => self.nil(span),
        };
        self.add(if not { Ir::If(test, no, yes) } else { Ir::If(test, yes, no) }, span)
    }

    pub(super) fn when(&mut self, name: &str, node: NodeId, args: &[NodeId]) -> Id {
        let span = self.tree.span(node);
        let [test, body @ ..] = args else {
            return self.fail(node, format!("`{name}` takes a condition and a body"));
        };
        let test = self.expr(*test);
        let body = self.body(body, span);
        let nil = self.nil(span);
        self.add(if name == "when" { Ir::If(test, body, nil) } else { Ir::If(test, nil, body) }, span)
    }

    /// `(if-let [pattern expr] yes no?)`: the whole value is tested.
    pub(super) fn if_let(&mut self, name: &str, node: NodeId, args: &[NodeId]) -> Id {
        let span = self.tree.span(node);
        let is_if = name.starts_with("if");
        let (bindings, body) = match args {
            [bindings, body @ ..] if !is_if || (1..=2).contains(&body.len()) => (*bindings, body),
            _ => {
                return self.fail(
                    node,
                    format!("`{name}` takes one binding and what to do: ({name} [x expr] …)"),
                );
            }
        };
        let kids = self.tree.kids(bindings).to_vec();
        let [pattern, value] = kids[..] else {
            return self.fail(bindings, format!("`{name}` takes one binding, as [x expr]"));
        };
        let value = self.expr(value);
        let var = self.new_var();
        let whole = self.add(Ir::Local(var), span);
        let test = if name.ends_with("some") {
            let nil = self.nil(span);
            let is_nil = self.native("=", vec![whole, nil], span);
            self.native("not", vec![is_nil], span)
        } else {
            whole
        };
        let scope = self.scope.len();
        let mut lets = Vec::new();
        let again = self.add(Ir::Local(var), span);
        self.destructure(pattern, again, &mut lets);
        let yes = if is_if { self.tail(body[0]) } else { self.body(body, span) };
        let yes = self.add(Ir::Let(lets, yes), span);
        self.scope.truncate(scope);
        let no = match body {
            [_, no] if is_if => self.tail(*no),
            _ => self.nil(span),
        };
        let chosen = self.add(Ir::If(test, yes, no), span);
        self.add(Ir::Let(vec![(var, value)], chosen), span)
    }

    pub(super) fn and_or(&mut self, name: &str, args: &[NodeId], span: Span) -> Id {
        match args {
            [] => self.constant(if name == "and" { Value::Bool(true) } else { Value::Nil }, span),
            [one] => self.tail(*one),
            [first @ .., last] => {
                let mut ids = self.exprs(first);
                ids.push(self.tail(*last));
                self.add(if name == "and" { Ir::And(ids) } else { Ir::Or(ids) }, span)
            }
        }
    }

    pub(super) fn loop_form(&mut self, node: NodeId, args: &[NodeId]) -> Id {
        let span = self.tree.span(node);
        let [bindings, body @ ..] = args else {
            return self.fail(node, "`loop` takes bindings and a body: (loop [i 0] …)");
        };
        let scope = self.scope.len();
        let (mut vars, mut lets) = (Vec::new(), Vec::new());
        let mut checks = Vec::new();
        for param in self.pairs(*bindings) {
            let at = self.tree.span(param.pattern);
            let value = self.expr(param.value);
            let var = self.new_var();
            vars.push((var, value));
            if let Some(ty) = param.ty {
                let what = self.text(param.pattern).to_owned();
                let check = self.check(ty, &what, false);
                checks.push(self.add(Ir::CheckLocal(var, check), at));
            }
            match self.tree.symbol(param.pattern).map(str::to_owned) {
                Some(name) => {
                    self.bind(&name, Binding::Local(var));
                    self.note(param.pattern);
                }
                None => {
                    let whole = self.add(Ir::Local(var), at);
                    self.destructure(param.pattern, whole, &mut lets);
                }
            }
        }
        let recur = self.recur.replace(vars.len());
        let mut body = self.body(body, span);
        self.recur = recur;
        self.scope.truncate(scope);
        if !lets.is_empty() {
            body = self.add(Ir::Let(lets, body), span);
        }
        if !checks.is_empty() {
            checks.push(body);
            body = self.add(Ir::Do(checks), span);
        }
        self.add(Ir::Loop(Box::new(Loop { vars, each: None, body })), span)
    }

    pub(super) fn recur_form(&mut self, node: NodeId, args: &[NodeId]) -> Id {
        let span = self.tree.span(node);
        match self.recur {
            None => self.fail(node, "`recur` stands where more is to be done after it; it can only be the last thing in its `loop` or function"),
            Some(n) if n != args.len() => {
                let message = format!(
                    "`recur` needs {} here, one for each name, got {}",
                    counted(n as u64, "value"),
                    args.len()
                );
                self.fail(node, message)
            }
            Some(_) => {
                let args = self.exprs(args);
                self.add(Ir::Recur(args), span)
            }
        }
    }
}
