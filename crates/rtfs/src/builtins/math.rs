//! Numbers and comparisons.

use std::cmp::Ordering;

use num_bigint::{BigInt, Sign};

use super::{ANY, Answer, Entry, int_of, many, one, shown, two, wrong};
use crate::Error;
use crate::machine::{
    Context, Fault, MAX_BITS, arithmetic, big_of, compare_ordered, equal, fault, float_of, numeric_cmp,
    too_big,
};
use crate::value::Value;

pub(super) static ENTRIES: &[Entry] = &[
    many("+", 0, ANY, |_, args| fold('+', 0, args)).walks().scalar(),
    many("*", 0, ANY, |_, args| fold('*', 1, args)).walks().scalar(),
    many("-", 1, ANY, minus).walks().scalar(),
    many("/", 1, ANY, divide).walks().scalar(),
    two("quot", |_, a, b| whole("quot", a, b)).walks().scalar(),
    two("rem", |_, a, b| whole("rem", a, b)).walks().scalar(),
    two("mod", |_, a, b| modulo(a, b)).walks().scalar(),
    one("inc", |_, x| stepped("inc", '+', x)).walks().scalar(),
    one("dec", |_, x| stepped("dec", '-', x)).walks().scalar(),
    one("abs", abs).walks().scalar(),
    many("min", 1, ANY, |_, args| extreme("min", args, Ordering::Less)).walks().scalar(),
    many("max", 1, ANY, |_, args| extreme("max", args, Ordering::Greater)).walks().scalar(),
    one("sqrt", |_, x| float_fn("sqrt", x, f64::sqrt)).scalar(),
    one("exp", |_, x| float_fn("exp", x, f64::exp)).scalar(),
    one("ln", |_, x| float_fn("ln", x, f64::ln)).scalar(),
    two("pow", pow).scalar(),
    one("floor", |_, x| rounded("floor", x, f64::floor)).scalar(),
    one("ceil", |_, x| rounded("ceil", x, f64::ceil)).scalar(),
    many("round", 1, 2, round).scalar(),
    one("trunc", |_, x| rounded("trunc", x, f64::trunc)).scalar(),
    one("even?", |_, x| Ok(Value::Bool(!is_odd("even?", x)?))).scalar(),
    one("odd?", |_, x| Ok(Value::Bool(is_odd("odd?", x)?))).scalar(),
    one("zero?", |_, x| sign_is("zero?", x, Ordering::Equal)).scalar(),
    one("pos?", |_, x| sign_is("pos?", x, Ordering::Greater)).scalar(),
    one("neg?", |_, x| sign_is("neg?", x, Ordering::Less)).scalar(),
    one("int", |_, x| int("int", x)).walks().scalar(),
    one("float", float).walks().scalar(),
    one("number", number).walks().scalar(),
    one("parse-int", parse_int).walks().scalar(),
    one("parse-float", parse_float).walks().scalar(),
    many("bit-and", 1, ANY, |_, args| bits("bit-and", args, |a, b| a & b, |a, b| a & b))
        .walks()
        .scalar(),
    many("bit-or", 1, ANY, |_, args| bits("bit-or", args, |a, b| a | b, |a, b| a | b)).walks().scalar(),
    many("bit-xor", 1, ANY, |_, args| bits("bit-xor", args, |a, b| a ^ b, |a, b| a ^ b))
        .walks()
        .scalar(),
    two("bit-shift-left", |context, x, n| shift(context, "bit-shift-left", x, n, true)).scalar(),
    two("bit-shift-right", |context, x, n| shift(context, "bit-shift-right", x, n, false)).scalar(),
    one("factorial", factorial).scalar(),
    many("gcd", 1, ANY, gcd).walks().scalar(),
    many("=", 1, ANY, |context, args| all(context, args, equal)).scalar().lazy(),
    many("!=", 1, ANY, not_equal).scalar().lazy(),
    many("not=", 1, ANY, not_equal).scalar().lazy(),
    many("==", 1, ANY, |context, args| all(context, args, loosely_equal)).scalar().lazy(),
    many("<", 1, ANY, |_, args| ordered("<", args, Ordering::is_lt)).walks().scalar(),
    many("<=", 1, ANY, |_, args| ordered("<=", args, Ordering::is_le)).walks().scalar(),
    many(">", 1, ANY, |_, args| ordered(">", args, Ordering::is_gt)).walks().scalar(),
    many(">=", 1, ANY, |_, args| ordered(">=", args, Ordering::is_ge)).walks().scalar(),
    two("compare", |_, a, b| Ok(Value::Int(a.compare(b) as i64))).walks().compares().scalar(),
    two("identical?", |_, a, b| Ok(Value::Bool(identical(a, b)))).scalar().lazy(),
    one("not", |_, x| Ok(Value::Bool(!x.is_truthy()))).scalar().lazy(),
];

