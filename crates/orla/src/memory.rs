//! Determines how much memory this process may use: the minimum of the machine's memory and the limits
//! of its control groups. Also decides when the process returns memory.

use std::fs;
use std::path::Path;
use std::sync::Arc;

use orla_marketplace::MemoryBudget;

/// The assumed amount if the system does not say, in bytes.
const UNKNOWN: usize = 4 << 30;

/// Returns the memory that this process may use, in bytes.
pub(crate) fn available() -> usize {
    let machine = fs::read_to_string("/proc/meminfo").ok().and_then(|text| of_machine(&text));
    let groups = fs::read_to_string("/proc/self/cgroup").unwrap_or_default();
    let group = groups.lines().filter_map(of_group).min();
    machine.into_iter().chain(group).min().unwrap_or(UNKNOWN)
}

/// Returns freed memory to the system after each burst of requests.
pub(crate) async fn return_after_bursts(budget: Arc<MemoryBudget>) {
    loop {
        budget.burst_over().await;
        let returned = tokio::task::spawn_blocking(orla_sys::return_freed_memory).await;
        tracing::debug!(done = returned.is_ok(), "memory was returned after a burst");
    }
}

/// `MemTotal` of `/proc/meminfo`, in bytes.
fn of_machine(text: &str) -> Option<usize> {
    let line = text.lines().find_map(|line| line.strip_prefix("MemTotal:"))?;
    let kib: usize = line.trim().strip_suffix("kB")?.trim().parse().ok()?;
    kib.checked_mul(1024)
}

/// Returns the least bound of a group and those around it, from a line of `/proc/self/cgroup`.
fn of_group(line: &str) -> Option<usize> {
    let (root, file, path) = group(line)?;
    let all = Path::new(path.trim_start_matches('/')).ancestors();
    let bounds = all.filter_map(|group| {
        // A group without a bound says `max`, or a number beyond every machine.
        fs::read_to_string(Path::new(root).join(group).join(file)).ok()?.trim().parse().ok()
    });
    bounds.min()
}

/// Returns the mount point, the file with the bound, and the group's path.
fn group(line: &str) -> Option<(&'static str, &'static str, &str)> {
    let mut parts = line.splitn(3, ':');
    let (_, controllers, path) = (parts.next()?, parts.next()?, parts.next()?);
    match controllers {
        "" => Some(("/sys/fs/cgroup", "memory.max", path)),
        _ if controllers.split(',').any(|name| name == "memory") => {
            Some(("/sys/fs/cgroup/memory", "memory.limit_in_bytes", path))
        }
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_system_files_are_read() {
        assert_eq!(of_machine("MemTotal:       24683880 kB\nMemFree: 1 kB\n"), Some(24_683_880 * 1024));
        assert_eq!(of_machine("nothing"), None);
        assert_eq!(group("0::/a/b"), Some(("/sys/fs/cgroup", "memory.max", "/a/b")));
        let first = Some(("/sys/fs/cgroup/memory", "memory.limit_in_bytes", "/a"));
        assert_eq!(group("4:cpu,memory:/a"), first);
        assert_eq!(group("3:cpu:/a"), None);
        assert!(available() > 0);
    }
}
