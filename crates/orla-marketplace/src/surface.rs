//! What is MCP but no tool: prompts, completion, and whatever a provider serves besides
//! capabilities.
//!
//! A surface speaks plain data, a method with JSON in and JSON out, so that nothing here knows an
//! SDK's types and a body that nobody inspects is passed on as it came. The front end asks every
//! surface that serves a method, merges lists and routes the rest to the owner.

use async_trait::async_trait;
use tokio::sync::broadcast;

use crate::executor::CallContext;
use crate::payload::JsonText;

/// Serves MCP methods other than those of tools.
#[async_trait]
pub trait Surface: Send + Sync {
    /// Whose surface this is, for logs and for routing.
    fn owner(&self) -> &str;

    /// Whether it answers this method at all.
    fn serves(&self, method: &str) -> bool;

    /// Answers one request with the text of its result.
    ///
    /// # Errors
    /// See [`SurfaceError`].
    async fn request(
        &self,
        method: &str,
        params: &JsonText,
        ctx: &CallContext,
    ) -> Result<JsonText, SurfaceError>;

    /// Whether a caller may hear of a resource to which the surface has been subscribed for somebody else.
    ///
    /// # Errors
    /// See [`SurfaceError`].
    fn admits(&self, _uri: &str, _ctx: &CallContext) -> Result<(), SurfaceError> {
        Ok(())
    }

    /// What the surface tells unasked, from now on; none where it never does.
    fn notices(&self) -> Option<broadcast::Receiver<SurfaceNotice>> {
        None
    }
}

/// What a surface tells unasked.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum SurfaceNotice {
    /// Its list of prompts is another.
    PromptsChanged,
    /// Its list of resources, or of resource templates, is another.
    ResourcesChanged,
    /// A resource that someone has subscribed to is another.
    ResourceUpdated {
        /// Which one.
        uri: String,
    },
}

/// Why a surface gave no answer. The text is for the caller.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum SurfaceError {
    /// The thing that the request names is not of this surface: another may have it.
    #[error("{0}")]
    NotFound(String),
    /// The request cannot be answered as it is.
    #[error("{0}")]
    Invalid(String),
    /// The provider answered with another error of the Model Context Protocol. It goes out as it is.
    #[error("{message} (code {code})")]
    Refused {
        /// The JSON-RPC code.
        code: i64,
        /// What the provider said.
        message: String,
        /// What it added.
        data: Option<JsonText>,
    },
    /// The surface failed.
    #[error("{0}")]
    Failed(String),
}