fn is_number(value: &Value) -> bool {
    matches!(value, Value::Int(_) | Value::Float(_) | Value::BigInt(_))
}

fn fold(op: char, unit: i64, args: &mut [Value]) -> Answer {
    match args {
        [] => Ok(Value::Int(unit)),
        [one] if is_number(one) => Ok(one.clone()),
        [one] => Err(wrong(&op.to_string(), "numbers", one)),
        [first, rest @ ..] => rest.iter().try_fold(first.clone(), |sum, x| arithmetic(op, &sum, x)),
    }
}

fn minus(_: &mut Context, args: &mut [Value]) -> Answer {
    match args {
        [Value::Float(x)] => Ok(Value::Float(-*x)),
        [one] => arithmetic('-', &Value::Int(0), one),
        _ => fold('-', 0, args),
    }
}

fn divide(_: &mut Context, args: &mut [Value]) -> Answer {
    match args {
        [one] => quotient(&Value::Int(1), one),
        [first, rest @ ..] => rest.iter().try_fold(first.clone(), |value, x| quotient(&value, x)),
        [] => Ok(Value::Nil),
    }
}

/// Implements `inc` and `dec`.
fn stepped(name: &'static str, op: char, x: &Value) -> Answer {
    if !is_number(x) {
        return Err(wrong(name, "a number", x));
    }
    arithmetic(op, x, &Value::Int(1))
}

#[cold]
fn by_zero(name: &str) -> Box<Fault> {
    fault("arithmetic", format!("`{name}`: division by zero"))
}

/// Returns an exact integer if the division has no remainder, and otherwise a float.
fn quotient(a: &Value, b: &Value) -> Answer {
    match (a, b) {
        (Value::Int(_) | Value::BigInt(_), Value::Int(0)) => Err(by_zero("/")),
        (Value::Int(x), Value::Int(y)) if x.checked_rem(*y) == Some(0) => Ok(Value::Int(x / y)),
        (Value::Int(x), Value::Int(y)) if *y != -1 => Ok(Value::Float(*x as f64 / *y as f64)),
        _ => {
            if let (Some(x), Some(y)) = (big_of(a), big_of(b))
                && (&x % &y).sign() == Sign::NoSign
            {
                return Ok(Value::from(x / y));
            }
            match (float_of(a), float_of(b)) {
                (Some(x), Some(y)) => Ok(Value::Float(x / y)),
                (None, _) => Err(wrong("/", "numbers", a)),
                _ => Err(wrong("/", "numbers", b)),
            }
        }
    }
}

/// Implements `quot` and `rem`, which truncate.
fn whole(name: &'static str, a: &Value, b: &Value) -> Answer {
    let is_quot = name == "quot";
    if let (Value::Int(x), Value::Int(y)) = (a, b)
        && let Some(value) = if is_quot { x.checked_div(*y) } else { x.checked_rem(*y) }
    {
        return Ok(Value::Int(value));
    }
    if let (Some(x), Some(y)) = (big_of(a), big_of(b)) {
        if y.sign() == Sign::NoSign {
            return Err(by_zero(name));
        }
        return Ok(Value::from(if is_quot { x / y } else { x % y }));
    }
    match (float_of(a), float_of(b)) {
        (Some(x), Some(y)) => Ok(Value::Float(if is_quot { (x / y).trunc() } else { x % y })),
        (None, _) => Err(wrong(name, "numbers", a)),
        _ => Err(wrong(name, "numbers", b)),
    }
}

/// Implements `mod`: the result has the sign of the divisor.
pub(crate) fn modulo(a: &Value, b: &Value) -> Answer {
    if let (Some(x), Some(y)) = (big_of(a), big_of(b)) {
        if y.sign() == Sign::NoSign {
            return Err(by_zero("mod"));
        }
        let rem = &x % &y;
        let floors =
            rem.sign() == Sign::NoSign || (rem.sign() == Sign::Minus) == (y.sign() == Sign::Minus);
        return Ok(Value::from(if floors { rem } else { rem + y }));
    }
    match (float_of(a), float_of(b)) {
        (Some(x), Some(y)) => {
            let rem = x % y;
            let floors = rem == 0.0 || rem.is_nan() || (rem < 0.0) == (y < 0.0);
            Ok(Value::Float(if floors { rem } else { rem + y }))
        }
        (None, _) => Err(wrong("mod", "numbers", a)),
        _ => Err(wrong("mod", "numbers", b)),
    }
}

