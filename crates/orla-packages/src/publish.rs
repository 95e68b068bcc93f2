//! The published data of a package: the bundle's manifest and `server.json`, checked by the rules of the
//! registry's schema (2025-12-11). No I/O.

use fluent_uri::Uri;
use serde_json::{Value, json};

use crate::lock::is_digest;
use crate::source::is_local_http;

/// The schema of `server.json`.
const SCHEMA: &str = "https://static.modelcontextprotocol.io/schemas/2025-12-11/server.schema.json";
/// The limits of the schema, in characters.
const MAX_DESCRIPTION: usize = 100;
const MAX_NAME: usize = 200;
const MAX_VERSION: usize = 255;
/// Characters that occur in a range of versions.
const RANGE: [char; 7] = ['^', '~', '>', '<', '=', '*', '|'];

/// A version of a server to publish.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Publication {
    /// The name in a registry: `io.github.owner/server`.
    pub name: String,
    /// Its version.
    pub version: String,
    /// The description.
    pub description: String,
    /// The address of its source code.
    pub repository: Option<String>,
    /// The future address of its bundle.
    pub url: String,
}

impl Publication {
    /// Returns the part of its name after the owner.
    fn short_name(&self) -> &str {
        self.name.rsplit('/').next().unwrap_or(&self.name)
    }

    /// Returns the file name of its bundle.
    pub fn file(&self) -> String {
        format!("{}-{}.mcpb", self.short_name(), self.version)
    }

    /// Checks whether a registry accepts it.
    ///
    /// # Errors
    /// What it does not take, and what to do.
    pub fn check(&self) -> Result<(), String> {
        let fits = |part: &str, more: &[u8]| {
            let fits = |byte: u8| byte.is_ascii_alphanumeric() || more.contains(&byte);
            !part.is_empty() && part.bytes().all(fits)
        };
        let is_name = self.name.split_once('/').is_some_and(|(owner, server)| {
            fits(owner, b".-") && fits(server, b"._-") && (3..=MAX_NAME).contains(&self.name.len())
        });
        if !is_name {
            return Err(format!(
                "{:?} is not the name of a server: pass --name, such as io.github.owner/server",
                self.name
            ));
        }
        let count = self.description.chars().count();
        if !(1..=MAX_DESCRIPTION).contains(&count) || self.description.contains(char::is_control) {
            return Err(format!(
                "its description has {count} characters, and 1 to {MAX_DESCRIPTION} on one line are allowed: pass --description"
            ));
        }
        let version = self.version.as_str();
        let is_range = version.contains(RANGE)
            || version.contains(char::is_whitespace)
            || version.split('.').any(|part| part.eq_ignore_ascii_case("x"));
        if version.is_empty() || version.len() > MAX_VERSION || version == "latest" || is_range {
            return Err(format!("{version:?} is not a version: pass --version, such as 1.0.0"));
        }
        for (what, url) in [("url", Some(&self.url)), ("repository", self.repository.as_ref())] {
            let Some(url) = url else { continue };
            if !url.starts_with("https://") && !is_local_http(url) {
                return Err(format!("--{what} is not behind https:// (or http:// on this machine)"));
            }
            if host_of(url).is_none() {
                return Err(format!(
                    "--{what} {url:?} is not a valid URL: it needs a host and no user, and spaces and characters beyond ASCII are written as %XX"
                ));
            }
        }
        Ok(())
    }

    /// Returns `server.json`, for a bundle with this SHA-256.
    ///
    /// # Errors
    /// Those of [`check`](Self::check), or the digest is no digest.
    pub fn server_json(&self, sha256: &str) -> Result<Value, String> {
        self.check()?;
        if !is_digest(sha256) {
            return Err(format!("{sha256:?} is not a SHA-256"));
        }
        let mut server = json!({
            "$schema": SCHEMA,
            "name": self.name,
            "description": self.description,
            "version": self.version,
            "packages": [{
                "registryType": "mcpb",
                "identifier": self.url,
                "version": self.version,
                "fileSha256": sha256,
                "transport": {"type": "stdio"},
            }],
        });
        if let Some(url) = &self.repository {
            let host = host_of(url).unwrap_or_default();
            // The name of the hosting service, as registries know it.
            let source = ["github", "gitlab"].into_iter().find(|name| host == format!("{name}.com"));
            server["repository"] = json!({"url": url, "source": source.unwrap_or(host)});
        }
        Ok(server)
    }

    /// Returns the manifest of a bundle that orla serves: `command` with the bundle's directory as its
    /// tools directory.
    pub fn manifest(&self, command: &str) -> Value {
        let owner = self.name.split('/').next().unwrap_or_default();
        json!({
            "manifest_version": "0.3",
            "name": self.short_name(),
            "version": self.version,
            "description": self.description,
            "author": {"name": owner},
            "server": {
                "type": "binary",
                "entry_point": command,
                "mcp_config": {"command": command, "args": ["--stdio", "--tools-dir", "${__dirname}"], "env": {}},
            },
        })
    }
}

/// Returns the host of a valid URL without a user.
fn host_of(url: &str) -> Option<&str> {
    let authority = Uri::parse(url).ok()?.authority()?;
    Some(authority.host()).filter(|host| !host.is_empty() && !authority.has_userinfo())
}

/// Returns the owner and the name of a repository on GitHub, from the URL of a remote.
pub fn github(remote: &str) -> Option<(&str, &str)> {
    let rest = ["https://github.com/", "git@github.com:", "ssh://git@github.com/"]
        .iter()
        .find_map(|prefix| remote.strip_prefix(prefix))?;
    let (owner, repository) = rest.trim_end_matches('/').split_once('/')?;
    let repository = repository.strip_suffix(".git").unwrap_or(repository);
    let is_name = |text: &str| {
        !text.is_empty()
            && text.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"._-".contains(&byte))
    };
    (is_name(owner) && is_name(repository)).then_some((owner, repository))
}

