//! Numbers: exact while all are integers, a float otherwise.

use std::cmp::Ordering;

use num_bigint::{BigInt, Sign};
use num_traits::{Signed as _, ToPrimitive as _, Zero as _};
use rtfs::Value;

use crate::error::BuiltinError;
use crate::limits::{MAX_BITS, bits_fit};

type Result<T> = std::result::Result<T, BuiltinError>;

/// An integer of any size (up to the limit), or a finite float.
#[derive(Clone, Debug)]
pub(crate) enum Number {
    Small(i64),
    Big(BigInt),
    Float(f64),
}

/// The rounding of an exact quotient.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Rounding {
    /// To the nearest; ties away from zero.
    HalfAway,
    /// To the nearest; ties to even.
    HalfEven,
    Up,
    Down,
    TowardZero,
}

impl Number {
    pub(crate) fn read(name: &str, value: &Value) -> Result<Self> {
        match value {
            Value::Int(integer) => Ok(Self::Small(*integer)),
            Value::BigInt(integer) => Ok(Self::Big(integer.get().clone())),
            Value::Float(float) if float.is_finite() => Ok(Self::Float(*float)),
            Value::Float(_) => Err(BuiltinError::argument(name, "a finite number", value)),
            other => Err(BuiltinError::argument(name, "a number", other)),
        }
    }

    pub(crate) fn into_value(self) -> Result<Value> {
        match self {
            Self::Small(integer) => Ok(Value::Int(integer)),
            Self::Big(integer) => {
                bits_fit(Some(integer.bits()))?;
                Ok(Value::from(integer))
            }
            Self::Float(float) if float.is_finite() => Ok(Value::Float(float)),
            Self::Float(_) => Err(BuiltinError::undefined("the result is not a finite number")),
        }
    }

    /// Returns the nearest float.
    pub(crate) fn to_f64(&self, name: &str) -> Result<f64> {
        let too_large = || BuiltinError::content(name, "too large for a float");
        match self {
            Self::Small(integer) => Ok(*integer as f64),
            Self::Big(integer) => integer.to_f64().filter(|f| f.is_finite()).ok_or_else(too_large),
            Self::Float(float) => Ok(*float),
        }
    }

    fn float(&self) -> f64 {
        match self {
            Self::Small(integer) => *integer as f64,
            Self::Big(integer) => integer.to_f64().unwrap_or(f64::NAN),
            Self::Float(float) => *float,
        }
    }

    /// Returns the integer, if the number is of that kind.
    pub(crate) fn to_big(&self) -> Option<BigInt> {
        match self {
            Self::Small(integer) => Some(BigInt::from(*integer)),
            Self::Big(integer) => Some(integer.clone()),
            Self::Float(_) => None,
        }
    }

    pub(crate) fn is_zero(&self) -> bool {
        match self {
            Self::Small(integer) => *integer == 0,
            Self::Big(integer) => integer.is_zero(),
            Self::Float(float) => *float == 0.0,
        }
    }

    pub(crate) fn compare(&self, other: &Self) -> Ordering {
        let value = |number: &Self| match number.clone() {
            Self::Small(integer) => Value::Int(integer),
            Self::Big(integer) => Value::from(integer),
            Self::Float(float) => Value::Float(float),
        };
        value(self).compare(&value(other))
    }

    pub(crate) fn add(&self, other: &Self) -> Self {
        self.combine(other, i64::checked_add, |a, b| a + b, |a, b| a + b)
    }

    pub(crate) fn subtract(&self, other: &Self) -> Self {
        self.combine(other, i64::checked_sub, |a, b| a - b, |a, b| a - b)
    }

    pub(crate) fn multiply(&self, other: &Self) -> Result<Self> {
        if let (Some(a), Some(b)) = (self.bits(), other.bits()) {
            // The product has as many bits as both factors together, or one less.
            bits_fit(a.checked_add(b).map(|bits| bits.saturating_sub(1)))?;
        }
        Ok(self.combine(other, i64::checked_mul, |a, b| a * b, |a, b| a * b))
    }

