//! Tasks that a node accepts while the shared store cannot be reached.
//!
//! The node keeps them in a store of its own, and hands them over to the shared store later. They do not run before.
//!
//! The shared store may have a task already, because an answer was lost, or the process died between both writes. So a task keeps
//! its id, and is written only if it is absent. That is enough as long as the shared store remembers its tasks (`task_keep`): an older task is
//! given up.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use orla_marketplace::JsonText;
use orla_state::{Change, Pages, StateError, StateStore, WriteError};
use parking_lot::Mutex;
use tokio::time::{MissedTickBehavior, interval};

use crate::keys::{self, OwnerKey};
use crate::records::{changed_concurrently, read, record};
use crate::service::Inner;
use crate::start::{NewTask, accepted};
use crate::task::{Task, TaskId, Timestamp};

/// The interval between two attempts to hand over tasks.
const INTERVAL: Duration = Duration::from_secs(1);
/// The pause after the shared store refused a task although it could be reached.
const REFUSED_PAUSE: Duration = Duration::from_secs(30);
/// The number of records read at once.
const PAGE: usize = 1000;

/// Keeps tasks for the shared store.
pub(crate) struct Buffer {
    store: Arc<dyn StateStore>,
    /// Whether it takes further tasks.
    is_open: bool,
    /// The tasks that it keeps. They count as unfinished tasks of this node.
    kept: Mutex<BTreeMap<TaskId, Kept>>,
}

#[derive(Clone)]
struct Kept {
    owner: OwnerKey,
    /// Whether nothing is left to do but to remove its rows.
    is_settled: bool,
}

impl Buffer {
    pub(crate) fn new(store: Arc<dyn StateStore>, is_open: bool) -> Self {
        Self { store, is_open, kept: Mutex::default() }
    }

    /// Returns whether it takes this task. Only the shared store knows who used an idempotency key, and how long it remembers a task
    /// of which its caller says that. Other rows of a task are not kept.
    pub(crate) fn takes(&self, new: &NewTask) -> bool {
        self.is_open && new.key.is_none() && new.keep_ms.is_none() && new.beside.is_empty()
    }

    fn add(&self, task: &Task) {
        let kept = Kept { owner: task.owner_key(), is_settled: false };
        self.kept.lock().insert(task.id.clone(), kept);
    }

    /// Keeps a task durably.
    pub(crate) async fn keep(&self, task: &Task, input: &JsonText) -> Result<(), StateError> {
        let rows = vec![
            Change::put(keys::buffered(&task.id), record(task)?),
            Change::put(keys::buffered_input(&task.id), input.bytes().clone()),
        ];
        match self.store.write(rows).await {
            Ok(_) => self.add(task),
            Err(WriteError::Failed(error)) => return Err(error),
            Err(WriteError::Conflict { .. }) => return Err(changed_concurrently()),
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

    /// Returns a task and its input. `None` if they are unreadable.
    async fn read(&self, id: &TaskId) -> Result<Option<(Task, Bytes)>, StateError> {
        let input = self.store.get(&keys::buffered_input(id)).await?;
        Ok(self.get(id).await?.zip(input.map(|row| row.value)))
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
    /// Returns a task that this node keeps until it can be handed over.
    pub(crate) async fn buffered(&self, id: &TaskId) -> Result<Option<Task>, StateError> {
        match &self.buffer {
            Some(buffer) => buffer.get(id).await,
            None => Ok(None),
        }
    }

    /// Reads the tasks that an earlier process has kept.
    pub(crate) async fn read_buffer(&self) -> Result<(), StateError> {
        let Some(buffer) = &self.buffer else { return Ok(()) };
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
                buffer.add(&task);
            }
        }
    }

    /// Hands tasks over until this node ends.
    pub(crate) async fn serve_buffer(self: Arc<Self>) {
        let (Some(shared), Some(buffer)) = (&self.shared, &self.buffer) else { return };
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
            let is_refused = tokio::select! {
                biased;
                () = self.drained.cancelled() => return,
                is_refused = self.hand_over(buffer) => is_refused,
            };
            if is_refused {
                ticker.reset_after(REFUSED_PAUSE);
            }
        }
    }

    /// Hands over all tasks, while the shared store can be reached. Returns whether one was refused all the same.
    async fn hand_over(&self, buffer: &Buffer) -> bool {
        let kept = buffer.kept.lock().clone();
        let (mut count, mut is_refused) = (0, false);
        for (id, kept) in kept {
            match self.hand_over_one(buffer, &id, &kept).await {
                Ok(()) => count += 1,
                Err(_) if self.store.sync().await.is_err() => break,
                Err(error) => {
                    is_refused = true;
                    tracing::error!(task = %id, %error, "a task that was accepted without the cluster cannot be handed over to it yet");
                }
            }
        }
        if count > 0 {
            tracing::info!(
                tasks = count,
                "tasks that were accepted without the cluster are handed over to it"
            );
        }
        is_refused
    }

    async fn hand_over_one(&self, buffer: &Buffer, id: &TaskId, kept: &Kept) -> Result<(), StateError> {
        if !kept.is_settled {
            match buffer.read(id).await? {
                Some((task, input)) if !self.is_forgotten(&task) => {
                    self.write_kept(task, input, kept).await?;
                }
                given_up => {
                    let why =
                        given_up.map_or("its record cannot be read", |_| "it is older than task_keep");
                    tracing::error!(task = %id, why, "a task that was accepted without the cluster is given up");
                    self.uncount_unfinished(&kept.owner);
                }
            }
            if let Some(kept) = buffer.kept.lock().get_mut(id) {
                kept.is_settled = true;
            }
        }
        buffer.remove(id).await?;
        buffer.kept.lock().remove(id);
        Ok(())
    }

    /// Returns whether the shared store may have had a task and have forgotten it since.
    fn is_forgotten(&self, task: &Task) -> bool {
        Timestamp::now() > task.created_at.plus_millis(self.keep_millis(task))
    }

    /// Writes a task to the shared store. This node may take it like any other.
    async fn write_kept(&self, task: Task, input: Bytes, kept: &Kept) -> Result<(), StateError> {
        // Until another node takes it, it counts here.
        let offered = self.shared.as_ref().filter(|shared| !shared.runs(&self.market, &task));
        offered.inspect(|shared| shared.offer(&task.id, &kept.owner));
        let rows = accepted(&task.id, &kept.owner, None, record(&task)?, input);
        match self.store.write(rows).await {
            Ok(_) | Err(WriteError::Conflict { .. }) if offered.is_some() => self.request_scan(),
            Ok(_) | Err(WriteError::Conflict { .. }) => self.uncount_unfinished(&kept.owner),
            Err(WriteError::Failed(error)) => {
                offered.inspect(|shared| drop(shared.remove_offer(&task.id)));
                return Err(error);
            }
        }
        Ok(())
    }
}
