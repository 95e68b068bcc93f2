//! Tool capsules: long-lived processes that serve tools (RFC 2); and servers of MCP and plugins, which are
//! child processes too and supervised in the same way.
//!
//! # How it works
//!
//! [`packages::find`] finds directories with a [`manifest`]. [`Capsules`] keeps one [`Capsule`] for each
//! that is one; it survives reloads as long as the name does, so that an unchanged capsule keeps its
//! process and a changed one never has two. A capsule is a handle to a task (`task`) which owns the
//! process and starts it at the first use. All decisions of its life are in `state`, a pure function;
//! what is said with a process is in [`orla_mcp`] and [`plugin`](crate::plugin), without I/O. [`executor`] makes capabilities of
//! what a capsule serves. A [`Definition`] says which of the three it is: it differs in what is started, and in
//! what is said (`talk`).
//!
//! # Invariants
//!
//! - A capsule never has two processes at once, and is sent calls in READY alone (property-tested).
//! - A call is sent once: one that was with a process that ended is answered with an error.
//! - No process outlives the last handle, nor the server.
//! - Nothing here knows what a tool means: arguments and results are opaque JSON.

mod definition;
pub mod executor;
mod hang;
pub mod manifest;
pub mod packages;
mod process;
mod shared;
mod state;
mod talk;
mod task;

pub use definition::{Command, Definition, Plugin};
pub use executor::{CapsuleExecutor, CapsuleProvider};
pub use manifest::Mode;
pub use packages::{Package, Packages};
pub use process::Process;
pub use state::Policy;

use std::collections::{BTreeSet, HashMap};
use std::fmt;
use std::path::PathBuf;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::time::{Duration, SystemTime};

use async_trait::async_trait;
use orla_marketplace::{
    CallContext, JsonText, ProviderStatus, Registration, Source, Surface, SurfaceNotice,
};
use orla_mcp::answer::Offers;
use orla_mcp::conversation::Request;
use orla_mcp::object;
use orla_mcp::{Ask, Caller, Ending, Era, Fault, Learned, Peer, PeerSurface};
use tokio::sync::{Mutex as AsyncMutex, broadcast, mpsc, oneshot, watch};
use tokio::time::{Instant, sleep_until, timeout_at};
use tokio_util::sync::{CancellationToken, DropGuard};
use tokio_util::task::TaskTracker;

use crate::plugin::conversation::no_answer;
use crate::reaper::Instance;
use shared::Shared;
use state::State;
use task::{Inbox, Task};

/// Requests that are on their way to a task.
const REQUESTS: usize = 256;
/// How much longer than a capsule's own startup timeout a listing waits for it.
const LISTING_GRACE: Duration = Duration::from_millis(500);

/// Says why a process may not be started, if it may not.
#[derive(Clone)]
pub struct Gate(Arc<Judge>);

type Judge = dyn Fn(&Definition, Option<SystemTime>) -> Result<(), String> + Send + Sync;

impl Gate {
    /// One that asks `judge` about a definition, before its process is started and when that is ready. Then it is
    /// also told when the process was started. It may read files, and so block.
    pub fn new(
        judge: impl Fn(&Definition, Option<SystemTime>) -> Result<(), String> + Send + Sync + 'static,
    ) -> Self {
        Self(Arc::new(judge))
    }
}

impl Gate {
    /// Asks it, which may block.
    ///
    /// # Errors
    /// Why what is defined may not be started.
    pub fn ask(&self, definition: &Definition) -> Result<(), String> {
        (self.0)(definition, None)
    }
}

impl fmt::Debug for Gate {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Gate")
    }
}

