//! The stored sign-ins of a server.
//!
//! Another process may sign in or out at any time, also during a refresh. A record is therefore never
//! overwritten without being read: a change is applied to the record that is stored at that moment
//! ([`Upstream::change`]).

use std::collections::HashMap;
use std::sync::Arc;
use std::time::SystemTime;

use parking_lot::Mutex;

use crate::error::Error;
use crate::metadata;
use crate::record::Record;
use crate::registration::is_document;
use crate::scope::Scopes;
use crate::secret::Secret;
use crate::store::TokenStore;
use crate::token::Token;
use crate::upstream::{Subject, Upstream};

/// Refreshed sign-ins that could not be stored, by the names of their records, with the stored refresh
/// token that was used up. They are only in memory.
#[derive(Default)]
pub(crate) struct Unsaved(Mutex<HashMap<String, (Option<Secret>, Record)>>);

impl Upstream {
    fn record_name(&self, subject: &Subject) -> String {
        Record::name(&self.name, subject.record_key().as_deref())
    }

    /// Returns the stored sign-in, if it belongs to the configured server.
    pub(crate) async fn load(&self, subject: &Subject) -> Result<Option<Record>, Error> {
        let name = self.record_name(subject);
        let text = self.stored(move |store| store.get(&name)).await?;
        let record = text.as_ref().and_then(read);
        Ok(record.filter(|record| self.is_ours(record)))
    }

    fn is_ours(&self, record: &Record) -> bool {
        let settings = &self.settings;
        let is_client = |id: &String| *id == record.client.id || is_document(id);
        metadata::names(&record.resource, &self.server)
            && settings.issuer.as_ref().is_none_or(|issuer| *issuer == record.issuer)
            && settings.client_id.as_ref().is_none_or(is_client)
    }

    /// Returns the refreshed sign-in that could not be stored, or else the stored one.
    pub(crate) fn newest(&self, subject: &Subject, stored: &Record) -> Record {
        let unsaved = self.unsaved.0.lock();
        match unsaved.get(&self.record_name(subject)) {
            Some((used, record)) if *used == stored.refresh_token => record.clone(),
            Some(_) | None => stored.clone(),
        }
    }

    /// Stores a new sign-in and replaces the previous one.
    pub(crate) async fn save(&self, subject: &Subject, record: Record) -> Result<(), Error> {
        let name = self.record_name(subject);
        self.unsaved.0.lock().remove(&name);
        let text = serde_json::to_string(&record)
            .map_err(|err| Error::Failed(format!("the sign-in cannot be stored: {err}")))?;
        self.stored(move |store| store.set(&name, &Secret::new(text))).await
    }

    /// Changes the stored sign-in; no other change happens in between. `change` gets the stored record,
    /// and returns `None` to keep it. Returns the record that is stored afterwards.
    async fn change(
        &self,
        subject: &Subject,
        change: impl Fn(&Record) -> Option<Record> + Send + 'static,
    ) -> Result<Option<Record>, Error> {
        let name = self.record_name(subject);
        let changed = self.stored(move |store| {
            let mut after = None;
            store.update(&name, &mut |text| {
                after = text.as_ref().and_then(read);
                let Some(changed) = after.as_ref().and_then(&change) else { return text };
                let Ok(new) = serde_json::to_string(&changed) else { return text };
                after = Some(changed);
                Some(Secret::new(new))
            })?;
            Ok(after)
        });
        Ok(changed.await?.filter(|record| self.is_ours(record)))
    }

    /// Stores the refreshed sign-in `after` in place of `before`, and returns the token to use: the
    /// refreshed one, or that of a newer sign-in. `None` if the user has signed out meanwhile. A token
    /// that cannot be stored is kept in memory, because the previous refresh token may be used up.
    pub(crate) async fn save_refreshed(
        &self,
        subject: &Subject,
        before: &Record,
        after: Record,
    ) -> Option<Token> {
        let (used, new) = (before.refresh_token.clone(), after.clone());
        let replace = move |stored: &Record| {
            let is_same = stored.refresh_token == used;
            is_same.then(|| Record { missing: stored.missing.clone(), ..new.clone() })
        };
        let name = self.record_name(subject);
        match self.change(subject, replace).await {
            Ok(stored) => {
                self.unsaved.0.lock().remove(&name);
                let is_usable = |token: &Token| {
                    token.access == after.access_token || token.is_fresh(SystemTime::now())
                };
                stored.map(|record| record.token()).filter(is_usable)
            }
            Err(error) => {
                tracing::error!(
                    server = self.name,
                    %error,
                    "a refreshed token cannot be stored; without it, the next start needs a new sign-in"
                );
                let token = after.token();
                self.unsaved.0.lock().insert(name, (before.refresh_token.clone(), after));
                Some(token)
            }
        }
    }

