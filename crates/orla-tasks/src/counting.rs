//! Capabilities for tests that count their calls, outside of all processes and nodes.

use std::any::{Any, TypeId};
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use orla_marketplace::program::{LanguageExecutor, registrations};
use orla_marketplace::{
    ANNOTATIONS, CallContext, CapabilityExecutor, CapabilityManifest, CapabilityMarketplace,
    CustomProvider, Limits, Outcome, Payload, ProviderType, RuntimeError, RuntimeResult,
};
use parking_lot::Mutex;

/// The calls made, each with its capability and its input.
pub(crate) type Calls = Arc<Mutex<Vec<(String, String)>>>;

#[derive(Debug)]
struct Counts;

impl CustomProvider for Counts {
    fn as_any(&self) -> &dyn Any {
        self
    }

    fn kind(&self) -> &'static str {
        "counts"
    }
}

struct Counter {
    calls: Calls,
    /// How long a call takes.
    time: Duration,
}

#[async_trait]
impl CapabilityExecutor for Counter {
    fn provider_type_id(&self) -> TypeId {
        TypeId::of::<Counts>()
    }

    async fn execute(
        &self,
        _: &ProviderType,
        input: &Payload,
        ctx: &CallContext,
    ) -> RuntimeResult<Outcome> {
        self.calls.lock().push((ctx.name.to_string(), input.json()?.as_str().to_owned()));
        tokio::task::yield_now().await;
        if !self.time.is_zero() {
            tokio::select! {
                biased;
                () = ctx.scope.cancellation.cancelled() => {
                    return Err(RuntimeError::Cancelled { id: ctx.name.to_string(), outcome: None });
                }
                () = tokio::time::sleep(self.time) => {}
            }
        }
        Ok(Outcome { structured: Some(input.clone()), ..Outcome::default() })
    }
}

/// Returns a marketplace with programs and the capabilities of [`register`], which count their calls.
pub(crate) fn market(calls: &Calls, idempotent: &str) -> Arc<CapabilityMarketplace> {
    market_with(calls, idempotent, Duration::ZERO)
}

/// Returns the same marketplace, whose calls take this long.
pub(crate) fn market_with(
    calls: &Calls,
    idempotent: &str,
    time: Duration,
) -> Arc<CapabilityMarketplace> {
    // A process may be stopped during a call for longer than a call may take otherwise.
    let mut limits = Limits::default();
    limits.timeout = Duration::from_secs(3_600);
    let market = Arc::new(CapabilityMarketplace::new(limits));
    market.register_executor(Arc::new(Counter { calls: Arc::clone(calls), time })).unwrap();
    register(&market, idempotent, |id| {
        CapabilityManifest::new(id, "Counts.", ProviderType::Custom(Arc::new(Counts)))
    });
    market.register_executor(Arc::new(LanguageExecutor::new(&market))).unwrap();
    for registration in registrations() {
        market.register_capability(registration).unwrap();
    }
    market
}

/// Registers the capability `once`, which is not idempotent, and one that is.
pub(crate) fn register(
    market: &CapabilityMarketplace,
    idempotent: &str,
    manifest: impl Fn(&str) -> CapabilityManifest,
) {
    for (id, hint) in [("once", false), (idempotent, true)] {
        let mut manifest = manifest(id);
        let hints = format!(r#"{{"idempotentHint": {hint}}}"#);
        manifest.metadata.insert(ANNOTATIONS.to_owned(), hints);
        market.register_capability(manifest).unwrap();
    }
}
