//! Serves the packages of `orla.lock`.
//!
//! `orla-packages` knows the lock and the directories. This module turns them into capabilities: a
//! bundle is an MCP server, a folder is a package like those of the tools directory. Both are confined
//! to the permissions of the lock, and a tool that differs from the lock is unavailable
//! ([`Installed::hold_back`]).

pub(crate) mod content;
pub(crate) mod names;
pub(crate) mod place;
pub(crate) mod signatures;

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use orla_marketplace::rtfs::TypeExpr;
use orla_marketplace::schema::json_schema_of;
use orla_marketplace::{
    ANNOTATIONS, Availability, CapabilityManifest, HttpCapability, MCPCapability, ProviderType,
    Registration,
};
use orla_mcp::answer::ListedTool;
use orla_packages::lock::{Entry, FILE, PackageKind};
use orla_packages::store::{Own, Presence, Store, StoreError, keep_tools};
use orla_packages::tools::{self, Tool};
use orla_process::Limits;
use orla_process::confinement::Sandboxes;
use orla_providers::capsule::packages::{self, Package};
use orla_providers::capsule::{is_unlearned, package_of};
use orla_providers::mcp::ServerSettings;
use orla_providers::tool::{self, ForeignTerms, ForeignTool, ForeignTools, Override};
use parking_lot::Mutex;
use serde_json::Value;

use crate::config::{Config, PackagesConfig};
use signatures::Demand;

/// The name of a package that cannot be served, and the reason.
pub(crate) type Refused = (String, String);

/// The installed packages.
#[derive(Clone, Default)]
pub(crate) struct Installed {
    packages: Vec<InstalledPackage>,
    refused: Vec<Refused>,
    /// The tools that the packages report, by the names of the packages.
    seen: Arc<Mutex<BTreeMap<String, Vec<Tool>>>>,
    /// The reasons why packages are not served, by their names.
    unserved: Arc<Mutex<BTreeMap<String, String>>>,
    /// The packages with a tool that is held back.
    changed: Arc<Mutex<BTreeSet<String>>>,
    /// The packages whose accepted descriptions were stored since they were loaded.
    kept: Arc<Mutex<BTreeSet<String>>>,
}

/// A package of the lock.
#[derive(Clone)]
struct InstalledPackage {
    entry: Entry,
    directory: PathBuf,
    presence: Presence,
    /// Why the configuration does not accept its signature.
    distrust: Option<String>,
    /// Whether the user agreed to give this archive the settings for its source.
    has_settings: bool,
    /// Whether its tools must match the lock. They are not known before they are accepted.
    is_accepted: bool,
    /// The accepted descriptions of its tools, if they are stored here.
    accepted_tools: Option<Vec<Tool>>,
}

/// Returns the directory of a project: that of its configuration, or the current one.
pub(crate) fn project_of(config: &Config) -> PathBuf {
    let parent = config.file.as_deref().and_then(Path::parent).unwrap_or("".as_ref());
    std::path::absolute(parent.join(".")).unwrap_or_else(|_| parent.to_owned())
}

/// Returns the store of a project's installed packages and the user's earlier downloads.
pub(crate) fn store_of(config: &Config) -> Store {
    let variable =
        |name: &str| std::env::var_os(name).map(PathBuf::from).filter(|path| path.is_absolute());
    let below = |name: &str, usual: &str| {
        let place = variable(name).or_else(|| Some(variable("HOME")?.join(usual)));
        place.map(|place| place.join("orla/packages"))
    };
    let own = below("XDG_CACHE_HOME", ".cache").zip(below("XDG_STATE_HOME", ".local/state"));
    let own = own.map(|(archives, contents)| Own { archives, contents });
    Store::new(project_of(config), own)
}

impl Installed {
    /// Reads the packages that the lock of a project names.
    ///
    /// # Errors
    ///
    /// Returns an error if the lock cannot be read.
    pub(crate) fn of(store: &Store, config: &PackagesConfig) -> Result<Self, StoreError> {
        let lock = store.lock()?;
        let has_settings = |entry: &Entry| store.is_agreed(&content::agreement(entry, store.project()));
        let distrust = |entry: &Entry| Demand::of_locked(config, entry)?.check_here(entry, store).err();
        let packages = lock.entries().iter().map(|entry| InstalledPackage {
            directory: store.directory(entry),
            presence: store.presence(entry),
            distrust: distrust(entry),
            has_settings: has_settings(entry),
            is_accepted: true,
            accepted_tools: store.accepted_tools(entry),
            entry: entry.clone(),
        });
        Ok(Self { packages: packages.collect(), ..Self::default() })
    }

