//! Reads the keys off the tree of a file. Nothing is read twice and nothing stops the reading: problems
//! are collected with their places, up to a bound, and counted beyond it.

use std::collections::HashMap;
use std::path::Path;

use orla_document::{Kind as Shape, Node, Position, Scalar};

use super::comments::without_comments;
use super::expand::expand;
use super::inputs::Clients;
use super::keys::{self, KEYS, Key, Kind, TOOL_KEYS, nearest};
use super::{Config, Origin, Problem, Rename, ToolOverride, capabilities};
use crate::extensions::Extensions;
use crate::text::cut;

/// Characters of an unknown key that are shown.
const SHOWN: usize = 60;
/// The most problems of one file that are told apart.
const REPORTED: usize = 20;

pub(super) type Lookup<'a> = &'a dyn Fn(&str) -> Option<String>;

/// Reads a whole file into `config`. An empty one changes nothing.
pub(super) fn file(
    config: &mut Config,
    path: &Path,
    text: &str,
    lookup: Lookup<'_>,
    problems: &mut Vec<Problem>,
) {
    // Editors' own files are JSON with comments.
    let root = orla_document::parse(&without_comments(text));
    let clients = Clients::new(path, root.as_ref().ok().and_then(Option::as_ref));
    let lookup = |name: &str| clients.variable(name, lookup);
    let extensions = config.extensions.clone();
    let mut reader =
        Reader { path, lookup: &lookup, extensions, problems, unreported: 0, warnings: Vec::new() };
    match root {
        Ok(None) => {}
        Ok(Some(root)) => reader.root(config, &root),
        Err(err) => reader.problem(err.at, || err.problem),
    }
    if reader.unreported > 0 {
        let text = format!("and {} more problems in {}", reader.unreported, path.display());
        reader.problems.push(Problem::new(text));
    }
    config.warnings.append(&mut reader.warnings);
    config.file = Some(path.to_owned());
}

/// Reads the values of one file and notes what is wrong with them.
pub(super) struct Reader<'a> {
    pub(super) path: &'a Path,
    pub(super) lookup: Lookup<'a>,
    pub(super) extensions: Extensions,
    problems: &'a mut Vec<Problem>,
    /// How many problems are beyond the bound.
    unreported: usize,
    warnings: Vec<Problem>,
}

/// A scalar with its variables filled in.
pub(super) struct Word {
    pub(super) scalar: Scalar,
    /// It had a variable in it: it may then be a number although it stood in quotes.
    pub(super) expanded: bool,
}

/// Whether this is a file of an MCP client: of what is known here it has nothing but servers. What else there is means
/// something to its client.
fn is_clients(pairs: &[(orla_document::Key, Node)]) -> bool {
    let known: Vec<&str> =
        pairs.iter().filter_map(|(name, _)| keys::find(&name.text)).map(|key| key.name).collect();
    !known.is_empty() && known.iter().all(|name| matches!(*name, "mcpServers" | "servers" | "inputs"))
}

