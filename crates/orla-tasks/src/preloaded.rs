//! A bounded cache of the rows of tasks that are about to begin. Rows that find no room are read when
//! the task begins.

use std::collections::HashMap;
use std::time::Duration;

use bytes::Bytes;
use orla_marketplace::JsonText;
use orla_state::Revision;
use parking_lot::Mutex;
use tokio::sync::Notify;

use crate::task::{Task, TaskId};

/// The maximum number of cached tasks.
const TASKS: usize = 2048;
/// The maximum number of bytes of their inputs and states.
const BYTES: usize = 8 << 20;

/// A task that is to run.
pub(crate) struct LoadedTask {
    pub(crate) task: Task,
    pub(crate) input: JsonText,
    /// How long its program had run when it last fell asleep.
    pub(crate) used: Duration,
    pub(crate) stored: StoredState,
    /// The revision of its row below `open/`, if it is known.
    pub(crate) open: Option<Revision>,
}

/// The known rows of the program of a task.
pub(crate) enum StoredState {
    /// The state that was saved last. The notes must still be read.
    State(Option<Bytes>),
    /// The program slept until now, so no notes follow its state.
    Slept {
        /// The state.
        state: Bytes,
        /// The number of the last record of its trail.
        last_trail: u64,
    },
}

/// A bounded cache of tasks that are about to begin.
#[derive(Default)]
pub(crate) struct Preloaded {
    tasks: Mutex<Tasks>,
    /// Notified when there is room again.
    space: Notify,
}

#[derive(Default)]
struct Tasks {
    by_id: HashMap<TaskId, LoadedTask>,
    bytes: usize,
}

impl LoadedTask {
    fn bytes(&self) -> usize {
        let state = match &self.stored {
            StoredState::State(state) => state.as_ref().map_or(0, Bytes::len),
            StoredState::Slept { state, .. } => state.len(),
        };
        self.input.as_str().len() + state
    }
}

impl Preloaded {
    /// Keeps a task until it begins, if there is room.
    pub(crate) fn keep(&self, task: LoadedTask) {
        let mut tasks = self.tasks.lock();
        let bytes = task.bytes();
        if tasks.by_id.len() < TASKS && tasks.bytes + bytes <= BYTES {
            tasks.bytes += bytes;
            if let Some(before) = tasks.by_id.insert(task.task.id.clone(), task) {
                tasks.bytes -= before.bytes();
            }
        }
    }

    /// Removes a task and returns it, if it was kept.
    pub(crate) fn take(&self, id: &TaskId) -> Option<LoadedTask> {
        let mut tasks = self.tasks.lock();
        let taken = tasks.by_id.remove(id)?;
        tasks.bytes -= taken.bytes();
        if tasks.is_half_empty() {
            self.space.notify_waiters();
        }
        Some(taken)
    }

    /// Waits until half of the cache is free, for at most this time.
    pub(crate) async fn wait_for_space(&self, at_most: Duration) {
        let free = self.space.notified();
        tokio::pin!(free);
        free.as_mut().enable();
        if !self.tasks.lock().is_half_empty() {
            // After this time, tasks are read when they begin.
            drop(tokio::time::timeout(at_most, free).await);
        }
    }
}

impl Tasks {
    fn is_half_empty(&self) -> bool {
        self.by_id.len() <= TASKS / 2 && self.bytes <= BYTES / 2
    }
}
