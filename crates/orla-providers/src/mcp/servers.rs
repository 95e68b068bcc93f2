//! All configured MCP servers and what they serve.

use std::collections::{BTreeSet, HashMap};
use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use futures_util::future::join_all;
use orla_marketplace::id::{Pattern, mcp_name};
use orla_marketplace::{
    Availability, CapabilityManifest, Client, Connection, MCPCapability, Principal, ProviderProblem,
    ProviderStatus, ProviderType, Registration, Source, Surface, millis_down, redacted,
};
use orla_mcp::answer::ListedTool;
use orla_mcp::{Peer, PeerSurface, describe};
use orla_oauth::metadata::is_loopback;
use orla_process::confinement::{ProcessKey, Sandbox, Sandboxes};
use orla_process::supervisor::{Managed, Policy, Supervisor};
use orla_process::{Command, Instance};
use parking_lot::Mutex;
use tokio::sync::watch;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;
use url::Url;

use super::address::{self, Address};
use super::http::{self, Context, Remote};
use super::server::Server;
use super::settings::{Reach, ServerSettings};
use super::stdio::{McpProcess, StdioServer};
use crate::names::is_below;
use crate::sign_in::Tokens;

/// The time limit for ending all HTTP sessions at shutdown.
const SHUTDOWN_GRACE: Duration = Duration::from_secs(5);
/// The maximum number of tools that an error about a missing one lists.
const SHOWN_TOOLS: usize = 20;

/// Every MCP server of an instance: one connection for each, shared by all its users.
///
/// # How it works
///
/// A server that is a child process is [supervised](orla_process::supervisor). A server behind HTTP has
/// its own task. No server is started before it is needed. A capability holds its server, and so does
/// every catalogue that holds the capability. A server ends with its last user.
pub struct McpServers {
    processes: Supervisor<StdioServer>,
    policy: Arc<Mutex<Policy>>,
    changes: watch::Sender<u64>,
    tasks: TaskTracker,
    stop: CancellationToken,
    /// One client for this machine, one for all other hosts.
    clients: [Mutex<Option<reqwest::Client>>; 2],
    /// The tokens of sign-ins.
    tokens: Tokens,
    instance: Arc<Instance>,
    configured: Mutex<Configured>,
}

#[derive(Default)]
struct Configured {
    /// The configured entries, each with its server.
    entries: Vec<(Arc<ServerSettings>, Arc<Server>)>,
    /// Individually declared capabilities, with their servers.
    declared: Vec<(Registration, Arc<Server>)>,
    /// Servers that a `server_url` describes.
    own: HashMap<ProcessKey, Arc<Server>>,
}

/// The reason why a declared capability cannot be served.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct DeclaredProblem {
    /// The capability.
    pub id: String,
    /// The reason.
    pub reason: String,
    /// Whether the server is behind HTTP and may only be unreachable at the moment.
    pub may_pass: bool,
}

/// A capability's reference to its server.
#[derive(Debug)]
pub(super) struct Connected {
    pub(super) server: Arc<Server>,
    pub(super) tool: Arc<str>,
    /// Whether the server has not listed the tool yet. It is not called then.
    pub(super) is_expected: bool,
}

impl McpServers {
    /// Returns the process of the server with this name, if it is one of this machine.
    pub fn managed(&self, name: &str) -> Option<Arc<dyn Managed>> {
        self.processes.managed(name)
    }

    /// Returns the processes of this machine that may serve a capability of this name.
    pub fn managed_for(&self, name: &str) -> Vec<Arc<dyn Managed>> {
        let configured = self.configured.lock();
        let may = |(settings, _): &&(Arc<ServerSettings>, Arc<Server>)| {
            settings.name == name || settings.names.may_serve(&settings.name, name)
        };
        let matching = configured.entries.iter().filter(may);
        matching.filter_map(|(_, server)| server.managed()).collect()
    }

    /// See [`Supervisor::withheld`].
    pub fn withheld(&self) -> Vec<(String, BTreeSet<String>)> {
        self.processes.withheld()
    }

    /// See [`Supervisor::sandboxes`].
    pub fn sandboxes(&self) -> Vec<(String, Arc<Sandbox>)> {
        self.processes.sandboxes()
    }

