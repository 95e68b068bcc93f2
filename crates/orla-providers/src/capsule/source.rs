//! The capsules of a server and their capabilities.

use std::fmt;
use std::path::PathBuf;
use std::sync::Arc;

use async_trait::async_trait;
use orla_marketplace::{ProviderProblem, Registration, Source, Surface, redacted};
use orla_mcp::PeerSurface;
use orla_process::Instance;
use orla_process::supervisor::{Managed, Policy, Supervised, Supervisor};
use tokio::sync::watch;

use super::executor;
use super::packages::Package;
use crate::mcp::McpProcess;
use crate::names::NameRules;
use crate::tool::requires;

/// Every capsule of a server.
pub struct Capsules(Supervisor<Package>);

impl fmt::Debug for Capsules {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

impl Capsules {
    /// Creates an instance without capsules. Their processes carry the mark of `instance`.
    pub fn new(instance: Arc<Instance>, policy: Policy) -> Self {
        Self(Supervisor::new(instance, policy, watch::Sender::new(0)))
    }

    /// Returns the supervisor of the processes.
    pub fn supervisor(&self) -> &Supervisor<Package> {
        &self.0
    }

    /// Returns the processes that may serve a capability of this name.
    pub fn managed_for(&self, name: &str) -> Vec<Arc<dyn Managed>> {
        let may = |capsule: &Arc<Supervised<Package>>| {
            capsule.name() == name || names(capsule).may_serve(capsule.name(), name)
        };
        let matching = self.0.current().into_iter().filter(may);
        matching.map(|capsule| capsule as Arc<dyn Managed>).collect()
    }

    /// Returns the entrypoints of capsules that are started with the server's own `PATH`.
    pub fn programs(&self) -> Vec<PathBuf> {
        let entrypoint = |capsule: Arc<Supervised<Package>>| {
            let package = capsule.service();
            let has_own_path = package.manifest.env.iter().any(|(name, _)| name == "PATH");
            (!has_own_path).then(|| package.entrypoint())
        };
        self.0.current().into_iter().filter_map(entrypoint).collect()
    }
}

fn names(capsule: &Supervised<Package>) -> NameRules {
    NameRules { prefix: capsule.service().manifest.prefix.clone(), ..NameRules::default() }
}

#[async_trait]
impl Source for Capsules {
    fn registrations(&self) -> Vec<Registration> {
        self.0.current().iter().flat_map(executor::registrations).collect()
    }

    fn surfaces(&self) -> Vec<Arc<dyn Surface>> {
        let surface = |capsule: Arc<Supervised<Package>>| {
            let package = capsule.service();
            let mut needs = package.manifest.declared.permissions.clone().unwrap_or_default();
            needs.push(requires(&package.entrypoint()));
            let prefix = package.manifest.prefix.clone();
            let surface = PeerSurface::new(Arc::new(McpProcess(capsule)), prefix).needing(needs);
            redacted(Arc::new(surface), package.redaction.as_ref())
        };
        self.0.current().into_iter().map(surface).collect()
    }

    fn changes(&self) -> watch::Receiver<u64> {
        self.0.changes()
    }

    fn may_serve(&self, name: &str) -> bool {
        self.0.current().iter().any(|capsule| names(capsule).may_serve(capsule.name(), name))
    }

    /// Returns a capsule that has failed is served as unavailable. A capsule without tools is reported
    /// only here.
    fn problems(&self, name: Option<&str>) -> Vec<ProviderProblem> {
        let problem = |capsule: Arc<Supervised<Package>>| {
            let (names, id) = (names(&capsule), capsule.name());
            let empty = capsule.info()?.why_empty()?;
            let is_asked = name.is_none_or(|name| names.may_serve(id, name));
            is_asked.then(|| names.process_problem("capsule", id, capsule.status(), Some(empty)))?
        };
        self.0.current().into_iter().filter_map(problem).collect()
    }

    fn start_eager(&self, all: bool) {
        self.0.start_eager(all);
    }

    fn awaited(&self) -> Vec<String> {
        self.supervisor().awaited()
    }

    async fn learn(&self) {
        self.0.learn().await;
    }

    async fn shutdown(&self) {
        self.0.shutdown().await;
    }
}
