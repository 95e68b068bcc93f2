//! Compares the known type of a value with the type that it is checked against at run time.

use super::parts::nearest_key;
use super::ty::{Detail, NEVER, Place, Ty, kinds_of};
use crate::error::counted;
use crate::json;
use crate::kinds::Kinds;
use crate::types::{Checking, Definitions, Form, MapType, TypeExpr};
use crate::value::Value;

/// The maximum depth to which a recursive type or value is followed.
const MAX_DEPTH: u32 = 16;
/// The maximum number of comparisons.
const MAX_STEPS: u32 = 2_000;
/// The maximum number of reported clashes.
const MAX_CLASHES: usize = 10;

/// Returns why no value of this kind can have the type; empty if one may. `root` is the beginning of the
/// paths.
pub(super) fn clashes(
    ty: &Ty,
    wanted: &TypeExpr,
    types: &Definitions,
    place: Place,
    root: &str,
) -> Vec<String> {
    let mut comparison = Comparison { types, place, clashes: Vec::new(), steps: 0 };
    comparison.compare(ty, wanted, root, 0);
    comparison.clashes
}

struct Comparison<'d> {
    types: &'d Definitions,
    place: Place,
    clashes: Vec<String>,
    steps: u32,
}

impl Comparison<'_> {
    fn compare(&mut self, ty: &Ty, wanted: &TypeExpr, path: &str, depth: u32) {
        self.steps += 1;
        if ty.is_never()
            || depth > MAX_DEPTH
            || self.steps > MAX_STEPS
            || self.clashes.len() >= MAX_CLASHES
        {
            return;
        }
        if !ty.kinds.meets(kinds_of(wanted, self.types, self.place)) {
            self.say(path, wanted, ty);
            return;
        }
        if let Some(value) = ty.value() {
            self.constant(value, wanted, path);
            return;
        }
        let depth = depth + 1;
        match (ty.detail(), wanted) {
            (_, TypeExpr::JsonSchema { meaning, .. }) => self.compare(ty, meaning, path, depth),
            (_, TypeExpr::And(base, _)) => self.compare(ty, base, path, depth),
            (_, TypeExpr::Defined { ty: inner, definitions }) => {
                let inside = clashes(ty, inner, definitions, self.place, path);
                self.clashes.extend(inside);
            }
            (_, TypeExpr::Ref(name)) => {
                if let Some(wanted) = self.types.get(name) {
                    self.compare(ty, wanted, path, depth);
                }
            }
            // For an optional type, only its main alternative is explained.
            (_, TypeExpr::Union(alternatives)) => {
                let mut left = alternatives
                    .iter()
                    .filter(|wanted| ty.kinds.meets(kinds_of(wanted, self.types, self.place)));
                if let (Some(wanted), None) = (left.next(), left.next()) {
                    self.compare(ty, wanted, path, depth);
                }
            }
            (Some(Detail::Record(record)), TypeExpr::Map(map)) if ty.kinds == Kinds::MAP => {
                for field in &map.fields {
                    let inner = format!("{path}.{}", name_of(&field.key));
                    match record
                        .fields
                        .iter()
                        .find(|known| is_same_key(&known.key, &field.key, self.place))
                    {
                        Some(known) if !known.optional => {
                            self.compare(&known.ty, &field.ty, &inner, depth);
                        }
                        None if record.closed && !field.optional => {
                            self.clashes
                                .push(format!("{inner}: expected {}, but it is missing", field.ty));
                        }
                        _ => {}
                    }
                }
                let keys = record.fields.iter().filter(|field| !field.optional).map(|field| &field.key);
                self.unknown_keys(keys, map, path);
            }
            (Some(Detail::Items(items)), TypeExpr::Vector(wanted)) if ty.kinds == Kinds::VECTOR => {
                for (at, item) in items.iter().enumerate() {
                    self.compare(item, wanted, &format!("{path}[{at}]"), depth);
                }
            }
            (Some(Detail::Items(items)), TypeExpr::Tuple(wanted)) if ty.kinds == Kinds::VECTOR => {
                if items.len() != wanted.len() {
                    self.clashes.push(format!(
                        "{path}: expected {}, got {}",
                        counted(wanted.len() as u64, "item"),
                        items.len()
                    ));
                    return;
                }
                for (at, (item, wanted)) in items.iter().zip(wanted).enumerate() {
                    self.compare(item, wanted, &format!("{path}[{at}]"), depth);
                }
            }
            _ => {}
        }
    }

    /// Checks a constant as at run time.
    fn constant(&mut self, value: &Value, wanted: &TypeExpr, path: &str) {
        if !is_small(value) {
            return;
        }
        let checking = Checking { definitions: self.types, form: Form::Value, max_steps: 20_000 };
        let Err(mut violations) = checking.check(wanted, value, path) else { return };
        if self.place != Place::Program {
            // The value may be sent as JSON.
            let Ok(text) = json::value_to_json(value) else { return };
            let Ok(value) = json::value_from_json(&text) else { return };
            let checking = Checking { form: Form::Json, ..checking };
            let Err(again) = checking.check(wanted, &value, path) else { return };
            violations = again;
        }
        let texts = violations
            .iter()
            .map(ToString::to_string)
            .filter(|text| !text.contains("what can be compared"));
        self.clashes.extend(texts.take(MAX_CLASHES));
    }

    fn unknown_keys<'k>(&mut self, keys: impl Iterator<Item = &'k Value>, map: &MapType, path: &str) {
        if map.others.as_deref() != Some(&NEVER) {
            return;
        }
        for key in keys {
            if map.fields.iter().any(|field| is_same_key(key, &field.key, self.place)) {
                continue;
            }
            let near = nearest_key(key, map.fields.iter().map(|field| &field.key));
            let hint = near.map_or(String::new(), |near| format!("; did you mean {near:?}?"));
            self.clashes.push(format!("{path}.{}: there is no such key{hint}", name_of(key)));
        }
    }

    fn say(&mut self, path: &str, wanted: &TypeExpr, ty: &Ty) {
        self.clashes.push(format!("{path}: expected {wanted}, got {}", ty.shown()));
    }
}

