//! One plugin: its processes, or its component.

use std::path::Path;
use std::sync::Arc;

use orla_marketplace::attestation::ContentSource;
use orla_marketplace::{CallContext, JsonText, ProviderStatus};
use orla_mcp::{Ending, Fault, ServerInfo};
use orla_process::Command;
use orla_process::supervisor::{Gate, NoResponse, Service as _, Supervised, Supervisor};
use parking_lot::{Mutex, MutexGuard};
use tokio::sync::{Semaphore, SemaphorePermit};
use tokio::time::sleep_until;

use super::is_component;
use super::process::PluginProcess;
use super::protocol::conversation::{Call, ConversationMode};
use super::settings::PluginSettings;
use super::wasm::Component;
use crate::process::ending;

/// One plugin.
#[derive(Debug)]
pub(super) struct Plugin {
    /// The plugin's name in messages.
    pub(super) name: String,
    /// The configured program.
    pub(super) path: String,
    /// The content that an attestation covers.
    pub(super) content: ContentSource,
    works: Works,
}

/// The implementation of a plugin.
#[derive(Debug)]
enum Works {
    Processes(Processes),
    /// A component, with the permissions that it requests.
    Component(Box<Component>, Arc<[String]>),
    /// The plugin cannot be used in this build, for this reason.
    Broken(String),
}

#[derive(Debug)]
struct Processes {
    /// At least one process. Only the first is asked what the plugin serves.
    all: Vec<Arc<Supervised<PluginProcess>>>,
    /// Present if each process is given one call at a time.
    turns: Option<Turns>,
}

/// The permits for the processes.
#[derive(Debug)]
struct Turns {
    /// One for each process that is not in use.
    free: Semaphore,
    /// Their indices; the last is used first.
    indices: Mutex<Vec<usize>>,
}

/// The use of one process.
struct Turn<'a> {
    turns: &'a Turns,
    index: usize,
    /// Whether a call completed.
    went_well: bool,
    _permit: SemaphorePermit<'a>,
}

/// Returns the processes of a plugin, the first one first. A component has none.
pub(super) fn processes(settings: &PluginSettings, describes: bool) -> Vec<PluginProcess> {
    if is_component(Path::new(&settings.command)) {
        return Vec::new();
    }
    (0..settings.processes.unwrap_or(1).max(1))
        .map(|index| process(settings, describes, index))
        .collect()
}

fn process(settings: &PluginSettings, describes: bool, index: usize) -> PluginProcess {
    let mut watch = settings.watch.clone();
    if settings.command.contains('/') {
        let path = settings.cwd.clone().unwrap_or_default().join(&settings.command);
        watch.push(std::path::absolute(&path).unwrap_or(path));
    }
    let name = match index {
        0 => settings.name.clone(),
        _ => format!("{}#{}", settings.name, index + 1),
    };
    PluginProcess {
        command: Command {
            name,
            command: settings.command.clone(),
            args: settings.args.clone(),
            env: settings.env.iter().map(|(name, value)| (name.clone(), value.clone())).collect(),
            pass_env: settings.pass_env.clone(),
            directory: settings.cwd.clone(),
            sandbox: settings.sandbox.clone(),
            startup_timeout: settings.startup_timeout,
            eager: settings.eager,
        },
        mode: ConversationMode { describes, is_serial: settings.processes.is_some() },
        watch,
    }
}

impl Plugin {
    /// Creates the plugin of these settings. `supervisor` starts its processes. A component is compiled
    /// when `gate` allows it.
    pub(super) fn new(
        supervisor: &Supervisor<PluginProcess>,
        gate: &Arc<Mutex<Option<Gate>>>,
        shown: &str,
        settings: &PluginSettings,
        describes: bool,
    ) -> Self {
        let (name, path) = (shown.to_owned(), settings.command.clone());
        let content = process(settings, describes, 0).content();
        if is_component(Path::new(&path)) {
            let (gate, content_of_component) = (Arc::clone(gate), content.clone());
            let may_start = move || {
                let gate = gate.lock().clone();
                gate.map_or(Ok(()), |gate| gate.check(&content_of_component))
            };
            let works = match Component::new(settings, Arc::new(may_start)) {
                Ok(component) => {
                    Works::Component(Box::new(component), settings.permissions.clone().into())
                }
                Err(problem) => Works::Broken(problem),
            };
            return Self { name, path, content, works };
        }
        let processes = processes(settings, describes);
        let turns = settings.processes.map(|count| Turns {
            free: Semaphore::new(count.max(1)),
            indices: Mutex::new((0..count.max(1)).rev().collect()),
        });
        let all = processes.into_iter().map(|process| supervisor.load_one(process)).collect();
        Self { name, path, content, works: Works::Processes(Processes { all, turns }) }
    }

