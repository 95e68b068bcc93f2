//! `cargo xtask`: the jobs that are neither a build nor a test because they leave cargo.
//!
//! - `interop` installs pinned foreign programs below `target/clients` and lets them talk to the
//!   release binary (the official conformance suite, the official SDKs, the inspector), or stand behind
//!   it (published servers, a large API).
//! - `identity` puts authorization servers and clients that others wrote before and behind the release binary.
//! - `browser` opens every page of the console in a real browser, and goes the whole way of a person through it.
//! - `bench` measures the release binary beside what it is built on, in one run on one machine, and the language beside other
//!   embedded ones.
//! - `rest` lets a generator of requests and generated clients call `/api` of the release binary.
//! - `tck` runs the official compatibility kit of the A2A project, which has to be checked out somewhere.
//! - `suites` runs the public test suites of formats and languages (JSON Schema, JSONPath, TOML, YAML and others) against the
//!   release binary, and lists what fails with its cause.
//! - `durable` kills the release binary while tasks and durable programs run and sleep, and shows what survives and what it costs.
//! - `endure` lets the release binary run for minutes under load, signals and crashes, and looks for
//!   calls that failed and processes that were left.
//! - `sandbox` shows what confined processes can do, and what confinement costs.
//! - `cluster` runs several nodes over a real NATS server, and lets nodes and NATS die.
//! - `state` kills a process at random moments while it writes state.
//! - `telemetry` reads the traces of prompts of the release binary with OpenTelemetry's own messages.
//! - `history` opens the console over 10^6 calls, and follows its live table while 2,000 calls end each second.
//! - `forms` counts the forms that the console makes of the schemas of published servers and APIs.
//! - `packages` kills `orla add`, `update` and `sync` at many moments.
//! - `registry` asks orla what it would install of many published `server.json`, from a stand-in of a registry that also fails.
//! - `simulate` lets simulated servers and nodes of a cluster fail at any step, over a network that fails too, for 10^8 steps.
//! - `docs` builds the documentation as a site, and runs what its tutorials say.
//! - `dist` makes everything that orla is installed from: archives, packages, scripts and what vouches for them.
//! - `machine` boots a virtual machine of Debian, installs the package there, and tries its service.
//! - `order` lists the functions that a start and each call run, for the linker.
//! - `licences` compares the licences of everything that is built into the product with a list.
//!
//! What must hold of the code alone is a `#[test]` and not here.

#![expect(clippy::print_stdout, clippy::print_stderr, reason = "the terminal is where a job reports")]

use std::path::{Path, PathBuf};
use std::process::ExitCode;

mod bench;
mod browser;
mod cluster;
mod dist;
mod docs;
mod durable;
mod endure;
mod forms;
mod history;
mod identity;
mod install;
mod interop;
mod licences;
mod order;
mod packages;
mod parts;
mod process;
mod registry;
mod rest;
#[cfg(target_os = "linux")]
mod sandbox;
mod server;
mod simulate;
mod state;
mod suites;
mod tally;
mod tck;
mod telemetry;

