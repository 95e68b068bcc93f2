//! Requests back to the caller's client: sampling, elicitation, roots.
//!
//! A provider asks through the handle in its [`CallContext`](crate::CallContext) and waits for the
//! answer. The front end decides how the question reaches the client. With a session, the question is a
//! request on the call's own stream. In the sessionless revision, it is a result that asks for input,
//! and the provider's call stays open until the client returns with the answer. Concurrent questions of
//! a provider may reach the client together.

use async_trait::async_trait;

use crate::payload::JsonText;

/// The member of a request's `_meta` by which a provider names its question (text, unique within the
/// call). The member is removed before the client sees the request. In the sessionless revision the name
/// is the key of `inputRequests`, so that clients can answer before they are asked. Without a name, the
/// front end creates a key.
pub const INPUT_KEY: &str = "orla/key";

/// The client at the other end of a call.
#[async_trait]
pub trait Client: Send + Sync {
    /// Returns the client's MCP capabilities, a JSON object.
    fn capabilities(&self) -> JsonText;

    /// Returns the session of the client, as a number that no other current session has; `None` for a
    /// client without a session.
    fn session(&self) -> Option<u64> {
        None
    }

    /// Asks the client and waits for its answer, at most until the call's deadline.
    ///
    /// # Errors
    /// See [`ClientError`].
    async fn request(&self, method: &str, params: JsonText) -> Result<JsonText, ClientError>;
}

/// The reason why a client gave no answer.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum ClientError {
    /// The client did not declare that it answers such requests.
    #[error("the client does not support {0}")]
    Unsupported(String),
    /// The client answered with an error.
    #[error("the client refused: {message} ({code})")]
    Refused {
        /// The JSON-RPC code.
        code: i64,
        /// The client's message.
        message: String,
        /// Additional data.
        data: Option<JsonText>,
    },
    /// The client disconnected, or the time was over.
    #[error("the client did not answer")]
    Gone,
}
