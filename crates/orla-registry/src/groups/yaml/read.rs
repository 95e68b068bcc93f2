//! Folds the parser's events into a value.

use std::collections::HashMap;

use granit_parser::{Event, Marker, Parser, ScalarStyle, Tag};
use rtfs::{Map, Value};

use super::scalar::{NoNumber, resolve};
use crate::arguments::Arguments;
use crate::error::BuiltinError;
use crate::limits::{Budget, deep, vector};

type Result<T> = std::result::Result<T, BuiltinError>;

pub(super) fn parse(args: &Arguments<'_>) -> Result<Value> {
    let (text, several) = (args.text("text")?, args.flag("documents", false)?);
    let text = text.strip_prefix('\u{feff}').unwrap_or(text);
    let mut reader = Reader::new();
    for event in Parser::new_from_str(text) {
        let (event, span) = event.map_err(|error| problem(error.marker(), &error.info()))?;
        if matches!(event, Event::DocumentStart(..)) && reader.documents.len() == 1 && !several {
            return Err(problem(
                &span.start,
                "a second document begins; ask for documents to read them all",
            ));
        }
        reader.take(event, &span.start)?;
    }
    if several { vector(reader.documents) } else { Ok(reader.documents.pop().unwrap_or_default()) }
}

fn problem(at: &Marker, problem: &str) -> BuiltinError {
    let (line, column) = (at.line().max(1), at.col() + 1);
    BuiltinError::content("text", format_args!("{problem} (line {line}, column {column})"))
}

struct Reader {
    open: Vec<Open>,
    anchors: HashMap<usize, Value>,
    documents: Vec<Value>,
    budget: Budget,
}

/// A sequence or mapping whose end has not come yet.
struct Open {
    anchor: usize,
    kind: Kind,
}

enum Kind {
    List(Vec<Value>),
    Map {
        map: Map,
        key: Option<Value>,
        /// The key that waits for its value is a merge key.
        merges: bool,
        /// What merge keys bring in.
        merged: Vec<Map>,
    },
}

impl Reader {
    fn new() -> Self {
        Self { open: Vec::new(), anchors: HashMap::new(), documents: Vec::new(), budget: Budget::new() }
    }

    fn take(&mut self, event: Event<'_>, at: &Marker) -> Result<()> {
        match event {
            Event::DocumentStart(..) => self.anchors.clear(),
            Event::DocumentEnd => {}
            Event::Scalar(text, style, anchor, tag) => {
                let plain = style == ScalarStyle::Plain;
                if plain && text == "<<" && tag.is_none() && self.begin_merge() {
                    return Ok(());
                }
                let as_key = self.awaits_key();
                let value = if as_key {
                    core_tag(tag.as_deref(), at)?;
                    Value::from(&*text)
                } else {
                    scalar(&text, plain, tag.as_deref(), at)?
                };
                self.budget.weigh(&value)?;
                self.finished(value, anchor, at)?;
            }
            Event::SequenceStart(_, anchor, tag) => {
                core_tag(tag.as_deref(), at)?;
                self.begin(Kind::List(Vec::new()), anchor)?;
            }
            Event::MappingStart(_, anchor, tag) => {
                core_tag(tag.as_deref(), at)?;
                let kind = Kind::Map { map: Map::new(), key: None, merges: false, merged: Vec::new() };
                self.begin(kind, anchor)?;
            }
            Event::SequenceEnd | Event::MappingEnd => {
                if let Some(open) = self.open.pop() {
                    let value = match open.kind {
                        Kind::List(items) => vector(items)?,
                        Kind::Map { map, merged, .. } => merge(map, merged)?.into(),
                    };
                    self.finished(value, open.anchor, at)?;
                }
            }
            Event::Alias(anchor) => {
                let Some(value) = self.anchors.get(&anchor).cloned() else {
                    return Err(problem(at, "an alias cannot stand inside of what it refers to"));
                };
                self.budget.weigh(&value)?;
                self.place(value, at)?;
            }
            _ => {}
        }
        Ok(())
    }

    fn begin(&mut self, kind: Kind, anchor: usize) -> Result<()> {
        if self.open.len() >= usize::from(rtfs::MAX_DEPTH) {
            return Err(BuiltinError::limit("the nesting", format_args!("{} levels", rtfs::MAX_DEPTH)));
        }
        self.budget.items(1)?;
        self.open.push(Open { anchor, kind });
        Ok(())
    }

    fn awaits_key(&self) -> bool {
        let innermost = self.open.last().map(|open| &open.kind);
        matches!(innermost, Some(Kind::Map { key: None, merges: false, .. }))
    }

    fn begin_merge(&mut self) -> bool {
        let awaits = self.awaits_key();
        if let Some(Open { kind: Kind::Map { merges, .. }, .. }) = self.open.last_mut()
            && awaits
        {
            *merges = true;
        }
        awaits
    }

    fn finished(&mut self, value: Value, anchor: usize, at: &Marker) -> Result<()> {
        if anchor != 0 {
            self.anchors.insert(anchor, value.clone());
        }
        self.place(value, at)
    }

