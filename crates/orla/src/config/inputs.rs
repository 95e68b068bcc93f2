//! The placeholders in the files of MCP clients besides environment variables: `inputs` that a client
//! requests from a person, and places such as `${workspaceFolder}`.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use orla_document::{Kind as Shape, Node};
use serde_json::{Value, json};

use super::Config;
use super::expand::input_variable;
use super::read::{Lookup, Reader, unexpected};

/// The values of the placeholders of clients besides environment variables.
pub(super) struct Clients {
    /// The directory that is open in an editor. For orla, the directory to which the file belongs.
    workspace: PathBuf,
    /// The defaults of `inputs`.
    inputs: BTreeMap<String, Option<String>>,
}

impl Clients {
    pub(super) fn new(file: &Path, root: Option<&Node>) -> Self {
        let file = std::path::absolute(file).unwrap_or_else(|_| file.to_owned());
        let beside = file.parent().unwrap_or(Path::new("/"));
        let workspace = if is_editors(beside) { beside.parent().unwrap_or(beside) } else { beside };
        Self { workspace: workspace.to_owned(), inputs: inputs(root) }
    }

    /// Returns the value of a variable, in whichever form a client writes it.
    pub(super) fn variable(&self, name: &str, env: Lookup<'_>) -> Option<String> {
        let text = |path: &Path| path.to_str().map(str::to_owned);
        if let Some(variable) = name.strip_prefix("env:") {
            return env(variable);
        }
        if let Some(id) = name.strip_prefix("input:") {
            return env(&input_variable(id)).or_else(|| self.inputs.get(id).cloned().flatten());
        }
        env(name).or_else(|| match name {
            "workspaceFolder" | "workspaceRoot" => text(&self.workspace),
            "workspaceFolderBasename" => text(Path::new(self.workspace.file_name()?)),
            "userHome" => env("HOME"),
            "pathSeparator" | "/" => Some("/".to_owned()),
            _ => None,
        })
    }
}

/// Returns whether a directory is that of an editor's files.
fn is_editors(dir: &Path) -> bool {
    dir.file_name().is_some_and(|name| [".vscode", ".cursor"].iter().any(|known| name == *known))
}

/// Returns whether a file is one in which a project configures its developers' clients.
pub(super) fn is_of_project(file: &Path) -> bool {
    let file = std::path::absolute(file).unwrap_or_else(|_| file.to_owned());
    file.file_name().is_some_and(|name| name == ".mcp.json") || file.parent().is_some_and(is_editors)
}

/// Returns the ids and defaults of `inputs`. Malformed entries are skipped here and reported when the
/// key is read.
fn inputs(root: Option<&Node>) -> BTreeMap<String, Option<String>> {
    let entry = |node: &Node, key: &str| match &node.kind {
        Shape::Map(pairs) => {
            pairs.iter().find(|(name, _)| name.text == key).map(|(_, node)| node.clone())
        }
        Shape::Scalar(_) | Shape::List(_) => None,
    };
    let Some(Shape::List(items)) = root.and_then(|root| entry(root, "inputs")).map(|node| node.kind)
    else {
        return BTreeMap::new();
    };
    let text = |item: &Node, key: &str| {
        entry(item, key)?
            .as_scalar()
            .filter(|scalar| !scalar.is_null())
            .map(|scalar| scalar.text.clone())
    };
    items.iter().filter_map(|item| Some((text(item, "id")?, text(item, "default")))).collect()
}

/// Checks the key. [`Clients`] has read its values before, as variables.
pub(super) fn read(reader: &mut Reader<'_>, _: &mut Config, path: &str, node: &Node) {
    let Shape::List(items) = &node.kind else {
        return reader.problem(node.at, || format!("{path}{}", unexpected("a list of inputs", node)));
    };
    for (index, item) in items.iter().enumerate() {
        let path = format!("{path}[{index}]");
        let Some(pairs) = reader.pairs(&path, item, "a mapping with id") else { continue };
        if !pairs.iter().any(|(key, node)| key.text == "id" && node.as_text().is_some()) {
            reader.missing(item.at, &path, "id");
        }
    }
}

pub(super) fn schema() -> Value {
    json!({"type": "array", "items": {"type": "object", "required": ["id"],
        "properties": {"id": {"type": "string"}, "default": {"type": "string"}}}})
}
