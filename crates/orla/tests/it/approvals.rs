//! Approvals: calls that a person has to agree to.

use orla_e2e::{Client, Pending, Server, World, eventually};
use rustix::process::Signal;
use serde_json::{Value, json};

use crate::{sh, world};

const ADA: &str = "adas-token-for-tests";
const BOB: &str = "bobs-token-for-tests";
const EVE: &str = "eves-token-for-tests";
const CALLERS: &str =
    "auth_tokens: {ada: adas-token-for-tests, bob: bobs-token-for-tests, eve: eves-token-for-tests}\n";

/// The tool `a` needs an approval and notes each run in the file `ran`, and `b` does not.
fn world_with(more: &str) -> World {
    world()
        .tool("a", sh("echo \"$*\" >> ran; echo a"))
        .tool("b", sh("echo b"))
        .env("ORLA_TOKEN", ADA)
        .config(&format!("{CALLERS}audit: ./audit.jsonl\napprove:\n{more}"))
}

fn pending(server: &Server, token: &str) -> Vec<Value> {
    server.get_as("/approvals", token).json().as_array().cloned().unwrap_or_default()
}

/// Returns the id of the only call that waits.
fn waiting(server: &Server) -> String {
    eventually("a call waits for its approval", || {
        let rows = pending(server, ADA);
        (rows.len() == 1).then(|| rows[0]["id"].as_str().unwrap_or_default().to_owned())
    })
}

fn answer(server: &Server, token: &str, id: &str, approve: bool) -> u16 {
    let body = json!({ "approve": approve }).to_string();
    server.send_as("POST", &format!("/approvals/{id}"), token, &body).status
}

fn runs(server: &Server) -> usize {
    if server.path("ran").exists() { server.read("ran").lines().count() } else { 0 }
}

/// Returns the records of decisions in the audit, as `decision by via`.
fn decisions(server: &Server) -> Vec<String> {
    let word = |record: &Value, name: &str| record[name].as_str().unwrap_or("-").to_owned();
    let audit = server.read("audit.jsonl");
    // The last record may be half written.
    let complete = audit.rfind('\n').map_or("", |end| &audit[..end]);
    let records = complete.lines().map(|line| serde_json::from_str::<Value>(line).expect("JSON"));
    records
        .filter(|record| record["event"] == "approval")
        .map(|record| ["decision", "by", "via"].map(|name| word(&record, name)).join(" "))
        .collect()
}

#[test]
fn a_waiting_command_shows_how_its_call_is_approved() {
    let server = world_with("  - {capabilities: [a], expires: 60s}\n").serve();
    let url = format!("http://{}", server.address());
    let mut calling = server.spawn(&["call", "a", "--url", &url], "called");
    let id = waiting(&server);
    let line = format!("a waits for an approval: `orla approvals approve {id}`\n");
    eventually("it says so", || (server.read("called") == line).then_some(()));
    assert_eq!(answer(&server, BOB, &id, true), 200);
    let ended = eventually("it ends", || calling.try_wait().expect("a child"));
    assert!(ended.success(), "{}", server.read("called"));
    assert_eq!(server.read("called"), format!("{line}a\n"));
}

#[test]
fn a_call_waits_until_someone_answers_it_with_the_command() {
    let server = world_with("  - {capabilities: [a], expires: 60s}\n").serve();
    let url = format!("http://{}", server.address());
    let mut bob = server.client_as(BOB);
    assert_eq!(bob.call("b", json!({})).stdout(), "b\n");
    let call = bob.begin_call("a", json!({"args": ["x"]}));
    let id = waiting(&server);
    let shown: Value =
        serde_json::from_str(&server.run(&["approvals", "--json", "--url", &url]).stdout).unwrap();
    assert_eq!(
        (&shown[0]["id"], &shown[0]["capability"], &shown[0]["principal"], &shown[0]["input"]),
        (&json!(id), &json!("a"), &json!("bob"), &json!({"args": ["x"]}))
    );
    assert!(shown[0]["expires_at"].as_str().unwrap().ends_with('Z'), "{shown}");
    assert_eq!(runs(&server), 0);
    let approved = server.run(&["approvals", "approve", &id, "--url", &url]);
    assert_eq!(approved.code, Some(0), "{}", approved.all());
    assert_eq!(bob.finish_call(call).unwrap().stdout(), "a\n");
    let again = server.run(&["approvals", "approve", &id, "--url", &url]);
    assert!(again.code == Some(1) && again.stderr.contains("no call waits"), "{}", again.all());

    let call = bob.begin_call("a", json!({"args": ["x"]}));
    let second = waiting(&server);
    assert_ne!(id, second, "an approval is used once");
    assert_eq!(server.run(&["approvals", "deny", &second, "--url", &url]).code, Some(0));
    let refused = bob.finish_call(call).unwrap();
    assert!(refused.sentence().contains("a: not approved: the call was denied"), "{}", refused.json);
    assert_eq!(runs(&server), 1);
    eventually("both decisions are in the audit", || {
        decisions(&server) == ["approved ada orla approvals", "denied ada orla approvals"]
    });
}

