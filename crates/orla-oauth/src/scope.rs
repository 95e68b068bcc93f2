//! Scopes, and the selection of scopes for a token request (MCP authorization, "Scope Selection
//! Strategy"). Pure.

use std::fmt;

use serde::{Deserialize, Serialize};

/// The scope that asks for a refresh token (OpenID Connect Core §11).
pub const OFFLINE_ACCESS: &str = "offline_access";

/// The maximum number of scopes in a set.
const MAX_SCOPES: usize = 256;

/// Returns whether a text is one scope: not empty, and without spaces, quotes, backslashes and non-ASCII
/// characters (RFC 6749 §3.3).
pub fn is_scope(text: &str) -> bool {
    !text.is_empty() && text.bytes().all(|byte| matches!(byte, 0x21 | 0x23..=0x5b | 0x5d..=0x7e))
}

/// A set of scopes in the order in which they were first named (RFC 6749 §3.3).
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Scopes(Vec<String>);

impl Scopes {
    /// Parses scopes that are separated by spaces. Words with invalid characters are left out.
    pub fn parse(text: &str) -> Self {
        text.split_ascii_whitespace().collect()
    }

    /// Returns whether there are none.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Returns whether this scope is one of them.
    pub fn contains(&self, scope: &str) -> bool {
        self.0.iter().any(|known| known == scope)
    }

    /// Returns whether all of `other` are in this set.
    pub fn covers(&self, other: &Self) -> bool {
        other.0.iter().all(|scope| self.contains(scope))
    }

    /// Returns the scopes of both sets.
    #[must_use]
    pub fn union(&self, other: &Self) -> Self {
        self.0.iter().chain(&other.0).collect()
    }
}

impl<S: AsRef<str>> FromIterator<S> for Scopes {
    fn from_iter<I: IntoIterator<Item = S>>(words: I) -> Self {
        let mut scopes: Vec<String> = Vec::new();
        for word in words {
            let word = word.as_ref();
            if is_scope(word) && scopes.len() < MAX_SCOPES && !scopes.iter().any(|known| known == word) {
                scopes.push(word.to_owned());
            }
        }
        Self(scopes)
    }
}

impl fmt::Display for Scopes {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0.join(" "))
    }
}

/// The inputs of the selection.
#[derive(Clone, Copy, Debug, Default)]
pub struct Known<'a> {
    /// The scopes of the settings, which have priority.
    pub configured: Option<&'a Scopes>,
    /// The scopes of the challenge.
    pub challenged: Option<&'a Scopes>,
    /// The scopes in the resource's metadata.
    pub of_resource: Option<&'a Scopes>,
    /// The scopes of the previous token, or of an earlier challenge: they are requested again
    /// (SEP-2350).
    pub before: Option<&'a Scopes>,
    /// The scopes in the authorization server's metadata.
    pub of_server: Option<&'a Scopes>,
    /// Whether a refresh token is wanted.
    pub offline: bool,
}

/// Returns the scopes to request; empty means that the parameter is left out.
///
/// The settings have priority, then the challenge, then the resource's metadata. `offline_access` is
/// added only if the authorization server lists it (SEP-2207).
pub fn select(known: Known<'_>) -> Scopes {
    let chosen = known.configured.or(known.challenged).or(known.of_resource);
    let mut scopes = known.before.cloned().unwrap_or_default();
    scopes = scopes.union(chosen.unwrap_or(&Scopes::default()));
    if known.configured.is_some()
        && let Some(challenged) = known.challenged.filter(|_| known.before.is_some())
    {
        // A step-up requests scopes beyond those of the settings.
        scopes = scopes.union(challenged);
    }
    let lists_offline = known.of_server.is_some_and(|scopes| scopes.contains(OFFLINE_ACCESS));
    if known.offline && lists_offline {
        scopes = scopes.union(&Scopes::parse(OFFLINE_ACCESS));
    }
    scopes
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn scopes_are_a_set_of_words() {
        let scopes = Scopes::parse("  b a\tb c\"d ");
        assert_eq!(scopes.to_string(), "b a");
        assert!(scopes.covers(&Scopes::parse("a")) && !scopes.covers(&Scopes::parse("a c")));
        assert_eq!(scopes.union(&Scopes::parse("c a")).to_string(), "b a c");
    }

    #[test]
    fn the_scopes_of_a_request_are_chosen_in_order() {
        let (a, b, c) = (Scopes::parse("a"), Scopes::parse("b"), Scopes::parse("c offline_access"));
        let known = Known { challenged: Some(&b), of_resource: Some(&c), ..Known::default() };
        assert_eq!(select(Known { configured: Some(&a), ..known }).to_string(), "a");
        assert_eq!(select(known).to_string(), "b");
        assert_eq!(select(Known { challenged: None, ..known }).to_string(), "c offline_access");
        assert_eq!(select(Known::default()).to_string(), "");
        // What was granted before stays, and a refresh token is requested only where that is offered.
        assert_eq!(select(Known { before: Some(&a), ..known }).to_string(), "a b");
        let offline = Known { offline: true, ..known };
        assert_eq!(select(offline).to_string(), "b");
        assert_eq!(select(Known { of_server: Some(&c), ..offline }).to_string(), "b offline_access");
        // A step-up goes beyond the settings.
        let step_up = Known { configured: Some(&a), before: Some(&a), ..known };
        assert_eq!(select(step_up).to_string(), "a b");
    }
}
