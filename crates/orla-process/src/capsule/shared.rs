//! What a capsule's task and its handles both see.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::SystemTime;

use orla_marketplace::SurfaceNotice;
use orla_mcp::Learned;
use tokio::sync::{Mutex as AsyncMutex, Notify, broadcast, watch};
use tokio::time::Instant;

use super::Gate;
use super::definition::Definition;
use super::state::{Policy, State};
use crate::reaper::Instance;

/// Notices that one who listens may be late for.
const TOLD: usize = 64;

/// The most resources of one capsule whose changes are told.
const MAX_SUBSCRIPTIONS: usize = 10_000;

/// The common ground of a task and its handles.
#[derive(Debug)]
pub(crate) struct Shared {
    pub(crate) name: Arc<str>,
    pub(crate) instance: Arc<Instance>,
    /// Numbers requests; no number is given twice.
    pub(crate) tickets: Arc<AtomicU64>,
    /// Says that there are [`PendingCommands`], or requests which nobody waits for any more: one for both, as the task listens
    /// to it anew at every turn.
    pub(crate) news: Notify,
    cancelled: Mutex<Vec<Cancelled>>,
    wishes: Mutex<PendingCommands>,
    /// Held by the task of this name that has a process: one that is ending is waited for.
    pub(crate) turn: Arc<AsyncMutex<()>>,
    /// How many callers want to hear of each resource's changes.
    subscriptions: Mutex<BTreeMap<String, usize>>,
    policy: Arc<Mutex<Policy>>,
    gate: Arc<Mutex<Option<Gate>>>,
    definition: Mutex<Arc<Definition>>,
    status: Mutex<Status>,
    pub(crate) knowledge: watch::Sender<Knowledge>,
    /// Tells what has changed besides tools.
    pub(crate) told: broadcast::Sender<SurfaceNotice>,
    /// Counts what a listing of all capsules shows differently.
    changes: watch::Sender<u64>,
}

/// A request that no caller waits for any more.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Cancelled {
    pub(crate) ticket: u64,
    /// Whether its deadline has passed.
    pub(crate) is_late: bool,
    /// The ticket that the next request had when it was cancelled.
    pub(crate) next: u64,
}

/// What the task is asked for besides requests. A later wish takes the place of an earlier one.
#[derive(Debug, Default)]
pub(crate) struct PendingCommands {
    /// Someone wants to know what it serves.
    pub(crate) want: bool,
    /// The configuration was loaded anew; the definition may be another.
    pub(crate) loaded: Option<Arc<Definition>>,
    /// The resources whose changes someone wants to hear of are others.
    pub(crate) subscriptions: bool,
}

/// How a capsule is.
#[derive(Clone, Debug)]
pub(crate) struct Status {
    pub(crate) state: State,
    pub(crate) pid: Option<u32>,
    /// Since when it has this process.
    pub(crate) since: Instant,
    pub(crate) restarts: u64,
    pub(crate) last_failure: Option<String>,
    /// The newest line of its process that answers no call, with the ticket of the only call that it can be about.
    pub(crate) wrong_answer: Option<(u64, String)>,
}

/// What is known of what a capsule serves.
#[derive(Clone, Debug, Default)]
pub(crate) struct Knowledge {
    /// Whether a listing need not wait: it is known, or it cannot be.
    pub(crate) settled: bool,
    pub(crate) learned: Option<Arc<Learned>>,
}

impl Shared {
    pub(crate) fn new(
        definition: Arc<Definition>,
        instance: Arc<Instance>,
        policy: Arc<Mutex<Policy>>,
        changes: watch::Sender<u64>,
        turn: Arc<AsyncMutex<()>>,
        gate: Arc<Mutex<Option<Gate>>>,
    ) -> Self {
        let status = Status {
            state: State::Created,
            pid: None,
            since: Instant::now(),
            restarts: 0,
            last_failure: None,
            wrong_answer: None,
        };
        Self {
            name: definition.name().into(),
            instance,
            tickets: Arc::new(AtomicU64::new(1)),
            news: Notify::new(),
            cancelled: Mutex::default(),
            wishes: Mutex::default(),
            turn,
            subscriptions: Mutex::default(),
            policy,
            gate,
            definition: Mutex::new(definition),
            status: Mutex::new(status),
            knowledge: watch::Sender::new(Knowledge::default()),
            told: broadcast::Sender::new(TOLD),
            changes,
        }
    }

    /// Whether a gate says what may be started.
    pub(crate) fn is_guarded(&self) -> bool {
        lock(&self.gate).is_some()
    }

