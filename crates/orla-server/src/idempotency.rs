//! Idempotency keys: a call with a key is made at most once, and its answer is repeated for a day.
//!
//! # How it works
//!
//! A key belongs to its caller. Before the call, the key is noted in the state together with the fingerprint of the
//! capability and the input; after it, the answer replaces the note. A second request waits for the first one if that still
//! runs in this process. A note without an answer and without a call that runs is what a process left that was killed:
//! whether its call ran is unknown, and it is not made again.
//!
//! If several servers share the state, the note names the one that makes the call, and changes every few seconds while the
//! call runs. A request with the key at another one waits for the answer; a note that has not changed for [`LEASE`] is
//! that of a server that is gone.
//!
//! An answer is not kept if nothing of the call has run (the server was busy, a quota refused it): the key is free again.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use bytes::Bytes;
use http::StatusCode;
use orla_marketplace::id::mcp_name;
use orla_marketplace::{JsonText, Principal};
use orla_state::{Change, Expect, Query, Record, Revision, StateError, StateStore, WriteError};
use parking_lot::Mutex;
use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};
use tokio::sync::{Mutex as AsyncMutex, OnceCell};
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

/// The most bytes of a key.
pub(crate) const MAX_KEY: usize = 256;
/// How long an answer is repeated, in milliseconds.
const KEPT_MS: u64 = 24 * 60 * 60 * 1000;
/// The most keys of all callers.
const MAX_KEYS: usize = 100_000;
/// The most bytes of all answers that are kept.
const MAX_BYTES: usize = 256 << 20;
/// Of both, one caller may use this part: a quarter.
const SHARE: usize = 4;
/// The most bytes of an answer that is kept.
const MAX_ANSWER: usize = 1 << 20;
/// How many expired keys a new one removes.
const REMOVED_AT_ONCE: usize = 32;
/// How often a note is tried if others remove the same expired keys at this moment.
const ATTEMPTS: usize = 16;

/// How often the note of a call that runs changes, if several servers share the state.
const RENEW: Duration = Duration::from_secs(3);
/// A note that has not changed for so long is that of a server that is gone.
const LEASE: Duration = Duration::from_secs(10);
/// How often what is kept is counted anew at most, where other servers add and remove too.
const RECOUNT: Duration = Duration::from_secs(10);
/// How often a note of another server is looked at.
const LOOK: Duration = Duration::from_millis(100);

const ANSWERS: &str = "rest/answer/";
const TIMES: &str = "rest/time/";

/// The answers that are kept.
pub(crate) struct Answers {
    store: Arc<dyn StateStore>,
    /// What tells this process from others, if several share the state.
    life: Option<String>,
    tracker: TaskTracker,
    /// The calls that run in this process, by their place in the store.
    running: Mutex<HashMap<String, CancellationToken>>,
    /// How much is kept, once it is counted.
    usage: OnceCell<Mutex<Usage>>,
}

/// How much is kept.
#[derive(Default)]
struct Usage {
    all: Amount,
    of_caller: HashMap<Box<str>, Amount>,
    /// When it was counted last.
    counted: Option<Instant>,
}

#[derive(Clone, Copy, Default)]
struct Amount {
    keys: usize,
    bytes: usize,
}

/// A record of when a key was used first: its place, and the bytes of its answer.
struct TimeRow<'a> {
    at: u64,
    place: &'a str,
    bytes: usize,
}

/// The answer to a call.
#[derive(Clone, Debug)]
pub(crate) struct KeptAnswer {
    pub(crate) status: StatusCode,
    /// Whole seconds until the call can be made again.
    pub(crate) retry_after: Option<u64>,
    pub(crate) body: Bytes,
}

/// A request with a key.
pub(crate) struct Attempt {
    place: String,
    fingerprint: String,
}

/// What is to be done for a request with a key.
pub(crate) enum Claim {
    /// The call is to be made.
    New(Reserved),
    /// It was made.
    Answered(KeptAnswer),
}

/// Why a request with a key makes no call.
pub(crate) enum Refused {
    /// The caller used the key for another call.
    Conflict,
    /// The server ended before the call was answered.
    Interrupted,
    /// The answer was too large to be kept.
    TooLarge,
    /// Too many keys are kept.
    Full,
    /// The state cannot be used.
    State(StateError),
    /// This server ends.
    Ending,
}

