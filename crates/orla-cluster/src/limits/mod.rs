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
//!   connection (property-tested in `tests`).
//! - A call that cannot be counted is refused.
//!
//! # What is deliberately absent
//!
//! Clocks of nodes. Buckets are refilled by the clock of NATS.

mod ledger;
mod record;
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

use ledger::{COUNTS, LIVES, Ledger, Plan, TRUSTED};

/// The prefix of all records.
const ALL: &str = "limit/";
/// The interval between two heartbeats of a node that has places.
const BEAT: Duration = Duration::from_secs(3);
/// The interval between two checks for pending work.
const LOOK: Duration = Duration::from_secs(1);
/// How long a call waits for NATS.
const WAIT: Duration = Duration::from_secs(2);
/// After this time without a place, a node stops its heartbeats.
const IDLE: Duration = Duration::from_secs(30);
/// How often counts that no longer matter are removed, and how many at once.
const SWEEP: (Duration, usize) = (Duration::from_secs(60), 500);
/// The maximum number of claims that are decided at once, and the most records that are corrected
/// besides.
const BATCH: usize = 400;
/// How many records are read at once.
const PAGE: usize = 1000;
/// The maximum number of requests that wait for a decision.
const MAX_ASKED: usize = 8192;

/// The current time of the NATS clock, if it is known.
pub(crate) type NatsClock = Arc<dyn Fn() -> Option<Duration> + Send + Sync>;

/// Counts over all nodes of the cluster.
pub(crate) struct ClusterPermits {
    asks: mpsc::Sender<Ask>,
    gives: Arc<Gives>,
    node: String,
    /// Taken by the task that serves.
    asked: Mutex<Option<mpsc::Receiver<Ask>>>,
    ledger: Arc<Mutex<Ledger>>,
    changes: watch::Sender<u64>,
    now: NatsClock,
    is_served: AtomicBool,
}

/// Places that were given back and are not in the records yet: no more than there were places.
#[derive(Default)]
struct Gives {
    given: Mutex<Vec<Given>>,
    arrived: Notify,
}

/// A call to count.
struct Ask {
    claims: Vec<Claim>,
    answer: oneshot::Sender<Result<Taken, NotTaken>>,
}

/// Places that are given back.
struct Given {
    names: Vec<String>,
    life: String,
}

/// The places of a call.
struct Places {
    given: Option<Given>,
    gives: Arc<Gives>,
}

impl Drop for Places {
    fn drop(&mut self) {
        // Without the task that serves, the places end with this life of the node.
        self.gives.given.lock().extend(self.given.take());
        self.gives.arrived.notify_one();
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
        let (until, mut watched) = watch::channel(renewed + TRUSTED);
        let lost = CancellationToken::new();
        let ends = lost.clone();
        // Also while a write hangs.
        tracker.spawn(async move {
            loop {
                let at = *watched.borrow_and_update();
                tokio::select! {
                    () = sleep_until(at) => break,
                    changed = watched.changed() => if changed.is_err() { break },
                }
            }
            ends.cancel();
        });
        Self { name, revision, until, renewed, used: renewed, lost }
    }

    fn renewed(&mut self, revision: Revision, at: Instant) {
        (self.revision, self.renewed) = (revision, at);
        self.until.send_replace(at + TRUSTED);
    }

    fn is_over(&self) -> bool {
        self.lost.is_cancelled() || self.renewed.elapsed() >= TRUSTED
    }
}

impl ClusterPermits {
    pub(crate) fn new(node: &str, now: NatsClock) -> Arc<Self> {
        let (asks, asked) = mpsc::channel(MAX_ASKED);
        Arc::new(Self {
            asks,
            gives: Arc::default(),
            node: node.to_owned(),
            asked: Mutex::new(Some(asked)),
            ledger: Arc::default(),
            changes: watch::Sender::new(0),
            now,
            is_served: AtomicBool::new(false),
        })
    }