    /// Creates an instance without servers. Their processes carry the mark of `instance`.
    pub fn new(instance: Arc<Instance>, policy: Policy) -> Self {
        let changes = watch::Sender::new(0);
        Self {
            processes: Supervisor::new(Arc::clone(&instance), policy, changes.clone()),
            policy: Arc::new(Mutex::new(policy)),
            changes,
            tasks: TaskTracker::new(),
            stop: CancellationToken::new(),
            clients: Default::default(),
            tokens: Tokens::default(),
            instance,
            configured: Mutex::default(),
        }
    }

    /// Sets the store of sign-in tokens. Otherwise the tokens end with the process.
    #[must_use]
    pub fn with_tokens(self, tokens: Tokens) -> Self {
        Self { tokens, ..self }
    }

    /// Applies a loaded configuration. A server whose name stays is carried over: if unchanged, it keeps
    /// its process or its connection; if changed, it is restarted. The others end with their last users.
    /// This function starts nothing.
    ///
    /// `capabilities` are those of the configuration whose provider is an MCP server. One with a
    /// [pattern](MCPCapability::pattern) becomes one capability for each matching tool, `ID.TOOL`. One that names
    /// a tool is completed by the server's description of it, and is not served if the server turns out not to
    /// have it.
    pub fn load(
        &self,
        servers: impl IntoIterator<Item = ServerSettings>,
        capabilities: impl IntoIterator<Item = Registration>,
        policy: Policy,
    ) {
        *self.policy.lock() = policy;
        let servers: Vec<Arc<ServerSettings>> = servers.into_iter().map(Arc::new).collect();
        let capabilities: Vec<Registration> = capabilities.into_iter().collect();
        let mut configured = self.configured.lock();
        let own: Vec<(ProcessKey, ServerSettings)> = capabilities
            .iter()
            .filter_map(|capability| {
                let mcp: &MCPCapability = capability.manifest.provider.settings().ok()?;
                match address::parse(&mcp.server_url) {
                    Ok(Address::Own(settings)) => {
                        let key = own_key(mcp);
                        let settings = self.confined(*settings, &key);
                        Some((key, settings))
                    }
                    Ok(Address::Entry(_)) | Err(_) => None,
                }
            })
            .collect();
        // All processes are loaded together, because the supervisor ends every process that is not
        // named.
        let processes = servers.iter().map(|settings| &**settings);
        let processes = processes.chain(own.iter().map(|(_, settings)| settings));
        self.processes.load(processes.filter_map(stdio_server), policy);
        let old = std::mem::take(&mut *configured);
        let carried = |settings: &Arc<ServerSettings>| {
            let same = |(old, server): &(Arc<ServerSettings>, Arc<Server>)| {
                (old.name == settings.name && is_reached_alike(old, settings))
                    .then(|| Arc::clone(server))
            };
            old.entries.iter().find_map(same)
        };
        for settings in servers {
            let server = carried(&settings).unwrap_or_else(|| self.server(&settings));
            configured.entries.push((settings, server));
        }
        for (key, settings) in own {
            let server = old.own.get(&key).map(Arc::clone);
            let server = server.unwrap_or_else(|| self.server(&settings));
            configured.own.insert(key, server);
        }
        for capability in capabilities {
            let Ok(mcp) = capability.manifest.provider.settings::<MCPCapability>() else { continue };
            let server = match find(&configured, mcp) {
                Some(server) => server,
                None => broken(&capability.manifest.id, &mcp.server_url),
            };
            configured.declared.push((capability, server));
        }
        drop(configured);
        // Dropped outside the lock, because this may end a server.
        drop(old);
    }

    /// Returns the names of the configured servers that have listed tools.
    pub fn listed(&self) -> Vec<String> {
        let configured = self.configured.lock();
        let has_tools =
            |(_, server): &&(Arc<ServerSettings>, Arc<Server>)| server.tools(|tools| !tools.is_empty());
        configured.entries.iter().filter(has_tools).map(|(settings, _)| settings.name.clone()).collect()
    }

