//! `orla cluster`: the nodes as a running server knows them.

use serde_json::{Value, json};

use super::client::Server;
use super::{status, text_of};
use crate::Failure;
use crate::config::Source;
use crate::render;

/// The path of the unfinished tasks that this caller may see.
const TASKS: &str = "/tasks?state=queued,working,input_required&limit=1000";
/// How many ids of a node a table shows.
const SHOWN: usize = 5;

pub(crate) fn status(url: Option<&str>, as_json: bool, source: &Source) -> Result<(), Failure> {
    let config = super::load_for_client(url, source)?;
    let server = Server::at(url, &config)?;
    let runtime = super::small_runtime()?;
    let mut status = runtime.block_on(status::get(&server))?;
    let Value::Array(mut nodes) = status["cluster"]["nodes"].take() else {
        return Err(Failure::failed(
            "the server is not a node of a cluster: set `cluster` in its configuration",
        ));
    };
    for node in nodes.iter().filter(|node| is_cut_off(node)) {
        render::warning(&format!(
            "{} has no connection to NATS: it hears no other node, and what stands here of others is old",
            text_of(&node["node"])
        ));
    }
    // Without NATS, the tasks cannot be read.
    let tasks = runtime.block_on(server.get(TASKS));
    let unknown = tasks.as_ref().err().map(Failure::text);
    let tasks: Vec<Value> =
        tasks.ok().and_then(|text| serde_json::from_str(&text).ok()).unwrap_or_default();
    match as_json {
        true => {
            nodes.iter_mut().for_each(|node| add_tasks(node, &tasks));
            render::json_line(&json!({ "nodes": nodes }).to_string());
        }
        false => {
            render::out(&table(&nodes));
            if !tasks.is_empty() {
                render::out(&format!("\n{}", tasks_table(&tasks)));
            }
            if let Some(why) = unknown {
                render::note(&format!("Which tasks run is not known: {why}"));
            }
        }
    }
    Ok(())
}

/// The tasks of a node, if it has any.
fn add_tasks(node: &mut Value, tasks: &[Value]) {
    let mine = tasks.iter().filter(|task| task["node"] == node["node"]);
    let rows: Vec<Value> = mine
        .map(|task| json!({"id": task["id"], "capability": what(task), "state": task["state"]}))
        .collect();
    if !rows.is_empty() {
        node["tasks"] = Value::Array(rows);
    }
}

/// Returns the capability or program that a task calls.
fn what(task: &Value) -> String {
    if task["program"] == true { "a program".to_owned() } else { text_of(&task["capability"]) }
}

fn tasks_table(tasks: &[Value]) -> String {
    let column = |head, cell: fn(&Value) -> String| (head, tasks.iter().map(cell).collect());
    super::table_of(
        &[
            column("TASK", |task| text_of(&task["id"])),
            column("STATE", |task| text_of(&task["state"])),
            column("NODE", |task| task["node"].as_str().unwrap_or("none yet").to_owned()),
            column("CAPABILITY", what),
        ],
        200,
    )
}

/// Has a node take no more calls of others, or take them again.
pub(crate) fn drain(
    node: &str,
    drains: bool,
    url: Option<&str>,
    source: &Source,
) -> Result<(), Failure> {
    let config = super::load_for_client(url, source)?;
    if !orla_cluster::is_name(node) {
        return Err(Failure::usage(format!(
            "{node:?} is not the name of a node; see `orla cluster status`"
        )));
    }
    let server = Server::at(url, &config)?;
    let body = json!({ "drain": drains }).to_string();
    super::small_runtime()?.block_on(server.post(&format!("/cluster/nodes/{node}"), body))?;
    render::note(if drains {
        "It takes no more calls of other nodes."
    } else {
        "It takes calls of other nodes again."
    });
    Ok(())
}

fn table(nodes: &[Value]) -> String {
    let column = |head, cell: fn(&Value) -> String| (head, nodes.iter().map(cell).collect());
    super::table_of(
        &[
            column("NODE", |node| text_of(&node["node"])),
            column("ALIVE", alive),
            column("RUNNING", |node| text_of(&node["running"])),
            column("PLACES", |node| node["places"].as_u64().unwrap_or_default().to_string()),
            column("LAG", |node| super::uptime(node["lag_ms"].as_u64().unwrap_or_default())),
            column("STORE", store),
            column("OFFERS", |node| offers(node["capabilities"].as_array().map_or(&[], Vec::as_slice))),
        ],
        200,
    )
}

fn is_cut_off(node: &Value) -> bool {
    node["cut_off"] == Value::Bool(true)
}

fn alive(node: &Value) -> String {
    if is_cut_off(node) {
        return "cut off".to_owned();
    }
    let word = match (&node["alive"], &node["draining"]) {
        (Value::Bool(true), Value::Bool(true)) => "draining",
        (Value::Bool(true), _) => "yes",
        _ => "no",
    };
    word.to_owned()
}

/// Returns whether its copy of the store keeps up.
fn store(node: &Value) -> String {
    match (&node["alive"], node["stuck_ms"].as_u64()) {
        _ if is_cut_off(node) => String::new(),
        (Value::Bool(true), Some(time)) => format!("stuck {}", super::uptime(time)),
        (Value::Bool(true), None) => "ok".to_owned(),
        _ => String::new(),
    }
}

/// Returns the first ids, and the number of the others.
fn offers(ids: &[Value]) -> String {
    let first: Vec<String> = ids.iter().take(SHOWN).map(text_of).collect();
    match ids.len().saturating_sub(SHOWN) {
        0 => first.join(", "),
        more => format!("{} and {more} more", first.join(", ")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nodes_are_rows() {
        let ids: Vec<String> = (0..7).map(|number| format!("t{number}")).collect();
        let table = table(&[
            json!({"node": "alpha", "alive": true, "capabilities": ids, "running": 2, "places": 1, "lag_ms": 1200}),
            json!({"node": "away", "alive": true, "draining": true, "capabilities": [], "running": 1, "lag_ms": 0, "stuck_ms": 12_000}),
            json!({"node": "apart", "alive": true, "cut_off": true, "capabilities": [], "running": 0, "lag_ms": 0}),
            json!({"node": "beta", "alive": false, "capabilities": [], "running": 0, "lag_ms": 12000}),
        ]);
        let lines: Vec<&str> = table.lines().map(str::trim_end).collect();
        assert_eq!(
            lines,
            [
                "NODE   ALIVE     RUNNING  PLACES  LAG     STORE         OFFERS",
                "alpha  yes       2        1       1.2 s   ok            t0, t1, t2, t3, t4 and 2 more",
                "away   draining  1        0       0.0 s   stuck 12.0 s",
                "apart  cut off   0        0       0.0 s",
                "beta   no        0        0       12.0 s",
            ]
        );
    }

    #[test]
    fn tasks_stand_with_the_nodes_that_run_them() {
        let tasks = [
            json!({"id": "1", "state": "working", "capability": "slow", "node": "alpha"}),
            json!({"id": "2", "state": "queued", "program": true}),
        ];
        let mut node = json!({"node": "alpha"});
        add_tasks(&mut node, &tasks);
        assert_eq!(node["tasks"], json!([{"id": "1", "capability": "slow", "state": "working"}]));
        let table = tasks_table(&tasks);
        let lines: Vec<&str> = table.lines().map(str::trim_end).collect();
        assert_eq!(
            lines,
            [
                "TASK  STATE    NODE      CAPABILITY",
                "1     working  alpha     slow",
                "2     queued   none yet  a program",
            ]
        );
    }
}
