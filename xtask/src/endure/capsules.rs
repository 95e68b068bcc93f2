//! Runs of capsules.

use std::fs::OpenOptions;
use std::io::Write as _;
use std::path::Path;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::{Duration, SystemTime};

use rustix::process::{Pid, Signal, kill_process};
use serde_json::{Value, json};

use super::load;
use super::watch::{Records, descriptors, processes_in, until, zombies_of};
use super::{World, ensure, write};
use crate::bench::client::{self, Connection};
use crate::server::peak;

const CAPSULE: &str = include_str!("../../fixtures/endure/capsule.py");
const IDLE: &str = include_str!("../../fixtures/endure/idle.sh");
const PROGRAM: &str = "tools/cap/main.py";

/// How long anything may take that has no bound of its own.
const TIMEOUT: Duration = Duration::from_secs(60);

/// Calls while the capsule's file is saved every 300 ms: none fails, and no two processes live at once.
pub(super) fn save(world: &World) -> Result<String, String> {
    install(world, json!({"watch": ["main.py"], "debounce_ms": 50}), "0")?;
    let orla = world.serve("capsules: {max_failures: 5}\n")?;
    let (over, saved) = (AtomicBool::new(false), AtomicUsize::new(0));
    let call = client::call("cap", &json!({"echo": "hi"}));
    let answers = std::thread::scope(|scope| {
        let saving = scope.spawn(|| {
            while !over.load(Ordering::Relaxed) {
                std::thread::sleep(Duration::from_millis(300));
                let version = saved.fetch_add(1, Ordering::Relaxed) + 1;
                write(&world.path(PROGRAM), &program(&version.to_string()), 0o755)?;
            }
            Ok::<(), String>(())
        });
        let answers = load::calls(&orla.address, &call, 16, world.some(50_000), |body| {
            String::from_utf8_lossy(body).contains(" hi")
        });
        over.store(true, Ordering::Relaxed);
        saving.join().map_err(|_| "the writer panicked")??;
        answers
    })?;
    ensure(answers.good == world.some(50_000), || {
        format!("{}; first: {}", answers.shown(), answers.first_problem())
    })?;
    let newest = format!("version={} ", saved.load(Ordering::Relaxed));
    let waited = until(TIMEOUT, "the file that was saved last answers", || {
        answer(&orla.address, &call).is_ok_and(|text| text.contains(&newest))
    })?;
    orla.end(TIMEOUT)?;
    let records = Records::read(&world.path("records"))?;
    let (most, left) = records.most_at_once();
    ensure((most, left) == (1, 0), || format!("{most} processes at once, {left} without an end"))?;
    let saved = saved.into_inner();
    Ok(format!(
        "{}; {saved} saves, {} processes, at most 1 at once; the newest answered {:.0} ms after the last call",
        answers.shown(),
        records.starts(),
        waited.as_secs_f64() * 1e3
    ))
}

