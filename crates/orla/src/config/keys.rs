//! The keys of the configuration: one table that everything which knows keys is made from.

use std::ffi::OsStr;
use std::path::PathBuf;
use std::time::Duration;

use orla_document::Node;
use orla_marketplace::id::Pattern;
use orla_process::environment::check_pattern;

use super::read::Reader;
use super::{
    AuditSync, Config, LogFormat, Severity, Transport, access, agent, agents, builtins, capabilities,
    governance, inputs, openapi, plugins, remotes, servers,
};
use crate::exposure::Exposure;

/// One key: what it is called, what it admits and where it goes, and what it means.
pub(crate) struct Key {
    pub(crate) name: &'static str,
    pub(crate) kind: Kind,
    /// One or two sentences, for the JSON Schema and so for editors.
    pub(crate) about: &'static str,
}

type Place<T> = fn(&mut Config) -> &mut T;

/// What a key admits, with the place of its value.
pub(crate) enum Kind {
    Path(Place<PathBuf>),
    Text(Place<String>),
    Port(Place<u16>),
    Count {
        place: Place<usize>,
        min: usize,
        max: usize,
    },
    /// Seconds, whole or fractional, above 0.
    Seconds {
        place: Place<Duration>,
        max: u32,
    },
    Flag(Place<bool>),
    Choice {
        words: fn() -> Vec<&'static str>,
        /// Takes the index of the word.
        put: fn(&mut Config, usize),
        get: fn(&Config) -> usize,
    },
    Texts {
        put: fn(&mut Config, Vec<String>),
        check: fn(&str) -> Result<(), String>,
    },
    /// A part of something, above 0 and at most 1.
    Share(Place<f64>),
    /// Milliseconds, whole.
    Milliseconds {
        place: Place<Duration>,
        min: u64,
        max: u64,
    },
    /// A mapping with these keys.
    Section(&'static [Key]),
    /// The mapping `tools`: it has keys of its own, [`TOOL_KEYS`].
    Tools,
    /// Whatever no other kind says: it is read by a module of its own.
    Own(Own),
}

/// A key that a module of its own reads.
pub(crate) struct Own {
    /// Reads the value; every problem and warning is noted with its place.
    pub(super) read: fn(&mut Reader<'_>, &mut Config, &'static str, &Node),
    /// Its JSON Schema.
    pub(crate) schema: fn() -> serde_json::Value,
    /// What it admits, for "expected …".
    pub(crate) expected: &'static str,
    /// Reads what an environment variable holds, where one can hold it.
    pub(super) variable: Option<FromVariable>,
}

/// Reads the text of an environment variable; an error says what was expected, and may repeat the text where
/// that is no secret.
pub(super) type FromVariable = fn(&mut Config, &str) -> Result<(), String>;

/// Every key of a configuration file.
pub(crate) const KEYS: &[Key] = &[
    Key {
        name: "tools_dir",
        kind: Kind::Path(|c| &mut c.tools_dir),
        about: "Directory whose executables are served as tools. A relative path is relative to this file.",
    },
    Key {
        name: "prompts_dir",
        kind: Kind::Path(|c| &mut c.prompts_dir),
        about: "Directory whose Markdown files are served as prompts. A relative path is relative to this file.",
    },
    Key {
        name: "transport",
        kind: Kind::Choice {
            words: || words(Transport::WORDS),
            put: |c, n| c.transport = Transport::WORDS[n].1,
            get: |c| index(Transport::WORDS, &c.transport),
        },
        about: "How clients connect: over HTTP, or over standard input and output. A change needs a restart.",
    },
    Key {
        name: "host",
        kind: Kind::Text(|c| &mut c.host),
        about: "Address to listen on. One that other machines can reach needs auth_tokens. A change needs a restart.",
    },
    Key {
        name: "port",
        kind: Kind::Port(|c| &mut c.port),
        about: "Port to listen on; 0 is any free one. Ignored on stdio. A change needs a restart.",
    },
    Key {
        name: "timeout",
        kind: Kind::Seconds { place: |c| &mut c.timeout, max: 86_400 },
        about: "Seconds that one call may take, unless the tool says otherwise.",
    },
    Key {
        name: "log_format",
        kind: Kind::Choice {
            words: || words(LogFormat::WORDS),
            put: |c, n| c.log_format = LogFormat::WORDS[n].1,
            get: |c| index(LogFormat::WORDS, &c.log_format),
        },
        about: "Form of the log on standard error: one JSON object a line, or text for people.",
    },
    Key {
        name: "log_level",
        kind: Kind::Choice {
            words: || words(Severity::WORDS),
            put: |c, n| c.log_level = Severity::WORDS[n].1,
            get: |c| index(Severity::WORDS, &c.log_level),
        },
        about: "The least severe level that is logged.",
    },
    Key {
        name: "max_output_bytes",
        kind: Kind::Count { place: |c| &mut c.max_output_bytes, min: 1, max: 1 << 30 },
        about: "Bytes kept of each of a tool's output streams; what comes beyond is read, dropped and reported.",
    },
    Key {
        name: "max_concurrency",
        kind: Kind::Count { place: |c| &mut c.max_concurrency, min: 1, max: 65_536 },
        about: "Calls that run at once.",
    },
    Key {
        name: "max_provider_share",
        kind: Kind::Share(|c| &mut c.max_provider_share),
        about: "The part of max_concurrency that one provider may use, rounded down to at least one call: an MCP server, an agent, a plugin, a host, a tool.",
    },
    Key {
        name: "max_queue",
        kind: Kind::Count { place: |c| &mut c.max_queue, min: 0, max: 1_000_000 },
        about: "Calls that wait for their turn, which principals take one after the other; one more is answered `busy`.",
    },
    Key {
        name: "max_body_bytes",
        kind: Kind::Count { place: |c| &mut c.max_body_bytes, min: 1, max: 1 << 30 },
        about: "Bytes that the body of a request may have.",
    },
    Key {
        name: "max_memory_bytes",
        kind: Kind::Count { place: |c| &mut c.max_memory_bytes, min: 0, max: 1 << 50 },
        about: "Bytes that request bodies, outputs and the values of programs may hold together; beyond it new work is answered `busy`. With 0, a quarter of the memory of the machine or its control group.",
    },
    Key {
        name: "session_idle",
        kind: Kind::Seconds { place: |c| &mut c.session_idle, max: 30 * 86_400 },
        about: "Seconds after which a session that nobody uses is closed.",
    },
    Key {
        name: "auth_tokens",
        kind: Kind::Own(access::TOKENS),
        about: "Bearer tokens; where there are any, every request must carry one of them. With a mapping, each caller has a name, for policy and audit.",
    },
    Key { name: "auth", kind: Kind::Section(AUTH_KEYS), about: "How callers are authenticated." },
    Key {
        name: "allow_unauthenticated",
        kind: Kind::Flag(|c| &mut c.allow_unauthenticated),
        about: "Serve other machines without auth_tokens. Anyone who can reach the port can then run the tools.",
    },
    Key {
        name: "allowed_hosts",
        kind: Kind::Texts { put: |c, texts| c.allowed_hosts = texts, check: not_empty },
        about: "Host headers that are accepted besides those of this machine.",
    },
    Key {
        name: "allowed_origins",
        kind: Kind::Texts { put: |c, texts| c.allowed_origins = texts, check: not_empty },
        about: "Origins of web pages that may connect, such as https://app.example.com.",
    },
    Key {
        name: "mcpServers",
        kind: Kind::Own(servers::KEY),
        about: "MCP servers whose tools, prompts and resources are served too: the object that MCP clients' own configuration files hold, as it is.",
    },
    Key {
        name: "servers",
        kind: Kind::Own(servers::KEY),
        about: "The same as mcpServers, as VS Code's mcp.json calls it.",
    },
    Key {
        name: "agents",
        kind: Kind::Own(agents::KEY),
        about: "Agents that speak the Agent2Agent protocol, each of whose skills becomes a capability: by name, an address or a mapping with more.",
    },
    Key {
        name: "plugins",
        kind: Kind::Own(plugins::KEY),
        about: "Programs that answer one JSON line with another and stay between calls; each function that they describe is served.",
    },
    Key {
        name: "inputs",
        kind: Kind::Own(inputs::KEY),
        about: "What VS Code's mcp.json asks a person for. ${input:ID} is the environment variable ID (in capitals, `_` for what is no letter or digit), else the default that stands here.",
    },
    Key {
        name: "capabilities",
        kind: Kind::Own(capabilities::KEY),
        about: "Capabilities that no file in tools_dir implements: built-ins, HTTP endpoints, tools of MCP servers, functions of plugins, agents, and OpenAPI documents.",
    },
    Key {
        name: "openapi",
        kind: Kind::Own(openapi::KEY),
        about: "OpenAPI documents, each of whose operations becomes a capability: a file, an address, or a mapping with more; or a list of these.",
    },
    Key {
        name: "remotes",
        kind: Kind::Own(remotes::KEY),
        about: "Other instances of orla whose capabilities are served too, each under its name: an address, or a mapping with url, token, prefix, include, exclude, timeout, eager.",
    },
    Key {
        name: "builtins",
        kind: Kind::Own(builtins::KEY),
        about: "Which built-in capabilities are listed: true is all, a list of name patterns those that fit. The others can be found and called all the same; with false, there are none.",
    },
    Key {
        name: "pass_env",
        kind: Kind::Texts {
            put: |c, texts| c.pass_env.extend(texts.into_iter().map(Pattern::new)),
            check: variables,
        },
        about: "Environment variables that every tool, package, plugin, program stream and MCP server gets besides the usual ones: names, or patterns with *. ORLA_PASS_ENV adds to these.",
    },
    Key { name: "tools", kind: Kind::Tools, about: "Overrides for single tools, by name." },
    Key {
        name: "allow",
        kind: Kind::Texts { put: |c, texts| c.allow = Some(texts), check: not_empty },
        about: "Name patterns (`*` stands for any text) of what is listed and can be called; without this key, everything.",
    },
    Key {
        name: "deny",
        kind: Kind::Texts { put: |c, texts| c.deny = texts, check: not_empty },
        about: "Name patterns of what is neither listed nor can be called, whatever `allow` says.",
    },
    Key {
        name: "policy",
        kind: Kind::Own(access::POLICY),
        about: "Who may use what: with it, a call is permitted when some rule allows all that the capability needs and none denies it. Without it, whatever is configured may be used.",
    },
    Key {
        name: "policy_reveal",
        kind: Kind::Flag(|c| &mut c.policy_reveal),
        about: "Tell callers which permission a denied call lacks. Without it, what the policy denies is answered as a name that does not exist.",
    },
    Key {
        name: "capsules",
        kind: Kind::Section(CAPSULE_KEYS),
        about: "How capsules are supervised: packages whose process stays between calls.",
    },
    Key {
        name: "rtfs",
        kind: Kind::Section(PROGRAM_KEYS),
        about: "What each program in RTFS may use. Its time is that of its call: `timeout`, or `tools.rtfs.timeout`.",
    },
    Key {
        name: "expose",
        kind: Kind::Choice {
            words: || words(Exposure::WORDS),
            put: |c, n| c.expose = Exposure::WORDS[n].1,
            get: |c| index(Exposure::WORDS, &c.expose),
        },
        about: "What clients see when they list: all, or search: the tools capability_search, capability_describe and capability_call alone, through which everything else is found and called.",
    },
    Key {
        name: "agent",
        kind: Kind::Own(agent::KEY),
        about: "The model that `orla agent` asks, and how far it may go.",
    },
    Key {
        name: "a2a",
        kind: Kind::Section(A2A_KEYS),
        about: "What orla is to those who speak the Agent2Agent protocol with it: its card, and the tasks that it keeps.",
    },
    Key {
        name: "trusted_keys",
        kind: Kind::Own(governance::KEYS),
        about: "Whose attestations count: the public keys by the names of their authorities. `orla attest --new-key FILE` makes one.",
    },
    Key {
        name: "attestations",
        kind: Kind::Path(|c| &mut c.governance.attestations),
        about: "The file that `orla attest` writes and that attestations are read from; orla.attestations.json beside this file where absent.",
    },
    Key {
        name: "require_attestation",
        kind: Kind::Flag(|c| &mut c.governance.require_attestation),
        about: "Serve only what one of trusted_keys vouches for as it is now. Built-ins need no attestation.",
    },
    Key {
        name: "audit",
        kind: Kind::Path(|c| &mut c.governance.audit),
        about: "File to which every call is appended, each line chained to the one before by its hash; none where absent. A change needs a restart.",
    },
    Key {
        name: "audit_sync",
        kind: Kind::Choice {
            words: || words(AuditSync::WORDS),
            put: |c, n| c.governance.audit_sync = AuditSync::WORDS[n].1,
            get: |c| index(AuditSync::WORDS, &c.governance.audit_sync),
        },
        about: "When the audit log is written through to the disk: after every batch of lines, once in a second, or when the system likes. A change needs a restart.",
    },
    Key {
        name: "audit_key",
        kind: Kind::Path(|c| &mut c.governance.audit_key),
        about: "PEM file with the Ed25519 secret key that signs the head of the audit log whenever that is written through, as `orla attest --new-key` makes it. A change needs a restart.",
    },
    Key {
        name: "audit_heads",
        kind: Kind::Own(governance::HEADS),
        about: "Where the heads of the audit log also go: a file to which they are appended, or a command as a list, which reads one line on its standard input. A change needs a restart.",
    },
    Key {
        name: "watch",
        kind: Kind::Flag(|c| &mut c.watch),
        about: "Reload when the tools, the prompts, this file or files that it names change.",
    },
];

/// The keys of `auth`.
const AUTH_KEYS: &[Key] = &[Key {
    name: "limits",
    kind: Kind::Section(AUTH_LIMIT_KEYS),
    about: "How often a peer may fail to authenticate.",
}];

/// The keys of `auth.limits`.
const AUTH_LIMIT_KEYS: &[Key] = &[
    Key {
        name: "failures_per_minute",
        kind: Kind::Count { place: |c| &mut c.auth_limits.failures_per_minute, min: 0, max: 1_000_000 },
        about: "Failed authentications that one address may have in a minute; beyond it the answer is 429 with Retry-After. A good token is never refused. 0 is no limit.",
    },
    Key {
        name: "loopback",
        kind: Kind::Flag(|c| &mut c.auth_limits.loopback),
        about: "Limit failures from this machine too.",
    },
];

/// The keys of `capsules`.
const CAPSULE_KEYS: &[Key] = &[
    Key {
        name: "max_failures",
        kind: Kind::Count { place: |c| &mut c.capsules.max_failures, min: 1, max: 1_000_000 },
        about: "Failures in a row after which a capsule is not restarted until it or the configuration changes.",
    },
    Key {
        name: "backoff_min_ms",
        kind: Kind::Milliseconds { place: |c| &mut c.capsules.backoff_min, min: 1, max: DAY_MS },
        about: "The longest wait before the restart that follows the first failure; it doubles with each.",
    },
    Key {
        name: "backoff_max_ms",
        kind: Kind::Milliseconds { place: |c| &mut c.capsules.backoff_max, min: 1, max: DAY_MS },
        about: "What the wait before a restart grows to.",
    },
    Key {
        name: "drain_ms",
        kind: Kind::Milliseconds { place: |c| &mut c.capsules.drain, min: 0, max: DAY_MS },
        about: "How long calls in flight may go on when a capsule's files have changed.",
    },
    Key {
        name: "eager",
        kind: Kind::Flag(|c| &mut c.capsules.eager),
        about: "Start every capsule with the server, and not at its first use.",
    },
];

/// The keys of `rtfs`.
const PROGRAM_KEYS: &[Key] = &[
    Key {
        name: "steps",
        kind: Kind::Count { place: |c| &mut c.programs.steps, min: 1, max: MOST_STEPS },
        about: "Steps of the machine; 20,000 take about a millisecond.",
    },
    Key {
        name: "memory",
        kind: Kind::Count { place: |c| &mut c.programs.memory, min: 1024, max: MOST_BYTES },
        about: "Bytes of values that are alive, about.",
    },
    Key {
        name: "depth",
        kind: Kind::Count { place: |c| &mut c.programs.depth, min: 1, max: 1_000_000 },
        about: "Calls of functions that wait for each other; tail calls do not count.",
    },
    Key {
        name: "calls",
        kind: Kind::Count { place: |c| &mut c.programs.calls, min: 0, max: 1_000_000_000 },
        about: "Calls of capabilities.",
    },
    Key {
        name: "calls_at_once",
        kind: Kind::Count { place: |c| &mut c.programs.calls_at_once, min: 1, max: 100_000 },
        about: "Calls of capabilities at the same time; others wait for these.",
    },
    Key {
        name: "output",
        kind: Kind::Count { place: |c| &mut c.programs.output, min: 1, max: MOST_BYTES },
        about: "Bytes of the result, about.",
    },
];

/// The keys of `a2a`.
const A2A_KEYS: &[Key] = &[
    Key {
        name: "name",
        kind: Kind::Text(|c| &mut c.a2a.options.name),
        about: "The agent's name on its card.",
    },
    Key {
        name: "description",
        kind: Kind::Text(|c| &mut c.a2a.options.description),
        about: "What the card says the agent does; how it is spoken to where absent.",
    },
    Key {
        name: "url",
        kind: Kind::Text(|c| &mut c.a2a.options.url),
        about: "Where clients reach the server (https://HOST), for the card; where they asked for it where absent.",
    },
    Key {
        name: "text",
        kind: Kind::Text(|c| &mut c.a2a.options.text),
        about: "The capability that answers messages which are plain texts; its input is {message, message_id, context_id?, data?}. Where absent, the model of `agent` answers them; without one they are rejected.",
    },
    Key {
        name: "tasks",
        kind: Kind::Path(|c| &mut c.a2a.tasks),
        about: "File in which tasks are kept, so that they are there again when the server is; in memory alone where absent. A change needs a restart.",
    },
    Key {
        name: "max_tasks",
        kind: Kind::Count { place: |c| &mut c.a2a.options.max_tasks, min: 1, max: 1_000_000 },
        about: "Tasks that are kept; beyond it the oldest one that is over makes room.",
    },
    Key {
        name: "max_bytes",
        kind: Kind::Count { place: |c| &mut c.a2a.options.max_bytes, min: 1024, max: 1 << 32 },
        about: "Bytes of all tasks together, about.",
    },
    Key {
        name: "max_task_bytes",
        kind: Kind::Count { place: |c| &mut c.a2a.options.max_task_bytes, min: 1024, max: 1 << 30 },
        about: "Bytes of the messages and results of one task.",
    },
    Key {
        name: "keep",
        kind: Kind::Seconds { place: |c| &mut c.a2a.options.keep, max: 3650 * 86_400 },
        about: "Seconds that a task is kept which is over.",
    },
    Key {
        name: "allow_private_push",
        kind: Kind::Flag(|c| &mut c.a2a.allow_private_push),
        about: "Tell this machine and local networks of tasks too, where clients ask for it (push notifications). A change needs a restart.",
    },
];

const MOST_STEPS: usize = 1_000_000_000_000;
/// A quarter of what 32 bits can count is enough for one program.
const MOST_BYTES: usize = 1 << 30;

const DAY_MS: u64 = 86_400_000;

/// The keys of one entry of `tools`.
pub(crate) const TOOL_KEYS: [&str; 7] =
    ["timeout", "enabled", "description", "rename", "max_concurrency", "retries", "pass_env"];
/// Seconds that a tool's own `timeout` may be at most.
pub(crate) const MAX_TOOL_TIMEOUT: u32 = 86_400;
/// Calls of one capability that may run at once, at most.
pub(crate) const MAX_TOOL_CONCURRENCY: usize = 65_536;
/// How often a call may be made again, at most.
pub(crate) const MAX_RETRIES: u32 = 10;

pub(crate) fn find(name: &str) -> Option<&'static Key> {
    KEYS.iter().find(|key| key.name == name)
}

