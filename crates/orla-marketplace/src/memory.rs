//! How much memory the requests of an instance hold together.
//!
//! Request bodies and the values of programs are reserved as they grow, outputs when they are complete.
//! Reservations end when they are dropped. At the bound, a request fails as `busy` before it costs more.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

/// A bound on the bytes that are held at once.
#[derive(Debug)]
pub struct MemoryBudget {
    max: AtomicUsize,
    held: AtomicUsize,
}

/// Bytes of a [`MemoryBudget`]; given back when dropped.
#[derive(Debug)]
pub struct Reservation {
    budget: Arc<MemoryBudget>,
    bytes: usize,
}

/// The requests hold as much memory as they may.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "the requests in progress hold as much memory as they may ({max} bytes, max_memory_bytes); try again later"
)]
pub struct OverBudget {
    /// The bound, in bytes.
    pub max: usize,
}

impl MemoryBudget {
    /// A budget of `max` bytes.
    pub fn new(max: usize) -> Self {
        Self { max: AtomicUsize::new(max), held: AtomicUsize::new(0) }
    }

    /// The bound, in bytes.
    pub fn max(&self) -> usize {
        self.max.load(Ordering::Relaxed)
    }

    /// The bytes that are reserved at the moment.
    pub fn held(&self) -> usize {
        self.held.load(Ordering::Relaxed)
    }

    /// Changes the bound. What is held stays.
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
}

impl Reservation {
    /// The bytes of it.
    pub fn bytes(&self) -> usize {
        self.bytes
    }

    /// Changes how many bytes are reserved. Fewer are always granted.
    ///
    /// # Errors
    /// There are not as many left; the reservation is as it was.
    pub fn resize(&mut self, bytes: usize) -> Result<(), OverBudget> {
        let (budget, before) = (&*self.budget, self.bytes);
        if bytes <= before {
            budget.held.fetch_sub(before - bytes, Ordering::Relaxed);
        } else {
            let (more, max) = (bytes - before, budget.max());
            let add = |held: usize| held.checked_add(more).filter(|held| *held <= max);
            let added = budget.held.fetch_update(Ordering::Relaxed, Ordering::Relaxed, add);
            added.map_err(|_| OverBudget { max })?;
        }
        self.bytes = bytes;
        Ok(())
    }
}

impl Drop for Reservation {
    fn drop(&mut self) {
        self.budget.held.fetch_sub(self.bytes, Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_more_is_reserved_than_the_bound_and_all_of_it_comes_back() {
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
}
