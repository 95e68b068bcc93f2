//! Takes tasks of a store that several nodes share.

use std::sync::Arc;

use orla_state::{Change, Expect, Revision, StateError};

use crate::keys;
use crate::records::{Unchanged, put};
use crate::service::Inner;
use crate::state::{Event, Recovery, Repeat, recovery};
use crate::task::{Failure, Task, TaskId};

/// The outcome of taking a task.
pub(crate) enum Claim {
    /// This node runs the task, and the record says so.
    Mine,
    /// Another node runs the task, or will.
    NotMine,
}

impl Inner {
    /// Runs or interrupts a task that is awake, if that is up to this node.
    pub(crate) async fn take_if_free(self: &Arc<Self>, task: &Task) -> Result<(), StateError> {
        let Some(shared) = &self.shared else { return Ok(()) };
        if task.state.is_terminal() || self.closing.is_cancelled() {
            return Ok(());
        }
        // A node that does not know the others cannot know which of them runs the task.
        if !shared.is_present() {
            shared.request_scan();
            return Ok(());
        }
        // The acceptance of the task may have been written although its answer was lost.
        let was_accepted_here = task.runner.as_ref() == Some(&shared.me)
            && !self.local.contains(&task.id)
            && self.live.running(&task.id).is_none();
        if !was_accepted_here && !self.is_free(shared, task).await? {
            return Ok(());
        }
        match recovery(task.state, task.begun) {
            Recovery::Leave => {}
            Recovery::Run => {
                if was_accepted_here || shared.runs(&self.market, task) {
                    self.enter(task.owner_key(), task.id.clone());
                }
            }
            Recovery::Interrupt => {
                self.interrupt(task).await?;
            }
        }
        Ok(())
    }

    /// Ends a task whose node is gone, and whose call may have been made.
    async fn interrupt(&self, task: &Task) -> Result<(), StateError> {
        let (lost, failure) = (&task.runner, Failure::interrupted(&task.capability));
        let ended = self.change(&task.id, &[Event::Interrupt], |task| {
            // Another node may have taken the task in the meantime.
            if task.runner != *lost {
                return Err(StateError::new("the task was taken by another node"));
            }
            task.error = Some(failure.clone());
            Ok(Vec::new())
        });
        match ended.await {
            Ok(task) => {
                let node = lost.as_ref().map(|lost| &*lost.node);
                tracing::warn!(task = %task.id, node, "a task was interrupted: its node is gone");
            }
            // The task is checked again later.
            Err(Unchanged::State(error)) => {
                tracing::debug!(task = %task.id, %error, "a task cannot be marked as interrupted yet");
            }
            Err(_) => {}
        }
        Ok(())
    }

    /// Takes a task if no node runs it.
    pub(crate) async fn claim(&self, id: &TaskId) -> Result<Claim, StateError> {
        let Some(shared) = &self.shared else { return Ok(Claim::Mine) };
        loop {
            let Some(mut task) = self.load(id).await? else { return Ok(Claim::NotMine) };
            let is_mine = task.runner.as_ref() == Some(&shared.me);
            let is_run = task.begun == Some(Repeat::Journaled);
            if task.state.is_terminal() || (is_mine && !is_run) {
                return Ok(Claim::Mine);
            }
            if !shared.is_present() {
                return Err(StateError::new(
                    "this node has no contact with the other nodes of the cluster",
                ));
            }
            if !is_mine && (!self.is_free(shared, &task).await? || !shared.runs(&self.market, &task)) {
                return Ok(Claim::NotMine);
            }
            task.runner = Some(shared.me.clone());
            let mut changes = vec![put(&task)?];
            if is_run {
                // The last change of the run has written the holder. Either this node knows the whole
                // run, or the write conflicts. A change that was sent earlier and has not arrived yet
                // can no longer succeed.
                let holder = self.store.get(&keys::holder(id)).await?;
                let expect = holder.map_or(Expect::Absent, |holder| Expect::Revision(holder.revision));
                changes.extend(self.hold_run(id, expect));
            }
            if self.write_if(changes).await? {
                return Ok(Claim::Mine);
            }
        }
    }

    /// Returns the change that makes this node the holder of a program's run. Every change of the run
    /// includes it, so that a node that was suspended in the meantime cannot write. Returns `None` if
    /// the store is not shared.
    pub(crate) fn hold_run(&self, id: &TaskId, expect: Expect) -> Option<Change> {
        let shared = self.shared.as_ref()?;
        Some(Change::put(keys::holder(id), shared.me.life.clone()).expecting(expect))
    }

    /// Returns the revision of the record that makes this node the holder of a run, if it is the holder.
    pub(crate) async fn held_run(&self, id: &TaskId) -> Result<Option<Revision>, StateError> {
        let Some(shared) = &self.shared else { return Ok(None) };
        let record = self.store.get(&keys::holder(id)).await?;
        let own = record.filter(|record| record.value == shared.me.life.as_bytes());
        Ok(own.map(|record| record.revision))
    }

    /// Returns whether another node has taken a task that runs here.
    pub(crate) fn is_lost(&self, task: &Task) -> bool {
        self.shared.as_ref().is_some_and(|shared| task.runner.as_ref() != Some(&shared.me))
    }

    pub(crate) fn is_shared(&self) -> bool {
        self.shared.is_some()
    }
}
