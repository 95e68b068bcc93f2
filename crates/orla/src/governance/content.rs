//! Hashes the files that capabilities run: on demand, and once for each version.
//!
//! # How it works
//!
//! A file's hash is that of its bytes, so `sha256sum` gives the same. A directory's is the hash of a list with one
//! line for each of its files. Files are read in pieces. A file that was read is identified by device, inode, size
//! and the time of its last change ([`FileVersion`]): as long as these stay, nothing is read again, and checking
//! them is fast enough for every call. A file that changed within the last two seconds may change again unnoticed,
//! so it is then read once more.
//!
//! # Deliberately absent
//!
//! Files outside: interpreters, libraries, the targets of links. `.git` and `__pycache__`, which programs write
//! themselves.

use std::collections::HashMap;
use std::fs::{self, File};
use std::io::Read;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::SystemTime;

use orla_marketplace::attestation::{
    CommandLine, Content, ContentSource, Hasher, canonical_json, hash_text,
};
use orla_process::file::FileVersion;
use parking_lot::Mutex;

use crate::config::reason;

/// The maximum number of files and directories of one directory.
const MAX_FILES: usize = 20_000;
/// The maximum number of levels of one directory.
const MAX_LEVELS: usize = 64;
/// How often a file that changes while it is read is read again.
const ATTEMPTS: usize = 3;
/// The maximum number of files and directories that are looked at before a call, instead of beside it.
const MAX_SYNC_FILES: usize = 256;
/// Written by programs when they run, and not part of them.
const EXCLUDED: [&str; 2] = [".git", "__pycache__"];

/// The content that capabilities run, stored once even if several capabilities run it.
#[derive(Default)]
pub(crate) struct Contents {
    files: Mutex<HashMap<PathBuf, Arc<FileContent>>>,
}

impl Contents {
    /// Returns the content of one capability of a configuration in the directory `base`. No file is read
    /// yet.
    pub(crate) fn of(&self, source: ContentSource, base: &Path) -> Arc<dyn Content> {
        let (path, is_directory) = match source {
            ContentSource::Command(line) => {
                let file = self.on_disk(line.program.clone(), false);
                let base = base.to_owned();
                return Arc::new(Started { file, line, base, known: Mutex::default() });
            }
            ContentSource::File(path) => (path, false),
            ContentSource::Directory(path) => (path, true),
            ContentSource::Program => match std::env::current_exe() {
                Ok(path) => (path, false),
                Err(_) => return fixed(Err("the program's own file is not known".to_owned())),
            },
            ContentSource::Definition(definition) => {
                return fixed(hash_of(&definition.to_json()));
            }
            _ => return fixed(Err("its content is not known".to_owned())),
        };
        Arc::new(self.on_disk(path, is_directory))
    }

    fn on_disk(&self, path: PathBuf, is_directory: bool) -> Shared {
        let mut files = self.files.lock();
        let content = files.entry(path).or_insert_with_key(|path| {
            Arc::new(FileContent { path: path.clone(), is_directory, known: Mutex::default() })
        });
        Shared(Arc::clone(content))
    }

    /// Drops content that no capability uses any more.
    pub(crate) fn tidy(&self) {
        let mut files = self.files.lock();
        files.retain(|_, content| Arc::strong_count(content) > 1);
    }
}

fn fixed(hash: Result<String, String>) -> Arc<dyn Content> {
    Arc::new(FixedContent(hash.map(Arc::from)))
}

/// Content that cannot change by itself.
struct FixedContent(Result<Arc<str>, String>);

impl Content for FixedContent {
    fn hash(&self) -> Result<String, String> {
        self.0.as_ref().map(ToString::to_string).map_err(Clone::clone)
    }

    fn known_hash(&self) -> Option<Arc<str>> {
        self.0.as_ref().ok().cloned()
    }

    fn is_unchanged_since(&self, _: SystemTime) -> bool {
        true
    }

    fn hash_later(&self) -> Later {
        let hash = self.hash();
        Box::pin(async move { hash })
    }
}

type Later = std::pin::Pin<Box<dyn Future<Output = Result<String, String>> + Send>>;

/// A file, or a directory with everything in it.
struct FileContent {
    path: PathBuf,
    is_directory: bool,
    known: Mutex<Option<CachedHash>>,
}

