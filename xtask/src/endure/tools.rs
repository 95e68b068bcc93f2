//! Runs of tools that are executables.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use serde_json::{Value, json};

use super::load;
use super::watch::{processes_in, until};
use super::{World, ensure};
use crate::bench::client::{self, Connection, header};
use crate::server::peak;

const TIMEOUT: Duration = Duration::from_secs(60);

/// Calls during a hundred reloads: none fails, and who connected before a tool was removed still calls it.
pub(super) fn reload(world: &World) -> Result<String, String> {
    for name in ["steady", "leaving"] {
        world.executable(&format!("tools/{name}"), &format!("#!/bin/sh\necho {name}\n"))?;
    }
    let mut orla = world.serve("timeout: 20\n")?;
    let address = orla.address.clone();
    let mut old = Session::open(&address)?;
    let (count, reloads) = (world.some(10_000), world.some(100));
    let call = client::call("steady", &json!({}));
    let (answers, done, kept) = std::thread::scope(|scope| {
        let load = scope.spawn(|| load::calls(&address, &call, 16, count, |_| true));
        let (mut done, mut kept) = (0, 0);
        let mut work = || {
            while done < reloads {
                if done == reloads / 2 {
                    world.write("orla.yaml", "timeout: 20\ndeny: [leaving]\n")?;
                }
                orla.hang_up()?;
                orla.wait_for(TIMEOUT, |line| {
                    let line: Value = serde_json::from_str(line).ok()?;
                    (line["message"] == "reloaded").then_some(())
                })?;
                done += 1;
                old.call("leaving")?;
                kept += 1;
            }
            Ok::<(), String>(())
        };
        let reloaded = work();
        let answers = load.join().map_err(|_| "the load panicked")??;
        reloaded?;
        Ok::<_, String>((answers, done, kept))
    })?;
    ensure(answers.good == count, || format!("{}; {}", answers.shown(), answers.first_problem()))?;
    let gone = Connection::open(&address)?
        .exchange(&client::call("leaving", &json!({})))
        .map(|answer| !client::is_good(&answer))?;
    ensure(gone, || "who comes now still finds the tool that was removed".to_owned())?;
    let status = orla.end(TIMEOUT)?;
    ensure(status.success(), || format!("it ended with {status}"))?;
    Ok(format!(
        "{}; {done} reloads, {kept} calls of a session that is older than the removal",
        answers.shown()
    ))
}

/// A storm on a prestarted tool, whose file changes meanwhile: every caller gets its own answer, and a server that is killed
/// leaves no process that waited.
pub(super) fn prestart(world: &World) -> Result<String, String> {
    const CLIENTS: usize = 8;
    let tool = |note: usize| {
        format!(
            "#!/bin/sh\n# /// orla\n# description: Gives back what it gets, {note}.\n# prestart: 4\n# ///\n\
             IFS= read -r given\nprintf '%s %s\\n' \"${{ORLA_CALL_ID:-waited}}\" \"$given\"\n"
        )
    };
    world.executable("tools/echo", &tool(0))?;
    let mut orla = world.serve("timeout: 20\n")?;
    let (address, server) = (orla.address.clone(), orla.pid());
    let (each, changes) = (world.some(10_000) / CLIENTS, world.some(20));
    let (numbers, waited) = (AtomicUsize::new(0), AtomicUsize::new(0));
    let call_all = || {
        let mut connection = Connection::open(&address)?;
        (0..each).try_for_each(|_| {
            let number = numbers.fetch_add(1, Ordering::Relaxed);
            let answer = connection.exchange(&client::call("echo", &json!({"number": number})))?;
            let result: Value = serde_json::from_slice(answer.body).map_err(|err| err.to_string())?;
            let given = result["result"]["structuredContent"]["stdout"].as_str().unwrap_or_default();
            let (of, given) = given.split_once(' ').unwrap_or_default();
            let given: Value = serde_json::from_str(given).map_err(|err| format!("{err}: {result}"))?;
            // The environment of a process that waited is older than the call.
            waited.fetch_add(usize::from(of == "waited"), Ordering::Relaxed);
            ensure(given["number"] == number, || format!("call {number}: {result}"))
        })?;
        Ok(Vec::<()>::new())
    };
    std::thread::scope(|scope| {
        let load = scope.spawn(|| client::side_by_side(CLIENTS, call_all));
        let mut change = |note| {
            world.executable("tools/echo", &tool(note))?;
            orla.hang_up()?;
            orla.wait_for(TIMEOUT, |line| {
                let line: Value = serde_json::from_str(line).ok()?;
                (line["message"] == "reloaded").then_some(())
            })
        };
        let changed = (1..=changes).try_for_each(&mut change);
        load.join().map_err(|_| "the load panicked")??;
        changed
    })?;
    let waiting = || processes_in(&world.folder).into_iter().filter(|id| *id != server).count();
    until(TIMEOUT, "four wait for the next calls", || waiting() >= 4)?;
    orla.kill()?;
    let took = until(Duration::from_secs(10), "nothing is left", || waiting() == 0)?;
    let (calls, waited) = (numbers.into_inner(), waited.into_inner());
    ensure(waited > 0, || "no call found a process that waited".to_owned())?;
    Ok(format!(
        "{calls} calls, {waited} by processes that waited, {changes} changes of the file; what waited was gone {:.0} ms after the server",
        took.as_secs_f64() * 1e3
    ))
}

