//! The total order of values.

use std::cmp::Ordering;

use num_bigint::Sign;

use crate::value::Value;

impl Value {
    /// Returns the order of `compare` and `sort`, which orders any two values: nil, booleans, numbers,
    /// strings, keywords, symbols, instants, UUIDs, vectors and lists, sets, maps.
    ///
    /// Numbers are ordered by their exact mathematical value, of any kind, so `1` and `1.0`
    /// tie; NaN comes after all others and ties with itself. Strings and names go by code point,
    /// vectors and lists by length and then item by item, sets and maps by length and then by their
    /// sorted members. Values that are equal tie.
    pub fn compare(&self, other: &Self) -> Ordering {
        match (self, other) {
            (Self::Bool(a), Self::Bool(b)) => a.cmp(b),
            (Self::Int(a), Self::Int(b)) => a.cmp(b),
            (Self::Str(a), Self::Str(b)) => a.as_str().cmp(b.as_str()),
            (Self::Keyword(a), Self::Keyword(b)) => a.name().cmp(b.name()),
            (Self::Symbol(a), Self::Symbol(b)) => a.name().cmp(b.name()),
            (Self::Instant(a), Self::Instant(b)) => a.cmp(b),
            (Self::Uuid(a), Self::Uuid(b)) => a.cmp(b),
            (Self::Set(a), Self::Set(b)) => a.compare(b),
            (Self::Map(a), Self::Map(b)) => a.compare(b),
            _ => match (self.items(), other.items()) {
                (Some(a), Some(b)) => {
                    a.len().cmp(&b.len()).then_with(|| compare_in_turn(a.iter().zip(b)))
                }
                _ => compare_numbers(self, other).unwrap_or_else(|| self.rank().cmp(&other.rank())),
            },
        }
    }
}

pub(crate) fn compare_in_turn<'a>(pairs: impl Iterator<Item = (&'a Value, &'a Value)>) -> Ordering {
    pairs.map(|(a, b)| a.compare(b)).find(|order| order.is_ne()).unwrap_or(Ordering::Equal)
}

/// Compares by mathematical value; `None` unless both are numbers.
fn compare_numbers(a: &Value, b: &Value) -> Option<Ordering> {
    Some(match (a, b) {
        (Value::Float(a), Value::Float(b)) => {
            a.partial_cmp(b).unwrap_or_else(|| a.is_nan().cmp(&b.is_nan()))
        }
        (Value::Float(a), b) => compare_with_float(b, *a)?.reverse(),
        (a, Value::Float(b)) => compare_with_float(a, *b)?,
        (Value::Int(a), Value::Int(b)) => a.cmp(b),
        (Value::BigInt(a), Value::BigInt(b)) => a.get().cmp(b.get()),
        // A big integer lies beyond every small one, on its side of zero.
        (Value::Int(_), Value::BigInt(b)) => b.get().sign().cmp(&Sign::NoSign).reverse(),
        (Value::BigInt(a), Value::Int(_)) => a.get().sign().cmp(&Sign::NoSign),
        _ => return None,
    })
}

fn compare_with_float(integer: &Value, float: f64) -> Option<Ordering> {
    /// 2^63, the first float beyond `i64`.
    const BEYOND: f64 = 9_223_372_036_854_775_808.0;
    Some(match integer {
        Value::Int(_) | Value::BigInt(_) if float.is_nan() || float == f64::INFINITY => Ordering::Less,
        Value::Int(_) | Value::BigInt(_) if float == f64::NEG_INFINITY => Ordering::Greater,
        Value::Int(_) if float >= BEYOND => Ordering::Less,
        Value::Int(_) if float < -BEYOND => Ordering::Greater,
        Value::Int(integer) => {
            integer.cmp(&(float.trunc() as i64)).then_with(|| 0.0_f64.total_cmp(&(float.fract() + 0.0)))
        }
        Value::BigInt(big) if (-BEYOND..BEYOND).contains(&float) => big.get().sign().cmp(&Sign::NoSign),
        Value::BigInt(big) => big.get().cmp(&exact_integer(float)),
        _ => return None,
    })
}

