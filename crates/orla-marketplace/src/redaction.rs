//! Redacts secrets in texts: secrets that a capability was given must not appear in its results. No I/O.
//!
//! A [`Redactor`] knows the values of some secrets, and replaces each occurrence with [`REDACTED`]. It
//! recognises the value itself, its form in a JSON string, in Base64 (of both alphabets, at any of the
//! three alignments) and percent-encoded (with any usual set of unencoded characters).
//!
//! # What is deliberately absent
//!
//! Other transformations. A program that knows a secret can always write it in a form that is not
//! recognised.

use std::borrow::Cow;
use std::collections::BTreeSet;
use std::fmt;
use std::fmt::Write as _;
use std::sync::Arc;

use aho_corasick::{AhoCorasick, AhoCorasickKind, MatchKind};
use base64::Engine;
use base64::engine::general_purpose::{STANDARD, STANDARD_NO_PAD, URL_SAFE_NO_PAD};
use rtfs::Value;
use serde_json::Value as Json;

use crate::error::{Answered, RuntimeError, Violation};
use crate::notice::{LogText, Notice, Progress, SentLog};
use crate::outcome::Outcome;
use crate::payload::{JsonText, Payload};

/// The replacement for a secret.
pub const REDACTED: &str = "[redacted]";

/// The minimum length of a value in bytes. A shorter one would hide words that are not secrets.
const MIN_VALUE: usize = 4;

/// The maximum cost of building a deterministic automaton: the bytes of all forms times those of the
/// longest one.
const MAX_DETERMINISTIC: usize = 1 << 20;

/// Replaces secrets in texts. Two redactors are equal if they know the same values.
#[derive(Default)]
pub struct Redactor {
    values: BTreeSet<String>,
    /// The search for all forms of all values. `None` with values means that the search could not be
    /// built, and everything is replaced.
    search: Option<AhoCorasick>,
}

impl Redactor {
    /// Creates a redactor for these values. Values of fewer than four bytes are left out.
    pub fn new<T: Into<String>>(values: impl IntoIterator<Item = T>) -> Self {
        let values: BTreeSet<String> =
            values.into_iter().map(Into::into).filter(|value| value.len() >= MIN_VALUE).collect();
        let forms: BTreeSet<String> = values.iter().flat_map(|value| forms(value)).collect();
        let bytes: usize = forms.iter().map(String::len).sum();
        let longest = forms.iter().map(String::len).max().unwrap_or_default();
        // The fastest automaton takes time for the product of both to build, if a value repeats itself.
        let kind = (bytes.saturating_mul(longest) > MAX_DETERMINISTIC)
            .then_some(AhoCorasickKind::ContiguousNFA);
        let mut builder = AhoCorasick::builder();
        let search = builder.match_kind(MatchKind::LeftmostLongest).kind(kind).build(forms).ok();
        Self { values, search }
    }

