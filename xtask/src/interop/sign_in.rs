//! The official conformance suite's scenarios of clients that sign in, with orla as the client.
//!
//! The suite starts an authorization server and an MCP server for each scenario, and a user of orla
//! (`conformance_client.py`) who writes a configuration, calls a tool, and signs in where orla asks for that. Scenarios
//! that the suite counts as extensions are shown and not judged.

use std::path::Path;
use std::process::Command;
use std::time::Duration;

use super::conformance::SETS;
use super::install::{Foreign, fixtures};
use crate::process;
use crate::tally::Tally;

/// How long one set may take.
const TIMEOUT: Duration = Duration::from_secs(300);

/// Runs the scenarios of both sets.
pub(crate) fn run(binary: &Path, foreign: &Foreign, tally: &mut Tally) -> Result<(), String> {
    let client = format!("python3 {}", fixtures().join("conformance_client.py").display());
    let binary = std::path::absolute(binary).map_err(|err| format!("{}: {err}", binary.display()))?;
    for set in SETS {
        let mut suite = Command::new(&foreign.node);
        suite
            .arg(foreign.module("@modelcontextprotocol/conformance/dist/index.js"))
            .args(["client", "--command", &client, "--requirements", set, "--timeout", "60000", "-o"])
            .arg(foreign.folder.join("sign-in").join(set))
            .env("ORLA_BIN", &binary);
        // Its exit code is that of all scenarios, also of those without a sign-in.
        let finished = process::run(&mut suite, &foreign.folder, TIMEOUT)?;
        let outcomes = outcomes(&finished.stdout);
        if outcomes.is_empty() {
            return Err(format!("no scenario was run: {}{}", finished.stdout, finished.stderr));
        }
        for (scenario, passed) in outcomes {
            let failed = || Err("it failed; the suite's output says why".to_owned());
            tally.check(&format!("sign-in {set}: {scenario}"), if passed { Ok(()) } else { failed() });
        }
    }
    Ok(())
}

/// Returns the required scenarios of what the suite prints at its end, and whether they passed: `✓
/// auth/pre-registration: 14 passed, 0 failed`. Those that are not scored come again, as `✗ auth/dpop
/// (extension)`.
fn outcomes(printed: &str) -> Vec<(&str, bool)> {
    let lines = || printed.lines().map(str::trim);
    let is_unscored = |scenario: &str| {
        lines().any(|line| line.ends_with(')') && line.contains(&format!(" {scenario} (")))
    };
    let named = lines().filter_map(|line| {
        let counted = line.strip_prefix(['✓', '✗'])?.trim().strip_suffix(" failed")?;
        let (scenario, _) = counted.split_once(": ")?;
        scenario.starts_with("auth/").then(|| (scenario, line.starts_with('✓')))
    });
    named.filter(|(scenario, _)| !is_unscored(scenario)).collect()
}

#[cfg(test)]
mod tests {
    use super::outcomes;

    #[test]
    fn required_scenarios_of_the_sign_in_are_judged() {
        let printed = "=== SUITE SUMMARY ===\n\n✓ initialize: 1 passed, 0 failed\n✓ auth/basic-cimd: 14 passed, 0 failed\n✗ auth/dpop: 9 passed, 3 failed\n✗ auth/scope-step-up: 0 passed, 2 failed\n\nNot scored: 1\n  ✗ auth/dpop (extension)\n";
        assert_eq!(outcomes(printed), [("auth/basic-cimd", true), ("auth/scope-step-up", false)]);
    }
}
