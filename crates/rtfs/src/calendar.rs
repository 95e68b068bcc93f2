//! Dates and times of the Gregorian calendar, in the notation of RFC 3339.

use std::fmt::{self, Write};

use crate::scalar::Instant;

impl Instant {
    /// Parses `2026-11-20T10:00:00.5+02:00` (RFC 3339). A leap second becomes the following second, and
    /// digits beyond nanoseconds are dropped.
    pub fn parse(text: &str) -> Option<Self> {
        let (day, clock) = text.split_at_checked(10)?;
        let clock = clock.strip_prefix(['T', 't'])?;
        let Clock { seconds, nanoseconds } = parse_time(clock)?;
        let midnight = parse_date(day)?.checked_mul(86_400)?;
        Self::from_unix(midnight.checked_add(seconds)?, nanoseconds)
    }
}

impl fmt::Display for Instant {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let seconds = self.unix_seconds();
        let (year, month, day) = date_of(seconds.div_euclid(86_400));
        let time = seconds.rem_euclid(86_400);
        let (hour, minute, second) = (time / 3_600, time / 60 % 60, time % 60);
        write!(f, "{year:04}-{month:02}-{day:02}T{hour:02}:{minute:02}:{second:02}")?;
        match self.subsec_nanoseconds() {
            0 => {}
            n if n % 1_000_000 == 0 => write!(f, ".{:03}", n / 1_000_000)?,
            n if n % 1_000 == 0 => write!(f, ".{:06}", n / 1_000)?,
            n => write!(f, ".{n:09}")?,
        }
        f.write_char('Z')
    }
}

/// Returns the year, month and day of a day counted from 1970-01-01.
fn date_of(day: i64) -> (i64, i64, i64) {
    // Years begin in March here, so that the leap day is their last. 400 of them have 146,097 days.
    let day = day + 719_468; // since 0000-03-01
    let (era, day) = (day.div_euclid(146_097), day.rem_euclid(146_097));
    let year = (day - day / 1_460 + day / 36_524 - day / 146_096) / 365;
    let day = day - (365 * year + year / 4 - year / 100);
    let month = (5 * day + 2) / 153; // 0 is March
    let (day, month_of_year) = (day - (153 * month + 2) / 5 + 1, (month + 2) % 12 + 1);
    (era * 400 + year + i64::from(month_of_year <= 2), month_of_year, day)
}

/// Parses `2026-11-20` as days since 1970-01-01.
pub(crate) fn parse_date(text: &str) -> Option<i64> {
    let bytes = text.as_bytes();
    if bytes.len() != 10 || bytes[4] != b'-' || bytes[7] != b'-' {
        return None;
    }
    let (year, month, day) =
        (number(text.get(..4)?)?, number(text.get(5..7)?)?, number(text.get(8..)?)?);
    if !(1..=12).contains(&month) || day == 0 {
        return None;
    }
    // Years begin in March here, so that the leap day is their last.
    let (years, months) = if month > 2 { (year, month - 3) } else { (year - 1, month + 9) };
    let (era, of_era) = (years.div_euclid(400), years.rem_euclid(400));
    let of_year = (153 * months + 2) / 5 + day - 1;
    let days = era * 146_097 + of_era * 365 + of_era / 4 - of_era / 100 + of_year - 719_468;
    // A day that does not exist in its month would belong to the next month.
    (date_of(days) == (year, month, day)).then_some(days)
}

/// A time of day.
pub(crate) struct Clock {
    /// Seconds since midnight UTC. Negative or beyond a day where the offset leads into another day.
    seconds: i64,
    nanoseconds: u32,
}

/// Parses `10:00:00.5+02:00`.
pub(crate) fn parse_time(text: &str) -> Option<Clock> {
    let (time, rest) = text.split_at_checked(8)?;
    let bytes = time.as_bytes();
    if bytes[2] != b':' || bytes[5] != b':' {
        return None;
    }
    let (hour, minute, second) =
        (number(time.get(..2)?)?, number(time.get(3..5)?)?, number(time.get(6..)?)?);
    let (fraction, zone) = match rest.strip_prefix('.') {
        Some(rest) => {
            let end = rest.find(|c: char| !c.is_ascii_digit())?;
            (Some(&rest[..end]), &rest[end..])
        }
        None => (None, rest),
    };
    let nanoseconds = match fraction {
        Some("") => return None,
        Some(digits) => format!("{digits:0<9}").get(..9)?.parse().ok()?,
        None => 0,
    };
    let offset = match zone.as_bytes() {
        [b'Z' | b'z'] => 0,
        [sign @ (b'+' | b'-'), _, _, b':', _, _] => {
            let (hours, minutes) = (number(zone.get(1..3)?)?, number(zone.get(4..)?)?);
            if hours > 23 || minutes > 59 {
                return None;
            }
            (hours * 3_600 + minutes * 60) * if *sign == b'-' { -1 } else { 1 }
        }
        _ => return None,
    };
    let of_day = (hour * 3_600 + minute * 60 - offset).rem_euclid(86_400);
    let is_leap_second = second == 60 && of_day == 86_340;
    if hour > 23 || minute > 59 || (second > 59 && !is_leap_second) {
        return None;
    }
    Some(Clock { seconds: hour * 3_600 + minute * 60 + second - offset, nanoseconds })
}

/// Parses a number of ASCII digits only.
fn number(digits: &str) -> Option<i64> {
    digits.bytes().all(|byte| byte.is_ascii_digit()).then(|| digits.parse().ok())?
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn an_instant_prints_as_it_was_read() {
        for text in [
            "1970-01-01T00:00:00Z",
            "2000-02-29T23:59:59.120Z",
            "0000-01-01T00:00:00Z",
            "9999-12-31T23:59:59Z",
        ] {
            assert_eq!(Instant::parse(text).unwrap().to_string(), text);
        }
        let converted = Instant::parse("2026-11-20T12:00:00+02:00").unwrap();
        assert_eq!(converted.to_string(), "2026-11-20T10:00:00Z");
        for text in [
            "0000-01-01T00:00:00+01:00",
            "2026-02-29T10:00:00Z",
            "2026-04-31T10:00:00Z",
            "1900-02-29T10:00:00Z",
            "2026-00-01T10:00:00Z",
            "2026-01-00T10:00:00Z",
        ] {
            assert_eq!(Instant::parse(text), None, "{text}");
        }
    }

    proptest! {
        #[test]
        fn any_instant_is_read_as_it_was_printed(seconds in -62_167_219_200_i64..=253_402_300_799, nanoseconds in 0_u32..1_000_000_000) {
            let instant = Instant::from_unix(seconds, nanoseconds).unwrap();
            prop_assert_eq!(Instant::parse(&instant.to_string()), Some(instant));
        }
    }
}
