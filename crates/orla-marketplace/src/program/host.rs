//! Fulfils the requests of a program through the marketplace.

use std::borrow::Cow;
use std::sync::Arc;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use rtfs::{CallOptions, Error, Instant, Map, Position, Request, Ticket, Value, Wait};
use serde_json::Value as Json;
use tokio::time::sleep;
use tokio_util::sync::CancellationToken;

use super::checkpoint::JournalCheckpoint;
use super::progress::Reporter;
use super::streams::Streams;
use crate::call::Call;
use crate::call::{CallContext, Checkpoint};
use crate::catalog::{Catalog, Entry};
use crate::discovery;
use crate::error::{RuntimeError, Violation, millis_up, unknown};
use crate::journal::RunRequest;
use crate::json::value_from_json;
use crate::marketplace::CapabilityMarketplace;
use crate::notice::{LogLevel, Notice, NoticeSink};
use crate::payload::{JsonText, Payload};
use crate::provider::ProviderType;
use crate::trace::{Trace, TraceSink};

/// The most capabilities that `(capabilities "words")` returns.
const MAX_FOUND: usize = 100;

/// The host of one run.
#[derive(Clone, Copy)]
pub(super) struct Host<'a> {
    pub(super) market: &'a CapabilityMarketplace,
    pub(super) ctx: &'a CallContext,
    /// The snapshot that the program uses for its whole run.
    pub(super) catalog: &'a Arc<Catalog>,
    pub(super) trace: &'a TraceSink,
    pub(super) streams: &'a Streams,
    pub(super) reporter: &'a Reporter,
}

impl<'a> Host<'a> {
    /// Creates a nested call of the program.
    pub(super) fn within(&self, id: &str) -> Call {
        let mut call = Call::within(self.ctx, id);
        call.scope.catalog.get_or_insert_with(|| Arc::clone(self.catalog));
        call
    }

    /// The answer to a request.
    pub(super) async fn answer(
        self,
        ticket: Ticket,
        request: Request,
        at: Option<Position>,
        journaled: Option<RunRequest>,
        token: CancellationToken,
    ) -> Result<Value, Error> {
        match request {
            Request::Call { id, input, options } => {
                self.call(id.to_string(), input, options, at, journaled, token).await
            }
            Request::Search { query } => {
                let found = self.catalog().await;
                let found =
                    discovery::search(&found, &query, MAX_FOUND, self.ctx.scope.principal.as_ref());
                let all = found.hits.iter().map(|hit| described(&hit.entry)).collect();
                Value::vector(all).map_err(|deep| Error::new("failed", deep.to_string()))
            }
            Request::Describe { id } => {
                let id = id.as_str().to_owned();
                let catalog = self.catalog().await;
                let (id, principal) = (id.as_str(), self.ctx.scope.principal.as_ref());
                catalog.visible(principal, id).map(|entry| described(entry)).ok_or_else(|| {
                    let similar = catalog.similar_for(principal, id);
                    let unknown = RuntimeError::Unknown { similar, id: id.to_owned() };
                    failure(id, &with_ids(&catalog, unknown))
                })
            }
            Request::Open { id, input } => {
                self.open(ticket, id.to_string(), input, at, journaled, token).await
            }
            Request::Wait(wait) => unless_cancelled(&token, self.wait(ticket, &wait)).await,
            Request::Next { stream } => unless_cancelled(&token, self.streams.next(stream)).await,
            Request::Send { stream, value } => {
                unless_cancelled(&token, self.streams.send(stream, value)).await
            }
            Request::Close { stream } => {
                self.streams.finish(stream).await;
                Ok(Value::Nil)
            }
            _ => Err(Error::new("unavailable", "this host has no answer to that")),
        }
    }

    async fn call(
        self,
        id: String,
        input: Value,
        options: CallOptions,
        at: Option<Position>,
        journaled: Option<RunRequest>,
        token: CancellationToken,
    ) -> Result<Value, Error> {
        let began = tokio::time::Instant::now();
        let traced = self.trace.is_wanted().then(|| input.clone());
        let input = match input {
            Value::Vector(positional) => self.name_arguments(&id, positional.items()).await,
            input => input,
        };
        let mut call = self.within(&id).with(Payload::from_value(input));
        call.scope.checkpoint = self.checkpoint(journaled, &token);
        call.scope.cancellation = token;
        call.scope.notices = self.notices_of(&id);
        call.scope.retries = options.retries;
        if let Some(ms) = options.timeout_ms {
            let wanted = Duration::from_millis(ms);
            call.timeout = Some(call.timeout.map_or(wanted, |left| left.min(wanted)));
        }
        let mut outcome = self.market.call(call).await;
        if let Err(unknown @ RuntimeError::Unknown { .. }) = outcome {
            outcome = Err(with_ids(&*self.catalog().await, unknown));
        }
        let result = outcome.and_then(|outcome| outcome.value()).map_err(|error| failure(&id, &error));
        self.reporter.call(|| match &result {
            Ok(_) => format!("called {id}"),
            Err(error) => format!("called {id}: {}", error.kind),
        });
        if let Some(input) = traced {
            let (result, duration) = (result.clone(), began.elapsed());
            self.trace.send(Trace::Called { id, input, result, duration, at });
        }
        result
    }

