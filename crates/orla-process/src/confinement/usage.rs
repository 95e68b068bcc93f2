//! Measures the resources that the processes of a call use, and compares them with their limits.
//!
//! The kernel enforces some limits for each process ([`restrict`]). Those of the whole tree it enforces too if the tree has a
//! control group. Otherwise the first process of the tree reads what the tree uses from its own `/proc` ([`Watch`]). In both cases,
//! the time in which the first process answers system calls is the program's.

use std::collections::HashMap;
use std::fs;
use std::io;
use std::os::fd::BorrowedFd;
use std::time::Duration;

use orla_confine::Limits;
use rustix::process::{Resource, Rlimit, setrlimit};
use rustix::time::{ClockId, clock_gettime};

use crate::cgroup::Meter;

/// The process id of the first process of a tree, which watches the others.
const FIRST: u32 = 1;

/// The maximum number of signals and timers of a program that the kernel keeps.
const MAX_PENDING_SIGNALS: u64 = 1024;

/// Bytes that the kernel keeps for a thread, which count as its memory.
const MEMORY_OF_THREAD: u64 = 32 << 10;

/// Encodes the limits for a launcher: each as text, empty if absent.
pub(super) fn encode(limits: &Limits) -> Vec<Vec<u8>> {
    let text = |(_, limit): (_, Option<u64>)| limit.map(|limit| limit.to_string()).unwrap_or_default();
    limits.enforced().map(text).map(String::into_bytes).to_vec()
}

/// Decodes the output of [`encode`].
pub(super) fn decode(limits: &[Vec<u8>]) -> Result<Limits, String> {
    let limit = |bytes: &Vec<u8>| match bytes.as_slice() {
        [] => Ok(None),
        digits => {
            let number = str::from_utf8(digits).ok().and_then(|text| text.parse().ok());
            number.map(Some).ok_or("a limit is not a number")
        }
    };
    let limits: Vec<Option<u64>> = limits.iter().map(limit).collect::<Result<_, _>>()?;
    let [memory, cpu_seconds, processes, open_files, file_size] =
        limits.try_into().map_err(|_| "limits are missing")?;
    Ok(Limits { memory, cpu_seconds, processes, open_files, file_size, wall: None })
}

/// Sets the limits that the kernel enforces for each process.
pub(super) fn restrict(limits: &Limits) -> io::Result<()> {
    let both = |value| Rlimit { current: Some(value), maximum: Some(value) };
    setrlimit(Resource::Core, both(0))?;
    let limits = [
        (Resource::Data, limits.memory),
        // The tree is watched as a whole; this limit is the upper bound for a single process.
        (Resource::Cpu, limits.cpu_seconds.map(|seconds| seconds + 1)),
        (Resource::Nofile, limits.open_files),
        (Resource::Fsize, limits.file_size),
        // The user's other processes need them too.
        (Resource::Sigpending, Some(MAX_PENDING_SIGNALS)),
    ];
    for (resource, value) in limits {
        if let Some(value) = value {
            let most = rustix::process::getrlimit(resource).maximum.unwrap_or(u64::MAX);
            setrlimit(resource, both(value.min(most)))?;
        }
    }
    Ok(())
}

/// Returns whether a limit requires watching the tree.
pub(super) fn is_watched(limits: &Limits) -> bool {
    limits.memory.is_some() || limits.cpu_seconds.is_some() || limits.processes.is_some()
}

/// Returns the limit for which the kernel ended a program with this status.
pub(super) fn exceeded(limits: &Limits, status: i32) -> Option<&'static str> {
    match status & 0x7f {
        libc::SIGXCPU => limits.cpu_seconds.map(|_| "cpu_seconds"),
        libc::SIGXFSZ => limits.file_size.map(|_| "file_size"),
        _ => None,
    }
}

