//! Capsules as they behave with real processes: small Python programs in directories of their own.

mod life_cycle;
mod mcp;

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use orla_marketplace::{
    Call, CapabilityMarketplace, Catalog, JsonText, Outcome, Payload, ProviderStatus, RuntimeResult,
    SurfaceError, SurfaceNotice,
};

use tokio::time::{Instant, sleep};

use orla_marketplace::Source as _;
use orla_process::Instance;
use orla_process::supervisor::Policy;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use super::*;

use orla_marketplace::testing::{TEST_TIMEOUT, eventually};

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

/// What is known of the capsules.
fn catalog(market: &CapabilityMarketplace, capsules: &Capsules) -> Catalog {
    let mut builder = market.builder(orla_marketplace::Limits::default());
    for registration in capsules.registrations() {
        builder.capability(registration).unwrap();
    }
    builder.build()
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
        self.capsules.supervisor().load(found.packages, self.policy);
        self.serve();
    }

    /// Puts what is known of the capsules in force.
    fn serve(&self) {
        self.market.replace(catalog(&self.market, &self.capsules));
    }

    async fn call_with(&self, call: Call) -> RuntimeResult<Outcome> {
        tokio::time::timeout(TEST_TIMEOUT, self.market.call(call)).await.expect("the call hangs")
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
        self.capsules.supervisor().current()[0].status()
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

    /// Returns how many processes there were; panics if two were there at once.
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