fn abs(_: &mut Context, x: &Value) -> Answer {
    match x {
        Value::Float(f) => Ok(Value::Float(f.abs())),
        Value::Int(i) if *i >= 0 => Ok(Value::Int(*i)),
        Value::Int(_) => arithmetic('-', &Value::Int(0), x),
        Value::BigInt(big) => Ok(Value::from(BigInt::from(big.get().magnitude().clone()))),
        other => Err(wrong("abs", "a number", other)),
    }
}

fn extreme(name: &str, args: &mut [Value], wanted: Ordering) -> Answer {
    if let Some(other) = args.iter().find(|arg| !is_number(arg)) {
        return Err(wrong(name, "numbers", other));
    }
    let mut best = args[0].clone();
    for arg in &args[1..] {
        if matches!(arg, Value::Float(f) if f.is_nan()) {
            return Ok(arg.clone());
        }
        if arg.compare(&best) == wanted && !matches!(best, Value::Float(f) if f.is_nan()) {
            best = arg.clone();
        }
    }
    Ok(best)
}

fn float_fn(name: &str, x: &Value, function: fn(f64) -> f64) -> Answer {
    float_of(x).map(|x| Value::Float(function(x))).ok_or_else(|| wrong(name, "a number", x))
}

fn pow(context: &mut Context, base: &Value, exponent: &Value) -> Answer {
    if let (Some(x), Value::Int(n)) = (big_of(base), exponent)
        && *n >= 0
    {
        let n = *n as u64;
        if x.bits() > 1 && log2(&x) * n as f64 >= MAX_BITS as f64 {
            return Err(too_big());
        }
        let n = if x.bits() <= 1 { 2 - n % 2 } else { n };
        let n = if *exponent == Value::Int(0) { 0 } else { n };
        let words = x.bits().saturating_mul(n) / 64;
        context.cost += words.saturating_mul(words) / 256;
        return Ok(Value::from(x.pow(n as u32)));
    }
    match (float_of(base), float_of(exponent)) {
        (Some(x), Some(y)) => Ok(Value::Float(x.powf(y))),
        (None, _) => Err(wrong("pow", "numbers", base)),
        _ => Err(wrong("pow", "numbers", exponent)),
    }
}

/// Returns the logarithm of the magnitude of a number other than 0.
fn log2(x: &BigInt) -> f64 {
    let beyond = x.bits().saturating_sub(64);
    let leading = (x.magnitude() >> beyond).iter_u64_digits().next().unwrap_or(1);
    beyond as f64 + (leading as f64).log2()
}

/// Converts a float to an integer; fails for NaN and the infinities.
fn exact(name: &str, float: f64) -> Answer {
    const BEYOND: f64 = 9_223_372_036_854_775_808.0;
    if (-BEYOND..BEYOND).contains(&float) {
        Ok(Value::Int(float as i64))
    } else if float.is_finite() {
        Ok(Value::from(crate::order::exact_integer(float)))
    } else {
        Err(fault(
            "invalid-argument",
            format!("`{name}`: {} is not an integer", shown(&Value::Float(float))),
        ))
    }
}

fn rounded(name: &str, x: &Value, function: fn(f64) -> f64) -> Answer {
    match x {
        Value::Float(f) => exact(name, function(*f)),
        x if is_number(x) => Ok(x.clone()),
        other => Err(wrong(name, "a number", other)),
    }
}

/// `(round x)` to an integer, halves upwards; `(round x digits)` to a float.
fn round(_: &mut Context, args: &mut [Value]) -> Answer {
    let up = |x: f64| if x - x.floor() >= 0.5 { x.floor() + 1.0 } else { x.floor() };
    match args {
        [x] => rounded("round", x, up),
        [x, digits] => {
            let digits = int_of("round", digits)?.clamp(-300, 300);
            let Some(x) = float_of(x) else { return Err(wrong("round", "a number", x)) };
            if digits >= 0 && x.is_finite() {
                // The decimal text is rounded, so that 2.675 is treated as written.
                let text = format!("{x:.*}", digits as usize);
                return Ok(Value::Float(text.parse().unwrap_or(x)));
            }
            let scale = 10_f64.powi(-(digits as i32));
            Ok(Value::Float(up(x / scale) * scale))
        }
        _ => Ok(Value::Nil),
    }
}

