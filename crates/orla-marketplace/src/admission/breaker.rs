//! The circuit breaker of an upstream. An upstream that cannot be reached is not called for a while, so that no
//! call waits for it and it is not flooded when it recovers.
//!
//! [`State`] is the pure part. Capabilities with the same upstream share a [`Breaker`], which lives as long as a
//! catalogue holds one of them.

use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;
use tokio::time::Instant;

use crate::error::{RuntimeError, RuntimeResult};

/// A call with less time than this proves nothing about its upstream when it times out.
const MIN_MEANINGFUL_TIMEOUT: Duration = Duration::from_secs(1);

/// When a breaker opens, and for how long.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct BreakerLimits {
    /// Failures in a row that open it: 5. With 0 it never opens.
    pub failures: u32,
    /// How long it is open the first time: 1 s. The time doubles with each probe that fails.
    pub open_min: Duration,
    /// The maximum of that time: 30 s.
    pub open_max: Duration,
}

impl Default for BreakerLimits {
    fn default() -> Self {
        Self { failures: 5, open_min: Duration::from_secs(1), open_max: Duration::from_secs(30) }
    }
}

/// The circuit breaker of one upstream.
#[derive(Debug)]
pub(crate) struct Breaker {
    pub(crate) limits: BreakerLimits,
    state: Mutex<State>,
}

/// The state of an upstream.
#[derive(Clone, Copy, Debug, PartialEq)]
enum State {
    /// Calls pass. The number counts consecutive failures.
    Closed { failures: u32 },
    /// No call passes until this time. The number counts how often in a row the circuit has opened.
    Open { until: Instant, times: u32 },
    /// One call was let through as a probe. If it has not returned by this time, another one is let through.
    Probing { until: Instant, times: u32 },
}

/// What the result of a call proves about its upstream.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Health {
    Good,
    Bad,
    /// The call says nothing about the upstream.
    Unknown,
}

impl State {
    /// Returns whether a call may pass now; if not, for how long none may.
    fn enter(self, now: Instant, limits: &BreakerLimits) -> (Self, Result<(), Duration>) {
        match self {
            Self::Closed { .. } => (self, Ok(())),
            Self::Open { until, .. } | Self::Probing { until, .. } if now < until => {
                (self, Err(until - now))
            }
            Self::Open { times, .. } | Self::Probing { times, .. } => {
                (Self::Probing { until: now + limits.open_for(times), times }, Ok(()))
            }
        }
    }

    fn after(self, health: Health, now: Instant, limits: &BreakerLimits) -> Self {
        match (self, health) {
            (_, Health::Good) => Self::Closed { failures: 0 },
            (Self::Closed { failures }, Health::Bad) => {
                let failures = failures.saturating_add(1);
                if limits.failures > 0 && failures >= limits.failures {
                    Self::Open { until: now + limits.open_for(0), times: 1 }
                } else {
                    Self::Closed { failures }
                }
            }
            (Self::Probing { times, .. }, Health::Bad) => {
                Self::Open { until: now + limits.open_for(times), times: times.saturating_add(1) }
            }
            // The probe had no result, so the next call is a probe.
            (Self::Probing { times, .. }, Health::Unknown) => Self::Open { until: now, times },
            // A result of a call from before the circuit opened.
            (Self::Open { .. }, Health::Bad) | (_, Health::Unknown) => self,
        }
    }
}

impl BreakerLimits {
    fn open_for(&self, times: u32) -> Duration {
        self.open_min.saturating_mul(1 << times.min(20)).min(self.open_max)
    }
}

impl Breaker {
    pub(crate) fn new(limits: BreakerLimits) -> Arc<Self> {
        Arc::new(Self { limits, state: Mutex::new(State::Closed { failures: 0 }) })
    }

    /// Lets a call pass.
    ///
    /// # Errors
    /// For how long none may.
    pub(crate) fn enter(self: &Arc<Self>) -> Result<Attempt, Duration> {
        let entered = self.change(|state| state.enter(Instant::now(), &self.limits));
        entered.map(|()| Attempt { breaker: Arc::clone(self), health: Health::Unknown })
    }

    /// Returns whether no call passes at the moment.
    pub(crate) fn is_open(&self) -> bool {
        let now = Instant::now();
        self.change(|state| {
            (
                state,
                matches!(state, State::Open { until, .. } | State::Probing { until, .. } if now < until),
            )
        })
    }

    fn change<T>(&self, next: impl FnOnce(State) -> (State, T)) -> T {
        let mut state = self.state.lock();
        let (new, answer) = next(*state);
        *state = new;
        answer
    }
}

