//! The table of all keys of a configuration file.

use std::sync::LazyLock;
use std::time::Duration;

use super::forms::{
    API_URL, Amount, Choice, Count, DAY, DAY_MS, FALLBACK, File, Flag, Milliseconds, PATH, SANDBOX,
    Seconds, Share, Span, Text, Texts, Variables,
};
use super::keys::{Key, key, own, own_with_keys, own_with_variable, section};
use super::{
    Approve, AuditSync, CERTIFICATE_NAMES, Config, LogFormat, Severity, StateKind, Transport, access,
    agents, approve, builtins, capabilities, cluster, governance, history, identity, inputs, openapi,
    packages, plugins, quotas, remotes, schedules, servers, telemetry, tools,
};
use crate::exposure::Exposure;

/// The maximum number of bytes of values, and of a result, that one program may have.
const MAX_PROGRAM_BYTES: usize = 1 << 30;
/// The longest that a task may run, and be kept: a year.
const MAX_TASK_TIME: Duration = Duration::from_secs(366 * 86_400);
/// The maximum number of answers of a model in one run.
pub(crate) const MAX_STEPS: usize = 1_000;

/// Every key of a configuration file.
pub(crate) static KEYS: LazyLock<Vec<Key<Config>>> = LazyLock::new(keys);

