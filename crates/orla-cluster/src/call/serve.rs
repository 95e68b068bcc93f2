//! Runs the calls of other nodes.

use std::collections::HashMap;
use std::sync::atomic::Ordering;
use std::sync::{Arc, Weak};
use std::time::{Duration, SystemTime};

use arc_swap::ArcSwap;
use async_nats::Message;
use bytes::Bytes;
use orla_marketplace::{
    Call, CapabilityMarketplace, JsonText, MemoryBudget, Notice, NoticeSink, Outcome, Payload,
    Reservation, RuntimeError, RuntimeResult,
};
use orla_mcp::federation;
use parking_lot::Mutex;
use tokio::sync::{OwnedSemaphorePermit, Semaphore, mpsc, oneshot};
use tokio::time::{sleep, timeout};
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use super::MAX_QUESTIONS;
use super::exchange::{Exchange, Received};
use super::frame::Kind;
use super::head::{CallHead, write_notice};
use super::payload::{Arrived, Assembly};
use super::questions::{PendingQuestion, RemoteCheckpoint, RemoteClient};
use super::recent::RecentCalls;
use crate::link::{HEADER, Link};
use crate::shared::{Shared, count};

/// The maximum number of calls of other nodes at once, those included that wait for their turn.
const MAX_RUNS: usize = 4096;
/// The maximum number of notices of a call that wait to be sent. Further ones are left out.
const MAX_NOTICES: usize = 256;
/// The maximum number of refusals that are being sent. Further refusals are not sent.
const MAX_REFUSALS: usize = 1024;
/// How long an input may take to arrive, and a result to leave.
const TRANSFER_TIMEOUT: Duration = Duration::from_secs(60);

/// Runs the calls of other nodes.
pub(crate) struct Serving {
    link: Arc<Link>,
    shared: Arc<Shared>,
    market: Weak<CapabilityMarketplace>,
    /// The ids of this node's offered capabilities, by their digests.
    offered: ArcSwap<HashMap<String, String>>,
    recent: Mutex<RecentCalls>,
    places: Arc<Semaphore>,
    refusals: Arc<Semaphore>,
    /// No call begins any more.
    leaving: CancellationToken,
    /// Calls that run are given up.
    abort: CancellationToken,
    runs: TaskTracker,
}

impl Serving {
    pub(crate) fn new(
        link: &Arc<Link>,
        shared: &Arc<Shared>,
        market: &Arc<CapabilityMarketplace>,
    ) -> Self {
        Self {
            link: Arc::clone(link),
            shared: Arc::clone(shared),
            market: Arc::downgrade(market),
            offered: ArcSwap::default(),
            recent: Mutex::default(),
            places: Arc::new(Semaphore::new(MAX_RUNS)),
            refusals: Arc::new(Semaphore::new(MAX_REFUSALS)),
            leaving: CancellationToken::new(),
            abort: CancellationToken::new(),
            runs: TaskTracker::new(),
        }
    }

    /// Serves these ids, by their digests.
    pub(crate) fn offer(&self, offered: HashMap<String, String>) {
        self.offered.store(Arc::new(offered));
    }

    /// Stops taking calls, and waits at most this long for the running ones. The remaining calls are
    /// aborted, and their callers are notified.
    pub(crate) async fn end(&self, max_wait: Duration) {
        self.leaving.cancel();
        self.runs.close();
        if timeout(max_wait, self.runs.wait()).await.is_err() {
            self.abort.cancel();
            self.runs.wait().await;
        }
    }

