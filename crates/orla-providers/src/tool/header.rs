//! The comments at the top of a script: its metadata block and its first paragraph.
//!
//! A tool may describe itself in a comment block in the style of inline script metadata:
//!
//! ```text
//! # /// orla
//! # description: Adds two numbers
//! # ///
//! ```
//!
//! The comment mark is `#`, `//`, `--` or `;`, which may be repeated (`;;`). The rest of each line is
//! YAML. This module only finds the block; [`metadata`](super::metadata) reads its keys. Pure functions
//! over the first bytes of a file.

use orla_process::shebang::FileKind;

use super::metadata::NOT_RUN;

/// The number of bytes that are read of every file: enough for the shebang and most first paragraphs.
pub const FIRST_READ: usize = 512;
/// The number of bytes that are read if the comments at the top continue beyond [`FIRST_READ`].
pub const HEADER_READ: usize = 4 * 1024;
/// The number of bytes that are read if the comments at the top, or a metadata block, continue beyond
/// [`HEADER_READ`]. A block must end within them.
pub const BLOCK_READ: usize = 64 * 1024;

/// The content of the comments at the top of a file.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct Header {
    /// The metadata block, or why it cannot be used.
    pub block: Option<Result<Block, BlockFault>>,
    /// The first paragraph of comments, as one line.
    pub paragraph: Option<String>,
}

/// The YAML of a metadata block, and the position of each of its lines in the file.
#[derive(Debug, PartialEq, Eq)]
pub struct Block {
    /// The text without the comment marks.
    pub yaml: String,
    /// The number of its first line in the file, from 1.
    pub first_line: usize,
    /// The number of characters that each line lost on its left.
    pub cut: Vec<usize>,
}

/// A metadata block that has no end, is not UTF-8, or is not the first one.
#[derive(Debug, PartialEq, Eq)]
pub struct BlockFault {
    /// The line of the file, from 1.
    pub line: usize,
    /// The fault.
    pub message: String,
}

/// Returns how many bytes of the file must be read, if it is longer than `head`; `None` if `head` is
/// enough. Never more than [`BLOCK_READ`].
pub fn wanted(head: &[u8]) -> Option<usize> {
    if head.len() >= BLOCK_READ || FileKind::of(head) == FileKind::Binary {
        return None;
    }
    let mut lines = lines(head);
    if lines.by_ref().any(|(_, line)| opens(line)) {
        let is_open =
            lines.by_ref().all(|(_, line)| mark(line).is_some() && !closes(line) || line.is_empty());
        if is_open && !ends_in_close(head) {
            return Some(if head.len() < HEADER_READ { HEADER_READ } else { BLOCK_READ });
        }
        // A second block would be a mistake that must be found.
        let in_header = lines.all(|(_, line)| is_header(line));
        return (in_header && head.len() < HEADER_READ).then_some(HEADER_READ);
    }
    let in_header = self::lines(head).all(|(_, line)| is_header(line) || is_cut_off(line));
    in_header.then_some(if head.len() < HEADER_READ { HEADER_READ } else { BLOCK_READ })
}

/// Returns the part of a complete file that would be read of it.
pub fn top(bytes: &[u8]) -> &[u8] {
    let first = |count: usize| &bytes[..bytes.len().min(count)];
    let mut head = first(FIRST_READ);
    while let Some(longer) = wanted(head).map(first).filter(|longer| longer.len() > head.len()) {
        head = longer;
    }
    head
}

/// Returns whether a metadata block begins in the comments at the top of a file.
pub fn has_block(head: &[u8]) -> bool {
    FileKind::of(head) != FileKind::Binary
        && lines(head).map_while(|(_, line)| is_header(line).then_some(line)).any(opens)
}

/// Reads the comments at the top of a file.
pub fn read(head: &[u8]) -> Header {
    let head = head.strip_prefix(b"\xef\xbb\xbf").unwrap_or(head);
    Header { block: block(head), paragraph: paragraph(head) }
}

