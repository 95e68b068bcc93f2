//! Reads the keys from the tree of a file. No key is read twice, and no problem stops the reading:
//! problems are collected with their places up to a bound, and only counted beyond it.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use orla_document::{Kind as Shape, Node, Position, Scalar};
use orla_marketplace::Redactor;
use orla_marketplace::rtfs::text::nearest;
use orla_secrets::{Reference, Resolver, Secret, Source};

use orla_providers::sign_in::SignIn;

use super::comments::without_comments;
use super::expand::{Values, expand};
use super::inputs::{Clients, is_of_project};
use super::keys::find;
use super::subjects::Subject;
use super::table::KEYS;
use super::{Config, Origin, Placed, Problem, capabilities};
use crate::extensions::Extensions;
use crate::text::{cut, suggestion};

/// Characters of an unknown key that are shown.
const SHOWN: usize = 60;
/// How many problems of one file are reported one by one.
const MAX_REPORTED: usize = 20;

pub(super) type Lookup<'a> = &'a dyn Fn(&str) -> Option<String>;

/// Reads a file into `config`: the keys with these paths, or all. An empty file changes nothing.
pub(super) fn file(
    config: &mut Config,
    path: &Path,
    text: &str,
    only: Option<&[&str]>,
    lookup: Lookup<'_>,
    secrets: &Resolver,
    problems: &mut Vec<Problem>,
) {
    // Editors' own files are JSON with comments.
    let root = orla_document::parse(&without_comments(text));
    let clients = Clients::new(path, root.as_ref().ok().and_then(Option::as_ref));
    let lookup = |name: &str| clients.variable(name, lookup);
    let extensions = config.extensions.clone();
    let mut reader = Reader {
        path,
        only,
        lookup: &lookup,
        secrets,
        extensions,
        named_files: Vec::new(),
        problems,
        unreported: 0,
        warnings: Vec::new(),
        sign_ins: Vec::new(),
        in_cluster: Vec::new(),
        literal_secrets: Vec::new(),
        subjects: Vec::new(),
    };
    match root {
        Ok(None) => {}
        Ok(Some(root)) => reader.root(config, &root),
        Err(err) => reader.problem(err.at, || err.problem),
    }
    if reader.unreported > 0 {
        let text = format!("and {} more problems in {}", reader.unreported, path.display());
        reader.problems.push(Problem::new(text));
    }
    // A message may contain the value of a reference.
    let redactor = reader.redaction(0).unwrap_or_default();
    for remark in reader.problems.iter_mut().chain(&mut reader.warnings) {
        remark.redact(&redactor);
    }
    reader.named_files.extend(secrets.files());
    config.secrets = redactor;
    config.literal_secrets.append(&mut reader.literal_secrets);
    config.warnings.append(&mut reader.warnings);
    config.subjects.append(&mut reader.subjects);
    config.named_files.append(&mut reader.named_files);
    config.file = Some(path.to_owned());
}

/// Reads the values of one file and notes their problems.
pub(super) struct Reader<'a> {
    pub(super) path: &'a Path,
    /// The paths of the keys to read; `None` is all.
    only: Option<&'a [&'a str]>,
    pub(super) lookup: Lookup<'a>,
    pub(super) secrets: &'a Resolver,
    pub(super) extensions: Extensions,
    /// Files that the configuration names: a change of one is a change of the configuration.
    pub(super) named_files: Vec<PathBuf>,
    problems: &'a mut Vec<Problem>,
    /// How many problems are beyond the bound.
    unreported: usize,
    warnings: Vec<Problem>,
    /// The sign-ins of providers other than MCP servers.
    pub(super) sign_ins: Vec<Placed<SignIn>>,
    /// Where something is to hold in the whole cluster.
    pub(super) in_cluster: Vec<(Position, String)>,
    /// Credentials that the file contains.
    pub(super) literal_secrets: Vec<String>,
    /// The subjects of rules.
    pub(super) subjects: Vec<Placed<Subject>>,
}

/// A scalar with its variables filled in.
pub(super) struct Word {
    pub(super) scalar: Scalar,
    /// Whether the text contained a variable. It may then be a number although it was quoted.
    pub(super) expanded: bool,
}