fn is_odd(name: &str, x: &Value) -> Result<bool, Box<Fault>> {
    match x {
        Value::Int(i) => Ok(i & 1 == 1),
        Value::BigInt(big) => Ok(big.get().bit(0)),
        other => Err(wrong(name, "an integer", other)),
    }
}

fn sign_is(name: &str, x: &Value, wanted: Ordering) -> Answer {
    if !is_number(x) {
        return Err(wrong(name, "a number", x));
    }
    Ok(Value::Bool(compare_ordered(name, x, &Value::Int(0))? == Some(wanted)))
}

fn int(name: &str, x: &Value) -> Answer {
    match x {
        Value::Float(f) => exact(name, f.trunc()),
        Value::Int(_) | Value::BigInt(_) => Ok(x.clone()),
        Value::Str(_) => match parse(x)? {
            Some(Value::Float(f)) => exact(name, f.trunc()),
            Some(n) => Ok(n),
            None => Err(fault("invalid-argument", format!("`{name}`: {} is not a number", shown(x)))),
        },
        other => Err(wrong(name, "a number or a string", other)),
    }
}

fn float(_: &mut Context, x: &Value) -> Answer {
    match x {
        Value::Str(_) => {
            parse(x)?.as_ref().and_then(float_of).map(Value::Float).ok_or_else(|| {
                fault("invalid-argument", format!("`float`: {} is not a number", shown(x)))
            })
        }
        other => float_of(other)
            .map(Value::Float)
            .ok_or_else(|| wrong("float", "a number or a string", other)),
    }
}

fn number(_: &mut Context, x: &Value) -> Answer {
    match x {
        x if is_number(x) => Ok(x.clone()),
        Value::Str(_) => parse(x)?
            .ok_or_else(|| fault("invalid-argument", format!("`number`: {} is not a number", shown(x)))),
        other => Err(wrong("number", "a number or a string", other)),
    }
}

/// Parses an integer: digits with an optional sign. Other notations such as `1_000` and `0xff` are
/// accepted in programs but not here.
fn parse_int(_: &mut Context, x: &Value) -> Answer {
    let text = super::text_of("parse-int", x)?;
    let digits = text.strip_prefix(['-', '+']).unwrap_or(text);
    if digits.is_empty() || digits.len() > 300_000 || !digits.bytes().all(|byte| byte.is_ascii_digit()) {
        return Ok(Value::Nil);
    }
    Ok(crate::syntax::parse_integer(text).unwrap_or_default())
}

/// Parses a float: digits with an optional point among, before or after them, and an optional exponent.
fn parse_float(_: &mut Context, x: &Value) -> Answer {
    let text = super::text_of("parse-float", x)?;
    let is_plain =
        text.bytes().all(|byte| matches!(byte, b'0'..=b'9' | b'.' | b'e' | b'E' | b'+' | b'-'));
    Ok(if is_plain { text.parse().map_or(Value::Nil, Value::Float) } else { Value::Nil })
}

/// Parses the number that a string contains, in the notation of programs.
fn parse(x: &Value) -> Result<Option<Value>, Box<Fault>> {
    let Value::Str(text) = x else {
        return Err(wrong("parse", "a string", x));
    };
    let text = text.as_str().trim();
    if text.len() > 300_000 {
        return Ok(None);
    }
    Ok(crate::syntax::parse_integer(text).or_else(|| crate::syntax::parse_float(text).map(Value::Float)))
}

fn bits(
    name: &str,
    args: &mut [Value],
    small: fn(i64, i64) -> i64,
    big: fn(BigInt, BigInt) -> BigInt,
) -> Answer {
    let mut value = args[0].clone();
    for arg in &args[1..] {
        value = match (&value, arg) {
            (Value::Int(a), Value::Int(b)) => Value::Int(small(*a, *b)),
            (a, b) => match (big_of(a), big_of(b)) {
                (Some(a), Some(b)) => Value::from(big(a, b)),
                (None, _) => return Err(wrong(name, "integers", a)),
                _ => return Err(wrong(name, "integers", b)),
            },
        };
    }
    if big_of(&value).is_none() {
        return Err(wrong(name, "integers", &value));
    }
    Ok(value)
}

