//! `orla add`, `remove`, `update`, `outdated`, `sync`, `publish`, and `orla search --registry`.

mod cargo;
mod consent;
mod environments;
mod fetch;
mod git;
mod helper;
mod kept;
mod learn;
mod origin;
mod publish;
mod signatures;

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

use orla_confine::Word;
use orla_marketplace::Permission;
use orla_packages::archive::ArchiveError;
use orla_packages::lock::{Entry, FILE, PackageKind, check_arguments};
use orla_packages::registry::{Install, Registry, RegistryError};
use orla_packages::source::{NoSource, Source as PackageSource};
use orla_packages::store::{Presence, Store, StoreError, Transaction};
use orla_packages::tools::{self, Tool};
use orla_packages::{FetchError, is_name, name_of};
use orla_providers::openapi::ImportError;

use crate::app::App;
use crate::config::{Config, Source};
use crate::packages::content::{agreement, check_kind, is_of_system, path_in};
use crate::packages::names::OwnNames;
use crate::packages::signatures::{Demand, UNSIGNED};
use crate::packages::{project_of, store_of};
use crate::{Failure, cli, render};
pub(crate) use consent::agrees;
use consent::{ConsentRequest, difference, is_asked};
use kept::Kept;
use learn::tools_of;
use origin::{Fetched, Origin, fetch_locked, portable, portable_argument, portable_word, whole_word};

/// When a running server serves what a command has changed.
const TAKEN_UP: &str = "a running server takes it up on SIGHUP, and by itself with --watch";

impl From<StoreError> for Failure {
    fn from(error: StoreError) -> Self {
        Self::failed(error.to_string())
    }
}

impl From<RegistryError> for Failure {
    fn from(error: RegistryError) -> Self {
        Self::failed(error.to_string())
    }
}

impl From<FetchError> for Failure {
    fn from(error: FetchError) -> Self {
        Self::failed(error.to_string())
    }
}

impl From<ArchiveError> for Failure {
    fn from(error: ArchiveError) -> Self {
        Self::failed(error.to_string())
    }
}

impl From<ImportError> for Failure {
    fn from(error: ImportError) -> Self {
        Self::failed(error.to_string())
    }
}

impl From<NoSource> for Failure {
    fn from(error: NoSource) -> Self {
        Self::failed(error.to_string())
    }
}

/// `orla add SOURCE`.
pub(crate) fn add(add: &cli::Add, source: &Source) -> Result<(), Failure> {
    let config = super::load(source)?;
    super::server_runtime()?.block_on(added(add, &config))
}

