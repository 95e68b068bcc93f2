//! Capsules for tests: plain Python that behaves correctly, except where a test specifies otherwise.
//!
//! The actions of a process are recorded outside of its package (`record.log` in the world's directory),
//! because a watched directory must not change.

use std::collections::BTreeSet;

use orla_e2e::{Server, World, eventually};
use serde_json::{Value, json};

/// A capsule that only answers `tools/call`. Lines in upper case are replaced by a test's own.
const BARE: &str = r#"#!/usr/bin/env python3
import json, os, signal, sys, threading, time
HOME = os.environ["HOME"]
lock = threading.Lock()
def out(message):
    raw(json.dumps({"jsonrpc": "2.0", **message}))
def raw(line):
    with lock:
        sys.stdout.write(line + "\n"); sys.stdout.flush()
def note(name, line):
    with open(f"{HOME}/{name}", "a") as file: file.write(line + "\n")
def record(what):
    note("record.log", f"{what} {os.getpid()} {time.monotonic_ns()}")
def runs():
    return sum(line.startswith("start") for line in open(HOME + "/record.log"))
def bye(*_):
    record("end"); os._exit(0)
def wait(name):
    while not os.path.exists(f"{HOME}/{name}"): time.sleep(0.003)
def hello(params={"name": "cap", "version": "1.0.0", "capabilities": ["tools"]}):
    out({"method": "orla.hello", "params": params})
def answer(id, text):
    out({"id": id, "result": {"content": [{"type": "text", "text": str(text)}]}})
def refuse(id):
    out({"id": id, "error": {"code": -32601, "message": "not here"}})
def gated(id, gate):
    wait(gate); answer(id, f"gate {gate} v=VERSION")
signal.signal(signal.SIGTERM, bye)
record("start")
n = 0
BEFORE
HELLO
AFTER
for line in sys.stdin:
    m = json.loads(line)
    method, id, p = m.get("method"), m.get("id"), m.get("params") or {}
    if method != "tools/call":
        OTHER
        if method is not None and id is not None: refuse(id)
        else: note("notes.log", line.strip())
        continue
    a = p.get("arguments") or {}
    n += 1
    note("calls.log", line.strip())
    CALL
    if "gate" in a: threading.Thread(target=gated, args=(id, a["gate"]), daemon=True).start()
    else: answer(id, f"n={n} pid={os.getpid()} v=VERSION")
bye()
"#;

/// The source of a capsule, and where it deviates.
#[derive(Clone, Debug)]
pub(crate) struct Source {
    before: String,
    hello: String,
    after: String,
    other: String,
    call: String,
    version: String,
}

/// Returns a capsule that behaves correctly.
pub(crate) fn bare() -> Source {
    let pass = || "pass".to_owned();
    Source {
        before: pass(),
        hello: "hello()".to_owned(),
        after: pass(),
        other: pass(),
        call: pass(),
        version: "1".to_owned(),
    }
}

impl Source {
    /// Before the handshake.
    pub(crate) fn before(mut self, code: &str) -> Self {
        self.before = code.to_owned();
        self
    }

    /// Instead of the handshake.
    pub(crate) fn hello(mut self, code: &str) -> Self {
        self.hello = code.to_owned();
        self
    }

    /// Behind the handshake.
    pub(crate) fn after(mut self, code: &str) -> Self {
        self.after = code.to_owned();
        self
    }

    /// At a message that is no call: `m`, `method`, `id`, `p`.
    pub(crate) fn other(mut self, code: &str) -> Self {
        self.other = code.replace('\n', "\n        ");
        self
    }

    /// At a call: `a` are its arguments, `n` its number, `id` its id. `continue` leaves it unanswered.
    pub(crate) fn call(mut self, code: &str) -> Self {
        self.call = code.replace('\n', "\n    ");
        self
    }

    /// Sets the text of its answers after `v=`.
    pub(crate) fn version(mut self, version: &str) -> Self {
        self.version = version.to_owned();
        self
    }

