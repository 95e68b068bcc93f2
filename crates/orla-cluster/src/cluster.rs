//! The cluster as a source of capabilities.

use std::collections::HashMap;
use std::fmt;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Weak};
use std::time::Duration;

use async_trait::async_trait;
use bytes::Bytes;
use orla_marketplace::{
    CapabilityMarketplace, Catalog, Entry, Permits, Principal, ProviderProblem, Registration, Source,
    Surface, millis_down,
};
use orla_state::StateStore;
use parking_lot::Mutex;
use tokio::sync::{Notify, watch};
use tokio::time::{Instant, timeout};
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use crate::call::{ClusterExecutor, Serving};
use crate::error::ClusterError;
use crate::inquiry::{Answerer, Inquiries, NoReply};
use crate::learner::Learner;
use crate::limits::ClusterPermits;
use crate::link::Link;
use crate::member::{DescribeTool, Member, offered};
use crate::orders::{self, OrderError};
use crate::presence::{NodeStatus, Registry};
use crate::provider::{ClusterProvider, registration, requires, without_nodes};
use crate::settings::ClusterSettings;
use crate::shared::Shared;
use crate::store::ClusterStore;

/// How long a listing waits for the first answer of the cluster.
const LEARN_TIMEOUT: Duration = Duration::from_secs(2);
/// How long the start of an instance waits for its cluster.
const JOIN_TIMEOUT: Duration = Duration::from_secs(2);

/// The number of hexadecimal digits by which versions of a capability are told apart.
const VERSION_DIGITS: usize = 32;

/// A version of a capability of other nodes.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct Version {
    /// The capability here.
    pub registration: Registration,
    /// Whether a node offers it now. If not, its calls fail with that reason.
    pub is_offered: bool,
}

/// The cluster of an instance, with the capabilities of its other nodes.
///
/// It is inactive before [`start`](Self::start).
pub struct Cluster {
    link: Arc<Link>,
    market: Weak<CapabilityMarketplace>,
    describe: DescribeTool,
    shared: Arc<Shared>,
    serving: Arc<Serving>,
    inquiries: Arc<Inquiries>,
    store: ClusterStore,
    permits: Arc<ClusterPermits>,
    /// The capabilities that were served last, by their digests: an unchanged one stays the same.
    known: Mutex<HashMap<String, Registration>>,
    requires: Arc<[String]>,
    is_started: AtomicBool,
    leaving: CancellationToken,
    stop: CancellationToken,
    tasks: TaskTracker,
}

impl Cluster {
    /// Creates a node with these settings that offers the capabilities of `market`. `describe` returns a
    /// capability in the form for other nodes, an MCP tool in JSON, or `None` if other nodes must not
    /// see it.
    pub fn new(
        settings: ClusterSettings,
        market: &Arc<CapabilityMarketplace>,
        describe: impl Fn(&Entry) -> Option<String> + Send + Sync + 'static,
    ) -> Self {
        let requires = requires(&settings.nats);
        market.set_node(&settings.node);
        let (link, shared) = (Link::new(settings), Arc::new(Shared::new()));
        let store = ClusterStore::new(&link);
        let permits = {
            let (link, store) = (Arc::clone(&link), store.clone());
            let node = link.settings.node.clone();
            ClusterPermits::new(
                &node,
                Arc::new(move || store.nats_time().filter(|_| link.is_connected())),
            )
        };
        market.quotas().count_in_cluster(Arc::clone(&permits) as Arc<dyn Permits>);
        let (stop, tasks) = (CancellationToken::new(), TaskTracker::new());
        Self {
            inquiries: Inquiries::new(&link, &shared, &stop, &tasks),
            serving: Arc::new(Serving::new(&link, &shared, market)),
            store,
            permits,
            link,
            market: Arc::downgrade(market),
            describe: Arc::new(describe),
            shared,
            known: Mutex::default(),
            requires,
            is_started: AtomicBool::new(false),
            leaving: CancellationToken::new(),
            stop,
            tasks,
        }
    }

    /// Sets whether other nodes may pass on calls of unidentified callers. A node that requires a
    /// credential of every caller refuses such calls.
    pub fn admit_anonymous(&self, admits: bool) {
        self.link.admits_anonymous.store(admits, Ordering::Relaxed);
    }

    /// Returns the executor for calls of capabilities of other nodes.
    pub fn executor(&self) -> ClusterExecutor {
        ClusterExecutor::new(Arc::clone(&self.link), Arc::clone(&self.shared), self.market.clone())
    }

    /// Returns the name of this node.
    pub fn node(&self) -> &str {
        &self.link.settings.node
    }

