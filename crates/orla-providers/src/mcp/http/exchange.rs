//! One request over HTTP and its answer: JSON, or a stream of events that ends with it.
//!
//! # How it works
//!
//! The caller's task does all the work: no other task is involved between a call and its connection.
//! Messages on the stream of a request (progress, logs, questions) belong to that request's caller. A
//! stream that ends before the answer is resumed if the server gives its events ids.

use std::fmt;
use std::future::pending;
use std::pin::Pin;
use std::time::Duration;

use bytes::{Bytes, BytesMut};
use futures_util::StreamExt;
use futures_util::stream::FuturesUnordered;
use orla_marketplace::JsonText;
use orla_mcp::answer::{self, ServerNotification};
use orla_mcp::framing::Events;
use orla_mcp::mode::Meta;
use orla_mcp::wire::{self, MAX_MESSAGE, Message, RpcError};
use orla_mcp::{Caller, Fault, RequestMode, object};
use orla_oauth::{connection_problem, root_cause};
use reqwest::header::{ACCEPT, CONTENT_TYPE, HeaderValue};
use reqwest::{Body, Method, Request, Response, StatusCode};

use super::headers::{self, LAST_EVENT_ID, METHOD, NAME, SESSION_ID};
use super::link::Channel;
use super::shared::{InFlight, Question, Shared};
use crate::sign_in::{Unanswered, challenge};
use crate::span::span_of;

/// The pause before a stream is resumed, unless the server sets another.
const RETRY: Duration = Duration::from_secs(1);
/// How long a stream may continue after its answer.
const DRAIN_TIMEOUT: Duration = Duration::from_secs(1);
/// The maximum pause that a server can set.
const MAX_RETRY: Duration = Duration::from_secs(30);
/// The maximum number of open questions of one request.
const MAX_QUESTIONS: usize = 64;
/// The maximum number of bytes that are read of an error's body.
const MAX_ERROR: usize = 64 * 1024;

/// The sending of an answer to a question of the server.
type Answering<'a> = Pin<Box<dyn Future<Output = ()> + Send + 'a>>;

/// One request.
pub(super) struct Exchange<'a> {
    shared: &'a Shared,
    channel: &'a Channel,
    caller: Caller,
    traceparent: Option<&'a str>,
    ticket: u64,
}

/// The answer to a request.
#[derive(Debug)]
pub(super) struct Reply {
    pub(super) result: JsonText,
    /// The session that the response created.
    pub(super) session: Option<HeaderValue>,
}

/// The reason why there is no answer.
#[derive(Debug)]
pub(super) enum Failure {
    /// The server does not know the session, and has done nothing.
    Expired,
    /// The server cannot be reached. If nothing was sent, the request may be repeated.
    Lost(String),
    /// There is no token that the server accepts, for this reason.
    Token(String),
    /// The server refuses every request with the configured settings.
    Refused(String),
    /// Anything else.
    Fault(Fault),
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Expired => f.write_str("its session has ended"),
            Self::Lost(reason)
            | Self::Token(reason)
            | Self::Refused(reason)
            | Self::Fault(Fault::Unavailable(reason)) => f.write_str(reason),
            Self::Fault(Fault::Refused(error)) => {
                write!(f, "it refused: {} (code {})", error.message, error.code)
            }
            Self::Fault(Fault::Failed(failure)) => f.write_str(&failure.message),
            Self::Fault(Fault::Busy { .. }) => f.write_str("it is busy"),
        }
    }
}

impl From<String> for Failure {
    fn from(reason: String) -> Self {
        Self::Fault(Fault::Unavailable(reason))
    }
}

/// The kinds of a received response.
enum Received {
    Answer(Result<JsonText, RpcError>),
    /// A stream that ended without the answer.
    Cut,
}

impl<'a> Exchange<'a> {
    /// Creates a request of orla itself, without a client.
    pub(super) fn own(shared: &'a Shared, channel: &'a Channel) -> Self {
        Self::new(shared, channel, Caller::default(), None)
    }

    pub(super) fn new(
        shared: &'a Shared,
        channel: &'a Channel,
        caller: Caller,
        traceparent: Option<&'a str>,
    ) -> Self {
        Self { shared, channel, caller, traceparent, ticket: shared.ticket() }
    }

