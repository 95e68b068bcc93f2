//! The result of a call.

use std::borrow::Cow;
use std::sync::Arc;

use rtfs::Value;

use crate::error::{RuntimeError, RuntimeResult};
use crate::memory::Reservation;
use crate::payload::{JsonText, Payload};

/// The result of a successful call.
///
/// A result that arrived as MCP content is passed on unchanged. The front end renders a plain value.
#[derive(Clone, Debug, Default)]
pub struct Outcome {
    /// The value: MCP's `structuredContent`.
    pub structured: Option<Payload>,
    /// A JSON array of MCP content blocks, exactly as passed on.
    pub content: Option<JsonText>,
    /// The JSON object that is passed on as `_meta`.
    pub meta: Option<JsonText>,
    /// The provider's value of MCP's `isError`, which is passed on; `None` if absent.
    pub is_error: Option<bool>,
    /// The reservation of its memory, if that counts towards a [`MemoryBudget`](crate::MemoryBudget).
    pub reservation: Option<Arc<Reservation>>,
}

impl Outcome {
    /// Creates an outcome that is only a value.
    pub fn from_value(value: Value) -> Self {
        Self { structured: Some(Payload::from_value(value)), ..Self::default() }
    }

    /// Returns the size of its JSON texts in bytes.
    pub fn bytes(&self) -> usize {
        let structured = self.structured.as_ref().map_or(0, Payload::text_bytes);
        let of = |text: &Option<JsonText>| text.as_ref().map_or(0, |text| text.as_str().len());
        structured + of(&self.content) + of(&self.meta)
    }

    /// Returns the outcome for keeping it longer than its call: see [`JsonText::detached`]. It counts towards no budget.
    #[must_use]
    pub fn detached(&self) -> Self {
        let detached = |text: &Option<JsonText>| text.as_ref().map(JsonText::detached);
        Self {
            structured: self.structured.as_ref().map(Payload::detached),
            content: detached(&self.content),
            meta: detached(&self.meta),
            is_error: self.is_error,
            reservation: None,
        }
    }

    /// Returns the outcome as an RTFS value: the structured one, or else the content blocks. A single
    /// block of text becomes that text.
    ///
    /// # Errors
    /// JSON that no value can hold.
    pub fn value(&self) -> RuntimeResult<Value> {
        if let Some(structured) = &self.structured {
            return structured.value().cloned();
        }
        let Some(content) = &self.content else { return Ok(Value::Nil) };
        match &self.blocks()?[..] {
            [TextBlock { kind, text: Some(text) }] if kind == "text" => Ok(Value::from(&**text)),
            _ => Payload::from_json(content.clone()).value().cloned(),
        }
    }

    /// Returns the value as a payload: the structured one; or else the text of the text blocks, parsed
    /// as JSON if possible and as a string otherwise; or else the content blocks.
    ///
    /// # Errors
    /// Content that is not a list of blocks.
    pub fn payload(&self) -> RuntimeResult<Payload> {
        if let Some(structured) = &self.structured {
            return Ok(structured.clone());
        }
        let Some(content) = &self.content else { return Ok(Payload::from_value(Value::Nil)) };
        let blocks = self.blocks()?.into_iter().filter(|block| block.kind == "text");
        let texts: Vec<Cow<'_, str>> = blocks.filter_map(|block| block.text).collect();
        if texts.is_empty() {
            return Ok(Payload::from_json(content.clone()));
        }
        let text = texts.join("\n");
        let json = JsonText::parse(text.clone()).or_else(|_| JsonText::of(&text));
        json.map(Payload::from_json).map_err(|err| RuntimeError::Generic(err.to_string()))
    }

    /// Returns the text of the last content block that is a text.
    pub fn last_text(&self) -> Option<String> {
        let texts = self.blocks().ok()?.into_iter().rev().filter(|block| block.kind == "text");
        texts.filter_map(|block| block.text).map(Cow::into_owned).next()
    }

    fn blocks(&self) -> RuntimeResult<Vec<TextBlock<'_>>> {
        let content = self.content.as_ref().map_or("[]", JsonText::as_str);
        serde_json::from_str(content)
            .map_err(|err| RuntimeError::Generic(format!("content is not a list of blocks: {err}")))
    }
}

impl From<Value> for Outcome {
    fn from(value: Value) -> Self {
        Self::from_value(value)
    }
}

#[derive(serde::Deserialize)]
struct TextBlock<'a> {
    #[serde(rename = "type", borrow)]
    kind: Cow<'a, str>,
    #[serde(borrow)]
    text: Option<Cow<'a, str>>,
}
