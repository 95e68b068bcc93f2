//! The API of MCP registries, v0.1: servers by name and version, and search. No I/O except [`Fetch`].

use std::collections::BTreeMap;

use serde::Deserialize;
use serde_json::Value;

use crate::environment::{Launch, Variable};
use crate::lock::is_digest;
use crate::oci::Reference;
use crate::platform::Platform;
use crate::remote::{Remote, RemoteSetting};
use crate::source::{Source, is_local_http};
use crate::{Fetch, FetchError};

/// The official registry.
pub const OFFICIAL: &str = "https://registry.modelcontextprotocol.io";
/// The maximum size of an answer, in bytes.
const MAX_ANSWER: usize = 8 << 20;
/// The maximum number of pages of a search.
const MAX_PAGES: usize = 50;
/// The maximum number of servers on a page.
const PAGE: usize = 100;

/// A registry.
pub struct Registry<'a> {
    url: String,
    fetch: &'a dyn Fetch,
}

/// One version of a server, as described by the registry.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Server {
    /// The name: `io.github.owner/server`.
    pub name: String,
    /// The description.
    pub description: String,
    /// Its version.
    pub version: String,
    /// `active`, `deprecated` or `deleted`.
    pub status: String,
    packages: Vec<Package>,
    /// The endpoints where it is hosted.
    remotes: Vec<Place>,
}

#[derive(Clone, Debug, Deserialize, PartialEq, Eq)]
#[serde(rename_all = "camelCase")]
struct Package {
    registry_type: String,
    identifier: String,
    #[serde(default)]
    version: Option<String>,
    #[serde(default)]
    file_sha256: Option<String>,
    #[serde(default)]
    registry_base_url: Option<String>,
    #[serde(default)]
    transport: Option<Transport>,
    #[serde(default)]
    package_arguments: Vec<Input>,
    #[serde(default)]
    environment_variables: Vec<Input>,
}

#[derive(Clone, Debug, Deserialize, PartialEq, Eq)]
struct Transport {
    #[serde(rename = "type")]
    kind: String,
}

/// An endpoint where a server is hosted.
#[derive(Clone, Debug, Deserialize, PartialEq, Eq)]
struct Place {
    #[serde(rename = "type")]
    kind: String,
    url: String,
    #[serde(default)]
    headers: Vec<Input>,
}

/// An argument or a variable.
#[derive(Clone, Debug, Deserialize, PartialEq, Eq)]
#[serde(rename_all = "camelCase")]
struct Input {
    #[serde(rename = "type", default)]
    kind: String,
    #[serde(default)]
    name: Option<String>,
    #[serde(default)]
    value: Option<String>,
    #[serde(default)]
    default: Option<String>,
    #[serde(default)]
    value_hint: Option<String>,
    #[serde(default)]
    description: String,
    #[serde(default)]
    is_required: bool,
    #[serde(default)]
    variables: BTreeMap<String, Self>,
}

/// The installable form of a server.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Install {
    /// The first of these bundles whose manifest is for this system.
    Bundle(Vec<BundleAt>),
    /// A program of npm, PyPI or a registry of crates, and how it is started.
    Program(Source, Launch),
    /// A hosted server, which needs no installation.
    Remote(Remote),
    /// An artifact of an OCI registry.
    Artifact(Reference),
}

impl Install {
    /// Returns the kind: `mcpb`, `npm`, `pypi`, `cargo`, `url` or `oci`.
    pub fn kind(&self) -> &'static str {
        match self {
            Self::Bundle(_) => "mcpb",
            Self::Program(Source::Npm { .. }, _) => "npm",
            Self::Program(Source::Cargo { .. }, _) => "cargo",
            Self::Program(..) => "pypi",
            Self::Remote(_) => "url",
            Self::Artifact(_) => "oci",
        }
    }
}

/// A bundle that a server is installed from.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BundleAt {
    /// The address.
    pub url: String,
    /// The SHA-256 that the registry gives.
    pub sha256: String,
}

