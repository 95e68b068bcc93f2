//! Idempotency keys: a call with a key is made at most once, and its answer is repeated for a day.
//!
//! # How it works
//!
//! A key belongs to its caller. Before the call, the key is noted in the state together with the fingerprint of the
//! capability and the input; after it, the answer replaces the note. A second request waits for the first one if that still
//! runs in this process. A note without an answer and without a call that runs is what a process left that was killed:
//! whether its call ran is unknown, and it is not made again.
//!
//! An answer is not kept if nothing of the call has run (the server was busy, a quota refused it): the key is free again.

use std::collections::HashMap;
use std::fmt::Write as _;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{SystemTime, UNIX_EPOCH};

use bytes::Bytes;
use http::StatusCode;
use orla_marketplace::{JsonText, Principal};
use orla_state::{Change, Expect, Query, Record, StateError, StateStore, WriteError};
use parking_lot::Mutex;
use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};
use tokio::sync::OnceCell;
use tokio_util::sync::CancellationToken;

/// The most bytes of a key.
pub(crate) const MAX_KEY: usize = 256;
/// How long an answer is repeated, in milliseconds.
const KEPT_MS: u64 = 24 * 60 * 60 * 1000;
/// The most keys of all callers.
const MAX_KEPT: usize = 100_000;
/// The most bytes of an answer that is kept.
const MAX_ANSWER: usize = 16 << 20;
/// How many expired keys a new one removes.
const REMOVED_AT_ONCE: usize = 32;

const ANSWERS: &str = "rest/answer/";
const TIMES: &str = "rest/time/";

/// The answers that are kept.
pub(crate) struct Answers {
    store: Arc<dyn StateStore>,
    /// The calls that run in this process, by their place in the store.
    running: Mutex<HashMap<String, CancellationToken>>,
    /// How many keys are kept, once they are counted.
    count: OnceCell<AtomicUsize>,
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
    /// The answer was larger than what is kept.
    TooLarge,
    /// Too many keys are kept.
    Full,
    /// The state cannot be used.
    State(StateError),
}

/// A key whose call is to be made. If it is dropped without [`keep`](Self::keep), the call is taken for interrupted.
pub(crate) struct Reserved {
    answers: Arc<Answers>,
    attempt: Attempt,
    noted_at: u64,
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
}

impl Attempt {
    pub(crate) fn new(caller: Option<&Principal>, key: &str, id: &str, input: &JsonText) -> Self {
        let owner = caller.map(|caller| &**caller.id()).unwrap_or_default();
        let place = format!("{ANSWERS}{}/{}", hash(owner.as_bytes()), hash(key.as_bytes()));
        let mut form = format!("{id}\n");
        push_form(&mut form, input.as_str(), 0);
        Self { place, fingerprint: hash(form.as_bytes()) }
    }
}

impl Answers {
    pub(crate) fn new(store: Arc<dyn StateStore>) -> Arc<Self> {
        Arc::new(Self { store, running: Mutex::default(), count: OnceCell::new() })
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
            if let Some(record) = self.store.get(&attempt.place).await.map_err(Refused::State)?
                && let Some((head, _)) = parse(&record.value)
                && head.fingerprint != attempt.fingerprint
            {
                return Err(Refused::Conflict);
            }
            other.cancelled().await;
        };
        let now = now();
        let mut reserved = Reserved { answers: Arc::clone(self), attempt, noted_at: now, ended };
        let record = self.store.get(&reserved.attempt.place).await.map_err(Refused::State)?;
        if let Some(record) = &record
            && let Some((head, body)) = parse(&record.value)
            && now.saturating_sub(head.at) < KEPT_MS
        {
            reserved.noted_at = head.at;
            return match StatusCode::from_u16(head.status) {
                _ if head.fingerprint != reserved.attempt.fingerprint => Err(Refused::Conflict),
                _ if head.is_cut => Err(Refused::TooLarge),
                Ok(status) => {
                    let retry_after = head.retry_after;
                    Ok(Claim::Answered(KeptAnswer { status, retry_after, body }))
                }
                Err(_) => Err(Refused::Interrupted),
            };
        }
        self.note(&reserved, record).await?;
        Ok(Claim::New(reserved))
    }

    async fn count(&self) -> Result<&AtomicUsize, StateError> {
        self.count
            .get_or_try_init(|| async {
                Ok(AtomicUsize::new(self.store.list(Query::below(TIMES, MAX_KEPT)).await?.len()))
            })
            .await
    }

    /// Notes that the call is about to be made, and removes expired keys.
    async fn note(&self, reserved: &Reserved, old: Option<Record>) -> Result<(), Refused> {
        let oldest = Query::below(TIMES, REMOVED_AT_ONCE);
        let oldest = self.store.list(oldest).await.map_err(Refused::State)?;
        let expired = |record: &&Record| {
            let at =
                record.key.strip_prefix(TIMES).and_then(|rest| rest.split('/').next()?.parse().ok());
            at.is_some_and(|at: u64| reserved.noted_at.saturating_sub(at) >= KEPT_MS)
        };
        let mut changes = Vec::new();
        let mut removed = 0;
        for record in oldest.iter().filter(expired) {
            removed += 1;
            let place = String::from_utf8_lossy(&record.value).into_owned();
            if place != reserved.attempt.place {
                changes.push(Change::remove(place));
            }
            changes.push(Change::remove(&*record.key));
        }
        let count = self.count().await.map_err(Refused::State)?;
        if count.load(Ordering::Relaxed).saturating_sub(removed) >= MAX_KEPT {
            return Err(Refused::Full);
        }
        let expect = old.map_or(Expect::Absent, |old| Expect::Revision(old.revision));
        let head = Head {
            fingerprint: reserved.attempt.fingerprint.clone(),
            at: reserved.noted_at,
            status: 0,
            retry_after: None,
            is_cut: false,
        };
        changes.push(Change::put(&*reserved.attempt.place, record(&head, &[])).expecting(expect));
        changes.push(Change::put(reserved.time(), reserved.attempt.place.clone()));
        match self.store.write(changes).await {
            Ok(_) => {
                count.fetch_sub(removed, Ordering::Relaxed);
                count.fetch_add(1, Ordering::Relaxed);
                Ok(())
            }
            Err(WriteError::Conflict { .. }) => Err(Refused::Conflict),
            Err(WriteError::Failed(error)) => Err(Refused::State(error)),
        }
    }
}

