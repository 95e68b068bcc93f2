//! The way from calls that have ended to the store: a bounded queue, and a thread that empties it.
//!
//! The thread sleeps until a call ends, waits a moment for others, and writes all of them at once. A call wakes it only when
//! it sleeps without a time, so a busy server does not pay for waking it with each call. What the store would not keep is dropped
//! where the call ends: its memory is still in the cache of that processor.

use std::collections::VecDeque;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use orla_marketplace::CallScope;
use parking_lot::{Condvar, Mutex};
use tokio::sync::watch;

use crate::call::Row;
use crate::live::{LiveCall, RunningCalls};
use crate::prepare::{Preparation, attempt};
use crate::store::Store;
use crate::trace::Tracing;

/// The interval at which expired rows are removed while no call ends.
const TIDY: Duration = Duration::from_secs(60);
/// Once so many calls have been gathered, they are written, unless many of them would not be kept.
const GATHERED: usize = 1024;
/// Once so many bytes have been gathered, they are written. They fit into a processor's cache, so large answers use the same
/// memory again and again.
const GATHERED_BYTES: usize = 512 << 10;
/// The number of calls whose rows are made at once: few enough for their memory to be used again for the next ones.
const AT_ONCE: usize = 128;
/// The maximum number of calls that wait to be written. Further ones are dropped, and counted.
const MAX_CALLS: usize = 16_384;
/// Bytes of data that wait to be written. Further calls are dropped, and counted.
const MAX_BYTES: usize = 64 << 20;

/// Takes calls that have ended.
pub(crate) struct Intake {
    pub(crate) running: RunningCalls,
    queue: Mutex<Queue>,
    /// Wakes the thread.
    wake: Condvar,
    /// Wakes callers that wait for the thread.
    done: Condvar,
    /// The number of the newest calls that the store keeps.
    room: AtomicUsize,
    dropped: AtomicU64,
    /// Whether it has been said that calls are dropped.
    is_drop_logged: AtomicBool,
    changes: watch::Sender<u64>,
    /// Whether the calls that begin now are kept.
    pub(crate) is_keeping: AtomicBool,
    pub(crate) tracing: OnceLock<Tracing>,
}

#[derive(Default)]
struct Queue {
    calls: VecDeque<Arc<LiveCall>>,
    bytes: usize,
    /// Whether the thread waits for the first call.
    is_idle: bool,
    /// The number of requests to write everything.
    wanted: u64,
    /// The last of them that has been done.
    written: u64,
    is_closed: bool,
    is_ended: bool,
}

impl Queue {
    /// Returns whether its calls are not gathered any longer.
    fn is_full_enough(&self, room: usize) -> bool {
        let twice = room.saturating_mul(2);
        let most = if twice < MAX_CALLS / 2 { GATHERED.max(twice) } else { GATHERED };
        self.calls.len() >= most || self.bytes > GATHERED_BYTES
    }

    /// Removes the oldest call if no row of it is needed. Calls of a tree wait for the thread, because their secrets are redacted
    /// in the rows of all of them.
    fn pop_useless(&mut self, room: usize) -> Option<Arc<LiveCall>> {
        let is_alone = |call: &LiveCall| call.root.is_none() && !call.has_calls.load(Ordering::Relaxed);
        let is_over = self.calls.len() > room;
        self.calls.front().filter(|call| is_over && is_alone(call) && !call.is_sampled())?;
        let call = self.calls.pop_front()?;
        self.bytes = self.bytes.saturating_sub(call.bytes());
        Some(call)
    }
}

impl Intake {
    pub(crate) fn new() -> Arc<Self> {
        Arc::new(Self {
            running: RunningCalls::default(),
            queue: Mutex::default(),
            wake: Condvar::new(),
            done: Condvar::new(),
            room: AtomicUsize::new(usize::MAX),
            dropped: AtomicU64::new(0),
            is_drop_logged: AtomicBool::new(false),
            changes: watch::Sender::new(0),
            is_keeping: AtomicBool::new(true),
            tracing: OnceLock::new(),
        })
    }

    /// Returns the running call that something in this scope is within, and notes that it has calls.
    pub(crate) fn within(&self, scope: &CallScope) -> Option<Arc<LiveCall>> {
        let within = self.running.of(scope.parent.as_deref()?)?;
        within.has_calls.store(true, Ordering::Relaxed);
        Some(within)
    }

    /// Takes a call that has ended.
    pub(crate) fn take(&self, call: Arc<LiveCall>) {
        let bytes = call.bytes();
        let mut queue = self.queue.lock();
        let is_full = queue.calls.len() >= MAX_CALLS
            || (queue.bytes > 0 && queue.bytes.saturating_add(bytes) > MAX_BYTES);
        if is_full || queue.is_ended {
            drop(queue);
            self.dropped.fetch_add(1, Ordering::Relaxed);
            if !self.is_drop_logged.swap(true, Ordering::Relaxed) {
                tracing::warn!(
                    "calls end faster than the history is written: it leaves some of them out"
                );
            }
            return;
        }
        queue.calls.push_back(call);
        queue.bytes += bytes;
        let room = self.room.load(Ordering::Relaxed);
        // It is freed without the lock.
        let _useless = queue.pop_useless(room);
        let is_due = queue.is_full_enough(room)
            || (!queue.calls.is_empty() && std::mem::take(&mut queue.is_idle));
        drop(queue);
        if is_due {
            self.wake.notify_one();
        }
        self.changed();
    }

