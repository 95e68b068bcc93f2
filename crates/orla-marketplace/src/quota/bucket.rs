//! The arithmetic of one bucket: pure, exact, and without its own clock.
//!
//! A bucket of `calls` calls is refilled evenly in one `period`. It counts in units: one call has as
//! many units as the period has nanoseconds. Every nanosecond therefore refills exactly `calls` units,
//! and nothing is ever rounded. Sums saturate: only a stored number can be so large.

use std::time::Duration;

/// The size of a bucket and the time in which an empty one is refilled.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Pace {
    pub(super) calls: u64,
    pub(super) period: Duration,
}

/// The calls that have been taken from a bucket and not been refilled, at a point in time.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Bucket {
    /// The missing units.
    spent: u128,
    /// The time since the epoch of the table.
    at: Duration,
}

impl Pace {
    /// Returns the units of this many calls.
    fn units(self, calls: u64) -> u128 {
        u128::from(calls) * self.period.as_nanos()
    }
}

impl Bucket {
    /// Returns a bucket from which `calls` have been taken.
    pub(super) fn with_spent(calls: f64, now: Duration, pace: Pace) -> Self {
        // A cast saturates: a stored number below zero counts as zero.
        Self { spent: (calls * pace.period.as_nanos() as f64).ceil() as u128, at: now }
    }

    /// Creates a bucket in which this many units were missing at a point in time.
    pub(super) fn of(spent: u128, at: Duration) -> Self {
        Self { spent, at }
    }

    /// Returns the missing units, and the time.
    pub(super) fn parts(self) -> (u128, Duration) {
        (self.spent, self.at)
    }

    /// Gives back the units of `cost` calls that were not made.
    pub(super) fn give_back(&mut self, cost: u64, now: Duration, pace: Pace) {
        let spent = self.missing(now, pace).saturating_sub(pace.units(cost));
        *self = Self { spent, at: now.max(self.at) };
    }

    /// Returns when the bucket is full.
    pub(super) fn full_at(&self, pace: Pace) -> Duration {
        let nanos = self.spent.div_ceil(u128::from(pace.calls.max(1)));
        self.at.saturating_add(Duration::from_nanos(u64::try_from(nanos).unwrap_or(u64::MAX)))
    }

    /// Returns the units that are missing now. Time that runs backwards refills nothing.
    fn missing(&self, now: Duration, pace: Pace) -> u128 {
        let refilled = now.saturating_sub(self.at).as_nanos().saturating_mul(u128::from(pace.calls));
        self.spent.saturating_sub(refilled)
    }

    /// Returns the time until `cost` calls can be taken; zero if they can be taken now.
    pub(super) fn wait_for(&self, cost: u64, now: Duration, pace: Pace) -> Duration {
        let wanted = self.missing(now, pace).saturating_add(pace.units(cost));
        let over = wanted.saturating_sub(pace.units(pace.calls));
        let nanos = over.div_ceil(u128::from(pace.calls.max(1)));
        Duration::from_nanos(u64::try_from(nanos).unwrap_or(u64::MAX))
    }

    /// Takes `cost` calls, even if fewer are left.
    pub(super) fn take(&mut self, cost: u64, now: Duration, pace: Pace) {
        let spent = self.missing(now, pace).saturating_add(pace.units(cost));
        *self = Self { spent, at: now.max(self.at) };
    }

    /// Returns whether the bucket is full.
    pub(super) fn is_full(&self, now: Duration, pace: Pace) -> bool {
        self.missing(now, pace) == 0
    }

    /// Returns the missing calls, including the fraction of a call that has been refilled.
    pub(super) fn spent(&self, now: Duration, pace: Pace) -> f64 {
        self.missing(now, pace) as f64 / pace.period.as_nanos() as f64
    }

