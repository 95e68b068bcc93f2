//! The sources of packages: fetches packages and describes them.

use std::collections::BTreeMap;
use std::path::Path;

use orla_confine::placed;
use orla_packages::archive::{Archive, MAX_BYTES, pack};
use orla_packages::crates::Index;
use orla_packages::environment::{Launch, Requirement};
use orla_packages::lock::{Entry, PackageKind};
use orla_packages::oci::{self, Reference};
use orla_packages::openapi::OpenApi;
use orla_packages::platform::Platform;
use orla_packages::registry::{BundleAt, Install, OFFICIAL, Registry};
use orla_packages::signature::Signer;
use orla_packages::source::Source;
use orla_packages::store::{Presence, Store, StoreError, read_bounded};
use orla_packages::{Fetch, sha256};
use orla_providers::openapi::{self, Location};

use super::environments::Program;
use super::fetch::{Http, permitted};
use super::{git, signatures};
use crate::config::{Config, reason};
use crate::packages::content::{Content, split_option, told};
use crate::packages::signatures::Demand;
use crate::packages::{place, project_of};
use crate::{Failure, render};

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
    /// Who signed it, if its signature was verified.
    pub(super) signer: Option<Signer>,
    /// Whether its source gave it now. Otherwise, it is the installed package.
    pub(super) was_fetched: bool,
    /// The arguments that its program needs and only the user knows.
    pub(super) needed: Vec<String>,
}

impl Origin {
    /// The origin of a package of the lock.
    ///
    /// # Errors
    ///
    /// Returns an error if the source was edited and is no longer valid.
    pub(super) fn of(entry: &Entry) -> Result<Self, Failure> {
        let source = Source::parse(&entry.source)?;
        Ok(Self { source, registry: entry.registry.clone() })
    }

    /// Returns whether it was on this machine, and is not any longer.
    pub(super) fn is_gone(&self, config: &Config) -> bool {
        match &self.source {
            Source::Folder(path) | Source::BundleFile(path) | Source::OpenApiFile(path) => {
                !project_of(config).join(path).exists()
            }
            _ => false,
        }
    }

    /// Returns whether it is a file or a directory of this machine.
    pub(super) fn is_local(&self) -> bool {
        match &self.source {
            Source::Folder(_) | Source::BundleFile(_) | Source::OpenApiFile(_) => true,
            // A text without a scheme and a host is a path.
            Source::Git { url, .. } => !url.contains(':') || url.starts_with("file://"),
            _ => false,
        }
    }

    /// Fetches the current package from the source, and checks it.
    ///
    /// # Errors
    ///
    /// Returns an error if the package cannot be fetched, or is not a valid package.
    pub(super) async fn fetch(&self, config: &Config) -> Result<Fetched, Failure> {
        self.fetch_requiring(config, &[]).await
    }

