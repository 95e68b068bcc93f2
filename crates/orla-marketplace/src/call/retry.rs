//! Decides whether and when a failed call is repeated. Pure.

use std::time::Duration;

use crate::error::RuntimeError;

/// The maximum wait before the first retry. It doubles with each retry.
const FIRST: Duration = Duration::from_millis(100);
/// The maximum wait before any retry.
const LONGEST: Duration = Duration::from_secs(5);

/// Returns how long to wait before a call is repeated, or `None` if it is not repeated.
///
/// At most `max` retries are made. `made` counts those so far, and `random` is from 0 to 1. The wait is a random part of a bound
/// that doubles (full jitter), so that callers that failed together do not retry together. Only
/// transient failures are retried, and only if part of the caller's time would be `left`.
pub(crate) fn wait_before_retry(
    error: &RuntimeError,
    max: u32,
    made: u32,
    left: Duration,
    random: f64,
) -> Option<Duration> {
    let is_retried = matches!(error, RuntimeError::Unavailable { .. } | RuntimeError::Busy { .. });
    if !is_retried || !error.is_transient() || made >= max {
        return None;
    }
    let bound = FIRST.saturating_mul(1 << made.min(10)).min(LONGEST);
    let wait = bound.mul_f64(random.clamp(0.0, 1.0));
    (wait < left).then_some(wait)
}

/// Returns a random number from 0 to 1, to spread the retries of callers that failed together.
pub fn jitter() -> f64 {
    // Without randomness all callers wait equally long, which is acceptable.
    let bits = getrandom::u32().unwrap_or(u32::MAX / 2);
    f64::from(bits) / f64::from(u32::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::error::Undeclared;

    #[test]
    fn only_what_may_pass_is_tried_again_and_never_beyond_the_deadline() {
        let down = RuntimeError::Unavailable { id: "x".into(), reason: "down".into(), source: None };
        let lasting = RuntimeError::Unavailable {
            id: "x".into(),
            reason: "not declared".into(),
            source: Some(Box::new(Undeclared)),
        };
        let no = RuntimeError::Failed { id: "x".into(), message: "no".into(), outcome: None };
        let ms = Duration::from_millis;
        for (error, made, left, random, wait) in [
            (&down, 0, ms(1000), 1.0, Some(ms(100))),
            (&down, 1, ms(1000), 0.5, Some(ms(100))),
            (&down, 2, ms(1000), 0.5, None),
            (&down, 0, ms(50), 1.0, None),
            (&down, 1, ms(1000), 0.0, Some(ms(0))),
            (&lasting, 0, ms(1000), 1.0, None),
            (&no, 0, ms(1000), 1.0, None),
        ] {
            assert_eq!(wait_before_retry(error, 2, made, left, random), wait, "{error} {made}");
        }
    }
}