    /// Returns a redactor for the secrets of all of these.
    pub fn of_all<'r>(all: impl IntoIterator<Item = &'r Self>) -> Self {
        Self::new(all.into_iter().flat_map(|one| &one.values))
    }

    /// Returns a redactor for the secrets of both.
    #[must_use]
    pub fn and(&self, other: &Self) -> Self {
        Self::new(self.values.union(&other.values))
    }

    /// Returns a redactor for the secrets of both, if there is at least one.
    pub fn united(one: Option<Arc<Self>>, other: Option<&Arc<Self>>) -> Option<Arc<Self>> {
        match (one, other) {
            (Some(one), Some(other)) => Some(Arc::new(one.and(other))),
            (one, other) => one.or_else(|| other.cloned()),
        }
    }

    /// Returns whether it replaces nothing.
    pub fn is_empty(&self) -> bool {
        self.values.is_empty()
    }

    /// Returns whether a text contains a secret.
    pub fn finds(&self, text: &str) -> bool {
        !self.is_empty() && self.search.as_ref().is_none_or(|search| search.is_match(text))
    }

    /// Returns the text without secrets.
    pub fn text<'t>(&self, text: &'t str) -> Cow<'t, str> {
        if !self.finds(text) {
            return Cow::Borrowed(text);
        }
        let Some(search) = &self.search else { return Cow::Owned(REDACTED.to_owned()) };
        let mut clean = String::with_capacity(text.len());
        search.replace_all_with(text, &mut clean, |_, _, out| {
            out.push_str(REDACTED);
            true
        });
        Cow::Owned(clean)
    }

    /// Returns a JSON text without secrets; escapes do not hide them.
    #[must_use]
    pub fn json(&self, json: JsonText) -> JsonText {
        self.cleaned(json.as_str()).unwrap_or(json)
    }

    /// Returns a JSON text without its secrets; `None` if it contains none.
    pub fn cleaned(&self, json: &str) -> Option<JsonText> {
        if self.is_empty() {
            return None;
        }
        let json = usual_escapes(json);
        if !self.finds(&json) {
            return None;
        }
        // A secret that looks like a number may occur outside of a string.
        let replaced = JsonText::parse(self.text(&json).into_owned());
        let tree = || serde_json::from_str(&json).map_or(Json::Null, |value| self.tree(value));
        Some(replaced.or_else(|_| JsonText::of(&tree())).unwrap_or_default())
    }

    /// Returns a JSON value without secrets.
    pub(crate) fn tree(&self, value: Json) -> Json {
        let clean = |text: &str| self.text(text).into_owned();
        fn walk(value: Json, clean: &dyn Fn(&str) -> String) -> Json {
            match value {
                Json::String(text) => clean(&text).into(),
                Json::Number(number) => {
                    let text = number.to_string();
                    let replaced = clean(&text);
                    if replaced == text { Json::Number(number) } else { replaced.into() }
                }
                Json::Array(items) => items.into_iter().map(|item| walk(item, clean)).collect(),
                Json::Object(members) => {
                    members.into_iter().map(|(name, value)| (clean(&name), walk(value, clean))).collect()
                }
                other => other,
            }
        }
        walk(value, &clean)
    }

    /// Returns a payload without secrets.
    #[must_use]
    pub fn payload(&self, payload: Payload) -> Payload {
        if self.is_empty() {
            return payload;
        }
        match payload.json() {
            Ok(json) => self.cleaned(json.as_str()).map_or(payload, Payload::from_json),
            // The payload has no JSON form.
            Err(_) => match payload.value().map(|value| self.finds(&value.to_string())) {
                Ok(false) => payload,
                Ok(true) | Err(_) => Payload::from_value(Value::from(REDACTED)),
            },
        }
    }

    /// Returns an outcome without secrets.
    #[must_use]
    pub fn outcome(&self, outcome: Outcome) -> Outcome {
        Outcome {
            structured: outcome.structured.map(|payload| self.payload(payload)),
            content: outcome.content.map(|json| self.content(json)),
            meta: outcome.meta.map(|json| self.json(json)),
            ..outcome
        }
    }

    /// Returns content blocks of MCP without secrets. Binary data stays valid Base64.
    fn content(&self, blocks: JsonText) -> JsonText {
        let is_binary = || ["\"blob\"", "\"data\""].iter().any(|name| blocks.as_str().contains(name));
        // The blocks are written again, which may change the text of numbers.
        if !self.is_empty()
            && is_binary()
            && self.finds(&usual_escapes(blocks.as_str()))
            && let Ok(mut tree) = serde_json::from_str(blocks.as_str())
        {
            self.binary(&mut tree);
            if let Ok(clean) = JsonText::of(&tree) {
                return self.json(clean);
            }
        }
        self.json(blocks)
    }

    /// Replaces secrets in the bytes of Base64 members of content blocks.
    fn binary(&self, value: &mut Json) {
        let Some(search) = &self.search else { return };
        match value {
            Json::Array(items) => items.iter_mut().for_each(|item| self.binary(item)),
            Json::Object(members) => {
                for (name, member) in members {
                    let text = member.as_str().filter(|_| matches!(name.as_str(), "blob" | "data"));
                    let Some(bytes) = text.and_then(|text| STANDARD.decode(text).ok()) else {
                        self.binary(member);
                        continue;
                    };
                    let mut clean = Vec::with_capacity(bytes.len());
                    search.replace_all_with_bytes(&bytes, &mut clean, |_, _, out| {
                        out.extend_from_slice(REDACTED.as_bytes());
                        true
                    });
                    *member = STANDARD.encode(clean).into();
                }
            }
            _ => {}
        }
    }

    /// Returns an error without secrets in the parts that its caller sees.
    #[must_use]
    pub fn error(&self, mut error: RuntimeError) -> RuntimeError {
        if self.is_empty() {
            return error;
        }
        match &mut error {
            RuntimeError::Unknown { .. }
            | RuntimeError::Denied { .. }
            | RuntimeError::Busy { .. }
            | RuntimeError::Quota { .. }
            | RuntimeError::Unapproved { .. }
            | RuntimeError::Limit { .. }
            | RuntimeError::Suspended { .. }
            | RuntimeError::Panicked { .. } => {}
            RuntimeError::InvalidInput { violations, .. } => self.violations(violations),
            RuntimeError::InvalidOutput { violations, outcome, .. } => {
                self.violations(violations);
                self.boxed(Some(outcome));
            }
            RuntimeError::TimedOut { outcome, .. }
            | RuntimeError::Cancelled { outcome, .. }
            | RuntimeError::Stopped { outcome, .. } => {
                self.boxed(outcome.as_mut());
            }
            RuntimeError::Unavailable { reason, source, .. } => {
                self.replace(reason);
                let answered = source.as_mut().and_then(|source| source.downcast_mut::<Answered>());
                self.boxed(answered.map(|Answered(outcome)| outcome));
            }
            RuntimeError::Generic(message) => self.replace(message),
            RuntimeError::Failed { message, outcome, .. } => {
                self.replace(message);
                self.boxed(outcome.as_mut());
            }
            RuntimeError::Reported { message, outcome, .. } => {
                self.replace(message);
                self.boxed(Some(outcome));
            }
            RuntimeError::Structured { message, error, outcome, .. } => {
                self.replace(message);
                self.replace(&mut error.message);
                self.value(&mut error.data);
                self.value(&mut error.cause);
                self.boxed(outcome.as_mut());
            }
            RuntimeError::Refused { message, data, .. } => {
                self.replace(message);
                *data = data.take().map(|json| self.json(json));
            }
        }
        error
    }

    /// Returns a notice without secrets.
    #[must_use]
    pub(crate) fn notice(&self, notice: Notice) -> Notice {
        let clean = |text: String| self.text(&text).into_owned();
        match notice {
            Notice::Progress(progress) => {
                Notice::Progress(Progress { message: progress.message.map(clean), ..progress })
            }
            Notice::Log { level, message } => {
                let message = match message.as_sent().cloned() {
                    Some(SentLog { logger, data }) => LogText::sent(logger.map(clean), self.json(data)),
                    None => clean(message.into_text()).into(),
                };
                Notice::Log { level, message }
            }
            Notice::Text(text) => Notice::Text(clean(text)),
        }
    }

    /// Replaces secrets in a text.
    pub fn replace(&self, text: &mut String) {
        if let Cow::Owned(clean) = self.text(text) {
            *text = clean;
        }
    }

    /// Values of an error are small. A value with a secret is replaced as a whole.
    fn value(&self, value: &mut Value) {
        if !matches!(value, Value::Nil) && self.finds(&value.to_string()) {
            *value = Value::from(REDACTED);
        }
    }

    fn boxed(&self, outcome: Option<&mut Box<Outcome>>) {
        if let Some(outcome) = outcome {
            **outcome = self.outcome(std::mem::take(&mut **outcome));
        }
    }

    fn violations(&self, violations: &mut [Violation]) {
        for violation in violations {
            self.replace(&mut violation.path);
            self.replace(&mut violation.expected);
            self.replace(&mut violation.got);
        }
    }
}

