//! The release binary beside what it is built on, measured in one run on one machine.
//!
//! A figure means nothing without its floor, so each call is taken side by side with one: a tool beside spawning the same
//! program, a capsule beside its own pipes, an MCP server beside a relay that reads nothing but ids. The rounds of all sides
//! are interleaved, so that whatever else the machine does hits them alike; medians of the rounds are reported, with their
//! spread.
//!
//! - [`rows`]: the comparisons. [`side`] measures one, [`goals`] are what they should reach.
//! - What is no comparison of calls. [`life`]: start and reload; [`memory`]: what the server occupies; [`tasks`]: durable work.
//! - [`rtfs`]: the language beside other embedded ones.
//! - [`client`]: the client side, HTTP/1.1 over plain sockets; [`cores`]: where it runs.
//! - [`gateways`]: gateways that others publish.
//! - [`report`]: tables, JSON, and the comparison of two runs.
//!
//! Every loop is bounded in time.

pub(crate) mod client;
mod cores;
mod gateways;
mod goals;
mod life;
mod memory;
pub(crate) mod report;
mod rows;
mod rtfs;
mod side;
pub(crate) mod stats;
pub(crate) mod tasks;

use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use serde_json::Value;

use self::cores::Cores;
pub(crate) use self::life::{executable, fresh, package};
use self::report::{Figure, Report};
pub(crate) use self::rows::{TEN_CALLS, arguments};
use crate::Outcome;
use crate::server;

const USAGE: &str = "\
usage: cargo xtask bench [--quick] [--no-build] [--beside BINARY] [WHAT…]
       cargo xtask bench compare REPORT REPORT

  --quick          shorter rounds, fewer of them, no published gateways
  --no-build       take what is built
  --beside BINARY  measure another orla in the same run, and say what differs by more than its noise
  WHAT             measure only what has this in its name
  compare          say what differs between two reports by more than its noise; exit 1 if anything became worse";

/// The side that is built from this tree, and the one that `--beside` names.
const OURS: &str = "orla";
const BESIDE: &str = "beside";

/// How much is measured.
#[derive(Clone, Copy)]
struct Effort {
    /// Interleaved rounds of each comparison.
    rounds: usize,
    /// How long one round of one side takes.
    round: Duration,
    /// Idle sessions to open.
    sessions: usize,
    /// Starts for each size of catalogue.
    starts: usize,
    /// Reloads under load, and of a capsule.
    reloads: usize,
    /// Capsules that run and are not called.
    capsules: usize,
    /// Whether published gateways are installed and take part.
    gateways: bool,
}

const FULL: Effort = Effort {
    rounds: 6,
    round: Duration::from_millis(1000),
    sessions: 10_000,
    starts: 15,
    reloads: 20,
    capsules: 500,
    gateways: true,
};
const QUICK: Effort = Effort {
    rounds: 4,
    round: Duration::from_millis(250),
    sessions: 1_000,
    starts: 5,
    reloads: 5,
    capsules: 50,
    gateways: false,
};

/// A binary that takes part.
struct Orla {
    /// [`OURS`] or [`BESIDE`].
    name: String,
    binary: PathBuf,
}

/// The programs that take part.
struct Programs {
    /// The one that is built from this tree, and the one that it is compared with.
    orlas: Vec<Orla>,
    /// A bare handler on the same HTTP stack.
    bare_echo: PathBuf,
    /// The server with a capability that needs no process.
    embedded: PathBuf,
    /// The official SDK's own HTTP service.
    sdk: PathBuf,
    /// The static program, which every tool call here runs.
    floor: PathBuf,
    /// A capsule that gives back what it is called with.
    echo_capsule: PathBuf,
    /// A plugin that gives back what it is called with.
    echo_plugin: PathBuf,
    /// An MCP server that answers at once.
    echo_mcp: PathBuf,
    /// A relay that reads nothing but ids.
    relay: PathBuf,
    /// A relay on the HTTP stack of the product, which reads the envelopes of messages alone.
    hyper_relay: PathBuf,
    /// A place for folders of tools.
    folder: PathBuf,
}

