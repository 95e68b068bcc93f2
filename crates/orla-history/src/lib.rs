//! The history: every call with its data, its times and its nested calls, and every request for a prompt or a resource.
//!
//! A [`History`] follows the calls of a marketplace and keeps the newest ones.
//!
//! # How it works
//!
//! An observer on the call path (`live`) shares the data of a call with a bounded queue
//! (`intake`). A separate thread makes bounded rows without secrets (`prepare`) and writes them to
//! a store (`store`). Running calls are only in memory.
//!
//! # Invariants
//!
//! - No call waits for the history, nor fails because of it.
//! - Secrets of the configuration are never written.
//! - A viewer sees its own calls, and those of others only with the permission [`READ`].

mod call;
mod case;
mod intake;
mod live;
mod prepare;
mod query;
mod redact;
mod store;
mod trace;

use std::collections::HashSet;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::thread;
use std::time::{Duration, SystemTime};

use orla_marketplace::{
    Call as NewCall, CallScope, CapabilityMarketplace, JsonText, Payload, Principal, Redactor,
    RuntimeError,
};
use parking_lot::{Mutex, RwLock};
use tokio::sync::{Semaphore, watch};
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

pub use call::{
    Body, Call, ClientInfo, Detail, Node, NoticeKind, NoticeLine, Progress, RUNNING, Row, Running,
    SpanLine, SpanWord, Trace, WAITING, millis, timestamp,
};
pub use case::{case, indented, recorded};
pub use query::{CANCEL, DEFAULT_LIMIT, MAX_LIMIT, Query, READ, Viewer, time_of};
pub use redact::{NoPointer, PointerPattern, redacted};
pub use store::OpenError;
pub use trace::{SpanSink, TraceContext, Tracing};

use intake::Intake;
use live::Observer;
use prepare::{Preparation, attempt};
use store::{Disk, Memory, Nothing, Store};

/// The limits of the history.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Options {
    /// Whether anything is kept.
    pub enabled: bool,
    /// How long a call is kept.
    pub keep: Duration,
    /// The maximum number of calls that are kept.
    pub max_rows: usize,
    /// The maximum number of bytes of an input, and of an output.
    pub max_body_bytes: usize,
    /// Whether inputs, outputs, notices and standard error are kept.
    pub bodies: bool,
    /// Members of inputs and outputs that are redacted.
    pub redact: Vec<PointerPattern>,
    /// Secrets to redact, in addition to those that the marketplace knows.
    pub secrets: Arc<Redactor>,
}

impl Default for Options {
    fn default() -> Self {
        Self {
            enabled: true,
            keep: Duration::from_secs(7 * 24 * 60 * 60),
            max_rows: 1000,
            max_body_bytes: 64 << 10,
            bodies: true,
            redact: Vec::new(),
            secrets: Arc::default(),
        }
    }
}

/// Requests that read the history at once. Further ones wait.
const MAX_READS: usize = 8;
/// Calls of one caller that are made again at once.
const MAX_REPLAYS: usize = 64;
/// How often it is looked whether the caller of a call that is made again is still known.
const CHECK_EVERY: Duration = Duration::from_secs(1);

/// Keeps calls. Clones share the history.
#[derive(Clone)]
pub struct History(Arc<Inner>);

struct Inner {
    intake: Arc<Intake>,
    preparation: Arc<Preparation>,
    store: Arc<dyn Store>,
    is_in_file: bool,
    market: Arc<CapabilityMarketplace>,
    options: Arc<RwLock<Options>>,
    reads: Semaphore,
    /// The calls that are made again, and whose they are.
    replays: TaskTracker,
    replaying: Mutex<Vec<Option<Arc<str>>>>,
    ending: CancellationToken,
}

/// The reason why the history could not be read.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum HistoryError {
    /// The store failed.
    #[error("the history cannot be read: {0}")]
    Failed(String),
    /// The question took longer than one may.
    #[error("the history has too many calls to look through for this: narrow the filter")]
    TooSlow,
}

/// The reason why a call is not repeated.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ReplayError {
    /// There is no such call, or the viewer does not see it.
    #[error("no call has this id")]
    Unknown,
    /// The input was not kept, only its beginning was, or a part of it was a secret.
    #[error("the call cannot be made again: its whole input was not kept; give an input")]
    NoInput,
    /// It was a request for a prompt or a resource.
    #[error("only calls of capabilities are made again: ask for the {0} again")]
    NoCall(String),
    /// The caller makes as many calls again as it may.
    #[error("{MAX_REPLAYS} calls of yours that are made again still run: try again later")]
    TooMany,
    /// The call would be refused.
    #[error(transparent)]
    Refused(RuntimeError),
    /// The history could not be read.
    #[error(transparent)]
    Unreadable(#[from] HistoryError),
}

