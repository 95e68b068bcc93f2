//! `orla new`: the skeleton of a working tool or capsule.
//!
//! A tool is one file if the language runs from source. Otherwise it is a package: the source, and an entrypoint
//! that builds it when it has changed. A capsule is always a package. No skeleton needs an SDK.
//!
//! Existing files are never changed: a name that is taken is an error before anything is written.

use std::fs;
use std::path::{Path, PathBuf};

use clap::ValueEnum;

use super::write_new;
use crate::cli::{Kind, Language};
use crate::config::Source;
use crate::{Failure, render};

/// Writes a skeleton below `dir`, or into the tools directory of the configuration, and prints the next steps.
pub(crate) fn run(
    kind: Kind,
    name: &str,
    language: Language,
    dir: Option<PathBuf>,
    source: &Source,
) -> Result<(), Failure> {
    check(name)?;
    let served = super::load(source)?.tools_dir;
    let dir = dir.unwrap_or_else(|| served.clone());
    let skeleton = Skeleton::of(kind, name, language);
    let mut report = String::new();
    for path in skeleton.write(&dir, name)? {
        report.push_str(&format!("wrote  {}\n", path.display()));
    }
    let is_served = dir == served || same(&dir, &served);
    let flag = if is_served { String::new() } else { format!(" --tools-dir {}", dir.display()) };
    let what = if skeleton.is_package { dir.join(name) } else { dir };
    let what = what.strip_prefix("./").unwrap_or(&what);
    let dev = format!("orla dev {}", what.display());
    let call = format!("orla call {name} {}{flag}", kind.arguments());
    let width = dev.len().max(call.len()) + 4;
    render::out(&format!(
        "{report}\nNext:\n  {call:<width$}call it once\n  {dev:<width$}serve it, and run what you save at once\n"
    ));
    Ok(())
}

impl Kind {
    /// Arguments to try the skeleton with.
    fn arguments(self) -> &'static str {
        match self {
            Self::Tool => "name=Ada",
            Self::Capsule => "by=2",
        }
    }
}

/// Returns whether both exist and are the same directory.
fn same(one: &Path, other: &Path) -> bool {
    matches!((one.canonicalize(), other.canonicalize()), (Ok(one), Ok(other)) if one == other)
}

/// A name must be valid as the name of a tool for every client, of a file and of a package.
fn check(name: &str) -> Result<(), Failure> {
    const MAX_LENGTH: usize = 64;
    let is_plain = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit();
    let is_good = name.starts_with(is_plain)
        && name.chars().all(|c| is_plain(c) || c == '_' || c == '-')
        && name.len() <= MAX_LENGTH;
    if is_good {
        return Ok(());
    }
    let shown: String = name.chars().take(MAX_LENGTH + 1).collect();
    Err(Failure::usage(format!(
        "{shown:?} cannot be a name: lowercase letters, digits, _ and - are allowed, a letter or digit \
         comes first, and {MAX_LENGTH} characters are the most"
    )))
}

/// The files of something new.
#[derive(Debug)]
struct Skeleton {
    /// The files are below a directory of their own.
    is_package: bool,
    files: Vec<File>,
}

#[derive(Debug)]
struct File {
    /// Relative to the package, or to the directory of the tools.
    path: String,
    text: String,
    is_executable: bool,
}

impl File {
    fn program(path: impl Into<String>, text: impl Into<String>) -> Self {
        Self { path: path.into(), text: text.into(), is_executable: true }
    }

    fn plain(path: impl Into<String>, text: impl Into<String>) -> Self {
        Self { path: path.into(), text: text.into(), is_executable: false }
    }
}

macro_rules! template {
    ($file:literal) => {
        include_str!(concat!("templates/", $file))
    };
}

impl Skeleton {
    fn of(kind: Kind, name: &str, language: Language) -> Self {
        let mut skeleton = match kind {
            Kind::Tool => Self::tool(name, language),
            Kind::Capsule => Self::capsule(language),
        };
        for file in &mut skeleton.files {
            file.text = file.text.replace("__NAME__", name);
        }
        skeleton
    }