    /// Returns the rules about names that fit no tool of their server, a sentence for each. Servers that
    /// have not listed their tools are left out.
    pub fn unmatched_names(&self) -> Vec<String> {
        let configured = self.configured.lock();
        let of_entry = |(settings, server): &(Arc<ServerSettings>, Arc<Server>)| {
            server.tools(|tools| {
                let names: Vec<&str> = tools.iter().map(|tool| &*tool.name).collect();
                let unmatched =
                    if names.is_empty() { Vec::new() } else { settings.names.unmatched(&names) };
                let sentence = |(key, name): &(&str, &str)| {
                    format!("mcpServers.{}.{key}: `{name}` fits no tool of the server", settings.name)
                };
                unmatched.iter().map(sentence).collect::<Vec<_>>()
            })
        };
        configured.entries.iter().flat_map(of_entry).collect()
    }

    /// Asks the servers of individually declared capabilities for their tools. Returns the reasons why
    /// some of these capabilities cannot be served.
    pub async fn check_declared(&self) -> Vec<DeclaredProblem> {
        let declared: Vec<_> = self.configured.lock().declared.clone();
        join_all(declared.iter().map(|(_, server)| server.learn())).await;
        let problem = |(declared, server): &(Registration, Arc<Server>)| {
            let id = declared.manifest.id.clone();
            if let Some(reason) = missing(declared, server) {
                return Some(DeclaredProblem { id, reason, may_pass: false });
            }
            let failure = server.info().is_none().then(|| server.status().last_failure)??;
            let reason = format!("MCP server {}: {failure}", server.name());
            Some(DeclaredProblem { id, reason, may_pass: matches!(**server, Server::Remote(_)) })
        };
        declared.iter().filter_map(problem).collect()
    }

    /// Returns the server of a capability. A server that the address describes is created at its first
    /// use.
    ///
    /// # Errors
    /// The address is invalid, or there is no such entry.
    pub(super) fn reach(&self, capability: &MCPCapability) -> Result<Arc<Server>, String> {
        let mut configured = self.configured.lock();
        if let Some(server) = find(&configured, capability) {
            return Ok(server);
        }
        match address::parse(&capability.server_url)? {
            Address::Entry(name) => Err(format!("no MCP server is called {name}")),
            Address::Own(settings) => {
                let key = own_key(capability);
                let server = self.server(&self.confined(*settings, &key));
                configured.own.insert(key, Arc::clone(&server));
                Ok(server)
            }
        }
    }

    /// Returns the status of the server of a capability, which need not exist yet.
    pub(super) fn status(&self, capability: &MCPCapability) -> ProviderStatus {
        if let Some(server) = find(&self.configured.lock(), capability) {
            return server.status();
        }
        let mut status = ProviderStatus::default();
        if is_program(capability) {
            let sandboxes = self.instance.sandboxes();
            status.sandbox = Some(sandboxes.status_of(sandbox_of(capability, sandboxes).as_ref()));
        }
        status
    }

    /// Returns the settings of a server without an entry whose process is confined to the permissions.
    fn confined(&self, settings: ServerSettings, key: &ProcessKey) -> ServerSettings {
        let (name, sandbox) = (key.name(settings.name), key.sandbox(self.instance.sandboxes()));
        ServerSettings { name, sandbox, ..settings }
    }

    fn server(&self, settings: &ServerSettings) -> Arc<Server> {
        let server = match stdio_server(settings) {
            Some(server) => Ok(Server::Process(McpProcess(self.processes.load_one(server)))),
            None => self.client(settings).and_then(|client| {
                let context = Context {
                    client,
                    tokens: self.tokens.clone(),
                    policy: Arc::clone(&self.policy),
                    tasks: self.tasks.clone(),
                    changes: self.changes.clone(),
                    stop: self.stop.clone(),
                };
                Remote::new(settings, context).map(Server::Remote)
            }),
        };
        Arc::new(server.unwrap_or_else(|problem| {
            tracing::error!(server = settings.name, problem, "an MCP server cannot be used");
            Server::Broken(settings.name.clone(), problem)
        }))
    }

    fn client(&self, settings: &ServerSettings) -> Result<reqwest::Client, String> {
        let is_local = matches!(&settings.reach, Reach::Http { url, .. }
            if Url::parse(url).is_ok_and(|url| is_loopback(&url)));
        let mut client = self.clients[usize::from(is_local)].lock();
        if let Some(client) = &*client {
            return Ok(client.clone());
        }
        Ok(client.insert(http::client(is_local)?).clone())
    }

