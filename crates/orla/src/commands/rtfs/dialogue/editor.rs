//! The line editor's aids: completion, hints, colours, matching brackets, and the question whether an
//! entry is complete.

use std::borrow::Cow;
use std::sync::Arc;

use orla_marketplace::Catalog;
use orla_marketplace::program::complete::{Completed, Completion, Words, completed, hint};
use orla_marketplace::rtfs::layout::{TokenKind, tokens};
use rustyline::completion::{Completer, Pair};
use rustyline::highlight::{CmdKind, Highlighter};
use rustyline::hint::{Hint, Hinter};
use rustyline::validate::{ValidationContext, ValidationResult, Validator};
use rustyline::{Context, Helper, Result};
use serde_json::Value as Json;

use super::is_incomplete;
use crate::render::Styled;
use crate::text::{on_lines, on_one_line};

pub(super) struct Assistant {
    words: Words,
    catalog: Arc<Catalog>,
    coloured: bool,
}

impl Assistant {
    pub(super) fn new(words: Words, catalog: Arc<Catalog>, coloured: bool) -> Self {
        Self { words, catalog, coloured }
    }

    /// Returns the input schema of a capability.
    fn schema(&self, id: &str) -> Option<Json> {
        serde_json::from_str(self.catalog.get(id)?.input_schema().as_str()).ok()
    }
}

impl Completer for Assistant {
    type Candidate = Pair;

    fn complete(&self, line: &str, at: usize, _: &Context<'_>) -> Result<(usize, Vec<Pair>)> {
        let before = line.get(..at).unwrap_or_default();
        let Completed { from, offered } = completed(&self.words, |id| self.schema(id), before);
        let pair =
            |offer: Completion| Pair { display: on_one_line(&offer.shown), replacement: offer.text };
        // Text that would control the terminal is not inserted into the line either.
        let is_safe = |offer: &Completion| on_one_line(&offer.text) == offer.text;
        Ok((from, offered.into_iter().filter(is_safe).map(pair).collect()))
    }
}

/// A hint, which is shown but never inserted.
pub(super) struct HintText(String);

impl Hint for HintText {
    fn display(&self) -> &str {
        &self.0
    }

    fn completion(&self) -> Option<&str> {
        None
    }
}

impl Hinter for Assistant {
    type Hint = HintText;

    fn hint(&self, line: &str, at: usize, _: &Context<'_>) -> Option<HintText> {
        // Without colours it would look like typed text.
        if !self.coloured || at != line.len() {
            return None;
        }
        hint(&self.words, |id| self.schema(id), line).map(|hint| HintText(on_one_line(&hint)))
    }
}

impl Highlighter for Assistant {
    fn highlight<'l>(&self, line: &'l str, at: usize) -> Cow<'l, str> {
        match self.coloured {
            true => Cow::Owned(coloured(line, Some(at)).as_str().to_owned()),
            false => Cow::Owned(on_lines(line)),
        }
    }

    fn highlight_prompt<'b, 's: 'b, 'p: 'b>(&'s self, prompt: &'p str, _: bool) -> Cow<'b, str> {
        if self.coloured {
            Cow::Owned(format!("\x1b[1;34m{prompt}\x1b[0m"))
        } else {
            Cow::Borrowed(prompt)
        }
    }

    fn highlight_hint<'h>(&self, hint: &'h str) -> Cow<'h, str> {
        Cow::Owned(format!("\x1b[2m{hint}\x1b[0m"))
    }

    fn highlight_char(&self, _: &str, _: usize, _: CmdKind) -> bool {
        self.coloured
    }
}

/// Returns a text with terminal colours. The bracket at the cursor is shown with its partner; a closing
/// one without a partner is shown as wrong.
pub(super) fn coloured(text: &str, cursor: Option<usize>) -> Styled {
    let all = tokens(text);
    // Beside each token, the place of the bracket that it belongs to.
    let mut partners: Vec<Option<usize>> = vec![None; all.len()];
    let mut open = Vec::new();
    let mut starts = Vec::with_capacity(all.len());
    let mut at = 0;
    for (place, token) in all.iter().enumerate() {
        starts.push(at);
        at += token.text.len();
        match token.kind {
            TokenKind::Open => open.push(place),
            TokenKind::Close => {
                let fits = |open: &mut usize| closes(all[*open].text, token.text);
                if let Some(partner) = open.pop_if(fits) {
                    (partners[place], partners[partner]) = (Some(partner), Some(place));
                }
            }
            _ => {}
        }
    }
    let is_bracket = |place: &usize| matches!(all[*place].kind, TokenKind::Open | TokenKind::Close);
    let at_cursor = cursor.and_then(|cursor| {
        // Under the cursor, or else before it.
        let under = starts.iter().position(|start| *start == cursor).filter(is_bracket);
        let before =
            || (0..all.len()).find(|at| starts[*at] + all[*at].text.len() == cursor).filter(is_bracket);
        under.or_else(before)
    });
    let pair = [at_cursor, at_cursor.and_then(|place| partners[place])];
    let mut shown = Styled::default();
    for (place, token) in all.iter().enumerate() {
        let code = match token.kind {
            _ if pair[1].is_some() && pair.contains(&Some(place)) => "1;7",
            TokenKind::Close if partners[place].is_none() => "31",
            TokenKind::LineComment | TokenKind::BlockComment => "2",
            TokenKind::Text => "32",
            TokenKind::Keyword => "36",
            TokenKind::Literal => "35",
            TokenKind::Symbol if place > 0 && all[place - 1].text == "(" => "1",
            TokenKind::Broken => "31",
            _ => "",
        };
        shown.paint(code, token.text);
    }
    shown
}

fn closes(open: &str, close: &str) -> bool {
    match open.as_bytes().last() {
        Some(b'(') => close == ")",
        Some(b'[') => close == "]",
        _ => close == "}",
    }
}

impl Validator for Assistant {
    fn validate(&self, ctx: &mut ValidationContext<'_>) -> Result<ValidationResult> {
        Ok(match is_incomplete(ctx.input()) {
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
    fn colours_change_no_text() {
        let line = "(f \"a\" :k 1) ; c )";
        let shown = coloured(line, None).as_str().to_owned();
        assert!(shown.contains("\x1b[32m\"a\"\x1b[0m") && shown.contains("\x1b[2m; c )\x1b[0m"));
        let mut plain = shown;
        for code in ["0", "1", "2", "32", "35", "36"] {
            plain = plain.replace(&format!("\x1b[{code}m"), "");
        }
        assert_eq!(plain, line);
    }

    #[test]
    fn the_bracket_at_the_cursor_is_shown_with_its_partner() {
        let pair = |text: &str| format!("\x1b[1;7m{text}\x1b[0m");
        let shown = coloured("(f [1])", Some(7)).as_str().to_owned();
        assert!(shown.starts_with(&pair("(")) && shown.ends_with(&pair(")")), "{shown}");
        let shown = coloured("(f [1])", Some(3)).as_str().to_owned();
        assert!(shown.contains(&pair("[")) && shown.contains(&pair("]")), "{shown}");
        let shown = coloured("(f [1)]", Some(1)).as_str().to_owned();
        assert!(!shown.contains("1;7") && shown.contains("\x1b[31m)"), "{shown}");
        assert!(coloured("#{1}", Some(4)).as_str().starts_with(&pair("#{")));
    }
}