    /// Begins a call. The frames that follow it find their inbox when this returns. If the message of a call comes again, the
    /// call does not begin again, even if it was refused or has ended.
    pub(crate) fn begin(self: &Arc<Self>, digest: &str, message: Message) {
        let head = message.headers.as_ref().and_then(|headers| headers.get(HEADER));
        let head = match CallHead::read(head.map_or("", |head| head.as_str())) {
            Ok(head) => head,
            Err(problem) => {
                tracing::debug!(problem, "a call of another node cannot be read");
                return;
            }
        };
        if !self.recent.lock().remember(head.token_number()) {
            tracing::debug!(node = head.from, "a call of another node came twice");
            return;
        }
        let Some(inbox) = self.link.open_as(head.token.clone()) else { return };
        let exchange = Exchange::new(&self.link, inbox, (&head.from, &head.instance));
        let (id, place) = match self.admit(digest, &head) {
            Ok(admitted) => admitted,
            Err(refusal) => {
                count(&self.shared.events.refused);
                return self.refuse(exchange, refusal);
            }
        };
        count(&self.shared.events.taken);
        let (serving, payload) = (Arc::clone(self), message.payload);
        self.runs.spawn(async move {
            let _place = place;
            if let Err(problem) = serving.run(exchange, head, id, payload).await {
                tracing::debug!(problem, "a node cannot be answered");
            }
        });
    }

    /// Returns the id of the called capability, and a place for the call.
    ///
    /// # Errors
    ///
    /// Returns why the call does not begin.
    fn admit(&self, digest: &str, head: &CallHead) -> Result<(String, OwnedSemaphorePermit), String> {
        if self.leaving.is_cancelled() {
            return Err("the node is shutting down".to_owned());
        }
        if self.shared.replaced.is_cancelled() {
            return Err("another instance has the name of the node".to_owned());
        }
        if self.shared.is_draining() {
            return Err("the node is draining".to_owned());
        }
        if let Some(refusal) = head.refusal() {
            return Err(refusal);
        }
        let id = self.offered.load().get(digest).cloned();
        let id = id.ok_or("the node does not offer it in this version")?;
        let place = Arc::clone(&self.places).try_acquire_owned();
        Ok((id, place.map_err(|_| "the node has no place for another call")?))
    }

    fn refuse(&self, exchange: Exchange, refusal: String) {
        let Ok(turn) = Arc::clone(&self.refusals).try_acquire_owned() else { return };
        self.runs.spawn(async move {
            let _turn = turn;
            drop(exchange.out.send(Kind::Refused, 0, refusal).await);
        });
    }

    /// Runs one call, from its input to its answer.
    async fn run(
        &self,
        mut exchange: Exchange,
        head: CallHead,
        id: String,
        first: Bytes,
    ) -> Result<(), String> {
        let out = Arc::clone(&exchange.out);
        let heartbeats = out.send_heartbeats();
        tokio::pin!(heartbeats);
        let Some(market) = self.market.upgrade() else {
            return out.send(Kind::Gone, 0, Bytes::new()).await;
        };
        // A call that waited for its way here may be withdrawn already. The messages that came with it are delivered before this task
        // begins. To yield for later ones would wake another thread for each call. Where more of the input is to come, a withdrawal
        // is noticed while it comes.
        if first.len() == head.bytes && exchange.is_withdrawn() {
            return Ok(());
        }
        let input = tokio::select! {
            input = arrive(&mut exchange, &head, first, market.memory()) => input,
            () = &mut heartbeats => return Ok(()),
        };
        let (input, _reserved) = match input {
            Ok(input) => input,
            Err(NoInput::Refused(refusal)) => return out.send(Kind::Refused, 0, refusal).await,
            // The caller no longer waits for the answer.
            Err(NoInput::Withdrawn) => return Ok(()),
        };
        let (notices, mut pending_notices) = mpsc::channel(MAX_NOTICES);
        let (questions, mut pending_questions) = mpsc::channel(MAX_QUESTIONS);
        let cancellation = CancellationToken::new();
        let call = match self.call(&head, id, input, &cancellation, notices, questions) {
            Ok(call) => call,
            Err(refusal) => return out.send(Kind::Refused, 0, refusal).await,
        };
        let result = {
            let running = market.call(call);
            tokio::pin!(running);
            let (mut waiting, mut number) = (HashMap::<u64, oneshot::Sender<Bytes>>::new(), 0);
            loop {
                tokio::select! {
                    biased;
                    result = &mut running => break result,
                    () = self.abort.cancelled() => {
                        let sent = out.send(Kind::Gone, 0, Bytes::new()).await;
                        out.flush().await;
                        return sent;
                    }
                    received = exchange.next(), if !cancellation.is_cancelled() => match received {
                        Received::Frame(Kind::Answer, number, answer) => {
                            if let Some(waiting) = waiting.remove(&number) {
                                drop(waiting.send(answer));
                            }
                        }
                        Received::Frame(Kind::Cancel, ..) => cancellation.cancel(),
                        Received::Frame(..) => {}
                        Received::Lost(why) => {
                            tracing::debug!(node = head.from, why, "the node that called is lost");
                            cancellation.cancel();
                        }
                        Received::NoResponders => cancellation.cancel(),
                    },
                    Some(notice) = pending_notices.recv() => {
                        // Notices are best effort.
                        drop(out.send(Kind::Notice, 0, write_notice(notice)).await);
                    }
                    Some(PendingQuestion { text, answer }) = pending_questions.recv() => {
                        number += 1;
                        if out.send(Kind::Question, number, text).await.is_ok() {
                            waiting.insert(number, answer);
                        }
                    }
                    () = &mut heartbeats => {}
                }
            }
        };
        if cancellation.is_cancelled() {
            return Ok(());
        }
        while let Ok(notice) = pending_notices.try_recv() {
            drop(out.send(Kind::Notice, 0, write_notice(notice)).await);
        }
        let kind = match &result {
            // Another node may have room. A quota refuses the call on every node.
            Err(error @ RuntimeError::Busy { .. }) if error.never_ran() => Kind::Busy,
            _ => Kind::Result,
        };
        let answer = encode_result(result);
        tokio::select! {
            sent = out.send_payload(kind, &answer) => sent,
            () = wait_withdrawn(&mut exchange) => Ok(()),
            () = &mut heartbeats => Ok(()),
            () = sleep(TRANSFER_TIMEOUT) => Err("its caller does not take the result".to_owned()),
        }
    }

