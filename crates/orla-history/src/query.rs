//! The selection of calls, and their viewers.

use std::time::{Duration, SystemTime};

use orla_marketplace::id::Pattern;
use orla_marketplace::{ANONYMOUS, CapabilityMarketplace, Principal};

use crate::call::Call;

/// The permission to see the calls of others.
pub const READ: &str = "history:read";
/// The permission to cancel the calls of others.
pub const CANCEL: &str = "history:cancel";

/// The default number of calls in a list.
pub const DEFAULT_LIMIT: usize = 100;
/// The maximum number of calls of one list.
pub const MAX_LIMIT: usize = 1000;

/// Which finished calls are wanted. The default is the newest [`DEFAULT_LIMIT`] ones.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct Query {
    /// A pattern of ids and MCP names of capabilities.
    pub capability: Option<Pattern>,
    /// Only calls that failed.
    pub failed: bool,
    /// Only calls that began at this time or later.
    pub since: Option<SystemTime>,
    /// Only calls that are older than the one with this id.
    pub before: Option<String>,
    /// Only calls of the caller with this name, or of callers without one ([`ANONYMOUS`]).
    pub principal: Option<String>,
    /// Only calls from the client program with this name.
    pub client: Option<String>,
    /// Only calls in the session with this name.
    pub session: Option<String>,
    /// Only outermost calls.
    pub outermost: bool,
    /// How many, at most [`MAX_LIMIT`].
    pub limit: usize,
}

impl Default for Query {
    fn default() -> Self {
        Self {
            capability: None,
            failed: false,
            since: None,
            before: None,
            principal: None,
            client: None,
            session: None,
            outermost: false,
            limit: DEFAULT_LIMIT,
        }
    }
}

impl Query {
    /// Returns whether the call is wanted, leaving aside `before` and `limit`.
    pub fn admits(&self, call: &Call) -> bool {
        let named = |pattern: &Pattern| pattern.fits(&call.capability, &call.name);
        self.capability.as_ref().is_none_or(named)
            && (!self.failed || call.is_failed())
            && self.since.is_none_or(|since| call.started_at >= since)
            && self
                .principal
                .as_deref()
                .is_none_or(|name| call.principal.as_deref().unwrap_or(ANONYMOUS) == name)
            && (self.client.is_none()
                || call.client.as_ref().map(|client| &client.name) == self.client.as_ref())
            && (self.session.is_none() || call.session == self.session)
            && (!self.outermost || call.parent.is_none())
    }
}

/// How a call ended that the policy denied, and a request for a prompt or a resource that nobody has. A policy that conceals what
/// it denies makes them look alike.
pub(crate) const CONCEALED: [&str; 2] = ["denied", "not-found"];

/// A viewer of calls.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Viewer {
    /// Sees everything.
    All,
    /// The caller with this id sees its own calls; `None` is callers that are not identified.
    Own(Option<String>),
    /// The same, without calls that the policy denied, because it conceals the existence of their
    /// capabilities.
    OwnPermitted(Option<String>),
}

impl Viewer {
    /// A caller. It sees the calls of others if a policy grants it [`READ`], or if callers are not identified at all.
    pub fn of(market: &CapabilityMarketplace, principal: Option<&Principal>) -> Self {
        Self::with(market, principal, READ)
    }

    /// Returns the viewer for a caller that cancels calls. It may cancel the calls of others if the
    /// policy grants it [`CANCEL`].
    pub fn cancelling(market: &CapabilityMarketplace, principal: Option<&Principal>) -> Self {
        Self::with(market, principal, CANCEL)
    }

    fn with(market: &CapabilityMarketplace, principal: Option<&Principal>, permission: &str) -> Self {
        let catalog = market.snapshot();
        let own = || principal.map(|principal| principal.id().to_string());
        match catalog.permits_of_others(principal, "history", permission) {
            true => Self::All,
            false if catalog.conceals() => Self::OwnPermitted(own()),
            false => Self::Own(own()),
        }
    }

    /// Returns whether it sees this call.
    pub fn sees(&self, call: &Call) -> bool {
        self.sees_of(call.principal_id.as_deref(), &call.outcome)
    }

    /// Returns whether it sees a call of the caller with this id that has this outcome.
    pub(crate) fn sees_of(&self, principal_id: Option<&str>, outcome: &str) -> bool {
        match self {
            Self::All => true,
            Self::Own(own) => own.as_deref() == principal_id,
            Self::OwnPermitted(own) => own.as_deref() == principal_id && !CONCEALED.contains(&outcome),
        }
    }
}

/// Returns the time that a text names: a duration before now (`30s`, `10m`, `2h`, `7d`), or an instant
/// by RFC 3339.
pub fn time_of(text: &str) -> Option<SystemTime> {
    if let Ok(instant) = text.parse::<jiff::Timestamp>() {
        let millis = u64::try_from(instant.as_millisecond()).ok()?;
        return SystemTime::UNIX_EPOCH.checked_add(Duration::from_millis(millis));
    }
    let unit = text.char_indices().next_back().map(|(at, _)| at)?;
    let seconds = match &text[unit..] {
        "s" => 1,
        "m" => 60,
        "h" => 60 * 60,
        "d" => 24 * 60 * 60,
        _ => return None,
    };
    let number = text[..unit].parse::<u64>().ok()?;
    let before = Duration::from_secs(number.checked_mul(seconds)?);
    // A period longer than the representable time selects everything.
    Some(SystemTime::now().checked_sub(before).unwrap_or(SystemTime::UNIX_EPOCH))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_a_policy_conceals_and_what_nobody_has_look_alike() {
        let (permitted, own) = (Viewer::OwnPermitted(None), Viewer::Own(None));
        for (outcome, is_seen) in
            [("ok", true), ("failed", true), ("denied", false), ("not-found", false)]
        {
            assert_eq!(permitted.sees_of(None, outcome), is_seen, "{outcome}");
            assert!(own.sees_of(None, outcome));
        }
    }

    #[test]
    fn a_time_is_an_instant_or_so_long_ago() {
        let instant = time_of("2026-11-20T08:00:00Z").unwrap();
        assert_eq!(crate::timestamp(instant), "2026-11-20T08:00:00.000Z");
        let ago = SystemTime::now().duration_since(time_of("10m").unwrap()).unwrap();
        assert!(ago >= Duration::from_secs(599) && ago < Duration::from_secs(700), "{ago:?}");
        for wrong in ["", "m", "10", "10w", "-1d", "ü", "99999999999999999999s"] {
            assert!(time_of(wrong).is_none(), "{wrong}");
        }
    }
}
