//! Prints calls from the JSON in which a server shows them. No I/O.

use std::fmt::Write as _;
use std::time::Duration;

use orla_history::{Body, Call, Detail, Node, Row, SpanLine};
use serde::Deserialize;
use serde_json::Value;
use serde_json::value::RawValue;

use crate::Failure;
use crate::commands::{table_of, text_of};
use crate::text::on_one_line;

/// Columns of the bars of a waterfall.
const BAR: usize = 32;
/// The maximum number of lines of a waterfall, beyond which no call is begun.
const MAX_LINES: usize = 500;

/// Returns the table of a list.
pub(super) fn table(rows: &[Value]) -> String {
    let column =
        |head, cell: &dyn Fn(&Value) -> String| (head, rows.iter().map(cell).collect::<Vec<_>>());
    let columns = [
        column("ID", &|row| text_of(&row["id"])),
        column("CAPABILITY", &|row| text_of(&row["capability"])),
        // A call that runs may wait for an approval.
        column("OUTCOME", &|row| text_of(row.get("state").unwrap_or(&row["outcome"]))),
        column("KIND", &|row| text_of(&row["kind"])),
        column("STARTED", &|row| text_of(&row["started_at"])),
        column("MS", &|row| text_of(&row["duration_ms"])),
        column("QUEUED", &|row| text_of(&row["queued_ms"])),
        column("CALLER", &|row| text_of(&row["principal"])),
        column("WITHIN", &|row| text_of(&row["parent"])),
    ];
    table_of(&columns, 200)
}

/// One call on one line.
pub(super) fn line(row: &Value) -> String {
    let caller = row["principal"].as_str().map(|name| format!(" by {name}")).unwrap_or_default();
    on_one_line(&format!(
        "{}  {:<10} {:>10} ms  {}{caller}  {}",
        text_of(&row["started_at"]),
        text_of(&row["outcome"]),
        text_of(&row["duration_ms"]),
        text_of(&row["capability"]),
        text_of(&row["id"]),
    ))
}

/// Returns a call with its data and the waterfall of its spans and the calls within it.
pub(super) fn detail(call: &Value) -> String {
    let mut out = String::new();
    let mut field = |name: &str, value: String| {
        if !value.is_empty() {
            let _ = writeln!(out, "{name:<11} {}", value.trim_end().replace('\n', "\n            "));
        }
    };
    for name in ["id", "parent", "capability", "kind", "principal"] {
        field(if name == "principal" { "caller" } else { name }, text_of(&call[name]));
    }
    let client = &call["client"];
    let client = format!("{} {}", text_of(&client["name"]), text_of(&client["version"]));
    field("client", client.trim().to_owned());
    for name in ["session", "outcome"] {
        field(name, text_of(&call[name]));
    }
    field("started", text_of(&call["started_at"]));
    let ms = |value: &Value| format!("{} ms", text_of(value));
    let steps = [("queued_ms", "queued"), ("executed_ms", "executing"), ("validated_ms", "validating")];
    let steps = steps.iter().filter(|(name, _)| call[name].is_number());
    let steps: Vec<String> = steps.map(|(name, what)| format!("{} {what}", ms(&call[name]))).collect();
    field("took", format!("{}, of which {}", ms(&call["duration_ms"]), steps.join(", ")));
    field("trace", text_of(&call["trace"]["trace_id"]));
    field("input", text_of(&call["input"]));
    field("output", text_of(&call["output"]));
    if let Some(bytes) = call["truncated"].as_object() {
        for (name, bytes) in bytes {
            field("", format!("(the {name} had {bytes} bytes; only its beginning was kept)"));
        }
    }
    field("error", text_of(&call["error"]["message"]));
    field("stderr", text_of(&call["stderr"]));
    for notice in call["notices"].as_array().into_iter().flatten() {
        let progress = match (notice["progress"].as_f64(), notice["total"].as_f64()) {
            (Some(done), Some(total)) => format!("{done} of {total} "),
            (Some(done), None) => format!("{done} "),
            (None, _) => String::new(),
        };
        let level = notice["level"].as_str().map(|level| format!("{level}: ")).unwrap_or_default();
        let text = format!("+{} ms  {progress}{level}{}", notice["at_ms"], text_of(&notice["message"]));
        field(notice["kind"].as_str().unwrap_or("notice"), text);
    }
    let has_any = |name: &str| call[name].as_array().is_some_and(|parts| !parts.is_empty());
    if has_any("children") || has_any("spans") {
        out.push('\n');
        out.push_str(&waterfall(call));
    }
    out
}

