//! The notation of package sources. No I/O.

use std::fmt;

use crate::crates;
use crate::oci::Reference;

/// A source.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Source {
    /// A directory with `tool.yaml`.
    Folder(String),
    /// An `.mcpb` bundle in a file.
    BundleFile(String),
    /// An `.mcpb` bundle behind a URL.
    BundleUrl(String),
    /// An OpenAPI document in a file.
    OpenApiFile(String),
    /// An OpenAPI document behind a URL.
    OpenApiUrl(String),
    /// A server of a registry, with the wanted version.
    Registry {
        /// Its name: `io.github.owner/server`.
        name: String,
        /// The version; `None` for the latest.
        version: Option<String>,
    },
    /// An artifact of an OCI registry.
    Oci(Reference),
    /// A revision of a git repository.
    Git {
        /// The URL or path.
        url: String,
        /// A branch, a tag or a commit; `None` for the repository's head.
        revision: Option<String>,
    },
    /// A program of npm's registry.
    Npm {
        /// The name: `@scope/name`.
        name: String,
        /// The version; `None` for the latest.
        version: Option<String>,
    },
    /// A program of a registry of crates.
    Cargo {
        /// The name.
        name: String,
        /// The version; `None` for the newest.
        version: Option<String>,
    },
    /// A program of PyPI.
    Pypi {
        /// The name.
        name: String,
        /// The version; `None` for the latest.
        version: Option<String>,
    },
}

/// A text that is not a source.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct NoSource(String);

/// The accepted notations.
const EXPECTED: &str = "a folder with tool.yaml (./greet), mcpb:FILE, mcpb:https://…, git:URL#REVISION, npm:NAME, pypi:NAME, cargo:NAME, oci:HOST/NAME:TAG, \
    an OpenAPI document (https://…, ./api.yaml), or a name in a registry (io.github.owner/server) is expected";

impl Source {
    /// Parses a source that a user gives. A text that begins with a slash, `./` or `../` is a folder, and so is
    /// one without a colon for which `is_directory` holds.
    ///
    /// # Errors
    /// It names none, or one that is not supported.
    pub fn given(text: &str, is_directory: impl Fn(&str) -> bool) -> Result<Self, NoSource> {
        let is_path = !text.contains(|c: char| c == ':' || c.is_control());
        match is_path && is_directory(text) {
            true => Ok(Self::Folder(text.to_owned())),
            false => Self::parse(text),
        }
    }

    /// Returns a folder by a path as locks have it. One that is named like a document ends with a slash.
    pub fn folder(mut path: String) -> Self {
        if DOCUMENTS.iter().any(|ending| path.ends_with(ending)) {
            path.push('/');
        }
        Self::Folder(path)
    }

