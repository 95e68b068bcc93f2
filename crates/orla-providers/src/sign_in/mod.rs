//! Sign-in at servers that orla calls over HTTP: the only user of `orla_oauth`, for MCP servers,
//! HTTP APIs, agents and other instances.
//!
//! # How it works
//!
//! A `Sender` sends requests with the token of a [`Subject`]. If a token is refused, it renews the token
//! and repeats the request, which has not run. If a caller has to sign in, `person` asks its client to
//! open a link. [`SignIns`] has the sign-ins of a configuration by their keys. Settings of providers
//! name a sign-in (`HttpOptions::sign_in`), which is looked up with each call, so that a reload takes
//! effect immediately and keeps unchanged sign-ins. MCP servers get their own sign-ins from [`Tokens`],
//! because each is a lasting connection.
//!
//! # Invariant
//!
//! A provider whose sign-in is missing sends nothing.

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

/// Returns the subject of the caller with this id ([`Principal::id`]), for a user who signs in for it.
pub fn caller(id: &str) -> Subject {
    of_principal(&Principal::from_id(id), None)
}

fn of_principal(principal: &Principal, credential: Option<&str>) -> Subject {
    let id = Arc::clone(principal.id());
    Subject::Caller { name: Some(Arc::clone(&id)), id, credential: credential.map(Secret::new) }
}

/// Returns the subject in whose name a caller's requests are made. A caller without a principal is the
/// user of this machine, who signs in as orla itself. Such a caller has no token that could be
/// exchanged.
pub(crate) fn subject(grant: GrantKind, principal: Option<&Principal>) -> Option<Subject> {
    let Some(principal) = principal else {
        let anonymous = Subject::Caller { id: "anonymous".into(), name: None, credential: None };
        return (grant == GrantKind::TokenExchange).then_some(anonymous);
    };
    let exchanged = (grant == GrantKind::TokenExchange).then(|| principal.credential()).flatten();
    Some(of_principal(principal, exchanged))
}
