//! Rounds of calls, medians and percentiles.

use std::time::Duration;

/// One round of calls.
#[derive(Default)]
pub(super) struct Round {
    /// The latency of every call, in no order.
    pub(super) latencies: Vec<Duration>,
    /// From the first call to the last answer.
    pub(super) elapsed: Duration,
}

impl Round {
    /// Calls each second.
    pub(super) fn rate(&self) -> f64 {
        self.latencies.len() as f64 / self.elapsed.as_secs_f64().max(f64::EPSILON)
    }

    /// Returns a percentile of the latencies, in microseconds.
    pub(super) fn micros(&self, percent: usize) -> f64 {
        percentile(self.latencies.iter().map(|latency| latency.as_secs_f64() * 1e6).collect(), percent)
    }
}

/// Returns the middle value; zero of nothing.
pub(crate) fn median(values: Vec<f64>) -> f64 {
    percentile(values, 50)
}

/// Returns the nearest-rank percentile; zero of nothing.
pub(crate) fn percentile(mut values: Vec<f64>, percent: usize) -> f64 {
    values.sort_by(f64::total_cmp);
    let rank = (values.len() * percent).div_ceil(100).saturating_sub(1);
    values.get(rank).copied().unwrap_or(0.0)
}

/// Returns how far values lie apart: the difference of the greatest and the least, as a part of the
/// median.
pub(super) fn spread(values: &[f64]) -> f64 {
    let least = values.iter().copied().fold(f64::INFINITY, f64::min);
    let greatest = values.iter().copied().fold(f64::NEG_INFINITY, f64::max);
    let middle = median(values.to_vec());
    if middle > 0.0 { (greatest - least) / middle } else { 0.0 }
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

    #[test]
    fn the_spread_is_a_part_of_the_median() {
        assert_eq!(spread(&[9.0, 10.0, 12.0]), 0.3);
        assert_eq!(spread(&[]), 0.0);
    }
}