    /// Handles a refused refresh token. Another process may have used it before; if not, the sign-in has
    /// ended.
    pub(crate) async fn after_refusal(
        &self,
        subject: &Subject,
        used: &Record,
    ) -> Result<Option<Token>, Error> {
        self.unsaved.0.lock().remove(&self.record_name(subject));
        let access = used.access_token.clone();
        let end = move |stored: &Record| {
            let is_same = stored.access_token == access;
            is_same.then(|| Record { refresh_token: None, renew_at: Some(0), ..stored.clone() })
        };
        let stored = self.change(subject, end).await?;
        if stored.as_ref().is_some_and(|stored| stored.access_token == used.access_token) {
            tracing::warn!(
                server = self.name,
                "the sign-in has ended: the refresh token is no longer accepted"
            );
        }
        Ok(stored.map(|stored| stored.token()).filter(|token| token.is_fresh(SystemTime::now())))
    }

    /// Records the scopes that the next sign-in must request.
    pub(crate) async fn note_missing(&self, subject: &Subject, missing: &Scopes) -> Result<(), Error> {
        let Some(known) = self.load(subject).await? else { return Ok(()) };
        if known.missing.covers(missing) {
            return Ok(());
        }
        let missing = missing.clone();
        let note = move |stored: &Record| {
            let is_same = stored.issuer == known.issuer && stored.resource == known.resource;
            let missing = stored.missing.union(&missing);
            is_same.then(|| Record { missing, ..stored.clone() })
        };
        self.change(subject, note).await.map(drop)
    }

    /// Removes the sign-in of a subject from the store.
    pub(crate) async fn forget(&self, subject: &Subject) -> Result<bool, Error> {
        let name = self.record_name(subject);
        self.unsaved.0.lock().remove(&name);
        self.cache.clear();
        self.stored(move |store| store.remove(&name)).await
    }

    /// Runs a function with the store, which may block.
    async fn stored<T: Send + 'static>(
        &self,
        work: impl FnOnce(&dyn TokenStore) -> Result<T, String> + Send + 'static,
    ) -> Result<T, Error> {
        let store = Arc::clone(&self.store);
        let done = tokio::task::spawn_blocking(move || work(&*store)).await;
        let done = done.unwrap_or_else(|_| Err("it failed".to_owned()));
        done.map_err(|problem| Error::Failed(format!("the store of tokens: {problem}")))
    }
}

