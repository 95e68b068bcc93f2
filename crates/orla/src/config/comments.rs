//! JSON with comments, as editors' own files have it. Pure.

use std::borrow::Cow;

/// Returns the text with `// …` and `/* … */` blanked out, and all other text in place. Applies only to
/// text that begins like a JSON object with a quoted first key, because YAML has its own comments.
pub(super) fn without_comments(text: &str) -> Cow<'_, str> {
    let begin = text.trim_start_matches('\u{feff}').trim_start();
    let is_json = begin.starts_with('{') || begin.starts_with("//") || begin.starts_with("/*");
    if !is_json || !text.contains("//") && !text.contains("/*") {
        return Cow::Borrowed(text);
    }
    let mut out = String::with_capacity(text.len());
    let mut rest = text;
    while let Some(c) = rest.chars().next() {
        let length = match c {
            '"' => string(rest),
            '/' if rest.starts_with("//") => {
                let length = rest.find('\n').unwrap_or(rest.len());
                blank(&mut out, &rest[..length]);
                rest = &rest[length..];
                continue;
            }
            '/' if rest.starts_with("/*") => {
                let length = rest[2..].find("*/").map_or(rest.len(), |end| end + 4);
                blank(&mut out, &rest[..length]);
                rest = &rest[length..];
                continue;
            }
            c => c.len_utf8(),
        };
        out.push_str(&rest[..length]);
        rest = &rest[length..];
    }
    let inside = out.trim_start_matches('\u{feff}').trim_start().strip_prefix('{').map(str::trim_start);
    match inside {
        Some(inside) if inside.starts_with(['"', '}']) => Cow::Owned(out),
        _ => Cow::Borrowed(text),
    }
}

/// Returns the length of the string that the text begins with, its quotes included.
fn string(text: &str) -> usize {
    let mut escaped = false;
    for (at, byte) in text.bytes().enumerate().skip(1) {
        match byte {
            _ if escaped => escaped = false,
            b'\\' => escaped = true,
            b'"' => return at + 1,
            _ => {}
        }
    }
    text.len()
}

/// Writes as many blank characters.
fn blank(out: &mut String, comment: &str) {
    out.extend(comment.chars().map(|c| if c == '\n' { '\n' } else { ' ' }));
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn comments_become_blanks_and_texts_stay() {
        let cases = [
            ("{\"a\": 1} // b", "{\"a\": 1}     "),
            ("// a\n{}", "    \n{}"),
            (
                "{/* ü\n */\"a\": \"http://x /* y */ \\\" // z\"}",
                "{    \n   \"a\": \"http://x /* y */ \\\" // z\"}",
            ),
            ("{ // \"b\"\n\"a\": 1}", "{       \n\"a\": 1}"),
            ("{\"a\": \"b", "{\"a\": \"b"),
            ("{/* a */}", "{       }"),
            ("{a: //server/share}", "{a: //server/share}"),
            ("url: http://x # y", "url: http://x # y"),
        ];
        for (text, expected) in cases {
            assert_eq!(without_comments(text), expected, "{text}");
        }
    }

    proptest! {
        #[test]
        fn every_character_stays_in_its_place(text in "[{}\"/*a\n\\\\ü]{0,60}") {
            let blanked = without_comments(&text);
            prop_assert_eq!(blanked.chars().count(), text.chars().count());
            prop_assert_eq!(blanked.lines().count(), text.lines().count());
            for (a, b) in blanked.chars().zip(text.chars()) {
                prop_assert!(a == b || a == ' ');
            }
        }

        #[test]
        fn json_without_comments_stays_as_it_is(text in "\\{\"[a-z\\\\\"/*]{0,20}") {
            let json = serde_json::json!({"key": text, "other": ["//", "/* */"]}).to_string();
            prop_assert_eq!(without_comments(&json), json.as_str());
        }
    }
}
