//! Parts of texts for messages, cut between characters.

/// The beginning of `text`, at most `max` bytes, with an ellipsis where something is missing.
pub fn beginning(text: &str, max: usize) -> String {
    if text.len() <= max {
        return text.to_owned();
    }
    let end = (0..=max).rev().find(|at| text.is_char_boundary(*at)).unwrap_or(0);
    format!("{}…", &text[..end])
}

/// The end of `text`, at most `max` bytes.
pub fn end(text: &str, max: usize) -> &str {
    let from = text.len().saturating_sub(max);
    let from = (from..text.len()).find(|at| text.is_char_boundary(*at)).unwrap_or(text.len());
    &text[from..]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_text_is_cut_between_characters() {
        assert_eq!(
            (beginning("aéb", 4), beginning("aéb", 2), beginning("é", 1)),
            ("aéb".into(), "a…".into(), "…".into())
        );
        assert_eq!((end("aéb", 4), end("aéb", 2), end("é", 1), end("", 3)), ("aéb", "b", "", ""));
    }
}
