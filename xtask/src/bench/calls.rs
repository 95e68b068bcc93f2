//! Calls: a tool beside spawning the same program, a capability beside a bare handler.

use std::path::Path;
use std::process::Command;
use std::time::{Duration, Instant};

use serde_json::{Value, json};

use super::client::{self, Connection};
use super::stats::{Round, Rounds, percentile};
use super::{Effort, Figure, Programs};
use crate::server::Server;

/// How many clients call at once.
const CLIENTS: [usize; 2] = [1, 8];

/// A call of a one-shot tool over keep-alive HTTP against spawning its program directly.
pub(super) fn tools(programs: &Programs, effort: Effort) -> Result<Vec<Figure>, String> {
    let folder = programs.folder.join("calls");
    super::life::fresh(&folder.join("tools"))?;
    std::fs::copy(&programs.floor, folder.join("tools/floor")).map_err(|err| err.to_string())?;
    let mut orla = Server::start(&programs.orla, &folder, &folder)?;
    let echo = example(&programs.bare_echo, &programs.folder)?;
    let call = client::call("floor", &json!({}));
    let mut figures = Vec::new();
    for clients in CLIENTS {
        let (mut direct, mut served, mut bare) =
            (Rounds::default(), Rounds::default(), Rounds::default());
        for _ in 0..effort.rounds {
            direct.0.push(spawn(&programs.floor, clients, effort.round)?);
            served.0.push(client::threads(&orla.address, &call, clients, effort.round)?);
            bare.0.push(client::threads(&echo.address, &call, clients, effort.round / 3)?);
        }
        for (side, rounds) in
            [("spawned directly", &direct), ("over HTTP", &served), ("bare echo", &bare)]
        {
            figures.push(line(side, clients, rounds));
        }
        if clients == 1 {
            let floor = direct.micros(50) + bare.micros(50);
            let ratio = served.micros(50) / floor;
            figures.push(
                Figure::new(
                    "tool call, p50 over HTTP ÷ (spawn + bare echo)",
                    format!("{ratio:.2}"),
                    json!({"ratio": ratio}),
                )
                .goal("≤ 1.15", ratio <= 1.15),
            );
            let inside = inside(&mut orla, &call)?;
            let ratio = inside / direct.micros(50);
            figures.push(
                Figure::new(
                    "tool call, p50 in the server ÷ spawn",
                    format!("{ratio:.2} ({inside:.0} µs)"),
                    json!({"ratio": ratio, "p50_us": inside}),
                )
                .goal("≤ 1.10", ratio <= 1.10),
            );
        } else {
            let ratio = served.rate() / direct.rate();
            figures.push(
                Figure::new(
                    format!("tool call, {clients} clients, calls/s ÷ direct"),
                    format!("{ratio:.2}"),
                    json!({"ratio": ratio}),
                )
                .goal("≥ 0.95", ratio >= 0.95),
            );
        }
    }
    Ok(figures)
}

/// A capability that needs no process, against a bare handler that echoes the same JSON.
pub(super) fn capability(programs: &Programs, effort: Effort) -> Result<Vec<Figure>, String> {
    let orla = example(&programs.embedded, &programs.folder)?;
    let echo = example(&programs.bare_echo, &programs.folder)?;
    let call = client::call("echo", &json!({"city": "Paris", "count": 3}));
    let mut figures = Vec::new();
    for connections in CLIENTS {
        let (mut served, mut bare) = (Rounds::default(), Rounds::default());
        for _ in 0..effort.rounds {
            served.0.push(client::polled(&orla.address, &call, connections, effort.round)?);
            bare.0.push(client::polled(&echo.address, &call, connections, effort.round)?);
        }
        let ratio = served.rate() / bare.rate();
        figures.push(
            Figure::new(
                format!("capability ÷ bare echo, {connections} connections"),
                format!(
                    "{ratio:.2} ({:.0} of {:.0} requests/s, p50 {:.0} and {:.0} µs)",
                    served.rate(),
                    bare.rate(),
                    served.micros(50),
                    bare.micros(50)
                ),
                json!({"ratio": ratio, "requests_per_s": served.rate(), "bare_requests_per_s": bare.rate()}),
            )
            .goal("≥ 0.70", ratio >= 0.70),
        );
    }
    Ok(figures)
}

fn line(side: &str, clients: usize, rounds: &Rounds) -> Figure {
    let (p50, p99, rate) = (rounds.micros(50), rounds.micros(99), rounds.rate());
    Figure::new(
        format!("tool call, {clients} client{}, {side}", if clients == 1 { "" } else { "s" }),
        format!("p50 {p50:.0} µs, p99 {p99:.0} µs, {rate:.0}/s"),
        json!({"p50_us": p50, "p99_us": p99, "per_s": rate}),
    )
}

/// The floor: spawn, capture both outputs, wait.
fn spawn(program: &Path, clients: usize, time: Duration) -> Result<Round, String> {
    let started = Instant::now();
    let latencies = client::side_by_side(clients, || {
        let mut latencies = Vec::new();
        while started.elapsed() < time {
            let asked = Instant::now();
            let output = Command::new(program).output().map_err(|err| err.to_string())?;
            latencies.push(asked.elapsed());
            if output.stdout != b"ok\n" {
                return Err("the floor program did not answer".to_owned());
            }
        }
        Ok(latencies)
    })?;
    Ok(Round { latencies, elapsed: started.elapsed() })
}

/// The median of what the server's log says that a call took, in microseconds.
fn inside(orla: &mut Server, call: &[u8]) -> Result<f64, String> {
    const CALLS: usize = 1000;
    while orla.next_line()?.is_some() {}
    let mut connection = Connection::open(&orla.address)?;
    for _ in 0..CALLS {
        connection.exchange(call)?;
    }
    let mut took = Vec::new();
    for _ in 0..CALLS {
        let milliseconds = orla.wait_for(Duration::from_secs(5), |line| {
            let line: Value = serde_json::from_str(line).ok()?;
            (line["message"] == "call finished").then(|| line["duration_ms"].as_f64()).flatten()
        })?;
        took.push(milliseconds * 1000.0);
    }
    Ok(percentile(took, 50))
}

/// One of the server crate's examples, which says where it listens on its first line.
pub(super) fn example(binary: &Path, folder: &Path) -> Result<Server, String> {
    let mut command = Command::new(binary);
    command.arg("0");
    let log = folder.join(binary.file_name().unwrap_or_default()).with_extension("log");
    Server::listening(command, &log, |line| {
        Some(line.strip_prefix("listening on http://")?.strip_suffix("/mcp")?.to_owned())
    })
}
