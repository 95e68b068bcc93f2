//! The steps of a call whose capability has been found, each as a method.

use std::future::poll_fn;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::pin::pin;
use std::sync::{Arc, LazyLock};
use std::task::Poll;
use std::time::Duration;

use futures_util::FutureExt;
use rtfs::text::excerpt;
use tokio::sync::Semaphore;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use super::record::{Recorded, Recording};
use super::retry::{jitter, wait_before_retry};
use super::stream::StreamHandle;
use super::{Answering, CallContext};
use crate::admission::breaker::{Attempt, Breaker};
use crate::admission::{Admission, CallPermit, Lane, Permit, RunningCall};
use crate::approval::{ApprovalSubject, WaitingCall};
use crate::catalog::{Catalog, Entry};
use crate::error::{
    MAX_SHOWN_CHARS, NotSent, RuntimeError, RuntimeResult, Undeclared, Violation, millis_down, seconds,
};
use crate::executor::CapabilityExecutor;
use crate::manifest::{DeclaredBy, TaskSupport};
use crate::marketplace::CapabilityMarketplace;
use crate::memory::OverBudget;
use crate::outcome::Outcome;
use crate::payload::Payload;
use crate::quota::{Charge, ClusterPermit, CountScope};
use crate::schema::{self, Validator};

/// How long an executor may take to end a call that has reached its deadline or was cancelled. After that, the
/// marketplace abandons the call.
pub(super) const BACKSTOP: Duration = Duration::from_secs(5);

/// The minimum time for the check of an output.
const MIN_OUTPUT_CHECK: Duration = Duration::from_secs(1);

/// The reason for ending a call whose cluster-wide permit or quota was lost. Another node may count the
/// call as ended.
pub(super) const CLUSTER_PERMIT_LOST: &str =
    "this node lost contact with the cluster, and with it the call's permit; call it again";

/// Smaller outcomes do not count towards `max_memory_bytes`, because all permits together hold little of
/// them.
const MIN_COUNTED_BYTES: usize = 64 << 10;

/// Permits for checks that may take long: as many as there are processors. These checks run on the few
/// blocking threads, which other work needs too.
static LONG_CHECKS: LazyLock<Arc<Semaphore>> = LazyLock::new(|| {
    Arc::new(Semaphore::new(std::thread::available_parallelism().map_or(2, usize::from)))
});

/// The maximum time of such a check, even if the call may take hours, because other checks wait for
/// their turn.
const LONGEST_CHECK: Duration = Duration::from_secs(10);

/// A call whose capability has been found.
pub(super) struct PreparedCall<'m> {
    pub(super) market: &'m CapabilityMarketplace,
    pub(super) catalog: Arc<Catalog>,
    pub(super) entry: Arc<Entry>,
    pub(super) target: String,
    pub(super) input: Payload,
    pub(super) ctx: CallContext,
    pub(super) permit: Arc<CallPermit>,
    /// Cluster-wide counts that already include the call.
    pub(super) counted: Vec<Arc<str>>,
    pub(super) losses: Losses,
    /// The approved content and the rule, if the call needed an approval.
    pub(super) approved: Option<(ApprovalSubject, String)>,
}

/// The permits with which a call runs.
pub(super) struct Permits {
    _running: RunningCall,
    _own: Option<Permit>,
    in_cluster: Option<Charge>,
}

/// Tokens that are cancelled when the cluster no longer counts the call: one for its quotas, one for its permit.
#[derive(Default)]
pub(super) struct Losses {
    quota: Option<CancellationToken>,
    permit: Option<CancellationToken>,
}

/// The circuit of the capability's upstream, if it has one.
pub(super) struct Circuit(Option<Attempt>);

/// The remaining attempts of a call.
pub(super) struct Retries {
    max: u32,
    made: u32,
}

