//! Traces of `orla agent`, received over HTTP and read with the messages that the OpenTelemetry project publishes for Python.
//!
//! The script and the pins are in `xtask/fixtures/telemetry`; `target/telemetry` has what is installed.

use std::process::Command;
use std::time::Duration;

use crate::install;
use crate::parts::{self, Parts};
use crate::tally::Tally;
use crate::{Outcome, process, server};

/// The prompts that are carried out.
const PROMPTS: &str = "50";
const QUICK_PROMPTS: &str = "5";
/// How long all of them may take.
const TIMEOUT: Duration = Duration::from_secs(600);

/// Runs the prompts.
pub(crate) fn run(arguments: &[String]) -> Outcome {
    let Parts { is_quick, .. } = Parts::of(arguments, &[parts::QUICK], &[])?;
    let binary = server::binary()?;
    let binary = std::path::absolute(&binary).map_err(|err| format!("{}: {err}", binary.display()))?;
    let fixtures = install::pins("telemetry");
    let folder = crate::target("telemetry")?;
    let python = install::python(&folder, &fixtures.join("requirements.txt"), "python")?;
    let world = folder.join("world");
    crate::copy_folder(&fixtures.join("world"), &world)?;
    let mut script = Command::new(python);
    script.arg(fixtures.join("agent.py")).arg(binary).arg(world);
    script.arg(if is_quick { QUICK_PROMPTS } else { PROMPTS });
    let mut tally = Tally::default();
    tally.judge("telemetry:", &process::run(&mut script, &folder, TIMEOUT)?);
    Ok(tally.close())
}
