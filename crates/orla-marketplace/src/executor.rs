//! The single interface to providers: every capability is called through a [`CapabilityExecutor`] (RTFS
//! capability system §2.2).

use std::any::TypeId;
use std::sync::Arc;

use async_trait::async_trait;

use crate::call::CallContext;
use crate::call::stream::{StreamHandle, not_a_stream};
use crate::error::RuntimeResult;
use crate::manifest::CapabilityManifest;
use crate::outcome::Outcome;
use crate::payload::Payload;
use crate::provider::ProviderType;

/// Runs the calls of one kind of provider (RTFS capability system §2.2).
///
/// An executor neither validates, authorises, queues, retries nor logs. The marketplace does that once
/// for all executors. The future of [`execute`](Self::execute) can be dropped at any await point;
/// everything that it started then ends.
///
/// The trait deliberately departs from the RTFS document in two places. Input and output are lazy
/// ([`Payload`], [`Outcome`]), so that a relay parses nothing. The future is `Send`, so that calls run
/// on every core.
#[async_trait]
pub trait CapabilityExecutor: Send + Sync {
    /// Returns the type of the settings struct whose calls this executor runs.
    fn provider_type_id(&self) -> TypeId;

    /// Runs one call.
    ///
    /// The executor observes the deadline in `ctx` if it has something to end or to keep (a process
    /// group with its grace period, the output so far). The marketplace's own timer is the backstop.
    ///
    /// # Errors
    /// [`RuntimeError::Failed`](crate::RuntimeError::Failed) if the provider says so,
    /// [`RuntimeError::Unavailable`](crate::RuntimeError::Unavailable) if it cannot be reached,
    /// [`RuntimeError::TimedOut`](crate::RuntimeError::TimedOut) and
    /// [`RuntimeError::Cancelled`](crate::RuntimeError::Cancelled) with the output so far.
    async fn execute(
        &self,
        provider: &ProviderType,
        inputs: &Payload,
        ctx: &CallContext,
    ) -> RuntimeResult<Outcome>;

    /// Checks an input before its call is accepted as a task, counted by a quota or submitted for approval.
    /// It has no side effects, is fast, and accepts every input that [`execute`](Self::execute) accepts. It is
    /// not called for a stream that is opened.
    ///
    /// # Errors
    /// [`RuntimeError::InvalidInput`](crate::RuntimeError::InvalidInput).
    fn check_input(
        &self,
        _provider: &ProviderType,
        _inputs: &Payload,
        _ctx: &CallContext,
    ) -> RuntimeResult<()> {
        Ok(())
    }

    /// Opens a stream (RTFS capability system §3.2). An executor without streams keeps this default.
    ///
    /// `ctx` has the time and the cancellation of opening the stream. The stream itself lasts until it
    /// ends, is closed, or is dropped.
    ///
    /// # Errors
    /// Those of [`execute`](Self::execute).
    async fn open(
        &self,
        _provider: &ProviderType,
        _inputs: &Payload,
        ctx: &CallContext,
    ) -> RuntimeResult<Box<dyn StreamHandle>> {
        Err(not_a_stream(ctx))
    }

    /// Returns whether the executor itself refuses, with
    /// [`RuntimeError::InvalidInput`](crate::RuntimeError::InvalidInput), every input that the input
    /// type of this manifest does not admit, and never returns a value that its output type does not
    /// admit. The marketplace then neither checks the calls nor compiles schemas for them.
    fn checks_types(&self, _manifest: &CapabilityManifest) -> bool {
        false
    }

    /// Returns whether the executor runs a call on the node that the call names
    /// ([`CallScope::node`](crate::CallScope::node)), or fails. Otherwise, a call that names another
    /// node than this one is refused.
    fn chooses_nodes(&self) -> bool {
        false
    }

    /// Returns whether the provider's description of its capabilities matches what runs now. If not,
    /// because its process starts or is restarted, a call waits for it ([`settle`](Self::settle)) and is
    /// looked up again.
    fn is_settled(&self, _provider: &ProviderType) -> bool {
        true
    }

    /// Waits until the provider is settled, or cannot be, and starts it if it does not run.
    ///
    /// # Errors
    /// The call's time is over, or it was cancelled.
    async fn settle(&self, _provider: &ProviderType, _ctx: &CallContext) -> RuntimeResult<()> {
        Ok(())
    }

    /// Returns the state of the provider, as far as it is known without asking it.
    fn status(&self, _provider: &ProviderType) -> ProviderStatus {
        ProviderStatus::default()
    }
}

