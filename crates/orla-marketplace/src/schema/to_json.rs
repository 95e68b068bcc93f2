//! Converts a [`TypeExpr`] to JSON Schema.
//!
//! A schema describes values in JSON, where keywords, symbols, instants and UUIDs are strings and sets
//! are arrays. Constraints that JSON Schema cannot express are left out, so the schema admits the JSON
//! of every value of the type and perhaps more: it is an over-approximation. Below `not`, the schema is
//! an under-approximation: it admits only JSON of values of the type. There is one exception: JSON
//! Schema treats `1.0` as an integer.

use std::cell::{Cell, RefCell};
use std::collections::BTreeSet;

use rtfs::json::{key_name, value_to_json};
use rtfs::{Definitions, Field, MapType, Primitive, TypeExpr, Value};
use serde_json::{Map as Object, Value as Json, json};

use super::conditions::{conditions, constrained, is_exact};

/// An integer as the key of a map.
pub(super) const INTEGER_PATTERN: &str = "^(0|-?[1-9][0-9]*)$";

/// Returns the JSON Schema (2020-12) of a type: the original if there is one, or else the nearest one.
///
/// The schema describes the type's JSON form, so a `:keyword` is a string and a `[:set T]` an array. It
/// admits the JSON of every value of the type, and more if JSON Schema has no equivalent: functions,
/// streams and unknown names admit any value. Names that the type carries
/// ([`TypeExpr::with_definitions`]) become `$defs`.
pub fn json_schema_of(ty: &TypeExpr) -> Json {
    match ty {
        TypeExpr::JsonSchema { text, meaning } => {
            serde_json::from_str(text).unwrap_or_else(|_| json_schema_of(meaning))
        }
        TypeExpr::Defined { ty, definitions } => json_schema_with(ty, definitions),
        ty => json_schema_with(ty, &Definitions::new()),
    }
}

fn json_schema_with(ty: &TypeExpr, definitions: &Definitions) -> Json {
    let converter = Converter { definitions, used: RefCell::default(), nested: Cell::new(0) };
    let mut schema = converter.schema(ty, Approximation::Over);
    let mut defs = Object::new();
    loop {
        let next = converter.used.borrow().iter().find(|name| !defs.contains_key(*name)).cloned();
        let Some(name) = next else { break };
        let meaning = definitions.get(&name).map(|ty| converter.schema(ty, Approximation::Over));
        defs.insert(name, meaning.unwrap_or_else(|| json!({})));
    }
    if !defs.is_empty()
        && let Some(schema) = schema.as_object_mut()
    {
        schema.insert("$defs".to_owned(), Json::Object(defs));
    }
    schema
}

/// How a schema may differ from a type.
#[derive(Clone, Copy, PartialEq)]
enum Approximation {
    /// The schema admits all that the type does.
    Over,
    /// The schema admits only what the type admits.
    Under,
}

impl Approximation {
    fn other(self) -> Self {
        match self {
            Self::Over => Self::Under,
            Self::Under => Self::Over,
        }
    }

    /// Returns the schema if there is no equivalent.
    fn inexpressible(self) -> Json {
        match self {
            Self::Over => json!({}),
            Self::Under => json!(false),
        }
    }

    /// Returns the schema of a type whose JSON is also that of another type, such as keywords (strings):
    /// the schema itself when over-approximating, `false` when under-approximating.
    fn looks_like(self, schema: Json) -> Json {
        match self {
            Self::Over => schema,
            Self::Under => json!(false),
        }
    }
}

/// Converts types. Knows the definitions of names, and which of them have been used.
struct Converter<'d> {
    definitions: &'d Definitions,
    used: RefCell<BTreeSet<String>>,
    /// The number of nested schemas with their own references.
    nested: Cell<usize>,
}

