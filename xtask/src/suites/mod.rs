//! Public test suites of the formats and languages that orla reads, run against the release binary.
//!
//! Each suite is a git repository, pinned by commit and fetched below `target/suites`. [`formats`] and [`schemas`] turn its files
//! into calls and what must come of them; one server answers all calls of a suite. [`known::KNOWN`] lists the failures that are
//! expected, each with its cause. A failure that it does not list fails the job, and so does a listed one that no longer happens.

mod case;
mod fetch;
mod formats;
mod known;
mod schemas;

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};

use serde_json::json;

use self::case::{Failure, Plan, Server};
use self::known::KNOWN;
use crate::{Outcome, server};

/// A suite, and how its files become calls.
struct Suite {
    name: &'static str,
    repository: &'static str,
    commit: &'static str,
    plan: fn(&Path) -> Result<Plan, String>,
}

const SUITES: &[Suite] = &[
    Suite {
        name: "json-schema",
        repository: "https://github.com/json-schema-org/JSON-Schema-Test-Suite",
        commit: "44401e0c046704b476ec9d2e2fccdaee618f259d",
        plan: schemas::plan,
    },
    Suite {
        name: "jsonpath",
        repository: "https://github.com/jsonpath-standard/jsonpath-compliance-test-suite",
        commit: "7be7c1fc28057c91e8eefaf197060fba7ed43acd",
        plan: formats::jsonpath,
    },
    Suite {
        name: "jmespath",
        repository: "https://github.com/jmespath/jmespath.test",
        commit: "53abcc37901891cf4308fcd910eab287416c4609",
        plan: formats::jmespath,
    },
    Suite {
        name: "json-patch",
        repository: "https://github.com/json-patch/json-patch-tests",
        commit: "2a928f9044aad35c74e2788d498bcf2c6b91adea",
        plan: formats::json_patch,
    },
    Suite {
        name: "toml",
        repository: "https://github.com/toml-lang/toml-test",
        commit: "d168c2a4f539a5219c804055af1600b8cf9ca6d7",
        plan: formats::toml,
    },
    Suite {
        name: "yaml",
        repository: "https://github.com/yaml/yaml-test-suite",
        commit: "6ad3d2c62885d82fc349026c136ef560838fdf3d",
        plan: formats::yaml,
    },
    Suite {
        name: "csv",
        repository: "https://github.com/max-mapper/csv-spectrum",
        commit: "d30e80f8b99d2eecb3778f1d7b9ed1cb425502ec",
        plan: formats::csv,
    },
];

/// Runs the named suites, or all. `--from FOLDER` takes the checkout of each from `FOLDER/NAME` instead of fetching it.
pub(crate) fn run(arguments: &[String]) -> Outcome {
    let (folder, names) = match arguments {
        [flag, folder, names @ ..] if flag == "--from" => (Some(PathBuf::from(folder)), names),
        names => (None, names),
    };
    if let Some(other) = names.iter().find(|name| SUITES.iter().all(|suite| suite.name != *name)) {
        let known: Vec<&str> = SUITES.iter().map(|suite| suite.name).collect();
        return Err(format!("there is no suite named `{other}`; there are {}", known.join(", ")));
    }
    let binary = server::binary()?;
    let binary = fs::canonicalize(&binary).map_err(|err| format!("{}: {err}", binary.display()))?;
    let mut holds = true;
    for suite in SUITES {
        if !names.is_empty() && !names.iter().any(|name| name == suite.name) {
            continue;
        }
        let checkout = match &folder {
            Some(folder) => folder.join(suite.name),
            None => fetch::fetch(suite.name, suite.repository, suite.commit)?,
        };
        println!(
            "{} ({} {})",
            suite.name,
            suite.repository,
            fetch::commit_of(&checkout).as_deref().unwrap_or("unknown commit")
        );
        holds &= run_suite(suite, &checkout, &binary)?;
    }
    Ok(holds)
}

/// The cases of one group by what became of them.
#[derive(Default)]
struct Count {
    passed: usize,
    known: usize,
    failed: usize,
}

fn run_suite(suite: &Suite, checkout: &Path, binary: &Path) -> Outcome {
    let Plan { capabilities, cases } = (suite.plan)(checkout)?;
    if cases.is_empty() {
        return Err(format!("{} holds no cases of the suite {}", checkout.display(), suite.name));
    }
    let folder = crate::target("suites")?.join(format!("{}-server", suite.name));
    fs::create_dir_all(&folder).map_err(|err| format!("{}: {err}", folder.display()))?;
    let config = folder.join("orla.json");
    fs::write(&config, json!({ "capabilities": capabilities }).to_string())
        .map_err(|err| format!("{}: {err}", config.display()))?;
    let mut server = Server::start(binary, &folder)?;
    let mut counts: BTreeMap<&str, Count> = BTreeMap::new();
    let mut met = vec![0; KNOWN.len()];
    for case in &cases {
        let count = counts.entry(&case.group).or_default();
        let Err(Failure(problem)) = server.run(case)? else {
            count.passed += 1;
            continue;
        };
        let explains = |known: &known::KnownFailures| {
            known.suite == suite.name && known.explains(&case.group, &case.name, &problem)
        };
        match KNOWN.iter().position(explains) {
            Some(row) => {
                count.known += 1;
                met[row] += 1;
            }
            None => {
                count.failed += 1;
                println!("  FAIL  {}: {}: {problem}", case.group, case.name);
            }
        }
    }
    for (group, Count { passed, known, failed }) in &counts {
        let total = passed + known + failed;
        println!(
            "  {group:<28} {passed:>5} of {total:>5} passed, {known:>3} known to fail, {failed:>3} failed"
        );
    }
    let mut holds = counts.values().all(|count| count.failed == 0);
    for (known, met) in KNOWN.iter().zip(met).filter(|(known, _)| known.suite == suite.name) {
        println!("  known {met:>3}  {} ({}: {})", known.name(), known.cause.blames(), known.reason);
        if met != known.cases {
            holds = false;
            println!(
                "  FAIL  {} of these failures were expected: the table in xtask/src/suites/known.rs is out of date",
                known.cases
            );
        }
    }
    Ok(holds)
}
