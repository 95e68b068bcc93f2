//! Puts a configuration in force: finds everything that it describes, and publishes the next snapshot.

use std::collections::{BTreeMap, HashMap};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use orla_document::Position;
use orla_marketplace::{Availability, ProviderType, Registration};
use orla_packages::lock::FILE as LOCK;
use orla_process::PoolLimits;
use orla_process::confinement::{self, Declared, Sandbox, Sandboxes};
use orla_process::supervisor::Gate;
use orla_providers::capsule::{CapsuleExecutor, packages};
use orla_providers::mcp::{self, ServerSettings};
use orla_providers::tool::{Override, ToolExecutor, ToolProvider};
use orla_providers::{builtin, plugin};
use orla_secrets::Resolver;

#[cfg(feature = "agent")]
use crate::agent::{environment, prompted};
use crate::config::{Config, Placed, Problem, ToolOverride};
use crate::confined::{self, Declarations};
use crate::findings::{Findings, sentences};
use crate::governance::{self, Rules};
use crate::packages::names::OwnNames;
use crate::packages::{Installed, project_of, store_of};
use crate::served::Sources;
use crate::unmatched::{Finding, Known, idle_permissions};
use crate::{declared_secrets, programs, prompts, render};

use super::packages::{Terms, home_packages};
use super::{App, is_alone, policy};

