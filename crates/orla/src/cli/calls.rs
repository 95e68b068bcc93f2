//! `orla calls` and `orla test`.

use std::path::PathBuf;

use clap::{Args, Subcommand};

use super::Settings;

#[derive(Args, Clone, Debug)]
pub(crate) struct Calls {
    #[command(subcommand)]
    pub(crate) command: Option<CallsCommand>,
    #[command(flatten)]
    pub(crate) filter: CallsFilter,
    /// The server; without it, the file of the history if one is configured, or else http://HOST:PORT of the configuration
    #[arg(long, global = true)]
    pub(crate) url: Option<String>,
    /// Print JSON
    #[arg(long, global = true)]
    pub(crate) json: bool,
    #[command(flatten)]
    pub(crate) settings: Settings,
}

#[derive(Args, Clone, Debug, PartialEq, Eq)]
pub(crate) struct CallsFilter {
    /// The calls that run, instead of those that have ended
    #[arg(long, conflicts_with_all = ["failed", "before", "tail"])]
    pub(crate) running: bool,
    /// Only calls that failed
    #[arg(long)]
    pub(crate) failed: bool,
    /// Only calls of these capabilities: a name, or a pattern with `*`
    #[arg(long, value_name = "PATTERN")]
    pub(crate) capability: Option<String>,
    /// Only calls that began so long ago (10m, 2h, 7d) or since this time (RFC 3339)
    #[arg(long, value_name = "TIME")]
    pub(crate) since: Option<String>,
    /// Only calls of this caller
    #[arg(long, value_name = "NAME")]
    pub(crate) principal: Option<String>,
    /// Only calls from this client program, such as claude-code
    #[arg(long, value_name = "NAME")]
    pub(crate) client: Option<String>,
    /// Only calls in this session, by the name that `orla calls show` prints
    #[arg(long, value_name = "NAME")]
    pub(crate) session: Option<String>,
    /// Only calls that are older than this one
    #[arg(long, value_name = "ID")]
    pub(crate) before: Option<String>,
    /// How many at most
    #[arg(long, value_name = "N", default_value_t = DEFAULT_LIMIT, value_parser = super::list_limit)]
    pub(crate) limit: u16,
    /// Print further calls as they end, until Ctrl-C
    #[arg(long, conflicts_with = "before")]
    pub(crate) tail: bool,
}

/// How many calls are listed without `--limit`.
const DEFAULT_LIMIT: u16 = 100;

impl Default for CallsFilter {
    fn default() -> Self {
        Self {
            running: false,
            failed: false,
            capability: None,
            since: None,
            principal: None,
            client: None,
            session: None,
            before: None,
            limit: DEFAULT_LIMIT,
            tail: false,
        }
    }
}

#[derive(Clone, Debug, Subcommand)]
pub(crate) enum CallsCommand {
    /// Show a call: its data, and the calls within it with their times
    Show {
        /// The call
        id: String,
    },
    /// Cancel a running call, with the whole tree of calls around it
    #[command(after_help = "Example:\n  orla calls --running\n  orla calls cancel 1f2e3d4c-7")]
    Cancel {
        /// The call
        id: String,
    },
    /// Print calls as cases for `orla test`
    #[command(
        after_help = "Example:\n  orla calls export 1f2e3d4c-7 > case.test.json && orla test case.test.json"
    )]
    Export {
        /// The calls
        #[arg(required = true)]
        ids: Vec<String>,
    },
}

pub(super) const CALLS: &str = "\
A running server keeps its last 1,000 calls in memory, and more in a file where `history.path` or `state_dir` is \
configured. docs/history.md says what is kept. Running calls always come from a server. ORLA_TOKEN is sent as the bearer token, if it \
is set.

Examples:
  orla calls --failed --since 10m
  orla calls --capability 'github.*' --limit 20 --json
  orla calls --tail
  orla calls --running
  orla calls cancel 1f2e3d4c-7
  orla calls show 1f2e3d4c-7
  orla calls export 1f2e3d4c-7 > case.test.json";

#[derive(Args, Clone, Debug)]
pub(crate) struct Test {
    /// Files of cases, YAML or JSON [default: NAME.test.yaml and NAME.test.json in the tools directory]
    pub(crate) files: Vec<PathBuf>,
    /// Print a JSON array
    #[arg(long)]
    pub(crate) json: bool,
    /// Write outputs that differ into the files
    #[arg(long)]
    pub(crate) update: bool,
    /// Answer the calls that a case makes from its recording, not from providers
    #[arg(long)]
    pub(crate) replay: bool,
    /// Write a report in JUnit's XML
    #[arg(long, value_name = "FILE")]
    pub(crate) junit: Option<PathBuf>,
    #[command(flatten)]
    pub(crate) settings: Settings,
}

pub(super) const TEST: &str = "\
A case is {name, capability | program, input, expect: {output | error | contains | schema}}; a file has one or a list. \
docs/testing.md describes them. Exits 1 if a case fails, and 2 if a file cannot be read.

Examples:
  orla test
  orla test cases.yaml --json
  orla test case.test.json --replay
  orla test cases.yaml --update && git diff";
