//! Limits how many calls run at once and how many wait, and decides whose turn it is.
//!
//! A call that finds a free permit takes it, unless its provider already holds its full share. Other
//! calls wait in a [`FairQueue`]. A slow provider therefore leaves permits to the others, and a
//! principal with many calls delays another principal by one call at most.

pub(crate) mod breaker;
mod fair_queue;

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use async_trait::async_trait;
use parking_lot::Mutex;
use tokio::sync::oneshot;

use crate::client::{Client, ClientError};
use crate::payload::JsonText;
use crate::principal::Principal;
use fair_queue::{Caller, FairQueue};

/// The limits of an [`Admission`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Bounds {
    /// The maximum number of running calls, at least one.
    pub(crate) running: usize,
    /// The maximum number of running calls of one provider, at least one.
    pub(crate) of_one_provider: usize,
    /// The maximum number of waiting calls.
    pub(crate) waiting: usize,
}

/// Lets a bounded number of calls run, and a bounded number wait for their turn.
#[derive(Debug)]
pub(crate) struct Admission {
    state: Mutex<State>,
    /// The number of calls that returned their permits to ask their clients, and have no new permits
    /// yet.
    away: AtomicUsize,
}

/// Invariant: no waiting call could run.
#[derive(Debug)]
struct State {
    bounds: Bounds,
    running: Running,
    queue: FairQueue<Waiter>,
    tickets: u64,
}

/// The running calls.
#[derive(Debug, Default)]
struct Running {
    all: usize,
    /// Only providers with running calls have an entry.
    by_provider: HashMap<Arc<str>, usize>,
}

/// A call in the queue.
#[derive(Debug)]
struct Waiter {
    ticket: u64,
    provider: Arc<str>,
    answer: oneshot::Sender<Result<Permit, Full>>,
}

/// The position of a call in the queue, and the provider whose share it uses.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Lane<'a> {
    pub(crate) principal: Option<&'a Principal>,
    pub(crate) capability: &'a Arc<str>,
    pub(crate) provider: &'a Arc<str>,
}

/// The permission to run. Dropping it passes the permission to the next call.
#[derive(Debug)]
pub(crate) struct Permit {
    admission: Arc<Admission>,
    provider: Arc<str>,
}

impl Drop for Permit {
    fn drop(&mut self) {
        self.admission.release(&self.provider);
    }
}

/// The permits held by a call and its ancestors, to detect calls that would wait for themselves.
#[derive(Debug)]
pub(crate) struct HeldPermits {
    admission: Arc<Admission>,
    outer: Option<Arc<Self>>,
}

impl HeldPermits {
    /// Returns the permits of a call: of its own admission, if it has one, and of the calls around it,
    /// `outer`.
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

    /// Returns the number of permits, if the ancestors of a call hold all of them. The call would wait
    /// for its ancestors, which wait for the call.
    pub(crate) fn waits_for_itself(&self) -> Option<usize> {
        let mut held = 0;
        let mut outer = self.outer.as_ref();
        while let Some(call) = outer {
            held += usize::from(Arc::ptr_eq(&call.admission, &self.admission));
            outer = call.outer.as_ref();
        }
        let size = self.admission.state.lock().bounds.running;
        (held >= size).then_some(size)
    }
}

/// The queue is full.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Full {
    pub(crate) running: usize,
    pub(crate) waiting: usize,
}

impl Running {
    fn admits(&self, provider: &str, bounds: &Bounds) -> bool {
        self.all < bounds.running
            && self.by_provider.get(provider).copied().unwrap_or_default() < bounds.of_one_provider
    }

    fn begin(&mut self, provider: &Arc<str>) {
        self.all += 1;
        *self.by_provider.entry(Arc::clone(provider)).or_default() += 1;
    }

    fn end(&mut self, provider: &str) {
        self.all -= 1;
        if let Some(running) = self.by_provider.get_mut(provider) {
            *running -= 1;
            if *running == 0 {
                self.by_provider.remove(provider);
            }
        }
    }
}

impl State {
    /// Takes the next call out of the queue that can run, and counts it as running.
    fn begin_next(&mut self) -> Option<Waiter> {
        let Self { bounds, running, queue, .. } = self;
        if running.all >= bounds.running {
            return None;
        }
        let next = queue.pop(|waiter| running.admits(&waiter.provider, bounds))?;
        running.begin(&next.provider);
        Some(next)
    }

