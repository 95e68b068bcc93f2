//! Fields of queries and of forms (`application/x-www-form-urlencoded`). Pure.

use http::{HeaderMap, header};
use percent_encoding::{AsciiSet, NON_ALPHANUMERIC, percent_decode, utf8_percent_encode};

/// The characters that are not escaped in a part of a path or of a query.
const PLAIN: &AsciiSet = &NON_ALPHANUMERIC.remove(b'-').remove(b'_').remove(b'.').remove(b'~');

/// Returns the names and values, in their order. Bytes that are not UTF-8 are replaced.
pub(crate) fn pairs(text: &[u8]) -> Vec<(String, String)> {
    let parts = text.split(|byte| *byte == b'&').filter(|part| !part.is_empty());
    let decoded = |part: &[u8]| {
        let spaced: Vec<u8> = part.iter().map(|byte| if *byte == b'+' { b' ' } else { *byte }).collect();
        percent_decode(&spaced).decode_utf8_lossy().into_owned()
    };
    let pair = |part: &[u8]| {
        let end = part.iter().position(|byte| *byte == b'=').unwrap_or(part.len());
        (decoded(&part[..end]), decoded(part.get(end + 1..).unwrap_or_default()))
    };
    parts.map(pair).collect()
}

/// Returns whether a body is a form that this module reads.
pub(crate) fn is_form(headers: &HeaderMap) -> bool {
    let kind = headers.get(header::CONTENT_TYPE).and_then(|kind| kind.to_str().ok()).unwrap_or_default();
    let essence = kind.split(';').next().unwrap_or_default().trim();
    essence.eq_ignore_ascii_case("application/x-www-form-urlencoded")
}

/// Returns a part of a path or of a query.
pub(crate) fn part(text: &str) -> String {
    utf8_percent_encode(text, PLAIN).to_string()
}

/// Returns a part of a path, decoded; `None` if it is not UTF-8.
pub(crate) fn decoded(part: &str) -> Option<String> {
    percent_decode(part.as_bytes()).decode_utf8().ok().map(Into::into)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fields_are_decoded() {
        let pair = |name: &str, value: &str| (name.to_owned(), value.to_owned());
        assert_eq!(
            pairs(b"a=1+2&b.c=%C3%BC%26&d&=e&a=\xff"),
            [pair("a", "1 2"), pair("b.c", "ü&"), pair("d", ""), pair("", "e"), pair("a", "\u{fffd}")]
        );
        assert_eq!(pairs(b""), []);
        assert_eq!(decoded(&part("a/b?c&d ü")).as_deref(), Some("a/b?c&d ü"));
    }
}
