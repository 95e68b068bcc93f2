//! A program in RTFS as numbered lines with colours. Pure.

use std::collections::BTreeMap;

use maud::{Markup, html};
use orla_marketplace::rtfs::layout::{TokenKind, tokens};

use crate::text::{plain, shortened};

/// The maximum number of bytes of a program that are shown line by line.
const MAX_LISTED: usize = 64 * 1024;

/// Returns a program with notes under some of its lines, by their numbers from 1. Notes for lines beyond
/// its end come last.
pub(crate) fn listing(program: &str, mut under: BTreeMap<u64, Vec<Markup>>) -> Markup {
    let lines = lines(shortened(program, MAX_LISTED).0);
    html! {
        ol.program {
            @for (number, line) in (1..).zip(&lines) {
                li {
                    code { @for (class, text) in line { @if let Some(class) = class { span class=(class) { (plain(text)) } } @else { (plain(text)) } } }
                    @for markup in under.remove(&number).unwrap_or_default() { (markup) }
                }
            }
            @for markup in under.into_values().flatten() { li { (markup) } }
        }
    }
}

type Line<'t> = Vec<(Option<&'static str>, &'t str)>;

/// Returns the lines of a text; each is pieces with the class of their colour.
fn lines(text: &str) -> Vec<Line<'_>> {
    let mut lines: Vec<Line<'_>> = vec![Vec::new()];
    let mut before = "";
    for token in tokens(text.trim_end_matches('\n')) {
        let class = match (token.kind, before) {
            (TokenKind::LineComment | TokenKind::BlockComment, _) => Some("comment"),
            (TokenKind::Text, _) => Some("text"),
            (TokenKind::Keyword, _) => Some("keyword"),
            (TokenKind::Literal, _) => Some("literal"),
            (TokenKind::Symbol, "(" | "#(") => Some("head"),
            (TokenKind::Broken, _) => Some("broken"),
            _ => None,
        };
        for (at, piece) in token.text.split('\n').enumerate() {
            if at > 0 {
                lines.push(Vec::new());
            }
            if let (false, Some(line)) = (piece.is_empty(), lines.last_mut()) {
                line.push((class, piece));
            }
        }
        before = token.text;
    }
    lines
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn pieces_have_the_colour_of_their_kind() {
        let found = lines("(call :a {:n [b]}) ; two\n\"x\ny\" z");
        let classes: Vec<Vec<_>> = found
            .iter()
            .map(|line| {
                line.iter().filter_map(|(class, text)| class.map(|class| (class, *text))).collect()
            })
            .collect();
        assert_eq!(
            classes,
            [
                vec![("head", "call"), ("keyword", ":a"), ("keyword", ":n"), ("comment", "; two")],
                vec![("text", "\"x")],
                vec![("text", "y\"")],
            ]
        );
    }

    proptest! {
        #[test]
        fn nothing_of_a_text_is_lost(text in "[(){}:a-c0-9\";# \n]{0,60}") {
            let lines: Vec<String> =
                lines(&text).iter().map(|line| line.iter().map(|(_, piece)| *piece).collect()).collect();
            prop_assert_eq!(lines.join("\n"), text.trim_end_matches('\n'));
        }
    }
}
