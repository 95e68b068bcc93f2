//! Lengths of time.

use jiff::{SignedDuration, Span, SpanRound, Unit};
use rtfs::Value;

use super::moment::{Moment, zone};
use super::{Result, series_fits};
use crate::arguments::Arguments;
use crate::error::BuiltinError;
use crate::limits::vector;
use crate::number::{Number, Rounding};

const UNITS: [(&str, Unit); 8] = [
    ("years", Unit::Year),
    ("months", Unit::Month),
    ("weeks", Unit::Week),
    ("days", Unit::Day),
    ("hours", Unit::Hour),
    ("minutes", Unit::Minute),
    ("seconds", Unit::Second),
    ("milliseconds", Unit::Millisecond),
];

const NANOSECONDS: i128 = 1_000_000_000;

/// Returns a span of this many units.
fn of(count: i64, unit: Unit) -> std::result::Result<Span, jiff::Error> {
    let span = Span::new();
    match unit {
        Unit::Year => span.try_years(count),
        Unit::Month => span.try_months(count),
        Unit::Week => span.try_weeks(count),
        Unit::Day => span.try_days(count),
        Unit::Hour => span.try_hours(count),
        Unit::Minute => span.try_minutes(count),
        Unit::Second => span.try_seconds(count),
        _ => span.try_milliseconds(count),
    }
}

/// Returns the span of the arguments `years`, `months` and so on.
pub(super) fn units(args: &Arguments<'_>) -> Result<Vec<(&'static str, Span)>> {
    let mut spans = Vec::new();
    for (name, unit) in UNITS {
        if let Some(count) = args.optional_integer(name, i64::MIN..=i64::MAX)? {
            let span = of(count, unit).map_err(|error| BuiltinError::content(name, error))?;
            spans.push((name, span));
        }
    }
    Ok(spans)
}

/// Parses a duration.
pub(super) fn read(name: &str, text: &str) -> Result<Span> {
    let shown = || rtfs::text::excerpt(text, 80);
    let wrong = || {
        BuiltinError::content(
            name,
            format_args!("{:?} is not a duration such as PT1H30M or 2 days", shown()),
        )
    };
    if text.len() > 200 {
        return Err(wrong());
    }
    text.trim().parse().map_err(|_| wrong())
}

fn both(args: &Arguments<'_>) -> Result<(Moment, Moment)> {
    let zone = zone(args)?;
    Ok((Moment::read(args, "from", zone.as_ref())?, Moment::read(args, "to", zone.as_ref())?))
}

pub(super) fn difference(args: &Arguments<'_>) -> Result<Value> {
    let (from, to) = both(args)?;
    let unit = args.choice("unit", &UNITS, Unit::Day)?;
    let span = from.until(&to, unit)?;
    Number::Float(from.total(span, unit)?).into_value()
}

pub(super) fn duration(args: &Arguments<'_>) -> Result<Value> {
    let (from, to) = both(args)?;
    let span = from.until(&to, args.choice("largest", &UNITS, Unit::Year)?)?;
    Ok(print(span, args.flag("words", false)?))
}

fn print(span: Span, words: bool) -> Value {
    Value::from(if words { format!("{span:#}") } else { span.to_string() })
}

pub(super) fn range(args: &Arguments<'_>) -> Result<Value> {
    let (from, to) = both(args)?;
    let unit = args.choice("unit", &UNITS, Unit::Day)?;
    let step = args.integer_or("step", 1..=1_000_000, 1)?;
    let mut series = Vec::new();
    // Each date is computed from the first, so that the end of a month stays the end.
    for i in 0.. {
        let next = i64::checked_mul(i, step).and_then(|count| of(count, unit).ok());
        let next = next.and_then(|span| from.add("from", span).ok());
        let Some(next) = next else { break };
        if next.compare(&to)?.is_gt() {
            break;
        }
        series.push(next.print());
        series_fits(series.len())?;
    }
    vector(series)
}

pub(super) fn format(args: &Arguments<'_>) -> Result<Value> {
    let units = [
        ("days", Unit::Day),
        ("hours", Unit::Hour),
        ("minutes", Unit::Minute),
        ("seconds", Unit::Second),
    ];
    let largest = args.choice("largest", &units, Unit::Hour)?;
    let nanoseconds = args.number("seconds")?.multiply(&Number::Small(1_000_000_000))?;
    let nanoseconds =
        nanoseconds.round(0, Rounding::HalfAway)?.to_big().and_then(|n| i128::try_from(n).ok());
    let beyond = || BuiltinError::content("seconds", "beyond 10,000 years");
    let nanoseconds = nanoseconds.ok_or_else(beyond)?;
    let seconds = i64::try_from(nanoseconds / NANOSECONDS).map_err(|_| beyond())?;
    let rest = i32::try_from(nanoseconds % NANOSECONDS).unwrap_or(0);
    let span = Span::try_from(SignedDuration::new(seconds, rest)).map_err(|_| beyond())?;
    let round = SpanRound::new().largest(largest).days_are_24_hours();
    let span = span.round(round).map_err(|error| BuiltinError::content("seconds", error))?;
    Ok(print(span, args.flag("words", false)?))
}

pub(super) fn parse(args: &Arguments<'_>) -> Result<Value> {
    let span = read("text", args.text("text")?)?;
    if span.get_years() != 0 || span.get_months() != 0 {
        return Err(BuiltinError::content("text", "years and months have no fixed length"));
    }
    let duration = span.to_duration(jiff::SpanRelativeTo::days_are_24_hours());
    let nanoseconds = duration.map_err(|error| BuiltinError::content("text", error))?.as_nanos();
    if nanoseconds % NANOSECONDS == 0 {
        return Number::from(num_bigint::BigInt::from(nanoseconds / NANOSECONDS)).into_value();
    }
    Number::Float(nanoseconds as f64 / NANOSECONDS as f64).into_value()
}
