//! The tokens of the reader: names, numbers, strings, comments.

use super::diagnostic::Span;
use super::number;
use super::reader::{CLASSES, Class, Open, Reader, What};
use super::tree::Kind;
use crate::scalar::{Instant, Uuid};
use crate::value::Value;

impl Reader {
    pub(super) fn dispatch(&mut self, text: &str) {
        let start = self.at;
        let bytes = text.as_bytes();
        match bytes.get(start + 1) {
            Some(b'{') => {
                self.open.push(Open {
                    what: What::Collection(Kind::Set),
                    start: start as u32,
                    first: self.pending.len(),
                });
                self.at += 2;
            }
            Some(b'(') => {
                self.open.push(Open {
                    what: What::Collection(Kind::FnLiteral),
                    start: start as u32,
                    first: self.pending.len(),
                });
                self.at += 2;
            }
            Some(b'_') => self.prefix(What::Discard, 2),
            Some(b'|') => self.block_comment(bytes),
            Some(b'!') if start == 0 => self.skip_line(bytes),
            Some(b'#') => {
                let end = self.token_end(text, start + 2);
                let float = match &text[start..end] {
                    "##Inf" => f64::INFINITY,
                    "##-Inf" => f64::NEG_INFINITY,
                    "##NaN" => f64::NAN,
                    other => {
                        self.at = end;
                        return self.error(start, end, format!("unknown literal `{other}`"));
                    }
                };
                self.constant(start, end, Value::Float(float));
            }
            _ => {
                self.at = self.token_end(text, start + 1);
                self.error(
                    start,
                    self.at,
                    "unknown use of `#`: sets are `#{…}`, functions `#(…)`, `#_` skips a form",
                );
            }
        }
    }

    pub(super) fn block_comment(&mut self, bytes: &[u8]) {
        let start = self.at;
        let mut depth = 1;
        let mut at = start + 2;
        while depth > 0 {
            match bytes.get(at..at + 2) {
                Some(b"#|") => {
                    depth += 1;
                    at += 2;
                }
                Some(b"|#") => {
                    depth -= 1;
                    at += 2;
                }
                Some(_) => at += 1,
                None => {
                    self.at = bytes.len();
                    return self.error(
                        start,
                        start + 2,
                        "this comment is never closed: `|#` is missing",
                    );
                }
            }
        }
        self.at = at;
    }

    pub(super) fn constant(&mut self, start: usize, end: usize, value: Value) {
        self.at = end;
        let id = self.tree.push_const(Span { start: start as u32, end: end as u32 }, value);
        self.done(id);
    }

    pub(super) fn token_end(&self, text: &str, mut at: usize) -> usize {
        let bytes = text.as_bytes();
        while at < bytes.len() {
            match CLASSES[usize::from(bytes[at])] {
                Class::Token => at += 1,
                Class::Wide => {
                    let c = text[at..].chars().next().unwrap_or(' ');
                    if c.is_whitespace() || c.is_control() {
                        break;
                    }
                    at += c.len_utf8();
                }
                _ => break,
            }
        }
        at
    }

    pub(super) fn token(&mut self, text: &str) {
        let start = self.at;
        let end = self.token_end(text, start);
        self.at = end;
        let token = &text[start..end];
        let bytes = token.as_bytes();
        let span = Span { start: start as u32, end: end as u32 };
        let digit = |at: usize| bytes.get(at).is_some_and(u8::is_ascii_digit);
        let numeric = digit(0) || (matches!(bytes[0], b'-' | b'+') && digit(1));
        if (numeric && bytes.len() >= 20 || bytes.len() == 36)
            && let Some(value) = (Uuid::parse(token).map(Value::Uuid))
                .or_else(|| Instant::parse(token).map(Value::Instant))
        {
            return self.constant(start, end, value);
        }
        if numeric {
            return match number::number(token) {
                Some(value) => self.constant(start, end, value),
                None => self.error(start, end, format!("`{token}` is not a number, instant or UUID")),
            };
        }
        let (kind, name) = match bytes {
            b"nil" => (Kind::Nil, ""),
            b"true" => (Kind::True, ""),
            b"false" => (Kind::False, ""),
            b"?" => (Kind::Optional, ""),
            b":" => (Kind::Colon, ""),
            b":-" => (Kind::ColonDash, ""),
            [b':', ..] => (Kind::Keyword, &token[1..]),
            _ => (Kind::Symbol, token),
        };
        let is_edge = |byte: Option<&u8>| matches!(byte, Some(b':' | b'/'));
        if kind == Kind::Keyword && (is_edge(name.as_bytes().first()) || is_edge(bytes.last())) {
            let message = format!("`{token}` is not a keyword: other texts are written `:\"{name}\"`");
            return self.error(start, end, message);
        }
        let a = if matches!(kind, Kind::Keyword | Kind::Symbol) { self.tree.intern(name) } else { 0 };
        let id = self.tree.push(kind, span, a, 0);
        self.done(id);
    }

