//! The network of a world, and the store behind it.
//!
//! Requests of nodes and their answers are messages. Each of them arrives at any time or never, perhaps twice, and in any
//! order. So a write may be made long after its node has given up, stopped or ended. The store is like that of a cluster: it
//! decides whether a batch of changes fits its records, and each node reads a copy that follows later.

use std::collections::{BTreeMap, HashMap};
use std::sync::{Arc, Weak};
use std::time::Duration;

use async_trait::async_trait;
use bytes::Bytes;
use parking_lot::Mutex;
use tokio::sync::{Notify, broadcast, oneshot};
use tokio::time::timeout;

use super::Random;
use crate::memory::Records;
use crate::{
    Change, Expect, Limits, MAX_CHANGES, Order, Query, Record, Revision, StateError, StateStore,
    WriteError, check,
};

/// How long a node waits for an answer.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(5);
/// How long a node waits for its copy.
const CATCH_UP: Duration = Duration::from_secs(10);
/// How often a node tries to write a batch that fits its copy.
const TRIES: usize = 20;
/// The number of changed keys that a receiver may lag behind.
const LAG: usize = 8192;
/// One in so many messages is lost, as many are repeated, and as many are late.
const ODDS: u64 = 100;
/// How late a message may be, in milliseconds.
const LATEST: u64 = 12_000;

/// The network, with the store behind it.
#[derive(Default)]
pub struct Network(Mutex<State>);

#[derive(Default)]
struct State {
    records: Records,
    /// The batches of changes that were made.
    log: Vec<Vec<Logged>>,
    last: Revision,
    messages: Vec<Message>,
    /// The messages that are late, and when they arrive.
    late: Vec<(u64, Message)>,
    links: Vec<Link>,
    next: u64,
    /// Milliseconds since the world began.
    now: u64,
    observer: Option<Observer>,
    /// What has happened, as one number.
    trace: u64,
}

type Observer = Box<dyn FnMut(&Written<'_>) + Send>;

/// A batch of changes that the store has made.
pub struct Written<'w> {
    /// The node that asked for it.
    pub node: usize,
    /// Which of the node's processes that was.
    pub life: u64,
    /// When it asked, in the time of the world.
    pub sent: Duration,
    /// When the changes were made.
    pub made: Duration,
    /// The changes.
    pub changes: &'w [Change],
    /// The values of the changed records before.
    pub before: &'w [Option<Bytes>],
}

#[derive(Clone)]
struct Logged {
    key: String,
    revision: Revision,
    value: Option<Bytes>,
}

/// The connection of a node.
struct Link {
    is_cut: bool,
    /// Whether its copy learns nothing, although it can write.
    is_deaf: bool,
    store: Weak<NodeStore>,
    /// The number of batches that its copy has; `None` before it has any.
    fed: Option<usize>,
}

#[derive(Clone)]
struct Message {
    node: usize,
    life: u64,
    /// The number of the request.
    number: u64,
    sent: u64,
    content: Content,
}

#[derive(Clone)]
enum Content {
    /// A request for a batch of changes. An empty one only asks for the last revision.
    Request(Vec<Change>),
    Answer(Answer),
}

#[derive(Clone)]
struct Answer {
    /// The revisions of the changes, if they were made.
    made: Option<Vec<Revision>>,
    last: Revision,
}

/// Where a message went.
pub(super) enum Delivered {
    /// There is none.
    Nothing,
    /// To the store, or nowhere.
    Away,
    /// To this node.
    To(usize),
}

