//! `orla add`, `remove`, `update`, `outdated`, `sync`, and `orla search --registry`.

mod fetch;
mod learn;

use std::collections::BTreeSet;
use std::io::IsTerminal;
use std::path::{Path, PathBuf};

use orla_packages::archive::{Archive, MAX_BYTES, pack};
use orla_packages::lock::{Entry, FILE};
use orla_packages::registry::{OFFICIAL, Registry};
use orla_packages::source::Source as PackageSource;
use orla_packages::store::{Store, StoreError, Transaction, read_bounded};
use orla_packages::tools::{self, Tool};
use orla_packages::{Fetch, is_name, name_of, sha256};

use crate::config::{Config, Source};
use crate::packages::content::{self, Content};
use crate::packages::{project_of, store_of};
use crate::{Failure, cli, render};
use fetch::Http;
use learn::tools_of;

/// `orla add SOURCE`.
pub(crate) fn add(add: &cli::Add, source: &Source) -> Result<(), Failure> {
    let config = load(source)?;
    super::server_runtime()?.block_on(added(add, &config))
}

async fn added(add: &cli::Add, config: &Config) -> Result<(), Failure> {
    let store = store_of(config);
    let allowed = allowed(&add.consent.allow)?;
    let parsed = PackageSource::parse(&add.source, |path| Path::new(path).is_dir());
    let parsed = parsed.map_err(|error| Failure::failed(error.to_string()))?;
    let origin = Origin { source: portable(parsed, config)?, registry: add.registry.clone() };
    let archive = origin.fetch(config).await?;
    let (content, bytes) = (&archive.content, &archive.bytes);
    let name = add.name.clone().unwrap_or_else(|| name_of(&content.name));
    if !is_name(&name) {
        let what =
            format!("{name:?} is no name: up to 48 letters, digits, `_` and `-` are (--name NAME)");
        return Err(Failure::failed(what));
    }
    let source = origin.source.to_string();
    let lock = store.lock().map_err(|error| failed(&error))?;
    let known = lock.get(&name);
    if let Some(known) = known.filter(|known| known.source != source) {
        return Err(Failure::failed(format!(
            "{name} is there already, from {}: choose another name (--name NAME), or `orla remove {name}` first",
            known.source
        )));
    }
    if config.servers.iter().any(|server| server.value.name == name) {
        return Err(Failure::failed(format!(
            "{name} is in mcpServers already: choose another name (--name NAME)"
        )));
    }
    let asked =
        Asked { name: &name, content, origin: &origin, sha256: &archive.sha256, allowed: &allowed };
    let permissions = asked.consent(&add.consent)?;
    let mut entry = Entry {
        name: name.clone(),
        source,
        registry: archive.registry.clone(),
        resolved: archive.resolved.clone(),
        kind: content.kind,
        version: content.version.clone(),
        sha256: archive.sha256.clone(),
        tools_digest: String::new(),
        permissions,
    };
    let transaction = begin(&store)?;
    let directory = transaction.install(&name, &entry.sha256, bytes).map_err(|error| failed(&error))?;
    let tools = match tools_of(config, &entry, directory).await {
        Ok(tools) => tools,
        Err(failure) => {
            transaction.abandon().map_err(|error| failed(&error))?;
            return Err(failure);
        }
    };
    entry.tools_digest = tools::digest(&tools);
    // As it is now: another command may have changed it while this one asked.
    let mut lock = store.lock().map_err(|error| failed(&error))?;
    accept(&transaction, &entry, &tools)?;
    lock.put(entry.clone());
    transaction.commit(&lock).map_err(|error| failed(&error))?;
    store.keep(bytes);
    let names: Vec<&str> =
        tools.iter().map(|tool| tool.name.as_str()).filter(|name| !name.is_empty()).collect();
    let serves = if names.is_empty() { String::new() } else { format!(", with {}", names.join(", ")) };
    render::note(&format!(
        "added {name} {}{serves}; a running server takes it up on SIGHUP",
        entry.version
    ));
    Ok(())
}

