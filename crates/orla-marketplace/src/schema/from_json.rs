//! Converts JSON Schema to a [`TypeExpr`].
//!
//! Constraints that a type cannot express become `:any` or are left out, so a type admits everything
//! that its schema admits and perhaps more. There are two exceptions: `:int` does not admit `1.0`, which
//! JSON Schema treats as an integer, and a `format` is checked, while JSON Schema treats it as an
//! annotation.

use std::cell::{Cell, RefCell};
use std::sync::Arc;

use rtfs::{Definitions, Field, MapType, Predicate, Primitive, TypeExpr, Value, text_formats};
use serde_json::{Map as Object, Value as Json};

use super::conditions::URL_PATTERN;
use super::target;
use super::to_json::{INTEGER_PATTERN, json_schema_of};
use crate::json::value_from_json;

/// The maximum depth of a type when references are replaced by their targets.
const MAX_DEPTH: usize = 100;
/// The maximum number of schemas that replace references, counting nested ones. Otherwise the shared
/// parts of large documents would be duplicated for every path that leads to them.
const MAX_REPLACED: usize = 200;

/// Returns the nearest type to a JSON Schema, with the schema's text attached.
///
/// Constraints that a type cannot express become `:any` or are left out, so a type admits everything
/// that its schema admits and perhaps more. There are two exceptions: `:int` does not admit `1.0`, which
/// JSON Schema treats as an integer, and formats are checked. References within the schema are replaced
/// by their targets, up to a limit beyond which they are `:any`. A reference that leads back to itself
/// is a `[:ref Name]`, and the type carries the definition of that name.
///
/// The schema is parsed when more than its text is used.
pub fn type_from_json_schema(schema: &Json) -> TypeExpr {
    type_from_schema_text(schema.to_string().into())
}

/// Like [`type_from_json_schema`], for the schema's text. A text that is not JSON admits any value.
pub fn type_from_schema_text(text: Arc<str>) -> TypeExpr {
    TypeExpr::of_json_schema(text, |text| {
        serde_json::from_str(text).map_or(TypeExpr::ANY, |schema| read(&schema))
    })
}

fn read(schema: &Json) -> TypeExpr {
    let reader = Reader::new(schema);
    let ty = reader.ty(schema, None);
    let definitions = reader.recursive.take();
    if definitions.is_empty() { ty } else { ty.with_definitions(definitions.into()) }
}

/// One conversion.
struct Reader<'s> {
    root: &'s Json,
    depth: Cell<usize>,
    /// The remaining number of schemas that may replace references.
    left: Cell<usize>,
    /// The references that are being replaced, and whether each was encountered again meanwhile.
    open: RefCell<Vec<(&'s str, bool)>>,
    /// The recursive definitions, by name.
    recursive: RefCell<Definitions>,
}

impl<'s> Reader<'s> {
    fn new(root: &'s Json) -> Self {
        Self {
            root,
            depth: Cell::new(0),
            left: Cell::new(MAX_REPLACED),
            open: RefCell::default(),
            recursive: RefCell::default(),
        }
    }

    /// Returns the type of a schema. `known` is the `type` that an outer schema already requires.
    fn ty(&self, schema: &'s Json, known: Option<&'s Json>) -> TypeExpr {
        if self.depth.get() == MAX_DEPTH || !self.may_replace() {
            return TypeExpr::ANY;
        }
        self.depth.set(self.depth.get() + 1);
        let ty = match schema {
            Json::Bool(false) => Primitive::Never.into(),
            Json::Object(schema) => self.object(schema, known),
            _ => TypeExpr::ANY,
        };
        self.depth.set(self.depth.get() - 1);
        ty
    }

    /// Counts one more schema, if it replaces a reference.
    fn may_replace(&self) -> bool {
        if self.open.borrow().is_empty() {
            return true;
        }
        let left = self.left.get().checked_sub(1);
        self.left.set(left.unwrap_or(0));
        left.is_some()
    }