fn block(head: &[u8]) -> Option<Result<Block, BlockFault>> {
    let mut lines = lines(head);
    let Some((opened_at, opening)) = lines.find(|(_, line)| opens(line)) else {
        // Below the comments at the top, an indented line is one of a text, such as a script that a script writes.
        let mut is_at_top = true;
        let mut almost = self::lines(head).filter(|(_, line)| {
            is_at_top &= is_header(line);
            almost_opens(line) && (is_at_top || mark(line).is_some())
        });
        let (line, text) = almost.next()?;
        let mark = mark(text.trim_ascii()).unwrap_or("#");
        let message = format!(
            "a metadata block begins with `{mark} /// orla`; write this line so, or otherwise if it is a comment. {NOT_RUN}"
        );
        return Some(Err(BlockFault { line, message }));
    };
    let mark = mark(opening)?;
    let mut block = Block { yaml: String::new(), first_line: opened_at + 1, cut: Vec::new() };
    while let Some((number, line)) = lines.next() {
        if closes(line) {
            let mut rest = lines.take_while(|(_, line)| is_header(line));
            let second = rest.find(|(_, line)| opens(line)).map(|(line, _)| BlockFault {
                line,
                message: "a second metadata block: write all keys in the first one".to_owned(),
            });
            return Some(second.map_or(Ok(block), Err));
        }
        let fault = |message: String| Some(Err(BlockFault { line: number, message }));
        let Ok(line) = str::from_utf8(line) else {
            return fault("the metadata block is not UTF-8".to_owned());
        };
        let Some(text) = line.strip_prefix(mark) else {
            return fault(format!("the metadata block has no end: expected `{mark} ///`"));
        };
        let text = text.strip_prefix(' ').unwrap_or(text);
        block.cut.push(line.len() - text.len());
        block.yaml.push_str(text);
        block.yaml.push('\n');
    }
    let message = format!("the metadata block has no end within {} KiB", BLOCK_READ / 1024);
    let message =
        if head.len() < BLOCK_READ { "the metadata block has no end".to_owned() } else { message };
    Some(Err(BlockFault { line: opened_at, message }))
}

fn paragraph(head: &[u8]) -> Option<String> {
    let mut words = String::new();
    let mut lines = lines(head);
    while let Some((number, line)) = lines.next() {
        if number == 1 && line.starts_with(b"#!") {
            continue;
        }
        let text = String::from_utf8_lossy(line);
        let Some(comment) = comment(&text) else {
            let passed_over = text.trim().is_empty() || text.starts_with("set -");
            if passed_over && words.is_empty() {
                continue;
            }
            break;
        };
        if comment.starts_with("/// ") {
            // A block of metadata, of orla or of another program.
            let _ = lines.by_ref().find(|(_, line)| closes(line));
        } else if !comment.contains(char::is_alphanumeric) {
            if !words.is_empty() {
                break;
            }
        } else if !is_directive(comment) {
            if !words.is_empty() {
                words.push(' ');
            }
            words.push_str(comment);
        }
    }
    (!words.is_empty()).then_some(words)
}

/// Returns whether a comment is for editors, linters or licence tools, and describes nothing.
fn is_directive(comment: &str) -> bool {
    let lower = comment.to_ascii_lowercase();
    let lower = lower.trim_start_matches('@');
    comment.contains("-*-")
        || [
            "vim:",
            "vi:",
            "ex:",
            "shellcheck ",
            "coding:",
            "coding=",
            "pylint:",
            "pyright:",
            "mypy:",
            "ruff:",
            "flake8:",
            "noqa",
            "type: ",
            "isort:",
            "frozen_string_literal:",
            "rubocop:",
            "eslint",
            "ts-",
            "spdx-",
            "copyright ",
        ]
        .iter()
        .any(|start| lower.starts_with(start))
}

/// A longer mark precedes the one that it begins with.
const MARKS: [&str; 6] = ["#", "//", "--", ";;;", ";;", ";"];

fn mark(line: &[u8]) -> Option<&'static str> {
    MARKS.into_iter().find(|mark| line.starts_with(mark.as_bytes()))
}

