//! The complete permissions and limits of a declaration, in one canonical form.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write as _;
use std::path::{Path, PathBuf};

use sha2::{Digest as _, Sha256};

use crate::limits::Limits;
use crate::word::{Preset, Word};

/// Resolves the words of a declaration on this machine.
#[derive(Clone, Copy)]
pub struct Places<'a> {
    /// The base of relative paths: the directory of the declaring file.
    pub base: &'a Path,
    /// The directory that `~` refers to.
    pub home: Option<&'a Path>,
    /// Looks up the variable of `${NAME}`.
    pub variable: &'a dyn Fn(&str) -> Option<String>,
    /// Looks up a program on `PATH` by its name.
    pub program: &'a dyn Fn(&str) -> Option<PathBuf>,
}

impl std::fmt::Debug for Places<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Places")
            .field("base", &self.base)
            .field("home", &self.home)
            .finish_non_exhaustive()
    }
}

/// The network access of a process.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Network {
    /// Whether the whole network is allowed.
    pub all: bool,
    /// Whether TCP to the loopback addresses of the host is allowed.
    pub loopback: bool,
    /// Hosts to which TCP is allowed, on any port if none is given.
    pub hosts: BTreeSet<(String, Option<u16>)>,
}

impl Network {
    /// Returns the words for it.
    pub fn words(&self) -> impl Iterator<Item = Word> {
        let all = self.all.then_some(Word::Net).into_iter();
        let hosts = self.hosts.iter().map(|(name, port)| Word::Host { name: name.clone(), port: *port });
        all.chain(self.loopback.then_some(Word::Loopback)).chain(hosts)
    }
}

/// What a process may do besides the base that all confined processes share.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Profile {
    /// Readable files and directories.
    pub read: BTreeSet<PathBuf>,
    /// Readable and writable files and directories.
    pub write: BTreeSet<PathBuf>,
    /// Files that it may read and run, and directories in which it may run readable programs.
    pub execute: BTreeSet<PathBuf>,
    /// Directories of downloaded programs, which it may read, change and run.
    pub caches: BTreeMap<PathBuf, Preset>,
    /// Caches that are allowed only if they exist.
    pub optional: BTreeSet<PathBuf>,
    /// Variables that name these directories, with their values.
    pub variables: BTreeMap<String, PathBuf>,
    /// The network.
    pub network: Network,
    /// UNIX sockets that it may connect to.
    pub unix: BTreeSet<PathBuf>,
    /// Patterns of the server's variables that the process gets besides the usual ones.
    pub env: BTreeSet<String>,
    /// The resource limits.
    pub limits: Limits,
}

impl Profile {
    /// Returns the profile of a declaration.
    ///
    /// # Errors
    /// Why a word or a path has no meaning, a sentence for each.
    pub fn of(words: &[String], limits: &Limits, places: &Places<'_>) -> Result<Self, Vec<String>> {
        let mut profile = Self { limits: limits.clone(), ..Self::default() };
        let mut problems = Vec::new();
        for text in words {
            if let Err(problem) = text.parse().and_then(|word| profile.add(&word, places)) {
                problems.push(problem);
            }
        }
        if problems.is_empty() { Ok(profile) } else { Err(problems) }
    }

    fn add(&mut self, word: &Word, places: &Places<'_>) -> Result<(), String> {
        let path = |text: &str| path(text, places).map_err(|problem| format!("{word}: {problem}"));
        match word {
            Word::Read(text) => drop(self.read.insert(path(text)?)),
            Word::Write(text) => drop(self.write.insert(path(text)?)),
            Word::Unix(text) => drop(self.unix.insert(path(text)?)),
            Word::Exec(text) => {
                let file = match text.contains('/') || text.starts_with('~') {
                    true => path(text)?,
                    false => {
                        (places.program)(text).ok_or_else(|| format!("{word}: {text} is not in PATH"))?
                    }
                };
                self.execute.insert(file);
            }
            Word::ExecAny => drop(self.execute.insert(PathBuf::from("/"))),
            Word::Net => self.network.all = true,
            Word::Loopback => self.network.loopback = true,
            Word::Host { name, port } => drop(self.network.hosts.insert((name.clone(), *port))),
            Word::Env(name) => drop(self.env.insert(name.clone())),
            Word::Preset(preset) => {
                for text in preset.words() {
                    self.add(&text.parse()?, places)?;
                }
                for cache in preset.caches() {
                    let place = path(cache.path)?;
                    let variables = cache.variables.iter();
                    self.variables
                        .extend(variables.map(|(name, below)| ((*name).to_owned(), place.join(below))));
                    match cache.is_required {
                        true => drop(self.caches.insert(place, *preset)),
                        false => drop(self.optional.insert(place)),
                    }
                }
            }
            Word::Other => {}
        }
        Ok(())
    }

