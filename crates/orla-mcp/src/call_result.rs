//! The result of a call in the form of MCP's `tools/call`, and as plain JSON.

use orla_marketplace::{JsonText, Outcome, Payload, RuntimeError, RuntimeResult};

use crate::object::{push_text, trusted};
use crate::scan;

/// Returns the result of `tools/call` for an outcome, as JSON text. It has the form for a session's
/// client, except that a structured value may be of any kind. Parts that arrived as JSON stay unchanged.
pub fn call_result_json(result: &RuntimeResult<Outcome>) -> String {
    let result = result.as_ref();
    let mut out = Vec::with_capacity(size(&result));
    push_result(&mut out, &result, Form::Local);
    String::from_utf8(out).unwrap_or_default()
}

/// The kind of client that a result is written for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Form {
    /// Structured content may be of any kind.
    Sessionless,
    /// Before 2026-07-28 structured content must be an object, and clients check that. Any other value
    /// is wrapped in an object with the member `result`.
    Session,
    /// Like `Session`, for a tool whose advertised output schema wraps its values in `result`. Objects
    /// are wrapped too.
    SessionWrapped,
    /// For a command of this program.
    Local,
}

/// Returns the approximate size of the result in bytes.
pub fn size(result: &Result<&Outcome, &RuntimeError>) -> usize {
    let outcome = result.map_or_else(RuntimeError::outcome, Some);
    let structured = outcome.and_then(|outcome| outcome.structured.as_ref());
    let structured = structured.and_then(|value| value.json().ok()).map_or(0, length);
    let text_size = |text: Option<&JsonText>| text.map_or(0, length);
    let content = text_size(outcome.and_then(|outcome| outcome.content.as_ref()));
    let meta = text_size(outcome.and_then(|outcome| outcome.meta.as_ref()));
    256 + content + 2 * structured + meta
}

