//! Tasks of a store that several nodes share: any node that offers a capability runs its tasks.
//!
//! # How it works
//!
//! The record of a task names the life of the node that runs it ([`Runner`]). A node takes a task that
//! no node runs, or whose node is gone, by writing itself into the record. If two nodes do so at once,
//! the store refuses one of the writes. A node may change a task that it runs only while the record
//! names the node. The notes of a program need a separate record that names the node (`hold_run` in
//! `take.rs`). A node that was suspended while another took its task can therefore neither write to the
//! task nor make a call that it could not note.
//!
//! Each node writes heartbeats to its own record (`nodes`), follows the records of all nodes
//! (`follow.rs`), and takes tasks (`take.rs`).
//!
//! # Invariants
//!
//! - A call that cannot be repeated is begun by one node, even if other nodes take its task later.
//! - A task whose node is gone is taken by another one, or ends as interrupted.
//! - A node judges others only after it has received their newest records.

mod nodes;

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use orla_marketplace::program::IDS;
use orla_marketplace::{CapabilityMarketplace, Entry};
use orla_state::StateStore;
use parking_lot::Mutex;
use tokio::time::Instant;

use crate::keys::OwnerKey;
use crate::task::{Runner, Task, TaskId};

#[cfg(test)]
pub(crate) use nodes::LEASE;
pub(crate) use nodes::Nodes;
use nodes::OWN_LEASE;

/// The settings with which a node shares its tasks.
pub struct Sharing {
    /// The name of this node, unique in the cluster.
    pub node: String,
    /// Whether this node runs the calls of a capability itself.
    pub runs: Box<dyn Fn(&Entry) -> bool + Send + Sync>,
    /// Whether this node accepts a task of another node, among the tasks that it can run.
    pub admits: Box<dyn Fn(Foreign<'_>) -> bool + Send + Sync>,
    /// Whether this node currently takes tasks of others.
    pub takes: Box<dyn Fn() -> bool + Send + Sync>,
    /// The store of this node alone. Tasks that this node has kept there for the shared store are handed over.
    pub own: Option<Arc<dyn StateStore>>,
    /// Whether tasks are accepted and kept there while the shared store cannot be reached.
    pub accepts_alone: bool,
}

/// A task that another node accepted.
#[derive(Clone, Copy, Debug)]
pub struct Foreign<'a> {
    /// The capability of the task.
    pub capability: &'a Entry,
    /// Whether the task is a program of its caller, whose calls are named only in its text.
    pub is_program: bool,
    /// Whether the caller was identified.
    pub is_identified: bool,
}

/// The state that a node needs to share tasks.
pub(crate) struct Shared {
    /// The current life of this node.
    pub(crate) me: Runner,
    runs: Box<dyn Fn(&Entry) -> bool + Send + Sync>,
    admits: Box<dyn Fn(Foreign<'_>) -> bool + Send + Sync>,
    takes: Box<dyn Fn() -> bool + Send + Sync>,
    /// The time of this node's last heartbeat, if the node knows which others are present.
    last_heartbeat: Mutex<Option<Instant>>,
    /// Whether a scan of all tasks is requested.
    scan_requested: AtomicBool,
    pub(crate) nodes: Mutex<Nodes>,
    /// Tasks that were accepted here and that no node has taken yet. They count on this node, so that
    /// their number is bounded.
    offered: Mutex<HashMap<TaskId, OwnerKey>>,
    /// Set when another instance uses the name of this node.
    pub(crate) is_replaced: AtomicBool,
}

impl Shared {
    pub(crate) fn new(sharing: Sharing) -> Self {
        let life = uuid::Uuid::now_v7().simple().to_string();
        let Sharing { node, runs, admits, takes, .. } = sharing;
        Self {
            me: Runner { node, life },
            runs,
            admits,
            takes,
            last_heartbeat: Mutex::default(),
            scan_requested: AtomicBool::new(false),
            nodes: Mutex::default(),
            offered: Mutex::default(),
            is_replaced: AtomicBool::new(false),
        }
    }

    /// Returns whether the other nodes consider this node present, and this node knows which others are.
    /// A node that was suspended is not present until its next heartbeat.
    pub(crate) fn is_present(&self) -> bool {
        self.last_heartbeat.lock().is_some_and(|at| at.elapsed() < OWN_LEASE)
    }

    /// Sets the time at which this node began to write its last heartbeat, or `None` if the write
    /// failed.
    pub(crate) fn set_last_heartbeat(&self, at: Option<Instant>) {
        *self.last_heartbeat.lock() = at;
    }

    /// Requests a scan of all tasks within about a second.
    pub(crate) fn request_scan(&self) {
        self.scan_requested.store(true, Ordering::Release);
    }

    /// Returns whether a scan of all tasks is requested.
    pub(crate) fn take_scan_request(&self) -> bool {
        self.scan_requested.swap(false, Ordering::AcqRel)
    }

    /// Returns whether this node currently takes tasks of others.
    pub(crate) fn takes(&self) -> bool {
        !self.is_replaced.load(Ordering::Relaxed) && (self.takes)()
    }

    /// Returns whether this node has the capability of a task itself and may run the task. It runs its
    /// own tasks, and tasks of others that it takes and whose capability it serves to them.
    pub(crate) fn runs(&self, market: &Arc<CapabilityMarketplace>, task: &Task) -> bool {
        let Some(entry) = market.get(&task.capability).filter(|entry| (self.runs)(entry)) else {
            return false;
        };
        if self.is_own(task) {
            return !self.is_replaced.load(Ordering::Relaxed);
        }
        let foreign = Foreign {
            capability: &entry,
            is_program: task.is_program || IDS.iter().any(|id| *id == &*entry.manifest.id),
            is_identified: task.owner.is_some(),
        };
        self.takes() && (self.admits)(foreign)
    }

    /// Returns whether this node accepted a task.
    pub(crate) fn is_own(&self, task: &Task) -> bool {
        task.node.as_deref().is_none_or(|node| node == self.me.node)
    }

    /// Returns whether no node runs a task.
    pub(crate) fn is_free(&self, task: &Task) -> bool {
        task.runner
            .as_ref()
            .is_none_or(|runner| *runner != self.me && !self.nodes.lock().is_alive(runner))
    }

    /// Offers a task that was accepted here to other nodes.
    pub(crate) fn offer(&self, id: &TaskId, owner: &OwnerKey) {
        self.offered.lock().insert(id.clone(), owner.clone());
    }

    /// Withdraws the offer of a task that was accepted here. Returns the owner of the task, the first
    /// time.
    pub(crate) fn remove_offer(&self, id: &TaskId) -> Option<OwnerKey> {
        self.offered.lock().remove(id)
    }

    /// Returns the tasks that were accepted here for other nodes.
    pub(crate) fn offered(&self) -> Vec<TaskId> {
        self.offered.lock().keys().cloned().collect()
    }
}
