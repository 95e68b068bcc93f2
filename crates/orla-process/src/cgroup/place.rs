//! Finds the control group of this process from what the kernel writes about it. No I/O.

use std::path::{Component, Path, PathBuf};

/// A control group of version 2.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Place {
    /// Its directory.
    pub(super) directory: PathBuf,
    /// Whether it is the topmost group that this process can see.
    pub(super) is_top: bool,
}

/// Returns the group of a process; `None` if it has none of version 2, or if no mount shows it. `groups` is
/// `/proc/PID/cgroup`, and `mounts` is `/proc/PID/mountinfo`.
pub(super) fn find(groups: &str, mounts: &str) -> Option<Place> {
    // `/..` stands for groups above what the process can see. ` (deleted)` follows the path of a removed group.
    let group = Path::new(groups.lines().find_map(|line| line.strip_prefix("0::"))?);
    if group.components().any(|part| part == Component::ParentDir) {
        return None;
    }
    let directory = cgroup2_mounts(mounts).find_map(|(root, point)| {
        let below = group.strip_prefix(&root).ok()?;
        Some(if below.as_os_str().is_empty() { point } else { point.join(below) })
    })?;
    Some(Place { directory, is_top: group == Path::new("/") })
}

/// Returns the mounts of control groups of version 2: the group that each shows, and where.
pub(super) fn cgroup2_mounts(mounts: &str) -> impl Iterator<Item = (PathBuf, PathBuf)> {
    mounts.lines().filter_map(|line| {
        let (mount, system) = line.split_once(" - ")?;
        if system.split(' ').next() != Some("cgroup2") {
            return None;
        }
        let mut fields = mount.split(' ').skip(3);
        Some((unescape(fields.next()?), unescape(fields.next()?)))
    })
}

/// Decodes a path in which spaces and some other bytes are octal (`\040`).
fn unescape(text: &str) -> PathBuf {
    use std::os::unix::ffi::OsStringExt as _;
    let mut bytes = Vec::with_capacity(text.len());
    let mut rest = text.as_bytes();
    while let Some((first, tail)) = rest.split_first() {
        let escaped = (*first == b'\\').then(|| tail.get(..3)).flatten();
        let escaped =
            escaped.and_then(|digits| u8::from_str_radix(str::from_utf8(digits).ok()?, 8).ok());
        bytes.push(escaped.unwrap_or(*first));
        rest = if escaped.is_some() { &tail[3..] } else { tail };
    }
    std::ffi::OsString::from_vec(bytes).into()
}

#[cfg(test)]
mod tests {
    use super::*;

    const HOST: &str = "\
22 1 0:21 / /proc rw,nosuid shared:5 - proc proc rw
30 24 0:26 / /sys/fs/cgroup rw,nosuid,nodev,noexec,relatime shared:9 - cgroup2 cgroup2 rw,nsdelegate
";

    #[test]
    fn the_group_is_below_the_mount_that_shows_it() {
        let found = |groups: &str, mounts: &str| find(groups, mounts).map(|found| found.directory);
        let at = |path: &str| Some(PathBuf::from(path));
        let service = "0::/system.slice/orla.service\n";
        assert_eq!(found(service, HOST), at("/sys/fs/cgroup/system.slice/orla.service"));
        // A container sees its own group as the topmost.
        assert_eq!(found("0::/\n", HOST), at("/sys/fs/cgroup"));
        assert!(find("0::/\n", HOST).is_some_and(|found| found.is_top));
        // A mount may show a part, at a path with a space.
        let part = "30 24 0:26 /system.slice /c\\040g rw - cgroup2 none rw\n";
        assert_eq!(found(service, part), at("/c g/orla.service"));
        assert_eq!(found("0::/user.slice\n", part), None);
    }

    #[test]
    fn other_hierarchies_have_no_group() {
        let first = "30 24 0:26 / /sys/fs/cgroup/memory rw - cgroup cgroup rw,memory\n";
        assert_eq!(find("4:memory:/a\n", first), None);
        assert_eq!(find("4:memory:/a\n0::/a\n", first), None);
        assert_eq!(find("0::/../../a\n", HOST), None);
        assert_eq!(find("", ""), None);
    }
}
