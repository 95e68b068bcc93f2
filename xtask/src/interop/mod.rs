//! Foreign programs against the release binary, over its real transports.
//!
//! Nothing here is written by us but the glue: the clients are the official SDKs and the inspector,
//! the conformance suite is the official one, and so are the servers that are put behind it. The server runs as a user would run it: the example
//! tools of the repository for the clients, a folder of plain executables and prompts for the
//! suite. There is no test mode.
//!
//! Every foreign part is pinned (`xtask/fixtures/clients/`) and installed below `target/interop`
//! once; deleting that folder starts afresh.

mod clients;
mod conformance;
mod install;
mod pattern;
mod relay;

use std::time::Instant;

use crate::Outcome;
use crate::server;
use crate::tally::Tally;

/// What can be asked for by name; in this order.
const PARTS: &[&str] = &["conformance", "relay", "python", "typescript", "inspector"];

/// Runs the named parts, or all of them.
pub(crate) fn run(names: &[String]) -> Outcome {
    if let Some(unknown) = names.iter().find(|name| !PARTS.contains(&name.as_str())) {
        return Err(format!("`{unknown}` is none of: {}", PARTS.join(", ")));
    }
    let wanted = |part: &str| names.is_empty() || names.iter().any(|name| name == part);

    let binary = server::build()?;
    let started = Instant::now();
    let foreign = install::install(wanted("python") || wanted("relay"))?;
    println!("foreign programs are in place ({:.1} s)", started.elapsed().as_secs_f64());

    let mut tally = Tally::default();
    if wanted("conformance") {
        conformance::run(&binary, &foreign, &mut tally)?;
    }
    if wanted("relay") {
        relay::run(&binary, &foreign, &mut tally)?;
    }
    for client in clients::all() {
        if wanted(client.part()) {
            clients::run(client, &binary, &foreign, &mut tally)?;
        }
    }
    Ok(tally.close())
}
