//! Bytes to forms, in one pass with a stack of its own.

use std::collections::HashSet;

use super::diagnostic::{Diagnostic, Diagnostics, Source, Span};
use super::number;
use super::tree::{Kind, NodeId, Tree};
use crate::value::Value;

/// As many errors of one text are reported.
pub(crate) const MAX_ERRORS: usize = 20;

/// How deep forms may be nested in each other.
const MAX_NESTING: usize = 1_000;

impl Tree {
    /// Reads all forms of a text.
    pub(crate) fn read(source: Source) -> Result<Self, Diagnostics> {
        if source.text().len() >= u32::MAX as usize / 2 {
            return Err(Diagnostics(vec![Diagnostic::new(&source, Span::default(), "the text is too long")]));
        }
        let mut reader = Reader::new(source.clone(), false);
        reader.run();
        if reader.unclosed {
            // Read it again and believe that whatever begins in the first column is no part of
            // something else: then the error is where the closing is missing.
            let mut strict = Reader::new(source, true);
            strict.run();
            if !strict.errors.is_empty() {
                reader = strict;
            }
        }
        if reader.errors.is_empty() {
            return Ok(reader.tree);
        }
        reader.errors.sort_by_key(|error| error.span.start);
        reader.errors.truncate(MAX_ERRORS);
        Err(Diagnostics(reader.errors))
    }
}

struct Reader {
    source: Source,
    tree: Tree,
    at: usize,
    open: Vec<Open>,
    /// Finished forms of whatever is open.
    pending: Vec<NodeId>,
    errors: Vec<Diagnostic>,
    /// Whether `(` in the first column ends whatever is open.
    resync: bool,
    unclosed: bool,
}

