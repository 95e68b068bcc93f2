//! `orla calls`: lists, filters, a call as a waterfall, and calls as they end, from a server and from its file.

use orla_e2e::{Request, Server, World, eventually, free_port};
use rustix::process::{Pid, Signal, kill_process};
use serde_json::{Value, json};

use crate::{sh, world};

/// A program that calls three tools, one of which fails.
const REPORT: &str = r#"(defn main [{:keys [n]} :- [:map [:n :int]]]
  {:said (:stdout (call :hello {:note "from the report"}))
   :gone (try (call :broken {}) (catch :failed e "gone"))
   :n n})
"#;

fn served() -> World {
    world()
        .tool("hello", sh("echo hello"))
        .tool("broken", sh("echo oh >&2; exit 3"))
        .tool("other", sh("echo other"))
        .file("tools/report.rtfs", REPORT)
}

/// Returns the output of `orla calls` for this server.
fn calls(server: &Server, arguments: &[&str]) -> String {
    let url = format!("http://{}", server.address());
    let all: Vec<&str> = ["calls", "--url", &url].into_iter().chain(arguments.iter().copied()).collect();
    let ran = server.run(&all);
    assert_eq!(ran.code, Some(0), "{}", ran.all());
    ran.stdout
}

fn rows(text: &str) -> Vec<Value> {
    serde_json::from_str(text).unwrap_or_else(|err| panic!("{err}: {text}"))
}

fn capabilities(rows: &[Value]) -> Vec<&str> {
    rows.iter().map(|row| row["capability"].as_str().expect("a text")).collect()
}

#[test]
fn calls_that_run_are_listed_with_their_ids_and_cancelled() {
    let server = world()
        .tool("slow", sh("echo \"::progress 1 with $2\" >&2; until [ -e done ]; do sleep 0.05; done"))
        .config("history: {path: calls.db, redact: [/n]}\n")
        .serve();
    let mut client = server.client();
    let _pending = client.begin_call("slow", json!({"n": "a-secret-text"}));
    let running = eventually("the call runs", || {
        let running = rows(&calls(&server, &["--running", "--json"]));
        (!running.is_empty() && running[0]["progress"].is_object()).then_some(running)
    });
    assert_eq!(running[0]["progress"]["message"], "with [redacted]");
    assert_eq!(capabilities(&running), ["slow"]);
    assert_eq!(running[0]["outcome"], "running");
    let id = running[0]["id"].as_str().expect("an id");
    let table = calls(&server, &["--running", "--capability", "sl*"]);
    assert!(table.contains(id) && table.contains("running"), "{table}");
    assert_eq!(calls(&server, &["--running", "--capability", "other"]), "");
    assert_eq!(calls(&server, &["cancel", id]), "");
    eventually("it has ended", || {
        let ended = rows(&calls(&server, &["--json"]));
        ended.iter().any(|row| row["id"] == id && row["outcome"] == "cancelled")
    });
    assert_eq!(calls(&server, &["--running", "--json"]).trim(), "[]");
    let url = format!("http://{}", server.address());
    let again = server.run(&["calls", "--url", &url, "cancel", id]);
    assert!(again.code == Some(1) && again.stderr.contains("no call with this id runs"), "{again:?}");
}

