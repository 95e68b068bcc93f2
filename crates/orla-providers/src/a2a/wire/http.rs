//! JSON-RPC and HTTP+JSON (A2A §9, §11): one request each, and server-sent events if the agent streams.

use a2a::{SendMessageRequest, StreamResponse, Task, error_code};
use bytes::{Bytes, BytesMut};
use futures_util::{StreamExt as _, stream};
use orla_mcp::framing;
use orla_oauth::root_cause;
use reqwest::header::{ACCEPT, CONTENT_TYPE, HeaderValue};
use reqwest::{Method, Response, StatusCode};
use serde_json::{Value, json};
use url::Url;

use super::{Events, Fault, MAX_MESSAGE, Wire, event, refused, typed};
use crate::a2a::dialect::{Dialect, Operation};

const JSON: HeaderValue = HeaderValue::from_static("application/json");
/// The id of the only request of a JSON-RPC exchange.
const ID: u64 = 1;
const EVENTS: HeaderValue = HeaderValue::from_static("text/event-stream");

/// The envelope of an answer.
#[derive(Clone, Copy)]
enum Envelope {
    Rpc,
    Plain,
}

pub(super) async fn rpc_send(
    wire: &Wire,
    request: &SendMessageRequest,
    stream: bool,
) -> Result<Events, Fault> {
    let operation = if stream { Operation::Stream } else { Operation::Send };
    events(wire, rpc(wire, operation, parameters(wire, request)?).await?, Envelope::Rpc).await
}

pub(super) async fn rpc_subscribe(wire: &Wire, task: &str) -> Result<Events, Fault> {
    events(wire, rpc(wire, Operation::Subscribe, wire.about(task)).await?, Envelope::Rpc).await
}

pub(super) async fn rpc_get(wire: &Wire, task: &str) -> Result<Task, Fault> {
    let response = rpc(wire, Operation::Get, wire.about(task)).await?;
    typed(wire.dialect.task(Envelope::Rpc.open(&body(response).await?)?))
}

pub(super) async fn rpc_cancel(wire: &Wire, task: &str) -> Result<(), Fault> {
    let response = rpc(wire, Operation::Cancel, wire.about(task)).await?;
    Envelope::Rpc.open(&body(response).await?).map(drop)
}

pub(super) async fn rest_send(
    wire: &Wire,
    request: &SendMessageRequest,
    stream: bool,
) -> Result<Events, Fault> {
    let path = if stream { "message:stream" } else { "message:send" };
    let request = serde_json::to_value(request).map_err(|err| Fault::Invalid(err.to_string()))?;
    let request = wire.dialect.plain_request(request);
    let response = ask(wire, Method::POST, at(wire, &[path])?, Some(&request)).await?;
    events(wire, response, Envelope::Plain).await
}

pub(super) async fn rest_subscribe(wire: &Wire, task: &str) -> Result<Events, Fault> {
    let url = at(wire, &["tasks", &format!("{task}:subscribe")])?;
    events(wire, ask(wire, Method::GET, url, None).await?, Envelope::Plain).await
}

pub(super) async fn rest_get(wire: &Wire, task: &str) -> Result<Task, Fault> {
    let response = ask(wire, Method::GET, at(wire, &["tasks", task])?, None).await?;
    typed(wire.dialect.task(Envelope::Plain.open(&body(response).await?)?))
}

pub(super) async fn rest_cancel(wire: &Wire, task: &str) -> Result<(), Fault> {
    let url = at(wire, &["tasks", &format!("{task}:cancel")])?;
    let response = ask(wire, Method::POST, url, Some(&json!({}))).await?;
    Envelope::Plain.open(&body(response).await?).map(drop)
}

/// Returns the request of a message, in the agent's dialect.
pub(super) fn parameters(wire: &Wire, request: &SendMessageRequest) -> Result<Value, Fault> {
    let request = serde_json::to_value(request).map_err(|err| Fault::Invalid(err.to_string()))?;
    Ok(wire.dialect.request(request))
}

async fn rpc(wire: &Wire, operation: Operation, parameters: Value) -> Result<Response, Fault> {
    let call = json!({"jsonrpc": "2.0", "id": ID, "method": wire.dialect.method(operation), "params": parameters});
    ask(wire, Method::POST, wire.url.clone(), Some(&call)).await
}

