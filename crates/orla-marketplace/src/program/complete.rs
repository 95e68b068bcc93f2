//! Completes the text before the cursor. Pure.
//!
//! Inside `(call :id {` the function completes a key of the capability's input, or one of its allowed
//! values; after `(call` a capability; elsewhere a name.

use rtfs::layout::{Token, TokenKind, tokens};
use rtfs::{Value, all_names, documentation, special_forms};
use serde_json::Value as Json;

/// The maximum number of offered names.
const OFFERED: usize = 200;

/// The known words.
#[derive(Default)]
pub struct Words {
    /// Names that are valid anywhere, in order.
    pub names: Vec<String>,
    /// Capabilities as keywords, in order.
    pub capabilities: Vec<String>,
    /// Defined functions, with their parameters.
    pub functions: Vec<(String, String)>,
}

impl Words {
    /// Collects the names of the language, further names of the program, and these capabilities.
    pub fn new<'a>(own: impl IntoIterator<Item = String>, ids: impl Iterator<Item = &'a str>) -> Self {
        let of_language = all_names().into_iter().chain(special_forms().iter().copied());
        let mut names: Vec<String> = of_language.map(str::to_owned).chain(own).collect();
        let mut capabilities: Vec<String> = ids.map(|id| Value::keyword(id).pr_str()).collect();
        for words in [&mut names, &mut capabilities] {
            words.sort_unstable();
            words.dedup();
        }
        Self { names, capabilities, functions: Vec::new() }
    }
}

/// The completions at the end of a text.
#[derive(Debug, PartialEq)]
pub struct Completed {
    /// The start of the completed part, in bytes.
    pub from: usize,
    /// The candidates.
    pub offered: Vec<Completion>,
}

/// One candidate.
#[derive(Clone, Debug, PartialEq)]
pub struct Completion {
    /// The text to insert.
    pub text: String,
    /// The text in the list of candidates.
    pub shown: String,
}

impl Completion {
    fn plain(text: impl Into<String>) -> Self {
        let text = text.into();
        Self { shown: text.clone(), text }
    }
}

/// The completions at the end of this text. `schema` returns the input schema of a capability.
#[must_use]
pub fn completed(words: &Words, schema: impl Fn(&str) -> Option<Json>, before: &str) -> Completed {
    let mut all = tokens(before);
    let begun = all.pop_if(|token| {
        matches!(
            token.kind,
            TokenKind::Symbol | TokenKind::Keyword | TokenKind::Mark | TokenKind::Literal
        )
    });
    let begun = begun.map_or("", |token| token.text);
    let from = before.len() - begun.len();
    let mut offered = match CallInput::of(&all) {
        Some(CallInput { id, path, key: None, used }) => {
            let schema = schema(&id);
            schema
                .as_ref()
                .and_then(|schema| at(schema, &path))
                .map_or_else(Vec::new, |map| keys(map, &used))
        }
        Some(CallInput { id, path, key: Some(key), .. }) => {
            let schema = schema(&id);
            let map = schema.as_ref().and_then(|schema| at(schema, &path));
            map.and_then(|map| map["properties"].get(key)).map_or_else(Vec::new, values)
        }
        None if is_capability(&all) => words.capabilities.iter().map(Completion::plain).collect(),
        None => Vec::new(),
    };
    offered.retain(|offer| offer.text.starts_with(begun));
    if offered.is_empty() && !begun.is_empty() {
        let mut names = fitting(&words.names, begun);
        names.extend(fitting(&words.capabilities, begun));
        // Names of this entry, usually those that `let` and `fn` bind.
        let own =
            all.iter().filter(|token| matches!(token.kind, TokenKind::Symbol | TokenKind::Keyword));
        names.extend(own.map(|token| token.text).filter(|name| name.starts_with(begun)));
        names.retain(|name| *name != begun);
        names.sort_unstable();
        names.dedup();
        offered = names.into_iter().map(Completion::plain).collect();
    }
    offered.truncate(OFFERED);
    Completed { from, offered }
}

fn fitting<'w>(words: &'w [String], begun: &str) -> Vec<&'w str> {
    let from = words.partition_point(|name| name.as_str() < begun);
    words[from..].iter().take_while(|name| name.starts_with(begun)).map(String::as_str).collect()
}

