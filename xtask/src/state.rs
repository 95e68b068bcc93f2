//! State over many crashes: the test that kills a process which writes, for longer than the tests do.

use std::process::Command;

use crate::Outcome;

const KILLS: &str = "1000";
const TEST: &str = "nothing_acknowledged_is_lost_or_doubled_when_the_process_is_killed";

pub(crate) fn run(arguments: &[String]) -> Outcome {
    let kills = match arguments {
        [] => KILLS,
        [kills] if kills.parse::<u32>().is_ok_and(|kills| kills > 0) => kills,
        _ => return Err("expected a number of kills".to_owned()),
    };
    let status = Command::new("cargo")
        .args([
            "test",
            "--package",
            "orla-state",
            "--test",
            "crash",
            "--",
            "--exact",
            TEST,
            "--nocapture",
        ])
        .env("ORLA_STATE_KILLS", kills)
        .current_dir(crate::root())
        .status()
        .map_err(|err| format!("cargo: {err}"))?;
    Ok(status.success())
}
