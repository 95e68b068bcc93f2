//! A task that is one call, and the run of this call in one process.

use orla_state::Change;

use super::run::StepOutcome;
use super::store::{Store, happens};
use super::{Call, Made, STATE};
use crate::keys::open;
use crate::state::{Event, Repeat, State, may_begin};
use crate::task::TaskId;

/// The maximum number of questions of a call.
const QUESTIONS: u8 = 2;

/// A run in a process.
pub(super) struct Plain {
    repeat: Repeat,
    position: Position,
    /// The number of questions asked so far.
    asked: u8,
    /// The write under way, and the position of the run after it.
    writing: Option<(Vec<Event>, Position)>,
}

/// The position of a run.
#[derive(Clone, Copy, PartialEq)]
enum Position {
    /// The record does not yet say that the task runs.
    New,
    /// The record says that the task runs, and the call is not made yet.
    Begun,
    /// The call runs.
    Made,
    /// The call has asked a question, which is being written.
    Asking,
    /// The end is being written.
    Over,
}

/// Returns whether a call may be repeated.
fn repeat(call: Call) -> Repeat {
    match call {
        Call::Idempotent => Repeat::Freely,
        Call::Once => Repeat::Never,
    }
}

impl Plain {
    pub(super) fn new(call: Call) -> Self {
        Self { repeat: repeat(call), position: Position::New, asked: 0, writing: None }
    }

    /// Makes the next possible step of the run. A question may be answered at any time.
    pub(super) fn advance(&mut self, id: &TaskId, store: &Store, made: &mut Made, pick: usize) {
        if self.writing.is_some() {
            return;
        }
        self.writing = match self.position {
            Position::New if may_begin(store.record(id).begun, self.repeat) => {
                Some((vec![Event::Begin], Position::Begun))
            }
            Position::New => Some((vec![Event::Interrupt], Position::Over)),
            Position::Begun => {
                // The call may already be over when its run sees that the task is cancelled.
                if !store.record(id).state.is_terminal() {
                    made.make(id, store, 0);
                    self.position = Position::Made;
                }
                None
            }
            Position::Made if pick == 0 && self.asked < QUESTIONS => {
                self.asked += 1;
                Some((vec![Event::Ask], Position::Asking))
            }
            Position::Made => Some((vec![Event::Complete], Position::Over)),
            Position::Asking => Some((vec![Event::Answer], Position::Made)),
            Position::Over => None,
        };
    }

    /// Returns the write reaches the store.
    pub(super) fn finish_write(&mut self, id: &TaskId, store: &mut Store) -> StepOutcome {
        let Some((events, then)) = self.writing.take() else { return StepOutcome::Continues };
        let record = store.record(id);
        let Some(put) = happens(id, record, &events, self.repeat) else {
            assert!(record.state.is_terminal(), "{STATE}: {events:?} in {}", record.state);
            return StepOutcome::Over;
        };
        let ends = (then == Position::Over).then(|| Change::remove(open(id)));
        assert!(store.write(&ends.into_iter().chain([put]).collect::<Vec<_>>()), "{STATE}");
        self.position = then;
        match then {
            Position::Over => StepOutcome::Over,
            Position::Asking => {
                assert_eq!(store.record(id).state, State::InputRequired, "{STATE}");
                StepOutcome::Continues
            }
            _ => StepOutcome::Continues,
        }
    }
}
