//! Subscriptions to resources, and unsolicited notifications of surfaces.

use std::sync::Arc;

use async_trait::async_trait;
use orla_marketplace::{CallContext, JsonText, Surface, SurfaceError, SurfaceNotice};
use parking_lot::Mutex;
use serde_json::{Value, json};
use tokio::sync::broadcast;

use crate::support::{Connection, World, eventually};

/// A surface with any resource whose address begins with the surface's name. It records its subscribers.
pub(super) struct Resources {
    name: &'static str,
    requests: Mutex<Vec<String>>,
    notices: broadcast::Sender<SurfaceNotice>,
}

impl Resources {
    pub(super) fn new(name: &'static str) -> Arc<Self> {
        Arc::new(Self { name, requests: Mutex::default(), notices: broadcast::Sender::new(4) })
    }

    pub(super) fn requests(&self) -> Vec<String> {
        self.requests.lock().clone()
    }

    pub(super) fn updates(&self, uri: &str) {
        drop(self.notices.send(SurfaceNotice::ResourceUpdated { uri: uri.to_owned() }));
    }
}

#[async_trait]
impl Surface for Resources {
    fn owner(&self) -> &str {
        self.name
    }

    fn serves(&self, method: &str) -> bool {
        method.starts_with("resources/")
    }

    async fn request(
        &self,
        method: &str,
        params: &JsonText,
        _ctx: &CallContext,
    ) -> Result<JsonText, SurfaceError> {
        let params: Value = serde_json::from_str(params.as_str()).unwrap();
        let uri = params["uri"].as_str().unwrap_or_default();
        if !uri.starts_with(self.name) {
            return Err(SurfaceError::NotFound(format!("no such resource: {uri}")));
        }
        let what = method.strip_prefix("resources/").unwrap();
        self.requests.lock().push(format!("{what} {uri}"));
        tokio::task::yield_now().await;
        Ok(JsonText::parse("{}").unwrap())
    }

    fn notices(&self) -> Option<broadcast::Receiver<SurfaceNotice>> {
        Some(self.notices.subscribe())
    }
}

/// Returns a world with these resources, whose surfaces are being listened to.
async fn world(surfaces: &[&Arc<Resources>]) -> World {
    let world = World::new().await;
    load(&world, surfaces).await;
    world
}

pub(super) async fn load(world: &World, surfaces: &[&Arc<Resources>]) {
    let shared: Vec<_> =
        surfaces.iter().map(|surface| Arc::clone(surface) as Arc<dyn Surface>).collect();
    world.reload_with(&["ask", "echo", "noise", "sleep"], &shared);
    eventually(|| surfaces.iter().all(|surface| surface.notices.receiver_count() > 0)).await;
}

pub(super) async fn subscribe(client: &mut Connection, uri: &str) -> Value {
    client.post("resources/subscribe", json!({"uri": uri}), &[]).await.1
}

/// Returns a session's stream on its own connection.
async fn stream(world: &World, session: &Connection) -> Connection {
    let mut stream = world.connect().await;
    stream.session.clone_from(&session.session);
    assert!(stream.get(None).await.is_stream());
    stream
}

/// Returns the resource in the next notification of a changed resource. Notifications of changed lists
/// are skipped.
pub(super) async fn updated(stream: &mut Connection) -> Value {
    loop {
        let event = stream.event().await.expect("the stream ended");
        for message in event.all {
            if message["method"] == "notifications/resources/updated" {
                return message["params"].clone();
            }
        }
    }
}

async fn delete(world: &World, session: &Connection) {
    let id = session.session.clone().unwrap();
    let mut other = world.connect().await;
    assert_eq!(other.request("DELETE /mcp", &[("mcp-session-id", &id)]).await.0.status, 204);
}

#[tokio::test]
async fn a_surface_gets_one_subscription_for_all_clients() {
    let resources = Resources::new("r");
    let world = world(&[&resources]).await;
    let mut sessions = [world.session().await, world.session().await, world.session().await];
    let [one, two, three] = &mut sessions;
    let all = [(one, "r:a"), (two, "r:a"), (three, "r:b")];
    let subscribing = all.map(|(session, uri)| async move { subscribe(session, uri).await });
    for answer in futures_util::future::join_all(subscribing).await {
        assert_eq!(answer["result"], json!({}));
    }
    let [one, ..] = &mut sessions;
    assert_eq!(subscribe(one, "r:a").await["result"], json!({}), "again");
    let mut requests = resources.requests();
    requests.sort();
    assert_eq!(requests, ["subscribe r:a", "subscribe r:b"]);

    // Only subscribers are notified, and once for many changes.
    let mut streams = Vec::new();
    resources.updates("r:a");
    resources.updates("r:b");
    resources.updates("r:other");
    for (session, uri) in sessions.iter().zip(["r:a", "r:a", "r:b"]) {
        let mut stream = stream(&world, session).await;
        assert_eq!(updated(&mut stream).await, json!({"uri": uri}));
        streams.push(stream);
    }
    resources.updates("r:b");
    assert_eq!(updated(&mut streams[2]).await, json!({"uri": "r:b"}));

    // One client unsubscribes, and the session of another ends. The surface is notified when the last
    // one has left.
    let [one, two, _] = &mut sessions;
    let (_, answer) = one.post("resources/unsubscribe", json!({"uri": "r:a"}), &[]).await;
    assert_eq!((&answer["result"], resources.requests().len()), (&json!({}), 2));
    delete(&world, two).await;
    eventually(|| resources.requests().last().is_some_and(|request| request == "unsubscribe r:a")).await;
    assert_eq!(resources.requests().len(), 3);
    let (_, answer) = one.post("resources/unsubscribe", json!({"uri": "r:a"}), &[]).await;
    assert_eq!(answer["result"], json!({}), "again");
    assert_eq!(subscribe(one, "r:a").await["result"], json!({}));
    assert_eq!(resources.requests().len(), 4);
}

