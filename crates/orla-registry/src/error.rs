//! Errors of built-ins.

use std::fmt;

use rtfs::Value;

/// The maximum number of characters of a value in an error.
const SHOWN: usize = 80;

/// The reason why a built-in returned no value, in a sentence that names the argument concerned.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum BuiltinError {
    /// An argument is missing, unknown, or of the wrong type.
    #[error("{argument}: expected {expected}, got {got}")]
    Argument {
        /// The argument, and the place in it: `numbers[2]`.
        argument: String,
        /// The expected type.
        expected: String,
        /// The actual value, cut to a readable length.
        got: String,
    },
    /// An argument has the right type, but the function cannot process its value.
    #[error("{argument}: {problem}")]
    Content {
        /// The argument, and the place in it.
        argument: String,
        /// The problem.
        problem: String,
    },
    /// The function has no value for these arguments, such as a quotient by zero.
    #[error("{0}")]
    Undefined(String),
    /// The input, the output or the work exceeds a limit.
    #[error("{what} would be more than {limit}")]
    Limit {
        /// The limited quantity.
        what: String,
        /// The limit, with its unit.
        limit: String,
    },
}

impl BuiltinError {
    pub(crate) fn argument(
        argument: impl Into<String>,
        expected: impl Into<String>,
        got: &Value,
    ) -> Self {
        Self::Argument { argument: argument.into(), expected: expected.into(), got: shown(got) }
    }

    pub(crate) fn missing(argument: impl Into<String>, expected: impl Into<String>) -> Self {
        let (argument, expected) = (argument.into(), expected.into());
        Self::Argument { argument, expected, got: "nothing".to_owned() }
    }

    pub(crate) fn content(argument: impl Into<String>, problem: impl fmt::Display) -> Self {
        Self::Content { argument: argument.into(), problem: rtfs::text::excerpt(problem, 500) }
    }

    pub(crate) fn undefined(problem: impl Into<String>) -> Self {
        Self::Undefined(problem.into())
    }

    pub(crate) fn limit(what: impl Into<String>, limit: impl fmt::Display) -> Self {
        Self::Limit { what: what.into(), limit: limit.to_string() }
    }
}

/// Returns the beginning of the output of `pr-str`; the rest of the value is not read.
pub(crate) fn shown(value: &Value) -> String {
    rtfs::text::excerpt(format_args!("{value:?}"), SHOWN)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn shows_the_beginning_of_a_value_and_says_that_there_is_more() {
        assert_eq!(shown(&"a".into()), "\"a\"");
        let long = Value::from("x".repeat(1_000));
        assert_eq!(shown(&long), format!("\"{}…", "x".repeat(SHOWN - 1)));
    }
}
