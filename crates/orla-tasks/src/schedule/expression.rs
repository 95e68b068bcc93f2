//! Computes the instants of a cron expression in a time zone. Pure. The crate `croner` parses
//! expressions, and `jiff` knows the zones.

use std::fmt;

use croner::Cron;
use croner::parser::{CronParser, Seconds, Year};
use jiff::civil::DateTime;
use jiff::tz::{AmbiguousOffset, TimeZone};
use jiff::{Span, Zoned};
use orla_marketplace::rtfs::text::excerpt;

use crate::task::Timestamp;

const FIELDS: [&str; 5] = ["minute", "hour", "day of the month", "month", "day of the week"];
/// The values of each field.
const VALUES: [&str; 5] =
    ["0 to 59", "0 to 23", "1 to 31", "1 to 12 or JAN to DEC", "0 to 7 or SUN to SAT"];
/// The maximum number of characters of a field in an error.
const MAX_SHOWN: usize = 40;

/// A cron expression of five fields in a time zone.
///
/// When clocks are set forward, a time of day that is skipped fires at the first instant after the gap.
/// When clocks are set back, a time of day that occurs twice fires the first time. Expressions with `*`
/// or `/` in the field of the minute or the hour fire at each instant that matches.
#[derive(Clone)]
pub struct Expression {
    text: String,
    zone: String,
    cron: Cron,
    time_zone: TimeZone,
    /// Whether the expression names times of day: the fields of the minute and the hour contain neither
    /// `*` nor `/`.
    names_times: bool,
}

/// The reason why an expression is refused.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ExpressionError {
    /// The expression cannot be parsed, or has no instants.
    #[error("{0}")]
    Schedule(String),
    /// The time zone is unknown.
    #[error("expected a time zone of the IANA database, such as Europe/Berlin, got {0:?}")]
    TimeZone(String),
}

impl Expression {
    /// Parses an expression in the time zone of this name.
    ///
    /// # Errors
    ///
    /// Returns an error if the expression or the zone cannot be parsed, or if the expression has no
    /// instants.
    pub fn parse(text: &str, zone: &str) -> Result<Self, ExpressionError> {
        let time_zone = TimeZone::get(zone).map_err(|_| ExpressionError::TimeZone(zone.to_owned()))?;
        let fields: Vec<&str> = text.split_whitespace().collect();
        if fields.len() != FIELDS.len() {
            return Err(ExpressionError::Schedule(format!(
                "expected five fields ({}), got {}",
                FIELDS.join(", "),
                fields.len()
            )));
        }
        let parser = CronParser::builder().seconds(Seconds::Disallowed).year(Year::Disallowed).build();
        let cron = parser.parse(text).map_err(|_| {
            let is_wrong = |at: &usize| {
                let mut alone = ["*"; FIELDS.len()];
                alone[*at] = fields[*at];
                parser.parse(&alone.join(" ")).is_err()
            };
            ExpressionError::Schedule(match (0..FIELDS.len()).find(is_wrong) {
                Some(at) => format!(
                    "{}: expected {} (also *, 1-5, 1,3 and */5), got {}",
                    FIELDS[at],
                    VALUES[at],
                    excerpt(fields[at], MAX_SHOWN)
                ),
                None => "expected a cron expression of five fields".to_owned(),
            })
        })?;
        let names_times = !text.split_whitespace().take(2).any(|field| field.contains(['*', '/']));
        let expression =
            Self { text: text.to_owned(), zone: zone.to_owned(), cron, time_zone, names_times };
        // The longest time between two instants is eight years: that of 29 February around a century.
        match expression.next(Timestamp(0)) {
            Some(_) => Ok(expression),
            None => Err(ExpressionError::Schedule("this date never comes".to_owned())),
        }
    }

    /// Returns the expression as it was written.
    pub fn as_str(&self) -> &str {
        &self.text
    }

    /// Returns the name of the time zone.
    pub fn time_zone(&self) -> &str {
        &self.zone
    }

    /// Returns the first instant after this one.
    pub fn next(&self, after: Timestamp) -> Option<Timestamp> {
        if self.names_times {
            let mut times = self.cron.iter_after(utc(self.local(after)?.datetime())?);
            return times.find_map(|time| self.instant_of(time.datetime()).filter(|at| *at > after));
        }
        let found = self.cron.find_next_occurrence(&self.local(after)?, false).ok()?;
        instant(found.timestamp()).filter(|found| *found > after)
    }

