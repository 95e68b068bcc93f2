//! The wiring of providers and executors; that of the server is in `commands/serve.rs`.
//!
//! [`App`] is everything that a configuration describes, without a transport: the marketplace with its executors,
//! and the snapshot of served capabilities. It binds no socket and starts no tool, so `list`, `check` and `call`
//! use it as well as the server.
//!
//! The snapshot is made in [`served`](crate::served); problems and remarks are collected in
//! [`findings`](crate::findings).

mod documents;
mod load;
mod packages;

use std::collections::BTreeSet;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use futures_util::future::{BoxFuture, join_all};
use orla_cluster::Cluster;
use orla_marketplace::discovery::DiscoveryExecutor;
use orla_marketplace::program::file::ProgramFileExecutor;
use orla_marketplace::program::{IDS, LanguageExecutor};
use orla_marketplace::{
    CapabilityMarketplace, Entry, ProviderProblem, Redactor, RoutedExecutor, Source,
};
use orla_process::environment::Environment;
use orla_process::file::read_head;
use orla_process::shebang::FileKind;
use orla_process::standby::Standby;
use orla_process::supervisor::{Managed, Policy};
use orla_process::{Instance, start_failure};
use orla_providers::a2a::{A2AExecutor, Agents};
use orla_providers::builtin::LocalExecutor;
use orla_providers::capsule::Capsules;
use orla_providers::http::HttpExecutor;
use orla_providers::mcp::{MCPExecutor, McpServers};
use orla_providers::plugin::{PluginExecutor, Plugins};
use orla_providers::remote::{RemoteRTFSExecutor, Remotes};
use orla_providers::sign_in::SignIns;
use orla_providers::stream::{StreamExecutor, Streams};
use orla_providers::tool::{ForeignTools, Loader, ToolProvider, prestarted};
use orla_server::shared_tool;
use parking_lot::Mutex;
use tokio::sync::watch;

use documents::Documents;
pub(crate) use packages::user_packages;

#[cfg(feature = "agent")]
use crate::agent::prompted::PromptedExecutor;
use crate::config::Config;
use crate::findings::Findings;
use crate::governance::{Governance, Rules};
use crate::packages::Installed;
use crate::served::{Providers, Served, limits};
use crate::{Failure, terminal_approver, tokens};

/// The least time between two snapshots for changes of a provider.
pub(crate) const MIN_SNAPSHOT_INTERVAL: Duration = Duration::from_millis(50);

/// The parts that a configuration describes.
pub(crate) struct App {
    marketplace: Arc<CapabilityMarketplace>,
    instance: Arc<Instance>,
    /// Processes of tools that wait for a call.
    standby: Arc<Standby>,
    capsules: Arc<Capsules>,
    servers: Arc<McpServers>,
    plugins: Arc<Plugins>,
    documents: Arc<Documents>,
    /// The sign-ins of providers other than MCP servers.
    sign_ins: SignIns,
    agents: Arc<Agents>,
    remotes: Arc<Remotes>,
    streams: Arc<Streams>,
    /// The sandboxes of the programs that capabilities start by their own address, by the capabilities' ids.
    own_sandboxes: Mutex<Vec<(String, Arc<orla_process::confinement::Sandbox>)>>,
    /// The cluster that this instance is a node of.
    cluster: Option<Arc<Cluster>>,
    /// All of them, those above included.
    providers: Providers,
    served: Arc<Served>,
    tools: Loader,
    /// The tools of packages, as they were last created.
    foreign_tools: Mutex<ForeignTools>,
    governance: Governance,
    rules: Arc<Rules>,
    /// The packages that cannot be served, each with its name and the reason.
    refused: Arc<Mutex<Vec<(String, String)>>>,
    /// The capsules and servers of which no capability is served, so that they do not run.
    denied: Mutex<Vec<String>>,
    /// The files that packages have secrets from.
    secret_files: Mutex<Vec<PathBuf>>,
    /// The concurrency that the executors were made for.
    concurrency: Option<usize>,
    findings: Findings,
    /// The processes that may change declarations, a sentence for each.
    exposed: Vec<String>,
    /// A package whose tools are to be read.
    candidate: Option<Installed>,
    /// Knows the secrets of the newest snapshot.
    secrets: Arc<Redactor>,
}

impl App {
    /// Finds everything and puts it together.
    ///
    /// # Errors
    ///
    /// Returns an error if the tools directory exists but cannot be used.
    pub(crate) fn build(config: &Config) -> Result<Self, Failure> {
        Self::assembled(config, None)
    }

