//! Tokens that are numbers, instants or UUIDs.

use crate::scalar::{Instant, Uuid};
use crate::value::Value;

/// What a token that begins like a number is; `None` if it is none.
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

/// `550e8400-e29b-41d4-a716-446655440000`
pub(super) fn uuid(token: &str) -> Option<Value> {
    let bytes = token.as_bytes();
    if bytes.len() != 36 {
        return None;
    }
    let mut bits = 0_u128;
    for (at, &byte) in bytes.iter().enumerate() {
        match (at, byte) {
            (8 | 13 | 18 | 23, b'-') => {}
            (8 | 13 | 18 | 23, _) => return None,
            _ => bits = bits << 4 | u128::from((byte as char).to_digit(16)?),
        }
    }
    Some(Value::Uuid(Uuid::from_u128(bits)))
}

/// `2026-11-20T10:00:00Z`, with any fraction of a second and with `Z` or an offset such as `+02:00`.
pub(super) fn instant(token: &str) -> Option<Value> {
    let bytes = token.as_bytes();
    if bytes.len() < 20 || bytes[4] != b'-' || bytes[7] != b'-' || !matches!(bytes[10], b'T' | b't') {
        return None;
    }
    let field = |from: usize, len: usize, most: i64| -> Option<i64> {
        let digits = bytes.get(from..from + len)?;
        let number = digits.iter().try_fold(0, |n: i64, digit| {
            digit.is_ascii_digit().then(|| n * 10 + i64::from(digit - b'0'))
        })?;
        (number <= most).then_some(number)
    };
    if bytes[13] != b':' || bytes[16] != b':' {
        return None;
    }
    let (year, month, day) = (field(0, 4, 9_999)?, field(5, 2, 12)?, field(8, 2, 31)?);
    let (hour, minute, second) = (field(11, 2, 23)?, field(14, 2, 59)?, field(17, 2, 59)?);
    let leap = year % 4 == 0 && (year % 100 != 0 || year % 400 == 0);
    let longest = match month {
        2 if leap => 29,
        2 => 28,
        4 | 6 | 9 | 11 => 30,
        _ => 31,
    };
    if month == 0 || day == 0 || day > longest {
        return None;
    }
    let mut at = 19;
    let mut nanoseconds = 0_u32;
    if bytes[at] == b'.' {
        let digits = bytes[at + 1..].iter().take_while(|byte| byte.is_ascii_digit()).count();
        if digits == 0 || digits > 9 {
            return None;
        }
        for place in 0..9 {
            let digit = if place < digits { bytes[at + 1 + place] - b'0' } else { 0 };
            nanoseconds = nanoseconds * 10 + u32::from(digit);
        }
        at += 1 + digits;
    }
    let offset = match bytes.get(at)? {
        b'Z' | b'z' if bytes.len() == at + 1 => 0,
        sign @ (b'+' | b'-') if bytes.len() == at + 6 && bytes[at + 3] == b':' => {
            let minutes = field(at + 1, 2, 23)? * 60 + field(at + 4, 2, 59)?;
            if *sign == b'+' { minutes * 60 } else { -minutes * 60 }
        }
        _ => return None,
    };
    let seconds = days(year, month, day) * 86_400 + hour * 3_600 + minute * 60 + second - offset;
    Instant::from_unix(seconds, nanoseconds).map(Value::Instant)
}

/// Days from 1970-01-01 to a date of the Gregorian calendar.
fn days(year: i64, month: i64, day: i64) -> i64 {
    // Years begin in March here, so that the leap day is their last.
    let year = if month <= 2 { year - 1 } else { year };
    let month = (month + 9) % 12;
    let day_of_year = (153 * month + 2) / 5 + day - 1;
    year * 365 + year.div_euclid(4) - year.div_euclid(100) + year.div_euclid(400) + day_of_year - 719_468
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

    #[test]
    fn instants_and_uuids_print_as_they_are_read() {
        let cases = [
            ("2026-11-20T10:00:00Z", "2026-11-20T10:00:00Z"),
            ("2026-11-20T12:00:00+02:00", "2026-11-20T10:00:00Z"),
            ("2000-02-29T23:59:59.5Z", "2000-02-29T23:59:59.500Z"),
            ("0000-01-01T00:00:00Z", "0000-01-01T00:00:00Z"),
        ];
        for (token, printed) in cases {
            assert_eq!(instant(token).unwrap().pr_str(), printed);
        }
        let wrong = [
            "2026-02-29T10:00:00Z",
            "2026-11-20T10:00:00",
            "2026-13-20T10:00:00Z",
            "2026-11-20T24:00:00Z",
        ];
        for token in wrong {
            assert_eq!(instant(token), None, "{token}");
        }
        let text = "550e8400-e29b-41d4-a716-446655440000";
        assert_eq!(uuid(text).unwrap().pr_str(), text);
    }

    proptest! {
        #[test]
        fn any_instant_is_read_as_it_was_printed(seconds in -62_167_219_200_i64..=253_402_300_799, nanoseconds in 0_u32..1_000_000_000) {
            let value = Value::Instant(Instant::from_unix(seconds, nanoseconds).unwrap());
            prop_assert_eq!(instant(&value.pr_str()), Some(value));
        }

        #[test]
        fn any_float_is_read_as_it_was_printed(float: f64) {
            prop_assume!(float.is_finite());
            let read = number(&Value::Float(float).pr_str());
            prop_assert_eq!(read, Some(Value::Float(float)));
        }
    }
}