impl PreparedCall<'_> {
    pub(super) fn begin_recording(&mut self) -> Recording {
        let started = Instant::now();
        let observed = self.market.observe(&self.entry, &self.input, &mut self.ctx, started.into_std());
        if let Some(observed) = &observed {
            // The input may contain secrets that the capability does not know.
            let redactors = [self.entry.policy.redaction.clone(), Some(self.market.redaction())];
            let notices = std::mem::take(&mut self.ctx.scope.notices);
            self.ctx.scope.notices = notices.observed_by(Arc::clone(observed) as _, redactors);
        }
        let observers = self.market.call_observers();
        let stopping = self.market.stopping();
        Recording::begin(&self.entry, &self.ctx, started, observers, observed, stopping)
    }

    /// Checks whether the call may be made at all.
    ///
    /// # Errors
    /// The policy denies it, it is nested too deep, it is to run on another node, a required attestation does not hold, the
    /// capability is unavailable, or it runs only, or never, as a task.
    pub(super) async fn authorize(&self) -> RuntimeResult<()> {
        let Self { catalog, entry, ctx, .. } = self;
        self.check_policy()?;
        if ctx.scope.depth > catalog.limits.max_depth {
            let what = format!("calls nested {} deep (max_depth)", catalog.limits.max_depth);
            return Err(RuntimeError::Limit { id: self.id(), what });
        }
        self.check_node()?;
        if let Some(custody) = &entry.policy.custody {
            let admitted = self.in_time(custody.admit()).await?;
            admitted.map_err(|permission| RuntimeError::Denied {
                id: self.id(),
                permission,
                rule: None,
                scopes: None,
            })?;
        }
        let refusal = entry.unavailable().or_else(|| self.task_refusal());
        refusal.map_or(Ok(()), |reason| Err(self.lasting_error(reason.to_owned())))
    }

    /// Checks that the call runs on the node that it names.
    ///
    /// # Errors
    /// It asks for another one.
    fn check_node(&self) -> RuntimeResult<()> {
        let Some(node) = &self.ctx.scope.node else { return Ok(()) };
        if self.executor()?.chooses_nodes() || self.market.node() == Some(&**node) {
            return Ok(());
        }
        let node = excerpt(node, MAX_SHOWN_CHARS);
        Err(self.unavailable(format!("it runs only on this node; the call asks for node {node}")))
    }

    /// Returns the reason if the capability runs only as a task and this is a direct call, or the
    /// reverse.
    fn task_refusal(&self) -> Option<&'static str> {
        let scope = &self.ctx.scope;
        match self.entry.manifest.task_support()? {
            TaskSupport::Required if !scope.is_task => Some(
                "it runs only as a task: use `orla task run`, POST /tasks, or an MCP client that supports tasks",
            ),
            TaskSupport::Forbidden if scope.is_task && scope.depth == 0 => {
                Some("it never runs as a task; call it directly")
            }
            _ => None,
        }
    }

    /// Checks that the policies permit the call to its caller.
    ///
    /// # Errors
    /// One denies it.
    fn check_policy(&self) -> RuntimeResult<()> {
        let (catalog, principal) = (&self.catalog, self.ctx.scope.principal.as_ref());
        catalog.permits(principal, &self.entry).map_err(|denial| RuntimeError::Denied {
            id: self.id(),
            rule: denial.rule(),
            permission: self.market.redaction().text(&denial.permission).into_owned(),
            scopes: Some(catalog.helpful_scopes(principal, &self.entry.item())),
        })
    }

    /// Checks the input against its schema. [`check_input`](Self::check_input) checks the rest.
    ///
    /// # Errors
    /// It does not fit, or the time of the call is over.
    pub(super) async fn validate_input(&self) -> RuntimeResult<()> {
        let Some(schema) = self.entry.input.validator() else { return Ok(()) };
        let deadline = self.ctx.deadline;
        let checked = self.in_time(check_value(schema, &self.input, "input", deadline)).await?;
        if checked.is_err() && Instant::now() >= deadline {
            return Err(self.timed_out());
        }
        checked.map_err(|violations| RuntimeError::InvalidInput { id: self.id(), violations })
    }

    /// Lets the executor check what the schema does not say of the input. The schema is checked by
    /// [`validate_input`](Self::validate_input).
    ///
    /// # Errors
    /// That of [`CapabilityExecutor::check_input`], or no executor runs this kind of provider.
    pub(super) fn check_input(&self) -> RuntimeResult<()> {
        let (executor, provider) = (self.executor()?, &self.entry.manifest.provider);
        let check = || executor.check_input(provider, &self.input, &self.ctx);
        catch_unwind(AssertUnwindSafe(check))
            .unwrap_or_else(|_| Err(RuntimeError::Panicked { id: self.id() }))
    }

    /// Returns whether the call is counted or approved before it runs.
    pub(super) fn is_charged_or_approved(&self) -> bool {
        let (caller, manifest) = (self.ctx.scope.principal.as_ref(), &self.entry.manifest);
        self.market.quotas().concern(caller, &manifest.id, &self.entry.name)
            || self.market.approvals().rule_for(caller, &self.entry).is_some()
    }

    /// Checks an outcome against the capability's output schema, if the schema is enforced. The value is the
    /// structured one, or else the text, read as JSON if it is JSON. A text that satisfies the schema also becomes
    /// the structured value.
    ///
    /// # Errors
    /// The value violates the schema. A success without a value never violates a schema of its
    /// provider: an API may answer with or without content.
    pub(super) async fn validate_output(&self, outcome: Outcome) -> RuntimeResult<Outcome> {
        let Some(schema) = self.entry.output.validator() else { return Ok(outcome) };
        let is_empty = outcome.structured.is_none() && outcome.content.is_none();
        let value = outcome.payload()?;
        // The provider may have used up the call's time. Its output is still checked.
        let deadline = self.ctx.deadline.max(Instant::now() + MIN_OUTPUT_CHECK);
        match check_value(schema, &value, "output", deadline).await {
            Ok(()) => Ok(Outcome { structured: Some(value), ..outcome }),
            Err(_) if is_empty && self.entry.policy.output_declared_by == DeclaredBy::Provider => {
                Ok(outcome)
            }
            Err(violations) => Err(RuntimeError::InvalidOutput {
                id: self.id(),
                violations,
                outcome: Box::new(Outcome { structured: None, ..outcome }),
            }),
        }
    }

    /// Checks the quotas of the caller that this process counts.
    ///
    /// # Errors
    /// A quota is exceeded.
    pub(super) fn check_quotas(&self) -> RuntimeResult<()> {
        let (caller, manifest) = (self.ctx.scope.principal.as_ref(), &self.entry.manifest);
        let checked = self.market.quotas().check(caller, &manifest.id, &self.entry.name);
        checked.map_err(|refused| refused.of_call(self.id()))
    }

    /// Passes what stands before every call and every stream, once for all attempts: quotas, approval. A call that is
    /// refused here is not charged.
    ///
    /// # Errors
    /// A quota is exceeded, or the call was not approved.
    pub(super) async fn pass_gates(&mut self, recording: &Recording) -> RuntimeResult<Charge> {
        let charge = self.charge().await?;
        self.approve(recording).await?;
        Ok(charge)
    }

    /// Passes what stands before every attempt of a call and before the opening of a stream. The permits are
    /// held until they are dropped.
    ///
    /// # Errors
    /// Those of the steps.
    pub(super) async fn enter(
        &mut self,
        recording: &mut Recording,
    ) -> RuntimeResult<(Permits, Circuit)> {
        let permits = self.admit(recording).await?;
        // The policy or the capability may have changed while the call waited.
        self.authorize_again().await?;
        // Fails at once while the circuit breaker is open.
        let circuit = self.circuit()?;
        self.pass_checkpoint().await?;
        Ok((permits, circuit))
    }

    /// Counts the call towards the quotas of its caller, until the charge is dropped.
    ///
    /// # Errors
    /// A quota is exceeded.
    async fn charge(&mut self) -> RuntimeResult<Charge> {
        let (quotas, entry) = (self.market.quotas(), &self.entry);
        let caller = self.ctx.scope.principal.as_ref();
        let charging = quotas.charge(caller, &entry.manifest.id, &entry.name, &self.counted);
        let charge = self.in_time(charging).await?.map_err(|refused| refused.of_call(self.id()))?;
        self.losses.quota = charge.lost();
        self.ctx.scope.counted.extend(charge.counted.iter().cloned());
        Ok(charge)
    }

    /// Waits until a user has approved the call, if a rule requires that. The call's clock stops
    /// meanwhile.
    ///
    /// # Errors
    /// The call was not approved.
    async fn approve(&mut self, recording: &Recording) -> RuntimeResult<()> {
        let approvals = self.market.approvals();
        let rule = approvals.rule_for(self.ctx.scope.principal.as_ref(), &self.entry);
        let Some(rule) = rule else { return Ok(()) };
        if let Some(checkpoint) = &self.ctx.scope.checkpoint {
            if checkpoint.continues(&self.entry) {
                return Ok(());
            }
            // The checkpoint may depend on another node.
            self.in_time(checkpoint.before_approval(&self.entry)).await??;
        }
        let Self { entry, input, ctx, .. } = self;
        let paused = ctx.clock().pause();
        let call = WaitingCall {
            name: &ctx.name,
            call_id: &ctx.call_id,
            principal: ctx.scope.principal.as_ref(),
            client: ctx.scope.client.as_ref(),
            cancellation: &ctx.scope.cancellation,
            // In a cluster, a node that is lost cancels its running calls, and the task continues on
            // another node.
            is_task: ctx.scope.is_task && self.market.node().is_none(),
            notices: &ctx.scope.notices,
        };
        recording.waits_for_approval(true);
        let subject = approvals.ask(Arc::clone(&rule), entry, input, &call).await?;
        recording.waits_for_approval(false);
        drop(paused);
        ctx.deadline = ctx.clock().deadline();
        self.approved = Some((subject, rule.name.clone()));
        Ok(())
    }

    /// Checks whether the call may still be made after it has waited: the newest policy permits it, and
    /// the capability is unchanged since the approval. The entry with its id must have the approved manifest
    /// and program, both in the call's own snapshot and in the newest one.
    ///
    /// # Errors
    /// The policy now denies the call, the capability has become unavailable, or it has changed since the question.
    async fn authorize_again(&self) -> RuntimeResult<()> {
        self.check_policy()?;
        let withdrawn = {
            let newest = self.market.peek();
            let is_refined =
                !Arc::ptr_eq(&newest, &self.catalog) && newest.is_of_the_same_sources(&self.catalog);
            let entry = is_refined.then(|| newest.with_id(&self.entry.manifest.id)).flatten();
            entry.and_then(|entry| entry.unavailable()).map(str::to_owned)
        };
        if let Some(reason) = withdrawn {
            return Err(self.lasting_error(reason));
        }
        let Some((subject, rule)) = &self.approved else { return Ok(()) };
        let newest = self.market.peek().with_id(&self.entry.manifest.id).map(Arc::clone);
        let newest = newest.filter(|newest| !Arc::ptr_eq(newest, &self.entry));
        for entry in [Some(&self.entry), newest.as_ref()].into_iter().flatten() {
            let now = self.in_time(ApprovalSubject::of(entry)).await?;
            if now.as_ref() != Ok(subject) {
                let reason = "it has changed since the approval was asked for; call it again".to_owned();
                return Err(RuntimeError::Unapproved { id: self.id(), rule: rule.clone(), reason });
            }
        }
        Ok(())
    }

    pub(super) fn retries(&self) -> Retries {
        let own = self.entry.retries;
        let max = self.ctx.scope.retries.map_or(own, |max| max.min(own));
        Retries { max, made: 0 }
    }

    /// Waits for the permits to run: the capability's own, then one of the server's. The clock of a call
    /// with a checkpoint stops meanwhile, because the call has not run and no caller waits for it.
    ///
    /// # Errors
    /// Too many calls wait, the call would wait for itself, or its time is over.
    async fn admit(&mut self, recording: &mut Recording) -> RuntimeResult<Permits> {
        let permits = {
            let mut entering = pin!(self.permits());
            // Usually there is room, and the clock need not be stopped.
            match poll_fn(|cx| Poll::Ready(entering.as_mut().poll(cx))).await {
                Poll::Ready(permits) => permits?,
                Poll::Pending => {
                    recording.waits_for_permits();
                    let _paused = self.ctx.scope.checkpoint.is_some().then(|| self.ctx.clock().pause());
                    entering.await?
                }
            }
        };
        if self.ctx.scope.checkpoint.is_some() {
            self.ctx.deadline = self.ctx.clock().deadline();
        }
        if let Some(permit) = &permits.in_cluster {
            self.losses.permit = permit.lost();
            let counted = &mut self.ctx.scope.counted;
            // A repeated call is already included in this count.
            for name in &permit.counted {
                if !counted.contains(name) {
                    counted.push(Arc::clone(name));
                }
            }
        }
        recording.admitted();
        Ok(permits)
    }

    async fn permits(&self) -> RuntimeResult<Permits> {
        let cluster_permit = self.cluster_permit();
        // The calling node already took the cluster permit.
        let has_cluster_permit =
            cluster_permit.as_ref().is_some_and(|permit| self.counted.contains(permit.name()));
        let own = match self.entry.admission.as_ref().filter(|_| !has_cluster_permit) {
            Some(admission) => {
                if let Some(size) = self.ctx.held().and_then(|held| held.waits_for_itself()) {
                    let what = format!(
                        "it calls itself, and only {size} of its calls may run at once (max_concurrency)"
                    );
                    return Err(RuntimeError::Limit { id: self.id(), what });
                }
                Some(self.permit_of(admission).await?)
            }
            None => None,
        };
        let in_cluster = match cluster_permit.filter(|_| !has_cluster_permit) {
            Some(permit) => {
                let entered = self.in_time(self.market.quotas().enter(permit)).await?;
                Some(entered.map_err(|refused| refused.of_call(self.id()))?)
            }
            None => None,
        };
        let permit = self.permit_of(self.catalog.admission_of(&self.entry)).await?;
        Ok(Permits { _running: self.permit.hold(permit), _own: own, in_cluster })
    }

    /// Returns the cluster-wide permit that the call needs, if its capability limits concurrency over
    /// the cluster.
    fn cluster_permit(&self) -> Option<ClusterPermit> {
        let policy = &self.entry.policy;
        let size = policy.max_concurrency.filter(|_| policy.concurrency_scope == CountScope::Cluster)?;
        Some(ClusterPermit::new(&self.entry.manifest.id, size))
    }

    /// Waits until a cluster-wide quota or permit of the call is lost.
    async fn lost(&self) {
        async fn loss(lost: Option<&CancellationToken>) {
            match lost {
                Some(lost) => lost.cancelled().await,
                None => std::future::pending().await,
            }
        }
        tokio::select! {
            () = loss(self.losses.quota.as_ref()) => {}
            () = loss(self.losses.permit.as_ref()) => {}
        }
    }

    /// Waits for a permit of `admission`.
    async fn permit_of(&self, admission: &Arc<Admission>) -> RuntimeResult<Permit> {
        let Self { entry, ctx, .. } = self;
        let principal = ctx.scope.principal.as_ref();
        let lane = Lane { principal, capability: &entry.name, provider: &entry.provider };
        let permit = self.in_time(admission.enter(lane)).await?.map_err(|full| RuntimeError::Busy {
            id: self.id(),
            running: full.running,
            waiting: full.waiting,
        })?;
        // A call that was admitted at its deadline is not started.
        if Instant::now() >= ctx.clock().deadline() { Err(self.timed_out()) } else { Ok(permit) }
    }

    /// Passes the circuit breaker of the upstream, if it has one.
    ///
    /// # Errors
    /// It is open: the upstream failed several times in a row.
    fn circuit(&self) -> RuntimeResult<Circuit> {
        let attempt = self.entry.breaker.as_ref().map(Breaker::enter).transpose();
        attempt.map(Circuit).map_err(|wait| {
            let upstream = self.entry.policy.upstream.as_deref().unwrap_or_default();
            let wait = Duration::from_millis(millis_down(wait).max(1));
            let wait = seconds(wait);
            let reason =
                format!("{upstream} failed several times in a row; it is tried again in {wait}");
            self.unsent(reason)
        })
    }

    /// Lets the checkpoint of the call, if it has one, record that the call runs from now on.
    ///
    /// # Errors
    /// The checkpoint refuses the call.
    async fn pass_checkpoint(&self) -> RuntimeResult<()> {
        match &self.ctx.scope.checkpoint {
            Some(checkpoint) => self.in_time(checkpoint.before_attempt(&self.entry)).await?,
            None => Ok(()),
        }
    }

    /// Runs the executor once. The outcome counts towards `max_memory_bytes` until it is dropped.
    ///
    /// # Errors
    /// The executor's own; the time of the call is over, or the cluster no longer counts it.
    pub(super) async fn execute(&self) -> RuntimeResult<Outcome> {
        if let Some(answering) = self.recorded_answer() {
            return self.in_time(answering).await?;
        }
        let executor = self.executor()?;
        let provider = &self.entry.manifest.provider;
        let executed = self.guarded(executor.execute(provider, &self.input, &self.ctx)).await;
        let mut outcome = match &self.entry.policy.redaction {
            Some(redactor) => executed
                .map(|outcome| redactor.outcome(outcome))
                .map_err(|error| redactor.error(error))?,
            None => executed?,
        };
        let bytes = outcome.bytes();
        if bytes >= MIN_COUNTED_BYTES && outcome.reservation.is_none() {
            let reserved = self.market.memory().reserve(bytes).map_err(|over| self.over_budget(over))?;
            outcome.reservation = Some(Arc::new(reserved));
        }
        Ok(outcome)
    }

    pub(super) async fn open(&self) -> RuntimeResult<Box<dyn StreamHandle>> {
        if let Some(answering) = self.recorded_answer() {
            self.in_time(answering).await??;
            return Err(self.unavailable("a recording has no items of a stream".to_owned()));
        }
        let executor = self.executor()?;
        let opened = self.guarded(executor.open(&self.entry.manifest.provider, &self.input, &self.ctx));
        opened.await.map_err(|error| match &self.entry.policy.redaction {
            Some(redactor) => redactor.error(error),
            None => error,
        })
    }

    /// Returns the answer that replaces the executor's, if the call is made from a recording.
    fn recorded_answer(&self) -> Option<Answering> {
        let scope = &self.ctx.scope;
        scope.answers.as_ref()?.answer(&self.entry, &self.input, scope.depth)
    }

    pub(super) fn executor(&self) -> RuntimeResult<Arc<dyn CapabilityExecutor>> {
        let provider = &self.entry.manifest.provider;
        self.market.executor_of(provider).ok_or_else(|| {
            self.unavailable(format!("no executor runs providers of kind {}", provider.kind()))
        })
    }

    /// Returns the result of an executor's future. The future is abandoned if it ignores its deadline or
    /// cancellation.
    pub(super) async fn guarded<T>(
        &self,
        execution: impl Future<Output = RuntimeResult<T>>,
    ) -> RuntimeResult<T> {
        let Self { ctx, .. } = self;
        let overdue = async {
            tokio::select! {
                () = ctx.clock().passed(BACKSTOP) => {}
                () = async {
                    ctx.scope.cancellation.cancelled().await;
                    tokio::time::sleep(BACKSTOP).await;
                } => {}
            }
        };
        tokio::select! {
            biased;
            () = self.lost() => Err(self.unavailable(CLUSTER_PERMIT_LOST.to_owned())),
            done = AssertUnwindSafe(execution).catch_unwind() => {
                done.unwrap_or_else(|_| Err(RuntimeError::Panicked { id: self.id() }))
            }
            () = overdue => {
                Err(if ctx.scope.cancellation.is_cancelled() { self.cancelled() } else { self.timed_out() })
            }
        }
    }

    /// Waits for `future`, within the call's time and until the call is cancelled. While the clock is
    /// stopped, the time is unlimited.
    async fn in_time<T>(&self, future: impl Future<Output = T>) -> RuntimeResult<T> {
        tokio::select! {
            biased;
            output = future => Ok(output),
            () = self.ctx.scope.cancellation.cancelled() => Err(self.cancelled()),
            () = self.ctx.clock().passed(Duration::ZERO) => Err(self.timed_out()),
        }
    }

    /// Records the result, and returns the part that the caller may see. The policy may hide that a
    /// denied capability exists.
    ///
    /// # Errors
    /// That of the result, or that there is no such capability.
    pub(super) fn finish<T: Recorded>(
        &self,
        mut recording: Recording,
        result: RuntimeResult<T>,
    ) -> RuntimeResult<T> {
        let result = match result {
            Err(RuntimeError::Cancelled { id, outcome }) if self.market.is_stopping() => {
                Err(RuntimeError::Stopped { id, outcome })
            }
            result => result,
        };
        recording.finish(result.as_ref().map(Recorded::outcome));
        let is_concealed = || self.catalog.conceals() && self.check_policy().is_err();
        match result {
            Err(RuntimeError::Denied { .. }) if is_concealed() => {
                Err(self.market.unknown(&self.catalog, &self.target, &self.ctx.scope.principal))
            }
            result => result,
        }
    }

    fn id(&self) -> String {
        self.entry.name.to_string()
    }

    fn unavailable(&self, mut reason: String) -> RuntimeError {
        self.market.redaction().replace(&mut reason);
        RuntimeError::Unavailable { id: self.id(), reason, source: None }
    }

    /// Returns the error of a call that has not reached its provider.
    fn unsent(&self, mut reason: String) -> RuntimeError {
        self.market.redaction().replace(&mut reason);
        let source = NotSent(reason.clone().into());
        RuntimeError::Unavailable { id: self.id(), reason, source: Some(Box::new(source)) }
    }

    /// Returns the error of a call that will fail again until a declaration is changed.
    fn lasting_error(&self, mut reason: String) -> RuntimeError {
        self.market.redaction().replace(&mut reason);
        RuntimeError::Unavailable { id: self.id(), reason, source: Some(Box::new(Undeclared)) }
    }

    fn cancelled(&self) -> RuntimeError {
        RuntimeError::Cancelled { id: self.id(), outcome: None }
    }

    fn timed_out(&self) -> RuntimeError {
        RuntimeError::TimedOut { id: self.id(), limit: self.ctx.timeout, outcome: None }
    }

    fn over_budget(&self, over: OverBudget) -> RuntimeError {
        let message = format!("{}: its output was dropped: {over}", self.entry.name);
        let error = Box::new(rtfs::Error::new("busy", message.clone()));
        RuntimeError::Structured { id: self.id(), message, error, outcome: None }
    }
}

