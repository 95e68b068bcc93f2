//! The state that all transports share: the marketplace, the settings in force, and the sessions. Also
//! controls how the server ends.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::{Duration, Instant};

use arc_swap::ArcSwap;
use orla_history::History;
use orla_identity::{Authenticator, Fetch};
use orla_marketplace::{CapabilityMarketplace, Catalog, Principal, discovery, millis_down};
use orla_state::{Limits, Memory, StateStore};
use orla_tasks::{Schedules, TaskOptions, Tasks};
use parking_lot::Mutex;
use rmcp::model::{
    Implementation, PromptsCapability, ResourcesCapability, ServerCapabilities, ToolsCapability,
};
use tokio::sync::{Semaphore, watch};
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use crate::a2a::{Agent, PushSender};
use crate::forbidden::{ForbiddenRequest, Reports};
use crate::http::guard::Guard;
use crate::idempotency::Answers;
use crate::mcp::dispatch::pending::PendingRequests;
use crate::mcp::notify::changes::Lists;
use crate::mcp::notify::pending_changes::PendingChanges;
use crate::mcp::notify::subscriptions::Subscriptions;
use crate::mcp::session::listed::{KnownVersions, Versions};
use crate::mcp::session::shared::SharedSessions;
use crate::mcp::session::{Session, Sessions};
use crate::mcp::surfaces;
use crate::mcp::tools::{CacheHint, Listings};
use crate::metrics::Metrics;
use crate::nodes::Nodes;
use crate::options::{ServerOptions, Unauthenticated};
use crate::pages::Pages;
use crate::throttle::Failures;
use crate::tls;

/// Observes failed authentications.
type UnauthenticatedObserver = dyn Fn(&Unauthenticated) + Send + Sync;
type ForbiddenObserver = dyn Fn(&ForbiddenRequest) + Send + Sync;

/// The maximum number of tasks that ask slow providers after lists have been answered without them.
const MAX_LEARNING: usize = 4;

/// The state of one server.
pub(crate) struct Core {
    pub(crate) market: Arc<CapabilityMarketplace>,
    pub(crate) settings: ArcSwap<Settings>,
    pub(crate) sessions: Sessions,
    pub(crate) listings: Listings,
    /// The versions of capabilities that sessions have listed.
    pub(crate) versions: KnownVersions,
    pub(crate) metrics: Metrics,
    /// Numbers the questions to clients of sessions.
    pub(crate) question_numbers: Arc<AtomicU64>,
    pub(crate) pending: PendingRequests,
    /// How often lists have changed, to be watched.
    pub(crate) lists: watch::Sender<Lists>,
    pub(crate) subscriptions: Subscriptions,
    /// Changes of which clients may have to be notified at other servers.
    pub(crate) pending_changes: Arc<PendingChanges>,
    /// Sends whenever a credential may have been withdrawn.
    pub(crate) credentials: watch::Sender<()>,
    /// Tracks all spawned tasks.
    pub(crate) tracker: TaskTracker,
    /// Cancelled when the server stops accepting requests; long streams end, calls continue.
    pub(crate) draining: CancellationToken,
    /// Cancelled when the time for calls is over. Everything ends.
    pub(crate) abort: CancellationToken,
    pub(crate) started: Instant,
    serving: AtomicBool,
    /// Bounds the tasks that go on asking the providers for which lists did not wait.
    learning: Arc<Semaphore>,
    pub(crate) auth_failures: Mutex<Failures>,
    /// Observes every failed authentication that is worth a record.
    pub(crate) on_unauthenticated: OnceLock<Box<UnauthenticatedObserver>>,
    /// The forbidden requests of unidentified peers.
    pub(crate) forbidden: Mutex<Reports>,
    /// Observes every forbidden request that is worth a record.
    pub(crate) on_forbidden: OnceLock<Box<ForbiddenObserver>>,
    /// The certificates of the listener.
    pub(crate) tls: tls::Current,
    tasks: OnceLock<Tasks>,
    schedules: OnceLock<Schedules>,
    cluster: OnceLock<Box<dyn Nodes>>,
    answers: OnceLock<Arc<Answers>>,
    history: OnceLock<History>,
    shared_sessions: OnceLock<SharedSessions>,
    agent: OnceLock<Arc<Agent>>,
    /// Sends push notifications, if the program supports them.
    push: OnceLock<Arc<dyn PushSender>>,
    /// Reaches authorization servers, if the program supports them.
    fetch: OnceLock<Arc<dyn Fetch>>,
    /// Makes pages for people, if the program has any.
    pages: OnceLock<Arc<dyn Pages>>,
}

