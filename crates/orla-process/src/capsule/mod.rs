//! Tool capsules: long-lived processes that serve tools (RFC 2).
//!
//! # How it works
//!
//! [`packages::find`] finds directories with a [`manifest`]. [`Capsules`] keeps one [`Capsule`] for each
//! that is one; it survives reloads as long as the name does, so that an unchanged capsule keeps its
//! process and a changed one never has two. A capsule is a handle to a task (`task`) which owns the
//! process and starts it at the first use. All decisions of its life are in `state`, a pure function;
//! what is said with a process is in `conversation` and `wire`, without I/O. [`executor`] makes
//! capabilities of what a capsule serves.
//!
//! # Invariants
//!
//! - A capsule never has two processes at once, and is sent calls in READY alone (property-tested).
//! - A call is sent once: one that was with a process that ended is answered with an error.
//! - No process outlives the last handle, nor the server.
//! - Nothing here knows what a tool means: arguments and results are opaque JSON.

mod answer;
mod conversation;
pub mod executor;
pub mod manifest;
pub mod packages;
mod process;
mod shared;
mod state;
pub mod surface;
mod task;
mod wire;

pub use executor::{CapsuleExecutor, CapsuleProvider};
pub use manifest::Mode;
pub use packages::{Package, Packages};
pub use state::Policy;
pub use surface::CapsuleSurface;

use std::collections::HashMap;
use std::fmt;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::time::Duration;

use async_trait::async_trait;
use orla_marketplace::{CallContext, JsonText, ProviderStatus, Registration, Source, Surface};
use tokio::sync::{Mutex as AsyncMutex, mpsc, oneshot, watch};
use tokio::time::{Instant, sleep_until, timeout_at};
use tokio_util::sync::{CancellationToken, DropGuard};
use tokio_util::task::TaskTracker;

use crate::reaper::Instance;
use answer::Offers;
use conversation::{Ask, Caller, Fault, Request};
use shared::Shared;
use state::State;
use task::{Inbox, Task};

/// Requests that are on their way to a task.
const REQUESTS: usize = 256;
/// How much longer than a capsule's own startup timeout a listing waits for it.
const LISTING_GRACE: Duration = Duration::from_millis(500);

/// Every capsule of a server.
pub struct Capsules {
    instance: Arc<Instance>,
    policy: Arc<Mutex<Policy>>,
    changes: watch::Sender<u64>,
    tasks: TaskTracker,
    stop: CancellationToken,
    known: Mutex<Known>,
}

#[derive(Default)]
struct Known {
    /// Those that the configuration in force names.
    current: Vec<Arc<Capsule>>,
    /// Those that live, by name; some for callers of an older configuration alone.
    alive: HashMap<Arc<str>, Weak<Capsule>>,
    /// Who has a process, by name: one that is ending is waited for by the next of its name.
    turns: HashMap<String, Arc<AsyncMutex<()>>>,
}

impl fmt::Debug for Capsules {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Capsules").field("current", &self.current()).finish_non_exhaustive()
    }
}

impl Capsules {
    /// No capsules yet. Their processes carry the mark of `instance`.
    pub fn new(instance: Arc<Instance>, policy: Policy) -> Self {
        Self {
            instance,
            policy: Arc::new(Mutex::new(policy)),
            changes: watch::Sender::new(0),
            tasks: TaskTracker::new(),
            stop: CancellationToken::new(),
            known: Mutex::default(),
        }
    }

    /// Takes the packages and the policy of a configuration that was loaded. A capsule whose name stays
    /// is carried over: unchanged it keeps its process, changed it is restarted, and one that had given up
    /// tries again. The others end when nobody uses them any more. Starts no process.
    pub fn load(&self, packages: impl IntoIterator<Item = Package>, policy: Policy) {
        *lock(&self.policy) = policy;
        let mut known = self.known();
        let mut current = Vec::new();
        for package in packages {
            let package = Arc::new(package);
            let alive = known.alive.get(package.manifest.name.as_str()).and_then(Weak::upgrade);
            let capsule = match alive {
                Some(capsule) => {
                    capsule.loaded(package);
                    capsule
                }
                None => {
                    let turn = known.turns.entry(package.manifest.name.clone()).or_default();
                    Arc::new(self.capsule(package, Arc::clone(turn)))
                }
            };
            known.alive.insert(Arc::clone(&capsule.shared.name), Arc::downgrade(&capsule));
            current.push(capsule);
        }
        let old = std::mem::replace(&mut known.current, current);
        known.alive.retain(|_, capsule| capsule.strong_count() > 0);
        known.turns.retain(|_, turn| Arc::strong_count(turn) > 1);
        drop(known);
        drop(old);
    }

