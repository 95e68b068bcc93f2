//! RTFS beside rhai and steel: the same programs, in one run. `cargo xtask bench rtfs` runs it.
//!
//! Each program is written in the three languages ([`programs::PROGRAMS`]) and its results are compared
//! before anything is timed. Then the languages take turns, and the least time of each counts; a time
//! includes reading, compiling, running and dropping, and is one of the processor, so that whatever else
//! the machine does hits all of them as little as possible. RTFS runs as it is served: steps, memory and
//! depth are metered. The other two meter nothing.
//!
//! What has no counterpart is measured alone ([`alone`]): reading, a call of the host, a small program.
//!
//! Standard output is one JSON array of figures, each with what was promised of it and whether it holds.

#![forbid(unsafe_code)]
#![expect(clippy::print_stdout, clippy::print_stderr, reason = "the terminal is where a bench reports")]

use std::process::ExitCode;
use std::time::Duration;

use serde_json::{Value, json};

mod alone;
mod languages;
mod programs;

use languages::{Language, Rhai, Rtfs, Steel};
use programs::{PROGRAMS, Program};

/// The recursive interpreters need it.
const STACK: usize = 1 << 30;

fn main() -> ExitCode {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let rounds = match &arguments[..] {
        [] => 7,
        [option] if option == "--quick" => 3,
        _ => {
            eprintln!("usage: orla-bench [--quick]");
            return ExitCode::from(2);
        }
    };
    let thread = std::thread::Builder::new().stack_size(STACK).spawn(move || measure(rounds));
    let result = thread
        .map_err(|err| err.to_string())
        .and_then(|thread| thread.join().unwrap_or_else(|_| Err("the bench panicked".to_owned())));
    match result {
        Ok(figures) => {
            println!("{:#}", Value::Array(figures));
            ExitCode::SUCCESS
        }
        Err(problem) => {
            eprintln!("error: {problem}");
            ExitCode::FAILURE
        }
    }
}

fn measure(rounds: usize) -> Result<Vec<Value>, String> {
    let mut figures = Vec::new();
    for program in PROGRAMS {
        eprintln!("measuring: {}", program.name);
        figures.push(beside(program, rounds).map_err(|err| format!("{}: {err}", program.name))?);
    }
    eprintln!("measuring: RTFS alone");
    figures.extend(alone::figures(rounds)?);
    Ok(figures)
}

/// One program in the three languages.
fn beside(program: &Program, rounds: usize) -> Result<Value, String> {
    let text = (program.text)();
    let (mut rtfs, mut steel, mut rhai) = (
        Rtfs::new(program.rtfs, &text)?,
        Steel::new(program.steel, &text),
        Rhai::new(program.rhai, &text),
    );
    let expected = rtfs.result()?;
    let others: [(&str, &mut dyn Language); 2] = [("steel", &mut steel), ("rhai", &mut rhai)];
    for (name, language) in others {
        let result = language.result().map_err(|err| format!("{name}: {err}"))?;
        if result != expected {
            return Err(format!("RTFS gives {expected}, {name} gives {result}"));
        }
    }
    let languages: [&mut dyn Language; 3] = [&mut rtfs, &mut steel, &mut rhai];
    let [ours, steel, rhai] = least(languages, rounds)?.map(milliseconds);
    let (ahead_of_steel, ahead_of_rhai) = (steel / ours, rhai / ours);
    let reached = ahead_of_steel >= program.ahead_of_steel && ahead_of_rhai >= program.ahead_of_rhai;
    Ok(json!({
        "what": program.name,
        "measured": format!(
            "{ours:.2} ms; steel {steel:.2} ({ahead_of_steel:.1} ×), rhai {rhai:.2} ({ahead_of_rhai:.1} ×)"
        ),
        "values": { "rtfs_ms": ours, "steel_ms": steel, "rhai_ms": rhai },
        "goal": format!("≥ {} × steel, ≥ {} × rhai", program.ahead_of_steel, program.ahead_of_rhai),
        "reached": reached,
    }))
}

fn least<const N: usize>(
    mut languages: [&mut dyn Language; N],
    rounds: usize,
) -> Result<[Duration; N], String> {
    let mut times = [Duration::MAX; N];
    for _ in 0..rounds {
        for (language, least) in languages.iter_mut().zip(&mut times) {
            let start = busy();
            language.result()?;
            *least = (*least).min(busy() - start);
        }
    }
    Ok(times)
}

/// How long the processor has worked for this thread.
fn busy() -> Duration {
    let time = rustix::time::clock_gettime(rustix::time::ClockId::ThreadCPUTime);
    Duration::new(u64::try_from(time.tv_sec).unwrap_or(0), u32::try_from(time.tv_nsec).unwrap_or(0))
}

fn milliseconds(time: Duration) -> f64 {
    time.as_secs_f64() * 1e3
}
