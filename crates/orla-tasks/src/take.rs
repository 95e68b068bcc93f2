//! Taking tasks of a store that several nodes share.

use std::sync::Arc;

use orla_state::{Change, Expect, Revision, StateError};

use crate::keys;
use crate::records::{Unchanged, put};
use crate::service::Inner;
use crate::state::{Event, Recovery, Repeat, recovery};
use crate::task::{Failure, Task, TaskId};

/// What comes of taking a task.
pub(crate) enum Claim {
    /// This node runs it. The record says so.
    Mine,
    /// Another node does, or will.
    NotMine,
}

impl Inner {
    /// Looks whether this node is to do something about a task that is awake.
    pub(crate) async fn consider(self: &Arc<Self>, task: &Task) -> Result<(), StateError> {
        let Some(shared) = &self.shared else { return Ok(()) };
        if task.state.is_terminal() || self.closing.is_cancelled() {
            return Ok(());
        }
        // Who has not heard the others knows of nobody who runs it.
        if !shared.is_there() {
            shared.look_soon();
            return Ok(());
        }
        // Its acceptance may have been written though its answer was lost.
        let is_left = task.runner.as_ref() == Some(&shared.me)
            && !self.here.contains(&task.id)
            && self.live.running(&task.id).is_none();
        if !is_left && !self.is_free(shared, task).await? {
            return Ok(());
        }
        match recovery(task.state, task.begun) {
            Recovery::Leave => {}
            Recovery::Run => {
                if is_left || shared.runs(&self.market, task) {
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
            // Another node may have taken it meanwhile.
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
            // It is looked at again.
            Err(Unchanged::State(error)) => {
                tracing::debug!(task = %task.id, %error, "a task is not interrupted");
            }
            Err(_) => {}
        }
        Ok(())
    }

    /// Takes a task, if nobody runs it.
    pub(crate) async fn claim(&self, id: &TaskId) -> Result<Claim, StateError> {
        let Some(shared) = &self.shared else { return Ok(Claim::Mine) };
        loop {
            let Some(mut task) = self.load(id).await? else { return Ok(Claim::NotMine) };
            let is_mine = task.runner.as_ref() == Some(&shared.me);
            let is_run = task.begun == Some(Repeat::Journaled);
            if task.state.is_terminal() || (is_mine && !is_run) {
                return Ok(Claim::Mine);
            }
            if !shared.is_there() {
                return Err(StateError::new("this node does not hear the others of the cluster"));
            }
            if !is_mine && (!self.is_free(shared, &task).await? || !shared.runs(&self.market, &task)) {
                return Ok(Claim::NotMine);
            }
            task.runner = Some(shared.me.clone());
            let mut changes = vec![put(&task)?];
            if is_run {
                // The last change of the run has written it. What this node knows of the run is all, or this is a conflict;
                // and what was sent before and has not come there yet never does.
                let holder = self.store.get(&keys::holder(id)).await?;
                let expect = holder.map_or(Expect::Absent, |holder| Expect::Revision(holder.revision));
                changes.extend(self.hold_run(id, expect));
            }
            if self.write_if(changes).await? {
                return Ok(Claim::Mine);
            }
        }
    }

    /// Says that this node goes on with the run of a program. Every change of the run is written with that, so that a node
    /// which was stopped meanwhile can write none. `None` if no other node can.
    pub(crate) fn hold_run(&self, id: &TaskId, expect: Expect) -> Option<Change> {
        let shared = self.shared.as_ref()?;
        Some(Change::put(keys::holder(id), shared.me.life.clone()).expecting(expect))
    }

    /// The revision of the record that says that this node goes on with a run, if it does.
    pub(crate) async fn held_run(&self, id: &TaskId) -> Result<Option<Revision>, StateError> {
        let Some(shared) = &self.shared else { return Ok(None) };
        let record = self.store.get(&keys::holder(id)).await?;
        let own = record.filter(|record| record.value == shared.me.life.as_bytes());
        Ok(own.map(|record| record.revision))
    }

    /// Whether this node may not change a task that it runs.
    pub(crate) fn is_lost(&self, task: &Task) -> bool {
        self.shared.as_ref().is_some_and(|shared| task.runner.as_ref() != Some(&shared.me))
    }

    pub(crate) fn is_shared(&self) -> bool {
        self.shared.is_some()
    }
}
