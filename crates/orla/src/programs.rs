//! Reads RTFS programs from files, with the modules beside them.

use std::collections::HashMap;
use std::fmt;
use std::io::Read;
use std::path::Path;
use std::sync::Arc;

use orla_document::Position;
use orla_marketplace::Registration;
use orla_marketplace::program::file::{self, Fault, Made};
use orla_marketplace::rtfs::Modules;
use orla_process::confinement::Limits;
use orla_process::file::open_regular;
use orla_providers::tool::metadata::NO_PROCESS;
use orla_providers::tool::{DescriptionFinding, Finding, Override, ProgramFile};

use crate::config::{Config, reason};
use crate::findings::Findings;

/// The largest program that is read, in bytes.
pub(crate) const MAX_PROGRAM: u64 = 16 * 1024 * 1024;

/// Creates capabilities from the programs of a tools directory. `changes` contains changes by name. A
/// program with an error is unavailable.
pub(crate) fn load(
    programs: &[ProgramFile],
    changes: &HashMap<String, Override>,
    config: &Config,
    findings: &mut Findings,
) -> Vec<Registration> {
    let mut registrations = Vec::with_capacity(programs.len());
    for program in programs {
        let name = program.name.as_str();
        let (made, mut faults) = read_program(program, findings);
        let Some(mut registration) = made else {
            findings.problems.extend(faults);
            continue;
        };
        if let Some(change) = changes.get(name) {
            registration
                .manifest
                .permissions
                .extend(change.declared.permissions.iter().flatten().cloned());
            let at = config.tools.get(name).and_then(|change| change.at);
            faults.extend(of_processes(change).map(|key| {
                let text = format!("tools.{name}.{key}: {NO_PROCESS}");
                at.map_or_else(|| text.clone(), |at| config.placed(at, text.clone()))
            }));
        }
        if let Some(fault) = faults.first() {
            registration.policy = registration.policy.unavailable(fault);
        }
        registrations.push(registration);
        findings.problems.extend(faults);
    }
    registrations
}

/// Returns the capability of a program, if it is one, and everything that is wrong with it.
fn read_program(program: &ProgramFile, findings: &mut Findings) -> (Option<Registration>, Vec<String>) {
    let ProgramFile { name, path, .. } = program;
    let finding = |at, message| Finding { path: path.clone(), at, message }.to_string();
    let bytes = read_bytes(path);
    let (read, remarks) = program.read_description(bytes.as_deref().unwrap_or_default());
    let comment = read.metadata.description.as_deref().or(read.paragraph.as_deref());
    let (made, mut faults) = match bytes.and_then(decoded) {
        Ok(text) => {
            let Made { registration, faults } =
                file::capability(name, path, &text, comment, modules_beside(path.parent()));
            let placed = |fault: Fault| {
                let (line, column) = (fault.at.line as usize, fault.at.column as usize);
                finding(Some(Position { line, column }), fault.message)
            };
            (registration, faults.into_iter().map(placed).collect())
        }
        Err(Unread { at, reason }) => {
            let unusable = file::unusable(name, path, comment);
            (Some(unusable), vec![finding(at, format!("cannot be read: {reason}"))])
        }
    };
    for DescriptionFinding { finding, is_problem } in remarks {
        let list = if is_problem { &mut faults } else { &mut findings.warnings };
        list.push(finding.to_string());
    }
    let Some(Registration { mut manifest, mut policy }) = made else {
        if faults.is_empty() {
            let message = "defines no main, so it is a module for other programs".to_owned();
            findings.skipped.push(finding(None, message));
        }
        return (None, faults);
    };
    let metadata = read.metadata;
    if let Some(description) = &metadata.description {
        manifest.description.clone_from(description);
    }
    manifest.permissions = metadata.declared.permissions.clone().unwrap_or_default();
    policy.timeout = metadata.timeout;
    metadata.complete(&mut manifest);
    (Some(Registration { manifest, policy }), faults)
}

/// Returns the keys of `tools.NAME` that are about a process.
fn of_processes(change: &Override) -> impl Iterator<Item = &'static str> {
    let Override { pass_env, env, redaction: _, prestart, declared } = change;
    let given = [
        ("pass_env", !pass_env.is_empty()),
        ("env", !env.is_empty()),
        ("prestart", prestart.is_some()),
        ("limits", declared.limits != Limits::default()),
        ("sandbox_fallback", declared.fallback.is_some()),
    ];
    given.into_iter().filter_map(|(key, is_given)| is_given.then_some(key))
}

/// The reason why a program cannot be read.
#[derive(Debug)]
pub(crate) struct Unread {
    /// Where in it.
    at: Option<Position>,
    reason: String,
}

impl fmt::Display for Unread {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.at {
            Some(Position { line, column }) => {
                write!(f, "{} in line {line}, column {column}", self.reason)
            }
            None => f.write_str(&self.reason),
        }
    }
}

/// Returns the text of a program.
///
/// # Errors
///
/// Returns an error if it is not a regular file, is too large, is not UTF-8, or the system refuses it.
pub(crate) fn read(path: &Path) -> Result<String, Unread> {
    read_bytes(path).and_then(decoded)
}

fn read_bytes(path: &Path) -> Result<Vec<u8>, Unread> {
    let unread = |reason| Unread { at: None, reason };
    let mut bytes = Vec::new();
    let opened = open_regular(path).map_err(|err| unread(reason(&err)))?;
    opened.take(MAX_PROGRAM + 1).read_to_end(&mut bytes).map_err(|err| unread(reason(&err)))?;
    if bytes.len() as u64 > MAX_PROGRAM {
        return Err(unread(format!("a program has at most {MAX_PROGRAM} bytes")));
    }
    Ok(bytes)
}

fn decoded(bytes: Vec<u8>) -> Result<String, Unread> {
    String::from_utf8(bytes).map_err(|err| {
        let found = orla_document::decode(err.as_bytes()).err();
        let at = found.as_ref().map(|found| found.at);
        Unread { at, reason: found.map_or_else(|| err.to_string(), |found| found.problem) }
    })
}

/// The modules that a program imports are files beside it: `my.mod` is `my/mod.rtfs`.
pub(crate) fn modules_beside(directory: Option<&Path>) -> Modules {
    let directory = directory.map_or_else(|| Path::new(".").to_owned(), Path::to_owned);
    Arc::new(move |name| {
        let is_plain =
            |part: &str| !part.is_empty() && !part.contains(['/', '\\', '\0']) && part != "..";
        if !name.split('.').all(is_plain) {
            return None;
        }
        read(&directory.join(name.replace('.', "/")).with_extension("rtfs")).ok()
    })
}
