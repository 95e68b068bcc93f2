//! The configuration (RFC 1 §6): defaults, a file, the environment and flags, in rising precedence.
//!
//! # How it works
//!
//! [`table`] has a row for every key: its name, the form of its value, its field in [`Config`] and its
//! meaning. The larger keys have their own tables in their modules. These tables define how files,
//! `ORLA_*` variables and flags are read, which name is suggested for a misspelt key, the JSON Schema,
//! and the table in `docs/configuration.md`, so these cannot disagree.
//!
//! A file is first parsed into a tree with positions ([`orla_document`]). The keys are then read from
//! the tree, and *every* problem is reported with its line and column.
//!
//! # Deliberately absent
//!
//! A layering library: such libraries merge first and lose the position of a value.

mod access;
mod address;
pub(crate) mod agent;
mod agents;
mod approve;
mod builtins;
mod capabilities;
mod change;
mod cluster;
mod comments;
mod composite;
mod contradictions;
mod dotenv;
pub(crate) mod expand;
mod file;
mod forms;
mod governance;
mod history;
mod identity;
mod inputs;
pub(crate) mod keys;
mod openapi;
mod packages;
mod plugins;
mod problem;
mod provider;
mod quotas;
mod read;
mod remotes;
mod renames;
mod scalars;
mod schedules;
pub(crate) mod schema;
mod servers;
mod sign_in;
mod source;
mod streams;
pub(crate) mod subjects;
mod survey;
pub(crate) mod table;
pub(crate) mod telemetry;
pub(crate) mod tokens;
mod tools;
mod values;

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use orla_cluster::ClusterSettings;
use orla_console::Setting;
use orla_document::Position;
use orla_identity::{BearerToken, IssuerOptions, OwnToken};
use orla_marketplace::id::{Pattern, mcp_name};
use orla_marketplace::{
    AccessPolicy, ApprovalRule, CountScope, Permission, Principal, QuotaRule, Redactor, Registration,
    TaskSupport, rtfs,
};
use orla_process::confinement::{self, Declared};
use orla_process::environment::Environment;
use orla_process::standby::StandbyLimits;
use orla_providers::a2a::AgentSettings;
use orla_providers::mcp::ServerSettings;
use orla_providers::openapi::OpenApiSettings;
use orla_providers::plugin::PluginSettings;
use orla_providers::remote::RemoteSettings;
use orla_providers::sign_in::SignIn;
use orla_server::{AgentOptions, AuthLimits, CertificateName, TlsSettings};
use orla_tasks::{Schedule, TaskOptions};

pub(crate) use agent::{AgentConfig, Approve};
pub(crate) use builtins::Builtins;
pub(crate) use change::{FileChange, Readers};
pub(crate) use contradictions::is_loopback;
pub(crate) use file::read_text;
pub(crate) use governance::{AuditHeads, AuditSync, GovernanceConfig};
pub(crate) use orla_process::file::reason;
pub(crate) use packages::{PackagesConfig, Signatures};
pub(crate) use problem::Problem;
pub(crate) use provider::description as description_of;
pub(crate) use read::names_secret;
pub(crate) use source::{DEFAULT_FILES, Lookup, Origin, Source};
use subjects::Subject;
pub(crate) use survey::Survey;
use table::KEYS;

use crate::exposure::Exposure;
use crate::extensions::Extensions;

/// Variables of orla's own that hold tokens.
const OWN_SECRETS: [&str; 2] = ["ORLA_TOKEN", "ORLA_AUTH_TOKENS"];

