//! Places in a text, and problems there.

use std::fmt;
use std::sync::{Arc, OnceLock};

/// A text with its name for messages.
#[derive(Clone, Debug)]
pub struct Source {
    name: Arc<str>,
    text: Arc<str>,
    /// The beginning of each line, computed on first use.
    lines: Arc<OnceLock<Vec<u32>>>,
}

impl Source {
    /// Creates a source. `name` is a file's or module's name; it may be empty.
    pub fn new(name: impl Into<Arc<str>>, text: impl Into<Arc<str>>) -> Self {
        Self { name: name.into(), text: text.into(), lines: Arc::default() }
    }

    /// Returns whether both are the same object, not only equal.
    pub(crate) fn is(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.text, &other.text)
    }

    /// Returns the name for messages.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Returns the text.
    pub fn text(&self) -> &str {
        &self.text
    }

    /// Returns the line and column of a byte of the text.
    pub fn position(&self, at: u32) -> Position {
        let bytes = self.text.as_bytes();
        let lines = self.lines.get_or_init(|| {
            let newlines = bytes.iter().enumerate().filter(|(_, byte)| **byte == b'\n');
            std::iter::once(0).chain(newlines.map(|(at, _)| at as u32 + 1)).collect()
        });
        let line = lines.partition_point(|&start| start <= at).max(1);
        let before = &bytes[lines[line - 1] as usize..(at as usize).min(bytes.len())];
        // Continuation bytes of UTF-8 are no characters.
        let column = 1 + before.iter().filter(|&&byte| byte & 0xc0 != 0x80).count();
        Position { line: line as u32, column: column as u32 }
    }

    /// Returns the line of a byte, with carets below the span.
    pub fn excerpt(&self, span: Span) -> String {
        /// The maximum width; longer lines are cut around the place.
        const WIDTH: usize = 100;
        let Position { line, column } = self.position(span.start);
        let start = (span.start as usize).min(self.text.len());
        let begin = self.text[..self.text.floor_char_boundary(start)].rfind('\n').map_or(0, |at| at + 1);
        let text = self.text[begin..].lines().next().unwrap_or_default();
        let skip = (column as usize - 1).saturating_sub(WIDTH * 2 / 3);
        let shown: String =
            text.chars().skip(skip).take(WIDTH).map(|c| if c.is_control() { ' ' } else { c }).collect();
        let on_line = begin + text.len();
        let end = (span.end as usize).clamp(start, on_line.max(start));
        let carets = self.text[self.text.floor_char_boundary(start)..self.text.floor_char_boundary(end)]
            .chars()
            .count();
        let left = column as usize - 1 - skip;
        let carets = carets.clamp(1, WIDTH.saturating_sub(left).max(1));
        let gutter = line.to_string();
        let blank = " ".repeat(gutter.len());
        format!("{gutter} | {shown}\n{blank} | {}{}", " ".repeat(left), "^".repeat(carets))
    }
}

/// A span of a text, in bytes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Span {
    /// The first byte.
    pub start: u32,
    /// The byte after the last.
    pub end: u32,
}

/// Line and column, both from 1; the column counts characters.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Position {
    /// From 1.
    pub line: u32,
    /// From 1, in characters.
    pub column: u32,
}

/// The severity of a problem.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Severity {
    /// The code cannot be compiled, or cannot succeed.
    Error,
    /// The code is probably a mistake.
    Warning,
}

impl Severity {
    /// Returns `error` or `warning`.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Error => "error",
            Self::Warning => "warning",
        }
    }
}

/// A problem in a text.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Diagnostic {
    /// The severity.
    pub severity: Severity,
    /// The kind of error, as in `catch`: `syntax` for all errors of reading, expanding and compiling.
    /// For warnings: `unused`, `unreachable`, `key`, or the kind of an error that a handler may catch.
    pub kind: &'static str,
    /// The problem, and the correction.
    pub message: String,
    /// The place.
    pub span: Span,
    /// The position of its start.
    pub position: Position,
    /// The name of the text, if it has one.
    pub source: String,
    /// The line with carets below the place.
    pub excerpt: String,
}

impl Diagnostic {
    pub(crate) fn new(source: &Source, span: Span, message: impl Into<String>) -> Self {
        Self {
            severity: Severity::Error,
            kind: "syntax",
            message: message.into(),
            span,
            position: source.position(span.start),
            source: source.name().to_owned(),
            excerpt: source.excerpt(span),
        }
    }
}

/// `file:3:5: message`, then the excerpt.
impl fmt::Display for Diagnostic {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if !self.source.is_empty() {
            write!(f, "{}:", self.source)?;
        }
        let Position { line, column } = self.position;
        let warning = if self.severity == Severity::Warning { "warning: " } else { "" };
        write!(f, "{line}:{column}: {warning}{}\n{}", self.message, self.excerpt)
    }
}

impl std::error::Error for Diagnostic {}

/// All problems of a text: at least one, in the order of their places.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Diagnostics(pub Vec<Diagnostic>);

impl fmt::Display for Diagnostics {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (i, diagnostic) in self.0.iter().enumerate() {
            if i > 0 {
                f.write_str("\n")?;
            }
            diagnostic.fmt(f)?;
        }
        Ok(())
    }
}

impl std::error::Error for Diagnostics {}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_excerpt_points_at_the_place() {
        let source = Source::new("", "(a\n  ü 12x)\n");
        let at = source.text().find("12x").unwrap() as u32;
        let span = Span { start: at, end: at + 3 };
        assert_eq!(source.position(at), Position { line: 2, column: 5 });
        assert_eq!(source.excerpt(span), "2 |   ü 12x)\n  |     ^^^");
        let end = source.text().len() as u32;
        assert_eq!(source.position(end), Position { line: 3, column: 1 });
        assert_eq!(source.excerpt(Span { start: end, end }), "3 | \n  | ^");
    }

    #[test]
    fn a_long_line_is_cut_around_the_place() {
        let source = Source::new("", format!("{}!{}", "a".repeat(5_000), "b".repeat(5_000)));
        let excerpt = source.excerpt(Span { start: 5_000, end: 9_000 });
        let lines: Vec<_> = excerpt.lines().collect();
        assert!(lines[0].len() < 120 && lines[0].contains("a!b"));
        assert_eq!(lines[1].find('^'), lines[0].find('!'));
    }
}
