//! Installations over many crashes: a test of `orla`, with more of them than the tests make.

use std::process::Command;

use crate::Outcome;
use crate::parts::QUICK;

const KILLS: &str = "200";
const QUICK_KILLS: &str = "20";
const TEST: &str = "packages::killed::a_killed_add_update_or_sync_leaves_the_old_or_the_new_package";

pub(crate) fn run(arguments: &[String]) -> Outcome {
    let kills = match arguments {
        [] => KILLS,
        [quick] if quick == QUICK => QUICK_KILLS,
        [number] if number.parse::<u32>().is_ok_and(|number| number > 0) => number,
        _ => return Err(format!("expected {QUICK} or a number of kills")),
    };
    let status = Command::new("cargo")
        .args(["test", "--package", "orla", "--test", "it", "--", "--exact", TEST, "--nocapture"])
        .env("ORLA_PACKAGE_KILLS", kills)
        .current_dir(crate::root())
        .status()
        .map_err(|err| format!("cargo: {err}"))?;
    Ok(status.success())
}