/// `orla remove NAME`.
pub(crate) fn remove(name: &str, source: &Source) -> Result<(), Failure> {
    let config = load(source)?;
    let store = store_of(&config);
    let unknown = || Failure::failed(format!("no package is named {name} in {FILE}"));
    if store.lock().map_err(|error| failed(&error))?.get(name).is_none() {
        return Err(unknown());
    }
    let transaction = begin(&store)?;
    let mut lock = store.lock().map_err(|error| failed(&error))?;
    if !lock.remove(name) {
        return Err(unknown());
    }
    transaction.commit(&lock).map_err(|error| failed(&error))?;
    render::note(&format!("removed {name}"));
    Ok(())
}

/// `orla update [NAME]`.
pub(crate) fn update(update: &cli::Update, source: &Source) -> Result<(), Failure> {
    let config = load(source)?;
    super::server_runtime()?.block_on(updated(update, &config))
}

async fn updated(update: &cli::Update, config: &Config) -> Result<(), Failure> {
    let store = store_of(config);
    let lock = store.lock().map_err(|error| failed(&error))?;
    if let Some(name) = &update.name
        && lock.get(name).is_none()
    {
        return Err(Failure::failed(format!("no package is named {name} in {FILE}")));
    }
    let allowed = allowed(&update.consent.allow)?;
    let chosen = lock
        .entries()
        .iter()
        .filter(|entry| update.name.as_ref().is_none_or(|name| *name == entry.name));
    let mut failures = Vec::new();
    for entry in chosen {
        // One that cannot be updated does not keep the others from it.
        if let Err(failure) = update_one(update, config, &store, entry, &allowed).await {
            failures
                .extend(failure.into_lines().into_iter().map(|line| format!("{}: {line}", entry.name)));
        }
    }
    if failures.is_empty() { Ok(()) } else { Err(Failure::failed_with(failures)) }
}

async fn update_one(
    update: &cli::Update,
    config: &Config,
    store: &Store,
    old: &Entry,
    allowed: &BTreeSet<String>,
) -> Result<(), Failure> {
    let mut origin = Origin::of(old, config)?;
    if update.registry.is_some() {
        origin.registry.clone_from(&update.registry);
    }
    let archive = match origin.is_gone(config) {
        // Its tools may be other ones all the same.
        true => {
            render::note(&format!(
                "{}: {} is no longer there; what is installed stays",
                old.name, old.source
            ));
            Fetched::installed(store, old)?
        }
        false => origin.fetch(config).await?,
    };
    let content = &archive.content;
    let mut allowed: BTreeSet<String> = allowed.clone();
    allowed.extend(old.permissions.iter().cloned());
    let is_new = archive.sha256 != old.sha256;
    let asked =
        Asked { name: &old.name, content, origin: &origin, sha256: &archive.sha256, allowed: &allowed };
    let permissions = if is_new {
        render::out(&format!("{}: {} becomes {}\n", old.name, old.version, content.version));
        asked.consent(&update.consent)?
    } else {
        allowed.iter().cloned().collect()
    };
    let mut entry = Entry {
        registry: archive.registry.clone(),
        resolved: archive.resolved.clone(),
        kind: content.kind,
        version: content.version.clone(),
        sha256: archive.sha256.clone(),
        permissions,
        ..old.clone()
    };
    let transaction = begin(store)?;
    let directory =
        transaction.install(&old.name, &entry.sha256, &archive.bytes).map_err(|error| failed(&error))?;
    let accepted = async {
        let tools = tools_of(config, &entry, directory).await?;
        entry.tools_digest = tools::digest(&tools);
        if entry.tools_digest != old.tools_digest {
            let before = store.accepted_tools(old).and_then(|text| serde_json::from_slice(&text).ok());
            render::out(&difference(&old.name, before, &tools));
            if !update.consent.yes && !agrees(&format!("Accept these tools of {}?", old.name))? {
                return Err(Failure::failed("its new tools were not accepted, and the old state stays"));
            }
        }
        Ok(tools)
    };
    let tools = match accepted.await {
        Ok(tools) => tools,
        Err(failure) => {
            transaction.abandon().map_err(|error| failed(&error))?;
            return Err(failure);
        }
    };
    if entry == *old {
        accept(&transaction, &entry, &tools)?;
        render::note(&format!("{} {} is up to date", old.name, old.version));
        return Ok(());
    }
    accept(&transaction, &entry, &tools)?;
    let mut lock = store.lock().map_err(|error| failed(&error))?;
    let (name, version) = (entry.name.clone(), entry.version.clone());
    lock.put(entry);
    transaction.commit(&lock).map_err(|error| failed(&error))?;
    store.keep(&archive.bytes);
    render::note(&format!("updated {name} to {version}; a running server takes it up on SIGHUP"));
    Ok(())
}

