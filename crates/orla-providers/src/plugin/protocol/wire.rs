//! The lines of plugins: parsing and writing.
//!
//! ```text
//! {"id": 1, "function": "f", "input": …}      a call
//! {"id": 2, "cancel": 1}                      the answer of call 1 is no longer awaited
//! {"id": 0, "function": "describe"}           what do you serve?
//!
//! {"id": 1, "progress": 0.5, "message": "…"}  how far it is, any number of times
//! {"id": 1, "ok": …}                          the value
//! {"id": 1, "error": {"kind": "…", "message": "…"}}
//! ```
//!
//! Inputs and values stay in their original text: they are neither parsed nor copied, and numbers keep
//! their digits.

use std::borrow::Cow;
use std::collections::HashSet;
use std::io::Write as _;

use bytes::Bytes;
use orla_marketplace::rtfs::text::excerpt;
use orla_marketplace::{JsonText, Progress};
use serde::Deserialize;
use serde_json::Value;
use serde_json::value::RawValue;

use orla_mcp::answer::ListedTool;
use orla_mcp::framing::end_line;
use orla_mcp::object::push_text;
use orla_mcp::wire::present;

pub use orla_mcp::Failure;

/// The id of the request for a plugin's description.
pub const DESCRIBE: u64 = 0;

/// A line of a plugin.
#[derive(Debug, PartialEq)]
pub struct Message {
    /// The id of the answered request.
    pub id: u64,
    /// The content.
    pub body: Body,
}

/// The content of a plugin's line.
#[derive(Debug, PartialEq)]
pub enum Body {
    /// The value.
    Ok(JsonText),
    /// The call failed.
    Error(Failure),
    /// The progress of the call.
    Progress(Progress),
}

/// The maximum length of a failure's kind, in bytes.
const MAX_KIND: usize = 100;
/// The maximum length of a message for users, in bytes.
const MAX_MESSAGE: usize = 8 * 1024;
/// The longest error, in bytes, that programs receive unchanged.
const MAX_WHOLE: usize = 64 * 1024;

#[derive(Deserialize)]
struct Envelope<'a> {
    id: u64,
    #[serde(borrow, default, deserialize_with = "present")]
    ok: Option<&'a RawValue>,
    #[serde(borrow, default, deserialize_with = "present")]
    error: Option<&'a RawValue>,
    progress: Option<f64>,
    total: Option<f64>,
    #[serde(borrow)]
    message: Option<Cow<'a, str>>,
}

/// Parses a line as a message; `None` if it is not one.
pub fn read(line: &Bytes) -> Option<Message> {
    // An array would be parsed as the members in their order.
    if !line.trim_ascii_start().starts_with(b"{") {
        return None;
    }
    let Envelope { id, ok, error, progress, total, message } = serde_json::from_slice(line).ok()?;
    let body = match (ok, error.filter(|error| error.get() != "null"), progress) {
        (_, Some(error), _) => Body::Error(failure(error)),
        (Some(ok), None, _) => Body::Ok(JsonText::slice_of(line, ok)),
        (None, None, Some(progress)) => Body::Progress(Progress {
            progress,
            // A fraction of 1, unless the line gives a total.
            total: total.or_else(|| (progress <= 1.0).then_some(1.0)),
            message: message.map(|message| excerpt(&message, MAX_MESSAGE)),
        }),
        (None, None, None) => return None,
    };
    Some(Message { id, body })
}

/// Any value of the member counts as an error.
fn failure(error: &RawValue) -> Failure {
    let text = error.get();
    let read = text.starts_with('{').then(|| serde_json::from_str(text).ok()).flatten();
    let whole = read.is_some() && text.len() <= MAX_WHOLE;
    let Failure { kind, message, .. } = read.unwrap_or_else(|| Failure {
        message: serde_json::from_str(text).unwrap_or_else(|_| text.to_owned()),
        ..Failure::default()
    });
    Failure {
        kind: excerpt(&kind, MAX_KIND),
        message: excerpt(&message, MAX_MESSAGE),
        whole: whole.then(|| JsonText::from(error.to_owned())),
    }
}

/// The maximum number of functions of one plugin.
pub const MAX_FUNCTIONS: usize = 10_000;

/// The number of characters of an invalid entry that a message quotes.
const QUOTED_ENTRY: usize = 60;

