//! The parts of a session at other nodes of the cluster: streams of its requests, its subscriptions, and
//! its open requests.
//!
//! # How it works
//!
//! No part is copied. The id of an event names the process that keeps its stream. When a client returns
//! to another node, that node asks the process for the next message, one at a time, so that no messages
//! queue up on the way. A subscription belongs to the node through which it was made. A record names
//! this node, and the node at which the client listens. Changes are sent to the listening node, and wait
//! at their own node until that is possible. If a node is gone, the listening node takes over its
//! subscriptions, and notifies the client that their resources may have changed.
//!
//! Answers to questions and withdrawals of requests that are not open on this node are sent to all
//! nodes.

use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet};
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use bytes::Bytes;
use futures_util::future::join_all;
use futures_util::stream::unfold;
use http::Response;
use orla_marketplace::{Call, Principal};
use orla_state::{Change as Write, Expect, StateError, StateStore, WriteError};
use rmcp::model::ErrorCode;
use serde::{Deserialize, Serialize};
use serde_json::value::RawValue;
use tokio::sync::broadcast::error::RecvError;
use tokio::time::timeout;

use crate::http::body::Body;
use crate::http::response::events;
use crate::mcp::notify::parts::{self, Part, Read, RemoteReader};
use crate::mcp::notify::sent_changes::Change;
use crate::mcp::notify::stream::{EventId, KEEP_ALIVE, event};
use crate::mcp::rpc::{self, Message};
use crate::mcp::session::shared::{LISTENING, STATE_TIMEOUT, listening_key};
use crate::mcp::session::{Connection, Session, SessionId};
use crate::mcp::surfaces::{self, SurfaceRequest};
use crate::nodes::{NoAnswer, Nodes, question};
use crate::state::Core;

/// The first word of messages between nodes about sessions.
pub(crate) const WORD: &[u8] = b"session";
/// How long a node may take to answer.
const NODE_TIMEOUT: Duration = Duration::from_secs(2);
/// The interval between two attempts to pass on changes.
const RETRY_INTERVAL: Duration = Duration::from_secs(1);
/// The largest record of the subscriptions of a session, in bytes.
const MAX_RECORD: usize = 256 << 10;
/// The maximum number of sessions whose changes are passed on at once.
const MAX_CONCURRENT: usize = 64;
/// The number of attempts to write a record that others write concurrently.
const TRIES: usize = 5;

/// A question about a session.
#[derive(Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
enum NodeRequest {
    /// Requests a part of a stream.
    Stream(StreamPart),
    /// Notes that the client listens at the asking node, and requests the changes after this number of
    /// the session's own stream.
    Take { session: String, after: Option<u64> },
    /// These resources have changed.
    Changed { session: String, uris: Vec<String> },
    /// The client gives up a subscription.
    Unsubscribe { session: String, uri: String },
    /// The client's answer to a question: its message.
    Answer { session: String, message: Box<RawValue> },
    /// The client withdraws a request.
    Cancel { session: String, key: String },
    /// These lists of a node have changed.
    Lists { lists: Vec<String> },
}

/// A [`Part`] of a stream of a session.
#[derive(Serialize, Deserialize)]
struct StreamPart {
    session: String,
    stream: u64,
    #[serde(flatten)]
    part: Part,
}

/// The changes that a client has not received.
#[derive(Debug, Default, Serialize, Deserialize)]
struct UndeliveredChanges {
    lists: Vec<String>,
    uris: Vec<String>,
}

/// The node at which the client of a session listens, and the process of each of its subscriptions.
#[derive(Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
struct Listening {
    #[serde(default, skip_serializing_if = "Option::is_none")]
    listener: Option<String>,
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    subscribed: BTreeMap<String, String>,
}