/// The options in force, and what is compiled from them.
pub(crate) struct Settings {
    pub(crate) options: ServerOptions,
    pub(crate) guard: Guard,
    pub(crate) auth: Authenticator,
}

impl Settings {
    fn new(options: ServerOptions, fetch: Option<&Arc<dyn Fetch>>, previous: Option<&Self>) -> Self {
        let guard = Guard::new(&options.allowed_hosts, &options.allowed_origins);
        let guard = if options.tls.is_some() { guard.with_tls() } else { guard };
        let auth = Authenticator::new(&options.auth, fetch, previous.map(|previous| &previous.auth));
        Self { options, guard, auth }
    }
}

impl Core {
    pub(crate) fn new(market: Arc<CapabilityMarketplace>, options: ServerOptions) -> Arc<Self> {
        let metrics = Metrics::default();
        metrics.observe(&market);
        let core = Arc::new(Self {
            market,
            settings: ArcSwap::from_pointee(Settings::new(options, None, None)),
            sessions: Sessions::new(),
            listings: Listings::default(),
            versions: KnownVersions::default(),
            metrics,
            question_numbers: Arc::default(),
            pending: PendingRequests::default(),
            lists: watch::Sender::default(),
            subscriptions: Subscriptions::default(),
            pending_changes: Arc::default(),
            credentials: watch::Sender::default(),
            tracker: TaskTracker::new(),
            draining: CancellationToken::new(),
            abort: CancellationToken::new(),
            started: Instant::now(),
            serving: AtomicBool::new(false),
            learning: Arc::new(Semaphore::new(MAX_LEARNING)),
            auth_failures: Mutex::default(),
            on_unauthenticated: OnceLock::new(),
            forbidden: Mutex::default(),
            on_forbidden: OnceLock::new(),
            tls: tls::Current::default(),
            tasks: OnceLock::new(),
            schedules: OnceLock::new(),
            cluster: OnceLock::new(),
            answers: OnceLock::new(),
            history: OnceLock::new(),
            shared_sessions: OnceLock::new(),
            agent: OnceLock::new(),
            push: OnceLock::new(),
            fetch: OnceLock::new(),
            pages: OnceLock::new(),
        });
        let server = Arc::downgrade(&core);
        core.market.approvals().check_callers(move |principal| {
            server.upgrade().is_some_and(|core| core.settings.load().auth.still_knows(principal))
        });
        core
    }

    /// Returns the agent, which answers messages of the Agent2Agent protocol.
    pub(crate) fn agent(&self) -> &Arc<Agent> {
        self.agent.get_or_init(|| {
            let tasks = self.tasks().cloned().unwrap_or_else(|| self.tasks_of_agent());
            Arc::new(Agent::new(tasks))
        })
    }

    /// Returns the tasks for the agent alone, if the program supports none. They end with the server.
    fn tasks_of_agent(&self) -> Tasks {
        let memory = Arc::new(Memory::new(Limits::default()));
        let tasks = Tasks::open(memory, Arc::clone(&self.market), TaskOptions::default());
        let (running, draining) = (tasks.clone(), self.draining.clone());
        let drain = self.settings.load().options.drain;
        self.tracker.spawn(async move {
            if let Err(error) = running.resume().await {
                tracing::error!(%error, "the tasks of the agent cannot run");
            }
            draining.cancelled().await;
            running.close(drain).await;
        });
        tasks
    }

    /// Returns the calls that outlive their callers, if the program supports them.
    pub(crate) fn tasks(&self) -> Option<&Tasks> {
        self.tasks.get()
    }

    /// Returns the history, if the program keeps one.
    pub(crate) fn history(&self) -> Option<&History> {
        self.history.get().filter(|history| history.is_enabled())
    }

    /// Sets the history. The first one stays.
    pub(crate) fn serve_history(&self, history: History) {
        drop(self.history.set(history));
    }

    /// Sets the tasks. The first ones stay.
    pub(crate) fn serve_tasks(&self, tasks: Tasks) {
        drop(self.tasks.set(tasks));
    }

    /// Returns the schedules that start tasks, if the program has any.
    pub(crate) fn schedules(&self) -> Option<&Schedules> {
        self.schedules.get()
    }

    /// Sets the schedules. The first ones stay.
    pub(crate) fn show_schedules(&self, schedules: Schedules) {
        drop(self.schedules.set(schedules));
    }