/// What becomes of a key when its call has ended.
pub(crate) enum Ended<'a> {
    /// The answer is repeated.
    Answered(&'a KeptAnswer),
    /// Nothing of the call has run: the key is free again.
    NeverRan,
    /// It is unknown whether the call was made.
    Unknown,
}

/// A key whose call is to be made. If it is dropped without [`end`](Self::end), the call is taken for interrupted.
pub(crate) struct Reserved {
    answers: Arc<Answers>,
    attempt: Attempt,
    noted_at: u64,
    /// The revision of the note, as this process wrote it last.
    noted: Arc<AsyncMutex<Option<Revision>>>,
    /// Cancelled when the note is not renewed any more.
    answered: CancellationToken,
    ended: CancellationToken,
}

/// What stands before the body of a kept answer.
#[derive(Serialize, Deserialize)]
struct Head {
    fingerprint: String,
    /// When the key was used first, in milliseconds since 1970.
    at: u64,
    /// 0 until the call is answered.
    status: u16,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    retry_after: Option<u64>,
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    is_cut: bool,
    /// The process that makes the call.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    life: Option<String>,
}

impl Attempt {
    pub(crate) fn new(caller: Option<&Principal>, key: &str, id: &str, input: &JsonText) -> Self {
        let owner = caller.map(|caller| &**caller.id()).unwrap_or_default();
        let place = format!("{ANSWERS}{}/{}", hash(owner.as_bytes()), hash(key.as_bytes()));
        // Ids and MCP names are the same call, also while the capability is not there.
        let mut form = format!("{}\n", mcp_name(id));
        push_form(&mut form, input.as_str(), 0);
        Self { place, fingerprint: hash(form.as_bytes()) }
    }
}

impl Answers {
    pub(crate) fn new(store: Arc<dyn StateStore>) -> Arc<Self> {
        Arc::new(Self {
            life: store.changed_keys().map(|_| life()),
            store,
            tracker: TaskTracker::new(),
            running: Mutex::default(),
            usage: OnceCell::new(),
        })
    }