    /// Returns a single package that was just installed and whose tools are to be read.
    pub(crate) fn candidate(entry: Entry, directory: PathBuf) -> Self {
        let presence = Presence::Installed;
        let package = InstalledPackage {
            entry,
            directory,
            presence,
            distrust: None,
            has_settings: true,
            is_accepted: false,
            accepted_tools: None,
        };
        Self { packages: vec![package], ..Self::default() }
    }

    /// Without the packages for which there is a reason.
    pub(crate) fn without(mut self, mut reason: impl FnMut(&str) -> Option<String>) -> Self {
        self.packages.retain(|package| {
            let name = &package.entry.name;
            let why = reason(name);
            let is_served = why.is_none();
            self.refused.extend(why.map(|why| (name.clone(), why)));
            is_served
        });
        self
    }

    /// Returns the packages whose names the user already uses.
    pub(crate) fn refused(&self) -> &[Refused] {
        &self.refused
    }

    /// Returns the names of all of them.
    pub(crate) fn names(&self) -> Vec<String> {
        self.packages.iter().map(|package| package.entry.name.clone()).collect()
    }

    /// Returns whether nothing is installed.
    pub(crate) fn is_empty(&self) -> bool {
        self.packages.is_empty()
    }

    /// Returns bundles and servers behind a URL as MCP servers, and the names of packages that cannot be
    /// served, with the reasons. Relative paths of permissions start at `base`.
    pub(crate) fn servers(&self, base: &Path) -> (Vec<ServerSettings>, Vec<Refused>) {
        self.served(&[PackageKind::Bundle, PackageKind::Remote], |package| package.server(base))
    }

    /// Folders as packages, likewise.
    pub(crate) fn folders(&self, base: &Path) -> (Vec<Package>, Vec<Refused>) {
        self.served(&[PackageKind::Folder], |package| package.folder(base))
    }

    /// Returns executables as tools: `NAME.TOOL`, or `NAME` if a tool has the package's name. `made`
    /// keeps them from one load to the next. `limits` bounds each call, and `changes` are those of the
    /// user.
    pub(crate) fn tools(
        &self,
        base: &Path,
        limits: Limits,
        changes: &HashMap<String, Override>,
        sandboxes: &Sandboxes,
        made: &mut ForeignTools,
    ) -> (Vec<Registration>, Vec<Refused>) {
        let mut before = std::mem::take(made);
        let (found, refused) = self.served(&[PackageKind::Tools], |package| {
            let name = &package.entry.name;
            let (tools, permissions) = package.tools(base)?;
            let (directory, permissions) = (&*package.directory, &*permissions);
            let terms = ForeignTerms { directory, permissions, limits, changes, sandboxes };
            let tools = tools.into_iter().map(|tool| {
                let id =
                    if tool.name() == name { name.clone() } else { format!("{name}.{}", tool.name()) };
                made.registration(&mut before, tool, id, terms)
            });
            tools.collect::<Result<Vec<_>, _>>().map_err(|error| format!("{name}: {error}"))
        });
        (found.into_iter().flatten().collect(), refused)
    }

    /// Returns the operations of OpenAPI documents and the warnings, likewise.
    pub(crate) fn operations(&self, base: &Path) -> (Vec<Registration>, Vec<String>, Vec<Refused>) {
        let (found, refused) = self.served(&[PackageKind::OpenApi], |package| {
            content::operations(&package.entry, &package.directory, base, package.has_settings)
        });
        let (found, warnings): (Vec<_>, Vec<_>) = found.into_iter().unzip();
        (found.into_iter().flatten().collect(), warnings.into_iter().flatten().collect(), refused)
    }