/// Watches the resource use of a tree.
#[derive(Debug)]
pub(super) enum Watch<'a> {
    /// By its control group, whose limits the kernel enforces. The time is that of answers to earlier programs.
    Group(Meter, &'a Limits, Duration),
    /// By a look at every process.
    Processes(Processes<'a>),
}

impl<'a> Watch<'a> {
    /// Starts to watch a program, by its control group if it has one.
    pub(super) fn new(limits: &'a Limits, group: Option<Meter>) -> Self {
        match group {
            Some(meter) => Self::Group(meter, limits, answering()),
            None => Self::Processes(Processes::new(limits)),
        }
    }

    /// Ends watching a program, after which nothing runs in its control group. Returns what measures the group.
    ///
    /// # Errors
    /// The group cannot be read.
    pub(super) fn end(self) -> io::Result<Option<Meter>> {
        match self {
            Self::Group(meter, ..) => meter.restarted().map(Some),
            Self::Processes(_) => Ok(None),
        }
    }

    /// Returns the limit that the tree exceeds. A tree that cannot be watched exceeds the first of its
    /// limits.
    pub(super) fn breach(&mut self) -> Option<&'static str> {
        let (breach, limits) = match self {
            Self::Group(meter, limits, before) => {
                (meter.breach(answering().saturating_sub(*before)), limits)
            }
            Self::Processes(processes) => (processes.look(), &mut processes.limits),
        };
        breach.unwrap_or_else(|_| {
            limits.enforced().into_iter().find_map(|(name, limit)| limit.map(|_| name))
        })
    }

    /// Returns the limit that an ended program has exceeded.
    pub(super) fn last_breach(&self) -> Option<&'static str> {
        match self {
            Self::Group(meter, ..) => {
                meter.was_refused_a_process().is_ok_and(|was| was).then_some("processes")
            }
            Self::Processes(_) => None,
        }
    }

    /// Returns the file that reports (`POLLPRI`) that a limit was exceeded.
    pub(super) fn reports(&self) -> Option<BorrowedFd<'_>> {
        match self {
            Self::Group(meter, ..) => Some(meter.reports()),
            Self::Processes(_) => None,
        }
    }

    /// Returns whether the tree must be looked at regularly.
    pub(super) fn must_poll(&self) -> bool {
        match self {
            Self::Group(meter, ..) => meter.must_poll(),
            Self::Processes(_) => true,
        }
    }
}

/// The processes of a tree.
#[derive(Debug)]
pub(super) struct Processes<'a> {
    limits: &'a Limits,
    /// The processor time of the processes at the last look, by process id and start time.
    seen: HashMap<(u32, u64), u64>,
    /// The processor time of processes that have ended since, as of the last look at each.
    ended: u64,
    /// The highest processor time that a look has found.
    ticks: u64,
    /// The processor time of the children that the first process had reaped before.
    before: u64,
    /// The time of answers to earlier programs.
    answering_before: Duration,
}

/// Returns the processor time of this thread.
pub(super) fn own_time() -> Duration {
    time(ClockId::ThreadCPUTime)
}

/// Returns the processor time of the threads of this process other than this one: those that answer system calls.
fn answering() -> Duration {
    time(ClockId::ProcessCPUTime).saturating_sub(own_time())
}

fn time(clock: ClockId) -> Duration {
    Duration::try_from(clock_gettime(clock)).unwrap_or_default()
}

impl<'a> Processes<'a> {
    fn new(limits: &'a Limits) -> Self {
        let first = read(FIRST, "stat").ok().flatten();
        let before = first.and_then(|stat| Stat::of(&stat)).map_or(0, |stat| stat.reaped);
        Self { limits, seen: HashMap::new(), ended: 0, ticks: 0, before, answering_before: answering() }
    }

    /// Returns the limit that the processes exceed.
    fn look(&mut self) -> io::Result<Option<&'static str>> {
        let (mut tasks, mut memory, mut reaped) = (0_u64, 0_u64, 0_u64);
        let mut seen = HashMap::new();
        for entry in fs::read_dir("/proc")? {
            let name = entry?.file_name();
            let Some(pid) = name.to_str().and_then(|name| name.parse::<u32>().ok()) else { continue };
            let Some(stat) = read(pid, "stat")? else { continue };
            let stat = Stat::of(&stat).ok_or(io::ErrorKind::InvalidData)?;
            if pid == FIRST {
                reaped += stat.reaped.saturating_sub(self.before);
                continue;
            }
            reaped += stat.reaped;
            tasks += stat.threads;
            seen.insert((pid, stat.started), stat.own);
            if self.limits.memory.is_some() {
                memory += memory_of(pid)? + stat.threads * MEMORY_OF_THREAD;
            }
        }
        let own: u64 = seen.values().sum();
        let gone = self.seen.iter().filter(|(process, _)| !seen.contains_key(process));
        self.ended += gone.map(|(_, ticks)| ticks).sum::<u64>();
        self.seen = seen;
        // A parent's counters include the children that it has reaped. The time of other children is
        // known only from a look at them.
        self.ticks = self.ticks.max(own + reaped.max(self.ended));
        let ticks_per_second = rustix::param::clock_ticks_per_second().max(1);
        let answering = answering().saturating_sub(self.answering_before);
        let seconds = (self.ticks * 1_000 / ticks_per_second + millis(answering)) / 1_000;
        let over = [
            ("processes", self.limits.processes.is_some_and(|limit| tasks > limit)),
            ("memory", self.limits.memory.is_some_and(|limit| memory > limit)),
            ("cpu_seconds", self.limits.cpu_seconds.is_some_and(|limit| seconds >= limit)),
        ];
        Ok(over.into_iter().find_map(|(name, is_over)| is_over.then_some(name)))
    }
}

fn millis(time: Duration) -> u64 {
    u64::try_from(time.as_millis()).unwrap_or(u64::MAX)
}

