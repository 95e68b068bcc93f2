//! Forms of one number, word or text.

use std::ffi::OsStr;
use std::fmt::Display;
use std::str::FromStr;
use std::time::Duration;

use orla_document::Node;
use serde_json::{Value as Json, json};

use super::forms::Form;
use super::read::{Reader, shown};
use super::values::{text_schema, variable};
use crate::text::list_of;

/// The form of one number, word or text.
pub(super) trait Scalar: Send + Sync + 'static {
    type Value;

    /// Whether the value is text, so that a number for it is a mistake.
    const IS_TEXT: bool = false;

    /// What it admits, for "expected …".
    fn expected(&self) -> String;

    /// Parses the text of a value.
    ///
    /// # Errors
    ///
    /// Returns the expected form.
    fn parse(&self, text: &str) -> Result<Self::Value, String>;

    fn schema(&self) -> Json;

    fn default(&self, value: &Self::Value) -> Option<Json>;
}

impl<S: Scalar> Form for S {
    type Value = S::Value;

    const HAS_VARIABLE: bool = true;

    fn read(&self, reader: &mut Reader<'_>, path: &str, node: &Node) -> Option<Self::Value> {
        let expected = self.expected();
        let text = match S::IS_TEXT {
            true => reader.text_of(node, &expected),
            false => reader.plain_of(node, &expected),
        };
        let value = text.and_then(|text| {
            self.parse(&text)
                .map_err(|expected| format!(": expected {expected}, got {}", shown(node, &text)))
        });
        reader.noted(path, node, value)
    }

    fn schema(&self) -> Json {
        match S::IS_TEXT {
            true => Scalar::schema(self),
            false => json!({"anyOf": [Scalar::schema(self), variable()]}),
        }
    }

    fn default(&self, value: &Self::Value) -> Option<Json> {
        Scalar::default(self, value)
    }

    fn read_variable(&self, text: &OsStr) -> Result<Self::Value, String> {
        let text = text.to_str().ok_or("expected UTF-8 text")?;
        self.parse(text).map_err(|expected| format!("expected {expected}, got {text:?}"))
    }
}

/// True or false.
pub(super) struct Flag;

impl Scalar for Flag {
    type Value = bool;

    fn expected(&self) -> String {
        "true or false".to_owned()
    }

    fn parse(&self, text: &str) -> Result<bool, String> {
        text.to_ascii_lowercase().parse().map_err(|_| self.expected())
    }

    fn schema(&self) -> Json {
        json!({"type": "boolean"})
    }

    fn default(&self, value: &bool) -> Option<Json> {
        Some((*value).into())
    }
}

/// A whole number within bounds.
pub(super) struct Count<N>(pub(super) N, pub(super) N);

impl<N> Scalar for Count<N>
where
    N: FromStr + PartialOrd + Copy + Display + Into<Json> + Send + Sync + 'static,
{
    type Value = N;

    fn expected(&self) -> String {
        format!("a whole number from {} to {}", self.0, self.1)
    }

    fn parse(&self, text: &str) -> Result<N, String> {
        let fits = |count: &N| (self.0..=self.1).contains(count);
        text.parse().ok().filter(fits).ok_or_else(|| self.expected())
    }

    fn schema(&self) -> Json {
        let (min, max): (Json, Json) = (self.0.into(), self.1.into());
        json!({"type": "integer", "minimum": min, "maximum": max})
    }

    fn default(&self, value: &N) -> Option<Json> {
        Some((*value).into())
    }
}

/// A whole number of milliseconds within bounds.
pub(super) struct Milliseconds(pub(super) u64, pub(super) u64);

impl Scalar for Milliseconds {
    type Value = Duration;

    fn expected(&self) -> String {
        format!("a whole number of milliseconds from {} to {}", self.0, self.1)
    }

    fn parse(&self, text: &str) -> Result<Duration, String> {
        Count(self.0, self.1).parse(text).map(Duration::from_millis).map_err(|_| self.expected())
    }

    fn schema(&self) -> Json {
        Scalar::schema(&Count(self.0, self.1))
    }

    fn default(&self, value: &Duration) -> Option<Json> {
        u64::try_from(value.as_millis()).ok().map(Json::from)
    }
}

/// Seconds, whole or fractional: above 0, and at most this many.
pub(super) struct Seconds(pub(super) u32);

impl Scalar for Seconds {
    type Value = Duration;

    fn expected(&self) -> String {
        format!("a number of seconds above 0 and at most {}", self.0)
    }

    fn parse(&self, text: &str) -> Result<Duration, String> {
        let fits = |seconds: &f64| *seconds <= f64::from(self.0);
        let seconds = text.parse().ok().filter(fits);
        let duration = seconds.and_then(|seconds| Duration::try_from_secs_f64(seconds).ok());
        duration.filter(|duration| !duration.is_zero()).ok_or_else(|| self.expected())
    }

    fn schema(&self) -> Json {
        json!({"type": "number", "exclusiveMinimum": 0, "maximum": self.0})
    }

    fn default(&self, value: &Duration) -> Option<Json> {
        Some(value.as_secs().into())
    }
}

/// A time above 0 and at most this long: a number of seconds, or a number with its unit.
pub(super) struct Span(pub(super) Duration);