#[test]
fn a_tool_that_changed_since_the_question_does_not_run() {
    let server = world_with("  - {capabilities: [a], expires: 60s}\n").serve();
    let other = "#!/bin/sh\n# Another program.\necho >> ran\n";
    let mut bob = server.client_as(BOB);
    for is_reloaded in [false, true] {
        let call = bob.begin_call("a", json!({}));
        let id = waiting(&server);
        server.write("new", format!("{other}# {is_reloaded}\n"), 0o755);
        std::fs::rename(server.path("new"), server.path("tools/a")).unwrap();
        if is_reloaded {
            server.signal(Signal::HUP);
            server.log_says(&["reloaded"]);
        }
        assert_eq!(answer(&server, ADA, &id, true), 200);
        let refused = bob.finish_call(call).unwrap();
        assert!(refused.sentence().contains("a: not approved: it has changed"), "{}", refused.json);
    }
    let yes = json!({"action": "accept", "content": {"approve": true}});
    let (mut bob, question) = asked(&server, BOB, &json!({}));
    server.write("tools/a", format!("{other}# once more\n"), 0o755);
    let refused = bob.request("tools/call", resumed(&question, &json!({}), &yes)).unwrap();
    assert_eq!(refused["isError"], true, "{refused}");
    assert_eq!(runs(&server), 0);
    let call = bob.begin_call("a", json!({}));
    assert_eq!(answer(&server, ADA, &waiting(&server), true), 200);
    assert_eq!(bob.finish_call(call).unwrap().exit_code(), 0, "what is there now was asked about");
    assert_eq!(runs(&server), 1);
}

#[test]
fn a_declaration_that_has_changed_since_the_question_does_not_run() {
    let declared = |function: &str| {
        format!(
            "{CALLERS}approve: [{{capabilities: [x], expires: 60s}}]\n\
             capabilities: [{{id: x, provider: {{Local: {{function: {function}}}}}}}]\n"
        )
    };
    let server = world().config(&declared("math.add")).serve();
    let mut bob = server.client_as(BOB);
    let call = bob.begin_call("x", json!({"a": 2, "b": 5}));
    let id = waiting(&server);
    server.write("orla.yaml", declared("math.multiply"), 0o644);
    server.signal(Signal::HUP);
    server.log_says(&["reloaded"]);
    assert_eq!(answer(&server, ADA, &id, true), 200);
    let refused = bob.finish_call(call).unwrap();
    assert!(refused.sentence().contains("it has changed"), "{}", refused.json);
}