    fn object(&self, schema: &'s Object<String, Json>, known: Option<&'s Json>) -> TypeExpr {
        let parts = schema.get("allOf").and_then(Json::as_array);
        let known =
            schema.get("type").or(known).or_else(|| parts?.iter().find_map(|part| part.get("type")));
        let mut ty = self.alone(schema, known);
        if let Some(reference) = schema.get("$ref").and_then(Json::as_str) {
            ty = both(self.referred(reference), ty);
        }
        for part in parts.into_iter().flatten() {
            ty = both(ty, self.ty(part, known));
        }
        match schema.get("not") {
            Some(not) => without(ty, not, || self.ty(not, None)),
            None => ty,
        }
    }

    /// Returns the type of a schema's own keywords, without referenced schemas.
    fn alone(&self, schema: &'s Object<String, Json>, known: Option<&'s Json>) -> TypeExpr {
        if let Some(value) = schema.get("const") {
            return value_of(value).map_or(TypeExpr::ANY, TypeExpr::Val);
        }
        if let Some(Json::Array(options)) = schema.get("enum") {
            let options: Option<Vec<_>> = options.iter().map(value_of).collect();
            return options.filter(|options| !options.is_empty()).map_or(TypeExpr::ANY, TypeExpr::Enum);
        }
        match known {
            Some(Json::String(name)) => self.typed(name, schema),
            Some(Json::Array(names)) => union(
                names.iter().filter_map(Json::as_str).map(|name| self.typed(name, schema)).collect(),
            ),
            _ => {
                let alternatives = schema.get("anyOf").or_else(|| schema.get("oneOf"));
                match alternatives.and_then(Json::as_array) {
                    Some(alternatives) => {
                        union(alternatives.iter().map(|ty| self.ty(ty, None)).collect())
                    }
                    None => TypeExpr::ANY, // `properties` without `type` also admits a string
                }
            }
        }
    }

    fn typed(&self, name: &str, schema: &'s Object<String, Json>) -> TypeExpr {
        match name {
            "null" => Primitive::Nil.into(),
            "boolean" => Primitive::Bool.into(),
            "integer" => with(Primitive::Int.into(), number_predicates(schema)),
            "number" => with(Primitive::Number.into(), number_predicates(schema)),
            "string" => with(Primitive::String.into(), string_predicates(schema)),
            "array" => self.array(schema),
            "object" => {
                with(self.record(schema), count_predicates(schema, "minProperties", "maxProperties"))
            }
            _ => TypeExpr::ANY,
        }
    }

    fn array(&self, schema: &'s Object<String, Json>) -> TypeExpr {
        let items = schema.get("items");
        let mut predicates = count_predicates(schema, "minItems", "maxItems");
        let prefix = schema.get("prefixItems").and_then(Json::as_array);
        let ty = match prefix {
            // Only an array of fixed length is a tuple.
            Some(prefix)
                if items == Some(&Json::Bool(false))
                    && schema.get("minItems").and_then(Json::as_u64) == Some(prefix.len() as u64) =>
            {
                let n = prefix.len() as u64;
                predicates.retain(|predicate| {
                    !matches!(predicate, Predicate::MinCount(size) | Predicate::MaxCount(size) if *size == n)
                });
                TypeExpr::Tuple(prefix.iter().map(|ty| self.ty(ty, None)).collect())
            }
            Some(_) => TypeExpr::Vector(Box::new(TypeExpr::ANY)),
            None => TypeExpr::Vector(Box::new(items.map_or(TypeExpr::ANY, |ty| self.ty(ty, None)))),
        };
        with(ty, predicates)
    }

