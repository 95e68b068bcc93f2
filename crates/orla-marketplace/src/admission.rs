//! How many calls run at once, and how many may wait for their turn.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use async_trait::async_trait;
use tokio::sync::{OwnedSemaphorePermit, Semaphore, TryAcquireError};

use crate::client::{Client, ClientError};
use crate::payload::JsonText;

/// Lets a bounded number of calls in, and a bounded number wait in the order they came.
#[derive(Debug)]
pub(crate) struct Admission {
    places: Arc<Semaphore>,
    size: usize,
    waiting: AtomicUsize,
    /// Calls that gave their places back to ask their clients, and have none again.
    away: AtomicUsize,
    max_waiting: usize,
}

/// A call's place; giving it back is dropping it.
#[derive(Debug)]
pub(crate) struct Place {
    _permit: OwnedSemaphorePermit,
}

/// A place that a call holds while it makes calls of its own, and those of the calls that it is within.
#[derive(Debug)]
pub(crate) struct Holding {
    admission: Arc<Admission>,
    outer: Option<Arc<Self>>,
}

impl Holding {
    /// What a call holds that has this admission of its own, if any, within calls that hold `outer`.
    pub(crate) fn with(
        admission: Option<&Arc<Admission>>,
        outer: Option<&Arc<Self>>,
    ) -> Option<Arc<Self>> {
        let outer = outer.map(Arc::clone);
        match admission {
            Some(admission) => Some(Arc::new(Self { admission: Arc::clone(admission), outer })),
            None => outer,
        }
    }

    /// How many may run at once, where a call would wait for the calls that it is within: they hold all places, and
    /// wait for it.
    pub(crate) fn waits_for_itself(&self) -> Option<usize> {
        let mut held = 0;
        let mut outer = self.outer.as_ref();
        while let Some(call) = outer {
            held += usize::from(Arc::ptr_eq(&call.admission, &self.admission));
            outer = call.outer.as_ref();
        }
        (held >= self.admission.size).then_some(self.admission.size)
    }
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
        Self {
            places: Arc::new(Semaphore::new(size)),
            size,
            waiting: AtomicUsize::new(0),
            away: AtomicUsize::new(0),
            max_waiting,
        }
    }

    /// Whether it was made with these bounds.
    pub(crate) fn has(&self, size: usize, max_waiting: usize) -> bool {
        (self.size, self.max_waiting) == (size.clamp(1, Semaphore::MAX_PERMITS), max_waiting)
    }

    /// Waits for a place.
    ///
    /// # Errors
    /// [`Full`], at once, when the queue is.
    pub(crate) async fn enter(&self) -> Result<Place, Full> {
        if let Some(place) = self.try_enter() {
            return Ok(place);
        }
        let waiting = Waiting::join(self).ok_or_else(|| self.full())?;
        let permit = Arc::clone(&self.places).acquire_owned().await;
        drop(waiting);
        permit.map(|permit| Place { _permit: permit }).map_err(|_| self.full())
    }

    /// A place if there is one.
    fn try_enter(&self) -> Option<Place> {
        match Arc::clone(&self.places).try_acquire_owned() {
            Ok(permit) => Some(Place { _permit: permit }),
            Err(TryAcquireError::NoPermits | TryAcquireError::Closed) => None,
        }
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
        one_more(&admission.waiting, admission.max_waiting).then(|| Self(&admission.waiting))
    }
}

impl Drop for Waiting<'_> {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::Relaxed);
    }
}

/// Adds one to a count, unless it is at its bound. Says whether it did.
fn one_more(count: &AtomicUsize, max: usize) -> bool {
    let next = |now: usize| (now < max).then_some(now + 1);
    count.fetch_update(Ordering::Relaxed, Ordering::Relaxed, next).is_ok()
}

/// The place of a call that may ask its client or make calls of its own. It is given back meanwhile: a
/// person may take minutes, and everybody else's calls would wait; and a call within a call takes a
/// place itself.
///
/// With the answer the call takes a place again if one is free, and goes on without if none is: whoever
/// holds the places may be waiting for what this call does next. So more calls than there are places
/// may run, by at most as many as may wait for one.
#[derive(Debug)]
pub(crate) struct Seat {
    admission: Arc<Admission>,
    held: Mutex<Held>,
}

#[derive(Debug, Default)]
struct Held {
    place: Option<Place>,
    /// It gave its place back and has none again.
    away: bool,
    /// Questions that wait for their answers.
    asking: usize,
}

impl Seat {
    /// The seat of a call that has not been let in yet.
    pub(crate) fn new(admission: &Arc<Admission>) -> Arc<Self> {
        Arc::new(Self { admission: Arc::clone(admission), held: Mutex::default() })
    }

