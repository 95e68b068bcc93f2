//! Writing batches of changes.

use std::collections::HashSet;
use std::sync::Arc;
use std::time::Duration;

use async_nats::{HeaderMap, Request};
use bytes::Bytes;
use orla_marketplace::jitter;
use orla_state::{Change, Revision, StateError, WriteError};
use serde::Deserialize;
use tokio::time::sleep;

use super::plan::{self, Conditions};
use super::replica::{Applied, Parts, Value};
use super::{ANSWER_TIMEOUT, Inner, unreachable, values};
use crate::link::random;

/// The header of a record whose value has separate messages.
pub(super) const PARTS: &str = "orla-parts";
/// The header of a removal.
pub(super) const REMOVED: &str = "orla-removed";
/// The number of attempts for a batch that the server refused because of an outdated condition.
const TRIES: usize = 20;
/// How long the end of a record stays in the stream, in NATS's notation. A node that was away for longer reads everything
/// anew.
const REMOVAL_STAYS: &str = "1h";

/// How JetStream answers.
#[derive(Deserialize)]
struct Answer {
    #[serde(default)]
    seq: u64,
    #[serde(default)]
    error: Option<Refused>,
}

/// A refusal of a message by JetStream.
#[derive(Debug, Deserialize)]
pub(super) struct Refused {
    #[serde(default)]
    err_code: u64,
    #[serde(default)]
    pub(super) description: String,
}

/// Returns the number of the message that JetStream has taken.
///
/// # Errors
///
/// Returns an error if it has not.
pub(super) fn acknowledged(answer: &[u8]) -> Result<u64, Refused> {
    let answer: Answer = serde_json::from_slice(answer)
        .map_err(|err| Refused { err_code: 0, description: err.to_string() })?;
    answer.error.map_or(Ok(answer.seq), Err)
}

/// The outcome of publishing a batch.
enum Published {
    /// It is written, and its last message has this number.
    Written(u64),
    /// A subject has another last message than was expected.
    Unexpected,
    /// The server dropped the batch. Nothing is written.
    Dropped,
}

/// A value as it is sent.
enum Sent {
    Removed,
    Value(Bytes),
    Parts(Parts),
}

pub(super) async fn write(
    inner: &Arc<Inner>,
    changes: Vec<Change>,
) -> Result<Vec<Revision>, WriteError> {
    if changes.is_empty() {
        return Ok(Vec::new());
    }
    // Most conflicts are seen here, before anything is sent.
    decide(inner, &changes).map_err(|key| WriteError::Conflict { key })?;
    let mut sent = Vec::with_capacity(changes.len());
    let max = inner.link.chunk();
    for change in &changes {
        sent.push(match &change.value {
            None => Sent::Removed,
            Some(value) if value.len() <= max => Sent::Value(value.clone()),
            Some(value) => Sent::Parts(values::write(inner, value).await?),
        });
    }
    let written = decided(inner, &changes, &sent).await;
    if matches!(written, Err(WriteError::Conflict { .. })) {
        // After a failure it is unknown whether a record names them.
        for unused in sent {
            if let Sent::Parts(parts) = unused {
                values::remove(inner, parts);
            }
        }
    }
    written
}

fn decide(inner: &Inner, changes: &[Change]) -> Result<Conditions, String> {
    let replica = inner.replica.lock();
    plan::conditions(changes, |key| replica.last(key).unwrap_or_default())
}

/// Publishes a batch until the server has taken it, or a condition does not hold.
async fn decided(
    inner: &Arc<Inner>,
    changes: &[Change],
    sent: &[Sent],
) -> Result<Vec<Revision>, WriteError> {
    let mut wait = Duration::from_millis(2);
    for _ in 0..TRIES {
        let conditions = decide(inner, changes).map_err(|key| WriteError::Conflict { key })?;
        match publish(inner, changes, sent, &conditions).await? {
            Published::Written(last) => return Ok(applied(inner, changes, sent, last)),
            Published::Dropped => {
                sleep(wait.mul_f64(0.5 + jitter())).await;
                wait = (wait * 2).min(Duration::from_secs(1));
            }
            Published::Unexpected => {
                inner.catch_up().await?;
                // The end of a record that has expired since is none any more.
                if decide(inner, changes).is_ok_and(|now| now == conditions) {
                    forget_expired(inner, changes).await?;
                }
            }
        }
    }
    Err(unreachable("records change faster than they can be written").into())
}