/// A tool writes 1 GB. The server keeps what fits, and its memory grows little.
pub(super) fn flood(world: &World) -> Result<String, String> {
    world.executable("tools/flood", "#!/bin/sh\nexec head -c 1000000000 /dev/zero\n")?;
    let orla = world.serve("")?;
    Connection::open(&orla.address)?.exchange(&client::sessionless("tools/list", json!({})))?;
    let before = orla.resident()?;
    let answers = load::calls(&orla.address, &client::call("flood", &json!({})), 1, 1, |_| true)?;
    ensure(answers.good == 1, || answers.first_problem())?;
    let grown = peak(orla.pid())?.saturating_sub(before);
    ensure(grown < 64_000_000, || format!("it grew by {grown} bytes"))?;
    Ok(format!("grown by {:.1} MB in {:.1} s", grown as f64 / 1e6, answers.slowest.as_secs_f64()))
}

/// A server that is killed while fifty tools run leaves none of them behind.
pub(super) fn kill(world: &World) -> Result<String, String> {
    const TOOLS: usize = 50;
    // Half of them ignore what they are asked, and all have a child in a group of its own.
    let script =
        "#!/bin/sh\n[ \"$1\" = --deaf ] && trap '' TERM HUP INT PIPE\nsetsid sleep 1000 &\nsleep 1000\n";
    world.executable("tools/slow", script)?;
    // One provider may have three quarters of the permits.
    let orla = world.serve("timeout: 1000\nmax_concurrency: 100\n")?;
    let server = orla.pid();
    let running = || {
        let mut ids = processes_in(&world.folder);
        ids.retain(|id| *id != server);
        ids
    };
    let mut connections = Vec::new();
    for number in 0..TOOLS {
        let mut connection = Connection::open(&orla.address)?;
        let arguments = if number % 2 == 0 { json!({"deaf": true}) } else { json!({}) };
        connection.send(&client::call("slow", &arguments))?;
        connections.push(connection);
    }
    // The shell and both of its children.
    until(TIMEOUT, "all tools run", || running().len() >= 3 * TOOLS)?;
    let before = running().len();
    orla.kill()?;
    let took = until(Duration::from_secs(10), "nothing is left", || running().is_empty())?;
    Ok(format!("{before} processes were gone {:.0} ms after the server", took.as_secs_f64() * 1e3))
}

/// A session of the last revision that has them.
struct Session {
    connection: Connection,
    id: String,
}

impl Session {
    /// Opens a session and lists its tools.
    fn open(address: &str) -> Result<Self, String> {
        let mut connection = Connection::open(address)?;
        let body = json!({"jsonrpc": "2.0", "id": 1, "method": "initialize", "params": {
            "protocolVersion": "2025-11-25",
            "capabilities": {},
            "clientInfo": {"name": "endure", "version": "1"},
        }});
        let answer = connection.exchange(&client::post("/mcp", &[], &body))?;
        let id = header(answer.head, "mcp-session-id").ok_or("no session was opened")?.to_owned();
        let mut session = Self { connection, id };
        session.ask("tools/list", json!({}))?;
        Ok(session)
    }

    fn call(&mut self, tool: &str) -> Result<(), String> {
        self.ask("tools/call", json!({"name": tool, "arguments": {}}))
    }

    #[expect(clippy::needless_pass_by_value, reason = "calls read as `ask(method, json!(…))`")]
    fn ask(&mut self, method: &str, params: Value) -> Result<(), String> {
        let headers = [("mcp-session-id", self.id.as_str()), ("mcp-protocol-version", "2025-11-25")];
        let body = json!({"jsonrpc": "2.0", "id": 2, "method": method, "params": params});
        let answer = self.connection.exchange(&client::post("/mcp", &headers, &body))?;
        ensure(client::is_good(&answer), || String::from_utf8_lossy(answer.body).into_owned())
    }
}
