//! Bundles and folders in OCI registries, through the distribution API: manifests, anonymous tokens, and
//! blobs with their digests. No I/O except [`Fetch`].
//!
//! An artifact has its content in one layer: an `.mcpb` bundle, or a compressed tar file of a folder. A
//! container image is a root file system for a container engine, and is refused.

use serde::Deserialize;

use crate::archive::{File, MAX_BYTES, assemble, read_folder_tgz};
use crate::source::is_local_http;
use crate::{Fetch, FetchError, Wanted, sha256};

/// The accepted media types: an image or an artifact, or a list of them for several systems.
const MANIFESTS: &str = "application/vnd.oci.image.manifest.v1+json, application/vnd.oci.image.index.v1+json, \
    application/vnd.docker.distribution.manifest.v2+json, application/vnd.docker.distribution.manifest.list.v2+json";
/// The maximum size of a manifest, as in the specification, and of an answer with a token.
const MAX_MANIFEST: usize = 4 << 20;
const MAX_TOKEN: usize = 64 << 10;
/// The configurations of container images.
const IMAGES: [&str; 2] =
    ["application/vnd.oci.image.config.v1+json", "application/vnd.docker.container.image.v1+json"];

/// The location of an artifact.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Reference {
    /// The host, with its port if it has one.
    pub host: String,
    /// The name of the repository.
    pub name: String,
    /// A tag, or `sha256:…`; `None` for `latest`.
    pub version: Option<String>,
}

/// The content of an artifact.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Artifact {
    /// The archive: a bundle, or a folder as one.
    pub archive: Vec<u8>,
    /// The digest of its manifest: `sha256:…`.
    pub digest: String,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct Manifest {
    #[serde(default)]
    config: Option<Descriptor>,
    #[serde(default)]
    layers: Vec<Descriptor>,
    /// In a list: the manifests for single systems.
    #[serde(default)]
    manifests: Vec<Descriptor>,
}

#[derive(Clone, Deserialize)]
#[serde(rename_all = "camelCase")]
struct Descriptor {
    #[serde(default)]
    media_type: String,
    digest: String,
    #[serde(default)]
    annotations: std::collections::BTreeMap<String, String>,
    #[serde(default)]
    platform: Option<Platform>,
}

#[derive(Clone, Deserialize)]
struct Platform {
    #[serde(default)]
    os: String,
    #[serde(default)]
    architecture: String,
}

impl Reference {
    /// Parses `HOST/NAME`, `HOST/NAME:TAG` or `HOST/NAME@sha256:…`.
    pub fn parse(text: &str) -> Option<Self> {
        let (rest, digest) = match text.split_once('@') {
            Some((rest, digest)) => (rest, Some(digest)),
            None => (text, None),
        };
        let (host, path) = rest.split_once('/')?;
        let (name, tag) = match path.split_once(':') {
            Some((name, tag)) => (name, Some(tag)),
            None => (path, None),
        };
        let is_host = {
            let (name, port) =
                host.split_once(':').map_or((host, None), |(name, port)| (name, Some(port)));
            let fits = |byte: u8| byte.is_ascii_alphanumeric() || b".-".contains(&byte);
            let is_known = name == "localhost" || name.contains('.') || port.is_some();
            let is_port = port.is_none_or(|port| port.parse::<u16>().is_ok());
            is_known && is_port && name.bytes().all(fits) && !name.starts_with(['.', '-'])
        };
        let is_part = |part: &str| {
            let fits =
                |byte: u8| byte.is_ascii_lowercase() || byte.is_ascii_digit() || b"._-".contains(&byte);
            let ends = |byte: Option<u8>| byte.is_some_and(|byte| byte.is_ascii_alphanumeric());
            part.bytes().all(fits) && ends(part.bytes().next()) && ends(part.bytes().last())
        };
        let is_tag = |tag: &str| {
            let fits = |byte: u8| byte.is_ascii_alphanumeric() || b"._-".contains(&byte);
            (1..=128).contains(&tag.len()) && tag.bytes().all(fits) && !tag.starts_with(['.', '-'])
        };
        let is_good = is_host
            && name.split('/').all(is_part)
            && tag.is_none_or(is_tag)
            && digest.is_none_or(is_digest);
        // A digest takes precedence over a tag.
        let version = digest.or(tag).map(str::to_owned);
        is_good.then(|| Self { host: host.to_owned(), name: name.to_owned(), version })
    }

