//! The layout of texts: tokens, formatting, and values over several lines.
//!
//! [`format()`] keeps the line breaks, blank lines (one at a time) and comments of a text. It sets
//! indentation, the space between forms, and closing brackets. It does not break long lines.
//!
//! # Invariants
//!
//! - Formatting is idempotent (property-tested).
//! - Formatting does not change the data (property-tested).

mod pretty;
mod tokens;

pub use pretty::pretty;
pub use tokens::{Token, TokenKind, is_unfinished, tokens};

use crate::syntax::{Diagnostics, Source, read};

/// Formats a text.
///
/// # Errors
/// It cannot be read.
pub fn format(source: &Source) -> Result<String, Diagnostics> {
    read(source)?;
    let all = tokens(source.text());
    let mut layout = Layout::default();
    let mut gap = Gap::default();
    for token in all {
        match token.kind {
            TokenKind::Space => gap.add(token.text),
            _ => {
                layout.put(token, &gap);
                gap = Gap::default();
            }
        }
    }
    let mut text = layout.text;
    if !text.is_empty() {
        text.push('\n');
    }
    Ok(text)
}

/// The space between two tokens.
#[derive(Default)]
struct Gap {
    newlines: usize,
    comma: bool,
}

impl Gap {
    fn add(&mut self, text: &str) {
        self.newlines += text.matches('\n').count();
        self.comma |= text.contains(',');
    }
}

#[derive(Default)]
struct Layout {
    text: String,
    line: usize,
    column: usize,
    open: Vec<Opened>,
    last: Option<TokenKind>,
}

/// A bracket that is open.
struct Opened {
    /// The default column of forms that begin a line.
    inside: usize,
    column: usize,
    is_list: bool,
    /// Whether all forms after the head are indented by two.
    is_body: bool,
    /// The line of the first form.
    head: Option<usize>,
    /// The column of the second form, if it is on the same line as the first.
    second: Option<usize>,
    forms: usize,
}

impl Layout {
    fn put(&mut self, token: Token<'_>, gap: &Gap) {
        let kind = token.kind;
        let Some(last) = self.last else { return self.write(token) };
        let after_comment = last == TokenKind::LineComment;
        let is_comment = matches!(kind, TokenKind::LineComment | TokenKind::BlockComment);
        let closes = kind == TokenKind::Close;
        let is_first = last == TokenKind::Open;
        let is_joined = last == TokenKind::Prefix;
        if gap.comma
            && !after_comment
            && !is_first
            && !is_joined
            && !closes
            && last != TokenKind::BlockComment
        {
            self.push(",");
        }
        let breaks = match gap.newlines {
            _ if after_comment => gap.newlines.clamp(1, 2),
            _ if closes || is_joined => 0,
            // An opening bracket is followed directly by its first form, unless that is a comment on a
            // separate line.
            _ if is_first && !is_comment => 0,
            newlines => newlines.min(2),
        };
        if breaks > 0 {
            // No blank line before a closing bracket or after an opening one.
            let breaks = if closes || is_first { 1 } else { breaks };
            self.push(if breaks == 2 { "\n\n" } else { "\n" });
            let indent = self.indent();
            self.push(&" ".repeat(indent));
        } else if !(closes || is_first || is_joined) || (is_comment && is_joined) {
            self.push(" ");
        }
        self.write(token);
    }

    /// Returns the column of a form that begins a line.
    fn indent(&self) -> usize {
        let Some(open) = self.open.last() else { return 0 };
        match open {
            Opened { is_list: true, is_body: true, column, .. } => column + 2,
            Opened { is_list: true, second: Some(second), .. } => *second,
            open => open.inside,
        }
    }

    fn write(&mut self, token: Token<'_>) {
        let kind = token.kind;
        let is_form = !matches!(
            kind,
            TokenKind::Close | TokenKind::LineComment | TokenKind::BlockComment | TokenKind::Mark
        );
        // A prefix and its form are one form.
        if is_form && self.last != Some(TokenKind::Prefix) {
            let (line, column) = (self.line, self.column);
            if let Some(open) = self.open.last_mut() {
                open.forms += 1;
                match open.forms {
                    1 => {
                        open.head = Some(line);
                        open.is_body = kind == TokenKind::Symbol && has_body(token.text);
                    }
                    2 if open.head == Some(line) => open.second = Some(column),
                    _ => {}
                }
            }
        }
        let column = self.column;
        match kind {
            TokenKind::LineComment => self.push(token.text.trim_end()),
            _ => self.push(token.text),
        }
        match kind {
            TokenKind::Open => self.open.push(Opened {
                inside: self.column,
                column,
                is_list: token.text.ends_with('('),
                is_body: false,
                head: None,
                second: None,
                forms: 0,
            }),
            TokenKind::Close => {
                self.open.pop();
            }
            _ => {}
        }
        self.last = Some(kind);
    }