/// Converts a float of at least 2^63 in magnitude to an integer.
pub(crate) fn exact_integer(float: f64) -> num_bigint::BigInt {
    let bits = float.to_bits();
    let mantissa = (bits & ((1 << 52) - 1)) | (1 << 52);
    let shift = ((bits >> 52) & 0x7ff) - 1_075;
    let magnitude = num_bigint::BigInt::from(mantissa) << shift;
    if float < 0.0 { -magnitude } else { magnitude }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::arbitrary::{any_scalar, any_value};
    use crate::{Instant, List, Map, Set, Symbol, Uuid};

    proptest! {
        #[test]
        fn any_two_are_ordered_and_equal_ones_tie(a in any_value(), b in any_value()) {
            prop_assert_eq!(a.compare(&b), b.compare(&a).reverse());
            prop_assert_eq!(a.compare(&a), Ordering::Equal);
            prop_assert!(a != b || a.compare(&b).is_eq());
        }

        #[test]
        fn the_order_is_transitive(a in any_value(), b in any_value(), c in any_value()) {
            let mut sorted = [a, b, c];
            sorted.sort_by(Value::compare);
            prop_assert!(sorted[0].compare(&sorted[1]).is_le());
            prop_assert!(sorted[1].compare(&sorted[2]).is_le());
            prop_assert!(sorted[0].compare(&sorted[2]).is_le());
        }

        #[test]
        fn the_order_of_scalars_is_transitive_through_ties(a in any_scalar(), b in any_scalar(), c in any_scalar()) {
            if a.compare(&b).is_eq() {
                prop_assert_eq!(a.compare(&c), b.compare(&c));
            }
        }
    }

    #[test]
    fn everything_has_its_place() {
        let big = |n: i128| Value::from(num_bigint::BigInt::from(n));
        let vector = |items: &[i64]| Value::vector(items.iter().map(|&n| n.into()).collect()).unwrap();
        let set = |members: &[i64]| {
            let mut set = Set::new();
            members.iter().for_each(|&n| assert!(set.insert(n.into()).unwrap()));
            Value::Set(set)
        };
        let map = |entries: &[(i64, i64)]| {
            let mut map = Map::new();
            entries.iter().for_each(|&(k, v)| assert_eq!(map.insert(k.into(), v.into()), Ok(None)));
            Value::from(map)
        };
        let ascending = [
            Value::Nil,
            false.into(),
            true.into(),
            f64::NEG_INFINITY.into(),
            big(-(1 << 100)),
            big(-(1 << 63) - 1),
            i64::MIN.into(),
            (-1.5).into(),
            (-1).into(),
            (-0.5).into(),
            0.into(),
            0.5.into(),
            1.into(),
            9_007_199_254_740_992.0.into(),
            9_007_199_254_740_993_i64.into(),
            i64::MAX.into(),
            9_223_372_036_854_775_808.0.into(),
            big((1 << 63) + 1),
            big(1 << 100),
            1.5e30.into(),
            f64::INFINITY.into(),
            f64::NAN.into(),
            "".into(),
            "Z".into(),
            "a".into(),
            "\u{ffff}".into(),
            "\u{10000}".into(), // by code point, though its first UTF-16 unit is smaller
            Value::keyword("a"),
            Value::keyword("b"),
            Value::Symbol(Symbol::new("a")),
            Value::Instant(Instant::from_unix(-1, 999_999_999).unwrap()),
            Value::Instant(Instant::from_unix(0, 0).unwrap()),
            Value::Uuid(Uuid::from_u128(1)),
            vector(&[]),
            vector(&[9]),
            Value::List(List::new(vec![1.into(), 2.into()]).unwrap()),
            vector(&[1, 3]),
            set(&[]),
            set(&[9]),
            set(&[3, 1]),
            set(&[2, 3]),
            map(&[]),
            map(&[(1, 2)]),
            map(&[(1, 3)]),
            map(&[(2, 0), (1, 0)]),
        ];
        for (i, a) in ascending.iter().enumerate() {
            for (j, b) in ascending.iter().enumerate() {
                assert_eq!(a.compare(b), i.cmp(&j), "{a:?} and {b:?}");
            }
        }
    }

    #[test]
    fn numbers_of_the_same_value_tie_whatever_their_kind() {
        let big: Value = num_bigint::BigInt::from(1_u128 << 100).into();
        for (a, b) in [(1.into(), 1.0.into()), (0.into(), (-0.0).into()), (big, 2_f64.powi(100).into())]
        {
            assert_eq!(a.compare(&b), Ordering::Equal, "{a:?} and {b:?}");
            assert_ne!(a, b);
        }
    }
}
