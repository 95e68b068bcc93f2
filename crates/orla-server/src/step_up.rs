//! Step-up authorization (MCP authorization, RFC 6750 §3.1): a caller whose token lacks a scope is answered with 403 and
//! the scopes that would help.

use http::{Response, StatusCode};
use orla_marketplace::{Principal, RuntimeError};

use crate::http::body::Body;
use crate::state::Core;

/// The scopes that would have permitted a request, separated by spaces. It is put into the extensions of a response, and
/// the challenge is made of it where the request is known.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct StepUp(pub(crate) Box<str>);

impl StepUp {
    /// What is missing, if the policy denied `target` to a caller who can bring another token, and says so. A policy that
    /// conceals gives another error.
    pub(crate) fn after(
        core: &Core,
        principal: Option<&Principal>,
        target: &str,
        error: &RuntimeError,
    ) -> Option<Self> {
        let principal = principal.filter(|_| matches!(error, RuntimeError::Denied { .. }))?;
        if !core.settings.load().auth.can_step_up(Some(principal)) {
            return None;
        }
        let catalog = core.market.snapshot();
        let denied =
            catalog.get(target).filter(|entry| catalog.permits(Some(principal), entry).is_err())?;
        Some(Self(catalog.helpful_scopes(principal, denied).join(" ").into()))
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