impl Key {
    /// Whether its value must not be repeated in a message, which may end up in a log.
    pub(crate) fn is_secret(&self) -> bool {
        self.name == "auth_tokens"
    }

    /// The environment variable that sets it. A variable cannot hold a mapping.
    pub(crate) fn variable(&self) -> Option<String> {
        let has_one = match &self.kind {
            Kind::Tools | Kind::Section(_) => false,
            Kind::Own(own) => own.variable.is_some(),
            _ => true,
        };
        has_one.then(|| format!("ORLA_{}", self.name.to_ascii_uppercase()))
    }
}

impl Kind {
    /// Reads a value from a flag or the environment; a list is separated by commas.
    ///
    /// # Errors
    /// A sentence that says what was expected and what came.
    pub(crate) fn read_text(&self, config: &mut Config, value: &OsStr) -> Result<(), String> {
        if let Self::Path(place) = self {
            *place(config) = path(value).map_err(|expected| format!("expected {expected}"))?;
            return Ok(());
        }
        let text = value.to_str().ok_or_else(|| "expected UTF-8 text".to_owned())?;
        if let Self::Texts { put, check } = self {
            let texts = listed(text);
            texts.iter().try_for_each(|item| check(item))?;
            put(config, texts);
            return Ok(());
        }
        if let Self::Own(Own { variable: Some(read), .. }) = self {
            return read(config, text);
        }
        self.read_scalar(config, text)
            .map_err(|expected| format!("expected {expected}, got text {text:?}"))
    }