impl Reserved {
    /// Keeps the answer, or frees the key if there is none because nothing of the call has run. It is logged if that
    /// fails: the key then stays taken, and the call is not repeated.
    pub(crate) async fn keep(self, answer: Option<&KeptAnswer>) {
        let changes = match answer {
            None => {
                if let Ok(count) = self.answers.count().await {
                    count.fetch_sub(1, Ordering::Relaxed);
                }
                vec![Change::remove(&*self.attempt.place), Change::remove(self.time())]
            }
            Some(answer) => {
                let is_cut = answer.body.len() > MAX_ANSWER;
                let head = Head {
                    fingerprint: self.attempt.fingerprint.clone(),
                    at: self.noted_at,
                    status: answer.status.as_u16(),
                    retry_after: answer.retry_after,
                    is_cut,
                };
                let body: &[u8] = if is_cut { &[] } else { &answer.body };
                vec![Change::put(&*self.attempt.place, record(&head, body))]
            }
        };
        if let Err(error) = self.answers.store.write(changes).await {
            tracing::error!(%error, "the answer to a request with an idempotency key was not kept");
        }
    }

    fn time(&self) -> String {
        let place = self.attempt.place.strip_prefix(ANSWERS).unwrap_or_default();
        format!("{TIMES}{:016}/{place}", self.noted_at)
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
                "the call with this Idempotency-Key was made, and its answer was too large to be repeated",
            ),
            Self::Full => (
                StatusCode::TOO_MANY_REQUESTS,
                "busy",
                "too many idempotency keys are in use; try again later, or without a key",
            ),
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

fn now() -> u64 {
    let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    u64::try_from(since.as_millis()).unwrap_or(u64::MAX)
}

/// The first 128 bits of a text's hash.
fn hash(text: &[u8]) -> String {
    Sha256::digest(text)[..16].iter().fold(String::new(), |mut hex, byte| {
        let _ = write!(hex, "{byte:02x}");
        hex
    })
}

/// Writes JSON in one form for each value: without spaces, with sorted members, numbers as they were written. What is
/// nested deeper than any input may be is written as it is.
fn push_form(out: &mut String, json: &str, depth: usize) {
    use serde_json::value::RawValue;
    const MAX_DEPTH: usize = 128;
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
        new(&answers, "{}").await.keep(Some(&answer(502))).await;
        match answers.claim(attempt("k", "{}")).await {
            Ok(Claim::Answered(kept)) => {
                assert_eq!((kept.status.as_u16(), &kept.body[..]), (502, &b"7"[..]));
            }
            _ => panic!("the answer is not repeated"),
        }
        assert!(matches!(answers.claim(attempt("k", r#"{"a":1}"#)).await, Err(Refused::Conflict)));
        assert!(matches!(answers.claim(attempt("other", r#"{"a":1}"#)).await, Ok(Claim::New(_))));
    }

    #[tokio::test]
    async fn a_key_is_free_again_if_nothing_has_run() {
        let answers = answers();
        new(&answers, "{}").await.keep(None).await;
        new(&answers, r#"{"a":1}"#).await.keep(Some(&answer(200))).await;
    }

    #[tokio::test]
    async fn what_was_never_answered_is_not_repeated() {
        let answers = answers();
        drop(new(&answers, "{}").await);
        assert!(matches!(answers.claim(attempt("k", "{}")).await, Err(Refused::Interrupted)));
    }

    #[tokio::test]
    async fn a_second_request_waits_for_the_first() {
        let answers = answers();
        let first = new(&answers, "{}").await;
        let done = answer(200);
        let ((), second) = tokio::join!(first.keep(Some(&done)), answers.claim(attempt("k", "{}")));
        assert!(matches!(second, Ok(Claim::Answered(_))));
    }
}
