//! JSON-RPC in the text frames of a WebSocket (A2A §12 leaves the binding to implementers).
//!
//! One text frame is one JSON-RPC message, with the methods of the JSON-RPC binding. The events of a
//! stream are responses with the id of their request; the last one ends the task's turn. The upgrade
//! carries the usual headers. Closing the socket cancels nothing: another socket can resume the events
//! of a task.

use a2a::{SendMessageRequest, StreamResponse, Task, error_code};
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use futures_util::{SinkExt as _, StreamExt as _, stream};
use orla_oauth::root_cause;
use reqwest::header::{
    CONNECTION, HeaderName, HeaderValue, SEC_WEBSOCKET_ACCEPT, SEC_WEBSOCKET_KEY, SEC_WEBSOCKET_VERSION,
    UPGRADE,
};
use reqwest::{StatusCode, Upgraded};
use serde_json::{Value, json};
use tokio_tungstenite::WebSocketStream;
use tokio_tungstenite::tungstenite::error::CapacityError;
use tokio_tungstenite::tungstenite::handshake::derive_accept_key;
use tokio_tungstenite::tungstenite::protocol::{Role, WebSocketConfig};
use tokio_tungstenite::tungstenite::{Error, Message};

use super::http::{connection_fault, parameters};
use super::{Events, Fault, MAX_MESSAGE, Wire, refused, typed};
use crate::a2a::dialect::{Dialect, Operation};

pub(super) async fn send(
    wire: &Wire,
    request: &SendMessageRequest,
    stream: bool,
) -> Result<Events, Fault> {
    let operation = if stream { Operation::Stream } else { Operation::Send };
    let socket = ask(wire, operation, parameters(wire, request)?).await?;
    Ok(events(wire.dialect, socket, stream))
}

pub(super) async fn subscribe(wire: &Wire, task: &str) -> Result<Events, Fault> {
    let socket = ask(wire, Operation::Subscribe, wire.about(task)).await?;
    Ok(events(wire.dialect, socket, true))
}

pub(super) async fn get(wire: &Wire, task: &str) -> Result<Task, Fault> {
    let mut socket = ask(wire, Operation::Get, wire.about(task)).await?;
    typed(wire.dialect.task(only(&mut socket).await?))
}

pub(super) async fn cancel(wire: &Wire, task: &str) -> Result<(), Fault> {
    let mut socket = ask(wire, Operation::Cancel, wire.about(task)).await?;
    only(&mut socket).await.map(drop)
}

type Socket = WebSocketStream<Upgraded>;

/// Opens a socket, over the connections of the HTTP client and with its certificates, and sends the request.
async fn ask(wire: &Wire, operation: Operation, parameters: Value) -> Result<Socket, Fault> {
    let mut socket = open(wire).await?;
    let call = json!({"jsonrpc": "2.0", "id": 1, "method": wire.dialect.method(operation), "params": parameters});
    socket.send(Message::text(call.to_string())).await.map_err(broken)?;
    Ok(socket)
}

async fn open(wire: &Wire) -> Result<Socket, Fault> {
    let mut nonce = [0; 16];
    getrandom::fill(&mut nonce)
        .map_err(|err| Fault::Invalid(format!("the system provides no random bytes: {err}")))?;
    let key = STANDARD.encode(nonce);
    let text = |value: &str| HeaderValue::from_str(value).map_err(|err| Fault::Invalid(err.to_string()));
    let fields: [(HeaderName, HeaderValue); 4] = [
        (CONNECTION, HeaderValue::from_static("Upgrade")),
        (UPGRADE, HeaderValue::from_static("websocket")),
        (SEC_WEBSOCKET_VERSION, HeaderValue::from_static("13")),
        (SEC_WEBSOCKET_KEY, text(&key)?),
    ];
    let mut headers = wire.headers.clone();
    headers.extend(fields);
    let request = wire.client.get(wire.url.clone()).headers(headers).build();
    let response = wire.execute(request.map_err(|err| connection_fault(&err))?).await?;
    let accept = response.headers().get(SEC_WEBSOCKET_ACCEPT).map(HeaderValue::as_bytes);
    if response.status() != StatusCode::SWITCHING_PROTOCOLS
        || accept != Some(derive_accept_key(key.as_bytes()).as_bytes())
    {
        return Err(Fault::Invalid(format!(
            "answered {} instead of opening a WebSocket",
            response.status()
        )));
    }
    let upgraded = response.upgrade().await.map_err(|err| connection_fault(&err))?;
    let bounds =
        WebSocketConfig::default().max_message_size(Some(MAX_MESSAGE)).max_frame_size(Some(MAX_MESSAGE));
    Ok(WebSocketStream::from_raw_socket(upgraded, Role::Client, Some(bounds)).await)
}

/// Returns the result of the only response.
async fn only(socket: &mut Socket) -> Result<Value, Fault> {
    let next = next(socket).await?;
    next.ok_or_else(|| Fault::Unavailable("closed the socket before it answered".to_owned()))
}

/// Returns the result of the next response; `None` when the socket was closed.
async fn next(socket: &mut Socket) -> Result<Option<Value>, Fault> {
    loop {
        let text = match socket.next().await {
            None | Some(Ok(Message::Close(_))) => return Ok(None),
            Some(Ok(Message::Text(text))) => text,
            Some(Ok(Message::Ping(_) | Message::Pong(_) | Message::Frame(_))) => continue,
            Some(Ok(Message::Binary(_))) => {
                return Err(Fault::Invalid("it answered with bytes instead of text".to_owned()));
            }
            Some(Err(err)) => return Err(broken(err)),
        };
        let mut response = super::parse(text.as_str().as_bytes())?;
        if let Some(error) = response.get("error").filter(|error| error.is_object()) {
            return Err(refused(error, error_code::INTERNAL_ERROR));
        }
        // Messages that do not answer this request are ignored.
        if response.get("id").is_some_and(|id| *id == 1)
            && let Some(result) = response.get_mut("result")
        {
            return Ok(Some(result.take()));
        }
    }
}

fn events(dialect: Dialect, socket: Socket, stream: bool) -> Events {
    stream::unfold(Some(socket), move |socket| async move {
        let mut socket = socket?;
        let next = next(&mut socket).await.transpose()?;
        let next: Result<StreamResponse, Fault> = next.and_then(|value| super::event(dialect, value));
        let goes_on = stream && next.is_ok();
        Some((next, goes_on.then_some(socket)))
    })
    .boxed()
}

fn broken(err: Error) -> Fault {
    match err {
        Error::Capacity(CapacityError::MessageTooLong { .. }) => Fault::TooLarge,
        Error::ConnectionClosed | Error::AlreadyClosed => {
            Fault::Unavailable("closed the socket".to_owned())
        }
        err => Fault::Unavailable(format!("broke off: {}", root_cause(&err).to_lowercase())),
    }
}
