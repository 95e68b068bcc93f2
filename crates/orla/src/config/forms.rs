//! The forms of values: how each is parsed, described and offered to editors.
//!
//! A [`Scalar`] is one number, word or text. A [`Read`] is any value that a function reads. The
//! functions of [`Reader`] take the path of the value for messages (`capabilities[2].timeout`) and its
//! node. They note every problem with its place and then return nothing. No message repeats what
//! [`Reader::secret`] and [`Reader::secrets`] read.
#![expect(
    clippy::redundant_closure_for_method_calls,
    reason = "a method of `Reader<'a>` is not general enough to be a function of every `Reader<'_>`"
)]

use std::collections::BTreeMap;
use std::ffi::OsStr;
use std::fmt::Display;
use std::path::{Path, PathBuf};
use std::str::FromStr;
use std::time::{Duration, SystemTime};

use orla_document::{Key, Kind as Shape, Node};
use orla_marketplace::id::Pattern;
use orla_process::confinement::{self, Fallback, Limits, Mode};
use orla_process::environment::check_pattern;
use serde_json::{Value as Json, json};

use super::read::{Reader, excerpt, secrets_in, shown, unexpected};
use crate::text::list_of;

/// A day, in seconds: the longest time limit of a call.
pub(super) const DAY: u32 = 86_400;
/// A day, in milliseconds.
pub(super) const DAY_MS: u64 = 86_400_000;

/// Checks a name and its value. An error contains the expected form.
pub(super) type Check = fn(&str, &str) -> Result<(), &'static str>;

/// The form of a value.
pub(super) trait Form: Send + Sync + 'static {
    type Value;

    /// Whether the text of a flag or an environment variable can have this form.
    const HAS_VARIABLE: bool = false;

    /// Reads a value; a problem is noted with its place.
    fn read(&self, reader: &mut Reader<'_>, path: &str, node: &Node) -> Option<Self::Value>;

    /// Returns its JSON Schema.
    fn schema(&self) -> Json;

    /// Returns how the JSON Schema shows a default, if it does.
    fn default(&self, _value: &Self::Value) -> Option<Json> {
        None
    }

    /// Reads the text of a flag or of an environment variable.
    ///
    /// # Errors
    ///
    /// Returns the expected form and the received text.
    fn read_variable(&self, _text: &OsStr) -> Result<Self::Value, String> {
        Err("expected a configuration file to set this key".to_owned())
    }
}

/// A field for a value: a field of its type, an option of the type, or a list that grows.
pub(super) trait Slot<V> {
    fn put(&mut self, value: V);

    /// Returns the value that is there, if there is one.
    fn get(&self) -> Option<&V>;
}

impl<V> Slot<V> for V {
    fn put(&mut self, value: V) {
        *self = value;
    }

    fn get(&self) -> Option<&V> {
        Some(self)
    }
}

impl<V> Slot<V> for Option<V> {
    fn put(&mut self, value: V) {
        *self = Some(value);
    }

    fn get(&self) -> Option<&V> {
        self.as_ref()
    }
}

/// Values that are added to the existing ones.
pub(super) struct Added<V>(pub(super) Vec<V>);

impl<V> Slot<Added<V>> for Vec<V> {
    fn put(&mut self, added: Added<V>) {
        self.extend(added.0);
    }

    fn get(&self) -> Option<&Added<V>> {
        None
    }
}

/// The form of one number, word or text.
pub(super) trait Scalar: Send + Sync + 'static {
    type Value;

    /// Whether the value is text, so that a number for it is a mistake.
    const IS_TEXT: bool = false;

    /// What it admits, for "expected …".
    fn expected(&self) -> String;

    /// Parses the text of a value.
    ///
    /// # Errors
    ///
    /// Returns the expected form.
    fn parse(&self, text: &str) -> Result<Self::Value, String>;

    fn schema(&self) -> Json;

    fn default(&self, value: &Self::Value) -> Option<Json>;
}

impl<S: Scalar> Form for S {
    type Value = S::Value;

    const HAS_VARIABLE: bool = true;

    fn read(&self, reader: &mut Reader<'_>, path: &str, node: &Node) -> Option<Self::Value> {
        let expected = self.expected();
        let text = match S::IS_TEXT {
            true => reader.text_of(node, &expected),
            false => reader.plain_of(node, &expected),
        };
        let value = text.and_then(|text| {
            self.parse(&text)
                .map_err(|expected| format!(": expected {expected}, got {}", shown(node, &text)))
        });
        reader.noted(path, node, value)
    }