    /// Fetches the package with exactly the requirements of the lock, and checks its signature if the
    /// configuration demands it.
    async fn fetch_requiring(&self, config: &Config, locked: &[String]) -> Result<Fetched, Failure> {
        render::note(&format!("fetching {}", self.source));
        let project = project_of(config);
        let at = |path: &str, why: &dyn std::fmt::Display| Failure::failed(format!("{path}: {why}"));
        let launch = Launch::default();
        let (mut registry, mut resolved, mut listed) = (None, None, None);
        let (mut requires, mut needed, mut missing) = (Vec::new(), Vec::new(), Vec::new());
        let bytes = match &self.source {
            Source::Folder(path) => {
                let folder = project.join(path);
                if !folder.is_dir() {
                    return Err(at(path, &"no such directory"));
                }
                pack(&folder).map_err(|error| at(path, &error))?
            }
            Source::BundleFile(path) => {
                read_bounded(&project.join(path)).map_err(|error| at(path, &reason(&error)))?
            }
            Source::BundleUrl(url) => get(url, None).await?,
            Source::OpenApiFile(path) => {
                let read = openapi::bundled(&Location::File(project.join(path))).await;
                let (document, unread) = read.map_err(|error| at(path, &error.problem))?;
                missing = told(&unread);
                OpenApi { url: None, document }.archive().map_err(|why| at(path, &why))?
            }
            Source::OpenApiUrl(url) => {
                let (document, unread) = openapi::bundled(&Location::Url(url.clone())).await?;
                missing = told(&unread);
                OpenApi { url: Some(url.clone()), document }.archive().map_err(Failure::failed)?
            }
            Source::Git { url, revision } => {
                let fetched = git::fetch(&self.place(url, config), revision.as_deref());
                let (bytes, commit) = fetched.map_err(|why| at(url, &why))?;
                resolved = Some(commit);
                bytes
            }
            Source::Oci(reference) => {
                let pulled = oci::pull(&Http, reference, None).await;
                let artifact = pulled.map_err(|why| at(&self.source.to_string(), &why))?;
                resolved = Some(artifact.digest);
                artifact.archive
            }
            Source::Npm { .. } | Source::Pypi { .. } | Source::Cargo { .. } => {
                let (bytes, found) = program(&self.source, &launch, locked).await?;
                requires = found;
                bytes
            }
            Source::Registry { name, version } => {
                let asked = self.registry.as_deref().unwrap_or(OFFICIAL);
                let asked = Registry::new(asked, &Http)?;
                let server = asked.server(name, version.as_deref()).await?;
                registry = Some(asked.url().to_owned());
                match server.install().map_err(Failure::failed)? {
                    Install::Bundle(bundles) => {
                        let (url, bytes) = fitting(name, bundles, asked.url()).await?;
                        resolved = Some(url);
                        bytes
                    }
                    Install::Program(source, launch) => {
                        let (bytes, found) = program(&source, &launch, locked).await?;
                        (requires, resolved) = (found, Some(source.to_string()));
                        (needed, listed) = (launch.needed, Some(source));
                        bytes
                    }
                    Install::Artifact(reference) => {
                        let pulled = oci::pull(&Http, &reference, Some(asked.url())).await;
                        let artifact = pulled.map_err(|why| at(&format!("oci:{reference}"), &why))?;
                        let exact = Reference { version: Some(artifact.digest), ..reference };
                        resolved = Some(format!("oci:{exact}"));
                        artifact.archive
                    }
                    Install::Remote(remote) => {
                        permitted(&remote.url, asked.url()).await?;
                        remote.archive().map_err(Failure::failed)?
                    }
                }
            }
        };
        let shown = self.source.to_string();
        let mut signer = None;
        if let Some(demand) = Demand::of(&config.packages, &self.source, listed.as_ref()) {
            let program = listed.as_ref().unwrap_or(&self.source);
            signer = signatures::signer(program, &requires, config).await?;
            demand.check(signer.as_ref()).map_err(|why| at(&shown, &why))?;
        }
        let archive = Archive::read(&bytes).map_err(|error| at(&shown, &error))?;
        let content = Content::read(&archive, self.place_name());
        let mut content = content.map_err(|error| at(&shown, &error))?;
        content.warnings.splice(0..0, missing);
        if content.kind == PackageKind::OpenApi && !self.source.is_openapi() {
            let why = "it has an OpenAPI document that orla bundled: add the document itself, by its URL or its file";
            return Err(at(&shown, &why));
        }
        if let Source::OpenApiUrl(url) = &self.source {
            for server in &content.urls {
                permitted(server, url).await.map_err(|error| at(&shown, &error))?;
            }
        }
        let sha256 = sha256(&bytes);
        Ok(Fetched {
            sha256,
            bytes,
            content,
            registry,
            resolved,
            requires,
            signer,
            was_fetched: true,
            needed,
        })
    }

