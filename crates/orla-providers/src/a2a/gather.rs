//! The events of an agent in one call. Pure: events in, the state of the conversation out.
//!
//! A complete task replaces the gathered events, because it is the agent's own view.

use a2a::{Artifact, Message, Part, PartContent, StreamResponse, TaskState};
use orla_marketplace::rtfs::text::excerpt;

/// The maximum number of bytes of an agent's answer.
pub(super) const MAX_ANSWER: usize = 16 * 1024 * 1024;
/// The number of characters of a message that are shown as progress.
const SHOWN: usize = 200;

/// The gathered events of a conversation.
#[derive(Clone, Debug, Default, PartialEq)]
pub(super) struct Gathered {
    pub(super) task: Option<String>,
    pub(super) context: Option<String>,
    pub(super) state: Option<TaskState>,
    /// The message of the newest state.
    pub(super) status_message: Option<Message>,
    pub(super) artifacts: Vec<Artifact>,
    /// The answer of an agent that created no task.
    pub(super) message: Option<Message>,
    /// The size of the gathered data in bytes.
    bytes: usize,
}

/// Whose turn it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Turn {
    /// The agent is working.
    Working,
    /// The agent asks a question.
    Asking,
    /// The conversation is over.
    Done,
}

/// The reason why an event is invalid.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub(super) enum InvalidEvent {
    #[error("it answers with more than 16 MiB")]
    TooLarge,
    #[error("it answered with another task than the one that was asked for")]
    Foreign,
}

impl Gathered {
    /// Takes an event, and returns the part of it to report.
    ///
    /// # Errors
    /// See [`InvalidEvent`]; the event is then ignored.
    pub(super) fn apply(&mut self, event: StreamResponse) -> Result<Option<String>, InvalidEvent> {
        match event {
            StreamResponse::Message(message) => {
                self.add_size(size(&message.parts))?;
                self.context = message.context_id.clone().or(self.context.take());
                self.message = Some(message);
                Ok(None)
            }
            StreamResponse::Task(task) => {
                self.check_task(&task.id)?;
                let artifacts = task.artifacts.unwrap_or_default();
                let bytes = artifacts.iter().map(artifact_size).sum();
                if bytes > MAX_ANSWER {
                    return Err(InvalidEvent::TooLarge);
                }
                (self.artifacts, self.bytes) = (artifacts, bytes);
                self.set_context(task.context_id);
                Ok(self.set_status(task.status.state, task.status.message))
            }
            StreamResponse::StatusUpdate(update) => {
                self.check_task(&update.task_id)?;
                self.set_context(update.context_id);
                Ok(self.set_status(update.status.state, update.status.message))
            }
            StreamResponse::ArtifactUpdate(update) => {
                self.check_task(&update.task_id)?;
                self.add_size(artifact_size(&update.artifact))?;
                self.set_context(update.context_id);
                let artifact = update.artifact;
                let name = artifact.name.clone().unwrap_or_else(|| artifact.artifact_id.clone());
                let known =
                    self.artifacts.iter_mut().find(|known| known.artifact_id == artifact.artifact_id);
                match known {
                    Some(known) if update.append == Some(true) => known.parts.extend(artifact.parts),
                    Some(known) => {
                        self.bytes -= artifact_size(known).min(self.bytes);
                        *known = artifact;
                    }
                    None => self.artifacts.push(artifact),
                }
                Ok(Some(line(&format!("artifact {name}"))))
            }
        }
    }

    /// Returns whose turn it is.
    pub(super) fn turn(&self) -> Turn {
        if self.message.is_some() {
            return Turn::Done;
        }
        match &self.state {
            Some(state) if state.is_terminal() => Turn::Done,
            Some(TaskState::InputRequired | TaskState::AuthRequired) => Turn::Asking,
            _ => Turn::Working,
        }
    }

    /// Clears the agent's question, because it is being answered.
    pub(super) fn answered(&mut self) {
        self.state = Some(TaskState::Submitted);
        self.status_message = None;
    }

    /// Returns the agent's last message, as text.
    pub(super) fn last_message(&self) -> Option<String> {
        let message = self.status_message.as_ref().or(self.message.as_ref())?;
        let texts: Vec<&str> = message.parts.iter().filter_map(Part::as_text).collect();
        Some(texts.join("\n")).filter(|text| !text.trim().is_empty())
    }

    /// Returns whether no event has arrived.
    pub(super) fn is_empty(&self) -> bool {
        self.task.is_none() && self.message.is_none()
    }

    fn set_status(&mut self, state: TaskState, message: Option<Message>) -> Option<String> {
        self.state = Some(state);
        self.status_message = message;
        self.last_message().map(|text| line(&text))
    }

    fn check_task(&mut self, task: &str) -> Result<(), InvalidEvent> {
        match &self.task {
            Some(own) if own != task => Err(InvalidEvent::Foreign),
            Some(_) => Ok(()),
            None if task.is_empty() => Err(InvalidEvent::Foreign),
            None => {
                self.task = Some(task.to_owned());
                Ok(())
            }
        }
    }

    fn set_context(&mut self, context: String) {
        if !context.is_empty() {
            self.context = Some(context);
        }
    }

    fn add_size(&mut self, more: usize) -> Result<(), InvalidEvent> {
        if self.bytes.saturating_add(more) > MAX_ANSWER {
            return Err(InvalidEvent::TooLarge);
        }
        self.bytes += more;
        Ok(())
    }
}