#[rustfmt::skip] // A table: each key has a line for its value and one for its meaning.
fn keys() -> Vec<Key<Config>> {
    vec![
        key("tools_dir", File, |c| &mut c.tools_dir,
            "directory whose executable files are tools"),
        key("prompts_dir", File, |c| &mut c.prompts_dir,
            "directory whose Markdown files are [prompts](prompts.md)"),
        key("transport", Choice(Transport::WORDS), |c: &mut Config| &mut c.transport,
            "`http` or `stdio`").restart(|c| &mut c.transport),
        key("host", Text("text that is not empty"), |c: &mut Config| &mut c.host,
            "address to listen on; an address that other machines can reach needs `auth_tokens` or another way to [identify](identity.md) callers").restart(|c| &mut c.host),
        key("port", Count(0, u16::MAX), |c: &mut Config| &mut c.port,
            "port to listen on; `0` selects a free port").restart(|c| &mut c.port),
        key("timeout", Seconds(DAY), |c| &mut c.timeout,
            "maximum seconds for one call; fractions are allowed"),
        key("listing_timeout", Seconds(DAY), |c| &mut c.listing_timeout,
            "seconds that `tools/list` and the other lists of a client wait for [servers that start](mcp-servers.md#when-a-server-starts-slowly); what the others have is then listed without theirs"),
        key("log_format", Choice(LogFormat::WORDS), |c| &mut c.log_format,
            "`json` or `pretty`"),
        key("log_level", Choice(Severity::WORDS), |c| &mut c.log_level,
            "`debug`, `info`, `warn`, `error` or `fatal`"),
        key("max_output_bytes", Count(1, 1 << 30), |c| &mut c.max_output_bytes,
            "maximum bytes kept of each output stream of a tool"),
        key("max_concurrency", Count(1, 65_536), |c| &mut c.max_concurrency,
            "maximum number of [calls that run at once](#calls-at-once); a call that waits for an answer of its client does not count"),
        key("max_provider_share", Share, |c| &mut c.max_provider_share,
            "share of `max_concurrency` that one of several providers may use, rounded up to whole calls"),
        key("max_prestarted", Count(0, 4096), |c| &mut c.prestarted.max_processes,
            "maximum number of [prestarted processes](tools.md#prestarted-tools) that wait at the same time, of all tools together"),
        key("prestart_idle", Seconds(30 * DAY), |c| &mut c.prestarted.max_idle,
            "seconds after which a prestarted process that was not called ends; the next call of its tool starts a process"),
        key("max_queue", Count(0, 1_000_000), |c| &mut c.max_queue,
            "maximum number of waiting calls; beyond it, a call fails as `busy`"),
        key("max_body_bytes", Count(1, 1 << 30), |c| &mut c.max_body_bytes,
            "maximum bytes of a request body"),
        key("max_memory_bytes", Count(0, 1 << 50), |c| &mut c.max_memory_bytes,
            "maximum bytes that request bodies, outputs and the values of programs hold together. Beyond it, new work fails as `busy` (HTTP 503 with `Retry-After`). The default, `0`, means a quarter of the memory of the machine or its control group"),
        key("session_idle", Seconds(30 * DAY), |c| &mut c.session_idle,
            "seconds after which an unused session is closed"),
        own_with_variable("auth_tokens", access::read_tokens, access::tokens_schema, access::tokens_of_variable,
            "bearer tokens, as a list or as a mapping from the names of callers; every request must carry one of them. Tokens must differ. If other machines can reach the address, a token needs at least 16 characters"),
        section("auth", auth(), "how callers are [identified](identity.md)"),
        key("tokens_file", File, |c| &mut c.tokens_file,
            "file of the tokens that `orla token` makes; by default, `orla.tokens.json` beside this file"),
        key("ca", File, |c| &mut c.ca,
            "PEM file of certificates that commands of orla trust in addition to the system's when they connect to a server over HTTPS (`--url`). It does not hold for [servers that orla calls](http.md#certificates)"),
        key("allow_unauthenticated", Flag, |c| &mut c.allow_unauthenticated,
            "serve other machines without `auth_tokens`"),
        key("allowed_hosts", Texts, |c| &mut c.allowed_hosts,
            "accepted `Host` headers, in addition to the names of this machine"),
        key("allowed_origins", Texts, |c| &mut c.allowed_origins,
            "origins of web pages that may connect, in addition to those of this machine"),
        own("mcpServers", servers::read, servers::schema,
            "[MCP servers](#mcp-servers), in the format of clients' configuration files"),
        own("servers", servers::read, servers::schema,
            "an alias of `mcpServers`"),
        own("plugins", plugins::read, plugins::schema,
            "[plugins](plugins.md): programs that answer one JSON line with another; `NAME: PATH`, or a mapping"),
        own("inputs", inputs::read, inputs::schema,
            "the `inputs` of a VS Code file: values that VS Code asks the user for"),
        own("capabilities", capabilities::read, capabilities::schema,
            "[declared capabilities](#declared-capabilities)"),
        own_with_variable("openapi", openapi::read, openapi::schema, openapi::of_variable,
            "[OpenAPI documents](openapi.md): a file, an address, a mapping, or a list of these"),
        own("agents", agents::read, agents::schema,
            "[agents](a2a.md) whose skills are served: `NAME: ADDRESS`, or a mapping"),
        own("remotes", remotes::read, remotes::schema,
            "[other instances](remote.md) whose capabilities are served: `NAME: ADDRESS`, or a mapping"),
        own("cluster", cluster::read, cluster::schema,
            "the [cluster](cluster.md) that this instance is a node of, over NATS").restart(|c| &mut c.cluster),
        own_with_variable("builtins", builtins::read, builtins::schema, builtins::of_variable,
            "listed built-ins: `true` for all, or a list of name patterns. `false` removes all built-ins. By default, none is listed, and all can be found and called"),
        own("tools", tools::read, tools::schema,
            "settings of single capabilities of any kind, by name: `timeout`, `enabled`, `description`, `rename`, `max_concurrency`, `retries` and `task`; for a tool or package also `env` and `pass_env`, and for a tool `prestart`"),
        section("packages", packages::keys(), "which [signatures](packages.md#signatures) of packages are verified"),
        key("sandbox", Choice(SANDBOX), |c| &mut c.sandbox.mode,
            "which processes are [confined](sandbox.md): `declared`, those with `permissions`; `strict`, all; `off`, none"),
        key("sandbox_fallback", Choice(FALLBACK), |c| &mut c.sandbox.fallback,
            "what happens to a process that cannot be confined as declared: `refuse`, it is unavailable; `allow`, it runs unconfined"),
        key("pass_env", Variables, |c| &mut c.pass_env,
            "environment variables that every process gets in addition to [the default ones](tools.md#how-arguments-arrive): names, or patterns with `*`; `ORLA_PASS_ENV` adds to these"),
        key("allow", Texts, |c| &mut c.allow,
            "patterns of the [names](governance.md#names-in-rules) or ids of the capabilities that are listed and can be called; everything by default"),
        key("deny", Texts, |c| &mut c.deny,
            "patterns of the [names](governance.md#names-in-rules) or ids of capabilities that are removed; `deny` overrides `allow`"),
        section("capsules", capsules(), "how packages are supervised whose process stays between calls"),
        section("rtfs", programs(), "limits of a program in [RTFS](rtfs.md)"),
        key("expose", Choice(Exposure::WORDS), |c| &mut c.expose,
            "what `tools/list` returns: `all`, or `search`, which lists a few tools that find and call all others (see [discovery.md](discovery.md))"),
        own("policy", access::read_policy, access::policy_schema,
            "who may use which capability: a list of rules with `to`, `capabilities`, `allow` and `deny` (see [governance.md](governance.md#policy))"),
        key("policy_reveal", Flag, |c| &mut c.policy_reveal,
            "whether the error of a denied call names the missing permission. If `false`, a denied capability looks like one that does not exist"),
        own("quotas", quotas::read, quotas::schema,
            "how much callers may use: a list of [quotas](identity.md#quotas) with `to`, `capabilities`, `per`, `calls`, `cost`, `concurrent`, `count` and `scope`"),
        own("tasks", schedules::read, schedules::schema,
            "[tasks that start at set times](tasks.md#schedules): a list of entries with `name`, `capability` or `program`, `input`, `schedule`, `time_zone`, `overlap` and `catch_up`"),
        own("approve", approve::read, approve::schema,
            "the calls that a person must [approve](identity.md#approvals): a list of rules with `capabilities`, `annotations`, `to`, `expires` and `by`"),
        key("state_dir", File, |c: &mut Config| &mut c.state_dir,
            "directory for data that is kept across restarts: [tasks](tasks.md), and the used part of daily quotas; it is made when it is first needed").restart(|c| &mut c.state_dir),
        key("state", Choice(StateKind::WORDS), |c: &mut Config| &mut c.state,
            "what keeps [tasks](tasks.md): `directory`, a file in `state_dir`; `memory`, only this process, so that they end with it").restart(|c| &mut c.state),
        key("task_timeout", Span(MAX_TASK_TIME), |c: &mut Config| &mut c.task_options.timeout,
            "how long the call of a [task](tasks.md) may run if its capability has no timeout of its own; waiting for its turn does not count"),
        key("task_keep", Span(MAX_TASK_TIME), |c: &mut Config| &mut c.task_options.keep,
            "how long a [task](tasks.md) is kept after its end"),
        key("max_tasks", Count(1, 10_000_000), |c: &mut Config| &mut c.task_options.max_tasks,
            "maximum number of [tasks](tasks.md) that wait or run. A caller with a token has at most a quarter of them"),
        key("max_task_bytes", Count(1, 16 << 20), |c: &mut Config| &mut c.task_options.max_result_bytes,
            "maximum bytes of the result of a [task](tasks.md)"),
        own_with_keys("history", history::read, history::schema, history::of_variable, history::keys(),
            "what is kept of [calls](history.md): `false`, or a mapping"),
        section("telemetry", telemetry::keys(), "where [traces](telemetry.md) are sent"),
        section("agent", agent(), "the [model](agent.md) of `orla agent` and of the tool `agent`, and its limits"),
        section("a2a", a2a(), "orla [as an agent](a2a.md#orla-as-an-agent): its card, and the tasks that it keeps"),
        own("trusted_keys", governance::read_keys, governance::keys_schema,
            "public keys whose attestations orla accepts: `AUTHORITY: \"ed25519:…\"` (see [governance.md](governance.md))"),
        key("attestations", File, |c| &mut c.governance.attestations,
            "the file that holds attestations; by default, `orla.attestations.json` beside the configuration"),
        key("require_attestation", Flag, |c| &mut c.governance.require_attestation,
            "serve only capabilities with a valid attestation"),
        key("audit", File, |c: &mut Config| &mut c.governance.audit,
            "the audit log: a file to which orla appends a record of every call, linked by hashes").restart(|c| &mut c.governance.audit),
        key("audit_sync", Choice(AuditSync::WORDS), |c: &mut Config| &mut c.governance.audit_sync,
            "when orla syncs the audit log to the disk: `always`, `second` or `never`").restart(|c| &mut c.governance.audit_sync),
        key("audit_key", File, |c: &mut Config| &mut c.governance.audit_key,
            "PEM file with the Ed25519 secret key that signs the log's head (see [governance.md](governance.md#signatures))").restart(|c| &mut c.governance.audit_key),
        own("audit_heads", governance::read_heads, governance::heads_schema,
            "a second place for signed heads: a file, or a command as a list; the command reads one line").restart(|c| &mut c.governance.audit_heads),
        key("console", Flag, |c| &mut c.console,
            "whether the [console](console.md) is served at `/console`"),
        key("watch", Flag, |c| &mut c.watch,
            "reload when the tools, the packages, the prompts, this file or files that it or a package names change"),
    ]
}

