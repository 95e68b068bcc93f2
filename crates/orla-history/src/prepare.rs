//! Makes the row of a call that has ended: its data as bounded JSON without secrets. Runs on the writer's thread.

use std::sync::Arc;

use orla_marketplace::{CapabilityMarketplace, JsonText, Outcome, RuntimeResult};
use orla_mcp::call_result::{call_result_json, plain_json};
use serde::Deserialize;

use crate::Options;
use crate::call::{Body, Row};
use crate::live::{End, LiveCall};

/// Makes rows.
pub(crate) struct Preparation {
    pub(crate) market: std::sync::Weak<CapabilityMarketplace>,
    pub(crate) options: Options,
}

impl Preparation {
    /// The row of a call that has ended.
    pub(crate) fn row(&self, live: &Arc<LiveCall>) -> Row {
        let redactor = self.market.upgrade().map(|market| market.redaction()).unwrap_or_default();
        let told = live.told();
        let end = live.end.get();
        let mut row = Row {
            call: live.call(),
            input: None,
            output: None,
            error: end.and_then(|end| end.error.as_deref()).map(|text| redactor.text(text).into_owned()),
            notices: told.notices,
            more_notices: told.more,
            stderr: None,
            trace: live.trace.clone(),
        };
        if !self.options.bodies {
            (row.notices, row.more_notices) = Default::default();
            return row;
        }
        row.input = live.input.json().ok().map(|json| self.body(&redactor.json(json.clone())));
        if let Some(End { output: Some(outcome), .. }) = end {
            row.output = output_of(outcome).map(|json| self.body(&redactor.json(json)));
            row.stderr = stderr_of(outcome).map(|text| redactor.text(&text).into_owned());
        }
        row
    }

    /// A JSON text within the bound.
    fn body(&self, json: &JsonText) -> Body {
        let text = json.as_str();
        let bytes = text.len() as u64;
        let mut end = self.options.max_body_bytes.min(text.len());
        while !text.is_char_boundary(end) {
            end -= 1;
        }
        Body { text: text[..end].to_owned(), bytes }
    }
}

/// What a call returned, as plain JSON.
fn output_of(outcome: &Outcome) -> Option<JsonText> {
    let bare = Outcome { meta: None, ..outcome.clone() };
    let result: RuntimeResult<Outcome> = Ok(bare);
    Some(plain_json(&JsonText::parse(call_result_json(&result)).ok()?))
}

/// What the process of a call wrote to standard error.
fn stderr_of(outcome: &Outcome) -> Option<String> {
    #[derive(Deserialize)]
    struct Meta {
        #[serde(rename = "orla/execution")]
        execution: Execution,
    }
    #[derive(Deserialize)]
    struct Execution {
        stderr: String,
    }
    let meta: Meta = serde_json::from_str(outcome.meta.as_ref()?.as_str()).ok()?;
    Some(meta.execution.stderr).filter(|text| !text.is_empty())
}
