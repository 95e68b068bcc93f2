//! The open streams of a run.

use std::collections::{HashMap, HashSet};
use std::sync::Arc;
use std::time::Duration;

use futures_util::future::join_all;
use futures_util::{Stream, StreamExt};
use parking_lot::Mutex;
use rtfs::{Error, Ticket, Value};
use tokio_util::sync::CancellationToken;

use super::host::{Host, failure};
use crate::call::stream::OpenStream;
use crate::journal::RunRequest;
use crate::payload::Payload;
use crate::trace::Trace;

/// The time limit for closing the streams of a run that has ended.
const CLOSE_TIMEOUT: Duration = Duration::from_secs(1);

/// The open streams of a run, by the tickets that opened them. Dropping this ends the remaining
/// streams.
#[derive(Default)]
pub(super) struct Streams {
    open: Mutex<HashMap<Ticket, NamedStream>>,
    /// Streams that an earlier process had open.
    lost: Mutex<HashSet<Ticket>>,
}

/// A stream, with the id that the program gave.
#[derive(Clone)]
struct NamedStream {
    id: Arc<str>,
    stream: Arc<OpenStream>,
}

impl Streams {
    fn get(&self, ticket: Ticket) -> Option<NamedStream> {
        self.open.lock().get(&ticket).cloned()
    }

    fn insert(&self, ticket: Ticket, named: NamedStream) {
        self.open.lock().insert(ticket, named);
    }

    fn remove(&self, ticket: Ticket) -> Option<NamedStream> {
        self.open.lock().remove(&ticket)
    }

    /// Marks streams that an earlier process had open. Further reads are an error.
    pub(super) fn mark_lost(&self, lost: HashSet<Ticket>) {
        *self.lost.lock() = lost;
    }

    fn check_not_lost(&self, ticket: Ticket) -> Result<(), Error> {
        let message = "this stream is no longer open: the server ended while it was read";
        let is_lost = self.lost.lock().contains(&ticket);
        if is_lost { Err(Error::new("unavailable", message)) } else { Ok(()) }
    }

    /// Closes one stream, if it is open.
    pub(super) async fn close(&self, ticket: Ticket) {
        if let Some(named) = self.remove(ticket) {
            named.stream.close().await;
        }
    }

    /// Declares that no more values will be sent, and closes the stream if no more items can arrive.
    pub(super) async fn finish(&self, ticket: Ticket) {
        if let Some(named) = self.get(ticket)
            && !named.stream.finish().await
        {
            self.remove(ticket);
        }
    }

    /// Closes all streams gracefully, within the time limit, in addition to those that are `closing`.
    pub(super) async fn close_all(&self, mut closing: impl Stream<Item = ()> + Unpin) {
        let all: Vec<_> = {
            let mut table = self.open.lock();
            table.drain().map(|(_, named)| named).collect()
        };
        let close_all = async {
            let others = async { while closing.next().await.is_some() {} };
            tokio::join!(others, join_all(all.iter().map(|named| named.stream.close())));
        };
        // A stream that is not closed by then ends when it is dropped.
        let _ = tokio::time::timeout(CLOSE_TIMEOUT, close_all).await;
    }

    /// Returns the next item in the form that the machine expects: `[item]`, or nil at the end.
    pub(super) async fn next(&self, ticket: Ticket) -> Result<Value, Error> {
        self.check_not_lost(ticket)?;
        let Some(NamedStream { id, stream }) = self.get(ticket) else { return Ok(Value::Nil) };
        let item = stream.next().await.transpose();
        let item = item.and_then(|item| item.map(|item| item.value().cloned()).transpose());
        match item {
            Ok(Some(item)) => Value::vector(vec![item])
                .map_err(|deep| Error::new("limit", format!("an item of {id} would be {deep}"))),
            Ok(None) => {
                self.remove(ticket);
                Ok(Value::Nil)
            }
            Err(error) => {
                self.remove(ticket);
                Err(failure(&id, &error))
            }
        }
    }

    pub(super) async fn send(&self, ticket: Ticket, value: Value) -> Result<Value, Error> {
        self.check_not_lost(ticket)?;
        let Some(NamedStream { id, stream }) = self.get(ticket) else {
            return Err(Error::new("unavailable", "the stream is closed"));
        };
        let sent = stream.send(Payload::from_value(value)).await;
        sent.map(|()| Value::Nil).map_err(|error| failure(&id, &error))
    }
}

impl Host<'_> {
    /// Opens a stream. Its items are requested by `ticket`.
    pub(super) async fn open(
        self,
        ticket: Ticket,
        id: String,
        input: Value,
        at: Option<rtfs::Position>,
        journaled: Option<RunRequest>,
        token: CancellationToken,
    ) -> Result<Value, Error> {
        let began = tokio::time::Instant::now();
        let traced = self.trace.is_wanted().then(|| input.clone());
        let mut call = self.within(&id).with(Payload::from_value(input));
        call.scope.cancellation = token.clone();
        call.scope.checkpoint = self.checkpoint(journaled, &token);
        let opened = self.market.open(call).await.map_err(|error| failure(&id, &error));
        if let Some(input) = traced {
            let result = opened.as_ref().map(|_| Value::Nil).map_err(Error::clone);
            let (id, duration) = (id.clone(), began.elapsed());
            self.trace.send(Trace::Called { id, input, result, duration, at });
        }
        let stream = opened?;
        // The program has dropped the stream, so it is not in the table.
        if !token.is_cancelled() {
            self.streams.insert(ticket, NamedStream { id: id.into(), stream });
        }
        Ok(Value::Nil)
    }
}