impl Network {
    /// Calls `observe` with each batch of changes that is made from now on.
    pub fn observe(&self, observe: impl FnMut(&Written<'_>) + Send + 'static) {
        self.0.lock().observer = Some(Box::new(observe));
    }

    /// Returns a record, as the store has it.
    pub fn record(&self, key: &str) -> Option<Record> {
        let state = self.0.lock();
        let (value, revision) = state.records.by_key.get(key)?;
        Some(Record { key: key.to_owned(), value: value.clone(), revision: *revision })
    }

    /// Returns the keys of the records that begin with `prefix`, as the store has them.
    pub fn keys(&self, prefix: &str) -> Vec<String> {
        let state = self.0.lock();
        let below = state.records.by_key.range(prefix.to_owned()..);
        below.map(|(key, _)| key.clone()).take_while(|key| key.starts_with(prefix)).collect()
    }

    /// Returns what has happened, as one number.
    pub(super) fn trace(&self) -> u64 {
        self.0.lock().trace
    }

    /// Connects a new process of a node. Its number is the second value.
    pub(super) fn connect(self: &Arc<Self>, node: usize) -> (Arc<NodeStore>, u64) {
        let mut state = self.0.lock();
        state.next += 1;
        let life = state.next;
        let store = Arc::new(NodeStore {
            network: Arc::clone(self),
            node,
            life,
            copy: Mutex::default(),
            waiting: Mutex::default(),
            progress: Mutex::default(),
            advanced: Notify::new(),
            changed: broadcast::Sender::new(LAG),
        });
        let link = Link { is_cut: false, is_deaf: false, store: Arc::downgrade(&store), fed: None };
        match state.links.get_mut(node) {
            Some(before) => *before = link,
            None => state.links.push(link),
        }
        (store, life)
    }

    /// Cuts the connection of a node, or restores it.
    pub(super) fn cut(&self, node: usize, is_cut: bool) {
        self.0.lock().links[node].is_cut = is_cut;
    }

    /// Stops what the copy of a node learns, or lets it go on.
    pub(super) fn deafen(&self, node: usize, is_deaf: bool) {
        self.0.lock().links[node].is_deaf = is_deaf;
    }

    /// Sets the time of the world, in milliseconds.
    pub(super) fn set_now(&self, now: u64) {
        self.0.lock().now = now;
    }

    fn send(&self, node: usize, life: u64, changes: Vec<Change>) -> Result<u64, StateError> {
        let mut state = self.0.lock();
        if state.links[node].is_cut {
            return Err(StateError::new("there is no connection"));
        }
        state.next += 1;
        let (number, sent) = (state.next, state.now);
        state.messages.push(Message { node, life, number, sent, content: Content::Request(changes) });
        Ok(number)
    }

    /// Delivers any message, or loses, repeats or delays it.
    pub(super) fn deliver(&self, random: &mut Random, is_lossy: bool) -> Delivered {
        let mut state = self.0.lock();
        state.collect_late(is_lossy);
        if state.messages.is_empty() {
            return Delivered::Nothing;
        }
        let at = random.index(state.messages.len());
        let fate = random.below(ODDS);
        let message = match is_lossy && fate == 0 {
            true => state.messages[at].clone(),
            false => state.messages.swap_remove(at),
        };
        if is_lossy && fate == 2 {
            let due = state.now + random.below(LATEST);
            state.late.push((due, message));
            return Delivered::Away;
        }
        let Message { node, life, number, sent, content } = message;
        let link = &state.links[node];
        let is_lost = (is_lossy && fate == 1) || link.is_cut;
        match content {
            _ if is_lost => Delivered::Away,
            Content::Request(changes) => {
                let kind = changes.first().and_then(|change| change.key.bytes().next());
                state.note([node as u64, number, changes.len() as u64, kind.unwrap_or_default().into()]);
                let answer = state.answer(node, life, sent, changes);
                let content = Content::Answer(answer);
                state.messages.push(Message { node, life, number, sent, content });
                Delivered::Away
            }
            Content::Answer(answer) => {
                let store = link.store.upgrade().filter(|store| store.life == life);
                state.note([node as u64, number]);
                drop(state);
                let waiting = store.and_then(|store| store.waiting.lock().remove(&number));
                if let Some(waiting) = waiting {
                    // Its caller may be gone.
                    drop(waiting.send(answer));
                }
                Delivered::To(node)
            }
        }
    }

    /// Shows the next changes to the copy of a node. Returns `false` if there are none, or the node is cut off.
    pub(super) fn feed(&self, node: usize) -> bool {
        let mut state = self.0.lock();
        let last = state.log.len();
        let link = &mut state.links[node];
        if link.is_cut || link.is_deaf || link.fed == Some(last) {
            return false;
        }
        let Some(store) = link.store.upgrade() else { return false };
        let fed = link.fed;
        let (changes, now) = match fed {
            Some(fed) => (state.log[fed].clone(), fed + 1),
            // The copy is made anew.
            None => {
                let all = state.records.by_key.iter();
                let logged = |(key, (value, revision)): (&String, &(Bytes, Revision))| Logged {
                    key: key.clone(),
                    revision: *revision,
                    value: Some(value.clone()),
                };
                (all.map(logged).collect(), last)
            }
        };
        let applied = match fed {
            Some(_) => changes.last().map_or(0, |change| change.revision),
            None => state.last,
        };
        state.links[node].fed = Some(now);
        state.note([node as u64, now as u64]);
        drop(state);
        store.apply(changes);
        *store.progress.lock() = Some(applied);
        store.advanced.notify_waiters();
        true
    }
}

impl State {
    fn note<const N: usize>(&mut self, numbers: [u64; N]) {
        for number in numbers {
            // FNV-1a, a word at a time.
            self.trace = (self.trace ^ number).wrapping_mul(0x0100_0000_01b3);
        }
    }

