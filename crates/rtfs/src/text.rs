//! Excerpts of texts for messages, and suggestions for misspelt names.

use std::fmt::{self, Display, Write};

/// The maximum length in bytes of a name that is compared with others: the comparison takes the product
/// of the lengths.
const MAX_COMPARED: usize = 200;

/// Returns the first `limit` characters of the displayed value, and an ellipsis if there are more.
/// Formatting stops there.
pub fn excerpt(shown: impl Display, limit: usize) -> String {
    struct Excerpt {
        text: String,
        left: usize,
    }

    impl Write for Excerpt {
        fn write_str(&mut self, text: &str) -> fmt::Result {
            // A text has at most as many characters as bytes.
            if text.len() <= self.left {
                self.left -= text.chars().count();
                self.text.push_str(text);
                return Ok(());
            }
            for c in text.chars() {
                if self.left == 0 {
                    self.text.push('…');
                    return Err(fmt::Error);
                }
                self.text.push(c);
                self.left -= 1;
            }
            Ok(())
        }
    }

    let mut excerpt = Excerpt { text: String::new(), left: limit };
    let _stopped = write!(excerpt, "{shown}");
    excerpt.text
}

/// Returns the last `limit` bytes of a text, or fewer to keep characters whole.
pub fn tail(text: &str, limit: usize) -> &str {
    &text[text.ceil_char_boundary(text.len().saturating_sub(limit))..]
}

/// Returns the known name that is similar to a misspelt one: it differs by at most one in three
/// characters, and by no more than two. Case and the separators `-`, `_` and space are ignored.
pub fn nearest<'k>(name: &str, known: impl IntoIterator<Item = &'k str>) -> Option<&'k str> {
    let name = (name.len() <= MAX_COMPARED).then(|| folded(name)).filter(|name| !name.is_empty())?;
    let length = name.chars().count();
    let distance = |known: &str| {
        let known = folded(known);
        let other = known.chars().count();
        let most = (length.max(other) / 3).min(2);
        let distance = (length.abs_diff(other) <= most).then(|| strsim::osa_distance(&name, &known))?;
        (distance <= most).then_some(distance)
    };
    known.into_iter().filter_map(|known| Some((distance(known)?, known))).min().map(|(_, known)| known)
}

/// Returns whether a name is a known one in another spelling, or one edit away from it. Case and the
/// separators `-`, `_` and space are ignored.
pub fn is_misspelt(name: &str, known: &str) -> bool {
    name.len() <= MAX_COMPARED && strsim::osa_distance(&folded(name), &folded(known)) <= 1
}

fn folded(name: &str) -> String {
    name.to_lowercase().replace(['-', '_', ' '], "")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_excerpt_ends_between_characters_with_an_ellipsis() {
        let cases =
            [("", 3, ""), ("abc", 3, "abc"), ("äöü", 3, "äöü"), ("äöüß", 3, "äöü…"), ("a", 0, "…")];
        for (text, limit, shown) in cases {
            assert_eq!(excerpt(text, limit), shown);
        }
        assert_eq!(excerpt(format_args!("{}-{}", "ab", "cd"), 4), "ab-c…");
        assert_eq!((tail("aéb", 4), tail("aéb", 2), tail("é", 1), tail("", 3)), ("aéb", "b", "", ""));
    }

    #[test]
    fn a_slip_is_near_and_another_word_is_not() {
        let known = ["port", "timeout", "tools_dir", "mcpServers", "max-output-bytes"];
        let cases = [
            ("prot", Some("port")),
            ("Port", Some("port")),
            ("timeuot", Some("timeout")),
            ("toolsDir", Some("tools_dir")),
            ("mcp-server", Some("mcpServers")),
            ("servers", None),
            ("max_output_byte", Some("max-output-bytes")),
            ("part", Some("port")),
            ("prt", Some("port")),
            ("xy", None),
            ("", None),
            ("-", None),
            ("nothing", None),
        ];
        for (name, near) in cases {
            assert_eq!(nearest(name, known), near, "{name}");
        }
        assert_eq!(nearest(&"p".repeat(1000), known), None);
    }
}
