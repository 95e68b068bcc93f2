//! Keeps the copy up to date: an ordered consumer of the stream, which is made again whenever it ends or stalls.

use std::collections::HashSet;
use std::sync::Arc;
use std::time::{Duration, Instant};

use async_nats::jetstream::consumer::{DeliverPolicy, pull};
use async_nats::jetstream::stream::{self, Config, Stream};
use async_nats::jetstream::{Context, Message};
use async_nats::{HeaderMap, HeaderValue, datetime};
use futures_util::StreamExt;
use tokio::time::{interval, sleep};
use tokio_util::sync::CancellationToken;

use super::replica::{Applied, Parts, Replica, Value};
use super::write::{PARTS, REMOVED};
use super::{ClusterStore, Inner, since_1970, subject, values};
use crate::link::{REPLICAS, code, is_about_replicas};

/// The description of the streams, which distinguishes versions.
const DESCRIPTION: &str = "orla cluster state 1";
/// The pause between attempts.
const RETRY_INTERVAL: Duration = Duration::from_millis(500);
/// How long announced messages may take to arrive. Messages that expire in the meantime do not arrive.
const ARRIVAL_TIMEOUT: Duration = Duration::from_secs(5);
/// How far clocks may be apart.
const MAX_CLOCK_SKEW: Duration = Duration::from_secs(5);
/// How often a stream that has too few replicas is given more.
const RAISE_INTERVAL: Duration = Duration::from_secs(60);
/// After this time without the stream, removals may have expired that this node has not seen. All
/// records are then read anew.
const MAX_ABSENCE: Duration = Duration::from_secs(30 * 60);

/// The reason why the copy is no longer updated.
enum Ended {
    /// It is tried again.
    Passing(String),
    /// The consumer failed. It is created again, and waiting callers are notified.
    Broken(String),
}

fn passing(error: impl std::fmt::Display) -> Ended {
    Ended::Passing(error.to_string())
}

/// The state that is kept between two consumers.
#[derive(Default)]
struct FeedState {
    /// When the stream was made. Another one has other numbers.
    created: Option<i128>,
    last_seen: Option<Instant>,
    last_error: String,
    /// Whether the clock of this machine was off last.
    is_off: bool,
}

impl FeedState {
    /// Compares the clock of NATS with that of this machine.
    fn compare(&mut self, nats: Option<&str>) {
        let Some(Ok(nats)) = nats.map(datetime::parse_rfc3339) else { return };
        let off = datetime::now().unix_timestamp() - nats.unix_timestamp();
        let was_off = std::mem::replace(&mut self.is_off, off.unsigned_abs() > MAX_CLOCK_SKEW.as_secs());
        if self.is_off && !was_off {
            tracing::error!(
                seconds = off,
                "the clock of this machine and that of NATS differ: instants of tasks and schedules of the cluster are not kept; set the clocks"
            );
        }
    }
}

impl ClusterStore {
    /// Keeps the copy up to date until it is stopped.
    pub(crate) async fn serve(self, stop: CancellationToken) {
        let inner = self.0;
        let mut known = FeedState::default();
        tokio::select! {
            () = inner.wanted.notified() => {}
            () = stop.cancelled() => return,
        }
        loop {
            let ended = tokio::select! {
                ended = feed(&inner, &mut known) => ended,
                () = stop.cancelled() => return,
            };
            let (text, is_broken) = match ended {
                Ended::Passing(text) => (text, false),
                Ended::Broken(text) => (text, true),
            };
            if is_broken {
                if text != known.last_error {
                    tracing::error!(problem = text, "the state of the cluster cannot be used");
                    known.last_error.clone_from(&text);
                }
                inner.progress.send_modify(|progress| progress.broken = Some(text));
            } else {
                tracing::debug!(problem = text, "the state of the cluster is followed anew");
            }
            tokio::select! {
                () = sleep(RETRY_INTERVAL) => {}
                () = stop.cancelled() => return,
            }
        }
    }
}

/// Feeds the copy from one consumer until that ends.
async fn feed(inner: &Arc<Inner>, known: &mut FeedState) -> Ended {
    match follow(inner, known).await {
        Ok(never) => never,
        Err(ended) => ended,
    }
}