    fn full(&self) -> Full {
        Full { running: self.running.all, waiting: self.queue.len() }
    }
}

impl Admission {
    pub(crate) fn new(bounds: Bounds) -> Self {
        let (running, queue) = (Running::default(), FairQueue::default());
        let state = State { bounds: bounds.normal(), running, queue, tickets: 0 };
        Self { state: Mutex::new(state), away: AtomicUsize::new(0) }
    }

    /// Sets other limits. Running calls continue, and waiting calls that can run now are admitted.
    pub(crate) fn resize(self: &Arc<Self>, bounds: Bounds) {
        let bounds = bounds.normal();
        let before = std::mem::replace(&mut self.state.lock().bounds, bounds);
        if before != bounds {
            self.let_in();
        }
    }

    /// Waits for a permit.
    ///
    /// # Errors
    /// [`Full`] if the queue is full. If one principal fills the queue, its newest call is refused.
    pub(crate) async fn enter(self: &Arc<Self>, lane: Lane<'_>) -> Result<Permit, Full> {
        let Some(mut waiting) = self.enter_or_join(lane)? else { return Ok(self.permit(lane.provider)) };
        let answer = (&mut waiting.answer).await;
        // The sender is dropped only with the admission, which this call holds.
        answer.unwrap_or_else(|_| Err(self.state.lock().full()))
    }

    /// Counts a call as running, or puts it into the queue.
    fn enter_or_join<'a>(self: &'a Arc<Self>, lane: Lane<'a>) -> Result<Option<Waiting<'a>>, Full> {
        let mut state = self.state.lock();
        let bounds = state.bounds;
        if state.running.admits(lane.provider, &bounds) {
            state.running.begin(lane.provider);
            return Ok(None);
        }
        let caller: Caller = lane.principal.map(|principal| Arc::clone(principal.id()));
        let full = state.full();
        if full.waiting >= bounds.waiting {
            let refused = if bounds.waiting == 0 { None } else { state.queue.evict_for(&caller) };
            // The receiver may be gone.
            drop(refused.ok_or(full)?.answer.send(Err(full)));
        }
        state.tickets += 1;
        let ticket = state.tickets;
        let (sender, answer) = oneshot::channel();
        let waiter = Waiter { ticket, provider: Arc::clone(lane.provider), answer: sender };
        state.queue.push(&caller, lane.capability, waiter);
        Ok(Some(Waiting { admission: self, caller, capability: lane.capability, ticket, answer }))
    }

    /// Returns a permit if one is free, ahead of all waiting calls.
    fn try_enter(self: &Arc<Self>, provider: &Arc<str>) -> Option<Permit> {
        let mut state = self.state.lock();
        let admits = state.running.admits(provider, &state.bounds);
        admits.then(|| {
            state.running.begin(provider);
            self.permit(provider)
        })
    }

    /// Returns the permit of a call that is counted as running.
    fn permit(self: &Arc<Self>, provider: &Arc<str>) -> Permit {
        Permit { admission: Arc::clone(self), provider: Arc::clone(provider) }
    }

    /// Records the end of a call, and admits the calls that can run now.
    fn release(self: &Arc<Self>, provider: &str) {
        self.state.lock().running.end(provider);
        self.let_in();
    }

    fn let_in(self: &Arc<Self>) {
        let next: Vec<Waiter> = {
            let mut state = self.state.lock();
            std::iter::from_fn(|| state.begin_next()).collect()
        };
        for Waiter { provider, answer, .. } in next {
            // If the caller is gone, its permit is dropped here, which admits the next call.
            drop(answer.send(Ok(self.permit(&provider))));
        }
    }

    pub(crate) fn running(&self) -> usize {
        self.state.lock().running.all
    }

    pub(crate) fn waiting(&self) -> usize {
        self.state.lock().queue.len()
    }
}

impl Bounds {
    fn normal(self) -> Self {
        let running = self.running.max(1);
        Self { running, of_one_provider: self.of_one_provider.clamp(1, running), ..self }
    }
}

/// One call in the queue; leaves it when dropped, however the call ends.
struct Waiting<'a> {
    admission: &'a Admission,
    caller: Caller,
    capability: &'a Arc<str>,
    ticket: u64,
    answer: oneshot::Receiver<Result<Permit, Full>>,
}

