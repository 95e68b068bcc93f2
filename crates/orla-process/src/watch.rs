//! Reports changes of files, once no further change follows.
//!
//! # How it works
//!
//! The system's notifications (inotify, FSEvents) arrive on a thread of the `notify` crate, which only
//! adds to a bounded set. [`Watcher::changed`] waits for the first notification, then until none has
//! come for a while, and returns all of them as one change. Editors replace files instead of writing to
//! them, so the directory around a file is watched. A directory that is removed and created again, or
//! that does not exist yet, is watched through its nearest ancestor. For a link to a file, both the link
//! and its target are watched.
//!
//! # What is deliberately absent
//!
//! Nothing is read here: the receiver of a notification decides what has really changed. Lost
//! notifications (an overflow) count as a change of everything.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Component, Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use notify::event::{AccessKind, AccessMode, EventKind};
pub use notify::{Error, Result};
use notify::{Event, RecommendedWatcher, RecursiveMode, Watcher as _};
use parking_lot::Mutex;
use tokio::sync::Notify;
use tokio::time::{Instant, sleep_until};

/// The maximum number of paths in a change. Further paths are counted.
const NAMED: usize = 64;
/// A change is reported after this time, or ten times `quiet` if that is longer, even if more changes
/// follow.
const AT_MOST: Duration = Duration::from_secs(5);
/// Directories with generated content.
const IGNORED: [&str; 4] = [".git", "node_modules", "__pycache__", "target"];

/// A path to watch. It need not exist.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Target {
    /// A file or directory.
    pub path: PathBuf,
    /// Whether changes in subdirectories count.
    pub recursive: bool,
}

/// A set of changed paths.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Change {
    /// The paths, in order; the first 64 of them.
    pub paths: Vec<PathBuf>,
    /// Whether there are more changes than the named ones, or some notifications were lost.
    pub and_more: bool,
}

/// Watches files and directories.
#[derive(Debug)]
pub struct Watcher {
    system: RecommendedWatcher,
    /// The requested targets, by their absolute paths.
    requested: Vec<Target>,
    pending: Arc<Pending>,
    quiet: Duration,
    armed: BTreeMap<PathBuf, bool>,
}

#[derive(Debug, Default)]
struct Pending {
    /// The requested targets, and the targets of links among them.
    targets: Mutex<Arc<[Target]>>,
    state: Mutex<State>,
    arrived: Notify,
}

#[derive(Debug, Default)]
struct State {
    paths: BTreeSet<PathBuf>,
    and_more: bool,
    /// When the last notification came, to detect a pause.
    newest: Option<Instant>,
}

impl Watcher {
    /// Creates a watcher for `targets`. Changes are reported once none has followed for `quiet`.
    ///
    /// # Errors
    /// The system has no more watches or descriptors.
    pub fn new(targets: Vec<Target>, quiet: Duration) -> Result<Self> {
        let absolute = |target: Target| -> Result<Target> {
            Ok(Target { path: std::path::absolute(&target.path)?, ..target })
        };
        let requested: Vec<Target> = targets.into_iter().map(absolute).collect::<Result<_>>()?;
        let pending = Arc::new(Pending::default());
        let noted = Arc::clone(&pending);
        let system = notify::recommended_watcher(move |event| noted.note(&noted.targets(), event))?;
        let mut watcher = Self { system, requested, pending, quiet, armed: BTreeMap::new() };
        watcher.arm()?;
        Ok(watcher)
    }

    /// Waits for the next change. Nothing is lost when the future is dropped.
    pub async fn changed(&mut self) -> Change {
        loop {
            while self.pending.newest().is_none() {
                self.pending.arrived.notified().await;
            }
            let latest = Instant::now() + (self.quiet * 10).max(AT_MOST);
            while let Some(newest) = self.pending.newest() {
                let until = (newest + self.quiet).min(latest);
                if Instant::now() >= until {
                    break;
                }
                sleep_until(until).await;
            }
            let change = self.pending.take();
            let targets = self.pending.targets();
            let is_moved = |path: &PathBuf| targets.iter().any(|target| target.path.starts_with(path));
            if (change.and_more || change.paths.iter().any(is_moved))
                && let Err(err) = self.arm()
            {
                tracing::warn!(error = %err, "files are no longer watched for changes");
            }
            if change.and_more || !change.paths.is_empty() {
                return change;
            }
        }
    }

