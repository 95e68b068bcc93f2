//! Follows the records of other nodes, and takes over the tasks of nodes that are gone.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use orla_state::{Change, Expect, Pages, Query, Record, StateError, WriteError};
use tokio::sync::broadcast;
use tokio::sync::broadcast::error::RecvError;
use tokio::time::{Instant, MissedTickBehavior, interval};

use crate::keys;
use crate::service::{Inner, Tasks};
use crate::shared::Shared;
use crate::task::{Runner, TaskId};

/// The prefix of the keys of node records.
pub(crate) const NODES: &str = "node/";
/// The interval between two heartbeats of a node.
const HEARTBEAT_INTERVAL: Duration = Duration::from_secs(3);
/// The interval between two searches for nodes that no longer send heartbeats.
const CHECK_INTERVAL: Duration = Duration::from_secs(1);
/// A node whose search is this late was suspended, and has missed the heartbeats of the others.
const MAX_DELAY: Duration = Duration::from_secs(4);
/// The interval between two scans of all tasks, which find any task that was missed.
const SCAN_INTERVAL: Duration = Duration::from_secs(60);
/// After a scan of all tasks, the next scan waits for this multiple of the scan's duration, unless a
/// node is gone.
const SCAN_PAUSE: u32 = 4;
/// The number of records read at once.
const PAGE: usize = 1000;
/// The maximum number of nodes in a cluster.
const MAX_NODES: usize = 10_000;

impl Tasks {
    /// Acts as a node of the cluster until the tasks are closed.
    pub(crate) fn serve_shared(&self) {
        let Some(changes) = self.0.store.changed_keys() else { return };
        let inner = Arc::clone(&self.0);
        self.0.node.spawn(async move { inner.send_heartbeats().await });
        let inner = Arc::clone(&self.0);
        self.0.node.spawn(async move { inner.follow(changes).await });
        let inner = Arc::clone(&self.0);
        self.0.node.spawn(async move { inner.serve_buffer().await });
    }
}

impl Inner {
    /// Sends heartbeats until nothing runs on this node any more.
    async fn send_heartbeats(self: Arc<Self>) {
        let Some(shared) = &self.shared else { return };
        // The previous life of this node is over.
        let mut own = Expect::Anything;
        let mut ticker = interval(HEARTBEAT_INTERVAL);
        ticker.set_missed_tick_behavior(MissedTickBehavior::Delay);
        loop {
            tokio::select! {
                biased;
                () = self.drained.cancelled() => break,
                _ = ticker.tick() => {}
            }
            let started = Instant::now();
            let heartbeat = async {
                match self.heartbeat(shared, &mut own).await {
                    Ok(is_present) => {
                        is_present && (shared.is_present() || self.rejoin(shared).await.is_ok())
                    }
                    Err(error) => {
                        tracing::debug!(%error, "the heartbeat of this node cannot be written");
                        false
                    }
                }
            };
            let is_present = tokio::select! {
                biased;
                () = self.drained.cancelled() => break,
                is_present = heartbeat => is_present,
            };
            shared.set_last_heartbeat(is_present.then_some(started));
            if !is_present {
                ticker.reset_after(CHECK_INTERVAL);
            }
        }
        // By now, everything that ran here has ended or is written. Only then do the others learn that
        // this node is gone.
        if let Expect::Revision(_) = own {
            let gone = Change::remove(key(&shared.me.node)).expecting(own);
            drop(tokio::time::timeout(HEARTBEAT_INTERVAL, self.store.write(vec![gone])).await);
        }
    }

    /// Writes one heartbeat. Returns `false` if the other nodes had to consider this node gone, or if
    /// another instance uses its name.
    async fn heartbeat(&self, shared: &Shared, own: &mut Expect) -> Result<bool, StateError> {
        if shared.is_replaced.load(Ordering::Relaxed) {
            return Ok(false);
        }
        let value = serde_json::to_vec(&shared.me).map_err(|err| StateError::new(err.to_string()))?;
        let put = Change::put(key(&shared.me.node), value.clone());
        match self.store.write(vec![put.expecting(*own)]).await {
            Ok(revisions) => {
                *own = revisions.first().copied().map_or(Expect::Absent, Expect::Revision);
                Ok(true)
            }
            Err(WriteError::Failed(error)) => Err(error),
            Err(WriteError::Conflict { key }) => {
                let record = self.store.get(&key).await?;
                let is_other = record.as_ref().is_some_and(|record| record.value != value);
                if is_other && !shared.is_replaced.swap(true, Ordering::Relaxed) {
                    let node = &shared.me.node;
                    tracing::error!(
                        node,
                        "another instance uses the name of this node: this instance takes no more tasks"
                    );
                }
                // Another node removed the record, it was lost with its stream, or an earlier request
                // wrote it and the answer was lost.
                let record = record.filter(|_| !is_other);
                *own = record.map_or(Expect::Absent, |record| Expect::Revision(record.revision));
                Ok(false)
            }
        }
    }

