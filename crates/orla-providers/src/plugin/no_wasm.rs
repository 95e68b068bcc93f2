//! Replaces components in a build without WebAssembly.

use std::convert::Infallible;
use std::future::Ready;
use std::sync::Arc;

use orla_marketplace::{CallContext, JsonText, ProviderStatus};
use orla_mcp::{Ending, ServerInfo};

use super::settings::PluginSettings;

pub(super) type MayStart = dyn Fn() -> Result<(), String> + Send + Sync;

/// A component. Without the feature `wasm`, no value of this type exists.
#[derive(Debug)]
pub(super) struct Component(Infallible);

pub(super) fn check() -> Result<(), String> {
    Err("this orla was built without WebAssembly; a plugin is a program".to_owned())
}

impl Component {
    pub(super) fn new(_: &PluginSettings, _: Arc<MayStart>) -> Result<Self, String> {
        check().and(Err(String::new()))
    }

    pub(super) fn call(
        &self,
        _: &str,
        _: &JsonText,
        _: &Arc<[String]>,
        _: &CallContext,
    ) -> Ready<Result<JsonText, Ending>> {
        match self.0 {}
    }

    pub(super) fn info(&self) -> Option<Arc<ServerInfo>> {
        match self.0 {}
    }

    pub(super) fn learn(&self, _: &Arc<[String]>) -> Ready<bool> {
        match self.0 {}
    }

    pub(super) fn status(&self, _: &[String]) -> ProviderStatus {
        match self.0 {}
    }
}
