//! Follows the links of a path one by one, to detect links that a confined program could have made.

use std::collections::VecDeque;
use std::ffi::OsString;
use std::io;
use std::path::{Component, Path, PathBuf};

use rustix::io::Errno;

/// The maximum number of links in a path, as in the kernel.
const MAX_LINKS: usize = 40;

/// The target of a path.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Resolved {
    /// The path without links.
    pub(super) real: PathBuf,
    /// Whether a link in the path is in a writable directory.
    pub(super) is_changeable: bool,
}

/// Resolves a path. `is_writable` decides on a directory by its real path.
///
/// # Errors
/// It leads nowhere, or in a circle.
pub(super) fn resolve(path: &Path, is_writable: impl Fn(&Path) -> bool) -> io::Result<Resolved> {
    let mut resolved = Resolved { real: PathBuf::from("/"), is_changeable: false };
    follow(path, is_writable, &mut resolved)?;
    Ok(resolved)
}

/// Returns whether something in a writable place decides where a path leads to, or that it leads nowhere.
pub(super) fn is_decided_in(path: &Path, is_writable: impl Fn(&Path) -> bool) -> bool {
    let mut resolved = Resolved { real: PathBuf::from("/"), is_changeable: false };
    let followed = follow(path, &is_writable, &mut resolved);
    // Where it ends, something is missing.
    resolved.is_changeable || followed.is_err() && is_writable(&resolved.real)
}

/// Follows a path from the root as far as it leads.
fn follow(path: &Path, is_writable: impl Fn(&Path) -> bool, resolved: &mut Resolved) -> io::Result<()> {
    let mut left: VecDeque<OsString> = parts(&std::path::absolute(path)?);
    let mut links = 0;
    while let Some(part) = left.pop_front() {
        if part == ".." {
            resolved.real.pop();
            continue;
        }
        let place = resolved.real.join(&part);
        match std::fs::read_link(&place) {
            Ok(target) => {
                links += 1;
                if links > MAX_LINKS {
                    return Err(Errno::LOOP.into());
                }
                resolved.is_changeable |= is_writable(&resolved.real);
                if target.is_absolute() {
                    resolved.real = PathBuf::from("/");
                }
                for part in parts(&target).into_iter().rev() {
                    left.push_front(part);
                }
            }
            // The file exists and is not a link.
            Err(err) if Errno::from_io_error(&err) == Some(Errno::INVAL) => resolved.real = place,
            Err(err) => return Err(err),
        }
    }
    Ok(())
}

/// Returns the real paths of those writable places that no program of the profile can have moved: no link
/// in their paths is in a writable place.
pub(super) fn unchangeable<'p>(declared: impl Iterator<Item = &'p PathBuf>) -> Vec<PathBuf> {
    let places: Vec<(&PathBuf, PathBuf)> =
        declared.filter_map(|path| Some((path, std::fs::canonicalize(path).ok()?))).collect();
    let is_writable = |path: &Path| places.iter().any(|(_, place)| path.starts_with(place));
    let is_kept = |path: &Path| resolve(path, is_writable).is_ok_and(|found| !found.is_changeable);
    places.iter().filter(|(path, _)| is_kept(path)).map(|(_, place)| place.clone()).collect()
}

/// Returns the real path of a file that is passed to a program.
///
/// # Errors
/// It is not there, or a link in a writable place, which the program may have made, leads to it, and such links may
/// not lead there.
pub(super) fn real_path(
    path: &Path,
    is_writable: impl Fn(&Path) -> bool,
    may_lead_to: impl Fn(&Path) -> bool,
) -> io::Result<PathBuf> {
    let Resolved { real, is_changeable } = resolve(path, is_writable)?;
    if is_changeable && !may_lead_to(&real) {
        return Err(io::Error::other("a link leads out of what the program may write"));
    }
    Ok(real)
}

fn parts(path: &Path) -> VecDeque<OsString> {
    let named = |part: Component<'_>| match part {
        Component::Normal(name) => Some(name.to_owned()),
        Component::ParentDir => Some("..".into()),
        Component::RootDir | Component::CurDir | Component::Prefix(_) => None,
    };
    path.components().filter_map(named).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::symlink;

    #[test]
    fn a_link_in_a_writable_directory_is_noticed_wherever_the_path_begins() {
        let folder = tempfile::tempdir().unwrap();
        let root = folder.path().canonicalize().unwrap();
        let at = |name: &str| root.join(name);
        for name in ["w/sub", "out"] {
            std::fs::create_dir_all(at(name)).unwrap();
        }
        symlink("w/sub", at("direct")).unwrap();
        symlink("../out", at("w/link")).unwrap();
        symlink("w/link/../out", at("through")).unwrap();
        symlink("circle", at("circle")).unwrap();
        let of = |name: &str| resolve(&at(name), |place| place.starts_with(at("w")));
        for (name, real, is_changeable) in [
            ("out", "out", false),
            ("w/sub", "w/sub", false),
            ("direct", "w/sub", false),
            ("w/link", "out", true),
            ("through", "out", true),
        ] {
            assert_eq!(of(name).unwrap(), Resolved { real: at(real), is_changeable }, "{name}");
        }
        assert!(of("circle").is_err() && of("missing").is_err());
    }

    #[test]
    fn what_is_missing_in_a_writable_directory_is_decided_there_however_the_path_leads_to_it() {
        let folder = tempfile::tempdir().unwrap();
        let root = folder.path().canonicalize().unwrap();
        let at = |name: &str| root.join(name);
        std::fs::create_dir_all(at("w/sub")).unwrap();
        symlink("w/gone", at("to")).unwrap();
        symlink("/nowhere", at("w/out")).unwrap();
        symlink("nowhere", at("link")).unwrap();
        for (name, is_decided) in [
            ("w/gone", true),
            ("w/gone/x", true),
            ("w/sub/x", true),
            ("to", true),
            ("to/x", true),
            ("w/out", true),
            ("w/sub/../../missing", false),
            ("w/sub", false),
            ("link", false),
            ("missing", false),
        ] {
            assert_eq!(
                is_decided_in(&at(name), |place| place.starts_with(at("w"))),
                is_decided,
                "{name}"
            );
        }
    }
}
