//! Keeps programs running that serve many requests: capsules, MCP servers, plugins.
//!
//! # How it works
//!
//! A [`Service`] names the program and its [`Protocol`]. A [`Supervisor`] has one [`Supervised`] for
//! each service. A `Supervised` survives reloads as long as its name stays, so an unchanged service
//! keeps its process and a changed one never has two. It is a handle to a task (`task`), which owns the
//! process and starts it at the first use. `state`, a pure function, makes all decisions of the life
//! cycle.
//!
//! # Invariants
//!
//! - A service never has two processes at once, and gets requests only in READY (property-tested).
//! - A request is sent once: it fails if its process ends.
//! - No process outlives the last handle, nor the server.
//! - Nothing here knows what a request means: requests and responses belong to the protocol.

mod hang;
mod process;
mod protocol;
mod service;
mod shared;
mod state;
mod task;

pub use process::Process;
pub use protocol::{Cancellation, ProcessEvent, Protocol, Refusal, StillRunning};
pub use service::{Kind, Service};
pub use state::Policy;

use std::collections::{BTreeSet, HashMap};
use std::ffi::OsString;
use std::fmt;
use std::io;
use std::sync::{Arc, Weak};
use std::time::{Duration, SystemTime};

use crate::child::Program;
use crate::confinement::Sandbox;
use crate::reaper::Instance;
use futures_util::future::BoxFuture;
use orla_marketplace::attestation::ContentSource;
use orla_marketplace::{ProviderStatus, millis_down};
use parking_lot::Mutex;
use shared::{Info, OfProtocol, Shared};
use state::State;
use task::{Inbox, Request, Task};
use tokio::sync::{Mutex as AsyncMutex, mpsc, oneshot, watch};
use tokio::time::{Instant, sleep_until, timeout_at};
use tokio_util::sync::{CancellationToken, DropGuard};
use tokio_util::task::TaskTracker;

/// The maximum number of requests in the channel to a task.
const REQUESTS: usize = 256;
/// How much longer than a service's own startup timeout a listing waits for it.
const LISTING_GRACE: Duration = Duration::from_millis(500);

/// Decides whether a program may be started.
#[derive(Clone)]
pub struct Gate(Arc<Check>);

type Check = dyn Fn(&ContentSource, Option<SystemTime>) -> Result<(), String> + Send + Sync;

impl Gate {
    /// Creates a gate that runs `check` before a process is started and when it is ready. In the second
    /// case the check also gets the time of the start. The check may read files, and so block.
    pub fn new(
        check: impl Fn(&ContentSource, Option<SystemTime>) -> Result<(), String> + Send + Sync + 'static,
    ) -> Self {
        Self(Arc::new(check))
    }

    /// Runs the check, which may block.
    ///
    /// # Errors
    /// Why this may not be started.
    pub fn check(&self, content: &ContentSource) -> Result<(), String> {
        (self.0)(content, None)
    }
}

impl fmt::Debug for Gate {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Gate")
    }
}

/// The services of one kind.
pub struct Supervisor<S: Service> {
    instance: Arc<Instance>,
    policy: Arc<Mutex<Policy>>,
    gate: Arc<Mutex<Option<Gate>>>,
    changes: watch::Sender<u64>,
    tasks: TaskTracker,
    stop: CancellationToken,
    services: Mutex<Services<S>>,
}

struct Services<S: Service> {
    /// The services of the current configuration.
    current: Vec<Arc<Supervised<S>>>,
    /// All existing services, by name. Some exist only for callers of an older configuration.
    alive: HashMap<Arc<str>, Weak<Supervised<S>>>,
    /// A lock for each name, held while a process of that name exists. A new process waits until the
    /// previous one of its name has ended.
    process_locks: HashMap<String, Arc<AsyncMutex<()>>>,
}

impl<S: Service> fmt::Debug for Supervisor<S> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Supervisor").field("current", &self.current()).finish_non_exhaustive()
    }
}

impl<S: Service> Supervisor<S> {
    /// Creates a supervisor without services. The processes carry the mark of `instance`. `changes`
    /// counts the changes of what the services serve.
    pub fn new(instance: Arc<Instance>, policy: Policy, changes: watch::Sender<u64>) -> Self {
        let services =
            Services { current: Vec::new(), alive: HashMap::new(), process_locks: HashMap::new() };
        Self {
            instance,
            policy: Arc::new(Mutex::new(policy)),
            gate: Arc::default(),
            changes,
            tasks: TaskTracker::new(),
            stop: CancellationToken::new(),
            services: Mutex::new(services),
        }
    }

