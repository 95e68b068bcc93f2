//! Executors without external dependencies, for tests (RTFS capability system §9).

use std::any::{Any, TypeId};
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use async_trait::async_trait;
use parking_lot::Mutex;
use rtfs::Value;

use crate::call::CallContext;
use crate::call::stream::{StreamHandle, not_a_stream};
use crate::error::{RuntimeError, RuntimeResult};
use crate::executor::CapabilityExecutor;
use crate::notice::{Notice, Progress};
use crate::span::SpanKind;

use crate::manifest::CapabilityManifest;
use crate::outcome::Outcome;
use crate::payload::Payload;
use crate::provider::{CustomProvider, ProviderType};
use crate::{CapabilityMarketplace, Limits};

/// How long a test waits for a condition. Only a failure takes so long, so it allows for a machine that
/// is busy with other work.
pub const TEST_TIMEOUT: Duration = Duration::from_secs(120);

/// Waits until a condition is true; panics with `what` if it does not become true.
///
/// # Panics
/// It does not hold within [`TEST_TIMEOUT`].
pub async fn eventually(what: &str, mut is_so: impl FnMut() -> bool) {
    let deadline = Instant::now() + TEST_TIMEOUT;
    while !is_so() {
        assert!(Instant::now() < deadline, "not in time: {what}");
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
}

/// Runs [`Canned`] providers.
#[derive(Debug, Default)]
pub struct MockExecutor;

/// The behaviour of a canned capability.
#[derive(Clone, Debug)]
pub enum Canned {
    /// Answers with its input.
    Echoes,
    /// Answers with this value.
    Answers(Value),
    /// Fails with this message.
    Fails(String),
    /// Fails as unreachable this many more times, then answers with its input.
    Unreachable(Arc<AtomicU32>),
    /// Never answers; ends when it is cancelled or late, as every executor should.
    Hangs,
    /// Never answers, and ignores its deadline and cancellation.
    Sticks,
    /// Panics.
    Panics,
    /// Reports this many steps of progress, then answers nil.
    Reports(u32),
    /// Makes this many spans with this name and the codes 0, 1, …, then answers nil.
    Spans(i32, String),
    /// Is a stream.
    Streams(CannedStream),
}

/// A stream with known items that records how it is used.
#[derive(Clone, Debug, Default)]
pub struct CannedStream {
    /// The items in order.
    pub items: Vec<Value>,
    /// Whether the stream waits forever after the last item, instead of ending.
    pub hangs: bool,
    /// The recorded operations: `open INPUT`, `next`, `send VALUE`, `close`, `drop`.
    pub log: Arc<Mutex<Vec<String>>>,
}

struct OpenCanned {
    stream: CannedStream,
    given: AtomicUsize,
}

impl CannedStream {
    fn note(&self, what: impl Into<String>) {
        self.log.lock().push(what.into());
    }
}

#[async_trait]
impl StreamHandle for OpenCanned {
    async fn next(&self) -> Option<RuntimeResult<Payload>> {
        let at = self.given.fetch_add(1, Ordering::Relaxed);
        self.stream.note("next");
        let item = self.stream.items.get(at).cloned();
        if item.is_none() && self.stream.hangs {
            std::future::pending::<()>().await;
        }
        item.map(|item| Ok(Payload::from_value(item)))
    }

    async fn send(&self, value: Payload) -> RuntimeResult<()> {
        self.stream.note(format!("send {:?}", value.value()?));
        Ok(())
    }

    async fn close(&self) {
        self.stream.note("close");
    }
}

impl Drop for OpenCanned {
    fn drop(&mut self) {
        self.stream.note("drop");
    }
}

impl Canned {
    /// Returns the manifest of a capability with this behaviour.
    pub fn manifest(self, id: &str) -> CapabilityManifest {
        CapabilityManifest::new(
            id,
            format!("The canned capability {id}"),
            ProviderType::Custom(Arc::new(self)),
        )
    }
}

impl CustomProvider for Canned {
    fn as_any(&self) -> &dyn Any {
        self
    }

    fn kind(&self) -> &'static str {
        "canned"
    }
}

