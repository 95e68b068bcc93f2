//! The launcher of a profile for the files to which its paths lead at the moment.

use std::hash::{BuildHasher as _, BuildHasherDefault, DefaultHasher};
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use orla_broker::Clients;
use orla_confine::Profile;
use parking_lot::Mutex;

use super::SandboxGrants;
use super::launcher::{Launcher, is_exhausted};
use super::unenforced::Unenforced;

/// How long a launcher is not made again after something has run out.
const EXHAUSTION: Duration = Duration::from_secs(1);

/// Starts the programs of one profile, always for the files to which its paths lead at that moment: the
/// kernel restricts a process to files, not to their names.
#[derive(Debug)]
pub(crate) struct CurrentLauncher {
    profile: Profile,
    is_open: bool,
    home: Option<PathBuf>,
    /// The capabilities whose processes it starts.
    clients: Clients,
    launcher: Mutex<Arc<Launcher>>,
    /// Whether the launcher is another than the first one.
    is_replaced: AtomicBool,
    /// Held while a launcher is made. The reason of the last failure holds for the targets that failed.
    making: Mutex<Option<NotMade>>,
}

/// Why there is no launcher for the files to which the paths lead.
#[derive(Debug)]
struct NotMade {
    targets: Targets,
    reason: String,
    /// When it is tried again; `None` if the files have to change first.
    until: Option<Instant>,
}

impl NotMade {
    fn is_valid(&self) -> bool {
        self.until.is_none_or(|until| Instant::now() < until)
    }
}

impl CurrentLauncher {
    /// Creates a launcher for a profile, starts it and tests it.
    ///
    /// # Errors
    /// What cannot be enforced.
    pub(super) fn new(
        profile: &Profile,
        is_open: bool,
        home: Option<&Path>,
        clients: Clients,
    ) -> Result<Self, Unenforced> {
        Ok(Self {
            launcher: Mutex::new(Arc::new(Launcher::new(profile, is_open, home, &clients)?)),
            clients,
            profile: profile.clone(),
            is_open,
            home: home.map(Path::to_owned),
            is_replaced: AtomicBool::new(false),
            making: Mutex::new(None),
        })
    }

    /// Returns the capabilities whose processes it starts.
    pub(super) fn clients(&self) -> &Clients {
        &self.clients
    }

    /// Returns whether the paths have always led, and still lead, to the files to which they led when this
    /// was created.
    pub(super) fn is_unchanged(&self) -> bool {
        !self.is_replaced() && self.last().is_current()
    }

    /// Returns whether a path has led to another file at a call.
    pub(super) fn is_replaced(&self) -> bool {
        self.is_replaced.load(Ordering::Relaxed)
    }

    /// Returns what the profile allows besides the base, with the files to which its paths lead now.
    pub(super) fn grants(&self) -> SandboxGrants {
        super::grants(&self.profile, self.is_open)
    }

    /// Returns a number that changes when a path leads to another file.
    pub(super) fn version(&self) -> u64 {
        BuildHasherDefault::<DefaultHasher>::default().hash_one(targets(&self.profile))
    }

    /// Returns the launcher for the files to which the paths lead now. If a path leads to another file
    /// than at the last call, a new launcher replaces the last one, whose programs continue.
    ///
    /// # Errors
    /// What cannot be enforced.
    pub(crate) fn get(&self) -> io::Result<Arc<Launcher>> {
        let last = self.last();
        if last.is_current() {
            return Ok(last);
        }
        let mut failure = self.making.lock();
        // Another call may have made it meanwhile.
        let last = self.last();
        if last.is_current() {
            return Ok(last);
        }
        let now = targets(&self.profile);
        if let Some(known) = failure.as_ref().filter(|known| known.targets == now && known.is_valid()) {
            return Err(io::Error::other(known.reason.clone()));
        }
        match Launcher::new(&self.profile, self.is_open, self.home.as_deref(), &self.clients) {
            Ok(made) => {
                let made = Arc::new(made);
                self.is_replaced.store(true, Ordering::Relaxed);
                *failure = None;
                // The one before is dropped, which waits for its process, after its lock is released.
                let _before = std::mem::replace(&mut *self.launcher.lock(), Arc::clone(&made));
                Ok(made)
            }
            Err(missing) => {
                let err = io::Error::other(missing.problems.join("; "));
                // What has run out may soon be there again.
                let until = is_exhausted(&err).then(|| Instant::now() + EXHAUSTION);
                *failure = Some(NotMade { targets: now, reason: err.to_string(), until });
                Err(err)
            }
        }
    }

    fn last(&self) -> Arc<Launcher> {
        Arc::clone(&self.launcher.lock())
    }
}

/// A real path with its device and inode. A file that replaces another at the same path has another
/// identity.
pub(super) type Identity = (PathBuf, u64, u64);

pub(super) fn identity(path: &Path) -> Option<Identity> {
    use std::os::unix::fs::MetadataExt as _;
    let real = std::fs::canonicalize(path).ok()?;
    let metadata = std::fs::metadata(&real).ok()?;
    Some((real, metadata.dev(), metadata.ino()))
}

/// The paths of a profile as declared, and the identity of the file that each leads to.
pub(super) type Targets = Vec<(PathBuf, Option<Identity>)>;

pub(super) fn targets(profile: &Profile) -> Targets {
    let sets = [&profile.read, &profile.write, &profile.execute, &profile.unix, &profile.optional];
    let paths = sets.into_iter().flatten().chain(profile.caches.keys());
    paths.map(|path| (path.clone(), identity(path))).collect()
}