    /// The call runs, until the guard is dropped.
    pub(crate) fn take(&self, place: Place) -> Seated<'_> {
        self.lock().place = Some(place);
        Seated(self)
    }

    /// The call waits for something that may take long, until the guard is dropped.
    pub(crate) fn leave(&self) -> Asking<'_> {
        let mut held = self.lock();
        held.asking += 1;
        if held.place.is_some() && one_more(&self.admission.away, self.admission.max_waiting) {
            held.place = None;
            held.away = true;
        }
        Asking(self)
    }

    fn lock(&self) -> MutexGuard<'_, Held> {
        self.held.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// A call that runs on its [`Seat`].
pub(crate) struct Seated<'a>(&'a Seat);

impl Drop for Seated<'_> {
    fn drop(&mut self) {
        let mut held = self.0.lock();
        held.place = None;
        if std::mem::take(&mut held.away) {
            self.0.admission.away.fetch_sub(1, Ordering::Relaxed);
        }
    }
}

/// A question, or a call within the call, that waits for its answer.
pub(crate) struct Asking<'a>(&'a Seat);

impl Drop for Asking<'_> {
    fn drop(&mut self) {
        let mut held = self.0.lock();
        held.asking -= 1;
        // A question may outlast its call, which is not away then any more.
        if held.asking == 0 && held.away {
            held.place = self.0.admission.try_enter();
            if held.place.is_some() {
                held.away = false;
                self.0.admission.away.fetch_sub(1, Ordering::Relaxed);
            }
        }
    }
}

/// A call's client, which is asked without the call's place.
pub(crate) struct SeatedClient {
    pub(crate) client: Arc<dyn Client>,
    pub(crate) seat: Arc<Seat>,
}

#[async_trait]
impl Client for SeatedClient {
    fn capabilities(&self) -> JsonText {
        self.client.capabilities()
    }

    fn session(&self) -> Option<u64> {
        self.client.session()
    }

    async fn request(&self, method: &str, params: JsonText) -> Result<JsonText, ClientError> {
        let _asking = self.seat.leave();
        self.client.request(method, params).await
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

    /// What a client does that is never there: it waits for ever.
    struct Absent;

    #[async_trait]
    impl Client for Absent {
        fn capabilities(&self) -> JsonText {
            JsonText::parse("{}").unwrap()
        }

        async fn request(&self, _: &str, _: JsonText) -> Result<JsonText, ClientError> {
            std::future::pending().await
        }
    }

    fn seated(admission: &Arc<Admission>) -> (Arc<Seat>, SeatedClient) {
        let seat = Seat::new(admission);
        (Arc::clone(&seat), SeatedClient { client: Arc::new(Absent), seat })
    }

    fn ask(client: &SeatedClient) -> impl Future<Output = Result<JsonText, ClientError>> + Unpin {
        let mut question = client.request("roots/list", JsonText::parse("{}").unwrap());
        assert!(question.as_mut().now_or_never().is_none());
        question
    }

    #[tokio::test]
    async fn a_call_whose_client_is_asked_holds_up_nobody() {
        let admission = Arc::new(Admission::new(1, 2));
        let (seat, client) = seated(&admission);
        let running = seat.take(admission.enter().await.unwrap());
        let (one, two) = (ask(&client), ask(&client));
        assert_eq!(admission.running(), 0);
        let other = admission.enter().await.unwrap();
        drop(one);
        drop(two);
        assert_eq!(admission.running(), 1, "it goes on, and waits for nobody");
        drop(other);
        let again = ask(&client);
        drop(again);
        assert_eq!(admission.running(), 1, "it has a place again");
        let late = ask(&client);
        drop(running);
        drop(late);
        assert_eq!((admission.running(), admission.away.load(Ordering::Relaxed)), (0, 0));
    }

    #[tokio::test]
    async fn as_many_are_away_as_may_wait() {
        let admission = Arc::new(Admission::new(1, 1));
        let (first, second) = (seated(&admission), seated(&admission));
        let first_runs = first.0.take(admission.enter().await.unwrap());
        let first_asks = ask(&first.1);
        let second_runs = second.0.take(admission.enter().await.unwrap());
        let second_asks = ask(&second.1);
        assert_eq!(admission.running(), 1, "the second keeps its place");
        drop((first_asks, first_runs));
        assert!(admission.enter().now_or_never().is_none());
        drop((second_asks, second_runs));
        assert_eq!((admission.running(), admission.away.load(Ordering::Relaxed)), (0, 0));
    }
}
