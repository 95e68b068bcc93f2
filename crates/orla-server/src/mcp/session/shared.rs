//! Sessions that several servers share. A record of the shared state contains the data with which
//! another server continues a session.
//!
//! The record is authoritative. It is read before a request of a session: a missing session is created
//! here, a session that changed elsewhere is updated, and a session that ended elsewhere ends. After a
//! request, the changes of the request are written, also if another server has written the record
//! meanwhile ([`Field::take_in`]). For a local session, the last received version of the record suffices. While the state is
//! unreachable, only local sessions continue.
//!
//! The record names the versions of capabilities that the session has listed. Their text is a record of its own, which all
//! sessions with the same list share ([`Versions`]).
//!
//! A session in use renews its record from time to time, and so does each server the texts that its sessions name. Any server
//! that notices a record that has not changed for too long removes it. Times are those of each server, so no clock is compared with
//! another.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use http::HeaderMap;
use orla_marketplace::{JsonText, LogLevel, Principal};
use orla_state::{Change, Expect, Pages, Record, StateError, StateStore, WriteError};
use parking_lot::Mutex;
use serde::{Deserialize, Serialize};
use tokio::time::{Instant, timeout};

use crate::mcp::protocol::{Revision, SESSION_ID};
use crate::mcp::session::listed::Versions;
use crate::mcp::session::{Declared, Session, SessionId, other_nodes};
use crate::state::Core;

/// The prefix of the records of sessions.
const SESSIONS: &str = "session/";
/// The prefix of the records of listening clients and their subscriptions.
pub(super) const LISTENING: &str = "listen/";
/// The prefix of the records of versions that sessions have listed.
const LISTED: &str = "listed/";
/// The maximum size of all different lists that the sessions of a server name anew in a quarter of `session_idle`, in bytes.
const MAX_LISTED: usize = 4 * 1024 * 1024;
/// The value of the record of an ended session. The record is removed like that of an unused session.
pub(super) const ENDED: &[u8] = b"ended";
/// How many records are read at once.
const PAGE: usize = 1000;
/// The longest time for which a request waits for the shared state.
pub(super) const STATE_TIMEOUT: Duration = Duration::from_secs(1);
/// For how long a change counts as that of a request that is being answered. The request may have been dropped.
const NEW: Duration = STATE_TIMEOUT.saturating_mul(2);
/// The longest that one look at all sessions takes.
const SWEEP_TIMEOUT: Duration = Duration::from_secs(5);

/// The shared sessions.
pub(crate) struct SharedSessions {
    pub(super) store: Arc<dyn StateStore>,
    /// The revision of each record, and when it was first seen.
    seen: Mutex<HashMap<String, (u64, Instant)>>,
    /// When this server wrote the versions of each name last, and their bytes.
    listed: Mutex<HashMap<Box<str>, (Instant, usize)>>,
}

/// The data of a session that other servers need.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct SessionData {
    revision: String,
    /// The id of the principal.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    principal: Option<String>,
    /// The capabilities that the client declared, if it can be asked anything.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    capabilities: Option<String>,
    /// How the client describes itself.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    client: Option<String>,
    log_level: String,
    /// The number of changes of the level. Earlier versions of orla do not write it.
    #[serde(default)]
    level_changes: u64,
    /// The name of the versions that the session has listed; empty if other servers cannot know them. Earlier versions of orla
    /// do not write it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    listed: Option<String>,
    /// The number of changes of what is listed, also if the session listed the same again. Earlier versions of orla do not write it.
    #[serde(default)]
    listed_changes: u64,
}

/// What a server knows of the record of a session, and which fields differ from it.
#[derive(Debug, Default)]
pub(crate) struct RecordState {
    /// Boxed, because servers that share no sessions know none.
    pub(super) known: Option<Box<KnownRecord>>,
    pub(super) level: Field,
    pub(super) listed: Field,
}

/// How a field of a session differs from the record.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Field {
    /// The number of changes in the record that was known last.
    known: u64,
    own: OwnChange,
}

