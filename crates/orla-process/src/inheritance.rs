//! Stops tools from inheriting what the server inherited from the process that started it.
//!
//! Descriptors stay open across an exec unless they are marked close-on-exec. Ignored signals (of
//! `nohup`, of a shell's background jobs) stay ignored. A tool that inherits such a socket keeps it
//! open. A tool that ignores an interrupt cannot be interrupted.

use std::fs;
use std::sync::atomic::AtomicBool;
use std::sync::{Arc, OnceLock};

use nix::sys::signal::SigSet;
use signal_hook::consts::{FORBIDDEN, SIGPIPE};

/// The first descriptor that is not a standard stream.
const FIRST: i32 = 3;
/// The last classic signal. The C library reserves the two signals after it.
const CLASSIC: i32 = 31;

/// Closes this process to other processes of the same user: they cannot read its environment, memory and
/// descriptors, and cannot trace it. The process leaves no core dump. Children are not affected, as an
/// exec resets the setting. Call this function first in `main`.
///
/// Only Linux supports this per process; on other systems this function does nothing.
pub fn close_to_others() {
    #[cfg(target_os = "linux")]
    {
        use rustix::process::{DumpableBehavior, set_dumpable_behavior};
        // The kernel refuses no valid value.
        let _ = set_dumpable_behavior(DumpableBehavior::NotDumpable);
    }
}

/// Marks inherited descriptors and signals so that children do not inherit them. Call this function in
/// `main` before any thread is started and any file is opened.
pub fn keep_to_ourselves() {
    close_fds::set_fds_cloexec(FIRST, &[]);
    // Setting an empty mask cannot fail.
    let _ = SigSet::empty().thread_set_mask();
    for signal in ignored_signals() {
        // Unlike an ignored signal, a handler is not inherited. This handler does nothing, so that an
        // ignored signal stays without effect here.
        let _ = signal_hook::flag::register(*signal, Arc::new(AtomicBool::new(false)));
    }
}

/// Returns the signals that this process was started to ignore, as they were when this was first called: in
/// [`keep_to_ourselves`]. Only Linux reports them.
pub fn ignored_signals() -> &'static [i32] {
    static IGNORED: OnceLock<Vec<i32>> = OnceLock::new();
    IGNORED.get_or_init(|| {
        let status = fs::read_to_string("/proc/self/status").unwrap_or_default();
        signals_of(&status, "SigIgn:")
    })
}

/// Returns the signals in a mask of `/proc/PID/status` that can be handled and that `std` does not
/// reset.
fn signals_of(status: &str, mask: &str) -> Vec<i32> {
    let line = status.lines().find_map(|line| line.strip_prefix(mask));
    let bits = line.and_then(|hex| u64::from_str_radix(hex.trim(), 16).ok()).unwrap_or(0);
    let is_set = |signal: &i32| bits >> (signal - 1) & 1 == 1;
    (1..=CLASSIC)
        .filter(is_set)
        .filter(|signal| *signal != SIGPIPE && !FORBIDDEN.contains(signal))
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ignored_signals_are_read_from_their_mask() {
        let cases: [(&str, &[i32]); 4] = [
            ("Name:\torla\nSigIgn:\t0000000000000206\n", &[2, 3, 10]),
            // SIGPIPE, and signals that cannot be handled.
            ("SigIgn:\t0000000180001000\n", &[]),
            ("SigIgn:\tnonsense\n", &[]),
            ("", &[]),
        ];
        for (status, signals) in cases {
            assert_eq!(signals_of(status, "SigIgn:"), signals, "{status}");
        }
    }
}
