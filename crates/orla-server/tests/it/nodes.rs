//! Several servers of one cluster, which ask each other: streams, subscriptions and questions of a session that moves.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use async_trait::async_trait;
use bytes::Bytes;
use orla_marketplace::{ApprovalRule, Approvers, Call, Catalog, MayAnswer, Principal};
use orla_server::{DrainError, NoAnswer, NodeRow, Nodes, OtherNode, Server, ServerOptions};
use orla_state::Memory;
use parking_lot::Mutex;
use serde_json::json;
use tokio_util::task::TaskTracker;

use super::subscriptions::{Resources, load, subscribe, updated};
use super::support::{Connection, World, eventually};

/// The servers that run, by their instances, and the network between them.
#[derive(Default)]
pub(super) struct Network {
    pub(super) servers: Mutex<BTreeMap<&'static str, Server>>,
    /// How many of the next answers about pending requests are lost.
    pub(super) losses: AtomicUsize,
}

/// One of them.
struct Node {
    instance: &'static str,
    network: Arc<Network>,
}

#[async_trait]
impl Nodes for Node {
    fn rows(&self) -> Vec<NodeRow> {
        Vec::new()
    }

    fn is_connected(&self) -> bool {
        true
    }

    fn events(&self) -> Vec<(&'static str, u64)> {
        Vec::new()
    }

    fn versions(&self, _catalog: &Catalog) -> Vec<(String, String)> {
        Vec::new()
    }

    fn with_versions(&self, _versions: &[(&str, &str)]) -> Option<Arc<Catalog>> {
        None
    }

    async fn drain(&self, _node: &str, _drains: bool) -> Result<(), DrainError> {
        Err(DrainError::Unknown)
    }

    fn instance(&self) -> &str {
        self.instance
    }

    fn others(&self) -> Vec<OtherNode> {
        let servers = self.network.servers.lock();
        let others = servers.keys().filter(|instance| **instance != self.instance);
        others.map(|name| OtherNode { node: (*name).to_owned(), instance: (*name).to_owned() }).collect()
    }

    /// Little, so that messages come in parts.
    fn max_payload(&self) -> usize {
        300
    }

