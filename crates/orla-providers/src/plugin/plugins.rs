//! All configured plugins and what they serve.

use std::collections::{BTreeSet, HashMap};
use std::fmt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use async_trait::async_trait;
use futures_util::future::join_all;
use orla_marketplace::schema::schema_from_declaration;
use orla_marketplace::{
    CapabilityManifest, Connection, DeclaredBy, PluginCapability, ProviderProblem, ProviderStatus,
    ProviderType, Registration, Source, Surface,
};
use orla_mcp::answer::ListedTool;
use orla_mcp::describe;
use orla_process::Instance;
use orla_process::confinement::{ProcessKey, Sandbox, Sandboxes};
use orla_process::supervisor::{Gate, Policy, Supervisor};
use parking_lot::Mutex;
use tokio::sync::watch;

use super::is_component;
use super::pool::{Plugin, processes};
use super::process::PluginProcess;
use super::protocol::MALFORMED;
use super::settings::{ENTRY, PluginSettings};

/// Every plugin of an instance.
///
/// # How it works
///
/// The processes of a plugin are [supervised](orla_process::supervisor). None is started before it is
/// needed. A capability holds its plugin, and so does every catalogue that holds the capability. A
/// process ends with its last user. Capabilities that name the same program with the same permissions
/// share it.
pub struct Plugins {
    processes: Supervisor<PluginProcess>,
    /// Decides whether a component may run; `None` allows every one.
    gate: Arc<Mutex<Option<Gate>>>,
    changes: watch::Sender<u64>,
    instance: Arc<Instance>,
    configured: Mutex<Configured>,
}

/// The reason why a plugin serves nothing.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Problem {
    /// The name of its entry.
    pub name: String,
    /// The reason.
    pub reason: String,
    /// Whether the plugin runs, but its answer to `describe` is not valid.
    pub is_malformed: bool,
}

#[derive(Default)]
struct Configured {
    /// The configured entries, each with its plugin.
    entries: Vec<(Arc<PluginSettings>, Arc<Plugin>)>,
    /// Individually declared capabilities, with their plugins.
    declared: Vec<(Registration, Arc<Plugin>)>,
    /// Plugins that a `plugin_path` names by path.
    own: HashMap<ProcessKey, Arc<Plugin>>,
    /// The directory of the configuration.
    base: PathBuf,
}

/// A capability's reference to its plugin.
#[derive(Debug)]
pub(super) struct Connected {
    pub(super) plugin: Arc<Plugin>,
    pub(super) function: Arc<str>,
    /// The permissions of a component in a call.
    pub(super) permissions: Arc<[String]>,
}

impl Plugins {
    /// See [`Supervisor::withheld`].
    pub fn withheld(&self) -> Vec<(String, BTreeSet<String>)> {
        self.processes.withheld()
    }

    /// See [`Supervisor::sandboxes`].
    pub fn sandboxes(&self) -> Vec<(String, Arc<Sandbox>)> {
        self.processes.sandboxes()
    }

    /// Creates an instance without plugins. Their processes carry the mark of `instance`.
    pub fn new(instance: Arc<Instance>, policy: Policy) -> Self {
        let changes = watch::Sender::new(0);
        Self {
            processes: Supervisor::new(Arc::clone(&instance), policy, changes.clone()),
            gate: Arc::default(),
            changes,
            instance,
            configured: Mutex::default(),
        }
    }