    fn capsule(&self, package: Arc<Package>, turn: Arc<AsyncMutex<()>>) -> Capsule {
        let shared = Shared::new(
            Arc::clone(&package),
            Arc::clone(&self.instance),
            Arc::clone(&self.policy),
            self.changes.clone(),
            turn,
        );
        let shared = Arc::new(shared);
        let (requests, requests_inbox) = mpsc::channel(REQUESTS);
        let stop = self.stop.child_token();
        let inbox = Inbox { requests: requests_inbox, stop: stop.clone() };
        let task = Task::new(Arc::clone(&shared), package, inbox);
        Capsule {
            shared,
            requests,
            unborn: Mutex::new(Some((task, self.tasks.clone()))),
            _stop: stop.drop_guard(),
        }
    }

    /// Those that the configuration in force names.
    pub fn current(&self) -> Vec<Arc<Capsule>> {
        self.known().current.clone()
    }

    /// The capabilities of all of them, as far as they are known.
    pub fn registrations(&self) -> Vec<Registration> {
        self.current().iter().flat_map(executor::registrations).collect()
    }

    /// What they serve besides tools.
    pub fn surfaces(&self) -> Vec<Arc<CapsuleSurface>> {
        self.current().into_iter().map(|capsule| Arc::new(CapsuleSurface::new(capsule))).collect()
    }

    /// Counts the moments at which [`registrations`](Self::registrations) became others.
    pub fn changes(&self) -> watch::Receiver<u64> {
        self.changes.subscribe()
    }

    /// Starts those that are to start with the server.
    pub fn start_eager(&self, all: bool) {
        for capsule in self.current() {
            if all || capsule.package().manifest.eager {
                capsule.want();
            }
        }
    }

    /// Waits until it is known what each of them serves, and starts those of which it is not. One that
    /// does not become ready holds a listing up once, and not for longer than it may take to start.
    pub async fn learn(&self) {
        let unknown: Vec<Arc<Capsule>> =
            self.current().into_iter().filter(|capsule| !capsule.is_settled()).collect();
        // All at once, and then one after the other: the waits overlap.
        unknown.iter().for_each(|capsule| capsule.want());
        let since = Instant::now();
        for capsule in unknown {
            capsule.learn_until(since + capsule.patience()).await;
        }
    }

    /// Ends every process, gracefully where it lets itself be ended so, and waits for that.
    pub async fn shutdown(&self) {
        self.stop.cancel();
        self.tasks.close();
        self.tasks.wait().await;
    }

    fn known(&self) -> MutexGuard<'_, Known> {
        lock(&self.known)
    }
}

#[async_trait]
impl Source for Capsules {
    fn registrations(&self) -> Vec<Registration> {
        self.registrations()
    }

    fn surfaces(&self) -> Vec<Arc<dyn Surface>> {
        let own = self.surfaces().into_iter();
        own.map(|surface| surface as Arc<dyn Surface>).collect()
    }

    fn changes(&self) -> watch::Receiver<u64> {
        self.changes()
    }

    fn may_serve(&self, name: &str) -> bool {
        self.current().iter().any(|capsule| {
            if let Some(prefix) = &capsule.package().manifest.prefix {
                return name.starts_with(prefix.as_str());
            }
            let rest = name.strip_prefix(capsule.name());
            rest.is_some_and(|rest| rest.starts_with("__") || rest.starts_with('.'))
        })
    }

    fn start_eager(&self, all: bool) {
        self.start_eager(all);
    }

    async fn learn(&self) {
        self.learn().await;
    }

    async fn shutdown(&self) {
        self.shutdown().await;
    }
}

/// A handle to one capsule. When the last one is dropped, its process is ended.
pub struct Capsule {
    shared: Arc<Shared>,
    requests: mpsc::Sender<Request>,
    /// The task that has not been started yet: only the first use needs one.
    unborn: Mutex<Option<(Task, TaskTracker)>>,
    _stop: DropGuard,
}

/// How a request ended without a result.
#[derive(Debug)]
pub(crate) enum Ending {
    Fault(Fault),
    Cancelled,
    /// With the reason where it was never sent.
    TimedOut {
        not_ready: Option<String>,
    },
}

impl fmt::Debug for Capsule {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Capsule({}, {})", self.shared.name, self.shared.status().state.name())
    }
}

impl Capsule {
    /// Its name.
    pub fn name(&self) -> &str {
        &self.shared.name
    }

    /// The package that is in force.
    pub fn package(&self) -> Arc<Package> {
        self.shared.package()
    }