fn read(text: &Secret) -> Option<Record> {
    serde_json::from_str(text.expose()).ok()
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicBool, Ordering};

    use reqwest::Url;
    use tokio_util::task::TaskTracker;

    use super::*;
    use crate::grant::Client;
    use crate::http::Http;
    use crate::settings::AuthSettings;
    use crate::store::{Change, MemoryStore};

    const SUBJECT: Subject = Subject::Shared;

    /// A store that can be full.
    #[derive(Default)]
    struct Disk(MemoryStore, AtomicBool);

    impl TokenStore for Disk {
        fn get(&self, name: &str) -> Result<Option<Secret>, String> {
            self.0.get(name)
        }

        fn set(&self, name: &str, value: &Secret) -> Result<(), String> {
            self.0.set(name, value)
        }

        fn update(&self, name: &str, change: Change<'_>) -> Result<(), String> {
            match self.1.load(Ordering::Relaxed) {
                true => Err("it is full".to_owned()),
                false => self.0.update(name, change),
            }
        }

        fn remove(&self, name: &str) -> Result<bool, String> {
            self.0.remove(name)
        }
    }

    /// Two processes with one store.
    fn processes() -> (Upstream, Upstream, Arc<Disk>) {
        let disk = Arc::new(Disk::default());
        let process = || {
            let (url, http) = (Url::parse("https://a.example/mcp").unwrap(), Arc::new(Http::default()));
            let (store, tasks) = (Arc::clone(&disk) as Arc<dyn TokenStore>, TaskTracker::new());
            Upstream::new("up", url, AuthSettings::default(), http, store, tasks)
        };
        (process(), process(), disk)
    }

    fn record(access: &str, refresh: &str) -> Record {
        Record {
            resource: "https://a.example/mcp".into(),
            issuer: "https://as.example".into(),
            token_endpoint: "https://as.example/token".into(),
            client: Client { id: "orla".into(), secret: None, method: None },
            redirect_uri: "http://127.0.0.1:7/callback".into(),
            access_token: Secret::new(access),
            refresh_token: Some(Secret::new(refresh)),
            renew_at: None,
            scopes: Scopes::default(),
            missing: Scopes::default(),
        }
    }

    #[tokio::test]
    async fn a_refresh_does_not_undo_a_sign_out() {
        let (server, person, _) = processes();
        let (before, after) = (record("a1", "r1"), record("a2", "r2"));
        server.save(&SUBJECT, before.clone()).await.unwrap();
        assert!(person.forget(&SUBJECT).await.unwrap());
        assert_eq!(server.save_refreshed(&SUBJECT, &before, after).await, None);
        assert_eq!(server.load(&SUBJECT).await.unwrap(), None);
    }

    #[tokio::test]
    async fn a_newer_sign_in_is_used_and_neither_replaced_nor_ended_by_a_refresh() {
        let (server, person, _) = processes();
        let (before, newer) = (record("a1", "r1"), record("b1", "s1"));
        server.save(&SUBJECT, before.clone()).await.unwrap();
        person.save(&SUBJECT, newer.clone()).await.unwrap();
        let token = server.save_refreshed(&SUBJECT, &before, record("a2", "r2")).await.unwrap();
        assert_eq!(token, newer.token());
        assert_eq!(server.after_refusal(&SUBJECT, &before).await.unwrap(), Some(newer.token()));
        assert_eq!(server.load(&SUBJECT).await.unwrap(), Some(newer.clone()));
        assert_eq!(server.after_refusal(&SUBJECT, &newer).await.unwrap(), None);
        assert_eq!(server.load(&SUBJECT).await.unwrap().unwrap().refresh_token, None);
    }

    #[tokio::test]
    async fn missing_scopes_and_a_refresh_do_not_replace_each_other() {
        let (server, other, _) = processes();
        let (before, after) = (record("a1", "r1"), record("a2", "r2"));
        server.save(&SUBJECT, before.clone()).await.unwrap();
        other.note_missing(&SUBJECT, &Scopes::parse("write")).await.unwrap();
        server.save_refreshed(&SUBJECT, &before, after).await.unwrap();
        other.note_missing(&SUBJECT, &Scopes::parse("admin")).await.unwrap();
        let stored = server.load(&SUBJECT).await.unwrap().unwrap();
        assert_eq!(stored.refresh_token, Some(Secret::new("r2")));
        assert!(stored.missing.covers(&Scopes::parse("write admin")));
    }

    #[tokio::test]
    async fn a_token_that_cannot_be_stored_is_kept_in_memory() {
        let (server, _, disk) = processes();
        let (first, second, third) = (record("a1", "r1"), record("a2", "r2"), record("a3", "r3"));
        server.save(&SUBJECT, first.clone()).await.unwrap();
        disk.1.store(true, Ordering::Relaxed);
        let token = server.save_refreshed(&SUBJECT, &first, second.clone()).await;
        assert_eq!(token, Some(second.token()));
        let stored = server.load(&SUBJECT).await.unwrap().unwrap();
        assert_eq!((&stored, server.newest(&SUBJECT, &stored)), (&first, second));
        disk.1.store(false, Ordering::Relaxed);
        server.save_refreshed(&SUBJECT, &stored, third.clone()).await.unwrap();
        assert_eq!(server.load(&SUBJECT).await.unwrap(), Some(third.clone()));
        assert_eq!(server.newest(&SUBJECT, &third), third);
    }
}
