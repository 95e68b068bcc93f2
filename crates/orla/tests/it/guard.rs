//! The admission of requests, and the information that a caller gets about capabilities that the policy
//! denies.

use orla_e2e::issuer::Issuer;
use orla_e2e::{Client, Http, Request, Server, eventually};
use rustix::process::Signal;
use serde_json::{Value, json};

use crate::{sh, world};

const ADA: &str = "tok-ada-0123456789abcdef";
const BOB: &str = "tok-bob-fedcba9876543210";
/// The media type of forms.
const FORM: &str = "application/x-www-form-urlencoded";

/// A server of MCP that has everything but completion.
const PEER: &str = r#"#!/usr/bin/env python3
import json, sys
CAPABILITIES = {"tools": {}, "resources": {}, "prompts": {}}
for line in sys.stdin:
    request = json.loads(line)
    method, params = request.get("method"), request.get("params") or {}
    if "id" not in request:
        continue
    answer = {
        "initialize": {"protocolVersion": "2025-06-18", "serverInfo": {"name": "t", "version": "1"}, "capabilities": CAPABILITIES},
        "tools/list": {"tools": [{"name": "say", "inputSchema": {"type": "object"}}]},
        "tools/call": {"content": [{"type": "text", "text": "said"}], "isError": False},
        "resources/list": {"resources": [{"uri": "hr://pay", "name": "pay"}]},
        "resources/templates/list": {"resourceTemplates": [{"uriTemplate": "hr://{who}", "name": "who"}]},
        "resources/read": {"contents": [{"uri": params.get("uri"), "text": "ada earns 1"}]},
        "prompts/list": {"prompts": [{"name": "ask", "arguments": [{"name": "who"}]}]},
    }.get(method)
    if method == "prompts/get" and params["name"] == "ask":
        answer = {"messages": [{"role": "user", "content": {"type": "text", "text": "hr prompt"}}]}
    reply = {"result": answer} if answer else {"error": {"code": -32602, "message": "no"}}
    print(json.dumps({"jsonrpc": "2.0", "id": request["id"], **reply}), flush=True)
"#;

fn served(more: &str) -> Server {
    let config = format!(
        "auth_tokens: {{ada: {ADA}, bob: {BOB}}}\naudit: audit.jsonl\nmcpServers: {{hr: {{command: ./peer}}}}\n{more}"
    );
    world()
        .tool("../peer", PEER)
        .tool("hidden_one", sh("echo s"))
        .tool("open", sh("echo o"))
        .config(&config)
        .serve()
}

#[test]
fn of_servers_with_the_same_resource_the_lexically_first_answers() {
    let server = world()
        .tool("../abc", PEER.replace("ada earns 1", "from abc"))
        .tool("../zed", PEER.replace("ada earns 1", "from zed"))
        .config("mcpServers: {zed: {command: ./zed}, abc: {command: ./abc}}\n")
        .serve();
    let mut client = server.client();
    assert_eq!(
        client.request("resources/list", json!({})).unwrap()["resources"].as_array().unwrap().len(),
        1
    );
    for uri in ["hr://pay", "hr://other"] {
        let read = client.request("resources/read", json!({"uri": uri})).unwrap();
        assert_eq!(read["contents"][0]["text"], "from abc", "{read}");
    }
}

const POLICY: &str = "policy:\n- {to: [ada, bob], allow: ['*']}\n- {to: [bob], deny: ['mcp:hr/*']}\n\
    - {to: [bob], capabilities: ['hidden*'], deny: ['*']}\n";

fn audited(server: &Server) -> Vec<Value> {
    let lines = server.read("audit.jsonl");
    lines.lines().filter_map(|line| serde_json::from_str(line).ok()).collect()
}

fn completion(kind: &str, key: &str, name: &str) -> Value {
    json!({"ref": {"type": kind, key: name}, "argument": {"name": "who", "value": ""}})
}

