//! The time of a call, which stops while the call, or a nested call, waits for an approval.

use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;
use tokio::sync::Notify;
use tokio::time::{Instant, sleep_until};

/// The clock of one call.
#[derive(Debug)]
pub(crate) struct Clock {
    state: Mutex<State>,
    /// Notified when the clock continues.
    resumed: Notify,
    /// The clock of the outer call.
    outer: Option<Arc<Self>>,
}

#[derive(Debug)]
struct State {
    deadline: Instant,
    /// The number of guards that stop the clock.
    waits: usize,
    /// When the first of them was created.
    since: Instant,
}

/// Stops the clock of a call until it is dropped.
#[must_use]
#[derive(Debug)]
pub struct Paused(Arc<Clock>);

impl Clock {
    /// Returns the clock of a call with this deadline, within the call of the `outer` clock.
    pub(crate) fn new(deadline: Instant, outer: Option<Arc<Self>>) -> Arc<Self> {
        let state = State { deadline, waits: 0, since: deadline };
        Arc::new(Self { state: Mutex::new(state), resumed: Notify::new(), outer })
    }

    /// Stops the clock and the clocks of the outer calls.
    pub(crate) fn pause(self: &Arc<Self>) -> Paused {
        let now = Instant::now();
        for clock in self.chain() {
            let mut state = clock.state.lock();
            if state.waits == 0 {
                state.since = now;
            }
            state.waits += 1;
        }
        Paused(Arc::clone(self))
    }

    /// Returns this clock and the outer ones.
    fn chain(&self) -> impl Iterator<Item = &Self> {
        std::iter::successors(Some(self), |clock| clock.outer.as_deref())
    }

    /// Returns the deadline, as if the clock continued now.
    pub(crate) fn deadline(&self) -> Instant {
        let state = self.state.lock();
        match state.waits {
            0 => state.deadline,
            _ => state.deadline + state.since.elapsed(),
        }
    }

    /// Waits until the deadline has passed by this duration.
    pub(crate) async fn passed(&self, by: Duration) {
        loop {
            let resumed = self.resumed.notified();
            tokio::pin!(resumed);
            resumed.as_mut().enable();
            let goes = {
                let state = self.state.lock();
                (state.waits == 0).then_some(state.deadline + by)
            };
            match goes {
                Some(end) if Instant::now() >= end => return,
                // The clock may stop meanwhile.
                Some(end) => sleep_until(end).await,
                None => resumed.await,
            }
        }
    }
}

impl Drop for Paused {
    fn drop(&mut self) {
        for clock in self.0.chain() {
            let mut state = clock.state.lock();
            state.waits -= 1;
            if state.waits == 0 {
                let stood_still = state.since.elapsed();
                state.deadline += stood_still;
                drop(state);
                clock.resumed.notify_waiters();
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use futures_util::FutureExt;
    use tokio::time::advance;

    const SECOND: Duration = Duration::from_secs(1);

    #[tokio::test(start_paused = true)]
    async fn a_clock_stands_still_while_a_call_within_waits() {
        let began = Instant::now();
        let outer = Clock::new(began + 10 * SECOND, None);
        let inner = Clock::new(began + 5 * SECOND, Some(Arc::clone(&outer)));
        let beside = Clock::new(began + 5 * SECOND, Some(Arc::clone(&outer)));
        let mut passed = Box::pin(outer.passed(SECOND));
        assert!(passed.as_mut().now_or_never().is_none());
        let (first, second) = (inner.pause(), inner.pause());
        advance(60 * SECOND).await;
        drop(first);
        advance(40 * SECOND).await;
        assert!(passed.as_mut().now_or_never().is_none());
        drop(second);
        assert_eq!(outer.deadline(), began + 110 * SECOND);
        assert_eq!(inner.deadline(), began + 105 * SECOND);
        assert_eq!(beside.deadline(), began + 5 * SECOND, "another call has its own time");
        let before = Instant::now();
        passed.await;
        assert_eq!(before.elapsed(), 11 * SECOND);
        assert!(inner.passed(Duration::ZERO).now_or_never().is_some());
    }
}
