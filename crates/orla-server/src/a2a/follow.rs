//! The events of a task: its current state, followed by its changes.

use std::collections::VecDeque;
use std::sync::Arc;

use a2a::{
    Artifact, StreamResponse, TaskArtifactUpdateEvent, TaskState, TaskStatus, TaskStatusUpdateEvent,
};
use chrono::{SubsecRound as _, Utc};
use futures_util::Stream;
use futures_util::stream::unfold;
use orla_tasks::{State, Task, Update, Viewer};
use tokio::sync::broadcast::error::RecvError;
use tokio::sync::{broadcast, watch};

use super::agent::Agent;
use super::records::Record;
use super::result;
use super::view::{self, is_callers_turn};

/// A task that is followed from a moment on.
pub(super) struct Following {
    pub(super) record: Record,
    /// `None` for a message that was refused and started no task.
    pub(super) live: Option<Live>,
}

/// A task that may change.
pub(super) struct Live {
    /// The state at that moment.
    pub(super) first: Arc<Task>,
    pub(super) changes: watch::Receiver<Arc<Task>>,
    pub(super) updates: broadcast::Receiver<Update>,
}

/// The point until which a task is followed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Until {
    /// Until nothing more happens without an action of the caller.
    CallersTurn,
    /// Until it is over.
    End,
}

/// The position of one follower of a task.
struct Follower {
    agent: Arc<Agent>,
    record: Record,
    live: Option<Live>,
    until: Until,
    /// The events that were not delivered yet.
    events: VecDeque<StreamResponse>,
}

impl Following {
    /// Returns the events. The first event contains the whole task.
    pub(super) fn events(
        self,
        agent: &Arc<Agent>,
        until: Until,
    ) -> impl Stream<Item = StreamResponse> + Send + use<> {
        let follower = Follower {
            agent: Arc::clone(agent),
            record: self.record,
            live: self.live,
            until,
            events: VecDeque::new(),
        };
        unfold((follower, true), |(mut follower, is_first)| async move {
            let event = if is_first { follower.first().await } else { follower.next().await };
            event.map(|event| (event, (follower, false)))
        })
    }
}

impl Follower {
    async fn first(&mut self) -> Option<StreamResponse> {
        let task = match &self.live {
            Some(live) => self.agent.view(&self.record, &live.first).await.ok()?,
            None => self.record.task.clone(),
        };
        self.end_after(&task.status.state);
        Some(StreamResponse::Task(task))
    }

    /// Ends the stream after this state.
    fn end_after(&mut self, state: &TaskState) {
        let is_last = match self.until {
            Until::CallersTurn => is_callers_turn(state),
            Until::End => state.is_terminal(),
        };
        if is_last {
            self.live = None;
        }
    }

    async fn next(&mut self) -> Option<StreamResponse> {
        loop {
            if let Some(event) = self.events.pop_front() {
                return Some(event);
            }
            let live = self.live.as_mut()?;
            tokio::select! {
                // Notices come before the end, and pieces of a text before the complete result.
                biased;
                update = live.updates.recv() => match update {
                    Ok(Update::Text { text, is_first }) => {
                        let event = self.artifact(result::piece(text.to_string()), !is_first, false);
                        return Some(event);
                    }
                    Ok(Update::Line(text)) if live.first.state != State::InputRequired => {
                        // The change by which the task begins may come later, and is no news then.
                        if live.first.state == State::Queued {
                            Arc::make_mut(&mut live.first).state = State::Working;
                        }
                        let task = Arc::clone(&live.first);
                        self.working(&task, Some(&text));
                    }
                    // Missed notices are part of the task.
                    Ok(Update::Line(_)) | Err(RecvError::Lagged(_) | RecvError::Closed) => {}
                },
                changed = live.changes.changed() => {
                    let after = match changed {
                        Ok(()) => Arc::clone(&live.changes.borrow_and_update()),
                        // The task is over, or was removed.
                        Err(_) => {
                            let id = live.first.id.clone();
                            self.agent.tasks.get(id.as_str(), Viewer::Operator).await.ok()?
                        }
                    };
                    let before = std::mem::replace(&mut live.first, Arc::clone(&after));
                    self.queue_events(&before, &after).await;
                }
            }
        }
    }

    /// Queues the events for a change.
    async fn queue_events(&mut self, before: &Task, after: &Task) {
        let is_at_work = |task: &Task| task.state != State::Queued;
        // The task may have begun and ended since the last look.
        let has_begun = !is_at_work(before) && is_at_work(after) && after.begun.is_some();
        if has_begun || (before.state != State::Working && after.state == State::Working) {
            self.working(after, None);
        }
        let asks = |task: &Task| task.questions.first().map(|question| question.key.clone());
        let is_new = before.state != after.state || asks(before) != asks(after);
        if after.state == State::Working || !is_new {
            return;
        }
        if after.state == State::Cancelled {
            self.agent.tasks.wait_stopped(&after.id).await;
        }
        let output = self.agent.output(after).await.unwrap_or_default();
        if let Some(artifact) = view::artifact(after, output.as_ref()) {
            let event = self.artifact(artifact, false, true);
            self.events.push_back(event);
        }
        let status = view::status_of(&self.record, after, output.as_ref());
        let state = status.state.clone();
        self.update(status);
        self.end_after(&state);
    }

    fn working(&mut self, task: &Task, text: Option<&str>) {
        let (id, context) = (task.id.as_str(), &self.record.task.context_id);
        let (parts, at) = (text.map(view::text_parts), Utc::now().trunc_subsecs(3));
        let mut status = view::status(id, context, TaskState::Working, parts, at);
        // Many notices may have the same millisecond.
        status.message.iter_mut().for_each(|message| message.message_id = a2a::new_message_id());
        self.update(status);
    }

    fn update(&mut self, status: TaskStatus) {
        self.events.push_back(StreamResponse::StatusUpdate(TaskStatusUpdateEvent {
            task_id: self.record.task.id.clone(),
            context_id: self.record.task.context_id.clone(),
            status,
            metadata: None,
        }));
    }

    fn artifact(&self, artifact: Artifact, append: bool, is_last: bool) -> StreamResponse {
        StreamResponse::ArtifactUpdate(TaskArtifactUpdateEvent {
            task_id: self.record.task.id.clone(),
            context_id: self.record.task.context_id.clone(),
            artifact,
            append: Some(append),
            last_chunk: Some(is_last),
            metadata: None,
        })
    }
}
