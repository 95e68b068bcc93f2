//! RTFS beside Lua, CPython, V8 without its compilers, rhai and steel: the same programs, in one run. `cargo xtask bench rtfs`
//! runs it.
//!
//! Each program is written in all languages ([`programs::PROGRAMS`]) and its results are compared
//! before anything is timed. Then the languages take turns, and the least time of each counts; a time
//! includes reading, compiling, running and dropping, and is one of the processor, so that whatever else
//! the machine does hits all of them as little as possible. RTFS runs as it is served: steps, memory and
//! depth are metered. The others meter nothing.
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
mod languages;
mod programs;

use languages::{Interpreter, Language, Lua, Rhai, Rtfs, Steel};
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

/// One program in all languages.
fn beside(program: &Program, rounds: usize) -> Result<Value, String> {
    let text = (program.text)();
    let mut ours = Rtfs::new(program.rtfs, &text)?;
    let expected = ours.result()?;
    let mut languages: Vec<(&str, Box<dyn Language>)> = vec![
        ("rtfs", Box::new(ours)),
        ("lua", Box::new(Lua::new(program.lua, &text)?)),
        ("steel", Box::new(Steel::new(program.steel, &text))),
        ("rhai", Box::new(Rhai::new(program.rhai, &text))),
    ];
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
    let times = least(&mut languages, rounds)?;
    let ours = times[0];
    let (mut measured, mut values, mut is_reached) = (format!("{ours:.2} ms"), Map::new(), true);
    for ((name, _), time) in languages.iter().zip(&times) {
        values.insert(format!("{name}_ms"), json!(time));
        let Some(ahead) = program.ahead_of(name) else { continue };
        measured.push_str(&format!("; {name} {time:.2} ({:.2} ×)", time / ours));
        is_reached &= time / ours >= ahead;
    }
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

/// The least time of each language, in milliseconds. They take turns.
fn least(languages: &mut [(&str, Box<dyn Language>)], rounds: usize) -> Result<Vec<f64>, String> {
    let mut times = vec![Duration::MAX; languages.len()];
    for _ in 0..rounds {
        for ((name, language), least) in languages.iter_mut().zip(&mut times) {
            *least = (*least).min(language.time().map_err(|err| format!("{name}: {err}"))?);
        }
    }
    Ok(times.into_iter().map(milliseconds).collect())
}

/// How long the processor has worked for this thread.
fn busy() -> Duration {
    let time = rustix::time::clock_gettime(rustix::time::ClockId::ThreadCPUTime);
    Duration::new(u64::try_from(time.tv_sec).unwrap_or(0), u32::try_from(time.tv_nsec).unwrap_or(0))
}

fn milliseconds(time: Duration) -> f64 {
    time.as_secs_f64() * 1e3
}