/// Answers another node.
pub(crate) async fn answer(core: &Arc<Core>, caller: Option<&Principal>, request: &[u8]) -> Bytes {
    let Ok(request) = serde_json::from_slice::<NodeRequest>(request) else { return Bytes::new() };
    let of = |id: &str| {
        let session = SessionId::parse(id).and_then(|id| core.sessions.peek(id));
        session.filter(|session| session.principal.as_ref() == caller)
    };
    match request {
        NodeRequest::Stream(request) => match of(&request.session) {
            Some(session) => next_message(core, &session, &request).await,
            None => parts::end(),
        },
        NodeRequest::Take { session, after } => {
            let undelivered = of(&session).map(|session| take_undelivered(core, &session, after));
            json(&undelivered)
        }
        NodeRequest::Changed { session, uris } => {
            let session = of(&session).filter(|session| session.listens());
            let known = match (&session, core.shared_sessions()) {
                (Some(session), Some(shared)) => get(&*shared.store, session.id).await.ok().flatten(),
                _ => None,
            };
            if let (Some(session), Some((listening, _))) = (&session, known) {
                let subscribed = uris.iter().filter(|uri| listening.subscribed.contains_key(*uri));
                subscribed.for_each(|uri| session.subscriber().notify(&Arc::from(&**uri)));
            }
            json(&session.is_some())
        }
        NodeRequest::Unsubscribe { session, uri } => {
            let subscription = of(&session).and_then(|session| session.unsubscribe(&uri));
            let is_known = subscription.is_some();
            if let Some(subscription) = subscription {
                subscription.leave(core).await;
            }
            json(&is_known)
        }
        NodeRequest::Answer { session, message } => {
            let body = Bytes::from(String::from(Box::<str>::from(message)));
            let is_known = of(&session).is_some_and(|session| match rpc::parse(&body) {
                Ok(Message::Response(response)) => session.questions.answer(&response, &body),
                _ => false,
            });
            json(&is_known)
        }
        NodeRequest::Cancel { session, key } => {
            json(&of(&session).is_some_and(|session| session.calls.cancel(&key)))
        }
        NodeRequest::Lists { lists } => {
            let has = |list: &str| u64::from(lists.iter().any(|other| other == list));
            core.lists.send_modify(|lists| {
                lists.tools += has("tools");
                lists.prompts += has("prompts");
                lists.resources += has("resources");
            });
            json(&true)
        }
    }
}

fn json(value: &impl Serialize) -> Bytes {
    serde_json::to_vec(value).unwrap_or_default().into()
}

/// Returns a part of a local stream.
async fn next_message(core: &Core, session: &Arc<Session>, request: &StreamPart) -> Bytes {
    let Some(stream) = session.stream(request.stream) else { return parts::end() };
    let _open = session.open();
    parts::next_part(core, &stream, &request.part).await
}

/// Returns the changes that a client has not received and that the node at which it now listens will
/// send.
fn take_undelivered(core: &Core, session: &Session, after: Option<u64>) -> UndeliveredChanges {
    if after.is_some() {
        // The client's connection to this node is gone, even if this node has not noticed it yet.
        session.end_listening();
    }
    let missed = after.map(|after| session.changes_after(after));
    let missed = match missed {
        None => BTreeSet::new(),
        Some(Some(missed)) => missed,
        Some(None) => all_changes(core, session),
    };
    let (mut undelivered, mut later) = (UndeliveredChanges::default(), Vec::new());
    let now = *core.lists.borrow();
    let mut room = core.cluster().map_or(0, Nodes::max_payload) / 2;
    for change in missed.into_iter().chain(session.changes(now)) {
        match change {
            Change::List(list) => undelivered.lists.push(list.to_owned()),
            Change::Resource(uri) if uri.len() + 8 <= room => {
                room -= uri.len() + 8;
                undelivered.uris.push(uri.to_string());
            }
            Change::Resource(uri) => later.push(uri.to_string()),
        }
    }
    if !later.is_empty() {
        session.subscriber().put_back(later);
        core.pending_changes.add_session(session.id.to_string());
    }
    undelivered
}

impl UndeliveredChanges {
    fn changes(self) -> BTreeSet<Change> {
        let known = ["tools", "prompts", "resources"];
        let lists = known.into_iter().filter(|known| self.lists.iter().any(|list| list == known));
        let uris = self.uris.iter().map(|uri| Change::Resource(uri.as_str().into()));
        lists.map(Change::List).chain(uris).collect()
    }
}

/// Returns all possible changes, for a case in which the actual changes are unknown.
pub(crate) fn all_changes(core: &Core, session: &Session) -> BTreeSet<Change> {
    let newest = core.market.snapshot();
    let lists = [("tools", true), ("prompts", surfaces::serves(&newest, "prompts/list"))];
    let resources = ("resources", surfaces::serves(&newest, "resources/list"));
    let lists = lists.into_iter().chain([resources]).filter(|(_, is_served)| *is_served);
    let uris = session.subscribed_uris().into_iter().map(|uri| Change::Resource(uri.as_ref().into()));
    lists.map(|(list, _)| Change::List(list)).chain(uris).collect()
}

