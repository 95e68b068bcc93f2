//! The result of a call, and how it is printed: its text on standard output, the tool's standard error on standard
//! error.

use std::io::IsTerminal;
use std::path::{Path, PathBuf};

use base64::Engine;
use base64::prelude::BASE64_STANDARD;
use orla_marketplace::{Outcome, Payload, RuntimeError, RuntimeResult};
use serde::Deserialize;
use serde_json::value::RawValue;
use serde_json::{Map, Value};

use crate::Failure;
use crate::config::reason;
use crate::render;

/// The maximum number of characters of a table's cell, except in the last column.
const CELL: usize = 40;

/// The result of a call, made here or by a server.
#[derive(Debug, Default, PartialEq)]
pub(crate) struct CallResult {
    blocks: Vec<Block>,
    /// The structured content's JSON.
    structured: Option<String>,
    stderr: String,
    /// The access that its sandbox probably denied, and the permission for it.
    refused: Option<Refused>,
    /// How much of the tool's output the server dropped.
    truncated: Truncated,
    /// The error message of a failed call.
    error: Option<String>,
}

/// A content block of MCP, with the members that are printed.
#[derive(Clone, Debug, Default, Deserialize, PartialEq)]
#[serde(default)]
struct Block {
    #[serde(rename = "type")]
    kind: String,
    text: Option<String>,
    /// Of an image or audio.
    data: Option<String>,
    #[serde(rename = "mimeType")]
    mime_type: Option<String>,
    uri: Option<String>,
    resource: Option<Resource>,
}

#[derive(Clone, Debug, Default, Deserialize, PartialEq)]
#[serde(default)]
struct Resource {
    uri: String,
    text: Option<String>,
    blob: Option<String>,
    #[serde(rename = "mimeType")]
    mime_type: Option<String>,
}

/// The result of `tools/call`.
#[derive(Deserialize)]
struct ToolResult<'a> {
    #[serde(default)]
    content: Vec<Block>,
    #[serde(rename = "structuredContent", borrow, default)]
    structured: Option<&'a RawValue>,
    #[serde(rename = "isError", default)]
    is_error: bool,
    #[serde(rename = "_meta", default)]
    meta: Meta,
}

#[derive(Default, Deserialize)]
struct Meta {
    #[serde(rename = "orla/execution", default)]
    execution: Execution,
}

#[derive(Default, Deserialize)]
struct Execution {
    #[serde(default)]
    stderr: String,
    #[serde(default)]
    sandbox: Confined,
    #[serde(default)]
    truncated: Truncated,
}

#[derive(Default, Deserialize)]
struct Confined {
    #[serde(default)]
    refused: Option<Refused>,
}

/// An access that the sandbox of a program probably denied.
#[derive(Debug, Deserialize, PartialEq)]
struct Refused {
    tried: String,
    #[serde(default)]
    permission: Option<String>,
}

/// Bytes dropped from each stream.
#[derive(Debug, Default, Deserialize, PartialEq)]
#[serde(default)]
struct Truncated {
    stdout: u64,
    stderr: u64,
}

/// Returns a sentence about an access that a sandbox probably denied.
pub(crate) fn refused(tried: &str, permission: Option<&str>) -> String {
    match permission {
        Some(word) => {
            format!("its sandbox probably did not let it {tried}; the permission {word} allows that")
        }
        None => format!("its sandbox did not let it {tried}; no permission allows that"),
    }
}

impl CallResult {
    /// The answer in the JSON of a `tools/call` result.
    pub(crate) fn parse(result: &str) -> Result<Self, serde_json::Error> {
        let result: ToolResult<'_> = serde_json::from_str(result)?;
        let mut answer = Self {
            blocks: result.content,
            structured: result.structured.map(|raw| raw.get().to_owned()),
            stderr: result.meta.execution.stderr,
            refused: result.meta.execution.sandbox.refused,
            truncated: result.meta.execution.truncated,
            error: None,
        };
        if result.is_error {
            let last = answer.take_last_text();
            answer.error = Some(last.unwrap_or_else(|| "the call failed".to_owned()));
        }
        Ok(answer)
    }

