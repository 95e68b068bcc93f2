//! One capability over several providers (RFC 1 §9.2).
//!
//! [`Routed`] is a provider that consists of other providers. [`RoutedExecutor`] passes each call to the
//! executor of one of them. The call path treats it like any other provider.
//!
//! # Which provider is called
//!
//! The [`Route`] gives the order in which providers are tried. A call moves on to the next provider if
//! it has certainly not run at the current one (its breaker is open, nothing could be sent, its queue is
//! full). An idempotent call also moves on if the provider cannot be reached or does not answer within
//! its own timeout.

use std::any::{Any, TypeId};
use std::fmt;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Weak};

use async_trait::async_trait;
use parking_lot::Mutex;
use rtfs::{
    Diagnostics, Limits, Options, Outcome as Computed, Program, Run, Severity, Source, Value, check,
    compile,
};
use tokio::time::Instant;

use crate::admission::breaker::{Breaker, BreakerLimits};
use crate::call::CallContext;
use crate::error::{RuntimeError, RuntimeResult, seconds};
use crate::executor::{CapabilityExecutor, ProviderStatus, RoutedStatus, SandboxStatus};
use crate::marketplace::CapabilityMarketplace;
use crate::outcome::Outcome;
use crate::payload::Payload;
use crate::provider::{CustomProvider, ProviderType};

/// The name of the input in a route's expression.
const INPUT: &str = "input";

/// Returns the limits of a route's expression: a few milliseconds.
fn limits() -> Limits {
    Limits { steps: 100_000, memory: 16 << 20, calls: 0, ..Limits::default() }
}

/// The order in which the providers of a capability are tried.
#[derive(Clone)]
pub enum Route {
    /// The first reachable provider, in the order of the list.
    Failover,
    /// Each call begins with the next provider.
    RoundRobin,
    /// The provider with the fewest running calls is tried first.
    LeastBusy,
    /// Inputs with the same value of the expression begin with the same provider.
    By(Expression),
}

/// An expression of RTFS over `input`.
#[derive(Clone)]
pub struct Expression {
    text: Arc<str>,
    program: Arc<Program>,
}

impl Expression {
    /// Compiles an expression.
    ///
    /// # Errors
    /// All its mistakes, with those that each of its calls would make, such as an unknown name.
    pub fn new(text: &str) -> Result<Self, Diagnostics> {
        let macro_steps = limits().steps;
        let options = Options { inputs: vec![INPUT.to_owned()], macro_steps, ..Options::default() };
        let source = Source::new("", text);
        let program = compile(&source, &options)?;
        let mut mistakes = check(&source, &options, None);
        mistakes.retain(|found| found.severity == Severity::Error);
        if !mistakes.is_empty() {
            return Err(Diagnostics(mistakes));
        }
        Ok(Self { text: text.into(), program })
    }

    /// Returns the hash of an expression's value for an input. The hash is the same in every process.
    fn hash(&self, inputs: &Payload) -> Result<u64, String> {
        let input = inputs.value().map_err(|error| error.to_string())?.clone();
        let mut run = Run::new(Arc::clone(&self.program), limits(), &[(INPUT, input)]);
        match run.advance(limits().steps) {
            Computed::Done(value) => {
                let mut hasher = DefaultHasher::new();
                canonical(&value).hash(&mut hasher);
                Ok(hasher.finish())
            }
            Computed::Failed(error) => Err(error.to_string()),
            Computed::Waiting => Err("it cannot call capabilities".to_owned()),
            Computed::Yielded => Err("it takes too many steps".to_owned()),
        }
    }
}

/// Returns the text of a value, which is the same for equal values. Members of maps and sets are in the
/// order of their texts.
fn canonical(value: &Value) -> String {
    let sorted = |mut members: Vec<String>| {
        members.sort_unstable();
        members.join(" ")
    };
    match value {
        Value::Map(map) => {
            let member = |(key, value)| format!("{} {}", canonical(key), canonical(value));
            format!("{{{}}}", sorted(map.iter().map(member).collect()))
        }
        Value::Set(set) => format!("#{{{}}}", sorted(set.iter().map(canonical).collect())),
        Value::Vector(items) => {
            format!("[{}]", items.items().iter().map(canonical).collect::<Vec<_>>().join(" "))
        }
        other => format!("{other:?}"),
    }
}

impl fmt::Display for Route {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Failover => f.write_str("failover"),
            Self::RoundRobin => f.write_str("round_robin"),
            Self::LeastBusy => f.write_str("least_busy"),
            Self::By(expression) => write!(f, "by {}", expression.text),
        }
    }
}