/// Returns the remaining parameters of a function, for a text that ends after its name or an argument.
#[must_use]
pub fn hint(words: &Words, schema: impl Fn(&str) -> Option<Json>, before: &str) -> Option<String> {
    let all = tokens(before);
    if all.last()?.kind != TokenKind::Space {
        return None;
    }
    if let Some(CallInput { id, path, key: None, used }) = CallInput::of(&all) {
        let schema = schema(&id)?;
        let left = keys(at(&schema, &path)?, &used);
        return (!left.is_empty())
            .then(|| left.into_iter().map(|offer| offer.shown).collect::<Vec<_>>().join("  "));
    }
    let opened = opened(&all);
    let (open, inside) = opened.last()?;
    let [head] = inside.as_slice() else { return None };
    if *open != "(" || head.kind != TokenKind::Symbol {
        return None;
    }
    let own = words.functions.iter().find(|(name, _)| name == head.text);
    match own {
        Some((_, params)) => Some(params.clone()),
        None => Some(documentation(head.text)?.params.trim_start_matches(';').trim().to_owned()),
    }
}

/// Returns whether a capability's id comes next: `(call `, `(describe `.
fn is_capability(all: &[Token<'_>]) -> bool {
    let opened = opened(all);
    let Some((open, inside)) = opened.last() else { return false };
    let [head] = inside.as_slice() else { return false };
    *open == "(" && matches!(head.text, "call" | "describe" | "stream")
}

/// A place in the input of a call.
#[derive(Debug, PartialEq)]
struct CallInput<'t> {
    id: String,
    /// The keys that lead to the map.
    path: Vec<&'t str>,
    /// The key whose value comes next; `None` if a key comes next.
    key: Option<&'t str>,
    /// Keys that are present already.
    used: Vec<&'t str>,
}

impl<'t> CallInput<'t> {
    fn of(all: &[Token<'t>]) -> Option<Self> {
        let opened = opened(all);
        let call = opened.iter().rposition(|(open, _)| *open != "{")?;
        let (open, inside) = &opened[call];
        let [head, id] = inside.as_slice() else { return None };
        let maps = &opened[call + 1..];
        let (last, outer) = maps.split_last()?;
        if *open != "(" || head.text != "call" {
            return None;
        }
        let id = match id.kind {
            TokenKind::Keyword => id.text.trim_start_matches(':').trim_matches('"'),
            TokenKind::Text => id.text.trim_matches('"'),
            _ => return None,
        };
        // Each map on the path is the value of the preceding key.
        let path = outer.iter().map(|(_, inside)| match inside.len() % 2 {
            1 => inside.last().and_then(key_of),
            _ => None,
        });
        let path = path.collect::<Option<Vec<_>>>()?;
        let (_, inside) = last;
        let used = inside.iter().step_by(2).filter_map(key_of).collect();
        let key = match inside.len() % 2 {
            1 => Some(inside.last().and_then(key_of)?),
            _ => None,
        };
        Some(Self { id: id.to_owned(), path, key, used })
    }
}

fn key_of<'t>(token: &Token<'t>) -> Option<&'t str> {
    (token.kind == TokenKind::Keyword).then(|| token.text.trim_start_matches(':').trim_matches('"'))
}

/// Returns the open brackets at the end, each with its forms. A bracketed form is represented by its
/// opening bracket. A form with a prefix counts once.
fn opened<'t>(all: &[Token<'t>]) -> Vec<(&'t str, Vec<Token<'t>>)> {
    let mut open: Vec<(&str, Vec<Token<'_>>)> = Vec::new();
    for token in all {
        match token.kind {
            TokenKind::Open => {
                open.push((token.text, Vec::new()));
            }
            TokenKind::Close => {
                if let Some((bracket, _)) = open.pop()
                    && let Some((_, outer)) = open.last_mut()
                {
                    outer.push(Token { kind: TokenKind::Open, text: bracket });
                }
            }
            TokenKind::Symbol | TokenKind::Keyword | TokenKind::Literal | TokenKind::Text => {
                if let Some((_, inside)) = open.last_mut() {
                    inside.push(*token);
                }
            }
            _ => {}
        }
    }
    open
}

/// Returns the schema at a path of properties.
fn at<'s>(schema: &'s Json, path: &[&str]) -> Option<&'s Json> {
    path.iter().try_fold(schema, |schema, key| schema["properties"].get(key))
}

