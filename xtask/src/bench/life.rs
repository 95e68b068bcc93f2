//! What is no comparison of calls: start, reload, and what one call takes within the server.

use std::fs;
use std::io::Write as _;
use std::os::unix::fs::PermissionsExt as _;
use std::path::Path;
use std::process::{Command, Stdio};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use serde_json::{Value, json};

use super::client::{self, Connection};
use super::report::Figure;
use super::rows::PYTHON;
use super::side::Pipes;
use super::stats::{median, percentile};
use super::{Effort, Programs};
use crate::server::Server;
use orla_e2e::free_port;

/// How long files have to be quiet before a capsule is restarted.
const DEBOUNCE: Duration = Duration::from_millis(50);

/// What a client asks an MCP server up to the first answer of a tool.
const FIRST_REQUESTS: [&str; 3] = [
    r#"{"jsonrpc":"2.0","id":1,"method":"initialize","params":{"protocolVersion":"2025-11-25","capabilities":{},"clientInfo":{"name":"bench","version":"1"}}}"#,
    r#"{"jsonrpc":"2.0","id":2,"method":"tools/list","params":{}}"#,
    r#"{"jsonrpc":"2.0","id":3,"method":"tools/call","params":{"name":"echo","arguments":{}}}"#,
];

/// How long a restart may take before the bench gives up.
const TIMEOUT: Duration = Duration::from_secs(30);

/// From starting the program to its first answer: with few and with many tools, and with an MCP server behind it.
pub(super) fn start(programs: &Programs, effort: Effort) -> Result<Vec<Figure>, String> {
    let median_of = |folder: &Path, request: &[u8]| {
        let starts = (0..effort.starts).map(|_| first_answer(programs.binary(), folder, request));
        starts.collect::<Result<_, _>>().map(median)
    };
    let mut figures = Vec::new();
    let list = client::sessionless("tools/list", json!({}));
    for (count, goal) in [(3, 8.0), (100, 10.0), (1000, 30.0)] {
        let folder = programs.folder.join(format!("start-{count}"));
        scripts(&folder.join("tools"), count)?;
        let middle = median_of(&folder, &list)?;
        let figure = Figure::new(
            format!("start to first answer, {count} tools"),
            format!("{middle:.1} ms"),
            json!({"p50_ms": middle}),
        );
        figures.push(figure.goal(format!("≤ {goal} ms"), middle <= goal));
    }
    let folder = programs.folder.join("start-upstream");
    fresh(&folder.join("tools"))?;
    let config = json!({"mcpServers": {"upstream": {"command": programs.echo_mcp, "prefix": ""}}});
    fs::write(folder.join("orla.yaml"), config.to_string()).map_err(|err| err.to_string())?;
    let (mut whole, mut alone) = (Vec::new(), Vec::new());
    for _ in 0..effort.starts {
        whole.push(first_answer(programs.binary(), &folder, &client::call("echo", &json!({})))?);
        let started = Instant::now();
        let mut pipes = Pipes::start(&programs.echo_mcp)?;
        FIRST_REQUESTS.iter().try_for_each(|line| pipes.ask(&format!("{line}\n")).map(drop))?;
        alone.push(milliseconds(started));
    }
    let (whole, alone) = (median(whole), median(alone));
    let middle = whole - alone;
    let figure = Figure::new(
        "start to first answer of an MCP server, beyond its own",
        format!("{middle:.1} ms ({whole:.1} − {alone:.1})"),
        json!({"p50_ms": middle, "whole_ms": whole, "upstream_ms": alone}),
    );
    figures.push(figure.goal("≤ 12 ms", middle <= 12.0));
    Ok(figures)
}

/// Starts the program and returns how many milliseconds it took to answer.
fn first_answer(binary: &Path, folder: &Path, request: &[u8]) -> Result<f64, String> {
    let port = free_port();
    let address = format!("127.0.0.1:{port}");
    let mut command = Command::new(binary);
    command.args(["--port", &port.to_string()]).current_dir(folder);
    command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
    let started = Instant::now();
    let mut child = command.spawn().map_err(|err| err.to_string())?;
    let answered = loop {
        if let Ok(mut connection) = Connection::open(&address) {
            let good = connection.exchange(request).is_ok_and(|answer| client::is_good(&answer));
            break if good {
                Ok(milliseconds(started))
            } else {
                Err("its first answer is no result".to_owned())
            };
        }
        if started.elapsed() > Duration::from_secs(20) {
            break Err("it never listened".to_owned());
        }
        std::thread::sleep(Duration::from_micros(100));
    };
    child.kill().and_then(|()| child.wait()).map_err(|err| err.to_string())?;
    answered
}

