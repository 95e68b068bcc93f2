//! A capsule as a supervised process.

use std::ffi::OsString;
use std::io;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::AtomicU64;
use std::time::Duration;

use orla_marketplace::attestation::ContentSource;
use orla_mcp::Handshake;
use orla_process::child::Program;
use orla_process::confinement::Sandbox;
use orla_process::start_failure;
use orla_process::supervisor::{Kind, Service};

use super::packages::{self, Package};
use crate::mcp::{McpProtocol, SharedOfProcess};

impl Service for Package {
    type Protocol = McpProtocol;

    const KIND: Kind = Kind::Capsule;
    const HANDSHAKE: [&'static str; 2] = ["say orla.hello", "said orla.hello"];

    fn name(&self) -> &str {
        &self.manifest.name
    }

    fn protocol(&self, tickets: &Arc<AtomicU64>, shared: &Arc<SharedOfProcess>) -> McpProtocol {
        McpProtocol::new(&self.manifest.name, tickets, shared, Handshake::Hello)
    }

    fn launch(&self) -> io::Result<(Program, Vec<OsString>)> {
        let program = self.program()?.in_directory(self.directory.clone());
        Ok((program, self.manifest.args.iter().map(OsString::from).collect()))
    }

    fn explain(&self, error: &io::Error) -> String {
        start_failure::explain(&self.entrypoint(), error).reason
    }

    fn startup_timeout(&self) -> Duration {
        self.manifest.startup_timeout
    }

    fn startup_remedy(&self) -> String {
        " (startup_timeout_ms of its manifest; an MCP server that does not say orla.hello belongs in mcpServers)"
            .to_owned()
    }

    fn is_eager(&self) -> bool {
        self.manifest.eager
    }

    fn content(&self) -> ContentSource {
        ContentSource::Directory(self.directory.clone())
    }

    fn source(&self) -> String {
        self.directory.to_string_lossy().into_owned()
    }

    fn sandbox(&self) -> Option<&Arc<Sandbox>> {
        self.sandbox.as_ref()
    }

    fn interpreter(&self) -> Option<String> {
        self.interpreter.clone()
    }

    fn watched(&self) -> Option<(Vec<PathBuf>, Duration)> {
        // The files of a foreign package must be those of its archive. Changed files have not been
        // verified.
        let is_own = !self.manifest.declared.is_foreign;
        let hot_load = self.manifest.hot_load.as_ref().filter(|_| is_own)?;
        let path = |path: &PathBuf| self.directory.join(path).components().collect();
        Some((hot_load.watch.iter().map(path).collect(), hot_load.debounce))
    }

    /// Reads the manifest again. If it is unusable, the old one stays in force.
    fn reread(&self) -> Option<Self> {
        let capsule = &*self.manifest.name;
        match packages::load(&self.directory) {
            Ok((package, _)) if package.manifest.name != self.manifest.name => {
                tracing::warn!(capsule, "its new name takes effect at a reload of the configuration");
                None
            }
            Ok((mut package, _)) => {
                // If the manifest does not say whether the capsule is watched, the server's setting
                // decides.
                if package.manifest.hot_load.is_none() {
                    package.manifest.hot_load.clone_from(&self.manifest.hot_load);
                }
                if !package.keep_secrets_of(self) {
                    tracing::warn!(
                        capsule,
                        "the manifest in force stays: the secrets that it now asks for are read at a reload of the configuration"
                    );
                    return None;
                }
                package.pass_env.clone_from(&self.pass_env);
                package.env.clone_from(&self.env);
                if package.manifest.declared.changed_by(&self.changed) != self.manifest.declared {
                    tracing::warn!(
                        capsule,
                        "the manifest in force stays: its new permissions and limits take effect at a reload of the configuration"
                    );
                    return None;
                }
                package.sandbox.clone_from(&self.sandbox);
                package.changed.clone_from(&self.changed);
                package.manifest.declared.clone_from(&self.manifest.declared);
                (package != *self).then_some(package)
            }
            Err(findings) => {
                for finding in findings {
                    tracing::warn!(capsule, "the manifest in force stays: {finding}");
                }
                None
            }
        }
    }
}
