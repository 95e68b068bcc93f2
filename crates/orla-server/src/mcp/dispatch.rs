//! Answers one request, independently of the transport. Read [`Job::run`] first.
//!
//! # How it works
//!
//! A transport reads the envelope, determines the request mode, and makes a [`Job`] of the request:
//! owned data, with arguments and parameters shared with the body's bytes. [`answer`] runs the job and
//! returns the finished message. Notifications go to the caller's outlet meanwhile.

mod caller;
mod listen;
pub(crate) mod pending;
mod tool_call;

use std::panic::AssertUnwindSafe;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use futures_util::FutureExt;
use http::{HeaderMap, Response, StatusCode, header};
use orla_marketplace::rtfs::text::excerpt;
use orla_marketplace::{Call, Catalog, Client, JsonText, LogLevel, MAX_SHOWN_CHARS, Payload, Principal};
use rmcp::model::{
    DiscoverResult, ErrorCode, ErrorData, InitializeResult, ResultType, ServerConfig, TASKS_EXTENSION_ID,
};
use serde_json::value::RawValue;

use crate::http::body::Body;
use crate::http::response::{json, retry_after};
use crate::mcp::input::requests::InputRequests;
use crate::mcp::notify::notices::NoticeOptions;
use crate::mcp::protocol::Revision;
use crate::mcp::request_mode::{self, Refused};
use crate::mcp::rpc::{self, Id, Meta, Params, push_json};
use crate::mcp::session::Session;
use crate::mcp::session::client::SessionClient;
use crate::mcp::surfaces::{self, method_not_found};
use crate::mcp::tasks;
use crate::mcp::tools::{self, ListForm, Listing};
use crate::state::{Core, capabilities, implementation, instructions};
use crate::step_up::StepUp;
use orla_mcp::object::Object;
use pending::InputFields;
use tool_call::{ToolRequest, call_or_start_task};

pub(crate) use caller::Caller;

/// A request, with all the data needed to answer it.
pub(crate) struct Job {
    pub(crate) id: Id,
    pub(crate) method: Box<str>,
    operation: Operation,
    meta: Meta,
    /// How the client of a sessionless request describes itself.
    pub(crate) client: Option<Arc<str>>,
    /// The members for the input requests of its provider.
    pub(crate) input: InputFields,
    /// Whether it declares the extension for tasks.
    declares_tasks: bool,
}

/// The operation of a request, determined by its method.
enum Operation {
    CallTool {
        tool: String,
        arguments: Payload,
        /// `params.task`, unchecked.
        task_params: Option<JsonText>,
    },
    ListTools {
        cursor: Option<JsonText>,
    },
    /// A list of prompts, resources or templates.
    List {
        cursor: Option<JsonText>,
    },
    /// A prompt or a resource of a surface.
    Get {
        name: String,
        params: JsonText,
    },
    Ping,
    Discover,
    // The following variants contain the `params`.
    Complete(JsonText),
    SetLevel(JsonText),
    Subscribe(JsonText),
    Unsubscribe(JsonText),
    Listen(JsonText),
    /// `tasks/*`.
    Tasks(JsonText),
    Unknown,
    Refused(ErrorData),
}

/// The response to a request.
#[derive(Debug)]
pub(crate) struct Reply {
    pub(crate) message: Bytes,
    /// The status of the reply over HTTP.
    pub(crate) status: StatusCode,
    /// The time after which the request can be repeated, if it came too early.
    pub(crate) retry_after: Option<Duration>,
    /// The scopes that the caller lacks.
    pub(crate) step_up: Option<StepUp>,
}

impl Reply {
    pub(crate) fn ok(message: impl Into<Bytes>) -> Self {
        Self { message: message.into(), status: StatusCode::OK, retry_after: None, step_up: None }
    }

    /// Returns the reply as a response. The client learns when to retry, and which scopes its token
    /// lacks, if that is known.
    pub(crate) fn into_response(self) -> Response<Body> {
        let mut response = json(self.status, self.message);
        if let Some(wait) = self.retry_after {
            response.headers_mut().insert(header::RETRY_AFTER, retry_after(wait));
        }
        StepUp::apply(self.step_up, response)
    }

