//! The input and output types of a program's function, as its text declares them.
//!
//! The forms are read as data. A type that the program names (`deftype-alias`, `defstruct`) replaces its
//! name, because a schema must be self-contained. In a type that refers to itself, deeper levels are
//! `any`.

use std::collections::HashMap;

use rtfs::{List, Map, Symbol, TypeExpr, Value};

/// The depth to which names within named types are resolved.
const FOLLOWED: usize = 4;

/// The input and output types of one function.
#[derive(Debug, Default, PartialEq)]
pub(super) struct Signature {
    /// Whether the function has a parameter.
    pub(super) takes_input: bool,
    /// Its input type, if declared.
    pub(super) input: Option<TypeExpr>,
    /// Its output type, if declared.
    pub(super) output: Option<TypeExpr>,
}

impl Signature {
    /// Returns the signature of the top-level function of this name.
    pub(super) fn of(name: &str, forms: &[Value]) -> Result<Self, String> {
        let names = Names::of(forms);
        // The last definition counts.
        let defined = forms.iter().rev().find_map(|form| match items(form)? {
            [head, defined, rest @ ..] if is(head, "defn") && is(defined, name) => Some(rest),
            _ => None,
        });
        let Some(rest) = defined else {
            // The parameters of a function that another function returns are unknown.
            return Ok(Self { takes_input: true, ..Self::default() });
        };
        let Some(at) = rest.iter().position(|part| matches!(part, Value::Vector(_) | Value::List(_)))
        else {
            return Err(format!("{name} has no parameters: (defn {name} [input] …)"));
        };
        let Value::Vector(params) = &rest[at] else {
            return Err(format!(
                "{name} has several arities, and one is called: (defn {name} [input] …)"
            ));
        };
        let mut signature = Self::default();
        match params.items() {
            [] => {}
            [param] if !is(param, "&") => {
                signature.takes_input = true;
                signature.input = names.of_pattern(param)?;
            }
            [param, mark, ty, optional @ ..]
                if is_colon(mark) && !is(param, "&") && optional.iter().all(|mark| is(mark, "?")) =>
            {
                signature.takes_input = true;
                let ty = names.ty(ty)?;
                if !matches!(ty, TypeExpr::Map(_) | TypeExpr::MapOf(..) | TypeExpr::And(..))
                    && ty != TypeExpr::ANY
                {
                    return Err(format!("the input of a tool is a map: {name} cannot take {ty}"));
                }
                signature.input = (ty != TypeExpr::ANY).then_some(ty);
            }
            _ => return Err(format!("{name} takes one parameter, the input: (defn {name} [input] …)")),
        }
        if let [mark, ty, ..] = &rest[at + 1..]
            && is_colon(mark)
        {
            let ty = names.ty(ty)?;
            signature.output = (ty != TypeExpr::ANY).then_some(ty);
        }
        Ok(signature)
    }
}

/// The types that a program names, as data.
struct Names(HashMap<String, Value>);

impl Names {
    fn of(forms: &[Value]) -> Self {
        let mut names = HashMap::new();
        for form in forms {
            let Some([head, name, rest @ ..]) = items(form) else { continue };
            let Value::Symbol(name) = name else { continue };
            if is(head, "deftype-alias")
                && let [ty] = rest
            {
                names.insert(name.name().to_owned(), ty.clone());
            } else if is(head, "defstruct") {
                names.insert(name.name().to_owned(), record(rest));
            }
        }
        Self(names)
    }

    fn ty(&self, data: &Value) -> Result<TypeExpr, String> {
        TypeExpr::from_value(&self.resolved(data, 0)).map_err(|invalid| invalid.to_string())
    }

    /// Returns the data with each name replaced by its type.
    fn resolved(&self, data: &Value, followed: usize) -> Value {
        let named = |name: &str| match self.0.get(name) {
            Some(_) if followed == FOLLOWED => Value::keyword("any"),
            Some(data) => self.resolved(data, followed + 1),
            None => data.clone(),
        };
        match data {
            Value::Symbol(symbol) => match symbol.name().strip_suffix('?') {
                Some(name) if self.0.contains_key(name) => {
                    vector(vec![Value::keyword("optional"), named(name)])
                }
                _ => named(symbol.name()),
            },
            Value::Vector(parts) => match parts.items() {
                [head, Value::Symbol(name)] if is_keyword(head, "ref") => named(name.name()),
                [head, Value::Keyword(name)] if is_keyword(head, "ref") => named(name.name()),
                // These forms hold values, not types.
                [head, ..] if is_keyword(head, "enum") || is_keyword(head, "val") => data.clone(),
                parts => vector(parts.iter().map(|part| self.resolved(part, followed)).collect()),
            },
            Value::List(parts) => {
                let parts = parts.items().iter().map(|part| self.resolved(part, followed)).collect();
                List::new(parts).map(Value::List).unwrap_or_default()
            }
            Value::Map(map) => {
                let mut resolved = Map::new();
                for (key, value) in map.iter() {
                    let _ = resolved.insert(key.clone(), self.resolved(value, followed));
                }
                Value::Map(resolved)
            }
            other => other.clone(),
        }
    }

