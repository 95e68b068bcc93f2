//! A document as a tree whose references can be followed. Pure.

use std::collections::BTreeMap;
use std::fmt;

use serde_json::Value as Json;

/// The longest chain of references to references.
const MAX_HOPS: usize = 32;
/// The member of the root that holds the other files of a document, by their names.
pub(super) const FILES: &str = "x-orla-files";

/// An OpenAPI document.
#[derive(Debug)]
pub(super) struct Document {
    pub(super) root: Json,
    pub(super) dialect: Dialect,
    /// The reasons why other files could not be read, by their names.
    refused: BTreeMap<String, String>,
    /// The SHA-256 of the text, and of the texts of the other files.
    pub(super) digest: String,
}

/// The JSON Schema dialect of a document.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Dialect {
    /// The dialect of OpenAPI 3.0: `nullable`, and limits that are exclusive by a flag.
    Draft3_0,
    /// JSON Schema 2020-12, of OpenAPI 3.1 and later.
    Draft2020,
}

/// A problem and its place: `#/paths/~1pets/get: …`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Warning {
    /// A JSON pointer into the document, as a fragment.
    pub place: String,
    /// The problem, and the consequence.
    pub problem: String,
}

impl fmt::Display for Warning {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", self.place, self.problem)
    }
}

impl Warning {
    pub(super) fn new(place: impl Into<String>, problem: impl Into<String>) -> Self {
        Self { place: place.into(), problem: problem.into() }
    }
}

impl Document {
    /// Parses a document that is one file.
    #[cfg(test)]
    pub(super) fn parse(text: &str) -> Result<Self, String> {
        super::bundle::Bundle::new(text, None)?.finish()
    }

    /// Creates a document from a tree whose references stay within it. `refused` are the files that are
    /// missing from it.
    ///
    /// # Errors
    /// It is not an OpenAPI document of a known version.
    pub(super) fn of(
        root: Json,
        refused: BTreeMap<String, String>,
        digest: String,
    ) -> Result<Self, String> {
        let version = match (root.get("openapi"), root.get("swagger")) {
            (Some(version), _) => version,
            (None, Some(_)) => {
                return Err("this is Swagger 2.0; convert it to OpenAPI 3 first".to_owned());
            }
            (None, None) => return Err("not an OpenAPI document: `openapi` is missing".to_owned()),
        };
        let dialect = match version {
            Json::String(version) if version.starts_with("3.0") => Dialect::Draft3_0,
            Json::String(version) if version.starts_with("3.") => Dialect::Draft2020,
            Json::Number(number) if number.as_f64() == Some(3.0) => Dialect::Draft3_0,
            Json::Number(number)
                if number.as_f64().is_some_and(|number| (3.0..4.0).contains(&number)) =>
            {
                Dialect::Draft2020
            }
            other => return Err(format!("OpenAPI {other} is not supported; 3.0 and 3.1 are")),
        };
        Ok(Self { root, dialect, refused, digest })
    }

    /// Returns the tree, and a warning for each file that is missing from it.
    pub(super) fn into_parts(self) -> (Json, Vec<Warning>) {
        let missing = self.refused.into_iter().map(|(file, problem)| {
            Warning::new(file, format!("cannot be read: {problem}; what needs it is left out"))
        });
        (self.root, missing.collect())
    }

    /// Returns a value with its references followed, and the place of the target, if it was a reference.
    ///
    /// # Errors
    /// A reference that leads nowhere, out of the document, or in a circle.
    pub(super) fn resolve<'a>(&'a self, value: &'a Json) -> Result<(&'a Json, Option<String>), String> {
        let (mut at, mut place) = (value, None);
        for _ in 0..MAX_HOPS {
            let Some(reference) = at.get("$ref").and_then(Json::as_str) else { return Ok((at, place)) };
            let pointer = pointer_of(reference)?;
            at = self.at(&pointer)?;
            place = Some(pointer);
        }
        Err("a reference leads in a circle".to_owned())
    }

    /// Returns the value at a pointer.
    ///
    /// # Errors
    /// The pointer leads nowhere, or into a file that could not be read; then the error says why.
    pub(super) fn at(&self, pointer: &str) -> Result<&Json, String> {
        self.root.pointer(pointer).ok_or_else(|| match file_of(pointer) {
            Some((file, rest)) => match self.refused.get(&file) {
                Some(problem) => format!("{file} cannot be read: {problem}"),
                None => format!("{file}#{rest} leads nowhere"),
            },
            None => format!("#{pointer} leads nowhere"),
        })
    }

    /// Returns the member `name` of the document's components.
    pub(super) fn component(&self, kind: &str, name: &str) -> Option<&Json> {
        self.root.get("components")?.get(kind)?.get(name)
    }
}