    /// Applies the services and the policy of a new configuration. A service whose name stays is carried
    /// over: an unchanged service keeps its process, a changed one is restarted, and one that had given
    /// up tries again. The others end when their last handles are dropped. This function starts no
    /// process.
    pub fn load(&self, services: impl IntoIterator<Item = S>, policy: Policy) {
        *self.policy.lock() = policy;
        let mut all = self.services.lock();
        let current =
            services.into_iter().map(|service| self.carry_over_or_add(&mut all, service)).collect();
        let old = std::mem::replace(&mut all.current, current);
        all.alive.retain(|_, supervised| supervised.strong_count() > 0);
        all.process_locks.retain(|_, process_lock| Arc::strong_count(process_lock) > 1);
        drop(all);
        drop(old);
    }

    /// Sets the gate that decides on each start of a process, restarts included; `None` lets every
    /// process start.
    pub fn guard(&self, gate: Option<Gate>) {
        *self.gate.lock() = gate;
    }

    /// Returns this service. One of the same name is carried over as by [`load`](Self::load). The service
    /// lives as long as its handles.
    pub fn load_one(&self, service: S) -> Arc<Supervised<S>> {
        self.carry_over_or_add(&mut self.services.lock(), service)
    }

    fn carry_over_or_add(&self, all: &mut Services<S>, service: S) -> Arc<Supervised<S>> {
        let service = Arc::new(service);
        let supervised = match all.alive.get(service.name()).and_then(Weak::upgrade) {
            Some(supervised) => {
                supervised.load(service);
                supervised
            }
            None => {
                let process_lock = all.process_locks.entry(service.name().to_owned()).or_default();
                Arc::new(self.supervised(service, Arc::clone(process_lock)))
            }
        };
        all.alive.insert(Arc::clone(&supervised.shared.name), Arc::downgrade(&supervised));
        supervised
    }

    fn supervised(&self, service: Arc<S>, process_lock: Arc<AsyncMutex<()>>) -> Supervised<S> {
        let shared = Arc::new(Shared::new(
            Arc::clone(&service),
            Arc::clone(&self.instance),
            Arc::clone(&self.policy),
            self.changes.clone(),
            process_lock,
            Arc::clone(&self.gate),
        ));
        let (requests, requests_inbox) = mpsc::channel(REQUESTS);
        let stop = self.stop.child_token();
        let inbox = Inbox { requests: requests_inbox, stop: stop.clone() };
        let task = Task::new(Arc::clone(&shared), service, inbox);
        Supervised {
            shared,
            requests,
            idle: Mutex::new(Some((Box::new(task), self.tasks.clone()))),
            _stop: stop.drop_guard(),
        }
    }

    /// Returns the services of the current configuration.
    pub fn current(&self) -> Vec<Arc<Supervised<S>>> {
        self.services.lock().current.clone()
    }

    /// Returns the service with this name, for inspection.
    pub fn managed(&self, name: &str) -> Option<Arc<dyn Managed>> {
        let named = self.current().into_iter().find(|service| service.name() == name)?;
        Some(named as Arc<dyn Managed>)
    }

    /// Returns the names of services whose files mention server variables that they do not get, with
    /// these variables.
    pub fn withheld(&self) -> Vec<(String, BTreeSet<String>)> {
        let environment = self.instance.environment();
        let withheld = |supervised: Arc<Supervised<S>>| {
            let (program, args) = supervised.service().launch().ok()?;
            Some((supervised.name().to_owned(), program.withheld(&args, &environment)))
        };
        self.current().into_iter().filter_map(withheld).collect()
    }

    /// Returns the sandbox of each confined service, by the service's name.
    pub fn sandboxes(&self) -> Vec<(String, Arc<Sandbox>)> {
        let confined = |supervised: Arc<Supervised<S>>| {
            Some((supervised.name().to_owned(), Arc::clone(supervised.service().sandbox()?)))
        };
        self.current().into_iter().filter_map(confined).collect()
    }

    /// Returns the counter of changes of what the services serve.
    pub fn changes(&self) -> watch::Receiver<u64> {
        self.changes.subscribe()
    }

    /// Starts the services that start with the server.
    pub fn start_eager(&self, all: bool) {
        for supervised in self.current() {
            if all || supervised.service().is_eager() {
                supervised.request_start();
            }
        }
    }

    /// Waits until it is known what each service serves, and starts those for which it is unknown. A
    /// service that does not become ready delays a listing only once, and only for its startup timeout.
    pub async fn learn(&self) {
        let unknown: Vec<Arc<Supervised<S>>> =
            self.current().into_iter().filter(|supervised| !supervised.is_learned()).collect();
        // All are started at once and then awaited one after the other, so that the waits overlap.
        unknown.iter().for_each(|supervised| supervised.request_start());
        let since = Instant::now();
        for supervised in unknown {
            supervised.learn_until(since + supervised.listing_timeout()).await;
        }
    }

