//! The sign-ins of a configuration, besides those of `mcpServers`.

use std::collections::HashMap;
use std::fmt;
use std::sync::Arc;

use orla_marketplace::{CallContext, Principal};
use orla_oauth::{AuthSettings, GrantKind, Scopes, Subject, Upstream};
use parking_lot::Mutex;
use reqwest::Url;
use tokio_util::task::TaskTracker;

use super::sender::{Credentials, Sender};
use super::tokens::Tokens;

/// One configured sign-in.
#[derive(Clone, Debug, PartialEq)]
pub struct SignIn {
    /// The key by which settings of providers name it.
    pub key: String,
    /// The name for users: `orla login NAME`.
    pub name: String,
    /// The address of the protected server, if the configuration has it.
    pub url: Option<String>,
    /// How tokens are obtained.
    pub auth: AuthSettings,
}

/// An OpenAPI document's information about a sign-in, used where the configuration has none.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Suggested {
    /// The authorization server.
    pub issuer: Option<String>,
    /// Its token endpoint.
    pub token_endpoint: Option<String>,
    /// The scopes that its operations need.
    pub scopes: Scopes,
}

impl Suggested {
    /// Completes the settings. The configuration alone decides whose tokens are exchanged where.
    fn complete(&self, auth: &AuthSettings) -> AuthSettings {
        let mut auth = auth.clone();
        if !auth.knows_its_issuer() && auth.grant != GrantKind::TokenExchange {
            auth.issuer.clone_from(&self.issuer);
            if auth.issuer.is_none() && auth.grant == GrantKind::ClientCredentials {
                auth.token_endpoint.clone_from(&self.token_endpoint);
            }
        }
        if !self.scopes.is_empty() {
            auth.scopes.get_or_insert_with(|| self.scopes.clone());
        }
        auth
    }
}

/// The sign-ins of the current configuration. Cloning is cheap.
#[derive(Clone)]
pub struct SignIns(Arc<Inner>);

struct Inner {
    tokens: Tokens,
    known: Mutex<HashMap<String, Known>>,
    tasks: TaskTracker,
}

struct Known {
    settings: SignIn,
    suggested: Suggested,
    /// The upstreams by the addresses that were called.
    upstreams: HashMap<Url, Arc<Upstream>>,
}

impl Known {
    fn new(settings: SignIn) -> Self {
        Self { settings, suggested: Suggested::default(), upstreams: HashMap::new() }
    }
}

impl SignIns {
    /// Creates an instance without sign-ins. Tokens are kept in `tokens`.
    pub fn new(tokens: Tokens) -> Self {
        Self(Arc::new(Inner { tokens, known: Mutex::default(), tasks: TaskTracker::new() }))
    }

    /// Applies a loaded configuration. Unchanged sign-ins keep their tokens.
    pub fn load(&self, sign_ins: impl IntoIterator<Item = SignIn>) {
        let mut known = self.0.known.lock();
        let mut before = std::mem::take(&mut *known);
        for settings in sign_ins {
            let same = before.remove(&settings.key).filter(|known| known.settings == settings);
            let key = settings.key.clone();
            known.insert(key, same.unwrap_or_else(|| Known::new(settings)));
        }
    }

    /// Completes a sign-in with a document's information.
    pub fn suggest(&self, key: &str, suggested: Suggested) {
        if let Some(known) = self.0.known.lock().get_mut(key)
            && known.suggested != suggested
        {
            known.suggested = suggested;
            known.upstreams.clear();
        }
    }

    /// Returns the sign-in at `url`.
    fn upstream(&self, key: &str, url: &Url) -> Option<Arc<Upstream>> {
        let mut known = self.0.known.lock();
        let Known { settings, suggested, upstreams } = known.get_mut(key)?;
        if let Some(upstream) = upstreams.get(url) {
            return Some(Arc::clone(upstream));
        }
        let (name, auth) = (&settings.name, suggested.complete(&settings.auth));
        let upstream = self.0.tokens.upstream(name, url.clone(), auth, self.0.tasks.clone());
        upstreams.insert(url.clone(), Arc::clone(&upstream));
        Some(upstream)
    }

    /// Returns a sender of requests to `url` for a caller, or for orla itself without a call.
    ///
    /// # Errors
    /// There is no such sign-in.
    pub(crate) fn sender(
        &self,
        key: &str,
        url: &Url,
        client: &reqwest::Client,
        ctx: Option<&CallContext>,
    ) -> Result<Sender, String> {
        let upstream = self.upstream(key, url).ok_or("its sign-in is not configured any longer")?;
        let principal = ctx.and_then(|ctx| ctx.scope.principal.as_ref());
        let subject = subject_of(&upstream, ctx.is_some(), principal);
        Ok(Sender::new(client.clone(), Some(Credentials::new(upstream, subject))))
    }

    /// Waits for running renewals.
    pub async fn shutdown(&self) {
        self.0.tasks.close();
        self.0.tasks.wait().await;
    }
}

fn subject_of(upstream: &Upstream, is_call: bool, principal: Option<&Principal>) -> Subject {
    match upstream.is_per_caller() {
        false => Subject::Shared,
        true if !is_call => Subject::Own,
        true => super::subject(upstream.settings().grant, principal).unwrap_or(Subject::Own),
    }
}

/// Returns an instance whose tokens end with the process.
impl Default for SignIns {
    fn default() -> Self {
        Self::new(Tokens::default())
    }
}

impl fmt::Debug for SignIns {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_set().entries(self.0.known.lock().keys()).finish()
    }
}