    /// Reads which nodes are present after a time without heartbeats of other nodes. From then on, this node
    /// decides again which nodes are gone.
    async fn rejoin(&self, shared: &Shared) -> Result<(), StateError> {
        self.store.sync().await?;
        self.catch_up(shared).await?;
        shared.nodes.lock().restart_leases(Instant::now());
        Ok(())
    }

    /// Follows the changes of all nodes, and takes over the tasks of nodes that are gone, until nothing
    /// runs on this node any more.
    async fn follow(self: Arc<Self>, mut changes: broadcast::Receiver<Arc<str>>) {
        let Some(shared) = &self.shared else { return };
        let (mut check_tick, mut scan_tick) = (interval(CHECK_INTERVAL), interval(SCAN_INTERVAL));
        for ticks in [&mut check_tick, &mut scan_tick] {
            ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
        }
        let mut market = self.market.changes();
        let mut last_check = Instant::now();
        // A scan of all tasks may take so long that changes of other nodes are missed. That is a reason
        // to scan again.
        let mut rest = Instant::now();
        let mut has_taken = shared.takes();
        loop {
            tokio::select! {
                biased;
                () = self.drained.cancelled() => return,
                _ = check_tick.tick() => {
                    let is_late = last_check.elapsed() > MAX_DELAY;
                    last_check = Instant::now();
                    if is_late {
                        shared.nodes.lock().restart_leases(last_check);
                    }
                    let takes = shared.takes();
                    if takes && !has_taken {
                        shared.request_scan();
                    }
                    has_taken = takes;
                    let checked = tokio::select! {
                        biased;
                        () = self.drained.cancelled() => return,
                        checked = self.check_nodes(shared, &mut rest) => checked,
                    };
                    if let Err(error) = checked {
                        tracing::debug!(%error, "the tasks of the cluster cannot be checked");
                        shared.request_scan();
                    }
                }
                _ = scan_tick.tick() => shared.request_scan(),
                // A capability may have become available.
                changed = market.changed() => match changed {
                    Ok(()) => shared.request_scan(),
                    Err(_) => return,
                },
                key = changes.recv() => {
                    let followed = match key {
                        Ok(key) => self.changed(shared, &key).await,
                        Err(RecvError::Lagged(_)) => self.catch_up(shared).await,
                        Err(RecvError::Closed) => return,
                    };
                    if let Err(error) = followed {
                        tracing::debug!(%error, "a change of another node cannot be followed");
                        shared.request_scan();
                    }
                }
            }
        }
    }

    /// Checks whether a node is gone, and scans all tasks if there is a reason.
    async fn check_nodes(
        self: &Arc<Self>,
        shared: &Shared,
        rest: &mut Instant,
    ) -> Result<(), StateError> {
        if !shared.is_present() || self.closing.is_cancelled() {
            return Ok(());
        }
        let is_silent = shared.nodes.lock().has_silent_node(Instant::now());
        if is_silent {
            // Heartbeats written until now may not have arrived here yet.
            let cutoff = Instant::now();
            self.store.sync().await?;
            self.read_nodes(shared).await?;
            let gone = shared.nodes.lock().expire(cutoff);
            for (node, revision) in gone {
                tracing::warn!(node, "a node of the cluster is gone: its tasks are taken by others");
                shared.request_scan();
                *rest = Instant::now();
                let record = Change::remove(key(&node)).expecting(Expect::Revision(revision));
                // Another node may have removed the record.
                drop(self.store.write(vec![record]).await);
            }
        }
        if Instant::now() >= *rest && shared.take_scan_request() {
            let started = Instant::now();
            for id in shared.offered() {
                let task = self.load(&id).await?;
                self.release_if_taken(shared, &id, task.as_ref());
            }
            let checked = self.check_all_tasks().await;
            *rest = Instant::now() + started.elapsed() * SCAN_PAUSE;
            checked?;
            self.wake_all_awaiting().await?;
        }
        Ok(())
    }

    /// Reads what changed while this node was not listening.
    async fn catch_up(&self, shared: &Shared) -> Result<(), StateError> {
        self.read_nodes(shared).await?;
        self.refresh().await?;
        self.timer_set.notify_one();
        shared.request_scan();
        Ok(())
    }