/// A provider that consists of several providers.
pub struct Routed {
    route: Route,
    targets: Vec<Target>,
    /// Whether a call that may have run may be repeated at another provider.
    is_idempotent: bool,
    /// Counts the calls of [`Route::RoundRobin`].
    turn: AtomicUsize,
    /// The provider that was called last.
    last: AtomicUsize,
}

/// One of the providers.
struct Target {
    provider: ProviderType,
    /// The name in lists and errors.
    name: String,
    breaker: Arc<Breaker>,
    running: AtomicUsize,
    calls: AtomicU64,
    failure: Mutex<Option<String>>,
}

impl fmt::Debug for Routed {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Routed({}, {} providers)", self.route, self.targets.len())
    }
}

impl Routed {
    /// Creates a provider that routes calls to these providers, each with its name for lists and errors.
    /// With `is_idempotent`, a call that may have run may be repeated at another provider.
    pub fn new(
        route: Route,
        providers: impl IntoIterator<Item = (String, ProviderType)>,
        is_idempotent: bool,
    ) -> Self {
        let target = |(name, provider)| Target {
            provider,
            name,
            breaker: Breaker::new(BreakerLimits::default()),
            running: AtomicUsize::new(0),
            calls: AtomicU64::new(0),
            failure: Mutex::default(),
        };
        Self {
            route,
            targets: providers.into_iter().map(target).collect(),
            is_idempotent,
            turn: AtomicUsize::new(0),
            last: AtomicUsize::new(usize::MAX),
        }
    }

    /// How calls find their provider.
    pub fn route(&self) -> &Route {
        &self.route
    }

    /// Returns the providers, with their names.
    pub fn providers(&self) -> impl Iterator<Item = (&str, &ProviderType)> {
        self.targets.iter().map(|target| (&*target.name, &target.provider))
    }

    /// Returns whether a call that may have run may be repeated at another provider.
    pub fn is_idempotent(&self) -> bool {
        self.is_idempotent
    }

    /// Returns the indexes of the providers in the order in which a call tries them.
    fn order(&self, inputs: &Payload) -> Result<Vec<usize>, String> {
        let all = self.targets.len();
        let from = |first: usize| (0..all).map(|at| (first + at) % all).collect::<Vec<_>>();
        Ok(match &self.route {
            Route::Failover => from(0),
            Route::RoundRobin => from(self.turn.fetch_add(1, Ordering::Relaxed) % all.max(1)),
            Route::LeastBusy => {
                let mut order = from(0);
                // Each count is read once, because it may change meanwhile.
                order.sort_by_cached_key(|&at| self.targets[at].running.load(Ordering::Relaxed));
                order
            }
            Route::By(expression) => {
                let hash = expression.hash(inputs)? % all.max(1) as u64;
                from(usize::try_from(hash).unwrap_or_default())
            }
        })
    }

    /// Returns whether a call that failed with this error moves on to the next provider.
    fn tries_next(&self, error: &RuntimeError, target: &Target, ctx: &CallContext) -> bool {
        let may_be_repeated = self.is_idempotent || target.is_safe();
        let may_pass = match error {
            RuntimeError::Unavailable { .. } => true,
            RuntimeError::TimedOut { .. } => Instant::now() < ctx.deadline,
            _ => false,
        };
        error.never_ran() || (may_be_repeated && may_pass)
    }
}

/// A call that is running at a provider.
struct RunningCall<'a>(&'a Target);

impl<'a> RunningCall<'a> {
    fn begin(target: &'a Target) -> Self {
        target.running.fetch_add(1, Ordering::Relaxed);
        target.calls.fetch_add(1, Ordering::Relaxed);
        Self(target)
    }
}

impl Drop for RunningCall<'_> {
    fn drop(&mut self) {
        self.0.running.fetch_sub(1, Ordering::Relaxed);
    }
}

impl Target {
    /// Returns whether its calls are idempotent by the method of their requests (RFC 9110 §9.2.2).
    fn is_safe(&self) -> bool {
        let ProviderType::Http(http) = &self.provider else { return false };
        let idempotent = ["GET", "HEAD", "OPTIONS", "PUT", "DELETE"];
        http.options.method.as_deref().is_some_and(|method| idempotent.contains(&method))
    }

