//! What tasks cost beside plain calls, beside what the disk takes, and a thousand at once; and how often a program of very many
//! calls waits for the disk.

use std::fs::{self, File, Permissions};
use std::io::Write as _;
use std::os::unix::fs::PermissionsExt as _;
use std::path::Path;
use std::time::Instant;

use serde_json::json;

use super::{Context, ask, figure, get, problem, start, strace, write};
use crate::bench::client::{self, Connection};
use crate::bench::report::Figure;
use crate::bench::stats::median;
use crate::bench::tasks;
use crate::server::{self, Server};

/// Rounds of each measurement, and where it has to be quick.
const ROUNDS: (usize, usize) = (5, 1);
/// How many tasks are accepted at once.
const AT_ONCE: usize = 1_000;
/// How many calls a program makes that are noted, and how many where it has to be quick.
const CALLS: (usize, usize) = (10_000, 1_000);
/// The processes that answer them.
const PROCESSES: usize = 4;

/// A plugin that adds one.
const PLUGIN: &str = r#"#!/usr/bin/env python3
import json, sys
for call in map(json.loads, sys.stdin):
    if call.get("function") == "describe":
        ok = {"functions": [{"name": "add", "description": "Adds one.", "input_schema": {"n": "number"}}]}
    elif call.get("function") == "add":
        ok = {"n": call["input"]["n"] + 1}
    else:
        continue
    print(json.dumps({"id": call["id"], "ok": ok}), flush=True)
"#;

pub(super) fn run(context: &mut Context) -> Result<(), String> {
    let (folder, rounds) = (context.folder("cost")?, context.some(ROUNDS.0, ROUNDS.1));
    let mut figures = tasks::acceptance(&context.orla, &folder, rounds)?;
    let beside_the_disk = figures.first().and_then(|figure| {
        Some(figure.values["task_us"].as_f64()? / figure.values["fdatasync_us"].as_f64()?)
    });
    figures.extend(tasks::durable(&context.orla, &folder, rounds)?);
    figures.push(at_once(&context.orla, &folder, rounds * 3)?);
    for Figure { what, measured, goal, .. } in &figures {
        let (goal, is_met) = goal.as_ref().map_or(("none", true), |(goal, is_met)| (goal, *is_met));
        figure(what, measured, goal, is_met);
    }
    let times = beside_the_disk.ok_or("an acceptance without its figures")?;
    let text = format!("{times:.2} × one fdatasync");
    figure("an accepted task, with its request and its answer", &text, "≤ 1.5 ×", times <= 1.5);
    context.tally.check("tasks are accepted one by one and a thousand at once, and end", Ok(()));
    syncs(context)
}

/// Counts the syncs of a program whose calls leave the process. Each call is recorded before it begins.
fn syncs(context: &mut Context) -> Result<(), String> {
    if !strace::is_there() {
        println!("      left out: the syncs of a program, which need strace");
        return Ok(());
    }
    let (folder, calls) = (context.folder("syncs")?, context.some(CALLS.0, CALLS.1));
    let plugin = folder.join("plugin.py");
    write(&plugin, PLUGIN)?;
    fs::set_permissions(&plugin, Permissions::from_mode(0o755)).map_err(problem(&plugin))?;
    let configuration = format!(
        "plugins: {{add: {{path: ./plugin.py, processes: {PROCESSES}}}}}\nrtfs: {{calls: {calls}}}\n"
    );
    write(&folder.join("orla.yaml"), &configuration)?;
    let record = folder.canonicalize().map_err(problem(&folder))?.join("strace");
    let command = strace::command(&context.orla, &folder, &record, &["-e", "trace=fsync,fdatasync"]);
    let server = Server::listening(command, &folder.join("server.log"), server::address)?;
    let mut connection = Connection::open(&server.address)?;
    let program = format!("(reduce + 0 (pmap (fn [n] (:n (call :add {{:n n}}))) (range {calls})))");
    let id = start(&mut connection, &json!({"program": program}))?;
    let task = loop {
        let task = ask(&mut connection, &get(&format!("/tasks/{id}?wait=60")), 200)?;
        if task["state"] != "queued" && task["state"] != "working" {
            break task;
        }
    };
    drop(connection);
    strace::end(server, &record)?;
    let record = fs::read_to_string(&record).map_err(problem(&record))?;
    // A call that another thread interrupts has two lines.
    let syncs = record.lines().filter(|line| line.contains("sync(")).count();
    let each = syncs as f64 / calls as f64;
    let text = format!("{syncs} syncs, {each:.2} for each call");
    let what = format!("a program of {calls} calls in `pmap`, of {PROCESSES} processes");
    figure(&what, &text, "≤ 0.5 for each call", each <= 0.5);
    let result = match task["result"]["value"].as_u64() == Some((calls * (calls + 1) / 2) as u64) {
        true => Ok(()),
        false => Err(task.to_string()),
    };
    context.tally.check("its result is that of all calls", result);
    Ok(())
}

/// Tasks of as many clients, from the first request to the last answer, between rounds of `fdatasync`.
fn at_once(orla: &Path, folder: &Path, rounds: usize) -> Result<Figure, String> {
    let (folder, server) = tasks::serve(orla, folder, "at-once")?;
    let path = folder.join("disk");
    let mut disk = File::create(&path).map_err(problem(&path))?;
    let request = client::post("/tasks", &[], &json!({"program": "(+ 1 2)"}));
    let mut clients =
        (0..AT_ONCE).map(|_| Connection::open(&server.address)).collect::<Result<Vec<_>, _>>()?;
    // Its first answer is not the first one of a connection.
    for client in &mut clients {
        client.exchange(&get("/tasks?limit=1"))?;
    }
    let (mut times, mut syncs) = (Vec::new(), Vec::new());
    for _ in 0..rounds {
        for _ in 0..20 {
            let began = Instant::now();
            disk.write_all(&[0; 4096]).and_then(|()| disk.sync_data()).map_err(problem(&path))?;
            syncs.push(began.elapsed().as_secs_f64() * 1e3);
        }
        let began = Instant::now();
        for client in &mut clients {
            client.send(&request)?;
        }
        for client in &mut clients {
            let answer = client.answered()?;
            if answer.status != 202 {
                return Err(format!("unexpected answer: {}", String::from_utf8_lossy(answer.body)));
            }
        }
        times.push(began.elapsed().as_secs_f64() * 1e3);
    }
    let [time, sync] = [times, syncs].map(median);
    let text = format!("{time:.1} ms; fdatasync {sync:.2} ms");
    let figure = Figure::new(
        "a thousand tasks accepted at once",
        text,
        json!({"ms": time, "fdatasync_ms": sync}),
    );
    Ok(figure.goal("30 ms + 3 fdatasync", time <= 30.0 + 3.0 * sync))
}