    /// Takes all calls that end, until the thread has asked the store again how many it keeps.
    pub(crate) fn make_room(&self) {
        self.room.store(usize::MAX, Ordering::Relaxed);
    }

    /// Notifies the watchers of a change.
    pub(crate) fn changed(&self) {
        if self.changes.receiver_count() > 0 {
            self.changes.send_modify(|count| *count = count.wrapping_add(1));
        }
    }

    pub(crate) fn changes(&self) -> watch::Receiver<u64> {
        self.changes.subscribe()
    }

    /// Returns how many calls were left out because they ended too fast.
    pub(crate) fn dropped(&self) -> u64 {
        self.dropped.load(Ordering::Relaxed)
    }

    /// Wants every call that has ended in the store soon, and returns the number of this request.
    pub(crate) fn request(&self) -> u64 {
        let mut queue = self.queue.lock();
        queue.wanted += 1;
        self.wake.notify_one();
        queue.wanted
    }

    /// Waits until every call that has ended is in the store. Blocks.
    pub(crate) fn flush(&self) {
        let wanted = self.request();
        let mut queue = self.queue.lock();
        while queue.written < wanted && !queue.is_ended {
            self.done.wait(&mut queue);
        }
    }

    /// Ends the thread once it has written what waits. Blocks.
    pub(crate) fn close(&self) {
        let mut queue = self.queue.lock();
        queue.is_closed = true;
        self.wake.notify_one();
        while !queue.is_ended {
            self.done.wait(&mut queue);
        }
    }

    /// Writes calls until it is closed.
    pub(crate) fn serve(&self, preparation: &Preparation, store: &dyn Store) {
        let _guard = EndOnDrop(self);
        let mut spare = VecDeque::new();
        loop {
            let room = store.room();
            self.room.store(room, Ordering::Relaxed);
            let (mut calls, wanted, is_closed) = {
                let mut queue = self.queue.lock();
                let is_requested = |queue: &Queue| queue.is_closed || queue.wanted > queue.written;
                while queue.calls.is_empty() && !is_requested(&queue) {
                    queue.is_idle = true;
                    if self.wake.wait_for(&mut queue, TIDY).timed_out() {
                        break;
                    }
                }
                queue.is_idle = false;
                if !queue.calls.is_empty() && !queue.is_full_enough(room) && !is_requested(&queue) {
                    self.wake.wait_for(&mut queue, store.gather());
                }
                queue.bytes = 0;
                (std::mem::replace(&mut queue.calls, spare), queue.wanted, queue.is_closed)
            };
            let is_wanted = select(calls.make_contiguous(), store.room());
            let batches = calls.make_contiguous().chunks(AT_ONCE).zip(is_wanted.chunks(AT_ONCE));
            let kept = batches.map(|(ended, is_wanted)| self.keep(ended, is_wanted, preparation, store));
            let is_written = kept.sum::<usize>() > 0;
            let is_empty = calls.is_empty();
            calls.clear();
            spare = calls;
            if !is_written {
                store.tidy();
            }
            if !is_empty {
                self.changed();
            }
            let mut queue = self.queue.lock();
            queue.written = wanted;
            self.done.notify_all();
            if is_closed && queue.calls.is_empty() {
                drop(queue);
                store.close();
                return;
            }
        }
    }

    /// Puts the rows of those calls that are wanted into the store, and returns their number.
    fn keep(
        &self,
        ended: &[Arc<LiveCall>],
        is_wanted: &[bool],
        preparation: &Preparation,
        store: &dyn Store,
    ) -> usize {
        let data = preparation.redact(ended, is_wanted);
        let made = ended.iter().zip(is_wanted).zip(data);
        let rows: Vec<Option<Row>> = made
            .map(|((call, is_wanted), data)| {
                let data = data.filter(|_| *is_wanted)?;
                attempt(|| preparation.row(call, data))
            })
            .collect();
        if let Some(tracing) = self.tracing.get() {
            let sampled = ended.iter().zip(&rows).filter(|(call, _)| call.is_sampled());
            let sampled: Vec<Row> = sampled.filter_map(|(_, row)| row.clone()).collect();
            tracing.sink.take(&sampled);
        }
        preparation.forget(ended);
        let kept = ended.iter().zip(rows).filter(|(call, _)| call.is_kept);
        let rows: Vec<Row> = kept.filter_map(|(_, row)| row).collect();
        let count = rows.len();
        if count > 0 {
            store.write(rows);
        }
        count
    }
}

/// Returns whether a row is made of each of these calls: of those that are traced, and of the newest ones that the store has room
/// for.
fn select(ended: &[Arc<LiveCall>], mut room: usize) -> Vec<bool> {
    let mut wanted = vec![false; ended.len()];
    for (call, is_wanted) in ended.iter().zip(&mut wanted).rev() {
        let is_kept = call.is_kept && room > 0;
        room -= usize::from(is_kept);
        *is_wanted = is_kept || call.is_sampled();
    }
    wanted
}

/// Notes that the thread has ended, however it did.
struct EndOnDrop<'a>(&'a Intake);

impl Drop for EndOnDrop<'_> {
    fn drop(&mut self) {
        self.0.queue.lock().is_ended = true;
        self.0.done.notify_all();
    }
}