/// `orla outdated`.
pub(crate) fn outdated(source: &Source) -> Result<(), Failure> {
    let config = load(source)?;
    let lock = store_of(&config).lock().map_err(|error| failed(&error))?;
    super::server_runtime()?.block_on(async {
        let mut rows = Vec::new();
        for entry in lock.entries() {
            let newest = match Origin::of(entry, &config) {
                Ok(origin) => origin.newest(entry, &config).await,
                Err(failure) => failure.into_lines().join("; "),
            };
            rows.push(vec![entry.name.clone(), entry.version.clone(), newest, entry.source.clone()]);
        }
        match rows.is_empty() {
            true => render::note(&format!("{FILE} names no packages")),
            false => {
                let heads = ["NAME", "LOCKED", "NOW", "SOURCE"];
                render::out(&render::table(&heads, &rows, render::width()));
            }
        }
        Ok(())
    })
}

/// `orla sync`.
pub(crate) fn sync(offline: bool, source: &Source) -> Result<(), Failure> {
    let config = load(source)?;
    let store = store_of(&config);
    let transaction = begin(&store)?;
    let lock = store.lock().map_err(|error| failed(&error))?;
    let missing: Vec<&Entry> = lock.entries().iter().filter(|entry| !store.has(entry)).collect();
    let mut failures = Vec::new();
    super::server_runtime()?.block_on(async {
        for entry in &missing {
            let bytes = match store.cached(&entry.sha256) {
                Some(bytes) => Ok(bytes),
                None if offline => Err(format!(
                    "{}: its archive is not in the cache, and --offline fetches nothing",
                    entry.name
                )),
                None => {
                    fetch_locked(entry, &config).await.map_err(|why| format!("{}: {why}", entry.name))
                }
            };
            let installed = bytes.and_then(|bytes| {
                let installed = transaction.install(&entry.name, &entry.sha256, &bytes);
                installed.map_err(|error| format!("{}: {error}", entry.name))?;
                store.keep(&bytes);
                Ok(())
            });
            failures.extend(installed.err());
        }
    });
    if !failures.is_empty() {
        return Err(Failure::failed_with(failures));
    }
    render::note(&match missing.len() {
        0 => format!("everything in {FILE} is installed"),
        1 => "installed 1 package".to_owned(),
        count => format!("installed {count} packages"),
    });
    Ok(())
}