#[rustfmt::skip] // A table.
fn auth() -> Vec<Key<Config>> {
    vec![
        own("tokens", access::read_tokens, access::tokens_schema,
            "bearer tokens, in addition to those of `auth_tokens`"),
        own("oauth", identity::read_oauth, identity::oauth_schema,
            "[authorization servers](identity.md#authorization-servers) whose access tokens are accepted: a mapping, or a list"),
        section("limits", auth_limits(), "how often a peer may fail to authenticate"),
        section("tls", tls(), "certificates of the listener; with them, it speaks HTTPS alone. Whether it has any changes only with a restart")
            .restart_for(keep_tls),
    ]
}

/// Connections do not change between TLS and plain HTTP.
fn keep_tls(new: &mut Config, running: &mut Config) -> bool {
    let differs = new.tls().is_some() != running.tls().is_some();
    if differs {
        new.tls.clone_from(&running.tls);
    }
    differs
}

#[rustfmt::skip] // A table.
fn auth_limits() -> Vec<Key<Config>> {
    vec![
        key("failures_per_minute", Count(0, 1_000_000), |c| &mut c.auth_limits.failures_per_minute,
            "failed authentications per address and minute. Beyond it, orla answers 429 with `Retry-After`, but always accepts a valid token; `0` means no limit"),
        key("loopback", Flag, |c| &mut c.auth_limits.loopback,
            "whether the limit also applies to this machine"),
    ]
}