/// What this server has done with a field since it knew the record.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum OwnChange {
    #[default]
    Nothing,
    /// It has changed the field, and the change could not be written so far.
    Unwritten,
    /// A request changed the field at this time, and the change is being written.
    New(Instant),
}

impl Field {
    /// Notes the change of a request.
    pub(super) fn note_change(&mut self) {
        self.own = OwnChange::New(Instant::now());
    }

    /// Returns the number of changes with that of this server.
    fn count(self) -> u64 {
        self.known.saturating_add(u64::from(self.own != OwnChange::Nothing))
    }

    /// Takes in the field of a newer record. Returns whether its value replaces that of this server: what a request has just
    /// changed stays, and what could not be written before stays unless another server has changed the field too.
    fn take_in(&mut self, count: u64) -> bool {
        let stays = match self.own {
            OwnChange::Nothing => false,
            OwnChange::New(at) if at.elapsed() < NEW => true,
            OwnChange::Unwritten | OwnChange::New(_) => count == self.known,
        };
        self.known = count;
        if !stays {
            self.own = OwnChange::Nothing;
        }
        !stays
    }

    /// Notes that the field has been written. The change of a request may have come since.
    fn note_written(&mut self, count: u64, is_own_value: bool) {
        self.known = count;
        if is_own_value {
            self.own = OwnChange::Nothing;
        }
    }

    /// Notes that the change of a request could not be written.
    fn give_up(&mut self) {
        if self.own != OwnChange::Nothing {
            self.own = OwnChange::Unwritten;
        }
    }
}

/// The known state of a session's record.
#[derive(Clone, Debug)]
pub(crate) struct KnownRecord {
    pub(super) revision: u64,
    pub(super) data: SessionData,
    /// The time at which the record was last written or read.
    at: Instant,
}

impl SharedSessions {
    pub(crate) fn new(store: Arc<dyn StateStore>) -> Self {
        Self { store, seen: Mutex::default(), listed: Mutex::default() }
    }

    /// Returns whether sessions can name these versions in their records.
    pub(crate) fn has_place_for(&self, versions: &Versions, renewal: Duration) -> bool {
        let mut listed = self.listed.lock();
        listed.retain(|_, (written, _)| written.elapsed() < renewal);
        let bytes: usize = listed.values().map(|(_, bytes)| bytes).sum();
        let has_place =
            listed.contains_key(versions.name()) || bytes + versions.text().len() <= MAX_LISTED;
        has_place && versions.is_shareable()
    }

    /// Notes that the text of these versions has been written.
    fn note_renewal(&self, versions: &Versions, renewal: Duration) {
        let mut listed = self.listed.lock();
        listed.retain(|_, (written, _)| written.elapsed() < renewal);
        listed.insert(versions.name().into(), (Instant::now(), versions.text().len()));
    }

    /// Returns the change that writes the text of these versions, if it is due.
    async fn renewal_of(
        &self,
        versions: &Versions,
        renewal: Duration,
    ) -> Result<Option<Change>, StateError> {
        let written = self.listed.lock().get(versions.name()).copied();
        let key = listed_key(versions.name());
        let is_recent = written.is_some_and(|(written, _)| written.elapsed() < renewal);
        if is_recent && self.store.get(&key).await?.is_some() {
            return Ok(None);
        }
        Ok(Some(Change::put(key, versions.text().clone())))
    }

    /// Returns the versions of this name; `None` if the state does not have them.
    async fn versions(&self, name: &str) -> Result<Option<Versions>, StateError> {
        let record = self.store.get(&listed_key(name)).await?;
        Ok(record.and_then(|record| Versions::read(name, &record.value)))
    }

    /// Returns whether a record was renewed recently.
    fn is_used(&self, record: &Record, idle: Duration) -> bool {
        let seen = self.seen.lock();
        let known = seen.get(&record.key).filter(|(revision, _)| *revision == record.revision);
        known.is_none_or(|(_, first)| first.elapsed() < idle / 2)
    }