/// Returns the text of a comment, without its mark, which may be repeated.
fn comment(line: &str) -> Option<&str> {
    let mark = mark(line.as_bytes())?;
    let rest = line.strip_prefix(mark)?;
    let repeated = &mark[mark.len() - 1..];
    let rest = if rest.starts_with(" /// ") { rest } else { rest.trim_start_matches(repeated) };
    Some(rest.trim())
}

fn opens(line: &[u8]) -> bool {
    after_slashes(line).is_some_and(|name| name.trim_ascii().eq_ignore_ascii_case(b"orla"))
}

/// Returns whether a comment is probably meant to open a metadata block: it is indented, its mark is
/// repeated, it has two or four slashes, or text follows.
fn almost_opens(line: &[u8]) -> bool {
    let line = line.trim_ascii();
    let Some(mut rest) = mark(line).and_then(|mark| line.strip_prefix(mark.as_bytes())) else {
        return false;
    };
    while let [b'#' | b'-' | b';', more @ ..] = rest {
        rest = more;
    }
    let rest = rest.trim_ascii_start();
    let slashes = rest.iter().take_while(|byte| **byte == b'/').count();
    let rest = rest[slashes..].trim_ascii_start();
    let Some((name, after)) = rest.split_at_checked(4) else { return false };
    let is_word = |byte: &u8| byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'_' | b'.');
    // After two slashes, more words are likely to be a comment in another comment.
    let is_end = match slashes {
        2 => !after.iter().any(u8::is_ascii_alphanumeric),
        3 | 4 => !after.first().is_some_and(is_word),
        _ => false,
    };
    is_end && name.eq_ignore_ascii_case(b"orla")
}

fn closes(line: &[u8]) -> bool {
    after_slashes(line).is_some_and(|name| name.trim_ascii().is_empty())
}

/// Returns the text after `///` in a comment.
fn after_slashes(line: &[u8]) -> Option<&[u8]> {
    line.strip_prefix(mark(line)?.as_bytes())?.trim_ascii_start().strip_prefix(b"///")
}

fn ends_in_close(head: &[u8]) -> bool {
    lines(head).last().is_some_and(|(_, line)| closes(line))
}

fn is_header(line: &[u8]) -> bool {
    let text = line.trim_ascii();
    mark(text).is_some() || text.is_empty() || line.starts_with(b"set -")
}

/// Returns whether a line may be the beginning of a line of the header.
fn is_cut_off(line: &[u8]) -> bool {
    b"set -".starts_with(line) || matches!(line.trim_ascii(), b"-" | b"/")
}

