//! orla as an agent: its card, its tasks, and its messages over each binding of the Agent2Agent
//! protocol.

use orla_e2e::{Request, Response, Server, World, eventually};
use serde_json::{Value, json};

use crate::{sh, world};

/// A tool that asks a question before it answers, and one that never answers. Both are tools of an MCP server.
const ASKING: &str = r#"
import json, sys
def out(message):
    sys.stdout.write(json.dumps({"jsonrpc": "2.0", **message}) + "\n"); sys.stdout.flush()
tools = [{"name": n, "description": f"Does {n}.", "inputSchema": {"type": "object"}} for n in ("ask", "talk")]
waiting, asked = {}, 0
for line in sys.stdin:
    m = json.loads(line)
    method, p = m.get("method"), m.get("params") or {}
    if method == "notifications/cancelled": open("cancelled.log", "a").write("x")
    if method is None and m.get("id") in waiting:
        answer = m.get("result") or {}
        text = json.dumps(answer)
        out({"id": waiting.pop(m["id"]), "result": {"content": [{"type": "text", "text": text}], "structuredContent": answer}})
        continue
    if "id" not in m: continue
    if method == "initialize":
        result = {"protocolVersion": p["protocolVersion"], "capabilities": {"tools": {}},
                  "serverInfo": {"name": "asking", "version": "1"}}
    elif method == "tools/list": result = {"tools": tools}
    elif method == "tools/call" and p["name"] == "ask":
        asked += 1
        question = "q%d" % asked
        waiting[question] = m["id"]
        out({"id": question, "method": "elicitation/create", "params": {"message": "Who?",
             "requestedSchema": {"type": "object", "properties": {"name": {"type": "string"}}}}})
        continue
    elif method == "tools/call":
        said = p["arguments"].get("message") or p["arguments"].get("input")
        result = {"content": [{"type": "text", "text": "You said: " + said}]}
        if said.startswith("just"): result["_meta"] = {"orla/a2a": {"kind": "message"}}
    else:
        out({"id": m["id"], "error": {"code": -32601, "message": "not here"}}); continue
    out({"id": m["id"], "result": result})
"#;

pub(crate) const ASKED: &str = "mcpServers: {asking: {command: python3, args: [asking.py]}}\n";

pub(crate) fn agent() -> World {
    world()
        .tool("echo", sh("cat"))
        .tool("broken", sh("echo oh >&2; exit 3"))
        .tool("slow", sh("echo '::progress 0.5 half' >&2; echo $$ > started; exec sleep 600"))
        .file("asking.py", ASKING)
        .config(
            "mcpServers: {asking: {command: python3, args: [asking.py]}}\na2a: {text: asking.talk}\n",
        )
}

pub(crate) fn message(part: &Value) -> Value {
    json!({"message": {"messageId": "m1", "role": "ROLE_USER", "parts": [part]}})
}

pub(crate) fn calls(capability: &str, input: &Value) -> Value {
    message(&json!({"data": {"capability": capability, "input": input}}))
}

pub(crate) fn rpc(method: &str, params: &Value) -> Request {
    let body = json!({"jsonrpc": "2.0", "id": 7, "method": method, "params": params});
    Request::new("POST", "/a2a")
        .header("content-type", "application/json")
        .header("a2a-version", "1.0")
        .body(body.to_string())
}

pub(crate) fn send(server: &Server, request: &Request) -> Response {
    server.http().send(request).expect("an answer")
}

/// Returns the result of a method.
pub(crate) fn ask(server: &Server, method: &str, params: &Value) -> Value {
    let answer = send(server, &rpc(method, params));
    assert_eq!((answer.status, answer.header("content-type")), (200, Some("application/json")));
    let answer = answer.json();
    assert_eq!((&answer["jsonrpc"], &answer["id"]), (&json!("2.0"), &json!(7)), "{answer}");
    assert!(answer.get("error").is_none(), "{answer}");
    answer["result"].clone()
}

/// Returns the code of the error of a method.
pub(crate) fn refusal(server: &Server, method: &str, params: &Value) -> i64 {
    let answer = send(server, &rpc(method, params)).json();
    answer["error"]["code"].as_i64().unwrap_or_else(|| panic!("no error: {answer}"))
}

