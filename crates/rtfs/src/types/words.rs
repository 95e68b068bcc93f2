//! Describes types in words, for users who do not know the notation.

use super::{Predicate, Primitive, TypeExpr};
use crate::value::Value;

impl TypeExpr {
    /// Returns a description of the values of this type: `an integer from 1 to 7`. A type whose notation
    /// is clearer, such as a named type, has no description.
    pub fn in_words(&self) -> Option<String> {
        let text = match self {
            Self::Primitive(primitive) => primitive_in_words(*primitive).to_owned(),
            Self::Union(types) => {
                let types = types.iter().map(Self::in_words).collect::<Option<Vec<String>>>()?;
                // Alternatives with the same description are distinguished only by the notation.
                let reads_alike = |(at, words): (usize, &String)| types[..at].contains(words);
                if types.iter().enumerate().any(reads_alike) {
                    return None;
                }
                types.join(" or ")
            }
            Self::Vector(_) | Self::List(_) => "an array".to_owned(),
            Self::Set(_) => "a set".to_owned(),
            Self::Tuple(types) => format!("an array of {}", counted(types.len() as u64, "item")),
            Self::Map(_) | Self::MapOf(..) => "an object".to_owned(),
            Self::Enum(values) => format!("one of {}", list(values)),
            Self::Val(value) => format!("{value:?}"),
            Self::And(base, predicates) => {
                let predicates: Vec<String> = predicates.iter().map(Predicate::in_words).collect();
                format!("{} {}", base.in_words()?, predicates.join(" and "))
            }
            Self::Defined { ty, .. } => ty.in_words()?,
            Self::Stream(_)
            | Self::Array { .. }
            | Self::Not(_)
            | Self::Fn { .. }
            | Self::Ref(_)
            | Self::JsonSchema { .. } => {
                return None;
            }
        };
        Some(text)
    }
}

fn primitive_in_words(primitive: Primitive) -> &'static str {
    match primitive {
        Primitive::Any => "a value",
        Primitive::Never => "no value",
        Primitive::Nil => "null",
        Primitive::Bool => "true or false",
        Primitive::Int => "an integer",
        Primitive::Float => "a float",
        Primitive::Number => "a number",
        Primitive::String => "a string",
        Primitive::Keyword => "a keyword",
        Primitive::Symbol => "a symbol",
        Primitive::Instant => "a date with a time",
        Primitive::Uuid => "a UUID",
        Primitive::Fn => "a function",
    }
}

impl Predicate {
    /// Returns the condition in words that follow those of a type: `a number` `above 0`.
    fn in_words(&self) -> String {
        match self {
            Self::GreaterThan(x) => format!("above {x:?}"),
            Self::AtLeast(x) => format!("of at least {x:?}"),
            Self::LessThan(x) => format!("below {x:?}"),
            Self::AtMost(x) => format!("of at most {x:?}"),
            Self::Equals(x) => format!("equal to {x:?}"),
            Self::Differs(x) => format!("other than {x:?}"),
            Self::InRange(from, to) => format!("from {from:?} to {to:?}"),
            Self::MultipleOf(x) => format!("that is a multiple of {x:?}"),
            Self::MinLength(n) => format!("of at least {}", counted(*n, "character")),
            Self::MaxLength(n) => format!("of at most {}", counted(*n, "character")),
            Self::Length(n) => format!("of {}", counted(*n, "character")),
            Self::MatchesRegex(pattern) => format!("that matches /{}/", pattern.as_str()),
            Self::MinCount(n) => format!("of at least {}", counted(*n, "item")),
            Self::MaxCount(n) => format!("of at most {}", counted(*n, "item")),
            Self::Count(n) => format!("of {}", counted(*n, "item")),
            Self::NonEmpty => "that is not empty".to_owned(),
            Self::Unique => "of items that all differ".to_owned(),
            Self::HasKey(key) => format!("with the key {key:?}"),
            Self::RequiredKeys(keys) => format!("with the keys {}", list(keys)),
            Self::IsUrl => "that is a URL".to_owned(),
            Self::IsEmail => "that is an email address".to_owned(),
            Self::IsUuid => "that is a UUID".to_owned(),
            Self::IsDate => "that is a date".to_owned(),
            Self::Format(format) => format!("of the format {format}"),
        }
    }
}

fn list(values: &[Value]) -> String {
    values.iter().map(|value| format!("{value:?}")).collect::<Vec<_>>().join(", ")
}

fn counted(count: u64, what: &str) -> String {
    format!("{count} {what}{}", if count == 1 { "" } else { "s" })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_type_is_described_in_words() {
        let cases = [
            (":number", Some("a number")),
            (":string?", Some("a string or null")),
            ("[:vector :number]", Some("an array")),
            ("[:and [:vector :number] [:max-count 3]]", Some("an array of at most 3 items")),
            ("[:and :int [:in-range 1 7]]", Some("an integer from 1 to 7")),
            (
                "[:and :string [:min-length 1] [:is-email]]",
                Some("a string of at least 1 character and that is an email address"),
            ),
            ("[:enum \"a\" 3]", Some("one of \"a\", 3")),
            ("[:map [:a :int]]", Some("an object")),
            ("[:not :int]", None),
            ("[:array :int [3]]", None),
            ("[:union [:map [:a :int]] [:map [:b :int]]]", None),
        ];
        for (ty, words) in cases {
            assert_eq!(ty.parse::<TypeExpr>().unwrap().in_words().as_deref(), words, "{ty}");
        }
    }
}