    /// Asks the gate whether the process of this definition may be started now, or may go on that was `started`.
    ///
    /// # Errors
    /// Why it may not.
    pub(crate) async fn may_start(
        &self,
        definition: &Arc<Definition>,
        started: Option<SystemTime>,
    ) -> Result<(), String> {
        let Some(gate) = lock(&self.gate).clone() else { return Ok(()) };
        let definition = Arc::clone(definition);
        // It may read files.
        let asked = tokio::task::spawn_blocking(move || gate.0(&definition, started)).await;
        asked.unwrap_or_else(|_| Err("nobody could say whether it may be started".to_owned()))
    }

    /// A number that no request had.
    pub(crate) fn ticket(&self) -> u64 {
        self.tickets.fetch_add(1, Ordering::Relaxed)
    }

    /// Nobody waits for this request any more.
    pub(crate) fn cancel(&self, ticket: u64, is_late: bool) {
        let next = self.tickets.load(Ordering::Relaxed);
        lock(&self.cancelled).push(Cancelled { ticket, is_late, next });
        self.news.notify_one();
    }

    pub(crate) fn take_cancelled(&self) -> Vec<Cancelled> {
        std::mem::take(&mut *lock(&self.cancelled))
    }

    /// Someone wants to know what it serves.
    pub(crate) fn want(&self) {
        lock(&self.wishes).want = true;
        self.news.notify_one();
    }

    /// The configuration was loaded anew.
    pub(crate) fn load(&self, definition: Arc<Definition>) {
        lock(&self.wishes).loaded = Some(definition);
        self.news.notify_one();
    }

    /// The task is to tell the process which resources matter.
    pub(crate) fn resubscribe(&self) {
        lock(&self.wishes).subscriptions = true;
        self.news.notify_one();
    }

    pub(crate) fn take_wishes(&self) -> PendingCommands {
        std::mem::take(&mut *lock(&self.wishes))
    }

    /// One more caller wants to hear of a resource's changes. Whether there is room for that.
    pub(crate) fn subscribe(&self, uri: &str) -> bool {
        let mut subscriptions = lock(&self.subscriptions);
        if subscriptions.len() >= MAX_SUBSCRIPTIONS && !subscriptions.contains_key(uri) {
            return false;
        }
        *subscriptions.entry(uri.to_owned()).or_default() += 1;
        true
    }

    /// One caller less wants to hear of a resource's changes. Whether that was the last.
    pub(crate) fn unsubscribe(&self, uri: &str) -> bool {
        let mut subscriptions = lock(&self.subscriptions);
        let Some(count) = subscriptions.get_mut(uri) else { return true };
        *count = count.saturating_sub(1);
        let is_last = *count == 0;
        if is_last {
            subscriptions.remove(uri);
        }
        is_last
    }

    /// The resources whose changes someone wants to hear of.
    pub(crate) fn subscriptions(&self) -> Vec<String> {
        lock(&self.subscriptions).keys().cloned().collect()
    }

    pub(crate) fn policy(&self) -> Policy {
        *lock(&self.policy)
    }

    pub(crate) fn definition(&self) -> Arc<Definition> {
        Arc::clone(&lock(&self.definition))
    }

    /// The definition is another now; a listing shows that.
    pub(crate) fn set_definition(&self, definition: Arc<Definition>) {
        *lock(&self.definition) = definition;
        self.list_changed();
    }

    pub(crate) fn status(&self) -> MutexGuard<'_, Status> {
        lock(&self.status)
    }

    /// What it serves is known.
    pub(crate) fn learned(&self, learned: Learned) {
        let known = self.knowledge.borrow().learned.clone();
        if known.as_deref() != Some(&learned) {
            // That it is one tool, itself, is what a listing says as long as nothing is known.
            let shows_the_same = known.is_none() && learned.tools.is_none();
            self.knowledge.send_modify(|knowledge| knowledge.learned = Some(Arc::new(learned)));
            // Before those go on who wait for it: they look whether anything has changed.
            if !shows_the_same {
                self.list_changed();
            }
        }
        self.settled();
    }

    /// No listing need wait for it.
    pub(crate) fn settled(&self) {
        self.knowledge.send_if_modified(|knowledge| !std::mem::replace(&mut knowledge.settled, true));
    }

    /// A listing of all capsules shows something else now.
    pub(crate) fn list_changed(&self) {
        self.changes.send_modify(|count| *count += 1);
    }

    /// The name of the tool where it has only one: what it says, else its own.
    pub(crate) fn only_tool(&self) -> String {
        let knowledge = self.knowledge.borrow();
        match knowledge.learned.as_ref().and_then(|learned| learned.tools.as_deref()) {
            Some([only]) => only.name.clone(),
            _ => self.name.to_string(),
        }
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    // What is guarded is whole at every moment: a panic left nothing half done.
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
