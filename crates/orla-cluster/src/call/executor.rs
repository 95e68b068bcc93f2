//! Runs calls at other nodes.

use std::any::TypeId;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use async_trait::async_trait;
use bytes::Bytes;
use futures_util::StreamExt;
use futures_util::stream::FuturesUnordered;
use orla_marketplace::{
    CallContext, CapabilityExecutor, CapabilityManifest, Hops, NotSent, Outcome, Payload,
    ProviderStatus, ProviderType, RuntimeError, RuntimeResult,
};
use orla_mcp::federation;
use tokio::time::sleep;

use super::exchange::{Exchange, Out, Received};
use super::frame::Kind;
use super::head::{CallHead, read_notice};
use super::payload::{Arrived, Assembly, chunks};
use super::{MAX_BYTES, questions};
use crate::link::{Link, MAX_HEADER};
use crate::presence::Candidate;
use crate::provider::ClusterProvider;
use crate::shared::Shared;

/// How much longer than the call's own time to wait: the other node knows the deadline too, and returns the output so
/// far.
const GRACE: Duration = Duration::from_millis(250);

/// Runs calls of capabilities that other nodes offer.
///
/// A call goes to the least loaded node that offers the version of the capability. If it has certainly not begun
/// there, or is idempotent, it goes to the next node. Dropping its future withdraws it.
pub struct ClusterExecutor {
    link: Arc<Link>,
    shared: Arc<Shared>,
}

/// Why a node gave no answer.
enum NoAnswer {
    /// The call has not begun there.
    NotBegun(String),
    /// It may have begun.
    Lost(String),
    /// It would be the same at every node.
    Impossible(String),
}

impl ClusterExecutor {
    pub(crate) fn new(link: Arc<Link>, shared: Arc<Shared>) -> Self {
        Self { link, shared }
    }

    /// The node for the next attempt: one that came meanwhile, too.
    fn next(&self, digest: &str, tried: &[String]) -> Option<Candidate> {
        let candidates = self.shared.read(|registry| registry.candidates(digest));
        candidates.into_iter().find(|candidate| !tried.contains(&candidate.node))
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
        if !link.is_connected() {
            return Err(unavailable("there is no connection to the cluster".to_owned()));
        }
        let mut lost = None;
        let mut reason = "no node of the cluster offers it in this version any more".to_owned();
        let mut tried = Vec::new();
        while let Some(candidate) = self.next(&provider.digest, &tried) {
            let node = &candidate.node;
            match attempt(link, &candidate, provider, inputs, &hops, ctx).await {
                Ok(result) => return result,
                Err(NoAnswer::Impossible(message)) => {
                    let message = format!("{} failed: {message}", ctx.name);
                    return Err(RuntimeError::Failed { id: id(), message, outcome: None });
                }
                Err(NoAnswer::NotBegun(why)) => {
                    tracing::debug!(node, why, "a node did not begin a call");
                    reason = format!("node {node} of the cluster did not take the call: {why}");
                }
                Err(NoAnswer::Lost(why)) => {
                    tracing::warn!(node, why, capability = provider.id, "a node was lost during a call");
                    let reason = match link.is_connected() {
                        true => format!("node {node} of the cluster was lost during the call: {why}"),
                        false => "the connection to the cluster was lost during the call".to_owned(),
                    };
                    if !provider.is_idempotent || !link.is_connected() {
                        return Err(RuntimeError::Unavailable { id: id(), reason, source: None });
                    }
                    lost = Some(reason);
                }
            }
            tried.push(candidate.node);
        }
        if let Some(reason) = lost {
            return Err(RuntimeError::Unavailable { id: id(), reason, source: None });
        }
        Err(unavailable(reason))
    }
}