#[cfg(test)]
mod tests {
    use jsonschema::Validator;
    use proptest::prelude::*;

    use super::*;

    fn publication() -> Publication {
        Publication {
            name: "io.github.acme/weather".to_owned(),
            version: "1.0.0".to_owned(),
            description: "Tells the weather.".to_owned(),
            repository: Some("https://github.com/acme/weather".to_owned()),
            url: "https://a.example/weather-1.0.0.mcpb".to_owned(),
        }
    }

    #[test]
    fn a_registry_takes_what_is_checked() {
        let server = publication().server_json(&"a1".repeat(32)).unwrap();
        assert_eq!(server["packages"][0]["fileSha256"], "a1".repeat(32));
        assert_eq!(server["repository"]["source"], "github");
        assert!(publication().server_json("a1").is_err());
        for (url, source) in [
            ("https://github.com/acme/gitlab-mcp", "github"),
            ("https://gitlab.com/acme/weather", "gitlab"),
            ("https://code.example/acme/weather", "code.example"),
        ] {
            let elsewhere = Publication { repository: Some(url.to_owned()), ..publication() };
            let server = elsewhere.server_json(&"a1".repeat(32)).unwrap();
            assert_eq!(server["repository"]["source"], source);
        }
        type Change = fn(&mut Publication);
        let changes: [(Change, &str); 14] = [
            (|it| it.name = "weather".into(), "--name"),
            (|it| it.name = "a/b/c".into(), "--name"),
            (|it| it.name = "a b/c".into(), "--name"),
            (|it| it.name = format!("a/{}", "b".repeat(200)), "--name"),
            (|it| it.description = String::new(), "--description"),
            (|it| it.description = "ü".repeat(101), "--description"),
            (|it| it.version = "^1.0".into(), "--version"),
            (|it| it.version = "1.x".into(), "--version"),
            (|it| it.version = "latest".into(), "--version"),
            (|it| it.url = "http://a.example/x".into(), "--url"),
            (|it| it.url = "https:///x".into(), "--url"),
            (|it| it.url = "https://a.example/ü".into(), "%XX"),
            (|it| it.url = "https://user:secret@a.example/x".into(), "no user"),
            (|it| it.repository = Some("git@github.com:a/b".into()), "--repository"),
        ];
        for (change, word) in changes {
            let mut changed = publication();
            change(&mut changed);
            assert!(changed.check().unwrap_err().contains(word), "{changed:?}");
        }
        let long = Publication { description: "ü".repeat(100), ..publication() };
        assert_eq!(long.check(), Ok(()));
    }

    fn registry_schema() -> Validator {
        let text = include_str!("../tests/fixtures/server.schema.json");
        let schema: Value = serde_json::from_str(text).unwrap();
        jsonschema::options().should_validate_formats(true).build(&schema).unwrap()
    }

    #[test]
    fn the_schema_of_the_registry_refuses_what_is_wrong() {
        let (schema, sha256) = (registry_schema(), "a1".repeat(32));
        let server = publication().server_json(&sha256).unwrap();
        assert!(schema.is_valid(&server));
        for (pointer, wrong) in [
            ("/name", json!("weather")),
            ("/description", json!("")),
            ("/repository/url", json!("a b")),
            ("/packages/0/fileSha256", json!("a1")),
            ("/packages/0/version", json!("latest")),
            ("/packages/0/transport/type", json!("pipe")),
        ] {
            let mut server = server.clone();
            *server.pointer_mut(pointer).unwrap() = wrong;
            assert!(!schema.is_valid(&server), "{pointer}");
        }
    }

    proptest! {
        #[test]
        fn what_is_published_is_valid_by_the_schema_of_the_registry(
            name in "[a-zA-Z0-9._-]{0,5}/?[a-zA-Z0-9._ -]{1,5}",
            version in "[0-9.x^~a-z -]{0,8}|latest",
            description in "\\PC{0,101}",
            place in "https://[a-zA-Z0-9.:/{}%?#@ü\\[\\]\"<>\\\\|^`-]{0,12}",
            repository in proptest::option::of("https://[a-zA-Z0-9.:/{}%?#@ü\\[\\]\"<>\\\\|^`-]{0,12}"),
        ) {
            let publication = Publication { name, version, description, repository, url: place };
            if let Ok(server) = publication.server_json(&"a1".repeat(32)) {
                let schema = registry_schema();
                let errors: Vec<String> = schema.iter_errors(&server).map(|error| error.to_string()).collect();
                prop_assert!(errors.is_empty(), "{errors:?} in {server}");
            }
        }
    }

    #[test]
    fn the_manifest_is_one_that_is_read() {
        let manifest = publication().manifest("orla").to_string();
        let bundle = crate::bundle::read(manifest.as_bytes(), "linux").unwrap();
        assert_eq!((&*bundle.name, &*bundle.version, &*bundle.command), ("weather", "1.0.0", "orla"));
    }

    #[test]
    fn a_repository_on_github_is_known_by_its_remote() {
        for remote in [
            "https://github.com/a/b.git",
            "git@github.com:a/b.git",
            "ssh://git@github.com/a/b",
            "https://github.com/a/b/",
        ] {
            assert_eq!(github(remote), Some(("a", "b")), "{remote}");
        }
        for remote in
            ["https://gitlab.com/a/b", "../b", "https://github.com/a", "https://github.com/a/b/c"]
        {
            assert_eq!(github(remote), None, "{remote}");
        }
    }
}
