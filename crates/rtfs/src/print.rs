//! `pr-str` and `str`: values as text.
//!
//! `pr-str` ([`Debug`](fmt::Debug)) writes text that the reader reads as the same value, on one line.
//! `str` ([`Display`](fmt::Display)) writes text for users: strings without quotes and `nil` as nothing,
//! but the content of a collection as `pr-str` does.

use std::fmt::{self, Write};

use crate::map::{Map, Set};
use crate::scalar::Uuid;
use crate::value::Value;

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
            Self::Instant(instant) => fmt::Display::fmt(instant, f),
            Self::Uuid(uuid) => fmt::Display::fmt(uuid, f),
            Self::Native(_) | Self::Code(_) | Self::Closure(_) => f.write_str("#<function>"),
            Self::Seq(seq) => match seq.realized() {
                Some(items) => sequence(f, "(", items.items(), ")"),
                None => write!(f, "#<{}>", self.type_name()),
            },
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
    /// Returns the result of `(pr-str x)`.
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

/// Writes `:name`, or `:"any text"` for a text that the reader would not accept as a name.
pub(crate) fn keyword_into(out: &mut impl Write, name: &str) -> fmt::Result {
    out.write_char(':')?;
    if is_plain(name) { out.write_str(name) } else { quoted_into(out, name) }
}

/// Returns whether a keyword of this name needs no quotes. The check is deliberately strict: quotes are
/// always valid.
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
            // Some readers treat the last two as line ends.
            c if c.is_control() || matches!(c, '\u{2028}' | '\u{2029}') => {
                write!(out, "\\u{{{:X}}}", u32::from(c))?;
            }
            c => out.write_char(c)?,
        }
    }
    out.write_char('"')
}

impl fmt::Display for Uuid {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let digits = format!("{:032x}", self.as_u128());
        let (a, b, c) = (&digits[..8], &digits[8..12], &digits[12..16]);
        write!(f, "{a}-{b}-{c}-{}-{}", &digits[16..20], &digits[20..])
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Instant, List, Symbol};

    #[test]
    fn prints_as_the_reader_would_read_and_as_a_person_would_write() {
        let instant = |s, n| Value::Instant(Instant::from_unix(s, n).unwrap());
        let mut set = Set::new();
        let mut map = Map::new();
        for item in [Value::Nil, "x".into(), 1.0.into()] {
            set.insert(item.clone()).unwrap();
            map.insert(item, Value::keyword("k")).unwrap();
        }
        let items = || vec![Value::Nil, "a b".into(), Value::keyword("k")];
        let cases: Vec<(Value, &str, &str)> = vec![
            (Value::Nil, "nil", ""),
            (true.into(), "true", "true"),
            (i64::MIN.into(), "-9223372036854775808", "-9223372036854775808"),
            (u64::MAX.into(), "18446744073709551615", "18446744073709551615"),
            (1.0.into(), "1.0", "1.0"),
            ((-0.0).into(), "-0.0", "-0.0"),
            (0.1.into(), "0.1", "0.1"),
            (1e21.into(), "1e21", "1e21"),
            (1.5e-7.into(), "1.5e-7", "1.5e-7"),
            (f64::NAN.into(), "##NaN", "NaN"),
            (f64::INFINITY.into(), "##Inf", "Infinity"),
            (f64::NEG_INFINITY.into(), "##-Inf", "-Infinity"),
            ("plain ü".into(), "\"plain ü\"", "plain ü"),
            ("\"\\\n\t\r".into(), r#""\"\\\n\t\r""#, "\"\\\n\t\r"),
            (
                "\0\u{1b}\u{85}\u{2028}".into(),
                r#""\u{0}\u{1B}\u{85}\u{2028}""#,
                "\0\u{1b}\u{85}\u{2028}",
            ),
            (Value::keyword("a"), ":a", ":a"),
            (Value::keyword("com.acme:v1.0/op"), ":com.acme:v1.0/op", ":com.acme:v1.0/op"),
            (Value::keyword("even?"), ":even?", ":even?"),
            (Value::keyword("*"), ":*", ":*"),
            (Value::keyword("über-1"), ":über-1", ":über-1"),
            (Value::keyword("odd key"), ":\"odd key\"", ":\"odd key\""),
            (Value::keyword(""), ":\"\"", ":\"\""),
            (Value::keyword("-"), ":\"-\"", ":\"-\""),
            (Value::keyword(":a"), ":\":a\"", ":\":a\""),
            (Value::keyword("a/"), ":\"a/\"", ":\"a/\""),
            (Value::Symbol(Symbol::new("string/upper")), "string/upper", "string/upper"),
            (Value::vector(items()).unwrap(), r#"[nil "a b" :k]"#, r#"[nil "a b" :k]"#),
            (Value::List(List::new(items()).unwrap()), r#"(nil "a b" :k)"#, r#"(nil "a b" :k)"#),
            (Value::Set(set), r#"#{nil "x" 1.0}"#, r#"#{nil "x" 1.0}"#),
            (map.into(), r#"{nil :k, "x" :k, 1.0 :k}"#, r#"{nil :k, "x" :k, 1.0 :k}"#),
            (instant(0, 0), "1970-01-01T00:00:00Z", "1970-01-01T00:00:00Z"),
            (instant(1_795_168_800, 0), "2026-11-20T10:00:00Z", "2026-11-20T10:00:00Z"),
            (instant(951_782_399, 120_000_000), "2000-02-28T23:59:59.120Z", "2000-02-28T23:59:59.120Z"),
            (instant(951_868_799, 1_000), "2000-02-29T23:59:59.000001Z", "2000-02-29T23:59:59.000001Z"),
            (instant(-1, 1), "1969-12-31T23:59:59.000000001Z", "1969-12-31T23:59:59.000000001Z"),
            (instant(-62_167_219_200, 0), "0000-01-01T00:00:00Z", "0000-01-01T00:00:00Z"),
            (instant(253_402_300_799, 0), "9999-12-31T23:59:59Z", "9999-12-31T23:59:59Z"),
            (
                Value::Uuid(Uuid::from_u128(0x550e_8400_e29b_41d4_a716_4466_5544_0000)),
                "550e8400-e29b-41d4-a716-446655440000",
                "550e8400-e29b-41d4-a716-446655440000",
            ),
        ];
        for (value, printed, written) in cases {
            assert_eq!(value.pr_str(), printed);
            assert_eq!(value.to_string(), written);
        }
    }

    #[test]
    fn an_instant_has_a_year_of_four_digits() {
        assert_eq!(Instant::from_unix(253_402_300_800, 0), None);
        assert_eq!(Instant::from_unix(-62_167_219_201, 0), None);
        assert_eq!(Instant::from_unix(0, 1_000_000_000), None);
    }
}