    fn record(&self, schema: &'s Object<String, Json>) -> TypeExpr {
        let required: Vec<_> = schema
            .get("required")
            .and_then(Json::as_array)
            .into_iter()
            .flatten()
            .filter_map(Json::as_str)
            .collect();
        let others = match schema.get("additionalProperties").map(|ty| self.ty(ty, None)) {
            Some(ty) if ty != TypeExpr::ANY && !schema.contains_key("patternProperties") => Some(ty),
            _ => None,
        };
        let properties = schema.get("properties").and_then(Json::as_object);
        let mut fields: Vec<_> = properties
            .into_iter()
            .flatten()
            .map(|(name, schema)| Field {
                key: Value::keyword(name.as_str()),
                ty: self.ty(schema, None),
                optional: !required.contains(&name.as_str()),
            })
            .collect();
        for name in required {
            let key = Value::keyword(name);
            if fields.iter().all(|field| field.key != key) {
                let ty = others.clone().unwrap_or(TypeExpr::ANY);
                fields.push(Field { key, ty, optional: false });
            }
        }
        let is_open = others.as_ref().is_none_or(|ty| *ty != TypeExpr::Primitive(Primitive::Never));
        let names = schema.get("propertyNames").and_then(|names| self.key(names));
        if fields.is_empty() && is_open && (others.is_some() || names.is_some()) {
            let key = names.unwrap_or(Primitive::Keyword.into());
            return TypeExpr::MapOf(Box::new(key), Box::new(others.unwrap_or(TypeExpr::ANY)));
        }
        TypeExpr::Map(MapType { fields, others: others.map(Box::new) })
    }

    /// Returns the type of a map's keys, whose names match a schema.
    fn key(&self, names: &'s Json) -> Option<TypeExpr> {
        if names.get("pattern").is_some_and(|pattern| pattern == INTEGER_PATTERN) {
            return Some(Primitive::Int.into());
        }
        let keyword = |value: &Value| match value {
            Value::Str(text) => Some(Value::keyword(text.as_str())),
            _ => None,
        };
        match names.get("format").and_then(Json::as_str) {
            Some("uuid") => return Some(Primitive::Uuid.into()),
            Some("date-time") => return Some(Primitive::Instant.into()),
            _ => {}
        }
        match self.ty(names, Some(&STRING)) {
            TypeExpr::Enum(texts) => {
                texts.iter().map(keyword).collect::<Option<_>>().map(TypeExpr::Enum)
            }
            TypeExpr::Val(text) => keyword(&text).map(TypeExpr::Val),
            TypeExpr::And(_, predicates) => {
                Some(TypeExpr::And(Box::new(Primitive::Keyword.into()), predicates))
            }
            _ => None,
        }
    }

    /// Returns the target of a reference, or its name if it leads back to itself.
    fn referred(&self, reference: &'s str) -> TypeExpr {
        let Some(target) = target(self.root, reference) else { return TypeExpr::ANY };
        let name = name_of(reference);
        let met = self
            .open
            .borrow_mut()
            .iter_mut()
            .find(|(open, _)| *open == reference)
            .map(|(_, met)| *met = true);
        if met.is_some() {
            return TypeExpr::Ref(name.into());
        }
        let is_known = self.recursive.borrow().get(&name).is_some();
        if is_known {
            return TypeExpr::Ref(name.into());
        }
        self.open.borrow_mut().push((reference, false));
        let ty = self.ty(target, None);
        let was_met = self.open.borrow_mut().pop().is_some_and(|(_, met)| met);
        if !was_met {
            return ty;
        }
        self.recursive.borrow_mut().define(name.as_str(), ty);
        TypeExpr::Ref(name.into())
    }
}

static STRING: std::sync::LazyLock<Json> = std::sync::LazyLock::new(|| "string".into());

/// Returns the name of a reference's target: its last step, which is unambiguous if it is in `$defs`.
fn name_of(reference: &str) -> String {
    let plain = |name: &&str| {
        !name.is_empty() && name.chars().all(|c| c.is_alphanumeric() || matches!(c, '_' | '-' | '.'))
    };
    let name = reference.strip_prefix("#/$defs/").or_else(|| reference.strip_prefix("#/definitions/"));
    name.filter(plain).unwrap_or(reference).to_owned()
}