impl PartialEq for Redactor {
    fn eq(&self, other: &Self) -> bool {
        self.values == other.values
    }
}

impl Eq for Redactor {}

impl fmt::Debug for Redactor {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Redactor({} values)", self.values.len())
    }
}

/// Returns the same JSON with the escapes that [`escape`] writes. Other writers may use `\/`, or
/// `\uXXXX` for any character.
fn usual_escapes(json: &str) -> Cow<'_, str> {
    if !json.contains("\\u") && !json.contains("\\/") {
        return Cow::Borrowed(json);
    }
    let mut usual = String::with_capacity(json.len());
    let mut rest = json;
    while let Some(at) = rest.find('\\') {
        usual.push_str(&rest[..at]);
        let (escape, after) = rest[at..].split_at(escape_length(&rest[at..]));
        let is_usual = escape.len() == 2 && escape != "\\/";
        // Each escape is parsed as a string. A lone surrogate is not a string, and stays.
        let text = || serde_json::from_str::<String>(&format!("\"{escape}\"")).ok();
        match (!is_usual).then(text).flatten() {
            Some(text) => usual.push_str(&self::escape(&text)),
            None => usual.push_str(escape),
        }
        rest = after;
    }
    usual.push_str(rest);
    Cow::Owned(usual)
}