    fn tool(name: &str, language: Language) -> Self {
        let file = |end: &str, text| Self {
            is_package: false,
            files: vec![File::program(format!("{name}.{end}"), text)],
        };
        match language {
            Language::Python => file("py", template!("tool.py")),
            Language::Node => file("mjs", template!("tool.mjs")),
            Language::Bash => file("sh", template!("tool.sh")),
            Language::Rust => Self::package(language, template!("tool.yaml"), template!("tool.rs"), ""),
            Language::Go => Self::package(language, template!("tool.yaml"), template!("tool.go"), ""),
        }
    }

    fn capsule(language: Language) -> Self {
        let program = match language {
            Language::Python => template!("capsule.py"),
            Language::Node => template!("capsule.mjs"),
            Language::Bash => template!("capsule.sh"),
            Language::Rust => template!("capsule.rs"),
            Language::Go => template!("capsule.go"),
        };
        Self::package(language, template!("capsule.yaml"), program, "serde_json = \"1\"\n")
    }

    /// Returns a package of a manifest and a program; `crates` are the dependencies of a Rust one.
    fn package(language: Language, manifest: &str, program: &str, crates: &str) -> Self {
        // The entrypoint, the watched files, and the startup timeout, which includes building.
        let (files, watched, patience_ms) = match language {
            Language::Python => (vec![File::program("main.py", program)], "./", 5000),
            Language::Node => (vec![File::program("main.mjs", program)], "./", 5000),
            Language::Bash => (vec![File::program("main.sh", program)], "./", 5000),
            Language::Rust => (
                vec![
                    File::program("main", template!("build-rust.sh")),
                    File::plain("src/main.rs", program),
                    File::plain(
                        "Cargo.toml",
                        template!("cargo.toml").replace("__DEPENDENCIES__\n", crates),
                    ),
                    File::plain(".gitignore", template!("gitignore")),
                ],
                "src, Cargo.toml",
                120_000,
            ),
            Language::Go => (
                vec![
                    File::program("main", template!("build-go.sh")),
                    File::plain("main.go", program),
                    File::plain("go.mod", template!("go.mod.txt")),
                    File::plain(".gitignore", template!("gitignore")),
                ],
                "main.go, go.mod",
                120_000,
            ),
        };
        let language = language.to_possible_value();
        let manifest = manifest
            .replace("__ENTRYPOINT__", &files[0].path)
            .replace("__LANGUAGE__", language.as_ref().map_or("", |value| value.get_name()))
            .replace("__WATCH__", watched)
            .replace("__TIMEOUT__", &patience_ms.to_string());
        let mut all = vec![File::plain("tool.yaml", manifest)];
        all.extend(files);
        Self { is_package: true, files: all }
    }

    /// Writes everything, and returns the paths.
    fn write(&self, dir: &Path, name: &str) -> Result<Vec<PathBuf>, Failure> {
        if let Some(taken) = taken(dir, name) {
            let taken = taken.display();
            return Err(Failure::failed(format!("{taken} exists already; nothing was written")));
        }
        let root = if self.is_package { dir.join(name) } else { dir.to_owned() };
        self.files.iter().map(|file| write(root.join(&file.path), file)).collect()
    }
}

/// Returns the tool that already has this name: a file with any extension, or a directory.
fn taken(dir: &Path, name: &str) -> Option<PathBuf> {
    let entries = fs::read_dir(dir).ok()?;
    let paths = entries.filter_map(|entry| Some(entry.ok()?.path()));
    // With several, always the same one.
    paths.filter(|path| path.file_stem().is_some_and(|stem| stem == name)).min()
}

fn write(path: PathBuf, file: &File) -> Result<PathBuf, Failure> {
    match write_new(&path, &file.text, file.is_executable)? {
        true => Ok(path),
        false => Err(Failure::failed(format!("{} exists already", path.display()))),
    }
}

#[cfg(test)]
mod tests;