/// Returns an address below that of the agent.
fn at(wire: &Wire, path: &[&str]) -> Result<Url, Fault> {
    let mut url = wire.url.clone();
    {
        let mut segments =
            url.path_segments_mut().map_err(|()| Fault::Invalid("its address is invalid".to_owned()))?;
        let version = (wire.dialect == Dialect::V0).then_some("v1");
        segments.pop_if_empty().extend(version).extend(wire.tenant.iter()).extend(path);
    }
    Ok(url)
}

/// Sends a request. An error answer becomes an error.
async fn ask(wire: &Wire, method: Method, url: Url, body: Option<&Value>) -> Result<Response, Fault> {
    let mut request = wire.client.request(method, url).headers(wire.headers.clone());
    request = request.header(ACCEPT, JSON).header(ACCEPT, EVENTS);
    if let Some(body) = body {
        request = request.header(CONTENT_TYPE, JSON).body(body.to_string());
    }
    let response = wire.execute(request.build().map_err(|err| connection_fault(&err))?).await?;
    let status = response.status();
    if status.is_success() {
        return Ok(response);
    }
    Err(failure(status, &read(response, 64 * 1024).await.unwrap_or_default()))
}

/// Returns the fault for an error status.
fn failure(status: StatusCode, body: &[u8]) -> Fault {
    let title = match status.canonical_reason() {
        Some(reason) => format!("{} {reason}", status.as_u16()),
        None => status.as_u16().to_string(),
    };
    let body: Option<Value> = serde_json::from_slice(body).ok();
    let error = body.as_ref().map(|body| body.get("error").unwrap_or(body));
    match status.as_u16() {
        401 | 403 => {
            Fault::Invalid(format!("answers {title}: the credentials are missing or not accepted"))
        }
        300..=399 => Fault::Invalid(format!("answers {title}, and redirects are not followed")),
        408 | 425 | 429 | 502..=504 => Fault::Unavailable(format!("answers {title}")),
        _ => match error {
            Some(error) if has_details(error) => refused(error, code(error, status)),
            _ if status == StatusCode::INTERNAL_SERVER_ERROR => {
                Fault::Unavailable(format!("answers {title}"))
            }
            _ => Fault::Invalid(format!("answers {title}")),
        },
    }
}

/// Returns whether an error object has any content.
fn has_details(error: &Value) -> bool {
    ["code", "message", "detail", "title", "details"].iter().any(|name| error.get(*name).is_some())
}

/// Returns the protocol's code for an error of the REST binding.
fn code(error: &Value, status: StatusCode) -> i32 {
    let details = error.get("details").and_then(Value::as_array);
    let reasons = details.into_iter().flatten().filter_map(|detail| detail.get("reason")?.as_str());
    reasons.filter_map(a2a::errors::reason_to_error_code).next().unwrap_or(match status.as_u16() {
        404 => error_code::TASK_NOT_FOUND,
        405 | 501 => error_code::UNSUPPORTED_OPERATION,
        _ => error_code::INTERNAL_ERROR,
    })
}

/// Returns the events of an answer: as they arrive, or the only one.
async fn events(wire: &Wire, response: Response, envelope: Envelope) -> Result<Events, Fault> {
    let dialect = wire.dialect;
    let kind =
        response.headers().get(CONTENT_TYPE).and_then(|value| value.to_str().ok()).unwrap_or_default();
    if !kind.to_ascii_lowercase().starts_with("text/event-stream") {
        let value = envelope.open(&body(response).await?)?;
        let only = event(dialect, value)?;
        return Ok(stream::once(async { Ok(only) }).boxed());
    }
    let reading =
        Reading { response: Some(response), events: framing::Events::default(), dialect, envelope };
    Ok(stream::unfold(reading, |mut reading| async {
        let next = reading.next().await.transpose()?;
        Some((next, reading))
    })
    .boxed())
}

/// A stream of events that is being read.
struct Reading {
    /// `None` when it has ended.
    response: Option<Response>,
    events: framing::Events,
    dialect: Dialect,
    envelope: Envelope,
}

impl Reading {
    async fn next(&mut self) -> Result<Option<StreamResponse>, Fault> {
        let next = self.wait().await;
        if !matches!(next, Ok(Some(_))) {
            self.response = None;
        }
        next
    }