    /// Returns the number of whole calls that can be taken now.
    pub(super) fn remaining(&self, now: Duration, pace: Pace) -> u64 {
        let left = pace.units(pace.calls).saturating_sub(self.missing(now, pace));
        u64::try_from(left / pace.period.as_nanos().max(1)).unwrap_or(u64::MAX)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const MINUTE: Duration = Duration::from_secs(60);

    fn at(ms: u64) -> Duration {
        Duration::from_millis(ms)
    }

    /// Takes one call if available.
    fn takes(bucket: &mut Bucket, now: Duration, pace: Pace) -> bool {
        let is_there = bucket.wait_for(1, now, pace).is_zero();
        if is_there {
            bucket.take(1, now, pace);
        }
        is_there
    }

    #[test]
    fn a_bucket_gives_its_size_at_once_and_then_at_its_pace() {
        let pace = Pace { calls: 5, period: MINUTE };
        let mut bucket = Bucket::default();
        let taken = (0..32).filter(|_| takes(&mut bucket, at(0), pace)).count();
        assert_eq!(taken, 5);
        assert_eq!(bucket.wait_for(1, at(0), pace), Duration::from_secs(12));
        assert!(!takes(&mut bucket, at(11_999), pace));
        assert!(takes(&mut bucket, at(12_000), pace));
        assert_eq!(bucket.remaining(at(12_000), pace), 0);
        assert_eq!(bucket.remaining(at(48_000), pace), 3);
        assert!(bucket.is_full(at(120_000), pace));
    }

    #[test]
    fn a_stored_bucket_continues_where_it_was() {
        let pace = Pace { calls: 3, period: MINUTE };
        let mut bucket = Bucket::default();
        (0..2).for_each(|_| bucket.take(1, at(0), pace));
        let restored = Bucket::with_spent(bucket.spent(at(0), pace), at(500), pace);
        assert_eq!(restored.remaining(at(500), pace), 1);
        for odd in [f64::NAN, -1.0] {
            assert!(Bucket::with_spent(odd, at(0), pace).is_full(at(0), pace));
        }
    }

    #[test]
    fn a_stored_number_without_sense_forgives_nothing() {
        let pace = Pace { calls: u64::MAX, period: Duration::from_secs(86_400) };
        for absurd in [1e300, f64::INFINITY] {
            let mut bucket = Bucket::with_spent(absurd, at(0), pace);
            assert!(!takes(&mut bucket, at(0), pace));
            bucket.take(u64::MAX, at(1), pace);
            assert!(!takes(&mut bucket, at(1), pace));
        }
        assert!(Bucket::default().is_full(Duration::MAX, pace));
    }

    #[test]
    fn a_refund_restores_at_most_the_spent_calls() {
        let pace = Pace { calls: 2, period: MINUTE };
        let mut bucket = Bucket::default();
        (0..2).for_each(|_| bucket.take(1, at(0), pace));
        bucket.give_back(1, at(0), pace);
        assert_eq!(bucket.remaining(at(0), pace), 1);
        assert_eq!(bucket.full_at(pace), Duration::from_secs(30));
        bucket.give_back(1, at(45_000), pace);
        assert_eq!(bucket.remaining(at(45_000), pace), 2, "it was refilled meanwhile");
        assert_eq!(Bucket::of(bucket.parts().0, bucket.parts().1), bucket);
    }

    #[test]
    fn a_smaller_bucket_remembers_what_was_taken() {
        let (large, small) = (Pace { calls: 10, period: MINUTE }, Pace { calls: 2, period: MINUTE });
        let mut bucket = Bucket::default();
        (0..10).for_each(|_| bucket.take(1, at(0), large));
        assert_eq!(bucket.remaining(at(0), small), 0);
        assert_eq!(bucket.wait_for(1, at(0), small), Duration::from_secs(270));
    }

    proptest! {
        #[test]
        fn never_one_too_many_and_none_too_few(
            calls in 1_u64..50,
            period_ms in 1_u64..100_000,
            steps in prop::collection::vec(0_u64..5_000, 1..200),
        ) {
            let pace = Pace { calls, period: at(period_ms) };
            let (mut bucket, mut now, mut taken) = (Bucket::default(), 0_u64, 0_u64);
            let mut was_refused = false;
            for step in steps {
                now += step;
                let is_taken = takes(&mut bucket, at(now), pace);
                taken += u64::from(is_taken);
                // The initial content, and the refill since.
                let most = u128::from(calls * period_ms) + u128::from(now) * u128::from(calls);
                prop_assert!(u128::from(taken * period_ms) <= most);
                let wait = bucket.wait_for(1, at(now), pace);
                prop_assert_eq!(bucket.wait_for(1, at(now) + wait, pace), Duration::ZERO);
                if !is_taken {
                    prop_assert!(wait > Duration::ZERO);
                }
                was_refused |= !is_taken;
            }
            prop_assert!(was_refused || taken > 0);
        }
    }
}
