//! `orla add`, `remove`, `update`, `outdated`, `sync`, and `orla search --registry`.

mod consent;
mod environments;
mod fetch;
mod git;
mod helper;
mod learn;
mod origin;

use std::collections::BTreeSet;
use std::path::Path;

use orla_packages::lock::{Entry, FILE};
use orla_packages::registry::Registry;
use orla_packages::source::Source as PackageSource;
use orla_packages::store::{Presence, Store, StoreError, Transaction};
use orla_packages::tools::{self, Tool};
use orla_packages::{is_name, name_of};

use crate::config::{Config, Source};
use crate::packages::store_of;
use crate::{Failure, cli, render};
use consent::{Asked, agrees, difference};
use fetch::Http;
use learn::tools_of;
use origin::{Fetched, Origin, fetch_locked, portable};

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
    let Fetched { bytes, sha256, content, registry, resolved, requires } = origin.fetch(config).await?;
    let name = add.name.clone().unwrap_or_else(|| name_of(&content.name));
    if !is_name(&name) {
        let what =
            format!("{name:?} is no name: up to 48 letters, digits, `_` and `-` are (--name NAME)");
        return Err(Failure::failed(what));
    }
    let mut entry = Entry {
        name,
        source: origin.source.to_string(),
        registry,
        resolved,
        requires,
        kind: content.kind,
        version: content.version.clone(),
        sha256,
        tools_digest: String::new(),
        permissions: Vec::new(),
    };
    free(&store, config, &entry)?;
    let asked = Asked { entry: &entry, content: &content, config, allowed: &allowed };
    entry.permissions = asked.consent(&add.consent)?;
    let transaction = begin(&store)?;
    // Another command may have taken the name while this one asked.
    let previous = free(&store, config, &entry)?;
    let tools = match learned(&transaction, config, &entry, &bytes).await {
        Ok(tools) => tools,
        Err(failure) => {
            transaction.abandon().map_err(|error| failed(&error))?;
            return Err(failure);
        }
    };
    entry.tools_digest = tools::digest(&tools);
    let mut lock = store.lock().map_err(|error| failed(&error))?;
    accept(&transaction, &entry, &tools)?;
    lock.put(entry.clone());
    transaction.commit(&lock, previous.as_ref()).map_err(|error| failed(&error))?;
    store.keep(&bytes);
    let Entry { name, version, .. } = &entry;
    let names: Vec<&str> =
        tools.iter().map(|tool| tool.name.as_str()).filter(|name| !name.is_empty()).collect();
    let serves = if names.is_empty() { String::new() } else { format!(", with {}", names.join(", ")) };
    render::note(&format!("added {name} {version}{serves}; a running server takes it up on SIGHUP"));
    Ok(())
}

/// Whether a package may have its name: nothing else has it. What the lock has from the same source is returned.
fn free(store: &Store, config: &Config, entry: &Entry) -> Result<Option<Entry>, Failure> {
    let name = &entry.name;
    if config.servers.iter().any(|server| server.value.name == *name) {
        return Err(Failure::failed(format!(
            "{name} is in mcpServers already: choose another name (--name NAME)"
        )));
    }
    let lock = store.lock().map_err(|error| failed(&error))?;
    match lock.get(name) {
        Some(known) if known.source != entry.source => Err(Failure::failed(format!(
            "{name} is there already, from {}: choose another name (--name NAME), or `orla remove {name}` first",
            known.source
        ))),
        known => Ok(known.cloned()),
    }
}

