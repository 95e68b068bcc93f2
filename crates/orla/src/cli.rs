//! The command line: what can be written, and the help that teaches it.

use std::ffi::OsString;
use std::path::PathBuf;

use clap::{Args, Parser, Subcommand, ValueEnum};
use orla_marketplace::attestation::PublicKey;
use orla_marketplace::discovery::MAX_LIMIT;

#[cfg(feature = "agent")]
use crate::config::Approve;
use crate::config::Source;
#[cfg(feature = "agent")]
use crate::config::table::MAX_STEPS;

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
  orla agent \"what is in /tmp?\"      have a model answer with the help of the tools
  orla connect claude-code --write    tell a client about this server

Settings come from flags, then ORLA_* variables (ORLA_PORT=9000), then orla.yaml, orla.yml or
orla.json, then defaults. `orla schema` prints every key. SIGHUP reloads.

Exit codes: 0 all went well, 1 the operation failed, 2 wrong usage or configuration.";

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
        after_help = "Examples:\n  orla list\n  orla list --json | jq -r '.[].name'\n  orla list --all              built-ins and the rest of what is not listed, too\n  orla list --watch            again when a file changes\n  orla list --url http://127.0.0.1:8080"
    )]
    List(List),
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
    #[command(after_help = RTFS)]
    Rtfs(Rtfs),
    /// Have a model answer a prompt, with the help of everything that is served
    #[cfg(feature = "agent")]
    #[command(after_help = AGENT)]
    Agent(Agent),
    /// Check the configuration, the tools and the prompts without serving
    #[command(
        after_help = "Prints every problem and every warning with its place. Exits 1 if there is a problem, else 0."
    )]
    Check {
        /// Check a running server instead: whether everything that it serves is available
        #[arg(long)]
        url: Option<String>,
        #[command(flatten)]
        settings: Settings,
    },
    /// Show what this system can confine processes with, and how far each capability is confined
    #[command(
        after_help = "Exits 1 if the confinement that a capability declares is not in force, else 0."
    )]
    Doctor(Doctor),
    /// Try a sandbox by hand, explain the one of a capability, or learn which permissions it needs
    Sandbox {
        #[command(subcommand)]
        command: Sandbox,
    },
    /// Sign in at a server of mcpServers that has `auth`
    #[command(after_help = LOGIN)]
    Login(Login),
    /// Remove the tokens of a sign-in, and give them back to the authorization server
    Logout(Logout),
    /// Attest capabilities in their present state: sign their manifests and their content
    #[command(after_help = ATTEST)]
    Attest(Attest),
    /// Show the attestations of what would be served, and whether they still hold
    #[command(
        after_help = "Exits 1 if an attestation does not hold, or if require_attestation is set and one is missing."
    )]
    Verify(Verify),
    /// Keep the secrets that a configuration refers to as `${secret:NAME}`
    #[command(after_help = SECRET)]
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
    Connect {
        /// The client
        #[arg(value_parser = CLIENTS)]
        client: String,
        /// Write the entry into the client's file, after making a backup
        #[arg(long)]
        write: bool,
        /// The name of the entry
        #[arg(long, default_value = "orla")]
        name: String,
        #[command(flatten)]
        settings: Settings,
    },
    /// Print a completion script
    #[command(
        after_help = "Examples:\n  orla completions bash > ~/.local/share/bash-completion/completions/orla\n  orla completions fish > ~/.config/fish/completions/orla.fish"
    )]
    Completions { shell: clap_complete::Shell },
    /// Show the calls of a running server that wait for an approval, and answer them
    #[command(after_help = APPROVALS, args_conflicts_with_subcommands = false)]
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
    /// Show what callers have used of a running server's quotas
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
        #[command(flatten)]
        settings: Settings,
    },
}

const LOGIN: &str = "\
Prints the address where to sign in, and waits until a browser on this machine returns from there. With
--device, any browser does: it is given a code. The tokens are kept encrypted in ~/.orla/tokens.json, are renewed
by themselves, and hold for a running server at once.

