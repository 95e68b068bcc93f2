//! Step-up authorization (MCP authorization, RFC 6750 §3.1): a caller whose token lacks a scope is answered with 403 and
//! the scopes that would help.

use std::sync::OnceLock;

use http::{Response, StatusCode};
use orla_marketplace::{Principal, RuntimeError};

use crate::http::body::Body;
use crate::state::Core;

/// The scopes that would have permitted a request, separated by spaces. A handler adds them to the
/// extensions of a response, and the challenge is built where the request is known.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct StepUp(pub(crate) Box<str>);

impl StepUp {
    /// Returns the missing scopes, if the policy denied a call openly and the caller can obtain another
    /// token. A policy that conceals returns another error.
    pub(crate) fn after(
        core: &Core,
        principal: Option<&Principal>,
        error: &RuntimeError,
    ) -> Option<Self> {
        match error {
            RuntimeError::Denied { scopes: Some(scopes), .. } => Self::with(core, principal, scopes),
            _ => None,
        }
    }

    /// As [`after`](Self::after), if these scopes would help.
    pub(crate) fn with(core: &Core, principal: Option<&Principal>, scopes: &[String]) -> Option<Self> {
        let can = core.settings.load().auth.can_step_up(principal);
        can.then(|| Self(scopes.join(" ").into()))
    }

    /// Makes the response one with status 403.
    pub(crate) fn apply(this: Option<Self>, mut response: Response<Body>) -> Response<Body> {
        if let Some(step_up) = this {
            *response.status_mut() = StatusCode::FORBIDDEN;
            response.extensions_mut().insert(step_up);
        }
        response
    }
}

/// Notes the scopes that would have permitted a call, if the policy denied it.
pub(crate) fn note_denial(missing_scopes: &OnceLock<Vec<String>>, error: &RuntimeError) {
    if let RuntimeError::Denied { scopes: Some(scopes), .. } = error {
        // A request is refused at most once.
        drop(missing_scopes.set(scopes.clone()));
    }
}