    /// Returns the exact quotient of integers if there is no remainder, else a float.
    pub(crate) fn divide(&self, other: &Self) -> Result<Self> {
        if other.is_zero() {
            return Err(BuiltinError::undefined("a quotient by zero has no value"));
        }
        if let (Some(a), Some(b)) = (self.to_big(), other.to_big()) {
            let (quotient, remainder) = num_integer::Integer::div_rem(&a, &b);
            if remainder.is_zero() {
                return Ok(quotient.into());
            }
            return Ok(Self::Float(ratio(&a, &b)));
        }
        Ok(Self::Float(self.float() / other.float()))
    }

    /// Returns the quotient rounded to an integer, if both are integers.
    pub(crate) fn quotient(&self, other: &Self, rounding: Rounding) -> Result<Self> {
        if other.is_zero() {
            return Err(BuiltinError::undefined("a quotient by zero has no value"));
        }
        match (self.to_big(), other.to_big()) {
            (Some(a), Some(b)) => Ok(divide_rounded(&a, &b, rounding).into()),
            _ => integer_of(round_float(self.float() / other.float(), rounding)),
        }
    }

    /// Returns the remainder of a quotient that is rounded down: it has the sign of the divisor.
    pub(crate) fn modulo(&self, other: &Self) -> Result<Self> {
        if other.is_zero() {
            return Err(BuiltinError::undefined("a remainder by zero has no value"));
        }
        match (self.to_big(), other.to_big()) {
            (Some(a), Some(b)) => Ok(num_integer::Integer::mod_floor(&a, &b).into()),
            _ => {
                let (a, b) = (self.float(), other.float());
                let rest = a % b;
                Ok(Self::Float(if rest != 0.0 && (rest < 0.0) != (b < 0.0) { rest + b } else { rest }))
            }
        }
    }

    /// Returns a power. Integers to the power of a natural number are exact.
    pub(crate) fn power(&self, exponent: &Self) -> Result<Self> {
        if let (Some(base), Self::Small(exponent @ 0..)) = (self.to_big(), exponent) {
            if base.magnitude().bits() <= 1 {
                let odd = exponent % 2 == 1;
                let negative = base.is_negative() && odd;
                let zero = base.is_zero() && *exponent > 0;
                return Ok(Self::Small(if zero {
                    0
                } else if negative {
                    -1
                } else {
                    1
                }));
            }
            let exponent = u64::try_from(*exponent).unwrap_or(u64::MAX);
            // A number of n bits is at least 2^(n-1).
            bits_fit((base.bits() - 1).checked_mul(exponent).and_then(|bits| bits.checked_add(1)))?;
            let exponent = u32::try_from(exponent).unwrap_or(u32::MAX);
            return Ok(num_traits::Pow::pow(base, exponent).into());
        }
        Ok(Self::Float(self.float().powf(exponent.float())))
    }

    pub(crate) fn negate(&self) -> Self {
        Self::Small(0).subtract(self).normal_zero(self)
    }

    pub(crate) fn abs(&self) -> Self {
        match self {
            Self::Float(float) => Self::Float(float.abs()),
            Self::Small(integer) => BigInt::from(*integer).abs().into(),
            Self::Big(integer) => integer.abs().into(),
        }
    }

    /// Keeps minus zero as the original float.
    fn normal_zero(self, of: &Self) -> Self {
        match of {
            Self::Float(float) => Self::Float(-float),
            _ => self,
        }
    }

