//! The marketplace: everything that can be called, and the one path on which it is called
//! (RTFS capability system §2.1, §4).
//!
//! Read [`CapabilityMarketplace::call`] first. Every call of every front end takes that path:
//! look up, authorise, validate the input, wait for a permit, execute under deadline and cancellation
//! (again where that is safe and may help), validate the output, record. Executors do none of it. A call that asks its client something gives
//! its permit back meanwhile (`admission`).

use std::any::{Any, TypeId};
use std::hash::{BuildHasher, Hasher, RandomState};
use std::panic::AssertUnwindSafe;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use arc_swap::{ArcSwap, ArcSwapOption};
use futures_util::FutureExt;
use futures_util::future::BoxFuture;
use tokio::sync::watch;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use crate::admission::{Admission, CallPermit, HeldPermits, Lane, LendingClient, Permit};
use crate::catalog::{Catalog, CatalogBuilder, Entry, Limits, RegistrationError};
use crate::client::Client;
use crate::error::{RuntimeError, RuntimeResult, seconds};
use crate::executor::{
    CallContext, CapabilityExecutor, NoticeSink, Outcome, Principal, ProviderStatus, Within,
};
use crate::executors::Executors;
use crate::hops::Hops;
use crate::id::instance_number;
use crate::json::cut;
use crate::manifest::{Availability, CapabilityManifest, DeclaredBy, Registration};
use crate::memory::MemoryBudget;
use crate::payload::Payload;
use crate::permission::ANONYMOUS;
use crate::provider::ProviderType;
use crate::record::{CallRecord, Observers, Recording, RequestObservers, RequestRecord};
use crate::retry::wait_before_retry;
use crate::source::ProviderProblem;
use crate::stream::{OpenStream, StreamHandle};

/// How long an executor may take to end a call that has reached its deadline or was cancelled.
/// After it the call is given up, whatever the executor does.
const BACKSTOP: Duration = Duration::from_secs(5);

/// How many characters of a name that does not exist an error repeats.
const SHOWN: usize = 200;

/// Discovers, orchestrates and runs capabilities (RTFS capability system §2.1).
///
/// All methods take `&self` and may be called from any thread: what can be called is an immutable
/// snapshot behind an atomic pointer.
pub struct CapabilityMarketplace {
    catalog: ArcSwap<Catalog>,
    executors: ArcSwap<Executors>,
    /// Serialises writers; readers never take it.
    writing: std::sync::Mutex<()>,
    changes: watch::Sender<u64>,
    on_finished: ArcSwapOption<Observers>,
    on_request: ArcSwapOption<RequestObservers>,
    on_listing: ArcSwapOption<Preparation>,
    on_problems: ArcSwapOption<Problems>,
    memory: Arc<MemoryBudget>,
    instance: u32,
    calls: AtomicU64,
}

