//! The requirements of a configuration file on its environment, found without loading the file, for
//! programs that start orla with it.

use std::cell::RefCell;
use std::collections::BTreeSet;
use std::path::PathBuf;

use orla_document::{Kind as Shape, Node};
use orla_secrets::Secret;

use super::Source;
use super::comments::without_comments;
use super::expand::{ExpandError, Values, expand};
use super::file::read_file;
use super::inputs::Clients;

/// Variables that every program has.
const USUAL: [&str; 6] = ["HOME", "PATH", "USER", "LOGNAME", "SHELL", "LANG"];

/// The facts about a configuration file that are known without loading it.
pub(crate) struct Survey {
    pub(crate) file: PathBuf,
    /// The environment variables without which it cannot be read.
    pub(crate) variables: BTreeSet<String>,
    /// The names of its MCP servers.
    pub(crate) servers: Vec<String>,
    /// Whether it has an audit log, which one orla at a time can write.
    pub(crate) has_audit: bool,
}

impl Source {
    /// Surveys the configuration file; `None` if there is none that can be parsed.
    pub(crate) fn survey(&self) -> Option<Survey> {
        let file = self.find().ok().flatten()?;
        let root = orla_document::parse(&without_comments(&read_file(&file).ok()?)).ok()??;
        let clients = Clients::new(&file, Some(&root));
        let mut variables = BTreeSet::new();
        add_variables(&root, &clients, &mut variables);
        variables.retain(|name| !USUAL.contains(&name.as_str()));
        let Shape::Map(pairs) = &root.kind else { return None };
        let is_of_servers = |name: &str| matches!(name, "mcpServers" | "servers");
        let servers = pairs.iter().filter(|(name, _)| is_of_servers(&name.text));
        let names = |node: &Node| match &node.kind {
            Shape::Map(entries) => entries.iter().map(|(name, _)| name.text.clone()).collect(),
            Shape::Scalar(_) | Shape::List(_) => Vec::new(),
        };
        Some(Survey {
            servers: servers.flat_map(|(_, node)| names(node)).collect(),
            has_audit: pairs.iter().any(|(name, node)| name.text == "audit" && !node.is_null()),
            variables,
            file,
        })
    }
}

/// Adds the variables that the texts of a node need and have no default for.
fn add_variables(node: &Node, clients: &Clients, variables: &mut BTreeSet<String>) {
    match &node.kind {
        Shape::Scalar(scalar) => {
            while let Some(name) = missing(&scalar.text, clients, variables) {
                variables.insert(name);
            }
        }
        Shape::List(items) => items.iter().for_each(|item| add_variables(item, clients, variables)),
        Shape::Map(pairs) => {
            pairs.iter().for_each(|(_, node)| add_variables(node, clients, variables));
        }
    }
}

/// Returns the first variable that a text needs if `known` are set.
fn missing(text: &str, clients: &Clients, known: &BTreeSet<String>) -> Option<String> {
    let asked = RefCell::new(None);
    let env = |name: &str| {
        let is_set = known.contains(name);
        *asked.borrow_mut() = (!is_set).then(|| name.to_owned());
        is_set.then(String::new)
    };
    let variable = |name: &str| clients.variable(name, &env);
    let values = Values { variable: &variable, reference: &|_| Ok(Secret::from(String::new())) };
    match expand(text, values) {
        Err(ExpandError::Missing(_)) => asked.into_inner(),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_variables_without_a_default_are_needed() {
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join("orla.yaml");
        std::fs::write(
            &file,
            "audit: a.jsonl\nmcpServers:\n  a: {url: \"${B}/${A}\", headers: {k: \"${C:-c}${env:D} ${HOME}\"}}\n  b: \
             {command: x, args: [\"${secret:s}\", \"${workspaceFolder}\", \"$${E}\"]}\n",
        )
        .unwrap();
        let source = Source { file: Some(file), ..Source::default() };
        let survey = source.survey().unwrap();
        assert_eq!(survey.variables.into_iter().collect::<Vec<_>>(), ["A", "B", "D"]);
        assert_eq!(survey.servers, ["a", "b"]);
        assert!(survey.has_audit);
    }
}
