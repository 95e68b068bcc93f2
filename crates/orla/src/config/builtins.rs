//! `builtins`: which built-in capabilities clients see.

use orla_document::{Kind as Shape, Node};
use orla_marketplace::Listing;
use orla_marketplace::id::Pattern;
use serde_json::{Value, json};

use super::Config;
use super::forms::{Flag, Form, Scalar, Texts, listed, variable};
use super::read::{Reader, shown};

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
        config.builtins = reader.patterns(path, node).map(Builtins::Some).unwrap_or_default();
        return;
    }
    let builtins = reader.plain_of(node, expected).and_then(|text| match Flag.parse(&text) {
        Ok(true) => Ok(Builtins::Listed),
        Ok(false) => Ok(Builtins::None),
        Err(_) => Err(format!(": expected {expected}, got {}", shown(node, &text))),
    });
    config.builtins = reader.noted(path, node, builtins).unwrap_or_default();
}

pub(super) fn schema() -> Value {
    json!({"anyOf": [{"type": "boolean"}, Texts.schema(), variable()]})
}