/// Reads a file of a process; `None` if the process has ended.
fn read(pid: u32, file: &str) -> io::Result<Option<String>> {
    match fs::read(format!("/proc/{pid}/{file}")) {
        // The name of a process may be any bytes.
        Ok(bytes) => Ok(Some(String::from_utf8_lossy(&bytes).into_owned())),
        Err(err) if matches!(err.raw_os_error(), Some(libc::ENOENT | libc::ESRCH)) => Ok(None),
        Err(err) => Err(err),
    }
}

/// Fields of `/proc/PID/stat`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Stat {
    /// Clock ticks that the process has used.
    own: u64,
    /// Clock ticks of the children that the process has reaped.
    reaped: u64,
    threads: u64,
    /// The start time in clock ticks, which distinguishes the process from a later one with the same id.
    started: u64,
}

impl Stat {
    fn of(text: &str) -> Option<Self> {
        // The name may contain any characters. The fields begin after it, with the third of proc(5).
        let fields: Vec<&str> = text.rsplit_once(") ")?.1.split_ascii_whitespace().collect();
        let number = |field: usize| fields.get(field - 3)?.parse::<u64>().ok();
        Some(Self {
            own: number(14)? + number(15)?,
            reaped: number(16)? + number(17)?,
            threads: number(20)?.max(1),
            started: number(22)?,
        })
    }
}

/// Returns the bytes of memory of a process. If its first thread has ended, the others tell.
fn memory_of(pid: u32) -> io::Result<u64> {
    let Some(bytes) = read(pid, "status")?.map(|status| used(&status)) else { return Ok(0) };
    if let Some(bytes) = bytes {
        return Ok(bytes);
    }
    let Ok(threads) = fs::read_dir(format!("/proc/{pid}/task")) else { return Ok(0) };
    for thread in threads.flatten() {
        let status = read(pid, &format!("task/{}/status", thread.file_name().display()))?;
        if let Some(bytes) = status.and_then(|status| used(&status)) {
            return Ok(bytes);
        }
    }
    Ok(0)
}

/// The fields of `/proc/PID/status` that tell the memory that only this process uses, and its shared memory: also what was
/// swapped out, huge pages, and page tables.
const MEMORY: [&str; 5] = ["RssAnon:", "RssShmem:", "VmSwap:", "HugetlbPages:", "VmPTE:"];

/// Bytes of the kernel's table for each open file that fits into it.
const MEMORY_OF_PLACE: u64 = 9;

/// Returns the bytes of memory in `/proc/PID/status`, with the table of open files; `None` if the thread has ended.
fn used(status: &str) -> Option<u64> {
    let fields =
        status.lines().filter_map(|line| MEMORY.iter().find_map(|name| line.strip_prefix(name)));
    let kilobytes =
        fields.filter_map(|field| field.trim().strip_suffix("kB")?.trim().parse::<u64>().ok());
    let kilobytes = kilobytes.reduce(|sum, more| sum + more)?;
    let places = status.lines().find_map(|line| line.strip_prefix("FDSize:")?.trim().parse().ok());
    Some(kilobytes * 1024 + places.unwrap_or(0_u64) * MEMORY_OF_PLACE)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_fields_of_a_process_follow_its_name_even_if_that_imitates_them() {
        let stat = "7 (a) S 1 (b) R 3 7 7 0 -1 4194304 100 0 0 0 11 12 13 14 20 0 5 0 4242 9 1";
        let expected = Stat { own: 23, reaped: 27, threads: 5, started: 4242 };
        assert_eq!(Stat::of(stat), Some(expected));
        assert_eq!(Stat::of("7 (a) S 1 2"), None);
    }

    #[test]
    fn the_memory_of_a_process_is_what_only_it_uses() {
        let status = "Name:\tx\nFDSize:\t64\nRssAnon:\t     8 kB\nRssFile:\t 4 kB\nRssShmem:\t 2 kB\nVmPTE:\t 1 kB\n";
        assert_eq!(used(status), Some(11 * 1024 + 64 * 9));
        assert_eq!(used("Name:\tx\nState:\tZ (zombie)\n"), None);
    }

    #[test]
    fn a_process_has_memory_until_it_has_ended() {
        let id = std::process::id();
        let whole = memory_of(id).unwrap();
        assert!(whole > 0 && memory_of(u32::MAX).unwrap() == 0);
    }

    #[test]
    fn limits_are_read_as_they_were_written() {
        let limits = Limits { memory: Some(1), file_size: Some(u64::MAX), ..Limits::default() };
        assert_eq!(decode(&encode(&limits)), Ok(limits));
        assert!(decode(&[b"x".to_vec()]).is_err());
    }

    #[test]
    fn the_tree_of_this_process_is_within_wide_limits_and_over_narrow_ones() {
        let wide = Limits { processes: Some(1 << 30), ..Limits::default() };
        assert_eq!(Watch::new(&wide, None).breach(), None);
        let narrow = Limits { memory: Some(1), ..Limits::default() };
        assert_eq!(Watch::new(&narrow, None).breach(), Some("memory"));
    }
}
