//! The parts of MCP besides tools: prompts, completion, and other methods that a provider serves.
//!
//! A surface uses plain data: a method with JSON input and JSON output. No SDK types are needed, and a
//! body that is not inspected is passed on unchanged. The front end asks every surface that serves a
//! method, merges lists and routes other requests to the owner.

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
    /// Returns the owner of this surface, for logs and for routing.
    fn owner(&self) -> &str;

    /// Returns whether the surface answers this method.
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

    /// Returns the item on which a policy decides before this surface is asked; `None` if the subject
    /// cannot belong to this surface.
    fn item(&self, subject: Subject<'_>) -> Option<Item> {
        let name = subject.name().to_owned();
        Some(Item { id: name.clone(), name, needs: Vec::new() })
    }

    /// Returns names similar to one that this surface does not have, the nearest first.
    fn similar(&self, _subject: Subject<'_>) -> Vec<String> {
        Vec::new()
    }

    /// Returns the notifications of the surface from now on; `None` if it never sends any.
    fn notices(&self) -> Option<broadcast::Receiver<SurfaceNotice>> {
        None
    }
}

/// The subject of a request to a surface.
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
    /// Returns the name or address.
    pub fn name(self) -> &'a str {
        match self {
            Self::Prompt(name) | Self::Resource(name) | Self::Template(name) => name,
        }
    }

    /// Returns the kind as one word, for errors, logs and the audit.
    pub fn kind(self) -> &'static str {
        match self {
            Self::Prompt(_) => "prompt",
            Self::Resource(_) => "resource",
            Self::Template(_) => "template",
        }
    }
}

/// A prompt, a resource or a template, in the form that a policy examines.
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
    /// The list of prompts has changed.
    PromptsChanged,
    /// The list of resources, or of resource templates, has changed.
    ResourcesChanged,
    /// A resource with a subscription has changed.
    ResourceUpdated {
        /// The address of the resource.
        uri: String,
    },
}

/// The reason why a surface gave no answer. The text is for the caller.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum SurfaceError {
    /// The subject does not belong to this surface. Another surface may have it.
    #[error("{0}")]
    NotFound(String),
    /// The policy denies the item to this caller, and may say so.
    #[error("{id}: permission denied: requires {permission}")]
    Denied {
        /// The item's id.
        id: String,
        /// The missing permission.
        permission: String,
        /// The rule of the policy that decided, such as `policy[0]`. It is not shown to the caller.
        rule: Option<String>,
        /// The scopes with which the policy would permit the item. Empty if no scope helps.
        scopes: Vec<String>,
    },
    /// The request is invalid.
    #[error("{0}")]
    Invalid(String),
    /// The provider answered with another error of the Model Context Protocol, which is passed on
    /// unchanged.
    #[error("{message} (code {code})")]
    Refused {
        /// The JSON-RPC code.
        code: i64,
        /// The provider's message.
        message: String,
        /// Additional data.
        data: Option<JsonText>,
    },
    /// The surface failed.
    #[error("{0}")]
    Failed(String),
}

/// A surface whose answers contain no secrets.
struct Redacted {
    surface: Arc<dyn Surface>,
    redactor: Arc<Redactor>,
}

/// Wraps the surface of a provider that was given the secrets of `redactor`, and hides them in its
/// answers. Without a redactor, the surface is returned unchanged.
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
    /// Returns an error without secrets.
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