/// A history file that is only read, for a command beside the server or without one.
pub struct Recorded(Disk);

impl Recorded {
    /// Returns the history in this file.
    ///
    /// # Errors
    ///
    /// Returns an error if the file is something else than a history of this version.
    pub fn open(path: &Path) -> Result<Self, OpenError> {
        Disk::open(path, Arc::default()).map(Self)
    }

    /// Returns the calls of a query, the last ended one first. Blocks.
    ///
    /// # Errors
    ///
    /// Returns an error if the file cannot be read.
    pub fn list(&self, query: &Query) -> Result<Vec<Call>, HistoryError> {
        let mut calls = self.0.list(query, &Viewer::All)?;
        forget_missing(&self.0, calls.iter_mut())?;
        Ok(calls)
    }

    /// Returns the call with this id, with its data and the calls within it. Blocks.
    ///
    /// # Errors
    ///
    /// Returns an error if the file cannot be read.
    pub fn detail(&self, id: &str) -> Result<Option<Detail>, HistoryError> {
        let Some(mut row) = self.0.get(id)? else { return Ok(None) };
        forget_missing(&self.0, [&mut row.call].into_iter())?;
        let within = self.0.within(&row.call.root)?;
        Ok(Some(Detail { children: call::tree(id, within), row }))
    }
}

impl History {
    /// Keeps the newest calls of this marketplace in memory from now on.
    ///
    /// # Errors
    ///
    /// Returns an error if the system provides no thread.
    pub fn in_memory(market: &Arc<CapabilityMarketplace>, options: Options) -> std::io::Result<Self> {
        let options = Arc::new(RwLock::new(options));
        let store = Memory::new(Arc::clone(&options));
        Self::start(market, options, Arc::new(store), false)
    }

    /// Keeps the calls of this marketplace in a file from now on. The file is created with the first
    /// call. If the file cannot be written later, no call is affected: the write is retried, and the
    /// failure is logged once.
    ///
    /// # Errors
    ///
    /// Returns an error if the file exists and is not a history of this version.
    pub fn in_file(
        market: &Arc<CapabilityMarketplace>,
        options: Options,
        path: &Path,
    ) -> Result<Self, OpenError> {
        let options = Arc::new(RwLock::new(options));
        let store = Disk::open(path, Arc::clone(&options))?;
        Self::start(market, options, Arc::new(store), true)
            .map_err(|source| OpenError::Failed { path: path.to_owned(), source })
    }

    /// Follows the calls of this marketplace without keeping them, only for [traces](Self::trace_with). Of the options, those that
    /// redact count.
    ///
    /// # Errors
    ///
    /// Returns an error if the system provides no thread.
    pub fn of_nothing(market: &Arc<CapabilityMarketplace>, options: Options) -> std::io::Result<Self> {
        let options = Options { enabled: false, bodies: false, ..options };
        Self::start(market, Arc::new(RwLock::new(options)), Arc::new(Nothing), false)
    }

    /// Traces calls from now on. The first tracing stays.
    pub fn trace_with(&self, tracing: Tracing) {
        drop(self.0.intake.tracing.set(tracing));
    }

    fn start(
        market: &Arc<CapabilityMarketplace>,
        options: Arc<RwLock<Options>>,
        store: Arc<dyn Store>,
        is_in_file: bool,
    ) -> std::io::Result<Self> {
        let intake = Intake::new();
        let preparation = Arc::new(Preparation::new(market, Arc::clone(&options)));
        let (serving, writes) = (Arc::clone(&intake), Arc::clone(&store));
        let prepares = Arc::clone(&preparation);
        thread::Builder::new()
            .name("history".to_owned())
            .spawn(move || serving.serve(&prepares, &*writes))?;
        market.observe_with(Observer(Arc::clone(&intake)));
        Ok(Self(Arc::new(Inner {
            intake,
            preparation,
            store,
            is_in_file,
            market: Arc::clone(market),
            options,
            reads: Semaphore::new(MAX_READS),
            replays: TaskTracker::new(),
            replaying: Mutex::default(),
            ending: CancellationToken::new(),
        })))
    }

    /// Applies other options from now on. If no calls are kept any more, those in memory are removed
    /// within a minute.
    pub fn configure(&self, options: Options) {
        self.0.intake.is_keeping.store(options.enabled, Ordering::Relaxed);
        *self.0.options.write() = options;
        self.0.intake.make_room();
        // The secrets of the configuration before the last one are not known for long.
        self.0.intake.request();
    }

    /// Returns whether calls are kept.
    pub fn is_enabled(&self) -> bool {
        self.0.options.read().enabled
    }

    /// Returns whether calls are kept in a file.
    pub fn is_in_file(&self) -> bool {
        self.0.is_in_file
    }

