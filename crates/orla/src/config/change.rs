//! Changes of the files that orla keeps beside its configuration.

use std::fs;
use std::io::{self, Write};
use std::os::unix::fs::{MetadataExt, OpenOptionsExt, PermissionsExt};
use std::path::{Path, PathBuf};

use rustix::fs::OFlags;

use super::reason;

/// A change of a file. Other processes that want to change it wait until it is saved or dropped.
///
/// The new content is written beside the file, and the lock is on it. It then takes the place of the file, so that a
/// reader sees the old content or the new content.
pub(crate) struct FileChange<'p> {
    path: &'p Path,
    partial: PathBuf,
    file: fs::File,
    is_saved: bool,
}

/// The users that may read a file.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Readers {
    /// The users that the process's `umask` permits.
    Anyone,
    /// Its owner alone.
    Owner,
}

impl<'p> FileChange<'p> {
    /// Waits until no other process changes the file, which need not exist.
    ///
    /// # Errors
    ///
    /// Returns a sentence with the path of the file if the file cannot be written.
    pub(crate) fn begin(path: &'p Path, readers: Readers) -> Result<Self, String> {
        let mut name = path.file_name().unwrap_or_default().to_owned();
        name.push(".partial");
        let partial = path.with_file_name(name);
        let locked = || {
            let mut options = fs::OpenOptions::new();
            options.create(true).truncate(false).write(true);
            options.custom_flags((OFlags::NOFOLLOW | OFlags::NONBLOCK).bits().cast_signed());
            if readers == Readers::Owner {
                options.mode(0o600);
            }
            let file = options.open(&partial)?;
            let own = file.metadata()?;
            // A user who has put another file there would get the content.
            if !own.is_file() || own.nlink() > 1 || own.uid() != rustix::process::geteuid().as_raw() {
                let what = format!("{} is there, and is not of this user alone", partial.display());
                return Err(io::Error::other(what));
            }
            if readers == Readers::Owner {
                file.set_permissions(fs::Permissions::from_mode(0o600))?;
            }
            file.lock()?;
            // The previous holder may have renamed or removed the file.
            let is_there = fs::symlink_metadata(&partial)
                .is_ok_and(|there| (own.dev(), own.ino()) == (there.dev(), there.ino()));
            Ok(is_there.then_some(file))
        };
        loop {
            if let Some(file) = locked().map_err(|err| failed(path, &err))? {
                return Ok(Self { path, partial, file, is_saved: false });
            }
        }
    }

    /// Replaces the file by one with this content.
    ///
    /// # Errors
    ///
    /// Returns a sentence with the path of the file if it cannot be written.
    pub(crate) fn save(mut self, content: &str) -> Result<(), String> {
        let mut save = || {
            self.file.set_len(0)?;
            self.file.write_all(content.as_bytes())?;
            self.file.sync_all()?;
            fs::rename(&self.partial, self.path)
        };
        let saved = save();
        self.is_saved = saved.is_ok();
        saved.map_err(|err| failed(self.path, &err))
    }
}

impl Drop for FileChange<'_> {
    fn drop(&mut self) {
        if !self.is_saved {
            drop(fs::remove_file(&self.partial));
        }
    }
}

fn failed(path: &Path, err: &io::Error) -> String {
    format!("{} cannot be written: {}", path.display(), reason(err))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn changes_of_one_file_come_one_after_the_other() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("file");
        let lines = || fs::read_to_string(&path).unwrap_or_default();
        std::thread::scope(|scope| {
            for at in 0..50 {
                let (path, lines) = (&path, &lines);
                scope.spawn(move || {
                    let change = FileChange::begin(path, Readers::Anyone).unwrap();
                    let more = format!("{}{at}\n", lines());
                    if at % 5 != 0 {
                        change.save(&more).unwrap();
                    }
                });
            }
        });
        assert_eq!(lines().lines().count(), 40);
        assert_eq!(fs::read_dir(dir.path()).unwrap().count(), 1, "nothing else is left");
        assert!(FileChange::begin(&dir.path().join("none/x"), Readers::Anyone).is_err());
    }
}