async fn added(add: &cli::Add, config: &Config) -> Result<(), Failure> {
    let store = store_of(config);
    let mut allowed = allowed(&add.consent.allow, config)?;
    let arguments = arguments(&add.arguments, config)?;
    let parsed = PackageSource::given(&add.source, |path| Path::new(path).is_dir())?;
    let source = portable(parsed, config)?;
    let registry = add.from.registry.clone().or(registry_of(&store, &source)?);
    let origin = Origin { source, registry };
    let archive = origin.fetch(config).await?;
    let name = add.name.clone().unwrap_or_else(|| name_of(&archive.content.name));
    if !is_name(&name) {
        let what =
            format!("{name:?} is not a name: up to 48 letters, digits, `_` and `-` are (--name NAME)");
        return Err(Failure::failed(what));
    }
    let mut entry = archive.entry(name, origin.source.to_string());
    entry.arguments = arguments;
    let known = free(&store, config, &entry)?;
    if let Some(known) = &known {
        keep_signer(&mut entry, known, config)?;
    }
    if let Some(known) = known.as_ref().filter(|known| known.source != entry.source) {
        is_of_kind(&entry, known)?;
        // Another version of an installed package keeps its permissions and its arguments.
        allowed.extend(known.permissions.iter().cloned());
        if entry.arguments.is_empty() {
            entry.arguments.clone_from(&known.arguments);
        }
    }
    archive.check_arguments(&entry)?;
    allowed.extend(archive.content.grants.iter().cloned());
    let request = ConsentRequest { entry: &entry, package: &archive, config, allowed: &allowed };
    entry.permissions = request.consent(&add.consent)?;
    render::note(&format!("installing {} {}", entry.name, entry.version));
    let transaction = begin(&store)?;
    // Another command may have taken the name while this one asked, or changed what was shown.
    let previous = free(&store, config, &entry)?;
    if previous != known {
        return Err(changed_meanwhile());
    }
    let tools = match install_and_list_tools(&transaction, config, &entry, &archive.bytes).await {
        Ok(tools) => tools,
        Err(failure) => {
            transaction.abandon()?;
            return Err(failure);
        }
    };
    let names: Vec<&str> =
        tools.iter().map(|tool| tool.name.as_str()).filter(|name| !name.is_empty()).collect();
    let serves = if names.is_empty() { String::new() } else { format!(", with {}", names.join(", ")) };
    let added = format!("added {} {}{serves}", entry.name, entry.version);
    let unreadable = unreadable_arguments(&entry, config);
    let is_bare = archive.content.urls.is_empty() && entry.permissions.is_empty();
    let learned = names.first().map(|tool| format!("{}.{tool}", entry.name));
    put(&transaction, &store, config, entry, &tools, &archive, previous.as_ref())?;
    render::note(&format!("{added}; {TAKEN_UP}"));
    for path in unreadable {
        render::note(&format!(
            "its argument {path} is a path that it may not read; to let it, add it again with --allow 'fs:read:{path}', or fs:write: if it changes files"
        ));
    }
    if let Some(tool) = learned.filter(|_| is_bare) {
        render::note(&format!(
            "it has no network and no directory to write to; if a call needs more, `orla sandbox learn {tool}` proposes what to \
             grant with --allow"
        ));
    }
    Ok(())
}

/// Returns the registry from which the lock has a package of this source, in any version.
fn registry_of(store: &Store, source: &PackageSource) -> Result<Option<String>, Failure> {
    let wanted = source.clone().without_version();
    let is_it = |entry: &&Entry| plain(&entry.source).is_ok_and(|plain| plain == wanted);
    Ok(store.lock()?.entries().iter().find(is_it).and_then(|entry| entry.registry.clone()))
}

/// Returns the arguments after `--` as the lock has them.
///
/// # Errors
///
/// Returns an error if they cannot be locked.
fn arguments(given: &[String], config: &Config) -> Result<Vec<String>, Failure> {
    let arguments: Vec<String> =
        given.iter().map(|argument| portable_argument(argument, config)).collect();
    check_arguments(&arguments).map_err(Failure::usage)?;
    Ok(arguments)
}

/// Returns the paths in the arguments of a package that exist and that it may not read.
fn unreadable_arguments(entry: &Entry, config: &Config) -> BTreeSet<String> {
    let project = project_of(config);
    let parsed = |word: &str| whole_word(word, config).parse::<Word>().ok();
    let granted: Vec<Word> = entry.permissions.iter().filter_map(|word| parsed(word)).collect();
    let paths = entry.arguments.iter().filter_map(|argument| path_in(argument));
    let is_unreadable = |path: &&str| {
        let place = project.join(path);
        // What does not exist may be something else than a path. What is the system's may be readable.
        let is_known = place.exists() && !is_of_system(&place);
        let wanted = parsed(&format!("fs:read:{path}"));
        is_known && wanted.is_some_and(|wanted| !granted.iter().any(|word| word.covers(&wanted)))
    };
    paths.filter(is_unreadable).map(str::to_owned).collect()
}

/// Returns a source of the lock, in no certain version.
fn plain(source: &str) -> Result<PackageSource, NoSource> {
    PackageSource::parse(source).map(PackageSource::without_version)
}