async fn follow(inner: &Arc<Inner>, known: &mut FeedState) -> Result<Ended, Ended> {
    let mut connection = inner.link.connection();
    connection.wait_for(|is_connected| *is_connected).await.map_err(passing)?;
    let context = inner.context().map_err(passing)?;
    let (name, below) = (values::stream(inner), values::prefix(inner));
    let values = open(&context, &name, format!("{below}>"), false).await?;
    let mut stream = open(&context, &inner.stream(), format!("{}>", inner.prefix()), true).await?;
    let info = stream.info().await.map_err(passing)?;
    if let Ok(nats) = inner.info().await.map(|info| info.ts) {
        known.compare(nats.as_deref());
    }
    let (created, target) = (info.created.unix_timestamp_nanos(), info.state.last_sequence);
    let applied = inner.progress.borrow().applied;
    let is_same = known.created == Some(created) && applied <= target;
    let is_anew = !is_same || known.last_seen.is_none_or(|seen| seen.elapsed() > MAX_ABSENCE);
    let start = if is_anew { 0 } else { applied };
    let config = pull::OrderedConfig {
        deliver_policy: match start {
            0 => DeliverPolicy::All,
            applied => DeliverPolicy::ByStartSequence { start_sequence: applied + 1 },
        },
        ..pull::OrderedConfig::default()
    };
    let consumer = stream.create_consumer(config).await.map_err(passing)?;
    let pending = consumer.cached_info().num_pending;
    let mut messages = consumer.messages().await.map_err(passing)?;
    let replicas = async {
        let mut raise = interval(RAISE_INTERVAL);
        loop {
            raise.tick().await;
            if ensure_replicas(&context, &values).await & ensure_replicas(&context, &stream).await {
                return;
            }
        }
    };
    tokio::pin!(replicas);
    let mut has_replicas = false;
    let kicked = inner.kick.notified();
    tokio::pin!(kicked);
    let mut loading = is_anew.then(Replica::default);
    let mut batch = Batch::default();
    let (mut received, mut seen, mut is_complete) = (0, start, false);
    loop {
        if !is_complete && received >= pending {
            is_complete = true;
            if batch.held.is_empty() {
                seen = seen.max(target);
            }
            if let Some(complete) = loading.take() {
                replace(inner, complete, is_same.then_some(seen));
                inner.progress.send_modify(|progress| progress.applied = seen);
            }
            known.created = Some(created);
            known.last_seen = Some(Instant::now());
            inner.progress.send_modify(|progress| {
                progress.applied = progress.applied.max(seen);
                (progress.is_ready, progress.broken) = (true, None);
            });
        }
        let message = tokio::select! {
            message = messages.next() => message,
            () = sleep(ARRIVAL_TIMEOUT), if !is_complete => {
                return Ok(Ended::Passing("messages do not come".to_owned()));
            }
            () = &mut replicas, if !has_replicas => {
                has_replicas = true;
                continue;
            }
            () = &mut kicked => return Ok(Ended::Passing("the consumer has stalled".to_owned())),
        };
        let message = message.ok_or_else(|| passing("the consumer has ended"))?.map_err(passing)?;
        let (sequence, is_last, published) = message
            .info()
            .map(|info| (info.stream_sequence, info.pending == 0, info.published))
            .map_err(passing)?;
        inner.set_clock(since_1970(published.unix_timestamp_nanos()));
        // Messages that were to come may have expired.
        received = if is_last { pending.max(received + 1) } else { received + 1 };
        let changes = batch.take(inner, &message, sequence);
        if let Some(replica) = &mut loading {
            for change in changes {
                replica.apply(change, Instant::now());
            }
        } else {
            inner.apply(changes);
        }
        if batch.held.is_empty() {
            seen = seen.max(sequence);
            if is_complete {
                known.last_seen = Some(Instant::now());
                inner.progress.send_modify(|progress| progress.applied = progress.applied.max(seen));
            }
        }
    }
}

/// Replaces this copy with another one. If both come from the same stream, entries after `seen` are
/// kept.
fn replace(inner: &Inner, mut complete: Replica, seen: Option<u64>) {
    let mut keys: HashSet<String> = complete.keys().into_iter().collect();
    {
        let mut replica = inner.replica.lock();
        keys.extend(replica.keys());
        for change in seen.map(|seen| replica.later(seen)).unwrap_or_default() {
            complete.apply(change, Instant::now());
        }
        *replica = complete;
    }
    for key in keys {
        // There may be no follower.
        drop(inner.changed.send(key.into()));
    }
}