Examples:
  orla login github
  orla login --device github
  orla logout github";

/// An answer to the question about a call.
#[derive(Clone, Debug, Subcommand)]
pub(crate) enum ApprovalAnswer {
    /// Let the call run, once
    Approve {
        /// The id that `orla approvals` shows
        id: String,
    },
    /// Refuse the call
    Deny {
        /// The id that `orla approvals` shows
        id: String,
    },
}

const APPROVALS: &str = "\
`approve` in the configuration says which calls wait for an approval. ORLA_TOKEN is sent as the bearer token, if it is set.

Examples:
  orla approvals                       what waits, with the input of each call
  orla approvals approve 3fb2c6d41e07a895
  orla approvals deny 3fb2c6d41e07a895 --url http://127.0.0.1:8080";

const SERVE: &str = "\
Examples:
  orla serve --port 0                 any free port; the log's first line says which
  orla serve --tools-dir bin --watch  reload when a file in bin changes
  kill -HUP $(pgrep orla)             reload now";

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
The best ones come first. Names count most, then titles, descriptions, and what parameters are called
and are about. Not every word has to fit, and the last one may be the beginning of a word.

Examples:
  orla search send email
  orla search weather --limit 3
  orla search issue --json | jq -r '.results[].id'
  orla search forecast --url http://127.0.0.1:8080   what a running server has

Then: orla describe ID, orla call ID";

const DESCRIBE: &str = "\
Types are shown in RTFS notation and as JSON Schema. The example is made of the examples, defaults and
choices that the schema gives, and can be pasted.

Examples:
  orla describe weather.current
  orla describe weather__current --json | jq .input.json_schema
  orla describe ls --url http://127.0.0.1:8080   on a running server; ORLA_TOKEN is sent as its token";

const RTFS: &str = "\
The value of the program's last form is printed as RTFS would read it. `input` is what --input gave.
A module `my.mod` is the file my/mod.rtfs beside the program. A file called check is ./check.

Examples:
  orla rtfs -e '(map inc [1 2 3])'
  orla rtfs -e '(call :math.add {:a 1 :b 2})'
  orla rtfs report.rtfs --input '{\"city\": \"Paris\"}' --json --trace
  echo '(+ 1 2)' | orla rtfs -
  orla rtfs check report.rtfs
  orla rtfs fmt --check *.rtfs
  orla rtfs fmt < draft.rtfs