    async fn wait(&mut self) -> Result<Option<StreamResponse>, Fault> {
        loop {
            while let Some(event) = self.events.next().map_err(|_| Fault::TooLarge)? {
                if !event.data.is_empty() {
                    return super::event(self.dialect, self.envelope.open(&event.data)?).map(Some);
                }
            }
            let Some(response) = &mut self.response else { return Ok(None) };
            match response.chunk().await {
                Ok(Some(bytes)) => self.events.push(&bytes),
                Ok(None) => return Ok(None),
                Err(err) => return Err(connection_fault(&err)),
            }
        }
    }
}

impl Envelope {
    /// Returns the content of the envelope.
    fn open(self, bytes: &[u8]) -> Result<Value, Fault> {
        let mut value = super::parse(bytes)?;
        if let Some(error) = value.get("error").filter(|error| error.is_object()) {
            return Err(refused(error, error_code::INTERNAL_ERROR));
        }
        match self {
            Self::Plain => Ok(value),
            Self::Rpc if value.get("id").is_some_and(|id| *id != ID) => {
                Err(Fault::Invalid("its answer is one to another request".to_owned()))
            }
            Self::Rpc => match value.get_mut("result") {
                Some(result) => Ok(result.take()),
                None => Err(Fault::Invalid("it answers with neither a result nor an error".to_owned())),
            },
        }
    }
}

async fn body(response: Response) -> Result<Bytes, Fault> {
    read(response, MAX_MESSAGE).await
}

/// Reads a body of at most `limit` bytes.
pub(in crate::a2a) async fn read(mut response: Response, limit: usize) -> Result<Bytes, Fault> {
    if response.content_length().is_some_and(|length| length > limit as u64) {
        return Err(Fault::TooLarge);
    }
    let mut whole = BytesMut::new();
    while let Some(chunk) = response.chunk().await.map_err(|err| connection_fault(&err))? {
        if whole.len() + chunk.len() > limit {
            return Err(Fault::TooLarge);
        }
        whole.extend_from_slice(&chunk);
    }
    Ok(whole.freeze())
}

/// Returns the fault for a failed connection.
pub(super) fn connection_fault(err: &reqwest::Error) -> Fault {
    Fault::Unavailable(match err.is_connect() {
        true if err.is_timeout() => "does not accept the connection in time".to_owned(),
        true => format!("cannot be reached: {}", root_cause(err).to_lowercase()),
        false => format!("broke off: {}", root_cause(err).to_lowercase()),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_error_without_details_is_classified_by_its_status() {
        for (status, body, says) in [
            (
                500,
                "{}",
                "a is unavailable: host answers 500 Internal Server Error; trying again may help",
            ),
            (
                500,
                "<html>",
                "a is unavailable: host answers 500 Internal Server Error; trying again may help",
            ),
            (503, "{}", "a is unavailable: host answers 503 Service Unavailable; trying again may help"),
            (400, "{}", "a failed: host: answers 400 Bad Request"),
            (
                500,
                r#"{"error": {"code": -32603, "message": "no luck"}}"#,
                "a failed: host refuses: no luck (-32603)",
            ),
            (400, r#"{"detail": "no such field"}"#, "a failed: host refuses: no such field (-32603)"),
        ] {
            let fault = failure(StatusCode::from_u16(status).unwrap(), body.as_bytes());
            assert_eq!(fault.of("a", "host").to_string(), says, "{status} {body}");
        }
    }

    #[test]
    fn only_the_answer_to_the_request_is_its_answer() {
        let open = |text: &str| Envelope::Rpc.open(text.as_bytes()).map_err(|fault| fault.to_string());
        assert_eq!(open(r#"{"jsonrpc": "2.0", "id": 1, "result": 7}"#), Ok(json!(7)));
        for id in ["2", "\"1\"", "null"] {
            let problem = open(&format!(r#"{{"jsonrpc": "2.0", "id": {id}, "result": 7}}"#));
            assert_eq!(problem, Err("its answer is one to another request".to_owned()), "{id}");
        }
        // The id of an unreadable request is unknown.
        let refused = open(r#"{"jsonrpc": "2.0", "id": null, "error": {"code": -1, "message": "no"}}"#);
        assert_eq!(refused, Err("no".to_owned()));
    }
}