    /// Returns the current package at the source. Fetches an archive only if the source reports nothing
    /// else.
    ///
    /// # Errors
    ///
    /// Returns an error if the source reports nothing.
    pub(super) async fn newest(&self, entry: &Entry, config: &Config) -> Result<Newest, Failure> {
        let same = |version: String| Newest { is_other: version != entry.version, version };
        if self.is_gone(config) {
            return Ok(Newest { version: "gone".to_owned(), is_other: false });
        }
        let failed = |why: String| Failure::failed(format!("{}: {why}", self.source));
        let launch = Launch::default();
        match &self.source {
            Source::Registry { name, version } => {
                let registry = Registry::new(self.registry.as_deref().unwrap_or(OFFICIAL), &Http)?;
                let server = registry.server(name, version.as_deref()).await?;
                // The same version may have another archive, or another place.
                let is_changed = match server.install() {
                    Ok(Install::Bundle(all)) => all.iter().all(|bundle| bundle.sha256 != entry.sha256),
                    Ok(Install::Remote(remote)) => {
                        remote.archive().is_ok_and(|bytes| sha256(&bytes) != entry.sha256)
                    }
                    _ => false,
                };
                let newest = same(server.version);
                return Ok(Newest { is_other: newest.is_other || is_changed, ..newest });
            }
            Source::Npm { name, version } => {
                let program =
                    Program { name, version: version.as_deref(), launch: &launch, locked: &[] };
                return program.newest_by_npm().map(same).map_err(failed);
            }
            Source::Pypi { name, version } => {
                let program =
                    Program { name, version: version.as_deref(), launch: &launch, locked: &[] };
                return program.newest_by_pip().map(same).map_err(failed);
            }
            Source::Cargo { name, version } => {
                let newest = index().map_err(failed)?.newest(name, version.as_deref()).await;
                return newest.map(same).map_err(failed);
            }
            Source::Git { url, revision } => {
                let tip = git::tip(&self.place(url, config), revision.as_deref()).map_err(failed)?;
                if tip.is_some() && tip == entry.resolved {
                    return Ok(same(entry.version.clone()));
                }
            }
            Source::Folder(_)
            | Source::BundleFile(_)
            | Source::BundleUrl(_)
            | Source::OpenApiFile(_)
            | Source::OpenApiUrl(_)
            | Source::Oci(_) => {}
        }
        let now = self.fetch(config).await?;
        Ok(Newest { is_other: now.sha256 != entry.sha256, version: now.content.version })
    }

    /// Returns the name of the package at the source, if the source does not report one itself.
    fn place_name(&self) -> &str {
        let path = match &self.source {
            Source::Folder(path) | Source::Git { url: path, .. } => path,
            Source::Oci(reference) => &reference.name,
            _ => return "",
        };
        let name = path.trim_end_matches('/').rsplit('/').next().unwrap_or_default();
        name.trim_end_matches(".git")
    }

    /// Returns the URL of a repository: a path is relative to the project.
    fn place(&self, url: &str, config: &Config) -> String {
        match url.starts_with('.') || !url.contains(':') {
            true => project_of(config).join(url).to_string_lossy().into_owned(),
            false => url.to_owned(),
        }
    }
}

/// The current package at a source.
#[derive(Clone)]
pub(super) struct Newest {
    pub(super) version: String,
    /// Whether it differs from the locked package.
    pub(super) is_other: bool,
}

impl Fetched {
    /// Returns the lock entry of the package. Its tools are not known yet, and no permissions are
    /// granted.
    pub(super) fn entry(&self, name: String, source: String) -> Entry {
        Entry {
            name,
            source,
            registry: self.registry.clone(),
            resolved: self.resolved.clone(),
            signed_by: self.signer.as_ref().map(|signer| signer.name.clone()),
            requires: self.requires.clone(),
            kind: self.content.kind,
            version: self.content.version.clone(),
            sha256: self.sha256.clone(),
            tools_digest: String::new(),
            tools: BTreeMap::new(),
            arguments: Vec::new(),
            permissions: Vec::new(),
        }
    }

    /// Checks that a package gets arguments if its program needs some, and only then if it is a program.
    ///
    /// # Errors
    ///
    /// Returns an error that says which arguments are needed, or that there is no program.
    pub(super) fn check_arguments(&self, entry: &Entry) -> Result<(), Failure> {
        let Entry { name, source, kind, arguments, .. } = entry;
        if arguments.is_empty() && !self.needed.is_empty() {
            let needed = self.needed.join(", ");
            return Err(Failure::failed(format!(
                "{name} needs arguments ({needed}): `orla add {source} -- ARGUMENT…` gives them"
            )));
        }
        if *kind != PackageKind::Bundle && !arguments.is_empty() {
            let kind = kind.word();
            return Err(Failure::usage(format!(
                "{name}: arguments are for the program of a bundle, npm, PyPI or a registry of crates, and this package is of the kind {kind}"
            )));
        }
        Ok(())
    }