fn shift(_: &mut Context, name: &str, x: &Value, n: &Value, left: bool) -> Answer {
    let Some(x) = big_of(x) else { return Err(wrong(name, "integers", x)) };
    let by = int_of(name, n)?;
    if by < 0 {
        return Err(fault("invalid-argument", format!("`{name}`: cannot shift by {by}")));
    }
    if !left {
        return Ok(Value::from(x >> by.min(MAX_BITS as i64 * 2) as usize));
    }
    if x.sign() != Sign::NoSign && x.bits().saturating_add(by as u64) > MAX_BITS {
        return Err(too_big());
    }
    Ok(Value::from(if x.sign() == Sign::NoSign { x } else { x << by as usize }))
}

fn factorial(context: &mut Context, x: &Value) -> Answer {
    let n = int_of("factorial", x)?;
    if n < 0 {
        return Err(fault("invalid-argument", format!("`factorial`: {n} is negative")));
    }
    // 20,000! has 256,909 bits.
    if n > 20_000 {
        return Err(too_big());
    }
    context.cost += (n * n / 4_096) as u64;
    Ok(Value::from((1..=n).fold(BigInt::from(1), |product, i| product * i)))
}

fn gcd(context: &mut Context, args: &mut [Value]) -> Answer {
    /// The maximum size of the smaller number. The search takes a step for each of its digits, and each
    /// step processes all digits.
    const MAX_SMALLER: u64 = 1 << 16;
    let mut result = BigInt::from(0);
    for arg in args.iter() {
        let Some(mut b) = big_of(arg) else { return Err(wrong("gcd", "integers", arg)) };
        let mut a = result;
        let smaller = a.bits().min(b.bits());
        if smaller > MAX_SMALLER {
            let message = format!("`gcd` takes no two integers of more than {MAX_SMALLER} bits");
            return Err(Error::limit("integer", message).into());
        }
        context.cost += smaller * (smaller / 64) / 64;
        while b.sign() != Sign::NoSign {
            let rest = &a % &b;
            (a, b) = (b, rest);
        }
        result = BigInt::from(a.magnitude().clone());
    }
    Ok(Value::from(result))
}

fn all(
    context: &mut Context,
    args: &[Value],
    test: fn(&mut Context, &Value, &Value) -> Result<bool, Box<Fault>>,
) -> Answer {
    for pair in args.windows(2) {
        if !test(context, &pair[0], &pair[1])? {
            return Ok(Value::Bool(false));
        }
    }
    Ok(Value::Bool(true))
}

fn not_equal(context: &mut Context, args: &mut [Value]) -> Answer {
    let equal = all(context, args, equal)?;
    Ok(Value::Bool(!equal.is_truthy()))
}

/// Implements `==`: numbers of any kind by value; else like `=`.
fn loosely_equal(context: &mut Context, a: &Value, b: &Value) -> Result<bool, Box<Fault>> {
    if is_number(a) && is_number(b) {
        Ok(numeric_cmp(a, b) == Some(Ordering::Equal))
    } else {
        equal(context, a, b)
    }
}

fn ordered(name: &str, args: &[Value], test: fn(Ordering) -> bool) -> Answer {
    if let [one] = args {
        return Ok(Value::Bool(!matches!(one, Value::Float(f) if f.is_nan())));
    }
    for pair in args.windows(2) {
        if !compare_ordered(name, &pair[0], &pair[1])?.is_some_and(test) {
            return Ok(Value::Bool(false));
        }
    }
    Ok(Value::Bool(true))
}

fn identical(a: &Value, b: &Value) -> bool {
    match (a, b) {
        (Value::Str(a), Value::Str(b)) => match (a.identity(), b.identity()) {
            (Some((a, _)), Some((b, _))) => a == b,
            _ => a == b,
        },
        (Value::Vector(a), Value::Vector(b)) => a.identity().0 == b.identity().0,
        (Value::List(a), Value::List(b)) => a.identity().0 == b.identity().0,
        (Value::Map(a), Value::Map(b)) => a.identity().0 == b.identity().0,
        (Value::Set(a), Value::Set(b)) => a.identity().0 == b.identity().0,
        (Value::Seq(a), Value::Seq(b)) => a.is(b),
        (a, b) if a.items().is_some() || b.items().is_some() => false,
        (a, b) => a == b,
    }
}
