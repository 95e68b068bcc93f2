//! MCP servers behind streamable HTTP.
//!
//! # How it works
//!
//! A [`Remote`] is a handle. Its task ([`supervisor`]) opens a [`link`] to the server at the first use,
//! and keeps it. Calls use the newest link, each in its caller's own task ([`exchange`]), over one pool
//! of connections. [`sse`](orla_mcp::framing::sse) and [`headers`] are pure. If the server has a
//! sign-in, the [`Sender`] adds the token, and [`callers`] holds the connections of callers with their
//! own sign-in.

mod callers;
mod client;
mod exchange;
#[cfg(test)]
mod fake;
mod headers;
mod link;
mod probe;
#[cfg(test)]
mod sdk_tests;
mod shared;
mod sign_in;
mod supervisor;
#[cfg(test)]
mod tests;

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use orla_marketplace::{CallContext, JsonText, ProviderStatus, ShownTo, SurfaceNotice};
use orla_mcp::answer::Offers;
use orla_mcp::wire::RpcError;
use orla_mcp::{Ask, Caller, Ending, Fault, Peer, ServerInfo};
use orla_oauth::Subject;
use orla_process::supervisor::Policy;
use parking_lot::Mutex;
use tokio::sync::{broadcast, watch};
use tokio::time::{Instant, timeout, timeout_at};
use tokio_util::sync::{CancellationToken, DropGuard};
use tokio_util::task::TaskTracker;

use super::settings::{Reach, ServerSettings};
use callers::Callers;
use exchange::{Exchange, Failure};
use link::Link;
use shared::{Acknowledgement, Setup, Shared, State};

use crate::sign_in::{Credentials, Sender, Tokens};

pub(super) use client::client;
pub use headers::encoded;
pub use probe::probe;

/// How much longer than a server's own startup timeout a listing waits for it.
const LISTING_GRACE: Duration = Duration::from_millis(500);

/// How long a server may take to acknowledge subscriptions.
const ACKNOWLEDGEMENT: Duration = Duration::from_secs(2);

/// A server behind HTTP. Dropping the last handle ends its session.
pub(super) struct Remote {
    shared: Arc<Shared>,
    /// The connections of callers, if the server distinguishes callers.
    callers: Option<Box<Callers>>,
    /// The task before its start: only the first use starts it.
    unstarted: Mutex<Option<CancellationToken>>,
    _stop: DropGuard,
}

impl fmt::Debug for Remote {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Remote({}, {})", self.shared.name, self.shared.state.borrow().name())
    }
}

/// The state that all servers behind HTTP share.
#[derive(Clone)]
pub(super) struct Context {
    pub(super) client: reqwest::Client,
    pub(super) tokens: Tokens,
    pub(super) policy: Arc<Mutex<Policy>>,
    pub(super) tasks: TaskTracker,
    pub(super) changes: watch::Sender<u64>,
    pub(super) stop: CancellationToken,
}

impl Remote {
    /// Creates a handle for a server. Sends no request yet.
    ///
    /// # Errors
    /// What is wrong with the address or the header fields.
    pub(super) fn new(settings: &ServerSettings, context: Context) -> Result<Self, String> {
        let Reach::Http { url, headers } = &settings.reach else {
            return Err("it is a process".to_owned());
        };
        let setup = Setup {
            name: settings.name.as_str().into(),
            url: reqwest::Url::parse(url).map_err(|err| format!("its address is invalid: {err}"))?,
            headers: link::configured(headers)?,
            startup_timeout: settings.startup_timeout,
        };
        let upstream = settings.auth.as_ref().map(|auth| {
            context.tokens.upstream(
                &settings.name,
                setup.url.clone(),
                auth.clone(),
                context.tasks.clone(),
            )
        });
        let callers = upstream.clone().filter(|upstream| upstream.is_per_caller());
        let callers =
            callers.map(|upstream| Box::new(Callers::new(upstream, setup.clone(), context.clone())));
        let subject = if callers.is_some() { Subject::Own } else { Subject::Shared };
        let credentials = upstream.map(|upstream| Credentials::new(upstream, subject));
        Ok(Self { callers, ..Self::connect(setup, context, credentials, None) })
    }

