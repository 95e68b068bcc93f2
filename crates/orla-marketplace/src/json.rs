//! JSON text ⇄ RTFS values (RTFS, "Values"), losing nothing.
//!
//! Objects become maps with keyword keys, arrays vectors, `null` nil. The order of keys stays, and
//! integers stay exact however long they are. What would be lost in silence is an error instead:
//! a key that comes twice, a number beyond the largest float, half of a surrogate pair.
//!
//! # How it works
//!
//! The reader is written by hand, since serde's data model has no place for a long integer, and it
//! keeps open arrays and objects on a stack of its own, so that no nesting can exhaust the thread's.
//! Equal keys within one text share one keyword. The writer recurses, which is safe because the
//! depth of a value is bounded ([`rtfs::MAX_DEPTH`]).

use std::borrow::Cow;
use std::collections::{HashMap, HashSet};
use std::fmt::Write;

use num_bigint::BigInt;
use rtfs::{Keyword, MAX_DEPTH, Map, Value, Vector};

/// The most digits an integer may have. Converting takes time that grows with their square, and
/// 10,000 take less than a millisecond.
const MAX_DIGITS: usize = 10_000;

/// Why JSON text is no value, or a value has no JSON text. Reads
/// `$.items[3].price: 1e400 is beyond the largest number (line 1, column 35)`.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{path}: {problem}{}", at(*.position))]
pub struct JsonError {
    /// Where in the data: `$` is its root.
    pub path: String,
    /// What is wrong there.
    pub problem: String,
    /// Line and column in the text, both from 1; the column counts characters. None for a value.
    pub position: Option<(usize, usize)>,
}

fn at(position: Option<(usize, usize)>) -> String {
    position.map_or_else(String::new, |(line, column)| format!(" (line {line}, column {column})"))
}

/// Reads one JSON value.
///
/// # Errors
/// Text that is not exactly one JSON value (RFC 8259), and JSON that no value can hold: nested
/// deeper than [`MAX_DEPTH`], a key twice in one object, a number beyond the largest float, an
/// integer of more than 10,000 digits, a lone surrogate.
pub fn value_from_json(text: &str) -> Result<Value, JsonError> {
    Reader { text, at: 0, open: Vec::new(), keywords: HashMap::new() }.read()
}

/// Writes a value as compact JSON: a keyword or symbol as its name, a set as an array, an instant
/// and a UUID as strings, integer keys as decimal text.
///
/// # Errors
/// NaN and the infinities, keys that JSON cannot say, and two keys that would become one.
pub fn value_to_json(value: &Value) -> Result<String, JsonError> {
    let mut writer = Writer { out: String::new(), path: "$".to_owned() };
    writer.value(value)?;
    Ok(writer.out)
}

/// Removes the white space around the tokens of valid JSON text, and thereby all line breaks.
/// Numbers and strings stay as they are.
pub fn compact(json: &str) -> String {
    let mut out = String::with_capacity(json.len());
    let mut rest = json;
    while let Some(quote) = rest.find('"') {
        let (outside, string) = rest.split_at(quote);
        out.extend(outside.split_ascii_whitespace());
        let end = end_of_string(string.as_bytes());
        out.push_str(&string[..end]);
        rest = &string[end..];
    }
    out.extend(rest.split_ascii_whitespace());
    out
}

/// The length of the string literal that `json` begins with.
fn end_of_string(json: &[u8]) -> usize {
    let mut at = 1;
    while let Some(&byte) = json.get(at) {
        match byte {
            b'"' => return at + 1,
            b'\\' => at += 2,
            _ => at += 1,
        }
    }
    json.len()
}

/// Appends a step into an object to a path: `.name`, or `["odd name"]`.
pub(crate) fn push_key(path: &mut String, key: &str) {
    let is_plain = |c: char| c.is_alphanumeric() || c == '_' || c == '-' || c == '$';
    if !key.is_empty() && key.chars().all(is_plain) {
        path.push('.');
        path.push_str(key);
    } else {
        path.push('[');
        push_string(path, key);
        path.push(']');
    }
}