/// A hash, and the versions of the hashed files.
struct CachedHash {
    hash: Arc<str>,
    /// The files that were read, and the directories that contain them.
    versions: Vec<(PathBuf, FileVersion)>,
    /// The time before the files were read.
    at: SystemTime,
}

impl CachedHash {
    /// Returns whether all files are unchanged, and none is newer than `at`.
    fn is_unchanged_since(&self, at: SystemTime) -> bool {
        self.versions.iter().all(|(path, version)| {
            !version.is_newer_than(at) && FileVersion::of(path).as_ref() == Some(version)
        })
    }

    /// Returns whether all files are unchanged.
    fn is_current(&self) -> bool {
        self.versions.iter().all(|(path, version)| {
            version.is_settled(self.at) && FileVersion::of(path).as_ref() == Some(version)
        })
    }
}

struct Shared(Arc<FileContent>);

impl Content for Shared {
    fn hash(&self) -> Result<String, String> {
        self.0.hash().map(|hash| hash.to_string())
    }

    fn known_hash(&self) -> Option<Arc<str>> {
        // While another thread hashes it, the hash is unknown here. Callers that can wait use `hash`.
        let known = self.0.known.try_lock()?;
        let known = known.as_ref().filter(|known| known.versions.len() <= MAX_SYNC_FILES)?;
        known.is_current().then(|| Arc::clone(&known.hash))
    }

    fn is_unchanged_since(&self, at: SystemTime) -> bool {
        let known = self.0.known.lock();
        known.as_ref().is_some_and(|known| known.is_unchanged_since(at))
    }

    fn hash_later(&self) -> Later {
        let content = Arc::clone(&self.0);
        Box::pin(async move {
            let read = tokio::task::spawn_blocking(move || content.hash());
            let hash = read.await.map_err(|_| "it was not read to its end".to_owned())?;
            hash.map(|hash| hash.to_string())
        })
    }
}

/// A program's file and how it is started.
struct Started {
    file: Shared,
    line: CommandLine,
    base: PathBuf,
    /// The hash of all of it, given that of the file.
    known: Mutex<Option<(String, Arc<str>)>>,
}

impl Started {
    fn with(&self, file: &str) -> Result<Arc<str>, String> {
        let mut known = self.known.lock();
        if let Some((_, hash)) = known.as_ref().filter(|known| known.0 == file) {
            return Ok(Arc::clone(hash));
        }
        let hash: Arc<str> = hash_of(&self.line.to_json(file, &self.base))?.into();
        *known = Some((file.to_owned(), Arc::clone(&hash)));
        Ok(hash)
    }
}

impl Content for Started {
    fn hash(&self) -> Result<String, String> {
        self.with(&self.file.hash()?).map(|hash| hash.to_string())
    }

    fn known_hash(&self) -> Option<Arc<str>> {
        self.with(&self.file.known_hash()?).ok()
    }

    fn is_unchanged_since(&self, at: SystemTime) -> bool {
        self.file.is_unchanged_since(at)
    }

    fn hash_later(&self) -> Later {
        let (file, line, base) = (self.file.hash_later(), self.line.clone(), self.base.clone());
        Box::pin(async move { hash_of(&line.to_json(&file.await?, &base)) })
    }
}

/// Returns the hash of a JSON text, independent of its formatting.
fn hash_of(json: &str) -> Result<String, String> {
    let form = canonical_json(json).map_err(|err| err.to_string())?;
    Ok(hash_text(form.as_bytes()))
}

impl FileContent {
    /// Hashes the content again if it has changed. Concurrent callers wait for the first.
    fn hash(&self) -> Result<Arc<str>, String> {
        let mut known = self.known.lock();
        if let Some(known) = known.as_ref().filter(|known| known.is_current()) {
            return Ok(Arc::clone(&known.hash));
        }
        let read = self.read()?;
        let hash = Arc::clone(&read.hash);
        *known = Some(read);
        Ok(hash)
    }

    fn read(&self) -> Result<CachedHash, String> {
        let at = SystemTime::now();
        if !self.is_directory {
            let (hash, version) = hash_of_file(&self.path)?;
            return Ok(CachedHash {
                hash: hash.into(),
                versions: vec![(self.path.clone(), version)],
                at,
            });
        }
        let mut walk = Walk { root: &self.path, lines: Vec::new(), versions: Vec::new() };
        walk.directory(&self.path, 0)?;
        // Sorted by path, because the order of directory entries is undefined.
        walk.lines.sort();
        let mut hasher = Hasher::default();
        walk.lines.iter().for_each(|(_, line)| hasher.update(line));
        Ok(CachedHash { hash: hasher.finish().into(), versions: walk.versions, at })
    }
}