    pub(super) fn quoted_keyword(&mut self, text: &str) {
        let start = self.at;
        self.at += 1;
        let Some((end, name)) = self.quoted(text) else { return };
        let name = name.unwrap_or_else(|| text[start + 2..end - 1].to_owned());
        self.at = end;
        let id = self.tree.push_keyword(Span { start: start as u32, end: end as u32 }, &name);
        self.done(id);
    }

    pub(super) fn string(&mut self, text: &str) {
        let start = self.at;
        if text[start..].starts_with("\"\"\"") {
            let Some(len) = text[start + 3..].find("\"\"\"") else {
                self.at = text.len();
                return self.error(start, start + 3, "this text is never closed: `\"\"\"` is missing");
            };
            // Quotes directly before the closing ones belong to the text.
            let mut close = start + 3 + len;
            while text[close..].starts_with("\"\"\"\"") {
                close += 1;
            }
            return self.constant(start, close + 3, text[start + 3..close].into());
        }
        let Some((end, content)) = self.quoted(text) else { return };
        match content {
            Some(content) => self.constant(start, end, content.into()),
            None => {
                self.at = end;
                let id =
                    self.tree.push(Kind::Verbatim, Span { start: start as u32, end: end as u32 }, 0, 0);
                self.done(id);
            }
        }
    }

    /// Returns the end of the quoted text that begins here, and its content unless it is verbatim.
    pub(super) fn quoted(&mut self, text: &str) -> Option<(usize, Option<String>)> {
        let bytes = text.as_bytes();
        let start = self.at;
        let mut at = start + 1;
        let mut content: Option<String> = None;
        let mut from = at; // not copied to `content` yet
        loop {
            at = memchr::memchr2(b'"', b'\\', &bytes[at..]).map_or(bytes.len(), |len| at + len);
            match bytes.get(at) {
                None => {
                    self.at = bytes.len();
                    self.error(start, start + 1, "this string is never closed: `\"` is missing");
                    return None;
                }
                Some(b'"') => break,
                Some(_) => {
                    let content = content.get_or_insert_default();
                    content.push_str(&text[from..at]);
                    let len = match escape(&text[at + 1..]) {
                        Some((c, len)) => {
                            content.push(c);
                            len
                        }
                        None => {
                            let shown: String = text[at..].chars().take(2).collect();
                            let message = format!(
                                "`{shown}` is no escape: these are \\n \\t \\r \\\" \\\\ \\u0041 \\u{{1F600}}"
                            );
                            self.error(at, at + shown.len(), message);
                            shown.len() - 1
                        }
                    };
                    at += 1 + len;
                    from = at;
                }
            }
        }
        if let Some(content) = &mut content {
            content.push_str(&text[from..at]);
        }
        Some((at + 1, content))
    }
}

/// Returns the character that an escape stands for, and the length of the escape after its backslash.
fn escape(rest: &str) -> Option<(char, usize)> {
    let hex = |digits: &str| -> Option<char> {
        let valid =
            !digits.is_empty() && digits.len() <= 6 && digits.bytes().all(|b| b.is_ascii_hexdigit());
        if valid { char::from_u32(u32::from_str_radix(digits, 16).ok()?) } else { None }
    };
    Some(match *rest.as_bytes().first()? {
        b'n' => ('\n', 1),
        b't' => ('\t', 1),
        b'r' => ('\r', 1),
        b'"' => ('"', 1),
        b'\\' => ('\\', 1),
        b'u' if rest[1..].starts_with('{') => {
            let end = rest.get(2..)?.find('}')?;
            (hex(&rest[2..2 + end])?, end + 3)
        }
        b'u' => {
            let unit = |at: usize| -> Option<u16> {
                let digits = rest.get(at..at + 4)?;
                if digits.bytes().all(|b| b.is_ascii_hexdigit()) {
                    u16::from_str_radix(digits, 16).ok()
                } else {
                    None
                }
            };
            let first = unit(1)?;
            match char::from_u32(first.into()) {
                Some(c) => (c, 5),
                // A pair of surrogates, as JSON writes characters beyond 16 bits.
                None if rest.get(5..7) == Some("\\u") => {
                    (char::decode_utf16([first, unit(7)?]).next()?.ok()?, 11)
                }
                None => return None,
            }
        }
        _ => return None,
    })
}
