//! The store of secrets.

use std::fs;
use std::io;
use std::os::unix::fs::DirBuilderExt;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};

use crate::key::{
    Keyring, MAX_FILE, NoKeyring, Protection, SystemKeyring, open_lock, read_private, write_private,
};
use crate::sealed::{Broken, Key, Sealed, Secrets};
use crate::secret::Secret;

/// The names of a store's files, without their extensions.
const SECRETS: &str = "secrets";
const TOKENS: &str = "tokens";
/// The maximum length of a secret's name.
const MAX_NAME: usize = 128;

/// Secrets by name, encrypted at rest in `secrets.json` of a directory. Several processes may use one
/// store concurrently. Cloning shares it.
///
/// The key is in the keyring of the operating system if there is one when the store is created, and
/// otherwise in `secrets.key` beside it. Both files have the mode 0600.
///
/// The store of tokens is a second store beside it, in `tokens.json` with a separate key. Refreshing a
/// token changes no file that contains users' secrets.
#[derive(Clone)]
pub struct SecretStore {
    directory: PathBuf,
    /// The names of its files, without their extensions.
    stem: &'static str,
    keyring: Arc<dyn Keyring>,
    /// The key that last opened the store.
    key: Arc<Mutex<Option<Key>>>,
}

/// The reason why the store gave no answer. No message repeats a value.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum StoreError {
    /// A file cannot be read or written.
    #[error("secret store: {}: {source}", .path.display())]
    File {
        /// The file.
        path: PathBuf,
        /// The system's reason.
        source: io::Error,
    },
    /// The keyring of the operating system has the key and does not release it.
    #[error("secret store: the keyring of this system cannot be used: {reason}")]
    Keyring {
        /// The keyring's reason.
        reason: String,
    },
    /// The store exists and its key does not.
    #[error(
        "secret store: {}: its key is missing from {place}; restore it, or remove the file and set the secrets or sign in again",
        .path.display()
    )]
    KeyMissing {
        /// The store.
        path: PathBuf,
        /// The location of its key.
        place: String,
    },
    /// The change would exceed the maximum size of a store.
    #[error(
        "secret store: {}: the change would make it larger than {MAX_FILE} bytes; remove unused secrets",
        .path.display()
    )]
    Full {
        /// The store.
        path: PathBuf,
    },
    /// The file is damaged, of a later version, or sealed with another key.
    #[error("secret store: {}: {problem}", .path.display())]
    Unreadable {
        /// The store.
        path: PathBuf,
        /// The problem.
        problem: String,
    },
}

/// Returns whether users may give a secret this name: 1 to 128 letters, digits, `_`, `-`, `.` and `/`.
pub fn is_name(name: &str) -> bool {
    let fits = |byte: u8| byte.is_ascii_alphanumeric() || matches!(byte, b'_' | b'-' | b'.' | b'/');
    (1..=MAX_NAME).contains(&name.len()) && name.bytes().all(fits)
}

impl SecretStore {
    /// Creates the store in a directory. Nothing is read yet, and no file is created before the first
    /// secret is set.
    pub fn new(directory: impl Into<PathBuf>) -> Self {
        Self::with_keyring(directory.into(), SECRETS, Arc::new(SystemKeyring))
    }

    /// Returns the store of the user: in `~/.orla`. `None` without `HOME`.
    pub fn of_user() -> Option<Self> {
        user_directory().map(Self::new)
    }

    /// Returns the user's store of tokens: in `~/.orla` too. `None` without `HOME`.
    pub fn tokens_of_user() -> Option<Self> {
        let directory = user_directory()?;
        Some(Self::with_keyring(directory, TOKENS, Arc::new(SystemKeyring)))
    }

    fn with_keyring(directory: PathBuf, stem: &'static str, keyring: Arc<dyn Keyring>) -> Self {
        Self { directory, stem, keyring, key: Arc::default() }
    }

    /// Returns the value of a secret.
    ///
    /// # Errors
    /// The store exists and cannot be read.
    pub fn get(&self, name: &str) -> Result<Option<Secret>, StoreError> {
        Ok(self.read()?.and_then(|(mut secrets, _)| secrets.remove(name)))
    }

    /// Returns the names of all secrets, in their order.
    ///
    /// # Errors
    /// The store exists and cannot be read.
    pub fn names(&self) -> Result<Vec<String>, StoreError> {
        Ok(self.read()?.map(|(secrets, _)| secrets.into_keys().collect()).unwrap_or_default())
    }

