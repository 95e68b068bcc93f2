//! Counts that hold over all nodes: quotas, and places among the calls of a capability.
//!
//! # How it works
//!
//! A count is one record of the store. It contains the amount taken from its bucket and the places of
//! each node. Nodes change the record by compare-and-set, so no place is given to two calls. One task of
//! each node (`serve`) does this for all calls of the node: requests that arrive meanwhile go into the
//! next batch. [`Ledger`] holds the known records and decides; it does no I/O.
//!
//! A node with places also has a record of its life, which it renews. The places of a life without a
//! record are free. Other nodes remove the record when it has not changed for a lease, after they have
//! asked NATS for the newest state. A node that cannot renew its record ends its calls with places
//! earlier.
//!
//! # Invariants
//!
//! - Never more calls run than a count has places, even if nodes crash, are suspended or lose their
//!   connection (`simulation`, and property-tested in `tests`).
//! - A call that cannot be counted is refused.
//!
//! # What is deliberately absent
//!
//! Clocks of nodes. Buckets are refilled by the clock of NATS.

mod ledger;
mod record;
#[cfg(test)]
mod simulation;
#[cfg(test)]
mod tests;

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use async_trait::async_trait;
use orla_marketplace::{Claim, Count, CountedRule, NotTaken, Permits, Taken};
use orla_state::{Change, Expect, Pages, Revision, StateError, StateStore, WriteError};
use parking_lot::Mutex;
use tokio::sync::broadcast::Receiver;
use tokio::sync::broadcast::error::RecvError;
use tokio::sync::{Notify, mpsc, oneshot, watch};
use tokio::time::{Instant, MissedTickBehavior, interval, sleep_until, timeout};
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use ledger::{COUNTS, LIVES, Ledger, OWN_LEASE, Plan};

/// The prefix of all records.
const ALL: &str = "limit/";
/// The interval between two heartbeats of a node that has places.
const RENEW_INTERVAL: Duration = Duration::from_secs(3);
/// The interval between two checks for pending work.
const TICK: Duration = Duration::from_secs(1);
/// How long a call waits for NATS.
const NATS_TIMEOUT: Duration = Duration::from_secs(2);
/// After this time without a place, a node stops its heartbeats.
const IDLE_TIMEOUT: Duration = Duration::from_secs(30);
/// How often counts that no longer matter are removed, and how many at once.
const SWEEP: (Duration, usize) = (Duration::from_secs(60), 500);
/// The maximum number of claims that are decided at once, and the most records that are corrected
/// besides.
const BATCH: usize = 400;
/// How many records are read at once.
const PAGE: usize = 1000;
/// The maximum number of requests that wait for a decision.
const MAX_REQUESTS: usize = 8192;

/// The current time of the NATS clock, if it is known.
pub(crate) type NatsClock = Arc<dyn Fn() -> Option<Duration> + Send + Sync>;

/// Counts over all nodes of the cluster.
pub(crate) struct ClusterPermits {
    requests: mpsc::Sender<Request>,
    releases: Arc<Releases>,
    node: String,
    /// Taken by the task that serves.
    receiver: Mutex<Option<mpsc::Receiver<Request>>>,
    ledger: Arc<Mutex<Ledger>>,
    changes: watch::Sender<u64>,
    now: NatsClock,
    is_served: AtomicBool,
}

/// Places that were given back and are not in the records yet: no more than there were places.
#[derive(Default)]
struct Releases {
    queue: Mutex<Vec<HeldPlaces>>,
    arrived: Notify,
}

/// A call to count.
struct Request {
    claims: Vec<Claim>,
    answer: oneshot::Sender<Result<Taken, NotTaken>>,
}

/// Places that are given back.
struct HeldPlaces {
    names: Vec<String>,
    life: String,
}

/// The places of a call.
struct Places {
    places: Option<HeldPlaces>,
    releases: Arc<Releases>,
}

impl Drop for Places {
    fn drop(&mut self) {
        // Without the task that serves, the places end with this life of the node.
        self.releases.queue.lock().extend(self.places.take());
        self.releases.arrived.notify_one();
    }
}

/// The life of this node for others, from its first place on.
struct Life {
    name: String,
    revision: Revision,
    /// When it must have been renewed again.
    until: watch::Sender<Instant>,
    renewed: Instant,
    /// When it had a place last.
    used: Instant,
    /// Cancelled when its places are lost.
    lost: CancellationToken,
}