/// Asks an instance about a session.
async fn ask(
    cluster: &dyn Nodes,
    instance: &str,
    session: &Session,
    request: &NodeRequest,
    max_wait: Duration,
) -> Result<Bytes, NoAnswer> {
    ask_as(cluster, instance, session.principal.as_ref(), request, max_wait).await
}

async fn ask_as(
    cluster: &dyn Nodes,
    instance: &str,
    caller: Option<&Principal>,
    request: &NodeRequest,
    max_wait: Duration,
) -> Result<Bytes, NoAnswer> {
    cluster.ask(instance, caller, question(WORD, request), max_wait).await
}

/// Passes a client's message about a request that is not open on this node to all nodes.
async fn send_to_all(core: &Core, session: &Session, request: &NodeRequest) {
    let Some(cluster) = core.cluster() else { return };
    let others = cluster.others();
    let requests = others.iter().map(async |other| {
        if let Err(error) = ask(cluster, &other.instance, session, request, NODE_TIMEOUT).await {
            tracing::debug!(node = other.node, %error, "a node was not told what a client says");
        }
    });
    join_all(requests).await;
}

/// Passes on an answer to a question that was not asked here.
pub(crate) async fn forward_answer(core: &Core, session: &Session, body: &Bytes) {
    let message = std::str::from_utf8(body).ok().map(str::to_owned).map(RawValue::from_string);
    if let Some(Ok(message)) = message {
        send_to_all(core, session, &NodeRequest::Answer { session: session.id.to_string(), message })
            .await;
    }
}

/// Passes on the withdrawal of a request that does not run on this node.
pub(crate) async fn forward_cancellation(core: &Core, session: &Session, key: &str) {
    let (session_id, key) = (session.id.to_string(), key.to_owned());
    send_to_all(core, session, &NodeRequest::Cancel { session: session_id, key }).await;
}

/// A stream that another process keeps, read for a client that is connected to this node.
struct RemoteStream {
    core: Arc<Core>,
    session: Arc<Session>,
    instance: Arc<str>,
    stream: u64,
    reader: RemoteReader,
    _connection: Connection,
}

/// Returns the rest of a stream that another process keeps.
pub(crate) fn remote_stream(
    core: &Arc<Core>,
    session: Arc<Session>,
    last: &EventId,
    instance: &Arc<str>,
    connection: Connection,
) -> Response<Body> {
    let stream = RemoteStream {
        core: Arc::clone(core),
        reader: RemoteReader::new(Arc::clone(instance), session.principal.clone(), last.number),
        session,
        instance: Arc::clone(instance),
        stream: last.stream,
        _connection: connection,
    };
    events(unfold(stream, |mut stream| async move {
        let ended = stream.session.calls.ended.clone();
        let draining = stream.core.draining.clone();
        let chunk = tokio::select! {
            next = stream.next() => next?,
            () = ended.cancelled() => return None,
            () = draining.cancelled() => return None,
        };
        Some((chunk, stream))
    }))
}

impl RemoteStream {
    /// Returns the next event, or a keep-alive comment. Returns `None` after the last event, and if the
    /// process is gone.
    async fn next(&mut self) -> Option<Bytes> {
        let (session, stream) = (self.session.id.to_string(), self.stream);
        let part = |part| {
            let session = session.clone();
            question(WORD, &NodeRequest::Stream(StreamPart { session, stream, part }))
        };
        let read = self.reader.next(&self.core, part).await.map_err(|error| {
            tracing::debug!(%error, "a stream of another node cannot be read on");
        });
        match read.ok()? {
            Read::Message(number, message) => {
                let instance = Some(Arc::clone(&self.instance));
                Some(event(Some(&EventId { stream, number, instance }), &message))
            }
            Read::Nothing => Some(KEEP_ALIVE),
            Read::End => None,
        }
    }
}