    /// Returns the cluster, if the server is a node of one.
    pub(crate) fn cluster(&self) -> Option<&dyn Nodes> {
        self.cluster.get().map(|cluster| &**cluster)
    }

    /// Shows the nodes of this cluster. The first one stays.
    pub(crate) fn show_nodes(&self, cluster: Box<dyn Nodes>) {
        drop(self.cluster.set(cluster));
    }

    /// Returns the answers to requests with an idempotency key.
    pub(crate) fn answers(&self) -> &Arc<Answers> {
        self.answers.get_or_init(|| Answers::new(Arc::new(Memory::new(Limits::default()))))
    }

    /// Keeps those answers in a state. The first one stays.
    pub(crate) fn keep_answers(&self, state: Arc<dyn StateStore>) {
        drop(self.answers.set(Answers::new(state)));
    }

    /// Where sessions are shared with other servers, if they are.
    pub(crate) fn shared_sessions(&self) -> Option<&SharedSessions> {
        self.shared_sessions.get()
    }

    /// Returns the snapshot whose tools a session calls: the one that it listed here last, or else the newest one, with the
    /// versions that it listed at another server.
    pub(crate) fn tools_of(&self, session: &Session) -> Arc<Catalog> {
        let (Some(listed), Some(nodes)) = (session.listed_elsewhere(), self.cluster()) else {
            return session.tools();
        };
        let catalog = self.versions.catalog(nodes, &listed, self.market.snapshot());
        session.begin_tools_with(&catalog);
        catalog
    }

    /// Returns the versions in a snapshot that a session lists, if other servers can know them.
    pub(crate) fn shared_versions(&self, catalog: &Arc<Catalog>) -> Option<Arc<Versions>> {
        let (nodes, shared) = (self.cluster()?, self.shared_sessions()?);
        let versions = self.versions.of(nodes, catalog);
        let renewal = self.settings.load().options.session_idle / 4;
        shared.has_place_for(&versions, renewal).then_some(versions)
    }

    /// Returns whether there are callers without a credential.
    pub(crate) fn admits_anonymous(&self) -> bool {
        !self.settings.load().options.auth.are_required() && !self.tls.asks_clients()
    }

    /// Returns the identifier of this process in its cluster, if it is a node of one.
    pub(crate) fn instance(&self) -> Option<Arc<str>> {
        self.cluster().map(|cluster| cluster.instance().into())
    }

    /// Shares sessions with the other servers of a state. The first one stays.
    pub(crate) fn share_sessions(&self, state: Arc<dyn StateStore>) {
        // An answer to another server's question must not match a question of this server.
        let first = getrandom::u32().unwrap_or_default();
        self.question_numbers.store(u64::from(first) << 20, Ordering::Relaxed);
        drop(self.shared_sessions.set(SharedSessions::new(state)));
    }

    /// Returns the pages for people, if there are any and they are on.
    pub(crate) fn pages(&self, settings: &Settings) -> Option<&Arc<dyn Pages>> {
        self.pages.get().filter(|_| settings.options.pages)
    }

    /// Sets the pages for people. The first ones stay.
    pub(crate) fn serve_pages(&self, pages: Arc<dyn Pages>) {
        drop(self.pages.set(pages));
    }

    /// Returns the sender of push notifications.
    pub(crate) fn push(&self) -> Option<&Arc<dyn PushSender>> {
        self.push.get()
    }

    /// Sets the sender of push notifications. The first one stays.
    pub(crate) fn push_with(&self, sender: Arc<dyn PushSender>) {
        drop(self.push.set(sender));
    }

    /// Replaces the options.
    pub(crate) fn reconfigure(&self, options: ServerOptions) {
        // A server on a pipe has no listener, and so no certificates.
        if self.tls.get().is_some()
            && let Err(err) = self.tls.load(options.tls.as_ref())
        {
            tracing::error!(error = %err, "{}", tls::UNUSABLE);
        }
        let previous = self.settings.load_full();
        self.settings.store(Arc::new(Settings::new(options, self.fetch.get(), Some(&previous))));
        self.end_unknown();
        self.credentials.send_replace(());
    }

    /// Ends the activities that callers with a withdrawn credential left behind. Running requests check
    /// their credential themselves ([`Credential`](crate::credential::Credential)).
    pub(crate) fn end_unknown(&self) {
        let settings = self.settings.load();
        let is_unknown = |principal: Option<&Principal>| {
            principal.is_some_and(|principal| !settings.auth.still_knows(principal))
        };
        self.sessions.end_all(is_unknown);
        self.pending.end_all(is_unknown);
        if let Some(agent) = self.agent.get().cloned() {
            let theirs = agent.unfinished(|principal| is_unknown(Some(principal)));
            if !theirs.is_empty() {
                self.tracker.spawn(async move { agent.cancel_all(theirs).await });
            }
        }
    }

