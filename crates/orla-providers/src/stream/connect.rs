//! Opens the connection of a stream, or starts its program, and reopens a broken connection.

use std::convert::Infallible;
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use bytes::Bytes;
use futures_util::StreamExt;
use futures_util::stream::unfold;
use orla_marketplace::attestation::Custody;
use orla_marketplace::{
    CallContext, HttpCapability, JsonText, PluginCapability, ProviderType, RuntimeError, RuntimeResult,
    StreamCapabilityImpl, StreamTransport, StreamType, Violation,
};
use orla_mcp::framing::Events;
use orla_process::confinement::{Sandbox, Sandboxes};
use orla_process::{Command, Instance};
use reqwest::header::{
    ACCEPT, CACHE_CONTROL, CONNECTION, CONTENT_TYPE, HeaderMap, HeaderName, HeaderValue, UPGRADE,
};
use reqwest::{Body, Client, Request, Response, StatusCode};
use tokio::sync::{Notify, mpsc};
use tokio_tungstenite::WebSocketStream;
use tokio_tungstenite::tungstenite::handshake::{client::generate_key, derive_accept_key};
use tokio_tungstenite::tungstenite::protocol::{Role, WebSocketConfig};

use super::items::Lines;
use super::sink::Sink;
use super::source::{Cut, Program, Source};
use crate::http::{self, Clients, Prepared, Stage, failure, host_of, prepare, refused, request_of};

/// The environment variable that gives a program the opening input of the stream.
const INPUT: &str = "ORLA_INPUT";
/// The maximum length of the variable, which is Linux's limit.
const MAX_INPUT: usize = 128 * 1024 - 16;
/// The initial buffers of a WebSocket.
const SOCKET_BUFFER: usize = 4 * 1024;

/// The settings by which one stream is reached.
pub(super) struct Connector {
    pub(super) clients: Arc<Clients>,
    instance: Arc<Instance>,
    pub(super) name: Arc<str>,
    format: StreamTransport,
    stream_type: StreamType,
    max: usize,
    buffer: usize,
    transport: Transport,
    /// The content that a required attestation allows to run.
    custody: Option<Custody>,
}

enum Transport {
    Http { prepared: Box<Prepared>, host: Arc<str> },
    Program(Arc<Command>),
}

/// Checks whether settings can produce a stream.
///
/// # Errors
/// What is wrong with them, as a sentence.
pub fn check(stream: &StreamCapabilityImpl) -> Result<(), String> {
    let is_program = stream.options.transport == StreamTransport::Lines;
    match (&*stream.provider, is_program) {
        (ProviderType::Http(http), false) => http::check(http)?,
        (ProviderType::Plugin(program), true) if program.plugin_path.is_empty() => {
            return Err("a program is expected".to_owned());
        }
        (ProviderType::Plugin(_), true) => {}
        (_, true) => return Err("lines are those of a program (command)".to_owned()),
        (_, false) => return Err("an address is expected (url)".to_owned()),
    }
    match (stream.options.transport, stream.stream_type) {
        (StreamTransport::Sse, StreamType::Source) => Ok(()),
        (StreamTransport::Sse, _) => {
            Err("server-sent events go one way: direction is source".to_owned())
        }
        _ => Ok(()),
    }
}

/// Checks whether the program of a stream can be started, judged by its file. A stream without a program
/// needs none.
///
/// # Errors
/// Why it cannot be started.
pub fn check_program(name: &str, stream: &StreamCapabilityImpl) -> Result<(), String> {
    match &*stream.provider {
        ProviderType::Plugin(program) => command(name, program, stream).check(),
        _ => Ok(()),
    }
}

/// Returns the sandbox of the program of a stream; `None` if it has no program, or if nothing confines it.
pub fn sandbox_of(stream: &StreamCapabilityImpl, sandboxes: &Sandboxes) -> Option<Arc<Sandbox>> {
    match &*stream.provider {
        ProviderType::Plugin(_) => sandboxes.of_words(&stream.options.permissions),
        _ => None,
    }
}