    /// Returns the context of a call at this provider, with the time that the provider's own settings
    /// allow.
    fn context(&self, ctx: &CallContext) -> CallContext {
        let mut ctx = ctx.clone();
        if let Some(own) = self.provider.timeout()
            && let Some(deadline) = Instant::now().checked_add(own)
            && deadline < ctx.deadline
        {
            (ctx.deadline, ctx.timeout) = (deadline, own);
        }
        ctx
    }

    fn set_failure(&self, failure: Option<String>) {
        *self.failure.lock() = failure;
    }

    fn status(&self, is_last: bool) -> RoutedStatus {
        RoutedStatus {
            name: self.name.clone(),
            kind: self.provider.kind(),
            state: if self.breaker.is_open() { "unavailable" } else { "available" },
            running: self.running.load(Ordering::Relaxed),
            calls: self.calls.load(Ordering::Relaxed),
            is_last,
            last_failure: self.failure.lock().clone(),
        }
    }
}

impl CustomProvider for Routed {
    fn as_any(&self) -> &dyn Any {
        self
    }

    fn kind(&self) -> &'static str {
        "routed"
    }

    fn requires(&self) -> Vec<String> {
        self.targets.iter().flat_map(|target| target.provider.requires()).collect()
    }

    fn is_internal(&self) -> bool {
        self.targets.iter().all(|target| target.provider.is_internal())
    }

    fn is_pure(&self) -> bool {
        self.targets.iter().all(|target| target.provider.is_pure())
    }
}

/// Runs [`Routed`] providers with the executors of a marketplace, which it does not keep alive.
pub struct RoutedExecutor {
    marketplace: Weak<CapabilityMarketplace>,
}

impl RoutedExecutor {
    /// Returns an executor that uses the executors of this marketplace.
    pub fn new(marketplace: &Arc<CapabilityMarketplace>) -> Self {
        Self { marketplace: Arc::downgrade(marketplace) }
    }

    /// Returns the sandbox of the provider that is confined least, if providers have processes.
    fn weakest_sandbox(&self, routed: &Routed) -> Option<SandboxStatus> {
        let market = self.marketplace.upgrade()?;
        let sandbox = |target: &Target| {
            let executor = market.executor_of(&target.provider)?;
            executor.status(&target.provider).sandbox
        };
        routed.targets.iter().filter_map(sandbox).min_by_key(|status| status.level)
    }

    fn executor(
        &self,
        provider: &ProviderType,
        ctx: &CallContext,
    ) -> RuntimeResult<Arc<dyn CapabilityExecutor>> {
        let found = self.marketplace.upgrade().and_then(|market| market.executor_of(provider));
        found.ok_or_else(|| RuntimeError::Unavailable {
            id: ctx.name.to_string(),
            reason: format!("no executor runs providers of kind {}", provider.kind()),
            source: None,
        })
    }
}

#[async_trait]
impl CapabilityExecutor for RoutedExecutor {
    fn provider_type_id(&self) -> TypeId {
        TypeId::of::<Routed>()
    }

    /// Refuses what every provider refuses.
    fn check_input(
        &self,
        provider: &ProviderType,
        inputs: &Payload,
        ctx: &CallContext,
    ) -> RuntimeResult<()> {
        let mut checked = Ok(());
        for target in &provider.settings::<Routed>()?.targets {
            let Ok(executor) = self.executor(&target.provider, ctx) else { return Ok(()) };
            checked = executor.check_input(&target.provider, inputs, ctx);
            if checked.is_ok() {
                break;
            }
        }
        checked
    }

    async fn execute(
        &self,
        provider: &ProviderType,
        inputs: &Payload,
        ctx: &CallContext,
    ) -> RuntimeResult<Outcome> {
        let routed: &Routed = provider.settings()?;
        let order = routed.order(inputs).map_err(|problem| RuntimeError::Failed {
            id: ctx.name.to_string(),
            message: format!("{} failed: its route cannot be computed: {problem}", ctx.name),
            outcome: None,
        })?;
        let mut failed = None;
        for at in order {
            let target = &routed.targets[at];
            let attempt = match target.breaker.enter() {
                Ok(attempt) => attempt,
                Err(wait) => {
                    let reason = format!(
                        "{} failed several times in a row; it is tried again in {}",
                        target.name,
                        seconds(wait)
                    );
                    let id = ctx.name.to_string();
                    failed.get_or_insert(RuntimeError::Unavailable { id, reason, source: None });
                    continue;
                }
            };
            let executor = self.executor(&target.provider, ctx)?;
            let running = RunningCall::begin(target);
            routed.last.store(at, Ordering::Relaxed);
            let result = executor.execute(&target.provider, inputs, &target.context(ctx)).await;
            attempt.record(&result);
            drop(running);
            // The status is visible to other callers, so it does not contain a problem with one caller's
            // input.
            let is_of_provider = |error: &&RuntimeError| error.is_transient();
            target.set_failure(result.as_ref().err().filter(is_of_provider).map(ToString::to_string));
            match result {
                Err(error) if routed.tries_next(&error, target, ctx) => {
                    tracing::debug!(capability = &*ctx.name, provider = target.name, %error, "the next provider is tried");
                    failed = Some(error);
                }
                result => return result,
            }
        }
        Err(failed.unwrap_or_else(|| RuntimeError::Unavailable {
            id: ctx.name.to_string(),
            reason: "it has no providers".to_owned(),
            source: None,
        }))
    }

