//! Limits how many lines of a process's standard error are logged. Pure.

use std::time::Duration;

use bytes::BytesMut;
use tokio::time::Instant;

/// The maximum number of logged lines per second. Logging more would only cost disk and processor time.
pub(super) const LINES_A_SECOND: u64 = 1_000;

const SECOND: Duration = Duration::from_secs(1);

/// The lines of the current second.
#[derive(Debug, Default)]
pub(super) struct LogPace {
    until: Option<Instant>,
    lines: u64,
    /// Two of the omitted lines: one that may say why the process ends, and the last one.
    kept: [Option<BytesMut>; 2],
}

impl LogPace {
    /// Takes a line, and returns it if it must be logged now. `is_error_line` says whether the line may say
    /// why the process ends.
    pub(super) fn take(
        &mut self,
        line: BytesMut,
        is_error_line: impl FnOnce(&[u8]) -> bool,
        now: Instant,
    ) -> Option<BytesMut> {
        self.until.get_or_insert(now + SECOND);
        self.lines += 1;
        if self.lines <= LINES_A_SECOND {
            return Some(line);
        }
        let [why, last] = &mut self.kept;
        if is_error_line(&line) {
            *why = Some(line);
            *last = None;
        } else {
            *last = Some(line);
        }
        None
    }

    /// Returns when the second ends, if lines of it were omitted.
    pub(super) fn due(&self) -> Option<Instant> {
        self.until.filter(|_| self.lines > LINES_A_SECOND)
    }

    /// Ends the second. Returns how many lines were omitted, and those of them that are logged
    /// nevertheless.
    pub(super) fn end(&mut self) -> Option<(u64, impl Iterator<Item = BytesMut> + use<>)> {
        let Self { lines, kept, .. } = std::mem::take(self);
        let left_out = lines.checked_sub(LINES_A_SECOND).filter(|left_out| *left_out > 0)?;
        Some((left_out, kept.into_iter().flatten()))
    }

    /// Returns whether the second is over.
    pub(super) fn is_over(&self, now: Instant) -> bool {
        self.until.is_some_and(|until| until <= now)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_second_has_its_lines_and_of_the_others_the_last_and_why() {
        let start = Instant::now();
        let line = |number: u64| BytesMut::from(number.to_string().as_bytes());
        let mut pace = LogPace::default();
        let logged =
            (0..LINES_A_SECOND).all(|number| pace.take(line(number), |_| true, start).is_some());
        assert!(logged && pace.due().is_none());
        assert!((0..10).all(|number| pace.take(line(number), |_| number == 3, start).is_none()));
        assert_eq!(pace.due(), Some(start + SECOND));
        assert!(!pace.is_over(start) && pace.is_over(start + SECOND));
        let (left_out, kept) = pace.end().unwrap();
        assert_eq!((left_out, kept.collect::<Vec<_>>()), (10, vec![line(3), line(9)]));
        assert!(pace.take(line(1), |_| true, start + SECOND).is_some());
        assert!(pace.due().is_none() && pace.end().is_none());
    }
}