/// Excludes the values that a schema admits from a type, as far as a type can express that.
fn without(ty: TypeExpr, not: &Json, meaning: impl FnOnce() -> TypeExpr) -> TypeExpr {
    if ty != TypeExpr::ANY {
        let only = not.as_object().filter(|not| not.len() == 1).and_then(|not| not.get("const"));
        return match only.and_then(value_of) {
            Some(value) => with(ty, vec![Predicate::Differs(value)]),
            None => ty,
        };
    }
    let meaning = meaning();
    if *not == Json::Bool(true) || not.as_object().is_some_and(Object::is_empty) {
        return Primitive::Never.into();
    }
    // The schema of a type that expresses its schema completely equals that schema.
    if json_schema_of(&meaning) == *not { TypeExpr::Not(Box::new(meaning)) } else { TypeExpr::ANY }
}

/// Returns the intersection of two types, or at least one of them if no type expresses it.
fn both(a: TypeExpr, b: TypeExpr) -> TypeExpr {
    match (a, b) {
        (TypeExpr::Primitive(Primitive::Any), ty) | (ty, TypeExpr::Primitive(Primitive::Any)) => ty,
        (a, b) if a == b => a,
        (never @ TypeExpr::Primitive(Primitive::Never), _)
        | (_, never @ TypeExpr::Primitive(Primitive::Never)) => never,
        (one @ (TypeExpr::Val(_) | TypeExpr::Enum(_)), _)
        | (_, one @ (TypeExpr::Val(_) | TypeExpr::Enum(_))) => one,
        (TypeExpr::And(a, predicates), TypeExpr::And(b, more)) => {
            let mut predicates = predicates;
            let new: Vec<_> = more.into_iter().filter(|more| !predicates.contains(more)).collect();
            predicates.extend(new);
            with(both(*a, *b), predicates)
        }
        (TypeExpr::And(a, predicates), b) | (b, TypeExpr::And(a, predicates)) => {
            with(both(*a, b), predicates)
        }
        (TypeExpr::Primitive(Primitive::Number), int @ TypeExpr::Primitive(Primitive::Int))
        | (int @ TypeExpr::Primitive(Primitive::Int), TypeExpr::Primitive(Primitive::Number)) => int,
        (TypeExpr::Vector(a), TypeExpr::Vector(b)) => TypeExpr::Vector(Box::new(both(*a, *b))),
        (TypeExpr::Map(a), TypeExpr::Map(b)) => TypeExpr::Map(both_records(a, b)),
        (TypeExpr::MapOf(_, values), TypeExpr::Map(record))
        | (TypeExpr::Map(record), TypeExpr::MapOf(_, values)) => {
            TypeExpr::Map(both_records(record, MapType { fields: Vec::new(), others: Some(values) }))
        }
        (TypeExpr::Union(_), ty) | (ty, _) => ty,
    }
}

fn both_records(a: MapType, b: MapType) -> MapType {
    let narrowed = |ty: TypeExpr, others: &Option<Box<TypeExpr>>| match others {
        Some(others) => both(ty, (**others).clone()),
        None => ty,
    };
    let mut fields: Vec<Field> = Vec::new();
    for mut field in a.fields {
        match b.fields.iter().find(|other| other.key == field.key) {
            Some(other) => {
                field.optional &= other.optional;
                field.ty = both(field.ty, other.ty.clone());
            }
            None => field.ty = narrowed(field.ty, &b.others),
        }
        fields.push(field);
    }
    for mut field in b.fields {
        if fields.iter().all(|known| known.key != field.key) {
            field.ty = narrowed(field.ty, &a.others);
            fields.push(field);
        }
    }
    let others = match (a.others, b.others) {
        (Some(a), Some(b)) => Some(Box::new(both(*a, *b))),
        (a, b) => a.or(b),
    };
    MapType { fields, others }
}