    /// Returns the required keys of a destructured map; any type if the pattern is a name.
    fn of_pattern(&self, pattern: &Value) -> Result<Option<TypeExpr>, String> {
        let Value::Map(pattern) = pattern else { return Ok(None) };
        let defaults = match pattern.get_keyword("or") {
            Some(Value::Map(defaults)) => {
                defaults.iter().filter_map(|(name, _)| name_of(name)).collect()
            }
            _ => Vec::new(),
        };
        let mut fields: Vec<(&str, bool)> = Vec::new();
        for (key, value) in pattern.iter() {
            match (key, value) {
                (Value::Keyword(key), Value::Vector(keys)) if matches!(key.name(), "keys" | "strs") => {
                    let keys = keys.items().iter().filter_map(name_of);
                    fields.extend(keys.map(|name| (name, defaults.contains(&name))));
                }
                (Value::Keyword(key), _) if matches!(key.name(), "or" | "as") => {}
                (Value::Symbol(name), Value::Keyword(field)) => {
                    fields.push((field.name(), defaults.contains(&name.name())));
                }
                (Value::Keyword(field), name) => {
                    let is_default = name_of(name).is_some_and(|name| defaults.contains(&name));
                    fields.push((field.name(), is_default));
                }
                _ => {}
            }
        }
        let field = |(name, optional): &(&str, bool)| {
            let mut parts = vec![Value::keyword(*name), Value::keyword("any")];
            if *optional {
                parts.push(Value::Symbol(Symbol::new("?")));
            }
            vector(parts)
        };
        let parts = std::iter::once(Value::keyword("map")).chain(fields.iter().map(field));
        self.ty(&vector(parts.collect())).map(Some)
    }
}

/// Returns the record of a struct's fields: `:x :float :y :float ?`.
fn record(fields: &[Value]) -> Value {
    let mut parts = vec![Value::keyword("map")];
    let mut rest = fields;
    while let [key, ty, more @ ..] = rest {
        let (mark, more) = match more {
            [mark, more @ ..] if is(mark, "?") => (Some(mark.clone()), more),
            _ => (None, more),
        };
        let is_optional = name_of(ty).is_some_and(|name| name.ends_with('?'));
        let mark = mark.or_else(|| is_optional.then(|| Value::Symbol(Symbol::new("?"))));
        parts.push(vector([key.clone(), ty.clone()].into_iter().chain(mark).collect()));
        rest = more;
    }
    vector(parts)
}

fn items(form: &Value) -> Option<&[Value]> {
    match form {
        Value::List(list) => Some(list.items()),
        _ => None,
    }
}

fn vector(parts: Vec<Value>) -> Value {
    Value::vector(parts).unwrap_or_default()
}

fn name_of(value: &Value) -> Option<&str> {
    match value {
        Value::Symbol(name) => Some(name.name()),
        Value::Keyword(name) => Some(name.name()),
        _ => None,
    }
}

fn is(value: &Value, name: &str) -> bool {
    matches!(value, Value::Symbol(symbol) if symbol.name() == name)
}

fn is_keyword(value: &Value, name: &str) -> bool {
    matches!(value, Value::Keyword(keyword) if keyword.name() == name)
}

fn is_colon(value: &Value) -> bool {
    is(value, ":-") || is(value, ":")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn signature(text: &str) -> Result<Signature, String> {
        Signature::of("main", &rtfs::read(&rtfs::Source::new("", text)).unwrap())
    }

    #[test]
    fn annotations_and_patterns_are_the_schemas() {
        for (text, input, output) in [
            ("(defn main [input] 1)", "", ""),
            ("(defn main [] 1)", "", ""),
            ("(defn main [input :- :any] :- :any 1)", "", ""),
            (
                "(defn main \"Doc.\" [input :- [:map {:a :int}]] :- [:vector :int] [1])",
                "[:map [:a :int]]",
                "[:vector :int]",
            ),
            ("(defn main [i : [:map [:a :int ?]]] : :int 1)", "[:map [:a :int ?]]", ":int"),
            ("(defn main [{:keys [a b], :or {b 1}, :as all}] a)", "[:map [:a :any] [:b :any ?]]", ""),
            ("(defn main [{x :k, :j y, :or {y 1}}] x)", "[:map [:k :any] [:j :any ?]]", ""),
            ("(defn main [{:keys [a]} :- [:map {:a :int}]] a)", "[:map [:a :int]]", ""),
            (
                "(deftype-alias City [:enum Paris :oslo]) (defstruct Trip :from City :to City?) (defn main [t :- Trip] 1)",
                "[:map [:from [:enum Paris :oslo]] [:to [:union [:enum Paris :oslo] :nil] ?]]",
                "",
            ),
        ] {
            let signature = signature(text).unwrap_or_else(|err| panic!("{text}: {err}"));
            let shown = |ty: Option<TypeExpr>| ty.map(|ty| ty.to_string()).unwrap_or_default();
            assert_eq!((&*shown(signature.input), &*shown(signature.output)), (input, output), "{text}");
        }
        assert!(!signature("(defn main [] 1)").unwrap().takes_input);
        assert!(signature("(def main (comp inc :n))").unwrap().takes_input);
    }

    #[test]
    fn a_type_that_refers_to_itself_is_anything_further_down() {
        let text = "(deftype-alias Tree [:map {:kids [:vector [:ref Tree]]}]) (defn main [t :- Tree] 1)";
        assert!(signature(text).unwrap().input.is_some());
    }

    #[test]
    fn a_main_that_cannot_take_one_input_is_refused() {
        for (text, words) in [
            ("(defn main [a b] 1)", "one parameter"),
            ("(defn main [& all] 1)", "one parameter"),
            ("(defn main [n :- :int] 1)", "is a map"),
            ("(defn main ([a] 1) ([a b] 2))", "several arities"),
            ("(defn main [a :- [:vectr :int]] 1)", "vectr"),
        ] {
            let message = signature(text).unwrap_err();
            assert!(message.contains(words), "{text}: {message}");
        }
    }
}
