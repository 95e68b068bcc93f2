//! Any program compiles or has mistakes; what compiles ends in a value, an error or a limit, and uses no
//! more than it may. Calls of capabilities are answered with their input or with errors, in turn.
#![no_main]

use libfuzzer_sys::fuzz_target;
use rtfs::{Error, Event, Limits, Options, Outcome, Request, Run, Source, Value, compile};

fuzz_target!(|text: &str| {
    let Ok(program) = compile(&Source::new("", text), &Options::default()) else { return };
    let limits = Limits { steps: 50_000, memory: 8 << 20, depth: 500, calls: 50, calls_at_once: 4, output: 1 << 20 };
    let mut run = Run::new(program, limits, &[]);
    let mut count = 0;
    loop {
        match run.advance(5_000) {
            Outcome::Done(value) => {
                assert!(value.pr_str().len() <= limits.output + 2);
                return;
            }
            Outcome::Failed(error) => {
                let _ = error.report();
                return;
            }
            Outcome::Yielded => {}
            Outcome::Waiting => {
                let events: Vec<_> = run.events().collect();
                assert!(!events.is_empty(), "it waits and has asked for nothing");
                for event in events {
                    let Event::Request { ticket, request, .. } = event else { continue };
                    count += 1;
                    let answer = match request {
                        _ if count % 5 == 0 => Err(Error::new("failed", "in turn")),
                        Request::Call { input, .. } => Ok(input),
                        Request::Next { .. } if count % 3 != 0 => Value::vector(vec![count.into()]).map_err(|_| Error::new("failed", "")),
                        _ => Ok(Value::Nil),
                    };
                    run.resolve(ticket, answer);
                }
            }
        }
    }
});