    /// Calls a function. The permissions restrict a component.
    ///
    /// # Errors
    /// See [`Ending`].
    pub(super) async fn call(
        &self,
        function: &Arc<str>,
        arguments: &JsonText,
        permissions: &Arc<[String]>,
        ctx: &CallContext,
    ) -> Result<JsonText, Ending> {
        match &self.works {
            Works::Processes(processes) => processes.call(function, arguments, ctx).await,
            Works::Component(component, _) => {
                component.call(function, arguments, permissions, ctx).await
            }
            Works::Broken(problem) => Err(Ending::Fault(Fault::Unavailable(problem.clone()))),
        }
    }

    /// Returns the process, if one process serves all calls.
    pub(super) fn only_process(&self) -> Option<&Supervised<PluginProcess>> {
        match &self.works {
            Works::Processes(processes) if processes.turns.is_none() => Some(&processes.all[0]),
            Works::Processes(_) | Works::Component(..) | Works::Broken(_) => None,
        }
    }

    /// Returns what the plugin serves, as far as that is known.
    pub(super) fn info(&self) -> Option<Arc<ServerInfo>> {
        match &self.works {
            Works::Processes(processes) => processes.all[0].info(),
            Works::Component(component, _) => component.info(),
            Works::Broken(_) => None,
        }
    }

    /// Waits until it is known what the plugin serves, for a limited time, and once for a process.
    /// Returns whether a component serves something else than before.
    pub(super) async fn learn(&self) -> bool {
        match &self.works {
            Works::Processes(processes) => processes.all[0].learn().await,
            Works::Component(component, permissions) => return component.learn(permissions).await,
            Works::Broken(_) => {}
        }
        false
    }

    /// Starts the plugin, if it does not run.
    pub(super) fn request_start(&self) {
        if let Works::Processes(processes) = &self.works {
            processes.all.iter().for_each(|process| process.request_start());
        }
    }

    /// Returns the status: that of the process in the best state, or that of a component with these
    /// permissions, which are its own if absent.
    pub(super) fn status(&self, permissions: Option<&[String]>) -> ProviderStatus {
        match &self.works {
            Works::Processes(processes) => processes.status(),
            Works::Component(component, own) => component.status(permissions.unwrap_or(own)),
            Works::Broken(problem) => {
                let mut status = ProviderStatus::default();
                status.state = Some("STOPPED".to_owned());
                status.last_failure = Some(problem.clone());
                status
            }
        }
    }
}

impl Processes {
    async fn call(
        &self,
        function: &Arc<str>,
        arguments: &JsonText,
        ctx: &CallContext,
    ) -> Result<JsonText, Ending> {
        let call = Call {
            function: Arc::clone(function),
            arguments: arguments.clone(),
            notices: ctx.scope.notices.clone(),
            principal: ctx.scope.principal.clone(),
        };
        let Some(turns) = &self.turns else { return send(&self.all[0], call, ctx).await };
        let mut turn = tokio::select! {
            biased;
            turn = turns.take() => turn,
            () = ctx.scope.cancellation.cancelled() => return Err(Ending::Cancelled),
            () = sleep_until(ctx.deadline) => {
                let reason = "each of its processes is busy with another call".to_owned();
                return Err(Ending::TimedOut { not_ready: Some(reason), wrong_answer: None });
            }
        };
        let answer = send(&self.all[turn.index], call, ctx).await;
        turn.went_well = answer.is_ok();
        answer
    }

    fn status(&self) -> ProviderStatus {
        let all: Vec<ProviderStatus> = self.all.iter().map(|process| process.status()).collect();
        let restarts = all.iter().filter_map(|status| status.restarts).sum();
        let best = all.iter().position(|status| status.state.as_deref() == Some("READY"));
        let mut status = all.into_iter().nth(best.unwrap_or(0)).unwrap_or_default();
        status.restarts = Some(restarts);
        status
    }
}

async fn send(
    process: &Supervised<PluginProcess>,
    call: Call,
    ctx: &CallContext,
) -> Result<JsonText, Ending> {
    match process.request(call, ctx.deadline, &ctx.scope.cancellation).await {
        Ok(reply) => reply.map_err(Ending::Fault),
        Err(NoResponse::TimedOut { ticket, not_ready }) => {
            let wrong_answer = process.shared().wrong_answer(ticket);
            Err(Ending::TimedOut { not_ready, wrong_answer })
        }
        Err(problem) => Err(ending(problem)),
    }
}

impl Turns {
    async fn take(&self) -> Turn<'_> {
        // The semaphore is never closed, and there is an index for every permit.
        loop {
            let Ok(permit) = self.free.acquire().await else { continue };
            if let Some(index) = self.indices().pop() {
                return Turn { turns: self, index, went_well: false, _permit: permit };
            }
        }
    }

    fn indices(&self) -> MutexGuard<'_, Vec<usize>> {
        self.indices.lock()
    }
}

impl Drop for Turn<'_> {
    fn drop(&mut self) {
        let mut indices = self.turns.indices();
        match self.went_well {
            true => indices.push(self.index),
            // The process may be busy with an abandoned call, or have ended, so the others are tried
            // first.
            false => indices.insert(0, self.index),
        }
    }
}
