//! Bundles and folders as archives, with checks of everything that an archive could do to a machine.
//!
//! An archive is a zip file. [`Archive::read`] checks all names, kinds and sizes before anything
//! is unpacked: see [`names`] for the allowed content. [`Archive::unpack`] writes it and stops as
//! soon as a file is larger than declared. [`pack`] makes the archive of a folder. The same
//! content gives the same bytes.

pub mod names;
mod pack;
mod tar;
mod zip;

use std::fs::{self, OpenOptions};
use std::io::{self, Write};
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt};
use std::path::Path;

pub use pack::{assemble, pack, pack_without};
pub use tar::{read_folder_tgz, read_tgz};

/// The maximum size of an archive, and of its unpacked content, in bytes.
pub const MAX_BYTES: u64 = 256 << 20;
/// The maximum number of files in an archive, and of directories.
pub const MAX_FILES: usize = 10_000;

/// The reason why an archive cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum ArchiveError {
    /// The archive is broken or not allowed; the sentence gives the reason.
    #[error("{0}")]
    Refused(String),
    /// A file cannot be read or written.
    #[error("{0}")]
    Io(#[from] io::Error),
}

/// A file of an archive.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct File {
    /// The name, with its directories.
    pub name: String,
    /// Whether it is executable.
    pub is_executable: bool,
    /// The content.
    pub content: Vec<u8>,
}

/// An archive whose content may be unpacked.
#[derive(Debug)]
pub struct Archive<'a> {
    bytes: &'a [u8],
    files: Vec<zip::Member>,
}

impl<'a> Archive<'a> {
    /// Reads and checks the directory of an archive.
    ///
    /// # Errors
    /// It is no zip file, uses what is not supported, or has names, kinds or sizes that are refused.
    pub fn read(bytes: &'a [u8]) -> Result<Self, ArchiveError> {
        if bytes.len() as u64 > MAX_BYTES {
            return Err(refused(format!("it has more than {} MiB", MAX_BYTES >> 20)));
        }
        let files = zip::members(bytes).map_err(refused)?;
        names::check(files.iter().map(|file| (file.name.as_str(), file.is_directory)))
            .map_err(refused)?;
        let unpacked = files.iter().fold(0_u64, |sum, file| sum.saturating_add(file.size));
        if unpacked > MAX_BYTES {
            return Err(refused(format!("it unpacks to more than {} MiB", MAX_BYTES >> 20)));
        }
        Ok(Self { bytes, files })
    }

    /// Returns the content of one file, of at most `max` bytes. `None` if there is no such file.
    ///
    /// # Errors
    /// The file is larger or broken.
    pub fn file(&self, name: &str, max: usize) -> Result<Option<Vec<u8>>, ArchiveError> {
        let Some(file) = self.files.iter().find(|file| file.name == name && !file.is_directory) else {
            return Ok(None);
        };
        if file.size > max as u64 {
            return Err(refused(format!("{name} has more than {max} bytes")));
        }
        let mut content = Vec::new();
        zip::unpack(self.bytes, file, &mut content)?;
        Ok(Some(content))
    }

    /// Returns all files with their content.
    ///
    /// # Errors
    /// A file is not as the archive says.
    pub fn contents(&self) -> Result<Vec<File>, ArchiveError> {
        let files = self.files.iter().filter(|file| !file.is_directory);
        let files = files.map(|file| {
            let mut content = Vec::new();
            zip::unpack(self.bytes, file, &mut content)?;
            Ok(File { name: file.name.clone(), is_executable: file.is_executable, content })
        });
        files.collect()
    }

    /// Returns the names of its files, in the order of the archive.
    pub fn names(&self) -> impl Iterator<Item = &str> {
        self.files.iter().filter(|file| !file.is_directory).map(|file| file.name.as_str())
    }

    /// Unpacks all files into an existing, empty directory.
    ///
    /// # Errors
    /// A file is not as the archive says, or cannot be written. What was written so far stays.
    pub fn unpack(&self, directory: &Path) -> Result<(), ArchiveError> {
        for file in &self.files {
            let path = directory.join(&file.name);
            let parent = if file.is_directory { Some(path.as_path()) } else { path.parent() };
            if let Some(parent) = parent {
                fs::DirBuilder::new().recursive(true).mode(0o755).create(parent)?;
            }
            if file.is_directory {
                continue;
            }
            let mode = if file.is_executable { 0o755 } else { 0o644 };
            let mut target = OpenOptions::new().write(true).create_new(true).mode(mode).open(&path)?;
            zip::unpack(self.bytes, file, &mut target)?;
            target.flush()?;
        }
        Ok(())
    }
}

pub(crate) fn refused(what: impl Into<String>) -> ArchiveError {
    ArchiveError::Refused(what.into())
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A folder's archive unpacks to the same content.
    #[test]
    fn a_folder_is_packed_alike_and_unpacked_as_it_was() {
        let folder = tempfile::tempdir().unwrap();
        fs::create_dir(folder.path().join("sub")).unwrap();
        fs::write(folder.path().join("sub/data"), "x".repeat(100_000)).unwrap();
        let mut program = OpenOptions::new();
        let program = program.write(true).create(true).truncate(true).mode(0o755);
        program.open(folder.path().join("run")).unwrap().write_all(b"#!/bin/sh\n").unwrap();
        let packed = pack(folder.path()).unwrap();
        assert_eq!(packed, pack(folder.path()).unwrap());
        let archive = Archive::read(&packed).unwrap();
        assert_eq!(archive.names().collect::<Vec<_>>(), ["run", "sub/data"]);
        let target = tempfile::tempdir().unwrap();
        archive.unpack(target.path()).unwrap();
        assert_eq!(pack(target.path()).unwrap(), packed);
        assert_eq!(archive.file("run", 100).unwrap().unwrap(), b"#!/bin/sh\n");
        assert!(archive.file("run", 3).is_err());
    }

    #[test]
    fn a_folder_with_a_link_out_is_refused() {
        let folder = tempfile::tempdir().unwrap();
        std::os::unix::fs::symlink("/etc/passwd", folder.path().join("link")).unwrap();
        assert!(pack(folder.path()).unwrap_err().to_string().contains("link"));
    }

    proptest::proptest! {
        #[test]
        fn no_bytes_are_fatal(mut bytes in proptest::collection::vec(proptest::prelude::any::<u8>(), 0..200), at in 0_usize..200) {
            drop(Archive::read(&bytes));
            let folder = tempfile::tempdir().unwrap();
            fs::write(folder.path().join("a"), "abc").unwrap();
            let mut packed = pack(folder.path()).unwrap();
            let at = at % packed.len();
            packed[at] ^= bytes.pop().unwrap_or(1) | 1;
            if let Ok(archive) = Archive::read(&packed) {
                for name in archive.names() {
                    drop(archive.file(name, 1000));
                }
            }
        }
    }
}
