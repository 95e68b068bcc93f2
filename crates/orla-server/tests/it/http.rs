//! The responses to clients over HTTP, including invalid requests.

use std::time::Duration;

use orla_server::ServerOptions;
use serde_json::{Value, json};

use crate::support::World;

#[tokio::test]
async fn a_call_is_answered_in_both_eras() {
    let world = World::new().await;
    for mut client in [world.connect().await, world.session().await] {
        let modern = client.session.is_none();
        let (head, answer) = client.call("echo", json!({"b": 1, "a": [true, null]})).await;
        assert_eq!((head.status, head.header("content-type")), (200, Some("application/json")));
        assert_eq!(answer["result"]["structuredContent"], json!({"b": 1, "a": [true, null]}));
        assert_eq!(answer["result"]["content"][0]["text"], r#"{"b":1,"a":[true,null]}"#);
        assert_eq!(answer["result"].get("resultType").is_some(), modern);
        let (_, answer) = client.call("fail", json!({})).await;
        assert_eq!(answer["result"]["isError"], true);
        assert_eq!(answer["result"]["content"][0]["text"], "fail failed as it was asked to");
    }
}

#[tokio::test]
async fn numbers_keep_their_text_and_nesting_has_no_end() {
    let world = World::new().await;
    let mut client = world.session().await;
    let deep = format!("{}1{}", "[".repeat(10_000), "]".repeat(10_000));
    for arguments in
        [r#"{"n":1.10,"m":1e400,"k":18446744073709551616,"z":-0.0}"#, &format!(r#"{{"x":{deep}}}"#)]
    {
        let body = format!(
            r#"{{"jsonrpc":"2.0","id":"\u0061","method":"tools/call","params":{{"name":"echo","arguments":{arguments}}}}}"#
        );
        client.send(body.as_bytes(), &[]).await;
        let head = client.head().await;
        let answer = String::from_utf8(client.body(&head).await).unwrap();
        assert!(answer.contains(&format!(r#""structuredContent":{arguments}"#)), "{head:?}");
        assert!(answer.starts_with(r#"{"jsonrpc":"2.0","id":"\u0061","#));
    }
}

#[tokio::test]
async fn invalid_requests_get_the_error_of_the_specification() {
    let world = World::new().await;
    let mut session = world.session().await;
    let deep = "[".repeat(10_000);
    let cases: [(&str, u16, i64); 12] = [
        ("nonsense", 400, -32700),
        ("", 400, -32700),
        (r#"{"jsonrpc":"2.0","id":1"#, 400, -32700),
        (&deep, 400, -32700),
        ("[]", 400, -32600),
        (r#"[{"jsonrpc":"2.0","id":1,"method":"ping"}]"#, 400, -32600),
        ("{}", 400, -32600),
        ("17", 400, -32600),
        (r#"{"jsonrpc":"2.0","id":{},"method":"ping"}"#, 400, -32600),
        (r#"{"jsonrpc":"2.0","id":1,"method":"no/such"}"#, 200, -32601),
        (
            r#"{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{"name":"echo","arguments":[1]}}"#,
            200,
            -32602,
        ),
        (r#"{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{"arguments":{}}}"#, 200, -32602),
    ];
    for (body, status, code) in cases {
        session.send(body.as_bytes(), &[]).await;
        let (head, answer) = session.answer().await;
        assert_eq!((head.status, &answer["error"]["code"]), (status, &json!(code)), "{body:.60}");
    }
    let (head, answer) = session.post("tools/call", json!({"name": "ecko"}), &[]).await;
    assert_eq!((head.status, &answer["error"]["code"]), (200, &json!(-32602)));
    assert_eq!(answer["error"]["message"], "unknown tool: ecko; did you mean echo?");

    let mut modern = world.connect().await;
    let (head, answer) = modern.ask("no/such", json!({})).await;
    assert_eq!((head.status, &answer["error"]["code"]), (404, &json!(-32601)));
    for removed in ["ping", "logging/setLevel", "resources/subscribe", "initialize"] {
        let (head, answer) = modern.ask(removed, json!({})).await;
        assert_eq!((head.status, &answer["error"]["code"]), (404, &json!(-32601)), "{removed}");
    }
}

#[tokio::test]
async fn invalid_http_requests_get_the_matching_status() {
    let world = World::new().await;
    let ping = r#"{"jsonrpc":"2.0","id":1,"method":"ping"}"#;
    let post = |headers: &str| {
        format!(
            "POST /mcp HTTP/1.1\r\nhost: localhost\r\n{headers}content-length: {}\r\n\r\n{ping}",
            ping.len()
        )
    };
    let json_both = "content-type: application/json\r\naccept: application/json, text/event-stream\r\n";
    let cases = [
        (post("content-type: application/json\r\n"), 406),
        (post("content-type: application/json\r\naccept: application/json\r\n"), 406),
        (post("content-type: application/json\r\naccept: text/event-stream\r\n"), 406),
        (post("content-type: text/plain\r\naccept: */*\r\n"), 415),
        (post("accept: application/json, text/event-stream\r\n"), 415),
        (post(json_both), 400),
        (post("content-type: Application/JSON; charset=utf-8\r\naccept: */*;q=0.5\r\n"), 400),
        (post(&format!("{json_both}mcp-session-id: {}\r\n", "0".repeat(32))), 404),
        (post(&format!("{json_both}mcp-session-id: x\r\n")), 404),
        (post(&format!("{json_both}mcp-protocol-version: 1999-01-01\r\n")), 400),
        ("GET /mcp HTTP/1.1\r\nhost: localhost\r\n\r\n".into(), 406),
        ("GET /mcp HTTP/1.1\r\nhost: localhost\r\naccept: text/event-stream\r\n\r\n".into(), 400),
        ("DELETE /mcp HTTP/1.1\r\nhost: localhost\r\n\r\n".into(), 400),
        (
            "DELETE /mcp HTTP/1.1\r\nhost: localhost\r\nmcp-protocol-version: 2026-07-28\r\n\r\n".into(),
            405,
        ),
        ("PUT /mcp HTTP/1.1\r\nhost: localhost\r\n\r\n".into(), 405),
        ("GET /nowhere HTTP/1.1\r\nhost: localhost\r\n\r\n".into(), 404),
        ("POST /status HTTP/1.1\r\nhost: localhost\r\ncontent-length: 0\r\n\r\n".into(), 405),
    ];
    for (request, status) in cases {
        let mut client = world.connect().await;
        client.raw(request.as_bytes()).await;
        assert_eq!(client.head().await.status, status, "{request}");
    }
}

#[tokio::test]
async fn bodies_are_bounded_in_size_and_in_time() {
    let mut options = ServerOptions::default();
    options.max_body_bytes = 1000;
    options.body_timeout = Duration::from_secs(3);
    let world = World::with(options).await;
    let head =
        "POST /mcp HTTP/1.1\r\nhost: localhost\r\ncontent-type: application/json\r\naccept: */*\r\n";

    let mut declared = world.connect().await;
    declared.raw(format!("{head}content-length: 1001\r\n\r\n{}", "x".repeat(1001)).as_bytes()).await;
    assert_eq!(declared.head().await.status, 413);

    let mut expecting = world.connect().await;
    let expects = "expect: 100-continue\r\ncontent-length: 1001\r\n\r\n";
    expecting.raw(format!("{head}{expects}").as_bytes()).await;
    assert_eq!(expecting.head().await.status, 413, "not told to send it");

    let mut chunked = world.connect().await;
    chunked.raw(format!("{head}transfer-encoding: chunked\r\n\r\n").as_bytes()).await;
    for _ in 0..20 {
        chunked.raw(format!("64\r\n{}\r\n", "x".repeat(100)).as_bytes()).await;
    }
    chunked.raw(b"0\r\n\r\n").await;
    assert_eq!(chunked.head().await.status, 413);

    let mut slow = world.connect().await;
    slow.raw(format!("{head}content-length: 100\r\n\r\n{{").as_bytes()).await;
    assert_eq!(slow.head().await.status, 408);

    let mut largest = world.connect().await;
    let (head, _) = largest.call("echo", json!({"x": "x".repeat(600)})).await;
    assert_eq!(head.status, 200);
}

#[tokio::test]
async fn a_head_has_its_time_and_a_connection_may_be_quiet_between_requests() {
    let mut options = ServerOptions::default();
    options.header_timeout = Duration::from_secs(3);
    options.keep_alive = Duration::from_secs(60);
    let world = World::with(options).await;
    let mut quiet = world.connect().await;
    assert_eq!(quiet.call("echo", json!({})).await.0.status, 200);
    let mut slow = world.connect().await;
    slow.raw(b"POST /mcp HTTP/1.1\r\nhost: loc").await;
    assert!(slow.is_closed().await);
    let mut silent = world.connect().await;
    assert!(silent.is_closed().await);
    assert_eq!(quiet.call("echo", json!({})).await.0.status, 200, "more than a header's time later");
}

#[tokio::test]
async fn foreign_hosts_and_origins_are_refused_on_every_route() {
    let mut options = ServerOptions::default();
    options.allowed_origins = vec!["https://app.example".into()];
    let world = World::with(options).await;
    for route in ["/mcp", "/", "/status", "/metrics", "/healthz", "/readyz", "/nowhere"] {
        for method in ["GET", "POST", "OPTIONS", "DELETE"] {
            let line = format!("{method} {route}");
            let mut client = world.connect().await;
            let (head, _) = client.request(&line, &[("host", "evil.example")]).await;
            assert_eq!(head.status, 403, "{line}");
            let mut client = world.connect().await;
            let (head, _) = client.request(&line, &[("origin", "http://evil.example")]).await;
            assert_eq!((head.status, head.header("access-control-allow-origin")), (403, None), "{line}");
        }
    }
    let mut client = world.connect().await;
    let asked = [("origin", "https://app.example"), ("access-control-request-headers", "mcp-name")];
    let (head, _) = client.request("OPTIONS /mcp", &asked).await;
    assert_eq!((head.status, head.header("access-control-allow-headers")), (204, Some("mcp-name")));
    assert_eq!(head.header("access-control-allow-origin"), Some("https://app.example"));
    assert!(head.header("access-control-expose-headers").unwrap().contains("mcp-session-id"));
}

#[tokio::test]
async fn a_token_is_needed_everywhere_but_for_health() {
    let mut options = ServerOptions::default();
    options.auth.tokens = vec!["secret".into()];
    let world = World::with(options.clone()).await;
    let mut client = world.connect().await;
    for (route, status) in
        [("/mcp", 401), ("/status", 401), ("/metrics", 401), ("/healthz", 200), ("/readyz", 200)]
    {
        let (head, _) = client.request(&format!("GET {route}"), &[]).await;
        assert_eq!(head.status, status, "{route}");
        assert_eq!(head.header("www-authenticate").is_some(), status == 401);
    }
    let bearer = ("authorization", "Bearer secret");
    assert_eq!(client.request("GET /status", &[bearer]).await.0.status, 200);

    // Another token takes over with a reload. It may not use the session of the previous one.
    let init = json!({"protocolVersion": "2025-11-25", "capabilities": {}, "clientInfo": {}});
    let (head, _) = client.post("initialize", init, &[bearer]).await;
    client.session = head.header("mcp-session-id").map(str::to_owned);
    options.auth.tokens = vec!["secret".into(), "other".into()];
    world.server.reconfigure(options);
    let other = ("authorization", "Bearer other");
    assert_eq!(client.post("ping", json!({}), &[other]).await.0.status, 404);
    assert_eq!(client.post("ping", json!({}), &[bearer]).await.0.status, 200);
}

#[tokio::test]
async fn progress_and_logs_precede_the_answer_and_need_a_request() {
    let world = World::new().await;
    let methods = |events: &[Value]| {
        events
            .iter()
            .map(|event| event["method"].as_str().unwrap_or("answer").to_owned())
            .collect::<Vec<_>>()
    };

    let mut modern = world.connect().await;
    let (head, _) = modern.call("noise", json!({})).await;
    assert!(!head.is_stream(), "nothing was asked for");
    let meta = json!({"progressToken": 7, "io.modelcontextprotocol/logLevel": "emergency"});
    for ms in [0, 20] {
        let params = json!({"name": "noise", "arguments": {"ms": ms}, "_meta": meta.clone()});
        modern.begin(1, "tools/call", params).await;
        assert!(modern.head().await.is_stream());
        let mut events = Vec::new();
        while let Some(event) = modern.event().await {
            assert!(event.id.is_none());
            events.extend(event.all);
        }
        let step = ["notifications/progress", "notifications/message"];
        assert_eq!(methods(&events), [&step[..], &step, &step, &["answer"]].concat());
        assert_eq!(events[2]["params"], json!({"progressToken": 7, "progress": 2, "total": 3}));
        assert_eq!(
            events[1]["params"],
            json!({"level": "emergency", "logger": "noise", "data": "step 1"})
        );
    }

    let mut session = world.session().await;
    session.post("logging/setLevel", json!({"level": "critical"}), &[]).await;
    let body = json!({"jsonrpc": "2.0", "id": 3, "method": "tools/call", "params":
        {"name": "noise", "arguments": {"ms": 1}, "_meta": {"progressToken": "t"}}});
    session.send(body.to_string().as_bytes(), &[]).await;
    assert!(session.head().await.is_stream());
    let mut events = Vec::new();
    while let Some(event) = session.event().await {
        assert!(event.id.is_some());
        events.extend(event.all);
    }
    assert_eq!(events.remove(0), Value::Null, "a priming event");
    assert_eq!(events.iter().filter(|event| event["method"] == "notifications/message").count(), 3 * 3);
    assert_eq!(events.iter().filter(|event| event["params"]["progressToken"] == "t").count(), 3);
    assert_eq!(events.last().unwrap()["id"], 3);
}

#[tokio::test]
async fn a_panic_costs_one_request() {
    let world = World::new().await;
    let mut client = world.session().await;
    let (_, answer) = client.call("panic", json!({})).await;
    assert_eq!(answer["result"]["isError"], true);
    let (head, answer) = client.post("prompts/get", json!({"name": "panic"}), &[]).await;
    assert_eq!((head.status, &answer["error"]["code"]), (200, &json!(-32603)));
    let (_, answer) = client.post("prompts/get", json!({"name": "greet"}), &[]).await;
    assert_eq!(answer["result"], json!({"messages": []}));
    assert_eq!(client.call("echo", json!({})).await.0.status, 200);
}

#[tokio::test]
async fn discovery_describes_the_server() {
    let world = World::new().await;
    let mut client = world.connect().await;
    let (_, answer) = client.ask("server/discover", json!({})).await;
    let result = &answer["result"];
    assert_eq!(result["_meta"]["io.modelcontextprotocol/serverInfo"]["name"], "orla");
    assert_eq!(result["supportedVersions"].as_array().unwrap().len(), 5);
    assert_eq!(result["capabilities"]["tools"], json!({"listChanged": true}));
    assert!(result["capabilities"].get("resources").is_none());
    let (_, answer) = client.ask("tools/list", json!({})).await;
    let names: Vec<_> =
        answer["result"]["tools"].as_array().unwrap().iter().map(|tool| &tool["name"]).collect();
    assert_eq!(names, ["ask", "echo", "fail", "noise", "panic", "sleep"]);
    assert!(answer["result"]["ttlMs"].is_u64());
    let (_, body) = client.request("GET /status", &[]).await;
    let status: Value = serde_json::from_slice(&body).unwrap();
    assert_eq!(
        status["capabilities"][1],
        json!({"name": "echo", "id": "echo", "kind": "fixture", "provider": "echo", "source": null, "interpreter": null})
    );
    client.call("echo", json!({})).await;
    let (_, body) = client.request("GET /metrics", &[]).await;
    let metrics = String::from_utf8(body).unwrap();
    assert!(metrics.contains(r#"orla_calls_total{capability="echo",outcome="ok"} 1"#), "{metrics}");
}
