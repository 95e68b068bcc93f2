//! Runs the calls of other nodes.

use std::collections::HashMap;
use std::sync::atomic::Ordering;
use std::sync::{Arc, Weak};
use std::time::{Duration, SystemTime};

use arc_swap::ArcSwap;
use async_nats::Message;
use bytes::Bytes;
use orla_marketplace::{
    Call, CapabilityMarketplace, JsonText, Notice, NoticeSink, Outcome, Payload, RuntimeResult,
};
use orla_mcp::federation;
use tokio::sync::{Semaphore, mpsc, oneshot};
use tokio::time::timeout;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use super::exchange::{Exchange, Received};
use super::frame::Kind;
use super::head::{CallHead, write_notice};
use super::payload::{Arrived, Assembly};
use super::questions::{Asked, FarClient};
use crate::link::{HEADER, Link};

/// The most calls of other nodes at once, those included that wait for their turn.
const MAX_RUNS: usize = 4096;
/// The most notices of a call that wait to be sent. Further ones are left out.
const MAX_NOTICES: usize = 256;
/// The most questions of a call that wait to be sent.
const MAX_QUESTIONS: usize = 16;

/// What runs the calls of other nodes.
pub(crate) struct Serving {
    link: Arc<Link>,
    market: Weak<CapabilityMarketplace>,
    /// The ids of what this node offers, by their digests.
    offered: ArcSwap<HashMap<String, String>>,
    places: Arc<Semaphore>,
    /// No call begins any more.
    leaving: CancellationToken,
    /// Calls that run are given up.
    abort: CancellationToken,
    runs: TaskTracker,
}

impl Serving {
    pub(crate) fn new(link: &Arc<Link>, market: &Arc<CapabilityMarketplace>) -> Self {
        Self {
            link: Arc::clone(link),
            market: Arc::downgrade(market),
            offered: ArcSwap::default(),
            places: Arc::new(Semaphore::new(MAX_RUNS)),
            leaving: CancellationToken::new(),
            abort: CancellationToken::new(),
            runs: TaskTracker::new(),
        }
    }

    /// Serves these ids, by their digests.
    pub(crate) fn offer(&self, offered: HashMap<String, String>) {
        self.offered.store(Arc::new(offered));
    }

    /// Takes no calls any more, and waits for those that run, at most this long. What runs then is given up, and its
    /// callers learn that.
    pub(crate) async fn end(&self, patience: Duration) {
        self.leaving.cancel();
        self.runs.close();
        if timeout(patience, self.runs.wait()).await.is_err() {
            self.abort.cancel();
            self.runs.wait().await;
        }
    }

