//! Converts one operation to the settings, schemas and description of one capability. Pure.

use std::collections::{HashMap, HashSet};

use orla_marketplace::{
    BodyMapping, HttpOptions, HttpParameter, HttpPart, ParameterPlace as Place, ParameterStyle as Style,
};
use serde_json::{Map, Value as Json, json};

use super::document::{Dialect, Document};
use super::schema::{Converter, Side, shortened};

/// The maximum length of an argument's name that every client accepts.
const MAX_ARGUMENT: usize = 64;
/// The maximum number of properties of a body that become separate arguments.
const MAX_MERGED: usize = 100;
/// The maximum size of an input schema, in bytes of JSON.
const MAX_INPUT_SCHEMA: usize = 256 * 1024;
/// The maximum size of an answer schema, in bytes of JSON.
const MAX_OUTPUT_SCHEMA: usize = 64 * 1024;

/// An operation without its address.
pub(super) struct Operation {
    pub(super) options: HttpOptions,
    pub(super) input: Json,
    pub(super) output: Option<Json>,
}

/// Parses one operation of `path`; `shared` are the parameters of the path. The schema of answers, which
/// is most of the work, is made only if `wants_output` is set.
///
/// # Errors
/// Why it cannot be imported.
pub(super) fn read(
    document: &Document,
    path: &str,
    method: &str,
    operation: &Json,
    shared: &Json,
    wants_output: bool,
) -> Result<Operation, String> {
    let mut input = Input::new(document);
    let mut options = HttpOptions::default();
    options.method = Some(method.to_ascii_uppercase());
    options.path = template(path)?;
    for parameter in parameters(document, operation, shared)? {
        options.parameters.extend(input.parameter(parameter)?);
    }
    check_path(&options)?;
    options.body = BodyMapping::None;
    if let Some(body) = operation.get("requestBody") {
        input.body(document.resolve(body)?.0, &mut options)?;
    }
    let answers = Answers::of(document, operation)?;
    options.accept = answers.media_types;
    let output = answers.schemas.filter(|_| wants_output).and_then(|all| together(document, &all));
    Ok(Operation { options, input: input.schema()?, output })
}

/// Converts a path to a template. Parameters are in single braces in both notations.
fn template(path: &str) -> Result<String, String> {
    let mut rest = path;
    while let Some(at) = rest.find(['{', '}']) {
        let name = rest[at..].strip_prefix('{').and_then(|inside| inside.split_once('}'));
        let Some((_, after)) = name.filter(|(name, _)| !name.is_empty() && !name.contains('{')) else {
            return Err(format!("the path {path} has a brace that is not closed"));
        };
        rest = after;
    }
    // A query in a path is not valid OpenAPI, but is common.
    Ok(path.to_owned())
}

fn check_path(options: &HttpOptions) -> Result<(), String> {
    let mut rest = options.path.as_str();
    while let Some((_, inside)) = rest.split_once('{') {
        let Some((name, after)) = inside.split_once('}') else { break };
        let is_declared = |p: &HttpParameter| p.place == Place::Path && p.name == name;
        if !options.parameters.iter().any(is_declared) {
            return Err(format!("the path's parameter {name} is not declared"));
        }
        rest = after;
    }
    Ok(())
}

/// Returns the parameters of an operation: those of the path, overridden by its own.
fn parameters<'a>(
    document: &'a Document,
    operation: &'a Json,
    shared: &'a Json,
) -> Result<Vec<&'a Json>, String> {
    let mut found: Vec<&Json> = Vec::new();
    let mut places: HashMap<(&str, &str), usize> = HashMap::new();
    let own = document.resolve(operation.get("parameters").unwrap_or(&Json::Null))?.0.as_array();
    let shared = document.resolve(shared)?.0.as_array();
    for parameter in shared.into_iter().chain(own).flatten() {
        let parameter = document.resolve(parameter)?.0;
        let text = |key| parameter.get(key).and_then(Json::as_str);
        let (Some(name), Some(place)) = (text("name"), text("in")) else {
            return Err("a parameter has no name or no `in`".to_owned());
        };
        match places.get(&(name, place)) {
            Some(at) => found[*at] = parameter,
            None => {
                places.insert((name, place), found.len());
                found.push(parameter);
            }
        }
    }
    Ok(found)
}

/// The arguments of a capability, collected step by step.
struct Input<'a> {
    document: &'a Document,
    converter: Converter<'a>,
    properties: Map<String, Json>,
    required: Vec<String>,
    /// The schema of arguments that are not listed.
    others: Json,
}

impl<'a> Input<'a> {
    fn new(document: &'a Document) -> Self {
        Self {
            document,
            converter: Converter::new(document, Side::Request),
            properties: Map::new(),
            required: Vec::new(),
            others: Json::Bool(false),
        }
    }