#[test]
fn a_call_that_is_not_answered_in_time_does_not_run() {
    let server = world_with("  - {capabilities: [a], expires: 0.2s}\n").serve();
    for mut client in [server.client_as(BOB), server.session_as(BOB)] {
        let refused = client.call("a", json!({}));
        assert!(refused.sentence().contains("no answer within 0.2 s"), "{}", refused.json);
    }
    let plain = server.send_as("POST", "/rtfs", BOB, r#"{"call": "a"}"#).json();
    assert_eq!(plain["error"]["kind"], "approval");
    assert_eq!(runs(&server), 0);
    eventually("it is in the audit", || decisions(&server) == ["expired - -"; 3]);
    assert!(server.read("audit.jsonl").contains(r#""outcome":"approval""#));
    let metrics = server.get_as("/metrics", ADA).text();
    assert!(metrics.contains(r#"orla_approvals_total{decision="expired"} 3"#), "{metrics}");
    assert!(pending(&server, ADA).is_empty());
}

/// Returns a sessionless call by a client that can be asked, up to the question.
fn asked(server: &Server, token: &str, arguments: &Value) -> (Client, Value) {
    let mut client = server.client_as(token);
    let result = client.request("tools/call", able(arguments)).expect("a result");
    assert_eq!(result["resultType"], "input_required", "{result}");
    (client, result)
}

fn able(arguments: &Value) -> Value {
    let can = json!({"io.modelcontextprotocol/clientCapabilities": {"elicitation": {"form": {}}}});
    json!({"name": "a", "arguments": arguments, "_meta": can})
}

/// Returns the call with the answer to its question.
fn resumed(question: &Value, arguments: &Value, content: &Value) -> Value {
    let questions = question["inputRequests"].as_object().expect("questions");
    let key = questions.keys().next().expect("a question");
    let mut params = able(arguments);
    params["inputResponses"] = json!({key: content});
    params["requestState"] = question["requestState"].clone();
    params
}

#[test]
fn an_approval_by_the_callers_client_holds_for_that_call_only() {
    let server = world_with("  - {capabilities: [a], expires: 60s}\n").serve();
    let yes = json!({"action": "accept", "content": {"approve": true}});
    let arguments = json!({"args": ["x"]});
    let (mut bob, question) = asked(&server, BOB, &arguments);
    let form = question["inputRequests"].as_object().unwrap().values().next().unwrap();
    assert_eq!(form["params"]["requestedSchema"]["properties"]["approve"]["type"], "boolean", "{form}");
    assert!(form["params"]["message"].as_str().unwrap().contains(r#"a with {"args":["x"]}"#), "{form}");

    let changed = resumed(&question, &json!({"args": ["y"]}), &yes);
    assert_eq!(bob.request("tools/call", changed).unwrap_err().code, -32602);
    let mut eve = server.client_as(EVE);
    assert_eq!(
        eve.request("tools/call", resumed(&question, &arguments, &yes)).unwrap_err().code,
        -32602
    );
    assert_eq!(runs(&server), 0);
    let result = bob.request("tools/call", resumed(&question, &arguments, &yes)).unwrap();
    assert_eq!(result["isError"], Value::Null, "{result}");
    assert_eq!(
        bob.request("tools/call", resumed(&question, &arguments, &yes)).unwrap_err().code,
        -32602
    );
    assert_eq!(runs(&server), 1);

    for no in [json!({"action": "decline"}), json!({"action": "accept", "content": {"approve": false}})]
    {
        let (mut bob, question) = asked(&server, BOB, &arguments);
        let result = bob.request("tools/call", resumed(&question, &arguments, &no)).unwrap();
        assert_eq!(result["isError"], true, "{result}");
    }
    // The first answer counts, even if it comes from another caller than the client that was asked.
    let (mut bob, question) = asked(&server, BOB, &arguments);
    assert_eq!(answer(&server, ADA, &waiting(&server), false), 200);
    let late = bob.request("tools/call", resumed(&question, &arguments, &yes)).unwrap();
    assert_eq!(late["isError"], true, "{late}");
    assert_eq!(runs(&server), 1);
    eventually("all decisions are in the audit", || {
        let all = decisions(&server);
        all == [
            "approved bob elicitation",
            "denied bob elicitation",
            "denied bob elicitation",
            "denied ada orla approvals",
        ]
    });
}

#[test]
fn those_whom_a_rule_names_answer_and_no_others() {
    let server = world_with("  - {capabilities: [a], expires: 60s, by: [ada]}\n").serve();
    let mut bob = server.client_as(BOB);
    let call: Pending = bob.begin("tools/call", able(&json!({})));
    let id = waiting(&server);
    assert_eq!(pending(&server, BOB)[0]["answerable"], false, "it is bob's own");
    assert!(pending(&server, EVE).is_empty());
    assert_eq!(answer(&server, BOB, &id, true), 403);
    assert_eq!(answer(&server, EVE, &id, true), 404);
    assert_eq!(answer(&server, ADA, "0123456789abcdef", true), 404);
    assert_eq!(server.send_as("POST", &format!("/approvals/{id}"), ADA, "{}").status, 400);
    assert_eq!(server.send_as("POST", &format!("/approvals/{id}"), "wrong", "{}").status, 401);
    assert_eq!(runs(&server), 0);
    assert_eq!(answer(&server, ADA, &id, true), 200);
    let (result, _) = bob.complete(call).unwrap();
    assert_eq!(result["structuredContent"]["stdout"], "a\n", "{result}");
}

#[test]
fn an_approval_that_comes_after_its_caller_has_left_is_good_for_the_same_call() {
    let server = world_with("  - {capabilities: [a], expires: 60s}\n").serve();
    let left = server.client_as(BOB).begin_call("a", json!({"args": ["x"]}));
    let id = waiting(&server);
    let asked = server.log_says(&["a call waits for an approval"]);
    for word in [&*format!("orla approvals approve {id}"), "\"bob\"", "approve[0]"] {
        assert!(asked.contains(word), "{word}: {asked}");
    }
    let call = pending(&server, ADA)[0]["call_id"].as_str().expect("an id").to_owned();
    let shown = server.get_as(&format!("/calls/{call}"), BOB).json();
    assert_eq!(
        (&shown["outcome"], &shown["state"]),
        (&json!("running"), &json!("waiting for approval"))
    );
    drop(left);
    eventually("the caller's leaving is noticed", || decisions(&server) == ["withdrawn - -"]);
    assert_eq!(answer(&server, ADA, &id, true), 200);
    let mut eve = server.client_as(EVE);
    let eves = eve.begin_call("a", json!({"args": ["x"]}));
    let own = waiting(&server);
    assert_ne!(id, own);
    assert_eq!(answer(&server, ADA, &own, false), 200);
    assert!(eve.finish_call(eves).unwrap().is_error());
    let mut bob = server.client_as(BOB);
    assert_eq!(bob.call("a", json!({"args": ["x"]})).stdout(), "a\n");
    let _again = bob.begin_call("a", json!({"args": ["x"]}));
    waiting(&server);
    assert_eq!(runs(&server), 1);
}

#[test]
fn the_question_of_a_cancelled_task_is_withdrawn() {
    let server = world_with("  - {capabilities: [a], expires: 60s}\n").serve();
    let body = r#"{"capability": "a", "input": {"args": ["x"]}}"#;
    let started = server.send_as("POST", "/tasks", BOB, body).json();
    let id = waiting(&server);
    let task = format!("/tasks/{}", started["id"].as_str().unwrap());
    assert_eq!(server.send_as("DELETE", &task, BOB, "").json()["state"], "cancelled");
    eventually("the question is gone", || pending(&server, ADA).is_empty());
    eventually("the end of the question is recorded", || !decisions(&server).is_empty());
    assert_eq!(decisions(&server), ["withdrawn - -"]);
    assert_eq!(answer(&server, ADA, &id, true), 404);
    server.send_as("POST", "/tasks", BOB, body);
    assert_ne!(waiting(&server), id);
    assert_eq!(runs(&server), 0);
}

#[test]
fn waiting_for_approval_does_not_count_towards_a_programs_timeout() {
    let server = world_with("  - {capabilities: [a], expires: 60s}\ntimeout: 5\n").serve();
    let program = r#"{"program": "(str (call :a {}) (call :b {}))"}"#;
    let value = std::thread::scope(|scope| {
        let running = scope.spawn(|| server.send_as("POST", "/rtfs", BOB, program).json());
        let id = waiting(&server);
        // Longer than the program's own time.
        let began = std::time::Instant::now();
        eventually("the program would be late", || began.elapsed() > std::time::Duration::from_secs(7));
        assert_eq!(answer(&server, ADA, &id, true), 200);
        running.join().unwrap()
    });
    assert!(value["value"].is_string(), "{value}");
    let refused = r#"{"program": "(try (call :a {}) (catch e (:kind e)))"}"#;
    let value = std::thread::scope(|scope| {
        let running = scope.spawn(|| server.send_as("POST", "/rtfs", BOB, refused).json());
        assert_eq!(answer(&server, ADA, &waiting(&server), false), 200);
        running.join().unwrap()
    });
    assert_eq!(value["value"], "approval");
}

#[test]
fn tools_annotated_as_destructive_need_approval() {
    let header = "#!/bin/sh\n# /// orla\n# annotations: {destructiveHint: true}\n# ///\necho gone\n";
    let server = world_with("  - {annotations: {destructiveHint: true}, expires: 0.2s}\n")
        .tool("wipe", header)
        .serve();
    let mut bob = server.client_as(BOB);
    assert_eq!(bob.call("b", json!({})).stdout(), "b\n");
    assert!(bob.call("wipe", json!({})).sentence().contains("not approved"));
}

#[test]
fn a_command_without_a_terminal_is_refused_at_once() {
    let world = world_with("  - {capabilities: [a], expires: 60s}\n");
    let refused = world.run(&["call", "a"]);
    assert!(
        refused.code == Some(1) && refused.all().contains("nobody can be asked"),
        "{}",
        refused.all()
    );
    assert!(!world.path("ran").exists());
}
