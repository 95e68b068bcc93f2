//! Packages of git repositories. The program `git` fetches them, with the user's credentials.

use std::path::Path;
use std::process::Command;

use orla_packages::archive::{Archive, pack};

use super::helper;

/// Returns an archive of a revision, and its commit.
///
/// # Errors
///
/// Returns an error if the revision cannot be fetched or does not exist, or if it contains files that no
/// package may have.
pub(super) fn fetch(url: &str, revision: Option<&str>) -> Result<(Vec<u8>, String), String> {
    let place = tempfile::tempdir().map_err(|error| error.to_string())?;
    let at = |name: &str| place.path().join(name);
    let (repository, content) = (at("repository"), at("content"));
    let git = || git(&repository);
    helper::output(git().args(["init", "--quiet", "--bare"]).arg(&repository))?;
    let wanted = revision.unwrap_or("HEAD");
    // One commit is enough, if the server supports that.
    let shallow =
        git_fetch(&repository, &["--depth", "1"], url, &[&format!("{wanted}:refs/orla/wanted")]);
    let found = match shallow {
        Ok(()) => "refs/orla/wanted",
        // The repository here has another HEAD.
        Err(_) if revision.is_none() => {
            git_fetch(&repository, &[], url, &["+HEAD:refs/orla/wanted"])?;
            "refs/orla/wanted"
        }
        Err(_) => {
            let all = ["+refs/heads/*:refs/heads/*", "+refs/tags/*:refs/tags/*"];
            git_fetch(&repository, &[], url, &all)?;
            wanted
        }
    };
    let commit = helper::output(
        git()
            .args(["rev-parse", "--verify", "--quiet", "--end-of-options"])
            .arg(format!("{found}^{{commit}}")),
    )
    .map_err(|_| format!("the repository has no revision {wanted}"))?;
    let commit = String::from_utf8_lossy(&commit).trim().to_owned();
    // The files that git would write otherwise depend on the fetched references.
    let attributes = repository.join("info");
    let written = std::fs::create_dir_all(&attributes)
        .and_then(|()| std::fs::write(attributes.join("attributes"), "* -export-subst\n"));
    written.map_err(|error| error.to_string())?;
    let zip = helper::output(git().args(["archive", "--format=zip", &commit]))?;
    // The format of git's archive depends on the version of git. Its content does not.
    let archive = Archive::read(&zip).map_err(|error| error.to_string())?;
    std::fs::create_dir(&content).map_err(|error| error.to_string())?;
    archive.unpack(&content).map_err(|error| error.to_string())?;
    Ok((pack(&content).map_err(|error| error.to_string())?, commit))
}

/// Returns the commit of a revision at its source, if the source reports it. Sources report it for
/// branches and tags.
///
/// # Errors
///
/// Returns an error if the source cannot be asked.
pub(super) fn tip(url: &str, revision: Option<&str>) -> Result<Option<String>, String> {
    let place = tempfile::tempdir().map_err(|error| error.to_string())?;
    let revision = revision.unwrap_or("HEAD");
    let mut git = git(&place.path().join("repository"));
    git.args(["ls-remote", "--quiet", "--end-of-options", url, revision, &format!("{revision}^{{}}")]);
    let rows = helper::output(&mut git)?;
    let rows = String::from_utf8_lossy(&rows);
    let at = |name: String| {
        let mut rows = rows.lines().filter_map(|row| row.split_once('\t'));
        rows.find(|(_, known)| *known == name).map(|(commit, _)| commit.to_owned())
    };
    // In the order in which git resolves a name. The target of an annotated tag comes before the tag.
    let names = [
        format!("refs/tags/{revision}^{{}}"),
        format!("refs/tags/{revision}"),
        format!("refs/heads/{revision}"),
    ];
    let head = (revision == "HEAD").then(|| "HEAD".to_owned());
    Ok(head.into_iter().chain(names).find_map(at))
}

fn git_fetch(repository: &Path, options: &[&str], url: &str, what: &[&str]) -> Result<(), String> {
    let mut command = git(repository);
    command.args(["fetch", "--quiet", "--no-tags", "--no-recurse-submodules"]).args(options);
    helper::output(command.args(["--end-of-options", url]).args(what)).map(drop)
}

/// `git` with a repository, without questions and without what could run another program or change bytes.
fn git(repository: &Path) -> Command {
    let mut git = helper::program("git", Path::new("/"));
    for inherited in ["GIT_WORK_TREE", "GIT_INDEX_FILE", "GIT_OBJECT_DIRECTORY"] {
        git.env_remove(inherited);
    }
    git.env("GIT_DIR", repository).env("GIT_TERMINAL_PROMPT", "0");
    // ssh would wait at the terminal, from the background, without a word.
    git.env("SSH_ASKPASS_REQUIRE", "force");
    if std::env::var_os("SSH_ASKPASS").is_none() {
        git.env("SSH_ASKPASS", "false");
    }
    git.env("GIT_ALLOW_PROTOCOL", "file:https:http:ssh");
    for setting in
        ["core.autocrlf=false", "core.attributesFile=/dev/null", "core.hooksPath=/dev/null", "gc.auto=0"]
    {
        git.args(["-c", setting]);
    }
    git
}