/// The reason why a registry has no answer.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum RegistryError {
    /// The registry has no such server.
    #[error("{registry} has no server named {name}{}; `orla search --registry {registry} WORDS` finds servers", version.as_ref().map(|version| format!(" in version {version}")).unwrap_or_default())]
    Unknown {
        /// The registry.
        registry: String,
        /// The requested name.
        name: String,
        /// The version.
        version: Option<String>,
    },
    /// The registry cannot be reached, or its answer is invalid.
    #[error("the registry {registry}: {problem}")]
    Failed {
        /// The registry.
        registry: String,
        /// The problem.
        problem: String,
    },
}

impl<'a> Registry<'a> {
    /// Returns the registry at this URL.
    ///
    /// # Errors
    /// It is neither `https://` nor on this machine.
    pub fn new(url: &str, fetch: &'a dyn Fetch) -> Result<Self, RegistryError> {
        let url = url.trim_end_matches('/').to_owned();
        if !url.starts_with("https://") && !is_local_http(&url) {
            let problem = "a registry is asked over https:// (or http:// on this machine)".to_owned();
            return Err(RegistryError::Failed { registry: url, problem });
        }
        Ok(Self { url, fetch })
    }

    /// Returns the URL.
    pub fn url(&self) -> &str {
        &self.url
    }

    /// Returns a version of a server, or the latest one.
    ///
    /// # Errors
    /// There is none, or the registry does not answer.
    pub async fn server(&self, name: &str, version: Option<&str>) -> Result<Server, RegistryError> {
        let (id, at) = (encoded(name), encoded(version.unwrap_or("latest")));
        let url = format!("{}/v0.1/servers/{id}/versions/{at}", self.url);
        let answer = match self.fetch.get(&url, None, MAX_ANSWER).await {
            Ok(answer) => answer,
            Err(FetchError::Missing(_)) => {
                return Err(RegistryError::Unknown {
                    registry: self.url.clone(),
                    name: name.to_owned(),
                    version: version.map(str::to_owned),
                });
            }
            Err(error) => return Err(self.failed(&error.to_string())),
        };
        let server = self.json(&answer).and_then(|answer| {
            server_of(&answer).map_err(|problem| {
                self.failed(&format!("its answer does not describe a server: {problem}"))
            })
        })?;
        if server.name != name || version.is_some_and(|version| version != server.version) {
            return Err(self.failed(&format!("it answered with {} {}", server.name, server.version)));
        }
        Ok(server)
    }

    /// Returns the latest versions of the servers whose names contain the words, up to `limit`, and
    /// whether there are more.
    ///
    /// # Errors
    /// The registry does not answer, or has more pages without such servers than are read.
    pub async fn search(&self, words: &str, limit: usize) -> Result<(Vec<Server>, bool), RegistryError> {
        let (mut found, mut cursor) = (Vec::new(), None::<String>);
        for _ in 0..MAX_PAGES {
            let mut url = format!(
                "{}/v0.1/servers?version=latest&limit={PAGE}&search={}",
                self.url,
                encoded(words)
            );
            if let Some(cursor) = &cursor {
                url.push_str(&format!("&cursor={}", encoded(cursor)));
            }
            let answer = self
                .fetch
                .get(&url, None, MAX_ANSWER)
                .await
                .map_err(|error| self.failed(&error.to_string()))?;
            let page = self.json(&answer)?;
            let Some(servers) = page.get("servers").and_then(Value::as_array) else {
                return Err(self.failed("its answer has no servers"));
            };
            // An unreadable entry does not hide the others.
            found.extend(servers.iter().filter_map(|server| server_of(server).ok()));
            if found.len() > limit {
                found.truncate(limit);
                return Ok((found, true));
            }
            match page.pointer("/metadata/nextCursor").and_then(Value::as_str) {
                Some(next) if !next.is_empty() && cursor.as_deref() != Some(next) => {
                    cursor = Some(next.to_owned());
                }
                _ => return Ok((found, false)),
            }
        }
        Err(self.failed(&format!("it has more than {MAX_PAGES} pages for these words: use more words")))
    }