/// Checks a value until a deadline. A check that may take long runs on a thread that serves no other
/// calls.
async fn check_value(
    schema: &Arc<Validator>,
    value: &Payload,
    root: &'static str,
    deadline: Instant,
) -> Result<(), Vec<Violation>> {
    let until = deadline.into_std();
    if !schema.may_take_long(value) {
        return schema::until(until, || schema.check_payload(value, root));
    }
    let (schema, value) = (Arc::clone(schema), value.clone());
    let check = async {
        let turn = Arc::clone(&LONG_CHECKS).acquire_owned().await;
        let check = move || {
            // Held to the end of the check, even if the caller no longer waits.
            let _turn = turn;
            let until = until.min(std::time::Instant::now() + LONGEST_CHECK);
            schema::until(until, || schema.check_payload(&value, root))
        };
        tokio::task::spawn_blocking(check).await.ok()
    };
    let checked = tokio::time::timeout_at(deadline, check).await.ok().flatten();
    checked.unwrap_or_else(|| {
        let expected = "a value that can be checked in time".to_owned();
        let got = "one that cannot".to_owned();
        Err(vec![Violation { path: root.to_owned(), expected, got }])
    })
}

impl Circuit {
    /// Reports the result of the attempt to the circuit breaker.
    pub(super) fn report<T>(self, result: RuntimeResult<T>) -> RuntimeResult<T> {
        if let Some(attempt) = self.0 {
            attempt.record(&result);
        }
        result
    }
}

impl Retries {
    /// Waits until the call that failed with `error` may be repeated.
    ///
    /// # Errors
    /// `error`, if another attempt is not allowed or cannot help.
    pub(super) async fn wait_or_fail(
        &mut self,
        prepared: &PreparedCall<'_>,
        error: RuntimeError,
    ) -> RuntimeResult<()> {
        let ctx = &prepared.ctx;
        let left = ctx.deadline.saturating_duration_since(Instant::now());
        let Some(wait) = wait_before_retry(&error, self.max, self.made, left, jitter()) else {
            return Err(error);
        };
        self.made += 1;
        tracing::debug!(capability = &*ctx.name, retries = self.made, %error, "the call is made again");
        tokio::select! {
            () = tokio::time::sleep(wait) => Ok(()),
            () = ctx.scope.cancellation.cancelled() => Err(prepared.cancelled()),
        }
    }
}