/// Everything that can be configured. No file is needed: every field has a default (RFC 1 §6.1).
#[derive(Clone)]
pub(crate) struct Config {
    pub(crate) tools_dir: PathBuf,
    pub(crate) prompts_dir: PathBuf,
    pub(crate) host: String,
    pub(crate) port: u16,
    pub(crate) transport: Transport,
    /// How long one call may take.
    pub(crate) timeout: Duration,
    /// How long the list of a client waits for providers that start.
    pub(crate) listing_timeout: Duration,
    pub(crate) log_format: LogFormat,
    pub(crate) log_level: Severity,
    /// Bytes that are kept of each of a tool's output streams.
    pub(crate) max_output_bytes: usize,
    pub(crate) max_concurrency: usize,
    /// The part of them that one provider may use.
    pub(crate) max_provider_share: f64,
    /// The limits of prestarted processes.
    pub(crate) prestarted: StandbyLimits,
    pub(crate) max_queue: usize,
    pub(crate) max_body_bytes: usize,
    /// The maximum number of bytes that all requests hold together; 0 means a quarter of the memory.
    pub(crate) max_memory_bytes: usize,
    pub(crate) session_idle: Duration,
    pub(crate) auth_tokens: Vec<BearerToken>,
    /// The file of the tokens that orla makes; beside the configuration where it is empty.
    pub(crate) tokens_file: PathBuf,
    /// The tokens in that file, if it exists.
    pub(crate) own_tokens: Option<Vec<OwnToken>>,
    /// The authorization servers whose tokens are accepted.
    pub(crate) issuers: Vec<IssuerOptions>,
    pub(crate) auth_limits: AuthLimits,
    /// The certificates of the listener; without `cert`, there are none.
    pub(crate) tls: TlsSettings,
    /// The stored calls.
    pub(crate) history: history::HistoryConfig,
    /// Where traces are sent.
    pub(crate) telemetry: telemetry::TelemetryConfig,
    /// Certificates that commands trust as clients of a server.
    pub(crate) ca: PathBuf,
    /// The permissions of callers; `None` grants everything to every caller.
    pub(crate) access: Option<AccessPolicy>,
    /// Whether the error of a denied call names the missing permission.
    pub(crate) policy_reveal: bool,
    /// The calls that a person has to approve.
    pub(crate) approve: Vec<ApprovalRule>,
    /// How much callers may use.
    pub(crate) quotas: Vec<QuotaRule>,
    /// The schedules.
    pub(crate) schedules: Vec<Placed<Schedule>>,
    /// Where state is kept over a restart.
    pub(crate) state_dir: PathBuf,
    /// The kind of the state.
    pub(crate) state: StateKind,
    pub(crate) task_options: TaskOptions,
    pub(crate) allow_unauthenticated: bool,
    pub(crate) allowed_hosts: Vec<String>,
    pub(crate) allowed_origins: Vec<String>,
    /// Name patterns of the served capabilities; `None` means all.
    pub(crate) allow: Option<Vec<String>>,
    /// Name patterns of capabilities that are not served. They override `allow`.
    pub(crate) deny: Vec<String>,
    /// Whether the pages for people are served.
    pub(crate) console: bool,
    pub(crate) watch: bool,
    pub(crate) capsules: CapsuleConfig,
    pub(crate) programs: ProgramConfig,
    pub(crate) tools: BTreeMap<String, ToolOverride>,
    /// Which processes are confined.
    pub(crate) sandbox: confinement::Rules,
    /// Patterns of the variables that every process gets besides the usual ones.
    pub(crate) pass_env: Vec<Pattern>,
    /// Knows all secrets that the file refers to.
    pub(crate) secrets: Arc<Redactor>,
    /// Credentials that the file itself contains.
    pub(crate) literal_secrets: Vec<String>,
    /// The environment variables that the file expands.
    pub(crate) expanded: BTreeSet<String>,
    /// The MCP servers, in the order of the file; their names are unique, and part of MCP names.
    pub(crate) servers: Vec<Placed<ServerSettings>>,
    /// The agents, in the order of the file; their names are unique, and part of MCP names.
    pub(crate) agents: Vec<Placed<AgentSettings>>,
    /// The plugins, in the order of the file; their names are unique, and part of MCP names.
    pub(crate) plugins: Vec<Placed<PluginSettings>>,
    /// The declared capabilities, in the order of the file; their ids are unique.
    pub(crate) capabilities: Vec<Placed<Registration>>,
    /// The OpenAPI documents, in the order of the file.
    pub(crate) documents: Vec<Placed<OpenApiSettings>>,
    /// The other instances, in the order of the file; their names are unique.
    pub(crate) remotes: Vec<Placed<RemoteSettings>>,
    /// The cluster that this instance is a node of.
    pub(crate) cluster: Option<ClusterSettings>,
    /// Where the values of `cluster` are, by their keys.
    pub(crate) cluster_places: Vec<Placed<String>>,
    /// The sign-ins of providers other than MCP servers.
    pub(crate) sign_ins: Vec<SignIn>,
    pub(crate) builtins: Builtins,
    pub(crate) governance: GovernanceConfig,
    pub(crate) packages: PackagesConfig,
    pub(crate) expose: Exposure,
    pub(crate) agent: AgentConfig,
    /// The settings of the server as an agent.
    pub(crate) a2a: A2aConfig,
    /// The files that the configuration names. A change of such a file is a change of the configuration.
    pub(crate) named_files: Vec<PathBuf>,
    /// The program's additions to the built-in kinds.
    pub(crate) extensions: Extensions,
    /// Settings that are valid but probably mistakes.
    pub(crate) warnings: Vec<Problem>,
    /// The subjects of the rules of `policy`, `approve` and `quotas`.
    pub(crate) subjects: Vec<Placed<Subject>>,
    /// The file that was read, if there was one.
    pub(crate) file: Option<PathBuf>,
    /// Where the keys that are not at their defaults were set.
    pub(crate) origins: BTreeMap<&'static str, Origin>,
}