impl Drop for Waiting<'_> {
    fn drop(&mut self) {
        let is_own = |waiter: &Waiter| waiter.ticket == self.ticket;
        let mut state = self.admission.state.lock();
        drop(state.queue.remove(&self.caller, self.capability, is_own));
    }
}

/// The permit of a call that may ask its client or make nested calls. The call returns the permit
/// meanwhile: a user may take minutes to answer, and nested calls need permits themselves.
///
/// When the answer arrives, the call takes a permit if one is free, and otherwise continues without one,
/// because the calls that hold the permits may be waiting for it. The number of running calls may
/// therefore exceed the number of permits, by at most the number of calls that may wait for an answer.
#[derive(Debug)]
pub(crate) struct CallPermit {
    admission: Arc<Admission>,
    provider: Arc<str>,
    held: Mutex<Held>,
}

#[derive(Debug, Default)]
struct Held {
    permit: Option<Permit>,
    /// The call returned its permit, and has no new one yet.
    away: bool,
    /// The number of questions that wait for their answers.
    asking: usize,
}

impl CallPermit {
    /// Creates the permit of a call that has not been admitted yet.
    pub(crate) fn new(admission: &Arc<Admission>, provider: &Arc<str>) -> Arc<Self> {
        let (admission, provider) = (Arc::clone(admission), Arc::clone(provider));
        Arc::new(Self { admission, provider, held: Mutex::default() })
    }

    /// Marks the call as running, until the guard is dropped.
    pub(crate) fn hold(self: &Arc<Self>, permit: Permit) -> RunningCall {
        self.held.lock().permit = Some(permit);
        RunningCall(Arc::clone(self))
    }

    /// Returns the permit while the call waits for a long operation, until the guard is dropped.
    pub(crate) fn lend(&self) -> Lent<'_> {
        let mut held = self.held.lock();
        held.asking += 1;
        let max_away = || self.admission.state.lock().bounds.waiting;
        if held.permit.is_some() && one_more(&self.admission.away, max_away()) {
            held.permit = None;
            held.away = true;
        }
        Lent(self)
    }

    /// Wraps the client of the call, so that the call lends its permit while the client is asked.
    pub(crate) fn lent_while_asking(self: &Arc<Self>, client: Arc<dyn Client>) -> Arc<dyn Client> {
        Arc::new(LendingClient { client, permit: Arc::clone(self) })
    }
}

/// Increments a count, unless the count is at its limit. Returns whether it did.
fn one_more(count: &AtomicUsize, max: usize) -> bool {
    let next = |now: usize| (now < max).then_some(now + 1);
    count.fetch_update(Ordering::Relaxed, Ordering::Relaxed, next).is_ok()
}

/// A call that runs and holds its [`CallPermit`].
pub(crate) struct RunningCall(Arc<CallPermit>);

impl Drop for RunningCall {
    fn drop(&mut self) {
        let mut held = self.0.held.lock();
        held.permit = None;
        if std::mem::take(&mut held.away) {
            self.0.admission.away.fetch_sub(1, Ordering::Relaxed);
        }
    }
}

/// A question, or a nested call, that waits for its answer.
pub(crate) struct Lent<'a>(&'a CallPermit);

impl Drop for Lent<'_> {
    fn drop(&mut self) {
        let mut held = self.0.held.lock();
        held.asking -= 1;
        // A question may outlive its call. In that case the call no longer waits for it.
        if held.asking == 0 && held.away {
            held.permit = self.0.admission.try_enter(&self.0.provider);
            if held.permit.is_some() {
                held.away = false;
                self.0.admission.away.fetch_sub(1, Ordering::Relaxed);
            }
        }
    }
}

/// A call's client. The call lends its permit while the client is asked.
struct LendingClient {
    client: Arc<dyn Client>,
    permit: Arc<CallPermit>,
}

#[async_trait]
impl Client for LendingClient {
    fn capabilities(&self) -> JsonText {
        self.client.capabilities()
    }

    fn session(&self) -> Option<u64> {
        self.client.session()
    }