fn milliseconds(since: Instant) -> f64 {
    since.elapsed().as_secs_f64() * 1e3
}

/// Reloads of a thousand tools while eight clients call one of them.
pub(super) fn reload(programs: &Programs, effort: Effort) -> Result<Vec<Figure>, String> {
    let folder = programs.folder.join("reload");
    scripts(&folder.join("tools"), 999)?;
    fs::copy(&programs.floor, folder.join("tools/floor")).map_err(|err| err.to_string())?;
    let mut orla = Server::start(programs.binary(), &folder, &folder)?;
    let address = orla.address.clone();
    let request = client::call("floor", &json!({}));
    let (over, failed) = (AtomicBool::new(false), AtomicUsize::new(0));
    let load = || -> Result<Vec<()>, String> {
        let mut connection = Connection::open(&address)?;
        let mut calls = Vec::new();
        while !over.load(Ordering::Relaxed) {
            match connection.exchange(&request) {
                Ok(answer) if client::is_good(&answer) => {}
                Ok(_) => {
                    failed.fetch_add(1, Ordering::Relaxed);
                }
                Err(_) => {
                    failed.fetch_add(1, Ordering::Relaxed);
                    connection = Connection::open(&address)?;
                }
            }
            calls.push(());
        }
        Ok(calls)
    };
    let mut reloads = || -> Result<Vec<f64>, String> {
        let mut took = Vec::new();
        for _ in 0..effort.reloads {
            std::thread::sleep(Duration::from_millis(50));
            orla.hang_up()?;
            took.push(orla.wait_for(Duration::from_secs(10), |line| {
                let line: Value = serde_json::from_str(line).ok()?;
                (line["message"] == "reloaded").then(|| line["duration_ms"].as_f64()).flatten()
            })?);
        }
        Ok(took)
    };
    let (took, calls) = std::thread::scope(|scope| {
        let load = scope.spawn(|| client::side_by_side(8, load));
        let took = reloads();
        over.store(true, Ordering::Relaxed);
        (took, load.join())
    });
    let took = took?;
    let calls = calls.map_err(|_| "a worker panicked")??.len();
    let (middle, worst) = (median(took.clone()), took.iter().copied().fold(0.0, f64::max));
    let failed = failed.into_inner();
    Ok(vec![
        Figure::new(
            "reload of 1,000 tools under load",
            format!("p50 {middle:.1} ms, worst {worst:.1} ms of {}", took.len()),
            json!({"p50_ms": middle, "worst_ms": worst}),
        )
        .goal("≤ 50 ms", middle <= 50.0),
        Figure::new(
            "calls that failed meanwhile",
            format!("{failed} of {calls}"),
            json!({"failed": failed, "calls": calls}),
        )
        .goal("0", failed == 0),
    ])
}

/// From saving a capsule's program to the first answer of the new process, beyond what cannot be avoided:
/// the debounce and the start of a process.
pub(super) fn capsule_reload(programs: &Programs, effort: Effort) -> Result<Vec<Figure>, String> {
    let folder = programs.folder.join("capsule-reload");
    fresh(&folder.join("tools"))?;
    let directory = folder.join("tools/echo");
    let watched = format!("  hot_load: {{watch: [main], debounce_ms: {}}}\n", DEBOUNCE.as_millis());
    package(&programs.echo_capsule, &directory, "echo", &watched)?;
    let orla = Server::start(programs.binary(), &folder, &folder)?;
    let mut connection = Connection::open(&orla.address)?;
    let call = client::call("echo", &json!({}));
    let mut ask = || connection.exchange(&call).map(|answer| answer.body.to_vec());
    let mut overheads = Vec::new();
    for _ in 0..effort.reloads {
        let old = ask()?;
        let began = Instant::now();
        drop(Pipes::greeted(&programs.echo_capsule)?);
        let start = began.elapsed();
        // A new file in place of the old one, as editors save.
        fs::copy(&programs.echo_capsule, directory.join("new")).map_err(|err| err.to_string())?;
        let saved = Instant::now();
        fs::rename(directory.join("new"), directory.join("main")).map_err(|err| err.to_string())?;
        while ask()? == old {
            if saved.elapsed() > TIMEOUT {
                return Err("the old process still answers".to_owned());
            }
            std::thread::sleep(Duration::from_micros(500));
        }
        let overhead = saved.elapsed().saturating_sub(DEBOUNCE + start);
        overheads.push(overhead.as_secs_f64() * 1e3);
    }
    let middle = median(overheads);
    Ok(vec![
        Figure::new(
            "saved to served, beyond debounce and process start",
            format!("{middle:.1} ms"),
            json!({"p50_ms": middle}),
        )
        .goal("≤ 20 ms", middle <= 20.0),
    ])
}

