//! What processes did, by their own records and by `/proc`.

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;
use std::time::{Duration, Instant};

/// Starts and ends that processes of one capsule wrote down, in the order of their clock.
///
/// A process that starts while another one of its capsule lives writes `overlap` instead of `start`: it
/// finds a lock held, because the system releases the locks of a process however it ends.
pub(super) struct Records(Vec<(u64, bool, u32)>);

impl Records {
    /// Reads lines of the form `start PID NANOSECONDS` and `end PID NANOSECONDS`.
    pub(super) fn read(path: &Path) -> Result<Self, String> {
        let text = fs::read_to_string(path).map_err(|err| format!("{}: {err}", path.display()))?;
        let parse = |line: &str| {
            let mut words = line.split_whitespace();
            let is_start = match words.next()? {
                "start" => true,
                "end" => false,
                _ => return None,
            };
            let pid = words.next()?.parse().ok()?;
            Some((words.next()?.parse().ok()?, is_start, pid))
        };
        let lines = text
            .lines()
            .map(|line| parse(line).ok_or_else(|| format!("a record of two processes at once: {line}")));
        let mut records = lines.collect::<Result<Vec<_>, _>>()?;
        records.sort_unstable();
        Ok(Self(records))
    }

    pub(super) fn starts(&self) -> usize {
        self.0.iter().filter(|(_, is_start, _)| *is_start).count()
    }

    /// Returns the most processes that lived at one moment, and how many starts have no end.
    pub(super) fn most_at_once(&self) -> (usize, usize) {
        let (mut alive, mut most) = (BTreeMap::new(), 0);
        for (at, is_start, pid) in &self.0 {
            if *is_start {
                alive.insert(*pid, *at);
                most = most.max(alive.len());
            } else {
                alive.remove(pid);
            }
        }
        (most, alive.len())
    }

    /// The longest time from an end to the next start.
    pub(super) fn longest_gap(&self) -> Duration {
        let gap = |pair: &[(u64, bool, u32)]| match pair {
            [(ended, false, _), (started, true, _)] => started - ended,
            _ => 0,
        };
        Duration::from_nanos(self.0.windows(2).map(gap).max().unwrap_or(0))
    }
}

/// Living processes whose working directory is this folder or below it.
pub(crate) fn processes_in(folder: &Path) -> Vec<u32> {
    let Ok(entries) = fs::read_dir("/proc") else { return Vec::new() };
    let ids = entries.flatten().filter_map(|entry| entry.file_name().to_str()?.parse::<u32>().ok());
    ids.filter(|id| {
        fs::read_link(format!("/proc/{id}/cwd")).is_ok_and(|directory| directory.starts_with(folder))
    })
    .filter(|id| state(*id).is_some_and(|state| state != 'Z'))
    .collect()
}

/// Children of a process that have ended and were not waited for.
pub(super) fn zombies_of(parent: u32) -> usize {
    let Ok(entries) = fs::read_dir("/proc") else { return 0 };
    let ids = entries.flatten().filter_map(|entry| entry.file_name().to_str()?.parse::<u32>().ok());
    ids.filter(|id| state(*id) == Some('Z') && field(*id, 1) == Some(parent.to_string())).count()
}

/// Returns how many descriptors a process has open.
pub(super) fn descriptors(pid: u32) -> Result<usize, String> {
    let path = format!("/proc/{pid}/fd");
    Ok(fs::read_dir(&path).map_err(|err| format!("{path}: {err}"))?.count())
}

/// Waits until a condition holds.
pub(crate) fn until(
    limit: Duration,
    what: &str,
    mut holds: impl FnMut() -> bool,
) -> Result<Duration, String> {
    let started = Instant::now();
    while !holds() {
        if started.elapsed() > limit {
            return Err(format!("not within {limit:?}: {what}"));
        }
        std::thread::sleep(Duration::from_millis(5));
    }
    Ok(started.elapsed())
}

fn state(id: u32) -> Option<char> {
    field(id, 0)?.chars().next()
}

/// Returns a field of `/proc/ID/stat` behind the name, which may itself hold spaces and parentheses.
fn field(id: u32, index: usize) -> Option<String> {
    let text = fs::read_to_string(format!("/proc/{id}/stat")).ok()?;
    text.rsplit_once(')')?.1.split_whitespace().nth(index).map(str::to_owned)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn processes_that_live_at_once_are_seen() {
        let end_to_end = Records(vec![(1, true, 7), (2, false, 7), (5, true, 8)]);
        assert_eq!((end_to_end.most_at_once(), end_to_end.starts()), ((1, 1), 2));
        assert_eq!(end_to_end.longest_gap(), Duration::from_nanos(3));
        let both = Records(vec![(1, true, 7), (2, true, 8), (3, false, 7)]);
        assert_eq!(both.most_at_once(), (2, 1));
    }
}
