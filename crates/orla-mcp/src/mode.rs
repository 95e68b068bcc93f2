//! The request modes of the protocol's revisions, and how orla introduces itself in each.

use serde_json::json;

/// The newest revision that begins with `initialize`.
pub const SESSION: &str = "2025-11-25";
/// The revision without sessions.
pub const SESSIONLESS: &str = "2026-07-28";

/// The format of requests.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum RequestMode {
    /// The mode of capsules: each call carries the capabilities of its caller's client.
    #[default]
    Capsule,
    /// After `initialize` (2024-11-05 to 2025-11-25).
    Session,
    /// Each request carries its own context (2026-07-28).
    Sessionless,
}

/// Returns the parameters of `initialize`. They declare all features that a client may support; the
/// actual client is known only with each call.
pub fn initialize() -> String {
    json!({
        "protocolVersion": SESSION,
        "capabilities": {
            "sampling": {},
            "elicitation": {"form": {}, "url": {}},
            "roots": {"listChanged": false},
        },
        "clientInfo": client_info(),
    })
    .to_string()
}

fn client_info() -> serde_json::Value {
    json!({"name": "orla", "version": env!("CARGO_PKG_VERSION")})
}

/// The members of `_meta` of a request.
#[derive(Clone, Copy, Debug, Default)]
pub struct Meta<'a> {
    /// The request mode.
    pub mode: RequestMode,
    /// The progress token, if progress is wanted.
    pub progress: Option<u64>,
    /// The caller's trace context.
    pub traceparent: Option<&'a str>,
    /// The capabilities of the caller's client, as JSON.
    pub capabilities: Option<&'a str>,
}

impl Meta<'_> {
    /// Metadata for a request that orla makes on its own behalf.
    pub fn own(mode: RequestMode) -> Self {
        Self { mode, ..Self::default() }
    }

    /// Appends `"_meta":{…}`, unless it would be empty.
    pub fn write(&self, out: &mut Vec<u8>, before: &[u8]) {
        let mut open: &[u8] = br#""_meta":{"#;
        let mut member = |out: &mut Vec<u8>, name: &str| {
            if open != b"," {
                out.extend_from_slice(before);
            }
            out.extend_from_slice(std::mem::replace(&mut open, b","));
            out.push(b'"');
            out.extend_from_slice(name.as_bytes());
            out.extend_from_slice(b"\":");
        };
        if let Some(token) = self.progress {
            member(out, "progressToken");
            out.extend_from_slice(token.to_string().as_bytes());
        }
        if let Some(traceparent) = self.traceparent {
            member(out, "traceparent");
            super::object::push_text(out, traceparent);
        }
        if self.mode == RequestMode::Sessionless {
            member(out, "io.modelcontextprotocol/protocolVersion");
            super::object::push_text(out, SESSIONLESS);
            member(out, "io.modelcontextprotocol/clientInfo");
            out.extend_from_slice(
                concat!(r#"{"name":"orla","version":""#, env!("CARGO_PKG_VERSION"), r#""}"#).as_bytes(),
            );
            if self.progress.is_some() {
                // Each caller chooses its own log level, so the server must send all messages.
                member(out, "io.modelcontextprotocol/logLevel");
                out.extend_from_slice(br#""debug""#);
            }
        }
        // A server with a session knows the capabilities from `initialize`.
        let capabilities = match self.mode {
            RequestMode::Capsule => self.capabilities,
            RequestMode::Session => None,
            RequestMode::Sessionless => Some(self.capabilities.unwrap_or("{}")),
        };
        if let Some(capabilities) = capabilities {
            member(out, "io.modelcontextprotocol/clientCapabilities");
            out.extend_from_slice(capabilities.as_bytes());
        }
        if open == b"," {
            out.push(b'}');
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_era_says_what_it_has_to() {
        let meta = |mode| Meta {
            mode,
            progress: Some(7),
            traceparent: Some("00-a-b-01"),
            capabilities: Some(r#"{"roots":{}}"#),
        };
        let written = |meta: Meta<'_>| {
            let mut out = Vec::new();
            meta.write(&mut out, b",");
            String::from_utf8(out).unwrap()
        };
        assert_eq!(
            written(meta(RequestMode::Capsule)),
            r#","_meta":{"progressToken":7,"traceparent":"00-a-b-01","io.modelcontextprotocol/clientCapabilities":{"roots":{}}}"#
        );
        assert_eq!(
            written(meta(RequestMode::Session)),
            r#","_meta":{"progressToken":7,"traceparent":"00-a-b-01"}"#
        );
        assert_eq!(
            written(Meta::own(RequestMode::Sessionless)).replace(env!("CARGO_PKG_VERSION"), "V"),
            r#","_meta":{"io.modelcontextprotocol/protocolVersion":"2026-07-28","io.modelcontextprotocol/clientInfo":{"name":"orla","version":"V"},"io.modelcontextprotocol/clientCapabilities":{}}"#
        );
        assert!(written(meta(RequestMode::Sessionless)).contains(r#"logLevel":"debug""#));
        assert_eq!(written(Meta::own(RequestMode::Session)), "");
        assert_eq!(written(Meta::own(RequestMode::Capsule)), "");
    }
}
