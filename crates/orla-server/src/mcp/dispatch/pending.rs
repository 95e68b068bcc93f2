//! Sessionless requests whose providers wait for answers of the client.
//!
//! # How it works
//!
//! [`answer`] runs a request. If its provider asks something, the request is answered with the question,
//! and the work continues in a task that the server waits for. The client's next request brings a
//! `requestState` that was sealed here. The state identifies the work and the round trip. It is valid
//! once, for this process, for the same method, name, arguments and principal, and until the work's
//! deadline. The deadline moves only while the work waits for an approval. In a cluster, a state also
//! names the process that sealed it, and another node continues the request [there](other_nodes).
//!
//! Work that finishes between two requests keeps its reply for the next one.

pub(crate) mod other_nodes;

use std::collections::HashMap;
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use futures_util::future::BoxFuture;
use orla_marketplace::attestation::{canonical_json, hash_text};
use orla_marketplace::{CapabilityMarketplace, JsonText, Payload, Principal};
use parking_lot::Mutex;
use rmcp::model::{ErrorData, RequestStateCodec, SealOptions};
use tokio::sync::Notify;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use self::other_nodes::Continuations;
use crate::mcp::dispatch::{self, Caller, Job, Reply};
use crate::mcp::input::requests::InputRequests;
use crate::mcp::notify::notices::{NoticeOptions, NoticeReceiver, Outlet};
use crate::mcp::protocol::Revision;
use crate::mcp::rpc::{self, Id};
use crate::state::Core;

/// How long work may take to end by itself after its deadline. It is longer than the marketplace's own
/// limit.
const FINAL_TIMEOUT: Duration = Duration::from_secs(6);
/// The shortest time between two checks of work whose deadline moves.
const MIN_CHECK: Duration = Duration::from_secs(1);
/// How long work may take to end once it is cancelled.
const GRACE: Duration = Duration::from_secs(6);

/// One caller may have at most `1 / CALLER_SHARE` of the waiting requests.
const CALLER_SHARE: usize = 4;

/// The members of a request that belong to the input requests of its provider.
#[derive(Clone, Debug, Default)]
pub(crate) struct InputFields {
    /// The capabilities that the client declares.
    pub(crate) capabilities: Option<JsonText>,
    /// `inputResponses`, unchecked.
    pub(crate) responses: Option<JsonText>,
    /// `requestState`, unchecked.
    pub(crate) state: Option<JsonText>,
}

/// The parts of a request to which a `requestState` is bound, besides its work.
struct Target {
    method: Box<str>,
    name: Box<str>,
    /// A call continues with its original arguments. The client may not send others with the state.
    arguments: Option<Payload>,
    principal: Option<Principal>,
}

impl Target {
    fn bytes(&self) -> Vec<u8> {
        target_bytes(&self.method, &self.name, self.principal.as_ref(), &self.digest())
    }

    /// Returns the digest of the arguments. All notations of the same arguments have the same digest.
    fn digest(&self) -> String {
        let text = self.arguments.as_ref().and_then(|arguments| arguments.json().ok());
        let text = text.map_or("", JsonText::as_str);
        let form = canonical_json(text).unwrap_or_else(|_| text.to_owned());
        hash_text(form.as_bytes())
    }
}

fn target_bytes(method: &str, name: &str, principal: Option<&Principal>, digest: &str) -> Vec<u8> {
    let principal = principal.map_or("", |principal| principal.id());
    format!("{method}\0{name}\0{principal}\0{digest}").into_bytes()
}

/// The work of a request, until it is answered.
type Work = BoxFuture<'static, Reply>;

/// Answers a sessionless request whose provider may ask its client.
pub(crate) async fn answer(core: Arc<Core>, job: Box<Job>, caller: Caller) -> Reply {
    let began = Instant::now();
    let (id, revision) = (job.id.clone(), caller.revision);
    let target = Target {
        method: job.method.clone(),
        name: job.subject().into(),
        arguments: job.arguments().cloned(),
        principal: caller.principal.clone(),
    };
    let answered = match job.input.check() {
        Err(error) => Err(error),
        Ok(()) if job.input.state.is_some() => resume(&core, &job, &caller, &target).await,
        Ok(()) => begin(&core, job, caller, &target, began).await,
    };
    answered.unwrap_or_else(|error| Reply::error(Some(&id), &error, revision))
}