impl Programs {
    /// Returns the binary that is built from this tree.
    fn binary(&self) -> &Path {
        &self.orlas[0].binary
    }
}

/// What the command line asks for.
struct Wanted<'a> {
    effort: Effort,
    is_built: bool,
    beside: Option<&'a Path>,
    names: Vec<&'a str>,
}

impl<'a> Wanted<'a> {
    fn of(arguments: &'a [String]) -> Result<Self, String> {
        let mut wanted = Self { effort: FULL, is_built: false, beside: None, names: Vec::new() };
        let mut arguments = arguments.iter();
        while let Some(argument) = arguments.next() {
            match argument.as_str() {
                "--quick" => wanted.effort = QUICK,
                "--no-build" => wanted.is_built = true,
                "--beside" => {
                    wanted.beside = Some(Path::new(arguments.next().ok_or(USAGE)?));
                }
                option if option.starts_with('-') => return Err(USAGE.to_owned()),
                name => wanted.names.push(name),
            }
        }
        Ok(wanted)
    }

    fn includes(&self, name: &str) -> bool {
        self.names.is_empty() || self.names.iter().any(|part| name.contains(part))
    }
}

/// Measures everything and writes `target/bench/report.json` and `report.md`, or compares two such reports.
///
/// A goal that is missed is shown and is no failure: a bench reports, it does not judge.
pub(crate) fn run(arguments: &[String]) -> Outcome {
    if let [command, before, after] = arguments
        && command == "compare"
    {
        let (text, is_none_worse) = report::compare_reports(&read(before)?, &read(after)?);
        println!("{}", if text.is_empty() { "no difference beyond the noise" } else { text.trim_end() });
        return Ok(is_none_worse);
    }
    let wanted = Wanted::of(arguments)?;
    let report = measure(&wanted)?;
    let (text, json) = (report.as_markdown(), format!("{:#}\n", report.as_json()));
    println!("{text}");
    if let Some((differences, _)) = report::compare_sides(&report.measurements, BESIDE, OURS) {
        println!("beside the other binary:\n{differences}");
    }
    let folder = crate::target("bench")?;
    for (name, text) in [("report.md", text), ("report.json", json)] {
        let file = folder.join(name);
        std::fs::write(&file, text).map_err(|err| format!("{}: {err}", file.display()))?;
        println!("written to {}", file.display());
    }
    Ok(true)
}

fn read(file: &str) -> Result<Value, String> {
    let text = std::fs::read_to_string(file).map_err(|err| format!("{file}: {err}"))?;
    serde_json::from_str(&text).map_err(|err| format!("{file}: {err}"))
}

fn measure(wanted: &Wanted<'_>) -> Result<Report, String> {
    let (effort, mut report) = (wanted.effort, Report::default());
    let rtfs = wanted.includes("rtfs");
    if !wanted.is_built && (rtfs || rows::FOREIGN.iter().any(|row| wanted.includes(row))) {
        build_foreign()?;
    }
    if rtfs {
        eprintln!("measuring: rtfs");
        report.figures = rtfs::languages(effort).map_err(|err| format!("rtfs: {err}"))?;
    }
    let rows: Vec<_> = rows::ROWS.iter().filter(|(name, _)| wanted.includes(name)).collect();
    let lives: Vec<_> = LIVES.iter().filter(|(name, _)| wanted.includes(name)).collect();
    if rows.is_empty() && lives.is_empty() {
        return Ok(report);
    }
    if !wanted.is_built {
        server::build()?;
        server::cargo(&["build", "--release", "--package", "orla-server", "--examples"])?;
    }
    let programs = programs(wanted.beside)?;
    let cores = Cores::split();
    if let Some(cores) = &cores {
        cores.serve()?;
    }
    for (name, prepare) in rows {
        eprintln!("measuring: {name}");
        let measured = prepare(&programs, effort).and_then(|(row, skipped)| {
            report.skipped.extend(skipped);
            row.measure(effort, cores.as_ref(), &mut report.skipped)
        });
        report.measurements.extend(measured.map_err(|err| format!("{name}: {err}"))?);
    }
    for (name, life) in lives {
        eprintln!("measuring: {name}");
        report.figures.extend(life(&programs, effort).map_err(|err| format!("{name}: {err}"))?);
    }
    report.verdicts = goals::verdicts(&report.measurements);
    Ok(report)
}

