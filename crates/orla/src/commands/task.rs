//! `orla task`: tasks of a running server, or those in the state of this directory.

mod here;
mod there;

use std::io::Read;

use orla_marketplace::JsonText;
use orla_marketplace::rtfs::text::excerpt;
use serde_json::value::RawValue;
use serde_json::{Value, json};

use super::client::Server;
use crate::call_result::CallResult;
use crate::cli::{Task, TaskCommand, TaskList, TaskRun};
use crate::config::{Source, reason};
use crate::{Failure, render};

/// The states in which a task is over.
const OVER: [&str; 4] = ["completed", "failed", "cancelled", "interrupted"];

pub(crate) fn run(task: &Task, source: &Source) -> Result<(), Failure> {
    let config = source.load().map_err(|problems| Failure::configuration(&problems))?;
    let _log = super::log(&config);
    // Before anything is opened or asked.
    let wanted = match &task.command {
        TaskCommand::Run(run) => Some(wanted(run)?),
        TaskCommand::Event { value, .. } => Some(event_value(value.as_deref())?),
        _ => None,
    };
    let runtime = super::small_runtime()?;
    let done = runtime.block_on(async {
        match &task.url {
            Some(url) => there::run(&task.command, wanted, &Server::at(Some(url), &config)?).await,
            None => here::run(&task.command, wanted, &config).await,
        }
    });
    runtime.shutdown_background();
    done
}

/// The input of the capability, or of the program with its text.
fn wanted(run: &TaskRun) -> Result<JsonText, Failure> {
    let Some(file) = &run.program else {
        return super::call::input(run.json.as_deref(), &run.arguments).map_err(Failure::usage);
    };
    let text = match file.as_os_str() == "-" {
        true => {
            let mut text = String::new();
            std::io::stdin().read_to_string(&mut text).map(|_| text)
        }
        false => std::fs::read_to_string(file),
    };
    let text =
        text.map_err(|err| Failure::usage(format!("--program {}: {}", file.display(), reason(&err))))?;
    let input = run.input.as_deref().unwrap_or("null");
    let input = JsonText::parse(input.to_owned())
        .map_err(|err| Failure::usage(format!("--input is not JSON: {err}")))?;
    JsonText::parse(format!(r#"{{"program":{},"input":{input}}}"#, Value::from(text)))
        .map_err(|err| Failure::usage(err.to_string()))
}

fn event_value(text: Option<&str>) -> Result<JsonText, Failure> {
    JsonText::parse(text.unwrap_or("null").to_owned()).map_err(|err| {
        Failure::usage(format!(
            "{}: the value of an event is JSON: {err}",
            excerpt(text.unwrap_or(""), 60)
        ))
    })
}

/// Prints the list of tasks, which is a JSON array.
fn print_list(array: &str, list: &TaskList) -> Result<(), Failure> {
    super::print_rows("/tasks", array, list.json, "There are no tasks.", table)
}

fn table(rows: &[Value]) -> String {
    let column =
        |head, cell: &dyn Fn(&Value) -> String| (head, rows.iter().map(cell).collect::<Vec<_>>());
    let columns = [
        column("ID", &|row| super::text_of(&row["id"])),
        column("CAPABILITY", &capability),
        column("STATE", &|row| super::text_of(&row["state"])),
        column("CREATED", &|row| super::text_of(&row["created_at"])),
        column("UPDATED", &|row| super::text_of(&row["updated_at"])),
        column("CALLER", &|row| super::text_of(&row["principal"])),
    ];
    super::table_of(&columns, 200)
}

fn capability(task: &Value) -> String {
    match task["program"] == json!(true) {
        true => "(program)".to_owned(),
        false => super::text_of(&task["capability"]),
    }
}

/// Prints a task, which is a JSON object.
fn print_task(text: &str, as_json: bool) -> Result<(), Failure> {
    if as_json {
        render::json_line(text.trim_end());
        return Ok(());
    }
    let task = read(text)?;
    render::out(&described(&task));
    Ok(())
}

/// A task for people.
fn described(task: &Value) -> String {
    let mut out = String::new();
    let mut line = |name: &str, value: String| {
        if !value.is_empty() {
            out.push_str(&format!("{name:<11} {value}\n"));
        }
    };
    line("id", super::text_of(&task["id"]));
    line("capability", capability(task));
    line("state", super::text_of(&task["state"]));
    line("caller", super::text_of(&task["principal"]));
    line("key", super::text_of(&task["key"]));
    line("created", super::text_of(&task["created_at"]));
    line("updated", super::text_of(&task["updated_at"]));
    line("progress", progress(&task["progress"]));
    for question in task["questions"].as_array().into_iter().flatten() {
        line("asks", super::text_of(&question["params"]["message"]));
    }
    for said in task["log"].as_array().into_iter().flatten() {
        line("log", format!("{}: {}", super::text_of(&said["level"]), super::text_of(&said["message"])));
    }
    if let Value::Object(error) = &task["error"] {
        let place = error.get("at").map(|at| format!(" (line {}, column {})", at["line"], at["column"]));
        let sentence = error.get("message").map(super::text_of).unwrap_or_default();
        line("error", format!("{sentence}{}", place.unwrap_or_default()));
    }
    if let Some(result) = task.get("result") {
        line("result", super::text_of(result));
    }
    out
}

fn progress(progress: &Value) -> String {
    let Some(done) = progress["progress"].as_f64() else { return String::new() };
    let total = progress["total"].as_f64().map(|total| format!(" of {total}")).unwrap_or_default();
    let message = progress["message"].as_str().map(|message| format!(": {message}")).unwrap_or_default();
    format!("{done}{total}{message}")
}

fn read(text: &str) -> Result<Value, Failure> {
    serde_json::from_str(text).map_err(|_| no_task())
}

fn no_task() -> Failure {
    Failure::failed("the server's answer is not a task: is it orla?")
}

/// Prints the result of a task that is over, as `orla call` does. The text is the task with the result of its call in
/// MCP's form.
fn print_result(text: &str) -> Result<(), Failure> {
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
