//! The release binary beside what it is built on, measured in one run on one machine.
//!
//! A figure means nothing without its floor, so each is taken side by side with one: calls of a tool
//! beside spawning the same program directly, calls of a capability without a process beside a bare
//! handler that echoes the same JSON. The rounds of both are interleaved, so that whatever else the
//! machine does hits both alike, and the median of the rounds is what is reported.
//!
//! - [`calls`]: a tool call over keep-alive HTTP; a capability without a process.
//! - [`capsules`]: a capsule call beside the capsule's own pipes; idle capsules; the time to new code.
//! - [`plugins`]: a plugin call beside the plugin's own pipes.
//! - [`proxied`]: a call of an MCP server behind it, beside the server itself, a bare relay, and published gateways.
//! - [`life`]: start, reload under load, memory.
//! - [`rtfs`]: the language beside other embedded ones.
//! - [`client`]: the client side, HTTP/1.1 over plain sockets.
//!
//! Every loop is bounded in time; a whole run takes about three minutes once the gateways are installed, `--quick` about half of one.

mod calls;
mod capsules;
pub(crate) mod client;
mod life;
mod plugins;
mod proxied;
mod rtfs;
mod stats;

use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use serde_json::{Value, json};

use crate::Outcome;
use crate::server;

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
    rounds: 5,
    round: Duration::from_millis(1500),
    sessions: 10_000,
    starts: 15,
    reloads: 20,
    capsules: 500,
    gateways: true,
};
const QUICK: Effort = Effort {
    rounds: 3,
    round: Duration::from_millis(400),
    sessions: 1_000,
    starts: 5,
    reloads: 5,
    capsules: 50,
    gateways: false,
};

/// One line of the table.
struct Figure {
    what: String,
    /// As a person reads it.
    measured: String,
    /// As a program reads it; the unit is in the name.
    values: Value,
    /// What it should reach, if anything was promised.
    goal: Option<Goal>,
}

/// A goal, and whether it was reached.
struct Goal {
    text: String,
    reached: bool,
}

impl Figure {
    fn new(what: impl Into<String>, measured: String, values: Value) -> Self {
        Self { what: what.into(), measured, values, goal: None }
    }

    fn goal(mut self, text: impl Into<String>, reached: bool) -> Self {
        self.goal = Some(Goal { text: text.into(), reached });
        self
    }
}

/// The programs that take part.
struct Programs {
    orla: PathBuf,
    /// A bare handler on the same HTTP stack.
    bare_echo: PathBuf,
    /// The server with a capability that needs no process.
    embedded: PathBuf,
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
    /// A place for folders of tools.
    folder: PathBuf,
}

/// Measures everything and writes `target/bench/report.json`.
///
/// A goal that is missed is shown and is no failure: a bench reports, it does not judge.
pub(crate) fn run(arguments: &[String]) -> Outcome {
    let (mut effort, mut is_built, mut wanted) = (FULL, false, Vec::new());
    for argument in arguments {
        match argument.as_str() {
            "--quick" => effort = QUICK,
            "--no-build" => is_built = true,
            option if option.starts_with('-') => {
                return Err("usage: cargo xtask bench [--quick] [--no-build] [WHAT…]".to_owned());
            }
            what => wanted.push(what),
        }
    }
    let is_wanted = |name: &str| wanted.is_empty() || wanted.iter().any(|what| name.contains(what));
    let mut figures = Vec::new();
    if is_wanted("rtfs") {
        eprintln!("measuring: rtfs");
        figures.extend(rtfs::languages(is_built, effort).map_err(|err| format!("rtfs: {err}"))?);
    }
    let parts = parts().into_iter().filter(|(name, _)| is_wanted(name)).collect::<Vec<_>>();
    if !parts.is_empty() {
        if !is_built {
            server::build()?;
            server::cargo(&["build", "--release", "--package", "orla-server", "--examples"])?;
        }
        let programs = programs()?;
        for (name, part) in parts {
            eprintln!("measuring: {name}");
            figures.extend(part(&programs, effort).map_err(|err| format!("{name}: {err}"))?);
        }
    }
    print_table(&figures);
    let report = crate::target("bench")?.join("report.json");
    std::fs::write(&report, format!("{:#}\n", as_json(&figures)))
        .map_err(|err| format!("{}: {err}", report.display()))?;
    println!("\nwritten to {}", report.display());
    Ok(true)
}

/// What measures the release binary.
type Part = fn(&Programs, Effort) -> Result<Vec<Figure>, String>;

fn parts() -> [(&'static str, Part); 11] {
    [
        ("tool calls", calls::tools as Part),
        ("capability without a process", calls::capability),
        ("capsule calls", capsules::calls),
        ("plugin calls", plugins::calls),
        ("proxied MCP calls", proxied::calls),
        ("idle capsules", capsules::idle),
        ("reload of a capsule", capsules::reload),
        ("start", life::start),
        ("reload under load", life::reload),
        ("memory", life::memory),
        ("output of 1 GB", life::flood),
    ]
}

fn programs() -> Result<Programs, String> {
    let orla = crate::target("release")?.join("orla");
    let examples = crate::target("release/examples")?;
    let folder = crate::target("bench")?;
    let floor = compiled("floor", &folder)?;
    let echo_capsule = compiled("echo_capsule", &folder)?;
    let echo_plugin = compiled("echo_plugin", &folder)?;
    let echo_mcp = compiled("echo_mcp", &folder)?;
    let relay = compiled("relay", &folder)?;
    Ok(Programs {
        orla,
        bare_echo: examples.join("bare_echo"),
        embedded: examples.join("embedded"),
        floor,
        echo_capsule,
        echo_plugin,
        echo_mcp,
        relay,
        folder,
    })
}

/// Builds a program of the fixtures, statically linked where the system can.
fn compiled(name: &str, folder: &Path) -> Result<PathBuf, String> {
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

fn print_table(figures: &[Figure]) {
    let width = |cell: fn(&Figure) -> &str| {
        figures.iter().map(|line| cell(line).chars().count()).max().unwrap_or(0)
    };
    let (first, second) = (width(|line| &line.what), width(|line| &line.measured));
    println!("\n{:first$}  {:second$}  goal", "what", "measured");
    for line in figures {
        let goal = line.goal.as_ref().map_or(String::new(), |goal| {
            format!("{} {}", goal.text, if goal.reached { "(reached)" } else { "(MISSED)" })
        });
        println!("{}", format!("{:first$}  {:second$}  {goal}", line.what, line.measured).trim_end());
    }
}

fn as_json(figures: &[Figure]) -> Value {
    let lines = figures.iter().map(|line| {
        json!({
            "what": line.what,
            "measured": line.measured,
            "values": line.values,
            "goal": line.goal.as_ref().map(|goal| &goal.text),
            "reached": line.goal.as_ref().map(|goal| goal.reached),
        })
    });
    json!({
        "cores": std::thread::available_parallelism().map_or(0, std::num::NonZero::get),
        "figures": lines.collect::<Vec<_>>(),
    })
}
