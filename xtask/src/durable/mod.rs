//! Durable work, shown on the release binary.
//!
//! - [`kills`]: a program whose server is killed after every step, and a counter outside that sees each of its calls.
//! - [`sleepers`]: very many programs that sleep over a kill of their server: what each takes, and when it wakes.
//! - [`sdk`]: the official SDK's client and a task across a kill of the server.
//! - [`power`]: what a loss of power leaves, at any moment, of what was not synced.
//! - [`rows`]: how long a start takes that opens a large state.
//! - [`cost`]: tasks beside plain calls, and beside what the disk takes.
//! - [`files`]: states that cannot be used.
//!
//! A goal of speed that is missed is shown and is no failure: that depends on the machine, and on what else it does. What is
//! lost, doubled or changed is a failure.

mod cost;
mod files;
pub(crate) mod kills;
mod power;
mod rows;
mod sdk;
mod sleepers;
mod strace;

use std::fs;
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use serde_json::Value;

use crate::Outcome;
use crate::bench::client::{self, Connection};
use crate::parts::{self, Parts};
use crate::server;
use crate::tally::Tally;

/// How long anything may take that is waited for.
const TIMEOUT: Duration = Duration::from_secs(60);

/// What the parts share.
struct Context {
    orla: PathBuf,
    folder: PathBuf,
    is_quick: bool,
    tally: Tally,
}

type Part = fn(&mut Context) -> Result<(), String>;

const PARTS: &[(&str, Part)] = &[
    ("kills", kills::run),
    ("sleepers", sleepers::run),
    ("sdk", sdk::run),
    ("power", power::run),
    ("rows", rows::run),
    ("cost", cost::run),
    ("files", files::run),
];

/// Runs the named parts, or all of them.
pub(crate) fn run(arguments: &[String]) -> Outcome {
    let known: Vec<&str> = PARTS.iter().map(|(name, _)| *name).collect();
    let parts = Parts::of(arguments, &[parts::QUICK], &known)?;
    let mut context = Context {
        orla: server::binary()?,
        folder: crate::target("durable")?,
        is_quick: parts.is_quick,
        tally: Tally::default(),
    };
    for (name, part) in PARTS.iter().filter(|(name, _)| parts.has(name)) {
        let began = Instant::now();
        part(&mut context)?;
        println!("      {name} took {:.1} s", began.elapsed().as_secs_f64());
    }
    Ok(context.tally.close())
}

impl Context {
    /// Returns an empty folder for one part.
    fn folder(&self, name: &str) -> Result<PathBuf, String> {
        let folder = self.folder.join(name);
        if folder.exists() {
            fs::remove_dir_all(&folder).map_err(problem(&folder))?;
        }
        fs::create_dir_all(&folder).map_err(problem(&folder))?;
        Ok(folder)
    }

    /// Returns a count, or what is enough of it where it has to be quick.
    fn some(&self, count: usize, quick: usize) -> usize {
        if self.is_quick { quick } else { count }
    }

    /// Counts a check that says what it has seen.
    fn seen(&mut self, what: &str, result: Result<String, String>) {
        match result {
            Ok(seen) => self.tally.check(&format!("{what}: {seen}"), Ok(())),
            Err(why) => self.tally.check(what, Err(why)),
        }
    }
}

/// Shows what was measured beside its goal.
fn figure(what: &str, measured: &str, goal: &str, is_met: bool) {
    println!("      {what}: {measured} (goal {goal}: {})", if is_met { "met" } else { "missed" });
}

fn problem(path: &Path) -> impl Fn(std::io::Error) -> String {
    move |err| format!("{}: {err}", path.display())
}

fn write(path: &Path, text: &str) -> Result<(), String> {
    fs::write(path, text).map_err(problem(path))
}

/// Writes a tool into a folder: a shell script with its block.
fn tool(folder: &Path, name: &str, block: &str, script: &str) -> Result<(), String> {
    let tools = folder.join("tools");
    fs::create_dir_all(&tools).map_err(problem(&tools))?;
    let path = tools.join(name);
    let block: String = block.lines().map(|line| format!("# {line}\n")).collect();
    write(&path, &format!("#!/bin/sh\n# /// orla\n{block}# ///\n{script}\n"))?;
    fs::set_permissions(&path, fs::Permissions::from_mode(0o755)).map_err(problem(&path))
}

/// Returns the lines of a file, none if it is not there.
fn lines(path: &Path) -> Vec<String> {
    fs::read_to_string(path)
        .map_or_else(|_| Vec::new(), |text| text.lines().map(str::to_owned).collect())
}

fn get(path: &str) -> Vec<u8> {
    format!("GET {path} HTTP/1.1\r\nhost: localhost\r\n\r\n").into_bytes()
}

/// Asks for JSON, and expects an answer of this status.
fn ask(connection: &mut Connection, request: &[u8], status: u16) -> Result<Value, String> {
    let answer = connection.exchange(request)?;
    if answer.status != status {
        return Err(format!("unexpected answer: {}", String::from_utf8_lossy(answer.body)));
    }
    serde_json::from_slice(answer.body).map_err(|err| err.to_string())
}

/// Starts a task. Gives its id.
fn start(connection: &mut Connection, task: &Value) -> Result<String, String> {
    let accepted = ask(connection, &client::post("/tasks", &[], task), 202)?;
    accepted["id"].as_str().map(str::to_owned).ok_or_else(|| "a task without an id".to_owned())
}

/// Returns all tasks of a server, the newest first.
pub(crate) fn all_tasks(connection: &mut Connection) -> Result<Vec<Value>, String> {
    let mut all: Vec<Value> = Vec::new();
    loop {
        let before = all.last().and_then(|task| task["id"].as_str()).map(|id| format!("&before={id}"));
        let page = get(&format!("/tasks?limit=1000{}", before.unwrap_or_default()));
        let Value::Array(page) = ask(connection, &page, 200)? else { return Err("no array".to_owned()) };
        if page.is_empty() {
            return Ok(all);
        }
        all.extend(page);
    }
}
