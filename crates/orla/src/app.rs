//! The wiring: the only file that names executors.
//!
//! [`App`] is everything that a configuration describes, without a transport: the marketplace with its executors,
//! and the snapshot of served capabilities. It binds no socket and starts no tool, so `list`, `check` and `call`
//! use it as well as the server.
//!
//! The snapshot is made in [`served`](crate::served); problems and remarks are collected in
//! [`findings`](crate::findings).

mod documents;

use std::collections::{BTreeSet, HashMap};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use futures_util::future::join_all;
use orla_cluster::Cluster;
use orla_document::Position;
use orla_marketplace::attestation::ContentSource;
use orla_marketplace::discovery::DiscoveryExecutor;
use orla_marketplace::program::file::ProgramFileExecutor;
use orla_marketplace::program::{IDS, LanguageExecutor};
use orla_marketplace::{
    Availability, CapabilityMarketplace, Entry, ProviderProblem, ProviderType, Redactor, Registration,
    RoutedExecutor, Source,
};
use orla_process::confinement::{self, Declared, Sandbox};
use orla_process::environment::Environment;
use orla_process::standby::Standby;
use orla_process::supervisor::{Gate, Policy};
use orla_process::{Instance, PoolLimits, start_failure};
use orla_providers::a2a::{A2AExecutor, Agents};
use orla_providers::builtin::{self, LocalExecutor};
use orla_providers::capsule::{CapsuleExecutor, Capsules, Mode, packages};
use orla_providers::http::HttpExecutor;
use orla_providers::mcp::{self, MCPExecutor, McpServers, ServerSettings};
use orla_providers::plugin::{self, PluginExecutor, Plugins};
use orla_providers::remote::{RemoteRTFSExecutor, Remotes};
use orla_providers::sign_in::SignIns;
use orla_providers::stream::{StreamExecutor, Streams};
use orla_providers::tool::{Loaded, Loader, Override, ToolExecutor, ToolProvider, prestarted};
use orla_secrets::Resolver;
use orla_server::shared_tool;
use parking_lot::Mutex;

use documents::Documents;

use crate::Failure;
#[cfg(feature = "agent")]
use crate::agent::environment;
#[cfg(feature = "agent")]
use crate::agent::prompted::{self, PromptedExecutor};
use crate::config::{Config, Placed, Problem, ToolOverride};
use crate::confined::{self, Declarations};
use crate::findings::{Findings, sentences};
use crate::governance::{self, Governance, Rules};
use crate::packages::{Installed, store_of};
use crate::served::{Providers, Served, Sources, limits};
use crate::{package_secrets, programs, prompts, terminal_approver, tokens};

/// The least time between two snapshots for changes of a provider.
const MIN_SNAPSHOT_INTERVAL: Duration = Duration::from_millis(50);

/// What a configuration describes.
pub(crate) struct App {
    marketplace: Arc<CapabilityMarketplace>,
    instance: Arc<Instance>,
    /// Processes of tools that wait for a call.
    standby: Arc<Standby>,
    capsules: Arc<Capsules>,
    servers: Arc<McpServers>,
    plugins: Arc<Plugins>,
    documents: Arc<Documents>,
    /// The sign-ins of what is no MCP server.
    sign_ins: SignIns,
    agents: Arc<Agents>,
    remotes: Arc<Remotes>,
    streams: Arc<Streams>,
    /// The cluster that this instance is a node of.
    cluster: Option<Arc<Cluster>>,
    /// All of them, those above included.
    providers: Providers,
    served: Arc<Served>,
    tools: Loader,
    governance: Governance,
    rules: Arc<Rules>,
    /// The packages that cannot be served, each with its name and the reason.
    refused: Arc<Mutex<Vec<(String, String)>>>,
    /// The concurrency that the executors were made for.
    concurrency: Option<usize>,
    findings: Findings,
    /// The processes that may change declarations, a sentence for each.
    exposed: Vec<String>,
    /// A package whose tools are to be learned.
    candidate: Option<Installed>,
    /// Knows the secrets of the newest snapshot.
    secrets: Arc<Redactor>,
}

impl App {
    /// Finds everything and puts it together.
    ///
    /// # Errors
    /// The tools directory exists but cannot be used.
    pub(crate) fn build(config: &Config) -> Result<Self, Failure> {
        Self::assembled(config, None)
    }

    /// The same with a package whose tools are to be learned, instead of those of the lock.
    ///
    /// # Errors
    /// Those of [`build`](Self::build).
    pub(crate) fn build_with(config: &Config, candidate: Installed) -> Result<Self, Failure> {
        Self::assembled(config, Some(candidate))
    }