/// Parses the answer to [`DESCRIBE`]. Returns the functions, and the problem of the entries that were
/// left out, if any.
///
/// # Errors
/// The answer is not valid as a whole, or none of its entries is.
pub fn functions(ok: &JsonText) -> Result<(Vec<ListedTool>, Option<String>), String> {
    #[derive(Deserialize)]
    struct Described<'a> {
        #[serde(borrow)]
        functions: Vec<&'a RawValue>,
    }
    #[derive(Deserialize)]
    struct Function {
        name: String,
        description: Option<String>,
        input_schema: Option<Value>,
        output_schema: Option<Value>,
    }
    let is_object = |text: &str| text.starts_with('{');
    if !is_object(ok.as_str()) {
        return Err("expected an object with functions".to_owned());
    }
    let described: Described<'_> = serde_json::from_str(ok.as_str()).map_err(|err| err.to_string())?;
    let mut seen = HashSet::new();
    let mut read = |text: &str| {
        let quote = || excerpt(text, QUOTED_ENTRY);
        if !is_object(text) {
            return Err(format!("expected an object with \"name\", got {}", quote()));
        }
        let Function { name, description, input_schema, output_schema } = serde_json::from_str(text)
            .map_err(|_| format!("expected a function with a \"name\" that is text, got {}", quote()))?;
        if name.is_empty() {
            return Err("its name is empty".to_owned());
        }
        if !seen.insert(name.clone()) {
            return Err(format!("another function is named {}", excerpt(&name, QUOTED_ENTRY)));
        }
        Ok(ListedTool {
            name,
            title: None,
            description,
            input_schema,
            output_schema,
            annotations: None,
            execution: None,
            more: None,
        })
    };
    let (mut functions, mut first) = (Vec::new(), None);
    for (index, text) in described.functions.iter().enumerate() {
        if functions.len() == MAX_FUNCTIONS {
            first.get_or_insert_with(|| format!("only the first {MAX_FUNCTIONS} functions are served"));
            break;
        }
        match read(text.get()) {
            Ok(function) => functions.push(function),
            Err(problem) => {
                first.get_or_insert_with(|| format!("functions[{index}]: {problem}"));
            }
        }
    }
    let more = described.functions.len() - functions.len();
    let problem = first.map(|first| match more {
        0 | 1 => first,
        more => format!("{first}; and {} more", more - 1),
    });
    match problem {
        Some(problem) if functions.is_empty() => Err(problem),
        problem => Ok((functions, problem)),
    }
}

