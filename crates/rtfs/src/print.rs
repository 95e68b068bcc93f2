//! `pr-str` and `str`: values as text.
//!
//! `pr-str` ([`Debug`](fmt::Debug)) writes what the reader would read as the same value, on one
//! line. `str` ([`Display`](fmt::Display)) writes as a person would: strings bare and `nil` as
//! nothing, but what is inside of a collection as `pr-str` does.

use std::fmt::{self, Write};

use crate::map::{Map, Set};
use crate::value::{Instant, Uuid, Value};

impl fmt::Debug for Value {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Nil => f.write_str("nil"),
            Self::Bool(bool) => write!(f, "{bool}"),
            Self::Int(integer) => write!(f, "{integer}"),
            Self::BigInt(integer) => write!(f, "{}", integer.get()),
            Self::Float(float) if float.is_nan() => f.write_str("##NaN"),
            Self::Float(float) if *float == f64::INFINITY => f.write_str("##Inf"),
            Self::Float(float) if *float == f64::NEG_INFINITY => f.write_str("##-Inf"),
            Self::Float(float) => write!(f, "{float:?}"),
            Self::Keyword(keyword) => keyword_into(f, keyword.name()),
            Self::Symbol(symbol) => f.write_str(symbol.name()),
            Self::Str(text) => quoted_into(f, text.as_str()),
            Self::Vector(vector) => sequence(f, "[", vector.items(), "]"),
            Self::List(list) => sequence(f, "(", list.items(), ")"),
            Self::Map(map) => map.fmt(f),
            Self::Set(set) => set.fmt(f),
            Self::Instant(instant) => instant.fmt(f),
            Self::Uuid(uuid) => uuid.fmt(f),
        }
    }
}

impl fmt::Display for Value {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Nil => Ok(()),
            Self::Str(text) => f.write_str(text.as_str()),
            Self::Float(float) if float.is_nan() => f.write_str("NaN"),
            Self::Float(float) if *float == f64::INFINITY => f.write_str("Infinity"),
            Self::Float(float) if *float == f64::NEG_INFINITY => f.write_str("-Infinity"),
            _ => fmt::Debug::fmt(self, f),
        }
    }
}

impl Value {
    /// What `(pr-str x)` gives.
    pub fn pr_str(&self) -> String {
        format!("{self:?}")
    }
}

impl fmt::Debug for Map {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_char('{')?;
        for (i, (key, value)) in self.iter().enumerate() {
            let comma = if i == 0 { "" } else { ", " };
            write!(f, "{comma}{key:?} {value:?}")?;
        }
        f.write_char('}')
    }
}

impl fmt::Debug for Set {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        sequence(f, "#{", self.iter(), "}")
    }
}

fn sequence<'a>(
    f: &mut fmt::Formatter<'_>,
    open: &str,
    items: impl IntoIterator<Item = &'a Value>,
    close: &str,
) -> fmt::Result {
    f.write_str(open)?;
    for (i, item) in items.into_iter().enumerate() {
        if i > 0 {
            f.write_char(' ')?;
        }
        write!(f, "{item:?}")?;
    }
    f.write_str(close)
}

/// `:name`, or `:"any text"` for what the reader would not take as a name.
pub(crate) fn keyword_into(out: &mut impl Write, name: &str) -> fmt::Result {
    out.write_char(':')?;
    if is_plain(name) { out.write_str(name) } else { quoted_into(out, name) }
}

/// Whether a keyword of this name needs no quotes. Strict on purpose: quotes are always right.
fn is_plain(name: &str) -> bool {
    let inside = |c: char| c.is_alphanumeric() || "*+!-_?<>=&%$./:".contains(c);
    let marks = ["", "-", "?"]; // `:-` and `?` have meanings of their own
    !marks.contains(&name)
        && name.chars().all(inside)
        && !name.starts_with([':', '/'])
        && !name.ends_with([':', '/'])
}

fn quoted_into(out: &mut impl Write, text: &str) -> fmt::Result {
    out.write_char('"')?;
    for c in text.chars() {
        match c {
            '"' => out.write_str("\\\"")?,
            '\\' => out.write_str("\\\\")?,
            '\n' => out.write_str("\\n")?,
            '\t' => out.write_str("\\t")?,
            '\r' => out.write_str("\\r")?,
            // The last two end a line, to some readers.
            c if c.is_control() || matches!(c, '\u{2028}' | '\u{2029}') => {
                write!(out, "\\u{{{:X}}}", u32::from(c))?;
            }
            c => out.write_char(c)?,
        }
    }
    out.write_char('"')
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

/// Year, month and day in the Gregorian calendar of a day counted from 1970-01-01.
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

impl fmt::Display for Uuid {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let digits = format!("{:032x}", self.as_u128());
        let (a, b, c) = (&digits[..8], &digits[8..12], &digits[12..16]);
        write!(f, "{a}-{b}-{c}-{}-{}", &digits[16..20], &digits[20..])
    }
}
