//! No neighbour starves another (RTFS capability system §6, executor isolation).

use orla_e2e::{Client, Pending, eventually};
use serde_json::json;

use crate::{sh, world};

/// A tool that runs until the file `go` exists.
const SLOW: &str = "while [ ! -e go ]; do sleep 0.05; done; echo done";

#[test]
fn built_ins_discovery_and_programs_do_not_wait_behind_slow_tools() {
    let server = world().tool("slow", sh(SLOW)).config("max_concurrency: 4\n").serve();
    let mut clients: Vec<_> = (0..8).map(|_| server.client()).collect();
    let pending: Vec<Pending> =
        clients.iter_mut().map(|client| client.begin_call("slow", json!({}))).collect();
    eventually("the permits are used up", || server.status()["waiting"] == 4);
    let mut client = server.client();
    for (name, input) in [
        ("math__add", json!({"a": 1, "b": 2})),
        ("capability_search", json!({"query": "slow"})),
        ("rtfs", json!({"program": "(call :math.add {:a 1 :b 2})"})),
        ("rtfs_check", json!({"program": "(+ 1 2)"})),
    ] {
        let result = client.call(name, input);
        assert!(!result.is_error(), "{name}: {}", result.sentence());
    }
    assert_eq!(server.status()["waiting"], 4);
    server.write("go", "", 0o644);
    for (client, pending) in clients.iter_mut().zip(pending) {
        assert!(!client.finish_call(pending).unwrap().is_error());
    }
}

#[test]
fn a_slow_provider_leaves_places_to_the_others() {
    let server = world()
        .tool("slow", sh(SLOW))
        .tool("quick", sh("echo quick"))
        .config("max_concurrency: 4\n")
        .serve();
    let mut clients: Vec<_> = (0..6).map(|_| server.client()).collect();
    let pending: Vec<Pending> =
        clients.iter_mut().map(|client| client.begin_call("slow", json!({}))).collect();
    eventually("three run", || server.status()["waiting"] == 3);
    assert_eq!(server.client().call("quick", json!({})).stdout(), "quick\n");
    assert_eq!(server.status()["running"], 3);
    server.write("go", "", 0o644);
    for (client, pending) in clients.iter_mut().zip(pending) {
        assert!(!client.finish_call(pending).unwrap().is_error());
    }
}

#[test]
fn a_thousand_waiting_calls_of_one_principal_delay_another_by_one_call() {
    let server = world()
        .tool("slow", sh("echo \"$2\" >> order; while [ ! -e go ]; do sleep 0.05; done"))
        .config(
            "max_concurrency: 1\nmax_queue: 2000\nauth_tokens: {ada: adas-token-for-tests, bob: bobs-token-for-tests}\n",
        )
        .serve();
    let waiting = |count: usize| {
        let text = server.get_as("/metrics", "adas-token-for-tests").text();
        text.lines().any(|line| line.contains("waiting") && line.ends_with(&format!(" {count}")))
    };
    let mut bobs: Vec<_> = (0..1000).map(|_| server.client_as("bobs-token-for-tests")).collect();
    let pending: Vec<Pending> =
        bobs.iter_mut().map(|client| client.begin_call("slow", json!({"by": "bob"}))).collect();
    eventually("bob's calls wait", || waiting(999));
    let mut ada = server.client_as("adas-token-for-tests");
    let call = ada.begin_call("slow", json!({"by": "ada"}));
    eventually("ada's call waits too", || waiting(1000));
    server.write("go", "", 0o644);
    assert!(!ada.finish_call(call).unwrap().is_error());
    drop(pending);
    let order = server.read("order");
    assert_eq!(order.lines().position(|line| line == "ada"), Some(1), "{order}");
}

/// Programs of about a hundred bytes whose macros expand forever.
const MACRO_BOMBS: [&str; 3] = [
    "(defmacro m [x] `(do (m ~x) (m ~x)))\n(m 1)",
    "(defmacro m [n] (if (< n 60) `(do (m ~(+ n 1)) (m ~(+ n 1))) 1))\n(m 0)",
    "(defmacro m [n] (loop [i 0] (recur (+ i 1))))\n(m 1)",
];

