//! The official conformance suite against a foreign server, and against the same server behind orla.
//!
//! A scenario that the server passes by itself it has to pass behind orla, with as few failed checks. What the server
//! lacks by itself it lacks behind orla too; where orla has it (a revision, a protection), the scenario passes there, which
//! is no difference that anybody suffers from. A tool that is not there is one: some servers answer a call of it as a failure
//! of the tool, which is what the suite wants to see of another one; orla refuses it, as the specification says.

use std::collections::BTreeMap;
use std::path::Path;

use serde_json::json;

use super::conformance::{self, SETS, Scenarios};
use super::upstream::{Upstream, in_front};
use crate::install::Foreign;
use crate::tally::Tally;

/// The error for an unknown tool.
const NO_TOOL: &str = "unknown tool: ";

/// Both sets against each of two servers.
pub(super) fn run(binary: &Path, foreign: &Foreign, tally: &mut Tally) -> Result<(), String> {
    // The reference server knows the older revision alone.
    for (upstream, sets) in [(Upstream::Everything, &SETS[..1]), (Upstream::PythonSdk, SETS)] {
        let folder = foreign.folder.join("behind");
        std::fs::create_dir_all(&folder).map_err(|err| format!("{}: {err}", folder.display()))?;
        let listening = upstream.listen(foreign, &folder)?;
        let orla = in_front(binary, &folder.join("orla"), json!({"url": listening.url}))?;
        let through = format!("http://{}/mcp", orla.address);
        for set in sets {
            let find = |url: &str, side: &str| {
                // The suite insists on the name.
                let url = url.replace("127.0.0.1", "localhost");
                conformance::run_set(foreign, &url, set, &folder.join(format!("{set}-{side}")))
                    .map(|(scenarios, _)| scenarios)
                    .map_err(|err| format!("{} {side}: {err}", upstream.title()))
            };
            let direct = find(&listening.url, "directly")?;
            let title = format!("conformance {set}, {} behind orla", upstream.title());
            judge(&title, &direct, &find(&through, "through")?, tally);
        }
    }
    Ok(())
}

fn judge(title: &str, direct: &Scenarios, through: &Scenarios, tally: &mut Tally) {
    let (mut passed, mut lacking) = (0, 0);
    for (scenario, wanted) in direct {
        let verdict = match through.get(scenario) {
            None => Err("it was not run".to_owned()),
            Some(found) => found
                .iter()
                .find(|(check, message)| !wanted.contains_key(*check) && !message.contains(NO_TOOL))
                .map_or(Ok(()), |(check, message)| Err(format!("{check}: {message}"))),
        };
        let is_there = through.get(scenario).is_some_and(BTreeMap::is_empty);
        match (verdict, wanted.is_empty() && is_there) {
            (Ok(()), true) => passed += 1,
            (Ok(()), false) => lacking += 1,
            (failed, _) => tally.check(&format!("{title}: {scenario}"), failed),
        }
    }
    let enough = if passed > 0 { Ok(()) } else { Err("no scenario passes".to_owned()) };
    let what =
        format!("{title}: {passed} scenarios pass as without it, {lacking} lack what the server lacks");
    tally.check(&what, enough);
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Scenarios and their failed checks.
    type Rows = &'static [(&'static str, &'static [&'static str])];

    #[test]
    fn what_fails_behind_orla_has_to_fail_without_it() {
        let scenarios = |rows: Rows| -> Scenarios {
            let failed = |checks: &[&str]| -> BTreeMap<_, _> {
                checks.iter().map(|check| ((*check).to_owned(), "no".to_owned())).collect()
            };
            rows.iter().map(|(scenario, checks)| ((*scenario).to_owned(), failed(checks))).collect()
        };
        let direct = scenarios(&[("a", &[]), ("b", &["x"])]);
        let cases: [(Rows, bool); 4] = [
            (&[("a", &[]), ("b", &["x"])], true),
            (&[("a", &[]), ("b", &[])], true),
            (&[("a", &["x"]), ("b", &["x"])], false),
            (&[("a", &[])], false),
        ];
        for (through, holds) in cases {
            let mut tally = Tally::default();
            judge("it", &direct, &scenarios(through), &mut tally);
            assert_eq!(tally.close(), holds, "{through:?}");
        }
    }
}
