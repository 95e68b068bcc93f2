//! Turns the end of a program into the result for its caller (RFC 1 §5.3, §5.4).
//!
//! | what happened | what comes back |
//! |---|---|
//! | exit 0 | the output, as the tool declares it |
//! | another exit code, a signal | [`RuntimeError::Failed`] with one sentence |
//! | the deadline | [`RuntimeError::TimedOut`] |
//! | output that is not what was declared | [`RuntimeError::InvalidOutput`] |
//!
//! The output is always kept: an error carries the same content as a success. Pure functions.

use std::borrow::Cow;
use std::os::unix::process::ExitStatusExt;
use std::time::Duration;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD as BASE64;
use bytes::Bytes;
use orla_marketplace::rtfs::text::{excerpt, tail};
use orla_marketplace::{JsonText, Outcome, Payload, RuntimeError, RuntimeResult, Violation, millis_up};
use orla_process::confinement::Sandbox;
use orla_process::runner::{Captured, Cause, Ended, Status};
use orla_process::signal::{self, signal_name};
use orla_process::start_failure::{CANNOT_EXECUTE, StartFailure};
use serde::de::{self, IgnoredAny};
use serde::{Deserialize, Serialize};
use serde_json::value::RawValue;

use super::metadata::OutputForm;
use crate::confined::{Confined, EXECUTION};

/// The call that a result belongs to.
#[derive(Clone, Copy, Debug)]
pub struct Context<'a> {
    /// The name under which the tool is served.
    pub name: &'a str,
    /// The call's id, unique within the instance. It is part of the address of embedded output.
    pub call_id: &'a str,
    /// The timeout of the call.
    pub timeout: Duration,
    /// The form of the standard output.
    pub form: OutputForm,
    /// Whether the tool declares an output schema.
    pub has_schema: bool,
    /// The sandbox; `None` for no confinement.
    pub sandbox: Option<&'a Sandbox>,
}

/// The number of bytes of standard error in the sentence about an exit code.
const STDERR_SHOWN: usize = 2000;

/// The number of bytes of invalid JSON that are shown.
const JSON_SHOWN: usize = 40;

/// Returns the outcome of a program that ran.
///
/// # Errors
/// It failed, was ended, or wrote something else than it declares; the error keeps what it wrote.
pub fn of_ended(context: &Context<'_>, ended: Ended) -> RuntimeResult<Outcome> {
    let id = || context.name.to_owned();
    let execution = Execution::of(&ended, context.sandbox);
    let failure = match ended.cause {
        Cause::Itself => match ended.breach {
            Some(limit) => {
                Some(format!("{} was ended because it went over its limit of {limit}", context.name))
            }
            None => sentence(context.name, &execution),
        },
        Cause::Deadline | Cause::Cancelled => None,
    };
    if ended.cause == Cause::Itself && failure.is_none() {
        return success(context, &execution, ended.stdout);
    }
    let outcome = Some(Box::new(failed(context, &execution, &ended.stdout)?));
    Err(match (ended.cause, failure) {
        (Cause::Deadline, _) => RuntimeError::TimedOut { id: id(), limit: context.timeout, outcome },
        (Cause::Cancelled, _) => RuntimeError::Cancelled { id: id(), outcome },
        (Cause::Itself, message) => {
            RuntimeError::Failed { id: id(), message: message.unwrap_or_default(), outcome }
        }
    })
}

/// Returns the error of a program that could not be started.
pub fn of_start_failure(
    context: &Context<'_>,
    failure: &StartFailure,
    ended: Option<&Ended>,
) -> RuntimeError {
    let message = format!("{} could not start: {}", context.name, failure.reason);
    let nothing = Captured::default();
    let mut execution = ended.map(|ended| Execution::of(ended, context.sandbox)).unwrap_or_default();
    execution.sandbox = Confined::of(context.sandbox);
    execution.exit_code = failure.exit_code;
    if let (None, Some(detail)) = (ended, &failure.detail) {
        // A shell would print the detail on standard error.
        execution.stderr = Cow::Borrowed(detail);
    }
    let stdout = ended.map_or(&nothing, |ended| &ended.stdout);
    let outcome = failed(context, &execution, stdout).ok().map(Box::new);
    RuntimeError::Failed { id: context.name.to_owned(), message, outcome }
}

