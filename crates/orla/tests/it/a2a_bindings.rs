//! orla as an agent over the bindings beside JSON-RPC: HTTP+JSON, and gRPC, which another orla speaks.

use std::io::{BufRead, BufReader, Write};
use std::net::TcpListener;

use orla_e2e::{Request, Server, eventually, free_port};
use serde_json::{Value, json};

use crate::a2a_server::{agent, ask, calls, message, send, state, task};
use crate::world;

fn get(path: &str) -> Request {
    Request::new("GET", path).header("a2a-version", "1.0")
}

fn post(path: &str, body: &Value) -> Request {
    let request = Request::new("POST", path).header("a2a-version", "1.0");
    request.header("content-type", "application/json").body(body.to_string())
}

#[test]
fn paths_and_methods_say_the_same_as_the_methods_of_json_rpc() {
    let server = agent().serve();
    let sent = send(&server, &post("/a2a/message:send", &calls("echo", &json!({"a": 1}))));
    assert_eq!((sent.status, sent.header("content-type")), (200, Some("application/json")));
    let sent = sent.json()["task"].clone();
    assert_eq!(state(&sent), "TASK_STATE_COMPLETED", "{sent}");
    let id = sent["id"].as_str().unwrap();
    assert_eq!(send(&server, &get(&format!("/a2a/tasks/{id}"))).json(), sent);
    let list =
        send(&server, &get("/a2a/tasks?pageSize=5&includeArtifacts=true&status=TASK_STATE_COMPLETED"));
    assert_eq!(
        list.json(),
        json!({"tasks": [sent], "nextPageToken": "", "pageSize": 5, "totalSize": 1})
    );
    let known = get("/a2a/tasks").header("accept", "application/a2a+json");
    assert_eq!(send(&server, &known).header("content-type"), Some("application/a2a+json"));
    let by_query = Request::new("GET", "/a2a/tasks?A2A-Version=1.0");
    assert_eq!(send(&server, &by_query).status, 200);

    let streamed = post("/a2a/message:stream", &calls("slow", &json!({})));
    let mut stream = server.http().write(&streamed).unwrap().head().unwrap();
    let first: Value = serde_json::from_str(&stream.next_event().unwrap().unwrap()).unwrap();
    let slow = first["task"]["id"].as_str().unwrap().to_owned();
    eventually("the tool runs", || server.path("started").exists());
    let mut again = post(&format!("/a2a/tasks/{slow}:subscribe"), &json!({}));
    again.body.clear();
    let mut again = server.http().write(&again).unwrap().head().unwrap();
    let first: Value = serde_json::from_str(&again.next_event().unwrap().unwrap()).unwrap();
    assert_eq!(state(&first["task"]), "TASK_STATE_WORKING");
    let cancelled = send(&server, &post(&format!("/a2a/tasks/{slow}:cancel"), &json!({})));
    assert_eq!(state(&cancelled.json()), "TASK_STATE_CANCELED");
    for stream in [&mut stream, &mut again] {
        let mut last = Value::Null;
        while let Some(event) = stream.next_event().unwrap() {
            last = serde_json::from_str(&event).unwrap();
        }
        assert_eq!(state(&last["statusUpdate"]), "TASK_STATE_CANCELED", "{last}");
    }
    server.assert_no_tool_is_left();
}

#[test]
fn rest_errors_have_a_status_and_a_reason() {
    let server = agent().serve();
    let over = task(&server, &calls("echo", &json!({})));
    let over = over["id"].as_str().unwrap();
    let text = Request::new("POST", "/a2a/message:send")
        .header("a2a-version", "1.0")
        .header("content-type", "text/plain");
    let mut newer = get("/a2a/tasks");
    newer.headers[0].1 = "99.0".to_owned();
    for (request, status, reason) in [
        (get("/a2a/tasks/none"), 404, "TASK_NOT_FOUND"),
        (post(&format!("/a2a/tasks/{over}:cancel"), &json!({})), 400, "TASK_NOT_CANCELABLE"),
        (post(&format!("/a2a/tasks/{over}:subscribe"), &json!({})), 400, "UNSUPPORTED_OPERATION"),
        (post("/a2a/message:send", &json!({})), 400, "INVALID_PARAMS"),
        (
            post("/a2a/message:send", &message(&json!({"url": "http://f"}))),
            400,
            "CONTENT_TYPE_NOT_SUPPORTED",
        ),
        (text.body("hello"), 415, "CONTENT_TYPE_NOT_SUPPORTED"),
        (newer, 400, "VERSION_NOT_SUPPORTED"),
        (Request::new("GET", "/a2a/tasks"), 400, "VERSION_NOT_SUPPORTED"),
        (get("/a2a/tasks?pageSize=x"), 400, "INVALID_PARAMS"),
        (get("/a2a/extendedAgentCard"), 400, "UNSUPPORTED_OPERATION"),
        (get("/a2a/nothing"), 404, "METHOD_NOT_FOUND"),
        (post("/a2a/message:send", &json!("x".repeat(5 << 20))), 413, "INVALID_REQUEST"),
    ] {
        let answer = send(&server, &request);
        let error = &answer.json()["error"];
        assert_eq!(
            (answer.status, error["code"].as_u64()),
            (status, Some(u64::from(status))),
            "{error}"
        );
        let details = &error["details"][0];
        assert_eq!(details["@type"], "type.googleapis.com/google.rpc.ErrorInfo");
        assert_eq!(
            (details["reason"].as_str(), &details["domain"]),
            (Some(reason), &json!("a2a-protocol.org"))
        );
    }
}