impl Life {
    /// A life whose record was written, by a write that began then.
    fn new(name: String, revision: Revision, renewed: Instant, tracker: &TaskTracker) -> Self {
        let (until, mut watched) = watch::channel(renewed + OWN_LEASE);
        let lost = CancellationToken::new();
        let ends = lost.clone();
        // Also while a write hangs.
        tracker.spawn(async move {
            loop {
                let at = *watched.borrow_and_update();
                tokio::select! {
                    // A renewal that is known counts, however late this runs.
                    biased;
                    changed = watched.changed() => if changed.is_err() { break },
                    () = sleep_until(at) => break,
                }
            }
            ends.cancel();
        });
        Self { name, revision, until, renewed, used: renewed, lost }
    }

    fn renewed(&mut self, revision: Revision, at: Instant) {
        (self.revision, self.renewed) = (revision, at);
        self.until.send_replace(at + OWN_LEASE);
    }

    fn is_over(&self) -> bool {
        self.lost.is_cancelled() || self.renewed.elapsed() >= OWN_LEASE
    }
}

impl ClusterPermits {
    pub(crate) fn new(node: &str, now: NatsClock) -> Arc<Self> {
        let (requests, receiver) = mpsc::channel(MAX_REQUESTS);
        Arc::new(Self {
            requests,
            releases: Arc::default(),
            node: node.to_owned(),
            receiver: Mutex::new(Some(receiver)),
            ledger: Arc::default(),
            changes: watch::Sender::new(0),
            now,
            is_served: AtomicBool::new(false),
        })
    }

    /// Counts for this node until it is stopped.
    pub(crate) async fn serve(self: Arc<Self>, store: Arc<dyn StateStore>, stop: CancellationToken) {
        let (Some(requests), Some(changed)) = (self.receiver.lock().take(), store.changed_keys()) else {
            return;
        };
        self.is_served.store(true, Ordering::Release);
        let server = PermitServer {
            permits: Arc::clone(&self),
            store,
            life: None,
            is_read: false,
            swept: Instant::now(),
            tracker: TaskTracker::new(),
        };
        server.serve(requests, changed, stop).await;
    }

    /// Returns the places that nodes have.
    pub(crate) fn places(&self) -> BTreeMap<String, usize> {
        self.ledger.lock().places()
    }

    fn bump(&self) {
        self.changes.send_modify(|number| *number += 1);
    }
}

#[async_trait]
impl Permits for ClusterPermits {
    async fn take(self: Arc<Self>, claims: Vec<Claim>) -> Result<Taken, NotTaken> {
        let unavailable = |why: &str| NotTaken::Unavailable(why.to_owned());
        if !self.is_served.load(Ordering::Acquire) {
            return Err(unavailable("this process has not joined it"));
        }
        if (self.now)().is_none() {
            return Err(unavailable("there is no connection to NATS"));
        }
        let (answer, answered) = oneshot::channel();
        if self.requests.try_send(Request { claims, answer }).is_err() {
            return Err(unavailable("too many calls wait for it"));
        }
        answered.await.unwrap_or_else(|_| Err(unavailable("this node ends")))
    }

    fn changes(&self) -> watch::Receiver<u64> {
        self.changes.subscribe()
    }

    fn count_of(&self, claim: &Claim) -> Count {
        self.ledger.lock().count(&claim.name())
    }

    fn counts_of(&self, rule: &CountedRule) -> Vec<(String, Count)> {
        self.ledger.lock().counts_of(rule.id())
    }

    fn now(&self) -> Duration {
        (self.now)().unwrap_or_default()
    }
}

/// Handles the requests of this node's calls.
struct PermitServer {
    permits: Arc<ClusterPermits>,
    store: Arc<dyn StateStore>,
    life: Option<Life>,
    /// Whether the records have been read.
    is_read: bool,
    swept: Instant,
    tracker: TaskTracker,
}