    /// Returns the URL of its repository in the API.
    fn base(&self) -> String {
        let plain = format!("http://{}", self.host);
        let scheme = if is_local_http(&plain) { "http" } else { "https" };
        // Docker Hub has its API on another host, and a default owner for images.
        let is_hub = self.host == "docker.io";
        let host = if is_hub { "registry-1.docker.io" } else { &self.host };
        let owner = if is_hub && !self.name.contains('/') { "library/" } else { "" };
        format!("{scheme}://{host}/v2/{owner}{}", self.name)
    }
}

impl std::fmt::Display for Reference {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}/{}", self.host, self.name)?;
        match &self.version {
            Some(digest) if digest.contains(':') => write!(f, "@{digest}"),
            Some(tag) => write!(f, ":{tag}"),
            None => Ok(()),
        }
    }
}

/// Fetches the content of an artifact for this system. `named_by` is the address of the document that
/// named it, if any.
///
/// # Errors
/// A sentence: it cannot be fetched, has another digest, or carries nothing that is installed.
pub async fn pull(
    fetch: &dyn Fetch,
    reference: &Reference,
    named_by: Option<&str>,
) -> Result<Artifact, String> {
    let mut repository = Repository { fetch, base: reference.base(), named_by, token: None };
    let version = reference.version.as_deref().unwrap_or("latest");
    let (mut manifest, mut digest) = repository.manifest(version).await?;
    if !manifest.manifests.is_empty() {
        let chosen = of_this_system(&manifest.manifests).ok_or_else(|| {
            format!("it has nothing for {} on {}", std::env::consts::OS, architecture())
        })?;
        if !chosen.digest.contains(':') {
            return Err(format!("its index names {:?} instead of a digest", chosen.digest));
        }
        (manifest, digest) = repository.manifest(&chosen.digest).await?;
    }
    let layer = carrier(&manifest)?;
    let bytes = repository.get(&format!("blobs/{}", layer.digest), None, MAX_BYTES as usize).await?;
    is_of_digest(&bytes, &layer.digest)?;
    Ok(Artifact { archive: archive_of(bytes)?, digest })
}

struct Repository<'a> {
    fetch: &'a dyn Fetch,
    base: String,
    named_by: Option<&'a str>,
    token: Option<String>,
}

impl Repository<'_> {
    async fn manifest(&mut self, version: &str) -> Result<(Manifest, String), String> {
        let bytes = self.get(&format!("manifests/{version}"), Some(MANIFESTS), MAX_MANIFEST).await?;
        let digest = format!("sha256:{}", sha256(&bytes));
        if version.contains(':') {
            is_of_digest(&bytes, version)?;
        }
        let manifest = serde_json::from_slice(&bytes)
            .map_err(|error| format!("its manifest cannot be read: {error}"))?;
        Ok((manifest, digest))
    }

    /// Fetches a document of the repository. An anonymous token is requested if the registry requires
    /// one.
    async fn get(&mut self, path: &str, accept: Option<&str>, max: usize) -> Result<Vec<u8>, String> {
        let url = format!("{}/{path}", self.base);
        let named_by = self.named_by;
        let known = self.token.clone();
        let wanted = Wanted { url: &url, named_by, max, accept, token: known.as_deref() };
        let challenge = match self.fetch.get_with(wanted).await {
            Err(FetchError::Unauthorized(challenge)) if known.is_none() => challenge,
            other => return other.map_err(|error| error.to_string()),
        };
        let token = self.token_for(&challenge).await?;
        let wanted = Wanted { token: Some(self.token.insert(token)), ..wanted };
        self.fetch.get_with(wanted).await.map_err(|error| error.to_string())
    }

    async fn token_for(&self, challenge: &[(String, String)]) -> Result<String, String> {
        let of = |name: &str| challenge.iter().find(|(known, _)| known == name).map(|(_, value)| value);
        let realm = of("realm").ok_or("its registry gives nothing to callers without an account")?;
        let mut url = realm.clone();
        for name in ["service", "scope"] {
            if let Some(value) = of(name) {
                let begin = if url.contains('?') { '&' } else { '?' };
                url.push_str(&format!("{begin}{name}={}", crate::registry::encoded(value)));
            }
        }
        let answer = self.fetch.get(&url, Some(&self.base), MAX_TOKEN).await;
        let answer = answer.map_err(|error| format!("its registry gives no token: {error}"))?;
        let answer: serde_json::Value = serde_json::from_slice(&answer).unwrap_or_default();
        let token = answer["token"].as_str().or_else(|| answer["access_token"].as_str());
        let is_plain = |token: &&str| token.bytes().all(|byte| byte.is_ascii_graphic());
        token.filter(is_plain).map(str::to_owned).ok_or_else(|| "its registry gives no token".to_owned())
    }
}

