//! `orla sandbox`.

use std::ffi::OsString;

use clap::{Args, Subcommand};

use super::Settings;

#[derive(Clone, Debug, Subcommand)]
pub(crate) enum Sandbox {
    /// Run a command with the given permissions and nothing else
    #[command(after_help = SANDBOX_RUN)]
    Run(SandboxRun),
    /// Explain in plain sentences what a capability may do, and how that is enforced
    #[command(after_help = SANDBOX_EXPLAIN)]
    Explain(SandboxExplain),
    /// Run a capability once, unconfined, and propose the smallest permissions for what it did
    #[command(after_help = SANDBOX_LEARN)]
    Learn(SandboxLearn),
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
pub(crate) struct SandboxLearn {
    /// The name or id of a tool, also of a capsule or an MCP server; or the name of a package or server, to start it alone
    pub(crate) name: String,
    /// The arguments of the call, as of `orla call`
    #[arg(last = true, value_name = "ARGUMENT")]
    pub(crate) arguments: Vec<String>,
    /// Run an installed package unconfined without asking
    #[arg(long)]
    pub(crate) yes: bool,
    /// Print JSON
    #[arg(long)]
    pub(crate) json: bool,
    #[command(flatten)]
    pub(crate) settings: Settings,
}

const SANDBOX_RUN: &str = "\
The command runs in the sandbox of a tool with these permissions, with the streams of this terminal and the small \
environment of tools. It may read its own program. To read a script, it needs a permission. Relative paths are \
relative to this directory. The exit code is that of the command.

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
The call runs without confinement under strace, which must be installed. The proposal covers only this call: read \
it before you paste it, and try other arguments too. Several files of a directory become the directory. The names of \
hosts are those that the program looked up.

The process that runs is recorded from its start on: the tool, the capsule, or the MCP server that has the tool. The \
proposal has the form in which the permissions are granted there. A package that `orla add` installed runs \
unconfined only after a yes.

Examples:
  orla sandbox learn reports
  orla sandbox learn fetch -- url=https://example.com
  orla sandbox learn files.read_file -- path=notes.txt          a tool of the server or package files
  orla sandbox learn files                                      its start
  orla sandbox learn fetch --json -- --json '{\"url\": \"https://example.com\"}'";
