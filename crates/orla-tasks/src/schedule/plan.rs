//! Decides which instants of a schedule become tasks, and when. Pure.

use serde::{Deserialize, Serialize};

use super::expression::Expression;
use crate::task::Timestamp;

/// The maximum number of firings of one schedule that wait for an earlier firing.
pub(super) const MAX_WAITING: usize = 100;

/// What happens at an instant while the task of an earlier instant is not over.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Overlap {
    /// The instant is skipped.
    #[default]
    Skip,
    /// Its task starts when the earlier one is over.
    Queue,
    /// Its task starts at once.
    Allow,
}

impl Overlap {
    /// Each variant with its word in the configuration.
    pub const WORDS: [(&str, Self); 3] =
        [("skip", Self::Skip), ("queue", Self::Queue), ("allow", Self::Allow)];
}

/// The stored state of a schedule.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Record {
    /// The expression to which the record belongs.
    pub(super) expression: String,
    pub(super) time_zone: String,
    /// All instants up to this one are handled.
    pub(super) last: Timestamp,
    /// Instants whose tasks wait for an earlier task, the oldest first.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub(super) waiting: Vec<Timestamp>,
    /// The last task that the schedule started.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(super) task: Option<String>,
}

/// The instants that are due.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Due {
    /// The instants that passed while the schedule could not fire, the oldest first.
    pub(super) missed: Vec<Timestamp>,
    /// The instant that is due now.
    pub(super) now: Option<Timestamp>,
    /// The instant up to which all instants are handled afterwards.
    pub(super) last: Timestamp,
}

/// Returns the instants that are due after `last`. An instant is missed if it passed before `since`,
/// when the server started, or if a later instant has passed too. Of the missed instants, the newest
/// `catch_up` are made up for.
pub(super) fn due(
    expression: &Expression,
    last: Timestamp,
    since: Timestamp,
    now: Timestamp,
    catch_up: usize,
) -> Due {
    let mut due = Due { missed: Vec::new(), now: None, last };
    let mut before = Timestamp(now.0 + 1);
    while let Some(instant) = expression.previous(before).filter(|instant| *instant > last) {
        due.last = due.last.max(instant);
        before = instant;
        if due.now.is_none() && due.missed.is_empty() && instant > since {
            due.now = Some(instant);
        } else if due.missed.len() < catch_up {
            due.missed.push(instant);
        } else {
            break;
        }
    }
    due.missed.reverse();
    due
}

/// The next actions of a schedule.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct Step {
    /// The instants whose tasks start now.
    pub(super) start: Vec<Timestamp>,
    /// The instants that wait afterwards.
    pub(super) waiting: Vec<Timestamp>,
    /// The instants that are skipped.
    pub(super) skipped: Vec<Timestamp>,
}