impl Converter<'_> {
    fn schema(&self, ty: &TypeExpr, approximation: Approximation) -> Json {
        match ty {
            TypeExpr::JsonSchema { text, meaning } => match serde_json::from_str(text) {
                Ok(original) => self.nested(original),
                Err(_) => self.schema(meaning, approximation),
            },
            // Names inside a type with its own definitions differ from those around it.
            TypeExpr::Defined { ty, definitions } => self.nested(json_schema_with(ty, definitions)),
            TypeExpr::Ref(name) => self.reference(name, approximation),
            TypeExpr::Primitive(primitive) => primitive_schema(*primitive, approximation),
            TypeExpr::Union(types) => {
                any_of(types.iter().map(|ty| self.schema(ty, approximation)).collect())
            }
            TypeExpr::Vector(item) => array_of(&self.schema(item, approximation)),
            TypeExpr::List(item) => {
                approximation.looks_like(array_of(&self.schema(item, approximation)))
            }
            TypeExpr::Set(item) => {
                let mut schema = array_of(&self.schema(item, approximation));
                if is_injective(item) {
                    schema["uniqueItems"] = true.into();
                }
                approximation.looks_like(schema)
            }
            TypeExpr::Tuple(items) => {
                tuple_of(&items.iter().map(|ty| self.schema(ty, approximation)).collect::<Vec<_>>())
            }
            TypeExpr::Array { item, shape } => {
                shape.iter().rev().fold(self.schema(item, approximation), |inner, size| {
                    let mut schema = array_of(&inner);
                    if let Some(n) = size {
                        schema["minItems"] = (*n).into();
                        schema["maxItems"] = (*n).into();
                    }
                    schema
                })
            }
            TypeExpr::Map(record) => self.record(record, approximation),
            TypeExpr::MapOf(key, value) => self.dictionary(key, value, approximation),
            TypeExpr::Enum(values) => constants(values, approximation),
            TypeExpr::Val(value) => constants(std::slice::from_ref(value), approximation),
            TypeExpr::And(ty, predicates) => {
                let kind = self.kind_of(ty);
                let all =
                    predicates.iter().try_fold(self.schema(ty, approximation), |schema, predicate| {
                        let conditions = conditions(predicate, ty, kind);
                        match conditions.filter(|_| {
                            approximation == Approximation::Over || is_exact(predicate, kind)
                        }) {
                            Some(conditions) => Some(constrained(schema, conditions)),
                            None => (approximation == Approximation::Over).then_some(schema),
                        }
                    });
                all.unwrap_or_else(|| approximation.inexpressible())
            }
            TypeExpr::Not(ty) => negated(self.schema(ty, approximation.other())),
            TypeExpr::Fn { .. } | TypeExpr::Stream(_) => approximation.inexpressible(),
        }
    }

    /// Returns a schema nested in another. Its references lead into itself.
    fn nested(&self, mut schema: Json) -> Json {
        let refers = ["\"$ref\"", "\"$dynamicRef\"", "\"$recursiveRef\""];
        let text = schema.to_string();
        if let Some(object) = schema.as_object_mut()
            && refers.iter().any(|keyword| text.contains(keyword))
            && !object.contains_key("$id")
        {
            self.nested.set(self.nested.get() + 1);
            object.insert("$id".to_owned(), format!("nested:{}", self.nested.get()).into());
        }
        schema
    }

    fn reference(&self, name: &str, approximation: Approximation) -> Json {
        if approximation == Approximation::Under || !self.resolves(name) {
            return approximation.inexpressible();
        }
        self.used.borrow_mut().insert(name.to_owned());
        json!({ "$ref": format!("#/$defs/{}", escaped(name)) })
    }

    /// Returns whether a name leads to something other than itself.
    fn resolves(&self, name: &str) -> bool {
        let (mut open, mut seen) = (vec![name], BTreeSet::from([name]));
        while let Some(next) = open.pop() {
            let mut types: Vec<_> = self.definitions.get(next).into_iter().collect();
            if types.is_empty() {
                return false;
            }
            while let Some(ty) = types.pop() {
                match ty {
                    TypeExpr::Ref(other) if **other == *name => return false,
                    TypeExpr::Ref(other) if seen.insert(other) => open.push(other),
                    TypeExpr::Union(inner) => types.extend(inner),
                    TypeExpr::And(inner, _) | TypeExpr::Not(inner) => types.push(inner),
                    _ => {}
                }
            }
        }
        true
    }

    fn record(&self, record: &MapType, approximation: Approximation) -> Json {
        let (mut properties, mut required) = (Object::new(), Vec::new());
        for Field { key, ty, optional } in &record.fields {
            let Some(name) = key_name(key) else {
                // A map that has this key cannot be written as JSON, but a map without it can.
                if *optional && approximation == Approximation::Over {
                    continue;
                }
                return approximation.inexpressible();
            };
            if approximation == Approximation::Under && !matches!(key, Value::Keyword(_)) {
                return json!(false);
            }
            let is_alone = record
                .fields
                .iter()
                .all(|field| field.key == *key || key_name(&field.key).as_deref() != Some(&name));
            if !is_alone {
                // JSON does not distinguish the two.
                properties.insert(name.into_owned(), json!({}));
                continue;
            }
            if !optional {
                required.push(name.clone().into_owned());
            }
            properties.insert(name.into_owned(), self.schema(ty, approximation));
        }
        let mut schema = json!({ "type": "object" });
        if !properties.is_empty() {
            schema["properties"] = properties.into();
        }
        if !required.is_empty() {
            schema["required"] = required.into();
        }
        if let Some(others) = &record.others {
            match self.schema(others, approximation) {
                all if is_any(&all) => {}
                others => schema["additionalProperties"] = others,
            }
        }
        schema
    }

    fn dictionary(&self, key: &TypeExpr, value: &TypeExpr, approximation: Approximation) -> Json {
        let names = match (self.key_schema(key), approximation) {
            (names, Approximation::Over) => names.unwrap_or_else(|| json!({})),
            (Some(names), Approximation::Under)
                if is_any(&names) && *key != TypeExpr::Primitive(Primitive::String) =>
            {
                names
            }
            _ => return json!(false),
        };
        let mut schema = json!({ "type": "object" });
        match self.schema(value, approximation) {
            all if is_any(&all) => {}
            values => schema["additionalProperties"] = values,
        }
        if !is_any(&names) {
            schema["propertyNames"] = names;
        }
        schema
    }

    /// Returns the condition on the keys of an object whose keys have a type, if JSON Schema can express
    /// it.
    fn key_schema(&self, ty: &TypeExpr) -> Option<Json> {
        Some(match ty {
            TypeExpr::Primitive(
                Primitive::Any | Primitive::String | Primitive::Keyword | Primitive::Symbol,
            ) => json!({}),
            TypeExpr::Primitive(Primitive::Int) => json!({ "pattern": INTEGER_PATTERN }),
            TypeExpr::Primitive(Primitive::Uuid) => json!({ "format": "uuid" }),
            TypeExpr::Primitive(Primitive::Instant) => json!({ "format": "date-time" }),
            TypeExpr::Enum(keys) => {
                json!({ "enum": keys.iter().map(key_name).collect::<Option<Vec<_>>>()? })
            }
            TypeExpr::Val(key) => json!({ "const": key_name(key)? }),
            TypeExpr::And(ty, predicates) => match &**ty {
                TypeExpr::Primitive(Primitive::String | Primitive::Keyword | Primitive::Symbol) => {
                    let all = predicates
                        .iter()
                        .filter_map(|predicate| conditions(predicate, ty, Some(Kind::Text)));
                    all.fold(json!({}), constrained)
                }
                _ => return None,
            },
            _ => return None,
        })
    }

    /// Returns the JSON kind of all values of a type, if there is only one.
    fn kind_of(&self, ty: &TypeExpr) -> Option<Kind> {
        match ty {
            TypeExpr::Primitive(primitive) => match primitive {
                Primitive::Int | Primitive::Float | Primitive::Number => Some(Kind::Number),
                Primitive::String | Primitive::Keyword | Primitive::Symbol => Some(Kind::Text),
                _ => None,
            },
            TypeExpr::Vector(_)
            | TypeExpr::List(_)
            | TypeExpr::Set(_)
            | TypeExpr::Tuple(_)
            | TypeExpr::Array { .. } => Some(Kind::Array),
            TypeExpr::Map(_) | TypeExpr::MapOf(..) => Some(Kind::Object),
            TypeExpr::And(ty, _) => self.kind_of(ty),
            _ => None,
        }
    }
}

