//! Sessions that several servers share: what another server needs to go on with one is a record of their common state.
//!
//! The record is the truth. Before a request of a session, it is read: a session that is not here is made, one that has
//! changed elsewhere is changed, and one that has ended elsewhere ends. After a request, what the request changed is written.
//! For a session that is here, what this server has heard of the common state is enough. Sessions that are here go on while
//! the state cannot be reached, and no others.
//!
//! A session that is used renews its record now and then, and one whose record has not changed for too long is removed by
//! whichever server notices. Times are those of each server, so no clock is compared with another.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::{Duration, Instant};

use http::HeaderMap;
use orla_marketplace::{JsonText, LogLevel, Principal};
use orla_state::{Change, Expect, Pages, Record, StateError, StateStore, WriteError};
use parking_lot::Mutex;
use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};
use tokio::time::timeout;

use crate::mcp::protocol::{Revision, SESSION_ID};
use crate::mcp::session::{Session, SessionId, elsewhere};
use crate::state::Core;

/// What the records of sessions are below.
const SESSIONS: &str = "session/";
/// What the records are below of where clients listen, and what they have subscribed to.
pub(super) const LISTENING: &str = "listen/";
/// The record of a session that has ended. It goes like that of one that is not used.
const ENDED: &[u8] = b"ended";
/// How many records are read at once.
const PAGE: usize = 1000;
/// The longest that a request waits for the common state.
pub(super) const WAIT: Duration = Duration::from_secs(1);
/// The longest that one look at all sessions takes.
const SWEEP: Duration = Duration::from_secs(5);

/// Where sessions are shared.
pub(crate) struct SharedSessions {
    pub(super) store: Arc<dyn StateStore>,
    /// The revision of each record, and when it was first seen.
    seen: Mutex<HashMap<String, (u64, Instant)>>,
}

/// A session as other servers need it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Shown {
    revision: String,
    /// The id of its principal.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    principal: Option<String>,
    /// What its client declared, if it can be asked anything.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    capabilities: Option<String>,
    log_level: String,
}

/// What is known of the record of a session.
#[derive(Clone, Debug)]
pub(crate) struct Kept {
    revision: u64,
    shown: Shown,
    /// When it was written or read last.
    at: Instant,
}

impl SharedSessions {
    pub(crate) fn new(store: Arc<dyn StateStore>) -> Self {
        Self { store, seen: Mutex::default() }
    }

    /// Returns whether a record was renewed a while ago at most.
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
            // One that was used meanwhile stays.
            if let Err(WriteError::Failed(error)) = self.store.write(removal).await {
                return Err(error);
            }
        }
        Ok(())
    }
}

/// Renews the sessions that are in use here, and removes those that have not been used anywhere for so long.
pub(crate) async fn sweep(core: &Arc<Core>, idle: Duration) {
    let Some(shared) = core.shared_sessions() else { return };
    let sweeping = async {
        // Subscriptions are wanted as long as their session is used anywhere.
        for (session, is_recent) in core.sessions.owning(idle) {
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
                // A stream of it may be open here, without a request that would tell.
                core.sessions.remove(&session);
            } else {
                save(core, &session).await;
                if session.listens() {
                    elsewhere::start_adopting(core, &session);
                }
            }
        }
        shared.sweep(idle).await
    };
    match timeout(SWEEP, sweeping).await {
        Ok(Ok(())) => {}
        Ok(Err(error)) => tracing::debug!(%error, "unused sessions cannot be removed"),
        Err(_) => tracing::debug!("unused sessions are not removed: the state does not answer"),
    }
}

/// Brings the session that a request names to where it stands in the common state.
pub(crate) async fn settle(core: &Core, principal: Option<&Principal>, headers: &HeaderMap) {
    let Some(shared) = core.shared_sessions() else { return };
    let id = headers.get(SESSION_ID).and_then(|value| value.to_str().ok()).and_then(SessionId::parse);
    let Some(id) = id else { return };
    match timeout(WAIT, settle_one(core, shared, principal, id)).await {
        Ok(Ok(())) => {}
        Ok(Err(error)) => tracing::debug!(%error, "a session is as this server knows it"),
        Err(_) => tracing::debug!("a session is as this server knows it: the state does not answer"),
    }
}

