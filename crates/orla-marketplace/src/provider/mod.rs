//! The kinds of provider and their settings (RTFS capability system §3.2–§3.3).

mod a2a;
mod connection;
mod content;
mod http;
mod language;
mod mcp;
mod plugin;
mod remote;
mod stream;

use std::any::{Any, TypeId, type_name};
use std::fmt::Debug;
use std::net::Ipv4Addr;
use std::sync::Arc;
use std::time::Duration;

use crate::error::{RuntimeError, RuntimeResult};
use crate::payload::JsonText;

pub use a2a::{A2ACapability, A2AOptions};
pub use connection::Connection;
pub use content::{CommandLine, ContentSource, Definition};
pub use http::{
    BodyMapping, CredentialPlace, HttpCapability, HttpCredential, HttpOptions, HttpParameter, HttpPart,
    ParameterPlace, ParameterStyle, Redirects,
};
pub use language::Language;
pub use mcp::{MCPCapability, McpOptions};
pub use plugin::{PluginCapability, PluginOptions};
pub use remote::{RemoteOptions, RemoteRTFSCapability};
pub use stream::{
    SendAs, StreamCapabilityImpl, StreamItems, StreamOptions, StreamTransport, StreamType,
};

/// The provider of a capability, which decides how a call is executed (RTFS capability system §3.2).
///
/// This type is data. The executor for a kind is found by the [`TypeId`] of the settings struct. A new
/// kind therefore consists of a struct and an executor, and changes nothing here: it is a [`Custom`]
/// provider.
///
/// [`Custom`]: ProviderType::Custom
#[derive(Clone, Debug)]
#[non_exhaustive]
pub enum ProviderType {
    /// A sandboxed built-in.
    Local(LocalCapability),
    /// A remote capability over HTTP.
    Http(HttpCapability),
    /// A tool of a Model Context Protocol server.
    MCP(MCPCapability),
    /// A skill of an agent.
    A2A(A2ACapability),
    /// A function of a plugin.
    Plugin(PluginCapability),
    /// A capability of another instance.
    RemoteRTFS(RemoteRTFSCapability),
    /// A stream.
    Stream(StreamCapabilityImpl),
    /// A kind that the marketplace does not know (RTFS capability system §5.2).
    Custom(Arc<dyn CustomProvider>),
}

