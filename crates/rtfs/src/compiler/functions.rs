//! Definitions and functions.

use super::ir::{Arity, Function, Id, Ir};
use super::lower::{Binding, Frame, Lower};
use crate::syntax::{Kind, NodeId, Span};

impl Lower<'_> {
    pub(super) fn at_top(&self) -> bool {
        self.frames.len() == 1 && self.inlined == 0
    }

    /// `(def name :- :int expr)`
    pub(super) fn def(&mut self, node: NodeId, args: &[NodeId]) -> Id {
        let span = self.tree.span(node);
        if !self.at_top() {
            return self
                .fail(node, "`def` stands inside of a function; `let` gives a name to a value there");
        }
        let Some((&name_node, rest)) = args.split_first() else {
            return self.fail(node, "`def` takes a name and a value: (def name value)");
        };
        let Some(name) = self.tree.symbol(name_node).map(str::to_owned) else {
            return self.fail(name_node, "a name is expected after `def`");
        };
        let (ty, rest) = self.annotation(rest);
        let value = match rest {
            [value] => *value,
            [doc, value] if self.tree.string(*doc).is_some() => *value,
            _ => return self.fail(node, "`def` takes a name and a value: (def name value)"),
        };
        let mut value = match (self.is_fn(value), ty) {
            // In messages, a function has its name.
            (true, None) => self.expr(value),
            _ => self.expr(value),
        };
        if let Some(ty) = ty {
            value = self.checked(value, ty, &name, false);
        }
        self.define(&name, value, span)
    }

    pub(super) fn define(&mut self, name: &str, value: Id, span: Span) -> Id {
        let global = self.session.global(&format!("{}{name}", self.prefix));
        if let Ir::Fn(function) = self.arena.get(value) {
            let function = &mut self.functions[*function];
            if function.name.is_empty() {
                function.name = name.to_owned();
            }
            self.session.defined(global, function.captures.is_empty().then_some(function.proto));
        } else {
            self.session.defined(global, None);
        }
        self.add(Ir::Def(global, value), span)
    }

    pub(super) fn is_fn(&self, node: NodeId) -> bool {
        let head = self.tree.kids(node).first();
        self.tree.kind(node) == Kind::FnLiteral
            || self.tree.kind(node) == Kind::List
                && head.is_some_and(|&head| self.tree.is_symbol(head, "fn"))
    }

    /// `(defn name "doc" [a :- :int, b] :- :int body…)`
    pub(super) fn defn(&mut self, node: NodeId, args: &[NodeId]) -> Id {
        let span = self.tree.span(node);
        if !self.at_top() {
            return self
                .fail(node, "`defn` stands inside of a function; `let` gives a name to a `fn` there");
        }
        let Some((&name_node, mut rest)) = args.split_first() else {
            return self.fail(node, "`defn` takes a name, parameters and a body: (defn name [x] …)");
        };
        let Some(name) = self.tree.symbol(name_node).map(str::to_owned) else {
            return self.fail(name_node, "a name is expected after `defn`");
        };
        if let [doc, more @ ..] = rest
            && self.tree.string(*doc).is_some()
            && !more.is_empty()
        {
            rest = more;
        }
        if let [attributes, more @ ..] = rest
            && self.tree.kind(*attributes) == Kind::Map
            && !more.is_empty()
        {
            rest = more;
        }
        let function = self.clauses(node, Some(&name), &[], rest);
        self.define(&name, function, span)
    }

    pub(super) fn fn_form(&mut self, node: NodeId, args: &[NodeId]) -> Id {
        let (name, rest) = match args {
            [name, rest @ ..] if self.tree.kind(*name) == Kind::Symbol => {
                (self.tree.symbol(*name).map(str::to_owned), rest)
            }
            _ => (None, args),
        };
        self.clauses(node, name.as_deref(), &[], rest)
    }

    /// Returns the parameters and bodies of a function: `[x] …` or `([x] …) ([x y] …)`.
    pub(super) fn clauses(
        &mut self,
        node: NodeId,
        name: Option<&str>,
        also: &[String],
        rest: &[NodeId],
    ) -> Id {
        let several =
            !rest.is_empty() && rest.iter().all(|&clause| self.tree.kind(clause) == Kind::List);
        let mut clauses = Vec::new();
        if several {
            for &clause in rest {
                match self.tree.kids(clause) {
                    [params, body @ ..] if self.tree.kind(*params) == Kind::Vector => {
                        clauses.push((*params, body.to_vec()));
                    }
                    _ => return self.fail(clause, "each arity is ([parameters] body…)"),
                }
            }
        } else {
            match rest {
                [params, body @ ..] if self.tree.kind(*params) == Kind::Vector => {
                    clauses.push((*params, body.to_vec()));
                }
                [other, ..] => return self.fail(*other, "parameters are expected here, as [x y]"),
                [] => return self.fail(node, "a function takes parameters and a body: (fn [x] …)"),
            }
        }
        self.function(node, name, also, &clauses)
    }

    /// Returns a function; `also` are further names for messages and recursion.
    pub(super) fn function(
        &mut self,
        node: NodeId,
        name: Option<&str>,
        also: &[String],
        clauses: &[(NodeId, Vec<NodeId>)],
    ) -> Id {
        let span = self.tree.span(node);
        let is_global = self.at_top() && name.is_some() && also.is_empty() && {
            let global = format!("{}{}", self.prefix, name.unwrap_or_default());
            self.session.by_name.contains_key(&global)
        };
        let proto = self.session.reserve();
        let scope = self.scope.len();
        let recur = self.recur.take();
        self.frames.push(Frame::default());
        if !is_global {
            for name in name.into_iter().chain(also.iter().map(String::as_str)) {
                self.bind(name, Binding::SelfFn);
            }
        }
        let mut arities: Vec<Arity> = Vec::new();
        for (params, body) in clauses {
            if let Some(frame) = self.frames.last_mut() {
                frame.vars = 0;
            }
            let inner = self.scope.len();
            let mut arity = self.arity(*params, body);
            self.scope.truncate(inner);
            arity.proto = if clauses.len() == 1 { proto } else { self.session.reserve() };
            let (n, rest) = (arity.params.len(), arity.rest);
            if arities
                .iter()
                .any(|other| other.params.len() == n && other.rest == rest || other.rest && rest)
            {
                self.fail(*params, "two arities of this function take the same number of arguments");
            }
            arities.push(arity);
        }
        self.scope.truncate(scope);
        self.recur = recur;
        let captures = self.frames.pop().map(|frame| frame.captures).unwrap_or_default();
        if captures.len() > 200 {
            return self.fail(node, "this function captures more than 200 values");
        }
        let name = name.unwrap_or_default().to_owned();
        self.functions.push(Function { name, captures, arities, proto });
        self.add(Ir::Fn(self.functions.len() - 1), span)
    }

    pub(super) fn arity(&mut self, params: NodeId, body: &[NodeId]) -> Arity {
        let span = self.tree.span(params);
        let (result, body) = self.annotation(body);
        let (fixed, rest) = self.params(params);
        let count = fixed.len() + usize::from(rest.is_some());
        if count > 200 {
            self.fail(params, "a function takes more than 200 parameters");
        }
        let vars: Vec<_> = (0..count).map(|_| self.new_var()).collect();
        let (mut before, mut bindings) = (Vec::new(), Vec::new());
        let has_rest = rest.is_some();
        for (at, param) in fixed.into_iter().chain(rest).enumerate() {
            let var = vars[at];
            let at_span = self.tree.span(param.pattern);
            if let Some(ty) = param.ty {
                let what = self.text(param.pattern).to_owned();
                let check = self.check(ty, &what, has_rest && at + 1 == count);
                before.push(self.add(Ir::CheckLocal(var, check), at_span));
            }
            match self.tree.symbol(param.pattern) {
                Some("_") => {}
                Some(name) => {
                    let name = name.to_owned();
                    self.bind(&name, Binding::Local(var));
                }
                None => {
                    let mut value = self.add(Ir::Local(var), at_span);
                    if has_rest && at + 1 == count && self.tree.kind(param.pattern) == Kind::Map {
                        value = self.native("%named", vec![value], at_span);
                    }
                    self.is_param = true;
                    self.destructure(param.pattern, value, &mut bindings);
                    self.is_param = false;
                }
            }
        }
        self.recur = Some(count);
        let mut id = self.body(body, span);
        if let Some(ty) = result {
            id = self.checked_result(id, ty);
        }
        if !bindings.is_empty() {
            id = self.add(Ir::Let(bindings, id), span);
        }
        if !before.is_empty() {
            before.push(id);
            id = self.add(Ir::Do(before), span);
        }
        self.recur = None;
        let vars_used = self.frames.last().map_or(0, |frame| frame.vars);
        Arity { params: vars, rest: has_rest, body: id, proto: 0, vars: vars_used, span }
    }

    /// Returns a function without parameters around a form.
    pub(super) fn thunk(&mut self, node: NodeId) -> Id {
        let span = self.tree.span(node);
        let params = self.tree.with_parts(Kind::Vector, span, &[]);
        self.function(node, None, &[], &[(params, vec![node])])
    }
}
