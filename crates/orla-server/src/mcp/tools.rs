//! `tools/list` and the result of `tools/call`, written by hand around JSON that travels as text.
//!
//! # How it works
//!
//! A [`Listing`] holds the rendered tools of one snapshot. Each tool is rendered once, when it is first
//! listed or called, so the first page of thousands of tools costs no more than one page. The listing is
//! dropped with the snapshot. No page contains unlisted tools, or tools that the caller may not call.
//! The texts of results (content, structured value, `_meta`) are put together without being parsed. A
//! differential test compares both with the SDK's own types.

use std::sync::{Arc, OnceLock, Weak};

use base64::Engine;
use base64::prelude::BASE64_URL_SAFE_NO_PAD;
use bytes::Bytes;
use orla_marketplace::{
    ANNOTATIONS, Catalog, Entry, JsonText, LISTED, Outcome, Principal, Reservation, RuntimeError,
    TaskSupport,
};
use parking_lot::Mutex;
use rmcp::model::ErrorData;
use serde_json::value::RawValue;

use crate::mcp::protocol::PAGE;
use crate::mcp::rpc::{self, Id};
use orla_mcp::ParamHeader;
pub(crate) use orla_mcp::call_result::Form;
use orla_mcp::call_result::{push_result, size};
use orla_mcp::object::Object;

/// The tools of one snapshot, rendered as they are needed.
pub(crate) struct Listing {
    of: Weak<Catalog>,
    /// The indices of the listed tools among the entries.
    listed: Vec<usize>,
    /// One tool for each entry, listed or not.
    tools: Vec<OnceLock<Tool>>,
}

/// A rendered tool.
struct Tool {
    /// Its JSON object for sessionless requests.
    for_sessionless: Box<str>,
    /// The JSON object for sessions, if it differs. Clients of sessions know structured results only as objects,
    /// so its output schema is an object with the result in it.
    for_sessions: Option<Box<str>>,
    /// The arguments that have to be repeated in headers.
    headers: Vec<ParamHeader>,
}

impl Listing {
    fn new(catalog: &Arc<Catalog>) -> Self {
        let entries = catalog.entries();
        Self {
            of: Arc::downgrade(catalog),
            listed: (0..entries.len()).filter(|at| entries[*at].is_offered()).collect(),
            tools: entries.iter().map(|_| OnceLock::new()).collect(),
        }
    }

    /// Returns the tool at an index among the entries of this listing's catalogue.
    fn tool(&self, catalog: &Catalog, at: usize) -> Option<&Tool> {
        let (entry, tool) = (catalog.entries().get(at)?, self.tools.get(at)?);
        Some(tool.get_or_init(|| Tool::render(entry)))
    }

    /// Returns the headers that a call of this tool must carry.
    pub(crate) fn headers_of(&self, catalog: &Catalog, name: &str) -> &[ParamHeader] {
        self.named(catalog, name).map(|tool| tool.headers.as_slice()).unwrap_or_default()
    }

    /// Returns how a session's client receives the structured results of this tool.
    pub(crate) fn session_form(&self, catalog: &Catalog, name: &str) -> Form {
        let is_wrapped = self.named(catalog, name).is_some_and(|tool| tool.for_sessions.is_some());
        if is_wrapped { Form::SessionWrapped } else { Form::Session }
    }

    fn named(&self, catalog: &Catalog, name: &str) -> Option<&Tool> {
        let at = catalog.entries().binary_search_by(|entry| (*entry.name).cmp(name)).ok();
        at.and_then(|at| self.tool(catalog, at))
    }
}

impl Tool {
    fn render(entry: &Entry) -> Self {
        let input = entry.input_schema();
        let output = entry.output_schema().filter(|schema| is_readable(schema.as_str()));
        let for_sessionless = tool(entry, &input, output.as_ref()).into();
        let other = output.filter(|schema| !is_object_schema(schema.as_str()));
        let for_sessions =
            other.map(|schema| tool(entry, &input, wrapped_schema(&schema).as_ref()).into());
        Self { for_sessionless, for_sessions, headers: param_headers(input.as_str()) }
    }

    fn text(&self, is_sessionless: bool) -> &str {
        self.for_sessions.as_deref().filter(|_| !is_sessionless).unwrap_or(&self.for_sessionless)
    }
}

/// Returns a tool as sessionless clients see it.
pub(crate) fn tool_json(entry: &Entry) -> String {
    let output = entry.output_schema().filter(|schema| is_readable(schema.as_str()));
    tool(entry, &entry.input_schema(), output.as_ref())
}

