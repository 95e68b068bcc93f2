//! Runs calls of [`HttpCapability`] providers.

use std::any::TypeId;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use async_trait::async_trait;
use bytes::Bytes;
use orla_confine::Reach;
use orla_marketplace::{
    BodyMapping, CallContext, CapabilityExecutor, HttpCapability, JsonText, Outcome, Payload,
    ProviderStatus, ProviderType, Redirects, RuntimeError, RuntimeResult, seconds,
};
use reqwest::header::{HeaderMap, HeaderValue};
use reqwest::{Request, Response, StatusCode, Url};

use super::answer::{self, Context};
use super::client::{Clients, HttpLimits};
use super::redirect::{self, Next, host};
use super::request::{InvalidRequest, Prepared, prepare};
use super::transport::{self, Stage};
use crate::sign_in::{SignIns, Unanswered};
use crate::span::span_of;

/// Runs [`HttpCapability`] providers (RTFS capability system §3.3).
///
/// Connections are pooled by origin and live as long as the executor. A call is sent once. Dropping the
/// call's future ends its request.
pub struct HttpExecutor {
    clients: Clients,
    sign_ins: SignIns,
}

impl HttpExecutor {
    /// Creates an executor with the default limits. No connection is opened before the first call.
    pub fn new() -> Self {
        Self::with_limits(HttpLimits::default())
    }

    /// Creates an executor with these limits.
    pub fn with_limits(limits: HttpLimits) -> Self {
        Self { clients: Clients::new(limits), sign_ins: SignIns::default() }
    }

    /// Sets the sign-ins whose tokens the requests use.
    #[must_use]
    pub fn with_sign_ins(self, sign_ins: SignIns) -> Self {
        Self { sign_ins, ..self }
    }

    #[cfg(test)]
    pub(super) fn with_clients(clients: Clients) -> Self {
        Self { clients, sign_ins: SignIns::default() }
    }
}

impl Default for HttpExecutor {
    fn default() -> Self {
        Self::new()
    }
}

#[async_trait]
impl CapabilityExecutor for HttpExecutor {
    fn provider_type_id(&self) -> TypeId {
        TypeId::of::<HttpCapability>()
    }

    async fn execute(
        &self,
        provider: &ProviderType,
        inputs: &Payload,
        ctx: &CallContext,
    ) -> RuntimeResult<Outcome> {
        let http: &HttpCapability = provider.settings()?;
        let mut prepared = prepare(http, inputs.json()?).map_err(|invalid| refused(ctx, invalid))?;
        if let Some(trace) = ctx.scope.traceparent.as_deref()
            && let Ok(value) = HeaderValue::from_str(trace)
        {
            prepared.common.insert("traceparent", value);
        }
        let shortened;
        let ctx = match http.timeout_ms {
            0 => ctx,
            limit => {
                shortened = ctx.shortened(Duration::from_millis(limit));
                &shortened
            }
        };
        let arrived = AtomicUsize::new(NOTHING);
        let exchange = async {
            let whole = self.exchange(http, prepared, &ctx.name, Some(ctx), &arrived).await?;
            let context = Context { name: &ctx.name, call_id: &ctx.call_id, host: &whole.host, http };
            answer::read(context, whole.status, &whole.headers, &whole.body)
        };
        tokio::select! {
            biased;
            () = ctx.scope.cancellation.cancelled() => {
                Err(RuntimeError::Cancelled { id: ctx.name.to_string(), outcome: None })
            }
            done = exchange => done,
            () = ctx.expired() => {
                let outcome = waited_for(http, arrived.load(Ordering::Relaxed)).map(Box::new);
                Err(RuntimeError::TimedOut { id: ctx.name.to_string(), limit: ctx.timeout, outcome })
            }
        }
    }

    fn check_input(
        &self,
        provider: &ProviderType,
        inputs: &Payload,
        ctx: &CallContext,
    ) -> RuntimeResult<()> {
        let prepared = prepare(provider.settings()?, inputs.json()?);
        prepared.map(drop).map_err(|invalid| refused(ctx, invalid))
    }

