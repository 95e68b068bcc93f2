//! What tasks cost beside plain calls, beside what the disk takes, and a thousand at once.

use std::fs::File;
use std::io::Write as _;
use std::path::Path;
use std::time::Instant;

use serde_json::json;

use super::{Context, figure, get, problem};
use crate::bench::client::{self, Connection};
use crate::bench::report::Figure;
use crate::bench::stats::median;
use crate::bench::tasks;

/// Rounds of each measurement, and where it has to be quick.
const ROUNDS: (usize, usize) = (5, 1);
/// How many tasks are accepted at once.
const AT_ONCE: usize = 1_000;

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
