//! Functions of the program: requirements on their arguments, and their results.

use std::sync::Arc;

use super::ty::{Arity, Function, Need, Ty};
use super::walk::{Frame, Target, Walker};
use crate::compiler::ir::{self, Id, Ir};
use crate::kinds::Kinds;
use crate::machine::program::Check;

impl Walker<'_> {
    /// Returns the arity of a function, which is known before its body is.
    pub(super) fn outline(&self, at: usize) -> Ty {
        let function = &self.view.functions[at];
        let arities = function.arities.iter().map(|arity| Arity {
            fixed: arity.params.len() - usize::from(arity.rest),
            rest: arity.rest,
            needs: Vec::new(),
            result: Ty::ANY,
        });
        Ty::function(Function { name: function.name.clone(), arities: arities.collect() })
    }

    /// Walks a function where it is created.
    pub(super) fn function(&mut self, at: usize) -> Ty {
        let view = self.view;
        let function = &view.functions[at];
        let ups: Vec<_> = function.captures.iter().map(|&id| self.captured(id)).collect();
        let own = self.outline(at);
        let arities = function.arities.iter().map(|arity| self.arity(arity, &ups, &own));
        let arities = arities.collect();
        Ty::function(Function { name: function.name.clone(), arities })
    }

    fn captured(&mut self, id: Id) -> Ty {
        match self.view.arena.get(id) {
            Ir::Local(_) | Ir::Up(_) | Ir::SelfFn => self.walk(id),
            _ => Ty::ANY,
        }
    }

    fn arity(&mut self, arity: &ir::Arity, ups: &[Ty], own: &Ty) -> Arity {
        let mut frame = Frame::new(arity.vars, ups.to_vec(), own.clone());
        frame.targets.push(Target { vars: arity.params.clone(), ..Target::default() });
        if arity.rest
            && let Some(&rest) = arity.params.last()
        {
            frame.vars[rest as usize] = Ty::of(Kinds::ORDERED.or(Kinds::NIL));
        }
        self.frames.push(frame);
        let result = self.walk(arity.body);
        let needs = self.end_of_body(!result.is_never());
        let declared = self.declared(arity);
        self.frames.pop();
        let fixed = arity.params.len() - usize::from(arity.rest);
        let needs = needs.unwrap_or_default().into_iter().zip(declared).take(fixed);
        let needs = needs.map(|(ty, declared)| Need {
            name: declared.as_ref().map(|check| check.what.to_string()).unwrap_or_default(),
            ty,
            declared,
        });
        // A certain failure is reported at its place, and the result is unknown.
        let result = if result.is_never() { Ty::ANY } else { result };
        Arity { fixed, rest: arity.rest, needs: needs.collect(), result }
    }

    /// Returns the annotations of the parameters: checks at the beginning of the body.
    fn declared(&self, arity: &ir::Arity) -> Vec<Option<Arc<Check>>> {
        let mut declared = vec![None; arity.params.len()];
        let ids = match self.view.arena.get(arity.body) {
            Ir::Do(ids) => ids,
            // The constructor of a struct.
            Ir::Check(value, check) => {
                if let (Ir::Local(var), [param]) = (self.view.arena.get(*value), &arity.params[..])
                    && var == param
                {
                    declared[0] = Some(self.view.checks[*check].clone());
                }
                return declared;
            }
            _ => return declared,
        };
        for &id in ids {
            let Ir::CheckLocal(var, check) = self.view.arena.get(id) else { break };
            if let Some(at) = arity.params.iter().position(|param| param == var) {
                declared[at] = Some(self.view.checks[*check].clone());
            }
        }
        declared
    }
}
