//! Folds the parser's events into a value.

use std::collections::HashMap;

use granit_parser::{Event, Marker, Parser, ScalarStyle, Span, StructureStyle, Tag};
use rtfs::{Map, Value};

use super::scalar::{NoNumber, resolve};
use crate::arguments::Arguments;
use crate::error::BuiltinError;
use crate::groups::size;
use crate::limits::{Budget, deep, vector};

type Result<T> = std::result::Result<T, BuiltinError>;

pub(super) fn parse(args: &Arguments<'_>) -> Result<Value> {
    let several = args.flag("documents", false)?;
    let mut documents = read(args.text("text")?, several)?.documents;
    if several { vector(documents) } else { Ok(documents.pop().unwrap_or_default()) }
}

/// Returns the tags that [`parse`] ignores, in the order of the text.
pub(super) fn tags(args: &Arguments<'_>) -> Result<Value> {
    let ignored = read(args.text("text")?, true)?.ignored;
    let rows = ignored.into_iter().map(|IgnoredTag { tag, line, column }| {
        let mut row = Map::new();
        for (name, value) in [("tag", tag.into()), ("line", size(line)), ("column", size(column))] {
            deep(row.insert(Value::keyword(name), value))?;
        }
        Ok(row.into())
    });
    vector(rows.collect::<Result<_>>()?)
}

fn read(text: &str, several: bool) -> Result<Reader> {
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
        reader.take(event, &span)?;
    }
    Ok(reader)
}

fn problem(at: &Marker, problem: &str) -> BuiltinError {
    let (line, column) = (at.line().max(1), at.col() + 1);
    BuiltinError::content("text", format_args!("{problem} (line {line}, column {column})"))
}

struct Reader {
    open: Vec<Open>,
    anchors: HashMap<usize, Value>,
    documents: Vec<Value>,
    ignored: Vec<IgnoredTag>,
    budget: Budget,
}

/// A tag outside of the core schema. Its node is read as plain data.
struct IgnoredTag {
    tag: String,
    line: usize,
    column: usize,
}

/// A sequence or mapping that is still open.
struct Open {
    anchor: usize,
    style: StructureStyle,
    start: Marker,
    kind: Kind,
}

enum Kind {
    List(Vec<Value>),
    Map {
        map: Map,
        key: Option<Value>,
        /// Whether the key that waits for its value is a merge key.
        merges: bool,
        /// The maps from merge keys.
        merged: Vec<Map>,
    },
}

impl Reader {
    fn new() -> Self {
        Self {
            open: Vec::new(),
            anchors: HashMap::new(),
            documents: Vec::new(),
            ignored: Vec::new(),
            budget: Budget::new(),
        }
    }

