//! Answers from a recording, in place of providers.
//!
//! A call whose caller did not wait for it to end is recorded as cancelled. Its end is no cause of anything: mostly, a
//! call beside it had failed. So it never answers, unless all of the recorded call was cancelled. A failure answers only
//! when the calls beside it have been made, as it mostly was.

use std::any::Any;
use std::future::{pending, ready};
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use futures_util::FutureExt;
use orla_marketplace::catalog::Entry;
use orla_marketplace::{
    Answering, Answers, CallContext, CapabilityExecutor, CapabilityManifest, CapabilityMarketplace,
    CustomProvider, Outcome, Payload, ProviderType, RuntimeError, RuntimeResult,
};
use parking_lot::Mutex;
use serde_json::Value;

use super::case::RecordedCall;

/// How a call is recorded whose caller did not wait for it.
const ABANDONED: &str = "cancelled";
/// The kinds of errors with which a call is refused before a provider, or its recording, is asked.
const REFUSED: [&str; 7] =
    ["invalid-input", "denied", "quota", "approval", "unavailable", "busy", "limit"];
/// How often a failure lets other calls go first: more often than a call has steps before its answer.
const TURNS: usize = 64;

/// The recorded calls of a case.
pub(super) struct Recording {
    calls: Mutex<Vec<Recorded>>,
    /// Whether the whole was cancelled.
    is_cancelled: bool,
}

struct Recorded {
    call: RecordedCall,
    is_used: bool,
}

impl Recording {
    /// Of a case that expects this error, if it expects one.
    pub(super) fn of(calls: &[RecordedCall], error: Option<&str>) -> Self {
        let calls = calls.iter().map(|call| Recorded { call: call.clone(), is_used: false });
        Self { calls: Mutex::new(calls.collect()), is_cancelled: error == Some(ABANDONED) }
    }

    /// Returns whether a recorded call never answers.
    fn is_endless(&self, call: &RecordedCall) -> bool {
        let is_abandoned = call.answer.as_ref().is_err_and(|error| error.kind == ABANDONED);
        is_abandoned && !self.is_cancelled
    }

    /// Registers the recorded capabilities that are absent, such as those of an unreachable server.
    pub(super) fn stand_in(&self, market: &CapabilityMarketplace) {
        drop(market.register_executor(Arc::new(NoExecutor)));
        for recorded in self.calls.lock().iter() {
            let id = &recorded.call.capability;
            if market.get(id).is_none() {
                let provider = ProviderType::Custom(Arc::new(StandIn));
                let manifest = CapabilityManifest::new(&**id, "Answers from a recording.", provider);
                // The id may be invalid. The call then reports it as unknown.
                drop(market.register_capability(manifest));
            }
        }
    }

    /// Returns whether a call may be made without a question to the recording.
    fn may_be_unasked(&self, call: &RecordedCall) -> bool {
        let is_refused = call.answer.as_ref().is_err_and(|error| REFUSED.contains(&&*error.kind));
        is_refused || self.is_endless(call)
    }

    /// Returns how long the calls that were answered took when they were recorded, together.
    pub(super) fn recorded_time(&self) -> Duration {
        let calls = self.calls.lock();
        let answered = calls.iter().filter(|recorded| recorded.is_used);
        answered.filter_map(|recorded| recorded.call.took).fold(Duration::ZERO, Duration::saturating_add)
    }

    /// Returns a sentence for the recorded calls that were not made.
    pub(super) fn left_over(&self) -> Option<String> {
        let calls = self.calls.lock();
        let left: Vec<&str> = calls
            .iter()
            .filter(|recorded| !recorded.is_used && !self.may_be_unasked(&recorded.call))
            .map(|recorded| &*recorded.call.capability)
            .collect();
        (!left.is_empty()).then(|| format!("recorded calls were not made: {}", left.join(", ")))
    }
}

impl Answers for Recording {
    fn answer(&self, entry: &Entry, input: &Payload, depth: u32) -> Option<Answering> {
        if depth == 0 || entry.manifest.provider.is_internal() {
            return None;
        }
        let id = entry.name.to_string();
        let refused = |message: String| {
            let error = RuntimeError::Failed { id: id.clone(), message, outcome: None };
            Some(ready(Err(error)).boxed())
        };
        let value: Value = match input.json().map(|json| serde_json::from_str(json.as_str())) {
            Ok(Ok(value)) => value,
            Ok(Err(err)) => return refused(format!("{id}: its input cannot be compared: {err}")),
            Err(err) => return Some(ready(Err(err)).boxed()),
        };
        let mut calls = self.calls.lock();
        let found = calls.iter_mut().find(|recorded| {
            let RecordedCall { capability, input, .. } = &recorded.call;
            let is_named = *capability == entry.manifest.id || **capability == *entry.name;
            !recorded.is_used && is_named && *input == value
        });
        let Some(found) = found else {
            return refused(format!("{id}: no call with this input is in the recording: {value}"));
        };
        found.is_used = true;
        if self.is_endless(&found.call) {
            return Some(pending().boxed());
        }
        Some(match &found.call.answer {
            Ok(output) => {
                let structured = Some(Payload::from_json(output.clone()));
                ready(Ok(Outcome { structured, ..Outcome::default() })).boxed()
            }
            Err(error) => {
                let inner =
                    orla_marketplace::rtfs::Error::new(error.kind.clone(), error.message.clone());
                let (message, error) = (error.message.clone(), Box::new(inner));
                let failure = RuntimeError::Structured { id, message, error, outcome: None };
                async move {
                    for _ in 0..TURNS {
                        tokio::task::yield_now().await;
                    }
                    Err(failure)
                }
                .boxed()
            }
        })
    }
}

/// A capability that only its recording answers.
#[derive(Debug)]
struct StandIn;

impl CustomProvider for StandIn {
    fn as_any(&self) -> &dyn Any {
        self
    }

    fn kind(&self) -> &'static str {
        "recorded"
    }
}

struct NoExecutor;

#[async_trait]
impl CapabilityExecutor for NoExecutor {
    fn provider_type_id(&self) -> std::any::TypeId {
        std::any::TypeId::of::<StandIn>()
    }

    async fn execute(&self, _: &ProviderType, _: &Payload, ctx: &CallContext) -> RuntimeResult<Outcome> {
        let (id, reason) = (ctx.name.to_string(), "it is only in a recording".to_owned());
        Err(RuntimeError::Unavailable { id, reason, source: None })
    }
}