/// Goes through a directory.
struct Walk<'a> {
    root: &'a Path,
    /// The line of each file, with its path from the root.
    lines: Vec<(Vec<u8>, Vec<u8>)>,
    versions: Vec<(PathBuf, FileVersion)>,
}

impl Walk<'_> {
    fn directory(&mut self, directory: &Path, level: usize) -> Result<(), String> {
        if level > MAX_LEVELS {
            return Err(format!("more than {MAX_LEVELS} directories within each other"));
        }
        let version = FileVersion::of(directory).ok_or_else(|| not_found(directory))?;
        self.add(directory.to_owned(), version)?;
        let unreadable = |err: std::io::Error| unreadable(directory, &err);
        for entry in fs::read_dir(directory).map_err(unreadable)? {
            let entry = entry.map_err(unreadable)?;
            if EXCLUDED.iter().any(|name| entry.file_name() == *name) {
                continue;
            }
            let (path, kind) = (entry.path(), entry.file_type().map_err(unreadable)?);
            if kind.is_dir() {
                self.directory(&path, level + 1)?;
            } else if kind.is_symlink() {
                let target = fs::read_link(&path).map_err(unreadable)?;
                self.line(&path, 'l', &hash_text(target.as_os_str().as_bytes()));
            } else if kind.is_file() {
                let mode = entry.metadata().map_err(unreadable)?.permissions().mode();
                let (hash, version) = hash_of_file(&path)?;
                self.line(&path, if mode & 0o111 == 0 { 'f' } else { 'x' }, &hash);
                self.add(path, version)?;
            }
        }
        Ok(())
    }

    fn add(&mut self, path: PathBuf, version: FileVersion) -> Result<(), String> {
        self.versions.push((path, version));
        if self.versions.len() > MAX_FILES {
            return Err(format!("more than {MAX_FILES} files"));
        }
        Ok(())
    }

    /// `f LENGTH PATH HASH`: the length keeps odd names from looking like two lines.
    fn line(&mut self, path: &Path, kind: char, hash: &str) {
        let path = path.strip_prefix(self.root).unwrap_or(path).as_os_str().as_bytes();
        let head = format!("{kind} {} ", path.len());
        let line = [head.as_bytes(), path, b" ", hash.as_bytes(), b"\n"].concat();
        self.lines.push((path.to_owned(), line));
    }
}

/// Returns the hash of a file's bytes, and the version that they are of.
fn hash_of_file(path: &Path) -> Result<(String, FileVersion), String> {
    for _ in 0..ATTEMPTS {
        let before = FileVersion::of(path).ok_or_else(|| not_found(path))?;
        // Checked before it is opened: opening a fifo would wait for its writer.
        let is_file = fs::metadata(path).map_err(|err| unreadable(path, &err))?.is_file();
        if !is_file {
            return Err(format!("{} is not a regular file", path.display()));
        }
        let mut file = File::open(path).map_err(|err| unreadable(path, &err))?;
        let mut hasher = Hasher::default();
        let mut piece = vec![0; 64 * 1024];
        loop {
            match file.read(&mut piece).map_err(|err| unreadable(path, &err))? {
                0 => break,
                length => hasher.update(&piece[..length]),
            }
        }
        if FileVersion::of(path).as_ref() == Some(&before) {
            return Ok((hasher.finish(), before));
        }
    }
    Err(format!("{} changes while it is read", path.display()))
}

fn not_found(path: &Path) -> String {
    format!("{} does not exist", path.display())
}