    /// Reads the value of a key that holds one number, word or text.
    ///
    /// # Errors
    /// What was expected.
    pub(crate) fn read_scalar(&self, config: &mut Config, text: &str) -> Result<(), String> {
        match self {
            Self::Path(place) => *place(config) = path(OsStr::new(text))?,
            Self::Text(place) if text.is_empty() => {
                let _ = place;
                return Err(self.expected());
            }
            Self::Text(place) => text.clone_into(place(config)),
            Self::Port(place) => *place(config) = text.parse().map_err(|_| self.expected())?,
            Self::Count { place, min, max } => {
                let count = text.parse().ok().filter(|count| (min..=max).contains(&count));
                *place(config) = count.ok_or_else(|| self.expected())?;
            }
            Self::Seconds { place, max } => {
                *place(config) = seconds(text, *max).ok_or_else(|| self.expected())?;
            }
            Self::Flag(place) => {
                *place(config) = match text.to_ascii_lowercase().as_str() {
                    "true" => true,
                    "false" => false,
                    _ => return Err(self.expected()),
                };
            }
            Self::Choice { words, put, .. } => {
                let index = words().iter().position(|word| *word == text);
                put(config, index.ok_or_else(|| self.expected())?);
            }
            Self::Share(place) => {
                let share = text.parse().ok().filter(|share| *share > 0.0 && *share <= 1.0);
                *place(config) = share.ok_or_else(|| self.expected())?;
            }
            Self::Milliseconds { place, min, max } => {
                let count = text.parse().ok().filter(|count| (min..=max).contains(&count));
                *place(config) = Duration::from_millis(*count.as_ref().ok_or_else(|| self.expected())?);
            }
            Self::Texts { .. } | Self::Section(_) | Self::Tools | Self::Own(_) => {
                return Err(self.expected());
            }
        }
        Ok(())
    }

