//! What is probed: the permission sets, and for each probe where it must succeed.

use std::path::Path;

use serde_json::{Value, json};

/// The permission sets by name, in the order of the table's columns. The first is no confinement at all.
pub(super) const SETS: [&str; 9] =
    ["open", "none", "read", "write", "net", "host", "loop", "exec", "mixed"];

/// The set without confinement.
pub(super) const OPEN: &str = "open";

/// The set with a proxy.
pub(super) const HOST: &str = "host";

/// A set that is no column: it may reach what `host` must not reach, also through it.
pub(super) const NEIGHBOUR: &str = "neighbour";

const DESCRIPTION: &str = include_str!("../../fixtures/sandbox/probes.txt");

/// One probe.
pub(super) struct Probe {
    pub(super) name: &'static str,
    succeeds: Vec<&'static str>,
    refusals: Vec<&'static str>,
}

/// What a probe has to come to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Rule {
    MustSucceed,
    May,
    MustFail,
}

/// Returns all probes.
pub(super) fn all() -> Vec<Probe> {
    let lines = DESCRIPTION.lines().filter(|line| !line.is_empty() && !line.starts_with('#'));
    lines
        .map(|line| {
            let mut fields = line.split('|');
            let mut words = || fields.next().unwrap_or_default().split_whitespace();
            let name = words().next().unwrap_or_default();
            Probe { name, succeeds: words().collect(), refusals: words().collect() }
        })
        .collect()
}

impl Probe {
    /// What it has to come to in a set.
    pub(super) fn rule(&self, set: &str) -> Rule {
        let may = |word: &&str| word.strip_suffix('?') == Some(set);
        if self.succeeds.contains(&set) || (set != OPEN && self.succeeds.contains(&"confined")) {
            Rule::MustSucceed
        } else if self.succeeds.iter().any(may) {
            Rule::May
        } else {
            Rule::MustFail
        }
    }

    /// Returns whether an error is a refusal, and not a failure for another reason.
    pub(super) fn refused_by(&self, error: &str) -> bool {
        ["EACCES", "EPERM", "SIGSYS"].contains(&error) || self.refusals.contains(&error)
    }

    /// Returns whether it is about a limit of the set `mixed`.
    pub(super) fn is_of_limit(&self) -> bool {
        self.name.starts_with("limit.")
    }

    /// Returns whether it looks for what the call before has left.
    pub(super) fn is_of_next_call(&self) -> bool {
        self.name.starts_with("left.")
    }

    /// Returns whether it is tried in a set. What stays is no matter where nothing is confined, and
    /// limits do not depend on permissions.
    pub(super) fn concerns(&self, set: &str) -> bool {
        let stays = self.is_of_next_call() || self.name.starts_with("keep.");
        match self.name {
            "proc.daemon" => set != OPEN,
            _ if stays => set != OPEN,
            _ => !self.is_of_limit() || [OPEN, "none", "mixed"].contains(&set),
        }
    }
}

/// What a tool of a set declares, in a world below `base` with a server of the host on `port`.
pub(super) fn declaration(set: &str, base: &Path, port: u16) -> Value {
    let at = |word: &str, name: &str| format!("{word}:{}", base.join(name).display());
    let permissions = match set {
        OPEN => return json!({"timeout": 100}),
        "none" => vec![],
        "read" => vec![at("fs:read", "in")],
        "write" => vec![at("fs:write", "work")],
        "net" => vec!["net".to_owned()],
        HOST => vec![format!("net:127.0.0.1:{port}"), format!("net:changing.test:{port}")],
        NEIGHBOUR => {
            ["127.0.0.1", "127.0.0.2", "changing.test"].map(|host| format!("net:{host}")).into()
        }
        "loop" => vec!["net:loopback".to_owned()],
        "exec" => vec![at("exec", "run/program")],
        _ => vec![
            at("fs:read", "in"),
            at("fs:write", "work"),
            "exec".to_owned(),
            "env:ORLA_PROBE_DECLARED".to_owned(),
        ],
    };
    let mut declaration = json!({"permissions": permissions, "timeout": 100});
    if set == "mixed" {
        declaration["limits"] = json!({
            "memory": "512Mi",
            "processes": 40,
            "open_files": 100,
            "cpu_seconds": 1,
            "file_size": "2Mi",
        });
    }
    declaration
}

/// Which sockets of the host a set may reach, by their names in [`super::host::Sockets`].
pub(super) fn may_reach(set: &str, socket: &str) -> bool {
    match set {
        HOST => socket == "tcp",
        "loop" => socket.starts_with("tcp"),
        "net" => socket.starts_with("tcp") || socket.starts_with("udp"),
        _ => set == OPEN,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_probe_is_described_once_and_speaks_of_known_sets() {
        let probes = all();
        let mut names: Vec<_> = probes.iter().map(|probe| probe.name).collect();
        names.sort_unstable();
        names.dedup();
        assert_eq!(names.len(), probes.len());
        assert!(probes.len() >= 80, "{}", probes.len());
        for probe in &probes {
            for word in &probe.succeeds {
                let set = word.trim_end_matches('?');
                assert!(set == "confined" || SETS.contains(&set), "{}: {word}", probe.name);
            }
        }
    }

    #[test]
    fn a_probe_is_expressed_in_some_language() {
        let programs = [
            include_str!("../../fixtures/sandbox/probe.c"),
            include_str!("../../fixtures/sandbox/probe.py"),
        ];
        for probe in all() {
            let name = probe.name.rsplit('.').next().unwrap_or_default();
            assert!(programs.iter().any(|program| program.contains(name)), "{}", probe.name);
        }
    }

    #[test]
    fn what_is_not_named_must_fail() {
        let probe = Probe { name: "x", succeeds: vec!["open", "net", "loop?"], refusals: vec!["ESRCH"] };
        assert_eq!(
            ["open", "net", "loop", "none"].map(|set| probe.rule(set)),
            [Rule::MustSucceed, Rule::MustSucceed, Rule::May, Rule::MustFail]
        );
        assert!(probe.refused_by("ESRCH") && probe.refused_by("EPERM") && !probe.refused_by("ENOENT"));
    }
}