/// Returns the exit code by the shell's conventions, also for a program that did not run.
pub fn exit_code(status: Status) -> i32 {
    match status {
        Status::NeverStarted => CANNOT_EXECUTE,
        Status::Lost => signal::KILLED,
        Status::Exited(status) => signal::exit_code(status),
    }
}

/// The content of `_meta["orla/execution"]` for every call.
#[derive(Debug, Default, Serialize)]
struct Execution<'a> {
    exit_code: i32,
    #[serde(skip_serializing_if = "Option::is_none")]
    signal: Option<Cow<'static, str>>,
    stderr: Cow<'a, str>,
    duration_ms: u64,
    timed_out: bool,
    sandbox: Confined<'a>,
    #[serde(skip_serializing_if = "Option::is_none")]
    truncated: Option<Truncated>,
}

/// The number of bytes dropped from each stream.
#[derive(Debug, Serialize)]
struct Truncated {
    stdout: u64,
    stderr: u64,
}

impl<'a> Execution<'a> {
    fn of(ended: &Ended, sandbox: Option<&'a Sandbox>) -> Self {
        let truncated = Truncated { stdout: ended.stdout.dropped, stderr: ended.stderr.dropped };
        let (exit_code, stderr) =
            (exit_code(ended.status), String::from_utf8_lossy(&ended.stderr.bytes));
        let mut confined = Confined::of(sandbox);
        if exit_code != 0 {
            let directory = std::env::current_dir().unwrap_or_default();
            confined.refused = Confined::refused(sandbox, &stderr, Some(&directory));
        }
        Self {
            sandbox: confined,
            exit_code,
            signal: ended.status.exit().and_then(|status| status.signal()).map(signal_name),
            stderr: Cow::Owned(stderr.into_owned()),
            duration_ms: millis_up(ended.duration),
            timed_out: ended.cause == Cause::Deadline,
            truncated: (truncated.stdout + truncated.stderr > 0).then_some(truncated),
        }
    }
}

/// Returns one sentence on an unsuccessful end.
fn sentence(name: &str, execution: &Execution<'_>) -> Option<String> {
    if let Some(signal) = &execution.signal {
        return Some(format!("{name} was killed by {signal}"));
    }
    if execution.exit_code == 0 {
        return None;
    }
    let end = tail(execution.stderr.trim(), STDERR_SHOWN).trim();
    let separator = if end.is_empty() { "" } else { ": " };
    Some(format!("{name} exited with code {}{separator}{end}", execution.exit_code))
}

fn success(
    context: &Context<'_>,
    execution: &Execution<'_>,
    stdout: Captured,
) -> RuntimeResult<Outcome> {
    if context.form == OutputForm::Mcp {
        return mcp(context, execution, stdout);
    }
    let content = Some(blocks(context, &stdout)?);
    let meta = Some(meta(execution, None)?);
    if context.form == OutputForm::Text && !context.has_schema {
        let structured = Some(Payload::from_json(streams(execution, &stdout)?));
        return Ok(Outcome { structured, content, meta, ..Outcome::default() });
    }
    let (dropped, bytes) = (stdout.dropped, Bytes::from(stdout.bytes));
    match JsonText::parse(bytes.clone()) {
        Ok(json) => {
            let structured = Some(Payload::from_json(json));
            Ok(Outcome { structured, content, meta, ..Outcome::default() })
        }
        Err(err) => {
            let outcome = Outcome { content, meta, ..Outcome::default() };
            Err(unreadable(context, "one JSON value", not_json(&bytes, &err, dropped), outcome))
        }
    }
}

