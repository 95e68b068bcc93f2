//! `orla search`: finds capabilities by words, here or on a server.

use orla_marketplace::discovery;
use serde_json::value::RawValue;
use serde_json::{Value, json};

use super::client::{Reply, Server};
use crate::app::App;
use crate::config::{Config, Source};
use crate::{Failure, cli, render};

pub(crate) fn run(search: &cli::Search, source: &Source) -> Result<(), Failure> {
    if let Some(registry) = &search.registry {
        return super::packages::search(registry, &search.words.join(" "), search.limit, search.json);
    }
    let config = super::load_local_or_for_client(search.url.as_deref(), source)?;
    let _log = super::log(&config);
    let query = search.words.join(" ");
    let found = super::small_runtime()?.block_on(async {
        match &search.url {
            Some(url) => {
                let arguments = json!({"query": query, "limit": search.limit});
                ask(&Server::at(Some(url), &config)?, discovery::IDS[0], &arguments).await
            }
            None => search_local(&config, &query, search.limit).await,
        }
    })?;
    if search.json {
        return super::print_json(&found);
    }
    render::out(&table(&found));
    let total = found["total"].as_u64().unwrap_or_default();
    let shown = found["results"].as_array().map_or(0, Vec::len) as u64;
    if total == 0 {
        render::note(&format!(
            "Nothing fits {query:?}. Try other words, or fewer; `orla list --all` shows everything."
        ));
    } else if total > shown {
        render::note(&format!("{} more fit; --limit {total} shows them.", total - shown));
    }
    Ok(())
}

/// Searches what would be served. A person at this machine may see everything.
async fn search_local(config: &Config, query: &str, limit: usize) -> Result<Value, Failure> {
    let app = App::build(config)?;
    super::wait_until_listed(&app).await;
    let found = discovery::search(&app.marketplace().snapshot(), query, limit, None).json();
    app.end_providers().await;
    Ok(found)
}

/// Calls one of the tools of discovery on a server and returns its result as a value.
pub(super) async fn ask(server: &Server, tool: &str, arguments: &Value) -> Result<Value, Failure> {
    let raw = |value: &Value| {
        RawValue::from_string(value.to_string()).map_err(|err| Failure::failed(err.to_string()))
    };
    let params = [("name", raw(&json!(tool))?), ("arguments", raw(arguments)?)];
    let result = match server.request("tools/call", tool, &params, |_| {}).await? {
        Reply::Result(result) => result,
        Reply::Error(message) => return Err(Failure::failed(message)),
    };
    let mut result: Value = serde_json::from_str(&result)
        .map_err(|err| Failure::failed(format!("the answer is malformed: {err}")))?;
    if result["isError"] == true {
        let text = result["content"].as_array().and_then(|blocks| blocks.last()?["text"].as_str());
        return Err(Failure::failed(text.unwrap_or("the server could not answer")));
    }
    Ok(result["structuredContent"].take())
}

fn table(found: &Value) -> String {
    let nothing = Vec::new();
    let results = found["results"].as_array().unwrap_or(&nothing);
    if results.is_empty() {
        return String::new();
    }
    let column = |key: &str| -> Vec<String> {
        results.iter().map(|result| result[key].as_str().unwrap_or_default().to_owned()).collect()
    };
    let columns =
        [("ID", column("id")), ("KIND", column("kind")), ("DESCRIPTION", column("description"))];
    super::table_of(&columns, render::width())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn results_are_a_table_and_no_results_are_empty() {
        let found = json!({"results": [
            {"id": "mail.send", "name": "mail__send", "kind": "mcp", "description": "Sends a message\nto", "score": 2.5},
            {"id": "ls", "name": "ls", "kind": "tool", "description": "Lists a directory", "score": 1.0},
        ], "total": 2});
        assert_eq!(
            table(&found),
            "ID         KIND  DESCRIPTION\nmail.send  mcp   Sends a message\nls         tool  Lists a directory\n"
        );
        assert_eq!(table(&json!({"results": [], "total": 0})), "");
    }
}
