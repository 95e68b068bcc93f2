//! The functions of `math`.

use num_bigint::BigInt;
use num_integer::Integer as _;
use num_traits::{Signed as _, Zero as _};
use rtfs::Value;

use super::Result;
use crate::arguments::Arguments;
use crate::error::BuiltinError;
use crate::limits::{MAX_DIGITS, bits_fit};
use crate::number::{Number, Rounding, sign};

pub(super) fn clamp(args: &Arguments<'_>) -> Result {
    let (number, min, max) = (args.number("number")?, args.number("min")?, args.number("max")?);
    if min.compare(&max).is_gt() {
        return Err(BuiltinError::content("max", "it is below min"));
    }
    let clamped = if number.compare(&min).is_lt() { min } else { number };
    if clamped.compare(&max).is_gt() { max } else { clamped }.into_value()
}

pub(super) fn rounding(
    args: &Arguments<'_>,
    default: Rounding,
) -> std::result::Result<Rounding, BuiltinError> {
    let words = [
        ("half_up", Rounding::HalfAway),
        ("half_even", Rounding::HalfEven),
        ("up", Rounding::Up),
        ("down", Rounding::Down),
        ("toward_zero", Rounding::TowardZero),
    ];
    args.choice("mode", &words, default)
}

pub(super) fn angle(args: &Arguments<'_>) -> std::result::Result<f64, BuiltinError> {
    let angle = args.float("angle")?;
    let degrees = args.choice("unit", &[("radians", false), ("degrees", true)], false)?;
    Ok(if degrees { angle.to_radians() } else { angle })
}

pub(super) fn bigs(args: &Arguments<'_>) -> std::result::Result<Vec<BigInt>, BuiltinError> {
    let items = args.list("integers")?;
    let named = items.iter().enumerate();
    named.map(|(i, item)| crate::arguments::big(&format!("integers[{i}]"), item)).collect()
}

pub(super) fn lcm(args: &Arguments<'_>) -> Result {
    let mut lcm = BigInt::from(1);
    for n in bigs(args)? {
        let common = gcd(&lcm, &n);
        if common.is_zero() {
            continue;
        }
        bits_fit(lcm.bits().checked_add(n.bits()).map(|bits| bits.saturating_sub(common.bits())))?;
        lcm = (lcm * (n / common)).abs();
    }
    Number::from(lcm).into_value()
}

/// Returns the greatest common divisor. The remainder reduces both numbers to the size of the smaller
/// one, because the crate's algorithm takes a step for each bit of the larger.
pub(super) fn gcd(a: &BigInt, b: &BigInt) -> BigInt {
    let (small, large) = if a.magnitude() < b.magnitude() { (a, b) } else { (b, a) };
    if small.is_zero() { large.abs() } else { small.gcd(&(large % small)) }
}

pub(super) fn factorial(n: i64) -> Result {
    let product = (2..=n).fold(BigInt::from(1), |product, n| product * n);
    Number::from(product).into_value()
}

pub(super) fn log(args: &Arguments<'_>) -> Result {
    let number = args.float("number")?;
    if number <= 0.0 {
        return Err(BuiltinError::content("number", "the logarithm is defined above 0 only"));
    }
    let Some(base) = args.optional_number("base")? else {
        return Number::Float(number.ln()).into_value();
    };
    let base = base.to_f64("base")?;
    if base <= 0.0 || base == 1.0 {
        return Err(BuiltinError::content("base", "it must be above 0 and not 1"));
    }
    Number::Float(logarithm(number, base)).into_value()
}

pub(super) fn logarithm(number: f64, base: f64) -> f64 {
    // These two are exact where `ln` is not.
    match base {
        10.0 => number.log10(),
        2.0 => number.log2(),
        base => number.log(base),
    }
}

pub(super) fn square_root(number: &Number) -> std::result::Result<Number, BuiltinError> {
    if sign(number) < 0 {
        return Err(BuiltinError::content("number", "a negative number has no square root"));
    }
    if let Some(integer) = number.to_big() {
        let root = integer.sqrt();
        if &root * &root == integer {
            return Ok(root.into());
        }
    }
    Ok(Number::Float(number.to_f64("number")?.sqrt()))
}

pub(super) fn is_prime(args: &Arguments<'_>) -> Result {
    let number = args.big("number")?;
    let number = u64::try_from(&number).map_err(|_| {
        BuiltinError::content("number", "expected an integer from 0 to 18446744073709551615")
    })?;
    Ok(Value::Bool(is_prime_u64(number)))
}

/// The Miller-Rabin test; these bases decide every number of 64 bits.
pub(super) fn is_prime_u64(n: u64) -> bool {
    const BASES: [u64; 12] = [2, 3, 5, 7, 11, 13, 17, 19, 23, 29, 31, 37];
    if n < 2 {
        return false;
    }
    if let Some(factor) = BASES.iter().find(|p| n.is_multiple_of(**p)) {
        return n == *factor;
    }
    let multiply = |a: u64, b: u64| (u128::from(a) * u128::from(b) % u128::from(n)) as u64;
    let power = |base: u64, mut exponent: u64| {
        let (mut result, mut base) = (1, base % n);
        while exponent > 0 {
            if exponent & 1 == 1 {
                result = multiply(result, base);
            }
            base = multiply(base, base);
            exponent >>= 1;
        }
        result
    };
    let twos = (n - 1).trailing_zeros();
    let odd = (n - 1) >> twos;
    BASES.iter().all(|base| {
        let mut x = power(*base, odd);
        if x == 1 || x == n - 1 {
            return true;
        }
        (1..twos).any(|_| {
            x = multiply(x, x);
            x == n - 1
        })
    })
}

