//! The state that the task of a service shares with its handles.

use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::SystemTime;

use parking_lot::{Mutex, MutexGuard};
use tokio::sync::{Mutex as AsyncMutex, Notify, watch};
use tokio::time::Instant;

use super::Gate;
use super::protocol::Protocol;
use super::service::Service;
use super::state::{Policy, State};
use crate::reaper::Instance;

/// The number of lines of standard error that are kept for inspection.
const MAX_STDERR_LINES: usize = 200;
const MAX_STDERR_LINE: usize = 500;

/// See [`Protocol::Info`] and [`Protocol::Shared`].
pub(super) type Info<S> = <<S as Service>::Protocol as Protocol>::Info;
pub(super) type OfProtocol<S> = <<S as Service>::Protocol as Protocol>::Shared;

/// The state that a task and its handles share.
#[derive(Debug)]
pub(super) struct Shared<S: Service> {
    pub(super) name: Arc<str>,
    pub(super) instance: Arc<Instance>,
    /// Numbers requests. Each number is used once.
    pub(super) tickets: Arc<AtomicU64>,
    /// Held while a request gets its number and is sent.
    turn: Mutex<()>,
    /// Signals [`PendingCommands`] and requests whose callers no longer wait. There is one signal for
    /// both, as the task waits on it anew at every turn.
    pub(super) changed: Notify,
    cancelled: Mutex<Vec<Cancelled>>,
    commands: Mutex<PendingCommands<S>>,
    /// Held by the task of this name that has a process. A new process waits until the previous one has
    /// ended.
    pub(super) process_lock: Arc<AsyncMutex<()>>,
    pub(super) of_protocol: Arc<OfProtocol<S>>,
    /// The last lines that the processes wrote to standard error.
    stderr_tail: Mutex<VecDeque<String>>,
    policy: Arc<Mutex<Policy>>,
    gate: Arc<Mutex<Option<Gate>>>,
    service: Mutex<Arc<S>>,
    status: Mutex<Status>,
    pub(super) knowledge: watch::Sender<Knowledge<Info<S>>>,
    /// Whether a request need not wait for a handshake: it is complete, the process takes no part in it, or no
    /// process will start.
    pub(super) current: watch::Sender<bool>,
    /// Counts the changes that are visible in a listing of all services.
    changes: watch::Sender<u64>,
}

/// A request whose caller no longer waits.
#[derive(Clone, Copy, Debug)]
pub(super) struct Cancelled {
    pub(super) ticket: u64,
    /// Whether its deadline has passed.
    pub(super) is_late: bool,
    /// The ticket that the next request had at the cancellation.
    pub(super) next: u64,
}

/// Commands for the task, besides requests. They accumulate until the task takes them; only a later `loaded`
/// replaces an earlier one.
#[derive(Debug)]
pub(super) struct PendingCommands<S> {
    /// Start the process.
    pub(super) start: bool,
    /// End the process, and start another one.
    pub(super) restart: bool,
    /// The reloaded service, which may differ.
    pub(super) loaded: Option<Arc<S>>,
    /// Tell the protocol that what it shares with the handles has changed.
    pub(super) shared_changed: bool,
}

impl<S> Default for PendingCommands<S> {
    fn default() -> Self {
        Self { start: false, restart: false, loaded: None, shared_changed: false }
    }
}

/// The status of a service.
#[derive(Clone, Debug)]
pub(super) struct Status {
    pub(super) state: State,
    pub(super) pid: Option<u32>,
    /// When the current process was started.
    pub(super) since: Instant,
    pub(super) restarts: u64,
    pub(super) last_failure: Option<String>,
}

/// The knowledge about what a service serves.
#[derive(Debug)]
pub(super) struct Knowledge<I> {
    /// Whether a listing need not wait, because the information is known or unobtainable.
    pub(super) is_learned: bool,
    pub(super) info: Option<Arc<I>>,
}

impl<S: Service> Shared<S> {
    pub(super) fn new(
        service: Arc<S>,
        instance: Arc<Instance>,
        policy: Arc<Mutex<Policy>>,
        changes: watch::Sender<u64>,
        process_lock: Arc<AsyncMutex<()>>,
        gate: Arc<Mutex<Option<Gate>>>,
    ) -> Self {
        let status = Status {
            state: State::Created,
            pid: None,
            since: Instant::now(),
            restarts: 0,
            last_failure: None,
        };
        Self {
            name: service.name().into(),
            instance,
            tickets: Arc::new(AtomicU64::new(1)),
            turn: Mutex::default(),
            changed: Notify::new(),
            cancelled: Mutex::default(),
            commands: Mutex::default(),
            process_lock,
            of_protocol: Arc::default(),
            stderr_tail: Mutex::default(),
            policy,
            gate,
            service: Mutex::new(service),
            status: Mutex::new(status),
            knowledge: watch::Sender::new(Knowledge { is_learned: false, info: None }),
            current: watch::Sender::new(false),
            changes,
        }
    }

