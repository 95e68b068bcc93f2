//! Medians and percentiles.

use std::time::Duration;

/// What one round of calls gave.
#[derive(Default)]
pub(super) struct Round {
    /// Of every call, in no order.
    pub(super) latencies: Vec<Duration>,
    /// From the first call to the last answer.
    pub(super) elapsed: Duration,
}

impl Round {
    /// Calls each second.
    pub(super) fn rate(&self) -> f64 {
        self.latencies.len() as f64 / self.elapsed.as_secs_f64().max(f64::EPSILON)
    }
}

/// All rounds of one side.
#[derive(Default)]
pub(super) struct Rounds(pub(super) Vec<Round>);

impl Rounds {
    /// The median of the rounds' rates.
    pub(super) fn rate(&self) -> f64 {
        median(self.0.iter().map(Round::rate).collect())
    }

    /// A percentile of all calls, in microseconds.
    pub(super) fn micros(&self, percent: usize) -> f64 {
        let all = self.0.iter().flat_map(|round| &round.latencies);
        percentile(all.map(|latency| latency.as_secs_f64() * 1e6).collect(), percent)
    }
}

/// The middle value; zero of nothing.
pub(super) fn median(values: Vec<f64>) -> f64 {
    percentile(values, 50)
}

/// The nearest-rank percentile; zero of nothing.
pub(super) fn percentile(mut values: Vec<f64>, percent: usize) -> f64 {
    values.sort_by(f64::total_cmp);
    let rank = (values.len() * percent).div_ceil(100).saturating_sub(1);
    values.get(rank).copied().unwrap_or(0.0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn percentiles_are_by_nearest_rank() {
        let hundred = || (1..=100).rev().map(f64::from).collect::<Vec<_>>();
        assert_eq!(percentile(hundred(), 50), 50.0);
        assert_eq!(percentile(hundred(), 99), 99.0);
        assert_eq!(median(vec![3.0, 1.0, 2.0]), 2.0);
        assert_eq!(median(Vec::new()), 0.0);
    }
}
