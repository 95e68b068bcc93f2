//! Requests that a client continues at another node of the cluster than the one that asked.
//!
//! # How it works
//!
//! The work stays in its process, and only this process can open its states. A state names the process,
//! so that any node can pass on the client's answers ([`resume`]). The name is not trusted: a process
//! refuses a state that it has not sealed, and a state of another method, name, arguments or principal.
//!
//! The process keeps the notices and the reply of the continued work as a stream, which the other node
//! reads in [parts]. When no node reads the stream any more, the work is cancelled, as if its client had
//! disconnected.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use http::StatusCode;
use orla_marketplace::{JsonText, Principal};
use parking_lot::Mutex;
use rmcp::model::ErrorData;
use serde::{Deserialize, Serialize};
use serde_json::value::RawValue;
use tokio::sync::Notify;
use tokio::time::{Instant, timeout};
use tokio_util::sync::CancellationToken;

use super::{Attended, Retry, Target, ended, no_randomness, target_bytes};
use crate::mcp::dispatch::{Caller, Job, Reply};
use crate::mcp::notify::notices::{NoticeOptions, Outlet};
use crate::mcp::notify::parts::{self, Part, Read, RemoteReader};
use crate::mcp::notify::stream::Stream;
use crate::mcp::rpc::Id;
use crate::nodes::{NoAnswer, question};
use crate::state::Core;
use crate::step_up::StepUp;

/// The first word of messages between nodes about these requests.
pub(crate) const WORD: &[u8] = b"pending";
/// How long a node may take to continue a request.
const NODE_TIMEOUT: Duration = Duration::from_secs(2);
/// How long a node may be silent while its messages are read.
const MAX_SILENCE: Duration = Duration::from_secs(15);
/// The pause before a silent node is asked again.
const PAUSE: Duration = Duration::from_millis(500);
/// How long a stream is kept for a reader that is silent. It is longer than [`MAX_SILENCE`].
const READER_TIMEOUT: Duration = Duration::from_secs(30);

/// A question about a request.
#[derive(Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
enum NodeRequest {
    /// The next request of a client that was asked.
    Resume(Box<Resume>),
    /// Requests a part of the stream of the continued work.
    Read { id: String, part: Part },
    /// No node reads the stream any more.
    End { id: String },
}

#[derive(Serialize, Deserialize)]
struct Resume {
    /// Identifies the stream.
    id: String,
    sealed: String,
    method: Box<str>,
    name: Box<str>,
    /// The digest of the arguments.
    digest: String,
    request_id: Box<RawValue>,
    capabilities: Option<Box<RawValue>>,
    responses: Option<Box<RawValue>>,
    progress_token: Option<Box<RawValue>>,
    log_level: Option<String>,
}

#[derive(Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
enum Resumed {
    Begun,
    Refused(ErrorData),
}

/// The requests that are continued for other nodes, by the ids of their streams.
#[derive(Default)]
pub(super) struct Continuations(Mutex<HashMap<String, Arc<Continuation>>>);

struct Continuation {
    stream: Arc<Stream>,
    /// Notified when another node reads.
    read: Notify,
    /// Cancelled when no node reads any more.
    ended: CancellationToken,
}

