//! Runs calls at other nodes.

use std::any::TypeId;
use std::sync::atomic::Ordering;
use std::sync::{Arc, Weak};
use std::time::Duration;

use async_trait::async_trait;
use bytes::Bytes;
use futures_util::StreamExt;
use futures_util::stream::FuturesUnordered;
use orla_marketplace::rtfs::text::excerpt;
use orla_marketplace::{
    CallContext, CapabilityExecutor, CapabilityManifest, CapabilityMarketplace, Hops, MemoryBudget,
    NotSent, Outcome, OverBudget, Payload, ProviderStatus, ProviderType, Reservation, RuntimeError,
    RuntimeResult, rtfs,
};
use orla_mcp::federation;

use super::exchange::{Exchange, Out, Received};
use super::frame::Kind;
use super::head::{CallHead, read_notice};
use super::payload::{Arrived, Assembly, chunks};
use super::{MAX_BYTES, MAX_QUESTIONS, questions};
use crate::link::{Link, MAX_HEADER};
use crate::presence::Candidate;
use crate::provider::ClusterProvider;
use crate::shared::{Shared, count};

/// How much longer than the call's own time to wait: the other node knows the deadline too, and returns the output so
/// far.
const GRACE: Duration = Duration::from_millis(250);

/// How often an idempotent call is sent to a node that gives no answer: a message may have been lost with a NATS server,
/// and the node be well.
const ATTEMPTS: usize = 2;

/// The pauses after which an idempotent call whose node was lost asks the nodes again that did not take it. They may be
/// connecting to another NATS server, or starting.
const PAUSES: [Duration; 5] = [
    Duration::from_millis(250),
    Duration::from_millis(500),
    Duration::from_secs(1),
    Duration::from_secs(2),
    Duration::from_secs(4),
];

/// How many characters of a name that no node has an error repeats.
const MAX_NAME_SHOWN: usize = 100;

/// Runs calls of capabilities that other nodes offer.
///
/// A call goes to the least loaded node that offers the version of the capability. If it has certainly not begun
/// there, or is idempotent, it goes to the next node. Dropping its future withdraws it.
pub struct ClusterExecutor {
    link: Arc<Link>,
    shared: Arc<Shared>,
    market: Weak<CapabilityMarketplace>,
}

/// The reason why a node gave no answer.
enum NoAnswer {
    /// The call has not begun there.
    NotBegun(String),
    /// The same, for lack of room: its error.
    Busy(RuntimeError),
    /// It may have begun.
    Lost(String),
    /// It would be the same at every node.
    Impossible(String),
}

/// How a call at a node ends.
enum End {
    /// The node has answered. The memory is reserved until the outcome has its own.
    Answer(Bytes, Option<Reservation>),
    /// The node gives no answer, and there is nothing to withdraw.
    Over(NoAnswer),
    /// The call may still run there, and is withdrawn.
    Withdrawn(Result<RuntimeResult<Outcome>, NoAnswer>),
}

impl ClusterExecutor {
    pub(crate) fn new(
        link: Arc<Link>,
        shared: Arc<Shared>,
        market: Weak<CapabilityMarketplace>,
    ) -> Self {
        Self { link, shared, market }
    }

    /// Returns the node for the next attempt, which may be a node that joined in the meantime.
    fn next(&self, digest: &str, silent: &Silent, wanted: Option<&str>) -> Option<Candidate> {
        let mut candidates = self.shared.read(|registry| registry.candidates(digest));
        candidates.retain(|candidate| wanted.is_none_or(|node| node == candidate.node));
        silent.best(candidates)
    }

