//! This node among the others: keeps its lease and its offer, and hears those of the others.
//!
//! Four tasks share a member: `receive` hands messages to their calls, `hear` takes leases, `learn` reads offers, and
//! `keep` writes what this node says. None waits for another, so that a slow answer of JetStream delays no call.

use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Weak};
use std::time::Duration;

use async_nats::{Message, Subscriber};
use bytes::{Bytes, BytesMut};
use futures_util::StreamExt;
use orla_marketplace::{CapabilityMarketplace, Entry};
use ring::digest::{SHA256, digest};
use tokio::sync::mpsc;
use tokio::time::{Instant, MissedTickBehavior, interval, sleep};
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use crate::call::Serving;
use crate::error::ClusterError;
use crate::link::{Buckets, Link};
use crate::presence::{Lease, MAX_OFFER, Offered, Offers, VERSION, hex};
use crate::provider::KIND;
use crate::shared::Shared;

/// How often the lease is renewed.
const RENEW: Duration = Duration::from_secs(3);
/// How often what was not renewed is looked for.
const LOOK: Duration = Duration::from_secs(1);
/// The pause between attempts to join.
const AGAIN: Duration = Duration::from_secs(2);
/// The least time between two offers of a node whose capabilities change all the time.
const SETTLE: Duration = Duration::from_millis(50);
/// How often an offer is written again, so that it is not removed as old.
const REFRESH: Duration = Duration::from_secs(6 * 3600);
/// The most offers of other nodes that wait to be read. A node that is left out comes with its next lease.
const MAX_WAITING: usize = 256;

/// A capability as other nodes see it: an MCP tool in JSON. `None` if they do not see it.
pub(crate) type DescribeTool = Arc<dyn Fn(&Entry) -> Option<String> + Send + Sync>;

/// This node.
pub(crate) struct Member {
    pub(crate) link: Arc<Link>,
    pub(crate) market: Weak<CapabilityMarketplace>,
    pub(crate) shared: Arc<Shared>,
    pub(crate) serving: Arc<Serving>,
    pub(crate) describe: DescribeTool,
    /// The node says that it is gone.
    pub(crate) leaving: CancellationToken,
    /// Nothing is received any more.
    pub(crate) stop: CancellationToken,
    /// When it joined; see [`Lease::epoch`].
    pub(crate) epoch: AtomicU64,
    /// Whether another instance has taken its name.
    pub(crate) is_replaced: AtomicBool,
}

/// What a member needs of NATS.
pub(crate) struct Joined {
    buckets: Buckets,
    messages: Subscriber,
    leases: Subscriber,
}

impl Member {
    /// Connects, if that was not done, and prepares everything that can fail.
    ///
    /// # Errors
    /// See [`ClusterError`].
    pub(crate) async fn join(&self) -> Result<Joined, ClusterError> {
        self.link.connect().await?;
        let buckets = self.link.buckets().await?;
        let messages = self.link.receive().await.map_err(ClusterError::JetStream)?;
        let leases = self.link.subscribe(format!("$KV.{}.>", buckets.leases.name)).await;
        Ok(Joined { buckets, messages, leases: leases.map_err(ClusterError::JetStream)? })
    }

    /// Joins as soon as that is possible, and is a node until it is stopped.
    pub(crate) async fn join_later(self: Arc<Self>, tasks: TaskTracker) {
        let mut last = String::new();
        loop {
            tokio::select! {
                () = sleep(AGAIN) => {}
                () = self.stop.cancelled() => return,
            }
            match self.join().await {
                Ok(joined) => return self.serve(joined, &tasks),
                Err(error) => {
                    let text = error.to_string();
                    if !error.may_pass() && text != last {
                        tracing::error!(%error, "the cluster cannot be joined");
                    }
                    last = text;
                }
            }
        }
    }

