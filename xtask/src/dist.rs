//! The archive that is published for a release: the binary with every feature, and what belongs beside it.
//!
//! It is built in a folder of its own, as the binary that tests and benches use has the default features.
//! `tar` packs, and `sha256sum` makes the checksum; both are present where releases are made.

use std::fs;
use std::path::Path;
use std::process::Command;

use crate::Outcome;

/// What is built in beside the default features.
const FEATURES: &str = "wasm";

/// Files of the repository that go along.
const FILES: [&str; 5] =
    ["README.md", "CHANGELOG.md", "LICENSE-APACHE", "LICENSE-MIT", "orla.schema.json"];

/// Shells whose completions go along, and what their files are called.
const SHELLS: [(&str, &str); 3] = [("bash", "orla.bash"), ("zsh", "_orla"), ("fish", "orla.fish")];

/// Builds the archive below `target/dist`, and its checksum beside it.
pub(crate) fn run() -> Outcome {
    let dist = crate::target("dist")?;
    let build = crate::target("dist/build")?;
    succeed(
        Command::new("cargo")
            .args(["build", "--release", "--locked", "--package", "orla", "--features", FEATURES])
            .arg("--target-dir")
            .arg(&build)
            .current_dir(crate::root()),
    )?;
    let binary = build.join("release/orla");
    let version = said(Command::new(&binary).arg("--version"))?;
    let version = version.split_whitespace().nth(1).ok_or("orla does not tell its version")?;
    let host = said(Command::new("rustc").args(["--print", "host-tuple"]))?;
    let name = format!("orla-{version}-{}", host.trim());

    let folder = dist.join(&name);
    let completions = folder.join("completions");
    // What an earlier run left would be packed too.
    let _ = fs::remove_dir_all(&folder);
    fs::create_dir_all(&completions).map_err(|err| format!("{}: {err}", completions.display()))?;
    copy(&binary, &folder.join("orla"))?;
    for file in FILES {
        copy(&crate::root().join(file), &folder.join(file))?;
    }
    for (shell, file) in SHELLS {
        let text = said(Command::new(&binary).args(["completions", shell]))?;
        let path = completions.join(file);
        fs::write(&path, text).map_err(|err| format!("{}: {err}", path.display()))?;
    }

    succeed(Command::new(&binary).arg("man").arg(folder.join("man")))?;

    let archive = format!("{name}.tar.gz");
    succeed(
        Command::new("tar").args(["--create", "--gzip", "--file", &archive, &name]).current_dir(&dist),
    )?;
    let sum = said(Command::new("sha256sum").arg(&archive).current_dir(&dist))?;
    let path = dist.join(format!("{archive}.sha256"));
    fs::write(&path, &sum).map_err(|err| format!("{}: {err}", path.display()))?;
    println!("{}\n{}", dist.join(&archive).display(), sum.trim());
    Ok(true)
}

fn copy(from: &Path, to: &Path) -> Result<(), String> {
    fs::copy(from, to).map(drop).map_err(|err| format!("{}: {err}", from.display()))
}

fn succeed(command: &mut Command) -> Result<(), String> {
    let program = command.get_program().to_string_lossy().into_owned();
    match command.status() {
        Ok(status) if status.success() => Ok(()),
        Ok(status) => Err(format!("{program}: {status}")),
        Err(err) => Err(format!("{program}: {err}")),
    }
}

/// What a program writes, if it succeeds.
fn said(command: &mut Command) -> Result<String, String> {
    let program = command.get_program().to_string_lossy().into_owned();
    let output = command.output().map_err(|err| format!("{program}: {err}"))?;
    if !output.status.success() {
        return Err(format!("{program}: {}", output.status));
    }
    String::from_utf8(output.stdout).map_err(|err| format!("{program}: {err}"))
}