/// Appends a step into an array to a path.
pub(crate) fn push_index(path: &mut String, index: usize) {
    path.push_str(&format!("[{index}]"));
}

struct Reader<'t> {
    text: &'t str,
    /// The byte that comes next.
    at: usize,
    open: Vec<Open>,
    keywords: HashMap<Cow<'t, str>, Keyword>,
}

/// An array or object whose end has not come yet.
enum Open {
    Array(Vec<Value>),
    Object { map: Map, key: Keyword },
}

impl<'t> Reader<'t> {
    fn read(mut self) -> Result<Value, JsonError> {
        loop {
            if let Some(value) = self.begin()?
                && let Some(whole) = self.finish(value)?
            {
                self.skip_space();
                return match self.peek() {
                    None => Ok(whole),
                    Some(_) => Err(self.unexpected("the end of the text")),
                };
            }
        }
    }

    /// Reads a value, or opens an array or object whose first value is next.
    fn begin(&mut self) -> Result<Option<Value>, JsonError> {
        self.skip_space();
        Ok(Some(match self.peek() {
            Some(b'[') => {
                self.enter()?;
                self.open.push(Open::Array(Vec::new()));
                if !self.skip_if(b']') {
                    return Ok(None);
                }
                self.open.pop();
                self.vector(Vec::new())?
            }
            Some(b'{') => {
                self.enter()?;
                if !self.skip_if(b'}') {
                    let key = self.key()?;
                    self.open.push(Open::Object { map: Map::new(), key });
                    return Ok(None);
                }
                Map::new().into()
            }
            Some(b'"') => Value::from(self.string()?.as_ref()),
            Some(b'-' | b'0'..=b'9') => self.number()?,
            Some(b't') => self.word("true", Value::Bool(true))?,
            Some(b'f') => self.word("false", Value::Bool(false))?,
            Some(b'n') => self.word("null", Value::Nil)?,
            _ => return Err(self.unexpected("a value")),
        }))
    }

    /// Puts a value where it belongs, and closes whatever ends after it. Gives the outermost value
    /// when that is complete; otherwise another value is next.
    fn finish(&mut self, mut value: Value) -> Result<Option<Value>, JsonError> {
        loop {
            let Some(innermost) = self.open.last_mut() else { return Ok(Some(value)) };
            match innermost {
                Open::Array(items) => {
                    items.push(value);
                    if self.skip_if(b',') {
                        return Ok(None);
                    }
                    if !self.skip_if(b']') {
                        return Err(self.unexpected("`,` or `]`"));
                    }
                }
                Open::Object { map, key } => {
                    if map.insert(Value::Keyword(key.clone()), value).is_err() {
                        return Err(self.too_deep());
                    }
                    if self.skip_if(b',') {
                        let key = self.key()?;
                        self.next_key(key)?;
                        return Ok(None);
                    }
                    if !self.skip_if(b'}') {
                        return Err(self.unexpected("`,` or `}`"));
                    }
                }
            }
            value = match self.open.pop() {
                Some(Open::Array(items)) => self.vector(items)?,
                Some(Open::Object { map, .. }) => map.into(),
                None => return Ok(None), // it was there just now
            };
        }
    }

    fn next_key(&mut self, next: Keyword) -> Result<(), JsonError> {
        let Some(Open::Object { map, key }) = self.open.last_mut() else { return Ok(()) };
        let is_duplicate = map.get_keyword(next.name()).is_some();
        *key = next;
        if is_duplicate { Err(self.problem("this key comes twice")) } else { Ok(()) }
    }

    /// Reads `"key":`.
    fn key(&mut self) -> Result<Keyword, JsonError> {
        self.skip_space();
        if self.peek() != Some(b'"') {
            return Err(self.unexpected("a key in quotes"));
        }
        let name = self.string()?;
        if !self.skip_if(b':') {
            return Err(self.unexpected("`:`"));
        }
        if let Some(keyword) = self.keywords.get(&name) {
            return Ok(keyword.clone());
        }
        let keyword = Keyword::new(&*name);
        self.keywords.insert(name, keyword.clone());
        Ok(keyword)
    }

