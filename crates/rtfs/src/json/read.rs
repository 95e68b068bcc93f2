//! Parses JSON text to a value.

use std::borrow::Cow;
use std::collections::HashMap;

use crate::text::excerpt;
use crate::{Keyword, MAX_DEPTH, Map, Value, Vector};
use num_bigint::BigInt;

use super::{JsonError, MAX_PATH, push_index, push_key};

/// The maximum number of digits of an integer. Converting takes time that grows with their square, and
/// 10,000 take less than a millisecond.
const MAX_DIGITS: usize = 10_000;

/// Reads one JSON value.
///
/// # Errors
/// Text that is not exactly one JSON value (RFC 8259), and JSON that no value can hold: nested
/// deeper than [`MAX_DEPTH`], a key twice in one object, a number beyond the largest float, an
/// integer of more than 10,000 digits, a lone surrogate.
pub fn value_from_json(text: &str) -> Result<Value, JsonError> {
    Reader { text, at: 0, open: Vec::new(), keywords: HashMap::new() }.read()
}

struct Reader<'t> {
    text: &'t str,
    /// The index of the next byte.
    at: usize,
    open: Vec<Open>,
    keywords: HashMap<Cow<'t, str>, Keyword>,
}

/// An array or object that is still open.
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

    /// Reads a value, or opens an array or object and continues with its first value.
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

    /// Adds a value to its collection, and closes the collections that end after it. Returns the
    /// outermost value when it is complete; otherwise another value follows.
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
                None => return Ok(None), // checked above
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
            self.problem(&format!("{} is beyond the largest number", excerpt(text, 40)))
        })
    }

    /// Skips digits, at least one, and returns their number.
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
                        return Err(self.problem("half of a surrogate pair is not a character"));
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

    /// Skips white space, and then this byte if it follows.
    fn skip_if(&mut self, byte: u8) -> bool {
        self.skip_space();
        let comes = self.peek() == Some(byte);
        self.at += usize::from(comes);
        comes
    }

    fn too_deep(&self) -> JsonError {
        self.problem(&format!("nested deeper than {MAX_DEPTH} levels"))
    }

    fn unexpected(&self, expected: &str) -> JsonError {
        match self.text.get(self.at..).and_then(|rest| rest.chars().next()) {
            Some('\'') => self.problem(&format!("expected {expected}, got a single quote")),
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
        JsonError { path: excerpt(&path, MAX_PATH), problem: problem.to_owned(), position }
    }
}