/// Returns the length in bytes of the escape at the beginning of a text, including both halves of a
/// surrogate pair.
fn escape_length(text: &str) -> usize {
    let is_unit = |text: &str| {
        let digits = text.as_bytes().get(2..6);
        text.starts_with("\\u") && digits.is_some_and(|digits| digits.iter().all(u8::is_ascii_hexdigit))
    };
    let half = |text: &str| text.get(2..4).and_then(|digits| u8::from_str_radix(digits, 16).ok());
    if !is_unit(text) {
        // A backslash is never the last character of a string.
        return text.chars().take(2).map(char::len_utf8).sum();
    }
    let (high, low) = (half(text), half(&text[6..]));
    let is_pair = matches!((high, low), (Some(0xd8..=0xdb), Some(0xdc..=0xdf)));
    if is_pair && is_unit(&text[6..]) { 12 } else { 6 }
}

/// Returns the forms in which a value may occur.
fn forms(value: &str) -> Vec<String> {
    let mut forms = vec![value.to_owned()];
    forms.extend(in_json(value));
    forms.extend(in_base64(value));
    forms.extend(in_urls(value));
    forms
}

/// Returns the value in JSON strings: plain, with escapes for all non-ASCII characters, and within JSON
/// that is itself a string.
fn in_json(value: &str) -> [String; 3] {
    let escaped = escape(value);
    let mut ascii = String::with_capacity(escaped.len());
    for c in escaped.chars() {
        if c.is_ascii() {
            ascii.push(c);
        } else {
            for unit in c.encode_utf16(&mut [0; 2]) {
                let _ = write!(ascii, "\\u{unit:04x}");
            }
        }
    }
    let nested = escape(&escaped);
    [escaped, ascii, nested]
}

/// Escapes a text as between the quotes of a JSON string.
fn escape(text: &str) -> String {
    let quoted = Json::from(text).to_string();
    quoted[1..quoted.len() - 1].to_owned()
}

/// Returns the value in Base64: the characters that depend on it alone, for each of the three
/// alignments.
fn in_base64(value: &str) -> Vec<String> {
    let mut forms = Vec::new();
    for before in 0..3 {
        let bytes = [&[0; 2][..before], value.as_bytes()].concat();
        // The first characters also contain bits of the preceding bytes, and the last ones bits of the
        // following bytes.
        let from = [0, 2, 3][before];
        let to = bytes.len() * 8 / 6;
        for text in [STANDARD_NO_PAD.encode(&bytes), URL_SAFE_NO_PAD.encode(&bytes)] {
            forms.extend(text.get(from..to).filter(|form| form.len() >= MIN_VALUE).map(str::to_owned));
        }
    }
    forms
}