impl PermitServer {
    async fn serve(
        mut self,
        mut requests: mpsc::Receiver<Request>,
        mut changed: Receiver<Arc<str>>,
        stop: CancellationToken,
    ) {
        let mut ticker = interval(TICK);
        ticker.set_missed_tick_behavior(MissedTickBehavior::Delay);
        let releases = Arc::clone(&self.permits.releases);
        loop {
            let mut batch = Vec::new();
            tokio::select! {
                // Each of these is soon over, so the later ones do not wait long.
                biased;
                () = stop.cancelled() => break,
                _ = ticker.tick() => self.tick().await,
                key = changed.recv() => match key {
                    Ok(key) => {
                        self.on_changed_key(&key).await;
                        continue;
                    }
                    Err(RecvError::Lagged(_)) => {
                        self.is_read = false;
                        continue;
                    }
                    Err(RecvError::Closed) => break,
                },
                () = releases.arrived.notified() => {}
                Some(request) = requests.recv() => batch.push(request),
            }
            let released = std::mem::take(&mut *releases.queue.lock());
            released.iter().for_each(|places| self.release(places));
            let mut claims: usize = batch.iter().map(|request| request.claims.len()).sum();
            while claims < BATCH
                && let Ok(request) = requests.try_recv()
            {
                claims += request.claims.len();
                batch.push(request);
            }
            // A caller that has gone needs no place.
            batch.retain(|request| !request.answer.is_closed());
            self.decide(batch).await;
        }
        // Its places are free at once.
        if let Some(life) = self.life.take() {
            self.remove_life(&life.name, life.revision).await;
        }
        self.tracker.close();
        self.tracker.wait().await;
    }

    /// Takes note of a record that has changed.
    async fn on_changed_key(&mut self, key: &str) {
        if key.starts_with(ALL) {
            if self.refresh(key).await.is_err() {
                self.is_read = false;
            }
            self.permits.bump();
        }
    }

    async fn refresh(&self, key: &str) -> Result<(), StateError> {
        let record = self.store.get(key).await?;
        let record = record.as_ref().map(|record| (record.revision, &*record.value));
        self.permits.ledger.lock().apply_record(key, record, Instant::now());
        let Some(name) = key.strip_prefix(COUNTS) else { return Ok(()) };
        // The first count that names a life and the record of the life are written together. The record
        // may not have arrived yet.
        let missing = self.permits.ledger.lock().missing_lives(name);
        for life in missing {
            let key = format!("{LIVES}{life}");
            let record = self.store.get(&key).await?;
            let record = record.as_ref().map(|record| (record.revision, &*record.value));
            self.permits.ledger.lock().apply_record(&key, record, Instant::now());
        }
        Ok(())
    }

    /// Reads all records.
    async fn read(&mut self) -> Result<(), StateError> {
        let mut stale_keys = self.permits.ledger.lock().keys();
        let mut pages = Pages::below(&*self.store, ALL, PAGE);
        loop {
            let page = pages.next().await?;
            if page.is_empty() {
                break;
            }
            let now = Instant::now();
            let mut ledger = self.permits.ledger.lock();
            for record in page {
                ledger.apply_record(&record.key, Some((record.revision, &record.value)), now);
            }
        }
        stale_keys.sort_unstable();
        for key in stale_keys {
            self.refresh(&key).await?;
        }
        // The counts that were created while the pages were read.
        let names = self.permits.ledger.lock().keys();
        for key in names.iter().filter(|key| key.starts_with(COUNTS)) {
            self.refresh(key).await?;
        }
        self.is_read = true;
        self.permits.bump();
        Ok(())
    }

    fn release(&self, released: &HeldPlaces) {
        if let Some(life) = self.life.as_ref().filter(|life| life.name == released.life) {
            let mut ledger = self.permits.ledger.lock();
            if ledger.own_life.as_ref() == Some(&life.name) {
                ledger.release(&released.names);
            }
        }
    }

    /// Does the periodic work.
    async fn tick(&mut self) {
        let Some(now) = (self.permits.now)() else {
            // Wakes the waiting calls.
            self.permits.bump();
            self.end_if_lost();
            return;
        };
        if !self.is_read && self.read().await.is_err() {
            return;
        }
        self.end_if_lost();
        self.renew_life().await;
        self.expire_lives().await;
        if self.swept.elapsed() >= SWEEP.0 {
            self.swept = Instant::now();
            let unused = self.permits.ledger.lock().unused(now, SWEEP.1);
            for change in unused {
                let key = change.key.clone();
                // Another node may use or remove it just now.
                if !matches!(self.write(vec![change]).await, Err(WriteError::Failed(_))) {
                    drop(self.refresh(&key).await);
                }
            }
        }
    }

