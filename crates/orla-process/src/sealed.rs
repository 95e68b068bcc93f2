//! An immutable copy of a program. It makes sure that the bytes that were hashed are the bytes that run.
//!
//! On Linux the copy is a sealed file in memory. A process is started from the path of its descriptor
//! (`/proc/self/fd/N`). An interpreter can open this path too, as the descriptor stays open in the
//! process. Other systems have no sealed files, so a single file that must be attested is refused there.

use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use orla_marketplace::attestation::hash_text;
use parking_lot::RwLock;

/// The maximum size of a copied program.
const MAX_BYTES: u64 = 256 * 1024 * 1024;

/// Held by each start of a process. A start whose process inherits a copy holds it exclusively, so that
/// no other process inherits the copy.
pub(crate) static STARTS: RwLock<()> = RwLock::new(());

/// A sealed copy of a program.
#[derive(Debug)]
pub(crate) struct Sealed {
    hash: Arc<str>,
    #[cfg(target_os = "linux")]
    file: std::fs::File,
}

impl Sealed {
    /// Copies the file at `path`, if its content has this hash.
    ///
    /// # Errors
    /// It has another hash, cannot be read, is too large, or the system has no sealed files.
    pub(crate) fn of(path: &Path, hash: &Arc<str>) -> io::Result<Self> {
        use io::Read as _;
        let mut bytes = Vec::new();
        crate::file::open_regular(path)?.take(MAX_BYTES + 1).read_to_end(&mut bytes)?;
        if bytes.len() as u64 > MAX_BYTES {
            let problem =
                format!("it is larger than {} MiB, and attestation is required", MAX_BYTES >> 20);
            return Err(io::Error::other(problem));
        }
        if hash_text(&bytes) != **hash {
            return Err(io::Error::other("its content has changed since it was attested"));
        }
        Self::copy(&bytes, Arc::clone(hash))
    }

    /// Returns whether the content has this hash.
    pub(crate) fn has(&self, hash: &str) -> bool {
        *self.hash == *hash
    }

    #[cfg(target_os = "linux")]
    fn copy(bytes: &[u8], hash: Arc<str>) -> io::Result<Self> {
        use io::Write as _;
        use rustix::fs::{MemfdFlags, SealFlags, fcntl_add_seals, memfd_create};
        let flags = MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING;
        // Older systems do not know the flag, and execute every such file.
        let file = memfd_create("attested", flags | MemfdFlags::EXEC)
            .or_else(|_| memfd_create("attested", flags))?;
        let mut file = std::fs::File::from(file);
        file.write_all(bytes)?;
        fcntl_add_seals(
            &file,
            SealFlags::WRITE | SealFlags::GROW | SealFlags::SHRINK | SealFlags::SEAL,
        )?;
        Ok(Self { hash, file })
    }

    #[cfg(not(target_os = "linux"))]
    fn copy(_: &[u8], _: Arc<str>) -> io::Result<Self> {
        Err(io::Error::other(
            "this system cannot run the very bytes that were attested; make it a package",
        ))
    }

    /// Returns the path of the copy in a child, if [`inheritable`](Self::inheritable) holds while the
    /// child is started.
    pub(crate) fn path(&self) -> PathBuf {
        #[cfg(target_os = "linux")]
        {
            use std::os::fd::AsRawFd as _;
            PathBuf::from(format!("/proc/self/fd/{}", self.file.as_raw_fd()))
        }
        #[cfg(not(target_os = "linux"))]
        PathBuf::new()
    }

    /// Returns the descriptor of the copy.
    #[cfg(target_os = "linux")]
    pub(crate) fn descriptor(&self) -> std::os::fd::BorrowedFd<'_> {
        use std::os::fd::AsFd as _;
        self.file.as_fd()
    }

    /// Lets children that are started during `start` inherit the copy. No other child may be started
    /// meanwhile.
    pub(crate) fn inheritable<T>(&self, start: impl FnOnce() -> io::Result<T>) -> io::Result<T> {
        #[cfg(target_os = "linux")]
        {
            use rustix::io::{FdFlags, fcntl_setfd};
            fcntl_setfd(&self.file, FdFlags::empty())?;
            let started = start();
            fcntl_setfd(&self.file, FdFlags::CLOEXEC)?;
            started
        }
        #[cfg(not(target_os = "linux"))]
        start()
    }
}

#[cfg(all(test, target_os = "linux"))]
mod tests {
    use super::*;
    use std::fs;

    #[test]
    fn a_copy_is_of_the_hashed_bytes_and_cannot_be_changed() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("a");
        fs::write(&path, "good").unwrap();
        let hash: Arc<str> = hash_text(b"good").into();
        let sealed = Sealed::of(&path, &hash).unwrap();
        fs::write(&path, "evil").unwrap();
        assert!(sealed.has(&hash));
        assert_eq!(fs::read(sealed.path()).unwrap(), b"good");
        assert!(fs::write(sealed.path(), "evil").is_err());
        assert_eq!(fs::read(sealed.path()).unwrap(), b"good");
        let error = Sealed::of(&path, &hash).unwrap_err();
        assert!(error.to_string().contains("changed"), "{error}");
    }
}
