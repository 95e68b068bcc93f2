//! The grammar of the command line, and its help.

#[cfg(feature = "agent")]
mod agent;
mod attest;
mod calls;
mod cluster;
mod identity;
mod packages;
mod rtfs;
mod sandbox;
mod task;
#[cfg(test)]
mod tests;

use std::ffi::OsString;
use std::path::PathBuf;

use clap::{Args, Parser, Subcommand, ValueEnum};
use orla_marketplace::discovery::MAX_LIMIT;

#[cfg(feature = "agent")]
pub(crate) use agent::Agent;
pub(crate) use attest::{Attest, Audit, Verify};
pub(crate) use calls::{Calls, CallsCommand, CallsFilter, Test};
pub(crate) use cluster::Cluster;
pub(crate) use identity::{
    ApprovalAnswer, Login, Logout, Policy, PolicyExplain, Secret, Token, TokenCreate,
};
pub(crate) use packages::{Add, Consent, Publish, Sync, Update};
pub(crate) use rtfs::{CheckPrograms, Rtfs, RtfsCommand};
pub(crate) use sandbox::{Sandbox, SandboxExplain, SandboxLearn, SandboxRun};
pub(crate) use task::{Task, TaskCommand, TaskList, TaskRun};

use crate::config::Source;

/// The clients that `orla connect` knows.
pub(crate) const CLIENTS: [&str; 10] = [
    "claude-desktop",
    "claude-code",
    "vscode",
    "cursor",
    "codex",
    "gemini",
    "goose",
    "zed",
    "opencode",
    "lmstudio",
];

/// What `orla new` creates.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum Kind {
    /// A program that runs once for each call
    Tool,
    /// A program that keeps running, with state between calls
    Capsule,
}

/// The language of a skeleton.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum Language {
    Python,
    Node,
    Rust,
    Go,
    Bash,
}

/// Serves the executables of a directory to every MCP client.
#[derive(Debug, Parser)]
#[command(
    name = "orla",
    version,
    about = "Drop executables into ./tools, run orla, and every MCP client can call them",
    after_help = EXAMPLES,
    subcommand_help_heading = "Commands (without one, orla serves)",
    max_term_width = 100
)]
pub(crate) struct Cli {
    #[command(subcommand)]
    pub(crate) command: Option<Command>,
    #[command(flatten)]
    pub(crate) serve: Serve,
}

const EXAMPLES: &str = "\
Examples:
  orla                                serve ./tools on http://127.0.0.1:8080/mcp
  orla --stdio                        serve one client on standard input and output
  orla init                           write an example tool, a prompt and orla.yaml here
  orla new tool greet --lang python   write the skeleton of a tool
  orla dev tools/notes                serve one package during development
  orla list                           what is served
  orla search send email              find capabilities by words
  orla describe ls                    its types, and an example call
  orla call ls path=/tmp              call one tool, without a server
  orla task run import file=a.csv     start a call that outlives this command
  orla calls --failed                 which calls failed on a running server
  orla agent \"what is in /tmp?\"      have a model answer with the help of the tools
  orla connect claude-code --write    tell a client about this server

A flag overrides a variable (ORLA_PORT=9000), a variable overrides orla.yaml, orla.yml or orla.json, and the \
file overrides the default. `orla schema` prints every key. SIGHUP reloads.

Exit codes: 0 success, 1 the operation failed, 2 wrong usage or configuration.";