With --jsonl, each line {\"src\": …, \"type\"?: …} gives a line {\"value\", \"type\", \"json\"?, \"matches\"?} or
{\"error\": {\"kind\", \"message\", \"line\", \"column\"}}, each in a fresh environment.";

#[cfg(feature = "agent")]
const AGENT: &str = "\
The model is the one that --model or the configuration names; else the first one of an Ollama on this
machine; else that of OPENAI_API_KEY, ANTHROPIC_API_KEY or GEMINI_API_KEY, whichever is set first. Its
answer goes to standard output as it comes, and each call is one line of standard error. Before it calls
what may destroy something, you are asked; where there is no terminal, that is not called.

Examples:
  orla agent 'which of my notes are about Lisbon?'
  orla agent --model claude-sonnet-4-6 --yes 'tidy up the notes'
  orla agent --model openai::qwen3 --base-url http://127.0.0.1:8000/v1 hello
  git diff | orla agent --system reviewer.md - > review.md
  orla agent --json 'what time is it?' | jq -r 'select(.type == \"tool_call\").name'";

const CALL: &str = "\
A value is JSON where it parses as JSON, else text: n=1 is a number, 'n=\"1\"' a text. `args=[…]` is
appended to the tool's command line, and `stdin=…` is piped to it. An image or other bytes go to a pipe
as they are; a terminal shows an image if it can (kitty, iTerm2), and a list of objects as a table.
With --url, ORLA_TOKEN is sent as the bearer token.

Examples:
  orla call ls path=/tmp all=true
  orla call ls 'args=[\"-l\", \"/tmp\"]'
  orla call add --json '{\"a\": 1, \"b\": 2}'
  orla call swatch --output swatch.png
  orla call add a=1 b=2 --url http://127.0.0.1:8080";

const CHECK_PROGRAMS: &str = "\
Programs are compared with what this server would serve: capabilities, what they take and give. Exits 1 if
something cannot succeed, 0 if there are warnings only.

Examples:
  orla rtfs check report.rtfs tools/*.rtfs
  orla rtfs check --json - < report.rtfs          for editors: a line for each finding";

const SECRET: &str = "\
Secrets are encrypted in ~/.orla/secrets.json. The key is in the keyring of this system if it has one,
and otherwise in ~/.orla/secrets.key. A running server has a new value after SIGHUP, or at once with
`watch: true`.

Examples:
  orla secret set github/token              asks for the value
  pass show github | orla secret set github/token
  orla secret list
In orla.yaml:
  env: {GITHUB_TOKEN: \"${secret:github/token}\"}";
const ATTEST: &str = "\
Attestations go into orla.attestations.json beside the configuration. They count where the
configuration trusts the key, and as long as neither the capability's manifest nor what it runs
changes. With `require_attestation: true`, nothing else is served.

Examples:
  orla attest --new-key ops.pem --authority ops   make a key; paste what it prints into orla.yaml
  orla attest --key ops.pem                       vouch for everything that is served
  orla attest deploy --key ops.pem --expires 90   vouch for one, for 90 days
  orla verify                                     what holds now";

const AUDIT: &str = "\
Exits 1 at the first line that was changed, removed, added or moved, and says which and why. A log that
was made anew as a whole shows only with --key (`audit_key` signs it), a cut end only with --heads
(`audit_heads` keeps them elsewhere); what could not be checked is said.

Examples:
  orla audit verify                the file that `audit` in orla.yaml names
  orla audit verify audit.jsonl --key ed25519:… --heads /mnt/other/heads.jsonl";

const SANDBOX_RUN: &str = "\
The command gets the same sandbox as a tool that declares these permissions, the streams of this terminal, and
the small environment of tools. It may read its own program, and its scripts only as a permission says.
Relative paths lead from this directory. The exit code is that of the command.

Examples:
  orla sandbox run -- ls /root                                  refused
  orla sandbox run --permission fs:read:. -- wc -l notes.txt
  orla sandbox run --permission net --permission fs:write:out -- python3 fetch.py
  orla sandbox run --limit memory=64Mi --limit processes=4 -- sh -i";

const SANDBOX_EXPLAIN: &str = "\
Examples:
  orla sandbox explain reports
  orla sandbox explain reports --json | jq .write";

const SANDBOX_LEARN: &str = "\
The call runs without confinement, recorded by strace, which has to be installed. What is proposed covers this
call alone: read it before you paste it, and try other arguments too. Several files of a directory become the
directory; names of hosts are those that were looked up.

Examples:
  orla sandbox learn reports
  orla sandbox learn fetch -- url=https://example.com
  orla sandbox learn fetch --json -- --json '{\"url\": \"https://example.com\"}'";

const CONNECT: &str = "\
Examples:
  orla connect claude-desktop           print the entry and where it belongs
  orla connect cursor --write           write it there; a backup is made first
  orla connect codex --tools-dir ~/bin  serve another directory";

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

#[derive(Clone, Debug, Subcommand)]
pub(crate) enum Sandbox {
    /// Run a command with the given permissions and nothing else
    #[command(after_help = SANDBOX_RUN)]
    Run(SandboxRun),
    /// Say in plain sentences what a capability may do, and by what that is enforced
    #[command(after_help = SANDBOX_EXPLAIN)]
    Explain(SandboxExplain),
    /// Call a capability once, unconfined, and propose the smallest permissions for what it did
    #[command(after_help = SANDBOX_LEARN)]
    Learn(SandboxLearn),
}

#[derive(Args, Clone, Debug)]
pub(crate) struct SandboxLearn {
    /// The name or id of a capability with a process
    pub(crate) name: String,
    /// The arguments of the call, as of `orla call`
    #[arg(last = true, value_name = "ARGUMENT")]
    pub(crate) arguments: Vec<String>,
    /// Print JSON
    #[arg(long)]
    pub(crate) json: bool,
    #[command(flatten)]
    pub(crate) settings: Settings,
}

#[derive(Args, Clone, Debug)]
pub(crate) struct SandboxRun {
    /// A permission, such as fs:read:DIR, fs:write:DIR, net or exec:FILE; may be given several times
    #[arg(long = "permission", short, value_name = "WORD")]
    pub(crate) permissions: Vec<String>,
    /// A limit: memory, cpu_seconds, processes, open_files, file_size or wall; may be given several times
    #[arg(long = "limit", short, value_name = "NAME=VALUE")]
    pub(crate) limits: Vec<String>,
    /// The command and its arguments
    #[arg(required = true, trailing_var_arg = true, allow_hyphen_values = true, value_name = "COMMAND")]
    pub(crate) command: Vec<OsString>,
    #[command(flatten)]
    pub(crate) settings: Settings,
}

#[derive(Args, Clone, Debug)]
pub(crate) struct SandboxExplain {
    /// The name or id of a capability, or the name of a provider that could not be confined
    pub(crate) name: String,
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
    /// Print JSON: results, each with id, name, description, kind, input and score; and total
    #[arg(long)]
    pub(crate) json: bool,
    #[command(flatten)]
    pub(crate) settings: Settings,
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
    /// All arguments as one JSON object; key=value adds to it, and wins over it
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
    #[command(flatten)]
    pub(crate) settings: Settings,
}

#[cfg(feature = "agent")]
#[derive(Args, Clone, Debug)]
pub(crate) struct Agent {
    /// The prompt; `-` is standard input
    pub(crate) prompt: String,
    /// The model; as PROVIDER::NAME if its name does not determine the provider
    #[arg(long, value_name = "NAME")]
    pub(crate) model: Option<String>,
    /// Where the model is reached [default: at its provider]
    #[arg(long, value_name = "URL", value_parser = base_url)]
    pub(crate) base_url: Option<String>,
    /// The environment variable that holds the key [default: the provider's own, unless there is a base URL]
    #[arg(long, value_name = "VARIABLE")]
    pub(crate) api_key_env: Option<String>,
    /// A file with the system prompt
    #[arg(long, value_name = "FILE")]
    pub(crate) system: Option<PathBuf>,
    /// Print everything that happens as JSON lines
    #[arg(long)]
    pub(crate) json: bool,
    /// Agree to every call
    #[arg(long, short, conflicts_with = "approve")]
    pub(crate) yes: bool,
    /// Which calls to ask you about: never, destructive or always [default: destructive]
    #[arg(long, value_name = "WHICH", value_parser = approve)]
    pub(crate) approve: Option<Approve>,
    /// How often the model may be asked [default: 20]
    #[arg(long, value_name = "N", value_parser = steps)]
    pub(crate) max_steps: Option<usize>,
    #[command(flatten)]
    pub(crate) settings: Settings,
}

#[cfg(feature = "agent")]
fn base_url(text: &str) -> Result<String, String> {
    let url = text.parse::<reqwest::Url>().ok();
    let is_one = url.is_some_and(|url| matches!(url.scheme(), "http" | "https") && url.has_host());
    // It may hold a password, and is not repeated.
    is_one.then(|| text.to_owned()).ok_or_else(|| "expected http://HOST:PORT/PATH".to_owned())
}

#[cfg(feature = "agent")]
fn approve(text: &str) -> Result<Approve, String> {
    Approve::of_word(text).ok_or_else(|| "expected never, destructive or always".to_owned())
}

#[cfg(feature = "agent")]
fn steps(text: &str) -> Result<usize, String> {
    let steps = text.parse().ok().filter(|steps| (1..=MAX_STEPS).contains(steps));
    steps.ok_or_else(|| format!("expected a whole number from 1 to {MAX_STEPS}"))
}

/// `orla login`.
#[derive(Debug, Args)]
pub(crate) struct Login {
    /// The server, by its name in mcpServers
    pub(crate) name: String,
    /// Sign in with a code, in a browser on any machine
    #[arg(long)]
    pub(crate) device: bool,
    /// Sign in for this caller (`token:NAME`, `cert:NAME`), where each caller has its own sign-in
    #[arg(long, value_name = "CALLER")]
    pub(crate) caller: Option<String>,
    #[command(flatten)]
    pub(crate) settings: Settings,
}

/// `orla logout`.
#[derive(Debug, Args)]
pub(crate) struct Logout {
    /// The server, by its name in mcpServers
    pub(crate) name: String,
    /// Sign out for this caller, where each caller has its own sign-in
    #[arg(long, value_name = "CALLER")]
    pub(crate) caller: Option<String>,
    #[command(flatten)]
    pub(crate) settings: Settings,
}

#[derive(Args, Clone, Debug)]
pub(crate) struct Attest {
    /// Names or ids of capabilities; everything that is served if there are none
    pub(crate) names: Vec<String>,
    /// The secret key to sign with
    #[arg(long, value_name = "FILE")]
    pub(crate) key: Option<PathBuf>,
    /// The authority of the key [default: its name in trusted_keys]
    #[arg(long, value_name = "NAME")]
    pub(crate) authority: Option<String>,
    /// After how many days the attestations end to hold [default: never]
    #[arg(long, value_name = "DAYS", value_parser = clap::value_parser!(u32).range(1..=36_500))]
    pub(crate) expires: Option<u32>,
    /// Where to write them [default: `attestations` of the configuration, orla.attestations.json]
    #[arg(long, value_name = "FILE")]
    pub(crate) out: Option<PathBuf>,
    /// Make a key, write it to FILE for its owner alone, and print the lines that trust it
    #[arg(long, value_name = "FILE", conflicts_with_all = ["names", "key", "expires", "out"])]
    pub(crate) new_key: Option<PathBuf>,
    #[command(flatten)]
    pub(crate) settings: Settings,
}

#[derive(Args, Clone, Debug)]
pub(crate) struct Verify {
    /// Names or ids of capabilities; everything but built-ins if there are none
    pub(crate) names: Vec<String>,
    /// Print a JSON array: id, status, authority, created_at, expires_at, reason, content_hash
    #[arg(long)]
    pub(crate) json: bool,
    #[command(flatten)]
    pub(crate) settings: Settings,
}

#[derive(Clone, Debug, Subcommand)]
pub(crate) enum Secret {
    /// Set a secret to the value that is given on standard input
    Set {
        /// Its name: letters, digits, `_`, `-`, `.` and `/`
        name: String,
    },
    /// List the names of all secrets
    List {
        /// As a JSON array
        #[arg(long)]
        json: bool,
    },
    /// Remove a secret
    Remove {
        /// Its name
        name: String,
    },
}

#[derive(Clone, Debug, Subcommand)]
pub(crate) enum Token {
    /// Make a token and print it, once; a file keeps its hash
    #[command(after_help = "Example:\n  orla token create --name ci --scope deploy --expires 30d")]
    Create(TokenCreate),
    /// Show the tokens, without their secrets
    List {
        /// Print a JSON array: name, state, scopes, created_at, expires_at
        #[arg(long)]
        json: bool,
        #[command(flatten)]
        settings: Settings,
    },
    /// Make a token invalid; its sessions end
    Revoke {
        /// The name of the token
        name: String,
        #[command(flatten)]
        settings: Settings,
    },
}

#[derive(Args, Clone, Debug)]
pub(crate) struct TokenCreate {
    /// The name of its bearer, for rules and the audit
    #[arg(long, value_name = "NAME")]
    pub(crate) name: String,
    /// A scope of the token, which rules can name as scope:SCOPE; may be given several times
    #[arg(long = "scope", value_name = "SCOPE")]
    pub(crate) scopes: Vec<String>,
    /// How long it is valid, such as 30d or 12h [default: until it is revoked]
    #[arg(long, value_name = "DURATION", value_parser = crate::commands::token::parse_duration)]
    pub(crate) expires: Option<std::time::Duration>,
    /// Replace a token of this name, whose secret becomes invalid
    #[arg(long)]
    pub(crate) replace: bool,
    #[command(flatten)]
    pub(crate) settings: Settings,
}

#[derive(Clone, Debug, Subcommand)]
pub(crate) enum Policy {
    /// Say whether a caller may call a capability, and which rule decides
    #[command(
        after_help = "Examples:\n  orla policy explain ada deploy\n  orla policy explain ada deploy --group ops --scope deploy\n  orla policy explain token:ci deploy"
    )]
    Explain(PolicyExplain),
}

#[derive(Args, Clone, Debug)]
pub(crate) struct PolicyExplain {
    /// The caller: a name, token:NAME, cert:NAME or anonymous
    pub(crate) principal: String,
    /// The capability, by id or name
    pub(crate) capability: String,
    /// A group that the caller is a member of; may be given several times
    #[arg(long = "group", value_name = "GROUP")]
    pub(crate) groups: Vec<String>,
    /// A scope of the caller's token; may be given several times
    #[arg(long = "scope", value_name = "SCOPE")]
    pub(crate) scopes: Vec<String>,
    /// Print a JSON object: principal, capability, allowed, permissions, scopes
    #[arg(long)]
    pub(crate) json: bool,
    #[command(flatten)]
    pub(crate) settings: Settings,
}

#[derive(Clone, Debug, Subcommand)]
pub(crate) enum Audit {
    /// Check that no line was changed, removed, added or moved
    #[command(after_help = AUDIT)]
    Verify {
        /// The log [default: `audit` of the configuration]
        file: Option<PathBuf>,
        /// A public key, ed25519:BASE64, that must have signed the log; several if the key has changed
        #[arg(long, value_name = "KEY", value_parser = public_key)]
        key: Vec<PublicKey>,
        /// Heads of the log, in the form of `audit_heads`
        #[arg(long, value_name = "FILE")]
        heads: Option<PathBuf>,
        #[command(flatten)]
        settings: Settings,
    },
}

fn public_key(text: &str) -> Result<PublicKey, String> {
    PublicKey::parse(text).map_err(|err| err.to_string())
}

#[derive(Args, Clone, Debug)]
#[command(args_conflicts_with_subcommands = true)]
pub(crate) struct Rtfs {
    #[command(subcommand)]
    pub(crate) command: Option<RtfsCommand>,
    /// The program; `-` is standard input; without one, a dialogue at the terminal
    #[arg(conflicts_with_all = ["expression", "jsonl"])]
    pub(crate) file: Option<PathBuf>,
    /// The program itself
    #[arg(short = 'e', value_name = "EXPRESSION", conflicts_with = "jsonl")]
    pub(crate) expression: Option<String>,
    /// What the program sees as `input`
    #[arg(long, value_name = "JSON", conflicts_with = "jsonl")]
    pub(crate) input: Option<String>,
    /// Print the value as JSON
    #[arg(long, conflicts_with = "jsonl")]
    pub(crate) json: bool,
    /// Answer each line of standard input, a JSON object with a program, with one of standard output
    #[arg(long)]
    pub(crate) jsonl: bool,
    /// Print every call with its input, output and time to standard error
    #[arg(long)]
    pub(crate) trace: bool,
    #[command(flatten)]
    pub(crate) settings: Settings,
}

#[derive(Clone, Debug, Subcommand)]
pub(crate) enum RtfsCommand {
    /// Lay programs out in place, comments and line breaks kept
    Fmt {
        /// Only list files that are not formatted, and exit 1 if there are any
        #[arg(long)]
        check: bool,
        /// The programs; `-`, or none, formats standard input to standard output
        files: Vec<PathBuf>,
    },
    /// Find errors in a program without running it
    #[command(after_help = CHECK_PROGRAMS)]
    Check(CheckPrograms),
}

#[derive(Args, Clone, Debug)]
pub(crate) struct CheckPrograms {
    /// The programs; `-` is standard input
    #[arg(required_unless_present = "expression", conflicts_with = "expression")]
    pub(crate) files: Vec<PathBuf>,
    /// The program itself
    #[arg(short = 'e', value_name = "EXPRESSION")]
    pub(crate) expression: Option<String>,
    /// Print each finding as a line of JSON
    #[arg(long)]
    pub(crate) json: bool,
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

#[cfg(test)]
mod tests {
    use super::*;
    use clap::CommandFactory;

    fn source(words: &[&str]) -> Source {
        let cli = Cli::try_parse_from(words).unwrap();
        match cli.command {
            Some(Command::Serve(after)) => Cli::serve_source(cli.serve, Some(after)),
            Some(Command::Call(call)) => Cli::source(cli.serve, call.settings),
            _ => Cli::serve_source(cli.serve, None),
        }
    }

    #[test]
    fn help_can_be_asked_for_as_a_command() {
        for words in [&["orla", "help"][..], &["orla", "help", "call"]] {
            let help = Cli::try_parse_from(words).unwrap_err();
            assert_eq!(help.kind(), clap::error::ErrorKind::DisplayHelp, "{words:?}");
        }
    }

    #[test]
    fn the_command_line_is_consistent() {
        Cli::command().debug_assert();
    }

    #[test]
    fn flags_win_over_what_the_program_was_built_with() {
        let set = |value: &str| ("port", "port", OsString::from(value));
        let base =
            Source { file: Some("built.yaml".into()), flags: vec![set("1")], ..Source::default() };
        for (words, file) in
            [(&["orla", "--port", "2"][..], "built.yaml"), (&["orla", "--port=2", "--config=c"], "c")]
        {
            let mut cli = Cli::try_parse_from(words).unwrap();
            cli.serve.base = base.clone();
            let source = Cli::serve_source(cli.serve, None);
            assert_eq!(source.file, Some(file.into()));
            assert_eq!(source.flags, [set("1"), ("--port", "port", "2".into())]);
        }
    }

    #[test]
    fn flags_work_before_and_after_every_form_of_serve() {
        for words in [
            &["orla", "--port", "0", "--stdio"][..],
            &["orla", "serve", "--port", "0", "--stdio"],
            &["orla", "run", "--stdio", "--port=0"],
            &["orla", "--port", "0", "run", "--stdio"],
        ] {
            let flags = source(words).flags;
            let keys: Vec<_> =
                flags.iter().map(|(_, key, value)| (*key, value.to_str().unwrap())).collect();
            assert!(
                keys.contains(&("port", "0")) && keys.contains(&("transport", "stdio")),
                "{words:?}"
            );
        }
    }

    #[test]
    fn a_flag_after_the_command_wins() {
        let source =
            source(&["orla", "--timeout", "1", "--config", "a", "call", "ls", "--timeout", "2"]);
        assert_eq!(source.flags.last().unwrap().2, "2");
        assert_eq!(source.file, Some("a".into()));
    }

    #[test]
    fn a_negative_value_reaches_the_check_that_explains_it() {
        assert_eq!(source(&["orla", "--timeout", "-1"]).flags[0].2, "-1");
    }
}