    async fn sweep(&self, idle: Duration) -> Result<(), StateError> {
        let mut next = HashMap::new();
        // A record is renewed when a quarter of the time has passed.
        let sessions = self.unused(SESSIONS, idle.saturating_add(idle / 4), &mut next).await?;
        // When a session is written, the versions that it names were written at most a quarter of the time before. They outlive
        // it.
        let listed = self.unused(LISTED, idle.saturating_mul(2), &mut next).await?;
        *self.seen.lock() = next;
        let sessions = sessions.into_iter().map(|session| {
            let listening = session.key.replacen(SESSIONS, LISTENING, 1);
            vec![session, Change::remove(listening)]
        });
        for removal in sessions.chain(listed.into_iter().map(|removal| vec![removal])) {
            // What was used in the meantime stays.
            if let Err(WriteError::Failed(error)) = self.store.write(removal).await {
                return Err(error);
            }
        }
        Ok(())
    }

    /// Returns the removals of the records with this prefix that have not changed for longer than `old`. The others are noted in
    /// `next`.
    async fn unused(
        &self,
        prefix: &str,
        old: Duration,
        next: &mut HashMap<String, (u64, Instant)>,
    ) -> Result<Vec<Change>, StateError> {
        let mut pages = Pages::below(&*self.store, prefix, PAGE);
        let mut unused = Vec::new();
        loop {
            let rows = pages.next().await?;
            if rows.is_empty() {
                break;
            }
            let seen = self.seen.lock();
            for Record { key, revision, .. } in rows {
                let known = seen.get(&key).filter(|(known, _)| *known == revision);
                let first = known.map_or_else(Instant::now, |(_, first)| *first);
                if first.elapsed() > old {
                    unused.push(Change::remove(key).expecting(Expect::Revision(revision)));
                } else {
                    next.insert(key, (revision, first));
                }
            }
        }
        Ok(unused)
    }
}

/// Renews the sessions that are in use here, and removes the sessions that have been idle everywhere for
/// `idle`.
pub(crate) async fn sweep(core: &Arc<Core>, idle: Duration) {
    let Some(shared) = core.shared_sessions() else { return };
    let sweeping = async {
        // Subscriptions are needed as long as any server uses their session.
        for (session, is_recent) in core.sessions.with_shared_subscriptions(idle) {
            match shared.store.get(&key(session.id)).await? {
                Some(record) if record.value == ENDED => core.sessions.remove(&session),
                Some(record) if shared.is_used(&record, idle) => core.sessions.touch(&session),
                Some(_) | None if is_recent => {}
                Some(_) | None => core.sessions.remove(&session),
            }
        }
        for session in core.sessions.in_use() {
            let record = shared.store.get(&key(session.id)).await?;
            if record.is_some_and(|record| record.value == ENDED) {
                // A stream of the session may be open on this server, without a request that would
                // notice its end.
                core.sessions.remove(&session);
            } else {
                save(core, &session).await;
                if session.listens() {
                    other_nodes::start_adopting(core, &session);
                }
            }
        }
        shared.sweep(idle).await
    };
    match timeout(SWEEP_TIMEOUT, sweeping).await {
        Ok(Ok(())) => {}
        Ok(Err(error)) => tracing::debug!(%error, "unused sessions cannot be removed"),
        Err(_) => tracing::debug!("unused sessions are not removed: the state does not answer"),
    }
}

/// Updates the session that a request names from the shared state.
pub(crate) async fn refresh_session(core: &Core, principal: Option<&Principal>, headers: &HeaderMap) {
    let Some(shared) = core.shared_sessions() else { return };
    let id = headers.get(SESSION_ID).and_then(|value| value.to_str().ok()).and_then(SessionId::parse);
    let Some(id) = id else { return };
    match timeout(STATE_TIMEOUT, refresh(core, shared, principal, id)).await {
        Ok(Ok(())) => {}
        Ok(Err(error)) => tracing::debug!(%error, "a session is as this server knows it"),
        Err(_) => tracing::debug!("a session is as this server knows it: the state does not answer"),
    }
}

