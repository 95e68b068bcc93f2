//! This node as a member of the cluster: maintains its lease and its offer, and receives those of the
//! others.
//!
//! A member has four tasks. `receive` passes messages to their calls, `follow_leases` receives leases, the
//! learner reads offers, and `run` writes this node's lease and offer. No task waits for another, so a
//! slow answer of JetStream delays no call.

use std::collections::HashMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Weak};
use std::time::Duration;

use async_nats::{Message, Subscriber};
use bytes::Bytes;
use futures_util::StreamExt;
use orla_marketplace::{CapabilityMarketplace, Entry, millis_down};
use parking_lot::Mutex;
use ring::digest::{SHA256, digest};
use tokio::sync::{Notify, watch};
use tokio::time::{Instant, Interval, MissedTickBehavior, interval, sleep};
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use crate::call::Serving;
use crate::error::ClusterError;
use crate::inquiry::{self, Inquiries};
use crate::learner::{Learner, part_key};
use crate::link::{Buckets, Link};
use crate::orders;
use crate::presence::{LEASE, Lease, MAX_OFFER, Offered, Offers, VERSION};
use crate::provider::is_of_nodes;
use crate::settings::ClusterSettings;
use crate::shared::Shared;
use crate::store::ClusterStore;

/// How often the lease is renewed.
const RENEW: Duration = Duration::from_secs(3);
/// The interval between two searches for expired leases.
const CHECK_INTERVAL: Duration = Duration::from_secs(1);
/// How long after the time of a lease its last one is sent again, and the interval between two looks at that.
const REPEAT_INTERVAL: Duration = Duration::from_millis(500);
/// The pause between attempts to join.
const RETRY_INTERVAL: Duration = Duration::from_secs(2);
/// The least time between two offers of a node whose capabilities change all the time.
const SETTLE: Duration = Duration::from_millis(50);
/// How often an offer is written again, so that it is not removed as old.
const REFRESH: Duration = Duration::from_secs(6 * 3600);

/// A capability as other nodes see it: an MCP tool in JSON. `None` if they do not see it.
pub(crate) type DescribeTool = Arc<dyn Fn(&Entry) -> Option<String> + Send + Sync>;

/// This node.
pub(crate) struct Member {
    pub(crate) link: Arc<Link>,
    pub(crate) market: Weak<CapabilityMarketplace>,
    pub(crate) shared: Arc<Shared>,
    pub(crate) serving: Arc<Serving>,
    pub(crate) inquiries: Arc<Inquiries>,
    pub(crate) store: ClusterStore,
    pub(crate) describe: DescribeTool,
    /// Cancelled when the node announces that it leaves.
    pub(crate) leaving: CancellationToken,
    /// Cancelled when no more messages are received.
    pub(crate) stop: CancellationToken,
    /// When it joined; see [`Lease::epoch`].
    pub(crate) epoch: AtomicU64,
    pub(crate) learner: Learner,
    /// An older instance has written in this node's place.
    pub(crate) contested: Notify,
}

/// The NATS objects that a member needs.
pub(crate) struct Joined {
    buckets: Buckets,
    messages: Subscriber,
    leases: Subscriber,
    orders: Subscriber,
}

impl Member {
    /// Connects, if that was not done, and prepares everything that can fail.
    ///
    /// # Errors
    ///
    /// See [`ClusterError`].
    pub(crate) async fn join(&self) -> Result<Joined, ClusterError> {
        self.link.connect().await?;
        let buckets = self.link.buckets().await?;
        let messages = self.link.receive().await.map_err(ClusterError::JetStream)?;
        let leases = self.link.subscribe(format!("$KV.{}.>", buckets.leases.name)).await;
        let leases = leases.map_err(ClusterError::JetStream)?;
        let orders = orders::receive(&self.link).await.map_err(ClusterError::JetStream)?;
        Ok(Joined { buckets, messages, leases, orders })
    }