/// Puts a package with these tools in force.
fn put(
    transaction: &Transaction<'_>,
    store: &Store,
    config: &Config,
    mut entry: Entry,
    tools: &[Tool],
    archive: &Fetched,
    previous: Option<&Entry>,
) -> Result<(), Failure> {
    (entry.tools_digest, entry.tools) = (tools::digest(tools), tools::digests(tools));
    transaction.accept_tools(&entry, tools)?;
    store.agree(&agreement(&entry, store.project()))?;
    if let Some(signer) = &archive.signer {
        store.note_signer(&entry.sha256, &config.packages.root_digest(), signer)?;
    }
    let before = store.lock()?;
    let mut lock = before.clone();
    lock.put(entry);
    if lock != before {
        transaction.commit(&lock, previous)?;
    }
    store.keep(&archive.bytes);
    Ok(())
}

/// Checks that a package may have its name: no other package has it. Returns the entry of the lock with
/// the same source, in any version.
fn free(store: &Store, config: &Config, entry: &Entry) -> Result<Option<Entry>, Failure> {
    let name = &entry.name;
    if config.servers.iter().any(|server| server.value.name == *name) {
        return Err(Failure::failed(format!(
            "{name} is in mcpServers already: choose another name (--name NAME)"
        )));
    }
    let lock = store.lock()?;
    let is_twin = |other: &&Entry| {
        other.name != *name && other.source == entry.source && other.registry == entry.registry
    };
    if let Some(twin) = lock.entries().iter().find(is_twin) {
        return Err(Failure::failed(format!(
            "{} is there already, as {}: `orla remove {1}` first to give it another name",
            entry.source, twin.name
        )));
    }
    let Some(known) = lock.get(name) else {
        let app = App::build(config)?;
        let ids = app.marketplace().snapshot();
        let ids = ids.entries().iter().map(|entry| entry.manifest.id.clone());
        return match OwnNames::of(config, ids).holder(name) {
            Some(holder) => Err(Failure::failed(format!(
                "{holder} has the name {name} already: choose another name (--name NAME)"
            ))),
            None => Ok(None),
        };
    };
    let is_same = plain(&known.source)? == plain(&entry.source)?;
    match is_same && known.registry == entry.registry {
        true => Ok(Some(known.clone())),
        false => Err(Failure::failed(format!(
            "{name} is there already, from {}{}: choose another name (--name NAME), or `orla remove {name}` first",
            known.source,
            known.registry.as_ref().map(|registry| format!(" of {registry}")).unwrap_or_default()
        ))),
    }
}

/// Unpacks a package, and asks it what its tools are.
async fn install_and_list_tools(
    transaction: &Transaction<'_>,
    config: &Config,
    entry: &Entry,
    bytes: &[u8],
) -> Result<Vec<Tool>, Failure> {
    let directory = install(transaction, config, entry, bytes, false)?;
    render::note(&format!("listing the tools of {}", entry.name));
    tools_of(config, entry, directory).await
}

/// Unpacks a package, and builds it if its archive is the source of a crate.
fn install(
    transaction: &Transaction<'_>,
    config: &Config,
    entry: &Entry,
    bytes: &[u8],
    offline: bool,
) -> Result<PathBuf, Failure> {
    let Entry { name, sha256, source, .. } = entry;
    let is_built = cargo::is_built(entry).map_err(Failure::failed)?;
    Ok(match is_built {
        false => transaction.install(name, sha256, bytes)?,
        true => transaction.install_built(name, sha256, bytes, |archive, directory| {
            let built = cargo::build(archive, directory, config, offline);
            built.map_err(|why| format!("{source}: {why}"))
        })?,
    })
}

/// `orla remove NAME`.
pub(crate) fn remove(name: &str, source: &Source) -> Result<(), Failure> {
    let config = super::load(source)?;
    let store = store_of(&config);
    let unknown = || Failure::failed(format!("no package is named {name} in {FILE}"));
    if store.lock()?.get(name).is_none() {
        return Err(unknown());
    }
    let transaction = begin(&store)?;
    let mut lock = store.lock()?;
    if !lock.remove(name) {
        return Err(unknown());
    }
    transaction.commit(&lock, None)?;
    render::note(&format!("removed {name}"));
    Ok(())
}

/// `orla update [NAME]`.
pub(crate) fn update(update: &cli::Update, source: &Source) -> Result<(), Failure> {
    let config = super::load(source)?;
    super::server_runtime()?.block_on(updated(update, &config))
}

