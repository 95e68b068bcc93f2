//! A supervised process of a plugin.

use std::borrow::Cow;
use std::ffi::OsString;
use std::io;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::AtomicU64;
use std::time::Duration;

use orla_marketplace::attestation::ContentSource;
use orla_process::Command;
use orla_process::child::Program;
use orla_process::confinement::Sandbox;
use orla_process::supervisor::{Kind, Service};

use super::protocol::conversation::{Conversation, ConversationMode, Shared};

/// How long no watched file may change before the restart.
const DEBOUNCE: Duration = Duration::from_millis(100);

/// A process of a plugin.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct PluginProcess {
    /// The program to start.
    pub(super) command: Command,
    /// The settings of the conversation.
    pub(super) mode: ConversationMode,
    /// The files and directories whose changes restart it, by their absolute paths.
    pub(super) watch: Vec<PathBuf>,
}

impl Service for PluginProcess {
    type Protocol = Conversation;

    const KIND: Kind = Kind::Plugin;
    const HANDSHAKE: [&'static str; 2] = ["answer describe", "answered describe"];

    fn name(&self) -> &str {
        &self.command.name
    }

    fn protocol(&self, tickets: &Arc<AtomicU64>, shared: &Arc<Shared>) -> Conversation {
        Conversation::new(&self.command.name, tickets, shared, self.mode)
    }

    fn launch(&self) -> io::Result<(Program, Vec<OsString>)> {
        self.command.launch()
    }

    fn explain(&self, error: &io::Error) -> String {
        self.command.explain(error)
    }

    fn startup_timeout(&self) -> Duration {
        self.command.startup_timeout
    }

    fn is_eager(&self) -> bool {
        self.command.eager
    }

    fn content(&self) -> ContentSource {
        self.command.content()
    }

    fn sandbox(&self) -> Option<&Arc<Sandbox>> {
        self.command.sandbox.as_ref()
    }

    fn source(&self) -> String {
        self.command.command.clone()
    }

    fn watched(&self) -> Option<(Vec<PathBuf>, Duration)> {
        (!self.watch.is_empty()).then(|| (self.watch.clone(), DEBOUNCE))
    }

    fn without_secrets<'t>(&self, text: Cow<'t, str>) -> Cow<'t, str> {
        self.command.without_secrets(text)
    }
}