/// Continues a request in the process that asked.
pub(super) async fn resume(
    core: &Arc<Core>,
    instance: &str,
    sealed: &str,
    job: &Job,
    caller: &Caller,
    target: &Target,
) -> Result<Reply, ErrorData> {
    let mut id = [0; 16];
    getrandom::fill(&mut id).map_err(|_| no_randomness())?;
    let id = format!("{:032x}", u128::from_le_bytes(id));
    let raw = |text: &JsonText| text.as_raw().ok().map(ToOwned::to_owned);
    let wanted = caller.outlet.as_ref().map(|_| job.notice_options(None)).unwrap_or_default();
    let token = wanted.progress_token.and_then(|token| RawValue::from_string(token.into()).ok());
    let request = NodeRequest::Resume(Box::new(Resume {
        id: id.clone(),
        sealed: sealed.to_owned(),
        method: target.method.clone(),
        name: target.name.clone(),
        digest: target.digest(),
        request_id: RawValue::from_string(job.id.as_str().to_owned()).unwrap_or_default(),
        capabilities: job.input.capabilities.as_ref().and_then(raw),
        responses: job.input.responses.as_ref().and_then(raw),
        progress_token: token,
        log_level: wanted.log_level.map(|level| level.as_str().to_owned()),
    }));
    let answer = tokio::select! {
        biased;
        answer = follow(core, instance, &request, &id, caller) => answer,
        () = caller.cancellation.cancelled() => {
            Err(ErrorData::internal_error("the client has withdrawn the request", None))
        }
    };
    let (core, instance) = (Arc::clone(core), instance.to_owned());
    core.tracker.clone().spawn(async move {
        let end = NodeRequest::End { id };
        if let Err(error) = ask(&core, &instance, None, &end).await {
            tracing::debug!(%error, "a node was not told that nobody reads a stream any more");
        }
    });
    answer
}

/// Passes the request on, and the notices of its work to the client, until there is a reply.
async fn follow(
    core: &Arc<Core>,
    instance: &str,
    request: &NodeRequest,
    id: &str,
    caller: &Caller,
) -> Result<Reply, ErrorData> {
    let mut doubt = None;
    match ask(core, instance, caller.principal.as_ref(), request).await {
        Ok(answer) => match serde_json::from_slice(&answer) {
            Ok(Resumed::Begun) => {}
            Ok(Resumed::Refused(error)) => return Err(error),
            Err(_) => return Err(unanswered(NoAnswer::Silent("its answer cannot be read".to_owned()))),
        },
        Err(NoAnswer::Gone) => return Err(ended()),
        // If it has begun all the same, its stream is there.
        Err(silent) => doubt = Some(silent),
    }
    // The random id of the stream is enough to read it, also after the credential of the caller has expired.
    let mut reader = RemoteReader::new(instance.into(), None, 0);
    let mut heard = Instant::now();
    loop {
        let part = |part| question(WORD, &NodeRequest::Read { id: id.to_owned(), part });
        match reader.next(core, part).await {
            Ok(Read::Message(_, message)) => match decode(&message) {
                Some(reply) => return Ok(reply),
                None => {
                    if let Some(outlet) = &caller.outlet {
                        outlet.send(message);
                    }
                }
            },
            Ok(Read::Nothing) => {}
            Ok(Read::End) => return Err(doubt.map_or_else(ended, unanswered)),
            // A message is lost if a connection breaks, and nobody may receive it until the node has its own connection again.
            Err(error)
                if heard.elapsed() < MAX_SILENCE
                    && (error != NoAnswer::Gone || is_present(core, instance)) =>
            {
                tokio::time::sleep(PAUSE).await;
                continue;
            }
            Err(error) => return Err(unanswered(doubt.unwrap_or(error))),
        }
        doubt = None;
        heard = Instant::now();
    }
}

fn is_present(core: &Core, instance: &str) -> bool {
    core.cluster().is_some_and(|cluster| cluster.others().iter().any(|it| it.instance == instance))
}

fn unanswered(error: NoAnswer) -> ErrorData {
    match error {
        NoAnswer::Gone => ended(),
        NoAnswer::Silent(why) => {
            let what = format!("requestState: the request that it continues is at another node: {why}");
            ErrorData::internal_error(what, None)
        }
    }
}

async fn ask(
    core: &Core,
    instance: &str,
    caller: Option<&Principal>,
    request: &NodeRequest,
) -> Result<Bytes, NoAnswer> {
    let cluster = core.cluster().ok_or(NoAnswer::Gone)?;
    cluster.ask(instance, caller, question(WORD, request), NODE_TIMEOUT).await
}