    fn status(&self, provider: &ProviderType) -> ProviderStatus {
        let mut status = ProviderStatus::default();
        if let Ok(routed) = provider.settings::<Routed>() {
            let last = routed.last.load(Ordering::Relaxed);
            let all = routed.targets.iter().enumerate();
            status.providers = all.map(|(at, target)| target.status(at == last)).collect();
            status.route = Some(routed.route.to_string());
            status.sandbox = self.weakest_sandbox(routed);
            let is_up = status.providers.iter().any(|one| one.state == "available");
            status.state = Some(if is_up { "available" } else { "unavailable" }.to_owned());
        }
        status
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::call::CallContext;
    use crate::payload::JsonText;
    use crate::provider::HttpCapability;

    fn routed(route: Route) -> Routed {
        let provider = |at: u16| {
            let http = HttpCapability::new(format!("http://localhost:{at}"), None, 0);
            (at.to_string(), ProviderType::Http(http))
        };
        Routed::new(route, (0..3).map(provider), false)
    }

    fn order(routed: &Routed, input: &str) -> Vec<usize> {
        routed.order(&Payload::from_json(JsonText::parse(input.to_owned()).unwrap())).unwrap()
    }

    #[test]
    fn equal_values_have_one_text_whatever_their_order() {
        let text = |json: &str| {
            let payload = Payload::from_json(JsonText::parse(json.to_owned()).unwrap());
            canonical(payload.value().unwrap())
        };
        assert_eq!(
            text(r#"{"a": {"b": [1, 2], "c": 3}, "d": 4}"#),
            text(r#"{"d": 4, "a": {"c": 3, "b": [1, 2]}}"#)
        );
        assert_ne!(text(r#"{"a": [1, 2]}"#), text(r#"{"a": [2, 1]}"#));
    }

    #[test]
    fn a_route_orders_its_providers() {
        assert_eq!(order(&routed(Route::Failover), "{}"), [0, 1, 2]);
        let round = routed(Route::RoundRobin);
        assert_eq!(order(&round, "{}"), [0, 1, 2]);
        assert_eq!(order(&round, "{}"), [1, 2, 0]);
        let busy = routed(Route::LeastBusy);
        let _running = RunningCall::begin(&busy.targets[0]);
        assert_eq!(order(&busy, "{}"), [1, 2, 0]);
    }

    #[test]
    fn the_same_value_goes_to_the_same_provider() {
        let by = routed(Route::By(Expression::new("(:user input)").unwrap()));
        let firsts: Vec<usize> =
            (0..40).map(|user| order(&by, &format!(r#"{{"user":{user}}}"#))[0]).collect();
        assert!((0..3).all(|at| firsts.contains(&at)), "{firsts:?}");
        assert_eq!(order(&by, r#"{"user":7,"x":1}"#), order(&by, r#"{"user":7,"x":2}"#));
        assert!(Expression::new("(").is_err());
        let calls = routed(Route::By(Expression::new("(call :x {})").unwrap()));
        assert!(calls.order(&Payload::empty()).is_err());
    }

    #[test]
    fn a_call_that_may_have_run_moves_on_only_if_repeating_it_does_no_harm() {
        let ctx = CallContext::for_tests("x");
        let unavailable =
            || RuntimeError::Unavailable { id: "x".into(), reason: "503".into(), source: None };
        let busy = RuntimeError::Busy { id: "x".into(), running: 1, waiting: 1 };
        let mut one = routed(Route::Failover);
        assert!(one.tries_next(&busy, &one.targets[0], &ctx));
        assert!(!one.tries_next(&unavailable(), &one.targets[0], &ctx));
        one.is_idempotent = true;
        assert!(one.tries_next(&unavailable(), &one.targets[0], &ctx));
    }
}
