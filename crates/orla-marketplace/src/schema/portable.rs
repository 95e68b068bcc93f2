//! Recognises regular expressions that mean the same to all clients.

/// Returns whether a Rust regular expression is also valid in JSON Schema (ECMA-262, with the flag `u`).
/// A client that cannot parse the pattern of a schema may refuse the whole tool.
pub(super) fn is_portable(pattern: &str) -> bool {
    let mut chars = pattern.chars().peekable();
    let (mut in_class, mut after) = (false, None);
    while let Some(c) = chars.next() {
        let next = chars.peek().copied();
        match c {
            '\\' => {
                let escaped = chars.next();
                let is_class = escaped.is_some_and(|c| "dDwWsSbBnrtfv".contains(c));
                let is_itself =
                    escaped.is_some_and(|c| "^$\\.*+?()[]{}|/".contains(c) || (in_class && c == '-'));
                let has_word_boundary = in_class && matches!(escaped, Some('b' | 'B'));
                if !(is_class || is_itself)
                    || has_word_boundary
                    || (escaped == Some('b') && chars.peek() == Some(&'{'))
                {
                    return false;
                }
            }
            // Nested classes, sets of classes and an opening bracket have another meaning in ECMA-262.
            '[' if in_class => return false,
            '&' | '-' | '~' if in_class && next == Some(c) => return false,
            '[' => {
                in_class = true;
                chars.next_if_eq(&'^');
                if matches!(chars.peek(), Some(']')) {
                    return false; // Rust treats this bracket as a member
                }
            }
            ']' if in_class => in_class = false,
            ']' | '}' if !in_class => return false,
            '{' if !in_class => {
                let inside: String = chars.by_ref().take_while(|c| *c != '}').collect();
                let is_count = inside.chars().all(|c| c.is_ascii_digit() || c == ',');
                if !is_count || !inside.starts_with(|c: char| c.is_ascii_digit()) {
                    return false;
                }
            }
            '(' if !in_class && next == Some('?') => {
                chars.next();
                if chars.next() != Some(':') {
                    return false;
                }
            }
            // Both lazy and swapped greed are written `+?`. Some engines treat a second plus as
            // possessive.
            '+' if !in_class && matches!(after, Some('+' | '*' | '?')) => return false,
            _ => {}
        }
        after = Some(c);
    }
    !in_class
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tells_what_everyone_reads_from_what_only_rust_does() {
        for pattern in [
            "",
            "^[a-z0-9_-]+$",
            r"^\d{4}-\d{2}$",
            r"(?:a|b)*?c",
            r"[^\]\-x]",
            r"\/\.",
            "a{2,}",
            r"[\w.]",
            "ü",
        ] {
            assert!(is_portable(pattern), "{pattern}");
        }
        for pattern in [
            "(?i)a",
            "(?P<n>a)",
            "(?<n>a)",
            r"\Aa\z",
            r"\p{L}",
            r"\x{41}",
            "[[:alpha:]]",
            "[a&&b]",
            "[a--b]",
            r"\-",
            r"\#",
            "[]a]",
            "a]",
            "a}",
            r"\b{start}",
            r"[\b]",
            "a++",
        ] {
            assert!(!is_portable(pattern), "{pattern}");
        }
    }
}