    /// Applies a loaded configuration. A plugin whose name stays is carried over: if unchanged, it keeps
    /// its processes; if changed, it is restarted. The others end with their last users. This function
    /// starts nothing.
    ///
    /// `capabilities` are those of the configuration whose provider is a plugin. A capability of an
    /// entry (`plugin:NAME`) is completed by the plugin's description of its function. `base` is the
    /// directory of the configuration.
    pub fn load(
        &self,
        plugins: impl IntoIterator<Item = PluginSettings>,
        capabilities: impl IntoIterator<Item = Registration>,
        base: &Path,
        policy: Policy,
    ) {
        let placed = |settings| Arc::new(PluginSettings { base: base.to_owned(), ..settings });
        let plugins: Vec<Arc<PluginSettings>> = plugins.into_iter().map(placed).collect();
        let capabilities: Vec<Registration> = capabilities.into_iter().collect();
        let mut own: HashMap<ProcessKey, PluginSettings> = HashMap::new();
        for capability in &capabilities {
            let Ok(plugin) = capability.manifest.provider.settings::<PluginCapability>() else {
                continue;
            };
            if !plugin.plugin_path.starts_with(ENTRY) {
                let key = own_key(plugin);
                own.entry(key).or_insert_with_key(|key| self.own_settings(key, base));
            }
        }
        // All processes are loaded together, because the supervisor ends every process that is not
        // named.
        let entries = plugins.iter().flat_map(|settings| processes(settings, true));
        let others = own.values().flat_map(|settings| processes(settings, false));
        self.processes.load(entries.chain(others), policy);
        let mut configured = self.configured.lock();
        let mut next = Configured { base: base.to_owned(), ..Configured::default() };
        for settings in plugins {
            let same = configured.entries.iter().find(|(old, _)| *old == settings);
            let plugin = match same {
                Some((_, plugin)) => Arc::clone(plugin),
                None => Arc::new(self.plugin(&settings.name, &settings, true)),
            };
            next.entries.push((settings, plugin));
        }
        for (key, settings) in own {
            let plugin = match configured.own.get(&key) {
                Some(plugin) if configured.base == base => Arc::clone(plugin),
                _ => Arc::new(self.plugin(&shown(key.address()), &settings, false)),
            };
            next.own.insert(key, plugin);
        }
        for capability in capabilities {
            let Ok(plugin) = capability.manifest.provider.settings::<PluginCapability>() else {
                continue;
            };
            if let Some(plugin) = find(&next, plugin) {
                next.declared.push((capability, plugin));
            }
        }
        let old = std::mem::replace(&mut *configured, next);
        drop(configured);
        // Dropped outside the lock, because this may end a process.
        drop(old);
    }

    /// Sets the gate that decides before each start of a process; `None` lets every process start.
    pub fn guard(&self, gate: Option<Gate>) {
        self.gate.lock().clone_from(&gate);
        self.processes.guard(gate);
    }

    /// Asks every entry for its functions. Returns the problems of those without an answer, by name.
    pub async fn check(&self) -> Vec<Problem> {
        self.learn().await;
        let configured = self.configured.lock();
        let silent = configured.entries.iter().filter(|(_, plugin)| plugin.info().is_none());
        silent
            .filter_map(|(settings, plugin)| {
                let reason = plugin.status(None).last_failure?;
                let is_malformed = reason.starts_with(MALFORMED);
                Some(Problem { name: settings.name.clone(), reason, is_malformed })
            })
            .collect()
    }

    fn plugin(&self, shown: &str, settings: &PluginSettings, describes: bool) -> Plugin {
        Plugin::new(&self.processes, &self.gate, shown, settings, describes)
    }

    /// Returns the plugin of a capability. A plugin that is named by path is created at its first use.
    ///
    /// # Errors
    /// There is no such entry.
    pub(super) fn reach(&self, capability: &PluginCapability) -> Result<Arc<Plugin>, String> {
        let mut configured = self.configured.lock();
        if let Some(plugin) = find(&configured, capability) {
            return Ok(plugin);
        }
        let path = &capability.plugin_path;
        if let Some(name) = path.strip_prefix(ENTRY) {
            return Err(format!("no plugin is called {name}"));
        }
        let key = own_key(capability);
        let settings = self.own_settings(&key, &configured.base);
        let plugin = Arc::new(self.plugin(&shown(path), &settings, false));
        configured.own.insert(key, Arc::clone(&plugin));
        Ok(plugin)
    }