/// Notes that the client of a session listens here from now on, and sends it the changes that it missed.
pub(crate) async fn listen(core: &Arc<Core>, session: &Arc<Session>, last: Option<&EventId>) {
    let (Some(cluster), Some(shared)) = (core.cluster(), core.shared_sessions()) else { return };
    let own = cluster.instance();
    let last = last.and_then(|last| Some((last.instance.clone()?, last.number)));
    let (mut before, mut subscribed) = (None, Vec::new());
    let written = change(&*shared.store, session.id, |listening| {
        before.clone_from(&listening.listener);
        subscribed = listening.subscribed.keys().cloned().collect();
        let is_new = listening.listener.as_deref() != Some(own);
        listening.listener = Some(own.to_owned());
        is_new
    });
    if !matches!(timeout(STATE_TIMEOUT, written).await, Ok(Ok(_))) {
        tracing::debug!("other nodes do not know where a client listens: the state does not answer");
    }
    let (previous, after) = match last {
        Some((instance, number)) if &*instance != own => (instance.to_string(), Some(number)),
        _ => match before.filter(|before| before != own) {
            Some(before) => (before, None),
            None => return start_adopting(core, session),
        },
    };
    let request = NodeRequest::Take { session: session.id.to_string(), after };
    let answer = ask(cluster, &previous, session, &request, NODE_TIMEOUT).await.ok();
    let undelivered =
        answer.and_then(|answer| serde_json::from_slice::<Option<UndeliveredChanges>>(&answer).ok());
    let missed = match undelivered.flatten() {
        Some(undelivered) => undelivered.changes(),
        None => {
            let uris = subscribed.iter().map(|uri| Change::Resource(uri.as_str().into()));
            all_changes(core, session).into_iter().chain(uris).collect()
        }
    };
    session.resend(missed);
    start_adopting(core, session);
}

/// Takes over the subscriptions of nodes that are gone, for a client that listens at this node. The
/// takeover runs in the background, as the providers of resources may be slow.
pub(crate) fn start_adopting(core: &Arc<Core>, session: &Arc<Session>) {
    let Some(adopting) = session.begin_adopting() else { return };
    let (core, session) = (Arc::clone(core), Arc::clone(session));
    let tracker = core.tracker.clone();
    tracker.spawn(async move {
        let _adopting = adopting;
        tokio::select! {
            () = adopt(&core, &session) => {}
            () = session.calls.ended.cancelled() => {}
            () = core.draining.cancelled() => {}
        }
    });
}

async fn adopt(core: &Arc<Core>, session: &Arc<Session>) {
    let (Some(cluster), Some(shared)) = (core.cluster(), core.shared_sessions()) else { return };
    let Ok(Some((listening, _))) = get(&*shared.store, session.id).await else { return };
    let present: HashSet<String> = cluster.others().into_iter().map(|other| other.instance).collect();
    let is_gone = |instance: &String| instance != cluster.instance() && !present.contains(instance);
    let orphaned: Vec<String> =
        listening.subscribed.into_iter().filter(|(_, it)| is_gone(it)).map(|(uri, _)| uri).collect();
    for uri in orphaned {
        let newest = core.market.snapshot();
        let mut call = Call::to(String::new());
        call.scope.principal.clone_from(&session.principal);
        let missing_scopes = OnceLock::new();
        let asking = SurfaceRequest {
            market: &core.market,
            catalog: &newest,
            call,
            cache_hint: None,
            missing_scopes: &missing_scopes,
        };
        let joined = core.subscriptions.join(core, &asking, &uri, session.subscriber()).await;
        let is_local = joined.is_ok();
        match joined {
            Ok(joined) => session.subscribe(&uri, joined),
            Err(error) if IS_MISSING.contains(&error.code) => {
                tracing::warn!(uri, error = %error.message, "a subscription is lost with its node");
            }
            Err(error) => {
                tracing::debug!(uri, error = %error.message, "a subscription is taken over later");
                continue;
            }
        }
        session.subscriber().notify(&Arc::from(&*uri));
        let moved = change(&*shared.store, session.id, |listening| {
            match is_local {
                true => listening.subscribed.insert(uri.clone(), cluster.instance().to_owned()),
                false => listening.subscribed.remove(&uri),
            };
            true
        });
        if !matches!(timeout(STATE_TIMEOUT, moved).await, Ok(Ok(_))) {
            return;
        }
    }
}

/// Returns whether another node has this subscription of a session.
pub(crate) async fn is_subscribed(core: &Core, session: &Session, uri: &str) -> bool {
    let (Some(cluster), Some(shared)) = (core.cluster(), core.shared_sessions()) else { return false };
    let Ok(Some((listening, _))) = get(&*shared.store, session.id).await else { return false };
    let instance = listening.subscribed.get(uri);
    instance.is_some_and(|instance| cluster.others().iter().any(|other| other.instance == *instance))
}