    /// What the key admits, for "expected …".
    pub(crate) fn expected(&self) -> String {
        match self {
            Self::Path(_) => "a path".to_owned(),
            Self::Text(_) => "text that is not empty".to_owned(),
            Self::Port(_) => "a port from 0 to 65535 (0 is any free one)".to_owned(),
            Self::Count { min, max, .. } => format!("a whole number from {min} to {max}"),
            Self::Seconds { max, .. } => expected_seconds(*max),
            Self::Share(_) => "a number above 0 and at most 1".to_owned(),
            Self::Milliseconds { min, max, .. } => {
                format!("a whole number of milliseconds from {min} to {max}")
            }
            Self::Section(keys) => {
                let names: Vec<&str> = keys.iter().map(|key| key.name).collect();
                format!("a mapping with {}", list_of(&names))
            }
            Self::Flag(_) => "true or false".to_owned(),
            Self::Choice { words, .. } => list_of(&words()),
            Self::Texts { .. } => "a list of texts".to_owned(),
            Self::Tools => "a mapping from names of tools to what is changed of them".to_owned(),
            Self::Own(own) => own.expected.to_owned(),
        }
    }

    /// Whether its value is text, so that a number for it is a mistake.
    pub(crate) fn is_text(&self) -> bool {
        matches!(self, Self::Path(_) | Self::Text(_) | Self::Choice { .. })
    }
}

