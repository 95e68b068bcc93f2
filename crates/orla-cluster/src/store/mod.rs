//! The store of a cluster: the records that all nodes share, behind the interface of `orla-state`.
//!
//! # How it works
//!
//! A stream of JetStream keeps the last message of each subject, and a key is a subject (`subject`). So a record is the
//! last message of its key, its revision is the number of that message, and a removal is a message too, which expires.
//! Changes are published as one atomic batch, with the condition of each change as the number that the last message of
//! its subject must have (`plan`, `write`). So the server decides, and a node that was stopped for
//! a minute cannot write stale data.
//!
//! Every node has a copy of all keys and small values (`replica`), which a consumer keeps up to date (`feed`). Reads are
//! local. The copy contains this node's writes when they return, and [`StateStore::sync`] waits
//! for the writes of others. Values that do not fit into one message have their own messages in a
//! second stream (`values`).
//!
//! # Invariants
//!
//! - The copy only moves forward, and shows all of a batch or nothing.
//! - A conflict is a change that the server refused, as the copy confirms. Every other refusal is
//!   a failure.

mod feed;
mod plan;
mod replica;
mod subject;
mod values;
mod write;

use std::sync::Arc;
use std::time::{Duration, Instant};

use async_nats::jetstream::{self, Context};
use async_nats::{Client, Request, datetime};
use async_trait::async_trait;
use bytes::Bytes;
use orla_state::{
    Change, Limits, MAX_CHANGES, Query, Record, Revision, StateError, StateStore, WriteError, check,
    check_key,
};
use parking_lot::Mutex;
use serde::Deserialize;
use tokio::sync::{Notify, Semaphore, broadcast, watch};
use tokio::time::timeout;
use tokio_util::task::TaskTracker;

use crate::link::Link;
use replica::{Applied, Replica, Value};

/// How long NATS may take to answer.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(5);
/// How long the copy may take to catch up with the server.
const CATCH_UP: Duration = Duration::from_secs(10);
/// The limits of values and batches. A server takes this many changes at once.
const LIMITS: Limits = Limits { value: 32 << 20, batch: 64 << 20, changes: MAX_CHANGES };
/// How many batches this node makes at once. A server takes 50 for a stream.
const BATCHES: usize = 4;
/// After this time, the clock of NATS is read again, because the clocks of two machines drift apart.
const CLOCK: Duration = Duration::from_secs(60);
/// How many changes a receiver of keys may lag.
const LAG: usize = 8192;

/// The records that all nodes of a cluster share.
#[derive(Clone)]
pub(crate) struct ClusterStore(Arc<Inner>);

struct Inner {
    link: Arc<Link>,
    limits: Limits,
    replica: Mutex<Replica>,
    progress: watch::Sender<Progress>,
    /// Notified when there is a user.
    wanted: Notify,
    /// The copy has to be fed anew.
    kick: Notify,
    changed: broadcast::Sender<Arc<str>>,
    batches: Semaphore,
    tracker: TaskTracker,
    /// The last time of the NATS clock, and the local time at which it was received.
    clock: Mutex<Option<(Duration, Instant)>>,
}

/// The state of the stream, as JetStream reports it.
#[derive(Deserialize)]
struct Info {
    state: Last,
    /// Its clock.
    ts: Option<String>,
}

#[derive(Deserialize)]
struct Last {
    /// The number of the last message.
    last_seq: u64,
}

/// How far the copy is.
#[derive(Clone, Debug, Default)]
struct Progress {
    /// Whether it has been complete.
    is_ready: bool,
    /// It has all changes up to the message of this number.
    applied: u64,
    /// Why the store cannot be used, if the problem does not pass by itself.
    broken: Option<String>,
    /// Since when the consumer has not delivered the server's messages.
    stuck: Option<Instant>,
}

impl ClusterStore {
    pub(crate) fn new(link: &Arc<Link>) -> Self {
        Self(Arc::new(Inner {
            link: Arc::clone(link),
            limits: LIMITS,
            replica: Mutex::default(),
            progress: watch::Sender::default(),
            wanted: Notify::new(),
            kick: Notify::new(),
            changed: broadcast::Sender::new(LAG),
            batches: Semaphore::new(BATCHES),
            tracker: TaskTracker::new(),
            clock: Mutex::default(),
        }))
    }

