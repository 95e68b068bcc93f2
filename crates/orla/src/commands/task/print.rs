//! Prints tasks from the JSON in which a server shows them.

use orla_tasks::program::{Step, Timeline, render as render_timeline};
use serde_json::value::RawValue;
use serde_json::{Value, json};

use super::super::client::readable;
use crate::call_result::CallResult;
use crate::cli::TaskList;
use crate::{Failure, commands, render};

/// Prints the list of tasks, which is a JSON array, or `none` if it is empty.
pub(super) fn print_list(array: &str, list: &TaskList, none: &str) -> Result<(), Failure> {
    commands::print_rows("/tasks", array, list.json, none, table)
}

fn table(rows: &[Value]) -> String {
    let column =
        |head, cell: &dyn Fn(&Value) -> String| (head, rows.iter().map(cell).collect::<Vec<_>>());
    let columns = [
        column("ID", &|row| commands::text_of(&row["id"])),
        column("CAPABILITY", &capability),
        column("STATE", &|row| commands::text_of(&row["state"])),
        column("CREATED", &|row| commands::text_of(&row["created_at"])),
        column("UPDATED", &|row| commands::text_of(&row["updated_at"])),
        column("CALLER", &|row| commands::text_of(&row["principal"])),
    ];
    commands::table_of(&columns, 200)
}

fn capability(task: &Value) -> String {
    let called = match task["program"] == json!(true) {
        true => "(program)".to_owned(),
        false => commands::text_of(&task["capability"]),
    };
    match task["schedule"].as_str() {
        Some(schedule) => format!("{called} (schedule {schedule})"),
        None => called,
    }
}

/// Prints a task, which is a JSON object.
pub(super) fn print_task(text: &str, as_json: bool) -> Result<(), Failure> {
    if as_json {
        render::json_line(text.trim_end());
        return Ok(());
    }
    let task = read(text)?;
    render::out(&described(&task));
    Ok(())
}

/// Returns a task for people.
fn described(task: &Value) -> String {
    let mut out = String::new();
    let mut line = |name: &str, value: String| {
        if !value.is_empty() {
            out.push_str(&format!("{name:<11} {value}\n"));
        }
    };
    line("id", commands::text_of(&task["id"]));
    line("capability", capability(task));
    line("state", commands::text_of(&task["state"]));
    line("caller", commands::text_of(&task["principal"]));
    line("key", commands::text_of(&task["key"]));
    line("created", commands::text_of(&task["created_at"]));
    line("updated", commands::text_of(&task["updated_at"]));
    line("progress", progress(&task["progress"]));
    line("waits for", commands::text_of(&task["waiting_for"]));
    for question in task["questions"].as_array().into_iter().flatten() {
        line("asks", commands::text_of(&question["params"]["message"]));
    }
    for entry in task["log"].as_array().into_iter().flatten() {
        line(
            "log",
            format!("{}: {}", commands::text_of(&entry["level"]), commands::text_of(&entry["message"])),
        );
    }
    if let Value::Object(error) = &task["error"] {
        let place = error.get("at").map(|at| format!(" (line {}, column {})", at["line"], at["column"]));
        let sentence = error.get("message").map(commands::text_of).unwrap_or_default();
        line("error", format!("{sentence}{}", place.unwrap_or_default()));
    }
    if let Some(result) = task.get("result") {
        line("result", commands::text_of(result));
    }
    if let Some(timeline) = timeline(task) {
        out.push('\n');
        out.push_str(&render_timeline("journal", &timeline));
    }
    out
}

/// Returns the timeline of a task's program, if the task is a program and has made a request.
fn timeline(task: &Value) -> Option<Timeline> {
    let steps: Vec<Step> = serde_json::from_value(task.get("journal")?.clone()).ok()?;
    let stands_at = task.get("stands_at").cloned().unwrap_or_else(|| json!([]));
    let stands_at = serde_json::from_value(stands_at).ok()?;
    (!steps.is_empty()).then_some(Timeline { steps, left_out: 0, stands_at })
}

fn progress(progress: &Value) -> String {
    let Some(done) = progress["progress"].as_f64() else { return String::new() };
    let total = progress["total"].as_f64().map(|total| format!(" of {total}")).unwrap_or_default();
    let message = progress["message"].as_str().map(|message| format!(": {message}")).unwrap_or_default();
    format!("{done}{total}{message}")
}

pub(super) fn read(text: &str) -> Result<Value, Failure> {
    readable(text).ok_or_else(no_task)
}

fn no_task() -> Failure {
    Failure::failed("the server's answer is not a task: is it orla?")
}

/// Prints the result of a task that is over, as `orla call` does. The text is the task with the result of its call in
/// MCP's form.
pub(super) fn print_result(text: &str) -> Result<(), Failure> {
    #[derive(serde::Deserialize)]
    struct Ended<'a> {
        state: String,
        error: Option<Value>,
        #[serde(borrow)]
        result: Option<&'a RawValue>,
    }
    let task: Ended<'_> = serde_json::from_str(text).map_err(|_| no_task())?;
    if let Some(result) = task.result {
        return CallResult::parse(result.get())
            .map_err(|err| Failure::failed(format!("the result is malformed: {err}")))?
            .print(None);
    }
    let message = task.error.and_then(|error| error["message"].as_str().map(str::to_owned));
    Err(Failure::failed(message.unwrap_or_else(|| format!("the task is {}", task.state))))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_task_is_shown_line_by_line() {
        let task = json!({"id": "0a", "state": "failed", "capability": "step", "principal": null,
            "created_at": "2026-11-20T08:00:00.000Z", "updated_at": "2026-11-20T08:00:01.000Z",
            "progress": {"progress": 3.0, "total": 4.0, "message": "three"},
            "log": [{"level": "info", "message": "hello"}],
            "error": {"kind": "failed", "message": "step failed", "at": {"line": 1, "column": 2}}});
        let text = described(&task);
        assert_eq!(
            text.lines().collect::<Vec<_>>(),
            [
                "id          0a",
                "capability  step",
                "state       failed",
                "created     2026-11-20T08:00:00.000Z",
                "updated     2026-11-20T08:00:01.000Z",
                "progress    3 of 4: three",
                "log         info: hello",
                "error       step failed (line 1, column 2)",
            ]
        );
        let row = table(&[json!({"id": "0b", "program": true, "state": "queued"})]);
        assert!(row.contains("(program)") && row.contains("queued"), "{row}");
    }
}