    /// Is a node until it is stopped.
    pub(crate) fn serve(self: &Arc<Self>, joined: Joined, tasks: &TaskTracker) {
        let Joined { buckets, messages, leases } = joined;
        let (wanted, wants) = mpsc::channel(MAX_WAITING);
        tasks.spawn(Arc::clone(self).receive(messages));
        tasks.spawn(Arc::clone(self).hear(leases, wanted));
        tasks.spawn(Arc::clone(self).learn(buckets.clone(), wants));
        tasks.spawn(Keeper { member: Arc::clone(self), buckets, offer: Offer::default() }.keep());
    }

    /// Hands messages to their calls, in the order in which they come.
    async fn receive(self: Arc<Self>, mut messages: Subscriber) {
        while let Some(message) = next(&mut messages, &self.stop).await {
            let mut parts = message.subject.as_str().rsplitn(3, '.');
            let (last, what) = (parts.next().map(str::to_owned), parts.next().map(str::to_owned));
            match (what.as_deref(), last) {
                (Some("call"), Some(digest)) => self.serving.begin(&digest, message),
                (Some("in"), Some(token)) => self.link.deliver(&token, message),
                _ => {}
            }
        }
    }

    /// Takes the leases of the others.
    async fn hear(self: Arc<Self>, mut leases: Subscriber, wanted: mpsc::Sender<Lease>) {
        let mut connection = self.link.connection();
        let mut look = interval(LOOK);
        look.set_missed_tick_behavior(MissedTickBehavior::Delay);
        loop {
            tokio::select! {
                message = next(&mut leases, &self.stop) => {
                    let Some(message) = message else { return };
                    if let Some(lease) = self.heard(&message) {
                        // If too many wait, it is learned with the next lease.
                        drop(wanted.try_send(lease));
                    }
                }
                Ok(()) = connection.changed() => {
                    self.shared.change(|registry| {
                        registry.excuse(Instant::now());
                        false
                    });
                }
                // Without a connection, none can be heard.
                _ = look.tick() => if self.link.is_connected() {
                    self.shared.change(|registry| registry.expire(Instant::now()));
                }
            }
        }
    }

    /// Takes what was written into the bucket of leases. Returns the lease if its offer is not known.
    fn heard(&self, message: &Message) -> Option<Lease> {
        let is_end = message.headers.as_ref().is_some_and(|headers| {
            // Written when an entry is deleted or expires.
            headers.get("KV-Operation").is_some() || headers.get("Nats-Marker-Reason").is_some()
        });
        let node = message.subject.as_str().rsplit('.').next().unwrap_or_default();
        if is_end {
            self.shared.change(|registry| registry.forget(node));
            return None;
        }
        self.take(node, &message.payload)
    }

    /// Takes the lease that a node wrote in its place. Returns it if its offer is not known.
    fn take(&self, node: &str, lease: &[u8]) -> Option<Lease> {
        let lease = match Lease::read(lease) {
            Ok(lease) if lease.node != node => {
                tracing::warn!(
                    node,
                    named = lease.node,
                    "a node says that it is another one; it is ignored"
                );
                return None;
            }
            Ok(lease) => lease,
            Err(problem) => {
                tracing::debug!(problem, "a node cannot be understood");
                return None;
            }
        };
        if lease.node == self.link.settings.node {
            let own = self.epoch.load(Ordering::Relaxed);
            if own > 0 && lease.epoch > own && !self.is_replaced.swap(true, Ordering::Relaxed) {
                tracing::error!(
                    node = lease.node,
                    "another instance is this node of the cluster: this one offers nothing any more; give it a `cluster.node` of its own"
                );
            }
            return None;
        }
        let mut wants = false;
        self.shared.change(|registry| {
            let heard = registry.hear(lease.clone(), Instant::now());
            wants = heard.wants_offer;
            heard.is_news
        });
        wants.then_some(lease)
    }

    /// Reads the offers of the others.
    async fn learn(self: Arc<Self>, buckets: Buckets, mut wants: mpsc::Receiver<Lease>) {
        loop {
            tokio::select! {
                lease = wants.recv() => match lease {
                    Some(lease) => self.learn_of(&buckets, &lease).await,
                    None => return,
                },
                () = self.stop.cancelled() => return,
            }
        }
    }

