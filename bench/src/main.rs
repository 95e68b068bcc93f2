//! RTFS beside Lua, CPython, V8 without its compilers, rhai and steel: the same programs, in one run. `cargo xtask bench rtfs`
//! runs it.
//!
//! Each program is written in all languages ([`programs::PROGRAMS`]) and its results are compared
//! before anything is timed. Then the languages take turns, and the least time of each counts; a time
//! includes reading, compiling, running and dropping, and is one of the processor, so that other work on
//! the machine disturbs it little. RTFS runs as it is served: steps, memory and depth are metered. The
//! others meter nothing. The spread is that of the ratio to Lua in the middle half of the rounds.
//!
//! `rhai` and `steel` take most of the build. `--no-default-features` leaves them out.
//!
//! What has no counterpart is measured alone ([`alone`]): reading, a call of the host, a small program.
//!
//! Standard output is one JSON array of figures, each with what was promised of it and whether it holds.

#![forbid(unsafe_code)]
#![expect(clippy::print_stdout, clippy::print_stderr, reason = "the terminal is where a bench reports")]

use std::process::ExitCode;
use std::time::Duration;

use serde_json::{Map, Value, json};

mod alone;
#[cfg(feature = "embedded")]
mod embedded;
mod languages;
mod programs;

use languages::{Interpreter, Language, Lua, Rtfs};
use programs::{PROGRAMS, Program};

/// That of the product, for all languages in Rust.
#[cfg(target_os = "linux")]
#[global_allocator]
static ALLOCATOR: tikv_jemallocator::Jemalloc = tikv_jemallocator::Jemalloc;

/// The recursive interpreters need it.
const STACK: usize = 1 << 30;

fn main() -> ExitCode {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let (rounds, part) = match &arguments[..] {
        [] => (15, String::new()),
        [option] if option == "--quick" => (5, String::new()),
        [part] if !part.starts_with('-') => (15, part.clone()),
        _ => {
            eprintln!("usage: orla-bench [--quick | PART OF A ROW'S NAME]");
            return ExitCode::from(2);
        }
    };
    let thread = std::thread::Builder::new().stack_size(STACK).spawn(move || measure(rounds, &part));
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

fn measure(rounds: usize, part: &str) -> Result<Vec<Value>, String> {
    let mut figures = Vec::new();
    for program in PROGRAMS.iter().filter(|program| program.name.contains(part)) {
        eprintln!("measuring: {}", program.name);
        figures.push(beside(program, rounds).map_err(|err| format!("{}: {err}", program.name))?);
    }
    for (name, figure) in alone::FIGURES.iter().filter(|(name, _)| name.contains(part)) {
        eprintln!("measuring: {name}");
        figures.push(figure(name, rounds).map_err(|err| format!("{name}: {err}"))?);
    }
    Ok(figures)
}

/// One program in all languages.
fn beside(program: &Program, rounds: usize) -> Result<Value, String> {
    let text = (program.text)();
    let mut ours = Rtfs::new(program.rtfs, &text)?;
    let expected = ours.result()?;
    let mut languages: Vec<(&str, Box<dyn Language>)> =
        vec![("rtfs", Box::new(ours)), ("lua", Box::new(Lua::new(program.lua, &text)?))];
    #[cfg(feature = "embedded")]
    languages.extend([
        ("steel", Box::new(embedded::Steel::new(program.steel, &text)) as Box<dyn Language>),
        ("rhai", Box::new(embedded::Rhai::new(program.rhai, &text))),
    ]);
    // These need programs that a machine may not have.
    languages
        .extend(Interpreter::python(program.python, &text).ok().map(|it| ("python", Box::new(it) as _)));
    languages.extend(
        Interpreter::node(program.javascript, &text).ok().map(|it| ("v8_jitless", Box::new(it) as _)),
    );
    for (name, language) in &mut languages {
        let result = language.result().map_err(|err| format!("{name}: {err}"))?;
        if result != expected {
            return Err(format!("RTFS gives {expected}, {name} gives {result}"));
        }
    }
    let rounds = rounds_of(&mut languages, rounds)?;
    let least = |at: usize| rounds.iter().map(|times| times[at]).fold(f64::INFINITY, f64::min);
    let ours = least(0);
    let (mut measured, mut values, mut is_reached) = (format!("{ours:.2} ms"), Map::new(), true);
    for (at, (name, _)) in languages.iter().enumerate() {
        let time = least(at);
        values.insert(format!("{name}_ms"), json!(time));
        let Some(ahead) = program.ahead_of(name) else { continue };
        measured.push_str(&format!("; {name} {time:.2} ({:.2} ×)", time / ours));
        is_reached &= time / ours >= ahead;
    }
    let [low, high] = middle_half(rounds.iter().map(|times| times[1] / times[0]).collect());
    measured.push_str(&format!("; spread {low:.2} to {high:.2} × lua"));
    values.insert("spread_beside_lua".to_owned(), json!([low, high]));
    Ok(json!({
        "what": program.name,
        "measured": measured,
        "values": values,
        "goal": format!(
            "≥ 1 × lua, python and v8_jitless, ≥ {} × steel, ≥ {} × rhai",
            program.ahead_of_steel, program.ahead_of_rhai
        ),
        "reached": is_reached,
    }))
}

/// What each round took each language, in milliseconds. They take turns.
fn rounds_of(
    languages: &mut [(&str, Box<dyn Language>)],
    rounds: usize,
) -> Result<Vec<Vec<f64>>, String> {
    let mut round = || {
        let timed = languages.iter_mut().map(|(name, language)| {
            language.time().map(milliseconds).map_err(|err| format!("{name}: {err}"))
        });
        timed.collect()
    };
    (0..rounds).map(|_| round()).collect()
}

/// The bounds of the middle half of some values.
fn middle_half(mut values: Vec<f64>) -> [f64; 2] {
    values.sort_by(f64::total_cmp);
    let at = |quarter: usize| values.get(values.len().saturating_sub(1) * quarter / 4).copied();
    [at(1), at(3)].map(|value| value.unwrap_or(f64::NAN))
}

/// How long the processor has worked for this thread.
fn busy() -> Duration {
    let time = rustix::time::clock_gettime(rustix::time::ClockId::ThreadCPUTime);
    Duration::new(u64::try_from(time.tv_sec).unwrap_or(0), u32::try_from(time.tv_nsec).unwrap_or(0))
}

fn milliseconds(time: Duration) -> f64 {
    time.as_secs_f64() * 1e3
}