    /// Returns the time since 1970 by the clock of NATS, as far as it is known. It is never later than
    /// the actual time there.
    pub(crate) fn nats_time(&self) -> Option<Duration> {
        let clock = *self.0.clock.lock();
        clock.map(|(time, at)| time + at.elapsed())
    }

    /// Returns for how long the consumer of this copy has not delivered the server's messages. The delay
    /// is noticed when a caller requests the newest state.
    pub(crate) fn stuck(&self) -> Option<Duration> {
        self.0.progress.borrow().stuck.map(|since| since.elapsed())
    }

    /// There is a user.
    pub(crate) fn mark_used(&self) {
        self.0.wanted.notify_one();
    }
}

impl Inner {
    /// Returns the connection.
    ///
    /// # Errors
    ///
    /// Returns an error if there is none.
    fn client(&self) -> Result<&Client, StateError> {
        let client = self.link.client().filter(|_| self.link.is_connected());
        client.ok_or_else(|| unreachable("there is no connection to NATS"))
    }

    fn context(&self) -> Result<Context, StateError> {
        let mut context = jetstream::new(self.client()?.clone());
        context.set_timeout(ANSWER_TIMEOUT);
        Ok(context)
    }

    /// Returns the name of the stream of records.
    fn stream(&self) -> String {
        format!("orla-{}-state", self.link.settings.name)
    }

    /// Returns the subject prefix of all records.
    fn prefix(&self) -> String {
        format!("orla.{}.state.", self.link.settings.name)
    }

    fn subject(&self, key: &str) -> String {
        format!("{}{}", self.prefix(), subject::token(key))
    }

    /// Waits until the copy has been complete.
    async fn ready(&self) -> Result<(), StateError> {
        if self.progress.borrow().is_ready {
            return Ok(());
        }
        // Before the first connection, the store knows nothing.
        self.client()?;
        let mut progress = self.progress.subscribe();
        let known = progress.wait_for(|progress| progress.is_ready || progress.broken.is_some());
        match timeout(CATCH_UP, known).await {
            Ok(Ok(progress)) => match &progress.broken {
                Some(why) => Err(unreachable(why)),
                None => Ok(()),
            },
            _ => Err(unreachable("it has not been read yet")),
        }
    }

    /// Waits until the copy has the current state of the server.
    async fn catch_up(&self) -> Result<(), StateError> {
        self.ready().await?;
        let last = self.info().await?.state.last_seq;
        let mut progress = self.progress.subscribe();
        let reached = |progress: &Progress| progress.applied >= last;
        // A consumer that has stalled is made again.
        let started = Instant::now();
        if timeout(CATCH_UP / 4, progress.wait_for(reached)).await.is_err() {
            self.progress.send_modify(|progress| progress.stuck = progress.stuck.or(Some(started)));
            self.kick.notify_one();
            if timeout(CATCH_UP, progress.wait_for(reached)).await.is_err() {
                return Err(unreachable("its consumer does not keep up"));
            }
        }
        self.progress.send_if_modified(|progress| progress.stuck.take().is_some());
        Ok(())
    }

    /// Notes a time of the NATS clock. A time that arrives late is ignored.
    fn set_clock(&self, time: Duration) {
        let (mut clock, now) = (self.clock.lock(), Instant::now());
        let is_news = clock.is_none_or(|(known, at)| {
            let since = now.saturating_duration_since(at);
            since > CLOCK || time > known + since
        });
        if is_news {
            *clock = Some((time, now));
        }
    }

    /// Reads the state of the stream.
    async fn info(&self) -> Result<Info, StateError> {
        let subject = format!("$JS.API.STREAM.INFO.{}", self.stream());
        let request = Request::new().payload(Bytes::new()).timeout(Some(ANSWER_TIMEOUT));
        let answer = self.client()?.send_request(subject, request).await;
        let answer = answer.map_err(|err| unreachable(&err.to_string()))?;
        let info: Info =
            serde_json::from_slice(&answer.payload).map_err(|err| unreachable(&err.to_string()))?;
        if let Some(Ok(time)) = info.ts.as_deref().map(datetime::parse_rfc3339) {
            self.set_clock(since_1970(time.unix_timestamp_nanos()));
        }
        Ok(info)
    }

