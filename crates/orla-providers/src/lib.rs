//! The executors of the kinds of provider (RTFS capability system §2.2), one module each.

#![warn(missing_docs)]

pub mod a2a;
pub mod builtin;
pub mod capsule;
pub mod http;
pub mod mcp;
mod names;
pub mod openapi;
mod patience;
pub mod plugin;
mod process;
pub mod remote;
pub mod stream;
pub mod tool;

pub use names::NameRules;

#[cfg(feature = "wasm")]
mod wasm;

/// WebAssembly is left out of this build.
#[cfg(not(feature = "wasm"))]
mod wasm {
    use std::convert::Infallible;
    use std::future::Ready;
    use std::sync::Arc;

    use orla_marketplace::{CallContext, JsonText, ProviderStatus};
    use orla_mcp::{Ending, ServerInfo};

    use crate::plugin::PluginSettings;

    pub(crate) type MayStart = dyn Fn() -> Result<(), String> + Send + Sync;

    /// There is none.
    #[derive(Debug)]
    pub(crate) struct Component(Infallible);

    pub(crate) fn check() -> Result<(), String> {
        Err("this orla was built without WebAssembly; a plugin is a program".to_owned())
    }

    impl Component {
        pub(crate) fn new(_: &PluginSettings, _: Arc<MayStart>) -> Result<Self, String> {
            check().and(Err(String::new()))
        }

        pub(crate) fn call(
            &self,
            _: &str,
            _: &JsonText,
            _: &Arc<[String]>,
            _: &CallContext,
        ) -> Ready<Result<JsonText, Ending>> {
            match self.0 {}
        }

        pub(crate) fn info(&self) -> Option<Arc<ServerInfo>> {
            match self.0 {}
        }

        pub(crate) fn learn(&self, _: &Arc<[String]>) -> Ready<bool> {
            match self.0 {}
        }

        pub(crate) fn status(&self) -> ProviderStatus {
            match self.0 {}
        }
    }
}