    /// As a program.
    pub(crate) fn python(&self) -> String {
        BARE.replace("BEFORE", &self.before)
            .replace("HELLO", &self.hello)
            .replace("AFTER", &self.after)
            .replace("OTHER", &self.other)
            .replace("CALL", &self.call)
            .replace("VERSION", &self.version)
    }
}

/// The default timeout of a start. On a busy machine, Python takes seconds.
pub(crate) const PATIENCE_MS: u64 = 120_000;

/// Returns the text of `orla-tool.json` for the package `cap`, with these members besides the required
/// ones.
#[expect(clippy::needless_pass_by_value, reason = "calls read as `manifest(json!(…))`")]
pub(crate) fn manifest(more: Value) -> String {
    let mut manifest = json!({
        "name": "cap", "version": "1.0.0", "entrypoint": "main.py", "startup_timeout_ms": PATIENCE_MS,
    });
    let members = more.as_object().cloned().unwrap_or_default();
    manifest.as_object_mut().expect("an object").extend(members);
    manifest.to_string()
}

/// Watches the capsule's program.
pub(crate) fn watched() -> String {
    manifest(json!({"hot_load": {"watch": ["main.py"], "mode": "restart", "debounce_ms": 30}}))
}

/// Returns a world with the capsule `cap`.
pub(crate) fn with(world: World, manifest: &str, code: &str) -> World {
    world.tool("cap/main.py", code).file("tools/cap/orla-tool.json", manifest)
}

/// Returns a server that serves the capsule `cap` and restarts it quickly when it fails.
pub(crate) fn serve(manifest: &str, code: &Source) -> Server {
    serve_with("backoff_min_ms: 20, backoff_max_ms: 50", manifest, code)
}

/// As [`serve`], with these members of `capsules` in the configuration.
pub(crate) fn serve_with(policy: &str, manifest: &str, code: &Source) -> Server {
    let world = crate::world().config(&format!("capsules: {{{policy}}}\n"));
    with(world, manifest, &code.python()).serve()
}

/// Returns how the capsule is, according to `/status`.
pub(crate) fn status(server: &Server) -> Value {
    let status = server.status();
    let rows = status["capabilities"].as_array().expect("a list of capabilities");
    let found = rows.iter().find(|row| row["name"].as_str().is_some_and(|name| name.starts_with("cap")));
    found.unwrap_or_else(|| panic!("no capsule in {status}")).clone()
}

/// Waits until the capsule is in a state.
pub(crate) fn until_state(server: &Server, state: &str) {
    eventually(&format!("the capsule is {state}"), || status(server)["state"] == state);
}

/// Returns the process id that the text of an answer names.
pub(crate) fn pid_in(text: &str) -> u32 {
    let word = text.split_whitespace().find_map(|word| word.strip_prefix("pid="));
    word.and_then(|id| id.parse().ok()).unwrap_or_else(|| panic!("no process id in {text}"))
}

/// Returns how many processes have started. Panics if, according to the record, two of them ran at the
/// same time.
pub(crate) fn starts(world: &World) -> usize {
    let text = world.read("record.log");
    let mut records: Vec<(u64, &str, &str)> = text
        .lines()
        .map(|line| {
            let words: Vec<&str> = line.split_whitespace().collect();
            (words[2].parse().expect("a time"), words[0], words[1])
        })
        .collect();
    records.sort_unstable();
    let (mut alive, mut starts) = (BTreeSet::new(), 0);
    for (_, what, pid) in records {
        if what == "start" {
            starts += 1;
            alive.insert(pid);
            assert!(alive.len() == 1, "two processes at once: {alive:?}\n{text}");
        } else {
            alive.remove(pid);
        }
    }
    starts
}

/// Opens a gate that calls of a capsule wait for.
pub(crate) fn open(world: &World, gate: &str) {
    world.write(gate, "", 0o644);
}
