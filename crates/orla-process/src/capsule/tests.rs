//! Capsules as they behave with real processes: small Python programs in directories of their own.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::PathBuf;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use orla_marketplace::{
    Call, CapabilityMarketplace, JsonText, Notice, NoticeSink, Outcome, Payload, ProviderStatus,
    RuntimeError, RuntimeResult, Surface, SurfaceError, SurfaceNotice,
};
use tokio::time::{Instant, sleep};

use super::*;
use crate::reaper::Instance;

const PATIENCE: Duration = Duration::from_secs(20);

/// A capsule that answers `tools/call` and nothing else. PRE, POST and CALL are replaced.
const BARE: &str = r#"#!/usr/bin/env python3
import sys, json, os, time, threading, signal
REC = os.environ["RECORDS"]
def record(what):
    with open(REC, "a") as f: f.write(f"{what} {os.getpid()} {time.monotonic_ns()}\n")
def out(m):
    sys.stdout.write(json.dumps(m) + "\n"); sys.stdout.flush()
def bye(*a):
    record("end"); os._exit(0)
signal.signal(signal.SIGTERM, bye)
record("start")
PRE
out({"jsonrpc": "2.0", "method": "orla.hello", "params": {"name": "cap", "version": "1.0.0"}})
POST
n = 0
lock = threading.Lock()
def answer(id, text):
    with lock: out({"jsonrpc": "2.0", "id": id, "result": {"content": [{"type": "text", "text": text}]}})
for line in sys.stdin:
    m = json.loads(line)
    if m.get("method") == "notifications/cancelled": record("cancelled")
    if m.get("method") != "tools/call":
        if "id" in m: out({"jsonrpc": "2.0", "id": m["id"], "error": {"code": -32601, "message": "no"}})
        continue
    a = m["params"].get("arguments") or {}
    n += 1
    CALL
    if "sleep" in a: threading.Timer(a["sleep"], answer, (m["id"], f"slept v=VERSION")).start()
    else: answer(m["id"], f"n={n} v=VERSION cwd={os.getcwd()} env={os.environ.get('LEVEL')} args={sys.argv[1:]} name={m['params']['name']}")
bye()
"#;

#[derive(Default)]
struct Bare {
    pre: &'static str,
    post: &'static str,
    call: &'static str,
    version: u32,
}

impl Bare {
    fn code(&self) -> String {
        let call = if self.call.is_empty() { "pass" } else { self.call };
        BARE.replace("PRE", self.pre)
            .replace("POST", self.post)
            .replace("CALL", call)
            .replace("VERSION", &self.version.to_string())
    }
}

/// A directory with one capsule named `cap`, and a marketplace that serves it.
struct World {
    directory: tempfile::TempDir,
    capsules: Arc<Capsules>,
    market: Arc<CapabilityMarketplace>,
    policy: Policy,
}

fn quick() -> Policy {
    Policy {
        backoff_min: Duration::from_millis(5),
        term_grace: Duration::from_millis(200),
        ..Policy::default()
    }
}

impl World {
    fn new(code: &str, manifest: &str) -> Self {
        Self::with_policy(code, manifest, quick())
    }

    fn with_policy(code: &str, manifest: &str, policy: Policy) -> Self {
        let market = CapabilityMarketplace::new(orla_marketplace::Limits::default());
        market.register_executor(Arc::new(CapsuleExecutor)).unwrap();
        let world = Self {
            directory: tempfile::tempdir().unwrap(),
            capsules: Arc::new(Capsules::new(Instance::unguarded(), policy)),
            market: Arc::new(market),
            policy,
        };
        fs::create_dir_all(world.path("tools/cap")).unwrap();
        world.write_code(code);
        world.write_manifest(manifest);
        world.load();
        world
    }

    fn path(&self, path: &str) -> PathBuf {
        self.directory.path().canonicalize().unwrap().join(path)
    }