impl Span {
    fn expected(&self) -> String {
        let seconds = self.0.as_secs();
        let most = match seconds.is_multiple_of(86_400) {
            true => format!("{}d", seconds / 86_400),
            false => format!("{seconds}s"),
        };
        format!("a time such as 30s, 5m, 2h or 1d, at most {most}")
    }

    fn parse(&self, text: &str) -> Option<Duration> {
        span(text).filter(|time| !time.is_zero() && *time <= self.0)
    }
}

impl Form for Span {
    type Value = Duration;

    const HAS_VARIABLE: bool = true;

    fn read(&self, reader: &mut Reader<'_>, path: &str, node: &Node) -> Option<Duration> {
        let expected = self.expected();
        let text = reader.word_at(path, node, &expected)?;
        let time = self.parse(&text);
        let time = time.ok_or_else(|| format!(": expected {expected}, got {}", shown(node, &text)));
        reader.noted(path, node, time)
    }

    fn schema(&self) -> Json {
        json!({"anyOf": [{"type": "number", "exclusiveMinimum": 0}, text_schema()]})
    }

    fn default(&self, value: &Duration) -> Option<Json> {
        let seconds = value.as_secs();
        let units = [(86_400, "d"), (3_600, "h"), (60, "m"), (1, "s")];
        let unit = units.into_iter().find(|(unit, _)| seconds.is_multiple_of(*unit));
        unit.map(|(unit, name)| format!("{}{name}", seconds / unit).into())
    }

    fn read_variable(&self, text: &OsStr) -> Result<Duration, String> {
        let text = text.to_str().ok_or("expected UTF-8 text")?;
        self.parse(text).ok_or_else(|| format!("expected {}, got {text:?}", self.expected()))
    }
}

/// Returns the time that a text such as `5m` or `1.5h` names; without a unit, it is seconds.
fn span(text: &str) -> Option<Duration> {
    let text = text.trim();
    let unit_at = text.find(|c: char| c.is_ascii_alphabetic()).unwrap_or(text.len());
    let (number, unit) = text.split_at(unit_at);
    let seconds = match unit {
        "ms" => 0.001,
        "" | "s" => 1.0,
        "m" => 60.0,
        "h" => 3_600.0,
        "d" => 86_400.0,
        _ => return None,
    };
    let number: f64 = number.trim().parse().ok()?;
    Duration::try_from_secs_f64(number * seconds).ok()
}

/// A number above 0, and at most 1.
pub(super) struct Share;

impl Scalar for Share {
    type Value = f64;

    fn expected(&self) -> String {
        "a number above 0 and at most 1".to_owned()
    }

    fn parse(&self, text: &str) -> Result<f64, String> {
        Amount.parse(text).ok().filter(|share| *share <= 1.0).ok_or_else(|| self.expected())
    }

    fn schema(&self) -> Json {
        json!({"type": "number", "exclusiveMinimum": 0, "maximum": 1})
    }

    fn default(&self, value: &f64) -> Option<Json> {
        Some((*value).into())
    }
}

/// A number above 0.
pub(super) struct Amount;

impl Scalar for Amount {
    type Value = f64;

    fn expected(&self) -> String {
        "a number above 0".to_owned()
    }

    fn parse(&self, text: &str) -> Result<f64, String> {
        let fits = |amount: &f64| amount.is_finite() && *amount > 0.0;
        text.parse().ok().filter(fits).ok_or_else(|| self.expected())
    }

    fn schema(&self) -> Json {
        json!({"type": "number", "exclusiveMinimum": 0})
    }

    fn default(&self, value: &f64) -> Option<Json> {
        Some((*value).into())
    }
}

/// One of these words, in capitals or not.
pub(super) struct Choice<V: 'static>(pub(super) &'static [(&'static str, V)]);

impl<V: Copy + PartialEq + Send + Sync> Scalar for Choice<V> {
    type Value = V;

    const IS_TEXT: bool = true;

    fn expected(&self) -> String {
        list_of(&self.0.iter().map(|(word, _)| *word).collect::<Vec<_>>())
    }

    fn parse(&self, text: &str) -> Result<V, String> {
        let found = self.0.iter().find(|(word, _)| word.eq_ignore_ascii_case(text));
        found.map(|(_, value)| *value).ok_or_else(|| self.expected())
    }

    fn schema(&self) -> Json {
        let words: Vec<&str> = self.0.iter().map(|(word, _)| *word).collect();
        json!({"anyOf": [{"enum": words}, variable()]})
    }

    fn default(&self, value: &V) -> Option<Json> {
        self.0.iter().find(|(_, known)| known == value).map(|(word, _)| (*word).into())
    }
}

/// Text that is not empty. The string describes it.
pub(super) struct Text(pub(super) &'static str);

impl Scalar for Text {
    type Value = String;

    const IS_TEXT: bool = true;

    fn expected(&self) -> String {
        self.0.to_owned()
    }

    fn parse(&self, text: &str) -> Result<String, String> {
        if text.trim().is_empty() { Err(self.expected()) } else { Ok(text.to_owned()) }
    }

    fn schema(&self) -> Json {
        text_schema()
    }

    fn default(&self, value: &String) -> Option<Json> {
        (!value.is_empty()).then(|| value.as_str().into())
    }
}
