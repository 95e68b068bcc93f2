//! Times as attestations write them: RFC 3339 in whole seconds of UTC, `2026-11-20T08:00:00Z`.

use std::time::{Duration, SystemTime, UNIX_EPOCH};

/// The time in whole seconds; what lies before 1970 is written as its beginning.
pub fn format_instant(at: SystemTime) -> String {
    let seconds = at.duration_since(UNIX_EPOCH).unwrap_or_default().as_secs();
    let (days, second) = (seconds / 86_400, seconds % 86_400);
    let (year, month, day) = civil(days);
    let (hour, minute, second) = (second / 3600, second / 60 % 60, second % 60);
    format!("{year:04}-{month:02}-{day:02}T{hour:02}:{minute:02}:{second:02}Z")
}

/// Reads what [`format_instant`] writes, and nothing else.
pub fn parse_instant(text: &str) -> Option<SystemTime> {
    let number = |from: usize, to: usize| -> Option<u64> {
        let digits = text.get(from..to).filter(|text| text.bytes().all(|byte| byte.is_ascii_digit()))?;
        digits.parse().ok()
    };
    let (year, month, day) = (number(0, 4)?, number(5, 7)?, number(8, 10)?);
    let (hour, minute, second) = (number(11, 13)?, number(14, 16)?, number(17, 19)?);
    // Counted in eras of 400 years that begin on the 1st of March, so that leap days come last.
    let (months, years) = ((month + 9) % 12, if month > 2 { year } else { year.checked_sub(1)? });
    let of_year = (153 * months + 2) / 5 + day.checked_sub(1)?;
    let of_era = years % 400 * 365 + years % 400 / 4 - years % 400 / 100 + of_year;
    let days = (years / 400 * 146_097 + of_era).checked_sub(719_468)?;
    let seconds = days * 86_400 + hour * 3600 + minute * 60 + second;
    let at = UNIX_EPOCH.checked_add(Duration::from_secs(seconds))?;
    // Whatever was out of its range was written otherwise.
    (format_instant(at) == text).then_some(at)
}

/// Year, month and day of a day since 1970.
fn civil(days: u64) -> (u64, u64, u64) {
    let shifted = days + 719_468;
    let (era, of_era) = (shifted / 146_097, shifted % 146_097);
    let of_years = (of_era - of_era / 1460 + of_era / 36_524 - of_era / 146_096) / 365;
    let of_year = of_era - (365 * of_years + of_years / 4 - of_years / 100);
    let months = (5 * of_year + 2) / 153;
    let month = if months < 10 { months + 3 } else { months - 9 };
    let year = of_years + era * 400 + u64::from(month <= 2);
    (year, month, of_year - (153 * months + 2) / 5 + 1)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn times_are_written_and_read_in_one_way() {
        let cases = [
            (0, "1970-01-01T00:00:00Z"),
            (951_782_400, "2000-02-29T00:00:00Z"),
            (1_795_161_600, "2026-11-20T08:00:00Z"),
            (4_107_542_400, "2100-03-01T00:00:00Z"),
        ];
        for (seconds, text) in cases {
            let at = UNIX_EPOCH + Duration::from_secs(seconds);
            assert_eq!(format_instant(at), text);
            assert_eq!(parse_instant(text), Some(at));
        }
    }

    #[test]
    fn nothing_else_is_a_time() {
        for text in [
            "",
            "2026-11-20",
            "2026-11-20T08:00:00",
            "2026-11-20 08:00:00Z",
            "2026-11-20T08:00:00z",
            "2026-11-20T08:00:00+00:00",
            "2026-02-30T08:00:00Z",
            "2026-13-01T08:00:00Z",
            "2026-00-01T08:00:00Z",
            "2026-01-00T08:00:00Z",
            "2026-11-20T24:00:00Z",
            "2026-11-20T08:60:00Z",
            "1969-12-31T23:59:59Z",
            "+026-11-20T08:00:00Z",
            "2026-11-20T08:00:00Z ",
            "2026-11-2éT08:00:00Z",
        ] {
            assert_eq!(parse_instant(text), None, "{text}");
        }
    }

    proptest! {
        #[test]
        fn what_is_written_is_read_back(seconds in 0..253_402_300_800u64) {
            let at = UNIX_EPOCH + Duration::from_secs(seconds);
            prop_assert_eq!(parse_instant(&format_instant(at)), Some(at));
        }

        #[test]
        fn no_text_is_too_odd(text in "[-0-9TZ:é]{0,24}") {
            let _ = parse_instant(&text);
        }
    }
}
