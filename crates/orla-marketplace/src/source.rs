//! Sources of capabilities that say themselves what they serve: a set of capsules, of MCP servers, of remote
//! instances.

use std::sync::Arc;

use async_trait::async_trait;
use tokio::sync::watch;

use crate::client::Client;
use crate::executor::SandboxStatus;
use crate::manifest::Registration;
use crate::principal::Principal;
use crate::surface::Surface;

/// Why a provider serves nothing.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ProviderProblem {
    /// The name of the provider.
    pub name: String,
    /// The beginning of the ids that it would serve, such as `github.`.
    pub prefix: String,
    /// A sentence that names the provider.
    pub text: String,
    /// How far its processes are confined, where it has any.
    pub sandbox: Option<SandboxStatus>,
}

impl ProviderProblem {
    /// The problem of the provider with this name. Its ids begin with the name and a dot, or with the prefix that
    /// is configured for it.
    pub fn new(name: &str, prefix: Option<&str>, text: String) -> Self {
        let prefix = prefix.map_or_else(|| format!("{name}."), str::to_owned);
        Self { name: name.to_owned(), prefix, text, sandbox: None }
    }

    /// The problem of a provider with processes.
    #[must_use]
    pub fn confined(self, sandbox: Option<SandboxStatus>) -> Self {
        Self { sandbox, ..self }
    }
}

/// Providers that say only at run time what they serve, and may change it at any time.
///
/// The code that builds catalogues reads [`registrations`](Self::registrations) and
/// [`surfaces`](Self::surfaces), and builds the next one when [`changes`](Self::changes) counts on.
#[async_trait]
pub trait Source: Send + Sync {
    /// The capabilities, as far as they are known.
    fn registrations(&self) -> Vec<Registration>;

    /// What is served besides capabilities.
    fn surfaces(&self) -> Vec<Arc<dyn Surface>>;

    /// A number that grows whenever the registrations change.
    fn changes(&self) -> watch::Receiver<u64>;

    /// Whether a capability of this name may turn out to be served, although none is known.
    fn may_serve(&self, name: &str) -> bool;

    /// Why it serves nothing, as far as it was asked: one sentence for each provider, which names it. With a name,
    /// only of those that [may serve](Self::may_serve) it.
    fn problems(&self, name: Option<&str>) -> Vec<ProviderProblem> {
        let _ = name;
        Vec::new()
    }

    /// Has the caller of a name that nothing serves yet sign in, where a provider that [may serve](Self::may_serve) it
    /// says what it serves only to callers that it knows. `None` if there is no such provider. `Ok` if the name is to
    /// be looked up again; otherwise why the caller cannot be served, for the caller.
    async fn sign_in(
        &self,
        name: &str,
        principal: Option<&Principal>,
        client: Option<&Arc<dyn Client>>,
    ) -> Option<Result<(), String>> {
        let _ = (name, principal, client);
        None
    }

    /// Declared capabilities that their provider turns out not to have, each as a sentence that begins with the
    /// id.
    fn missing(&self) -> Vec<String> {
        Vec::new()
    }

    /// The names of the providers that were asked and have no capability at all.
    fn without_any(&self) -> Vec<String> {
        Vec::new()
    }

    /// The names of the providers that start, or are to be started, and have not said yet what they serve.
    fn awaited(&self) -> Vec<String> {
        Vec::new()
    }

    /// Starts the services that are configured to start early; all of them if `all` is set.
    fn start_eager(&self, all: bool);

    /// Waits until it is known what is served, within bounds of its own.
    async fn learn(&self);

    /// Ends everything that runs, and waits for that.
    async fn shutdown(&self);
}
