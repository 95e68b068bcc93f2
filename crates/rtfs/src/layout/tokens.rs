//! Splits a text into tokens without loss, for formatters and editors.
//!
//! Any text is accepted. The rules are those of the reader, which reports mistakes.

/// A piece of a text.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Token<'t> {
    /// The kind.
    pub kind: TokenKind,
    /// Its text.
    pub text: &'t str,
}

/// The kind of a piece of a text.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TokenKind {
    /// White space and commas.
    Space,
    /// `; …` without the end of its line.
    LineComment,
    /// `#| … |#`
    BlockComment,
    /// `(` `[` `{` `#{` `#(`
    Open,
    /// `)` `]` `}`
    Close,
    /// `'` `` ` `` `~` `~@` `^` `#_`: a prefix of the following form.
    Prefix,
    /// `"…"` and `"""…"""`
    Text,
    /// `:name`
    Keyword,
    /// Numbers, instants and UUIDs, which begin with a digit, and `nil`, `true`, `false`, `##Inf`.
    Literal,
    /// `?` `:` `:-`
    Mark,
    /// Any other name.
    Symbol,
    /// A text or comment without its end, or a character that begins no token.
    Broken,
}

/// Returns the tokens of a text. Their concatenation is the text.
pub fn tokens(text: &str) -> Vec<Token<'_>> {
    let mut all = Vec::new();
    let mut at = 0;
    while at < text.len() {
        let (kind, len) = first(&text[at..], at == 0);
        let len = len.max(1);
        all.push(Token { kind, text: &text[at..at + len] });
        at += len;
    }
    all
}

/// Returns whether the input is incomplete: a form is open at the end of the text.
pub fn is_unfinished(text: &str) -> bool {
    let mut depth = 0_usize;
    let mut last = TokenKind::Space;
    for Token { kind, text } in tokens(text) {
        match kind {
            TokenKind::Open => depth += 1,
            TokenKind::Close => depth = depth.saturating_sub(1),
            TokenKind::Broken if text.starts_with(['"', '#', ':']) => return true,
            TokenKind::Space | TokenKind::LineComment | TokenKind::BlockComment => continue,
            _ => {}
        }
        last = kind;
    }
    depth > 0 || last == TokenKind::Prefix
}

fn first(rest: &str, is_start: bool) -> (TokenKind, usize) {
    use TokenKind::{
        BlockComment, Broken, Close, Keyword, LineComment, Literal, Mark, Open, Prefix, Space, Symbol,
        Text,
    };
    let bytes = rest.as_bytes();
    let line = || rest.find('\n').unwrap_or(rest.len());
    let next = bytes.get(1).copied();
    match bytes[0] {
        _ if is_space(rest) => (Space, rest.len() - rest.trim_start_matches(SPACES).len()),
        b';' => (LineComment, line()),
        b'#' => match next {
            Some(b'{' | b'(') => (Open, 2),
            Some(b'_') => (Prefix, 2),
            Some(b'|') => block(bytes).map_or((Broken, rest.len()), |len| (BlockComment, len)),
            Some(b'!') if is_start => (LineComment, line()),
            _ => (Literal, name_end(rest, 1)),
        },
        b'(' | b'[' | b'{' => (Open, 1),
        b')' | b']' | b'}' => (Close, 1),
        b'~' if next == Some(b'@') => (Prefix, 2),
        b'\'' | b'`' | b'~' | b'^' => (Prefix, 1),
        b'"' if rest.starts_with("\"\"\"") => match rest[3..].find("\"\"\"") {
            Some(len) => {
                let quotes = rest[3 + len..].bytes().take_while(|byte| *byte == b'"').count();
                (Text, 3 + len + quotes)
            }
            None => (Broken, rest.len()),
        },
        b'"' => quoted(bytes).map_or((Broken, rest.len()), |len| (Text, len)),
        b':' if next == Some(b'"') => {
            quoted(&bytes[1..]).map_or((Broken, rest.len()), |len| (Keyword, len + 1))
        }
        b'@' | b'\\' | 0..0x20 | 0x7f => (Broken, 1),
        first => {
            let end = name_end(rest, 0);
            if end == 0 {
                return (Broken, rest.chars().next().map_or(1, char::len_utf8));
            }
            let second = next.is_some_and(|byte| byte.is_ascii_digit());
            let kind = match &rest[..end] {
                "nil" | "true" | "false" => Literal,
                "?" | ":" | ":-" => Mark,
                _ if first == b':' => Keyword,
                _ if first.is_ascii_digit() || (matches!(first, b'-' | b'+') && second) => Literal,
                _ => Symbol,
            };
            (kind, end)
        }
    }
}