/// Returns the file that a pointer into [`FILES`] leads to, and the pointer within that file.
fn file_of(pointer: &str) -> Option<(String, &str)> {
    let rest = pointer.strip_prefix('/')?.strip_prefix(FILES)?.strip_prefix('/')?;
    let (file, rest) = rest.split_at(rest.find('/').unwrap_or(rest.len()));
    Some((file.replace("~1", "/").replace("~0", "~"), rest))
}

/// Returns a name for the target of a pointer: its last step, or the file's name without its extension.
pub(super) fn last_step(pointer: &str) -> String {
    match file_of(pointer) {
        Some((file, "")) => {
            let name = file.rsplit('/').next().unwrap_or(&file);
            name.rsplit_once('.').map_or(name, |(stem, _)| stem).to_owned()
        }
        _ => pointer.rsplit('/').next().unwrap_or_default().to_owned(),
    }
}

/// Parses JSON or YAML. `max_weight` bounds the size of YAML with its aliases expanded.
///
/// # Errors
/// What is wrong with it, with line and column.
pub(super) fn tree(text: &str, max_weight: usize) -> Result<Json, String> {
    let text = text.strip_prefix('\u{feff}').unwrap_or(text);
    if text.trim_start().starts_with('{') {
        // Invalid JSON may be YAML.
        return serde_json::from_str(text)
            .or_else(|err| yaml(text, max_weight).map_err(|_| json_error(&err)));
    }
    yaml(text, max_weight)
}

fn yaml(text: &str, max_weight: usize) -> Result<Json, String> {
    let node = orla_document::parse_within(text, max_weight).map_err(|err| err.to_string())?;
    node.map(|node| node.to_json()).ok_or_else(|| "the document is empty".to_owned())
}

fn json_error(err: &serde_json::Error) -> String {
    let message = err.to_string();
    let problem = message.split(" at line ").next().unwrap_or(&message);
    format!("{}:{}: {problem}", err.line(), err.column())
}

/// Returns the JSON pointer of a reference within the document.
pub(super) fn pointer_of(reference: &str) -> Result<String, String> {
    let Some(fragment) = reference.strip_prefix('#') else {
        return Err(match reference.contains('#') && !reference.contains("#/") {
            true => format!("{reference} names an anchor, which is not followed"),
            false => format!(
                "{reference} leads out of the document's directory or origin, and is not followed"
            ),
        });
    };
    let pointer = percent_encoding::percent_decode_str(fragment)
        .decode_utf8()
        .map_err(|_| format!("{reference} is not UTF-8"))?;
    if !(pointer.is_empty() || pointer.starts_with('/')) {
        return Err(format!("{reference} names an anchor, which is not followed"));
    }
    Ok(pointer.into_owned())
}

/// Escapes one step of a JSON pointer.
pub(super) fn step(key: &str) -> String {
    key.replace('~', "~0").replace('/', "~1")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_document_says_what_it_is() {
        let cases = [
            ("openapi: 3.0.3\n", Ok(Dialect::Draft3_0)),
            (r#"{"openapi": "3.1.0"}"#, Ok(Dialect::Draft2020)),
            ("{openapi: 3.1}", Ok(Dialect::Draft2020)),
            ("swagger: '2.0'", Err("this is Swagger 2.0; convert it to OpenAPI 3 first")),
            ("a: 1", Err("not an OpenAPI document: `openapi` is missing")),
            ("openapi: 4.0.0", Err("OpenAPI \"4.0.0\" is not supported; 3.0 and 3.1 are")),
            ("# nothing", Err("the document is empty")),
            ("{\"openapi\": \"3.0.0\",\n oops", Err("2:2: key must be a string")),
        ];
        for (text, expected) in cases {
            let dialect = Document::parse(text).map(|document| document.dialect);
            assert_eq!(dialect, expected.map_err(str::to_owned), "{text}");
        }
    }

    #[test]
    fn references_are_followed_within_the_document() {
        let document = Document::parse(
            r##"{"openapi": "3.1.0", "a/b": {"x y": {"n": 1}},
                "r": {"$ref": "#/q"}, "q": {"$ref": "#/a~1b/x%20y"},
                "c": {"$ref": "#/d"}, "d": {"$ref": "#/c"},
                "out": {"$ref": "other.yaml#/x"}, "gone": {"$ref": "#/nope"}, "anchor": {"$ref": "#here"}}"##,
        )
        .unwrap();
        let resolve = |key: &str| document.resolve(&document.root[key]);
        let (found, place) = resolve("r").unwrap();
        assert_eq!((&found["n"], place.as_deref()), (&Json::from(1), Some("/a~1b/x y")));
        assert_eq!(resolve("c").unwrap_err(), "a reference leads in a circle");
        assert_eq!(
            resolve("out").unwrap_err(),
            "other.yaml#/x leads out of the document's directory or origin, and is not followed"
        );
        assert_eq!(resolve("gone").unwrap_err(), "#/nope leads nowhere");
        assert_eq!(resolve("anchor").unwrap_err(), "#here names an anchor, which is not followed");
    }
}