/// Applies the written changes to the copy, and returns their revisions.
fn applied(inner: &Arc<Inner>, changes: &[Change], sent: &[Sent], last: u64) -> Vec<Revision> {
    let first = last + 1 - changes.len() as u64;
    let revisions: Vec<Revision> = (first..=last).collect();
    let all = changes.iter().zip(sent).zip(&revisions).map(|((change, sent), revision)| Applied {
        key: change.key.clone(),
        revision: *revision,
        value: match sent {
            Sent::Removed => None,
            Sent::Value(value) => Some(Value::Here(value.clone())),
            Sent::Parts(parts) => Some(Value::Parts(parts.clone())),
        },
    });
    inner.apply(all.collect());
    revisions
}

async fn publish(
    inner: &Inner,
    changes: &[Change],
    sent: &[Sent],
    conditions: &Conditions,
) -> Result<Published, StateError> {
    let is_batch = changes.len() > 1;
    // The semaphore is never closed.
    let _place = if is_batch { inner.batches.acquire().await.ok() } else { None };
    let client = inner.client()?;
    let id = random::<16>().map_err(StateError::new)?;
    let failed = |err: &dyn std::fmt::Display| unreachable(&err.to_string());
    for (at, ((change, sent), condition)) in changes.iter().zip(sent).zip(conditions).enumerate() {
        let mut headers = HeaderMap::new();
        if let Some(condition) = condition {
            headers.insert("Nats-Expected-Last-Subject-Sequence", condition.to_string());
        }
        let payload = match sent {
            Sent::Removed => {
                headers.insert(REMOVED, "1");
                headers.insert("Nats-TTL", REMOVAL_STAYS);
                Bytes::new()
            }
            Sent::Value(value) => value.clone(),
            Sent::Parts(parts) => {
                headers.insert(PARTS, parts.write());
                Bytes::new()
            }
        };
        if is_batch {
            headers.insert("Nats-Batch-Id", &*id);
            headers.insert("Nats-Batch-Sequence", (at + 1).to_string());
        }
        let subject = inner.subject(&change.key);
        if at + 1 < changes.len() {
            let published = client.publish_with_headers(subject, headers, payload).await;
            published.map_err(|err| failed(&err))?;
            continue;
        }
        if is_batch {
            headers.insert("Nats-Batch-Commit", "1");
        }
        let request = Request::new().headers(headers).payload(payload).timeout(Some(ANSWER_TIMEOUT));
        let answer = client.send_request(subject, request).await.map_err(|err| failed(&err))?;
        return match acknowledged(&answer.payload) {
            Ok(last) if last >= changes.len() as u64 => Ok(Published::Written(last)),
            Ok(_) => Err(unreachable("the answer has no number of the last message")),
            Err(refused) => match refused.err_code {
                // The last sequence is another one; in its constant form within a cluster of servers.
                10_071 | 10_164 => Ok(Published::Unexpected),
                // The batch is incomplete, or there are too many at once.
                10_176 | 10_210 | 10_211 => Ok(Published::Dropped),
                _ => Err(unreachable(&refused.description)),
            },
        };
    }
    Err(unreachable("there is nothing to write"))
}

/// Forgets the removals that the server does not know any more.
async fn forget_expired(inner: &Inner, changes: &[Change]) -> Result<(), StateError> {
    use async_nats::jetstream::stream::LastRawMessageErrorKind::NoMessageFound;
    let keys: HashSet<&str> = changes.iter().map(|change| &*change.key).collect();
    let stream = inner.context()?.get_stream_no_info(inner.stream()).await;
    let stream = stream.map_err(|err| unreachable(&err.to_string()))?;
    for key in keys {
        let removed = inner.replica.lock().last(key).filter(|last| !last.is_record);
        let Some(removed) = removed else { continue };
        match stream.get_last_raw_message_by_subject(&inner.subject(key)).await {
            Err(err) if matches!(err.kind(), NoMessageFound) => {
                inner.replica.lock().forget(key, removed.sequence);
            }
            Err(err) => return Err(unreachable(&err.to_string())),
            Ok(_) => {}
        }
    }
    Ok(())
}