impl ProviderType {
    /// Returns the settings, in the type that the executor for this kind knows.
    ///
    /// # Errors
    /// The provider is of another kind.
    pub fn settings<T: 'static>(&self) -> RuntimeResult<&T> {
        self.as_any().downcast_ref().ok_or_else(|| {
            RuntimeError::Generic(format!(
                "a provider of kind {} was given to the executor of {}",
                self.kind(),
                type_name::<T>()
            ))
        })
    }

    /// Returns the type of the settings, which is the key of the executor.
    pub fn settings_type(&self) -> TypeId {
        self.as_any().type_id()
    }

    /// Returns the kind as one word, for lists and logs. No code may depend on it, because a custom
    /// provider can return any word.
    pub fn kind(&self) -> &'static str {
        match self {
            Self::Local(_) => "local",
            Self::Http(_) => "http",
            Self::MCP(_) => "mcp",
            Self::A2A(_) => "a2a",
            Self::Plugin(_) => "plugin",
            Self::RemoteRTFS(_) => "remote-rtfs",
            Self::Stream(_) => "stream",
            Self::Custom(custom) => custom.kind(),
        }
    }

    /// Returns the permissions that a call needs because of the kind of its provider, in the notation of
    /// [`Permission`]: a host to reach, a program to run.
    ///
    /// [`Permission`]: crate::Permission
    pub fn requires(&self) -> Vec<String> {
        match self {
            Self::Local(_) => Vec::new(),
            Self::Http(http) => vec![network_permission(&http.base_url)],
            Self::MCP(mcp) => vec![mcp.requires()],
            // The agent's card may lead to any of these.
            Self::A2A(agent) => std::iter::once(&agent.endpoint)
                .chain(&agent.options.origins)
                .map(|at| network_permission(at))
                .collect(),
            Self::Plugin(plugin) => vec![format!("exec:{}", plugin.plugin_path)],
            Self::RemoteRTFS(remote) => vec![network_permission(&remote.endpoint)],
            Self::Stream(stream) => stream.provider.requires(),
            Self::Custom(custom) => custom.requires(),
        }
    }

    /// Returns the timeout of one call in the provider's own settings, if set.
    pub fn timeout(&self) -> Option<Duration> {
        let ms = match self {
            Self::Http(http) => http.timeout_ms,
            Self::MCP(mcp) => mcp.timeout_ms,
            Self::A2A(agent) => agent.timeout_ms,
            Self::RemoteRTFS(remote) => remote.timeout_ms,
            Self::Stream(stream) => return stream.provider.timeout(),
            Self::Custom(custom) => return custom.timeout(),
            Self::Local(_) | Self::Plugin(_) => return None,
        };
        (ms > 0).then(|| Duration::from_millis(ms))
    }

    /// Returns whether its calls are computed within this process, without I/O except nested calls. Such
    /// calls are admitted separately, and so do not wait for processes and networks.
    pub fn is_internal(&self) -> bool {
        match self {
            Self::Local(_) => true,
            Self::Custom(custom) => custom.is_internal(),
            _ => false,
        }
    }

    /// Returns whether a call has no effect that outlasts it: it is computed within this process and
    /// makes no nested calls. Such a call may be repeated at any time. Programs are internal but not
    /// pure, because their nested calls may have any effect.
    pub fn is_pure(&self) -> bool {
        match self {
            Self::Local(_) => true,
            Self::Custom(custom) => custom.is_pure(),
            _ => false,
        }
    }

    /// Returns whether its calls can use a journal, with which an interrupted call continues. Calls of
    /// programs can.
    pub fn is_journaled(&self) -> bool {
        self.custom().is_some_and(CustomProvider::is_journaled)
    }

    /// Returns whether its calls may reach other capabilities, as programs and the discovery tools do.
    pub fn reaches_others(&self) -> bool {
        self.custom().is_some_and(CustomProvider::reaches_others)
    }

    /// Returns whether it answers a prompt in text: its capability takes `{"prompt": TEXT}`. A front end
    /// that receives a text without the name of a capability passes it to such a capability.
    pub fn answers_prompts(&self) -> bool {
        self.custom().is_some_and(CustomProvider::answers_prompts)
    }

    /// Returns the instances that a federated capability comes from, the nearest first.
    pub fn via(&self) -> &[Arc<str>] {
        match self {
            Self::RemoteRTFS(remote) => &remote.options.via,
            _ => &[],
        }
    }

    /// Returns whether another provider is certainly the same, without a full comparison.
    pub(crate) fn is_the_same_as(&self, other: &Self) -> bool {
        match (self, other) {
            (Self::Local(one), Self::Local(other)) => one == other,
            (Self::Custom(one), Self::Custom(other)) => Arc::ptr_eq(one, other),
            _ => false,
        }
    }

    pub(crate) fn custom(&self) -> Option<&dyn CustomProvider> {
        match self {
            Self::Custom(custom) => Some(&**custom),
            _ => None,
        }
    }

    fn as_any(&self) -> &dyn Any {
        match self {
            Self::Local(settings) => settings,
            Self::Http(settings) => settings,
            Self::MCP(settings) => settings,
            Self::A2A(settings) => settings,
            Self::Plugin(settings) => settings,
            Self::RemoteRTFS(settings) => settings,
            Self::Stream(settings) => settings,
            Self::Custom(custom) => custom.as_any(),
        }
    }
}

/// Returns the permission to reach the host of an address. If the address names no host, or names it
/// ambiguously, returns the permission for the whole network.
pub(crate) fn network_permission(address: &str) -> String {
    let rest = address.split_once("://").map_or("", |(_, rest)| rest);
    let authority = rest.split(['/', '?', '#', '\\']).next().unwrap_or_default();
    let host = authority.rsplit_once('@').map_or(authority, |(_, host)| host);
    let is_plain = |c: char| c.is_ascii_alphanumeric() || matches!(c, '.' | '-' | '_' | ':' | '[' | ']');
    if host.is_empty() || !host.chars().all(is_plain) || is_odd_number(host) {
        return "net".to_owned();
    }
    format!("net:{host}")
}

/// Returns whether a host is an IPv4 address that is not written as four decimal numbers, such as
/// `0x7f.1`.
fn is_odd_number(host: &str) -> bool {
    if host.starts_with('[') {
        return false;
    }
    let name = host.split(':').next().unwrap_or_default();
    let name = name.strip_suffix('.').unwrap_or(name);
    let last = name.rsplit('.').next().unwrap_or_default().to_ascii_lowercase();
    let is_number = last.bytes().all(|byte| byte.is_ascii_digit()) || last.starts_with("0x");
    is_number && name.parse::<Ipv4Addr>().is_err()
}

/// The settings of a kind of provider that the marketplace does not know.
pub trait CustomProvider: Debug + Send + Sync {
    /// Returns the settings. The executor finds them by their type.
    fn as_any(&self) -> &dyn Any;