    /// Returns every server that the configuration in force uses.
    fn servers(&self) -> Vec<Arc<Server>> {
        let configured = self.configured.lock();
        let entries = configured.entries.iter().map(|(_, server)| server);
        entries.chain(configured.own.values()).map(Arc::clone).collect()
    }
}

/// Returns an instance without servers, with the default policy. Processes outlive this program if it is
/// killed.
impl Default for McpServers {
    fn default() -> Self {
        Self::new(Instance::unguarded(), Policy::default())
    }
}

impl fmt::Debug for McpServers {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_list().entries(self.servers()).finish()
    }
}

/// Checks whether the program of a server that is a process can be started.
///
/// # Errors
/// Why the program cannot be started.
pub fn check_program(settings: &ServerSettings) -> Result<(), String> {
    stdio_server(settings).map_or(Ok(()), |StdioServer(command)| command.check())
}

/// Checks whether the directory of a server that is a process exists.
///
/// # Errors
/// Why it cannot run in it.
pub fn check_directory(settings: &ServerSettings) -> Result<(), String> {
    stdio_server(settings).map_or(Ok(()), |StdioServer(command)| command.check_directory())
}

/// Returns the process of these settings, if the server is one.
fn stdio_server(settings: &ServerSettings) -> Option<StdioServer> {
    let Reach::Process { command, args, env, pass_env, cwd } = &settings.reach else { return None };
    Some(StdioServer(Command {
        name: settings.name.clone(),
        command: command.clone(),
        args: args.clone(),
        env: env.iter().map(|(name, value)| (name.clone(), value.clone())).collect(),
        pass_env: pass_env.clone(),
        directory: cwd.clone(),
        sandbox: settings.sandbox.clone(),
        startup_timeout: settings.startup_timeout,
        eager: settings.eager,
    }))
}

/// Returns whether one connection can serve both settings. Its supervisor restarts a process.
fn is_reached_alike(one: &ServerSettings, other: &ServerSettings) -> bool {
    match (&one.reach, &other.reach) {
        (Reach::Process { .. }, Reach::Process { .. }) => true,
        (one_reach, other_reach) => {
            one_reach == other_reach
                && one.auth == other.auth
                && one.startup_timeout == other.startup_timeout
        }
    }
}

/// Returns the sandbox of the program that a `server_url` describes; `None` if there is none, or if
/// nothing confines it.
pub fn sandbox_of(capability: &MCPCapability, sandboxes: &Sandboxes) -> Option<Arc<Sandbox>> {
    own_key(capability).sandbox(sandboxes)
}

/// Returns the key of a capability's server that has no entry.
fn own_key(capability: &MCPCapability) -> ProcessKey {
    let words = if is_program(capability) { &capability.options.permissions[..] } else { &[] };
    ProcessKey::new(&capability.server_url, words)
}

fn is_program(capability: &MCPCapability) -> bool {
    capability.server_url.starts_with("stdio:")
}

fn find(configured: &Configured, capability: &MCPCapability) -> Option<Arc<Server>> {
    match capability.server_url.strip_prefix("mcp:") {
        Some(name) => {
            let entry = configured.entries.iter().find(|(settings, _)| settings.name == name);
            entry.map(|(_, server)| Arc::clone(server))
        }
        None => configured.own.get(&own_key(capability)).map(Arc::clone),
    }
}

fn broken(id: &str, server_url: &str) -> Arc<Server> {
    let problem = match address::parse(server_url) {
        Ok(Address::Entry(name)) => format!("no MCP server is called {name}"),
        Ok(Address::Own(_)) => "it cannot be reached".to_owned(),
        Err(problem) => problem,
    };
    tracing::error!(capability = id, problem, "an MCP server cannot be used");
    Arc::new(Server::Broken(id.to_owned(), problem))
}

/// Returns the provider of a tool, with its connection.
fn provider(mut mcp: MCPCapability, server: &Arc<Server>, is_expected: bool) -> ProviderType {
    let tool = mcp.tool_name.as_str().into();
    let connected = Connected { server: Arc::clone(server), tool, is_expected };
    mcp.options.connection = Some(Connection::new(Arc::new(connected)));
    ProviderType::MCP(mcp)
}