    /// Returns the checkpoint that records the beginning of a call in the run's journal, if there is
    /// one.
    pub(super) fn checkpoint(
        self,
        journaled: Option<RunRequest>,
        token: &CancellationToken,
    ) -> Option<Arc<dyn Checkpoint>> {
        let journal = Arc::clone(self.ctx.scope.journal.as_ref()?);
        Some(Arc::new(JournalCheckpoint { journal, request: journaled?, token: token.clone() }))
    }

    /// Returns whether a call that may have been made can be repeated, according to its current
    /// capability.
    pub(super) async fn may_repeat(self, request: &Request) -> bool {
        let (Request::Call { id, .. } | Request::Open { id, .. }) = request else { return true };
        let catalog = self.catalog().await;
        let entry = catalog.visible(self.ctx.scope.principal.as_ref(), id.as_str());
        // A missing capability is not called.
        entry.is_none_or(|entry| entry.manifest.is_idempotent())
    }

    /// The answer to a long wait: a timer, an event or another task.
    async fn wait(self, ticket: Ticket, wait: &Wait) -> Result<Value, Error> {
        let name = match (&self.ctx.scope.journal, wait) {
            (Some(journal), wait) => return journal.wait(ticket, wait).await,
            (None, Wait::Until(instant)) => {
                until(instant).await;
                return Ok(Value::Nil);
            }
            (None, Wait::Task(_)) => "await-task",
            (None, _) => "await-event",
        };
        let message =
            format!("`{name}` is only there in a task: run the program as one (`orla task run`)");
        Err(Error::new("unavailable", message))
    }

    /// Returns the notices of a nested call for the run's caller: messages unchanged, and progress as
    /// part of the run's own, unless the caller has a sink for each call.
    fn notices_of(&self, id: &str) -> NoticeSink {
        if let Some(own) = self.ctx.scope.notices.of_call(id) {
            return own;
        }
        if !self.ctx.scope.notices.is_wanted() {
            return NoticeSink::default();
        }
        let (notices, reporter) = (self.ctx.scope.notices.clone(), self.reporter.clone());
        let id = id.to_owned();
        NoticeSink::new(move |notice| match notice {
            Notice::Log { .. } => notices.send(notice),
            // The text belongs to that call, not to the run.
            Notice::Text(_) => {}
            Notice::Progress(progress) => reporter.call(|| match (progress.message, progress.total) {
                (Some(message), _) => format!("{id}: {message}"),
                (None, Some(total)) => format!("{id}: {} of {total}", progress.progress),
                (None, None) => format!("{id}: {}", progress.progress),
            }),
        })
    }

    /// Maps positional arguments to the property names of the capability's schema, in its order.
    async fn name_arguments(&self, id: &str, positional: &[Value]) -> Value {
        let catalog = self.catalog().await;
        let entry = catalog.visible(self.ctx.scope.principal.as_ref(), id);
        // An agent receives a list unchanged, as data.
        let entry = entry.filter(|entry| !matches!(entry.manifest.provider, ProviderType::A2A(_)));
        let schema = entry.map(|entry| entry.input_schema());
        let schema = schema.and_then(|text| serde_json::from_str::<Json>(text.as_str()).ok());
        let names =
            schema.as_ref().and_then(|schema| schema.get("properties")).and_then(Json::as_object);
        let as_it_is = || Value::vector(positional.to_vec()).unwrap_or_default();
        match names {
            Some(names) if names.len() >= positional.len() => {
                let mut map = Map::new();
                for (name, value) in names.keys().zip(positional) {
                    if map.insert(Value::keyword(name.as_str()), value.clone()).is_err() {
                        return as_it_is();
                    }
                }
                Value::Map(map)
            }
            _ => as_it_is(),
        }
    }

    async fn catalog(&self) -> Arc<Catalog> {
        catalog(self.market, self.ctx).await
    }

