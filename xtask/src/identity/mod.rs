//! Identity against programs that others wrote: authorization servers on loopback (`oidc-provider`, which is certified,
//! `idpyoidc` and Canaille), and the official SDKs of MCP with their own sign-in.
//!
//! orla is the resource server of one and the client of the other, as a user would configure it. Everything is pinned
//! (`xtask/fixtures/identity/`) and installed below `target/identity` once. The table of what the specification of MCP
//! asks, and of the tests that show it, is in `docs/design/authorization.md`.

mod callers;
mod clients;
mod issuers;
mod person;
mod timing;
mod tls;
mod world;

use crate::install;
use crate::parts::{self, Parts};
use crate::tally::Tally;
use crate::{Outcome, server};
use callers::Way;
use world::{Software, World};

/// What can be asked for by name.
const PARTS: &[&str] =
    &["typescript", "python", "idpyoidc", "person", "callers", "exchange", "tls", "timing", "canaille"];
/// What needs Python.
const PYTHON: [&str; 4] = ["python", "idpyoidc", "exchange", "canaille"];
/// What `--quick` runs, some of it in a shorter form.
const QUICK: &[&str] = &["typescript", "person", "callers", "tls"];

/// Runs the named parts, or all of them.
pub(crate) fn run(arguments: &[String]) -> Outcome {
    let parts = Parts::of(arguments, &[parts::QUICK], PARTS)?;
    let is_short = parts.is_quick && parts.is_all();
    let wanted = |part: &str| if is_short { QUICK.contains(&part) } else { parts.has(part) };
    let binary = server::binary()?;
    let foreign = install::programs("identity", PYTHON.into_iter().any(wanted))?;
    let world = World::new(&binary, &foreign)?;
    let mut tally = Tally::default();
    if wanted("typescript") {
        clients::typescript(&world, Software::OidcProvider, &mut tally)?;
    }
    if wanted("python") {
        clients::python(&world, Software::OidcProvider, &mut tally)?;
    }
    if wanted("idpyoidc") {
        clients::typescript(&world, Software::Idpyoidc, &mut tally)?;
        clients::python(&world, Software::Idpyoidc, &mut tally)?;
    }
    if wanted("person") {
        person::run(&world, &mut tally)?;
    }
    if wanted("callers") {
        callers::run(&world, Way::SignIn, &mut tally)?;
    }
    if wanted("exchange") {
        callers::run(&world, Way::Exchange, &mut tally)?;
    }
    if wanted("tls") {
        tls::run(&world, parts.is_quick, &mut tally)?;
    }
    if wanted("timing") {
        timing::run(&world, &mut tally)?;
    }
    if wanted("canaille") {
        issuers::canaille(&world, &mut tally)?;
    }
    Ok(tally.close())
}