async fn updated(update: &cli::Update, config: &Config) -> Result<(), Failure> {
    let store = store_of(config);
    let lock = store.lock()?;
    if let Some(name) = &update.name
        && lock.get(name).is_none()
    {
        return Err(Failure::failed(format!("no package is named {name} in {FILE}")));
    }
    let allowed = allowed(&update.consent.allow, config)?;
    if update.name.is_none() && !allowed.is_empty() {
        return Err(Failure::usage("--allow needs the name of the package that gets the permission"));
    }
    if lock.entries().is_empty() {
        render::note(&format!("{FILE} names no packages"));
    }
    let chosen = lock
        .entries()
        .iter()
        .filter(|entry| update.name.as_ref().is_none_or(|name| *name == entry.name));
    let mut failures = Failures::default();
    for entry in chosen {
        failures.note(&entry.name, update_one(update, config, &store, entry, &allowed).await);
    }
    failures.end()
}

/// The failures of single packages. A failure does not stop the other packages.
#[derive(Default)]
struct Failures(Vec<String>);

impl Failures {
    fn note(&mut self, package: &str, result: Result<(), Failure>) {
        let lines = result.err().map(Failure::into_lines).unwrap_or_default();
        self.0.extend(lines.into_iter().map(|line| format!("{package}: {line}")));
    }

    fn end(self) -> Result<(), Failure> {
        if self.0.is_empty() { Ok(()) } else { Err(Failure::failed_with(self.0)) }
    }
}

async fn update_one(
    update: &cli::Update,
    config: &Config,
    store: &Store,
    old: &Entry,
    allowed: &BTreeSet<String>,
) -> Result<(), Failure> {
    let mut origin = Origin::of(old)?;
    if update.from.registry.is_some() {
        origin.registry.clone_from(&update.from.registry);
    }
    // The installed package may have other tools anyway, and they can be accepted.
    let (archive, unreachable) = if origin.is_gone(config) {
        let what = format!("{}: {} no longer exists; the installed version stays", old.name, old.source);
        render::note(&what);
        (served_here(store, config, old)?, Ok(()))
    } else {
        match origin.fetch(config).await {
            Ok(archive) => (archive, Ok(())),
            Err(failure) => match served_here(store, config, old) {
                Ok(archive) => (archive, Err(failure)),
                Err(_) => return Err(failure),
            },
        }
    };
    let content = &archive.content;
    let mut allowed: BTreeSet<String> = allowed.clone();
    allowed.extend(content.grants.iter().cloned());
    let grants_more = !allowed.iter().all(|word| old.permissions.contains(word));
    allowed.extend(old.permissions.iter().cloned());
    let mut entry = archive.entry(old.name.clone(), old.source.clone());
    is_of_kind(&entry, old)?;
    keep_signer(&mut entry, old, config)?;
    entry.arguments.clone_from(&old.arguments);
    archive.check_arguments(&entry)?;
    entry.permissions = allowed.iter().cloned().collect();
    let is_agreed = content.settings.is_empty() || store.is_agreed(&agreement(&entry, store.project()));
    let is_pinned_now = entry.signed_by != old.signed_by;
    if entry.sha256 != old.sha256 || !is_agreed || grants_more || is_pinned_now {
        if entry.sha256 != old.sha256 {
            let (is, was) = (&content.version, &old.version);
            let older = if is_older(is, was) { ", which is older" } else { "" };
            render::out(&format!("{}: {was} becomes {is}{older}\n", old.name));
        }
        let request = ConsentRequest { entry: &entry, package: &archive, config, allowed: &allowed };
        entry.permissions = request.consent(&update.consent)?;
    }
    let transaction = begin_unchanged(store, old)?;
    let tools = install_and_list_tools(&transaction, config, &entry, &archive.bytes).await;
    let is_changed = tools.as_ref().is_ok_and(|tools| tools::digest(tools) != old.tools_digest);
    let (tools, transaction) = match tools {
        Ok(tools) if is_changed => {
            // Others may change packages while a person reads.
            transaction.abandon()?;
            accept(old, &tools, store, update.consent.yes)?;
            let transaction = begin_unchanged(store, old)?;
            install(&transaction, config, &entry, &archive.bytes, false)?;
            (tools, transaction)
        }
        Ok(tools) => (tools, transaction),
        Err(failure) => {
            transaction.abandon()?;
            // The error of the source applies.
            unreachable?;
            return Err(failure);
        }
    };
    let (name, version) = (entry.name.clone(), entry.version.clone());
    entry.tools_digest.clone_from(&old.tools_digest);
    entry.tools.clone_from(&old.tools);
    let is_same = !is_changed && entry == *old && !old.tools.is_empty();
    put(&transaction, store, config, entry, &tools, &archive, Some(old))?;
    unreachable?;
    render::note(&match is_same {
        true => format!("{name} {version} is up to date"),
        false => format!("updated {name} to {version}; {TAKEN_UP}"),
    });
    Ok(())
}

