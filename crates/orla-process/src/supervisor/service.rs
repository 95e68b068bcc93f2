//! What is supervised.

use std::borrow::Cow;
use std::ffi::OsString;
use std::fmt;
use std::io;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::AtomicU64;
use std::time::Duration;

use orla_marketplace::attestation::ContentSource;

use super::protocol::Protocol;
use crate::child::Program;
use crate::confinement::Sandbox;

/// A program that stays alive between requests: how it is started, and its protocol.
///
/// Services with the same name are versions of one service: if they differ, the process is
/// restarted.
pub trait Service: PartialEq + fmt::Debug + Sized + Send + Sync + 'static {
    /// What is spoken with its processes.
    type Protocol: Protocol;

    /// What it is called in the log.
    const KIND: Kind;

    /// What a process has to do before it is sent requests, and how that is said when it is done: `answer describe`
    /// and `answered describe`.
    const HANDSHAKE: [&'static str; 2];

    /// Its name, unique within its supervisor.
    fn name(&self) -> &str;

    /// The protocol for the next process. `tickets` has the ticket of the next request.
    fn protocol(
        &self,
        tickets: &Arc<AtomicU64>,
        shared: &Arc<<Self::Protocol as Protocol>::Shared>,
    ) -> Self::Protocol;

    /// What to start.
    ///
    /// # Errors
    /// There is no such program, or no current directory.
    fn launch(&self) -> io::Result<(Program, Vec<OsString>)>;

    /// Why the program could not be started.
    fn explain(&self, error: &io::Error) -> String;

    /// How long a process may take for the handshake.
    fn startup_timeout(&self) -> Duration;

    /// What is added to the message that it took longer than that.
    fn startup_remedy(&self) -> String {
        String::new()
    }

    /// Whether it is started with the server, and not by its first use.
    fn is_eager(&self) -> bool;

    /// What runs, for attestation.
    fn content(&self) -> ContentSource;

    /// Where it comes from, for people. Arguments may hold secrets and are not shown.
    fn source(&self) -> String;

    /// What runs the program, such as `python3`.
    fn interpreter(&self) -> Option<String> {
        None
    }

    /// What its processes run in; `None` for no confinement at all.
    fn sandbox(&self) -> Option<&Arc<Sandbox>> {
        None
    }

    /// The files and directories whose changes restart it, and how long nothing may change before that.
    fn watched(&self) -> Option<(Vec<PathBuf>, Duration)> {
        None
    }

    /// The service as its changed files describe it, if that is another one.
    fn reread(&self) -> Option<Self> {
        None
    }

    /// A text of the process without the secrets that it was given.
    fn without_secrets<'t>(&self, text: Cow<'t, str>) -> Cow<'t, str> {
        text
    }
}

/// The field of a log entry that holds a service's name.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// `capsule`
    Capsule,
    /// `server`
    Server,
    /// `plugin`
    Plugin,
}

impl Kind {
    /// Its name.
    pub(super) fn name(self) -> &'static str {
        match self {
            Self::Capsule => "capsule",
            Self::Server => "server",
            Self::Plugin => "plugin",
        }
    }

    /// The values of the fields `capsule`, `server` and `plugin` of a service with this name.
    pub(super) fn fields(self, name: &str) -> [Option<&str>; 3] {
        [Self::Capsule, Self::Server, Self::Plugin].map(|kind| (kind == self).then_some(name))
    }
}
