//! JSON Schema as a form sees it: references followed, `allOf` merged. Pure.
//!
//! A form needs less than a validator, because the call path validates the input. Rules that cannot be
//! merged are therefore left out here, never made up.

use serde_json::{Map, Value, json};

/// The maximum number of schemas that are merged for one place.
const MAX_MERGED: usize = 64;

/// A schema of one place, with everything merged that holds there.
#[derive(Clone, Debug, Default)]
pub(super) struct Place {
    /// Its keywords, without `$ref` and `allOf`.
    pub(super) keywords: Map<String, Value>,
    /// The references that were followed.
    pub(super) references: Vec<String>,
    /// Why no fields can be built from it.
    pub(super) problem: Option<String>,
}

/// Reads the schema of a place within a whole schema.
pub(super) fn place(root: &Value, schema: &Value) -> Place {
    let mut place = Place::default();
    let mut left = MAX_MERGED;
    add(root, schema, &mut place, &mut left);
    place
}

fn add(root: &Value, schema: &Value, place: &mut Place, left: &mut usize) {
    let Some(rest) = left.checked_sub(1) else {
        place.problem = Some("its schema is made of too many others".to_owned());
        return;
    };
    *left = rest;
    let keywords = match schema {
        Value::Object(keywords) => keywords,
        Value::Bool(false) => {
            place.problem = Some("its schema admits nothing".to_owned());
            return;
        }
        _ => return,
    };
    merge(&mut place.keywords, keywords, &mut place.problem);
    if let Some(reference) = keywords.get("$ref").and_then(Value::as_str) {
        match target(root, reference) {
            Some(_) if place.references.iter().any(|known| known == reference) => {
                place.problem = Some(format!("its schema refers to itself ({reference})"));
            }
            Some(target) => {
                place.references.push(reference.to_owned());
                add(root, target, place, left);
            }
            None => place.problem = Some(format!("the reference {reference} cannot be followed")),
        }
    }
    for keyword in ["$dynamicRef", "$recursiveRef"] {
        if keywords.contains_key(keyword) {
            place.problem = Some(format!("`{keyword}` is decided by the data"));
        }
    }
    for part in keywords.get("allOf").and_then(Value::as_array).into_iter().flatten() {
        add(root, part, place, left);
    }
}

/// Where a reference within a schema leads: by a pointer, or by the anchor of a definition.
fn target<'a>(root: &'a Value, reference: &str) -> Option<&'a Value> {
    let by_anchor = || {
        let definitions =
            ["$defs", "definitions"].into_iter().filter_map(|key| root.get(key)?.as_object());
        definitions.flat_map(Map::values).find(|schema| {
            let anchor = schema.get("$anchor").and_then(Value::as_str);
            anchor.is_some_and(|anchor| reference.strip_prefix('#') == Some(anchor))
        })
    };
    orla_marketplace::schema::target(root, reference).or_else(by_anchor)
}

/// Adds the keywords of another schema that holds for the same data. The first ones win where only one can.
fn merge(into: &mut Map<String, Value>, other: &Map<String, Value>, problem: &mut Option<String>) {
    let has_alternatives = into.contains_key("oneOf") || into.contains_key("anyOf");
    for (keyword, value) in other {
        match (&**keyword, into.get_mut(keyword)) {
            ("$ref" | "allOf" | "$defs" | "definitions" | "$schema" | "$id", _) => {}
            ("oneOf" | "anyOf", _) if has_alternatives => {
                *problem = Some("several sets of alternatives hold for it at once".to_owned());
            }
            (_, None) => drop(into.insert(keyword.clone(), value.clone())),
            ("properties" | "patternProperties", Some(Value::Object(known))) => {
                for (name, schema) in value.as_object().into_iter().flatten() {
                    let merged = match known.get(name) {
                        Some(first) if first != schema => json!({"allOf": [first, schema]}),
                        _ => schema.clone(),
                    };
                    known.insert(name.clone(), merged);
                }
            }
            ("required", Some(Value::Array(known))) => {
                for name in value.as_array().into_iter().flatten() {
                    if !known.contains(name) {
                        known.push(name.clone());
                    }
                }
            }
            ("type", Some(known)) => {
                let (first, second) = (words(known), words(value));
                let both = first.iter().filter_map(|word| match &**word {
                    "number" if second.contains("integer") && !second.contains("number") => {
                        Some("integer")
                    }
                    "integer" if second.contains("number") => Some("integer"),
                    word if second.contains(word) => Some(word),
                    _ => None,
                });
                *known = both.collect::<Vec<_>>().into();
            }
            ("items" | "additionalProperties", Some(known))
                if known.is_object() && value.is_object() =>
            {
                *known = json!({"allOf": [known.clone(), value]});
            }
            (_, Some(_)) => {}
        }
    }
}

struct Words(Vec<String>);

impl Words {
    fn contains(&self, word: &str) -> bool {
        self.0.iter().any(|own| own == word)
    }

    fn iter(&self) -> impl Iterator<Item = &String> {
        self.0.iter()
    }
}

fn words(types: &Value) -> Words {
    let of = |value: &Value| value.as_str().map(str::to_owned);
    Words(match types {
        Value::Array(types) => types.iter().filter_map(of).collect(),
        one => of(one).into_iter().collect(),
    })
}