#[derive(Clone, Copy, PartialEq)]
pub(super) enum Kind {
    Number,
    Text,
    Array,
    Object,
}

fn primitive_schema(primitive: Primitive, approximation: Approximation) -> Json {
    match primitive {
        Primitive::Any => json!({}),
        Primitive::Never => json!(false),
        Primitive::Nil => json!({ "type": "null" }),
        Primitive::Bool => json!({ "type": "boolean" }),
        Primitive::Int => json!({ "type": "integer" }),
        Primitive::Float | Primitive::Number => json!({ "type": "number" }),
        Primitive::String => json!({ "type": "string" }),
        Primitive::Keyword | Primitive::Symbol => approximation.looks_like(json!({ "type": "string" })),
        Primitive::Instant => {
            approximation.looks_like(json!({ "type": "string", "format": "date-time" }))
        }
        Primitive::Uuid => approximation.looks_like(json!({ "type": "string", "format": "uuid" })),
        Primitive::Fn => approximation.inexpressible(),
    }
}

fn is_any(schema: &Json) -> bool {
    *schema == json!({}) || *schema == json!(true)
}

fn any_of(mut schemas: Vec<Json>) -> Json {
    schemas.retain(|schema| *schema != json!(false));
    if schemas.iter().any(is_any) {
        return json!({});
    }
    match schemas.len() {
        0 => json!(false),
        1 => schemas.remove(0),
        _ => match bare_types(&schemas) {
            Some(names) if names.len() == 1 => json!({ "type": names[0] }),
            Some(names) => json!({ "type": names }),
            None => json!({ "anyOf": schemas }),
        },
    }
}

