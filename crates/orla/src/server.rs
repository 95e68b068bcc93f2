//! The program as a library: the same server, with executors of one's own.

use std::ffi::OsString;
use std::fmt::Display;
use std::path::PathBuf;
use std::process::ExitCode;
use std::sync::Arc;

use orla_marketplace::{CapabilityExecutor, CustomProvider, Registration};
use serde_json::Value;

use crate::config::Source;
use crate::{command_line, commands, program};

/// The server that the program `orla` runs, with executors, kinds of provider and capabilities added to it
/// (RTFS capability system §8).
///
/// What is added has everything that the built-in kinds have: the configuration, reload, policy, limits, the audit, and
/// every front end. The program itself is [`Server::builder`]`().`[`main`](Self::main)`()`.
///
/// # Example
///
/// ```no_run
/// use std::process::ExitCode;
/// use std::sync::Arc;
///
/// use orla::Server;
/// # use orla::marketplace::*;
/// # struct QueueExecutor;
/// # #[orla::async_trait]
/// # impl CapabilityExecutor for QueueExecutor {
/// #     fn provider_type_id(&self) -> std::any::TypeId { std::any::TypeId::of::<Queue>() }
/// #     async fn execute(&self, _: &ProviderType, _: &Payload, _: &CallContext) -> RuntimeResult<Outcome> {
/// #         Ok(Outcome::default())
/// #     }
/// # }
/// # #[derive(Debug)]
/// # struct Queue;
/// # impl Queue { fn read(_: serde_json::Value) -> Result<Self, String> { Ok(Self) } }
/// # impl CustomProvider for Queue {
/// #     fn as_any(&self) -> &dyn std::any::Any { self }
/// #     fn kind(&self) -> &'static str { "queue" }
/// # }
///
/// fn main() -> ExitCode {
///     Server::builder()
///         .config("orla.yaml") // capabilities: [{id: jobs, provider: {Custom: {kind: queue, …}}}]
///         .provider("queue", Queue::read)
///         .executor(Arc::new(QueueExecutor))
///         .serve()
/// }
/// ```
#[derive(Clone, Debug)]
#[must_use = "a server does nothing until `serve` or `main` is called"]
pub struct Server {
    source: Source,
}

impl Server {
    /// Returns a server without additions and with default settings.
    pub fn builder() -> Self {
        Self { source: Source::default() }
    }

    /// Reads the configuration from this file, at the start and at each reload. Without it, `orla.yaml`, `orla.yml` or
    /// `orla.json` of the current directory is read, if there is one.
    pub fn config(mut self, file: impl Into<PathBuf>) -> Self {
        self.source.file = Some(file.into());
        self
    }

    /// Sets a key of the configuration, as a flag of the command line does: it wins over the environment (`ORLA_*`) and
    /// over the file. An unknown key, or a value that the key does not admit, is an error when the configuration is
    /// read.
    pub fn set(mut self, key: &'static str, value: impl Into<OsString>) -> Self {
        self.source.flags.push((key, key, value.into()));
        self
    }

    /// Adds an executor (RTFS capability system §5.1). It replaces a built-in one for the same type of settings.
    pub fn executor(mut self, executor: Arc<dyn CapabilityExecutor>) -> Self {
        self.source.extensions.executors.push(executor);
        self
    }

    /// Adds a kind of provider that a configuration can name: `provider: {Custom: {kind: KIND, …}}`.
    ///
    /// `factory` makes the provider of its settings, which are the other keys as a JSON object, with their
    /// variables (`${NAME}`) filled in. What it refuses is an error of the configuration, with the place and the text of
    /// the error; that text must not repeat a secret. Equal settings share a provider, also over a reload. An
    /// [`executor`](Self::executor) for `P` has to be added too.
    pub fn provider<P, E>(
        mut self,
        kind: &str,
        factory: impl Fn(Value) -> Result<P, E> + Send + Sync + 'static,
    ) -> Self
    where
        P: CustomProvider + 'static,
        E: Display,
    {
        self.source.extensions.kind(kind, move |settings| match factory(settings) {
            Ok(provider) => Ok(Arc::new(provider)),
            Err(error) => Err(error.to_string()),
        });
        self
    }

    /// Adds a capability that is served beside those of the configuration. A capability that cannot be
    /// registered, because its id is taken or its kind has no executor, is reported like a tool of the
    /// tools directory: in the log and by `check`.
    pub fn capability(mut self, capability: impl Into<Registration>) -> Self {
        self.source.extensions.capabilities.push(capability.into());
        self
    }

    /// Serves until a signal ends the process, or standard input does where that is the transport. The command line is
    /// not read.
    ///
    /// To be called first in `main`, outside of any asynchronous runtime: to be sure that no child outlives the server,
    /// the process starts its own program a second time, which must come here at once. It also handles SIGHUP, SIGINT
    /// and SIGTERM, and writes the log to standard error. The exit code is that of `orla serve`.
    pub fn serve(self) -> ExitCode {
        program(|| commands::serve::run(self.source))
    }

    /// Runs the command line of the program `orla`, with the additions: `serve`, `check`, `list`, `call`
    /// and all other commands know them. Flags take precedence over [`config`](Self::config) and
    /// [`set`](Self::set).
    ///
    /// Must be called first in `main`, like [`serve`](Self::serve).
    pub fn main(self) -> ExitCode {
        program(|| command_line(self.source))
    }
}

impl Default for Server {
    fn default() -> Self {
        Self::builder()
    }
}
