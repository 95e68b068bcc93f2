//! A call as its caller describes it, and as an executor sees it.

use std::any::Any;
use std::sync::Arc;
use std::time::Duration;

use tokio::time::{Instant, sleep};
use tokio_util::sync::CancellationToken;

use super::answers::Answers;
use super::checkpoint::Checkpoint;
use super::clock::{Clock, Paused};
use super::hops::Hops;
use crate::admission::{CallPermit, HeldPermits};
use crate::attestation::Custody;
use crate::catalog::Catalog;
use crate::client::Client;
use crate::error::{RuntimeError, RuntimeResult};
use crate::journal::Journal;
use crate::notice::NoticeSink;
use crate::outcome::Outcome;
use crate::payload::Payload;
use crate::permission::Permission;
use crate::principal::Principal;
use crate::provider::network_permission;
use crate::surface::Item;

/// A call to be made.
#[derive(Clone)]
#[non_exhaustive]
pub struct Call {
    /// The capability's id or MCP name.
    pub target: String,
    /// The input.
    pub input: Payload,
    /// A timeout that is shorter than the capability's own, if the caller has less time.
    pub timeout: Option<Duration>,
    /// The timeout of a capability that declares none. `None` means the server's. Nested calls do not inherit it.
    pub default_timeout: Option<Duration>,
    /// The caller and its context.
    pub scope: Box<CallScope>,
}

/// The caller of a call and its context. Nested calls inherit it.
#[derive(Clone, Default)]
#[non_exhaustive]
pub struct CallScope {
    /// The caller, if known.
    pub principal: Option<Principal>,
    /// The client program that the outermost call came from, as far as it is known.
    pub origin: Origin,
    /// Receives questions to the caller's client; `None` if the caller has no client that can be asked.
    pub client: Option<Arc<dyn Client>>,
    /// Receives progress and log messages while the call runs.
    pub notices: NoticeSink,
    /// Cancelled when the caller withdraws the call.
    pub cancellation: CancellationToken,
    /// The caller's W3C trace context.
    pub traceparent: Option<Arc<str>>,
    /// The snapshot in which capabilities are looked up; `None` means the newest. A session uses the one
    /// that it last listed.
    pub catalog: Option<Arc<Catalog>>,
    /// The maximum number of retries, if it is lower than the capability's own. Nested calls do not
    /// inherit it.
    pub retries: Option<u32>,
    /// Observes that the call is about to run. Nested calls do not inherit it.
    pub checkpoint: Option<Arc<dyn Checkpoint>>,
    /// Whether the call belongs to a task, directly or nested.
    pub is_task: bool,
    /// Stores the answers that the program of the call gets, so that another process can continue it.
    /// Nested calls do not inherit it.
    pub journal: Option<Arc<dyn Journal>>,
    /// Answers calls in place of their executors.
    pub answers: Option<Arc<dyn Answers>>,
    /// The nesting depth.
    pub depth: u32,
    /// The id of the call, from
    /// [`CapabilityMarketplace::reserve_call_id`](crate::CapabilityMarketplace::reserve_call_id); `None`
    /// creates one. Nested calls do not inherit it.
    pub call_id: Option<Arc<str>>,
    /// The direct outer call.
    pub parent: Option<Arc<str>>,
    /// The outermost call.
    pub root: Option<Arc<str>>,
    /// The instances that the call has passed through.
    pub hops: Hops,
    /// The node of the cluster on which the call must run. Nested calls do not inherit it.
    pub node: Option<Arc<str>>,
    /// Cluster-wide counts that already include the call. Nested calls do not inherit them.
    pub counted: Vec<Arc<str>>,
    /// A value that all nested calls share.
    shared: Option<Arc<dyn Any + Send + Sync>>,
    /// The capabilities' own permits that the call and its ancestors hold.
    held: Option<Arc<HeldPermits>>,
    /// The clock of the outer call; in the context of a call, its own.
    clock: Option<Arc<Clock>>,
}

/// The client program that a call came from, as it describes itself.
#[derive(Clone, Debug, Default)]
#[non_exhaustive]
pub struct Origin {
    /// A name for its session. It is not the id of the session, which would let others use it.
    pub session: Option<Arc<str>>,
    /// The `clientInfo` of MCP: a short JSON text with a name and a version, unchecked.
    pub client: Option<Arc<str>>,
}