    async fn request(&self, method: &str, params: JsonText) -> Result<JsonText, ClientError> {
        let _lent = self.permit.lend();
        self.client.request(method, params).await
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use futures_util::FutureExt;
    use futures_util::future::BoxFuture;
    use proptest::prelude::*;

    fn admission(running: usize, waiting: usize) -> Arc<Admission> {
        Arc::new(Admission::new(Bounds { running, of_one_provider: running, waiting }))
    }

    /// Enters as `caller`, for a capability of a provider with the same name.
    fn enter(
        admission: &Arc<Admission>,
        caller: &str,
        provider: &str,
    ) -> BoxFuture<'static, Result<Permit, Full>> {
        let admission = Arc::clone(admission);
        let (principal, provider) = (Principal::token(caller), Arc::<str>::from(provider));
        Box::pin(async move {
            let (capability, provider) = (&provider, &provider);
            admission.enter(Lane { principal: Some(&principal), capability, provider }).await
        })
    }

    #[tokio::test]
    async fn other_bounds_hold_for_the_calls_that_run_and_wait() {
        let admission = admission(1, 9);
        let first = enter(&admission, "a", "p").await.unwrap();
        let mut waiting: Vec<_> = (0..3).map(|_| enter(&admission, "a", "p")).collect();
        for call in &mut waiting {
            assert!(call.as_mut().now_or_never().is_none());
        }
        admission.resize(Bounds { running: 3, of_one_provider: 3, waiting: 9 });
        assert_eq!((admission.running(), admission.waiting()), (3, 1));
        let mut last = waiting.pop().unwrap();
        let let_in: Vec<_> = waiting.into_iter().map(|call| call.now_or_never().unwrap()).collect();
        admission.resize(Bounds { running: 1, of_one_provider: 1, waiting: 9 });
        drop(first);
        assert!(last.as_mut().now_or_never().is_none(), "two still run");
        drop(let_in);
        assert!(last.await.is_ok());
    }

    #[tokio::test]
    async fn the_queue_is_bounded_and_a_caller_who_leaves_frees_its_place() {
        let admission = admission(1, 1);
        let first = enter(&admission, "a", "p").await.unwrap();
        {
            let mut second = enter(&admission, "a", "p");
            assert!(second.as_mut().now_or_never().is_none());
            assert_eq!(enter(&admission, "a", "p").await.unwrap_err(), Full { running: 1, waiting: 1 });
        }
        assert_eq!(admission.waiting(), 0);
        drop(first);
        assert!(enter(&admission, "a", "p").await.is_ok());
        assert_eq!(admission.running(), 0);
    }

    #[tokio::test]
    async fn one_provider_leaves_permits_to_the_others() {
        let bounds = Bounds { running: 4, of_one_provider: 3, waiting: 8 };
        let admission = Arc::new(Admission::new(bounds));
        let mut slow: Vec<_> = (0..5).map(|_| enter(&admission, "a", "slow")).collect();
        let running: Vec<_> = slow.iter_mut().filter_map(FutureExt::now_or_never).collect();
        assert_eq!((running.len(), admission.waiting()), (3, 2));
        let quick = enter(&admission, "a", "quick").now_or_never().unwrap();
        assert!(enter(&admission, "a", "third").now_or_never().is_none());
        drop(quick);
        assert_eq!(admission.running(), 3, "those that wait are of the provider with its share");
        drop(running);
        assert_eq!(admission.running(), 2);
    }

    #[tokio::test]
    async fn a_principal_with_many_calls_delays_another_by_one() {
        let admission = admission(1, 8);
        let running = enter(&admission, "bob", "p").await.unwrap();
        let mut bob: Vec<_> = (0..4).map(|_| enter(&admission, "bob", "p")).collect();
        assert!(bob.iter_mut().all(|call| call.now_or_never().is_none()));
        let mut ada = enter(&admission, "ada", "p");
        assert!(ada.as_mut().now_or_never().is_none());
        drop(running);
        assert!(ada.now_or_never().unwrap().is_ok());
    }

    #[tokio::test]
    async fn a_full_queue_refuses_the_principal_that_fills_it() {
        let admission = admission(1, 3);
        let _running = enter(&admission, "bob", "p").await.unwrap();
        let mut bob: Vec<_> = (0..3).map(|_| enter(&admission, "bob", "p")).collect();
        assert!(bob.iter_mut().all(|call| call.now_or_never().is_none()));
        let mut ada = enter(&admission, "ada", "p");
        assert!(ada.as_mut().now_or_never().is_none());
        assert!(bob.pop().unwrap().now_or_never().unwrap().is_err());
        assert_eq!(admission.waiting(), 3);
    }

    #[derive(Clone, Debug)]
    enum Step {
        Enter(u8, u8),
        /// Drops one of the calls that wait, or a permit.
        Drop(usize),
    }

