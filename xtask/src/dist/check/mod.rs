//! Installs each artefact where nothing else is, and runs it.
//!
//! Only what fits this machine is installed. What a check needs and is not there is said, and the check left out.

use std::ffi::OsStr;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use crate::process::{self, Finished};
use crate::tally::Tally;

use super::release::{Artefact, Program, Release};

mod debian;
pub(super) mod machine;
mod script;

/// How long one installation may take.
const LIMIT: Duration = Duration::from_secs(300);

/// Where the artefacts are, and a folder for what is installed.
struct Place<'a> {
    release: &'a Release,
    artefacts: &'a [Artefact],
    folder: &'a Path,
    scratch: &'a Path,
}

pub(super) fn run(
    release: &Release,
    artefacts: &[Artefact],
    folder: &Path,
    scratch: &Path,
    tally: &mut Tally,
) -> Result<(), String> {
    let place = Place { release, artefacts, folder, scratch };
    let sums = place.run(
        Command::new("sha256sum")
            .args(["--check", "--strict", "--quiet", "SHA256SUMS"])
            .current_dir(folder),
    );
    tally.check("sha256sum agrees with SHA256SUMS", sums.map(drop));
    for program in release.programs.iter().filter(|program| program.target.is_native()) {
        tally.check("archive: unpacked, and run", place.archive(program));
        tally.check("npm: installed without the network, and run", place.npm(program));
        tally.check("wheel: installed without an index, and run", place.wheel());
        debian::check(&place, program, tally)?;
    }
    script::check(&place, tally)
}

impl Place<'_> {
    fn run(&self, command: &mut Command) -> Result<String, String> {
        process::run(command, self.scratch, LIMIT).and_then(Finished::stdout_of_success)
    }

    /// Returns an empty folder.
    fn empty(&self, name: &str) -> Result<PathBuf, String> {
        let folder = self.scratch.join(name);
        let _ = fs::remove_dir_all(&folder);
        fs::create_dir_all(&folder).map_err(|err| format!("{}: {err}", folder.display()))?;
        Ok(folder)
    }

    /// Returns the artefact whose name has both ends.
    fn artefact(&self, start: &str, end: &str) -> Result<PathBuf, String> {
        let mut names = self.artefacts.iter().map(|artefact| &artefact.name);
        let name = names.find(|name| name.starts_with(start) && name.ends_with(end));
        name.map(|name| self.folder.join(name)).ok_or_else(|| format!("no artefact is {start}…{end}"))
    }

    fn archive(&self, program: &Program) -> Result<(), String> {
        let folder = self.empty("archive")?;
        let name = super::archive::name(self.release, program);
        let archive = self.folder.join(format!("{name}.tar.gz"));
        self.run(Command::new("tar").arg("-xzf").arg(archive).arg("-C").arg(&folder))?;
        let top = folder.join(name);
        for file in ["completions/_orla", "man/orla.1", "LICENSE-MIT", "THIRD-PARTY-LICENSES.txt"] {
            if !top.join(file).is_file() {
                return Err(format!("{file} is missing"));
            }
        }
        self.serves(&top.join("orla"), &[])
    }

    fn npm(&self, program: &Program) -> Result<(), String> {
        let folder = self.empty("npm")?;
        let platform = format!("orla-run-linux-{}-", program.target.node);
        // With the other targets' packages left out, npm would look for them on the network: they are optional.
        self.run(
            Command::new("npm")
                .args([
                    "install",
                    "--offline",
                    "--no-audit",
                    "--no-fund",
                    "--no-update-notifier",
                    "--cache",
                ])
                .arg(folder.join("cache"))
                .arg(self.artefact(&format!("orla-{}", self.release.version), ".tgz")?)
                .arg(self.artefact(&platform, ".tgz")?)
                .current_dir(&folder),
        )?;
        self.serves(
            Path::new("npx"),
            &["--no-install".as_ref(), "--prefix".as_ref(), folder.as_ref(), "orla".as_ref()],
        )
    }

    fn wheel(&self) -> Result<(), String> {
        let folder = self.empty("wheel")?;
        self.run(Command::new("python3").args(["-m", "venv"]).arg(&folder))?;
        let architecture = std::env::consts::ARCH;
        self.run(
            Command::new(folder.join("bin/python"))
                .args(["-m", "pip", "install", "--no-index", "--disable-pip-version-check"])
                .arg(self.artefact("orla_run-", &format!("_{architecture}.whl"))?),
        )?;
        self.serves(&folder.join("bin/orla"), &[])
    }

    /// Runs an installed orla in an empty folder: it says its version, calls a tool, and answers a client on its standard input.
    fn serves(&self, program: &Path, before: &[&OsStr]) -> Result<(), String> {
        let folder = self.empty("world")?;
        let tool = folder.join("tools/hello");
        let script = "#!/bin/sh\n# Says hello.\necho hello from a tool\n";
        fs::create_dir(folder.join("tools"))
            .and_then(|()| fs::write(&tool, script))
            .and_then(|()| {
                fs::set_permissions(&tool, std::os::unix::fs::PermissionsExt::from_mode(0o755))
            })
            .map_err(|err| format!("{}: {err}", tool.display()))?;
        let orla = || {
            let mut command = Command::new(program);
            command.args(before).current_dir(&folder);
            command
        };
        let expect = |what: &str, said: &str, wanted: &str| match said.contains(wanted) {
            true => Ok(()),
            false => Err(format!("{what} said `{}`, not `{wanted}`", said.trim())),
        };
        expect("--version", &self.run(orla().arg("--version"))?, &self.release.version)?;
        expect("call", &self.run(orla().args(["call", "hello"]))?, "hello from a tool")?;
        // A file as the input: its end is what ends the server.
        let input = folder.join("input");
        let line = r#"{"jsonrpc":"2.0","id":1,"method":"initialize","params":{"protocolVersion":"2025-06-18","capabilities":{},"clientInfo":{"name":"check","version":"1"}}}"#;
        fs::write(&input, format!("{line}\n")).map_err(|err| format!("{}: {err}", input.display()))?;
        let script = "input=$1; shift; exec \"$@\" --stdio <\"$input\"";
        let mut stdio = Command::new("sh");
        stdio.args(["-c", script, "sh"]).arg(&input).arg(program).args(before).current_dir(&folder);
        let said = self.run(&mut stdio)?;
        expect("--stdio", &said, r#""name":"orla""#)
    }
}
