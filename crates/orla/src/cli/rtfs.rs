//! `orla rtfs`.

use std::path::PathBuf;

use clap::{Args, Subcommand};

use super::Settings;

#[derive(Args, Clone, Debug)]
#[command(args_conflicts_with_subcommands = true)]
pub(crate) struct Rtfs {
    #[command(subcommand)]
    pub(crate) command: Option<RtfsCommand>,
    /// The program; `-` is standard input; without one, an interactive prompt
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
    /// Format programs in place; keeps comments and line breaks
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

pub(super) const RTFS: &str = "\
Prints the value of the program's last form in RTFS notation. `input` is the value of --input. The module \
`my.mod` is the file my/mod.rtfs beside the program. Write ./check to run a file named check.

Examples:
  orla rtfs -e '(map inc [1 2 3])'
  orla rtfs -e '(call :math.add {:a 1 :b 2})'
  orla rtfs report.rtfs --input '{\"city\": \"Paris\"}' --json --trace
  echo '(+ 1 2)' | orla rtfs -
  orla rtfs check report.rtfs
  orla rtfs fmt --check *.rtfs
  orla rtfs fmt < draft.rtfs

With --jsonl, each input line {\"src\": …, \"type\"?: …} is a program of its own. Its output line is {\"value\", \
\"type\", \"json\"?, \"matches\"?} or {\"error\": {\"kind\", \"message\", \"line\", \"column\"}}.";

const CHECK_PROGRAMS: &str = "\
Compares programs with the capabilities that this server would serve, and with their types. Exits 1 if there is \
an error, and 0 if there are only warnings.

Examples:
  orla rtfs check report.rtfs tools/*.rtfs
  orla rtfs check --json - < report.rtfs          for editors: a line for each finding";
