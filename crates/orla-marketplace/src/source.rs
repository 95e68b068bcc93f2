//! Sources of capabilities that report their capabilities at run time: a set of capsules, of MCP
//! servers, of remote instances.

use std::sync::Arc;

use async_trait::async_trait;
use tokio::sync::watch;

use crate::client::Client;
use crate::executor::SandboxStatus;
use crate::manifest::Registration;
use crate::principal::Principal;
use crate::surface::Surface;

/// The reason why a provider serves nothing.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ProviderProblem {
    /// The name of the provider.
    pub name: String,
    /// The prefix of the ids that it would serve, such as `github.`.
    pub prefix: String,
    /// A sentence that names the provider.
    pub text: String,
    /// How far its processes are confined, if it has any.
    pub sandbox: Option<SandboxStatus>,
}

impl ProviderProblem {
    /// Creates the problem of the provider with this name. Its ids begin with the name and a dot, or
    /// with its configured prefix.
    pub fn new(name: &str, prefix: Option<&str>, text: String) -> Self {
        let prefix = prefix.map_or_else(|| format!("{name}."), str::to_owned);
        Self { name: name.to_owned(), prefix, text, sandbox: None }
    }

    /// Sets the confinement of the provider's processes.
    #[must_use]
    pub fn confined(self, sandbox: Option<SandboxStatus>) -> Self {
        Self { sandbox, ..self }
    }
}

/// Providers that report their capabilities only at run time, and may change them at any time.
///
/// The code that builds catalogues reads [`registrations`](Self::registrations) and
/// [`surfaces`](Self::surfaces), and builds the next catalogue when [`changes`](Self::changes)
/// increases.
#[async_trait]
pub trait Source: Send + Sync {
    /// Returns the capabilities, as far as they are known.
    fn registrations(&self) -> Vec<Registration>;

    /// Returns the surfaces: prompts, resources and completions.
    fn surfaces(&self) -> Vec<Arc<dyn Surface>>;

    /// Returns a number that grows whenever the registrations change.
    fn changes(&self) -> watch::Receiver<u64>;

    /// Returns whether a capability of this name may be served, although none is known.
    fn may_serve(&self, name: &str) -> bool;

    /// Returns why providers serve nothing, as far as they were asked: one sentence for each provider,
    /// which names it. With a name, only providers that [may serve](Self::may_serve) it are reported.
    fn problems(&self, name: Option<&str>) -> Vec<ProviderProblem> {
        let _ = name;
        Vec::new()
    }

    /// Asks the caller of an unserved name to sign in, if a provider that [may serve](Self::may_serve)
    /// the name reports its capabilities only to known callers. Returns `None` if there is no such
    /// provider, and `Ok` if the name should be looked up again; otherwise why the caller cannot be
    /// served.
    async fn sign_in(
        &self,
        name: &str,
        principal: Option<&Principal>,
        client: Option<&Arc<dyn Client>>,
    ) -> Option<Result<(), String>> {
        let _ = (name, principal, client);
        None
    }

    /// Returns declared capabilities that their provider does not have, each as a sentence that begins
    /// with the id.
    fn missing(&self) -> Vec<String> {
        Vec::new()
    }

    /// Returns the names of the providers that were asked and have no capability.
    fn owners_without_tools(&self) -> Vec<String> {
        Vec::new()
    }

    /// Returns the names of the providers that are starting, or will be started, and have not reported
    /// their capabilities yet.
    fn awaited(&self) -> Vec<String> {
        Vec::new()
    }

    /// Starts the services that are configured to start early; all of them if `all` is set.
    fn start_eager(&self, all: bool);

    /// Waits, within its own time limit, until the capabilities are known.
    async fn learn(&self);

    /// Ends everything that runs, and waits for the end.
    async fn shutdown(&self);
}
