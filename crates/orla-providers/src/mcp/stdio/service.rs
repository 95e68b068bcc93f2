//! A server of `mcpServers` that is a child process.

use std::borrow::Cow;
use std::ffi::OsString;
use std::io;
use std::sync::Arc;
use std::sync::atomic::AtomicU64;
use std::time::Duration;

use orla_marketplace::SandboxLevel;
use orla_marketplace::attestation::ContentSource;
use orla_mcp::Handshake;
use orla_process::Command;
use orla_process::child::Program;
use orla_process::confinement::Sandbox;
use orla_process::supervisor::{Kind, Service};

use super::protocol::{McpProtocol, Shared};

/// A server that is a child process.
#[derive(Clone, Debug, PartialEq)]
pub(in crate::mcp) struct StdioServer(pub(in crate::mcp) Command);

impl Service for StdioServer {
    type Protocol = McpProtocol;

    const KIND: Kind = Kind::Server;
    const HANDSHAKE: [&'static str; 2] = ["answer initialize", "answered initialize"];

    fn name(&self) -> &str {
        &self.0.name
    }

    fn protocol(&self, tickets: &Arc<AtomicU64>, shared: &Arc<Shared>) -> McpProtocol {
        McpProtocol::new(&self.0.name, tickets, shared, Handshake::Initialize)
    }

    fn launch(&self) -> io::Result<(Program, Vec<OsString>)> {
        self.0.launch()
    }

    fn explain(&self, error: &io::Error) -> String {
        self.0.explain(error)
    }

    fn startup_timeout(&self) -> Duration {
        self.0.startup_timeout
    }

    fn startup_remedy(&self) -> String {
        let sandbox =
            self.0.sandbox.as_ref().filter(|sandbox| sandbox.level() == SandboxLevel::Enforced);
        let Some(sandbox) = sandbox else { return String::new() };
        let is_cut_off = sandbox.grants().is_some_and(|grants| grants.network.is_empty());
        let network = if is_cut_off { " and has no network" } else { "" };
        let preset = match &*self.0.command {
            launcher @ ("npx" | "uvx") if is_cut_off => {
                format!("; {launcher} needs `permissions: [\"preset:{launcher}\"]`")
            }
            _ => String::new(),
        };
        let name = &self.0.name;
        format!("; it is confined{network}{preset}; `orla sandbox learn {name}` proposes what it needs")
    }

    fn is_eager(&self) -> bool {
        self.0.eager
    }

    fn content(&self) -> ContentSource {
        ContentSource::Unknown
    }

    fn sandbox(&self) -> Option<&Arc<Sandbox>> {
        self.0.sandbox.as_ref()
    }

    fn source(&self) -> String {
        self.0.command.clone()
    }

    fn without_secrets<'t>(&self, text: Cow<'t, str>) -> Cow<'t, str> {
        self.0.without_secrets(text)
    }
}