    /// Claims a key, and waits while another request with it runs.
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
            // The kept note says whether it is the same call.
            if let Some(record) = self.store.get(&attempt.place).await?
                && let Some((head, _)) = parse(&record.value)
                && head.fingerprint != attempt.fingerprint
            {
                return Err(Refused::Conflict);
            }
            other.cancelled().await;
        };
        let noted = Arc::default();
        let (answers, answered) = (Arc::clone(self), ended.child_token());
        let mut reserved = Reserved { answers, attempt, noted_at: now(), noted, answered, ended };
        // The note of another server, and when it was first seen so.
        let mut seen: Option<(Revision, Instant)> = None;
        loop {
            let now = now();
            let record = self.store.get(&reserved.attempt.place).await?;
            if let Some(record) = &record
                && let Some((head, body)) = parse(&record.value)
                && now.saturating_sub(head.at) < KEPT_MS
            {
                reserved.noted_at = head.at;
                let is_elsewhere = self.life.is_some() && head.life.is_some() && head.life != self.life;
                return match StatusCode::from_u16(head.status) {
                    _ if head.fingerprint != reserved.attempt.fingerprint => Err(Refused::Conflict),
                    _ if head.is_cut => Err(Refused::TooLarge),
                    Ok(status) => {
                        let retry_after = head.retry_after;
                        Ok(Claim::Answered(KeptAnswer { status, retry_after, body }))
                    }
                    Err(_) if is_elsewhere => {
                        if self.is_left(record, &mut seen).await? {
                            return Err(Refused::Interrupted);
                        }
                        tokio::time::sleep(LOOK).await;
                        continue;
                    }
                    Err(_) => Err(Refused::Interrupted),
                };
            }
            reserved.noted_at = now;
            if self.note(&reserved, record).await? {
                self.renew(&reserved);
                return Ok(Claim::New(reserved));
            }
        }
    }

    /// Whether the server that noted a call is gone: its note has not changed for a lease. `seen` is the revision of the note
    /// as it was looked at before, and when that was first so.
    async fn is_left(
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
        // What it has said may not have come here yet.
        self.store.sync().await?;
        let newest = self.store.get(&note.key).await?;
        Ok(newest.is_some_and(|newest| newest.revision == revision))
    }

    /// Changes the note of a call now and then while it runs, if several servers share the state.
    fn renew(self: &Arc<Self>, reserved: &Reserved) {
        if self.life.is_none() {
            return;
        }
        let (answers, noted, answered) =
            (Arc::clone(self), Arc::clone(&reserved.noted), reserved.answered.clone());
        let place = reserved.attempt.place.clone();
        let value = record(&reserved.head(), &[]);
        self.tracker.spawn(async move {
            loop {
                tokio::select! {
                    () = answered.cancelled() => return,
                    () = tokio::time::sleep(RENEW) => {}
                }
                let mut noted = noted.lock().await;
                let Some(revision) = *noted else { return };
                let put = Change::put(&*place, value.clone()).expecting(Expect::Revision(revision));
                // The answer does not wait for a write that hangs. Made later, that finds another revision.
                let written = tokio::select! {
                    written = answers.store.write(vec![put]) => written,
                    () = answered.cancelled() => return,
                };
                match written {
                    Ok(revisions) => *noted = revisions.first().copied(),
                    // An earlier renewal was made whose answer was lost; or the note is not of this call any more.
                    Err(WriteError::Conflict { .. }) => match answers.store.get(&place).await {
                        Ok(Some(record)) if record.value == value => *noted = Some(record.revision),
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
        self.usage.get_or_try_init(|| async { self.counted().await.map(Mutex::new) }).await
    }

    async fn counted(&self) -> Result<Usage, StateError> {
        let mut usage = Usage { counted: Some(Instant::now()), ..Usage::default() };
        for record in self.store.list(Query::below(TIMES, MAX_KEYS)).await? {
            if let Some(row) = TimeRow::parse(&record) {
                usage.add(owner(row.place), Amount { keys: 1, bytes: row.bytes });
            }
        }
        Ok(usage)
    }

    /// Whether a caller may keep more. What other servers have removed is not known before it is counted anew.
    async fn has_room(&self, owner: &str, more: Amount) -> Result<bool, StateError> {
        let usage = self.usage().await?;
        let is_old = {
            let usage = usage.lock();
            if usage.has_room(owner, more) {
                return Ok(true);
            }
            usage.counted.is_none_or(|counted| counted.elapsed() >= RECOUNT)
        };
        if self.life.is_none() || !is_old {
            return Ok(false);
        }
        let anew = self.counted().await?;
        let mut usage = usage.lock();
        *usage = anew;
        Ok(usage.has_room(owner, more))
    }

    /// Notes that the call is about to be made, and removes expired keys. `false` if another server has noted it meanwhile.
    async fn note(&self, reserved: &Reserved, mut old: Option<Record>) -> Result<bool, Refused> {
        let own = &*reserved.attempt.place;
        let usage = self.usage().await?;
        for _ in 0..ATTEMPTS {
            let mut changes = Vec::new();
            let mut removed = Vec::new();
            // The record of the key's earlier use.
            if let Some((head, body)) = old.as_ref().and_then(|old| parse(&old.value)) {
                changes.push(Change::remove(TimeRow::key(head.at, own)));
                removed.push((owner(own).to_owned(), body.len()));
            }
            let oldest = self.store.list(Query::below(TIMES, REMOVED_AT_ONCE)).await?;
            for (record, row) in
                oldest.iter().filter_map(|record| Some((record, TimeRow::parse(record)?)))
            {
                if reserved.noted_at.saturating_sub(row.at) >= KEPT_MS && row.place != own {
                    // If the key is used again at this moment, or another request removes it, this is another revision.
                    let expected = Expect::Revision(record.revision);
                    changes.push(Change::remove(&*record.key).expecting(expected));
                    changes.push(Change::remove(row.place));
                    removed.push((owner(row.place).to_owned(), row.bytes));
                }
            }
            let before = old.as_ref().map(|old| old.revision);
            let expect = before.map_or(Expect::Absent, Expect::Revision);
            let noted = changes.len();
            changes.push(Change::put(own, record(&reserved.head(), &[])).expecting(expect));
            changes.push(reserved.time_row(0));
            let more = Amount { keys: 1, bytes: 0 };
            if removed.is_empty() && !self.has_room(owner(own), more).await? {
                return Err(Refused::Full);
            }
            match self.store.write(changes).await {
                Ok(revisions) => {
                    *reserved.noted.lock().await = revisions.get(noted).copied();
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

impl Usage {
    fn has_room(&self, owner: &str, more: Amount) -> bool {
        let own = self.of_caller.get(owner).copied().unwrap_or_default();
        let fits = |amount: Amount, part: usize| {
            amount.keys + more.keys <= MAX_KEYS / part && amount.bytes + more.bytes <= MAX_BYTES / part
        };
        fits(self.all, 1) && fits(own, SHARE)
    }

    fn add(&mut self, owner: &str, more: Amount) {
        let own = self.of_caller.entry(owner.into()).or_default();
        for amount in [own, &mut self.all] {
            amount.keys += more.keys;
            amount.bytes += more.bytes;
        }
    }

    fn remove(&mut self, owner: &str, less: Amount) {
        let Some(own) = self.of_caller.get_mut(owner) else { return };
        for amount in [own, &mut self.all] {
            amount.keys = amount.keys.saturating_sub(less.keys);
            amount.bytes = amount.bytes.saturating_sub(less.bytes);
        }
        self.of_caller.retain(|_, amount| amount.keys > 0);
    }
}

impl<'a> TimeRow<'a> {
    fn key(at: u64, place: &str) -> String {
        format!("{TIMES}{at:016}/{}", place.strip_prefix(ANSWERS).unwrap_or_default())
    }

    fn parse(record: &'a Record) -> Option<Self> {
        let at = record.key.strip_prefix(TIMES)?.split('/').next()?.parse().ok()?;
        let (place, bytes) = std::str::from_utf8(&record.value).ok()?.split_once(' ')?;
        Some(Self { at, place, bytes: bytes.parse().ok()? })
    }
}

/// The caller to whom a key belongs, by its place.
fn owner(place: &str) -> &str {
    place.strip_prefix(ANSWERS).and_then(|rest| rest.split('/').next()).unwrap_or_default()
}

impl From<StateError> for Refused {
    fn from(error: StateError) -> Self {
        Self::State(error)
    }
}

impl Reserved {
    /// Notes how the call ended. It is logged if that fails: the key then stays taken, and the call is not repeated.
    pub(crate) async fn end(self, ended: Ended<'_>) {
        if let Err(error) = self.note_end(ended).await {
            tracing::error!(%error, "the answer to a request with an idempotency key was not kept");
        }
    }

    /// The note of the call.
    fn head(&self) -> Head {
        Head {
            fingerprint: self.attempt.fingerprint.clone(),
            at: self.noted_at,
            status: 0,
            retry_after: None,
            is_cut: false,
            life: self.answers.life.clone(),
        }
    }

    async fn note_end(&self, ended: Ended<'_>) -> Result<(), WriteError> {
        let place = &*self.attempt.place;
        // It is not renewed any more.
        self.answered.cancel();
        *self.noted.lock().await = None;
        let answer = match ended {
            Ended::Unknown => return Ok(()),
            Ended::NeverRan => {
                let changes =
                    vec![Change::remove(place), Change::remove(TimeRow::key(self.noted_at, place))];
                self.answers.store.write(changes).await?;
                let usage = self.answers.usage().await.map_err(WriteError::Failed)?;
                usage.lock().remove(owner(place), Amount { keys: 1, bytes: 0 });
                return Ok(());
            }
            Ended::Answered(answer) => answer,
        };
        let usage = self.answers.usage().await.map_err(WriteError::Failed)?;
        let size = Amount { keys: 0, bytes: answer.body.len() };
        let has_room = self.answers.has_room(owner(place), size).await.map_err(WriteError::Failed)?;
        let is_kept = {
            let mut usage = usage.lock();
            // Another request may have taken it.
            let is_kept = size.bytes <= MAX_ANSWER && has_room && usage.has_room(owner(place), size);
            if is_kept {
                usage.add(owner(place), size);
            }
            is_kept
        };
        let head = Head {
            fingerprint: self.attempt.fingerprint.clone(),
            at: self.noted_at,
            status: answer.status.as_u16(),
            retry_after: answer.retry_after,
            is_cut: !is_kept,
            life: None,
        };
        let body: &[u8] = if is_kept { &answer.body } else { &[] };
        let changes = vec![Change::put(place, record(&head, body)), self.time_row(body.len())];
        let written = self.answers.store.write(changes).await;
        if written.is_err() && is_kept {
            usage.lock().remove(owner(place), size);
        }
        written.map(drop)
    }

    fn time_row(&self, bytes: usize) -> Change {
        let place = &self.attempt.place;
        Change::put(TimeRow::key(self.noted_at, place), format!("{place} {bytes}"))
    }
}

impl Drop for Reserved {
    fn drop(&mut self) {
        self.answers.running.lock().remove(&self.attempt.place);
        self.ended.cancel();
    }
}

impl Refused {
    /// The status of the answer, its kind, and what to do, for the caller.
    pub(crate) fn described(&self) -> (StatusCode, &'static str, &'static str) {
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
            Self::TooLarge => (
                StatusCode::CONFLICT,
                "conflict",
                "the call with this Idempotency-Key was made, and its answer was too large to be kept",
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

fn record(head: &Head, body: &[u8]) -> Vec<u8> {
    let head = serde_json::to_vec(head).unwrap_or_default();
    [&head[..], b"\n", body].concat()
}

fn parse(record: &Bytes) -> Option<(Head, Bytes)> {
    let end = record.iter().position(|byte| *byte == b'\n')?;
    Some((serde_json::from_slice(&record[..end]).ok()?, record.slice(end + 1..)))
}

/// What tells this process from others.
fn life() -> String {
    let mut bytes = [0; 16];
    // Without randomness, the notes of others are taken for those of this process: their calls are not waited for.
    let _ = getrandom::fill(&mut bytes);
    hex::encode(bytes)
}

fn now() -> u64 {
    let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    u64::try_from(since.as_millis()).unwrap_or(u64::MAX)
}

/// The first 128 bits of a text's hash.
fn hash(text: &[u8]) -> String {
    hex::encode(&Sha256::digest(text)[..16])
}

/// Writes JSON in one form for each value: without spaces, with sorted members, numbers as they were written. What is
/// nested deeper than usual is written as it is, since each level is read again.
fn push_form(out: &mut String, json: &str, depth: usize) {
    use serde_json::value::RawValue;
    const MAX_DEPTH: usize = 16;
    let json = json.trim();
    if depth < MAX_DEPTH
        && json.starts_with('{')
        && let Ok(members) = serde_json::from_str::<std::collections::BTreeMap<String, &RawValue>>(json)
    {
        out.push('{');
        for (key, value) in members {
            out.push_str(&serde_json::to_string(&key).unwrap_or_default());
            out.push(':');
            push_form(out, value.get(), depth + 1);
            out.push(',');
        }
        out.push('}');
    } else if depth < MAX_DEPTH
        && json.starts_with('[')
        && let Ok(items) = serde_json::from_str::<Vec<&RawValue>>(json)
    {
        out.push('[');
        for item in items {
            push_form(out, item.get(), depth + 1);
            out.push(',');
        }
        out.push(']');
    } else if let Ok(text) = serde_json::from_str::<String>(json) {
        out.push_str(&serde_json::to_string(&text).unwrap_or_default());
    } else {
        out.push_str(json);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use orla_state::{Limits, Memory};

    fn attempt(key: &str, input: &str) -> Attempt {
        Attempt::new(None, key, "t", &JsonText::parse(input.to_owned()).unwrap())
    }

    fn answers() -> Arc<Answers> {
        Answers::new(Arc::new(Memory::new(Limits::default())))
    }

    fn answer(status: u16) -> KeptAnswer {
        let status = StatusCode::from_u16(status).unwrap();
        KeptAnswer { status, retry_after: None, body: "7".into() }
    }

    async fn new_of(answers: &Arc<Answers>, key: &str) -> Reserved {
        match answers.claim(attempt(key, "{}")).await {
            Ok(Claim::New(reserved)) => reserved,
            _ => panic!("the key is taken"),
        }
    }

    async fn new(answers: &Arc<Answers>, input: &str) -> Reserved {
        match answers.claim(attempt("k", input)).await {
            Ok(Claim::New(reserved)) => reserved,
            _ => panic!("the key is taken"),
        }
    }

    #[test]
    fn inputs_are_the_same_in_any_order_and_not_with_another_number() {
        let one = attempt("k", r#"{"a": 1.10, "b": ["\u0041", {"y": 1, "x": 2}]}"#);
        let other = attempt("k", r#"{ "b":["A",{"x":2,"y":1}], "a":1.10}"#);
        assert_eq!(one.fingerprint, other.fingerprint);
        for different in [r#"{"a": 18446744073709551617}"#, r#"{"a": 18446744073709551618}"#, "{}"] {
            assert_ne!(attempt("k", different).fingerprint, one.fingerprint);
        }
        assert_ne!(
            attempt("k", r#"{"a": 18446744073709551617}"#).fingerprint,
            attempt("k", r#"{"a": 18446744073709551618}"#).fingerprint
        );
    }

    #[tokio::test]
    async fn the_first_answer_is_repeated_also_that_of_a_failure() {
        let answers = answers();
        new(&answers, "{}").await.end(Ended::Answered(&answer(502))).await;
        match answers.claim(attempt("k", "{}")).await {
            Ok(Claim::Answered(kept)) => {
                assert_eq!((kept.status.as_u16(), &kept.body[..]), (502, &b"7"[..]));
            }
            _ => panic!("the answer is not repeated"),
        }
        assert!(matches!(answers.claim(attempt("k", r#"{"a":1}"#)).await, Err(Refused::Conflict)));
        assert!(matches!(answers.claim(attempt("other", r#"{"a":1}"#)).await, Ok(Claim::New(_))));
    }

    /// A state that other servers use, too.
    struct Common(Arc<Memory>, tokio::sync::broadcast::Sender<Arc<str>>);

    #[async_trait::async_trait]
    impl StateStore for Common {
        async fn write(&self, changes: Vec<Change>) -> Result<Vec<Revision>, WriteError> {
            self.0.write(changes).await
        }

        async fn get(&self, key: &str) -> Result<Option<Record>, StateError> {
            self.0.get(key).await
        }

        async fn list(&self, query: Query) -> Result<Vec<Record>, StateError> {
            self.0.list(query).await
        }

        fn changed_keys(&self) -> Option<tokio::sync::broadcast::Receiver<Arc<str>>> {
            Some(self.1.subscribe())
        }
    }

    #[tokio::test(start_paused = true)]
    async fn what_other_servers_have_removed_is_not_counted_for_ever() {
        let common = Common(Arc::default(), tokio::sync::broadcast::Sender::new(1));
        let answers = Answers::new(Arc::new(common));
        let more = Amount { keys: 1, bytes: 0 };
        // Keys of which others have removed the records since.
        answers.usage().await.unwrap().lock().add("a", Amount { keys: MAX_KEYS, bytes: 0 });
        assert!(!answers.has_room("a", more).await.unwrap());
        tokio::time::sleep(RECOUNT).await;
        assert!(answers.has_room("a", more).await.unwrap());
    }

    #[tokio::test(start_paused = true)]
    async fn servers_of_one_state_make_the_call_of_a_key_once() {
        let state = Arc::new(Memory::new(Limits::default()));
        let server = || {
            let common = Common(Arc::clone(&state), tokio::sync::broadcast::Sender::new(1));
            Answers::new(Arc::new(common))
        };
        let (one, other) = (server(), server());
        let running = new(&one, "{}").await;
        // As if the answer to a renewal was lost.
        let note = state.get(&running.attempt.place).await.unwrap().unwrap();
        state.write(vec![Change::put(note.key, note.value)]).await.unwrap();
        let waiting = {
            let other = Arc::clone(&other);
            TaskTracker::new().spawn(async move { other.claim(attempt("k", "{}")).await })
        };
        // The call takes longer than a lease.
        tokio::time::sleep(3 * LEASE).await;
        assert!(!waiting.is_finished());
        assert!(matches!(other.claim(attempt("k", r#"{"a":1}"#)).await, Err(Refused::Conflict)));
        running.end(Ended::Answered(&answer(200))).await;
        assert!(matches!(waiting.await.unwrap(), Ok(Claim::Answered(_))));

        // Of two that begin at once, one makes the call.
        let [first, second] = [&one, &other].map(|server| {
            let server = Arc::clone(server);
            TaskTracker::new().spawn(async move {
                match server.claim(attempt("at once", "{}")).await {
                    Ok(Claim::New(reserved)) => {
                        reserved.end(Ended::Answered(&answer(200))).await;
                        1
                    }
                    Ok(Claim::Answered(_)) => 0,
                    Err(_) => panic!("it is refused"),
                }
            })
        });
        assert_eq!(first.await.unwrap() + second.await.unwrap(), 1);

        // One that is gone leaves it unknown whether the call was made.
        let lost = new_of(&one, "lost").await;
        drop(lost);
        let begun = Instant::now();
        assert!(matches!(other.claim(attempt("lost", "{}")).await, Err(Refused::Interrupted)));
        assert!(begun.elapsed() >= LEASE);
    }

    #[tokio::test]
    async fn a_key_is_free_again_if_nothing_has_run() {
        let answers = answers();
        new(&answers, "{}").await.end(Ended::NeverRan).await;
        new(&answers, r#"{"a":1}"#).await.end(Ended::Answered(&answer(200))).await;
    }

    #[tokio::test]
    async fn what_was_never_answered_is_not_repeated() {
        let answers = answers();
        drop(new(&answers, "{}").await);
        assert!(matches!(answers.claim(attempt("k", "{}")).await, Err(Refused::Interrupted)));
    }

    /// What is in the store for keys that were used `ago` milliseconds ago.
    async fn used(answers: &Arc<Answers>, keys: std::ops::Range<usize>, ago: u64) {
        for key in keys {
            let attempt = attempt(&format!("old{key}"), "{}");
            let noted_at = now() - ago;
            let ended = CancellationToken::new();
            let reserved = Reserved {
                answers: Arc::clone(answers),
                attempt,
                noted_at,
                noted: Arc::default(),
                answered: ended.child_token(),
                ended,
            };
            answers.note(&reserved, None).await.ok().unwrap();
            reserved.end(Ended::Answered(&answer(200))).await;
        }
    }

    #[tokio::test]
    async fn a_key_that_is_used_again_after_its_day_keeps_its_new_answer() {
        let answers = answers();
        used(&answers, 0..100, KEPT_MS + 1).await;
        match answers.claim(attempt("old99", "{}")).await {
            Ok(Claim::New(reserved)) => reserved.end(Ended::Answered(&answer(201))).await,
            _ => panic!("the key has not expired"),
        }
        for key in 0..10 {
            new_of(&answers, &format!("new{key}")).await.end(Ended::NeverRan).await;
        }
        match answers.claim(attempt("old99", "{}")).await {
            Ok(Claim::Answered(kept)) => assert_eq!(kept.status.as_u16(), 201),
            _ => panic!("the new answer is gone"),
        }
        let amount = answers.usage().await.unwrap().lock().all;
        assert_eq!((amount.keys, amount.bytes), (1, 1), "what has expired is gone");
        assert_eq!(answers.store.list(Query::below("rest/", 1000)).await.unwrap().len(), 2);
    }

    #[tokio::test]
    async fn requests_that_remove_the_same_expired_keys_count_them_once() {
        let answers = answers();
        used(&answers, 0..40, KEPT_MS + 1).await;
        let claims = (0..8).map(|key| {
            let answers = &answers;
            async move { new_of(answers, &format!("new{key}")).await.end(Ended::NeverRan).await }
        });
        futures_util::future::join_all(claims).await;
        let amount = answers.usage().await.unwrap().lock().all;
        assert_eq!((amount.keys, amount.bytes), (0, 0));
    }

    #[tokio::test]
    async fn a_caller_has_a_share_of_what_is_kept() {
        let answers = answers();
        let large = KeptAnswer { body: vec![b'7'; MAX_ANSWER].into(), ..answer(200) };
        for key in 0..=MAX_BYTES / SHARE / MAX_ANSWER {
            new_of(&answers, &key.to_string()).await.end(Ended::Answered(&large)).await;
        }
        let last = (MAX_BYTES / SHARE / MAX_ANSWER).to_string();
        assert!(matches!(answers.claim(attempt(&last, "{}")).await, Err(Refused::TooLarge)));
        assert!(matches!(answers.claim(attempt("0", "{}")).await, Ok(Claim::Answered(_))));
    }

    #[tokio::test]
    async fn a_second_request_waits_for_the_first() {
        let answers = answers();
        let first = new(&answers, "{}").await;
        let done = answer(200);
        let ((), second) =
            tokio::join!(first.end(Ended::Answered(&done)), answers.claim(attempt("k", "{}")));
        assert!(matches!(second, Ok(Claim::Answered(_))));
    }
}