const USAGE: &str = "\
usage: cargo xtask COMMAND

  interop [WHAT…]    run foreign clients and the conformance suite against the release binary
                     (or $ORLA_BIN); WHAT is any of: conformance, sign-in, python,
                     typescript, inspector, differential, behind, pasted, openapi, examples,
                     agents, asked, streams (default: all)
  identity [--quick] [WHAT…]
                     sign in by foreign clients and at foreign authorization servers, with the release binary (or
                     $ORLA_BIN); let sslyze scan its TLS, and measure refusals; WHAT is any of: typescript, person,
                     callers, tls, python, idpyoidc, exchange, timing, canaille (default: all; --quick: the first four,
                     and less of tls)
  rest [--quick]     let Schemathesis, and clients generated from the OpenAPI document, call /api of the release binary
                     (or of $ORLA_BIN)
  browser [--quick] [WHAT…]
                     open the console of the release binary (or $ORLA_BIN) in Chromium, and leave pictures below
                     target/browser/pictures; WHAT is any of: pages, person, payloads (default: all)
  forms              count the forms that the console of the release binary (or $ORLA_BIN) makes of the schemas of twelve
                     published MCP servers and of 500 operations of three large OpenAPI documents; print why a part of an
                     input is JSON text
  history [--quick] [WHAT…]
                     the console of the release binary (or of $ORLA_BIN); WHAT is any of: rows (the first byte of its pages with
                     1,000,000 calls), live (how far its table is behind at 2,000 calls a second) (default: all; --quick:
                     100,000 calls, and 5 seconds)
  tck FOLDER         run the compatibility kit of the A2A project (a checkout of a2aproject/a2a-tck,
                     branch 1.0-dev) against orla as an agent; prints a table of levels and bindings
  telemetry [--quick]
                     let `orla agent` of the release binary (or of $ORLA_BIN) carry out prompts of a scripted model, and check
                     with OpenTelemetry's package for Python that each of them is one tree of spans (--quick: 5 instead of 50)
  suites [--from FOLDER] [WHAT…]
                     run the public test suites against the release binary (or $ORLA_BIN); WHAT is any
                     of: json-schema, jsonpath, jmespath, json-patch, toml, yaml, csv (default: all);
                     FOLDER holds a checkout of each by its name, instead of what git fetches
  bench [--quick] [--no-build] [--beside BINARY] [WHAT…]
                     measure the release binary, beside another one if you name it; prints tables and writes
                     target/bench/report.md and report.json; WHAT is any part of a row's name (default: all)
  bench compare REPORT REPORT
                     name what became slower between two reports by more than its noise
  durable [--quick] [WHAT…]
                     tasks and durable programs of the release binary (or of $ORLA_BIN) whose server is killed; WHAT is any of:
                     kills (a program of 40 calls, killed after every step, 200 times), sleepers (100,000 sleeping programs:
                     memory, and when they wake), sdk (the official SDK's client), power (the power fails at 5,000 moments),
                     rows (a state of 1,000,000 rows), cost, files (states that cannot be used) (default: all; --quick:
                     less of each)
  endure [--quick] [WHAT…]
                     long runs of the release binary (or of $ORLA_BIN) under load, signals and
                     crashes; WHAT is any part of a run's name (default: all)
  sandbox [--quick] [--bless] [WHAT…]
                     what confined processes of the release binary (or of $ORLA_BIN) can do; WHAT is any of: table,
                     kernels, storms, bombs, cost, servers (twelve published MCP servers, with `sandbox: strict` and without)
                     (default: all; --quick: less of each); --bless writes the golden table; needs Linux
  cluster [--quick] [WHAT…]
                     several nodes of the release binary (or of $ORLA_BIN) over a real NATS server, which is installed
                     below target/cluster; WHAT is any of: calls, faults, tasks, sessions, limits, approvals, example, access,
                     kills (a program of 40 calls, whose node is killed after every step, 200 times), cost, chaos (nodes and
                     NATS servers die under load, and a node stands still), foreign (the conformance suite and the official
                     SDKs through a load balancer; not with --quick) (default: all; --quick: less of each)
  state [KILLS|faults]
                     kill -9 a process that writes state KILLS times (default: 1000), and look for writes that were
                     acknowledged and are lost, or made twice; faults: let each of its system calls fail in turn
                     (by strace)
  packages [--quick | KILLS]
                     kill -9 `orla add`, `update` and `sync` at so many moments (default: 200, --quick: 20), and look
                     whether the old or the new package is there
  registry [--quick] FOLDER
                     serve the server.json files below FOLDER as a registry does, and count what the release binary (or
                     $ORLA_BIN) would install of them and why not the rest; then let the registry fail (--quick: in the
                     ways that need no waiting)
  simulate [--quick] [WHAT…] [STEPS [SEED]]
                     simulate servers that fail at any step; WHAT is any of: programs (tasks of one server), tasks, permits,
                     sessions (of three nodes, over a network that loses, delays, repeats and reorders messages) (default:
                     all); STEPS of each (default: 100000000, --quick: 1000000)
  docs [--quick] [--bless] [WHAT…]
                     build the site over docs/ in target/docs/site, check its links, and run every command of the tour and
                     the tutorials with the release binary (or $ORLA_BIN); WHAT is any of: links, site, commands, or the
                     end of a page's path (default: all; --quick: without what needs the network); --bless writes what the
                     commands print into the pages
  dist [--target TARGET]… [--profile PROFILE] [--twice] [--check]
                     build programs of the commit with every feature (WebAssembly too), and pack them below
                     target/dist/VERSION: archives, Debian and npm packages, wheels, install.sh, checksums, bills of
                     materials, provenance; --target: by default, the static targets that are installed; those for glibc
                     need version 2.17 or newer; --profile: of Cargo, by default `dist`; --twice: build in two folders, and
                     compare; --check: install and run each
  dist --binary TARGET=FILE… [--features FEATURES] [--check]
                     pack programs that are there
  dist --quick       pack the release binary (or $ORLA_BIN), install and run each package
  machine            pack the release binary (or $ORLA_BIN) as a Debian package, and boot a virtual machine of Debian 13
                     that installs it: the service starts, is confined, reloads, and limits calls by control groups;
                     needs root, QEMU, mmdebstrap and mke2fs
  order              write crates/orla/functions.order: the functions that a start and each call of the release binary (or of
                     $ORLA_BIN, which needs its symbols) run, which the linker then puts beside each other; needs Valgrind
  licences           check the licences of all dependencies against the list of accepted ones
";

fn main() -> ExitCode {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let (command, rest) = match arguments.split_first() {
        Some((command, rest)) => (command.as_str(), rest),
        None => ("help", arguments.as_slice()),
    };
    let result = match command {
        "interop" => interop::run(rest),
        "identity" => identity::run(rest),
        "tck" => tck::run(rest),
        "telemetry" => telemetry::run(rest),
        "suites" => suites::run(rest),
        "bench" => bench::run(rest),
        "browser" => browser::run(rest),
        "durable" => durable::run(rest),
        "endure" => endure::run(rest),
        "forms" => forms::run(rest),
        "history" => history::run(rest),
        #[cfg(target_os = "linux")]
        "sandbox" => sandbox::run(rest),
        "cluster" => cluster::run(rest),
        "rest" => rest::run(rest),
        "state" => state::run(rest),
        "packages" => packages::run(rest),
        "registry" => registry::run(rest),
        "simulate" => simulate::run(rest),
        "docs" => docs::run(rest),
        "dist" => dist::run(rest),
        "machine" => dist::machine(),
        "order" => order::run(rest),
        "licences" | "licenses" => licences::run(),
        "help" | "--help" | "-h" => {
            print!("{USAGE}");
            return ExitCode::SUCCESS;
        }
        other => {
            eprintln!("error: no command is named `{other}`\n\n{USAGE}");
            return ExitCode::from(2);
        }
    };
    match result {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::FAILURE,
        Err(problem) => {
            eprintln!("error: {problem}");
            ExitCode::FAILURE
        }
    }
}

/// What a job gives back: whether everything it checked holds, or why it could not check.
type Outcome = Result<bool, String>;

/// Returns the root of the repository.
fn root() -> PathBuf {
    let manifest = PathBuf::from(env!("CARGO_MANIFEST_DIR"));
    manifest.parent().map_or_else(|| manifest.clone(), PathBuf::from)
}

/// Returns a folder below cargo's target directory, made if it is not there.
fn target(name: &str) -> Result<PathBuf, String> {
    let base = std::env::var_os("CARGO_TARGET_DIR").map_or_else(|| root().join("target"), PathBuf::from);
    let folder = base.join(name);
    std::fs::create_dir_all(&folder).map_err(|err| format!("{}: {err}", folder.display()))?;
    Ok(folder)
}

/// Copies a folder with all that is below it, permissions included, in place of what was there.
fn copy_folder(from: &Path, to: &Path) -> Result<(), String> {
    let problem = |err: std::io::Error| format!("{}: {err}", from.display());
    if to.exists() {
        std::fs::remove_dir_all(to).map_err(problem)?;
    }
    std::fs::create_dir_all(to).map_err(problem)?;
    for entry in std::fs::read_dir(from).map_err(problem)? {
        let entry = entry.map_err(problem)?;
        let (from, to) = (entry.path(), to.join(entry.file_name()));
        if from.is_dir() {
            copy_folder(&from, &to)?;
        } else {
            std::fs::copy(from, to).map_err(problem)?;
        }
    }
    Ok(())
}
