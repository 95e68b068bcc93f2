//! Where and why a value is not of a type.

use std::fmt;

use crate::text::excerpt;
use crate::value::Value;

/// As much of a value as a violation shows, in characters.
const SHOWN: usize = 80;
/// As much of a type as a violation shows, in characters.
const SHOWN_EXPECTED: usize = 300;
/// As much of a path as a violation shows, in characters: keys may be of any length.
const MAX_PATH: usize = 200;

/// One place where a value is not of its type:
/// `input.items[3].price: expected [:and :float [:> 0]], got -1`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Violation {
    /// Where, from the root on: `input.items[3].price`.
    pub path: String,
    /// What the type asks for there, mostly in its notation.
    pub expected: String,
    /// What came, in RTFS notation, cut to a readable length; `nothing` if a key is missing.
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

/// Where a check is, as a chain back to the root: nothing is allocated until it is shown.
#[derive(Clone, Copy)]
pub(super) enum Path<'a> {
    Root(&'a str),
    Key(&'a Self, &'a Value),
    Index(&'a Self, usize),
}

impl fmt::Display for Path<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // As long as the path is deep, and so bounded by the depth of values.
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
