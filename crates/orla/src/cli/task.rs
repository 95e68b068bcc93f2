//! `orla task`.

use std::path::PathBuf;

use clap::{Args, Subcommand};

use super::Settings;

#[derive(Args, Clone, Debug)]
pub(crate) struct Task {
    #[command(subcommand)]
    pub(crate) command: TaskCommand,
    /// Ask this server instead of opening the state of this directory
    #[arg(long, global = true)]
    pub(crate) url: Option<String>,
    #[command(flatten)]
    pub(crate) settings: Settings,
}

#[derive(Clone, Debug, Subcommand)]
pub(crate) enum TaskCommand {
    /// Start a task and print its id
    #[command(after_help = RUN)]
    Run(TaskRun),
    /// List tasks, the newest first
    List(TaskList),
    /// Show a task: its state, its messages, its result
    Show {
        /// The task
        id: String,
        /// Print JSON
        #[arg(long)]
        json: bool,
    },
    /// Wait until a task is over, and print its result
    #[command(after_help = "Exits 1 if the task did not complete.")]
    Wait {
        /// The task
        id: String,
    },
    /// Cancel a task and end its call
    Cancel {
        /// The task
        id: String,
    },
    /// Send an event to a program that awaits it, now or later
    #[command(after_help = "Example:\n  orla task event 0198… paid '{\"amount\": 77}'")]
    Event {
        /// The task
        id: String,
        /// The name of the event
        name: String,
        /// Its value [default: null]
        #[arg(value_name = "JSON")]
        value: Option<String>,
    },
}

#[derive(Args, Clone, Debug)]
pub(crate) struct TaskRun {
    /// Name or id of the capability; with --program, the first KEY=VALUE
    #[arg(required_unless_present = "program")]
    pub(crate) name: Option<String>,
    /// Arguments, as key=value
    #[arg(value_name = "KEY=VALUE")]
    pub(crate) arguments: Vec<String>,
    /// All arguments as one JSON object; key=value adds to it and takes precedence
    #[arg(long, value_name = "OBJECT")]
    pub(crate) json: Option<String>,
    /// A program in RTFS to run instead of a capability; `-` is standard input
    #[arg(long, value_name = "FILE")]
    pub(crate) program: Option<PathBuf>,
    /// What the program sees as `input`, if that is no object; KEY=VALUE and --json make an object
    #[arg(long, value_name = "JSON", requires = "program", conflicts_with_all = ["name", "arguments", "json"])]
    pub(crate) input: Option<String>,
    /// Idempotency key: with the same key, it is the same task, and runs once
    #[arg(long, value_name = "KEY")]
    pub(crate) key: Option<String>,
    /// Wait until it is over, and print its result, as `orla call` does
    #[arg(long)]
    pub(crate) wait: bool,
}

impl TaskRun {
    /// Returns the capability, unless a program is run.
    pub(crate) fn capability(&self) -> Option<&str> {
        self.name.as_deref().filter(|_| self.program.is_none())
    }
}

#[derive(Args, Clone, Debug)]
pub(crate) struct TaskList {
    /// Only those in this state: queued, working, input_required, completed, failed, cancelled or interrupted
    #[arg(long, value_name = "STATE", value_delimiter = ',')]
    pub(crate) state: Vec<String>,
    /// Only those of this capability
    #[arg(long, value_name = "NAME")]
    pub(crate) capability: Option<String>,
    /// How many at most
    #[arg(long, value_name = "N", default_value_t = 100, value_parser = super::list_limit)]
    pub(crate) limit: u16,
    /// Only those that are older than this task
    #[arg(long, value_name = "ID")]
    pub(crate) before: Option<String>,
    /// Print a JSON array
    #[arg(long)]
    pub(crate) json: bool,
}

pub(super) const TASK: &str = "\
A task is a call that outlives its caller. It survives the client, the connection and the server: after a crash it runs \
again if its capability is idempotent, and is `interrupted` if not. docs/tasks.md says exactly what is guaranteed.

Without --url, the state of this directory is opened (state_dir). While a server uses it, name the server with \
--url. There, a caller sees its own tasks, those of others with the permission tasks:read, and may cancel them with \
tasks:manage.

Examples:
  orla task run import file=big.csv --url http://127.0.0.1:8080
  orla task run import file=big.csv --key import-7 --wait
  orla task run --program report.rtfs --input '{\"city\": \"Paris\"}'
  orla task list --state working,queued
  orla task wait 0198c5f2-…
  orla task cancel 0198c5f2-…";

const RUN: &str = "\
Prints the id of the task. Without --url and without --wait, the task is stored and runs when a server starts here. \
With --wait, it runs now.

Examples:
  orla task run import file=big.csv
  orla task run add a=1 b=2 --wait
  orla task run --program report.rtfs --key report-7";
