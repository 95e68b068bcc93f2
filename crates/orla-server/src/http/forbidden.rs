//! Why a request is forbidden. `crate::forbidden` reports it.

use std::borrow::Cow;

/// The reason why a request is forbidden. The status is 403, or 400 or 431 if the request cannot be read. A
/// handler adds the reason to the extensions of its response, and it is reported where the request is known.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Forbidden {
    /// The rule.
    pub by: ForbiddenBy,
    /// The reason, as the caller sees it.
    pub reason: Cow<'static, str>,
}

/// The rule by which a request is forbidden.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum ForbiddenBy {
    /// `allowed_hosts`.
    Host,
    /// `allowed_origins`.
    Origin,
    /// The policy does not let the caller use a part of the server.
    Policy,
    /// A form of the console lacks its token, or comes from another page.
    Form,
    /// The head of the request is larger than the server reads.
    Head,
}

impl ForbiddenBy {
    /// Returns one stable word, for logs, metrics and the audit.
    pub fn word(self) -> &'static str {
        match self {
            Self::Host => "host",
            Self::Origin => "origin",
            Self::Policy => "policy",
            Self::Form => "form",
            Self::Head => "head",
        }
    }
}
