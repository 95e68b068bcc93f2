//! Pure functions of text: similar words, and text that is safe to show.
//!
//! Text from others can contain characters that act on its reader: control characters command a terminal,
//! bidirectional ones reorder the line, tags and zero-width characters hide text. [`render`](crate::render) escapes
//! them in everything that goes to a terminal.

use std::borrow::Cow;

use orla_marketplace::json::{JsonError, value_from_json};
use orla_marketplace::rtfs::text::nearest;
use percent_encoding::{AsciiSet, NON_ALPHANUMERIC, utf8_percent_encode};

/// Returns the text on one line, with every unsafe character spelt out (`\u{1b}`, `\n`).
pub(crate) fn on_one_line(text: &str) -> String {
    escaped(text, |_| false)
}

/// Returns the text with every unsafe character spelt out. Line feeds and tabs stay, and a carriage
/// return before a line feed is dropped.
pub(crate) fn on_lines(text: &str) -> String {
    let text = if text.contains("\r\n") { Cow::from(text.replace("\r\n", "\n")) } else { text.into() };
    escaped(&text, |c| matches!(c, '\n' | '\t'))
}

/// JSON text with every unsafe character of its strings as a JSON escape (`\u009b`), so that it stays the
/// same JSON. White space between tokens stays.
pub(crate) fn in_json(text: &str) -> Cow<'_, str> {
    let is_layout = |c: char| matches!(c, '\n' | '\t' | '\r');
    let is_escaped = |(before, c)| is_hidden(before, c) && !is_layout(c);
    // Most lines of the log are printable ASCII, which is seen without decoding it. Without an early end, many bytes are looked at
    // at once.
    let is_layout_or_printable = |byte: &u8| matches!(byte, b' '..=b'~' | b'\n' | b'\t' | b'\r');
    let is_plain =
        |chunk: &[u8]| chunk.iter().fold(true, |all, byte| all & is_layout_or_printable(byte));
    if text.as_bytes().chunks(64).all(is_plain) || !with_before(text).any(is_escaped) {
        return text.into();
    }
    let mut out = String::with_capacity(text.len() + 16);
    for (before, c) in with_before(text) {
        if is_escaped((before, c)) {
            let mut units = [0; 2];
            out.extend(c.encode_utf16(&mut units).iter().map(|unit| format!("\\u{unit:04x}")));
        } else {
            out.push(c);
        }
    }
    out.into()
}

fn escaped(text: &str, stays: impl Fn(char) -> bool) -> String {
    let mut out = String::with_capacity(text.len());
    for (before, c) in with_before(text) {
        match is_hidden(before, c) && !stays(c) {
            true => out.extend(c.escape_default()),
            false => out.push(c),
        }
    }
    out
}

/// Returns the characters of a text, each with the one before it.
fn with_before(text: &str) -> impl Iterator<Item = (char, char)> {
    std::iter::once(' ').chain(text.chars()).zip(text.chars())
}

/// Returns whether a terminal may interpret the character, reorder text because of it, or hide it.
///
/// Joiners count only after ASCII, because between letters of other scripts and between emoji they have
/// a meaning.
fn is_hidden(before: char, c: char) -> bool {
    match c {
        '\u{200c}' | '\u{200d}' => {
            before.is_ascii() || is_invisible(before) || matches!(before, '\u{200c}' | '\u{200d}')
        }
        c if c.is_ascii() => c.is_ascii_control(),
        c => c.is_control() || is_reordering(c) || is_tag(c) || is_invisible(c),
    }
}

/// Embeddings, overrides and isolates of the Unicode Bidirectional Algorithm (UAX #9).
fn is_reordering(c: char) -> bool {
    matches!(c, '\u{202a}'..='\u{202e}' | '\u{2066}'..='\u{2069}')
}

/// Tag characters, which are invisible ASCII.
fn is_tag(c: char) -> bool {
    matches!(c, '\u{e0000}'..='\u{e007f}')
}

/// Returns the characters of a name or a description that its reader cannot see, each once, in the order
/// of the text.
pub(crate) fn invisible(text: &str) -> Vec<char> {
    let mut found = Vec::new();
    for (before, c) in with_before(text) {
        let is_layout = matches!(c, '\n' | '\r' | '\t');
        if is_hidden(before, c) && !is_layout && !found.contains(&c) {
            found.push(c);
        }
    }
    found
}

/// Returns a short description of an invisible character.
pub(crate) fn kind_of(c: char) -> &'static str {
    match c {
        c if c.is_control() => "a control character",
        '\u{61c}' | '\u{200e}' | '\u{200f}' => "bidirectional",
        c if is_reordering(c) => "bidirectional",
        c if is_tag(c) => "a tag character",
        _ => "invisible",
    }
}