    fn assembled(config: &Config, candidate: Option<Installed>) -> Result<Self, Failure> {
        let marketplace = Arc::new(CapabilityMarketplace::new(limits(config)));
        let instance = Instance::guarded();
        let capsules = Arc::new(Capsules::new(Arc::clone(&instance), policy(config)));
        let servers = McpServers::new(Arc::clone(&instance), policy(config));
        let tokens = tokens::stored();
        let sign_ins = SignIns::new(tokens.clone());
        let servers = Arc::new(servers.with_tokens(tokens));
        let plugins = Arc::new(Plugins::new(Arc::clone(&instance), policy(config)));
        let documents = Arc::new(Documents::new(sign_ins.clone()));
        let agents = Arc::new(Agents::new().with_sign_ins(sign_ins.clone()));
        let remotes = Arc::new(Remotes::new(marketplace.instance()).with_sign_ins(sign_ins.clone()));
        let streams = Arc::new(Streams::new(&marketplace));
        let cluster = config.cluster.clone().map(|settings| {
            // Each node runs programs itself.
            let describe = |entry: &Entry| {
                let is_own = entry.manifest.id == IDS[0];
                if is_own { None } else { shared_tool(entry) }
            };
            let cluster = Cluster::new(settings, &marketplace, describe);
            marketplace.replace_executor(Arc::new(cluster.executor()));
            Arc::new(cluster)
        });
        let mut providers = Providers::from([
            Arc::clone(&capsules) as Arc<dyn Source>,
            (Arc::clone(&servers) as Arc<dyn Source>),
            (Arc::clone(&plugins) as Arc<dyn Source>),
            (Arc::clone(&documents) as Arc<dyn Source>),
            (Arc::clone(&agents) as Arc<dyn Source>),
            (Arc::clone(&remotes) as Arc<dyn Source>),
            (Arc::clone(&streams) as Arc<dyn Source>),
        ]);
        providers.extend(cluster.clone().map(|cluster| cluster as Arc<dyn Source>));
        marketplace.replace_executor(Arc::new(LocalExecutor));
        marketplace.replace_executor(Arc::new(DiscoveryExecutor::new(&marketplace)));
        marketplace.replace_executor(Arc::new(LanguageExecutor::new(&marketplace)));
        marketplace.replace_executor(Arc::new(ProgramFileExecutor::new(&marketplace)));
        marketplace.replace_executor(Arc::new(RoutedExecutor::new(&marketplace)));
        #[cfg(feature = "agent")]
        marketplace.replace_executor(Arc::new(PromptedExecutor::new(&marketplace)));
        marketplace.replace_executor(Arc::new(HttpExecutor::new().with_sign_ins(sign_ins.clone())));
        marketplace.replace_executor(Arc::new(MCPExecutor::with_servers(Arc::clone(&servers))));
        marketplace.replace_executor(Arc::new(A2AExecutor::with_agents(Arc::clone(&agents))));
        marketplace.replace_executor(Arc::new(PluginExecutor::with_plugins(Arc::clone(&plugins))));
        marketplace
            .replace_executor(Arc::new(RemoteRTFSExecutor::new().with_sign_ins(sign_ins.clone())));
        marketplace.replace_executor(Arc::new(StreamExecutor::with_instance(Arc::clone(&instance))));
        let served = Arc::new(Served::new(&marketplace, providers.clone()));
        let listed = Arc::clone(&served);
        marketplace.on_listing(move || {
            let served = Arc::clone(&listed);
            Box::pin(async move { served.learn().await })
        });
        let known = providers.clone();
        marketplace.on_unknown(move |name, scope| {
            let known = known.clone();
            Box::pin(async move {
                for source in &known {
                    let (principal, client) = (scope.principal.as_ref(), scope.client.as_ref());
                    let signed_in = source.sign_in(&name, principal, client).await;
                    if signed_in.is_some() {
                        return signed_in;
                    }
                }
                None
            })
        });
        let (asked, refused) = (providers.clone(), Arc::<Mutex<Vec<(String, String)>>>::default());
        let packages = Arc::clone(&refused);
        marketplace.on_problems(move |name| {
            let packages = packages.lock();
            let packages = packages.iter().filter(|(package, _)| {
                name.is_none_or(|name| {
                    let rest = name.strip_prefix(&**package);
                    rest.is_some_and(|rest| rest.is_empty() || rest.starts_with(['.', '_']))
                })
            });
            let packages = packages.map(|(name, text)| ProviderProblem::new(name, None, text.clone()));
            packages.chain(asked.iter().flat_map(|source| source.problems(name))).collect()
        });
        let (tools, findings) = (Loader::default(), Findings::default());
        let concurrency = None;
        let (governance, rules) = (Governance::default(), Arc::default());
        let standby = Standby::new(Arc::clone(&instance))
            .map_err(|err| Failure::failed(format!("prestarted processes: {err}")))?;
        let mut app = Self {
            marketplace,
            standby: Arc::new(standby),
            instance,
            capsules,
            servers,
            plugins,
            documents,
            sign_ins,
            agents,
            remotes,
            streams,
            cluster,
            providers,
            served,
            tools,
            governance,
            rules,
            refused,
            concurrency,
            findings,
            exposed: Vec::new(),
            candidate,
            secrets: Arc::default(),
        };
        app.load(config).map_err(Failure::failed)?;
        Ok(app)
    }

