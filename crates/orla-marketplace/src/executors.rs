//! The registered executors, one for each kind of provider (RTFS capability system §5, §10).

use std::any::TypeId;
use std::collections::HashMap;
use std::collections::hash_map::Entry;
use std::sync::Arc;

use crate::executor::CapabilityExecutor;
use crate::provider::ProviderType;

/// The executors, found in one lookup by the type of their settings.
#[derive(Clone, Default)]
pub(crate) struct Executors(HashMap<TypeId, Arc<dyn CapabilityExecutor>>);

impl Executors {
    pub(crate) fn find(&self, provider: &ProviderType) -> Option<&Arc<dyn CapabilityExecutor>> {
        self.0.get(&provider.settings_type())
    }

    /// Adds an executor, unless its kind has one already. Returns whether it was added.
    pub(crate) fn add(&mut self, executor: Arc<dyn CapabilityExecutor>) -> bool {
        match self.0.entry(executor.provider_type_id()) {
            Entry::Occupied(_) => false,
            Entry::Vacant(slot) => {
                slot.insert(executor);
                true
            }
        }
    }

    /// Replaces the executor for its kind, and returns the old one.
    pub(crate) fn replace(
        &mut self,
        executor: Arc<dyn CapabilityExecutor>,
    ) -> Option<Arc<dyn CapabilityExecutor>> {
        self.0.insert(executor.provider_type_id(), executor)
    }

    pub(crate) fn remove(&mut self, settings: TypeId) -> Option<Arc<dyn CapabilityExecutor>> {
        self.0.remove(&settings)
    }
}
