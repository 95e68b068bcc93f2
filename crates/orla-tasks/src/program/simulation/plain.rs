//! A task that is no program, and the run of its one call in one process.

use orla_state::Change;

use super::run::Went;
use super::store::{Store, happens};
use super::{Call, Made, STATE};
use crate::keys::open;
use crate::state::{Event, Repeat, State, may_begin};
use crate::task::TaskId;

/// The most questions of a call.
const QUESTIONS: u8 = 2;

/// A run in a process.
pub(super) struct Plain {
    repeat: Repeat,
    stands: Stands,
    /// How many questions it has asked.
    asked: u8,
    /// What is being written, and where the run stands afterwards.
    writing: Option<(Vec<Event>, Stands)>,
}

/// Where a run stands.
#[derive(Clone, Copy, PartialEq)]
enum Stands {
    /// That it runs is not written.
    New,
    /// It is written, and the call is not made.
    Begun,
    /// The call runs.
    Made,
    /// The call has asked a question, which is written.
    Asks,
    /// The end is written.
    Over,
}

/// Whether a call may be made again.
fn repeat(call: Call) -> Repeat {
    match call {
        Call::Idempotent => Repeat::Freely,
        Call::Once => Repeat::Never,
    }
}

impl Plain {
    pub(super) fn new(call: Call) -> Self {
        Self { repeat: repeat(call), stands: Stands::New, asked: 0, writing: None }
    }

    /// The run does what it can do next. A question is answered at any time.
    pub(super) fn go_on(&mut self, id: &TaskId, store: &Store, made: &mut Made, pick: usize) {
        if self.writing.is_some() {
            return;
        }
        self.writing = match self.stands {
            Stands::New if may_begin(store.record(id).begun, self.repeat) => {
                Some((vec![Event::Begin], Stands::Begun))
            }
            Stands::New => Some((vec![Event::Interrupt], Stands::Over)),
            Stands::Begun => {
                // The call may be over already when its run sees that the task is cancelled.
                if !store.record(id).state.is_terminal() {
                    made.make(id, store, 0);
                    self.stands = Stands::Made;
                }
                None
            }
            Stands::Made if pick == 0 && self.asked < QUESTIONS => {
                self.asked += 1;
                Some((vec![Event::Ask], Stands::Asks))
            }
            Stands::Made => Some((vec![Event::Complete], Stands::Over)),
            Stands::Asks => Some((vec![Event::Answer], Stands::Made)),
            Stands::Over => None,
        };
    }

    /// The write reaches the store.
    pub(super) fn finish_write(&mut self, id: &TaskId, store: &mut Store) -> Went {
        let Some((events, then)) = self.writing.take() else { return Went::On };
        let record = store.record(id);
        let Some(put) = happens(id, record, &events, self.repeat) else {
            assert!(record.state.is_terminal(), "{STATE}: {events:?} in {}", record.state);
            return Went::Over;
        };
        let ends = (then == Stands::Over).then(|| Change::remove(open(id)));
        assert!(store.write(&ends.into_iter().chain([put]).collect::<Vec<_>>()), "{STATE}");
        self.stands = then;
        match then {
            Stands::Over => Went::Over,
            Stands::Asks => {
                assert_eq!(store.record(id).state, State::InputRequired, "{STATE}");
                Went::On
            }
            _ => Went::On,
        }
    }
}
