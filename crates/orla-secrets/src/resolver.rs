//! References to secrets in texts: `${secret:NAME}`, `${file:PATH}` and `${command:LINE}`.

use std::cell::RefCell;
use std::collections::{BTreeSet, HashMap};
use std::fmt;
use std::io::Read;
use std::path::{Path, PathBuf};

use zeroize::Zeroizing;

use crate::command;
use crate::secret::Secret;
use crate::store::{SecretStore, StoreError, is_name};

/// The maximum size of a value in bytes.
const MAX_VALUE: u64 = 1 << 20;
/// The variable with the directory of the credentials that systemd gives a service (`LoadCredential=`).
const CREDENTIALS: &str = "CREDENTIALS_DIRECTORY";

/// A reference, without its `${` and `}`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Reference<'t> {
    /// A secret by its name.
    Secret(&'t str),
    /// The content of a file.
    File(&'t str),
    /// The output of a command line.
    Command(&'t str),
}

impl<'t> Reference<'t> {
    /// Parses the text between `${` and `}`; `None` if it is another expansion.
    pub fn parse(inside: &'t str) -> Option<Self> {
        let (kind, rest) = inside.split_once(':')?;
        match kind {
            "secret" => Some(Self::Secret(rest)),
            "file" => Some(Self::File(rest)),
            "command" => Some(Self::Command(rest)),
            _ => None,
        }
    }
}

impl fmt::Display for Reference<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Secret(name) => write!(f, "secret:{name}"),
            Self::File(path) => write!(f, "file:{path}"),
            Self::Command(line) => write!(f, "command:{line}"),
        }
    }
}

