//! Signing in at what orla calls over HTTP: the one door to `orla_oauth` for MCP servers, HTTP APIs, agents and other
//! instances.
//!
//! # How it works
//!
//! A `Sender` sends requests with the token of a [`Subject`], renews it when it is refused, and sends the request
//! again, which has not run. Where a caller has to sign in, `person` asks its client to open a link. [`SignIns`] has
//! the sign-ins of a configuration by their keys; settings of providers name one (`HttpOptions::sign_in`), and it is
//! looked up with each call, so that a reload takes effect at once and keeps what has not changed. MCP servers have their
//! own from [`Tokens`], as each is a connection that stays.
//!
//! # Invariant
//!
//! A provider whose sign-in is not there sends nothing.

mod person;
mod sender;
mod sign_ins;
mod tokens;

use std::sync::Arc;

use orla_marketplace::Principal;
use orla_oauth::{GrantKind, Secret, Subject};

pub(crate) use sender::{Credentials, Sender, Unanswered, challenge};
pub use sign_ins::{SignIn, SignIns, Suggested};
pub use tokens::Tokens;

/// The caller with this id ([`Principal::id`]), for a person who signs in for it.
pub fn caller(id: &str) -> Subject {
    of_principal(&Principal::from_id(id), None)
}

fn of_principal(principal: &Principal, credential: Option<&str>) -> Subject {
    let id = Arc::clone(principal.id());
    Subject::Caller { name: Some(Arc::clone(&id)), id, credential: credential.map(Secret::new) }
}

/// In whose name a caller's requests are made. A caller without a principal is the user of this machine, who signs in
/// as orla itself; there is nothing of it that could be exchanged.
pub(crate) fn subject(grant: GrantKind, principal: Option<&Principal>) -> Option<Subject> {
    let Some(principal) = principal else {
        let anonymous = Subject::Caller { id: "anonymous".into(), name: None, credential: None };
        return (grant == GrantKind::TokenExchange).then_some(anonymous);
    };
    let exchanged = (grant == GrantKind::TokenExchange).then(|| principal.credential()).flatten();
    Some(of_principal(principal, exchanged))
}
