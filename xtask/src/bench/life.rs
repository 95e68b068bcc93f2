//! Start, reload under load, and memory.

use std::fs;
use std::os::unix::fs::PermissionsExt as _;
use std::path::Path;
use std::process::{Command, Stdio};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use serde_json::{Value, json};

use super::client::{self, Connection, header};
use super::stats::median;
use super::{Effort, Figure, Programs};
use crate::server::{Server, resident};

/// From starting the program to its first answer, with few and with many tools.
pub(super) fn start(programs: &Programs, effort: Effort) -> Result<Vec<Figure>, String> {
    let mut figures = Vec::new();
    for count in [3, 100, 1000] {
        let folder = programs.folder.join(format!("start-{count}"));
        scripts(&folder.join("tools"), count)?;
        let mut took = Vec::new();
        for _ in 0..effort.starts {
            took.push(first_answer(&programs.orla, &folder)?.as_secs_f64() * 1e3);
        }
        let middle = median(took);
        let figure = Figure::new(
            format!("start to first answer, {count} tools"),
            format!("{middle:.1} ms"),
            json!({"p50_ms": middle}),
        );
        figures.push(if count == 100 { figure.goal("≤ 10 ms", middle <= 10.0) } else { figure });
    }
    Ok(figures)
}

fn first_answer(binary: &Path, folder: &Path) -> Result<Duration, String> {
    let port = std::net::TcpListener::bind("127.0.0.1:0")
        .and_then(|listener| listener.local_addr())
        .map_err(|err| err.to_string())?
        .port();
    let request = client::sessionless("tools/list", json!({}));
    let address = format!("127.0.0.1:{port}");
    let mut command = Command::new(binary);
    command.args(["--port", &port.to_string()]).current_dir(folder);
    command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
    let started = Instant::now();
    let mut child = command.spawn().map_err(|err| err.to_string())?;
    let answered = loop {
        if let Ok(mut connection) = Connection::open(&address) {
            let good = connection.exchange(&request).is_ok_and(|answer| client::is_good(&answer));
            break if good {
                Ok(started.elapsed())
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

/// Reloads of a thousand tools while eight clients call one of them.
pub(super) fn reload(programs: &Programs, effort: Effort) -> Result<Vec<Figure>, String> {
    let folder = programs.folder.join("reload");
    scripts(&folder.join("tools"), 999)?;
    fs::copy(&programs.floor, folder.join("tools/floor")).map_err(|err| err.to_string())?;
    let mut orla = Server::start(&programs.orla, &folder, &folder)?;
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

/// Resident memory: idle, after load, and for each idle session.
pub(super) fn memory(programs: &Programs, effort: Effort) -> Result<Vec<Figure>, String> {
    let folder = programs.folder.join("calls");
    let orla = Server::start(&programs.orla, &folder, &folder)?;
    // One answer, so that whatever is built at the first request is there.
    Connection::open(&orla.address)?.exchange(&client::sessionless("tools/list", json!({})))?;
    let idle = orla.resident()?;
    client::threads(&orla.address, &client::call("floor", &json!({})), 8, effort.round * 2)?;
    let loaded = orla.resident()?;

    drop(orla);

    let orla = Server::start(&programs.orla, &folder, &folder)?;
    let open = |count: usize| client::side_by_side(8, || open_sessions(&orla.address, count / 8));
    // What the first sessions build for all is no part of one.
    open(80)?;
    let before = orla.resident()?;
    let sessions = open(effort.sessions)?.len();
    let each = orla.resident()?.saturating_sub(before) / sessions as u64;
    Ok(vec![
        Figure::new("resident memory, idle", megabytes(idle), json!({"bytes": idle}))
            .goal("≤ 10 MB", idle <= 10_000_000),
        Figure::new("resident memory, loaded", megabytes(loaded), json!({"bytes": loaded})),
        Figure::new(
            format!("each of {sessions} idle sessions"),
            format!("{:.1} KB", each as f64 / 1e3),
            json!({"bytes": each}),
        )
        .goal("≤ 20 KB", each <= 20_000),
    ])
}

/// Opens sessions of the last revision that has them, and leaves them.
fn open_sessions(address: &str, count: usize) -> Result<Vec<()>, String> {
    let initialize = client::post(
        "/mcp",
        &[],
        &json!({"jsonrpc": "2.0", "id": 1, "method": "initialize", "params": {
            "protocolVersion": "2025-11-25",
            "capabilities": {},
            "clientInfo": {"name": "bench", "version": "1"},
        }}),
    );
    let mut connection = Connection::open(address)?;
    for _ in 0..count {
        let answer = connection.exchange(&initialize)?;
        let session = header(answer.head, "mcp-session-id").ok_or("no session was opened")?.to_owned();
        let initialized = client::post(
            "/mcp",
            &[("mcp-session-id", &session), ("mcp-protocol-version", "2025-11-25")],
            &json!({"jsonrpc": "2.0", "method": "notifications/initialized"}),
        );
        connection.exchange(&initialized)?;
    }
    Ok(vec![(); count])
}

/// How the server grows while a tool writes 1 GB.
pub(super) fn flood(programs: &Programs, _effort: Effort) -> Result<Vec<Figure>, String> {
    let folder = programs.folder.join("flood");
    fresh(&folder.join("tools"))?;
    script(&folder.join("tools/flood.sh"), "# Writes 1 GB.\nexec head -c 1000000000 /dev/zero\n")?;
    let orla = Server::start(&programs.orla, &folder, &folder)?;
    Connection::open(&orla.address)?.exchange(&client::sessionless("tools/list", json!({})))?;
    let (pid, before) = (orla.pid(), orla.resident()?);
    let over = AtomicBool::new(false);
    let started = Instant::now();
    let (answered, highest) = std::thread::scope(|scope| {
        let watch = scope.spawn(|| {
            let mut highest = before;
            while !over.load(Ordering::Relaxed) {
                highest = highest.max(resident(pid).unwrap_or(0));
                std::thread::sleep(Duration::from_millis(2));
            }
            highest
        });
        let answered = Connection::open(&orla.address).and_then(|mut connection| {
            connection
                .exchange(&client::call("flood", &json!({})))
                .map(|answer| client::is_good(&answer))
        });
        over.store(true, Ordering::Relaxed);
        (answered, watch.join())
    });
    if !answered? {
        return Err("the call failed".to_owned());
    }
    let took = started.elapsed().as_secs_f64();
    let growth = highest.map_err(|_| "the watch panicked")?.saturating_sub(before);
    Ok(vec![
        Figure::new(
            "growth while a tool writes 1 GB",
            format!("{} (in {took:.1} s)", megabytes(growth)),
            json!({"bytes": growth, "seconds": took}),
        )
        .goal("< 64 MB", growth < 64_000_000),
    ])
}

fn megabytes(bytes: u64) -> String {
    format!("{:.1} MB", bytes as f64 / 1e6)
}

/// An empty folder.
pub(super) fn fresh(folder: &Path) -> Result<(), String> {
    if folder.exists() {
        fs::remove_dir_all(folder).map_err(|err| format!("{}: {err}", folder.display()))?;
    }
    fs::create_dir_all(folder).map_err(|err| format!("{}: {err}", folder.display()))
}

/// A folder of many small tools, each with a description.
fn scripts(folder: &Path, count: usize) -> Result<(), String> {
    fresh(folder)?;
    (0..count).try_for_each(|index| {
        script(
            &folder.join(format!("tool_{index:04}.sh")),
            &format!("# Prints {index}.\necho {index}\n"),
        )
    })
}

fn script(path: &Path, body: &str) -> Result<(), String> {
    fs::write(path, format!("#!/bin/sh\n{body}"))
        .and_then(|()| fs::set_permissions(path, fs::Permissions::from_mode(0o755)))
        .map_err(|err| format!("{}: {err}", path.display()))
}