pub(crate) fn state(task: &Value) -> &str {
    task["status"]["state"].as_str().unwrap_or_else(|| panic!("no state: {task}"))
}

pub(crate) fn task(server: &Server, params: &Value) -> Value {
    ask(server, "SendMessage", params)["task"].clone()
}

#[test]
fn the_card_lists_what_is_served_and_where() {
    let server = agent().serve();
    let answer = server.http().get("/.well-known/agent-card.json");
    let card = answer.json();
    let skills: Vec<_> = card["skills"].as_array().unwrap().iter().map(|skill| &skill["id"]).collect();
    assert_eq!(skills, ["asking__ask", "asking__talk", "broken", "echo", "slow", "rtfs"]);
    let base = format!("http://{}/a2a", server.address());
    let interfaces = card["supportedInterfaces"].as_array().unwrap();
    for binding in ["JSONRPC", "HTTP+JSON"] {
        let own = json!({"url": base, "protocolBinding": binding, "protocolVersion": "1.0"});
        assert!(interfaces.contains(&own), "{card}");
    }
    assert_eq!(card["capabilities"]["streaming"], true);
    assert!(card["description"].as_str().unwrap().contains("a program of RTFS"), "{card}");
    assert!(answer.header("cache-control").unwrap().contains("max-age="));
    assert!(answer.header("last-modified").is_some());
    let tag = answer.header("etag").unwrap();
    let known = Request::new("GET", "/.well-known/agent-card.json").header("if-none-match", tag);
    let known = send(&server, &known);
    assert_eq!((known.status, known.body.len()), (304, 0));
    server.write("tools/later", sh("echo later"), 0o755);
    server.reload();
    let changed = server.http().get("/.well-known/agent-card.json");
    assert_ne!(changed.header("etag"), Some(tag));
    assert!(changed.text().contains("later"));
    server.write("orla.yaml", "deny: [rtfs]\n", 0o644);
    server.reload();
    let without = server.http().get("/.well-known/agent-card.json");
    assert!(
        !without.text().contains("RTFS"),
        "who may not run programs is promised none: {}",
        without.text()
    );
}

#[test]
fn a_message_calls_a_capability_or_runs_a_program() {
    let server = agent().serve();
    let echoed = task(&server, &calls("echo", &json!({"a": 1})));
    assert_eq!(state(&echoed), "TASK_STATE_COMPLETED", "{echoed}");
    let parts = &echoed["artifacts"][0]["parts"];
    assert_eq!(parts[0]["text"], "{\"a\":1}\n");
    assert_eq!(parts[1]["data"]["stdout"], "{\"a\":1}\n");
    assert_eq!(parts[1]["mediaType"], "application/json");
    assert_eq!(echoed["artifacts"][0]["metadata"]["orla/execution"]["exit_code"], 0);
    for part in [
        json!({"data": {"program": "(call :math.add {:a input :b 2})", "input": 40}}),
        json!({"text": "(call :math.add {:a 40 :b 2})"}),
    ] {
        let ran = task(&server, &message(&part));
        assert_eq!(ran["artifacts"][0]["parts"][0]["text"], "42", "{ran}");
        assert_eq!(ran["artifacts"][0]["parts"][1]["data"], json!({"value": 42}), "{ran}");
    }
    let mut skill = message(&json!({"data": {"b": 2}}));
    skill["message"]["metadata"] = json!({"skillId": "echo"});
    assert_eq!(task(&server, &skill)["artifacts"][0]["parts"][0]["text"], "{\"b\":2}\n");
    let answered = task(&server, &message(&json!({"text": "hello"})));
    assert_eq!(answered["artifacts"][0]["parts"], json!([{"text": "You said: hello"}]));
    let just = ask(&server, "SendMessage", &message(&json!({"text": "just hello"})));
    assert_eq!(just["message"]["parts"], json!([{"text": "You said: just hello"}]), "{just}");
    assert_eq!(ask(&server, "ListTasks", &json!({}))["totalSize"], 5);
}

