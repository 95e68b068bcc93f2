//! Explains why a value does not have a type.

use super::check::{Level, MAX_VIOLATIONS, Walk, is_primitive, items_as, others_of};
use super::predicate::look_up;
use super::violation::Path;
use super::{Field, Form, MapType, Predicate, Primitive, TypeExpr, Violation};
use crate::map::Map;
use crate::text::excerpt;
use crate::value::Value;

/// The maximum length of a type that is shown in full when only a predicate of it is violated.
const LONG: usize = 120;

impl Walk {
    /// Explains why a value does not have a type.
    pub(super) fn explain(
        &self,
        ty: &TypeExpr,
        value: &Value,
        form: Form,
        path: Path<'_>,
        level: Level<'_>,
        found: &mut Vec<Violation>,
    ) {
        if found.len() >= MAX_VIOLATIONS || !self.may_go_on(level) {
            return;
        }
        let (mut ty, mut level, before) = (ty, level, found.len()); // both follow the names of types
        loop {
            let Some(resolved) = self.resolve(ty, &mut level) else {
                let expected = format!("{}, which no type is named", excerpt(ty, LONG));
                return found.push(Violation::new(path, expected, Some(value)));
            };
            ty = resolved;
            match ty {
                TypeExpr::Union(types) => match self.closest(types, value, form, level.same()) {
                    Some(closest) => ty = closest,
                    None => break,
                },
                TypeExpr::And(base, predicates) => {
                    if self.admits(base, value, form, level.same()) {
                        explain_predicates(ty, predicates, value, form, path, found);
                        break;
                    }
                    let is_inside = self.is_of_kind(base, value, form, level.same());
                    if !is_inside || matches!(**base, TypeExpr::Primitive(_)) {
                        break;
                    }
                    ty = base;
                }
                _ => {
                    self.explain_parts(ty, value, form, path, level.inner(), found);
                    break;
                }
            }
        }
        if found.len() == before && !self.spent.get() {
            found.push(Violation::new(path, ty, Some(value)));
        }
    }