/// Returns the installed package, if the configuration accepts its signature.
///
/// # Errors
///
/// Returns an error if it is not installed, or its signature was not verified here and is demanded.
fn served_here(store: &Store, config: &Config, entry: &Entry) -> Result<Fetched, Failure> {
    if let Some(demand) = Demand::of_locked(&config.packages, entry) {
        demand.check_here(entry, store).map_err(Failure::failed)?;
    }
    Fetched::installed(store, config, entry)
}

/// Checks that a package keeps its kind. The user agreed to a program that runs here, not to a remote
/// server that would get its settings.
fn is_of_kind(entry: &Entry, old: &Entry) -> Result<(), Failure> {
    if entry.kind == old.kind {
        return Ok(());
    }
    Err(Failure::failed(format!(
        "{0}: it was a {1}, and its source has a {2} now; run `orla remove {0}` and `orla add` to take that instead",
        entry.name,
        old.kind.word(),
        entry.kind.word()
    )))
}

/// Checks that a package keeps its signer, if its signatures are verified. Otherwise, the same archive
/// keeps the signer that was verified before.
fn keep_signer(entry: &mut Entry, old: &Entry, config: &Config) -> Result<(), Failure> {
    if Demand::of_locked(&config.packages, entry).is_none() {
        if entry.sha256 == old.sha256 {
            entry.signed_by.clone_from(&old.signed_by);
        } else if let Some(was) = &old.signed_by {
            let what = "the configuration has no signatures of it verified, so the lock no longer names its signer";
            render::note(&format!("{}: {what}, {was}", entry.name));
        }
        return Ok(());
    }
    let Some(was) = old.signed_by.as_ref().filter(|was| entry.signed_by.as_ref() != Some(was)) else {
        return Ok(());
    };
    let is = entry.signed_by.as_ref();
    let is = is.map_or_else(|| format!("has {UNSIGNED}"), |signer| format!("is signed by {signer}"));
    Err(Failure::failed(format!(
        "{0}: it was signed by {was}, and what its source has now {is}; run `orla remove {0}` and `orla add` to take that instead",
        entry.name
    )))
}

/// Begins a change of a package that is still as it was.
fn begin_unchanged<'a>(store: &'a Store, entry: &Entry) -> Result<Transaction<'a>, Failure> {
    let transaction = begin(store)?;
    match store.lock()?.get(&entry.name) == Some(entry) {
        true => Ok(transaction),
        false => Err(changed_meanwhile()),
    }
}

fn changed_meanwhile() -> Failure {
    Failure::failed(format!("another command changed it in {FILE} meanwhile: try again"))
}

/// Shows how tools have changed, and gets a yes.
fn accept(old: &Entry, tools: &[Tool], store: &Store, is_yes: bool) -> Result<(), Failure> {
    render::err(&difference(old, store.accepted_tools(old), tools));
    match is_yes || agrees(&format!("Accept these tools of {}?", old.name))? {
        true => Ok(()),
        false => Err(Failure::failed("its new tools were not accepted, and the old state stays")),
    }
}