async fn begin(
    core: &Arc<Core>,
    job: Box<Job>,
    caller: Caller,
    target: &Target,
    began: Instant,
) -> Result<Reply, ErrorData> {
    let (id, revision) = (job.id.clone(), caller.revision);
    let capabilities = job.input.capabilities.clone().unwrap_or_else(orla_mcp::object::empty);
    let early = job.input.responses.clone();
    let cancellation = caller.cancellation.clone();
    let receiver =
        notice_receiver(&job, &caller).map(|(wanted, outlet)| NoticeReceiver::new(wanted, outlet));
    let requests = InputRequests::new(capabilities, early, cancellation.clone(), receiver);
    let mut work: Work =
        Box::pin(dispatch::answer_sessionless(Arc::clone(core), job, caller, Arc::clone(&requests)));
    tokio::select! {
        biased;
        answer = &mut work => return Ok(answer),
        () = requests.has_questions() => {}
    }
    if cancellation.is_cancelled() {
        // The client has disconnected, so no answers will come.
        requests.end();
        return Ok(work.await);
    }
    let limit = dispatch::limit(&core.market.snapshot(), &target.method, &target.name);
    let pending = PendingRequest {
        requests,
        id: id.clone(),
        revision,
        principal: target.principal.clone(),
        limit,
        deadline: began + limit,
        latest: began + limit + dispatch::longest_wait(core),
        cancellation,
        state: Mutex::default(),
        done: Notify::new(),
        taken: CancellationToken::new(),
    };
    core.pending.add(core, pending, work)?.ask(core, &id, &target.bytes())
}

/// Continues a request.
async fn resume(
    core: &Arc<Core>,
    job: &Job,
    caller: &Caller,
    target: &Target,
) -> Result<Reply, ErrorData> {
    let state = job.input.state.as_ref().map(JsonText::as_str).unwrap_or_default();
    let state: String = serde_json::from_str(state).map_err(|err| refused(&err.to_string()))?;
    let sealed = match core.cluster().zip(state.split_once('.')) {
        Some((cluster, (instance, sealed))) if instance == cluster.instance() => sealed,
        Some((_, (instance, sealed))) => {
            // Boxed, because it is rare and large.
            return Box::pin(other_nodes::resume(core, instance, sealed, job, caller, target)).await;
        }
        None => &*state,
    };
    let target = target.bytes();
    let attended = core.pending.find(sealed, &target)?;
    let retry = Retry {
        id: job.id.clone(),
        capabilities: job.input.capabilities.clone(),
        responses: job.input.responses.clone(),
        notices: notice_receiver(job, caller),
        cancellation: caller.cancellation.clone(),
    };
    attended.resume(core, retry, &target).await
}

/// Receives the notices of the work while this request is open.
fn notice_receiver(job: &Job, caller: &Caller) -> Option<(NoticeOptions, Arc<dyn Outlet>)> {
    let wanted = job.notice_options(None);
    caller.outlet.clone().filter(|_| wanted.wants_any()).map(|outlet| (wanted, outlet))
}

/// The next request of a client that was asked.
struct Retry {
    id: Id,
    capabilities: Option<JsonText>,
    responses: Option<JsonText>,
    notices: Option<(NoticeOptions, Arc<dyn Outlet>)>,
    cancellation: CancellationToken,
}

impl InputFields {
    /// # Errors
    ///
    /// Returns −32602 for a malformed member.
    fn check(&self) -> Result<(), ErrorData> {
        let wrong = |what: &str, text: &JsonText| {
            let got = rpc::kind_of(text.as_str());
            Err(ErrorData::invalid_params(format!("{what}, got {got}"), None))
        };
        match (&self.responses, &self.state) {
            (Some(responses), _) if !responses.as_str().starts_with('{') => {
                wrong("inputResponses must be an object", responses)
            }
            (_, Some(state)) if !state.as_str().starts_with('"') => {
                wrong("requestState must be a string", state)
            }
            _ => Ok(()),
        }
    }
}

/// All requests that wait for their clients.
#[derive(Default)]
pub(crate) struct PendingRequests {
    open: Mutex<Requests>,
    /// Seals states with a random key, which is created when first needed.
    codec: OnceLock<Option<RequestStateCodec>>,
    /// The requests that are continued for other nodes.
    continuations: Continuations,
}

#[derive(Default)]
struct Requests {
    last: u64,
    pending: HashMap<u64, Arc<PendingRequest>>,
}

/// A request that was answered with questions.
struct PendingRequest {
    requests: Arc<InputRequests>,
    /// The id of the work's answer.
    id: Id,
    revision: Revision,
    principal: Option<Principal>,
    /// The time limit of the work, excluding its waits for approvals.
    limit: Duration,
    /// When the work ends, unless it waits for an approval.
    deadline: Instant,
    /// When the work ends in any case.
    latest: Instant,
    /// Cancels the work.
    cancellation: CancellationToken,
    state: Mutex<State>,
    /// Notified when the work has its answer.
    done: Notify,
    /// Cancelled when the answer was taken.
    taken: CancellationToken,
}

