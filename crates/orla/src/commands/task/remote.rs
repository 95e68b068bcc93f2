//! Tasks of a running server.

use orla_marketplace::JsonText;
use orla_tasks::State;
use serde_json::Value;

use super::print::{print_list, print_result, print_task, read};
use crate::cli::{TaskCommand, TaskList};
use crate::commands::client::Server;
use crate::text::encoded;
use crate::{Failure, render};

/// How long one request waits for the end of a task, in seconds.
const WAIT: u32 = 25;

pub(super) async fn run(
    command: &TaskCommand,
    wanted: Option<JsonText>,
    server: &Server,
) -> Result<(), Failure> {
    match command {
        TaskCommand::Run(run) => {
            let input = wanted.unwrap_or_default();
            let key = run.key.as_ref().map(|key| format!(r#","key":{}"#, Value::from(&**key)));
            let key = key.unwrap_or_default();
            let body = match run.capability() {
                Some(name) => {
                    format!(r#"{{"capability":{},"input":{input}{key}}}"#, Value::from(name))
                }
                // The input of a program is an object with its text.
                None => {
                    let members = input.as_str().strip_suffix('}').unwrap_or_default();
                    format!("{members}{key}}}")
                }
            };
            let task = read(&server.post("/tasks", body).await?)?;
            let id = crate::commands::text_of(&task["id"]);
            match run.wait {
                true => print_result(&ended(server, &id).await?),
                false => {
                    render::line(&id);
                    Ok(())
                }
            }
        }
        TaskCommand::List(list) => {
            const NONE: &str = "There are no tasks that you may see. The tasks of others take the permission tasks:read.";
            print_list(&server.get(&query(list)).await?, list, NONE)
        }
        TaskCommand::Show { id, json } => print_task(&server.get(&path(id)).await?, *json),
        TaskCommand::Wait { id } => print_result(&ended(server, id).await?),
        TaskCommand::Cancel { id } => {
            server.delete(&path(id)).await?;
            render::note("Cancelled.");
            Ok(())
        }
        TaskCommand::Event { id, name, .. } => {
            let value = wanted.unwrap_or_default().to_string();
            server.post(&format!("{}/events/{}", path(id), encoded(name)), value).await?;
            render::note("Sent.");
            Ok(())
        }
    }
}

/// Returns the task at its end.
async fn ended(server: &Server, id: &str) -> Result<String, Failure> {
    loop {
        let text = server.get(&format!("{}?wait={WAIT}&result=mcp", path(id))).await?;
        let state = crate::commands::text_of(&read(&text)?["state"]);
        if state.parse::<State>().is_ok_and(State::is_terminal) {
            return Ok(text);
        }
        if state == "input_required" {
            // The server answers at once as long as it asks.
            tokio::time::sleep(std::time::Duration::from_secs(1)).await;
        }
    }
}

fn path(id: &str) -> String {
    format!("/tasks/{}", encoded(id))
}

fn query(list: &TaskList) -> String {
    let mut path = format!("/tasks?limit={}", list.limit);
    for (name, value) in [("capability", &list.capability), ("before", &list.before)] {
        if let Some(value) = value {
            path.push_str(&format!("&{name}={}", encoded(value)));
        }
    }
    if !list.state.is_empty() {
        path.push_str(&format!("&state={}", encoded(&list.state.join(","))));
    }
    path
}
