//! The settings of capabilities of agents (RTFS capability system §3.3).

use std::collections::BTreeMap;
use std::fmt;

use super::Connection;

/// A skill of an agent (RTFS capability system §3.3).
#[derive(Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct A2ACapability {
    /// The agent's id. It identifies the agent to users; the endpoint alone decides which agent answers.
    pub agent_id: String,
    /// The address below which the agent's card is, or the address of one of its endpoints.
    pub endpoint: String,
    /// `http`, `websocket` or `grpc`.
    pub protocol: String,
    /// The timeout of one call, in milliseconds; 0 means as long as the caller allows.
    pub timeout_ms: u64,
    /// Settings beyond the RTFS document.
    pub options: A2AOptions,
}

impl A2ACapability {
    /// Settings with every field of the document, and the options' defaults.
    pub fn new(
        agent_id: impl Into<String>,
        endpoint: impl Into<String>,
        protocol: impl Into<String>,
        timeout_ms: u64,
    ) -> Self {
        Self {
            agent_id: agent_id.into(),
            endpoint: endpoint.into(),
            protocol: protocol.into(),
            timeout_ms,
            options: A2AOptions::default(),
        }
    }
}

impl fmt::Debug for A2ACapability {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("A2ACapability")
            .field("agent_id", &self.agent_id)
            .field("endpoint", &super::http::shown_address(&self.endpoint))
            .field("protocol", &self.protocol)
            .field("timeout_ms", &self.timeout_ms)
            .field("options", &self.options)
            .finish()
    }
}

/// Settings of the connection to an agent beyond the RTFS document.
#[derive(Clone, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct A2AOptions {
    /// The skill to use, as in the agent's card. It is sent with every message; agents may ignore it.
    pub skill: Option<String>,
    /// The bearer token, sent only to the endpoint's origin and those in `origins`.
    pub auth_token: Option<String>,
    /// Header fields that are sent to the same origins as the token.
    pub headers: BTreeMap<String, String>,
    /// Other origins, such as `https://grpc.example.com:443`, that the agent's card may lead to.
    pub origins: Vec<String>,
    /// The agent, if the executor already knows it.
    pub connection: Option<Connection>,
}

impl fmt::Debug for A2AOptions {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("A2AOptions")
            .field("skill", &self.skill)
            .field("auth_token", &self.auth_token.as_ref().map(|_| "***"))
            .field("headers", &self.headers.keys())
            .field("origins", &self.origins)
            .field("connection", &self.connection)
            .finish()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn secrets_are_not_shown() {
        let endpoint = "https://me:p4ss@agent.example.com/?key=p4ss";
        let mut agent = A2ACapability::new("a", endpoint, "http", 0);
        agent.options.auth_token = Some("t0ken".into());
        agent.options.headers.insert("X-Key".into(), "k1".into());
        let shown = format!("{agent:?}");
        assert!(!shown.contains("t0ken") && !shown.contains("k1") && shown.contains("X-Key"), "{shown}");
        assert!(!shown.contains("p4ss") && shown.contains("https://agent.example.com/"), "{shown}");
    }
}