    /// Returns whether a gate decides on starts.
    pub(super) fn is_guarded(&self) -> bool {
        self.gate.lock().is_some()
    }

    /// Asks the gate whether the process of this service may be started now, or whether one that was
    /// `started` may continue.
    ///
    /// # Errors
    /// Why it may not.
    pub(super) async fn may_start(
        &self,
        service: &Arc<S>,
        started: Option<SystemTime>,
    ) -> Result<(), String> {
        let Some(gate) = self.gate.lock().clone() else { return Ok(()) };
        let service = Arc::clone(service);
        // The gate may read files.
        let checked = tokio::task::spawn_blocking(move || gate.0(&service.content(), started)).await;
        checked.unwrap_or_else(|_| Err("the check whether it may be started failed".to_owned()))
    }

    /// Returns a new, unused ticket.
    pub(super) fn ticket(&self) -> u64 {
        self.tickets.fetch_add(1, Ordering::Relaxed)
    }

    /// Sends a request with a new ticket, and returns the ticket. Requests are sent in the order of their
    /// tickets, which shows whether a process may still work at an older one.
    pub(super) fn numbered(&self, send: impl FnOnce(u64)) -> u64 {
        let _turn = self.turn.lock();
        let ticket = self.ticket();
        send(ticket);
        ticket
    }

    /// Cancels a request whose caller no longer waits.
    pub(super) fn cancel(&self, ticket: u64, is_late: bool) {
        let next = self.tickets.load(Ordering::Relaxed);
        self.cancelled.lock().push(Cancelled { ticket, is_late, next });
        self.changed.notify_one();
    }

    pub(super) fn take_cancelled(&self) -> Vec<Cancelled> {
        std::mem::take(&mut *self.cancelled.lock())
    }

    /// Changes the commands for the task, and wakes the task.
    pub(super) fn command(&self, change: impl FnOnce(&mut PendingCommands<S>)) {
        change(&mut self.commands.lock());
        self.changed.notify_one();
    }

    pub(super) fn take_commands(&self) -> PendingCommands<S> {
        std::mem::take(&mut *self.commands.lock())
    }

    /// Records a line that the process wrote to standard error.
    pub(super) fn record_stderr_line(&self, line: &str) {
        let mut tail = self.stderr_tail.lock();
        if tail.len() >= MAX_STDERR_LINES {
            tail.pop_front();
        }
        tail.push_back(line.chars().take(MAX_STDERR_LINE).collect());
    }

    /// Returns the newest recorded lines, the oldest first.
    pub(super) fn stderr_tail(&self) -> Vec<String> {
        self.stderr_tail.lock().iter().cloned().collect()
    }

    pub(super) fn policy(&self) -> Policy {
        *self.policy.lock()
    }

    pub(super) fn service(&self) -> Arc<S> {
        Arc::clone(&self.service.lock())
    }

    /// Sets the service. The change is visible in a listing.
    pub(super) fn set_service(&self, service: Arc<S>) {
        *self.service.lock() = service;
        self.list_changed();
    }

    pub(super) fn status(&self) -> MutexGuard<'_, Status> {
        self.status.lock()
    }

    pub(super) fn info(&self) -> Option<Arc<Info<S>>> {
        self.knowledge.borrow().info.clone()
    }

    /// Records what the service serves.
    pub(super) fn set_info(&self, info: Info<S>) {
        let known = self.info();
        if known.as_deref() != Some(&info) {
            // If nothing is known, a listing shows the same as for an empty service.
            let shows_the_same = known.is_none() && info == Info::<S>::default();
            self.knowledge.send_modify(|knowledge| knowledge.info = Some(Arc::new(info)));
            // The notification precedes the wake-up of waiting callers, which check whether anything has
            // changed.
            if !shows_the_same {
                self.list_changed();
            }
        }
        self.mark_learned();
    }

    /// Marks the service so that no listing waits for it.
    pub(super) fn mark_learned(&self) {
        self.knowledge.send_if_modified(|knowledge| !std::mem::replace(&mut knowledge.is_learned, true));
    }

    /// Signals that a listing of all services shows something else now.
    fn list_changed(&self) {
        self.changes.send_modify(|count| *count += 1);
    }
}