    /// Joins as soon as that is possible, and is a node until it is stopped.
    pub(crate) async fn join_later(self: Arc<Self>, tasks: TaskTracker, mut last: String) {
        loop {
            let joined = tokio::select! {
                joined = self.join() => joined,
                () = self.stop.cancelled() => return,
            };
            match joined {
                Ok(joined) => {
                    tracing::info!("the cluster is joined");
                    return self.serve(joined, &tasks);
                }
                Err(error) => {
                    let text = error.to_string();
                    if text != last && error.may_pass() {
                        tracing::warn!(%error, "the cluster cannot be joined yet");
                    } else if text != last {
                        tracing::error!(%error, "the cluster cannot be joined");
                    }
                    last = text;
                }
            }
            tokio::select! {
                () = sleep(RETRY_INTERVAL) => {}
                () = self.stop.cancelled() => return,
            }
        }
    }

    /// Is a node until it is stopped.
    pub(crate) fn serve(self: &Arc<Self>, joined: Joined, tasks: &TaskTracker) {
        let Joined { buckets, messages, leases, orders } = joined;
        tasks.spawn(Arc::clone(self).receive(messages));
        tasks.spawn(Arc::clone(self).follow_leases(leases));
        tasks.spawn(Arc::clone(self).learn(buckets.clone()));
        tasks.spawn(Arc::clone(self).follow_orders(orders));
        tasks.spawn(Keeper::new(self, buckets).run());
    }

    /// Passes messages to their calls, in the order of arrival.
    async fn receive(self: Arc<Self>, mut messages: Subscriber) {
        while let Some(message) = next(&mut messages, &self.stop).await {
            self.dispatch(message);
        }
    }

    /// Passes a message to its call, by the end of its subject.
    pub(crate) fn dispatch(&self, message: Message) {
        let mut parts = message.subject.as_str().rsplitn(3, '.');
        let (last, what) = (parts.next().map(str::to_owned), parts.next().map(str::to_owned));
        match (what.as_deref(), last.as_deref()) {
            (Some("call"), Some(digest)) => self.serving.begin(digest, message),
            (Some("ask"), Some(inquiry::VERSION)) => self.inquiries.receive(message),
            (Some("in"), Some(token)) => self.link.deliver(token, message),
            _ => {}
        }
    }

    /// Takes the leases of the others.
    async fn follow_leases(self: Arc<Self>, mut leases: Subscriber) {
        let mut connection = self.link.connection();
        let mut ticker = interval(CHECK_INTERVAL);
        ticker.set_missed_tick_behavior(MissedTickBehavior::Delay);
        loop {
            tokio::select! {
                message = next(&mut leases, &self.stop) => {
                    let Some(message) = message else { return };
                    self.on_lease(&message);
                }
                Ok(()) = connection.changed() => {
                    self.shared.change(|registry| {
                        registry.restart_leases(Instant::now());
                        false
                    });
                }
                // Without a connection, no lease can arrive.
                _ = ticker.tick() => if self.link.is_connected() {
                    self.shared.change(|registry| registry.expire(Instant::now()));
                }
            }
        }
    }

    /// Takes in a message of the lease bucket.
    fn on_lease(&self, message: &Message) {
        let is_end = message.headers.as_ref().is_some_and(|headers| {
            // Written when an entry is deleted or expires.
            headers.get("KV-Operation").is_some() || headers.get("Nats-Marker-Reason").is_some()
        });
        let node = message.subject.as_str().rsplit('.').next().unwrap_or_default();
        if is_end {
            self.shared.change(|registry| registry.forget(node));
            return;
        }
        self.apply_lease(node, &message.payload);
    }

    /// Takes the lease that a node wrote in its place.
    pub(crate) fn apply_lease(&self, node: &str, lease: &[u8]) {
        let lease = match Lease::read(lease) {
            Ok(lease) if lease.node != node => {
                return tracing::warn!(
                    node,
                    named = lease.node,
                    "a node says that it is another one; it is ignored"
                );
            }
            Ok(lease) => lease,
            Err(problem) => return tracing::debug!(problem, "a node cannot be understood"),
        };
        if lease.node == self.link.settings.node {
            return self.resolve_name_conflict(&lease);
        }
        let mut wants = false;
        self.shared.change(|registry| {
            let update = registry.apply_lease(lease.clone(), Instant::now());
            wants = update.wants_offer;
            update.is_news
        });
        if wants {
            self.learner.request(lease);
        }
    }