    /// Returns the last instant before this one.
    pub fn previous(&self, before: Timestamp) -> Option<Timestamp> {
        if self.names_times {
            // Before clocks were set back, they showed later times than now.
            let now = self.local(before)?;
            let yesterday = now.checked_sub(Span::new().hours(24)).ok()?;
            // A backward search excludes the second at which it begins.
            let latest = now.timestamp().as_second()
                + 1
                + i64::from(now.offset().seconds().max(yesterday.offset().seconds()));
            let latest = jiff::Timestamp::from_second(latest).ok()?.to_zoned(TimeZone::UTC);
            let mut times = self.cron.iter_before(latest);
            return times.find_map(|time| self.instant_of(time.datetime()).filter(|at| *at < before));
        }
        // Instants are full seconds, and a search begins at the second of its start time.
        let second = Timestamp(before.0.checked_sub(1)?);
        let found = self.cron.find_previous_occurrence(&self.local(second)?, true).ok()?;
        instant(found.timestamp()).filter(|found| *found < before)
    }

    /// Returns the instant at which clocks first show this time, or the end of the gap in which they
    /// never show it.
    fn instant_of(&self, time: DateTime) -> Option<Timestamp> {
        let at = match self.time_zone.to_ambiguous_timestamp(time).offset() {
            AmbiguousOffset::Unambiguous { offset } | AmbiguousOffset::Fold { before: offset, .. } => {
                offset.to_timestamp(time).ok()?
            }
            AmbiguousOffset::Gap { after, .. } => {
                let early = after.to_timestamp(time).ok()?;
                self.time_zone.following(early).next()?.timestamp()
            }
        };
        instant(at)
    }

    fn local(&self, at: Timestamp) -> Option<Zoned> {
        let at = jiff::Timestamp::from_millisecond(i64::try_from(at.0).ok()?).ok()?;
        Some(at.to_zoned(self.time_zone.clone()))
    }
}

/// Returns the same time of day in a zone whose clocks are never set.
fn utc(time: DateTime) -> Option<Zoned> {
    time.to_zoned(TimeZone::UTC).ok()
}

fn instant(at: jiff::Timestamp) -> Option<Timestamp> {
    u64::try_from(at.as_millisecond()).ok().map(Timestamp)
}

impl fmt::Debug for Expression {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} in {}", self.text, self.zone)
    }
}

impl PartialEq for Expression {
    fn eq(&self, other: &Self) -> bool {
        (&self.text, &self.zone) == (&other.text, &other.zone)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn at(text: &str) -> Timestamp {
        let at: jiff::Timestamp = text.parse().unwrap();
        Timestamp(u64::try_from(at.as_millisecond()).unwrap())
    }

    /// Returns the next instants after a time, in the time of the zone.
    fn instants(text: &str, zone: &str, after: &str, count: usize) -> Vec<String> {
        let expression = Expression::parse(text, zone).unwrap();
        let mut from = at(after);
        (0..count)
            .map(|_| {
                from = expression.next(from).unwrap();
                expression.local(from).unwrap().strftime("%F %H:%M%:z").to_string()
            })
            .collect()
    }

    #[test]
    fn times_of_day_are_in_the_time_zone() {
        assert_eq!(
            instants("0 7 * * *", "Europe/Berlin", "2026-07-01T06:00:00Z", 2),
            ["2026-07-02 07:00+02:00", "2026-07-03 07:00+02:00"]
        );
        assert_eq!(
            instants("30 9 * * 1-5", "UTC", "2026-07-31T10:00:00Z", 2),
            ["2026-08-03 09:30+00:00", "2026-08-04 09:30+00:00"]
        );
        assert_eq!(instants("0 0 29 2 *", "UTC", "2026-01-01T00:00:00Z", 1), ["2028-02-29 00:00+00:00"]);
    }

    #[test]
    fn skipped_times_fire_after_the_gap_and_repeated_times_once() {
        // 2026-03-29: 02:00 becomes 03:00. 2026-10-25: 03:00 becomes 02:00.
        assert_eq!(
            instants("30 2 * * *", "Europe/Berlin", "2026-03-28T12:00:00Z", 2),
            ["2026-03-29 03:00+02:00", "2026-03-30 02:30+02:00"]
        );
        assert_eq!(
            instants("30 2 * * *", "Europe/Berlin", "2026-10-24T12:00:00Z", 2),
            ["2026-10-25 02:30+02:00", "2026-10-26 02:30+01:00"]
        );
        assert_eq!(
            instants("*/30 * * * *", "Europe/Berlin", "2026-10-25T00:00:00Z", 4),
            [
                "2026-10-25 02:30+02:00",
                "2026-10-25 02:00+01:00",
                "2026-10-25 02:30+01:00",
                "2026-10-25 03:00+01:00"
            ]
        );
        assert_eq!(
            instants("0 * * * *", "Europe/Berlin", "2026-03-29T00:30:00Z", 2),
            ["2026-03-29 03:00+02:00", "2026-03-29 04:00+02:00"]
        );
    }

    #[test]
    fn lists_and_ranges_name_times_of_day_too() {
        for (text, gap, fold) in [
            ("0,30 2 * * *", &["03:00+02:00"][..], &["02:00+02:00", "02:30+02:00"][..]),
            ("15-16 2 * * *", &["03:00+02:00"], &["02:15+02:00", "02:16+02:00"]),
            ("30 2,14 * * *", &["03:00+02:00", "14:30+02:00"], &["02:30+02:00", "14:30+01:00"]),
            (
                "30 1-3 * * *",
                &["01:30+01:00", "03:00+02:00", "03:30+02:00"],
                &["01:30+02:00", "02:30+02:00", "03:30+01:00"],
            ),
            ("*/30 2 * * *", &[], &["02:00+02:00", "02:30+02:00", "02:00+01:00", "02:30+01:00"]),
        ] {
            for (day, expected) in [("2027-03-28", gap), ("2027-10-31", fold)] {
                let expression = Expression::parse(text, "Europe/Berlin").unwrap();
                let midnight: DateTime = format!("{day}T00:00").parse().unwrap();
                let [begin, end] = [midnight, midnight.tomorrow().unwrap()]
                    .map(|time| expression.instant_of(time).unwrap());
                let shown =
                    |at: Timestamp| expression.local(at).unwrap().strftime("%H:%M%:z").to_string();
                let mut forward = Vec::new();
                let mut at = Timestamp(begin.0 - 1);
                while let Some(next) = expression.next(at).filter(|next| *next < end) {
                    forward.push(shown(next));
                    at = next;
                }
                assert_eq!(forward, expected, "{text} on {day}");
                let mut backward = Vec::new();
                let mut at = end;
                while let Some(previous) = expression.previous(at).filter(|previous| *previous >= begin)
                {
                    backward.insert(0, shown(previous));
                    at = previous;
                }
                assert_eq!(backward, expected, "{text} on {day}, backwards");
            }
        }
    }

    #[test]
    fn invalid_schedules_are_refused() {
        let refused = |text: &str, zone: &str| Expression::parse(text, zone).unwrap_err().to_string();
        assert!(refused("* * * *", "UTC").contains("got 4"));
        assert!(refused("0 * * * * *", "UTC").contains("got 6"));
        assert!(refused("@daily", "UTC").contains("got 1"));
        for (text, why) in [
            ("61 * * * *", "minute: expected 0 to 59 (also *, 1-5, 1,3 and */5), got 61"),
            ("a b c d e", "minute: expected 0 to 59 (also *, 1-5, 1,3 and */5), got a"),
            (
                "0 7 * * MOM",
                "day of the week: expected 0 to 7 or SUN to SAT (also *, 1-5, 1,3 and */5), got MOM",
            ),
        ] {
            assert_eq!(refused(text, "UTC"), why);
        }
        assert!(refused("", "UTC").contains("got 0"));
        assert_eq!(refused("0 0 31 2 *", "UTC"), "this date never comes");
        assert!(refused("* * * * *", "Europe/Atlantis").contains("Europe/Atlantis"));
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(256))]

