//! A saved run that was changed is refused, or ends as any run does: in a value, an error or a limit.
//!
//! The first byte chooses a program, the second how: the bytes after it follow the head of a saved run, or change
//! one, three at a time (where in two, and to what).
#![no_main]

use libfuzzer_sys::fuzz_target;
use rtfs::{Event, Limits, Options, Outcome, Request, Run, Source, Value, compile};

const PROGRAMS: [&str; 6] = [
    "(let [k 7 m (memoize (fn [n] (call :a n)))] [(m 1) (m k) (try (call :b) (catch e e))])",
    "(pmap (fn [x] (call :a {:x x})) (range 20) {:max 3})",
    "(take 5 (map (fn [n] (+ n (call :a n))) (iterate inc 1)))",
    "(defn f [n] (if (= n 0) (call :a #{0 1.5 \"x\"}) [(f (dec n)) (call :a n)])) (f 5)",
    "(parallel (call :a 1) (race (call :a 2) (step \"s\" (call :a [3]))) (try (call :a 4) (finally (call :a 5))))",
    "(parallel (call :a 1) (sleep-until 2026-11-20T10:00:00Z) (race (await-event \"e\") (await-task \"t\")))",
];

/// As long as the name, the version and the fingerprint.
const HEAD: usize = 16;

fn drive(run: &mut Run, turns: usize) -> bool {
    for _ in 0..turns {
        match run.advance(500) {
            Outcome::Done(value) => {
                let _ = value.pr_str();
                return true;
            }
            Outcome::Failed(error) => {
                let _ = error.report();
                return true;
            }
            Outcome::Yielded | Outcome::Waiting => {}
        }
        let events: Vec<_> = run.events().collect();
        for event in events {
            if let Event::Request { ticket, request, .. } = event {
                let answer = match request {
                    Request::Call { input, .. } => input,
                    _ => Value::Nil,
                };
                run.resolve(ticket, Ok(answer));
            }
        }
    }
    false
}

fuzz_target!(|data: &[u8]| {
    let [which, how, rest @ ..] = data else { return };
    let text = PROGRAMS[usize::from(*which) % PROGRAMS.len()];
    let Ok(program) = compile(&Source::new("", text), &Options::default()) else { return };
    let limits = Limits { steps: 20_000, memory: 8 << 20, depth: 300, calls: 100, calls_at_once: 4, output: 1 << 20 };
    let mut run = Run::new(program.clone(), limits, &[]).resumable();
    if drive(&mut run, usize::from(*how >> 1) % 8) {
        return;
    }
    run.advance(100);
    let _ = run.events().count();
    let Ok(mut bytes) = run.save() else { return };
    if how & 1 == 0 {
        bytes.truncate(HEAD);
        bytes.extend(rest);
    } else {
        for change in rest.chunks_exact(3) {
            let at = HEAD + usize::from(u16::from_le_bytes([change[0], change[1]])) % (bytes.len() - HEAD);
            bytes[at] = change[2];
        }
    }
    if let Ok(mut run) = Run::load(program, limits, &bytes) {
        drive(&mut run, 200);
        if let Ok(again) = run.save() {
            assert!(Run::load(run.program().clone(), limits, &again).is_ok(), "what was saved cannot be loaded");
        }
    }
});