impl Connector {
    pub(super) fn new(
        stream: &StreamCapabilityImpl,
        input: &JsonText,
        ctx: &CallContext,
        clients: Arc<Clients>,
        instance: Arc<Instance>,
    ) -> RuntimeResult<Self> {
        check(stream).map_err(|problem| failed(&ctx.name, &problem))?;
        let options = &stream.options;
        let transport = match &*stream.provider {
            ProviderType::Http(http) => of_http(http, stream, input, ctx)?,
            ProviderType::Plugin(program) => of_program(program, stream, input, ctx, &instance)?,
            _ => return Err(failed(&ctx.name, "an address or a program is expected")),
        };
        Ok(Self {
            clients,
            instance,
            name: Arc::clone(&ctx.name),
            format: options.transport,
            stream_type: stream.stream_type,
            max: options.max_item_bytes,
            buffer: options.buffer.max(1),
            transport,
            custody: ctx.custody.clone(),
        })
    }

    /// Connects; `None` if the other end reports the end of the stream.
    pub(super) async fn connect(
        &self,
        last_id: Option<&Bytes>,
    ) -> RuntimeResult<Option<(Source, Sink)>> {
        match (&self.transport, self.format) {
            (Transport::Program(server), _) => self.start(server).await.map(Some),
            (Transport::Http { prepared, host }, StreamTransport::WebSocket) => {
                self.upgrade(prepared, host).await.map(Some)
            }
            (Transport::Http { prepared, host }, format) => {
                if self.stream_type.takes() {
                    return self.upload(prepared, host).await.map(Some);
                }
                let mut request = request_of(prepared);
                let headers = request.headers_mut();
                let accept = match format {
                    StreamTransport::Sse => "text/event-stream",
                    _ => "application/x-ndjson, application/jsonl, application/json, text/plain",
                };
                headers.entry(ACCEPT).or_insert(HeaderValue::from_static(accept));
                headers.insert(CACHE_CONTROL, HeaderValue::from_static("no-store"));
                if let Some(Ok(id)) = last_id.map(|id| HeaderValue::from_bytes(id)) {
                    headers.insert(HeaderName::from_static("last-event-id"), id);
                }
                let client =
                    self.clients.configured().map_err(|problem| failed(&self.name, &problem))?;
                let response = client.execute(request).await;
                let response = response.map_err(|err| failure(&self.name, host, err, Stage::Asking))?;
                if response.status() == StatusCode::NO_CONTENT {
                    return Ok(None);
                }
                let response = accepted(&self.name, host, response)?;
                let source = match format {
                    StreamTransport::Sse => {
                        is_event_stream(&self.name, host, response.headers())?;
                        Source::Events { response, events: Events::default() }
                    }
                    _ => Source::Lines { response, lines: Lines::new(self.max) },
                };
                Ok(Some((source, Sink::Closed)))
            }
        }
    }

    async fn start(&self, program: &Arc<Command>) -> RuntimeResult<(Source, Sink)> {
        let name = program.command.rsplit('/').next().unwrap_or_default();
        let since = SystemTime::now();
        let mut process = program.start(Arc::clone(&self.instance)).await.map_err(|err| {
            let reason = format!("{name} cannot be started: {err}");
            RuntimeError::Unavailable { id: self.name.to_string(), reason, source: Some(Box::new(err)) }
        })?;
        if let Some(custody) = self.custody.clone() {
            // The check examines files.
            let held = tokio::task::spawn_blocking(move || custody.has_held_since(since)).await;
            if !held.unwrap_or(false) {
                let reason = format!("{name} is not the attested content, and attestation is required");
                return Err(RuntimeError::Unavailable {
                    id: self.name.to_string(),
                    reason,
                    source: None,
                });
            }
        }
        let stdin = process.stdin.take().filter(|_| self.stream_type.takes());
        let sink = match stdin {
            Some(stdin) => Sink::Program { stdin, rest: Default::default() },
            None => Sink::Closed,
        };
        Ok((Source::Program(Box::new(Program::new(process, Arc::clone(program), self.max))), sink))
    }

