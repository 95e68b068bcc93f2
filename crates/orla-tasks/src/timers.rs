//! What is due at an instant: one timer in the process for the earliest row of the store.

use std::sync::Arc;
use std::time::Duration;

use orla_state::{Change, Query, StateError};

use crate::keys;
use crate::options::LOOK;
use crate::program::{SLEEP, Waking};
use crate::service::{Inner, Tasks};
use crate::task::{TaskId, Timestamp};

/// A task that is over is removed.
pub(crate) const KEEP: &str = "keep";

/// How soon they are looked at again after an error. Each further error doubles it.
const AGAIN: Duration = Duration::from_millis(500);
/// How many rows are handled at once.
const BATCH: usize = 1000;
/// How long the next ones that sleep wait until those before them have begun.
const BEGUN: Duration = Duration::from_secs(1);

impl Tasks {
    /// Does what is due, from now on.
    pub(crate) fn serve_timers(&self) {
        let inner = Arc::clone(&self.0);
        self.0.tracker.spawn(async move {
            let mut again = AGAIN;
            loop {
                let set = inner.timer_set.notified();
                let wait = match inner.do_due().await {
                    Ok(wait) => {
                        again = AGAIN;
                        wait
                    }
                    Err(error) => {
                        tracing::warn!(%error, "timers cannot be read");
                        again = (again * 2).min(LOOK);
                        again / 2
                    }
                };
                tokio::select! {
                    () = inner.closing.cancelled() => return,
                    () = set => {}
                    () = tokio::time::sleep(wait) => {}
                }
            }
        });
    }
}

impl Inner {
    /// Does what is due now. Gives the time until the next row.
    async fn do_due(self: &Arc<Self>) -> Result<Duration, StateError> {
        loop {
            let rows = self.store.list(Query::below(keys::TIMERS, BATCH)).await?;
            let now = Timestamp::now();
            let mut awake = Vec::new();
            let mut next = None;
            for row in &rows {
                let Some((at, kind, id)) = keys::parse_timer(&row.key) else { continue };
                if at > now {
                    next = Some(Duration::from_millis(at.0 - now.0).min(LOOK));
                    break;
                }
                if self.closing.is_cancelled() {
                    return Ok(LOOK);
                }
                match (kind, TaskId::parse(id)) {
                    // Many are woken with one write.
                    (SLEEP, Some(id)) => awake.push(Waking::by(id, row)),
                    _ => {
                        self.due(kind, id).await?;
                        self.write(vec![Change::remove(row.key.clone())]).await?;
                    }
                }
            }
            if !self.wake(awake).await? {
                continue;
            }
            self.ahead.room(BEGUN).await;
            if let Some(next) = next {
                return Ok(next);
            }
            if rows.len() < BATCH {
                return Ok(LOOK);
            }
        }
    }

    async fn due(&self, kind: &str, id: &str) -> Result<(), StateError> {
        match (kind, TaskId::parse(id)) {
            (KEEP, Some(id)) => match self.load(&id).await? {
                Some(task) => self.remove(&task).await,
                None => Ok(()),
            },
            _ => {
                tracing::warn!(kind, id, "a timer of an unknown kind is dropped");
                Ok(())
            }
        }
    }
}