/// Decides what happens to the due and the waiting instants. `is_running` says whether the last started
/// task is not over.
///
/// A missed instant did not overlap with another task at its time. Missed instants are therefore not
/// skipped, but run one after another.
pub(super) fn step(overlap: Overlap, is_running: bool, waiting: Vec<Timestamp>, due: &Due) -> Step {
    let mut step = Step { waiting, ..Step::default() };
    if overlap == Overlap::Allow {
        step.start = std::mem::take(&mut step.waiting);
        step.start.extend(due.missed.iter().copied().chain(due.now));
        return step;
    }
    step.waiting.extend(&due.missed);
    if let Some(now) = due.now {
        match overlap {
            Overlap::Skip if is_running || !step.waiting.is_empty() => step.skipped.push(now),
            _ => step.waiting.push(now),
        }
    }
    if !is_running && !step.waiting.is_empty() {
        step.start.push(step.waiting.remove(0));
    }
    let excess = step.waiting.len().saturating_sub(MAX_WAITING);
    step.skipped.extend(step.waiting.drain(..excess));
    step
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const MINUTE: u64 = 60_000;
    /// 2026-01-01T00:00:00Z, a full minute.
    const START: u64 = 1_767_225_600_000;

    fn minute(count: u64) -> Timestamp {
        Timestamp(START + count * MINUTE)
    }

    fn each_minute() -> Expression {
        Expression::parse("* * * * *", "UTC").unwrap()
    }

    #[test]
    fn instants_before_the_start_are_missed() {
        let expression = each_minute();
        let due = |last, since: u64, now: u64, catch_up| {
            due(&expression, minute(last), Timestamp(START + since), Timestamp(START + now), catch_up)
        };
        let at = |missed: &[u64], now: Option<u64>, last| Due {
            missed: missed.iter().map(|count| minute(*count)).collect(),
            now: now.map(minute),
            last: minute(last),
        };
        assert_eq!(due(3, 0, 3 * MINUTE + 10, 5), at(&[], None, 3));
        assert_eq!(due(3, 0, 4 * MINUTE, 0), at(&[], Some(4), 4));
        // The server was down from minute 3 to the middle of minute 7.
        let (since, now) = (7 * MINUTE + 30_000, 7 * MINUTE + 30_001);
        assert_eq!(due(3, since, now, 0), at(&[], None, 7));
        assert_eq!(due(3, since, now, 2), at(&[6, 7], None, 7));
        assert_eq!(due(3, since, now, 9), at(&[4, 5, 6, 7], None, 7));
        assert_eq!(due(3, since, 8 * MINUTE, 1), at(&[7], Some(8), 8));
        // The machine slept while the server ran.
        assert_eq!(due(3, 0, 9 * MINUTE, 1), at(&[8], Some(9), 9));
    }

    #[test]
    fn an_instant_that_overlaps_is_left_out_waits_or_runs() {
        let due = Due { missed: vec![minute(1), minute(2)], now: Some(minute(3)), last: minute(3) };
        let now = Due { missed: vec![], now: Some(minute(3)), last: minute(3) };
        let nothing = Due { missed: vec![], now: None, last: minute(3) };
        let of = |start: &[u64], waiting: &[u64], skipped: &[u64]| {
            let at = |counts: &[u64]| counts.iter().map(|count| minute(*count)).collect();
            Step { start: at(start), waiting: at(waiting), skipped: at(skipped) }
        };
        assert_eq!(step(Overlap::Skip, false, vec![], &now), of(&[3], &[], &[]));
        assert_eq!(step(Overlap::Skip, true, vec![], &now), of(&[], &[], &[3]));
        assert_eq!(step(Overlap::Skip, false, vec![], &due), of(&[1], &[2], &[3]));
        assert_eq!(step(Overlap::Queue, true, vec![minute(0)], &due), of(&[], &[0, 1, 2, 3], &[]));
        assert_eq!(step(Overlap::Queue, false, vec![minute(0)], &due), of(&[0], &[1, 2, 3], &[]));
        assert_eq!(step(Overlap::Allow, true, vec![], &due), of(&[1, 2, 3], &[], &[]));
        assert_eq!(step(Overlap::Queue, false, vec![], &nothing), Step::default());
    }

    proptest! {
        /// Over any sequence of wakes, ends and restarts, no instant starts twice, instants start in
        /// their order, and the number of waiting instants is bounded.
        #[test]
        fn no_instant_starts_twice(
            events in prop::collection::vec((0..5_u64, any::<bool>(), any::<bool>()), 1..80),
            overlap in prop::sample::select(vec![Overlap::Skip, Overlap::Queue, Overlap::Allow]),
            catch_up in 0..4_usize,
        ) {
            let expression = each_minute();
            let (mut now, mut since, mut last) = (START, Timestamp(START), Timestamp(START));
            let (mut waiting, mut started, mut running) = (Vec::new(), Vec::new(), false);
            for (passed, ends, restarts) in events {
                now += passed * MINUTE / 2;
                if restarts {
                    since = Timestamp(now);
                }
                running &= !ends;
                let due = due(&expression, last, since, Timestamp(now), catch_up);
                prop_assert!(due.missed.len() <= catch_up);
                last = due.last;
                let step = step(overlap, running, waiting, &due);
                prop_assert!(overlap == Overlap::Allow || step.start.len() <= usize::from(!running));
                running |= !step.start.is_empty();
                started.extend(step.start);
                waiting = step.waiting;
                prop_assert!(waiting.len() <= MAX_WAITING);
            }
            prop_assert!(started.is_sorted_by(|one, next| one < next), "{:?}", started);
        }
    }
}
