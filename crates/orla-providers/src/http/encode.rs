//! Percent-encoding, so that a text stays within its part of a URL (RFC 3986 §2).

use percent_encoding::{AsciiSet, NON_ALPHANUMERIC, utf8_percent_encode};

/// All characters except RFC 3986's unreserved ones.
const STRICT: &AsciiSet = &NON_ALPHANUMERIC.remove(b'-').remove(b'.').remove(b'_').remove(b'~');

/// Like [`STRICT`], except for reserved characters. The separators of a query, and characters that would
/// begin another part of the URL, are encoded here too.
const RESERVED_KEPT: &AsciiSet = &STRICT
    .remove(b':')
    .remove(b'/')
    .remove(b'?')
    .remove(b'@')
    .remove(b'!')
    .remove(b'$')
    .remove(b'(')
    .remove(b')')
    .remove(b'*')
    .remove(b',')
    .remove(b';');

/// Encodes all but unreserved characters. The result is the same text in any part of any URL.
pub(super) fn strict(text: &str) -> String {
    utf8_percent_encode(text, STRICT).to_string()
}

/// Encodes a value of a query. Reserved characters stay if they have no meaning there.
pub(super) fn keeping_reserved(text: &str) -> String {
    utf8_percent_encode(text, RESERVED_KEPT).to_string()
}

/// Returns whether a segment of a path is `.` or `..`, in any encoding. URL parsers and servers remove
/// such a segment.
pub(super) fn is_dots(segment: &str) -> bool {
    matches!(segment.to_ascii_lowercase().replace("%2e", ".").as_str(), "." | "..")
}

#[cfg(test)]
mod tests {
    use percent_encoding::percent_decode_str;
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn dots_are_found_in_every_spelling() {
        for (segment, dots) in
            [(".", true), ("..", true), ("%2e.", true), ("%2E%2e", true), ("...", false), ("a", false)]
        {
            assert_eq!(is_dots(segment), dots, "{segment}");
        }
    }

    proptest! {
        #[test]
        fn encoding_loses_nothing_and_leaves_no_separator(text in ".{0,40}") {
            let encoded = strict(&text);
            prop_assert!(encoded.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"-._~%".contains(&byte)));
            prop_assert_eq!(percent_decode_str(&encoded).decode_utf8().unwrap(), text.as_str());
            let encoded = keeping_reserved(&text);
            prop_assert!(!encoded.contains(['&', '#', '=', '+', ' ']));
            prop_assert_eq!(percent_decode_str(&encoded).decode_utf8().unwrap(), text.as_str());
        }
    }
}