/// Returns the manifest for this system: the one that names it, or the only one that names none.
fn of_this_system(manifests: &[Descriptor]) -> Option<&Descriptor> {
    let is_ours = |one: &&Descriptor| {
        let platform = one.platform.as_ref();
        platform.is_some_and(|it| it.os == std::env::consts::OS && it.architecture == architecture())
    };
    manifests.iter().find(is_ours).or_else(|| manifests.iter().find(|one| one.platform.is_none()))
}

fn architecture() -> &'static str {
    match std::env::consts::ARCH {
        "x86_64" => "amd64",
        "aarch64" => "arm64",
        other => other,
    }
}

/// Returns the layer with the content.
fn carrier(manifest: &Manifest) -> Result<&Descriptor, String> {
    let bundles: Vec<&Descriptor> = manifest.layers.iter().filter(|layer| is_bundle(layer)).collect();
    let is_image = manifest.config.as_ref().is_some_and(|one| IMAGES.contains(&&*one.media_type));
    match (&bundles[..], &manifest.layers[..]) {
        ([bundle], _) => Ok(bundle),
        ([], _) if is_image => Err(
            "it is a container image, which a container engine runs: orla installs artifacts that carry an .mcpb bundle or a folder of tools".to_owned(),
        ),
        ([], [folder]) if is_tar(folder) => Ok(folder),
        ([], layers) => {
            let mut kinds: Vec<&str> = layers.iter().map(|layer| &*layer.media_type).collect();
            kinds.dedup();
            let kinds = if kinds.is_empty() { "nothing".to_owned() } else { kinds.join(", ") };
            Err(format!("it carries {kinds}, and no .mcpb bundle and no folder as the only layer"))
        }
        _ => Err("it carries several bundles, and one is installed at a time".to_owned()),
    }
}

fn is_bundle(layer: &Descriptor) -> bool {
    let kind = layer.media_type.as_str();
    let title = layer.annotations.get("org.opencontainers.image.title");
    kind.starts_with("application/vnd.mcp.bundle")
        || kind.contains("mcpb")
        || matches!(kind, "application/zip" | "application/vnd.anthropic.dxt")
        || title.is_some_and(|title| title.ends_with(".mcpb"))
}

fn is_tar(layer: &Descriptor) -> bool {
    let kind = layer.media_type.as_str();
    kind.ends_with("tar+gzip") || kind.ends_with("tar.gzip") || kind == "application/gzip"
}

/// Returns the content of a layer as an archive.
fn archive_of(bytes: Vec<u8>) -> Result<Vec<u8>, String> {
    if !bytes.starts_with(&[0x1f, 0x8b]) {
        return Ok(bytes);
    }
    let mut files = read_folder_tgz(&bytes).map_err(|error| error.to_string())?;
    for file in &mut files {
        if let Some(name) = file.name.strip_prefix("./") {
            file.name = name.to_owned();
        }
    }
    // A folder is often packed with its own name as a prefix.
    let top = |file: &File| file.name.split_once('/').map(|(top, _)| top.to_owned());
    if let Some(first) = files.first().and_then(top)
        && files.iter().all(|file| top(file).as_ref() == Some(&first))
    {
        for file in &mut files {
            file.name.drain(..=first.len());
        }
    }
    files.sort_by(|a, b| a.name.cmp(&b.name));
    assemble(&files).map_err(|error| error.to_string())
}

