//! Sources as resources that can be read and subscribed to.

use std::collections::{HashMap, VecDeque};
use std::sync::{Arc, Weak};
use std::time::Duration;

use async_trait::async_trait;
use orla_marketplace::{
    Call, CallContext, CapabilityMarketplace, Entry, Item, JsonText, OpenStream, ProviderType,
    Registration, RuntimeError, Source, StreamType, Subject, Surface, SurfaceError, SurfaceNotice,
};
use parking_lot::Mutex;
use serde_json::json;
use tokio::runtime::Handle;
use tokio::sync::{broadcast, watch};
use tokio::time::{Instant, timeout_at};
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

/// The prefix of the address of a stream.
const SCHEME: &str = "stream://";
/// The number of items that a resource shows: the newest of a stream with subscribers.
const SHOWN: usize = 100;
/// The maximum number of bytes of these items.
const SHOWN_BYTES: usize = 256 * 1024;
/// How long a stream without subscribers is read.
const READ: Duration = Duration::from_secs(1);
/// The maximum number of subscriptions.
const MAX_SUBSCRIPTIONS: usize = 1024;
/// The maximum number of waiting notices.
const NOTICES: usize = 256;

/// The sources of an instance, as resources: `stream://ID`.
///
/// # How it works
///
/// Reading a resource opens its stream and returns the items of one second. A subscription keeps the
/// stream open: the newest items are kept, every item is reported as an update, and reading returns the
/// kept items. Streams are opened through the marketplace, so a caller that may not call a capability
/// cannot read it either.
pub struct Streams {
    state: Arc<State>,
    changes: watch::Sender<u64>,
}

struct State {
    marketplace: Weak<CapabilityMarketplace>,
    has_sources: Mutex<bool>,
    subscribed: Mutex<HashMap<String, Arc<Subscribed>>>,
    notices: broadcast::Sender<SurfaceNotice>,
    tasks: TaskTracker,
    stop: CancellationToken,
}

/// A stream that is kept open.
struct Subscribed {
    newest: Mutex<Newest>,
    stop: CancellationToken,
}

#[derive(Default)]
struct Newest {
    items: VecDeque<JsonText>,
    bytes: usize,
    ended: Option<End>,
}

impl Newest {
    fn push(&mut self, item: &JsonText) {
        // The item is copied, because it may be a part of a larger buffer.
        let Ok(item) = JsonText::parse(item.as_str().to_owned()) else { return };
        self.bytes += item.as_str().len();
        self.items.push_back(item);
        while self.items.len() > SHOWN || (self.bytes > SHOWN_BYTES && self.items.len() > 1) {
            self.bytes -= self.items.pop_front().map_or(0, |item| item.as_str().len());
        }
    }

    fn text(&self) -> String {
        let items: Vec<&str> = self.items.iter().map(JsonText::as_str).collect();
        let ended = match &self.ended {
            None => String::new(),
            Some(End::Orderly) => r#","ended_by":"end""#.to_owned(),
            Some(End::Error(error)) => format!(r#","ended_by":"error","error":{}"#, json!(error)),
        };
        format!(r#"{{"items":[{}]{ended}}}"#, items.join(","))
    }
}

/// The reason why a stream has no more items.
enum End {
    Orderly,
    Error(String),
}

impl Streams {
    /// Creates the resources of this marketplace, without keeping it alive.
    pub fn new(marketplace: &Arc<CapabilityMarketplace>) -> Self {
        Self {
            state: Arc::new(State {
                marketplace: Arc::downgrade(marketplace),
                has_sources: Mutex::default(),
                subscribed: Mutex::default(),
                notices: broadcast::Sender::new(NOTICES),
                tasks: TaskTracker::new(),
                stop: CancellationToken::new(),
            }),
            changes: watch::Sender::new(0),
        }
    }

    /// Records whether there are any sources: without sources, there are no resources.
    pub fn load<'a>(&self, capabilities: impl IntoIterator<Item = &'a Registration>) {
        let is_any = capabilities.into_iter().any(|one| is_source(&one.manifest.provider));
        *self.state.has_sources.lock() = is_any;
    }
}

fn is_source(provider: &ProviderType) -> bool {
    matches!(provider, ProviderType::Stream(stream) if stream.stream_type == StreamType::Source)
}

#[async_trait]
impl Source for Streams {
    fn registrations(&self) -> Vec<Registration> {
        Vec::new()
    }

