//! The combined resource limits of the processes of one call.

use std::time::Duration;

/// The limits of a declaration. An absent limit is not enforced.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Limits {
    /// The maximum memory in bytes.
    pub memory: Option<u64>,
    /// The maximum processor time in seconds.
    pub cpu_seconds: Option<u64>,
    /// The maximum number of concurrent processes and threads.
    pub processes: Option<u64>,
    /// The maximum number of open files of one process.
    pub open_files: Option<u64>,
    /// The maximum size of one written file in bytes.
    pub file_size: Option<u64>,
    /// The timeout of a call, the same as `timeout`.
    pub wall: Option<Duration>,
}

impl Limits {
    /// Returns the limits, overridden by those of `other`.
    #[must_use]
    pub fn changed_by(&self, other: &Self) -> Self {
        Self {
            memory: other.memory.or(self.memory),
            cpu_seconds: other.cpu_seconds.or(self.cpu_seconds),
            processes: other.processes.or(self.processes),
            open_files: other.open_files.or(self.open_files),
            file_size: other.file_size.or(self.file_size),
            wall: other.wall.or(self.wall),
        }
    }

    /// Returns limits of the same kinds that every program has room in.
    #[must_use]
    pub fn widened(&self) -> Self {
        let at_least = |limit: Option<u64>, wide: u64| limit.map(|limit| limit.max(wide));
        Self {
            memory: at_least(self.memory, 1 << 30),
            cpu_seconds: at_least(self.cpu_seconds, 600),
            processes: at_least(self.processes, 1000),
            open_files: at_least(self.open_files, 1024),
            file_size: at_least(self.file_size, 1 << 30),
            wall: self.wall,
        }
    }

    /// Returns the timeout of a call if `timeout` is declared too: the shorter of the two.
    pub fn wall_or(&self, timeout: Option<Duration>) -> Option<Duration> {
        self.wall.into_iter().chain(timeout).min()
    }

    /// The names of the limits that the kernel enforces.
    pub const ENFORCED: [&'static str; 5] =
        ["memory", "cpu_seconds", "processes", "open_files", "file_size"];

    /// Returns the limits that the kernel enforces, by name and in a fixed order.
    pub fn enforced(&self) -> [(&'static str, Option<u64>); 5] {
        let [memory, cpu_seconds, processes, open_files, file_size] = Self::ENFORCED;
        [
            (memory, self.memory),
            (cpu_seconds, self.cpu_seconds),
            (processes, self.processes),
            (open_files, self.open_files),
            (file_size, self.file_size),
        ]
    }

    /// Returns whether these limits require confining a process.
    pub fn confine(&self) -> bool {
        self.enforced().iter().any(|(_, limit)| limit.is_some())
    }
}

/// Parses a size in bytes: `1048576`, `512Mi`, `1Gi`, `100k`.
///
/// # Errors
/// What is expected instead.
pub fn size(text: &str) -> Result<u64, String> {
    const UNITS: [(&str, u64); 10] = [
        ("", 1),
        ("k", 1000),
        ("K", 1000),
        ("M", 1_000_000),
        ("G", 1_000_000_000),
        ("T", 1_000_000_000_000),
        ("Ki", 1 << 10),
        ("Mi", 1 << 20),
        ("Gi", 1 << 30),
        ("Ti", 1 << 40),
    ];
    let text = text.trim();
    let digits = text.len() - text.trim_start_matches(|c: char| c.is_ascii_digit()).len();
    let (number, unit) = text.split_at(digits);
    let unit = unit.trim_start().strip_suffix('B').unwrap_or_else(|| unit.trim_start());
    let factor = UNITS.iter().find(|(name, _)| *name == unit).map(|(_, factor)| *factor);
    let bytes =
        number.parse::<u64>().ok().zip(factor).and_then(|(number, factor)| number.checked_mul(factor));
    bytes
        .filter(|bytes| *bytes > 0)
        .ok_or_else(|| "a number of bytes above 0, such as 1048576 or 512Mi".to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_are_read() {
        for (text, bytes) in [
            ("1048576", Some(1 << 20)),
            ("512Mi", Some(512 << 20)),
            ("1 GiB", Some(1 << 30)),
            ("100k", Some(100_000)),
            ("0", None),
            ("-1", None),
            ("1Zi", None),
            ("Mi", None),
            ("99999999999999999999", None),
            ("99999999999Ti", None),
        ] {
            assert_eq!(size(text).ok(), bytes, "{text}");
        }
    }
}