    /// Reads the records of all nodes.
    async fn read_nodes(&self, shared: &Shared) -> Result<(), StateError> {
        for record in self.store.list(Query::below(NODES, MAX_NODES)).await? {
            apply_node_record(shared, &record.key, Some(&record));
        }
        Ok(())
    }

    /// Returns whether no node runs a task. The stored record of a node may be newer than the last one
    /// received.
    pub(crate) async fn is_free(&self, shared: &Shared, task: &crate::Task) -> Result<bool, StateError> {
        if shared.is_free(task)
            && let Some(runner) = &task.runner
        {
            let key = key(&runner.node);
            apply_node_record(shared, &key, self.store.get(&key).await?.as_ref());
        }
        Ok(shared.is_free(task))
    }

    /// Reloads the tasks that run here or are watched here.
    async fn refresh(&self) -> Result<(), StateError> {
        for id in self.live.ids() {
            let Some(task) = self.load(&id).await? else { continue };
            self.live.publish(&self.with_notices(task.clone()));
            self.end_if_lost(&task);
            if let Some(running) = self.live.running(&id) {
                running.arrived.notify_waiters();
            }
        }
        Ok(())
    }

    /// No longer counts a task that was accepted here after another node has taken it.
    fn release_if_taken(&self, shared: &Shared, id: &TaskId, task: Option<&crate::Task>) {
        let is_taken = task.is_none_or(|task| task.runner.is_some() || task.state.is_terminal());
        if is_taken && let Some(owner) = shared.remove_offer(id) {
            self.uncount_unfinished(&owner);
        }
    }

    /// Ends a local run whose task is over, or which another node has taken over.
    fn end_if_lost(&self, task: &crate::Task) {
        let Some(running) = self.live.running(&task.id) else { return };
        // A run that falls asleep here gives up the task itself.
        let has_other = task.runner.is_some() && self.is_lost(task);
        if task.state.is_terminal() || has_other {
            running.cancellation.cancel();
        }
    }

    /// Handles a changed record.
    async fn changed(self: &Arc<Self>, shared: &Shared, key: &str) -> Result<(), StateError> {
        let Some((kind, rest)) = key.split_once('/') else { return Ok(()) };
        match kind {
            "node" => {
                let record = self.store.get(key).await?;
                apply_node_record(shared, key, record.as_ref());
            }
            "timer" => self.timer_set.notify_one(),
            "task" => {
                let Some(id) = TaskId::parse(rest) else { return Ok(()) };
                let Some(task) = self.load(&id).await? else { return Ok(()) };
                self.live.publish(&self.with_notices(task.clone()));
                self.end_if_lost(&task);
                self.release_if_taken(shared, &id, Some(&task));
                if !task.state.is_terminal() {
                    self.check_task(&id).await?;
                }
            }
            "open" => {
                let Some(id) = TaskId::parse(rest) else { return Ok(()) };
                // An event may have arrived for the task.
                if let Some(running) = self.live.running(&id) {
                    running.arrived.notify_waiters();
                }
                self.check_task(&id).await?;
            }
            _ => {}
        }
        Ok(())
    }

    /// Checks for every task whether this node must act on it.
    async fn check_all_tasks(self: &Arc<Self>) -> Result<(), StateError> {
        let mut pages = Pages::below(&*self.store, keys::OPEN, PAGE);
        loop {
            let rows = pages.next().await?;
            if rows.is_empty() {
                return Ok(());
            }
            for task in self.load_all(&keys::awake(&rows)).await?.into_iter().flatten() {
                self.take_if_free(&task).await?;
            }
        }
    }

    /// Checks whether this node must act on a task.
    pub(crate) async fn check_task(self: &Arc<Self>, id: &TaskId) -> Result<(), StateError> {
        let Some(row) = self.store.get(&keys::open(id)).await? else { return Ok(()) };
        if !keys::is_asleep(&row)
            && let Some(task) = self.load(id).await?
        {
            self.take_if_free(&task).await?;
        }
        Ok(())
    }
}

/// Applies the record of a node. If it shows that the node has ended or was restarted, requests a scan of
/// all tasks.
fn apply_node_record(shared: &Shared, key: &str, record: Option<&Record>) {
    let node = key.strip_prefix(NODES).unwrap_or_default();
    let is_over = match record {
        None => shared.nodes.lock().remove(node),
        Some(Record { value, revision, .. }) => match serde_json::from_slice::<Runner>(value) {
            Ok(runner) if runner.node == node => {
                shared.nodes.lock().record_heartbeat(runner, *revision, Instant::now())
            }
            _ => false,
        },
    };
    if is_over {
        shared.request_scan();
    }
}

fn key(node: &str) -> String {
    format!("{NODES}{node}")
}
