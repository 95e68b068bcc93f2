//! What the sign-ins at servers need.

use std::fmt;
use std::sync::Arc;

use orla_oauth::{AuthSettings, Http, MemoryStore, TokenStore, Upstream};
use reqwest::Url;
use tokio_util::task::TaskTracker;

use super::settings::{Reach, ServerSettings};

/// Where the tokens of sign-ins are kept, and the connections to authorization servers.
#[derive(Clone)]
pub struct Tokens {
    store: Arc<dyn TokenStore>,
    http: Arc<Http>,
}

impl Tokens {
    /// Tokens in this store.
    pub fn new(store: Arc<dyn TokenStore>) -> Self {
        Self { store, http: Arc::default() }
    }

    /// The sign-in at a server.
    pub(super) fn upstream(
        &self,
        name: &str,
        url: Url,
        auth: AuthSettings,
        tasks: TaskTracker,
    ) -> Arc<Upstream> {
        let (http, store) = (Arc::clone(&self.http), Arc::clone(&self.store));
        Arc::new(Upstream::new(name, url, auth, http, store, tasks))
    }

    /// The sign-in at a configured server, for a person who signs in or out.
    ///
    /// # Errors
    /// The server has no sign-in.
    pub fn sign_in(&self, settings: &ServerSettings) -> Result<Arc<Upstream>, String> {
        let Reach::Http { url, .. } = &settings.reach else {
            return Err(
                "it is a process; only servers that are reached over HTTP have a sign-in".to_owned()
            );
        };
        let url = Url::parse(url).map_err(|err| format!("its address is invalid: {err}"))?;
        let auth = settings.auth.clone();
        let auth = auth.ok_or("it has no sign-in; add `auth: oauth` to its entry")?;
        Ok(self.upstream(&settings.name, url, auth, TaskTracker::new()))
    }
}

/// Tokens that end with the process.
impl Default for Tokens {
    fn default() -> Self {
        Self::new(Arc::new(MemoryStore::default()))
    }
}

impl fmt::Debug for Tokens {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Tokens")
    }
}