    /// Parses a source of a lock, where a folder begins with a slash, `./` or `../`. So no directory of a project can take
    /// the place of another source.
    ///
    /// # Errors
    /// Those of [`given`](Self::given).
    pub fn parse(text: &str) -> Result<Self, NoSource> {
        let refused = |what: &str| Err(NoSource(format!("{text}: {what}: {EXPECTED}")));
        if text.is_empty() || text.chars().any(char::is_control) {
            return Err(NoSource(format!("a source is expected: {EXPECTED}")));
        }
        if let Some(rest) = text.strip_prefix("mcpb:") {
            return match rest {
                "" => refused("no file is named"),
                url if url.contains("://") => Self::bundle_url(url).map_or_else(
                    || refused("a bundle is fetched over https:// (or http:// on this machine), without a user in the URL"),
                    Ok,
                ),
                file => Ok(Self::BundleFile(file.to_owned())),
            };
        }
        if text.starts_with("https://") || text.starts_with("http://") {
            return match is_fetched(text) {
                true => Ok(Self::OpenApiUrl(text.to_owned())),
                false => refused(
                    "a document is fetched over https:// (or http:// on this machine), without a user in the URL",
                ),
            };
        }
        if !text.contains(':') && DOCUMENTS.iter().any(|ending| text.ends_with(ending)) {
            return Ok(Self::OpenApiFile(text.to_owned()));
        }
        if text.starts_with(['/', '.']) {
            return Ok(Self::Folder(text.to_owned()));
        }
        if let Some(rest) = text.strip_prefix("git:") {
            return Self::git(rest).or_else(refused);
        }
        if let Some(rest) = text.strip_prefix("npm:") {
            // A scope and a version begin with the same character.
            let at = rest.get(1..).and_then(|rest| rest.find('@')).map(|at| at + 1);
            let (name, version) = at.map_or((rest, None), |at| (&rest[..at], Some(&rest[at + 1..])));
            return match is_npm_name(name) && version.is_none_or(is_word) {
                true => Ok(Self::Npm { name: name.to_owned(), version: version.map(str::to_owned) }),
                false => refused("it names no package of npm"),
            };
        }
        if let Some(rest) = text.strip_prefix("pypi:") {
            let split = rest.split_once("==").or_else(|| rest.split_once('@'));
            let (name, version) = split.map_or((rest, None), |(name, version)| (name, Some(version)));
            return match is_word(name) && version.is_none_or(is_word) {
                true => Ok(Self::Pypi { name: name.to_owned(), version: version.map(str::to_owned) }),
                false => refused("it names no package of PyPI"),
            };
        }
        if let Some(rest) = text.strip_prefix("cargo:") {
            let (name, version) =
                rest.split_once('@').map_or((rest, None), |(name, version)| (name, Some(version)));
            return match crates::is_name(name) && version.is_none_or(is_word) {
                true => Ok(Self::Cargo { name: name.to_owned(), version: version.map(str::to_owned) }),
                false => refused("it names no crate"),
            };
        }
        if let Some(rest) = text.strip_prefix("oci:") {
            return match Reference::parse(rest) {
                Some(reference) => Ok(Self::Oci(reference)),
                None => refused("an artifact is oci:HOST/NAME:TAG or oci:HOST/NAME@sha256:…"),
            };
        }
        if text.starts_with("nuget:") {
            return refused("sources of the kind `nuget:` are not supported yet");
        }
        if text.starts_with('@') {
            return refused(&format!("it is not a source, did you mean npm:{text}?"));
        }
        if text.contains("://") {
            return refused("a URL alone does not say what it leads to");
        }
        let (name, version) = match text.split_once('@') {
            Some((name, version)) if !version.is_empty() => (name, Some(version.to_owned())),
            Some(_) => return refused("the version after @ is empty"),
            None => (text, None),
        };
        let is_part = |part: &str| {
            !part.is_empty()
                && part.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"._-".contains(&byte))
        };
        match name.split_once('/') {
            Some((space, server)) if is_part(space) && is_part(server) => {
                Ok(Self::Registry { name: name.to_owned(), version })
            }
            _ => refused("it is not a source"),
        }
    }

    /// Returns the source without its version, which all versions of one package share.
    #[must_use]
    pub fn without_version(mut self) -> Self {
        match &mut self {
            Self::Registry { version, .. }
            | Self::Npm { version, .. }
            | Self::Pypi { version, .. }
            | Self::Cargo { version, .. } => *version = None,
            Self::Git { revision, .. } => *revision = None,
            Self::Oci(reference) => reference.version = None,
            Self::Folder(_)
            | Self::BundleFile(_)
            | Self::BundleUrl(_)
            | Self::OpenApiFile(_)
            | Self::OpenApiUrl(_) => {}
        }
        self
    }

    /// Returns whether it is an OpenAPI document.
    #[must_use]
    pub fn is_openapi(&self) -> bool {
        matches!(self, Self::OpenApiFile(_) | Self::OpenApiUrl(_))
    }

    fn git(text: &str) -> Result<Self, &'static str> {
        let (url, revision) = match text.rsplit_once('#') {
            Some((_, "")) => return Err("the revision after # is empty"),
            Some((url, revision)) => (url, Some(revision)),
            None => (text, None),
        };
        let is_scheme =
            url.split_once("://").is_none_or(|(scheme, _)| ["https", "ssh", "file"].contains(&scheme));
        let is_plain = url
            .split_once("::")
            .is_none_or(|(helper, _)| !helper.bytes().all(|byte| byte.is_ascii_alphanumeric()));
        if url.is_empty() || url.starts_with('-') || !is_plain || !(is_scheme || is_local_http(url)) {
            return Err("a repository is a path, or a URL with https://, ssh:// or file://");
        }
        let is_revision = |text: &str| {
            let fits = |byte: u8| byte.is_ascii_alphanumeric() || b"._-/+@".contains(&byte);
            text.bytes().all(fits) && !text.starts_with(['-', '/']) && !text.contains("..")
        };
        if !revision.is_none_or(is_revision) {
            return Err("the revision after # is a branch, a tag or a commit");
        }
        Ok(Self::Git { url: url.to_owned(), revision: revision.map(str::to_owned) })
    }

    fn bundle_url(url: &str) -> Option<Self> {
        is_fetched(url).then(|| Self::BundleUrl(url.to_owned()))
    }
}

