//! Starting, stopping, and many clients at once.

use std::sync::Arc;
use std::time::{Duration, Instant};

use orla_server::{BindError, ServerOptions};
use serde_json::json;

use crate::support::World;

#[tokio::test]
async fn an_address_in_use_is_reported_in_one_line() {
    let world = World::new().await;
    let error = world.server.bind("127.0.0.1", world.address.port()).await.err().unwrap();
    assert!(matches!(error, BindError::InUse { .. }));
    let port = world.address.port();
    assert_eq!(
        error.to_string(),
        format!(
            "cannot listen on 127.0.0.1:{port}: the address is in use; stop what uses it or choose another port"
        )
    );
    assert!(matches!(world.server.bind("192.0.2.1", 0).await, Err(BindError::Other { .. })));
}

#[tokio::test]
async fn a_server_that_shuts_down_lets_calls_finish() {
    let mut world = World::new().await;
    let mut session = world.session().await;
    let mut modern = world.connect().await;
    let mut idle = world.connect().await;
    idle.call("echo", json!({})).await;
    let params = json!({"name": "sleep", "arguments": {"ms": 400}});
    modern.begin(1, "tools/call", params.clone()).await;
    let body = json!({"jsonrpc": "2.0", "id": 2, "method": "tools/call", "params": params});
    session.send(body.to_string().as_bytes(), &[]).await;
    world.seen.until(|seen| &seen.began, 2).await;
    world.shutdown.cancel();
    assert!(idle.is_closed().await);
    assert!(modern.answer().await.1.get("result").is_some());
    assert!(session.answer().await.1.get("result").is_some());
    tokio::time::timeout(crate::support::DEADLINE, &mut world.serving).await.expect("it ends").unwrap();
    assert!(tokio::net::TcpStream::connect(world.address).await.is_err());
}

#[tokio::test]
async fn calls_that_do_not_finish_in_time_are_cancelled() {
    let mut options = ServerOptions::default();
    options.drain = Duration::from_millis(200);
    let mut world = World::with(options).await;
    let mut session = world.session().await;
    let mut modern = world.connect().await;
    let params = json!({"name": "sleep", "arguments": {"ms": 60_000}});
    modern.begin(1, "tools/call", params.clone()).await;
    let body = json!({"jsonrpc": "2.0", "id": 2, "method": "tools/call", "params": params});
    session.send(body.to_string().as_bytes(), &[]).await;
    world.seen.until(|seen| &seen.began, 2).await;
    let began = Instant::now();
    world.shutdown.cancel();
    tokio::time::timeout(crate::support::DEADLINE, &mut world.serving).await.expect("it ends").unwrap();
    world.seen.until(|seen| &seen.cancelled, 2).await;
    assert!(began.elapsed() < Duration::from_secs(30), "the calls take 60 s: {:?}", began.elapsed());
}

#[tokio::test(flavor = "multi_thread")]
async fn many_clients_are_served_at_once_and_get_their_own_answers() {
    let world = Arc::new(World::new().await);
    let tasks = tokio_util::task::TaskTracker::new();
    let clients: Vec<_> = (0..50_u32)
        .map(|number| {
            let world = Arc::clone(&world);
            tasks.spawn(async move {
                let mut client =
                    if number % 2 == 0 { world.session().await } else { world.connect().await };
                for step in 0..20 {
                    let arguments = json!({"client": number, "step": step});
                    let (_, answer) = client.call("echo", arguments.clone()).await;
                    assert_eq!(answer["result"]["structuredContent"], arguments);
                }
            })
        })
        .collect();
    for client in clients {
        client.await.unwrap();
    }
}

#[tokio::test]
async fn http2_is_used_if_the_client_begins_with_it() {
    let world = World::new().await;
    let mut client = world.connect().await;
    // The preface and an empty SETTINGS frame; the server answers with its own SETTINGS.
    client.raw(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\x00\x00\x00\x04\x00\x00\x00\x00\x00").await;
    let frame = client.some_bytes().await;
    assert_eq!(frame.get(3), Some(&4), "a SETTINGS frame");
}