    /// Creates a handle for one connection. For a caller's connection, `own` is the server's own.
    fn connect(
        setup: Setup,
        context: Context,
        credentials: Option<Credentials>,
        own: Option<&Shared>,
    ) -> Self {
        let sender = Sender::new(context.client, credentials);
        let shared = Shared::new(setup, sender, own, context.policy, context.tasks, context.changes);
        let stop = context.stop.child_token();
        Self {
            shared: Arc::new(shared),
            callers: None,
            unstarted: Mutex::new(Some(stop.clone())),
            _stop: stop.drop_guard(),
        }
    }

    /// Returns the connection of the caller, if it has its own.
    fn of_caller(&self, ctx: &CallContext) -> Option<Arc<Self>> {
        self.callers.as_ref()?.of(ctx.scope.principal.as_ref(), &self.shared)
    }

    /// Starts to open the connection, if that has not begun. Does not wait for the next attempt.
    pub(super) fn request_start(&self) {
        if let Some(stop) = self.unstarted.lock().take() {
            let shared = Arc::clone(&self.shared);
            self.shared.tasks.spawn(supervisor::run(shared, stop));
        }
        self.shared.wanted.notify_one();
    }

    /// Returns the status.
    pub(super) fn status(&self) -> ProviderStatus {
        let state = self.shared.state.borrow().clone();
        let mut status = ProviderStatus::default();
        // The path may hold a secret.
        status.source = Some(self.shared.url.origin().ascii_serialization());
        status.state = Some(state.name().to_owned());
        if let State::Ready(_, since) = state {
            status.uptime_ms = u64::try_from(since.elapsed().as_millis()).ok();
        }
        status.restarts = Some(self.shared.restarts.load(std::sync::atomic::Ordering::Relaxed));
        status.last_failure.clone_from(&self.shared.last_failure.lock());
        status
    }

    /// Returns what the server serves, as far as that is known.
    pub(super) fn info(&self) -> Option<Arc<ServerInfo>> {
        self.shared.knowledge.borrow().info.clone()
    }

    /// Returns the callers that see a tool; `None` if all do.
    pub(super) fn shown_to(&self, tool: &str) -> Option<ShownTo> {
        self.shared.shown_to(tool)
    }

    /// Returns whether callers see tools that orla itself does not see.
    pub(super) fn is_shown_to_callers(&self) -> bool {
        self.shared.is_shown_to_callers()
    }

    pub(super) fn is_learned(&self) -> bool {
        self.shared.knowledge.borrow().settled
    }

    /// Waits for a newer connection than this one, for at most one attempt.
    async fn link(&self, newer_than: u64) -> Result<Arc<Link>, Fault> {
        let usable = |state: &State| match state {
            State::Ready(link, _) if link.number > newer_than => Some(Arc::clone(link)),
            _ => None,
        };
        if let Some(link) = usable(&self.shared.state.borrow()) {
            return Ok(link);
        }
        let mut states = self.shared.state.subscribe();
        let before = match &*states.borrow_and_update() {
            State::Crashed { attempt, .. } => *attempt,
            _ => 0,
        };
        self.request_start();
        loop {
            match &*states.borrow_and_update() {
                State::Crashed { attempt, reason } if *attempt > before => {
                    return Err(Fault::Unavailable(reason.clone()));
                }
                State::Stopped => return Err(Fault::Unavailable("it was stopped".to_owned())),
                state => {
                    if let Some(link) = usable(state) {
                        return Ok(link);
                    }
                }
            }
            if states.changed().await.is_err() {
                return Err(Fault::Unavailable("it was stopped".to_owned()));
            }
        }
    }

    async fn answer(&self, ask: &Ask, ctx: &CallContext) -> Result<JsonText, Fault> {
        let shared = &*self.shared;
        let caller = Caller::from(ctx);
        let mut newer_than = 0;
        // A session that has ended is opened again, once. The server has done nothing in that case.
        for _ in 0..2 {
            let link = self.link(newer_than).await?;
            let channel =
                link.channel(&caller).ok_or_else(|| Fault::Unavailable("it was lost".to_owned()))?;
            let exchange =
                Exchange::new(shared, channel, caller.clone(), ctx.scope.traceparent.as_deref());
            let _in_flight = exchange.in_flight();
            let answer = match ask {
                Ask::Call { tool, arguments, more } => {
                    exchange.call(tool.as_deref().unwrap_or_default(), arguments, more.as_deref()).await
                }
                Ask::Method { method, params } => {
                    exchange.request(method, params).await.map(|answer| answer.result)
                }
            };
            match answer {
                Ok(result) => return Ok(result),
                Err(Failure::Expired) => {
                    shared.useless(link.number, None);
                    newer_than = link.number;
                }
                Err(Failure::Lost(reason)) => {
                    shared.useless(link.number, Some(reason.clone()));
                    return Err(Fault::Unavailable(reason));
                }
                Err(Failure::Token(reason) | Failure::Refused(reason)) => {
                    return Err(Fault::Unavailable(reason));
                }
                Err(Failure::Fault(fault)) => return Err(fault),
            }
        }
        Err(Fault::Unavailable("its sessions end at once".to_owned()))
    }

