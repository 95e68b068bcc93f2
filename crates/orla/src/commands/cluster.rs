//! `orla cluster`: the nodes as a running server knows them.

use serde_json::{Value, json};

use super::client::Server;
use super::{status, text_of};
use crate::Failure;
use crate::config::Source;
use crate::render;

/// How many ids of a node a table shows.
const SHOWN: usize = 5;

pub(crate) fn status(url: Option<&str>, as_json: bool, source: &Source) -> Result<(), Failure> {
    let config = super::load(source)?;
    let server = Server::at(url, &config)?;
    let status = super::small_runtime()?.block_on(status::get(&server))?;
    let cluster = &status["cluster"];
    let Some(nodes) = cluster["nodes"].as_array() else {
        return Err(Failure::failed(
            "the server is no node of a cluster: set `cluster` in its configuration",
        ));
    };
    for node in nodes.iter().filter(|node| is_cut_off(node)) {
        render::warning(&format!(
            "{} has no connection to NATS: it hears no other node, and what stands here of others is old",
            text_of(&node["node"])
        ));
    }
    match as_json {
        true => render::json_line(&json!({ "nodes": nodes }).to_string()),
        false => render::out(&table(nodes)),
    }
    Ok(())
}

/// Has a node take no more calls of others, or take them again.
pub(crate) fn drain(
    node: &str,
    drains: bool,
    url: Option<&str>,
    source: &Source,
) -> Result<(), Failure> {
    let config = super::load(source)?;
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

/// The first ids, and the number of the others.
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
            json!({"node": "away", "alive": true, "draining": true, "capabilities": [], "running": 1, "lag_ms": 0}),
            json!({"node": "apart", "alive": true, "cut_off": true, "capabilities": [], "running": 0, "lag_ms": 0}),
            json!({"node": "beta", "alive": false, "capabilities": [], "running": 0, "lag_ms": 12000}),
        ]);
        let lines: Vec<&str> = table.lines().map(str::trim_end).collect();
        assert_eq!(
            lines,
            [
                "NODE   ALIVE     RUNNING  PLACES  LAG     OFFERS",
                "alpha  yes       2        1       1.2 s   t0, t1, t2, t3, t4 and 2 more",
                "away   draining  1        0       0.0 s",
                "apart  cut off   0        0       0.0 s",
                "beta   no        0        0       12.0 s",
            ]
        );
    }
}
