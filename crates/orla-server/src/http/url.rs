//! Paths and queries of URLs. No I/O.

use percent_encoding::percent_decode_str;

/// Returns the rest of a path below `root`: the empty string for `root` itself, otherwise a text that
/// begins with `/`. Returns `None` for other paths.
pub(crate) fn below<'a>(root: &str, path: &'a str) -> Option<&'a str> {
    path.strip_prefix(root).filter(|rest| rest.is_empty() || rest.starts_with('/'))
}

/// Returns the decoded parameters of a query with their values. A parameter without `=` has an empty
/// value.
pub(crate) fn pairs(query: &str) -> impl Iterator<Item = (String, String)> {
    let decoded = |text: &str| {
        let text = text.replace('+', " ");
        percent_decode_str(&text).decode_utf8_lossy().into_owned()
    };
    query.split('&').filter(|pair| !pair.is_empty()).map(move |pair| {
        let (name, value) = pair.split_once('=').unwrap_or((pair, ""));
        (decoded(name), decoded(value))
    })
}
