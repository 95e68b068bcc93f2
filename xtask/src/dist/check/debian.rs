//! The Debian package in a bare Debian system.

use std::net::TcpListener;
use std::path::PathBuf;
use std::process::Command;

use super::Place;
use crate::dist::release::{Program, succeed};
use crate::process;
use crate::tally::Tally;

/// The release of Debian to install on.
const SUITE: &str = "bookworm";

pub(super) fn check(place: &Place<'_>, program: &Program, tally: &mut Tally) -> Result<(), String> {
    let has = |name: &str| {
        Command::new(name).arg("--version").output().is_ok_and(|output| output.status.success())
    };
    if !rustix::process::geteuid().is_root() || !has("mmdebstrap") || !has("unshare") {
        println!(
            "      left out: the Debian package is not installed, which needs root, mmdebstrap and unshare"
        );
        return Ok(());
    }
    let root = place.empty("debian")?;
    succeed(Command::new("tar").arg("-xf").arg(bare("bare", &[])?).arg("-C").arg(&root))?;
    let package = place.artefact("orla_", &format!("_{}.deb", program.target.debian))?;
    let port = TcpListener::bind("127.0.0.1:0").and_then(|listener| listener.local_addr());
    let port = port.map_err(|err| format!("listen: {err}"))?.port();
    let finished = process::run(
        Command::new("unshare")
            .args(["--mount", "--pid", "--fork", "--kill-child", "sh"])
            .arg(crate::root().join("xtask/fixtures/dist/debian.sh"))
            .arg(&root)
            .arg(package)
            .arg(port.to_string()),
        place.scratch,
        super::LIMIT,
    )?;
    tally.judge("Debian package:", &finished);
    std::fs::remove_dir_all(&root).map_err(|err| format!("{}: {err}", root.display()))
}

/// A Debian system with these packages as an archive, which is made at the first time.
fn bare(name: &str, packages: &[&str]) -> Result<PathBuf, String> {
    let archive = crate::target("dist")?.join(format!("debian-{SUITE}-{name}.tar"));
    if !archive.exists() {
        let half = archive.with_extension("half.tar");
        succeed(
            Command::new("mmdebstrap")
                .args(["--quiet", "--variant=minbase"])
                .arg(format!("--include={}", packages.join(",")))
                .arg(SUITE)
                .arg(&half),
        )?;
        std::fs::rename(&half, &archive).map_err(|err| format!("{}: {err}", archive.display()))?;
    }
    Ok(archive)
}
