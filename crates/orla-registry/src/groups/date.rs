//! Dates and times from arguments only: the current time is not available.

mod moment;
mod span;

use jiff::Timestamp;
use jiff::fmt::strtime::{self, BrokenDownTime};
use jiff::tz::TimeZone;
use rtfs::Value;

use crate::arguments::Arguments;
use crate::builtin::{Builtin, Parameter, defaulted, example, optional, required};
use crate::error::BuiltinError;
use crate::groups::record;
use crate::limits::{BoundedText, items_fit, vector};
use crate::number::Number;
use crate::schema::{BOOLEAN, INTEGER, NUMBER, TEXT, TEXTS};

use moment::{Moment, zone, zones};

type Result<T> = std::result::Result<T, BuiltinError>;

const DATE: Parameter = required(
    "date",
    TEXT,
    "A date (2026-11-20), a local time (2026-11-20T10:00:00), or an instant with an offset or Z (RFC 3339).",
);
const ZONE: Parameter = optional(
    "zone",
    TEXT,
    "A time zone such as Europe/Berlin, or an offset such as +02:00: a local time is one of this zone, and an instant is \
     shown and reckoned with in it.",
);
const FROM: Parameter = required("from", TEXT, "The first date or time.");
const TO: Parameter = required("to", TEXT, "The second date or time, of the same kind.");
const UNITS: &str =
    r#""enum":["years","months","weeks","days","hours","minutes","seconds","milliseconds"]"#;
