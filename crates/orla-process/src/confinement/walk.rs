//! Opens a path part by part, for systems that refuse `openat2`, as a service of systemd with `RestrictSUIDSGID=` does.

use std::collections::VecDeque;
use std::ffi::{CString, OsStr};
use std::os::fd::OwnedFd;
use std::os::unix::ffi::OsStrExt as _;
use std::path::Path;

use rustix::fs::{CWD, FileType, Mode, OFlags, PROC_SUPER_MAGIC, fstat, fstatfs, openat, readlinkat};
use rustix::io::Errno;

/// The maximum number of links in a path, as in the kernel.
const MAX_LINKS: usize = 40;

/// Opens a path as `O_PATH`, relative to a directory. Links of procfs are refused: some of them lead to files of the process
/// that opens them.
///
/// # Errors
/// The system's reason.
pub(super) fn open(from: &OwnedFd, path: &Path, flags: OFlags) -> Result<OwnedFd, Errno> {
    if path.as_os_str().is_empty() {
        return Err(Errno::NOENT);
    }
    let step = OFlags::PATH | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    let mut left = parts(path.as_os_str());
    let mut at = start(from, path.as_os_str())?;
    let mut links = 0;
    while let Some(part) = left.pop_front() {
        let next = openat(&at, part.as_c_str(), step, Mode::empty())?;
        let is_link = FileType::from_raw_mode(fstat(&next)?.st_mode) == FileType::Symlink;
        if !is_link || (left.is_empty() && flags.contains(OFlags::NOFOLLOW)) {
            at = next;
            continue;
        }
        links += 1;
        if links > MAX_LINKS || fstatfs(&next)?.f_type == PROC_SUPER_MAGIC {
            return Err(Errno::LOOP);
        }
        // The link itself is open, so this is its target even if another file is at the path by now.
        let target = readlinkat(&next, c"", Vec::new())?;
        let target = OsStr::from_bytes(target.as_bytes());
        at = start(&at, target)?;
        let mut all = parts(target);
        all.append(&mut left);
        left = all;
    }
    Ok(at)
}

/// Opens the directory from which a path leads.
fn start(from: &OwnedFd, path: &OsStr) -> Result<OwnedFd, Errno> {
    if path.as_bytes().starts_with(b"/") {
        return openat(CWD, c"/", OFlags::PATH | OFlags::CLOEXEC, Mode::empty());
    }
    rustix::io::fcntl_dupfd_cloexec(from, 0)
}

/// Returns the parts of a path. A slash at its end demands a directory.
fn parts(path: &OsStr) -> VecDeque<CString> {
    let bytes = path.as_bytes();
    let parts = bytes.split(|byte| *byte == b'/').filter(|part| !part.is_empty());
    let end = bytes.ends_with(b"/").then_some(b".".as_slice());
    parts.chain(end).filter_map(|part| CString::new(part).ok()).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs::{self, File};
    use std::os::unix::fs::{MetadataExt as _, symlink};

    /// Opens a path as the kernel does, and part by part. Returns the inode, or the error, of each.
    fn both(from: &Path, path: &str, flags: OFlags) -> [Result<u64, i32>; 2] {
        let from = OwnedFd::from(File::open(from).unwrap());
        let inode = |opened: Result<OwnedFd, Errno>| match opened {
            Ok(file) => Ok(File::from(file).metadata().unwrap().ino()),
            Err(errno) => Err(errno.raw_os_error()),
        };
        let kernel = openat(&from, path, OFlags::PATH | OFlags::CLOEXEC | flags, Mode::empty());
        [inode(kernel), inode(open(&from, Path::new(path), flags))]
    }

    #[test]
    fn a_path_leads_where_the_kernel_leads_it() {
        let folder = tempfile::tempdir().unwrap();
        let at = |name: &str| folder.path().join(name);
        fs::create_dir(at("a")).unwrap();
        fs::write(at("a/file"), "").unwrap();
        symlink("a/file", at("relative")).unwrap();
        symlink(at("a"), at("absolute")).unwrap();
        symlink("../a/file", at("a/up")).unwrap();
        symlink("circle", at("circle")).unwrap();
        symlink("nowhere", at("dangling")).unwrap();
        let absolute = at("absolute/up").display().to_string();
        for path in [
            "a/file",
            "a//file",
            "./a/./up",
            "relative",
            "absolute/up",
            "absolute/",
            "absolute/../a",
            "circle",
            "dangling",
            "dangling/",
            "a/file/",
            "a/file/x",
            "relative/",
            "none/x",
            "",
            "/",
            "..",
            &absolute,
        ] {
            for flags in [OFlags::empty(), OFlags::NOFOLLOW] {
                let [kernel, parts] = both(folder.path(), path, flags);
                assert_eq!(parts, kernel, "{path} {flags:?}");
            }
        }
    }

    #[test]
    fn links_of_procfs_are_refused() {
        let root = OwnedFd::from(File::open("/").unwrap());
        for path in ["/proc/self/root", "/proc/self/cwd/x", "/proc/self/fd/0"] {
            assert_eq!(
                open(&root, Path::new(path), OFlags::empty()).unwrap_err(),
                Errno::LOOP,
                "{path}"
            );
        }
        let own = format!("/proc/{}/stat", std::process::id());
        assert!(open(&root, Path::new(&own), OFlags::empty()).is_ok());
    }
}