/// The changes of a batch that has not come whole.
#[derive(Default)]
struct Batch {
    id: String,
    held: Vec<Applied>,
}

impl Batch {
    /// Takes in a message, and returns the changes that are complete now. A batch may lack messages that
    /// later ones have replaced, even its last message. In that case, the next message completes the
    /// batch.
    fn take(&mut self, inner: &Inner, message: &Message, sequence: u64) -> Vec<Applied> {
        let headers = message.headers.as_ref();
        let text = |name: &str| headers.and_then(|headers| headers.get(name)).map(HeaderValue::as_str);
        let id = text("Nats-Batch-Id").unwrap_or_default();
        let mut whole = Vec::new();
        if id != self.id || id.is_empty() {
            whole.append(&mut self.held);
            id.clone_into(&mut self.id);
        }
        let key = message.subject.as_str().strip_prefix(&*inner.prefix()).and_then(subject::key);
        match (key, read_value(inner, headers, message)) {
            (Some(key), Ok(value)) => self.held.push(Applied { key, revision: sequence, value }),
            _ => tracing::debug!(subject = %message.subject, "a record of the cluster cannot be read"),
        }
        if id.is_empty() || text("Nats-Batch-Commit").is_some() {
            whole.append(&mut self.held);
            self.id.clear();
        }
        whole
    }
}

/// Returns the value in a message.
fn read_value(
    inner: &Inner,
    headers: Option<&HeaderMap>,
    message: &Message,
) -> Result<Option<Value>, ()> {
    let text = |name: &str| headers.and_then(|headers| headers.get(name)).map(HeaderValue::as_str);
    if text(REMOVED).is_some() || text("Nats-Marker-Reason").is_some() {
        return Ok(None);
    }
    match text(PARTS) {
        Some(parts) => {
            Parts::read(parts, inner.limits.value).map(|parts| Some(Value::Parts(parts))).ok_or(())
        }
        None => Ok(Some(Value::Here(message.payload.clone()))),
    }
}

/// Opens a stream, and makes it where there is none.
async fn open(context: &Context, name: &str, subjects: String, is_state: bool) -> Result<Stream, Ended> {
    let config = Config {
        name: name.to_owned(),
        description: Some(DESCRIPTION.to_owned()),
        subjects: vec![subjects],
        max_messages_per_subject: 1,
        allow_message_ttl: is_state,
        allow_atomic_publish: is_state,
        allow_direct: false,
        num_replicas: REPLICAS,
        storage: stream::StorageType::File,
        ..Config::default()
    };
    let found = match context.get_stream(name).await {
        Ok(stream) => stream,
        Err(err) if is_missing(&err) => match context.create_stream(config.clone()).await {
            Ok(stream) => stream,
            Err(err) if is_about_replicas(code(&err)) => {
                let alone = Config { num_replicas: 1, ..config };
                context.create_stream(alone).await.map_err(passing)?
            }
            Err(err) => return Err(passing(err)),
        },
        Err(err) => return Err(passing(err)),
    };
    let config = &found.cached_info().config;
    if config.description.as_deref() != Some(DESCRIPTION) {
        let what = "is from another version of orla: give the cluster another name";
        return Err(Ended::Broken(format!("the stream `{name}` {what}")));
    }
    if is_state && !config.allow_atomic_publish {
        return Err(Ended::Broken("the NATS server must be 2.12 or newer".to_owned()));
    }
    Ok(found)
}

/// Returns whether a stream has as many replicas as its servers allow. If it was created with too few
/// servers, raises the number.
async fn ensure_replicas(context: &Context, stream: &Stream) -> bool {
    let info = stream.cached_info();
    // A server that is no cluster has no more.
    let is_cluster = info.cluster.as_ref().is_some_and(|cluster| cluster.name.is_some());
    if info.config.num_replicas >= REPLICAS || !is_cluster {
        return true;
    }
    let config = Config { num_replicas: REPLICAS, ..info.config.clone() };
    match context.update_stream(config).await {
        Ok(_) => true,
        Err(error) => {
            let stream = &info.config.name;
            tracing::debug!(stream, %error, "a stream has fewer than three replicas");
            false
        }
    }
}

fn is_missing(error: &async_nats::jetstream::context::GetStreamError) -> bool {
    use async_nats::jetstream::context::GetStreamErrorKind;
    matches!(error.kind(), GetStreamErrorKind::JetStream(err) if err.code() == 404)
}
