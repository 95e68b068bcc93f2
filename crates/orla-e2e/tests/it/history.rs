//! What is kept of calls: who sees it, what a running call shows, and that a secret of a call is not in the rows of the calls around it.

use orla_e2e::{Server, eventually};
use serde_json::{Value, json};

use crate::{sh, world};

const LOGIN: &str = "#!/bin/sh\n# /// orla\n# input_schema: {type: object, properties: {user: {type: string}, pass: {type: string, writeOnly: true}}}\n# ///\necho in\n";

/// The calls that a caller sees, those within calls included.
fn calls(server: &Server, token: &str) -> Vec<Value> {
    let answer = server.get_as("/calls", token);
    assert_eq!(answer.status, 200, "{}", answer.text());
    answer.json().as_array().cloned().unwrap_or_default()
}

fn id_of(calls: &[Value], capability: &str) -> Option<String> {
    let call = calls.iter().find(|call| call["capability"] == capability)?;
    Some(call["id"].as_str()?.to_owned())
}

#[test]
fn without_a_policy_identified_callers_see_their_own_calls() {
    let server = world()
        .tool("hello", sh("echo hello"))
        .config("auth_tokens: {ada: token-of-ada, bob: token-of-bob}\n")
        .serve();
    for (token, by) in [("token-of-ada", "ada"), ("token-of-bob", "bob")] {
        server.client_as(token).call("hello", json!({ "by": by }));
    }
    for (token, by) in [("token-of-ada", "ada"), ("token-of-bob", "bob")] {
        let seen = calls(&server, token);
        assert!(seen.len() == 1 && seen[0]["principal"] == by, "{seen:?}");
    }
    let bobs = id_of(&calls(&server, "token-of-bob"), "hello").expect("a call");
    assert_eq!(server.get_as(&format!("/calls/{bobs}"), "token-of-ada").status, 404);
    let replay = server.send_as("POST", &format!("/calls/{bobs}/replay"), "token-of-ada", "{}");
    assert_eq!(replay.status, 404);
    assert!(!server.get_as("/console", "token-of-ada").text().contains(&bobs));
}

#[test]
fn a_call_that_runs_shows_its_input_and_what_it_said() {
    let server = world()
        .tool("slow", sh("echo '::log info half-way' >&2; until [ -e done ]; do sleep 0.05; done"))
        .serve();
    let mut client = server.client();
    let pending = client.begin_call("slow", json!({"q": "asked"}));
    let mut detail = Value::Null;
    eventually("the call runs and has said something", || {
        let page = server.http().get("/console").text();
        let Some((_, rest)) = page.split_once("/console/calls/") else { return false };
        let id = &rest[..rest.find(['/', '"']).unwrap_or(0)];
        detail = server.http().get(&format!("/calls/{id}")).json();
        detail["notices"].as_array().is_some_and(|notices| !notices.is_empty())
    });
    assert_eq!((&detail["outcome"], &detail["input"]), (&json!("running"), &json!({"q": "asked"})));
    assert!(detail["notices"][0]["message"] == "half-way", "{detail}");
    std::fs::write(server.path("done"), "").unwrap();
    client.finish_call(pending).expect("it ends");
    let id = detail["id"].as_str().unwrap();
    let ended = server.http().get(&format!("/calls/{id}")).json();
    assert!(ended["outcome"] == "ok" && ended["notices"][0]["message"] == "half-way", "{ended}");
}

#[test]
fn a_secret_of_a_call_is_not_in_the_rows_around_it() {
    let server = world().tool("login", LOGIN).tool("hello", sh("echo hello")).serve();
    let program = r#"[(call :hello {:note "hunter2-hunter2"}) (call :login {:user "ada" :pass "hunter2-hunter2"})]"#;
    server.client().call("rtfs", json!({ "program": program }));
    let mut seen = Vec::new();
    eventually("all calls are kept", || {
        seen = server.http().get("/calls").json().as_array().cloned().unwrap_or_default();
        id_of(&seen, "login").is_some() && id_of(&seen, "rtfs").or(id_of(&seen, "rtfs.run")).is_some()
    });
    for call in seen.iter().filter(|call| call["capability"] != "hello") {
        let id = call["id"].as_str().unwrap();
        let detail = server.http().get(&format!("/calls/{id}")).text();
        assert!(!detail.contains("hunter2"), "{detail}");
    }
    assert!(server.http().get("/calls").text().contains("login"));
}

#[test]
fn a_call_of_a_running_server_is_shown_and_exported_by_its_id() {
    let server = world().tool("hello", sh("echo hello")).serve();
    server.client().call("hello", json!({}));
    let id = id_of(&server.http().get("/calls").json().as_array().cloned().unwrap_or_default(), "hello")
        .expect("a call");
    let other = world();
    for (command, shown) in [("show", "capability  hello"), ("export", r#""capability": "hello""#)] {
        let done = other.run(&["calls", command, &id, "--url", &format!("http://{}", server.address())]);
        assert!(done.code == Some(0) && done.stdout.contains(shown), "{}", done.all());
    }
}