/// Records a subscription that was made on this node. Without the shared state, only this node knows it.
///
/// # Errors
///
/// Returns an error if there are too many subscriptions.
pub(crate) async fn record_subscription(
    core: &Core,
    session: &Session,
    uri: &str,
) -> Result<(), &'static str> {
    let (Some(cluster), Some(shared)) = (core.cluster(), core.shared_sessions()) else { return Ok(()) };
    let recorded = change(&*shared.store, session.id, |listening| {
        let before = listening.subscribed.insert(uri.to_owned(), cluster.instance().to_owned());
        before.as_deref() != Some(cluster.instance())
    });
    match timeout(STATE_TIMEOUT, recorded).await {
        Ok(Err(NotChanged::TooLarge)) => {
            Err("the subscriptions of this session are too many for a cluster")
        }
        Ok(Ok(())) => Ok(()),
        Ok(Err(NotChanged::State)) | Err(_) => {
            tracing::debug!("other nodes do not know of a subscription: the state does not answer");
            Ok(())
        }
    }
}

/// Ends a subscription, at any node. Returns whether it was known.
pub(crate) async fn remove_subscription(core: &Core, session: &Session, uri: &str) -> bool {
    let (Some(cluster), Some(shared)) = (core.cluster(), core.shared_sessions()) else { return false };
    let mut instance = None;
    let removed = change(&*shared.store, session.id, |listening| {
        instance = listening.subscribed.remove(uri);
        instance.is_some()
    });
    if !matches!(timeout(STATE_TIMEOUT, removed).await, Ok(Ok(_))) {
        tracing::debug!("a subscription may go on at another node: the state does not answer");
    }
    let Some(instance) = instance else { return false };
    if instance != cluster.instance() {
        let request = NodeRequest::Unsubscribe { session: session.id.to_string(), uri: uri.to_owned() };
        if let Err(error) = ask(cluster, &instance, session, &request, NODE_TIMEOUT).await {
            tracing::debug!(%error, "a subscription continues at another node");
        }
    }
    true
}

/// The errors of a surface that lacks a resource, or denies it to the caller.
const IS_MISSING: [ErrorCode; 3] =
    [ErrorCode::METHOD_NOT_FOUND, ErrorCode::RESOURCE_NOT_FOUND, ErrorCode::INVALID_PARAMS];

/// The reason why a record was not changed.
#[derive(Debug)]
enum NotChanged {
    State,
    TooLarge,
}

impl From<StateError> for NotChanged {
    fn from(_: StateError) -> Self {
        Self::State
    }
}

async fn get(
    store: &dyn StateStore,
    session: SessionId,
) -> Result<Option<(Listening, u64)>, StateError> {
    let record = store.get(&listening_key(session)).await?;
    // An unreadable record is written anew.
    Ok(record.map(|record| (serde_json::from_slice(&record.value).unwrap_or_default(), record.revision)))
}

/// Changes the record of a session, if `change` returns a change.
async fn change(
    store: &dyn StateStore,
    session: SessionId,
    mut change: impl FnMut(&mut Listening) -> bool,
) -> Result<(), NotChanged> {
    for _ in 0..TRIES {
        let (mut listening, expect) = match get(store, session).await? {
            Some((listening, revision)) => (listening, Expect::Revision(revision)),
            None => (Listening::default(), Expect::Absent),
        };
        if !change(&mut listening) {
            return Ok(());
        }
        let value = serde_json::to_vec(&listening).unwrap_or_default();
        if value.len() > MAX_RECORD {
            return Err(NotChanged::TooLarge);
        }
        let put = Write::put(listening_key(session), value).expecting(expect);
        match store.write(vec![put]).await {
            Ok(_) => return Ok(()),
            Err(WriteError::Conflict { .. }) => store.sync().await?,
            Err(WriteError::Failed(_)) => return Err(NotChanged::State),
        }
    }
    Err(NotChanged::State)
}