/// A line of a waterfall.
struct Line {
    name: String,
    /// Milliseconds from the beginning of the outermost call.
    offset: f64,
    took: f64,
    /// How it ended, if there is something to say.
    outcome: String,
}

/// Returns the calls within a call, with their processes and requests, as bars over its time.
fn waterfall(call: &Value) -> String {
    let mut lines = Vec::new();
    add_lines(call, 0, time(call).unwrap_or_default(), &mut lines);
    let total = call["duration_ms"].as_f64().unwrap_or(0.0).max(0.001);
    let width = lines.iter().map(|line| line.name.chars().count()).max().unwrap_or(0).min(48);
    let mut out = String::new();
    for Line { name, offset, took, outcome } in &lines {
        let column = |ms: f64| ((ms / total * BAR as f64) as usize).min(BAR);
        let start = column(*offset).min(BAR - 1);
        let end = column(offset + took).max(start + 1);
        let bar = format!("{}{}{}", " ".repeat(start), "█".repeat(end - start), " ".repeat(BAR - end));
        let name = crate::text::cut(name, width);
        let _ = writeln!(out, "{name:<width$}  |{bar}| {took:>10.3} ms{outcome}");
    }
    out
}

/// Adds the lines of a call: its own, those of its spans, and those of the calls within it.
fn add_lines(call: &Value, depth: usize, began: f64, lines: &mut Vec<Line>) {
    let indented = |depth: usize, name: String| on_one_line(&format!("{}{name}", "  ".repeat(depth)));
    let number = |value: &Value| value.as_f64().unwrap_or(0.0);
    let offset = time(call).map_or(0.0, |at| (at - began).max(0.0));
    let outcome = call["outcome"].as_str().filter(|outcome| *outcome != "ok");
    lines.push(Line {
        name: indented(depth, text_of(&call["capability"])),
        offset,
        took: number(&call["duration_ms"]),
        outcome: outcome.map(|outcome| format!("  {}", on_one_line(outcome))).unwrap_or_default(),
    });
    let spans = call["spans"].as_array().into_iter().flatten();
    lines.extend(spans.filter_map(|span| SpanLine::deserialize(span).ok()).map(|span| Line {
        name: indented(depth + 1, span.name.clone()),
        offset: offset + span.at_ms,
        took: span.duration_ms,
        outcome: format!("  {}", span.outcome()),
    }));
    for child in call["children"].as_array().into_iter().flatten() {
        if lines.len() >= MAX_LINES {
            return;
        }
        add_lines(child, depth + 1, began, lines);
    }
}

/// Returns when a call began, in milliseconds.
fn time(call: &Value) -> Option<f64> {
    let at: jiff::Timestamp = call["started_at"].as_str()?.parse().ok()?;
    Some(at.as_microsecond() as f64 / 1000.0)
}

/// A call as a server shows it, as far as a case is made of it. Data keep their text.
#[derive(Deserialize)]
struct Shown<'a> {
    id: String,
    capability: String,
    outcome: String,
    #[serde(default)]
    kind: String,
    parent: Option<String>,
    #[serde(default, borrow)]
    input: Option<&'a RawValue>,
    #[serde(default, borrow)]
    output: Option<&'a RawValue>,
    #[serde(default)]
    truncated: Truncated,
    error: Option<ShownError>,
    #[serde(default)]
    duration_ms: f64,
    #[serde(default, borrow)]
    children: Vec<Self>,
}

#[derive(Default, Deserialize)]
struct Truncated {
    input: Option<u64>,
    output: Option<u64>,
}

#[derive(Deserialize)]
struct ShownError {
    message: String,
}