    fn push(&mut self, text: &str) {
        if text.starts_with('\n') {
            // Trailing white space is removed.
            let end = self.text.trim_end_matches(' ').len();
            self.text.truncate(end);
        }
        self.text.push_str(text);
        self.line += text.matches('\n').count();
        self.column = match text.rfind('\n') {
            Some(at) => text[at + 1..].chars().count(),
            None => self.column + text.chars().count(),
        };
    }
}

/// Returns whether the forms after the head of such a form are a body, indented by two.
fn has_body(head: &str) -> bool {
    matches!(
        head,
        "def"
            | "defn"
            | "defmacro"
            | "defstruct"
            | "deftype-alias"
            | "module"
            | "fn"
            | "let"
            | "loop"
            | "for"
            | "doseq"
            | "dotimes"
            | "do"
            | "if"
            | "if-let"
            | "when"
            | "when-let"
            | "unless"
            | "cond"
            | "case"
            | "match"
            | "try"
            | "catch"
            | "finally"
            | "as->"
            | "cond->"
            | "cond->>"
            | "step"
    )
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn formatted(text: &str) -> String {
        format(&Source::new("", text)).unwrap_or_else(|err| panic!("{err}"))
    }

    #[test]
    fn a_text_is_laid_out() {
        for (text, expected) in [
            ("", ""),
            ("( +   1\t2 )", "(+ 1 2)\n"),
            ("(a)(b)\n\n\n\n(c)", "(a) (b)\n\n(c)\n"),
            ("(defn f [x]\n(+ x\n1)\n)", "(defn f [x]\n  (+ x\n     1))\n"),
            ("(f\na\nb)", "(f\n a\n b)\n"),
            ("{:a 1,:b 2 ,\n:c 3}", "{:a 1, :b 2,\n :c 3}\n"),
            ("(let [a 1\nb 2]\na) ; end  ", "(let [a 1\n      b 2]\n  a) ; end\n"),
            ("(f a ; why\n)", "(f a ; why\n   )\n"),
            ("' x #_ y", "'x #_y\n"),
            ("#(f\n%)", "#(f\n  %)\n"),
            ("(def s \"a\n   b\")", "(def s \"a\n   b\")\n"),
            ("; one\n\n; two\n1", "; one\n\n; two\n1\n"),
            ("#| a\n  b |# 1", "#| a\n  b |# 1\n"),
        ] {
            assert_eq!(formatted(text), expected, "{text}");
            assert_eq!(formatted(expected), expected, "again: {text}");
        }
        assert!(format(&Source::new("", "(f")).is_err());
    }

    /// Forms, with the comments and blank lines between them.
    fn text() -> impl Strategy<Value = String> {
        let gap = prop_oneof![
            3 => Just(" "), 1 => Just("\n"), 1 => Just(", "), 1 => Just(" \n\n\n  "), 1 => Just(" ; why (\n"),
            1 => Just("\n; two\n\n; three  \n"), 1 => Just(" #| a\n b |# "), 1 => Just(" ,\n"), 1 => Just("#_ (skip x)"),
        ];
        let atom = prop_oneof![
            Just("x".to_owned()),
            Just("defn".to_owned()),
            Just("let".to_owned()),
            Just(":k".to_owned()),
            Just("\"a\n  b\"".to_owned()),
            Just("1.5".to_owned()),
            Just("nil".to_owned()),
        ];
        let form = atom.prop_recursive(5, 40, 5, move |form| {
            let many = proptest::collection::vec((form.clone(), gap.clone()), 0..5);
            let inside = many.prop_map(|parts| {
                parts.into_iter().map(|(form, gap)| format!("{form} {gap}")).collect::<String>()
            });
            prop_oneof![
                4 => (gap.clone(), inside.clone()).prop_map(|(gap, inside)| format!("({gap}{inside})")),
                2 => inside.clone().prop_map(|inside| format!("[{inside}]")),
                1 => inside.prop_map(|inside| format!("#({inside})")),
                1 => (gap.clone(), form.clone()).prop_map(|(gap, form)| format!("'{gap}{form}")),
                1 => (form.clone(), form).prop_map(|(a, b)| format!("({a}){b}")),
            ]
        });
        proptest::collection::vec(form, 0..5).prop_map(|forms| forms.join("\n"))
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(1_000))]

        #[test]
        fn once_is_enough_and_the_data_is_the_same(text in text()) {
            let source = Source::new("", &*text);
            let Ok(before) = read(&source) else { return Ok(()) };
            let once = formatted(&text);
            prop_assert_eq!(&formatted(&once), &once, "{}", text);
            let after = read(&Source::new("", &*once));
            prop_assert!(after.is_ok(), "{:?} became {:?}", text, once);
            prop_assert_eq!(after.unwrap_or_default(), before, "{:?} became {:?}", text, once);
            let comments = |text: &str| {
                let all = tokens(text).into_iter().filter(|token| {
                    matches!(token.kind, TokenKind::LineComment | TokenKind::BlockComment)
                });
                all.map(|token| token.text.trim_end().to_owned()).collect::<Vec<_>>()
            };
            prop_assert_eq!(comments(&text), comments(&once));
        }
    }
}