/// How capsules are supervised: the keys of `capsules`.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct CapsuleConfig {
    pub(crate) max_failures: usize,
    pub(crate) backoff_min: Duration,
    pub(crate) backoff_max: Duration,
    pub(crate) drain: Duration,
    pub(crate) eager: bool,
}

impl Default for CapsuleConfig {
    fn default() -> Self {
        Self {
            max_failures: 5,
            backoff_min: Duration::from_millis(100),
            backoff_max: Duration::from_secs(30),
            drain: Duration::from_secs(5),
            eager: false,
        }
    }
}

/// The limits of each program in RTFS: the keys of `rtfs`.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct ProgramConfig {
    pub(crate) steps: usize,
    pub(crate) memory: usize,
    pub(crate) depth: usize,
    pub(crate) calls: usize,
    pub(crate) calls_at_once: usize,
    pub(crate) output: usize,
}

impl Default for ProgramConfig {
    fn default() -> Self {
        let rtfs::Limits { steps, memory, depth, calls, calls_at_once, output } =
            rtfs::Limits::default();
        let count = |n: u64| usize::try_from(n).unwrap_or(usize::MAX);
        Self { steps: count(steps), memory, depth, calls: count(calls), calls_at_once, output }
    }
}

impl ProgramConfig {
    pub(crate) fn limits(&self) -> rtfs::Limits {
        let Self { steps, memory, depth, calls, calls_at_once, output } = *self;
        rtfs::Limits { steps: steps as u64, memory, depth, calls: calls as u64, calls_at_once, output }
    }
}

/// The settings of the server as an agent: the keys of `a2a`.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct A2aConfig {
    pub(crate) options: AgentOptions,
    /// Whether push notifications may go to this machine and to local networks.
    pub(crate) allow_private_push: bool,
}

/// The changes of `tools.NAME` to one tool.
#[derive(Clone, Default, PartialEq)]
pub(crate) struct ToolOverride {
    pub(crate) timeout: Option<Duration>,
    pub(crate) enabled: Option<bool>,
    pub(crate) description: Option<String>,
    pub(crate) rename: Option<Rename>,
    pub(crate) max_concurrency: Option<usize>,
    /// Where `max_concurrency` holds.
    pub(crate) scope: Option<CountScope>,
    pub(crate) retries: Option<u32>,
    /// How many processes wait for a call before it comes.
    pub(crate) prestart: Option<usize>,
    /// Whether it is called as a task.
    pub(crate) task: Option<TaskSupport>,
    /// Patterns of the variables that it gets besides the usual ones.
    pub(crate) pass_env: Vec<Pattern>,
    /// Variables in addition to the declared ones.
    pub(crate) env: BTreeMap<String, String>,
    /// Replaces the secrets in them in the output of the tool.
    pub(crate) redaction: Option<Arc<Redactor>>,
    /// Permissions and limits in addition to the declared ones.
    pub(crate) declared: Declared,
    /// Of the tool's name in the file.
    pub(crate) at: Option<Position>,
}

impl fmt::Debug for ToolOverride {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // Variables may contain keys.
        f.debug_struct("ToolOverride").field("env", &self.env.keys()).finish_non_exhaustive()
    }
}

impl ToolOverride {
    /// Returns whether only permissions and limits change.
    pub(crate) fn is_confinement_alone(&self) -> bool {
        *self == Self { declared: self.declared.clone(), at: self.at, ..Self::default() }
    }
}

/// The new name of a tool, and its place in the file.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Rename {
    pub(crate) to: String,
    pub(crate) at: Position,
}

/// A value with its place in the file.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Placed<T> {
    pub(crate) value: T,
    pub(crate) at: Position,
}