    fn json(&self, answer: &[u8]) -> Result<Value, RegistryError> {
        serde_json::from_slice(answer)
            .map_err(|_| self.failed("its answer is not JSON: is this the address of an MCP registry?"))
    }

    fn failed(&self, problem: &str) -> RegistryError {
        RegistryError::Failed { registry: self.url.clone(), problem: problem.to_owned() }
    }
}

impl Server {
    /// Returns the installable form of the server: a bundle, or else a program of npm, PyPI or a
    /// registry of crates, or else its hosted endpoint.
    ///
    /// # Errors
    /// Why there is nothing: a sentence about the server.
    pub fn install(&self) -> Result<Install, String> {
        let name = &self.name;
        if self.status == "deleted" {
            return Err(format!("{name} {} was deleted from the registry", self.version));
        }
        let all = |kind: &str| -> Vec<&Package> {
            self.packages.iter().filter(|package| package.registry_type == kind).collect()
        };
        let of_kind = |kind: &str| all(kind).into_iter().next();
        let programs = [("npm", "npm:", "@"), ("pypi", "pypi:", "=="), ("cargo", "cargo:", "@")];
        let program =
            programs.into_iter().find_map(|(kind, prefix, at)| Some((of_kind(kind)?, prefix, at)));
        let bundles = all("mcpb");
        let likely = match bundles.len() {
            0 | 1 => bundles.clone(),
            _ => Platform::HERE.likely(bundles.clone(), |package| &package.identifier),
        };
        if !likely.is_empty() {
            return self.bundles(&likely).map(Install::Bundle);
        }
        if !bundles.is_empty() && program.is_none() {
            let names: Vec<&str> = bundles.iter().map(|package| &*package.identifier).collect();
            return Err(format!(
                "{name} has no bundle for {}: it has {}",
                Platform::HERE,
                names.join(", ")
            ));
        }
        if let Some((package, prefix, at)) = program {
            let source = self.source_of(package, prefix, at)?;
            return Ok(Install::Program(source, self.launch(package)?));
        }
        let mut kinds: Vec<&str> =
            self.packages.iter().map(|package| package.registry_type.as_str()).collect();
        kinds.dedup();
        let remote = ["streamable-http", "sse"];
        let remote = remote.iter().find_map(|kind| self.remotes.iter().find(|one| one.kind == *kind));
        match (remote, of_kind("oci")) {
            (Some(remote), _) => self.remote(remote).map(Install::Remote),
            (None, Some(package)) => self.artifact(package).map(Install::Artifact),
            (None, None) if kinds.is_empty() => Err(format!("{name} has no packages")),
            (None, None) => Err(format!(
                "{name} has packages of the kinds {}, which are not supported: mcpb, npm, pypi, cargo and oci are",
                kinds.join(", ")
            )),
        }
    }

    /// Returns the hosted server. Headers without a value become settings of the user.
    fn remote(&self, place: &Place) -> Result<Remote, String> {
        let mut remote = Remote {
            name: self.name.clone(),
            version: self.version.clone(),
            description: self.description.clone(),
            author: self.name.split('/').next().unwrap_or_default().to_owned(),
            url: place.url.clone(),
            headers: BTreeMap::new(),
            settings: BTreeMap::new(),
        };
        let setting = |key: &str, input: &Input| {
            let title = if input.description.is_empty() { key } else { &input.description };
            let default = input.value.clone().or_else(|| input.default.clone());
            RemoteSetting { title: title.to_owned(), default, required: input.is_required }
        };
        for header in &place.headers {
            let Some(name) = &header.name else {
                return Err(format!("{}: one of its headers has no name", self.name));
            };
            let Some(value) = &header.value else {
                remote.headers.insert(name.clone(), format!("${{user_config.{name}}}"));
                remote.settings.insert(name.clone(), setting(name, header));
                continue;
            };
            let text = with_settings(value, |key| {
                let declared = header.variables.get(key).map(|variable| setting(key, variable));
                let undeclared =
                    || RemoteSetting { title: key.to_owned(), default: None, required: true };
                remote.settings.insert(key.to_owned(), declared.unwrap_or_else(undeclared));
            });
            remote.headers.insert(name.clone(), text);
        }
        remote.check().map_err(|why| format!("{}: {why}", self.name))?;
        Ok(remote)
    }

