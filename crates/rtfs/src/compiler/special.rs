//! The special forms: definitions, functions, bindings, errors, calls.

use super::ir::{Arity, Function, Id, Ir, Loop, Try};
use super::lower::{Binding, Frame, Lower};
use crate::builtins;
use crate::machine::op::{ForkKind, HostOp};
use crate::syntax::{Kind, NodeId, Span};
use crate::value::Value;

/// What is said when a name is misspelt, and no name of the standard library.
pub(crate) const NAMES: &[&str] = &[
    "def", "defn", "defmacro", "defstruct", "deftype-alias", "fn", "let", "do", "if", "if-not", "if-let", "when",
    "when-not", "when-let", "unless", "cond", "case", "and", "or", "loop", "recur", "for", "doseq", "dotimes",
    "match", "->", "->>", "as->", "some->", "some->>", "cond->", "cond->>", "try", "catch", "finally", "throw",
    "quote", "macroexpand", "module", "import", "call", "parallel", "race", "settle", "step", "is?", "check",
];

impl Lower<'_> {
    /// Lowers `(name args…)` if the name is that of a special form.
    pub(super) fn special(&mut self, name: &str, node: NodeId, args: &[NodeId]) -> Option<Id> {
        let is_loop = matches!(name, "loop" | "for" | "doseq" | "dotimes");
        if !is_loop && !matches!(name, "let" | "let*" | "try" | "match" | "case" | "if-let" | "when-let" | "some->") {
            return self.special_form(name, node, args);
        }
        // These need registers, of which a function has so many: then go on in another one.
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

    fn special_form(&mut self, name: &str, node: NodeId, args: &[NodeId]) -> Option<Id> {
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

    fn at_top(&self) -> bool {
        self.frames.len() == 1
    }

    /// `(def name :- :int expr)`
    fn def(&mut self, node: NodeId, args: &[NodeId]) -> Id {
        let span = self.tree.span(node);
        if !self.at_top() {
            return self.fail(node, "`def` stands inside of a function; `let` gives a name to a value there");
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
            // A function knows itself by its name in messages.
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

    fn is_fn(&self, node: NodeId) -> bool {
        let head = self.tree.kids(node).first();
        self.tree.kind(node) == Kind::FnLiteral
            || self.tree.kind(node) == Kind::List && head.is_some_and(|&head| self.tree.is_symbol(head, "fn"))
    }

    /// `(defn name "doc" [a :- :int, b] :- :int body…)`
    fn defn(&mut self, node: NodeId, args: &[NodeId]) -> Id {
        let span = self.tree.span(node);
        if !self.at_top() {
            return self.fail(node, "`defn` stands inside of a function; `let` gives a name to a `fn` there");
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

    fn fn_form(&mut self, node: NodeId, args: &[NodeId]) -> Id {
        let (name, rest) = match args {
            [name, rest @ ..] if self.tree.kind(*name) == Kind::Symbol => {
                (self.tree.symbol(*name).map(str::to_owned), rest)
            }
            _ => (None, args),
        };
        self.clauses(node, name.as_deref(), &[], rest)
    }

    /// The parameters and bodies of a function: `[x] …` or `([x] …) ([x y] …)`.
    pub(super) fn clauses(&mut self, node: NodeId, name: Option<&str>, also: &[String], rest: &[NodeId]) -> Id {
        let several = !rest.is_empty() && rest.iter().all(|&clause| self.tree.kind(clause) == Kind::List);
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

    /// A function; `also` are further names that it knows itself by.
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
            if arities.iter().any(|other| other.params.len() == n && other.rest == rest || other.rest && rest) {
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

    fn arity(&mut self, params: NodeId, body: &[NodeId]) -> Arity {
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
                    let value = self.add(Ir::Local(var), at_span);
                    self.destructure(param.pattern, value, &mut bindings);
                }
            }
        }
        self.recur = Some(count);
        let mut id = self.body(body, span);
        if let Some(ty) = result {
            id = self.checked(id, ty, "result", false);
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

    /// `[pattern expr …]`, for `let` and its kin.
    fn let_form(&mut self, node: NodeId, args: &[NodeId]) -> Id {
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

    /// Whether the function that is being lowered has many locals already.
    fn is_crowded(&self) -> bool {
        self.frames.last().is_some_and(|frame| frame.vars > 150 || frame.open > 40)
    }

    fn mentions_recur(&self, node: NodeId) -> bool {
        let mut open = vec![node];
        while let Some(node) = open.pop() {
            if self.tree.is_symbol(node, "recur") {
                return true;
            }
            open.extend(self.tree.kids(node));
        }
        false
    }

    /// Many bindings as a few, and the others in a `let` inside.
    fn split_bindings(&mut self, node: NodeId, bindings: NodeId, body: &[NodeId]) -> Option<NodeId> {
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

    fn if_form(&mut self, node: NodeId, args: &[NodeId], not: bool) -> Id {
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

    fn when(&mut self, name: &str, node: NodeId, args: &[NodeId]) -> Id {
        let span = self.tree.span(node);
        let [test, body @ ..] = args else {
            return self.fail(node, format!("`{name}` takes a condition and a body"));
        };
        let test = self.expr(*test);
        let body = self.body(body, span);
        let nil = self.nil(span);
        self.add(if name == "when" { Ir::If(test, body, nil) } else { Ir::If(test, nil, body) }, span)
    }

    /// `(if-let [pattern expr] yes no?)`: what is matched is the value as a whole.
    fn if_let(&mut self, name: &str, node: NodeId, args: &[NodeId]) -> Id {
        let span = self.tree.span(node);
        let is_if = name.starts_with("if");
        let (bindings, body) = match args {
            [bindings, body @ ..] if !is_if || (1..=2).contains(&body.len()) => (*bindings, body),
            _ => return self.fail(node, format!("`{name}` takes one binding and what to do: ({name} [x expr] …)")),
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

    fn and_or(&mut self, name: &str, args: &[NodeId], span: Span) -> Id {
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

    fn loop_form(&mut self, node: NodeId, args: &[NodeId]) -> Id {
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
                Some(name) => self.bind(&name, Binding::Local(var)),
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

    fn recur_form(&mut self, node: NodeId, args: &[NodeId]) -> Id {
        let span = self.tree.span(node);
        match self.recur {
            None => self.fail(node, "`recur` stands where more is to be done after it; it can only be the last thing in its `loop` or function"),
            Some(n) if n != args.len() => {
                let message = format!("`recur` needs {n} values here, one for each name, got {}", args.len());
                self.fail(node, message)
            }
            Some(_) => {
                let args = self.exprs(args);
                self.add(Ir::Recur(args), span)
            }
        }
    }

    fn try_form(&mut self, node: NodeId, args: &[NodeId]) -> Id {
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
                _ => return self.fail(clause, "after the first `catch`, only `catch` and one `finally` may follow"),
            }
        }
        let handler = (!catches.is_empty()).then(|| self.catches(&catches, error, span));
        self.recur = recur;
        self.add(Ir::Try(Box::new(Try { body, error, handler, cleanup })), span)
    }

    /// `(catch :kind e body…)`, `(catch [:a :b] e body…)`, `(catch _ e body…)`, `(catch e body…)`
    fn catches(&mut self, clauses: &[(NodeId, Vec<NodeId>)], error: super::ir::Var, span: Span) -> Id {
        let mut handler = self.add(Ir::Rethrow(error), span);
        for (clause, kids) in clauses.iter().rev() {
            let at = self.tree.span(*clause);
            let is_symbol = |node: NodeId| self.tree.kind(node) == Kind::Symbol;
            let (selector, name, body) = match kids[1..] {
                [any, name, ref body @ ..] if self.tree.is_symbol(any, "_") && is_symbol(name) && !body.is_empty() => {
                    (None, name, body)
                }
                [name, ref body @ ..] if is_symbol(name) => (None, name, body),
                [selector, name, ref body @ ..] if is_symbol(name) => (Some(selector), name, body),
                _ => return self.fail(*clause, "a catch is (catch :kind e body…), or (catch e body…) for all kinds"),
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
            let kinds = if self.tree.kind(selector) == Kind::Vector { self.tree.forms(selector) } else { vec![selector] };
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

    /// A function of the standard library that is written in Rust.
    pub(super) fn native(&mut self, name: &str, args: Vec<Id>, span: Span) -> Id {
        match builtins::native_named(name) {
            Some(native) => self.add(Ir::Native(native, args), span),
            None => {
                self.error(span, format!("`{name}` is missing from the standard library"));
                self.nil(span)
            }
        }
    }

    pub(super) fn host(&mut self, op: HostOp, node: NodeId, args: &[NodeId], min: usize, max: usize) -> Id {
        let span = self.tree.span(node);
        if args.len() < min || args.len() > max.min(200) {
            return self.fail(node, "a call takes the id of a capability and its input: (call :id {…})");
        }
        let args = self.exprs(args);
        self.add(Ir::Host(op, args), span)
    }

    /// A function without parameters around a form.
    fn thunk(&mut self, node: NodeId) -> Id {
        let span = self.tree.span(node);
        let params = self.tree.with_parts(Kind::Vector, span, &[]);
        self.function(node, None, &[], &[(params, vec![node])])
    }

    fn fork(&mut self, kind: ForkKind, args: &[NodeId], span: Span) -> Id {
        let thunks: Vec<_> = args.iter().map(|&arg| self.thunk(arg)).collect();
        self.add(Ir::Fork(kind, thunks), span)
    }

    /// `(parallel a b)`, or `(parallel {:a (f) :b (g)})` for a map.
    fn parallel(&mut self, node: NodeId, args: &[NodeId]) -> Id {
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
        self.native("zipmap", vec![keys, values], span)
    }

    /// `(step "name" body…)`
    fn step(&mut self, node: NodeId, args: &[NodeId]) -> Id {
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
        let body = self.add(Ir::Try(Box::new(Try { body, error, handler: None, cleanup: Some(end) })), span);
        self.add(Ir::Do(vec![begin, body]), span)
    }

    /// What the prelude is written with.
    fn internal(&mut self, name: &str, node: NodeId, args: &[NodeId]) -> Option<Id> {
        let span = self.tree.span(node);
        let host = |op| Some(op);
        let op = match name {
            "%iter" => return Some(self.iter_form(args, span)),
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
            "%log" => host(HostOp::Log),
            _ => None,
        }?;
        Some(self.host(op, node, args, 0, usize::MAX))
    }
}
