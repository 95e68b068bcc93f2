//! Sessions that several servers share. A record of the shared state contains the data with which
//! another server continues a session.
//!
//! The record is authoritative. It is read before a request of a session: a missing session is created
//! here, a session that changed elsewhere is updated, and a session that ended elsewhere ends. After a
//! request, the changes of the request are written, also if another server has written the record
//! meanwhile ([`keeps_own`]). For a local session, the last received version of the record suffices.
//! While the state is unreachable, only local sessions continue.
//!
//! A session in use renews its record from time to time. Any server that notices a record that has not
//! changed for too long removes it. Times are those of each server, so no clock is compared with
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
use crate::mcp::session::{Declared, Session, SessionId, other_nodes};
use crate::state::Core;

/// The prefix of the records of sessions.
const SESSIONS: &str = "session/";
/// The prefix of the records of listening clients and their subscriptions.
pub(super) const LISTENING: &str = "listen/";
/// The value of the record of an ended session. The record is removed like that of an unused session.
pub(super) const ENDED: &[u8] = b"ended";
/// How many records are read at once.
const PAGE: usize = 1000;
/// The longest time for which a request waits for the shared state.
pub(super) const STATE_TIMEOUT: Duration = Duration::from_secs(1);
/// The longest that one look at all sessions takes.
const SWEEP_TIMEOUT: Duration = Duration::from_secs(5);

/// The shared sessions.
pub(crate) struct SharedSessions {
    pub(super) store: Arc<dyn StateStore>,
    /// The revision of each record, and when it was first seen.
    seen: Mutex<HashMap<String, (u64, Instant)>>,
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
        Self { store, seen: Mutex::default() }
    }

    /// Returns whether a record was renewed recently.
    fn is_used(&self, record: &Record, idle: Duration) -> bool {
        let seen = self.seen.lock();
        let known = seen.get(&record.key).filter(|(revision, _)| *revision == record.revision);
        known.is_none_or(|(_, first)| first.elapsed() < idle / 2)
    }

    async fn sweep(&self, idle: Duration) -> Result<(), StateError> {
        // A record is renewed when a quarter of the time has passed.
        let old = idle.saturating_add(idle / 4);
        let mut pages = Pages::below(&*self.store, SESSIONS, PAGE);
        let mut next = HashMap::new();
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
                    let listening = key.replacen(SESSIONS, LISTENING, 1);
                    let session = Change::remove(key).expecting(Expect::Revision(revision));
                    unused.push(vec![session, Change::remove(listening)]);
                } else {
                    next.insert(key, (revision, first));
                }
            }
        }
        *self.seen.lock() = next;
        for removal in unused {
            // A session that was used in the meantime stays.
            if let Err(WriteError::Failed(error)) = self.store.write(removal).await {
                return Err(error);
            }
        }
        Ok(())
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
                save_from(core, &session, false).await;
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
            *local.record.lock() = None;
            save_from(core, &local, false).await;
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
    let seen = session.record.lock().as_ref().map(|known| known.revision);
    if seen.is_none_or(|seen| seen < record.revision) {
        session.take_in(seen, record.revision, data, false);
        // Another server used the session in the meantime.
        core.sessions.touch(&session);
    }
    save_from(core, &session, false).await;
    Ok(())
}

/// Writes the changes that a request made to its session, and from time to time that the session is
/// used.
pub(crate) async fn save(core: &Core, session: &Session) {
    save_from(core, session, true).await;
}

/// Does the same. `is_latest` is set if a request has just been made.
async fn save_from(core: &Core, session: &Session, is_latest: bool) {
    let Some(shared) = core.shared_sessions() else { return };
    match timeout(STATE_TIMEOUT, write(core, shared, session, is_latest)).await {
        Ok(Ok(())) => {}
        Ok(Err(error)) => tracing::debug!(%error, "for now, only this server knows a session"),
        Err(_) => {
            tracing::debug!("for now, only this server knows a session: the state does not answer");
        }
    }
}

async fn write(
    core: &Core,
    shared: &SharedSessions,
    session: &Session,
    is_latest: bool,
) -> Result<(), StateError> {
    let renew = core.settings.load().options.session_idle / 4;
    loop {
        let data = session.data();
        let seen = match &*session.record.lock() {
            Some(known) if known.data == data && known.at.elapsed() < renew => return Ok(()),
            known => known.as_ref().map(|known| known.revision),
        };
        let expect = seen.map_or(Expect::Absent, Expect::Revision);
        let Ok(value) = serde_json::to_vec(&data) else { return Ok(()) };
        let put = Change::put(key(session.id), value).expecting(expect);
        match shared.store.write(vec![put]).await {
            Ok(revisions) => {
                let revision = revisions.first().copied().unwrap_or_default();
                *session.record.lock() = Some(KnownRecord { revision, data, at: Instant::now() });
                return Ok(());
            }
            Err(WriteError::Failed(error)) => return Err(error),
            // Another server has written the record.
            Err(WriteError::Conflict { .. }) => {}
        }
        match shared.store.get(&key(session.id)).await? {
            None => *session.record.lock() = None,
            Some(record) if record.value == ENDED => {
                core.sessions.remove(session);
                return Ok(());
            }
            Some(record) => match serde_json::from_slice(&record.value) {
                Ok(theirs) => session.take_in(seen, record.revision, theirs, is_latest),
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

/// Returns whether a session keeps its own data rather than that of a newer record. `known` is the record as this server knew
/// it before. What a request has just changed is the latest change. A change that could not be written before is kept unless
/// another server has made one too.
fn keeps_own(
    known: Option<&SessionData>,
    own: &SessionData,
    record: &SessionData,
    is_latest: bool,
) -> bool {
    known.map_or(is_latest, |known| own != known && (is_latest || record == known))
}

impl Session {
    /// Takes in a newer record than `seen`, unless another request has taken in one since. `is_latest` is set if a request has
    /// just been made.
    fn take_in(&self, seen: Option<u64>, revision: u64, record: SessionData, is_latest: bool) {
        let mut known = self.record.lock();
        if known.as_ref().map(|known| known.revision) != seen {
            return;
        }
        let before = known.as_ref().map(|known| &known.data);
        if !keeps_own(before, &self.data(), &record, is_latest)
            && let Ok(level) = record.log_level.parse::<LogLevel>()
        {
            self.set_log_level(level);
        }
        *known = Some(KnownRecord { revision, data: record, at: Instant::now() });
    }

    /// Returns the data of the session that other servers need.
    pub(super) fn data(&self) -> SessionData {
        SessionData {
            revision: self.revision.version().as_str().to_owned(),
            principal: self.principal.as_ref().map(|principal| principal.id().to_string()),
            capabilities: self.capabilities.as_ref().map(JsonText::to_string),
            client: self.origin.client.as_deref().map(str::to_owned),
            log_level: self.log_level().as_str().to_owned(),
        }
    }
}

/// Returns the key of a session. It does not reveal the id to readers of the state.
pub(super) fn key(id: SessionId) -> String {
    format!("{SESSIONS}{}", id.digest())
}

/// Returns the key of where the client of a session listens.
pub(super) fn listening_key(id: SessionId) -> String {
    format!("{LISTENING}{}", id.digest())
}