    fn enter(&mut self) -> Result<(), JsonError> {
        if self.open.len() >= usize::from(MAX_DEPTH) {
            return Err(self.too_deep());
        }
        self.at += 1;
        Ok(())
    }

    fn vector(&self, items: Vec<Value>) -> Result<Value, JsonError> {
        Vector::new(items).map(Value::Vector).map_err(|_| self.too_deep())
    }

    fn number(&mut self) -> Result<Value, JsonError> {
        let start = self.at;
        self.at += usize::from(self.peek() == Some(b'-'));
        let has_leading_zero = self.peek() == Some(b'0');
        let digits = self.digits()?;
        if has_leading_zero && digits > 1 {
            self.at = start;
            return Err(self.problem("a number has no leading zeros"));
        }
        let mut is_integer = true;
        if self.peek() == Some(b'.') {
            self.at += 1;
            self.digits()?;
            is_integer = false;
        }
        if let Some(b'e' | b'E') = self.peek() {
            self.at += 1;
            self.at += usize::from(matches!(self.peek(), Some(b'+' | b'-')));
            self.digits()?;
            is_integer = false;
        }
        let text = &self.text[start..self.at];
        let value = if !is_integer {
            text.parse().ok().filter(|float: &f64| float.is_finite()).map(Value::Float)
        } else if let Ok(small) = text.parse() {
            Some(Value::Int(small))
        } else if digits <= MAX_DIGITS {
            text.parse::<BigInt>().ok().map(Value::from)
        } else {
            self.at = start;
            let problem =
                format!("an integer of {digits} digits is too long, at most {MAX_DIGITS} are possible");
            return Err(self.problem(&problem));
        };
        value.ok_or_else(|| {
            self.at = start;
            self.problem(&format!("{} is beyond the largest number", cut(text, 40)))
        })
    }

    /// Skips digits, at least one, and says how many.
    fn digits(&mut self) -> Result<usize, JsonError> {
        let digits = self.rest().iter().take_while(|byte| byte.is_ascii_digit()).count();
        self.at += digits;
        if digits == 0 { Err(self.unexpected("a digit")) } else { Ok(digits) }
    }

    fn word(&mut self, word: &str, value: Value) -> Result<Value, JsonError> {
        if !self.rest().starts_with(word.as_bytes()) {
            return Err(self.unexpected("a value"));
        }
        self.at += word.len();
        Ok(value)
    }

