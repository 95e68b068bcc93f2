//! The key of a store: in the keyring of the operating system, or in a file beside the store.

use std::env;
use std::fs;
use std::io::{self, Read, Write};
use std::os::unix::fs::{OpenOptionsExt, PermissionsExt};
use std::path::Path;
use std::sync::mpsc;
use std::thread;
use std::time::Duration;

use keyring::{Entry, Error};
use serde::{Deserialize, Serialize};
use zeroize::Zeroizing;

/// The protection of a store at rest.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Protection {
    /// Its key is in the keyring of the operating system.
    Keyring,
    /// Its key is in a file beside it.
    KeyFile,
}

/// The name of the service in the keyring.
const SERVICE: &str = "orla";
/// How long a user may take to unlock the keyring.
const UNLOCK_TIMEOUT: Duration = Duration::from_secs(60);
/// The maximum size of a file in bytes.
pub(crate) const MAX_FILE: u64 = 16 << 20;

/// A keyring with one text for each store.
pub(crate) trait Keyring: Send + Sync {
    /// Returns the text that is kept for `account`, if any.
    fn get(&self, account: &str) -> Result<Option<Zeroizing<String>>, NoKeyring>;

    /// Keeps a text for `account`.
    fn set(&self, account: &str, text: &str) -> Result<(), NoKeyring>;
}

/// The reason why the keyring gives no answer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum NoKeyring {
    /// There is no keyring on this machine, or none for this process.
    Absent,
    /// The keyring refused.
    Refused(String),
}

/// The keyring of this system: the Secret Service (D-Bus), or the keychain of macOS.
pub(crate) struct SystemKeyring;

impl Keyring for SystemKeyring {
    fn get(&self, account: &str) -> Result<Option<Zeroizing<String>>, NoKeyring> {
        let account = account.to_owned();
        in_time(move || match Entry::new(SERVICE, &account).and_then(|entry| entry.get_password()) {
            Ok(text) => Ok(Some(Zeroizing::new(text))),
            Err(Error::NoEntry) => Ok(None),
            Err(err) => Err(refused(&err)),
        })
    }

    fn set(&self, account: &str, text: &str) -> Result<(), NoKeyring> {
        let (account, text) = (account.to_owned(), Zeroizing::new(text.to_owned()));
        in_time(move || {
            let stored = Entry::new(SERVICE, &account).and_then(|entry| entry.set_password(&text));
            stored.map_err(|err| refused(&err))
        })
    }
}

/// Returns whether this process can reach a keyring: on Linux, without a session bus there is no Secret
/// Service, and no reason to wait for one.
fn is_reachable() -> bool {
    let is_set = |name: &str| env::var_os(name).is_some_and(|value| !value.is_empty());
    let has_socket = || {
        env::var_os("XDG_RUNTIME_DIR")
            .is_some_and(|directory| Path::new(&directory).join("bus").exists())
    };
    cfg!(target_os = "macos") || is_set("DBUS_SESSION_BUS_ADDRESS") || has_socket()
}

fn refused(err: &Error) -> NoKeyring {
    match err {
        // No keyring answers.
        Error::NoDefaultStore => NoKeyring::Absent,
        other => NoKeyring::Refused(other.to_string()),
    }
}

/// Calls the keyring on a separate thread: it blocks, and the caller may be on a runtime's thread.
fn in_time<T: Send + 'static>(
    ask: impl FnOnce() -> Result<T, NoKeyring> + Send + 'static,
) -> Result<T, NoKeyring> {
    if !is_reachable() {
        return Err(NoKeyring::Absent);
    }
    let (sender, receiver) = mpsc::channel();
    thread::spawn(move || sender.send(ask()));
    receiver.recv_timeout(UNLOCK_TIMEOUT).unwrap_or_else(|_| {
        let seconds = UNLOCK_TIMEOUT.as_secs();
        Err(NoKeyring::Refused(format!("it gave no answer within {seconds} s; is it locked?")))
    })
}

/// Reads a file that only its owner may read; `None` if it does not exist.
pub(crate) fn read_private(path: &Path) -> io::Result<Option<Zeroizing<Vec<u8>>>> {
    let file = match fs::File::open(path) {
        Ok(file) => file,
        Err(err) if err.kind() == io::ErrorKind::NotFound => return Ok(None),
        Err(err) => return Err(err),
    };
    let metadata = file.metadata()?;
    if metadata.permissions().mode() & 0o077 != 0 {
        let problem = format!("others can read it; run `chmod 600 {}`", path.display());
        return Err(io::Error::new(io::ErrorKind::PermissionDenied, problem));
    }
    let mut bytes = Zeroizing::new(Vec::new());
    file.take(MAX_FILE + 1).read_to_end(&mut bytes)?;
    if bytes.len() as u64 > MAX_FILE {
        return Err(io::Error::other(format!("larger than {MAX_FILE} bytes")));
    }
    Ok(Some(bytes))
}

/// Replaces a file atomically by one that only its owner may read.
pub(crate) fn write_private(path: &Path, content: &[u8]) -> io::Result<()> {
    let directory = path.parent().unwrap_or(Path::new("."));
    // The mode is 0600 from the beginning.
    let mut file = tempfile::NamedTempFile::new_in(directory)?;
    file.write_all(content)?;
    file.as_file().sync_all()?;
    file.persist(path).map_err(|err| err.error)?;
    fs::File::open(directory)?.sync_all()
}

/// Opens a lock file, and creates it if necessary.
pub(crate) fn open_lock(path: &Path) -> io::Result<fs::File> {
    fs::OpenOptions::new().create(true).truncate(false).write(true).mode(0o600).open(path)
}