#[test]
fn another_instance_calls_the_agent_over_each_protocol() {
    let server = agent().serve();
    for protocol in ["http", "grpc"] {
        let config =
            format!("agents: {{there: {{url: 'http://{}', protocol: {protocol}}}}}\n", server.address());
        let caller = world().config(&config).serve();
        let mut client = caller.client();
        let echoed = client.call("there__echo", json!({"a": 1}));
        assert!(!echoed.is_error(), "{protocol}: {}", echoed.json);
        assert_eq!(echoed.structured()["stdout"], "{\"a\":1}\n", "{protocol}: {}", echoed.json);
        let broken = client.call("there__broken", json!({"a": 1}));
        assert!(
            broken.is_error() && broken.sentence().contains("code 3"),
            "{protocol}: {}",
            broken.json
        );
        let answered = client.call("there__asking__talk", json!({"message": "hi"}));
        assert!(!answered.is_error(), "{protocol}: {}", answered.json);
        let ran = client.call("there__rtfs", json!({"program": "(+ 1 2)"}));
        assert_eq!(ran.structured()["value"].as_f64(), Some(3.0), "{protocol}: {}", ran.json);
        let slow = client.begin_call("there__slow", json!({"a": 1}));
        eventually("the tool runs there", || server.path("started").exists());
        drop(slow);
        server.remove("started");
        server.assert_no_tool_is_left();
        let list = ask(&server, "ListTasks", &json!({"status": "TASK_STATE_WORKING"}));
        assert_eq!(list["totalSize"], 0, "{protocol}: {list}");
    }
}

/// Returns the address of a server that answers every request with a card.
fn card_server(card: &Value) -> std::net::SocketAddr {
    let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
    let address = listener.local_addr().expect("an address");
    let body = card.to_string();
    std::thread::spawn(move || {
        for stream in listener.incoming() {
            let Ok(mut stream) = stream else { return };
            let mut lines = BufReader::new(stream.try_clone().expect("a stream")).lines();
            while lines.next().is_some_and(|line| line.is_ok_and(|line| !line.is_empty())) {}
            let length = body.len();
            let head = format!(
                "HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: {length}\r\nconnection: close\r\n\r\n"
            );
            let _ = stream.write_all(format!("{head}{body}").as_bytes());
        }
    });
    address
}

#[test]
fn a_card_and_grpc_may_have_different_ports_on_one_host() {
    let server = agent().serve();
    let card = card_server(&json!({
        "name": "far", "description": "Far.", "version": "1", "capabilities": {"streaming": true},
        "supportedInterfaces": [{"url": server.address().to_string(), "protocolBinding": "GRPC", "protocolVersion": "1.0"}],
        "defaultInputModes": [], "defaultOutputModes": [],
        "skills": [{"id": "echo", "name": "Echo", "description": "Echoes.", "tags": []}],
    }));
    let config = format!(
        "agents: {{there: {{url: 'http://{card}', protocol: grpc}}}}\ncapabilities:\n- {{id: one, description: One., provider: {{A2A: {{agent_id: far, endpoint: 'http://{card}', protocol: grpc, timeout_ms: 9000}}}}}}\n"
    );
    let caller = world().config(&config).serve();
    let mut client = caller.client();
    let echoed = client.call("there__echo", json!({"a": 1}));
    assert_eq!(echoed.structured()["stdout"], "{\"a\":1}\n", "{}", echoed.json);
    let before = calls_of(&server, "echo");
    let one = client.call("one", json!({"capability": "echo", "input": {"a": 2}}));
    assert!(!one.is_error(), "{}", one.json);
    eventually("the agent was called", || calls_of(&server, "echo") > before);
}

