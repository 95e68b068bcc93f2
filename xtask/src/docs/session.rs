//! What a reader of a page does: the files that are written, and what is typed in which terminal. Pure.
//!
//! - A block ```` ```console ```` is typed in a terminal: a line with `$ ` is a command, which goes on in the next line behind a
//!   `\`; the lines after it are what it prints. ```` ```console NAME ```` is another terminal, where a command may go on while the
//!   page does: lines are waited for, `^C` ends the command.
//! - A block with `file=PATH` is written to that file.
//! - A block ```` ```rtfs ```` has lines `PROGRAM => VALUE`, and definitions for them.
//! - In what is printed, `…` stands for any text, and alone in a line for any lines.

use super::page::{Block, Page};

/// What is to be done, in the order of the page.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Step {
    Write {
        line: usize,
        path: String,
        text: String,
    },
    Type {
        line: usize,
        terminal: String,
        command: String,
        printed: Printed,
    },
    /// More that a running command prints.
    Await {
        line: usize,
        terminal: String,
        printed: Printed,
    },
    Interrupt {
        terminal: String,
    },
    /// A program in RTFS, on top of what is defined before it.
    Evaluate {
        line: usize,
        before: String,
        program: String,
        value: String,
    },
}

/// The lines that a page shows, and where they begin in it, counted from 1.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct Printed {
    pub(super) line: usize,
    pub(super) lines: Vec<String>,
}

/// Returns the steps of a page, or the line of what cannot be followed.
pub(super) fn steps(page: &Page) -> Result<Vec<Step>, String> {
    let mut steps = Vec::new();
    let mut definitions = String::new();
    for block in &page.blocks {
        if let Some(path) = block.words.iter().find_map(|word| word.strip_prefix("file=")) {
            // Who reads the page does not see the fence.
            if !block.before.contains(&format!("`{path}`")) {
                return Err(format!("{}: the sentence before it does not name `{path}`", block.line));
            }
            let text = block.lines.iter().map(|line| format!("{line}\n")).collect();
            steps.push(Step::Write { line: block.line, path: path.to_owned(), text });
        } else if block.language == "console" {
            typed(block, &mut steps);
        } else if block.language == "rtfs" {
            evaluated(block, &mut definitions, &mut steps);
        }
    }
    Ok(steps)
}

fn typed(block: &Block, steps: &mut Vec<Step>) {
    let terminal = block.words.first().cloned().unwrap_or_default();
    let mut goes_on = false;
    for (index, text) in block.lines.iter().enumerate() {
        let line = block.line + 1 + index;
        if goes_on {
            if let Some(Step::Type { command, printed, .. }) = steps.last_mut() {
                command.push('\n');
                command.push_str(text);
                printed.line = line + 1;
            }
        } else if text == "^C" {
            steps.push(Step::Interrupt { terminal: terminal.clone() });
        } else if let Some(command) = text.strip_prefix("$ ") {
            let (terminal, command) = (terminal.clone(), command.to_owned());
            steps.push(Step::Type {
                line,
                terminal,
                command,
                printed: Printed { line: line + 1, lines: vec![] },
            });
        } else {
            match steps.last_mut() {
                Some(Step::Type { printed, .. } | Step::Await { printed, .. }) if index > 0 => {
                    printed.lines.push(text.clone());
                }
                _ => steps.push(Step::Await {
                    line,
                    terminal: terminal.clone(),
                    printed: Printed { line, lines: vec![text.clone()] },
                }),
            }
        }
        goes_on = text.ends_with('\\');
    }
}

fn evaluated(block: &Block, definitions: &mut String, steps: &mut Vec<Step>) {
    for (index, text) in block.lines.iter().enumerate() {
        match text.rsplit_once(" => ") {
            Some((program, value)) => steps.push(Step::Evaluate {
                line: block.line + 1 + index,
                before: definitions.clone(),
                program: program.to_owned(),
                value: value.to_owned(),
            }),
            None => {
                definitions.push_str(text);
                definitions.push('\n');
            }
        }
    }
}