    fn status(&self, provider: &ProviderType) -> ProviderStatus {
        let mut status = ProviderStatus::default();
        status.source = provider.settings().ok().map(HttpCapability::address);
        status
    }
}

/// A placeholder for "no answer has begun".
const NOTHING: usize = usize::MAX;

impl HttpExecutor {
    /// Fetches an address from the configuration.
    pub(crate) async fn fetch(
        &self,
        address: &str,
        redirects: Redirects,
        max_bytes: usize,
        max_wait: Duration,
    ) -> Result<Bytes, String> {
        let mut http = HttpCapability::new(address, None, 0);
        http.options.method = Some("GET".to_owned());
        http.options.body = BodyMapping::None;
        http.options.max_answer_bytes = max_bytes;
        http.options.redirects = redirects;
        let nothing = JsonText::parse("{}").map_err(|err| err.to_string())?;
        let prepared = prepare(&http, &nothing).map_err(|invalid| match invalid {
            InvalidRequest::Settings(problem) => problem,
            InvalidRequest::Input(refused) => refused.to_string(),
        })?;
        let arrived = AtomicUsize::new(NOTHING);
        let exchange = self.exchange(&http, prepared, "it", None, &arrived);
        let whole = tokio::time::timeout(max_wait, exchange)
            .await
            .map_err(|_| format!("it did not arrive within {}", seconds(max_wait)))?
            .map_err(|err| err.to_string())?;
        match whole.status.is_success() {
            true => Ok(whole.body),
            false => Err(format!("{} answers {}", whole.host, whole.status)),
        }
    }

    /// Sends the request, follows redirects, and reads the answer.
    async fn exchange(
        &self,
        http: &HttpCapability,
        mut current: Prepared,
        name: &str,
        ctx: Option<&CallContext>,
        arrived: &AtomicUsize,
    ) -> RuntimeResult<Whole> {
        let own = current.url.origin();
        let mut visited = Vec::new();
        // After a redirect to another origin: the widest reach of the servers that chose the target.
        let mut guard: Option<Reach> = None;
        loop {
            let at = host(&current.url);
            let client = match guard {
                Some(reach) => self.clients.guarded(reach),
                None => self.clients.configured(),
            };
            let client = client.map_err(|problem| failed(name, &problem))?;
            // A token goes to the origin that it was obtained for.
            let sign_in = http.options.sign_in.as_deref().filter(|_| current.url.origin() == own);
            let request = request(&current);
            let mut span = ctx.map(|ctx| span_of(&ctx.scope.notices, &request));
            let response = match sign_in {
                None => client.execute(request).await.map_err(Unanswered::Http),
                Some(key) => {
                    let server =
                        Url::parse(&http.base_url).map_err(|err| failed(name, &err.to_string()))?;
                    let sender = self.sign_ins.sender(key, &server, client, ctx);
                    let sender = sender.map_err(|problem| failed(name, &format!("{at}: {problem}")))?;
                    match ctx {
                        Some(ctx) => sender.execute_for(ctx, request).await,
                        None => sender.execute(request).await,
                    }
                }
            };
            let response = response.map_err(|unanswered| match unanswered {
                Unanswered::Http(err) => transport::failure(name, &at, err, Stage::Asking),
                Unanswered::Token(error) => failed(name, &format!("{at}: {error}")),
            })?;
            if let Some(span) = &mut span {
                span.set_code(response.status().as_u16().into());
            }
            let next =
                redirect::next(&current, &visited, response.status(), response.headers(), &http.options);
            match next {
                Next::Answer => {
                    let (status, headers) = (response.status(), response.headers().clone());
                    let limit = http.options.max_answer_bytes;
                    let body = read(limit, name, &at, response, arrived).await?;
                    return Ok(Whole { host: at, status, headers, body });
                }
                Next::Refuse(why) => {
                    let message =
                        format!("{at} redirects: the redirect {why}; trying again will not help");
                    return Err(failed(name, &message));
                }
                Next::Follow(next) => {
                    let leaves = next.url.origin() != current.url.origin();
                    if leaves && ctx.is_some_and(|ctx| !ctx.may_reach(next.url.as_str())) {
                        let target = host(&next.url);
                        let message = format!(
                            "{at} redirects to {target}, and the policy does not permit net:{target} to the caller"
                        );
                        return Err(failed(name, &message));
                    }
                    if leaves && !http.options.allow_private_redirects {
                        let own = self.clients.reach_of(&current.url, response.remote_addr()).await;
                        let reach = guard.map_or(own, |reach| reach.min(own));
                        if self.clients.names_beyond(reach, &next.url) {
                            let problem = transport::private(&host(&next.url));
                            return Err(failed(name, &format!("{problem}; trying again will not help")));
                        }
                        guard = Some(reach);
                    }
                    let before = std::mem::replace(&mut current, *next);
                    visited.push((before.method, before.url));
                }
            }
        }
    }
}