#[derive(Debug, Subcommand)]
pub(crate) enum Command {
    /// Serve until a signal stops it (the same as no command)
    #[command(visible_alias = "run", after_help = SERVE)]
    Serve(Serve),
    /// Serve a package during development: restart it when its files change, with a readable log
    #[command(after_help = DEV)]
    Dev {
        /// The package, a directory with tool.yaml or orla-tool.json; or a directory of tools. Without one: this
        /// directory, or, where it has packages in it or in its tools directory, the one that you choose
        dir: Option<PathBuf>,
        #[command(flatten)]
        serve: Serve,
    },
    /// Show what would be served
    #[command(
        after_help = "Examples:\n  orla list\n  orla list --json | jq -r '.[].name'\n  orla list --all              also built-ins and other unlisted capabilities\n  orla list --watch            again when a file changes\n  orla list --url http://127.0.0.1:8080"
    )]
    List(List),
    /// Install a package, and lock it
    #[command(after_help = packages::ADD)]
    Add(Add),
    /// Remove an installed package
    Remove {
        /// Its name
        name: String,
        #[command(flatten)]
        settings: Settings,
    },
    /// Take the newest version of a package, or accept that its tools have changed
    Update(Update),
    /// Show which packages are not the newest
    Outdated {
        /// Print JSON
        #[arg(long)]
        json: bool,
        #[command(flatten)]
        settings: Settings,
    },
    /// Install exactly what orla.lock names
    Sync(Sync),
    /// Write a tool, a package or a project as a bundle and a server.json for a registry, and tag its commit
    #[command(after_help = packages::PUBLISH)]
    Publish(Publish),
    /// Find capabilities by words
    #[command(after_help = SEARCH)]
    Search(Search),
    /// Show everything about one capability: types, provider, permissions, and an example call
    #[command(after_help = DESCRIBE)]
    Describe(Describe),
    /// Call one capability and print its result
    #[command(after_help = CALL)]
    Call(Call),
    /// Run a program in RTFS over everything that is served
    #[command(after_help = rtfs::RTFS)]
    Rtfs(Rtfs),
    /// Show the cluster that a server is a node of
    #[command(after_help = cluster::CLUSTER)]
    Cluster {
        #[command(subcommand)]
        command: Cluster,
    },
    /// Start, list, show and cancel tasks: calls that outlive their callers
    #[command(after_help = task::TASK)]
    Task(Task),
    /// Show calls with their data and times
    #[command(after_help = calls::CALLS)]
    Calls(Calls),
    /// Run cases with expected results against what is served here
    #[command(after_help = calls::TEST)]
    Test(Test),
    /// Let a model answer a prompt with the served capabilities
    #[cfg(feature = "agent")]
    #[command(after_help = agent::AGENT)]
    Agent(Agent),
    /// Check the configuration, the tools and the prompts without serving
    #[command(
        after_help = "Prints every problem and every warning with its place. Exits 1 if there is a problem, else 0. OpenAPI documents are \
            read, from their addresses too."
    )]
    Check {
        /// Check a running server instead: whether everything that it serves is available
        #[arg(long)]
        url: Option<String>,
        #[command(flatten)]
        settings: Settings,
    },
    /// Show how this system can confine processes, and how far each capability is confined
    #[command(
        after_help = "Exits 1 if the confinement that a capability declares is not in force, or if such a declaration has a mistake, else 0."
    )]
    Doctor(Doctor),
    /// Try a sandbox by hand, explain the one of a capability, or learn which permissions it needs
    Sandbox {
        #[command(subcommand)]
        command: Sandbox,
    },
    /// Sign in at a server of mcpServers that has `auth`
    #[command(after_help = identity::LOGIN)]
    Login(Login),
    /// Remove the tokens of a sign-in, and revoke them at the authorization server
    Logout(Logout),
    /// Attest capabilities in their present state: sign their manifests and their content
    #[command(after_help = attest::ATTEST)]
    Attest(Attest),
    /// Show the attestations of the capabilities, and whether they are valid
    #[command(
        after_help = "Exits 1 if an attestation is not valid, or if require_attestation is set and one is missing."
    )]
    Verify(Verify),
    /// Keep the secrets that a configuration refers to as `${secret:NAME}`
    #[command(after_help = identity::SECRET)]
    Secret {
        #[command(subcommand)]
        command: Secret,
    },
    /// Look at the audit log
    Audit {
        #[command(subcommand)]
        command: Audit,
    },
    /// Make, list and revoke the tokens of callers
    Token {
        #[command(subcommand)]
        command: Token,
    },
    /// Explain what the policy permits
    Policy {
        #[command(subcommand)]
        command: Policy,
    },
    /// Print the JSON Schema of the configuration
    #[command(
        after_help = "For editors with a YAML language server:\n  orla schema > orla.schema.json\nand as the first line of orla.yaml:\n  # yaml-language-server: $schema=./orla.schema.json"
    )]
    Schema,
    /// Write an example tool, a prompt and a configuration
    #[command(after_help = "Nothing that exists is overwritten.")]
    Init {
        /// Where to write; made if it does not exist
        #[arg(default_value = ".")]
        dir: PathBuf,
    },
    /// Write the skeleton of a tool or of a capsule
    #[command(after_help = NEW)]
    New {
        /// What to begin
        kind: Kind,
        /// Its name
        name: String,
        /// What to write it in
        #[arg(long = "lang", value_name = "LANGUAGE")]
        language: Language,
        /// Where to write; made if it does not exist [default: the tools directory]
        #[arg(long)]
        dir: Option<PathBuf>,
    },
    /// Print, or write, the entry of this server in a client's configuration
    #[command(after_help = CONNECT)]
    Connect(Connect),
    /// Print a completion script
    #[command(
        after_help = "Examples:\n  orla completions bash > ~/.local/share/bash-completion/completions/orla\n  orla completions fish > ~/.config/fish/completions/orla.fish"
    )]
    Completions { shell: clap_complete::Shell },
    /// Write a manual page for each command
    #[command(hide = true)]
    Man {
        /// Where to write; made if it does not exist
        dir: PathBuf,
    },
    /// Show the calls of a running server that wait for an approval, and answer them
    #[command(after_help = identity::APPROVALS, args_conflicts_with_subcommands = false)]
    Approvals {
        #[command(subcommand)]
        answer: Option<ApprovalAnswer>,
        /// The server; http://HOST:PORT of the configuration if absent
        #[arg(long, global = true)]
        url: Option<String>,
        /// Print JSON
        #[arg(long, global = true)]
        json: bool,
        #[command(flatten)]
        settings: Settings,
    },
    /// Show the remaining quotas of a running server's callers
    #[command(after_help = "ORLA_TOKEN is sent as the bearer token, if it is set.")]
    Quotas {
        /// The server; http://HOST:PORT of the configuration if absent
        #[arg(long)]
        url: Option<String>,
        /// Print the JSON of /quotas as it came
        #[arg(long)]
        json: bool,
        #[command(flatten)]
        settings: Settings,
    },
    /// Show the state of a running server
    #[command(after_help = "ORLA_TOKEN is sent as the bearer token, if it is set.")]
    Status {
        /// The server; http://HOST:PORT of the configuration if absent
        #[arg(long)]
        url: Option<String>,
        /// Print the JSON of /status as it came
        #[arg(long)]
        json: bool,
        /// Show it again as it changes, until Ctrl-C
        #[arg(long, conflicts_with = "json")]
        watch: bool,
        /// Ask only whether it answers (/healthz), which needs no token
        #[arg(long, conflicts_with_all = ["json", "watch"])]
        health: bool,
        #[command(flatten)]
        settings: Settings,
    },
}