/// Returns whether this is a file of an MCP client. Such a file has servers and no other known key; its
/// other keys belong to the client.
fn is_clients(pairs: &[(orla_document::Key, Node)]) -> bool {
    let known: Vec<&str> =
        pairs.iter().filter_map(|(name, _)| find(&KEYS, &name.text)).map(|key| key.name).collect();
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
            if !self.reads(&name.text) {
                continue;
            }
            let Some(key) = find(&KEYS, &name.text) else {
                let known = KEYS.iter().map(|key| key.name);
                if is_clients && nearest(&name.text, known.clone()).is_none() {
                    let known = excerpt(&name.text);
                    self.warning(name.at, || format!("{known}: unknown key, ignored"));
                } else {
                    self.unknown(name.at, &name.text, "", known);
                }
                continue;
            };
            key.read(self, config, key.name, node);
            config.origins.insert(key.name, Origin::File(node.at));
        }
        capabilities::finish(self, config);
        self.finish_sign_ins(config);
        if config.cluster.is_none() {
            for (at, path) in std::mem::take(&mut self.in_cluster) {
                self.problem(at, || format!("{path}: `cluster` needs the option `cluster`"));
            }
        }
    }

    /// Returns the text of a node. A number or a boolean is an error, unless a variable expanded to it.
    pub(super) fn text_of(&self, node: &Node, expected: &str) -> Result<String, String> {
        let word = self.word(node, expected)?;
        if word.expanded || word.scalar.as_text().is_some() {
            return Ok(word.scalar.text);
        }
        let hint = if word.scalar.is_null() { "" } else { " (in quotes, it is text)" };
        Err(format!("{}{hint}", unexpected(expected, node)))
    }

    /// Returns the text of a number or boolean. A quoted value is an error, unless a variable expanded
    /// to it.
    pub(super) fn plain_of(&self, node: &Node, expected: &str) -> Result<String, String> {
        let word = self.word(node, expected)?;
        if word.expanded || word.scalar.plain {
            return Ok(word.scalar.text);
        }
        Err(unexpected(expected, node))
    }

    pub(super) fn word(&self, node: &Node, expected: &str) -> Result<Word, String> {
        let Shape::Scalar(scalar) = &node.kind else { return Err(unexpected(expected, node)) };
        let directory = self.directory();
        // A project contains files for editors, and they are read before a person has looked at them.
        let source = match is_of_project(self.path) {
            true => Source::Package(directory),
            false => Source::Configuration(directory),
        };
        let reference = |reference: Reference<'_>| self.secrets.resolve(reference, source);
        let values = Values { variable: self.lookup, reference: &reference };
        let (text, expanded) = expand(&scalar.text, values).map_err(|problem| format!(": {problem}"))?;
        Ok(Word { scalar: Scalar { text, plain: scalar.plain }, expanded })
    }

    /// Returns the redactor of the secrets that were referenced after the first `since` ones.
    pub(super) fn redaction(&self, since: usize) -> Option<Arc<Redactor>> {
        let resolved = self.secrets.resolved(since);
        let redactor = Redactor::new(resolved.iter().map(Secret::expose));
        (!redactor.is_empty()).then(|| Arc::new(redactor))
    }

    /// Notes an unknown key.
    pub(super) fn unknown<'a>(
        &mut self,
        at: Position,
        key: &str,
        prefix: &str,
        known: impl IntoIterator<Item = &'a str>,
    ) {
        self.problem(at, || {
            let hint = match suggestion(key, known) {
                hint if hint.is_empty() => " (`orla schema` prints all of them)".to_owned(),
                hint => hint,
            };
            format!("{prefix}{}: unknown key{hint}", excerpt(key))
        });
    }

    /// Returns whether the key at this path, or a key below it, must be read.
    pub(super) fn reads(&self, path: &str) -> bool {
        let leads_to = |key: &&str| key.split('.').zip(path.split('.')).all(|(one, other)| one == other);
        self.only.is_none_or(|only| only.iter().any(leads_to))
    }

    /// Returns how many problems there are so far.
    pub(super) fn problem_count(&self) -> usize {
        self.problems.len() + self.unreported
    }

    /// Notes a problem; its text is made only where it is reported.
    pub(super) fn problem(&mut self, at: Position, text: impl FnOnce() -> String) {
        if self.problems.len() < MAX_REPORTED {
            self.problems.push(Problem::at(self.path, at, text()));
        } else {
            self.unreported += 1;
        }
    }

    /// Notes a setting that is valid but probably a mistake.
    pub(super) fn warning(&mut self, at: Position, text: impl FnOnce() -> String) {
        if self.warnings.len() < MAX_REPORTED {
            self.warnings.push(Problem::at(self.path, at, text()));
        }
    }
}

/// Returns whether the name of a setting, a variable or a header field is one of a secret.
pub(crate) fn names_secret(name: &str) -> bool {
    const WORDS: [&str; 9] = [
        "token",
        "secret",
        "passw",
        "apikey",
        "accesskey",
        "privatekey",
        "credential",
        "authorization",
        "cookie",
    ];
    const PLACES: [&str; 6] = ["url", "uri", "endpoint", "file", "path", "dir"];
    let name: String =
        name.chars().filter(char::is_ascii_alphanumeric).map(|c| c.to_ascii_lowercase()).collect();
    WORDS.iter().any(|word| name.contains(word)) && !PLACES.iter().any(|place| name.ends_with(place))
}

/// Returns the secret parts of the text of a setting with this name: the whole text, the text after the
/// scheme of an `Authorization`, or the password of an address.
pub(super) fn secrets_in(name: &str, text: &str) -> Vec<String> {
    let mut found = Vec::new();
    if names_secret(name) {
        found.push(text.to_owned());
        found.extend(text.split_once(' ').map(|(_, credential)| credential.trim().to_owned()));
    }
    let authority = text.split_once("://").map(|(_, rest)| rest.split('/').next().unwrap_or_default());
    let password = authority.and_then(|authority| authority.rsplit_once('@')?.0.split_once(':'));
    found.extend(password.map(|(_, password)| password.to_owned()));
    found
}

/// Returns the beginning of a key that a message shows.
pub(super) fn excerpt(key: &str) -> String {
    cut(key, SHOWN)
}

pub(super) fn unexpected(expected: &str, node: &Node) -> String {
    format!(": expected {expected}, got {}", node.describe())
}

/// Returns the received value for a message: as it was written, or after its variables were filled in.
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