    /// Returns the result of a local call.
    pub(crate) fn of(result: &RuntimeResult<Outcome>) -> Result<Self, serde_json::Error> {
        let (outcome, error) = match result {
            Ok(outcome) => (Some(outcome), None),
            Err(err) => (err.outcome(), Some(err)),
        };
        let mut answer = Self { error: error.map(RuntimeError::to_string), ..Self::default() };
        let Some(outcome) = outcome else { return Ok(answer) };
        if let Some(content) = &outcome.content {
            answer.blocks = serde_json::from_str(content.as_str())?;
        }
        if let Some(meta) = &outcome.meta {
            let execution = serde_json::from_str::<Meta>(meta.as_str())?.execution;
            (answer.stderr, answer.truncated) = (execution.stderr, execution.truncated);
            answer.refused = execution.sandbox.refused;
        }
        if let Some(RuntimeError::Reported { .. }) = error {
            answer.take_last_text();
        }
        let structured = outcome.structured.as_ref().map(Payload::json);
        answer.structured = structured.and_then(Result::ok).map(|json| json.as_str().to_owned());
        Ok(answer)
    }

    /// Removes the sentence with the error from its content.
    fn take_last_text(&mut self) -> Option<String> {
        let at = self.blocks.iter().rposition(|block| block.text.is_some())?;
        self.blocks.remove(at).text
    }

    /// Returns all of it as text: the output of the call, and its error.
    #[cfg(feature = "agent")]
    pub(crate) fn text(&self) -> String {
        let mut text = String::from_utf8_lossy(&self.output(true)).into_owned();
        if let Some(error) = &self.error {
            if !text.is_empty() && !text.ends_with('\n') {
                text.push('\n');
            }
            text.push_str(error);
        }
        text
    }

    /// Returns whether the call failed.
    pub(crate) fn is_error(&self) -> bool {
        self.error.is_some()
    }

    /// Prints the result; a failed call is a failure. With a file, binary content is written there.
    pub(crate) fn print(&self, file: Option<&Path>) -> Result<(), Failure> {
        match file {
            Some(file) => self.save(file)?,
            None if std::io::stdout().is_terminal() => self.show(),
            None => render::out_bytes(&self.output(false)),
        }
        render::err(&self.stderr);
        self.losses().iter().for_each(|loss| render::warning(loss));
        if let Some(Refused { tried, permission }) = &self.refused {
            render::note(&refused(tried, permission.as_deref()));
        }
        match self.sentence() {
            None => Ok(()),
            Some(error) => Err(Failure::failed(error)),
        }
    }

    /// Shows the result at a terminal: a list of objects as a table, images if the terminal supports them.
    fn show(&self) {
        if let Some(rows) = self.rows() {
            return render::out(&table(&rows));
        }
        if self.blocks.is_empty() {
            return render::out(&String::from_utf8_lossy(&self.output(true)));
        }
        let mut is_all_shown = true;
        for block in &self.blocks {
            match (block.plain_text(), block.bytes()) {
                (Some(text), _) => render::out(&on_whole_lines(text)),
                (None, Some(bytes)) if block.is_image() && render::image::show(&bytes) => {}
                (None, bytes) => {
                    is_all_shown &= bytes.is_none();
                    render::out(&block.described(bytes.as_deref()));
                }
            }
        }
        if !is_all_shown {
            render::note("--output FILE writes it to a file.");
        }
    }

    /// Returns the result as the rows of a table, if it is a list of objects.
    fn rows(&self) -> Option<Vec<Map<String, Value>>> {
        if self.error.is_some() || self.blocks.iter().any(|block| block.plain_text().is_none()) {
            return None;
        }
        let structured = self.structured.as_deref().and_then(objects);
        structured.or_else(|| match &self.blocks[..] {
            [block] => objects(block.plain_text()?),
            _ => None,
        })
    }

