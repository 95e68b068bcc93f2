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
const MAX_CHANGES_QUEUED: usize = 100_000;

/// The shared state of the nodes.
pub struct Shared {
    records: Memory,
    changed: broadcast::Sender<Arc<str>>,
    /// How long the answer to a write is on its way.
    answer_delay: Duration,
}

/// How a node reaches the store.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LinkState {
    /// As ever.
    Open,
    /// The node can neither write nor receive changes. It reads its own copy.
    Disconnected,
    /// The same, and requests hang.
    Hanging,
    /// The node is suspended. Its operations continue when it does.
    Stopped,
}

/// What happens at the `n`-th write that changes a key with this text.
#[derive(Clone, Copy, Debug)]
pub enum Fault {
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
    state: watch::Sender<LinkState>,
    fault: Arc<Mutex<Option<Fault>>>,
}

/// The store as one node reaches it.
struct NodeStore {
    shared: Arc<Shared>,
    link: Link,
    changed: broadcast::Sender<Arc<str>>,
}

impl Shared {
    /// Creates an empty store. The answer to a write takes this long.
    pub fn new(answer_delay: Duration) -> Arc<Self> {
        let records = Memory::new(Limits { changes: MAX_CHANGES, ..Limits::default() });
        Arc::new(Self { records, changed: broadcast::Sender::new(MAX_CHANGES_QUEUED), answer_delay })
    }

    /// Returns the records, past all nodes.
    pub fn records(&self) -> &Memory {
        &self.records
    }

    /// Notifies all nodes that a record has changed.
    pub fn notify(&self, key: impl Into<Arc<str>>) {
        drop(self.changed.send(key.into()));
    }

    /// Returns the store for another node. To be called in a runtime.
    pub fn connect(self: &Arc<Self>, state: LinkState) -> (Arc<dyn StateStore>, Link) {
        let link = Link { state: watch::Sender::new(state), fault: Arc::default() };
        let changed = broadcast::Sender::new(MAX_CHANGES_QUEUED);
        let (mut incoming, mut open) = (self.changed.subscribe(), link.state.subscribe());
        let (shared, outgoing) = (Arc::clone(self), changed.clone());
        tokio::spawn(async move {
            loop {
                let key = incoming.recv().await;
                // Changes of other nodes are queued while the node receives nothing.
                if open.wait_for(|state| *state == LinkState::Open).await.is_err() {
                    return;
                }
                match key {
                    Ok(key) => drop(outgoing.send(key)),
                    Err(RecvError::Lagged(_)) => {
                        let all = shared.records.list(Query::below("", usize::MAX)).await;
                        for record in all.unwrap() {
                            drop(outgoing.send(record.key.into()));
                        }
                    }
                    Err(RecvError::Closed) => return,
                }
            }
        });
        let store = NodeStore { shared: Arc::clone(self), link: link.clone(), changed };
        (Arc::new(store), link)
    }
}

impl Link {
    /// Returns how the node reaches the store now.
    pub fn state(&self) -> LinkState {
        *self.state.borrow()
    }

    /// From now on the node reaches it so.
    pub fn set(&self, state: LinkState) {
        self.state.send_replace(state);
    }

    /// Sets what happens at a later write; `None` means nothing.
    pub fn set_fault(&self, fault: Option<Fault>) {
        *self.fault.lock() = fault;
    }

    /// Returns what happens to a write of these keys, if it is its turn.
    fn take_fault(&self, changes: &[Change]) -> Option<Fault> {
        let mut fault = self.fault.lock();
        let (Fault::Before(text, left) | Fault::After(text, left) | Fault::Unanswered(text, left)) =
            fault.as_mut()?;
        if !changes.iter().any(|change| change.key.contains(*text)) {
            return None;
        }
        *left -= 1;
        if *left == 0 { fault.take() } else { None }
    }

    /// Waits until a request may reach the store.
    async fn wait_reachable(&self) -> Result<(), StateError> {
        let mut states = self.state.subscribe();
        let state = *states
            .wait_for(|state| !matches!(state, LinkState::Hanging | LinkState::Stopped))
            .await
            .unwrap();
        match state {
            LinkState::Disconnected => Err(StateError::new("there is no connection")),
            _ => Ok(()),
        }
    }

    /// A read of the copy that the node has.
    async fn wait_readable(&self) {
        self.state.subscribe().wait_for(|state| *state != LinkState::Stopped).await.unwrap();
    }
}

#[async_trait]
impl StateStore for NodeStore {
    async fn write(&self, changes: Vec<Change>) -> Result<Vec<Revision>, WriteError> {
        let fault = self.link.take_fault(&changes);
        if let Some(Fault::Before(..)) = fault {
            self.link.set(LinkState::Stopped);
        }
        self.link.wait_reachable().await?;
        let keys: Vec<Arc<str>> = changes.iter().map(|change| (*change.key).into()).collect();
        let revisions = self.shared.records.write(changes).await?;
        keys.into_iter().for_each(|key| self.shared.notify(key));
        if !self.shared.answer_delay.is_zero() {
            tokio::time::sleep(self.shared.answer_delay).await;
        }
        match fault {
            Some(Fault::After(..)) => {
                self.link.set(LinkState::Stopped);
                self.link.wait_reachable().await?;
                Ok(revisions)
            }
            Some(Fault::Unanswered(..)) => Err(StateError::new("the answer is lost").into()),
            _ => Ok(revisions),
        }
    }

    async fn get(&self, key: &str) -> Result<Option<Record>, StateError> {
        self.link.wait_readable().await;
        self.shared.records.get(key).await
    }

    async fn list(&self, query: Query) -> Result<Vec<Record>, StateError> {
        self.link.wait_readable().await;
        self.shared.records.list(query).await
    }

    async fn sync(&self) -> Result<(), StateError> {
        self.link.wait_reachable().await
    }

    fn changed_keys(&self) -> Option<broadcast::Receiver<Arc<str>>> {
        Some(self.changed.subscribe())
    }
}