/// What a call of a static program takes within the server, by its log.
pub(super) fn inside(programs: &Programs, _effort: Effort) -> Result<Vec<Figure>, String> {
    const CALLS: usize = 1000;
    let folder = programs.folder.join("inside");
    fresh(&folder.join("tools"))?;
    fs::copy(&programs.floor, folder.join("tools/floor")).map_err(|err| err.to_string())?;
    let mut orla = Server::start(programs.binary(), &folder, &folder)?;
    let call = client::call("floor", &json!({}));
    let mut connection = Connection::open(&orla.address)?;
    let (mut spawned, mut took) = (Vec::new(), Vec::new());
    for _ in 0..CALLS {
        let started = Instant::now();
        let output = Command::new(&programs.floor).output().map_err(|err| err.to_string())?;
        spawned.push(started.elapsed().as_secs_f64() * 1e6);
        if !output.status.success() {
            return Err("the floor program failed".to_owned());
        }
        connection.exchange(&call)?;
    }
    for _ in 0..CALLS {
        let milliseconds = orla.wait_for(TIMEOUT, |line| {
            let line: Value = serde_json::from_str(line).ok()?;
            (line["message"] == "call finished").then(|| line["duration_ms"].as_f64()).flatten()
        })?;
        took.push(milliseconds * 1000.0);
    }
    let (floor, p50) = (median(spawned), percentile(took, 50));
    let ratio = p50 / floor;
    Ok(vec![
        Figure::new(
            "tool call in the server, p50 ÷ spawn",
            format!("{ratio:.2} ({p50:.0} of {floor:.0} µs)"),
            json!({"ratio": ratio, "p50_us": p50, "spawn_p50_us": floor}),
        )
        .goal("≤ 1.10", ratio <= 1.10),
    ])
}

/// Calls of a Python script whose process was started before, beside starting it. The calls come so far apart that a process waits.
pub(super) fn prestarted(programs: &Programs, effort: Effort) -> Result<Vec<Figure>, String> {
    let folder = programs.folder.join("prestarted");
    fresh(&folder.join("tools"))?;
    let script = folder.join("tools/script.py");
    executable(&script, PYTHON)?;
    fs::write(folder.join("orla.yaml"), "tools: {script: {prestart: 2}}\n")
        .map_err(|err| err.to_string())?;
    let orla = Server::start(programs.binary(), &folder, &folder)?;
    let mut connection = Connection::open(&orla.address)?;
    let call = client::call("script", &json!({}));
    let (mut spawned, mut alone, mut called) = (Vec::new(), Vec::new(), Vec::new());
    for _ in 0..effort.starts * 4 {
        let started = Instant::now();
        let output =
            Command::new(&script).stdin(Stdio::null()).output().map_err(|err| err.to_string())?;
        let start = started.elapsed();
        spawned.push(start);
        if output.status.code().is_none() {
            return Err("the script was killed".to_owned());
        }
        alone.push(answer_of_started(&script, start * 4)?);
        // Several times what a start takes: this is what calls one after the other would wait for.
        std::thread::sleep(start * 4);
        let asked = Instant::now();
        let is_good = client::is_good(&connection.exchange(&call)?);
        called.push(asked.elapsed());
        if !is_good {
            return Err("a prestarted call failed".to_owned());
        }
    }
    let micros =
        |times: Vec<Duration>| median(times.iter().map(|time| time.as_secs_f64() * 1e6).collect());
    let (spawn, alone, p50) = (micros(spawned), micros(alone), micros(called));
    Ok(vec![
        Figure::new(
            "prestarted Python script, p50",
            format!("{p50:.0} µs (without orla: {alone:.0} µs, started for the call: {spawn:.0} µs)"),
            json!({"p50_us": p50, "alone_p50_us": alone, "spawn_p50_us": spawn}),
        )
        .goal("≤ 1500 µs", p50 <= 1500.0),
    ])
}

