//! Sessions that several servers of one state serve.

use std::sync::Arc;
use std::time::{Duration, Instant};

use async_trait::async_trait;
use orla_server::ServerOptions;
use orla_state::{Change, Memory, Query, Record, Revision, StateError, StateStore, WriteError};
use serde_json::{Value, json};
use tokio::sync::watch;

use super::support::{Connection, World};

/// A common state that may be out of reach, or not answer at all.
pub(super) struct TestStore {
    pub(super) records: Arc<Memory>,
    pub(super) reachability: watch::Receiver<Reachability>,
}

#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Reachability {
    Answers,
    Fails,
    Hangs,
}

impl TestStore {
    async fn check(&self) -> Result<(), StateError> {
        let reachability = *self.reachability.borrow();
        match reachability {
            Reachability::Answers => Ok(()),
            Reachability::Fails => Err(StateError::new("there is no connection")),
            Reachability::Hangs => std::future::pending().await,
        }
    }
}

#[async_trait]
impl StateStore for TestStore {
    async fn write(&self, changes: Vec<Change>) -> Result<Vec<Revision>, WriteError> {
        self.check().await?;
        self.records.write(changes).await
    }

    async fn get(&self, key: &str) -> Result<Option<Record>, StateError> {
        self.records.get(key).await
    }

    async fn list(&self, query: Query) -> Result<Vec<Record>, StateError> {
        self.records.list(query).await
    }

    async fn sync(&self) -> Result<(), StateError> {
        self.check().await
    }
}

async fn servers(options: ServerOptions) -> ([World; 2], watch::Sender<Reachability>) {
    let (sender, reachability) = watch::channel(Reachability::Answers);
    let records = Arc::new(Memory::default());
    let worlds = [World::with(options.clone()).await, World::with(options).await];
    for world in &worlds {
        let (records, reachability) = (Arc::clone(&records), reachability.clone());
        world.server.share_sessions(Arc::new(TestStore { records, reachability }));
    }
    (worlds, sender)
}

/// Returns a connection to another server, in the session of this one.
async fn reconnect(client: &Connection, to: &World) -> Connection {
    let mut other = to.connect().await;
    other.session.clone_from(&client.session);
    other
}

async fn status(client: &mut Connection) -> u16 {
    client.post("tools/list", json!({}), &[]).await.0.status
}

#[tokio::test]
async fn a_session_is_served_by_every_server_and_ends_at_all() {
    let ([alpha, beta], _) = servers(ServerOptions::default()).await;
    let mut at_alpha = alpha.session().await;
    let mut at_beta = reconnect(&at_alpha, &beta).await;
    let listed = |answer: &Value| answer["result"]["tools"].as_array().map(Vec::len);
    let (list, other) = (
        at_alpha.post("tools/list", json!({}), &[]).await.1,
        at_beta.post("tools/list", json!({}), &[]).await.1,
    );
    assert!(listed(&list).is_some_and(|tools| tools > 0));
    assert_eq!(list["result"], other["result"]);
    let (_, answer) = at_beta.call("echo", json!({"a": 1})).await;
    assert_eq!(answer["result"]["structuredContent"], json!({"a": 1}));

    // It begins once, wherever.
    let init = json!({"protocolVersion": "2025-11-25", "capabilities": {}});
    assert_eq!(at_beta.post("initialize", init, &[]).await.0.status, 400);
    let mut stranger = beta.connect().await;
    stranger.session = Some("0".repeat(32));
    assert_eq!(status(&mut stranger).await, 404);

    let session = at_alpha.session.clone().unwrap();
    let mut other = beta.connect().await;
    assert_eq!(other.request("DELETE /mcp", &[("mcp-session-id", &session)]).await.0.status, 204);
    assert_eq!((status(&mut at_alpha).await, status(&mut at_beta).await), (404, 404));
}

#[tokio::test]
async fn the_log_level_goes_with_a_session() {
    let ([alpha, beta], _) = servers(ServerOptions::default()).await;
    let at_alpha = alpha.session().await;
    let mut at_beta = reconnect(&at_alpha, &beta).await;
    assert_eq!(at_beta.post("logging/setLevel", json!({"level": "error"}), &[]).await.0.status, 200);
    let mut at_alpha = reconnect(&at_alpha, &alpha).await;
    at_alpha.send(
        json!({"jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": {"name": "noise", "arguments": {}}})
            .to_string()
            .as_bytes(),
        &[],
    )
    .await;
    at_alpha.head().await;
    let mut levels = Vec::new();
    while let Some(event) = at_alpha.event().await {
        levels.extend(event.message["params"]["level"].as_str().map(str::to_owned));
    }
    assert!(levels.contains(&"error".to_owned()), "{levels:?}");
    assert!(!levels.contains(&"warning".to_owned()), "{levels:?}");
}

#[tokio::test]
async fn a_session_in_use_at_any_server_does_not_expire() {
    let mut options = ServerOptions::default();
    options.session_idle = Duration::from_secs(4);
    let idle = options.session_idle;
    let ([alpha, beta], _) = servers(options).await;
    let mut at_alpha = alpha.session().await;
    let mut at_beta = reconnect(&at_alpha, &beta).await;
    for _ in 0..2 {
        let begun = Instant::now();
        while begun.elapsed() < idle.mul_f64(1.5) {
            assert_eq!(status(&mut at_beta).await, 200);
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
        assert_eq!(status(&mut at_alpha).await, 200);
    }
}

#[tokio::test]
async fn local_sessions_continue_without_the_shared_state() {
    let ([alpha, beta], sender) = servers(ServerOptions::default()).await;
    let mut at_alpha = alpha.session().await;
    for state in [Reachability::Fails, Reachability::Hangs] {
        sender.send_replace(state);
        assert_eq!(status(&mut at_alpha).await, 200);
        let mut at_beta = reconnect(&at_alpha, &beta).await;
        assert_eq!(status(&mut at_beta).await, 404, "it is not known there");
        // A session that begins now is known to its server, and to all servers once the state is
        // reachable again.
        let mut new = beta.session().await;
        assert_eq!(status(&mut new).await, 200);
        sender.send_replace(Reachability::Answers);
        assert_eq!(status(&mut new).await, 200);
        let mut reconnect = reconnect(&new, &alpha).await;
        assert_eq!(status(&mut reconnect).await, 200);
    }
}