#[test]
fn prompts_resources_and_completion_obey_the_policy_and_are_audited() {
    let server = served(POLICY);
    let (mut ada, mut bob) = (server.client_as(ADA), server.client_as(BOB));
    for (method, list) in [
        ("resources/list", "resources"),
        ("resources/templates/list", "resourceTemplates"),
        ("prompts/list", "prompts"),
    ] {
        eventually("the server answers", || ada.request(method, json!({})).unwrap()[list] != json!([]));
        assert_eq!(bob.request(method, json!({})).expect("a list")[list], json!([]), "{method}");
    }
    for (method, asked) in [
        ("resources/read", json!({"uri": "hr://pay"})),
        ("prompts/get", json!({"name": "hr__ask"})),
        ("completion/complete", completion("ref/prompt", "name", "hr__ask")),
        ("completion/complete", completion("ref/resource", "uri", "hr://{who}")),
    ] {
        ada.request(method, asked.clone()).expect("an answer");
        let denied = bob.request(method, asked.clone()).unwrap_err();
        let unknown = serde_json::from_str(&asked.to_string().replace("hr", "zz")).expect("JSON");
        let unknown = bob.request(method, unknown).unwrap_err();
        assert_eq!(denied.message.replace("hr", "zz"), unknown.message, "{method}");
        assert_eq!((denied.code, denied.status), (unknown.code, unknown.status), "{method}");
    }
    let has = |who: &str, event: &str, id: &str| {
        let of = |line: &Value| {
            line["principal"] == who && line["event"] == event && line["capability"] == id
        };
        audited(&server).iter().any(of)
    };
    for (who, event) in [("ada", "request"), ("bob", "denied")] {
        for id in ["hr.hr://pay", "hr.ask", "hr.hr://{who}"] {
            eventually("it is recorded", || has(who, event, id));
        }
    }
    let denied: Vec<Value> =
        audited(&server).into_iter().filter(|line| line["event"] == "denied").collect();
    for line in &denied {
        assert_eq!(line["rule"], "policy[1]", "{line}");
        assert!(line["reason"].as_str().unwrap().contains("requires mcp:hr/"), "{line}");
    }
    let metrics = server.get_as("/metrics", ADA).text();
    for counted in [
        r#"orla_surface_requests_total{kind="prompt",outcome="ok"}"#,
        r#"orla_surface_requests_total{kind="resource",outcome="denied"}"#,
    ] {
        assert!(metrics.contains(counted), "{counted}: {metrics}");
    }
}

#[test]
fn a_denied_call_names_its_rule_and_the_reason_in_log_and_audit_alone() {
    let server = served(
        "policy:\n- {to: [ada], allow: ['*']}\n- {to: [bob], capabilities: [open], allow: ['exec:*']}\n\
         - {to: [bob], capabilities: [open], deny: ['*']}\n",
    );
    let mut bob = server.client_as(BOB);
    for (tool, id, rule, reason) in [
        ("open", "open", "policy[2]", "requires exec:"),
        ("hidden_one", "hidden_one", "policy", "requires exec:"),
    ] {
        let told = bob.try_call(tool, json!({})).unwrap_err().message;
        assert!(!told.contains("policy") && !told.contains("requires"), "{told}");
        let is_it = |line: &Value| {
            line["event"] == "denied" && line["capability"] == id && line["principal"] == "bob"
        };
        eventually("the denial is recorded", || audited(&server).iter().any(is_it));
        let line = audited(&server).into_iter().find(is_it).unwrap();
        assert_eq!(line["rule"], rule, "{line}");
        assert!(line["reason"].as_str().unwrap().contains(reason), "{line}");
        let logged = server.log_says(&["denied", id, reason]);
        assert!(logged.contains(rule) && logged.contains("bob"), "{logged}");
    }
}