    /// Returns the store of the records that all nodes share. It can be used once this node has joined
    /// the cluster. If the store is not used, it keeps nothing in NATS.
    pub fn store(&self) -> Arc<dyn StateStore> {
        self.store.mark_used();
        Arc::new(self.store.clone())
    }

    /// Joins the cluster. If NATS cannot be reached or does not answer soon, the node keeps trying, and
    /// the problem is returned as `Ok(Some(_))`. The node also reconnects after every lost connection.
    ///
    /// # Errors
    ///
    /// Returns problems that do not pass by themselves: see [`ClusterError`].
    pub async fn start(&self) -> Result<Option<ClusterError>, ClusterError> {
        let member = Arc::new(self.member());
        let joined = timeout(JOIN_TIMEOUT, member.join())
            .await
            .unwrap_or_else(|_| Err(ClusterError::Unreachable("it does not answer soon".to_owned())));
        self.is_started.store(true, Ordering::Relaxed);
        self.tasks.spawn(self.store.clone().serve(self.stop.clone()));
        self.tasks.spawn(Arc::clone(&self.permits).serve(self.store(), self.stop.clone()));
        match joined {
            Ok(joined) => {
                member.serve(joined, &self.tasks);
                Ok(None)
            }
            Err(error) if error.may_pass() => {
                self.shared.learned();
                self.tasks.spawn(member.join_later(self.tasks.clone(), error.to_string()));
                Ok(Some(error))
            }
            Err(error) => Err(error),
        }
    }

    pub(crate) fn member(&self) -> Member {
        Member {
            link: Arc::clone(&self.link),
            market: self.market.clone(),
            shared: Arc::clone(&self.shared),
            serving: Arc::clone(&self.serving),
            inquiries: Arc::clone(&self.inquiries),
            store: self.store.clone(),
            describe: Arc::clone(&self.describe),
            leaving: self.leaving.clone(),
            stop: self.stop.clone(),
            epoch: AtomicU64::new(0),
            learner: Learner::new(&self.shared),
            contested: Notify::new(),
        }
    }

    /// Leaves the cluster. No further call of other nodes begins, and running ones have this long to
    /// end. Calls to other nodes continue.
    pub async fn leave(&self, max_wait: Duration) {
        self.leaving.cancel();
        self.serving.end(max_wait).await;
    }

    /// Makes a node stop taking calls of other nodes, or take them again. Running calls and calls of the
    /// node's own callers continue.
    ///
    /// # Errors
    ///
    /// Returns an error if the node does not exist or does not answer.
    pub async fn drain(&self, node: &str, drains: bool) -> Result<(), OrderError> {
        if node != self.link.settings.node {
            return orders::send(&self.link, node, drains).await;
        }
        self.shared.drain(drains);
        Ok(())
    }

    /// Returns an identifier of this process, distinct from other processes with its name.
    pub fn instance(&self) -> &str {
        &self.link.instance
    }

    /// Sets the answerer for questions of other nodes. Later answerers are ignored.
    pub fn answer_with(&self, answerer: Arc<dyn Answerer>) {
        drop(self.inquiries.answerer.set(answerer));
    }

    /// Returns the maximum number of bytes of a question and of an answer.
    pub fn max_payload(&self) -> usize {
        self.link.chunk()
    }

    /// Asks an instance of another node, in the name of this caller.
    ///
    /// # Errors
    ///
    /// Returns an error if no answer arrives within this time.
    pub async fn ask(
        &self,
        instance: &str,
        caller: Option<&Principal>,
        question: Bytes,
        max_wait: Duration,
    ) -> Result<Bytes, NoReply> {
        self.inquiries.ask(instance, caller, question, max_wait).await
    }

    /// Returns the other nodes that are present, with the identifiers of their processes.
    pub fn peers(&self) -> Vec<(String, String)> {
        let peers = self.shared.read(Registry::peers);
        peers.into_iter().map(|peer| (peer.node, peer.instance)).collect()
    }

    /// Returns whether this node takes no more calls and tasks of others.
    pub fn is_draining(&self) -> bool {
        self.shared.is_draining()
    }

    /// Returns whether this node would run a capability for another node. It must share the capability,
    /// and take calls of such callers. A program makes calls that are named only in its text, so it
    /// requires that all capabilities are shared.
    pub fn admits(&self, capability: &Entry, is_program: bool, is_identified: bool) -> bool {
        let is_shared = match is_program {
            true => self.link.settings.share.is_none(),
            false => {
                self.link.settings.shares(&capability.manifest.id)
                    && (self.describe)(capability).is_some()
            }
        };
        is_shared && (is_identified || self.link.admits_anonymous.load(Ordering::Relaxed))
    }