/// The kind of store for tasks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum StateKind {
    /// A file in `state_dir`.
    Directory,
    /// This process alone.
    Memory,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Transport {
    Http,
    Stdio,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum LogFormat {
    Json,
    Pretty,
}

/// RFC 1 §8.3, from the least to the most severe.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Severity {
    Debug,
    Info,
    Warn,
    Error,
    Fatal,
}

impl Default for Config {
    fn default() -> Self {
        Self {
            tools_dir: "./tools".into(),
            prompts_dir: "./prompts".into(),
            host: "127.0.0.1".to_owned(),
            port: 8080,
            transport: Transport::Http,
            timeout: Duration::from_secs(30),
            listing_timeout: Duration::from_secs(8),
            log_format: LogFormat::Json,
            log_level: Severity::Info,
            max_output_bytes: 1024 * 1024,
            max_concurrency: 64,
            max_provider_share: 0.75,
            prestarted: StandbyLimits::default(),
            max_queue: 1024,
            max_body_bytes: 4 * 1024 * 1024,
            max_memory_bytes: 0,
            session_idle: Duration::from_secs(30 * 60),
            auth_tokens: Vec::new(),
            tokens_file: PathBuf::new(),
            own_tokens: None,
            issuers: Vec::new(),
            auth_limits: AuthLimits::default(),
            tls: TlsSettings::default(),
            history: history::HistoryConfig::default(),
            telemetry: telemetry::TelemetryConfig::default(),
            ca: PathBuf::new(),
            access: None,
            policy_reveal: false,
            approve: Vec::new(),
            quotas: Vec::new(),
            schedules: Vec::new(),
            state_dir: "./.orla".into(),
            state: StateKind::Directory,
            task_options: TaskOptions::default(),
            allow_unauthenticated: false,
            allowed_hosts: Vec::new(),
            allowed_origins: Vec::new(),
            allow: None,
            deny: Vec::new(),
            console: true,
            watch: false,
            capsules: CapsuleConfig::default(),
            programs: ProgramConfig::default(),
            tools: BTreeMap::new(),
            sandbox: confinement::Rules::default(),
            pass_env: Vec::new(),
            secrets: Arc::default(),
            literal_secrets: Vec::new(),
            subjects: Vec::new(),
            expanded: BTreeSet::new(),
            servers: Vec::new(),
            agents: Vec::new(),
            plugins: Vec::new(),
            capabilities: Vec::new(),
            documents: Vec::new(),
            remotes: Vec::new(),
            cluster: None,
            cluster_places: Vec::new(),
            sign_ins: Vec::new(),
            builtins: Builtins::default(),
            governance: GovernanceConfig::default(),
            packages: PackagesConfig::default(),
            expose: Exposure::default(),
            agent: AgentConfig::default(),
            a2a: A2aConfig::default(),
            named_files: Vec::new(),
            extensions: Extensions::default(),
            warnings: Vec::new(),
            file: None,
            origins: BTreeMap::new(),
        }
    }
}

impl Config {
    /// Returns the schedules with the owners of their tasks. If callers are identified, each schedule is
    /// a principal of its own, with every permission that the policy does not deny. Otherwise its tasks
    /// belong to every caller.
    pub(crate) fn owned_schedules(&self) -> Vec<Schedule> {
        let tells_apart = self.access.is_some() || self.is_authenticated();
        let everything = Permission::needed("*");
        let owned = |schedule: &Schedule| {
            let owner = Principal::schedule(&schedule.name).with_permissions(vec![everything.clone()]);
            Schedule { owner: tells_apart.then_some(owner), ..schedule.clone() }
        };
        self.schedules.iter().map(|placed| owned(&placed.value)).collect()
    }

    /// Returns the defaults with these flags applied.
    #[cfg(test)]
    pub(crate) fn of(text: &str) -> Result<Self, Vec<Problem>> {
        let mut config = Self::default();
        let mut problems = Vec::new();
        let (path, secrets) =
            (std::path::Path::new("orla.yaml"), orla_secrets::Resolver::new(None, None));
        read::file(&mut config, path, text, None, &|_| None, &secrets, &mut problems);
        problems.extend(config.contradictions());
        if problems.is_empty() { Ok(config) } else { Err(problems) }
    }

    /// Takes over what cannot change while the server runs, and names the keys that would have changed it.
    pub(crate) fn keep_restart_keys(&mut self, running: &Self) -> Vec<String> {
        keys::keep(&KEYS, "", self, &mut running.clone())
    }

    /// Returns whether every caller needs a credential.
    pub(crate) fn is_authenticated(&self) -> bool {
        self.auth().are_required() || self.tls.client_ca.is_some()
    }