    /// Creates a request whose body continues while values are sent.
    async fn upload(&self, prepared: &Prepared, host: &Arc<str>) -> RuntimeResult<(Source, Sink)> {
        let mut request = request_of(prepared);
        let headers = request.headers_mut();
        headers.insert(CONTENT_TYPE, HeaderValue::from_static("application/x-ndjson"));
        let (values, body) = mpsc::channel::<Bytes>(self.buffer);
        let begun = Arc::new(Notify::new());
        let body = unfold((body, Some(Arc::clone(&begun))), |(mut body, begun)| async move {
            if let Some(begun) = begun {
                begun.notify_one();
            }
            let value = body.recv().await?;
            Some((Ok::<_, Infallible>(value), (body, None)))
        });
        *request.body_mut() = Some(Body::wrap_stream(body));
        let client = self.clients.configured().map_err(|problem| failed(&self.name, &problem))?.clone();
        let (name, host) = (Arc::clone(&self.name), Arc::clone(host));
        let mut answer = Box::pin(answered(client, request, name, host));
        // From here on the connection carries the body, whether or not the answer is awaited.
        let source = tokio::select! {
            biased;
            answer = &mut answer => Source::Lines { response: answer?, lines: Lines::new(self.max) },
            () = begun.notified() => {
                let answer = async move { answer.await.map_err(|err| cut(&err)) };
                Source::Waiting { answer: Box::pin(answer), max: self.max }
            }
        };
        Ok((source, Sink::Upload(values)))
    }

    async fn upgrade(&self, prepared: &Prepared, host: &str) -> RuntimeResult<(Source, Sink)> {
        let mut request = request_of(prepared);
        let key = generate_key();
        let headers = request.headers_mut();
        headers.insert(CONNECTION, HeaderValue::from_static("Upgrade"));
        headers.insert(UPGRADE, HeaderValue::from_static("websocket"));
        headers.insert("sec-websocket-version", HeaderValue::from_static("13"));
        let value = HeaderValue::from_str(&key).map_err(|err| failed(&self.name, &err.to_string()))?;
        headers.insert("sec-websocket-key", value);
        let client = self.clients.upgrading().map_err(|problem| failed(&self.name, &problem))?;
        let response = client.execute(request).await;
        let response = response.map_err(|err| failure(&self.name, host, err, Stage::Asking))?;
        let expected = derive_accept_key(key.as_bytes());
        let is_socket = response.status() == StatusCode::SWITCHING_PROTOCOLS
            && response
                .headers()
                .get("sec-websocket-accept")
                .is_some_and(|accept| accept == expected.as_str());
        if !is_socket {
            let status = accepted(&self.name, host, response)?.status();
            return Err(failed(
                &self.name,
                &format!("{host} answered {status} instead of opening a WebSocket"),
            ));
        }
        let upgraded = response.upgrade().await;
        let upgraded = upgraded.map_err(|err| failure(&self.name, host, err, Stage::Asking))?;
        let config = WebSocketConfig::default()
            .read_buffer_size(SOCKET_BUFFER)
            .write_buffer_size(SOCKET_BUFFER)
            .max_write_buffer_size(2 * SOCKET_BUFFER + self.max)
            .max_message_size(Some(self.max))
            .max_frame_size(Some(self.max));
        let socket = WebSocketStream::from_raw_socket(upgraded, Role::Client, Some(config)).await;
        let (sink, stream) = socket.split();
        Ok((Source::Socket { stream, next: None }, Sink::Socket(sink)))
    }
}

async fn answered(
    client: Client,
    request: Request,
    name: Arc<str>,
    host: Arc<str>,
) -> RuntimeResult<Response> {
    let response = client.execute(request).await;
    let response = response.map_err(|err| failure(&name, &host, err, Stage::Asking))?;
    accepted(&name, &host, response)
}

