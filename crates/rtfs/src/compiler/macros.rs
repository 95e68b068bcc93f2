//! Macros: functions of a program that run while it is compiled.

use std::sync::Arc;

use super::ir::Id;
use super::lower::Lower;
use super::{Session, Unit};
use crate::error::Error;
use crate::limits::Limits;
use crate::machine::program::Program;
use crate::machine::{Outcome, Run};
use crate::sequence::List;
use crate::syntax::{Kind, NodeId, Span, Tree};
use crate::value::Value;

/// A macro, with the definitions of the program that it needs.
#[derive(Clone)]
pub(super) struct Macro {
    program: Arc<Program>,
    globals: Vec<Option<Value>>,
    function: Value,
}

/// The prefix of a name of its own module that a macro writes. The name therefore has the same meaning
/// at every use of the macro.
pub(super) const OWN: char = '\0';

/// The maximum nesting of expansions.
const MAX_EXPANSIONS: usize = 200;

/// The maximum number of steps of one expansion.
const EXPANSION_STEPS: u64 = 1_000_000;

/// The steps that an expansion costs besides those of its macro, and that each written node costs: about
/// the time to compile them.
const STEPS_OF_AN_EXPANSION: u64 = 50;
const STEPS_OF_A_NODE: u64 = 20;

/// The reason why a form was not expanded.
pub(super) enum ExpandError {
    /// The macro failed.
    Failed(String),
    /// A limit is reached, and nothing more is expanded.
    Limit(String),
    /// Expansion ended earlier.
    Ended,
}

/// Returns the limits of an expansion with this many steps left.
fn limits(left: u64) -> Limits {
    let steps = left.min(EXPANSION_STEPS);
    Limits { steps, memory: 16 << 20, calls: 0, ..Limits::default() }
}

impl ExpandError {
    /// Converts the error of a run.
    fn of(error: &Error, message: String) -> Self {
        if error.kind == "limit" { Self::Limit(message) } else { Self::Failed(message) }
    }

    fn calls() -> Self {
        Self::Failed("a macro cannot call capabilities".to_owned())
    }
}