    /// Returns the bundles that can be fetched, or why the first one cannot.
    fn bundles(&self, packages: &[&Package]) -> Result<Vec<BundleAt>, String> {
        let (mut bundles, mut problem) = (Vec::new(), None);
        for package in packages {
            match self.bundle(package) {
                Ok(bundle) => bundles.push(bundle),
                Err(why) => drop(problem.get_or_insert(why)),
            }
        }
        if bundles.is_empty() { Err(problem.unwrap_or_default()) } else { Ok(bundles) }
    }

    fn bundle(&self, package: &Package) -> Result<BundleAt, String> {
        let name = &self.name;
        let url = package.identifier.clone();
        if !url.starts_with("https://") && !is_local_http(&url) {
            return Err(format!("{name}: its bundle is not fetched over https://"));
        }
        let sha256 = package.file_sha256.as_deref().map(str::to_ascii_lowercase);
        match sha256.filter(|sha256| is_digest(sha256)) {
            Some(sha256) => Ok(BundleAt { url, sha256 }),
            None => {
                Err(format!("{name}: the registry does not give the SHA-256 of its bundle (fileSha256)"))
            }
        }
    }

    /// Returns an artifact by its identifier, to which older descriptions add host and version.
    fn artifact(&self, package: &Package) -> Result<Reference, String> {
        let whole = &package.identifier;
        let host = package.registry_base_url.as_deref().unwrap_or("https://docker.io");
        let host = host.trim_start_matches("https://").trim_end_matches('/');
        let reference = Reference::parse(whole).or_else(|| Reference::parse(&format!("{host}/{whole}")));
        let mut reference = reference
            .ok_or_else(|| format!("{}: {whole} is not the name of an OCI artifact", self.name))?;
        reference.version = reference.version.or_else(|| package.version.clone());
        Ok(reference)
    }

    /// Returns the program as a source, in the version that the registry gives.
    fn source_of(&self, package: &Package, kind: &str, at: &str) -> Result<Source, String> {
        let name = &self.name;
        if package.transport.as_ref().is_some_and(|transport| transport.kind != "stdio") {
            return Err(format!("{name} is a program that listens on a port, which is not installed"));
        }
        let version = package.version.as_deref().unwrap_or_default();
        // The notation of PEP 440.
        let version = if kind == "pypi:" { version.trim_start_matches('v') } else { version };
        let text = format!("{kind}{}{at}{version}", package.identifier);
        match Source::parse(&text) {
            Ok(source) if version.starts_with(|ch: char| ch.is_ascii_digit()) => Ok(source),
            _ => Err(format!("{name}: its package has no usable name or version ({text})")),
        }
    }