/// Starts a script, gives it time to wait for its input, and returns how long it takes from its input to its end.
fn answer_of_started(script: &Path, time: Duration) -> Result<Duration, String> {
    let mut child = Command::new(script)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .map_err(|err| err.to_string())?;
    std::thread::sleep(time);
    let asked = Instant::now();
    if let Some(mut stdin) = child.stdin.take() {
        stdin.write_all(b"{}").map_err(|err| err.to_string())?;
    }
    let output = child.wait_with_output().map_err(|err| err.to_string())?;
    if !output.status.success() {
        return Err("the script failed".to_owned());
    }
    Ok(asked.elapsed())
}

/// Measures the first call after a reload, and the call after it.
pub(super) fn first_call(programs: &Programs, effort: Effort) -> Result<Vec<Figure>, String> {
    let folder = programs.folder.join("first-call");
    fresh(&folder.join("tools"))?;
    package(&programs.echo_capsule, &folder.join("tools/echo"), "echo", "")?;
    let mut orla = Server::start(programs.binary(), &folder, &folder)?;
    let mut connection = Connection::open(&orla.address)?;
    let call = client::call("echo", &json!({}));
    let (mut first, mut second) = (Vec::new(), Vec::new());
    connection.exchange(&call)?;
    for _ in 0..effort.reloads {
        orla.hang_up()?;
        orla.wait_for(TIMEOUT, |line| {
            let line: Value = serde_json::from_str(line).ok()?;
            (line["message"] == "reloaded").then_some(())
        })?;
        for took in [&mut first, &mut second] {
            let asked = Instant::now();
            connection.exchange(&call)?;
            took.push(asked.elapsed().as_secs_f64() * 1e6);
        }
    }
    let (first, second) = (median(first), median(second));
    Ok(vec![Figure::new(
        "first capsule call after a reload",
        format!("{first:.0} µs (the second: {second:.0} µs)"),
        json!({"p50_us": first, "second_p50_us": second}),
    )])
}

/// Makes an empty folder.
pub(crate) fn fresh(folder: &Path) -> Result<(), String> {
    if folder.exists() {
        fs::remove_dir_all(folder).map_err(|err| format!("{}: {err}", folder.display()))?;
    }
    fs::create_dir_all(folder).map_err(|err| format!("{}: {err}", folder.display()))
}

/// Makes a folder of many small tools, each with a description.
fn scripts(folder: &Path, count: usize) -> Result<(), String> {
    fresh(folder)?;
    (0..count).try_for_each(|index| {
        script(
            &folder.join(format!("tool_{index:04}.sh")),
            &format!("# Prints {index}.\necho {index}\n"),
        )
    })
}

pub(super) fn script(path: &Path, body: &str) -> Result<(), String> {
    executable(path, &format!("#!/bin/sh\n{body}"))
}

/// Writes an executable file.
pub(crate) fn executable(path: &Path, text: &str) -> Result<(), String> {
    fs::write(path, text)
        .and_then(|()| fs::set_permissions(path, fs::Permissions::from_mode(0o755)))
        .map_err(|err| format!("{}: {err}", path.display()))
}

/// Makes a package of a program, which is linked and not copied. `more` goes below `runtime`.
pub(crate) fn package(program: &Path, directory: &Path, name: &str, more: &str) -> Result<(), String> {
    fs::create_dir_all(directory).map_err(|err| format!("{}: {err}", directory.display()))?;
    let manifest = format!(
        "name: {name}\nversion: 1.0.0\nentrypoint: main\nruntime:\n  mode: capsule\n  startup_timeout_ms: 30000\n{more}"
    );
    fs::write(directory.join("tool.yaml"), manifest)
        .and_then(|()| fs::hard_link(program, directory.join("main")))
        .map_err(|err| format!("{}: {err}", directory.display()))
}
