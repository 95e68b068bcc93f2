//! The subjects of the rules of `policy`, `approve` and `quotas`, each with its place, so that a rule
//! that matches nothing is found ([`crate::unmatched`]).

use orla_document::{Kind as Shape, Node, Position};
use orla_marketplace::Permission;
use orla_marketplace::id::Pattern;

use super::Placed;
use super::access::read_permissions;
use super::forms::{Read, texts_or_text};
use super::read::Reader;

/// The subject of a rule.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Subject {
    /// The key that names it: `policy[0].deny`.
    pub(crate) path: String,
    pub(crate) what: What,
}

/// The named object.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum What {
    /// Capabilities, by id or MCP name.
    Capabilities(Pattern),
    /// A granted permission.
    Allowed(Permission),
    /// A denied permission.
    Denied(Permission),
}

/// A list of name patterns of capabilities, or one.
pub(super) const SERVED: Read<Vec<Pattern>> = Read(read_served, texts_or_text);

fn read_served(reader: &mut Reader<'_>, path: &str, node: &Node) -> Option<Vec<Pattern>> {
    let patterns = reader.patterns(path, node)?;
    not_empty(reader, path, node, "capabilities")?;
    for (pattern, at) in patterns.iter().zip(places(node)) {
        reader.note_served(path, at, pattern.as_str());
    }
    Some(patterns)
}

pub(super) fn read_allowed(reader: &mut Reader<'_>, path: &str, node: &Node) -> Option<Vec<Permission>> {
    let permissions = read_permissions(reader, path, node)?;
    reader.note(path, node, &permissions, What::Allowed);
    Some(permissions)
}

pub(super) fn read_denied(reader: &mut Reader<'_>, path: &str, node: &Node) -> Option<Vec<Permission>> {
    let permissions = read_permissions(reader, path, node)?;
    reader.note(path, node, &permissions, What::Denied);
    Some(permissions)
}

impl Reader<'_> {
    /// Notes a pattern over names of capabilities.
    pub(super) fn note_served(&mut self, path: &str, at: Position, pattern: &str) {
        let what = What::Capabilities(Pattern::new(pattern));
        self.subjects.push(Placed { value: Subject { path: path.to_owned(), what }, at });
    }

    fn note(
        &mut self,
        path: &str,
        node: &Node,
        permissions: &[Permission],
        what: fn(Permission) -> What,
    ) {
        let subjects = permissions.iter().zip(places(node)).map(|(permission, at)| {
            let value = Subject { path: path.to_owned(), what: what(permission.clone()) };
            Placed { value, at }
        });
        self.subjects.extend(subjects);
    }
}

/// Checks that a list of subjects of a rule is not empty, because a rule that matches nothing has no
/// effect.
pub(super) fn not_empty(reader: &mut Reader<'_>, path: &str, node: &Node, what: &str) -> Option<()> {
    if !matches!(&node.kind, Shape::List(items) if items.is_empty()) {
        return Some(());
    }
    reader.problem(node.at, || {
        format!("{path}: an empty list fits no {what}: name some, or remove the key or the rule")
    });
    None
}

/// Returns the places of the items of a list; of a single text, its own again and again.
pub(super) fn places(node: &Node) -> impl Iterator<Item = Position> {
    let items: Vec<Position> = match &node.kind {
        Shape::List(items) => items.iter().map(|item| item.at).collect(),
        _ => Vec::new(),
    };
    items.into_iter().chain(std::iter::repeat(node.at))
}