/// The items of a list in one text, which stand between commas.
pub(super) fn listed(text: &str) -> Vec<String> {
    text.split(',').map(|item| item.trim().to_owned()).filter(|item| !item.is_empty()).collect()
}

/// A duration from seconds: above 0, finite, and at most `max`.
pub(crate) fn seconds(text: &str, max: u32) -> Option<Duration> {
    let seconds: f64 = text.parse().ok()?;
    let duration = Duration::try_from_secs_f64(seconds).ok()?;
    (!duration.is_zero() && seconds <= f64::from(max)).then_some(duration)
}

pub(crate) fn expected_seconds(max: u32) -> String {
    format!("a number of seconds above 0 and at most {max}")
}

fn path(value: &OsStr) -> Result<PathBuf, String> {
    let path = PathBuf::from(value);
    if path.as_os_str().is_empty() {
        return Err("a path".to_owned());
    }
    match path.to_str() {
        Some(text) if text == "~" || text.starts_with("~/") => {
            Err(format!("a path in which `~` is spelt out (${{HOME}}{} in the file)", &text[1..]))
        }
        _ => Ok(path),
    }
}

/// Whether a text can be sent as a bearer token.
pub(super) fn token(text: &str) -> Result<(), String> {
    match !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_graphic()) {
        true => Ok(()),
        // The token itself is a secret and is not repeated.
        false => Err("expected a token of visible ASCII characters".to_owned()),
    }
}