    /// Returns an error with its status in the sessionless revision. In a session, every status is 200.
    pub(crate) fn error(id: Option<&Id>, error: &ErrorData, revision: Revision) -> Self {
        let status = match error.code {
            _ if !revision.is_sessionless() => StatusCode::OK,
            ErrorCode::METHOD_NOT_FOUND => StatusCode::NOT_FOUND,
            ErrorCode::UNSUPPORTED_PROTOCOL_VERSION
            | ErrorCode::MISSING_REQUIRED_CLIENT_CAPABILITY
            | ErrorCode::HEADER_MISMATCH => StatusCode::BAD_REQUEST,
            _ => StatusCode::OK,
        };
        Self { status, ..Self::ok(rpc::error(id, error)) }
    }
}

/// Answers one request.
pub(crate) async fn answer(core: Arc<Core>, job: Box<Job>, caller: Caller) -> Reply {
    if caller.is_sessionless() && job.may_ask() {
        return Box::pin(pending::answer(core, job, caller)).await;
    }
    let channel = ClientChannel::Session(caller.session_client(&core, &job));
    // Each has its own box, because the other would otherwise reserve room for it.
    Box::pin(run_caught(&core, job, &caller, channel)).await
}

/// Answers a sessionless request whose provider may ask its client. The questions are added to
/// `requests`.
pub(crate) async fn answer_sessionless(
    core: Arc<Core>,
    job: Box<Job>,
    caller: Caller,
    requests: Arc<InputRequests>,
) -> Reply {
    run_caught(&core, job, &caller, ClientChannel::InputRequests(requests)).await
}

/// Runs a request to its answer. A panic is an error of this request alone.
async fn run_caught(core: &Arc<Core>, job: Box<Job>, caller: &Caller, channel: ClientChannel) -> Reply {
    let (id, method, revision) = (job.id.clone(), job.method.clone(), caller.revision);
    let ran = AssertUnwindSafe(job.run(core, caller, &channel)).catch_unwind().await;
    channel.end();
    match ran {
        Ok(Ok(message)) => Reply { step_up: caller.step_up(core), ..Reply::ok(message) },
        Ok(Err(error)) => {
            log_refused(Some(&method), &error);
            Reply { step_up: caller.step_up(core), ..Reply::error(Some(&id), &error, revision) }
        }
        Err(panic) => {
            tracing::error!(method = &*method, panic = panic_text(&*panic), "a request panicked");
            let error = ErrorData::internal_error("an internal error; see the server's log", None);
            Reply::error(Some(&id), &error, revision)
        }
    }
}

/// Logs an error of the protocol (RFC 1 §8.2). The method and the text come from the client and may be
/// long.
pub(crate) fn log_refused(method: Option<&str>, error: &ErrorData) {
    let error_text = excerpt(&error.message, MAX_SHOWN_CHARS);
    let rpc = method.map(|method| excerpt(method, MAX_SHOWN_CHARS));
    tracing::info!(rpc, code = error.code.0, error = error_text, "request refused");
}

/// The channel from a request's provider to the client.
enum ClientChannel {
    /// The stream of the request, if the session's client can be asked.
    Session(Option<Arc<SessionClient>>),
    InputRequests(Arc<InputRequests>),
}

impl ClientChannel {
    fn client(&self) -> Option<Arc<dyn Client>> {
        match self {
            Self::Session(client) => client.clone().map(|client| client as Arc<dyn Client>),
            Self::InputRequests(requests) => Some(Arc::clone(requests) as Arc<dyn Client>),
        }
    }

    fn end(&self) {
        match self {
            Self::Session(client) => {
                if let Some(client) = client {
                    client.end();
                }
            }
            Self::InputRequests(requests) => requests.end(),
        }
    }

    /// Returns the error of a sessionless request whose provider failed without output after it had
    /// asked for a capability that the client did not declare. A provider that succeeded did not need
    /// the capability.
    fn missing_capability(&self) -> Option<ErrorData> {
        match self {
            Self::Session(_) => None,
            Self::InputRequests(requests) => requests.missing_capability(),
        }
    }
}

/// The time that a person has to sign in during a call.
const SIGN_IN: Duration = Duration::from_secs(600);

/// Returns how long a request may wait for people.
fn longest_wait(core: &Core) -> Duration {
    core.market.approvals().longest_wait().max(SIGN_IN)
}

/// Returns how long a request may take, excluding the time spent waiting for people.
pub(crate) fn limit(catalog: &Catalog, method: &str, name: &str) -> Duration {
    let entry = if method == "tools/call" { catalog.get(name) } else { None };
    let own = entry.and_then(|entry| entry.policy.timeout);
    own.unwrap_or(catalog.limits().timeout)
}

