//! `orla.lock`: the exact packages of a project, for version control. No I/O.
//!
//! The file is YAML and has one entry for each package, sorted by name. It has no times and no paths of the project, so it
//! is the same on every machine, and a change of one package changes only its lines.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write as _;

use orla_document::{Kind, Node, Position};

/// The name of the file.
pub const FILE: &str = "orla.lock";
/// The written format, and the newest supported one.
const FORMAT: &str = "1";
/// The maximum size of a lock, in bytes.
pub const MAX_LOCK: u64 = 4 << 20;

/// The packages of a project.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Lock {
    /// The packages by name, each once.
    entries: Vec<Entry>,
}

/// A package of the lock.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Entry {
    /// Its name in this project.
    pub name: String,
    /// The source, as the user wrote it.
    pub source: String,
    /// The registry, if the source is a name in one.
    pub registry: Option<String>,
    /// The origin of the archive, if it differs from the source: a URL, a commit, or a program of npm,
    /// PyPI or a registry of crates.
    pub resolved: Option<String>,
    /// The archives that it was built from: [`Requirement`](crate::environment::Requirement)s.
    pub requires: Vec<String>,
    /// The kind of archive.
    pub kind: PackageKind,
    /// Who signed its archive, as verified when it was locked: the [name](crate::signature::Signer) of a signer.
    pub signed_by: Option<String>,
    /// The declared version.
    pub version: String,
    /// The SHA-256 of its archive.
    pub sha256: String,
    /// The digest of its list of tools.
    pub tools_digest: String,
    /// The digest of each of these tools, by name. Empty in a lock of an earlier orla.
    pub tools: BTreeMap<String, String>,
    /// The user's arguments for the program of a bundle, after its own.
    pub arguments: Vec<String>,
    /// The granted permissions, sorted.
    pub permissions: Vec<String>,
}

/// The kind of an archive.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PackageKind {
    /// A package with `tool.yaml`.
    Folder,
    /// An `.mcpb` bundle.
    Bundle,
    /// Executable files, each a tool.
    Tools,
    /// A server behind a URL. No part of it runs here.
    Remote,
    /// The operations of an OpenAPI document. No part of the API runs here.
    OpenApi,
}

/// A lock that cannot be used.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{}:{}: {problem}", .at.line, .at.column)]
pub struct LockError {
    /// The position in the file.
    pub at: Position,
    /// The problem, and how to fix it.
    pub problem: String,
}

impl PackageKind {
    /// Returns the word for it in the file.
    pub fn word(self) -> &'static str {
        match self {
            Self::Folder => "folder",
            Self::Bundle => "bundle",
            Self::Tools => "tools",
            Self::Remote => "remote",
            Self::OpenApi => "openapi",
        }
    }
}

impl Lock {
    /// Returns the packages by name.
    pub fn entries(&self) -> &[Entry] {
        &self.entries
    }

    /// Returns the package with this name.
    pub fn get(&self, name: &str) -> Option<&Entry> {
        self.entries.iter().find(|entry| entry.name == name)
    }

    /// Adds a package, or replaces the one with its name.
    pub fn put(&mut self, entry: Entry) {
        match self.entries.binary_search_by(|known| known.name.cmp(&entry.name)) {
            Ok(at) => self.entries[at] = entry,
            Err(at) => self.entries.insert(at, entry),
        }
    }

    /// Removes a package. Returns whether it was there.
    pub fn remove(&mut self, name: &str) -> bool {
        let before = self.entries.len();
        self.entries.retain(|entry| entry.name != name);
        self.entries.len() < before
    }