impl Place {
    /// Returns a keyword that is a text.
    pub(super) fn text(&self, keyword: &str) -> Option<&str> {
        self.keywords.get(keyword)?.as_str()
    }

    pub(super) fn flag(&self, keyword: &str) -> bool {
        self.keywords.get(keyword) == Some(&Value::Bool(true))
    }

    /// Returns the types that it names.
    pub(super) fn types(&self) -> Vec<String> {
        self.keywords.get("type").map(words).map(|words| words.0).unwrap_or_default()
    }

    pub(super) fn properties(&self) -> impl Iterator<Item = (&String, &Value)> {
        self.keywords.get("properties").and_then(Value::as_object).into_iter().flatten()
    }

    pub(super) fn requires(&self, name: &str) -> bool {
        let required = self.keywords.get("required").and_then(Value::as_array);
        required.is_some_and(|names| names.iter().any(|own| own == name))
    }

    /// Returns the schema of members that are not listed; `None` if there are none.
    pub(super) fn other_members(&self) -> Option<Value> {
        let patterns = self.keywords.get("patternProperties").and_then(Value::as_object);
        let mut patterns = patterns.into_iter().flat_map(Map::values);
        let pattern = patterns.next().filter(|_| patterns.next().is_none());
        let further = ["additionalProperties", "unevaluatedProperties"];
        let further = further.into_iter().find_map(|keyword| self.keywords.get(keyword));
        match (further, pattern) {
            (None | Some(Value::Bool(false)), Some(pattern)) => Some(pattern.clone()),
            (Some(Value::Bool(false)), None) => None,
            (None | Some(Value::Bool(true)), None) => Some(Value::Bool(true)),
            (Some(schema), _) => Some(schema.clone()),
        }
    }

    /// Returns whether the schema invites other members: it says so, or lists no members.
    pub(super) fn invites_others(&self) -> bool {
        let says = ["additionalProperties", "patternProperties"].into_iter();
        let says = says
            .filter_map(|keyword| self.keywords.get(keyword))
            .any(|value| *value != Value::Bool(false));
        says || self.properties().next().is_none()
    }

    /// Returns its alternatives (`oneOf`, `anyOf`), each with everything that holds for all of them.
    /// `None` if there are none, or if they only restrict what else is said.
    pub(super) fn alternatives(&self, root: &Value) -> Option<Vec<Self>> {
        let key = ["oneOf", "anyOf"].into_iter().find(|key| self.keywords.contains_key(*key))?;
        let listed = self.keywords.get(key)?.as_array()?;
        let mut common = self.keywords.clone();
        common.shift_remove(key);
        let restricts = ["required", "not", "if", "then", "else", "minProperties", "maxProperties"];
        let only_restrict = listed.iter().all(|one| {
            let keywords = one.as_object();
            keywords
                .is_some_and(|keywords| keywords.keys().all(|keyword| restricts.contains(&&**keyword)))
        });
        if only_restrict && common.contains_key("properties") {
            return None;
        }
        let names = ["title", "description", "default", "examples"];
        let alternatives = listed.iter().map(|one| {
            let mut own = place(root, one);
            // A name of the whole is not a name of each alternative.
            let common = common.iter().filter(|(keyword, _)| !names.contains(&&***keyword));
            let common = common.map(|(keyword, value)| (keyword.clone(), value.clone())).collect();
            merge(&mut own.keywords, &common, &mut own.problem);
            own
        });
        Some(
            alternatives
                .filter(|one| one.problem.as_deref() != Some("its schema admits nothing"))
                .collect(),
        )
    }

    /// Returns whether data may be meant for it: its type, constants, listed values and required
    /// members. The validator of the call path knows more.
    pub(super) fn may_admit(&self, root: &Value, data: &crate::exact::Json, depth: usize) -> bool {
        use crate::exact::Json;
        let kind = match data {
            Json::Null => "null",
            Json::Bool(_) => "boolean",
            Json::Number(_) => "number",
            Json::Text(_) => "string",
            Json::Array(_) => "array",
            Json::Object(_) => "object",
        };
        let types = self.types();
        let is_whole = |number: &str| !number.contains(['.', 'e', 'E']);
        let fits = types.is_empty()
            || types.iter().any(|own| match (&**own, data) {
                ("integer", Json::Number(number)) => is_whole(number),
                (own, _) => own == kind,
            });
        let is = |value: &Value| Json::of(value).is_same(data);
        let listed = self.keywords.get("enum").and_then(Value::as_array);
        if !fits
            || self.keywords.get("const").is_some_and(|value| !is(value))
            || listed.is_some_and(|listed| !listed.iter().any(is))
        {
            return false;
        }
        let Json::Object(members) = data else { return true };
        let required = self.keywords.get("required").and_then(Value::as_array).into_iter().flatten();
        required.filter_map(Value::as_str).all(|name| data.get(name).is_some())
            && (self.other_members().is_some()
                || members.iter().all(|(name, _)| self.properties().any(|(own, _)| own == name)))
            && (depth > 4
                || self.properties().all(|(name, schema)| {
                    let member = data.get(name);
                    member.is_none_or(|member| place(root, schema).may_admit(root, member, depth + 1))
                }))
    }
}