impl Job {
    /// Copies the needed parts of a request out of its body. They are in a box, because many futures pass them on.
    pub(crate) fn of(request: rpc::Request<'_>, meta: Meta, body: &Bytes) -> Box<Self> {
        let rpc::Request { id, method, params } = request;
        let whole = || rpc::whole_params(body);
        let operation = match &*method {
            "tools/call" => parse_call(&params, body),
            "tools/list" => Operation::ListTools { cursor: cursor(&params, body) },
            list if surfaces::is_list(list) => Operation::List { cursor: cursor(&params, body) },
            "prompts/get" | "resources/read" => Operation::Get {
                name: params
                    .name
                    .or(params.uri)
                    .and_then(|name| rpc::text(name).ok())
                    .unwrap_or_default()
                    .into_owned(),
                params: whole(),
            },
            "completion/complete" => Operation::Complete(whole()),
            "ping" => Operation::Ping,
            "logging/setLevel" => Operation::SetLevel(whole()),
            "resources/subscribe" => Operation::Subscribe(whole()),
            "resources/unsubscribe" => Operation::Unsubscribe(whole()),
            "server/discover" => Operation::Discover,
            "subscriptions/listen" => Operation::Listen(whole()),
            method if method.starts_with("tasks/") => Operation::Tasks(whole()),
            _ => Operation::Unknown,
        };
        let shared = |raw: Option<&RawValue>| raw.map(|raw| JsonText::slice_of(body, raw));
        let input = match operation {
            Operation::CallTool { .. } | Operation::Get { .. } if meta.has_capabilities => InputFields {
                capabilities: shared(params.declared()),
                responses: shared(params.input_responses),
                state: shared(params.request_state),
            },
            _ => InputFields::default(),
        };
        let client = meta.has_capabilities.then(|| params.client()).flatten();
        let declares_tasks = meta.has_capabilities && tasks::is_declared(params.declared());
        Box::new(Self { id, method: method.into(), operation, meta, client, input, declares_tasks })
    }

    /// Returns the subject of the request: the name of a tool or a prompt, or the address of a resource.
    pub(crate) fn subject(&self) -> &str {
        match &self.operation {
            Operation::CallTool { tool, .. } => tool,
            Operation::Get { name, .. } => name,
            _ => "",
        }
    }

    /// Returns the arguments of a call.
    pub(crate) fn arguments(&self) -> Option<&Payload> {
        match &self.operation {
            Operation::CallTool { arguments, .. } => Some(arguments),
            _ => None,
        }
    }

    /// Returns whether the request may be answered with questions to the client (MCP 2026-07-28, multi
    /// round-trip requests).
    fn may_ask(&self) -> bool {
        matches!(self.operation, Operation::CallTool { .. } | Operation::Get { .. })
    }

    /// Returns the notifications that the client wants while this request runs.
    pub(crate) fn notice_options(&self, session: Option<&Session>) -> NoticeOptions {
        match self.operation {
            Operation::ListTools { .. } | Operation::List { .. } | Operation::Refused(_) => {
                NoticeOptions::default()
            }
            _ => wanted_notices(&self.meta, session),
        }
    }

    /// Returns whether the request opens a stream of notifications.
    pub(crate) fn is_subscription(&self) -> bool {
        matches!(self.operation, Operation::Listen(_))
    }

    /// Returns whether the request runs a capability or a surface, and may therefore take long.
    pub(crate) fn may_be_slow(&self) -> bool {
        !matches!(self.operation, Operation::ListTools { .. } | Operation::Refused(_))
    }

    /// Checks the headers that repeat a tool's arguments (sessionless, over HTTP).
    pub(crate) fn check_param_headers(
        &self,
        core: &Core,
        headers: &HeaderMap,
        principal: Option<&Principal>,
    ) -> Result<(), Refused> {
        let Operation::CallTool { tool, arguments, .. } = &self.operation else { return Ok(()) };
        let catalog = core.market.snapshot();
        if catalog.visible(principal, tool).is_none() {
            // The call reports the problem.
            return Ok(());
        }
        let listing = core.listings.of(&catalog);
        for header in listing.headers_of(&catalog, tool) {
            let text = arguments.json().map(JsonText::as_str).unwrap_or_default();
            let (argument, value) = (header.argument(), header.value(text));
            request_mode::check_param_header(headers, &header.header, &argument, value.as_deref())?;
        }
        Ok(())
    }