    /// Sets a secret. The change is on the disk when this function returns.
    ///
    /// # Errors
    /// The store cannot be read, made or written.
    pub fn set(&self, name: &str, value: impl Into<Secret>) -> Result<Protection, StoreError> {
        let value = value.into();
        self.change(|secrets| secrets.insert(name.to_owned(), value)).map(|(_, place)| place)
    }

    /// Removes a secret, and returns whether it existed.
    ///
    /// # Errors
    /// The store cannot be read or written.
    pub fn remove(&self, name: &str) -> Result<bool, StoreError> {
        if self.get(name)?.is_none() {
            return Ok(false);
        }
        self.change(|secrets| secrets.remove(name).is_some()).map(|(was_there, _)| was_there)
    }

    /// Replaces the value of a secret by the result of `change`; `None` removes it. No other change of
    /// any process happens in between, so `change` must be short.
    ///
    /// # Errors
    /// The store cannot be read, made or written.
    pub fn update(
        &self,
        name: &str,
        change: impl FnOnce(Option<Secret>) -> Option<Secret>,
    ) -> Result<(), StoreError> {
        let changed = self.change(|secrets| {
            if let Some(value) = change(secrets.remove(name)) {
                secrets.insert(name.to_owned(), value);
            }
        });
        changed.map(drop)
    }

    /// Returns the protection of the store; `None` if it does not exist.
    ///
    /// # Errors
    /// The store exists and cannot be read.
    pub fn protection(&self) -> Result<Option<Protection>, StoreError> {
        Ok(self.sealed()?.map(|sealed| sealed.key))
    }

    /// Returns the file of the store.
    pub fn path(&self) -> PathBuf {
        self.file("json")
    }

    /// Returns the file of the key, if the key is in a file.
    pub fn key_path(&self) -> PathBuf {
        self.file("key")
    }

    fn file(&self, extension: &str) -> PathBuf {
        self.directory.join(self.stem).with_extension(extension)
    }

    fn sealed(&self) -> Result<Option<Sealed>, StoreError> {
        let path = self.path();
        let Some(text) = read_private(&path).map_err(|source| file(&path, source))? else {
            return Ok(None);
        };
        Sealed::from_text(&text).map(Some).map_err(|broken| self.unreadable(&broken))
    }

    /// Returns the secrets, and the location of their key.
    fn read(&self) -> Result<Option<(Secrets, Protection)>, StoreError> {
        let Some(sealed) = self.sealed()? else { return Ok(None) };
        let known = self.key.lock().unwrap_or_else(PoisonError::into_inner).clone();
        // Another process may have created a new store since.
        if let Some(secrets) = known.and_then(|key| sealed.open(&key).ok()) {
            return Ok(Some((secrets, sealed.key)));
        }
        let key = self.key(sealed.key)?.ok_or_else(|| self.key_missing(sealed.key))?;
        let secrets = sealed.open(&key).map_err(|broken| self.unreadable(&broken))?;
        self.remember(&key);
        Ok(Some((secrets, sealed.key)))
    }

    /// Changes the secrets. Changes of several processes follow one another.
    fn change<T>(&self, change: impl FnOnce(&mut Secrets) -> T) -> Result<(T, Protection), StoreError> {
        let mut builder = fs::DirBuilder::new();
        let made = builder.recursive(true).mode(0o700).create(&self.directory);
        made.map_err(|source| file(&self.directory, source))?;
        let path = self.file("lock");
        // The lock is released when the file is closed.
        let lock = open_lock(&path).map_err(|source| file(&path, source))?;
        lock.lock().map_err(|source| file(&path, source))?;
        let (mut secrets, place) = match self.read()? {
            Some(known) => known,
            None => (Secrets::new(), self.new_key()?),
        };
        let key = self.key.lock().unwrap_or_else(PoisonError::into_inner).clone();
        let key = key.ok_or_else(|| self.key_missing(place))?;
        let result = change(&mut secrets);
        let sealed = Sealed::seal(&secrets, &key, place).and_then(|sealed| sealed.to_text());
        let text = sealed.map_err(|broken| self.unreadable(&broken))?;
        let path = self.path();
        if text.len() as u64 > MAX_FILE {
            return Err(StoreError::Full { path });
        }
        write_private(&path, text.as_bytes()).map_err(|source| file(&path, source))?;
        Ok((result, place))
    }

    /// Returns the key from its location.
    fn key(&self, place: Protection) -> Result<Option<Key>, StoreError> {
        let text = match place {
            Protection::Keyring => {
                let text = self.keyring.get(&self.account()).map_err(no_keyring)?;
                text.map(|text| text.as_bytes().to_vec())
            }
            Protection::KeyFile => {
                let path = self.key_path();
                let text = read_private(&path).map_err(|source| file(&path, source))?;
                text.map(|text| text.to_vec())
            }
        };
        let text = text.map(zeroize::Zeroizing::new);
        Ok(text.and_then(|text| Key::from_text(std::str::from_utf8(&text).ok()?)))
    }