    /// Returns the call as this node makes it, by its own rules.
    ///
    /// # Errors
    ///
    /// Returns why it is not made.
    fn call(
        &self,
        head: &CallHead,
        id: String,
        input: JsonText,
        cancellation: &CancellationToken,
        notices: mpsc::Sender<Notice>,
        questions: mpsc::Sender<PendingQuestion>,
    ) -> Result<Call, String> {
        let mut call = Call::to(id).with(Payload::from_json(input));
        call.timeout = Some(head.timeout());
        call.scope.principal = head.principal(SystemTime::now())?;
        if call.scope.principal.is_none() && !self.link.admits_anonymous.load(Ordering::Relaxed) {
            return Err("the node takes only calls of identified callers".to_owned());
        }
        call.scope.hops = head.hops()?;
        call.scope.counted = head.counted();
        call.scope.traceparent = head.traceparent().map(Into::into);
        (call.scope.is_task, call.scope.depth) = (head.task, head.depth);
        call.scope.cancellation = cancellation.clone();
        if head.notices {
            let sink = move |notice| drop(notices.try_send(notice));
            call.scope.notices = NoticeSink::new(sink);
        }
        if head.noted {
            call.scope.checkpoint = Some(Arc::new(RemoteCheckpoint::new(questions.clone())));
        }
        if let Some(capabilities) = head.client() {
            let max = self.link.chunk();
            call.scope.client = Some(Arc::new(RemoteClient { capabilities, questions, max }));
        }
        Ok(call)
    }
}

/// The reason why there is no input.
enum NoInput {
    /// The call is refused for this reason, which is sent to the caller.
    Refused(String),
    /// The caller has withdrawn the call, or is gone.
    Withdrawn,
}

/// Returns the whole input, and the memory that it takes.
async fn arrive(
    exchange: &mut Exchange,
    head: &CallHead,
    first: Bytes,
    memory: &Arc<MemoryBudget>,
) -> Result<(JsonText, Reservation), NoInput> {
    let arriving = collect(exchange, head.bytes, first, memory);
    timeout(head.timeout().min(TRANSFER_TIMEOUT), arriving)
        .await
        .unwrap_or_else(|_| Err(NoInput::Refused("its input does not come in time".to_owned())))
}

