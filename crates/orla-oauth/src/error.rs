//! Why there is no token.

use crate::scope::Scopes;

/// Why there is no token. `Display` is for the caller of a capability: it names no address and no secret.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// A person has to sign in.
    #[error("{0}")]
    SignIn(SignInNeeded),
    /// The authorization server refuses.
    #[error("{0}")]
    Refused(String),
    /// Something failed that may work later.
    #[error("{0}")]
    Failed(String),
}

/// What a person has to do.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct SignInNeeded {
    /// The name of the server, as `orla login` takes it.
    pub server: String,
    /// The name of the caller who has to sign in; `None` if one sign-in is for all.
    pub caller: Option<String>,
    /// Why.
    pub why: String,
    /// The scopes that are missing.
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
