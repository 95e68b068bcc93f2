//! Takes up the tasks of the previous process.
//!
//! With a shared store, no task is taken up here. `follow.rs` finds the tasks whose node is gone.

use std::sync::Arc;
use std::time::Duration;

use orla_state::{Pages, StateError};
use tokio::time::Instant;

use crate::error::TaskError;
use crate::keys::{self, OwnerKey};
use crate::records::Unchanged;
use crate::service::{Started, Tasks};
use crate::state::{Event, Recovery, recovery};
use crate::task::{Failure, Task};

/// How long the tasks of the previous process wait after the server begins to listen. Without the pause,
/// a server that ends right after each start would interrupt a call each time.
const SETTLE: Duration = Duration::from_millis(100);

impl Tasks {
    /// Makes clients that change tasks wait until [`resume`](Self::resume) is done. Must be called
    /// before there are clients.
    pub fn hold(&self) {
        *self.0.held.lock() = Arc::clone(&self.0.taking_up).try_write_owned().ok();
    }

    /// Takes up the tasks of the previous process, and runs tasks from now on. Must be called once,
    /// after the capabilities are known.
    ///
    /// # Errors
    ///
    /// Returns an error if the state cannot be read or written.
    pub async fn resume(&self) -> Result<(), TaskError> {
        /// The number of records read at once.
        const BATCH: usize = 1000;
        if self.0.started.set(Instant::now()).is_err() {
            return Ok(());
        }
        let held = self.0.held.lock().take();
        let _taking_up = match held {
            Some(held) => held,
            None => Arc::clone(&self.0.taking_up).write_owned().await,
        };
        if self.0.is_shared() {
            self.0.read_buffer().await?;
            self.serve_shared();
            self.serve_queue(SETTLE);
            self.serve_timers();
            return Ok(());
        }
        let mut pages = Pages::below(&*self.0.store, keys::OPEN, BATCH);
        loop {
            let rows = pages.next().await?;
            if rows.is_empty() {
                break;
            }
            // These tasks stay asleep.
            let asleep = rows.iter().filter_map(|row| OwnerKey::read(&row.value));
            asleep.for_each(|owner| self.0.count_asleep(owner));
            for task in self.0.load_all(&keys::awake(&rows)).await?.into_iter().flatten() {
                self.recover(task).await?;
            }
        }
        self.0.wake_all_awaiting().await?;
        let is_idle = self.0.queue.lock().is_empty();
        self.serve_queue(if is_idle { Duration::ZERO } else { SETTLE });
        self.serve_timers();
        Ok(())
    }

    /// Runs one task, and no task of the previous process.
    ///
    /// # Errors
    ///
    /// Returns an error if the state cannot be read.
    pub async fn run_one(&self, started: &Started) -> Result<(), TaskError> {
        if self.0.started.set(Instant::now()).is_ok() {
            self.serve_queue(Duration::ZERO);
        }
        // A new task is already in the queue.
        if !started.is_new {
            let task = self.0.load(&started.task.id).await?;
            if let Some(task) = task {
                self.recover(task).await?;
            }
        }
        Ok(())
    }

    async fn recover(&self, task: Task) -> Result<(), StateError> {
        let (inner, id) = (&self.0, &task.id);
        match recovery(task.state, task.begun) {
            Recovery::Leave => {}
            Recovery::Run => {
                inner.counts.entered(task.state);
                inner.enter(task.owner_key(), id.clone());
            }
            Recovery::Interrupt => {
                inner.counts.entered(task.state);
                let failure = Failure::interrupted(&task.capability);
                let ended = inner.change(id, &[Event::Interrupt], |task| {
                    task.error = Some(failure.clone());
                    Ok(Vec::new())
                });
                if let Err(Unchanged::State(error)) = ended.await {
                    return Err(error);
                }
                tracing::warn!(task = %id, capability = task.capability, "a task was interrupted");
            }
        }
        Ok(())
    }
}