    /// How it is.
    pub fn status(&self) -> ProviderStatus {
        let now = self.shared.status().clone();
        let mut status = ProviderStatus::default();
        let package = self.package();
        status.source = Some(package.directory.to_string_lossy().into_owned());
        status.interpreter.clone_from(&package.interpreter);
        status.state = Some(now.state.name().to_owned());
        status.pid = now.pid;
        status.uptime_ms =
            now.pid.map(|_| u64::try_from(now.since.elapsed().as_millis()).unwrap_or(u64::MAX));
        status.restarts = Some(now.restarts);
        status.last_failure = now.last_failure;
        status
    }

    /// Asks it something, and waits for the answer until the deadline. Dropping the future withdraws the
    /// request.
    pub(crate) async fn ask(&self, ask: Ask, ctx: &CallContext) -> Result<JsonText, Ending> {
        self.bear();
        let ticket = self.shared.ticket();
        let (reply, mut answer) = oneshot::channel();
        let request = Request {
            ticket,
            ask,
            caller: Caller { notices: ctx.notices.clone(), client: ctx.client.clone() },
            traceparent: ctx.traceparent.clone(),
            reply,
        };
        // Withdraws the request wherever this ends before the answer.
        let mut withdrawal = Withdrawal { shared: &self.shared, ticket: None };
        let asked = async {
            if self.requests.send(request).await.is_err() {
                return Err(Ending::Fault(Fault::Gone("it was stopped".to_owned())));
            }
            withdrawal.ticket = Some(ticket);
            let answer = (&mut answer).await;
            withdrawal.ticket = None;
            match answer {
                Ok(reply) => reply.map_err(Ending::Fault),
                Err(_) => Err(Ending::Fault(Fault::Gone("it was stopped".to_owned()))),
            }
        };
        tokio::select! {
            biased;
            answer = asked => answer,
            () = ctx.cancellation.cancelled() => Err(Ending::Cancelled),
            () = sleep_until(ctx.deadline) => Err(Ending::TimedOut { not_ready: self.not_ready() }),
        }
    }

    /// Why it cannot answer at the moment, if that is so.
    fn not_ready(&self) -> Option<String> {
        let status = self.shared.status();
        match status.state {
            State::Ready { .. } | State::Draining => None,
            State::Starting { .. } if status.last_failure.is_none() => {
                Some("it has not said orla.hello".to_owned())
            }
            state => {
                let reason = status.last_failure.clone();
                Some(reason.unwrap_or_else(|| format!("its state is {}", state.name())))
            }
        }
    }

    /// Waits until it is known what it serves, but not for longer than it may take to start, and once.
    pub(crate) async fn learn(&self) {
        if !self.is_settled() {
            self.want();
            self.learn_until(Instant::now() + self.patience()).await;
        }
    }

    async fn learn_until(&self, latest: Instant) {
        let mut knowledge = self.shared.knowledge.subscribe();
        // Whatever ends the wait, it ends.
        let _ = timeout_at(latest, knowledge.wait_for(|knowledge| knowledge.settled)).await;
        self.shared.settled();
    }

    fn patience(&self) -> Duration {
        self.package().manifest.startup_timeout + LISTING_GRACE
    }

    /// What it offers besides tools, as far as that is known.
    pub(crate) fn offers(&self) -> Option<Offers> {
        let knowledge = self.shared.knowledge.borrow();
        match &knowledge.learned {
            Some(learned) => Some(learned.offers.clone()),
            None => knowledge.settled.then(Offers::default),
        }
    }

    fn is_settled(&self) -> bool {
        self.shared.knowledge.borrow().settled
    }

    fn want(&self) {
        self.bear();
        self.shared.want();
    }

    fn loaded(&self, package: Arc<Package>) {
        match &mut *lock(&self.unborn) {
            Some((task, _)) if *package != *self.shared.package() => task.replace(package),
            Some(_) => {}
            None => self.shared.load(package),
        }
    }

    /// Starts the task at the first use.
    fn bear(&self) {
        if let Some((task, tasks)) = lock(&self.unborn).take() {
            tasks.spawn(task.run());
        }
    }
}

/// Tells the task that nobody waits for a request any more, when it is dropped.
struct Withdrawal<'a> {
    shared: &'a Shared,
    ticket: Option<u64>,
}

impl Drop for Withdrawal<'_> {
    fn drop(&mut self) {
        if let Some(ticket) = self.ticket {
            self.shared.cancel(ticket);
        }
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    // What is guarded is whole at every moment: a panic left nothing half done.
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
mod tests;
