//! A large API's own OpenAPI document, imported, and its operations called against a local server made of it.
//!
//! The document is GitHub's (npm's `@octokit/openapi`). The server answers with the examples of the document and tells what
//! came; what has to come is worked out from the document, by a script that knows nothing of orla.

use std::collections::BTreeMap;
use std::path::Path;
use std::process::Command;
use std::time::Duration;

use serde_json::{Value, json};

use super::upstream::{fixtures, serve};
use crate::install::Foreign;
use crate::process;
use crate::server::Server;
use crate::tally::Tally;

/// How long all calls may take.
const TIMEOUT: Duration = Duration::from_secs(240);

/// What the document has at least.
const OPERATIONS: u64 = 1000;

/// How many of its operations the script has to be able to call, at least.
const CALLS: usize = 1000;

/// Imports the document and calls what it describes.
pub(super) fn run(binary: &Path, foreign: &Foreign, tally: &mut Tally) -> Result<(), String> {
    let folder = foreign.folder.join("openapi");
    std::fs::create_dir_all(&folder).map_err(|err| format!("{}: {err}", folder.display()))?;
    let document = foreign.module("@octokit/openapi/generated/api.github.com.json");
    let script = fixtures().join("openapi.py");

    let mut server = Command::new("python3");
    server.arg(&script).arg("serve").arg(&document);
    let api = Server::listening(server, &folder.join("api.log"), |line| {
        line.strip_prefix("listening on http://").map(str::to_owned)
    })?;
    let address = format!("http://{}", api.address);
    let config = json!({
        "builtins": false,
        "openapi": [{"openapi": document, "name": "api", "base_url": address}],
    });
    let orla = serve(binary, &folder.join("orla"), "orla.yaml", &config.to_string())?;

    let mut client = Command::new("python3");
    client.arg(&script).arg("call").arg(&document).arg(&address);
    client.arg(format!("http://{}/mcp", orla.address));
    let printed = process::run(&mut client, &folder, TIMEOUT)?.stdout_of_success()?;
    let mut report: BTreeMap<String, Value> =
        serde_json::from_str(&printed).map_err(|err| format!("its report: {err}: {printed}"))?;

    let tools = report.remove("").and_then(|tools| tools.as_u64()).unwrap_or(0);
    let enough = if tools >= OPERATIONS { Ok(()) } else { Err("that is too few".to_owned()) };
    tally.check(&format!("OpenAPI: {tools} operations are imported"), enough);
    let mut good = 0;
    for (operation, problem) in report {
        match problem {
            Value::Null => good += 1,
            problem => tally.check(&format!("OpenAPI: {operation}"), Err(problem.to_string())),
        }
    }
    let enough = if good >= CALLS { Ok(()) } else { Err("that is too few".to_owned()) };
    tally.check(
        &format!("OpenAPI: {good} operations are called; path, query, body and answer hold"),
        enough,
    );
    Ok(())
}
