//! The end of a credential, which also ends the activities that it left running.

use orla_e2e::issuer::{Issuer, now};
use orla_e2e::{Client, Exchange, Request, Revision, Server, eventually};
use serde_json::{Value, json};

use crate::{sh, world};

const ADA: &str = "tok-ada-0123456789abcdef";

fn request(method: &str, path: &str, token: &str) -> Request {
    Request::new(method, path)
        .header("authorization", &format!("Bearer {token}"))
        .header("content-type", "application/json")
}

/// Returns the stream on which a sessionless client listens.
fn listen(server: &Server, token: &str) -> Exchange {
    let client = Client::connect(server.address(), Revision::Sessionless, Some(token));
    let meta = json!({"io.modelcontextprotocol/protocolVersion": "2026-07-28", "io.modelcontextprotocol/clientCapabilities": {}, "io.modelcontextprotocol/clientInfo": {"name": "t", "version": "1"}});
    let params = json!({"notifications": {"toolsListChanged": true}, "_meta": meta});
    let body = json!({"jsonrpc": "2.0", "id": 9, "method": "subscriptions/listen", "params": params});
    let request = client.post("subscriptions/listen", None).body(body.to_string());
    let mut exchange =
        server.http().write(&request).and_then(orla_e2e::Unanswered::head).expect("a stream");
    let first = exchange.next_event().expect("an event").expect("an event");
    assert!(first.contains("acknowledged"), "{first}");
    exchange
}

/// Returns the rest of a stream.
fn rest(mut exchange: Exchange) -> Vec<String> {
    std::iter::from_fn(|| exchange.next_event().expect("a clean end")).collect()
}

fn ended(event: &str) -> bool {
    let event: Value = serde_json::from_str(event).unwrap_or_default();
    event["id"] == 9 && event["error"]["message"].as_str().is_some_and(|why| why.contains("no longer"))
}

#[test]
fn calls_and_streams_of_a_revoked_token_end_at_once() {
    let server = world()
        .tool("slow", sh("echo x >> began; sleep 60"))
        .config(&format!("watch: true\nauth_tokens: {{ada: {ADA}}}\n"))
        .serve();
    let made = server.run(&["token", "create", "--name", "ci"]);
    let secret = made.stdout.trim().to_owned();
    eventually("it is accepted", || {
        server.http().send(&request("GET", "/status", &secret)).is_ok_and(|it| it.status == 200)
    });
    let stream = listen(&server, &secret);
    let adas = listen(&server, ADA);
    let mut client = Client::connect(server.address(), Revision::Sessionless, Some(&secret));
    let mut call = client.begin_call("slow", json!({}));
    let program = request("POST", "/rtfs", &secret)
        .header("accept", "text/event-stream")
        .body(json!({"program": "(do (step \"one\" 1) (call \"slow\" {}))"}).to_string());
    let program = server.http().write(&program).and_then(orla_e2e::Unanswered::head).expect("a stream");
    let message = json!({"messageId": "m", "role": "ROLE_USER", "parts": [{"data": {"capability": "slow", "input": {}}}]});
    let send = json!({"message": message, "configuration": {"returnImmediately": true}});
    let task = request("POST", "/a2a/message:send", &secret).header("a2a-version", "1.0");
    let task = server.http().send(&task.body(send.to_string())).expect("a task").json();
    assert!(task["task"]["id"].is_string(), "{task}");
    eventually("all of it runs", || {
        server.path("began").exists() && server.read("began").lines().count() == 3
    });

    assert_eq!(server.run(&["token", "revoke", "ci"]).code, Some(0));
    let last = rest(stream);
    assert!(last.iter().any(|event| ended(event)), "{last:?}");
    assert_eq!(call.status(), 401);
    let last = rest(program);
    assert!(last.iter().any(|event| event.contains("\"unauthenticated\"")), "{last:?}");
    let ended = |line: &orla_e2e::LogLine| {
        line.field("capability") == "slow" && line.field("outcome") == "cancelled"
    };
    eventually("all of it has ended", || {
        server.logged("warn").iter().filter(|line| ended(line)).count() == 3
    });
    // The other caller is not affected.
    server.write("tools/new.sh", sh("echo new"), 0o755);
    let mut adas = adas;
    assert!(adas.next_event().expect("an event").is_some_and(|event| event.contains("list_changed")));
}