    /// Returns the result of `serve` for the packages of these kinds, and the packages for which it
    /// failed.
    fn served<T>(
        &self,
        kinds: &[PackageKind],
        mut serve: impl FnMut(&InstalledPackage) -> Result<T, String>,
    ) -> (Vec<T>, Vec<Refused>) {
        let (mut found, mut refused) = (Vec::new(), Vec::new());
        for kind in kinds {
            for package in self.packages.iter().filter(|package| package.entry.kind == *kind) {
                match package.check().and_then(|()| serve(package)) {
                    Ok(served) => found.push(served),
                    Err(why) => {
                        self.unserved.lock().insert(package.entry.name.clone(), why.clone());
                        refused.push((package.entry.name.clone(), why));
                    }
                }
            }
        }
        (found, refused)
    }

    /// Makes the tools unavailable that differ from the lock. `without` contains the providers that have
    /// no tool at all.
    pub(crate) fn hold_back<'a>(
        &self,
        registrations: impl Iterator<Item = &'a mut Registration>,
        without: impl Iterator<Item = String>,
    ) {
        if self.packages.is_empty() {
            return;
        }
        let mut of: BTreeMap<usize, Vec<(&mut Registration, Tool)>> = BTreeMap::new();
        self.changed.lock().clear();
        for registration in registrations {
            let owner = self.packages.iter().position(|package| package.owns(registration));
            // A tool that is unavailable for another reason does not describe itself.
            let is_served = registration.policy.availability == Availability::Available;
            if let Some(owner) = owner.filter(|_| is_served) {
                // A placeholder for tools that are not known yet. A call waits for them.
                if is_unlearned(&registration.manifest.provider) {
                    registration.policy.availability = Availability::Unlearned;
                    continue;
                }
                let tool = tool_of(&registration.manifest, &self.packages[owner].entry.name);
                of.entry(owner).or_default().push((registration, tool));
            }
        }
        for (owner, registrations) in of {
            let package = &self.packages[owner];
            let reported: Vec<Tool> = registrations.iter().map(|(_, tool)| tool.clone()).collect();
            let is_same = tools::digest(&reported) == package.entry.tools_digest;
            if is_same
                && matches!(package.entry.kind, PackageKind::Bundle | PackageKind::OpenApi)
                && package.is_accepted
                && package.accepted_tools.is_none()
                && self.kept.lock().insert(package.entry.name.clone())
            {
                package.keep_tools(&reported);
            }
            if package.is_accepted && !is_same {
                // The two digests of the lock contradict each other.
                let is_edited = tools::digests(&reported) == package.entry.tools;
                for (registration, tool) in registrations {
                    if is_edited || package.has_changed(&tool) {
                        let name = &package.entry.name;
                        let why = format!(
                            "its description or its schema is not the one that was accepted ({FILE}); `orla update {name}` shows the difference"
                        );
                        registration.policy = registration.policy.clone().unavailable(why);
                        self.changed.lock().insert(name.clone());
                    }
                }
            }
            self.seen.lock().insert(package.entry.name.clone(), reported);
        }
        let is_server = |name: &String| {
            let mut packages = self.packages.iter().filter(|package| package.entry.name == *name);
            packages
                .any(|package| matches!(package.entry.kind, PackageKind::Bundle | PackageKind::Remote))
        };
        let without = without.filter(is_server).map(|name| (name, Vec::new()));
        self.seen.lock().extend(without);
    }

    /// Returns the tools of the lock that are not served, each with the reason: tools of a package that
    /// cannot be served, and tools that a package no longer has.
    pub(crate) fn unserved(&self) -> Vec<Registration> {
        let (unserved, seen) = (self.unserved.lock(), self.seen.lock());
        let tools = self.packages.iter().flat_map(|package| {
            let name = &package.entry.name;
            let reported = seen.get(name).filter(|_| package.is_accepted);
            let why = unserved.get(name);
            let removed = format!("{name} no longer has it; `orla update {name}` shows the difference");
            let tools = package.entry.tools.keys().filter_map(move |tool| {
                let is_removed = reported.is_some_and(|tools| tools.iter().all(|one| one.name != *tool));
                let why = why.or_else(|| is_removed.then_some(&removed))?.clone();
                package.placeholder(tool, &why)
            });
            tools.collect::<Vec<_>>()
        });
        tools.collect()
    }

    /// Returns whether the prompts and resources of an owner may be served. The tools of the package
    /// must still match the accepted ones.
    pub(crate) fn may_surface(&self, owner: &str) -> bool {
        !self.changed.lock().contains(owner)
    }

    /// Returns the tools that a package reports, once it was asked.
    pub(crate) fn reported_tools(&self, name: &str) -> Vec<Tool> {
        self.seen.lock().get(name).cloned().unwrap_or_default()
    }
}

