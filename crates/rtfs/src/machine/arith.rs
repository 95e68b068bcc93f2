//! Arithmetic on any two numbers, for cases that the fast instructions do not handle.

use std::cmp::Ordering;

use num_bigint::{BigInt, Sign};

use super::context::{Fault, fault};
use crate::value::Value;

/// `a op b` for `+`, `-` and `*`.
#[inline(never)]
pub(crate) fn arithmetic(op: char, a: &Value, b: &Value) -> Result<Value, Box<Fault>> {
    if let (Value::Int(x), Value::Int(y)) = (a, b) {
        let small = match op {
            '+' => x.checked_add(*y),
            '-' => x.checked_sub(*y),
            _ => x.checked_mul(*y),
        };
        if let Some(small) = small {
            return Ok(Value::Int(small));
        }
    }
    if let (Some(x), Some(y)) = (integer(a), integer(b)) {
        if let ('*', true) = (op, x.bits() + y.bits() > MAX_BITS) {
            return Err(too_big());
        }
        return Ok(Value::from(match op {
            '+' => x + y,
            '-' => x - y,
            _ => x * y,
        }));
    }
    let (x, y) = (number(op, a)?, number(op, b)?);
    Ok(Value::Float(match op {
        '+' => x + y,
        '-' => x - y,
        _ => x * y,
    }))
}

/// The maximum size of an integer in bits.
pub(crate) const MAX_BITS: u64 = 1 << 20;

pub(crate) fn too_big() -> Box<Fault> {
    crate::Error::limit("integer", format!("the result would have more than {MAX_BITS} bits")).into()
}

/// Returns an integer of any size.
pub(crate) fn integer(value: &Value) -> Option<BigInt> {
    match value {
        Value::Int(i) => Some(BigInt::from(*i)),
        Value::BigInt(big) => Some(big.get().clone()),
        _ => None,
    }
}

/// Returns the number as a float.
pub(crate) fn float(value: &Value) -> Option<f64> {
    match value {
        Value::Int(i) => Some(*i as f64),
        Value::Float(f) => Some(*f),
        Value::BigInt(big) => Some(big_to_float(big.get())),
        _ => None,
    }
}

fn big_to_float(big: &BigInt) -> f64 {
    // The decimal text is parsed as a float, which is the shortest exact way.
    let infinite = if big.sign() == Sign::Minus { f64::NEG_INFINITY } else { f64::INFINITY };
    if big.bits() > 1_100 { infinite } else { big.to_string().parse().unwrap_or(infinite) }
}

fn number(op: char, value: &Value) -> Result<f64, Box<Fault>> {
    float(value).ok_or_else(|| {
        fault("type", format!("`{op}` takes numbers, got {}", crate::builtins::shown(value)))
    })
}

/// Returns the order of two values that `<` and similar functions compare; `None` if one is NaN.
pub(crate) fn compare_ordered(name: &str, a: &Value, b: &Value) -> Result<Option<Ordering>, Box<Fault>> {
    match (a, b) {
        (Value::Int(a), Value::Int(b)) => return Ok(Some(a.cmp(b))),
        (Value::Float(a), Value::Float(b)) => return Ok(a.partial_cmp(b)),
        _ => {}
    }
    let is_number = |value: &Value| matches!(value, Value::Int(_) | Value::Float(_) | Value::BigInt(_));
    let is_nan = |value: &Value| matches!(value, Value::Float(f) if f.is_nan());
    let comparable = match (a, b) {
        (a, b) if is_number(a) && is_number(b) => {
            if is_nan(a) || is_nan(b) {
                return Ok(None);
            }
            true
        }
        (Value::Str(_), Value::Str(_))
        | (Value::Keyword(_), Value::Keyword(_))
        | (Value::Bool(_), Value::Bool(_))
        | (Value::Instant(_), Value::Instant(_)) => true,
        _ => match (a.items(), b.items()) {
            (Some(a), Some(b)) => {
                // The first differing item decides.
                for (a, b) in a.iter().zip(b) {
                    match compare_ordered(name, a, b)? {
                        Some(Ordering::Equal) => {}
                        other => return Ok(other),
                    }
                }
                return Ok(Some(a.len().cmp(&b.len())));
            }
            _ => false,
        },
    };
    if comparable {
        return Ok(Some(a.compare(b)));
    }
    let (a, b) = (crate::builtins::shown(a), crate::builtins::shown(b));
    Err(fault("type", format!("`{name}` cannot compare {a} with {b}")))
}

/// Compares by mathematical value, for `==`; `None` unless both are comparable numbers.
pub(crate) fn numeric_cmp(a: &Value, b: &Value) -> Option<Ordering> {
    float(a)?;
    float(b)?;
    compare_ordered("==", a, b).ok().flatten()
}
