//! The executors of the kinds of provider (RTFS capability system §2.2), one module each.

#![warn(missing_docs)]

#[cfg(feature = "a2a")]
pub mod a2a;
pub mod builtin;
#[cfg(feature = "http")]
pub mod http;
#[cfg(feature = "mcp")]
pub mod mcp;
#[cfg(any(feature = "a2a", feature = "mcp", feature = "plugin", feature = "remote"))]
mod names;
#[cfg(feature = "http")]
pub mod openapi;
#[cfg(any(feature = "a2a", feature = "http", feature = "remote"))]
mod patience;
#[cfg(feature = "plugin")]
pub mod plugin;
#[cfg(feature = "remote")]
pub mod remote;
#[cfg(feature = "stream")]
pub mod stream;

/// Streams are left out of this build.
#[cfg(not(feature = "stream"))]
pub mod stream {
    use orla_marketplace::StreamCapabilityImpl;
    use serde_json::{Value, json};

    /// The JSON Schema of what a call of a stream is given.
    pub fn call_schema(_: &StreamCapabilityImpl) -> Value {
        json!({"type": "object"})
    }

    /// Whether settings can ever give a stream.
    ///
    /// # Errors
    /// Always: nothing here opens streams.
    pub fn check(_: &StreamCapabilityImpl) -> Result<(), String> {
        Err("this build has no streams".to_owned())
    }
}

/// Other instances are left out of this build; what is configured of them can still be read.
#[cfg(not(feature = "remote"))]
pub mod remote {
    mod settings;

    pub use settings::RemoteSettings;

    /// Whether an endpoint leads somewhere.
    ///
    /// # Errors
    /// Always: nothing here calls other instances.
    pub fn check(_: &str) -> Result<(), String> {
        Err("this build has no remote instances".to_owned())
    }
}

#[cfg(feature = "wasm")]
mod wasm;

/// WebAssembly is left out of this build.
#[cfg(all(feature = "plugin", not(feature = "wasm")))]
mod wasm {
    use std::convert::Infallible;
    use std::future::Ready;
    use std::sync::Arc;

    use orla_marketplace::{CallContext, JsonText, ProviderStatus};
    use orla_mcp::{Ending, Learned};

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

        pub(crate) fn learned(&self) -> Option<Arc<Learned>> {
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

/// HTTP APIs are left out of this build.
#[cfg(not(feature = "http"))]
pub mod http {
    use orla_marketplace::HttpCapability;

    /// Whether settings can ever make a request.
    ///
    /// # Errors
    /// Always: nothing here makes requests.
    pub fn check(_: &HttpCapability) -> Result<(), String> {
        Err("this build has no HTTP capabilities".to_owned())
    }
}

/// OpenAPI documents are left out of this build; what is configured of them can still be read.
#[cfg(not(feature = "http"))]
pub mod openapi {
    mod settings;

    pub use settings::{Location, OpenApiSettings, Selection};
}

/// Plugins are left out of this build; what is configured of them can still be read.
#[cfg(not(feature = "plugin"))]
pub mod plugin {
    mod settings;

    pub use settings::{ENTRY, PluginSettings};
}

/// Model Context Protocol servers are left out of this build; what is configured of them can still be read.
#[cfg(not(feature = "mcp"))]
pub mod mcp {
    mod settings;

    pub use settings::{Reach, ServerSettings};

    /// Whether a `server_url` leads somewhere.
    ///
    /// # Errors
    /// Always: nothing here connects to servers.
    pub fn check(_: &str) -> Result<(), String> {
        Err("this build has no MCP servers".to_owned())
    }
}

/// Agents are left out of this build; what is configured of them can still be read.
#[cfg(not(feature = "a2a"))]
pub mod a2a {
    mod settings;

    pub use settings::{AgentSettings, Protocol};

    /// Whether an endpoint can be reached by a protocol.
    ///
    /// # Errors
    /// Always: nothing here calls agents.
    pub fn check(_: &str, _: &str) -> Result<(), String> {
        Err("this build has no agents".to_owned())
    }
}