    /// Returns how the program is started. Inputs without a value become settings of the user, or are
    /// left out.
    fn launch(&self, package: &Package) -> Result<Launch, String> {
        let mut launch = Launch {
            name: self.name.clone(),
            description: self.description.clone(),
            author: self.name.split('/').next().unwrap_or_default().to_owned(),
            version: Some(self.version.clone()),
            ..Launch::default()
        };
        for argument in &package.package_arguments {
            let value = argument.value.as_deref().or(argument.default.as_deref());
            let has_variables = value.is_some_and(|value| value.contains('{'));
            match (&*argument.kind, &argument.name, value) {
                ("named", Some(name), Some(value)) if !has_variables => {
                    launch.arguments.extend([name.clone(), value.to_owned()]);
                }
                ("positional", _, Some(value)) if !has_variables => {
                    launch.arguments.push(value.to_owned());
                }
                _ if has_variables || argument.is_required => {
                    let what = argument.name.as_deref().or(argument.value_hint.as_deref());
                    launch.needed.push(what.unwrap_or("a positional one").to_owned());
                }
                _ => {}
            }
        }
        let named = |variable: &&Input| variable.name.as_ref().is_some_and(|name| !name.is_empty());
        for variable in package.environment_variables.iter().filter(named) {
            let name = variable.name.clone().unwrap_or_default();
            let is_name = name.bytes().all(|byte| byte.is_ascii_alphanumeric() || byte == b'_');
            if !is_name || matches!(&*name, "PATH" | "NODE_OPTIONS" | "PYTHONPATH" | "LD_PRELOAD") {
                return Err(format!("{}: {name:?} is not a variable that it may set", self.name));
            }
            let value = variable.value.clone().or_else(|| variable.default.clone());
            launch.variables.push(Variable {
                name,
                description: variable.description.clone(),
                default: value.filter(|value| !value.contains('{')),
                is_required: variable.is_required,
            });
        }
        Ok(launch)
    }
}

/// Returns a value in which each `{NAME}` refers to a setting, even if it is not declared, because the
/// literal text is never meant. Other braces stay.
fn with_settings(value: &str, mut setting: impl FnMut(&str)) -> String {
    // A dollar sign would begin a reference in orla's notation.
    let value = value.replace("${", "{");
    let is_name_char = |c: char| c.is_ascii_alphanumeric() || matches!(c, '_' | '-');
    let (mut text, mut rest) = (String::new(), &*value);
    while let Some((before, after)) = rest.split_once('{') {
        text.push_str(before);
        match after.split_once('}') {
            Some((name, behind)) if !name.is_empty() && name.chars().all(is_name_char) => {
                setting(name);
                text.push_str(&format!("${{user_config.{name}}}"));
                rest = behind;
            }
            _ => {
                text.push('{');
                rest = after;
            }
        }
    }
    text + rest
}

fn server_of(answer: &Value) -> Result<Server, String> {
    let server = answer.get("server").unwrap_or(answer);
    let text = |key: &str| server.get(key).and_then(Value::as_str).map(str::to_owned);
    let packages =
        server.get("packages").and_then(Value::as_array).map(Vec::as_slice).unwrap_or_default();
    // A package of an unknown kind may have other members.
    let packages = packages.iter().filter_map(|package| serde_json::from_value(package.clone()).ok());
    let remotes = server.get("remotes").and_then(Value::as_array).into_iter().flatten();
    let remotes = remotes.filter_map(|remote| serde_json::from_value(remote.clone()).ok());
    let official =
        answer.get("_meta").and_then(|meta| meta.get("io.modelcontextprotocol.registry/official"));
    let status = official.and_then(|official| official.get("status")).and_then(Value::as_str);
    Ok(Server {
        name: text("name").ok_or("it has no name")?,
        description: text("description").unwrap_or_default(),
        version: text("version").ok_or("it has no version")?,
        status: status.unwrap_or("active").to_owned(),
        packages: packages.collect(),
        remotes: remotes.collect(),
    })
}

