//! A store that the nodes of one test share. Each of them reaches it in its own way, which can be cut off.

use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use parking_lot::Mutex;
use tokio::sync::broadcast::error::RecvError;
use tokio::sync::{broadcast, watch};

use crate::{
    Change, Limits, MAX_CHANGES, Memory, Query, Record, Revision, StateError, StateStore, WriteError,
};

/// The number of changes that a node may receive late before it must read all records.
const HEARD: usize = 100_000;

/// The shared state of the nodes.
pub struct Shared {
    records: Memory,
    changed: broadcast::Sender<Arc<str>>,
    /// How long the answer to a write is on its way.
    way_back: Duration,
}

/// How a node reaches the store.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Way {
    /// As ever.
    Open,
    /// The node can neither write nor receive changes. It reads its own copy.
    Away,
    /// The same, and requests hang.
    Hangs,
    /// The node is suspended. Its operations continue when it does.
    Stopped,
}

/// What happens at the `n`-th write that changes a key with this text.
#[derive(Clone, Copy, Debug)]
pub enum At {
    /// The node is suspended before the write is made.
    Before(&'static str, usize),
    /// The node is suspended after the write is made.
    After(&'static str, usize),
    /// It is made, and the answer is lost.
    Unanswered(&'static str, usize),
}

/// Changes how a node reaches the store.
#[derive(Clone)]
pub struct Link {
    way: watch::Sender<Way>,
    at: Arc<Mutex<Option<At>>>,
}

/// The store as one node reaches it.
struct Reached {
    shared: Arc<Shared>,
    link: Link,
    changed: broadcast::Sender<Arc<str>>,
}

impl Shared {
    /// Creates an empty store. The answer to a write takes this long.
    pub fn new(way_back: Duration) -> Arc<Self> {
        let records = Memory::new(Limits { changes: MAX_CHANGES, ..Limits::default() });
        Arc::new(Self { records, changed: broadcast::Sender::new(HEARD), way_back })
    }

    /// Returns the records, past all nodes.
    pub fn records(&self) -> &Memory {
        &self.records
    }

    /// Notifies all nodes that a record has changed.
    pub fn tell(&self, key: impl Into<Arc<str>>) {
        drop(self.changed.send(key.into()));
    }

    /// Returns the store for another node. To be called in a runtime.
    pub fn reach(self: &Arc<Self>, way: Way) -> (Arc<dyn StateStore>, Link) {
        let link = Link { way: watch::Sender::new(way), at: Arc::default() };
        let changed = broadcast::Sender::new(HEARD);
        let (mut heard, mut open) = (self.changed.subscribe(), link.way.subscribe());
        let (shared, tells) = (Arc::clone(self), changed.clone());
        tokio::spawn(async move {
            loop {
                let key = heard.recv().await;
                // Changes of other nodes are queued while the node receives nothing.
                if open.wait_for(|way| *way == Way::Open).await.is_err() {
                    return;
                }
                match key {
                    Ok(key) => drop(tells.send(key)),
                    Err(RecvError::Lagged(_)) => {
                        let all = shared.records.list(Query::below("", usize::MAX)).await;
                        for record in all.unwrap() {
                            drop(tells.send(record.key.into()));
                        }
                    }
                    Err(RecvError::Closed) => return,
                }
            }
        });
        let reached = Reached { shared: Arc::clone(self), link: link.clone(), changed };
        (Arc::new(reached), link)
    }
}

impl Link {
    /// Returns how the node reaches the store now.
    pub fn way(&self) -> Way {
        *self.way.borrow()
    }

    /// From now on the node reaches it so.
    pub fn set(&self, way: Way) {
        self.way.send_replace(way);
    }

    /// Sets what happens at a later write; `None` means nothing.
    pub fn at(&self, at: Option<At>) {
        *self.at.lock() = at;
    }

    /// Returns what happens to a write of these keys, if it is its turn.
    fn turn(&self, changes: &[Change]) -> Option<At> {
        let mut at = self.at.lock();
        let (At::Before(text, left) | At::After(text, left) | At::Unanswered(text, left)) =
            at.as_mut()?;
        if !changes.iter().any(|change| change.key.contains(*text)) {
            return None;
        }
        *left -= 1;
        if *left == 0 { at.take() } else { None }
    }

    /// Waits until a request may reach the store.
    async fn goes(&self) -> Result<(), StateError> {
        let mut ways = self.way.subscribe();
        let way = *ways.wait_for(|way| !matches!(way, Way::Hangs | Way::Stopped)).await.unwrap();
        match way {
            Way::Away => Err(StateError::new("there is no connection")),
            _ => Ok(()),
        }
    }

    /// A read of the copy that the node has.
    async fn reads(&self) {
        self.way.subscribe().wait_for(|way| *way != Way::Stopped).await.unwrap();
    }
}

#[async_trait]
impl StateStore for Reached {
    async fn write(&self, changes: Vec<Change>) -> Result<Vec<Revision>, WriteError> {
        let turn = self.link.turn(&changes);
        if let Some(At::Before(..)) = turn {
            self.link.set(Way::Stopped);
        }
        self.link.goes().await?;
        let keys: Vec<Arc<str>> = changes.iter().map(|change| (*change.key).into()).collect();
        let revisions = self.shared.records.write(changes).await?;
        keys.into_iter().for_each(|key| self.shared.tell(key));
        if !self.shared.way_back.is_zero() {
            tokio::time::sleep(self.shared.way_back).await;
        }
        match turn {
            Some(At::After(..)) => {
                self.link.set(Way::Stopped);
                self.link.goes().await?;
                Ok(revisions)
            }
            Some(At::Unanswered(..)) => Err(StateError::new("the answer is lost").into()),
            _ => Ok(revisions),
        }
    }

    async fn get(&self, key: &str) -> Result<Option<Record>, StateError> {
        self.link.reads().await;
        self.shared.records.get(key).await
    }

    async fn list(&self, query: Query) -> Result<Vec<Record>, StateError> {
        self.link.reads().await;
        self.shared.records.list(query).await
    }

    async fn sync(&self) -> Result<(), StateError> {
        self.link.goes().await
    }

    fn changed_keys(&self) -> Option<broadcast::Receiver<Arc<str>>> {
        Some(self.changed.subscribe())
    }
}
