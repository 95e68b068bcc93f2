//! The official compatibility kit of the A2A project against orla as an agent.
//!
//! The kit (github.com/a2aproject/a2a-tck, branch `1.0-dev`) is in no package registry, so check it out to run it
//! and names the folder; nothing is written there. What it asks for by the ids of its messages is played by
//! `xtask/fixtures/agent`, which is an ordinary configuration. Its levels are those of RFC 2119: what fails at SHOULD and MAY is
//! shown, and counts as passed.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use serde_json::Value;

use crate::server::{self, Server};
use crate::tally::Tally;
use crate::{Outcome, process};

/// How long an installation, or all tests of one level, may take.
const TIMEOUT: Duration = Duration::from_secs(900);

/// What the kit demands against the protocol's text, by a part of the test's name.
const AGAINST_THE_PROTOCOL: [(&str, &str); 2] = [
    (
        "[CORE-SEND-003-",
        "it wants a part of an unsupported media type accepted, although its own title and A2A §3.1.1 demand \
         ContentTypeNotSupportedError: the requirement lacks its expected error",
    ),
    (
        "test_version_not_supported_returns_unimplemented",
        "A2A 1.0.1 §5.4 has FAILED_PRECONDITION for VersionNotSupportedError; UNIMPLEMENTED was in 1.0.0",
    ),
];

/// Runs the kit that is checked out in the named folder.
pub(crate) fn run(arguments: &[String]) -> Outcome {
    let [checkout] = arguments else {
        return Err("name the folder of a checkout of a2aproject/a2a-tck, branch 1.0-dev".to_owned());
    };
    let kit = std::path::absolute(checkout).map_err(|err| format!("{checkout}: {err}"))?;
    if !kit.join("tests/compatibility").is_dir() {
        return Err(format!("{checkout} has no tests/compatibility: is it the branch 1.0-dev?"));
    }
    let binary = server::binary()?;
    let folder = crate::target("tck")?;
    let python = install(&kit, &folder)?;
    let mut tally = Tally::default();
    let mut table = Vec::new();
    for level in ["must", "should", "may"] {
        // A server each, as each level is to find none of another's tasks.
        let orla = Server::start(&binary, &crate::root().join("xtask/fixtures/agent"), &folder)?;
        table.extend(test(level, &kit, &python, &folder, &orla.address, &mut tally)?);
    }
    println!("\n{:<7} {:<11} {:>6} {:>6} {:>7}", "level", "binding", "passed", "failed", "skipped");
    for row in table {
        println!("{row}");
    }
    Ok(tally.close())
}

/// Puts what the kit needs into an environment of its own, once.
fn install(kit: &Path, folder: &Path) -> Result<PathBuf, String> {
    let venv = folder.join("python");
    let python = venv.join("bin/python");
    let done = venv.join(".done");
    if done.exists() {
        return Ok(python);
    }
    println!("installing what the kit needs");
    let mut make = Command::new("python3");
    make.args(["-m", "venv", "--clear"]).arg(&venv);
    let mut fill = Command::new(&python);
    fill.args(["-m", "pip", "install", "--quiet", "--disable-pip-version-check"]).arg(kit);
    for mut step in [make, fill] {
        process::run(&mut step, folder, TIMEOUT)?.stdout_of_success()?;
    }
    std::fs::write(&done, "").map_err(|err| format!("{}: {err}", done.display()))?;
    Ok(python)
}

/// Runs the tests of a level, and gives a line for each binding.
fn test(
    level: &str,
    kit: &Path,
    python: &Path,
    folder: &Path,
    address: &str,
    tally: &mut Tally,
) -> Result<Vec<String>, String> {
    let report = folder.join(level);
    let mut pytest = Command::new(python);
    pytest
        .args(["-B", "-m", "pytest", "tests/compatibility/", "-q", "--tb=no", "-rfE", "-m", level])
        .args(["-p", "no:cacheprovider"])
        .arg(format!("--sut-host=http://{address}"))
        .arg(format!("--compatibility-report={}", report.display()))
        .env("COLUMNS", "2000")
        .current_dir(kit);
    let printed = process::run(&mut pytest, folder, TIMEOUT)?;
    let report = report.with_extension("json");
    let figures =
        std::fs::read_to_string(&report).ok().and_then(|text| serde_json::from_str(&text).ok());
    let figures: Value = figures.ok_or_else(|| {
        format!("{level}: the kit gave no report: {}{}", printed.stdout.trim(), printed.stderr.trim())
    })?;
    let failed: Vec<(&str, &str)> = printed.stdout.lines().filter_map(failure).collect();
    for (test, why) in &failed {
        let name = format!("{level}: {test}");
        match AGAINST_THE_PROTOCOL.iter().find(|(part, _)| test.contains(part)) {
            Some((_, reason)) => println!("knows {name}: {reason}"),
            None => tally.check(&name, Err((*why).to_owned())),
        }
    }
    for (requirement, found) in figures["per_requirement"].as_object().into_iter().flatten() {
        let fails = found["status"] == "FAIL";
        if fails && level != "must" {
            println!(
                "{level:<6}{requirement} does not hold: {}",
                found["errors"][0].as_str().unwrap_or_default()
            );
        }
        let is_here = !found["test_ids"].as_array().is_none_or(Vec::is_empty);
        if is_here && !fails && found["status"] == "PASS" {
            tally.count(requirement, Ok(()));
        }
    }
    let of = |found: &Value, name: &str| found[name].as_u64().unwrap_or_default();
    let rows = figures["per_transport"].as_object().into_iter().flatten().map(|(binding, found)| {
        let [passed, failed, skipped] = ["passed", "failed", "skipped"].map(|name| of(found, name));
        format!("{level:<7} {binding:<11} {passed:>6} {failed:>6} {skipped:>7}")
    });
    Ok(rows.collect())
}

/// Returns a test that failed and why, of pytest's summary.
fn failure(line: &str) -> Option<(&str, &str)> {
    let rest = line.strip_prefix("FAILED ").or_else(|| line.strip_prefix("ERROR "))?;
    let rest = Some(rest).filter(|rest| rest.starts_with("tests/"))?;
    Some(rest.split_once(" - ").unwrap_or((rest, "it says no more")))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn failures_are_told_from_other_lines() {
        assert_eq!(
            failure("FAILED tests/a.py::b[c] - why - not"),
            Some(("tests/a.py::b[c]", "why - not"))
        );
        assert_eq!(failure("ERROR tests/a.py"), Some(("tests/a.py", "it says no more")));
        assert_eq!(failure("FAILED REQUIREMENTS:"), None);
        assert_eq!(failure("12 passed"), None);
    }
}
