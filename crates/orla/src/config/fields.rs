//! What the readers of larger keys are made of: one value of a kind, or a problem noted with its place.
//!
//! Every method takes the path of the value for the message (`capabilities[2].timeout`) and its node,
//! and gives nothing where there was a problem. What [`Reader::secret`] and [`Reader::secrets`] read is never
//! repeated in a message.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::str::FromStr;
use std::time::Duration;

use orla_document::{Key, Kind as Shape, Node};
use orla_marketplace::id::Pattern;
use orla_process::environment::check_pattern;
use serde_json::Value as Json;

use super::keys;
use super::read::{Reader, shown, unexpected};

/// Says of a name and its value what was expected instead, if anything was.
pub(super) type Check = fn(&str, &str) -> Result<(), &'static str>;

impl Reader<'_> {
    /// The entries of a mapping.
    pub(super) fn pairs<'n>(
        &mut self,
        path: &str,
        node: &'n Node,
        expected: &str,
    ) -> Option<&'n [(Key, Node)]> {
        match &node.kind {
            Shape::Map(pairs) => Some(pairs),
            Shape::Scalar(_) | Shape::List(_) => {
                self.problem(node.at, || format!("{path}{}", unexpected(expected, node)));
                None
            }
        }
    }

    /// A text that is not empty.
    pub(super) fn line(&mut self, path: &str, node: &Node, expected: &str) -> Option<String> {
        let text = self.text_of(node, expected).and_then(|text| match text.trim().is_empty() {
            true => Err(format!(": expected {expected}, got {}", shown(node, &text))),
            false => Ok(text),
        });
        self.noted(path, node, text)
    }

    /// A text; a number or a boolean is one too.
    pub(super) fn word_at(&mut self, path: &str, node: &Node, expected: &str) -> Option<String> {
        let word = self.word(node, expected).and_then(|word| match word.scalar.is_null() {
            true => Err(unexpected(expected, node)),
            false => Ok(word.scalar.text),
        });
        self.noted(path, node, word)
    }

    /// A text that no message repeats.
    pub(super) fn secret(&mut self, path: &str, node: &Node) -> Option<String> {
        let plain = || ": expected text".to_owned();
        let secret = match &node.kind {
            Shape::Scalar(scalar) if !scalar.is_null() => {
                self.word(node, "text").map(|word| word.scalar.text)
            }
            Shape::Scalar(_) | Shape::List(_) | Shape::Map(_) => Err(plain()),
        };
        self.noted(path, node, secret)
    }

    /// A mapping from names to texts that no message repeats. What is null is left out.
    pub(super) fn secrets(
        &mut self,
        path: &str,
        node: &Node,
        check: Check,
    ) -> Option<BTreeMap<String, String>> {
        let Shape::Map(pairs) = &node.kind else {
            self.problem(node.at, || format!("{path}: expected a mapping from names to texts"));
            return None;
        };
        let mut secrets = BTreeMap::new();
        for (key, node) in pairs.iter().filter(|(_, node)| !node.is_null()) {
            let path = format!("{path}.{}", super::read::excerpt(&key.text));
            let Some(secret) = self.secret(&path, node) else { continue };
            match check(&key.text, &secret) {
                Ok(()) => {
                    secrets.insert(key.text.clone(), secret);
                }
                Err(expected) => self.problem(node.at, || format!("{path}: expected {expected}")),
            }
        }
        Some(secrets)
    }

    /// A mapping from names to texts; numbers and booleans are texts too.
    pub(super) fn words(&mut self, path: &str, node: &Node) -> Option<BTreeMap<String, String>> {
        let pairs = self.pairs(path, node, "a mapping from names to texts")?;
        let mut words = BTreeMap::new();
        for (key, node) in pairs {
            let path = format!("{path}.{}", super::read::excerpt(&key.text));
            if let Some(word) = self.word_at(&path, node, "text") {
                words.insert(key.text.clone(), word);
            }
        }
        Some(words)
    }

    /// A list of texts, each of which may be a number; or one text.
    pub(super) fn list(&mut self, path: &str, node: &Node, expected: &str) -> Option<Vec<String>> {
        match &node.kind {
            Shape::List(items) => {
                let mut words = Vec::with_capacity(items.len());
                for (index, item) in items.iter().enumerate() {
                    words.extend(self.word_at(&format!("{path}[{index}]"), item, "text"));
                }
                Some(words)
            }
            Shape::Scalar(_) => self.line(path, node, expected).map(|text| vec![text]),
            Shape::Map(_) => {
                self.problem(node.at, || format!("{path}{}", unexpected(expected, node)));
                None
            }
        }
    }

    /// A list of name patterns, or one.
    pub(super) fn patterns(&mut self, path: &str, node: &Node) -> Option<Vec<Pattern>> {
        let expected = "a list of name patterns (`*` stands for any text)";
        let texts = self.list(path, node, expected)?;
        if let Some(index) = texts.iter().position(|text| text.trim().is_empty()) {
            self.problem(node.at, || format!("{path}[{index}]: expected text that is not empty"));
            return None;
        }
        Some(texts.into_iter().map(Pattern::new).collect())
    }

    /// Any value, with the variables in its texts filled in. As elsewhere, a variable without quotes may stand for a
    /// number.
    pub(super) fn json(&mut self, path: &str, node: &Node) -> Option<Json> {
        match &node.kind {
            Shape::Scalar(_) => {
                let word = self.word(node, "a value");
                let scalar = self.noted(path, node, word)?.scalar;
                Some(Node { at: node.at, kind: Shape::Scalar(scalar) }.to_json())
            }
            Shape::List(items) => {
                let items = items.iter().enumerate();
                items.map(|(index, item)| self.json(&format!("{path}[{index}]"), item)).collect()
            }
            Shape::Map(pairs) => {
                let pair = |(key, node): &(Key, Node)| {
                    let path = format!("{path}.{}", super::read::excerpt(&key.text));
                    Some((key.text.clone(), self.json(&path, node)?))
                };
                pairs.iter().map(pair).collect()
            }
        }
    }

    /// Patterns of environment variables: a list of them, or one.
    pub(super) fn variables(&mut self, path: &str, node: &Node) -> Vec<Pattern> {
        let texts = self.list(path, node, "a list of patterns of variables").unwrap_or_default();
        for (index, text) in texts.iter().enumerate() {
            if let Err(expected) = check_pattern(text) {
                self.problem(node.at, || format!("{path}[{index}]: expected {expected}"));
            }
        }
        texts.into_iter().map(Pattern::new).collect()
    }

    /// True or false.
    pub(super) fn flag(&mut self, path: &str, node: &Node, expected: &str) -> Option<bool> {
        self.parsed(path, node, expected, |text| text.to_ascii_lowercase().parse().ok())
    }

    /// Seconds above 0, whole or fractional.
    pub(super) fn seconds(&mut self, path: &str, node: &Node) -> Option<Duration> {
        let max = keys::MAX_TOOL_TIMEOUT;
        self.parsed(path, node, &keys::expected_seconds(max), |text| keys::seconds(text, max))
    }

    /// A whole number within bounds.
    pub(super) fn count<T>(&mut self, path: &str, node: &Node, min: T, max: T) -> Option<T>
    where
        T: FromStr + PartialOrd + Copy + std::fmt::Display,
    {
        let expected = format!("a whole number from {min} to {max}");
        let fits = |count: &T| (min..=max).contains(count);
        self.parsed(path, node, &expected, |text| text.parse().ok().filter(fits))
    }

    /// A path; a relative one is relative to the file.
    pub(super) fn path_at(&mut self, path: &str, node: &Node) -> Option<PathBuf> {
        self.line(path, node, "a path").map(|text| self.beside(&text))
    }

    /// A path as the file means it: `~` is the home directory, and what is relative is so to the file.
    pub(super) fn beside(&self, text: &str) -> PathBuf {
        let home = || (self.lookup)("HOME").map(PathBuf::from);
        match text.strip_prefix("~/") {
            Some(rest) => home().map_or_else(|| text.into(), |home| home.join(rest)),
            None => self.path.parent().unwrap_or(Path::new("")).join(text),
        }
    }

    /// A number above 0.
    pub(super) fn amount(&mut self, path: &str, node: &Node) -> Option<f64> {
        let fits = |amount: &f64| amount.is_finite() && *amount > 0.0;
        self.parsed(path, node, "a number above 0", |text| text.parse().ok().filter(fits))
    }

    fn parsed<T>(
        &mut self,
        path: &str,
        node: &Node,
        expected: &str,
        parse: impl FnOnce(&str) -> Option<T>,
    ) -> Option<T> {
        let value = self.plain_of(node, expected).and_then(|text| {
            parse(&text).ok_or_else(|| format!(": expected {expected}, got {}", shown(node, &text)))
        });
        self.noted(path, node, value)
    }

    fn noted<T>(&mut self, path: &str, node: &Node, read: Result<T, String>) -> Option<T> {
        read.map_err(|problem| self.problem(node.at, || format!("{path}{problem}"))).ok()
    }
}