    /// Begins a call. The frames that follow it find their inbox when this returns.
    pub(crate) fn begin(self: &Arc<Self>, digest: &str, message: Message) {
        let head = message.headers.as_ref().and_then(|headers| headers.get(HEADER));
        let head = match CallHead::read(head.map_or("", |head| head.as_str())) {
            Ok(head) => head,
            Err(problem) => {
                tracing::debug!(problem, "a call of another node cannot be read");
                return;
            }
        };
        let Some(inbox) = self.link.open_as(head.token.clone()) else { return };
        let id = self.offered.load().get(digest).cloned();
        let place = Arc::clone(&self.places).try_acquire_owned();
        let refusal = if self.leaving.is_cancelled() {
            Some("it ends".to_owned())
        } else if place.is_err() {
            Some("it is busy".to_owned())
        } else if id.is_none() {
            Some("it does not offer it in this version".to_owned())
        } else {
            head.refusal()
        };
        let (serving, payload) = (Arc::clone(self), message.payload);
        self.runs.spawn(async move {
            let _place = place;
            let exchange = Exchange::new(&serving.link, inbox, &head.from);
            let out = Arc::clone(&exchange.out);
            let sent = match (id, refusal) {
                (Some(id), None) => serving.run(exchange, head, id, payload).await,
                (_, refusal) => out.send(Kind::Refused, 0, refusal.unwrap_or_default()).await,
            };
            if let Err(problem) = sent {
                tracing::debug!(problem, "a node cannot be answered");
            }
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
        let beating = out.beat();
        tokio::pin!(beating);
        let is_long = first.len() < head.bytes;
        // Of one message, NATS has bounded the size.
        let Some(market) = self.market.upgrade() else {
            return out.send(Kind::Gone, 0, Bytes::new()).await;
        };
        let reserved = is_long.then(|| market.memory().reserve(head.bytes));
        if matches!(reserved, Some(Err(_))) {
            return out.send(Kind::Refused, 0, "it has no memory for the input").await;
        }
        let input = tokio::select! {
            input = arrive(&mut exchange, head.bytes, first) => input,
            () = &mut beating => None,
        };
        // Nobody waits for the answer any more.
        let Some(input) = input else { return Ok(()) };
        let (notices, mut told) = mpsc::channel(MAX_NOTICES);
        let (questions, mut asked) = mpsc::channel(MAX_QUESTIONS);
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
                        Received::Nobody => cancellation.cancel(),
                    },
                    Some(notice) = told.recv() => {
                        // Notices are best effort.
                        drop(out.send(Kind::Notice, 0, write_notice(notice)).await);
                    }
                    Some(Asked { text, answer }) = asked.recv() => {
                        number += 1;
                        if out.send(Kind::Question, number, text).await.is_ok() {
                            waiting.insert(number, answer);
                        }
                    }
                    () = &mut beating => {}
                }
            }
        };
        if cancellation.is_cancelled() {
            return Ok(());
        }
        while let Ok(notice) = told.try_recv() {
            drop(out.send(Kind::Notice, 0, write_notice(notice)).await);
        }
        let answer = written(result);
        tokio::select! {
            sent = out.send_payload(Kind::Result, &answer) => sent,
            () = gone(&mut exchange) => Ok(()),
            () = &mut beating => Ok(()),
        }
    }

    /// The call as this node makes it, by its own rules.
    ///
    /// # Errors
    /// Why it is not made.
    fn call(
        &self,
        head: &CallHead,
        id: String,
        input: JsonText,
        cancellation: &CancellationToken,
        notices: mpsc::Sender<Notice>,
        questions: mpsc::Sender<Asked>,
    ) -> Result<Call, String> {
        let mut call = Call::to(id).with(Payload::from_json(input));
        call.timeout = Some(head.timeout());
        call.scope.principal = head.principal(SystemTime::now())?;
        if call.scope.principal.is_none() && !self.link.admits_anonymous.load(Ordering::Relaxed) {
            return Err("it takes calls of identified callers alone".to_owned());
        }
        call.scope.hops = head.hops()?;
        call.scope.traceparent = head.traceparent().map(Into::into);
        call.scope.is_task = head.task;
        call.scope.cancellation = cancellation.clone();
        if head.notices {
            let sink = move |notice| drop(notices.try_send(notice));
            call.scope.notices = NoticeSink::new(sink);
        }
        if let Some(capabilities) = head.client() {
            let max = self.link.chunk();
            call.scope.client = Some(Arc::new(FarClient { capabilities, questions, max }));
        }
        Ok(call)
    }
}

/// The whole input. `None` if it does not come, or is not JSON.
async fn arrive(exchange: &mut Exchange, bytes: usize, first: Bytes) -> Option<JsonText> {
    let mut assembly = Assembly::new(bytes);
    let mut arrived = assembly.add(first);
    loop {
        match arrived {
            Arrived::Whole(input) => return JsonText::parse(input).ok(),
            Arrived::TooMuch => return None,
            Arrived::Part(bytes) => {
                exchange.out.send(Kind::Credit, bytes as u64, Bytes::new()).await.ok()?;
            }
        }
        arrived = match exchange.next().await {
            Received::Frame(Kind::Chunk, _, chunk) => assembly.add(chunk),
            Received::Frame(Kind::Cancel, ..) | Received::Lost(_) | Received::Nobody => return None,
            Received::Frame(..) => Arrived::TooMuch,
        };
    }
}

/// Waits until the caller is gone. Credits are taken meanwhile.
async fn gone(exchange: &mut Exchange) {
    loop {
        match exchange.next().await {
            Received::Frame(Kind::Cancel, ..) | Received::Lost(_) | Received::Nobody => return,
            Received::Frame(..) => {}
        }
    }
}

fn written(result: RuntimeResult<Outcome>) -> Bytes {
    let text = result.and_then(|outcome| federation::write(&outcome));
    text.unwrap_or_else(|error| federation::write_error(&error)).into()
}