    /// Returns the finished calls of a query that the viewer may see, the last ended one first.
    ///
    /// # Errors
    ///
    /// Returns an error if the store cannot be read.
    pub async fn list(&self, query: &Query, viewer: &Viewer) -> Result<Vec<Call>, HistoryError> {
        let (mut query, viewer) = (query.clone(), viewer.clone());
        query.since = query.since.max(self.kept_since());
        let inner = Arc::clone(&self.0);
        self.read(move |store| {
            let mut calls = store.list(&query, &viewer)?;
            inner.forget_missing(calls.iter_mut())?;
            Ok(calls)
        })
        .await
    }

    /// Returns the call with this id, with its data and the calls within it; `None` if the viewer sees
    /// no such call. A call that runs has no output yet.
    ///
    /// # Errors
    ///
    /// Returns an error if the store cannot be read.
    pub async fn detail(&self, id: &str, viewer: &Viewer) -> Result<Option<Detail>, HistoryError> {
        let (wanted, viewer) = (id.to_owned(), viewer.clone());
        let inner = Arc::clone(&self.0);
        let since = self.kept_since();
        // A call that does not run any more now is written before the store is read.
        let running = self.0.intake.running.get(&wanted, &viewer);
        self.read(move |store| {
            let mut stored = store.get(&wanted)?;
            if stored.is_none() && running.as_ref().is_some_and(|live| live.end.get().is_some()) {
                // It ended while the store was read.
                inner.intake.flush();
                stored = store.get(&wanted)?;
            }
            let mut row = match (stored, running) {
                (Some(row), _) if since.is_some_and(|since| row.call.started_at < since) => {
                    return Ok(None);
                }
                (Some(row), _) => row,
                (None, Some(live)) => inner.preparation.row_so_far(&live),
                (None, None) => return Ok(None),
            };
            if !viewer.sees(&row.call) {
                return Ok(None);
            }
            let mut within = store.within(&row.call.root)?;
            let running = inner.running(&viewer).into_iter().map(|running| running.call);
            within.extend(running.filter(|call| call.root == row.call.root));
            within.retain(|call| viewer.sees(call));
            inner.forget_missing([&mut row.call].into_iter())?;
            Ok(Some(Detail { children: call::tree(&row.call.id, within), row }))
        })
        .await
    }

    /// Calls that began before are not shown any more, even if they are not removed yet.
    fn kept_since(&self) -> Option<SystemTime> {
        SystemTime::now().checked_sub(self.0.options.read().keep)
    }

    async fn read<T: Send + 'static>(
        &self,
        read: impl FnOnce(&dyn Store) -> Result<T, HistoryError> + Send + 'static,
    ) -> Result<T, HistoryError> {
        // Threads for work that blocks are few, and others need them too.
        let _place = self.0.reads.acquire().await;
        let inner = Arc::clone(&self.0);
        let reading = tokio::task::spawn_blocking(move || {
            inner.intake.flush();
            read(&*inner.store)
        });
        reading.await.unwrap_or_else(|err| Err(HistoryError::Failed(err.to_string())))
    }

    /// Returns the running calls that the viewer may see, the last begun one first.
    pub fn running(&self, viewer: &Viewer) -> Vec<Running> {
        self.0.running(viewer)
    }

    /// Cancels a call that runs, with the whole tree of calls that it is in. Returns whether there is one whose cancellation is
    /// the caller's matter ([`Viewer::cancelling`]).
    pub fn cancel(&self, id: &str, canceller: &Viewer) -> bool {
        let call = self.0.intake.running.get(id, canceller).filter(|call| call.end.get().is_none());
        if let Some(call) = &call {
            call.cancel();
        }
        call.is_some()
    }

    /// Changes whenever a call begins, sends a notice or ends. Several changes may be seen as one.
    pub fn changes(&self) -> watch::Receiver<u64> {
        self.0.intake.changes()
    }

    /// Returns how many calls are missing because they ended faster than they could be written.
    pub fn dropped(&self) -> u64 {
        self.0.intake.dropped()
    }

    /// Returns why calls could not be written to the file, if the last attempt failed.
    pub fn failure(&self) -> Option<String> {
        self.0.store.failure()
    }

    /// Returns how many calls could not be written to the file, until now. Blocks for a moment while one
    /// is written.
    pub fn lost(&self) -> u64 {
        self.0.store.lost()
    }

    /// Repeats a call in this scope, with another input if one is given. The new call runs in its own
    /// task. Returns its id.
    ///
    /// # Errors
    ///
    /// Returns a [`ReplayError`] if no call was started.
    pub async fn replay(
        &self,
        id: &str,
        viewer: &Viewer,
        input: Option<JsonText>,
        scope: CallScope,
    ) -> Result<Arc<str>, ReplayError> {
        let detail = self.detail(id, viewer).await?.ok_or(ReplayError::Unknown)?;
        if detail.row.call.is_request() {
            return Err(ReplayError::NoCall(detail.row.call.kind));
        }
        let input = match input {
            Some(input) => input,
            None => {
                let body =
                    detail.row.input.as_ref().and_then(Body::original).ok_or(ReplayError::NoInput)?;
                JsonText::parse(body.to_owned()).map_err(|_| ReplayError::NoInput)?
            }
        };
        let mut call = NewCall::to(detail.row.call.capability).with(Payload::from_json(input));
        let market = &self.0.market;
        *call.scope = scope;
        // Nobody waits for a replay, as for a task.
        call.scope.is_task = market.snapshot().requires_task(&call.target);
        let cancellation = self.0.ending.child_token();
        call.scope.cancellation = cancellation.clone();
        market.check(call.clone()).await.map_err(ReplayError::Refused)?;
        let caller = call.scope.principal.clone();
        let place = Replaying::of(&self.0, caller.as_ref())?;
        let id = market.reserve_call_id();
        call.scope.call_id = Some(Arc::clone(&id));
        let market = Arc::clone(market);
        self.0.replays.spawn(async move {
            let _place = place;
            let called = market.call(call);
            tokio::pin!(called);
            loop {
                tokio::select! {
                    biased;
                    _ = &mut called => return,
                    () = tokio::time::sleep(CHECK_EVERY) => {}
                }
                // It ends with the credential of its caller.
                if !caller.as_ref().is_none_or(|caller| market.approvals().knows(caller)) {
                    cancellation.cancel();
                }
            }
        });
        Ok(id)
    }

    /// Ends the calls that were made again, writes what waits to be written, and ends.
    pub async fn close(&self) {
        self.0.ending.cancel();
        self.0.replays.close();
        self.0.replays.wait().await;
        let intake = Arc::clone(&self.0.intake);
        drop(tokio::task::spawn_blocking(move || intake.close()).await);
    }
}