    /// Rounds to this many digits after the point, or before it if `digits` is negative. A float is
    /// rounded by its shortest decimal text: 2.675 to 2.68.
    pub(crate) fn round(&self, digits: i64, rounding: Rounding) -> Result<Self> {
        let float = match self {
            Self::Float(float) => *float,
            _ if digits >= 0 => return Ok(self.clone()),
            _ => {
                let number = self.to_big().unwrap_or_default();
                let digits = u32::try_from(-digits).unwrap_or(u32::MAX).min(20_000);
                let unit = num_traits::Pow::pow(BigInt::from(10), digits);
                return Ok((divide_rounded(&number, &unit, rounding) * unit).into());
            }
        };
        let text = format!("{float:e}");
        let (mantissa, exponent) = text.split_once('e').unwrap_or((&text, "0"));
        let negative = mantissa.starts_with('-');
        let places = mantissa.split_once('.').map_or(0, |(_, fraction)| fraction.len());
        let whole: i64 = mantissa.replace(['.', '-'], "").parse().unwrap_or(0);
        let whole = BigInt::from(if negative { -whole } else { whole });
        // The float is `whole` times this power of ten.
        let exponent = exponent.parse().unwrap_or(0_i64) - i64::try_from(places).unwrap_or(0);
        let dropped = -(exponent + digits);
        if dropped <= 0 {
            return if digits <= 0 { integer_of(float) } else { Ok(self.clone()) };
        }
        let unit = num_traits::Pow::pow(BigInt::from(10), u32::try_from(dropped.min(40)).unwrap_or(40));
        let rounded = divide_rounded(&whole, &unit, rounding);
        let sign = if negative && rounded.is_zero() { "-" } else { "" };
        let text = format!("{sign}{rounded}e{}", -digits);
        let float = text.parse().unwrap_or(f64::NAN);
        if digits <= 0 { integer_of(float) } else { Ok(Self::Float(float)) }
    }

    fn bits(&self) -> Option<u64> {
        match self {
            Self::Small(integer) => Some(u64::from(64 - integer.unsigned_abs().leading_zeros())),
            Self::Big(integer) => Some(integer.bits()),
            Self::Float(_) => None,
        }
    }

    fn combine(
        &self,
        other: &Self,
        small: fn(i64, i64) -> Option<i64>,
        big: fn(BigInt, BigInt) -> BigInt,
        float: fn(f64, f64) -> f64,
    ) -> Self {
        if let (Self::Small(a), Self::Small(b)) = (self, other)
            && let Some(result) = small(*a, *b)
        {
            return Self::Small(result);
        }
        match (self.to_big(), other.to_big()) {
            (Some(a), Some(b)) => big(a, b).into(),
            _ => Self::Float(float(self.float(), other.float())),
        }
    }
}

impl From<BigInt> for Number {
    fn from(integer: BigInt) -> Self {
        match i64::try_from(&integer) {
            Ok(small) => Self::Small(small),
            Err(_) => Self::Big(integer),
        }
    }
}

/// Returns a float without a fraction as an integer.
pub(crate) fn integer_of(float: f64) -> Result<Number> {
    let integer = num_traits::FromPrimitive::from_f64(float).map(|integer: BigInt| integer.into());
    integer.ok_or_else(|| BuiltinError::undefined("the result is not a finite number"))
}

pub(crate) fn round_float(float: f64, rounding: Rounding) -> f64 {
    match rounding {
        Rounding::HalfAway => float.round(),
        Rounding::HalfEven => float.round_ties_even(),
        Rounding::Up => float.ceil(),
        Rounding::Down => float.floor(),
        Rounding::TowardZero => float.trunc(),
    }
}

fn divide_rounded(a: &BigInt, b: &BigInt, rounding: Rounding) -> BigInt {
    let (down, rest) = num_integer::Integer::div_mod_floor(a, b);
    if rest.is_zero() {
        return down;
    }
    // The remainder has the sign of the divisor, so that the exact quotient is between `down` and the
    // next integer.
    let twice = BigInt::from(rest.magnitude() * 2_u32);
    let half = twice.magnitude().cmp(b.magnitude());
    let up = match rounding {
        Rounding::Up => true,
        Rounding::Down => false,
        Rounding::TowardZero => down.is_negative(),
        Rounding::HalfAway => half.is_gt() || half.is_eq() && !down.is_negative(),
        Rounding::HalfEven => half.is_gt() || half.is_eq() && num_integer::Integer::is_odd(&down),
    };
    if up { down + 1 } else { down }
}