#[derive(Default)]
struct State {
    /// The number of the round that the next request continues.
    round: u64,
    /// Whether a request currently waits for the work.
    is_awaited: bool,
    answer: Option<Reply>,
}

impl PendingRequests {
    /// Returns how many there are.
    pub(crate) fn count(&self) -> usize {
        self.open.lock().pending.len()
    }

    /// Ends the requests of these callers.
    pub(crate) fn end_all(&self, of: impl Fn(Option<&Principal>) -> bool) {
        for pending in self.open.lock().pending.values() {
            if of(pending.principal.as_ref()) {
                pending.cancellation.cancel();
                pending.requests.end();
            }
        }
    }

    /// Lets the work continue without its request. The returned entry counts as awaited at first.
    fn add(&self, core: &Arc<Core>, pending: PendingRequest, work: Work) -> Result<Attended, ErrorData> {
        let max = core.settings.load().options.max_pending;
        let mut open = self.open.lock();
        let is_of_caller = |other: &&Arc<PendingRequest>| other.principal == pending.principal;
        let is_too_many_of_one = pending.principal.is_some()
            && open.pending.values().filter(is_of_caller).count() >= (max / CALLER_SHARE).max(1);
        if open.pending.len() >= max || is_too_many_of_one {
            drop(open);
            pending.requests.end();
            pending.cancellation.cancel();
            core.tracker.spawn(tokio::time::timeout(GRACE, work));
            let what = "too many requests wait for their clients; try again later";
            return Err(ErrorData::internal_error(what, None));
        }
        open.last += 1;
        let (number, pending) = (open.last, Arc::new(pending));
        pending.state.lock().is_awaited = true;
        open.pending.insert(number, Arc::clone(&pending));
        drop(open);
        core.tracker.spawn(run_pending(Arc::clone(core), number, Arc::clone(&pending), work));
        Ok(Attended { pending, number })
    }

    /// Returns the request that a sealed state continues. Only one request may wait for it.
    ///
    /// # Errors
    ///
    /// Returns −32602 for a state that was forged, belongs to another request, has expired, was used, or
    /// whose work has ended.
    fn find(&self, sealed: &str, target: &[u8]) -> Result<Attended, ErrorData> {
        let codec = self.codec().ok_or_else(no_randomness)?;
        let opened = codec.open_with(sealed, target).map_err(|err| refused(&err.to_string()))?;
        let (number, round) = opened.split_at_checked(8).ok_or_else(ended)?;
        let number = number.try_into().map(u64::from_le_bytes).map_err(|_| ended())?;
        let round = round.try_into().map(u64::from_le_bytes).map_err(|_| ended())?;
        let pending = self.open.lock().pending.get(&number).cloned().ok_or_else(ended)?;
        let mut state = pending.state.lock();
        if state.round != round || state.is_awaited {
            return Err(refused("it was used already"));
        }
        state.is_awaited = true;
        drop(state);
        Ok(Attended { pending, number })
    }

    fn seal(&self, number: u64, round: u64, left: Duration, target: &[u8]) -> Option<String> {
        let payload = [number.to_le_bytes(), round.to_le_bytes()].concat();
        let options = SealOptions::new().associated_data(target).ttl(left);
        Some(self.codec()?.seal_with(&payload, &options))
    }

    fn codec(&self) -> Option<&RequestStateCodec> {
        let make = || {
            let mut key = vec![0; 32];
            getrandom::fill(&mut key).ok()?;
            RequestStateCodec::try_new(key).ok()
        };
        self.codec.get_or_init(make).as_ref()
    }
}

fn refused(why: &str) -> ErrorData {
    ErrorData::invalid_params(format!("requestState: {why}"), None)
}

fn ended() -> ErrorData {
    refused("the request that it continues has ended")
}

fn no_randomness() -> ErrorData {
    ErrorData::internal_error("the system has no random bytes for a requestState", None)
}

/// A pending request for which an open request waits. Dropping it lets another request continue the work.
struct Attended {
    pending: Arc<PendingRequest>,
    number: u64,
}

impl Attended {
    /// Continues the work with the answers of this request, until it has a reply or asks again.
    async fn resume(self, core: &Core, retry: Retry, target: &[u8]) -> Result<Reply, ErrorData> {
        let pending = &self.pending;
        if let Some(receiver) = &pending.requests.receiver {
            receiver.attach(retry.notices);
        }
        let capabilities = retry.capabilities.unwrap_or_else(orla_mcp::object::empty);
        pending.requests.resume(capabilities, retry.responses.as_ref());
        let next = tokio::select! {
            biased;
            next = pending.next() => next,
            () = retry.cancellation.cancelled() => {
                // The client has disconnected: cancel the work, and drop its messages.
                pending.cancellation.cancel();
                pending.next().await
            }
        };
        match next {
            None => self.ask(core, &retry.id, target),
            Some(reply) => {
                // The state counts as used, even if a request arrives before the work is removed.
                pending.state.lock().round += 1;
                pending.taken.cancel();
                Ok(Reply { message: rpc::readdressed(reply.message, &pending.id, &retry.id), ..reply })
            }
        }
    }

