//! The functions that read values of several parts: lists, mappings, paths, secrets.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime};

use orla_document::{Key, Kind as Shape, Node};
use orla_marketplace::id::Pattern;
use serde_json::Value as Json;

use super::forms::Check;
use super::read::{Reader, excerpt, secrets_in, shown, unexpected};

/// Returns the items of a list in one text, separated by commas.
pub(super) fn listed(text: &str) -> Vec<String> {
    text.split(',').map(|item| item.trim().to_owned()).filter(|item| !item.is_empty()).collect()
}

/// Checks that a text can be sent as a bearer token.
///
/// # Errors
///
/// Returns the expected form. The token is a secret and is not repeated.
pub(super) fn check_token(text: &str) -> Result<(), String> {
    match !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_graphic()) {
        true => Ok(()),
        false => Err("expected a token of visible ASCII characters".to_owned()),
    }
}

pub(super) fn environment(name: &str, value: &str) -> Result<(), &'static str> {
    if name.is_empty() || name.contains(['=', '\0']) {
        return Err("a name that an environment variable can have");
    }
    if value.contains('\0') { Err("text without NUL") } else { Ok(()) }
}

/// Checks a header field, as HTTP has it.
pub(super) fn header(name: &str, value: &str) -> Result<(), &'static str> {
    let is_token = |c: char| c.is_ascii_alphanumeric() || "!#$%&'*+-.^_`|~".contains(c);
    if name.is_empty() || !name.chars().all(is_token) {
        return Err("a name that a header field can have");
    }
    if value.chars().any(|c| c.is_control() && c != '\t') {
        return Err("text in one line");
    }
    Ok(())
}

