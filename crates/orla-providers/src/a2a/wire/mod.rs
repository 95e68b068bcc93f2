//! The bindings of the protocol: one interface, four bindings (A2A §9–§12).

mod client;
#[cfg(feature = "a2a-grpc")]
mod grpc;
mod http;
#[cfg(feature = "a2a-grpc")]
mod older_grpc;
mod websocket;

use a2a::{A2AError, SendMessageRequest, StreamResponse, Task};
use futures_util::stream::BoxStream;
use orla_marketplace::json::string_length;
use orla_marketplace::{CallScope, Hops, RuntimeError};
use orla_oauth::metadata::is_loopback;
use reqwest::header::{HeaderMap, HeaderValue};
use serde::de::DeserializeOwned;
use serde_json::Value;
use url::Url;

pub(super) use client::{Clients, Flavour};
pub(super) use http::read as read_bounded;

use super::card::{Binding, Interface};
use super::dialect::Dialect;
use crate::sign_in::{Sender, Unanswered};

/// The maximum size of an agent's message.
pub(super) const MAX_MESSAGE: usize = super::gather::MAX_ANSWER;

/// The maximum size of a parsed message in bytes, as estimated by [`read_size`].
const MAX_READ_SIZE: usize = 64 * 1024 * 1024;

/// Events of an agent, as they come.
pub(super) type Events = BoxStream<'static, Result<StreamResponse, Fault>>;

/// One address of an agent. Cloning shares the connections.
#[derive(Clone)]
pub(super) struct Wire {
    client: reqwest::Client,
    sender: Sender,
    url: Url,
    headers: HeaderMap,
    binding: Binding,
    dialect: Dialect,
    tenant: Option<String>,
}

/// The reason why an agent gave no answer, or an incomplete one.
#[derive(Debug, thiserror::Error)]
pub(super) enum Fault {
    /// The agent cannot be reached, or the connection was lost. A later attempt may succeed.
    #[error("{0}")]
    Unavailable(String),
    /// The agent answered with an error of the protocol.
    #[error("{}", .0.message)]
    Refused(A2AError),
    /// The answer does not follow the protocol.
    #[error("{0}")]
    Invalid(String),
    /// The answer exceeds the limit.
    #[error("it answers with more than 16 MiB")]
    TooLarge,
}

impl Fault {
    /// Returns the error for the caller.
    pub(super) fn of(self, name: &str, host: &str) -> RuntimeError {
        let id = name.to_owned();
        match self {
            Self::Unavailable(reason) => RuntimeError::Unavailable {
                id,
                reason: format!("{host} {reason}; trying again may help"),
                source: None,
            },
            Self::Refused(error) => RuntimeError::Failed {
                id,
                message: format!("{name} failed: {host} refuses: {} ({})", error.message, error.code),
                outcome: None,
            },
            Self::Invalid(problem) => RuntimeError::Failed {
                id,
                message: format!("{name} failed: {host}: {problem}"),
                outcome: None,
            },
            Self::TooLarge => {
                RuntimeError::Limit { id, what: format!("{host} answers with more than 16 MiB") }
            }
        }
    }
}

impl Wire {
    /// Creates a connection to the agent.
    ///
    /// # Errors
    /// This binding is not spoken, or no client can be made.
    pub(super) fn new(
        clients: &Clients,
        interface: &Interface,
        url: Url,
        mut headers: HeaderMap,
    ) -> Result<Self, String> {
        let flavour = match &interface.binding {
            Binding::JsonRpc | Binding::Rest => Flavour::Any,
            Binding::WebSocket => Flavour::Http1,
            Binding::Grpc if cfg_grpc() => Flavour::Http2,
            Binding::Grpc => return Err("this build does not support gRPC".to_owned()),
            Binding::Other(name) => return Err(format!("{name} is not spoken here")),
        };
        headers.insert("a2a-version", HeaderValue::from_static(interface.dialect.version()));
        let client = clients.get(flavour, is_loopback(&url))?;
        Ok(Self {
            sender: Sender::new(client.clone(), None),
            client,
            url,
            headers,
            binding: interface.binding.clone(),
            dialect: interface.dialect,
            tenant: interface.tenant.clone(),
        })
    }

