//! Times as attestations write them: RFC 3339 in whole seconds of UTC, `2026-11-20T08:00:00Z`.

use std::time::{Duration, SystemTime, UNIX_EPOCH};

use rtfs::Instant;

/// Returns the time in whole seconds. A time before 1970 is written as 1970-01-01T00:00:00Z, one after
/// the year 9999 as the last second of that year.
pub fn format_instant(at: SystemTime) -> String {
    const LAST: i64 = 253_402_300_799;
    let seconds = at.duration_since(UNIX_EPOCH).unwrap_or_default().as_secs();
    let seconds = i64::try_from(seconds).map_or(LAST, |seconds| seconds.min(LAST));
    Instant::from_unix(seconds, 0).map(|instant| instant.to_string()).unwrap_or_default()
}

/// Parses the format of [`format_instant`], and no other.
pub fn parse_instant(text: &str) -> Option<SystemTime> {
    let seconds = u64::try_from(Instant::parse(text)?.unix_seconds()).ok()?;
    let at = UNIX_EPOCH.checked_add(Duration::from_secs(seconds))?;
    (format_instant(at) == text).then_some(at)
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
        fn formatted_instants_are_parsed_back(seconds in 0..253_402_300_800u64) {
            let at = UNIX_EPOCH + Duration::from_secs(seconds);
            prop_assert_eq!(parse_instant(&format_instant(at)), Some(at));
        }

        #[test]
        fn no_text_is_too_odd(text in "[-0-9TZ:é]{0,24}") {
            let _ = parse_instant(&text);
        }
    }
}