    /// Returns a hash that identifies the profile: 16 hexadecimal digits.
    pub fn hash(&self) -> String {
        let mut text = String::new();
        let lists = [
            ("read", &self.read),
            ("write", &self.write),
            ("execute", &self.execute),
            ("optional", &self.optional),
            ("unix", &self.unix),
        ];
        for (name, paths) in lists {
            for path in paths {
                let _ = writeln!(text, "{name} {path:?}");
            }
        }
        let _ = writeln!(
            text,
            "caches {:?} net {:?} env {:?} limits {:?}",
            self.caches,
            self.network,
            self.env,
            self.limits.enforced()
        );
        let digest = Sha256::digest(text);
        hex::encode(&digest[..8])
    }
}

/// Resolves a path.
fn path(text: &str, places: &Places<'_>) -> Result<PathBuf, String> {
    let mut expanded = String::with_capacity(text.len());
    let mut rest = text;
    while let Some((before, after)) = rest.split_once("${") {
        let (name, after) = after.split_once('}').ok_or("`${` without `}`")?;
        expanded.push_str(before);
        let value = (places.variable)(name).filter(|value| !value.is_empty());
        expanded.push_str(&value.ok_or_else(|| format!("the variable {name} is not set"))?);
        rest = after;
    }
    expanded.push_str(rest);
    if let Some(below) =
        expanded.strip_prefix('~').filter(|below| below.is_empty() || below.starts_with('/'))
    {
        let home = places.home.ok_or("HOME is not set, so `~` means nothing")?;
        return Ok(home.join(below.trim_start_matches('/')));
    }
    Ok(places.base.join(expanded))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn profile(words: &[&str]) -> Result<Profile, Vec<String>> {
        let words: Vec<String> = words.iter().map(|word| (*word).to_owned()).collect();
        let places = Places {
            base: Path::new("/srv/tools"),
            home: Some(Path::new("/home/ada")),
            variable: &|name| (name == "DATA").then(|| "/data".to_owned()),
            program: &|name| (name == "git").then(|| "/usr/bin/git".into()),
        };
        Profile::of(&words, &Limits::default(), &places)
    }

    #[test]
    fn paths_are_of_the_declaring_file() {
        let words = [
            "fs:read:../data",
            "fs:write:~/x",
            "fs:read:${DATA}/y",
            "exec:git",
            "exec:./run",
            "db:prod",
        ];
        let profile = profile(&words).unwrap();
        let paths = |paths: &BTreeSet<PathBuf>| {
            paths.iter().map(|path| path.display().to_string()).collect::<Vec<_>>().join(" ")
        };
        assert_eq!(paths(&profile.read), "/data/y /srv/tools/../data");
        assert_eq!(paths(&profile.write), "/home/ada/x");
        assert_eq!(paths(&profile.execute), "/srv/tools/./run /usr/bin/git");
    }

    #[test]
    fn a_preset_names_its_caches_to_the_program() {
        let uvx = profile(&["preset:uvx"]).unwrap();
        assert!(uvx.network.all && uvx.execute.is_empty());
        assert_eq!(uvx.caches.keys().collect::<Vec<_>>(), [Path::new("/home/ada/.cache/uv")]);
        assert_eq!(uvx.optional.iter().collect::<Vec<_>>(), [Path::new("/home/ada/.local/share/uv")]);
        let python = &uvx.variables["UV_PYTHON_INSTALL_DIR"];
        assert_eq!(python, Path::new("/home/ada/.local/share/uv/python"));
    }

    #[test]
    fn meaningless_permissions_are_errors() {
        let problems = profile(&["fs:read:${NONE}/x", "exec:no-such", "fs:raed:/x"]).unwrap_err();
        assert_eq!(problems.len(), 3);
        assert_eq!(problems[0], "fs:read:${NONE}/x: the variable NONE is not set");
        assert_eq!(problems[1], "exec:no-such: no-such is not in PATH");
    }

    #[test]
    fn the_hash_tells_profiles_apart_and_not_the_order_of_their_words() {
        let hash = |words: &[&str]| profile(words).unwrap().hash();
        assert_eq!(hash(&["net", "fs:read:/a"]), hash(&["fs:read:/a", "net", "db:prod"]));
        let all =
            [hash(&[]), hash(&["net"]), hash(&["fs:read:/a"]), hash(&["fs:write:/a"]), hash(&["net:a"])];
        assert_eq!(all.iter().collect::<BTreeSet<_>>().len(), all.len());
    }
}