/// Appends a call.
pub fn write_call(out: &mut Vec<u8>, id: u64, function: &str, input: &JsonText) {
    let start = out.len();
    out.reserve(input.bytes().len() + function.len() + 64);
    // Writing to memory does not fail.
    let _ = write!(out, r#"{{"id":{id},"function":"#);
    push_text(out, function);
    out.extend_from_slice(br#","input":"#);
    out.extend_from_slice(input.bytes());
    out.push(b'}');
    end_line(out, start);
}

/// Appends the request for the plugin's description.
pub fn write_describe(out: &mut Vec<u8>) {
    let _ = writeln!(out, r#"{{"id":{DESCRIBE},"function":"describe"}}"#);
}

/// Appends the cancellation of a call; `id` is the id of this line.
pub fn write_cancel(out: &mut Vec<u8>, id: u64, call: u64) {
    let _ = writeln!(out, r#"{{"id":{id},"cancel":{call}}}"#);
}

#[cfg(test)]
mod tests {
    use super::*;
    use bytes::BufMut;
    use orla_mcp::framing::Lines;
    use proptest::prelude::*;

    fn shown(line: &'static str) -> String {
        match read(&Bytes::from_static(line.as_bytes())) {
            None => "noise".to_owned(),
            Some(Message { id, body: Body::Ok(value) }) => format!("{id} ok {value}"),
            Some(Message { id, body: Body::Error(Failure { kind, message, .. }) }) => {
                format!("{id} error {kind}: {message}")
            }
            Some(Message { id, body: Body::Progress(progress) }) => {
                format!(
                    "{id} progress {} of {:?} {:?}",
                    progress.progress, progress.total, progress.message
                )
            }
        }
    }

    #[test]
    fn lines_are_parsed_by_kind() {
        let cases = [
            (r#"{"id":1,"ok":{"n":1.10,"big":1e400}}"#, r#"1 ok {"n":1.10,"big":1e400}"#),
            (r#"{"id": 1, "ok": null}"#, "1 ok null"),
            (r#" {"ok":[1, 2],"id":18446744073709551615,"more":{}} "#, "18446744073709551615 ok [1, 2]"),
            (r#"{"id":1,"error":{"kind":"k","message":"m"}}"#, "1 error k: m"),
            (r#"{"id":1,"error":{"message":"m"}}"#, "1 error : m"),
            (r#"{"id":1,"error":"odd"}"#, "1 error : odd"),
            (r#"{"id":1,"error":[7]}"#, "1 error : [7]"),
            (r#"{"id":1,"ok":7,"error":null}"#, "1 ok 7"),
            (r#"{"id":1,"ok":7,"error":{}}"#, "1 error : "),
            (
                r#"{"id":1,"progress":0.5,"message":"half"}"#,
                r#"1 progress 0.5 of Some(1.0) Some("half")"#,
            ),
            (r#"{"id":1,"progress":3,"total":10}"#, "1 progress 3 of Some(10.0) None"),
            (r#"{"id":1,"progress":3}"#, "1 progress 3 of None None"),
            (r#"{"id":1,"progress":"3"}"#, "noise"),
            (r#"{"id":"1","ok":1}"#, "noise"),
            (r#"{"id":-1,"ok":1}"#, "noise"),
            (r#"{"id":1}"#, "noise"),
            (r#"{"ok":1}"#, "noise"),
            (r#"{"id":1,"ok":1,"ok":2}"#, "noise"),
            ("[INFO] starting", "noise"),
            ("[1,2]", "noise"),
            ("", "noise"),
        ];
        for (line, expected) in cases {
            assert_eq!(shown(line), expected, "{line}");
        }
    }

    #[test]
    fn error_texts_of_a_plugin_are_bounded() {
        let flood = "x".repeat(1_000_000);
        for error in [
            format!(r#"{{"kind":"{flood}","message":"{flood}"}}"#),
            format!("\"{flood}\""),
            format!("[\"{flood}\"]"),
        ] {
            let line = Bytes::from(format!(r#"{{"id":1,"error":{error}}}"#));
            let Some(Message { body: Body::Error(Failure { kind, message, .. }), .. }) = read(&line)
            else {
                panic!("no error")
            };
            assert!(kind.len() < 200 && (8_000..9_000).contains(&message.len()), "{}", message.len());
        }
        let line = Bytes::from(format!(r#"{{"id":1,"progress":1,"message":"{flood}"}}"#));
        let Some(Message { body: Body::Progress(progress), .. }) = read(&line) else { panic!() };
        assert!(progress.message.unwrap().len() < 9_000);
    }

    #[test]
    fn every_message_is_written_as_one_line() {
        let json = |text: &str| JsonText::parse(text.to_owned()).unwrap();
        let mut out = Vec::new();
        write_describe(&mut out);
        write_call(&mut out, 1, "a \"b\"\n", &json("{\n\"x\": 1.10\r\n}"));
        write_cancel(&mut out, 2, 1);
        let expected = [
            r#"{"id":0,"function":"describe"}"#,
            r#"{"id":1,"function":"a \"b\"\n","input":{ "x": 1.10  }}"#,
            r#"{"id":2,"cancel":1}"#,
        ];
        assert_eq!(String::from_utf8(out).unwrap().lines().collect::<Vec<_>>(), expected);
    }

    #[test]
    fn functions_are_read_and_invalid_entries_are_explained() {
        let read = |text: &str| functions(&JsonText::parse(text.to_owned()).unwrap());
        let (read_ones, problem) = read(
            r#"{"functions":[{"name":"a","input_schema":{"type":"object"},"x":1},{"name":""},7,{"name":"b"},{"name":"a"}]}"#,
        )
        .unwrap();
        let names: Vec<&str> = read_ones.iter().map(|function| &*function.name).collect();
        assert_eq!(names, ["a", "b"]);
        assert_eq!(problem.as_deref(), Some("functions[1]: its name is empty; and 2 more"));
        assert!(read_ones[0].input_schema.is_some() && read_ones[0].description.is_none());
        assert_eq!(read(r#"{"functions":[]}"#), Ok((Vec::new(), None)));
        let invalid = [
            (r#"["add"]"#, "functions[0]: expected an object with \"name\", got \"add\""),
            (
                r#"[{"name": 1}]"#,
                "functions[0]: expected a function with a \"name\" that is text, got {\"name\": 1}",
            ),
        ];
        for (functions, problem) in invalid {
            let answer = format!(r#"{{"functions":{functions}}}"#);
            assert_eq!(read(&answer).unwrap_err(), problem);
        }
        assert!(read("{}").is_err() && read("[]").is_err() && read(r#"{"functions":{}}"#).is_err());
    }

    proptest! {
        #[test]
        fn any_bytes_can_be_read(pieces in proptest::collection::vec(proptest::collection::vec(any::<u8>(), 0..40), 0..20)) {
            let mut lines = Lines::default();
            for piece in &pieces {
                lines.read_buffer().put_slice(piece);
                while let Ok(Some(line)) = lines.next() {
                    let _ = read(&line);
                }
            }
        }

        #[test]
        fn a_line_of_json_makes_no_trouble(line in r#"(\{|\}|"id":|"ok":|"error":|"progress":|"kind":|,|1|"a"|null|\[|\]){0,14}"#) {
            let line = Bytes::from(line.into_bytes());
            if let Some(Message { body: Body::Ok(value), .. }) = read(&line) {
                let _ = functions(&value);
            }
        }

        #[test]
        fn an_echoed_input_round_trips(id in any::<u64>(), function in ".*", texts in proptest::collection::vec(".*", 0..4)) {
            let input = JsonText::of(&texts).unwrap();
            let mut out = Vec::new();
            write_call(&mut out, id, &function, &input);
            prop_assert_eq!(memchr::memchr(b'\n', &out), Some(out.len() - 1));
            let call: Value = serde_json::from_slice(&out).unwrap();
            prop_assert_eq!(call["function"].as_str(), Some(&*function));
            let answer = format!(r#"{{"id":{id},"ok":{}}}"#, call["input"]);
            let expected = Message { id, body: Body::Ok(input) };
            prop_assert_eq!(read(&Bytes::from(answer.into_bytes())), Some(expected));
        }
    }
}