#[test]
fn failures_are_reported_in_the_task() {
    let server = agent().serve();
    for (params, wanted, kind) in [
        (calls("broken", &json!({})), "TASK_STATE_FAILED", "failed"),
        (calls("nothing", &json!({})), "TASK_STATE_REJECTED", "unknown-capability"),
        (calls("math.add", &json!({"a": "x"})), "TASK_STATE_FAILED", "invalid-input"),
        (message(&json!({"text": "(+ 1"})), "TASK_STATE_FAILED", "syntax"),
        (message(&json!({"text": "; so it goes\n(/ 1 0)"})), "TASK_STATE_FAILED", "arithmetic"),
    ] {
        let failed = task(&server, &params);
        assert_eq!(state(&failed), wanted, "{failed}");
        let parts = &failed["status"]["message"]["parts"];
        assert_eq!(parts[1]["data"]["error"]["kind"], kind, "{failed}");
        assert_eq!(parts[1]["data"]["error"]["message"], parts[0]["text"]);
    }
    let broken = task(&server, &calls("broken", &json!({})));
    assert!(
        broken["status"]["message"]["parts"][0]["text"].as_str().unwrap().contains("code 3"),
        "{broken}"
    );
    let unclear = task(&server, &message(&json!({"data": {"what": 1}})));
    assert_eq!(state(&unclear), "TASK_STATE_REJECTED");
}