/// `orla search --registry URL WORDS`.
pub(crate) fn search(url: &str, words: &str, limit: usize, json: bool) -> Result<(), Failure> {
    super::server_runtime()?.block_on(async {
        let registry = Registry::new(url, &Http).map_err(|error| Failure::failed(error.to_string()))?;
        let found = registry.search(words).await.map_err(|error| Failure::failed(error.to_string()))?;
        let shown = found.iter().take(limit);
        if json {
            let rows = shown.map(|server| {
                let installable = server.bundle().is_ok();
                serde_json::json!({"name": server.name, "version": server.version, "description": server.description, "status": server.status, "installable": installable})
            });
            return super::print_json(&rows.collect::<Vec<_>>());
        }
        if found.is_empty() {
            render::note(&format!("the registry has nothing for {words:?}"));
            return Ok(());
        }
        let rows: Vec<Vec<String>> = shown
            .map(|server| vec![server.name.clone(), server.version.clone(), server.description.clone()])
            .collect();
        render::out(&render::table(&["NAME", "VERSION", "DESCRIPTION"], &rows, render::width()));
        if found.len() > limit {
            render::note(&format!("{} more fit; --limit {} shows them.", found.len() - limit, found.len()));
        }
        Ok(())
    })
}

/// Where a package comes from.
struct Origin {
    source: PackageSource,
    registry: Option<String>,
}

/// An archive that was fetched and checked.
struct Fetched {
    bytes: Vec<u8>,
    sha256: String,
    content: Content,
    registry: Option<String>,
    resolved: Option<String>,
}

impl Origin {
    fn of(entry: &Entry, config: &Config) -> Result<Self, Failure> {
        let project = project_of(config);
        let source = PackageSource::parse(&entry.source, |path| project.join(path).is_dir());
        let source = source.map_err(|error| Failure::failed(error.to_string()))?;
        Ok(Self { source, registry: entry.registry.clone() })
    }

    /// Whether it was on this machine, and is not any longer.
    fn is_gone(&self, config: &Config) -> bool {
        match &self.source {
            PackageSource::Folder(path) | PackageSource::BundleFile(path) => {
                !project_of(config).join(path).exists()
            }
            _ => false,
        }
    }

    async fn fetch(&self, config: &Config) -> Result<Fetched, Failure> {
        let project = project_of(config);
        let at = |path: &str, why: &dyn std::fmt::Display| Failure::failed(format!("{path}: {why}"));
        let (bytes, registry, resolved) = match &self.source {
            PackageSource::Folder(path) => {
                let folder = project.join(path);
                if !folder.is_dir() {
                    return Err(at(path, &"it is no directory"));
                }
                (pack(&folder).map_err(|error| at(path, &error))?, None, None)
            }
            PackageSource::BundleFile(path) => {
                (read_bounded(&project.join(path)).map_err(|error| at(path, &error))?, None, None)
            }
            PackageSource::BundleUrl(url) => (get(url).await?, None, None),
            PackageSource::Registry { name, version } => {
                let registry = self.registry.as_deref().unwrap_or(OFFICIAL);
                let registry = Registry::new(registry, &Http)
                    .map_err(|error| Failure::failed(error.to_string()))?;
                let server = registry.server(name, version.as_deref()).await;
                let server = server.map_err(|error| Failure::failed(error.to_string()))?;
                let bundle = server.bundle().map_err(Failure::failed)?;
                let bytes = get(&bundle.url).await?;
                let found = sha256(&bytes);
                if found != bundle.sha256 {
                    return Err(Failure::failed(format!(
                        "{name}: its bundle has the SHA-256 {found}, and the registry says {}: it is not installed",
                        bundle.sha256
                    )));
                }
                (bytes, Some(registry.url().to_owned()), Some(bundle.url))
            }
        };
        let shown = self.source.to_string();
        let archive = Archive::read(&bytes).map_err(|error| at(&shown, &error))?;
        let content = Content::read(&archive).map_err(|error| at(&shown, &error))?;
        Ok(Fetched { sha256: sha256(&bytes), bytes, content, registry, resolved })
    }

