//! The place and reason of a type violation.

use std::fmt;

use crate::text::excerpt;
use crate::value::Value;

/// The maximum number of characters of a value in a violation.
const SHOWN: usize = 80;
/// The maximum number of characters of a type in a violation.
const SHOWN_EXPECTED: usize = 300;
/// The maximum number of characters of a path in a violation: keys may be of any length.
const MAX_PATH: usize = 200;

/// One place where a value does not have its type: `input.items[3].price: expected [:and :float [:> 0]],
/// got -1`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Violation {
    /// The path from the root: `input.items[3].price`.
    pub path: String,
    /// The requirement of the type, usually in its notation.
    pub expected: String,
    /// The actual value, in RTFS notation, cut to a readable length; `nothing` if a key is missing.
    pub got: String,
}

impl fmt::Display for Violation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: expected {}, got {}", self.path, self.expected, self.got)
    }
}

impl Violation {
    pub(super) fn new(path: Path<'_>, expected: impl fmt::Display, got: Option<&Value>) -> Self {
        let got =
            got.map_or_else(|| "nothing".to_owned(), |got| excerpt(format_args!("{got:?}"), SHOWN));
        let path = excerpt(path, MAX_PATH);
        Self { path, expected: excerpt(expected, SHOWN_EXPECTED), got }
    }
}

/// The path of a check, as a chain back to the root. Nothing is allocated until it is shown.
#[derive(Clone, Copy)]
pub(super) enum Path<'a> {
    Root(&'a str),
    Key(&'a Self, &'a Value),
    Index(&'a Self, usize),
}

impl fmt::Display for Path<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // The length is the depth of the path, and so bounded by the depth of values.
        let mut steps = vec![self];
        while let Some(Self::Key(outer, _) | Self::Index(outer, _)) = steps.last() {
            steps.push(outer);
        }
        steps.into_iter().rev().try_for_each(|step| match step {
            Self::Root(root) => f.write_str(root),
            Self::Index(_, index) => write!(f, "[{index}]"),
            Self::Key(_, Value::Keyword(keyword)) if is_plain(keyword.name()) => {
                write!(f, ".{}", keyword.name())
            }
            Self::Key(_, Value::Keyword(keyword)) => write!(f, "[{:?}]", Value::from(keyword.name())),
            Self::Key(_, key) => write!(f, "[{key:?}]"),
        })
    }
}

fn is_plain(name: &str) -> bool {
    let inside = |c: char| c.is_alphanumeric() || matches!(c, '_' | '-' | '$');
    !name.is_empty() && name.chars().all(inside)
}
