//! Programs in RTFS at full length: over every kind of capability, ended in the middle, many at once, and
//! within their limits.

use std::io::Read;
use std::net::{SocketAddr, TcpListener};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use orla_e2e::{Client, Request, Server, World, eventually};
use serde_json::{Value, json};

use crate::upstream::Upstream;
use crate::{sh, world};

/// An MCP server: `add` adds, `wait` never answers, and cancellations are noted in a file.
const CALC: &str = r#"
import json, sys
def out(message):
    sys.stdout.write(json.dumps({"jsonrpc": "2.0", **message}) + "\n"); sys.stdout.flush()
schema = {"type": "object", "properties": {"a": {"type": "number"}, "b": {"type": "number"}}}
tools = [{"name": n, "description": f"Does {n}.", "inputSchema": schema} for n in ("add", "wait")]
for line in sys.stdin:
    m = json.loads(line)
    if m.get("method") == "notifications/cancelled": open("cancelled.log", "a").write("x")
    if "id" not in m: continue
    method, p = m.get("method"), m.get("params") or {}
    if method == "initialize":
        result = {"protocolVersion": p["protocolVersion"], "capabilities": {"tools": {}},
                  "serverInfo": {"name": "calc", "version": "1"}}
    elif method == "tools/list": result = {"tools": tools}
    elif method == "tools/call":
        if p["name"] == "wait":
            open("waiting.log", "a").write("x"); continue
        a = p["arguments"]
        result = {"content": [{"type": "text", "text": str(a["a"] + a["b"])}]}
    else:
        out({"id": m["id"], "error": {"code": -32601, "message": "not here"}}); continue
    out({"id": m["id"], "result": result})
"#;

/// 20 calls: five over HTTP, four of an MCP server, three of a tool, two of a file in the language, six built-ins.
const REPORT: &str = r#"
(def cities ["Paris" "Oslo" "Rome" "Lima" "Bern"])
(defn temp [city] (:temp (call :weather.current {:city city})))
(defn added [a b] (parse-int (call :calc.add {:a a :b b})))
(defn shout [text] (trim (:stdout (call :shout {:args [text]}))))

(let [temps (step "Fetch the weather" (pmap temp cities {:max 3}))
      figures (parallel {:mean (call :stats.mean {:numbers temps})
                         :median (call :stats.median {:numbers temps})
                         :most (call :stats.max {:numbers temps})})
      warm (->> (zipmap cities temps) (filter (fn [[_ t]] (> t 10))) (map first))
      total (reduce added 0 [1 2 3 4])
      loud (map shout ["a" "b" "c"])
      twice (settle (call :doubled {:text "x"}) (call :doubled {:text ""}))]
  (log :info "nearly done" total)
  {:temps temps
   :figures figures
   :warm warm
   :total total
   :loud loud
   :twice (map (fn [r] (or (:ok r) (:kind (:error r)))) twice)
   :hash (substring (call :hash.sha256 {:data "abc"}) 0 8)
   :day (call :date.weekday {:date "2026-11-20"})
   :sum (call :math.add {:a total :b 0.5})})
"#;

/// One call of each kind, none of which is ever answered.
const ENDLESS: &str = r#"
(call :math.add {:a 1 :b 2})
(parallel (call :slow {}) (call :slow {}) (call :calc.wait {}) (call :hangs {}) (call :outer {}))
"#;

/// An HTTP server that never answers, and counts the clients that disconnect.
struct Silent {
    address: SocketAddr,
    gone: Arc<AtomicUsize>,
}

impl Silent {
    fn start() -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
        let silent = Self { address: listener.local_addr().expect("its address"), gone: Arc::default() };
        let gone = Arc::clone(&silent.gone);
        std::thread::spawn(move || {
            for mut stream in listener.incoming().flatten() {
                let gone = Arc::clone(&gone);
                std::thread::spawn(move || {
                    let mut rest = Vec::new();
                    let _ = stream.read_to_end(&mut rest);
                    gone.fetch_add(1, Ordering::Relaxed);
                });
            }
        });
        silent
    }
}

