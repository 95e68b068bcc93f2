//! Foreign programs against the release binary, over its real transports.
//!
//! Nothing here is written by us but the glue: the clients are the official SDKs and the inspector,
//! the conformance suite is the official one, the servers behind it are published ones or thin files on
//! published SDKs, and the large API is a real one's. The server runs as a user would run it: the example
//! tools of the repository for the clients, a folder of plain executables and prompts for the
//! suite, a client's own `mcpServers` for what is behind it. There is no test mode.
//!
//! Every foreign part is pinned (`xtask/fixtures/clients/`) and installed below `target/clients`
//! once; deleting that folder starts afresh.

mod agents;
mod asked;
mod behind;
pub(crate) mod clients;
pub(crate) mod conformance;
mod cutter;
mod differential;
mod examples;
mod openapi;
mod pasted;
mod pattern;
mod sign_in;
mod streams;
mod upstream;

use std::time::Instant;

use crate::Outcome;
use crate::install;
use crate::server;
use crate::tally::Tally;

/// What can be asked for by name; in this order.
const PARTS: &[&str] = &[
    "conformance",
    "sign-in",
    "python",
    "typescript",
    "inspector",
    "differential",
    "behind",
    "pasted",
    "openapi",
    "examples",
    "agents",
    "asked",
    "streams",
];

/// Runs the named parts, or all of them.
pub(crate) fn run(names: &[String]) -> Outcome {
    if let Some(unknown) = names.iter().find(|name| !PARTS.contains(&name.as_str())) {
        return Err(format!("`{unknown}` is not one of: {}", PARTS.join(", ")));
    }
    let wanted = |part: &str| names.is_empty() || names.iter().any(|name| name == part);

    let binary = server::binary()?;
    let started = Instant::now();
    let foreign = install::programs(
        "clients",
        ["python", "differential", "behind", "agents", "asked", "streams"].into_iter().any(wanted),
    )?;
    println!("foreign programs are in place ({:.1} s)", started.elapsed().as_secs_f64());

    let mut tally = Tally::default();
    if wanted("conformance") {
        conformance::run(&binary, &foreign, &mut tally)?;
    }
    if wanted("sign-in") {
        sign_in::run(&binary, &foreign, &mut tally)?;
    }
    for client in clients::all() {
        if wanted(client.part()) {
            clients::run(client, &binary, &foreign, &mut tally)?;
        }
    }
    if wanted("differential") {
        differential::run(&binary, &foreign, &mut tally)?;
    }
    if wanted("behind") {
        behind::run(&binary, &foreign, &mut tally)?;
    }
    if wanted("pasted") {
        pasted::run(&binary, &foreign, &mut tally)?;
    }
    if wanted("openapi") {
        openapi::run(&binary, &foreign, &mut tally)?;
    }
    if wanted("examples") {
        examples::run(&binary, &foreign, &mut tally)?;
    }
    if wanted("agents") {
        agents::run(&binary, &foreign, &mut tally)?;
    }
    if wanted("asked") {
        asked::run(&binary, &foreign, &mut tally)?;
    }
    if wanted("streams") {
        streams::run(&binary, &foreign, &mut tally)?;
    }
    Ok(tally.close())
}