    /// Returns the key for a new store: in the keyring if there is one, else in a file. An existing key
    /// is reused.
    fn new_key(&self) -> Result<Protection, StoreError> {
        let (place, known) = match self.keyring.get(&self.account()) {
            Ok(text) => (Protection::Keyring, text.and_then(|text| Key::from_text(&text))),
            Err(NoKeyring::Absent) => (Protection::KeyFile, self.key(Protection::KeyFile)?),
            Err(refused) => return Err(no_keyring(refused)),
        };
        if let Some(key) = known {
            self.remember(&key);
            return Ok(place);
        }
        let key = Key::random().map_err(|broken| self.unreadable(&broken))?;
        match place {
            Protection::Keyring => {
                self.keyring.set(&self.account(), &key.to_text()).map_err(no_keyring)?;
            }
            Protection::KeyFile => {
                let path = self.key_path();
                write_private(&path, key.to_text().as_bytes()).map_err(|source| file(&path, source))?;
            }
        }
        self.remember(&key);
        Ok(place)
    }

    /// Returns the name of the key in the keyring.
    fn account(&self) -> String {
        let directory = fs::canonicalize(&self.directory).unwrap_or_else(|_| self.directory.clone());
        format!("{} in {}", self.stem, directory.display())
    }

    fn remember(&self, key: &Key) {
        *self.key.lock().unwrap_or_else(PoisonError::into_inner) = Some(key.clone());
    }

    fn key_missing(&self, place: Protection) -> StoreError {
        let place = match place {
            Protection::Keyring => "the keyring of this system".to_owned(),
            Protection::KeyFile => self.key_path().display().to_string(),
        };
        StoreError::KeyMissing { path: self.path(), place }
    }

    fn unreadable(&self, broken: &Broken) -> StoreError {
        let problem = match broken {
            Broken::Form => {
                "it is damaged; restore it, or remove it and set the secrets or sign in again".to_owned()
            }
            Broken::Version(version) => {
                format!("it has the version {version}; use a newer version of orla")
            }
            Broken::Key => {
                "its key does not open it: the file was changed, or the key is of another store"
                    .to_owned()
            }
            Broken::Randomness => "the system gave no random numbers".to_owned(),
        };
        StoreError::Unreadable { path: self.path(), problem }
    }
}

/// Returns the directory of the user's stores.
fn user_directory() -> Option<PathBuf> {
    let home = std::env::var_os("HOME").filter(|home| !home.is_empty())?;
    Some(Path::new(&home).join(".orla"))
}

fn file(path: &Path, source: io::Error) -> StoreError {
    StoreError::File { path: path.to_owned(), source }
}

