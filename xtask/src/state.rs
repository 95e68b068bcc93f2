//! State over many crashes and faults: two tests of `orla-state`, for longer than the tests do.

use std::process::Command;

use crate::Outcome;

const KILLS: &str = "1000";

pub(crate) fn run(arguments: &[String]) -> Outcome {
    match arguments {
        [] => kills(KILLS),
        [all] if all == "faults" => faults(),
        [number] if number.parse::<u32>().is_ok_and(|number| number > 0) => kills(number),
        _ => Err("expected `faults` or a number of kills".to_owned()),
    }
}

fn kills(number: &str) -> Outcome {
    let test = "nothing_acknowledged_is_lost_or_doubled_when_the_process_is_killed";
    run_test("crash", test, ("ORLA_STATE_KILLS", number))
}

fn faults() -> Outcome {
    run_test(
        "faults",
        "nothing_acknowledged_is_lost_when_a_call_to_the_system_fails",
        ("ORLA_STATE_FAULTS", "all"),
    )
}

fn run_test(file: &str, test: &str, (name, value): (&str, &str)) -> Outcome {
    let status = Command::new("cargo")
        .args(["test", "--package", "orla-state", "--test", file, "--", "--exact", test, "--nocapture"])
        .env(name, value)
        .current_dir(crate::root())
        .status()
        .map_err(|err| format!("cargo: {err}"))?;
    Ok(status.success())
}