async fn refresh(
    core: &Core,
    shared: &SharedSessions,
    principal: Option<&Principal>,
    id: SessionId,
) -> Result<(), StateError> {
    let local = core.sessions.peek(id);
    if local.is_none() {
        shared.store.sync().await?;
    }
    let record = shared.store.get(&key(id)).await?;
    let Some(record) = record else {
        // The session could not be written, or the state was lost. Neither ends a local session.
        if let Some(local) = local {
            local.record.lock().known = None;
            save(core, &local).await;
        }
        return Ok(());
    };
    if record.value == ENDED {
        if let Some(local) = local {
            core.sessions.remove(&local);
        }
        return Ok(());
    }
    let data = serde_json::from_slice::<SessionData>(&record.value);
    let Ok(data) =
        data.map_err(|error| tracing::warn!(%error, "the record of a session cannot be read"))
    else {
        return Ok(());
    };
    if data.principal.as_deref() != principal.map(|principal| &**principal.id()) {
        return Ok(());
    }
    let session = match local {
        Some(local) => local,
        None => {
            let Some(revision) = Revision::parse(&data.revision) else { return Ok(()) };
            let notified = *core.lists.borrow();
            let capabilities = data.capabilities.clone().and_then(|text| JsonText::parse(text).ok());
            let client = data.client.as_deref().map(Into::into);
            let declared = Declared { capabilities, client };
            let newest = core.market.snapshot();
            let max = core.settings.load().options.max_sessions;
            let make = |id| {
                Session::new(id, revision, principal.cloned(), declared, newest, notified, &core.abort)
            };
            match core.sessions.add_as(id, max, make) {
                Ok(session) => {
                    session.share(&core.pending_changes);
                    session
                }
                Err(_) => return Ok(()),
            }
        }
    };
    let seen = session.record.lock().revision();
    if seen.is_none_or(|seen| seen < record.revision) {
        session.take_in(seen, record.revision, data);
        // Another server used the session in the meantime.
        core.sessions.touch(&session);
    }
    if let Some(name) = session.unknown_versions() {
        let versions = match core.versions.get(&name) {
            Some(known) => Some(known),
            None => shared.versions(&name).await?.map(|versions| core.versions.share(versions)),
        };
        versions.into_iter().for_each(|versions| session.learn_versions(versions));
    }
    save(core, &session).await;
    Ok(())
}

/// Writes the changes that a request made to its session, and from time to time that the session is
/// used.
pub(crate) async fn save(core: &Core, session: &Session) {
    let Some(shared) = core.shared_sessions() else { return };
    match timeout(STATE_TIMEOUT, write(core, shared, session)).await {
        Ok(Ok(())) => return,
        Ok(Err(error)) => tracing::debug!(%error, "for now, only this server knows a session"),
        Err(_) => {
            tracing::debug!("for now, only this server knows a session: the state does not answer");
        }
    }
    let mut record = session.record.lock();
    record.level.give_up();
    record.listed.give_up();
}

async fn write(core: &Core, shared: &SharedSessions, session: &Session) -> Result<(), StateError> {
    let renew = core.settings.load().options.session_idle / 4;
    let mut has_written = false;
    loop {
        let (seen, data) = {
            let record = session.record.lock();
            let data = session.data(&record);
            let is_due = |known: &KnownRecord| {
                known.data != data || (!has_written && known.at.elapsed() >= renew)
            };
            if !record.known.as_deref().is_none_or(is_due) {
                return Ok(());
            }
            (record.revision(), data)
        };
        let expect = seen.map_or(Expect::Absent, Expect::Revision);
        let Ok(value) = serde_json::to_vec(&data) else { return Ok(()) };
        let mut changes = vec![Change::put(key(session.id), value).expecting(expect)];
        let versions = session.listed_versions();
        let versions = versions.filter(|versions| data.listed.as_deref() == Some(versions.name()));
        if let Some(versions) = &versions {
            changes.extend(shared.renewal_of(versions, renew).await?);
        }
        let renews_versions = changes.len() > 1;
        match shared.store.write(changes).await {
            Ok(revisions) => {
                if let Some(versions) = versions.filter(|_| renews_versions) {
                    shared.note_renewal(&versions, renew);
                }
                let revision = revisions.first().copied().unwrap_or_default();
                session.note_written(revision, data);
                has_written = true;
                continue;
            }
            Err(WriteError::Failed(error)) => return Err(error),
            // Another server has written the record.
            Err(WriteError::Conflict { .. }) => {}
        }
        match shared.store.get(&key(session.id)).await? {
            None => session.record.lock().known = None,
            Some(record) if record.value == ENDED => {
                core.sessions.remove(session);
                return Ok(());
            }
            Some(record) => match serde_json::from_slice(&record.value) {
                Ok(theirs) => session.take_in(seen, record.revision, theirs),
                Err(_) => return Ok(()),
            },
        }
    }
}

