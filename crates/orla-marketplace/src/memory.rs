//! Limits the memory of all requests of an instance together.
//!
//! Request bodies and the values of programs are reserved as they grow, outputs when they are complete.
//! Reservations end when they are dropped. At the limit, a request fails as `busy` before it costs more.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::Duration;

use tokio::sync::Notify;

/// A burst begins when this many bytes are held.
const BURST_BYTES: usize = 32 << 20;

/// A burst also begins after this many reservations. Small reservations leave free memory between
/// long-lived data, such as sleeping tasks.
const BURST_RESERVATIONS: usize = 10_000;

/// A burst can end when fewer bytes than these are held.
const CALM_BYTES: usize = 4 << 20;

/// A burst can end when fewer reservations than these were made.
const CALM_RESERVATIONS: usize = 100;

/// The time for which both conditions must hold to end a burst.
const CALM_TIME: Duration = Duration::from_secs(1);

/// A limit on the bytes that are held at once.
#[derive(Debug)]
pub struct MemoryBudget {
    max: AtomicUsize,
    held: AtomicUsize,
    /// The number of reservations that were made or enlarged. The counter wraps.
    taken: AtomicUsize,
    /// Whether a burst has begun and is not over.
    is_in_burst: AtomicBool,
    burst_ended: Notify,
}

/// Bytes of a [`MemoryBudget`], returned when dropped.
#[derive(Debug)]
pub struct Reservation {
    budget: Arc<MemoryBudget>,
    bytes: usize,
}

/// The requests hold the maximum memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "the requests in progress hold as much memory as they may ({max} bytes, max_memory_bytes); try again later"
)]
pub struct OverBudget {
    /// The limit, in bytes.
    pub max: usize,
}

impl MemoryBudget {
    /// Creates a budget of `max` bytes.
    pub fn new(max: usize) -> Self {
        Self {
            max: AtomicUsize::new(max),
            held: AtomicUsize::new(0),
            taken: AtomicUsize::new(0),
            is_in_burst: AtomicBool::new(false),
            burst_ended: Notify::new(),
        }
    }

    /// Waits for the end of a burst: much memory was held (32 MiB, or 10,000 reservations in sequence),
    /// and for a quiet second hardly any is (4 MiB). The allocator can then return much memory to the
    /// system. One task may wait at a time.
    pub async fn burst_over(&self) {
        self.burst_ended.notified().await;
        loop {
            let taken = self.taken.load(Ordering::Relaxed);
            tokio::time::sleep(CALM_TIME).await;
            let since = self.taken.load(Ordering::Relaxed).wrapping_sub(taken);
            if self.held() < CALM_BYTES && since < CALM_RESERVATIONS {
                return;
            }
        }
    }

    /// Returns the limit, in bytes.
    pub fn max(&self) -> usize {
        self.max.load(Ordering::Relaxed)
    }

    /// Returns the number of reserved bytes.
    pub fn held(&self) -> usize {
        self.held.load(Ordering::Relaxed)
    }

    /// Changes the limit. Existing reservations stay.
    pub(crate) fn set_max(&self, max: usize) {
        self.max.store(max, Ordering::Relaxed);
    }

    /// Reserves bytes.
    ///
    /// # Errors
    /// There are not as many left.
    pub fn reserve(self: &Arc<Self>, bytes: usize) -> Result<Reservation, OverBudget> {
        let mut reservation = Reservation { budget: Arc::clone(self), bytes: 0 };
        reservation.resize(bytes)?;
        Ok(reservation)
    }

    fn take(&self, bytes: usize) -> Result<(), OverBudget> {
        let max = self.max();
        let add = |held: usize| held.checked_add(bytes).filter(|held| *held <= max);
        let before = self.held.fetch_update(Ordering::Relaxed, Ordering::Relaxed, add);
        let before = before.map_err(|_| OverBudget { max })?;
        let is_one_of_many =
            self.taken.fetch_add(1, Ordering::Relaxed) % BURST_RESERVATIONS == BURST_RESERVATIONS - 1;
        if before + bytes >= BURST_BYTES && !self.is_in_burst.load(Ordering::Relaxed) || is_one_of_many {
            self.is_in_burst.store(true, Ordering::Relaxed);
        }
        Ok(())
    }

