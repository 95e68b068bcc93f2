//! `orla approvals`: the calls of a running server that wait for an approval, and the answers to them.

use serde_json::{Value, json};

use super::client::Server;
use crate::cli::ApprovalAnswer;
use crate::config::Source;
use crate::text::on_one_line;
use crate::{Failure, render};

pub(crate) fn run(
    answer: Option<&ApprovalAnswer>,
    url: Option<&str>,
    as_json: bool,
    source: &Source,
) -> Result<(), Failure> {
    let config = super::load_for_client(url, source)?;
    let server = Server::at(url, &config)?;
    let runtime = super::small_runtime()?;
    let Some(answer) = answer else {
        let text = runtime.block_on(server.get("/approvals"))?;
        return super::print_rows("/approvals", &text, as_json, "No call waits for an approval.", table);
    };
    let (id, approve) = match answer {
        ApprovalAnswer::Approve { id } => (id, true),
        ApprovalAnswer::Deny { id } => (id, false),
    };
    if id.is_empty() || !id.bytes().all(|byte| byte.is_ascii_alphanumeric()) {
        return Err(Failure::usage(format!(
            "{id:?} is not the id of an approval; see `orla approvals`"
        )));
    }
    let body = json!({ "approve": approve }).to_string();
    let text = runtime.block_on(server.post(&format!("/approvals/{id}"), body))?;
    match as_json {
        true => render::json_line(text.trim_end()),
        false => render::note(if approve { "Approved." } else { "Denied." }),
    }
    Ok(())
}

/// The whole input is printed below each row, because the approver of a call agrees to all of it.
fn table(rows: &[Value]) -> String {
    let column =
        |head, key: &str| (head, rows.iter().map(|row| super::text_of(&row[key])).collect::<Vec<_>>());
    let columns = [
        column("ID", "id"),
        column("CAPABILITY", "capability"),
        column("CALLER", "principal"),
        column("EXPIRES", "expires_at"),
    ];
    let table = super::table_of(&columns, 200);
    let mut lines = table.lines();
    let mut text = String::new();
    let mut add = |indent: &str, line: &str| {
        text.push_str(indent);
        text.push_str(line);
        text.push('\n');
    };
    lines.by_ref().take(1).for_each(|head| add("", head));
    for (line, row) in lines.zip(rows) {
        add("", line);
        for line in format!("{:#}", row["input"]).lines() {
            // A terminal would wrap a long line to its margin, where only rows begin.
            for part in parts(&on_one_line(line)) {
                add(INDENT, part);
            }
        }
    }
    text
}

/// Returns the parts of a line of at most [`WIDTH`] columns each. Characters other than ASCII may take
/// two columns.
fn parts(line: &str) -> Vec<&str> {
    let (mut parts, mut start, mut columns) = (Vec::new(), 0, 0);
    for (at, character) in line.char_indices() {
        let width = if character.is_ascii() { 1 } else { 2 };
        if columns + width > WIDTH {
            parts.push(&line[start..at]);
            (start, columns) = (at, 0);
        }
        columns += width;
    }
    parts.push(&line[start..]);
    parts
}

/// Before a line of an input.
const INDENT: &str = "    ";
/// Columns of a line of an input: with the indent, less than the 80 that a terminal has.
const WIDTH: usize = 74;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_row_is_what_a_person_decides_on() {
        let row = json!({"id": "0a", "capability": "rm", "principal": "bob", "input": {"path": "/"},
            "expires_at": "2026-11-20T08:00:00.000Z", "call_id": "x-1", "answerable": true});
        let table = table(&[row]);
        let lines: Vec<&str> = table.lines().map(str::trim_end).collect();
        assert_eq!(
            lines,
            [
                "ID  CAPABILITY  CALLER  EXPIRES",
                "0a  rm          bob     2026-11-20T08:00:00.000Z",
                "    {",
                r#"      "path": "/""#,
                "    }",
            ]
        );
    }

    #[test]
    fn wide_characters_are_counted_as_two() {
        let line = format!("{}0b  ls  bob", "\u{ff58}".repeat(38));
        let parts = parts(&line);
        assert_eq!(parts.concat(), line);
        assert_eq!(parts.iter().map(|part| part.chars().count()).collect::<Vec<_>>(), [37, 12]);
        assert_eq!(super::parts(""), [""]);
    }

    #[test]
    fn the_whole_input_is_shown_and_none_of_it_looks_like_a_row() {
        let note = format!("{}0b  ls\u{202e}\u{200b}", "x".repeat(400));
        let row = json!({"id": "0a", "input": {"note": note, "target": "PRODUCTION"}});
        let table = table(&[row]);
        let lines: Vec<&str> = table.lines().skip(2).collect();
        assert!(
            lines.iter().all(|line| line.starts_with(INDENT) && line.chars().count() < 80),
            "{table}"
        );
        let whole: String = lines.iter().map(|line| &line[INDENT.len()..]).collect();
        assert!(whole.contains(r"0b  ls\u{202e}\u{200b}"), "{whole}");
        assert!(whole.contains(r#""target": "PRODUCTION""#), "{whole}");
    }
}
