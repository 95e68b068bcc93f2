//! Lowers forms to [`Ir`]: resolves names, expands macros, removes sugar.

use std::collections::HashMap;
use std::sync::Arc;

use super::ir::{Arena, Function, Id, Ir, Var};
use super::{MAX_CODE_DEPTH, Session};
use crate::builtins::{self, Builtin};
use crate::error::Error;
use crate::machine::program::Check;
use crate::syntax::{Diagnostic, Kind, NodeId, Span, Tree};
use crate::text::nearest;
use crate::value::Value;

pub(super) struct Lower<'s> {
    pub(super) session: &'s mut Session,
    pub(super) tree: Tree,
    pub(super) arena: Arena,
    pub(super) functions: Vec<Function>,
    pub(super) checks: Vec<Arc<Check>>,
    pub(super) errors: Vec<Diagnostic>,
    /// The bindings in scope, the innermost last.
    pub(super) scope: Vec<Bound>,
    pub(super) frames: Vec<Frame>,
    /// The number of arguments of `recur` here; `None` outside a tail position.
    pub(super) recur: Option<usize>,
    pub(super) depth: usize,
    /// The prefix `my.mod/` in a module.
    pub(super) prefix: String,
    /// Aliases of modules and imported names.
    pub(super) aliases: HashMap<String, String>,
    pub(super) imported: HashMap<String, u32>,
    /// The definitions of this text that macros may need, by name.
    pub(super) definitions: HashMap<String, Vec<NodeId>>,
    pub(super) macros: HashMap<String, super::macros::Macro>,
    /// Whether the forms of the prelude are allowed.
    pub(super) is_prelude: bool,
    /// Names of `x#` in the open quasiquotes.
    pub(super) fresh: Vec<HashMap<String, String>>,
    /// The forms that throw because of a mistake, for the checker.
    pub(super) faults: Vec<Id>,
    /// The choices that `match` and `case` were expanded to, for the checker.
    pub(super) matches: Vec<Id>,
    /// The number of undefined names.
    pub(super) unknown: u32,
    /// Whether a pattern belongs to a parameter: unused names in it are no mistake.
    pub(super) is_param: bool,
    /// The number of functions around this form that are lowered in place.
    pub(super) inlined: u32,
}

pub(super) struct Bound {
    pub(super) name: String,
    pub(super) what: Binding,
    /// The index of the frame that it belongs to.
    pub(super) frame: usize,
    /// Its number among the bindings whose use the checker tracks.
    pub(super) note: Option<u32>,
}

#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Binding {
    Local(Var),
    SelfFn,
}

/// A function that is being lowered.
#[derive(Default)]
pub(super) struct Frame {
    pub(super) vars: u32,
    /// The number of nested forms that need registers.
    pub(super) open: u32,
    pub(super) captured: Vec<(usize, Binding)>,
    /// The captured variables, as the creator refers to them.
    pub(super) captures: Vec<Id>,
}