    async fn write(&self, changes: Vec<Change>) -> Result<Vec<Revision>, WriteError> {
        match timeout(NATS_TIMEOUT, self.store.write(changes)).await {
            Ok(written) => written,
            Err(_) => Err(StateError::new("NATS does not answer").into()),
        }
    }

    /// Writes a heartbeat, if this node has places.
    async fn renew_life(&mut self) {
        let is_idle = self.permits.ledger.lock().is_idle();
        let Some(life) = &mut self.life else { return };
        if !is_idle {
            life.used = Instant::now();
        }
        if life.used.elapsed() >= IDLE_TIMEOUT {
            let (name, revision) = (life.name.clone(), life.revision);
            self.end();
            return self.remove_life(&name, revision).await;
        }
        if life.renewed.elapsed() < RENEW_INTERVAL {
            return;
        }
        let (begun, key) = (Instant::now(), format!("{LIVES}{}", life.name));
        let renewal = Change::put(key, ledger::life_of(&self.permits.node))
            .expecting(Expect::Revision(life.revision));
        match self.write(vec![renewal]).await {
            Ok(revisions) => {
                if let (Some(life), Some(revision)) = (&mut self.life, revisions.first()) {
                    life.renewed(*revision, begun);
                }
            }
            // Others hold it for gone. Its places are free.
            Err(WriteError::Conflict { .. }) => self.check_renewal().await,
            Err(WriteError::Failed(error)) => {
                tracing::debug!(%error, "this node cannot say that its calls run");
            }
        }
    }

    /// The record of this life is not as it was left: a beat without an answer has been taken, or it is gone.
    async fn check_renewal(&mut self) {
        let Some(name) = self.life.as_ref().map(|life| life.name.clone()) else { return };
        drop(self.refresh(&format!("{LIVES}{name}")).await);
        let revision = self.permits.ledger.lock().life(&name);
        match (revision, &mut self.life) {
            // The next beat counts.
            (Some(revision), Some(life)) => life.revision = revision,
            _ => self.end(),
        }
    }

    /// Gives up the places of this life if its record could not be renewed.
    fn end_if_lost(&mut self) {
        if self.life.as_ref().is_some_and(Life::is_over) {
            tracing::warn!(
                "this node could not be heard in the cluster: its calls with a place there have ended"
            );
            // Other nodes free the places when the lease is over, because the calls here may take a
            // moment to end.
            self.end();
        }
    }

    /// The life of this node is over.
    fn end(&mut self) {
        if let Some(life) = self.life.take() {
            life.lost.cancel();
        }
        self.permits.ledger.lock().end_life();
    }

    async fn remove_life(&self, name: &str, revision: Revision) {
        let removal = Change::remove(format!("{LIVES}{name}")).expecting(Expect::Revision(revision));
        // If it is not removed, others find that it is gone.
        drop(self.write(vec![removal]).await);
        drop(self.refresh(&format!("{LIVES}{name}")).await);
        self.permits.bump();
    }

    /// Finds nodes that are gone, and frees their places.
    async fn expire_lives(&mut self) {
        let cutoff = Instant::now();
        if self.permits.ledger.lock().expired_lives(cutoff).is_empty() {
            return;
        }
        // Heartbeats of the other nodes may not have arrived here yet.
        if !matches!(timeout(NATS_TIMEOUT, self.store.sync()).await, Ok(Ok(()))) {
            return;
        }
        let expired = self.permits.ledger.lock().expired_lives(cutoff);
        for (life, revision) in expired {
            if self.refresh(&format!("{LIVES}{life}")).await.is_err() {
                return;
            }
            if self.permits.ledger.lock().life(&life) == Some(revision) {
                self.remove_life(&life, revision).await;
            }
        }
    }

    /// Decides about calls, and corrects records.
    async fn decide(&mut self, batch: Vec<Request>) {
        if batch.is_empty() && !self.permits.ledger.lock().is_stale() {
            return;
        }
        self.end_if_lost();
        let (mut takes, mut answers) = (Vec::new(), Vec::new());
        for Request { claims, answer } in batch {
            takes.push(claims);
            answers.push(answer);
        }
        let decided = match timeout(NATS_TIMEOUT, self.admit(&takes)).await {
            Ok(decided) => decided,
            Err(_) => Err("NATS does not answer".to_owned()),
        };
        match decided {
            Ok(results) => {
                for ((answer, result), claims) in answers.into_iter().zip(results).zip(&takes) {
                    let taken = result.map(|()| self.places_of(claims));
                    // If the caller has gone, dropping the value gives its places back.
                    drop(answer.send(taken));
                }
            }
            Err(why) => {
                for answer in answers {
                    drop(answer.send(Err(NotTaken::Unavailable(why.clone()))));
                }
            }
        }
    }