    pub(super) fn client(&self) -> &reqwest::Client {
        &self.client
    }

    /// Returns the same connection with another sender.
    pub(super) fn through(&self, sender: Sender) -> Self {
        Self { sender, ..self.clone() }
    }

    /// Sends a request.
    async fn execute(&self, request: reqwest::Request) -> Result<reqwest::Response, Fault> {
        self.sender.execute(request).await.map_err(|unanswered| match unanswered {
            Unanswered::Http(err) => http::connection_fault(&err),
            Unanswered::Token(error) => Fault::Invalid(error.to_string()),
        })
    }

    /// Returns the same connection for a call that is part of a trace and has come through these
    /// instances.
    pub(super) fn carrying(&self, scope: &CallScope, hops: &Hops) -> Self {
        let mut wire = self.through(self.sender.within(&scope.notices));
        let traceparent = scope.traceparent.as_deref();
        for (name, value) in [("traceparent", traceparent), ("orla-hops", Some(hops.as_str()))] {
            if let Some(value) = value.and_then(|value| HeaderValue::from_str(value).ok()) {
                wire.headers.insert(name, value);
            }
        }
        wire
    }

    /// Returns the host and port, for messages.
    pub(super) fn host(&self) -> String {
        host(&self.url)
    }

    /// Returns the binding's name in cards.
    pub(super) fn binding(&self) -> &str {
        self.binding.as_str()
    }

    /// Sends a message, once. The answer is a single event, or with `stream` all events of the agent.
    pub(super) async fn send(
        &self,
        mut request: SendMessageRequest,
        stream: bool,
    ) -> Result<Events, Fault> {
        request.tenant.clone_from(&self.tenant);
        match self.binding {
            Binding::Rest => http::rest_send(self, &request, stream).await,
            Binding::WebSocket => websocket::send(self, &request, stream).await,
            #[cfg(feature = "a2a-grpc")]
            Binding::Grpc if self.dialect == Dialect::V0 => {
                older_grpc::send(self, &request, stream).await
            }
            #[cfg(feature = "a2a-grpc")]
            Binding::Grpc => grpc::send(self, &request, stream).await,
            _ => http::rpc_send(self, &request, stream).await,
        }
    }

    /// Requests the state of a task.
    pub(super) async fn get(&self, task: &str) -> Result<Task, Fault> {
        match self.binding {
            Binding::Rest => http::rest_get(self, task).await,
            Binding::WebSocket => websocket::get(self, task).await,
            #[cfg(feature = "a2a-grpc")]
            Binding::Grpc if self.dialect == Dialect::V0 => older_grpc::get(self, task).await,
            #[cfg(feature = "a2a-grpc")]
            Binding::Grpc => grpc::get(self, task).await,
            _ => http::rpc_get(self, task).await,
        }
    }

    /// Subscribes to the events of a task.
    pub(super) async fn subscribe(&self, task: &str) -> Result<Events, Fault> {
        match self.binding {
            Binding::Rest => http::rest_subscribe(self, task).await,
            Binding::WebSocket => websocket::subscribe(self, task).await,
            #[cfg(feature = "a2a-grpc")]
            Binding::Grpc if self.dialect == Dialect::V0 => older_grpc::subscribe(self, task).await,
            #[cfg(feature = "a2a-grpc")]
            Binding::Grpc => grpc::subscribe(self, task).await,
            _ => http::rpc_subscribe(self, task).await,
        }
    }