/// Returns the content of an error result.
fn failed(
    context: &Context<'_>,
    execution: &Execution<'_>,
    stdout: &Captured,
) -> RuntimeResult<Outcome> {
    let result =
        (context.form == OutputForm::Mcp).then(|| McpResult::parse(&stdout.bytes).ok()).flatten();
    let content = match result.as_ref().and_then(|result| result.content) {
        Some(content) => serialised(content)?,
        None => blocks(context, stdout)?,
    };
    let structured = (context.form != OutputForm::Mcp && !context.has_schema)
        .then(|| streams(execution, stdout).map(Payload::from_json))
        .transpose()?;
    let meta = Some(meta(execution, None)?);
    Ok(Outcome { structured, content: Some(content), meta, ..Outcome::default() })
}

/// Returns the outcome of standard output that is a complete MCP tool result.
fn mcp(context: &Context<'_>, execution: &Execution<'_>, stdout: Captured) -> RuntimeResult<Outcome> {
    let dropped = stdout.dropped;
    let body = Bytes::from(stdout.bytes);
    let result = match McpResult::parse(&body) {
        Ok(result) => result,
        Err(problem) => {
            let captured = Captured { bytes: body.to_vec(), dropped };
            let outcome = failed(context, execution, &captured)?;
            let got = match problem {
                Some(err) => not_json(&body, &err, dropped),
                None => "JSON that is not an object".to_owned(),
            };
            return Err(unreadable(context, "one MCP tool result", got, outcome));
        }
    };
    let content = match result.content {
        Some(content) => JsonText::slice_of(&body, content),
        None => serialised(&[(); 0])?,
    };
    let structured =
        result.structured_content.map(|json| Payload::from_json(JsonText::slice_of(&body, json)));
    let meta = Some(meta(execution, result.meta)?);
    let outcome = Outcome {
        structured,
        content: Some(content),
        meta,
        is_error: result.is_error,
        ..Outcome::default()
    };
    if result.is_error == Some(true) {
        return Err(RuntimeError::reported(context.name, outcome));
    }
    Ok(outcome)
}

/// The members of an MCP tool result that are interpreted.
#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct McpResult<'a> {
    #[serde(borrow)]
    content: Option<&'a RawValue>,
    #[serde(borrow)]
    structured_content: Option<&'a RawValue>,
    is_error: Option<bool>,
    #[serde(rename = "_meta")]
    meta: Option<serde_json::Map<String, serde_json::Value>>,
}

impl<'a> McpResult<'a> {
    /// Parses a result. The error is `None` for JSON that is not an object.
    fn parse(bytes: &'a [u8]) -> Result<Self, Option<serde_json::Error>> {
        /// The common members of all blocks.
        #[derive(Deserialize)]
        struct Block {
            #[serde(rename = "type")]
            _kind: String,
        }
        // An array would be parsed as the members in their order.
        if !bytes.trim_ascii_start().starts_with(b"{") {
            return Err(serde_json::from_slice::<IgnoredAny>(bytes).err());
        }
        let result: Self = serde_json::from_slice(bytes)?;
        if let Some(content) = result.content {
            let items: Vec<&RawValue> = serde_json::from_str(content.get())?;
            // The same applies to a block.
            if items.iter().any(|item| !item.get().starts_with('{')) {
                return Err(Some(de::Error::custom("expected an array of content blocks")));
            }
            serde_json::from_str::<Vec<Block>>(content.get())?;
        }
        Ok(result)
    }
}

fn unreadable(context: &Context<'_>, expected: &str, got: String, outcome: Outcome) -> RuntimeError {
    let id = context.name.to_owned();
    if context.has_schema {
        let violation = Violation { path: "output".to_owned(), expected: expected.to_owned(), got };
        return RuntimeError::InvalidOutput {
            id,
            violations: vec![violation],
            outcome: Box::new(outcome),
        };
    }
    let message = format!("{id} declares that it writes {expected}, and wrote {got}");
    RuntimeError::Failed { id, message, outcome: Some(Box::new(outcome)) }
}