#[tokio::test]
async fn unknown_resources_cannot_be_subscribed_to() {
    let resources = Resources::new("r");
    let world = world(&[&resources]).await;
    let mut session = world.session().await;
    let answer = subscribe(&mut session, "x:a").await;
    assert_eq!(answer["error"]["code"], -32002);
    assert_eq!(answer["error"]["data"], json!({"uri": "x:a"}));
    let (_, answer) = session.post("resources/subscribe", json!({"uri": 7}), &[]).await;
    assert_eq!(answer["error"]["code"], -32602);
    let (head, answer) = world.connect().await.ask("resources/subscribe", json!({"uri": "r:a"})).await;
    assert_eq!((head.status, &answer["error"]["code"]), (404, &json!(-32601)));
    world.reload(&["echo"]);
    assert_eq!(subscribe(&mut session, "r:a").await["error"]["code"], -32601);
}

#[tokio::test]
async fn a_listener_receives_updates_of_its_resources() {
    let resources = Resources::new("r");
    let world = world(&[&resources]).await;
    let mut listener = world.connect().await;
    let wanted = json!({"notifications": {
        "resourcesListChanged": true, "resourceSubscriptions": ["r:a", "x:none", "r:b"],
    }});
    listener.begin(9, "subscriptions/listen", wanted).await;
    assert!(listener.head().await.is_stream());
    let acknowledged = listener.event().await.unwrap().message;
    assert_eq!(
        acknowledged["params"]["notifications"],
        json!({"resourcesListChanged": true, "resourceSubscriptions": ["r:a", "r:b"]})
    );
    resources.updates("r:c");
    resources.updates("r:b");
    let meta = json!({"io.modelcontextprotocol/subscriptionId": 9});
    assert_eq!(updated(&mut listener).await, json!({"uri": "r:b", "_meta": meta}));
    drop(resources.notices.send(SurfaceNotice::PromptsChanged));
    drop(resources.notices.send(SurfaceNotice::ResourcesChanged));
    let changed = listener.event().await.unwrap().message;
    assert_eq!(changed["method"], "notifications/resources/list_changed");
    drop(listener);
    eventually(|| resources.requests().len() == 4).await;
    assert_eq!(resources.requests()[..2], ["subscribe r:a", "subscribe r:b"]);
}

#[tokio::test]
async fn a_session_receives_list_changes_of_surfaces() {
    let resources = Resources::new("r");
    let world = world(&[&resources]).await;
    let session = world.session().await;
    let mut stream = stream(&world, &session).await;
    stream.event().await;
    for (notice, list) in
        [(SurfaceNotice::PromptsChanged, "prompts"), (SurfaceNotice::ResourcesChanged, "resources")]
    {
        drop(resources.notices.send(notice));
        let event = stream.event().await.unwrap().message;
        assert_eq!(event["method"], format!("notifications/{list}/list_changed"));
    }
}

#[tokio::test]
async fn notices_that_were_missed_count_as_changes() {
    let resources = Resources::new("r");
    let world = world(&[&resources]).await;
    let mut session = world.session().await;
    subscribe(&mut session, "r:a").await;
    let mut stream = stream(&world, &session).await;
    stream.event().await;
    // More changes than the channel holds, before any of them is read: those of r:a are lost.
    resources.updates("r:a");
    for _ in 0..20 {
        resources.updates("r:b");
    }
    assert_eq!(updated(&mut stream).await, json!({"uri": "r:a"}));
}

#[tokio::test]
async fn subscriptions_outlive_a_reload() {
    let old = Resources::new("r");
    let unchanged = Resources::new("k");
    let world = world(&[&old, &unchanged]).await;
    let mut session = world.session().await;
    subscribe(&mut session, "r:a").await;
    subscribe(&mut session, "k:a").await;
    let new = Resources::new("r");
    load(&world, &[&new, &unchanged]).await;
    eventually(|| new.requests() == ["subscribe r:a"]).await;
    assert_eq!((old.requests().len(), unchanged.requests()), (1, vec!["subscribe k:a".to_owned()]));
    let mut stream = stream(&world, &session).await;
    new.updates("r:a");
    assert_eq!(updated(&mut stream).await, json!({"uri": "r:a"}));
    unchanged.updates("k:a");
    assert_eq!(updated(&mut stream).await, json!({"uri": "k:a"}));
    delete(&world, &session).await;
    eventually(|| new.requests().len() == 2 && unchanged.requests().len() == 2).await;
    assert_eq!(old.requests().len(), 1);
}
