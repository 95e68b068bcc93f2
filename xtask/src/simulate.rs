//! Simulations, for longer than the tests run them: 10^8 steps of each, unless another number is given.

use std::process::Command;

use crate::{Outcome, root};

/// How many steps of each simulation there are.
const STEPS: u64 = 100_000_000;
/// The same, with `--quick`.
const QUICK: u64 = 1_000_000;

/// A test that simulates.
struct Simulation {
    name: &'static str,
    package: &'static str,
    test: &'static str,
}

const SIMULATIONS: [Simulation; 4] = [
    Simulation {
        name: "programs",
        package: "orla-tasks",
        test: "program::simulation::programs_survive_crashes_at_any_step",
    },
    Simulation {
        name: "tasks",
        package: "orla-tasks",
        test: "nodes_simulation::tasks_survive_any_network_and_any_trouble_of_nodes",
    },
    Simulation {
        name: "permits",
        package: "orla-cluster",
        test: "limits::simulation::places_hold_over_any_network_and_any_trouble_of_nodes",
    },
    Simulation {
        name: "sessions",
        package: "orla-server",
        test: "mcp::session::simulation::sessions_move_over_any_network",
    },
];

/// Runs the simulation with this name, or all of them, with so many steps, from a seed.
pub(crate) fn run(arguments: &[String]) -> Outcome {
    let (mut steps, mut numbers, mut names) = (STEPS, Vec::new(), Vec::new());
    for argument in arguments {
        match argument.as_str() {
            "--quick" => steps = QUICK,
            text if text.starts_with(|first: char| first.is_ascii_digit()) => {
                numbers.push(text.parse::<u64>().map_err(|err| format!("{text}: {err}"))?);
            }
            name => names.push(name),
        }
    }
    if let Some(unknown) = names.iter().find(|name| SIMULATIONS.iter().all(|it| it.name != **name)) {
        return Err(format!("no simulation is named `{unknown}`"));
    }
    let seed = match numbers[..] {
        [] => None,
        [own] => {
            steps = own;
            None
        }
        [own, seed] => {
            steps = own;
            Some(seed)
        }
        _ => return Err("give names, the number of steps, and a seed".to_owned()),
    };
    let chosen = || SIMULATIONS.iter().filter(|it| names.is_empty() || names.contains(&it.name));
    // So few steps take less time than another build.
    let profile = if steps > QUICK { "bench" } else { "test" };
    let tests = |option: &str| {
        let mut tests = Command::new("cargo");
        tests.current_dir(root()).args(["test", "--profile", profile, "--lib", "--no-fail-fast"]);
        for simulation in chosen() {
            tests.args(["-p", simulation.package]);
        }
        tests.args(["--", "--exact", option]).args(chosen().map(|it| it.test));
        tests
    };
    // A name that no test has is no error of `cargo test`.
    let listed = tests("--list").output().map_err(|err| format!("cargo: {err}"))?;
    let listed =
        String::from_utf8_lossy(&listed.stdout).lines().filter(|it| it.ends_with(": test")).count();
    if listed != chosen().count() {
        return Err(format!("of {} simulations, {listed} are tests", chosen().count()));
    }
    let mut tests = tests("--nocapture");
    tests.env("ORLA_SIMULATION_STEPS", steps.to_string());
    if let Some(seed) = seed {
        tests.env("ORLA_SIMULATION_SEED", seed.to_string());
    }
    let status = tests.status().map_err(|err| format!("cargo: {err}"))?;
    Ok(status.success())
}
