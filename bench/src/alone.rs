//! What only RTFS does, or what is promised of it without a comparison.

use std::hint::black_box;
use std::time::Duration;

use rtfs::{Event, Limits, Options, Outcome, Run, Source, Value, compile, eval_pure, read};
use serde_json::json;

use crate::busy;

/// Measures one row: its name and how many rounds.
type Figure = fn(&str, usize) -> Result<serde_json::Value, String>;

pub(crate) const FIGURES: &[(&str, Figure)] = &[
    ("reading values, 1 MB", |name, rounds| {
        reading(name, rounds, &values(1_000_000), 150.0, values_read)
    }),
    ("reading values, 10 MB", |name, rounds| {
        reading(name, rounds, &values(10_000_000), 150.0, values_read)
    }),
    ("reading code, 1 MB", |name, rounds| reading(name, rounds, &code(1_000_000), 200.0, code_read)),
    ("reading code, 10 MB", |name, rounds| reading(name, rounds, &code(10_000_000), 200.0, code_read)),
    ("suspend and resume at a call", |name, rounds| {
        let ns = nanoseconds(suspended(rounds)?);
        Ok(at_most(name, ns, "ns", 60.0))
    }),
    ("small program from its text to its value", |name, rounds| {
        let us = nanoseconds(small(rounds)?) / 1e3;
        Ok(at_most(name, us, "µs", 5.0))
    }),
    ("pmap of 10,000 calls", |name, rounds| {
        let rate = f64::from(CALLS_AT_ONCE) / at_once(rounds)?.as_secs_f64();
        Ok(at_least(name, rate, "calls/s", 300_000.0))
    }),
];

fn at_most(name: &str, measured: f64, unit: &str, goal: f64) -> serde_json::Value {
    figure(name, measured, unit, &format!("≤ {goal} {unit}"), measured <= goal)
}

fn at_least(name: &str, measured: f64, unit: &str, goal: f64) -> serde_json::Value {
    figure(name, measured, unit, &format!("≥ {goal} {unit}"), measured >= goal)
}

fn figure(name: &str, measured: f64, unit: &str, goal: &str, reached: bool) -> serde_json::Value {
    let shown = if measured < 100.0 { format!("{measured:.1}") } else { format!("{measured:.0}") };
    json!({
        "what": name,
        "measured": format!("{shown} {unit}"),
        "values": { unit: measured },
        "goal": goal,
        "reached": reached,
    })
}

fn values(bytes: usize) -> Source {
    const DATA: &str = "{:name \"text\" :n 12 :list [1 2.5 nil] :nested {:key true}} ";
    Source::new("", format!("[{}]", DATA.repeat(bytes / DATA.len())))
}

fn values_read(source: &Source) -> Result<(), String> {
    read(source).map(|values| drop(black_box(values))).map_err(|err| err.to_string())
}

fn code(bytes: usize) -> Source {
    const CODE: &str = "(defn f [x y] (let [z {:key \"text\" :n 12.5}] (when (> x 1) [x y :keyword z 'symbol \"str\"])))\n";
    Source::new("", CODE.repeat(bytes / CODE.len()))
}

/// Reads code without compiling it.
fn code_read(source: &Source) -> Result<(), String> {
    black_box(rtfs::imports(source));
    Ok(())
}

fn reading(
    name: &str,
    rounds: usize,
    source: &Source,
    goal: f64,
    read: fn(&Source) -> Result<(), String>,
) -> Result<serde_json::Value, String> {
    let took = least(rounds, || read(source))?;
    let speed = source.text().len() as f64 / 1e6 / took.as_secs_f64();
    Ok(at_least(name, speed, "MB/s", goal))
}

const CALLS_AT_ONCE: u32 = 10_000;

/// As many calls, which the host answers in the order in which they were asked.
fn at_once(rounds: usize) -> Result<Duration, String> {
    let text = format!("(count (pmap (fn [i] (call :a i)) (range {CALLS_AT_ONCE})))");
    let program = compile(&Source::new("", text), &Options::default()).map_err(|err| err.to_string())?;
    let limits = Limits { calls: u64::MAX, ..Limits::default() };
    least(rounds, || {
        let mut run = Run::new(program.clone(), limits, &[]);
        let mut asked = Vec::new();
        loop {
            match run.advance(20_000) {
                Outcome::Done(_) => return Ok(()),
                Outcome::Failed(error) => return Err(error.report()),
                Outcome::Yielded => {}
                Outcome::Waiting => {
                    asked.extend(run.events());
                    for event in asked.drain(..) {
                        if let Event::Request { ticket, .. } = event {
                            run.resolve(ticket, Ok(Value::Int(1)));
                        }
                    }
                }
            }
        }
    })
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