        /// In any zone, instants increase, no instant lies between two consecutive ones, and a backward
        /// search returns the same instants.
        #[test]
        fn next_and_previous_agree(
            minute in 0..60_u32, hour in 0..24_u32, step in 1..30_u32, form in 0..5,
            zone in prop::sample::select(vec!["UTC", "Europe/Berlin", "America/New_York", "Australia/Lord_Howe", "Asia/Kathmandu"]),
            from in 1_767_225_600_000_u64..1_830_297_600_000,
        ) {
            let text = match form {
                0 => format!("{minute} {hour} * * *"),
                1 => format!("*/{step} * * * *"),
                2 => format!("{minute} */2 * * *"),
                3 => format!("{minute},{} {hour}-23 * * *", 60 - step),
                _ => format!("{minute} {hour} 1,15 * 1"),
            };
            let expression = Expression::parse(&text, zone).unwrap();
            let first = expression.next(Timestamp(from)).unwrap();
            let second = expression.next(first).unwrap();
            prop_assert!(Timestamp(from) < first && first < second);
            prop_assert_eq!(first.0 % 1000, 0);
            prop_assert_eq!(expression.next(Timestamp(first.0 - 1)), Some(first));
            prop_assert_eq!(expression.next(Timestamp(second.0 - 1)), Some(second));
            prop_assert_eq!(expression.previous(second), Some(first), "{} {}", text, zone);
            for late in [1, 999, 1000] {
                prop_assert_eq!(expression.previous(Timestamp(second.0 + late)), Some(second), "{} {}", text, zone);
            }
        }

        #[test]
        fn no_text_makes_it_panic(text in "[ -~]{0,30}", fields in "[0-9*/,?LW#+-]{1,6}( [0-9*/,?LW#+-]{1,6}){4}") {
            for text in [text, fields] {
                if let Ok(expression) = Expression::parse(&text, "Europe/Berlin") {
                    let first = expression.next(Timestamp(1_767_225_600_000));
                    prop_assert!(first.is_none_or(|first| first.0 > 1_767_225_600_000));
                }
            }
        }
    }
}