/// Passes changes on to the nodes at which clients listen, while the server runs.
pub(crate) async fn forward(core: Arc<Core>) {
    let Some(shared) = core.shared_sessions() else { return };
    let mut keys = shared.store.changed_keys();
    // The sessions whose changes wait for a listener, by the keys of their records.
    let mut waiting = HashMap::<String, String>::new();
    let mut again = tokio::time::interval(RETRY_INTERVAL);
    again.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
    loop {
        let mut sessions: Vec<String> = tokio::select! {
            () = core.draining.cancelled() => return,
            () = core.pending_changes.woken.notified() => {
                let changes = core.pending_changes.take();
                lists_changed(&core, &changes.lists).await;
                changes.sessions.into_iter().collect()
            }
            key = next_key(&mut keys) => match key {
                Some(key) => match waiting.remove(&*key) {
                    Some(session) => vec![session],
                    None => continue,
                },
                None => waiting.drain().map(|(_, session)| session).collect(),
            },
            _ = again.tick(), if !waiting.is_empty() => {
                waiting.drain().map(|(_, session)| session).collect()
            }
        };
        while !sessions.is_empty() {
            let now = sessions.split_off(sessions.len().saturating_sub(MAX_CONCURRENT));
            let forwarding = now.iter().map(|session| pass_on(&core, session));
            for (session, is_over) in now.iter().zip(join_all(forwarding).await) {
                let Some(id) = SessionId::parse(session).filter(|_| !is_over) else { continue };
                waiting.insert(listening_key(id), session.clone());
            }
        }
    }
}

/// Returns the next key of a changed listening record, or `None` if some changes were missed.
async fn next_key(keys: &mut Option<tokio::sync::broadcast::Receiver<Arc<str>>>) -> Option<Arc<str>> {
    loop {
        let Some(receiver) = keys else { return std::future::pending().await };
        match receiver.recv().await {
            Ok(key) if key.starts_with(LISTENING) => return Some(key),
            Ok(_) => {}
            Err(RecvError::Lagged(_)) => return None,
            Err(RecvError::Closed) => *keys = None,
        }
    }
}

/// Passes on the changes of a session that its client has not received. Returns whether no work is left.
async fn pass_on(core: &Core, session: &str) -> bool {
    let session = SessionId::parse(session).and_then(|id| core.sessions.peek(id));
    let (Some(cluster), Some(shared)) = (core.cluster(), core.shared_sessions()) else { return true };
    // A client that listens on this node is notified here.
    let Some(session) = session.filter(|session| !session.listens()) else { return true };
    let listener = match get(&*shared.store, session.id).await {
        Ok(Some((listening, _))) => listening.listener,
        Ok(None) | Err(_) => None,
    };
    let Some(listener) = listener.filter(|listener| listener != cluster.instance()) else {
        return false;
    };
    let mut rest: Vec<String> = session.subscriber().take().iter().map(ToString::to_string).collect();
    while !rest.is_empty() {
        let mut room = cluster.max_payload() / 2;
        let fits = |uri: &&String| {
            let has_room = uri.len() <= room;
            room = room.saturating_sub(uri.len() + 8);
            has_room
        };
        // A change that fits into no message is left out.
        let count = rest.iter().take_while(fits).count().max(1);
        let uris: Vec<String> = rest.drain(..count).collect();
        let request = NodeRequest::Changed { session: session.id.to_string(), uris: uris.clone() };
        let answer = ask(cluster, &listener, &session, &request, NODE_TIMEOUT).await;
        let is_delivered = answer.is_ok_and(|answer| serde_json::from_slice(&answer).unwrap_or(false));
        if !is_delivered {
            session.subscriber().put_back(uris.into_iter().chain(rest));
            return false;
        }
    }
    true
}

/// Notifies the other nodes that lists of this node have changed.
async fn lists_changed(core: &Core, lists: &BTreeSet<&'static str>) {
    let Some(cluster) = core.cluster().filter(|_| !lists.is_empty()) else { return };
    let request = NodeRequest::Lists { lists: lists.iter().map(ToString::to_string).collect() };
    let others = cluster.others();
    let requests = others.iter().map(async |other| {
        if let Err(error) = ask_as(cluster, &other.instance, None, &request, NODE_TIMEOUT).await {
            tracing::debug!(node = other.node, %error, "a node was not told that lists have changed");
        }
    });
    join_all(requests).await;
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn unknown_lists_in_undelivered_changes_are_ignored() {
        let undelivered = UndeliveredChanges {
            lists: vec!["tools".to_owned(), "x".to_owned()],
            uris: vec!["a:b".to_owned()],
        };
        let changes = [Change::List("tools"), Change::Resource("a:b".into())];
        assert_eq!(undelivered.changes(), changes.into());
    }
}