impl InstalledPackage {
    /// Checks that its files exist, and that it has the signature that the configuration demands.
    fn check(&self) -> Result<(), String> {
        let Entry { name, version, .. } = &self.entry;
        if let Some(why) = &self.distrust {
            return Err(format!("{name} {version} of {FILE}: {why}"));
        }
        match self.presence {
            Presence::Installed => {
                content::check_kind(&self.entry, &self.directory).map_err(|why| format!("{name}: {why}"))
            }
            Presence::Missing => {
                Err(format!("{name} {version} of {FILE} is not installed: run `orla sync`"))
            }
            Presence::Changed => Err(format!(
                "{name} {version} of {FILE} does not have the files of its archive: run `orla sync` to have them again, or `orla update {name}` to take what is at its source"
            )),
        }
    }

    /// Returns a placeholder for a tool that is not served. It requires the same permissions as the
    /// tool, so that a policy decides alike.
    fn placeholder(&self, tool: &str, why: &str) -> Option<Registration> {
        let name = &self.entry.name;
        let id = if tool.is_empty() { name.clone() } else { format!("{name}.{tool}") };
        match self.entry.kind {
            PackageKind::Folder | PackageKind::Tools => {
                let file = self.directory.join(if tool.is_empty() { name } else { tool });
                tool::unserved(id, &file, &self.directory, why).ok()
            }
            PackageKind::Bundle | PackageKind::Remote | PackageKind::OpenApi => {
                let provider = match self.entry.kind {
                    PackageKind::OpenApi => {
                        ProviderType::Http(HttpCapability::new(String::new(), None, 0))
                    }
                    _ => ProviderType::MCP(MCPCapability::new(format!("mcp:{name}"), tool, 0)),
                };
                let what = "A tool that cannot be served.".to_owned();
                let manifest = CapabilityManifest::new(id, what, provider);
                let mut registration = Registration::from(manifest);
                registration.policy = registration.policy.unavailable(why);
                Some(registration)
            }
        }
    }

    fn server(&self, base: &Path) -> Result<ServerSettings, String> {
        match self.entry.kind {
            PackageKind::Remote => {
                content::remote(&self.entry, &self.directory, base, self.has_settings)
            }
            _ => {
                let mut settings =
                    content::server(&self.entry, &self.directory, base, self.has_settings)?;
                let accepted = self.accepted_tools.iter().flatten();
                settings.expected_tools = accepted.map(listed_tool).collect();
                Ok(settings)
            }
        }
    }

    /// Stores the descriptions of its accepted tools. On a machine that got them by `orla sync`, the
    /// package describes them first when it runs.
    fn keep_tools(&self, tools: &[Tool]) {
        if let Err(error) = keep_tools(&self.directory, tools) {
            let package = &self.entry.name;
            tracing::debug!(package, %error, "the descriptions of its tools are not stored");
        }
    }

    /// Returns its executables with their permissions.
    fn tools(&self, base: &Path) -> Result<(Vec<ForeignTool>, Vec<String>), String> {
        let name = &self.entry.name;
        let (tools, problems) = tool::foreign(&self.directory).map_err(|error| error.to_string())?;
        if let Some(problem) = problems.first() {
            return Err(format!("{name}: {}", problem.message));
        }
        let wanted: Vec<String> = tools.iter().flat_map(ForeignTool::wants).collect();
        let granted = self.granted(&wanted, base)?;
        Ok((tools, granted))
    }