    /// Watches the current files and directories in place of the previous ones.
    fn arm(&mut self) -> Result<()> {
        for path in std::mem::take(&mut self.armed).into_keys() {
            // The path may be gone.
            let _ = self.system.unwatch(&path);
        }
        let linked = self.requested.iter().filter_map(linked_file);
        let targets: Arc<[Target]> = self.requested.iter().cloned().chain(linked).collect();
        // The targets are set before the watches, because notifications are compared with them.
        self.pending.set_targets(Arc::clone(&targets));
        for target in targets.iter() {
            if target.path.is_dir() {
                *self.armed.entry(target.path.clone()).or_default() |= target.recursive;
            }
            let around = target.path.ancestors().skip(1).find(|ancestor| ancestor.is_dir());
            if let Some(around) = around {
                self.armed.entry(around.to_owned()).or_default();
            }
        }
        for (path, recursive) in &self.armed {
            let mode = if *recursive { RecursiveMode::Recursive } else { RecursiveMode::NonRecursive };
            match self.system.watch(path, mode) {
                // The path has disappeared since the look. The watch on its ancestor will report it.
                Err(err) if matches!(err.kind, notify::ErrorKind::PathNotFound) => {}
                result => result?,
            }
        }
        Ok(())
    }
}

/// Returns the file that a target leads to, if it is a link to a file. The watch itself follows a link
/// to a directory.
fn linked_file(target: &Target) -> Option<Target> {
    let is_link = target.path.symlink_metadata().ok()?.is_symlink();
    let path = target.path.canonicalize().ok().filter(|path| is_link && path.is_file())?;
    Some(Target { path, recursive: false })
}

impl Pending {
    fn targets(&self) -> Arc<[Target]> {
        Arc::clone(&self.targets.lock())
    }

    fn set_targets(&self, targets: Arc<[Target]>) {
        *self.targets.lock() = targets;
    }

    fn note(&self, targets: &[Target], event: Result<Event>) {
        let mut state = self.state.lock();
        match event {
            Ok(event) if event.need_rescan() => state.and_more = true,
            Ok(event) if !is_change(event.kind) => return,
            Ok(event) => {
                let mut concerned = false;
                for path in event.paths.into_iter().filter(|path| concerns(targets, path)) {
                    concerned = true;
                    if state.paths.len() < NAMED {
                        state.paths.insert(path);
                    } else {
                        state.and_more |= !state.paths.contains(&path);
                    }
                }
                if !concerned {
                    return;
                }
            }
            Err(_) => state.and_more = true,
        }
        state.newest = Some(Instant::now());
        drop(state);
        self.arrived.notify_one();
    }

    fn newest(&self) -> Option<Instant> {
        self.state.lock().newest
    }

    fn take(&self) -> Change {
        let state = std::mem::take(&mut *self.state.lock());
        Change { paths: state.paths.into_iter().collect(), and_more: state.and_more }
    }
}

/// Returns whether a notification is about a change. Opening or reading a file is not a change.
fn is_change(kind: EventKind) -> bool {
    match kind {
        EventKind::Access(kind) => kind == AccessKind::Close(AccessMode::Write),
        _ => true,
    }
}