/// A call in progress. Dropping it without a result proves nothing about the upstream.
#[derive(Debug)]
pub(crate) struct Attempt {
    breaker: Arc<Breaker>,
    health: Health,
}

impl Attempt {
    /// Records the result of the call.
    pub(crate) fn record<T>(mut self, result: &RuntimeResult<T>) {
        self.health = match result {
            Err(RuntimeError::Unavailable { .. }) => Health::Bad,
            // A caller with a very short timeout must not open the circuit for everyone.
            Err(RuntimeError::TimedOut { limit, .. }) if *limit >= MIN_MEANINGFUL_TIMEOUT => Health::Bad,
            Err(RuntimeError::TimedOut { .. }) => Health::Unknown,
            Err(
                RuntimeError::Cancelled { .. }
                | RuntimeError::Stopped { .. }
                | RuntimeError::Panicked { .. },
            ) => Health::Unknown,
            // Any response shows that the upstream is reachable.
            _ => Health::Good,
        };
    }
}

impl Drop for Attempt {
    fn drop(&mut self) {
        let (health, limits) = (self.health, &self.breaker.limits);
        self.breaker.change(|state| (state.after(health, Instant::now(), limits), ()));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn failed() -> RuntimeResult<()> {
        Err(RuntimeError::Unavailable { id: "x".into(), reason: "down".into(), source: None })
    }

    fn passes(breaker: &Arc<Breaker>, result: &RuntimeResult<()>) -> bool {
        breaker.enter().map(|attempt| attempt.record(result)).is_ok()
    }

    #[tokio::test(start_paused = true)]
    async fn it_opens_after_failures_in_a_row_and_closes_when_a_probe_succeeds() {
        let breaker = Breaker::new(BreakerLimits::default());
        for _ in 0..4 {
            assert!(passes(&breaker, &failed()));
        }
        assert!(passes(&breaker, &Ok(())), "a success begins the count anew");
        for _ in 0..5 {
            assert!(passes(&breaker, &failed()));
        }
        assert_eq!(breaker.enter().unwrap_err(), Duration::from_secs(1));
        tokio::time::advance(Duration::from_secs(1)).await;
        let probe = breaker.enter().unwrap();
        assert!(breaker.enter().is_err(), "one probe at a time");
        probe.record(&failed());
        assert_eq!(breaker.enter().unwrap_err(), Duration::from_secs(2));
        tokio::time::advance(Duration::from_secs(2)).await;
        assert!(passes(&breaker, &Ok(())));
        assert!(passes(&breaker, &failed()), "it is closed again");
        assert!(breaker.enter().is_ok());
    }

    #[tokio::test(start_paused = true)]
    async fn a_probe_that_came_to_nothing_is_made_again_and_a_refusal_is_no_failure() {
        let limits = BreakerLimits { failures: 1, ..BreakerLimits::default() };
        let breaker = Breaker::new(limits);
        let hasty =
            RuntimeError::TimedOut { id: "x".into(), limit: Duration::from_millis(5), outcome: None };
        assert!(passes(&breaker, &Err(hasty)));
        let refused = Err(RuntimeError::Failed { id: "x".into(), message: "404".into(), outcome: None });
        assert!(passes(&breaker, &refused) && passes(&breaker, &failed()));
        tokio::time::advance(Duration::from_secs(1)).await;
        drop(breaker.enter().unwrap());
        assert!(passes(&breaker, &Ok(())));
        let never = Breaker::new(BreakerLimits { failures: 0, ..BreakerLimits::default() });
        assert!((0..100).all(|_| passes(&never, &failed())));
    }

    proptest! {
        /// It is never open for longer than its bound, and a success closes it.
        #[test]
        fn it_is_never_open_for_long(steps in proptest::collection::vec((0..3_u8, 0..5_000_u64), 0..60)) {
            let limits = BreakerLimits::default();
            let (mut state, mut now) = (State::Closed { failures: 0 }, Instant::now());
            for (what, wait) in steps {
                now += Duration::from_millis(wait);
                let (entered, passed) = state.enter(now, &limits);
                state = entered;
                if let Err(wait) = passed {
                    prop_assert!(wait <= limits.open_max);
                    continue;
                }
                let health = [Health::Good, Health::Bad, Health::Unknown][usize::from(what)];
                state = state.after(health, now, &limits);
                if health == Health::Good {
                    prop_assert_eq!(state, State::Closed { failures: 0 });
                }
            }
        }
    }
}