impl Reader<'_> {
    fn root(&mut self, config: &mut Config, root: &Node) {
        let Shape::Map(pairs) = &root.kind else {
            let problem = || format!("expected a mapping of keys to values, got {}", root.describe());
            return self.problem(root.at, problem);
        };
        let is_clients = self.path.extension().is_some_and(|ext| ext == "json") && is_clients(pairs);
        for (name, node) in pairs {
            let Some(key) = keys::find(&name.text) else {
                if is_clients && nearest(&name.text, KEYS.iter().map(|key| key.name)).is_none() {
                    let known = excerpt(&name.text);
                    self.warning(name.at, || format!("{known}: unknown key, ignored"));
                    continue;
                }
                self.unknown(name.at, &name.text, "", KEYS.iter().map(|key| key.name));
                continue;
            };
            match self.key(config, key, node) {
                Ok(()) => {
                    config.origins.insert(key.name, Origin::File(node.at));
                }
                Err((at, problem)) => self.problem(at, || format!("{}{problem}", key.name)),
            }
        }
        capabilities::finish(self, config);
    }

    /// Reads one key; an error continues the key's name (`: expected …`, `[2]: expected …`).
    fn key(&mut self, config: &mut Config, key: &Key, node: &Node) -> Result<(), (Position, String)> {
        match (&key.kind, &node.kind) {
            (Kind::Own(own), _) => {
                (own.read)(self, config, key.name, node);
                Ok(())
            }
            (Kind::Tools, Shape::Map(pairs)) => {
                for (name, node) in pairs {
                    let (mut entry, at) = (ToolOverride::default(), Some(name.at));
                    entry.at = at;
                    self.tool(&mut entry, &name.text, node);
                    config.tools.insert(name.text.clone(), entry);
                }
                self.renames(config);
                Ok(())
            }
            (Kind::Texts { put, check }, Shape::List(items)) => {
                let mut texts = Vec::new();
                for (index, item) in items.iter().enumerate() {
                    let is_text =
                        matches!(&item.kind, Shape::Scalar(scalar) if scalar.as_text().is_some());
                    if key.is_secret() && !is_text {
                        let problem = format!("[{index}]: expected text (in quotes, a number is text)");
                        return Err((item.at, problem));
                    }
                    let text =
                        self.text(item).map_err(|problem| (item.at, format!("[{index}]{problem}")))?;
                    check(&text).map_err(|problem| (item.at, format!("[{index}]: {problem}")))?;
                    texts.push(text);
                }
                put(config, texts);
                Ok(())
            }
            (Kind::Section(keys), Shape::Map(pairs)) => {
                for (name, node) in pairs {
                    let Some(inner) = keys.iter().find(|inner| inner.name == name.text) else {
                        let prefix = format!("{}.", key.name);
                        self.unknown(name.at, &name.text, &prefix, keys.iter().map(|inner| inner.name));
                        continue;
                    };
                    if let Err((at, problem)) = self.key(config, inner, node) {
                        self.problem(at, || format!("{}.{}{problem}", key.name, inner.name));
                    }
                }
                Ok(())
            }
            (kind, _) if key.is_secret() => Err((node.at, format!(": expected {}", kind.expected()))),
            (Kind::Tools | Kind::Section(_) | Kind::Texts { .. }, _) => {
                Err((node.at, unexpected(&key.kind.expected(), node)))
            }
            (kind, _) => {
                let text = if kind.is_text() {
                    self.text_of(node, &kind.expected())
                } else {
                    self.plain_of(node, &kind.expected())
                };
                let text = text.map_err(|problem| (node.at, problem))?;
                kind.read_scalar(config, &text).map_err(|expected| {
                    (node.at, format!(": expected {expected}, got {}", shown(node, &text)))
                })?;
                if let Kind::Path(place) = kind {
                    let path = place(config);
                    *path = self.path.parent().unwrap_or(Path::new("")).join(&*path);
                }
                Ok(())
            }
        }
    }

    fn tool(&mut self, entry: &mut ToolOverride, name: &str, node: &Node) {
        let Shape::Map(pairs) = &node.kind else {
            let expected = || format!("a mapping with {}", keys::list_of(&TOOL_KEYS));
            return self.problem(node.at, || format!("tools.{name}{}", unexpected(&expected(), node)));
        };
        for (key, node) in pairs {
            let read = match key.text.as_str() {
                "timeout" => {
                    let expected = keys::expected_seconds(keys::MAX_TOOL_TIMEOUT);
                    self.plain_of(node, &expected).and_then(|text| {
                        entry.timeout = keys::seconds(&text, keys::MAX_TOOL_TIMEOUT);
                        let wrong = || format!(": expected {expected}, got {}", shown(node, &text));
                        entry.timeout.map(|_| ()).ok_or_else(wrong)
                    })
                }
                "enabled" => self.plain_of(node, "true or false").and_then(|text| {
                    entry.enabled = text.to_ascii_lowercase().parse().ok();
                    let wrong = || format!(": expected true or false, got {}", shown(node, &text));
                    entry.enabled.map(|_| ()).ok_or_else(wrong)
                }),
                "description" => self.text(node).map(|text| entry.description = Some(text)),
                "rename" => self.text(node).and_then(|text| {
                    if !is_tool_name(&text) {
                        return Err(format!(
                            ": expected 1 to 64 letters, digits, `_` or `-`, got {}",
                            node.describe()
                        ));
                    }
                    entry.rename = Some(Rename { to: text, at: node.at });
                    Ok(())
                }),
                "max_concurrency" => {
                    let path = format!("tools.{name}.max_concurrency");
                    entry.max_concurrency = self.count(&path, node, 1, keys::MAX_TOOL_CONCURRENCY);
                    Ok(())
                }
                "retries" => {
                    let path = format!("tools.{name}.retries");
                    entry.retries = self.count(&path, node, 0, keys::MAX_RETRIES);
                    Ok(())
                }
                "pass_env" => {
                    entry.pass_env = self.variables(&format!("tools.{name}.pass_env"), node);
                    Ok(())
                }
                other => {
                    self.unknown(key.at, other, &format!("tools.{name}."), TOOL_KEYS);
                    Ok(())
                }
            };
            if let Err(problem) = read {
                self.problem(node.at, || format!("tools.{name}.{}{problem}", key.text));
            }
        }
    }

    /// Two tools cannot be given one name.
    fn renames(&mut self, config: &Config) {
        let mut seen: HashMap<&str, &str> = HashMap::new();
        for (name, entry) in &config.tools {
            let Some(Rename { to, at }) = &entry.rename else { continue };
            if let Some(other) = seen.insert(to, name) {
                self.problem(*at, || {
                    format!("tools.{name}.rename: tools.{other} is already called {to}")
                });
            }
        }
    }

    fn text(&self, node: &Node) -> Result<String, String> {
        self.text_of(node, "text")
    }

    /// The text of a node; a number or a boolean is none, unless a variable said it.
    pub(super) fn text_of(&self, node: &Node, expected: &str) -> Result<String, String> {
        let word = self.word(node, expected)?;
        if word.expanded || word.scalar.as_text().is_some() {
            return Ok(word.scalar.text);
        }
        let hint = if word.scalar.is_null() { "" } else { " (in quotes, it is text)" };
        Err(format!("{}{hint}", unexpected(expected, node)))
    }

    /// The text of a number or boolean; what stands in quotes is none, unless a variable said it.
    pub(super) fn plain_of(&self, node: &Node, expected: &str) -> Result<String, String> {
        let word = self.word(node, expected)?;
        if word.expanded || word.scalar.plain {
            return Ok(word.scalar.text);
        }
        Err(unexpected(expected, node))
    }

    pub(super) fn word(&self, node: &Node, expected: &str) -> Result<Word, String> {
        let Shape::Scalar(scalar) = &node.kind else { return Err(unexpected(expected, node)) };
        let (text, expanded) =
            expand(&scalar.text, self.lookup).map_err(|problem| format!(": {problem}"))?;
        Ok(Word { scalar: Scalar { text, plain: scalar.plain }, expanded })
    }

    /// Notes a key that is none.
    pub(super) fn unknown<'a>(
        &mut self,
        at: Position,
        key: &str,
        prefix: &str,
        known: impl IntoIterator<Item = &'a str>,
    ) {
        self.problem(at, || {
            let problem = match nearest(key, known) {
                Some(near) => format!("unknown key, did you mean {near}?"),
                None => "unknown key (`orla schema` prints all of them)".to_owned(),
            };
            format!("{prefix}{}: {problem}", excerpt(key))
        });
    }

    /// Notes a problem; its text is made only where it is reported.
    pub(super) fn problem(&mut self, at: Position, text: impl FnOnce() -> String) {
        if self.problems.len() < REPORTED {
            self.problems.push(Problem::at(self.path, at, text()));
        } else {
            self.unreported += 1;
        }
    }

    /// Notes what works and may not be meant.
    pub(super) fn warning(&mut self, at: Position, text: impl FnOnce() -> String) {
        if self.warnings.len() < REPORTED {
            self.warnings.push(Problem::at(self.path, at, text()));
        }
    }
}

/// The beginning of a key that a message shows.
pub(super) fn excerpt(key: &str) -> String {
    cut(key, SHOWN)
}

pub(super) fn unexpected(expected: &str, node: &Node) -> String {
    format!(": expected {expected}, got {}", node.describe())
}

/// What came, for the message: as it was written, or what its variables made of it.
pub(super) fn shown(node: &Node, text: &str) -> String {
    match &node.kind {
        Shape::Scalar(scalar) if scalar.text == text => node.describe(),
        _ => format!("text {text:?}"),
    }
}

pub(super) fn is_tool_name(text: &str) -> bool {
    (1..=64).contains(&text.len())
        && text.bytes().all(|b| b.is_ascii_alphanumeric() || b == b'_' || b == b'-')
}