    /// Returns the status of the plugin of a capability. A process need not exist yet.
    pub(super) fn status(&self, capability: &PluginCapability) -> ProviderStatus {
        let found = find(&self.configured.lock(), capability);
        let is_process = !is_component(capability.plugin_path.as_ref());
        let plugin = match found {
            None if is_process => {
                let sandboxes = self.instance.sandboxes();
                let mut status = ProviderStatus::default();
                status.sandbox = Some(sandboxes.status_of(sandbox_of(capability, sandboxes).as_ref()));
                return status;
            }
            None => self.reach(capability).ok(),
            found => found,
        };
        let status = |plugin: Arc<Plugin>| plugin.status(Some(&capability.options.permissions));
        plugin.map(status).unwrap_or_default()
    }

    /// Returns the settings of a program without an entry. Its path is in its name, because no entry has a
    /// name with a slash.
    fn own_settings(&self, key: &ProcessKey, base: &Path) -> PluginSettings {
        let path = key.address();
        let command = if path.contains('/') { path.to_owned() } else { format!("./{path}") };
        let (name, sandbox) = (key.name(command.clone()), key.sandbox(self.instance.sandboxes()));
        PluginSettings { base: base.to_owned(), sandbox, ..PluginSettings::new(name, command) }
    }
}

/// Returns an instance without plugins, with the default policy. Processes outlive this program if it is
/// killed.
impl Default for Plugins {
    fn default() -> Self {
        Self::new(Instance::unguarded(), Policy::default())
    }
}

impl fmt::Debug for Plugins {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.processes.fmt(f)
    }
}

/// Returns the sandbox of the program that a `plugin_path` names by path; `None` if there is none, or if
/// nothing confines it.
pub fn sandbox_of(capability: &PluginCapability, sandboxes: &Sandboxes) -> Option<Arc<Sandbox>> {
    own_key(capability).sandbox(sandboxes)
}

/// Returns the key of a capability's plugin that has no entry.
fn own_key(capability: &PluginCapability) -> ProcessKey {
    let path = &capability.plugin_path;
    // A component has no process, and is confined in each call.
    let has_process = !path.starts_with(ENTRY) && !is_component(path.as_ref());
    let words = if has_process { &capability.options.permissions[..] } else { &[] };
    ProcessKey::new(path, words)
}

/// Returns the name of a program in messages, without its directory, because untrusted callers may read
/// them.
fn shown(path: &str) -> String {
    let name = Path::new(path).file_name();
    name.map_or_else(|| path.to_owned(), |name| name.to_string_lossy().into_owned())
}

fn find(configured: &Configured, capability: &PluginCapability) -> Option<Arc<Plugin>> {
    match capability.plugin_path.strip_prefix(ENTRY) {
        Some(name) => {
            let entry = configured.entries.iter().find(|(settings, _)| settings.name == name);
            entry.map(|(_, plugin)| Arc::clone(plugin))
        }
        None => configured.own.get(&own_key(capability)).map(Arc::clone),
    }
}

/// Returns the provider of a function, with its connection.
fn provider(plugin: &Arc<Plugin>, function: &str, permissions: &[String]) -> ProviderType {
    let mut capability = PluginCapability::new(plugin.path.clone(), function);
    let connected = Connected {
        plugin: Arc::clone(plugin),
        function: function.into(),
        permissions: permissions.into(),
    };
    capability.options.connection = Some(Connection::new(Arc::new(connected)));
    capability.options.permissions = permissions.to_vec();
    capability.options.content = Some(plugin.content.clone());
    ProviderType::Plugin(capability)
}

fn functions<T>(plugin: &Plugin, read: impl FnOnce(&[ListedTool]) -> T) -> T {
    let info = plugin.info();
    read(info.as_deref().and_then(|info| info.tools.as_deref()).unwrap_or_default())
}

/// Adds a plugin's description of a function to a capability. Its schemas may have any supported
/// notation; a schema in another form is passed on unchanged.
fn complete(registration: &mut Registration, function: &ListedTool, has_description: bool) {
    let Registration { manifest, policy } = registration;
    let declared = |schema: &Option<serde_json::Value>| schema_from_declaration(schema.as_ref()?).ok();
    if manifest.input_schema.is_none() {
        manifest.input_schema = declared(&function.input_schema);
        policy.input_declared_by = DeclaredBy::Provider;
    }
    if manifest.output_schema.is_none() {
        manifest.output_schema = declared(&function.output_schema);
        policy.output_declared_by = DeclaredBy::Provider;
    }
    describe(registration, function, has_description);
}