    /// Asks the agent to end a task.
    pub(super) async fn cancel(&self, task: &str) -> Result<(), Fault> {
        match self.binding {
            Binding::Rest => http::rest_cancel(self, task).await,
            Binding::WebSocket => websocket::cancel(self, task).await,
            #[cfg(feature = "a2a-grpc")]
            Binding::Grpc if self.dialect == Dialect::V0 => older_grpc::cancel(self, task).await,
            #[cfg(feature = "a2a-grpc")]
            Binding::Grpc => grpc::cancel(self, task).await,
            _ => http::rpc_cancel(self, task).await,
        }
    }

    /// Returns the parameters of a request about a task.
    fn about(&self, task: &str) -> Value {
        match &self.tenant {
            Some(tenant) => serde_json::json!({"id": task, "tenant": tenant}),
            None => serde_json::json!({"id": task}),
        }
    }
}

const fn cfg_grpc() -> bool {
    cfg!(feature = "a2a-grpc")
}

/// Returns the host and port of an address.
pub(super) fn host(url: &Url) -> String {
    let host = url.host_str().unwrap_or_default();
    url.port().map_or_else(|| host.to_owned(), |port| format!("{host}:{port}"))
}

/// Parses a message.
fn parse(json: &[u8]) -> Result<Value, Fault> {
    if read_size(json) > MAX_READ_SIZE {
        return Err(Fault::Invalid("it answers with too many parts or members".to_owned()));
    }
    serde_json::from_slice(json)
        .map_err(|_| Fault::Invalid("it answers with something else than JSON".to_owned()))
}

/// Estimates how many bytes a JSON text takes once it is parsed, besides its strings. Each part of a
/// message takes a kilobyte, however short its text is.
fn read_size(json: &[u8]) -> usize {
    const OBJECT: usize = 1024;
    const VALUE: usize = 32;
    let (mut size, mut at) = (0, 0);
    while let Some(byte) = json.get(at) {
        match byte {
            b'"' => at += string_length(&json[at..]) - 1,
            b'{' => size += OBJECT,
            b'[' | b',' => size += VALUE,
            _ => {}
        }
        at += 1;
    }
    size
}

/// Parses an event of an agent.
fn event(dialect: Dialect, value: Value) -> Result<StreamResponse, Fault> {
    typed(dialect.event(value))
}

fn typed<T: DeserializeOwned>(value: Value) -> Result<T, Fault> {
    serde_json::from_value(value)
        .map_err(|err| Fault::Invalid(format!("its answer cannot be read: {err}")))
}

/// Returns the error of a JSON-RPC response, or of an answer over HTTP.
fn refused(error: &Value, code: i32) -> Fault {
    let code = error
        .get("code")
        .and_then(Value::as_i64)
        .and_then(|code| i32::try_from(code).ok())
        .unwrap_or(code);
    let message =
        ["message", "detail", "title"].iter().find_map(|name| error.get(*name).and_then(Value::as_str));
    let message: String = message.unwrap_or("no reason given").chars().take(500).collect();
    Fault::Refused(A2AError::new(code, message))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn many_small_parts_are_too_much_and_long_texts_are_not() {
        let parts = |part: &str, count: usize| format!("[{}0]", format!("{part},").repeat(count));
        assert!(parse(parts(r#"{"text":"x"}"#, 100_000).as_bytes()).is_err());
        assert!(parse(parts(r#"{"text":"x"}"#, 10_000).as_bytes()).is_ok());
        assert!(parse(parts("1.5", 1_000_000).as_bytes()).is_ok());
        let text = Value::from(r#"{"a":[1,2],"b\"#.repeat(1_000_000)).to_string();
        assert!(parse(text.as_bytes()).is_ok());
    }

    proptest::proptest! {
        #[test]
        fn the_estimate_counts_what_is_outside_of_strings(text in ".{0,40}", count in 0_usize..20) {
            let value = Value::from(vec![Value::from(text); count]);
            let commas = count.saturating_sub(1);
            proptest::prop_assert_eq!(read_size(value.to_string().as_bytes()), 32 * (1 + commas));
        }
    }
}