    /// Sets what sends requests to authorization servers. The first one stays.
    pub(crate) fn fetch_with(&self, fetch: Arc<dyn Fetch>) {
        drop(self.fetch.set(fetch));
        self.reconfigure(self.settings.load().options.clone());
    }

    /// Returns whether the server accepts requests.
    pub(crate) fn is_ready(&self) -> bool {
        self.serving.load(Ordering::Relaxed) && !self.draining.is_cancelled()
    }

    /// Returns why tasks cannot be kept, if that is known.
    pub(crate) async fn state_problem(&self) -> Option<String> {
        /// How long the state may take to answer.
        const STATE_TIMEOUT: Duration = Duration::from_secs(2);
        let checking = tokio::time::timeout(STATE_TIMEOUT, self.tasks()?.check_store());
        match checking.await {
            Ok(found) => found.err().map(|error| error.to_string()),
            Err(_) => Some("the state does not answer".to_owned()),
        }
    }

    /// Cancels everything that runs. Callers learn that the server is stopping.
    pub(crate) fn end_calls(&self) {
        self.market.stop();
        self.abort.cancel();
    }

    pub(crate) fn set_serving(&self) {
        self.serving.store(true, Ordering::Relaxed);
    }

    /// Waits until the served capabilities are known, but no longer than a list may wait for starting
    /// providers. The providers continue to start.
    pub(crate) async fn prepare_listing_in_time(&self) {
        let market = Arc::clone(&self.market);
        let mut learning = Box::pin(async move { market.prepare_listing().await });
        let limit = self.market.snapshot().limits().listing_timeout;
        if tokio::time::timeout(limit, &mut learning).await.is_err() {
            // With enough tasks that ask, another one is of no use.
            if let Ok(place) = Arc::clone(&self.learning).try_acquire_owned() {
                let draining = self.draining.clone();
                self.tracker.spawn(async move {
                    tokio::select! {
                        () = learning => {}
                        () = draining.cancelled() => {}
                    }
                    drop(place);
                });
            }
            self.market.refreshed();
        }
    }

    /// Returns how a sessionless client may cache a list.
    pub(crate) fn cache_hint(&self) -> CacheHint {
        let ttl = self.settings.load().options.list_ttl;
        CacheHint { ttl_ms: millis_down(ttl) }
    }
}

/// Returns the name and version of the server.
pub(crate) fn implementation() -> Implementation {
    Implementation::new("orla", env!("CARGO_PKG_VERSION"))
}

/// The description of the server for a model.
const INSTRUCTIONS: &str = "Runs local executables and other capabilities as tools. \
    A tool's result carries its output, and in `_meta` how it ran; a failure says what to change.";
const SEARCH: &str = " Not everything is listed: capability_search finds capabilities by what you want to do, \
    capability_describe tells how one is called, and capability_call calls it.";

/// Returns the instructions for a snapshot. If search is listed, the instructions refer to it for all
/// other capabilities.
pub(crate) fn instructions(catalog: &Catalog) -> String {
    let is_searched = catalog.get(discovery::IDS[0]).is_some_and(|entry| entry.is_listed());
    format!("{INSTRUCTIONS}{}", if is_searched { SEARCH } else { "" })
}

/// Returns the capabilities of the server for a snapshot: resources only if something serves them.
pub(crate) fn capabilities(catalog: &Catalog) -> ServerCapabilities {
    let mut tools = ToolsCapability::default();
    tools.list_changed = Some(true);
    let mut prompts = PromptsCapability::default();
    prompts.list_changed = Some(true);
    let mut capabilities = ServerCapabilities::default();
    capabilities.tools = Some(tools);
    capabilities.prompts = Some(prompts);
    capabilities.completions = Some(serde_json::Map::new());
    capabilities.logging = Some(serde_json::Map::new());
    if surfaces::serves(catalog, "resources/list") || surfaces::serves(catalog, "resources/read") {
        let mut resources = ResourcesCapability::default();
        resources.list_changed = Some(true);
        resources.subscribe = surfaces::serves(catalog, "resources/subscribe").then_some(true);
        capabilities.resources = Some(resources);
    }
    capabilities
}