    /// Registers the caller for messages on other streams, until the guard is dropped.
    pub(super) fn in_flight(&self) -> InFlight<'a> {
        self.shared.in_flight(self.ticket, &self.caller)
    }

    /// Calls a tool.
    pub(super) async fn call(
        self,
        tool: &str,
        arguments: &JsonText,
        more: Option<&str>,
    ) -> Result<JsonText, Failure> {
        let mut body = Vec::new();
        let capabilities = self.caller.client.as_ref().map(|client| client.capabilities());
        let meta = self.meta(capabilities.as_ref());
        wire::write_call(&mut body, self.ticket, tool, arguments, more, meta);
        let mut request = self.post(body);
        if self.channel.mode == RequestMode::Sessionless {
            let fields = request.headers_mut();
            fields.insert(METHOD, HeaderValue::from_static("tools/call"));
            fields.insert(NAME, headers::encoded(tool));
            for (name, value) in self.shared.repeated(tool, arguments) {
                fields.insert(name, value);
            }
        }
        self.exchange(request).await.map(|answer| answer.result)
    }

    /// Sends any other request. `params` is a JSON object without `_meta`.
    pub(super) async fn request(self, method: &str, params: &JsonText) -> Result<Reply, Failure> {
        let request = self.of_method(method, params);
        self.exchange(request).await
    }

    /// Builds the request for a method.
    pub(super) fn of_method(&self, method: &str, params: &JsonText) -> Request {
        let mut body = Vec::new();
        let capabilities = self.caller.client.as_ref().map(|client| client.capabilities());
        let meta = self.meta(capabilities.as_ref());
        wire::write_request(&mut body, self.ticket, method, params.as_str(), meta);
        let mut request = self.post(body);
        if self.channel.mode == RequestMode::Sessionless {
            let fields = request.headers_mut();
            fields.insert(METHOD, headers::encoded(method));
            if let Some(name) = headers::name_of(method, params) {
                fields.insert(NAME, headers::encoded(&name));
            }
        }
        request
    }

    /// Sends a notification.
    pub(super) async fn notify(&self, method: &str, params: Option<&str>) -> Result<(), Failure> {
        let mut body = Vec::new();
        wire::write_notification(&mut body, method, params);
        self.deliver(body).await
    }

    fn meta<'m>(&'m self, capabilities: Option<&'m JsonText>) -> Meta<'m> {
        Meta {
            mode: self.channel.mode,
            progress: self.caller.notices.is_wanted().then_some(self.ticket),
            traceparent: self.traceparent,
            capabilities: capabilities.map(JsonText::as_str),
        }
    }

    fn post(&self, mut body: Vec<u8>) -> Request {
        // The line ending is needed only on pipes.
        body.pop();
        let mut request = Request::new(Method::POST, self.shared.url.clone());
        request.headers_mut().clone_from(&self.channel.headers);
        *request.body_mut() = Some(Body::from(body));
        request
    }

    /// Sends a message that needs no answer.
    async fn deliver(&self, body: Vec<u8>) -> Result<(), Failure> {
        let response = self.send(self.post(body)).await?;
        let status = response.status();
        if status.is_success() { Ok(()) } else { Err(refusal(status)) }
    }

    async fn send(&self, request: Request) -> Result<Response, Failure> {
        self.shared.sender.execute(request).await.map_err(|unanswered| {
            let err = match unanswered {
                Unanswered::Http(err) => err,
                Unanswered::Token(error) => return Failure::Token(error.to_string()),
            };
            let cause = connection_problem(&err);
            if err.is_connect() {
                Failure::Lost(format!("it cannot be reached: {cause}"))
            } else if err.is_redirect() {
                format!("its redirects lead nowhere: {cause}").into()
            } else {
                Failure::Lost(format!("the connection ended before the answer: {cause}"))
            }
        })
    }

    async fn exchange(self, request: Request) -> Result<Reply, Failure> {
        let cancel = CancelOnDrop::new(&self);
        let answered = self.answered(request).await;
        cancel.disarm();
        answered
    }

    async fn answered(&self, request: Request) -> Result<Reply, Failure> {
        let mut span = span_of(&self.caller.notices, &request);
        let response = self.send(request).await?;
        span.set_code(response.status().as_u16().into());
        let session = response.headers().get(SESSION_ID).cloned();
        let mut place = Place::default();
        let mut received = self.receive(response, &mut place).await?;
        loop {
            match received {
                Received::Answer(answer) => {
                    let result = answer.map_err(|error| Failure::Fault(Fault::Refused(error)))?;
                    return Ok(Reply { result, session });
                }
                Received::Cut => {
                    let Some(event) = place.last.clone() else {
                        return Err("its stream ended before the answer".to_owned().into());
                    };
                    tokio::time::sleep(place.retry()).await;
                    // Boxed, because it is rare and large.
                    received = match Box::pin(self.resume(&event)).await {
                        Ok(response) => self.receive(response, &mut place).await?,
                        Err(Failure::Lost(_)) => Received::Cut,
                        Err(other) => return Err(other),
                    };
                }
            }
        }
    }

    /// Requests the rest of a stream after this event.
    async fn resume(&self, event: &Bytes) -> Result<Response, Failure> {
        let mut request = Request::new(Method::GET, self.shared.url.clone());
        let fields = request.headers_mut();
        fields.clone_from(&self.channel.headers);
        fields.remove(CONTENT_TYPE);
        fields.insert(ACCEPT, HeaderValue::from_static("text/event-stream"));
        if let Ok(event) = HeaderValue::from_bytes(event) {
            fields.insert(LAST_EVENT_ID, event);
        }
        self.send(request).await
    }

    /// Reads a response up to the answer to this request.
    async fn receive(&self, response: Response, place: &mut Place) -> Result<Received, Failure> {
        let status = response.status();
        if status == StatusCode::NOT_FOUND && self.channel.has_session() {
            return Err(Failure::Expired);
        }
        let wants_sign_in = self.shared.sender.credentials().is_none()
            && challenge(&response).is_some_and(|challenge| challenge.resource_metadata.is_some());
        let kind = response.headers().get(CONTENT_TYPE).and_then(|kind| kind.to_str().ok());
        let kind = kind.and_then(|kind| kind.split(';').next()).unwrap_or_default().trim().to_owned();
        let is = |name: &str| kind.eq_ignore_ascii_case(name);
        if is("text/event-stream") && status.is_success() {
            return self.receive_stream(response, place).await;
        }
        if is("application/json") {
            let limit = if status.is_success() { MAX_MESSAGE } else { MAX_ERROR };
            let body = read_body(response, limit).await?;
            for message in wire::messages(body) {
                match wire::read(&message) {
                    Some(Message::Answer { id, result }) if id == self.ticket => {
                        return Ok(Received::Answer(result));
                    }
                    // The error for a request that could not be parsed has no id.
                    Some(Message::Answer { result: Err(error), .. }) if !status.is_success() => {
                        return Ok(Received::Answer(Err(error)));
                    }
                    _ => {}
                }
            }
            if status.is_success() {
                return Err("its answer is not for this request".to_owned().into());
            }
        }
        if status.is_success() {
            let what = if kind.is_empty() { "nothing" } else { kind.as_str() };
            return Err(format!("it answered with {what:.60} instead of JSON or events").into());
        }
        if wants_sign_in {
            let text = format!(
                "it wants a sign-in: add `auth: oauth` to its entry and run `orla login {}`",
                self.shared.name
            );
            return Err(Failure::Refused(text));
        }
        Err(refusal(status))
    }

    async fn receive_stream(
        &self,
        mut response: Response,
        place: &mut Place,
    ) -> Result<Received, Failure> {
        let mut events = Events::default();
        let mut answering: FuturesUnordered<Answering<'_>> = FuturesUnordered::new();
        loop {
            while let Some(event) = events.next().map_err(|_| too_large())? {
                place.record(&event);
                for message in wire::messages(event.data) {
                    if let Some(answer) = self.handle_message(&message, &mut answering) {
                        drop(answering);
                        self.drain(response);
                        return Ok(Received::Answer(answer));
                    }
                }
            }
            let questions =
                async { if answering.is_empty() { pending().await } else { answering.next().await } };
            tokio::select! {
                chunk = response.chunk() => match chunk {
                    Ok(Some(chunk)) => events.push(&chunk),
                    Ok(None) | Err(_) => return Ok(Received::Cut),
                },
                _ = questions => {}
            }
        }
    }

    /// Reads a stream to its end after the answer, because its connection could not be used again otherwise.
    fn drain(&self, mut response: Response) {
        self.shared.tasks.spawn(async move {
            let end = async { while let Ok(Some(_)) = response.chunk().await {} };
            tokio::time::timeout(DRAIN_TIMEOUT, end).await
        });
    }

    /// Handles a message of this request's stream; returns the answer if it is one.
    fn handle_message<'e>(
        &'e self,
        message: &Bytes,
        answering: &mut FuturesUnordered<Answering<'e>>,
    ) -> Option<Result<JsonText, RpcError>> {
        match wire::read(message)? {
            Message::Answer { id, result } if id == self.ticket => return Some(result),
            Message::Answer { .. } | Message::Stray { .. } => {}
            Message::Notification { method, params } => {
                match answer::notification(&method, params.as_ref()) {
                    ServerNotification::Progress(token, notice) if token == self.ticket => {
                        self.caller.notices.send(notice);
                    }
                    ServerNotification::Log(level, message) => {
                        self.caller.notices.send(orla_marketplace::Notice::Log { level, message });
                    }
                    notification => self.shared.receive(notification),
                }
            }
            Message::Request { id, method, params } => {
                let params = params.unwrap_or_else(object::empty);
                if answering.len() < MAX_QUESTIONS {
                    let question = Question { id, method, params, client: self.caller.client.clone() };
                    answering.push(Box::pin(async move {
                        let body = question.answer().await;
                        // If sending fails, the server receives no answer, and its own timeout ends the
                        // question.
                        let _ = self.deliver(body).await;
                    }));
                }
            }
        }
        None
    }
}