/// Answers another node.
pub(crate) async fn answer(core: &Arc<Core>, caller: Option<&Principal>, request: &[u8]) -> Bytes {
    let of = |id: &str| core.pending.continuations.0.lock().get(id).cloned();
    match serde_json::from_slice(request) {
        Ok(NodeRequest::Resume(resume)) => {
            let resumed = begin(core, caller, *resume).err().map_or(Resumed::Begun, Resumed::Refused);
            json(&resumed)
        }
        Ok(NodeRequest::Read { id, part }) => match of(&id) {
            Some(continuation) => {
                continuation.read.notify_one();
                parts::next_part(core, &continuation.stream, &part).await
            }
            None => parts::end(),
        },
        Ok(NodeRequest::End { id }) => {
            let continuation = of(&id);
            if let Some(continuation) = &continuation {
                continuation.ended.cancel();
            }
            json(&continuation.is_some())
        }
        Err(_) => Bytes::new(),
    }
}

fn json(value: &impl Serialize) -> Bytes {
    serde_json::to_vec(value).unwrap_or_default().into()
}

/// Continues local work for another node.
///
/// # Errors
///
/// Returns the error for the client if the state is not valid.
fn begin(core: &Arc<Core>, caller: Option<&Principal>, resume: Resume) -> Result<(), ErrorData> {
    let target = target_bytes(&resume.method, &resume.name, caller, &resume.digest);
    let id = Id::read(&resume.request_id)?;
    let attended = core.pending.find(&resume.sealed, &target)?;
    let continuation = Arc::new(Continuation {
        stream: Stream::retained(0),
        read: Notify::new(),
        ended: core.abort.child_token(),
    });
    let wanted = NoticeOptions {
        progress_token: resume.progress_token.map(Into::into),
        log_level: resume.log_level.and_then(|level| level.parse().ok()),
    };
    let outlet: Arc<dyn Outlet> = continuation.stream.clone();
    let retry = Retry {
        id,
        capabilities: resume.capabilities.map(JsonText::from),
        responses: resume.responses.map(JsonText::from),
        notices: wanted.wants_any().then_some((wanted, outlet)),
        cancellation: continuation.ended.clone(),
    };
    core.pending.continuations.0.lock().insert(resume.id.clone(), Arc::clone(&continuation));
    let of = Arc::clone(core);
    core.tracker.spawn(async move {
        run(&of, &continuation, attended, retry, &target).await;
        of.pending.continuations.0.lock().remove(&resume.id);
    });
    Ok(())
}

/// Continues the work, and keeps its reply until it has been read.
async fn run(core: &Core, continuation: &Continuation, attended: Attended, retry: Retry, target: &[u8]) {
    let (id, revision) = (retry.id.clone(), attended.pending.revision);
    let work = async {
        let reply = attended.resume(core, retry, target).await;
        let reply = reply.unwrap_or_else(|error| Reply::error(Some(&id), &error, revision));
        continuation.stream.finish(Some(encode(reply)));
        tokio::select! {
            () = continuation.ended.cancelled() => {}
            () = core.draining.cancelled() => {}
        }
    };
    let mut work = std::pin::pin!(work);
    loop {
        tokio::select! {
            () = &mut work => return,
            read = timeout(READER_TIMEOUT, continuation.read.notified()) => {
                if read.is_err() {
                    continuation.ended.cancel();
                }
            }
        }
    }
}

/// The first value of the last message of a stream. The reply follows.
#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct ReplyHead {
    status: u16,
    /// The scopes that the caller lacks.
    scopes: Option<Box<str>>,
}

fn encode(reply: Reply) -> Bytes {
    let scopes = reply.step_up.map(|StepUp(scopes)| scopes);
    let head = ReplyHead { status: reply.status.as_u16(), scopes };
    let mut message = serde_json::to_vec(&head).unwrap_or_default();
    message.extend_from_slice(&reply.message);
    message.into()
}

/// Returns the reply, or `None` if the message is a notice.
fn decode(message: &Bytes) -> Option<Reply> {
    let mut values = serde_json::Deserializer::from_slice(message).into_iter::<ReplyHead>();
    let head = values.next()?.ok()?;
    let status = StatusCode::from_u16(head.status).ok()?;
    let step_up = head.scopes.map(StepUp);
    Some(Reply { status, step_up, ..Reply::ok(message.slice(values.byte_offset()..)) })
}