const SERVE: &str = "\
Examples:
  orla serve --port 0                 any free port; the log's first line says which
  orla serve --tools-dir bin --watch  reload when a file in bin changes
  kill -HUP PID                       reload now; for the service: systemctl reload orla";

const DEV: &str = "\
The same as: orla --tools-dir DIR --watch --log-format pretty

Examples:
  orla new capsule notes --lang python && orla dev tools/notes
  orla dev tools/notes --port 0 --log-level debug";

const NEW: &str = "\
Nothing that exists is overwritten. No skeleton needs an SDK.

Examples:
  orla new tool greet --lang bash        one file in ./tools: a process for each call
  orla new capsule notes --lang python   a package in ./tools: one process for all calls";

const SEARCH: &str = "\
The best matches come first. Matches in names count most, then titles, descriptions and parameters. A match \
need not contain all words, and the last word may be incomplete.

Examples:
  orla search send email
  orla search weather --limit 3
  orla search issue --json | jq -r '.results[].id'
  orla search forecast --url http://127.0.0.1:8080   what a running server has

Then: orla describe ID, orla call ID";

const DESCRIBE: &str = "\
Types are shown in RTFS notation and as JSON Schema. The example call is built from the examples, defaults and \
enumerations in the schema, and can be pasted.

Examples:
  orla describe weather.current
  orla describe weather__current --json | jq .input.json_schema
  orla describe ls --url http://127.0.0.1:8080   on a running server; ORLA_TOKEN is sent as its token";