impl Inner {
    fn running(&self, viewer: &Viewer) -> Vec<Running> {
        let running = self.intake.running.list(viewer);
        running.iter().filter_map(|live| attempt(|| self.preparation.running(live))).collect()
    }

    /// Leaves out parents that neither run nor are stored: those of sleeping programs, and of killed
    /// processes.
    fn forget_missing<'a>(&self, calls: impl Iterator<Item = &'a mut Call>) -> Result<(), HistoryError> {
        let runs = |call: &Call| {
            call.parent.as_deref().is_some_and(|parent| self.intake.running.of(parent).is_some())
        };
        let mut without: Vec<&mut Call> =
            calls.filter(|call| call.parent.is_some() && !runs(call)).collect();
        let known = known_parents(&*self.store, &without)?;
        without.retain(|call| !call.parent.as_ref().is_some_and(|parent| known.contains(parent)));
        if without.is_empty() {
            return Ok(());
        }
        // A parent may have ended since, and not be written yet.
        self.intake.flush();
        forget_missing(&*self.store, without.into_iter())
    }
}

/// Leaves out the parents that this store does not have.
fn forget_missing<'a>(
    store: &dyn Store,
    calls: impl Iterator<Item = &'a mut Call>,
) -> Result<(), HistoryError> {
    let calls: Vec<&mut Call> = calls.collect();
    let known = known_parents(store, &calls)?;
    for call in calls {
        call.parent.take_if(|parent| !known.contains(parent));
    }
    Ok(())
}

/// Returns the parents of these calls that a store has.
fn known_parents(store: &dyn Store, calls: &[&mut Call]) -> Result<HashSet<String>, HistoryError> {
    let parents: HashSet<String> = calls.iter().filter_map(|call| call.parent.clone()).collect();
    if parents.is_empty() { Ok(parents) } else { store.known(parents) }
}

/// The place of a repeated call among those of its caller.
struct Replaying {
    history: Arc<Inner>,
    caller: Option<Arc<str>>,
}

impl Replaying {
    fn of(history: &Arc<Inner>, caller: Option<&Principal>) -> Result<Self, ReplayError> {
        let caller: Option<Arc<str>> = caller.map(|caller| caller.id().to_string().into());
        let mut replaying = history.replaying.lock();
        if replaying.iter().filter(|other| **other == caller).count() >= MAX_REPLAYS {
            return Err(ReplayError::TooMany);
        }
        replaying.push(caller.clone());
        drop(replaying);
        Ok(Self { history: Arc::clone(history), caller })
    }
}

impl Drop for Replaying {
    fn drop(&mut self) {
        let mut replaying = self.history.replaying.lock();
        if let Some(at) = replaying.iter().position(|other| *other == self.caller) {
            replaying.swap_remove(at);
        }
    }
}