/// A collection or a prefix that waits for its forms.
struct Open {
    what: What,
    start: u32,
    /// Where its forms begin among the pending ones.
    first: usize,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum What {
    Collection(Kind),
    Prefix(Kind),
    Discard,
    Metadata,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Class {
    Space,
    /// Ends a token.
    Delimiter,
    /// Part of a token.
    Token,
    /// A byte of a character beyond ASCII.
    Wide,
    Control,
}

static CLASSES: [Class; 256] = classes();

const fn classes() -> [Class; 256] {
    let mut classes = [Class::Token; 256];
    let mut byte = 0;
    while byte < 256 {
        classes[byte] = match byte as u8 {
            b' ' | b',' | b'\t' | b'\n' | b'\r' | 0x0c => Class::Space,
            b'(' | b')' | b'[' | b']' | b'{' | b'}' | b'"' | b';' | b'`' | b'~' | b'@' | b'^' | b'\\' => {
                Class::Delimiter
            }
            0..0x20 | 0x7f => Class::Control,
            0x80.. => Class::Wide,
            _ => Class::Token,
        };
        byte += 1;
    }
    classes
}

impl Reader {
    fn new(source: Source, resync: bool) -> Self {
        Self {
            tree: Tree::empty(source.clone()),
            source,
            at: 0,
            open: Vec::new(),
            pending: Vec::new(),
            errors: Vec::new(),
            resync,
            unclosed: false,
        }
    }

    fn run(&mut self) {
        let source = self.source.clone();
        let text = source.text();
        if text.starts_with('\u{feff}') {
            self.at = 3;
        }
        while self.at < text.len() && self.errors.len() < MAX_ERRORS {
            self.step(text);
            if self.open.len() > MAX_NESTING {
                self.error(self.at - 1, self.at, format!("nested deeper than {MAX_NESTING} levels"));
                return;
            }
        }
        if self.errors.len() < MAX_ERRORS {
            self.finish(text);
        }
        self.tree.roots = std::mem::take(&mut self.pending);
    }

    /// Reads one token.
    fn step(&mut self, text: &str) {
        let bytes = text.as_bytes();
        let start = self.at;
        let byte = bytes[start];
        match CLASSES[usize::from(byte)] {
            Class::Space => self.at += 1,
            Class::Token => match byte {
                b'#' => self.dispatch(text),
                b'\'' => self.prefix(What::Prefix(Kind::Quote), 1),
                b':' if bytes.get(start + 1) == Some(&b'"') => self.quoted_keyword(text),
                _ => self.token(text),
            },
            Class::Wide => {
                let c = text[start..].chars().next().unwrap_or(' ');
                if c.is_whitespace() || c.is_control() || matches!(c, '\u{200b}'..='\u{200f}' | '\u{feff}') {
                    self.at += c.len_utf8();
                    self.error(start, self.at, format!("unexpected character U+{:04X}", u32::from(c)));
                } else {
                    self.token(text);
                }
            }
            Class::Control => {
                self.at += 1;
                self.error(start, self.at, format!("unexpected character U+{:04X}", u32::from(byte)));
            }
            Class::Delimiter => match byte {
                b'(' => self.begin(Kind::List, start),
                b'[' => self.begin(Kind::Vector, start),
                b'{' => self.begin(Kind::Map, start),
                b')' | b']' | b'}' => self.end(byte),
                b'"' => self.string(text),
                b';' => self.skip_line(bytes),
                b'`' => self.prefix(What::Prefix(Kind::Quasiquote), 1),
                b'~' if bytes.get(start + 1) == Some(&b'@') => self.prefix(What::Prefix(Kind::Splice), 2),
                b'~' => self.prefix(What::Prefix(Kind::Unquote), 1),
                b'^' => self.prefix(What::Metadata, 1),
                _ => {
                    self.at += 1;
                    self.error(start, self.at, format!("unexpected `{}`", byte as char));
                }
            },
        }
    }

    fn error(&mut self, start: usize, end: usize, message: impl Into<String>) {
        if self.errors.len() < MAX_ERRORS {
            let span = Span { start: start as u32, end: end as u32 };
            self.errors.push(Diagnostic::new(&self.source, span, message));
        }
    }

    fn skip_line(&mut self, bytes: &[u8]) {
        let rest = &bytes[self.at..];
        self.at += rest.iter().position(|&byte| byte == b'\n').unwrap_or(rest.len());
    }

    fn prefix(&mut self, what: What, len: usize) {
        self.open.push(Open { what, start: self.at as u32, first: self.pending.len() });
        self.at += len;
    }

    fn begin(&mut self, kind: Kind, start: usize) {
        let bytes = self.source.text().as_bytes();
        let in_first_column = kind == Kind::List && (start == 0 || bytes[start - 1] == b'\n');
        if self.resync && in_first_column && !self.open.is_empty() {
            self.abandon();
        }
        let what = What::Collection(kind);
        self.open.push(Open { what, start: start as u32, first: self.pending.len() });
        self.at += 1;
    }

    /// Reports what is open, and closes it.
    fn abandon(&mut self) {
        let innermost = self.open.iter().rev().find(|open| matches!(open.what, What::Collection(_)));
        let open = innermost.or(self.open.last()).map(|open| (open.what, open.start as usize));
        if let Some((what, start)) = open {
            match what {
                What::Collection(kind) => {
                    let (opening, closing) = brackets(kind);
                    self.error(start, start + opening.len(), format!("`{opening}` is never closed: `{closing}` is missing"));
                }
                _ => self.error(start, start + 1, "a form must follow"),
            }
        }
        let first = self.open.first().map_or(0, |open| open.first);
        self.open.clear();
        self.pending.truncate(first);
    }

    fn end(&mut self, byte: u8) {
        let start = self.at;
        self.at += 1;
        while let Some(Open { what: What::Prefix(_) | What::Discard | What::Metadata, start, first }) = self.open.last() {
            let (start, first) = (*start as usize, *first);
            self.open.pop();
            self.pending.truncate(first);
            self.error(start, start + 1, "a form must follow");
        }
        let closes = |what: What| matches!(what, What::Collection(kind) if brackets(kind).1.as_bytes()[0] == byte);
        let Some(open) = self.open.last() else {
            return self.error(start, self.at, format!("`{}` closes nothing", byte as char));
        };
        if !closes(open.what) {
            let What::Collection(kind) = open.what else { return };
            let (opening, closing) = brackets(kind);
            let place = self.source.position(open.start);
            let message = format!(
                "expected `{closing}`, which closes the `{opening}` at {}:{}, got `{}`",
                place.line, place.column, byte as char
            );
            self.error(start, self.at, message);
            // If this closes something further out, what lies between was not closed.
            match self.open.iter().rposition(|open| closes(open.what)) {
                Some(at) => self.open.truncate(at + 1),
                None => return,
            }
        }
        let Some(Open { what: What::Collection(kind), start: from, first }) = self.open.pop() else { return };
        let span = Span { start: from, end: self.at as u32 };
        let parts = self.pending.split_off(first);
        let id = self.tree.with_parts(kind, span, &parts);
        match kind {
            Kind::Map => self.check_map(id),
            Kind::Set => self.check_members(&parts, "duplicate member"),
            _ => {}
        }
        self.done(id);
    }

    fn check_map(&mut self, id: NodeId) {
        let forms = self.tree.forms(id);
        if forms.len() % 2 == 1 {
            let span = self.tree.span(id);
            self.error(span.start as usize, span.end as usize, "a map needs a value for each key: this has an odd number of forms");
        } else {
            let keys: Vec<_> = forms.into_iter().step_by(2).collect();
            self.check_members(&keys, "duplicate key");
        }
    }

    fn check_members(&mut self, members: &[NodeId], what: &str) {
        let all_names = members.iter().all(|&id| matches!(self.tree.kind(id), Kind::Keyword | Kind::Symbol));
        let mut twice = Vec::new();
        if all_names {
            let name = |id: NodeId| (self.tree.node(id).a, self.tree.kind(id) == Kind::Symbol);
            if members.len() <= 16 {
                let repeats = |at: usize| members[..at].iter().any(|&id| name(id) == name(members[at]));
                twice.extend((1..members.len()).filter(|&at| repeats(at)).map(|at| members[at]));
            } else {
                let mut seen = HashSet::with_capacity(members.len());
                twice.extend(members.iter().copied().filter(|&id| !seen.insert(name(id))));
            }
        } else {
            let mut seen = crate::Set::new();
            for &id in members {
                // What is too deep to be a value is reported as such elsewhere.
                let Ok(value) = self.tree.to_value(id) else { continue };
                if !matches!(seen.insert(value), Ok(true)) {
                    twice.push(id);
                }
            }
        }
        for id in twice {
            let span = self.tree.span(id);
            let text = self.source.text()[span.start as usize..span.end as usize].to_owned();
            self.error(span.start as usize, span.end as usize, format!("{what} `{text}`"));
        }
    }

    /// A form is complete; so may be the prefixes before it.
    fn done(&mut self, mut id: NodeId) {
        let end = self.at as u32;
        while let Some(&Open { what, start, first }) = self.open.last() {
            match what {
                What::Collection(_) => break,
                What::Prefix(kind) => {
                    id = self.tree.with_parts(kind, Span { start, end }, &[id]);
                }
                What::Discard => {
                    self.open.pop();
                    return;
                }
                What::Metadata if self.pending.len() == first => {
                    self.pending.push(id);
                    return;
                }
                What::Metadata => {
                    let said = self.pending.pop();
                    let metadata = &mut self.tree.metadata;
                    if let Some(said) = said
                        && metadata.last().is_none_or(|last| last.0 < id)
                    {
                        metadata.push((id, said));
                    }
                }
            }
            self.open.pop();
        }
        self.pending.push(id);
    }

    fn dispatch(&mut self, text: &str) {
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
                self.error(start, self.at, "unknown use of `#`: sets are `#{…}`, functions `#(…)`, `#_` skips a form");
            }
        }
    }