    /// Writes binary content to a file, and the rest to standard output. Without binary content, writes everything
    /// to the file. If there are several parts, the others are written to files with a number: `cat-2.png`.
    fn save(&self, file: &Path) -> Result<(), Failure> {
        let write = |path: &Path, bytes: &[u8]| {
            std::fs::write(path, bytes).map_err(|err| {
                Failure::failed(format!("{} cannot be written: {}", path.display(), reason(&err)))
            })?;
            render::note(&format!("{} bytes written to {}", bytes.len(), path.display()));
            Ok(())
        };
        let binary = |block: &Block| block.plain_text().is_none().then(|| block.bytes()).flatten();
        let parts: Vec<Vec<u8>> = self.blocks.iter().filter_map(binary).collect();
        if parts.is_empty() {
            return write(file, &self.output(false));
        }
        for text in self.blocks.iter().filter_map(Block::plain_text) {
            render::out(&on_whole_lines(text));
        }
        parts.iter().enumerate().try_for_each(|(at, bytes)| write(&numbered(file, at + 1), bytes))
    }

    /// Returns the omitted part, so that truncated output is recognised as such.
    fn losses(&self) -> Vec<String> {
        [("standard output", self.truncated.stdout), ("standard error", self.truncated.stderr)]
            .into_iter()
            .filter(|(_, dropped)| *dropped > 0)
            .map(|(name, dropped)| format!("{dropped} bytes of {name} were dropped (max_output_bytes)"))
            .collect()
    }

    /// Returns the error, without the end of standard error, which has just been printed.
    fn sentence(&self) -> Option<&str> {
        let error = self.error.as_deref()?;
        let printed = self.stderr.trim();
        match error.split_once(": ") {
            Some((sentence, end)) if !end.is_empty() && printed.ends_with(end) => Some(sentence),
            _ => Some(error),
        }
    }

    /// Returns the bytes for standard output. Bytes that are not text are written to files and pipes
    /// unchanged, and are described on a terminal.
    fn output(&self, to_terminal: bool) -> Vec<u8> {
        if self.blocks.is_empty() && self.error.is_none() {
            let Some(json) = self.structured.as_deref() else { return Vec::new() };
            // A value that is a text is its own text.
            let text = serde_json::from_str(json).unwrap_or_else(|_| json.to_owned());
            let end = if text.ends_with('\n') { "" } else { "\n" };
            return format!("{text}{end}").into_bytes();
        }
        let mut out = Vec::new();
        for block in &self.blocks {
            if !out.is_empty() && !out.ends_with(b"\n") {
                out.push(b'\n');
            }
            match (block.plain_text(), block.bytes()) {
                (Some(text), _) => out.extend_from_slice(text.as_bytes()),
                (None, Some(bytes)) if !to_terminal && self.blocks.len() == 1 => out.extend(bytes),
                (None, bytes) => out.extend(block.described(bytes.as_deref()).into_bytes()),
            }
        }
        out
    }
}

/// Returns the objects of a list, or of the only member `result` of an object, which is how MCP carries
/// a list.
fn objects(json: &str) -> Option<Vec<Map<String, Value>>> {
    let list = match serde_json::from_str(json).ok()? {
        Value::Array(list) => list,
        Value::Object(mut object) if object.len() == 1 => match object.remove("result")? {
            Value::Array(list) => list,
            _ => return None,
        },
        _ => return None,
    };
    let object = |item| match item {
        Value::Object(row) => Some(row),
        _ => None,
    };
    let rows: Option<Vec<_>> = list.into_iter().map(object).collect();
    rows.filter(|rows| !rows.is_empty())
}

/// Returns a table with a column for each key, in the order of their first occurrence.
fn table(rows: &[Map<String, Value>]) -> String {
    let mut keys: Vec<&str> = Vec::new();
    for key in rows.iter().flat_map(Map::keys) {
        if !keys.contains(&key.as_str()) {
            keys.push(key);
        }
    }
    let cell = |row: &Map<String, Value>, at: usize| {
        let text = match row.get(keys[at]) {
            None | Some(Value::Null) => String::new(),
            Some(Value::String(text)) => text.clone(),
            Some(other) => other.to_string(),
        };
        // The last column is cut to the width of the terminal.
        if at + 1 < keys.len() { render::cut(&text, CELL) } else { text }
    };
    let cells: Vec<Vec<String>> =
        rows.iter().map(|row| (0..keys.len()).map(|at| cell(row, at)).collect()).collect();
    render::table(&keys, &cells, render::width())
}

