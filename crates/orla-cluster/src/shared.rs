//! The state of the cluster that all parts of this crate share.

use std::sync::atomic::{AtomicU64, Ordering};

use parking_lot::Mutex;
use tokio::sync::watch;
use tokio_util::sync::CancellationToken;

use crate::presence::Registry;

/// The known state of the cluster.
pub(crate) struct Shared {
    registry: Mutex<Registry>,
    /// The ids of this node's capabilities.
    own: Mutex<Vec<String>>,
    changes: watch::Sender<u64>,
    /// Whether the present nodes were ever known.
    is_learned: watch::Sender<bool>,
    /// Another instance has taken this node's name.
    pub(crate) replaced: CancellationToken,
    /// Whether this node takes no more calls of others.
    draining: watch::Sender<bool>,
    pub(crate) events: Events,
}

/// How often what happened to calls between nodes, since the start.
#[derive(Debug, Default)]
pub(crate) struct Events {
    /// A call was sent to another node.
    pub(crate) sent: AtomicU64,
    /// One of another node began here.
    pub(crate) taken: AtomicU64,
    /// One of another node was not begun here.
    pub(crate) refused: AtomicU64,
    /// A call was sent to one more node, because one did not begin it or was lost.
    pub(crate) repeated: AtomicU64,
    /// A node was lost during a call.
    pub(crate) lost: AtomicU64,
}

impl Events {
    /// Each with its word.
    pub(crate) fn counts(&self) -> Vec<(&'static str, u64)> {
        let Self { sent, taken, refused, repeated, lost } = self;
        let all = [
            ("sent", sent),
            ("taken", taken),
            ("refused", refused),
            ("repeated", repeated),
            ("lost", lost),
        ];
        all.into_iter().map(|(word, count)| (word, count.load(Ordering::Relaxed))).collect()
    }
}

/// Counts what happened.
pub(crate) fn count(event: &AtomicU64) {
    event.fetch_add(1, Ordering::Relaxed);
}

impl Shared {
    pub(crate) fn new() -> Self {
        Self {
            registry: Mutex::default(),
            own: Mutex::default(),
            changes: watch::Sender::new(0),
            is_learned: watch::Sender::new(false),
            replaced: CancellationToken::new(),
            draining: watch::Sender::new(false),
            events: Events::default(),
        }
    }

    pub(crate) fn read<T>(&self, look: impl FnOnce(&Registry) -> T) -> T {
        look(&self.registry.lock())
    }

    /// Changes the known state. `change` returns whether the served capabilities change.
    pub(crate) fn change(&self, change: impl FnOnce(&mut Registry) -> bool) {
        if change(&mut self.registry.lock()) {
            self.changes.send_modify(|count| *count += 1);
        }
    }

    pub(crate) fn own(&self, ids: Vec<String>) {
        *self.own.lock() = ids;
    }

    pub(crate) fn learned(&self) {
        self.is_learned.send_replace(true);
    }

    pub(crate) fn own_ids(&self) -> Vec<String> {
        self.own.lock().clone()
    }

    /// Returns a number that increases whenever the served capabilities change.
    pub(crate) fn changes(&self) -> watch::Receiver<u64> {
        self.changes.subscribe()
    }

    /// Returns whether this node takes no more calls of others, and changes of that.
    pub(crate) fn draining(&self) -> watch::Receiver<bool> {
        self.draining.subscribe()
    }

    pub(crate) fn is_draining(&self) -> bool {
        *self.draining.borrow()
    }

    /// Takes whether this node takes no more calls of others. Returns whether that is new.
    pub(crate) fn drain(&self, drains: bool) -> bool {
        self.draining.send_if_modified(|draining| std::mem::replace(draining, drains) != drains)
    }

    pub(crate) async fn wait_until_learned(&self) {
        let mut learned = self.is_learned.subscribe();
        // The sender is this value, which is borrowed meanwhile.
        drop(learned.wait_for(|is_learned| *is_learned).await);
    }
}