/// Unpacks a package, and asks it what its tools are.
async fn learned(
    transaction: &Transaction<'_>,
    config: &Config,
    entry: &Entry,
    bytes: &[u8],
) -> Result<Vec<Tool>, Failure> {
    let installed = transaction.install(&entry.name, &entry.sha256, bytes);
    tools_of(config, entry, installed.map_err(|error| failed(&error))?).await
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
    transaction.commit(&lock, None).map_err(|error| failed(&error))?;
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
    if update.name.is_none() && !allowed.is_empty() {
        return Err(Failure::usage("--allow needs the name of the package that gets the permission"));
    }
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
    let mut entry = Entry {
        registry: archive.registry.clone(),
        resolved: archive.resolved.clone(),
        requires: archive.requires.clone(),
        kind: content.kind,
        version: content.version.clone(),
        sha256: archive.sha256.clone(),
        permissions: allowed.iter().cloned().collect(),
        ..old.clone()
    };
    if entry.sha256 != old.sha256 {
        render::out(&format!("{}: {} becomes {}\n", old.name, old.version, content.version));
        let asked = Asked { entry: &entry, content, config, allowed: &allowed };
        entry.permissions = asked.consent(&update.consent)?;
    }
    let transaction = begin(store)?;
    let mut lock = store.lock().map_err(|error| failed(&error))?;
    if lock.get(&old.name) != Some(old) {
        let what = format!("another command changed it in {FILE} meanwhile: try again");
        return Err(Failure::failed(what));
    }
    let accepted = async {
        let tools = learned(&transaction, config, &entry, &archive.bytes).await?;
        let digest = tools::digest(&tools);
        if digest != old.tools_digest {
            let before = store.accepted_tools(old).and_then(|text| serde_json::from_slice(&text).ok());
            render::out(&difference(&old.name, before, &tools));
            if !update.consent.yes && !agrees(&format!("Accept these tools of {}?", old.name))? {
                return Err(Failure::failed("its new tools were not accepted, and the old state stays"));
            }
        }
        Ok((tools, digest))
    };
    let (tools, digest) = match accepted.await {
        Ok(accepted) => accepted,
        Err(failure) => {
            transaction.abandon().map_err(|error| failed(&error))?;
            return Err(failure);
        }
    };
    entry.tools_digest = digest;
    accept(&transaction, &entry, &tools)?;
    if entry == *old {
        render::note(&format!("{} {} is up to date", old.name, old.version));
        return Ok(());
    }
    let (name, version) = (entry.name.clone(), entry.version.clone());
    lock.put(entry);
    transaction.commit(&lock, Some(old)).map_err(|error| failed(&error))?;
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
    // What a killed process left is removed, also if nothing is missing.
    drop(begin(&store)?);
    let lock = store.lock().map_err(|error| failed(&error))?;
    let missing = lock.entries().iter().filter(|entry| store.presence(entry) != Presence::Installed);
    let (mut count, mut failures) = (0, Vec::new());
    super::server_runtime()?.block_on(async {
        for entry in missing {
            match synced(&store, &config, entry, offline).await {
                Ok(()) => count += 1,
                Err(failure) => {
                    let lines = failure.into_lines().into_iter();
                    failures.extend(lines.map(|line| format!("{}: {line}", entry.name)));
                }
            }
        }
    });
    if !failures.is_empty() {
        return Err(Failure::failed_with(failures));
    }
    render::note(&match count {
        0 => format!("everything in {FILE} is installed"),
        1 => "installed 1 package".to_owned(),
        count => format!("installed {count} packages"),
    });
    Ok(())
}

async fn synced(store: &Store, config: &Config, entry: &Entry, offline: bool) -> Result<(), Failure> {
    let bytes = match store.cached(&entry.sha256) {
        Some(bytes) => bytes,
        None if offline => {
            let what = "its archive is not in the cache, and --offline fetches nothing";
            return Err(Failure::failed(what));
        }
        None => fetch_locked(entry, config).await?,
    };
    let transaction = begin(store)?;
    if store.lock().map_err(|error| failed(&error))?.get(&entry.name) != Some(entry) {
        return Err(Failure::failed(format!("another command changed it in {FILE}: try again")));
    }
    transaction.install(&entry.name, &entry.sha256, &bytes).map_err(|error| failed(&error))?;
    store.keep(&bytes);
    Ok(())
}

/// `orla search --registry URL WORDS`.
pub(crate) fn search(url: &str, words: &str, limit: usize, json: bool) -> Result<(), Failure> {
    super::server_runtime()?.block_on(async {
        let registry = Registry::new(url, &Http).map_err(|error| Failure::failed(error.to_string()))?;
        let found = registry.search(words, limit).await;
        let (found, has_more) = found.map_err(|error| Failure::failed(error.to_string()))?;
        let shown = found.iter();
        if json {
            let rows = shown.map(|server| {
                let installable = server.install().is_ok();
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
        if has_more {
            render::note(&format!("More servers fit than --limit {limit} shows."));
        }
        Ok(())
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