    /// The same for a command on this machine: a person who can read the configuration may see what it denies.
    ///
    /// # Errors
    /// Those of [`build`](Self::build).
    pub(crate) fn build_local(config: &Config) -> Result<Self, Failure> {
        let app = Self::build(&Config { policy_reveal: true, ..config.clone() })?;
        app.marketplace.approvals().set_desk(terminal_approver::desk());
        Ok(app)
    }

    pub(crate) fn marketplace(&self) -> &Arc<CapabilityMarketplace> {
        &self.marketplace
    }

    /// The cluster that this instance is a node of, if it is one.
    pub(crate) fn cluster(&self) -> Option<&Arc<Cluster>> {
        self.cluster.as_ref()
    }

    /// What processes are started from.
    pub(crate) fn environment(&self) -> Arc<Environment> {
        self.instance.environment()
    }

    /// What the newest snapshot's sources have to say.
    pub(crate) fn findings(&self) -> &Findings {
        &self.findings
    }

    /// The variables that scripts mention and that are set here but not passed to them (`pass_env`): a sentence
    /// for each program. Reads the scripts.
    pub(crate) fn withheld(&self) -> Vec<String> {
        let environment = self.instance.environment();
        let snapshot = self.marketplace.snapshot();
        let tools = snapshot.entries().iter().filter_map(|entry| {
            let tool: &ToolProvider = entry.manifest.provider.settings().ok()?;
            Some((entry.manifest.id.clone(), tool.program().withheld(&[], &environment)))
        });
        let mut all: Vec<(String, BTreeSet<String>)> =
            tools.chain(self.capsules.supervisor().withheld()).collect();
        all.extend(self.servers.withheld());
        all.extend(self.plugins.withheld());
        let sentence = |(name, variables): (String, BTreeSet<String>)| {
            let variables = variables.into_iter().collect::<Vec<_>>().join(", ");
            format!(
                "{name}: its script mentions {variables}, which orla has and does not pass to it; add `pass_env: [{variables}]` to its declaration if it needs them"
            )
        };
        all.into_iter().filter(|(_, variables)| !variables.is_empty()).map(sentence).collect()
    }

    /// Prestarted scripts that do not seem to read standard input, as a sentence for each. Reads the scripts.
    pub(crate) fn prestarted_without_input(&self) -> Vec<String> {
        let snapshot = self.marketplace.snapshot();
        let tools = snapshot.entries().iter().filter_map(|entry| {
            let tool: &ToolProvider = entry.manifest.provider.settings().ok()?;
            (tool.prestart() > 0 && !tool.may_read_input()).then(|| {
                format!(
                    "{}: prestart: its script does not seem to read standard input, where the arguments of a prestarted process come; read it, or remove `prestart`",
                    entry.manifest.id
                )
            })
        });
        tools.collect()
    }

    /// The rules by which the newest snapshot's capabilities were judged.
    pub(crate) fn rules(&self) -> &Rules {
        &self.rules
    }