    /// Returns the installed package in the form of a fetched one.
    ///
    /// # Errors
    ///
    /// Returns an error if the package is not installed.
    pub(super) fn installed(store: &Store, config: &Config, entry: &Entry) -> Result<Self, Failure> {
        if store.presence(entry) != Presence::Installed {
            return Err(Failure::failed("it is not installed: run `orla sync`"));
        }
        let bytes = match store.cached(&entry.sha256) {
            Some(bytes) => bytes,
            // Its content is the same; only an archive that orla has packed has the same digest, too.
            None => pack(&store.directory(entry))?,
        };
        let archive = Archive::read(&bytes)?;
        let content = Content::read(&archive, &entry.name).map_err(Failure::failed)?;
        Ok(Self {
            content,
            bytes,
            sha256: entry.sha256.clone(),
            registry: entry.registry.clone(),
            resolved: entry.resolved.clone(),
            requires: entry.requires.clone(),
            signer: store.signer(&entry.sha256, &config.packages.root_digest()),
            was_fetched: false,
            needed: Vec::new(),
        })
    }
}

/// Returns the first bundle of a registry whose manifest is for this system, and its URL. If there is
/// only one bundle, it is returned unchecked, and its system is checked when it is read.
///
/// # Errors
///
/// Returns an error if a bundle cannot be fetched or has another digest, or if none is for this system.
async fn fitting(
    name: &str,
    bundles: Vec<BundleAt>,
    registry: &str,
) -> Result<(String, Vec<u8>), Failure> {
    let (count, mut refused) = (bundles.len(), Vec::new());
    for bundle in bundles {
        let bytes = get(&bundle.url, Some(registry)).await?;
        let found = sha256(&bytes);
        if found != bundle.sha256 {
            return Err(Failure::failed(format!(
                "{name}: its bundle has the SHA-256 {found}, and the registry says {}: it is not installed",
                bundle.sha256
            )));
        }
        let archive = Archive::read(&bytes).map_err(|error| error.to_string());
        match archive.and_then(|archive| Content::read(&archive, name)) {
            Err(why) if count > 1 => refused.push(format!("{}: {why}", bundle.url)),
            _ => return Ok((bundle.url, bytes)),
        }
    }
    let what = format!("{name} has no bundle for {}", Platform::HERE);
    Err(Failure::failed_with([vec![what], refused].concat()))
}

/// Returns the archive that the lock names, and its signer if the configuration demands one.
///
/// # Errors
///
/// Returns an error if the archive cannot be fetched, or has another digest or another signer.
pub(super) async fn fetch_locked(
    entry: &Entry,
    config: &Config,
) -> Result<(Vec<u8>, Option<Signer>), Failure> {
    let demand = Demand::of_locked(&config.packages, entry);
    if let Some(demand) = &demand {
        demand.check_lock(&entry.name).map_err(Failure::failed)?;
    }
    let (bytes, signer) = fetch_resolved(entry, config).await?;
    let found = sha256(&bytes);
    if found != entry.sha256 {
        return Err(StoreError::Hash { wanted: entry.sha256.clone(), found }.into());
    }
    if let Some(demand) = demand {
        demand.check(signer.as_ref()).map_err(Failure::failed)?;
    }
    Ok((bytes, signer))
}

async fn fetch_resolved(entry: &Entry, config: &Config) -> Result<(Vec<u8>, Option<Signer>), Failure> {
    let mut origin = Origin::of(entry)?;
    // Uses exactly the resolution of that time, even if the source reports a newer version now.
    match (&mut origin.source, &entry.resolved) {
        (Source::Git { revision, .. }, Some(commit)) => *revision = Some(commit.clone()),
        (Source::Oci(reference), Some(digest)) => reference.version = Some(digest.clone()),
        (Source::Registry { .. }, Some(exact)) if exact.starts_with("oci:") => {
            let reference = exact.strip_prefix("oci:").and_then(Reference::parse);
            let reference =
                reference.ok_or_else(|| Failure::failed(format!("{exact} is not an artifact")))?;
            let pulled = oci::pull(&Http, &reference, entry.registry.as_deref()).await;
            return pulled.map(|artifact| (artifact.archive, None)).map_err(Failure::failed);
        }
        (Source::Registry { .. }, Some(url)) if entry.requires.is_empty() => {
            return Ok((get(url, entry.registry.as_deref()).await?, None));
        }
        (Source::Registry { version, .. }, _) => *version = Some(entry.version.clone()),
        _ => {}
    }
    let fetched = origin.fetch_requiring(config, &entry.requires).await?;
    Ok((fetched.bytes, fetched.signer))
}