#[test]
fn calls_are_listed_newest_first_and_filtered() {
    let server = served().serve();
    let mut client = server.client();
    client.call("hello", json!({}));
    client.call("broken", json!({}));
    client.call("report", json!({"n": 7}));
    let all = rows(&calls(&server, &["--json"]));
    assert_eq!(capabilities(&all), ["report", "broken", "hello", "broken", "hello"]);
    for row in &all {
        for key in ["id", "capability", "outcome", "started_at"] {
            assert!(row[key].is_string(), "{key}: {row}");
        }
        for key in ["duration_ms", "queued_ms", "executed_ms", "validated_ms"] {
            assert!(row[key].is_number(), "{key}: {row}");
        }
    }
    assert_eq!((&all[2]["parent"], &all[4]["parent"]), (&all[0]["id"], &Value::Null));
    let listed = |arguments: &[&str]| rows(&calls(&server, arguments));
    let failed = listed(&["--json", "--failed"]);
    assert!(failed.len() == 2 && failed.iter().all(|row| row["outcome"] == "failed"), "{failed:?}");
    assert_eq!(capabilities(&listed(&["--json", "--capability", "hel*"])), ["hello", "hello"]);
    assert_eq!(listed(&["--json", "--since", "10m"]).len(), 5);
    assert_eq!(listed(&["--json", "--since", "2999-01-01T00:00:00Z"]).len(), 0);
    assert_eq!(capabilities(&listed(&["--json", "--limit", "1"])), ["report"]);
    let older = listed(&["--json", "--before", all[2]["id"].as_str().expect("an id")]);
    assert_eq!(capabilities(&older), ["broken", "hello"]);
    let table = calls(&server, &[]);
    let lines: Vec<&str> = table.lines().collect();
    assert!(lines.len() == 6 && lines[0].starts_with("ID ") && lines[1].contains("report"), "{table}");

    for (arguments, code, words) in [
        (&["--since", "soon"][..], 2, "--since soon"),
        (&["--limit", "0"], 2, "--limit"),
        (&["--failed", "show", "nothing"], 2, "no filter"),
        (&["--running", "--failed"], 2, "--running"),
        (&["show", "nothing"], 1, "no call has this id"),
    ] {
        let url = format!("http://{}", server.address());
        let ran = server.run(&[&["calls", "--url", &url], arguments].concat());
        assert!(ran.code == Some(code) && ran.stderr.contains(words), "{arguments:?}: {}", ran.all());
    }
}

/// A server of MCP with a resource.
const ARCHIVE: &str = r#"#!/usr/bin/env python3
import json, sys
for line in sys.stdin:
    request = json.loads(line)
    params = request.get("params") or {}
    result = {
        "initialize": {"protocolVersion": "2025-06-18", "serverInfo": {"name": "t", "version": "1"}, "capabilities": {"resources": {}}},
        "resources/list": {"resources": [{"uri": "archive://a", "name": "a"}, {"uri": "archive://slow", "name": "slow"}]},
        "resources/templates/list": {"resourceTemplates": []},
        "resources/read": {"contents": [{"uri": params.get("uri"), "text": "the key is hush-hush"}]},
    }.get(request.get("method"))
    if "id" in request and params.get("uri") != "archive://slow":
        reply = {"result": result} if result else {"error": {"code": -32601, "message": "no"}}
        print(json.dumps({"jsonrpc": "2.0", "id": request["id"], **reply}), flush=True)
"#;

#[test]
fn a_call_or_request_that_somebody_else_cancels_is_answered() {
    let server = served()
        .tool("../archive", ARCHIVE)
        .tool("sleeps", sh("exec sleep 600"))
        .config("mcpServers: {files: {command: ./archive}}\n")
        .serve();
    let running = || rows(&calls(&server, &["--json", "--running"]));
    let mut session = server.session();
    for (method, params, kind) in [
        ("resources/read", json!({"uri": "archive://slow"}), "resource"),
        ("tools/call", json!({"name": "sleeps", "arguments": {}}), "tool"),
    ] {
        let pending = session.begin(method, params);
        let call = eventually("it runs", || running().into_iter().next());
        assert_eq!((&call["kind"], &call["outcome"]), (&json!(kind), &json!("running")));
        let id = call["id"].as_str().expect("an id");
        calls(&server, &["cancel", id]);
        match session.complete(pending) {
            Ok((result, _)) => assert!(result["isError"] == true, "{result}"),
            Err(error) => assert!(error.message.contains("cancelled"), "{error:?}"),
        }
        assert!(running().is_empty());
        let ended = rows(&calls(&server, &["--json"]));
        assert_eq!((&ended[0]["id"], &ended[0]["outcome"]), (&json!(id), &json!("cancelled")));
    }
}