#[async_trait]
impl CapabilityExecutor for MockExecutor {
    fn provider_type_id(&self) -> TypeId {
        TypeId::of::<Canned>()
    }

    async fn execute(
        &self,
        provider: &ProviderType,
        inputs: &Payload,
        ctx: &CallContext,
    ) -> RuntimeResult<Outcome> {
        let id = || ctx.name.to_string();
        match provider.settings::<Canned>()? {
            Canned::Echoes => Ok(Outcome { structured: Some(inputs.clone()), ..Outcome::default() }),
            Canned::Answers(value) => Ok(Outcome::from_value(value.clone())),
            Canned::Fails(message) => {
                Err(RuntimeError::Failed { id: id(), message: message.clone(), outcome: None })
            }
            Canned::Unreachable(times) => {
                let less = |left: u32| left.checked_sub(1);
                match times.fetch_update(Ordering::Relaxed, Ordering::Relaxed, less) {
                    Ok(_) => {
                        let reason = "no answer".to_owned();
                        Err(RuntimeError::Unavailable { id: id(), reason, source: None })
                    }
                    Err(_) => Ok(Outcome { structured: Some(inputs.clone()), ..Outcome::default() }),
                }
            }
            Canned::Hangs => tokio::select! {
                () = ctx.scope.cancellation.cancelled() => Err(RuntimeError::Cancelled { id: id(), outcome: None }),
                () = tokio::time::sleep_until(ctx.deadline) => {
                    Err(RuntimeError::TimedOut { id: id(), limit: ctx.timeout, outcome: None })
                }
            },
            Canned::Sticks => std::future::pending().await,
            #[expect(clippy::panic, reason = "the panic is what a test asks for")]
            Canned::Panics => panic!("a canned panic"),
            Canned::Reports(steps) => {
                for step in 1..=*steps {
                    let progress = f64::from(step);
                    let total = Some(f64::from(*steps));
                    ctx.scope.notices.send(Notice::Progress(Progress {
                        progress,
                        total,
                        message: None,
                    }));
                    tokio::task::yield_now().await;
                }
                Ok(Outcome::from_value(Value::Nil))
            }
            Canned::Spans(count, name) => {
                for code in 0..*count {
                    let mut span = ctx.scope.notices.begin_span(SpanKind::Request, || name.clone());
                    span.set_code(code);
                }
                Ok(Outcome::from_value(Value::Nil))
            }
            Canned::Streams(stream) => Ok(Outcome::from_value(
                Value::vector(stream.items.clone())
                    .map_err(|deep| RuntimeError::Generic(deep.to_string()))?,
            )),
        }
    }

    async fn open(
        &self,
        provider: &ProviderType,
        inputs: &Payload,
        ctx: &CallContext,
    ) -> RuntimeResult<Box<dyn StreamHandle>> {
        let Canned::Streams(stream) = provider.settings::<Canned>()? else {
            return Err(not_a_stream(ctx));
        };
        stream.note(format!("open {:?}", inputs.value()?));
        Ok(Box::new(OpenCanned { stream: stream.clone(), given: AtomicUsize::new(0) }))
    }
}

/// Returns a marketplace of canned capabilities.
///
/// # Panics
/// If an id is used twice.
pub fn marketplace<'a>(
    limits: Limits,
    canned: impl IntoIterator<Item = (&'a str, Canned)>,
) -> Arc<CapabilityMarketplace> {
    let marketplace = CapabilityMarketplace::new(limits);
    #[expect(clippy::expect_used, reason = "a fixture that cannot be made is a broken test")]
    {
        marketplace.register_executor(Arc::new(MockExecutor)).expect("the first executor");
        let mut builder = marketplace.builder(marketplace.snapshot().limits().clone());
        for (id, canned) in canned {
            builder.capability(canned.manifest(id)).expect("ids are unique");
        }
        marketplace.replace(builder.build());
    }
    Arc::new(marketplace)
}