const EPOCH_UNIT: Parameter =
    defaulted("unit", r#""enum":["seconds","milliseconds"]"#, "\"seconds\"", "What the number counts.");
const MAX_FORMAT: usize = 1_000;

pub(super) static BUILTINS: &[Builtin] = &[
    Builtin {
        name: "date.add",
        title: "Add to a date",
        description: "A date or time so much later, or earlier with negative numbers. Years, months, weeks and days follow \
                      the calendar (January 31 plus a month is the end of February, and a day may have 23 hours in a \
                      zone); hours and less are exact.",
        parameters: &[
            DATE,
            optional("years", INTEGER, "Years to add."),
            optional("months", INTEGER, "Months to add."),
            optional("weeks", INTEGER, "Weeks to add."),
            optional("days", INTEGER, "Days to add."),
            optional("hours", INTEGER, "Hours to add."),
            optional("minutes", INTEGER, "Minutes to add."),
            optional("seconds", INTEGER, "Seconds to add."),
            optional("milliseconds", INTEGER, "Milliseconds to add."),
            optional(
                "duration",
                TEXT,
                "A duration to add as well, such as P1M3DT2H or `1 month 3 days`.",
            ),
            ZONE,
        ],
        output: TEXT,
        examples: &[
            example(r#"{"date":"2024-01-31","months":1}"#, r#""2024-02-29""#),
            example(r#"{"date":"2026-11-20T10:00:00Z","hours":-36}"#, r#""2026-11-18T22:00:00Z""#),
            example(
                r#"{"date":"2026-03-28T12:00:00","days":1,"zone":"Europe/Berlin"}"#,
                r#""2026-03-29T12:00:00+02:00""#,
            ),
        ],
        run: add,
    },
    Builtin {
        name: "date.compare",
        title: "Compare dates",
        description: "-1 where the first date or time is earlier than the second, 0 where they are the same moment, 1 where \
                      it is later.",
        parameters: &[
            required("a", TEXT, "The first date or time."),
            required("b", TEXT, "The second, of the same kind."),
            ZONE,
        ],
        output: INTEGER,
        examples: &[example(r#"{"a":"2026-11-20T10:00:00Z","b":"2026-11-20T11:00:00+01:00"}"#, "0")],
        run: |args| {
            let zone = zone(args)?;
            let (a, b) =
                (Moment::read(args, "a", zone.as_ref())?, Moment::read(args, "b", zone.as_ref())?);
            Ok(Value::Int(a.compare(&b)? as i64))
        },
    },
    Builtin {
        name: "date.difference",
        title: "Difference of dates",
        description: "How long it is from one date or time to another, as a number in one unit (negative if the second is \
                      earlier). Years, months and days are of the calendar, with fractions.",
        parameters: &[FROM, TO, defaulted("unit", UNITS, "\"days\"", "The unit."), ZONE],
        output: NUMBER,
        examples: &[
            example(r#"{"from":"2026-01-01","to":"2026-11-20"}"#, "323.0"),
            example(
                r#"{"from":"2026-11-20T10:00:00Z","to":"2026-11-20T11:30:00Z","unit":"hours"}"#,
                "1.5",
            ),
        ],
        run: span::difference,
    },
    Builtin {
        name: "date.duration",
        title: "Duration between dates",
        description: "The time from one date or time to another as a duration: ISO 8601 (P1M3DT2H) or in words (1mo 3d 2h), \
                      in units not larger than one.",
        parameters: &[
            FROM,
            TO,
            defaulted("largest", UNITS, "\"years\"", "The largest unit."),
            defaulted("words", BOOLEAN, "false", "Write it in words."),
            ZONE,
        ],
        output: TEXT,
        examples: &[
            example(r#"{"from":"2026-01-15","to":"2026-11-20"}"#, r#""P10M5D""#),
            example(
                r#"{"from":"2026-11-20T10:00:00Z","to":"2026-11-22T11:30:00Z","largest":"hours","words":true}"#,
                r#""49h 30m""#,
            ),
        ],
        run: span::duration,
    },
    Builtin {
        name: "date.format",
        title: "Format a date",
        description: "A date or time by a pattern of strftime: %Y-%m-%d %H:%M:%S, %A (weekday), %B (month), %j (day of the \
                      year), %V (ISO week), %z (offset), %Z (zone). Names are English.",
        parameters: &[DATE, required("format", TEXT, "The pattern."), ZONE],
        output: TEXT,
        examples: &[
            example(
                r#"{"date":"2026-11-20","format":"%A, %-d %B %Y"}"#,
                r#""Friday, 20 November 2026""#,
            ),
            example(
                r#"{"date":"2026-11-20T10:00:00Z","format":"%H:%M %Z","zone":"Asia/Tokyo"}"#,
                r#""19:00 JST""#,
            ),
        ],
        run: format,
    },
    Builtin {
        name: "date.from_unix",
        title: "Instant of a Unix time",
        description: "The instant that so many seconds or milliseconds since 1970 stand for.",
        parameters: &[required("time", NUMBER, "The number; a fraction counts."), EPOCH_UNIT, ZONE],
        output: TEXT,
        examples: &[
            example(r#"{"time":1795168800}"#, r#""2026-11-20T10:00:00Z""#),
            example(r#"{"time":1795168800250,"unit":"milliseconds"}"#, r#""2026-11-20T10:00:00.25Z""#),
        ],
        run: from_unix,
    },
    Builtin {
        name: "date.in_zone",
        title: "Convert to a time zone",
        description: "The same instant on the clocks of a time zone. A local time without an offset needs the zone that it \
                      is of.",
        parameters: &[
            DATE,
            required("to", TEXT, "The time zone, such as America/New_York, or an offset."),
            optional("from", TEXT, "The zone of a local time."),
        ],
        output: TEXT,
        examples: &[example(
            r#"{"date":"2026-07-01T09:00:00","from":"Europe/Berlin","to":"America/New_York"}"#,
            r#""2026-07-01T03:00:00-04:00""#,
        )],
        run: in_zone,
    },
    Builtin {
        name: "date.is_valid",
        title: "Is it a date?",
        description: "Whether a text is a date or time: of the forms that all functions here take, or of a format.",
        parameters: &[
            required("text", TEXT, "The text."),
            optional("format", TEXT, "A pattern of strptime."),
        ],
        output: BOOLEAN,
        examples: &[
            example(r#"{"text":"2026-02-29"}"#, "false"),
            example(r#"{"text":"29/02/2024","format":"%d/%m/%Y"}"#, "true"),
        ],
        run: |args| {
            let text = args.text("text")?;
            Ok(Value::Bool(match pattern(args)? {
                Some(format) => moment::parse_with("text", text, format, None).is_ok(),
                None => Moment::parse("text", text, None).is_ok(),
            }))
        },
    },
    Builtin {
        name: "date.parse",
        title: "Parse a date",
        description: "A date or time in its standard form (RFC 3339), from a text in that form, in that of e-mail (RFC \
                      2822), or by a pattern of strptime.",
        parameters: &[
            required("text", TEXT, "The text."),
            optional(
                "format",
                TEXT,
                "The pattern, such as %d.%m.%Y %H:%M; without it, the standard forms.",
            ),
            ZONE,
        ],
        output: TEXT,
        examples: &[
            example(r#"{"text":"20.11.2026","format":"%d.%m.%Y"}"#, r#""2026-11-20""#),
            example(r#"{"text":"Fri, 20 Nov 2026 10:00:00 +0100"}"#, r#""2026-11-20T10:00:00+01:00""#),
            example(
                r#"{"text":"11/20/26 3:30 PM","format":"%m/%d/%y %I:%M %p","zone":"America/New_York"}"#,
                r#""2026-11-20T15:30:00-05:00""#,
            ),
        ],
        run: |args| {
            let (text, zone) = (args.text("text")?, zone(args)?);
            let moment = match pattern(args)? {
                Some(format) => moment::parse_with("text", text, format, zone.as_ref())?,
                None => Moment::read(args, "text", zone.as_ref())?,
            };
            Ok(moment.print())
        },
    },
    Builtin {
        name: "date.parts",
        title: "Parts of a date",
        description: "What a date or time consists of, and what follows from it: weekday (1 is Monday), day of the year, ISO \
                      week, quarter, days in its month, leap year; with a time its parts, with an instant the offset in \
                      seconds and the Unix time.",
        parameters: &[DATE, ZONE],
        output: r#""type":"object","properties":{"year":{"type":"integer"},"month":{"type":"integer"},"day":{"type":"integer"},"weekday":{"type":"integer"},"weekday_name":{"type":"string"},"day_of_year":{"type":"integer"},"iso_year":{"type":"integer"},"iso_week":{"type":"integer"},"quarter":{"type":"integer"},"days_in_month":{"type":"integer"},"leap_year":{"type":"boolean"},"hour":{"type":"integer"},"minute":{"type":"integer"},"second":{"type":"integer"},"nanosecond":{"type":"integer"},"offset":{"type":"integer"},"unix":{"type":"number"}}"#,
        examples: &[example(
            r#"{"date":"2026-11-20"}"#,
            r#"{"year":2026,"month":11,"day":20,"weekday":5,"weekday_name":"Friday","day_of_year":324,"iso_year":2026,"iso_week":47,"quarter":4,"days_in_month":30,"leap_year":false}"#,
        )],
        run: parts,
    },
    Builtin {
        name: "date.range",
        title: "Series of dates",
        description: "The dates or times from one to another (inclusive), in steps of a unit of the calendar.",
        parameters: &[
            FROM,
            TO,
            defaulted("unit", UNITS, "\"days\"", "The unit of a step."),
            defaulted(
                "step",
                r#""type":"integer","minimum":1,"maximum":1000000"#,
                "1",
                "Units in a step.",
            ),
            ZONE,
        ],
        output: TEXTS,
        examples: &[example(
            r#"{"from":"2026-01-31","to":"2026-04-30","unit":"months"}"#,
            r#"["2026-01-31","2026-02-28","2026-03-31","2026-04-30"]"#,
        )],
        run: span::range,
    },
    Builtin {
        name: "date.to_unix",
        title: "Unix time of an instant",
        description: "The seconds or milliseconds since 1970 of an instant; an integer where there is no fraction.",
        parameters: &[DATE, EPOCH_UNIT, ZONE],
        output: NUMBER,
        examples: &[
            example(r#"{"date":"2026-11-20T10:00:00Z"}"#, "1795168800"),
            example(
                r#"{"date":"2026-11-20T11:00:00","zone":"Europe/Berlin","unit":"milliseconds"}"#,
                "1795168800000",
            ),
        ],
        run: to_unix,
    },
    Builtin {
        name: "date.truncate",
        title: "Truncate a date",
        description: "The beginning of the year, quarter, month, week (Monday), day, hour, minute or second that a date or \
                      time is in.",
        parameters: &[
            DATE,
            required(
                "unit",
                r#""enum":["year","quarter","month","week","day","hour","minute","second"]"#,
                "What to go back to the beginning of.",
            ),
            ZONE,
        ],
        output: TEXT,
        examples: &[
            example(r#"{"date":"2026-11-20","unit":"quarter"}"#, r#""2026-10-01""#),
            example(r#"{"date":"2026-11-20T10:42:07Z","unit":"hour"}"#, r#""2026-11-20T10:00:00Z""#),
        ],
        run: truncate,
    },
    Builtin {
        name: "date.weekday",
        title: "Weekday",
        description: "The English name of the day of the week.",
        parameters: &[DATE, ZONE],
        output: TEXT,
        examples: &[example(r#"{"date":"2026-11-20"}"#, r#""Friday""#)],
        run: |args| Ok(Value::from(moment::weekday(Moment::argument(args)?.datetime().weekday()))),
    },
    Builtin {
        name: "date.zones",
        title: "Time zones",
        description: "The names of the time zones that are known, those with a text in them, in order.",
        parameters: &[optional(
            "contains",
            TEXT,
            "What a name has in it, in any case; without it, all.",
        )],
        output: TEXTS,
        examples: &[example(r#"{"contains":"berlin"}"#, r#"["Europe/Berlin"]"#)],
        run: |args| {
            let part = args.text_or("contains", "")?.to_lowercase();
            let names = zones().available().map(|name| name.as_str().to_owned());
            let mut names: Vec<_> = names.filter(|name| name.to_lowercase().contains(&part)).collect();
            names.sort();
            vector(names.into_iter().map(Value::from).collect())
        },
    },
];

pub(super) static DURATION_BUILTINS: &[Builtin] = &[
    Builtin {
        name: "duration.format",
        title: "Format a duration",
        description: "A number of seconds as a duration: ISO 8601 (PT1H30M) or in words (1h 30m). Days have 24 hours.",
        parameters: &[
            required("seconds", NUMBER, "The seconds; may be negative, and have a fraction."),
            defaulted("words", BOOLEAN, "false", "Write it in words."),
            defaulted(
                "largest",
                r#""enum":["days","hours","minutes","seconds"]"#,
                "\"hours\"",
                "The largest unit.",
            ),
        ],
        output: TEXT,
        examples: &[
            example(r#"{"seconds":5400}"#, r#""PT1H30M""#),
            example(r#"{"seconds":93784.5,"words":true,"largest":"days"}"#, r#""1d 2h 3m 4s 500ms""#),
        ],
        run: span::format,
    },
    Builtin {
        name: "duration.parse",
        title: "Parse a duration",
        description: "The seconds that a duration has: ISO 8601 (PT1H30M) or words (1 hour 30 minutes, 2d 4h). Days have 24 \
                      hours and weeks 7 days; months and years have no fixed length, and are an error.",
        parameters: &[required("text", TEXT, "The duration.")],
        output: NUMBER,
        examples: &[
            example(r#"{"text":"PT1H30M"}"#, "5400"),
            example(r#"{"text":"2 days 1.5 hours"}"#, "178200"),
        ],
        run: span::parse,
    },
];

/// Returns the milliseconds since 1970 of an instant that is an argument.
pub(super) fn milliseconds(args: &Arguments<'_>, name: &str) -> Result<i64> {
    Ok(Moment::read(args, name, None)?.timestamp(name)?.as_millisecond())
}

fn add(args: &Arguments<'_>) -> Result<Value> {
    let mut moment = Moment::argument(args)?;
    for (name, span) in span::units(args)? {
        moment = moment.add(name, span)?;
    }
    if let Some(duration) = args.optional_text("duration")? {
        moment = moment.add("duration", span::read("duration", duration)?)?;
    }
    Ok(moment.print())
}

/// Returns the argument `format`, of a limited length.
fn pattern<'a>(args: &Arguments<'a>) -> Result<Option<&'a str>> {
    match args.optional_text("format")? {
        Some(format) if format.len() > MAX_FORMAT => {
            Err(BuiltinError::limit("the format", format_args!("{MAX_FORMAT} bytes")))
        }
        format => Ok(format),
    }
}

fn format(args: &Arguments<'_>) -> Result<Value> {
    args.text("format")?;
    let format = pattern(args)?.unwrap_or_default();
    let broken = match Moment::argument(args)? {
        Moment::Date(date) => BrokenDownTime::from(date),
        Moment::Local(local) => BrokenDownTime::from(local),
        Moment::Zoned(zoned) => BrokenDownTime::from(&zoned),
    };
    let text =
        strtime::format(format, broken).map_err(|error| BuiltinError::content("format", error))?;
    let mut out = BoundedText::default();
    out.push(&text)?;
    Ok(out.finish())
}

fn per_second(args: &Arguments<'_>) -> Result<i64> {
    args.choice("unit", &[("seconds", 1), ("milliseconds", 1_000)], 1)
}

fn from_unix(args: &Arguments<'_>) -> Result<Value> {
    let beyond = || BuiltinError::content("time", "beyond the years -9999 to 9999");
    let parts = Number::Small(1_000_000_000).divide(&Number::Small(per_second(args)?))?;
    let nanoseconds =
        args.number("time")?.multiply(&parts)?.round(0, crate::number::Rounding::HalfAway)?;
    let nanoseconds = nanoseconds.to_big().and_then(|n| i128::try_from(n).ok()).ok_or_else(beyond)?;
    let timestamp = Timestamp::from_nanosecond(nanoseconds).map_err(|_| beyond())?;
    Ok(Moment::Zoned(timestamp.to_zoned(zone(args)?.unwrap_or(TimeZone::UTC))).print())
}

fn to_unix(args: &Arguments<'_>) -> Result<Value> {
    let nanoseconds = Moment::argument(args)?.timestamp("date")?.as_nanosecond();
    let parts = i128::from(1_000_000_000 / per_second(args)?);
    if nanoseconds % parts == 0 {
        return Number::from(num_bigint::BigInt::from(nanoseconds / parts)).into_value();
    }
    Number::Float(nanoseconds as f64 / parts as f64).into_value()
}

fn in_zone(args: &Arguments<'_>) -> Result<Value> {
    let from = args.optional_text("from")?.map(|name| moment::zone_named("from", name)).transpose()?;
    let to = moment::zone_named("to", args.text("to")?)?;
    let timestamp = Moment::read(args, "date", from.as_ref())?.timestamp("date")?;
    Ok(Moment::Zoned(timestamp.to_zoned(to)).print())
}

fn parts(args: &Arguments<'_>) -> Result<Value> {
    let moment = Moment::argument(args)?;
    let local = moment.datetime();
    let week = local.iso_week_date();
    let int = |n: i64| Value::Int(n);
    let date = record([
        ("year", int(local.year().into())),
        ("month", int(local.month().into())),
        ("day", int(local.day().into())),
        ("weekday", int(local.weekday().to_monday_one_offset().into())),
        ("weekday_name", Value::from(moment::weekday(local.weekday()))),
        ("day_of_year", int(local.day_of_year().into())),
        ("iso_year", int(week.year().into())),
        ("iso_week", int(week.week().into())),
        ("quarter", int(i64::from((local.month() + 2) / 3))),
        ("days_in_month", int(local.days_in_month().into())),
        ("leap_year", Value::Bool(local.in_leap_year())),
    ])?;
    let Value::Map(mut map) = date else { return Ok(date) };
    let mut more = Vec::new();
    if !matches!(moment, Moment::Date(_)) {
        more.push(("hour", int(local.hour().into())));
        more.push(("minute", int(local.minute().into())));
        more.push(("second", int(local.second().into())));
        more.push(("nanosecond", int(local.subsec_nanosecond().into())));
    }
    if let Moment::Zoned(zoned) = &moment {
        more.push(("offset", int(zoned.offset().seconds().into())));
        let nanoseconds = zoned.timestamp().as_nanosecond();
        let unix = if nanoseconds % 1_000_000_000 == 0 {
            int(zoned.timestamp().as_second())
        } else {
            Value::Float(nanoseconds as f64 / 1e9)
        };
        more.push(("unix", unix));
    }
    for (name, value) in more {
        crate::limits::deep(map.insert(Value::keyword(name), value))?;
    }
    Ok(map.into())
}

fn truncate(args: &Arguments<'_>) -> Result<Value> {
    args.text("unit")?;
    let units = ["year", "quarter", "month", "week", "day", "hour", "minute", "second"];
    let unit = args.choice("unit", &units.map(|unit| (unit, unit)), "day")?;
    let moment = Moment::argument(args)?;
    let local = moment.datetime();
    let with = local.with();
    let with = match unit {
        "year" => with.month(1).day(1),
        "quarter" => with.month((local.month() - 1) / 3 * 3 + 1).day(1),
        "month" => with.day(1),
        _ => with,
    };
    let with = match unit {
        "hour" => with.minute(0).second(0).subsec_nanosecond(0),
        "minute" => with.second(0).subsec_nanosecond(0),
        "second" => with.subsec_nanosecond(0),
        _ => with.time(jiff::civil::Time::midnight()),
    };
    let beginning = with.build().map_err(|error| BuiltinError::content("date", error))?;
    let beginning = if unit == "week" {
        let days = i64::from(beginning.weekday().to_monday_zero_offset());
        let span =
            jiff::Span::new().try_days(days).map_err(|error| BuiltinError::content("date", error))?;
        beginning.checked_sub(span).map_err(|error| BuiltinError::content("date", error))?
    } else {
        beginning
    };
    Ok(moment.with_datetime("date", beginning)?.print())
}

/// Checks that a series of this many dates is allowed.
fn series_fits(length: usize) -> Result<()> {
    items_fit(Some(length)).map(|_| ())
}
