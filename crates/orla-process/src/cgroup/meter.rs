//! Reads from the files of a control group what its processes have used, and which limits they have reached.

use std::fs::File;
use std::io;
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::fs::FileExt as _;
use std::time::Duration;

use orla_confine::Limits;
use rustix::fs::{Mode, OFlags, openat};

/// The use of one program in a group, in which programs run one after the other.
#[derive(Debug)]
pub(crate) struct Meter {
    tasks: File,
    processor: File,
    /// The largest number of processes that there were, where the kernel (6.6 or newer) tells it.
    most: Option<File>,
    /// The most that there may be, the spawner included.
    processes: Option<u64>,
    cpu_seconds: Option<u64>,
    /// The counters before the program.
    refused_before: u64,
    used_before: u64,
}

impl Meter {
    /// Starts to measure in the group with this directory.
    ///
    /// # Errors
    /// The system's reason.
    pub(crate) fn new(group: BorrowedFd<'_>, limits: &Limits) -> io::Result<Self> {
        let meter = Self {
            tasks: File::from(open(group, "pids.events", OFlags::RDONLY)?),
            processor: File::from(open(group, "cpu.stat", OFlags::RDONLY)?),
            most: open(group, "pids.peak", OFlags::RDONLY).ok().map(File::from),
            processes: limits.processes.map(super::with_spawner),
            cpu_seconds: limits.cpu_seconds,
            refused_before: 0,
            used_before: 0,
        };
        meter.restarted()
    }

    /// Measures from now on, when nothing runs in the group.
    ///
    /// # Errors
    /// The system's reason.
    pub(crate) fn restarted(mut self) -> io::Result<Self> {
        self.refused_before = self.refused()?;
        self.used_before = self.used()?;
        Ok(self)
    }

    /// Returns whether the group must be looked at regularly. The kernel reports the rest.
    pub(crate) fn must_poll(&self) -> bool {
        self.cpu_seconds.is_some()
    }

    /// Returns the file that reports (`POLLPRI`) when a process was refused.
    pub(crate) fn reports(&self) -> BorrowedFd<'_> {
        self.tasks.as_fd()
    }

    /// Returns the limit that the program has reached, if it has also used `more` processor time outside of the group. The kernel itself
    /// ends a group that reaches its limit of memory.
    ///
    /// # Errors
    /// The system's reason.
    pub(crate) fn breach(&self, more: Duration) -> io::Result<Option<&'static str>> {
        if self.was_refused_a_process()? {
            return Ok(Some("processes"));
        }
        let Some(seconds) = self.cpu_seconds else { return Ok(None) };
        let used = Duration::from_micros(self.used()?.saturating_sub(self.used_before)) + more;
        let is_over = used.as_secs() >= seconds;
        Ok(is_over.then_some("cpu_seconds"))
    }

    /// Returns whether the program tried to make more processes than its limit.
    ///
    /// # Errors
    /// The system's reason.
    pub(crate) fn was_refused_a_process(&self) -> io::Result<bool> {
        let Some(limit) = self.processes else { return Ok(false) };
        if self.refused()? <= self.refused_before {
            return Ok(false);
        }
        // Before Linux 6.11, the kernel also counts what a limit around the group refused.
        let most = self.most.as_ref().map(number).transpose()?;
        Ok(most.is_none_or(|most| most >= limit))
    }

    /// Returns how many processes and threads the kernel has refused to the group.
    fn refused(&self) -> io::Result<u64> {
        field(&self.tasks, "max")
    }

    /// Returns the processor time of the group in microseconds.
    fn used(&self) -> io::Result<u64> {
        field(&self.processor, "usage_usec")
    }
}

/// Returns whether a group was ended at its limit of memory.
///
/// # Errors
/// The system's reason.
pub(super) fn is_out_of_memory(group: BorrowedFd<'_>) -> io::Result<bool> {
    // `oom_kill` also counts what the kernel ends for a limit around the group.
    let file = File::from(open(group, "memory.events", OFlags::RDONLY)?);
    Ok(field(&file, "oom")? > 0)
}