#[cfg(test)]
mod tests {
    use orla_marketplace::{CapabilityMarketplace, Limits};

    use super::super::{InputRequests, PendingRequest};
    use super::*;
    use crate::ServerOptions;
    use crate::mcp::protocol::Revision;

    #[tokio::test(start_paused = true)]
    async fn work_that_no_node_reads_is_cancelled() {
        let market = Arc::new(CapabilityMarketplace::new(Limits::default()));
        let core = Core::new(market, ServerOptions::default());
        let (cancellation, deadline) = (CancellationToken::new(), Instant::now() + READER_TIMEOUT * 10);
        let id = Id::read(&RawValue::from_string("1".to_owned()).unwrap()).unwrap();
        let pending = PendingRequest {
            requests: InputRequests::new(JsonText::default(), None, cancellation.clone(), None),
            id: id.clone(),
            revision: Revision::V2026_07_28,
            principal: None,
            limit: READER_TIMEOUT * 10,
            deadline,
            latest: deadline,
            cancellation: cancellation.clone(),
            state: Mutex::default(),
            done: Notify::new(),
            taken: CancellationToken::new(),
        };
        let work = Box::pin(async move {
            cancellation.cancelled().await;
            Reply::ok("{}")
        });
        let attended = core.pending.add(&core, pending, work).unwrap();
        let continuation = Continuation {
            stream: Stream::retained(0),
            read: Notify::new(),
            ended: CancellationToken::new(),
        };
        let cancellation = continuation.ended.clone();
        let retry = Retry { id, capabilities: None, responses: None, notices: None, cancellation };
        let began = Instant::now();
        let reading = async {
            tokio::time::sleep(READER_TIMEOUT / 2).await;
            continuation.read.notify_one();
        };
        tokio::join!(run(&core, &continuation, attended, retry, b""), reading);
        assert_eq!(began.elapsed(), READER_TIMEOUT / 2 + READER_TIMEOUT);
        assert!(continuation.stream.finished_at().is_some());
    }

    #[test]
    fn a_reply_is_read_as_it_was_sent_and_a_notice_is_none() {
        let text = Bytes::from_static(br#"{"jsonrpc":"2.0","id":1,"result":{"status":7}}"#);
        for (status, scopes) in [(StatusCode::OK, None), (StatusCode::FORBIDDEN, Some("a b"))] {
            let step_up = scopes.map(|scopes| StepUp(scopes.into()));
            let sent = Reply { status, step_up: step_up.clone(), ..Reply::ok(text.clone()) };
            let reply = decode(&encode(sent)).unwrap();
            assert_eq!((reply.message, reply.status, reply.step_up), (text.clone(), status, step_up));
        }
        for notice in ["", "{}", r#"{"jsonrpc":"2.0","method":"notifications/progress"}"#] {
            assert!(decode(&Bytes::from(notice)).is_none(), "{notice}");
        }
    }

    #[test]
    fn a_request_to_a_node_keeps_the_texts_of_the_client() {
        let raw = |text: &str| RawValue::from_string(text.to_owned()).unwrap();
        let request = NodeRequest::Resume(Box::new(Resume {
            id: "0a".to_owned(),
            sealed: "rs1.a.b".to_owned(),
            method: "tools/call".into(),
            name: "ask".into(),
            digest: "d".to_owned(),
            request_id: raw(r#""\u0031""#),
            capabilities: None,
            responses: Some(raw(r#"{"a": {"n": 1.10}}"#)),
            progress_token: Some(raw("7")),
            log_level: None,
        }));
        let question = question(WORD, &request);
        let text = question.strip_prefix(b"pending ").unwrap();
        let Ok(NodeRequest::Resume(read)) = serde_json::from_slice(text) else { panic!("{text:?}") };
        assert_eq!(read.request_id.get(), r#""\u0031""#);
        assert_eq!(read.responses.unwrap().get(), r#"{"a": {"n": 1.10}}"#);
        assert_eq!((read.progress_token.unwrap().get(), read.capabilities.is_none()), ("7", true));
    }
}
