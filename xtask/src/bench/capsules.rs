//! Capsules: a call beside the same bytes over the same pipes, idle ones, and the time to new code.

use std::fs;
use std::io::{BufRead as _, BufReader, Write as _};
use std::path::Path;
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};
use std::time::{Duration, Instant};

use serde_json::{Value, json};

use super::calls::example;
use super::client::{self, Connection};
use super::life::fresh;
use super::stats::{Round, Rounds, median};
use super::{Effort, Figure, Programs};
use crate::server::{Server, processor_time};

/// How long files have to be quiet before a capsule is restarted.
const DEBOUNCE: Duration = Duration::from_millis(50);

/// Capsules of the server that one with many is compared with: what the first ones cost is not each one's.
const FEW: usize = 10;

/// How long a restart may take before the bench gives up.
const PATIENCE: Duration = Duration::from_secs(30);

/// A call of a capsule over keep-alive HTTP against the same capsule's pipes.
pub(super) fn calls(programs: &Programs, effort: Effort) -> Result<Vec<Figure>, String> {
    let folder = programs.folder.join("capsule");
    fresh(&folder.join("tools"))?;
    package(&programs.echo_capsule, &folder.join("tools/echo"), "echo", "")?;
    let orla = Server::start(&programs.orla, &folder, &folder)?;
    let arguments = json!({"city": "Paris", "count": 3});
    let call = client::call("echo", &arguments);
    Connection::open(&orla.address)?.exchange(&call)?;
    let mut figures = Vec::new();

    let echo = example(&programs.bare_echo, &programs.folder)?;
    let (mut direct, mut served, mut bare) = (Rounds::default(), Rounds::default(), Rounds::default());
    let mut pipes = Pipes::open(&programs.echo_capsule)?;
    for _ in 0..effort.rounds {
        direct.0.push(pipes.round(&arguments, effort.round)?);
        served.0.push(client::polled(&orla.address, &call, 1, effort.round)?);
        bare.0.push(client::polled(&echo.address, &call, 1, effort.round / 3)?);
    }
    let (floor, p50) = (direct.micros(50), served.micros(50));
    let with_echo = p50 / (floor + bare.micros(50));
    figures.push(
        Figure::new(
            "capsule call, p50 over HTTP",
            format!("{p50:.0} µs, {with_echo:.2} × (its pipes + bare echo)"),
            json!({"p50_us": p50, "ratio": with_echo}),
        )
        .goal("≤ 85 µs", p50 <= 85.0),
    );
    let ratio = p50 / floor;
    figures.push(
        Figure::new(
            "capsule call, p50 over HTTP ÷ its pipes",
            format!("{ratio:.2} ({p50:.0} of {floor:.0} µs)"),
            json!({"ratio": ratio, "p50_us": p50, "pipes_p50_us": floor}),
        )
        .goal("≤ 2", ratio <= 2.0),
    );

    let (mut served, mut costs) = (Rounds::default(), Vec::new());
    for _ in 0..effort.rounds {
        let before = processor_time(orla.pid())?;
        let round = client::polled(&orla.address, &call, 8, effort.round)?;
        let cost = processor_time(orla.pid())?.saturating_sub(before);
        costs.push(cost.as_secs_f64() * 1e6 / round.latencies.len() as f64);
        served.0.push(round);
    }
    let (rate, cost) = (served.rate(), median(costs));
    figures.push(
        Figure::new(
            "capsule call, 8 clients",
            format!("{rate:.0}/s, p50 {:.0} µs", served.micros(50)),
            json!({"per_s": rate, "p50_us": served.micros(50)}),
        )
        .goal("≥ 45000/s", rate >= 45_000.0),
    );
    figures.push(
        Figure::new(
            "capsule call, the server's processor time",
            format!("{cost:.1} µs"),
            json!({"us": cost}),
        )
        .goal("≤ 20 µs", cost <= 20.0),
    );
    Ok(figures)
}

/// What the server keeps for each of many capsules that run and are not called.
pub(super) fn idle(programs: &Programs, effort: Effort) -> Result<Vec<Figure>, String> {
    let mut resident = Vec::new();
    for count in [FEW, FEW + effort.capsules] {
        let folder = programs.folder.join("idle-capsules");
        fresh(&folder.join("tools"))?;
        for number in 0..count {
            let name = format!("echo_{number:04}");
            package(
                &programs.echo_capsule,
                &folder.join("tools").join(&name),
                &name,
                "  eager: true\n",
            )?;
        }
        let orla = Server::start(&programs.orla, &folder, &folder)?;
        let listed = listed(&orla.address)?;
        if listed != count {
            return Err(format!("{listed} of {count} capsules are listed"));
        }
        resident.push(orla.resident()?);
    }
    let each = (resident[1].saturating_sub(resident[0])) as f64 / effort.capsules as f64;
    Ok(vec![
        Figure::new(
            format!("an idle capsule, of {}", effort.capsules),
            format!("{:.1} KB", each / 1e3),
            json!({"bytes": each}),
        )
        .goal("≤ 100 KB", each <= 100_000.0),
    ])
}

