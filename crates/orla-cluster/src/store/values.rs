//! Values that fit into no message: messages of their own, which are written before the record that names them.

use std::sync::Arc;

use async_nats::Request;
use bytes::{Bytes, BytesMut};
use orla_state::StateError;

use super::replica::Parts;
use super::{ANSWER_TIMEOUT, Inner, unreachable};
use crate::link::random;

/// Returns the name of the stream.
pub(super) fn stream(inner: &Inner) -> String {
    format!("orla-{}-values", inner.link.settings.name)
}

/// Returns the subject prefix of all parts.
pub(super) fn prefix(inner: &Inner) -> String {
    format!("orla.{}.values.", inner.link.settings.name)
}

fn subject(inner: &Inner, id: &str, at: usize) -> String {
    format!("{}{id}.{at}", prefix(inner))
}

/// Writes a value.
///
/// # Errors
///
/// Returns an error if NATS does not accept the value.
pub(super) async fn write(inner: &Inner, value: &Bytes) -> Result<Parts, StateError> {
    let (id, size) = (random::<16>().map_err(StateError::new)?, inner.link.chunk());
    let parts = Parts { count: value.len().div_ceil(size), bytes: value.len(), id };
    let client = inner.client()?;
    for at in 0..parts.count {
        let part = value.slice(at * size..value.len().min((at + 1) * size));
        let request = Request::new().payload(part).timeout(Some(ANSWER_TIMEOUT));
        let answer = client.send_request(subject(inner, &parts.id, at), request).await;
        let answer = answer.map_err(|err| unreachable(&err.to_string()))?;
        super::write::acknowledged(&answer.payload)
            .map_err(|refused| unreachable(&refused.description))?;
    }
    Ok(parts)
}

/// Reads a value. Returns `None` if it no longer exists.
///
/// # Errors
///
/// Returns an error if NATS cannot provide the value.
pub(super) async fn read(inner: &Inner, parts: &Parts) -> Result<Option<Bytes>, StateError> {
    use async_nats::jetstream::stream::LastRawMessageErrorKind::NoMessageFound;
    let stream = inner.context()?.get_stream_no_info(stream(inner)).await;
    let stream = stream.map_err(|err| unreachable(&err.to_string()))?;
    let mut value = BytesMut::with_capacity(parts.bytes);
    for at in 0..parts.count {
        let part = stream.get_last_raw_message_by_subject(&subject(inner, &parts.id, at)).await;
        match part {
            Ok(part) if value.len() + part.payload.len() <= parts.bytes => {
                value.extend_from_slice(&part.payload);
            }
            Ok(_) => return Err(unreachable("a value is longer than its record says")),
            Err(err) if matches!(err.kind(), NoMessageFound) => return Ok(None),
            Err(err) => return Err(unreachable(&err.to_string())),
        }
    }
    match value.len() == parts.bytes {
        true => Ok(Some(value.freeze())),
        false => Err(unreachable("a value is shorter than its record says")),
    }
}

/// Removes a value that no record refers to any more. If this fails, the messages remain.
pub(super) fn remove(inner: &Arc<Inner>, parts: Parts) {
    let inner = Arc::clone(inner);
    let tracker = inner.tracker.clone();
    tracker.spawn(async move {
        if let Err(error) = purge(&inner, &parts.id).await {
            tracing::debug!(%error, "an unused value stays");
        }
    });
}

async fn purge(inner: &Inner, id: &str) -> Result<(), StateError> {
    let stream = inner.context()?.get_stream_no_info(stream(inner)).await;
    let stream = stream.map_err(|err| unreachable(&err.to_string()))?;
    let purged = stream.purge().filter(format!("{}{id}.*", prefix(inner))).await;
    purged.map(drop).map_err(|err| unreachable(&err.to_string()))
}
