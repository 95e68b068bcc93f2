//! Parses bytes to forms, in one pass with an explicit stack.

use std::collections::HashSet;

use super::diagnostic::{Diagnostic, Diagnostics, Source, Span};
use super::tree::{Kind, NodeId, Tree};

/// The maximum number of reported errors of one text.
pub(crate) const MAX_ERRORS: usize = 20;

/// The maximum nesting of forms.
pub(super) const MAX_NESTING: usize = 1_000;

impl Tree {
    /// Reads all forms of a text.
    pub(crate) fn read(source: Source) -> Result<Self, Diagnostics> {
        if source.text().len() >= u32::MAX as usize / 2 {
            return Err(Diagnostics(vec![Diagnostic::new(
                &source,
                Span::default(),
                "the text is too long",
            )]));
        }
        let mut reader = Reader::new(source.clone(), false);
        reader.run();
        if reader.unclosed {
            // The text is read again, with the assumption that a form in the first column is not part of
            // another form. The error is then at the place of the missing bracket.
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

pub(super) struct Reader {
    pub(super) source: Source,
    pub(super) tree: Tree,
    pub(super) at: usize,
    pub(super) open: Vec<Open>,
    /// Finished forms of the open collections.
    pub(super) pending: Vec<NodeId>,
    pub(super) errors: Vec<Diagnostic>,
    /// Whether `(` in the first column ends all open collections.
    pub(super) resync: bool,
    pub(super) unclosed: bool,
    /// The keys of the map that is being checked.
    keys: Vec<NodeId>,
}

/// A collection or a prefix that waits for its forms.
pub(super) struct Open {
    pub(super) what: What,
    pub(super) start: u32,
    /// The index of its first form among the pending ones.
    pub(super) first: usize,
}

#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum What {
    Collection(Kind),
    Prefix(Kind),
    Discard,
    Metadata,
}

#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Class {
    Space,
    /// Ends a token.
    Delimiter,
    /// Part of a token.
    Token,
    /// A byte of a character beyond ASCII.
    Wide,
    Control,
}

pub(super) static CLASSES: [Class; 256] = classes();

const fn classes() -> [Class; 256] {
    let mut classes = [Class::Token; 256];
    let mut byte = 0;
    while byte < 256 {
        classes[byte] = match byte as u8 {
            b' ' | b',' | b'\t' | b'\n' | b'\r' | 0x0c => Class::Space,
            b'(' | b')' | b'[' | b']' | b'{' | b'}' | b'"' | b';' | b'`' | b'~' | b'@' | b'^'
            | b'\\' => Class::Delimiter,
            0..0x20 | 0x7f => Class::Control,
            0x80.. => Class::Wide,
            _ => Class::Token,
        };
        byte += 1;
    }
    classes
}

impl Reader {
    pub(super) fn new(source: Source, resync: bool) -> Self {
        let mut tree = Tree::empty(source.clone());
        // Code has about one form in three bytes. Unused capacity is never touched.
        let forms = source.text().len() / 3;
        tree.nodes.reserve(forms);
        tree.kids.reserve(forms);
        Self {
            tree,
            source,
            at: 0,
            open: Vec::new(),
            pending: Vec::new(),
            errors: Vec::new(),
            resync,
            unclosed: false,
            keys: Vec::new(),
        }
    }

    pub(super) fn run(&mut self) {
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
    pub(super) fn step(&mut self, text: &str) {
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
                if c.is_whitespace()
                    || c.is_control()
                    || matches!(c, '\u{200b}'..='\u{200f}' | '\u{feff}')
                {
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
                b'~' if bytes.get(start + 1) == Some(&b'@') => {
                    self.prefix(What::Prefix(Kind::Splice), 2);
                }
                b'~' => self.prefix(What::Prefix(Kind::Unquote), 1),
                b'^' => self.prefix(What::Metadata, 1),
                _ => {
                    self.at += 1;
                    self.error(start, self.at, format!("unexpected `{}`", byte as char));
                }
            },
        }
    }

    pub(super) fn error(&mut self, start: usize, end: usize, message: impl Into<String>) {
        if self.errors.len() < MAX_ERRORS {
            let span = Span { start: start as u32, end: end as u32 };
            self.errors.push(Diagnostic::new(&self.source, span, message));
        }
    }