impl Origin {
    /// Returns the origin of a call in this session, from this client.
    pub fn new(session: Option<Arc<str>>, client: Option<Arc<str>>) -> Self {
        Self { session, client }
    }
}

/// The information about a call that an executor gets besides its input.
#[derive(Clone)]
#[non_exhaustive]
pub struct CallContext {
    /// The id, unique within the instance. It appears in logs, in the tool's environment, and in
    /// resource URIs.
    pub call_id: Arc<str>,
    /// The name under which the capability is served, for messages.
    pub name: Arc<str>,
    /// The deadline of the call when its executor began. Executors that make nested calls wait for
    /// [`expired`](CallContext::expired) instead.
    pub deadline: Instant,
    /// The time from the call to its deadline, for messages.
    pub timeout: Duration,
    /// The content that a required attestation allows to run; `None` allows everything.
    pub custody: Option<Custody>,
    /// The caller and its context.
    pub scope: Box<CallScope>,
    /// The clock, which stops while a nested call waits for an approval.
    clock: Arc<Clock>,
    /// The permit of the call. The call lends it while it waits for a nested call.
    permit: Option<Arc<CallPermit>>,
    /// The snapshot in which the call runs; `None` in tests of single executors.
    pub(super) catalog: Option<Arc<Catalog>>,
}

impl Call {
    /// Returns a call of `target` with an empty input.
    pub fn to(target: impl Into<String>) -> Self {
        Self {
            target: target.into(),
            input: Payload::empty(),
            timeout: None,
            default_timeout: None,
            scope: Box::default(),
        }
    }

    /// Creates a call of `target` nested in the call that `ctx` belongs to: one level deeper, in the
    /// same scope, with the remaining time of that call.
    pub fn within(ctx: &CallContext, target: impl Into<String>) -> Self {
        let timeout = Some(ctx.clock.deadline().saturating_duration_since(Instant::now()));
        let scope = CallScope {
            depth: ctx.scope.depth + 1,
            parent: Some(Arc::clone(&ctx.call_id)),
            root: Some(Arc::clone(ctx.scope.root.as_ref().unwrap_or(&ctx.call_id))),
            retries: None,
            checkpoint: None,
            journal: None,
            call_id: None,
            node: None,
            counted: Vec::new(),
            ..(*ctx.scope).clone()
        };
        Self { timeout, scope: Box::new(scope), ..Self::to(target) }
    }

    /// Shares `shared` with all nested calls of this call, such as a common budget. An executor finds it
    /// in its context ([`CallContext::shared`]).
    #[must_use]
    pub fn sharing(mut self, shared: Arc<dyn Any + Send + Sync>) -> Self {
        self.scope.shared = Some(shared);
        self
    }

    /// Returns the call with this input.
    #[must_use]
    pub fn with(mut self, input: Payload) -> Self {
        self.input = input;
        self
    }
}

impl CallContext {
    /// Returns the context of a call that began at an instant and has so much time.
    pub(crate) fn new(
        call_id: Arc<str>,
        name: Arc<str>,
        (began, timeout): (Instant, Duration),
        mut scope: Box<CallScope>,
    ) -> Self {
        let deadline = began + timeout;
        let clock = Clock::new(deadline, scope.clock.clone());
        scope.clock = Some(Arc::clone(&clock));
        Self {
            call_id,
            name,
            deadline,
            timeout,
            custody: None,
            scope,
            clock,
            permit: None,
            catalog: None,
        }
    }

    /// Returns the context with less time, if `timeout` ends before the deadline.
    #[must_use]
    pub fn shortened(&self, timeout: Duration) -> Self {
        let mut ctx = self.clone();
        if let Some(deadline) = Instant::now().checked_add(timeout)
            && deadline < self.clock.deadline()
        {
            let clock = Clock::new(deadline, Some(Arc::clone(&self.clock)));
            (ctx.deadline, ctx.timeout) = (deadline, timeout);
            ctx.scope.clock = Some(Arc::clone(&clock));
            ctx.clock = clock;
        }
        ctx
    }