fn artifact_size(artifact: &Artifact) -> usize {
    let texts = [Some(&artifact.artifact_id), artifact.name.as_ref(), artifact.description.as_ref()];
    64 + texts.into_iter().flatten().map(String::len).sum::<usize>() + size(&artifact.parts)
}

/// Returns the size of parts in bytes, with an overhead for each.
fn size(parts: &[Part]) -> usize {
    let of = |part: &Part| {
        32 + match &part.content {
            PartContent::Text(text) => text.len(),
            PartContent::Url(url) => url.len(),
            PartContent::Raw(bytes) => bytes.len(),
            PartContent::Data(data) => data.to_string().len(),
        }
    };
    parts.iter().map(of).sum()
}

/// Returns one line of at most [`SHOWN`] characters.
fn line(text: &str) -> String {
    excerpt(text, SHOWN).replace(char::is_control, " ")
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use serde_json::{Value, json};

    fn event(event: Value) -> StreamResponse {
        serde_json::from_value(event).unwrap()
    }

    fn status(state: &str) -> StreamResponse {
        event(
            json!({"statusUpdate": {"taskId": "t", "contextId": "c", "status": {"state": format!("TASK_STATE_{state}")}}}),
        )
    }

    fn artifact(id: &str, text: &str, append: bool) -> StreamResponse {
        event(json!({"artifactUpdate": {"taskId": "t", "contextId": "c", "append": append,
            "artifact": {"artifactId": id, "parts": [{"text": text}]}}}))
    }

    fn texts(gathered: &Gathered) -> Vec<Vec<&str>> {
        gathered
            .artifacts
            .iter()
            .map(|one| one.parts.iter().filter_map(Part::as_text).collect())
            .collect()
    }

    #[test]
    fn pieces_of_an_artifact_are_put_together() {
        let mut gathered = Gathered::default();
        for event in [
            artifact("a", "1", false),
            artifact("a", "2", true),
            artifact("b", "3", true),
            artifact("b", "4", false),
        ] {
            gathered.apply(event).unwrap();
        }
        assert_eq!(texts(&gathered), [vec!["1", "2"], vec!["4"]]);
        let whole = event(
            json!({"task": {"id": "t", "contextId": "c", "status": {"state": "TASK_STATE_COMPLETED"},
            "artifacts": [{"artifactId": "a", "parts": [{"text": "12"}]}]}}),
        );
        gathered.apply(whole).unwrap();
        assert_eq!((texts(&gathered), gathered.turn()), (vec![vec!["12"]], Turn::Done));
    }

    #[test]
    fn the_state_says_whose_turn_it_is() {
        for (state, turn) in [
            ("SUBMITTED", Turn::Working),
            ("WORKING", Turn::Working),
            ("UNSPECIFIED", Turn::Working),
            ("INPUT_REQUIRED", Turn::Asking),
            ("AUTH_REQUIRED", Turn::Asking),
            ("COMPLETED", Turn::Done),
            ("FAILED", Turn::Done),
            ("CANCELED", Turn::Done),
            ("REJECTED", Turn::Done),
        ] {
            let mut gathered = Gathered::default();
            gathered.apply(status(state)).unwrap();
            assert_eq!(gathered.turn(), turn, "{state}");
        }
        let mut gathered = Gathered::default();
        assert_eq!(gathered.turn(), Turn::Working);
        gathered
            .apply(event(
                json!({"message": {"messageId": "m", "role": "ROLE_AGENT", "parts": [{"text": "hi"}]}}),
            ))
            .unwrap();
        assert_eq!((gathered.turn(), gathered.last_message()), (Turn::Done, Some("hi".to_owned())));
    }

    #[test]
    fn another_task_and_too_much_are_refused() {
        let mut gathered = Gathered::default();
        gathered.apply(status("WORKING")).unwrap();
        let foreign = event(
            json!({"statusUpdate": {"taskId": "u", "contextId": "c", "status": {"state": "TASK_STATE_COMPLETED"}}}),
        );
        assert_eq!(gathered.apply(foreign), Err(InvalidEvent::Foreign));
        let large = "x".repeat(MAX_ANSWER / 2);
        gathered.apply(artifact("a", &large, false)).unwrap();
        gathered.apply(artifact("a", &large[..100], false)).unwrap();
        gathered.apply(artifact("a", &large, true)).unwrap();
        assert_eq!(gathered.apply(artifact("a", &large, true)), Err(InvalidEvent::TooLarge));
        assert_eq!(gathered.turn(), Turn::Working);
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(12))]
        #[test]
        fn gathered_events_are_bounded_and_of_one_task(pieces in proptest::collection::vec(("[ab]", 0..3_usize, any::<bool>()), 0..40)) {
            let mut gathered = Gathered::default();
            let mut kept = 0;
            for (id, size, append) in &pieces {
                kept += usize::from(gathered.apply(artifact(id, &"x".repeat(size * 4 * 1024 * 1024), *append)).is_ok());
            }
            let bytes: usize = gathered.artifacts.iter().map(artifact_size).sum();
            prop_assert!(bytes <= MAX_ANSWER && bytes <= gathered.bytes);
            prop_assert_eq!(gathered.task.is_some(), kept > 0 || !pieces.is_empty());
        }
    }
}
