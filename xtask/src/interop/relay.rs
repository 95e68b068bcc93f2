//! Servers of others behind orla: what a client gets is what it gets without orla in between.
//!
//! A script (`xtask/fixtures/clients/relay.py`) asks the same of a server directly and through orla, and compares
//! every tool, result, prompt and resource. The servers are the reference server of the protocol and one on the
//! official Python SDK, over both transports.

use std::collections::BTreeMap;
use std::net::TcpListener;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use serde_json::{Value, json};

use super::install::{Foreign, fixtures};
use crate::process;
use crate::tally::Tally;

/// How long one comparison may take.
const PATIENCE: Duration = Duration::from_secs(120);
/// How long a server may take to listen.
const START: Duration = Duration::from_secs(30);

/// A server of somebody else.
struct Upstream {
    title: &'static str,
    /// What it is started with to speak on its standard input and output.
    command: Vec<String>,
    /// What is added to it, and to the environment, to listen on `PORT` instead.
    listening: (&'static [&'static str], bool),
    calls: Value,
}

/// Compares each server with itself behind orla, over both transports.
pub(crate) fn run(binary: &Path, foreign: &Foreign, tally: &mut Tally) -> Result<(), String> {
    for upstream in upstreams(foreign) {
        compare(binary, foreign, &upstream, tally, "stdio", &entry(&upstream.command))?;
        let (port, _server) = listen(&upstream)?;
        let entry = json!({ "url": format!("http://127.0.0.1:{port}/mcp") });
        compare(binary, foreign, &upstream, tally, "http", &entry)?;
    }
    Ok(())
}

fn upstreams(foreign: &Foreign) -> [Upstream; 2] {
    let text = |path: &Path| path.to_string_lossy().into_owned();
    let everything = foreign.module("@modelcontextprotocol/server-everything/dist/index.js");
    [
        Upstream {
            title: "server-everything",
            command: vec![text(&foreign.node), text(&everything)],
            listening: (&["streamableHttp"], true),
            calls: json!([
                ["echo", {"message": "hü"}],
                ["get-sum", {"a": 1, "b": 2}],
                ["get-tiny-image", {}],
                ["get-annotated-message", {"messageType": "error", "includeImage": true}],
                ["get-resource-links", {"count": 3}],
                ["get-structured-content", {"location": "Chicago"}],
                ["get-roots-list", {}],
                ["trigger-sampling-request", {"prompt": "p"}],
                ["trigger-elicitation-request", {}],
                ["trigger-long-running-operation", {"duration": 1, "steps": 2}],
            ]),
        },
        Upstream {
            title: "the Python SDK",
            command: vec![text(&foreign.python), text(&fixtures().join("relay_server.py"))],
            listening: (&["PORT"], false),
            calls: json!([["add", {"a": 1, "b": 2}], ["person", {"name": "é"}], ["fail", {}]]),
        },
    ]
}

fn entry(command: &[String]) -> Value {
    json!({ "command": command[0], "args": &command[1..] })
}

fn compare(
    binary: &Path,
    foreign: &Foreign,
    upstream: &Upstream,
    tally: &mut Tally,
    transport: &str,
    entry: &Value,
) -> Result<(), String> {
    let folder = foreign.folder.join("relay");
    std::fs::create_dir_all(folder.join("tools")).map_err(|err| err.to_string())?;
    let config = folder.join("orla.yaml");
    std::fs::write(&config, json!({ "mcpServers": { "s": entry } }).to_string())
        .map_err(|err| format!("{}: {err}", config.display()))?;
    let via = [&*binary.to_string_lossy(), "--stdio", "--config", &*config.to_string_lossy()]
        .map(str::to_owned);
    let mut script = Command::new(&foreign.python);
    script
        .arg(fixtures().join("relay.py"))
        .arg(upstream.calls.to_string())
        .arg(json!(upstream.command).to_string())
        .arg(json!(via).to_string())
        .current_dir(&folder);
    let title = format!("{} behind orla, {transport}", upstream.title);
    let checks = process::run(&mut script, &folder, PATIENCE)?
        .stdout_of_success()
        .and_then(|text| serde_json::from_str(&text).map_err(|err| format!("its report: {err}")));
    let checks: BTreeMap<String, Option<String>> = match checks {
        Ok(checks) => checks,
        Err(problem) => {
            tally.check(&title, Err(problem));
            return Ok(());
        }
    };
    for (what, difference) in checks {
        tally.check(&format!("{title}: {what}"), difference.map_or(Ok(()), Err));
    }
    Ok(())
}

/// A server that is ended when it is dropped.
struct Listening(Child);

impl Drop for Listening {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// Starts a server on a free port and waits until it takes connections.
fn listen(upstream: &Upstream) -> Result<(u16, Listening), String> {
    let free = TcpListener::bind("127.0.0.1:0").and_then(|listener| listener.local_addr());
    let port = free.map_err(|err| err.to_string())?.port();
    let mut command = Command::new(&upstream.command[0]);
    let (arguments, by_environment) = upstream.listening;
    command.args(&upstream.command[1..]);
    command.args(arguments.iter().map(|argument| argument.replace("PORT", &port.to_string())));
    if by_environment {
        command.env("PORT", port.to_string());
    }
    let child = command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null()).spawn();
    let server = Listening(child.map_err(|err| format!("{}: {err}", upstream.title))?);
    let end = Instant::now() + START;
    while std::net::TcpStream::connect(("127.0.0.1", port)).is_err() {
        if Instant::now() > end {
            return Err(format!("{} does not listen", upstream.title));
        }
        std::thread::sleep(Duration::from_millis(20));
    }
    Ok((port, server))
}
