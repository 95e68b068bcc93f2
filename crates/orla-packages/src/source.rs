//! What a person writes to name a source of packages. No I/O.

use std::fmt;

/// A source.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Source {
    /// A directory with `tool.yaml`.
    Folder(String),
    /// An `.mcpb` bundle in a file.
    BundleFile(String),
    /// An `.mcpb` bundle behind a URL.
    BundleUrl(String),
    /// A server of a registry, with the wanted version.
    Registry {
        /// Its name: `io.github.owner/server`.
        name: String,
        /// The version; `None` for the latest.
        version: Option<String>,
    },
}

/// A text that names no source.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct NoSource(String);

/// What can be written.
const EXPECTED: &str = "a folder with tool.yaml (./greet), mcpb:FILE, mcpb:https://…, or a name in a registry \
    (io.github.owner/server) is expected";

impl Source {
    /// Reads a source. A text with a slash in front, `./` or `../` is a folder, and so is one that `is_directory`.
    ///
    /// # Errors
    /// It names none, or one that is not supported.
    pub fn parse(text: &str, is_directory: impl Fn(&str) -> bool) -> Result<Self, NoSource> {
        let refused = |what: &str| Err(NoSource(format!("{text}: {what}: {EXPECTED}")));
        if text.is_empty() || text.chars().any(char::is_control) {
            return Err(NoSource(format!("a source is expected: {EXPECTED}")));
        }
        if let Some(rest) = text.strip_prefix("mcpb:") {
            return match rest {
                "" => refused("no file is named"),
                url if url.contains("://") => Self::bundle_url(url).map_or_else(
                    || refused("a bundle is fetched over https:// (or http:// on this machine)"),
                    Ok,
                ),
                file => Ok(Self::BundleFile(file.to_owned())),
            };
        }
        if text.starts_with(['/', '.']) || is_directory(text) {
            return Ok(Self::Folder(text.to_owned()));
        }
        for unsupported in ["npm", "pypi", "git", "oci", "cargo", "nuget"] {
            if text.strip_prefix(unsupported).is_some_and(|rest| rest.starts_with(':')) {
                return refused(&format!("sources of the kind `{unsupported}:` are not supported yet"));
            }
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
            _ => refused("it is no source"),
        }
    }

    fn bundle_url(url: &str) -> Option<Self> {
        let is_fetched = url.starts_with("https://") || is_local_http(url);
        is_fetched.then(|| Self::BundleUrl(url.to_owned()))
    }
}

/// Whether a URL is `http://` on this machine, where nobody in between can change what is fetched.
pub fn is_local_http(url: &str) -> bool {
    let Some(rest) = url.strip_prefix("http://") else { return false };
    let host = rest.split(['/', '?', '#']).next().unwrap_or_default();
    let host = host.rsplit('@').next().unwrap_or_default();
    let name = match host.strip_prefix('[') {
        Some(v6) => v6.split(']').next().unwrap_or_default(),
        None => host.split(':').next().unwrap_or_default(),
    };
    name == "localhost" || name.parse::<std::net::IpAddr>().is_ok_and(|address| address.is_loopback())
}

impl fmt::Display for Source {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Folder(path) => f.write_str(path),
            Self::BundleFile(what) | Self::BundleUrl(what) => write!(f, "mcpb:{what}"),
            Self::Registry { name, version: None } => f.write_str(name),
            Self::Registry { name, version: Some(version) } => write!(f, "{name}@{version}"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_source_says_what_it_is() {
        let parse = |text: &str| Source::parse(text, |path| path == "tools/x");
        let registry = |name: &str, version: Option<&str>| Source::Registry {
            name: name.to_owned(),
            version: version.map(str::to_owned),
        };
        for (text, source) in [
            ("./greet", Source::Folder("./greet".into())),
            ("/opt/greet", Source::Folder("/opt/greet".into())),
            ("tools/x", Source::Folder("tools/x".into())),
            ("mcpb:a/b.mcpb", Source::BundleFile("a/b.mcpb".into())),
            ("mcpb:https://a.example/b", Source::BundleUrl("https://a.example/b".into())),
            ("mcpb:http://127.0.0.1:9/b", Source::BundleUrl("http://127.0.0.1:9/b".into())),
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
            "npm:x",
            "git:https://a/b#c",
            "oci:x",
            "https://a.example",
            "a/b/c",
            "a/b@",
            "a\n/b",
        ] {
            assert!(parse(wrong).is_err(), "{wrong}");
        }
        assert!(parse("npm:x").unwrap_err().to_string().contains("not supported"));
    }
}
