//! The marketplace: the capabilities and their executors (RTFS capability system §2.1, §5).
//!
//! It holds the newest snapshot of the catalogue, the executors, and the observers.
//! [`call`](crate::call) implements the calls.

use std::any::TypeId;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use arc_swap::{ArcSwap, ArcSwapOption};
use futures_util::future::BoxFuture;
use parking_lot::Mutex;
use rtfs::text::excerpt;
use tokio::sync::watch;
use tokio::time::Instant;

use crate::approval::Approvals;
use crate::call::record::{CallRecord, Observers, RequestObservers, RequestRecord};
use crate::call::{
    BegunRequest, Call, CallContext, CallObserver, CallScope, ObservedCall, ObservedRequest,
};
use crate::catalog::{Catalog, CatalogBuilder, Entry, Limits, RegistrationError};
use crate::error::{MAX_SHOWN_CHARS, RuntimeError, RuntimeResult};
use crate::executor::{CapabilityExecutor, ProviderStatus};
use crate::executors::Executors;
use crate::id::instance_number;
use crate::manifest::{CapabilityManifest, Registration};
use crate::memory::MemoryBudget;
use crate::payload::Payload;
use crate::principal::Principal;
use crate::provider::ProviderType;
use crate::quota::Quotas;
use crate::redaction::Redactor;
use crate::source::ProviderProblem;

/// Discovers, orchestrates and runs capabilities (RTFS capability system §2.1).
///
/// All methods take `&self` and may be called from any thread: the catalogue is an immutable snapshot
/// behind an atomic pointer.
pub struct CapabilityMarketplace {
    catalog: ArcSwap<Catalog>,
    executors: ArcSwap<Executors>,
    /// Serialises writers; readers never take it.
    writing: Mutex<()>,
    changes: watch::Sender<u64>,
    on_finished: ArcSwapOption<Observers>,
    on_request: ArcSwapOption<RequestObservers>,
    observer: ArcSwapOption<Box<dyn CallObserver>>,
    on_listing: ArcSwapOption<Preparation>,
    on_problems: ArcSwapOption<Problems>,
    on_unknown: ArcSwapOption<SignIn>,
    memory: Arc<MemoryBudget>,
    quotas: Arc<Quotas>,
    approvals: Approvals,
    instance: u32,
    calls: AtomicU64,
    /// The configured mode of confinement.
    confinement: Mutex<&'static str>,
    /// Hides all secrets of the configuration.
    redaction: ArcSwap<Redactor>,
    /// The name of this node of a cluster.
    node: OnceLock<Arc<str>>,
    /// Whether cancelled calls end because the server stops.
    stopping: Arc<AtomicBool>,
}

/// Asks providers for their capabilities before a list is made.
struct Preparation {
    learn: Box<Learn>,
    refresh: Box<dyn Fn() + Send + Sync>,
}
/// Asks all providers; with a name, returns as soon as one of them serves it.
type Learn = dyn Fn(Option<String>) -> BoxFuture<'static, ()> + Send + Sync;

/// Reports why providers serve nothing.
struct SignIn(Box<Ask>);
type Ask = dyn Fn(String, CallScope) -> BoxFuture<'static, Option<Result<(), String>>> + Send + Sync;

struct Problems(Box<ListProblems>);
type ListProblems = dyn Fn(Option<&str>) -> Vec<ProviderProblem> + Send + Sync;

impl CapabilityMarketplace {
    /// Creates an empty marketplace.
    pub fn new(limits: Limits) -> Self {
        let memory = Arc::new(MemoryBudget::new(limits.max_memory_bytes));
        let empty = CatalogBuilder::new(Arc::default(), limits, None).build();
        Self {
            memory,
            quotas: Arc::default(),
            approvals: Approvals::default(),
            catalog: ArcSwap::from_pointee(empty),
            executors: ArcSwap::default(),
            writing: Mutex::default(),
            changes: watch::Sender::new(0),
            on_finished: ArcSwapOption::empty(),
            on_request: ArcSwapOption::empty(),
            observer: ArcSwapOption::empty(),
            on_listing: ArcSwapOption::empty(),
            on_problems: ArcSwapOption::empty(),
            on_unknown: ArcSwapOption::empty(),
            instance: instance_number(),
            calls: AtomicU64::new(0),
            confinement: Mutex::new("off"),
            redaction: ArcSwap::default(),
            node: OnceLock::new(),
            stopping: Arc::default(),
        }
    }

