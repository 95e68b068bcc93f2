//! The life cycle of a service (RFC 2 §7), including decisions that the RFC leaves open.
//!
//! [`step`] contains the whole life cycle. It is a pure function from a state and an event to the next
//! state and a list of effects. The task makes no decision of its own: it performs the effects in order
//! and, when the state has changed, sets its timer to [`State::timeout`].
//!
//! ```text
//! CREATED ──wanted──▶ STARTING ──hello──▶ READY ──changed──▶ RELOADING (drain, end) ─▶ STARTING
//!                        │ no hello, exit   │ exit
//!                        ▼                  ▼
//!                     CRASHED ◀─────────────┘   after a backoff ─▶ STARTING
//!                        │ `max_failures` in a row
//!                        ▼
//!                     STOPPED   until a file changes or the configuration is reloaded
//! ```
//!
//! # Invariants (RFC 2 §7.1), property-tested
//!
//! - `Spawn` is never requested while a process may be alive.
//! - Calls are sent only in READY.

use std::collections::VecDeque;
use std::time::Duration;

/// A state of a service's life cycle.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum State {
    /// Found, and not started yet.
    Created,
    /// The process runs and has not sent hello.
    Starting { failures: u32 },
    /// Calls are sent.
    Ready { failures: u32 },
    /// Files have changed: the calls in flight finish, new ones wait.
    Draining,
    /// The process has been asked to end.
    Ending { ask: Ask, then: Then },
    /// The process is gone; the next attempt waits for the timer.
    Crashed { failures: u32 },
    /// There is no process, and no call will start one.
    Stopped,
}

/// The last method by which a process was asked to end.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Ask {
    /// Its input was closed.
    Input,
    /// SIGTERM.
    Term,
    /// SIGKILL.
    Kill,
}

/// The step that follows when an ending process is gone.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Then {
    /// A new process is started from the new files.
    Restart,
    /// The process has failed. The count excludes this failure.
    Crash { failures: u32 },
    /// Nothing.
    Stop,
}

/// An event in the life of a service.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Event {
    /// A call or a listing needs the service.
    Wanted,
    /// The process said hello.
    Hello,
    /// The process violates the rules of capsules: it closes its output, or writes too large a message.
    Broken,
    /// The process runs and answers nothing.
    Hung,
    /// The process is gone, or could not be started.
    Exited,
    /// The program's files have changed.
    Changed,
    /// The last call in flight is over.
    Drained,
    /// The configuration was reloaded.
    ConfigReloaded,
    /// The service is no longer needed.
    Stop,
    /// The time of [`State::timeout`] has passed.
    Timer,
}

/// An action of the task.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Effect {
    /// Start a process.
    Spawn,
    /// Close its input.
    CloseInput,
    /// Send SIGTERM to its group.
    Terminate,
    /// Send SIGKILL to its group.
    Kill,
    /// Send the waiting calls.
    Send,
    /// Fail the calls in flight, which are lost.
    FailSent,
    /// Fail the waiting calls, which no process will answer.
    FailWaiting,
}

/// The times and counts of a life cycle.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Policy {
    /// The number of failures in a row after which a service is stopped.
    pub max_failures: u32,
    /// The backoff after the first failure. It doubles with each.
    pub backoff_min: Duration,
    /// The maximum backoff.
    pub backoff_max: Duration,
    /// How long calls in flight may continue after files have changed.
    pub drain: Duration,
    /// How long a service has to be READY for its failures to be forgotten.
    pub stable: Duration,
    /// How long a process may take to end after its input was closed, before SIGTERM.
    pub input_grace: Duration,
    /// The time between SIGTERM and SIGKILL.
    pub term_grace: Duration,
}

impl Default for Policy {
    fn default() -> Self {
        Self {
            max_failures: 5,
            backoff_min: Duration::from_millis(100),
            backoff_max: Duration::from_secs(30),
            drain: Duration::from_secs(5),
            stable: Duration::from_secs(60),
            input_grace: Duration::from_millis(100),
            term_grace: Duration::from_secs(2),
        }
    }
}

impl Policy {
    /// Returns the longest wait before the attempt that follows this many failures in a row.
    pub fn backoff(&self, failures: u32) -> Duration {
        let doubled = 1_u32.checked_shl(failures.saturating_sub(1)).unwrap_or(u32::MAX);
        self.backoff_min.saturating_mul(doubled).min(self.backoff_max)
    }
}