    /// Builds the next snapshot and puts it in force.
    ///
    /// # Errors
    /// The tools directory or the attestations cannot be used; the snapshot in force stays.
    pub(crate) fn load(&mut self, config: &Config) -> Result<(), String> {
        let process = orla_process::Limits {
            max_output_bytes: config.max_output_bytes,
            ..orla_process::Limits::default()
        };
        let sandboxes = self.instance.sandboxes();
        sandboxes.set_rules(config.sandbox);
        sandboxes.tidy();
        self.marketplace.set_confinement(config.sandbox.mode.name());
        let mut found = self
            .tools
            .load(&config.tools_dir, process, &overrides(config), sandboxes)
            .map_err(|err| format!("tools_dir: {err}; it must be a directory that orla can read"))?;
        let rules = Arc::new(self.governance.rules(config)?);
        self.instance.set_environment(config.environment());
        self.provide_executors(config);
        if is_alone(config) {
            // Files inside a package are not tools of their own.
            let lists = [&mut found.warnings, &mut found.problems, &mut found.skipped];
            lists.into_iter().for_each(Vec::clear);
            found.registrations.clear();
            found.programs.clear();
        }
        let mut findings = Findings::of(&found);
        found.registrations.extend(programs::load(&found.programs, &mut findings));
        let prompts = match (is_alone(config), config.is_default("prompts_dir")) {
            // The prompts that happen to be nearby are for other tools.
            (true, true) => prompts::Loaded::default(),
            (_, by_default) => prompts::load(&config.prompts_dir, !by_default),
        };
        findings.problems.extend(prompts.problems.iter().map(Problem::to_string));
        findings.prompts = prompts.prompts.len();
        findings.warnings.extend(sentences(&config.warnings));
        if config.sandbox.mode == confinement::Mode::Off {
            findings.warnings.push(
                "sandbox: off: no process is confined, not even one that declares permissions; remove `sandbox` to confine those with permissions"
                    .to_owned(),
            );
        }
        let declared = config.capabilities.iter();
        findings.problems.extend(declared.filter_map(|one| match &one.value.policy.availability {
            Availability::Unavailable { reason } => Some(reason.clone()),
            _ => None,
        }));
        let installed = match &self.candidate {
            Some(candidate) => candidate.clone(),
            None if is_alone(config) => Installed::default(),
            None => Installed::of(&store_of(config)).map_err(|error| error.to_string())?,
        };
        let of_packages =
            self.load_packages(config, &installed, process, &rules, &mut found, &mut findings);
        let secrets = Arc::new(config.secrets.and(&of_packages));
        // What still runs may know the secrets from before.
        self.marketplace.set_redaction(Arc::new(secrets.and(&self.secrets)));
        self.secrets = secrets;
        self.load_servers(config, &installed, &mut findings);
        self.load_plugins(config, &rules, &mut findings);
        self.sign_ins.load(config.sign_ins.iter().cloned());
        self.load_documents(config, &mut findings);
        self.load_agents(config, &mut findings);
        self.load_remotes(config, &mut findings);
        self.find_exposed(config, &found.registrations, &mut findings);
        self.streams.load(config.capabilities.iter().map(|one| &one.value));
        let mut builtins = builtins(config);
        builtins.extend(agent(config, &mut findings));
        let declared = config
            .capabilities
            .iter()
            .filter(|one| !is_of_server(&one.value) && !is_of_plugin(&one.value));
        found.registrations.extend(config.extensions.capabilities.iter().cloned());
        let sources = Sources {
            config: config.clone(),
            tools: found.registrations,
            declared: declared.cloned().collect(),
            builtins,
            prompts: prompts.prompts,
            rules: Arc::clone(&rules),
            installed,
        };
        self.marketplace.approvals().configure(config.approve.clone());
        if let Some(cluster) = &self.cluster {
            cluster.admit_anonymous(!config.is_authenticated());
        }
        self.marketplace.quotas().configure(config.quotas.clone());
        self.served.publish(sources, &mut findings);
        self.rules = rules;
        self.findings = findings;
        Ok(())
    }

    /// Finds the packages: simple ones are tools like others, capsules have their own supervisor. Returns what replaces
    /// the secrets that they are given.
    fn load_packages(
        &self,
        config: &Config,
        installed: &Installed,
        process: orla_process::Limits,
        rules: &Arc<Rules>,
        found: &mut Loaded,
        findings: &mut Findings,
    ) -> Redactor {
        let home = packages_at_home().filter(|_| !is_alone(config) && self.candidate.is_none());
        let mut packages = packages::find(&config.tools_dir, home.as_deref());
        findings.warnings.extend(sentences(&packages.warnings));
        findings.problems.extend(sentences(&packages.problems));
        *self.refused.lock() =
            packages.refused.iter().map(|(name, why)| (name.clone(), why.to_string())).collect();
        let (folders, mut missing) = installed.folders(&base_of(config));
        for folder in folders {
            let name = &folder.manifest.name;
            match packages.packages.iter().find(|package| package.manifest.name == *name) {
                Some(other) => missing.push((
                    name.clone(),
                    format!("{name} of orla.lock: {} has this name", other.directory.display()),
                )),
                None => packages.packages.push(folder),
            }
        }
        findings.problems.extend(missing.iter().map(|(_, why)| why.clone()));
        self.refused.lock().extend(missing);
        let (secrets, mut given) = (Resolver::of_user(), Redactor::default());
        for package in &mut packages.packages {
            let change = config.tools.get(&package.manifest.name);
            package.pass_env.extend(change.into_iter().flat_map(|change| change.pass_env.clone()));
            let changed = change.map(|change| declared(config, change)).unwrap_or_default();
            package.confine(self.instance.sandboxes(), &changed);
            if let Some(problem) = package_secrets::fill(package, &secrets) {
                findings.problems.push(problem);
            }
            if let Some(redaction) = &package.redaction {
                given = given.and(redaction);
            }
        }
        let names: Vec<String> =
            found.registrations.iter().map(|tool| tool.manifest.id.clone()).collect();
        let renamed = packages::rename_conflicts(&mut found.registrations, &packages.packages);
        findings.warnings.extend(sentences(&renamed));
        for (tool, name) in found.registrations.iter_mut().zip(names) {
            let id = &tool.manifest.id;
            let change = config.tools.get(id).filter(|_| *id != name);
            if let Some(change) = change.filter(|change| change.declared != Declared::default()) {
                let text = format!(
                    "tools.{id}: the tool has this name because of a package named {name}; write its permissions and limits into the tool itself"
                );
                tool.policy = tool.policy.clone().unavailable(&text);
                findings.problems.push(match change.at {
                    Some(at) => config.placed(at, text),
                    None => text,
                });
            }
        }
        // One that is unavailable has no process to be supervised.
        let is_capsule = |package: &packages::Package| {
            package.manifest.mode == Mode::Capsule && package.fault.is_none()
        };
        let (capsules, simple): (Vec<_>, Vec<_>) = packages.packages.into_iter().partition(is_capsule);
        for package in &simple {
            match packages::registration(package, process) {
                Ok(registration) => found.registrations.push(registration),
                Err(err) => findings.problems.push(format!("{}: {err}", package.directory.display())),
            }
        }
        // A capsule without a required attestation is never started, not even to learn its tools.
        let (capsules, refused): (Vec<_>, Vec<_>) = capsules
            .into_iter()
            .map(|package| {
                let content = ContentSource::Directory(package.directory.clone());
                (rules.may_start(content, None), package)
            })
            .partition(|(may_start, _)| may_start.is_ok());
        findings.problems.extend(refused.into_iter().filter_map(|(why, package)| {
            Some(format!("{}: not served: {}", package.manifest.name, why.err()?))
        }));
        self.capsules.supervisor().guard(gate(rules));
        let watched = capsules.into_iter().map(|(_, capsule)| {
            // `watch` includes the files of capsules.
            if config.watch { capsule.hot_loaded() } else { capsule }
        });
        self.capsules.supervisor().load(watched, policy(config));
        given
    }

