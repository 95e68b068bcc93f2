//! Files of programs: opening them without waiting, reading their first bytes, and detecting a changed
//! version without reading the file.

use std::env;
use std::ffi::OsStr;
use std::fs::{self, File};
use std::io::{self, Read as _};
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime};

use rustix::fs::{Mode, OFlags};

/// File times have a granularity of up to this much, so that two changes within one step look like one.
const STEP: Duration = Duration::from_secs(2);
/// On a file system that keeps parts of seconds, the granularity is at most a tenth of this.
const FINE_STEP: Duration = Duration::from_millis(100);
/// The clock of file times on Linux lags behind by up to one tick, 10 ms at most.
const TICK: Duration = Duration::from_millis(20);

/// The device, inode and size of a file, and the time of the last change of content or mode, which no
/// program can set.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FileVersion {
    device: u64,
    inode: u64,
    size: u64,
    seconds: i64,
    nanoseconds: i64,
}

impl FileVersion {
    /// Returns the version of the file at `path`, or of its target if it is a link; `None` if it cannot
    /// be examined.
    pub fn of(path: &Path) -> Option<Self> {
        let metadata = fs::metadata(path).ok()?;
        Some(Self {
            device: metadata.dev(),
            inode: metadata.ino(),
            size: metadata.size(),
            seconds: metadata.ctime(),
            nanoseconds: metadata.ctime_nsec(),
        })
    }

    /// Returns whether the file changed at `at` or later, as far as the system's clock for files can
    /// tell.
    pub fn is_newer_than(&self, at: SystemTime) -> bool {
        let (Ok(seconds), Ok(nanoseconds)) =
            (u64::try_from(self.seconds), u32::try_from(self.nanoseconds))
        else {
            return false;
        };
        let changed = SystemTime::UNIX_EPOCH.checked_add(Duration::new(seconds, nanoseconds) + TICK);
        changed.is_none_or(|changed| changed >= at)
    }

    /// Returns whether every change of the file from `now` on will give it another version, even if the clock of its file system is
    /// up to a second behind.
    pub fn is_settled(&self, now: SystemTime) -> bool {
        let Ok(seconds) = u64::try_from(self.seconds) else { return false };
        is_older(Duration::from_secs(seconds + 1), STEP, now)
    }

    /// Returns whether every change of the file from `now` on will give it another version, if the clock of its file system is that
    /// of this machine.
    pub fn is_settled_by_own_clock(&self, now: SystemTime) -> bool {
        match (u64::try_from(self.seconds), u32::try_from(self.nanoseconds)) {
            // Of a whole second, it is not known whether the file system keeps parts of them.
            (Ok(_), Ok(0)) => self.is_settled(now),
            (Ok(seconds), Ok(part)) => is_older(Duration::new(seconds, part), FINE_STEP, now),
            (Err(_), _) | (_, Err(_)) => false,
        }
    }
}

/// Returns whether a time since the epoch was at least so long ago.
fn is_older(changed: Duration, age: Duration, now: SystemTime) -> bool {
    let changed = SystemTime::UNIX_EPOCH.checked_add(changed);
    changed.and_then(|changed| now.duration_since(changed).ok()).is_some_and(|passed| passed >= age)
}

/// Opens a file that was a regular file when it was examined. Never blocks.
///
/// # Errors
/// It cannot be opened.
pub fn open_regular(path: &Path) -> io::Result<File> {
    // Opening a FIFO would wait for its writer, and the file may have become one since it was listed.
    let flags = OFlags::RDONLY | OFlags::NONBLOCK | OFlags::NOCTTY | OFlags::CLOEXEC;
    Ok(File::from(rustix::fs::open(path, flags, Mode::empty())?))
}

/// Returns the first 4 KiB of a file, which determine its interpreter.
///
/// # Errors
/// It cannot be opened or read.
pub fn read_head(path: &Path) -> io::Result<Vec<u8>> {
    let mut head = Vec::new();
    open_regular(path)?.take(4096).read_to_end(&mut head)?;
    Ok(head)
}

/// Finds the program with this name in the directories of a `PATH`.
pub(crate) fn program_in(path: &OsStr, name: &Path) -> Option<PathBuf> {
    let is_program = |path: &PathBuf| {
        path.metadata().is_ok_and(|file| file.is_file() && file.permissions().mode() & 0o111 != 0)
    };
    env::split_paths(path).map(|directory| directory.join(name)).find(is_program)
}

/// Finds the program with this name in the server's own `PATH`.
pub fn program_in_path(name: impl AsRef<Path>) -> Option<PathBuf> {
    program_in(&env::var_os("PATH")?, name.as_ref())
}

/// Returns the system's error message without its number.
pub fn reason(err: &io::Error) -> String {
    let text = err.to_string();
    text.split(" (os error").next().unwrap_or(&text).to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_version_lasts_until_the_file_changes_or_another_takes_its_place() {
        let directory = tempfile::tempdir().unwrap();
        let (path, other) = (directory.path().join("a"), directory.path().join("b"));
        fs::write(&path, "1").unwrap();
        fs::write(&other, "1").unwrap();
        let first = FileVersion::of(&path);
        assert!(first.is_some() && first == FileVersion::of(&path));
        fs::write(&path, "12").unwrap();
        let longer = FileVersion::of(&path);
        assert_ne!(longer, first);
        fs::rename(&other, &path).unwrap();
        let replaced = FileVersion::of(&path);
        assert_ne!(replaced, longer);
        assert_ne!(replaced, first);
        fs::remove_file(&path).unwrap();
        assert_eq!(FileVersion::of(&path), None);
    }

    #[test]
    fn a_file_that_has_just_changed_may_change_again_unnoticed() {
        let file = tempfile::NamedTempFile::new().unwrap();
        let exact =
            FileVersion { seconds: 1000, nanoseconds: 1, ..FileVersion::of(file.path()).unwrap() };
        let whole = FileVersion { nanoseconds: 0, ..exact };
        for (millis, is_settled, is_settled_by_own_clock) in [
            (995_000, false, false),
            (1_000_000, false, false),
            (1_000_200, false, true),
            (1_002_900, false, true),
            (1_005_000, true, true),
        ] {
            let now = SystemTime::UNIX_EPOCH + Duration::from_millis(millis);
            assert_eq!(exact.is_settled(now), is_settled, "{millis}");
            assert_eq!(exact.is_settled_by_own_clock(now), is_settled_by_own_clock, "{millis}");
            assert_eq!(whole.is_settled_by_own_clock(now), is_settled, "{millis}");
        }
    }
}