    /// Puts the late messages that arrive now to the others: all of them, once no message is late any more.
    fn collect_late(&mut self, is_lossy: bool) {
        let Self { late, messages, now, .. } = self;
        let due = late.extract_if(.., |(due, _)| !is_lossy || *due <= *now);
        messages.extend(due.map(|(_, message)| message));
    }

    /// Makes changes, if they fit.
    fn answer(&mut self, node: usize, life: u64, sent: u64, changes: Vec<Change>) -> Answer {
        if changes.is_empty() {
            return Answer { made: None, last: self.last };
        }
        let value = |change: &Change| Some(self.records.by_key.get(&change.key)?.0.clone());
        let before: Vec<Option<Bytes>> = changes.iter().map(value).collect();
        let Ok(revisions) = self.records.apply(changes.clone()) else {
            return Answer { made: None, last: self.last };
        };
        self.last = revisions.last().copied().unwrap_or(self.last);
        if let Some(observe) = &mut self.observer {
            let (sent, made) = (Duration::from_millis(sent), Duration::from_millis(self.now));
            observe(&Written { node, life, sent, made, changes: &changes, before: &before });
        }
        self.log.push(logged(changes, &revisions));
        Answer { made: Some(revisions), last: self.last }
    }
}

fn logged(changes: Vec<Change>, revisions: &[Revision]) -> Vec<Logged> {
    let all = changes.into_iter().zip(revisions);
    all.map(|(Change { key, value, .. }, revision)| Logged { key, revision: *revision, value }).collect()
}

/// The store as the process of a node reaches it.
pub(super) struct NodeStore {
    network: Arc<Network>,
    node: usize,
    life: u64,
    /// The last known change of each key.
    copy: Mutex<BTreeMap<String, (Revision, Option<Bytes>)>>,
    /// The requests that wait for an answer.
    waiting: Mutex<HashMap<u64, oneshot::Sender<Answer>>>,
    /// The revision up to which the copy has all changes; `None` before it has any.
    progress: Mutex<Option<Revision>>,
    /// Notified when there is progress. Unlike a `watch`, it wakes its waiters in their order.
    advanced: Notify,
    changed: broadcast::Sender<Arc<str>>,
}

impl NodeStore {
    /// Applies changes to the copy, unless later ones are known.
    fn apply(&self, changes: Vec<Logged>) {
        let mut new = Vec::with_capacity(changes.len());
        {
            let mut copy = self.copy.lock();
            for Logged { key, revision, value } in changes {
                if copy.get(&key).is_none_or(|(known, _)| *known < revision) {
                    new.push(Arc::<str>::from(&*key));
                    copy.insert(key, (revision, value));
                }
            }
        }
        for key in new {
            // There may be no follower.
            drop(self.changed.send(key));
        }
    }

