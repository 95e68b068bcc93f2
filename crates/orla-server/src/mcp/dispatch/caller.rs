//! The client of a request, and what the request gets from it.

use std::sync::{Arc, OnceLock};

use orla_marketplace::{Call, Catalog, JsonText, Origin, Payload, Principal};
use parking_lot::Mutex;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use super::{ClientChannel, Job, limit, longest_wait};
use crate::mcp::notify::notices::{NoticeOptions, NoticeReceiver, Outlet};
use crate::mcp::protocol::Revision;
use crate::mcp::session::Session;
use crate::mcp::session::client::SessionClient;
use crate::mcp::surfaces::SurfaceRequest;
use crate::mcp::tasks::{self, TaskCaller};
use crate::mcp::tools::CacheHint;
use crate::state::Core;
use crate::step_up::StepUp;

/// The client of a request.
pub(crate) struct Caller {
    pub(crate) revision: Revision,
    pub(crate) session: Option<Arc<Session>>,
    pub(crate) principal: Option<Principal>,
    pub(crate) origin: Origin,
    /// Receives notifications; `None` if the client wants none.
    pub(crate) outlet: Option<Arc<dyn Outlet>>,
    /// Cancelled when the client withdraws the request.
    pub(crate) cancellation: CancellationToken,
    /// The scopes that would help, if the policy denies the request.
    pub(crate) missing_scopes: OnceLock<Vec<String>>,
}

impl Caller {
    pub(super) fn is_sessionless(&self) -> bool {
        self.revision.is_sessionless()
    }

    pub(super) fn cache_hint(&self, core: &Core) -> Option<CacheHint> {
        self.is_sessionless().then(|| core.cache_hint())
    }

    pub(super) fn call(
        &self,
        target: String,
        input: Payload,
        notices: NoticeOptions,
        traceparent: Option<Arc<str>>,
        channel: &ClientChannel,
    ) -> Call {
        let mut call = Call::to(target).with(input);
        // If somebody else cancels the call, its client is answered all the same.
        call.scope.cancellation = self.cancellation.child_token();
        call.scope.principal.clone_from(&self.principal);
        call.scope.origin.clone_from(&self.origin);
        call.scope.traceparent = traceparent;
        call.scope.client = channel.client();
        let receiver = match channel {
            ClientChannel::InputRequests(requests) => requests.receiver.clone(),
            ClientChannel::Session(_) => {
                let outlet = self.outlet.as_ref().filter(|_| notices.wants_any());
                outlet.map(|outlet| NoticeReceiver::new(notices, Arc::clone(outlet)))
            }
        };
        if let Some(receiver) = receiver {
            call.scope.notices = receiver.sink(call.target.as_str().into());
        }
        call
    }

    /// Returns the client in the form for requests about tasks.
    pub(super) fn task_caller(&self) -> TaskCaller<'_> {
        TaskCaller {
            revision: self.revision,
            principal: self.principal.as_ref(),
            session: self.session.as_deref(),
            outlet: self.outlet.as_ref(),
            cancellation: &self.cancellation,
            missing_scopes: &self.missing_scopes,
        }
    }

    /// Returns the scopes that the caller's token lacks, if the request was denied for that reason.
    pub(super) fn step_up(&self, core: &Core) -> Option<StepUp> {
        StepUp::with(core, self.principal.as_ref(), self.missing_scopes.get()?)
    }

    /// Returns the capabilities with which the client of a call can be asked.
    pub(super) fn client_capabilities(&self, declared: Option<JsonText>) -> Option<JsonText> {
        match &self.session {
            Some(session) => session.capabilities.clone(),
            None => declared,
        }
    }

    /// Returns a call to surfaces for this request.
    pub(super) fn surface_call(
        &self,
        notices: NoticeOptions,
        traceparent: Option<Arc<str>>,
        channel: &ClientChannel,
    ) -> Call {
        self.call(String::new(), Payload::empty(), notices, traceparent, channel)
    }

    /// Returns the session's client for this request, if it can be asked.
    pub(super) fn session_client(&self, core: &Core, job: &Job) -> Option<Arc<SessionClient>> {
        let (session, outlet) = (self.session.as_ref()?, self.outlet.as_ref()?);
        let waits_for_task = &*job.method == "tasks/result";
        let capabilities = session.capabilities.clone().filter(|_| job.may_ask() || waits_for_task)?;
        let limit = match waits_for_task {
            true => tasks::methods::MAX_WAIT,
            false => limit(&core.tools_of(session), &job.method, job.subject()),
        };
        Some(Arc::new(SessionClient {
            session: Arc::clone(session),
            capabilities,
            outlet: Arc::clone(outlet),
            numbers: Arc::clone(&core.question_numbers),
            cancellation: self.cancellation.clone(),
            deadline: Instant::now() + limit + longest_wait(core),
            open: Mutex::new(Some(Vec::new())),
        }))
    }

    /// Returns the snapshot for everything except tools: the one that the session last listed, or else
    /// the newest.
    pub(super) fn surfaces(&self, core: &Core) -> Arc<Catalog> {
        match &self.session {
            None => core.market.snapshot(),
            Some(session) => session.surfaces(),
        }
    }

    /// Moves the session's surfaces to the newest snapshot, for a list that begins.
    pub(super) fn relist_surfaces(&self, core: &Core) -> Arc<Catalog> {
        let newest = core.market.snapshot();
        if let Some(session) = &self.session {
            session.move_surfaces_to(&newest);
        }
        newest
    }

    /// Returns a request to the surfaces of a snapshot.
    pub(crate) fn surface_request<'a>(
        &'a self,
        core: &'a Core,
        catalog: &'a Arc<Catalog>,
        call: Call,
    ) -> SurfaceRequest<'a> {
        SurfaceRequest {
            market: &core.market,
            catalog,
            call,
            cache_hint: self.cache_hint(core),
            missing_scopes: &self.missing_scopes,
        }
    }
}
