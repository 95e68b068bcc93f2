//! The output of a run while it happens: for people, or as lines of JSON.
//!
//! For people, the answer goes to standard output as it comes, and each call is one line of standard error. As
//! JSON, everything goes to standard output, one object a line, with `type` one of `prompt`, `text`, `tool_call`,
//! `tool_result`, `usage` and `end`.

use std::cell::{Cell, RefCell};
use std::time::Duration;

use genai::chat::ToolCall;
use orla_marketplace::{Notice, NoticeSink};
use serde_json::{Value, json};

use super::RunObserver;
use super::run::{End, ModelReply, Tokens};
use crate::render::{self, progress};

/// Characters of arguments and errors that a line for people shows.
const SHOWN: usize = 120;

pub(crate) struct Transcript {
    is_json: bool,
    /// Whether the text so far ends within a line.
    within_line: Cell<bool>,
    /// The text of an incomplete reply, if replies are printed as a whole.
    begun: RefCell<String>,
}

impl Transcript {
    pub(crate) fn new(is_json: bool) -> Self {
        Self { is_json, within_line: Cell::new(false), begun: RefCell::default() }
    }

    pub(crate) fn prompt(&self, model: &str, prompt: &str) {
        self.line(|| json!({"type": "prompt", "model": model, "text": prompt}));
    }

    /// The end, and the total cost.
    pub(crate) fn end(&self, end: &Result<End, String>, spent: Tokens) {
        self.end_line();
        let (reason, error) = match end {
            Ok(end) => (end.word(), end.problem()),
            Err(error) => ("failed", Some(error.clone())),
        };
        let begun = self.begun.take();
        if !begun.is_empty() {
            self.line(|| json!({"type": "text", "text": begun, "partial": true}));
        }
        self.line(|| {
            let mut line = json!({"type": "end", "reason": reason,
                "input_tokens": spent.input, "output_tokens": spent.output});
            if let Some(error) = error {
                line["error"] = error.into();
            }
            line
        });
    }

    /// Text after it, such as a shell's prompt, begins on a new line.
    fn end_line(&self) {
        if self.within_line.replace(false) {
            render::out("\n");
        }
    }

    fn line(&self, line: impl FnOnce() -> Value) {
        if self.is_json {
            render::json_line(&line().to_string());
        }
    }
}

impl RunObserver for Transcript {
    fn text(&self, part: &str) {
        if self.is_json {
            self.begun.borrow_mut().push_str(part);
            return;
        }
        if part.is_empty() {
            return;
        }
        render::out(part);
        self.within_line.set(!part.ends_with('\n'));
    }

    fn answered(&self, answer: &ModelReply) {
        self.end_line();
        self.begun.take();
        if let Some(text) = answer.content.joined_texts().filter(|text| !text.is_empty()) {
            self.line(|| json!({"type": "text", "text": text}));
        }
        let Tokens { input, output } = answer.tokens;
        self.line(|| json!({"type": "usage", "input_tokens": input, "output_tokens": output}));
    }

    fn calls(&self, call: &ToolCall) {
        self.line(|| {
            json!({"type": "tool_call", "id": call.call_id, "name": call.fn_name, "arguments": call.fn_arguments})
        });
    }

    fn call_finished(&self, call: &ToolCall, text: &str, is_error: bool, took: Duration) {
        let ms = took.as_secs_f64() * 1000.0;
        if self.is_json {
            self.line(|| {
                json!({"type": "tool_result", "id": call.call_id, "name": call.fn_name, "is_error": is_error,
                    "text": text, "duration_ms": (ms * 10.0).round() / 10.0})
            });
            return;
        }
        let arguments = render::cut(&call.fn_arguments.to_string(), SHOWN);
        let problem = if is_error { format!(": {}", render::cut(text, SHOWN)) } else { String::new() };
        render::note(&format!("{} {arguments} ({ms:.1} ms){problem}", call.fn_name));
    }
    /// At a terminal, the progress and the messages of a call.
    fn notices(&self, call: &ToolCall) -> NoticeSink {
        match !self.is_json && render::stderr_is_terminal() {
            true => progress::sink(&call.fn_name, |notice| !matches!(notice, Notice::Text(_))),
            false => NoticeSink::default(),
        }
    }
}