fn reporting(upstream: &Upstream, silent: SocketAddr) -> World {
    for (city, temp) in
        [("Paris", "21.5"), ("Oslo", "3"), ("Rome", "24"), ("Lima", "18"), ("Bern", "-2.5")]
    {
        upstream.set(&format!("GET /v1/{city}"), 200, &format!(r#"{{"temp": {temp}}}"#));
    }
    let config = format!(
        "mcpServers:\n  calc: {{command: python3, args: [calc.py]}}\n\
         capabilities:\n\
         - id: weather.current\n  provider: {{Http: {{base_url: '{}/v1', method: GET, path: '/{{city}}'}}}}\n\
         - id: hangs\n  provider: {{Http: {{base_url: 'http://{silent}', method: GET, path: '/'}}}}\n",
        upstream.url()
    );
    world()
        .file("calc.py", CALC)
        .tool("shout", sh("echo \"$1!\""))
        .tool("slow", sh("echo x >> started; sleep 600 & wait"))
        .file(
            "tools/doubled.rtfs",
            "(defn main [{:keys [text]} :- [:map [:text [:and :string [:non-empty]]]]] (str text text))",
        )
        .file("tools/outer.rtfs", "(defn main [] (call :slow {}))")
        .file("report.rtfs", REPORT)
        .file("endless.rtfs", ENDLESS)
        .config(&config)
}

fn expected() -> Value {
    json!({
        "temps": [21.5, 3, 24, 18, -2.5],
        "figures": {"mean": 12.8, "median": 18, "most": 24},
        "warm": ["Paris", "Rome", "Lima"],
        "total": 10,
        "loud": ["a!", "b!", "c!"],
        "twice": ["xx", "invalid-input"],
        "hash": "ba7816bf",
        "day": "Friday",
        "sum": 10.5,
    })
}

fn of_text(text: &str) -> Value {
    serde_json::from_str(text).unwrap_or_else(|err| panic!("{err}: {text}"))
}

fn post(program: &str) -> Request {
    let body = json!({ "program": program }).to_string();
    Request::new("POST", "/rtfs").header("content-type", "application/json").body(body)
}

#[test]
fn twenty_calls_of_every_kind_give_the_same_answer_from_everywhere() {
    let (upstream, silent) = (Upstream::start(), Silent::start());
    let world = reporting(&upstream, silent.address);

    let ran = world.run(&["rtfs", "report.rtfs", "--json", "--trace"]);
    assert_eq!(ran.code, Some(0), "{}", ran.all());
    assert_eq!(of_text(&ran.stdout), expected());
    let calls: Vec<&str> = ran.stderr.lines().filter(|line| line.contains("call ")).collect();
    assert_eq!(calls.len(), 20, "{}", ran.stderr);
    assert!(calls.iter().all(|line| line.contains("→") && line.ends_with("ms)")), "{}", ran.stderr);
    for part in [
        "step Fetch the weather",
        "{:city \"Oslo\"} → {:temp 3}",
        "invalid-input",
        "log info nearly done 10",
    ] {
        assert!(ran.stderr.contains(part), "{part}: {}", ran.stderr);
    }

    let server = world.serve();
    for mut client in server.clients() {
        let arguments = json!({"program": REPORT});
        let meta = json!({"progressToken": "p"});
        let pending =
            client.begin("tools/call", json!({"name": "rtfs", "arguments": arguments, "_meta": meta}));
        let result = client.finish_call(pending).unwrap();
        assert_eq!(result.structured(), &json!({ "value": expected() }), "{}", result.json);
        let progress = result.notified("notifications/progress");
        assert!(
            progress.iter().any(|note| note["message"] == "Fetch the weather"),
            "{:?}",
            result.notifications
        );
    }
    let answer = server.http().send(&post(REPORT)).unwrap();
    assert_eq!((answer.status, answer.json()), (200, json!({ "value": expected() })));
    let streamed = post(REPORT).header("accept", "text/event-stream");
    let mut exchange = server.http().write(&streamed).unwrap().head().unwrap();
    let mut events = Vec::new();
    while let Some(event) = exchange.next_event().unwrap() {
        events.push(of_text(&event));
    }
    assert_eq!(events.iter().filter(|event| event["capability"].is_string()).count(), 20, "{events:?}");
    assert_eq!(events.last(), Some(&json!({ "value": expected() })));
    server.assert_no_tool_is_left();
}

/// Waits until every endless call runs, for the nth time.
fn all_run(world: &World, n: usize) {
    eventually("every call runs", || {
        world.read("started").lines().count() == 3 * n && world.read("waiting.log").len() == n
    });
}

/// Waits until all calls have ended.
fn all_ended(server: &Server, silent: &Silent, n: usize) {
    server.assert_no_tool_is_left();
    eventually("the upstream and the MCP server are told", || {
        silent.gone.load(Ordering::Relaxed) == n && server.read("cancelled.log").len() == n
    });
}

#[test]
fn a_program_that_is_ended_in_the_middle_leaves_nothing_running() {
    let (upstream, silent) = (Upstream::start(), Silent::start());
    let server = reporting(&upstream, silent.address).serve();
    let arguments = json!({ "program": ENDLESS });

    // POST /rtfs, plainly and as a stream: the client goes away.
    for (n, accept) in [(1, "application/json"), (2, "text/event-stream")] {
        let asked = server.http().write(&post(ENDLESS).header("accept", accept)).unwrap();
        all_run(&server, n);
        drop(asked);
        all_ended(&server, &silent, n);
    }
    // An MCP client without a session goes away.
    let pending = server.client().begin_call("rtfs", arguments.clone());
    all_run(&server, 3);
    drop(pending);
    all_ended(&server, &silent, 3);
    // One with a session cancels.
    let mut session = server.session();
    let mut calling = Client::resume(server.address(), &session);
    let pending = calling.begin_call("rtfs", arguments);
    all_run(&server, 4);
    assert_eq!(session.notify("notifications/cancelled", json!({"requestId": pending.id})), 202);
    all_ended(&server, &silent, 4);
    // Its own deadline.
    let late = json!({"program": ENDLESS, "limits": {"timeout_ms": 1000}});
    let result = session.call("rtfs", late);
    assert!(result.is_error(), "{}", result.json);
    all_ended(&server, &silent, 5);
    // And everything still works.
    assert_eq!(session.call("rtfs", json!({"program": "(+ 1 1)"})).structured(), &json!({"value": 2}));
}

#[test]
fn a_program_on_the_command_line_ends_with_ctrl_c() {
    let (upstream, silent) = (Upstream::start(), Silent::start());
    let mut terminal = reporting(&upstream, silent.address).at_terminal(&["rtfs", "endless.rtfs"]);
    all_run(&terminal, 1);
    terminal.types("\u{3}");
    assert_ne!(terminal.ends().code(), Some(0), "{}", terminal.shown());
    terminal.shows(0, "cancelled");
    eventually("nothing is left", || terminal.tool_processes().is_empty());
}

#[test]
fn a_million_turns_and_a_thousand_programs_at_once_are_within_the_limits() {
    let million = "(loop [i 0, sum 0] (if (< i 1000000) (recur (inc i) (+ sum i)) sum))";
    let world = world().file("million.rtfs", million);
    let ran = world.run(&["rtfs", "million.rtfs"]);
    assert_eq!(ran.stdout, "499999500000\n", "{}", ran.all());

    let mut server = world.serve_stdio().initialized();
    let program = "(let [n (:n input)
        sum (loop [i 0, sum 0] (if (< i 1000) (recur (inc i) (+ sum i)) sum))]
        (call :math.add {:a sum :b n}))";
    let mut expected = std::collections::BTreeMap::new();
    for n in 0..1000 {
        let arguments = json!({"program": program, "input": {"n": n}});
        let id = server.begin("tools/call", json!({"name": "rtfs", "arguments": arguments}));
        expected.insert(id, json!({"value": 499_500 + n}));
    }
    let million = server.begin("tools/call", json!({"name": "rtfs", "arguments": {"program": million}}));
    expected.insert(million, json!({"value": 499_999_500_000_u64}));
    while !expected.is_empty() {
        let message = server.next_message().expect("an answer");
        let Some(id) = message["id"].as_u64() else { continue };
        let wanted = expected.remove(&id).unwrap_or_else(|| panic!("asked for? {message}"));
        assert_eq!(message["result"]["structuredContent"], wanted, "{message}");
    }
    let peak = server.peak_resident_kib();
    assert!(peak < 256 * 1024, "1,000 programs took {peak} KiB");
}

