//! `orla sandbox explain`: the permissions of a capability's processes, in plain sentences.

use std::path::Path;

use orla_marketplace::{ConfinedBy, SandboxGrants, SandboxLevel, SandboxStatus};
use orla_process::confinement::{Support, use_control_groups};
use serde_json::{Map, Value, json};

use crate::app::App;
use crate::commands::load;
use crate::config::{Config, Source};
use crate::{Failure, cli, render};

pub(crate) fn run(explain: &cli::SandboxExplain, source: &Source) -> Result<(), Failure> {
    let config = load(source)?;
    let _log = crate::commands::log(&config);
    let (name, status) =
        crate::commands::small_runtime()?.block_on(status_of(&explain.name, &config))?;
    let enforced_by = enforced_by(&status, &Support::detect());
    if explain.json {
        return crate::commands::print_json(&to_json(&name, &status, &enforced_by));
    }
    let is_directory = |path: &str| Path::new(path).is_dir();
    render::out(&(sentences(&name, &status, &enforced_by, &is_directory).join("\n") + "\n"));
    Ok(())
}

/// Returns the sandbox of a capability, or of a provider that serves nothing.
async fn status_of(name: &str, config: &Config) -> Result<(String, SandboxStatus), Failure> {
    // As a server would.
    use_control_groups();
    let app = App::build_local(config)?;
    let market = app.marketplace();
    market.prepare_listing().await;
    let snapshot = market.snapshot();
    let found = match snapshot.get(name) {
        Some(entry) => match market.status(entry).sandbox {
            Some(status) => Ok((entry.name.to_string(), status)),
            None => Err(format!(
                "{name} has no process of its own, so there is nothing to confine; `orla describe {name}` shows what it is"
            )),
        },
        None => {
            let silent = market.provider_problems(None);
            let silent = silent.into_iter().find(|provider| provider.name == name);
            match silent.and_then(|provider| provider.sandbox) {
                Some(status) => Ok((name.to_owned(), status)),
                None => Err(crate::commands::not_served(&snapshot, name)),
            }
        }
    };
    app.end_providers().await;
    found.map_err(Failure::failed)
}

/// Returns the mechanisms of this system that enforce a sandbox.
fn enforced_by(status: &SandboxStatus, support: &Support) -> Vec<String> {
    let is_open = status.grants.as_ref().is_some_and(|grants| grants.is_open);
    match status.level {
        SandboxLevel::Enforced if status.by == ConfinedBy::WebAssembly => {
            vec!["WebAssembly, in which it reaches only what it is linked with".to_owned()]
        }
        SandboxLevel::Enforced => {
            let words = status.grants.iter().flat_map(|grants| &grants.network);
            let is_of_host =
                words.into_iter().any(|word| matches!(word.as_str(), "net" | "net:loopback"));
            let network = if is_of_host { "" } else { " network," };
            vec![
                format!("Landlock ABI {} (files)", support.landlock_abi),
                "seccomp (metadata of files, sockets, kernel interfaces)".to_owned(),
                format!("namespaces (processes,{network} temporary directory)"),
                "empty capability sets".to_owned(),
            ]
        }
        SandboxLevel::Unconfined if is_open => {
            vec![match support.cgroup_limits {
                Ok(()) => "control groups, rlimits and a PID namespace (limits)".to_owned(),
                Err(_) => "rlimits and a watched PID namespace (limits)".to_owned(),
            }]
        }
        _ => Vec::new(),
    }
}

/// Plain sentences, one a line.
fn sentences(
    name: &str,
    status: &SandboxStatus,
    enforced_by: &[String],
    is_directory: &dyn Fn(&str) -> bool,
) -> Vec<String> {
    let grants = status.grants.as_deref();
    let is_open = grants.is_some_and(|grants| grants.is_open);
    let is_component = status.by == ConfinedBy::WebAssembly;
    let mut said = vec![match status.level {
        SandboxLevel::Enforced if is_component => {
            format!("{name} is a component, confined by what it is linked with.")
        }
        SandboxLevel::Enforced => {
            format!(
                "{name} is confined: a probe in its sandbox was refused everything that is not listed here."
            )
        }
        SandboxLevel::Unavailable => {
            format!("{name} does not run, because it cannot be confined as declared.")
        }
        SandboxLevel::Unconfined if is_open => {
            format!("{name} has limits and no permissions, so only its limits hold.")
        }
        SandboxLevel::Unconfined => {
            format!("{name} is not confined: it may do what the user may who runs orla.")
        }
    }];
    let is_confined = status.level == SandboxLevel::Enforced;
    if let Some(grants) = grants.filter(|_| is_confined || status.level == SandboxLevel::Unavailable) {
        if !is_confined {
            said.push("Its declaration would allow the following.".to_owned());
        }
        said.extend(allowed(grants, is_directory));
    }
    if is_confined && !is_component {
        said.push(
            "It may read and run the programs of the system, its own file or package and its interpreter, and use a \
             temporary directory of its own."
                .to_owned(),
        );
        said.push(
            "It may not change owners of files, or modes and times where it may not write, or see other processes.".to_owned(),
        );
    }
    if let Some(grants) = grants.filter(|grants| !grants.limits.is_empty()) {
        let limits: Vec<String> =
            grants.limits.iter().map(|(name, limit)| shown_limit(name, *limit)).collect();
        said.push(format!("All processes of a call together may use at most {}.", joined(&limits)));
    }
    if !enforced_by.is_empty() {
        said.push(format!("This is enforced by {}.", joined(enforced_by)));
    }
    said.extend(status.missing.iter().map(|missing| format!("Missing: {missing}.")));
    said
}

