//! Calls while profiles change, launchers are killed, and at last the server is.

use std::collections::BTreeSet;
use std::fs;
use std::path::Path;
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::Duration;

use serde_json::{Value, json};

use super::Context;
use super::world::{self, Account, UNAVAILABLE, executable};
use crate::bench::client::{self, Connection};
use crate::endure::watch::{processes_in, until};

const CLIENTS: usize = 8;
const TOOLS: usize = 4;
/// How long whatever a server left may live.
const LEFT: Duration = Duration::from_secs(1);
/// Where a temporary directory of a call could be seen, if its mount were.
const PLACES: &[&str] = &["/mnt", "/media", "/srv", "/opt", "/var/tmp"];

/// What came of the calls.
#[derive(Default)]
struct Calls {
    good: AtomicUsize,
    errors: AtomicUsize,
    /// Answers of another call, and what was not an answer.
    wrong: Mutex<Vec<String>>,
}

impl Calls {
    fn wrong(&self, answer: String) {
        if let Ok(mut wrong) = self.wrong.lock() {
            wrong.push(answer);
        }
    }
}

/// Runs both storms.
pub(super) fn run(context: &mut Context) -> Result<(), String> {
    let Some(account) = context.accounts.last().copied() else { return Ok(()) };
    let count = context.some(10_000, 300);
    let base = context.folder("storms")?;
    for number in 0..TOOLS {
        executable(&base.join(format!("tools/echo{number}")), "#!/bin/sh\nread line\necho \"$line\"\n")?;
    }
    executable(&base.join("tools/slow"), "#!/bin/sh\nsetsid sleep 300 &\nsleep 300\n")?;
    configure(&base, 0)?;
    for (what, storm) in
        [("reloads and killed launchers", reloads as Storm), ("a killed server", killed as Storm)]
    {
        let (what, result) = match storm(&context.orla, &base, account, count) {
            Ok(figures) => (format!("storms: {what}: {figures}"), Ok(())),
            Err(problem) => (format!("storms: {what}"), Err(problem)),
        };
        context.tally.check(&what, result);
    }
    Ok(())
}

type Storm = fn(&Path, &Path, Account, usize) -> Result<String, String>;

/// Gives each tool one of several profiles.
fn configure(base: &Path, turn: usize) -> Result<(), String> {
    let profiles = [
        json!({"permissions": []}),
        json!({"permissions": ["fs:read:/usr/share"]}),
        json!({"permissions": ["fs:read:tools"], "limits": {"processes": 20}}),
        json!({"permissions": ["net"]}),
    ];
    let mut tools = serde_json::Map::new();
    for number in 0..TOOLS {
        tools.insert(format!("echo{number}"), profiles[(number + turn) % profiles.len()].clone());
    }
    tools.insert("slow".to_owned(), json!({"permissions": [], "timeout": 300}));
    let partial = base.join("orla.yaml.partial");
    fs::write(&partial, json!({"tools": tools, "max_concurrency": 16}).to_string())
        .and_then(|()| fs::rename(partial, base.join("orla.yaml")))
        .map_err(|err| err.to_string())
}

