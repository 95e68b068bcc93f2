//! Tasks that a node accepts while the shared store cannot be reached.
//!
//! The node keeps them in a store of its own, and hands them over to the shared store later. They do not run before. A task keeps its
//! id and is written only if it is absent, so it is handed over once even if an answer of the shared store was lost. A process
//! that dies between both writes hands the task over again, which changes nothing while the shared store keeps the task
//! (`task_keep`).

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use orla_marketplace::JsonText;
use orla_state::{Change, Pages, StateError, StateStore, WriteError};
use parking_lot::Mutex;
use tokio::time::{MissedTickBehavior, interval};

use crate::keys::{self, OwnerKey};
use crate::records::{read, record};
use crate::service::Inner;
use crate::start::accepted;
use crate::task::{Task, TaskId};

/// The interval between two attempts to hand over tasks.
const INTERVAL: Duration = Duration::from_secs(1);
/// The pause after the shared store refused a task although it could be reached.
const REFUSED_PAUSE: Duration = Duration::from_secs(30);
/// The number of records read at once.
const PAGE: usize = 1000;

/// Keeps tasks for the shared store.
pub(crate) struct Buffer {
    store: Arc<dyn StateStore>,
    /// The tasks that it keeps. They count as unfinished tasks of this node.
    kept: Mutex<BTreeMap<TaskId, OwnerKey>>,
}

impl Buffer {
    pub(crate) fn new(store: Arc<dyn StateStore>) -> Self {
        Self { store, kept: Mutex::default() }
    }

    /// Keeps a task durably.
    pub(crate) async fn keep(&self, task: &Task, input: &JsonText) -> Result<(), StateError> {
        let rows = vec![
            Change::put(keys::buffered(&task.id), record(task)?),
            Change::put(keys::buffered_input(&task.id), input.bytes().clone()),
        ];
        match self.store.write(rows).await {
            Ok(_) => drop(self.kept.lock().insert(task.id.clone(), task.owner_key())),
            Err(WriteError::Failed(error)) => return Err(error),
            Err(WriteError::Conflict { .. }) => {}
        }
        Ok(())
    }

    /// Returns a task that it keeps.
    pub(crate) async fn get(&self, id: &TaskId) -> Result<Option<Task>, StateError> {
        if !self.kept.lock().contains_key(id) {
            return Ok(None);
        }
        Ok(self.store.get(&keys::buffered(id)).await?.and_then(|row| read(id, &row)))
    }

    /// Returns what the shared store is to keep of a task. `None` if it is unreadable.
    async fn rows(&self, id: &TaskId, owner: &OwnerKey) -> Result<Option<Vec<Change>>, StateError> {
        let Some(task) = self.get(id).await? else { return Ok(None) };
        let Some(input) = self.store.get(&keys::buffered_input(id)).await? else { return Ok(None) };
        Ok(Some(accepted(id, owner, None, record(&task)?, input.value)))
    }

    async fn remove(&self, id: &TaskId) -> Result<(), StateError> {
        let rows = [keys::buffered(id), keys::buffered_input(id)].map(Change::remove);
        match self.store.write(rows.into()).await {
            Ok(_) | Err(WriteError::Conflict { .. }) => Ok(()),
            Err(WriteError::Failed(error)) => Err(error),
        }
    }
}

impl Inner {
    fn buffer(&self) -> Option<&Buffer> {
        self.shared.as_ref()?.buffer.as_ref()
    }

    /// Returns a task that this node keeps until it can be handed over.
    pub(crate) async fn buffered(&self, id: &TaskId) -> Result<Option<Task>, StateError> {
        match self.buffer() {
            Some(buffer) => buffer.get(id).await,
            None => Ok(None),
        }
    }

    /// Reads the tasks that an earlier process has kept.
    pub(crate) async fn read_buffer(&self) -> Result<(), StateError> {
        let Some(buffer) = self.buffer() else { return Ok(()) };
        let mut pages = Pages::below(&*buffer.store, keys::BUFFERED, PAGE);
        loop {
            let rows = pages.next().await?;
            if rows.is_empty() {
                return Ok(());
            }
            for row in rows {
                let id = row.key.strip_prefix(keys::BUFFERED).and_then(TaskId::parse);
                let Some(task) = id.and_then(|id| read(&id, &row)) else { continue };
                self.count_anyway(&task.owner_key());
                buffer.kept.lock().insert(task.id.clone(), task.owner_key());
            }
        }
    }

    /// Hands tasks over until this node ends.
    pub(crate) async fn serve_buffer(self: Arc<Self>) {
        let (Some(shared), Some(buffer)) = (&self.shared, self.buffer()) else { return };
        let mut ticker = interval(INTERVAL);
        ticker.set_missed_tick_behavior(MissedTickBehavior::Delay);
        loop {
            tokio::select! {
                biased;
                () = self.drained.cancelled() => return,
                _ = ticker.tick() => {}
            }
            if buffer.kept.lock().is_empty() || !shared.is_present() {
                continue;
            }
            let handed_over = tokio::select! {
                biased;
                () = self.drained.cancelled() => return,
                handed_over = self.hand_over(buffer) => handed_over,
            };
            if let Err(error) = handed_over
                && self.store.sync().await.is_ok()
            {
                tracing::error!(%error, "a task that was accepted without the cluster cannot be handed over to it yet");
                ticker.reset_after(REFUSED_PAUSE);
            }
        }
    }

    /// Hands over all tasks. Returns the last error; the others are handed over all the same.
    async fn hand_over(&self, buffer: &Buffer) -> Result<(), StateError> {
        let kept = buffer.kept.lock().clone();
        let (mut count, mut result) = (0, Ok(()));
        for (id, owner) in kept {
            match self.hand_over_one(buffer, &id, &owner).await {
                Ok(()) => count += 1,
                Err(error) => result = Err(error),
            }
            if result.is_err() && self.store.sync().await.is_err() {
                break;
            }
        }
        if count > 0 {
            tracing::info!(
                tasks = count,
                "tasks that were accepted without the cluster are handed over to it"
            );
        }
        result
    }

    async fn hand_over_one(
        &self,
        buffer: &Buffer,
        id: &TaskId,
        owner: &OwnerKey,
    ) -> Result<(), StateError> {
        match buffer.rows(id, owner).await? {
            // This node may take the task like any other.
            Some(rows) => match self.store.write(rows).await {
                Ok(_) | Err(WriteError::Conflict { .. }) => {}
                Err(WriteError::Failed(error)) => return Err(error),
            },
            None => tracing::error!(task = %id, "the record of a task cannot be read: the task is lost"),
        }
        buffer.remove(id).await?;
        if buffer.kept.lock().remove(id).is_some() {
            self.uncount_unfinished(owner);
        }
        Ok(())
    }
}
