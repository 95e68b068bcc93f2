//! Lowers errors, capabilities, strands.

use super::ir::{Id, Ir, Try};
use super::lower::{Binding, Lower};
use crate::builtins;
use crate::machine::op::{ForkKind, HostOp};
use crate::syntax::{Kind, NodeId, Span};
use crate::value::Value;

impl Lower<'_> {
    pub(super) fn try_form(&mut self, node: NodeId, args: &[NodeId]) -> Id {
        let span = self.tree.span(node);
        let head = |node: NodeId| self.tree.kids(node).first().and_then(|&head| self.tree.symbol(head));
        let first = args.iter().position(|&arg| {
            self.tree.kind(arg) == Kind::List && matches!(head(arg), Some("catch" | "finally"))
        });
        let (body, clauses) = args.split_at(first.unwrap_or(args.len()));
        let recur = self.recur.take();
        let body = self.body(body, span);
        let error = self.new_var();
        let mut catches = Vec::new();
        let mut cleanup = None;
        for &clause in clauses {
            let kids = self.tree.kids(clause).to_vec();
            match kids.first().and_then(|&head| self.tree.symbol(head)) {
                Some("catch") if cleanup.is_none() => catches.push((clause, kids)),
                Some("finally") if cleanup.is_none() => cleanup = Some(self.body(&kids[1..], span)),
                _ => {
                    return self.fail(
                        clause,
                        "after the first `catch`, only `catch` and one `finally` may follow",
                    );
                }
            }
        }
        let handler = (!catches.is_empty()).then(|| self.catches(&catches, error, span));
        self.recur = recur;
        self.add(Ir::Try(Box::new(Try { body, error, handler, cleanup })), span)
    }

    /// `(catch :kind e body…)`, `(catch [:a :b] e body…)`, `(catch _ e body…)`, `(catch e body…)`
    pub(super) fn catches(
        &mut self,
        clauses: &[(NodeId, Vec<NodeId>)],
        error: super::ir::Var,
        span: Span,
    ) -> Id {
        let mut handler = self.add(Ir::Rethrow(error), span);
        for (clause, kids) in clauses.iter().rev() {
            let at = self.tree.span(*clause);
            let is_symbol = |node: NodeId| self.tree.kind(node) == Kind::Symbol;
            let (selector, name, body) = match kids[1..] {
                [any, name, ref body @ ..]
                    if self.tree.is_symbol(any, "_") && is_symbol(name) && !body.is_empty() =>
                {
                    (None, name, body)
                }
                [name, ref body @ ..] if is_symbol(name) => (None, name, body),
                [selector, name, ref body @ ..] if is_symbol(name) => (Some(selector), name, body),
                _ => {
                    return self.fail(
                        *clause,
                        "a catch is (catch :kind e body…), or (catch e body…) for all kinds",
                    );
                }
            };
            let scope = self.scope.len();
            let name = self.tree.symbol(name).unwrap_or_default().to_owned();
            self.bind(&name, Binding::Local(error));
            let recur = self.recur.take();
            let body = self.body(body, at);
            self.recur = recur;
            self.scope.truncate(scope);
            let Some(selector) = selector else {
                handler = body;
                continue;
            };
            let kinds = if self.tree.kind(selector) == Kind::Vector {
                self.tree.forms(selector)
            } else {
                vec![selector]
            };
            let mut tests = Vec::new();
            for kind in kinds {
                if self.tree.kind(kind) != Kind::Keyword {
                    return self.fail(kind, "a kind of error is a keyword, such as :timeout");
                }
                let kind = self.quoted(kind);
                let whole = self.add(Ir::Local(error), at);
                let found = self.add(Ir::Key(Value::keyword("kind"), whole), at);
                tests.push(self.native("=", vec![found, kind], at));
            }
            let test = if tests.len() == 1 { tests[0] } else { self.add(Ir::Or(tests), at) };
            handler = self.add(Ir::If(test, body, handler), at);
        }
        handler
    }

    /// Returns a function of the standard library that is written in Rust.
    pub(super) fn native(&mut self, name: &str, args: Vec<Id>, span: Span) -> Id {
        match builtins::native_named(name) {
            Some(native) => self.add(Ir::Native(native, args), span),
            None => {
                self.error(span, format!("`{name}` is missing from the standard library"));
                self.nil(span)
            }
        }
    }

    pub(super) fn host(
        &mut self,
        op: HostOp,
        node: NodeId,
        args: &[NodeId],
        min: usize,
        max: usize,
    ) -> Id {
        let span = self.tree.span(node);
        if args.len() < min || args.len() > max.min(200) {
            return self.fail(node, "a call takes the id of a capability and its input: (call :id {…})");
        }
        let args = self.exprs(args);
        self.add(Ir::Host(op, args), span)
    }

    pub(super) fn fork(&mut self, kind: ForkKind, args: &[NodeId], span: Span) -> Id {
        let thunks: Vec<_> = args.iter().map(|&arg| self.thunk(arg)).collect();
        self.add(Ir::Fork(kind, thunks), span)
    }

    /// `(parallel a b)`, or `(parallel {:a (f) :b (g)})` for a map.
    pub(super) fn parallel(&mut self, node: NodeId, args: &[NodeId]) -> Id {
        let span = self.tree.span(node);
        let [map] = args else { return self.fork(ForkKind::All, args, span) };
        if self.tree.kind(*map) != Kind::Map {
            return self.fork(ForkKind::All, args, span);
        }
        let forms = self.tree.forms(*map);
        let keys: Vec<_> = forms.iter().copied().step_by(2).collect();
        let values: Vec<_> = forms.iter().copied().skip(1).step_by(2).collect();
        let keys = self.exprs(&keys);
        let keys = self.add(Ir::Vector(keys), span);
        let values = self.fork(ForkKind::All, &values, span);
        self.native("%zipmap", vec![keys, values], span)
    }

    /// `(step "name" body…)`
    pub(super) fn step(&mut self, node: NodeId, args: &[NodeId]) -> Id {
        let span = self.tree.span(node);
        let [name, body @ ..] = args else {
            return self.fail(node, "`step` takes a name and a body: (step \"Fetch the page\" …)");
        };
        let name = self.expr(*name);
        let begin = self.add(Ir::Host(HostOp::StepBegin, vec![name]), span);
        let recur = self.recur.take();
        let body = self.body(body, span);
        self.recur = recur;
        let end = self.add(Ir::Host(HostOp::StepEnd, Vec::new()), span);
        let error = self.new_var();
        let body =
            self.add(Ir::Try(Box::new(Try { body, error, handler: None, cleanup: Some(end) })), span);
        self.add(Ir::Do(vec![begin, body]), span)
    }

    /// Lowers the internal forms of the prelude.
    pub(super) fn internal(&mut self, name: &str, node: NodeId, args: &[NodeId]) -> Option<Id> {
        let span = self.tree.span(node);
        let host = |op| Some(op);
        let op = match name {
            "%iter" => return Some(self.iter_form(args, span)),
            "%merging" => return Some(self.merge_form(args, span)),
            "%push" => {
                let args = self.exprs(args);
                return Some(self.add(Ir::Push(args[0], args[1]), span));
            }
            "%apply" => {
                let args = self.exprs(args);
                return Some(self.add(Ir::Apply(args[0], args[1]), span));
            }
            "%fork-map" | "%fork-all" | "%fork-race" | "%fork-settle" => {
                let kind = match name {
                    "%fork-map" => ForkKind::Map,
                    "%fork-race" => ForkKind::Race,
                    "%fork-settle" => ForkKind::Settle,
                    _ => ForkKind::All,
                };
                let args = self.exprs(args);
                return Some(self.add(Ir::Fork(kind, args), span));
            }
            "%call" => host(HostOp::Call),
            "%open" => host(HostOp::Open),
            "%next" => host(HostOp::Next),
            "%send" => host(HostOp::Send),
            "%close" => host(HostOp::Close),
            "%search" => host(HostOp::Search),
            "%describe" => host(HostOp::Describe),
            "%sleep-until" => host(HostOp::SleepUntil),
            "%await-task" => host(HostOp::AwaitTask),
            "%await-event" => host(HostOp::AwaitEvent),
            "%log" => host(HostOp::Log),
            _ => None,
        }?;
        Some(self.host(op, node, args, 0, usize::MAX))
    }
}