    /// What is at the source now, for people.
    async fn newest(&self, entry: &Entry, config: &Config) -> String {
        if self.is_gone(config) {
            return "gone".to_owned();
        }
        let now = match &self.source {
            PackageSource::Registry { name, version } => {
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
    fn installed(store: &Store, entry: &Entry) -> Result<Self, Failure> {
        let directory = store.directory(entry);
        let not_here = || Failure::failed("it is not installed: run `orla sync`");
        let bytes = match store.cached(&entry.sha256) {
            Some(bytes) => bytes,
            None => pack(&directory).map_err(|_| not_here())?,
        };
        let archive = Archive::read(&bytes).map_err(|error| Failure::failed(error.to_string()))?;
        let content = Content::read(&archive).map_err(Failure::failed)?;
        Ok(Self {
            content,
            bytes,
            sha256: entry.sha256.clone(),
            registry: entry.registry.clone(),
            resolved: entry.resolved.clone(),
        })
    }
}

/// What a person is asked before anything of a package runs.
struct Asked<'a> {
    name: &'a str,
    content: &'a Content,
    origin: &'a Origin,
    sha256: &'a str,
    /// What is granted without a question.
    allowed: &'a BTreeSet<String>,
}

impl Asked<'_> {
    /// Shows one screen and gets a yes. The permissions that are granted.
    ///
    /// # Errors
    /// The answer is no, nobody can be asked, or something is wanted that `--yes` does not grant.
    fn consent(&self, consent: &cli::Consent) -> Result<Vec<String>, Failure> {
        let content = self.content;
        let missing: Vec<&String> =
            content.wants.iter().filter(|word| !self.allowed.contains(*word)).collect();
        render::out(&self.screen());
        if !missing.is_empty() && (consent.yes || !is_asked()) {
            let words: Vec<String> = missing.iter().map(|word| format!("--allow {word}")).collect();
            return Err(Failure::failed(format!(
                "{} wants what is not granted: {}; pass {} to grant it",
                self.name,
                missing.iter().map(|word| word.as_str()).collect::<Vec<_>>().join(", "),
                words.join(" ")
            )));
        }
        if !consent.yes && !agrees(&format!("Install {} and run it?", self.name))? {
            return Err(Failure::failed(format!("{} was not installed", self.name)));
        }
        let granted: BTreeSet<String> = self.allowed.iter().chain(&content.wants).cloned().collect();
        Ok(granted.into_iter().collect())
    }

    fn screen(&self) -> String {
        let content = self.content;
        let list = |words: &mut dyn Iterator<Item = &String>| {
            let words: Vec<&str> = words.map(String::as_str).collect();
            if words.is_empty() { "none".to_owned() } else { words.join(", ") }
        };
        let author = if content.author.is_empty() { "it does not say" } else { &content.author };
        let mut screen = format!("{} {}: {}\n", self.name, content.version, content.description);
        let mut line = |key: &str, value: &str| screen.push_str(&format!("  {key:<12} {value}\n"));
        line("source", &self.origin.source.to_string());
        line("publisher", &format!("{author} (as it says itself)"));
        line("sha256", self.sha256);
        line("runs", &content.runs);
        line("wants", &list(&mut content.wants.iter()));
        line("granted", &list(&mut self.allowed.iter()));
        for (key, setting) in &content.settings {
            let is_required = if setting.is_required { "required" } else { "optional" };
            let secret = content::setting(self.name, key);
            line("setting", &format!("{} ({is_required}; `orla secret set {secret}`)", setting.title));
        }
        line("confined", "to the system's files for reading, its own directory, and what is granted");
        screen
    }
}

/// Whether a person can be asked.
fn is_asked() -> bool {
    std::io::stdin().is_terminal() && render::stderr_is_terminal()
}

/// Asks the person at the terminal.
///
/// # Errors
/// There is none.
fn agrees(question: &str) -> Result<bool, Failure> {
    if !is_asked() {
        let what = format!("{question} There is no terminal to ask at: pass --yes to agree");
        return Err(Failure::failed(what));
    }
    render::question(&format!("{question} [y]es, [n]o "));
    let mut line = String::new();
    let read = std::io::stdin().read_line(&mut line);
    read.map_err(|error| Failure::failed(format!("the answer cannot be read: {error}")))?;
    Ok(matches!(line.trim().to_ascii_lowercase().as_str(), "y" | "yes"))
}

/// How tools differ, for people.
fn difference(package: &str, before: Option<Vec<Tool>>, now: &[Tool]) -> String {
    let name = |tool: &Tool| if tool.name.is_empty() { package.to_owned() } else { tool.name.clone() };
    let Some(before) = before else {
        let rows = now.iter().map(|tool| format!("  {}: {}\n", name(tool), tool.description));
        return format!(
            "The tools of {package} are not those that were accepted. Now:\n{}",
            rows.collect::<String>()
        );
    };
    let mut text = format!("The tools of {package} are not those that were accepted:\n");
    for change in tools::changes(&before, now) {
        match (change.old, change.new) {
            (Some(old), Some(new)) => {
                text.push_str(&format!("  ~ {}\n", name(&new)));
                let mut pair = |what: &str, old: &str, new: &str| {
                    if old != new {
                        text.push_str(&format!("    {what}\n      - {old}\n      + {new}\n"));
                    }
                };
                let title = |tool: &Tool| tool.title.clone().unwrap_or_default();
                pair("title", &title(&old), &title(&new));
                pair("description", &old.description, &new.description);
                pair("input", &old.input.to_string(), &new.input.to_string());
                pair("output", &old.output.to_string(), &new.output.to_string());
                pair("annotations", &old.annotations.to_string(), &new.annotations.to_string());
            }
            (None, Some(tool)) => {
                text.push_str(&format!("  + {}: {}\n", name(&tool), tool.description));
            }
            (Some(tool), None) => text.push_str(&format!("  - {}\n", name(&tool))),
            (None, None) => {}
        }
    }
    text
}

/// The archive that the lock names.
async fn fetch_locked(entry: &Entry, config: &Config) -> Result<Vec<u8>, String> {
    if let Some(url) = &entry.resolved {
        return get(url).await.map_err(|failure| failure.into_lines().join("; "));
    }
    let fetched = async { Origin::of(entry, config)?.fetch(config).await };
    let fetched = fetched.await.map_err(|failure| failure.into_lines().join("; "))?;
    Ok(fetched.bytes)
}

async fn get(url: &str) -> Result<Vec<u8>, Failure> {
    let max = usize::try_from(MAX_BYTES).unwrap_or(usize::MAX);
    Http.get(url, max).await.map_err(|error| Failure::failed(error.to_string()))
}

/// A source as the lock has it: a path below the project is relative to it.
fn portable(source: PackageSource, config: &Config) -> Result<PackageSource, Failure> {
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
        PackageSource::Folder(path) => PackageSource::Folder(place(path)?),
        PackageSource::BundleFile(path) => PackageSource::BundleFile(place(path)?),
        other => other,
    })
}

/// The permissions of the command line.
fn allowed(words: &[String]) -> Result<BTreeSet<String>, Failure> {
    for word in words {
        orla_process::confinement::check(word)
            .map_err(|why| Failure::usage(format!("--allow {word}: {why}")))?;
    }
    Ok(words.iter().cloned().collect())
}

fn load(source: &Source) -> Result<Config, Failure> {
    source.load().map_err(|problems| Failure::configuration(&problems))
}

fn begin(store: &Store) -> Result<Transaction<'_>, Failure> {
    let waits = || render::note("another orla changes the packages of this project; waiting for it");
    store.change(waits).map_err(|error| failed(&error))
}

fn accept(transaction: &Transaction<'_>, entry: &Entry, tools: &[Tool]) -> Result<(), Failure> {
    let text = serde_json::to_vec(tools).map_err(|error| Failure::failed(error.to_string()))?;
    transaction.accept_tools(entry, &text).map_err(|error| failed(&error))
}

fn failed(error: &StoreError) -> Failure {
    Failure::failed(error.to_string())
}
