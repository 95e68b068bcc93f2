//! Texts with arguments: `/v1/{city}`.

/// A piece of a template.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Piece<'a> {
    /// Literal text.
    Text(&'a str),
    /// `{name}`.
    Argument(&'a str),
}

/// Parses a template. `{{` and `}}` stand for one brace.
///
/// # Errors
/// A brace that is not closed, or with nothing in it.
pub(super) fn parse(template: &str) -> Result<Vec<Piece<'_>>, String> {
    let mut pieces = Vec::new();
    let mut rest = template;
    while let Some(at) = rest.find(['{', '}']) {
        let (before, from) = rest.split_at(at);
        if from.starts_with("{{") || from.starts_with("}}") {
            pieces.push(Piece::Text(&rest[..=at]));
            rest = &from[2..];
            continue;
        }
        if !before.is_empty() {
            pieces.push(Piece::Text(before));
        }
        let name = from
            .strip_prefix('{')
            .and_then(|inside| inside.split_once('}'))
            .filter(|(name, _)| !name.is_empty() && !name.contains('{'));
        let Some((name, after)) = name else {
            return Err(format!("`{template}`: expected {{NAME}}, or {{{{ and }}}} for braces"));
        };
        pieces.push(Piece::Argument(name));
        rest = after;
    }
    if !rest.is_empty() {
        pieces.push(Piece::Text(rest));
    }
    Ok(pieces)
}

/// Returns the arguments that a template names.
pub(super) fn arguments<'a>(pieces: &[Piece<'a>]) -> impl Iterator<Item = &'a str> {
    pieces.iter().filter_map(|piece| match piece {
        Piece::Argument(name) => Some(*name),
        Piece::Text(_) => None,
    })
}

#[cfg(test)]
mod tests {
    use super::Piece::{Argument, Text};
    use super::*;

    #[test]
    fn templates_are_texts_and_arguments() {
        let cases = [
            ("", vec![]),
            ("/v1", vec![Text("/v1")]),
            ("/v1/{city}/x", vec![Text("/v1/"), Argument("city"), Text("/x")]),
            ("{a}{b}", vec![Argument("a"), Argument("b")]),
            ("a{{b}}c", vec![Text("a{"), Text("b}"), Text("c")]),
        ];
        for (template, pieces) in cases {
            assert_eq!(parse(template).unwrap(), pieces, "{template}");
        }
        for broken in ["{", "a}", "{}", "{a", "{a{b}}"] {
            assert!(parse(broken).is_err(), "{broken}");
        }
    }
}
