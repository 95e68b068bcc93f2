//! Links by which callers sign in while the server runs, one for each caller that needs it.

use std::any::Any;
use std::collections::HashMap;
use std::sync::Weak;

use parking_lot::Mutex;
use tokio::sync::watch;

use crate::error::Error;

/// The maximum number of open links of one server.
const MAX_LINKS: usize = 64;

/// The links of one server.
#[derive(Debug)]
pub(crate) struct Links {
    open: Mutex<HashMap<String, Link>>,
    /// The fixed port of waiting sign-ins, if one is configured. `login` serves it.
    pub(crate) port: tokio::sync::Mutex<Weak<dyn Any + Send + Sync>>,
}

impl Default for Links {
    fn default() -> Self {
        Self { open: Mutex::default(), port: tokio::sync::Mutex::new(Weak::<()>::new()) }
    }
}

/// A sign-in that waits for its user.
#[derive(Clone, Debug)]
pub struct Link {
    /// The address where the user signs in.
    pub url: String,
    /// The result; `None` while it waits.
    ended: watch::Receiver<Option<Result<(), Error>>>,
}

impl Link {
    /// Creates a link, and the sender of its result.
    pub(crate) fn new(url: String) -> (Self, watch::Sender<Option<Result<(), Error>>>) {
        let (end, ended) = watch::channel(None);
        (Self { url, ended }, end)
    }

    /// Waits until the user has signed in.
    ///
    /// # Errors
    /// The sign-in has failed, or the link has expired.
    pub async fn signed_in(mut self) -> Result<(), Error> {
        let expired = || Error::Failed("the link for the sign-in has expired".to_owned());
        match self.ended.wait_for(Option::is_some).await {
            Ok(ended) => ended.clone().unwrap_or_else(|| Err(expired())),
            Err(_) => Err(expired()),
        }
    }

    fn is_open(&self) -> bool {
        self.ended.borrow().is_none() && self.ended.has_changed().is_ok()
    }
}

impl Links {
    /// Returns the open link of this subject.
    pub(crate) fn open(&self, key: &str) -> Option<Link> {
        self.open.lock().get(key).filter(|link| link.is_open()).cloned()
    }

    /// Adds a link, unless too many are open.
    pub(crate) fn add(&self, key: String, link: &Link) -> bool {
        let mut links = self.open.lock();
        links.retain(|_, link| link.is_open());
        let has_room = links.len() < MAX_LINKS;
        if has_room {
            links.insert(key, link.clone());
        }
        has_room
    }
}
