//! What is known of tasks that begin at once, so that it need not be read again. Bounded: what finds no room is read when
//! its task begins.

use std::collections::HashMap;
use std::time::Duration;

use bytes::Bytes;
use orla_marketplace::JsonText;
use orla_state::Revision;
use parking_lot::Mutex;
use tokio::sync::Notify;

use crate::task::{Task, TaskId};

/// The most tasks of which something is kept here.
const TASKS: usize = 2048;
/// The most bytes of their inputs and states.
const BYTES: usize = 8 << 20;

/// A task that is to run.
pub(crate) struct ToRun {
    pub(crate) task: Task,
    pub(crate) input: JsonText,
    /// How long its program had run when it fell asleep last.
    pub(crate) used: Duration,
    pub(crate) kept: Kept,
    /// The revision of its row below `open/`, if it is known.
    pub(crate) open: Option<Revision>,
}

/// What is known of the program of a task.
pub(crate) enum Kept {
    /// The state that was saved last. Notes are read.
    State(Option<Bytes>),
    /// It slept until now, so that nothing was noted since its state.
    Slept {
        /// The state.
        state: Bytes,
        /// The number of the last record of its trail.
        last_trail: u64,
    },
}

/// What is known of tasks that begin at once.
#[derive(Default)]
pub(crate) struct Preloaded {
    tasks: Mutex<Tasks>,
    /// Notified when there is room again.
    room: Notify,
}

#[derive(Default)]
struct Tasks {
    by_id: HashMap<TaskId, ToRun>,
    bytes: usize,
}

impl ToRun {
    fn bytes(&self) -> usize {
        let state = match &self.kept {
            Kept::State(state) => state.as_ref().map_or(0, Bytes::len),
            Kept::Slept { state, .. } => state.len(),
        };
        self.input.as_str().len() + state
    }
}

impl Preloaded {
    /// Keeps a task until it begins, if there is room.
    pub(crate) fn keep(&self, task: ToRun) {
        let mut tasks = self.tasks.lock();
        let bytes = task.bytes();
        if tasks.by_id.len() < TASKS && tasks.bytes + bytes <= BYTES {
            tasks.bytes += bytes;
            if let Some(before) = tasks.by_id.insert(task.task.id.clone(), task) {
                tasks.bytes -= before.bytes();
            }
        }
    }

    /// A task that was kept.
    pub(crate) fn take(&self, id: &TaskId) -> Option<ToRun> {
        let mut tasks = self.tasks.lock();
        let taken = tasks.by_id.remove(id)?;
        tasks.bytes -= taken.bytes();
        if tasks.is_roomy() {
            self.room.notify_waiters();
        }
        Some(taken)
    }

    /// Waits until a half is free, for so long at most.
    pub(crate) async fn room(&self, at_most: Duration) {
        let free = self.room.notified();
        tokio::pin!(free);
        free.as_mut().enable();
        if !self.tasks.lock().is_roomy() {
            // After this time they are read when they begin.
            drop(tokio::time::timeout(at_most, free).await);
        }
    }
}

impl Tasks {
    fn is_roomy(&self) -> bool {
        self.by_id.len() <= TASKS / 2 && self.bytes <= BYTES / 2
    }
}