fn of_http(
    http: &HttpCapability,
    stream: &StreamCapabilityImpl,
    input: &JsonText,
    ctx: &CallContext,
) -> RuntimeResult<Transport> {
    let mut http = http.clone();
    let takes = stream.stream_type.takes();
    if http.options.method.is_none() {
        let is_upload = takes && stream.options.transport == StreamTransport::Ndjson;
        http.options.method = Some(if is_upload { "POST" } else { "GET" }.to_owned());
    }
    let mut prepared = prepare(&http, input).map_err(|unfit| refused(ctx, unfit))?;
    if let Some(Ok(trace)) = ctx.scope.traceparent.as_deref().map(HeaderValue::from_str) {
        prepared.common.insert("traceparent", trace);
    }
    // The configured value for plain answers would accept anything.
    prepared.common.remove(ACCEPT);
    let host = host_of(&prepared.url).into();
    Ok(Transport::Http { prepared: Box::new(prepared), host })
}

fn of_program(
    program: &PluginCapability,
    stream: &StreamCapabilityImpl,
    input: &JsonText,
    ctx: &CallContext,
    instance: &Instance,
) -> RuntimeResult<Transport> {
    let text = input.as_str();
    if text.len() > MAX_INPUT {
        let expected = format!("at most {MAX_INPUT} bytes, the limit of a program's environment");
        let got = format!("{} bytes", text.len());
        let violation = Violation { path: "input".to_owned(), expected, got };
        return Err(RuntimeError::InvalidInput {
            id: ctx.name.to_string(),
            violations: vec![violation],
        });
    }
    let sandbox = sandbox_of(stream, instance.sandboxes());
    let mut command = Command { sandbox, ..command(&ctx.name, program, stream) };
    command.env.push((INPUT.to_owned(), text.to_owned()));
    Ok(Transport::Program(Arc::new(command)))
}

/// Returns the program of a stream, without its input.
fn command(name: &str, program: &PluginCapability, stream: &StreamCapabilityImpl) -> Command {
    let options = &stream.options;
    Command {
        name: name.to_owned(),
        command: program.plugin_path.clone(),
        args: options.args.clone(),
        env: options.env.iter().map(|(name, value)| (name.clone(), value.clone())).collect(),
        pass_env: options.pass_env.clone(),
        directory: options.directory.clone(),
        sandbox: None,
        startup_timeout: Duration::from_secs(30),
        eager: false,
    }
}

/// Returns the answer, if it is a stream.
fn accepted(name: &str, host: &str, response: Response) -> RuntimeResult<Response> {
    let status = response.status();
    if status.is_success() {
        return Ok(response);
    }
    if matches!(status.as_u16(), 408 | 425 | 429 | 500 | 502 | 503 | 504) {
        let reason = format!("{host} answers {status}; trying again may help");
        return Err(RuntimeError::Unavailable { id: name.to_owned(), reason, source: None });
    }
    let hint = match status.as_u16() {
        300..=399 => "; redirects are not followed",
        401 | 403 => "; it may need other credentials",
        _ => "",
    };
    Err(failed(name, &format!("{host} answers {status}{hint}")))
}

fn is_event_stream(name: &str, host: &str, headers: &HeaderMap) -> RuntimeResult<()> {
    let kind = headers.get(CONTENT_TYPE).and_then(|kind| kind.to_str().ok()).unwrap_or_default();
    let essence = kind.split(';').next().unwrap_or_default().trim();
    match essence.eq_ignore_ascii_case("text/event-stream") {
        true => Ok(()),
        false => {
            let got = if essence.is_empty() { "something" } else { essence };
            Err(failed(name, &format!("{host} answers with {got} instead of text/event-stream")))
        }
    }
}

fn cut(error: &RuntimeError) -> Cut {
    let reason = match error {
        RuntimeError::Unavailable { reason, .. } => reason.clone(),
        other => other.to_string(),
    };
    if error.is_transient() { Cut::transient(reason) } else { Cut::permanent(reason) }
}

pub(super) fn failed(name: &str, problem: &str) -> RuntimeError {
    let message = format!("{name} failed: {problem}");
    RuntimeError::Failed { id: name.to_owned(), message, outcome: None }
}