    async fn learn_of(&self, buckets: &Buckets, lease: &Lease) {
        match read_offer(buckets, lease).await {
            Ok(offers) => {
                let (node, left_out) = (&lease.node, offers.left_out);
                if left_out > 0 {
                    tracing::warn!(node, left_out, "capabilities of a node cannot be served");
                }
                let capabilities = offers.capabilities.len();
                tracing::info!(node, capabilities, "a node of the cluster offers its capabilities");
                self.shared.change(|registry| registry.learn(node, &lease.offer, offers));
            }
            // It may just be written. It is read again with the next lease.
            Err(problem) => tracing::debug!(node = lease.node, problem, "an offer cannot be read"),
        }
    }

    /// What this node offers now.
    fn offers(&self) -> Offers {
        let Some(market) = self.market.upgrade() else { return Offers::default() };
        let snapshot = market.snapshot();
        let entries = snapshot.entries().iter().filter(|entry| {
            entry.manifest.provider.kind() != KIND && self.link.settings.shares(&entry.manifest.id)
        });
        let offered = entries.filter_map(|entry| {
            let task = entry.manifest.task_support();
            Some(Arc::new(Offered::new(entry.manifest.id.as_str(), (self.describe)(entry)?, task)))
        });
        Offers { capabilities: offered.collect(), left_out: 0 }
    }
}

/// The next message, until it is stopped.
async fn next(messages: &mut Subscriber, stop: &CancellationToken) -> Option<Message> {
    tokio::select! {
        biased;
        message = messages.next() => message,
        () = stop.cancelled() => None,
    }
}

/// Reads the offer that a lease names.
async fn read_offer(buckets: &Buckets, lease: &Lease) -> Result<Offers, String> {
    let mut text = BytesMut::new();
    for part in 0..lease.parts {
        let entry =
            buckets.offers.get(part_key(&lease.node, part)).await.map_err(|err| err.to_string())?;
        let entry = entry.ok_or("a part is missing")?;
        if text.len() + entry.len() > MAX_OFFER {
            return Err(format!("it has more than {MAX_OFFER} bytes"));
        }
        text.extend_from_slice(&entry);
    }
    if hex(digest(&SHA256, &text).as_ref()) != lease.offer {
        return Err("it is not the one that the lease names".to_owned());
    }
    Offers::read(&text)
}

fn part_key(node: &str, part: u32) -> String {
    format!("{node}.{part}")
}

/// Writes what this node says of itself.
struct Keeper {
    member: Arc<Member>,
    buckets: Buckets,
    offer: Offer,
}

/// The newest offer.
#[derive(Default)]
struct Offer {
    digest: String,
    /// When it was made; see [`Lease::since`].
    since: u64,
    parts: u32,
}

impl Keeper {
    async fn keep(mut self) {
        let member = Arc::clone(&self.member);
        let Some(mut changes) = member.market.upgrade().map(|market| market.changes()) else { return };
        let mut connection = member.link.connection();
        let (mut renew, mut refresh) = (interval(RENEW), interval(REFRESH));
        renew.set_missed_tick_behavior(MissedTickBehavior::Delay);
        refresh.reset();
        renew.reset();
        self.begin().await;
        loop {
            tokio::select! {
                biased;
                () = member.leaving.cancelled() => break,
                Ok(()) = connection.changed() => if *connection.borrow_and_update() {
                    self.begin().await;
                },
                _ = renew.tick() => self.renew().await,
                _ = refresh.tick() => self.say(true).await,
                Ok(()) = changes.changed() => {
                    self.say(false).await;
                    sleep(SETTLE).await;
                }
            }
        }
        if !member.is_replaced.load(Ordering::Relaxed) {
            drop(self.buckets.leases.delete(&member.link.settings.node).await);
        }
    }

