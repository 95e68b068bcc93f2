//! Idempotency keys: a call with a key is made at most once, and its answer is repeated for a day.
//!
//! # How it works
//!
//! A key belongs to its caller. Before the call, the key is noted in the state together with the
//! fingerprint of the capability and the input. After the call, the answer replaces the note. A second
//! request waits for the first one if that still runs in this process. If a note has no answer and its
//! call does not run, the process of the call was killed. It is then unknown whether the call ran, and
//! it is not repeated. The same holds for a record that cannot be read.
//!
//! If several servers share the state, the note names the server that makes the call, and changes every
//! few seconds while the call runs. A request with the key at another server waits for the answer. If
//! the note has not changed for [`LEASE`], its server is gone.
//!
//! An answer is not kept if no part of the call has run, because the server was busy or a quota refused
//! the call. The key can then be used again.

mod form;
mod record;
mod usage;

use std::collections::HashMap;
use std::sync::Arc;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use bytes::Bytes;
use http::StatusCode;
use orla_marketplace::{JsonText, Principal, millis_down};
use orla_state::{Change, Expect, Query, Record, Revision, StateError, StateStore, WriteError};
use parking_lot::Mutex;
use tokio::sync::{Mutex as AsyncMutex, OnceCell};
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use record::{Head, KEPT_MS, KeyState, TIMES, TimeRow, key_state, owner};
use usage::{Amount, MAX_KEYS, Usage};

/// The maximum size of a key.
pub(crate) const MAX_KEY: usize = 256;
/// The maximum size of a stored answer.
const MAX_ANSWER: usize = 1 << 20;
/// The number of expired keys that a new key removes.
const REMOVED_AT_ONCE: usize = 32;
/// The number of attempts to write a note while other requests remove the same expired keys.
const ATTEMPTS: usize = 16;

/// The interval at which the note of a running call changes, if several servers share the state.
const RENEW: Duration = Duration::from_secs(3);
/// After this time without a change, the server of a note is gone.
const LEASE: Duration = Duration::from_secs(10);
/// The shortest time between two counts of the stored keys, if other servers also add and remove keys.
const RECOUNT: Duration = Duration::from_secs(10);
/// The interval between two reads of another server's note.
const POLL_INTERVAL: Duration = Duration::from_millis(100);

/// The stored answers.
pub(crate) struct Answers {
    store: Arc<dyn StateStore>,
    /// Identifies this process, if several processes share the state.
    instance: Option<String>,
    tracker: TaskTracker,
    /// The calls that run in this process, by their keys in the store.
    running: Mutex<HashMap<String, CancellationToken>>,
    /// The stored amount, once it is counted.
    usage: OnceCell<Mutex<Usage>>,
}

/// The answer to a call.
#[derive(Clone, Debug)]
pub(crate) struct StoredAnswer {
    pub(crate) status: StatusCode,
    /// The number of whole seconds until the call can be repeated.
    pub(crate) retry_after: Option<u64>,
    pub(crate) body: Bytes,
}

/// A request with a key.
pub(crate) struct Attempt {
    place: String,
    fingerprint: String,
}

/// How a request with a key continues.
pub(crate) enum Claim {
    /// The call must be made.
    New(Reserved),
    /// The call was made earlier.
    Answered(StoredAnswer),
}

/// The reason why a request with a key makes no call.
pub(crate) enum Refused {
    /// The caller used the key for another call.
    Conflict,
    /// The server ended before the call was answered.
    Interrupted,
    /// Another version of orla made the record of the key, or it is damaged.
    Unreadable,
    /// The answer was too large to be kept.
    TooLarge,
    /// Too many keys are kept.
    Full,
    /// The state cannot be used.
    State(StateError),
    /// This server is ending.
    Ending,
}

/// The outcome of a call, for its key.
pub(crate) enum CallOutcome<'a> {
    /// The answer is repeated.
    Answered(&'a StoredAnswer),
    /// No part of the call has run, so the key is free again.
    NeverRan,
    /// It is unknown whether the call ran.
    Unknown,
}

/// A key whose call is about to be made. If it is dropped without [`end`](Self::end), the call counts as
/// interrupted.
pub(crate) struct Reserved {
    answers: Arc<Answers>,
    attempt: Attempt,
    reserved_at: u64,
    /// The revision of the note that this process wrote last.
    revision: Arc<AsyncMutex<Option<Revision>>>,
    /// Cancelled when the note is no longer renewed.
    answered: CancellationToken,
    ended: CancellationToken,
}

