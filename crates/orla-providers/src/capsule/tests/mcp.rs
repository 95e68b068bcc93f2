//! What is said with a capsule: calls and their ends, floods, tools, prompts and resources.

use futures_util::FutureExt;
use parking_lot::Mutex;

use super::*;

#[tokio::test(flavor = "multi_thread")]
async fn a_cancelled_call_is_relayed_and_its_late_answer_is_dropped() {
    let world = World::new(&Bare::default().code(), "");
    world.text("{}").await;
    let call = call("cap", r#"{"sleep": 0.3}"#);
    let cancellation = call.scope.cancellation.clone();
    let (result, ()) = tokio::join!(world.call_with(call), async {
        sleep(Duration::from_millis(50)).await;
        cancellation.cancel();
    });
    assert!(matches!(result, Err(RuntimeError::Cancelled { .. })), "{result:?}");
    eventually("the capsule hears of it", || {
        world.records().iter().any(|(what, _)| what == "cancelled")
    })
    .await;
    sleep(Duration::from_millis(400)).await;
    assert!(world.text("{}").await.starts_with("n=3 "));
    let mut late = self::call("cap", r#"{"sleep": 60}"#);
    late.timeout = Some(Duration::from_millis(50));
    assert_eq!(world.call_with(late).await.unwrap_err().to_string(), "cap timed out after 0.05 s");
    assert!(world.text("{}").await.starts_with("n=5 "));
}

#[tokio::test(flavor = "multi_thread")]
async fn noise_unknown_answers_and_second_answers_do_no_harm() {
    let code = Bare {
        pre: "print('starting up', flush=True)",
        post: "print('{\"level\": \"info\"}', flush=True)",
        call: "out({'jsonrpc':'2.0','id':99999,'result':{}}); answer(m['id'], f'first {n}')",
        ..Bare::default()
    };
    let world = World::new(&code.code(), "");
    for n in 1..4 {
        assert_eq!(world.text("{}").await, format!("first {n}"));
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_message_beyond_the_bound_ends_the_capsule_with_a_reason() {
    let code = Bare { call: "if n == 1: out({'x': 'x' * (20 << 20)})", ..Bare::default() }.code();
    let world = World::new(&code, "");
    let error = world.error("{}").await;
    assert_eq!(
        error,
        "cap is unavailable: it ended during the call: it wrote a message of more than 16 MiB"
    );
    assert!(world.status().last_failure.is_none_or(|reason| reason.contains("16 MiB")));
}

#[tokio::test(flavor = "multi_thread")]
async fn one_that_asks_for_ever_and_never_reads_is_ended_with_a_reason() {
    let id = "'x' * (1 << 20)";
    let ask = format!("while True: out({{'jsonrpc': '2.0', 'id': {id}, 'method': 'ping'}})");
    let code = Bare { call: ask.leak(), ..Bare::default() }.code();
    let error = World::new(&code, "").error("{}").await;
    assert!(error.contains("it asks and asks, and does not read the answers"), "{error}");
}

#[tokio::test(flavor = "multi_thread")]
async fn large_messages_both_ways_at_once_do_not_stall() {
    let code = Bare { call: "answer(m['id'], a['text']); continue", ..Bare::default() }.code();
    let world = Arc::new(World::new(&code, ""));
    let tasks = TaskTracker::new();
    let calls: Vec<_> = (0..32)
        .map(|number| {
            let world = Arc::clone(&world);
            tasks.spawn(async move {
                let text = format!("{number}").repeat(100_000);
                assert!(world.text(&format!(r#"{{"text": "{text}"}}"#)).await == text);
            })
        })
        .collect();
    for call in calls {
        call.await.unwrap();
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_flood_of_notifications_does_not_hide_the_answer() {
    let code = Bare {
        call: "sys.stdout.write('{\"jsonrpc\":\"2.0\",\"method\":\"notifications/x\"}\\n' * 300000)",
        ..Bare::default()
    };
    let world = World::new(&code.code(), "");
    assert!(world.text("{}").await.starts_with("n=1 "));
}

#[tokio::test(flavor = "multi_thread")]
async fn one_that_stops_reading_costs_its_callers_no_more_than_their_time() {
    let world = World::new(&Bare { call: "if n == 2: time.sleep(100)", ..Bare::default() }.code(), "");
    world.text("{}").await;
    let big = format!(r#"{{"x": "{}"}}"#, "x".repeat(3 << 20));
    for _ in 0..3 {
        let mut call = call("cap", &big);
        call.timeout = Some(Duration::from_millis(100));
        let error = world.call_with(call).await.unwrap_err();
        assert!(matches!(error, RuntimeError::TimedOut { .. }), "{error:?}");
    }
    world.capsules.shutdown().await;
    assert_eq!(world.status().pid, None);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_capsule_that_answers_nothing_at_its_start_is_called_all_the_same() {
    let code = Bare::default().code().replace("if \"id\" in m: out(", "if False: out(");
    let world = World::new(&code, "");
    assert!(world.text("{}").await.starts_with("n=1 "));
    world.capsules.learn().await;
    assert_eq!(world.capsules.registrations().len(), 1);
}

#[tokio::test(flavor = "multi_thread")]
async fn progress_and_log_messages_reach_the_caller() {
    let call_body = "t = m['params']['_meta']['progressToken']; \
        out({'jsonrpc':'2.0','method':'notifications/progress','params':{'progressToken':t,'progress':1,'total':2}}); \
        out({'jsonrpc':'2.0','method':'notifications/message','params':{'level':'info','data':'half'}})";
    let world = World::new(&Bare { call: call_body, ..Bare::default() }.code(), "");
    let heard = Arc::new(Mutex::new(Vec::new()));
    let mut call = call("cap", "{}");
    let sink = Arc::clone(&heard);
    call.scope.notices = NoticeSink::new(move |notice| sink.lock().push(notice));
    world.call_with(call).await.unwrap();
    let heard = heard.lock();
    assert!(matches!(&heard[..], [Notice::Progress(_), Notice::Log { .. }]), "{heard:?}");
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
async fn several_tools_are_served_with_the_capsules_name_in_front() {
    let world = World::new(&FULL.replace("NAMES", "'one', 'two'"), "");
    let mut changes = world.capsules.changes();
    changes.mark_unchanged();
    world.capsules.learn().await;
    assert!(changes.has_changed().unwrap());
    world.serve();
    let names: Vec<String> = world
        .market
        .list()
        .iter()
        .map(|entry| format!("{} {}", entry.name, entry.manifest.id))
        .collect();
    assert_eq!(names, ["cap__one cap.one", "cap__two cap.two"]);
    assert_eq!(world.market.list()[0].manifest.description, "Does one");
    let outcome = world.call_with(call("cap__two", r#"{"x": 5}"#)).await.unwrap();
    assert_eq!(outcome.content.unwrap().as_str(), r#"[{"type": "text", "text": "two"}]"#);
    assert_eq!(outcome.structured.unwrap().json().unwrap().as_str(), r#"{"x": 5}"#);
    assert_eq!(outcome.meta.unwrap().as_str(), r#"{"k": "v"}"#);
    let error = world.call_with(call("cap__two", r#"{"x": "no"}"#)).await.unwrap_err();
    assert!(matches!(error, RuntimeError::InvalidInput { .. }), "{error:?}");
    let error = world.call_with(call("cap.one", r#"{"x": 13}"#)).await.unwrap_err();
    let content = error.outcome().unwrap().content.clone().unwrap();
    assert_eq!(
        (error.to_string().as_str(), content.as_str()),
        ("one", r#"[{"type": "text", "text": "one"}]"#)
    );
}

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
    let deadline = Instant::now() + PATIENCE;
    while !ask("resources/read", uri).await.unwrap().contains("cap://a\\\"]") {
        assert!(Instant::now() < deadline, "the subscription is lost");
    }
    let notice = tokio::time::timeout(PATIENCE, notices.recv()).await.unwrap().unwrap();
    assert_eq!(notice, SurfaceNotice::ResourceUpdated { uri: "cap://a".into() });
}

#[tokio::test(flavor = "multi_thread")]
async fn one_tool_has_the_capsules_name_also_before_it_is_known() {
    let world = World::new(&FULL.replace("NAMES", "'only'"), "");
    let (market, capsules) = (Arc::downgrade(&world.market), Arc::clone(&world.capsules));
    let refresh = move || {
        let market = market.upgrade().unwrap();
        market.refine(catalog(&market, &capsules));
    };
    world.market.on_listing(|| async {}.boxed(), refresh);
    let outcome = world.call("{}").await.unwrap();
    assert_eq!(outcome.content.unwrap().as_str(), r#"[{"type": "text", "text": "only"}]"#);
    world.capsules.learn().await;
    world.serve();
    let entry = world.market.get("cap").unwrap();
    assert_eq!((&*entry.name, entry.manifest.description.as_str()), ("cap", "Does only"));
    assert!(entry.input_schema().as_str().contains("integer"));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_listing_waits_no_longer_than_a_start_may_take() {
    let world = World::new("#!/bin/sh\nexec sleep 1000\n", r#""startup_timeout_ms": 1000"#);
    tokio::time::timeout(PATIENCE, world.capsules.learn())
        .await
        .expect("the listing waits for the start");
    assert!(world.capsules.learn().now_or_never().is_some(), "it waits once");
}