impl Lower<'_> {
    pub(super) fn add(&mut self, ir: Ir, span: Span) -> Id {
        self.arena.add(ir, span)
    }

    pub(super) fn nil(&mut self, span: Span) -> Id {
        self.add(Ir::Const(Value::Nil), span)
    }

    pub(super) fn constant(&mut self, value: impl Into<Value>, span: Span) -> Id {
        self.add(Ir::Const(value.into()), span)
    }

    /// Reports an error and continues.
    pub(super) fn fail(&mut self, node: NodeId, message: impl Into<String>) -> Id {
        let span = self.tree.span(node);
        self.error(span, message);
        self.nil(span)
    }

    pub(super) fn error(&mut self, span: Span, message: impl Into<String>) {
        if self.errors.len() < crate::syntax::MAX_ERRORS {
            self.errors.push(Diagnostic::new(&self.tree.source, span, message));
        }
    }

    /// An error of kind `limit`.
    pub(super) fn limit(&mut self, span: Span, message: impl Into<String>) {
        if self.errors.len() < crate::syntax::MAX_ERRORS {
            let error = Diagnostic::new(&self.tree.source, span, message);
            self.errors.push(Diagnostic { kind: "limit", ..error });
        }
    }

    /// Returns code that throws when it is reached.
    pub(super) fn throws(&mut self, span: Span, kind: &'static str, message: String) -> Id {
        let value = Error::new(kind, message).to_value();
        let value = self.constant(value, span);
        let id = self.add(Ir::Throw(value), span);
        self.faults.push(id);
        id
    }

    /// Lowers a form outside a tail position.
    pub(super) fn expr(&mut self, node: NodeId) -> Id {
        let recur = self.recur.take();
        let id = self.tail(node);
        self.recur = recur;
        id
    }

    pub(super) fn exprs(&mut self, nodes: &[NodeId]) -> Vec<Id> {
        nodes.iter().map(|&node| self.expr(node)).collect()
    }

    /// Lowers a form that may be in a tail position.
    pub(super) fn tail(&mut self, node: NodeId) -> Id {
        if self.depth >= MAX_CODE_DEPTH {
            return self.fail(node, format!("code is nested deeper than {MAX_CODE_DEPTH} levels"));
        }
        self.depth += 1;
        let id = self.form(node);
        self.depth -= 1;
        id
    }

    fn form(&mut self, node: NodeId) -> Id {
        let span = self.tree.span(node);
        match self.tree.kind(node) {
            Kind::Nil => self.nil(span),
            Kind::True => self.constant(true, span),
            Kind::False => self.constant(false, span),
            Kind::Const | Kind::Verbatim | Kind::Keyword => self.quoted(node),
            Kind::Symbol => self.symbol(node),
            Kind::List => self.list(node),
            Kind::Vector | Kind::Map | Kind::Set => self.collection(node),
            Kind::Quote => {
                let inner = self.tree.kids(node)[0];
                self.quoted(inner)
            }
            Kind::Quasiquote => {
                let inner = self.tree.kids(node)[0];
                self.quasiquote(inner)
            }
            Kind::Unquote | Kind::Splice => self.fail(node, "`~` stands outside of a quasiquote"),
            Kind::FnLiteral => self.fn_literal(node),
            Kind::Optional | Kind::Colon | Kind::ColonDash => {
                let text = self.text(node).to_owned();
                self.fail(node, format!("`{text}` stands where a value is expected"))
            }
        }
    }

    /// Returns the text of a form.
    pub(super) fn text(&self, node: NodeId) -> &str {
        let Span { start, end } = self.tree.span(node);
        &self.tree.source.text()[start as usize..end as usize]
    }

    /// Returns the form as data.
    pub(super) fn quoted(&mut self, node: NodeId) -> Id {
        let span = self.tree.span(node);
        match self.tree.value(node) {
            Ok(value) if self.session.macros.is_empty() => self.add(Ir::Const(value), span),
            Ok(value) => self.add(Ir::Const(super::macros::as_read(value)), span),
            Err(deep) => self.fail(node, deep.to_string()),
        }
    }

    /// Returns whether the form evaluates to itself.
    pub(super) fn is_constant(&self, node: NodeId) -> bool {
        let mut open = vec![node];
        while let Some(node) = open.pop() {
            match self.tree.kind(node) {
                Kind::Nil | Kind::True | Kind::False | Kind::Const | Kind::Verbatim | Kind::Keyword => {}
                Kind::Vector | Kind::Map | Kind::Set => open.extend(self.tree.kids(node)),
                _ => return false,
            }
        }
        true
    }

    fn collection(&mut self, node: NodeId) -> Id {
        let span = self.tree.span(node);
        if self.is_constant(node) {
            return self.quoted(node);
        }
        let kids = self.tree.kids(node).to_vec();
        let items = self.exprs(&kids);
        let ir = match self.tree.kind(node) {
            Kind::Vector => Ir::Vector(items),
            Kind::Map => Ir::Map(items),
            _ => Ir::Set(items),
        };
        self.add(ir, span)
    }

    fn fn_literal(&mut self, node: NodeId) -> Id {
        let parts = self.fn_literal_parts(node);
        self.function(node, None, &[], &[parts])
    }

    /// Returns the parameters and the body of `#(…)`.
    pub(super) fn fn_literal_parts(&mut self, node: NodeId) -> (NodeId, Vec<NodeId>) {
        let span = self.tree.span(node);
        let names = self.tree.fn_literal_params(node);
        let params: Vec<_> = names.iter().map(|name| self.tree.push_symbol(span, name)).collect();
        let params = self.tree.with_parts(Kind::Vector, span, &params);
        let body = self.tree.kids(node).to_vec();
        (params, vec![self.tree.with_parts(Kind::List, span, &body)])
    }

    fn symbol(&mut self, node: NodeId) -> Id {
        let span = self.tree.span(node);
        let name = self.tree.symbol(node).unwrap_or_default().to_owned();
        match self.resolve(&name) {
            Resolved::Bound(frame, binding) => {
                self.mark_used(&name);
                self.read(frame, binding, span)
            }
            Resolved::Global(global) => self.add(Ir::Global(global), span),
            Resolved::Builtin(builtin) => self.constant(builtin.value(), span),
            Resolved::Unknown => {
                let message = self.unknown(&name);
                self.throws(span, "undefined", message)
            }
        }
    }

    pub(super) fn unknown(&mut self, name: &str) -> String {
        /// The maximum number of suggestions, because finding one takes longer than all other work.
        const SUGGESTIONS: u32 = 200;
        if super::special::NAMES.contains(&name) {
            return format!("`{name}` is no value: it stands first in its form, as in ({name} …)");
        }
        self.unknown += 1;
        if self.unknown > SUGGESTIONS {
            return format!("`{name}` is not defined");
        }
        let mut known: Vec<&str> = self.scope.iter().map(|bound| bound.name.as_str()).collect();
        known.extend(self.session.by_name.keys().map(String::as_str));
        if !self.is_prelude {
            builtins::names().for_each(|name| known.push(name));
        }
        known.extend(super::special::NAMES);
        // Internal helper names are not suggested.
        let known = known.into_iter().filter(|known| !known.starts_with(['%', '\0']));
        let near = nearest(name, known).map(str::to_owned);
        match near {
            Some(near) => format!("`{name}` is not defined; did you mean `{near}`?"),
            None => format!("`{name}` is not defined"),
        }
    }

    pub(super) fn resolve(&self, name: &str) -> Resolved {
        let local = if name == "%" { "%1" } else { name };
        if let Some(bound) = self.scope.iter().rev().find(|bound| bound.name == local) {
            return Resolved::Bound(bound.frame, bound.what);
        }
        if let Some(full) = name.strip_prefix(super::macros::OWN) {
            let global = self.session.by_name.get(full);
            return global.map_or(Resolved::Unknown, |&global| Resolved::Global(global));
        }
        if !self.prefix.is_empty()
            && let Some(&global) = self.session.by_name.get(&format!("{}{name}", self.prefix))
        {
            return Resolved::Global(global);
        }
        if let Some(&global) = self.imported.get(name) {
            return Resolved::Global(global);
        }
        if let Some((alias, rest)) = name.split_once('/')
            && !alias.is_empty()
            && let Some(module) = self.aliases.get(alias)
        {
            return match self.session.export(module, rest) {
                Some(global) => Resolved::Global(global),
                None => Resolved::Unknown,
            };
        }
        if self.prefix.is_empty()
            && let Some(&global) = self.session.by_name.get(name)
        {
            return Resolved::Global(global);
        }
        match self.session.builtin(name) {
            Some(builtin) => Resolved::Builtin(builtin),
            None => Resolved::Unknown,
        }
    }

    /// Returns whether a local or global name hides the special form of that name.
    pub(super) fn is_shadowed(&self, name: &str) -> bool {
        matches!(self.resolve(name), Resolved::Bound(..) | Resolved::Global(_))
    }

    /// Returns a binding as the function that is being lowered accesses it.
    pub(super) fn read(&mut self, frame: usize, binding: Binding, span: Span) -> Id {
        let current = self.frames.len() - 1;
        self.read_from(frame, binding, current, span)
    }

    fn read_from(&mut self, frame: usize, binding: Binding, current: usize, span: Span) -> Id {
        if frame == current {
            let ir = match binding {
                Binding::Local(var) => Ir::Local(var),
                Binding::SelfFn => Ir::SelfFn,
            };
            return self.add(ir, span);
        }
        let captured = &self.frames[current].captured;
        let at = captured.iter().position(|&known| known == (frame, binding)).unwrap_or_else(|| {
            let id = self.read_from(frame, binding, current - 1, span);
            let frame_of = &mut self.frames[current];
            frame_of.captured.push((frame, binding));
            frame_of.captures.push(id);
            frame_of.captures.len() - 1
        });
        self.add(Ir::Up(at as u16), span)
    }

    pub(super) fn new_var(&mut self) -> Var {
        let frame = self.frames.last_mut().expect("there is always a function");
        frame.vars += 1;
        frame.vars - 1
    }

    pub(super) fn bind(&mut self, name: &str, what: Binding) {
        let frame = self.frames.len() - 1;
        self.scope.push(Bound { name: name.to_owned(), what, frame, note: None });
    }

    /// Records that the last binding came from this form. The checker reports it if it is unused.
    pub(super) fn note(&mut self, node: NodeId) {
        let Some(checking) = &mut self.session.checking else { return };
        let (Some(bound), false) = (self.scope.last_mut(), self.is_param) else { return };
        let span = self.tree.span(node);
        // The code of a macro has the place of the macro call.
        let Span { start, end } = span;
        if self.tree.source.text().get(start as usize..end as usize) == Some(&*bound.name) {
            bound.note = checking.bound(&bound.name, span);
        }
    }

    fn mark_used(&mut self, name: &str) {
        let Some(checking) = &mut self.session.checking else { return };
        let local = if name == "%" { "%1" } else { name };
        let bound = self.scope.iter().rev().find(|bound| bound.name == local);
        if let Some(note) = bound.and_then(|bound| bound.note) {
            checking.used(note);
        }
    }

    /// Returns a new local of this name.
    pub(super) fn bind_var(&mut self, name: &str) -> Var {
        let var = self.new_var();
        self.bind(name, Binding::Local(var));
        var
    }

    /// Lowers forms in sequence; the last is the value.
    pub(super) fn body(&mut self, nodes: &[NodeId], span: Span) -> Id {
        match nodes {
            [] => self.nil(span),
            [one] => self.tail(*one),
            [first @ .., last] => {
                let mut ids = self.exprs(first);
                ids.push(self.tail(*last));
                self.add(Ir::Do(ids), span)
            }
        }
    }

    fn list(&mut self, node: NodeId) -> Id {
        let span = self.tree.span(node);
        let kids = self.tree.kids(node).to_vec();
        let Some((&head, args)) = kids.split_first() else {
            return self.quoted(node); // () is the empty list
        };
        if let Some(name) = self.tree.symbol(head) {
            let name = name.to_owned();
            if !self.is_shadowed(&name)
                && let Some(id) = self.special(&name, node, args)
            {
                return id;
            }
            if let Some(expanded) = self.expand(&name, node, args) {
                return match expanded {
                    Ok(form) => self.tail(form),
                    Err(error) => self.not_expanded(node, error),
                };
            }
            return self.call_named(&name, node, head, args);
        }
        if let (Kind::Keyword, [map]) = (self.tree.kind(head), args) {
            let key = Value::Keyword(self.tree.keyword_value(self.tree.node(head).a));
            let map = self.expr(*map);
            return self.add(Ir::Key(key, map), span);
        }
        let function = self.expr(head);
        let args = self.exprs(args);
        self.add(Ir::Call(function, args), span)
    }

    fn call_named(&mut self, name: &str, node: NodeId, head: NodeId, args: &[NodeId]) -> Id {
        match self.resolve(name) {
            Resolved::Builtin(Builtin::Native(native)) => self.call_native(name, native, node, args),
            Resolved::Builtin(Builtin::Code(_)) if name == "apply" && args.len() >= 2 => {
                self.call_apply(node, args)
            }
            Resolved::Builtin(Builtin::Code(code)) => match self.inlined(name, node, args) {
                Some(id) => id,
                None => self.call_prelude(name, code, node, args),
            },
            _ => {
                let span = self.tree.span(node);
                let function = self.symbol(head);
                let args = self.exprs(args);
                self.add(Ir::Call(function, args), span)
            }
        }
    }

    // Each kind of call is out of line, so that calls within calls need the stack of their own kind alone.
    #[inline(never)]
    fn call_native(&mut self, name: &str, native: u16, node: NodeId, args: &[NodeId]) -> Id {
        let span = self.tree.span(node);
        let (min, max) = builtins::native(native).arity();
        if args.len() < min || args.len() > max {
            let args = self.exprs(args);
            let expects = builtins::arity_text(min, max);
            let thrown = self.throws(span, "arity", wrong_arity(name, &expects, args.len()));
            return self.add(Ir::Do(args.into_iter().chain([thrown]).collect()), span);
        }
        let ids = self.exprs(args);
        if let ("+" | "*" | "-", [first, rest @ ..]) = (builtins::native(native).name, &ids[..])
            && (2..=16).contains(&rest.len())
        {
            // Operands are combined two at a time, as the machine does it.
            let fold = |sum, &x: &Id| self.add(Ir::Native(native, vec![sum, x]), span);
            return rest.iter().fold(*first, fold);
        }
        self.add(Ir::Native(native, ids), span)
    }

    #[inline(never)]
    fn call_apply(&mut self, node: NodeId, args: &[NodeId]) -> Id {
        let span = self.tree.span(node);
        let mut ids = self.exprs(args);
        let function = ids.remove(0);
        let list = ids.pop().unwrap_or(function);
        let list = if ids.is_empty() {
            list
        } else {
            let first = self.add(Ir::Vector(ids), span);
            self.native("into", vec![first, list], span)
        };
        self.add(Ir::Apply(function, list), span)
    }

    #[inline(never)]
    fn call_prelude(&mut self, name: &str, code: u32, node: NodeId, args: &[NodeId]) -> Id {
        let span = self.tree.span(node);
        let ids = self.exprs(args);
        match self.session.select(code, ids.len()) {
            Some(found) if !self.session.has_rest(found) => self.add(Ir::CallCode(found, ids), span),
            Some(_) => {
                let function = self.constant(Value::Code(crate::Code(code)), span);
                self.add(Ir::Call(function, ids), span)
            }
            None => {
                let expects = self.session.arity_text(code);
                let thrown = self.throws(span, "arity", wrong_arity(name, &expects, ids.len()));
                self.add(Ir::Do(ids.into_iter().chain([thrown]).collect()), span)
            }
        }
    }
}

pub(crate) fn wrong_arity(name: &str, expects: &str, got: usize) -> String {
    let arguments = if expects == "1" { "argument" } else { "arguments" };
    format!("`{name}` takes {expects} {arguments}, got {got}")
}

/// The meaning of a name.
pub(super) enum Resolved {
    Bound(usize, Binding),
    Global(u32),
    Builtin(Builtin),
    Unknown,
}