    /// Says what there is, and learns who is there: at first, and after each time without a connection.
    async fn begin(&mut self) {
        self.say(true).await;
        if let Err(problem) = self.list().await {
            tracing::debug!(problem, "the nodes cannot be listed");
        }
        self.member.shared.learned();
    }

    /// Writes the offer, if it is another than before or `anew` is set, and the lease that names it.
    async fn say(&mut self, anew: bool) {
        let offers = self.member.offers();
        let text = offers.write();
        let digest = hex(digest(&SHA256, text.as_bytes()).as_ref());
        if digest == self.offer.digest && !anew {
            return;
        }
        let ids = offers.capabilities.iter().map(|one| (one.digest.clone(), one.id.clone()));
        self.member.serving.offer(ids.collect::<HashMap<_, _>>());
        self.member.shared.own(offers.capabilities.iter().map(|one| one.id.clone()).collect());
        if text.len() > MAX_OFFER {
            tracing::error!(
                "this node offers more than {MAX_OFFER} bytes of descriptions, which the others do not take"
            );
            return;
        }
        let is_new = digest != self.offer.digest;
        match self.write(text.into(), is_new.then_some(digest)).await {
            Ok(()) => self.renew().await,
            Err(problem) => {
                // The next lease tries again.
                self.offer.digest.clear();
                tracing::debug!(problem, "the offer cannot be written");
            }
        }
    }

    /// Writes the parts of an offer.
    async fn write(&mut self, text: Bytes, digest: Option<String>) -> Result<(), String> {
        let size = self.member.link.chunk();
        let (mut parts, mut since) = (0, 0);
        for start in (0..text.len()).step_by(size) {
            let part = text.slice(start..text.len().min(start + size));
            let key = part_key(&self.member.link.settings.node, parts);
            since = self.buckets.offers.put(key, part).await.map_err(|err| err.to_string())?;
            parts += 1;
        }
        for old in parts..self.offer.parts {
            let key = part_key(&self.member.link.settings.node, old);
            self.buckets.offers.purge(key).await.map_err(|err| err.to_string())?;
        }
        self.offer.parts = parts;
        // One that is only written again is not newer. After a loss of the bucket, it is older.
        if let Some(digest) = digest {
            (self.offer.digest, self.offer.since) = (digest, since);
        }
        self.offer.since = self.offer.since.min(since);
        let epoch = &self.member.epoch;
        if epoch.load(Ordering::Relaxed) == 0 || epoch.load(Ordering::Relaxed) > since {
            epoch.store(since, Ordering::Relaxed);
        }
        Ok(())
    }

    /// Says that this node is there.
    async fn renew(&mut self) {
        let member = &self.member;
        if member.is_replaced.load(Ordering::Relaxed) || !member.link.is_connected() {
            return;
        }
        if self.offer.digest.is_empty() {
            return Box::pin(self.say(true)).await;
        }
        let Some(market) = member.market.upgrade() else { return };
        let lease = Lease {
            v: VERSION,
            node: member.link.settings.node.clone(),
            epoch: member.epoch.load(Ordering::Relaxed),
            offer: self.offer.digest.clone(),
            since: self.offer.since,
            parts: self.offer.parts,
            running: market.running(),
            limit: market.snapshot().limits().max_concurrency,
        };
        let written = self.buckets.leases.put(&lease.node, lease.write().into()).await;
        if let Err(error) = written {
            tracing::debug!(%error, "the lease cannot be renewed");
        }
    }

    /// Learns who is there.
    async fn list(&self) -> Result<(), String> {
        let mut keys = self.buckets.leases.keys().await.map_err(|err| err.to_string())?;
        while let Some(node) = keys.next().await {
            let node = node.map_err(|err| err.to_string())?;
            let lease = self.buckets.leases.get(&node).await.map_err(|err| err.to_string())?;
            if let Some(lease) = lease.and_then(|lease| self.member.take(&node, &lease)) {
                self.member.learn_of(&self.buckets, &lease).await;
            }
        }
        Ok(())
    }
}