    pub(super) fn skip_line(&mut self, bytes: &[u8]) {
        let rest = &bytes[self.at..];
        self.at += rest.iter().position(|&byte| byte == b'\n').unwrap_or(rest.len());
    }

    pub(super) fn prefix(&mut self, what: What, len: usize) {
        self.open.push(Open { what, start: self.at as u32, first: self.pending.len() });
        self.at += len;
    }

    pub(super) fn begin(&mut self, kind: Kind, start: usize) {
        let bytes = self.source.text().as_bytes();
        let in_first_column = kind == Kind::List && (start == 0 || bytes[start - 1] == b'\n');
        if self.resync && in_first_column && !self.open.is_empty() {
            self.abandon();
        }
        let what = What::Collection(kind);
        self.open.push(Open { what, start: start as u32, first: self.pending.len() });
        self.at += 1;
    }

    /// Reports the open forms, and closes them.
    pub(super) fn abandon(&mut self) {
        let innermost = self.open.iter().rev().find(|open| matches!(open.what, What::Collection(_)));
        let open = innermost.or(self.open.last()).map(|open| (open.what, open.start as usize));
        if let Some((what, start)) = open {
            match what {
                What::Collection(kind) => {
                    let (opening, closing) = brackets(kind);
                    self.error(
                        start,
                        start + opening.len(),
                        format!("`{opening}` is never closed: `{closing}` is missing"),
                    );
                }
                _ => self.error(start, start + 1, "a form must follow"),
            }
        }
        let first = self.open.first().map_or(0, |open| open.first);
        self.open.clear();
        self.pending.truncate(first);
    }

    pub(super) fn end(&mut self, byte: u8) {
        let start = self.at;
        self.at += 1;
        while let Some(Open { what: What::Prefix(_) | What::Discard | What::Metadata, start, first }) =
            self.open.last()
        {
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
            // If this bracket closes an outer form, the inner ones were not closed.
            match self.open.iter().rposition(|open| closes(open.what)) {
                Some(at) => self.open.truncate(at + 1),
                None => return,
            }
        }
        let Some(Open { what: What::Collection(kind), start: from, first }) = self.open.pop() else {
            return;
        };
        let span = Span { start: from, end: self.at as u32 };
        let id = self.tree.with_parts(kind, span, &self.pending[first..]);
        self.pending.truncate(first);
        match kind {
            Kind::Map => self.check_map(id),
            Kind::Set => {
                let members = self.tree.kids(id).to_vec();
                self.check_members(&members, "duplicate member");
            }
            _ => {}
        }
        self.done(id);
    }

    pub(super) fn check_map(&mut self, id: NodeId) {
        let mut keys = std::mem::take(&mut self.keys);
        keys.clear();
        let mut count = 0;
        for &kid in self.tree.kids(id) {
            if !self.tree.kind(kid).is_mark() {
                if count % 2 == 0 {
                    keys.push(kid);
                }
                count += 1;
            }
        }
        if count % 2 == 1 {
            let Span { start, end } = self.tree.span(id);
            let message = "a map needs a value for each key: this has an odd number of forms";
            self.error(start as usize, end as usize, message);
        } else {
            self.check_members(&keys, "duplicate key");
        }
        self.keys = keys;
    }

    pub(super) fn check_members(&mut self, members: &[NodeId], what: &str) {
        let all_names =
            members.iter().all(|&id| matches!(self.tree.kind(id), Kind::Keyword | Kind::Symbol));
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
                // A form that is too deep to be a value is reported elsewhere.
                let Ok(value) = self.tree.value(id) else { continue };
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

    /// Completes a form, and possibly its prefixes.
    pub(super) fn done(&mut self, mut id: NodeId) {
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
                    let form = self.pending.pop();
                    let metadata = &mut self.tree.metadata;
                    if let Some(form) = form
                        && metadata.last().is_none_or(|last| last.0 < id)
                    {
                        metadata.push((id, form));
                    }
                }
            }
            self.open.pop();
        }
        self.pending.push(id);
    }

    pub(super) fn finish(&mut self, text: &str) {
        if !self.open.is_empty() {
            self.unclosed = true;
            self.at = text.len();
            self.abandon();
        }
    }
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