    /// Returns the places of an admitted call.
    fn places_of(&self, claims: &[Claim]) -> Taken {
        let bounded = claims.iter().filter(|claim| claim.bounds_running());
        let names: Vec<String> = bounded.map(Claim::name).collect();
        let Some(life) = self.life.as_ref().filter(|_| !names.is_empty()) else {
            return Taken::default();
        };
        let places = Some(HeldPlaces { names, life: life.name.clone() });
        Taken::holding(Places { places, releases: Arc::clone(&self.permits.releases) })
            .until(life.lost.clone())
    }

    /// Decides whether each of these claims gets its places.
    ///
    /// # Errors
    ///
    /// Returns why nothing could be decided. Places may have been taken in the records, and are
    /// corrected later.
    async fn admit(&mut self, takes: &[Vec<Claim>]) -> Result<Vec<Result<(), NotTaken>>, String> {
        let offline = || "there is no connection to NATS".to_owned();
        let unreadable = |error: StateError| error.to_string();
        if !self.is_read {
            self.read().await.map_err(unreadable)?;
        }
        loop {
            let now = (self.permits.now)().ok_or_else(offline)?;
            let begun = Instant::now();
            let life = match &self.life {
                Some(life) => life.name.clone(),
                None => crate::link::random::<16>()?,
            };
            let mut plan = self.permits.ledger.lock().plan(takes, BATCH, &life, now);
            let takes_places = takes
                .iter()
                .zip(&plan.answers)
                .any(|(claims, answer)| answer.is_ok() && claims.iter().any(Claim::bounds_running));
            let begins = self.life.is_none() && takes_places;
            let mut changes = plan.changes.clone();
            if begins {
                changes.push(
                    Change::put(format!("{LIVES}{life}"), ledger::life_of(&self.permits.node))
                        .expecting(Expect::Absent),
                );
            }
            if changes.is_empty() {
                // A place that was given back may have been taken again.
                let mut ledger = self.permits.ledger.lock();
                ledger.commit(takes, &plan, &[], &life);
                ledger.drop_settled(BATCH);
                drop(ledger);
                return self.check_in_time(takes_places).map(|()| std::mem::take(&mut plan.answers));
            }
            // Until the answer arrives, the records may contain more places than are in use.
            self.permits.ledger.lock().mark_unconfirmed(&plan);
            match self.write(changes).await {
                Ok(revisions) => {
                    if begins {
                        let revision = revisions.last().copied().unwrap_or_default();
                        let (key, value) =
                            (format!("{LIVES}{life}"), ledger::life_of(&self.permits.node));
                        self.permits.ledger.lock().apply_record(&key, Some((revision, &value)), begun);
                        self.life = Some(Life::new(life.clone(), revision, begun, &self.tracker));
                    }
                    let mut ledger = self.permits.ledger.lock();
                    ledger.commit(takes, &plan, &revisions, &life);
                    ledger.drop_settled(BATCH);
                    drop(ledger);
                    self.permits.bump();
                    return self.check_in_time(takes_places).map(|()| std::mem::take(&mut plan.answers));
                }
                Err(WriteError::Conflict { .. }) => self.refresh_all(&plan).await.map_err(unreadable)?,
                Err(WriteError::Failed(error)) => return Err(error.to_string()),
            }
        }
    }

    /// Checks that the places just taken are certainly this node's own. Otherwise its life in the
    /// records ends.
    ///
    /// # Errors
    ///
    /// Other nodes may already have given its places to others.
    fn check_in_time(&mut self, takes_places: bool) -> Result<(), String> {
        if takes_places && self.life.as_ref().is_none_or(Life::is_over) {
            self.end();
            return Err("this node could not be heard there in time".to_owned());
        }
        Ok(())
    }

    async fn refresh_all(&self, plan: &Plan) -> Result<(), StateError> {
        for change in &plan.changes {
            self.refresh(&change.key).await?;
        }
        Ok(())
    }
}
