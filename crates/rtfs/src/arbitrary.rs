//! Values for property tests: few scalars, so that equal ones meet, in all shapes.

use proptest::collection::vec;
use proptest::prelude::*;

use crate::{Instant, List, Map, Set, Symbol, Uuid, Value};

/// Returns a scalar; NaN is among them.
pub(crate) fn any_scalar() -> impl Strategy<Value = Value> {
    let edges = [0, 1, -1, i64::MAX, i64::MIN, 1 << 53, (1 << 53) + 1];
    let floats = [0.0, -0.0, 1.0, 0.5, -0.5, 9_223_372_036_854_775_808.0, -9_223_372_036_854_775_808.0]
        .into_iter()
        .chain([9_007_199_254_740_992.0, 1e300, f64::INFINITY, f64::NEG_INFINITY, f64::NAN]);
    let floats: Vec<f64> = floats.collect();
    let big = |n: i128| Value::from(num_bigint::BigInt::from(n));
    let bigs = [1 << 63, (1 << 63) + 1, -(1 << 63) - 1, 1 << 100, -(1 << 100)].map(big).to_vec();
    let texts = ["", "a", "b", "a/b", "z ü"];
    prop_oneof![
        Just(Value::Nil),
        any::<bool>().prop_map(Value::Bool),
        prop::sample::select(edges.to_vec()).prop_map(Value::Int),
        any::<i8>().prop_map(|n| Value::Int(n.into())),
        prop::sample::select(floats).prop_map(Value::Float),
        any::<f64>().prop_map(Value::Float),
        prop::sample::select(bigs),
        prop::sample::select(texts.to_vec()).prop_map(Value::from),
        prop::sample::select(texts.to_vec()).prop_map(Value::keyword),
        prop::sample::select(texts.to_vec()).prop_map(|name| Value::Symbol(Symbol::new(name))),
        (0_i64..3).prop_map(|s| Value::Instant(Instant::from_unix(s, 0).unwrap())),
        (0_u128..3).prop_map(|n| Value::Uuid(Uuid::from_u128(n))),
    ]
}

pub(crate) fn any_value() -> impl Strategy<Value = Value> {
    any_scalar().prop_recursive(3, 24, 6, |inner| {
        let pairs = vec((inner.clone(), inner.clone()), 0..6);
        prop_oneof![
            vec(inner.clone(), 0..4).prop_map(|items| Value::vector(items).unwrap()),
            vec(inner.clone(), 0..4).prop_map(|items| Value::List(List::new(items).unwrap())),
            vec(inner, 0..12).prop_map(|members| {
                let mut set = Set::new();
                for member in members {
                    set.insert(member).unwrap();
                }
                Value::Set(set)
            }),
            pairs.prop_map(|pairs| {
                let mut map = Map::new();
                for (key, value) in pairs {
                    map.insert(key, value).unwrap();
                }
                map.into()
            }),
        ]
    })
}

/// One of few keys that equal themselves.
pub(crate) fn any_key() -> impl Strategy<Value = Value> {
    prop_oneof![
        (0_i64..30).prop_map(Value::Int),
        (0_i64..6).prop_map(|n| Value::keyword(format!("k{n}"))),
        (0_i64..6).prop_map(|n| Value::from(format!("k{n}"))),
        (0_i64..4).prop_map(|n| Value::Float(n as f64)),
        (0_i64..4).prop_map(|n| Value::vector(vec![Value::Int(n)]).unwrap()),
    ]
}