impl Attempt {
    pub(crate) fn new(caller: Option<&Principal>, key: &str, id: &str, input: &JsonText) -> Self {
        let owner = caller.map(|caller| &**caller.id()).unwrap_or_default();
        Self { place: record::place(owner, key), fingerprint: form::fingerprint(id, input) }
    }
}

impl Answers {
    pub(crate) fn new(store: Arc<dyn StateStore>) -> Arc<Self> {
        Arc::new(Self {
            instance: store.changed_keys().map(|_| instance_id()),
            store,
            tracker: TaskTracker::new(),
            running: Mutex::default(),
            usage: OnceCell::new(),
        })
    }

    /// Claims a key. Waits while another request with the key runs.
    pub(crate) async fn claim(self: &Arc<Self>, attempt: Attempt) -> Result<Claim, Refused> {
        let ended = loop {
            let other = {
                let mut running = self.running.lock();
                match running.get(&attempt.place) {
                    Some(other) => other.clone(),
                    None => {
                        let ended = CancellationToken::new();
                        running.insert(attempt.place.clone(), ended.clone());
                        break ended;
                    }
                }
            };
            // The stored note identifies its call.
            if let Some(record) = self.store.get(&attempt.place).await?
                && let Some((head, _)) = Head::parse(&record.value)
                && head.fingerprint != attempt.fingerprint
            {
                return Err(Refused::Conflict);
            }
            other.cancelled().await;
        };
        let revision = Arc::default();
        let (answers, answered) = (Arc::clone(self), ended.child_token());
        let mut reserved = Reserved { answers, attempt, reserved_at: now(), revision, answered, ended };
        // The note of another server, and the time at which this revision was first seen.
        let mut seen: Option<(Revision, Instant)> = None;
        loop {
            let now = now();
            let record = self.store.get(&reserved.attempt.place).await?;
            let instance = self.instance.as_deref();
            let value = record.as_ref().map(|record| &record.value);
            match key_state(value, &reserved.attempt.fingerprint, instance, now) {
                KeyState::Free => {}
                KeyState::Unreadable => {
                    let key = &*reserved.attempt.place;
                    tracing::error!(key, "the record of an idempotency key cannot be read");
                    return Err(Refused::Unreadable);
                }
                KeyState::Answered(answer) => return Ok(Claim::Answered(answer)),
                KeyState::Refused(refused) => return Err(refused),
                KeyState::Running => {
                    if let Some(note) = &record
                        && self.is_abandoned(note, &mut seen).await?
                    {
                        return Err(Refused::Interrupted);
                    }
                    tokio::time::sleep(POLL_INTERVAL).await;
                    continue;
                }
            }
            reserved.reserved_at = now;
            if self.reserve(&reserved, record).await? {
                self.renew(&reserved);
                return Ok(Claim::New(reserved));
            }
        }
    }

    /// Returns whether the server of a noted call is gone, because its note has not changed for a lease.
    /// `seen` is the last seen revision of the note, and the time at which it was first seen.
    async fn is_abandoned(
        &self,
        note: &Record,
        seen: &mut Option<(Revision, Instant)>,
    ) -> Result<bool, StateError> {
        let (revision, first) = *seen.get_or_insert((note.revision, Instant::now()));
        if revision == note.revision && first.elapsed() < LEASE {
            return Ok(false);
        }
        *seen = None;
        if revision != note.revision {
            return Ok(false);
        }
        // The server's last renewal may not have arrived here yet.
        self.store.sync().await?;
        let newest = self.store.get(&note.key).await?;
        Ok(newest.is_some_and(|newest| newest.revision == revision))
    }

    /// Renews the note of a running call regularly, if several servers share the state.
    fn renew(self: &Arc<Self>, reserved: &Reserved) {
        if self.instance.is_none() {
            return;
        }
        let (answers, revision, answered) =
            (Arc::clone(self), Arc::clone(&reserved.revision), reserved.answered.clone());
        let place = reserved.attempt.place.clone();
        let value = reserved.head().record(&[]);
        self.tracker.spawn(async move {
            loop {
                tokio::select! {
                    () = answered.cancelled() => return,
                    () = tokio::time::sleep(RENEW) => {}
                }
                let mut revision = revision.lock().await;
                let Some(expected) = *revision else { return };
                let put = Change::put(&*place, value.clone()).expecting(Expect::Revision(expected));
                // The answer does not wait for a write that hangs. If the write is made later, it
                // conflicts with a newer revision.
                let written = tokio::select! {
                    written = answers.store.write(vec![put]) => written,
                    () = answered.cancelled() => return,
                };
                match written {
                    Ok(revisions) => *revision = revisions.first().copied(),
                    // An earlier renewal was made and its answer was lost, or the note belongs to
                    // another call by now.
                    Err(WriteError::Conflict { .. }) => match answers.store.get(&place).await {
                        Ok(Some(record)) if record.value == value => *revision = Some(record.revision),
                        Ok(_) => return,
                        Err(error) => tracing::debug!(%error, "the note of a call cannot be read"),
                    },
                    Err(WriteError::Failed(error)) => {
                        tracing::debug!(%error, "the note of a call is not renewed");
                    }
                }
            }
        });
    }

