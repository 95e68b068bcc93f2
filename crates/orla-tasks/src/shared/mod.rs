//! Tasks of a store that several nodes share: any node that offers a capability runs its tasks.
//!
//! # How it works
//!
//! The record of a task names the life of the node that runs it ([`Runner`]). A node takes a task by writing itself into
//! the record of one that nobody runs, or whose node is gone; of two that do so at once, the store
//! refuses one. A node may change a task that it runs only while the record names the node; the
//! notes of a program need a record of their own that does (`hold_run` in `take.rs`). So a node
//! that was stopped while another took its task can write nothing of it, and makes no call that it
//! could not note.
//!
//! Each node shows that it is alive in its own record (`nodes`), follows the records of all nodes
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
use parking_lot::Mutex;
use tokio::time::Instant;

use crate::keys::OwnerKey;
use crate::task::{Runner, Task, TaskId};

#[cfg(test)]
pub(crate) use nodes::LEASE;
pub(crate) use nodes::Nodes;
use nodes::TRUSTED;

/// How a node shares its tasks with others.
pub struct Sharing {
    /// The name of this node, which no other has.
    pub node: String,
    /// Whether this node runs the calls of a capability itself.
    pub runs: Box<dyn Fn(&Entry) -> bool + Send + Sync>,
    /// Whether this node runs a task of another node, of these that it could run.
    pub admits: Box<dyn Fn(Foreign<'_>) -> bool + Send + Sync>,
    /// Whether this node takes tasks of others now.
    pub takes: Box<dyn Fn() -> bool + Send + Sync>,
}

/// A task that another node has accepted.
#[derive(Clone, Copy, Debug)]
pub struct Foreign<'a> {
    /// Its capability.
    pub capability: &'a Entry,
    /// Whether it is a program of its caller, which makes calls that only its text names.
    pub is_program: bool,
    /// Whether its caller was identified.
    pub is_identified: bool,
}

/// What a node needs to share tasks.
pub(crate) struct Shared {
    /// This life of this node.
    pub(crate) me: Runner,
    runs: Box<dyn Fn(&Entry) -> bool + Send + Sync>,
    admits: Box<dyn Fn(Foreign<'_>) -> bool + Send + Sync>,
    takes: Box<dyn Fn() -> bool + Send + Sync>,
    /// When this node said last that it is there, if it has heard who else is.
    said: Mutex<Option<Instant>>,
    /// Whether all tasks are to be looked at soon.
    to_look: AtomicBool,
    pub(crate) nodes: Mutex<Nodes>,
    /// The tasks that were accepted here and that no node has taken yet. They count here, so that they are bounded.
    offered: Mutex<HashMap<TaskId, OwnerKey>>,
    /// Another instance has the name of this node.
    pub(crate) is_replaced: AtomicBool,
}

impl Shared {
    pub(crate) fn new(sharing: Sharing) -> Self {
        let life = uuid::Uuid::now_v7().simple().to_string();
        let Sharing { node, runs, admits, takes } = sharing;
        Self {
            me: Runner { node, life },
            runs,
            admits,
            takes,
            said: Mutex::default(),
            to_look: AtomicBool::new(false),
            nodes: Mutex::default(),
            offered: Mutex::default(),
            is_replaced: AtomicBool::new(false),
        }
    }

    /// Whether this node is there for the others, and has heard who else is. One that stood still is not, before it has said
    /// so again.
    pub(crate) fn is_there(&self) -> bool {
        self.said.lock().is_some_and(|said| said.elapsed() < TRUSTED)
    }

    /// This node began to say then that it is there, and was heard; or it was not.
    pub(crate) fn said(&self, at: Option<Instant>) {
        *self.said.lock() = at;
    }

    /// Has all tasks looked at within a second or so.
    pub(crate) fn look_soon(&self) {
        self.to_look.store(true, Ordering::Release);
    }

    /// Whether all tasks are to be looked at now.
    pub(crate) fn is_to_look(&self) -> bool {
        self.to_look.swap(false, Ordering::AcqRel)
    }

    /// Whether this node takes tasks of others now.
    pub(crate) fn takes(&self) -> bool {
        !self.is_replaced.load(Ordering::Relaxed) && (self.takes)()
    }

    /// Whether this node has the capability of a task itself, and may run the task: its own, and those of others that it
    /// takes and that it would serve them.
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

    /// Whether this node accepted a task.
    pub(crate) fn is_own(&self, task: &Task) -> bool {
        task.node.as_deref().is_none_or(|node| node == self.me.node)
    }

    /// Whether nobody runs a task.
    pub(crate) fn is_free(&self, task: &Task) -> bool {
        task.runner
            .as_ref()
            .is_none_or(|runner| *runner != self.me && !self.nodes.lock().is_alive(runner))
    }

    /// Notes a task that is accepted here for another node to take.
    pub(crate) fn offer(&self, id: &TaskId, owner: &OwnerKey) {
        self.offered.lock().insert(id.clone(), owner.clone());
    }

    /// Notes that a task that was accepted here is not for others to take any more. Gives whose it is, the first time.
    pub(crate) fn remove_offer(&self, id: &TaskId) -> Option<OwnerKey> {
        self.offered.lock().remove(id)
    }

    /// The tasks that were accepted here for others.
    pub(crate) fn offered(&self) -> Vec<TaskId> {
        self.offered.lock().keys().cloned().collect()
    }
}