    fn parameter(&mut self, parameter: &Json) -> Result<Option<HttpParameter>, String> {
        let text = |key| parameter.get(key).and_then(Json::as_str).unwrap_or_default();
        let name = text("name");
        let place = match text("in") {
            "path" => Place::Path,
            "query" => Place::Query,
            "header" => Place::Header,
            "cookie" => Place::Cookie,
            other => return Err(format!("the parameter {name} is in {other:?}")),
        };
        // Other parts of the operation describe these headers.
        let is_elsewhere = ["accept", "content-type", "authorization"]
            .iter()
            .any(|header| place == Place::Header && name.eq_ignore_ascii_case(header));
        if is_elsewhere {
            return Ok(None);
        }
        let argument = self.argument(name, text("in"));
        let mut found = HttpParameter::new(&argument, name, place);
        let content = parameter.get("content").and_then(Json::as_object);
        let schema = match content.and_then(|content| content.iter().next()) {
            Some((media_type, content)) => {
                if is_json(media_type) {
                    found.style = Style::Json;
                }
                content.get("schema")
            }
            None => parameter.get("schema"),
        };
        if content.is_none() {
            if let Some(style) = parameter.get("style").and_then(Json::as_str) {
                found.style = style_of(style, place)
                    .ok_or_else(|| format!("the parameter {name} has the style {style:?}"))?;
            }
            let explode = parameter.get("explode").and_then(Json::as_bool);
            found.explode = explode.unwrap_or(found.style == Style::Form);
            found.allow_reserved = parameter.get("allowReserved") == Some(&Json::Bool(true));
        }
        let mut schema = self.converter.convert(schema.unwrap_or(&Json::Bool(true)))?;
        describe(&mut schema, text("description"));
        if let Some(example) = parameter.get("example")
            && schema.get("examples").is_none()
            && (example.is_string() || example.is_number())
        {
            schema["examples"] = json!([example]);
        }
        let is_required = place == Place::Path || parameter.get("required") == Some(&Json::Bool(true));
        self.property(&argument, schema, is_required);
        Ok(Some(found))
    }

    fn property(&mut self, name: &str, schema: Json, is_required: bool) {
        self.properties.insert(name.to_owned(), schema);
        if is_required {
            self.required.push(name.to_owned());
        }
    }

    /// Returns a unique name for an argument that every client accepts.
    fn argument(&self, name: &str, place: &str) -> String {
        let plain = argument_name(name);
        if !self.properties.contains_key(&plain) {
            return plain;
        }
        let stem = argument_name(&format!("{}_{place}", &plain[..plain.len().min(MAX_ARGUMENT - 12)]));
        let numbered = (2..).map(|number| format!("{stem}_{number}"));
        let mut names = std::iter::once(stem.clone()).chain(numbered);
        names.find(|name| !self.properties.contains_key(name)).unwrap_or(stem)
    }

    fn body(&mut self, body: &Json, options: &mut HttpOptions) -> Result<(), String> {
        let content = body.get("content").and_then(Json::as_object);
        let Some((media_type, content)) = content.and_then(preferred) else { return Ok(()) };
        let is_required = body.get("required") == Some(&Json::Bool(true));
        let schema = content.get("schema").unwrap_or(&Json::Bool(true));
        let kind = essence(media_type);
        // An argument of any type is sent as its schema suggests.
        let media_type = if kind.contains('*') { any_of(&kind, schema) } else { media_type.clone() };
        let kind = essence(&media_type);
        let is_multipart = kind == "multipart/form-data";
        let is_object = is_json(&kind) || is_multipart || kind == "application/x-www-form-urlencoded";
        options.media_type = Some(media_type);
        if is_multipart {
            options.parts = self.parts(schema, content.get("encoding"))?;
        }
        if is_object
            && options
                .method
                .as_deref()
                .is_some_and(|method| !matches!(method, "GET" | "HEAD" | "DELETE" | "OPTIONS"))
            && self.merge(schema, is_required)?
        {
            options.body = BodyMapping::Rest;
            return Ok(());
        }
        let argument = self.argument("body", "content");
        let mut schema = match () {
            () if is_object => self.converter.convert(schema)?,
            () if is_text(&kind) => json!({"type": "string"}),
            () => json!({"type": "string", "contentEncoding": "base64"}),
        };
        let description = body.get("description").and_then(Json::as_str).unwrap_or_default();
        match description {
            "" => describe(&mut schema, &format!("The body, as {kind}.")),
            text => describe(&mut schema, text),
        }
        self.property(&argument, schema, is_required);
        options.body = BodyMapping::Argument(argument);
        Ok(())
    }