    fn take(&mut self, event: Event<'_>, span: &Span) -> Result<()> {
        let at = &span.start;
        if event.is_node() {
            self.check_indentation(at)?;
        }
        match event {
            Event::DocumentStart(..) => self.anchors.clear(),
            Event::DocumentEnd => {}
            Event::Scalar(text, style, anchor, tag) => {
                self.note(tag.as_deref(), span)?;
                let plain = style == ScalarStyle::Plain;
                if plain && text == "<<" && tag.is_none() && self.begin_merge() {
                    return Ok(());
                }
                let value = if self.awaits_key() {
                    Value::from(&*text)
                } else {
                    scalar(&text, plain, tag.as_deref(), at)?
                };
                self.budget.weigh(&value)?;
                self.finished(value, anchor, at)?;
            }
            Event::SequenceStart(style, anchor, tag) => {
                self.note(tag.as_deref(), span)?;
                self.begin(Open { anchor, style, start: *at, kind: Kind::List(Vec::new()) })?;
            }
            Event::MappingStart(style, anchor, tag) => {
                self.note(tag.as_deref(), span)?;
                let kind = Kind::Map { map: Map::new(), key: None, merges: false, merged: Vec::new() };
                self.begin(Open { anchor, style, start: *at, kind })?;
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

    /// Checks that a flow collection that continues on another line is indented more than its block
    /// (YAML 1.2.2 §7.4). Its closing bracket need not be: many files have it below the key, and other
    /// readers accept it.
    fn check_indentation(&self, at: &Marker) -> Result<()> {
        let is_block = |open: &&Open| open.style == StructureStyle::Block;
        let Some(flow) = self.open.last().filter(|open| !is_block(open)) else { return Ok(()) };
        match self.open.iter().rev().find(is_block) {
            Some(block) if at.line() > flow.start.line() && at.col() <= block.start.col() => {
                Err(problem(at, "a line within [] or {} must be indented more than the block around it"))
            }
            _ => Ok(()),
        }
    }

    /// Records a tag without a meaning in the core schema. `!` has one: it makes a scalar a text.
    fn note(&mut self, tag: Option<&Tag>, span: &Span) -> Result<()> {
        let Some(tag) = tag.filter(|tag| tag.is_custom()).map(Tag::original) else { return Ok(()) };
        if tag != "!" {
            self.budget.items(4)?;
            self.budget.text(tag.len())?;
            let at = span.tag_start.unwrap_or(span.start);
            self.ignored.push(IgnoredTag { tag, line: at.line(), column: at.col() + 1 });
        }
        Ok(())
    }

    fn begin(&mut self, open: Open) -> Result<()> {
        if self.open.len() >= usize::from(rtfs::MAX_DEPTH) {
            return Err(BuiltinError::limit("the nesting", format_args!("{} levels", rtfs::MAX_DEPTH)));
        }
        self.budget.items(1)?;
        self.open.push(open);
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

    /// Adds a value to the open sequence or mapping, or makes it the document.
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
                        let shown = rtfs::text::excerpt(text.as_str(), 80);
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

/// Merges maps. A mapping's own members take precedence; of merged members, the first.
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

/// Returns the value of a scalar. With a tag outside of the core schema, `!` included, the text is not a
/// plain number, boolean or null, so it stays a text (YAML 1.2.2 §6.9.1 and §3.3.2).
fn scalar(text: &str, plain: bool, tag: Option<&Tag>, at: &Marker) -> Result<Value> {
    let is = |name: &str| tag.is_some_and(|tag| tag.is_yaml_core_schema_tag(name));
    if is("str") || tag.map_or(!plain, Tag::is_custom) {
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

#[cfg(test)]
mod tests {
    use rtfs::json::value_to_json;

    use crate::CapabilityRegistry;

    fn parse(text: &str) -> String {
        call("yaml.parse", text)
    }

    fn call(builtin: &str, text: &str) -> String {
        let mut input = rtfs::Map::new();
        input.insert(rtfs::Value::keyword("text"), text.into()).unwrap();
        match CapabilityRegistry.get(builtin).unwrap().call(&input.into()) {
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
    fn a_tag_outside_of_the_core_schema_leaves_plain_data() {
        let cases = [
            ("a: !thing x", r#"{"a":"x"}"#),
            (
                "[!thing 12, ! 12, !thing true, !thing, !<tag:example.com,2000:n> 1.5]",
                r#"["12","12","true","","1.5"]"#,
            ),
            ("!circle {x: 1, !key y: !list [2]}", r#"{"x":1,"y":[2]}"#),
            ("!!set {a, b}", r#"{"a":null,"b":null}"#),
            ("!!omap [a: 1, b: 2]", r#"[{"a":1},{"b":2}]"#),
            ("!!binary |\n aGk\n =\n", r#""aGk\n=\n""#),
            ("%TAG !! tag:example.com,2000:app/\n---\n!!int 1 - 3", r#""1 - 3""#),
            ("%TAG !y! tag:yaml.org,2002:\n---\n!y!int 0x10", "16"),
        ];
        for (text, expected) in cases {
            assert_eq!(parse(text), expected, "{text}");
        }
    }

    #[test]
    fn ignored_tags_are_listed_with_their_places() {
        let cases = [
            ("a: !!str 1\nb: ! 2", "[]"),
            (
                "%TAG !e! tag:example.com,2000:\n---\na: &x !e!b\n  !c d: 1\n---\n- !<x:y> z",
                r#"[{"tag":"!e!b","line":3,"column":7},{"tag":"!c","line":4,"column":3},{"tag":"!<x:y>","line":6,"column":3}]"#,
            ),
            ("a: [", "text: unclosed bracket '[' (line 1, column 4)"),
        ];
        for (text, expected) in cases {
            assert_eq!(call("yaml.tags", text), expected, "{text}");
        }
    }

    #[test]
    fn a_flow_collection_is_indented_more_than_its_block() {
        let under = |line, column| {
            let problem = "a line within [] or {} must be indented more than the block around it";
            format!("text: {problem} (line {line}, column {column})")
        };
        let cases = [
            ("flow: [a,\nb,\nc]", under(2, 1)),
            ("- k: {a: [1,\n  2]}", under(2, 3)),
            ("flow: [a,\n b,\n [c]\n]", r#"{"flow":["a","b",["c"]]}"#.to_owned()),
            ("{a: [1,\n2],\nb: 3}", r#"{"a":[1,2],"b":3}"#.to_owned()),
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
