//! The official conformance suite, server side, for both requirement sets.
//!
//! The server serves `xtask/fixtures/conformance`: plain executables, prompts, and a capsule for what
//! those cannot give, copied below `target/` because two of the tools change the folder while the suite
//! runs. What cannot pass is listed in `expected-failures.txt` with the reason, and the list is kept
//! honest: a line whose scenario passes is a failure of its own.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;
use std::process::Command;
use std::time::Duration;

use serde_json::Value;

use super::install::Foreign;
use crate::process;
use crate::server::Server;
use crate::tally::Tally;

/// The two sets: the last revision with sessions, and the first without.
const SETS: &[&str] = &["2025-11-25", "2026-07-28"];

/// How long one set may take.
const PATIENCE: Duration = Duration::from_secs(300);

/// One line of the expected failures.
#[derive(Debug, PartialEq)]
struct Expected {
    /// `both`, or one of [`SETS`].
    set: String,
    scenario: String,
    /// One check of the scenario; all of it if there is none.
    check: Option<String>,
    reason: String,
}

/// Runs both sets against one server.
pub(crate) fn run(binary: &Path, foreign: &Foreign, tally: &mut Tally) -> Result<(), String> {
    let fixtures = crate::root().join("xtask/fixtures/conformance");
    let list = fixtures.join("expected-failures.txt");
    let text = std::fs::read_to_string(&list).map_err(|err| format!("{}: {err}", list.display()))?;
    let expected = parse(&text)?;

    let folder = foreign.folder.join("conformance");
    for part in ["tools", "prompts"] {
        copy_folder(&fixtures.join(part), &folder.join(part))?;
    }
    let server = Server::start(binary, &folder, &folder)?;
    let pid = folder.join("server.pid");
    std::fs::write(&pid, server.pid().to_string()).map_err(|err| format!("{}: {err}", pid.display()))?;
    // The suite insists on the name.
    let url = format!("http://{}/mcp", server.address.replace("127.0.0.1", "localhost"));

    for set in SETS {
        let results = folder.join(set);
        // What an earlier run left would count as this one's.
        let _ = std::fs::remove_dir_all(&results);
        let mut suite = Command::new(&foreign.node);
        suite
            .arg(foreign.module("@modelcontextprotocol/conformance/dist/index.js"))
            .args(["server", "--url", &url, "--requirements", set, "-o"])
            .arg(&results);
        // Its exit code counts what is expected to fail too; the files say it scenario by scenario.
        let finished = process::run(&mut suite, &foreign.folder, PATIENCE)?;
        let scenarios = read_results(&results).map_err(|err| {
            format!("no results of the suite ({err}): {}{}", finished.stdout, finished.stderr)
        })?;
        judge(set, &scenarios, &expected, tally);
    }
    Ok(())
}

/// Failed checks of each scenario, each with its message.
type Scenarios = BTreeMap<String, BTreeMap<String, String>>;

