//! A task that outlives the server: the official SDK's client starts it, the server is killed while it runs, and the client has
//! its result from the server that is started afterwards.

use std::fs;
use std::os::unix::fs::PermissionsExt as _;
use std::path::Path;
use std::process::Command;
use std::time::Duration;

use serde_json::Value;

use super::install::Foreign;
use crate::process;
use crate::server::Server;
use crate::tally::Tally;

/// How long the client may take.
const TIMEOUT: Duration = Duration::from_secs(60);

/// A tool that ends when the file `go` is there, and may be run again.
const WAITS: &str = "#!/bin/sh\n# /// orla\n# description: Waits.\n# task: optional\n# annotations: {idempotentHint: true}\n# ///\n\
    echo ran >> runs\nwhile [ ! -e go ]; do sleep 0.05; done\necho done\n";

pub(super) fn run(binary: &Path, foreign: &Foreign, tally: &mut Tally) -> Result<(), String> {
    let across = across_a_kill(binary, foreign);
    tally.check("TypeScript SDK v1's client: a task across a kill of the server", across);
    Ok(())
}

fn across_a_kill(binary: &Path, foreign: &Foreign) -> Result<(), String> {
    let folder = foreign.folder.join("tasks");
    if folder.exists() {
        fs::remove_dir_all(&folder).map_err(|err| err.to_string())?;
    }
    let tool = folder.join("tools/waits");
    fs::create_dir_all(folder.join("tools"))
        .and_then(|()| fs::write(&tool, WAITS))
        .and_then(|()| fs::set_permissions(&tool, fs::Permissions::from_mode(0o755)))
        .map_err(|err| err.to_string())?;
    let client = |server: &Server, action: &str, name: &str| {
        let url = format!("http://{}/mcp", server.address);
        let mut client = Command::new(&foreign.node);
        client.arg(foreign.folder.join("tasks_sdk_v1.mjs")).args([&url, action, name]);
        process::run(&mut client, &foreign.folder, TIMEOUT)?.stdout_of_success()
    };
    let server = Server::start(binary, &folder, &folder)?;
    let id = client(&server, "start", "waits")?.trim().to_owned();
    server.kill()?;
    fs::write(folder.join("go"), "").map_err(|err| err.to_string())?;
    let server = Server::start(binary, &folder, &folder)?;
    let printed = client(&server, "result", &id)?;
    let got: Value = serde_json::from_str(&printed).map_err(|err| format!("{err}: {printed}"))?;
    if got["status"] != "completed" || got["result"]["content"][0]["text"] != "done\n" {
        return Err(format!("the task {id} gave {got}"));
    }
    Ok(())
}
