//! A date, a local time or an instant.

use std::cmp::Ordering;
use std::sync::LazyLock;

use jiff::civil::{Date, DateTime, Weekday};
use jiff::fmt::rfc2822;
use jiff::fmt::strtime;
use jiff::fmt::temporal::DateTimeParser;
use jiff::tz::{Offset, TimeZone, TimeZoneDatabase};
use jiff::{Span, Timestamp, Unit, Zoned};
use rtfs::Value;

use super::Result;
use crate::arguments::Arguments;
use crate::error::BuiltinError;

/// The maximum length of a date, in bytes.
const MAX_LENGTH: usize = 200;

/// Returns the compiled-in time zones; the system's zones are never used.
pub(super) fn zones() -> &'static TimeZoneDatabase {
    static ZONES: LazyLock<TimeZoneDatabase> = LazyLock::new(TimeZoneDatabase::bundled);
    &ZONES
}

#[derive(Clone, Debug)]
pub(super) enum Moment {
    Date(Date),
    Local(DateTime),
    Zoned(Zoned),
}

/// Returns the argument `zone`.
pub(super) fn zone(args: &Arguments<'_>) -> Result<Option<TimeZone>> {
    args.optional_text("zone")?.map(|name| zone_named("zone", name)).transpose()
}

pub(super) fn zone_named(argument: &str, name: &str) -> Result<TimeZone> {
    let unknown = || {
        let shown = rtfs::text::excerpt(name, 80);
        BuiltinError::content(argument, format_args!("no time zone is named {shown:?}"))
    };
    match name {
        "UTC" | "Z" | "z" | "utc" => Ok(TimeZone::UTC),
        name if name.len() > MAX_LENGTH => Err(unknown()),
        name if name.starts_with(['+', '-']) => {
            let broken = strtime::parse("%:z", name).or_else(|_| strtime::parse("%z", name));
            broken.ok().and_then(|broken| broken.offset()).map(TimeZone::fixed).ok_or_else(unknown)
        }
        name => zones().get(name).map_err(|_| unknown()),
    }
}

impl Moment {
    /// Returns the argument `date`, in the argument `zone`.
    pub(super) fn argument(args: &Arguments<'_>) -> Result<Self> {
        Self::read(args, "date", zone(args)?.as_ref())
    }

    pub(super) fn read(args: &Arguments<'_>, name: &str, zone: Option<&TimeZone>) -> Result<Self> {
        if let Some(Value::Instant(instant)) = args.given(name) {
            let nanoseconds = i32::try_from(instant.subsec_nanoseconds()).unwrap_or(0);
            let timestamp = Timestamp::new(instant.unix_seconds(), nanoseconds);
            let timestamp = timestamp.map_err(|error| BuiltinError::content(name, error))?;
            return Ok(Self::Zoned(timestamp.to_zoned(zone.cloned().unwrap_or(TimeZone::UTC))));
        }
        Self::parse(name, args.text(name)?, zone)
    }

    pub(super) fn parse(name: &str, text: &str, zone: Option<&TimeZone>) -> Result<Self> {
        const PARSER: DateTimeParser = DateTimeParser::new();
        let none = || {
            let shown = rtfs::text::excerpt(text, 80);
            let problem = format!("{shown:?} is not a date or time such as 2026-11-20T10:00:00Z");
            BuiltinError::content(name, problem)
        };
        let wrong = |error: jiff::Error| BuiltinError::content(name, error);
        let text = text.trim();
        if text.len() > MAX_LENGTH {
            return Err(none());
        }
        let Ok(pieces) = PARSER.parse_pieces(text) else {
            let zoned = rfc2822::parse(text).map_err(|_| none())?;
            return Ok(Self::Zoned(in_zone(zoned, zone)));
        };
        let annotated = pieces.to_time_zone_with(zones()).map_err(wrong)?.filter(|_| {
            // An offset in place of a zone adds no information.
            pieces.time_zone_annotation().is_some()
        });
        let Some(time) = pieces.time() else {
            return Ok(Self::Date(pieces.date()));
        };
        let local = DateTime::from_parts(pieces.date(), time);
        match (pieces.to_numeric_offset(), annotated) {
            (Some(offset), annotated) => {
                let timestamp = offset.to_timestamp(local).map_err(wrong)?;
                let own = annotated.unwrap_or_else(|| of_offset(offset));
                Ok(Self::Zoned(in_zone(timestamp.to_zoned(own), zone)))
            }
            (None, Some(annotated)) => {
                Ok(Self::Zoned(in_zone(local.to_zoned(annotated).map_err(wrong)?, zone)))
            }
            (None, None) => match zone {
                Some(zone) => Ok(Self::Zoned(local.to_zoned(zone.clone()).map_err(wrong)?)),
                None => Ok(Self::Local(local)),
            },
        }
    }

    /// Returns the local date and time.
    pub(super) fn datetime(&self) -> DateTime {
        match self {
            Self::Date(date) => date.to_datetime(jiff::civil::Time::midnight()),
            Self::Local(local) => *local,
            Self::Zoned(zoned) => zoned.datetime(),
        }
    }

    /// Returns a value of the same kind, with another local date and time.
    pub(super) fn with_datetime(&self, name: &str, datetime: DateTime) -> Result<Self> {
        match self {
            Self::Date(_) if datetime.time() == jiff::civil::Time::midnight() => {
                Ok(Self::Date(datetime.date()))
            }
            Self::Date(_) | Self::Local(_) => Ok(Self::Local(datetime)),
            Self::Zoned(zoned) => {
                let zoned = datetime.to_zoned(zoned.time_zone().clone());
                zoned.map(Self::Zoned).map_err(|error| BuiltinError::content(name, error))
            }
        }
    }

