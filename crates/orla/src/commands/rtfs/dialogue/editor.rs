//! What helps at the line: completion, colours, and the question whether an entry is complete.

use std::borrow::Cow;

use orla_marketplace::rtfs::layout::{TokenKind, tokens};
use rustyline::completion::Completer;
use rustyline::highlight::{CmdKind, Highlighter};
use rustyline::hint::Hinter;
use rustyline::validate::{ValidationContext, ValidationResult, Validator};
use rustyline::{Context, Helper, Result};

use super::goes_on;
use crate::render;

/// The most names that are offered.
const OFFERED: usize = 200;

pub(super) struct Assistant {
    /// In their order.
    names: Vec<String>,
    coloured: bool,
}

impl Assistant {
    pub(super) fn new(names: Vec<String>) -> Self {
        Self { names, coloured: render::stderr_has_colours() }
    }
}

impl Completer for Assistant {
    type Candidate = String;

    fn complete(&self, line: &str, at: usize, _: &Context<'_>) -> Result<(usize, Vec<String>)> {
        Ok(completed(&self.names, line, at))
    }
}

/// Where the name before the cursor begins, and what it may become.
fn completed(names: &[String], line: &str, at: usize) -> (usize, Vec<String>) {
    let Some(before) = line.get(..at) else { return (at, Vec::new()) };
    let begun = tokens(before).last().copied();
    let begun = begun.filter(|token| {
        matches!(
            token.kind,
            TokenKind::Symbol | TokenKind::Keyword | TokenKind::Mark | TokenKind::Literal
        )
    });
    let Some(begun) = begun else { return (at, Vec::new()) };
    let from = names.partition_point(|name| name.as_str() < begun.text);
    let fitting = names[from..].iter().take_while(|name| name.starts_with(begun.text));
    (at - begun.text.len(), fitting.take(OFFERED).cloned().collect())
}

impl Highlighter for Assistant {
    fn highlight<'l>(&self, line: &'l str, _: usize) -> Cow<'l, str> {
        if self.coloured { Cow::Owned(coloured(line)) } else { Cow::Borrowed(line) }
    }

    fn highlight_char(&self, _: &str, _: usize, _: CmdKind) -> bool {
        self.coloured
    }
}

/// The line with the codes of a terminal's colours.
fn coloured(line: &str) -> String {
    let mut text = String::with_capacity(line.len() * 2);
    for token in tokens(line) {
        let code = match token.kind {
            TokenKind::LineComment | TokenKind::BlockComment => "2",
            TokenKind::Text => "32",
            TokenKind::Keyword => "36",
            TokenKind::Literal => "35",
            TokenKind::Broken => "31",
            _ => {
                text.push_str(token.text);
                continue;
            }
        };
        text.push_str(&format!("\x1b[{code}m{}\x1b[0m", token.text));
    }
    text
}

impl Hinter for Assistant {
    type Hint = String;
}

impl Validator for Assistant {
    fn validate(&self, ctx: &mut ValidationContext<'_>) -> Result<ValidationResult> {
        Ok(match goes_on(ctx.input()) {
            true => ValidationResult::Incomplete,
            false => ValidationResult::Valid(None),
        })
    }
}

impl Helper for Assistant {}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_name_before_the_cursor_is_completed() {
        let names = [":math.add", ":math.sub", "map", "map-indexed", "mapcat"].map(str::to_owned);
        for (line, from, found) in [
            ("(map", 1, &names[2..]),
            ("(call :math.", 6, &names[..2]),
            ("(call :math.a", 6, &names[..1]),
            ("(x ", 3, &[][..]),
            ("\"ma", 3, &[]),
        ] {
            assert_eq!(completed(&names, line, line.len()), (from, found.to_vec()), "{line}");
        }
    }

    #[test]
    fn an_entry_goes_on_while_something_is_open() {
        for (entry, more) in [("(+ 1", true), ("(+ 1)", false), (":time (f", true), (":doc map", false)]
        {
            assert_eq!(goes_on(entry), more, "{entry}");
        }
    }

    #[test]
    fn colours_change_no_text() {
        let line = "(f \"a\" :k 1) ; c";
        let shown = coloured(line);
        assert!(shown.contains("\x1b[32m\"a\"\x1b[0m") && shown.contains("\x1b[2m; c"));
    }
}
