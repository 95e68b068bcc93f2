//! The official conformance suite's scenarios of clients that sign in, with orla as the client.
//!
//! The suite starts an authorization server and an MCP server for each scenario, and a user of orla
//! (`conformance_client.py`) who writes a configuration, calls a tool, and signs in where orla asks for that. Scenarios
//! that the suite counts as extensions are shown and not judged.

use std::path::Path;
use std::process::Command;
use std::time::Duration;

use super::conformance::SETS;
use crate::install::{Foreign, pins};
use crate::process;
use crate::tally::Tally;

/// How long one set may take.
const TIMEOUT: Duration = Duration::from_secs(300);

/// Runs the scenarios of both sets.
pub(crate) fn run(binary: &Path, foreign: &Foreign, tally: &mut Tally) -> Result<(), String> {
    let client = format!("python3 {}", pins("clients").join("conformance_client.py").display());
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
        if !outcomes.iter().any(|outcome| outcome.unscored.is_none()) {
            return Err(format!("no scenario was run: {}{}", finished.stdout, finished.stderr));
        }
        for Outcome { scenario, passed, unscored } in outcomes {
            let title = format!("sign-in {set}: {scenario}");
            match unscored {
                Some(why) => {
                    println!(
                        "-     {title} ({why}; not judged): {}",
                        if passed { "passes" } else { "fails" }
                    );
                }
                None if passed => tally.check(&title, Ok(())),
                None => tally.check(&title, Err("it failed; the suite's output says why".to_owned())),
            }
        }
    }
    Ok(())
}

/// How a scenario of the sign-in ended.
#[derive(Debug, PartialEq)]
struct Outcome<'a> {
    scenario: &'a str,
    passed: bool,
    /// Why the suite does not score it.
    unscored: Option<&'a str>,
}

/// Returns the scenarios of what the suite prints at its end: `✓ auth/pre-registration: 14 passed, 0 failed`. Those that
/// are not scored come again, as `✗ auth/dpop (extension)`.
fn outcomes(printed: &str) -> Vec<Outcome<'_>> {
    let lines = || printed.lines().map(str::trim);
    let unscored = |scenario: &str| {
        lines().find_map(|line| {
            let why = line.strip_prefix(['✓', '✗'])?.trim().strip_prefix(scenario)?;
            why.strip_prefix(" (")?.strip_suffix(')')
        })
    };
    let named = lines().filter_map(|line| {
        let (scenario, _) =
            line.strip_prefix(['✓', '✗'])?.trim().strip_suffix(" failed")?.split_once(": ")?;
        let passed = line.starts_with('✓');
        let unscored = unscored(scenario);
        scenario.starts_with("auth/").then_some(Outcome { scenario, passed, unscored })
    });
    named.collect()
}

#[cfg(test)]
mod tests {
    use super::{Outcome, outcomes};

    #[test]
    fn scenarios_of_the_sign_in_are_known_with_whether_they_are_scored() {
        let printed = "=== SUITE SUMMARY ===\n\n✓ initialize: 1 passed, 0 failed\n✓ auth/basic-cimd: 14 passed, 0 failed\n✗ auth/dpop: 9 passed, 3 failed\n✗ auth/scope-step-up: 0 passed, 2 failed\n\nNot scored: 1\n  ✗ auth/dpop (extension)\n";
        let expected = [
            ("auth/basic-cimd", true, None),
            ("auth/dpop", false, Some("extension")),
            ("auth/scope-step-up", false, None),
        ];
        let expected =
            expected.map(|(scenario, passed, unscored)| Outcome { scenario, passed, unscored });
        assert_eq!(outcomes(printed), expected);
    }
}