/// Returns whether a version is older than another, as far as both are numbers with dots between them.
fn is_older(version: &str, than: &str) -> bool {
    let numbers = |text: &str| -> Option<Vec<u64>> {
        text.trim_start_matches('v').split('.').map(|part| part.parse().ok()).collect()
    };
    numbers(version).zip(numbers(than)).is_some_and(|(version, than)| version < than)
}

/// `orla outdated`.
pub(crate) fn outdated(json: bool, source: &Source) -> Result<(), Failure> {
    let config = super::load(source)?;
    let lock = store_of(&config).lock()?;
    super::server_runtime()?.block_on(async {
        let (mut rows, mut failures) = (Vec::new(), Failures::default());
        for entry in lock.entries() {
            let newest = match Origin::of(entry) {
                Ok(origin) => origin.newest(entry, &config).await,
                Err(failure) => Err(failure),
            };
            let error = newest.as_ref().err().map(Failure::text);
            rows.push((entry, newest.as_ref().ok().cloned(), error));
            failures.note(&entry.name, newest.map(drop));
        }
        if json {
            let rows = rows.into_iter().map(|(entry, newest, error)| {
                let (now, is_outdated) = newest.map(|now| (now.version, now.is_other)).unzip();
                serde_json::json!({"name": entry.name, "locked": entry.version, "now": now, "outdated": is_outdated, "source": entry.source, "error": error})
            });
            super::print_json(&rows.collect::<Vec<_>>())?;
        } else if rows.is_empty() {
            render::note(&format!("{FILE} names no packages"));
        } else {
            let rows: Vec<Vec<String>> = rows.into_iter().map(|(entry, newest, _)| {
                let now = newest.map_or_else(|| "?".to_owned(), |now| match now.is_other && now.version == entry.version {
                    true => format!("{} (changed)", now.version),
                    false => now.version,
                });
                vec![entry.name.clone(), entry.version.clone(), now, entry.source.clone()]
            }).collect();
            let heads = ["NAME", "LOCKED", "NOW", "SOURCE"];
            render::out(&render::table(&heads, &rows, render::width()));
        }
        failures.end()
    })
}

/// `orla sync`.
pub(crate) fn sync(sync: &cli::Sync, source: &Source) -> Result<(), Failure> {
    let config = super::load(source)?;
    let store = store_of(&config);
    // The remains of a killed process are removed, even if nothing is missing.
    drop(begin(&store)?);
    let lock = store.lock()?;
    let (mut count, mut failures) = (0, Failures::default());
    super::server_runtime()?.block_on(async {
        for entry in lock.entries() {
            let demand = Demand::of_locked(&config.packages, entry);
            let is_verified = demand.is_none_or(|demand| demand.check_here(entry, &store).is_ok());
            if store.presence(entry) != Presence::Installed || !is_verified {
                let synced = synced(&store, &config, entry, sync.offline, is_verified).await;
                count += usize::from(synced.is_ok());
                failures.note(&entry.name, synced);
            }
            if store.presence(entry) == Presence::Installed {
                let kind = check_kind(entry, &store.directory(entry));
                let ready = kind.map_err(Failure::failed);
                failures
                    .note(&entry.name, ready.and_then(|()| agreed(&store, &config, entry, sync.yes)));
            }
        }
    });
    failures.end()?;
    render::note(&match count {
        0 => format!("everything in {FILE} is installed"),
        1 => "installed 1 package".to_owned(),
        count => format!("installed {count} packages"),
    });
    Ok(())
}

/// Installs a package of the lock. If its signature was not verified on this machine, it is fetched again
/// and verified first.
async fn synced(
    store: &Store,
    config: &Config,
    entry: &Entry,
    offline: bool,
    is_verified: bool,
) -> Result<(), Failure> {
    let (bytes, signer) = match store.cached(&entry.sha256).filter(|_| is_verified) {
        Some(bytes) => (bytes, None),
        None if offline && !is_verified => {
            let what = "its signature was not verified on this machine, and --offline fetches nothing";
            return Err(Failure::failed(what));
        }
        None if offline && !Origin::of(entry)?.is_local() => {
            let what = "its archive is not in the cache, and --offline fetches nothing";
            return Err(Failure::failed(what));
        }
        None => fetch_locked(entry, config).await?,
    };
    let transaction = begin_unchanged(store, entry)?;
    install(&transaction, config, entry, &bytes, offline)?;
    if let Some(signer) = signer {
        store.note_signer(&entry.sha256, &config.packages.root_digest(), &signer)?;
    }
    store.keep(&bytes);
    Ok(())
}

