//! `builtins`: which built-in capabilities clients see.

use orla_document::{Kind as Shape, Node};
use orla_marketplace::Listing;
use orla_marketplace::id::Pattern;
use orla_marketplace::rtfs::text::nearest;
use orla_providers::builtin::registrations;
use serde_json::{Value, json};

use super::Config;
use super::forms::{Flag, Form, Scalar, Texts, listed, variable};
use super::read::{Reader, excerpt, shown};
use super::subjects::places;

/// Which built-ins there are, and which of them are listed.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) enum Builtins {
    /// All of them can be called, none is listed.
    #[default]
    Unlisted,
    /// All of them are listed.
    Listed,
    /// Those that fit are listed, the others can be called.
    Some(Vec<Pattern>),
    /// No built-ins are served.
    None,
}

impl Builtins {
    /// Returns how the built-in with this id is served, if it is.
    pub(crate) fn listing(&self, id: &str) -> Option<Listing> {
        match self {
            Self::Unlisted => Some(Listing::Unlisted),
            Self::Listed => Some(Listing::Listed),
            Self::Some(patterns) if patterns.iter().any(|pattern| pattern.covers(id)) => {
                Some(Listing::Listed)
            }
            Self::Some(_) => Some(Listing::Unlisted),
            Self::None => None,
        }
    }
}

pub(super) fn of_variable(config: &mut Config, text: &str) -> Result<(), String> {
    config.builtins = match text {
        "true" => Builtins::Listed,
        "false" => Builtins::None,
        list => Builtins::Some(listed(list).into_iter().map(Pattern::new).collect()),
    };
    Ok(())
}

pub(super) fn read(reader: &mut Reader<'_>, config: &mut Config, path: &str, node: &Node) {
    let expected = "true, false or a list of name patterns";
    if let Shape::List(_) = &node.kind {
        let patterns = reader.patterns(path, node);
        for (pattern, at) in patterns.iter().flatten().zip(places(node)) {
            if let Some(problem) = idle(pattern) {
                reader.warning(at, || format!("{path}: {problem}"));
            }
        }
        config.builtins = patterns.map(Builtins::Some).unwrap_or_default();
        return;
    }
    let builtins = reader.plain_of(node, expected).and_then(|text| match Flag.parse(&text) {
        Ok(true) => Ok(Builtins::Listed),
        Ok(false) => Ok(Builtins::None),
        Err(_) => Err(format!(": expected {expected}, got {}", shown(node, &text))),
    });
    config.builtins = reader.noted(path, node, builtins).unwrap_or_default();
}

/// Returns that a pattern matches no built-in, with the one that is probably meant.
fn idle(pattern: &Pattern) -> Option<String> {
    let ids = || registrations().iter().map(|one| one.manifest.id.as_str());
    if ids().any(|id| pattern.covers(id)) {
        return None;
    }
    let text = pattern.as_str();
    let groups = || ids().filter_map(|id| id.split_once('.')).map(|(group, _)| group);
    let meant = match text.split_once('.') {
        Some((group, "*")) => nearest(group, groups()).map(|group| format!("{group}.*")),
        _ => nearest(text, ids().chain(groups())).map(str::to_owned),
    };
    let hint = meant.map(|meant| format!(", did you mean {meant}?")).unwrap_or_default();
    Some(format!("{} matches no built-in{hint}", excerpt(text)))
}

pub(super) fn schema() -> Value {
    json!({"anyOf": [{"type": "boolean"}, Texts.schema(), variable()]})
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_pattern_that_matches_no_builtin_is_a_warning_at_its_place() {
        let config =
            Config::of("builtins: [math.add, 'date.*', text, 'mth.*', math.ad, other]\n").unwrap();
        let warnings: Vec<String> = config.warnings.iter().map(ToString::to_string).collect();
        assert_eq!(
            warnings,
            [
                "builtins: mth.* matches no built-in, did you mean math.*? at orla.yaml:1:38",
                "builtins: math.ad matches no built-in, did you mean math.add? at orla.yaml:1:47",
                "builtins: other matches no built-in at orla.yaml:1:56",
            ]
        );
    }
}