#[test]
fn a_stream_ends_when_its_access_token_expires_and_a_call_does_not() {
    let issuer = Issuer::start();
    let server = world()
        .tool("slow", sh("sleep 5; echo done"))
        .config(&format!(
            "auth: {{oauth: {{issuer: '{0}', audience: 'https://orla.test/mcp', jwks_uri: '{0}/jwks', clock_skew: 1}}}}\n",
            issuer.url
        ))
        .serve();
    let token = issuer.token("ES256", |_, claims| claims["exp"] = json!(now() + 2));
    let newer = issuer.token("ES256", |_, _| {});
    let stream = listen(&server, &token);
    let session = Client::connect(server.address(), Revision::Session, Some(&token));
    let notices = session.notification_stream(server.address());
    let mut client = Client::connect(server.address(), Revision::Sessionless, Some(&token));
    let call = client.begin_call("slow", json!({}));
    let last = rest(stream);
    assert!(last.iter().any(|event| ended(event)), "{last:?}");
    drop(rest(notices));
    assert_eq!(client.finish_call(call).expect("a result").stdout(), "done\n");
    assert!(client.try_call("slow", json!({})).is_err(), "the next call needs a newer token");
    // The session goes on with one.
    let list = session.post("tools/list", None);
    let headers = list.headers.into_iter().filter(|(name, _)| name != "authorization").collect();
    let list = Request { headers, ..list }.header("authorization", &format!("Bearer {newer}"));
    let body = json!({"jsonrpc": "2.0", "id": 5, "method": "tools/list"}).to_string();
    assert_eq!(server.http().send(&list.body(body)).expect("an answer").status, 200);
}

#[test]
fn callers_of_an_issuer_that_is_not_accepted_any_longer_lose_their_sessions() {
    let (one, two) = (Issuer::start(), Issuer::start());
    let server = world().tool("a", sh("echo a")).config(&one.config("{}", "watch: true\n")).serve();
    let token = one.token_of("ada", &[], "");
    let stream = listen(&server, &token);
    server.write("orla.yaml", two.config("{}", "watch: true\n"), 0o644);
    let last = rest(stream);
    assert!(last.iter().any(|event| ended(event)), "{last:?}");
}

#[test]
fn every_test_that_the_table_of_the_specification_names_exists() {
    let root = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
    let table = std::fs::read_to_string(root.join("docs/design/authorization.md")).expect("the table");
    let mut sources = String::new();
    for folder in ["orla-identity/src", "orla-oauth", "orla/tests/it", "orla/src/config"] {
        read_all(&root.join("crates").join(folder), &mut sources);
    }
    let rows = table.lines().filter(|line| line.starts_with("| ") && line.contains('`'));
    let names = rows.flat_map(|row| row.rsplit(" | ").next().unwrap_or_default().split('`'));
    let names: Vec<&str> = names.filter(|name| name.matches('_').count() > 2).collect();
    assert!(names.len() > 30, "{names:?}");
    for name in names {
        assert!(sources.contains(&format!("fn {name}(")), "{name}");
    }
}

/// The Rust sources below a folder.
fn read_all(folder: &std::path::Path, sources: &mut String) {
    for entry in std::fs::read_dir(folder).expect("a folder").flatten() {
        let path = entry.path();
        if path.is_dir() {
            read_all(&path, sources);
        } else if path.extension().is_some_and(|kind| kind == "rs") {
            sources.push_str(&std::fs::read_to_string(&path).expect("a source"));
        }
    }
}