/// Asks whether an archive of the lock may get the settings for its source. The archive is installed in
/// any case.
fn agreed(store: &Store, config: &Config, entry: &Entry, is_yes: bool) -> Result<(), Failure> {
    let to = agreement(entry, store.project());
    if !matches!(entry.kind, PackageKind::Bundle | PackageKind::Remote | PackageKind::OpenApi)
        || store.is_agreed(&to)
    {
        return Ok(());
    }
    let installed = Fetched::installed(store, config, entry)?;
    if installed.content.settings.is_empty() {
        return Ok(());
    }
    if !is_yes && !is_asked() {
        render::note(&format!(
            "{}: this archive gets no settings of its source before you agree: `orla sync --yes`",
            entry.name
        ));
        return Ok(());
    }
    let allowed = entry.permissions.iter().cloned().collect();
    let consent = cli::Consent { allow: Vec::new(), yes: is_yes };
    ConsentRequest { entry, package: &installed, config, allowed: &allowed }.consent(&consent)?;
    Ok(store.agree(&to)?)
}

/// `orla publish [PATH]`.
pub(crate) fn publish(publish: &cli::Publish, source: &Source) -> Result<(), Failure> {
    publish::publish(publish, &super::load(source)?)
}

/// `orla search --registry URL WORDS`.
pub(crate) fn search(url: &str, words: &str, limit: usize, json: bool) -> Result<(), Failure> {
    super::server_runtime()?.block_on(async {
        let kept = Kept::new(store_of(&Config::default()));
        let (found, has_more) = Registry::new(url, &kept)?.search(words, limit).await?;
        if let Some(note) = kept.note() {
            render::note(&note);
        }
        let shown = found.iter();
        if json {
            let rows = shown.map(|server| {
                let install = server.install();
                let from = install.as_ref().ok().map(Install::kind);
                let needed: &[String] = match &install {
                    Ok(Install::Program(_, launch)) => &launch.needed,
                    _ => &[],
                };
                serde_json::json!({"name": server.name, "version": server.version, "description": server.description, "status": server.status, "installable": install.is_ok(), "from": from, "needed_arguments": needed, "why_not": install.as_ref().err()})
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

/// Returns the permissions of the command line.
fn allowed(words: &[String], config: &Config) -> Result<BTreeSet<String>, Failure> {
    for word in words {
        let refused = |why: String| Failure::usage(format!("--allow {word}: {why}"));
        orla_process::confinement::check(word).map_err(refused)?;
        word.parse::<Permission>().map_err(|error| refused(error.to_string()))?;
        if writes_packages(word, config) {
            return Err(refused(
                "the files of installed packages stay those of their archives".to_owned(),
            ));
        }
    }
    Ok(words.iter().map(|word| portable_word(word, config)).collect())
}

/// Returns whether a permission is only for writing files of installed packages.
fn writes_packages(word: &str, config: &Config) -> bool {
    let placed = orla_process::confinement::placed(word, &project_of(config));
    let path = placed.strip_prefix("fs:write:").map(Path::new);
    path.is_some_and(|path| path.starts_with(store_of(config).root()))
}

fn begin(store: &Store) -> Result<Transaction<'_>, Failure> {
    let waits = || render::note("another orla changes the packages of this project; waiting for it");
    Ok(store.change(waits)?)
}

#[cfg(test)]
mod tests {
    use super::is_older;

    #[test]
    fn versions_are_compared_as_numbers() {
        assert!(is_older("1.9.0", "1.10.0") && is_older("1", "1.0"));
        assert!(!is_older("1.10.0", "1.9.0") && !is_older("1.0.0", "1.0.0"));
        assert!(!is_older("1.0.0-rc.1", "1.0.0"), "what is no number is not compared");
    }
}