#[rustfmt::skip] // A table.
fn tls() -> Vec<Key<Config>> {
    vec![
        key("cert", PATH, |c| &mut c.tls.cert,
            "PEM file of the server's certificate, followed by the certificates up to its authority. orla reads the files again when they are replaced"),
        key("key", PATH, |c| &mut c.tls.key,
            "PEM file of the certificate's private key"),
        key("client_ca", PATH, |c| &mut c.tls.client_ca,
            "PEM file of the authorities that clients' certificates are checked against; such a certificate identifies its caller"),
        key("principal", Choice(CERTIFICATE_NAMES), |c: &mut Config| &mut c.tls.principal,
            "the part of a client's certificate that names the caller: `cn`, the common name; or `san`, the first alternative name that is a URI, an e-mail address or a DNS name"),
    ]
}

#[rustfmt::skip] // A table.
fn capsules() -> Vec<Key<Config>> {
    vec![
        key("max_failures", Count(1, 1_000_000), |c| &mut c.capsules.max_failures,
            "consecutive failures after which orla stops restarting a capsule"),
        key("backoff_min_ms", Milliseconds(1, DAY_MS), |c| &mut c.capsules.backoff_min,
            "maximum delay before the first restart, in milliseconds; it doubles with each failure"),
        key("backoff_max_ms", Milliseconds(1, DAY_MS), |c| &mut c.capsules.backoff_max,
            "upper limit of that delay"),
        key("drain_ms", Milliseconds(0, DAY_MS), |c| &mut c.capsules.drain,
            "how long running calls may continue after a capsule's files have changed"),
        key("eager", Flag, |c| &mut c.capsules.eager,
            "start every capsule with the server"),
    ]
}