    pub(super) fn timestamp(&self, name: &str) -> Result<Timestamp> {
        match self {
            Self::Zoned(zoned) => Ok(zoned.timestamp()),
            _ => Err(BuiltinError::content(
                name,
                "an instant is needed: a time with an offset, or a zone for it",
            )),
        }
    }

    pub(super) fn add(&self, name: &str, span: Span) -> Result<Self> {
        let wrong = |error: jiff::Error| BuiltinError::content(name, error);
        let has_time = span.get_hours() != 0
            || span.get_minutes() != 0
            || span.get_seconds() != 0
            || span.get_milliseconds() != 0
            || span.get_microseconds() != 0
            || span.get_nanoseconds() != 0;
        match self {
            Self::Date(date) if !has_time => date.checked_add(span).map(Self::Date).map_err(wrong),
            Self::Date(_) | Self::Local(_) => {
                self.datetime().checked_add(span).map(Self::Local).map_err(wrong)
            }
            Self::Zoned(zoned) => zoned.checked_add(span).map(Self::Zoned).map_err(wrong),
        }
    }

    pub(super) fn compare(&self, other: &Self) -> Result<Ordering> {
        match (self, other) {
            (Self::Zoned(a), Self::Zoned(b)) => Ok(a.timestamp().cmp(&b.timestamp())),
            (Self::Zoned(_), _) | (_, Self::Zoned(_)) => Err(kinds()),
            _ => Ok(self.datetime().cmp(&other.datetime())),
        }
    }

    /// Returns the time from this one to another, in units up to `largest`.
    pub(super) fn until(&self, other: &Self, largest: Unit) -> Result<Span> {
        let wrong = |error: jiff::Error| BuiltinError::content("to", error);
        match (self, other) {
            (Self::Zoned(a), Self::Zoned(b)) => {
                // For calendar units, both must have the same time zone.
                let b = b.with_time_zone(a.time_zone().clone());
                a.until((largest, &b)).map_err(wrong)
            }
            (Self::Zoned(_), _) | (_, Self::Zoned(_)) => Err(kinds()),
            _ => self.datetime().until((largest, other.datetime())).map_err(wrong),
        }
    }

    pub(super) fn total(&self, span: Span, unit: Unit) -> Result<f64> {
        let total = match self {
            Self::Zoned(zoned) => span.total((unit, zoned)),
            other => span.total((unit, other.datetime())),
        };
        total.map_err(|error| BuiltinError::content("to", error))
    }

    pub(super) fn print(&self) -> Value {
        Value::from(match self {
            Self::Date(date) => date.to_string(),
            Self::Local(local) => local.to_string(),
            Self::Zoned(zoned) if *zoned.time_zone() == TimeZone::UTC => zoned.timestamp().to_string(),
            Self::Zoned(zoned) => zoned.timestamp().display_with_offset(zoned.offset()).to_string(),
        })
    }
}

fn kinds() -> BuiltinError {
    BuiltinError::undefined(
        "an instant cannot be compared with a date or local time: give a zone, or both an offset",
    )
}

fn of_offset(offset: Offset) -> TimeZone {
    if offset == Offset::UTC { TimeZone::UTC } else { TimeZone::fixed(offset) }
}

fn in_zone(zoned: Zoned, zone: Option<&TimeZone>) -> Zoned {
    match zone {
        Some(zone) => zoned.with_time_zone(zone.clone()),
        None => zoned,
    }
}

/// Parses a date or time by a pattern.
pub(super) fn parse_with(
    name: &str,
    text: &str,
    format: &str,
    zone: Option<&TimeZone>,
) -> Result<Moment> {
    let wrong = |error: jiff::Error| BuiltinError::content(name, error);
    if text.len() > 10 * MAX_LENGTH {
        return Err(BuiltinError::content(name, "too long for a date"));
    }
    let broken = strtime::parse(format, text).map_err(wrong)?;
    if let Some(timestamp) = broken.timestamp() {
        return Ok(Moment::Zoned(timestamp.to_zoned(zone.cloned().unwrap_or(TimeZone::UTC))));
    }
    let has_time = broken.hour().is_some();
    if !has_time {
        return broken.to_date().map(Moment::Date).map_err(wrong);
    }
    let local = broken.to_datetime().map_err(wrong)?;
    if let Some(offset) = broken.offset() {
        let timestamp = offset.to_timestamp(local).map_err(wrong)?;
        return Ok(Moment::Zoned(in_zone(timestamp.to_zoned(of_offset(offset)), zone)));
    }
    let named = broken.iana_time_zone().map(|name| zones().get(name)).transpose().map_err(wrong)?;
    match (named, zone) {
        (Some(own), zone) => Ok(Moment::Zoned(in_zone(local.to_zoned(own).map_err(wrong)?, zone))),
        (None, Some(zone)) => Ok(Moment::Zoned(local.to_zoned(zone.clone()).map_err(wrong)?)),
        (None, None) => Ok(Moment::Local(local)),
    }
}

pub(super) fn weekday(day: Weekday) -> &'static str {
    match day {
        Weekday::Monday => "Monday",
        Weekday::Tuesday => "Tuesday",
        Weekday::Wednesday => "Wednesday",
        Weekday::Thursday => "Thursday",
        Weekday::Friday => "Friday",
        Weekday::Saturday => "Saturday",
        Weekday::Sunday => "Sunday",
    }
}