/// Returns the text with a final line break, so that the shell's prompt begins on a new line.
fn on_whole_lines(text: &str) -> String {
    let end = if text.is_empty() || text.ends_with('\n') { "" } else { "\n" };
    format!("{text}{end}")
}

/// Returns the file for the n-th part of an answer.
fn numbered(file: &Path, n: usize) -> PathBuf {
    if n == 1 {
        return file.to_owned();
    }
    let mut name = file.file_stem().unwrap_or_default().to_owned();
    name.push(format!("-{n}"));
    if let Some(extension) = file.extension() {
        name.push(".");
        name.push(extension);
    }
    file.with_file_name(name)
}

impl Block {
    fn is_image(&self) -> bool {
        let resource = self.resource.as_ref().and_then(|resource| resource.mime_type.as_deref());
        let mime = self.mime_type.as_deref().or(resource);
        self.kind == "image" || mime.is_some_and(|mime| mime.starts_with("image/"))
    }

    fn plain_text(&self) -> Option<&str> {
        let embedded = self.resource.as_ref().and_then(|resource| resource.text.as_deref());
        self.text.as_deref().or(embedded)
    }

    fn bytes(&self) -> Option<Vec<u8>> {
        let blob = self.resource.as_ref().and_then(|resource| resource.blob.as_ref());
        BASE64_STANDARD.decode(self.data.as_ref().or(blob)?).ok()
    }

