//! The types of scalars, by YAML 1.2's core schema.

use serde_json::value::RawValue;
use serde_json::{Number, Value};

use super::{SHOWN, Scalar, excerpt};

impl Scalar {
    /// Returns whether it is null by YAML 1.2's core schema: no text, `~` or `null`.
    pub fn is_null(&self) -> bool {
        self.plain && matches!(self.text.as_str(), "" | "~" | "null" | "Null" | "NULL")
    }

    /// Returns the boolean, if the scalar is one.
    pub fn as_bool(&self) -> Option<bool> {
        match self.text.as_str() {
            "true" | "True" | "TRUE" if self.plain => Some(true),
            "false" | "False" | "FALSE" if self.plain => Some(false),
            _ => None,
        }
    }

    /// Returns whether it reads as a number: `7`, `-1.5e3`, `0x1f`, `0o17`, `.inf`.
    pub fn is_number(&self) -> bool {
        if self.plain && self.as_based().is_some() {
            return true;
        }
        let digits = self.text.strip_prefix(['-', '+']).unwrap_or(&self.text);
        let starts =
            digits.strip_prefix('.').unwrap_or(digits).starts_with(|c: char| c.is_ascii_digit());
        let special = matches!(digits, ".inf" | ".Inf" | ".INF" | ".nan" | ".NaN" | ".NAN");
        self.plain && (special || starts && digits.parse::<f64>().is_ok())
    }

    /// Returns the text, unless the scalar is a number, a boolean or null.
    pub fn as_text(&self) -> Option<&str> {
        let other = self.is_null() || self.as_bool().is_some() || self.is_number();
        (!other).then_some(self.text.as_str())
    }

    pub(super) fn to_json(&self) -> Value {
        if self.is_null() {
            return Value::Null;
        }
        if let Some(boolean) = self.as_bool() {
            return boolean.into();
        }
        let number = if self.is_number() { self.as_number() } else { None };
        number.map_or_else(|| self.text.clone().into(), Value::Number)
    }

    pub(super) fn to_json_text(&self) -> String {
        // Not every number of YAML is valid JSON: `007`, `.5`, `0x1f`.
        let is_exact = self.is_number() && serde_json::from_str::<&RawValue>(&self.text).is_ok();
        match is_exact {
            true => self.text.clone(),
            false => self.to_json().to_string(),
        }
    }

    fn as_number(&self) -> Option<Number> {
        if let Some(based) = self.as_based() {
            return Some(based.into());
        }
        let text = self.text.strip_prefix('+').unwrap_or(&self.text);
        // Numbers that JSON cannot write: `007`, `.5`, `1.`
        text.parse()
            .ok()
            .or_else(|| text.parse::<u64>().ok().map(Number::from))
            .or_else(|| text.parse::<i64>().ok().map(Number::from))
            .or_else(|| Number::from_f64(text.parse().ok()?))
    }

    /// Returns the number in base 16 or 8, if the scalar is one.
    fn as_based(&self) -> Option<u64> {
        let (digits, base) = match self.text.strip_prefix("0x") {
            Some(digits) => (digits, 16),
            None => (self.text.strip_prefix("0o")?, 8),
        };
        let is_number = !digits.is_empty() && digits.chars().all(|c| c.is_digit(base));
        is_number.then(|| u64::from_str_radix(digits, base).ok()).flatten()
    }

    pub(super) fn describe(&self) -> String {
        if self.is_null() {
            return "nothing".to_owned();
        }
        if self.is_number() || self.as_bool().is_some() {
            return self.text.clone();
        }
        format!("text {:?}", excerpt(&self.text, SHOWN))
    }
}
