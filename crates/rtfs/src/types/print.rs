//! Types as text, in the notation that [`TypeExpr::parse`] reads.

use std::fmt::{self, Write};

use super::{Field, MapType, Predicate, Primitive, TypeExpr};
use crate::print::keyword_into;
use crate::scalar::Uuid;
use crate::value::Value;

impl fmt::Display for TypeExpr {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Primitive(primitive) => write!(f, ":{}", primitive.name()),
            Self::Union(types) => match types.as_slice() {
                [ty @ Self::Primitive(_), Self::Primitive(Primitive::Nil)] => write!(f, "{ty}?"),
                types => form(f, "union", types),
            },
            Self::Vector(item) => write!(f, "[:vector {item}]"),
            Self::List(item) => write!(f, "[:list {item}]"),
            Self::Set(item) => write!(f, "[:set {item}]"),
            Self::Tuple(items) => form(f, "tuple", items),
            Self::Stream(item) => write!(f, "[:stream {item}]"),
            Self::Array { item, shape } => {
                let sizes = shape.iter().map(|size| size.map_or("?".to_owned(), |n| n.to_string()));
                write!(f, "[:array {item} [{}]]", sizes.collect::<Vec<_>>().join(" "))
            }
            Self::Map(map) => map.fmt(f),
            Self::MapOf(key, value) => write!(f, "[:map-of {key} {value}]"),
            Self::Enum(values) => values_form(f, "enum", values),
            Self::Val(value) => write!(f, "[:val {value:?}]"),
            Self::And(ty, predicates) => {
                write!(f, "[:and {ty}")?;
                predicates.iter().try_for_each(|predicate| write!(f, " {predicate}"))?;
                f.write_char(']')
            }
            Self::Not(ty) => write!(f, "[:not {ty}]"),
            Self::Fn { params, rest, result } => {
                let mut params: Vec<_> = params.iter().map(ToString::to_string).collect();
                params.extend(rest.iter().map(|rest| format!("& {rest}")));
                write!(f, "[:fn [{}] {result}]", params.join(" "))
            }
            Self::Ref(name) if is_symbol(name) => write!(f, "[:ref {name}]"),
            Self::Ref(name) => write!(f, "[:ref {:?}]", Value::from(&**name)),
            Self::Defined { ty, .. } => ty.fmt(f),
            Self::JsonSchema { meaning, .. } => fmt::Display::fmt(&**meaning, f),
        }
    }
}

impl fmt::Display for MapType {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("[:map")?;
        for Field { key, ty, optional } in &self.fields {
            match quoted_key(key) {
                true => write!(f, " [[:val {key:?}] {ty}")?,
                false => write!(f, " [{key:?} {ty}")?,
            }
            f.write_str(if *optional { " ?]" } else { "]" })?;
        }
        if let Some(others) = &self.others {
            write!(f, " [:* {others}]")?;
        }
        f.write_char(']')
    }
}

impl fmt::Display for Predicate {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::GreaterThan(x) => write!(f, "[:> {x:?}]"),
            Self::AtLeast(x) => write!(f, "[:>= {x:?}]"),
            Self::LessThan(x) => write!(f, "[:< {x:?}]"),
            Self::AtMost(x) => write!(f, "[:<= {x:?}]"),
            Self::Equals(x) => write!(f, "[:= {x:?}]"),
            Self::Differs(x) => write!(f, "[:!= {x:?}]"),
            Self::InRange(from, to) => write!(f, "[:in-range {from:?} {to:?}]"),
            Self::MultipleOf(x) => write!(f, "[:multiple-of {x:?}]"),
            Self::MinLength(n) => write!(f, "[:min-length {n}]"),
            Self::MaxLength(n) => write!(f, "[:max-length {n}]"),
            Self::Length(n) => write!(f, "[:length {n}]"),
            Self::MatchesRegex(regex) => write!(f, "[:matches-regex {:?}]", Value::from(regex.as_str())),
            Self::MinCount(n) => write!(f, "[:min-count {n}]"),
            Self::MaxCount(n) => write!(f, "[:max-count {n}]"),
            Self::Count(n) => write!(f, "[:count {n}]"),
            Self::NonEmpty => f.write_str("[:non-empty]"),
            Self::Unique => f.write_str("[:unique]"),
            Self::HasKey(key) => write!(f, "[:has-key {key:?}]"),
            Self::RequiredKeys(keys) => {
                f.write_str("[:required-keys ")?;
                values_form(f, "", keys)?;
                f.write_char(']')
            }
            Self::IsUrl => f.write_str("[:is-url]"),
            Self::IsEmail => f.write_str("[:is-email]"),
            Self::IsUuid => f.write_str("[:is-uuid]"),
            Self::IsDate => f.write_str("[:is-date]"),
            Self::Format(name) => write!(f, "[:format {:?}]", Value::from(&**name)),
        }
    }
}

/// Returns whether a key must be quoted to be unambiguous: `:*`, and keys that look like quotes.
fn quoted_key(key: &Value) -> bool {
    match key {
        Value::Keyword(keyword) => keyword.name() == "*",
        Value::Vector(_) => true,
        _ => false,
    }
}

/// Returns whether a name can be written as a bare symbol. The check is deliberately strict: quotes are
/// always valid.
fn is_symbol(name: &str) -> bool {
    let inside = |c: char| c.is_alphanumeric() || "*+!-_<>=&%$./".contains(c);
    name.starts_with(char::is_alphabetic)
        && name.chars().all(inside)
        && !["nil", "true", "false"].contains(&name)
        && Uuid::parse(name).is_none()
}