    /// Applies the MCP servers. Servers with the same definition continue.
    fn load_servers(&self, config: &Config, installed: &Installed, findings: &mut Findings) {
        let capsules = self.capsules.supervisor().current();
        let is_taken = |name: &str| capsules.iter().any(|capsule| capsule.name() == name);
        let (mut own, mut missing) = installed.servers(&base_of(config));
        // Its tools are known by its name.
        own.retain(|server| {
            let name = &server.name;
            let is_server = config.servers.iter().any(|other| other.value.name == *name);
            let other = match (is_server, is_taken(name)) {
                (true, _) => "mcpServers has this name",
                (_, true) => "a capsule has this name",
                _ => return true,
            };
            missing.push((name.clone(), format!("{name} of orla.lock: {other}")));
            false
        });
        findings.problems.extend(missing.iter().map(|(_, why)| why.clone()));
        self.refused.lock().extend(missing);
        let own = own.into_iter().map(|value| Placed { value, at: Position::START });
        let all: Vec<Placed<ServerSettings>> = config.servers.iter().cloned().chain(own).collect();
        let mut servers = Vec::with_capacity(all.len());
        for server in &all {
            let mut settings = server.value.clone();
            if settings.names.prefix.is_none() && is_taken(&settings.name) {
                let prefix = format!("{}_2__", settings.name);
                let text = format!(
                    "mcpServers.{}: a capsule has this name; the server's tools are called {prefix}…",
                    settings.name
                );
                findings.warnings.push(config.placed(server.at, text));
                settings.names.prefix = Some(prefix);
            }
            if settings.is_process() {
                settings.sandbox = self.instance.sandboxes().of(&settings.declared, &base_of(config));
            }
            findings
                .problems
                .extend(unconfinable(&settings.sandbox).map(|why| {
                    config.placed(server.at, format!("mcpServers.{}: {why}", settings.name))
                }));
            if let Err(problem) = mcp::check_program(&settings) {
                let text = format!("mcpServers.{}.command: {problem}", settings.name);
                findings.problems.push(config.placed(server.at, text));
            }
            servers.push(settings);
        }
        for one in &config.capabilities {
            let ProviderType::MCP(provider) = &one.value.manifest.provider else { continue };
            if let Err(problem) = mcp::check_address_program(&provider.server_url) {
                let text = format!("{}: {problem}", one.value.manifest.id);
                findings.problems.push(config.placed(one.at, text));
            }
        }
        let own = config.capabilities.iter().filter(|one| is_of_server(&one.value));
        let processes = own.clone().filter_map(|one| match &one.value.manifest.provider {
            ProviderType::MCP(server) => Some((one, &*server.server_url)),
            _ => None,
        });
        let processes = processes.filter(|(_, address)| address.starts_with("stdio:"));
        self.servers.confine_own(self.own_processes(config, processes, findings));
        self.servers.load(servers, own.map(|one| one.value.clone()), policy(config));
    }

