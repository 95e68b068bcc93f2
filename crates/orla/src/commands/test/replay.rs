//! Answers from a recording, in place of providers.

use std::any::Any;
use std::sync::Arc;

use async_trait::async_trait;
use orla_marketplace::catalog::Entry;
use orla_marketplace::{
    Answers, CallContext, CapabilityExecutor, CapabilityManifest, CapabilityMarketplace, CustomProvider,
    Outcome, Payload, ProviderType, RuntimeError, RuntimeResult,
};
use parking_lot::Mutex;
use serde_json::Value;

use super::case::RecordedCall;

/// The recorded calls of a case.
pub(super) struct Recording(Mutex<Vec<Recorded>>);

struct Recorded {
    call: RecordedCall,
    is_used: bool,
}

impl Recording {
    pub(super) fn of(calls: &[RecordedCall]) -> Self {
        let calls = calls.iter().map(|call| Recorded { call: call.clone(), is_used: false });
        Self(Mutex::new(calls.collect()))
    }

    /// Registers the recorded capabilities that are not there, such as those of a server that cannot be reached.
    pub(super) fn stand_in(&self, market: &CapabilityMarketplace) {
        drop(market.register_executor(Arc::new(NoExecutor)));
        for recorded in self.0.lock().iter() {
            let id = &recorded.call.capability;
            if market.get(id).is_none() {
                let provider = ProviderType::Custom(Arc::new(StandIn));
                let manifest = CapabilityManifest::new(&**id, "Answers from a recording.", provider);
                // The id may be one that cannot be registered; then the call says that it is unknown.
                drop(market.register_capability(manifest));
            }
        }
    }

    /// A sentence for the recorded calls that were not made.
    pub(super) fn left_over(&self) -> Option<String> {
        let calls = self.0.lock();
        let left: Vec<&str> = calls
            .iter()
            .filter(|recorded| !recorded.is_used)
            .map(|recorded| &*recorded.call.capability)
            .collect();
        (!left.is_empty()).then(|| format!("recorded calls were not made: {}", left.join(", ")))
    }
}

impl Answers for Recording {
    fn answer(&self, entry: &Entry, input: &Payload, depth: u32) -> Option<RuntimeResult<Outcome>> {
        if depth == 0 || entry.manifest.provider.is_internal() {
            return None;
        }
        let id = entry.name.to_string();
        let refused =
            |message: String| Some(Err(RuntimeError::Failed { id: id.clone(), message, outcome: None }));
        let value: Value = match input.json().map(|json| serde_json::from_str(json.as_str())) {
            Ok(Ok(value)) => value,
            Ok(Err(err)) => return refused(format!("{id}: its input cannot be compared: {err}")),
            Err(err) => return Some(Err(err)),
        };
        let mut calls = self.0.lock();
        let found = calls.iter_mut().find(|recorded| {
            let RecordedCall { capability, input, .. } = &recorded.call;
            let is_named = *capability == entry.manifest.id || **capability == *entry.name;
            !recorded.is_used && is_named && *input == value
        });
        let Some(found) = found else {
            return refused(format!("{id}: no call with this input is in the recording: {value}"));
        };
        found.is_used = true;
        Some(match &found.call.answer {
            Ok(output) => {
                let structured = Some(Payload::from_json(output.clone()));
                Ok(Outcome { structured, ..Outcome::default() })
            }
            Err(error) => {
                let inner =
                    orla_marketplace::rtfs::Error::new(error.kind.clone(), error.message.clone());
                let (message, error) = (error.message.clone(), Box::new(inner));
                Err(RuntimeError::Structured { id, message, error, outcome: None })
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