    /// Ends this instance, or renews its lease, if another instance has a lease with its name.
    fn resolve_name_conflict(&self, lease: &Lease) {
        let own = self.epoch.load(Ordering::Relaxed);
        if lease.instance == self.link.instance || own == 0 {
            return;
        }
        if lease.epoch < own {
            // It is overwritten, before others take it for this one.
            self.contested.notify_one();
        } else if !self.shared.replaced.is_cancelled() {
            self.shared.replaced.cancel();
            tracing::error!(
                node = lease.node,
                "another instance uses the name of this node: this instance offers no more capabilities; give it a `cluster.node` of its own"
            );
        }
    }

    /// Reads the offers of the others.
    async fn learn(self: Arc<Self>, buckets: Buckets) {
        let learning = self.learner.learn(&buckets, |node, lease| self.apply_lease(node, lease));
        tokio::select! {
            () = learning => {}
            () = self.stop.cancelled() => {}
        }
    }

    /// Follows the orders to this node.
    async fn follow_orders(self: Arc<Self>, orders: Subscriber) {
        tokio::select! {
            () = orders::follow(&self.link, &self.shared, orders) => {}
            () = self.stop.cancelled() => {}
        }
    }

    /// Returns the current offer of this node.
    fn offers(&self) -> Offers {
        let Some(market) = self.market.upgrade() else { return Offers::default() };
        let snapshot = market.snapshot();
        let entries = snapshot.entries().iter();
        let offered = entries.filter_map(|entry| offered(&self.link.settings, &self.describe, entry));
        Offers { capabilities: offered.map(Arc::new).collect(), left_out: 0 }
    }
}

/// Returns a capability of this node as it offers it; `None` if it is of another node or not shared.
pub(crate) fn offered(
    settings: &ClusterSettings,
    describe: &DescribeTool,
    entry: &Entry,
) -> Option<Offered> {
    let manifest = &entry.manifest;
    if is_of_nodes(&manifest.provider) || !settings.shares(&manifest.id) {
        return None;
    }
    let tool = describe(entry)?;
    let limit = entry.policy.timeout.or_else(|| manifest.provider.timeout()).map(millis_down);
    Some(Offered::new(manifest.id.as_str(), tool, manifest.task_support(), limit))
}

/// Returns the next message, until it is stopped.
async fn next(messages: &mut Subscriber, stop: &CancellationToken) -> Option<Message> {
    tokio::select! {
        biased;
        message = messages.next() => message,
        () = stop.cancelled() => None,
    }
}

/// Writes the lease and the offer of this node.
struct Keeper {
    member: Arc<Member>,
    buckets: Buckets,
    offer: Offer,
    newest: Arc<NewestLease>,
    /// Whether the last write is known to be made.
    is_written: bool,
    failures: LeaseFailures,
    changes: watch::Receiver<u64>,
    connection: watch::Receiver<bool>,
    draining: watch::Receiver<bool>,
    renew: Interval,
    refresh: Interval,
}

/// The newest offer.
#[derive(Default)]
struct Offer {
    digest: String,
    /// When it was made; see [`Lease::since`].
    since: u64,
    parts: u32,
}

/// The newest lease of this node, and when it was sent.
#[derive(Debug, Default)]
struct NewestLease(Mutex<Option<(Bytes, Instant)>>);

/// How long all writes have failed.
#[derive(Debug, Default)]
struct LeaseFailures {
    since: Option<Instant>,
    is_reported: bool,
}

impl Keeper {
    fn new(member: &Arc<Member>, buckets: Buckets) -> Self {
        let (mut renew, mut refresh) = (interval(RENEW), interval(REFRESH));
        renew.set_missed_tick_behavior(MissedTickBehavior::Delay);
        refresh.reset();
        renew.reset();
        let market = member.market.upgrade();
        Self {
            member: Arc::clone(member),
            buckets,
            offer: Offer::default(),
            newest: Arc::default(),
            is_written: false,
            failures: LeaseFailures::default(),
            changes: market.map_or_else(|| watch::Sender::new(0).subscribe(), |market| market.changes()),
            connection: member.link.connection(),
            draining: member.shared.draining(),
            renew,
            refresh,
        }
    }

