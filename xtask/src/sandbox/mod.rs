//! The proof of confinement: what processes can do that declare permissions, measured from inside of them.
//!
//! - [`table`]: every probe in every permission set, as root and as another user, in four languages.
//! - [`kernels`]: the same where the kernel lacks what confinement needs.
//! - [`storms`]: calls while profiles change and launchers are killed.
//! - [`bombs`]: calls that use up what they can get.
//! - [`cost`]: what a confined call costs beside an unconfined one.
//! - [`servers`]: published MCP servers do the same with confinement as without.
//!
//! `--quick` does what takes a minute. It needs Linux; what the system, the account or a missing program does not allow is said. [`servers`]
//! needs npm and pip, because it installs the servers.

mod bombs;
mod cost;
mod host;
mod kernels;
mod probes;
mod servers;
mod storms;
mod table;
mod world;

use std::fs;
use std::os::unix::fs::PermissionsExt as _;
use std::path::PathBuf;

use crate::Outcome;
use crate::parts::{self, Parts};
use crate::server;
use crate::tally::Tally;
use world::{Account, Language};

/// What the parts share.
struct Context {
    orla: PathBuf,
    /// A folder that every account can reach, removed at the end.
    scratch: PathBuf,
    accounts: Vec<Account>,
    languages: Vec<Language>,
    is_quick: bool,
    is_blessing: bool,
    tally: Tally,
}

type Part = fn(&mut Context) -> Result<(), String>;

const PARTS: &[(&str, Part)] = &[
    ("table", table::run),
    ("kernels", kernels::run),
    ("storms", storms::run),
    ("bombs", bombs::run),
    ("cost", cost::run),
    ("servers", servers::run),
];

/// Runs the named parts, or all of them.
pub(crate) fn run(arguments: &[String]) -> Outcome {
    let known: Vec<&str> = PARTS.iter().map(|(name, _)| *name).collect();
    let parts = Parts::of(arguments, &[parts::QUICK, parts::BLESS], &known)?;
    let orla = server::binary()?;
    let problem = |err: std::io::Error| format!("{}: {err}", orla.display());
    // Below the system's temporary directory: other accounts need not reach the repository.
    let scratch = std::env::temp_dir().join(format!("orla-sandbox-{}", std::process::id()));
    fs::create_dir_all(&scratch).map_err(problem)?;
    fs::set_permissions(&scratch, fs::Permissions::from_mode(0o755)).map_err(problem)?;
    let copy = scratch.join("orla");
    fs::copy(&orla, &copy).map_err(problem)?;
    let accounts = world::accounts();
    if accounts.len() == 1 {
        println!("      only as this user: another one needs root");
    }
    if let Err(problem) = world::change_resolver(&scratch) {
        println!("      no name whose address changes: {problem}");
    }
    let mut context = Context {
        orla: copy,
        languages: world::languages(&scratch)?,
        accounts,
        scratch: scratch.clone(),
        is_quick: parts.is_quick,
        is_blessing: parts.is_blessing,
        tally: Tally::default(),
    };
    let done =
        PARTS.iter().filter(|(name, _)| parts.has(name)).try_for_each(|(_, part)| part(&mut context));
    let _ = fs::remove_dir_all(&scratch);
    done?;
    Ok(context.tally.close())
}

impl Context {
    /// Returns a new folder for one part, below what every account can reach.
    fn folder(&self, name: &str) -> Result<PathBuf, String> {
        let folder = self.scratch.join(name);
        fs::create_dir_all(&folder).map_err(|err| format!("{}: {err}", folder.display()))?;
        Ok(folder)
    }

    /// Returns a count, or a part of it where it has to be quick.
    fn some(&self, count: usize, quick: usize) -> usize {
        if self.is_quick { quick } else { count }
    }
}
