//! Handles timers: one timer of the process waits for the earliest timer row of the store.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use bytes::Bytes;
use orla_state::{Change, Pages, Query, StateError};

use crate::keys;
use crate::options::MAX_TIMER_WAIT;
use crate::program::{SLEEP, Waking};
use crate::service::{Inner, Tasks};
use crate::state::{Recovery, recovery};
use crate::task::{TaskId, Timestamp};

/// The kind of a timer that removes a finished task.
pub(crate) const KEEP: &str = "keep";

/// The pause before the rows are read again after an error. Each further error doubles it.
const RETRY_INTERVAL: Duration = Duration::from_millis(500);
/// The number of rows handled at once.
const BATCH: usize = 1000;
/// How long the next batch of sleeping tasks waits until the previous one has begun.
const BATCH_WAIT: Duration = Duration::from_secs(1);

impl Tasks {
    /// Handles due timers from now on.
    pub(crate) fn serve_timers(&self) {
        let inner = Arc::clone(&self.0);
        self.0.tracker.spawn(async move {
            let mut backoff = RETRY_INTERVAL;
            loop {
                let set = inner.timer_set.notified();
                let done = match inner.recover_failed_writes().await {
                    Ok(()) => inner.run_due().await,
                    Err(error) => Err(error),
                };
                let (wait, has_failed) = match done {
                    Ok(wait) => (wait, false),
                    Err(error) => {
                        tracing::warn!(%error, "timers cannot be read");
                        (backoff, true)
                    }
                };
                backoff = if has_failed { (backoff * 2).min(MAX_TIMER_WAIT) } else { RETRY_INTERVAL };
                tokio::select! {
                    () = inner.closing.cancelled() => return,
                    () = set, if !has_failed => {}
                    () = tokio::time::sleep(wait) => {}
                }
            }
        });
    }
}

impl Inner {
    /// After a write that may have been made although it was reported as failed, finds the tasks that are awake
    /// but neither wait nor run.
    async fn recover_failed_writes(self: &Arc<Self>) -> Result<(), StateError> {
        if !self.has_failed_write.load(Ordering::Acquire) {
            return Ok(());
        }
        // More writes may fail at this moment. One search covers all of them.
        tokio::select! {
            () = self.closing.cancelled() => return Ok(()),
            () = tokio::time::sleep(RETRY_INTERVAL) => {}
        }
        self.has_failed_write.store(false, Ordering::Release);
        let looked = self.recover_lost_tasks().await;
        if looked.is_err() {
            self.has_failed_write.store(true, Ordering::Release);
        }
        looked
    }

    async fn recover_lost_tasks(self: &Arc<Self>) -> Result<(), StateError> {
        let mut pages = Pages::below(&*self.store, keys::OPEN, BATCH);
        loop {
            let rows = pages.next().await?;
            if rows.is_empty() {
                return self.wake_all_awaiting().await;
            }
            let mut ids = keys::awake(&rows);
            ids.retain(|id| !self.local.contains(id));
            for task in self.load_all(&ids).await?.into_iter().flatten() {
                match recovery(task.state, task.begun) {
                    // The task was accepted, and is not counted yet.
                    Recovery::Run if task.begun.is_none() => {
                        self.counts.entered(task.state);
                        self.enter(task.owner_key(), task.id);
                    }
                    Recovery::Run if self.reserve_wake(&task.id) => {
                        self.enqueue_woken(task.owner_key(), task.id, true);
                    }
                    Recovery::Run | Recovery::Leave | Recovery::Interrupt => {}
                }
            }
        }
    }

    /// Handles the timers that are due. Returns the time until the next timer.
    async fn run_due(self: &Arc<Self>) -> Result<Duration, StateError> {
        loop {
            let rows = self.store.list(Query::below(keys::TIMERS, BATCH)).await?;
            let now = Timestamp::now();
            let mut awake = Vec::new();
            let mut next = None;
            for row in &rows {
                let Some((at, kind, id)) = keys::parse_timer(&row.key) else { continue };
                if at > now {
                    next = Some(Duration::from_millis(at.0 - now.0).min(MAX_TIMER_WAIT));
                    break;
                }
                if self.closing.is_cancelled() {
                    return Ok(MAX_TIMER_WAIT);
                }
                match (kind, TaskId::parse(id)) {
                    // Many tasks are woken with one write.
                    (SLEEP, Some(id)) => awake.push(Waking::by(id, row)),
                    _ => {
                        self.run_timer(kind, id, now).await?;
                        self.write(vec![Change::remove(row.key.clone())]).await?;
                    }
                }
            }
            if !self.wake(awake).await? {
                continue;
            }
            self.preloaded.wait_for_space(BATCH_WAIT).await;
            if let Some(next) = next {
                return Ok(next);
            }
            if rows.len() < BATCH {
                return Ok(MAX_TIMER_WAIT);
            }
        }
    }

    /// Handles one timer that is due at `now`, whatever the clock says by then: its row is removed next.
    pub(crate) async fn run_timer(
        &self,
        kind: &str,
        id: &str,
        now: Timestamp,
    ) -> Result<(), StateError> {
        match (kind, TaskId::parse(id)) {
            (KEEP, Some(id)) => {
                let Some(task) = self.load(&id).await? else { return Ok(()) };
                // The task may have to be kept longer since it ended.
                let expires = task.updated_at.plus_millis(self.keep_millis(&task));
                if expires <= now {
                    return self.remove(&task).await;
                }
                self.write(vec![Change::put(keys::timer(expires, KEEP, id.as_str()), Bytes::new())])
                    .await
            }
            _ => {
                tracing::warn!(kind, id, "a timer of an unknown kind is dropped");
                Ok(())
            }
        }
    }
}