/// Returns the archive of a program of npm, PyPI or a registry of crates, and its requirements.
async fn program(
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
        Source::Cargo { name, version } => {
            of_crate(name, version.as_deref(), launch, locked.first()).await
        }
        _ => Err("it is no program of npm, PyPI or a registry of crates".to_owned()),
    };
    made.map_err(|why| Failure::failed(format!("{source}: {why}")))
}

async fn of_crate(
    name: &str,
    version: Option<&str>,
    launch: &Launch,
    locked: Option<&String>,
) -> Result<(Vec<u8>, Vec<String>), String> {
    let read = |text: &String| {
        let wrong = || format!("the lock requires {text:?}, which is not {name}");
        Requirement::parse(text).filter(|one| one.name == name).ok_or_else(wrong)
    };
    let locked = locked.map(read).transpose()?;
    let (bytes, requirement) = index()?.archive(name, version, locked, launch).await?;
    Ok((bytes, vec![requirement.to_string()]))
}

/// Returns the index of crates that the environment names.
///
/// # Errors
///
/// Returns an error if it names none.
pub(super) fn index() -> Result<Index<'static>, String> {
    Index::of_cargo(|name| std::env::var(name).ok().filter(|value| !value.is_empty()), &Http)
}

async fn get(url: &str, named_by: Option<&str>) -> Result<Vec<u8>, Failure> {
    let max = usize::try_from(MAX_BYTES).unwrap_or(usize::MAX);
    Ok(Http.get(url, named_by, max).await?)
}

/// Returns a source as the lock has it: a path below the project is relative to it.
///
/// # Errors
///
/// Returns an error if there is no current directory.
pub(super) fn portable(source: Source, config: &Config) -> Result<Source, Failure> {
    let place = |path: String| -> Result<String, Failure> {
        let whole = std::path::absolute(&path)
            .map_err(|error| Failure::failed(format!("{path}: {}", reason(&error))))?;
        let below = below_project(&whole, config);
        Ok(below.unwrap_or_else(|| whole.to_string_lossy().into_owned()))
    };
    Ok(match source {
        Source::Folder(path) => Source::folder(place(path)?),
        Source::BundleFile(path) => Source::BundleFile(place(path)?),
        Source::OpenApiFile(path) => Source::OpenApiFile(place(path)?),
        Source::Git { url, revision } => {
            let local = url.strip_prefix("file://").filter(|path| path.starts_with('/'));
            let url = match local {
                Some(path) => below_project(Path::new(path), config).unwrap_or(url),
                // A text without a scheme and a host is a path.
                None if !url.contains(':') => place(url)?,
                None => url,
            };
            Source::Git { url, revision }
        }
        other => other,
    })
}

/// Returns a permission as the lock has it: a path below the project is relative to it.
pub(super) fn portable_word(word: &str, config: &Config) -> String {
    place::portable_word(word, &project_of(config))
}

/// Returns a permission with an absolute path, equal for different notations of a path below the project.
pub(super) fn whole_word(word: &str, config: &Config) -> String {
    let project = project_of(config);
    placed(&portable_word(&placed(word, &project), config), &project)
}

/// Returns an argument as the lock has it: a path below the project is relative to it.
pub(super) fn portable_argument(argument: &str, config: &Config) -> String {
    let (option, value) = split_option(argument);
    let path = Some(Path::new(value)).filter(|path| path.is_absolute());
    match path.and_then(|path| below_project(path, config)) {
        Some(below) => format!("{option}{below}"),
        None => argument.to_owned(),
    }
}

/// Returns a path below the project, from there: `./…`. `None` if it is elsewhere.
fn below_project(path: &Path, config: &Config) -> Option<String> {
    place::below_project(path, &project_of(config))
}
