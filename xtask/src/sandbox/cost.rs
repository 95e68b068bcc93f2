//! What a confined call costs beside an unconfined one, in one run whose rounds are interleaved.

use std::fs;
use std::time::{Duration, Instant};

use serde_json::json;

use super::Context;
use super::storms::launchers;
use super::world::{self, executable};
use crate::bench::client::{self, Connection, is_good};
use crate::bench::stats::median;
use crate::endure::watch::processes_in;

/// Profiles whose start is measured together.
const PROFILES: usize = 20;

/// Measures and prints. Nothing fails by taking long.
pub(super) fn run(context: &mut Context) -> Result<(), String> {
    let Some(account) = context.accounts.last().copied() else { return Ok(()) };
    let base = context.folder("cost")?;
    for name in ["plain", "confined"] {
        executable(&base.join("tools").join(name), "#!/bin/sh\necho hi\n")?;
    }
    let configure = |tools: serde_json::Value| {
        fs::write(base.join("orla.yaml"), json!({"tools": tools}).to_string())
            .map_err(|err| err.to_string())
    };
    configure(json!({"confined": {"permissions": []}}))?;
    let server = world::serve(&context.orla, &base, account, &[])?;
    let mut connection = Connection::open(&server.address)?;
    if !is_good(&connection.exchange(&client::call("confined", &json!({})))?) {
        context.tally.check("cost: unavailable", Ok(()));
        return Ok(());
    }
    let (rounds, time) =
        if context.is_quick { (3, Duration::from_millis(400)) } else { (7, Duration::from_secs(1)) };
    for clients in [1, 8] {
        let mut figures = [Vec::new(), Vec::new()];
        for _ in 0..rounds {
            for (index, name) in ["plain", "confined"].into_iter().enumerate() {
                figures[index].push(latency(&server.address, name, clients, time)?);
            }
        }
        let [plain, confined] = figures.map(median);
        let what = format!(
            "cost: {clients} clients: {plain:.2} ms unconfined, {confined:.2} ms confined, {:+.2} ms, ratio {:.2}",
            confined - plain,
            confined / plain
        );
        context.tally.check(&what, Ok(()));
    }
    let own = |ids: &[u32]| ids.iter().filter_map(|id| memory(*id)).sum::<f64>();
    let (launchers, mut all) = (launchers(server.pid()), processes_in(&base));
    all.retain(|id| *id != server.pid());
    let what = format!(
        "cost: memory: {:.2} MB of {} launchers, {:.2} MB of all {} processes that a profile keeps",
        own(&launchers),
        launchers.len(),
        own(&all),
        all.len()
    );
    context.tally.check(&what, Ok(()));
    drop(server);

    let mut starts = [Vec::new(), Vec::new()];
    let mut tools = serde_json::Map::new();
    for number in 0..PROFILES {
        let name = format!("tool{number}");
        executable(&base.join("tools").join(&name), "#!/bin/sh\necho hi\n")?;
        // Each has another profile.
        let limits = json!({"open_files": 100 + number});
        tools.insert(name, json!({"permissions": [], "limits": limits}));
    }
    for _ in 0..rounds {
        for (index, tools) in [json!({}), tools.clone().into()].into_iter().enumerate() {
            configure(tools)?;
            let started = Instant::now();
            let server = world::serve(&context.orla, &base, account, &[])?;
            starts[index].push(started.elapsed().as_secs_f64() * 1e3);
            drop(server);
        }
    }
    let [without, with] = starts.map(median);
    let what = format!(
        "cost: start of a profile: {:.1} ms (a server starts in {without:.0} ms, with {PROFILES} profiles in {with:.0} ms)",
        (with - without) / PROFILES as f64
    );
    context.tally.check(&what, Ok(()));
    Ok(())
}

/// Returns the median latency of calls from so many clients, in milliseconds.
fn latency(address: &str, tool: &str, clients: usize, time: Duration) -> Result<f64, String> {
    let request = client::call(tool, &json!({}));
    let started = Instant::now();
    let latencies = client::side_by_side(clients, || {
        let mut connection = Connection::open(address)?;
        let mut latencies = Vec::new();
        while started.elapsed() < time {
            let asked = Instant::now();
            let answer = connection.exchange(&request)?;
            if !is_good(&answer) {
                return Err(String::from_utf8_lossy(answer.body).into_owned());
            }
            latencies.push(asked.elapsed().as_secs_f64() * 1e3);
        }
        Ok(latencies)
    })?;
    Ok(median(latencies))
}

/// Megabytes of memory of a process, where shared memory counts in part.
fn memory(id: u32) -> Option<f64> {
    let text = fs::read_to_string(format!("/proc/{id}/smaps_rollup")).ok()?;
    let line = text.lines().find_map(|line| line.strip_prefix("Pss:"))?;
    line.trim().strip_suffix("kB")?.trim().parse::<f64>().ok().map(|kilobytes| kilobytes / 1e3)
}