/// Writes the result of a call.
pub fn push_result(out: &mut Vec<u8>, result: &Result<&Outcome, &RuntimeError>, form: Form) {
    let (outcome, error) = match *result {
        Ok(outcome) => (Some(outcome), None),
        Err(error) => (error.outcome(), Some(error)),
    };
    let structured = match outcome.and_then(|outcome| outcome.structured.as_ref()).map(Payload::json) {
        Some(Err(unfit)) if error.is_none() => return push_result(out, &Err(&unfit), form),
        structured => structured.and_then(Result::ok),
    };
    out.extend_from_slice(if form == Form::Sessionless {
        br#"{"resultType":"complete","content":"#
    } else {
        br#"{"content":"#
    });
    let content = outcome.and_then(|outcome| outcome.content.as_ref());
    match error {
        None => push_content(out, content, structured),
        Some(error) => push_failed_content(out, content, error),
    }
    if let Some(value) = structured {
        let is_wrapped = match form {
            Form::Session => !value.as_str().starts_with('{'),
            Form::SessionWrapped => true,
            Form::Sessionless | Form::Local => false,
        };
        let (before, after) = if is_wrapped { (r#"{"result":"#, "}") } else { ("", "") };
        out.extend_from_slice(br#","structuredContent":"#);
        out.extend_from_slice(before.as_bytes());
        out.extend_from_slice(value.bytes());
        out.extend_from_slice(after.as_bytes());
    }
    let declared = outcome.and_then(|outcome| outcome.is_error);
    if let Some(is_error) = error.map(|_| true).or(declared) {
        let member: &[u8] = if is_error { br#","isError":true"# } else { br#","isError":false"# };
        out.extend_from_slice(member);
    }
    if let Some(meta) = outcome.and_then(|outcome| outcome.meta.as_ref()) {
        out.extend_from_slice(br#","_meta":"#);
        out.extend_from_slice(meta.bytes());
    }
    out.push(b'}');
}

fn push_content(out: &mut Vec<u8>, content: Option<&JsonText>, structured: Option<&JsonText>) {
    match (content, structured) {
        (Some(content), _) => out.extend_from_slice(content.bytes()),
        (None, Some(value)) => {
            out.push(b'[');
            push_text_block(out, |out| push_value_as_text(out, value.as_str()));
            out.push(b']');
        }
        (None, None) => out.extend_from_slice(b"[]"),
    }
}

/// Writes the output before the failure, and the failure.
fn push_failed_content(out: &mut Vec<u8>, content: Option<&JsonText>, error: &RuntimeError) {
    let blocks = content.map(|content| content.as_str().trim()).unwrap_or_default();
    let blocks = blocks.strip_prefix('[').and_then(|rest| rest.strip_suffix(']')).unwrap_or_default();
    let blocks = blocks.trim();
    out.push(b'[');
    out.extend_from_slice(blocks.as_bytes());
    // A provider's error in MCP's own form is passed on unchanged.
    if !matches!(error, RuntimeError::Reported { .. }) {
        if !blocks.is_empty() {
            out.push(b',');
        }
        push_text_block(out, |out| push_text(out, &error.to_string()));
    }
    out.push(b']');
}

fn push_text_block(out: &mut Vec<u8>, text: impl FnOnce(&mut Vec<u8>)) {
    out.extend_from_slice(br#"{"type":"text","text":"#);
    text(out);
    out.push(b'}');
}

/// Writes a value as the text of a block: a string as its text, any other value as JSON.
fn push_value_as_text(out: &mut Vec<u8>, json: &str) {
    if json.starts_with('"') {
        out.extend_from_slice(json.as_bytes());
    } else {
        push_text(out, json);
    }
}

fn length(text: &JsonText) -> usize {
    text.bytes().len()
}

/// Returns an outcome as plain JSON: the structured value if there is one; else the text, if the content
/// is one block of text; else `{"content": […]}`.
///
/// # Errors
///
/// Returns an error if the structured value has no JSON form.
pub fn plain_output(outcome: &Outcome) -> RuntimeResult<JsonText> {
    match &outcome.structured {
        Some(value) => value.json().cloned(),
        None => Ok(outcome.content.as_ref().map_or_else(|| content_object("[]"), plain_content)),
    }
}

/// Returns the result of a call as plain JSON, like [`plain_output`], from the text that
/// [`call_result_json`] wrote.
pub fn plain_json(call_result: &JsonText) -> JsonText {
    if let Some(structured) = member(call_result, b"structuredContent") {
        return structured;
    }
    match member(call_result, b"content") {
        Some(content) => plain_content(&content),
        None if call_result.as_str().starts_with('{') => content_object("[]"),
        None => call_result.clone(),
    }
}

/// Returns a JSON array of content blocks as plain JSON. A single text shares its bytes.
fn plain_content(content: &JsonText) -> JsonText {
    single_text(content).unwrap_or_else(|| content_object(content.as_str()))
}

/// Returns the text of the content, if the content is one block of text.
fn single_text(content: &JsonText) -> Option<JsonText> {
    let block = content.part(scan::only_item(content.bytes())?)?;
    let (kind, text) = (member(&block, b"type")?, member(&block, b"text")?);
    (kind.as_str() == r#""text""# && text.as_str().starts_with('"')).then_some(text)
}

/// Returns the first member of an object with this key; shared.
fn member(object: &JsonText, key: &[u8]) -> Option<JsonText> {
    let (_, range) = scan::members(object.bytes()).find(|(name, _)| *name == key)?;
    object.part(range)
}

fn content_object(content: &str) -> JsonText {
    trusted(format!(r#"{{"content":{content}}}"#))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::object::Object;

    #[test]
    fn plain_json_is_the_value_or_the_text_or_the_content() {
        for (result, plain) in [
            (r#"{"content":[],"structuredContent":{"n":1.10}}"#, r#"{"n":1.10}"#),
            (r#"{"content":[{"type":"text","text":"a\"b"}],"structuredContent":null}"#, "null"),
            (r#"{"content":[{"type":"text","text":"a\"b"}]}"#, r#""a\"b""#),
            (
                r#"{"content":[{"type":"image","data":"","mimeType":"image/png"}]}"#,
                r#"{"content":[{"type":"image","data":"","mimeType":"image/png"}]}"#,
            ),
            (r#"{"content":[]}"#, r#"{"content":[]}"#),
            (r#"{"content":[ {"text" : "a" ,"type":"text"} ]}"#, r#""a""#),
            (
                r#"{"content":[{"type":"text","text":null}]}"#,
                r#"{"content":[{"type":"text","text":null}]}"#,
            ),
            (
                r#"{"content":[{"type":"text","text":"a"},{"type":"text","text":"b"}]}"#,
                r#"{"content":[{"type":"text","text":"a"},{"type":"text","text":"b"}]}"#,
            ),
        ] {
            let result = JsonText::parse(result).unwrap();
            assert_eq!(plain_json(&result).as_str(), plain);
            let members = Object::parse(result.as_str()).unwrap();
            let member = |name| members.get(name).map(|text| JsonText::parse(text.to_owned()).unwrap());
            let outcome = Outcome {
                structured: member("structuredContent").map(Payload::from_json),
                content: member("content"),
                ..Outcome::default()
            };
            assert_eq!(plain_output(&outcome).unwrap().as_str(), plain);
        }
    }

    #[test]
    fn a_value_without_a_json_form_has_no_plain_output() {
        let value = Payload::from_value(orla_marketplace::rtfs::Value::Float(f64::NAN));
        let outcome = Outcome { structured: Some(value), ..Outcome::default() };
        assert!(plain_output(&outcome).is_err());
    }
}