/// The origin of a text with a reference. It decides which references are allowed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Source<'p> {
    /// The user's own configuration, in this directory.
    Configuration(&'p Path),
    /// The declaration of a package or a project, in this directory. It may name files, and no commands.
    Package(&'p Path),
    /// The declaration of a confined package. It may name only the package's own files, because other
    /// files would circumvent its confinement.
    ConfinedPackage(&'p Path),
}

/// The reason why a reference has no value. No message repeats a value.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ReferenceError {
    /// No secret has this name.
    #[error("the secret {name} is not set (set it with `orla secret set {name}`)")]
    NotSet {
        /// The name.
        name: String,
    },
    /// No secret can have this name.
    #[error("`{name}` is not a valid name of a secret: use letters, digits, `_`, `-`, `.` and `/`")]
    Name {
        /// The name.
        name: String,
    },
    /// There is no store, because there is no `HOME`.
    #[error("there is no secret store, because HOME is not set")]
    NoStore,
    /// The store gave no answer.
    #[error(transparent)]
    Store(#[from] StoreError),
    /// A file gave no value.
    #[error("{} {problem}", .path.display())]
    File {
        /// The file.
        path: PathBuf,
        /// The reason.
        problem: String,
    },
    /// A command gave no value.
    #[error("the command `{line}` {problem}")]
    Command {
        /// The command line.
        line: String,
        /// The reason.
        problem: String,
    },
    /// A package uses a reference that only the user's own configuration may have.
    #[error("{0}")]
    Forbidden(&'static str),
}

/// Resolves references. Each is looked up once in the resolver's lifetime, so that one configuration
/// sees one value. A new resolver reads the values again.
pub struct Resolver {
    store: Option<SecretStore>,
    /// The directory of systemd's credentials for this service. They take precedence over the store.
    credentials: Option<PathBuf>,
    /// The values by source and reference.
    known: RefCell<HashMap<String, Secret>>,
    resolved: RefCell<Vec<Secret>>,
    files: RefCell<BTreeSet<PathBuf>>,
}

impl Resolver {
    /// Creates a resolver of the user's store, and of systemd's credentials if the service has some.
    pub fn of_user() -> Self {
        let credentials = std::env::var_os(CREDENTIALS).filter(|directory| !directory.is_empty());
        Self::new(SecretStore::of_user(), credentials.map(PathBuf::from))
    }

    /// Creates a resolver of a store and of a directory with a file for each secret, which takes
    /// precedence over the store.
    pub fn new(store: Option<SecretStore>, credentials: Option<PathBuf>) -> Self {
        Self {
            store,
            credentials,
            known: RefCell::default(),
            resolved: RefCell::default(),
            files: RefCell::default(),
        }
    }

    /// Returns the value of a reference.
    ///
    /// # Errors
    /// It has none, or `source` may not have such a reference.
    pub fn resolve(
        &self,
        reference: Reference<'_>,
        source: Source<'_>,
    ) -> Result<Secret, ReferenceError> {
        // A value that one source may not name is cached separately.
        let key = format!("{source:?} {reference}");
        let known = self.known.borrow().get(&key).cloned();
        let value = match known {
            Some(value) => value,
            None => self.look_up(reference, source)?,
        };
        self.known.borrow_mut().insert(key, value.clone());
        self.resolved.borrow_mut().push(value.clone());
        Ok(value)
    }

    /// Returns the number of resolved values. [`resolved`](Self::resolved) since that number returns
    /// the later ones.
    pub fn count(&self) -> usize {
        self.resolved.borrow().len()
    }

    /// Returns the resolved values, without the first `since`.
    pub fn resolved(&self, since: usize) -> Vec<Secret> {
        self.resolved.borrow().get(since..).unwrap_or_default().to_vec()
    }

    /// Returns the files that values came from. A change of a file is a change of a value.
    pub fn files(&self) -> Vec<PathBuf> {
        self.files.borrow().iter().cloned().collect()
    }

    fn look_up(&self, reference: Reference<'_>, source: Source<'_>) -> Result<Secret, ReferenceError> {
        match (reference, source) {
            (Reference::Secret(name), _) => self.secret(name),
            (Reference::File(path), Source::Configuration(directory) | Source::Package(directory)) => {
                self.file(&directory.join(home(path).unwrap_or_else(|| path.into())))
            }
            (Reference::File(path), Source::ConfinedPackage(directory)) => {
                let path = directory.join(path);
                let inside = |path: &Path| {
                    Some(path.canonicalize().ok()?.starts_with(directory.canonicalize().ok()?))
                };
                if path.exists() && inside(&path) != Some(true) {
                    return Err(ReferenceError::Forbidden(
                        "a confined package may name only its own files in `${file:PATH}`",
                    ));
                }
                self.file(&path)
            }
            (Reference::Command(line), Source::Configuration(directory)) => {
                let failed =
                    |problem: String| ReferenceError::Command { line: line.to_owned(), problem };
                let bytes = command::output(line, directory, MAX_VALUE).map_err(failed)?;
                text(bytes).map_err(|problem| failed(format!("gave a value that {problem}")))
            }
            (Reference::Command(_), Source::Package(_) | Source::ConfinedPackage(_)) => {
                Err(ReferenceError::Forbidden(
                    "`${command:LINE}` may stand only in the user's own configuration, not in the files of a package or a project",
                ))
            }
        }
    }

    fn secret(&self, name: &str) -> Result<Secret, ReferenceError> {
        if !is_name(name) {
            return Err(ReferenceError::Name { name: name.to_owned() });
        }
        // A credential's name is that of a file.
        let credential =
            self.credentials.as_ref().filter(|_| !name.contains('/') && !name.starts_with('.'));
        if let Some(path) = credential.map(|directory| directory.join(name))
            && path.exists()
        {
            return self.file(&path);
        }
        let store = self.store.as_ref().ok_or(ReferenceError::NoStore)?;
        self.files.borrow_mut().insert(store.path());
        store.get(name)?.ok_or_else(|| ReferenceError::NotSet { name: name.to_owned() })
    }

    fn file(&self, path: &Path) -> Result<Secret, ReferenceError> {
        self.files.borrow_mut().insert(path.to_owned());
        let failed = |problem: String| ReferenceError::File { path: path.to_owned(), problem };
        let unread = |err: std::io::Error| failed(format!("cannot be read: {}", reason(&err)));
        // The file is examined before it is opened, because opening a FIFO would wait for its writer.
        if !std::fs::metadata(path).map_err(unread)?.is_file() {
            return Err(failed("is not a regular file".to_owned()));
        }
        let mut bytes = Zeroizing::new(Vec::new());
        let file = std::fs::File::open(path).map_err(unread)?;
        file.take(MAX_VALUE + 1).read_to_end(&mut bytes).map_err(unread)?;
        if bytes.len() as u64 > MAX_VALUE {
            return Err(failed(format!("is larger than {MAX_VALUE} bytes")));
        }
        text(bytes).map_err(|problem| failed(format!("has a value that {problem}")))
    }
}

/// Returns the system's error message, without its number.
fn reason(err: &std::io::Error) -> String {
    let text = err.to_string();
    text.split(" (os error").next().unwrap_or(&text).to_owned()
}

/// Returns the path below the home directory that `~/…` names.
fn home(path: &str) -> Option<PathBuf> {
    let rest = path.strip_prefix("~/")?;
    Some(PathBuf::from(std::env::var_os("HOME")?).join(rest))
}

/// Returns a value as text, without the end of its line.
fn text(mut bytes: Zeroizing<Vec<u8>>) -> Result<Secret, &'static str> {
    let value = String::from_utf8(std::mem::take(&mut *bytes)).map_err(|_| "is not UTF-8 text")?;
    if value.contains('\0') {
        return Err("has a NUL character");
    }
    Ok(Secret::from_line(value))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs;

    fn value(resolver: &Resolver, text: &str, source: Source<'_>) -> Result<String, ReferenceError> {
        let reference = Reference::parse(text).unwrap();
        resolver.resolve(reference, source).map(|secret| secret.expose().to_owned())
    }

    #[test]
    fn each_kind_of_reference_has_its_value() {
        let dir = tempfile::tempdir().unwrap();
        let credentials = dir.path().join("credentials");
        fs::create_dir(&credentials).unwrap();
        fs::write(credentials.join("both"), "of systemd\n").unwrap();
        fs::write(dir.path().join("file"), "of a file\r\n").unwrap();
        let store = SecretStore::new(dir.path().join("store"));
        for (name, value) in [("both", "of the store"), ("api/key", "of the store")] {
            store.set(name, value).unwrap();
        }
        let resolver = Resolver::new(Some(store), Some(credentials));
        let source = Source::Configuration(dir.path());
        for (reference, expected) in [
            ("secret:both", "of systemd"),
            ("secret:api/key", "of the store"),
            ("file:file", "of a file"),
            ("command:cat file", "of a file"),
        ] {
            assert_eq!(value(&resolver, reference, source).unwrap(), expected, "{reference}");
        }
        assert_eq!((resolver.count(), resolver.resolved(2).len()), (4, 2));
        for (reference, problem) in [
            ("secret:none", "orla secret set none"),
            ("secret:a b", "not a valid name of a secret"),
            ("file:none", "none cannot be read: No such file or directory"),
            ("file:.", "not a regular file"),
            ("command:exit 1", "failed"),
        ] {
            let refused = value(&resolver, reference, source).unwrap_err().to_string();
            assert!(refused.contains(problem), "{reference}: {refused}");
            assert!(!refused.contains("os error"), "{reference}: {refused}");
        }
        assert_eq!(Reference::parse("HOME:-x"), None);
    }

    #[test]
    fn a_package_names_no_commands_and_a_confined_one_only_its_own_files() {
        let dir = tempfile::tempdir().unwrap();
        let package = dir.path().join("package");
        fs::create_dir(&package).unwrap();
        fs::write(dir.path().join("outside"), "x").unwrap();
        fs::write(package.join("inside"), "own").unwrap();
        std::os::unix::fs::symlink(dir.path().join("outside"), package.join("link")).unwrap();
        let resolver = Resolver::new(None, None);
        let source = Source::ConfinedPackage(&package);
        assert_eq!(value(&resolver, "file:inside", source).unwrap(), "own");
        for reference in ["file:../outside", "file:link", "file:/etc/passwd", "command:echo x"] {
            let refused = value(&resolver, reference, source);
            assert!(matches!(refused, Err(ReferenceError::Forbidden(_))), "{reference}");
        }
        let free = Source::Package(&package);
        assert_eq!(value(&resolver, "file:../outside", free).unwrap(), "x");
        assert!(value(&resolver, "command:echo x", free).is_err());
        // The package may not use a reference that the configuration may use.
        let own = Source::Configuration(&package);
        assert_eq!(value(&resolver, "command:echo x", own).unwrap(), "x");
        assert!(value(&resolver, "command:echo x", source).is_err());
    }

    #[test]
    fn a_value_is_looked_up_once() {
        let dir = tempfile::tempdir().unwrap();
        let resolver = Resolver::new(None, None);
        let source = Source::Configuration(dir.path());
        let line = "command:echo run >> runs; echo value";
        for _ in 0..3 {
            assert_eq!(value(&resolver, line, source).unwrap(), "value");
        }
        assert_eq!(fs::read_to_string(dir.path().join("runs")).unwrap(), "run\n");
    }
}