    /// Returns the versions of the capabilities of a snapshot that nodes share: the id of each, and the beginning of its
    /// digest.
    pub fn versions_in(&self, catalog: &Catalog) -> Vec<(String, String)> {
        let version = |entry: &Arc<Entry>| {
            let (id, mut digest) = match entry.manifest.provider.settings::<ClusterProvider>() {
                Ok(provider) => (provider.id.clone(), provider.digest.clone()),
                Err(_) => {
                    let own = offered(&self.link.settings, &self.describe, entry)?;
                    (own.id, own.digest)
                }
            };
            digest.truncate(VERSION_DIGITS);
            Some((id, digest))
        };
        catalog.entries().iter().filter_map(version).collect()
    }

    /// Returns these versions, each named as in [`versions_in`](Self::versions_in), as capabilities of other nodes.
    /// Leaves out what this node does not take from others.
    pub fn versions(&self, wanted: &[(&str, &str)]) -> Vec<Version> {
        let takes = |(id, _): &(&str, &str)| self.link.settings.takes(id);
        let mut wanted: HashMap<&str, &str> = wanted.iter().copied().filter(takes).collect();
        let offered = self.shared.read(|registry| registry.versions(&wanted));
        let mut versions = Vec::with_capacity(wanted.len());
        for offered in offered {
            if let Some(registration) = registration(&offered, &self.requires) {
                wanted.remove(offered.id.as_str());
                versions.push(Version { registration, is_offered: true });
            }
        }
        let gone = wanted.into_iter().map(|(id, digest)| Version {
            registration: without_nodes(id, digest, &self.requires),
            is_offered: false,
        });
        versions.extend(gone);
        versions
    }

    /// Returns whether this node receives messages of the others.
    pub fn is_connected(&self) -> bool {
        self.link.is_connected()
    }

    /// Returns the counts of events of calls between nodes since the start, each with its word.
    pub fn events(&self) -> Vec<(&'static str, u64)> {
        self.shared.events.counts()
    }

    /// Returns the nodes, this one included, in the order of their names.
    pub fn status(&self) -> Vec<NodeStatus> {
        let mut nodes = self.shared.read(|registry| registry.status(Instant::now()));
        nodes.push(NodeStatus {
            node: self.link.settings.node.clone(),
            alive: !self.shared.replaced.is_cancelled(),
            cut_off: !self.link.is_connected(),
            draining: self.shared.is_draining(),
            capabilities: self.shared.own_ids(),
            running: self.market.upgrade().map_or(0, |market| market.running()),
            places: 0,
            lag_ms: 0,
            stuck_ms: self.store.stuck().map(millis_down),
        });
        let places = self.permits.places();
        for node in &mut nodes {
            node.places = places.get(&node.node).copied().unwrap_or_default();
        }
        nodes.sort_by(|a, b| a.node.cmp(&b.node));
        nodes
    }

    fn is_started(&self) -> bool {
        self.is_started.load(Ordering::Relaxed)
    }
}

impl fmt::Debug for Cluster {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Cluster").field(&self.link.settings).finish()
    }
}

#[async_trait]
impl Source for Cluster {
    fn registrations(&self) -> Vec<Registration> {
        let served = self.shared.read(Registry::served);
        let mut known = self.known.lock();
        let mut next = HashMap::with_capacity(served.len());
        let mut registrations = Vec::with_capacity(served.len());
        for offered in served.iter().filter(|offered| self.link.settings.takes(&offered.id)) {
            let same = known.remove(&offered.digest);
            if let Some(registration) = same.or_else(|| registration(offered, &self.requires)) {
                next.insert(offered.digest.clone(), registration.clone());
                registrations.push(registration);
            }
        }
        *known = next;
        registrations
    }

    fn surfaces(&self) -> Vec<Arc<dyn Surface>> {
        Vec::new()
    }

    fn changes(&self) -> watch::Receiver<u64> {
        self.shared.changes()
    }

    fn may_serve(&self, name: &str) -> bool {
        // Only a running node knows the capabilities of the others.
        !self.is_started() && self.link.settings.takes(name)
    }

    fn problems(&self, _name: Option<&str>) -> Vec<ProviderProblem> {
        if !self.is_started() || self.link.is_connected() {
            return Vec::new();
        }
        let text =
            "cluster: there is no connection to NATS; capabilities of other nodes are unavailable";
        vec![ProviderProblem::new("cluster", Some(""), text.to_owned())]
    }

    fn start_eager(&self, _all: bool) {}

    async fn learn(&self) {
        if self.is_started() {
            drop(timeout(LEARN_TIMEOUT, self.shared.wait_until_learned()).await);
        }
    }

    async fn shutdown(&self) {
        self.leave(Duration::ZERO).await;
        // The announcement that this node is gone is its last message.
        self.stop.cancel();
        self.tasks.close();
        self.tasks.wait().await;
        self.link.flush().await;
    }
}