impl App {
    /// Builds the next snapshot and puts it in force.
    ///
    /// # Errors
    ///
    /// Returns an error if the tools directory or the attestations cannot be used; the snapshot in force
    /// stays.
    pub(crate) fn load(&mut self, config: &Config) -> Result<(), String> {
        let process = orla_process::Limits {
            max_output_bytes: config.max_output_bytes,
            ..orla_process::Limits::default()
        };
        let rules = Arc::new(self.governance.rules(config)?);
        let sandboxes = self.instance.sandboxes();
        let earlier = sandboxes.rules();
        sandboxes.set_rules(config.sandbox);
        sandboxes.tidy();
        let secrets = Resolver::of_user();
        let changes = overrides(config);
        let mut found = self
            .tools
            .load(&config.tools_dir, process, &changes, sandboxes, &|file, sandbox, declared| {
                let is_confined = sandbox.is_some_and(|sandbox| !sandbox.is_off());
                let place = declared_secrets::place(file.parent().unwrap_or(file), is_confined);
                declared_secrets::fill_texts(declared, place, &secrets)
            })
            .map_err(|err| {
                // Processes that are restarted belong to the snapshot that stays.
                sandboxes.set_rules(earlier);
                let text = format!("tools_dir: {err}; it must be a directory that orla can read");
                config.problem("tools_dir", text).to_string()
            })?;
        if config.is_default("tools_dir") && serves_without_tools(config) {
            // The missing directory was not configured explicitly.
            found.warnings.retain(|warning| warning.path != config.tools_dir);
        }
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
        found.registrations.extend(programs::load(&found.programs, &changes, config, &mut findings));
        let prompts = match (is_alone(config), config.is_default("prompts_dir")) {
            // The prompts that happen to be nearby are for other tools.
            (true, true) => prompts::Loaded::default(),
            (_, by_default) => prompts::load(&config.prompts_dir, !by_default),
        };
        let unread = prompts.unread.map(|text| config.problem("prompts_dir", text));
        findings.problems.extend(prompts.problems.iter().chain(&unread).map(Problem::to_string));
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
            // A lock that cannot be read stops packages alone.
            None => Installed::of(&store_of(config), &config.packages).unwrap_or_else(|error| {
                findings.problems.push(error.to_string());
                Installed::default()
            }),
        };
        let mut builtins = builtins(config);
        let installed = if installed.is_empty() {
            installed
        } else {
            let ids = found.registrations.iter().chain(&builtins).map(|one| one.manifest.id.clone());
            let own_names = OwnNames::of(config, ids);
            installed.without(|name| {
                let why = format!("{name} of orla.lock: {} has this name", own_names.holder(name)?);
                findings.problems.push(why.clone());
                Some(why)
            })
        };
        let terms = Terms { config, process, rules: &rules, secrets: &secrets };
        self.denied.lock().clear();
        let (given, installed) = self.load_packages(&terms, installed, &mut found, &mut findings);
        let secrets = Arc::new(config.secrets.and(&given));
        // Running processes may know the previous secrets.
        self.marketplace.set_redaction(Arc::new(secrets.and(&self.secrets)));
        self.secrets = secrets;
        render::redact(&self.secrets);
        self.load_servers(config, &installed, &mut findings);
        self.load_plugins(config, &rules, &mut findings);
        self.sign_ins.load(config.sign_ins.iter().cloned());
        self.documents.load(config, &mut findings);
        self.agents.load(config.agents.iter().map(|agent| agent.value.clone()));
        self.remotes.load(config.remotes.iter().map(|remote| remote.value.clone()));
        self.streams.load(config.capabilities.iter().map(|one| &one.value));
        let unconfined = self.confine_own(config, &mut findings);
        self.find_exposed(config, &found.registrations, &mut findings);
        builtins.extend(agent(config, &mut findings));
        let declared = config
            .capabilities
            .iter()
            .filter(|one| !is_of_server(&one.value) && !is_of_plugin(&one.value))
            .map(|one| {
                let mut one = one.clone();
                if let Some(why) = unconfined.get(&one.value.manifest.id) {
                    one.value.policy = one.value.policy.unavailable(why);
                }
                one
            });
        found.registrations.extend(config.extensions.capabilities.iter().cloned());
        let sources = Sources {
            config: config.clone(),
            tools: found.registrations,
            declared: declared.collect(),
            builtins,
            prompts: prompts.prompts,
            rules: Arc::clone(&rules),
            installed,
            denied: self.denied.lock().clone(),
            redaction: self.marketplace.redaction(),
        };
        self.marketplace.approvals().configure(config.approve.clone());
        if let Some(cluster) = &self.cluster {
            cluster.admit_anonymous(!config.is_authenticated());
        }
        self.marketplace.quotas().configure(config.quotas.clone());
        self.served.publish(sources, &mut findings);
        // `/status` shows the mode of the snapshot in force.
        self.marketplace.set_confinement(config.sandbox.mode.name());
        self.find_unmatched(config, &mut findings);
        findings.redact(&self.marketplace.redaction());
        self.rules = rules;
        self.findings = findings;
        Ok(())
    }

    /// Applies the MCP servers. Servers with the same definition continue.
    fn load_servers(&self, config: &Config, installed: &Installed, findings: &mut Findings) {
        let capsules = self.capsules.supervisor().current();
        let is_taken = |name: &str| capsules.iter().any(|capsule| capsule.name() == name);
        let (mut own, mut missing) = installed.servers(&base_of(config));
        // Its tools are known by its name.
        own.retain(|server| {
            let name = &server.name;
            let is_free = !is_taken(name);
            if !is_free {
                missing.push((name.clone(), format!("{name} of orla.lock: a capsule has this name")));
            }
            is_free
        });
        self.refuse(missing, findings);
        let own = own.into_iter().map(|value| Placed { value, at: Position::START });
        let all: Vec<Placed<ServerSettings>> = config.servers.iter().cloned().chain(own).collect();
        let mut servers = Vec::with_capacity(all.len());
        for (at, server) in all.iter().enumerate() {
            let mut settings = server.value.clone();
            if self.is_denied(config, &settings.name, &settings.names) {
                continue;
            }
            // A package of the lock has no place in the configuration.
            let is_of_lock = at >= config.servers.len();
            let placed = |name: &str, key: &str, why: &str| match is_of_lock {
                true => format!("{name} of orla.lock: {why}"),
                false => config.placed(server.at, format!("mcpServers.{name}{key}: {why}")),
            };
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
            let unconfinable = unconfinable(&settings.sandbox);
            findings.problems.extend(unconfinable.map(|why| placed(&settings.name, "", &why)));
            let found = mcp::check_directory(&settings).map_err(|problem| (".cwd", problem));
            let found = found
                .and_then(|()| mcp::check_program(&settings).map_err(|problem| (".command", problem)));
            if let Err((key, problem)) = found {
                findings.problems.push(placed(&settings.name, key, &problem));
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
        let base = config.file.as_deref().and_then(Path::parent);
        self.plugins.load(
            entries,
            own.iter().map(|one| one.value.clone()),
            base.unwrap_or("".as_ref()),
            policy(config),
        );
    }

    /// Makes the sandboxes of the programs that capabilities start by their own address. Returns the ids of
    /// capabilities that cannot be confined, with the reasons.
    fn confine_own(&self, config: &Config, findings: &mut Findings) -> HashMap<String, String> {
        let (mut sandboxes, mut unconfined) = (Vec::new(), HashMap::new());
        for one in &config.capabilities {
            let Registration { manifest, .. } = &one.value;
            let sandbox = confined::own_sandbox(&manifest.provider, self.instance.sandboxes());
            if let Some(why) = unconfinable(&sandbox) {
                let text = format!("{}: {why}", manifest.id);
                findings.problems.push(config.placed(one.at, text));
                unconfined.insert(manifest.id.clone(), why);
            }
            sandboxes.extend(sandbox.map(|sandbox| (manifest.id.clone(), sandbox)));
        }
        *self.own_sandboxes.lock() = sandboxes;
        unconfined
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
        let roots = [config.tools_dir.clone()].into_iter().chain(home_packages());
        let confined = tools.iter().filter_map(|(name, tool)| {
            Some(((*name).to_owned(), Arc::clone(tool.program().sandbox()?)))
        });
        let mut confined: Vec<(String, Arc<Sandbox>)> = confined.collect();
        confined.extend(self.capsules.supervisor().sandboxes());
        // A program that a capability starts by its own address is named by the capability.
        let own = self.own_sandboxes.lock().clone();
        let is_own = |sandbox: &Arc<Sandbox>| own.iter().any(|(_, one)| Arc::ptr_eq(one, sandbox));
        let entries = self.servers.sandboxes().into_iter().chain(self.plugins.sandboxes());
        confined.extend(entries.filter(|(_, sandbox)| !is_own(sandbox)));
        confined.extend(own);
        Sandboxes::name_clients(&confined);
        confined.retain(|(_, sandbox)| sandbox.grants().is_some_and(|grants| !grants.write.is_empty()));
        if confined.is_empty() {
            self.exposed.clear();
            return;
        }
        let declarations = Declarations::new(files, roots, packages.clone());
        let warnings = confined.iter().filter_map(|(name, sandbox)| declarations.warning(name, sandbox));
        self.exposed = warnings.collect();
        findings.warnings.extend_from_slice(&self.exposed);
    }

    /// Finds permissions without effect, and rules that match nothing. The capabilities of other nodes and instances, and of unread
    /// documents, are not known here, so any rule may match them.
    pub(super) fn find_unmatched(&self, config: &Config, findings: &mut Findings) {
        findings.warnings.extend(self.servers.unmatched_names());
        let catalog = self.marketplace.snapshot();
        findings.warnings.extend(idle_permissions(&catalog));
        if config.subjects.is_empty() || config.cluster.is_some() || !config.remotes.is_empty() {
            return;
        }
        let (prompts, packages) = self.served.names();
        let unasked: Vec<String> =
            self.capsules().into_iter().chain(packages).chain(self.denied.lock().clone()).collect();
        let mut known = Known::of(config, &catalog, &unasked, &self.servers.listed());
        for document in self.documents.unread() {
            known.may_serve_below(document.as_deref());
        }
        // A policy decides about prompts, too.
        known.names.extend(prompts);
        for subject in &config.subjects {
            let (list, text) = match known.finding(&subject.value) {
                Some(Finding::Problem(text)) => (&mut findings.problems, text),
                Some(Finding::Warning(text)) => (&mut findings.warnings, text),
                None => continue,
            };
            let text = config.placed(subject.at, text);
            if !list.contains(&text) {
                list.push(text);
            }
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

/// Returns the gate that decides what may be started, if there is one.
pub(super) fn gate(rules: &Arc<Rules>) -> Option<Gate> {
    let gate_rules = Arc::clone(rules);
    rules
        .is_required()
        .then(|| Gate::new(move |content, started| gate_rules.may_start(content.clone(), started)))
}

/// Returns whether the configuration names something else to serve than the tools directory.
fn serves_without_tools(config: &Config) -> bool {
    let counts = [
        config.servers.len(),
        config.plugins.len(),
        config.agents.len(),
        config.remotes.len(),
        config.capabilities.len(),
        config.documents.len(),
    ];
    counts.iter().any(|count| *count > 0) || project_of(config).join(LOCK).exists()
}

/// Returns whether a capability is a function of a plugin.
fn is_of_plugin(registration: &Registration) -> bool {
    matches!(registration.manifest.provider, ProviderType::Plugin(_))
}

/// Returns whether a capability is a tool of an MCP server, or all of them, whose types the server
/// declares.
fn is_of_server(registration: &Registration) -> bool {
    matches!(registration.manifest.provider, ProviderType::MCP(_))
}

/// Returns the built-ins, as far as the configuration serves them.
fn builtins(config: &Config) -> Vec<Registration> {
    let served = builtin::registrations().iter().filter_map(|builtin| {
        let listing = config.builtins.listing(&builtin.manifest.id)?;
        let mut builtin = builtin.clone();
        builtin.policy.listing = listing;
        Some(builtin)
    });
    served.collect()
}

/// Returns the capability that answers prompts, if a model is configured.
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

/// Returns the changes to single tools before they are loaded, by their names.
pub(super) fn overrides(config: &Config) -> HashMap<String, Override> {
    let changes = config.tools.iter().map(|(name, change)| {
        let declared = declared(config, change);
        let change = Override {
            pass_env: change.pass_env.clone(),
            env: pairs(&change.env),
            redaction: change.redaction.clone(),
            prestart: change.prestart,
            declared,
        };
        (name.clone(), change)
    });
    changes.collect()
}

/// Variables by name, in a list.
pub(super) fn pairs(variables: &BTreeMap<String, String>) -> Vec<(String, String)> {
    variables.iter().map(|(name, value)| (name.clone(), value.clone())).collect()
}

/// Returns the additions of the configuration to a tool's declaration. Relative paths in them start at
/// the configuration's file.
pub(super) fn declared(config: &Config, change: &ToolOverride) -> Declared {
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
pub(super) fn base_of(config: &Config) -> PathBuf {
    let base = config.file.as_deref().and_then(Path::parent).unwrap_or("".as_ref());
    std::path::absolute(base.join(".")).unwrap_or_else(|_| PathBuf::from("/"))
}

/// Returns why a process does not run, if it cannot be confined.
fn unconfinable(sandbox: &Option<Arc<Sandbox>>) -> Option<String> {
    sandbox.as_ref().and_then(|sandbox| sandbox.available().err())
}
