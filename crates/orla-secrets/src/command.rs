//! A command whose output is a secret.

use std::io::Read;
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::sync::mpsc;
use std::thread;
use std::time::Duration;

use rustix::process::{Pid, Signal, kill_process_group};
use zeroize::Zeroizing;

/// The timeout of a command.
const TIMEOUT: Duration = Duration::from_secs(30);

/// Runs a line in `/bin/sh` and returns its standard output. Standard error is not read: it may repeat a
/// secret.
///
/// # Errors
/// Why there is no output, without what the command wrote.
pub(crate) fn output(line: &str, directory: &Path, max: u64) -> Result<Zeroizing<Vec<u8>>, String> {
    within(line, directory, max, TIMEOUT)
}

fn within(
    line: &str,
    directory: &Path,
    max: u64,
    timeout: Duration,
) -> Result<Zeroizing<Vec<u8>>, String> {
    let mut command = Command::new("/bin/sh");
    command.arg("-c").arg(line).stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::null());
    if !directory.as_os_str().is_empty() {
        command.current_dir(directory);
    }
    // A separate process group, so that all processes can be ended.
    let child = command.process_group(0).spawn().map_err(|err| format!("cannot be run: {err}"))?;
    let group = i32::try_from(child.id()).ok().and_then(Pid::from_raw);
    let (sender, receiver) = mpsc::channel();
    thread::spawn(move || sender.send(read(child, max)));
    receiver.recv_timeout(timeout).unwrap_or_else(|_| {
        if let Some(group) = group {
            let _ = kill_process_group(group, Signal::KILL);
        }
        Err(format!("gave no output within {} s", timeout.as_secs()))
    })
}

/// Reads a command's output to its end, and waits for it.
fn read(mut child: Child, max: u64) -> Result<Zeroizing<Vec<u8>>, String> {
    let mut bytes = Zeroizing::new(Vec::new());
    if let Some(stdout) = child.stdout.take() {
        let read = stdout.take(max + 1).read_to_end(&mut bytes);
        read.map_err(|err| format!("its output cannot be read: {err}"))?;
    }
    let status = child.wait().map_err(|err| format!("cannot be awaited: {err}"))?;
    if bytes.len() as u64 > max {
        return Err(format!("gave more than {max} bytes"));
    }
    match status.success() {
        true => Ok(bytes),
        false => Err(format!("failed ({status})")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn run(line: &str) -> Result<String, String> {
        let bytes = within(line, Path::new("/"), 10, Duration::from_secs(20))?;
        Ok(String::from_utf8(bytes.to_vec()).unwrap())
    }

    #[test]
    fn the_output_is_the_value_and_errors_do_not_repeat_it() {
        assert_eq!(run("echo abc; echo noise >&2; pwd").unwrap(), "abc\n/\n");
        let failed = run("echo secret; exit 3").unwrap_err();
        assert!(failed.contains("3") && !failed.contains("secret"), "{failed}");
        assert!(run("echo 0123456789").unwrap_err().contains("more than 10 bytes"));
    }

    #[test]
    fn a_command_that_hangs_is_ended() {
        let (sender, receiver) = mpsc::channel();
        thread::spawn(move || {
            let result = within("sleep 100", Path::new(""), 10, Duration::from_millis(50));
            sender.send(result.map(drop)).unwrap();
        });
        let ended = receiver.recv_timeout(Duration::from_secs(20)).unwrap();
        assert!(ended.unwrap_err().contains("no output"));
    }
}