/// Returns the capabilities of a configured server.
fn of_entry(settings: &ServerSettings, server: &Arc<Server>) -> Vec<Registration> {
    let registration = |tool: &ListedTool, is_expected: bool| {
        let timeout = settings.timeout_of(&tool.name);
        let timeout_ms = timeout.map_or(0, |timeout| millis_down(timeout).max(1));
        let mcp = MCPCapability::new(format!("mcp:{}", settings.name), &*tool.name, timeout_ms);
        let provider = provider(mcp, server, is_expected);
        let manifest =
            CapabilityManifest::new(settings.names.id_of(&settings.name, &tool.name), "", provider);
        let mut registration = Registration::from(manifest);
        describe(&mut registration, tool, false);
        registration.policy.timeout = timeout;
        registration.policy.upstream = upstream(server);
        registration.policy.redaction.clone_from(&settings.redaction);
        registration.policy.shown_to = server.shown_to(&tool.name);
        registration
    };
    let registrations = |tools: &[ListedTool], is_expected: bool| {
        let served = tools.iter().filter(|tool| settings.names.serves(&tool.name));
        served.map(|tool| registration(tool, is_expected)).collect()
    };
    match server.info() {
        None => registrations(&settings.expected_tools, true),
        Some(_) => server.tools(|tools| registrations(tools, false)),
    }
}

/// Returns the upstream of calls. A process has none, because its supervisor knows its state better.
fn upstream(server: &Server) -> Option<Arc<str>> {
    match server {
        Server::Remote(remote) => Some(format!("mcp:{}", remote.name()).into()),
        Server::Process(_) | Server::Broken(..) => None,
    }
}

/// Returns the capabilities of a declared one: itself, or one for each tool if it stands for several.
fn of_declared(declared: &Registration, server: &Arc<Server>) -> Vec<Registration> {
    let Ok(mcp) = declared.manifest.provider.settings::<MCPCapability>() else { return Vec::new() };
    let complete = |mut registration: Registration, tool: &str| {
        let mut mcp = mcp.clone();
        tool.clone_into(&mut mcp.tool_name);
        registration.manifest.provider = provider(mcp, server, false);
        if registration.policy.upstream.is_none() {
            registration.policy.upstream = upstream(server);
        }
        registration
    };
    server.tools(|tools| {
        let Some(pattern) = mcp.pattern() else {
            if missing(declared, server).is_some() {
                return Vec::new();
            }
            let mut registration = complete(declared.clone(), &mcp.tool_name);
            if let Some(tool) = tools.iter().find(|tool| tool.name == mcp.tool_name) {
                let has_description = !registration.manifest.description.trim().is_empty();
                describe(&mut registration, tool, has_description);
            } else if server.is_unlearned()
                && registration.policy.availability == Availability::Available
            {
                registration.policy.availability = Availability::Unlearned;
            }
            return vec![registration];
        };
        let one_of = |tool: &ListedTool| {
            let mut registration = complete(declared.clone(), &tool.name);
            let manifest = &mut registration.manifest;
            manifest.id = format!("{}.{}", manifest.id, tool.name);
            manifest.name.clone_from(&manifest.id);
            manifest.input_schema = None;
            manifest.output_schema = None;
            describe(&mut registration, tool, false);
            registration
        };
        tools.iter().filter(|tool| pattern.matches(&tool.name)).map(one_of).collect()
    })
}

/// Returns the problem of [`missing`] for a capability.
fn missing_problem((declared, server): &(Registration, Arc<Server>)) -> Option<ProviderProblem> {
    let id = &declared.manifest.id;
    let text = format!("{id}: {}", missing(declared, server)?);
    Some(ProviderProblem::new(id, Some(id), text))
}

/// Returns why a declared capability is not served although its server has listed its tools: the tool is
/// missing.
fn missing(declared: &Registration, server: &Server) -> Option<String> {
    let mcp: &MCPCapability = declared.manifest.provider.settings().ok()?;
    server.info()?;
    let pattern = mcp.pattern().unwrap_or_else(|| Pattern::new(&*mcp.tool_name));
    server.tools(|tools| {
        if tools.iter().any(|tool| pattern.matches(&tool.name)) {
            return None;
        }
        let names: Vec<_> = tools.iter().take(SHOWN_TOOLS).map(|tool| tool.name.as_str()).collect();
        let more = if tools.len() > names.len() { ", …" } else { "" };
        let has = if names.is_empty() { "no tools".to_owned() } else { names.join(", ") + more };
        Some(format!("the MCP server {} has no tool {}; it has {has}", server.name(), pattern.as_str()))
    })
}

