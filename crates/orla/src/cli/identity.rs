//! The commands about callers, sign-ins and approvals.

use clap::{Args, Subcommand};

use super::Settings;

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

pub(super) const APPROVALS: &str = "\
`approve` in the configuration says which calls wait for an approval. ORLA_TOKEN is sent as the bearer token, if \
it is set.

Examples:
  orla approvals                       the waiting calls, with their inputs
  orla approvals approve 3fb2c6d41e07a895
  orla approvals deny 3fb2c6d41e07a895 --url http://127.0.0.1:8080";

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

pub(super) const LOGIN: &str = "\
Prints the address where to sign in, and waits until a browser on this machine returns from there. With --device, \
prints an address and a code for a browser on any machine. orla keeps the tokens encrypted in ~/.orla/tokens.json and \
renews them. A running server uses them from its next call on.

Examples:
  orla login github
  orla login --device github
  orla logout github";

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

pub(super) const SECRET: &str = "\
Secrets are encrypted in ~/.orla/secrets.json. The key is in the keyring of this system if it has one, and \
otherwise in ~/.orla/secrets.key. A running server uses a new value after SIGHUP, or at once with `watch: true`.

Examples:
  orla secret set github/token              asks for the value
  pass show github | orla secret set github/token
  orla secret list
In orla.yaml:
  env: {GITHUB_TOKEN: \"${secret:github/token}\"}";

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
    /// Give a token of this name a new secret; it keeps its scopes and its expiry unless others are given
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
    /// The caller: a name, token:NAME, cert:NAME or anonymous; or group:NAME or scope:NAME, for any member of a group or any
    /// holder of a scope
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
