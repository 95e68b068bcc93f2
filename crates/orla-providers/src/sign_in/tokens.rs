//! The shared state of the sign-ins at servers.

use std::fmt;
use std::sync::Arc;

use orla_oauth::{AuthSettings, Http, MemoryStore, TokenStore, Upstream};
use reqwest::Url;
use tokio_util::task::TaskTracker;

/// The store of sign-in tokens, and the connections to authorization servers.
#[derive(Clone)]
pub struct Tokens {
    store: Arc<dyn TokenStore>,
    http: Arc<Http>,
}

impl Tokens {
    /// Creates an instance with this store.
    pub fn new(store: Arc<dyn TokenStore>) -> Self {
        Self { store, http: Arc::default() }
    }

    /// Returns the sign-in at a server.
    pub fn upstream(
        &self,
        name: &str,
        url: Url,
        auth: AuthSettings,
        tasks: TaskTracker,
    ) -> Arc<Upstream> {
        let (http, store) = (Arc::clone(&self.http), Arc::clone(&self.store));
        Arc::new(Upstream::new(name, url, auth, http, store, tasks))
    }
}

/// Returns an instance whose tokens end with the process.
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
