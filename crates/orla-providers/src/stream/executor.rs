//! Opens streams, and runs calls of them.

use std::any::TypeId;
use std::sync::Arc;

use async_trait::async_trait;
use orla_marketplace::schema::{Validator, json_schema_of};
use orla_marketplace::{
    CallContext, CapabilityExecutor, CapabilityManifest, JsonText, Outcome, Payload, ProviderStatus,
    ProviderType, RuntimeError, RuntimeResult, StreamCapabilityImpl, StreamHandle, StreamTransport,
    StreamType,
};
use orla_process::Instance;
use serde_json::{Value as Json, json};
use tokio::time::timeout_at;

use super::collect::{self, FOR, LIMIT, MAX_LIMIT};
use super::connect::{Connector, failed, sandbox_of};
use super::handle::Opened;
use crate::http::{Clients, HttpLimits};

/// Opens [`StreamCapabilityImpl`] providers (RTFS capability system §3.2), and collects items for a call.
pub struct StreamExecutor {
    clients: Arc<Clients>,
    instance: Arc<Instance>,
}

impl StreamExecutor {
    /// Creates an executor whose programs outlive this program if it is killed. Nothing is opened before
    /// the first use.
    pub fn new() -> Self {
        Self::with_instance(Instance::unguarded())
    }

    /// Creates an executor whose programs carry the mark of `instance`. Nothing is opened before the
    /// first use.
    pub fn with_instance(instance: Arc<Instance>) -> Self {
        Self { clients: Arc::new(Clients::new(HttpLimits::default())), instance }
    }

    async fn opened(
        &self,
        stream: &StreamCapabilityImpl,
        input: &JsonText,
        ctx: &CallContext,
    ) -> RuntimeResult<Opened> {
        check_opening(stream, input, ctx)?;
        let (clients, instance) = (Arc::clone(&self.clients), Arc::clone(&self.instance));
        let connector = Connector::new(stream, input, ctx, clients, instance)?;
        let connected = tokio::select! {
            biased;
            () = ctx.scope.cancellation.cancelled() => {
                return Err(RuntimeError::Cancelled { id: ctx.name.to_string(), outcome: None });
            }
            done = timeout_at(ctx.deadline, connector.connect(None)) => done.map_err(|_| {
                RuntimeError::TimedOut { id: ctx.name.to_string(), limit: ctx.timeout, outcome: None }
            })??,
        };
        Opened::new(stream, connector, connected)
    }
}

impl Default for StreamExecutor {
    fn default() -> Self {
        Self::new()
    }
}

#[async_trait]
impl CapabilityExecutor for StreamExecutor {
    fn provider_type_id(&self) -> TypeId {
        TypeId::of::<StreamCapabilityImpl>()
    }

    async fn execute(
        &self,
        provider: &ProviderType,
        inputs: &Payload,
        ctx: &CallContext,
    ) -> RuntimeResult<Outcome> {
        let stream: &StreamCapabilityImpl = provider.settings()?;
        let wanted = collect::read(inputs.json()?, ctx)?;
        let opened = self.opened(stream, &wanted.input, ctx).await?;
        let is_answered = stream.stream_type == StreamType::Transform
            && stream.options.transport == StreamTransport::WebSocket;
        let (kind, tells) = (stream.stream_type, stream.supports_progress);
        let collecting = collect::collect(&opened, kind, is_answered, tells, wanted, ctx);
        let collected = timeout_at(ctx.deadline, collecting).await.unwrap_or_else(|_| {
            Err(RuntimeError::TimedOut { id: ctx.name.to_string(), limit: ctx.timeout, outcome: None })
        });
        opened.close().await;
        collected
    }

    fn check_input(
        &self,
        provider: &ProviderType,
        inputs: &Payload,
        ctx: &CallContext,
    ) -> RuntimeResult<()> {
        check_opening(provider.settings()?, &collect::read(inputs.json()?, ctx)?.input, ctx)
    }

    async fn open(
        &self,
        provider: &ProviderType,
        inputs: &Payload,
        ctx: &CallContext,
    ) -> RuntimeResult<Box<dyn StreamHandle>> {
        let stream: &StreamCapabilityImpl = provider.settings()?;
        let input = inputs.json()?;
        // The input of a transform is the data to transform.
        let all = (stream.stream_type == StreamType::Transform && input.as_str().starts_with('['))
            .then(|| values(input))
            .transpose()
            .map_err(|problem| failed(&ctx.name, &problem))?;
        let Some(all) = all else { return Ok(Box::new(self.opened(stream, input, ctx).await?)) };
        let empty = Payload::empty();
        let opened = self.opened(stream, empty.json()?, ctx).await?;
        opened.feed(all).await?;
        Ok(Box::new(opened))
    }

    /// Returns the input of a call is checked strictly, and items individually.
    fn checks_types(&self, _: &CapabilityManifest) -> bool {
        true
    }

    fn status(&self, provider: &ProviderType) -> ProviderStatus {
        let mut status = ProviderStatus::default();
        let stream = provider.settings::<StreamCapabilityImpl>().ok();
        status.source = stream.and_then(|stream| match &*stream.provider {
            ProviderType::Http(http) => Some(http.address()),
            ProviderType::Plugin(program) => Some(program.plugin_path.clone()),
            _ => None,
        });
        if stream.is_some_and(|stream| matches!(&*stream.provider, ProviderType::Plugin(_))) {
            let sandboxes = self.instance.sandboxes();
            let sandbox = stream.and_then(|stream| sandbox_of(stream, sandboxes));
            status.sandbox = Some(sandboxes.status_of(sandbox.as_ref()));
        }
        status
    }
}

/// Checks the input that a stream is opened with.
fn check_opening(
    stream: &StreamCapabilityImpl,
    input: &JsonText,
    ctx: &CallContext,
) -> RuntimeResult<()> {
    let Some(schema) = &stream.options.opening else { return Ok(()) };
    let schema = Validator::compile(schema).map_err(|err| failed(&ctx.name, &err.to_string()))?;
    let checked = schema.check(input.as_str(), "input");
    checked.map_err(|violations| RuntimeError::InvalidInput { id: ctx.name.to_string(), violations })
}

/// Returns the elements of a list.
fn values(list: &JsonText) -> Result<Vec<Payload>, String> {
    let raw: Vec<&serde_json::value::RawValue> =
        serde_json::from_str(list.as_str()).map_err(|err| err.to_string())?;
    Ok(raw.iter().map(|raw| Payload::from_json(list.slice(raw))).collect())
}

/// Returns the JSON Schema of the input of a call of this stream.
pub fn call_schema(stream: &StreamCapabilityImpl) -> Json {
    let mut properties = json!({});
    properties["input"] = match &stream.options.opening {
        Some(opening) => json_schema_of(opening),
        None => json!({"description": "What the stream is opened with."}),
    };
    if stream.stream_type.takes() {
        let items = stream.input_schema.as_ref().map_or(json!({}), json_schema_of);
        properties["send"] = json!({"type": "array", "items": items, "description": "What it is sent."});
    }
    if stream.stream_type.gives() {
        properties["limit"] = json!({"type": "integer", "minimum": 1, "maximum": MAX_LIMIT,
            "description": format!("How many items to collect at most; {LIMIT} by default.")});
        properties["for_ms"] = json!({"type": "integer", "minimum": 0,
            "description": format!("How long to collect at most, in milliseconds; {} by default.", FOR.as_millis())});
    }
    json!({"type": "object", "properties": properties, "additionalProperties": false})
}