#[rustfmt::skip] // A table.
fn programs() -> Vec<Key<Config>> {
    vec![
        key("steps", Count(1, 1_000_000_000_000), |c| &mut c.programs.steps,
            "maximum steps of an [RTFS](rtfs.md) program; 20,000 steps take about a millisecond. The time limit is that of the call: `timeout`, or `tools.rtfs.timeout`"),
        key("memory", Count(1024, MAX_PROGRAM_BYTES), |c| &mut c.programs.memory,
            "approximate maximum bytes of a program's live values"),
        key("depth", Count(1, 1_000_000), |c| &mut c.programs.depth,
            "maximum depth of nested function calls"),
        key("calls", Count(0, 1_000_000_000), |c| &mut c.programs.calls,
            "maximum number of capability calls of a program"),
        key("calls_at_once", Count(1, 100_000), |c| &mut c.programs.calls_at_once,
            "maximum number of capability calls of a program at once"),
        key("output", Count(1, MAX_PROGRAM_BYTES), |c| &mut c.programs.output,
            "approximate maximum bytes of a program's result"),
    ]
}

#[rustfmt::skip] // A table.
fn agent() -> Vec<Key<Config>> {
    vec![
        key("model", Text("the name of a model"), |c| &mut c.agent.model,
            "the model's name; `PROVIDER::NAME` if the name alone does not determine the provider, such as `openai::qwen3` for a server that speaks OpenAI's protocol; `sampling` for the model of the client that calls the tool"),
        key("base_url", API_URL, |c| &mut c.agent.base_url,
            "the address of the model; by default, that of its provider"),
        key("api_key_env", Text("the name of an environment variable"), |c| &mut c.agent.api_key_env,
            "the environment variable that holds the key; by default, the provider's own. With `base_url`, orla sends no other key"),
        key("approve", Choice(Approve::WORDS), |c| &mut c.agent.approve,
            "which calls a person must approve, at the terminal or at the client: `never`, `destructive` for those that may destroy something, or `always`"),
        key("max_steps", Count(1, MAX_STEPS), |c| &mut c.agent.max_steps,
            "maximum answers of the model in one run"),
        key("max_tokens", Count(1, u64::from(u32::MAX)), |c| &mut c.agent.max_tokens,
            "maximum tokens that the model reads and writes in one run"),
        key("max_cost", Amount, |c| &mut c.agent.max_cost,
            "maximum cost of the tokens of one run; needs both prices"),
        key("input_price", Amount, |c| &mut c.agent.input_price,
            "price of a million tokens that the model reads"),
        key("output_price", Amount, |c| &mut c.agent.output_price,
            "price of a million tokens that the model writes"),
        key("timeout", Seconds(DAY), |c| &mut c.agent.timeout,
            "maximum seconds of one run"),
        key("max_tools", Count(1, 1_000), |c| &mut c.agent.max_tools,
            "maximum number of capabilities that orla offers to the model directly; if there are more, it offers those that find, describe and call the others"),
        key("max_result_bytes", Count(1, 64 << 20), |c| &mut c.agent.max_result_bytes,
            "maximum bytes of one result that the model gets; the rest is cut, and the model learns so"),
    ]
}

#[rustfmt::skip] // A table.
fn a2a() -> Vec<Key<Config>> {
    let text = || Text("text that is not empty");
    vec![
        key("name", text(), |c| &mut c.a2a.options.name,
            "the agent's name on its card"),
        key("description", text(), |c| &mut c.a2a.options.description,
            "what the card says that the agent does; by default, how to talk to it"),
        key("url", text(), |c| &mut c.a2a.options.url,
            "where clients reach the server (`https://HOST`), for the card; by default, the address of the request"),
        key("text", text(), |c| &mut c.a2a.options.text,
            "the capability that answers plain text messages; its input is `{message, message_id, context_id?, data?}`. By default, the model of `agent` answers them; without one, they are rejected"),
        key("max_tasks", Count(1, 1_000_000), |c| &mut c.a2a.options.max_tasks,
            "maximum number of kept tasks; beyond it, orla removes the oldest finished task"),
        key("max_task_bytes", Count(1024, 1 << 30), |c| &mut c.a2a.options.max_task_bytes,
            "maximum bytes of the messages and results of one task"),
        key("keep", Seconds(3650 * DAY), |c| &mut c.a2a.options.keep,
            "seconds that a finished task is kept"),
        key("allow_private_push", Flag, |c: &mut Config| &mut c.a2a.allow_private_push,
            "whether push notifications may go to this machine and to local networks").restart(|c| &mut c.a2a.allow_private_push),
    ]
}