/// Returns the value in URLs and forms.
fn in_urls(value: &str) -> Vec<String> {
    /// Characters besides letters and digits that some encoder leaves unencoded: RFC 3986,
    /// `encodeURIComponent`, paths, `encodeURI`, forms.
    const LEFT: [&[u8]; 5] = [b"-._~", b"-_.!~*'()", b"-._~/", b"-_.!~*'();/?:@&=+$,#", b"*-._"];
    let mut forms = Vec::new();
    for left in LEFT {
        for is_upper in [true, false] {
            let mut encoded = String::with_capacity(value.len());
            for byte in value.bytes() {
                let _ = match byte {
                    _ if byte.is_ascii_alphanumeric() || left.contains(&byte) => {
                        encoded.write_char(char::from(byte))
                    }
                    _ if is_upper => write!(encoded, "%{byte:02X}"),
                    _ => write!(encoded, "%{byte:02x}"),
                };
            }
            forms.push(encoded.replace("%20", "+"));
            forms.push(encoded);
        }
    }
    forms
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::notice::LogLevel;
    use base64::engine::general_purpose::{STANDARD, URL_SAFE};
    use proptest::prelude::*;

    const SECRET: &str = "s3cr3t/ä+\"value\"&x y~z";

    fn redactor() -> Redactor {
        Redactor::new([SECRET, "12345678", "abc"])
    }

    #[test]
    fn a_secret_is_replaced_in_every_form() {
        let redactor = redactor();
        let percent = "s3cr3t%2F%C3%A4%2B%22value%22%26x%20y~z";
        for text in [
            SECRET.to_owned(),
            Json::from(SECRET).to_string(),
            Json::from(Json::from(SECRET).to_string()).to_string(),
            r#"s3cr3t/\u00e4+\"value\"&x y~z"#.to_owned(),
            percent.to_owned(),
            percent.to_lowercase(),
            percent.replace("%20", "+"),
            percent.replace("%2F", "/"),
        ] {
            let clean = redactor.text(&text).into_owned();
            assert!(clean.contains(REDACTED) && !clean.contains("3cr3t"), "{text}: {clean}");
        }
        // The value is too short to be distinguished from words.
        assert_eq!(redactor.text("abc"), "abc");
        assert!(!format!("{redactor:?}").contains("12345678"));
    }

    #[test]
    fn binary_content_without_its_secrets_is_still_base64() {
        for before in 0..3 {
            let bytes = [&[0xff; 2][..before], SECRET.as_bytes(), b"\x00"].concat();
            let blob = STANDARD.encode(bytes);
            let blocks = serde_json::json!([
                {"type": "resource", "resource": {"uri": "orla://x", "blob": blob}},
                {"type": "image", "data": blob, "mimeType": "image/png"},
                {"type": "text", "text": SECRET},
            ]);
            let content = Some(JsonText::of(&blocks).unwrap());
            let clean = redactor().outcome(Outcome { content, ..Outcome::default() }).content.unwrap();
            let clean: Json = serde_json::from_str(clean.as_str()).unwrap();
            for blob in [&clean[0]["resource"]["blob"], &clean[1]["data"]] {
                let bytes = STANDARD.decode(blob.as_str().unwrap()).unwrap();
                assert!(bytes.ends_with(format!("{REDACTED}\0").as_bytes()), "{clean}");
            }
            assert_eq!(clean[2]["text"], REDACTED);
        }
    }

    #[test]
    fn content_that_is_no_usual_json_or_no_base64_is_clean_too() {
        let unpadded = STANDARD_NO_PAD.encode(SECRET);
        assert!(STANDARD.decode(&unpadded).is_err());
        for text in [
            format!(r#"[{{"type":"image","data":{},"n":1e400}}]"#, Json::from(SECRET)),
            format!(r#"[{{"type":"image","data":"{unpadded}"}}]"#),
        ] {
            let content = Some(JsonText::parse(text).unwrap());
            let clean = redactor().outcome(Outcome { content, ..Outcome::default() }).content.unwrap();
            assert!(clean.as_str().starts_with(r#"[{"type":"image""#), "{clean}");
            assert!(clean.as_str().contains(REDACTED) && !redactor().finds(clean.as_str()), "{clean}");
        }
    }

    /// Building a deterministic automaton for these values would take minutes.
    #[test]
    fn a_long_value_that_repeats_itself_is_replaced_too() {
        for unit in ["a", "[", "ab%"] {
            let value = unit.repeat(20_000);
            let redactor = Redactor::new([value.clone()]);
            assert_eq!(redactor.text(&format!("<{value}>")), format!("<{REDACTED}>"));
        }
    }

    #[test]
    fn json_stays_json() {
        let redactor = redactor();
        let json =
            JsonText::parse(r#"{"12345678": [12345678, 1.10, "x12345678y"], "n": 1e400}"#).unwrap();
        let clean = redactor.json(json);
        assert!(!clean.as_str().contains("12345678"), "{clean}");
        assert!(serde_json::from_str::<Json>(clean.as_str()).is_ok());
        let untouched = JsonText::parse(r#"{"n":1.10,"m":1e400}"#).unwrap();
        assert_eq!(redactor.json(untouched.clone()), untouched);
    }

    #[test]
    fn a_secret_is_found_however_json_escapes_it() {
        let redactor = Redactor::new(["s3cr3t/+ä\u{1f511}\"x"]);
        for text in [
            r#"["s3cr3t\/\u002b\u00E4\ud83d\udd11\"x"]"#,
            r#"["\u0073\u0033cr3t/+ä\uD83D\uDD11\u0022x"]"#,
            r#"["\ud83d\u0073\u0033cr3t/+ä\uD83D\uDD11\u0022x"]"#,
            r#"[1.10,"\ud83d a\n\\/","s3cr3t/\u002Bä\u{1f511}\"x",1e400]"#,
        ] {
            let text = text.replace("\\u{1f511}", "\u{1f511}");
            let clean = redactor.json(JsonText::parse(text.clone()).unwrap());
            assert!(
                clean.as_str().contains(REDACTED) && !clean.as_str().contains("3cr3t"),
                "{text}: {clean}"
            );
            assert_eq!(clean.as_str().contains("1.10"), text.contains("1.10"));
        }
        let other = JsonText::parse(r#"{"a":"http:\/\/h\u002Fx"}"#).unwrap();
        assert_eq!(redactor.json(other.clone()), other, "what has no secret stays as it is");
    }

    proptest! {
        #[test]
        fn other_escapes_say_the_same(text in any::<String>(), escapes: Vec<bool>) {
            let mut json = "\"".to_owned();
            for (at, c) in text.chars().enumerate() {
                match escapes.get(at) {
                    Some(true) => c.encode_utf16(&mut [0; 2]).iter().for_each(|unit| {
                        let _ = write!(json, "\\u{unit:04X}");
                    }),
                    _ if c == '/' => json.push_str("\\/"),
                    _ => json.push_str(&escape(&c.to_string())),
                }
            }
            json.push('"');
            prop_assert_eq!(usual_escapes(&json).into_owned(), Json::from(text).to_string());
        }
    }

    #[test]
    fn an_error_and_its_outcome_are_clean() {
        let outcome = Outcome { content: Some(JsonText::of(&[SECRET]).unwrap()), ..Outcome::default() };
        let mut inner = rtfs::Error::new("failed", format!("with {SECRET}"));
        inner.data = Value::from(SECRET);
        let error = RuntimeError::Structured {
            id: "x".to_owned(),
            message: format!("failed with {SECRET}"),
            error: Box::new(inner),
            outcome: Some(Box::new(outcome)),
        };
        let clean = redactor().error(error);
        assert!(format!("{clean:?}").contains(REDACTED) && !format!("{clean:?}").contains("3cr3t"));
    }

    #[test]
    fn a_notice_is_clean() {
        let message = format!("half of {SECRET}");
        let progress = Progress { progress: 1.0, total: None, message: Some(message.clone()) };
        // Other writers escape more than necessary.
        let escaped: String = message.chars().map(|ch| format!("\\u{:04X}", u32::from(ch))).collect();
        let sent = JsonText::parse(format!("\"{escaped}\"")).unwrap();
        for notice in [
            Notice::Log { level: LogLevel::Info, message: LogText::sent(None, sent) },
            Notice::Progress(progress),
            Notice::Log { level: LogLevel::Info, message: message.clone().into() },
            Notice::Text(message),
        ] {
            let clean = format!("{:?}", redactor().notice(notice));
            assert!(clean.contains("half of [redacted]"), "{clean}");
        }
    }

    proptest! {
        #[test]
        fn base64_of_a_secret_within_other_bytes_is_replaced(
            before in proptest::collection::vec(any::<u8>(), 0..7),
            secret in "[ -~]{8,24}",
            after in proptest::collection::vec(any::<u8>(), 0..7),
        ) {
            let bytes = [&before[..], secret.as_bytes(), &after[..]].concat();
            let redactor = Redactor::new([secret.clone()]);
            for text in [STANDARD.encode(&bytes), URL_SAFE.encode(&bytes)] {
                let clean = redactor.text(&text).into_owned();
                // Only bits of the first and last byte that share a character with other bytes may
                // remain.
                prop_assert!(clean.contains(REDACTED), "{} in {}", secret, text);
                prop_assert!(clean.len() <= text.len() - (secret.len() * 8 / 6 - 2) + REDACTED.len());
            }
        }

        #[test]
        fn text_without_secrets_stays_unchanged(text in "[a-f ]{0,200}") {
            let redactor = redactor();
            prop_assert!(matches!(redactor.text(&text), Cow::Borrowed(same) if same == text));
        }
    }
}
