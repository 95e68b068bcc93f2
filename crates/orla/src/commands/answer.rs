//! The result of a call, printed: its text to standard output, what the tool said on standard error to
//! standard error.

use std::io::{IsTerminal, Write};

use base64::Engine;
use base64::prelude::BASE64_STANDARD;
use orla_marketplace::{Outcome, Payload, RuntimeError, RuntimeResult};
use serde::Deserialize;
use serde_json::value::RawValue;

use crate::Failure;
use crate::render;

/// What a call gave, whether here or on a server.
#[derive(Debug, Default, PartialEq)]
pub(crate) struct Answer {
    blocks: Vec<Block>,
    /// The structured content's JSON.
    structured: Option<String>,
    stderr: String,
    /// How much the server dropped of what the tool wrote.
    truncated: Truncated,
    /// The sentence that says why the call failed.
    error: Option<String>,
}

/// A content block of MCP, as far as it is printed.
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
struct CallResult<'a> {
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
    truncated: Truncated,
}

/// Bytes dropped from each stream.
#[derive(Debug, Default, Deserialize, PartialEq)]
#[serde(default)]
struct Truncated {
    stdout: u64,
    stderr: u64,
}

impl Answer {
    /// The answer in the JSON of a `tools/call` result.
    pub(crate) fn parse(result: &str) -> Result<Self, serde_json::Error> {
        let result: CallResult<'_> = serde_json::from_str(result)?;
        let mut answer = Self {
            blocks: result.content,
            structured: result.structured.map(|raw| raw.get().to_owned()),
            stderr: result.meta.execution.stderr,
            truncated: result.meta.execution.truncated,
            error: None,
        };
        if result.is_error {
            let last = answer.take_last_text();
            answer.error = Some(last.unwrap_or_else(|| "the call failed".to_owned()));
        }
        Ok(answer)
    }

    /// The answer that a call gave here.
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
        }
        if let Some(RuntimeError::Reported { .. }) = error {
            answer.take_last_text();
        }
        let structured = outcome.structured.as_ref().map(Payload::json);
        answer.structured = structured.and_then(Result::ok).map(|json| json.as_str().to_owned());
        Ok(answer)
    }

    /// Takes the sentence that says why the call failed out of its content.
    fn take_last_text(&mut self) -> Option<String> {
        let at = self.blocks.iter().rposition(|block| block.text.is_some())?;
        self.blocks.remove(at).text
    }

    /// All of it as text: what a call gave, and why it failed.
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

    /// Whether the call failed.
    pub(crate) fn is_error(&self) -> bool {
        self.error.is_some()
    }

    /// Prints the answer; a call that failed is a failure.
    pub(crate) fn print(&self) -> Result<(), Failure> {
        let to_terminal = std::io::stdout().is_terminal();
        let mut bytes = self.output(to_terminal);
        if to_terminal && bytes.last().is_some_and(|last| *last != b'\n') {
            // Or the shell's prompt would stand at the end of it.
            bytes.push(b'\n');
        }
        let mut stdout = std::io::stdout().lock();
        let _ = stdout.write_all(&bytes).and_then(|()| stdout.flush());
        render::err(&self.stderr);
        self.losses().iter().for_each(|loss| render::warning(loss));
        match self.sentence() {
            None => Ok(()),
            Some(error) => Err(Failure::failed(error)),
        }
    }

    /// What is missing, so that nobody takes a part for the whole.
    fn losses(&self) -> Vec<String> {
        [("standard output", self.truncated.stdout), ("standard error", self.truncated.stderr)]
            .into_iter()
            .filter(|(_, dropped)| *dropped > 0)
            .map(|(name, dropped)| format!("{dropped} bytes of {name} were dropped (max_output_bytes)"))
            .collect()
    }

    /// Why the call failed, less the end of standard error, which has just been printed whole.
    fn sentence(&self) -> Option<&str> {
        let error = self.error.as_deref()?;
        let printed = self.stderr.trim();
        match error.split_once(": ") {
            Some((sentence, end)) if !end.is_empty() && printed.ends_with(end) => Some(sentence),
            _ => Some(error),
        }
    }

    /// What goes to standard output. Bytes that are no text go to files and pipes as they are, and are
    /// described to a terminal.
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

impl Block {
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
        String::from_utf8(Answer::parse(json).unwrap().output(true)).unwrap()
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
    fn bytes_go_to_a_pipe_as_they_are() {
        let answer =
            Answer::parse(r#"{"content":[{"type":"image","data":"AAEC","mimeType":"image/png"}]}"#)
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
        };
        let message = "t exited with code 3".to_owned();
        let failed = Err(RuntimeError::Failed {
            id: "t".into(),
            message: message.clone(),
            outcome: Some(Box::new(outcome)),
        });
        let here = Answer::of(&failed);
        let there = format!(
            r#"{{"content":[{{"type":"text","text":"so far\n"}},{{"type":"text","text":"{message}"}}],"isError":true,"_meta":{meta}}}"#
        );
        assert_eq!(here.unwrap(), Answer::parse(&there).unwrap());
        assert_eq!(orla_server::call_result_json(&failed), there);
    }

    #[test]
    fn what_was_dropped_is_said_and_what_was_printed_is_not_repeated() {
        let answer = Answer::parse(
            r#"{"content":[{"type":"text","text":"x"},{"type":"text","text":"t exited with code 3: no\nway"}],"isError":true,
            "_meta":{"orla/execution":{"stderr":"oh\nno\nway\n","truncated":{"stdout":7,"stderr":0}}}}"#,
        )
        .unwrap();
        assert_eq!(answer.losses(), ["7 bytes of standard output were dropped (max_output_bytes)"]);
        assert_eq!(answer.sentence(), Some("t exited with code 3"));
        let other = Answer { stderr: "other".into(), ..answer };
        assert_eq!(other.sentence(), Some("t exited with code 3: no\nway"));
    }

    #[test]
    fn an_error_that_the_tool_reports_is_said_once() {
        let content = r#"[{"type":"text","text":"so far"},{"type":"text","text":"no"}]"#;
        let outcome = Outcome { content: JsonText::parse(content).ok(), ..Outcome::default() };
        let reported = Err(RuntimeError::reported("t", outcome));
        let there = format!(r#"{{"content":{content},"isError":true}}"#);
        assert_eq!(orla_server::call_result_json(&reported), there);
        let here = Answer::of(&reported).unwrap();
        assert_eq!(here, Answer::parse(&there).unwrap());
        assert_eq!((here.output(true), here.error.as_deref()), (b"so far".to_vec(), Some("no")));
    }
}