    /// Returns why the server cannot answer at the moment, if that is so.
    fn not_ready(&self) -> Option<String> {
        match &*self.shared.state.borrow() {
            State::Ready(..) => None,
            State::Crashed { reason, .. } => Some(reason.clone()),
            State::Created | State::Starting => Some("it has not answered yet".to_owned()),
            State::Stopped => Some("it was stopped".to_owned()),
        }
    }
}

#[async_trait]
impl Peer for Remote {
    fn name(&self) -> &str {
        &self.shared.name
    }

    async fn ask(&self, ask: Ask, ctx: &CallContext) -> Result<JsonText, Ending> {
        let caller = self.of_caller(ctx);
        let remote = caller.as_deref().unwrap_or(self);
        tokio::select! {
            biased;
            answer = remote.answer_signed_in(&ask, ctx) => answer.map_err(Ending::Fault),
            () = ctx.scope.cancellation.cancelled() => Err(Ending::Cancelled),
            () = ctx.expired() => {
                Err(Ending::TimedOut { not_ready: remote.not_ready(), wrong_answer: None })
            }
        }
    }

    fn offers(&self) -> Option<Offers> {
        let knowledge = self.shared.knowledge.borrow();
        match &knowledge.info {
            Some(info) => Some(info.offers.clone()),
            None => knowledge.settled.then(Offers::default),
        }
    }

    async fn learn(&self) {
        if self.is_learned() {
            return;
        }
        self.request_start();
        let latest = Instant::now() + self.shared.startup_timeout + LISTING_GRACE;
        let mut knowledge = self.shared.knowledge.subscribe();
        // The list is settled, however the wait ends.
        let _ = timeout_at(latest, knowledge.wait_for(|knowledge| knowledge.settled)).await;
        self.shared.settled();
    }

    fn notices(&self) -> broadcast::Receiver<SurfaceNotice> {
        self.shared.notices.subscribe()
    }

    async fn subscribe(&self, uri: &str, ctx: &CallContext) -> Result<(), Ending> {
        if self.notifies_in_session().await {
            self.ask(Ask::about("resources/subscribe", uri), ctx).await?;
            return Ok(self.shared.subscriptions.add(uri)?);
        }
        self.shared.subscriptions.add(uri)?;
        self.shared.resubscribe.notify_one();
        let mut acknowledged = self.shared.acknowledged.subscribe();
        // An earlier stream may still be acknowledged, which does not ask for this resource.
        let is_about_it =
            |all: &Acknowledgement| all.asked.iter().any(|asked| asked == uri) && all.known.is_some();
        let known = match timeout(ACKNOWLEDGEMENT, acknowledged.wait_for(is_about_it)).await {
            Ok(Ok(all)) => all.known.iter().flatten().any(|known| known == uri),
            // The acknowledgement may still come.
            Ok(Err(_)) | Err(_) => true,
        };
        if known {
            return Ok(());
        }
        self.shared.subscriptions.remove(uri);
        let message = format!("no such resource: {uri}");
        Err(Ending::Fault(Fault::Refused(RpcError { code: -32602, message, data: None })))
    }

    async fn unsubscribe(&self, uri: &str, ctx: &CallContext) -> Result<(), Ending> {
        if !self.shared.subscriptions.remove(uri) {
            // Other callers are still subscribed.
            return Ok(());
        }
        self.shared.resubscribe.notify_one();
        if self.notifies_in_session().await {
            self.ask(Ask::about("resources/unsubscribe", uri), ctx).await?;
        }
        Ok(())
    }
}

impl Remote {
    /// Returns whether the server reports changes in a session. If it supports the other mode, that mode
    /// is used.
    async fn notifies_in_session(&self) -> bool {
        matches!(self.link(0).await, Ok(link) if link.sessionless.is_none())
    }
}