/// How many tools a server lists. It waits until it knows them all.
fn listed(address: &str) -> Result<usize, String> {
    let mut connection = Connection::open(address)?;
    let (mut count, mut params) = (0, json!({}));
    loop {
        let body = connection.exchange(&client::sessionless("tools/list", params))?.body;
        let page: Value = serde_json::from_slice(body).map_err(|err| format!("tools/list: {err}"))?;
        count += page["result"]["tools"].as_array().map_or(0, Vec::len);
        match &page["result"]["nextCursor"] {
            Value::String(cursor) => params = json!({"cursor": cursor}),
            _ => return Ok(count),
        }
    }
}

/// From saving a capsule's program to the first answer of the new process, beyond what cannot be avoided:
/// the debounce and the start of a process.
pub(super) fn reload(programs: &Programs, effort: Effort) -> Result<Vec<Figure>, String> {
    let folder = programs.folder.join("capsule-reload");
    fresh(&folder.join("tools"))?;
    let directory = folder.join("tools/echo");
    let watched = format!("  hot_load: {{watch: [main], debounce_ms: {}}}\n", DEBOUNCE.as_millis());
    package(&programs.echo_capsule, &directory, "echo", &watched)?;
    let orla = Server::start(&programs.orla, &folder, &folder)?;
    let mut connection = Connection::open(&orla.address)?;
    let call = client::call("echo", &json!({}));
    let mut ask = || connection.exchange(&call).map(|answer| answer.body.to_vec());
    let mut overheads = Vec::new();
    for _ in 0..effort.reloads {
        let old = ask()?;
        let began = Instant::now();
        drop(Pipes::open(&programs.echo_capsule)?);
        let start = began.elapsed();
        // A new file in place of the old one, as editors save.
        fs::copy(&programs.echo_capsule, directory.join("new")).map_err(|err| err.to_string())?;
        let saved = Instant::now();
        fs::rename(directory.join("new"), directory.join("main")).map_err(|err| err.to_string())?;
        while ask()? == old {
            if saved.elapsed() > PATIENCE {
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

/// A package around a program, which is linked and not copied. `more` goes below `runtime`.
fn package(program: &Path, directory: &Path, name: &str, more: &str) -> Result<(), String> {
    fs::create_dir_all(directory).map_err(|err| format!("{}: {err}", directory.display()))?;
    let manifest = format!(
        "name: {name}\nversion: 1.0.0\nentrypoint: main\nruntime:\n  mode: capsule\n  startup_timeout_ms: 30000\n{more}"
    );
    fs::write(directory.join("tool.yaml"), manifest)
        .and_then(|()| fs::hard_link(program, directory.join("main")))
        .map_err(|err| format!("{}: {err}", directory.display()))
}

/// The floor: a capsule's or server's pipes, without anything between.
pub(super) struct Pipes {
    child: Child,
    input: ChildStdin,
    output: BufReader<ChildStdout>,
}

impl Pipes {
    /// Starts the capsule and waits for its hello.
    fn open(program: &Path) -> Result<Self, String> {
        let mut pipes = Self::start(program)?;
        pipes.line()?;
        Ok(pipes)
    }

    /// Starts a server that waits to be spoken to.
    pub(super) fn start(program: &Path) -> Result<Self, String> {
        let mut child = Command::new(program)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .map_err(|err| format!("{}: {err}", program.display()))?;
        let (Some(input), Some(output)) = (child.stdin.take(), child.stdout.take()) else {
            return Err("no pipes".to_owned());
        };
        Ok(Self { child, input, output: BufReader::new(output) })
    }

    fn line(&mut self) -> Result<String, String> {
        let mut line = String::new();
        self.output.read_line(&mut line).map_err(|err| err.to_string())?;
        Ok(line)
    }

    /// Calls one after the other, in the bytes that the server writes.
    pub(super) fn round(&mut self, arguments: &Value, time: Duration) -> Result<Round, String> {
        let call = |id: usize| {
            let params = format!(r#"{{"name":"echo","arguments":{arguments}}}"#);
            format!(
                "{{\"jsonrpc\":\"2.0\",\"id\":{id},\"method\":\"tools/call\",\"params\":{params}}}\n"
            )
        };
        self.round_of(call, "structuredContent", time)
    }

    /// The same with other lines, whose answers have these words in them.
    pub(super) fn round_of(
        &mut self,
        call: impl Fn(usize) -> String,
        words: &str,
        time: Duration,
    ) -> Result<Round, String> {
        let mut latencies = Vec::with_capacity(1 << 20);
        let started = Instant::now();
        while started.elapsed() < time {
            let call = call(latencies.len() + 1);
            let asked = Instant::now();
            self.input.write_all(call.as_bytes()).map_err(|err| err.to_string())?;
            let answer = self.line()?;
            latencies.push(asked.elapsed());
            if !answer.contains(words) {
                return Err(format!("it answered {answer}"));
            }
        }
        Ok(Round { latencies, elapsed: started.elapsed() })
    }
}

impl Drop for Pipes {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