    /// Makes arguments from the properties of a body, if the body is a plain object and no name occurs
    /// twice.
    fn merge(&mut self, schema: &Json, is_required: bool) -> Result<bool, String> {
        const PLAIN: [&str; 16] = [
            "type",
            "properties",
            "required",
            "additionalProperties",
            "description",
            "title",
            "example",
            "examples",
            "deprecated",
            "externalDocs",
            "xml",
            "default",
            "$id",
            "$schema",
            "$comment",
            "discriminator",
        ];
        let target = self.document.resolve(schema)?.0;
        let Some(members) = target.as_object() else { return Ok(false) };
        let is_plain = members.keys().all(|key| PLAIN.contains(&&**key) || key.starts_with("x-"));
        let Some(properties) = members.get("properties").and_then(Json::as_object) else {
            return Ok(false);
        };
        let is_free =
            |name: &String| *name == argument_name(name) && !self.properties.contains_key(name);
        let requires =
            members.get("required").and_then(Json::as_array).is_some_and(|all| !all.is_empty());
        if !is_plain
            || members.get("type").is_some_and(|name| name != "object")
            || properties.len() > MAX_MERGED
            || !properties.keys().all(is_free)
            || (requires && !is_required)
        {
            return Ok(false);
        }
        let mut converted = self.converter.convert(target)?;
        if let Some(Json::Object(properties)) = converted.get_mut("properties").map(Json::take) {
            self.properties.extend(properties);
        }
        if let Some(required) = converted.get("required").and_then(Json::as_array) {
            self.required.extend(required.iter().filter_map(Json::as_str).map(str::to_owned));
        }
        self.others = converted.get("additionalProperties").cloned().unwrap_or(Json::Bool(true));
        Ok(true)
    }

    /// Returns the encodings of the parts of a multipart body.
    fn parts(
        &self,
        schema: &Json,
        encoding: Option<&Json>,
    ) -> Result<std::collections::BTreeMap<String, HttpPart>, String> {
        let mut parts = std::collections::BTreeMap::new();
        let target = self.document.resolve(schema)?.0;
        for (name, property) in target.get("properties").and_then(Json::as_object).into_iter().flatten()
        {
            let property = self.document.resolve(property)?.0;
            let item = match property.get("items") {
                Some(items) => self.document.resolve(items)?.0,
                None => property,
            };
            let media_type = encoding
                .and_then(|encoding| encoding.get(name)?.get("contentType")?.as_str())
                .map(|list| list.split(',').next().unwrap_or_default().trim().to_owned())
                .filter(|media_type| !media_type.contains('*') && !media_type.contains(['\r', '\n']));
            let is_file = match self.document.dialect {
                Dialect::Draft3_0 => item.get("format").is_some_and(|format| format == "binary"),
                Dialect::Draft2020 => {
                    item.get("format").is_some_and(|format| format == "binary")
                        || item.get("contentMediaType").is_some()
                        || item.get("contentEncoding").is_some_and(|encoding| encoding == "base64")
                }
            };
            if is_file || media_type.is_some() {
                parts.insert(name.clone(), HttpPart { media_type, is_file });
            }
        }
        Ok(parts)
    }

    /// Returns the schema of the whole input.
    fn schema(self) -> Result<Json, String> {
        let mut schema = json!({"type": "object", "properties": self.properties});
        let mut known = HashSet::new();
        let required: Vec<_> =
            self.required.into_iter().filter(|name| known.insert(name.clone())).collect();
        if !required.is_empty() {
            schema["required"] = required.into();
        }
        if self.others != Json::Bool(true) {
            schema["additionalProperties"] = self.others;
        }
        let definitions = self.converter.definitions()?;
        if !definitions.is_empty() {
            schema["$defs"] = definitions.into();
        }
        match schema.to_string().len() {
            size if size > MAX_INPUT_SCHEMA => Err(format!(
                "its input schema has {size} bytes, at most {MAX_INPUT_SCHEMA} are possible"
            )),
            _ => Ok(schema),
        }
    }
}

/// The successful answers of an operation.
struct Answers<'a> {
    media_types: Vec<String>,
    /// The schemas of JSON answers, if every one has a schema.
    schemas: Option<Vec<&'a Json>>,
}

impl<'a> Answers<'a> {
    fn of(document: &'a Document, operation: &'a Json) -> Result<Self, String> {
        let mut answers = Self { media_types: Vec::new(), schemas: None };
        let mut schemas: Vec<&Json> = Vec::new();
        let mut is_known = true;
        let responses =
            document.resolve(operation.get("responses").unwrap_or(&Json::Null))?.0.as_object();
        for (_, response) in
            responses.into_iter().flatten().filter(|(status, _)| status.starts_with('2'))
        {
            let response = document.resolve(response)?.0;
            let Some(content) = response.get("content").and_then(Json::as_object) else { continue };
            let json: Vec<_> = content.iter().filter(|(media_type, _)| is_json(media_type)).collect();
            let first = json.iter().find(|(media_type, _)| essence(media_type) == "application/json");
            match first.or(json.first()) {
                Some((media_type, content)) => {
                    answers.accepts(media_type);
                    match content.get("schema") {
                        Some(schema) if !schemas.contains(&schema) => schemas.push(schema),
                        Some(_) => {}
                        None => is_known = false,
                    }
                }
                None => content.keys().for_each(|media_type| answers.accepts(media_type)),
            }
        }
        answers.schemas = is_known.then_some(schemas);
        Ok(answers)
    }