fn no_keyring(why: NoKeyring) -> StoreError {
    let reason = match why {
        NoKeyring::Absent => {
            "there is none for this process; run it in the session that set the secrets".to_owned()
        }
        NoKeyring::Refused(reason) => reason,
    };
    StoreError::Keyring { reason }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::HashMap;
    use std::os::unix::fs::PermissionsExt;
    use zeroize::Zeroizing;

    /// A keyring in memory; `None` is one that is absent.
    struct Fake(Option<Mutex<HashMap<String, String>>>);

    impl Keyring for Fake {
        fn get(&self, account: &str) -> Result<Option<Zeroizing<String>>, NoKeyring> {
            let kept = self.0.as_ref().ok_or(NoKeyring::Absent)?.lock().unwrap();
            Ok(kept.get(account).cloned().map(Zeroizing::new))
        }

        fn set(&self, account: &str, text: &str) -> Result<(), NoKeyring> {
            let mut kept = self.0.as_ref().ok_or(NoKeyring::Absent)?.lock().unwrap();
            kept.insert(account.to_owned(), text.to_owned());
            Ok(())
        }
    }

    fn without_keyring(directory: &Path) -> SecretStore {
        SecretStore::with_keyring(directory.to_owned(), SECRETS, Arc::new(Fake(None)))
    }

    fn value(store: &SecretStore, name: &str) -> Option<String> {
        store.get(name).unwrap().map(|secret| secret.expose().to_owned())
    }

    #[test]
    fn secrets_are_set_read_and_removed_and_the_files_are_private() {
        let dir = tempfile::tempdir().unwrap();
        let home = dir.path().join("home");
        let store = without_keyring(&home);
        assert_eq!((value(&store, "a"), store.names().unwrap().len()), (None, 0));
        assert!(!home.exists(), "reading makes nothing");
        assert_eq!(store.set("a", "the value of a").unwrap(), Protection::KeyFile);
        store.set("b", "").unwrap();
        let other = without_keyring(&home);
        assert_eq!(value(&other, "a").as_deref(), Some("the value of a"));
        assert_eq!(other.names().unwrap(), ["a", "b"]);
        assert!(other.remove("b").unwrap() && !other.remove("b").unwrap());
        assert_eq!(value(&store, "b"), None);
        store.update("a", |old| Some(Secret::from(format!("{}!", old.unwrap().expose())))).unwrap();
        assert_eq!(value(&other, "a").as_deref(), Some("the value of a!"));
        for entry in fs::read_dir(&home).unwrap() {
            let path = entry.unwrap().path();
            assert_eq!(fs::metadata(&path).unwrap().permissions().mode() & 0o777, 0o600, "{path:?}");
            assert!(!String::from_utf8_lossy(&fs::read(&path).unwrap()).contains("value of a"));
        }
    }

    #[test]
    fn the_key_is_stored_only_in_the_keyring_if_there_is_one() {
        let dir = tempfile::tempdir().unwrap();
        let keyring = Arc::new(Fake(Some(Mutex::default())));
        let open =
            |stem| SecretStore::with_keyring(dir.path().to_owned(), stem, Arc::clone(&keyring) as _);
        let store = open(SECRETS);
        assert_eq!(store.set("a", "1").unwrap(), Protection::Keyring);
        assert!(!store.key_path().exists());
        assert_eq!(value(&open(SECRETS), "a").as_deref(), Some("1"));
        // Tokens are stored separately.
        let tokens = open(TOKENS);
        tokens.set("a", "2").unwrap();
        assert_eq!(keyring.0.as_ref().unwrap().lock().unwrap().len(), 2);
        assert_eq!((value(&tokens, "a"), value(&store, "a")), (Some("2".into()), Some("1".into())));
        assert_eq!(tokens.path(), dir.path().join("tokens.json"));
        // Without the keyring the store stays closed: no second store is created beside it.
        let without = without_keyring(dir.path());
        assert!(matches!(without.get("a"), Err(StoreError::Keyring { .. })));
        assert!(matches!(without.set("a", "2"), Err(StoreError::Keyring { .. })));
        assert!(!store.key_path().exists());
    }

    #[test]
    fn a_store_that_is_readable_by_others_or_lacks_its_key_is_refused() {
        let dir = tempfile::tempdir().unwrap();
        let store = without_keyring(dir.path());
        store.set("a", "1").unwrap();
        for path in [store.path(), store.key_path()] {
            fs::set_permissions(&path, fs::Permissions::from_mode(0o640)).unwrap();
            let refused = without_keyring(dir.path()).get("a").unwrap_err().to_string();
            assert!(refused.contains("chmod 600"), "{refused}");
            fs::set_permissions(&path, fs::Permissions::from_mode(0o600)).unwrap();
        }
        fs::remove_file(store.key_path()).unwrap();
        let store = without_keyring(dir.path());
        assert!(matches!(store.get("a"), Err(StoreError::KeyMissing { .. })));
        assert!(matches!(store.set("b", "1"), Err(StoreError::KeyMissing { .. })));
    }

    #[test]
    fn changes_of_several_handles_at_once_are_all_kept() {
        let dir = tempfile::tempdir().unwrap();
        std::thread::scope(|scope| {
            for writer in 0..4 {
                let store = without_keyring(dir.path());
                scope.spawn(move || {
                    for number in 0..5 {
                        store.set(&format!("{writer}.{number}"), number.to_string()).unwrap();
                    }
                });
            }
        });
        assert_eq!(without_keyring(dir.path()).names().unwrap().len(), 20);
    }

    #[test]
    fn a_change_that_could_not_be_read_again_is_refused() {
        let dir = tempfile::tempdir().unwrap();
        let store = without_keyring(dir.path());
        store.set("a", "1").unwrap();
        let large = "x".repeat(usize::try_from(MAX_FILE).unwrap());
        assert!(matches!(store.set("b", large), Err(StoreError::Full { .. })));
        assert_eq!(store.names().unwrap(), ["a"]);
    }

    #[test]
    fn names_are_plain() {
        for name in ["a", "API_KEY", "github/token", "a.b-c"] {
            assert!(is_name(name), "{name}");
        }
        for name in ["", "a b", "a}", "a:b", "ü", &"x".repeat(129)] {
            assert!(!is_name(name), "{name}");
        }
    }
}
