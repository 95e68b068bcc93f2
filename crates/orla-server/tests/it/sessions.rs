//! Sessions: their snapshots, their end, and requests whose clients disconnect.

use std::time::Duration;

use orla_server::ServerOptions;
use serde_json::{Value, json};

use crate::support::{Connection, World};

fn names(answer: &Value) -> Vec<&str> {
    answer["result"]["tools"]
        .as_array()
        .unwrap()
        .iter()
        .filter_map(|tool| tool["name"].as_str())
        .collect()
}

#[tokio::test]
async fn a_session_calls_what_it_last_listed_and_a_sessionless_request_sees_the_newest() {
    let world = World::new().await;
    let mut session = world.session().await;
    let mut modern = world.connect().await;
    world.reload(&["new"]);
    assert!(session.call("echo", json!({})).await.1.get("result").is_some());
    assert!(session.call("new", json!({})).await.1.get("error").is_some());
    assert!(modern.call("echo", json!({})).await.1.get("error").is_some());
    assert!(modern.call("new", json!({})).await.1.get("result").is_some());
    assert_eq!(names(&session.post("tools/list", json!({}), &[]).await.1), ["new"]);
    assert!(session.call("new", json!({})).await.1.get("result").is_some());
    assert!(session.call("echo", json!({})).await.1.get("error").is_some());
}

#[tokio::test]
async fn a_session_is_notified_of_a_change_once() {
    let world = World::new().await;
    let session = world.session().await;
    let mut streams = [world.connect().await, world.connect().await];
    for stream in &mut streams {
        stream.session.clone_from(&session.session);
        assert!(stream.get(None).await.is_stream());
        assert_eq!(stream.event().await.unwrap().id.as_deref(), Some("0-0"));
    }
    world.reload(&["a"]);
    let [first, second] = &mut streams;
    let told = tokio::select! { told = first.event() => told, told = second.event() => told };
    let methods: Vec<_> = told.as_ref().unwrap().all.iter().map(|message| &message["method"]).collect();
    assert_eq!(methods, ["notifications/tools/list_changed", "notifications/prompts/list_changed"]);

    // A change without an open stream is sent on the next stream.
    let mut alone = world.session().await;
    world.reload(&["b"]);
    assert!(alone.get(None).await.is_stream());
    alone.event().await;
    assert_eq!(alone.event().await.unwrap().all.len(), 2);
}

#[tokio::test]
async fn a_listener_receives_the_requested_notifications_until_the_server_stops() {
    let world = World::new().await;
    let mut listener = world.connect().await;
    let wanted = json!({"notifications": {"toolsListChanged": true, "resourcesListChanged": true}});
    listener.begin(9, "subscriptions/listen", wanted).await;
    assert!(listener.head().await.is_stream());
    let acknowledged = listener.event().await.unwrap().message;
    assert_eq!(acknowledged["method"], "notifications/subscriptions/acknowledged");
    assert_eq!(acknowledged["params"]["notifications"], json!({"toolsListChanged": true}));
    let key = "io.modelcontextprotocol/subscriptionId";
    assert_eq!(acknowledged["params"]["_meta"][key], 9);
    world.reload(&["a"]);
    let changed = listener.event().await.unwrap().message;
    assert_eq!(changed["method"], "notifications/tools/list_changed");
    assert_eq!(changed["params"]["_meta"][key], 9);
    world.shutdown.cancel();
    let ended = listener.event().await.unwrap().message;
    assert_eq!((&ended["id"], &ended["result"]["_meta"][key]), (&json!(9), &json!(9)));
}

#[tokio::test]
async fn a_sessionless_call_ends_with_its_connection() {
    let world = World::new().await;
    for meta in [json!({}), json!({"progressToken": 1})] {
        let mut client = world.connect().await;
        let params = json!({"name": "sleep", "arguments": {"ms": 60_000}, "_meta": meta});
        client.begin(1, "tools/call", params).await;
        world.seen.until(|seen| &seen.began, 1).await;
        drop(client);
        world.seen.until(|seen| &seen.cancelled, 1).await;
        world.seen.began.store(0, std::sync::atomic::Ordering::SeqCst);
        world.seen.cancelled.store(0, std::sync::atomic::Ordering::SeqCst);
    }
}

async fn begin_sleep(client: &mut Connection, id: u32, ms: u32) {
    let params = json!({"name": "sleep", "arguments": {"ms": ms}});
    let body = json!({"jsonrpc": "2.0", "id": id, "method": "tools/call", "params": params});
    client.send(body.to_string().as_bytes(), &[]).await;
}