fn allowed(grants: &SandboxGrants, is_directory: &dyn Fn(&str) -> bool) -> Vec<String> {
    let places = |paths: &[String]| {
        let place = |path: &String| match is_directory(path) {
            true => format!("{path} and everything below it"),
            false => path.clone(),
        };
        joined(&paths.iter().map(place).collect::<Vec<_>>())
    };
    let mut said = Vec::new();
    let lists = [
        ("may read", &grants.read),
        ("may read and change", &grants.write),
        ("may run, as far as it may read it,", &grants.run),
        ("may connect to the UNIX sockets", &grants.sockets),
    ];
    for (may, paths) in lists.into_iter().filter(|(_, paths)| !paths.is_empty()) {
        said.push(format!("It {may} {}.", places(paths)));
    }
    said.push(match grants.network.as_slice() {
        [] => "It has no network.".to_owned(),
        words if words.iter().any(|word| word == "net") => "It may use the whole network.".to_owned(),
        words => format!(
            "Of the network, it may reach {}.",
            joined(&words.iter().map(|word| reached(word)).collect::<Vec<_>>())
        ),
    });
    if !grants.variables.is_empty() {
        said.push(format!("It gets the variables {}.", joined(&grants.variables)));
    }
    said
}

/// Returns the addresses that a network permission allows.
fn reached(word: &str) -> String {
    match word.strip_prefix("net:") {
        Some("loopback") => "the loopback addresses of this machine".to_owned(),
        Some(host) => host.to_owned(),
        None => word.to_owned(),
    }
}

fn shown_limit(name: &str, limit: u64) -> String {
    let unit = |limit: u64| match limit {
        _ if limit.is_multiple_of(1 << 30) => format!("{} GiB", limit >> 30),
        _ if limit.is_multiple_of(1 << 20) => format!("{} MiB", limit >> 20),
        _ => format!("{limit} bytes"),
    };
    match name {
        "memory" => format!("{} of memory", unit(limit)),
        "file_size" => format!("{} in one file", unit(limit)),
        "cpu_seconds" => format!("{limit} s of processor time"),
        "processes" => format!("{limit} processes and threads"),
        "open_files" => format!("{limit} open files in one process"),
        _ => format!("{name} {limit}"),
    }
}

/// `a`, `a and b`, `a, b and c`.
fn joined(texts: &[String]) -> String {
    match texts {
        [] => String::new(),
        [only] => only.clone(),
        [first @ .., last] => format!("{} and {last}", first.join(", ")),
    }
}

fn to_json(name: &str, status: &SandboxStatus, enforced_by: &[String]) -> Value {
    let grants = status.grants.as_deref().cloned().unwrap_or_default();
    let limits: Map<String, Value> =
        grants.limits.iter().map(|(name, limit)| ((*name).to_owned(), json!(limit))).collect();
    json!({
        "name": name,
        "sandbox": status.level.name(),
        "profile": status.profile,
        "permissions": status.permissions,
        "missing": status.missing,
        "read": grants.read,
        "write": grants.write,
        "run": grants.run,
        "network": grants.network,
        "sockets": grants.sockets,
        "variables": grants.variables,
        "limits": limits,
        "enforced_by": enforced_by,
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::Arc;

    fn status(level: SandboxLevel, grants: Option<SandboxGrants>) -> SandboxStatus {
        SandboxStatus { level, grants: grants.map(Arc::new), ..SandboxStatus::unconfined() }
    }

    #[test]
    fn grants_are_explained_in_sentences() {
        let texts = |texts: &[&str]| texts.iter().map(|text| (*text).to_owned()).collect::<Vec<_>>();
        let grants = SandboxGrants {
            read: texts(&["/srv/data", "/srv/a.txt"]),
            network: texts(&["net:loopback", "net:a.example:443"]),
            limits: vec![("memory", 64 << 20), ("processes", 4)],
            ..SandboxGrants::default()
        };
        let said = sentences("t", &status(SandboxLevel::Enforced, Some(grants)), &[], &|path| {
            path == "/srv/data"
        });
        assert_eq!(said[1], "It may read /srv/data and everything below it and /srv/a.txt.");
        assert_eq!(
            said[2],
            "Of the network, it may reach the loopback addresses of this machine and a.example:443."
        );
        assert!(said.last().unwrap().ends_with("at most 64 MiB of memory and 4 processes and threads."));
        let said = sentences("t", &status(SandboxLevel::Unconfined, None), &[], &|_| false);
        assert_eq!(said, ["t is not confined: it may do what the user may who runs orla."]);
    }
}