/// Finds out what is served, before it is listed.
struct Preparation(Box<dyn Fn() -> BoxFuture<'static, ()> + Send + Sync>);

/// Says why providers give nothing.
struct Problems(Box<Tell>);
type Tell = dyn Fn(Option<&str>) -> Vec<ProviderProblem> + Send + Sync;

/// One call to be made.
#[derive(Clone)]
#[non_exhaustive]
pub struct Call {
    /// The capability's id or MCP name.
    pub target: String,
    /// What it is given.
    pub input: Payload,
    /// The snapshot to look it up in; the newest where absent.
    pub catalog: Option<Arc<Catalog>>,
    /// A shorter time than the capability's own, if the caller has less.
    pub timeout: Option<Duration>,
    /// Fewer retries than the capability's own, if the caller wants that.
    pub retries: Option<u32>,
    /// Cancel this to withdraw the call.
    pub cancellation: CancellationToken,
    /// Takes progress and log messages.
    pub notices: NoticeSink,
    /// Takes questions to the caller's client.
    pub client: Option<Arc<dyn Client>>,
    /// Who calls.
    pub principal: Option<Principal>,
    /// The caller's W3C trace context.
    pub traceparent: Option<Arc<str>>,
    /// How many calls this one is nested in.
    pub depth: u32,
    /// The instances that it has come through.
    pub hops: Hops,
    pub(crate) shared: Option<Arc<dyn Any + Send + Sync>>,
    /// The permits that the calls hold which it is within.
    pub(crate) held: Option<Arc<HeldPermits>>,
}

impl Call {
    /// A call of `target` with an empty input.
    pub fn to(target: impl Into<String>) -> Self {
        Self {
            target: target.into(),
            input: Payload::empty(),
            catalog: None,
            timeout: None,
            retries: None,
            cancellation: CancellationToken::new(),
            notices: NoticeSink::default(),
            client: None,
            principal: None,
            traceparent: None,
            depth: 0,
            hops: Hops::default(),
            shared: None,
            held: None,
        }
    }

    /// A call of `target` within the call that `ctx` belongs to: one deeper, on the same snapshot, for
    /// the same principal, with as much time as that one has left; cancelled with it, and what it says
    /// and asks goes where that one's notices and questions go.
    pub fn within(ctx: &CallContext, target: impl Into<String>) -> Self {
        Self {
            target: target.into(),
            input: Payload::empty(),
            catalog: ctx.within.catalog.clone(),
            timeout: Some(ctx.deadline.saturating_duration_since(Instant::now())),
            retries: None,
            cancellation: ctx.cancellation.clone(),
            notices: ctx.notices.clone(),
            client: ctx.client.clone(),
            principal: ctx.principal.clone(),
            traceparent: ctx.traceparent.clone(),
            depth: ctx.depth + 1,
            hops: ctx.hops.clone(),
            shared: ctx.within.shared.clone(),
            held: ctx.within.held.clone(),
        }
    }

    /// The call, which shares this with all calls within it: such as what all of them together may cost. An
    /// executor finds it in its context ([`CallContext::shared`]).
    #[must_use]
    pub fn sharing(mut self, shared: Arc<dyn Any + Send + Sync>) -> Self {
        self.shared = Some(shared);
        self
    }

    /// The call with this input.
    #[must_use]
    pub fn with(mut self, input: Payload) -> Self {
        self.input = input;
        self
    }
}

impl CapabilityMarketplace {
    /// An empty marketplace.
    pub fn new(limits: Limits) -> Self {
        let memory = Arc::new(MemoryBudget::new(limits.max_memory_bytes));
        let empty = CatalogBuilder::new(Arc::default(), limits, None).build();
        Self {
            memory,
            catalog: ArcSwap::from_pointee(empty),
            executors: ArcSwap::default(),
            writing: std::sync::Mutex::default(),
            changes: watch::Sender::new(0),
            on_finished: ArcSwapOption::empty(),
            on_request: ArcSwapOption::empty(),
            on_listing: ArcSwapOption::empty(),
            on_problems: ArcSwapOption::empty(),
            instance: instance_number(),
            calls: AtomicU64::new(0),
        }
    }

    /// Calls a capability and gives its outcome (RTFS capability system §4).
    ///
    /// Dropping the future withdraws the call: what it started is ended.
    ///
    /// # Errors
    /// See [`RuntimeError`]; one variant for each step that can fail.
    pub async fn call(&self, call: Call) -> RuntimeResult<Outcome> {
        let catalog = self.catalog_for(&call).await;
        let Some(entry) = catalog.get(&call.target) else { return Err(self.missing(&catalog, &call)) };
        let permit = CallPermit::new(catalog.admission_of(entry), &entry.provider);
        let ctx = self.context(&catalog, entry, &call, &permit);
        let mut recording = Recording::begin(entry, &ctx, self.on_finished.load_full());
        if let Err(permission) = self.permits(&catalog, ctx.principal.as_ref(), entry) {
            return Err(self.denied(&catalog, &call, entry, recording, permission));
        }
        let result = self.run(&catalog, entry, &call.input, &ctx, &permit, &mut recording).await;
        recording.finish(result.as_ref().map(drop));
        result
    }

    /// Opens a stream (RTFS capability system §3.2). The path to it is that of a call; what is opened is
    /// recorded when it ends.
    ///
    /// # Errors
    /// Those of [`call`](Self::call); [`RuntimeError::Told`] of kind `type` where the capability is no stream.
    pub async fn open(&self, call: Call) -> RuntimeResult<Arc<OpenStream>> {
        let catalog = self.catalog_for(&call).await;
        let Some(entry) = catalog.get(&call.target) else { return Err(self.missing(&catalog, &call)) };
        let permit = CallPermit::new(catalog.admission_of(entry), &entry.provider);
        let ctx = self.context(&catalog, entry, &call, &permit);
        let mut recording = Recording::begin(entry, &ctx, self.on_finished.load_full());
        if let Err(permission) = self.permits(&catalog, ctx.principal.as_ref(), entry) {
            return Err(self.denied(&catalog, &call, entry, recording, permission));
        }
        match self.open_stream(&catalog, entry, &call.input, &ctx, &mut recording).await {
            Ok(handle) => Ok(OpenStream::new(handle, recording.of_stream())),
            Err(error) => {
                recording.finish(Err(&error));
                Err(error)
            }
        }
    }

    async fn open_stream(
        &self,
        catalog: &Catalog,
        entry: &Entry,
        input: &Payload,
        ctx: &CallContext,
        recording: &mut Recording<'_>,
    ) -> RuntimeResult<Box<dyn StreamHandle>> {
        self.cleared(catalog, entry, input, ctx).await?;
        let _own = match &entry.admission {
            Some(admission) => Some(own_permit(admission, entry, ctx).await?),
            None => None,
        };
        let _permit = admitted(catalog.admission_of(entry), entry, ctx).await?;
        recording.admitted();
        let passage = entry.breaker.as_ref().map(|breaker| breaker.enter()).transpose();
        let passage = passage.map_err(|wait| left_alone(entry, wait))?;
        let executor = self.executor(entry)?;
        let result = guarded(executor.open(&entry.manifest.provider, input, ctx), entry, ctx).await;
        if let Some(passage) = passage {
            passage.came_back(&result);
        }
        result
    }

    /// The snapshot that a call is looked up in.
    async fn catalog_for(&self, call: &Call) -> Arc<Catalog> {
        let catalog = call.catalog.clone().unwrap_or_else(|| self.snapshot());
        let is_settled = match catalog.get(&call.target) {
            Some(entry) => entry.policy.availability != Availability::Unlearned,
            // Some provider may serve it that has not been asked yet.
            None => call.catalog.is_some(),
        };
        if is_settled {
            return catalog;
        }
        self.prepare_listing().await;
        let newest = self.snapshot();
        if call.catalog.is_none() || newest.is_of_the_same_sources(&catalog) { newest } else { catalog }
    }

    /// Whether a call may be made at all.
    async fn cleared(
        &self,
        catalog: &Catalog,
        entry: &Entry,
        input: &Payload,
        ctx: &CallContext,
    ) -> RuntimeResult<()> {
        let id = || entry.name.to_string();
        if ctx.depth > catalog.limits.max_depth {
            let what = format!("calls nested {} deep (max_depth)", catalog.limits.max_depth);
            return Err(RuntimeError::Limit { id: id(), what });
        }
        if let Some(custody) = &entry.policy.custody {
            let admitted = in_time(custody.admit(), entry, ctx).await?;
            admitted.map_err(|permission| RuntimeError::Denied { id: id(), permission })?;
        }
        if let Some(reason) = entry.unavailable() {
            let reason = reason.to_owned();
            return Err(RuntimeError::Unavailable { id: id(), reason, source: None });
        }
        if let Some(schema) = entry.input.validator() {
            let checked = schema.check_payload(input, "input");
            checked.map_err(|violations| RuntimeError::InvalidInput { id: id(), violations })?;
        }
        Ok(())
    }

    async fn run(
        &self,
        catalog: &Catalog,
        entry: &Entry,
        input: &Payload,
        ctx: &CallContext,
        permit: &CallPermit,
        recording: &mut Recording<'_>,
    ) -> RuntimeResult<Outcome> {
        let id = || entry.name.to_string();
        self.cleared(catalog, entry, input, ctx).await?;

        let mut retries = 0;
        let most = ctx.within.retries.map_or(entry.retries, |most| most.min(entry.retries));
        let outcome = loop {
            let own = match &entry.admission {
                Some(admission) => Some(own_permit(admission, entry, ctx).await?),
                None => None,
            };
            let holding = permit.hold(admitted(catalog.admission_of(entry), entry, ctx).await?);
            recording.admitted();
            let passage = entry.breaker.as_ref().map(|breaker| breaker.enter()).transpose();
            let passage = passage.map_err(|wait| left_alone(entry, wait))?;
            let result = self.attempt(entry, input, ctx).await;
            if let Some(passage) = passage {
                passage.came_back(&result);
            }
            drop((holding, own));
            let error = match result {
                Ok(outcome) => break outcome,
                Err(error) => error,
            };
            let left = ctx.deadline.saturating_duration_since(Instant::now());
            let Some(wait) = wait_before_retry(&error, most, retries, left, jitter()) else {
                return Err(error);
            };
            retries += 1;
            tracing::debug!(capability = &*entry.name, retries, %error, "the call is made again");
            tokio::select! {
                () = tokio::time::sleep(wait) => {}
                () = ctx.cancellation.cancelled() => {
                    return Err(RuntimeError::Cancelled { id: id(), outcome: None });
                }
            }
        };

        check_output(entry, outcome)
    }

    /// Runs the executor once, and gives it up when it heeds neither its deadline nor cancellation.
    async fn attempt(
        &self,
        entry: &Entry,
        input: &Payload,
        ctx: &CallContext,
    ) -> RuntimeResult<Outcome> {
        let executor = self.executor(entry)?;
        guarded(executor.execute(&entry.manifest.provider, input, ctx), entry, ctx).await
    }

    /// The executor for the provider's kind.
    pub(crate) fn executor_of(&self, provider: &ProviderType) -> Option<Arc<dyn CapabilityExecutor>> {
        self.executors.load().find(provider).cloned()
    }

    fn executor(&self, entry: &Entry) -> RuntimeResult<Arc<dyn CapabilityExecutor>> {
        let provider = &entry.manifest.provider;
        self.executor_of(provider).ok_or_else(|| {
            let reason = format!("nothing runs providers of kind {} any more", provider.kind());
            RuntimeError::Unavailable { id: entry.name.to_string(), reason, source: None }
        })
    }

    /// The context for a request to a surface, made as a call's is: [`Call::target`] names the
    /// surface, and of the limits the time is the one that holds.
    pub fn surface_context(&self, call: &Call) -> CallContext {
        let limits = self.catalog.load().limits.timeout;
        self.new_context(call.target.as_str().into(), limits, call)
    }

    /// The context for a program that nobody calls: it has the time that the call gives, else that of any
    /// call, and [`Call::target`] names it.
    pub fn program_context(&self, call: &Call) -> CallContext {
        let own = call.timeout.unwrap_or(self.catalog.load().limits.timeout);
        self.new_context(call.target.as_str().into(), own, call)
    }

    fn context(
        &self,
        catalog: &Catalog,
        entry: &Entry,
        call: &Call,
        permit: &Arc<CallPermit>,
    ) -> CallContext {
        let own = entry.policy.timeout.or_else(|| entry.manifest.provider.timeout());
        let own = own.unwrap_or(catalog.limits.timeout);
        let mut ctx = self.new_context(Arc::clone(&entry.name), own, call);
        ctx.custody = entry.policy.custody.clone().filter(|custody| custody.required().is_some());
        ctx.within.permit = Some(Arc::clone(permit));
        ctx.within.held = HeldPermits::with(entry.admission.as_ref(), call.held.as_ref());
        ctx.client = ctx.client.map(|client| -> Arc<dyn Client> {
            Arc::new(LendingClient { client, permit: Arc::clone(permit) })
        });
        ctx
    }

    fn new_context(&self, name: Arc<str>, own: Duration, call: &Call) -> CallContext {
        let timeout = call.timeout.map_or(own, |caller| caller.min(own));
        let number = self.calls.fetch_add(1, Ordering::Relaxed) + 1;
        CallContext {
            call_id: format!("{:08x}-{number}", self.instance).into(),
            name,
            deadline: Instant::now() + timeout,
            timeout,
            cancellation: call.cancellation.clone(),
            notices: call.notices.clone(),
            client: call.client.clone(),
            principal: call.principal.clone(),
            traceparent: call.traceparent.clone(),
            depth: call.depth,
            hops: call.hops.clone(),
            custody: None,
            within: Within {
                permit: None,
                catalog: call.catalog.clone(),
                retries: call.retries,
                shared: call.shared.clone(),
                held: call.held.clone(),
            },
        }
    }

    /// Adds an executor for a kind of provider (RTFS capability system §5.1).
    ///
    /// # Errors
    /// The kind has one already; see [`replace_executor`](Self::replace_executor).
    pub fn register_executor(
        &self,
        executor: Arc<dyn CapabilityExecutor>,
    ) -> Result<(), RegistrationError> {
        let _writing = self.lock();
        let mut executors = Executors::clone(&self.executors.load());
        if !executors.add(executor) {
            return Err(RegistrationError::SecondExecutor);
        }
        self.executors.store(Arc::new(executors));
        Ok(())
    }

    /// Puts an executor in the place of the one for its kind, and gives that one back. Calls that
    /// run go on with the one they began with.
    pub fn replace_executor(
        &self,
        executor: Arc<dyn CapabilityExecutor>,
    ) -> Option<Arc<dyn CapabilityExecutor>> {
        let _writing = self.lock();
        let mut executors = Executors::clone(&self.executors.load());
        let old = executors.replace(executor);
        self.executors.store(Arc::new(executors));
        old
    }

    /// Removes the executor for a kind of provider (RTFS capability system §5.3). Calls that run
    /// finish; new ones are [`RuntimeError::Unavailable`].
    pub fn unregister_executor(&self, settings: TypeId) -> Option<Arc<dyn CapabilityExecutor>> {
        let _writing = self.lock();
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
        let _writing = self.lock();
        let mut builder = self.successor(None);
        builder.capability(registration)?;
        self.swap(builder.build());
        Ok(())
    }

    /// Removes the capability with this id from the newest snapshot, and gives its manifest back.
    pub fn unregister_capability(&self, id: &str) -> Option<CapabilityManifest> {
        let _writing = self.lock();
        let removed = self.snapshot().get(id).map(|entry| entry.manifest.clone())?;
        let builder = self.successor(Some(&removed.id));
        self.swap(builder.build());
        Some(removed)
    }

    /// The capability with this id or MCP name in the newest snapshot.
    pub fn get(&self, id_or_name: &str) -> Option<Arc<Entry>> {
        self.snapshot().get(id_or_name).cloned()
    }

    /// Every capability of the newest snapshot, in the order of their MCP names.
    pub fn list(&self) -> Vec<Arc<Entry>> {
        self.snapshot().entries().to_vec()
    }

    /// The capabilities of the newest snapshot that fit the words, the best first; see
    /// [`Catalog::search`].
    pub fn search(&self, words: &str) -> Vec<Arc<Entry>> {
        let hits = self.snapshot().search(words, usize::MAX);
        hits.into_iter().map(|hit| hit.entry).collect()
    }

    /// What this instance is told from others by; not a secret.
    pub fn instance(&self) -> Arc<str> {
        format!("{:08x}", self.instance).into()
    }

    /// The newest snapshot.
    pub fn snapshot(&self) -> Arc<Catalog> {
        self.catalog.load_full()
    }

    /// A builder for the next snapshot, empty, which knows the registered executors.
    pub fn builder(&self, limits: Limits) -> CatalogBuilder {
        CatalogBuilder::new(self.executors.load_full(), limits, Some(self.snapshot()))
    }

    /// Makes `catalog` the newest snapshot, in one step, and tells whoever watches
    /// [`changes`](Self::changes). Whoever holds the old one keeps it.
    pub fn replace(&self, catalog: Catalog) -> Arc<Catalog> {
        let _writing = self.lock();
        self.swap(catalog)
    }

    /// Makes `catalog` the newest snapshot as [`replace`](Self::replace) does, where it is of the same
    /// sources: more has become known of what they serve.
    pub fn refine(&self, mut catalog: Catalog) -> Arc<Catalog> {
        let _writing = self.lock();
        catalog.loaded = self.catalog.load().loaded;
        self.put(catalog)
    }

    /// The generation of the newest snapshot, to be watched.
    pub fn changes(&self) -> watch::Receiver<u64> {
        self.changes.subscribe()
    }

    /// What can be said of a capability's provider without asking it.
    pub fn status(&self, entry: &Entry) -> ProviderStatus {
        let executors = self.executors.load();
        let provider = &entry.manifest.provider;
        let status = executors.find(provider).map(|executor| executor.status(provider));
        let mut status = status.unwrap_or_default();
        if let Some(reason) = entry.unavailable() {
            status.state = Some("unavailable".to_owned());
            status.last_failure = Some(reason.to_owned());
        }
        status
    }

    /// What bounds the memory of all requests together.
    pub fn memory(&self) -> &Arc<MemoryBudget> {
        &self.memory
    }

    /// Calls that run at the moment.
    pub fn running(&self) -> usize {
        self.catalog.load().admissions().map(|admission| admission.running()).sum()
    }

    /// Calls that wait for their turn at the moment.
    pub fn waiting(&self) -> usize {
        self.catalog.load().admissions().map(|admission| admission.waiting()).sum()
    }

    /// Lets `observe` see every finished call, besides whoever sees them already: metrics and audit read
    /// the same record as the log. It is called before the caller has its answer, and must not block for
    /// long.
    pub fn on_finished(&self, observe: impl Fn(&CallRecord) + Send + Sync + 'static) {
        let _writing = self.lock();
        let before = self.on_finished.load_full();
        let mut observers = before.map_or_else(Observers::new, |before| Observers::clone(&before));
        observers.push(Arc::new(observe));
        self.on_finished.store(Some(Arc::new(observers)));
    }

    /// Lets `observe` see every finished [request](Self::request), as [`on_finished`](Self::on_finished)
    /// does for calls.
    pub fn on_request(&self, observe: impl Fn(&RequestRecord) + Send + Sync + 'static) {
        let _writing = self.lock();
        let before = self.on_request.load_full();
        let mut observers =
            before.map_or_else(RequestObservers::new, |before| RequestObservers::clone(&before));
        observers.push(Arc::new(observe));
        self.on_request.store(Some(Arc::new(observers)));
    }

    pub(crate) fn request_observers(&self) -> Option<Arc<RequestObservers>> {
        self.on_request.load_full()
    }

    /// Lets `prepare` find out, before anything is listed, what is served: by providers that say so only
    /// when they are asked. It puts the snapshot that follows from it in force by itself.
    pub fn on_listing(&self, prepare: impl Fn() -> BoxFuture<'static, ()> + Send + Sync + 'static) {
        self.on_listing.store(Some(Arc::new(Preparation(Box::new(prepare)))));
    }

    /// To be awaited before the newest snapshot is listed; at once where there is nothing to find out.
    pub async fn prepare_listing(&self) {
        let preparation = self.on_listing.load_full();
        if let Some(preparation) = preparation {
            (preparation.0)().await;
        }
    }

    /// Lets `tell` say why providers give nothing that are known to give nothing; with a name, only those that may serve it.
    pub fn on_problems(
        &self,
        tell: impl Fn(Option<&str>) -> Vec<ProviderProblem> + Send + Sync + 'static,
    ) {
        self.on_problems.store(Some(Arc::new(Problems(Box::new(tell)))));
    }

    /// Why providers give nothing, as far as they have been asked, each as a sentence that names the provider; with a
    /// name, only those that may serve it.
    pub fn problems(&self, name: Option<&str>) -> Vec<String> {
        self.provider_problems(name).into_iter().map(|problem| problem.text).collect()
    }

    /// As [`problems`](Self::problems), of the providers that this caller may use without exception.
    pub fn problems_for(
        &self,
        catalog: &Catalog,
        principal: Option<&Principal>,
        name: Option<&str>,
    ) -> Vec<String> {
        let mut problems = self.provider_problems(name);
        problems.retain(|problem| catalog.permits_prefix(principal, &problem.prefix));
        problems.into_iter().map(|problem| problem.text).collect()
    }

    fn provider_problems(&self, name: Option<&str>) -> Vec<ProviderProblem> {
        self.on_problems.load_full().map(|problems| (problems.0)(name)).unwrap_or_default()
    }

    /// Whether the policy permits a capability, that of the snapshot and the one in force: what a session has
    /// listed stays callable after a reload, and what has been denied since does not.
    fn permits(
        &self,
        catalog: &Catalog,
        principal: Option<&Principal>,
        entry: &Entry,
    ) -> Result<(), String> {
        catalog.permits(principal, entry)?;
        let newest = self.catalog.load();
        if std::ptr::eq(&**newest, catalog) { Ok(()) } else { newest.permits(principal, entry) }
    }

    /// Whether a denied name is answered as one that does not exist.
    pub(crate) fn conceals(&self, catalog: &Catalog) -> bool {
        catalog.conceals() || self.catalog.load().conceals()
    }

    /// The error for a call of a name that nothing has, which is logged (RFC 1 §5.4, §8.2).
    fn missing(&self, catalog: &Catalog, call: &Call) -> RuntimeError {
        let caller = call.principal.as_ref().map_or(ANONYMOUS, |principal| &principal.0);
        tracing::info!(tool = cut(&call.target, SHOWN), caller, "unknown tool");
        self.unknown(catalog, call)
    }

    /// The error for a call that the policy denies. It is recorded as what it is; the caller learns of it
    /// only where the policy reveals what it denies.
    fn denied(
        &self,
        catalog: &Catalog,
        call: &Call,
        entry: &Entry,
        recording: Recording<'_>,
        permission: String,
    ) -> RuntimeError {
        let denied = RuntimeError::Denied { id: entry.name.to_string(), permission };
        recording.finish(Err(&denied));
        if self.conceals(catalog) { self.unknown(catalog, call) } else { denied }
    }

    /// What a caller sees of a name that does not exist, or that it may not know of.
    fn unknown(&self, catalog: &Catalog, call: &Call) -> RuntimeError {
        let (id, principal) = (cut(&call.target, SHOWN), call.principal.as_ref());
        let problems = self.problems_for(catalog, principal, Some(&id));
        if !problems.is_empty() {
            return RuntimeError::Unavailable { id, reason: problems.join("; "), source: None };
        }
        RuntimeError::Unknown { similar: catalog.similar_for(principal, &id), id }
    }

    /// A builder that begins with what is in force, but for the capability with this id.
    fn successor(&self, without: Option<&str>) -> CatalogBuilder {
        let mut builder = self.builder(self.snapshot().limits.clone());
        builder.take_over(without);
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
        self.catalog.store(Arc::clone(&catalog));
        self.changes.send_replace(generation);
        catalog
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, ()> {
        // The guarded data is `()`: a panic in a writer left nothing half done.
        self.writing.lock().unwrap_or_else(std::sync::PoisonError::into_inner)
    }
}

/// Checks an outcome against the capability's output schema, if that is enforced. The value is the structured one,
/// else the text, read as JSON where it is JSON. A text that satisfies the schema becomes the structured value too.
///
/// # Errors
/// The value breaks the schema. A text breaks no schema that its provider declared for structured values.
fn check_output(entry: &Entry, outcome: Outcome) -> RuntimeResult<Outcome> {
    let Some(schema) = entry.output.validator() else { return Ok(outcome) };
    let is_structured = outcome.structured.is_some();
    let value = outcome.payload()?;
    match schema.check_payload(&value, "output") {
        Ok(()) => Ok(Outcome { structured: Some(value), ..outcome }),
        Err(_) if !is_structured && entry.policy.output_declared_by == DeclaredBy::Provider => {
            Ok(outcome)
        }
        Err(violations) => Err(RuntimeError::InvalidOutput {
            id: entry.name.to_string(),
            violations,
            outcome: Box::new(Outcome { structured: None, ..outcome }),
        }),
    }
}

/// What an executor's future gives; it is given up when it heeds neither its deadline nor cancellation.
async fn guarded<T>(
    execution: impl Future<Output = RuntimeResult<T>>,
    entry: &Entry,
    ctx: &CallContext,
) -> RuntimeResult<T> {
    let id = || entry.name.to_string();
    tokio::select! {
        biased;
        done = AssertUnwindSafe(execution).catch_unwind() => {
            done.unwrap_or_else(|_| Err(RuntimeError::Panicked { id: id() }))
        }
        () = overdue(ctx) => Err(if ctx.cancellation.is_cancelled() {
            RuntimeError::Cancelled { id: id(), outcome: None }
        } else {
            RuntimeError::TimedOut { id: id(), limit: ctx.timeout, outcome: None }
        }),
    }
}

/// Waits for one of the capability's own permits, within the call's time.
async fn own_permit(
    admission: &Arc<Admission>,
    entry: &Entry,
    ctx: &CallContext,
) -> RuntimeResult<Permit> {
    if let Some(size) = ctx.within.held.as_ref().and_then(|held| held.waits_for_itself()) {
        let what = format!(
            "it is called within its own calls, of which {size} may run at once (max_concurrency)"
        );
        return Err(RuntimeError::Limit { id: entry.name.to_string(), what });
    }
    admitted(admission, entry, ctx).await
}

/// Waits for a permit, within the call's time.
async fn admitted(
    admission: &Arc<Admission>,
    entry: &Entry,
    ctx: &CallContext,
) -> RuntimeResult<Permit> {
    let id = || entry.name.to_string();
    let principal = ctx.principal.as_ref();
    let lane = Lane { principal, capability: &entry.name, provider: &entry.provider };
    let permit = in_time(admission.enter(lane), entry, ctx)
        .await?
        .map_err(|full| RuntimeError::Busy { id: id(), running: full.running, waiting: full.waiting })?;
    // A permit at the very end is no use: nothing is started that must end at once.
    if Instant::now() >= ctx.deadline {
        return Err(RuntimeError::TimedOut { id: id(), limit: ctx.timeout, outcome: None });
    }
    Ok(permit)
}

/// What `future` gives, within the call's time and until it is cancelled.
async fn in_time<T>(
    future: impl Future<Output = T>,
    entry: &Entry,
    ctx: &CallContext,
) -> RuntimeResult<T> {
    let id = || entry.name.to_string();
    tokio::select! {
        biased;
        given = future => Ok(given),
        () = ctx.cancellation.cancelled() => Err(RuntimeError::Cancelled { id: id(), outcome: None }),
        () = tokio::time::sleep_until(ctx.deadline) => {
            Err(RuntimeError::TimedOut { id: id(), limit: ctx.timeout, outcome: None })
        }
    }
}

/// What a caller is told whose call is not even tried.
fn left_alone(entry: &Entry, wait: Duration) -> RuntimeError {
    let upstream = entry.policy.upstream.as_deref().unwrap_or_default();
    let wait = Duration::from_millis(u64::try_from(wait.as_millis()).unwrap_or(u64::MAX).max(1));
    let reason = format!("{upstream} has failed again and again; it is tried anew in {}", seconds(wait));
    RuntimeError::Unavailable { id: entry.name.to_string(), reason, source: None }
}

/// A number from 0 to 1.
fn jitter() -> f64 {
    let bits = RandomState::new().build_hasher().finish();
    bits as f64 / u64::MAX as f64
}

/// Ends when the executor has had its time and the grace to end by itself.
async fn overdue(ctx: &CallContext) {
    tokio::select! {
        () = tokio::time::sleep_until(ctx.deadline + BACKSTOP) => {}
        () = async { ctx.cancellation.cancelled().await; tokio::time::sleep(BACKSTOP).await } => {}
    }
}

#[cfg(test)]
#[path = "marketplace_tests.rs"]
mod tests;