/// Ends the session on all servers.
pub(crate) async fn end(core: &Core, id: SessionId) {
    let Some(shared) = core.shared_sessions() else { return };
    let changes = vec![Change::put(key(id), ENDED), Change::remove(listening_key(id))];
    let ended = shared.store.write(changes);
    if !timeout(STATE_TIMEOUT, ended).await.is_ok_and(|ended| ended.is_ok()) {
        tracing::warn!("an ended session may continue on another server: the state does not answer");
    }
}

impl RecordState {
    /// Returns the revision of the known record.
    fn revision(&self) -> Option<u64> {
        self.known.as_ref().map(|known| known.revision)
    }

    /// Notes what the record is now.
    fn know(&mut self, revision: u64, data: SessionData) {
        self.known = Some(Box::new(KnownRecord { revision, data, at: Instant::now() }));
    }
}

impl Session {
    /// Takes in a newer record than `seen`, unless another request has taken in one since.
    fn take_in(&self, seen: Option<u64>, revision: u64, data: SessionData) {
        let mut record = self.record.lock();
        if record.revision() != seen {
            return;
        }
        if record.level.take_in(data.level_changes)
            && let Ok(level) = data.log_level.parse::<LogLevel>()
        {
            self.note_log_level(level);
        }
        if record.listed.take_in(data.listed_changes)
            && let Some(name) = &data.listed
        {
            self.note_listed(name);
        }
        record.know(revision, data);
    }

    /// Notes that this server has written the record. A newer one may have been taken in meanwhile.
    fn note_written(&self, revision: u64, data: SessionData) {
        let mut record = self.record.lock();
        if record.revision().is_some_and(|known| known > revision) {
            return;
        }
        let own = self.data(&record);
        record.level.note_written(data.level_changes, data.log_level == own.log_level);
        record.listed.note_written(data.listed_changes, data.listed == own.listed);
        record.know(revision, data);
    }

    /// Returns the data of the session that other servers need.
    pub(super) fn data(&self, record: &RecordState) -> SessionData {
        SessionData {
            revision: self.revision.version().as_str().to_owned(),
            principal: self.principal.as_ref().map(|principal| principal.id().to_string()),
            capabilities: self.capabilities.as_ref().map(JsonText::to_string),
            client: self.origin.client.as_deref().map(str::to_owned),
            log_level: self.log_level().as_str().to_owned(),
            level_changes: record.level.count(),
            listed: self.listed_name(),
            listed_changes: record.listed.count(),
        }
    }
}

/// Returns the key of a session. It does not reveal the id to readers of the state.
pub(super) fn key(id: SessionId) -> String {
    format!("{SESSIONS}{}", id.digest())
}

/// Returns the key of the versions of this name.
fn listed_key(name: &str) -> String {
    format!("{LISTED}{name}")
}

/// Returns the key of where the client of a session listens.
pub(super) fn listening_key(id: SessionId) -> String {
    format!("{LISTENING}{}", id.digest())
}

#[cfg(test)]
mod tests {
    use orla_state::Memory;

    use super::*;

    const IDLE: Duration = Duration::from_secs(40);

    fn store() -> Arc<dyn StateStore> {
        Arc::new(Memory::new(orla_state::Limits::default()))
    }

    fn versions(of: &str) -> Versions {
        Versions::new([("a".to_owned(), of.to_owned())])
    }

