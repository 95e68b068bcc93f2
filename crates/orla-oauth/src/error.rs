//! The reasons why there is no token.

use crate::scope::Scopes;

/// The reason why there is no token. `Display` is for the caller of a capability: it contains no address
/// and no secret.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// A user has to sign in.
    #[error("{0}")]
    SignIn(SignInNeeded),
    /// The authorization server refuses.
    #[error("{0}")]
    Refused(String),
    /// A failure that may be temporary.
    #[error("{0}")]
    Failed(String),
}

/// A required sign-in.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct SignInNeeded {
    /// The name of the server, for `orla login`.
    pub server: String,
    /// The name of the caller who has to sign in; `None` if one sign-in applies to all callers.
    pub caller: Option<String>,
    /// The reason.
    pub why: String,
    /// The missing scopes.
    pub scopes: Scopes,
}

impl std::fmt::Display for SignInNeeded {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}; run `orla login {}", self.why, self.server)?;
        if let Some(caller) = &self.caller {
            write!(f, " --caller {caller}")?;
        }
        f.write_str("`")
    }
}
