//! `builtins`: which built-in capabilities clients see.

use orla_document::{Kind as Shape, Node};
use orla_marketplace::Listing;
use orla_marketplace::id::Pattern;
use serde_json::{Value, json};

use super::Config;
use super::keys::{Own, listed};
use super::read::Reader;

/// The key.
pub(super) const KEY: Own = Own {
    read,
    schema,
    expected: "true, false or a list of name patterns",
    variable: Some(of_variable),
};

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
    /// There are none.
    None,
}

impl Builtins {
    /// How the built-in with this id is served, if it is.
    pub(crate) fn listing(&self, id: &str) -> Option<Listing> {
        match self {
            Self::Unlisted => Some(Listing::Unlisted),
            Self::Listed => Some(Listing::Listed),
            Self::Some(patterns) if patterns.iter().any(|pattern| pattern.matches(id)) => {
                Some(Listing::Listed)
            }
            Self::Some(_) => Some(Listing::Unlisted),
            Self::None => None,
        }
    }
}

fn of_variable(config: &mut Config, text: &str) -> Result<(), String> {
    config.builtins = match text {
        "true" => Builtins::Listed,
        "false" => Builtins::None,
        list => Builtins::Some(listed(list).into_iter().map(Pattern::new).collect()),
    };
    Ok(())
}

fn read(reader: &mut Reader<'_>, config: &mut Config, path: &'static str, node: &Node) {
    if let Shape::List(_) = &node.kind {
        if let Some(patterns) = reader.patterns(path, node) {
            config.builtins = Builtins::Some(patterns);
        }
        return;
    }
    match reader.flag(path, node, KEY.expected) {
        Some(true) => config.builtins = Builtins::Listed,
        Some(false) => config.builtins = Builtins::None,
        None => {}
    }
}

fn schema() -> Value {
    json!({"anyOf": [
        {"type": "boolean"},
        {"type": "array", "items": {"type": "string", "minLength": 1}},
        super::schema::variable(),
    ]})
}