    /// Parses the file.
    ///
    /// # Errors
    /// It is not a lock: it was edited or merged by hand, or is of a newer orla.
    pub fn parse(text: &str) -> Result<Self, LockError> {
        if let Some(line) = text.lines().position(|line| line.starts_with("<<<<<<<")) {
            let at = Position { line: line + 1, column: 1 };
            let problem =
                "an unfinished merge: keep the entries of one side, then run `orla sync`".to_owned();
            return Err(LockError { at, problem });
        }
        let root = orla_document::parse(text)
            .map_err(|error| LockError { at: error.at, problem: with_advice(&error.problem) })?;
        let Some(root) = root else { return Ok(Self::default()) };
        let mut lock = Self::default();
        let mut format = None;
        for (key, node) in mapping(&root, "a mapping with format and packages")? {
            match key.text.as_str() {
                "format" => format = Some((node.at, scalar(node, "a number")?)),
                "packages" => {
                    for node in list(node)? {
                        let entry = Entry::read(node)?;
                        if lock.get(&entry.name).is_some() {
                            return Err(error(node.at, &format!("{} is there twice", entry.name)));
                        }
                        lock.put(entry);
                    }
                }
                other => return Err(error(key.at, &format!("unknown key {other:?}"))),
            }
        }
        match format {
            Some((_, FORMAT)) => Ok(lock),
            Some((at, other)) => {
                let problem = format!(
                    "format {other:?} is not known to this version of orla, which reads {FORMAT}: use a newer orla"
                );
                Err(LockError { at, problem })
            }
            None => Err(error(root.at, "format is missing")),
        }
    }

    /// Returns the text of the file.
    pub fn text(&self) -> String {
        let mut text = format!(
            "# Written by orla. `orla sync` installs what stands here, `orla update` changes it.\nformat: {FORMAT}\npackages:"
        );
        if self.entries.is_empty() {
            text.push_str(" []");
        }
        text.push('\n');
        for entry in &self.entries {
            let _ = writeln!(text, "  - name: {}", quoted(&entry.name));
            let mut line = |key: &str, value: &str| {
                let _ = writeln!(text, "    {key}: {}", quoted(value));
            };
            line("source", &entry.source);
            if let Some(registry) = &entry.registry {
                line("registry", registry);
            }
            if let Some(resolved) = &entry.resolved {
                line("resolved", resolved);
            }
            if let Some(signer) = &entry.signed_by {
                line("signed_by", signer);
            }
            line("kind", entry.kind.word());
            line("version", &entry.version);
            // Quoted, because YAML reads some digests as numbers.
            let _ = writeln!(text, "    sha256: \"{}\"", entry.sha256);
            let _ = writeln!(text, "    tools_digest: \"{}\"", entry.tools_digest);
            if !entry.tools.is_empty() {
                text.push_str("    tools:\n");
            }
            for (tool, digest) in &entry.tools {
                let _ = writeln!(text, "      {}: \"{digest}\"", quoted(tool));
            }
            if !entry.requires.is_empty() {
                text.push_str("    requires:\n");
            }
            for requirement in &entry.requires {
                let _ = writeln!(text, "      - {}", quoted(requirement));
            }
            if !entry.arguments.is_empty() {
                let _ = writeln!(text, "    arguments: [{}]", quoted_list(&entry.arguments));
            }
            let _ = writeln!(text, "    permissions: [{}]", quoted_list(&entry.permissions));
        }
        text
    }
}