/// Calls while the capsule is killed every 500 ms: each is answered, and nothing leaks.
pub(super) fn crash(world: &World) -> Result<String, String> {
    const BACKOFF: Duration = Duration::from_secs(1);
    const CLIENTS: usize = 16;
    install(world, Value::Null, "0")?;
    let orla = world.serve("capsules: {max_failures: 1000000, backoff_max_ms: 1000}\n")?;
    let call = client::call("cap", &json!({"ms": 1}));
    answer(&orla.address, &call)?;
    let (before, memory) = (descriptors(orla.pid())?, orla.resident()?);
    let (over, killed) = (AtomicBool::new(false), AtomicUsize::new(0));
    let answers = std::thread::scope(|scope| {
        let killing = scope.spawn(|| {
            while !over.load(Ordering::Relaxed) {
                std::thread::sleep(Duration::from_millis(500));
                if let Some(pid) = status(&orla.address)?["pid"].as_i64() {
                    kill(world, i32::try_from(pid).map_err(|err| err.to_string())?)?;
                    killed.fetch_add(1, Ordering::Relaxed);
                }
            }
            Ok::<(), String>(())
        });
        let answers = load::calls(&orla.address, &call, CLIENTS, world.some(10_000), |_| true);
        over.store(true, Ordering::Relaxed);
        killing.join().map_err(|_| "the killer panicked")??;
        answers
    })?;
    ensure(answers.lost.is_empty(), || format!("{}; {}", answers.shown(), answers.first_problem()))?;
    let other = answers.errors.iter().find(|text| !text.contains("SIGKILL"));
    ensure(other.is_none(), || format!("an error that is not the crash: {other:?}"))?;
    let most = killed.load(Ordering::Relaxed) * CLIENTS;
    ensure(answers.errors.len() <= most, || format!("more than were in flight: {}", answers.shown()))?;
    // The last one that was killed may take the first of these with it.
    until(TIMEOUT, "it serves again", || answer(&orla.address, &call).is_ok())?;
    let (after, grown) = (descriptors(orla.pid())?, orla.resident()?.saturating_sub(memory));
    // The log and one connection may come and go.
    ensure(after <= before + 4, || format!("{before} descriptors before, {after} after"))?;
    ensure(zombies_of(orla.pid()) == 0, || "zombies are left".to_owned())?;
    ensure(grown < 32_000_000, || format!("the server grew by {grown} bytes"))?;
    let capsules = processes_in(&world.path("tools/cap")).len();
    ensure(capsules == 1, || format!("{capsules} processes of one capsule"))?;
    orla.end(TIMEOUT)?;
    let records = Records::read(&world.path("records"))?;
    let (most, _) = records.most_at_once();
    ensure(most == 1, || format!("{most} processes at once"))?;
    let gap = records.longest_gap();
    ensure(gap < BACKOFF + Duration::from_secs(1), || format!("a restart took {gap:?}"))?;
    Ok(format!(
        "{}; killed {} times, restarted within {:.0} ms at most, grown by {} KB",
        answers.shown(),
        killed.into_inner(),
        gap.as_secs_f64() * 1e3,
        grown / 1000
    ))
}

/// Very many idle capsules: they start, serve and end, and cost little.
pub(super) fn idle(world: &World) -> Result<String, String> {
    let count = world.some(500);
    let empty = world.serve("")?;
    Connection::open(&empty.address)?.exchange(&client::sessionless("tools/list", json!({})))?;
    let base = empty.resident()?;
    empty.end(TIMEOUT)?;
    for number in 0..count {
        let (name, folder) = (format!("c{number}"), format!("tools/c{number}"));
        world.executable(&format!("{folder}/main.sh"), IDLE)?;
        let manifest = json!({"name": name, "version": "1.0.0", "entrypoint": "main.sh", "args": [name], "startup_timeout_ms": 60000});
        world.write(&format!("{folder}/orla-tool.json"), &manifest.to_string())?;
    }
    let orla = world.serve("capsules: {eager: true}\n")?;
    let ready = until(TIMEOUT, "all are ready", || {
        readiness(&orla.address).is_ok_and(|text| text.contains(&format!("READY {count}\n")))
    })?;
    for number in 0..count {
        let text = answer(&orla.address, &client::call(&format!("c{number}"), &json!({})))?;
        ensure(text.contains("idle"), || text.clone())?;
    }
    let each = orla.resident()?.saturating_sub(base) / count as u64;
    let status = orla.end(TIMEOUT)?;
    ensure(status.success(), || format!("it ended with {status}"))?;
    let left = processes_in(&world.path("tools")).len();
    ensure(left == 0, || format!("{left} processes are left"))?;
    // The fixed cost of the first one is most of what few seem to cost.
    ensure(each <= 100_000 || count < 500, || format!("{each} bytes each"))?;
    Ok(format!(
        "{count} ready after {:.1} s, {:.1} KB each in the server",
        ready.as_secs_f64(),
        each as f64 / 1e3
    ))
}