/// Returns the names of the types, if each schema contains only a type.
fn bare_types(schemas: &[Json]) -> Option<Vec<&str>> {
    let mut names = Vec::new();
    for schema in schemas {
        let kind = schema.as_object().filter(|schema| schema.len() == 1)?.get("type")?;
        match kind {
            Json::Array(several) => names.extend(several.iter().filter_map(Json::as_str)),
            one => names.extend(one.as_str()),
        }
    }
    let mut seen = BTreeSet::new();
    names.retain(|name| seen.insert(*name));
    Some(names)
}

fn array_of(item: &Json) -> Json {
    if is_any(item) { json!({ "type": "array" }) } else { json!({ "type": "array", "items": item }) }
}

fn tuple_of(items: &[Json]) -> Json {
    match items.len() {
        0 => json!({ "type": "array", "maxItems": 0 }),
        n => {
            json!({ "type": "array", "prefixItems": items, "items": false, "minItems": n, "maxItems": n })
        }
    }
}

fn negated(schema: Json) -> Json {
    match schema {
        Json::Bool(admits) => {
            if admits {
                json!(false)
            } else {
                json!({})
            }
        }
        all if is_any(&all) => json!(false),
        schema => json!({ "not": schema }),
    }
}

/// Returns a schema of one of these values. Values without JSON are left out. Values whose JSON is not
/// exact cannot be expressed.
fn constants(values: &[Value], approximation: Approximation) -> Json {
    let mut all: Vec<Json> = Vec::new();
    for value in values {
        match exact_json(value) {
            // An under-approximation must not admit the string `a` for the keyword `:a`.
            Ok(_) if approximation == Approximation::Under && !round_trips(value) => {}
            Ok(json) if !all.contains(&json) => all.push(json),
            Ok(_) => {}
            Err(NoJson::None) => {}
            Err(NoJson::Inexact) if approximation == Approximation::Under => {}
            Err(NoJson::Inexact) => return json!({}),
        }
    }
    match all.len() {
        0 => approximation.inexpressible(),
        1 => json!({ "const": all.remove(0) }),
        _ => json!({ "enum": all }),
    }
}

pub(super) enum NoJson {
    None,
    /// A number that serde's tree cannot hold exactly.
    Inexact,
}

pub(super) fn exact_json(value: &Value) -> Result<Json, NoJson> {
    let text = value_to_json(value).map_err(|_| NoJson::None)?;
    let json: Json = serde_json::from_str(&text).map_err(|_| NoJson::Inexact)?;
    let again = rtfs::json::value_from_json(&json.to_string()).map_err(|_| NoJson::Inexact)?;
    let before = rtfs::json::value_from_json(&text).map_err(|_| NoJson::Inexact)?;
    if again.compare(&before).is_eq() { Ok(json) } else { Err(NoJson::Inexact) }
}