    /// Explains which parts of a collection have the wrong type.
    fn explain_parts(
        &self,
        ty: &TypeExpr,
        value: &Value,
        form: Form,
        path: Path<'_>,
        level: Level<'_>,
        found: &mut Vec<Violation>,
    ) {
        let mut part = |ty: &TypeExpr, value: &Value, step: Path<'_>| {
            if found.len() < MAX_VIOLATIONS && !self.admits(ty, value, form, level) {
                self.explain(ty, value, form, step, level, found);
            }
        };
        match (ty, value) {
            (TypeExpr::Set(item), Value::Set(set)) => {
                set.iter().enumerate().for_each(|(i, value)| part(item, value, Path::Index(&path, i)));
            }
            (TypeExpr::Vector(item) | TypeExpr::List(item) | TypeExpr::Set(item), value) => {
                for (i, value) in items_as(ty, value, form).unwrap_or_default().iter().enumerate() {
                    part(item, value, Path::Index(&path, i));
                }
            }
            (TypeExpr::Tuple(types), value) => {
                let items = value.items().filter(|items| items.len() == types.len()).unwrap_or_default();
                for (i, (ty, value)) in types.iter().zip(items).enumerate() {
                    part(ty, value, Path::Index(&path, i));
                }
            }
            (TypeExpr::Array { item, shape }, value) => {
                let Some((size, rest)) = shape.split_first() else { return part(item, value, path) };
                let fits = |items: &&[Value]| size.is_none_or(|size| size == items.len() as u64);
                let items = value.items().filter(fits).unwrap_or_default();
                let row = TypeExpr::Array { item: item.clone(), shape: rest.to_vec() };
                let row = if rest.is_empty() { item } else { &row };
                for (i, value) in items.iter().enumerate() {
                    part(row, value, Path::Index(&path, i));
                }
            }
            (TypeExpr::Map(record), Value::Map(map)) => {
                self.explain_record(record, map, form, path, level, found);
            }
            (TypeExpr::MapOf(keys, values), Value::Map(map)) => {
                for (key, value) in map.iter() {
                    part(values, value, Path::Key(&path, key));
                }
                for (key, _) in map.iter().filter(|(key, _)| !self.admits_key(keys, key, form, level)) {
                    let expected = format!("a key that is {}", excerpt(keys, LONG));
                    found.push(Violation::new(Path::Key(&path, key), expected, Some(key)));
                }
            }
            _ => {}
        }
    }

    fn explain_part(
        &self,
        ty: &TypeExpr,
        value: &Value,
        form: Form,
        path: Path<'_>,
        level: Level<'_>,
        found: &mut Vec<Violation>,
    ) {
        if found.len() < MAX_VIOLATIONS && !self.admits(ty, value, form, level) {
            self.explain(ty, value, form, path, level, found);
        }
    }

    fn explain_record(
        &self,
        record: &MapType,
        map: &Map,
        form: Form,
        path: Path<'_>,
        level: Level<'_>,
        found: &mut Vec<Violation>,
    ) {
        for Field { key, ty, optional } in &record.fields {
            let path = Path::Key(&path, key);
            match look_up(map, key, form) {
                Some(value) => self.explain_part(ty, value, form, path, level, found),
                None if *optional => {}
                None if matches!(ty, TypeExpr::Primitive(Primitive::Any)) => {
                    found.push(Violation::new(path, "a value (required)", None));
                }
                None => found.push(Violation::new(path, ty, None)),
            }
        }
        let Some(others) = &record.others else { return };
        for (key, value) in others_of(record, map, form) {
            let path = Path::Key(&path, key);
            if **others == TypeExpr::Primitive(Primitive::Never) {
                let keys: Vec<_> = record.fields.iter().map(|field| field.key.pr_str()).collect();
                let expected = match keys.as_slice() {
                    [] => "no such key".to_owned(),
                    keys => format!("no such key (there are {})", keys.join(", ")),
                };
                found.push(Violation::new(path, expected, Some(value)));
            } else {
                self.explain_part(others, value, form, path, level, found);
            }
        }
    }

    /// Returns the alternative that the value was probably meant for: the only one of its kind, or the
    /// only record whose constants match.
    fn closest<'t>(
        &self,
        types: &'t [TypeExpr],
        value: &Value,
        form: Form,
        level: Level<'_>,
    ) -> Option<&'t TypeExpr> {
        let of_kind: Vec<_> =
            types.iter().filter(|ty| self.is_of_kind(ty, value, form, level)).collect();
        let only = |candidates: &[&'t TypeExpr]| match candidates {
            [only] => Some(*only),
            _ => None,
        };
        only(&of_kind).or_else(|| {
            let fits = |ty: &&&TypeExpr| self.constants_fit(ty, value, form, level);
            only(&of_kind.iter().filter(fits).copied().collect::<Vec<_>>())
        })
    }

    fn constants_fit<'t>(
        &self,
        ty: &'t TypeExpr,
        value: &Value,
        form: Form,
        mut level: Level<'t>,
    ) -> bool {
        match (self.resolve(ty, &mut level), value) {
            (Some(TypeExpr::And(ty, _)), value) if self.may_go_on(level) => {
                self.constants_fit(ty, value, form, level.same())
            }
            (Some(TypeExpr::Map(record)), Value::Map(map)) => record.fields.iter().all(|field| {
                let is_constant = matches!(field.ty, TypeExpr::Val(_) | TypeExpr::Enum(_));
                let value = look_up(map, &field.key, form);
                !is_constant
                    || value.is_some_and(|value| self.admits(&field.ty, value, form, level.inner()))
            }),
            _ => false,
        }
    }

    /// Returns whether the value matches the type on the outside, so that the violation is inside of it.
    fn is_of_kind<'t>(&self, ty: &'t TypeExpr, value: &Value, form: Form, mut level: Level<'t>) -> bool {
        if !self.may_go_on(level) {
            return false;
        }
        let Some(ty) = self.resolve(ty, &mut level) else { return false };
        match ty {
            TypeExpr::Map(_) | TypeExpr::MapOf(..) => matches!(value, Value::Map(_)),
            TypeExpr::Tuple(_) | TypeExpr::Array { .. } => value.items().is_some(),
            TypeExpr::Set(_) if matches!(value, Value::Set(_)) => true,
            TypeExpr::Vector(_) | TypeExpr::List(_) | TypeExpr::Set(_) => {
                items_as(ty, value, form).is_some()
            }
            TypeExpr::And(base, _) => match &**base {
                TypeExpr::Primitive(primitive) => is_primitive(*primitive, value, form),
                base => self.is_of_kind(base, value, form, level.same()),
            },
            TypeExpr::Union(types) => {
                types.iter().any(|ty| self.is_of_kind(ty, value, form, level.same()))
            }
            _ => false,
        }
    }
}

/// Reports violated predicates, by showing the whole type if that is short.
fn explain_predicates(
    ty: &TypeExpr,
    predicates: &[Predicate],
    value: &Value,
    form: Form,
    path: Path<'_>,
    found: &mut Vec<Violation>,
) {
    if !excerpt(ty, LONG).ends_with('…') {
        return found.push(Violation::new(path, ty, Some(value)));
    }
    let broken = predicates.iter().filter(|predicate| !predicate.holds(value, form));
    let broken: Vec<_> = broken.map(Predicate::to_string).collect();
    found.push(Violation::new(path, broken.join(" "), Some(value)));
}