fn tool(entry: &Entry, input: &JsonText, output: Option<&JsonText>) -> String {
    let manifest = &entry.manifest;
    let json = |text: &str| serde_json::to_string(text).unwrap_or_default();
    let mut tool = format!(r#"{{"name":{}"#, json(&entry.name));
    if let Some(title) = manifest.title() {
        tool.push_str(&format!(r#","title":{}"#, json(title)));
    }
    let input = if is_readable(input.as_str()) { input.as_str() } else { r#"{"type":"object"}"# };
    tool.push_str(&format!(r#","description":{},"inputSchema":{input}"#, json(&manifest.description)));
    if let Some(output) = output {
        tool.push_str(&format!(r#","outputSchema":{output}"#));
    }
    if let Some(annotations) = manifest.metadata.get(ANNOTATIONS).and_then(|text| Object::parse(text)) {
        let sound = annotations.members().filter(|(key, value)| match *key {
            "title" => value.starts_with('"'),
            key if key.ends_with("Hint") => matches!(*value, "true" | "false"),
            _ => true,
        });
        let sound: Vec<String> = sound.map(|(key, value)| format!("{}:{value}", json(key))).collect();
        tool.push_str(&format!(r#","annotations":{{{}}}"#, sound.join(",")));
    }
    let listed = manifest.metadata.get(LISTED).and_then(|text| Object::parse(text));
    for (key, value) in listed.iter().flat_map(Object::members) {
        let is_sound = match key {
            "icons" => value.starts_with('['),
            "_meta" => value.starts_with('{'),
            key => !KNOWN.contains(&key),
        };
        if is_sound {
            tool.push_str(&format!(",{}:{value}", json(key)));
        }
    }
    tool.push('}');
    tool
}

/// The members of a tool that have a place in its manifest.
const KNOWN: [&str; 7] =
    ["name", "title", "description", "inputSchema", "outputSchema", "annotations", "execution"];

/// Returns whether typed clients can parse the schema. A schema that they cannot parse would break their
/// whole list.
fn is_readable(schema: &str) -> bool {
    let Some(object) = Object::parse(schema) else { return false };
    let begins =
        |key: &str, first: &[char]| object.get(key).is_none_or(|value| value.starts_with(first));
    begins("type", &['"', '[']) && begins("properties", &['{']) && begins("required", &['['])
}

fn is_object_schema(schema: &str) -> bool {
    Object::parse(schema).and_then(|object| object.get("type").map(|kind| kind == r#""object""#))
        == Some(true)
}

/// Returns the schema of an object whose member `result` has the given schema.
fn wrapped_schema(schema: &JsonText) -> Option<JsonText> {
    let mut result = serde_json::from_str(schema.as_str()).ok()?;
    // A schema with a name of its own is the root of its references.
    if serde_json::Value::get(&result, "$id").is_none() {
        move_references(&mut result);
    }
    let mut wrapped = serde_json::json!({"type": "object", "required": ["result"]});
    if let Some(dialect) = result.as_object_mut().and_then(|object| object.shift_remove("$schema")) {
        wrapped["$schema"] = dialect;
    }
    wrapped["properties"] = serde_json::json!({ "result": result });
    JsonText::of(&wrapped).ok()
}

/// Adjusts references within a schema that becomes the schema of the member `result`, so that their targets stay
/// the same.
fn move_references(schema: &mut serde_json::Value) {
    match schema {
        serde_json::Value::Object(members) => {
            for (key, value) in members {
                match value {
                    serde_json::Value::String(target) if key == "$ref" && is_pointer(target) => {
                        target.insert_str(1, "/properties/result");
                    }
                    value => move_references(value),
                }
            }
        }
        serde_json::Value::Array(items) => items.iter_mut().for_each(move_references),
        _ => {}
    }
}

fn is_pointer(target: &str) -> bool {
    target == "#" || target.starts_with("#/")
}

/// Returns the headers that an input schema asks for. Most schemas ask for none, and are not parsed for
/// this.
fn param_headers(schema: &str) -> Vec<ParamHeader> {
    let schema = schema.contains("x-mcp-header").then(|| serde_json::from_str(schema).ok()).flatten();
    schema.as_ref().map(ParamHeader::of_schema).unwrap_or_default()
}

/// The listings of the snapshots that are in use.
#[derive(Default)]
pub(crate) struct Listings(Mutex<Vec<Arc<Listing>>>);

impl Listings {
    /// The maximum number of snapshots whose listing is kept.
    const MAX: usize = 4;

    /// The listing of a snapshot.
    pub(crate) fn of(&self, catalog: &Arc<Catalog>) -> Arc<Listing> {
        let mut known = self.0.lock();
        if let Some(found) =
            known.iter().find(|listing| std::ptr::eq(listing.of.as_ptr(), &raw const **catalog))
        {
            return Arc::clone(found);
        }
        let listing = Arc::new(Listing::new(catalog));
        known.retain(|listing| listing.of.strong_count() > 0);
        if known.len() >= Self::MAX {
            known.remove(0);
        }
        known.push(Arc::clone(&listing));
        listing
    }
}

/// Returns the answer to `tools/list`: the page after `cursor` of the tools that `principal` may call.
///
/// # Errors
///
/// Returns an error if the cursor does not come from a page of this server.
pub(crate) fn list_page(
    id: &Id,
    catalog: &Catalog,
    listing: &Listing,
    cursor: Option<&RawValue>,
    principal: Option<&Principal>,
    form: ListForm,
) -> Result<Bytes, ErrorData> {
    let after = cursor.map(read_cursor).transpose()?;
    let entries = catalog.entries();
    let from = after.map_or(0, |name| entries.partition_point(|entry| *entry.name <= *name));
    let first = listing.listed.partition_point(|at| *at < from);
    let is_permitted = |at: &&usize| catalog.permits(principal, &entries[**at]).is_ok();
    let mut places = listing.listed[first..].iter().filter(is_permitted).peekable();
    let (mut items, mut last) = (String::new(), None);
    for at in places.by_ref().take(PAGE) {
        if last.is_some() {
            items.push(',');
        }
        items.push_str(
            listing.tool(catalog, *at).map_or("{}", |tool| tool.text(form.cache_hint().is_some())),
        );
        if form == (ListForm::Session { has_tasks: true }) {
            // Any capability can be called as a task, unless it declares otherwise.
            let support = entries[*at].manifest.task_support().unwrap_or(TaskSupport::Optional);
            items.pop();
            items.push_str(&format!(r#","execution":{{"taskSupport":"{}"}}}}"#, support.as_str()));
        }
        last = Some(&entries[*at].name);
    }
    let next = last.filter(|_| places.peek().is_some()).map(|name| cursor_after(name));
    Ok(page(id, "tools", &items, next.as_deref(), form.cache_hint()))
}

/// The kind of client that tools are listed for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ListForm {
    Sessionless(CacheHint),
    Session {
        /// Whether tools can be called as tasks, which the list then says of each (2025-11-25).
        has_tasks: bool,
    },
}

impl ListForm {
    fn cache_hint(self) -> Option<CacheHint> {
        match self {
            Self::Sessionless(hint) => Some(hint),
            Self::Session { .. } => None,
        }
    }
}

/// How a sessionless client may cache a list.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct CacheHint {
    /// How long the list is fresh.
    pub(crate) ttl_ms: u64,
}

/// Returns the answer to a list request with these items, which are JSON texts separated by commas.
pub(crate) fn page(
    id: &Id,
    list: &str,
    items: &str,
    next_cursor: Option<&str>,
    cache_hint: Option<CacheHint>,
) -> Bytes {
    let mut out = rpc::begin_result(id, items.len() + 160);
    out.push(b'{');
    if cache_hint.is_some() {
        out.extend_from_slice(br#""resultType":"complete","#);
    }
    if let Some(cursor) = next_cursor {
        out.extend_from_slice(br#""nextCursor":""#);
        out.extend_from_slice(cursor.as_bytes());
        out.extend_from_slice(br#"","#);
    }
    if let Some(hint) = cache_hint {
        out.extend_from_slice(format!(r#""ttlMs":{},"cacheScope":"private","#, hint.ttl_ms).as_bytes());
    }
    out.extend_from_slice(format!(r#""{list}":["#).as_bytes());
    out.extend_from_slice(items.as_bytes());
    out.extend_from_slice(b"]}");
    out.extend_from_slice(rpc::END);
    out.into()
}

/// Returns a cursor. It is opaque to clients, and remains valid across reloads. It contains the last
/// name of a page, and the next page begins with the first name after it.
pub(crate) fn cursor_after(name: &str) -> String {
    BASE64_URL_SAFE_NO_PAD.encode(format!("after:{name}"))
}

/// Reads the output of [`cursor_after`].
///
/// # Errors
///
/// Returns −32602 for anything else.
pub(crate) fn read_cursor(cursor: &RawValue) -> Result<String, ErrorData> {
    let read = || {
        let bytes = BASE64_URL_SAFE_NO_PAD.decode(&*rpc::text(cursor).ok()?).ok()?;
        String::from_utf8(bytes).ok()?.strip_prefix("after:").map(str::to_owned)
    };
    read().ok_or_else(|| {
        ErrorData::invalid_params(
            "unknown cursor: this server did not issue it; list again without a cursor",
            None,
        )
    })
}

/// Returns the answer to a `tools/call` with this outcome. The answer holds the outcome's memory until
/// it is sent.
pub(crate) fn success(id: &Id, outcome: &Outcome, form: Form) -> Bytes {
    let bytes = answer(id, &Ok(outcome), form);
    match outcome.reservation.clone() {
        Some(reservation) => Bytes::from_owner(Reserved { bytes, _reservation: reservation }),
        None => bytes,
    }
}

/// Bytes that count towards the memory of the requests in progress until they are dropped.
struct Reserved {
    bytes: Bytes,
    _reservation: Arc<Reservation>,
}

impl AsRef<[u8]> for Reserved {
    fn as_ref(&self) -> &[u8] {
        &self.bytes
    }
}

/// Returns the answer to a `tools/call` with an error that the caller's model can correct: the output so
/// far, and the error's text last.
pub(crate) fn failure(id: &Id, error: &RuntimeError, form: Form) -> Bytes {
    answer(id, &Err(error), form)
}

fn answer(id: &Id, result: &Result<&Outcome, &RuntimeError>, form: Form) -> Bytes {
    let mut out = rpc::begin_result(id, size(result));
    push_result(&mut out, result, form);
    out.extend_from_slice(rpc::END);
    out.into()
}

#[cfg(test)]
#[path = "tools_tests.rs"]
mod tests;