/// The endings of documents' names.
const DOCUMENTS: [&str; 3] = [".json", ".yaml", ".yml"];

/// Returns whether no third party can change what is fetched from a URL, and the URL names no user: the
/// lock has it, and others read the lock.
fn is_fetched(url: &str) -> bool {
    let rest = url.split_once("://").map_or("", |(_, rest)| rest.trim_start_matches(['/', '\\']));
    let has_user = rest.split(['/', '\\', '?', '#']).next().is_some_and(|host| host.contains('@'));
    !has_user && (url.starts_with("https://") || is_local_http(url))
}

/// Returns whether a text can be the name of a package of npm: `name` or `@scope/name`.
pub(crate) fn is_npm_name(text: &str) -> bool {
    match text.strip_prefix('@').and_then(|scoped| scoped.split_once('/')) {
        Some((scope, name)) => is_word(scope) && is_word(name),
        None => is_word(text),
    }
}

/// Returns a name of PyPI in the form that all its spellings share (PEP 503): `weather-mcp` for
/// `Weather_MCP`. A pattern of names stays a pattern.
pub fn pypi_name(name: &str) -> String {
    let mut normal = String::with_capacity(name.len());
    for ch in name.chars() {
        match ch {
            '-' | '_' | '.' if normal.ends_with('-') => {}
            '-' | '_' | '.' => normal.push('-'),
            _ => normal.push(ch.to_ascii_lowercase()),
        }
    }
    normal
}

/// Returns whether a text can be a name or a version of a package.
pub(crate) fn is_word(text: &str) -> bool {
    let fits = |byte: u8| byte.is_ascii_alphanumeric() || b"._-+!".contains(&byte);
    !text.is_empty() && text.bytes().all(fits) && !text.starts_with(['-', '.', '+', '!'])
}

/// Returns whether a URL is `http://` on this machine, where no third party can change the fetched data.
pub fn is_local_http(url: &str) -> bool {
    let Some(rest) = url.strip_prefix("http://") else { return false };
    let host = rest.split(['/', '?', '#']).next().unwrap_or_default();
    // URL parsers interpret text before these characters differently.
    if host.contains(['\\', '@', '%']) || host.chars().any(|ch| ch.is_whitespace() || ch.is_control()) {
        return false;
    }
    let name = match host.strip_prefix('[') {
        Some(v6) => v6.split(']').next().unwrap_or_default(),
        None => host.split(':').next().unwrap_or_default(),
    };
    name == "localhost" || name.parse::<std::net::IpAddr>().is_ok_and(|address| address.is_loopback())
}

