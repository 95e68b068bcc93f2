//! The description of a supervised program.

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

/// A program that keeps running between requests: how it is started, and its protocol.
///
/// Services with the same name are versions of one service: if they differ, the process is
/// restarted.
pub trait Service: PartialEq + fmt::Debug + Sized + Send + Sync + 'static {
    /// The protocol of its processes.
    type Protocol: Protocol;

    /// The kind of service, as logged.
    const KIND: Kind;

    /// The handshake that a process completes before it gets requests, in infinitive and past tense:
    /// `answer describe` and `answered describe`.
    const HANDSHAKE: [&'static str; 2];

    /// Returns the name, unique within its supervisor.
    fn name(&self) -> &str;

    /// Creates the protocol for the next process. `tickets` holds the ticket of the next request.
    fn protocol(
        &self,
        tickets: &Arc<AtomicU64>,
        shared: &Arc<<Self::Protocol as Protocol>::Shared>,
    ) -> Self::Protocol;

    /// Returns the program to start, and its arguments.
    ///
    /// # Errors
    /// There is no such program, or no current directory.
    fn launch(&self) -> io::Result<(Program, Vec<OsString>)>;

    /// Explains why the program could not be started.
    fn explain(&self, error: &io::Error) -> String;

    /// Returns the maximum time for the handshake.
    fn startup_timeout(&self) -> Duration;

    /// Returns advice to append to the message about a startup timeout.
    fn startup_remedy(&self) -> String {
        String::new()
    }

    /// Returns whether the service is started with the server instead of at its first use.
    fn is_eager(&self) -> bool;

    /// Returns the content that runs, for attestation.
    fn content(&self) -> ContentSource;

    /// Returns the origin of the service, for users. Arguments may hold secrets and are not shown.
    fn source(&self) -> String;

    /// Returns the interpreter of the program, such as `python3`.
    fn interpreter(&self) -> Option<String> {
        None
    }

    /// Returns the sandbox of the processes; `None` for no confinement.
    fn sandbox(&self) -> Option<&Arc<Sandbox>> {
        None
    }

    /// Returns the files and directories whose changes restart the service, and how long they must be
    /// unchanged before that.
    fn watched(&self) -> Option<(Vec<PathBuf>, Duration)> {
        None
    }

    /// Rereads the description from changed files; `None` if it is the same.
    fn reread(&self) -> Option<Self> {
        None
    }

    /// Removes the secrets that the process was given from a text that it wrote.
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
    /// Returns the name of the field.
    pub(super) fn name(self) -> &'static str {
        match self {
            Self::Capsule => "capsule",
            Self::Server => "server",
            Self::Plugin => "plugin",
        }
    }

    /// Returns the values of the fields `capsule`, `server` and `plugin` of a service with this name.
    pub(super) fn fields(self, name: &str) -> [Option<&str>; 3] {
        [Self::Capsule, Self::Server, Self::Plugin].map(|kind| (kind == self).then_some(name))
    }
}
