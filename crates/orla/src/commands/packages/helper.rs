//! Programs of this machine that fetch: `git`, `npm`, `pip` and `cargo`.

use std::ffi::OsStr;
use std::io::Read;
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Command, Stdio};
use std::sync::{Once, mpsc};
use std::thread;
use std::time::{Duration, Instant};

use orla_process::inheritance::ignored_signals;
use parking_lot::{Mutex, MutexGuard};
use rustix::process::{Pid, Signal, kill_process_group};
use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};
use signal_hook::iterator::Signals;
use signal_hook::low_level::emulate_default_handler;

use crate::text::cut;

/// How long one of them may take.
const TIMEOUT: Duration = Duration::from_secs(600);
/// The maximum number of bytes that one of them may write, to each stream.
const MAX_OUTPUT: u64 = 256 << 20;
/// How long one of them may take to end after a signal, and how often this is checked.
const END_GRACE: Duration = Duration::from_secs(1);
const END_CHECK: Duration = Duration::from_millis(5);

/// The process groups of those that run. The terminal does not send them its signals.
static RUNNING: Mutex<Vec<Pid>> = Mutex::new(Vec::new());

/// Returns a program by its path, or by its name in `PATH`, to run in a directory. A program such as Python
/// runs files of its directory, so this is the project only if the program is to work on the project.
pub(super) fn program(name: impl AsRef<OsStr>, directory: &Path) -> Command {
    let mut program = Command::new(name);
    program.current_dir(directory);
    program
}

/// Runs a program to its end and returns its standard output.
///
/// # Errors
///
/// Returns an error if the program is not installed, fails or takes too long. The sentence contains the
/// last line of its output.
pub(super) fn output(command: &mut Command) -> Result<Vec<u8>, String> {
    let name = command.get_program().to_string_lossy().into_owned();
    command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
    end_with_this_process();
    let mut running = RUNNING.lock();
    // A separate process group, so that all of it can be ended.
    let mut child = command.process_group(0).spawn().map_err(|error| match error.kind() {
        std::io::ErrorKind::NotFound => format!("{name} is needed for this source and is not installed"),
        _ => format!("{name} cannot be run: {error}"),
    })?;
    let group = Pid::from_child(&child);
    running.push(group);
    drop(running);
    let (stdout, stderr) = (child.stdout.take(), child.stderr.take());
    let (sender, receiver) = mpsc::channel();
    let reader = thread::spawn(move || stderr.map(all).unwrap_or_default());
    thread::spawn(move || {
        let output = stdout.map(all).unwrap_or_default();
        let status = child.wait();
        RUNNING.lock().retain(|running| *running != group);
        sender.send((output, reader.join().unwrap_or_default(), status))
    });
    let Ok((output, errors, status)) = receiver.recv_timeout(TIMEOUT) else {
        let _ = kill_process_group(group, Signal::KILL);
        return Err(format!("{name} did not end within {} s", TIMEOUT.as_secs()));
    };
    let status = status.map_err(|error| format!("{name} cannot be awaited: {error}"))?;
    if output.len() as u64 > MAX_OUTPUT {
        return Err(format!("{name} wrote more than {} MiB", MAX_OUTPUT >> 20));
    }
    if !status.success() {
        let errors = String::from_utf8_lossy(&errors);
        let lines: Vec<&str> = errors.lines().filter(|line| !line.trim().is_empty()).collect();
        // The error is in the first line that looks like one, or else in the last line.
        let is_it = |line: &str| line.contains("error") || line.contains("fatal");
        let message = lines.iter().find(|line| is_it(line) && !line.starts_with("npm error code "));
        let message = message.or(lines.last()).map_or_else(|| status.to_string(), |line| cut(line, 300));
        // Cargo gives the reasons below each other.
        let cause =
            lines.iter().rposition(|line| *line == "Caused by:").and_then(|at| lines.get(at + 1));
        let cause = cause.map(|line| format!(": {}", cut(line.trim(), 300))).unwrap_or_default();
        return Err(format!("{name} failed: {message}{cause}"));
    }
    Ok(output)
}

/// From the first call on, a signal that ends this process ends the programs first: `git` removes its locks.
fn end_with_this_process() {
    static ONCE: Once = Once::new();
    ONCE.call_once(|| {
        let signals = [SIGHUP, SIGINT, SIGTERM].into_iter();
        let signals = signals.filter(|signal| !ignored_signals().contains(signal));
        // Without this, they run to their end.
        let Ok(mut signals) = Signals::new(signals) else { return };
        thread::spawn(move || {
            for signal in signals.forever() {
                drop(end_running(Signal::TERM));
                let end = Instant::now() + END_GRACE;
                while !RUNNING.lock().is_empty() && Instant::now() < end {
                    thread::sleep(END_CHECK);
                }
                // No other one begins meanwhile.
                let _running = end_running(Signal::KILL);
                let _ = emulate_default_handler(signal);
            }
        });
    });
}

/// Sends a signal to the programs that run. None begins and none is forgotten while the result exists.
fn end_running(signal: Signal) -> MutexGuard<'static, Vec<Pid>> {
    let running = RUNNING.lock();
    for group in &*running {
        let _ = kill_process_group(*group, signal);
    }
    running
}

fn all(stream: impl Read) -> Vec<u8> {
    let mut bytes = Vec::new();
    let _ = stream.take(MAX_OUTPUT + 1).read_to_end(&mut bytes);
    bytes
}
