//! Explains why a program could not be started, and how to fix it.
//!
//! The kernel says `No such file or directory` for a missing file, a missing interpreter, a carriage
//! return in the first line and a missing loader. This module examines the file after a failed start, so
//! that successful calls pay nothing for it.

use std::env;
use std::ffi::OsStr;
use std::fs;
use std::io;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;

use rustix::io::Errno;

use crate::child::is;
use crate::file::{read_head, reason};
use crate::shebang::{FileKind, Shebang};

/// The shell's code for a program that could not be executed.
pub const CANNOT_EXECUTE: i32 = 126;
/// The shell's code for a program that could not be found.
pub const NOT_FOUND: i32 = 127;

/// The first bytes of an ELF file.
const ELF: &[u8] = b"\x7fELF";
/// The size in bytes of the smallest header of an ELF file.
const ELF_HEADER: usize = 52;

/// Why a program could not be started.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StartFailure {
    /// The exit code by the shell's convention: [`CANNOT_EXECUTE`] or [`NOT_FOUND`].
    pub exit_code: i32,
    /// The text that completes the sentence "it could not start: …".
    pub reason: String,
    /// Further details, in the form that a shell prints on standard error.
    pub detail: Option<String>,
}

/// Explains the error of a failed start of `program`.
pub fn explain(program: &Path, error: &io::Error) -> StartFailure {
    let found = |exit_code, reason: String| StartFailure { exit_code, reason, detail: None };
    if is(error, Errno::NOENT) || is(error, Errno::NOTDIR) {
        if fs::metadata(program).is_err() {
            return found(NOT_FOUND, "its file is gone".to_owned());
        }
        return match head(program) {
            (FileKind::Script(shebang), _) => {
                StartFailure { detail: missing_file(&shebang), ..found(NOT_FOUND, missing(&shebang)) }
            }
            (FileKind::Binary, head) => found(NOT_FOUND, missing_loader(&head)),
            (FileKind::Text, _) => found(NOT_FOUND, reason(error)),
        };
    }
    if is(error, Errno::ACCESS) {
        if fs::metadata(program).is_ok_and(|file| file.permissions().mode() & 0o111 == 0) {
            return found(CANNOT_EXECUTE, "its file is not executable (chmod +x)".to_owned());
        }
        if let (FileKind::Script(shebang), _) = head(program)
            && !is_executable(&shebang.program)
        {
            return found(CANNOT_EXECUTE, format!("interpreter {} is not executable", name(&shebang)));
        }
    }
    if is(error, Errno::NOEXEC) {
        return found(CANNOT_EXECUTE, foreign(&head(program).1));
    }
    if is(error, Errno::TXTBSY) {
        return found(CANNOT_EXECUTE, "its file is being written".to_owned());
    }
    found(CANNOT_EXECUTE, reason(error))
}

/// Explains why a program will not start, as far as its file shows that. A program for another machine
/// may still run, through an emulator that the kernel knows.
pub fn check(program: &Path) -> Option<StartFailure> {
    let found = |exit_code, reason: String| StartFailure { exit_code, reason, detail: None };
    match head(program) {
        // A relative interpreter is looked up in the working directory, which varies.
        (FileKind::Script(shebang), _) if shebang.program.is_absolute() => {
            if shebang.carriage_return || !shebang.program.exists() {
                return Some(StartFailure {
                    detail: missing_file(&shebang),
                    ..found(NOT_FOUND, missing(&shebang))
                });
            }
            if !is_executable(&shebang.program) {
                let reason = format!("interpreter {} is not executable", name(&shebang));
                return Some(found(CANNOT_EXECUTE, reason));
            }
            explain_env(program)
        }
        (FileKind::Binary, head) if head.starts_with(ELF) && head.len() < ELF_HEADER => {
            Some(found(CANNOT_EXECUTE, foreign(&head)))
        }
        _ => None,
    }
}

/// Explains exit code 127 of a script whose interpreter `env` searches for; `None` if the interpreter
/// exists, and the code is the script's own.
pub fn explain_env(program: &Path) -> Option<StartFailure> {
    let FileKind::Script(shebang) = head(program).0 else { return None };
    let searched = shebang.searched()?;
    let unfindable = shebang.carriage_return || shebang.is_unsplit() || !is_in_path(searched);
    unfindable.then(|| StartFailure { exit_code: NOT_FOUND, reason: missing(&shebang), detail: None })
}

fn missing(shebang: &Shebang) -> String {
    let name = name(shebang);
    if shebang.carriage_return {
        return format!(
            "interpreter {name} not found, because the first line ends in a carriage return (CRLF); \
             save the file with Unix line endings (LF)"
        );
    }
    if shebang.is_unsplit() {
        return format!(
            "interpreter {name} not found, because env takes its options for a part of the name; \
             write `env -S`"
        );
    }
    match shebang.searched() {
        None if is_executable(&shebang.program) => {
            format!("interpreter {name} cannot be started itself")
        }
        _ => format!("interpreter {name} not found"),
    }
}

/// Returns the path in the first line, if no file exists there.
fn missing_file(shebang: &Shebang) -> Option<String> {
    let is_missing = fs::symlink_metadata(&shebang.program).is_err();
    is_missing.then(|| format!("{}: no such file\n", shebang.program.display()))
}

fn name(shebang: &Shebang) -> String {
    shebang.interpreter().to_string_lossy().into_owned()
}

fn missing_loader(head: &[u8]) -> String {
    let path = head
        .split(|byte| *byte == 0)
        .filter_map(|part| str::from_utf8(part).ok())
        .find(|part| part.starts_with('/') && part.contains("/ld"));
    match path {
        Some(path) => format!("its loader {path} is not installed"),
        None => "its loader is not installed".to_owned(),
    }
}

