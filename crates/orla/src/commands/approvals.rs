//! `orla approvals`: the calls of a running server that wait for an approval, and the answers to them.

use serde_json::{Value, json};

use super::client::Server;
use crate::cli::ApprovalAnswer;
use crate::config::Source;
use crate::{Failure, render};

pub(crate) fn run(
    answer: Option<&ApprovalAnswer>,
    url: Option<&str>,
    as_json: bool,
    source: &Source,
) -> Result<(), Failure> {
    let config = super::load(source)?;
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

fn table(rows: &[Value]) -> String {
    let column =
        |head, key: &str| (head, rows.iter().map(|row| super::text_of(&row[key])).collect::<Vec<_>>());
    let columns = [
        column("ID", "id"),
        column("CAPABILITY", "capability"),
        column("CALLER", "principal"),
        column("EXPIRES", "expires_at"),
        column("INPUT", "input"),
    ];
    super::table_of(&columns, 200)
}

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
                "ID  CAPABILITY  CALLER  EXPIRES                   INPUT",
                r#"0a  rm          bob     2026-11-20T08:00:00.000Z  {"path":"/"}"#,
            ]
        );
    }
}