    fn string(&mut self) -> Result<Cow<'t, str>, JsonError> {
        self.at += 1;
        let mut unescaped: Option<String> = None;
        loop {
            let start = self.at;
            let is_plain = |byte: &&u8| !matches!(byte, b'"' | b'\\' | 0..=0x1f);
            self.at += self.rest().iter().take_while(is_plain).count();
            let plain = &self.text[start..self.at];
            match self.peek() {
                Some(b'"') => {
                    self.at += 1;
                    return Ok(match unescaped {
                        None => Cow::Borrowed(plain),
                        Some(text) => Cow::Owned(text + plain),
                    });
                }
                Some(b'\\') => {
                    let text = unescaped.get_or_insert_default();
                    text.push_str(plain);
                    text.push(self.escape()?);
                }
                Some(_) => return Err(self.problem("a control character in a string has to be escaped")),
                None => return Err(self.problem("the string does not end")),
            }
        }
    }

    fn escape(&mut self) -> Result<char, JsonError> {
        let start = self.at;
        self.at += 2;
        Ok(match self.text.as_bytes().get(start + 1) {
            Some(b'"') => '"',
            Some(b'\\') => '\\',
            Some(b'/') => '/',
            Some(b'b') => '\u{8}',
            Some(b'f') => '\u{c}',
            Some(b'n') => '\n',
            Some(b'r') => '\r',
            Some(b't') => '\t',
            Some(b'u') => {
                let units = match self.hex4()? {
                    high @ 0xd800..=0xdbff if self.rest().starts_with(b"\\u") => {
                        self.at += 2;
                        vec![high, self.hex4()?]
                    }
                    unit => vec![unit],
                };
                match char::decode_utf16(units).next() {
                    Some(Ok(char)) => char,
                    _ => {
                        self.at = start;
                        return Err(self.problem("half of a surrogate pair is no character"));
                    }
                }
            }
            _ => {
                self.at = start;
                return Err(self.problem("unknown escape in a string"));
            }
        })
    }

    fn hex4(&mut self) -> Result<u16, JsonError> {
        let digits = self.rest().get(..4).filter(|digits| digits.iter().all(u8::is_ascii_hexdigit));
        let unit = digits
            .and_then(|digits| std::str::from_utf8(digits).ok())
            .and_then(|digits| u16::from_str_radix(digits, 16).ok())
            .ok_or_else(|| self.problem("`\\u` has to be followed by four hexadecimal digits"))?;
        self.at += 4;
        Ok(unit)
    }

    fn rest(&self) -> &'t [u8] {
        &self.text.as_bytes()[self.at.min(self.text.len())..]
    }

    fn peek(&self) -> Option<u8> {
        self.text.as_bytes().get(self.at).copied()
    }

    fn skip_space(&mut self) {
        self.at += self.rest().iter().take_while(|byte| b" \t\r\n".contains(byte)).count();
    }

    /// Skips white space, and then this byte if it comes.
    fn skip_if(&mut self, byte: u8) -> bool {
        self.skip_space();
        let comes = self.peek() == Some(byte);
        self.at += usize::from(comes);
        comes
    }

    fn too_deep(&self) -> JsonError {
        let mut error = self.problem(&format!("nested deeper than {MAX_DEPTH} levels"));
        error.path = cut(&error.path, 200);
        error
    }

    fn unexpected(&self, expected: &str) -> JsonError {
        match self.text.get(self.at..).and_then(|rest| rest.chars().next()) {
            Some(char) => self.problem(&format!("expected {expected}, got {char:?}")),
            None => self.problem(&format!("expected {expected}, got the end of the text")),
        }
    }

    fn problem(&self, problem: &str) -> JsonError {
        let mut path = "$".to_owned();
        for open in &self.open {
            match open {
                Open::Array(items) => push_index(&mut path, items.len()),
                Open::Object { key, .. } => push_key(&mut path, key.name()),
            }
        }
        let before = self.text.get(..self.at).unwrap_or(self.text);
        let line_start = before.rfind('\n').map_or(0, |newline| newline + 1);
        let line = before.bytes().filter(|&byte| byte == b'\n').count() + 1;
        let position = Some((line, before[line_start..].chars().count() + 1));
        JsonError { path, problem: problem.to_owned(), position }
    }
}

/// At most `limit` characters of a text, with an ellipsis where more was cut off.
pub(crate) fn cut(text: &str, limit: usize) -> String {
    match text.char_indices().nth(limit) {
        None => text.to_owned(),
        Some((end, _)) => format!("{}…", &text[..end]),
    }
}

struct Writer {
    out: String,
    path: String,
}

impl Writer {
    fn value(&mut self, value: &Value) -> Result<(), JsonError> {
        match value {
            Value::Nil => self.out.push_str("null"),
            Value::Bool(bool) => self.text(bool),
            Value::Int(integer) => self.text(integer),
            Value::BigInt(integer) => self.text(integer.get()),
            Value::Float(float) if float.is_finite() => self.text(format_args!("{float:?}")),
            Value::Float(_) => return Err(self.problem(format!("{value:?} cannot be written as JSON"))),
            Value::Keyword(keyword) => push_string(&mut self.out, keyword.name()),
            Value::Symbol(symbol) => push_string(&mut self.out, symbol.name()),
            Value::Str(text) => push_string(&mut self.out, text.as_str()),
            Value::Instant(instant) => self.text(format_args!("\"{instant}\"")),
            Value::Uuid(uuid) => self.text(format_args!("\"{uuid}\"")),
            Value::Vector(vector) => self.array(vector.items().iter())?,
            Value::List(list) => self.array(list.items().iter())?,
            Value::Set(set) => self.array(set.iter())?,
            Value::Map(map) => self.object(map)?,
            _ => return Err(self.problem(format!("a {} cannot be written as JSON", value.type_name()))),
        }
        Ok(())
    }

