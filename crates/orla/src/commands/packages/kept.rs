//! The last answers of registries, for searches while a registry cannot be reached.

use std::time::SystemTime;

use async_trait::async_trait;
use orla_packages::store::Store;
use orla_packages::{Fetch, FetchError, Wanted};
use parking_lot::Mutex;
use serde::de::IgnoredAny;

use super::fetch::Http;
use crate::logging::format::timestamp;

/// Gets over HTTP, and keeps the answers in the cache. If there is no answer, the kept one is returned.
pub(super) struct Kept {
    store: Store,
    /// Why there was no answer to a request, and when the returned one was kept.
    old: Mutex<Option<(String, SystemTime)>>,
}

impl Kept {
    pub(super) fn new(store: Store) -> Self {
        Self { store, old: Mutex::default() }
    }

    /// Returns a note for the user if an answer is an old one.
    pub(super) fn note(&self) -> Option<String> {
        let (why, when) = self.old.lock().take()?;
        Some(format!("{why}; this is its answer of {}", timestamp(when)))
    }
}

#[async_trait]
impl Fetch for Kept {
    async fn get_with(&self, wanted: Wanted<'_>) -> Result<Vec<u8>, FetchError> {
        match Http.get_with(wanted).await {
            Ok(answer) => {
                // A page for people is no answer.
                if serde_json::from_slice::<IgnoredAny>(&answer).is_ok() {
                    self.store.keep_answer(wanted.url, &answer);
                }
                Ok(answer)
            }
            Err(FetchError::Failed(why)) => match self.store.kept_answer(wanted.url) {
                Some((answer, when)) => {
                    *self.old.lock() = Some((why, when));
                    Ok(answer)
                }
                None => Err(FetchError::Failed(why)),
            },
            Err(other) => Err(other),
        }
    }
}