    /// Applies the plugins. Plugins with the same definition continue.
    fn load_plugins(&self, config: &Config, rules: &Arc<Rules>, findings: &mut Findings) {
        let own: Vec<_> = config.capabilities.iter().filter(|one| is_of_plugin(&one.value)).collect();
        let entries = config.plugins.iter().map(|entry| {
            let settings = &entry.value;
            let is_path = settings.command.contains('/');
            let directory = settings.cwd.clone().filter(|_| is_path).unwrap_or_default();
            (format!("plugins.{}", settings.name), directory.join(&settings.command), entry.at)
        });
        let declared = own.iter().filter_map(|one| match &one.value.manifest.provider {
            ProviderType::Plugin(plugin) => {
                Some((one.value.manifest.id.clone(), PathBuf::from(&plugin.plugin_path), one.at))
            }
            _ => None,
        });
        for (what, path, at) in entries.chain(declared) {
            if let Err(problem) = plugin::check(&path) {
                findings.problems.push(config.placed(at, format!("{what}: {problem}")));
            }
        }
        self.plugins.guard(gate(rules));
        let entries: Vec<_> =
            config
                .plugins
                .iter()
                .map(|entry| {
                    let mut settings = entry.value.clone();
                    if !settings.is_component() {
                        settings.sandbox =
                            self.instance.sandboxes().of(&settings.declared, &base_of(config));
                    }
                    findings.problems.extend(unconfinable(&settings.sandbox).map(|why| {
                        config.placed(entry.at, format!("plugins.{}: {why}", settings.name))
                    }));
                    settings
                })
                .collect();
        let processes = own.iter().filter_map(|one| match &one.value.manifest.provider {
            ProviderType::Plugin(plugin) => Some((*one, &*plugin.plugin_path)),
            _ => None,
        });
        let processes = processes.filter(|(_, path)| {
            !path.starts_with(plugin::ENTRY) && !plugin::is_component(path.as_ref())
        });
        self.plugins.confine_own(self.own_processes(config, processes, findings));
        let base = config.file.as_deref().and_then(Path::parent);
        self.plugins.load(
            entries,
            own.iter().map(|one| one.value.clone()),
            base.unwrap_or("".as_ref()),
            policy(config),
        );
    }

