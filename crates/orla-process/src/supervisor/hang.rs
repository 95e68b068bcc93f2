//! Distinguishes a process that hangs from one that is busy (RFC 2 §11). Pure: callers pass the time,
//! relative to any fixed point.
//!
//! A process may work at one call for as long as the call's deadline allows, and a process with a single
//! thread answers nothing meanwhile. Silence alone is therefore no sign of a hang. A process hangs if it
//! leaves calls unanswered that came *after* everything it may still be working at:
//!
//! - [`MAX_EXPIRED`] calls in a row have passed their deadlines, and it has not written a byte since the
//!   first of them did. Concurrent calls count once, because one slow operation may hold up all of them;
//!   or
//! - it has not answered a ping for [`PING_TIMEOUT`] while calls wait that were sent after the ping. A
//!   process that answers requests gets a ping after the cancellation of a call.
//!
//! No call that was sent before these may be in flight, because the process may still work at it.

use std::time::Duration;

/// The number of calls in a row that may pass their deadlines without a byte from the process.
const MAX_EXPIRED: u32 = 3;
/// How long a ping may go unanswered while calls wait.
const PING_TIMEOUT: Duration = Duration::from_secs(10);

/// The state of one process's silence. Calls and pings are identified by their tickets, which grow.
#[derive(Debug, Default)]
pub(super) struct Silence {
    /// The number of calls that passed their deadlines since the last byte.
    expired: u32,
    /// The oldest of these calls.
    first_expired: Option<u64>,
    /// Calls with lower tickets do not count: they were in flight together with one that was counted.
    counts_from: u64,
    /// The unanswered ping, if all calls in flight were sent after it, and since when that is so.
    blocked: Option<(u64, Duration)>,
}

impl Silence {
    /// Records that the process wrote something.
    pub(super) fn heard(&mut self) {
        (self.expired, self.first_expired) = (0, None);
    }

    /// Records that a call passed its deadline. `next` is the ticket that the next call had then.
    pub(super) fn expired(&mut self, call: u64, next: u64) {
        if call < self.counts_from {
            return;
        }
        self.counts_from = next;
        self.expired += 1;
        self.first_expired = Some(self.first_expired.map_or(call, |first| first.min(call)));
    }

    /// Returns why the process counts as hung, if it does. `oldest` is the oldest call in flight, `ping`
    /// the unanswered ping.
    pub(super) fn verdict(
        &mut self,
        now: Duration,
        oldest: Option<u64>,
        ping: Option<u64>,
    ) -> Option<String> {
        let may_be_busy = |since: u64| oldest.is_some_and(|call| call < since);
        if self.expired >= MAX_EXPIRED && !self.first_expired.is_some_and(may_be_busy) {
            let count = self.expired;
            return Some(format!(
                "it hung: {count} calls in a row passed their deadlines without a byte from it"
            ));
        }
        let blocked = ping.filter(|ping| oldest.is_some() && !may_be_busy(*ping));
        self.blocked = blocked.map(|ping| match self.blocked {
            Some((same, since)) if same == ping => (ping, since),
            _ => (ping, now),
        });
        let (_, since) = self.blocked?;
        (now.saturating_sub(since) >= PING_TIMEOUT).then(|| {
            let limit = PING_TIMEOUT.as_secs();
            format!("it hung: it does not answer a ping within {limit} s while calls wait")
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const S: Duration = Duration::from_secs(1);

    #[test]
    fn three_calls_in_a_row_without_a_byte_are_a_hang() {
        let mut silence = Silence::default();
        for call in 1..=2 {
            silence.expired(call, call + 1);
            assert_eq!(silence.verdict(S, None, None), None);
        }
        silence.heard();
        for call in 3..=5 {
            assert_eq!(silence.verdict(S, None, None), None, "before call {call}");
            silence.expired(call, call + 1);
        }
        assert!(silence.verdict(S, None, None).unwrap().contains("hung"));
    }

    #[test]
    fn calls_that_were_under_way_together_count_once() {
        let mut silence = Silence::default();
        (1..=5).for_each(|call| silence.expired(call, 6));
        assert_eq!(silence.verdict(S, None, None), None);
        silence.expired(6, 9);
        // Calls 7 and 8 were sent before call 6 expired.
        (7..=8).for_each(|call| silence.expired(call, 9));
        assert_eq!(silence.verdict(S, None, None), None);
        silence.expired(9, 10);
        assert!(silence.verdict(S, None, None).unwrap().contains("3 calls"));
    }

    #[test]
    fn a_process_busy_with_an_older_call_is_not_hung() {
        let mut silence = Silence::default();
        (2..=9).for_each(|call| silence.expired(call, call + 1));
        assert_eq!(silence.verdict(S, Some(1), Some(3)), None);
        assert_eq!(silence.verdict(99 * S, Some(1), Some(3)), None);
        assert!(silence.verdict(99 * S, Some(10), None).is_some());
    }

    #[test]
    fn a_ping_counts_from_when_only_newer_calls_wait() {
        let mut silence = Silence::default();
        assert_eq!(silence.verdict(S, Some(1), Some(2)), None);
        assert_eq!(silence.verdict(50 * S, Some(3), Some(2)), None);
        assert_eq!(silence.verdict(59 * S, Some(3), Some(2)), None);
        // For a moment no call waits.
        assert_eq!(silence.verdict(59 * S, None, Some(2)), None);
        assert_eq!(silence.verdict(60 * S, Some(4), Some(2)), None);
        assert_eq!(silence.verdict(69 * S, Some(5), Some(2)), None);
        assert!(silence.verdict(70 * S, Some(5), Some(2)).unwrap().contains("ping"));
        // Another ping restarts the timeout, and an answered one does not count.
        assert_eq!(silence.verdict(70 * S, Some(9), Some(8)), None);
        assert_eq!(silence.verdict(90 * S, Some(9), None), None);
    }
}