    pub(super) fn log(&self, level: &str, message: String, data: Value) {
        let severity = match level {
            "warn" => LogLevel::Warning,
            level => level.parse().unwrap_or(LogLevel::Info),
        };
        tracing::debug!(capability = &*self.ctx.name, level, message, data = %data, "the program says");
        let text = match &data {
            Value::Nil => message.clone(),
            data => format!("{message} {data:?}"),
        };
        self.ctx.scope.notices.send(Notice::Log { level: severity, message: text.into() });
        self.trace.send(Trace::Logged { level: level.to_owned(), message, data });
    }
}

/// Waits until an instant, by the system clock.
pub async fn until(instant: &Instant) {
    /// The clock may be set meanwhile.
    const MAX_SLEEP: Duration = Duration::from_secs(60);
    let since = Duration::new(
        u64::try_from(instant.unix_seconds()).unwrap_or_default(),
        instant.subsec_nanoseconds(),
    );
    loop {
        let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        match since.checked_sub(now) {
            Some(left) if !left.is_zero() => sleep(left.min(MAX_SLEEP)).await,
            _ => return,
        }
    }
}

async fn unless_cancelled(
    token: &CancellationToken,
    answer: impl Future<Output = Result<Value, Error>>,
) -> Result<Value, Error> {
    let cancelled = || Error::new("cancelled", "the call was cancelled");
    token.run_until_cancelled(answer).await.unwrap_or_else(|| Err(cancelled()))
}

/// Returns the catalogue that a call sees.
pub(super) async fn catalog(market: &CapabilityMarketplace, ctx: &CallContext) -> Arc<Catalog> {
    match &ctx.scope.catalog {
        Some(catalog) => Arc::clone(catalog),
        None => {
            market.prepare_listing().await;
            market.snapshot()
        }
    }
}

/// Returns a capability's description as data.
fn described(entry: &Entry) -> Value {
    value_from_json(&discovery::description(entry).to_string()).unwrap_or_default()
}

/// Returns the same error, but suggests ids, which programs use, instead of MCP names.
fn with_ids(catalog: &Catalog, error: RuntimeError) -> RuntimeError {
    match error {
        RuntimeError::Unknown { id, similar } => {
            let id_of = |name: String| match catalog.get(&name) {
                Some(entry) => entry.manifest.id.clone(),
                None => name,
            };
            RuntimeError::Unknown { id, similar: similar.into_iter().map(id_of).collect() }
        }
        error => error,
    }
}

/// Returns the error of a call in the form for `catch`.
pub(super) fn failure(id: &str, error: &RuntimeError) -> Error {
    if let RuntimeError::Structured { error, .. } = error {
        return error.through(id);
    }
    let kind: Cow<'static, str> = match error.kind() {
        // The capability is at fault, as its caller sees it.
        "panicked" => "failed".into(),
        kind => kind.into(),
    };
    let data = match error {
        RuntimeError::InvalidInput { violations, .. }
        | RuntimeError::InvalidOutput { violations, .. } => {
            Value::vector(violations.iter().map(violation).collect()).unwrap_or_default()
        }
        RuntimeError::Denied { permission, .. } => permission.as_str().into(),
        RuntimeError::Quota { limit, retry_after, .. } => {
            let ms = i64::try_from(millis_up(*retry_after)).unwrap_or(i64::MAX);
            let members = [("limit", limit.as_str().into()), ("retry_after_ms", Value::Int(ms))];
            map_of(members)
        }
        RuntimeError::Refused { code, message, data, .. } => refusal(*code, message, data.as_ref()),
        RuntimeError::Unknown { similar, .. } => {
            Value::vector(similar.iter().map(|id| id.as_str().into()).collect()).unwrap_or_default()
        }
        error => error.outcome().and_then(|outcome| outcome.value().ok()).unwrap_or_default(),
    };
    let message = match error {
        // The language has no tools.
        RuntimeError::Unknown { id, similar } => unknown("capability", id, similar),
        error => error.to_string(),
    };
    Error::new(kind, message).with_capability(id).with_data(data)
}

/// Returns the content of an MCP server's error.
fn refusal(code: i64, message: &str, data: Option<&JsonText>) -> Value {
    let data = data.and_then(|data| value_from_json(data.as_str()).ok()).unwrap_or_default();
    map_of([("code", Value::Int(code)), ("message", message.into()), ("data", data)])
}

fn violation(violation: &Violation) -> Value {
    let Violation { path, expected, got } = violation;
    map_of(
        [("path", path), ("expected", expected), ("got", got)]
            .map(|(key, text)| (key, (&**text).into())),
    )
}

fn map_of(members: impl IntoIterator<Item = (&'static str, Value)>) -> Value {
    let mut map = Map::new();
    for (key, value) in members {
        // A value that is too deep for a map is left out.
        let _ = map.insert(Value::keyword(key), value);
    }
    Value::Map(map)
}
