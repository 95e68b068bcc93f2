//! The official conformance suite, server side, for both requirement sets.
//!
//! The server serves `xtask/fixtures/conformance`: plain executables, prompts, a capsule for what those cannot
//! give, and an MCP server, copied below `target/` because two of the tools change the folder while the suite
//! runs. Every scenario has to pass. Behind another orla, those that the suite itself counts as an extension are
//! shown and not judged: a server of this revision has no word for the tools that run as tasks.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;
use std::process::Command;
use std::time::Duration;

use serde_json::Value;

use crate::install::Foreign;
use crate::process;
use crate::server::Server;
use crate::tally::Tally;

/// The two sets: the last revision with sessions, and the first without.
pub(super) const SETS: &[&str] = &["2025-11-25", "2026-07-28"];

/// How long one set may take.
const TIMEOUT: Duration = Duration::from_secs(300);

/// Runs both sets against one server, and against the same server behind another.
pub(crate) fn run(binary: &Path, foreign: &Foreign, tally: &mut Tally) -> Result<(), String> {
    let fixtures = crate::root().join("xtask/fixtures/conformance");
    let folder = foreign.folder.join("conformance");
    for part in ["tools", "prompts", "servers"] {
        crate::copy_folder(&fixtures.join(part), &folder.join(part))?;
    }
    // What an earlier run kept belongs to it.
    let _ = std::fs::remove_dir_all(folder.join(".orla"));
    std::fs::copy(fixtures.join("orla.yaml"), folder.join("orla.yaml"))
        .map_err(|err| err.to_string())?;
    let server = Server::start(binary, &folder, &folder)?;
    let pid = folder.join("server.pid");
    std::fs::write(&pid, server.pid().to_string()).map_err(|err| format!("{}: {err}", pid.display()))?;
    suite(&server.address, "conformance", false, &folder, foreign, tally)?;
    // The same server behind another, which has nothing of its own.
    let behind = folder.join("behind");
    std::fs::create_dir_all(behind.join("tools")).map_err(|err| err.to_string())?;
    let upstream = serde_json::json!({ "url": format!("http://{}/mcp", server.address), "prefix": "" });
    let config = serde_json::json!({ "mcpServers": { "upstream": upstream } });
    std::fs::write(behind.join("orla.yaml"), config.to_string()).map_err(|err| err.to_string())?;
    let front = Server::start(binary, &behind, &behind)?;
    suite(&front.address, "conformance behind orla", true, &behind, foreign, tally)
}

/// Runs both sets against a server at this address.
pub(crate) fn suite(
    address: &str,
    title: &str,
    may_lack_extensions: bool,
    folder: &Path,
    foreign: &Foreign,
    tally: &mut Tally,
) -> Result<(), String> {
    // The suite insists on the name.
    let url = format!("http://{}/mcp", address.replace("127.0.0.1", "localhost"));
    for set in SETS {
        let (scenarios, printed) = run_set(foreign, &url, set, &folder.join(set))?;
        let tolerated = if may_lack_extensions { extensions(&printed) } else { BTreeSet::new() };
        judge(title, set, &scenarios, &tolerated, tally);
    }
    Ok(())
}

/// Runs one set against a server, and gives what its scenarios found and what the suite printed.
pub(super) fn run_set(
    foreign: &Foreign,
    url: &str,
    set: &str,
    results: &Path,
) -> Result<(Scenarios, String), String> {
    // What an earlier run left would count as this one's.
    let _ = std::fs::remove_dir_all(results);
    let mut suite = Command::new(&foreign.node);
    suite
        .arg(foreign.module("@modelcontextprotocol/conformance/dist/index.js"))
        .args(["server", "--url", url, "--requirements", set, "-o"])
        .arg(results);
    // Its exit code says that something failed; the files say what.
    let finished = process::run(&mut suite, &foreign.folder, TIMEOUT)?;
    let scenarios = read_results(results).map_err(|err| {
        format!("no results of the suite ({err}): {}{}", finished.stdout, finished.stderr)
    })?;
    Ok((scenarios, finished.stdout))
}