/// Describes a binary that this machine does not run.
fn foreign(head: &[u8]) -> String {
    let machine = (head.starts_with(ELF) && head.len() >= 20).then(|| {
        let (low, high) = if head[5] == 2 { (head[19], head[18]) } else { (head[18], head[19]) };
        u16::from(low) | u16::from(high) << 8
    });
    let built_for = match machine {
        Some(3) => "x86",
        Some(8) => "mips",
        Some(20) => "powerpc",
        Some(21) => "powerpc64",
        Some(22) => "s390x",
        Some(40) => "arm",
        Some(62) => "x86_64",
        Some(183) => "aarch64",
        Some(243) => "riscv",
        Some(258) => "loongarch64",
        _ if head.starts_with(b"MZ") => "Windows",
        _ if [0xfeed_face_u32, 0xfeed_facf, 0xcafe_babe].iter().any(|magic| {
            head.starts_with(&magic.to_be_bytes()) || head.starts_with(&magic.to_le_bytes())
        }) =>
        {
            "macOS"
        }
        _ => return "it is not a program that this machine can run".to_owned(),
    };
    let (os, arch) = (env::consts::OS, env::consts::ARCH);
    format!("it is built for {built_for}, and this machine is {os} on {arch}")
}

fn head(program: &Path) -> (FileKind, Vec<u8>) {
    let head = read_head(program).unwrap_or_default();
    (FileKind::of(&head), head)
}

fn is_in_path(name: &OsStr) -> bool {
    if name.as_encoded_bytes().contains(&b'/') {
        return is_executable(Path::new(name));
    }
    env::var_os("PATH").is_some_and(|path| {
        env::split_paths(&path).any(|directory| is_executable(&directory.join(name)))
    })
}

fn is_executable(path: &Path) -> bool {
    fs::metadata(path).is_ok_and(|file| file.is_file() && file.permissions().mode() & 0o111 != 0)
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;
    use crate::child::Program;

    /// Starts a file of this content and explains the failure.
    fn failure(content: &[u8], mode: u32) -> (i32, String) {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("tool");
        fs::write(&path, content).unwrap();
        fs::set_permissions(&path, fs::Permissions::from_mode(mode)).unwrap();
        let failure = match Program::new(&path).unwrap().start(&[], &[], &Arc::default()) {
            Ok(mut child) => {
                assert_eq!(child.wait().unwrap().code(), Some(127));
                explain_env(&path).unwrap()
            }
            Err(error) => explain(&path, &error),
        };
        (failure.exit_code, failure.reason)
    }

    #[test]
    fn the_true_reason_is_named() {
        let cases: &[(&[u8], i32, &str)] = &[
            (b"#!/opt/none/python9\n", 127, "interpreter python9 not found"),
            (b"#!/usr/bin/env python9\n", 127, "interpreter python9 not found"),
            (
                b"#!/bin/sh\r\necho\r\n",
                127,
                "interpreter sh not found, because the first line ends in a carriage return (CRLF); save the file with Unix line endings (LF)",
            ),
            (
                b"#!/usr/bin/env sh\r\n",
                127,
                "interpreter sh not found, because the first line ends in a carriage return (CRLF); save the file with Unix line endings (LF)",
            ),
            (
                b"#!/usr/bin/env sh -e\n",
                127,
                "interpreter sh not found, because env takes its options for a part of the name; write `env -S`",
            ),
            (b"#!/etc/passwd\n", 126, "interpreter passwd is not executable"),
            (b"MZ\0\0\0", 126, "it is built for Windows, and this machine is linux on x86_64"),
            (b"\0\0\0\0", 126, "it is not a program that this machine can run"),
        ];
        for (content, code, reason) in cases {
            let reason = reason
                .replace("linux on x86_64", &format!("{} on {}", env::consts::OS, env::consts::ARCH));
            assert_eq!(
                failure(content, 0o755),
                (*code, reason),
                "{:?}",
                String::from_utf8_lossy(content)
            );
        }
    }

    #[test]
    fn a_binary_for_another_machine_is_named_as_such() {
        let mut elf = fs::read("/bin/true").unwrap();
        let other = if env::consts::ARCH == "aarch64" { (62, "x86_64") } else { (183, "aarch64") };
        (elf[18], elf[19]) = (other.0, 0);
        let (code, reason) = failure(&elf, 0o755);
        assert_eq!(
            (code, reason.starts_with(&format!("it is built for {}", other.1))),
            (126, true),
            "{reason}"
        );
    }

    #[test]
    fn a_file_that_has_changed_since_it_was_listed_is_explained() {
        assert_eq!(failure(b"#!/bin/sh\n", 0o644).1, "its file is not executable (chmod +x)");
        let error = Program::new(Path::new("/nowhere/tool"))
            .unwrap()
            .start(&[], &[], &Arc::default())
            .unwrap_err();
        assert_eq!(explain(Path::new("/nowhere/tool"), &error).reason, "its file is gone");
    }

    #[test]
    fn the_systems_own_reason_is_passed_on() {
        for errno in [Errno::AGAIN, Errno::MFILE, Errno::NOMEM] {
            let error = io::Error::from(errno);
            let failure = explain(Path::new("/bin/true"), &error);
            assert_eq!(failure.exit_code, 126);
            assert!(error.to_string().starts_with(&failure.reason), "{}", failure.reason);
        }
    }

    #[test]
    fn a_127_of_the_scripts_own_is_not_the_interpreters_fault() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("tool");
        fs::write(&path, "#!/usr/bin/env sh\nno_such_command\n").unwrap();
        assert_eq!(explain_env(&path), None);
    }
}