    fn surfaces(&self) -> Vec<Arc<dyn Surface>> {
        match *self.state.has_sources.lock() {
            true => vec![Arc::clone(&self.state) as Arc<dyn Surface>],
            false => Vec::new(),
        }
    }

    fn changes(&self) -> watch::Receiver<u64> {
        self.changes.subscribe()
    }

    fn may_serve(&self, _: &str) -> bool {
        false
    }

    fn start_eager(&self, _: bool) {}

    async fn learn(&self) {}

    async fn shutdown(&self) {
        self.state.stop.cancel();
        self.state.tasks.close();
        self.state.tasks.wait().await;
    }
}

impl State {
    fn list(&self, ctx: &CallContext) -> String {
        let Some(market) = self.marketplace.upgrade() else { return r#"{"resources":[]}"#.to_owned() };
        let catalog = market.snapshot();
        let permitted = catalog.permitted(ctx.scope.principal.as_ref());
        let sources =
            permitted.filter(|entry| entry.is_available() && is_source(&entry.manifest.provider));
        let described = |entry: &Arc<Entry>| {
            json!({"uri": format!("{SCHEME}{}", entry.manifest.id), "name": entry.name,
                "description": entry.manifest.description, "mimeType": "application/json"})
        };
        json!({"resources": sources.map(described).collect::<Vec<_>>()}).to_string()
    }

    async fn open(&self, uri: &str, ctx: &CallContext) -> Result<Arc<OpenStream>, SurfaceError> {
        let unknown = || SurfaceError::NotFound(format!("unknown resource: {uri}"));
        let id = uri.strip_prefix(SCHEME).ok_or_else(unknown)?;
        let market = self.marketplace.upgrade().ok_or_else(unknown)?;
        if !market.get(id).is_some_and(|entry| is_source(&entry.manifest.provider)) {
            return Err(unknown());
        }
        let opened = market.open(Call::within(ctx, id)).await;
        opened.map_err(|error| match error {
            RuntimeError::Unknown { .. } => unknown(),
            RuntimeError::Denied { id, permission, rule, scopes } => {
                SurfaceError::Denied { id, permission, rule, scopes: scopes.unwrap_or_default() }
            }
            other => SurfaceError::Failed(other.to_string()),
        })
    }

    async fn read(&self, uri: &str, ctx: &CallContext) -> Result<String, SurfaceError> {
        let subscribed = self.subscribed.lock().get(uri).map(Arc::clone);
        if let Some(subscribed) = subscribed {
            self.permitted(uri, ctx)?;
            return Ok(subscribed.newest.lock().text());
        }
        let stream = self.open(uri, ctx).await?;
        let (mut newest, end) = (Newest::default(), (Instant::now() + READ).min(ctx.deadline));
        while newest.items.len() < SHOWN && newest.bytes < SHOWN_BYTES {
            match timeout_at(end, stream.next()).await {
                Ok(Some(Ok(item))) => {
                    if let Ok(item) = item.json() {
                        newest.push(item);
                    }
                }
                Ok(Some(Err(error))) => {
                    newest.ended = Some(End::Error(error.to_string()));
                    break;
                }
                Ok(None) => {
                    newest.ended = Some(End::Orderly);
                    break;
                }
                Err(_) => break,
            }
        }
        stream.close().await;
        Ok(newest.text())
    }

    fn permitted(&self, uri: &str, ctx: &CallContext) -> Result<(), SurfaceError> {
        let unknown = || SurfaceError::NotFound(format!("unknown resource: {uri}"));
        let market = self.marketplace.upgrade().ok_or_else(unknown)?;
        let catalog = market.snapshot();
        let id = uri.strip_prefix(SCHEME).unwrap_or_default();
        let entry = catalog.get(id).ok_or_else(unknown)?;
        catalog.permits(ctx.scope.principal.as_ref(), entry).map_err(|denial| SurfaceError::Denied {
            id: id.to_owned(),
            rule: denial.rule(),
            permission: denial.permission,
            scopes: Vec::new(),
        })
    }

    async fn subscribe(&self, uri: &str, ctx: &CallContext) -> Result<(), SurfaceError> {
        if self.subscribed.lock().contains_key(uri) {
            return self.permitted(uri, ctx);
        }
        if self.subscribed.lock().len() >= MAX_SUBSCRIPTIONS {
            return Err(SurfaceError::Failed(format!(
                "more than {MAX_SUBSCRIPTIONS} streams are subscribed to"
            )));
        }
        let mut ctx = ctx.clone();
        // The stream outlives the request that opens it.
        ctx.scope.cancellation = CancellationToken::new();
        let stream = self.open(uri, &ctx).await?;
        let subscribed =
            Arc::new(Subscribed { newest: Mutex::default(), stop: self.stop.child_token() });
        let before = self.subscribed.lock().insert(uri.to_owned(), Arc::clone(&subscribed));
        if let Some(before) = before {
            before.stop.cancel();
        }
        let (notices, uri) = (self.notices.clone(), uri.to_owned());
        let Ok(runtime) = Handle::try_current() else { return Ok(()) };
        self.tasks.spawn_on(follow(stream, subscribed, notices, uri), &runtime);
        Ok(())
    }

    fn unsubscribe(&self, uri: &str) -> Result<(), SurfaceError> {
        match self.subscribed.lock().remove(uri) {
            Some(subscribed) => {
                subscribed.stop.cancel();
                Ok(())
            }
            None => Err(SurfaceError::NotFound(format!("there is no subscription to {uri}"))),
        }
    }
}

/// Reads a stream while it has subscribers, and reports its items.
async fn follow(
    stream: Arc<OpenStream>,
    subscribed: Arc<Subscribed>,
    notices: broadcast::Sender<SurfaceNotice>,
    uri: String,
) {
    loop {
        let item = tokio::select! {
            item = stream.next() => item,
            () = subscribed.stop.cancelled() => break,
        };
        let is_over = {
            let mut newest = subscribed.newest.lock();
            match item {
                Some(Ok(item)) => {
                    if let Ok(item) = item.json() {
                        newest.push(item);
                    }
                    false
                }
                Some(Err(error)) => {
                    newest.ended = Some(End::Error(error.to_string()));
                    true
                }
                None => {
                    newest.ended = Some(End::Orderly);
                    true
                }
            }
        };
        // There may be no reader at the moment.
        let _ = notices.send(SurfaceNotice::ResourceUpdated { uri: uri.clone() });
        if is_over {
            break;
        }
        // Yields, so that a source that never waits does not block other tasks.
        tokio::task::yield_now().await;
    }
    stream.close().await;
}

#[async_trait]
impl Surface for State {
    fn owner(&self) -> &str {
        "streams"
    }

