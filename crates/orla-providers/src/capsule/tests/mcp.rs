//! What is said with a capsule: calls and their ends, floods, tools, prompts and resources.

use super::*;

#[tokio::test(flavor = "multi_thread")]
async fn a_capsule_that_floods_questions_without_reading_answers_is_ended() {
    let id = "'x' * (1 << 20)";
    let ask = format!("while True: out({{'jsonrpc': '2.0', 'id': {id}, 'method': 'ping'}})");
    let code = Bare { call: ask.leak(), ..Bare::default() }.code();
    let error = World::new(&code, "").error("{}").await;
    assert!(error.contains("it keeps asking questions and does not read the answers"), "{error}");
}

const FULL: &str = r#"#!/usr/bin/env python3
import sys, json
def out(m): sys.stdout.write(json.dumps(m) + "\n"); sys.stdout.flush()
out({"jsonrpc": "2.0", "method": "orla.hello", "params": {"name": "cap", "version": "1.0.0"}})
TOOLS = [NAMES]
subscribed = []
for line in sys.stdin:
    m = json.loads(line)
    if "id" not in m: continue
    k, p = m["method"], m.get("params") or {}
    if k == "initialize": r = {"protocolVersion": p["protocolVersion"], "capabilities": {"tools": {}, "prompts": {}, "resources": {"subscribe": True}}, "serverInfo": {"name": "cap", "version": "1"}}
    elif k == "tools/list": r = {"tools": [{"name": n, "description": "Does " + n, "inputSchema": {"type": "object", "properties": {"x": {"type": "integer"}}}, "annotations": {"readOnlyHint": True}} for n in TOOLS]}
    elif k == "tools/call": r = {"content": [{"type": "text", "text": p["name"]}], "structuredContent": p["arguments"], "_meta": {"k": "v"}, "isError": p["arguments"].get("x") == 13}
    elif k == "resources/subscribe": r = {}; subscribed.append(p["uri"])
    elif k == "resources/unsubscribe": r = {}; subscribed.remove(p["uri"])
    elif k == "resources/read":
        if p["uri"] != "cap://a":
            out({"jsonrpc": "2.0", "id": m["id"], "error": {"code": -32002, "message": "no such resource"}}); continue
        r = {"contents": [{"uri": p["uri"], "text": json.dumps(subscribed)}]}
        for u in subscribed: out({"jsonrpc": "2.0", "method": "notifications/resources/updated", "params": {"uri": u}})
    elif k == "prompts/list": r = {"prompts": [{"name": "hello"}]}
    elif k == "prompts/get": r = {"messages": [{"role": "user", "content": {"type": "text", "text": p["name"]}}]}
    else:
        out({"jsonrpc": "2.0", "id": m["id"], "error": {"code": -32601, "message": k}}); continue
    out({"jsonrpc": "2.0", "id": m["id"], "result": r})
"#;

#[tokio::test(flavor = "multi_thread")]
async fn a_prefix_of_its_own_takes_the_place_of_the_capsules_name() {
    for (tools, prefix, expected) in [("'one', 'two'", "x_", "x_one x_two"), ("'one'", "", "one")] {
        let world =
            World::new(&FULL.replace("NAMES", tools), &format!(r#""mcp": {{"prefix": "{prefix}"}}"#));
        world.capsules.learn().await;
        world.serve();
        let names: Vec<String> = world.market.list().iter().map(|tool| tool.name.to_string()).collect();
        assert_eq!(names.join(" "), expected);
        let outcome = world.call_with(call(&names[0], "{}")).await.unwrap();
        assert_eq!(outcome.content.unwrap().as_str(), r#"[{"type": "text", "text": "one"}]"#);
        let surface = world.capsules.surfaces().remove(0);
        let ctx = world.market.surface_context(&Call::to("cap"));
        let params = JsonText::parse(format!(r#"{{"name":"{prefix}hello"}}"#)).unwrap();
        let listed = surface.request("prompts/list", &params, &ctx).await.unwrap();
        assert_eq!(listed.as_str(), format!(r#"{{"prompts":[{{"name":"{prefix}hello"}}]}}"#));
        let got = surface.request("prompts/get", &params, &ctx).await.unwrap();
        assert!(got.as_str().contains(r#""text": "hello""#), "{got}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn prompts_and_resources_pass_through() {
    let world = World::new(&FULL.replace("NAMES", "'one'"), "");
    let surface = world.capsules.surfaces().remove(0);
    let ctx = world.market.surface_context(&Call::to("cap"));
    let ask = async |method: &str, params: &str| {
        let params = JsonText::parse(params.to_owned()).unwrap();
        surface.request(method, &params, &ctx).await.map(|result| result.to_string())
    };
    assert!(surface.serves("resources/subscribe") && surface.serves("completion/complete"));
    assert_eq!(ask("prompts/list", "{}").await.unwrap(), r#"{"prompts":[{"name":"cap__hello"}]}"#);
    assert!(surface.serves("prompts/get"));
    // It does not complete, so what it lists has no values.
    let hello =
        r#"{"ref":{"type":"ref/prompt","name":"cap__hello"},"argument":{"name":"a","value":""}}"#;
    let completed = ask("completion/complete", hello).await.unwrap();
    assert!(completed.contains(r#""values":[]"#), "{completed}");
    let got = ask("prompts/get", r#"{"name":"cap__hello","_meta":{"progressToken":1}}"#).await.unwrap();
    assert!(got.contains(r#""text": "hello""#), "as it was written: {got}");
    let unknown = ask("prompts/get", r#"{"name":"other__hello"}"#).await.unwrap_err();
    assert_eq!(unknown, SurfaceError::NotFound("unknown prompt: other__hello".into()));
    let unknown = ask("resources/read", r#"{"uri":"cap://b"}"#).await.unwrap_err();
    assert_eq!(unknown, SurfaceError::NotFound("no such resource".into()));

    // Two callers want to hear of a resource, one of them not any more; the process is replaced.
    let uri = r#"{"uri":"cap://a"}"#;
    let mut notices = surface.notices().unwrap();
    for method in ["resources/subscribe", "resources/subscribe", "resources/unsubscribe"] {
        assert_eq!(ask(method, uri).await.unwrap(), "{}");
    }
    let pid = world.status().pid.unwrap();
    rustix::process::kill_process(
        rustix::process::Pid::from_raw(pid as i32).unwrap(),
        rustix::process::Signal::KILL,
    )
    .unwrap();
    eventually("another process", || world.status().restarts == Some(1)).await;
    eventually("it is ready", || world.status().state.as_deref() == Some("READY")).await;
    let deadline = Instant::now() + TEST_TIMEOUT;
    while !ask("resources/read", uri).await.unwrap().contains("cap://a\\\"]") {
        assert!(Instant::now() < deadline, "the subscription is lost");
    }
    let notice = tokio::time::timeout(TEST_TIMEOUT, notices.recv()).await.unwrap().unwrap();
    assert_eq!(notice, SurfaceNotice::ResourceUpdated { uri: "cap://a".into() });
}
