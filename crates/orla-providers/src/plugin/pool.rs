//! The processes of one plugin.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use orla_marketplace::{CallContext, JsonText, ProviderStatus};
use orla_process::capsule::{Capsule, Capsules, Command, Definition, Plugin as Program};
use orla_process::mcp::{Ask, Ending, Learned, Peer};
use tokio::sync::{Semaphore, SemaphorePermit};
use tokio::time::sleep_until;

use super::settings::PluginSettings;

/// One plugin.
#[derive(Debug)]
pub(super) struct Plugin {
    /// What it is called in messages.
    pub(super) name: String,
    /// The program, as it was configured.
    pub(super) path: String,
    /// At least one; only the first is asked what the plugin serves.
    processes: Vec<Arc<Capsule>>,
    /// Where each process is given one call at a time.
    turns: Option<Turns>,
}

/// Who may use which process.
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
    /// Whether a call came to its end.
    went_well: bool,
    _permit: SemaphorePermit<'a>,
}

/// The definitions of a plugin's processes, the first one first.
pub(super) fn definitions(settings: &PluginSettings, describes: bool) -> Vec<Definition> {
    let mut watch = settings.watch.clone();
    if settings.command.contains('/') {
        let path = settings.cwd.clone().unwrap_or_default().join(&settings.command);
        watch.push(std::path::absolute(&path).unwrap_or(path));
    }
    let definition = |index: usize| {
        let name = match index {
            0 => settings.name.clone(),
            _ => format!("{}#{}", settings.name, index + 1),
        };
        Definition::Plugin(Program {
            command: Command {
                name,
                command: settings.command.clone(),
                args: settings.args.clone(),
                env: settings.env.iter().map(|(name, value)| (name.clone(), value.clone())).collect(),
                directory: settings.cwd.clone(),
                startup_timeout: settings.startup_timeout,
                eager: settings.eager,
            },
            describes,
            is_serial: settings.processes.is_some(),
            watch: watch.clone(),
        })
    };
    (0..settings.processes.unwrap_or(1).max(1)).map(definition).collect()
}

impl Plugin {
    /// The plugin of these settings, whose processes are supervised by `capsules`.
    pub(super) fn new(
        capsules: &Capsules,
        shown: &str,
        settings: &PluginSettings,
        describes: bool,
    ) -> Self {
        let definitions = definitions(settings, describes);
        let turns = settings.processes.map(|count| Turns {
            free: Semaphore::new(count.max(1)),
            indices: Mutex::new((0..count.max(1)).rev().collect()),
        });
        Self {
            name: shown.to_owned(),
            path: settings.command.clone(),
            processes: definitions.into_iter().map(|definition| capsules.one(definition)).collect(),
            turns,
        }
    }

    /// Calls a function.
    ///
    /// # Errors
    /// See [`Ending`].
    pub(super) async fn call(
        &self,
        function: &Arc<str>,
        arguments: &JsonText,
        ctx: &CallContext,
    ) -> Result<JsonText, Ending> {
        let ask =
            Ask::Call { tool: Some(Arc::clone(function)), arguments: arguments.clone(), more: None };
        let Some(turns) = &self.turns else { return self.processes[0].ask(ask, ctx).await };
        let mut turn = tokio::select! {
            biased;
            turn = turns.take() => turn,
            () = ctx.cancellation.cancelled() => return Err(Ending::Cancelled),
            () = sleep_until(ctx.deadline) => {
                let reason = "each of its processes is busy with another call".to_owned();
                return Err(Ending::TimedOut { not_ready: Some(reason) });
            }
        };
        let answer = self.processes[turn.index].ask(ask, ctx).await;
        turn.went_well = answer.is_ok();
        answer
    }

    /// What it serves, as far as that is known.
    pub(super) fn learned(&self) -> Option<Arc<Learned>> {
        self.processes[0].learned()
    }

    /// Waits until it is known what it serves, within bounds of its own, and once.
    pub(super) async fn learn(&self) {
        self.processes[0].learn().await;
    }

    /// Starts it, if it does not run.
    pub(super) fn want(&self) {
        self.processes.iter().for_each(|process| process.want());
    }

    /// How it is: how the process is that is best.
    pub(super) fn status(&self) -> ProviderStatus {
        let all: Vec<ProviderStatus> = self.processes.iter().map(|process| process.status()).collect();
        let restarts = all.iter().filter_map(|status| status.restarts).sum();
        let best = all.iter().position(|status| status.state.as_deref() == Some("READY"));
        let mut status = all.into_iter().nth(best.unwrap_or(0)).unwrap_or_default();
        status.restarts = Some(restarts);
        status
    }
}

impl Turns {
    async fn take(&self) -> Turn<'_> {
        // It is never closed, and there is an index for every permit.
        loop {
            let Ok(permit) = self.free.acquire().await else { continue };
            if let Some(index) = self.indices().pop() {
                return Turn { turns: self, index, went_well: false, _permit: permit };
            }
        }
    }

    fn indices(&self) -> MutexGuard<'_, Vec<usize>> {
        // What is guarded is whole at every moment: a panic left nothing half done.
        self.indices.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Drop for Turn<'_> {
    fn drop(&mut self) {
        let mut indices = self.turns.indices();
        match self.went_well {
            true => indices.push(self.index),
            // It may be busy with what nobody waits for any more, or be gone: the others go before it.
            false => indices.insert(0, self.index),
        }
    }
}