/// The position in a stream, for resuming it.
#[derive(Debug, Default)]
pub(super) struct Place {
    pub(super) last: Option<Bytes>,
    retry: Option<u64>,
}

impl Place {
    pub(super) fn record(&mut self, event: &orla_mcp::framing::Event) {
        if let Some(id) = event.id.clone().filter(|id| !id.is_empty()) {
            self.last = Some(id);
        }
        self.retry = event.retry.or(self.retry);
    }

    pub(super) fn retry(&self) -> Duration {
        self.retry.map_or(RETRY, Duration::from_millis).min(MAX_RETRY)
    }
}

/// Cancels a request of a session when it is dropped before the answer. A server without sessions
/// notices that the connection ends.
struct CancelOnDrop<'a>(Option<(&'a Shared, u64, &'a Channel)>);

impl<'a> CancelOnDrop<'a> {
    fn new(exchange: &Exchange<'a>) -> Self {
        let is_needed = exchange.channel.mode == RequestMode::Session;
        Self(is_needed.then_some((exchange.shared, exchange.ticket, exchange.channel)))
    }

    fn disarm(mut self) {
        self.0 = None;
    }
}

impl Drop for CancelOnDrop<'_> {
    fn drop(&mut self) {
        let Some((shared, ticket, channel)) = self.0.take() else { return };
        let mut body = Vec::new();
        wire::write_cancelled(&mut body, ticket);
        body.pop();
        let mut request = Request::new(Method::POST, shared.url.clone());
        request.headers_mut().clone_from(&channel.headers);
        *request.body_mut() = Some(Body::from(body));
        *request.timeout_mut() = Some(MAX_RETRY);
        let sender = shared.sender.clone();
        shared.tasks.spawn(async move { sender.execute(request).await.map(drop) });
    }
}

