//! Calls: of functions, natives and collections.

use super::clash::clashes;
use super::ty::{Arity, Detail, Function, Place, Ty};
use super::walk::Walker;
use crate::builtins::{self, arity_text};
use crate::compiler::ir::{Id, Ir};
use crate::compiler::wrong_arity;
use crate::kinds::Kinds;
use crate::syntax::Span;
use crate::value::Value;

/// The arguments of a call with their places, and their forms, if they are in the program's text.
pub(super) struct Arguments<'g> {
    pub(super) types: &'g [Ty],
    pub(super) forms: &'g [Id],
    /// The whole call.
    pub(super) span: Span,
}

impl Walker<'_> {
    pub(super) fn call(&mut self, function: Id, args: &[Id], id: Id) -> Ty {
        let called = self.walk(function);
        let types = self.walk_all(args);
        let span = self.span(id);
        if self.callable(&called, self.span(function)) {
            self.apply(&called, &Arguments { types: &types, forms: args, span })
        } else {
            Ty::ANY
        }
    }

    /// Checks the call of a function of the standard library that is written in RTFS, or of the
    /// definitions of a module.
    pub(super) fn call_code(&mut self, code: u32, args: &[Id], id: Id) -> Ty {
        let types = self.walk_all(args);
        match self.view.session.name_of_code(code) {
            Some(name) => self.standard(name, args, &types, self.span(id)),
            None => Ty::ANY,
        }
    }

    /// Reports a value that cannot be called.
    pub(super) fn callable(&mut self, called: &Ty, span: Span) -> bool {
        let can = called.is_never() || called.kinds.meets(Kinds::CALLABLE);
        if !can {
            let message =
                format!("{} cannot be called: a function is expected first in a form", called.shown());
            self.error("type", span, message);
        }
        can
    }

    /// Returns the result of a call, after reporting its mistakes.
    pub(super) fn apply(&mut self, called: &Ty, args: &Arguments<'_>) -> Ty {
        if let Some(function) = called.as_function() {
            return self.apply_function(function, args);
        }
        let count = args.types.len();
        match called.value() {
            Some(Value::Native(native)) => {
                let entry = builtins::native(native.0);
                let (min, max) = entry.arity();
                if count < min || count > max {
                    self.wrong_arity(entry.name, &arity_text(min, max), args);
                    return Ty::ANY;
                }
                self.standard(entry.name, args.forms, args.types, args.span)
            }
            Some(Value::Code(code)) => {
                let session = self.view.session;
                let Some(name) = session.name_of_code(code.0) else { return Ty::ANY };
                if session.select(code.0, count).is_none() {
                    self.wrong_arity(name, &session.arity_text(code.0), args);
                    return Ty::ANY;
                }
                self.standard(name, args.forms, args.types, args.span)
            }
            Some(head) => self.data_call(called, &head.clone(), args),
            None => {
                if called.kinds.is_within(Kinds::CALLABLE.without(Kinds::FUNCTION))
                    && !(1..=2).contains(&count)
                {
                    self.wrong_arity(&called.kinds.to_string(), "1 or 2", args);
                }
                Ty::ANY
            }
        }
    }

    /// Checks the call of a keyword or a collection with a key.
    fn data_call(&mut self, called: &Ty, head: &Value, args: &Arguments<'_>) -> Ty {
        let shown = called.shown();
        let (key, default) = match args.types {
            [key] => (key, None),
            [key, default] => (key, Some(default)),
            types => {
                let message = format!("{shown} takes 1 or 2 arguments, got {}", types.len());
                self.error("arity", args.span, message);
                return Ty::ANY;
            }
        };
        if matches!(head, Value::Vector(_) | Value::List(_))
            && default.is_none()
            && !key.kinds.meets(Kinds::INT)
            && !key.is_never()
        {
            let message = format!("a vector is called with an index, got {}", key.shown());
            self.error("type", args.span, message);
        }
        let found = match head {
            Value::Keyword(_) | Value::Symbol(_) => self.keyed(key, head, args.span),
            _ => Ty::ANY,
        };
        default.map_or(found, |_| Ty::ANY)
    }

    fn wrong_arity(&mut self, name: &str, expects: &str, args: &Arguments<'_>) {
        let message = wrong_arity(name, expects, args.types.len());
        let message = builtins::as_written(message, self.text(args.span), false);
        self.error("arity", args.span, message);
    }

    fn apply_function(&mut self, function: &Function, args: &Arguments<'_>) -> Ty {
        let count = args.types.len();
        let fits = |arity: &&Arity| arity.fixed == count && !arity.rest;
        let takes = |arity: &&Arity| arity.rest && count >= arity.fixed;
        let arities = &function.arities;
        let Some(arity) = arities.iter().find(fits).or(arities.iter().find(takes)) else {
            let name = if function.name.is_empty() { "this function" } else { &function.name };
            let expects = builtins::arities_text(arities.iter().map(|arity| (arity.fixed, arity.rest)));
            let message = wrong_arity(name, &expects, count);
            let message = if function.name.is_empty() { message.replace('`', "") } else { message };
            self.error("arity", args.span, message);
            return Ty::ANY;
        };
        let name = if function.name.is_empty() {
            "this function".to_owned()
        } else {
            format!("`{}`", function.name)
        };
        for (at, (need, ty)) in arity.needs.iter().zip(args.types).enumerate() {
            let span = args.forms.get(at).map_or(args.span, |&form| self.span(form));
            if ty.is_never() || need.ty.is_never() {
                continue;
            }
            if let Some(check) = &need.declared {
                let types = self.view.session.types();
                let found = clashes(ty, &check.ty, types, Place::Program, &need.name);
                if !found.is_empty() {
                    self.error("type", span, format!("{name}: {}", found.join("; ")));
                }
            } else if !ty.kinds.meets(need.ty.kinds) {
                let place = place(at, args.types.len());
                let message = format!("{name} needs {}{place}, got {}", need.ty.kinds, ty.shown());
                self.error("type", span, message);
            }
        }
        arity.result.clone()
    }

    /// Checks a call that a function of the standard library makes of its argument, for example once for
    /// each item.
    pub(super) fn calls_back(&mut self, function: &Ty, types: &[Ty], span: Span, surely: bool) -> Ty {
        if !function.is_never() && !function.kinds.meets(Kinds::CALLABLE) {
            let severe = u32::from(!surely);
            self.guarded += severe;
            let message = format!("{} cannot be called: a function is expected here", function.shown());
            self.error("type", span, message);
            self.guarded -= severe;
            return Ty::ANY;
        }
        self.guarded += u32::from(!surely);
        let ty = self.apply(function, &Arguments { types, forms: &[], span });
        self.guarded -= u32::from(!surely);
        ty
    }

    /// Returns the type of a map's or another collection's value at a key.
    pub(super) fn keyed(&mut self, of: &Ty, key: &Value, span: Span) -> Ty {
        /// Kinds that may occur in place of a map, and have nothing at a name.
        const MAYBE: Kinds = Kinds::NIL.or(Kinds::STRING);
        match of.detail() {
            Some(Detail::Record(record)) if of.kinds.is_within(Kinds::MAP.or(MAYBE)) => {
                match record.fields.iter().find(|field| field.key == *key) {
                    Some(field) if field.optional || of.kinds.meets(MAYBE) => field.ty.or(&Ty::NIL),
                    Some(field) => field.ty.clone(),
                    None => {
                        let known = record.fields.iter().map(|field| &field.key);
                        let near = super::parts::nearest_key(key, known);
                        if let Some(near) = near {
                            let message =
                                format!("there is no {key:?} in this map; did you mean {near:?}?");
                            self.state.warn("key", span, message);
                        }
                        if record.closed { Ty::NIL } else { Ty::ANY }
                    }
                }
            }
            _ if of.kinds.is_within(Kinds::COLLECTION.or(Kinds::STRING)) => match of.value() {
                Some(Value::Map(map)) => map.get(key).map_or(Ty::NIL, Ty::constant),
                _ => Ty::ANY,
            },
            _ if !of.is_never() && !of.kinds.meets(Kinds::COLLECTION.or(Kinds::STRING)) => Ty::NIL,
            _ => Ty::ANY,
        }
    }

    /// Narrows a local that was passed to a function that takes only these kinds.
    pub(super) fn succeeded(&mut self, form: Option<&Id>, kinds: Kinds) {
        if let Some(&form) = form
            && let Ir::Local(var) = self.view.arena.get(form)
        {
            self.narrow(*var, kinds);
        }
    }
}

/// Returns ` as its 2nd argument`, if there is more than one.
pub(super) fn place(at: usize, count: usize) -> String {
    match (at, count) {
        (_, 0 | 1) => String::new(),
        (0, _) => " as its 1st argument".to_owned(),
        (1, _) => " as its 2nd argument".to_owned(),
        (2, _) => " as its 3rd argument".to_owned(),
        (at, _) => format!(" as its {}th argument", at + 1),
    }
}