const CALL: &str = "\
A value is JSON if it parses as JSON, and otherwise text: n=1 is a number, 'n=\"1\"' is text. `args=[…]` is \
appended to the tool's command line, and `stdin=…` is its standard input. On a terminal, an image is shown if the \
terminal can (kitty, iTerm2), and a list of objects is a table. To a pipe, bytes go unchanged. With --url, \
ORLA_TOKEN is sent as the bearer token.

Examples:
  orla call ls path=/tmp all=true
  orla call ls 'args=[\"-l\", \"/tmp\"]'
  orla call add --json '{\"a\": 1, \"b\": 2}'
  orla call swatch --output swatch.png
  orla call add a=1 b=2 --url http://127.0.0.1:8080";

const CONNECT: &str = "\
Examples:
  orla connect claude-desktop           print the entry and where it belongs
  orla connect cursor --write           write it there; a backup is made first
  orla connect codex --tools-dir ~/bin  serve another directory
  orla connect cursor --url https://orla.example.com --token-env ORLA_TOKEN    a server that runs there

For another client, take the entry of claude-desktop: most clients read the same.";

/// Connects a client.
#[derive(Args, Debug)]
pub(crate) struct Connect {
    /// The client
    #[arg(value_parser = CLIENTS)]
    pub(crate) client: String,
    /// Write the entry into the client's file, after making a backup
    #[arg(long)]
    pub(crate) write: bool,
    /// The name of the entry
    #[arg(long, default_value = "orla")]
    pub(crate) name: String,
    /// The address of a server that runs elsewhere; the client then starts none
    #[arg(long)]
    pub(crate) url: Option<String>,
    /// The environment variable from which the client takes its token for --url
    #[arg(long, value_name = "VARIABLE", requires = "url")]
    pub(crate) token_env: Option<String>,
    #[command(flatten)]
    pub(crate) settings: Settings,
}

/// What decides what is served, and how.
#[derive(Args, Clone, Debug, Default)]
pub(crate) struct Settings {
    /// Configuration file, YAML or JSON [default: orla.yaml, orla.yml or orla.json if there is one]
    #[arg(long, value_name = "FILE")]
    config: Option<PathBuf>,
    /// Directory whose executables are tools [default: ./tools]
    #[arg(long, value_name = "DIR")]
    tools_dir: Option<OsString>,
    /// Seconds that one call may take [default: 30]
    #[arg(long, value_name = "SECONDS", allow_hyphen_values = true)]
    timeout: Option<OsString>,
    /// json or pretty [default: json]
    #[arg(long, value_name = "FORMAT")]
    log_format: Option<OsString>,
    /// debug, info, warn, error or fatal [default: info]
    #[arg(long, value_name = "LEVEL")]
    log_level: Option<OsString>,
    /// PEM file of certificates to trust, in addition to the system's, for a server at an https:// address
    #[arg(long, value_name = "FILE")]
    ca: Option<OsString>,
}

/// The flags of a server.
#[derive(Args, Clone, Debug, Default)]
pub(crate) struct Serve {
    #[command(flatten)]
    pub(crate) settings: Settings,
    /// Port to listen on; 0 is any free one [default: 8080]
    #[arg(long, allow_hyphen_values = true)]
    port: Option<OsString>,
    /// Address to listen on [default: 127.0.0.1]
    #[arg(long)]
    host: Option<OsString>,
    /// Serve on standard input and output instead of HTTP
    #[arg(long)]
    stdio: bool,
    /// Reload when the tools, the prompts or the configuration change
    #[arg(long)]
    watch: bool,
    /// What the program was built with, below every flag
    #[arg(skip)]
    pub(crate) base: Source,
}

/// `orla doctor`.
#[derive(Args, Debug)]
pub(crate) struct Doctor {
    /// Print JSON
    #[arg(long)]
    pub(crate) json: bool,
    #[command(flatten)]
    pub(crate) settings: Settings,
}