    fn described(&self, bytes: Option<&[u8]>) -> String {
        let resource = self.resource.as_ref();
        let mime = self.mime_type.as_ref().or(resource.and_then(|resource| resource.mime_type.as_ref()));
        let uri = self.uri.as_deref().or(resource.map(|resource| resource.uri.as_str()));
        let mut parts = vec![self.kind.clone()];
        parts.extend(mime.cloned());
        parts.extend(uri.map(str::to_owned));
        parts.extend(bytes.map(|bytes| format!("{} bytes", bytes.len())));
        format!("[{}]\n", parts.join(", "))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use orla_marketplace::JsonText;

    fn text(json: &str) -> String {
        String::from_utf8(CallResult::parse(json).unwrap().output(true)).unwrap()
    }

    #[test]
    fn text_is_printed_as_it_is_and_a_value_without_text_as_json() {
        let cases = [
            (
                r#"{"content":[{"type":"text","text":"a\n"}],"structuredContent":{"stdout":"a\n"}}"#,
                "a\n",
            ),
            (r#"{"content":[{"type":"text","text":""}],"structuredContent":{"stdout":""}}"#, ""),
            (r#"{"content":[{"type":"text","text":"a"},{"type":"text","text":"b"}]}"#, "a\nb"),
            (
                r#"{"content":[],"structuredContent":{"n":1.10,"m":18446744073709551616}}"#,
                "{\"n\":1.10,\"m\":18446744073709551616}\n",
            ),
            (r#"{"content":[],"structuredContent":"two\nlines"}"#, "two\nlines\n"),
            (
                r#"{"content":[{"type":"image","data":"AAEC","mimeType":"image/png"}]}"#,
                "[image, image/png, 3 bytes]\n",
            ),
            (
                r#"{"content":[{"type":"resource_link","uri":"file:///x","name":"x"}]}"#,
                "[resource_link, file:///x]\n",
            ),
            (r#"{"content":[{"type":"resource","resource":{"uri":"a:b","text":"inside"}}]}"#, "inside"),
        ];
        for (json, expected) in cases {
            assert_eq!(text(json), expected, "{json}");
        }
    }

    #[test]
    fn a_list_of_objects_is_a_table() {
        let rows = |json: &str| CallResult::parse(json).unwrap().rows().map(|rows| table(&rows));
        let expected = "name  n    of\nada   1\nbob   [2]  x\n";
        let list = r#"[{"name":"ada","n":1},{"name":"bob","n":[2],"of":"x"}]"#;
        let text = Value::from(list).to_string();
        for json in [
            format!(r#"{{"content":[],"structuredContent":{list}}}"#),
            format!(r#"{{"content":[],"structuredContent":{{"result":{list}}}}}"#),
            format!(
                r#"{{"content":[{{"type":"text","text":{text}}}],"structuredContent":{{"stdout":"x"}}}}"#
            ),
        ] {
            assert_eq!(rows(&json).as_deref(), Some(expected), "{json}");
        }
        for json in [
            r#"{"content":[],"structuredContent":[]}"#,
            r#"{"content":[],"structuredContent":[{"a":1},2]}"#,
            r#"{"content":[{"type":"text","text":"plain"}]}"#,
            r#"{"content":[{"type":"image","data":"AAEC"}],"structuredContent":[{"a":1}]}"#,
        ] {
            assert_eq!(rows(json), None, "{json}");
        }
    }

    #[test]
    fn several_files_are_numbered() {
        let file = |n| numbered(Path::new("out/cat.png"), n);
        assert_eq!((file(1), file(2)), ("out/cat.png".into(), "out/cat-2.png".into()));
    }

    #[test]
    fn bytes_go_to_a_pipe_as_they_are() {
        let answer =
            CallResult::parse(r#"{"content":[{"type":"image","data":"AAEC","mimeType":"image/png"}]}"#)
                .unwrap();
        assert_eq!(answer.output(false), [0, 1, 2]);
    }

    #[test]
    fn a_failure_here_and_on_a_server_is_the_same_answer() {
        let content = r#"[{"type":"text","text":"so far\n"}]"#;
        let meta = r#"{"orla/execution":{"stderr":"oh\n","exit_code":3}}"#;
        let outcome = Outcome {
            structured: None,
            content: JsonText::parse(content).ok(),
            meta: JsonText::parse(meta).ok(),
            ..Outcome::default()
        };
        let message = "t exited with code 3".to_owned();
        let failed = Err(RuntimeError::Failed {
            id: "t".into(),
            message: message.clone(),
            outcome: Some(Box::new(outcome)),
        });
        let here = CallResult::of(&failed);
        let there = format!(
            r#"{{"content":[{{"type":"text","text":"so far\n"}},{{"type":"text","text":"{message}"}}],"isError":true,"_meta":{meta}}}"#
        );
        assert_eq!(here.unwrap(), CallResult::parse(&there).unwrap());
        assert_eq!(orla_server::call_result_json(&failed), there);
    }

    #[test]
    fn dropped_output_is_reported_and_printed_output_is_not_repeated() {
        let answer = CallResult::parse(
            r#"{"content":[{"type":"text","text":"x"},{"type":"text","text":"t exited with code 3: no\nway"}],"isError":true,
            "_meta":{"orla/execution":{"stderr":"oh\nno\nway\n","truncated":{"stdout":7,"stderr":0}}}}"#,
        )
        .unwrap();
        assert_eq!(answer.losses(), ["7 bytes of standard output were dropped (max_output_bytes)"]);
        assert_eq!(answer.sentence(), Some("t exited with code 3"));
        let other = CallResult { stderr: "other".into(), ..answer };
        assert_eq!(other.sentence(), Some("t exited with code 3: no\nway"));
    }

    #[test]
    fn an_error_that_the_tool_reports_is_shown_once() {
        let content = r#"[{"type":"text","text":"so far"},{"type":"text","text":"no"}]"#;
        let outcome = Outcome { content: JsonText::parse(content).ok(), ..Outcome::default() };
        let reported = Err(RuntimeError::reported("t", outcome));
        let there = format!(r#"{{"content":{content},"isError":true}}"#);
        assert_eq!(orla_server::call_result_json(&reported), there);
        let here = CallResult::of(&reported).unwrap();
        assert_eq!(here, CallResult::parse(&there).unwrap());
        assert_eq!((here.output(true), here.error.as_deref()), (b"so far".to_vec(), Some("no")));
    }
}
