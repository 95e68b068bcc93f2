//! `orla status`: the state of a running server.

use serde_json::Value;

use super::client::Server;
use crate::Failure;
use crate::config::Source;
use crate::render;

pub(crate) fn run(url: Option<&str>, json: bool, source: &Source) -> Result<(), Failure> {
    let config = source.load().map_err(|problems| Failure::configuration(&problems))?;
    let server = Server::at(url, &config)?;
    let text = super::small_runtime()?.block_on(server.get("/status"))?;
    if json {
        render::line(text.trim_end());
        return Ok(());
    }
    let status: Value = serde_json::from_str(&text)
        .map_err(|_| Failure::failed("the server's /status is no JSON: is it orla?"))?;
    render::out(&shown(&status));
    Ok(())
}

fn shown(status: &Value) -> String {
    let text = |value: &Value| match value {
        Value::Null => String::new(),
        Value::String(text) => text.clone(),
        other => other.to_string(),
    };
    let uptime = status["uptime_ms"].as_f64().unwrap_or_default() / 1000.0;
    let nothing = Vec::new();
    let capabilities = status["capabilities"].as_array().unwrap_or(&nothing);
    let mut out = format!(
        "orla {}, up {uptime:.1} s, generation {}, {} capabilities\n",
        text(&status["version"]),
        text(&status["generation"]),
        capabilities.len()
    );
    if !capabilities.is_empty() {
        let columns = ["name", "kind", "interpreter", "state", "pid", "restarts", "source"];
        let rows: Vec<Vec<String>> = capabilities
            .iter()
            .map(|capability| columns.iter().map(|column| text(&capability[*column])).collect())
            .collect();
        let head: Vec<String> = columns.iter().map(|column| column.to_uppercase()).collect();
        let head: Vec<&str> = head.iter().map(String::as_str).collect();
        out.push('\n');
        out.push_str(&render::table(&head, &rows, 160));
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_state_is_a_headline_and_a_table() {
        let status = serde_json::json!({
            "version": "0.1.0", "uptime_ms": 1500, "generation": 2,
            "capabilities": [{"name": "ls", "kind": "tool", "interpreter": "sh", "source": "./tools/ls.sh"}],
        });
        assert_eq!(
            shown(&status),
            "orla 0.1.0, up 1.5 s, generation 2, 1 capabilities\n\nNAME  KIND  INTERPRETER  STATE  PID  RESTARTS  SOURCE\nls    tool  sh                                 ./tools/ls.sh\n"
        );
    }
}
