//! A server whose system calls strace records.

use std::fs::File;
use std::io::{Read as _, Seek as _, SeekFrom};
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use super::{TIMEOUT, problem};
use crate::server::Server;

/// Returns whether there is a strace that may trace, on a machine with the system calls that are recorded. On
/// Debian, it is installed by root.
pub(super) fn is_there() -> bool {
    let is_there = || {
        let mut strace = Command::new("strace");
        strace.args(["-f", "-q", "-o", "/dev/null", "true"]).stdin(Stdio::null());
        cfg!(target_arch = "x86_64") && strace.output().is_ok_and(|output| output.status.success())
    };
    let install = || {
        let script = "apt-get -qq update && apt-get -qq install -y --no-install-recommends strace";
        let mut apt = Command::new("timeout");
        apt.args(["300", "sh", "-c", script]).stdin(Stdio::null());
        rustix::process::geteuid().is_root() && apt.output().is_ok() && is_there()
    };
    is_there() || install()
}

/// Returns the command of a server in a folder, whose system calls are added to a record. The server is the child, and strace is
/// beside it.
pub(super) fn command(orla: &Path, folder: &Path, record: &Path, options: &[&str]) -> Command {
    let mut command = Command::new("strace");
    command.args(["-D", "-f", "-q", "-A", "-e", "signal=none", "-o"]).arg(record).args(options);
    command.arg(orla).args(["--port", "0", "--log-format", "json"]).current_dir(folder);
    command
}

/// Ends a server, and waits until its record is whole.
pub(super) fn end(server: Server, record: &Path) -> Result<(), String> {
    const TAIL: u64 = 64 << 10;
    let pid = server.pid().to_string();
    if !server.end(TIMEOUT)?.success() {
        return Err("the server did not end well".to_owned());
    }
    let end = Instant::now() + TIMEOUT;
    let mut file = File::open(record).map_err(problem(record))?;
    loop {
        let mut tail = Vec::new();
        let size = file.metadata().map_err(problem(record))?.len();
        file.seek(SeekFrom::Start(size.saturating_sub(TAIL)))
            .and_then(|_| file.read_to_end(&mut tail))
            .map_err(problem(record))?;
        if String::from_utf8_lossy(&tail).lines().any(|line| is_last(line, &pid)) {
            return Ok(());
        }
        if Instant::now() > end {
            return Err("strace does not end".to_owned());
        }
        std::thread::sleep(Duration::from_millis(20));
    }
}

/// Returns whether a line of a record is the last one of this process. Short numbers are followed by several
/// spaces.
fn is_last(line: &str, pid: &str) -> bool {
    line.split_whitespace().take(2).eq([pid, "+++"])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_last_line_of_a_process_is_found_whatever_the_length_of_its_number() {
        assert!(is_last("12345 +++ exited with 0 +++", "12345"));
        assert!(is_last("1234  +++ exited with 0 +++", "1234"));
        assert!(!is_last("12345 +++ exited with 0 +++", "1234"));
        assert!(!is_last("1234  write(1</dev/null>, \"+++\", 3) = 3", "1234"));
    }
}