#[test]
fn forbidden_requests_are_in_log_audit_and_metrics() {
    let server = served("");
    let by_peer = |by: &str| {
        let is_it = |line: &Value| line["event"] == "forbidden" && line["by"] == by;
        eventually("the refusal is recorded", || audited(&server).iter().any(is_it));
        audited(&server).into_iter().find(is_it).unwrap()
    };
    for (by, header, foreign) in
        [("host", "host", "evil.example"), ("origin", "origin", "https://evil.example")]
    {
        let asked = Request::new("GET", "/status").header(header, foreign);
        assert_eq!(server.http().send(&asked).expect("an answer").status, 403, "{by}");
        let line = by_peer(by);
        assert_eq!((&line["peer"], &line["path"]), (&json!("127.0.0.1"), &json!("/status")), "{line}");
        assert!(line["reason"].as_str().unwrap().contains("is not allowed"), "{line}");
        let logged = server.log_says(&["request refused", foreign]);
        assert!(logged.contains("127.0.0.1"), "{logged}");
        let counted = format!(r#"orla_forbidden_requests_total{{by="{by}"}} 1"#);
        assert!(server.get_as("/metrics", ADA).text().contains(&counted), "{counted}");
    }
    let asked = Request::new("GET", "/").header("host", "evil.example");
    for _ in 0..40 {
        assert_eq!(server.http().send(&asked).expect("an answer").status, 403);
    }
    assert!(
        server.get_as("/metrics", ADA).text().contains(r#"orla_forbidden_requests_total{by="host"} 41"#)
    );
    let recorded = || audited(&server).iter().filter(|line| line["event"] == "forbidden").count();
    eventually("the first of a minute are recorded", || recorded() == 20);
    // A record that is written later than those of the requests before it.
    server.client_as(ADA).call("open", json!({}));
    eventually("the call is recorded", || audited(&server).iter().any(|line| line["event"] == "call"));
    assert_eq!(recorded(), 20, "a stranger must not fill the log");
    // The next that is recorded says how many were not.
    let form = Request::new("POST", "/console/catalogue/open").header("content-type", FORM);
    assert_eq!(server.http().send(&form.bearer(ADA)).expect("an answer").status, 403);
    let line = by_peer("form");
    assert_eq!((&line["principal"], &line["unreported"]), (&json!("ada"), &json!(22)), "{line}");
    assert!(server.log_says(&["request refused", "ada"]).contains(r#""unreported":22"#));
}

#[test]
fn a_stale_sign_in_form_and_a_head_that_is_too_large_are_reported() {
    let server = served("");
    let forbidden = |by: &str| {
        let is_it = |line: &Value| line["event"] == "forbidden" && line["by"] == by;
        eventually("the refusal is recorded", || audited(&server).iter().any(is_it));
        let counted = format!(r#"orla_forbidden_requests_total{{by="{by}"}} 1"#);
        assert!(server.get_as("/metrics", ADA).text().contains(&counted), "{counted}");
        audited(&server).into_iter().find(is_it).unwrap()
    };
    let form = Request::new("POST", "/console/sign-in").header("content-type", FORM);
    let form = form.body("_csrf=stale&token=x");
    assert_eq!(server.http().send(&form).expect("an answer").status, 403);
    let line = forbidden("form");
    assert_eq!(
        (&line["path"], &line["unreported"]),
        (&json!("/console/sign-in"), &Value::Null),
        "{line}"
    );
    let large = Request::new("GET", "/status").header("x-large", &"x".repeat(1 << 20));
    assert_eq!(server.http().send(&large).expect("an answer").status, 431);
    let line = forbidden("head");
    assert_eq!((&line["peer"], &line["path"]), (&json!("127.0.0.1"), &Value::Null), "{line}");
    server.log_says(&["request refused", "its head is larger"]);
}

#[test]
fn a_denied_resource_is_recorded_without_the_secrets_in_its_address() {
    const SECRET: &str = "pay-4711-of-everybody";
    let config = format!(
        "auth_tokens: {{ada: {ADA}, bob: {BOB}}}\naudit: audit.jsonl\nmcpServers: {{hr: {{command: ./peer, env: {{KEY: '${{secret:hr}}'}}}}}}\n{POLICY}"
    );
    let peer = PEER.replace("hr://pay", &format!("hr://{SECRET}"));
    let world = world().tool("../peer", peer).config(&config);
    assert_eq!(world.run_with_input(&["secret", "set", "hr"], SECRET.as_bytes()).code, Some(0));
    let server = world.serve();
    let mut ada = server.client_as(ADA);
    eventually("the server answers", || {
        ada.request("resources/list", json!({})).unwrap()["resources"] != json!([])
    });
    let asked = json!({ "uri": format!("hr://{SECRET}") });
    server.client_as(BOB).request("resources/read", asked).unwrap_err();
    let is_it = |line: &Value| line["event"] == "denied" && line["principal"] == "bob";
    eventually("the denial is recorded", || audited(&server).iter().any(is_it));
    let line = audited(&server).into_iter().find(is_it).unwrap();
    assert!(line["reason"].as_str().unwrap().contains("requires mcp:hr/"), "{line}");
    assert!(!line.to_string().contains(SECRET) && !server.log().contains(SECRET), "{line}");
}

#[test]
fn the_audit_has_nothing_of_an_error_that_a_program_throws_as_a_refusal() {
    let server = served("");
    let program = json!({"program": "(throw {:kind :denied :message \"the password is hunter22\"})"});
    let mut ada = server.client_as(ADA);
    assert!(ada.try_call("rtfs", program).is_ok_and(|called| called.is_error()));
    let is_it = |line: &Value| line["capability"] == "rtfs";
    eventually("the call is recorded", || audited(&server).iter().any(is_it));
    let line = audited(&server).into_iter().find(is_it).unwrap();
    assert_eq!((&line["outcome"], &line["reason"]), (&json!("denied"), &Value::Null), "{line}");
}

#[test]
fn a_prompt_or_resource_beyond_the_scope_is_refused_with_the_scope_that_helps() {
    let issuer = Issuer::start();
    let config = issuer.config("{hr: ['mcp:hr/*']}", "expose: search\npolicy_reveal: true\npolicy:\n- {to: [bob], allow: ['exec:*']}\nmcpServers: {hr: {command: ./peer}}\n");
    let server = world().tool("../peer", PEER).tool("open", sh("echo o")).config(&config).serve();
    let (poor, rich) = (issuer.token_of("ada", &[], ""), issuer.token_of("ada", &[], "hr"));
    let mut reader = server.client_as(&rich);
    eventually("the server answers", || {
        reader.request("prompts/list", json!({})).unwrap()["prompts"] != json!([])
    });
    let capability_call = json!({"name": "capability_call", "arguments": {"id": "hr.say"}});
    for (method, asked) in [
        ("resources/read", json!({"uri": "hr://pay"})),
        ("prompts/get", json!({"name": "hr__ask"})),
        ("tools/call", capability_call),
    ] {
        reader.request(method, asked.clone()).expect("an answer");
        assert_eq!(server.client_as(&poor).begin(method, asked).status(), 403, "{method}");
    }
}

#[test]
fn status_and_metrics_show_nothing_that_the_caller_may_not_use() {
    let server = served(POLICY);
    let (mut ada, mut bob) = (server.client_as(ADA), server.client_as(BOB));
    assert_eq!(ada.call("hidden_one", json!({})).stdout(), "s\n");
    assert!(bob.try_call("hidden_one", json!({})).is_err());
    eventually("the server is known", || ada.tool_names().contains(&"hr__say".to_owned()));
    for path in ["/status", "/metrics"] {
        assert!(server.get_as(path, ADA).text().contains("hidden_one"), "{path}");
        let seen = server.get_as(path, BOB).text();
        // A path of the test may contain the letters of the server's name.
        for name in ["hidden_one", "\"hr\"", "hr__", "hr."] {
            assert!(!seen.contains(name), "{path}: {name} in {seen}");
        }
    }
    assert!(server.log_says(&["hidden_one", "denied"]).contains("bob"));
}

#[test]
fn a_program_is_checked_as_if_a_denied_capability_did_not_exist() {
    let server = served(POLICY);
    let mut bob = server.client_as(BOB);
    let mut check = |name: &str| {
        let program = json!({"program": format!("(call :{name} {{}})")});
        bob.call("rtfs_check", program).json.to_string()
    };
    assert_eq!(check("hidden_one").replace("hidden_one", "zzzzzz_one"), check("zzzzzz_one"));
}

#[test]
fn a_completion_asks_the_server_for_what_the_policy_decided_on() {
    let server = served(
        "policy:\n- {to: [ada], allow: ['*']}\n- {to: [bob], capabilities: ['hr.ask'], allow: ['*']}\n",
    );
    let mut bob = server.client_as(BOB);
    eventually("the server is known", || {
        server.client_as(ADA).tool_names().contains(&"hr__say".to_owned())
    });
    // A permitted prompt's name beside a denied template's address does not open the template.
    let both = json!({"ref": {"type": "ref/resource", "name": "hr__ask", "uri": "hr://{who}"},
        "argument": {"name": "who", "value": ""}});
    let completed = bob.request("completion/complete", both).expect("the prompt's completion");
    assert_eq!(completed["completion"]["values"], json!([]), "{completed}");
    let denied = completion("ref/resource", "uri", "hr://{who}");
    assert!(bob.request("completion/complete", denied).is_err());
}

#[test]
fn a_denial_by_reload_applies_to_open_sessions() {
    let server = served("policy:\n- {to: [ada, bob], allow: ['*']}\n");
    let mut bob = server.session_as(BOB);
    assert_eq!(bob.call("open", json!({})).stdout(), "o\n");
    let config = server.read("orla.yaml") + "- {to: [bob], capabilities: [open], deny: ['*']}\n";
    server.write("orla.yaml", &config, 0o644);
    server.signal(Signal::HUP);
    eventually("the denial holds", || bob.try_call("open", json!({})).is_err());
    let called = bob.try_call("open", json!({})).unwrap_err();
    assert_eq!(called.code, -32602);
    assert!(!called.message.contains("did you mean"), "{called}");
    // Nor is it told that there is one.
    for (tool, input) in [
        ("capability_describe", json!({"id": "open"})),
        ("capability_call", json!({"id": "open"})),
        ("rtfs_check", json!({"program": "(call :open {})"})),
        ("rtfs", json!({"program": "(call :open {})"})),
    ] {
        let refusal = |input: Value, bob: &mut Client| match bob.try_call(tool, input) {
            Ok(answer) => format!("{answer:?}"),
            Err(refused) => refused.to_string(),
        };
        let unknown: Value = input.to_string().replace("open", "zzzz").parse().expect("JSON");
        assert_eq!(
            refusal(input, &mut bob).replace("open", "zzzz"),
            refusal(unknown, &mut bob),
            "{tool}"
        );
    }
    let found = bob.call("capability_search", json!({"query": "open"}));
    assert!(!found.json.to_string().contains("\"open\""), "{found:?}");
}

#[test]
fn a_revealing_policy_names_the_missing_permission() {
    let server = served(&format!("policy_reveal: true\n{POLICY}"));
    let mut bob = server.client_as(BOB);
    assert!(bob.call("hidden_one", json!({})).sentence().contains("requires exec:/"));
    let denied = bob.request("resources/read", json!({"uri": "hr://pay"})).unwrap_err();
    assert!(denied.message.contains("requires mcp:hr/hr://pay"), "{denied}");
}

#[test]
fn completion_without_server_support_has_no_values() {
    let server = served("");
    let mut ada = server.client_as(ADA);
    for asked in
        [completion("ref/prompt", "name", "hr__ask"), completion("ref/resource", "uri", "hr://{who}")]
    {
        let completed = ada.request("completion/complete", asked).expect("a completion");
        assert_eq!(completed["completion"]["values"], json!([]), "{completed}");
    }
    let unknown = completion("ref/prompt", "name", "hr__zzz");
    assert!(ada.request("completion/complete", unknown).is_err());
}

#[test]
fn weak_tokens_are_refused_and_not_shown() {
    for (config, word) in [
        (format!("auth_tokens: {{a: {ADA}, b: {ADA}}}\n"), "same"),
        ("auth_tokens: {a: ''}\n".to_owned(), "auth_tokens.a"),
        ("auth_tokens: {a: short-one}\nhost: 0.0.0.0\n".to_owned(), "16"),
    ] {
        let world = world().config(&config);
        let checked = world.run(&["check"]);
        assert_eq!(checked.code, Some(1), "{checked:?}");
        let output = checked.all();
        assert!(output.contains(word) && output.contains("orla.yaml:1:"), "{output}");
        assert!(!output.contains(ADA) && !output.contains("short-one"), "{output}");
        assert_eq!(world.run(&["serve", "--port", "0"]).code, Some(2));
    }
    assert_eq!(world().config("auth_tokens: {a: short-one}\n").run(&["check"]).code, Some(0));
}

#[test]
fn a_peer_that_fails_to_authenticate_too_often_has_to_wait_and_a_good_token_never_does() {
    let server = served("auth: {limits: {failures_per_minute: 3, loopback: true}}\n");
    let first = server.http().get("/status");
    assert_eq!(first.status, 401);
    for (path, token) in [("/metrics", "wrong"), ("/no/such/route", "Wrong")] {
        let refused = server.get_as(path, token);
        assert_eq!((refused.status, refused.text()), (401, first.text()), "{path}");
    }
    let limited = server.get_as("/rtfs", "wrong");
    assert_eq!(limited.status, 429);
    let page = server.http().get("/console");
    assert_eq!((page.status, page.header("retry-after").is_some()), (429, true));
    assert!(page.text().contains("Sign in") && page.header("www-authenticate").is_none());
    let wait: u64 = limited.header("retry-after").and_then(|wait| wait.parse().ok()).expect("a time");
    assert!((1..=60).contains(&wait), "{wait}");
    assert_eq!(server.get_as("/status", ADA).status, 200);
    assert!(server.get_as("/metrics", ADA).text().contains("orla_auth_failures_total 5"));
    let line = server.log_says(&["authentication failed"]);
    assert!(line.contains(r#""peer":"127.0.0.1""#), "{line}");
    let is_of_peer = |line: &Value| line["event"] == "unauthenticated" && line["peer"] == "127.0.0.1";
    eventually("they are recorded", || audited(&server).into_iter().filter(is_of_peer).count() == 4);
}

#[test]
fn a_request_with_two_lengths_is_refused_and_its_connection_ends() {
    let server = world().tool("t", sh("echo ok")).serve_quietly();
    let (length, encoding) = ("Content-Length: 5\r\n", "Transfer-Encoding: chunked\r\n");
    for lines in [format!("{length}{encoding}"), format!("{encoding}{length}")] {
        let head = format!("POST /mcp HTTP/1.1\r\nHost: localhost\r\n{lines}\r\n0\r\n\r\n");
        let mut http = Http::new(server.address());
        let refused = http.raw(head.as_bytes()).expect("a connection").answer().expect("an answer");
        assert_eq!(refused.status, 400, "{lines}");
        assert_eq!(refused.header("connection"), Some("close"), "{lines}");
    }
    let chunked = format!("POST /mcp HTTP/1.1\r\nHost: localhost\r\n{encoding}\r\n0\r\n\r\n");
    let mut http = Http::new(server.address());
    let answer = http.raw(chunked.as_bytes()).expect("a connection").answer().expect("an answer");
    assert_eq!(answer.status, 406, "one of them is a request like another");
}

#[test]
fn a_session_that_is_deleted_is_answered_with_no_content() {
    let server = world().tool("t", sh("echo ok")).serve_quietly();
    assert_eq!(server.session().end_session(server.address()), 204);
}

#[test]
fn requests_and_errors_of_the_protocol_are_logged_on_stdio_as_over_http() {
    let messages = [
        json!({"jsonrpc": "2.0", "id": 1, "method": "initialize", "params": {"protocolVersion": "2025-06-18",
            "capabilities": {}, "clientInfo": {"name": "t", "version": "0"}}}),
        json!({"jsonrpc": "2.0", "id": 2, "method": "tools/list"}),
        json!({"jsonrpc": "2.0", "id": 3, "method": "tools/call", "params": {"name": "nope_tool"}}),
        json!({"jsonrpc": "2.0", "id": 4, "method": "bogus/method"}),
    ];
    let mut input: String = messages.iter().map(|message| format!("{message}\n")).collect();
    input.push_str("garbage\n");
    let world = world();
    let done = world.run_with_input(&["--stdio", "--log-level", "debug"], input.as_bytes());
    let logged = |level: &str, word: &str| {
        let lines = done.stderr.lines().filter_map(|line| serde_json::from_str::<Value>(line).ok());
        lines.filter(|line| line["level"] == level).any(|line| line.to_string().contains(word))
    };
    assert!(logged("debug", "tools/list"), "{}", done.stderr);
    for word in ["nope_tool", "bogus/method", "JSON"] {
        assert!(logged("info", word), "{word}: {}", done.stderr);
    }
    let server = world.serve();
    assert!(server.client().try_call("nope_tool", json!({})).is_err());
    assert!(server.log_says(&["unknown tool", "nope_tool"]).contains(r#""caller":"anonymous""#));
}
