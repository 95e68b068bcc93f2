//! Gateways that others publish, and sessions with servers of the revisions that have them.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use serde_json::{Value, json};

use super::Programs;
use super::client::{self, Connection, header};
use crate::install;
use crate::process;
use crate::server::Server;
use orla_e2e::free_port;

/// How long a gateway may take to be installed.
const INSTALLATION: Duration = Duration::from_secs(900);

/// The version of the gateway that comes as a crate.
const CRATE: &str = "0.6.0";

/// A gateway that others publish.
#[derive(Clone, Copy)]
pub(super) enum Gateway {
    Supergateway,
    McpProxy,
    McpProxyCrate,
}

impl Gateway {
    pub(super) const ALL: [Self; 3] = [Self::Supergateway, Self::McpProxy, Self::McpProxyCrate];

    pub(super) fn name(self) -> &'static str {
        match self {
            Self::Supergateway => "npm supergateway",
            Self::McpProxy => "npm mcp-proxy",
            Self::McpProxyCrate => "crate mcp-proxy",
        }
    }

    /// Returns where it serves.
    fn path(self) -> &'static str {
        match self {
            Self::Supergateway | Self::McpProxy => "/mcp",
            Self::McpProxyCrate => "/",
        }
    }

    /// Installs it, starts it in front of the server, opens a session, finds the tool, and writes a call of it.
    pub(super) fn start(
        self,
        programs: &Programs,
        arguments: &Value,
    ) -> Result<(Server, Vec<u8>), String> {
        let folder = &programs.folder;
        let port = free_port().to_string();
        let server = programs.echo_mcp.to_string_lossy().into_owned();
        let mut command = match self {
            Self::Supergateway => {
                let mut command = Command::new("node");
                command.arg(npm("supergateway")?).args([
                    "--stdio",
                    &server,
                    "--outputTransport",
                    "streamableHttp",
                    "--stateful",
                    "--logLevel",
                    "none",
                    "--port",
                    &port,
                ]);
                command
            }
            Self::McpProxy => {
                let mut command = Command::new("node");
                command.arg(npm("mcp-proxy")?).args(["--host", "127.0.0.1", "--port"]);
                command.args([&port, "--server", "stream", "--no-eventStore", "--", &server]);
                command
            }
            Self::McpProxyCrate => {
                let config = folder.join("mcp-proxy.toml");
                let text = format!(
                    "[proxy]\nname = \"bench\"\n[proxy.listen]\nhost = \"127.0.0.1\"\nport = {port}\n\
                     [[backends]]\nname = \"upstream\"\ntransport = \"stdio\"\ncommand = \"{server}\"\n"
                );
                std::fs::write(&config, text).map_err(|err| format!("{}: {err}", config.display()))?;
                let mut command = Command::new(cargo_install(&crate::target("gateways")?)?);
                command.arg("--config").arg(config);
                command
            }
        };
        command.current_dir(folder);
        let address = format!("127.0.0.1:{port}");
        let server = Server::reachable(command, &folder.join("gateway.log"), &address)?;
        let session = Session::open(&address, self.path())?;
        let tool = session.tool(&address)?;
        let call = session.call(&tool, arguments);
        Connection::open(&address)?.exchange(&call)?;
        Ok((server, call))
    }
}

/// A session of the last revision that has them; a server that opens none is asked without.
pub(super) struct Session {
    path: &'static str,
    id: Option<String>,
}

impl Session {
    pub(super) fn open(address: &str, path: &'static str) -> Result<Self, String> {
        Self::begin(&mut Connection::open(address)?, path)
    }

    /// Opens one over a connection that is there.
    pub(super) fn begin(connection: &mut Connection, path: &'static str) -> Result<Self, String> {
        let initialize = client::post(
            path,
            &[],
            &json!({"jsonrpc": "2.0", "id": 1, "method": "initialize", "params": {
                "protocolVersion": "2025-11-25",
                "capabilities": {},
                "clientInfo": {"name": "bench", "version": "1"},
            }}),
        );
        let answer = connection.exchange(&initialize)?;
        let session = Self { path, id: header(answer.head, "mcp-session-id").map(str::to_owned) };
        let body = json!({"jsonrpc": "2.0", "method": "notifications/initialized"});
        connection.exchange(&session.request(&body))?;
        Ok(session)
    }

    /// Returns a call of a tool.
    pub(super) fn call(&self, tool: &str, arguments: &Value) -> Vec<u8> {
        self.post("tools/call", &json!({"name": tool, "arguments": arguments}))
    }

    fn post(&self, method: &str, params: &Value) -> Vec<u8> {
        self.request(&json!({"jsonrpc": "2.0", "id": 1, "method": method, "params": params}))
    }

    fn request(&self, body: &Value) -> Vec<u8> {
        client::post(self.path, &self.headers(), body)
    }

    /// Opens its stream, and returns the connection.
    pub(super) fn stream(&self, address: &str) -> Result<Connection, String> {
        client::stream(address, self.path, &self.headers())
    }

    /// Returns whether the server has opened one.
    pub(super) fn is_open(&self) -> bool {
        self.id.is_some()
    }

    fn headers(&self) -> Vec<(&str, &str)> {
        let mut headers = vec![("mcp-protocol-version", "2025-11-25")];
        headers.extend(self.id.as_deref().map(|id| ("mcp-session-id", id)));
        headers
    }

    /// What the gateway calls the tool.
    fn tool(&self, address: &str) -> Result<String, String> {
        let mut connection = Connection::open(address)?;
        let answer = connection.exchange(&self.post("tools/list", &json!({})))?;
        let text = String::from_utf8_lossy(answer.body);
        text.split('"')
            .find(|word| word.ends_with("echo"))
            .map(str::to_owned)
            .ok_or_else(|| format!("it lists no echo: {text}"))
    }
}

/// Returns a program of the pinned npm packages.
fn npm(program: &str) -> Result<PathBuf, String> {
    Ok(install::packages("gateways")?.join("node_modules/.bin").join(program))
}

/// Returns the gateway that comes as a crate, built if it is not.
fn cargo_install(place: &Path) -> Result<PathBuf, String> {
    let program = place.join("bin/mcp-proxy");
    if !program.exists() {
        eprintln!("building mcp-proxy {CRATE}");
        let mut cargo = Command::new("cargo");
        cargo
            .args(["install", "mcp-proxy", "--locked", "--quiet", "--no-default-features"])
            .args(["--version", CRATE, "--root"])
            .arg(place)
            .env("CARGO_TARGET_DIR", place.join("build"))
            .current_dir(place);
        process::run(&mut cargo, place, INSTALLATION)?.stdout_of_success()?;
    }
    Ok(program)
}
