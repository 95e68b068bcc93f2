//! Information of the system about processes: those with a mark, open descriptors, resident memory.
//!
//! All of it is read from `/proc`. Where `/proc` is missing or unreadable, the answers are `None` or
//! empty, and tests that need them say so.

use std::path::PathBuf;

/// A living process.
#[derive(Clone, Debug)]
pub struct Process {
    /// Its process id.
    pub id: u32,
    /// Its arguments, separated by spaces.
    pub command_line: String,
    /// Its environment, one `NAME=value` a line.
    pub environment: String,
}

/// Returns all living processes (no zombies) that have the text in their command line or environment.
pub fn processes_with(mark: &str) -> Vec<Process> {
    let Ok(entries) = std::fs::read_dir("/proc") else { return Vec::new() };
    let ids = entries.flatten().filter_map(|entry| entry.file_name().to_str()?.parse::<u32>().ok());
    ids.filter(|id| *id != std::process::id())
        .filter_map(Process::read)
        .filter(|process| process.environment.contains(mark) || process.command_line.contains(mark))
        .collect()
}

impl Process {
    pub(crate) fn read(id: u32) -> Option<Self> {
        let text = |name: &str| {
            let bytes = std::fs::read(file(id, name)).ok()?;
            Some(String::from_utf8_lossy(&bytes).into_owned())
        };
        let command_line = text("cmdline")?.replace('\0', " ");
        let environment = text("environ").unwrap_or_default().replace('\0', "\n");
        // A zombie has neither. Between clone and exec, a process has both of its parent.
        let alive = state(id).is_some_and(|state| state != 'Z' && state != 'X');
        alive.then_some(Self { id, command_line, environment })
    }

    /// Returns the name that `pgrep` matches: at most 15 bytes of the program's file name.
    pub fn name(&self) -> String {
        std::fs::read_to_string(file(self.id, "comm")).unwrap_or_default().trim_end().to_owned()
    }
}

fn file(id: u32, name: &str) -> PathBuf {
    PathBuf::from(format!("/proc/{id}/{name}"))
}

/// Fields of `/proc/ID/stat` after the name, which may itself hold spaces and parentheses.
fn stat(id: u32) -> Option<Vec<String>> {
    let text = std::fs::read_to_string(file(id, "stat")).ok()?;
    let (_, fields) = text.rsplit_once(')')?;
    Some(fields.split_whitespace().map(str::to_owned).collect())
}

fn state(id: u32) -> Option<char> {
    stat(id)?.first()?.chars().next()
}

/// The children of a process with their states (`Z` is a zombie).
pub(crate) fn children(parent: u32) -> Vec<(u32, char)> {
    let Ok(entries) = std::fs::read_dir("/proc") else { return Vec::new() };
    let ids = entries.flatten().filter_map(|entry| entry.file_name().to_str()?.parse::<u32>().ok());
    ids.filter_map(|id| {
        let fields = stat(id)?;
        let state = fields.first()?.chars().next()?;
        (fields.get(1)?.parse() == Ok(parent)).then_some((id, state))
    })
    .collect()
}

/// Returns how many descriptors a process has open; `None` if that may not be known.
pub(crate) fn descriptors(id: u32) -> Option<usize> {
    Some(std::fs::read_dir(file(id, "fd")).ok()?.count())
}

/// Returns a figure of `/proc/ID/status` in KiB: `VmRSS` is the resident memory, `VmHWM` its peak.
pub(crate) fn memory_kib(id: u32, figure: &str) -> Option<u64> {
    let status = std::fs::read_to_string(file(id, "status")).ok()?;
    let line = status.lines().find(|line| line.starts_with(figure))?;
    line.split_whitespace().nth(1)?.parse().ok()
}