/// Returns whether a notification about `path` concerns one of the targets.
fn concerns(targets: &[Target], path: &Path) -> bool {
    targets.iter().any(|target| {
        // The target itself, or a directory above it that was created or removed.
        if target.path.starts_with(path) {
            return true;
        }
        let Ok(below) = path.strip_prefix(&target.path) else { return false };
        let mut parts = below.components();
        let ignored = parts.clone().any(
            |part| matches!(part, Component::Normal(name) if IGNORED.iter().any(|made| name == *made)),
        );
        parts.next();
        !ignored && (target.recursive || parts.next().is_none())
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use orla_marketplace::testing::TEST_TIMEOUT;
    use std::fs;

    const QUIET: Duration = Duration::from_millis(30);

    fn watcher(path: &Path, recursive: bool) -> Watcher {
        Watcher::new(vec![Target { path: path.to_owned(), recursive }], QUIET).unwrap()
    }

    async fn change(watcher: &mut Watcher) -> Change {
        tokio::time::timeout(TEST_TIMEOUT, watcher.changed()).await.expect("no change was noticed")
    }

    fn canonical() -> (tempfile::TempDir, PathBuf) {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().canonicalize().unwrap();
        (directory, path)
    }

    #[test]
    fn a_notice_concerns_the_target_its_entries_and_what_is_above_it() {
        let flat = [Target { path: "/a/tools".into(), recursive: false }];
        let deep = [Target { path: "/a/tools".into(), recursive: true }];
        let cases = [
            ("/a/tools", true, true),
            ("/a", true, true),
            ("/a/tools/x", true, true),
            ("/a/tools/d/x", false, true),
            ("/a/tools/.git/x", false, false),
            ("/a/tools/node_modules", false, false),
            ("/a/other", false, false),
            ("/a/toolsx", false, false),
        ];
        for (path, in_flat, in_deep) in cases {
            assert_eq!(concerns(&flat, Path::new(path)), in_flat, "{path}");
            assert_eq!(concerns(&deep, Path::new(path)), in_deep, "{path}");
        }
    }

    #[tokio::test]
    async fn many_changes_at_once_are_reported_together() {
        let (_directory, path) = canonical();
        let mut watcher = watcher(&path, false);
        for number in 0..200 {
            fs::write(path.join(format!("f{number:03}")), "x").unwrap();
        }
        // On a busy machine some events come late, and form a separate change.
        let mut changes = vec![change(&mut watcher).await];
        while let Ok(more) = tokio::time::timeout(QUIET * 5, watcher.changed()).await {
            changes.push(more);
        }
        assert!(changes.len() < 20, "{changes:?}");
        assert!(changes.iter().all(|change| change.paths.len() <= NAMED));
        assert!(changes.iter().any(|change| change.and_more), "{changes:?}");
    }

    #[tokio::test]
    async fn a_file_that_is_replaced_is_noticed_every_time() {
        let (_directory, path) = canonical();
        let file = path.join("orla.yaml");
        fs::write(&file, "1").unwrap();
        let mut watcher = watcher(&file, false);
        for round in 0..3 {
            fs::write(path.join("neighbour"), "x").unwrap();
            fs::write(path.join("new"), round.to_string()).unwrap();
            fs::rename(path.join("new"), &file).unwrap();
            assert_eq!(change(&mut watcher).await.paths, std::slice::from_ref(&file));
        }
    }

    #[tokio::test]
    async fn changes_of_a_linked_file_and_of_the_link_are_noticed() {
        use std::os::unix::fs::symlink;
        let (_directory, path) = canonical();
        // The layout of a mounted ConfigMap: the file is a link through a link to a directory.
        for version in ["one", "two"] {
            fs::create_dir(path.join(version)).unwrap();
            fs::write(path.join(version).join("orla.yaml"), version).unwrap();
        }
        fs::create_dir(path.join("mount")).unwrap();
        let (data, file) = (path.join("mount/data"), path.join("mount/orla.yaml"));
        symlink(path.join("one"), &data).unwrap();
        symlink("data/orla.yaml", &file).unwrap();
        let mut watcher = watcher(&file, false);
        fs::write(path.join("one/orla.yaml"), "edited").unwrap();
        assert_eq!(change(&mut watcher).await.paths, [path.join("one/orla.yaml")]);
        symlink(path.join("two"), path.join("mount/new")).unwrap();
        fs::rename(path.join("mount/new"), &data).unwrap();
        fs::remove_dir_all(path.join("one")).unwrap();
        assert!(!change(&mut watcher).await.paths.is_empty());
        assert_eq!(fs::read_to_string(&file).unwrap(), "two");
        fs::write(path.join("two/orla.yaml"), "edited").unwrap();
        assert_eq!(change(&mut watcher).await.paths, [path.join("two/orla.yaml")]);
    }

    #[tokio::test]
    async fn a_directory_that_comes_goes_and_comes_again_is_watched() {
        let (_directory, path) = canonical();
        let tools = path.join("tools");
        let mut watcher = watcher(&tools, false);
        for _ in 0..2 {
            fs::create_dir(&tools).unwrap();
            assert!(change(&mut watcher).await.paths.contains(&tools));
            fs::write(tools.join("new.sh"), "x").unwrap();
            assert_eq!(change(&mut watcher).await.paths, [tools.join("new.sh")]);
            fs::remove_dir_all(&tools).unwrap();
            assert!(change(&mut watcher).await.paths.contains(&tools));
        }
    }

    #[tokio::test]
    async fn reading_and_running_a_file_is_no_change() {
        let (_directory, path) = canonical();
        let file = path.join("tool");
        fs::write(&file, "x").unwrap();
        let mut watcher = watcher(&path, true);
        fs::read(&file).unwrap();
        let none = tokio::time::timeout(QUIET * 5, watcher.changed()).await;
        assert!(none.is_err(), "{none:?}");
    }

    #[tokio::test]
    async fn a_change_of_the_executable_bit_is_one() {
        use std::os::unix::fs::PermissionsExt as _;
        let (_directory, path) = canonical();
        let file = path.join("tool");
        fs::write(&file, "x").unwrap();
        let mut watcher = watcher(&path, false);
        fs::set_permissions(&file, fs::Permissions::from_mode(0o755)).unwrap();
        assert_eq!(change(&mut watcher).await.paths, [file]);
    }
}
