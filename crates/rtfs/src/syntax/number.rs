//! Tokens that are numbers.

use crate::value::Value;

/// Returns the number that a token is; `None` for any other token.
pub(super) fn number(token: &str) -> Option<Value> {
    parse_integer(token).or_else(|| parse_float(token).map(Value::Float))
}

/// `42`, `-7`, `0xff`, `1_000`: of any size.
pub(crate) fn parse_integer(token: &str) -> Option<Value> {
    let (negative, digits) = sign(token);
    let (radix, digits) = match digits.as_bytes() {
        [b'0', b'x' | b'X', ..] => (16, &digits[2..]),
        _ => (10, digits),
    };
    if !well_formed(digits, |byte| (byte as char).is_digit(radix)) {
        return None;
    }
    if digits.len() <= 15 {
        let add = |n: i64, byte: u8| {
            n * i64::from(radix) + i64::from((byte as char).to_digit(radix).unwrap_or(0))
        };
        let n = digits.bytes().filter(|&byte| byte != b'_').fold(0, add);
        return Some(Value::Int(if negative { -n } else { n }));
    }
    let digits: Vec<u8> = digits.bytes().filter(|&byte| byte != b'_').collect();
    let big = num_bigint::BigInt::parse_bytes(&digits, radix)?;
    Some(Value::from(if negative { -big } else { big }))
}

/// `1.5`, `-0.0`, `1e3`: with a point between digits, an exponent, or both.
pub(crate) fn parse_float(token: &str) -> Option<f64> {
    let (_, unsigned) = sign(token);
    let (mantissa, exponent) = match unsigned.find(['e', 'E']) {
        Some(at) => (&unsigned[..at], Some(&unsigned[at + 1..])),
        None => (unsigned, None),
    };
    let digits = |text: &str| well_formed(text, |byte| byte.is_ascii_digit());
    let valid = match mantissa.split_once('.') {
        Some((whole, fraction)) => digits(whole) && digits(fraction),
        None => digits(mantissa),
    };
    if !valid || !exponent.is_none_or(|exponent| digits(sign(exponent).1)) {
        return None;
    }
    if token.contains('_') { token.replace('_', "").parse().ok() } else { token.parse().ok() }
}

fn sign(token: &str) -> (bool, &str) {
    match token.as_bytes() {
        [b'-', ..] => (true, &token[1..]),
        [b'+', ..] => (false, &token[1..]),
        _ => (false, token),
    }
}

/// Digits, with single underscores between them only.
fn well_formed(digits: &str, is_digit: impl Fn(u8) -> bool) -> bool {
    let mut after_digit = false;
    for byte in digits.bytes() {
        match byte {
            b'_' if after_digit => after_digit = false,
            byte if is_digit(byte) => after_digit = true,
            _ => return false,
        }
    }
    after_digit
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn numbers_are_exact() {
        let cases = [
            ("42", "42"),
            ("-7", "-7"),
            ("+7", "7"),
            ("0xff", "255"),
            ("-0xFF", "-255"),
            ("1_000_000", "1000000"),
            ("9223372036854775807", "9223372036854775807"),
            ("-9223372036854775808", "-9223372036854775808"),
            ("123456789012345678901234567890", "123456789012345678901234567890"),
            ("0xffffffffffffffffff", "4722366482869645213695"),
            ("1.5", "1.5"),
            ("-0.0", "-0.0"),
            ("1e3", "1000.0"),
            ("6.02e23", "6.02e23"),
            ("1_0.5_0", "10.5"),
        ];
        for (token, printed) in cases {
            assert_eq!(number(token).unwrap().pr_str(), printed, "{token}");
        }
        for token in ["", "-", "1_", "_1", "1__0", "1.", ".5", "0x", "1e", "1e+", "12x", "1.2.3", "0xg"]
        {
            assert_eq!(number(token), None, "{token}");
        }
    }

    proptest! {
        #[test]
        fn any_float_is_read_as_it_was_printed(float: f64) {
            prop_assume!(float.is_finite());
            let read = number(&Value::Float(float).pr_str());
            prop_assert_eq!(read, Some(Value::Float(float)));
        }
    }
}