impl Lower<'_> {
    /// `(defmacro name "doc" [..] …)`
    pub(super) fn defmacro(&mut self, node: NodeId, args: &[NodeId]) -> Id {
        let span = self.tree.span(node);
        let (name, rest) = match args {
            [name, doc, rest @ ..] if self.tree.string(*doc).is_some() && !rest.is_empty() => {
                (*name, rest)
            }
            [name, rest @ ..] => (*name, rest),
            [] => return self.fail(node, "`defmacro` takes a name, parameters and a body"),
        };
        let Some(text) = self.tree.symbol(name).map(str::to_owned) else {
            return self.fail(name, "a name is expected after `defmacro`");
        };
        if !self.at_top() {
            return self.fail(node, "`defmacro` stands inside of a function");
        }
        let head = self.tree.push_symbol(span, "fn");
        let function: Vec<_> = [head].into_iter().chain(rest.iter().copied()).collect();
        let function = self.tree.with_parts(Kind::List, span, &function);
        let mut nodes = self.needed(function);
        nodes.push(function);
        match self.compile_apart(&nodes) {
            Ok(made) => {
                match self.prefix.as_str() {
                    "" => self.macros.insert(text.clone(), made),
                    prefix => self.session.macros.insert(format!("{prefix}{text}"), made),
                };
            }
            Err(Some(error)) => {
                self.not_expanded(node, error);
            }
            Err(None) => {} // reported
        }
        self.constant(Value::Symbol(crate::Symbol::new(text)), span)
    }

    /// Returns the definitions of this text that a form needs, in their order.
    fn needed(&self, form: NodeId) -> Vec<NodeId> {
        let mut found = std::collections::BTreeSet::new();
        let mut open = vec![form];
        while let Some(node) = open.pop() {
            if let Some(name) = self.tree.symbol(node)
                && let Some(definitions) = self.definitions.get(name)
            {
                for &definition in definitions {
                    // Macros are already known, and a recursive one needs no further definitions.
                    let head = self.tree.kids(definition).first();
                    if head.is_some_and(|&head| self.tree.is_symbol(head, "defmacro")) {
                        continue;
                    }
                    if found.insert(definition) {
                        open.extend(self.tree.kids(definition));
                    }
                }
            }
            open.extend(self.tree.kids(node));
        }
        found.into_iter().collect()
    }

    /// Compiles and runs forms of this text in a separate program; the last is the function.
    fn compile_apart(&mut self, nodes: &[NodeId]) -> Result<Macro, Option<ExpandError>> {
        let mut session = Session::new(None, self.session.options.clone());
        session.fresh = self.session.fresh;
        session.macro_steps = self.session.macro_steps;
        session.types = self.session.types.clone();
        session.home = self.own_names();
        session.macros = std::mem::take(&mut self.session.macros);
        let empty = Tree::empty(self.tree.source.clone());
        let tree = std::mem::replace(&mut self.tree, empty);
        let macros = std::mem::take(&mut self.macros);
        let mut unit = Unit::new(&mut session, tree);
        unit.lower.macros = macros;
        unit.lower.prefix.clone_from(&self.prefix);
        let compiled = unit.compile(nodes);
        let (tree, macros, errors) = unit.take_back();
        self.tree = tree;
        self.macros = macros;
        self.session.fresh = session.fresh;
        self.session.macro_steps = session.macro_steps;
        self.session.macros = std::mem::take(&mut session.macros);
        if !errors.is_empty() {
            self.errors.extend(errors);
            return Err(None);
        }
        let program = Arc::new(session.finish(compiled));
        let Some(left) = self.session.macro_steps else { return Err(None) };
        let limits = limits(left);
        let mut run = Run::new(program.clone(), limits, &[]);
        let outcome = run.finish();
        self.spend(limits.steps.saturating_sub(run.steps_left()));
        match outcome {
            Outcome::Done(function) => Ok(Macro { program, globals: run.into_globals(), function }),
            Outcome::Failed(error) => Err(Some(ExpandError::of(&error, error.to_string()))),
            _ => Err(Some(ExpandError::calls())),
        }
    }

    /// Returns the names of this text's module.
    fn own_names(&self) -> std::collections::HashSet<String> {
        if self.prefix.is_empty() {
            return std::collections::HashSet::new();
        }
        let all = self.session.by_name.keys().chain(self.session.macros.keys());
        all.filter_map(|name| name.strip_prefix(&self.prefix).map(str::to_owned)).collect()
    }

    /// Returns the macro with this name, of this text or of a module.
    fn macro_named(&self, name: &str) -> Option<&Macro> {
        if let Some(full) = name.strip_prefix(OWN) {
            return self.session.macros.get(full);
        }
        if !self.prefix.is_empty()
            && let Some(known) = self.session.macros.get(&format!("{}{name}", self.prefix))
        {
            return Some(known);
        }
        if let Some((alias, rest)) = name.split_once('/')
            && let Some(module) = self.aliases.get(alias)
        {
            return self.session.exported_macro(module, rest);
        }
        self.macros.get(name).or_else(|| self.session.macros.get(name))
    }

    /// Expands `(name args…)` once, if the name belongs to a macro.
    pub(super) fn expand(
        &mut self,
        name: &str,
        node: NodeId,
        args: &[NodeId],
    ) -> Option<Result<NodeId, ExpandError>> {
        let known = self.macro_named(name)?;
        let (program, globals, function) =
            (known.program.clone(), known.globals.clone(), known.function.clone());
        let span = self.tree.span(node);
        Some(self.expansion(program, globals, function, args, span))
    }

    fn expansion(
        &mut self,
        program: Arc<Program>,
        globals: Vec<Option<Value>>,
        function: Value,
        args: &[NodeId],
        span: Span,
    ) -> Result<NodeId, ExpandError> {
        let Some(left) = self.session.macro_steps else { return Err(ExpandError::Ended) };
        if left == 0 {
            let most = self.session.options.macro_steps;
            return Err(ExpandError::Limit(format!("expanding macros took more than {most} steps")));
        }
        if self.depth >= super::MAX_CODE_DEPTH - MAX_EXPANSIONS {
            return Err(ExpandError::Limit("this macro expands too deep".to_owned()));
        }
        let args = args.iter().map(|&arg| self.tree.value(arg)).collect::<Result<Vec<_>, _>>();
        let args = args.map_err(|deep| ExpandError::Failed(deep.to_string()))?;
        let limits = limits(left);
        let mut run = Run::of_function(program, limits, globals, function, args);
        let outcome = run.finish();
        self.spend(limits.steps.saturating_sub(run.steps_left()) + STEPS_OF_AN_EXPANSION);
        match outcome {
            Outcome::Done(form) => {
                let form = as_code(form);
                let before = self.tree.size();
                let added = self.tree.add_value(span, &form);
                self.spend((self.tree.size() - before) as u64 * STEPS_OF_A_NODE);
                added.map_err(|deep| ExpandError::Failed(deep.to_owned()))
            }
            Outcome::Failed(error) => {
                let message = format!("expanding this failed: {error}");
                Err(ExpandError::of(&error, message))
            }
            _ => Err(ExpandError::calls()),
        }
    }

    fn spend(&mut self, steps: u64) {
        self.session.macro_steps = self.session.macro_steps.map(|left| left.saturating_sub(steps));
    }

    /// Reports that a form could not be expanded.
    pub(super) fn not_expanded(&mut self, node: NodeId, error: ExpandError) -> Id {
        let span = self.tree.span(node);
        match error {
            ExpandError::Failed(message) => self.error(span, message),
            ExpandError::Limit(message) => {
                self.session.macro_steps = None;
                self.limit(span, message);
            }
            ExpandError::Ended => {}
        }
        self.nil(span)
    }

    /// `(macroexpand 'form)`
    pub(super) fn macroexpand(&mut self, node: NodeId, args: &[NodeId]) -> Id {
        let [form] = args else { return self.fail(node, "`macroexpand` takes a quoted form") };
        let mut form = match self.tree.kind(*form) {
            Kind::Quote => self.tree.kids(*form)[0],
            Kind::List
                if self
                    .tree
                    .kids(*form)
                    .first()
                    .is_some_and(|&head| self.tree.is_symbol(head, "quote")) =>
            {
                match self.tree.kids(*form) {
                    [_, form] => *form,
                    _ => return self.fail(*form, "`quote` takes one form"),
                }
            }
            _ => return self.fail(*form, "`macroexpand` takes a quoted form"),
        };
        for _ in 0..MAX_EXPANSIONS {
            let Some((&head, rest)) = self.tree.kids(form).split_first() else { break };
            let (Kind::List, Some(name)) = (self.tree.kind(form), self.tree.symbol(head)) else { break };
            let (name, rest) = (name.to_owned(), rest.to_vec());
            match self.expand(&name, form, &rest) {
                None => break,
                Some(Ok(next)) => form = next,
                Some(Err(error)) => return self.not_expanded(node, error),
            }
        }
        self.quoted(form)
    }
}

/// Returns a quoted form whose names are as a program could contain them.
pub(super) fn as_read(form: Value) -> Value {
    let all = |items: &[Value]| items.iter().cloned().map(as_read).collect::<Vec<_>>();
    match &form {
        Value::Symbol(name) if name.name().starts_with(OWN) => {
            Value::Symbol(crate::Symbol::new(name.name().trim_start_matches(OWN)))
        }
        // The depth is unchanged.
        Value::List(list) => List::new(all(list.items())).map_or(form, Value::List),
        Value::Vector(vector) => Value::vector(all(vector.items())).unwrap_or(form),
        _ => form,
    }
}

/// Converts a vector that begins with the name of a special form to a list: `cons`, `map` and similar
/// functions return vectors.
fn as_code(form: Value) -> Value {
    match form {
        Value::Vector(vector) => match vector.items().first() {
            Some(Value::Symbol(name)) if super::special::NAMES.contains(&name.name()) => {
                Value::List(vector.into_list())
            }
            _ => Value::Vector(vector),
        },
        other => other,
    }
}
