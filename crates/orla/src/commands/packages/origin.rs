//! Where packages come from: fetches them and says what they are.

use std::path::PathBuf;

use orla_packages::archive::{Archive, MAX_BYTES, pack};
use orla_packages::environment::Launch;
use orla_packages::lock::Entry;
use orla_packages::registry::{Install, OFFICIAL, Registry};
use orla_packages::source::Source;
use orla_packages::store::{Presence, Store, read_bounded};
use orla_packages::{Fetch, sha256};

use super::environments::Program;
use super::fetch::Http;
use super::git;
use crate::Failure;
use crate::config::Config;
use crate::packages::content::Content;
use crate::packages::project_of;

/// Where a package comes from.
pub(super) struct Origin {
    pub(super) source: Source,
    /// The registry to ask, if it is a name there.
    pub(super) registry: Option<String>,
}

/// An archive that was fetched and checked.
pub(super) struct Fetched {
    pub(super) bytes: Vec<u8>,
    pub(super) sha256: String,
    pub(super) content: Content,
    /// As in the lock.
    pub(super) registry: Option<String>,
    pub(super) resolved: Option<String>,
    pub(super) requires: Vec<String>,
}

impl Origin {
    /// The origin of a package of the lock.
    ///
    /// # Errors
    /// Its source was edited, and is none.
    pub(super) fn of(entry: &Entry, config: &Config) -> Result<Self, Failure> {
        let project = project_of(config);
        let source = Source::parse(&entry.source, |path| project.join(path).is_dir());
        let source = source.map_err(|error| Failure::failed(error.to_string()))?;
        Ok(Self { source, registry: entry.registry.clone() })
    }

    /// Whether it was on this machine, and is not any longer.
    pub(super) fn is_gone(&self, config: &Config) -> bool {
        match &self.source {
            Source::Folder(path) | Source::BundleFile(path) => !project_of(config).join(path).exists(),
            _ => false,
        }
    }

    /// Fetches what is there now, and checks it.
    ///
    /// # Errors
    /// It cannot be fetched, or is not what a package is.
    pub(super) async fn fetch(&self, config: &Config) -> Result<Fetched, Failure> {
        self.fetch_requiring(config, &[]).await
    }

    /// The same, of exactly what the lock requires.
    async fn fetch_requiring(&self, config: &Config, locked: &[String]) -> Result<Fetched, Failure> {
        let project = project_of(config);
        let at = |path: &str, why: &dyn std::fmt::Display| Failure::failed(format!("{path}: {why}"));
        let launch = Launch::default();
        let (mut registry, mut resolved, mut requires) = (None, None, Vec::new());
        let bytes = match &self.source {
            Source::Folder(path) => {
                let folder = project.join(path);
                if !folder.is_dir() {
                    return Err(at(path, &"it is no directory"));
                }
                pack(&folder).map_err(|error| at(path, &error))?
            }
            Source::BundleFile(path) => {
                read_bounded(&project.join(path)).map_err(|error| at(path, &error))?
            }
            Source::BundleUrl(url) => get(url, None).await?,
            Source::Git { url, revision } => {
                let place = if url.starts_with('.') {
                    project.join(url).to_string_lossy().into_owned()
                } else {
                    url.clone()
                };
                let fetched = git::fetch(&place, revision.as_deref());
                let (bytes, commit) = fetched.map_err(|why| at(url, &why))?;
                resolved = Some(commit);
                bytes
            }
            Source::Npm { .. } | Source::Pypi { .. } => {
                let (bytes, found) = program(&self.source, &launch, locked)?;
                requires = found;
                bytes
            }
            Source::Registry { name, version } => {
                let asked = self.registry.as_deref().unwrap_or(OFFICIAL);
                let asked =
                    Registry::new(asked, &Http).map_err(|error| Failure::failed(error.to_string()))?;
                let server = asked.server(name, version.as_deref()).await;
                let server = server.map_err(|error| Failure::failed(error.to_string()))?;
                registry = Some(asked.url().to_owned());
                match server.install().map_err(Failure::failed)? {
                    Install::Bundle(bundle) => {
                        let bytes = get(&bundle.url, Some(asked.url())).await?;
                        let found = sha256(&bytes);
                        if found != bundle.sha256 {
                            return Err(Failure::failed(format!(
                                "{name}: its bundle has the SHA-256 {found}, and the registry says {}: it is not installed",
                                bundle.sha256
                            )));
                        }
                        resolved = Some(bundle.url);
                        bytes
                    }
                    Install::Program(source, launch) => {
                        let (bytes, found) = program(&source, &launch, locked)?;
                        (requires, resolved) = (found, Some(source.to_string()));
                        bytes
                    }
                }
            }
        };
        let shown = self.source.to_string();
        let archive = Archive::read(&bytes).map_err(|error| at(&shown, &error))?;
        let content = Content::read(&archive).map_err(|error| at(&shown, &error))?;
        Ok(Fetched { sha256: sha256(&bytes), bytes, content, registry, resolved, requires })
    }