    async fn run(mut self) {
        let member = Arc::clone(&self.member);
        let (newest, leases) = (Arc::clone(&self.newest), self.buckets.leases.name.clone());
        let running = async {
            self.begin().await;
            loop {
                self.step().await;
            }
        };
        tokio::select! {
            biased;
            () = member.leaving.cancelled() => {}
            () = member.shared.replaced.cancelled() => return,
            () = running => {}
            () = newest.repeat(&member.link, &leases) => {}
        }
        drop(self.buckets.leases.delete(&member.link.settings.node).await);
    }

    /// Does the next piece of work.
    async fn step(&mut self) {
        tokio::select! {
            biased;
            Ok(()) = self.connection.changed() => if *self.connection.borrow_and_update() {
                self.begin().await;
            },
            _ = self.renew.tick() => self.renew().await,
            _ = self.refresh.tick() => self.announce(true).await,
            () = self.member.contested.notified() => {
                self.announce(true).await;
                sleep(SETTLE).await;
            }
            Ok(()) = self.draining.changed() => self.renew().await,
            Ok(()) = self.changes.changed() => {
                self.announce(false).await;
                sleep(SETTLE).await;
            }
        }
    }

    /// Writes the offer and reads which nodes are present: at first, and after each loss of the
    /// connection.
    async fn begin(&mut self) {
        self.announce(true).await;
        self.member.learner.request_list();
    }

    /// Writes the offer, if it is another than before or `is_forced` is set, and the lease that names it.
    async fn announce(&mut self, is_forced: bool) {
        let offers = self.member.offers();
        let text = offers.write();
        let digest = hex::encode(digest(&SHA256, text.as_bytes()).as_ref());
        if digest == self.offer.digest && self.is_written && !is_forced {
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
        self.is_written = false;
        match self.write(text.into(), digest).await {
            Ok(()) => {
                self.is_written = true;
                self.renew().await;
            }
            Err(problem) => self.failed(&problem).await,
        }
    }

    /// Writes the parts of an offer.
    async fn write(&mut self, text: Bytes, digest: String) -> Result<(), String> {
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
        // A rewritten offer is not newer. After a loss of the bucket, it is older.
        if digest != self.offer.digest {
            (self.offer.digest, self.offer.since) = (digest, since);
        }
        self.offer.since = self.offer.since.min(since);
        let epoch = &self.member.epoch;
        if epoch.load(Ordering::Relaxed) == 0 || epoch.load(Ordering::Relaxed) > since {
            epoch.store(since, Ordering::Relaxed);
        }
        Ok(())
    }

    /// Writes a heartbeat.
    async fn renew(&mut self) {
        let member = &self.member;
        if !member.link.is_connected() {
            return;
        }
        let Some(market) = member.market.upgrade() else { return };
        let lease = Lease {
            v: VERSION,
            node: member.link.settings.node.clone(),
            instance: member.link.instance.clone(),
            epoch: member.epoch.load(Ordering::Relaxed),
            offer: self.offer.digest.clone(),
            since: self.offer.since,
            parts: self.offer.parts,
            running: market.running(),
            limit: market.snapshot().limits().max_concurrency,
            draining: member.shared.is_draining(),
            stuck_ms: member.store.stuck().map(millis_down),
        };
        let text = Bytes::from(lease.write());
        if !self.is_written {
            self.newest.change(text);
            return Box::pin(self.announce(true)).await;
        }
        self.newest.set(text.clone(), Instant::now());
        match self.buckets.leases.put(&lease.node, text).await {
            Ok(_) => {
                if self.failures.record_success() {
                    tracing::info!("JetStream takes the leases of this node again");
                }
            }
            Err(error) => {
                self.is_written = false;
                self.failed(&error.to_string()).await;
            }
        }
    }

    /// Prepares the next attempt: a NATS server that lost its data has no buckets.
    async fn failed(&mut self, problem: &str) {
        tracing::debug!(problem, "what this node offers cannot be written");
        if self.failures.record_failure(Instant::now()) {
            tracing::warn!(
                problem,
                "JetStream takes no lease of this node: nodes that join now do not learn what it offers"
            );
        }
        match self.member.link.buckets().await {
            Ok(buckets) => self.buckets = buckets,
            Err(error) => tracing::debug!(%error, "the buckets cannot be opened"),
        }
    }
}

impl NewestLease {
    fn set(&self, lease: Bytes, now: Instant) {
        *self.0.lock() = Some((lease, now));
    }