    async fn usage(&self) -> Result<&Mutex<Usage>, StateError> {
        self.usage.get_or_try_init(|| async { self.count().await.map(Mutex::new) }).await
    }

    async fn count(&self) -> Result<Usage, StateError> {
        let mut usage = Usage { counted: Some(Instant::now()), ..Usage::default() };
        for record in self.store.list(Query::below(TIMES, MAX_KEYS)).await? {
            if let Some(row) = TimeRow::parse(&record) {
                usage.add(owner(row.place), Amount { keys: 1, bytes: row.bytes });
            }
        }
        Ok(usage)
    }

    /// Returns whether a caller may store more. Keys that other servers removed count until the next
    /// count.
    async fn has_room(&self, owner: &str, more: Amount) -> Result<bool, StateError> {
        let usage = self.usage().await?;
        let is_old = {
            let usage = usage.lock();
            if usage.has_room(owner, more) {
                return Ok(true);
            }
            usage.counted.is_none_or(|counted| counted.elapsed() >= RECOUNT)
        };
        if self.instance.is_none() || !is_old {
            return Ok(false);
        }
        let recounted = self.count().await?;
        let mut usage = usage.lock();
        *usage = recounted;
        Ok(usage.has_room(owner, more))
    }

    /// Notes that the call is about to be made, and removes expired keys. Returns `false` if another
    /// server has noted it in the meantime.
    async fn reserve(&self, reserved: &Reserved, mut old: Option<Record>) -> Result<bool, Refused> {
        let own = &*reserved.attempt.place;
        let usage = self.usage().await?;
        for _ in 0..ATTEMPTS {
            let mut changes = Vec::new();
            let mut removed = Vec::new();
            // The record of an earlier use of the key.
            if let Some((head, body)) = old.as_ref().and_then(|old| Head::parse(&old.value)) {
                changes.push(Change::remove(TimeRow::key(head.at, own)));
                removed.push((owner(own).to_owned(), body.len()));
            }
            let oldest = self.store.list(Query::below(TIMES, REMOVED_AT_ONCE)).await?;
            for (record, row) in
                oldest.iter().filter_map(|record| Some((record, TimeRow::parse(record)?)))
            {
                if reserved.reserved_at.saturating_sub(row.at) >= KEPT_MS && row.place != own {
                    // If the key is used again or removed concurrently, the record has another revision.
                    let expected = Expect::Revision(record.revision);
                    changes.push(Change::remove(&*record.key).expecting(expected));
                    changes.push(Change::remove(row.place));
                    removed.push((owner(row.place).to_owned(), row.bytes));
                }
            }
            let before = old.as_ref().map(|old| old.revision);
            let expect = before.map_or(Expect::Absent, Expect::Revision);
            let position = changes.len();
            changes.push(Change::put(own, reserved.head().record(&[])).expecting(expect));
            changes.push(reserved.time_row(0));
            let more = Amount { keys: 1, bytes: 0 };
            if removed.is_empty() && !self.has_room(owner(own), more).await? {
                return Err(Refused::Full);
            }
            match self.store.write(changes).await {
                Ok(revisions) => {
                    *reserved.revision.lock().await = revisions.get(position).copied();
                    let mut usage = usage.lock();
                    for (owner, bytes) in removed {
                        usage.remove(&owner, Amount { keys: 1, bytes });
                    }
                    usage.add(owner(own), Amount { keys: 1, bytes: 0 });
                    return Ok(true);
                }
                Err(WriteError::Conflict { .. }) => {
                    self.store.sync().await?;
                    old = self.store.get(own).await?;
                    if old.as_ref().map(|old| old.revision) != before {
                        return Ok(false);
                    }
                }
                Err(WriteError::Failed(error)) => return Err(error.into()),
            }
        }
        Err(StateError::new("too many requests remove expired idempotency keys").into())
    }
}

impl From<StateError> for Refused {
    fn from(error: StateError) -> Self {
        Self::State(error)
    }
}

impl Reserved {
    /// Notes how the call ended. A failure to do so is logged. The key then stays taken, and the call is
    /// not repeated.
    pub(crate) async fn end(self, ended: CallOutcome<'_>) {
        if let Err(error) = self.note_end(ended).await {
            tracing::error!(%error, "the answer to a request with an idempotency key was not kept");
        }
    }