    /// Runs the request. Rare and large branches are boxed, so that the future of a plain call stays small.
    async fn run(
        self: Box<Self>,
        core: &Arc<Core>,
        caller: &Caller,
        channel: &ClientChannel,
    ) -> Result<Bytes, ErrorData> {
        let Self { id, method, operation, meta, input, declares_tasks, .. } = *self;
        let notices = wanted_notices(&meta, caller.session.as_deref());
        let has_session = caller.session.is_some();
        match operation {
            Operation::CallTool { tool, arguments, task_params } => {
                let request = ToolRequest {
                    call: caller.call(tool, arguments, notices, meta.traceparent, channel),
                    node: meta.node,
                    capabilities: caller.client_capabilities(input.capabilities),
                    task_params,
                    declares_tasks,
                };
                call_or_start_task(core, &id, request, caller, channel).await
            }
            Operation::ListTools { cursor } => list_tools(core, &id, cursor.as_ref(), caller).await,
            Operation::List { cursor } => {
                let catalog = match cursor {
                    None => caller.relist_surfaces(core),
                    Some(_) => caller.surfaces(core),
                };
                let call = caller.surface_call(notices, meta.traceparent, channel);
                caller.surface_request(core, &catalog, call).list(&id, &method, cursor.as_ref()).await
            }
            Operation::Get { params, .. } => {
                let catalog = caller.surfaces(core);
                let call = caller.surface_call(notices, meta.traceparent, channel);
                let answer =
                    caller.surface_request(core, &catalog, call).request(&id, &method, &params).await;
                answer.map_err(|error| channel.missing_capability().unwrap_or(error))
            }
            Operation::Complete(params) => {
                let call = caller.surface_call(notices, meta.traceparent, channel);
                Box::pin(complete(core, &id, &params, call, caller)).await
            }
            Operation::Tasks(params) => {
                let request = tasks::methods::Request {
                    id: &id,
                    method: &method,
                    params: &params,
                    declares: declares_tasks,
                    client: channel.client(),
                };
                Box::pin(request.answer(core, caller.task_caller())).await
            }
            Operation::Refused(error) => Err(error),

            Operation::Ping if has_session => Ok(rpc::result(&id, b"{}")),
            Operation::SetLevel(params) if has_session => set_level(&id, &params, caller),
            Operation::Subscribe(params) if has_session => {
                let call = caller.surface_call(notices, meta.traceparent, channel);
                Box::pin(listen::subscribe(core, &id, &params, call, caller)).await
            }
            Operation::Unsubscribe(params) if has_session => {
                listen::unsubscribe(core, &id, &params, caller).await
            }

            Operation::Discover if !has_session => Ok(discover(core, &id)),
            Operation::Listen(params) if !has_session => {
                let call = caller.surface_call(notices, meta.traceparent, channel);
                Box::pin(listen::listen(core, &id, &params, call, caller, declares_tasks)).await
            }

            Operation::Ping
            | Operation::SetLevel(_)
            | Operation::Subscribe(_)
            | Operation::Unsubscribe(_)
            | Operation::Discover
            | Operation::Listen(_)
            | Operation::Unknown => Err(method_not_found(&method)),
        }
    }
}

fn wanted_notices(meta: &Meta, session: Option<&Session>) -> NoticeOptions {
    NoticeOptions {
        progress_token: meta.progress_token.clone(),
        log_level: session.map(Session::log_level).or(meta.log_level),
    }
}

/// Begins a session or refuses to. Returns the answer to `initialize`.
pub(crate) fn initialize(core: &Core, id: &Id, revision: Revision) -> Bytes {
    let catalog = core.market.snapshot();
    let result = InitializeResult::new(capabilities(&catalog))
        .with_server_info(implementation())
        .with_instructions(instructions(&catalog))
        .with_protocol_version(revision.version());
    if !revision.has_tasks() || core.tasks().is_none() {
        return serialized(id, &result);
    }
    // The SDK has no type for the tasks of this revision.
    let mut result = serde_json::to_value(&result).unwrap_or_default();
    result["capabilities"]["tasks"] =
        serde_json::json!({"list": {}, "cancel": {}, "requests": {"tools": {"call": {}}}});
    serialized(id, &result)
}

fn discover(core: &Core, id: &Id) -> Bytes {
    let catalog = core.market.snapshot();
    let mut capabilities = capabilities(&catalog);
    if core.tasks().is_some() {
        let extension = (TASKS_EXTENSION_ID.to_owned(), serde_json::Map::new());
        capabilities.extensions.get_or_insert_default().extend([extension]);
    }
    let config = ServerConfig::new(capabilities)
        .with_server_info(implementation())
        .with_instructions(instructions(&catalog));
    let result = DiscoverResult::from_server_info(Revision::served(), config)
        .with_ttl_ms(core.cache_hint().ttl_ms);
    serialized(id, &result)
}