#[test]
fn macros_that_never_end_reach_a_limit_and_hold_up_no_other_request() {
    let server = world().serve();
    let mut clients: Vec<_> = (0..32).map(|_| server.client()).collect();
    let pending: Vec<Pending> = clients
        .iter_mut()
        .enumerate()
        .map(|(index, client)| {
            let name = if index % 2 == 0 { "rtfs" } else { "rtfs_check" };
            client.begin_call(name, json!({"program": MACRO_BOMBS[index % 3]}))
        })
        .collect();
    for _ in 0..20 {
        assert_eq!(server.http().get("/healthz").status, 200);
    }
    for (index, (client, pending)) in clients.iter_mut().zip(pending).enumerate() {
        let result = client.finish_call(pending).unwrap();
        let structured = &result.json["structuredContent"];
        let kind = match index % 2 {
            0 => &structured["error"]["kind"],
            _ => &structured["problems"][0]["kind"],
        };
        assert_eq!(kind, "limit", "{}", result.json);
    }
}

#[test]
fn an_output_that_exceeds_the_memory_of_all_requests_is_dropped() {
    let server = world()
        .tool("large", sh("head -c 3000000 /dev/zero | tr '\\0' x"))
        .config("max_memory_bytes: 2000000\nmax_output_bytes: 4000000\n")
        .serve();
    let mut client = server.client();
    let result = client.call("large", json!({}));
    assert!(result.is_error());
    assert!(result.sentence().contains("its output was dropped"), "{}", result.sentence());
    assert!(result.sentence().contains("max_memory_bytes"), "{}", result.sentence());
    let program = r"(call :large {})";
    let result = client.call("rtfs", json!({ "program": program }));
    assert_eq!(result.json["structuredContent"]["error"]["kind"], "busy", "{}", result.json);
    assert!(!client.call("math__add", json!({"a": 1, "b": 2})).is_error());
    eventually("all of it came back", || server.status()["memory"]["held"] == 0);
}

#[test]
fn bodies_and_programs_hold_no_more_memory_together_than_they_may() {
    let server = world().config("max_memory_bytes: 3000000\nmax_body_bytes: 4000000\n").serve();
    // Only the size of this body is invalid.
    let body = format!(r#"{{"call": "text.length", "input": {{"text": "{}"}}}}"#, "x".repeat(3_500_000));
    let request =
        orla_e2e::Request::new("POST", "/rtfs").header("Content-Type", "application/json").body(body);
    let refused = server.http().send(&request).unwrap();
    assert_eq!((refused.status, refused.header("retry-after")), (503, Some("1")), "{}", refused.text());
    assert!(refused.text().contains("max_memory_bytes"), "{}", refused.text());
    let mut client = server.client();
    let hungry = "(loop [v [1]] (recur (conj v (vec (range 1000)))))";
    let result = client.call("rtfs", json!({ "program": hungry }));
    assert_eq!(result.json["structuredContent"]["error"]["kind"], "busy", "{}", result.json);
    let result = client.call("rtfs", json!({"program": "(+ 1 2)"}));
    assert!(!result.is_error(), "{}", result.sentence());
    let memory = &server.status()["memory"];
    assert_eq!(memory["max"], 3_000_000);
    // The request that asks has no body.
    eventually("all of it came back", || server.status()["memory"]["held"] == 0);
}

#[test]
fn memory_of_large_programs_is_returned_when_they_end() {
    let server = world().serve();
    let mut clients: Vec<_> = (0..16).map(|_| server.client()).collect();
    let mut count_to = |count: u32| {
        let program = format!("(count (vec (range 0 {count})))");
        let begin = |client: &mut Client| client.begin_call("rtfs", json!({"program": program}));
        let pending: Vec<Pending> = clients.iter_mut().map(begin).collect();
        for (client, pending) in clients.iter_mut().zip(pending) {
            let result = client.finish_call(pending).unwrap();
            assert!(!result.is_error(), "{}", result.sentence());
        }
    };
    // The remains of the first programs stay: code, threads, tables.
    count_to(10);
    let before = server.resident_kib();
    count_to(2_000_000);
    let peak = server.peak_resident_kib();
    assert!(peak > before + 48 * 1024, "{before} KiB before, {peak} KiB at most");
    eventually("the memory is returned", || server.resident_kib() < before + 24 * 1024);
}