    /// Returns the note of the call.
    fn head(&self) -> Head {
        Head {
            fingerprint: self.attempt.fingerprint.clone(),
            at: self.reserved_at,
            status: 0,
            retry_after: None,
            is_cut: false,
            instance: self.answers.instance.clone(),
        }
    }

    async fn note_end(&self, ended: CallOutcome<'_>) -> Result<(), WriteError> {
        let place = &*self.attempt.place;
        // The note is no longer renewed.
        self.answered.cancel();
        *self.revision.lock().await = None;
        let answer = match ended {
            CallOutcome::Unknown => return Ok(()),
            CallOutcome::NeverRan => {
                let changes =
                    vec![Change::remove(place), Change::remove(TimeRow::key(self.reserved_at, place))];
                self.answers.store.write(changes).await?;
                let usage = self.answers.usage().await.map_err(WriteError::Failed)?;
                usage.lock().remove(owner(place), Amount { keys: 1, bytes: 0 });
                return Ok(());
            }
            CallOutcome::Answered(answer) => answer,
        };
        let usage = self.answers.usage().await.map_err(WriteError::Failed)?;
        let size = Amount { keys: 0, bytes: answer.body.len() };
        let has_room = self.answers.has_room(owner(place), size).await.map_err(WriteError::Failed)?;
        let is_stored = {
            let mut usage = usage.lock();
            // Another request may have taken the remaining room.
            let is_stored = size.bytes <= MAX_ANSWER && has_room && usage.has_room(owner(place), size);
            if is_stored {
                usage.add(owner(place), size);
            }
            is_stored
        };
        let head = Head {
            fingerprint: self.attempt.fingerprint.clone(),
            at: self.reserved_at,
            status: answer.status.as_u16(),
            retry_after: answer.retry_after,
            is_cut: !is_stored,
            instance: None,
        };
        let body: &[u8] = if is_stored { &answer.body } else { &[] };
        let changes = vec![Change::put(place, head.record(body)), self.time_row(body.len())];
        let written = self.answers.store.write(changes).await;
        if written.is_err() && is_stored {
            usage.lock().remove(owner(place), size);
        }
        written.map(drop)
    }

    fn time_row(&self, bytes: usize) -> Change {
        let place = &self.attempt.place;
        Change::put(TimeRow::key(self.reserved_at, place), format!("{place} {bytes}"))
    }
}

impl Drop for Reserved {
    fn drop(&mut self) {
        self.answers.running.lock().remove(&self.attempt.place);
        self.ended.cancel();
    }
}

impl Refused {
    /// Returns the status of the answer, its kind, and advice for the caller.
    pub(crate) fn describe(&self) -> (StatusCode, &'static str, &'static str) {
        match self {
            Self::Conflict => (
                StatusCode::CONFLICT,
                "conflict",
                "this Idempotency-Key was used for another call: use another key for another input",
            ),
            Self::Interrupted => (
                StatusCode::CONFLICT,
                "interrupted",
                "the server ended before it answered the call with this Idempotency-Key, so it is unknown whether \
                 the call was made: find out, and use another key to make it again",
            ),
            Self::Unreadable => (
                StatusCode::CONFLICT,
                "interrupted",
                "the server cannot read what it kept for this Idempotency-Key, so it is unknown whether the call was \
                 made: find out, and use another key to make it again",
            ),
            Self::TooLarge => (
                StatusCode::CONFLICT,
                "conflict",
                "the call with this Idempotency-Key was made, and its answer was too large to be kept: use another key to \
                 make it again",
            ),
            Self::Full => (
                StatusCode::TOO_MANY_REQUESTS,
                "busy",
                "too many idempotency keys are in use; try again later, or without a key",
            ),
            Self::Ending => {
                (StatusCode::SERVICE_UNAVAILABLE, "unavailable", "the server ends; repeat the request")
            }
            Self::State(error) => {
                tracing::error!(%error, "a request with an idempotency key failed");
                let what = "the server cannot keep answers now; try again later, or without a key";
                (StatusCode::SERVICE_UNAVAILABLE, "unavailable", what)
            }
        }
    }
}

/// Returns an identifier of this process.
fn instance_id() -> String {
    let mut bytes = [0; 16];
    // Without randomness, this process takes the notes of others for its own, and does not wait for
    // their calls.
    let _ = getrandom::fill(&mut bytes);
    hex::encode(bytes)
}

fn now() -> u64 {
    let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    millis_down(since)
}

#[cfg(test)]
mod tests;