/// Returns the parts of a call that a case is made of, from its JSON.
pub(super) fn parsed(text: &str) -> Result<Detail, Failure> {
    let shown: Shown<'_> = serde_json::from_str(text)
        .map_err(|_| Failure::failed("the server's answer is not a call: is it orla?"))?;
    let body = |value: &str, cut: Option<u64>| {
        let (text, whole) = (value.to_owned(), value.len() as u64);
        Body { text, bytes: cut.unwrap_or(whole) }
    };
    let mut row = Row::of(call_of(&shown));
    row.input = shown.input.map(|input| body(input.get(), shown.truncated.input));
    row.output = Some(body(shown.output.map_or("null", RawValue::get), shown.truncated.output));
    row.error = shown.error.as_ref().map(|error| error.message.clone());
    Ok(Detail::of(row, shown.children.iter().map(node).collect()))
}

fn node(shown: &Shown<'_>) -> Node {
    Node::of(call_of(shown), shown.children.iter().map(node).collect())
}

fn call_of(shown: &Shown<'_>) -> Call {
    let mut call = Call::new(shown.id.clone(), shown.capability.clone(), shown.outcome.clone());
    call.kind.clone_from(&shown.kind);
    call.parent.clone_from(&shown.parent);
    call.duration = Duration::try_from_secs_f64(shown.duration_ms / 1000.0).unwrap_or_default();
    call
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn call() -> Value {
        let at = |ms: u32| format!("2026-11-20T08:00:00.{ms:03}Z");
        json!({"id": "a-1", "parent": null, "capability": "rtfs", "kind": "rtfs", "principal": "ada", "outcome": "ok",
            "started_at": at(0), "duration_ms": 100.0, "queued_ms": 0.5, "input": {"n": 1}, "output": 2,
            "error": null, "stderr": "oh\nno\n", "notices": [{"at_ms": 3.5, "kind": "log", "level": "info", "message": "hi"}],
            "children": [
                {"id": "a-2", "parent": "a-1", "capability": "add\u{1b}", "kind": "tool", "principal": "ada", "outcome": "ok",
                 "started_at": at(0), "duration_ms": 50.0, "queued_ms": 0, "children": []},
                {"id": "a-3", "parent": "a-1", "capability": "sub", "kind": "tool", "principal": "ada", "outcome": "failed",
                 "started_at": at(50), "duration_ms": 50.0, "queued_ms": 0, "children": []}]})
    }

    #[test]
    fn a_call_is_shown_with_a_bar_for_each_call_within_it() {
        let text = detail(&call());
        let lines: Vec<&str> = text.lines().collect();
        assert_eq!(
            lines[..10],
            [
                "id          a-1",
                "capability  rtfs",
                "kind        rtfs",
                "caller      ada",
                "outcome     ok",
                "started     2026-11-20T08:00:00.000Z",
                "took        100.0 ms, of which 0.5 ms queued",
                "input       {\"n\":1}",
                "output      2",
                "stderr      oh",
            ]
        );
        assert_eq!(lines[11], "log         +3.5 ms  info: hi");
        let (half, whole) = ("█".repeat(16), "█".repeat(32));
        assert_eq!(lines[13], format!("rtfs         |{whole}|    100.000 ms"));
        assert_eq!(lines[14], format!("  add\\u{{1b}}  |{half}{}|     50.000 ms", " ".repeat(16)));
        assert_eq!(lines[15], format!("  sub        |{}{half}|     50.000 ms  failed", " ".repeat(16)));

        let mut more = call();
        more["client"] = json!({"name": "agent", "version": "1.2"});
        (more["session"], more["executed_ms"], more["validated_ms"]) =
            (json!("1f2e"), json!(99.0), json!(0.25));
        let text = detail(&more);
        for line in [
            "client      agent 1.2\n",
            "session     1f2e\n",
            "took        100.0 ms, of which 0.5 ms queued, 99.0 ms executing, 0.25 ms validating\n",
        ] {
            assert!(text.contains(line), "{line}: {text}");
        }
    }

    #[test]
    fn a_call_becomes_a_case() {
        let text = call().to_string().replace(r#"{"n":1}"#, r#"{"n":1.10}"#);
        let detail = parsed(&text).unwrap();
        assert_eq!(orla_history::recorded(&detail), ["a-2", "a-3"]);
        let case = orla_history::case(&detail.row, &[]).unwrap();
        assert_eq!(
            case,
            r#"{"name":"rtfs a-1","capability":"rtfs","input":{"n":1.10},"expect":{"output":2}}"#
        );
        assert!(parsed("{}").is_err());
    }
}