impl fmt::Display for Source {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Folder(place) | Self::OpenApiFile(place) | Self::OpenApiUrl(place) => {
                f.write_str(place)
            }
            Self::BundleFile(what) | Self::BundleUrl(what) => write!(f, "mcpb:{what}"),
            Self::Oci(reference) => write!(f, "oci:{reference}"),
            Self::Git { url, revision: None } => write!(f, "git:{url}"),
            Self::Git { url, revision: Some(revision) } => write!(f, "git:{url}#{revision}"),
            Self::Npm { name, version: None } => write!(f, "npm:{name}"),
            Self::Npm { name, version: Some(version) } => write!(f, "npm:{name}@{version}"),
            Self::Pypi { name, version: None } => write!(f, "pypi:{name}"),
            Self::Pypi { name, version: Some(version) } => write!(f, "pypi:{name}=={version}"),
            Self::Cargo { name, version: None } => write!(f, "cargo:{name}"),
            Self::Cargo { name, version: Some(version) } => write!(f, "cargo:{name}@{version}"),
            Self::Registry { name, version: None } => f.write_str(name),
            Self::Registry { name, version: Some(version) } => write!(f, "{name}@{version}"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn spellings_of_a_name_of_pypi_are_one_name() {
        for spelling in ["weather-mcp", "Weather_MCP", "weather.mcp", "weather-_mcp", "weather--mcp"] {
            assert_eq!(pypi_name(spelling), "weather-mcp");
        }
        assert_eq!(pypi_name("Weather_*"), "weather-*");
    }

    #[test]
    fn a_source_says_what_it_is() {
        let parse =
            |text: &str| Source::given(text, |path| ["tools/x", "x.yaml", "npm:x"].contains(&path));
        let registry = |name: &str, version: Option<&str>| Source::Registry {
            name: name.to_owned(),
            version: version.map(str::to_owned),
        };
        let git = |url: &str, revision: Option<&str>| Source::Git {
            url: url.to_owned(),
            revision: revision.map(str::to_owned),
        };
        for (text, source) in [
            ("./greet", Source::Folder("./greet".into())),
            ("/opt/greet", Source::Folder("/opt/greet".into())),
            ("tools/x", Source::Folder("tools/x".into())),
            ("./api.yaml", Source::OpenApiFile("./api.yaml".into())),
            ("docs/api.json", Source::OpenApiFile("docs/api.json".into())),
            ("https://a.example/x", Source::OpenApiUrl("https://a.example/x".into())),
            ("http://127.0.0.1:9/x", Source::OpenApiUrl("http://127.0.0.1:9/x".into())),
            ("mcpb:a/b.mcpb", Source::BundleFile("a/b.mcpb".into())),
            ("mcpb:https://a.example/b", Source::BundleUrl("https://a.example/b".into())),
            ("mcpb:http://127.0.0.1:9/b", Source::BundleUrl("http://127.0.0.1:9/b".into())),
            ("git:https://a.example/b.git#v1.0", git("https://a.example/b.git", Some("v1.0"))),
            ("git:./repository", git("./repository", None)),
            ("git:git@a.example:b/c.git#main", git("git@a.example:b/c.git", Some("main"))),
            ("oci:ghcr.io/a/b:1", Source::Oci(Reference::parse("ghcr.io/a/b:1").unwrap())),
            ("npm:@a/b", Source::Npm { name: "@a/b".into(), version: None }),
            ("npm:@a/b@1.0.0", Source::Npm { name: "@a/b".into(), version: Some("1.0.0".into()) }),
            ("npm:b@next", Source::Npm { name: "b".into(), version: Some("next".into()) }),
            ("pypi:b_c==1.0", Source::Pypi { name: "b_c".into(), version: Some("1.0".into()) }),
            ("cargo:a-b", Source::Cargo { name: "a-b".into(), version: None }),
            ("cargo:b_c@1.0.0", Source::Cargo { name: "b_c".into(), version: Some("1.0.0".into()) }),
            ("io.github.a/b", registry("io.github.a/b", None)),
            ("io.github.a/b@1.2.0", registry("io.github.a/b", Some("1.2.0"))),
        ] {
            assert_eq!(parse(text).unwrap(), source, "{text}");
            assert_eq!(source.to_string(), text);
        }
        for wrong in [
            "",
            "greet",
            "mcpb:",
            "mcpb:http://a.example/b",
            "mcpb:http://a.example\\@localhost/b",
            "mcpb:http://x@localhost/b",
            "mcpb:https://x@a.example/b",
            "https://x:y@a.example/openapi.json",
            "https:///x@a.example/openapi.json",
            "npm:",
            "npm:-x",
            "npm:a/b",
            "npm:@a",
            "npm:a@",
            "npm:a@--b",
            "npm:../a",
            "pypi:a[b]",
            "pypi:--index-url",
            "cargo:",
            "cargo:a/b",
            "cargo:1a",
            "cargo:a@--git",
            "git:",
            "git:-x",
            "git:ext::sh -c x",
            "git:http://a.example/b",
            "git:git://a.example/b",
            "git:https://a/b#",
            "git:https://a/b#-x",
            "git:https://a/b#a..b",
            "oci:x",
            "http://a.example",
            "ftp://a.example",
            "a/b/c",
            "a/b@",
            "a\n/b",
        ] {
            assert!(parse(wrong).is_err(), "{wrong}");
        }
        assert_eq!(parse("npm:x").unwrap().to_string(), "npm:x");
        assert_eq!(parse("x.yaml").unwrap(), Source::Folder("x.yaml".into()));
        let locked = Source::folder("./x.yaml".into());
        assert_eq!(Source::parse(&locked.to_string()).unwrap(), locked);
        let plain = |text: &str| parse(text).unwrap().without_version().to_string();
        assert_eq!(plain("npm:@a/b@1.0.0"), "npm:@a/b");
        assert_eq!(plain("git:./repository#v1"), "git:./repository");
        assert!(parse("nuget:x").unwrap_err().to_string().contains("not supported"));
    }
}