    fn block_comment(&mut self, bytes: &[u8]) {
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
                    return self.error(start, start + 2, "this comment is never closed: `|#` is missing");
                }
            }
        }
        self.at = at;
    }

    fn constant(&mut self, start: usize, end: usize, value: Value) {
        self.at = end;
        let id = self.tree.push_const(Span { start: start as u32, end: end as u32 }, value);
        self.done(id);
    }

    fn token_end(&self, text: &str, mut at: usize) -> usize {
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

    fn token(&mut self, text: &str) {
        let start = self.at;
        let end = self.token_end(text, start);
        self.at = end;
        let token = &text[start..end];
        let bytes = token.as_bytes();
        let span = Span { start: start as u32, end: end as u32 };
        let digit = |at: usize| bytes.get(at).is_some_and(u8::is_ascii_digit);
        let numeric = digit(0) || (matches!(bytes[0], b'-' | b'+') && digit(1));
        if (numeric && bytes.len() >= 20) || bytes.len() == 36 {
            if let Some(value) = number::uuid(token).or_else(|| number::instant(token)) {
                return self.constant(start, end, value);
            }
        }
        if numeric {
            return match number::number(token) {
                Some(value) => self.constant(start, end, value),
                None => self.error(start, end, format!("`{token}` is no number, instant or UUID")),
            };
        }
        let (kind, name) = match token {
            "nil" => (Kind::Nil, ""),
            "true" => (Kind::True, ""),
            "false" => (Kind::False, ""),
            "?" => (Kind::Optional, ""),
            ":" => (Kind::Colon, ""),
            ":-" => (Kind::ColonDash, ""),
            _ if bytes[0] == b':' => (Kind::Keyword, &token[1..]),
            _ => (Kind::Symbol, token),
        };
        if kind == Kind::Keyword && (name.starts_with([':', '/']) || name.ends_with([':', '/'])) {
            let message = format!("`{token}` is no keyword: other texts are written `:\"{name}\"`");
            return self.error(start, end, message);
        }
        let a = if matches!(kind, Kind::Keyword | Kind::Symbol) { self.tree.intern(name) } else { 0 };
        let id = self.tree.push(kind, span, a, 0);
        self.done(id);
    }

    fn quoted_keyword(&mut self, text: &str) {
        let start = self.at;
        self.at += 1;
        let Some((end, name)) = self.quoted(text) else { return };
        let name = name.unwrap_or_else(|| text[start + 2..end - 1].to_owned());
        self.at = end;
        let id = self.tree.push_keyword(Span { start: start as u32, end: end as u32 }, &name);
        self.done(id);
    }

    fn string(&mut self, text: &str) {
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
                let id = self.tree.push(Kind::Verbatim, Span { start: start as u32, end: end as u32 }, 0, 0);
                self.done(id);
            }
        }
    }

    /// The end of the quoted text that begins here, and what it says unless it does so verbatim.
    fn quoted(&mut self, text: &str) -> Option<(usize, Option<String>)> {
        let bytes = text.as_bytes();
        let start = self.at;
        let mut at = start + 1;
        let mut content: Option<String> = None;
        let mut from = at; // what is not in `content` yet
        loop {
            match bytes.get(at) {
                None => {
                    self.at = bytes.len();
                    self.error(start, start + 1, "this string is never closed: `\"` is missing");
                    return None;
                }
                Some(b'"') => break,
                Some(b'\\') => {
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
                Some(_) => at += 1,
            }
        }
        if let Some(content) = &mut content {
            content.push_str(&text[from..at]);
        }
        Some((at + 1, content))
    }

    fn finish(&mut self, text: &str) {
        if !self.open.is_empty() {
            self.unclosed = true;
            self.at = text.len();
            self.abandon();
        }
    }
}

/// The character that an escape stands for, and the length of the escape after its backslash.
fn escape(rest: &str) -> Option<(char, usize)> {
    let hex = |digits: &str| -> Option<char> {
        let valid = !digits.is_empty() && digits.len() <= 6 && digits.bytes().all(|b| b.is_ascii_hexdigit());
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
                if digits.bytes().all(|b| b.is_ascii_hexdigit()) { u16::from_str_radix(digits, 16).ok() } else { None }
            };
            let first = unit(1)?;
            match char::from_u32(first.into()) {
                Some(c) => (c, 5),
                // A pair of surrogates, as JSON writes what lies beyond 16 bits.
                None if rest.get(5..7) == Some("\\u") => {
                    (char::decode_utf16([first, unit(7)?]).next()?.ok()?, 11)
                }
                None => return None,
            }
        }
        _ => return None,
    })
}

fn brackets(kind: Kind) -> (&'static str, &'static str) {
    match kind {
        Kind::Vector => ("[", "]"),
        Kind::Map => ("{", "}"),
        Kind::Set => ("#{", "}"),
        Kind::FnLiteral => ("#(", ")"),
        _ => ("(", ")"),
    }
}
