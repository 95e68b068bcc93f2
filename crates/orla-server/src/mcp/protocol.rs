//! Constants of the Model Context Protocol: revisions, header names, the keys of `_meta`, and limits.
//!
//! Error codes and message types are the official SDK's (`rmcp::model`). This file contains only the
//! parts that this crate writes by hand, or reads without building a tree.

use http::HeaderName;
use rmcp::model::ProtocolVersion;

/// A published revision of the protocol, the oldest first.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Revision {
    V2024_11_05,
    V2025_03_26,
    V2025_06_18,
    V2025_11_25,
    /// The first without sessions: every request carries its own context in `_meta`.
    V2026_07_28,
}

impl Revision {
    const ALL: [(Self, ProtocolVersion); 5] = [
        (Self::V2024_11_05, ProtocolVersion::V_2024_11_05),
        (Self::V2025_03_26, ProtocolVersion::V_2025_03_26),
        (Self::V2025_06_18, ProtocolVersion::V_2025_06_18),
        (Self::V2025_11_25, ProtocolVersion::V_2025_11_25),
        (Self::V2026_07_28, ProtocolVersion::V_2026_07_28),
    ];

    /// The revision of this name, if it is served.
    pub(crate) fn parse(name: &str) -> Option<Self> {
        Self::ALL.iter().find(|(_, version)| version.as_str() == name).map(|(revision, _)| *revision)
    }

    /// Returns the SDK's name for it.
    pub(crate) fn version(self) -> ProtocolVersion {
        Self::ALL[self as usize].1.clone()
    }

    /// Returns the revision for `initialize`: the requested one if it has that handshake, or else the
    /// newest that has.
    pub(crate) fn negotiate(requested: &str) -> Self {
        match Self::parse(requested) {
            Some(revision) if !revision.is_sessionless() => revision,
            _ => Self::V2025_11_25,
        }
    }

    /// Returns whether requests of this revision have no session.
    pub(crate) fn is_sessionless(self) -> bool {
        self >= Self::V2026_07_28
    }

    /// Returns whether clients of this revision may know tasks.
    pub(crate) fn has_tasks(self) -> bool {
        self >= Self::V2025_11_25
    }

    /// Returns whether a stream may begin with an event that has an id and no data. Older clients would
    /// treat the event as a message and fail.
    pub(crate) fn knows_priming(self) -> bool {
        self >= Self::V2025_11_25
    }

    /// Returns every revision that is served.
    pub(crate) fn served() -> Vec<ProtocolVersion> {
        ProtocolVersion::KNOWN_VERSIONS.to_vec()
    }
}

/// The first revision that requires the headers of SEP-2243; names of revisions sort by age.
pub(crate) const FIRST_SESSIONLESS: &str = "2026-07-28";

pub(crate) const SESSION_ID: HeaderName = HeaderName::from_static("mcp-session-id");
pub(crate) const PROTOCOL_VERSION: HeaderName = HeaderName::from_static("mcp-protocol-version");
pub(crate) const MCP_METHOD: HeaderName = HeaderName::from_static("mcp-method");
pub(crate) const MCP_NAME: HeaderName = HeaderName::from_static("mcp-name");
pub(crate) const LAST_EVENT_ID: HeaderName = HeaderName::from_static("last-event-id");

/// The key of `_meta` that ties a notification to its `subscriptions/listen`.
pub(crate) const META_SUBSCRIPTION_ID: &str = "io.modelcontextprotocol/subscriptionId";

/// Entries on one page of a list (configuration: none; RFC 1 leaves it open).
pub(crate) const PAGE: usize = 500;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn initialize_chooses_a_revision_with_sessions() {
        let cases = [
            ("2025-11-25", Revision::V2025_11_25),
            ("2025-03-26", Revision::V2025_03_26),
            ("2024-11-05", Revision::V2024_11_05),
            ("2026-07-28", Revision::V2025_11_25),
            ("1999-01-01", Revision::V2025_11_25),
            ("", Revision::V2025_11_25),
        ];
        for (requested, settled) in cases {
            assert_eq!(Revision::negotiate(requested), settled, "{requested}");
        }
    }

    #[test]
    fn serves_every_revision_of_the_sdk() {
        assert_eq!(Revision::ALL.map(|(_, version)| version).to_vec(), Revision::served());
        assert_eq!(Revision::V2026_07_28.version().as_str(), FIRST_SESSIONLESS);
    }
}