    fn own_processes<'a>(
        &self,
        config: &Config,
        entries: impl Iterator<Item = (&'a Placed<Registration>, &'a str)>,
        findings: &mut Findings,
    ) -> HashMap<String, Arc<Sandbox>> {
        let sandboxes = self.instance.sandboxes();
        confined::own_processes(config, sandboxes, &base_of(config), entries, findings)
    }

    /// Warns of processes that may change declarations.
    fn find_exposed(&mut self, config: &Config, tools: &[Registration], findings: &mut Findings) {
        let tools: Vec<(&str, &ToolProvider)> = tools
            .iter()
            .filter_map(|tool| Some((&*tool.manifest.id, tool.manifest.provider.settings().ok()?)))
            .collect();
        let capsules: Vec<_> =
            self.capsules.supervisor().current().iter().map(|capsule| capsule.service()).collect();
        let packages: Vec<PathBuf> = tools
            .iter()
            .filter_map(|(_, tool)| tool.package().map(Path::to_owned))
            .chain(capsules.iter().map(|capsule| capsule.directory.clone()))
            .collect();
        let manifests = packages
            .iter()
            .flat_map(|package| packages::MANIFESTS.map(|manifest| package.join(manifest)));
        let programs = tools.iter().map(|(_, tool)| tool.path().to_owned());
        let files = programs
            .chain(capsules.iter().map(|capsule| capsule.entrypoint()))
            .chain(manifests)
            .chain(config.file.clone())
            .chain([governance::attestations_file(config)]);
        let roots = [config.tools_dir.clone()].into_iter().chain(packages_at_home());
        let declarations = Declarations::new(files, roots, packages.clone());
        let confined = tools.iter().filter_map(|(name, tool)| {
            Some(((*name).to_owned(), Arc::clone(tool.program().sandbox()?)))
        });
        let mut confined: Vec<(String, Arc<Sandbox>)> = confined.collect();
        confined.extend(self.capsules.supervisor().sandboxes());
        confined.extend(self.servers.sandboxes());
        confined.extend(self.plugins.sandboxes());
        let warnings = confined.iter().filter_map(|(name, sandbox)| declarations.warning(name, sandbox));
        self.exposed = warnings.collect();
        findings.warnings.extend_from_slice(&self.exposed);
    }

    /// The processes that may change declarations, a sentence for each.
    pub(crate) fn exposed(&self) -> &[String] {
        &self.exposed
    }

    /// Reads the OpenAPI documents that are files, and takes over the operations of those at an address.
    fn load_documents(&self, config: &Config, findings: &mut Findings) {
        self.documents.load(config, findings);
    }

    /// How many OpenAPI documents could not be read at the last attempt.
    pub(crate) fn refused_documents(&self) -> usize {
        self.documents.refused()
    }

    /// Applies the other instances. Instances with the same settings continue.
    fn load_remotes(&self, config: &Config, _: &mut Findings) {
        self.remotes.load(config.remotes.iter().map(|remote| remote.value.clone()));
    }

    /// Applies the agents. Unchanged agents keep their cards.
    fn load_agents(&self, config: &Config, _findings: &mut Findings) {
        self.agents.load(config.agents.iter().map(|agent| agent.value.clone()));
    }

    /// Asks the servers of individually declared capabilities whether they have them.
    pub(crate) async fn check_declared(&mut self, config: &Config) {
        for problem in self.servers.check_declared().await {
            let declared = config.capabilities.iter().find(|one| one.value.manifest.id == problem.id);
            let text = format!("{}: {}", problem.id, problem.reason);
            let text = declared.map_or_else(|| text.clone(), |one| config.placed(one.at, text.clone()));
            match problem.may_pass {
                true => self.findings.warnings.push(text),
                false => self.findings.problems.push(text),
            }
        }
    }

    /// Asks the configured plugins what they serve. One that cannot run here is a warning.
    pub(crate) async fn check_plugins(&mut self, config: &Config) {
        let found = self.plugins.check().await;
        for entry in &config.plugins {
            let Some(problem) = found.iter().find(|problem| problem.name == entry.value.name) else {
                continue;
            };
            let start = format!("plugins.{}: ", entry.value.name);
            let is_known = self.findings.problems.iter().any(|known| known.starts_with(&start));
            let text = config.placed(entry.at, format!("{start}{}", problem.reason));
            match problem.is_malformed {
                true => self.findings.problems.push(text),
                false if is_known => {}
                false => self.findings.warnings.push(text),
            }
        }
    }

    /// Whether there are capsules, whose tools are known only when they run.
    pub(crate) fn has_capsules(&self) -> bool {
        !self.capsules.supervisor().current().is_empty()
    }

    /// Reports every program that could not start, with the text of the error of a call.
    pub(crate) fn check_programs(&mut self) {
        let snapshot = self.marketplace.snapshot();
        let tools = snapshot.entries().iter().filter_map(|entry| {
            let tool: &ToolProvider = entry.manifest.provider.settings().ok()?;
            Some(tool.path().to_owned())
        });
        let mut programs: Vec<PathBuf> = tools.chain(self.capsules.programs()).collect();
        programs.sort();
        programs.dedup();
        self.findings.problems.extend(programs.iter().filter_map(|program| {
            let failure = start_failure::foresee(program)?;
            Some(format!("{}: cannot start: {}", program.display(), failure.reason))
        }));
    }

    /// Starts the processes that are configured to start early. A capsule that is served alone is always started.
    pub(crate) fn start_eager(&self, config: &Config) {
        self.capsules.supervisor().start_eager(config.capsules.eager || is_alone(config));
        for provider in self.providers.iter().skip(1) {
            provider.start_eager(false);
        }
        self.prestart(config);
    }

    /// Prestarts the processes of tools that are configured so. If attestations are required, nothing runs before
    /// its call is attested.
    fn prestart(&self, config: &Config) {
        let snapshot = self.marketplace.snapshot();
        let available = snapshot.entries().iter().filter(|entry| entry.is_available());
        let wanted = available.filter(|_| !self.rules.is_required()).filter_map(|entry| {
            let tool: &ToolProvider = entry.manifest.provider.settings().ok()?;
            prestarted(tool, &entry.name, &self.instance)
        });
        self.standby.want(wanted.collect(), config.prestarted);
    }

    /// Publishes what the providers turn out to serve, for as long as the server runs.
    pub(crate) fn follow_providers(&self) -> Vec<impl Future<Output = ()> + Send + use<>> {
        let follow = |provider: &Arc<dyn Source>| {
            let (mut changes, served) = (provider.changes(), Arc::clone(&self.served));
            async move {
                // What changed before anyone followed.
                served.refresh();
                while changes.changed().await.is_ok() {
                    served.refresh();
                    // Frequent changes do not cause as many snapshots and notifications.
                    tokio::time::sleep(MIN_SNAPSHOT_INTERVAL).await;
                }
            }
        };
        self.providers.iter().map(follow).collect()
    }

    /// Ends every process and connection that stays between calls.
    pub(crate) fn end_providers(&self) -> impl Future<Output = ()> + Send + use<> {
        let (providers, standby) = (self.providers.clone(), Arc::clone(&self.standby));
        let sign_ins = self.sign_ins.clone();
        async move {
            standby.end();
            join_all(providers.iter().map(|provider| provider.shutdown())).await;
            sign_ins.shutdown().await;
        }
    }

    /// Makes the executors, once and again when their bounds change. Calls that run keep the old ones.
    fn provide_executors(&mut self, config: &Config) {
        if self.concurrency == Some(config.max_concurrency) {
            return;
        }
        let pool = PoolLimits { max_threads: config.max_concurrency, ..PoolLimits::default() };
        let tools =
            ToolExecutor::new(Arc::clone(&self.instance), pool).with_standby(Arc::clone(&self.standby));
        self.marketplace.replace_executor(Arc::new(tools));
        self.marketplace.replace_executor(Arc::new(CapsuleExecutor));
        for executor in &config.extensions.executors {
            self.marketplace.replace_executor(Arc::clone(executor));
        }
        self.concurrency = Some(config.max_concurrency);
    }
}

