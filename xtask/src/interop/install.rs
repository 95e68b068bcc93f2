//! Puts the pinned foreign programs below `target/interop`.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use crate::process;

/// The oldest Node that all of the foreign programs run on.
const NODE: (u32, u32) = (22, 19);

/// How long one installation may take.
const TIMEOUT: Duration = Duration::from_secs(600);

/// Where everything is.
pub(crate) struct Foreign {
    /// `target/interop`: the installed parts, and a place for what they write.
    pub(crate) folder: PathBuf,
    /// A Node that is new enough.
    pub(crate) node: PathBuf,
    /// The Python of the virtual environment with the SDK and FastMCP.
    pub(crate) python: PathBuf,
}

impl Foreign {
    /// Returns a file of an installed npm package.
    pub(crate) fn module(&self, path: &str) -> PathBuf {
        self.folder.join("node_modules").join(path)
    }
}

/// Returns the folder of the pins and the driver scripts.
pub(crate) fn fixtures() -> PathBuf {
    crate::root().join("xtask/fixtures/clients")
}

/// Installs what is missing or whose pins have changed.
pub(crate) fn install(with_python: bool) -> Result<Foreign, String> {
    install_from(&fixtures(), "interop", with_python)
}

/// Installs what the pins in a folder name below `target/NAME`, with the scripts beside them.
pub(crate) fn install_from(pins: &Path, name: &str, with_python: bool) -> Result<Foreign, String> {
    let folder = packages(pins, name)?;
    let python = match with_python {
        true => python(&folder, "requirements.txt", "python")?,
        false => interpreter(&folder, "python"),
    };
    let node = node(&folder)?;
    Ok(Foreign { folder, node, python })
}

/// Installs the npm packages that the pins in a folder name below `target/NAME`, which it returns, with the scripts beside them.
pub(crate) fn packages(pins: &Path, name: &str) -> Result<PathBuf, String> {
    let folder = crate::target(name)?;
    // The scripts stand beside `node_modules`, which is where Node looks for their imports.
    let entries = std::fs::read_dir(pins).map_err(|err| format!("{}: {err}", pins.display()))?;
    for path in entries.flatten().map(|entry| entry.path()) {
        let kind = path.extension().and_then(|kind| kind.to_str()).unwrap_or_default();
        if let (Some(name), "json" | "mjs" | "py" | "txt") = (path.file_name(), kind) {
            copy(&path, &folder.join(name))?;
        }
    }
    if !is_current(&folder.join("package-lock.json"), &folder.join(".npm-done")) {
        println!("installing npm packages");
        let mut npm = Command::new("npm");
        npm.args(["ci", "--ignore-scripts", "--no-audit", "--no-fund", "--loglevel=error"])
            .current_dir(&folder);
        process::run(&mut npm, &folder, TIMEOUT)?
            .stdout_of_success()
            .map_err(|err| format!("npm: {err}"))?;
        mark(&folder.join("package-lock.json"), &folder.join(".npm-done"))?;
    }
    Ok(folder)
}

/// Installs what a file of pins in the folder names into a virtual environment there, and returns its Python.
pub(crate) fn python(folder: &Path, pins: &str, environment: &str) -> Result<PathBuf, String> {
    let python = interpreter(folder, environment);
    let (wanted, done) = (folder.join(pins), folder.join(format!(".pip-done-{environment}")));
    if !is_current(&wanted, &done) {
        println!("installing Python packages");
        let steps: [(&Path, &[&str]); 2] = [
            (Path::new("python3"), &["-m", "venv", "--clear", environment]),
            (&python, &["-m", "pip", "install", "--quiet", "--disable-pip-version-check", "-r", pins]),
        ];
        for (program, arguments) in steps {
            let mut step = Command::new(program);
            step.args(arguments).current_dir(folder);
            process::run(&mut step, folder, TIMEOUT)?
                .stdout_of_success()
                .map_err(|err| format!("{}: {err}", arguments.join(" ")))?;
        }
        mark(&wanted, &done)?;
    }
    Ok(python)
}

fn interpreter(folder: &Path, environment: &str) -> PathBuf {
    folder.join(environment).join("bin/python")
}

/// Returns the system's Node if it is new enough, else the one that npm brought.
fn node(folder: &Path) -> Result<PathBuf, String> {
    let mut candidates = vec![PathBuf::from("node")];
    for platform in ["linux-x64", "linux-arm64", "darwin-x64"] {
        candidates.push(folder.join(format!("node_modules/node-{platform}/bin/node")));
    }
    for candidate in candidates {
        let mut ask = Command::new(&candidate);
        let Ok(answer) = process::run(ask.arg("--version"), folder, Duration::from_secs(30)) else {
            continue;
        };
        if version(&answer.stdout).is_some_and(|found| found >= NODE) {
            return Ok(candidate);
        }
    }
    Err(format!("Node {}.{} or newer is needed, but not available for this platform", NODE.0, NODE.1))
}

/// Major and minor of `v22.23.3`.
fn version(text: &str) -> Option<(u32, u32)> {
    let mut parts = text.trim().strip_prefix('v')?.split('.');
    Some((parts.next()?.parse().ok()?, parts.next()?.parse().ok()?))
}

fn is_current(pins: &Path, done: &Path) -> bool {
    matches!((std::fs::read(pins), std::fs::read(done)), (Ok(wanted), Ok(installed)) if wanted == installed)
}

fn mark(pins: &Path, done: &Path) -> Result<(), String> {
    copy(pins, done)
}

fn copy(from: &Path, to: &Path) -> Result<(), String> {
    std::fs::copy(from, to).map(|_| ()).map_err(|err| format!("{}: {err}", from.display()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn versions_are_compared_as_numbers() {
        let cases = [
            ("v22.19.0\n", true),
            ("v22.9.0", false),
            ("v20.20.2", false),
            ("v24.0.1", true),
            ("?", false),
        ];
        for (text, expected) in cases {
            assert_eq!(version(text).is_some_and(|found| found >= NODE), expected, "{text}");
        }
    }
}
