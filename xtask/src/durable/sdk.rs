//! A task that outlives the server: the official SDK's client starts it, the server is killed while it runs, and the client has
//! its result from the server that is started afterwards.

use std::path::Path;
use std::process::Command;
use std::time::Duration;

use serde_json::Value;

use super::{Context, tool, write};
use crate::install::{self, Foreign};
use crate::process;
use crate::server::Server;

/// How long the client may take.
const TIMEOUT: Duration = Duration::from_secs(60);

/// A tool that ends when the file `go` is there, and may be run again.
const WAITS: &str = "while [ ! -e go ]; do sleep 0.05; done\necho done";
const BLOCK: &str = "description: Waits.\ntask: optional\nannotations: {idempotentHint: true}";

pub(super) fn run(context: &mut Context) -> Result<(), String> {
    let foreign = install::programs("clients", false)?;
    let folder = context.folder("sdk")?;
    let across = across_a_kill(&context.orla, &foreign, &folder);
    context.tally.check("TypeScript SDK v1's client: a task across a kill of the server", across);
    Ok(())
}

fn across_a_kill(binary: &Path, foreign: &Foreign, folder: &Path) -> Result<(), String> {
    tool(folder, "waits", BLOCK, WAITS)?;
    let client = |server: &Server, action: &str, name: &str| {
        let url = format!("http://{}/mcp", server.address);
        let mut client = Command::new(&foreign.node);
        client.arg(foreign.folder.join("tasks_sdk_v1.mjs")).args([&url, action, name]);
        process::run(&mut client, &foreign.folder, TIMEOUT)?.stdout_of_success()
    };
    let server = Server::start(binary, folder, folder)?;
    let id = client(&server, "start", "waits")?.trim().to_owned();
    server.kill()?;
    write(&folder.join("go"), "")?;
    let server = Server::start(binary, folder, folder)?;
    let printed = client(&server, "result", &id)?;
    let got: Value = serde_json::from_str(&printed).map_err(|err| format!("{err}: {printed}"))?;
    if got["status"] != "completed" || got["result"]["content"][0]["text"] != "done\n" {
        return Err(format!("the task {id} gave {got}"));
    }
    Ok(())
}