    /// Returns the names of services of which it is not known yet what they serve.
    pub fn awaited(&self) -> Vec<String> {
        let unknown = self.current().into_iter().filter(|supervised| !supervised.is_learned());
        unknown.map(|supervised| supervised.name().to_owned()).collect()
    }

    /// Ends every process, gracefully if possible, and waits for its end.
    pub async fn shutdown(&self) {
        self.stop.cancel();
        self.tasks.close();
        self.tasks.wait().await;
    }
}

/// A handle to one service. When the last handle is dropped, the process is ended.
pub struct Supervised<S: Service> {
    shared: Arc<Shared<S>>,
    requests: mpsc::Sender<Request<S>>,
    /// The task before its start: only the first use starts it.
    idle: Mutex<Option<(Box<Task<S>>, TaskTracker)>>,
    _stop: DropGuard,
}

impl<S: Service> fmt::Debug for Supervised<S> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Supervised({}, {})", self.shared.name, self.shared.status().state.name())
    }
}

/// The reason why a request got no response.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum NoResponse {
    /// The service was stopped.
    Stopped,
    /// The caller cancelled the request.
    Cancelled,
    /// Too many callers are waiting.
    Busy {
        /// The number of waiting callers.
        waiting: usize,
    },
    /// The deadline has passed.
    TimedOut {
        /// The ticket of the request.
        ticket: u64,
        /// Why the process cannot answer at the moment, if known.
        not_ready: Option<String>,
    },
}

/// A supervised process, for inspection.
pub trait Managed: Send + Sync {
    /// Ends the process once its calls in flight are over, and starts another one. A process that does
    /// not run is started.
    fn restart(&self);

    /// Returns the last lines of standard error, the oldest first.
    fn stderr_tail(&self) -> Vec<String>;

    /// Returns the name.
    fn name(&self) -> &str;

    /// Returns the status.
    fn status(&self) -> ProviderStatus;

    /// Returns the program that is started, and its arguments.
    ///
    /// # Errors
    /// There is no such program, or no current directory.
    fn launch(&self) -> io::Result<(Program, Vec<OsString>)>;

    /// Starts the service if it does not run, and waits for a limited time until it is known what it
    /// serves.
    fn learn(&self) -> BoxFuture<'_, ()>;
}

impl<S: Service> Managed for Supervised<S> {
    fn restart(&self) {
        self.run();
        self.shared.command(|commands| commands.restart = true);
    }

    fn stderr_tail(&self) -> Vec<String> {
        self.shared.stderr_tail()
    }

    fn name(&self) -> &str {
        Self::name(self)
    }

    fn status(&self) -> ProviderStatus {
        Self::status(self)
    }

    fn launch(&self) -> io::Result<(Program, Vec<OsString>)> {
        self.service().launch()
    }

    fn learn(&self) -> BoxFuture<'_, ()> {
        Box::pin(Self::learn(self))
    }
}

impl<S: Service> Supervised<S> {
    /// Returns the name.
    pub fn name(&self) -> &str {
        &self.shared.name
    }

    /// Returns the supervised service.
    pub fn service(&self) -> Arc<S> {
        self.shared.service()
    }

    /// Returns what the service serves, as far as that is known.
    pub fn info(&self) -> Option<Arc<Info<S>>> {
        self.shared.info()
    }

    /// Returns the state that the protocols share with the handles.
    pub fn shared(&self) -> &OfProtocol<S> {
        &self.shared.of_protocol
    }

    /// Tells the protocol that this handle has changed the [shared](Self::shared) state.
    pub fn shared_changed(&self) {
        self.shared.command(|commands| commands.shared_changed = true);
    }

    /// Returns the status.
    pub fn status(&self) -> ProviderStatus {
        let now = self.shared.status().clone();
        let mut status = ProviderStatus::default();
        let service = self.service();
        status.source = Some(service.source());
        status.interpreter = service.interpreter();
        status.state = Some(now.state.name().to_owned());
        status.pid = now.pid;
        status.uptime_ms = now.pid.map(|_| millis_down(now.since.elapsed()));
        status.restarts = Some(now.restarts);
        status.sandbox = Some(self.shared.instance.sandboxes().status_of(service.sandbox()));
        status.last_failure = now.last_failure;
        status
    }