    async fn call(
        &self,
        provider: &ClusterProvider,
        inputs: &Bytes,
        ctx: &CallContext,
    ) -> RuntimeResult<Outcome> {
        let link = &self.link;
        let id = || ctx.name.to_string();
        let unavailable = |reason: String| {
            let source = NotSent(reason.clone().into());
            RuntimeError::Unavailable { id: id(), reason, source: Some(Box::new(source)) }
        };
        let hops = ctx.scope.hops.through(&link.settings.node);
        let hops = hops.map_err(|what| RuntimeError::Limit { id: id(), what })?;
        let Some(market) = self.market.upgrade() else {
            return Err(unavailable("this node ends".to_owned()));
        };
        let (mut lost, mut busy) = (None, None);
        let wanted = ctx.scope.node.as_deref();
        let mut reason = match wanted {
            Some(node) => {
                format!("node {} of the cluster does not offer it now", excerpt(node, MAX_NAME_SHOWN))
            }
            None => "no node of the cluster offers this version any longer".to_owned(),
        };
        let (mut silent, mut pauses) = (Silent::default(), PAUSES.into_iter());
        loop {
            let Some(candidate) = self.next(&provider.digest, &silent, wanted) else {
                let Some(pause) = pauses.next().filter(|_| lost.is_some()) else { break };
                if tokio::time::Instant::now() + pause >= ctx.renewed().deadline {
                    break;
                }
                tokio::time::sleep(pause).await;
                silent.refused.clear();
                continue;
            };
            let node = &candidate.node;
            if !link.wait_until_connected().await {
                reason = "there is no connection to the cluster".to_owned();
                break;
            }
            let events = &self.shared.events;
            count(&events.sent);
            if !silent.is_empty() {
                count(&events.repeated);
                // The last thing noted may be that the call waited at the node before.
                if let Some(checkpoint) = &ctx.scope.checkpoint {
                    checkpoint.before_remote_attempt(provider.is_idempotent).await?;
                }
            }
            let attempt = Attempt { link, candidate: &candidate, provider, hops: &hops, ctx };
            match attempt.make(inputs, market.memory()).await {
                Ok(result) => return result,
                Err(NoAnswer::Impossible(message)) => {
                    let message = format!("{} failed: {message}", ctx.name);
                    return Err(RuntimeError::Failed { id: id(), message, outcome: None });
                }
                Err(NoAnswer::NotBegun(why)) => {
                    tracing::debug!(node, why, "a node did not begin a call");
                    reason = format!("node {node} of the cluster did not take the call: {why}");
                }
                Err(NoAnswer::Busy(error)) => busy = Some(error),
                Err(NoAnswer::Lost(why)) => {
                    tracing::warn!(node, why, capability = provider.id, "a node was lost during a call");
                    count(&events.lost);
                    // If NATS itself is silent, it may still deliver the call to this node later. Then the call is
                    // not sent to another one.
                    let nats_answers = link.probe().await
                        || provider.is_idempotent
                            && link.wait_until_connected().await
                            && link.probe().await;
                    let reason = match nats_answers {
                        true => format!("node {node} of the cluster was lost during the call: {why}"),
                        false => "the connection to the cluster was lost during the call".to_owned(),
                    };
                    if !provider.is_idempotent || !nats_answers {
                        return Err(RuntimeError::Unavailable { id: id(), reason, source: None });
                    }
                    lost = Some(reason);
                    silent.lost.push(candidate.instance);
                    continue;
                }
            }
            silent.refused.push(candidate.instance);
        }
        if let Some(reason) = lost {
            return Err(RuntimeError::Unavailable { id: id(), reason, source: None });
        }
        Err(busy.unwrap_or_else(|| unavailable(reason)))
    }
}

/// The instances that gave no answer to a call.
#[derive(Default)]
struct Silent {
    /// Those that did not take it.
    refused: Vec<String>,
    /// Those that were lost during the call, for each time.
    lost: Vec<String>,
}

impl Silent {
    fn is_empty(&self) -> bool {
        self.refused.is_empty() && self.lost.is_empty()
    }

    /// Returns the first of the candidates that were lost least often, less than [`ATTEMPTS`] times, and have not refused.
    fn best(&self, mut candidates: Vec<Candidate>) -> Option<Candidate> {
        let losses =
            |candidate: &Candidate| self.lost.iter().filter(|it| **it == candidate.instance).count();
        candidates.retain(|it| !self.refused.contains(&it.instance) && losses(it) < ATTEMPTS);
        candidates.into_iter().min_by_key(losses)
    }
}

/// A call at one node.
struct Attempt<'a> {
    link: &'a Arc<Link>,
    candidate: &'a Candidate,
    provider: &'a ClusterProvider,
    hops: &'a Hops,
    ctx: &'a CallContext,
}