    /// Puts a value where it belongs: the open sequence or mapping, or the document.
    fn place(&mut self, value: Value, at: &Marker) -> Result<()> {
        let Some(open) = self.open.last_mut() else {
            self.documents.push(value);
            return Ok(());
        };
        match &mut open.kind {
            Kind::List(items) => items.push(value),
            Kind::Map { merges, merged, .. } if *merges => {
                *merges = false;
                return bring_in(value, merged, at);
            }
            Kind::Map { map, key, .. } => match key.take() {
                Some(name) => {
                    deep(map.insert(name, value))?;
                }
                None => {
                    let Value::Str(text) = &value else {
                        return Err(problem(at, "a key must be text"));
                    };
                    let name = Value::keyword(text.as_str());
                    if map.contains_key(&name) {
                        let shown = rtfs::json::cut(text.as_str(), 80);
                        return Err(problem(at, &format!("the key {shown:?} comes twice")));
                    }
                    *key = Some(name);
                }
            },
        }
        Ok(())
    }
}

fn bring_in(value: Value, merged: &mut Vec<Map>, at: &Marker) -> Result<()> {
    match value {
        Value::Map(map) => merged.push(map),
        Value::Vector(items) => {
            for item in items.items() {
                let Value::Map(map) = item else {
                    return Err(problem(at, "<<: expected a mapping, or a list of them"));
                };
                merged.push(map.clone());
            }
        }
        _ => return Err(problem(at, "<<: expected a mapping, or a list of them")),
    }
    Ok(())
}

/// What a mapping says itself wins; of what is merged, the first.
fn merge(mut map: Map, merged: Vec<Map>) -> Result<Map> {
    for other in merged {
        for (key, value) in other.iter() {
            if !map.contains_key(key) {
                deep(map.insert(key.clone(), value.clone()))?;
            }
        }
    }
    Ok(map)
}

fn scalar(text: &str, plain: bool, tag: Option<&Tag>, at: &Marker) -> Result<Value> {
    core_tag(tag, at)?;
    let is = |name: &str| tag.is_some_and(|tag| tag.is_yaml_core_schema_tag(name));
    if is("str") || tag.is_none() && !plain {
        return Ok(Value::from(text));
    }
    let value = resolve(text).map_err(|NoNumber(why)| problem(at, why))?;
    let fits = match &value {
        _ if tag.is_none() => true,
        Value::Nil => is("null"),
        Value::Bool(_) => is("bool"),
        Value::Int(_) | Value::BigInt(_) => is("int") || is("float"),
        Value::Float(_) => is("float"),
        _ => false,
    };
    if fits { Ok(value) } else { Err(problem(at, "the value is not what its tag says")) }
}

/// Only the tags of the core schema have a meaning here.
fn core_tag(tag: Option<&Tag>, at: &Marker) -> Result<()> {
    let known = ["str", "null", "bool", "int", "float", "seq", "map"];
    match tag {
        Some(tag) if !known.iter().any(|name| tag.is_yaml_core_schema_tag(name)) => {
            let shown = rtfs::json::cut(&tag.original(), 80);
            Err(problem(at, &format!("the tag {shown} is not supported")))
        }
        _ => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use rtfs::json::value_to_json;

    use crate::CapabilityRegistry;

    fn parse(text: &str) -> String {
        let mut input = rtfs::Map::new();
        input.insert(rtfs::Value::keyword("text"), text.into()).unwrap();
        match CapabilityRegistry.get("yaml.parse").unwrap().call(&input.into()) {
            Ok(value) => value_to_json(&value).unwrap(),
            Err(error) => error.to_string(),
        }
    }

    #[test]
    fn reads_by_the_core_schema() {
        let cases = [
            ("", "null"),
            ("# nothing", "null"),
            ("[1, -2, 0o17, 0xff, 1e3, .5, 1., +7, 007]", "[1,-2,15,255,1000.0,0.5,1.0,7,7]"),
            (
                "[yes, No, on, null, ~, true, 'true', !!str 1]",
                r#"["yes","No","on",null,null,true,"true","1"]"#,
            ),
            (
                "[1.2.3, 1e, e3, 2026-11-20, 12:30, '', \"\"]",
                r#"["1.2.3","1e","e3","2026-11-20","12:30","",""]"#,
            ),
            ("18446744073709551616", "18446744073709551616"),
            ("1: a\ntrue: b", r#"{"1":"a","true":"b"}"#),
            ("a: &x [1]\nb: *x", r#"{"a":[1],"b":[1]}"#),
            ("a: .inf", "text: it is no finite number (line 1, column 4)"),
            ("a: 1\na: 2", "text: the key \"a\" comes twice (line 2, column 1)"),
            ("[a]: 1", "text: a key must be text (line 1, column 3)"),
            ("a: !thing x", "text: the tag !thing is not supported (line 1, column 11)"),
            (
                "a\n---\nb",
                "text: a second document begins; ask for documents to read them all (line 2, column 1)",
            ),
            ("!!int x", "text: the value is not what its tag says (line 1, column 7)"),
        ];
        for (text, expected) in cases {
            assert_eq!(parse(text), expected, "{text}");
        }
    }

    #[test]
    fn aliases_cannot_explode() {
        let mut text = "a0: &a0 [x, x, x, x, x, x, x, x, x, x]\n".to_owned();
        for i in 1..12 {
            let alias = format!("*a{}", i - 1);
            text.push_str(&format!("a{i}: &a{i} [{}]\n", vec![alias; 10].join(", ")));
        }
        assert_eq!(parse(&text), "the work would be more than 1000000 values");
        let deep = "[".repeat(100_000);
        assert!(parse(&deep).len() < 200);
    }
}