    /// Builds the same app with a package whose tools are to be read, instead of those of the lock.
    ///
    /// # Errors
    ///
    /// Returns the errors of [`build`](Self::build).
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
            Arc::clone(&servers) as Arc<dyn Source>,
            Arc::clone(&plugins) as Arc<dyn Source>,
            Arc::clone(&documents) as Arc<dyn Source>,
            Arc::clone(&agents) as Arc<dyn Source>,
            Arc::clone(&remotes) as Arc<dyn Source>,
            Arc::clone(&streams) as Arc<dyn Source>,
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
        let (listed, refreshed) = (Arc::clone(&served), Arc::clone(&served));
        let learn = move |name: Option<String>| -> BoxFuture<'static, ()> {
            let served = Arc::clone(&listed);
            Box::pin(async move {
                match name {
                    Some(name) => served.learn_name(&name).await,
                    None => served.learn().await,
                }
            })
        };
        marketplace.on_listing(learn, move || refreshed.refresh());
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
        let (packages, reported) = (Arc::clone(&refused), Arc::downgrade(&served));
        marketplace.on_problems(move |name| {
            let packages = packages.lock();
            let packages = packages.iter().filter(|(package, _)| {
                name.is_none_or(|name| {
                    let rest = name.strip_prefix(&**package);
                    rest.is_some_and(|rest| rest.is_empty() || rest.starts_with(['.', '_']))
                })
            });
            let packages = packages.map(|(name, text)| ProviderProblem::new(name, None, text.clone()));
            let all = packages.chain(asked.iter().flat_map(|source| source.problems(name)));
            // A caller that asks for a name with two owners gets the capability that is served.
            let duplicates =
                reported.upgrade().filter(|_| name.is_none()).map(|served| served.duplicates());
            all.chain(duplicates.into_iter().flatten()).collect()
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
            own_sandboxes: Mutex::default(),
            cluster,
            providers,
            served,
            tools,
            foreign_tools: Mutex::default(),
            governance,
            rules,
            refused,
            denied: Mutex::default(),
            secret_files: Mutex::default(),
            concurrency,
            findings,
            exposed: Vec::new(),
            candidate,
            secrets: Arc::default(),
        };
        app.load(config).map_err(Failure::failed)?;
        Ok(app)
    }

    /// Builds the same app for a command on this machine. A person who can read the configuration may
    /// see the capabilities that it denies.
    ///
    /// # Errors
    ///
    /// Returns the errors of [`build`](Self::build).
    pub(crate) fn build_local(config: &Config) -> Result<Self, Failure> {
        let app = Self::build(&Config { policy_reveal: true, ..config.clone() })?;
        app.marketplace.approvals().set_approvers(terminal_approver::approvers());
        Ok(app)
    }

    pub(crate) fn marketplace(&self) -> &Arc<CapabilityMarketplace> {
        &self.marketplace
    }

    /// Finds the process of a provider by its kind and its name, now and after later reloads.
    pub(crate) fn processes(
        &self,
    ) -> impl Fn(&str, &str) -> Option<Arc<dyn Managed>> + Send + Sync + use<> {
        let (capsules, servers) = (Arc::clone(&self.capsules), Arc::clone(&self.servers));
        move |kind, name| match kind {
            "capsule" => capsules.supervisor().managed(name),
            "mcp" => servers.managed(name),
            _ => None,
        }
    }

    /// Returns the process of the capsule or of the MCP server that may serve a name, or has this name.
    ///
    /// # Errors
    ///
    /// Returns an error if there are several; their names.
    pub(crate) fn process_for(&self, name: &str) -> Result<Option<Arc<dyn Managed>>, Vec<String>> {
        let mut found = self.capsules.managed_for(name);
        found.extend(self.servers.managed_for(name));
        if let Some(named) = found.iter().position(|process| process.name() == name) {
            return Ok(Some(found.swap_remove(named)));
        }
        match found.len() {
            0 | 1 => Ok(found.pop()),
            _ => Err(found.iter().map(|process| process.name().to_owned()).collect()),
        }
    }

    /// Returns the names of the providers whose capabilities are not known yet.
    pub(crate) fn awaited(&self) -> Vec<String> {
        self.providers.iter().flat_map(|source| source.awaited()).collect()
    }

    /// Asks one process for its capabilities, and serves them.
    pub(crate) async fn learn_from(&self, process: &dyn Managed) {
        process.learn().await;
        self.served.refresh();
    }

    /// Returns the served capabilities.
    pub(crate) fn served(&self) -> &Arc<Served> {
        &self.served
    }

    /// Returns the cluster that this instance is a node of, if it is one.
    pub(crate) fn cluster(&self) -> Option<&Arc<Cluster>> {
        self.cluster.as_ref()
    }

    /// Returns the environment from which processes are started.
    pub(crate) fn environment(&self) -> Arc<Environment> {
        self.instance.environment()
    }

    /// Returns the findings about the sources of the newest snapshot.
    pub(crate) fn findings(&self) -> &Findings {
        &self.findings
    }

    /// Returns the variables that scripts mention and that are set here but not passed to them
    /// (`pass_env`): a sentence for each program. Reads the scripts.
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

    /// Returns a sentence for each tool that a shell runs only because it is text without a first line
    /// `#!`, and whose name does not mark it as a shell script. Reads the first bytes of the tools.
    pub(crate) fn run_by_the_shell(&self) -> Vec<String> {
        let snapshot = self.marketplace.snapshot();
        let tools = snapshot.entries().iter().filter_map(|entry| {
            let tool: &ToolProvider = entry.manifest.provider.settings().ok()?;
            let head = read_head(tool.path()).ok()?;
            let is_for_shell = tool.path().extension().is_none_or(|extension| extension == "sh");
            let is_odd = FileKind::of(&head) == FileKind::Text && (head.is_empty() || !is_for_shell);
            is_odd.then(|| {
                let what = if head.is_empty() {
                    "the file is empty"
                } else {
                    "it has no first line `#!PROGRAM`"
                };
                let path = tool.path().display();
                format!("{path}: {what}, so sh runs it; if it is not a tool, `chmod -x` it")
            })
        });
        tools.collect()
    }

    /// Returns the rules that were applied to the newest snapshot's capabilities.
    pub(crate) fn rules(&self) -> &Rules {
        &self.rules
    }

    /// Returns the processes that may change declarations, a sentence for each.
    pub(crate) fn exposed(&self) -> &[String] {
        &self.exposed
    }

    /// Returns the files that packages have secrets from.
    pub(crate) fn secret_files(&self) -> Vec<PathBuf> {
        self.secret_files.lock().clone()
    }

    /// Returns how many OpenAPI documents could not be read at the last attempt.
    pub(crate) fn refused_documents(&self) -> usize {
        self.documents.refused()
    }

    /// Reads the OpenAPI documents with an address, and finds the rules that match nothing in them.
    pub(crate) async fn check_documents(&mut self, config: &Config) {
        let mut findings = std::mem::take(&mut self.findings);
        self.documents.check(config, &mut findings).await;
        self.findings = findings;
        self.check_listed(config);
    }

    /// Finds the rules that match nothing, now that providers have listed what they serve. Returns the
    /// findings that are new.
    pub(crate) fn check_listed(&mut self, config: &Config) -> Findings {
        self.served.refresh();
        let mut found = Findings::default();
        self.find_unmatched(config, &mut found);
        found.redact(&self.marketplace.redaction());
        self.findings.add_new(found)
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

    /// Asks the configured plugins for their capabilities. A plugin that cannot run here is a warning.
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
        self.served.refresh();
        let duplicates = self.served.duplicates().into_iter().map(|duplicate| duplicate.text);
        let known = &self.findings.problems;
        let new: Vec<String> = duplicates.filter(|text| !known.contains(text)).collect();
        self.findings.problems.extend(new);
    }

    /// Returns whether an unknown capability may still be served: only a provider that was not asked
    /// knows.
    pub(crate) fn may_be_served(&self) -> impl Fn(&str) -> bool + Send + Sync + use<> {
        let providers = self.providers.clone();
        move |name| providers.iter().any(|provider| provider.may_serve(name))
    }

    /// Returns the names of the capsules, whose tools are known only when they run.
    pub(crate) fn capsules(&self) -> Vec<String> {
        let current = self.capsules.supervisor().current();
        current.iter().map(|capsule| capsule.name().to_owned()).collect()
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
            let failure = start_failure::check(program)?;
            Some(format!("{}: cannot start: {}", program.display(), failure.reason))
        }));
    }

    /// Starts the processes that are configured to start early. A capsule that is served alone is always started.
    pub(crate) fn start_eager(&self, config: &Config) {
        self.capsules.supervisor().start_eager(config.capsules.eager || is_alone(config));
        // The first are the capsules.
        for provider in self.providers.iter().skip(1) {
            provider.start_eager(false);
        }
        self.prestart(config);
    }

    /// Prestarts the processes of tools with that setting. If attestations are required, no process
    /// starts before its call is attested; and none of a tool whose calls nobody may make, or a person always has to approve.
    fn prestart(&self, config: &Config) {
        let snapshot = self.marketplace.snapshot();
        let available = snapshot.entries().iter().filter(|entry| entry.is_available());
        let is_open = |entry: &&Arc<Entry>| {
            !self.rules.is_required()
                && !snapshot.excludes_everyone(entry)
                && !config.approve.iter().any(|rule| rule.concerns_everyone(entry))
        };
        let wanted = available.filter(is_open).filter_map(|entry| {
            let tool: &ToolProvider = entry.manifest.provider.settings().ok()?;
            prestarted(tool, &entry.name, &self.instance)
        });
        self.standby.prestart(wanted.collect(), config.prestarted);
    }

    /// Counts the changes of what MCP servers list.
    pub(crate) fn server_changes(&self) -> watch::Receiver<u64> {
        self.servers.changes()
    }

    /// Publishes the capabilities that providers report, while the server runs.
    pub(crate) fn follow_providers(&self) -> Vec<impl Future<Output = ()> + Send + use<>> {
        let follow = |provider: &Arc<dyn Source>| {
            let (mut changes, served) = (provider.changes(), Arc::clone(&self.served));
            async move {
                // Covers changes before the subscription.
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
}

/// Returns whether the tools directory is one package, which is then served alone.
fn is_alone(config: &Config) -> bool {
    orla_providers::capsule::packages::is_package(&config.tools_dir)
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
