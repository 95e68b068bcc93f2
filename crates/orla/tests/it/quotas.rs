//! Quotas: how much each caller may use.

use orla_e2e::{Request, Server, World, eventually};
use serde_json::{Value, json};

use crate::{sh, world};

const ADA: &str = "adas-token-for-tests";
const BOB: &str = "bobs-token-for-tests";
const CALLERS: &str = "auth_tokens: {ada: adas-token-for-tests, bob: bobs-token-for-tests}\n";

fn world_with(quotas: &str) -> World {
    world()
        .tool("a", sh("echo a"))
        .tool("b", sh("echo b"))
        .env("ORLA_TOKEN", ADA)
        .config(&format!("{CALLERS}audit: ./audit.jsonl\nquotas:\n{quotas}"))
}

#[test]
fn a_caller_makes_as_many_calls_as_its_quota_has_and_others_are_not_concerned() {
    let server = world_with("  - {to: [bob], capabilities: [a], per: minute, calls: 5}\n").serve();
    let results: Vec<_> = std::thread::scope(|scope| {
        let work = || {
            scope.spawn(|| {
                let mut bob = server.client_as(BOB);
                (0..4).map(|_| bob.call("a", json!({}))).collect::<Vec<_>>()
            })
        };
        let threads: Vec<_> = (0..8).map(|_| work()).collect();
        threads.into_iter().flat_map(|thread| thread.join().unwrap()).collect()
    });
    let (refused, made): (Vec<_>, Vec<_>) = results.iter().partition(|result| result.is_error());
    assert_eq!((made.len(), refused.len()), (5, 27));
    for result in refused {
        let about = &result.json["_meta"]["orla/quota"];
        let wait = about["retry_after_ms"].as_u64().unwrap();
        assert!((1..=12_000).contains(&wait), "{}", result.json);
        assert!(result.sentence().contains("quota exceeded: 5 calls per minute"), "{}", result.json);
    }
    let mut bob = server.session_as(BOB);
    assert!(bob.call("a", json!({})).is_error());
    assert_eq!(bob.call("b", json!({})).stdout(), "b\n");
    let mut ada = server.client_as(ADA);
    assert_eq!(ada.call("a", json!({})).stdout(), "a\n");

    let plain = server.send_as("POST", "/rtfs", BOB, r#"{"call": "a"}"#);
    assert_eq!((plain.status, &plain.json()["error"]["kind"]), (429, &json!("quota")));
    let wait: u64 = plain.header("retry-after").unwrap().parse().unwrap();
    assert!((1..=12).contains(&wait), "{wait}");
    let program = r#"{"program": "(try (call :a {}) (catch e (:kind e)))"}"#;
    assert_eq!(server.send_as("POST", "/rtfs", BOB, program).json()["value"], "quota");

    let metrics = server.get_as("/metrics", ADA).text();
    assert!(metrics.contains(r#"orla_quota_refusals_total{rule="quotas[0]"} 30"#), "{metrics}");
    let own = &server.get_as("/status", BOB).json()["quotas"][0];
    assert_eq!((&own["remaining"], &own["caller"]), (&json!(0), &json!("bob")));
    assert_eq!(server.get_as("/status", ADA).json()["quotas"], Value::Null);
    eventually("the audit names the rule", || {
        let audit = server.read("audit.jsonl");
        let line = audit.lines().find(|line| line.contains(r#""outcome":"quota""#))?;
        (line.contains(r#""rule":"quotas[0]""#) && line.contains(r#""principal":"bob""#)).then_some(())
    });
    server.log_says(&[r#""outcome":"quota""#, r#""rule":"quotas[0]""#, r#""principal":"bob""#]);
    let url = format!("http://{}", server.address());
    let shown = server.run(&["quotas", "--url", &url]);
    assert!(shown.stdout.contains("0 of 5 left per minute"), "{}", shown.all());
    let rows: Value =
        serde_json::from_str(&server.run(&["quotas", "--json", "--url", &url]).stdout).unwrap();
    assert_eq!((&rows[0]["rule"], &rows[0]["caller"]), (&json!("quotas[0]"), &json!("bob")));
}

#[test]
fn a_caller_sees_no_name_in_a_quota_that_the_policy_conceals_from_it() {
    let policy = "policy: [{allow: ['*']}, {to: bob, capabilities: a, deny: '*'}]\n";
    let rules = "  - {capabilities: [a, b], per: day, calls: 5}\n  - {capabilities: [a, none], per: day, calls: 5}\n";
    let server = world_with(&format!("{rules}{policy}")).serve();
    let shown = |token| {
        let rows = server.get_as("/status", token).json()["quotas"].clone();
        let rows = rows.as_array().unwrap().iter();
        rows.map(|row| json!([row["rule"], row["capabilities"]])).collect::<Vec<_>>()
    };
    assert_eq!(shown(BOB), [json!(["quotas[0]", ["b"]])]);
    assert_eq!(shown(ADA), [json!(["quotas[0]", ["a", "b"]]), json!(["quotas[1]", ["a"]])]);
}

#[test]
fn a_task_over_its_quota_is_refused_as_a_call_is_and_uses_no_key() {
    let server = world_with("  - {to: [bob], capabilities: [a], per: day, calls: 1}\n").serve();
    assert_eq!(server.client_as(BOB).call("a", json!({})).stdout(), "a\n");
    let send = |path: &str, body: &str| {
        let request = Request::new("POST", path).bearer(BOB).header("content-type", "application/json");
        let request = request.header("prefer", "respond-async").body(body);
        server.http().send(&request).expect("an answer")
    };
    for (path, body) in [("/tasks", r#"{"capability": "a", "key": "k"}"#), ("/api/a", "{}")] {
        for _ in 0..2 {
            let answer = send(path, body);
            assert_eq!(answer.status, 429, "{path}: {}", answer.text());
            assert!(answer.header("retry-after").is_some() && answer.text().contains("quota"), "{path}");
        }
    }
    assert_eq!(server.get_as("/tasks", BOB).json(), json!([]));
    assert_eq!(send("/tasks", r#"{"capability": "b", "key": "k"}"#).status, 202);
}

#[test]
fn calls_at_once_are_bounded_and_a_refusal_comes_at_once() {
    let server = world_with("  - {to: ['*'], capabilities: [slow], concurrent: 2}\n")
        .tool("slow", sh("while [ ! -e go ]; do sleep 0.02; done; echo done"))
        .serve();
    let mut running: Vec<_> = (0..2).map(|_| server.client_as(BOB)).collect();
    let pending: Vec<_> = running.iter_mut().map(|bob| bob.begin_call("slow", json!({}))).collect();
    eventually("both run", || server.get_as("/quotas", ADA).json()[0]["running"] == 2);
    let third = server.client_as(BOB).call("slow", json!({}));
    assert!(third.sentence().contains("quota exceeded: 2 calls at once"), "{}", third.json);
    assert!(third.json["_meta"]["orla/quota"]["retry_after_ms"].as_u64() > Some(0));
    let mut ada = server.client_as(ADA);
    let adas = ada.begin_call("slow", json!({}));
    server.write("go", "", 0o644);
    assert!(!ada.finish_call(adas).unwrap().is_error());
    for (bob, pending) in running.iter_mut().zip(pending) {
        assert!(!bob.finish_call(pending).unwrap().is_error());
    }
    assert!(!running[0].call("slow", json!({})).is_error());
}

#[test]
fn daily_use_survives_a_reload_a_restart_and_a_crash() {
    let quota = |calls: u32| format!("  - {{to: [bob], capabilities: [a], per: day, calls: {calls}}}\n");
    let mut server = world_with(&quota(5)).serve();
    let calls = |server: &Server, count: usize| {
        let mut bob = server.client_as(BOB);
        (0..count).filter(|_| !bob.call("a", json!({})).is_error()).count()
    };
    assert_eq!(calls(&server, 2), 2);
    server.write("orla.yaml", server.read("orla.yaml").replace("calls: 5", "calls: 6"), 0o644);
    let before = server.get_as("/status", ADA).json()["generation"].as_u64();
    server.signal(rustix::process::Signal::HUP);
    eventually("the reload", || server.get_as("/status", ADA).json()["generation"].as_u64() > before);
    assert_eq!(calls(&server, 1), 1);
    server.terminate();
    server.start_again();
    let left = |server: &Server| server.get_as("/quotas", ADA).json()[0]["remaining"].clone();
    assert_eq!(left(&server), 3);
    assert_eq!(calls(&server, 1), 1);
    eventually("it is written", || server.read(".orla/quotas.json").contains(r#""spent":3.9"#));
    server.kill();
    server.start_again();
    assert_eq!(calls(&server, 9), 2);
}

#[test]
fn sixteen_clients_get_all_of_a_quota_and_not_one_call_more() {
    const CALLS: usize = 200;
    let server = world_with(&format!("  - {{per: day, calls: {CALLS}, count: together}}\n")).serve();
    let made: usize = std::thread::scope(|scope| {
        let work = |index: usize| {
            let token = if index.is_multiple_of(2) { ADA } else { BOB };
            let server = &server;
            scope.spawn(move || {
                let mut client = server.client_as(token);
                (0..25).filter(|_| !client.call("a", json!({})).is_error()).count()
            })
        };
        let threads: Vec<_> = (0..16).map(work).collect();
        threads.into_iter().map(|thread| thread.join().unwrap()).sum()
    });
    assert_eq!(made, CALLS);
}

#[test]
fn a_program_over_a_quota_reports_when_to_retry() {
    let server = world_with("  - {to: [bob], capabilities: [a], per: hour, calls: 1}\n")
        .file("tools/p.rtfs", "(defn main [input] (call :a {}))\n")
        .serve();
    let mut bob = server.client_as(BOB);
    assert_eq!(bob.call("a", json!({})).stdout(), "a\n");
    let program = json!({"program": "(call :a {})"});
    for (name, input) in [("p", json!({})), ("rtfs", program.clone())] {
        let refused = bob.call(name, input);
        let wait = refused.json["_meta"]["orla/quota"]["retry_after_ms"].as_u64();
        assert!(refused.is_error() && wait > Some(3_000_000), "{}", refused.json);
    }
    let asks = [
        ("/api/p", "{}".to_owned()),
        ("/api/rtfs", program.to_string()),
        ("/rtfs", program.to_string()),
        ("/rtfs", r#"{"call": "p"}"#.to_owned()),
    ];
    for (path, body) in asks {
        let refused = server.send_as("POST", path, BOB, &body);
        assert_eq!(refused.status, 429, "{path}: {}", refused.text());
        let wait: u64 = refused.header("retry-after").unwrap().parse().unwrap();
        assert!((3000..=3600).contains(&wait), "{path}: {wait}");
    }
    // An error of this kind that a program makes itself is none of a quota.
    let thrown = r#"{"program": "(throw {:kind :quota :message \"m\"})"}"#;
    assert_eq!(server.send_as("POST", "/rtfs", BOB, thrown).status, 200);
    assert_eq!(server.send_as("POST", "/api/rtfs", BOB, thrown).status, 502);
}

#[test]
fn an_input_that_cannot_run_is_refused_before_the_call_is_counted_approved_or_accepted() {
    let config = "
builtins: true
quotas:
  - {to: [bob], capabilities: [math.add], per: hour, calls: 1}
  - {to: [bob], capabilities: [a], per: hour, calls: 1}
  - {to: [bob], capabilities: [place], per: hour, calls: 1}
  - {to: [bob], capabilities: [lines], per: hour, calls: 1}
approve: [{capabilities: [math.multiply], expires: 1m}]
capabilities:
  - {id: place, provider: {Http: {base_url: 'http://127.0.0.1:9', path: '/x/{city}'}}}
  - {id: lines, input_schema: '[:map [:n :int]]', provider: {stream: {command: sh, args: [-c, 'echo 1']}}}
";
    let world = world().tool("a", sh("echo a")).env("ORLA_TOKEN", ADA);
    let server = world.config(&format!("{CALLERS}{config}")).serve();
    let post = |path: &str, body: &str| {
        let request = Request::new("POST", path).bearer(BOB).header("content-type", "application/json");
        request.body(body)
    };
    for (capability, input) in [
        ("math.add", r#"{"a": "x"}"#),
        ("math.multiply", r#"{"a": "x"}"#),
        ("a", r#"{"args": "x"}"#),
        ("place", "{}"),
        ("lines", r#"{"input": {"n": "x"}}"#),
    ] {
        let path = format!("/api/{capability}");
        let refused = server.http().send(&post(&path, input)).unwrap();
        assert_eq!(
            (refused.status, &refused.json()["kind"]),
            (400, &json!("invalid-input")),
            "{capability}"
        );
        let refused = server.http().send(&post(&path, input).header("prefer", "respond-async")).unwrap();
        assert_eq!(refused.status, 400, "{capability}");
        let task = format!(r#"{{"capability": "{capability}", "input": {input}}}"#);
        assert_eq!(server.http().send(&post("/tasks", &task)).unwrap().status, 400, "{capability}");
    }
    for (capability, input, status) in
        [("math.add", r#"{"a": 1, "b": 2}"#, 200), ("a", "{}", 200), ("place", r#"{"city": "x"}"#, 503)]
    {
        let answer = server.http().send(&post(&format!("/api/{capability}"), input)).unwrap();
        assert_eq!(answer.status, status, "{capability}: {}", answer.text());
    }
}