/// Returns the lines with their numbers from 1, without their ends.
fn lines(head: &[u8]) -> impl Iterator<Item = (usize, &[u8])> {
    (1..).zip(head.split(|byte| *byte == b'\n').map(|line| line.strip_suffix(b"\r").unwrap_or(line)))
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn described(head: &str) -> Option<String> {
        read(head.as_bytes()).paragraph
    }

    #[test]
    fn the_first_paragraph_of_comments_is_found() {
        let cases = [
            (
                "#!/bin/sh\n# Says hello.\n# In two lines.\n\n# not this\necho hi\n",
                Some("Says hello. In two lines."),
            ),
            ("#!/bin/sh\n\n# After a blank line\nls\n", Some("After a blank line")),
            ("#!/usr/bin/env python3\n# -*- coding: utf-8 -*-\n# vim: ts=4\n# Real\n", Some("Real")),
            ("#!/bin/bash\n# shellcheck disable=SC2086\n#\n# Lists.\n#\n# More.\n", Some("Lists.")),
            ("#!/bin/bash\nset -euo pipefail\n# Lists.\n", Some("Lists.")),
            ("#!/usr/bin/env node\n// Says hi\n", Some("Says hi")),
            ("#!/usr/bin/env lua\n-- Says hi\n--- again\n", Some("Says hi again")),
            ("#!/usr/bin/guile\n;;; Says hi\n", Some("Says hi")),
            ("#######\n# Boxed #\n#######\n", Some("Boxed #")),
            ("#!/bin/sh\necho\n# too late\n", None),
            ("#!/bin/sh\n", None),
            ("", None),
            ("#!/usr/bin/env python3\r\n# Windows\r\n# lines\r\n\r\n", Some("Windows lines")),
            ("#!/usr/bin/env python3\n# /// script\n# dependencies = []\n# ///\n# Real\n", Some("Real")),
            ("#!/bin/sh\n# /// orla\n# title: x\n# ///\n\n# Real\n", Some("Real")),
            ("# SPDX-License-Identifier: MIT\n# Copyright 2026 me\n\n# Real\n", Some("Real")),
        ];
        for (head, paragraph) in cases {
            assert_eq!(described(head).as_deref(), paragraph, "{head:?}");
        }
    }

    #[test]
    fn a_metadata_block_is_cut_out_with_its_place() {
        let cases = [
            (
                "#!/bin/sh\n# /// orla\n# a: 1\n#\n#b: 2\n#   c: 3\n# ///\nls",
                "a: 1\n\nb: 2\n  c: 3\n",
                3,
                vec![2, 1, 1, 2],
            ),
            ("// /// orla\n// a: 1\n// ///\n", "a: 1\n", 2, vec![3]),
            ("-- /// orla\n-- a: 1\n-- ///", "a: 1\n", 2, vec![3]),
            ("; /// orla\n; a: 1\n; ///\n", "a: 1\n", 2, vec![2]),
            (";; /// orla\n;; a: 1\n;; ///\n", "a: 1\n", 2, vec![3]),
            ("\u{feff}# /// orla\r\n# a: 1\r\n# ///\r\n", "a: 1\n", 2, vec![2]),
            ("# /// orla\n# ///\n", "", 2, vec![]),
            ("# ///Orla \n# a: 1\n# ///\n", "a: 1\n", 2, vec![2]),
            ("# /// orla\n# a: 1\n# ///\necho\n# /// orla\n", "a: 1\n", 2, vec![2]),
            ("import x\n# /// orla\n# a: 1\n# ///\n", "a: 1\n", 3, vec![2]),
        ];
        for (head, yaml, first_line, cut) in cases {
            let block = read(head.as_bytes()).block;
            assert_eq!(block, Some(Ok(Block { yaml: yaml.to_owned(), first_line, cut })), "{head:?}");
        }
        assert_eq!(read(b"# /// script\n# a: 1\n# ///\n").block, None);
    }

    #[test]
    fn a_block_with_a_fault_is_reported_with_its_line() {
        let cases: &[(&[u8], usize, &str)] = &[
            (
                b"#!/bin/sh\n# /// orla\n# a: 1\necho\n",
                4,
                "the metadata block has no end: expected `# ///`",
            ),
            (b"# /// orla\n# a: 1", 1, "the metadata block has no end"),
            (b"# /// orla\n# a: \xff\n# ///\n", 2, "the metadata block is not UTF-8"),
            (
                b"# /// orla\n# a: 1\n# ///\n\n# Adds.\n# /// orla\n# b: 1\n# ///\n",
                6,
                "a second metadata block: write all keys in the first one",
            ),
        ];
        for (head, line, message) in cases {
            let fault = BlockFault { line: *line, message: (*message).to_owned() };
            assert_eq!(read(head).block, Some(Err(fault)));
        }
    }

    #[test]
    fn an_opening_with_a_mistake_is_not_ignored() {
        for line in [
            "# // orla",
            "# //// orla",
            "# /// orla:",
            "## /// orla",
            "  # /// orla",
            "// //// Orla",
            ";;;; /// orla",
            "# /// orla metadata",
            "\t-- ///orla",
        ] {
            let head = format!("#!/bin/sh\n\n{line}\n# permissions: []\n# ///\necho\n");
            assert!(
                matches!(read(head.as_bytes()).block, Some(Err(fault)) if fault.line == 3),
                "{line}"
            );
        }
        let below_code = read(b"import x\n# // orla\n# permissions: []\n").block;
        assert!(matches!(below_code, Some(Err(fault)) if fault.line == 2));
        for line in [
            "# orla",
            "# / orla",
            "# ///// orla",
            "# // orla is here",
            "# /// orla-tool",
            "# /// script",
            "echo # /// orla",
            "/// orla",
            "https://orla",
            "cat <<-EOF\n\t# /// orla\n\tEOF",
        ] {
            assert_eq!(read(format!("#!/bin/sh\n{line}\n").as_bytes()).block, None, "{line}");
        }
    }

    #[test]
    fn a_block_below_long_comments_is_found() {
        let text = [&b"# comment\n".repeat(1000)[..], b"# /// orla\n# a: 1\n# ///\n"].concat();
        assert!(matches!(read(top(&text)).block, Some(Ok(block)) if block.first_line == 1002));
    }

    #[test]
    fn a_block_is_found_wherever_the_first_bytes_end() {
        for (size, cut) in
            [FIRST_READ, HEADER_READ].into_iter().flat_map(|size| (0..12).map(move |cut| (size, cut)))
        {
            let head =
                [&b"# comment\n".repeat(size / 10 - 2)[..], &b"#".repeat(size % 10 + 19 - cut), b"\n"]
                    .concat();
            assert_eq!(head.len() + cut, size);
            let exact = [&head[..], b"set -eu -o pipefail\n# /// orla\n# a: 1\n# ///\n"].concat();
            assert!(
                matches!(read(top(&exact)).block, Some(Ok(_))),
                "{cut} bytes of `set -eu` before {size}"
            );
            let indented = [&head[..], b"  -- /// orla\n"].concat();
            assert!(matches!(read(top(&indented)).block, Some(Err(_))), "{cut} bytes before {size}");
        }
    }

    #[test]
    fn no_more_is_read_than_the_header_needs() {
        let cases: &[(Vec<u8>, Option<usize>)] = &[
            (b"#!/bin/sh\necho\n".repeat(40), None),
            (b"\x7fELF".repeat(128), None),
            (b"# comment\n".repeat(52), Some(HEADER_READ)),
            (b"# comment\n".repeat(410), Some(BLOCK_READ)),
            (b"# comment\n".repeat(6600), None),
            ([&b"-- comment\n".repeat(50)[..], b"-"].concat(), Some(HEADER_READ)),
            ([&b"# /// orla\n"[..], &b"# a: 1\n".repeat(80)].concat(), Some(HEADER_READ)),
            ([&b"# /// orla\n"[..], &b"# a: 1\n".repeat(600)].concat(), Some(BLOCK_READ)),
            ([&b"# /// orla\n"[..], &b"# a: 1\n".repeat(10_000)].concat(), None),
            ([&b"# /// orla\n# a: 1\n# ///\n"[..], &b"echo\n".repeat(50)].concat(), None),
            ([&b"# /// orla\n# ///\n"[..], &b"# comment\n".repeat(50)].concat(), Some(HEADER_READ)),
            ([&b"# /// orla\n# ///\n"[..], &b"# comment\n".repeat(410)].concat(), None),
            ([&b"# /// orla\n# a: 1\n"[..], &b"broken\n".repeat(80)].concat(), None),
        ];
        for (head, expected) in cases {
            assert_eq!(wanted(head), *expected, "{:?}", String::from_utf8_lossy(&head[..40]));
        }
    }

    #[test]
    fn of_a_text_the_top_alone_is_looked_at() {
        let long = [&b"; /// orla\n"[..], &b"; a: 1\n".repeat(600), b"; ///\n(code)\n"].concat();
        assert!(matches!(read(top(&long)).block, Some(Ok(_))));
        let below = [&b"(code)\n".repeat(100)[..], b"; /// orla\n; a: 1\n; ///\n"].concat();
        assert_eq!(read(top(&below)).block, None);
        assert_eq!(top(b""), b"");
    }

    proptest! {
        #[test]
        fn any_bytes_can_be_read(head in proptest::collection::vec(any::<u8>(), 0..600), text in "(# /// orla|# |;|--|\n|a: 1|# ///|é){0,30}") {
            let _ = (read(&head), wanted(&head), read(text.as_bytes()), wanted(text.as_bytes()));
        }
    }
}