    fn schema(&self) -> Json {
        match S::IS_TEXT {
            true => Scalar::schema(self),
            false => json!({"anyOf": [Scalar::schema(self), variable()]}),
        }
    }

    fn default(&self, value: &Self::Value) -> Option<Json> {
        Scalar::default(self, value)
    }

    fn read_variable(&self, text: &OsStr) -> Result<Self::Value, String> {
        let text = text.to_str().ok_or("expected UTF-8 text")?;
        self.parse(text).map_err(|expected| format!("expected {expected}, got {text:?}"))
    }
}

/// True or false.
pub(super) struct Flag;

impl Scalar for Flag {
    type Value = bool;

    fn expected(&self) -> String {
        "true or false".to_owned()
    }

    fn parse(&self, text: &str) -> Result<bool, String> {
        text.to_ascii_lowercase().parse().map_err(|_| self.expected())
    }

    fn schema(&self) -> Json {
        json!({"type": "boolean"})
    }

    fn default(&self, value: &bool) -> Option<Json> {
        Some((*value).into())
    }
}

/// A whole number within bounds.
pub(super) struct Count<N>(pub(super) N, pub(super) N);

impl<N> Scalar for Count<N>
where
    N: FromStr + PartialOrd + Copy + Display + Into<Json> + Send + Sync + 'static,
{
    type Value = N;

    fn expected(&self) -> String {
        format!("a whole number from {} to {}", self.0, self.1)
    }

    fn parse(&self, text: &str) -> Result<N, String> {
        let fits = |count: &N| (self.0..=self.1).contains(count);
        text.parse().ok().filter(fits).ok_or_else(|| self.expected())
    }

    fn schema(&self) -> Json {
        let (min, max): (Json, Json) = (self.0.into(), self.1.into());
        json!({"type": "integer", "minimum": min, "maximum": max})
    }

    fn default(&self, value: &N) -> Option<Json> {
        Some((*value).into())
    }
}

/// A whole number of milliseconds within bounds.
pub(super) struct Milliseconds(pub(super) u64, pub(super) u64);

impl Scalar for Milliseconds {
    type Value = Duration;

    fn expected(&self) -> String {
        format!("a whole number of milliseconds from {} to {}", self.0, self.1)
    }

    fn parse(&self, text: &str) -> Result<Duration, String> {
        Count(self.0, self.1).parse(text).map(Duration::from_millis).map_err(|_| self.expected())
    }

    fn schema(&self) -> Json {
        Scalar::schema(&Count(self.0, self.1))
    }

    fn default(&self, value: &Duration) -> Option<Json> {
        u64::try_from(value.as_millis()).ok().map(Json::from)
    }
}

/// Seconds, whole or fractional: above 0, and at most this many.
pub(super) struct Seconds(pub(super) u32);

impl Scalar for Seconds {
    type Value = Duration;

    fn expected(&self) -> String {
        format!("a number of seconds above 0 and at most {}", self.0)
    }

    fn parse(&self, text: &str) -> Result<Duration, String> {
        let fits = |seconds: &f64| *seconds <= f64::from(self.0);
        let seconds = text.parse().ok().filter(fits);
        let duration = seconds.and_then(|seconds| Duration::try_from_secs_f64(seconds).ok());
        duration.filter(|duration| !duration.is_zero()).ok_or_else(|| self.expected())
    }

    fn schema(&self) -> Json {
        json!({"type": "number", "exclusiveMinimum": 0, "maximum": self.0})
    }

    fn default(&self, value: &Duration) -> Option<Json> {
        Some(value.as_secs().into())
    }
}

/// A time above 0 and at most this long: a number of seconds, or a number with its unit.
pub(super) struct Span(pub(super) Duration);

impl Span {
    fn expected(&self) -> String {
        let seconds = self.0.as_secs();
        let most = match seconds.is_multiple_of(86_400) {
            true => format!("{}d", seconds / 86_400),
            false => format!("{seconds}s"),
        };
        format!("a time such as 30s, 5m, 2h or 1d, at most {most}")
    }

    fn parse(&self, text: &str) -> Option<Duration> {
        span(text).filter(|time| !time.is_zero() && *time <= self.0)
    }
}

impl Form for Span {
    type Value = Duration;

    const HAS_VARIABLE: bool = true;

    fn read(&self, reader: &mut Reader<'_>, path: &str, node: &Node) -> Option<Duration> {
        let expected = self.expected();
        let text = reader.word_at(path, node, &expected)?;
        let time = self.parse(&text);
        let time = time.ok_or_else(|| format!(": expected {expected}, got {}", shown(node, &text)));
        reader.noted(path, node, time)
    }