const SPACES: [char; 7] = [' ', ',', '\t', '\n', '\r', '\u{c}', '\u{feff}'];

fn is_space(rest: &str) -> bool {
    rest.starts_with(SPACES)
}

/// Returns the end of a name that begins at or before `from`.
fn name_end(rest: &str, from: usize) -> usize {
    let ends = |c: char| {
        c.is_whitespace()
            || c.is_control()
            || matches!(
                c,
                ',' | '(' | ')' | '[' | ']' | '{' | '}' | '"' | ';' | '`' | '~' | '@' | '^' | '\\'
            )
    };
    rest[from..].find(ends).map_or(rest.len(), |len| from + len)
}

/// Returns the length of a quoted text.
fn quoted(bytes: &[u8]) -> Option<usize> {
    let mut at = 1;
    loop {
        match bytes.get(at)? {
            b'"' => return Some(at + 1),
            b'\\' => at += 2,
            _ => at += 1,
        }
    }
}

/// Returns the length of a comment that may contain nested comments.
fn block(bytes: &[u8]) -> Option<usize> {
    let (mut at, mut depth) = (2, 1);
    while depth > 0 {
        match bytes.get(at..at + 2)? {
            b"#|" => (at, depth) = (at + 2, depth + 1),
            b"|#" => (at, depth) = (at + 2, depth - 1),
            _ => at += 1,
        }
    }
    Some(at)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn each_token_is_what_the_reader_takes_it_for() {
        let text = "(f #{a} #(g %) 'x `y ~z ~@w ^{:doc \"d\"} v #_ u :k :\"a b\" 1.5 -2 nil ##Inf ? :- \"s\\\"\" \"\"\"r\"\"\" ; c\n#| b |#)";
        let shown: Vec<_> =
            tokens(text).into_iter().filter(|token| token.kind != TokenKind::Space).collect();
        let of = |kind| -> Vec<&str> {
            shown.iter().filter(|token| token.kind == kind).map(|token| token.text).collect()
        };
        assert_eq!(of(TokenKind::Open), ["(", "#{", "#(", "{"]);
        assert_eq!(of(TokenKind::Prefix), ["'", "`", "~", "~@", "^", "#_"]);
        assert_eq!(of(TokenKind::Keyword), [":doc", ":k", ":\"a b\""]);
        assert_eq!(of(TokenKind::Literal), ["1.5", "-2", "nil", "##Inf"]);
        assert_eq!(of(TokenKind::Mark), ["?", ":-"]);
        assert_eq!(of(TokenKind::Text), ["\"d\"", "\"s\\\"\"", "\"\"\"r\"\"\""]);
        assert_eq!(of(TokenKind::LineComment), ["; c"]);
        assert_eq!(of(TokenKind::BlockComment), ["#| b |#"]);
    }

    #[test]
    fn more_has_to_come_while_something_is_open() {
        for (text, more) in [
            ("", false),
            ("(+ 1 2)", false),
            ("(+ 1", true),
            ("\"a", true),
            ("\"\"\"a\n", true),
            ("#| c", true),
            ("'", true),
            ("(f ; )", true),
            ("(f \")\")", false),
            ("1 ; (", false),
            (")", false),
            ("@", false),
        ] {
            assert_eq!(is_unfinished(text), more, "{text}");
        }
    }

    proptest! {
        #[test]
        fn tokens_put_together_are_the_text(text in "[ -~\\né漢\u{feff}\u{200b}]{0,60}") {
            let all = tokens(&text);
            prop_assert_eq!(all.iter().map(|token| token.text).collect::<String>(), text.clone());
            prop_assert!(all.iter().all(|token| !token.text.is_empty()));
        }
    }
}