    /// Changes what is sent again, if there is anything.
    fn change(&self, lease: Bytes) {
        if let Some((newest, _)) = &mut *self.0.lock() {
            *newest = lease;
        }
    }

    /// Returns the lease if it is to be sent again, because no other one follows it in time.
    fn overdue(&self, now: Instant) -> Option<Bytes> {
        let mut newest = self.0.lock();
        let (lease, sent) = newest.as_mut()?;
        if now.saturating_duration_since(*sent) < RENEW + REPEAT_INTERVAL {
            return None;
        }
        *sent = now;
        Some(lease.clone())
    }

    /// Sends the lease again while the next one cannot be written, such as while JetStream chooses a leader. The other nodes
    /// receive the message all the same.
    async fn repeat(&self, link: &Link, bucket: &str) {
        let subject = format!("$KV.{bucket}.{}", link.settings.node);
        let mut ticker = interval(REPEAT_INTERVAL);
        ticker.set_missed_tick_behavior(MissedTickBehavior::Delay);
        loop {
            ticker.tick().await;
            let Some(client) = link.client().filter(|_| link.is_connected()) else { continue };
            if let Some(lease) = self.overdue(Instant::now()) {
                drop(client.publish(subject.clone(), lease).await);
            }
        }
    }
}

impl LeaseFailures {
    /// Records a failed attempt. Returns whether all have failed for the time of a lease now, which is reported
    /// once.
    fn record_failure(&mut self, now: Instant) -> bool {
        let since = *self.since.get_or_insert(now);
        now.saturating_duration_since(since) >= LEASE && !std::mem::replace(&mut self.is_reported, true)
    }

    /// Records a successful attempt. Returns whether a failure had been reported.
    fn record_success(&mut self) -> bool {
        std::mem::take(self).is_reported
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_lease_is_repeated_until_the_next_one_is_sent() {
        let (newest, now, late) = (NewestLease::default(), Instant::now(), RENEW + REPEAT_INTERVAL);
        assert_eq!(newest.overdue(now), None);
        newest.set(Bytes::from_static(b"1"), now);
        assert_eq!(newest.overdue(now + RENEW), None);
        assert_eq!(newest.overdue(now + late), Some(Bytes::from_static(b"1")));
        assert_eq!(newest.overdue(now + late + RENEW), None);
        newest.set(Bytes::from_static(b"2"), now + late * 2);
        assert_eq!(newest.overdue(now + late * 2), None);
        assert_eq!(newest.overdue(now + late * 3), Some(Bytes::from_static(b"2")));
        newest.change(Bytes::from_static(b"3"));
        assert_eq!(newest.overdue(now + late * 3), None, "it was just sent");
        assert_eq!(newest.overdue(now + late * 4), Some(Bytes::from_static(b"3")));
        assert!((late + REPEAT_INTERVAL) * 2 < LEASE, "one message may be lost");
    }

    #[test]
    fn a_failing_lease_is_reported_once() {
        let (mut failures, now) = (LeaseFailures::default(), Instant::now());
        assert!(!failures.record_failure(now) && !failures.record_failure(now + LEASE / 2));
        assert!(failures.record_failure(now + LEASE) && !failures.record_failure(now + LEASE * 2));
        assert!(failures.record_success() && !failures.record_success());
        assert!(!failures.record_failure(now + LEASE * 3));
    }
}