impl Reader<'_> {
    /// Returns the entries of a mapping.
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

    /// Returns a text that is not empty.
    pub(super) fn line(&mut self, path: &str, node: &Node, expected: &str) -> Option<String> {
        let text = self.text_of(node, expected).and_then(|text| match text.trim().is_empty() {
            true => Err(format!(": expected {expected}, got {}", shown(node, &text))),
            false => Ok(text),
        });
        self.noted(path, node, text)
    }

    /// Returns a text; a number or a boolean is one too.
    pub(super) fn word_at(&mut self, path: &str, node: &Node, expected: &str) -> Option<String> {
        let word = self.word(node, expected).and_then(|word| match word.scalar.is_null() {
            true => Err(unexpected(expected, node)),
            false => Ok(word.scalar.text),
        });
        self.noted(path, node, word)
    }

    /// Returns a text that no message repeats.
    pub(super) fn secret(&mut self, path: &str, node: &Node) -> Option<String> {
        let plain = || ": expected text".to_owned();
        let secret = match &node.kind {
            Shape::Scalar(scalar) if !scalar.is_null() => {
                self.word(node, "text").map(|word| word.scalar.text)
            }
            Shape::Scalar(_) | Shape::List(_) | Shape::Map(_) => Err(plain()),
        };
        if let Ok(secret) = &secret {
            let name = path.rsplit('.').next().unwrap_or(path);
            self.literal_secrets.extend(secrets_in(name, secret));
        }
        self.noted(path, node, secret)
    }

    /// Returns a mapping from names to texts that no message repeats. Null members are left out.
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
            let path = format!("{path}.{}", excerpt(&key.text));
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

    /// Returns a mapping from names to texts; numbers and booleans are texts too.
    pub(super) fn words(&mut self, path: &str, node: &Node) -> Option<BTreeMap<String, String>> {
        let pairs = self.pairs(path, node, "a mapping from names to texts")?;
        let mut words = BTreeMap::new();
        for (key, node) in pairs {
            let path = format!("{path}.{}", excerpt(&key.text));
            if let Some(word) = self.word_at(&path, node, "text") {
                words.insert(key.text.clone(), word);
            }
        }
        Some(words)
    }

    /// Returns a list of texts, each of which may be a number; or one text.
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

    /// Returns a list of name patterns, or one.
    pub(super) fn patterns(&mut self, path: &str, node: &Node) -> Option<Vec<Pattern>> {
        let expected = "a list of name patterns (`*` stands for any text)";
        let texts = self.list(path, node, expected)?;
        if let Some(index) = texts.iter().position(|text| text.trim().is_empty()) {
            self.problem(node.at, || format!("{path}[{index}]: expected text that is not empty"));
            return None;
        }
        Some(texts.into_iter().map(Pattern::new).collect())
    }

    /// Returns any value, with the variables in its texts filled in. As elsewhere, a variable without
    /// quotes may contain a number.
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
                    let path = format!("{path}.{}", excerpt(&key.text));
                    Some((key.text.clone(), self.json(&path, node)?))
                };
                pairs.iter().map(pair).collect()
            }
        }
    }

    /// Returns a path; a relative one is relative to the file.
    pub(super) fn path_at(&mut self, path: &str, node: &Node) -> Option<PathBuf> {
        self.line(path, node, "a path").map(|text| self.beside(&text))
    }

    /// Returns a path in relation to the file: `~` is the home directory, and a relative path starts at
    /// the file's directory.
    pub(super) fn beside(&self, text: &str) -> PathBuf {
        let home = || (self.lookup)("HOME").map(PathBuf::from);
        match text.strip_prefix("~/") {
            Some(rest) => home().map_or_else(|| text.into(), |home| home.join(rest)),
            None => self.directory().join(text),
        }
    }

    /// Returns the directory of the file.
    pub(super) fn directory(&self) -> &Path {
        self.path.parent().unwrap_or(Path::new(""))
    }

    /// Returns a bearer token.
    pub(super) fn token(&mut self, path: &str, node: &Node) -> Option<String> {
        let token = self.secret(path, node)?;
        let checked = check_token(&token).map_err(|problem| format!(": {problem}"));
        self.noted(path, node, checked).map(|()| token)
    }

    /// Returns an instant, as RFC 3339 writes it.
    pub(super) fn instant(&mut self, path: &str, node: &Node) -> Option<SystemTime> {
        let expected = "an instant such as 2026-01-31T12:00:00Z";
        let text = self.word_at(path, node, expected)?;
        let instant = text.parse::<jiff::Timestamp>().map(|instant| {
            let since = Duration::try_from(instant.duration_since(jiff::Timestamp::UNIX_EPOCH));
            SystemTime::UNIX_EPOCH + since.unwrap_or_default()
        });
        self.noted(path, node, instant.map_err(|_| unexpected(expected, node)))
    }

    /// Returns the address of an endpoint, such as `example`. Its user information and its query may be
    /// secrets.
    pub(super) fn url(&mut self, path: &str, node: &Node, example: &str) -> Option<String> {
        let url = self.secret(path, node)?;
        let rest = url.strip_prefix("https://").or_else(|| url.strip_prefix("http://"));
        let host = rest.map(|rest| rest.split(['/', '?', '#']).next().unwrap_or_default());
        let is_url = host.is_some_and(|host| !host.is_empty() && !host.ends_with('@'))
            && !url.contains(|c: char| c.is_whitespace() || c.is_control());
        if !is_url {
            self.problem(node.at, || {
                let hint = match url.contains("://") {
                    true => "",
                    false => "; put http:// or https:// in front",
                };
                format!("{path}: expected an address such as {example}{hint}")
            });
        }
        is_url.then_some(url)
    }

    /// Returns a list of arguments, which may be secrets.
    pub(super) fn arguments(&mut self, path: &str, node: &Node) -> Option<Vec<String>> {
        let Shape::List(items) = &node.kind else {
            self.problem(node.at, || format!("{path}: expected a list of texts"));
            return None;
        };
        let args = items.iter().enumerate();
        Some(args.filter_map(|(index, item)| self.secret(&format!("{path}[{index}]"), item)).collect())
    }

    /// Notes a problem, whose text continues the path: `: expected …`.
    pub(super) fn noted<T>(&mut self, path: &str, node: &Node, read: Result<T, String>) -> Option<T> {
        read.map_err(|problem| self.problem(node.at, || format!("{path}{problem}"))).ok()
    }
}