/// Failed checks of each scenario, each with its message.
pub(super) type Scenarios = BTreeMap<String, BTreeMap<String, String>>;

fn judge(title: &str, set: &str, scenarios: &Scenarios, tolerated: &BTreeSet<&str>, tally: &mut Tally) {
    for (scenario, failed) in scenarios {
        let title = format!("{title} {set}: {scenario}");
        match failed.iter().next() {
            None => tally.check(&title, Ok(())),
            Some(_) if tolerated.contains(scenario.as_str()) => {
                tally.check(&format!("{title} (an extension that is not there)"), Ok(()));
            }
            Some((check, message)) => tally.check(&title, Err(format!("{check}: {message}"))),
        }
    }
}

/// Returns the scenarios that the suite runs for information, by the end of what it prints: `  ✗
/// tasks-lifecycle (extension)`.
fn extensions(printed: &str) -> BTreeSet<&str> {
    printed
        .lines()
        .filter_map(|line| line.trim().strip_suffix(" (extension)")?.split_whitespace().nth(1))
        .collect()
}

/// Reads `server-SCENARIO-TIME/checks.json` of every scenario.
fn read_results(folder: &Path) -> Result<Scenarios, String> {
    let entries = std::fs::read_dir(folder).map_err(|err| err.to_string())?;
    let mut scenarios = Scenarios::new();
    for entry in entries {
        let entry = entry.map_err(|err| err.to_string())?;
        let name = entry.file_name().to_string_lossy().into_owned();
        let Some(scenario) = scenario_of(&name) else { continue };
        let text =
            std::fs::read_to_string(entry.path().join("checks.json")).map_err(|err| err.to_string())?;
        let checks: Vec<Value> = serde_json::from_str(&text).map_err(|err| err.to_string())?;
        let failed = checks
            .iter()
            .filter(|check| check["status"] == "FAILURE")
            .map(|check| {
                let text = |field: &str| check[field].as_str().unwrap_or_default().to_owned();
                (text("id"), text("errorMessage"))
            })
            .collect();
        scenarios.insert(scenario.to_owned(), failed);
    }
    if scenarios.is_empty() { Err("no scenario was run".to_owned()) } else { Ok(scenarios) }
}

/// `tools-list` of `server-tools-list-2026-11-20T08-13-05-000Z`.
fn scenario_of(folder: &str) -> Option<&str> {
    let name = folder.strip_prefix("server-")?;
    name.get(..name.len().checked_sub("-2026-11-20T08-13-05-000Z".len())?)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_scenario_is_what_stands_before_the_time() {
        assert_eq!(scenario_of("server-tools-list-2026-11-20T08-13-05-000Z"), Some("tools-list"));
        assert_eq!(scenario_of("client-x"), None);
    }

    #[test]
    fn only_what_is_tolerated_may_fail() {
        let printed = "=== SUMMARY ===\n✗ tasks: 1 passed, 8 failed\n\nNot scored for 2026-07-28: 2 scenario(s)\n  ✗ tasks (extension)\n  ✓ more (extension)\n  ✗ headers (pending)\n";
        let extensions = extensions(printed);
        assert_eq!(extensions, BTreeSet::from(["tasks", "more"]));
        let holds = |scenario: &str, failed: &[&str]| {
            let failed = failed.iter().map(|id| ((*id).to_owned(), "no".to_owned())).collect();
            let mut tally = Tally::default();
            judge(
                "t",
                SETS[0],
                &Scenarios::from([(scenario.to_owned(), failed)]),
                &extensions,
                &mut tally,
            );
            tally.close()
        };
        assert!(holds("ping", &[]) && holds("tasks", &["x"]));
        assert!(!holds("ping", &["x"]) && !holds("headers", &["x"]));
    }
}