/// Returns whether this is what a page shows, from the first line to the last.
pub(super) fn is_shown(shown: &[String], printed: &[&str]) -> bool {
    match shown.split_first() {
        None => printed.is_empty(),
        Some((any, shown)) if any.trim() == "…" => {
            (0..=printed.len()).any(|skipped| is_shown(shown, &printed[skipped..]))
        }
        Some((line, shown)) => printed.split_first().is_some_and(|(first, printed)| {
            is_like(line.trim_end(), first.trim_end()) && is_shown(shown, printed)
        }),
    }
}

/// Behind which line what a page shows has been printed, with anything in front of it.
pub(super) fn shown_until(shown: &[String], printed: &[&str]) -> Option<usize> {
    (1..=printed.len()).find(|&end| (0..end).any(|start| is_shown(shown, &printed[start..end])))
}

/// Returns whether a line is as another with `…` for any text in it.
fn is_like(shown: &str, printed: &str) -> bool {
    let mut parts = shown.split('…');
    let first = parts.next().unwrap_or_default();
    let Some(mut rest) = printed.strip_prefix(first) else { return false };
    let parts: Vec<&str> = parts.collect();
    let Some((last, middle)) = parts.split_last() else { return rest.is_empty() };
    for part in middle {
        let Some(at) = rest.find(part) else { return false };
        rest = &rest[at + part.len()..];
    }
    rest.ends_with(last)
}

#[cfg(test)]
mod tests {
    use super::*;

    const PAGE: &str = "Write `a.txt`:\n\n```text file=a.txt\nx\n```\n\n```console\n$ cat \\\n    a.txt\nx\n```\n\n```console server\n$ orla\nlistening\n```\n\n```console server\nmore\n^C\n```\n\n```rtfs\n(def a 1)\n(inc a) => 2\n```\n";

    #[test]
    fn a_page_is_steps() {
        let shown = |line, lines: &[&str]| Printed {
            line,
            lines: lines.iter().map(|&l| l.to_owned()).collect(),
        };
        let at = |terminal: &str| terminal.to_owned();
        let expected = vec![
            Step::Write { line: 3, path: at("a.txt"), text: at("x\n") },
            Step::Type {
                line: 8,
                terminal: at(""),
                command: at("cat \\\n    a.txt"),
                printed: shown(10, &["x"]),
            },
            Step::Type {
                line: 14,
                terminal: at("server"),
                command: at("orla"),
                printed: shown(15, &["listening"]),
            },
            Step::Await { line: 19, terminal: at("server"), printed: shown(19, &["more"]) },
            Step::Interrupt { terminal: at("server") },
            Step::Evaluate {
                line: 25,
                before: at("(def a 1)\n"),
                program: at("(inc a)"),
                value: at("2"),
            },
        ];
        assert_eq!(steps(&Page::read(PAGE)), Ok(expected));
        let unnamed = PAGE.replacen("`a.txt`", "this", 1);
        assert_eq!(
            steps(&Page::read(&unnamed)),
            Err("3: the sentence before it does not name `a.txt`".to_owned())
        );
    }

    #[test]
    fn an_ellipsis_stands_for_anything() {
        let shown = |text: &str| -> Vec<String> { text.lines().map(str::to_owned).collect() };
        for (text, printed, holds) in [
            ("a\nb", "a\nb", true),
            ("a", "a\nb", false),
            ("a\n…", "a\nb\nc", true),
            ("…\nc", "a\nb\nc", true),
            ("…\nb", "a\nb\nc", false),
            ("took … ms", "took 3 ms", true),
            ("took … ms", "took 3 s", false),
            ("… 1 … 2 …", "x 1 y 2 z", true),
            ("…a…a", "a", false),
        ] {
            let printed: Vec<&str> = printed.lines().collect();
            assert_eq!(is_shown(&shown(text), &printed), holds, "{text} {printed:?}");
        }
        assert_eq!(shown_until(&shown("b"), &["a", "b", "c"]), Some(2));
        assert_eq!(shown_until(&shown("d"), &["a", "b", "c"]), None);
    }
}
