//! Long runs of the binary: load, saved files, killed capsules and reloads at the same time.
//!
//! # How it works
//!
//! Every run has a folder and a server of its own, and gives one sentence of figures or says what did
//! not hold. What processes did is taken from what they wrote themselves ([`watch::Records`]) and from
//! `/proc`, never from the server. A call counts as answered only if its answer was read.
//!
//! - [`capsules`]: a capsule that is saved, killed, flooded; very many idle ones.
//! - [`tools`]: reloads during calls, a prestarted tool, very large output, a server that is killed.
//!
//! `--quick` does a tenth of everything. These runs take minutes, so they are no tests.

mod capsules;
pub(crate) mod load;
mod tools;
pub(crate) mod watch;

use std::fs;
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};

use crate::Outcome;
use crate::server::{self, Server};
use crate::tally::Tally;

/// What a run is given.
struct World {
    orla: PathBuf,
    folder: PathBuf,
    /// How much of everything is done: 1, or 10 for a tenth.
    divisor: usize,
}

type Run = fn(&World) -> Result<String, String>;

const RUNS: &[(&str, Run)] = &[
    ("save: calls while the capsule's file is saved", capsules::save),
    ("crash: calls while the capsule is killed", capsules::crash),
    ("idle: very many idle capsules", capsules::idle),
    ("bulk: large messages both ways", capsules::bulk),
    ("notices: a flood of notifications", capsules::notices),
    ("reload: calls during reloads", tools::reload),
    ("prestart: a storm on a prestarted tool", tools::prestart),
    ("flood: a tool that writes 1 GB", tools::flood),
    ("kill: a server that is killed", tools::kill),
];

/// Does the runs whose names contain one of the arguments, or all of them.
pub(crate) fn run(arguments: &[String]) -> Outcome {
    let (flags, wanted): (Vec<&String>, Vec<&String>) =
        arguments.iter().partition(|argument| argument.starts_with("--"));
    if flags.iter().any(|flag| *flag != "--quick") {
        return Err("usage: cargo xtask endure [--quick] [WHAT…]".to_owned());
    }
    let orla = server::binary()?;
    let orla = fs::canonicalize(&orla).map_err(|err| format!("{}: {err}", orla.display()))?;
    let mut tally = Tally::default();
    for (name, run) in RUNS {
        if !wanted.is_empty() && !wanted.iter().any(|part| name.contains(part.as_str())) {
            continue;
        }
        let short = name.split(':').next().unwrap_or(name);
        let world = World {
            orla: orla.clone(),
            folder: crate::target("endure")?.join(short),
            divisor: if flags.is_empty() { 1 } else { 10 },
        };
        fresh(&world.folder)?;
        let (what, result) = match run(&world) {
            Ok(figures) => (format!("{name}: {figures}"), Ok(())),
            Err(problem) => ((*name).to_owned(), Err(problem)),
        };
        tally.check(&what, result);
    }
    Ok(tally.close())
}

impl World {
    /// Returns a count, or the part of it that `--quick` asks for.
    fn some(&self, count: usize) -> usize {
        (count / self.divisor).max(1)
    }

    fn path(&self, path: &str) -> PathBuf {
        self.folder.join(path)
    }

    fn write(&self, path: &str, text: &str) -> Result<(), String> {
        write(&self.path(path), text, 0o644)
    }

    fn executable(&self, path: &str, text: &str) -> Result<(), String> {
        write(&self.path(path), text, 0o755)
    }

    /// A server in the run's folder. Its log is kept beside the folder's tools.
    fn serve(&self, configuration: &str) -> Result<Server, String> {
        fs::create_dir_all(self.path("tools")).map_err(|err| err.to_string())?;
        // Nothing that is installed takes part.
        self.write("orla.yaml", configuration)?;
        Server::start(&self.orla, &self.folder, &self.folder)
    }
}

/// Writes a file as careful editors do: complete, under another name, then renamed.
fn write(path: &Path, text: &str, mode: u32) -> Result<(), String> {
    let problem = |err: std::io::Error| format!("{}: {err}", path.display());
    if let Some(folder) = path.parent() {
        fs::create_dir_all(folder).map_err(problem)?;
    }
    let partial = path.with_extension("partial");
    fs::write(&partial, text).map_err(problem)?;
    fs::set_permissions(&partial, fs::Permissions::from_mode(mode)).map_err(problem)?;
    fs::rename(&partial, path).map_err(problem)
}

fn fresh(folder: &Path) -> Result<(), String> {
    if folder.exists() {
        fs::remove_dir_all(folder).map_err(|err| format!("{}: {err}", folder.display()))?;
    }
    fs::create_dir_all(folder).map_err(|err| format!("{}: {err}", folder.display()))
}

/// Holds a run to a condition.
fn ensure(holds: bool, otherwise: impl FnOnce() -> String) -> Result<(), String> {
    if holds { Ok(()) } else { Err(otherwise()) }
}