    /// Applies changes to the copy, all at one moment.
    fn apply(self: &Arc<Self>, changes: Vec<Applied>) {
        let now = Instant::now();
        let mut keys = Vec::with_capacity(changes.len());
        let mut unused = Vec::new();
        {
            let mut replica = self.replica.lock();
            for change in changes {
                let key = Arc::<str>::from(&*change.key);
                let (is_new, parts) = replica.apply(change, now);
                keys.extend(is_new.then_some(key));
                unused.extend(parts);
            }
        }
        for key in keys {
            // There may be no follower.
            drop(self.changed.send(key));
        }
        for parts in unused {
            values::remove(self, parts);
        }
    }

    /// Returns a record whose place in the copy is known.
    async fn read(&self, key: String, found: (Revision, Value)) -> Result<Option<Record>, StateError> {
        /// How often a record may change while it is read.
        const TRIES: usize = 100;
        let mut found = Some(found);
        for _ in 0..TRIES {
            let Some((revision, value)) = found else { return Ok(None) };
            let value = match value {
                Value::Here(value) => Some(value),
                Value::Message => self.message(&key, revision).await?,
                Value::Parts(parts) => values::read(self, &parts).await?,
            };
            if let Some(value) = value {
                return Ok(Some(Record { key, value, revision }));
            }
            // It has changed. The copy learns that in a moment.
            let mut progress = self.progress.subscribe();
            progress.mark_unchanged();
            found = self.replica.lock().get(&key);
            if found.as_ref().is_some_and(|(now, _)| *now == revision) {
                drop(timeout(Duration::from_millis(100), progress.changed()).await);
                found = self.replica.lock().get(&key);
            }
        }
        Err(unreachable("a record changes faster than it can be read"))
    }

    /// Returns the value of the message of this number, if it is still the last of its key.
    async fn message(&self, key: &str, revision: Revision) -> Result<Option<Bytes>, StateError> {
        let stream = self.context()?.get_stream_no_info(self.stream()).await;
        let stream = stream.map_err(|err| unreachable(&err.to_string()))?;
        match stream.get_last_raw_message_by_subject(&self.subject(key)).await {
            Ok(message) if message.sequence == revision => Ok(Some(message.payload)),
            Ok(_) => Ok(None),
            Err(err)
                if matches!(err.kind(), jetstream::stream::LastRawMessageErrorKind::NoMessageFound) =>
            {
                Ok(None)
            }
            Err(err) => Err(unreachable(&err.to_string())),
        }
    }
}

#[async_trait]
impl StateStore for ClusterStore {
    async fn write(&self, changes: Vec<Change>) -> Result<Vec<Revision>, WriteError> {
        check(&changes, &self.0.limits)?;
        self.0.ready().await?;
        write::write(&self.0, changes).await
    }

    async fn get(&self, key: &str) -> Result<Option<Record>, StateError> {
        check_key(key)?;
        self.0.ready().await?;
        let found = self.0.replica.lock().get(key);
        match found {
            Some(found) => self.0.read(key.to_owned(), found).await,
            None => Ok(None),
        }
    }

    async fn list(&self, query: Query) -> Result<Vec<Record>, StateError> {
        self.0.ready().await?;
        let found = self.0.replica.lock().list(&query);
        let mut records = Vec::with_capacity(found.len());
        for (key, revision, value) in found {
            records.extend(self.0.read(key, (revision, value)).await?);
        }
        Ok(records)
    }

    async fn sync(&self) -> Result<(), StateError> {
        self.0.catch_up().await
    }

    fn changed_keys(&self) -> Option<broadcast::Receiver<Arc<str>>> {
        Some(self.0.changed.subscribe())
    }
}

/// Returns a time in nanoseconds; one before 1970 counts as 1970.
fn since_1970(nanos: i128) -> Duration {
    Duration::from_nanos(u64::try_from(nanos.max(0)).unwrap_or(u64::MAX))
}

/// The error for unreachable records of the cluster.
fn unreachable(why: &str) -> StateError {
    StateError::new(format!("the state of the cluster cannot be used: {why}"))
}