#[test]
fn invalid_requests_get_the_protocols_errors() {
    let server = agent().serve();
    let good = message(&json!({"text": "(+ 1 2)"}));
    let empty = json!({"message": {"messageId": "m", "role": "ROLE_USER", "parts": []}});
    let file = message(&json!({"raw": "AQI=", "mediaType": "image/png"}));
    for (method, params, code) in [
        ("SendMessage", json!({}), -32602),
        ("SendMessage", empty, -32602),
        ("SendMessage", file, -32005),
        ("GetTask", json!({"id": "none"}), -32001),
        ("CancelTask", json!({"id": "none"}), -32001),
        ("SubscribeToTask", json!({"id": "none"}), -32001),
        ("ListTasks", json!({"pageSize": 1000}), -32602),
        ("GetExtendedAgentCard", json!({}), -32004),
        ("Nothing", json!({}), -32601),
    ] {
        assert_eq!(refusal(&server, method, &params), code, "{method} {params}");
    }
    let over = task(&server, &good);
    for (method, code) in [("CancelTask", -32002), ("SubscribeToTask", -32004)] {
        assert_eq!(refusal(&server, method, &json!({"id": over["id"]})), code, "{method}");
    }
    let mut more = good.clone();
    more["message"]["taskId"] = over["id"].clone();
    assert_eq!(refusal(&server, "SendMessage", &more), -32004);
    more["message"]["contextId"] = "another".into();
    assert_eq!(refusal(&server, "SendMessage", &more), -32602);
    let body = |text: &str| rpc("", &Value::Null).body(text);
    for (request, status, code) in [
        (body("{"), 200, -32700),
        (body("[]"), 200, -32600),
        (body(r#"{"jsonrpc": "1.0", "id": 1, "method": "ListTasks"}"#), 200, -32600),
        (Request::new("POST", "/a2a/").header("content-type", "text/plain").body("x"), 415, -32005),
        (Request::new("GET", "/a2a"), 405, -32600),
        (rpc("ListTasks", &json!({})).header("a2a-version", "99.0"), 200, -32009),
        (body(&"x".repeat(5 << 20)), 413, -32600),
    ] {
        let mut request = request;
        // The last of a kind counts.
        if request.headers.iter().filter(|(name, _)| name == "a2a-version").count() > 1 {
            request.headers.retain(|(_, value)| value != "1.0");
        }
        let answer = send(&server, &request);
        assert_eq!(answer.status, status, "{}", answer.text());
        assert_eq!(answer.json()["error"]["code"], code, "{}", answer.text());
    }
}

#[test]
fn a_question_waits_for_the_next_message_of_its_task() {
    let server = agent().serve();
    for (answer, content) in [
        (json!({"text": "Ada"}), json!({"action": "accept", "content": {"name": "Ada"}})),
        (json!({"data": {"name": "Bob"}}), json!({"action": "accept", "content": {"name": "Bob"}})),
        (json!({"data": {"action": "decline"}}), json!({"action": "decline"})),
    ] {
        let asked = task(&server, &calls("asking.ask", &json!({})));
        assert_eq!(state(&asked), "TASK_STATE_INPUT_REQUIRED", "{asked}");
        let parts = &asked["status"]["message"]["parts"];
        assert_eq!(parts[0]["text"], "Who?");
        assert!(parts[1]["data"]["requestedSchema"]["properties"]["name"].is_object(), "{asked}");
        let stream = rpc("SubscribeToTask", &json!({"id": asked["id"]}));
        let mut follower = server.http().write(&stream).unwrap().head().unwrap();
        let first: Value = serde_json::from_str(&follower.next_event().unwrap().unwrap()).unwrap();
        assert_eq!(state(&first["result"]["task"]), "TASK_STATE_INPUT_REQUIRED");
        let mut more = message(&answer);
        more["message"]["taskId"] = asked["id"].clone();
        let done = task(&server, &more);
        assert_eq!(state(&done), "TASK_STATE_COMPLETED", "{done}");
        assert_eq!(done["artifacts"][0]["parts"][0]["data"], content, "{done}");
        let said = done["history"].as_array().unwrap();
        assert_eq!((said.len(), &said[1]["role"]), (3, &json!("ROLE_AGENT")), "{done}");
        let mut last = Value::Null;
        while let Some(event) = follower.next_event().unwrap() {
            last = serde_json::from_str(&event).unwrap();
        }
        assert_eq!(state(&last["result"]["statusUpdate"]), "TASK_STATE_COMPLETED", "{last}");
    }
}

#[test]
fn a_stream_reports_the_task_and_cancelling_it_leaves_nothing_running() {
    let server = agent().serve();
    let stream = rpc("SendStreamingMessage", &calls("slow", &json!({})));
    let mut events = server.http().write(&stream).unwrap().head().unwrap();
    assert_eq!(events.header("content-type"), Some("text/event-stream"));
    let mut next = || {
        let event: Value = serde_json::from_str(&events.next_event().unwrap()?).unwrap();
        Some(event["result"].clone())
    };
    let first = next().unwrap()["task"].clone();
    let id = json!({"id": first["id"]});
    loop {
        let update = next().unwrap()["statusUpdate"].clone();
        assert_eq!(state(&update), "TASK_STATE_WORKING", "{update}");
        if update["status"]["message"]["parts"][0]["text"] == "half" {
            break;
        }
    }
    eventually("the tool runs", || server.path("started").exists());
    let cancelled = ask(&server, "CancelTask", &id);
    assert_eq!(state(&cancelled), "TASK_STATE_CANCELED");
    server.assert_no_tool_is_left();
    let given = next().unwrap();
    assert!(given["artifactUpdate"]["artifact"]["parts"].is_array(), "what it had given: {given}");
    assert_eq!(state(&next().unwrap()["statusUpdate"]), "TASK_STATE_CANCELED");
    assert!(next().is_none());
    assert_eq!(state(&ask(&server, "GetTask", &id)), "TASK_STATE_CANCELED");
}

#[test]
fn a_task_outlives_its_connection_and_is_found_in_the_list() {
    let server = agent().serve();
    let mut begun = calls("slow", &json!({}));
    begun["configuration"] = json!({"returnImmediately": true});
    let working = task(&server, &begun);
    eventually("the tool runs", || server.path("started").exists());
    for _ in 0..3 {
        task(&server, &calls("echo", &json!({})));
    }
    let mut list = ask(&server, "ListTasks", &json!({"pageSize": 2}));
    assert_eq!((list["tasks"].as_array().unwrap().len(), &list["totalSize"]), (2, &json!(4)));
    let mut found: Vec<Value> = list["tasks"].as_array().unwrap().clone();
    while list["nextPageToken"] != "" {
        let next = json!({"pageSize": 2, "pageToken": list["nextPageToken"]});
        list = ask(&server, "ListTasks", &next);
        found.extend(list["tasks"].as_array().unwrap().iter().cloned());
    }
    assert_eq!(found.len(), 4);
    assert_eq!(found[3]["id"], working["id"], "the newest state first");
    assert!(found.iter().all(|task| task.get("artifacts").is_none()), "{found:?}");
    let asked = json!({"status": "TASK_STATE_WORKING"});
    assert_eq!(ask(&server, "ListTasks", &asked)["tasks"][0]["id"], working["id"]);
    let brief = ask(&server, "GetTask", &json!({"id": working["id"], "historyLength": 0}));
    assert!(brief.get("history").is_none(), "{brief}");
    ask(&server, "CancelTask", &json!({"id": working["id"]}));
}

#[test]
fn tasks_are_of_those_who_began_them_and_only_what_they_may_use_is_theirs() {
    let config = "auth_tokens: {ada: a-secret, bob: b-secret}\npolicy:\n- {allow: exec}\n- {to: bob, capabilities: broken, deny: '*'}\n- {allow: 'mcp:*'}\n";
    let server = agent().config(config).serve();
    let card = Request::new("GET", "/.well-known/agent-card.json");
    assert_eq!(send(&server, &card).status, 401);
    assert_eq!(send(&server, &rpc("ListTasks", &json!({}))).status, 401);
    let with =
        |who: &str, request: Request| send(&server, &request.bearer(&format!("{who}-secret"))).json();
    let ada = with("a", card.clone());
    assert_eq!(ada["securitySchemes"]["bearer"]["httpAuthSecurityScheme"]["scheme"], "Bearer");
    assert!(ada.to_string().contains("\"broken\""));
    assert!(!with("b", card).to_string().contains("\"broken\""));
    let denied = with("b", rpc("SendMessage", &calls("broken", &json!({}))));
    let denied = &denied["result"]["task"];
    assert_eq!(state(denied), "TASK_STATE_REJECTED");
    let kind = &denied["status"]["message"]["parts"][1]["data"]["error"]["kind"];
    assert_eq!(kind, "unknown-capability", "{denied}");
    let own = with("a", rpc("SendMessage", &calls("echo", &json!({}))));
    let id = json!({"id": own["result"]["task"]["id"]});
    assert_eq!(with("a", rpc("GetTask", &id))["result"]["id"], id["id"]);
    for method in ["GetTask", "CancelTask", "SubscribeToTask"] {
        assert_eq!(with("b", rpc(method, &id))["error"]["code"], -32001, "{method}");
    }
    assert_eq!(with("b", rpc("ListTasks", &json!({})))["result"]["totalSize"], 1);
    let rebound = rpc("ListTasks", &json!({})).header("host", "evil.example");
    assert_eq!(send(&server, &rebound).status, 403);
    let page = rpc("ListTasks", &json!({})).header("origin", "https://evil.example");
    assert_eq!(send(&server, &page).status, 403);
}

#[test]
fn tasks_survive_the_server_and_what_may_not_run_again_when_it_was_killed_has_failed() {
    let folder = tempfile::tempdir().unwrap();
    let config = format!("{ASKED}state_dir: '{}'\n", folder.path().join("state").display());
    let mut first = agent().config(&config).serve();
    let done = task(&first, &calls("echo", &json!({"a": 1})));
    let mut begun = calls("slow", &json!({}));
    begun["configuration"] = json!({"returnImmediately": true});
    let working = task(&first, &begun);
    let taken = agent().config(&config).run(&["serve", "--port", "0"]);
    assert_eq!(taken.code, Some(2));
    assert!(taken.stderr.contains("state.db"), "{}", taken.stderr);
    let beside = agent().config(&config).serve_stdio().initialized();
    drop(beside);
    eventually("the tool runs", || first.path("started").exists());
    first.kill();

    let mut second = agent().config(&config).serve();
    let id = |task: &Value| json!({"id": task["id"]});
    assert_eq!(ask(&second, "GetTask", &id(&done)), done);
    let failed = ask(&second, "GetTask", &id(&working));
    assert_eq!(state(&failed), "TASK_STATE_FAILED");
    let said = &failed["status"]["message"]["parts"];
    assert!(said[0]["text"].as_str().unwrap().contains("it is not idempotent"), "{failed}");
    assert_eq!(said[1]["data"]["error"]["kind"], "interrupted");
    assert_eq!(ask(&second, "ListTasks", &json!({}))["totalSize"], 2);
    let more = task(&second, &calls("echo", &json!({})));
    second.terminate();

    let third = agent().config(&config).serve();
    assert_eq!(ask(&third, "GetTask", &id(&failed)), failed);
    assert_eq!(ask(&third, "GetTask", &id(&more)), more);
}

#[test]
fn tasks_that_are_over_make_room_and_those_at_work_do_not() {
    let config = format!("{ASKED}a2a: {{max_tasks: 2, max_task_bytes: 2000}}\n");
    let server = agent().tool("much", sh("head -c 3000 /dev/zero | tr '\\0' x")).config(&config).serve();
    let ids: Vec<_> = (0..3).map(|_| task(&server, &calls("echo", &json!({})))["id"].clone()).collect();
    assert_eq!(refusal(&server, "GetTask", &json!({"id": ids[0]})), -32001);
    assert_eq!(ask(&server, "ListTasks", &json!({}))["totalSize"], 2);
    let mut begun = calls("slow", &json!({}));
    begun["configuration"] = json!({"returnImmediately": true});
    let working = [task(&server, &begun), task(&server, &begun)];
    assert_eq!(refusal(&server, "SendMessage", &calls("echo", &json!({}))), -32603, "all are at work");
    ask(&server, "CancelTask", &json!({"id": working[0]["id"]}));
    let much = task(&server, &calls("much", &json!({})));
    assert_eq!(much["status"]["message"]["parts"][1]["data"]["error"]["kind"], "limit", "{much}");
    assert_eq!(refusal(&server, "SendMessage", &calls("echo", &json!("x".repeat(3000)))), -32602);
}

#[test]
fn a_task_is_the_same_at_every_door_and_one_that_may_run_again_does_after_a_crash() {
    let folder = tempfile::tempdir().unwrap();
    let config = format!("{ASKED}state_dir: '{}'\n", folder.path().join("state").display());
    let world = || {
        agent().config(&config).tool(
            "again",
            sh("# /// orla\n# description: Waits.\n# task: forbidden\n# annotations: {idempotentHint: true}\n# ///\n\
                echo x >> ran; [ -e go ] || exec sleep 600; echo done"),
        )
    };
    let mut first = world().serve();
    let mut begun = calls("again", &json!({}));
    begun["configuration"] = json!({"returnImmediately": true});
    let working = task(&first, &begun);
    eventually("the tool runs", || first.path("ran").exists());
    let id = working["id"].as_str().unwrap().to_owned();
    let listed = first.http().get("/tasks").json();
    assert_eq!((&listed[0]["id"], &listed[0]["state"]), (&working["id"], &json!("working")));
    first.kill();

    let second = world().file("go", "").serve();
    let params = json!({"id": id});
    let mut done = Value::Null;
    eventually("it has run again", || {
        done = ask(&second, "GetTask", &params);
        state(&done) == "TASK_STATE_COMPLETED"
    });
    assert_eq!(done["artifacts"][0]["parts"][0]["text"], "done\n", "{done}");
    assert_eq!(done["contextId"], working["contextId"]);
    let start = Request::new("POST", "/tasks").header("content-type", "application/json");
    let started = send(&second, &start.body(json!({"capability": "echo"}).to_string()));
    assert_eq!(started.status, 202);
    assert_eq!(ask(&second, "ListTasks", &json!({}))["totalSize"], 1, "only those of this protocol");
    let other = started.json()["id"].clone();
    assert_eq!(refusal(&second, "GetTask", &json!({"id": other})), -32001);

    let slow = task(&second, &{
        let mut begun = calls("slow", &json!({}));
        begun["configuration"] = json!({"returnImmediately": true});
        begun
    });
    let path = format!("/tasks/{}", slow["id"].as_str().unwrap());
    assert_eq!(send(&second, &Request::new("DELETE", &path)).status, 200);
    assert_eq!(state(&ask(&second, "GetTask", &json!({"id": slow["id"]}))), "TASK_STATE_CANCELED");
    second.assert_no_tool_is_left();
}
