//! Calls that use up what they can get: each ends alone, with an error that names the limit.

use std::time::{Duration, Instant};

use serde_json::json;

use super::Context;
use super::world::{self, UNAVAILABLE, call, executable};

/// The name of a bomb, which is a probe in C, and the limits around it.
const BOMBS: &[(&str, &str, &str)] =
    &[("bomb.processes", "processes", "100"), ("bomb.memory", "memory", "128Mi")];

/// How long a bomb should burn.
const GOAL: Duration = Duration::from_millis(300);

/// Sets off each bomb beside a call that takes longer.
pub(super) fn run(context: &mut Context) -> Result<(), String> {
    let Some(c) = context.languages.iter().find(|language| language.name == "c").cloned() else {
        println!("      no bombs: they are made with cc");
        return Ok(());
    };
    let Some(account) = context.accounts.last().copied() else { return Ok(()) };
    let base = context.folder("bombs")?;
    let mut tools = serde_json::Map::new();
    executable(&base.join("tools/neighbour"), "#!/bin/sh\nsleep 1.5\necho here\n")?;
    tools.insert("neighbour".to_owned(), json!({"permissions": []}));
    for (bomb, limit, value) in BOMBS {
        let name = bomb.replace('.', "_");
        executable(&base.join("tools").join(&name), &c.program)?;
        tools.insert(name, json!({"permissions": [], "timeout": 20, "limits": {*limit: value}}));
    }
    let configuration = json!({"tools": tools}).to_string();
    std::fs::write(base.join("orla.yaml"), configuration).map_err(|err| err.to_string())?;
    let server = world::serve(&context.orla, &base, account, &[])?;
    let address = &server.address;
    for (bomb, limit, value) in BOMBS {
        let result = std::thread::scope(|scope| {
            let neighbour = scope.spawn(|| call(address, "neighbour", &json!({})));
            // The neighbour runs before the bomb does.
            std::thread::sleep(Duration::from_millis(300));
            let started = Instant::now();
            let input = json!({"probes": bomb}).to_string();
            let ended = call(address, &bomb.replace('.', "_"), &json!({"stdin": input}))?;
            let took = started.elapsed();
            let neighbour = neighbour.join().map_err(|_| "the neighbour panicked")??;
            Ok::<_, String>((ended, took, neighbour))
        });
        let (what, result) = match result {
            Err(problem) => ((*bomb).to_owned(), Err(problem)),
            Ok((ended, took, neighbour)) => {
                let text = world::text(&ended);
                let is_unavailable = text.contains(UNAVAILABLE);
                let late = if took > GOAL { ", above the goal of 300 ms" } else { "" };
                let what = match is_unavailable {
                    true => format!("{bomb}: unavailable"),
                    false => {
                        format!("{bomb} with {limit}: {value} ended after {} ms{late}", took.as_millis())
                    }
                };
                let result = if !is_unavailable && !text.contains(&format!("limit of {limit}")) {
                    Err(format!("its error does not name the limit: {ended}"))
                } else if !is_unavailable && neighbour["structuredContent"]["stdout"] != "here\n" {
                    Err(format!("the call beside it: {neighbour}"))
                } else {
                    Ok(())
                };
                (what, result)
            }
        };
        context.tally.check(&format!("bombs: {what}"), result);
    }
    Ok(())
}
