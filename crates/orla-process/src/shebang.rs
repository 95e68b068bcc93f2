//! Determines how the kernel runs a file (RFC 1 §4.3).
//!
//! Only the first bytes are read. The interpreter found here is shown to users and explains failures.
//! The kernel itself decides what runs, options included.

use std::ffi::{OsStr, OsString};
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::{Path, PathBuf};

/// The kind of a file, according to its first bytes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum FileKind {
    /// A script that names its interpreter.
    Script(Shebang),
    /// Text without an interpreter, including the empty file. `/bin/sh` runs it.
    Text,
    /// Any other content.
    Binary,
}

impl FileKind {
    /// Returns the kind of a file that begins with `head`.
    pub fn of(head: &[u8]) -> Self {
        if let Some(shebang) = Shebang::parse(head) {
            return Self::Script(shebang);
        }
        let looked_at = &head[..head.len().min(512)];
        if head.starts_with(b"\x7fELF") || looked_at.contains(&0) { Self::Binary } else { Self::Text }
    }

    /// Returns the interpreter's common name: `python3`; `sh` for text without a shebang.
    pub fn interpreter(&self) -> Option<String> {
        match self {
            Self::Script(shebang) => Some(shebang.interpreter().to_string_lossy().into_owned()),
            Self::Text => Some("sh".to_owned()),
            Self::Binary => None,
        }
    }
}

/// The first line of a script: `#!PROGRAM ARGUMENT`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Shebang {
    /// The program that the kernel starts.
    pub program: PathBuf,
    /// The rest of the line, which the kernel passes as one argument.
    pub argument: Option<OsString>,
    /// Whether the line ends in a carriage return, which the kernel treats as part of the name.
    pub carriage_return: bool,
}

impl Shebang {
    /// Parses the shebang of a file that begins with `head`.
    pub fn parse(head: &[u8]) -> Option<Self> {
        let line = head.strip_prefix(b"#!")?;
        let line = line.split(|byte| *byte == b'\n').next().unwrap_or(line);
        let carriage_return = line.ends_with(b"\r");
        let line = line.trim_ascii();
        let end = line.iter().position(|byte| matches!(byte, b' ' | b'\t')).unwrap_or(line.len());
        let (program, argument) = (&line[..end], line[end..].trim_ascii());
        if program.is_empty() {
            return None;
        }
        Some(Self {
            program: PathBuf::from(OsString::from_vec(program.to_vec())),
            argument: (!argument.is_empty()).then(|| OsString::from_vec(argument.to_vec())),
            carriage_return,
        })
    }

    /// Returns the interpreter's name: `python3` in `#!/usr/bin/env -S python3 -u`.
    pub fn interpreter(&self) -> &OsStr {
        let named = self.searched().unwrap_or(self.program.as_os_str());
        Path::new(named).file_name().unwrap_or(named)
    }

    /// Returns whether the kernel starts `env`.
    pub fn is_env(&self) -> bool {
        self.program.file_name() == Some(OsStr::new("env"))
    }

    /// Returns the program that `env` searches for in `PATH`, if the kernel starts `env`. Another option may take the next word, or change
    /// where `env` searches, so there is no answer then.
    pub fn searched(&self) -> Option<&OsStr> {
        if !self.is_env() {
            return None;
        }
        let argument = self.argument.as_ref()?.as_bytes();
        // In a split text, `env` interprets these.
        let is_special = |byte: &u8| match byte {
            b'\'' | b'"' | b'\\' | b'$' | b'#' => true,
            _ => byte.is_ascii_control() && *byte != b'\t',
        };
        if argument.iter().any(is_special) {
            return None;
        }
        let split = argument.strip_prefix(b"-S").unwrap_or(argument);
        let words = split.split(|byte| matches!(byte, b' ' | b'\t'));
        let mut words = words.filter(|word| !word.is_empty());
        let mut may_be_option = true;
        while let Some(word) = words.next() {
            match word {
                b"--split-string" | b"-v" | b"--debug" if may_be_option => {}
                b"-a" | b"--argv0" if may_be_option => drop(words.next()),
                // Without it or in another directory, `env` finds another program.
                b"-u" | b"--unset" if may_be_option && words.next()? != b"PATH" => {}
                _ if word.starts_with(b"PATH=") || may_be_option && word.starts_with(b"-") => {
                    return None;
                }
                _ if word.contains(&b'=') => may_be_option = false,
                _ => return Some(OsStr::from_bytes(word)),
            }
        }
        None
    }

    /// Returns whether `env` gets a program and its options as one word, and so finds neither.
    pub fn is_unsplit(&self) -> bool {
        self.searched().is_some()
            && self.argument.as_ref().is_some_and(|argument| {
                !argument.as_bytes().starts_with(b"-") && argument.as_bytes().contains(&b' ')
            })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_interpreter_is_inferred() {
        let cases = [
            ("#!/bin/bash\necho", Some("bash")),
            ("#!/usr/bin/env python3 -u\n", Some("python3")),
            ("#!/usr/bin/env -S python3 -u\n", Some("python3")),
            ("#!/usr/bin/env -Spython3 -u\n", Some("python3")),
            ("#!/usr/bin/env -S -u BAR FOO=1 node\n", Some("node")),
            ("#!/usr/bin/env -S FOO=1 -u node\n", Some("-u")),
            ("#!/usr/bin/env -S -i node\n", Some("env")),
            ("#!/usr/bin/env -S -u PATH node\n", Some("env")),
            ("#!/usr/bin/env -S PATH=/x node\n", Some("env")),
            ("#!/usr/bin/env -S -C /x node\n", Some("env")),
            ("#!/usr/bin/env -S -a name node\n", Some("node")),
            ("#!/usr/bin/env -S -iu NAME node\n", Some("env")),
            ("#!/usr/bin/env -S -u  NAME node\n", Some("node")),
            ("#!/usr/bin/env -S -u -S node -S\n", Some("node")),
            ("#!/usr/bin/env -SA=1 node\n", Some("node")),
            ("#!/usr/bin/env -S --split-string=-u NAME node\n", Some("env")),
            ("#!/usr/bin/env -S -u\\_NAME node\n", Some("env")),
            ("#!/usr/bin/env -S \"python3\" node\n", Some("env")),
            ("#! /bin/sh -e\n", Some("sh")),
            ("#!/bin/sh\r\n", Some("sh")),
            ("#!/usr/bin/env\n", Some("env")),
            ("#!python3", Some("python3")),
            ("echo no shebang\n", Some("sh")),
            ("", Some("sh")),
            ("#!\n", Some("sh")),
            ("\x7fELF\x02\x01", None),
            ("MZ\0\0", None),
        ];
        for (head, interpreter) in cases {
            assert_eq!(FileKind::of(head.as_bytes()).interpreter().as_deref(), interpreter, "{head:?}");
        }
    }

    #[test]
    fn a_carriage_return_is_noticed_and_kept_out_of_the_name() {
        let shebang = Shebang::parse(b"#!/usr/bin/env python3\r\nprint()").unwrap();
        assert!(shebang.carriage_return);
        assert_eq!(shebang.searched(), Some(OsStr::new("python3")));
    }

    #[test]
    fn options_after_the_program_are_one_word_to_env() {
        assert!(Shebang::parse(b"#!/usr/bin/env python3 -u").unwrap().is_unsplit());
        assert!(!Shebang::parse(b"#!/usr/bin/env -S python3 -u").unwrap().is_unsplit());
        assert!(!Shebang::parse(b"#!/bin/bash -e").unwrap().is_unsplit());
    }
}
