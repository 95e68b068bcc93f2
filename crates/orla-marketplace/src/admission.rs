//! How many calls run at once, and how many may wait for their turn.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use tokio::sync::{OwnedSemaphorePermit, Semaphore, TryAcquireError};

/// Lets a bounded number of calls in, and a bounded number wait in the order they came.
#[derive(Debug)]
pub(crate) struct Admission {
    places: Arc<Semaphore>,
    size: usize,
    waiting: AtomicUsize,
    max_waiting: usize,
}

/// A call's place; giving it back is dropping it.
#[derive(Debug)]
pub(crate) struct Place {
    _permit: OwnedSemaphorePermit,
}

/// More calls wait than may.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Full {
    pub(crate) running: usize,
    pub(crate) waiting: usize,
}

impl Admission {
    /// Room for `size` calls at once (at least one) and `max_waiting` in the queue.
    pub(crate) fn new(size: usize, max_waiting: usize) -> Self {
        let size = size.clamp(1, Semaphore::MAX_PERMITS);
        Self { places: Arc::new(Semaphore::new(size)), size, waiting: AtomicUsize::new(0), max_waiting }
    }

    /// Waits for a place.
    ///
    /// # Errors
    /// [`Full`], at once, when the queue is.
    pub(crate) async fn enter(&self) -> Result<Place, Full> {
        match Arc::clone(&self.places).try_acquire_owned() {
            Ok(permit) => return Ok(Place { _permit: permit }),
            Err(TryAcquireError::NoPermits | TryAcquireError::Closed) => {}
        }
        let waiting = Waiting::join(self).ok_or_else(|| self.full())?;
        let permit = Arc::clone(&self.places).acquire_owned().await;
        drop(waiting);
        permit.map(|permit| Place { _permit: permit }).map_err(|_| self.full())
    }

    pub(crate) fn running(&self) -> usize {
        self.size.saturating_sub(self.places.available_permits())
    }

    pub(crate) fn waiting(&self) -> usize {
        self.waiting.load(Ordering::Relaxed)
    }

    fn full(&self) -> Full {
        Full { running: self.running(), waiting: self.waiting() }
    }
}

/// One call in the queue; leaves it when dropped, however the call ends.
struct Waiting<'a>(&'a AtomicUsize);

impl<'a> Waiting<'a> {
    fn join(admission: &'a Admission) -> Option<Self> {
        let one_more = |now: usize| (now < admission.max_waiting).then_some(now + 1);
        let joined = admission.waiting.fetch_update(Ordering::Relaxed, Ordering::Relaxed, one_more);
        joined.ok().map(|_| Self(&admission.waiting))
    }
}

impl Drop for Waiting<'_> {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use futures_util::FutureExt;

    #[tokio::test]
    async fn the_queue_is_bounded_and_a_caller_who_leaves_frees_its_place() {
        let admission = Admission::new(1, 1);
        let first = admission.enter().await.unwrap();
        {
            let mut second = Box::pin(admission.enter());
            assert!(second.as_mut().now_or_never().is_none());
            assert_eq!(admission.enter().await.unwrap_err(), Full { running: 1, waiting: 1 });
        }
        assert_eq!(admission.waiting(), 0);
        drop(first);
        assert!(admission.enter().await.is_ok());
        assert_eq!(admission.running(), 0);
    }
}