fn union(types: Vec<TypeExpr>) -> TypeExpr {
    if types.is_empty() {
        return TypeExpr::ANY; // no schema allows nothing on purpose
    }
    let mut flat = Vec::new();
    for ty in types {
        match ty {
            TypeExpr::Union(inner) => flat.extend(inner),
            TypeExpr::Primitive(Primitive::Never) => {}
            ty => flat.push(ty),
        }
    }
    let mut types: Vec<TypeExpr> = Vec::new();
    for ty in flat {
        if !types.contains(&ty) {
            types.push(ty);
        }
    }
    match types.len() {
        0 => Primitive::Never.into(),
        1 => types.remove(0),
        _ if types.contains(&TypeExpr::ANY) => TypeExpr::ANY,
        _ => {
            // In `A?`, nil is last.
            types.sort_by_key(|ty| *ty == TypeExpr::Primitive(Primitive::Nil));
            TypeExpr::Union(types)
        }
    }
}

fn with(ty: TypeExpr, predicates: Vec<Predicate>) -> TypeExpr {
    match ty {
        ty if predicates.is_empty() => ty,
        TypeExpr::And(ty, mut all) => {
            all.extend(predicates);
            TypeExpr::And(ty, all)
        }
        ty => TypeExpr::And(Box::new(ty), predicates),
    }
}

fn number_predicates(schema: &Object<String, Json>) -> Vec<Predicate> {
    // In draft 4 the exclusive limits are booleans.
    let limit = |key| schema.get(key).filter(|limit| limit.is_number()).and_then(value_of);
    [
        limit("exclusiveMinimum").map(Predicate::GreaterThan),
        limit("minimum").map(Predicate::AtLeast),
        limit("exclusiveMaximum").map(Predicate::LessThan),
        limit("maximum").map(Predicate::AtMost),
        limit("multipleOf").filter(|n| n.compare(&0.into()).is_gt()).map(Predicate::MultipleOf),
    ]
    .into_iter()
    .flatten()
    .collect()
}

fn string_predicates(schema: &Object<String, Json>) -> Vec<Predicate> {
    let text = |key| schema.get(key).and_then(Json::as_str);
    let size = |key| size(schema, key);
    let (pattern, format) = (text("pattern"), text("format"));
    let is_url = pattern == Some(URL_PATTERN) && format == Some("uri");
    let format = |name| match name {
        "uri" if is_url => Some(Predicate::IsUrl),
        "email" => Some(Predicate::IsEmail),
        "uuid" => Some(Predicate::IsUuid),
        "date" => Some(Predicate::IsDate),
        name => text_formats().any(|known| known == name).then(|| Predicate::Format(name.into())),
    };
    [
        size("minLength").map(Predicate::MinLength),
        size("maxLength").map(Predicate::MaxLength),
        pattern.filter(|_| !is_url).map(|pattern| Predicate::MatchesRegex(pattern.into())),
        text("format").and_then(format),
    ]
    .into_iter()
    .flatten()
    .collect()
}

fn count_predicates(schema: &Object<String, Json>, min: &str, max: &str) -> Vec<Predicate> {
    let unique = min == "minItems" && schema.get("uniqueItems") == Some(&Json::Bool(true));
    [
        size(schema, min).map(Predicate::MinCount),
        size(schema, max).map(Predicate::MaxCount),
        unique.then_some(Predicate::Unique),
    ]
    .into_iter()
    .flatten()
    .collect()
}

/// Returns a size within the range of `i64`, the range of a type's notation.
fn size(schema: &Object<String, Json>, key: &str) -> Option<u64> {
    schema.get(key).and_then(Json::as_u64).filter(|size| i64::try_from(*size).is_ok())
}

fn value_of(json: &Json) -> Option<Value> {
    value_from_json(&json.to_string()).ok()
}