/// `[:name A B]`
fn form(f: &mut fmt::Formatter<'_>, name: &str, types: &[TypeExpr]) -> fmt::Result {
    write!(f, "[:{name}")?;
    types.iter().try_for_each(|ty| write!(f, " {ty}"))?;
    f.write_char(']')
}

/// `[:name a b]`, or `[a b]` without a name.
fn values_form(f: &mut fmt::Formatter<'_>, name: &str, values: &[Value]) -> fmt::Result {
    f.write_char('[')?;
    if !name.is_empty() {
        keyword_into(f, name)?;
    }
    for (i, value) in values.iter().enumerate() {
        let space = if i == 0 && name.is_empty() { "" } else { " " };
        write!(f, "{space}{value:?}")?;
    }
    f.write_char(']')
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn prints_in_the_notation_of_rtfs() {
        let int = || TypeExpr::from(Primitive::Int);
        let string = || TypeExpr::from(Primitive::String);
        let field = |key: Value, ty, optional| Field { key, ty, optional };
        let and = |ty, predicates| TypeExpr::And(Box::new(ty), predicates);
        let cases = [
            (TypeExpr::ANY, ":any"),
            (int().optional(), ":int?"),
            (TypeExpr::Vector(Box::new(int())).optional(), "[:union [:vector :int] :nil]"),
            (TypeExpr::Union(vec![int(), string()]), "[:union :int :string]"),
            (TypeExpr::List(Box::new(int())), "[:list :int]"),
            (TypeExpr::Set(Box::new(int())), "[:set :int]"),
            (TypeExpr::Stream(Box::new(int())), "[:stream :int]"),
            (TypeExpr::Tuple(vec![int(), string()]), "[:tuple :int :string]"),
            (TypeExpr::Tuple(vec![]), "[:tuple]"),
            (
                TypeExpr::Array { item: Box::new(int()), shape: vec![Some(3), None] },
                "[:array :int [3 ?]]",
            ),
            (
                TypeExpr::Map(MapType {
                    fields: vec![
                        field(Value::keyword("name"), string(), false),
                        field("odd".into(), int(), true),
                    ],
                    others: Some(Box::new(Primitive::Never.into())),
                }),
                r#"[:map [:name :string] ["odd" :int ?] [:* :never]]"#,
            ),
            (TypeExpr::Map(MapType::default()), "[:map]"),
            (TypeExpr::MapOf(Box::new(string()), Box::new(int())), "[:map-of :string :int]"),
            (TypeExpr::Enum(vec![Value::keyword("a"), "b".into(), 3.into()]), r#"[:enum :a "b" 3]"#),
            (TypeExpr::Val(3.into()), "[:val 3]"),
            (TypeExpr::Not(Box::new(int())), "[:not :int]"),
            (
                TypeExpr::Fn {
                    params: vec![int(), string()],
                    rest: Some(Box::new(int())),
                    result: Box::new(string()),
                },
                "[:fn [:int :string & :int] :string]",
            ),
            (TypeExpr::Ref("Tree".into()), "[:ref Tree]"),
            (TypeExpr::Ref("#/a b".into()), "[:ref \"#/a b\"]"),
            (int().with_json_schema("{}".into()), ":int"),
            (
                and(
                    int(),
                    vec![
                        Predicate::GreaterThan(0.into()),
                        Predicate::AtLeast(1.into()),
                        Predicate::LessThan(9.into()),
                        Predicate::AtMost(8.into()),
                        Predicate::Equals(2.into()),
                        Predicate::Differs(3.into()),
                        Predicate::InRange(1.into(), 2.into()),
                        Predicate::MultipleOf(2.into()),
                    ],
                ),
                "[:and :int [:> 0] [:>= 1] [:< 9] [:<= 8] [:= 2] [:!= 3] [:in-range 1 2] [:multiple-of 2]]",
            ),
            (
                and(
                    string(),
                    vec![
                        Predicate::MinLength(1),
                        Predicate::MaxLength(9),
                        Predicate::Length(3),
                        Predicate::MatchesRegex("^\"a\"$".into()),
                        Predicate::IsUrl,
                        Predicate::IsEmail,
                        Predicate::IsUuid,
                        Predicate::IsDate,
                        Predicate::Format("ipv4".into()),
                    ],
                ),
                r#"[:and :string [:min-length 1] [:max-length 9] [:length 3] [:matches-regex "^\"a\"$"] [:is-url] [:is-email] [:is-uuid] [:is-date] [:format "ipv4"]]"#,
            ),
            (
                and(
                    TypeExpr::ANY,
                    vec![
                        Predicate::MinCount(1),
                        Predicate::MaxCount(2),
                        Predicate::Count(2),
                        Predicate::NonEmpty,
                        Predicate::Unique,
                        Predicate::HasKey(Value::keyword("k")),
                        Predicate::RequiredKeys(vec![Value::keyword("a"), Value::keyword("b")]),
                    ],
                ),
                "[:and :any [:min-count 1] [:max-count 2] [:count 2] [:non-empty] [:unique] [:has-key :k] [:required-keys [:a :b]]]",
            ),
        ];
        for (ty, notation) in cases {
            assert_eq!(ty.to_string(), notation);
        }
    }
}
