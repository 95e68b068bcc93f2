//! Records the children of a server, so that they can be ended after the server has ended.
//!
//! A child is identified by its id and its start time, which no later process with that id shares. Only
//! leaders of process groups are recorded, as this crate starts every child as a group leader.

use std::collections::{BTreeSet, HashMap};
use std::fs;
use std::os::fd::AsFd;
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::process::getppid;

use super::LOOKS;

/// Looks that are due within this time are merged.
const NEAR: Duration = Duration::from_millis(25);

/// The children of one server.
#[derive(Debug, Default)]
pub(super) struct Children {
    server: Option<i32>,
    /// The ids, each with the start time in the kernel's ticks.
    seen: HashMap<i32, u64>,
}

impl Children {
    /// Creates the record for the process `server`, which must be the parent of this one.
    pub(super) fn of(server: Option<i32>) -> Self {
        Self { server, seen: HashMap::new() }
    }

    /// Looks a few times after every notification through `lifeline`, until `lifeline` ends. The start
    /// of this process counts as a notification.
    pub(super) fn follow(&mut self, lifeline: &impl AsFd) {
        let mut due = BTreeSet::new();
        let mut notified = true;
        loop {
            let now = Instant::now();
            if notified {
                due.extend(LOOKS.iter().map(|after| now + *after));
            }
            if due.first().is_some_and(|at| *at <= now) {
                self.look();
                due.retain(|at| *at > now + NEAR);
            }
            let next = due.first().map(|at| at.saturating_duration_since(now));
            notified = readable(lifeline, next);
            if notified && matches!(rustix::io::read(lifeline, &mut [0; 64]), Ok(0)) {
                return;
            }
        }
    }

    /// Records the current children, and forgets those that have ended.
    fn look(&mut self) {
        let Some(server) = self.server else { return };
        let found = leaders_below(server);
        self.seen.retain(|pid, start| leader(*pid) == Some(*start));
        // If the server has ended meanwhile, these children may belong to another process.
        if getppid().is_some_and(|parent| parent.as_raw_nonzero().get() == server) {
            self.seen.extend(found);
        }
    }

    /// Kills the remaining children, with their groups. Returns how many there were.
    pub(super) fn kill(&self) -> usize {
        use rustix::process::{
            Pid, PidfdFlags, Signal, kill_process_group, pidfd_open, pidfd_send_signal,
        };
        let kill = |(pid, start): (&i32, &u64)| -> Option<()> {
            let id = Pid::from_raw(*pid)?;
            // The descriptor is opened before the look, so that no reused id is hit.
            let fd = pidfd_open(id, PidfdFlags::empty()).ok()?;
            (leader(*pid)? == *start).then_some(())?;
            let _ = kill_process_group(id, Signal::KILL);
            pidfd_send_signal(&fd, Signal::KILL).ok()
        };
        self.seen.iter().filter_map(kill).count()
    }
}

/// Returns the children of a process that lead groups, except this process.
fn leaders_below(server: i32) -> Vec<(i32, u64)> {
    let tasks = fs::read_dir(format!("/proc/{server}/task")).into_iter().flatten().flatten();
    let mut found = Vec::new();
    for task in tasks {
        let listed = fs::read_to_string(task.path().join("children")).unwrap_or_default();
        let pids = listed.split_whitespace().filter_map(|pid| pid.parse().ok());
        let others = pids.filter(|pid: &i32| pid.cast_unsigned() != std::process::id());
        found.extend(others.filter_map(|pid| Some((pid, leader(pid)?))));
    }
    found
}

/// Returns the start time of a process that runs and leads a process group.
fn leader(pid: i32) -> Option<u64> {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    leader_of(pid, &stat)
}

fn leader_of(pid: i32, stat: &str) -> Option<u64> {
    // The name before the fields may contain any characters.
    let fields: Vec<&str> = stat.rsplit_once(')')?.1.split_whitespace().collect();
    let lives = !matches!(*fields.first()?, "Z" | "X");
    (lives && fields.get(2)?.parse() == Ok(pid)).then_some(())?;
    fields.get(19)?.parse().ok()
}

/// Waits until there is something to read, or the end of input, for at most `limit`.
fn readable(fd: &impl AsFd, limit: Option<Duration>) -> bool {
    let limit = limit.and_then(|limit| Timespec::try_from(limit).ok());
    let mut fds = [PollFd::new(fd, PollFlags::IN)];
    matches!(poll(&mut fds, limit.as_ref()), Ok(count) if count > 0)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::process::{CommandExt, ExitStatusExt};
    use std::process::Command;

    #[test]
    fn a_leader_is_recognised_by_its_group_and_state() {
        let rest = |state: &str, group: i32| {
            format!("7 (a) b) {state} 1 {group} 1 0 -1 0 0 0 0 0 0 0 0 0 20 0 1 0 4711 0 0")
        };
        let cases = [("S", 7, Some(4711)), ("Z", 7, None), ("X", 7, None), ("S", 8, None)];
        for (state, group, start) in cases {
            assert_eq!(leader_of(7, &rest(state, group)), start, "{state} {group}");
        }
        assert_eq!((leader_of(7, ""), leader_of(7, "7 (a) S 1 7")), (None, None));
    }

    #[test]
    #[cfg(target_os = "linux")]
    fn leaders_are_found_and_killed_and_others_are_not() {
        let sleep = || {
            let mut command = Command::new("/bin/sleep");
            command.arg("1000").env_clear();
            command
        };
        let mut leads = sleep().process_group(0).spawn().unwrap();
        let mut follows = sleep().spawn().unwrap();
        let id = |child: &std::process::Child| child.id().cast_signed();
        let own = std::process::id().cast_signed();
        let found: HashMap<i32, u64> = leaders_below(own).into_iter().collect();
        assert!(found.contains_key(&id(&leads)) && !found.contains_key(&id(&follows)));
        let start = found[&id(&leads)];
        // Another process with the same id is not the recorded one.
        let other = Children { server: None, seen: HashMap::from([(id(&leads), start + 1)]) };
        assert_eq!(other.kill(), 0);
        let seen = Children { server: None, seen: HashMap::from([(id(&leads), start)]) };
        assert_eq!(seen.kill(), 1);
        assert_eq!(leads.wait().unwrap().signal(), Some(9));
        assert_eq!(seen.kill(), 0);
        assert!(follows.try_wait().unwrap().is_none());
        follows.kill().unwrap();
        follows.wait().unwrap();
    }
}