async fn settle_one(
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
        // It was not written, because that could not be done; or the state was lost, which ends nothing that is here.
        if let Some(local) = local {
            *local.kept.lock() = None;
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
    let shown = serde_json::from_slice::<Shown>(&record.value);
    let Ok(shown) =
        shown.map_err(|error| tracing::warn!(%error, "the record of a session cannot be read"))
    else {
        return Ok(());
    };
    if shown.principal.as_deref() != principal.map(|principal| &**principal.id()) {
        return Ok(());
    }
    let session = match local {
        Some(local) => local,
        None => {
            let Some(revision) = Revision::parse(&shown.revision) else { return Ok(()) };
            let notified = *core.lists.borrow();
            let capabilities = shown.capabilities.clone().and_then(|text| JsonText::parse(text).ok());
            let newest = core.market.snapshot();
            let max = core.settings.load().options.max_sessions;
            let make = |id| {
                Session::new(
                    id,
                    revision,
                    principal.cloned(),
                    capabilities,
                    newest,
                    notified,
                    &core.abort,
                )
            };
            match core.sessions.add_as(id, max, make) {
                Ok(session) => {
                    session.share(&core.unheard);
                    session
                }
                Err(_) => return Ok(()),
            }
        }
    };
    {
        let mut kept = session.kept.lock();
        if kept.as_ref().is_none_or(|kept| kept.revision < record.revision) {
            if let Ok(level) = shown.log_level.parse::<LogLevel>() {
                session.set_log_level(level);
            }
            *kept = Some(Kept { revision: record.revision, shown, at: Instant::now() });
            // It was in use elsewhere meanwhile.
            core.sessions.touch(&session);
        }
    }
    save(core, &session).await;
    Ok(())
}

/// Writes what a request has changed of its session, and now and then that it is used.
pub(crate) async fn save(core: &Core, session: &Session) {
    let Some(shared) = core.shared_sessions() else { return };
    let shown = session.shown();
    let renew = core.settings.load().options.session_idle / 4;
    let expect = match &*session.kept.lock() {
        Some(kept) if kept.shown == shown && kept.at.elapsed() < renew => return,
        Some(kept) => Expect::Revision(kept.revision),
        None => Expect::Absent,
    };
    let Ok(value) = serde_json::to_vec(&shown) else { return };
    let put = Change::put(key(session.id), value).expecting(expect);
    let Ok(written) = timeout(WAIT, shared.store.write(vec![put])).await else {
        tracing::debug!("for now, only this server knows a session: the state does not answer");
        return;
    };
    match written {
        Ok(revisions) => {
            let revision = revisions.first().copied().unwrap_or_default();
            *session.kept.lock() = Some(Kept { revision, shown, at: Instant::now() });
        }
        // It was changed by a request on another server at the same moment, or has ended.
        Err(WriteError::Conflict { .. }) => {}
        Err(WriteError::Failed(error)) => {
            tracing::debug!(%error, "for now, only this server knows a session");
        }
    }
}

/// The session has ended everywhere.
pub(crate) async fn end(core: &Core, id: SessionId) {
    let Some(shared) = core.shared_sessions() else { return };
    let changes = vec![Change::put(key(id), ENDED), Change::remove(listening_key(id))];
    let ended = shared.store.write(changes);
    if !timeout(WAIT, ended).await.is_ok_and(|ended| ended.is_ok()) {
        tracing::warn!("an ended session may continue on another server: the state does not answer");
    }
}

impl Session {
    /// Returns the session as other servers need it.
    fn shown(&self) -> Shown {
        Shown {
            revision: self.revision.version().as_str().to_owned(),
            principal: self.principal.as_ref().map(|principal| principal.id().to_string()),
            capabilities: self.capabilities.as_ref().map(JsonText::to_string),
            log_level: self.log_level().as_str().to_owned(),
        }
    }
}

/// Returns the key of a session. Who can read the state learns no id from it.
fn key(id: SessionId) -> String {
    format!("{SESSIONS}{}", digest(id))
}

/// Returns the key of where the client of a session listens.
pub(super) fn listening_key(id: SessionId) -> String {
    format!("{LISTENING}{}", digest(id))
}

fn digest(id: SessionId) -> String {
    hex::encode(&Sha256::digest(id.to_string())[..16])
}