fn unreadable(path: &Path, err: &std::io::Error) -> String {
    format!("{} cannot be read: {}", path.display(), reason(err))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn file(path: &Path) -> Arc<dyn Content> {
        Contents::default().of(ContentSource::File(path.to_owned()), Path::new(""))
    }

    fn directory(path: &Path) -> String {
        let content = Contents::default().of(ContentSource::Directory(path.to_owned()), Path::new(""));
        content.hash().unwrap()
    }

    #[test]
    fn the_hash_of_a_file_is_that_of_its_bytes() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("a");
        let content = file(&path);
        assert!(content.known_hash().is_none(), "nothing is read before the first request");
        assert!(content.hash().unwrap_err().contains("does not exist"));
        fs::write(&path, "abc").unwrap();
        assert_eq!(content.hash().unwrap(), hash_text(b"abc"));
        fs::write(&path, vec![7; 200_000]).unwrap();
        assert_eq!(content.hash().unwrap(), hash_text(&[7; 200_000]));
        assert!(file(dir.path()).hash().is_err(), "a directory is not a file");
    }

    #[test]
    fn a_program_that_is_started_otherwise_is_another() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("a");
        fs::write(&path, "abc").unwrap();
        let contents = Contents::default();
        let of = |args: &[&str]| {
            let args: Vec<String> = args.iter().map(|arg| (*arg).to_owned()).collect();
            contents.of(ContentSource::of_program(&path, &args, [], None), Path::new(""))
        };
        let (plain, one, other) = (of(&[]), of(&["-a"]), of(&["-b"]));
        assert_eq!(plain.hash().unwrap(), hash_text(b"abc"));
        let first = one.hash().unwrap();
        assert!(first != plain.hash().unwrap() && first != other.hash().unwrap());
        fs::write(&path, "abcd").unwrap();
        assert_ne!(one.hash().unwrap(), first, "and so is another file");
    }

    #[test]
    fn the_hash_of_a_recently_changed_file_is_not_cached() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("a");
        fs::write(&path, "abc").unwrap();
        let content = file(&path);
        content.hash().unwrap();
        assert!(content.known_hash().is_none(), "its next change may look like this one");
        let long_ago = Path::new("/proc/version");
        if FileVersion::of(long_ago).is_some_and(|version| version.is_settled(SystemTime::now())) {
            let settled = file(long_ago);
            let hash = settled.hash().unwrap();
            assert_eq!(settled.known_hash().as_deref(), Some(hash.as_str()));
        }
    }

    #[test]
    fn every_change_in_a_directory_changes_its_hash() {
        let dir = tempfile::tempdir().unwrap();
        let root = dir.path();
        fs::create_dir_all(root.join("sub")).unwrap();
        fs::write(root.join("a"), "1").unwrap();
        fs::write(root.join("sub/b"), "2").unwrap();
        let mut seen = vec![directory(root)];
        let mut changed = |name: &str| {
            let hash = directory(root);
            assert!(!seen.contains(&hash), "{name}");
            seen.push(hash);
        };
        fs::write(root.join("a"), "3").unwrap();
        changed("a file's bytes");
        fs::set_permissions(root.join("a"), fs::Permissions::from_mode(0o755)).unwrap();
        changed("whether it can be run");
        fs::rename(root.join("sub/b"), root.join("sub/c")).unwrap();
        changed("a name");
        fs::rename(root.join("sub/c"), root.join("c")).unwrap();
        changed("a place");
        std::os::unix::fs::symlink("a", root.join("l")).unwrap();
        changed("a link");
        fs::remove_file(root.join("l")).unwrap();
        std::os::unix::fs::symlink("c", root.join("l")).unwrap();
        changed("where it leads");
        fs::write(root.join("new"), "").unwrap();
        changed("a file more");
        let before = directory(root);
        fs::create_dir(root.join("__pycache__")).unwrap();
        fs::write(root.join("__pycache__/x.pyc"), "x").unwrap();
        assert_eq!(directory(root), before, "what is written by running is no part of it");
    }

    #[test]
    fn a_definition_has_one_hash_however_it_is_written() {
        use orla_marketplace::attestation::Definition;
        let contents = Contents::default();
        let of = |source: &str| {
            let source = ContentSource::Definition(Definition::new(source));
            contents.of(source, Path::new("")).hash().unwrap()
        };
        assert_eq!(of("https://a.example/x"), of("https://a.example/x?key=1"));
        assert_ne!(of("https://a.example/x"), of("https://a.example/y"));
        assert!(contents.of(ContentSource::Unknown, Path::new("")).hash().is_err());
        assert!(contents.of(ContentSource::Program, Path::new("")).hash().is_ok());
    }

    #[test]
    fn the_hash_of_unused_content_is_forgotten() {
        let contents = Contents::default();
        let one = contents.of(ContentSource::File("/a".into()), Path::new(""));
        drop(contents.of(ContentSource::File("/b".into()), Path::new("")));
        contents.tidy();
        let paths: Vec<PathBuf> = contents.files.lock().keys().cloned().collect();
        assert_eq!(paths, [PathBuf::from("/a")]);
        drop(one);
    }
}