    fn schema(&self) -> Json {
        json!({"anyOf": [{"type": "number", "exclusiveMinimum": 0}, text_schema()]})
    }

    fn default(&self, value: &Duration) -> Option<Json> {
        let seconds = value.as_secs();
        let units = [(86_400, "d"), (3_600, "h"), (60, "m"), (1, "s")];
        let unit = units.into_iter().find(|(unit, _)| seconds.is_multiple_of(*unit));
        unit.map(|(unit, name)| format!("{}{name}", seconds / unit).into())
    }

    fn read_variable(&self, text: &OsStr) -> Result<Duration, String> {
        let text = text.to_str().ok_or("expected UTF-8 text")?;
        self.parse(text).ok_or_else(|| format!("expected {}, got {text:?}", self.expected()))
    }
}

/// Returns the time that a text such as `5m` or `1.5h` names; without a unit, it is seconds.
fn span(text: &str) -> Option<Duration> {
    let text = text.trim();
    let unit_at = text.find(|c: char| c.is_ascii_alphabetic()).unwrap_or(text.len());
    let (number, unit) = text.split_at(unit_at);
    let seconds = match unit {
        "ms" => 0.001,
        "" | "s" => 1.0,
        "m" => 60.0,
        "h" => 3_600.0,
        "d" => 86_400.0,
        _ => return None,
    };
    let number: f64 = number.trim().parse().ok()?;
    Duration::try_from_secs_f64(number * seconds).ok()
}

/// A number above 0, and at most 1.
pub(super) struct Share;

impl Scalar for Share {
    type Value = f64;

    fn expected(&self) -> String {
        "a number above 0 and at most 1".to_owned()
    }

    fn parse(&self, text: &str) -> Result<f64, String> {
        Amount.parse(text).ok().filter(|share| *share <= 1.0).ok_or_else(|| self.expected())
    }

    fn schema(&self) -> Json {
        json!({"type": "number", "exclusiveMinimum": 0, "maximum": 1})
    }

    fn default(&self, value: &f64) -> Option<Json> {
        Some((*value).into())
    }
}

/// A number above 0.
pub(super) struct Amount;

impl Scalar for Amount {
    type Value = f64;

    fn expected(&self) -> String {
        "a number above 0".to_owned()
    }

    fn parse(&self, text: &str) -> Result<f64, String> {
        let fits = |amount: &f64| amount.is_finite() && *amount > 0.0;
        text.parse().ok().filter(fits).ok_or_else(|| self.expected())
    }

    fn schema(&self) -> Json {
        json!({"type": "number", "exclusiveMinimum": 0})
    }

    fn default(&self, value: &f64) -> Option<Json> {
        Some((*value).into())
    }
}

