//! Servers behind HTTP as they behave on loopback.

use std::collections::BTreeMap;

use orla_marketplace::testing::eventually;
use orla_marketplace::{Call, Notice, Source, SurfaceError, SurfaceNotice};
use tokio_util::sync::CancellationToken;

use super::super::settings::{Reach, ServerSettings};
use super::super::tests::{Named, World, call, json, listener, quick, text_of, with_client};
use super::fake::{Behaviour, Fake};

fn settings(url: String) -> ServerSettings {
    let headers = BTreeMap::from([("X-Api-Key".to_owned(), "secret".to_owned())]);
    ServerSettings::new("h", Reach::Http { url, headers })
}

async fn world(behaviour: Behaviour) -> (Fake, World) {
    let fake = Fake::start(behaviour).await;
    let world = World::new([settings(fake.url())], []).await;
    (fake, world)
}

fn behaviours() -> [Behaviour; 4] {
    let with = |knows_sessions, speaks_in_events| Behaviour {
        knows_sessions,
        is_sessionless: !knows_sessions,
        speaks_in_events,
        ..Behaviour::default()
    };
    [with(true, false), with(true, true), with(false, false), with(false, true)]
}

#[tokio::test(flavor = "multi_thread")]
async fn the_tools_are_called_in_every_manner() {
    for behaviour in behaviours() {
        let (fake, world) = world(behaviour.clone()).await;
        assert_eq!(world.names(), "h__ask h__change h__echo h__odd h__say h__slow", "{behaviour:?}");
        assert_eq!(world.text("h__echo", r#"{"a":[1]}"#).await, r#"{"a":[1]}"#, "{behaviour:?}");
        let odd = world.call("h__odd", "{}").await.unwrap();
        assert_eq!(
            odd.content.unwrap().as_str(),
            r#"[ {"type": "text", "text": "x", "extra": 1.10} ]"#,
            "byte for byte"
        );
        assert_eq!(odd.structured.unwrap().json().unwrap().as_str(), r#"{"n": 1e400}"#);
        let headers = fake.state.headers.lock()["POST tools/call"].clone();
        assert_eq!(headers["x-api-key"], "secret");
        if behaviour.is_sessionless {
            assert_eq!(
                (&headers["mcp-method"], &headers["mcp-name"]),
                (&"tools/call".parse().unwrap(), &"odd".parse().unwrap())
            );
            assert_eq!(headers["mcp-protocol-version"], "2026-07-28");
        } else {
            assert_eq!(headers["mcp-protocol-version"], "2025-06-18", "what was settled on");
            assert!(headers.contains_key("mcp-session-id"));
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_server_without_sessions_that_is_slow_to_be_discovered_is_asked_again() {
    let late = Behaviour { discovers_late: true, ..behaviours()[2].clone() };
    let (fake, world) = world(late).await;
    assert_eq!(world.text("h__echo", r#"{"n":1}"#).await, r#"{"n":1}"#);
    let discovered = fake.requests().iter().filter(|one| one.contains("server/discover")).count();
    assert_eq!(discovered, 2, "{:?}", fake.requests());
}

#[tokio::test(flavor = "multi_thread")]
async fn arguments_are_repeated_in_headers_where_the_schema_says_so() {
    let (fake, world) = world(behaviours()[2].clone()).await;
    world.text("h__echo", r#"{"region":"süd"}"#).await;
    let headers = fake.state.headers.lock()["POST tools/call"].clone();
    assert_eq!(headers["mcp-param-region"], "=?base64?c8O8ZA==?=");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_session_that_has_ended_is_opened_anew_once() {
    let (fake, world) = world(Behaviour::default()).await;
    world.text("h__echo", "{}").await;
    fake.state.sessions.lock().clear();
    assert_eq!(world.text("h__echo", r#"{"n":2}"#).await, r#"{"n":2}"#);
    let initialized = fake.requests().iter().filter(|request| request.contains(" initialize")).count();
    assert_eq!(initialized, 2, "{:?}", fake.requests());
}

#[tokio::test(flavor = "multi_thread")]
async fn sessions_are_ended_with_their_last_user() {
    let (fake, world) = world(Behaviour::default()).await;
    world.text("h__echo", "{}").await;
    world.servers.load([], [], quick());
    world.serve();
    eventually("its end", || fake.requests().iter().any(|request| request.starts_with("DELETE  s")))
        .await;
    assert!(fake.state.sessions.lock().is_empty());
}

#[tokio::test(flavor = "multi_thread")]
async fn a_question_is_answered_in_the_manner_of_its_revision() {
    let both = Behaviour { is_sessionless: true, speaks_in_events: true, ..Behaviour::default() };
    let (_fake, world) = world(both).await;
    let ask = async |client: Named| {
        text_of(&world.call_with(with_client(call("h__ask", "{}"), client)).await.unwrap())
    };
    assert_eq!(ask(Named("me", None)).await, r#"{"q":{"me":"sampling/createMessage"}}"#);
    assert_eq!(ask(Named("me", Some(7))).await, r#"{"me":"sampling/createMessage"}"#);
    let nobody = world.error("h__ask", "{}").await;
    assert!(
        nobody.ends_with("it requests input, but its caller has no client that can answer"),
        "{nobody}"
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn notices_during_a_call_reach_the_caller() {
    for behaviour in [&behaviours()[1], &behaviours()[3]] {
        let (_fake, world) = world(behaviour.clone()).await;
        let (sink, notices) = listener();
        let mut call = call("h__say", "{}");
        call.scope.notices = sink;
        world.call_with(call).await.unwrap();
        let notices = notices.lock();
        assert!(matches!(&notices[..], [Notice::Progress(_), Notice::Log { .. }]), "{notices:?}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn changes_arrive_on_notification_streams() {
    for behaviour in [&behaviours()[0], &behaviours()[2]] {
        let (fake, world) = world(behaviour.clone()).await;
        let surface = world.servers.surfaces().remove(0);
        let mut notices = surface.notices().unwrap();
        let ctx = world.market.surface_context(&Call::to("h"));
        surface.request("resources/subscribe", &json(r#"{"uri":"a:b"}"#), &ctx).await.unwrap();
        if behaviour.is_sessionless {
            let other = surface.request("resources/subscribe", &json(r#"{"uri":"c:d"}"#), &ctx).await;
            assert_eq!(other, Err(SurfaceError::NotFound("no such resource: c:d".into())));
        }
        let listens = if behaviour.is_sessionless { "POST subscriptions/listen" } else { "GET" };
        eventually("a stream", || fake.requests().iter().any(|request| request.starts_with(listens)))
            .await;
        eventually("a listener", || fake.state.unsolicited.receiver_count() > 0).await;
        let mut changes = world.servers.changes();
        changes.mark_unchanged();
        world.text("h__change", "{}").await;
        tokio::time::timeout(orla_marketplace::testing::TEST_TIMEOUT, changes.changed())
            .await
            .unwrap()
            .unwrap();
        world.serve();
        assert!(world.names().contains("h__new"));
        let updated = serde_json::json!({"jsonrpc": "2.0", "method": "notifications/resources/updated", "params": {"uri": "a:b"}});
        fake.state.unsolicited.send(updated).unwrap();
        let notice = tokio::time::timeout(orla_marketplace::testing::TEST_TIMEOUT, notices.recv())
            .await
            .unwrap()
            .unwrap();
        assert_eq!(notice, SurfaceNotice::ResourceUpdated { uri: "a:b".into() });
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn connections_are_used_again() {
    for behaviour in behaviours() {
        let (fake, world) = world(behaviour.clone()).await;
        for _ in 0..30 {
            world.text("h__echo", "{}").await;
        }
        let peers = fake.state.peers.lock().len();
        assert!(peers < 15, "{peers} connections, {behaviour:?}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_stream_that_is_cut_is_taken_up_again() {
    let (fake, world) =
        world(Behaviour { cuts: true, speaks_in_events: true, ..Behaviour::default() }).await;
    assert_eq!(world.text("h__echo", "{}").await, "taken up");
    assert_eq!(fake.requests().iter().filter(|request| request.contains("tools/call")).count(), 1);
}

#[tokio::test(flavor = "multi_thread")]
async fn headers_never_reach_another_origin() {
    let other = Fake::start(Behaviour::default()).await;
    let fake = Fake::start(Behaviour { redirects_to: Some(other.url()), ..Behaviour::default() }).await;
    let capability = super::super::tests::declared("one", "mcp:h", "echo");
    let world = World::new([settings(fake.url())], [capability]).await;
    assert_eq!(
        world.error("one", "{}").await,
        "one is unavailable: it redirects to another origin (HTTP 307), which is not followed"
    );
    assert_eq!(other.requests(), [] as [&str; 0]);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_server_that_starts_late_is_connected() {
    let fake = Fake::start(Behaviour::default()).await;
    let address = fake.address;
    drop(fake);
    let capability = super::super::tests::declared("one", "mcp:h", "echo");
    let world = World::new([settings(format!("http://{address}/mcp"))], [capability]).await;
    assert_eq!(
        world.error("one", "{}").await,
        "one is unavailable: it cannot be reached: connection refused"
    );
    let fake = Fake::at(address, Behaviour::default()).await;
    eventually("its tools", || {
        world.serve();
        world.names().contains("h__echo")
    })
    .await;
    assert_eq!(world.text("h__echo", "{}").await, "{}");
    drop(fake);
    // The server answers on connections that are open for a moment after it was dropped.
    let deadline = tokio::time::Instant::now() + orla_marketplace::testing::TEST_TIMEOUT;
    let error = loop {
        match world.call("h__echo", "{}").await {
            Ok(_) => assert!(tokio::time::Instant::now() < deadline, "it still answers"),
            Err(error) => break error.to_string(),
        }
    };
    assert!(error.starts_with("h__echo is unavailable: "), "{error}");
    let _fake = Fake::at(address, Behaviour::default()).await;
    eventually("an answer", || {
        let status = world.market.status(&world.market.get("h__echo").unwrap());
        status.state.as_deref() == Some("READY") && status.restarts == Some(2)
    })
    .await;
    assert_eq!(world.text("h__echo", "{}").await, "{}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_withdrawn_call_is_withdrawn_at_the_server() {
    let (fake, world) = world(Behaviour::default()).await;
    let mut slow = call("h__slow", "{}");
    slow.scope.cancellation = CancellationToken::new();
    let cancellation = slow.scope.cancellation.clone();
    let cancel = async {
        eventually("the call", || fake.requests().iter().any(|request| request.contains("tools/call")))
            .await;
        cancellation.cancel();
    };
    let (outcome, ()) = tokio::join!(world.call_with(slow), cancel);
    assert_eq!(outcome.unwrap_err().to_string(), "h__slow was cancelled");
    eventually("the withdrawal", || {
        fake.requests().iter().any(|request| request.contains("notifications/cancelled"))
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn many_large_calls_at_once_never_stall() {
    for behaviour in [&behaviours()[1], &behaviours()[2]] {
        let (_fake, world) = world(behaviour.clone()).await;
        let large = format!(r#"{{"text":"{}"}}"#, "x".repeat(100_000));
        let calls = (0..32).map(|_| async { world.text("h__echo", &large).await.len() });
        let lengths = futures_util::future::join_all(calls).await;
        assert!(lengths.iter().all(|length| *length == large.len()), "{lengths:?}");
    }
}