/// Makes the call at one node.
async fn attempt(
    link: &Arc<Link>,
    candidate: &Candidate,
    provider: &ClusterProvider,
    inputs: &Bytes,
    hops: &Hops,
    ctx: &CallContext,
) -> Result<RuntimeResult<Outcome>, NoAnswer> {
    let node = &candidate.node;
    let inbox = link.open().map_err(NoAnswer::NotBegun)?;
    let reply = link.frames_of(&link.settings.node, &inbox.token);
    let deadline = ctx.renewed().deadline;
    let head = CallHead::new(&link.settings.node, &inbox.token, hops, ctx, deadline, inputs.len());
    let head = head.write();
    if head.len() > MAX_HEADER - 1024 {
        return Err(NoAnswer::Impossible(
            "what is known of its caller is too large to be sent".to_owned(),
        ));
    }
    let mut exchange = Exchange::new(link, inbox, node);
    let out = Arc::clone(&exchange.out);
    let (first, others) = chunks(inputs, link.chunk());
    let sent = first.len();
    let subject = link.calls_of(node, &provider.digest);
    link.send(subject, Some(reply), &head, first).await.map_err(NoAnswer::NotBegun)?;
    candidate.sent.fetch_add(1, Ordering::Relaxed);
    let mut withdrawal = Withdrawal(Some(Arc::clone(&out)));
    let body = {
        let (sending, beating) = (out.send_chunks(others, sent), out.beat());
        tokio::pin!(sending, beating);
        let (mut is_sent, mut result, mut asked) = (false, None, FuturesUnordered::new());
        loop {
            let (kind, number, payload) = tokio::select! {
                biased;
                received = exchange.next() => match received {
                    Received::Frame(kind, number, payload) => (kind, number, payload),
                    Received::Nobody => {
                        withdrawal.0 = None;
                        return Err(NoAnswer::NotBegun("it is gone".to_owned()));
                    }
                    Received::Lost(why) => return Err(NoAnswer::Lost(why.to_owned())),
                },
                Some((number, answer)) = asked.next(), if !asked.is_empty() => {
                    // An answer that does not arrive is missed there.
                    drop(out.send(Kind::Answer, number, answer).await);
                    continue;
                }
                done = &mut sending, if !is_sent => {
                    is_sent = true;
                    done.map_err(NoAnswer::Lost)?;
                    continue;
                }
                () = &mut beating => continue,
            };
            let arrived = match kind {
                Kind::Notice => {
                    read_notice(&payload).into_iter().for_each(|notice| ctx.scope.notices.send(notice));
                    continue;
                }
                Kind::Question => {
                    let (client, max) = (ctx.scope.client.clone(), link.chunk());
                    asked.push(async move { (number, questions::ask(client, payload, max).await) });
                    continue;
                }
                Kind::Refused => {
                    withdrawal.0 = None;
                    return Err(NoAnswer::NotBegun(text(&payload)));
                }
                Kind::Gone => {
                    withdrawal.0 = None;
                    return Err(NoAnswer::Lost("it ends".to_owned()));
                }
                Kind::Result => {
                    let total = usize::try_from(number).ok().filter(|total| *total <= MAX_BYTES);
                    let Some(total) = total else {
                        let what = format!("its result has more than {MAX_BYTES} bytes");
                        return Err(NoAnswer::Impossible(what));
                    };
                    result.insert(Assembly::new(total)).add(payload)
                }
                Kind::Chunk => match &mut result {
                    Some(result) => result.add(payload),
                    None => Arrived::TooMuch,
                },
                _ => continue,
            };
            match arrived {
                Arrived::Whole(body) => break body,
                Arrived::Part(bytes) => {
                    drop(out.send(Kind::Credit, bytes as u64, Bytes::new()).await);
                }
                Arrived::TooMuch => return Err(NoAnswer::Lost("it sends what is no result".to_owned())),
            }
        }
    };
    withdrawal.0 = None;
    let instance = format!("the node {node}");
    let request = federation::Request { ctx, instance: &instance, capability: &provider.id };
    federation::read(request, &body)
        .ok_or_else(|| NoAnswer::Lost("it sends what is no result".to_owned()))
}

/// A text of another node, for people.
fn text(payload: &[u8]) -> String {
    String::from_utf8_lossy(payload).chars().filter(|c| !c.is_control()).take(500).collect()
}

/// Withdraws a call unless it is over.
struct Withdrawal(Option<Arc<Out>>);

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
        let late = async {
            ctx.expired().await;
            sleep(GRACE).await;
        };
        let limit = ctx.timeout;
        tokio::select! {
            biased;
            () = ctx.scope.cancellation.cancelled() => {
                Err(RuntimeError::Cancelled { id: ctx.name.to_string(), outcome: None })
            }
            done = self.call(provider, inputs, ctx) => match done {
                Err(RuntimeError::TimedOut { id, outcome, .. }) => {
                    Err(RuntimeError::TimedOut { id, limit, outcome })
                }
                done => done,
            },
            () = late => Err(RuntimeError::TimedOut { id: ctx.name.to_string(), limit, outcome: None }),
        }
    }

    /// The node that runs the call checks its types.
    fn checks_types(&self, _manifest: &CapabilityManifest) -> bool {
        true
    }

    fn status(&self, provider: &ProviderType) -> ProviderStatus {
        let mut status = ProviderStatus::default();
        if let Ok(provider) = provider.settings::<ClusterProvider>() {
            let nodes = self.shared.read(|registry| registry.candidates(&provider.digest));
            let mut nodes: Vec<String> = nodes.into_iter().map(|one| one.node).collect();
            nodes.sort();
            status.source = Some(format!("nodes: {}", nodes.join(", ")));
        }
        status
    }
}
