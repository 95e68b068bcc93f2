//! The names of signals, and the exit codes of processes that a signal ended.

use std::borrow::Cow;
use std::os::unix::process::ExitStatusExt;
use std::process::ExitStatus;

use rustix::process::Signal;

/// The exit code of a process that SIGKILL ended.
pub const KILLED: i32 = 128 + Signal::KILL.as_raw();

/// The first of the real-time signals. The C library reserves the two before it.
const REAL_TIME: i32 = 34;

/// Returns the exit code by the shell's convention: 128 + n for signal n.
pub fn exit_code(status: ExitStatus) -> i32 {
    status.code().or_else(|| Some(128 + status.signal()?)).unwrap_or(KILLED)
}

/// Returns the common name of a signal.
pub fn signal_name(number: i32) -> Cow<'static, str> {
    let names = [
        (Signal::HUP, "SIGHUP"),
        (Signal::INT, "SIGINT"),
        (Signal::QUIT, "SIGQUIT"),
        (Signal::ILL, "SIGILL"),
        (Signal::TRAP, "SIGTRAP"),
        (Signal::ABORT, "SIGABRT"),
        (Signal::BUS, "SIGBUS"),
        (Signal::FPE, "SIGFPE"),
        (Signal::KILL, "SIGKILL"),
        (Signal::USR1, "SIGUSR1"),
        (Signal::SEGV, "SIGSEGV"),
        (Signal::USR2, "SIGUSR2"),
        (Signal::PIPE, "SIGPIPE"),
        (Signal::ALARM, "SIGALRM"),
        (Signal::TERM, "SIGTERM"),
        (Signal::XCPU, "SIGXCPU"),
        (Signal::XFSZ, "SIGXFSZ"),
        (Signal::VTALARM, "SIGVTALRM"),
        (Signal::PROF, "SIGPROF"),
        (Signal::SYS, "SIGSYS"),
        (Signal::IO, "SIGIO"),
    ];
    match names.into_iter().find(|(signal, _)| signal.as_raw() == number) {
        Some((_, name)) => Cow::Borrowed(name),
        None if number == REAL_TIME => Cow::Borrowed("SIGRTMIN"),
        None if (REAL_TIME..=64).contains(&number) => {
            Cow::Owned(format!("SIGRTMIN+{}", number - REAL_TIME))
        }
        None => Cow::Owned(format!("signal {number}")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn signals_have_the_names_that_shells_give_them() {
        let names = [6, 34, 40, 64, 65, 16].map(|number| signal_name(number).into_owned());
        assert_eq!(
            names,
            ["SIGABRT", "SIGRTMIN", "SIGRTMIN+6", "SIGRTMIN+30", "signal 65", "signal 16"]
        );
    }
}
