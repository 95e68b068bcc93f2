//! Sessions of the revisions before 2026-07-28, and the requests that run in them.
//!
//! # How it works
//!
//! An idle session is a few hundred bytes: no task, no channel. It owns the snapshot it last listed, its log
//! level, the running requests and the streams that a client may return to. Expiry is checked when a session is
//! looked up, and [`Sessions::sweep`] removes unused sessions. A session with a call in flight or an open stream
//! does not expire.

pub(super) mod client;
pub(crate) mod listed;
pub(crate) mod other_nodes;
pub(crate) mod shared;

use std::collections::hash_map::Entry;
use std::collections::{BTreeSet, HashMap};
use std::sync::atomic::{AtomicBool, AtomicU8, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::{Duration, Instant};

use orla_marketplace::{Catalog, JsonText, LogLevel, Origin, Principal, millis_down};
use parking_lot::{Mutex, MutexGuard};
use sha2::{Digest as _, Sha256};
use tokio_util::sync::CancellationToken;

use crate::mcp::input::questions::askable;
use crate::mcp::notify::changes::Lists;
use crate::mcp::notify::pending_changes::PendingChanges;
use crate::mcp::notify::sent_changes::{Change, SentChanges};
use crate::mcp::notify::stream::Stream;
use crate::mcp::notify::subscriptions::{MAX_SUBSCRIPTIONS, Subscriber, Subscription};
use crate::mcp::protocol::Revision;
use crate::mcp::rpc::{Id, Params};
use crate::mcp::session::client::Questions;
use crate::mcp::session::listed::{Listed, Versions};
use crate::mcp::session::shared::RecordState;

/// How long a client may return for the rest of a stream that has ended.
const KEEP_STREAM: Duration = Duration::from_secs(60);
/// The maximum number of ended streams that a session keeps, and their bytes.
const MAX_ENDED_STREAMS: usize = 16;
const MAX_ENDED_BYTES: usize = 1024 * 1024;
const SHARDS: usize = 16;
/// The number of hexadecimal digits of a session's name in the history.
const LABEL: usize = 12;

/// One session.
pub(crate) struct Session {
    pub(crate) id: SessionId,
    pub(crate) revision: Revision,
    /// The principal that began the session. No other principal may use it.
    pub(crate) principal: Option<Principal>,
    /// The requests that run in it.
    pub(crate) calls: Arc<Calls>,
    /// The capabilities that the client declared, if it can be asked anything.
    pub(crate) capabilities: Option<JsonText>,
    /// Where calls in the session come from.
    pub(crate) origin: Origin,
    /// The open questions to its client.
    pub(crate) questions: Questions,
    snapshots: Mutex<Snapshots>,
    log_level: AtomicU8,
    /// The changes that the client was notified of.
    notified: Mutex<Lists>,
    /// What it has subscribed to.
    subscriptions: Mutex<HashMap<Box<str>, Subscription>>,
    /// Created when the session subscribes or listens.
    subscriber: OnceLock<Arc<Subscriber>>,
    /// Created when the client listens.
    own_stream: OnceLock<Box<OwnStream>>,
    /// Receives changes for other servers, if the client may listen there.
    pending_changes: OnceLock<Arc<PendingChanges>>,
    streams: Mutex<Vec<Arc<Stream>>>,
    /// What is known of the session's record, if several servers share sessions. Locked before `snapshots`.
    record: Mutex<RecordState>,
    next_stream: AtomicU64,
    /// The number of open connections of this session.
    open: AtomicUsize,
    /// Milliseconds since the store was made.
    last_used: AtomicU64,
}

/// What a client tells about itself when it begins a session.
pub(crate) struct Declared {
    /// Its capabilities, if it can be asked anything.
    pub(crate) capabilities: Option<JsonText>,
    /// Its name and version.
    pub(crate) client: Option<Arc<str>>,
}

impl Declared {
    /// Returns what the parameters of `initialize` say.
    pub(crate) fn of(params: &Params<'_>) -> Self {
        Self { capabilities: askable(params.capabilities), client: params.client() }
    }
}

/// The snapshots that a session listed last: for tools, and for all other items.
struct Snapshots {
    tools: Arc<Catalog>,
    /// What the session has listed. Until it lists here, a newer snapshot causes no conflict.
    listed: Listed,
    surfaces: Arc<Catalog>,
    has_listed_surfaces: bool,
}

impl Session {
    /// A session on the newest snapshot.
    pub(crate) fn new(
        id: SessionId,
        revision: Revision,
        principal: Option<Principal>,
        declared: Declared,
        newest: Arc<Catalog>,
        notified: Lists,
        parent: &CancellationToken,
    ) -> Self {
        Self {
            id,
            revision,
            principal,
            capabilities: declared.capabilities,
            origin: Origin::new(id.label(), declared.client),
            questions: Questions::default(),
            calls: Calls::new(parent.child_token()),
            log_level: AtomicU8::new(LogLevel::Info as u8),
            notified: Mutex::new(notified),
            subscriptions: Mutex::default(),
            subscriber: OnceLock::new(),
            own_stream: OnceLock::new(),
            pending_changes: OnceLock::new(),
            snapshots: Mutex::new(Snapshots {
                tools: Arc::clone(&newest),
                listed: Listed::Nothing,
                surfaces: newest,
                has_listed_surfaces: false,
            }),
            streams: Mutex::default(),
            record: Mutex::default(),
            next_stream: AtomicU64::new(1),
            open: AtomicUsize::new(0),
            last_used: AtomicU64::new(0),
        }
    }

    /// Returns the snapshot whose tools the session has listed last.
    pub(crate) fn tools(&self) -> Arc<Catalog> {
        Arc::clone(&self.snapshots.lock().tools)
    }

    /// Returns the snapshot whose prompts and resources the session has listed last.
    pub(crate) fn surfaces(&self) -> Arc<Catalog> {
        Arc::clone(&self.snapshots.lock().surfaces)
    }

    /// Moves the tools to the newest snapshot, because they are being listed again. Listed tools can be
    /// called. Other servers know them by `versions`.
    pub(crate) fn move_tools_to(&self, newest: &Arc<Catalog>, versions: Option<Arc<Versions>>) {
        let mut record = self.record.lock();
        record.listed.note_change();
        let mut snapshots = self.snapshots.lock();
        snapshots.tools = Arc::clone(newest);
        snapshots.listed = Listed::Here(versions);
        // Items that were never listed must not hold back a snapshot, since a snapshot keeps the
        // processes that it serves.
        if !snapshots.has_listed_surfaces {
            snapshots.surfaces = Arc::clone(newest);
        }
    }

    /// Returns whether the session has listed tools at this server last.
    pub(crate) fn has_listed_here(&self) -> bool {
        matches!(self.snapshots.lock().listed, Listed::Here(_))
    }

    /// Returns the name by which other servers know what the session has listed; see [`Listed::name`].
    pub(crate) fn listed_name(&self) -> Option<String> {
        self.snapshots.lock().listed.name().map(str::to_owned)
    }

    /// Returns the versions that the session has listed at another server last, if they are known.
    pub(crate) fn listed_elsewhere(&self) -> Option<Arc<Versions>> {
        match &self.snapshots.lock().listed {
            Listed::Elsewhere(_, versions) => versions.clone(),
            _ => None,
        }
    }

    /// Returns the versions that the session has listed, if they are known.
    pub(crate) fn listed_versions(&self) -> Option<Arc<Versions>> {
        self.snapshots.lock().listed.versions().cloned()
    }

    /// Notes that the session has listed the versions of this name, unless that is known.
    pub(crate) fn note_listed(&self, name: &str) {
        let mut snapshots = self.snapshots.lock();
        if snapshots.listed.name() != Some(name) {
            snapshots.listed = Listed::Elsewhere(name.into(), None);
        }
    }

    /// Returns the name of the versions that the session has listed elsewhere, if they are not known here.
    pub(crate) fn unknown_versions(&self) -> Option<Box<str>> {
        match &self.snapshots.lock().listed {
            Listed::Elsewhere(name, None) if !name.is_empty() => Some(name.clone()),
            _ => None,
        }
    }

    /// Takes in the versions that the session has listed elsewhere.
    pub(crate) fn learn_versions(&self, learned: Arc<Versions>) {
        if let Listed::Elsewhere(name, versions) = &mut self.snapshots.lock().listed
            && **name == *learned.name()
        {
            *versions = Some(learned);
        }
    }

    /// Pins the snapshot in which a session calls tools before it lists any here.
    pub(crate) fn begin_tools_with(&self, newest: &Arc<Catalog>) {
        let mut snapshots = self.snapshots.lock();
        if !matches!(snapshots.listed, Listed::Here(_)) {
            snapshots.tools = Arc::clone(newest);
        }
    }

    /// Moves prompts and resources to the newest snapshot, because they are being listed again.
    pub(crate) fn move_surfaces_to(&self, newest: &Arc<Catalog>) {
        let mut snapshots = self.snapshots.lock();
        snapshots.surfaces = Arc::clone(newest);
        snapshots.has_listed_surfaces = true;
    }

    /// Returns the lowest level of log messages that are sent.
    pub(crate) fn log_level(&self) -> LogLevel {
        let index = usize::from(self.log_level.load(Ordering::Relaxed));
        LogLevel::ALL.get(index).copied().unwrap_or(LogLevel::Info)
    }

    /// Sets the level, as a request wants it.
    pub(crate) fn set_log_level(&self, level: LogLevel) {
        let mut record = self.record.lock();
        record.level.note_change();
        self.note_log_level(level);
    }

    /// Notes the level that a request has set, here or at another server.
    fn note_log_level(&self, level: LogLevel) {
        self.log_level.store(level as u8, Ordering::Relaxed);
    }

    /// Returns the changes that the client has not seen. With several streams, each change goes to one
    /// of them.
    pub(crate) fn changes(&self, lists: Lists) -> Vec<Change> {
        let names = lists.changed_since(&mut self.notified.lock());
        let changed = self.subscriber.get().map(|subscriber| subscriber.take()).unwrap_or_default();
        names.into_iter().map(Change::List).chain(changed.into_iter().map(Change::Resource)).collect()
    }

    /// Returns the changes that the session's own stream must send now, with their numbers.
    pub(crate) fn changes_to_send(&self, lists: Lists) -> Vec<(u64, Change)> {
        let changes = self.changes(lists);
        self.own_stream().sent.lock().record(changes)
    }

    /// Returns the number of the last change sent on the session's own stream.
    pub(crate) fn last_sent(&self) -> u64 {
        self.own_stream().sent.lock().last()
    }

    /// Returns the changes sent on the session's own stream after this number, or `None` if they are no
    /// longer known.
    pub(crate) fn changes_after(&self, number: u64) -> Option<BTreeSet<Change>> {
        self.own_stream().sent.lock().after(number)
    }

    /// Schedules changes to be sent again.
    pub(crate) fn resend(&self, changes: BTreeSet<Change>) {
        self.own_stream().sent.lock().resend(changes);
        self.subscriber().woken.notify_one();
    }

    fn own_stream(&self) -> &OwnStream {
        self.own_stream.get_or_init(Box::default)
    }

    /// Notes that a client listens to the session's own stream, until the guard is dropped. The token
    /// ends the stream.
    pub(crate) fn listen(self: &Arc<Self>) -> (Listener, CancellationToken) {
        let end = CancellationToken::new();
        let mut listening = self.own_stream().listening.lock();
        let number = listening.last().map_or(0, |(number, _)| number + 1);
        listening.push((number, end.clone()));
        (Listener { session: Arc::clone(self), number }, end)
    }

    /// Returns whether a client listens to the session's own stream on this server.
    pub(crate) fn listens(&self) -> bool {
        self.own_stream.get().is_some_and(|own| !own.listening.lock().is_empty())
    }

    /// Ends the session's own streams on this server.
    pub(crate) fn end_listening(&self) {
        self.own_stream().listening.lock().drain(..).for_each(|(_, end)| end.cancel());
    }

    /// Reports changes of the session's resources to other servers, because its client may listen there.
    pub(crate) fn share(&self, pending_changes: &Arc<PendingChanges>) {
        drop(self.pending_changes.set(Arc::clone(pending_changes)));
    }

    /// Returns whether the session has subscriptions on this server that other servers rely on.
    pub(crate) fn has_shared_subscriptions(&self) -> bool {
        self.pending_changes.get().is_some() && !self.subscriptions.lock().is_empty()
    }

    /// Begins to take over subscriptions, until the guard is dropped. Returns `None` if a takeover is
    /// already running.
    pub(crate) fn begin_adopting(self: &Arc<Self>) -> Option<Adopting> {
        let is_free = !self.own_stream().is_adopting.swap(true, Ordering::Relaxed);
        is_free.then(|| Adopting(Arc::clone(self)))
    }

    /// Returns the subscriber of the session's resources.
    pub(crate) fn subscriber(&self) -> &Arc<Subscriber> {
        self.subscriber.get_or_init(|| {
            let subscriber = Subscriber::new(self.principal.clone());
            Arc::new(match self.pending_changes.get().cloned() {
                None => subscriber,
                Some(pending_changes) => {
                    let id = self.id;
                    subscriber.on_change(move || pending_changes.add_session(id.to_string()))
                }
            })
        })
    }

    /// Returns the resources to which the session has subscribed on this server.
    pub(crate) fn subscribed_uris(&self) -> Vec<Box<str>> {
        self.subscriptions.lock().keys().cloned().collect()
    }

    /// Returns whether the session has subscribed to this resource. If not, checks that it may subscribe
    /// to one more.
    pub(crate) fn is_subscribed(&self, uri: &str) -> Result<bool, usize> {
        let subscriptions = self.subscriptions.lock();
        let full = subscriptions.len() >= MAX_SUBSCRIPTIONS;
        match subscriptions.contains_key(uri) {
            true => Ok(true),
            false if full => Err(MAX_SUBSCRIPTIONS),
            false => Ok(false),
        }
    }

    /// Keeps a subscription until the session ends. A subscription that arrives later is dropped.
    pub(crate) fn subscribe(&self, uri: &str, subscription: Subscription) {
        let mut subscriptions = self.subscriptions.lock();
        if !self.calls.ended.is_cancelled() {
            subscriptions.insert(uri.into(), subscription);
        }
    }

    /// Gives up a subscription.
    pub(crate) fn unsubscribe(&self, uri: &str) -> Option<Subscription> {
        self.subscriptions.lock().remove(uri)
    }

    /// Returns a stream that a client may return to once it is [kept](Self::keep).
    pub(crate) fn new_stream(&self) -> Arc<Stream> {
        Stream::retained(self.next_stream.fetch_add(1, Ordering::Relaxed))
    }

    /// Keeps a stream for a client that comes back.
    pub(crate) fn keep(&self, stream: &Arc<Stream>) {
        let mut streams = self.streams.lock();
        forget_ended(&mut streams);
        streams.push(Arc::clone(stream));
    }

    /// Returns the kept stream of this number.
    pub(crate) fn stream(&self, number: u64) -> Option<Arc<Stream>> {
        let mut streams = self.streams.lock();
        forget_ended(&mut streams);
        streams.iter().find(|stream| stream.number == number).cloned()
    }

    /// Notes an open connection of this session, until the guard is dropped.
    pub(crate) fn open(self: &Arc<Self>) -> Connection {
        self.open.fetch_add(1, Ordering::Relaxed);
        Connection(Arc::clone(self))
    }

    /// Returns the number of open connections of this session.
    pub(crate) fn open_count(&self) -> usize {
        self.open.load(Ordering::Relaxed)
    }

    /// Ends everything that runs in the session.
    pub(crate) fn end(&self) {
        self.calls.ended.cancel();
        drop(std::mem::take(&mut *self.subscriptions.lock()));
    }

    pub(crate) fn is_idle(&self) -> bool {
        self.open_count() == 0 && self.calls.is_empty()
    }
}

/// An open connection of a session.
pub(crate) struct Connection(Arc<Session>);

impl Drop for Connection {
    fn drop(&mut self) {
        self.0.open.fetch_sub(1, Ordering::Relaxed);
    }
}

/// The session's own stream.
#[derive(Default)]
struct OwnStream {
    sent: Mutex<SentChanges>,
    /// The open connections, each with the token that ends it.
    listening: Mutex<Vec<(u64, CancellationToken)>>,
    is_adopting: AtomicBool,
}

/// A running takeover of a session's subscriptions.
pub(crate) struct Adopting(Arc<Session>);

impl Drop for Adopting {
    fn drop(&mut self) {
        self.0.own_stream().is_adopting.store(false, Ordering::Relaxed);
    }
}

/// An open connection to the session's own stream.
pub(crate) struct Listener {
    session: Arc<Session>,
    number: u64,
}

impl Drop for Listener {
    fn drop(&mut self) {
        self.session.own_stream().listening.lock().retain(|(number, _)| *number != self.number);
    }
}

/// Removes streams that ended long ago, and the oldest ended streams beyond the limits.
fn forget_ended(streams: &mut Vec<Arc<Stream>>) {
    streams.retain(|stream| stream.finished_at().is_none_or(|ended| ended.elapsed() < KEEP_STREAM));
    let ended = |stream: &Arc<Stream>| stream.finished_at().is_some();
    loop {
        let count = streams.iter().filter(|stream| ended(stream)).count();
        let bytes: usize =
            streams.iter().filter(|stream| ended(stream)).map(|stream| stream.bytes()).sum();
        // The newest stream is kept regardless of its size, because its client may be about to return.
        if count <= 1 || (count <= MAX_ENDED_STREAMS && bytes <= MAX_ENDED_BYTES) {
            break;
        }
        if let Some(oldest) = streams.iter().position(ended) {
            streams.remove(oldest);
        }
    }
    if streams.is_empty() {
        *streams = Vec::new();
    }
}

/// The requests that run in a session or on a pipe, to be cancelled by their ids.
pub(crate) struct Calls {
    running: Mutex<HashMap<Box<str>, CancellationToken>>,
    /// Cancelled when the session is over; every request's token is its child.
    pub(crate) ended: CancellationToken,
}

impl Calls {
    pub(crate) fn new(ended: CancellationToken) -> Arc<Self> {
        Arc::new(Self { running: Mutex::default(), ended })
    }

    /// Notes that a request runs, until the guard is dropped. Returns `None` if a request with this id
    /// is already running.
    pub(crate) fn begin(self: &Arc<Self>, id: &Id) -> Option<Running> {
        let key = id.key();
        let token = self.ended.child_token();
        let mut running = self.running.lock();
        if running.contains_key(&key) {
            return None;
        }
        running.insert(key.clone(), token.clone());
        Some(Running { calls: Arc::clone(self), key, token })
    }

    /// Cancels the request with this id key. Returns whether there is one.
    pub(crate) fn cancel(&self, key: &str) -> bool {
        let token = self.running.lock().get(key).cloned();
        if let Some(token) = &token {
            token.cancel();
        }
        token.is_some()
    }

    fn is_empty(&self) -> bool {
        self.running.lock().is_empty()
    }
}

/// A request that runs.
pub(crate) struct Running {
    calls: Arc<Calls>,
    key: Box<str>,
    /// Cancelled when the client withdraws the request or its session ends.
    pub(crate) token: CancellationToken,
}

impl Drop for Running {
    fn drop(&mut self) {
        let mut running = self.calls.running.lock();
        running.remove(&self.key);
        if running.is_empty() {
            *running = HashMap::new();
        }
    }
}

/// The number of a session: 128 random bits, written as 32 hexadecimal digits.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct SessionId(u128);

impl SessionId {
    /// The id of a session that is in no store.
    pub(crate) const NONE: Self = Self(0);

    fn random() -> Result<Self, getrandom::Error> {
        let mut bytes = [0; 16];
        getrandom::fill(&mut bytes)?;
        Ok(Self(u128::from_ne_bytes(bytes)))
    }

    /// Reads an id in its text form; `None` if it is not the id of a session.
    pub(crate) fn parse(text: &str) -> Option<Self> {
        let plain =
            text.len() == 32 && text.bytes().all(|byte| matches!(byte, b'0'..=b'9' | b'a'..=b'f'));
        plain.then(|| u128::from_str_radix(text, 16).ok().map(Self)).flatten()
    }

    /// Returns a text by which others know the session: in the shared state, and its beginning in the history. It does not reveal
    /// the id.
    pub(crate) fn digest(self) -> String {
        hex::encode(&Sha256::digest(self.to_string())[..16])
    }

    /// Returns the name of the session in the history; `None` for one that is in no store.
    fn label(self) -> Option<Arc<str>> {
        (self != Self::NONE).then(|| self.digest()[..LABEL].into())
    }
}

impl std::fmt::Display for SessionId {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{:032x}", self.0)
    }
}

