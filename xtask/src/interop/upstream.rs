//! Foreign servers: what stands behind orla, and what it is compared with.

use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::process::Command;

use serde_json::{Value, json};

use crate::install::Foreign;
use crate::server::Server;
use orla_e2e::free_port;

/// A server of another project, or one written with another project's library.
#[derive(Clone, Copy)]
pub(super) enum Upstream {
    /// The reference server of npm, which has all that the last revision with sessions knows.
    Everything,
    /// A file on the official Python SDK, which speaks both revisions and has what the conformance suite asks for.
    PythonSdk,
    /// A file on FastMCP.
    FastMcp,
}

/// A running HTTP server of one of them.
pub(super) struct Listening {
    /// Ended when dropped.
    _server: Server,
    pub(super) url: String,
}

impl Upstream {
    pub(super) fn title(self) -> &'static str {
        match self {
            Self::Everything => "server-everything",
            Self::PythonSdk => "Python SDK",
            Self::FastMcp => "FastMCP",
        }
    }

    /// What to call it with, and what to mask in its answers.
    pub(super) fn plan(self) -> PathBuf {
        fixtures().join(match self {
            Self::Everything => "everything.json",
            Self::PythonSdk => "python_sdk.json",
            Self::FastMcp => "fastmcp.json",
        })
    }

    /// Returns the command that serves over standard input and output.
    pub(super) fn command(self, foreign: &Foreign) -> Vec<OsString> {
        match self {
            Self::Everything => vec![
                foreign.node.clone().into(),
                foreign.module("@modelcontextprotocol/server-everything/dist/index.js").into(),
                "stdio".into(),
            ],
            Self::PythonSdk => {
                vec![foreign.python.clone().into(), fixtures().join("python_sdk_server.py").into()]
            }
            Self::FastMcp => {
                vec![foreign.python.clone().into(), fixtures().join("fastmcp_server.py").into()]
            }
        }
    }

    /// Starts it as an HTTP server.
    pub(super) fn listen(self, foreign: &Foreign, logs: &Path) -> Result<Listening, String> {
        let mut words = self.command(foreign);
        let port = free_port();
        if matches!(self, Self::Everything) {
            words.pop();
            words.push("streamableHttp".into());
        } else {
            words.push(port.to_string().into());
        }
        let mut command = Command::new(&words[0]);
        command.args(&words[1..]).env("PORT", port.to_string()).current_dir(logs);
        let server = Server::listening(command, &logs.join("upstream.log"), |line| {
            let listens = line.contains("Uvicorn running on") || line.contains("listening on port");
            listens.then(|| format!("127.0.0.1:{port}"))
        })?;
        let url = format!("http://{}/mcp", server.address);
        Ok(Listening { _server: server, url })
    }
}

/// Starts orla with one server behind it, whose names it keeps. `folder` is made anew.
pub(super) fn in_front(binary: &Path, folder: &Path, mut entry: Value) -> Result<Server, String> {
    entry["prefix"] = json!("");
    let config = json!({"mcpServers": {"upstream": entry}, "builtins": false, "timeout": 60});
    serve(binary, folder, "orla.yaml", &config.to_string())
}

/// Starts orla in a folder with nothing but a configuration.
pub(super) fn serve(binary: &Path, folder: &Path, name: &str, config: &str) -> Result<Server, String> {
    let problem = |err: std::io::Error| format!("{}: {err}", folder.display());
    let _ = std::fs::remove_dir_all(folder);
    std::fs::create_dir_all(folder.join("tools")).map_err(problem)?;
    std::fs::write(folder.join(name), config).map_err(problem)?;
    Server::start(binary, folder, folder)
}

/// `{command, args}` as clients write it.
pub(super) fn entry(command: &[OsString]) -> Value {
    let words: Vec<_> = command.iter().map(|word| word.to_string_lossy()).collect();
    json!({"command": words[0], "args": words[1..]})
}

/// Returns the folder of the servers, their plans, and the client that compares.
pub(super) fn fixtures() -> PathBuf {
    crate::root().join("xtask/fixtures/upstreams")
}
