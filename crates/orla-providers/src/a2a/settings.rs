//! The configuration of an agent.

use std::collections::BTreeMap;
use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use orla_marketplace::{HttpCapability, Redactor};

use crate::names::NameRules;

/// One entry of `agents`.
#[derive(Clone, PartialEq)]
pub struct AgentSettings {
    /// Its key: unique, and the first part of the ids of its skills.
    pub name: String,
    /// The address below which the agent's card is found, or the address of one of its endpoints.
    pub url: String,
    /// The protocol by which the agent is reached.
    pub protocol: Protocol,
    /// The bearer token, which is sent only to the origin of `url` and to `origins`.
    pub token: Option<String>,
    /// The key of the sign-in that provides the token of requests, instead of `token`.
    pub sign_in: Option<String>,
    /// Header fields that are sent to the same origins as the token.
    pub headers: BTreeMap<String, String>,
    /// Other origins that the card may lead to, such as `https://grpc.example.com:443`.
    pub origins: Vec<String>,
    /// How long one call may take; `None` means the marketplace's default.
    pub timeout: Option<Duration>,
    /// The timeout of a request for its card.
    pub startup_timeout: Duration,
    /// The names of its skills, and which of them are served.
    pub names: NameRules,
    /// The keys that must have signed its card, as the text of a JSON Web Key Set. `None` means the set that the
    /// card's signature names, if it is at the agent's own origin.
    pub keys: Option<String>,
    /// Hides the secrets of the settings in everything that the agent returns.
    pub redaction: Option<Arc<Redactor>>,
}

/// The protocol of an agent (RTFS capability system §3.3).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Protocol {
    /// JSON-RPC, or HTTP and JSON, whichever the agent's card lists first.
    #[default]
    Http,
    /// JSON-RPC in the text frames of a WebSocket.
    WebSocket,
    /// gRPC.
    Grpc,
}

impl Protocol {
    /// Parses a protocol's name in any case: the document's name, the scheme of an address, or the name
    /// in cards.
    pub fn named(name: &str) -> Option<Self> {
        match name.to_ascii_lowercase().as_str() {
            "http" | "https" | "jsonrpc" | "http+json" => Some(Self::Http),
            "websocket" | "ws" | "wss" => Some(Self::WebSocket),
            "grpc" => Some(Self::Grpc),
            _ => None,
        }
    }

    /// Returns the document's name.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Http => "http",
            Self::WebSocket => "websocket",
            Self::Grpc => "grpc",
        }
    }
}

impl AgentSettings {
    /// The timeout of a request for an agent's card, unless configured.
    pub const STARTUP_TIMEOUT: Duration = Duration::from_secs(10);

    /// Creates settings with only a name and an address.
    pub fn new(name: impl Into<String>, url: impl Into<String>) -> Self {
        Self {
            name: name.into(),
            url: url.into(),
            protocol: Protocol::default(),
            token: None,
            sign_in: None,
            headers: BTreeMap::new(),
            origins: Vec::new(),
            timeout: None,
            startup_timeout: Self::STARTUP_TIMEOUT,
            names: NameRules::default(),
            keys: None,
            redaction: None,
        }
    }
}

impl fmt::Debug for AgentSettings {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("AgentSettings")
            .field("name", &self.name)
            .field("url", &HttpCapability::new(self.url.as_str(), None, 0).address())
            .field("protocol", &self.protocol)
            .field("headers", &self.headers.keys())
            .field("origins", &self.origins)
            .finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn secrets_are_not_shown() {
        let mut agent = AgentSettings::new("a", "https://me:s3cret@example.com/?key=s3cret");
        agent.token = Some("s3cret".into());
        agent.headers.insert("X-Key".into(), "s3cret".into());
        let shown = format!("{agent:?}");
        assert!(!shown.contains("s3cret") && shown.contains("https://example.com/"), "{shown}");
    }

    #[test]
    fn protocols_have_the_names_of_the_document() {
        for protocol in [Protocol::Http, Protocol::WebSocket, Protocol::Grpc] {
            assert_eq!(Protocol::named(&protocol.as_str().to_uppercase()), Some(protocol));
        }
        for (name, protocol) in [
            ("JSONRPC", Protocol::Http),
            ("HTTP+JSON", Protocol::Http),
            ("GRPC", Protocol::Grpc),
            ("WEBSOCKET", Protocol::WebSocket),
        ] {
            assert_eq!(Protocol::named(name), Some(protocol), "as cards have it");
        }
        assert_eq!(Protocol::named("smtp"), None);
    }
}