    pub(crate) fn clock(&self) -> &Arc<Clock> {
        &self.clock
    }

    /// Stops the clocks of this call and of the outer calls, while the call waits for a user. They
    /// continue when the guard is dropped.
    pub fn pause(&self) -> Paused {
        self.clock.pause()
    }

    /// Returns the context after a pause, with the current deadline of its clock.
    #[must_use]
    pub fn renewed(&self) -> Self {
        Self { deadline: self.clock.deadline(), ..self.clone() }
    }

    /// Waits until the call's time is over. The time stops while a nested call waits for an approval.
    pub async fn expired(&self) {
        self.clock.passed(Duration::ZERO).await;
    }

    /// Waits for the work of another instance for this call, until the caller withdraws the call, or
    /// until `grace` after its deadline. The other instance knows the deadline too; within `grace`, it
    /// returns the output so far.
    ///
    /// # Errors
    /// The call was withdrawn, its time is over, or what `run` returns.
    pub async fn run_remotely(
        &self,
        grace: Duration,
        run: impl Future<Output = RuntimeResult<Outcome>>,
    ) -> RuntimeResult<Outcome> {
        let (id, limit) = (|| self.name.to_string(), self.timeout);
        let late = async {
            self.expired().await;
            sleep(grace).await;
        };
        tokio::select! {
            biased;
            () = self.scope.cancellation.cancelled() => {
                Err(RuntimeError::Cancelled { id: id(), outcome: None })
            }
            done = run => match done {
                Err(RuntimeError::TimedOut { id, outcome, .. }) => {
                    Err(RuntimeError::TimedOut { id, limit, outcome })
                }
                done => done,
            },
            () = late => Err(RuntimeError::TimedOut { id: id(), limit, outcome: None }),
        }
    }

    /// Returns whether the call's time is over.
    pub fn is_late(&self) -> bool {
        Instant::now() >= self.clock.deadline()
    }

    /// Returns whether the call's time is over within `duration`, if its clock does not stop.
    pub(crate) fn expires_within(&self, duration: Duration) -> bool {
        Instant::now() + duration >= self.clock.deadline()
    }

    /// Returns whether the policy lets the caller of this call reach the server at an address, such as the target of a
    /// redirect.
    pub fn may_reach(&self, address: &str) -> bool {
        let Some(catalog) = &self.catalog else { return true };
        let needs = vec![Permission::needed(&network_permission(address))];
        catalog.get(&self.name).is_some_and(|entry| {
            let item = Item { needs, ..entry.item() };
            catalog.permits_item(self.scope.principal.as_ref(), &item).is_ok()
        })
    }

    /// Returns the context of a call that runs with `permit`, and with one of `held`'s permits if the
    /// capability has its own.
    pub(super) fn with_permits(self, permit: &Arc<CallPermit>, held: Option<Arc<HeldPermits>>) -> Self {
        let mut ctx = Self { permit: Some(Arc::clone(permit)), ..self };
        let scope = &mut *ctx.scope;
        scope.held = held;
        scope.client = scope.client.take().map(|client| permit.lent_while_asking(client));
        ctx
    }

    /// Returns the permits that the call and its ancestors hold.
    pub(super) fn held(&self) -> Option<&Arc<HeldPermits>> {
        self.scope.held.as_ref()
    }

    /// Returns the value that the nearest outer call shares ([`Call::sharing`]), if it has this type.
    pub fn shared<T: Any + Send + Sync>(&self) -> Option<Arc<T>> {
        Arc::clone(self.scope.shared.as_ref()?).downcast().ok()
    }

    /// Waits for nested calls ([`Call::within`]). This call lends its permit meanwhile. Otherwise, calls
    /// that wait for other calls could hold all permits forever.
    pub async fn wait_for<T>(&self, inner: impl Future<Output = T>) -> T {
        let _lent = self.permit.as_ref().map(|permit| permit.lend());
        inner.await
    }

    /// Returns a context with half a minute and no client, for tests of individual executors.
    #[cfg(any(test, feature = "testing"))]
    pub fn for_tests(name: &str) -> Self {
        let timeout = Duration::from_secs(30);
        Self::new("test-1".into(), name.into(), (Instant::now(), timeout), Box::default())
    }
}