/// Describes what a tool wrote instead of JSON.
fn not_json(bytes: &[u8], err: &serde_json::Error, dropped: u64) -> String {
    let text = err.to_string();
    if dropped > 0 {
        return format!("more than is kept of it ({dropped} bytes were dropped)");
    }
    match text.strip_prefix("trailing characters") {
        Some(place) => format!("a value followed by something else{place}"),
        None if text.starts_with("EOF while parsing a value at line 1 column 0") => "nothing".to_owned(),
        None if err.is_data() => text,
        None => {
            // The beginning of the text is more useful to users than what a parser expected there.
            let text = String::from_utf8_lossy(&bytes[..bytes.len().min(4 * JSON_SHOWN)]);
            let shown = excerpt(text.trim(), JSON_SHOWN);
            format!("text that is not JSON at line {} column {}: {shown}", err.line(), err.column())
        }
    }
}

/// Returns the name by which clients know a media type that was once experimental.
fn common_name(mime_type: &'static str) -> &'static str {
    match mime_type {
        "audio/x-wav" => "audio/wav",
        "audio/x-flac" => "audio/flac",
        "audio/x-aiff" => "audio/aiff",
        other => other,
    }
}

/// A block of MCP content.
#[derive(Serialize)]
#[serde(tag = "type", rename_all = "snake_case")]
enum ContentBlock<'a> {
    Text {
        text: &'a str,
    },
    Image {
        data: String,
        #[serde(rename = "mimeType")]
        mime_type: &'static str,
    },
    Audio {
        data: String,
        #[serde(rename = "mimeType")]
        mime_type: &'static str,
    },
    Resource {
        resource: BlobResource,
    },
}

#[derive(Serialize)]
struct BlobResource {
    uri: String,
    #[serde(rename = "mimeType")]
    mime_type: &'static str,
    blob: String,
}

/// Converts standard output to content: text if possible, and otherwise by its first bytes.
fn blocks(context: &Context<'_>, stdout: &Captured) -> RuntimeResult<JsonText> {
    let bytes = &stdout.bytes;
    let block = match str::from_utf8(bytes) {
        Ok(text) => ContentBlock::Text { text },
        Err(_) => {
            let data = BASE64.encode(bytes);
            match infer::get(bytes).map(|kind| (kind.matcher_type(), kind.mime_type())) {
                Some((infer::MatcherType::Image, mime_type)) => ContentBlock::Image { data, mime_type },
                Some((infer::MatcherType::Audio, mime_type)) => {
                    ContentBlock::Audio { data, mime_type: common_name(mime_type) }
                }
                other => ContentBlock::Resource {
                    resource: BlobResource {
                        uri: format!("orla://call/{}/stdout", context.call_id),
                        mime_type: other.map_or("application/octet-stream", |(_, mime_type)| mime_type),
                        blob: data,
                    },
                },
            }
        }
    };
    serialised(&[block])
}

/// Returns the value of a tool that declares no schema.
fn streams(execution: &Execution<'_>, stdout: &Captured) -> RuntimeResult<JsonText> {
    #[derive(Serialize)]
    struct Streams<'a> {
        stdout: Cow<'a, str>,
        stderr: &'a str,
        exit_code: i32,
    }
    serialised(&Streams {
        stdout: String::from_utf8_lossy(&stdout.bytes),
        stderr: &execution.stderr,
        exit_code: execution.exit_code,
    })
}

fn meta(
    execution: &Execution<'_>,
    own: Option<serde_json::Map<String, serde_json::Value>>,
) -> RuntimeResult<JsonText> {
    let Some(mut own) = own else {
        #[derive(Serialize)]
        struct Meta<'a> {
            #[serde(rename = "orla/execution")]
            execution: &'a Execution<'a>,
        }
        return serialised(&Meta { execution });
    };
    let execution =
        serde_json::to_value(execution).map_err(|err| RuntimeError::Generic(err.to_string()))?;
    own.insert(EXECUTION.to_owned(), execution);
    serialised(&own)
}

fn serialised(value: &(impl Serialize + ?Sized)) -> RuntimeResult<JsonText> {
    JsonText::of(value).map_err(|err| RuntimeError::Generic(err.to_string()))
}

#[cfg(test)]
mod tests;