    /// What is at the source now, for people.
    pub(super) async fn newest(&self, entry: &Entry, config: &Config) -> String {
        if self.is_gone(config) {
            return "gone".to_owned();
        }
        let now = match &self.source {
            Source::Registry { name, version } => {
                let registry = Registry::new(self.registry.as_deref().unwrap_or(OFFICIAL), &Http);
                match registry {
                    Ok(registry) => match registry.server(name, version.as_deref()).await {
                        Ok(server) => return server.version,
                        Err(error) => return error.to_string(),
                    },
                    Err(error) => return error.to_string(),
                }
            }
            _ => self.fetch(config).await,
        };
        match now {
            Ok(now) if now.sha256 == entry.sha256 => now.content.version,
            Ok(now) => format!("{} (changed)", now.content.version),
            Err(failure) => failure.into_lines().join("; "),
        }
    }
}

impl Fetched {
    /// What is installed, as if it had been fetched.
    ///
    /// # Errors
    /// It is not installed.
    pub(super) fn installed(store: &Store, entry: &Entry) -> Result<Self, Failure> {
        if store.presence(entry) != Presence::Installed {
            return Err(Failure::failed("it is not installed: run `orla sync`"));
        }
        let bytes = match store.cached(&entry.sha256) {
            Some(bytes) => bytes,
            // Its content is the same; only an archive that orla has packed has the same digest, too.
            None => pack(&store.directory(entry)).map_err(|error| Failure::failed(error.to_string()))?,
        };
        let archive = Archive::read(&bytes).map_err(|error| Failure::failed(error.to_string()))?;
        let content = Content::read(&archive).map_err(Failure::failed)?;
        Ok(Self {
            content,
            bytes,
            sha256: entry.sha256.clone(),
            registry: entry.registry.clone(),
            resolved: entry.resolved.clone(),
            requires: entry.requires.clone(),
        })
    }
}

/// The archive that the lock names.
///
/// # Errors
/// It cannot be fetched. Whether it is the one that was locked is seen when it is installed.
pub(super) async fn fetch_locked(entry: &Entry, config: &Config) -> Result<Vec<u8>, Failure> {
    let mut origin = Origin::of(entry, config)?;
    // Exactly what was resolved then, also where the source says something newer now.
    match (&mut origin.source, &entry.resolved) {
        (Source::Git { revision, .. }, Some(commit)) => *revision = Some(commit.clone()),
        (Source::Registry { .. }, Some(url)) if entry.requires.is_empty() => {
            return get(url, entry.registry.as_deref()).await;
        }
        (Source::Registry { version, .. }, _) => *version = Some(entry.version.clone()),
        _ => {}
    }
    Ok(origin.fetch_requiring(config, &entry.requires).await?.bytes)
}

/// The bundle of a program of npm or PyPI, and what it requires.
fn program(
    source: &Source,
    launch: &Launch,
    locked: &[String],
) -> Result<(Vec<u8>, Vec<String>), Failure> {
    let made = match source {
        Source::Npm { name, version } => {
            Program { name, version: version.as_deref(), launch, locked }.by_npm()
        }
        Source::Pypi { name, version } => {
            Program { name, version: version.as_deref(), launch, locked }.by_pip()
        }
        _ => Err("it is no program of npm or PyPI".to_owned()),
    };
    made.map_err(|why| Failure::failed(format!("{source}: {why}")))
}

async fn get(url: &str, named_by: Option<&str>) -> Result<Vec<u8>, Failure> {
    let max = usize::try_from(MAX_BYTES).unwrap_or(usize::MAX);
    Http.get(url, named_by, max).await.map_err(|error| Failure::failed(error.to_string()))
}

/// A source as the lock has it: a path below the project is relative to it.
///
/// # Errors
/// There is no current directory.
pub(super) fn portable(source: Source, config: &Config) -> Result<Source, Failure> {
    let project = project_of(config);
    let place = |path: String| -> Result<String, Failure> {
        let unusable = |error: std::io::Error| Failure::failed(format!("{path}: {error}"));
        let whole = std::path::absolute(&path).map_err(unusable)?;
        let project = project.components().as_path();
        Ok(match whole.strip_prefix(project) {
            Ok(below) => PathBuf::from(".").join(below).to_string_lossy().into_owned(),
            Err(_) => whole.to_string_lossy().into_owned(),
        })
    };
    Ok(match source {
        Source::Folder(path) => Source::Folder(place(path)?),
        Source::BundleFile(path) => Source::BundleFile(place(path)?),
        Source::Git { url, revision } if url.starts_with(['.', '/']) => {
            Source::Git { url: place(url)?, revision }
        }
        other => other,
    })
}