/// Returns the properties of a schema, the required ones first.
fn keys(schema: &Json, used: &[&str]) -> Vec<Completion> {
    let Some(properties) = schema["properties"].as_object() else { return Vec::new() };
    let required: Vec<&str> =
        schema["required"].as_array().into_iter().flatten().filter_map(Json::as_str).collect();
    let mut offered = Vec::new();
    for (name, schema) in properties.iter().filter(|(name, _)| !used.contains(&name.as_str())) {
        let is_required = required.contains(&name.as_str());
        let ty = schema["type"].as_str().map(|ty| format!(" {ty}")).unwrap_or_default();
        let text = Value::keyword(name.as_str()).pr_str();
        let shown = format!("{text}{}{ty}", if is_required { "" } else { "?" });
        offered.push((is_required, Completion { text, shown }));
    }
    offered.sort_by_key(|(is_required, _)| !is_required);
    offered.into_iter().map(|(_, offer)| offer).collect()
}

/// Returns the values that a schema allows or gives as examples, in RTFS notation.
fn values(schema: &Json) -> Vec<Completion> {
    let listed = ["enum", "examples"].into_iter().filter_map(|key| schema[key].as_array()).flatten();
    let single = [&schema["const"], &schema["default"]].into_iter().filter(|value| !value.is_null());
    static BOTH: [Json; 2] = [Json::Bool(true), Json::Bool(false)];
    let flags = BOTH.iter().filter(|_| schema["type"] == "boolean");
    let mut offered: Vec<Completion> = Vec::new();
    for value in listed.chain(single).chain(flags) {
        let Ok(value) = rtfs::json::value_from_json(&value.to_string()) else {
            continue;
        };
        let offer = Completion::plain(value.pr_str());
        if !offered.contains(&offer) {
            offered.push(offer);
        }
    }
    offered
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn words() -> Words {
        let owned = |names: &[&str]| names.iter().map(|name| (*name).to_owned()).collect();
        Words {
            names: owned(&["map", "map-indexed", "mapcat"]),
            capabilities: owned(&[":math.add", ":math.sub", ":weather.current"]),
            functions: vec![("area".to_owned(), "w h".to_owned())],
        }
    }

    fn schema(id: &str) -> Option<Json> {
        (id == "weather.current").then(|| {
            json!({"properties": {
                "days": {"type": "integer"},
                "units": {"enum": ["metric", "imperial"]},
                "fresh": {"type": "boolean"},
                "at": {"properties": {"lat": {"type": "number"}, "odd key": {}}},
                "city": {"type": "string"},
            }, "required": ["city"]})
        })
    }

    #[test]
    fn completions_fit_the_position_of_the_cursor() {
        for (before, from, offered) in [
            ("(map", 1, &["map-indexed", "mapcat"][..]),
            ("(call ", 6, &[":math.add", ":math.sub", ":weather.current"]),
            ("(call :math.", 6, &[":math.add", ":math.sub"]),
            ("(f :math.a", 3, &[":math.add"]),
            ("(x ", 3, &[]),
            ("\"ma", 3, &[]),
            ("(call :weather.current {", 24, &[":city", ":days", ":units", ":fresh", ":at"]),
            ("(call :weather.current {:", 24, &[":city", ":days", ":units", ":fresh", ":at"]),
            ("(call \"weather.current\" {:c", 25, &[":city"]),
            (
                "(call :weather.current {:city \"Paris\", :days (inc 1)\n ",
                54,
                &[":units", ":fresh", ":at"],
            ),
            ("(call :weather.current {:units ", 31, &["\"metric\"", "\"imperial\""]),
            ("(call :weather.current {:fresh t", 31, &["true"]),
            ("(call :weather.current {:at {", 29, &[":lat", ":\"odd key\""]),
            ("(call :nobody {", 15, &[]),
            ("(let [temperature 1] (+ temp", 24, &["temperature"]),
        ] {
            let got = completed(&words(), schema, before);
            let texts: Vec<&str> = got.offered.iter().map(|offer| offer.text.as_str()).collect();
            assert_eq!((got.from, &texts[..]), (from, offered), "{before}");
        }
        let got = completed(&words(), schema, "(call :weather.current {");
        assert_eq!(got.offered[0].shown, ":city string");
        assert_eq!(got.offered[1].shown, ":days? integer");
    }

    #[test]
    fn a_hint_lists_the_remaining_arguments() {
        for (before, hinted) in [
            ("(map ", Some("f coll …")),
            ("(area ", Some("w h")),
            ("(area 1 ", None),
            ("(map", None),
            (
                "(call :weather.current {:city \"P\" :units \"metric\" ",
                Some(":days? integer  :fresh? boolean  :at?"),
            ),
            ("(nobody ", None),
            ("", None),
        ] {
            assert_eq!(hint(&words(), schema, before).as_deref(), hinted, "{before}");
        }
    }
}
