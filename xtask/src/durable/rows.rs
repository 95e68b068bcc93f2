//! How long a start takes that opens a state with very many rows, beside one that opens a small state.

use std::path::Path;
use std::process::Command;
use std::time::{Duration, Instant};

use serde_json::json;

use super::{Context, TIMEOUT, all_tasks, ask, figure, get, start};
use crate::bench::client::Connection;
use crate::bench::stats::{median, percentile};
use crate::process;
use crate::server::Server;

/// How many rows there are, and how many where it has to be quick.
const ROWS: (usize, usize) = (1_000_000, 20_000);
/// How often each of the two starts.
const STARTS: (usize, usize) = (15, 5);
/// What opening may take, in milliseconds.
const GOAL: f64 = 50.0;

/// Copies all rows of the one task in a state, until there are so many.
const COPY: &str = r#"
import sqlite3, sys
path, count = sys.argv[1], int(sys.argv[2])
state = sqlite3.connect(path)
rows = state.execute("SELECT key, revision, value FROM records").fetchall()
[task] = [key[5:] for key, _, _ in rows if key.startswith("task/")]
of = [row for row in rows if task in row[0]]
def copies():
    made, number = len(rows), 0
    while made < count:
        number += 1
        id = task[:-12] + format(number, "012x")
        for key, revision, value in of:
            yield key.replace(task, id), revision, value.replace(task.encode(), id.encode())
            made += 1
state.executemany("INSERT INTO records (key, revision, value) VALUES (?, ?, ?)", copies())
state.commit()
for of in ("", " WHERE key LIKE 'task/%'"):
    print(state.execute("SELECT count(*) FROM records" + of).fetchone()[0])
"#;

pub(super) fn run(context: &mut Context) -> Result<(), String> {
    let (count, starts) = (context.some(ROWS.0, ROWS.1), context.some(STARTS.0, STARTS.1));
    let folder = context.folder("rows")?;
    let [small, large] = ["small", "large"].map(|name| folder.join(name));
    for folder in [&small, &large] {
        std::fs::create_dir_all(folder).map_err(super::problem(folder))?;
        one_task(&context.orla, folder)?;
    }
    let (rows, tasks) = copy(&large, count)?;
    let (mut smalls, mut larges, mut killed) = (Vec::new(), Vec::new(), Vec::new());
    for _ in 0..starts {
        for (folder, times) in [(&small, &mut smalls), (&large, &mut larges)] {
            let (server, took) = first_list(&context.orla, folder)?;
            times.push(took);
            if !server.end(TIMEOUT)?.success() {
                return Err("the server did not end well".to_owned());
            }
        }
        // What was killed has a log beside its file.
        let (server, _) = first_list(&context.orla, &large)?;
        start(&mut Connection::open(&server.address)?, &json!({"program": "1"}))?;
        server.kill()?;
        let (server, took) = first_list(&context.orla, &large)?;
        killed.push(took);
        drop(server);
    }
    let most = percentile(larges.clone(), 100);
    let [small, large, killed] = [smalls, larges, killed].map(median);
    let text = format!(
        "{:.1} ms more than the small one with its {small:.1} ms (most: {:.1}; after a kill: {:.1})",
        large - small,
        most - small,
        killed - small
    );
    let what = format!("a start that opens {rows} rows and lists the newest tasks");
    figure(&what, &text, "≤ 50 ms", large - small <= GOAL);
    let server = Server::start(&context.orla, &folder.join("large"), &folder)?;
    let listed = all_tasks(&mut Connection::open(&server.address)?)?.len();
    // Each kill came after one more.
    let result = match tasks + starts {
        expected if expected == listed => Ok(format!("{listed} tasks")),
        expected => Err(format!("{listed} of {expected} tasks are listed")),
    };
    context.seen(&format!("no task of {rows} rows is lost"), result);
    Ok(())
}

/// Makes the state of a stopped server with one completed task.
fn one_task(orla: &Path, folder: &Path) -> Result<(), String> {
    let server = Server::start(orla, folder, folder)?;
    let mut connection = Connection::open(&server.address)?;
    let id = start(&mut connection, &json!({"program": "(+ 1 2)"}))?;
    let task = ask(&mut connection, &get(&format!("/tasks/{id}?wait=20")), 200)?;
    if task["state"] != "completed" {
        return Err(format!("it is not completed: {task}"));
    }
    drop(connection);
    let ended = server.end(TIMEOUT)?;
    if ended.success() { Ok(()) } else { Err(format!("the server ended with {ended}")) }
}

/// Makes the state larger. Gives how many rows and tasks it has.
fn copy(folder: &Path, count: usize) -> Result<(usize, usize), String> {
    let mut python = Command::new("python3");
    python.args(["-c", COPY]).arg(folder.join(".orla/state.db")).arg(count.to_string());
    let done = process::run(&mut python, folder, Duration::from_secs(600))?.stdout_of_success()?;
    let numbers: Vec<usize> = done.lines().filter_map(|line| line.parse().ok()).collect();
    match numbers[..] {
        [rows, tasks] => Ok((rows, tasks)),
        _ => Err(done),
    }
}

/// Returns how many milliseconds pass from a start until the first tasks are listed.
fn first_list(orla: &Path, folder: &Path) -> Result<(Server, f64), String> {
    let began = Instant::now();
    let server = Server::start(orla, folder, folder)?;
    let listed = ask(&mut Connection::open(&server.address)?, &get("/tasks?limit=100"), 200)?;
    let took = began.elapsed().as_secs_f64() * 1e3;
    if listed.as_array().is_some_and(|listed| !listed.is_empty()) {
        Ok((server, took))
    } else {
        Err(format!("no tasks: {listed}"))
    }
}
