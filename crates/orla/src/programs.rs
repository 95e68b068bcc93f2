//! Reads RTFS programs from files, with the modules beside them.

use std::io::Read;
use std::path::Path;
use std::sync::Arc;

use orla_document::Position;
use orla_marketplace::Registration;
use orla_marketplace::program::file::{self, Fault, Made};
use orla_marketplace::rtfs::Modules;
use orla_process::file::open_regular;
use orla_providers::tool::{Finding, ProgramFile};

use crate::config::reason;
use crate::findings::Findings;

/// The largest program that is read, in bytes.
pub(crate) const MAX_PROGRAM: u64 = 16 * 1024 * 1024;

/// Makes capabilities of the programs of a tools directory. One with an error is unavailable.
pub(crate) fn load(programs: &[ProgramFile], findings: &mut Findings) -> Vec<Registration> {
    let mut registrations = Vec::with_capacity(programs.len());
    for ProgramFile { name, path } in programs {
        let finding = |at, message| Finding { path: path.clone(), at, message }.to_string();
        let placed = |fault: Fault| {
            let (line, column) = (fault.at.line as usize, fault.at.column as usize);
            finding(Some(Position { line, column }), fault.message)
        };
        let text = match read(path) {
            Ok(text) => text,
            Err(why) => {
                findings.problems.push(finding(None, format!("cannot be read: {why}")));
                continue;
            }
        };
        let Made { registration, faults } =
            file::capability(name, path, &text, modules_beside(path.parent()));
        if registration.is_none() && faults.is_empty() {
            let message = "defines no main, so it is a module for other programs".to_owned();
            findings.skipped.push(finding(None, message));
        }
        registrations.extend(registration);
        findings.problems.extend(faults.into_iter().map(placed));
    }
    registrations
}

/// The text of a program, or why it cannot be read.
///
/// # Errors
/// It is not a regular file, is too large, is not UTF-8, or the system refuses it.
pub(crate) fn read(path: &Path) -> Result<String, String> {
    let mut text = String::new();
    let opened = open_regular(path).map_err(|err| reason(&err))?;
    opened.take(MAX_PROGRAM + 1).read_to_string(&mut text).map_err(|err| reason(&err))?;
    if text.len() as u64 > MAX_PROGRAM {
        return Err(format!("a program has at most {MAX_PROGRAM} bytes"));
    }
    Ok(text)
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