#[async_trait]
impl Source for McpServers {
    fn registrations(&self) -> Vec<Registration> {
        let configured = self.configured.lock();
        let entries =
            configured.entries.iter().flat_map(|(settings, server)| of_entry(settings, server));
        let declared =
            configured.declared.iter().flat_map(|(declared, server)| of_declared(declared, server));
        entries.chain(declared).collect()
    }

    fn surfaces(&self) -> Vec<Arc<dyn Surface>> {
        let configured = self.configured.lock();
        let surface = |(settings, server): &(Arc<ServerSettings>, Arc<Server>)| {
            let surface = PeerSurface::new(Arc::clone(server), settings.names.prefix.clone());
            redacted(Arc::new(surface), settings.redaction.as_ref())
        };
        configured.entries.iter().map(surface).collect()
    }

    fn changes(&self) -> watch::Receiver<u64> {
        self.changes.subscribe()
    }

    fn may_serve(&self, name: &str) -> bool {
        let configured = self.configured.lock();
        configured.entries.iter().any(|(settings, _)| settings.names.may_serve(&settings.name, name))
            || configured.declared.iter().any(|(declared, _)| is_below(&declared.manifest.id, name))
    }

    fn problems(&self, name: Option<&str>) -> Vec<ProviderProblem> {
        let configured = self.configured.lock();
        let silent = configured.entries.iter().filter_map(|(settings, server)| {
            let (names, empty) = (&settings.names, server.why_empty());
            let is_asked = match name {
                None => server.info().is_none() || empty.is_some(),
                Some(name) => {
                    (server.needs_callers() || empty.is_some()) && names.may_serve(&settings.name, name)
                }
            };
            let problem = || names.process_problem("MCP server", &settings.name, server.status(), empty);
            is_asked.then(problem)?
        });
        let is_asked = |id: &str| name.is_none_or(|name| name == id || mcp_name(id) == name);
        let declared =
            configured.declared.iter().filter(|(declared, _)| is_asked(&declared.manifest.id));
        silent.chain(declared.filter_map(missing_problem)).collect()
    }

    async fn sign_in(
        &self,
        name: &str,
        principal: Option<&Principal>,
        client: Option<&Arc<dyn Client>>,
    ) -> Option<Result<(), String>> {
        let found = self.configured.lock().entries.iter().find_map(|(settings, server)| {
            let is_meant = settings.names.may_serve(&settings.name, name);
            (is_meant && server.needs_callers()).then(|| Arc::clone(server))
        });
        match &*found? {
            Server::Remote(remote) => remote.sign_in(principal, client).await,
            Server::Process(_) | Server::Broken(..) => None,
        }
    }

    fn missing(&self) -> Vec<String> {
        let configured = self.configured.lock();
        configured.declared.iter().filter_map(missing_problem).map(|problem| problem.text).collect()
    }

    fn owners_without_tools(&self) -> Vec<String> {
        let configured = self.configured.lock();
        let has_none = |(settings, server): &(Arc<ServerSettings>, Arc<Server>)| {
            let is_asked = server.info().is_some() && !server.needs_callers();
            (is_asked && server.tools(<[_]>::is_empty)).then(|| settings.name.clone())
        };
        configured.entries.iter().filter_map(has_none).collect()
    }

    fn awaited(&self) -> Vec<String> {
        let servers = self.servers();
        let unknown = servers.iter().filter(|server| !server.is_learned());
        unknown.map(|server| server.name().to_owned()).collect()
    }

    fn start_eager(&self, all: bool) {
        for (settings, server) in &self.configured.lock().entries {
            if all || settings.eager {
                server.request_start();
            }
        }
    }

    async fn learn(&self) {
        let servers = self.servers();
        join_all(servers.iter().map(|server| server.learn())).await;
    }

    async fn shutdown(&self) {
        self.stop.cancel();
        self.tasks.close();
        // Requests that still wait for an answer are abandoned.
        let rest = tokio::time::timeout(SHUTDOWN_GRACE, self.tasks.wait());
        let ((), _) = tokio::join!(self.processes.shutdown(), rest);
    }
}
