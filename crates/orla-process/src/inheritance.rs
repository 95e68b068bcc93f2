//! What a server inherits from the process that started it, and its tools must not inherit in their turn.
//!
//! Descriptors stay open across an exec unless they say otherwise, and so do ignored signals (of
//! `nohup`, of a shell's background jobs). A tool that is handed its grandparent's socket keeps it
//! open; one that ignores an interrupt cannot be interrupted.

use std::fs;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;

use nix::sys::signal::SigSet;
use signal_hook::consts::{FORBIDDEN, SIGPIPE};

/// The first descriptor that is not a standard stream.
const FIRST: i32 = 3;
/// The C library keeps the two signals after the classic ones to itself.
const CLASSIC: i32 = 31;

/// Closes this process to other processes of the same user: its environment, memory and descriptors cannot be read,
/// and it cannot be traced. It leaves no core dump. Children are not affected, as an exec resets it. To be called
/// first in `main`.
///
/// Only Linux can do this per process; elsewhere nothing happens.
pub fn close_to_others() {
    #[cfg(target_os = "linux")]
    {
        use rustix::process::{DumpableBehavior, set_dumpable_behavior};
        // The kernel refuses no valid value.
        let _ = set_dumpable_behavior(DumpableBehavior::NotDumpable);
    }
}

/// Keeps what was inherited from going further. To be called in `main` before any thread is started
/// and any file is opened.
pub fn keep_to_ourselves() {
    close_fds::set_fds_cloexec(FIRST, &[]);
    // An empty set cannot be refused.
    let _ = SigSet::empty().thread_set_mask();
    for signal in ignored() {
        // A handler, unlike a signal that is ignored, is not inherited; this one does nothing, so that
        // what was ignored stays without effect here.
        let _ = signal_hook::flag::register(signal, Arc::new(AtomicBool::new(false)));
    }
}

/// The signals that this process was started to ignore. Only Linux tells.
fn ignored() -> Vec<i32> {
    let status = fs::read_to_string("/proc/self/status").unwrap_or_default();
    signals_of(&status, "SigIgn:")
}

/// The signals in a mask of `/proc/PID/status` which can be handled, and which `std` does not reset.
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
            // The pipe, and signals that cannot be handled.
            ("SigIgn:\t0000000180001000\n", &[]),
            ("SigIgn:\tnonsense\n", &[]),
            ("", &[]),
        ];
        for (status, signals) in cases {
            assert_eq!(signals_of(status, "SigIgn:"), signals, "{status}");
        }
    }
}