fn is_of_digest(bytes: &[u8], digest: &str) -> Result<(), String> {
    let found = format!("sha256:{}", sha256(bytes));
    match found == digest {
        true => Ok(()),
        false => {
            Err(format!("it has the digest {found}, and {digest} was expected: it is not installed"))
        }
    }
}

fn is_digest(text: &str) -> bool {
    text.strip_prefix("sha256:").is_some_and(crate::lock::is_digest)
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn a_reference_says_where_an_artifact_is() {
        let digest = format!("sha256:{}", "a1".repeat(32));
        for (text, base) in [
            ("ghcr.io/a/b:v1.0", "https://ghcr.io/v2/a/b"),
            ("ghcr.io/a/b", "https://ghcr.io/v2/a/b"),
            (&format!("localhost:5000/b@{digest}"), "http://localhost:5000/v2/b"),
            ("127.0.0.1:5000/b/c:1", "http://127.0.0.1:5000/v2/b/c"),
            ("docker.io/b:1", "https://registry-1.docker.io/v2/library/b"),
            ("docker.io/a/b:1", "https://registry-1.docker.io/v2/a/b"),
        ] {
            let reference = Reference::parse(text).unwrap();
            assert_eq!((reference.to_string(), reference.base()), (text.to_owned(), base.to_owned()));
        }
        let both = Reference::parse(&format!("ghcr.io/a/b:1@{digest}")).unwrap();
        assert_eq!(both.version.as_ref(), Some(&digest));
        for wrong in [
            "",
            "a",
            "a/b",
            "ghcr.io/",
            "ghcr.io/A",
            "ghcr.io/a//b",
            "ghcr.io/../b",
            "ghcr.io/a:",
            "ghcr.io/a:-x",
            "ghcr.io/a@sha256:00",
            "ghcr.io/a@md5:00",
            "ghcr.io:x/a",
            "u@ghcr.io/a",
            "ghcr.io/a?b",
        ] {
            assert_eq!(Reference::parse(wrong), None, "{wrong}");
        }
    }

    #[test]
    fn the_layer_with_the_content_is_found() {
        let layer = |kind: &str| json!({"mediaType": kind, "digest": "sha256:x"});
        let titled = json!({"mediaType": "application/octet-stream", "digest": "sha256:x", "annotations": {"org.opencontainers.image.title": "w.mcpb"}});
        let chosen = |config: &str, layers: serde_json::Value| {
            let manifest = json!({"config": layer(config), "layers": layers});
            let manifest: Manifest = serde_json::from_value(manifest).unwrap();
            carrier(&manifest).map(|layer| layer.media_type.clone())
        };
        let (empty, tar) =
            ("application/vnd.oci.empty.v1+json", "application/vnd.oci.image.layer.v1.tar+gzip");
        let bundle = "application/vnd.mcp.bundle.v0.3+zip";
        assert_eq!(chosen(empty, json!([layer(bundle)])).unwrap(), bundle);
        assert_eq!(chosen(IMAGES[0], json!([layer(tar), layer(bundle)])).unwrap(), bundle);
        assert_eq!(chosen(empty, json!([titled])).unwrap(), "application/octet-stream");
        assert_eq!(chosen(empty, json!([layer(tar)])).unwrap(), tar);
        for (config, layers, words) in [
            (IMAGES[0], json!([layer(tar)]), "container image"),
            (IMAGES[1], json!([layer(tar), layer(tar)]), "container image"),
            (empty, json!([layer(tar), layer(tar)]), "no folder"),
            (empty, json!([layer("text/plain")]), "text/plain"),
            (empty, json!([]), "nothing"),
            (empty, json!([layer(bundle), layer(bundle)]), "several"),
        ] {
            let error = chosen(config, layers).unwrap_err();
            assert!(error.contains(words), "{error}");
        }
    }
}