fn judge(set: &str, scenarios: &Scenarios, expected: &[Expected], tally: &mut Tally) {
    let applies = |line: &&Expected| line.set == set || line.set == "both";
    for (scenario, failed) in scenarios {
        let lines: Vec<&Expected> =
            expected.iter().filter(applies).filter(|line| line.scenario == *scenario).collect();
        let whole = lines.iter().any(|line| line.check.is_none());
        let listed: BTreeSet<&str> = lines.iter().filter_map(|line| line.check.as_deref()).collect();
        let surprise = failed.iter().find(|(check, _)| !whole && !listed.contains(check.as_str()));
        let stale = listed.iter().find(|check| !failed.contains_key(**check));
        let title = format!("conformance {set}: {scenario}");
        if let Some((check, message)) = surprise {
            tally.check(&title, Err(format!("{check}: {message}")));
        } else if let Some(check) = stale {
            tally.check(&title, Err(format!("{check} is listed as an expected failure and passes")));
        } else if whole && failed.is_empty() {
            tally.check(&title, Err("is listed as an expected failure and passes".to_owned()));
        } else if let Some(line) = lines.first() {
            tally.check(&format!("{title} (fails as expected: {})", line.reason), Ok(()));
        } else {
            tally.check(&title, Ok(()));
        }
    }
    for line in expected.iter().filter(applies).filter(|line| !scenarios.contains_key(&line.scenario)) {
        tally.check(
            &format!("conformance {set}: {}", line.scenario),
            Err("is listed as an expected failure and was not run".to_owned()),
        );
    }
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

/// `SET SCENARIO[/CHECK] reason…`, a line each; `#` begins a comment.
fn parse(text: &str) -> Result<Vec<Expected>, String> {
    let mut lines = Vec::new();
    for line in text.lines().map(str::trim).filter(|line| !line.is_empty() && !line.starts_with('#')) {
        let columns = line.split_once(char::is_whitespace).and_then(|(set, rest)| {
            let (what, reason) = rest.trim_start().split_once(char::is_whitespace)?;
            Some((set, what, reason.trim_start()))
        });
        let Some((set, what, reason)) = columns else {
            return Err(format!("expected failures: `{line}` gives no reason"));
        };
        if set != "both" && !SETS.contains(&set) {
            return Err(format!("expected failures: `{set}` is neither `both` nor one of {SETS:?}"));
        }
        let (scenario, check) =
            what.split_once('/').map_or((what, None), |(scenario, check)| (scenario, Some(check)));
        lines.push(Expected {
            set: set.to_owned(),
            scenario: scenario.to_owned(),
            check: check.map(str::to_owned),
            reason: reason.to_owned(),
        });
    }
    Ok(lines)
}

/// Copies a folder with all that is below it, permissions included, in place of what was there.
fn copy_folder(from: &Path, to: &Path) -> Result<(), String> {
    let problem = |err: std::io::Error| format!("{}: {err}", from.display());
    if to.exists() {
        std::fs::remove_dir_all(to).map_err(problem)?;
    }
    std::fs::create_dir_all(to).map_err(problem)?;
    for entry in std::fs::read_dir(from).map_err(problem)? {
        let entry = entry.map_err(problem)?;
        let (from, to) = (entry.path(), to.join(entry.file_name()));
        if from.is_dir() {
            copy_folder(&from, &to)?;
        } else {
            std::fs::copy(from, to).map_err(problem)?;
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_names_set_scenario_check_and_reason() {
        let lines =
            parse("# comment\nboth  a-b   needs this and that\n2025-11-25 c/d-1 because\n").unwrap();
        assert_eq!(lines[0].reason, "needs this and that");
        assert_eq!((lines[1].scenario.as_str(), lines[1].check.as_deref()), ("c", Some("d-1")));
        assert!(parse("both a").is_err());
        assert!(parse("2024 a because").is_err());
    }

    #[test]
    fn the_scenario_is_what_stands_before_the_time() {
        assert_eq!(scenario_of("server-tools-list-2026-11-20T08-13-05-000Z"), Some("tools-list"));
        assert_eq!(scenario_of("client-x"), None);
    }

    #[test]
    fn the_list_is_kept_honest() {
        let failing =
            |checks: &[&str]| checks.iter().map(|id| ((*id).to_owned(), "no".to_owned())).collect();
        let expected = parse("both whole because\nboth part/one because").unwrap();
        let cases = [
            (
                "an unlisted failure",
                vec![
                    ("other", failing(&["x"])),
                    ("whole", failing(&["x"])),
                    ("part", failing(&["one"])),
                ],
                false,
            ),
            (
                "all as listed",
                vec![("other", failing(&[])), ("whole", failing(&["x"])), ("part", failing(&["one"]))],
                true,
            ),
            (
                "a listed scenario passes",
                vec![("whole", failing(&[])), ("part", failing(&["one"]))],
                false,
            ),
            ("a listed check passes", vec![("whole", failing(&["x"])), ("part", failing(&[]))], false),
            (
                "another check fails",
                vec![("whole", failing(&["x"])), ("part", failing(&["one", "two"]))],
                false,
            ),
            ("a listed scenario is gone", vec![("whole", failing(&["x"]))], false),
        ];
        for (name, scenarios, holds) in cases {
            let scenarios =
                scenarios.into_iter().map(|(name, failed)| (name.to_owned(), failed)).collect();
            let mut tally = Tally::default();
            judge(SETS[0], &scenarios, &expected, &mut tally);
            assert_eq!(tally.close(), holds, "{name}");
        }
    }
}
