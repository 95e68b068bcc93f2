//! Signals (RFC 1 §7.1): HUP reloads a server and ends any other command, INT and TERM end both.

use std::sync::Arc;
use std::sync::atomic::AtomicBool;

use signal_hook::consts::SIGHUP;
use tokio::signal::unix::{Signal as Stream, SignalKind, signal};

/// Ignores reload signals until a handler exists, so that they do not end the process. Must be called
/// first: a signal right after the start is ignored, because the configuration has not been read yet.
pub(crate) fn survive_hangup() {
    // Without a handler the process ends on an early signal, as any program does.
    let _ = signal_hook::flag::register(SIGHUP, Arc::new(AtomicBool::new(false)));
}

/// The action that a signal requests.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Signal {
    Reload,
    Stop(Stop),
}

/// Which signal ends the process.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Stop {
    Hangup,
    Interrupt,
    Terminate,
}

/// From the moment this exists, no signal ends the process by itself. Signals that come faster than
/// they are taken count once.
pub(crate) struct Signals {
    hangup: Stream,
    interrupt: Stream,
    terminate: Stream,
}

impl Signals {
    /// Takes the signals over; needs a runtime.
    pub(crate) fn install() -> std::io::Result<Self> {
        Ok(Self {
            hangup: signal(SignalKind::hangup())?,
            interrupt: signal(SignalKind::interrupt())?,
            terminate: signal(SignalKind::terminate())?,
        })
    }

    /// Waits for the next signal. Stopping goes first.
    pub(crate) async fn next(&mut self) -> Signal {
        tokio::select! {
            biased;
            stop = stop(&mut self.interrupt, &mut self.terminate) => Signal::Stop(stop),
            _ = self.hangup.recv() => Signal::Reload,
        }
    }

    /// Waits for a signal that stops the server.
    pub(crate) async fn stop(&mut self) -> Stop {
        stop(&mut self.interrupt, &mut self.terminate).await
    }

    /// Waits for a signal that ends a command, which has nothing to reload.
    pub(crate) async fn end(&mut self) -> Stop {
        tokio::select! {
            biased;
            stop = stop(&mut self.interrupt, &mut self.terminate) => stop,
            _ = self.hangup.recv() => Stop::Hangup,
        }
    }
}

async fn stop(interrupt: &mut Stream, terminate: &mut Stream) -> Stop {
    tokio::select! {
        _ = interrupt.recv() => Stop::Interrupt,
        _ = terminate.recv() => Stop::Terminate,
    }
}

impl Stop {
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Hangup => "SIGHUP",
            Self::Interrupt => "SIGINT",
            Self::Terminate => "SIGTERM",
        }
    }
}