/// Returns how many calls of a capability a server has logged.
fn calls_of(server: &Server, name: &str) -> usize {
    server.log().lines().filter(|line| line.contains("call finished") && line.contains(name)).count()
}

/// Returns a request of 0.3, which names no version.
fn older(method: &str, params: &Value) -> Request {
    let body = json!({"jsonrpc": "2.0", "id": 1, "method": method, "params": params});
    Request::new("POST", "/a2a").header("content-type", "application/json").body(body.to_string())
}

#[test]
fn clients_of_0_3_have_a_card_of_their_own_and_are_answered_in_their_form() {
    let server = agent().serve();
    let card = server.http().get("/a2a/0.3/.well-known/agent-card.json").json();
    assert_eq!(
        (&card["protocolVersion"], &card["preferredTransport"]),
        (&json!("0.3.0"), &json!("JSONRPC"))
    );
    assert_eq!(card["url"], format!("http://{}/a2a", server.address()));
    assert!(card["skills"].as_array().unwrap().iter().any(|skill| skill["id"] == "echo"), "{card}");
    let message = json!({"message": {"kind": "message", "messageId": "m", "role": "user",
        "parts": [{"kind": "data", "data": {"capability": "echo", "input": {"a": 1}}}]}});
    let sent = send(&server, &older("message/send", &message)).json()["result"].clone();
    assert_eq!(
        (&sent["kind"], &sent["status"]["state"]),
        (&json!("task"), &json!("completed")),
        "{sent}"
    );
    let parts = &sent["artifacts"][0]["parts"];
    assert_eq!(parts[0], json!({"kind": "text", "text": "{\"a\":1}\n"}));
    assert_eq!((&parts[1]["kind"], &parts[1]["data"]["exit_code"]), (&json!("data"), &json!(0)));
    assert_eq!(sent["history"][0]["role"], "user");
    let got = send(&server, &older("tasks/get", &json!({"id": sent["id"]}))).json();
    assert_eq!(got["result"], sent);
    let mut stream = server.http().write(&older("message/stream", &message)).unwrap().head().unwrap();
    let mut events = Vec::new();
    while let Some(event) = stream.next_event().unwrap() {
        events.push(serde_json::from_str::<Value>(&event).unwrap()["result"].clone());
    }
    let kinds: Vec<_> = events.iter().map(|event| event["kind"].as_str().unwrap()).collect();
    assert_eq!(kinds, ["task", "status-update", "artifact-update", "status-update"], "{events:?}");
    assert_eq!((&events[1]["final"], &events[3]["final"]), (&json!(false), &json!(true)));
    let mut with_push = message.clone();
    with_push["configuration"] = json!({"pushNotificationConfig": {"url": "https://example.com"}});
    for (method, params, code) in [
        ("tasks/get", json!({"id": "none"}), -32001),
        ("tasks/cancel", json!({"id": sent["id"]}), -32002),
        ("tasks/pushNotificationConfig/set", json!({}), -32003),
        ("message/send", with_push, -32003),
        ("tasks/nothing", json!({}), -32601),
        ("SendMessage", json!({}), -32009),
    ] {
        let answer = send(&server, &older(method, &params)).json();
        assert_eq!(answer["error"]["code"], code, "{method}: {answer}");
    }
}

#[test]
fn v6_two_agents_that_point_at_each_other_come_to_an_end() {
    let ports = [free_port(), free_port()];
    let instance = |own: usize| {
        let config = format!(
            "capabilities:\n- id: round\n  provider: {{a2a: {{agent_id: other, endpoint: 'http://127.0.0.1:{}', protocol: http, timeout_ms: 20000, skill: round}}}}\n",
            ports[1 - own]
        );
        world().config(&config).arg("--port").arg(ports[own].to_string()).serve()
    };
    let servers = [instance(0), instance(1)];
    let ended = task(&servers[0], &calls("round", &json!({"a": 1})));
    assert_eq!(state(&ended), "TASK_STATE_FAILED", "{ended}");
    assert!(ended.to_string().contains("hop limit of 8 instances"), "{ended}");
    for server in &servers {
        let working = json!({"status": "TASK_STATE_WORKING"});
        assert_eq!(ask(server, "ListTasks", &working)["totalSize"], 0);
    }
}