/// Every session of the HTTP transport.
pub(crate) struct Sessions {
    shards: [Mutex<HashMap<SessionId, Arc<Session>>>; SHARDS],
    count: AtomicUsize,
    epoch: Instant,
}

impl Sessions {
    pub(crate) fn new() -> Self {
        Self { shards: Default::default(), count: AtomicUsize::new(0), epoch: Instant::now() }
    }

    /// Adds the session that `make` creates for a new id. At the limit, a session that has been idle for
    /// long is removed.
    ///
    /// # Errors
    ///
    /// Returns an error if every session is in use, or if the system has no random bytes.
    pub(crate) fn add(
        &self,
        max: usize,
        make: impl FnOnce(SessionId) -> Session,
    ) -> Result<Arc<Session>, &'static str> {
        let id = SessionId::random().map_err(|_| "the system has no random bytes for a session")?;
        self.add_as(id, max, make)
    }

    /// Adds the session that `make` creates for an id, unless the id exists. At the limit, a session
    /// that has been idle for long is removed.
    ///
    /// # Errors
    ///
    /// Returns an error if every session is in use.
    pub(crate) fn add_as(
        &self,
        id: SessionId,
        max: usize,
        make: impl FnOnce(SessionId) -> Session,
    ) -> Result<Arc<Session>, &'static str> {
        let session = Arc::new(make(id));
        session.last_used.store(self.now(), Ordering::Relaxed);
        if self.count.load(Ordering::Relaxed) >= max && !self.evict_one(id) {
            return Err("too many sessions; try again later");
        }
        match self.shard(id).entry(id) {
            Entry::Occupied(known) => return Ok(Arc::clone(known.get())),
            Entry::Vacant(place) => drop(place.insert(Arc::clone(&session))),
        }
        self.count.fetch_add(1, Ordering::Relaxed);
        Ok(session)
    }

    /// Marks a session as used.
    pub(crate) fn touch(&self, session: &Session) {
        session.last_used.store(self.now(), Ordering::Relaxed);
    }

    /// Returns the session with this id, of any caller. This does not count as use.
    pub(crate) fn peek(&self, id: SessionId) -> Option<Arc<Session>> {
        self.shard(id).get(&id).cloned()
    }

    /// Makes room: removes the longest idle session of the first shard from `near` on that has idle
    /// sessions.
    fn evict_one(&self, near: SessionId) -> bool {
        let start = Self::shard_of(near);
        for at in 0..SHARDS {
            let mut shard = self.shards[(start + at) % SHARDS].lock();
            let idle = shard
                .values()
                .filter(|session| session.is_idle() && !session.has_shared_subscriptions());
            let oldest = idle.min_by_key(|session| session.last_used.load(Ordering::Relaxed));
            if let Some(oldest) = oldest.map(|session| session.id) {
                shard.remove(&oldest);
                self.count.fetch_sub(1, Ordering::Relaxed);
                return true;
            }
        }
        false
    }

    /// Returns the session with this id, which is now in use; `None` if it is unknown, has expired or
    /// belongs to another principal.
    pub(crate) fn get(
        &self,
        id: SessionId,
        principal: Option<&Principal>,
        idle: Duration,
    ) -> Option<Arc<Session>> {
        let now = self.now();
        let mut shard = self.shard(id);
        let session = shard.get(&id)?;
        if session.principal.as_ref() != principal {
            return None;
        }
        if expired(session, now, idle) {
            shard.remove(&id);
            self.count.fetch_sub(1, Ordering::Relaxed);
            return None;
        }
        session.last_used.store(now, Ordering::Relaxed);
        Some(Arc::clone(session))
    }

    /// Removes a session and ends what runs in it.
    pub(crate) fn remove(&self, session: &Session) {
        if self.shard(session.id).remove(&session.id).is_some() {
            self.count.fetch_sub(1, Ordering::Relaxed);
        }
        session.end();
    }

    /// Ends the sessions of these callers.
    pub(crate) fn end_all(&self, of: impl Fn(Option<&Principal>) -> bool) {
        for shard in &self.shards {
            let ended: Vec<_> = {
                let shard = shard.lock();
                shard.values().filter(|session| of(session.principal.as_ref())).cloned().collect()
            };
            ended.iter().for_each(|session| self.remove(session));
        }
    }

    /// Removes sessions that have been idle for too long.
    pub(crate) fn sweep(&self, idle: Duration) {
        let now = self.now();
        for shard in &self.shards {
            let mut shard = shard.lock();
            let before = shard.len();
            shard.retain(|_, session| {
                if !session.is_idle() {
                    session.last_used.store(now, Ordering::Relaxed);
                }
                forget_ended(&mut session.streams.lock());
                !expired(session, now, idle)
            });
            self.count.fetch_sub(before - shard.len(), Ordering::Relaxed);
            if shard.capacity() > 64 && shard.len() * 4 < shard.capacity() {
                shard.shrink_to_fit();
            }
        }
    }

    /// Returns the sessions in which something runs or waits.
    pub(crate) fn in_use(&self) -> Vec<Arc<Session>> {
        self.all(|session| !session.is_idle())
    }

    /// Returns the sessions that only hold subscriptions on this server, and whether each was used
    /// recently.
    pub(crate) fn with_shared_subscriptions(&self, idle: Duration) -> Vec<(Arc<Session>, bool)> {
        let now = self.now();
        let sharing =
            self.all(|session| session.is_idle() && session.has_shared_subscriptions()).into_iter();
        let is_recent = |session: &Session| {
            now.saturating_sub(session.last_used.load(Ordering::Relaxed)) <= millis_down(idle)
        };
        sharing.map(|session| (Arc::clone(&session), is_recent(&session))).collect()
    }

    fn all(&self, which: impl Fn(&Session) -> bool) -> Vec<Arc<Session>> {
        let mut all = Vec::new();
        for shard in &self.shards {
            all.extend(shard.lock().values().filter(|session| which(session)).cloned());
        }
        all
    }

    /// Returns the number of sessions.
    pub(crate) fn count(&self) -> usize {
        self.count.load(Ordering::Relaxed)
    }

    fn shard(&self, id: SessionId) -> MutexGuard<'_, HashMap<SessionId, Arc<Session>>> {
        self.shards[Self::shard_of(id)].lock()
    }

    fn shard_of(id: SessionId) -> usize {
        usize::from(id.0.to_le_bytes()[0]) % SHARDS
    }

    fn now(&self) -> u64 {
        millis_down(self.epoch.elapsed())
    }
}

fn expired(session: &Session, now: u64, idle: Duration) -> bool {
    let unused = now.saturating_sub(session.last_used.load(Ordering::Relaxed));
    unused > millis_down(idle) && session.is_idle() && !session.has_shared_subscriptions()
}

#[cfg(test)]
mod simulation;
#[cfg(test)]
#[path = "session_tests.rs"]
mod tests;