    /// Starts the process if it does not run, sends a request when it is ready, and waits for the
    /// response. Dropping the future cancels the request.
    ///
    /// # Errors
    /// See [`NoResponse`].
    pub async fn request(
        &self,
        request: <S::Protocol as Protocol>::Request,
        deadline: Instant,
        cancellation: &CancellationToken,
    ) -> Result<<S::Protocol as Protocol>::Response, NoResponse> {
        self.run();
        let permit = tokio::select! {
            biased;
            permit = self.requests.reserve() => permit.map_err(|_| NoResponse::Stopped)?,
            () = cancellation.cancelled() => return Err(NoResponse::Cancelled),
            () = sleep_until(deadline) => return Err(self.timed_out(self.shared.ticket())),
        };
        let (reply, response) = oneshot::channel();
        let info = self.info();
        let ticket =
            self.shared.numbered(|ticket| permit.send(Request { ticket, request, reply, info }));
        // Cancels the request if the future is dropped before the response comes.
        let mut guard = CancelOnDrop { shared: &self.shared, ticket: Some(ticket), deadline };
        tokio::select! {
            biased;
            response = response => {
                guard.ticket = None;
                response.map_err(|_| NoResponse::Stopped)
            }
            () = cancellation.cancelled() => Err(NoResponse::Cancelled),
            () = sleep_until(deadline) => Err(self.timed_out(ticket)),
        }
    }

    fn timed_out(&self, ticket: u64) -> NoResponse {
        NoResponse::TimedOut { ticket, not_ready: self.not_ready() }
    }

    /// Returns whether a request need not wait for a handshake: it is complete, the process takes no part in
    /// it, or no process will start.
    pub fn is_current(&self) -> bool {
        *self.shared.current.borrow()
    }

    /// Waits until the service [is current](Self::is_current), and starts it if it does not run.
    ///
    /// # Errors
    /// See [`NoResponse`].
    pub async fn wait_until_current(
        &self,
        deadline: Instant,
        cancellation: &CancellationToken,
    ) -> Result<(), NoResponse> {
        self.request_start();
        let waiting = self.shared.current.receiver_count();
        if waiting >= task::MAX_WAITING {
            return Err(NoResponse::Busy { waiting });
        }
        let mut current = self.shared.current.subscribe();
        tokio::select! {
            biased;
            waited = current.wait_for(|is_current| *is_current) => {
                waited.map(drop).map_err(|_| NoResponse::Stopped)
            }
            () = cancellation.cancelled() => Err(NoResponse::Cancelled),
            () = sleep_until(deadline) => Err(self.timed_out(self.shared.ticket())),
        }
    }

    /// Returns why the service cannot answer at the moment, if that is so.
    fn not_ready(&self) -> Option<String> {
        let status = self.shared.status();
        match status.state {
            State::Ready { .. } | State::Draining => None,
            State::Starting { .. } if status.last_failure.is_none() => {
                let [_, done] = S::HANDSHAKE;
                Some(format!("it has not {done}"))
            }
            state => {
                let reason = status.last_failure.clone();
                Some(reason.unwrap_or_else(|| format!("its state is {}", state.name())))
            }
        }
    }

    /// Returns whether a listing need not wait for the service.
    pub fn is_learned(&self) -> bool {
        self.shared.knowledge.borrow().is_learned
    }

    /// Starts the service, if it does not run.
    pub fn request_start(&self) {
        self.run();
        self.shared.command(|commands| commands.start = true);
    }

    /// Waits once, for a limited time, until it is known what the service serves.
    pub async fn learn(&self) {
        if !self.is_learned() {
            self.request_start();
            self.learn_until(Instant::now() + self.listing_timeout()).await;
        }
    }

    async fn learn_until(&self, latest: Instant) {
        let mut knowledge = self.shared.knowledge.subscribe();
        // Later listings do not wait again, with or without a result.
        let _ = timeout_at(latest, knowledge.wait_for(|knowledge| knowledge.is_learned)).await;
        self.shared.mark_learned();
    }

    fn listing_timeout(&self) -> Duration {
        self.service().startup_timeout() + LISTING_GRACE
    }

    fn load(&self, service: Arc<S>) {
        match &mut *self.idle.lock() {
            Some((task, _)) if *service != *self.shared.service() => task.replace(service),
            Some(_) => {}
            None => self.shared.command(|commands| commands.loaded = Some(service)),
        }
    }

    /// Starts the task at the first use.
    fn run(&self) {
        if let Some((task, tasks)) = self.idle.lock().take() {
            tasks.spawn(task.run());
        }
    }
}

/// Tells the task on drop that the caller of a request no longer waits.
struct CancelOnDrop<'a, S: Service> {
    shared: &'a Shared<S>,
    /// `None` once its response has come.
    ticket: Option<u64>,
    deadline: Instant,
}

impl<S: Service> Drop for CancelOnDrop<'_, S> {
    fn drop(&mut self) {
        if let Some(ticket) = self.ticket {
            self.shared.cancel(ticket, Instant::now() >= self.deadline);
        }
    }
}