impl State {
    /// Returns the state's name in RFC 2 §7.
    pub(super) fn name(self) -> &'static str {
        match self {
            Self::Created => "CREATED",
            Self::Starting { .. } => "STARTING",
            Self::Ready { .. } => "READY",
            Self::Draining | Self::Ending { then: Then::Restart, .. } => "RELOADING",
            Self::Crashed { .. } | Self::Ending { then: Then::Crash { .. }, .. } => "CRASHED",
            Self::Stopped | Self::Ending { then: Then::Stop, .. } => "STOPPED",
        }
    }

    /// Returns whether a process may be alive.
    pub(super) fn has_process(self) -> bool {
        !matches!(self, Self::Created | Self::Crashed { .. } | Self::Stopped)
    }

    /// Returns the time until [`Event::Timer`]. `jitter` is a random number from 0 to 1.
    pub(super) fn timeout(self, startup: Duration, policy: &Policy, jitter: f64) -> Option<Duration> {
        match self {
            Self::Created | Self::Stopped | Self::Ready { failures: 0 } => None,
            Self::Starting { .. } => Some(startup),
            Self::Ready { .. } => Some(policy.stable),
            Self::Draining => Some(policy.drain),
            Self::Ending { ask: Ask::Input, .. } => Some(policy.input_grace),
            Self::Ending { ask: Ask::Term, .. } => Some(policy.term_grace),
            // If SIGKILL does not end a process, the kernel holds it, and there is nothing left to try.
            Self::Ending { ask: Ask::Kill, .. } => None,
            Self::Crashed { failures } => Some(policy.backoff(failures).mul_f64(jitter.clamp(0.0, 1.0))),
        }
    }
}

/// Returns the next state and the effects of an event.
pub(super) fn step(state: State, event: Event, policy: &Policy) -> (State, &'static [Effect]) {
    use Effect::{CloseInput, FailSent, FailWaiting, Kill, Send, Spawn, Terminate};
    use State::{Crashed, Created, Draining, Ending, Ready, Starting, Stopped};
    match (state, event) {
        (Created, Event::Wanted) => (Starting { failures: 0 }, &[Spawn]),
        (Crashed { failures }, Event::Timer) => (Starting { failures }, &[Spawn]),
        // An edit may fix the failure: the count begins anew, and nothing waits.
        (Crashed { .. } | Stopped, Event::Changed) => (Starting { failures: 0 }, &[Spawn]),
        (Crashed { .. }, Event::ConfigReloaded) => (Starting { failures: 0 }, &[Spawn]),
        (Stopped, Event::ConfigReloaded) => (Created, &[]),
        (Created | Crashed { .. }, Event::Stop) => (Stopped, &[FailWaiting]),

        (Starting { failures }, Event::Hello) => (Ready { failures }, &[Send]),
        (Ready { .. }, Event::Timer) => (Ready { failures: 0 }, &[]),
        (Ready { .. }, Event::Changed) => (Draining, &[]),
        (Draining, Event::Drained | Event::Timer) | (Starting { .. }, Event::Changed) => {
            (Ending { ask: Ask::Input, then: Then::Restart }, &[CloseInput])
        }
        // A process that cannot say hello in time gets no grace period.
        (Starting { failures }, Event::Timer | Event::Broken) => {
            (Ending { ask: Ask::Term, then: Then::Crash { failures } }, &[CloseInput, Terminate])
        }
        (Ready { failures }, Event::Broken | Event::Hung) => (
            Ending { ask: Ask::Term, then: Then::Crash { failures } },
            &[CloseInput, Terminate, FailSent],
        ),
        (Draining, Event::Broken) => {
            (Ending { ask: Ask::Term, then: Then::Restart }, &[CloseInput, Terminate, FailSent])
        }
        (Starting { .. } | Ready { .. } | Draining, Event::Stop) => {
            (Ending { ask: Ask::Input, then: Then::Stop }, &[CloseInput, FailWaiting])
        }

        (Ending { ask: Ask::Input, then }, Event::Timer) => {
            (Ending { ask: Ask::Term, then }, &[Terminate])
        }
        (Ending { ask: Ask::Term, then }, Event::Timer) => (Ending { ask: Ask::Kill, then }, &[Kill]),
        (Ending { ask, then: Then::Crash { .. } }, Event::Changed) => {
            (Ending { ask, then: Then::Restart }, &[])
        }
        (Ending { ask, then: Then::Restart | Then::Crash { .. } }, Event::Stop) => {
            (Ending { ask, then: Then::Stop }, &[FailWaiting])
        }

        (
            Starting { failures } | Ready { failures } | Ending { then: Then::Crash { failures }, .. },
            Event::Exited,
        ) => {
            if failures + 1 < policy.max_failures.max(1) {
                (Crashed { failures: failures + 1 }, &[FailSent])
            } else {
                (Stopped, &[FailSent, FailWaiting])
            }
        }
        (Draining | Ending { then: Then::Restart, .. }, Event::Exited) => {
            (Starting { failures: 0 }, &[FailSent, Spawn])
        }
        (Ending { then: Then::Stop, .. }, Event::Exited) => (Stopped, &[FailSent]),

        // These events are late or repeated. They are listed, so that a new event must be considered
        // here.
        (
            _,
            Event::Wanted
            | Event::Hello
            | Event::Broken
            | Event::Hung
            | Event::Exited
            | Event::Changed
            | Event::Drained
            | Event::ConfigReloaded
            | Event::Stop
            | Event::Timer,
        ) => (state, &[]),
    }
}