    /// Returns the kind as one word, for lists and logs. Not `prompt` or `resource`: in the history, these are requests and no
    /// calls.
    fn kind(&self) -> &'static str;

    /// Returns the permissions that a call needs because of the kind of the provider, such as `exec:ls`;
    /// see [`ProviderType::requires`].
    fn requires(&self) -> Vec<String> {
        Vec::new()
    }

    /// Returns the timeout of one call, if the provider sets one; see [`ProviderType::timeout`].
    fn timeout(&self) -> Option<Duration> {
        None
    }

    /// Returns whether calls are computed within this process; see [`ProviderType::is_internal`].
    fn is_internal(&self) -> bool {
        false
    }

    /// Returns whether a call does nothing that outlasts it; see [`ProviderType::is_pure`].
    fn is_pure(&self) -> bool {
        false
    }

    /// Returns whether calls can keep a journal; see [`ProviderType::is_journaled`].
    fn is_journaled(&self) -> bool {
        false
    }

    /// Returns whether calls may reach other capabilities; see [`ProviderType::reaches_others`].
    fn reaches_others(&self) -> bool {
        false
    }

    /// Returns whether it answers prompts; see [`ProviderType::answers_prompts`].
    fn answers_prompts(&self) -> bool {
        false
    }

    /// Returns the content that runs when a capability of this provider is called. It can be attested if
    /// it is known.
    fn content(&self) -> ContentSource {
        ContentSource::Unknown
    }

    /// Returns the hash of a declaration that is not part of the content and that determines how the
    /// content runs. The manifest's hash covers it.
    fn declaration_hash(&self) -> Option<&str> {
        None
    }

    /// Returns the JSON Schema that clients see if the manifest declares no input. It is never enforced.
    fn advertised_input(&self) -> Option<JsonText> {
        None
    }

    /// Returns the JSON Schema that clients see if the manifest declares no output. It is never
    /// enforced.
    fn advertised_output(&self) -> Option<JsonText> {
        None
    }
}

/// A sandboxed built-in of the registry (RTFS capability system §2.3).
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct LocalCapability {
    /// The built-in's name in the registry.
    pub function: String,
}

impl LocalCapability {
    /// Settings with every field of the document.
    pub fn new(function: impl Into<String>) -> Self {
        Self { function: function.into() }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn required_permissions_follow_from_the_address() {
        let http = |url: &str| ProviderType::Http(HttpCapability::new(url, None, 0));
        let mcp = |url: &str, tool: &str| ProviderType::MCP(MCPCapability::new(url, tool, 0));
        for (provider, needs) in [
            (http("https://user:secret@api.example.com/v1?x"), "net:api.example.com"),
            (http("http://localhost:8080"), "net:localhost:8080"),
            (http("http://[::1]:80/"), "net:[::1]:80"),
            (http(""), "net"),
            (http("http://evil.example\\@api.example.com/"), "net:evil.example"),
            (http("http:/evil.example"), "net"),
            (http("http:///evil.example"), "net"),
            (http("http://%65vil.example"), "net"),
            (http("http://ev\til.example"), "net"),
            (http("http://127.0.0.1:80"), "net:127.0.0.1:80"),
            (http("http://2130706433"), "net"),
            (http("http://0x7f.1:80"), "net"),
            (mcp("mcp:github", "search"), "mcp:github/search"),
            (mcp("mcp:github", ""), "mcp:github/*"),
            (mcp("stdio:npx -y server", "x"), "exec:npx"),
            (mcp("https://mcp.example.com/mcp", "x"), "net:mcp.example.com"),
        ] {
            let [need] = &provider.requires()[..] else { panic!("one need") };
            assert_eq!(need, needs);
            assert!(need.parse::<crate::Permission>().is_ok());
        }
        assert_eq!(http("http://x").timeout(), None);
        let mut agent = A2ACapability::new("a", "https://a.example.com", "http", 0);
        agent.options.origins = vec!["https://b.example.com:8443".to_owned()];
        let needs = ["net:a.example.com", "net:b.example.com:8443"];
        assert_eq!(ProviderType::A2A(agent).requires(), needs);
    }

    #[test]
    fn settings_are_found_by_their_type_and_a_mismatch_is_an_error() {
        let http = ProviderType::Http(HttpCapability::new("http://localhost", None, 1));
        assert_eq!(http.settings_type(), TypeId::of::<HttpCapability>());
        assert!(http.settings::<HttpCapability>().is_ok());
        let error = http.settings::<LocalCapability>().unwrap_err().to_string();
        assert!(error.starts_with("a provider of kind http was given to the executor of"), "{error}");
    }
}