    proptest! {
        #[test]
        fn no_permit_leaks_and_none_is_idle_while_a_call_waits_for_it(
            steps in prop::collection::vec(prop_oneof![
                (0..3u8, 0..3u8).prop_map(|(who, provider)| Step::Enter(who, provider)),
                (0..12usize).prop_map(Step::Drop),
            ], 0..80)
        ) {
            let bounds = Bounds { running: 4, of_one_provider: 2, waiting: 5 };
            let admission = Arc::new(Admission::new(bounds));
            let mut calls: Vec<(u8, BoxFuture<'static, _>, Option<Permit>)> = Vec::new();
            for step in steps {
                match step {
                    Step::Enter(who, provider) => {
                        let call = enter(&admission, &who.to_string(), &provider.to_string());
                        calls.push((provider, call, None));
                    }
                    Step::Drop(at) => if at < calls.len() { drop(calls.swap_remove(at)) },
                }
                // A call that enters may cause an earlier one to be refused.
                for _ in 0..2 {
                    calls.retain_mut(|(_, call, permit)| {
                        let is_waiting = permit.is_none();
                        let answer = is_waiting.then(|| call.as_mut().now_or_never()).flatten();
                        let is_refused = matches!(answer, Some(Err(Full { .. })));
                        *permit = permit.take().or_else(|| answer.and_then(Result::ok));
                        !is_refused
                    });
                }
                let running = |provider: u8| calls.iter().filter(|call| call.0 == provider && call.2.is_some()).count();
                let all: usize = (0..3).map(running).sum();
                prop_assert_eq!((admission.running(), admission.waiting()), (all, calls.len() - all));
                prop_assert!(all <= 4 && admission.waiting() <= 5);
                prop_assert!((0..3).all(|provider| running(provider) <= 2));
                let could_run = |call: &(u8, _, Option<Permit>)| call.2.is_none() && all < 4 && running(call.0) < 2;
                prop_assert!(!calls.iter().any(could_run));
            }
            drop(calls);
            prop_assert_eq!((admission.running(), admission.waiting()), (0, 0));
            prop_assert!(admission.state.lock().running.by_provider.is_empty());
        }
    }

    /// A client that never answers.
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

    fn asking(admission: &Arc<Admission>) -> (Arc<CallPermit>, LendingClient) {
        let permit = CallPermit::new(admission, &"p".into());
        (Arc::clone(&permit), LendingClient { client: Arc::new(Absent), permit })
    }

    fn ask(client: &LendingClient) -> impl Future<Output = Result<JsonText, ClientError>> + Unpin {
        let mut question = client.request("roots/list", JsonText::parse("{}").unwrap());
        assert!(question.as_mut().now_or_never().is_none());
        question
    }

    #[tokio::test]
    async fn a_call_that_waits_for_its_client_lends_its_permit() {
        let admission = admission(1, 2);
        let (permit, client) = asking(&admission);
        let running = permit.hold(enter(&admission, "a", "p").await.unwrap());
        let (one, two) = (ask(&client), ask(&client));
        assert_eq!(admission.running(), 0);
        let other = enter(&admission, "a", "p").await.unwrap();
        drop(one);
        drop(two);
        assert_eq!(admission.running(), 1, "it goes on without a permit");
        drop(other);
        let again = ask(&client);
        drop(again);
        assert_eq!(admission.running(), 1, "it has a permit again");
        let late = ask(&client);
        drop(running);
        drop(late);
        assert_eq!((admission.running(), admission.away.load(Ordering::Relaxed)), (0, 0));
    }

    #[tokio::test]
    async fn as_many_are_away_as_may_wait() {
        let admission = admission(1, 1);
        let (first, second) = (asking(&admission), asking(&admission));
        let first_runs = first.0.hold(enter(&admission, "a", "p").await.unwrap());
        let first_asks = ask(&first.1);
        let second_runs = second.0.hold(enter(&admission, "a", "p").await.unwrap());
        let second_asks = ask(&second.1);
        assert_eq!(admission.running(), 1, "the second keeps its permit");
        drop((first_asks, first_runs));
        assert!(enter(&admission, "a", "p").now_or_never().is_none());
        drop((second_asks, second_runs));
        assert_eq!((admission.running(), admission.away.load(Ordering::Relaxed)), (0, 0));
    }
}