/// Reloads in a row, without a call between them, that count as a loop: 5 in 10 s.
const LOOP: usize = 5;
const LOOP_WITHIN: Duration = Duration::from_secs(10);

/// Detects reloads that a service causes itself, by writing below its watched paths.
#[derive(Debug, Default)]
pub(super) struct ReloadLoop {
    /// The times of the reloads since the last call, relative to any fixed point.
    recent: VecDeque<Duration>,
    /// The number of delayed reloads in a row.
    held: u32,
}

impl ReloadLoop {
    /// Records a call. A reload after it may come from a user who tries an edit.
    pub(super) fn called(&mut self) {
        self.recent.clear();
        self.held = 0;
    }

    /// Returns how long this reload has to wait; `None` if it is no part of a loop.
    pub(super) fn reload(&mut self, now: Duration, policy: &Policy) -> Option<Duration> {
        self.recent.push_back(now);
        if self.recent.len() > LOOP + 1 {
            self.recent.pop_front();
        }
        let in_a_row = self.recent.iter().filter(|at| now.saturating_sub(**at) <= LOOP_WITHIN).count();
        // After a delayed reload, only a quiet period shows that the loop is over.
        let quiet = policy.backoff(self.held + 1).saturating_mul(2).max(LOOP_WITHIN);
        let last = self.recent.iter().rev().nth(1).copied().unwrap_or_default();
        if in_a_row <= LOOP && (self.held == 0 || now.saturating_sub(last) > quiet) {
            self.held = 0;
            return None;
        }
        self.held += 1;
        Some(policy.backoff(self.held))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use Effect::{CloseInput, FailSent, FailWaiting, Kill, Send, Spawn, Terminate};
    use State::{Crashed, Created, Draining, Ending, Ready, Starting, Stopped};
    use proptest::prelude::*;

    const RESTARTING: State = Ending { ask: Ask::Input, then: Then::Restart };
    const CRASHING: State = Ending { ask: Ask::Term, then: Then::Crash { failures: 1 } };
    const STOPPING: State = Ending { ask: Ask::Input, then: Then::Stop };

    #[test]
    fn every_state_answers_every_event() {
        // Each row has a state, and the target of every event that changes it.
        type Row = (State, &'static [(Event, State, &'static [Effect])]);
        let rows: &[Row] = &[
            (
                Created,
                &[
                    (Event::Wanted, Starting { failures: 0 }, &[Spawn]),
                    (Event::Stop, Stopped, &[FailWaiting]),
                ],
            ),
            (
                Starting { failures: 1 },
                &[
                    (Event::Hello, Ready { failures: 1 }, &[Send]),
                    (Event::Broken, CRASHING, &[CloseInput, Terminate]),
                    (Event::Timer, CRASHING, &[CloseInput, Terminate]),
                    (Event::Exited, Crashed { failures: 2 }, &[FailSent]),
                    (Event::Changed, RESTARTING, &[CloseInput]),
                    (Event::Stop, STOPPING, &[CloseInput, FailWaiting]),
                ],
            ),
            (
                Starting { failures: 4 },
                &[
                    (Event::Hello, Ready { failures: 4 }, &[Send]),
                    (
                        Event::Broken,
                        Ending { ask: Ask::Term, then: Then::Crash { failures: 4 } },
                        &[CloseInput, Terminate],
                    ),
                    (
                        Event::Timer,
                        Ending { ask: Ask::Term, then: Then::Crash { failures: 4 } },
                        &[CloseInput, Terminate],
                    ),
                    (Event::Exited, Stopped, &[FailSent, FailWaiting]),
                    (Event::Changed, RESTARTING, &[CloseInput]),
                    (Event::Stop, STOPPING, &[CloseInput, FailWaiting]),
                ],
            ),
            (
                Ready { failures: 1 },
                &[
                    (Event::Broken, CRASHING, &[CloseInput, Terminate, FailSent]),
                    (Event::Hung, CRASHING, &[CloseInput, Terminate, FailSent]),
                    (Event::Exited, Crashed { failures: 2 }, &[FailSent]),
                    (Event::Changed, Draining, &[]),
                    (Event::Stop, STOPPING, &[CloseInput, FailWaiting]),
                    (Event::Timer, Ready { failures: 0 }, &[]),
                ],
            ),
            (
                Draining,
                &[
                    (
                        Event::Broken,
                        Ending { ask: Ask::Term, then: Then::Restart },
                        &[CloseInput, Terminate, FailSent],
                    ),
                    (Event::Exited, Starting { failures: 0 }, &[FailSent, Spawn]),
                    (Event::Drained, RESTARTING, &[CloseInput]),
                    (Event::Timer, RESTARTING, &[CloseInput]),
                    (Event::Stop, STOPPING, &[CloseInput, FailWaiting]),
                ],
            ),
            (
                RESTARTING,
                &[
                    (Event::Exited, Starting { failures: 0 }, &[FailSent, Spawn]),
                    (Event::Timer, Ending { ask: Ask::Term, then: Then::Restart }, &[Terminate]),
                    (Event::Stop, STOPPING, &[FailWaiting]),
                ],
            ),
            (
                CRASHING,
                &[
                    (Event::Exited, Crashed { failures: 2 }, &[FailSent]),
                    (
                        Event::Timer,
                        Ending { ask: Ask::Kill, then: Then::Crash { failures: 1 } },
                        &[Kill],
                    ),
                    (Event::Changed, Ending { ask: Ask::Term, then: Then::Restart }, &[]),
                    (Event::Stop, Ending { ask: Ask::Term, then: Then::Stop }, &[FailWaiting]),
                ],
            ),
            (
                STOPPING,
                &[
                    (Event::Exited, Stopped, &[FailSent]),
                    (Event::Timer, Ending { ask: Ask::Term, then: Then::Stop }, &[Terminate]),
                ],
            ),
            (
                Crashed { failures: 2 },
                &[
                    (Event::Timer, Starting { failures: 2 }, &[Spawn]),
                    (Event::Changed, Starting { failures: 0 }, &[Spawn]),
                    (Event::ConfigReloaded, Starting { failures: 0 }, &[Spawn]),
                    (Event::Stop, Stopped, &[FailWaiting]),
                ],
            ),
            (
                Stopped,
                &[
                    (Event::Changed, Starting { failures: 0 }, &[Spawn]),
                    (Event::ConfigReloaded, Created, &[]),
                ],
            ),
        ];
        for (state, moves) in rows {
            for event in EVENTS {
                let expected = moves.iter().find(|(on, ..)| *on == event);
                let (next, effects) =
                    expected.map_or((*state, &[][..]), |(_, next, effects)| (*next, effects));
                assert_eq!(
                    step(*state, event, &Policy::default()),
                    (next, effects),
                    "{state:?} on {event:?}"
                );
            }
        }
    }

    const EVENTS: [Event; 10] = [
        Event::Wanted,
        Event::Hello,
        Event::Broken,
        Event::Hung,
        Event::Exited,
        Event::Changed,
        Event::Drained,
        Event::ConfigReloaded,
        Event::Stop,
        Event::Timer,
    ];

    #[test]
    fn backoff_doubles_up_to_its_bound() {
        let policy = Policy::default();
        let cases = [(0, 100), (1, 100), (2, 200), (3, 400), (9, 25_600), (10, 30_000), (200, 30_000)];
        for (failures, milliseconds) in cases {
            assert_eq!(policy.backoff(failures), Duration::from_millis(milliseconds), "{failures}");
        }
        let crashed = Crashed { failures: 2 };
        let startup = Duration::from_secs(5);
        assert_eq!(crashed.timeout(startup, &policy, 0.5), Some(Duration::from_millis(100)));
        assert_eq!(crashed.timeout(startup, &policy, 0.0), Some(Duration::ZERO));
    }

    #[test]
    fn states_have_the_names_of_the_document() {
        let cases = [
            (Created, "CREATED"),
            (Starting { failures: 0 }, "STARTING"),
            (Ready { failures: 0 }, "READY"),
            (Draining, "RELOADING"),
            (RESTARTING, "RELOADING"),
            (CRASHING, "CRASHED"),
            (Crashed { failures: 1 }, "CRASHED"),
            (STOPPING, "STOPPED"),
            (Stopped, "STOPPED"),
        ];
        for (state, name) in cases {
            assert_eq!(state.name(), name);
        }
    }

    #[test]
    fn reloads_without_a_call_between_them_are_held_back_after_the_fifth() {
        let policy = Policy::default();
        let mut reloads = ReloadLoop::default();
        let at = |milliseconds: u64| Duration::from_millis(milliseconds);
        for reload in 0..5 {
            assert_eq!(reloads.reload(at(reload * 300), &policy), None);
        }
        assert_eq!(reloads.reload(at(1500), &policy), Some(at(100)));
        assert_eq!(reloads.reload(at(1800), &policy), Some(at(200)));
        assert_eq!(reloads.reload(at(2100), &policy), Some(at(400)));
        reloads.called();
        assert_eq!(reloads.reload(at(2200), &policy), None);
        // A user who saves a file now and then causes no loop.
        let mut slow = ReloadLoop::default();
        for reload in 0..20 {
            assert_eq!(slow.reload(at(reload * 3000), &policy), None);
        }
        // A delayed loop continues in longer and longer intervals. A quiet period ends it.
        let mut held = ReloadLoop::default();
        let mut now = Duration::ZERO;
        for _ in 0..12 {
            now += held.reload(now, &policy).unwrap_or_default() + at(300);
        }
        assert!(held.held > 5);
        assert_eq!(held.reload(now + Duration::from_secs(120), &policy), None);
    }

    proptest! {
        #[test]
        fn never_two_processes_and_never_a_call_outside_of_ready(
            events in proptest::collection::vec(proptest::sample::select(&EVENTS[..]), 0..300),
            max_failures in 0_u32..6,
        ) {
            let policy = Policy { max_failures, ..Policy::default() };
            let (mut state, mut alive) = (Created, false);
            for event in events {
                // Only a running process can say hello, break the rules, or end.
                if !alive && matches!(event, Event::Hello | Event::Exited | Event::Broken | Event::Hung) {
                    continue;
                }
                alive &= event != Event::Exited;
                let (next, effects) = step(state, event, &policy);
                for effect in effects {
                    match effect {
                        Spawn => {
                            prop_assert!(!alive, "{:?} on {:?} starts a second process", state, event);
                            alive = true;
                        }
                        Send => prop_assert!(matches!(next, Ready { .. }), "{:?} on {:?}", state, event),
                        CloseInput | Terminate | Kill => prop_assert!(alive, "{:?} on {:?}", state, event),
                        FailSent | FailWaiting => {}
                    }
                }
                prop_assert_eq!(alive, next.has_process(), "{:?} on {:?}", state, event);
                if next == Stopped && state != Stopped {
                    let was_stopping = matches!(state, Ending { then: Then::Stop, .. });
                    prop_assert!(was_stopping || effects.contains(&FailWaiting), "{:?} on {:?}", state, event);
                }
                state = next;
            }
        }
    }
}