async fn list_tools(
    core: &Core,
    id: &Id,
    cursor: Option<&JsonText>,
    caller: &Caller,
) -> Result<Bytes, ErrorData> {
    if cursor.is_none() {
        core.prepare_listing_in_time().await;
    }
    let catalog = match (&caller.session, cursor) {
        (Some(session), Some(_)) => core.tools_of(session),
        (Some(session), None) => {
            let newest = core.market.snapshot();
            session.move_tools_to(&newest, core.shared_versions(&newest));
            newest
        }
        (None, _) => core.market.snapshot(),
    };
    let listing: Arc<Listing> = core.listings.of(&catalog);
    let malformed = |_| ErrorData::invalid_params("the cursor is malformed", None);
    let cursor = cursor.map(JsonText::as_raw).transpose().map_err(malformed)?;
    let principal = caller.principal.as_ref();
    let form = match caller.cache_hint(core) {
        Some(hint) => ListForm::Sessionless(hint),
        None => ListForm::Session { has_tasks: core.tasks().is_some() },
    };
    tools::list_page(id, &catalog, &listing, cursor, principal, form)
}

async fn complete(
    core: &Core,
    id: &Id,
    params: &JsonText,
    call: Call,
    caller: &Caller,
) -> Result<Bytes, ErrorData> {
    let of_session = caller.session.as_ref().map(|session| core.tools_of(session));
    let tools = of_session.unwrap_or_else(|| core.market.snapshot());
    if Object::parse(params.as_str()).is_none_or(|params| params.get("ref").is_none()) {
        return Err(ErrorData::invalid_params("completion/complete needs a ref and an argument", None));
    }
    let mut result = match surfaces::complete_tool(&tools, params, caller.principal.as_ref()) {
        Some(completed) => completed?,
        None => {
            let catalog = caller.surfaces(core);
            if surfaces::serves(&catalog, "completion/complete") {
                return caller
                    .surface_request(core, &catalog, call)
                    .request(id, "completion/complete", params)
                    .await;
            }
            surfaces::no_completion()
        }
    };
    result.result_type = caller.is_sessionless().then_some(ResultType::COMPLETE);
    Ok(serialized(id, &result))
}

fn set_level(id: &Id, params: &JsonText, caller: &Caller) -> Result<Bytes, ErrorData> {
    let level = Object::parse(params.as_str()).and_then(|params| params.text("level"));
    let Some(level) = level.and_then(|level| level.parse().ok()) else {
        let known = LogLevel::ALL.map(LogLevel::as_str).join(", ");
        return Err(ErrorData::invalid_params(format!("level must be one of: {known}"), None));
    };
    if let Some(session) = &caller.session {
        session.set_log_level(level);
    }
    Ok(rpc::result(id, b"{}"))
}

/// Returns the operation of a `tools/call`.
fn parse_call(params: &Params<'_>, body: &Bytes) -> Operation {
    let invalid = |what: String| Operation::Refused(ErrorData::invalid_params(what, None));
    let tool = match params.name.map(rpc::text) {
        Some(Ok(name)) => name,
        Some(Err(_)) => return invalid("tools/call: name must be a string".into()),
        None => return invalid("tools/call: name, the tool to call, is missing".into()),
    };
    let arguments = match params.arguments {
        None => Payload::empty(),
        Some(raw) if raw.get() == "null" => Payload::empty(),
        Some(raw) if raw.get().starts_with('{') => Payload::from_json(JsonText::slice_of(body, raw)),
        Some(raw) => {
            return invalid(format!(
                "{tool}: arguments must be an object, got {}",
                rpc::kind_of(raw.get())
            ));
        }
    };
    let task_params = params.task.map(|raw| JsonText::slice_of(body, raw));
    Operation::CallTool { tool: tool.into_owned(), arguments, task_params }
}

fn cursor(params: &Params<'_>, body: &Bytes) -> Option<JsonText> {
    let given = params.cursor.filter(|raw: &&RawValue| raw.get() != "null");
    given.map(|raw| JsonText::slice_of(body, raw))
}

fn serialized(id: &Id, result: &impl serde::Serialize) -> Bytes {
    let mut out = rpc::begin_result(id, 512);
    push_json(&mut out, result);
    out.extend_from_slice(rpc::END);
    out.into()
}

fn panic_text(panic: &(dyn std::any::Any + Send)) -> &str {
    let text = panic.downcast_ref::<&str>().copied();
    text.or_else(|| panic.downcast_ref::<String>().map(String::as_str)).unwrap_or("no message")
}
