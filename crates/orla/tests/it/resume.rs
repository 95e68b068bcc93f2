//! A session's client that lost its connection returns for the messages that it missed.

use orla_e2e::eventually;
use serde_json::{Value, json};

use crate::{sh, world};

#[test]
fn an_answer_is_kept_for_a_client_that_reconnects() {
    let body = "echo '::progress 1/2 begun' >&2; while [ ! -e go ]; do sleep 0.02; done; touch ended; echo finished";
    let server = world().tool("t", sh(body)).serve();
    let mut client = server.session();
    let params = json!({"name": "t", "arguments": {}, "_meta": {"progressToken": 1}});
    let mut pending = client.begin("tools/call", params);
    let id = pending.id;
    let seen = pending.next_event_id().expect("events of a session have ids");
    drop(pending);
    server.write("go", "", 0o644);
    eventually("the tool finishes without its client", || server.path("ended").exists());
    let mut stream = client.resume_stream(server.address(), &seen);
    let answer = loop {
        let event = stream.next_event().unwrap().expect("the answer is on the stream");
        let message: Value = serde_json::from_str(&event).unwrap();
        if message["id"] == id {
            break message;
        }
    };
    assert_eq!(answer["result"]["structuredContent"]["stdout"], "finished\n");
    assert!(stream.next_event().unwrap().is_none(), "the stream ends with its answer");
}

#[test]
fn another_session_cannot_come_for_it() {
    let body = "echo '::progress 1/2 begun' >&2; while [ ! -e go ]; do sleep 0.02; done; echo secret";
    let server = world().tool("t", sh(body)).serve();
    let (mut client, other) = (server.session(), server.session());
    let params = json!({"name": "t", "arguments": {}, "_meta": {"progressToken": 1}});
    let mut pending = client.begin("tools/call", params);
    let seen = pending.next_event_id().expect("events of a session have ids");
    let mut theirs = other.resume_stream(server.address(), &seen);
    server.write("go", "", 0o644);
    assert_eq!(client.finish_call(pending).unwrap().stdout(), "secret\n");
    // They get a refusal or an empty stream, but no message of this session.
    if theirs.status == 200 {
        assert_eq!(other.end_session(server.address()) / 100, 2);
        while let Ok(Some(event)) = theirs.next_event() {
            assert!(!event.contains("secret") && !event.contains("begun"), "{event}");
        }
    }
}

#[test]
fn nonsense_as_the_last_event_is_survived() {
    let mut server = world().tool("t", sh("echo ok")).serve();
    let client = server.session();
    for nonsense in ["", "0", "-1", "999999/999999", "x/y", &"9".repeat(1000), "\u{1}"] {
        let request = orla_e2e::Request::new("GET", "/mcp")
            .header("accept", "text/event-stream")
            .header("mcp-session-id", client.session().unwrap())
            .header("last-event-id", nonsense);
        let answer = server.http().write(&request).unwrap().head().unwrap();
        assert!([200, 400, 404].contains(&answer.status), "{nonsense:?}: {}", answer.status);
    }
    assert!(server.is_alive());
    assert_eq!(server.client().call("t", json!({})).stdout(), "ok\n");
}