    /// Answers the open request with the questions.
    fn ask(self, core: &Core, id: &Id, target: &[u8]) -> Result<Reply, ErrorData> {
        let round = {
            let mut state = self.pending.state.lock();
            state.round += 1;
            state.round
        };
        let left = self.pending.latest.saturating_duration_since(Instant::now());
        let sealed = core.pending.seal(self.number, round, left, target).ok_or_else(no_randomness)?;
        let state = match core.cluster() {
            Some(cluster) => format!("{}.{sealed}", cluster.instance()),
            None => sealed,
        };
        let mut out = rpc::begin_result(id, 256);
        out.extend_from_slice(br#"{"resultType":"input_required","inputRequests":"#);
        out.extend_from_slice(&self.pending.requests.input_requests());
        out.extend_from_slice(br#","requestState":"#);
        rpc::push_json(&mut out, &state);
        out.push(b'}');
        out.extend_from_slice(rpc::END);
        Ok(Reply::ok(out))
    }
}

impl Drop for Attended {
    fn drop(&mut self) {
        if let Some(receiver) = &self.pending.requests.receiver {
            receiver.detach();
        }
        self.pending.state.lock().is_awaited = false;
    }
}

impl PendingRequest {
    /// Returns the answer, or `None` if there are further questions.
    async fn next(&self) -> Option<Reply> {
        if let Some(answer) = self.state.lock().answer.take() {
            return Some(answer);
        }
        tokio::select! {
            biased;
            () = self.done.notified() => self.state.lock().answer.take(),
            () = self.requests.has_questions() => None,
        }
    }

    /// Waits until the time of the work is over. The end moves while the work waits for an approval.
    async fn wait_until_late(&self, market: &CapabilityMarketplace, end: &mut Instant) {
        loop {
            tokio::time::sleep_until(*end).await;
            let now = Instant::now();
            if now >= self.latest || !self.waits_for_approval(market) {
                return;
            }
            *end = self.latest.min(now + self.limit.max(MIN_CHECK));
        }
    }

    /// Returns whether the work may be waiting for an approval: its client is asked for one, or a
    /// request of the client is open while other approvers are asked.
    fn waits_for_approval(&self, market: &CapabilityMarketplace) -> bool {
        let approvals = market.approvals();
        self.state.lock().is_awaited || self.requests.keys().iter().any(|key| approvals.is_waiting(key))
    }
}

/// Runs pending work to its end, and keeps its answer for the request that fetches it.
async fn run_pending(core: Arc<Core>, number: u64, pending: Arc<PendingRequest>, mut work: Work) {
    let mut end = pending.deadline;
    let in_time = tokio::select! {
        biased;
        answer = &mut work => Some(answer),
        () = pending.wait_until_late(&core.market, &mut end) => None,
        () = core.draining.cancelled() => None,
    };
    let answer = match in_time {
        Some(answer) => Some(answer),
        None => overdue(&core, &pending, work).await,
    };
    let lost = || {
        let what = "the request that it continues did not end in time";
        Reply::error(Some(&pending.id), &ErrorData::internal_error(what, None), pending.revision)
    };
    pending.state.lock().answer = Some(answer.unwrap_or_else(lost));
    pending.done.notify_one();
    // A person may have answered late, and the client needs time to fetch the result.
    let kept_until =
        if end == pending.deadline { end } else { pending.latest.min(Instant::now() + pending.limit) };
    tokio::select! {
        () = pending.taken.cancelled() => {}
        () = tokio::time::sleep_until(kept_until) => {}
        () = core.draining.cancelled() => {}
    }
    core.pending.open.lock().pending.remove(&number);
}

/// Handles work whose client does not return in time.
async fn overdue(core: &Core, pending: &PendingRequest, mut work: Work) -> Option<Reply> {
    pending.requests.end();
    tokio::select! {
        biased;
        answer = &mut work => return Some(answer),
        () = tokio::time::sleep_until(pending.deadline.max(Instant::now()) + FINAL_TIMEOUT) => {}
        () = core.abort.cancelled() => {}
    }
    pending.cancellation.cancel();
    tokio::time::timeout(GRACE, work).await.ok()
}