/// Encodes a text as a segment or a value of a URL.
pub(crate) fn encoded(text: &str) -> String {
    let plain = |byte: u8| byte.is_ascii_alphanumeric() || b"-._~".contains(&byte);
    text.bytes().fold(String::new(), |mut out, byte| {
        if plain(byte) {
            out.push(byte.into());
        } else {
            out.push_str(&format!("%{byte:02X}"));
        }
        out
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Wanted;
    use async_trait::async_trait;
    use serde_json::json;

    /// Answers every request with one text; `#` in it is the length of the URL, which grows with no page.
    struct Always(Result<String, FetchError>);

    #[async_trait]
    impl Fetch for Always {
        async fn get_with(&self, wanted: Wanted<'_>) -> Result<Vec<u8>, FetchError> {
            let number = wanted.url.bytes().map(u64::from).sum::<u64>();
            self.0.clone().map(|text| text.replace('#', &number.to_string()).into_bytes())
        }
    }

    fn server(packages: &Value) -> String {
        json!({"server": {"name": "a.b/c", "version": "1.0.0", "packages": packages}}).to_string()
    }

    async fn ask(answer: Result<String, FetchError>) -> Result<Server, RegistryError> {
        Registry::new("http://127.0.0.1:1", &Always(answer)).unwrap().server("a.b/c", None).await
    }

    #[tokio::test]
    async fn only_a_bundle_with_its_hash_is_installed() {
        let sha256 = "ab".repeat(32);
        let good = json!([{"registryType": "npm", "identifier": "c"}, {"registryType": "mcpb", "identifier": "https://a.example/c", "fileSha256": sha256}]);
        let bundle = ask(Ok(server(&good))).await.unwrap().install().unwrap();
        let wanted = BundleAt { url: "https://a.example/c".into(), sha256: sha256.clone() };
        assert_eq!(bundle, Install::Bundle(vec![wanted]));
        for (packages, words) in [
            (json!([]), "no packages"),
            (json!([{"registryType": "oci", "identifier": "A B"}]), "not the name of an OCI artifact"),
            (json!([{"registryType": "nuget", "identifier": "c"}]), "nuget"),
            (json!([{"registryType": "npm", "identifier": "c"}]), "version"),
            (json!([{"registryType": "npm", "identifier": "--c", "version": "1.0.0"}]), "usable name"),
            (json!([{"registryType": "npm", "identifier": "c", "version": "latest"}]), "version"),
            (
                json!([{"registryType": "npm", "identifier": "c", "version": "1.0.0", "transport": {"type": "sse"}}]),
                "listens",
            ),
            (
                json!([{"registryType": "npm", "identifier": "c", "version": "1.0.0", "environmentVariables": [{"name": "NODE_OPTIONS"}]}]),
                "not a variable",
            ),
            (json!([{"registryType": "mcpb", "identifier": "https://a.example/c"}]), "SHA-256"),
            (
                json!([{"registryType": "mcpb", "identifier": "http://a.example/c", "fileSha256": sha256}]),
                "https",
            ),
        ] {
            let error = ask(Ok(server(&packages))).await.unwrap().install().unwrap_err();
            assert!(error.contains(words), "{error}");
        }
    }

    #[tokio::test]
    async fn of_several_bundles_those_of_other_systems_are_left_out() {
        let url = |name: &str| format!("https://a.example/c-{name}.mcpb");
        let other = if Platform::HERE.system == "linux" { "darwin" } else { "linux" };
        let package = |name: &str| json!({"registryType": "mcpb", "identifier": url(name), "fileSha256": "ab".repeat(32)});
        let here = Platform::HERE.system;
        let all = json!([package(other), package("any"), package(here), {"registryType": "mcpb", "identifier": url("unlocked")}]);
        let Install::Bundle(bundles) = ask(Ok(server(&all))).await.unwrap().install().unwrap() else {
            panic!("they are bundles")
        };
        let urls: Vec<&str> = bundles.iter().map(|bundle| &*bundle.url).collect();
        assert_eq!(urls, [url(here), url("any")]);
        let others = json!([package(other), package("win32")]);
        let error = ask(Ok(server(&others))).await.unwrap().install().unwrap_err();
        assert!(error.contains(&url(other)) && error.contains(&url("win32")), "{error}");
        let npm = json!({"registryType": "npm", "identifier": "c", "version": "1.0.0"});
        let others = json!([package(other), package("win32"), npm]);
        let install = ask(Ok(server(&others))).await.unwrap().install().unwrap();
        assert_eq!(install.kind(), "npm");
    }

    #[tokio::test]
    async fn a_remote_server_has_settings_for_its_headers() {
        let install = async |headers: Value| {
            let place =
                json!({"type": "streamable-http", "url": "https://c.example/mcp", "headers": headers});
            let answer = json!({"server": {"name": "a.b/c", "version": "1", "remotes": [place]}});
            ask(Ok(answer.to_string())).await.unwrap().install()
        };
        let token = json!({"name": "Authorization", "value": "Bearer {token}", "variables": {"token": {"isRequired": true}}});
        let region = json!({"name": "X-Region", "description": "Where."});
        let Ok(Install::Remote(remote)) = install(json!([token, region])).await else {
            panic!("it is remote")
        };
        let headers: Vec<(&str, &str)> =
            remote.headers.iter().map(|(name, value)| (&**name, &**value)).collect();
        let token = ("Authorization", "Bearer ${user_config.token}");
        assert_eq!(headers, [token, ("X-Region", "${user_config.X-Region}")]);
        assert!(remote.settings["token"].required && !remote.settings["X-Region"].required);
        let undeclared = json!([{"name": "A", "value": "Bearer ${api_key} {\"a\": {}}"}]);
        let Ok(Install::Remote(remote)) = install(undeclared).await else { panic!("it is remote") };
        assert_eq!(remote.headers["A"], "Bearer ${user_config.api_key} {\"a\": {}}");
        assert!(remote.settings["api_key"].required);
    }

    #[tokio::test]
    async fn a_program_is_started_as_the_registry_says() {
        let packages = json!([{"registryType": "npm", "identifier": "@a/c", "version": "1.0.0", "transport": {"type": "stdio"},
            "packageArguments": [{"type": "positional", "value": "run"}, {"type": "named", "name": "--mode", "default": "x"}, {"type": "named", "name": "--left-out"},
                {"type": "named", "name": "--dir", "isRequired": true}, {"type": "positional", "valueHint": "file", "value": "{root}/x"}],
            "environmentVariables": [{"name": ""}, {"name": "API_KEY", "isRequired": true, "isSecret": true, "description": "Key."}, {"name": "REGION", "default": "eu"}]}]);
        let Install::Program(source, launch) =
            ask(Ok(server(&packages))).await.unwrap().install().unwrap()
        else {
            panic!("it is a program")
        };
        assert_eq!(source.to_string(), "npm:@a/c@1.0.0");
        assert_eq!(launch.arguments, ["run", "--mode", "x"]);
        assert_eq!(launch.needed, ["--dir", "file"]);
        let variables: Vec<_> = launch
            .variables
            .iter()
            .map(|one| (&*one.name, one.default.as_deref(), one.is_required))
            .collect();
        assert_eq!(variables, [("API_KEY", None, true), ("REGION", Some("eu"), false)]);
    }

    #[tokio::test]
    async fn a_version_of_pypi_may_begin_with_a_v() {
        let packages = json!([{"registryType": "pypi", "identifier": "c", "version": "v1.0.2"}]);
        let install = ask(Ok(server(&packages))).await.unwrap().install().unwrap();
        let Install::Program(source, _) = install else { panic!("it is a program") };
        assert_eq!(source.to_string(), "pypi:c==1.0.2");
    }

    #[tokio::test]
    async fn invalid_answers_are_errors() {
        for (answer, words) in [
            (Ok("<html>".to_owned()), "not JSON"),
            (Ok("{}".to_owned()), "does not describe a server"),
            (Ok(server(&json!([])).replace("a.b/c", "other")), "answered with other"),
            (Err(FetchError::Missing("x".into())), "no server named a.b/c"),
            (Err(FetchError::Failed("it is slow".into())), "it is slow"),
        ] {
            let error = ask(answer).await.unwrap_err().to_string();
            assert!(error.contains(words), "{error}");
        }
        let endless = r##"{"servers": [], "metadata": {"nextCursor": "#"}}"##.to_owned();
        let endless = Always(Ok(endless));
        let error =
            Registry::new("http://localhost", &endless).unwrap().search("x", 10).await.unwrap_err();
        assert!(error.to_string().contains("more than 50 pages"), "{error}");
        assert!(Registry::new("http://a.example", &endless).is_err());
    }
}