fn reloads(orla: &Path, base: &Path, account: Account, count: usize) -> Result<String, String> {
    let before = remains(base);
    let server = world::serve(orla, base, account, &[])?;
    let (pid, address) = (server.pid(), server.address.clone());
    if is_unavailable(&address)? {
        return Ok("unavailable".to_owned());
    }
    let (calls, kills) = (Calls::default(), AtomicUsize::new(0));
    let is_done = AtomicBool::new(false);
    let mut turns = 0;
    std::thread::scope(|scope| {
        let load = scope.spawn(|| {
            let done = call_all(&address, count, &calls, &is_done);
            is_done.store(true, Ordering::Relaxed);
            done
        });
        let mut disturb = || {
            while !is_done.load(Ordering::Relaxed) {
                turns += 1;
                configure(base, turns)?;
                server.hang_up()?;
                std::thread::sleep(Duration::from_millis(60));
                // A launcher, or what it has started to start programs.
                let mut all = launchers(pid);
                all.extend(all.clone().into_iter().flat_map(launchers));
                if !all.is_empty() {
                    kill(all[turns % all.len()]);
                    kills.fetch_add(1, Ordering::Relaxed);
                }
                std::thread::sleep(Duration::from_millis(40));
            }
            Ok::<(), String>(())
        };
        let disturbed = disturb();
        load.join().map_err(|_| "the load panicked")??;
        disturbed
    })?;
    let [good, errors] = [&calls.good, &calls.errors].map(|count| count.load(Ordering::Relaxed));
    let (kills, wrong) = (kills.into_inner(), calls.wrong.into_inner().unwrap_or_default());
    if good + errors != count {
        return Err(format!("{good} good, {errors} errors of {count}, the others: {wrong:?}"));
    }
    if errors > kills * CLIENTS {
        return Err(format!("{errors} errors for {kills} killed launchers"));
    }
    let status = server.end(Duration::from_secs(60))?;
    if !status.success() {
        return Err(format!("the server ended with {status}"));
    }
    nothing_left(base, &before, &BTreeSet::new())?;
    Ok(format!("{count} calls, {errors} errors, {turns} reloads, {kills} launchers killed"))
}

fn killed(orla: &Path, base: &Path, account: Account, count: usize) -> Result<String, String> {
    let before = remains(base);
    let server = world::serve(orla, base, account, &[])?;
    let address = server.address.clone();
    if is_unavailable(&address)? {
        return Ok("unavailable".to_owned());
    }
    let (calls, is_killed) = (Calls::default(), AtomicBool::new(false));
    let mut connections = Vec::new();
    for _ in 0..CLIENTS / 2 {
        let mut connection = Connection::open(&address)?;
        connection.send(&client::call("slow", &json!({})))?;
        connections.push(connection);
    }
    let (processes, namespaces, took) = std::thread::scope(|scope| {
        let load = scope.spawn(|| call_all(&address, count, &calls, &is_killed));
        // All of the slow calls and some others run.
        until(Duration::from_secs(60), "calls run", || {
            calls.good.load(Ordering::Relaxed) > count / 10 && processes_in(base).len() > CLIENTS
        })?;
        let processes = processes_in(base);
        let namespaces = namespaces_of(&processes);
        is_killed.store(true, Ordering::Relaxed);
        server.kill()?;
        let took =
            until(Duration::from_secs(60), "no process is left", || processes_in(base).is_empty())?;
        // Their connections broke, or their last answer came before.
        let _ = load.join().map_err(|_| "the load panicked")?;
        Ok::<_, String>((processes.len(), namespaces, took))
    })?;
    nothing_left(base, &before, &namespaces)?;
    if took > LEFT {
        return Err(format!("{processes} processes were there for another {took:?}"));
    }
    Ok(format!(
        "{processes} processes in {} namespaces were gone after {} ms",
        namespaces.len(),
        took.as_millis()
    ))
}

/// Returns whether confined processes do not run here.
fn is_unavailable(address: &str) -> Result<bool, String> {
    let called = world::call(address, "echo0", &json!({"stdin": "x\n"}))?;
    Ok(world::text(&called).contains(UNAVAILABLE))
}

/// So many calls, each with a word of its own that has to come back. Ends early when told so.
fn call_all(address: &str, count: usize, calls: &Calls, ends: &AtomicBool) -> Result<(), String> {
    let begun = AtomicUsize::new(0);
    client::side_by_side(CLIENTS, || {
        let mut connection = Connection::open(address)?;
        loop {
            let number = begun.fetch_add(1, Ordering::Relaxed);
            if number >= count || ends.load(Ordering::Relaxed) {
                return Ok(Vec::<()>::new());
            }
            let word = format!("word-{number}\n");
            let request = client::call(&format!("echo{}", number % TOOLS), &json!({"stdin": word}));
            let answer: Value = match connection.exchange(&request) {
                Ok(answer) => world::message(answer.body).unwrap_or_default(),
                Err(problem) => {
                    calls.wrong(problem.clone());
                    connection = Connection::open(address).map_err(|_| problem)?;
                    continue;
                }
            };
            let result = &answer["result"];
            let said = result["structuredContent"]["stdout"].as_str().unwrap_or_default();
            if said == word && result["isError"] != true {
                calls.good.fetch_add(1, Ordering::Relaxed);
            } else if (said.is_empty() || said == word) && result["isError"] == true {
                calls.errors.fetch_add(1, Ordering::Relaxed);
            } else {
                calls.wrong(answer.to_string());
            }
        }
    })
    .map(drop)
}

