//! orla as an agent over the bindings beside JSON-RPC: HTTP+JSON, and gRPC, which another orla speaks.

use orla_e2e::{Request, eventually};
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
    let mut told = server.http().write(&streamed).unwrap().head().unwrap();
    let first: Value = serde_json::from_str(&told.next_event().unwrap().unwrap()).unwrap();
    let slow = first["task"]["id"].as_str().unwrap().to_owned();
    eventually("the tool runs", || server.path("started").exists());
    let mut again = post(&format!("/a2a/tasks/{slow}:subscribe"), &json!({}));
    again.body.clear();
    let mut again = server.http().write(&again).unwrap().head().unwrap();
    let first: Value = serde_json::from_str(&again.next_event().unwrap().unwrap()).unwrap();
    assert_eq!(state(&first["task"]), "TASK_STATE_WORKING");
    let cancelled = send(&server, &post(&format!("/a2a/tasks/{slow}:cancel"), &json!({})));
    assert_eq!(state(&cancelled.json()), "TASK_STATE_CANCELED");
    for stream in [&mut told, &mut again] {
        let mut last = Value::Null;
        while let Some(event) = stream.next_event().unwrap() {
            last = serde_json::from_str(&event).unwrap();
        }
        assert_eq!(state(&last["statusUpdate"]), "TASK_STATE_CANCELED", "{last}");
    }
    server.assert_no_tool_is_left();
}

#[test]
fn what_is_wrong_is_a_status_with_its_reason() {
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