    /// Returns the permissions of the lock. The package's own permissions are relative to the package,
    /// and the user's additional grants to the project.
    ///
    /// # Errors
    ///
    /// Returns an error if a wanted permission is not granted.
    fn granted(&self, wanted: &[String], base: &Path) -> Result<Vec<String>, String> {
        let Entry { name, permissions, .. } = &self.entry;
        let is_granted = |word: &String| {
            permissions.contains(word) || permissions.contains(&place::portable_word(word, base))
        };
        if let Some(missing) = wanted.iter().find(|word| !is_granted(word)) {
            return Err(format!(
                "{name}: its manifest wants {missing}, which {FILE} does not grant: run `orla update {name} --allow {missing}`"
            ));
        }
        let granted = permissions.iter().map(|word| match wanted.contains(word) {
            true => word.clone(),
            false => orla_process::confinement::placed(word, base),
        });
        Ok(granted.collect())
    }

    fn folder(&self, base: &Path) -> Result<Package, String> {
        let loaded = packages::load(&self.directory);
        let (mut package, _) = loaded.map_err(|findings| {
            findings.iter().map(ToString::to_string).collect::<Vec<_>>().join("; ")
        })?;
        let manifest = &mut package.manifest;
        let Entry { name, version, .. } = &self.entry;
        content::check_folder(manifest).map_err(|why| format!("{name}: {why}"))?;
        if manifest.version.to_string() != *version {
            return Err(format!(
                "{name}: {FILE} says version {version}, and its manifest says {}: take {FILE} back from version control, or run `orla update {name}`",
                manifest.version
            ));
        }
        let wanted = content::wants(manifest);
        // The lock determines which variables of the environment it gets.
        manifest.pass_env.clear();
        // Its names begin with its own, which no tool of the user has then.
        manifest.prefix = None;
        let granted = self.granted(&wanted, base)?;
        package.manifest.declared.permissions = Some(granted);
        package.manifest.declared.is_foreign = true;
        package.manifest.name.clone_from(&self.entry.name);
        Ok(package)
    }

    fn owns(&self, registration: &Registration) -> bool {
        let manifest = &registration.manifest;
        match self.entry.kind {
            PackageKind::Folder | PackageKind::Tools => {
                package_of(&manifest.provider).is_some_and(|place| place == self.directory)
            }
            kind => {
                let rest = manifest.id.strip_prefix(self.entry.name.as_str());
                let is_its = match kind {
                    PackageKind::OpenApi => matches!(manifest.provider, ProviderType::Http(_)),
                    _ => matches!(manifest.provider, ProviderType::MCP(_)),
                };
                is_its && rest.is_some_and(|rest| rest.starts_with('.'))
            }
        }
    }

    /// Returns whether the description of a tool differs from the accepted one. An earlier version of
    /// orla locked only the digest of all tools.
    fn has_changed(&self, tool: &Tool) -> bool {
        let digest = tools::digest(std::slice::from_ref(tool));
        self.entry.tools.is_empty() || self.entry.tools.get(&tool.name) != Some(&digest)
    }
}

/// Returns a tool as a server would list it.
fn listed_tool(tool: &Tool) -> ListedTool {
    let given = |value: &Value| Some(value.clone()).filter(|value| !value.is_null());
    ListedTool {
        name: tool.name.clone(),
        title: tool.title.clone(),
        description: Some(tool.description.clone()),
        input_schema: given(&tool.input),
        output_schema: given(&tool.output),
        annotations: given(&tool.annotations),
        ..ListedTool::default()
    }
}

/// Returns the description of a package's capability as a tool.
fn tool_of(manifest: &CapabilityManifest, package: &str) -> Tool {
    let schema = |schema: &Option<TypeExpr>| match schema {
        Some(schema) => {
            let original = schema.json_schema().and_then(|text| serde_json::from_str(text).ok());
            original.unwrap_or_else(|| json_schema_of(schema))
        }
        None => Value::Null,
    };
    let annotations = manifest.metadata.get(ANNOTATIONS);
    let name = manifest.id.strip_prefix(package).unwrap_or(&manifest.id).trim_start_matches('.');
    Tool {
        name: name.to_owned(),
        title: manifest.title().map(str::to_owned),
        description: manifest.description.clone(),
        input: schema(&manifest.input_schema),
        output: schema(&manifest.output_schema),
        annotations: annotations.and_then(|text| serde_json::from_str(text).ok()).unwrap_or_default(),
    }
}