    fn serves(&self, method: &str) -> bool {
        matches!(
            method,
            "resources/list" | "resources/read" | "resources/subscribe" | "resources/unsubscribe"
        )
    }

    async fn request(
        &self,
        method: &str,
        params: &JsonText,
        ctx: &CallContext,
    ) -> Result<JsonText, SurfaceError> {
        #[derive(serde::Deserialize)]
        struct Params {
            #[serde(default)]
            uri: String,
        }
        let params: Params = serde_json::from_str(params.as_str())
            .map_err(|err| SurfaceError::Invalid(format!("{method}: {err}")))?;
        let uri = params.uri;
        let text = match method {
            "resources/list" => self.list(ctx),
            "resources/read" => {
                let text = self.read(&uri, ctx).await?;
                json!({"contents": [{"uri": uri, "mimeType": "application/json", "text": text}]})
                    .to_string()
            }
            "resources/subscribe" => self.subscribe(&uri, ctx).await.map(|()| "{}".to_owned())?,
            "resources/unsubscribe" => self.unsubscribe(&uri).map(|()| "{}".to_owned())?,
            _ => return Err(SurfaceError::NotFound(format!("{method}: not served by streams"))),
        };
        JsonText::parse(text).map_err(|err| SurfaceError::Failed(err.to_string()))
    }

    fn item(&self, subject: Subject<'_>) -> Option<Item> {
        let Subject::Resource(uri) = subject else { return None };
        let entry = self.marketplace.upgrade()?.get(uri.strip_prefix(SCHEME)?);
        Some(match entry {
            Some(entry) => Item {
                id: entry.manifest.id.clone(),
                name: entry.name.to_string(),
                needs: entry.needs().to_vec(),
            },
            None => Item { id: uri.to_owned(), name: uri.to_owned(), needs: Vec::new() },
        })
    }

    fn notices(&self) -> Option<broadcast::Receiver<SurfaceNotice>> {
        Some(self.notices.subscribe())
    }
}
