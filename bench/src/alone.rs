//! What only RTFS does, or what is promised of it without a comparison.

use std::hint::black_box;
use std::time::Duration;

use rtfs::{Event, Limits, Options, Outcome, Run, Source, Value, compile, eval_pure, read};
use serde_json::json;

use crate::busy;

pub(crate) fn figures(rounds: usize) -> Result<Vec<serde_json::Value>, String> {
    let mut figures = reading(rounds)?;
    let suspended = nanoseconds(suspended(rounds)?);
    figures.push(json!({
        "what": "suspend and resume at a call",
        "measured": format!("{suspended:.0} ns"),
        "values": { "ns": suspended },
        "goal": "≤ 60 ns",
        "reached": suspended <= 60.0,
    }));
    let small = nanoseconds(small(rounds)?) / 1e3;
    figures.push(json!({
        "what": "a small program from its text to its value",
        "measured": format!("{small:.1} µs"),
        "values": { "us": small },
        "goal": "≤ 5 µs",
        "reached": small <= 5.0,
    }));
    Ok(figures)
}

/// Reading 1 MB and 10 MB: as fast, so linear.
fn reading(rounds: usize) -> Result<Vec<serde_json::Value>, String> {
    const DATA: &str = "{:name \"text\" :n 12 :list [1 2.5 nil] :nested {:key true}} ";
    const CODE: &str = "(defn f [x y] (let [z {:key \"text\" :n 12.5}] (when (> x 1) [x y :keyword z 'symbol \"str\"])))\n";
    let speed = |source: &Source, took: Duration| source.text().len() as f64 / 1e6 / took.as_secs_f64();
    let mut figures = Vec::new();
    let mut small = f64::NAN;
    for (name, bytes) in [("1 MB", 1_000_000), ("10 MB", 10_000_000)] {
        let source = Source::new("", format!("[{}]", DATA.repeat(bytes / DATA.len())));
        let took = least(rounds, || read(&source).map(black_box).map_err(|err| err.to_string()))?;
        let reached_speed = speed(&source, took);
        let is_linear = !(reached_speed < small / 2.0);
        figures.push(json!({
            "what": format!("reading values, {name}"),
            "measured": format!("{reached_speed:.0} MB/s"),
            "values": { "mb_per_s": reached_speed },
            "goal": "linear",
            "reached": is_linear,
        }));
        small = reached_speed;
    }
    small = f64::NAN;
    for (name, bytes) in [("1 MB", 1_000_000), ("10 MB", 10_000_000)] {
        let source = Source::new("", CODE.repeat(bytes / CODE.len()));
        let took = least(rounds, || Ok(rtfs::imports(&source)))?;
        let reached_speed = speed(&source, took);
        figures.push(json!({
            "what": format!("reading code, {name}"),
            "measured": format!("{reached_speed:.0} MB/s"),
            "values": { "mb_per_s": reached_speed },
            "goal": "≥ 100 MB/s and linear",
            "reached": reached_speed >= 100.0 && !(reached_speed < small / 2.0),
        }));
        small = reached_speed;
    }
    Ok(figures)
}

/// The time of one call, from the program to the host and back.
fn suspended(rounds: usize) -> Result<Duration, String> {
    const CALLS: u32 = 200_000;
    let text = format!("(loop [i 0] (if (< i {CALLS}) (do (call :a i) (recur (inc i))) i))");
    let program = compile(&Source::new("", text), &Options::default()).map_err(|err| err.to_string())?;
    let limits = Limits { calls: u64::MAX, ..Limits::default() };
    let took = least(rounds, || {
        let mut run = Run::new(program.clone(), limits, &[]);
        while let Outcome::Waiting = run.advance(20_000) {
            let Some(Event::Request { ticket, .. }) = run.events().next() else { break };
            run.resolve(ticket, Ok(Value::Int(1)));
        }
        match run.advance(0) {
            Outcome::Done(_) => Ok(()),
            other => Err(format!("{other:?}")),
        }
    })?;
    Ok(took / CALLS)
}

fn small(rounds: usize) -> Result<Duration, String> {
    const TIMES: u32 = 1_000;
    let took = least(rounds, || {
        for _ in 0..TIMES {
            let program = black_box("(let [a 1 b {:x 2}] (map (fn [x] (+ x a)) [1 2 (:x b)]))");
            black_box(eval_pure(program).map_err(|err| err.to_string())?);
        }
        Ok(())
    })?;
    Ok(took / TIMES)
}

fn least<T>(times: usize, mut work: impl FnMut() -> Result<T, String>) -> Result<Duration, String> {
    let mut least = Duration::MAX;
    for _ in 0..times {
        let start = busy();
        let result = work()?;
        drop(result);
        least = least.min(busy() - start);
    }
    Ok(least)
}

fn nanoseconds(time: Duration) -> f64 {
    time.as_secs_f64() * 1e9
}