/// What measures something that is no comparison of calls.
type Life = fn(&Programs, Effort) -> Result<Vec<Figure>, String>;

const LIVES: &[(&str, Life)] = &[
    ("tool call in the server", life::inside),
    ("prestarted script", life::prestarted),
    ("first call after a reload", life::first_call),
    ("idle capsules", memory::idle_capsules),
    ("reload of a capsule", life::capsule_reload),
    ("start", life::start),
    ("reload under load", life::reload),
    ("memory", memory::memory),
    ("memory after large programs", memory::burst),
    ("output of 1 GB", memory::flood),
    ("accepted task", |it, effort| tasks::acceptance(it.binary(), &it.folder, effort.rounds)),
    ("durable program", |it, effort| tasks::durable(it.binary(), &it.folder, effort.rounds)),
    ("sleeping programs", tasks::wake),
];

fn programs(beside: Option<&Path>) -> Result<Programs, String> {
    let mut orlas = vec![Orla { name: OURS.to_owned(), binary: crate::target("release")?.join("orla") }];
    if let Some(binary) = beside {
        let binary = binary.canonicalize().map_err(|err| format!("{}: {err}", binary.display()))?;
        orlas.push(Orla { name: BESIDE.to_owned(), binary });
    }
    let examples = crate::target("release/examples")?;
    let folder = crate::target("bench")?;
    let floor = compiled("floor", &folder)?;
    let echo_capsule = compiled("echo_capsule", &folder)?;
    let echo_plugin = compiled("echo_plugin", &folder)?;
    let echo_mcp = compiled("echo_mcp", &folder)?;
    let relay = compiled("relay", &folder)?;
    Ok(Programs {
        orlas,
        bare_echo: examples.join("bare_echo"),
        embedded: examples.join("embedded"),
        sdk: folder.join("release/rmcp_echo"),
        hyper_relay: folder.join("release/hyper_relay"),
        floor,
        echo_capsule,
        echo_plugin,
        echo_mcp,
        relay,
        folder,
    })
}

/// Builds `bench/`: what other crates are measured with.
fn build_foreign() -> Result<(), String> {
    let status = Command::new("cargo")
        .args(["build", "--release", "--locked", "--manifest-path"])
        .arg(crate::root().join("bench/Cargo.toml"))
        .arg("--target-dir")
        .arg(crate::target("bench")?)
        .status();
    if status.is_ok_and(|status| status.success()) {
        Ok(())
    } else {
        Err("bench/ cannot be built".to_owned())
    }
}

/// Builds a program of the fixtures, statically linked where the system can.
pub(crate) fn compiled(name: &str, folder: &Path) -> Result<PathBuf, String> {
    let source = crate::root().join("xtask/fixtures").join(name).with_extension("rs");
    let program = folder.join(name);
    let compile = |link: &[&str]| {
        Command::new("rustc")
            .args(["--edition", "2024", "-O", "-C", "panic=abort"])
            .args(link)
            .arg("-o")
            .arg(&program)
            .arg(&source)
            .status()
            .is_ok_and(|status| status.success())
    };
    if !compile(&["-C", "target-feature=+crt-static", "-C", "relocation-model=static"]) && !compile(&[])
    {
        return Err(format!("rustc could not build {}", source.display()));
    }
    Ok(program)
}
