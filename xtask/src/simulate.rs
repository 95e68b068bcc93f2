//! The simulation of tasks that are programs, for longer than the tests run it: 10^8 steps unless another number is given.

use std::process::Command;

use crate::{Outcome, root};

/// How many steps there are.
const STEPS: &str = "100000000";

/// The test that simulates.
const TEST: &str = "program::simulation::programs_survive_crashes_at_any_step";

/// Runs the simulation with so many steps, from a seed.
pub(crate) fn run(arguments: &[String]) -> Outcome {
    let (steps, seed) = match arguments {
        [] => (STEPS, None),
        [steps] => (steps.as_str(), None),
        [steps, seed] => (steps.as_str(), Some(seed)),
        _ => return Err("give the number of steps and a seed, or nothing".to_owned()),
    };
    for number in std::iter::once(steps).chain(seed.map(String::as_str)) {
        number.parse::<u64>().map_err(|err| format!("{number}: {err}"))?;
    }
    let mut test = Command::new("cargo");
    test.current_dir(root()).args([
        "test",
        "--profile",
        "bench",
        "-p",
        "orla-tasks",
        "--lib",
        "--",
        TEST,
    ]);
    test.args(["--exact", "--nocapture"]).env("ORLA_SIMULATION_STEPS", steps);
    if let Some(seed) = seed {
        test.env("ORLA_SIMULATION_SEED", seed);
    }
    let status = test.status().map_err(|err| format!("cargo: {err}"))?;
    Ok(status.success())
}