    async fn ask(
        &self,
        instance: &str,
        caller: Option<&Principal>,
        question: Bytes,
        max_wait: Duration,
    ) -> Result<Bytes, NoAnswer> {
        let silent = || NoAnswer::Silent("it took too long".to_owned());
        let server = self.network.servers.lock().get(instance).cloned().ok_or(NoAnswer::Gone)?;
        let answer = tokio::time::timeout(max_wait, server.answer_node(caller, &question)).await;
        let losses = &self.network.losses;
        let is_lost = question.starts_with(br#"pending {"read"#)
            && losses
                .fetch_update(Ordering::SeqCst, Ordering::SeqCst, |left| left.checked_sub(1))
                .is_ok();
        answer.ok().filter(|_| !is_lost).ok_or_else(silent)
    }
}

const NAMES: [&str; 2] = ["a1", "b2"];

/// Two servers that share a state, and what each serves.
pub(super) async fn servers() -> ([World; 2], [Arc<Resources>; 2], Arc<Network>) {
    servers_with(ServerOptions::default()).await
}

pub(super) async fn servers_with(
    options: ServerOptions,
) -> ([World; 2], [Arc<Resources>; 2], Arc<Network>) {
    let (records, network) = (Arc::new(Memory::default()), Arc::<Network>::default());
    let worlds = [World::with(options.clone()).await, World::with(options).await];
    let resources = [Resources::new("file:"), Resources::new("file:")];
    for ((world, resources), instance) in worlds.iter().zip(&resources).zip(NAMES) {
        world.server.show_nodes(Node { instance, network: Arc::clone(&network) });
        world.server.share_sessions(Arc::clone(&records) as Arc<dyn orla_state::StateStore>);
        network.servers.lock().insert(instance, world.server.clone());
        load(world, &[resources]).await;
    }
    (worlds, resources, network)
}

/// Returns a connection to a server in this session.
async fn reconnect(session: &Connection, to: &World) -> Connection {
    let mut other = to.connect().await;
    other.session.clone_from(&session.session);
    other
}

/// Returns the session's own stream at a server, after the last event that its client saw.
async fn listen(session: &Connection, at: &World, last: Option<&str>) -> Connection {
    let mut stream = reconnect(session, at).await;
    assert!(stream.get(last).await.is_stream());
    stream
}

#[tokio::test]
async fn a_client_that_returns_to_another_server_misses_nothing() {
    let ([alpha, beta], ..) = servers().await;
    let mut at_alpha = alpha.session().await;
    let call = json!({"jsonrpc": "2.0", "id": 7, "method": "tools/call", "params":
        {"name": "noise", "arguments": {"ms": 20}, "_meta": {"progressToken": "x"}}});
    at_alpha.send(call.to_string().as_bytes(), &[]).await;
    assert!(at_alpha.head().await.is_stream());
    let first = at_alpha.event().await.unwrap().id.unwrap();
    assert!(first.ends_with("-a1"), "{first}");
    // Another session has no such stream, and this session has no stream with another number.
    let stranger = alpha.session().await;
    for (session, last) in [(&stranger, first.as_str()), (&at_alpha, "99-0-a1")] {
        let mut nothing = reconnect(session, &beta).await;
        nothing.get(Some(last)).await;
        assert!(nothing.event().await.is_none());
    }
    let mut at_beta = reconnect(&at_alpha, &beta).await;
    at_beta.get(Some(&first)).await;
    let (mut last, mut progress) = (0, Vec::new());
    while let Some(event) = at_beta.event().await {
        let id = event.id.expect("an event has an id");
        let number: u64 = id.split('-').nth(1).unwrap().parse().unwrap();
        assert!(number == last + 1 || last == 0, "{last} {id}");
        last = number;
        if event.message["method"] == "notifications/progress" {
            progress.push(event.message["params"]["progress"].as_f64().unwrap());
        }
        if event.message["id"] == 7 {
            assert_eq!(event.message["result"]["content"][0]["text"], "done");
            last = u64::MAX - 1;
        }
    }
    assert_eq!((last, progress), (u64::MAX - 1, vec![1.0, 2.0, 3.0]));
}

#[tokio::test]
async fn changes_reach_the_node_where_the_client_listens() {
    let ([alpha, beta], [files, others], _) = servers().await;
    let mut at_alpha = alpha.session().await;
    let mut at_beta = reconnect(&at_alpha, &beta).await;
    assert_eq!(subscribe(&mut at_alpha, "file:1").await["result"], json!({}));
    // The second node does not subscribe once more.
    assert_eq!(subscribe(&mut at_beta, "file:1").await["result"], json!({}));
    assert!(others.requests().is_empty());
    // Changes before the client listens are not lost.
    files.updates("file:1");
    let mut stream = listen(&at_alpha, &beta, None).await;
    assert_eq!(updated(&mut stream).await["uri"], "file:1");
    files.updates("file:1");
    let event = loop {
        let event = stream.event().await.unwrap();
        if event.message["method"] == "notifications/resources/updated" {
            break event;
        }
    };
    // The connection breaks, and the client returns to the first node with the number before.
    let id = event.id.unwrap();
    let (_, rest) = id.split_once('-').unwrap();
    let number: u64 = rest.split('-').next().unwrap().parse().unwrap();
    let mut back = listen(&at_alpha, &alpha, Some(&format!("0-{}-b2", number - 1))).await;
    assert_eq!(updated(&mut back).await["uri"], "file:1");
    while stream.event().await.is_some() {}
    let (_, answer) = at_beta.post("resources/unsubscribe", json!({"uri": "file:1"}), &[]).await;
    assert_eq!(answer["result"], json!({}));
    assert_eq!(files.requests(), ["subscribe file:1", "unsubscribe file:1"]);
}

#[tokio::test]
async fn a_subscription_lasts_while_any_server_uses_its_session() {
    let mut options = ServerOptions::default();
    options.session_idle = Duration::from_secs(4);
    let idle = options.session_idle;
    let ([alpha, beta], [files, _], _) = servers_with(options).await;
    let mut at_alpha = alpha.session().await;
    subscribe(&mut at_alpha, "file:1").await;
    let mut at_beta = reconnect(&at_alpha, &beta).await;
    let begun = Instant::now();
    while begun.elapsed() < idle * 3 {
        assert_eq!(at_beta.post("tools/list", json!({}), &[]).await.0.status, 200);
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    let mut stream = listen(&at_alpha, &beta, None).await;
    files.updates("file:1");
    assert_eq!(updated(&mut stream).await["uri"], "file:1");
}

#[tokio::test]
async fn subscriptions_of_a_lost_node_are_taken_over() {
    let ([alpha, beta], [_, others], network) = servers().await;
    let mut at_alpha = alpha.session().await;
    subscribe(&mut at_alpha, "file:1").await;
    network.servers.lock().remove("a1");
    let mut stream = listen(&at_alpha, &beta, None).await;
    // It may have changed.
    assert_eq!(updated(&mut stream).await["uri"], "file:1");
    eventually(|| others.requests() == ["subscribe file:1"]).await;
    others.updates("file:1");
    assert_eq!(updated(&mut stream).await["uri"], "file:1");
}

#[tokio::test]
async fn a_client_of_a_lost_node_is_notified_that_all_may_have_changed() {
    let ([alpha, beta], _, network) = servers().await;
    let at_alpha = alpha.session().await;
    let mut stream = listen(&at_alpha, &alpha, None).await;
    stream.event().await;
    network.servers.lock().remove("a1");
    let mut stream = listen(&at_alpha, &beta, Some("0-0-a1")).await;
    let mut methods = Vec::new();
    while methods.len() < 3 {
        let event = stream.event().await.unwrap();
        methods.extend(event.all.iter().filter_map(|it| it["method"].as_str().map(str::to_owned)));
    }
    let all = ["tools", "prompts", "resources"];
    assert_eq!(methods, all.map(|list| format!("notifications/{list}/list_changed")));
}

#[tokio::test]
async fn a_request_is_withdrawn_at_any_server() {
    let ([alpha, beta], ..) = servers().await;
    let mut at_alpha = alpha.session().await;
    let call = json!({"jsonrpc": "2.0", "id": 9, "method": "tools/call", "params":
        {"name": "sleep", "arguments": {"ms": 60_000}}});
    at_alpha.send(call.to_string().as_bytes(), &[]).await;
    alpha.seen.until(|seen| &seen.began, 1).await;
    let mut at_beta = reconnect(&at_alpha, &beta).await;
    let cancelled =
        json!({"jsonrpc": "2.0", "method": "notifications/cancelled", "params": {"requestId": 9}});
    at_beta.send(cancelled.to_string().as_bytes(), &[]).await;
    assert_eq!(at_beta.head().await.status, 202);
    alpha.seen.until(|seen| &seen.cancelled, 1).await;
}

#[tokio::test]
async fn a_question_is_answered_at_any_server() {
    let ([alpha, beta], ..) = servers().await;
    let mut at_alpha = alpha.answering_session().await;
    let question = json!({"method": "elicitation/create", "params": {"message": "Which?", "_meta": {"orla/key": "a"}}});
    let call = json!({"jsonrpc": "2.0", "id": 9, "method": "tools/call", "params":
        {"name": "ask", "arguments": {"rounds": [[question]]}}});
    at_alpha.send(call.to_string().as_bytes(), &[]).await;
    assert!(at_alpha.head().await.is_stream());
    let asked = loop {
        let message = at_alpha.event().await.unwrap().message;
        if message["method"] == "elicitation/create" {
            break message;
        }
    };
    let answer = json!({"jsonrpc": "2.0", "id": asked["id"], "result": {"action": "accept", "content": {"long": "x".repeat(400)}}});
    let mut at_beta = reconnect(&at_alpha, &beta).await;
    at_beta.send(answer.to_string().as_bytes(), &[]).await;
    assert_eq!(at_beta.head().await.status, 202);
    let mut last = json!(null);
    while let Some(event) = at_alpha.event().await {
        last = event.message;
    }
    assert!(last["result"].to_string().contains("xxxx"), "{last}");
}

#[tokio::test]
async fn no_caller_approves_its_own_call_through_a_node_of_several_callers() {
    let ([asked, _], ..) = servers().await;
    asked.market.approvals().configure(vec![ApprovalRule::new("approve[0]")]);
    asked.market.approvals().set_approvers(Approvers::Callers);
    let [ada, bob] = ["ada", "bob"].map(Principal::token);
    let mut call = Call::to("echo");
    call.scope.principal = Some(ada.clone());
    let market = Arc::clone(&asked.market);
    let calling = TaskTracker::new().spawn(async move { market.call(call).await });
    eventually(|| asked.market.approvals().waiting() == 1).await;
    let id = asked.market.approvals().pending(Some(&ada), MayAnswer::All)[0].id.clone();
    let decide = format!(r#"approvals {{"decide":{{"id":"{id}","approve":true,"several":true}}}}"#);
    let decide = Bytes::from(decide);
    assert_eq!(asked.server.answer_node(Some(&ada), &decide).await, r#""not_allowed""#);
    assert_eq!(asked.server.answer_node(Some(&bob), &decide).await, r#""done""#);
    assert!(calling.await.unwrap().is_ok());
}