/// The gate that decides what may be started, if there is one.
fn gate(rules: &Arc<Rules>) -> Option<Gate> {
    let asked = Arc::clone(rules);
    rules
        .is_required()
        .then(|| Gate::new(move |content, started| asked.may_start(content.clone(), started)))
}

/// Whether a capability is a function of a plugin.
fn is_of_plugin(registration: &Registration) -> bool {
    matches!(registration.manifest.provider, ProviderType::Plugin(_))
}

/// Whether a capability is a tool of an MCP server, or all of them, whose types the server declares.
fn is_of_server(registration: &Registration) -> bool {
    matches!(registration.manifest.provider, ProviderType::MCP(_))
}

/// The built-ins, as far as the configuration serves them.
fn builtins(config: &Config) -> Vec<Registration> {
    let served = builtin::registrations().iter().filter_map(|builtin| {
        let listing = config.builtins.listing(&builtin.manifest.id)?;
        let mut builtin = builtin.clone();
        builtin.policy.listing = listing;
        Some(builtin)
    });
    served.collect()
}

/// The capability that answers prompts, if a model is configured.
#[cfg(feature = "agent")]
fn agent(config: &Config, findings: &mut Findings) -> Option<Registration> {
    prompted::registration(&config.agent, &environment).unwrap_or_else(|failure| {
        findings.warnings.push(format!("agent: no prompts are answered: {}", failure.text()));
        None
    })
}

#[cfg(not(feature = "agent"))]
fn agent(_: &Config, _: &mut Findings) -> Option<Registration> {
    None
}

/// Whether the tools directory is one package, which is then served alone.
fn is_alone(config: &Config) -> bool {
    packages::is_package(&config.tools_dir)
}

/// Where packages for all projects are.
fn packages_at_home() -> Option<PathBuf> {
    let home = std::env::var_os("HOME").filter(|home| !home.is_empty())?;
    Some(PathBuf::from(home).join(".orla/tools"))
}

/// What is changed of single tools before they are loaded, by their names.
fn overrides(config: &Config) -> HashMap<String, Override> {
    let changes = config.tools.iter().map(|(name, change)| {
        let declared = declared(config, change);
        let change = Override { pass_env: change.pass_env.clone(), prestart: change.prestart, declared };
        (name.clone(), change)
    });
    changes.collect()
}

/// What the configuration adds to a tool's declaration. Relative paths in it lead from the configuration's file.
fn declared(config: &Config, change: &ToolOverride) -> Declared {
    let base = base_of(config);
    // Under the name that it is given, too.
    let renamed = change.rename.as_ref().and_then(|rename| config.tools.get(&rename.to));
    let renamed = renamed.filter(|renamed| !std::ptr::eq(*renamed, change));
    let mut declared = match renamed {
        Some(renamed) => change.declared.changed_by(&renamed.declared),
        None => change.declared.clone(),
    };
    for word in declared.permissions.iter_mut().flatten() {
        *word = confinement::placed(word, &base);
    }
    declared
}

/// Where relative paths of the configuration lead from.
fn base_of(config: &Config) -> PathBuf {
    let base = config.file.as_deref().and_then(Path::parent).unwrap_or("".as_ref());
    std::path::absolute(base.join(".")).unwrap_or_else(|_| PathBuf::from("/"))
}

/// Why a process does not run, if it cannot be confined.
fn unconfinable(sandbox: &Option<Arc<Sandbox>>) -> Option<String> {
    sandbox.as_ref().and_then(|sandbox| sandbox.available().err())
}

fn policy(config: &Config) -> Policy {
    let own = &config.capsules;
    Policy {
        max_failures: u32::try_from(own.max_failures).unwrap_or(u32::MAX),
        backoff_min: own.backoff_min,
        backoff_max: own.backoff_max,
        drain: own.drain,
        ..Policy::default()
    }
}

#[cfg(test)]
mod tests;
