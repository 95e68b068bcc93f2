//! The duties of the first process of a container: a process that loses its parent becomes a child of
//! the first process, and stays a zombie until it is reaped.
//!
//! A server that is the first process therefore starts itself once more, as its only child. The first
//! process then only passes on signals and reaps. The server never has a child that it did not start.

use std::env;
use std::ffi::OsString;
use std::io::{self, IsTerminal as _};
use std::os::unix::process::CommandExt as _;
use std::process::{Command, ExitCode};

use rustix::io::Errno;
use rustix::process::{Pid, Signal, WaitOptions, kill_process, wait};
use signal_hook::consts::{SIGCHLD, SIGHUP, SIGINT, SIGQUIT, SIGTERM, SIGUSR1, SIGUSR2};
use signal_hook::iterator::Signals;

/// Serves as `init` if this is the first process, and returns the server's exit code when the server has
/// ended. Call this function in `main` before any thread is started.
pub fn run_if_first() -> Option<ExitCode> {
    if std::process::id() != 1 {
        return None;
    }
    match run() {
        Ok(code) => Some(code),
        // A server that may accumulate zombies is better than no server.
        Err(err) => {
            tracing::warn!(error = %err, "cannot reap for others");
            None
        }
    }
}

fn run() -> io::Result<ExitCode> {
    let forwarded = [
        (SIGHUP, Signal::HUP),
        (SIGINT, Signal::INT),
        (SIGQUIT, Signal::QUIT),
        (SIGTERM, Signal::TERM),
        (SIGUSR1, Signal::USR1),
        (SIGUSR2, Signal::USR2),
    ];
    // The handlers are set before the start, so that no signal and no exit is missed.
    let mut signals = Signals::new(forwarded.iter().map(|(number, _)| *number).chain([SIGCHLD]))?;
    let mut args = env::args_os();
    let name = args.next().unwrap_or_else(|| OsString::from("server"));
    // The child is not waited for through `std`: the loop below waits for every child.
    let child = Command::new(env::current_exe()?).arg0(name).args(args).spawn()?;
    let server = Pid::from_child(&child);
    // A terminal sends its signals to the server as well.
    let by_terminal = io::stdin().is_terminal();
    for signal in signals.forever() {
        if signal == SIGCHLD {
            if let Some(code) = reap(server) {
                return Ok(code);
            }
        } else if let Some((_, signal)) = forwarded.iter().find(|(number, _)| *number == signal)
            && !(by_terminal && matches!(*signal, Signal::INT | Signal::QUIT))
        {
            let _ = kill_process(server, *signal);
        }
    }
    Ok(ExitCode::FAILURE)
}

/// Reaps the processes that have exited. Returns the server's exit code once the server has exited.
fn reap(server: Pid) -> Option<ExitCode> {
    let mut code = None;
    loop {
        match wait(WaitOptions::NOHANG) {
            Ok(Some((pid, status))) if pid == server => {
                let number = status
                    .exit_status()
                    .or_else(|| status.terminating_signal().map(|signal| 128 + signal))
                    .unwrap_or(1);
                code = Some(ExitCode::from(u8::try_from(number).unwrap_or(1)));
            }
            Ok(Some(_)) | Err(Errno::INTR) => {}
            Ok(None) | Err(_) => return code,
        }
    }
}