impl Attempt<'_> {
    /// Makes the call. Its result takes memory from this budget.
    async fn make(
        &self,
        inputs: &Bytes,
        memory: &Arc<MemoryBudget>,
    ) -> Result<RuntimeResult<Outcome>, NoAnswer> {
        let &Self { link, candidate, provider, hops, ctx } = self;
        let peer = (candidate.node.as_str(), candidate.instance.as_str());
        let inbox = link.open().map_err(NoAnswer::NotBegun)?;
        let reply = link.own_frames(&inbox.token);
        let own = (link.settings.node.as_str(), link.instance.as_str());
        let deadline = ctx.renewed().deadline;
        let head = CallHead::new(own, &inbox.token, hops, ctx, deadline, inputs.len());
        let head = head.write();
        if head.len() > MAX_HEADER - 1024 {
            return Err(NoAnswer::Impossible(
                "the data about its caller is too large to be sent".to_owned(),
            ));
        }
        let mut exchange = Exchange::new(link, inbox, peer);
        let out = Arc::clone(&exchange.out);
        let (first, others) = chunks(inputs, link.chunk());
        let sent = first.len();
        let subject = link.calls_of(peer.0, peer.1, &provider.digest);
        link.send(subject, Some(reply), &head, first).await.map_err(NoAnswer::NotBegun)?;
        candidate.sent.fetch_add(1, Ordering::Relaxed);
        let mut withdrawal = Withdrawal(Some(Arc::clone(&out)));
        let end = self.follow(&mut exchange, out.send_chunks(others, sent), memory).await;
        if !matches!(end, End::Withdrawn(_)) {
            withdrawal.disarm();
        }
        match end {
            End::Answer(body, _reserved) => {
                self.read(&body).ok_or_else(|| NoAnswer::Lost("it sent an invalid result".to_owned()))
            }
            End::Over(why) => Err(why),
            End::Withdrawn(result) => result,
        }
    }

    /// Sends the rest of the input, answers the questions of the node, and collects its answer.
    async fn follow(
        &self,
        exchange: &mut Exchange,
        sending: impl Future<Output = Result<(), String>>,
        memory: &Arc<MemoryBudget>,
    ) -> End {
        let &Self { link, provider, ctx, .. } = self;
        let out = Arc::clone(&exchange.out);
        let heartbeats = out.send_heartbeats();
        tokio::pin!(sending, heartbeats);
        let (mut is_sent, mut result, mut open_questions) = (false, None, FuturesUnordered::new());
        loop {
            let received = tokio::select! {
                biased;
                received = exchange.next() => received,
                Some((number, answer)) = open_questions.next(), if !open_questions.is_empty() => {
                    // An answer that does not arrive is missed there.
                    drop(out.send(Kind::Answer, number, answer).await);
                    continue;
                }
                done = &mut sending, if !is_sent => match done {
                    Ok(()) => {
                        is_sent = true;
                        continue;
                    }
                    Err(why) => return End::Withdrawn(Err(NoAnswer::Lost(why))),
                },
                () = &mut heartbeats => continue,
            };
            match received {
                Received::Frame(Kind::Notice, _, payload) => {
                    let notices = read_notice(&payload).into_iter();
                    notices.for_each(|notice| ctx.scope.notices.send(notice));
                }
                // It has more open questions than it may ask.
                Received::Frame(Kind::Question, number, _) if open_questions.len() >= MAX_QUESTIONS => {
                    drop(out.send(Kind::Answer, number, questions::gone_answer()).await);
                }
                Received::Frame(Kind::Question, number, payload) => {
                    let (client, max) = (ctx.scope.client.clone(), link.chunk());
                    let noted = ctx.scope.checkpoint.clone().map(|it| (it, provider.is_idempotent));
                    open_questions.push(async move {
                        (number, questions::ask(client, noted, payload, max).await)
                    });
                }
                Received::Frame(Kind::Refused, _, payload) => {
                    return End::Over(NoAnswer::NotBegun(text(&payload)));
                }
                Received::Frame(Kind::Busy, _, payload) => {
                    let error = self.read(&payload).and_then(RuntimeResult::err);
                    return End::Over(match error.filter(RuntimeError::never_ran) {
                        Some(error) => NoAnswer::Busy(error),
                        None => NoAnswer::NotBegun("the node has no place for another call".to_owned()),
                    });
                }
                Received::Frame(Kind::Gone, ..) => {
                    return End::Over(NoAnswer::Lost("the node is shutting down".to_owned()));
                }
                Received::Frame(kind @ (Kind::Result | Kind::Chunk), number, payload) => {
                    match arrive(&mut result, kind, number, payload, memory) {
                        Ok(Arrived::Whole(body)) => {
                            return End::Answer(body, result.map(Assembly::into_reserved));
                        }
                        Ok(Arrived::Part(bytes)) => {
                            drop(out.send(Kind::Credit, bytes as u64, Bytes::new()).await);
                        }
                        Ok(Arrived::NoMemory(over)) => {
                            return End::Withdrawn(Ok(Err(no_memory_error(ctx, over))));
                        }
                        Ok(Arrived::TooMuch) => {
                            let why = "it sent an invalid result".to_owned();
                            return End::Withdrawn(Err(NoAnswer::Lost(why)));
                        }
                        Err(why) => return End::Withdrawn(Err(why)),
                    }
                }
                Received::Frame(..) => {}
                Received::NoResponders => {
                    return End::Over(NoAnswer::NotBegun("the node is gone".to_owned()));
                }
                Received::Lost(why) => return End::Withdrawn(Err(NoAnswer::Lost(why.to_owned()))),
            }
        }
    }

    /// Reads the answer of the node. Returns `None` if the body is not an answer.
    fn read(&self, body: &Bytes) -> Option<RuntimeResult<Outcome>> {
        let instance = format!("the node {}", self.candidate.node);
        let request =
            federation::Request { ctx: self.ctx, instance: &instance, capability: &self.provider.id };
        federation::read(request, body)
    }
}