    fn write_code(&self, code: &str) {
        let new = self.path("new");
        fs::write(&new, code).unwrap();
        fs::set_permissions(&new, fs::Permissions::from_mode(0o755)).unwrap();
        fs::rename(new, self.path("tools/cap/main.py")).unwrap();
    }

    /// `more` is the inside of a JSON object, after a comma.
    fn write_manifest(&self, more: &str) {
        let records = self.path("records");
        let env = format!(r#""env": {{"RECORDS": "{}", "LEVEL": "debug"}}"#, records.display());
        let more = if more.is_empty() { String::new() } else { format!(", {more}") };
        let text = format!(
            r#"{{"name": "cap", "version": "1.0.0", "entrypoint": "main.py", "args": ["--fast"], {env}{more}}}"#
        );
        fs::write(self.path("tools/cap/orla-tool.json"), text).unwrap();
    }

    fn load(&self) {
        let found = packages::find(&self.path("tools"), None);
        assert_eq!(found.problems, []);
        self.capsules.load(found.packages, self.policy);
        self.serve();
    }

    /// Puts what is known of the capsules in force.
    fn serve(&self) {
        let mut builder = self.market.builder(orla_marketplace::Limits::default());
        for registration in self.capsules.registrations() {
            builder.capability(registration).unwrap();
        }
        self.market.replace(builder.build());
    }

    async fn call_with(&self, call: Call) -> RuntimeResult<Outcome> {
        tokio::time::timeout(PATIENCE, self.market.call(call)).await.expect("the call hangs")
    }

    async fn call(&self, arguments: &str) -> RuntimeResult<Outcome> {
        self.call_with(call("cap", arguments)).await
    }

    async fn text(&self, arguments: &str) -> String {
        let content = self.call(arguments).await.unwrap().content.unwrap();
        let blocks: serde_json::Value = serde_json::from_str(content.as_str()).unwrap();
        blocks[0]["text"].as_str().unwrap().to_owned()
    }

    async fn error(&self, arguments: &str) -> String {
        self.call(arguments).await.unwrap_err().to_string()
    }

    fn status(&self) -> ProviderStatus {
        self.capsules.current()[0].status()
    }

    async fn until_state(&self, state: &str) {
        eventually(state, || self.status().state.as_deref() == Some(state)).await;
    }

    fn records(&self) -> Vec<(String, u32)> {
        let text = fs::read_to_string(self.path("records")).unwrap_or_default();
        let mut lines: Vec<(u64, String, u32)> = text
            .lines()
            .map(|line| {
                let mut words = line.split(' ');
                let what = words.next().unwrap().to_owned();
                let pid = words.next().unwrap().parse().unwrap();
                (words.next().unwrap().parse().unwrap(), what, pid)
            })
            .collect();
        lines.sort_unstable();
        lines.into_iter().map(|(_, what, pid)| (what, pid)).collect()
    }

    /// How many processes there were; panics if two were there at once.
    fn starts(&self) -> usize {
        let (mut alive, mut starts) = (None, 0);
        for (what, pid) in self.records() {
            match what.as_str() {
                "start" => {
                    assert_eq!(alive, None, "two processes at once");
                    alive = Some(pid);
                    starts += 1;
                }
                "end" => alive = None,
                _ => {}
            }
        }
        starts
    }
}

fn call(target: &str, arguments: &str) -> Call {
    Call::to(target).with(Payload::from_json(JsonText::parse(arguments.to_owned()).unwrap()))
}

async fn eventually(what: &str, mut is_so: impl FnMut() -> bool) {
    let deadline = Instant::now() + PATIENCE;
    while !is_so() {
        assert!(Instant::now() < deadline, "not in time: {what}");
        sleep(Duration::from_millis(5)).await;
    }
}

fn is_alive(pid: u32) -> bool {
    fs::read_to_string(format!("/proc/{pid}/stat")).is_ok_and(|stat| !stat.contains(") Z "))
}

#[tokio::test(flavor = "multi_thread")]
async fn a_capsule_keeps_its_state_and_runs_where_and_how_its_manifest_says() {
    let world = World::new(&Bare::default().code(), r#""language": "python""#);
    assert_eq!(world.status().state.as_deref(), Some("CREATED"));
    let first = world.text("{}").await;
    let cwd = world.path("tools/cap");
    assert_eq!(first, format!("n=1 v=0 cwd={} env=debug args=['--fast'] name=cap", cwd.display()));
    assert!(world.text("{\n}").await.starts_with("n=2 "));
    let status = world.status();
    assert_eq!((status.state.as_deref(), status.restarts), (Some("READY"), Some(0)));
    assert!(status.pid.is_some_and(is_alive) && status.uptime_ms.is_some());
}

#[tokio::test(flavor = "multi_thread")]
async fn one_that_never_says_hello_is_stopped_and_callers_are_told_why() {
    let world = World::new("#!/bin/sh\nexec sleep 100\n", r#""startup_timeout_ms": 50"#);
    let error = world.error("{}").await;
    assert_eq!(
        error,
        "cap is unavailable: it was stopped after 5 failures in a row, the last of which was: it did not say orla.hello within 0.05 s"
    );
    assert_eq!(world.status().state.as_deref(), Some("STOPPED"));
    let again = Instant::now();
    assert_eq!(world.error("{}").await, error);
    assert!(again.elapsed() < Duration::from_secs(1));
    // Loading the configuration anew lets it try again.
    world.write_manifest("");
    world.write_code(&Bare::default().code());
    world.load();
    assert!(world.text("{}").await.starts_with("n=1 "));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_caller_who_waits_in_vain_learns_what_is_wrong() {
    let world = World::new("#!/bin/sh\nexec sleep 100\n", r#""startup_timeout_ms": 60000"#);
    let mut call = call("cap", "{}");
    call.timeout = Some(Duration::from_millis(100));
    let error = world.call_with(call).await.unwrap_err().to_string();
    assert_eq!(error, "cap is unavailable: it was not ready within 0.1 s: it has not said orla.hello");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_crash_in_a_call_is_answered_at_once_and_the_next_call_meets_a_new_process() {
    let world = World::new(&Bare { call: "if n == 2: os._exit(7)", ..Bare::default() }.code(), "");
    world.text("{}").await;
    let error = world.error("{}").await;
    assert_eq!(error, "cap is unavailable: it ended during the call: it exited with code 7");
    assert!(world.text("{}").await.starts_with("n=1 "));
    let status = world.status();
    assert_eq!(
        (status.restarts, status.last_failure.as_deref()),
        (Some(1), Some("it exited with code 7"))
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn one_that_crashes_at_its_start_is_retried_and_then_stopped() {
    let code = "#!/bin/sh\necho no database >&2\nexit 3\n";
    let world = World::with_policy(code, "", Policy { max_failures: 3, ..quick() });
    let error = world.error("{}").await;
    assert!(
        error.ends_with(
            "it exited with code 3 before it said orla.hello; its last words were: no database"
        ),
        "{error}"
    );
    assert!(error.contains("after 3 failures in a row"), "{error}");
    assert_eq!(world.status().restarts, Some(2));
}

#[tokio::test(flavor = "multi_thread")]
async fn an_end_that_nobody_asked_for_is_a_failure_also_with_code_0() {
    let world = World::new(
        &Bare { call: "if n == 1: answer(m['id'], 'last'); os._exit(0)", ..Bare::default() }.code(),
        "",
    );
    assert_eq!(world.text("{}").await, "last");
    eventually("a restart", || world.status().restarts == Some(1)).await;
    assert_eq!(world.status().last_failure.as_deref(), Some("it exited with code 0"));
}

const WATCHED: &str =
    r#""hot_load": {"watch": ["./main.py", "orla-tool.json"], "mode": "restart", "debounce_ms": 20}"#;

#[tokio::test(flavor = "multi_thread")]
async fn a_reload_waits_for_the_call_in_flight_and_new_calls_meet_the_new_code() {
    let world = Arc::new(World::new(&Bare { version: 1, ..Bare::default() }.code(), WATCHED));
    world.text("{}").await;
    let long = {
        let world = Arc::clone(&world);
        TaskTracker::new().spawn(async move { world.text(r#"{"sleep": 0.5}"#).await })
    };
    sleep(Duration::from_millis(100)).await;
    world.write_code(&Bare { version: 2, ..Bare::default() }.code());
    world.until_state("RELOADING").await;
    assert!(world.text("{}").await.starts_with("n=1 v=2 "));
    assert_eq!(long.await.unwrap(), "slept v=1");
    assert_eq!((world.starts(), world.status().last_failure), (2, None));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_call_that_is_not_over_when_the_drain_is_ends_with_the_reason() {
    let policy = Policy { drain: Duration::from_millis(50), ..quick() };
    let world = Arc::new(World::with_policy(&Bare::default().code(), WATCHED, policy));
    world.text("{}").await;
    let long = {
        let world = Arc::clone(&world);
        TaskTracker::new().spawn(async move { world.error(r#"{"sleep": 60}"#).await })
    };
    eventually("the call is sent", || world.records().len() == 1).await;
    sleep(Duration::from_millis(100)).await;
    world.write_code(&Bare { version: 2, ..Bare::default() }.code());
    let error = long.await.unwrap();
    assert!(error.contains("it was reloaded, and its calls in flight were not over in time"), "{error}");
    assert!(world.text("{}").await.contains("v=2"));
    world.starts();
}

#[tokio::test(flavor = "multi_thread")]
async fn many_changes_at_once_are_one_restart() {
    let world = World::new(&Bare::default().code(), WATCHED);
    world.text("{}").await;
    for version in 1..200 {
        world.write_code(&Bare { version, ..Bare::default() }.code());
    }
    let deadline = Instant::now() + PATIENCE;
    while !world.text("{}").await.contains("v=199") {
        assert!(Instant::now() < deadline);
        sleep(Duration::from_millis(5)).await;
    }
    assert!(world.starts() <= 4, "{}", world.starts());
}

#[tokio::test(flavor = "multi_thread")]
async fn a_load_keeps_an_unchanged_capsule_and_restarts_a_changed_one() {
    let world = World::new(&Bare::default().code(), "");
    world.text("{}").await;
    let pid = world.status().pid;
    for _ in 0..20 {
        world.load();
    }
    assert!(world.text("{}").await.starts_with("n=2 "));
    assert_eq!(world.status().pid, pid);
    world.write_manifest(r#""language": "python", "startup_timeout_ms": 4000"#);
    world.load();
    eventually("another process", || {
        let status = world.status();
        status.pid.is_some() && status.pid != pid && status.state.as_deref() == Some("READY")
    })
    .await;
    assert!(world.text("{}").await.starts_with("n=1 "));
    assert_eq!(world.starts(), 2);
}

#[tokio::test(flavor = "multi_thread")]
async fn an_edited_manifest_takes_effect_with_the_restart_and_a_broken_one_does_not() {
    let world = World::new(&Bare::default().code(), WATCHED);
    world.text("{}").await;
    world.write_manifest(&format!(r#"{WATCHED}, "description": "New.""#));
    eventually("the restart", || world.status().restarts == Some(1)).await;
    let definition = world.capsules.current()[0].definition();
    assert_eq!(definition.package().unwrap().manifest.description.as_deref(), Some("New."));
    world.text("{}").await;
    fs::write(world.path("tools/cap/orla-tool.json"), "{").unwrap();
    eventually("another restart", || world.status().restarts == Some(2)).await;
    assert!(world.text("{}").await.contains("args=['--fast']"));
}

#[tokio::test(flavor = "multi_thread")]
async fn an_entrypoint_that_vanishes_stops_it_and_its_return_revives_it() {
    let world = World::new(&Bare::default().code(), WATCHED);
    world.text("{}").await;
    fs::remove_file(world.path("tools/cap/main.py")).unwrap();
    world.until_state("STOPPED").await;
    let error = world.error("{}").await;
    assert!(error.ends_with("it could not start: its file is gone"), "{error}");
    world.write_code(&Bare { version: 2, ..Bare::default() }.code());
    world.until_state("READY").await;
    assert!(world.text("{}").await.contains("v=2"));
}

#[tokio::test(flavor = "multi_thread")]
async fn one_that_writes_below_what_it_watches_is_slowed_down() {
    let code = Bare { pre: "open('touched', 'w').write(str(time.time()))", ..Bare::default() }.code();
    let policy =
        Policy { backoff_min: Duration::from_secs(60), backoff_max: Duration::from_secs(60), ..quick() };
    let world = World::with_policy(&code, r#""hot_load": {"watch": ["./"], "debounce_ms": 10}"#, policy);
    world.text("{}").await;
    eventually("some reloads", || world.status().restarts >= Some(5)).await;
    sleep(Duration::from_millis(500)).await;
    assert_eq!(world.status().restarts, Some(5));
    world.text("{}").await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_cancelled_call_is_relayed_and_its_late_answer_is_dropped() {
    let world = World::new(&Bare::default().code(), "");
    world.text("{}").await;
    let call = call("cap", r#"{"sleep": 0.3}"#);
    let cancellation = call.cancellation.clone();
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
async fn a_silent_capsule_is_not_delayed_noticeably() {
    let code = Bare::default().code().replace("if \"id\" in m: out(", "if False: out(");
    let world = World::new(&code, "");
    let start = Instant::now();
    assert!(world.text("{}").await.starts_with("n=1 "));
    assert!(start.elapsed() < Duration::from_secs(2), "{:?}", start.elapsed());
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
    call.notices = NoticeSink::new(move |notice| sink.lock().unwrap().push(notice));
    world.call_with(call).await.unwrap();
    let heard = heard.lock().unwrap();
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
    assert!(!surface.serves("completion/complete") && surface.serves("prompts/get"));
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
    let world = World::new("#!/bin/sh\nexec sleep 100\n", r#""startup_timeout_ms": 100"#);
    let start = Instant::now();
    world.capsules.learn().await;
    assert!(start.elapsed() < Duration::from_secs(3), "{:?}", start.elapsed());
    let again = Instant::now();
    world.capsules.learn().await;
    assert!(again.elapsed() < Duration::from_millis(50));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_shutdown_leaves_nothing_not_even_what_ignores_every_request_to_end() {
    let code = Bare {
        post: "signal.signal(signal.SIGTERM, signal.SIG_IGN); os.system('sleep 1000 &')",
        ..Bare::default()
    };
    let code = code.code().replace("\nbye()", "\ntime.sleep(1000)");
    let world = World::new(&code, "");
    world.text("{}").await;
    let pid = world.status().pid.unwrap();
    let group = || {
        fs::read_dir("/proc")
            .unwrap()
            .flatten()
            .filter_map(|entry| fs::read_to_string(entry.path().join("stat")).ok())
            .any(|stat| {
                let rest = stat.rsplit(") ").next().unwrap_or_default();
                let fields: Vec<&str> = rest.split(' ').collect();
                fields.get(2) == Some(&pid.to_string().as_str()) && fields[0] != "Z"
            })
    };
    assert!(group());
    world.capsules.shutdown().await;
    assert!(!is_alive(pid));
    eventually("the group is gone", || !group()).await;
    assert_eq!(world.status().state.as_deref(), Some("STOPPED"));
    assert!(world.error("{}").await.contains("it was stopped"));
}

#[tokio::test(flavor = "multi_thread")]
async fn nothing_starts_after_a_shutdown() {
    let world = World::new(&Bare::default().code(), "");
    world.capsules.shutdown().await;
    assert!(world.error("{}").await.contains("it was stopped"));
    assert_eq!(world.records(), []);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_capsule_that_nobody_can_call_any_more_ends() {
    let world = World::new(&Bare::default().code(), "");
    world.text("{}").await;
    let pid = world.status().pid.unwrap();
    let old = world.market.snapshot();
    world.capsules.load([], world.policy);
    world.serve();
    // Someone who listed it before may still call it.
    let mut call = call("cap", "{}");
    call.catalog = Some(Arc::clone(&old));
    assert!(world.call_with(call).await.is_ok());
    assert!(is_alive(pid));
    drop(old);
    eventually("its end", || !is_alive(pid)).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn one_that_goes_and_comes_back_waits_for_the_end_of_its_predecessor() {
    let slow = Bare { post: "signal.signal(signal.SIGTERM, signal.SIG_IGN)", ..Bare::default() };
    let slow = slow.code().replace("\nbye()", "\ntime.sleep(0.15); bye()");
    let world = World::new(&slow, "");
    world.text("{}").await;
    world.capsules.load([], world.policy);
    world.serve();
    eventually("nobody can call it", || world.market.get("cap").is_none()).await;
    world.load();
    assert!(world.text("{}").await.starts_with("n=1 "));
    assert_eq!(world.starts(), 2);
}

#[tokio::test(flavor = "multi_thread")]
async fn calls_survive_a_file_that_is_saved_again_and_again() {
    let world = Arc::new(World::new(&Bare::default().code(), WATCHED));
    world.text("{}").await;
    let tasks = TaskTracker::new();
    let enough = CancellationToken::new();
    let callers: Vec<_> = (0..8)
        .map(|_| {
            let (world, enough) = (Arc::clone(&world), enough.clone());
            tasks.spawn(async move {
                let mut calls = 0;
                while !enough.is_cancelled() {
                    world.text("{}").await;
                    calls += 1;
                }
                calls
            })
        })
        .collect();
    let mut version = 0;
    let deadline = Instant::now() + PATIENCE;
    while world.status().restarts < Some(4) {
        assert!(Instant::now() < deadline, "it is not restarted");
        version += 1;
        world.write_code(&Bare { version, ..Bare::default() }.code());
        sleep(Duration::from_millis(150)).await;
    }
    enough.cancel();
    for caller in callers {
        assert!(caller.await.unwrap() > 0);
    }
    // Never two at once.
    assert!(world.starts() > 1);
}

#[tokio::test(flavor = "multi_thread")]
async fn every_call_is_answered_although_the_process_is_killed_again_and_again() {
    let policy = Policy { max_failures: u32::MAX, backoff_max: Duration::from_millis(20), ..quick() };
    let world = Arc::new(World::with_policy(&Bare::default().code(), "", policy));
    world.text("{}").await;
    let tasks = TaskTracker::new();
    let enough = CancellationToken::new();
    let callers: Vec<_> = (0..8)
        .map(|_| {
            let (world, enough) = (Arc::clone(&world), enough.clone());
            tasks.spawn(async move {
                let (mut good, mut lost) = (0, 0);
                while !enough.is_cancelled() {
                    match world.call("{}").await {
                        Ok(_) => good += 1,
                        Err(error) => {
                            let text = error.to_string();
                            assert_eq!(
                                text,
                                "cap is unavailable: it ended during the call: it was killed by SIGKILL"
                            );
                            lost += 1;
                        }
                    }
                }
                (good, lost)
            })
        })
        .collect();
    let deadline = Instant::now() + PATIENCE;
    while world.status().restarts < Some(5) {
        assert!(Instant::now() < deadline, "it is not restarted");
        sleep(Duration::from_millis(200)).await;
        if let Some(pid) = world.status().pid.and_then(|pid| rustix::process::Pid::from_raw(pid as i32))
        {
            let _ = rustix::process::kill_process(pid, rustix::process::Signal::KILL);
        }
    }
    enough.cancel();
    let mut all = (0, 0);
    for caller in callers {
        let (good, lost) = caller.await.unwrap();
        all = (all.0 + good, all.1 + lost);
    }
    assert!(all.0 > 0, "{all:?}");
}