    fn give_back(&self, bytes: usize) {
        let left = self.held.fetch_sub(bytes, Ordering::Relaxed) - bytes;
        if left < CALM_BYTES
            && self.is_in_burst.load(Ordering::Relaxed)
            && self.is_in_burst.swap(false, Ordering::Relaxed)
        {
            self.burst_ended.notify_one();
        }
    }
}

impl Reservation {
    /// Returns the reserved bytes.
    pub fn bytes(&self) -> usize {
        self.bytes
    }

    /// Changes the number of reserved bytes. A decrease always succeeds.
    ///
    /// # Errors
    /// There are not as many left; the reservation is as it was.
    pub fn resize(&mut self, bytes: usize) -> Result<(), OverBudget> {
        let before = self.bytes;
        if bytes <= before {
            self.budget.give_back(before - bytes);
        } else {
            self.budget.take(bytes - before)?;
        }
        self.bytes = bytes;
        Ok(())
    }
}

impl Drop for Reservation {
    fn drop(&mut self) {
        self.budget.give_back(self.bytes);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use tokio_util::task::TaskTracker;

    #[test]
    fn reservations_stay_within_the_bound_and_are_returned() {
        let budget = Arc::new(MemoryBudget::new(100));
        let mut one = budget.reserve(60).unwrap();
        assert_eq!(budget.reserve(41).unwrap_err(), OverBudget { max: 100 });
        let two = budget.reserve(40).unwrap();
        assert_eq!(one.resize(61), Err(OverBudget { max: 100 }));
        assert_eq!((one.bytes(), budget.held()), (60, 100));
        drop(two);
        one.resize(90).unwrap();
        one.resize(5).unwrap();
        assert_eq!(budget.held(), 5);
        budget.set_max(1);
        assert!(budget.reserve(1).is_err());
        drop(one);
        assert_eq!(budget.held(), 0);
        assert!(budget.reserve(1).is_ok());
    }
    #[tokio::test(start_paused = true)]
    async fn the_end_of_a_burst_is_reported_once_and_when_it_is_calm() {
        use tokio::time::timeout;
        let budget = Arc::new(MemoryBudget::new(BURST_BYTES * 2));
        let long = CALM_TIME * 10;
        drop(budget.reserve(BURST_BYTES - 1).unwrap());
        assert!(timeout(long, budget.burst_over()).await.is_err(), "that was no burst");
        let two = [budget.reserve(BURST_BYTES / 2).unwrap(), budget.reserve(BURST_BYTES / 2).unwrap()];
        assert!(timeout(long, budget.burst_over()).await.is_err(), "it is not over");
        drop(two);
        timeout(long, budget.burst_over()).await.expect("it is over");
        assert!(timeout(long, budget.burst_over()).await.is_err(), "it is reported once");
        drop(budget.reserve(BURST_BYTES).unwrap());
        let next = budget.reserve(CALM_BYTES).unwrap();
        assert!(timeout(long, budget.burst_over()).await.is_err(), "the next has begun");
        drop(next);
    }

    #[tokio::test(start_paused = true)]
    async fn many_small_reservations_are_a_burst_and_it_lasts_while_they_are_made() {
        use tokio::time::timeout;
        let budget = Arc::new(MemoryBudget::new(BURST_BYTES));
        for _ in 0..BURST_RESERVATIONS {
            drop(budget.reserve(1).unwrap());
        }
        let tracker = TaskTracker::new();
        let over = tracker.spawn({
            let budget = Arc::clone(&budget);
            async move { budget.burst_over().await }
        });
        for _ in 0..20 {
            tokio::time::sleep(CALM_TIME / 2).await;
            (0..CALM_RESERVATIONS).for_each(|_| drop(budget.reserve(1).unwrap()));
        }
        assert!(!over.is_finished(), "it goes on");
        timeout(CALM_TIME * 3, over).await.expect("it is over").expect("it ends");
    }
}