/// Returns the type without its origin.
pub(super) fn meaning(ty: &TypeExpr) -> &TypeExpr {
    match ty {
        TypeExpr::JsonSchema { meaning: inner, .. } => meaning(inner),
        TypeExpr::Defined { ty: inner, .. } | TypeExpr::And(inner, _) => meaning(inner),
        ty => ty,
    }
}

fn name_of(key: &Value) -> String {
    match key {
        Value::Keyword(keyword) => keyword.name().to_owned(),
        key => key.to_string(),
    }
}

/// In JSON, all keys are texts.
fn is_same_key(a: &Value, b: &Value, place: Place) -> bool {
    a == b || place != Place::Program && name_of(a) == name_of(b)
}

/// Returns whether checking the value is fast.
fn is_small(value: &Value) -> bool {
    const MOST: usize = 1_000;
    let mut open = vec![value];
    let mut seen = 0;
    while let Some(value) = open.pop() {
        seen += 1;
        if seen > MOST {
            return false;
        }
        match value {
            Value::Map(map) if map.len() <= MOST => {
                open.extend(map.iter().flat_map(|(key, value)| [key, value]));
            }
            Value::Map(_) | Value::Seq(_) => return false,
            Value::Set(set) => {
                if set.len() > MOST {
                    return false;
                }
                open.extend(set.iter());
            }
            Value::Str(text) if text.as_str().len() > 100 * MOST => return false,
            value => match value.items() {
                Some(items) if items.len() > MOST => return false,
                Some(items) => open.extend(items),
                None => {}
            },
        }
    }
    true
}