#[derive(Args, Clone, Debug)]
pub(crate) struct List {
    /// Include capabilities that clients do not see in lists
    #[arg(long, conflicts_with = "url")]
    pub(crate) all: bool,
    /// Print a JSON array, each element as in /status
    #[arg(long)]
    pub(crate) json: bool,
    /// List what a running server serves
    #[arg(long)]
    pub(crate) url: Option<String>,
    /// Show it again as it changes, until Ctrl-C
    #[arg(long, conflicts_with = "json")]
    pub(crate) watch: bool,
    #[command(flatten)]
    pub(crate) settings: Settings,
}

#[derive(Args, Clone, Debug)]
pub(crate) struct Search {
    /// Words that describe it
    #[arg(required = true)]
    pub(crate) words: Vec<String>,
    /// How many to show at most
    #[arg(long, value_name = "N", default_value_t = 10, value_parser = limit)]
    pub(crate) limit: usize,
    /// Search a running server instead of what would be served here
    #[arg(long)]
    pub(crate) url: Option<String>,
    /// Search the names of a registry of MCP servers instead
    #[arg(long, value_name = "URL", conflicts_with = "url")]
    pub(crate) registry: Option<String>,
    /// Print JSON: results, each with id, name, description, kind, input and score; and total
    #[arg(long)]
    pub(crate) json: bool,
    #[command(flatten)]
    pub(crate) settings: Settings,
}

/// Parses the limit of a list of calls or tasks.
fn list_limit(text: &str) -> Result<u16, String> {
    let limit = text.parse().ok().filter(|limit| (1..=1000).contains(limit));
    limit.ok_or_else(|| "expected a whole number from 1 to 1000".to_owned())
}

fn limit(text: &str) -> Result<usize, String> {
    let limit = text.parse().ok().filter(|limit| (1..=MAX_LIMIT).contains(limit));
    limit.ok_or_else(|| format!("expected a whole number from 1 to {MAX_LIMIT}"))
}

#[derive(Args, Clone, Debug)]
pub(crate) struct Describe {
    /// Its id or name
    pub(crate) id: String,
    /// Ask a running server instead of what would be served here
    #[arg(long)]
    pub(crate) url: Option<String>,
    /// Print JSON
    #[arg(long)]
    pub(crate) json: bool,
    #[command(flatten)]
    pub(crate) settings: Settings,
}

#[derive(Args, Clone, Debug)]
pub(crate) struct Call {
    /// Name or id of the capability
    pub(crate) name: String,
    /// Arguments, as key=value
    #[arg(value_name = "KEY=VALUE")]
    pub(crate) arguments: Vec<String>,
    /// All arguments as one JSON object; key=value adds to it and takes precedence
    #[arg(long, value_name = "OBJECT")]
    pub(crate) json: Option<String>,
    /// Call on a running server instead of here
    #[arg(long)]
    pub(crate) url: Option<String>,
    /// Print the whole MCP result as JSON
    #[arg(long)]
    pub(crate) raw: bool,
    /// Write binary content, such as an image, to a file; or the text, if there is nothing else
    #[arg(long, short, value_name = "FILE", conflicts_with = "raw")]
    pub(crate) output: Option<PathBuf>,
    /// Start nothing but the provider of this name, and call what has the capability's name, if it serves that
    #[arg(long, hide = true, value_name = "PROVIDER", conflicts_with = "url")]
    pub(crate) alone: Option<String>,
    #[command(flatten)]
    pub(crate) settings: Settings,
}

impl Settings {
    fn into_source(self, source: &mut Source) {
        source.file = self.config.or_else(|| source.file.take());
        let flags = [
            ("--tools-dir", "tools_dir", self.tools_dir),
            ("--timeout", "timeout", self.timeout),
            ("--log-format", "log_format", self.log_format),
            ("--log-level", "log_level", self.log_level),
            ("--ca", "ca", self.ca),
        ];
        source.add(flags);
    }
}

impl Serve {
    fn into_source(self, source: &mut Source) {
        self.settings.into_source(source);
        let flags = [
            ("--port", "port", self.port),
            ("--host", "host", self.host),
            ("--stdio", "transport", self.stdio.then(|| "stdio".into())),
            ("--watch", "watch", self.watch.then(|| "true".into())),
        ];
        source.add(flags);
    }
}