    fn text(&mut self, text: impl std::fmt::Display) {
        let _cannot_fail = write!(self.out, "{text}");
    }

    fn array<'v>(&mut self, items: impl Iterator<Item = &'v Value>) -> Result<(), JsonError> {
        let outer = self.path.len();
        self.out.push('[');
        for (i, item) in items.enumerate() {
            if i > 0 {
                self.out.push(',');
            }
            push_index(&mut self.path, i);
            self.value(item)?;
            self.path.truncate(outer);
        }
        self.out.push(']');
        Ok(())
    }

    fn object(&mut self, map: &Map) -> Result<(), JsonError> {
        let outer = self.path.len();
        // Keywords cannot collide among themselves; only then is the set filled.
        let mixed = map.iter().any(|(key, _)| !matches!(key, Value::Keyword(_)));
        let mut names = HashSet::new();
        self.out.push('{');
        for (i, (key, value)) in map.iter().enumerate() {
            if i > 0 {
                self.out.push(',');
            }
            let Some(name) = key_name(key) else {
                return Err(self
                    .problem(format!("the key {} cannot be written as JSON", cut(&key.pr_str(), 80))));
            };
            push_key(&mut self.path, &name);
            push_string(&mut self.out, &name);
            if mixed && !names.insert(name) {
                return Err(self.problem("two keys become this one in JSON".to_owned()));
            }
            self.out.push(':');
            self.value(value)?;
            self.path.truncate(outer);
        }
        self.out.push('}');
        Ok(())
    }

    fn problem(&self, problem: String) -> JsonError {
        JsonError { path: self.path.clone(), problem, position: None }
    }
}

/// The name of a key in JSON, if it can be one.
fn key_name(key: &Value) -> Option<Cow<'_, str>> {
    Some(match key {
        Value::Keyword(keyword) => keyword.name().into(),
        Value::Symbol(symbol) => symbol.name().into(),
        Value::Str(text) => text.as_str().into(),
        Value::Int(_) | Value::BigInt(_) | Value::Instant(_) | Value::Uuid(_) => key.to_string().into(),
        _ => return None,
    })
}

