//! Every example of the tour gives what it says it gives, with a host that knows the weather of three cities.

#![expect(clippy::unwrap_used, reason = "helpers of tests")]

use rtfs::layout::is_unfinished;
use rtfs::{Error, Event, Limits, Options, Outcome, Request, Run, Source, Value, compile, eval_pure};

/// What the host answers.
fn answer(request: &Request) -> Result<Value, Error> {
    let Request::Call { id, input, .. } = request else {
        return Err(Error::new("unavailable", "not here"));
    };
    let id = id.to_string();
    if id != "weather.current" {
        return Err(Error::new("unknown-capability", "there is none").with_capability(id));
    }
    let Value::Map(input) = input else { return Err(Error::new("invalid-input", "a map")) };
    match input.get_keyword("city").map(ToString::to_string).as_deref() {
        Some("Paris") => Ok(eval_pure("{:city \"Paris\" :temp 21.5}").unwrap()),
        Some("Oslo") => Ok(eval_pure("{:city \"Oslo\" :temp 3}").unwrap()),
        Some("Rome") => Ok(eval_pure("{:city \"Rome\" :temp 24}").unwrap()),
        _ => Err(Error::new("failed", "no such city").with_capability(id)),
    }
}

/// Returns the value of a text on top of what was defined before.
fn value(text: &str, before: Option<Run>) -> Result<(Run, Value), String> {
    let base = before.as_ref().map(|run| run.program().clone());
    let options = Options { base, open: true, ..Options::default() };
    let program = compile(&Source::new("", text), &options).map_err(|err| err.to_string())?;
    let mut run = match before {
        Some(before) => Run::continuing(program, Limits::default(), before),
        None => Run::new(program, Limits::default(), &[]),
    };
    loop {
        match run.advance(1_000_000) {
            Outcome::Done(value) => return Ok((run, value)),
            Outcome::Failed(error) => return Err(error.report()),
            Outcome::Yielded => {}
            Outcome::Waiting => {
                let events: Vec<Event> = run.events().collect();
                for event in events {
                    if let Event::Request { ticket, request, .. } = event {
                        run.resolve(ticket, answer(&request));
                    }
                }
            }
        }
    }
}

#[test]
fn every_example_of_the_tour_is_right() {
    let page = include_str!("../../../docs/rtfs-tour.md");
    let blocks = page.split("```rtfs\n").skip(1).filter_map(|rest| rest.split("```").next());
    let (mut before, mut open, mut count) = (None, String::new(), 0);
    for line in blocks.flat_map(str::lines) {
        open.push_str(line);
        if is_unfinished(&open) {
            open.push('\n');
            continue;
        }
        let text = std::mem::take(&mut open);
        let (program, expected) = match text.rsplit_once(" => ") {
            Some((program, expected)) => (program, Some(expected)),
            None => (&*text, None),
        };
        let (run, got) = value(program, before).unwrap_or_else(|err| panic!("{program}: {err}"));
        if let Some(expected) = expected {
            count += 1;
            assert_eq!(got.pr_str(), expected, "{program}");
        }
        before = Some(run);
    }
    assert!(count >= 35, "{count} examples");
}