/// The known state of a provider.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct ProviderStatus {
    /// The source of the provider: a path or an address.
    pub source: Option<String>,
    /// The interpreter, such as `python3`.
    pub interpreter: Option<String>,
    /// The state of the life cycle.
    pub state: Option<String>,
    /// The process that serves it.
    pub pid: Option<u32>,
    /// How long that process has been running, in milliseconds.
    pub uptime_ms: Option<u64>,
    /// How often it was restarted.
    pub restarts: Option<u64>,
    /// The reason of the last failure.
    pub last_failure: Option<String>,
    /// How far the processes are confined, if there are any.
    pub sandbox: Option<SandboxStatus>,
    /// The routing of calls, if there are several providers.
    pub route: Option<String>,
    /// The providers of a capability that has several.
    pub providers: Vec<RoutedStatus>,
}

/// How far a process is confined. The least confined is the least.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum SandboxLevel {
    /// The process cannot be confined as declared, and does not run.
    Unavailable,
    /// Not confined.
    Unconfined,
    /// Confined to exactly what is declared, as a probe has shown.
    Enforced,
}

impl SandboxLevel {
    /// Returns the name in `/status` and `orla doctor`.
    pub fn name(self) -> &'static str {
        match self {
            Self::Unavailable => "unavailable",
            Self::Unconfined => "unconfined",
            Self::Enforced => "enforced",
        }
    }
}

/// How far the processes of a provider are confined.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SandboxStatus {
    /// How far.
    pub level: SandboxLevel,
    /// The mechanism of the confinement.
    pub by: ConfinedBy,
    /// Identifies the profile; `None` if nothing is confined.
    pub profile: Option<String>,
    /// The permissions as declared.
    pub permissions: Vec<String>,
    /// What is declared and not in force, with the reasons.
    pub missing: Vec<String>,
    /// What the processes may do besides the base; `None` if nothing is declared, or if the declaration
    /// is invalid.
    pub grants: Option<Arc<SandboxGrants>>,
    /// How many connections to undeclared hosts the processes of the profile were refused.
    pub refused_connections: u64,
}

impl SandboxStatus {
    /// Returns the status of processes that nothing confines.
    pub fn unconfined() -> Self {
        Self {
            level: SandboxLevel::Unconfined,
            by: ConfinedBy::Kernel,
            profile: None,
            permissions: Vec::new(),
            missing: Vec::new(),
            grants: None,
            refused_connections: 0,
        }
    }

    /// Returns why the processes do not run, if they cannot be confined as declared; `None` if they run.
    pub fn unconfinable(&self) -> Option<String> {
        let is_unavailable = self.level == SandboxLevel::Unavailable;
        is_unavailable.then(|| format!("it cannot be confined as declared: {}", self.missing.join("; ")))
    }

    /// Returns the status of a capability that does not run for this reason.
    #[must_use]
    pub fn unavailable(mut self, reason: &str) -> Self {
        // The reason why a declaration cannot be read is known to the code that read it.
        if self.level == SandboxLevel::Unavailable && self.missing.is_empty() {
            self.missing.push(reason.to_owned());
        }
        (self.level, self.profile) = (SandboxLevel::Unavailable, None);
        self
    }
}

/// The mechanism that confines a provider.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum ConfinedBy {
    /// The kernel confines the processes.
    #[default]
    Kernel,
    /// The provider is a WebAssembly component, which reaches only what it is linked with.
    WebAssembly,
}

/// What confined processes may do besides the base that all of them share. Paths are real paths.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct SandboxGrants {
    /// Whether only limits are in force, and nothing else is refused.
    pub is_open: bool,
    /// Readable files, and directories with their content.
    pub read: Vec<String>,
    /// Writable files, and directories with their content.
    pub write: Vec<String>,
    /// Programs and directories of programs that they may run.
    pub run: Vec<String>,
    /// The permitted parts of the network, as permissions.
    pub network: Vec<String>,
    /// UNIX sockets that they may connect to.
    pub sockets: Vec<String>,
    /// Patterns of the server's variables that they get.
    pub variables: Vec<String>,
    /// Resource limits by name.
    pub limits: Vec<(&'static str, u64)>,
}

/// The state of one of several providers of a capability.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct RoutedStatus {
    /// The provider's name.
    pub name: String,
    /// Its kind.
    pub kind: &'static str,
    /// `available`, or `unavailable` while calls skip it.
    pub state: &'static str,
    /// The number of running calls.
    pub running: usize,
    /// The number of calls so far.
    pub calls: u64,
    /// Whether it was used last.
    pub is_last: bool,
    /// The reason why its last call failed, if it did.
    pub last_failure: Option<String>,
}
