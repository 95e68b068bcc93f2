//! The parts of MCP beside tools: prompts, completion, and everything else that a provider serves.
//!
//! A surface speaks plain data, a method with JSON in and JSON out. So nothing here knows an SDK's types, and a
//! body that is not inspected is passed on unchanged. The front end asks every surface that serves a method,
//! merges lists and routes the rest to the owner.

use std::sync::Arc;

use async_trait::async_trait;
use tokio::sync::broadcast;

use crate::call::CallContext;
use crate::payload::JsonText;
use crate::permission::Permission;
use crate::redaction::Redactor;

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

    /// What a policy decides on before this surface is asked; `None` if the subject cannot belong to this surface.
    fn item(&self, subject: Subject<'_>) -> Option<Item> {
        let name = subject.name().to_owned();
        Some(Item { id: name.clone(), name, needs: Vec::new() })
    }

    /// Names similar to one that this surface does not have, the nearest first.
    fn similar(&self, _subject: Subject<'_>) -> Vec<String> {
        Vec::new()
    }

    /// The notifications of the surface from now on; `None` if it never sends any.
    fn notices(&self) -> Option<broadcast::Receiver<SurfaceNotice>> {
        None
    }
}

/// What a request to a surface is about.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Subject<'a> {
    /// A prompt, by its name.
    Prompt(&'a str),
    /// A resource, by its address.
    Resource(&'a str),
    /// A template of resources, by its text.
    Template(&'a str),
}

impl<'a> Subject<'a> {
    /// The name or address.
    pub fn name(self) -> &'a str {
        match self {
            Self::Prompt(name) | Self::Resource(name) | Self::Template(name) => name,
        }
    }

    /// The kind as one word, for errors, logs and the audit.
    pub fn kind(self) -> &'static str {
        match self {
            Self::Prompt(_) => "prompt",
            Self::Resource(_) => "resource",
            Self::Template(_) => "template",
        }
    }
}

/// A prompt, a resource or a template as a policy knows it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Item {
    /// Its id, `SERVER.NAME` if it belongs to a server.
    pub id: String,
    /// The name that clients use.
    pub name: String,
    /// The permissions that a caller needs for it.
    pub needs: Vec<Permission>,
}

/// A notification of a surface.
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
    /// The policy denies it to this caller, and may say so.
    #[error("{id}: permission denied: requires {permission}")]
    Denied {
        /// The item's id.
        id: String,
        /// The permission that is missing.
        permission: String,
        /// The scopes with which the policy would permit it to this caller. Empty if no scope helps.
        scopes: Vec<String>,
    },
    /// The request is invalid.
    #[error("{0}")]
    Invalid(String),
    /// The provider answered with another error of the Model Context Protocol. It goes out unchanged.
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

/// A surface whose answers have no secrets.
struct Redacted {
    surface: Arc<dyn Surface>,
    redactor: Arc<Redactor>,
}

/// The surface of a provider that was given the secrets of `redactor`, with answers that do not have them. A provider
/// that was given none keeps its surface.
pub fn redacted(surface: Arc<dyn Surface>, redactor: Option<&Arc<Redactor>>) -> Arc<dyn Surface> {
    match redactor {
        Some(redactor) => Arc::new(Redacted { surface, redactor: Arc::clone(redactor) }),
        None => surface,
    }
}

#[async_trait]
impl Surface for Redacted {
    fn owner(&self) -> &str {
        self.surface.owner()
    }

    fn serves(&self, method: &str) -> bool {
        self.surface.serves(method)
    }

    async fn request(
        &self,
        method: &str,
        params: &JsonText,
        ctx: &CallContext,
    ) -> Result<JsonText, SurfaceError> {
        let answered = self.surface.request(method, params, ctx).await;
        answered.map(|json| self.redactor.json(json)).map_err(|error| self.clean(error))
    }

    fn item(&self, subject: Subject<'_>) -> Option<Item> {
        self.surface.item(subject)
    }

    fn similar(&self, subject: Subject<'_>) -> Vec<String> {
        self.surface.similar(subject)
    }

    fn notices(&self) -> Option<broadcast::Receiver<SurfaceNotice>> {
        self.surface.notices()
    }
}

impl Redacted {
    /// An error without secrets.
    fn clean(&self, error: SurfaceError) -> SurfaceError {
        let text = |message: String| self.redactor.text(&message).into_owned();
        match error {
            SurfaceError::NotFound(message) => SurfaceError::NotFound(text(message)),
            SurfaceError::Invalid(message) => SurfaceError::Invalid(text(message)),
            SurfaceError::Failed(message) => SurfaceError::Failed(text(message)),
            SurfaceError::Refused { code, message, data } => SurfaceError::Refused {
                code,
                message: text(message),
                data: data.map(|json| self.redactor.json(json)),
            },
            denied @ SurfaceError::Denied { .. } => denied,
        }
    }
}