/// Every capsule of a server.
pub struct Capsules {
    instance: Arc<Instance>,
    policy: Arc<Mutex<Policy>>,
    gate: Arc<Mutex<Option<Gate>>>,
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
        Self::counting(instance, policy, watch::Sender::new(0))
    }

    /// The same, whose changes are counted here.
    pub fn counting(instance: Arc<Instance>, policy: Policy, changes: watch::Sender<u64>) -> Self {
        Self {
            instance,
            policy: Arc::new(Mutex::new(policy)),
            gate: Arc::default(),
            changes,
            tasks: TaskTracker::new(),
            stop: CancellationToken::new(),
            known: Mutex::default(),
        }
    }

    /// Takes the packages and the policy of a configuration that was loaded. A capsule whose name stays
    /// is carried over: unchanged it keeps its process, changed it is restarted, and one that had given up
    /// tries again. The others end when nobody uses them any more. Starts no process.
    pub fn load(&self, packages: impl IntoIterator<Item = Package>, policy: Policy) {
        self.supervise(packages.into_iter().map(Definition::Package), policy);
    }

    /// The same for anything that can be supervised.
    pub fn supervise(&self, definitions: impl IntoIterator<Item = Definition>, policy: Policy) {
        *lock(&self.policy) = policy;
        let mut known = self.known();
        let current = definitions
            .into_iter()
            .map(|definition| self.carried(&mut known, definition, true))
            .collect();
        let old = std::mem::replace(&mut known.current, current);
        known.alive.retain(|_, capsule| capsule.strong_count() > 0);
        known.turns.retain(|_, turn| Arc::strong_count(turn) > 1);
        drop(known);
        drop(old);
    }

    /// From now on, asks before each start of a process, restarts included; nobody is asked where absent.
    pub fn guard(&self, gate: Option<Gate>) {
        *lock(&self.gate) = gate;
    }

    /// The one of this name, made now if there is none; whoever holds it keeps it.
    pub fn one(&self, definition: Definition) -> Arc<Capsule> {
        self.carried(&mut self.known(), definition, false)
    }

    fn carried(&self, known: &mut Known, definition: Definition, is_load: bool) -> Arc<Capsule> {
        let definition = Arc::new(definition);
        let capsule = match known.alive.get(definition.name()).and_then(Weak::upgrade) {
            Some(capsule) => {
                if is_load {
                    capsule.loaded(definition);
                }
                capsule
            }
            None => {
                let turn = known.turns.entry(definition.name().to_owned()).or_default();
                Arc::new(self.capsule(definition, Arc::clone(turn)))
            }
        };
        known.alive.insert(Arc::clone(&capsule.shared.name), Arc::downgrade(&capsule));
        capsule
    }

    fn capsule(&self, definition: Arc<Definition>, turn: Arc<AsyncMutex<()>>) -> Capsule {
        let shared = Shared::new(
            Arc::clone(&definition),
            Arc::clone(&self.instance),
            Arc::clone(&self.policy),
            self.changes.clone(),
            turn,
            Arc::clone(&self.gate),
        );
        let shared = Arc::new(shared);
        let (requests, requests_inbox) = mpsc::channel(REQUESTS);
        let stop = self.stop.child_token();
        let inbox = Inbox { requests: requests_inbox, stop: stop.clone() };
        let task = Task::new(Arc::clone(&shared), definition, inbox);
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

    /// The entrypoints of the packages among them that are started with the server's own `PATH`.
    pub fn programs(&self) -> Vec<PathBuf> {
        let entrypoint = |capsule: Arc<Capsule>| match &*capsule.definition() {
            Definition::Package(package) => {
                let has_own_path = package.manifest.env.iter().any(|(name, _)| name == "PATH");
                (!has_own_path).then(|| package.entrypoint())
            }
            Definition::Server(_) | Definition::Plugin(_) => None,
        };
        self.current().into_iter().filter_map(entrypoint).collect()
    }

    /// For each whose files mention variables of the server that it does not get: its name, and these.
    pub fn withheld(&self) -> Vec<(String, BTreeSet<String>)> {
        let environment = self.instance.environment();
        let withheld = |capsule: Arc<Capsule>| {
            let (program, args) = capsule.definition().launch().ok()?;
            Some((capsule.name().to_owned(), program.withheld(&args, &environment)))
        };
        self.current().into_iter().filter_map(withheld).collect()
    }

    /// The capabilities of all of them, as far as they are known.
    pub fn registrations(&self) -> Vec<Registration> {
        self.current().iter().flat_map(executor::registrations).collect()
    }

    /// What they serve besides tools.
    pub fn surfaces(&self) -> Vec<Arc<PeerSurface<Capsule>>> {
        let surface = |capsule: Arc<Capsule>| {
            let prefix = capsule.definition().prefix().map(str::to_owned);
            let needs = capsule.definition().requires();
            Arc::new(PeerSurface::new(capsule, prefix).needing(needs))
        };
        self.current().into_iter().map(surface).collect()
    }

    /// Counts the moments at which [`registrations`](Self::registrations) became others.
    pub fn changes(&self) -> watch::Receiver<u64> {
        self.changes.subscribe()
    }

    /// Starts those that are to start with the server.
    pub fn start_eager(&self, all: bool) {
        for capsule in self.current() {
            if all || capsule.definition().is_eager() {
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
            if let Some(prefix) = capsule.definition().prefix() {
                return name.starts_with(prefix);
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

    /// What it is started from.
    pub fn definition(&self) -> Arc<Definition> {
        self.shared.definition()
    }

    /// What it serves, as far as that is known.
    pub fn learned(&self) -> Option<Arc<Learned>> {
        self.shared.knowledge.borrow().learned.clone()
    }

    /// What is to be said of a line that answers no call and can only be about the call with this ticket.
    fn wrong_answer(&self, ticket: u64) -> Option<String> {
        let status = self.shared.status();
        status.wrong_answer.as_ref().filter(|(call, _)| *call == ticket).map(|(_, line)| no_answer(line))
    }

    /// How it is.
    pub fn status(&self) -> ProviderStatus {
        let now = self.shared.status().clone();
        let mut status = ProviderStatus::default();
        let definition = self.definition();
        status.source = Some(definition.source());
        status.interpreter = definition.interpreter();
        status.state = Some(now.state.name().to_owned());
        status.pid = now.pid;
        status.uptime_ms =
            now.pid.map(|_| u64::try_from(now.since.elapsed().as_millis()).unwrap_or(u64::MAX));
        status.restarts = Some(now.restarts);
        status.last_failure = now.last_failure;
        status
    }

    /// Why it cannot answer at the moment, if that is so.
    fn not_ready(&self) -> Option<String> {
        let status = self.shared.status();
        match status.state {
            State::Ready { .. } | State::Draining => None,
            State::Starting { .. } if status.last_failure.is_none() => {
                let [_, done] = self.definition().opening();
                Some(format!("it has not {done}"))
            }
            state => {
                let reason = status.last_failure.clone();
                Some(reason.unwrap_or_else(|| format!("its state is {}", state.name())))
            }
        }
    }

    async fn learn_until(&self, latest: Instant) {
        let mut knowledge = self.shared.knowledge.subscribe();
        // Whatever ends the wait, it ends.
        let _ = timeout_at(latest, knowledge.wait_for(|knowledge| knowledge.settled)).await;
        self.shared.settled();
    }

    fn is_sessionless(&self) -> bool {
        self.learned().is_some_and(|learned| learned.era == Era::Sessionless)
    }

    fn patience(&self) -> Duration {
        self.definition().startup_timeout() + LISTING_GRACE
    }

    /// Whether a listing need not wait for it.
    pub fn is_settled(&self) -> bool {
        self.shared.knowledge.borrow().settled
    }

    /// Starts it, if it does not run.
    pub fn want(&self) {
        self.bear();
        self.shared.want();
    }

    fn loaded(&self, definition: Arc<Definition>) {
        match &mut *lock(&self.unborn) {
            Some((task, _)) if *definition != *self.shared.definition() => task.replace(definition),
            Some(_) => {}
            None => self.shared.load(definition),
        }
    }

    /// Starts the task at the first use.
    fn bear(&self) {
        if let Some((task, tasks)) = lock(&self.unborn).take() {
            tasks.spawn(task.run());
        }
    }
}

#[async_trait]
impl Peer for Capsule {
    fn name(&self) -> &str {
        &self.shared.name
    }

    async fn ask(&self, ask: Ask, ctx: &CallContext) -> Result<JsonText, Ending> {
        self.bear();
        let ticket = self.shared.ticket();
        let (reply, mut answer) = oneshot::channel();
        let request = Request {
            ticket,
            ask,
            caller: Caller {
                notices: ctx.scope.notices.clone(),
                client: ctx.scope.client.clone(),
                principal: ctx.scope.principal.clone(),
            },
            traceparent: ctx.scope.traceparent.clone(),
            reply,
        };
        // Withdraws the request wherever this ends before the answer.
        let deadline = ctx.deadline;
        let mut withdrawal = Withdrawal { shared: &self.shared, ticket: None, deadline };
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
            () = ctx.scope.cancellation.cancelled() => Err(Ending::Cancelled),
            () = sleep_until(ctx.deadline) => Err(Ending::TimedOut {
                not_ready: self.not_ready(),
                wrong_answer: self.wrong_answer(ticket),
            }),
        }
    }

    fn offers(&self) -> Option<Offers> {
        let knowledge = self.shared.knowledge.borrow();
        match &knowledge.learned {
            Some(learned) => Some(learned.offers.clone()),
            None => knowledge.settled.then(Offers::default),
        }
    }

    async fn learn(&self) {
        if !self.is_settled() {
            self.want();
            self.learn_until(Instant::now() + self.patience()).await;
        }
    }

    fn told(&self) -> broadcast::Receiver<SurfaceNotice> {
        self.shared.told.subscribe()
    }

    async fn subscribe(&self, uri: &str, ctx: &CallContext) -> Result<(), Ending> {
        let too_many = || Ending::Fault(Fault::Gone("too many resources are subscribed to".to_owned()));
        if self.is_sessionless() {
            self.shared.subscribe(uri).then_some(()).ok_or_else(too_many)?;
            self.shared.resubscribe();
            return Ok(());
        }
        self.ask(about("resources/subscribe", uri), ctx).await?;
        self.shared.subscribe(uri).then_some(()).ok_or_else(too_many)
    }

    async fn unsubscribe(&self, uri: &str, ctx: &CallContext) -> Result<(), Ending> {
        if !self.shared.unsubscribe(uri) {
            // Others still want to hear of it.
            return Ok(());
        }
        if self.is_sessionless() {
            self.shared.resubscribe();
            return Ok(());
        }
        self.ask(about("resources/unsubscribe", uri), ctx).await.map(drop)
    }
}

/// A request about one resource.
fn about(method: &str, uri: &str) -> Ask {
    let params = serde_json::json!({ "uri": uri }).to_string();
    Ask::Method { method: method.into(), params: object::trusted(params) }
}

/// Tells the task that nobody waits for a request any more, when it is dropped.
struct Withdrawal<'a> {
    shared: &'a Shared,
    ticket: Option<u64>,
    deadline: Instant,
}

impl Drop for Withdrawal<'_> {
    fn drop(&mut self) {
        if let Some(ticket) = self.ticket {
            self.shared.cancel(ticket, Instant::now() >= self.deadline);
        }
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    // What is guarded is whole at every moment: a panic left nothing half done.
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
mod tests;