async fn collect(
    exchange: &mut Exchange,
    bytes: usize,
    first: Bytes,
    memory: &Arc<MemoryBudget>,
) -> Result<(JsonText, Reservation), NoInput> {
    let refused = |why: &str| NoInput::Refused(why.to_owned());
    let no_memory = || refused("it has no memory for the input");
    let mut assembly = Assembly::new(bytes, memory).map_err(|_| no_memory())?;
    let mut arrived = assembly.add(first);
    loop {
        match arrived {
            Arrived::Whole(input) => {
                let input = JsonText::parse(input).map_err(|_| refused("its input is not JSON"))?;
                return Ok((input, assembly.into_reserved()));
            }
            Arrived::TooMuch => return Err(refused("its input is not as long as was announced")),
            Arrived::NoMemory(_) => return Err(no_memory()),
            Arrived::Part(bytes) => {
                let credited = exchange.out.send(Kind::Credit, bytes as u64, Bytes::new()).await;
                credited.map_err(|_| NoInput::Withdrawn)?;
            }
        }
        arrived = match exchange.next().await {
            Received::Frame(Kind::Chunk, _, chunk) => assembly.add(chunk),
            Received::Frame(Kind::Cancel, ..) | Received::Lost(_) | Received::NoResponders => {
                return Err(NoInput::Withdrawn);
            }
            Received::Frame(..) => Arrived::TooMuch,
        };
    }
}

/// Waits until the caller is gone. Credits are taken meanwhile.
async fn wait_withdrawn(exchange: &mut Exchange) {
    loop {
        match exchange.next().await {
            Received::Frame(Kind::Cancel, ..) | Received::Lost(_) | Received::NoResponders => return,
            Received::Frame(..) => {}
        }
    }
}

fn encode_result(result: RuntimeResult<Outcome>) -> Bytes {
    let text = result.and_then(|outcome| federation::write(&outcome));
    text.unwrap_or_else(|error| federation::write_error(&error)).into()
}

#[cfg(test)]
mod tests {
    use async_nats::{HeaderMap, HeaderValue};
    use orla_marketplace::testing::{Canned, MockExecutor, eventually};
    use orla_marketplace::{CallContext, Hops, Limits};

    use super::*;
    use crate::settings::ClusterSettings;
    use crate::shared::Events;

    /// Returns the message of a call.
    fn message(token: &str) -> Message {
        let (ctx, input) = (CallContext::for_tests("x"), "{}");
        let from = ("beta", "0011223344556677");
        let head = CallHead::new(from, token, &Hops::default(), &ctx, ctx.deadline, input.len());
        let mut headers = HeaderMap::new();
        headers.insert(HEADER, head.write().parse::<HeaderValue>().unwrap());
        Message {
            subject: "t".into(),
            reply: None,
            payload: input.into(),
            headers: Some(headers),
            status: None,
            description: None,
            length: input.len(),
        }
    }

    #[tokio::test(start_paused = true)]
    async fn a_call_whose_message_is_repeated_begins_once() {
        let market = Arc::new(CapabilityMarketplace::new(Limits::default()));
        market.register_executor(Arc::new(MockExecutor)).unwrap();
        market.register_capability(Canned::Echoes.manifest("echo")).unwrap();
        let (link, shared) = (Link::new(ClusterSettings::default()), Arc::new(Shared::new()));
        let serving = Arc::new(Serving::new(&link, &shared, &market));
        let begin = async |token: &str| {
            serving.begin("digest", message(token));
            eventually("the call is over", || serving.runs.is_empty()).await;
            let Events { taken, refused, .. } = &shared.events;
            (taken.load(Ordering::Relaxed), refused.load(Ordering::Relaxed))
        };
        let (refused, made) = ("0".repeat(32), "1".repeat(32));
        assert_eq!(begin(&refused).await, (0, 1));
        serving.offer(HashMap::from([("digest".to_owned(), "echo".to_owned())]));
        assert_eq!(begin(&refused).await, (0, 1), "its caller may have gone to another node");
        assert_eq!(begin(&made).await, (1, 1));
        assert_eq!(begin(&made).await, (1, 1), "it has ended");
    }
}