    async fn ask(&self, changes: Vec<Change>) -> Result<Answer, StateError> {
        let number = self.network.send(self.node, self.life, changes)?;
        let (sender, receiver) = oneshot::channel();
        self.waiting.lock().insert(number, sender);
        match timeout(ANSWER_TIMEOUT, receiver).await {
            Ok(Ok(answer)) => Ok(answer),
            _ => Err(StateError::new("there was no answer in time")),
        }
    }

    /// Waits until the copy has all changes up to a revision.
    async fn reach(&self, revision: Revision) -> Result<(), StateError> {
        let is_reached = || self.progress.lock().is_some_and(|applied| applied >= revision);
        if is_reached() {
            return Ok(());
        }
        let reached = async {
            loop {
                let advanced = self.advanced.notified();
                if is_reached() {
                    return;
                }
                advanced.await;
            }
        };
        timeout(CATCH_UP, reached).await.map_err(|_| StateError::new("the copy does not keep up"))
    }

    /// Returns the key of a change that does not fit the copy.
    fn conflict(&self, changes: &[Change]) -> Option<String> {
        let copy = self.copy.lock();
        let is_first = |at: usize| changes[..at].iter().all(|other| other.key != changes[at].key);
        let fits = |change: &Change| {
            let known = copy.get(&change.key).filter(|(_, value)| value.is_some());
            match change.expect {
                Expect::Anything => true,
                Expect::Absent => known.is_none(),
                Expect::Revision(expected) => known.is_some_and(|(revision, _)| *revision == expected),
            }
        };
        let conflict = changes.iter().enumerate().find(|(at, change)| is_first(*at) && !fits(change));
        conflict.map(|(_, change)| change.key.clone())
    }
}

#[async_trait]
impl StateStore for NodeStore {
    async fn write(&self, changes: Vec<Change>) -> Result<Vec<Revision>, WriteError> {
        check(&changes, &Limits { changes: MAX_CHANGES, ..Limits::default() })?;
        self.reach(0).await?;
        if changes.is_empty() {
            return Ok(Vec::new());
        }
        for _ in 0..TRIES {
            if let Some(key) = self.conflict(&changes) {
                return Err(WriteError::Conflict { key });
            }
            let answer = self.ask(changes.clone()).await?;
            if let Some(revisions) = answer.made {
                self.apply(logged(changes, &revisions));
                return Ok(revisions);
            }
            self.sync().await?;
        }
        Err(StateError::new("records change faster than they can be written").into())
    }

    async fn get(&self, key: &str) -> Result<Option<Record>, StateError> {
        self.reach(0).await?;
        let copy = self.copy.lock();
        let found = copy.get(key).and_then(|(revision, value)| Some((*revision, value.clone()?)));
        Ok(found.map(|(revision, value)| Record { key: key.to_owned(), value, revision }))
    }

    async fn list(&self, query: Query) -> Result<Vec<Record>, StateError> {
        self.reach(0).await?;
        if query.keys.is_empty() {
            return Ok(Vec::new());
        }
        let copy = self.copy.lock();
        let found = copy.range(query.keys).filter_map(|(key, (revision, value))| {
            Some(Record { key: key.clone(), value: value.clone()?, revision: *revision })
        });
        Ok(match query.order {
            Order::Ascending => found.take(query.limit).collect(),
            Order::Descending => found.rev().take(query.limit).collect(),
        })
    }

    async fn sync(&self) -> Result<(), StateError> {
        self.reach(0).await?;
        let last = self.ask(Vec::new()).await?.last;
        self.reach(last).await
    }

    fn changed_keys(&self) -> Option<broadcast::Receiver<Arc<str>>> {
        Some(self.changed.subscribe())
    }
}