/// One of these words, in capitals or not.
pub(super) struct Choice<V: 'static>(pub(super) &'static [(&'static str, V)]);

impl<V: Copy + PartialEq + Send + Sync> Scalar for Choice<V> {
    type Value = V;

    const IS_TEXT: bool = true;

    fn expected(&self) -> String {
        list_of(&self.0.iter().map(|(word, _)| *word).collect::<Vec<_>>())
    }

    fn parse(&self, text: &str) -> Result<V, String> {
        let found = self.0.iter().find(|(word, _)| word.eq_ignore_ascii_case(text));
        found.map(|(_, value)| *value).ok_or_else(|| self.expected())
    }

    fn schema(&self) -> Json {
        let words: Vec<&str> = self.0.iter().map(|(word, _)| *word).collect();
        json!({"anyOf": [{"enum": words}, variable()]})
    }

    fn default(&self, value: &V) -> Option<Json> {
        self.0.iter().find(|(_, known)| known == value).map(|(word, _)| (*word).into())
    }
}

/// Text that is not empty. The string describes it.
pub(super) struct Text(pub(super) &'static str);

impl Scalar for Text {
    type Value = String;

    const IS_TEXT: bool = true;

    fn expected(&self) -> String {
        self.0.to_owned()
    }

    fn parse(&self, text: &str) -> Result<String, String> {
        if text.trim().is_empty() { Err(self.expected()) } else { Ok(text.to_owned()) }
    }

    fn schema(&self) -> Json {
        text_schema()
    }

    fn default(&self, value: &String) -> Option<Json> {
        (!value.is_empty()).then(|| value.as_str().into())
    }
}

/// A path. In a file it is relative to that file; on the command line and in the environment, to the current
/// directory.
pub(super) struct File;

impl Form for File {
    type Value = PathBuf;

    const HAS_VARIABLE: bool = true;

    fn read(&self, reader: &mut Reader<'_>, path: &str, node: &Node) -> Option<PathBuf> {
        let text = reader.line(path, node, "a path")?;
        let file = self.read_variable(OsStr::new(&text)).map_err(|problem| {
            reader.problem(node.at, || format!("{path}: {problem}, got {}", shown(node, &text)));
        });
        file.ok().map(|file| reader.directory().join(file))
    }

    fn schema(&self) -> Json {
        text_schema()
    }

    fn default(&self, value: &PathBuf) -> Option<Json> {
        value.to_str().filter(|path| !path.is_empty()).map(Json::from)
    }

    fn read_variable(&self, text: &OsStr) -> Result<PathBuf, String> {
        match text.to_str() {
            Some("") => Err("expected a path".to_owned()),
            Some(text) if text == "~" || text.starts_with("~/") => Err(format!(
                "expected a path in which `~` is spelt out (${{HOME}}{} in the file)",
                &text[1..]
            )),
            _ => Ok(text.into()),
        }
    }
}

/// A list of texts, none of them empty.
pub(super) struct Texts;

impl Form for Texts {
    type Value = Vec<String>;

    const HAS_VARIABLE: bool = true;

    fn read(&self, reader: &mut Reader<'_>, path: &str, node: &Node) -> Option<Vec<String>> {
        let Shape::List(items) = &node.kind else {
            reader.problem(node.at, || format!("{path}{}", unexpected("a list of texts", node)));
            return None;
        };
        let item = |(index, item)| reader.line(&format!("{path}[{index}]"), item, "text");
        items.iter().enumerate().map(item).collect()
    }

    fn schema(&self) -> Json {
        json!({"type": "array", "items": text_schema()})
    }

    fn read_variable(&self, text: &OsStr) -> Result<Vec<String>, String> {
        text.to_str().map(listed).ok_or_else(|| "expected UTF-8 text".to_owned())
    }
}

/// Patterns of the environment variables that a process gets: a list of them, or one. They are added to
/// the existing ones.
pub(super) struct Variables;

impl Form for Variables {
    type Value = Added<Pattern>;

    const HAS_VARIABLE: bool = true;

    fn read(&self, reader: &mut Reader<'_>, path: &str, node: &Node) -> Option<Self::Value> {
        let texts = reader.list(path, node, "a list of patterns of variables")?;
        for (index, text) in texts.iter().enumerate() {
            if let Err(expected) = check_pattern(text) {
                reader.problem(node.at, || format!("{path}[{index}]: expected {expected}"));
            }
        }
        Some(Added(texts.into_iter().map(Pattern::new).collect()))
    }

    fn schema(&self) -> Json {
        texts_or_text()
    }

    fn read_variable(&self, text: &OsStr) -> Result<Self::Value, String> {
        let texts = Texts.read_variable(text)?;
        for text in &texts {
            check_pattern(text).map_err(|expected| format!("expected {expected}, got {text:?}"))?;
        }
        Ok(Added(texts.into_iter().map(Pattern::new).collect()))
    }
}

/// A value that a function reads, and the function that gives its JSON Schema.
pub(super) struct Read<V>(
    pub(super) fn(&mut Reader<'_>, &str, &Node) -> Option<V>,
    pub(super) fn() -> Json,
);

impl<V: 'static> Form for Read<V> {
    type Value = V;

    fn read(&self, reader: &mut Reader<'_>, path: &str, node: &Node) -> Option<V> {
        (self.0)(reader, path, node)
    }

    fn schema(&self) -> Json {
        (self.1)()
    }
}

/// A list of name patterns, or one.
pub(super) const PATTERNS: Read<Vec<Pattern>> =
    Read(|reader, path, node| reader.patterns(path, node), texts_or_text);
/// Like [`PATTERNS`], but added to the existing ones.
pub(super) const MORE_PATTERNS: Read<Added<Pattern>> =
    Read(|reader, path, node| reader.patterns(path, node).map(Added), texts_or_text);
/// A list of permissions, or one.
pub(super) const PERMISSIONS: Read<Vec<String>> =
    Read(|reader, path, node| reader.list(path, node, "a list of permissions"), texts_or_text);
/// A list of permissions that confine, or one. None may be misspelt.
pub(super) const CONFINING: Read<Vec<String>> = Read(confining, texts_or_text);
/// Limits of processes.
pub(super) const LIMITS: Read<Limits> = Read(limits, limits_schema);
/// A path; a relative one is relative to the file, and `~` is the home directory.
pub(super) const PATH: Read<PathBuf> =
    Read(|reader, path, node| reader.path_at(path, node), text_schema);
/// A text; a number or a boolean is one too.
pub(super) const WORD: Read<String> =
    Read(|reader, path, node| reader.word_at(path, node, "text"), word_schema);
/// A mapping from names to texts.
pub(super) const WORDS: Read<BTreeMap<String, String>> =
    Read(|reader, path, node| reader.words(path, node), words_schema);
/// A secret text.
pub(super) const SECRET: Read<String> =
    Read(|reader, path, node| reader.secret(path, node), text_schema);
/// A mapping from names to secret texts.
pub(super) const SECRETS: Read<BTreeMap<String, String>> =
    Read(|reader, path, node| reader.secrets(path, node, |_, _| Ok(())), words_schema);
/// HTTP header fields, which may be secrets.
pub(super) const HEADERS: Read<BTreeMap<String, String>> =
    Read(|reader, path, node| reader.secrets(path, node, header), words_schema);
/// Environment variables, which may be secrets.
pub(super) const ENVIRONMENT: Read<BTreeMap<String, String>> =
    Read(|reader, path, node| reader.secrets(path, node, environment), words_schema);
/// A list of arguments, which may be secrets.
pub(super) const ARGUMENTS: Read<Vec<String>> =
    Read(|reader, path, node| reader.arguments(path, node), words_list);
/// A bearer token.
pub(super) const TOKEN: Read<String> = Read(|reader, path, node| reader.token(path, node), text_schema);
/// The address of an API.
pub(super) const API_URL: Read<String> =
    Read(|reader, path, node| reader.url(path, node, "https://api.example.com/v1"), text_schema);
/// An instant, as RFC 3339 writes it.
pub(super) const INSTANT: Read<SystemTime> =
    Read(|reader, path, node| reader.instant(path, node), text_schema);

/// Returns the JSON Schema of a text that is not empty.
pub(super) fn text_schema() -> Json {
    json!({"type": "string", "minLength": 1})
}

fn word_schema() -> Json {
    json!({"type": ["string", "number", "boolean"]})
}

fn words_schema() -> Json {
    json!({"type": "object", "additionalProperties": {"type": ["string", "number", "boolean", "null"]}})
}

fn words_list() -> Json {
    json!({"type": "array", "items": word_schema()})
}

/// Returns the JSON Schema of a list of texts, or one.
pub(super) fn texts_or_text() -> Json {
    json!({"anyOf": [{"type": "array", "items": text_schema()}, text_schema()]})
}

/// Returns the JSON Schema of a text with an environment variable in it, where something else than text
/// is expected.
pub(super) fn variable() -> Json {
    json!({"type": "string", "pattern": "\\$\\{"})
}

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

fn environment(name: &str, value: &str) -> Result<(), &'static str> {
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
    fn instant(&mut self, path: &str, node: &Node) -> Option<SystemTime> {
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
fn confining(reader: &mut Reader<'_>, path: &str, node: &Node) -> Option<Vec<String>> {
    let words = reader.list(path, node, "a list of permissions")?;
    let problems: Vec<String> = words.iter().filter_map(|word| confinement::check(word).err()).collect();
    for problem in &problems {
        reader.problem(node.at, || format!("{path}: {problem}"));
    }
    problems.is_empty().then_some(words)
}

fn limits(reader: &mut Reader<'_>, path: &str, node: &Node) -> Option<Limits> {
    let read = orla_providers::tool::metadata::limits(node);
    read.map_err(|problem| reader.problem(node.at, || format!("{path}.{problem}"))).ok()
}

fn limits_schema() -> Json {
    let size = json!({"anyOf": [{"type": "integer", "minimum": 1}, {"type": "string"}]});
    let count = json!({"type": "integer", "minimum": 1});
    json!({
        "type": "object",
        "properties": {
            "memory": size,
            "cpu_seconds": count,
            "processes": count,
            "open_files": count,
            "file_size": size,
            "wall": {"type": "number"},
        },
        "additionalProperties": false,
    })
}

/// The words of `sandbox`.
pub(super) const SANDBOX: &[(&str, Mode)] =
    &[("off", Mode::Off), ("declared", Mode::Declared), ("strict", Mode::Strict)];
/// The words of `sandbox_fallback`.
pub(super) const FALLBACK: &[(&str, Fallback)] =
    &[("refuse", Fallback::Refuse), ("allow", Fallback::Allow)];