/// A complete answer.
struct Whole {
    host: String,
    status: StatusCode,
    headers: HeaderMap,
    body: Bytes,
}

/// Reads a body up to its limit. `arrived` counts its bytes.
pub(crate) async fn read(
    limit: usize,
    name: &str,
    host: &str,
    mut response: Response,
    arrived: &AtomicUsize,
) -> RuntimeResult<Bytes> {
    let too_large = || RuntimeError::Limit {
        id: name.to_owned(),
        what: format!("{host} answers with more than {limit} bytes (max_answer_bytes)"),
    };
    let announced = response.content_length().unwrap_or_default();
    if announced > limit as u64 {
        return Err(too_large());
    }
    let mut first: Option<Bytes> = None;
    let mut whole: Vec<u8> = Vec::new();
    let mut size = 0;
    arrived.store(size, Ordering::Relaxed);
    let stage = |size| move |err| transport::failure(name, host, err, Stage::Reading(size));
    while let Some(chunk) = response.chunk().await.map_err(stage(size))? {
        size += chunk.len();
        if size > limit {
            return Err(too_large());
        }
        arrived.store(size, Ordering::Relaxed);
        // Most answers arrive in one piece, which is not copied.
        match first.take() {
            None if whole.is_empty() => first = Some(chunk),
            None => whole.extend_from_slice(&chunk),
            Some(before) => {
                whole.reserve(size.max(announced.try_into().unwrap_or_default()));
                whole.extend_from_slice(&before);
                whole.extend_from_slice(&chunk);
            }
        }
    }
    Ok(first.unwrap_or_else(|| whole.into()))
}

/// Builds the prepared request.
pub(crate) fn request(prepared: &Prepared) -> Request {
    let mut request = Request::new(prepared.method.clone(), prepared.url.clone());
    let headers = request.headers_mut();
    headers.clone_from(&prepared.common);
    for (name, value) in &prepared.own {
        headers.insert(name.clone(), value.clone());
    }
    *request.body_mut() = prepared.body.clone().map(Into::into);
    request
}

/// Describes what a call that was too slow waited for.
fn waited_for(http: &HttpCapability, arrived: usize) -> Option<Outcome> {
    let address = http.address();
    let text = match arrived {
        NOTHING => format!("No answer had begun from {address}."),
        bytes => format!("{bytes} bytes of the answer from {address} had arrived."),
    };
    let content = JsonText::of(&[serde_json::json!({"type": "text", "text": text})]).ok();
    Some(Outcome { content, ..Outcome::default() })
}

/// Returns the error for a call that cannot become a request.
pub(crate) fn refused(ctx: &CallContext, invalid: InvalidRequest) -> RuntimeError {
    match invalid {
        InvalidRequest::Input(refused) => refused.of(&ctx.name),
        InvalidRequest::Settings(problem) => failed(&ctx.name, &problem),
    }
}

fn failed(name: &str, problem: &str) -> RuntimeError {
    RuntimeError::Failed {
        id: name.to_owned(),
        message: format!("{name} failed: {problem}"),
        outcome: None,
    }
}