/// Returns the float nearest to the quotient of two integers, also where each is beyond the largest
/// float.
fn ratio(a: &BigInt, b: &BigInt) -> f64 {
    /// Floats have 53 bits; beyond this many bits, the remainder does not matter.
    const KEPT: u64 = 128;
    let shift = |n: &BigInt| n.bits().saturating_sub(KEPT).min(MAX_BITS * 2);
    let (down_a, down_b) = (shift(a), shift(b));
    let float = |n: &BigInt, down: u64| (n >> down).to_f64().unwrap_or(f64::NAN);
    let quotient = float(a, down_a) / float(b, down_b);
    let exponent = i32::try_from(down_a).unwrap_or(0) - i32::try_from(down_b).unwrap_or(0);
    // In two steps, because one alone may overflow where both together do not.
    quotient * 2_f64.powi(exponent / 2) * 2_f64.powi(exponent - exponent / 2)
}

/// Returns the sign as a number: -1, 0 or 1.
pub(crate) fn sign(number: &Number) -> i64 {
    match number {
        Number::Small(integer) => integer.signum(),
        Number::Big(integer) => match integer.sign() {
            Sign::Minus => -1,
            Sign::NoSign => 0,
            Sign::Plus => 1,
        },
        Number::Float(float) if *float == 0.0 => 0,
        Number::Float(float) => {
            if *float < 0.0 {
                -1
            } else {
                1
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rounds_as_numbers_are_written() {
        use Rounding::{Down, HalfAway, HalfEven, TowardZero, Up};
        let cases = [
            (2.675, 2, HalfAway, "2.68"),
            (2.665, 2, HalfEven, "2.66"),
            (-2.5, 0, HalfAway, "-3"),
            (-2.5, 0, HalfEven, "-2"),
            (5e15, 0, HalfAway, "5000000000000000"),
            (2.1, 0, Up, "3"),
            (-2.1, 0, Up, "-2"),
            (-2.1, 0, Down, "-3"),
            (-2.9, 0, TowardZero, "-2"),
            (1234.5, -2, HalfAway, "1200"),
            (1e-300, 2, HalfAway, "0.0"),
            (-1e-300, 2, HalfAway, "-0.0"),
            (1e-300, 2, Up, "0.01"),
            (1e300, 2, Up, "1e300"),
            (0.1, 400, Up, "0.1"),
        ];
        for (number, digits, rounding, expected) in cases {
            let rounded = Number::Float(number).round(digits, rounding).unwrap().into_value().unwrap();
            assert_eq!(rounded.pr_str(), expected, "{number} {digits} {rounding:?}");
        }
        let integer = Number::Small(-1_250).round(-2, HalfAway).unwrap().into_value().unwrap();
        assert_eq!(integer, Value::Int(-1_300));
    }

    #[test]
    fn a_quotient_of_huge_integers_is_the_nearest_float() {
        let ten = |exponent: u32| Number::from(num_traits::Pow::pow(BigInt::from(10), exponent));
        let quotient = ten(400).add(&Number::Small(1)).divide(&ten(398)).unwrap();
        assert_eq!(quotient.into_value().unwrap(), Value::Float(100.0));
        let tiny = Number::Small(1).divide(&ten(300).multiply(&Number::Small(3)).unwrap()).unwrap();
        assert_eq!(tiny.into_value().unwrap(), Value::Float(1.0 / 3e300));
        assert!(ten(9_000).divide(&Number::Small(7)).unwrap().into_value().is_err());
    }

    #[test]
    fn a_power_is_measured_before_it_is_computed() {
        let power = |a: i64, b: i64| Number::Small(a).power(&Number::Small(b));
        assert!(matches!(power(10, 1_000_000), Err(BuiltinError::Limit { .. })));
        let just_beyond = power(10, 10_001).and_then(Number::into_value);
        assert!(matches!(just_beyond, Err(BuiltinError::Limit { .. })));
        assert!(matches!(power(i64::MAX, i64::MAX), Err(BuiltinError::Limit { .. })));
        assert_eq!(power(-1, i64::MAX).unwrap().into_value().unwrap(), Value::Int(-1));
        assert_eq!(power(0, 0).unwrap().into_value().unwrap(), Value::Int(1));
        assert_eq!(power(0, 5).unwrap().into_value().unwrap(), Value::Int(0));
    }
}