fn variables(text: &str) -> Result<(), String> {
    check_pattern(text).map_err(|expected| format!("expected {expected}, got text {text:?}"))
}

fn not_empty(text: &str) -> Result<(), String> {
    if text.trim().is_empty() { Err("expected text that is not empty".to_owned()) } else { Ok(()) }
}

fn words<T>(table: &[(&'static str, T)]) -> Vec<&'static str> {
    table.iter().map(|(word, _)| *word).collect()
}

fn index<T: PartialEq>(table: &[(&'static str, T)], value: &T) -> usize {
    table.iter().position(|(_, item)| item == value).unwrap_or_default()
}

/// `a, b or c`.
pub(crate) fn list_of(words: &[&str]) -> String {
    match words {
        [] => String::new(),
        [only] => (*only).to_owned(),
        [head @ .., last] => format!("{} or {last}", head.join(", ")),
    }
}

/// The longest word that a misspelt one is compared with, in bytes: the comparison takes the product of
/// the lengths.
const COMPARED: usize = 200;

/// The known word that is nearest to a misspelt one, if any is near.
pub(crate) fn nearest<'a>(word: &str, known: impl IntoIterator<Item = &'a str>) -> Option<&'a str> {
    if word.len() > COMPARED {
        return None;
    }
    let plain = |text: &str| text.to_lowercase().replace(['-', ' ', '_'], "");
    let word = plain(word);
    known
        .into_iter()
        .map(|candidate| (strsim::normalized_damerau_levenshtein(&word, &plain(candidate)), candidate))
        .filter(|(likeness, _)| *likeness >= 0.6)
        .max_by(|a, b| a.0.total_cmp(&b.0))
        .map(|(_, candidate)| candidate)
}
