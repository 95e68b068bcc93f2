//! Installs the pinned programs of others below `target`: packages of npm and PyPI, and a Node that is new enough for them.
//!
//! The pins of `xtask/fixtures/NAME` are installed below `target/NAME`, once; deleting that folder starts afresh.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use crate::process;

/// The oldest Node that all of the foreign programs run on.
const NODE: (u32, u32) = (22, 19);

/// How long one installation may take.
const TIMEOUT: Duration = Duration::from_secs(300);

/// The pauses before a failed installation is tried again: a registry may be away for a moment.
const PAUSES: [Duration; 2] = [Duration::from_secs(5), Duration::from_secs(30)];

/// Where everything is.
pub(crate) struct Foreign {
    /// The installed packages, and a place for what they write.
    pub(crate) folder: PathBuf,
    /// A Node that is new enough.
    pub(crate) node: PathBuf,
    /// The Python of the virtual environment with the packages of `requirements.txt`, if it was wanted.
    pub(crate) python: PathBuf,
}

impl Foreign {
    /// Returns a file of an installed npm package.
    pub(crate) fn module(&self, path: &str) -> PathBuf {
        self.folder.join("node_modules").join(path)
    }
}

/// Returns the folder of pins with this name.
pub(crate) fn pins(name: &str) -> PathBuf {
    crate::root().join("xtask/fixtures").join(name)
}

/// Installs the npm packages that the pins name, a Node, and the Python packages if they are wanted.
pub(crate) fn programs(name: &str, with_python: bool) -> Result<Foreign, String> {
    let folder = packages(name)?;
    let python = match with_python {
        true => python(&folder, &pins(name).join("requirements.txt"), "python")?,
        false => interpreter(&folder, "python"),
    };
    Ok(Foreign { folder, node: node()?, python })
}

/// Installs the npm packages that the pins name, and returns their folder, with the scripts of the pins beside them.
pub(crate) fn packages(name: &str) -> Result<PathBuf, String> {
    npm(name, |folder| Ok(folder.to_owned()))
}

/// Installs the npm packages that the pins name, and returns what is looked for in their folder.
fn npm<T>(name: &str, find: impl Fn(&Path) -> Result<T, String>) -> Result<T, String> {
    let (pins, folder) = (pins(name), crate::target(name)?);
    // The scripts stand beside `node_modules`, which is where Node looks for their imports.
    let entries = fs::read_dir(&pins).map_err(|err| format!("{}: {err}", pins.display()))?;
    for path in entries.flatten().map(|entry| entry.path()) {
        let kind = path.extension().and_then(|kind| kind.to_str()).unwrap_or_default();
        if let (Some(name), "json" | "mjs" | "py" | "txt") = (path.file_name(), kind) {
            copy(&path, &folder.join(name))?;
        }
    }
    let (lock, done) = (folder.join("package-lock.json"), folder.join(".npm-done"));
    if !is_current(&lock, &done) {
        with_retries(&format!("the npm packages of {name}"), || {
            let mut npm = Command::new("npm");
            npm.args(["ci", "--ignore-scripts", "--no-audit", "--no-fund", "--loglevel=error"])
                .current_dir(&folder);
            process::run(&mut npm, &folder, TIMEOUT)?
                .stdout_of_success()
                .map_err(|err| format!("npm: {err}"))?;
            find(&folder)
        })?;
        copy(&lock, &done)?;
    }
    find(&folder)
}

/// Installs what a file of pins names into a virtual environment in the folder, and returns its Python.
pub(crate) fn python(folder: &Path, pins: &Path, environment: &str) -> Result<PathBuf, String> {
    let python = interpreter(folder, environment);
    let done = folder.join(format!(".pip-done-{environment}"));
    if !python.is_file() || !is_current(pins, &done) {
        let file = pins.to_string_lossy();
        let steps: [(&Path, &[&str]); 2] = [
            (Path::new("python3"), &["-m", "venv", "--clear", environment]),
            (&python, &["-m", "pip", "install", "--quiet", "--disable-pip-version-check", "-r", &file]),
        ];
        with_retries(&format!("the Python packages of {}", folder.display()), || {
            for (program, arguments) in steps {
                let mut step = Command::new(program);
                step.args(arguments).current_dir(folder);
                process::run(&mut step, folder, TIMEOUT)?
                    .stdout_of_success()
                    .map_err(|err| format!("{}: {err}", arguments.join(" ")))?;
            }
            Ok(())
        })?;
        copy(pins, &done)?;
    }
    Ok(python)
}

/// Says what is installed, and tries it again after each of the [`PAUSES`].
fn with_retries<T>(what: &str, install: impl Fn() -> Result<T, String>) -> Result<T, String> {
    println!("installing {what}");
    for pause in PAUSES {
        match install() {
            Ok(done) => return Ok(done),
            Err(err) => println!("it is tried again in {} s: {err}", pause.as_secs()),
        }
        std::thread::sleep(pause);
    }
    install()
}

fn interpreter(folder: &Path, environment: &str) -> PathBuf {
    folder.join(environment).join("bin/python")
}

/// Returns the system's Node if it is new enough, else one of its own.
fn node() -> Result<PathBuf, String> {
    let scratch = crate::target("node")?;
    let is_new = |node: &Path| {
        let mut ask = Command::new(node);
        let answer = process::run(ask.arg("--version"), &scratch, Duration::from_secs(30));
        answer.is_ok_and(|answer| version(&answer.stdout).is_some_and(|found| found >= NODE))
    };
    let system = PathBuf::from("node");
    if is_new(&system) {
        return Ok(system);
    }
    // Its packages are optional, as each is of one platform, and npm leaves out what is optional and cannot be fetched.
    npm("node", |folder| {
        let own = ["linux-x64", "linux-arm64", "darwin-x64"].into_iter();
        let mut own = own.map(|platform| folder.join(format!("node_modules/node-{platform}/bin/node")));
        own.find(|node| is_new(node)).ok_or_else(|| {
            format!(
                "Node {}.{} or newer is needed, and npm installed none that runs here",
                NODE.0, NODE.1
            )
        })
    })
}

/// Major and minor of `v22.23.3`.
fn version(text: &str) -> Option<(u32, u32)> {
    let mut parts = text.trim().strip_prefix('v')?.split('.');
    Some((parts.next()?.parse().ok()?, parts.next()?.parse().ok()?))
}

/// Returns whether the pins are those that were installed.
fn is_current(pins: &Path, done: &Path) -> bool {
    matches!((fs::read(pins), fs::read(done)), (Ok(wanted), Ok(installed)) if wanted == installed)
}

fn copy(from: &Path, to: &Path) -> Result<(), String> {
    fs::copy(from, to).map(|_| ()).map_err(|err| format!("{}: {err}", from.display()))
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