#[test]
fn a_request_that_is_not_answered_is_shown_so() {
    let port = free_port();
    let config = format!(
        "capabilities: [{{id: gone, provider: {{type: http, base_url: 'http://127.0.0.1:{port}/x', method: GET}}}}]\n"
    );
    let server = world().config(&config).serve();
    let result = server.client().call("gone", json!({}));
    assert!(result.is_error(), "{result:?}");
    let all = rows(&calls(&server, &["--json"]));
    assert!(all[0].get("spans").is_none(), "lists are short: {}", all[0]);
    let id = all[0]["id"].as_str().expect("an id");
    let detail: Value = serde_json::from_str(&calls(&server, &["show", id, "--json"])).expect("JSON");
    let span = &detail["spans"][0];
    let name = format!("GET http://127.0.0.1:{port}");
    assert_eq!(
        (&span["kind"], &span["name"], &span["code"]),
        (&json!("request"), &json!(name), &Value::Null)
    );
    let shown = calls(&server, &["show", id]);
    assert!(shown.contains(&name) && shown.contains("  no answer"), "{shown}");
}

#[test]
fn prompts_and_resources_are_listed_as_calls_are() {
    let prompt =
        "---\narguments:\n- {name: who, required: true}\n- {name: token}\n---\nGreet {{who}}.\n";
    let server = served()
        .file("prompts/hello.md", prompt)
        .tool("../archive", ARCHIVE)
        .file("key", "hush-hush")
        .config(
            "history: {path: calls.db, redact: [/arguments/token]}\n\
             mcpServers: {files: {command: ./archive, env: {KEY: '${file:key}'}}}\n",
        )
        .serve();
    let mut session = server.session();
    let arguments = json!({"who": "Ada", "token": "letmein"});
    session
        .request("prompts/get", json!({"name": "hello", "arguments": arguments}))
        .expect("the prompt");
    session.request("prompts/get", json!({"name": "helo", "arguments": {}})).unwrap_err();
    session.request("resources/read", json!({"uri": "archive://a"})).expect("the resource");
    session.request("prompts/list", json!({})).expect("a list");
    session.call("hello", json!({}));

    let all = rows(&calls(&server, &["--json"]));
    let brief = |row: &Value| {
        ["capability", "kind", "outcome"].map(|name| row[name].as_str().unwrap_or_default().to_owned())
    };
    let shown: Vec<_> = all.iter().map(brief).collect();
    let expected = [
        ["hello", "tool", "ok"],
        ["files.archive://a", "resource", "ok"],
        ["helo", "prompt", "not-found"],
        ["hello", "prompt", "ok"],
    ];
    assert_eq!(shown, expected);
    for row in &all[1..] {
        assert_eq!(row["client"]["name"], "orla-e2e", "{row}");
        assert_eq!(row["session"], all[0]["session"]);
        assert!(row["duration_ms"].is_number() && row["parent"].is_null(), "{row}");
    }
    let failed = rows(&calls(&server, &["--json", "--failed"]));
    assert_eq!(capabilities(&failed), ["helo"]);
    let detail = |row: &Value| {
        let id = row["id"].as_str().expect("an id");
        serde_json::from_str::<Value>(&calls(&server, &["--json", "show", id])).expect("JSON")
    };
    let prompt = detail(&all[3]);
    assert_eq!(
        prompt["input"],
        json!({"name": "hello", "arguments": {"who": "Ada", "token": "[redacted]"}})
    );
    assert_eq!(prompt["output"]["messages"][0]["content"]["text"], "Greet Ada.\n", "{prompt}");
    let resource = detail(&all[1]);
    assert_eq!(resource["input"], json!({"uri": "archive://a"}));
    assert_eq!(resource["output"]["contents"][0]["text"], "the key is [redacted]");
    let missing = detail(&all[2]);
    assert!(missing["error"]["message"].as_str().is_some_and(|text| text.contains("helo")), "{missing}");
    let table = calls(&server, &[]);
    assert!(
        table.lines().any(|line| line.contains(" prompt ") && line.contains("not-found")),
        "{table}"
    );

    // A prompt with the name of a tool is no call of the tool.
    let id = all[3]["id"].as_str().expect("an id");
    let again = Request::new("POST", &format!("/calls/{id}/replay"))
        .header("content-type", "application/json")
        .body("{}");
    let again = server.http().send(&again).expect("an answer");
    assert_eq!(again.status, 409, "{}", again.text());
    assert!(again.text().contains("ask for the prompt again"), "{}", again.text());
    let url = format!("http://{}", server.address());
    let exported = server.run(&["calls", "--url", &url, "export", id]);
    assert!(exported.code == Some(1) && exported.stderr.contains("a prompt is not"), "{exported:?}");
    let page = server.http().get(&format!("/console/calls/{id}")).text();
    assert!(page.contains("Request for hello") && page.contains("Greet Ada."), "{page}");
    assert!(!page.contains("Run again") && !page.contains("/console/catalogue/hello"), "{page}");
    assert!(server.http().get("/console").text().contains(r#"<span class="badge">prompt</span>"#));
}

#[test]
fn calls_are_found_by_the_client_and_the_session_that_they_came_from() {
    let server = served().serve();
    let (mut session, mut client) = (server.session(), server.client());
    client.call("other", json!({}));
    session.call("report", json!({"n": 7}));
    let listed = |arguments: &[&str]| rows(&calls(&server, &[&["--json"], arguments].concat()));
    let of_client = listed(&["--client", "orla-e2e"]);
    assert_eq!(capabilities(&of_client), ["report", "broken", "hello", "other"]);
    assert!(
        of_client.iter().all(|row| row["client"] == json!({"name": "orla-e2e", "version": "1"})),
        "{of_client:?}"
    );
    assert_eq!(listed(&["--client", "orla"]), [] as [Value; 0]);

    let (report, other) = (&of_client[0], &of_client[3]);
    let name = report["session"].as_str().expect("the name of the session");
    assert_eq!(other["session"], Value::Null);
    assert_eq!(capabilities(&listed(&["--session", name])), ["report", "broken", "hello"]);
    let id = session.session().expect("a session");
    assert!(!id.contains(name), "the name of a session lets nobody use it");
    let shown = calls(&server, &["show", report["id"].as_str().expect("an id")]);
    for words in ["client      orla-e2e 1", &format!("session     {name}"), " ms executing"] {
        assert!(shown.contains(words), "{words}: {shown}");
    }
}

#[test]
fn a_call_is_shown_with_its_data_and_as_a_waterfall() {
    let server = served().serve();
    server.client().call("report", json!({"n": 7}));
    let all = rows(&calls(&server, &["--json"]));
    let report = all[0]["id"].as_str().expect("an id");
    let detail: Value =
        serde_json::from_str(&calls(&server, &["show", report, "--json"])).expect("JSON");
    assert_eq!(detail["input"], json!({"n": 7}));
    assert_eq!(detail["output"], json!({"said": "hello\n", "gone": "gone", "n": 7}));
    let children = detail["children"].as_array().expect("a list");
    assert_eq!(capabilities(children), ["hello", "broken"]);
    let broken = children[1]["id"].as_str().expect("an id");
    let inner: Value = serde_json::from_str(&calls(&server, &["show", broken, "--json"])).expect("JSON");
    assert_eq!((&inner["error"]["kind"], &inner["stderr"]), (&json!("failed"), &json!("oh\n")));
    let span = &inner["spans"][0];
    assert_eq!((&span["kind"], &span["name"]), (&json!("process"), &json!("broken")));
    assert!(span["code"].is_i64() && span["duration_ms"].is_f64(), "{span}");

    let shown = calls(&server, &["show", report]);
    let bars: Vec<&str> = shown.lines().filter(|line| line.contains('█')).collect();
    assert_eq!(bars.len(), 5, "{shown}");
    for (bar, begins) in
        bars.iter().zip(["report ", "  hello ", "    hello ", "  broken ", "    broken "])
    {
        assert!(bar.starts_with(begins) && bar.contains(" ms"), "{shown}");
    }
    assert!(bars[2].ends_with("  exit code 0") && bars[3].ends_with("  failed"), "{shown}");
    assert!(shown.contains("input       {\"n\":7}") && shown.contains("outcome     ok"), "{shown}");
}

#[test]
fn further_calls_are_printed_as_they_end_and_none_is_left_out() {
    let server = served().serve();
    let mut client = server.client();
    client.call("hello", json!({}));
    let url = format!("http://{}", server.address());
    let mut tail =
        server.spawn(&["calls", "--tail", "--json", "--limit", "2", "--url", &url], "tail.out");
    let printed = || {
        let text = server.read("tail.out");
        let lines = text.lines().map(|line| serde_json::from_str(line).unwrap_or_default());
        lines.collect::<Vec<Value>>()
    };
    eventually("what ended before is printed", || printed().len() == 1);
    // More than fit into one look.
    for _ in 0..9 {
        client.call("other", json!({}));
    }
    client.call("broken", json!({}));
    let all = eventually("each further call is printed", || {
        Some(printed()).filter(|rows| rows.len() >= 11 && rows.iter().all(Value::is_object))
    });
    let mut expected = vec!["hello"];
    expected.extend(["other"; 9]);
    expected.push("broken");
    assert_eq!(capabilities(&all), expected);
    let id = i32::try_from(tail.id()).ok().and_then(Pid::from_raw).expect("an id");
    kill_process(id, Signal::INT).expect("it runs");
    let ended = eventually("it ends", || tail.try_wait().expect("a child"));
    assert!(ended.success(), "{ended}");
}

#[test]
fn a_reader_of_the_file_sees_what_ended_before() {
    let port = free_port();
    let config = format!("port: {port}\nhistory: {{path: ./calls.db}}\n");
    let server = served().config(&config).arg("--port").arg(port.to_string()).serve();
    let mut client = server.client();
    for count in 1..=5 {
        client.call("hello", json!({}));
        let ran = server.run(&["calls", "--json"]);
        assert_eq!(rows(&ran.stdout).len(), count, "{}", ran.all());
    }
}

#[test]
fn the_file_of_the_history_is_read_without_a_server() {
    let mut server = served().config("history: {path: ./calls.db}\n").serve();
    server.client().call("report", json!({"n": 7}));
    server.terminate();
    let ran = server.run(&["calls", "--json"]);
    assert_eq!(ran.code, Some(0), "{}", ran.all());
    let all = rows(&ran.stdout);
    assert_eq!(capabilities(&all), ["report", "broken", "hello"]);
    let failed = server.run(&["calls", "--failed", "--json"]);
    assert_eq!(capabilities(&rows(&failed.stdout)), ["broken"]);
    let shown = server.run(&["calls", "show", all[0]["id"].as_str().expect("an id")]);
    assert!(shown.code == Some(0) && shown.stdout.matches('█').count() > 2, "{}", shown.all());
    let unknown = server.run(&["calls", "show", "nothing"]);
    assert!(unknown.code == Some(1) && unknown.stderr.contains("nothing"), "{}", unknown.all());
    server.start_again();
    server.client().call("other", json!({}));
    let more = eventually("calls of before and after are in the file", || {
        let ran = server.run(&["calls", "--json"]);
        Some(rows(&ran.stdout)).filter(|rows| rows.len() == 4)
    });
    assert_eq!(capabilities(&more)[0], "other");
}