    /// Counts for this node until it is stopped.
    pub(crate) async fn serve(self: Arc<Self>, store: Arc<dyn StateStore>, stop: CancellationToken) {
        let (Some(asks), Some(changed)) = (self.asked.lock().take(), store.changed_keys()) else {
            return;
        };
        self.is_served.store(true, Ordering::Release);
        let desk = Desk {
            permits: Arc::clone(&self),
            store,
            life: None,
            is_read: false,
            swept: Instant::now(),
            tracker: TaskTracker::new(),
        };
        desk.serve(asks, changed, stop).await;
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
        if self.asks.try_send(Ask { claims, answer }).is_err() {
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
struct Desk {
    permits: Arc<ClusterPermits>,
    store: Arc<dyn StateStore>,
    life: Option<Life>,
    /// Whether the records have been read.
    is_read: bool,
    swept: Instant,
    tracker: TaskTracker,
}

impl Desk {
    async fn serve(
        mut self,
        mut asks: mpsc::Receiver<Ask>,
        mut changed: Receiver<Arc<str>>,
        stop: CancellationToken,
    ) {
        let mut look = interval(LOOK);
        look.set_missed_tick_behavior(MissedTickBehavior::Delay);
        let gives = Arc::clone(&self.permits.gives);
        loop {
            let mut asked = Vec::new();
            tokio::select! {
                () = stop.cancelled() => break,
                key = changed.recv() => match key {
                    Ok(key) => {
                        self.hear(&key).await;
                        continue;
                    }
                    Err(RecvError::Lagged(_)) => {
                        self.is_read = false;
                        continue;
                    }
                    Err(RecvError::Closed) => break,
                },
                _ = look.tick() => self.look().await,
                () = gives.arrived.notified() => {}
                Some(ask) = asks.recv() => asked.push(ask),
            }
            let given = std::mem::take(&mut *gives.given.lock());
            given.iter().for_each(|given| self.gives(given));
            let mut claims: usize = asked.iter().map(|ask| ask.claims.len()).sum();
            while claims < BATCH
                && let Ok(ask) = asks.try_recv()
            {
                claims += ask.claims.len();
                asked.push(ask);
            }
            // A caller that has gone needs no place.
            asked.retain(|ask| !ask.answer.is_closed());
            self.decide(asked).await;
        }
        // Its places are free at once.
        if let Some(life) = self.life.take() {
            self.remove_life(&life.name, life.revision).await;
        }
        self.tracker.close();
        self.tracker.wait().await;
    }

    /// Takes note of a record that has changed.
    async fn hear(&mut self, key: &str) {
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
        self.permits.ledger.lock().heard(key, record, Instant::now());
        let Some(name) = key.strip_prefix(COUNTS) else { return Ok(()) };
        // The first count that names a life and the record of the life are written together. The record
        // may not have arrived yet.
        let unheard = self.permits.ledger.lock().unheard(name);
        for life in unheard {
            let key = format!("{LIVES}{life}");
            let record = self.store.get(&key).await?;
            let record = record.as_ref().map(|record| (record.revision, &*record.value));
            self.permits.ledger.lock().heard(&key, record, Instant::now());
        }
        Ok(())
    }

    /// Reads all records.
    async fn read(&mut self) -> Result<(), StateError> {
        let mut gone = self.permits.ledger.lock().keys();
        let mut pages = Pages::below(&*self.store, ALL, PAGE);
        loop {
            let page = pages.next().await?;
            if page.is_empty() {
                break;
            }
            let now = Instant::now();
            let mut ledger = self.permits.ledger.lock();
            for record in page {
                ledger.heard(&record.key, Some((record.revision, &record.value)), now);
            }
        }
        gone.sort_unstable();
        for key in gone {
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

    fn gives(&self, given: &Given) {
        if let Some(life) = self.life.as_ref().filter(|life| life.name == given.life) {
            let mut ledger = self.permits.ledger.lock();
            if ledger.me.as_ref() == Some(&life.name) {
                ledger.gives(&given.names);
            }
        }
    }

    /// Does the periodic work.
    async fn look(&mut self) {
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
        self.beat().await;
        self.judge().await;
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
        match timeout(WAIT, self.store.write(changes)).await {
            Ok(written) => written,
            Err(_) => Err(StateError::new("NATS does not answer").into()),
        }
    }

    /// Writes a heartbeat, if this node has places.
    async fn beat(&mut self) {
        let is_idle = self.permits.ledger.lock().is_idle();
        let Some(life) = &mut self.life else { return };
        if !is_idle {
            life.used = Instant::now();
        }
        if life.used.elapsed() >= IDLE {
            let (name, revision) = (life.name.clone(), life.revision);
            self.end();
            return self.remove_life(&name, revision).await;
        }
        if life.renewed.elapsed() < BEAT {
            return;
        }
        let (begun, key) = (Instant::now(), format!("{LIVES}{}", life.name));
        let beat = Change::put(key, ledger::life_of(&self.permits.node))
            .expecting(Expect::Revision(life.revision));
        match self.write(vec![beat]).await {
            Ok(revisions) => {
                if let (Some(life), Some(revision)) = (&mut self.life, revisions.first()) {
                    life.renewed(*revision, begun);
                }
            }
            // Others hold it for gone. Its places are free.
            Err(WriteError::Conflict { .. }) => self.renewed_before().await,
            Err(WriteError::Failed(error)) => {
                tracing::debug!(%error, "this node cannot say that its calls run");
            }
        }
    }

    /// The record of this life is not as it was left: a beat without an answer has been taken, or it is gone.
    async fn renewed_before(&mut self) {
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
        self.permits.ledger.lock().ended();
    }

    async fn remove_life(&self, name: &str, revision: Revision) {
        let gone = Change::remove(format!("{LIVES}{name}")).expecting(Expect::Revision(revision));
        // If it is not removed, others find that it is gone.
        drop(self.write(vec![gone]).await);
        drop(self.refresh(&format!("{LIVES}{name}")).await);
        self.permits.bump();
    }

    /// Finds nodes that are gone, and frees their places.
    async fn judge(&mut self) {
        let asked = Instant::now();
        if self.permits.ledger.lock().silent(asked).is_empty() {
            return;
        }
        // Heartbeats of the other nodes may not have arrived here yet.
        if !matches!(timeout(WAIT, self.store.sync()).await, Ok(Ok(()))) {
            return;
        }
        let silent = self.permits.ledger.lock().silent(asked);
        for (life, revision) in silent {
            if self.refresh(&format!("{LIVES}{life}")).await.is_err() {
                return;
            }
            if self.permits.ledger.lock().life(&life) == Some(revision) {
                self.remove_life(&life, revision).await;
            }
        }
    }

    /// Decides about calls, and corrects records.
    async fn decide(&mut self, asked: Vec<Ask>) {
        if asked.is_empty() && !self.permits.ledger.lock().is_stale() {
            return;
        }
        self.end_if_lost();
        let (mut takes, mut answers) = (Vec::new(), Vec::new());
        for Ask { claims, answer } in asked {
            takes.push(claims);
            answers.push(answer);
        }
        let decided = match timeout(WAIT, self.decided(&takes)).await {
            Ok(decided) => decided,
            Err(_) => Err("NATS does not answer".to_owned()),
        };
        match decided {
            Ok(results) => {
                for ((answer, result), claims) in answers.into_iter().zip(results).zip(&takes) {
                    let taken = result.map(|()| self.taken(claims));
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
    fn taken(&self, claims: &[Claim]) -> Taken {
        let bounded = claims.iter().filter(|claim| claim.bounds_running());
        let names: Vec<String> = bounded.map(Claim::name).collect();
        let Some(life) = self.life.as_ref().filter(|_| !names.is_empty()) else {
            return Taken::default();
        };
        let given = Some(Given { names, life: life.name.clone() });
        Taken::holding(Places { given, gives: Arc::clone(&self.permits.gives) }).until(life.lost.clone())
    }

    /// Decides whether each of these claims gets its places.
    ///
    /// # Errors
    ///
    /// Returns why nothing could be decided. Places may have been taken in the records, and are
    /// corrected later.
    async fn decided(&mut self, takes: &[Vec<Claim>]) -> Result<Vec<Result<(), NotTaken>>, String> {
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
                ledger.made(takes, &plan, &[], &life);
                ledger.settled(BATCH);
                drop(ledger);
                return self.in_time(takes_places).map(|()| std::mem::take(&mut plan.answers));
            }
            // Until the answer arrives, the records may contain more places than are in use.
            self.permits.ledger.lock().unknown(&plan);
            match self.write(changes).await {
                Ok(revisions) => {
                    if begins {
                        let revision = revisions.last().copied().unwrap_or_default();
                        let (key, value) =
                            (format!("{LIVES}{life}"), ledger::life_of(&self.permits.node));
                        self.permits.ledger.lock().heard(&key, Some((revision, &value)), begun);
                        self.life = Some(Life::new(life.clone(), revision, begun, &self.tracker));
                    }
                    let mut ledger = self.permits.ledger.lock();
                    ledger.made(takes, &plan, &revisions, &life);
                    ledger.settled(BATCH);
                    drop(ledger);
                    self.permits.bump();
                    return self.in_time(takes_places).map(|()| std::mem::take(&mut plan.answers));
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
    fn in_time(&mut self, takes_places: bool) -> Result<(), String> {
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