    async fn renew(shared: &SharedSessions, versions: &Versions) -> bool {
        let Some(change) = shared.renewal_of(versions, IDLE / 4).await.unwrap() else { return false };
        shared.store.write(vec![change]).await.unwrap();
        shared.note_renewal(versions, IDLE / 4);
        true
    }

    #[test]
    fn a_record_of_an_earlier_version_names_no_list() {
        let text = r#"{"revision": "2025-11-25", "log_level": "info"}"#;
        let data: SessionData = serde_json::from_str(text).unwrap();
        assert_eq!((data.listed, data.level_changes, data.listed_changes), (None, 0, 0));
    }

    #[tokio::test(start_paused = true)]
    async fn sessions_with_one_list_write_its_text_once_in_a_quarter_of_their_time() {
        let shared = SharedSessions::new(store());
        let (one, other) = (versions("1"), versions("2"));
        assert!(renew(&shared, &one).await && renew(&shared, &other).await);
        assert!(!renew(&shared, &one).await);
        tokio::time::advance(IDLE / 4).await;
        assert!(renew(&shared, &one).await);
        shared.store.write(vec![Change::remove(listed_key(one.name()))]).await.unwrap();
        assert!(renew(&shared, &one).await, "the state has lost it");
        assert_eq!(shared.versions(one.name()).await.unwrap(), Some(one));
    }

    #[tokio::test(start_paused = true)]
    async fn a_text_is_removed_once_no_server_has_renewed_it_for_long() {
        let shared = SharedSessions::new(store());
        let (used, unused) = (versions("1"), versions("2"));
        assert!(renew(&shared, &used).await && renew(&shared, &unused).await);
        for _ in 0..10 {
            shared.sweep(IDLE).await.unwrap();
            tokio::time::advance(IDLE / 4).await;
            renew(&shared, &used).await;
        }
        shared.sweep(IDLE).await.unwrap();
        assert!(shared.versions(used.name()).await.unwrap().is_some());
        assert_eq!(shared.versions(unused.name()).await.unwrap(), None);
    }

    #[tokio::test(start_paused = true)]
    async fn the_texts_of_a_server_are_bounded() {
        let shared = SharedSessions::new(store());
        let large = |of: usize| versions(&format!("{of}{}", "0".repeat(200_000)));
        let count = (0..100).take_while(|of| {
            let has_place = shared.has_place_for(&large(*of), IDLE / 4);
            shared.note_renewal(&large(*of), IDLE / 4);
            has_place
        });
        assert_eq!(count.count(), MAX_LISTED / large(0).text().len());
        assert!(shared.has_place_for(&large(0), IDLE / 4), "it is there already");
        tokio::time::advance(IDLE / 4).await;
        assert!(shared.has_place_for(&large(200), IDLE / 4));
    }

    #[tokio::test(start_paused = true)]
    async fn a_change_of_another_server_replaces_an_older_own_one_alone() {
        let mut field = Field { known: 5, own: OwnChange::Nothing };
        assert!(field.take_in(7) && field.count() == 7, "nothing was changed here");
        field.note_change();
        assert!(!field.take_in(9) && field.count() == 10, "a request has just changed it");
        field.give_up();
        field.note_change();
        field.give_up();
        assert!(!field.take_in(9) && field.count() == 10, "only other fields have changed");
        assert!(field.take_in(10), "another server has changed it too");
        assert_eq!(field, Field { known: 10, own: OwnChange::Nothing });
        field.note_change();
        tokio::time::advance(NEW).await;
        assert!(field.take_in(11), "the request was dropped");
    }

    #[tokio::test(start_paused = true)]
    async fn a_change_is_written_once() {
        let mut field = Field::default();
        field.note_change();
        assert!(!field.take_in(1), "the server reads what it has just written");
        field.note_written(1, true);
        assert_eq!(field, Field { known: 1, own: OwnChange::Nothing });
        field.note_change();
        let first = field.count();
        field.note_change();
        field.note_written(first, false);
        assert_eq!(field.count(), 3, "changed again while it was written");
        field.note_written(3, true);
        assert_eq!(field, Field { known: 3, own: OwnChange::Nothing });
    }
}