pub(super) fn open(
    group: BorrowedFd<'_>,
    file: &str,
    flags: OFlags,
) -> io::Result<std::os::fd::OwnedFd> {
    Ok(openat(group, file, flags | OFlags::CLOEXEC, Mode::empty())?)
}

/// Reads a file that contains a number alone.
fn number(file: &File) -> io::Result<u64> {
    let mut bytes = [0; 32];
    let count = file.read_at(&mut bytes, 0)?;
    let number = str::from_utf8(&bytes[..count]).ok().and_then(|text| text.trim().parse().ok());
    number.ok_or_else(|| io::ErrorKind::InvalidData.into())
}

/// Reads a number from a file of lines `NAME NUMBER`.
fn field(file: &File, name: &str) -> io::Result<u64> {
    let mut bytes = [0; 1024];
    let count = file.read_at(&mut bytes, 0)?;
    let text = String::from_utf8_lossy(&bytes[..count]);
    let number = text.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(' ')?.parse().ok());
    number.ok_or_else(|| io::ErrorKind::InvalidData.into())
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs;
    use std::path::Path;

    fn write(group: &Path, refused: u64, used: u64, oom: u64) {
        fs::write(group.join("pids.events"), format!("max {refused}\n")).unwrap();
        let processor = format!("usage_usec {used}\nuser_usec 1\nsystem_usec 2\n");
        fs::write(group.join("cpu.stat"), processor).unwrap();
        let memory = format!("low 0\nhigh 0\nmax 9\noom {oom}\noom_kill 7\noom_group_kill 1\n");
        fs::write(group.join("memory.events"), memory).unwrap();
    }

    #[test]
    fn a_program_is_measured_from_its_start() {
        let group = tempfile::tempdir().unwrap();
        let directory = File::open(group.path()).unwrap();
        write(group.path(), 3, 5_000_000, 0);
        let limits = Limits { cpu_seconds: Some(2), processes: Some(9), ..Limits::default() };
        let meter = Meter::new(directory.as_fd(), &limits).unwrap();
        assert!(meter.must_poll());
        assert_eq!(meter.breach(Duration::ZERO).unwrap(), None);
        write(group.path(), 3, 6_999_999, 0);
        assert_eq!(meter.breach(Duration::ZERO).unwrap(), None);
        assert_eq!(meter.breach(Duration::from_micros(1)).unwrap(), Some("cpu_seconds"));
        write(group.path(), 3, 7_000_000, 0);
        assert_eq!(meter.breach(Duration::ZERO).unwrap(), Some("cpu_seconds"));
        write(group.path(), 4, 7_000_000, 0);
        assert_eq!(meter.breach(Duration::ZERO).unwrap(), Some("processes"));
        assert_eq!(meter.restarted().unwrap().breach(Duration::ZERO).unwrap(), None);
    }

    #[test]
    fn a_process_that_another_limit_refused_is_no_breach() {
        let group = tempfile::tempdir().unwrap();
        let directory = File::open(group.path()).unwrap();
        write(group.path(), 0, 0, 0);
        fs::write(group.path().join("pids.peak"), "9\n").unwrap();
        let limits = Limits { processes: Some(9), ..Limits::default() };
        let meter = Meter::new(directory.as_fd(), &limits).unwrap();
        let of_memory = Meter::new(directory.as_fd(), &Limits::default()).unwrap();
        write(group.path(), 1, 0, 0);
        assert_eq!(meter.breach(Duration::ZERO).unwrap(), None);
        fs::write(group.path().join("pids.peak"), "10\n").unwrap();
        assert_eq!(meter.breach(Duration::ZERO).unwrap(), Some("processes"));
        assert_eq!(of_memory.breach(Duration::ZERO).unwrap(), None);
    }

    #[test]
    fn only_the_limit_of_the_group_itself_counts() {
        let group = tempfile::tempdir().unwrap();
        let directory = File::open(group.path()).unwrap();
        write(group.path(), 0, 0, 0);
        assert!(!is_out_of_memory(directory.as_fd()).unwrap());
        write(group.path(), 0, 0, 1);
        assert!(is_out_of_memory(directory.as_fd()).unwrap());
        fs::write(group.path().join("memory.events"), "low 0\n").unwrap();
        assert!(is_out_of_memory(directory.as_fd()).is_err());
    }
}