    fn accepts(&mut self, media_type: &str) {
        let is_header = media_type.bytes().all(|byte| (b' '..=b'~').contains(&byte));
        if is_header && !self.media_types.iter().any(|known| known == media_type) {
            self.media_types.push(media_type.to_owned());
        }
    }
}

/// Returns the schema of an answer that matches one of these; `None` if it cannot be used.
fn together(document: &Document, schemas: &[&Json]) -> Option<Json> {
    let mut converter = Converter::new(document, Side::Response);
    let mut converted =
        schemas.iter().map(|schema| converter.convert(schema)).collect::<Result<Vec<_>, _>>().ok()?;
    let mut schema = match converted.len() {
        0 => return None,
        1 => converted.remove(0),
        _ => json!({ "anyOf": converted }),
    };
    let definitions = converter.definitions().ok()?;
    let is_empty = schema.as_object().is_none_or(Map::is_empty);
    if !definitions.is_empty() {
        // A schema that is only a reference is less useful to clients than the object that it refers to.
        let whole = schema
            .get("$ref")
            .and_then(Json::as_str)
            .and_then(|reference| reference.strip_prefix("#/$defs/"));
        if let Some(Json::Object(target)) = whole.and_then(|name| definitions.get(name)) {
            schema = Json::Object(target.clone());
        }
        schema["$defs"] = definitions.into();
    }
    (!is_empty && schema.to_string().len() <= MAX_OUTPUT_SCHEMA).then_some(schema)
}

/// Adds a description to a schema that has none.
fn describe(schema: &mut Json, text: &str) {
    if let Json::Object(members) = schema
        && !text.trim().is_empty()
    {
        members.entry("description").or_insert_with(|| shortened(text).into());
    }
}

fn argument_name(name: &str) -> String {
    let plain: String = name
        .chars()
        .map(|c| if c.is_ascii_alphanumeric() || matches!(c, '_' | '-' | '.') { c } else { '_' })
        .take(MAX_ARGUMENT)
        .collect();
    let trimmed = if plain == name { &plain } else { plain.trim_matches('_') };
    if trimmed.is_empty() { "argument".to_owned() } else { trimmed.to_owned() }
}

fn style_of(name: &str, place: Place) -> Option<Style> {
    let style = match name {
        "simple" => Style::Simple,
        "label" => Style::Label,
        "matrix" => Style::Matrix,
        "form" => Style::Form,
        "spaceDelimited" => Style::SpaceDelimited,
        "pipeDelimited" => Style::PipeDelimited,
        "deepObject" => Style::DeepObject,
        _ => return None,
    };
    let fits = match place {
        Place::Path => matches!(style, Style::Simple | Style::Label | Style::Matrix),
        Place::Header => style == Style::Simple,
        Place::Cookie => style == Style::Form,
        Place::Query => !matches!(style, Style::Simple | Style::Label | Style::Matrix),
    };
    fits.then_some(style)
}

/// Returns the most specific of several media types.
fn preferred(content: &Map<String, Json>) -> Option<(&String, &Json)> {
    content.iter().min_by_key(|(media_type, _)| match &*essence(media_type) {
        "application/json" => 0,
        kind if is_json(kind) => 1,
        "application/x-www-form-urlencoded" => 2,
        "multipart/form-data" => 3,
        kind if is_text(kind) => 4,
        _ => 5,
    })
}

/// Returns the type to send if a range of types is accepted.
fn any_of(kind: &str, schema: &Json) -> String {
    let is = |key: &str, value: &str| schema.get(key).is_some_and(|found| found == value);
    match kind {
        "text/*" => "text/plain",
        "*/*" | "application/*"
            if is("type", "object") || is("type", "array") || schema.get("$ref").is_some() =>
        {
            "application/json"
        }
        "*/*" if is("type", "string") && !is("format", "binary") => "text/plain",
        _ => "application/octet-stream",
    }
    .to_owned()
}

fn essence(media_type: &str) -> String {
    crate::http::body::essence(media_type)
}

fn is_json(media_type: &str) -> bool {
    crate::http::body::is_json(&essence(media_type))
}

fn is_text(kind: &str) -> bool {
    crate::http::body::is_text(kind)
}

#[cfg(test)]
#[path = "operation_tests.rs"]
mod tests;
