//! Resolves plain scalars by YAML 1.2's core schema.

use rtfs::Value;

use crate::limits::MAX_DIGITS;

/// A number that a value cannot represent.
#[derive(Debug)]
pub(super) struct NoNumber(pub(super) &'static str);

/// Returns the value that a plain scalar stands for.
pub(super) fn resolve(text: &str) -> Result<Value, NoNumber> {
    match text {
        "" | "~" | "null" | "Null" | "NULL" => return Ok(Value::Nil),
        "true" | "True" | "TRUE" => return Ok(Value::Bool(true)),
        "false" | "False" | "FALSE" => return Ok(Value::Bool(false)),
        _ => {}
    }
    match number(text) {
        Some(number) => number,
        None => Ok(Value::from(text)),
    }
}

/// Parses a text as a number, if it has the form of one.
pub(super) fn number(text: &str) -> Option<Result<Value, NoNumber>> {
    let unsigned = text.strip_prefix(['-', '+']).unwrap_or(text);
    if matches!(unsigned, ".inf" | ".Inf" | ".INF") || matches!(text, ".nan" | ".NaN" | ".NAN") {
        return Some(Err(NoNumber("it is no finite number")));
    }
    for (prefix, base) in [("0x", 16), ("0o", 8)] {
        if let Some(digits) = text.strip_prefix(prefix) {
            let valid = !digits.is_empty() && digits.chars().all(|c| c.is_digit(base));
            return valid.then(|| integer(digits, base));
        }
    }
    let body = unsigned.as_bytes();
    let digits = |at: usize| body[at..].iter().take_while(|byte| byte.is_ascii_digit()).count();
    let whole = digits(0);
    let mut at = whole;
    let mut fraction = 0;
    if body.get(at) == Some(&b'.') {
        fraction = digits(at + 1);
        at += 1 + fraction;
    }
    if whole + fraction == 0 {
        return None;
    }
    if at == whole && at == body.len() {
        return Some(integer(text.strip_prefix('+').unwrap_or(text), 10));
    }
    if matches!(body.get(at), Some(b'e' | b'E')) {
        let signed = at + 1 + usize::from(matches!(body.get(at + 1), Some(b'-' | b'+')));
        let exponent = if signed <= body.len() { digits(signed) } else { 0 };
        if exponent == 0 {
            return None;
        }
        at = signed + exponent;
    }
    if at != body.len() {
        return None;
    }
    let float = text.parse::<f64>().ok().filter(|float| float.is_finite());
    Some(float.map(Value::Float).ok_or(NoNumber("it is beyond the largest number")))
}

fn integer(digits: &str, base: u32) -> Result<Value, NoNumber> {
    if digits.len() as u64 > MAX_DIGITS {
        return Err(NoNumber("it has more than 10000 digits"));
    }
    let number = num_bigint::BigInt::parse_bytes(digits.as_bytes(), base);
    number.map(Value::from).ok_or(NoNumber("it is not a number"))
}