/// Takes a part of an answer, whose first frame contains the total length.
///
/// # Errors
///
/// Returns an error if the answer is too long.
fn arrive(
    result: &mut Option<Assembly>,
    kind: Kind,
    number: u64,
    payload: Bytes,
    memory: &Arc<MemoryBudget>,
) -> Result<Arrived, NoAnswer> {
    if kind == Kind::Result {
        let total = usize::try_from(number).ok().filter(|total| *total <= MAX_BYTES);
        let total = total.ok_or_else(|| {
            NoAnswer::Impossible(format!("its result has more than {MAX_BYTES} bytes"))
        })?;
        match Assembly::new(total, memory) {
            Ok(assembly) => *result = Some(assembly),
            Err(over) => return Ok(Arrived::NoMemory(over)),
        }
    }
    Ok(match result {
        Some(result) => result.add(payload),
        None => Arrived::TooMuch,
    })
}

/// Returns the error of a call whose result there is no memory for.
fn no_memory_error(ctx: &CallContext, over: OverBudget) -> RuntimeError {
    let message = format!("{}: its output was dropped: {over}", ctx.name);
    let error = Box::new(rtfs::Error::new("busy", message.clone()));
    RuntimeError::Structured { id: ctx.name.to_string(), message, error, outcome: None }
}

/// Returns a text of another node, for people.
fn text(payload: &[u8]) -> String {
    String::from_utf8_lossy(payload).chars().filter(|c| !c.is_control()).take(500).collect()
}

/// Withdraws a call unless it is over.
struct Withdrawal(Option<Arc<Out>>);

impl Withdrawal {
    /// The call is over.
    fn disarm(&mut self) {
        self.0 = None;
    }
}

impl Drop for Withdrawal {
    fn drop(&mut self) {
        let (Some(out), Ok(runtime)) = (self.0.take(), tokio::runtime::Handle::try_current()) else {
            return;
        };
        runtime.spawn(async move { out.send(Kind::Cancel, 0, Bytes::new()).await });
    }
}

#[async_trait]
impl CapabilityExecutor for ClusterExecutor {
    fn provider_type_id(&self) -> TypeId {
        TypeId::of::<ClusterProvider>()
    }

    async fn execute(
        &self,
        provider: &ProviderType,
        inputs: &Payload,
        ctx: &CallContext,
    ) -> RuntimeResult<Outcome> {
        let provider: &ClusterProvider = provider.settings()?;
        let inputs = inputs.json()?.bytes();
        if inputs.len() > MAX_BYTES {
            let what =
                format!("an input of {} bytes for another node; at most {MAX_BYTES}", inputs.len());
            return Err(RuntimeError::Limit { id: ctx.name.to_string(), what });
        }
        ctx.run_remotely(GRACE, self.call(provider, inputs, ctx)).await
    }

    /// Returns the node that runs the call checks its types.
    fn checks_types(&self, _manifest: &CapabilityManifest) -> bool {
        true
    }

    fn chooses_nodes(&self) -> bool {
        true
    }

    fn status(&self, provider: &ProviderType) -> ProviderStatus {
        let mut status = ProviderStatus::default();
        if let Ok(provider) = provider.settings::<ClusterProvider>() {
            let nodes = self.shared.read(|registry| registry.names(&provider.digest));
            status.source = Some(format!("nodes: {}", nodes.join(", ")));
        }
        status
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_node_that_gave_no_answer_is_the_last_choice() {
        let node = |name: &str| Candidate {
            node: name.to_owned(),
            instance: name.to_owned(),
            sent: Arc::default(),
        };
        let next = |lost: &[&str], refused: &[&str]| {
            let owned = |names: &[&str]| names.iter().map(|&it| it.to_owned()).collect();
            let silent = Silent { refused: owned(refused), lost: owned(lost) };
            silent.best(vec![node("a"), node("b")]).map(|it| it.node)
        };
        assert_eq!(next(&[], &[]).as_deref(), Some("a"));
        assert_eq!(next(&["a"], &[]).as_deref(), Some("b"));
        assert_eq!(next(&["a"], &["b"]).as_deref(), Some("a"), "the other one has refused");
        assert_eq!(next(&["a", "a"], &["b"]), None);
        assert_eq!(next(&["a", "a"], &[]).as_deref(), Some("b"), "it is asked again after a pause");
    }
}