/// Returns the launchers of a server, or their spawners. Other copies of them have process namespaces of
/// their own.
pub(super) fn launchers(parent: u32) -> Vec<u32> {
    let children = fs::read_dir(format!("/proc/{parent}/task")).into_iter().flatten().flatten();
    let text = children
        .filter_map(|task| fs::read_to_string(task.path().join("children")).ok())
        .collect::<Vec<_>>()
        .join(" ");
    let ids = text.split_whitespace().filter_map(|id| id.parse::<u32>().ok());
    // A process has a number in each namespace that it is in.
    let is_outside = |id: &u32| {
        let status = fs::read_to_string(format!("/proc/{id}/status")).unwrap_or_default();
        let numbers = status.lines().find_map(|line| line.strip_prefix("NSpid:"));
        numbers.is_some_and(|numbers| numbers.split_whitespace().count() == 1)
    };
    ids.filter(is_outside)
        .filter(|id| {
            fs::read(format!("/proc/{id}/cmdline")).is_ok_and(|line| line.starts_with(b"tool-launcher"))
        })
        .collect()
}

fn kill(id: u32) {
    let pid = i32::try_from(id).ok().and_then(rustix::process::Pid::from_raw);
    if let Some(pid) = pid {
        // It may have ended meanwhile.
        let _ = rustix::process::kill_process(pid, rustix::process::Signal::KILL);
    }
}

/// Returns the namespaces that processes are in and this one is not.
fn namespaces_of(processes: &[u32]) -> BTreeSet<String> {
    let of = |id: &str| -> BTreeSet<String> {
        let link = |kind: &str| fs::read_link(format!("/proc/{id}/ns/{kind}")).ok();
        // What has ended, and only waits to be waited for, is in no mount namespace any more.
        let kinds = ["user", "mnt", "pid", "net", "ipc"].iter().filter(|_| link("mnt").is_some());
        kinds.filter_map(|kind| Some(link(kind)?.display().to_string())).collect()
    };
    let own = of("self");
    let all: BTreeSet<String> = processes.iter().flat_map(|id| of(&id.to_string())).collect();
    all.difference(&own).cloned().collect()
}

/// What a call could leave in the file system: mounts, and entries of directories.
fn remains(base: &Path) -> BTreeSet<String> {
    let mounts = fs::read_to_string("/proc/mounts").unwrap_or_default();
    let mounts = mounts.lines().filter(|line| line.starts_with("orla ")).map(str::to_owned);
    let folder = |path: &Path| {
        let entries = fs::read_dir(path).into_iter().flatten().flatten();
        entries.map(|entry| entry.path().display().to_string()).collect::<Vec<_>>()
    };
    let entries = PLACES.iter().map(Path::new).chain([base]).flat_map(folder);
    mounts.chain(entries).filter(|entry| !entry.ends_with("server.log")).collect()
}

fn nothing_left(
    base: &Path,
    before: &BTreeSet<String>,
    namespaces: &BTreeSet<String>,
) -> Result<(), String> {
    until(LEFT, "no process of the server is left", || processes_in(base).is_empty())
        .map_err(|problem| format!("{problem}: {:?}", processes_in(base)))?;
    let after = remains(base);
    let more: Vec<&String> = after.difference(before).collect();
    if !more.is_empty() {
        return Err(format!("left: {more:?}"));
    }
    let left = || -> Vec<String> {
        let ids = fs::read_dir("/proc").into_iter().flatten().flatten();
        let ids: Vec<u32> = ids.filter_map(|entry| entry.file_name().to_str()?.parse().ok()).collect();
        namespaces.intersection(&namespaces_of(&ids)).cloned().collect()
    };
    until(LEFT, "no namespace is left", || left().is_empty())
        .map(drop)
        .map_err(|problem| format!("{problem}: {:?}", left()))
}