    /// Returns the certificates of the listener, if it has any.
    pub(crate) fn tls(&self) -> Option<&TlsSettings> {
        Some(&self.tls).filter(|tls| !tls.cert.as_os_str().is_empty())
    }

    /// Returns the entry of `tools` for what is declared with this name, which may be given in its form for MCP.
    pub(crate) fn change_of(&self, name: &str) -> Option<&ToolOverride> {
        if self.tools.is_empty() {
            return None;
        }
        self.tools.get(name).or_else(|| self.tools.get(&mcp_name(name)))
    }

    /// Returns a problem with the value of a key, with the place where it was set.
    pub(crate) fn problem(&self, key: &str, text: String) -> Problem {
        match (self.origins.get(key), &self.file) {
            (Some(Origin::File(at)), Some(file)) => Problem::at(file, *at, text),
            _ => Problem::new(text),
        }
    }

    /// Returns a sentence about something in the file, with its place.
    pub(crate) fn placed(&self, at: Position, text: String) -> String {
        match &self.file {
            Some(file) => Problem::at(file, at, text).to_string(),
            None => text,
        }
    }

    /// Returns whether a key was set for this one run, by a flag or the environment.
    pub(crate) fn is_asked_for(&self, key: &str) -> bool {
        matches!(self.origins.get(key), Some(Origin::Flag(_) | Origin::Environment(_)))
    }

    /// Returns the environment from which processes are started (`pass_env`). Variables that the file
    /// expands count as secrets, and so does the key of the model.
    pub(crate) fn environment(&self) -> Environment {
        Environment::new(self.pass_env.clone(), self.secret_variables())
    }

    /// Returns the names of variables that are taken for secrets.
    pub(crate) fn secret_variables(&self) -> BTreeSet<String> {
        let secrets =
            OWN_SECRETS.iter().map(|name| (*name).to_owned()).chain(self.agent.api_key_env.clone());
        self.expanded.iter().cloned().chain(secrets).collect()
    }

    /// Returns every key with its value and where it was set. Secrets and keys with a structure of their
    /// own have no value here.
    pub(crate) fn settings(&self) -> Vec<Setting> {
        let place = |key: &str| match self.origins.get(key.split('.').next().unwrap_or(key))? {
            Origin::File(at) => {
                let file = self.file.as_deref().unwrap_or("".as_ref()).display();
                Some(format!("{file}:{}:{}", at.line, at.column))
            }
            Origin::Environment(name) => Some(format!("variable {name}")),
            Origin::Flag(flag) => Some((*flag).to_owned()),
        };
        let values = keys::values(&KEYS, &mut self.clone());
        let setting = |(key, value, about): (String, Option<serde_json::Value>, String)| Setting {
            value: value.map(|value| self.secrets.text(&value.to_string()).into_owned()),
            origin: place(&key),
            key,
            about,
        };
        values.into_iter().map(setting).collect()
    }

    /// Returns whether a key is at its default.
    pub(crate) fn is_default(&self, key: &str) -> bool {
        !self.origins.contains_key(key)
    }
}

impl StateKind {
    pub(crate) const WORDS: &'static [(&'static str, Self)] =
        &[("directory", Self::Directory), ("memory", Self::Memory)];
}

impl Transport {
    pub(crate) const WORDS: &'static [(&'static str, Self)] =
        &[("http", Self::Http), ("stdio", Self::Stdio)];
}

/// The words of `auth.tls.principal`.
const CERTIFICATE_NAMES: &[(&str, CertificateName)] =
    &[("cn", CertificateName::CommonName), ("san", CertificateName::AlternativeName)];

impl LogFormat {
    pub(crate) const WORDS: &'static [(&'static str, Self)] =
        &[("json", Self::Json), ("pretty", Self::Pretty)];
}

impl Severity {
    pub(crate) const WORDS: &'static [(&'static str, Self)] = &[
        ("debug", Self::Debug),
        ("info", Self::Info),
        ("warn", Self::Warn),
        ("error", Self::Error),
        ("fatal", Self::Fatal),
    ];

    pub(crate) fn as_str(self) -> &'static str {
        match self {
            Self::Debug => "debug",
            Self::Info => "info",
            Self::Warn => "warn",
            Self::Error => "error",
            Self::Fatal => "fatal",
        }
    }
}

#[cfg(test)]
mod providers_tests;
#[cfg(test)]
mod tests;