/// Returns whether a character is invisible, other than characters that reorder text and tags.
fn is_invisible(c: char) -> bool {
    matches!(
        c,
        '\u{ad}'
            | '\u{34f}'
            | '\u{61c}'
            | '\u{115f}'
            | '\u{1160}'
            | '\u{17b4}'
            | '\u{17b5}'
            | '\u{180b}'..='\u{180f}'
            | '\u{200b}'
            | '\u{200e}'
            | '\u{200f}'
            | '\u{2028}'
            | '\u{2029}'
            | '\u{2060}'..='\u{2065}'
            | '\u{206a}'..='\u{206f}'
            | '\u{3164}'
            | '\u{feff}'
            | '\u{ffa0}'
            | '\u{fff9}'..='\u{fffb}'
            | '\u{e0100}'..='\u{e01ef}'
    )
}

/// Returns the first line of a text, cut to `width` characters.
pub(crate) fn cut(text: &str, width: usize) -> String {
    let first = text.lines().next().unwrap_or_default();
    if first.chars().count() <= width {
        return first.to_owned();
    }
    let mut cut: String = first.chars().take(width.saturating_sub(1)).collect();
    cut.push('…');
    cut
}

/// Returns the text as one part of a URL or of a form: everything but RFC 3986's unreserved characters
/// is encoded.
pub(crate) fn encoded(text: &str) -> String {
    const ENCODED: &AsciiSet = &NON_ALPHANUMERIC.remove(b'-').remove(b'.').remove(b'_').remove(b'~');
    utf8_percent_encode(text, ENCODED).to_string()
}

/// `a, b or c`.
pub(crate) fn list_of(words: &[&str]) -> String {
    match words {
        [] => String::new(),
        [only] => (*only).to_owned(),
        [head @ .., last] => format!("{} or {last}", head.join(", ")),
    }
}

/// Returns `, did you mean NAME?`, or the empty text if no known word is similar.
pub(crate) fn suggestion<'a>(word: &str, known: impl IntoIterator<Item = &'a str>) -> String {
    nearest(word, known).map(|near| format!(", did you mean {near}?")).unwrap_or_default()
}

/// Returns why a text is not JSON, with the place. A text that is JSON has no problem.
pub(crate) fn json_problem(text: &str) -> Option<String> {
    let JsonError { problem, position, .. } = value_from_json(text).err()?;
    Some(match position {
        Some((line, column)) => format!("{problem} (line {line}, column {column})"),
        None => problem,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn broken_json_is_explained_without_the_words_of_a_library() {
        let cases = [
            ("{", Some("expected a key in quotes, got the end of the text (line 1, column 2)")),
            ("{a: 1}", Some("expected a key in quotes, got 'a' (line 1, column 2)")),
            ("[1]", None),
        ];
        for (text, problem) in cases {
            assert_eq!(json_problem(text).as_deref(), problem, "{text}");
        }
    }

    #[test]
    fn control_characters_are_escaped() {
        let evil = "a\tb\n\x1b]0;x\x07\u{9b}2J\x7f\u{202e}\u{e0041}\r";
        assert_eq!(on_lines(evil), "a\tb\n\\u{1b}]0;x\\u{7}\\u{9b}2J\\u{7f}\\u{202e}\\u{e0041}\\r");
        assert_eq!(on_one_line("a\tb\nc"), "a\\tb\\nc");
        assert_eq!(on_lines("pay\u{200b}\u{200d}pal\u{feff}"), "pay\\u{200b}\\u{200d}pal\\u{feff}");
        assert_eq!(on_lines("one\r\ntwo\r\n"), "one\ntwo\n");
        for text in ["é ツ 👩\u{200d}💻 نص", "plain"] {
            assert_eq!((on_lines(text).as_str(), on_one_line(text).as_str()), (text, text));
        }
    }

    #[test]
    fn json_stays_the_same_json() {
        let json = "{\n  \"a\": \"\u{9b}\u{7f}\u{202e}\u{e0041}é\"\n}";
        let safe = in_json(json);
        assert_eq!(safe, "{\n  \"a\": \"\\u009b\\u007f\\u202e\\udb40\\udc41é\"\n}");
        let value = |text: &str| serde_json::from_str::<serde_json::Value>(text).unwrap();
        assert_eq!(value(&safe), value(json));
        assert_eq!(in_json("{\"a\": \"b\u{200b}\"}"), "{\"a\": \"b\\u200b\"}");
        assert!(matches!(in_json("{\"a\": \"é\"}\n"), Cow::Borrowed(_)));
    }

    #[test]
    fn a_part_of_a_form_is_encoded() {
        assert_eq!(encoded("a b&c=ü-._~"), "a%20b%26c%3D%C3%BC-._~");
    }

    #[test]
    fn invisible_characters_are_found() {
        for (text, found) in [
            ("Sends a mail.\nTo anyone.", &[][..]),
            ("👩\u{200d}💻 and نمی\u{200c}خواهم", &[]),
            ("pay\u{200d}pal", &['\u{200d}']),
            ("a\u{202e}b\u{202e}", &['\u{202e}']),
            ("x\u{e0049}\u{e0067}", &['\u{e0049}', '\u{e0067}']),
            ("z\u{200b}w\u{feff}\x1b", &['\u{200b}', '\u{feff}', '\x1b']),
        ] {
            assert_eq!(invisible(text), found, "{text:?}");
        }
    }
}
