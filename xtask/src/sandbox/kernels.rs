//! Kernels that lack something, made of filters for system calls (`xtask/fixtures/sandbox/kernel.c`).
//!
//! Whatever is missing, a set is confined to what it says or unavailable, `orla doctor` says which, and what declares nothing runs.

use std::path::Path;

use serde_json::Value;

use super::Context;
use super::probes::{OPEN, SETS};
use super::table;
use super::world::{self, Account, Language, World, tool};

/// What is taken away, and the version of Landlock that is left.
const KERNELS: &[(&str, Option<i64>)] = &[
    ("no-landlock", Some(0)),
    ("no-namespaces", None),
    ("abi-1", Some(1)),
    ("abi-3", Some(3)),
    ("abi-5", Some(5)),
];

/// Runs the probes under each.
pub(super) fn run(context: &mut Context) -> Result<(), String> {
    // One language says enough: the table compares them.
    let Some(language) = context.languages.iter().find(|language| language.name == "c").cloned() else {
        println!("      no kernels: they are made with cc");
        return Ok(());
    };
    let wrapper = world::compile("kernel.c", &context.scratch)?;
    let accounts = context.accounts.clone();
    let accounts = if context.is_quick { &accounts[..1] } else { &accounts[..] };
    for account in accounts {
        for (kernel, abi) in KERNELS {
            let base = context.folder(&format!("{kernel}-{}", account.name))?;
            let seen = one(&context.orla, &base, *account, &language, &wrapper, kernel, *abi);
            let (what, result) = match seen {
                Ok(sets) => (format!("kernels: {} {kernel}: {sets}", account.name), Ok(())),
                Err(problem) => (format!("kernels: {} {kernel}", account.name), Err(problem)),
            };
            context.tally.check(&what, result);
        }
    }
    println!("      no kernel without cgroups: this system delegates none");
    println!(
        "      `loop` is unavailable where a version is simulated: both answer system calls, and only one can"
    );
    Ok(())
}

fn one(
    orla: &Path,
    base: &Path,
    account: Account,
    language: &Language,
    wrapper: &Path,
    kernel: &str,
    abi: Option<i64>,
) -> Result<String, String> {
    let wrapper = [wrapper.to_str().ok_or("the path of the wrapper is not text")?, kernel];
    let world = World::start(orla, base, account, std::slice::from_ref(language), &wrapper)?;
    // Before version 6, the first process of a call is to be seen, but the kernel delivers no signal of its descendants to it.
    let without: &[&str] = if abi.is_some_and(|abi| abi < 6) { &["proc.signal.first"] } else { &[] };
    let (available, mut problems) = table::check_sets(&world, language, without)?;
    let status = world.status()?;
    let mut doctor = world::orla(orla, base, account, &wrapper);
    let (report, ended) = world::doctor(&mut doctor)?;
    if let Some(abi) = abi
        && report["landlock_abi"] != abi
    {
        problems.push(format!("doctor says that Landlock is {}", report["landlock_abi"]));
    }
    if kernel == "no-namespaces" && report["namespaces"] != false {
        problems.push("doctor says that there are namespaces".to_owned());
    }
    let row = |report: &Value, name: &str| {
        let rows = report["capabilities"].as_array().into_iter().flatten();
        rows.clone().find(|row| row["name"] == name).cloned().unwrap_or_default()
    };
    for set in SETS {
        let name = tool(language, set);
        let level = match (set, available[set]) {
            (OPEN, _) => "unconfined",
            (_, true) => "enforced",
            (_, false) => "unavailable",
        };
        let row = (row(&report, &name), row(&status, &name));
        if row.0["sandbox"] != level || row.1["sandbox"]["level"] != level {
            problems.push(format!("{set} is {level}: doctor {}, status {}", row.0, row.1["sandbox"]));
        }
        if level == "unavailable" && row.0["missing"].as_array().is_none_or(Vec::is_empty) {
            problems.push(format!("{set}: doctor does not say what is missing"));
        }
    }
    let unavailable: Vec<&str> = SETS.into_iter().filter(|set| !available[*set]).collect();
    let expected = i32::from(!unavailable.is_empty());
    if ended.code() != Some(expected) {
        problems.push(format!("doctor: {ended}, expected {expected}"));
    }
    if !available[OPEN] {
        problems.push("what declares nothing does not run".to_owned());
    }
    match problems.is_empty() {
        true if unavailable.is_empty() => Ok("all sets enforced".to_owned()),
        true if unavailable.len() + 1 == SETS.len() => Ok("all sets unavailable".to_owned()),
        true => Ok(format!("{} unavailable, the others enforced", unavailable.join(", "))),
        false => Err(problems.join("\n      ")),
    }
}