pub(super) fn from_base(args: &Arguments<'_>) -> Result {
    let (digits, base) = (args.text("digits")?, args.integer("base", 2..=36)?);
    let (negative, bare) = match digits.strip_prefix('-') {
        Some(bare) => (true, bare),
        None => (false, digits.strip_prefix('+').unwrap_or(digits)),
    };
    let bare: Vec<u8> = bare.bytes().filter(|byte| *byte != b'_').collect();
    // The largest base needs the fewest digits.
    let bits = u64::try_from(bare.len())
        .ok()
        .and_then(|n| n.checked_mul(u64::from(64 - base.leading_zeros() - 1)));
    bits_fit(bits)?;
    let base = u32::try_from(base).unwrap_or(10);
    let number = if bare.is_empty() { None } else { BigInt::parse_bytes(&bare, base) };
    match number.filter(|_| !bare.starts_with(b"-") && !bare.starts_with(b"+")) {
        Some(number) => Number::from(if negative { -number } else { number }).into_value(),
        None => Err(BuiltinError::content("digits", format_args!("expected digits of base {base}"))),
    }
}

pub(super) fn to_base(args: &Arguments<'_>) -> Result {
    let (number, base) = (args.big("number")?, args.integer("base", 2..=36)?);
    let width = args.integer_or("width", 0..=MAX_DIGITS as i64, 0)?;
    let digits = number.magnitude().to_str_radix(u32::try_from(base).unwrap_or(10));
    let sign = if number.is_negative() { "-" } else { "" };
    let width = usize::try_from(width).unwrap_or(0);
    Ok(Value::from(format!("{sign}{digits:0>width$}")))
}

pub(super) fn format_number(args: &Arguments<'_>) -> Result {
    let decimals = args.integer_or("decimals", 0..=100, 2)?;
    let (thousands, point) = (args.text_or("thousands", ",")?, args.text_or("point", ".")?);
    for (name, text) in [("thousands", thousands), ("point", point)] {
        if text.chars().count() > 10 {
            return Err(BuiltinError::content(name, "expected at most 10 characters"));
        }
    }
    let number = args.number("number")?.round(decimals, Rounding::HalfAway)?;
    let decimals = usize::try_from(decimals).unwrap_or(0);
    let text = match &number {
        Number::Small(integer) => integer.to_string(),
        Number::Big(integer) => integer.to_string(),
        Number::Float(float) => format!("{float:.decimals$}"),
    };
    let (whole, fraction) = text.split_once('.').unwrap_or((&text, ""));
    let (minus, whole) = whole.strip_prefix('-').map_or(("", whole), |whole| ("-", whole));
    let mut out = String::from(minus);
    for (i, digit) in whole.chars().enumerate() {
        if i > 0 && (whole.len() - i) % 3 == 0 {
            out.push_str(thousands);
        }
        out.push(digit);
    }
    if decimals > 0 {
        out.push_str(point);
        out.push_str(&format!("{fraction:0<decimals$}"));
    }
    Ok(Value::from(out))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn knows_the_primes() {
        let primes: Vec<_> = (0..60).filter(|n| is_prime_u64(*n)).collect();
        assert_eq!(primes, [2, 3, 5, 7, 11, 13, 17, 19, 23, 29, 31, 37, 41, 43, 47, 53, 59]);
        // A product of two primes that passes the test with the first nine bases.
        assert!(!is_prime_u64(3_825_123_056_546_413_051));
        assert!(is_prime_u64(18_446_744_073_709_551_557));
        assert!(!is_prime_u64(u64::MAX));
    }

    #[test]
    fn divisors_are_those_of_the_crate() {
        let numbers = [0, 1, -1, 6, -15, 97, i64::MAX, i64::MIN].map(BigInt::from);
        let large = numbers.iter().map(|n| n.pow(9) + n);
        let all: Vec<BigInt> = large.chain(numbers.iter().cloned()).collect();
        for a in &all {
            for b in &all {
                assert_eq!(gcd(a, b), num_integer::Integer::gcd(a, b), "{a} {b}");
            }
        }
    }

    #[test]
    fn a_long_list_of_small_numbers_has_its_multiple_at_once() {
        let integers: Vec<Value> = (1..=20_000_i64).map(Value::from).collect();
        let mut input = rtfs::Map::new();
        input.insert(Value::keyword("integers"), Value::vector(integers).unwrap()).unwrap();
        let lcm = crate::CapabilityRegistry.get("math.lcm").unwrap().call(&input.into()).unwrap();
        let text = lcm.pr_str();
        let lcm: BigInt = text.trim_end_matches('N').parse().unwrap();
        assert!((1..=20_000_i64).all(|n| (&lcm % n).is_zero()));
    }
}
