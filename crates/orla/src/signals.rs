//! The signals of a server (RFC 1 §7.1): HUP reloads, INT and TERM stop.

use tokio::signal::unix::{Signal as Stream, SignalKind, signal};

/// What a signal asks for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Signal {
    Reload,
    Stop(Stop),
}

/// Which signal stops the server.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Stop {
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
            Self::Interrupt => "SIGINT",
            Self::Terminate => "SIGTERM",
        }
    }
}
