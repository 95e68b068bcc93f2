//! Types in programs: annotations, named types, structs, `is?` and `check`.

use std::sync::Arc;

use super::ir::{Id, Ir};
use super::lower::Lower;
use crate::machine::program::Check;
use crate::machine::typing;
use crate::syntax::{Kind, NodeId};
use crate::types::TypeExpr;
use crate::value::Value;

impl Lower<'_> {
    /// Parses a type in the program's text.
    fn ty(&mut self, node: NodeId) -> TypeExpr {
        let value = match self.tree.value(node) {
            Ok(value) => value,
            Err(deep) => {
                self.fail(node, deep.to_string());
                return TypeExpr::ANY;
            }
        };
        typing::parse(&value).unwrap_or_else(|problem| {
            self.fail(node, problem);
            TypeExpr::ANY
        })
    }

    /// Adds a check to the table of this unit and returns its index.
    pub(super) fn check(&mut self, ty: NodeId, what: &str, each: bool) -> usize {
        let ty = self.ty(ty);
        self.checks.push(Arc::new(Check { ty, what: what.into(), each, is_result: false }));
        self.checks.len() - 1
    }

    /// Returns the value with a check.
    pub(super) fn checked(&mut self, value: Id, ty: NodeId, what: &str, each: bool) -> Id {
        let check = self.check(ty, what, each);
        let span = self.arena.span(value);
        self.add(Ir::Check(value, check), span)
    }

    /// Returns the result of a function with a check.
    pub(super) fn checked_result(&mut self, value: Id, ty: NodeId) -> Id {
        let (ty, span) = (self.ty(ty), self.arena.span(value));
        let what = "result".into();
        self.checks.push(Arc::new(Check { ty, what, each: false, is_result: true }));
        self.add(Ir::Check(value, self.checks.len() - 1), span)
    }

    /// Returns a type as data: the written type, or the value of a local that holds one.
    pub(super) fn type_data(&mut self, node: NodeId) -> Id {
        let is_local = self.tree.symbol(node).is_some_and(|name| {
            matches!(self.resolve(name), super::lower::Resolved::Bound(..))
                || matches!(self.resolve(name), super::lower::Resolved::Global(_))
                    && self.session.types.get(name).is_none()
        });
        if is_local || matches!(self.tree.kind(node), Kind::List | Kind::Quote) {
            return self.expr(node);
        }
        self.ty(node); // reports its mistakes
        self.quoted(node)
    }

    /// `(is? x TYPE)`, `(check x TYPE)`
    pub(super) fn type_check(&mut self, name: &str, node: NodeId, args: &[NodeId]) -> Id {
        let span = self.tree.span(node);
        let (value, ty) = match args {
            [value, ty] => (*value, *ty),
            [value, ty, mark] if self.tree.kind(*mark) == Kind::Optional => {
                let span = self.tree.span(*ty);
                let optional = self.tree.push_keyword(span, "optional");
                (*value, self.tree.with_parts(Kind::Vector, span, &[optional, *ty]))
            }
            _ => {
                return self.fail(
                    node,
                    format!("`{name}` takes a value and a type: ({name} x [:vector :int])"),
                );
            }
        };
        let value = self.expr(value);
        let ty = self.type_data(ty);
        self.native(if name == "is?" { "%is" } else { "%check" }, vec![value, ty], span)
    }

    /// `(deftype-alias Name TYPE)`
    pub(super) fn type_alias(&mut self, node: NodeId, args: &[NodeId]) -> Id {
        let span = self.tree.span(node);
        let [name, ty] = args else {
            return self.fail(
                node,
                "`deftype-alias` takes a name and a type: (deftype-alias Id [:and :int [:> 0]])",
            );
        };
        let Some(name) = self.tree.symbol(*name).map(str::to_owned) else {
            return self.fail(*name, "a name is expected here");
        };
        let ty = self.ty(*ty);
        self.session.types.define(name.as_str(), ty);
        self.constant(Value::Symbol(crate::Symbol::new(name)), span)
    }

    /// Lowers `(defstruct Name :field TYPE …)`: the type, and a function that checks a map.
    pub(super) fn defstruct(&mut self, node: NodeId, args: &[NodeId]) -> Id {
        let span = self.tree.span(node);
        let Some((&name_node, fields)) = args.split_first() else {
            return self.fail(
                node,
                "`defstruct` takes a name and fields: (defstruct Point :x :float :y :float)",
            );
        };
        let Some(name) = self.tree.symbol(name_node).map(str::to_owned) else {
            return self.fail(name_node, "a name is expected here");
        };
        if !self.at_top() {
            return self.fail(node, "`defstruct` stands inside of a function");
        }
        let head = self.tree.push_keyword(span, "map");
        let mut parts = vec![head];
        let mut rest = fields;
        while let Some((&key, more)) = rest.split_first() {
            let Some((&ty, more)) = more.split_first() else {
                return self.fail(key, "this field has no type");
            };
            let (mark, more) = match more {
                [mark, more @ ..] if self.tree.kind(*mark) == Kind::Optional => (Some(*mark), more),
                _ => (None, more),
            };
            let optional = mark.or_else(|| {
                let text = self.tree.keyword(ty).or(self.tree.symbol(ty))?;
                text.ends_with('?').then(|| self.tree.push(Kind::Optional, span, 0, 0))
            });
            let field: Vec<_> = [key, ty].into_iter().chain(optional).collect();
            parts.push(self.tree.with_parts(Kind::Vector, span, &field));
            rest = more;
        }
        let ty = self.tree.with_parts(Kind::Vector, span, &parts);
        let struct_type = self.ty(ty);
        self.session.types.define(name.as_str(), struct_type);
        // (fn [fields] (check fields TYPE))
        let field = self.tree.push_symbol(span, "fields");
        let params = self.tree.with_parts(Kind::Vector, span, &[field]);
        let mark = self.tree.push(Kind::ColonDash, span, 0, 0);
        let function = self.function(node, Some(&name), &[], &[(params, vec![mark, ty, field])]);
        self.define(&name, function, span)
    }
}