/// Reads the whole body, which is not copied if it arrived in one piece.
pub(super) async fn read_body(mut response: Response, limit: usize) -> Result<Bytes, Failure> {
    let broken = |err: reqwest::Error| {
        Failure::from(format!("its answer breaks off: {}", root_cause(&err).to_lowercase()))
    };
    // The remaining length is known too, but only this value shows whether the first piece is complete.
    let expected = response.content_length().unwrap_or_default();
    let Some(first) = response.chunk().await.map_err(broken)? else { return Ok(Bytes::new()) };
    if first.len() as u64 == expected {
        return Ok(first);
    }
    let expected = usize::try_from(expected).unwrap_or(usize::MAX).min(limit);
    let mut body = BytesMut::with_capacity(expected.max(2 * first.len()));
    body.extend_from_slice(&first);
    while let Some(chunk) = response.chunk().await.map_err(broken)? {
        if body.len() + chunk.len() > limit {
            return Err(too_large());
        }
        body.extend_from_slice(&chunk);
    }
    Ok(body.freeze())
}

fn too_large() -> Failure {
    format!("its answer is larger than {} MiB", MAX_MESSAGE >> 20).into()
}

fn refusal(status: StatusCode) -> Failure {
    match status.as_u16() {
        code @ (401 | 403) => {
            Failure::Refused(format!("it does not let orla in (HTTP {code}): are its headers right?"))
        }
        405 => Failure::Refused(
            "it answered POST with HTTP 405: it probably speaks only the old transport HTTP+SSE, which orla does not; \
             use its address for streamable HTTP, which often ends in /mcp"
                .to_owned(),
        ),
        code @ 300..=399 => {
            format!("it redirects to another origin (HTTP {code}), which is not followed").into()
        }
        code => format!("it answered with HTTP {code}").into(),
    }
}