    /// Returns which processes are confined, for users: `off`, `declared` or `strict`.
    pub fn confinement(&self) -> &'static str {
        *self.confinement.lock()
    }

    /// Sets which processes are confined.
    pub fn set_confinement(&self, mode: &'static str) {
        *self.confinement.lock() = mode;
    }

    /// Returns the redactor for all secrets of the configuration. It is used for texts that belong to no
    /// single capability, such as states and problems of providers.
    pub fn redaction(&self) -> Arc<Redactor> {
        self.redaction.load_full()
    }

    /// Sets the redactor for all secrets of the configuration.
    pub fn set_redaction(&self, redactor: Arc<Redactor>) {
        self.redaction.store(redactor);
    }

    /// Returns the name of this node, if this instance is a node of a cluster.
    pub fn node(&self) -> Option<&str> {
        self.node.get().map(|node| &**node)
    }

    /// Sets the name of this node of a cluster. The first name stays.
    pub fn set_node(&self, node: &str) {
        drop(self.node.set(node.into()));
    }

    /// Records that the server is about to cancel all calls because it stops. Their errors say so.
    pub fn stop(&self) {
        self.stopping.store(true, Ordering::Release);
    }

    /// Returns the flag that says whether the server cancels all calls because it stops.
    pub(crate) fn stopping(&self) -> Arc<AtomicBool> {
        Arc::clone(&self.stopping)
    }

    /// Returns whether the server cancels all calls because it stops.
    pub fn is_stopping(&self) -> bool {
        self.stopping.load(Ordering::Acquire)
    }

    /// Returns the executor for the provider's kind.
    pub(crate) fn executor_of(&self, provider: &ProviderType) -> Option<Arc<dyn CapabilityExecutor>> {
        self.executors.load().find(provider).cloned()
    }

    /// Returns the context for a request to a surface, which [`Call::target`] names. Only the time limit
    /// applies.
    pub fn surface_context(&self, call: &Call) -> CallContext {
        let limit = self.catalog.load().limits.timeout;
        self.context(call, call.timeout.map_or(limit, |caller| caller.min(limit)))
    }

    /// Returns the context for a program that is not a capability. [`Call::target`] names it. Its
    /// timeout is that of the call, or else the default.
    pub fn program_context(&self, call: &Call) -> CallContext {
        self.context(call, call.timeout.unwrap_or(self.catalog.load().limits.timeout))
    }

    fn context(&self, call: &Call, timeout: Duration) -> CallContext {
        let mut scope = call.scope.clone();
        let id = scope.call_id.take().unwrap_or_else(|| self.reserve_call_id());
        CallContext::new(id, call.target.as_str().into(), (Instant::now(), timeout), scope)
    }

    /// Returns an id for a future call, unique within this instance.
    pub fn reserve_call_id(&self) -> Arc<str> {
        let number = self.calls.fetch_add(1, Ordering::Relaxed) + 1;
        format!("{:08x}-{number}", self.instance).into()
    }

    /// Adds an executor for a kind of provider (RTFS capability system §5.1).
    ///
    /// # Errors
    /// The kind has one already; see [`replace_executor`](Self::replace_executor).
    pub fn register_executor(
        &self,
        executor: Arc<dyn CapabilityExecutor>,
    ) -> Result<(), RegistrationError> {
        let _writing = self.writing.lock();
        let mut executors = Executors::clone(&self.executors.load());
        if !executors.add(executor) {
            return Err(RegistrationError::SecondExecutor);
        }
        self.executors.store(Arc::new(executors));
        Ok(())
    }

    /// Replaces the executor for its kind, and returns the old one. Running calls continue with the executor they
    /// began with.
    pub fn replace_executor(
        &self,
        executor: Arc<dyn CapabilityExecutor>,
    ) -> Option<Arc<dyn CapabilityExecutor>> {
        let _writing = self.writing.lock();
        let mut executors = Executors::clone(&self.executors.load());
        let old = executors.replace(executor);
        self.executors.store(Arc::new(executors));
        old
    }

    /// Removes the executor for a kind of provider (RTFS capability system §5.3). Running calls finish;
    /// new ones are [`RuntimeError::Unavailable`].
    pub fn unregister_executor(&self, settings: TypeId) -> Option<Arc<dyn CapabilityExecutor>> {
        let _writing = self.writing.lock();
        let mut executors = Executors::clone(&self.executors.load());
        let old = executors.remove(settings);
        self.executors.store(Arc::new(executors));
        old
    }

    /// Adds one capability to the newest snapshot.
    ///
    /// # Errors
    /// The id is taken, the kind of provider has no executor, or a schema cannot be enforced.
    pub fn register_capability(
        &self,
        registration: impl Into<Registration>,
    ) -> Result<(), RegistrationError> {
        let _writing = self.writing.lock();
        let mut builder = self.successor(None);
        builder.capability(registration)?;
        self.swap(builder.build());
        Ok(())
    }

    /// Removes the capability with this id from the newest snapshot, and returns its manifest.
    pub fn unregister_capability(&self, id: &str) -> Option<CapabilityManifest> {
        let _writing = self.writing.lock();
        let removed = self.snapshot().get(id).map(|entry| entry.manifest.clone())?;
        let builder = self.successor(Some(&removed.id));
        self.swap(builder.build());
        Some(removed)
    }

    /// Returns the capability with this id or MCP name in the newest snapshot.
    pub fn get(&self, id_or_name: &str) -> Option<Arc<Entry>> {
        self.snapshot().get(id_or_name).cloned()
    }

    /// Returns every capability of the newest snapshot, in the order of their MCP names.
    pub fn list(&self) -> Vec<Arc<Entry>> {
        self.snapshot().entries().to_vec()
    }

    /// Returns the capabilities of the newest snapshot that match the words, the best first; see
    /// [`Catalog::search`].
    pub fn search(&self, words: &str) -> Vec<Arc<Entry>> {
        let hits = self.snapshot().search(words, usize::MAX);
        hits.into_iter().map(|hit| hit.entry).collect()
    }

    /// Identifies this instance among others; not a secret.
    pub fn instance(&self) -> Arc<str> {
        format!("{:08x}", self.instance).into()
    }

    /// Returns the newest snapshot.
    pub fn snapshot(&self) -> Arc<Catalog> {
        self.catalog.load_full()
    }

    /// Returns the newest snapshot for short use, without counting a reference.
    pub(crate) fn peek(&self) -> arc_swap::Guard<Arc<Catalog>> {
        self.catalog.load()
    }

    /// Returns a builder for the next snapshot, empty, which knows the registered executors.
    pub fn builder(&self, limits: Limits) -> CatalogBuilder {
        CatalogBuilder::new(self.executors.load_full(), limits, Some(self.snapshot()))
    }

    /// Makes `catalog` the newest snapshot, in one step, and notifies the watchers of
    /// [`changes`](Self::changes). A holder of the old one keeps it.
    pub fn replace(&self, catalog: Catalog) -> Arc<Catalog> {
        let _writing = self.writing.lock();
        self.swap(catalog)
    }

    /// Makes `catalog` the newest snapshot as [`replace`](Self::replace) does. The sources are the same,
    /// but more is known about what they serve.
    pub fn refine(&self, mut catalog: Catalog) -> Arc<Catalog> {
        let _writing = self.writing.lock();
        catalog.loaded = self.catalog.load().loaded;
        self.put(catalog)
    }

    /// Returns `catalog` as a variant of the newest snapshot, for some callers: of the same sources, and not published.
    pub fn variant(&self, mut catalog: Catalog) -> Arc<Catalog> {
        let newest = self.catalog.load();
        (catalog.loaded, catalog.generation) = (newest.loaded, newest.generation);
        Arc::new(catalog)
    }

    /// Returns the generation of the newest snapshot, to be watched.
    pub fn changes(&self) -> watch::Receiver<u64> {
        self.changes.subscribe()
    }

    /// Returns the state of a capability's provider, as far as it is known without asking it.
    pub fn status(&self, entry: &Entry) -> ProviderStatus {
        let executors = self.executors.load();
        let provider = &entry.manifest.provider;
        let status = executors.find(provider).map(|executor| executor.status(provider));
        let mut status = status.unwrap_or_default();
        if let Some(reason) = entry.unavailable() {
            status.state = Some("unavailable".to_owned());
            status.last_failure = Some(reason.to_owned());
            status.sandbox = status.sandbox.map(|sandbox| sandbox.unavailable(reason));
        }
        let redactor = self.redaction();
        let own = status.source.iter_mut().chain(&mut status.last_failure);
        let of_sandbox = status.sandbox.iter_mut();
        let of_sandbox = of_sandbox.flat_map(|one| one.permissions.iter_mut().chain(&mut one.missing));
        own.chain(of_sandbox).for_each(|text| redactor.replace(text));
        status
    }

    /// Returns the limit on the memory of all requests together.
    pub fn memory(&self) -> &Arc<MemoryBudget> {
        &self.memory
    }

    /// Returns the limits of each caller, and their use. Without rules, there are no limits.
    pub fn quotas(&self) -> &Arc<Quotas> {
        &self.quotas
    }

    /// Returns the approvals: the rules, and the calls that wait. Without rules, no call needs an
    /// approval.
    pub fn approvals(&self) -> &Approvals {
        &self.approvals
    }

    /// Returns the number of running calls.
    pub fn running(&self) -> usize {
        self.catalog.load().admissions().map(|admission| admission.running()).sum()
    }

    /// Returns the number of calls that wait for a permit of their capability or of the server.
    pub fn waiting(&self) -> usize {
        let catalog = self.catalog.load();
        let own = catalog.entries().iter().filter_map(|entry| entry.admission.as_ref());
        own.chain(catalog.admissions()).map(|admission| admission.waiting()).sum()
    }

    /// Adds an observer of every finished call: metrics and audit read the same record as the log.
    /// `observe` is called before the caller has its answer, and must not block for long.
    pub fn on_finished(&self, observe: impl Fn(&CallRecord) + Send + Sync + 'static) {
        self.add_observer(&self.on_finished, Arc::new(observe));
    }

    /// Adds an observer of every finished [request](Self::request), as
    /// [`on_finished`](Self::on_finished) does for calls.
    pub fn on_request(&self, observe: impl Fn(&RequestRecord) + Send + Sync + 'static) {
        self.add_observer(&self.on_request, Arc::new(observe));
    }

    /// Sets the observer of calls from now on. It replaces the previous observer.
    pub fn observe_with(&self, observer: impl CallObserver + 'static) {
        self.observer.store(Some(Arc::new(Box::new(observer))));
    }

    pub(crate) fn observe(
        &self,
        entry: &Arc<Entry>,
        input: &Payload,
        ctx: &mut CallContext,
        started: std::time::Instant,
    ) -> Option<Arc<dyn ObservedCall>> {
        self.observer.load().as_ref()?.begins(entry, input, ctx, started)
    }

    pub(crate) fn observe_request(
        &self,
        request: BegunRequest<'_>,
        scope: &mut CallScope,
        started: std::time::Instant,
    ) -> Option<Arc<dyn ObservedRequest>> {
        self.observer.load().as_ref()?.request_begins(request, scope, started)
    }

    fn add_observer<T: ?Sized>(&self, all: &ArcSwapOption<Vec<Arc<T>>>, observer: Arc<T>) {
        let _writing = self.writing.lock();
        let before = all.load();
        let before = before.iter().flat_map(|before| before.iter().map(Arc::clone));
        all.store(Some(Arc::new(before.chain([observer]).collect())));
    }

    pub(crate) fn call_observers(&self) -> Option<Arc<Observers>> {
        self.on_finished.load_full()
    }

    pub(crate) fn request_observers(&self) -> Option<Arc<RequestObservers>> {
        self.on_request.load_full()
    }

    /// Sets `prepare`, which asks providers for their capabilities before a list is made, if they must
    /// be asked, and `refresh`, which asks no provider. Each publishes the resulting snapshot itself.
    /// With a name, `prepare` may return as soon as the newest snapshot has that name.
    pub fn on_listing(
        &self,
        prepare: impl Fn(Option<String>) -> BoxFuture<'static, ()> + Send + Sync + 'static,
        refresh: impl Fn() + Send + Sync + 'static,
    ) {
        let preparation = Preparation { learn: Box::new(prepare), refresh: Box::new(refresh) };
        self.on_listing.store(Some(Arc::new(preparation)));
    }

    /// Waits until the newest snapshot is ready to be listed. Returns immediately if no provider has to
    /// be asked.
    pub async fn prepare_listing(&self) {
        self.learn(None).await;
    }

    /// Waits until the newest snapshot has `name` as its provider reports it, or every provider that had to be asked has
    /// answered.
    pub async fn prepare_for(&self, name: &str) {
        self.learn(Some(name.to_owned())).await;
    }

    async fn learn(&self, name: Option<String>) {
        let preparation = self.on_listing.load_full();
        if let Some(preparation) = preparation {
            (preparation.learn)(name).await;
        }
    }

    /// Returns the newest snapshot, with everything that providers have reported until now.
    pub fn refreshed(&self) -> Arc<Catalog> {
        if let Some(preparation) = &*self.on_listing.load() {
            (preparation.refresh)();
        }
        self.snapshot()
    }

    /// Sets `sign_in`, which asks callers of unknown names to [sign in](crate::Source::sign_in) at
    /// providers that need that.
    pub fn on_unknown(
        &self,
        sign_in: impl Fn(String, CallScope) -> BoxFuture<'static, Option<Result<(), String>>>
        + Send
        + Sync
        + 'static,
    ) {
        self.on_unknown.store(Some(Arc::new(SignIn(Box::new(sign_in)))));
    }

    /// Asks the caller of an unknown name to sign in, if a provider that may serve the name needs that.
    ///
    /// # Errors
    /// The caller cannot be served.
    pub(crate) async fn sign_in(&self, catalog: &Catalog, call: &Call) -> Option<RuntimeResult<()>> {
        let hook = self.on_unknown.load_full()?;
        // A caller that may not know the provider learns nothing about it.
        let problems =
            self.problems_for(catalog, call.scope.principal.as_ref(), Some(call.target.as_str()));
        if problems.is_empty() {
            return None;
        }
        let id = excerpt(&call.target, MAX_SHOWN_CHARS);
        let work = (hook.0)(call.target.clone(), (*call.scope).clone());
        let limit = call.timeout.unwrap_or(catalog.limits.timeout);
        tokio::select! {
            signed_in = work => Some(signed_in?.map_err(|reason| {
                RuntimeError::Unavailable { id, reason, source: None }
            })),
            () = call.scope.cancellation.cancelled() => {
                Some(Err(RuntimeError::Cancelled { id, outcome: None }))
            }
            () = tokio::time::sleep(limit) => {
                Some(Err(RuntimeError::TimedOut { id, limit, outcome: None }))
            }
        }
    }

    /// Sets `tell`, which reports why providers serve nothing. With a name, it reports only providers
    /// that may serve that name.
    pub fn on_problems(
        &self,
        tell: impl Fn(Option<&str>) -> Vec<ProviderProblem> + Send + Sync + 'static,
    ) {
        self.on_problems.store(Some(Arc::new(Problems(Box::new(tell)))));
    }

    /// Returns why providers serve nothing, as far as they have been asked: one sentence for each, which
    /// names the provider. With a name, only providers that may serve that name are reported.
    pub fn problems(&self, name: Option<&str>) -> Vec<String> {
        self.provider_problems(name).into_iter().map(|problem| problem.text).collect()
    }

    /// Like [`problems`](Self::problems), for the providers that this caller may use without exception.
    pub fn problems_for(
        &self,
        catalog: &Catalog,
        principal: Option<&Principal>,
        name: Option<&str>,
    ) -> Vec<String> {
        let problems = self.provider_problems_for(catalog, principal, name);
        problems.into_iter().map(|problem| problem.text).collect()
    }

    /// Like [`problems_for`](Self::problems_for), with the known status of the providers.
    pub fn provider_problems_for(
        &self,
        catalog: &Catalog,
        principal: Option<&Principal>,
        name: Option<&str>,
    ) -> Vec<ProviderProblem> {
        let mut problems = self.provider_problems(name);
        problems.retain(|problem| catalog.permits_prefix(principal, &problem.prefix));
        problems
    }

    /// Like [`problems`](Self::problems), with the known status of the providers.
    pub fn provider_problems(&self, name: Option<&str>) -> Vec<ProviderProblem> {
        let problems = self.on_problems.load_full();
        let mut problems = problems.map(|problems| (problems.0)(name)).unwrap_or_default();
        let redactor = self.redaction.load();
        for problem in &mut problems {
            problem.text = redactor.text(&problem.text).into_owned();
        }
        problems
    }

    /// Returns the error for a name that does not exist, or that the caller may not know about.
    pub(crate) fn unknown(
        &self,
        catalog: &Catalog,
        target: &str,
        principal: &Option<Principal>,
    ) -> RuntimeError {
        let (id, principal) = (excerpt(target, MAX_SHOWN_CHARS), principal.as_ref());
        let problems = self.problems_for(catalog, principal, Some(&id));
        if !problems.is_empty() {
            return RuntimeError::Unavailable { id, reason: problems.join("; "), source: None };
        }
        RuntimeError::Unknown { similar: catalog.similar_for(principal, &id), id }
    }

    /// Returns a builder that starts with the present capabilities, except the one with this id.
    fn successor(&self, without: Option<&str>) -> CatalogBuilder {
        let mut builder = self.builder(self.snapshot().limits.clone());
        builder.copy_current(without);
        builder
    }

    fn swap(&self, mut catalog: Catalog) -> Arc<Catalog> {
        catalog.loaded = self.catalog.load().generation + 1;
        self.put(catalog)
    }

    fn put(&self, mut catalog: Catalog) -> Arc<Catalog> {
        catalog.generation = self.catalog.load().generation + 1;
        let generation = catalog.generation;
        self.memory.set_max(catalog.limits.max_memory_bytes);
        let catalog = Arc::new(catalog);
        catalog.publish_access();
        catalog.publish_bounds(&self.catalog.load());
        self.catalog.store(Arc::clone(&catalog));
        self.changes.send_replace(generation);
        catalog
    }
}