/// Returns whether parsing its JSON gives the same value again.
pub(super) fn round_trips(value: &Value) -> bool {
    let json = value_to_json(value).ok();
    json.is_some_and(|json| rtfs::json::value_from_json(&json).is_ok_and(|again| again == *value))
}

/// Returns whether `value` is a member of a type in which distinct values have distinct JSON.
pub(super) fn is_one_of(value: &Value, ty: &TypeExpr) -> bool {
    is_injective(ty) && ty.admits(value)
}

/// Returns whether distinct items of this array type have distinct JSON.
pub(super) fn is_array_of_injective(ty: &TypeExpr) -> bool {
    match ty {
        TypeExpr::Vector(item) | TypeExpr::List(item) | TypeExpr::Set(item) => is_injective(item),
        TypeExpr::Array { item, shape } => shape.len() <= 1 && is_injective(item),
        TypeExpr::And(ty, _) => is_array_of_injective(ty),
        _ => false,
    }
}

/// Returns whether two different values of a type also differ in JSON, where `1` and `1.0`, or `"a"` and
/// `:a`, are the same.
fn is_injective(ty: &TypeExpr) -> bool {
    match ty {
        TypeExpr::Primitive(primitive) => {
            !matches!(primitive, Primitive::Any | Primitive::Float | Primitive::Number | Primitive::Fn)
        }
        TypeExpr::And(ty, _) => is_injective(ty),
        TypeExpr::Union(types) => {
            let kinds: Option<Vec<_>> = types.iter().map(json_kind).collect();
            let differ =
                |kinds: Vec<u8>| kinds.iter().enumerate().all(|(i, kind)| !kinds[..i].contains(kind));
            kinds.is_some_and(differ) && types.iter().all(is_injective)
        }
        TypeExpr::Vector(item) | TypeExpr::List(item) => is_injective(item),
        TypeExpr::Tuple(items) => items.iter().all(is_injective),
        TypeExpr::MapOf(key, value) => {
            matches!(**key, TypeExpr::Primitive(Primitive::Keyword | Primitive::String))
                && is_injective(value)
        }
        TypeExpr::Enum(values) => {
            let all: Option<Vec<_>> = values.iter().map(|value| exact_json(value).ok()).collect();
            // Numbers are compared by value.
            let same = |a: &Json, b: &Json| a == b || (a.is_number() && a.as_f64() == b.as_f64());
            all.is_some_and(|all| {
                all.iter().enumerate().all(|(i, json)| !all[..i].iter().any(|other| same(other, json)))
            })
        }
        TypeExpr::Val(_) => true,
        _ => false,
    }
}

/// Returns a number for the JSON kind of all values of a type, if there is only one.
fn json_kind(ty: &TypeExpr) -> Option<u8> {
    Some(match ty {
        TypeExpr::Primitive(Primitive::Nil) => 0,
        TypeExpr::Primitive(Primitive::Bool) => 1,
        TypeExpr::Primitive(Primitive::Int) => 2,
        TypeExpr::Primitive(
            Primitive::String
            | Primitive::Keyword
            | Primitive::Symbol
            | Primitive::Instant
            | Primitive::Uuid,
        ) => 3,
        TypeExpr::Vector(_) | TypeExpr::List(_) | TypeExpr::Tuple(_) => 4,
        TypeExpr::Map(_) | TypeExpr::MapOf(..) => 5,
        TypeExpr::And(ty, _) => json_kind(ty)?,
        _ => return None,
    })
}

/// Escapes a name as a step of a reference: of a JSON pointer, in a URI.
fn escaped(name: &str) -> String {
    let pointer = name.replace('~', "~0").replace('/', "~1");
    let mut uri = String::new();
    for byte in pointer.bytes() {
        if byte.is_ascii_alphanumeric() || b"-._~!$&'()*+,;=:@".contains(&byte) {
            uri.push(char::from(byte));
        } else {
            uri.push_str(&format!("%{byte:02X}"));
        }
    }
    uri
}