/// Large arguments and large results from many clients at once.
pub(super) fn bulk(world: &World) -> Result<String, String> {
    const SIZE: usize = 100_000;
    install(world, Value::Null, "0")?;
    let orla = world.serve("")?;
    let call = client::call("cap", &json!({"echo": "x".repeat(SIZE)}));
    let count = world.some(3200);
    let answers = load::calls(&orla.address, &call, 32, count, |body| body.len() > SIZE)?;
    ensure(answers.good == count, || format!("{}; {}", answers.shown(), answers.first_problem()))?;
    ensure(answers.slowest < Duration::from_secs(10), || answers.shown())?;
    Ok(answers.shown())
}

/// A million notifications before one answer.
pub(super) fn notices(world: &World) -> Result<String, String> {
    install(world, Value::Null, "0")?;
    let orla = world.serve("")?;
    answer(&orla.address, &client::call("cap", &json!({})))?;
    let before = orla.resident()?;
    let call = client::call("cap", &json!({"notices": world.some(1_000_000)}));
    let answers = load::calls(&orla.address, &call, 1, 1, |_| true)?;
    ensure(answers.good == 1, || answers.first_problem())?;
    let grown = peak(orla.pid())?.saturating_sub(before);
    ensure(grown < 64_000_000, || format!("the server grew by {grown} bytes"))?;
    let seconds = answers.slowest.as_secs_f64();
    Ok(format!("{} in {seconds:.1} s, grown by {} KB", world.some(1_000_000), grown / 1000))
}

/// Puts the capsule `cap` into the run's tools.
fn install(world: &World, hot_load: Value, version: &str) -> Result<(), String> {
    let mut manifest = json!({
        "name": "cap", "version": "1.0.0", "entrypoint": "main.py",
        "env": {"RECORDS": world.path("records").to_string_lossy()},
    });
    if !hot_load.is_null() {
        manifest["hot_load"] = hot_load;
    }
    world.executable(PROGRAM, &program(version))?;
    world.write("tools/cap/orla-tool.json", &manifest.to_string())
}

fn program(version: &str) -> String {
    CAPSULE.replace("VERSION", version)
}

/// Kills a process of the capsule and writes its end down, as it cannot do so itself.
fn kill(world: &World, pid: i32) -> Result<(), String> {
    let process = Pid::from_raw(pid).ok_or("no process id")?;
    let now = SystemTime::UNIX_EPOCH.elapsed().map_err(|err| err.to_string())?;
    // It may have ended by itself.
    let _ = kill_process(process, Signal::KILL);
    let records = world.path("records");
    record(&records, &format!("end {pid} {}\n", now.as_nanos()))
}

fn record(path: &Path, line: &str) -> Result<(), String> {
    let file = OpenOptions::new().append(true).open(path);
    file.and_then(|mut file| file.write_all(line.as_bytes())).map_err(|err| err.to_string())
}

/// How the capsule `cap` is.
fn status(address: &str) -> Result<Value, String> {
    let status: Value =
        serde_json::from_str(&get(address, "/status")?).map_err(|err| err.to_string())?;
    let rows = status["capabilities"].as_array().ok_or("no capabilities")?;
    rows.iter().find(|row| row["name"] == "cap").cloned().ok_or_else(|| "no capsule".to_owned())
}

fn readiness(address: &str) -> Result<String, String> {
    get(address, "/readyz")
}

fn get(address: &str, path: &str) -> Result<String, String> {
    let request = format!("GET {path} HTTP/1.1\r\nhost: localhost\r\n\r\n");
    let mut connection = Connection::open(address)?;
    let answer = connection.exchange(request.as_bytes())?;
    Ok(String::from_utf8_lossy(answer.body).into_owned())
}

/// Returns the text of a call that has to succeed.
fn answer(address: &str, call: &[u8]) -> Result<String, String> {
    let mut connection = Connection::open(address)?;
    let answer = connection.exchange(call)?;
    let text = String::from_utf8_lossy(answer.body).into_owned();
    if client::is_good(&answer) { Ok(text) } else { Err(text) }
}
