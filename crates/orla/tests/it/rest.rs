//! Every capability over plain HTTP (`/api`).

use orla_e2e::{Request, Response, Server, World, eventually};
use serde_json::json;

use crate::{sh, world};

/// Returns a tool that notes that it was called, and ends when the file `go` is there.
fn waits() -> String {
    sh(
        "# /// orla\n# description: Waits.\n# output: json\n# ///\necho x >> ran\nwhile [ ! -e go ]; do sleep 0.02; done\necho '{\"n\": 1.10}'",
    )
}

fn post(path: &str) -> Request {
    Request::new("POST", path).header("content-type", "application/json").body("{}")
}

fn send(server: &Server, request: &Request) -> Response {
    server.http().send(request).expect("an answer")
}

fn runs(world: &World) -> usize {
    if world.path("ran").exists() { world.read("ran").lines().count() } else { 0 }
}

#[test]
fn a_call_is_answered_with_its_output_or_a_problem() {
    let server = world()
        .tool("cat", sh("# /// orla\n# description: Echoes.\n# output: json\n# ///\ncat"))
        .tool("bad", sh("echo because >&2; exit 3"))
        .tool("n", sh("# /// orla\n# description: N.\n# input_schema: {n: integer}\n# ///\necho"))
        .serve();
    let answer = send(&server, &post("/api/cat").body(r#"{"n": 18446744073709551617, "x": 1.10}"#));
    assert_eq!((answer.status, &*answer.text()), (200, r#"{"n":18446744073709551617,"x":1.10}"#));
    assert_eq!(send(&server, &Request::new("POST", "/api/cat")).json(), json!({}));
    for (request, status, kind) in [
        (post("/api/bad"), 502, "failed"),
        (post("/api/none"), 404, "unknown-capability"),
        (post("/api/n").body(r#"{"n": "x"}"#), 400, "invalid-input"),
        (post("/api/cat").body("[1]"), 400, "invalid-argument"),
        (post("/api/cat").body("{"), 400, "invalid-argument"),
        (post("/api/cat").header("idempotency-key", ""), 400, "invalid-argument"),
        (post("/api/"), 404, "not-found"),
        (post("/api/a/b"), 404, "not-found"),
        (post("/api/..%2fstatus"), 404, "unknown-capability"),
        (Request::new("GET", "/api/cat"), 405, "invalid-argument"),
        (Request::new("POST", "/api/cat").body("{}"), 415, "invalid-argument"),
        (post("/api/cat").header("content-encoding", "br").body("{}"), 415, "invalid-argument"),
    ] {
        let answer = send(&server, &request);
        assert_eq!(answer.header("content-type"), Some("application/problem+json"), "{request:?}");
        let problem = answer.json();
        assert_eq!((answer.status, &problem["kind"]), (status, &json!(kind)), "{request:?}: {problem}");
        assert_eq!(problem["status"], json!(status));
    }
    let problem = send(&server, &post("/api/bad")).json();
    assert_eq!(problem["output"]["stderr"], "because\n", "{problem}");
}

#[test]
fn a_call_with_a_key_is_made_once_also_if_its_client_disconnects() {
    let server = world().tool("slow", waits()).tool("bad", sh("echo x >> bad.ran; exit 3")).serve();
    let keyed = post("/api/slow").header("idempotency-key", "k");
    let unanswered = server.http().write(&keyed).unwrap();
    eventually("the call runs", || (runs(&server) == 1).then_some(()));
    drop(unanswered);
    let waiting = server.http().write(&keyed).unwrap();
    let other = send(&server, &keyed.clone().body(r#"{"a": 1}"#));
    assert_eq!((other.status, &other.json()["kind"]), (409, &json!("conflict")));
    server.write("go", "", 0o644);
    assert_eq!(waiting.answer().unwrap().text(), r#"{"n": 1.10}"#);
    assert_eq!(send(&server, &keyed).text(), r#"{"n": 1.10}"#);
    assert_eq!(runs(&server), 1);
    for _ in 0..2 {
        assert_eq!(send(&server, &post("/api/bad").header("idempotency-key", "b")).status, 502);
    }
    assert_eq!(server.read("bad.ran").lines().count(), 1, "a failure is repeated, too");
}

#[test]
fn a_key_takes_the_id_and_the_mcp_name_for_the_same_call() {
    let server = world().serve();
    let keyed = |path: &str, body: &str| {
        send(&server, &post(path).header("idempotency-key", "k").body(body.to_owned()))
    };
    let first = keyed("/api/math.add", r#"{"a": 1, "b": 2}"#);
    assert_eq!(first.status, 200, "{}", first.text());
    assert_eq!(keyed("/api/math__add", r#"{"a": 1, "b": 2}"#).text(), first.text());
    assert_eq!(keyed("/api/math__multiply", r#"{"a": 1, "b": 2}"#).status, 409);
}

#[test]
fn a_refusal_that_no_retry_helps_names_no_time() {
    let server = world()
        .tool("job", sh("# /// orla\n# task: required\n# ///\necho"))
        .tool("broken", sh("# /// orla\n# input_schema: {type: integer}\n# ///\necho"))
        .serve();
    for path in ["/api/job", "/api/broken"] {
        let refused = send(&server, &post(path));
        assert_eq!((refused.status, refused.header("retry-after")), (503, None), "{path}");
    }
}

#[test]
fn a_killed_server_repeats_no_call_with_a_key() {
    let mut server = world().tool("slow", waits()).serve();
    let first = post("/api/slow").header("idempotency-key", "first");
    server.write("go", "", 0o644);
    assert_eq!(send(&server, &first).status, 200);
    server.remove("go");
    let cut = post("/api/slow").header("idempotency-key", "cut");
    let unanswered = server.http().write(&cut).unwrap();
    eventually("the call runs", || (runs(&server) == 2).then_some(()));
    server.kill();
    drop(unanswered);
    server.start_again();
    assert_eq!(send(&server, &first).text(), r#"{"n": 1.10}"#);
    let answer = send(&server, &cut);
    assert_eq!((answer.status, &answer.json()["kind"]), (409, &json!("interrupted")));
    assert_eq!(runs(&server), 2);
}

#[test]
fn a_call_becomes_a_task_if_its_client_prefers_that() {
    let server = world().tool("slow", waits()).serve();
    let answer = send(&server, &post("/api/slow").header("prefer", "respond-async, wait=5"));
    assert_eq!(answer.status, 202, "{}", answer.text());
    let place = answer.header("location").unwrap().to_owned();
    server.write("go", "", 0o644);
    let task = eventually("the task ends", || {
        let task = server.http().get(&place).json();
        (task["state"] == "completed").then_some(task)
    });
    assert_eq!(task["result"], json!({"n": 1.1}));
}

#[test]
fn a_key_makes_one_call_whether_a_client_waits_or_wants_a_task() {
    let mut server = world().tool("slow", waits()).serve();
    let wants_task =
        |key| post("/api/slow").header("idempotency-key", key).header("prefer", "respond-async");
    let waits_for = |key| post("/api/slow").header("idempotency-key", key);
    let task = send(&server, &wants_task("a"));
    assert_eq!(task.status, 202, "{}", task.text());
    let place = task.header("location").unwrap().to_owned();
    let other = wants_task("a").body(r#"{"n": 1}"#);
    assert_eq!(send(&server, &other).json()["kind"], "conflict");
    server.write("go", "", 0o644);
    eventually("the task ends", || server.http().get(&place).json()["state"] == "completed");
    server.kill();
    server.start_again();
    for again in [wants_task("a"), waits_for("a")] {
        let answer = send(&server, &again);
        assert_eq!((answer.status, answer.header("location")), (202, Some(&*place)));
        assert_eq!(answer.json()["state"], "completed");
    }
    for again in [waits_for("b"), wants_task("b")] {
        let answer = send(&server, &again);
        assert_eq!((answer.status, &*answer.text()), (200, r#"{"n": 1.10}"#));
    }
    assert_eq!(runs(&server), 2);
}

#[test]
fn an_answer_is_repeated_also_when_its_tool_is_gone() {
    let server = world().tool("once", sh("echo x")).serve();
    let keyed = post("/api/once").header("idempotency-key", "k");
    let first = send(&server, &keyed);
    server.remove("tools/once");
    server.reload();
    assert_eq!(send(&server, &post("/api/once")).status, 404);
    let again = send(&server, &keyed);
    assert_eq!((again.status, again.text()), (200, first.text()));
}

#[test]
fn a_stream_and_the_course_of_a_call_are_events() {
    let told = "# /// orla\n# description: Tells.\n# ///\necho '::progress 1/2 half' >&2\nwhile [ ! -e go ]; do sleep 0.02; done\necho done";
    let server = world()
        .tool("tells", sh(told))
        .file("count.sh", sh("echo 1; echo 2"))
        .config(
            "capabilities:\n- id: count.up\n  description: Counts.\n  provider: {stream: {command: sh, args: [count.sh], output_schema: int}}\n",
        )
        .serve();
    let call = server.http().write(&post("/api/tells").header("accept", "text/event-stream")).unwrap();
    let mut events = call.head().unwrap();
    assert_eq!(events.status, 200);
    let first = events.next_event().unwrap().unwrap();
    assert!(first.contains("half"), "{first}");
    server.write("go", "", 0o644);
    let last = events.next_event().unwrap().unwrap();
    assert!(last.contains("done"), "{last}");
    assert_eq!(events.next_event().unwrap(), None);
    let refused = send(&server, &post("/api/none").header("accept", "text/event-stream"));
    assert_eq!(refused.status, 404, "{}", refused.text());
    for accept in ["*/*", "application/json", "text/event-stream;q=0, */*"] {
        let collected = send(&server, &post("/api/count.up").header("accept", accept));
        assert_eq!(collected.json()["items"], json!([1, 2]), "{accept}: {}", collected.text());
    }
    let answer = send(&server, &post("/api/count.up").header("accept", "text/event-stream"));
    let text = answer.text();
    assert_eq!(answer.header("content-type"), Some("text/event-stream"), "{text}");
    assert_eq!(text, "event: item\ndata: 1\n\nevent: item\ndata: 2\n\nevent: end\ndata: {}\n\n");
}

#[test]
fn the_document_shows_what_its_reader_may_call() {
    let server = world()
        .tool("open", sh("echo"))
        .tool("closed", sh("echo"))
        .config(
            "auth_tokens: {ada: adas-token-for-tests, bob: bobs-token-for-tests}\n\
             policy:\n  - {allow: ['*'], to: [ada]}\n  - {allow: ['*'], capabilities: [open], to: [bob]}\n",
        )
        .serve();
    let paths = |token: &str| {
        let document = server.get_as("/api/openapi.json", token).json();
        assert_eq!(document["openapi"], "3.1.0");
        let paths = document["paths"].as_object().unwrap();
        paths.keys().map(String::clone).collect::<Vec<_>>()
    };
    assert!(paths("adas-token-for-tests").contains(&"/api/closed".to_owned()));
    let bobs = paths("bobs-token-for-tests");
    assert!(
        bobs.contains(&"/api/open".to_owned()) && !bobs.contains(&"/api/closed".to_owned()),
        "{bobs:?}"
    );
    let denied = server.send_as("POST", "/api/closed", "bobs-token-for-tests", "{}");
    assert_eq!((denied.status, &denied.json()["kind"]), (404, &json!("unknown-capability")));
    assert_eq!(server.http().get("/api/openapi.json").status, 401);
}
