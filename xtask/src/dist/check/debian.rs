//! The Debian package in a bare Debian system, and its service under systemd.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use super::Place;
use crate::dist::release::{Program, succeed};
use crate::process::{self, Finished};
use crate::tally::Tally;
use orla_e2e::free_port;

/// The release of Debian to install on.
const SUITE: &str = "bookworm";

pub(super) fn check(place: &Place<'_>, program: &Program, tally: &mut Tally) -> Result<(), String> {
    let has = |name: &str| {
        Command::new(name).arg("--version").output().is_ok_and(|output| output.status.success())
    };
    let enters = ["--mount", "--pid", "--fork", "true"];
    let can_enter =
        Command::new("unshare").args(enters).output().is_ok_and(|output| output.status.success());
    if !rustix::process::geteuid().is_root() || !can_enter {
        println!(
            "      left out: the Debian package is not installed, which needs root, unshare and its namespaces"
        );
        return Ok(());
    }
    let Some(system) = bare(SUITE, "bare", &[])? else { return Ok(()) };
    let package = place.artefact("orla_", &format!("_{}.deb", program.target.debian))?;
    let port = free_port();
    let finished = in_root(place, &system, |root| {
        let mut command = Command::new("unshare");
        command.args(["--mount", "--pid", "--fork", "--kill-child", "sh"]).arg(fixture("debian.sh"));
        command.arg(root).arg(&package).arg(port.to_string());
        command
    })?;
    tally.judge("Debian package:", &finished);

    let has_groups = fs::read_to_string("/proc/mounts").is_ok_and(|mounts| mounts.contains(" cgroup2 "));
    if !has_groups || !has("nsenter") {
        println!(
            "      left out: the service is not started, which needs nsenter and control groups of version 2"
        );
        return Ok(());
    }
    let Some(system) = bare(SUITE, "systemd", &["systemd", "systemd-sysv", "dbus", "curl"])? else {
        return Ok(());
    };
    let finished = in_root(place, &system, |root| {
        let mut command = Command::new("sh");
        command.arg(fixture("service.sh")).arg(root).arg(&package);
        command
    })?;
    tally.judge("service:", &finished);
    Ok(())
}

pub(super) fn fixture(name: &str) -> PathBuf {
    crate::root().join("xtask/fixtures/dist").join(name)
}

/// Unpacks a system, and runs a script with it.
fn in_root(
    place: &Place<'_>,
    system: &Path,
    script: impl Fn(&Path) -> Command,
) -> Result<Finished, String> {
    let root = place.empty("debian")?;
    succeed(Command::new("tar").arg("-xf").arg(system).arg("-C").arg(&root))?;
    let finished = process::run(&mut script(&root), place.scratch, super::LIMIT)?;
    fs::remove_dir_all(&root).map_err(|err| format!("{}: {err}", root.display()))?;
    Ok(finished)
}

/// Returns a Debian system of a release with these packages as an archive, which is made at the first time; `None`
/// where it cannot be made.
pub(super) fn bare(suite: &str, name: &str, packages: &[&str]) -> Result<Option<PathBuf>, String> {
    let archive = crate::target("dist")?.join(format!("debian-{suite}-{name}.tar"));
    if !archive.exists() {
        let half = archive.with_extension("half.tar");
        let mut command = Command::new("mmdebstrap");
        command.args(["--quiet", "--variant=minbase"]);
        if !packages.is_empty() {
            command.arg(format!("--include={}", packages.join(",")));
        }
        let made = succeed(command.arg(suite).arg(&half));
        if let Err(why) = made {
            println!("      left out: no Debian system can be made to install on: {why}");
            return Ok(None);
        }
        fs::rename(&half, &archive).map_err(|err| format!("{}: {err}", archive.display()))?;
    }
    Ok(Some(archive))
}