/// Returns the capabilities of an entry: `PLUGIN.FUNCTION` each, or the plugin's name if there is only
/// one.
fn of_entry(settings: &PluginSettings, plugin: &Arc<Plugin>) -> Vec<Registration> {
    functions(plugin, |functions| {
        let only = functions.len() == 1;
        let registration = |function: &ListedTool| {
            let name = &*function.name;
            let names = &settings.names;
            let is_itself = only && names.prefix.is_none() && !names.rename.contains_key(name);
            let id = if is_itself { settings.name.clone() } else { names.id_of(&settings.name, name) };
            let manifest =
                CapabilityManifest::new(id, "", provider(plugin, name, &settings.permissions));
            let mut registration = Registration::from(manifest);
            complete(&mut registration, function, false);
            registration.manifest.permissions.clone_from(&settings.permissions);
            registration.policy.timeout = settings.timeout;
            registration.policy.redaction.clone_from(&settings.redaction);
            registration
        };
        let served = functions.iter().filter(|function| settings.names.serves(&function.name));
        served.map(registration).collect()
    })
}

/// Returns a declared capability, completed by its plugin's description of the function.
fn of_declared(declared: &Registration, plugin: &Arc<Plugin>) -> Option<Registration> {
    let own: &PluginCapability = declared.manifest.provider.settings().ok()?;
    let name = own.function_name.clone();
    let mut registration = declared.clone();
    registration.manifest.provider = provider(plugin, &name, &own.options.permissions);
    functions(plugin, |functions| {
        if let Some(function) = functions.iter().find(|function| function.name == name) {
            let has_description = !registration.manifest.description.trim().is_empty();
            complete(&mut registration, function, has_description);
        }
    });
    Some(registration)
}

#[async_trait]
impl Source for Plugins {
    fn registrations(&self) -> Vec<Registration> {
        let configured = self.configured.lock();
        let entries =
            configured.entries.iter().flat_map(|(settings, plugin)| of_entry(settings, plugin));
        let declared = configured.declared.iter();
        let declared = declared.filter_map(|(declared, plugin)| of_declared(declared, plugin));
        entries.chain(declared).collect()
    }

    fn surfaces(&self) -> Vec<Arc<dyn Surface>> {
        Vec::new()
    }

    fn changes(&self) -> watch::Receiver<u64> {
        self.processes.changes()
    }

    fn may_serve(&self, name: &str) -> bool {
        let configured = self.configured.lock();
        configured.entries.iter().any(|(settings, _)| settings.names.may_serve(&settings.name, name))
    }

    fn problems(&self, name: Option<&str>) -> Vec<ProviderProblem> {
        let configured = self.configured.lock();
        let silent = configured.entries.iter().filter(|(settings, plugin)| {
            functions(plugin, <[_]>::is_empty)
                && name.is_none_or(|name| settings.names.may_serve(&settings.name, name))
        });
        let problem = |(settings, plugin): &(Arc<PluginSettings>, Arc<Plugin>)| {
            let empty = plugin.info().map(|_| "it describes no functions");
            settings.names.process_problem("plugin", &settings.name, plugin.status(None), empty)
        };
        silent.filter_map(problem).collect()
    }

    fn start_eager(&self, all: bool) {
        for (settings, plugin) in &self.configured.lock().entries {
            if all || settings.eager {
                plugin.request_start();
            }
        }
    }

    async fn learn(&self) {
        let plugins: Vec<Arc<Plugin>> =
            self.configured.lock().entries.iter().map(|(_, plugin)| Arc::clone(plugin)).collect();
        let changed = join_all(plugins.iter().map(|plugin| plugin.learn())).await;
        if changed.contains(&true) {
            self.changes.send_modify(|count| *count += 1);
        }
    }

    async fn shutdown(&self) {
        self.processes.shutdown().await;
    }
}
