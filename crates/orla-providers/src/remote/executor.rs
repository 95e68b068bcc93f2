//! Runs calls of [`RemoteRTFSCapability`] providers.

use std::any::TypeId;
use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::AtomicUsize;
use std::time::Duration;

use async_trait::async_trait;
use orla_marketplace::{
    CallContext, CapabilityExecutor, CapabilityManifest, Outcome, Payload, ProviderStatus, ProviderType,
    RemoteRTFSCapability, RuntimeError, RuntimeResult,
};
use parking_lot::RwLock;
use reqwest::Url;

use super::{answer, request};
use crate::http::{Clients, HttpLimits, Stage, failure, host_of, read_body};
use crate::sign_in::{SignIns, Unanswered};
use crate::span::span_of;

/// How much longer than the call's own time to wait. The other instance knows the deadline too, and
/// returns the output so far.
const GRACE: Duration = Duration::from_millis(250);
/// The maximum number of parsed endpoints that are cached.
const MAX_KNOWN: usize = 1024;

/// Runs [`RemoteRTFSCapability`] providers (RTFS capability system §3.3).
///
/// Connections are pooled by origin and live as long as the executor. A call is sent once. Dropping the
/// call's future ends its request, and with it the call at the other instance.
pub struct RemoteRTFSExecutor {
    clients: Arc<Clients>,
    sign_ins: SignIns,
    /// The parsed endpoints, by their text. Parsing one takes longer than all other steps before a call
    /// is sent.
    known: RwLock<HashMap<String, Arc<Endpoint>>>,
}

/// The target of calls.
#[derive(Debug)]
struct Endpoint {
    url: Url,
    /// The host, for messages.
    host: String,
}

impl RemoteRTFSExecutor {
    /// Creates an executor with the default limits. No connection is opened before the first call.
    pub fn new() -> Self {
        Self {
            clients: Arc::new(Clients::new(HttpLimits::default())),
            sign_ins: SignIns::default(),
            known: RwLock::default(),
        }
    }

    /// Sets the sign-ins whose tokens the requests use.
    #[must_use]
    pub fn with_sign_ins(self, sign_ins: SignIns) -> Self {
        Self { sign_ins, ..self }
    }

    /// Returns a parsed endpoint, parsed once.
    ///
    /// # Errors
    /// It leads nowhere; see [`request::url_of`].
    fn endpoint(&self, text: &str) -> Result<Arc<Endpoint>, String> {
        // The guarded data is always consistent: a panic leaves no partial change.
        if let Some(known) = self.known.read().get(text) {
            return Ok(Arc::clone(known));
        }
        let url = request::url_of(text)?;
        let endpoint = Arc::new(Endpoint { host: host_of(&url), url });
        let mut known = self.known.write();
        // Configurations change. An endpoint that is still called is parsed again.
        if known.len() >= MAX_KNOWN {
            known.clear();
        }
        known.insert(text.to_owned(), Arc::clone(&endpoint));
        Ok(endpoint)
    }
}

impl Default for RemoteRTFSExecutor {
    fn default() -> Self {
        Self::new()
    }
}

#[async_trait]
impl CapabilityExecutor for RemoteRTFSExecutor {
    fn provider_type_id(&self) -> TypeId {
        TypeId::of::<RemoteRTFSCapability>()
    }

    async fn execute(
        &self,
        provider: &ProviderType,
        inputs: &Payload,
        ctx: &CallContext,
    ) -> RuntimeResult<Outcome> {
        let remote: &RemoteRTFSCapability = provider.settings()?;
        let failed = |problem: String| RuntimeError::Failed {
            id: ctx.name.to_string(),
            message: format!("{} failed: {problem}", ctx.name),
            outcome: None,
        };
        let endpoint = self.endpoint(&remote.endpoint).map_err(failed)?;
        let host = &*endpoint.host;
        let hops = ctx.scope.hops.through(remote.options.name.as_deref().unwrap_or(host));
        let hops = hops.map_err(|what| RuntimeError::Limit { id: ctx.name.to_string(), what })?;
        let shortened;
        let ctx = match remote.timeout_ms {
            0 => ctx,
            limit => {
                shortened = ctx.shortened(Duration::from_millis(limit));
                &shortened
            }
        };
        let capability = remote.options.capability.as_deref().unwrap_or(&ctx.name);
        let url = endpoint.url.clone();
        let request =
            request::of_call(remote, url, capability, inputs.json()?, &hops, ctx.deadline, ctx);
        let request = request.map_err(failed)?;
        let client = self.clients.configured().map_err(failed)?;
        let exchange = async {
            let mut span = span_of(&ctx.scope.notices, &request);
            let response = match remote.options.sign_in.as_deref() {
                None => client.execute(request).await.map_err(Unanswered::Http),
                Some(key) => {
                    let sender = self.sign_ins.sender(key, &endpoint.url, client, Some(ctx));
                    sender.map_err(failed)?.execute_for(ctx, request).await
                }
            };
            let response = response.map_err(|unanswered| match unanswered {
                Unanswered::Http(err) => failure(&ctx.name, host, err, Stage::Asking),
                Unanswered::Token(error) => failed(format!("{host}: {error}")),
            })?;
            let (status, arrived) = (response.status(), AtomicUsize::new(0));
            span.set_code(status.as_u16().into());
            let limit = remote.options.max_answer_bytes;
            let body = read_body(limit, &ctx.name, host, response, &arrived).await?;
            let has_token = remote.auth_token.is_some() || remote.options.sign_in.is_some();
            answer::read(answer::Request { ctx, host, capability, has_token }, status, &body)
        };
        ctx.run_remotely(GRACE, exchange).await
    }

    /// Types of capabilities from another instance's catalogue are checked there.
    fn checks_types(&self, manifest: &CapabilityManifest) -> bool {
        !manifest.provider.via().is_empty()
    }

    fn status(&self, provider: &ProviderType) -> ProviderStatus {
        let mut status = ProviderStatus::default();
        status.source = provider.settings().ok().map(RemoteRTFSCapability::address);
        status
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_endpoint_is_read_once_and_not_all_are_remembered_for_ever() {
        let executor = RemoteRTFSExecutor::new();
        let first = executor.endpoint("http://a:1").unwrap();
        assert_eq!((first.url.as_str(), &*first.host), ("http://a:1/rtfs", "a:1"));
        assert!(Arc::ptr_eq(&first, &executor.endpoint("http://a:1").unwrap()));
        assert!(executor.endpoint("a:1").is_err());
        for port in 2..=MAX_KNOWN + 2 {
            executor.endpoint(&format!("http://a:{port}")).unwrap();
        }
        assert!(executor.known.read().len() <= MAX_KNOWN);
    }
}