fn push_string(out: &mut String, text: &str) {
    out.push('"');
    for char in text.chars() {
        match char {
            '"' => out.push_str("\\\""),
            '\\' => out.push_str("\\\\"),
            '\n' => out.push_str("\\n"),
            '\r' => out.push_str("\\r"),
            '\t' => out.push_str("\\t"),
            '\0'..='\u{1f}' => {
                let _cannot_fail = write!(out, "\\u{:04x}", u32::from(char));
            }
            char => out.push(char),
        }
    }
    out.push('"');
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use rtfs::{Instant, List, Set, Uuid};

    use super::*;

    #[test]
    fn reads_each_kind_as_its_own() {
        let cases = [
            ("null", "nil"),
            (" true ", "true"),
            ("-7", "-7"),
            ("-0", "0"),
            ("-0.0", "-0.0"),
            ("1.0", "1.0"),
            ("1e2", "100.0"),
            ("9223372036854775808", "9223372036854775808"),
            ("123456789012345678901234567890", "123456789012345678901234567890"),
            (r#""a\"\\\/\b\f\n\r\tA\u00e9\ud83d\ude00ü""#, r#""a\"\\/\u{8}\u{C}\n\r\tAé😀ü""#),
            ("[]", "[]"),
            ("{}", "{}"),
            ("[1, [2, {}], []]", "[1 [2 {}] []]"),
            (
                r#"{"b": 1, "a": {"ns/k": null, "odd key": [{"b": 2}]}}"#,
                r#"{:b 1, :a {:ns/k nil, :"odd key" [{:b 2}]}}"#,
            ),
        ];
        for (json, value) in cases {
            assert_eq!(value_from_json(json).unwrap().pr_str(), value, "{json}");
        }
    }

    #[test]
    fn refuses_what_it_would_lose_and_says_where() {
        let cases = [
            (
                r#"{"items": [0, {"price": 1e400}]}"#,
                "$.items[1].price: 1e400 is beyond the largest number (line 1, column 25)",
            ),
            ("{\"a\": 1,\n \"a\": 2}", "$.a: this key comes twice (line 2, column 6)"),
            (r#"{"a": "\ud800"}"#, "$.a: half of a surrogate pair is no character (line 1, column 8)"),
            (r#"["\udc00\ud800"]"#, "$[0]: half of a surrogate pair is no character (line 1, column 3)"),
            (r#"["\ud800\u0041"]"#, "$[0]: half of a surrogate pair is no character (line 1, column 3)"),
            ("", "$: expected a value, got the end of the text (line 1, column 1)"),
            ("[1", "$[1]: expected `,` or `]`, got the end of the text (line 1, column 3)"),
            ("[1,]", "$[1]: expected a value, got ']' (line 1, column 4)"),
            ("{\"ü b\": x}", "$[\"ü b\"]: expected a value, got 'x' (line 1, column 9)"),
            ("{a: 1}", "$: expected a key in quotes, got 'a' (line 1, column 2)"),
            ("1 2", "$: expected the end of the text, got '2' (line 1, column 3)"),
            ("01", "$: a number has no leading zeros (line 1, column 1)"),
            ("-", "$: expected a digit, got the end of the text (line 1, column 2)"),
            ("1.e3", "$: expected a digit, got 'e' (line 1, column 3)"),
            ("truth", "$: expected a value, got 't' (line 1, column 1)"),
            ("\"a\nb\"", "$: a control character in a string has to be escaped (line 1, column 3)"),
            (r#""\x""#, "$: unknown escape in a string (line 1, column 2)"),
            (r#""\"#, "$: unknown escape in a string (line 1, column 2)"),
            (r#""\ü"#, "$: unknown escape in a string (line 1, column 2)"),
            (r#""\u00g0""#, "$: `\\u` has to be followed by four hexadecimal digits (line 1, column 4)"),
            (r#""abc"#, "$: the string does not end (line 1, column 5)"),
        ];
        for (json, text) in cases {
            assert_eq!(value_from_json(json).unwrap_err().to_string(), text, "{json}");
        }
        let long = "9".repeat(10_001);
        assert_eq!(
            value_from_json(&long).unwrap_err().problem,
            "an integer of 10001 digits is too long, at most 10000 are possible"
        );
    }

    #[test]
    fn bounds_depth_without_recursion() {
        let nested = |depth: usize| "[".repeat(depth) + &"]".repeat(depth);
        assert_eq!(value_from_json(&nested(1_000)).unwrap().depth(), 1_000);
        assert_eq!(
            value_from_json(&nested(1_001)).unwrap_err().problem,
            "nested deeper than 1000 levels"
        );
        assert!(value_from_json(&"[".repeat(1_000_000)).is_err());
        assert!(value_from_json(&r#"{"a":"#.repeat(1_000_000)).is_err());
        let deepest = nested(1_000);
        assert_eq!(value_to_json(&value_from_json(&deepest).unwrap()).unwrap(), deepest);
    }

    #[test]
    fn writes_what_only_rtfs_has_as_what_json_has() {
        let mut set = Set::new();
        set.insert(Value::keyword("a/b")).unwrap();
        let mut map = Map::new();
        for (key, value) in [
            (Value::from("text"), Value::Set(set)),
            (Value::from(3), Value::List(List::new(vec![Value::Nil]).unwrap())),
            (Value::keyword("at"), Value::Instant(Instant::from_unix(0, 0).unwrap())),
            (Value::keyword("id"), Value::Uuid(Uuid::from_u128(1))),
        ] {
            map.insert(key, value).unwrap();
        }
        assert_eq!(
            value_to_json(&map.into()).unwrap(),
            r#"{"text":["a/b"],"3":[null],"at":"1970-01-01T00:00:00Z","id":"00000000-0000-0000-0000-000000000001"}"#
        );
    }

    #[test]
    fn refuses_what_json_cannot_say_and_names_the_path() {
        let map = |entries: Vec<(Value, Value)>| {
            let mut map = Map::new();
            for (key, value) in entries {
                map.insert(key, value).unwrap();
            }
            Value::from(map)
        };
        let nan = Value::vector(vec![1.into(), f64::NAN.into()]).unwrap();
        let cases = [
            (map(vec![(Value::keyword("a"), nan)]), "$.a[1]: ##NaN cannot be written as JSON"),
            (Value::from(f64::NEG_INFINITY), "$: ##-Inf cannot be written as JSON"),
            (map(vec![(Value::from(1.5), Value::Nil)]), "$: the key 1.5 cannot be written as JSON"),
            (
                map(vec![(Value::keyword("1"), Value::Nil), (Value::from(1), Value::Nil)]),
                "$.1: two keys become this one in JSON",
            ),
        ];
        for (value, text) in cases {
            assert_eq!(value_to_json(&value).unwrap_err().to_string(), text);
        }
    }

    #[test]
    fn compacting_touches_neither_strings_nor_numbers() {
        let cases = [
            (" { \"a b\" : [ 1.10 ,\n\t1e400 ] }\r\n", "{\"a b\":[1.10,1e400]}"),
            (r#"[ "x \" y \\" , "\\" , " " ]"#, r#"["x \" y \\","\\"," "]"#),
            ("7", "7"),
        ];
        for (json, compacted) in cases {
            assert_eq!(compact(json), compacted);
        }
    }

    fn any_json() -> impl Strategy<Value = Value> {
        let leaf = prop_oneof![
            Just(Value::Nil),
            any::<bool>().prop_map(Value::Bool),
            any::<i64>().prop_map(Value::Int),
            any::<i128>().prop_map(|integer| BigInt::from(integer).into()),
            any::<f64>()
                .prop_filter("JSON has only these", |float| float.is_finite())
                .prop_map(Value::Float),
            any::<String>().prop_map(Value::from),
        ];
        leaf.prop_recursive(5, 64, 12, |inner| {
            let entries = proptest::collection::hash_map(any::<String>(), inner.clone(), 0..12);
            prop_oneof![
                proptest::collection::vec(inner, 0..12).prop_map(|items| Value::vector(items).unwrap()),
                entries.prop_map(|entries| {
                    let mut map = Map::new();
                    for (key, value) in entries {
                        map.insert(Value::keyword(key), value).unwrap();
                    }
                    map.into()
                }),
            ]
        })
    }

    proptest! {
        #[test]
        fn what_was_written_reads_as_the_same(value in any_json()) {
            let json = value_to_json(&value).unwrap();
            prop_assert_eq!(&value_from_json(&json).unwrap(), &value);
            let indented = format!("{:#}", serde_json::from_str::<serde_json::Value>(&json).unwrap());
            prop_assert_eq!(compact(&json), json); // it is compact
            prop_assert_eq!(compact(&indented), indented.parse::<serde_json::Value>().unwrap().to_string());
        }

        #[test]
        fn accepts_what_serde_accepts_and_nothing_else(text in r#"[\[\]{}:,"\\u0-9a-f.eE+\- \n\u{0}tru]{0,24}"#) {
            let ours = value_from_json(&text);
            let theirs = serde_json::from_str::<serde_json::Value>(&text);
            let lossy = ours.as_ref().is_err_and(|error| error.problem.contains("twice"));
            prop_assert!(lossy || ours.is_ok() == theirs.is_ok(), "{:?} {:?}", ours, theirs);
        }
    }
}
