//! Checkouts of the suites.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use crate::process;

/// How long one step of git may take.
const LIMIT: Duration = Duration::from_secs(600);

/// Returns the checkout of a repository at a commit, fetched if it is not there yet.
pub(super) fn fetch(name: &str, repository: &str, commit: &str) -> Result<PathBuf, String> {
    let checkout = crate::target("suites")?.join(name);
    if commit_of(&checkout).as_deref() == Some(commit) {
        return Ok(checkout);
    }
    fs::create_dir_all(&checkout).map_err(|err| format!("{}: {err}", checkout.display()))?;
    for arguments in [
        &["init", "--quiet"][..],
        &["fetch", "--quiet", "--depth", "1", repository, commit],
        &["checkout", "--quiet", "--force", "FETCH_HEAD"],
    ] {
        git(&checkout, arguments).map_err(|problem| {
            format!(
                "the suite {name} could not be fetched: {problem}\n\
                 Where {repository} cannot be reached, put a checkout of commit {commit} at FOLDER/{name} and run \
                 `cargo xtask suites --from FOLDER {name}`."
            )
        })?;
    }
    Ok(checkout)
}

/// Returns the commit that is checked out in a folder, if the folder is a git repository of its own.
pub(super) fn commit_of(checkout: &Path) -> Option<String> {
    checkout
        .join(".git")
        .exists()
        .then(|| git(checkout, &["rev-parse", "HEAD"]).ok())?
        .map(|commit| commit.trim().to_owned())
}

fn git(folder: &Path, arguments: &[&str]) -> Result<String, String> {
    let mut command = Command::new("git");
    command.args(arguments).current_dir(folder).env("GIT_TERMINAL_PROMPT", "0");
    let scratch = crate::target("suites")?;
    process::run(&mut command, &scratch, LIMIT)?.stdout_of_success()
}