#[test]
fn program_limits_are_configured_and_callers_can_only_tighten_them() {
    let world = world()
        .file("tools/busy.rtfs", "(defn main [] (loop [i 0] (if (< i 5000) (recur (inc i)) i)))")
        .config(
            "rtfs: {steps: 3000, memory: 2000000, depth: 50, calls: 2, calls_at_once: 1, output: 100}\n",
        );
    let ran = world.run(&["rtfs", "-e", "(loop [] (recur))"]);
    assert!(ran.code == Some(1) && ran.stderr.contains("more than 3000 steps"), "{}", ran.all());
    let server = world.serve();
    let mut client = server.client();
    let add = "(call :math.add {:a 1 :b 1})";
    for (program, limits, words) in [
        ("(loop [] (recur))".to_owned(), json!({}), Some("3000 steps")),
        ("(loop [] (recur))".to_owned(), json!({"steps": 9_000_000}), Some("3000 steps")),
        ("(loop [] (recur))".to_owned(), json!({"steps": 100}), Some("100 steps")),
        ("(vec (range 1000000))".to_owned(), json!({}), Some("limit")),
        ("(defn f [n] (if (= n 0) 0 (inc (f (dec n))))) (f 60)".to_owned(), json!({}), Some("limit")),
        (format!("[{add} {add}]"), json!({}), None),
        (format!("[{add} {add} {add}]"), json!({}), Some("calls")),
        (format!("[{add} {add}]"), json!({"calls": 1}), Some("more than 1 call")),
        ("(repeat-string \"a\" 200)".to_owned(), json!({}), Some("limit")),
    ] {
        let result = client.call("rtfs", json!({"program": program, "limits": limits}));
        assert_eq!(result.is_error(), words.is_some(), "{program}: {}", result.json);
        assert!(result.sentence().contains(words.unwrap_or_default()), "{program}: {}", result.json);
    }
    assert!(client.call("busy", json!({})).sentence().contains("3000 steps"));
    server.write("orla.yaml", "rtfs: {steps: 100000}\n", 0o644);
    server.reload();
    let mut client = server.client();
    assert_eq!(client.call("busy", json!({})).text(), "5000");
}