#[tokio::test]
async fn a_sessions_call_continues_without_its_client_which_returns_for_the_answer() {
    let world = World::new().await;
    let mut client = world.session().await;
    begin_sleep(&mut client, 5, 700).await;
    assert!(client.head().await.is_stream());
    let priming = client.event().await.unwrap();
    let mut back = world.connect().await;
    back.session.clone_from(&client.session);
    drop(client);
    assert!(back.get(priming.id.as_deref()).await.is_stream());
    let answer =
        tokio::time::timeout(crate::support::DEADLINE, back.event()).await.expect("at once").unwrap();
    assert_eq!(
        (&answer.message["id"], &answer.message["result"]["content"][0]["text"]),
        (&json!(5), &json!("slept"))
    );
    assert!(back.event().await.is_none());
    // Again, after it has ended; and for a stream that never was.
    assert!(back.get(priming.id.as_deref()).await.is_stream());
    assert_eq!(back.event().await.unwrap().message["id"], 5);
    assert!(back.event().await.is_none());
    assert!(back.get(Some("99-1")).await.is_stream());
    assert!(back.event().await.is_none());
}

#[tokio::test]
async fn a_cancelled_request_ends_without_an_answer_and_its_id_is_free_again() {
    let world = World::new().await;
    let mut client = world.session().await;
    let mut other = world.connect().await;
    other.session.clone_from(&client.session);
    begin_sleep(&mut client, 1, 60_000).await;
    world.seen.until(|seen| &seen.began, 1).await;

    begin_sleep(&mut other, 1, 0).await;
    let (head, answer) = other.answer().await;
    assert_eq!((head.status, &answer["error"]["code"]), (400, &json!(-32600)), "the id is in use");

    assert_eq!(other.notify("notifications/cancelled", json!({"requestId": 99})).await, 202);
    assert_eq!(other.notify("notifications/cancelled", json!({"requestId": 1})).await, 202);
    let (head, answer) = client.answer().await;
    assert!(head.is_stream() && answer == Value::Null);
    world.seen.until(|seen| &seen.cancelled, 1).await;
    assert_eq!(other.notify("notifications/cancelled", json!({"requestId": 1})).await, 202);
    begin_sleep(&mut other, 1, 0).await;
    assert!(other.answer().await.1.get("result").is_some());
}

#[tokio::test]
async fn the_end_of_a_session_ends_its_calls_and_streams() {
    let world = World::new().await;
    let mut client = world.session().await;
    let id = client.session.clone().unwrap();
    let mut stream = world.connect().await;
    stream.session = Some(id.clone());
    stream.get(None).await;
    begin_sleep(&mut client, 1, 60_000).await;
    world.seen.until(|seen| &seen.began, 1).await;
    let mut other = world.connect().await;
    assert_eq!(other.request("DELETE /mcp", &[("mcp-session-id", &id)]).await.0.status, 204);
    world.seen.until(|seen| &seen.cancelled, 1).await;
    while stream.event().await.is_some() {}
    other.session = Some(id.clone());
    assert_eq!(other.post("ping", json!({}), &[]).await.0.status, 404);
    assert_eq!(other.request("DELETE /mcp", &[("mcp-session-id", &id)]).await.0.status, 404);
}

#[tokio::test]
async fn versions_are_negotiated_and_a_session_begins_once() {
    let world = World::new().await;
    for (asked, given) in [
        ("2025-06-18", "2025-06-18"),
        ("2024-11-05", "2024-11-05"),
        ("2026-07-28", "2025-11-25"),
        ("x", "2025-11-25"),
    ] {
        let mut client = world.connect().await;
        let answer = client.initialize(asked).await;
        assert_eq!(answer["result"]["protocolVersion"], given);
        assert_eq!(answer["result"]["serverInfo"]["name"], "orla");
        assert_eq!(client.notify("notifications/initialized", json!({})).await, 202);
        let again = client.initialize(asked).await;
        assert_eq!(again["error"]["code"], -32600);
    }
    let mut stranger = world.connect().await;
    assert_eq!(stranger.post("tools/list", json!({}), &[]).await.0.status, 400);
    assert_eq!(stranger.notify("notifications/initialized", json!({})).await, 400);
}

#[tokio::test]
async fn idle_sessions_expire_and_busy_ones_do_not() {
    let mut options = ServerOptions::default();
    options.session_idle = Duration::from_secs(2);
    let world = World::with(options).await;
    let mut idle = world.session().await;
    let mut busy = world.session().await;
    begin_sleep(&mut busy, 1, 8_000).await;
    assert!(busy.answer().await.1.get("result").is_some());
    assert_eq!(idle.post("ping", json!({}), &[]).await.0.status, 404);
    let sessions = async || {
        let (_, body) = world.connect().await.request("GET /status", &[]).await;
        serde_json::from_slice::<Value>(&body).unwrap()["sessions"].as_u64()
    };
    let gone = async {
        while sessions().await != Some(0) {
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    };
    tokio::time::timeout(crate::support::DEADLINE, gone).await.expect("they are forgotten");
}