impl Entry {
    fn read(node: &Node) -> Result<Self, LockError> {
        let mut found: Vec<(&str, Position, &str)> = Vec::new();
        let (mut permissions, mut requires, mut tools) = (None, Vec::new(), BTreeMap::new());
        let mut arguments = Vec::new();
        for (key, value) in mapping(node, "a package")? {
            if key.text == "permissions" {
                permissions = Some(texts(value, "a permission")?.into_iter().collect::<BTreeSet<_>>());
                continue;
            }
            if key.text == "requires" {
                requires = texts(value, "a requirement")?;
                continue;
            }
            if key.text == "arguments" {
                arguments = texts(value, "an argument")?;
                continue;
            }
            if key.text == "tools" {
                for (tool, value) in mapping(value, "the digest of each tool")? {
                    let digest = scalar(value, "a digest")?;
                    if !is_digest(digest) {
                        let what = format!("the digest of {} is not 64 hexadecimal digits", tool.text);
                        return Err(error(value.at, &what));
                    }
                    tools.insert(tool.text.clone(), digest.to_owned());
                }
                continue;
            }
            if !KEYS.contains(&key.text.as_str()) {
                return Err(error(key.at, &format!("unknown key {:?}", key.text)));
            }
            found.push((&key.text, value.at, scalar(value, "a text")?));
        }
        let optional =
            |key: &str| found.iter().find(|(name, ..)| *name == key).map(|(_, at, text)| (*at, *text));
        let required =
            |key: &str| optional(key).ok_or_else(|| error(node.at, &format!("{key} is missing")));
        let text = |key: &str| required(key).map(|(_, text)| text.to_owned());
        let digest = |key: &str| match required(key)? {
            (_, text) if is_digest(text) => Ok(text.to_owned()),
            (at, _) => Err(error(at, &format!("{key} is not 64 hexadecimal digits"))),
        };
        let (name_at, name) = required("name")?;
        if !crate::is_name(name) {
            let what = "a name has up to 48 letters, digits, `_` and `-`";
            return Err(error(name_at, what));
        }
        let (kind_at, kind) = required("kind")?;
        let kinds = [
            PackageKind::Folder,
            PackageKind::Bundle,
            PackageKind::Tools,
            PackageKind::Remote,
            PackageKind::OpenApi,
        ];
        let kind = kinds.into_iter().find(|known| known.word() == kind);
        let kind =
            kind.ok_or_else(|| error(kind_at, "kind is folder, bundle, tools, remote or openapi"))?;
        let permissions = permissions.ok_or_else(|| error(node.at, "permissions are missing"))?;
        if kind != PackageKind::Bundle && !arguments.is_empty() {
            return Err(error(kind_at, "arguments are for the program of a bundle"));
        }
        check_arguments(&arguments).map_err(|why| error(node.at, &why))?;
        Ok(Self {
            name: name.to_owned(),
            source: text("source")?,
            registry: optional("registry").map(|(_, text)| text.to_owned()),
            resolved: optional("resolved").map(|(_, text)| text.to_owned()),
            signed_by: optional("signed_by").map(|(_, text)| text.to_owned()),
            requires,
            kind,
            version: text("version")?,
            sha256: digest("sha256")?,
            tools_digest: digest("tools_digest")?,
            tools,
            arguments,
            permissions: permissions.into_iter().collect(),
        })
    }
}

const KEYS: [&str; 9] =
    ["name", "source", "registry", "resolved", "signed_by", "kind", "version", "sha256", "tools_digest"];

/// The maximum number of arguments of a package, and their maximum size together, in bytes.
const MAX_ARGUMENTS: usize = 256;
const MAX_ARGUMENT_BYTES: usize = 64 << 10;

/// Checks that arguments can be locked and passed to a program.
///
/// # Errors
/// They are too many or too long, or one has a control character.
pub fn check_arguments(arguments: &[String]) -> Result<(), String> {
    let bytes: usize = arguments.iter().map(String::len).sum();
    if arguments.len() > MAX_ARGUMENTS || bytes > MAX_ARGUMENT_BYTES {
        return Err(format!(
            "more than {MAX_ARGUMENTS} arguments, or more than {} KiB together",
            MAX_ARGUMENT_BYTES >> 10
        ));
    }
    match arguments.iter().find(|argument| argument.chars().any(char::is_control)) {
        Some(argument) => {
            Err(format!("{}: an argument has no control characters", argument.escape_debug()))
        }
        None => Ok(()),
    }
}

pub(crate) fn is_digest(text: &str) -> bool {
    text.len() == 64 && text.bytes().all(|byte| matches!(byte, b'0'..=b'9' | b'a'..=b'f'))
}

fn error(at: Position, problem: &str) -> LockError {
    LockError { at, problem: with_advice(problem) }
}

fn with_advice(problem: &str) -> String {
    format!("{problem}: repair it, or take the file back from version control, and run `orla sync`")
}

fn mapping<'a>(node: &'a Node, expected: &str) -> Result<&'a [(orla_document::Key, Node)], LockError> {
    match &node.kind {
        Kind::Map(pairs) => Ok(pairs),
        _ => Err(error(node.at, &format!("{expected} is expected"))),
    }
}

fn list(node: &Node) -> Result<&[Node], LockError> {
    match &node.kind {
        Kind::List(items) => Ok(items),
        Kind::Scalar(_) if node.is_null() => Ok(&[]),
        _ => Err(error(node.at, "a list is expected")),
    }
}

/// Returns the texts of a list.
fn texts(node: &Node, expected: &str) -> Result<Vec<String>, LockError> {
    list(node)?.iter().map(|text| scalar(text, expected).map(str::to_owned)).collect()
}

