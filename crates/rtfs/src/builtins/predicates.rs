//! Predicates on the kind of a value.

use super::{Answer, Entry, one, two};
use crate::error::Error;
use crate::machine::Context;
use crate::machine::typing;
use crate::value::Value;

macro_rules! is {
    ($name:literal, $pattern:pat) => {
        one($name, |_, x| Ok(Value::Bool(matches!(x, $pattern)))).scalar().lazy()
    };
}

pub(super) static ENTRIES: &[Entry] = &[
    is!("nil?", Value::Nil),
    one("some?", |_, x| Ok(Value::Bool(!matches!(x, Value::Nil)))).scalar().lazy(),
    is!("true?", Value::Bool(true)),
    is!("false?", Value::Bool(false)),
    is!("bool?", Value::Bool(_)),
    is!("int?", Value::Int(_) | Value::BigInt(_)),
    is!("float?", Value::Float(_)),
    is!("number?", Value::Int(_) | Value::Float(_) | Value::BigInt(_)),
    is!("string?", Value::Str(_)),
    is!("keyword?", Value::Keyword(_)),
    is!("symbol?", Value::Symbol(_)),
    is!("fn?", Value::Native(_) | Value::Code(_) | Value::Closure(_)),
    is!("vector?", Value::Vector(_)),
    is!("list?", Value::List(_)),
    is!("map?", Value::Map(_)),
    is!("set?", Value::Set(_)),
    is!("coll?", Value::Vector(_) | Value::List(_) | Value::Map(_) | Value::Set(_) | Value::Seq(_)),
    is!("seq?", Value::List(_) | Value::Seq(_)),
    is!("sequential?", Value::Vector(_) | Value::List(_) | Value::Seq(_)),
    is!("instant?", Value::Instant(_)),
    is!("uuid?", Value::Uuid(_)),
    one("nan?", |_, x| Ok(Value::Bool(matches!(x, Value::Float(f) if f.is_nan())))).scalar(),
    one("type-name", |_, x| Ok(x.type_name().into())).lazy(),
    one("%lazy?", |_, x| Ok(Value::Bool(matches!(x, Value::Seq(seq) if seq.realized().is_none()))))
        .scalar()
        .lazy(),
    two("%is", is_of).lazy(),
    two("%check", check).lazy(),
    one("type-of", |_, x| typing::type_of(x)).lazy(),
];

fn is_of(context: &mut Context, x: &Value, ty: &Value) -> Answer {
    let ty = context.type_of_data(ty)?;
    Ok(Value::Bool(typing::admits(&ty, x, &context.types)))
}

fn check(context: &mut Context, x: &Value, ty: &Value) -> Answer {
    let ty = context.type_of_data(ty)?;
    match typing::check(&ty, x, &context.types, "value") {
        Ok(()) => Ok(x.clone()),
        Err(violations) => Err(Error::broken(&violations).into()),
    }
}