impl Source {
    fn add<const N: usize>(&mut self, flags: [(&'static str, &'static str, Option<OsString>); N]) {
        for (flag, key, value) in flags {
            self.flags.extend(value.map(|value| (flag, key, value)));
        }
    }
}

impl Command {
    /// Takes the flags that every command has out of it; none if it reads no configuration, or that of a server.
    pub(crate) fn take_settings(&mut self) -> Settings {
        let settings = match self {
            Self::List(List { settings, .. })
            | Self::Add(Add { settings, .. })
            | Self::Remove { settings, .. }
            | Self::Update(Update { settings, .. })
            | Self::Outdated { settings, .. }
            | Self::Sync(Sync { settings, .. })
            | Self::Publish(Publish { settings, .. })
            | Self::Search(Search { settings, .. })
            | Self::Describe(Describe { settings, .. })
            | Self::Call(Call { settings, .. })
            | Self::Rtfs(
                Rtfs { command: Some(RtfsCommand::Check(CheckPrograms { settings, .. })), .. }
                | Rtfs { settings, .. },
            )
            | Self::Cluster {
                command: Cluster::Status { settings, .. } | Cluster::Drain { settings, .. },
            }
            | Self::Task(Task { settings, .. })
            | Self::Calls(Calls { settings, .. })
            | Self::Test(Test { settings, .. })
            | Self::Check { settings, .. }
            | Self::Doctor(Doctor { settings, .. })
            | Self::Sandbox {
                command:
                    Sandbox::Run(SandboxRun { settings, .. })
                    | Sandbox::Explain(SandboxExplain { settings, .. })
                    | Sandbox::Learn(SandboxLearn { settings, .. }),
            }
            | Self::Login(Login { settings, .. })
            | Self::Logout(Logout { settings, .. })
            | Self::Attest(Attest { settings, .. })
            | Self::Verify(Verify { settings, .. })
            | Self::Audit { command: Audit::Verify { settings, .. } }
            | Self::Token {
                command:
                    Token::Create(TokenCreate { settings, .. })
                    | Token::List { settings, .. }
                    | Token::Revoke { settings, .. },
            }
            | Self::Policy { command: Policy::Explain(PolicyExplain { settings, .. }) }
            | Self::Connect(Connect { settings, .. })
            | Self::Approvals { settings, .. }
            | Self::Quotas { settings, .. }
            | Self::Status { settings, .. } => settings,
            #[cfg(feature = "agent")]
            Self::Agent(Agent { settings, .. }) => settings,
            Self::Serve(_)
            | Self::Dev { .. }
            | Self::Secret { .. }
            | Self::Schema
            | Self::Init { .. }
            | Self::New { .. }
            | Self::Completions { .. }
            | Self::Man { .. } => return Settings::default(),
        };
        std::mem::take(settings)
    }
}

impl Cli {
    /// The sources of a server's configuration. A flag after the command wins over one before it.
    pub(crate) fn serve_source(mut before: Serve, after: Option<Serve>) -> Source {
        let mut source = std::mem::take(&mut before.base);
        before.into_source(&mut source);
        if let Some(after) = after {
            after.into_source(&mut source);
        }
        source
    }

    /// The sources of the configuration that serves one package while it is written. Every flag wins over
    /// what that means by itself.
    pub(crate) fn dev_source(mut before: Serve, dir: PathBuf, after: Serve) -> Source {
        let mut source = std::mem::take(&mut before.base);
        source.add([
            ("--log-format", "log_format", Some("pretty".into())),
            ("--watch", "watch", Some("true".into())),
        ]);
        before.into_source(&mut source);
        after.into_source(&mut source);
        source.add([("DIR", "tools_dir", Some(dir.into()))]);
        source
    }

    /// The sources of a command's configuration.
    pub(crate) fn source(mut before: Serve, after: Settings) -> Source {
        let mut source = std::mem::take(&mut before.base);
        before.into_source(&mut source);
        after.into_source(&mut source);
        source
    }
}
