//! Regular expressions of types.

use std::fmt;
use std::sync::{Arc, OnceLock};

use regex::Regex;

/// A regular expression without look-around and back-references, which runs in linear time.
///
/// It is compiled on first use: a catalogue of types may hold thousands, and most of them are only
/// shown. An invalid one matches nothing; [`Pattern::check`] returns the reason.
#[derive(Clone)]
pub struct Pattern(Arc<Inner>);

struct Inner {
    text: Box<str>,
    compiled: OnceLock<Result<Regex, String>>,
}

impl Pattern {
    /// Creates an expression of this text, which may be invalid.
    pub fn new(text: impl Into<Box<str>>) -> Self {
        Self(Arc::new(Inner { text: text.into(), compiled: OnceLock::new() }))
    }

    /// Returns the text of the expression.
    pub fn as_str(&self) -> &str {
        &self.0.text
    }

    /// Returns whether some part of `text` matches.
    pub fn is_match(&self, text: &str) -> bool {
        self.compiled().as_ref().is_ok_and(|regex| regex.is_match(text))
    }

    /// # Errors
    /// Why it is no regular expression, in a few words.
    pub fn check(&self) -> Result<(), &str> {
        self.compiled().as_ref().map(|_| ()).map_err(String::as_str)
    }

    fn compiled(&self) -> &Result<Regex, String> {
        self.0.compiled.get_or_init(|| Regex::new(&self.0.text).map_err(|error| in_a_few_words(&error)))
    }
}

/// Extracts the reason from the message of the crate, which shows the expression over several lines. The
/// last line has the reason.
fn in_a_few_words(error: &regex::Error) -> String {
    match error {
        regex::Error::CompiledTooBig(_) => "it takes too much memory".to_owned(),
        error => {
            let text = error.to_string();
            let last = text.lines().last().unwrap_or_default();
            last.trim_start_matches("error: ").to_owned()
        }
    }
}

impl From<&str> for Pattern {
    fn from(text: &str) -> Self {
        Self::new(text)
    }
}

impl PartialEq for Pattern {
    fn eq(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.0, &other.0) || self.0.text == other.0.text
    }
}

impl fmt::Debug for Pattern {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Pattern({:?})", self.0.text)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn says_why_it_is_no_expression_and_then_matches_nothing() {
        let cases = [
            ("(", "unclosed group"),
            ("(?=x)", "look-around, including look-ahead and look-behind, is not supported"),
            (r"(a)\1", "backreferences are not supported"),
            (r"(\w{500}){500}", "it takes too much memory"),
        ];
        for (text, problem) in cases {
            let pattern = Pattern::new(text);
            assert_eq!((pattern.check(), pattern.is_match("")), (Err(problem), false));
        }
        assert!(Pattern::new("b+").is_match("abc"));
    }
}