fn scalar<'a>(node: &'a Node, expected: &str) -> Result<&'a str, LockError> {
    let text = node.as_scalar().map(|scalar| scalar.text.as_str());
    text.ok_or_else(|| error(node.at, &format!("{expected} is expected")))
}

/// Writes texts as the items of a list in YAML.
pub fn quoted_list(texts: &[String]) -> String {
    texts.iter().map(|text| quoted(text)).collect::<Vec<_>>().join(", ")
}

/// Writes a text as YAML: plain if unambiguous, and otherwise in JSON's quotes.
fn quoted(text: &str) -> String {
    let is_plain = text.starts_with(|ch: char| ch.is_ascii_lowercase() || "./".contains(ch))
        && text.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"._-/@".contains(&byte))
        && !["null", "true", "false", "yes", "no", "on", "off", "y", "n"].contains(&text)
        && text.contains(|ch: char| ch.is_ascii_lowercase());
    let is_number_like = text
        .strip_prefix('.')
        .is_some_and(|rest| rest.starts_with(|ch: char| ch.is_ascii_digit() || ch == 'i' || ch == 'n'));
    if is_plain && !is_number_like { text.to_owned() } else { serde_json::Value::from(text).to_string() }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn entry(name: &str) -> Entry {
        Entry {
            name: name.to_owned(),
            source: "mcpb:../a b.mcpb".to_owned(),
            registry: None,
            resolved: Some("https://a.example/b?c=d#e".to_owned()),
            signed_by: Some("identity a@b.example of https://c.example".to_owned()),
            requires: vec!["node_modules/a a@1 sha512-x==".to_owned()],
            kind: PackageKind::Bundle,
            version: "1.10 name:     name: x".to_owned(),
            sha256: "0".repeat(64),
            tools_digest: "a1".repeat(32),
            tools: ["", "a: b", "on", "get-it"].map(|name| (name.to_owned(), "b2".repeat(32))).into(),
            arguments: ["--mode=a b", "", "-1", "on", "./data"].map(str::to_owned).into(),
            permissions: vec!["fs:read:/a, b".to_owned(), "net".to_owned()],
        }
    }

    #[test]
    fn a_lock_is_read_as_it_was_written_and_sorted() {
        let mut lock = Lock::default();
        assert_eq!(Lock::parse(&lock.text()).unwrap(), lock);
        for name in ["b", "a", "true"] {
            lock.put(entry(name));
        }
        assert_eq!(Lock::parse(&lock.text()).unwrap(), lock);
        assert!(lock.text().find("name: a").unwrap() < lock.text().find("name: b").unwrap());
        assert!(lock.remove("a") && !lock.remove("a"));
    }

    #[test]
    fn faults_of_an_edited_lock_have_their_place() {
        let mut lock = Lock::default();
        lock.put(entry("a"));
        let good = lock.text();
        for (from, to, words) in [
            ("format: 1", "format: 2", "newer orla"),
            ("format: 1", "", "format is missing"),
            ("sha256: \"0000", "sha256: \"zzzz", "hexadecimal"),
            ("name: a", "name: ../../etc", "a name has"),
            ("kind: bundle", "kind: other", "kind is"),
            ("kind: bundle", "kindd: bundle", "kindd"),
            ("kind: bundle", "kind: folder", "arguments are for"),
            ("arguments: [", "arguments: [[x], ", "an argument is expected"),
            ("arguments: [", "arguments: [\"a\\nb\", ", "control characters"),
            ("    version: \"1.10 name:     name: x\"\n", "", "version is missing"),
            ("get-it: \"b2", "get-it: \"xx", "digest of get-it"),
            ("packages:", "<<<<<<< ours\npackages:", "unfinished merge"),
        ] {
            let text = good.replacen(from, to, 1);
            assert_ne!(text, good, "{from}");
            let error = Lock::parse(&text).unwrap_err();
            assert!(error.to_string().contains(words), "{to}: {error}");
            assert!(error.at.line >= 1);
        }
        let twice = good.clone() + good.split_once("packages:\n").unwrap().1;
        assert!(Lock::parse(&twice).unwrap_err().to_string().contains("twice"));
    }
}
