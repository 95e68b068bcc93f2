//! The pages of the documentation that are generated from the code of this crate. Each test compares a
//! page with the expected content. With `ORLA_WRITE_DOCS=1`, it writes the page instead.

use std::fmt::Write as _;
use std::path::Path;

use clap::{Arg, ArgAction, Command, CommandFactory};
use orla_marketplace::ERROR_KINDS;

use crate::cli::Cli;

/// Compares a file of the repository with its expected content. With `ORLA_WRITE_DOCS=1`, writes the
/// file instead.
pub(crate) fn assert_current(file: &str, current: impl Fn(&str) -> String) {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..").join(file);
    let published = std::fs::read_to_string(&path).unwrap_or_default();
    let current = current(&published);
    if std::env::var_os("ORLA_WRITE_DOCS").is_some() {
        return std::fs::write(&path, current).unwrap();
    }
    assert!(published == current, "{file} is out of date: run this test with ORLA_WRITE_DOCS=1");
}

#[test]
fn the_page_of_commands_is_current() {
    assert_current("docs/cli.md", |_| commands());
}

#[test]
fn an_option_with_the_name_of_another_commands_option_is_on_the_page() {
    let page = commands();
    let section = |name: &str| {
        page.split(&format!("## {name}\n")).nth(1).unwrap().split("\n## ").next().unwrap().to_owned()
    };
    assert!(section("orla list").contains("`--watch`"));
    assert!(section("orla publish").contains("`--version <VERSION>`"));
}

#[test]
fn the_page_of_errors_is_current() {
    assert_current("docs/errors.md", |_| errors());
}

/// Returns every command, as its help has it.
fn commands() -> String {
    let mut root = Cli::command();
    root.build();
    let mut out = "# Commands\n\n`orla help COMMAND` prints the same text. `cargo test -p orla documentation` with `ORLA_WRITE_DOCS=1` writes this page.\n\
         \nCompletions for bash, zsh, fish, elvish and PowerShell: `orla completions SHELL`. Manual pages: `orla man DIR` writes them,\n\
         one for each command, so `man orla-call` works if `DIR` is `~/.local/share/man/man1`.\n"
        .to_owned();
    section(&mut out, &root, 2, &[]);
    out
}

/// A command and those below it. Options that its parent has already are left out.
/// An option of the same name with another meaning is not left out.
fn section(out: &mut String, command: &Command, level: usize, known: &[&Arg]) {
    let name = command.get_bin_name().unwrap_or(command.get_name()).to_owned();
    let usage = command.clone().render_usage().to_string();
    let usage = usage.trim_start_matches("Usage: ");
    let about = command.get_about().map(ToString::to_string).unwrap_or_default();
    let _ = write!(out, "\n{} {name}\n\n{about}.\n\n```text\n{usage}\n```\n", "#".repeat(level));
    let arguments: Vec<&Arg> = command
        .get_arguments()
        .filter(|argument| !argument.is_hide_set() && !known.iter().any(|one| is_same(one, argument)))
        .filter(|argument| {
            !matches!(
                argument.get_action(),
                ArgAction::Help | ArgAction::HelpShort | ArgAction::HelpLong | ArgAction::Version
            )
        })
        .collect();
    if !arguments.is_empty() {
        out.push_str("\n| | |\n|---|---|\n");
        for argument in arguments {
            let _ = writeln!(out, "| `{}` | {} |", cell(&written(argument)), cell(&meaning(argument)));
        }
    }
    if let Some(after) = command.get_after_help() {
        let _ = write!(out, "\n```text\n{}\n```\n", after.to_string().trim_end());
    }
    let own = command.get_arguments().filter(|_| level == 2);
    let known: Vec<&Arg> = own.chain(known.iter().copied()).collect();
    for below in command.get_subcommands().filter(|below| !below.is_hide_set()) {
        if below.get_name() != "help" {
            section(out, below, (level + 1).min(4), &known);
        }
    }
}

fn is_same(one: &Arg, other: &Arg) -> bool {
    let meaning = |argument: &Arg| argument.get_help().map(ToString::to_string);
    one.get_id() == other.get_id() && meaning(one) == meaning(other)
}

/// `-o, --output <FILE>`, `<NAME>`, `[KEY=VALUE]...`
fn written(argument: &Arg) -> String {
    let text = argument.to_string();
    match argument.get_short() {
        Some(short) if argument.get_long().is_some() => format!("-{short}, {text}"),
        _ => text,
    }
}

fn meaning(argument: &Arg) -> String {
    let mut text = argument.get_help().map(ToString::to_string).unwrap_or_default();
    let takes_value = argument.get_action().takes_values();
    let defaults: Vec<_> =
        argument.get_default_values().iter().map(|value| value.to_string_lossy()).collect();
    if takes_value && !defaults.is_empty() {
        let _ = write!(text, " [default: {}]", defaults.join(", "));
    }
    let choices: Vec<_> =
        argument.get_possible_values().iter().map(|value| value.get_name().to_owned()).collect();
    if takes_value && !choices.is_empty() {
        let _ = write!(text, " [possible values: {}]", choices.join(", "));
    }
    text.trim().to_owned()
}

fn errors() -> String {
    let mut out = "# Kinds of errors\n\nA call that fails has an error of one of these kinds. The word is the same everywhere: `kind` at [`POST /api/ID`](rest.md#errors), \
         `/rtfs` and `/tasks`, `outcome` in the log, the metrics, the audit and the history, and the keyword that `catch` selects by in \
         [RTFS](rtfs.md). Over MCP, the error is a result with `isError`, whose text is a sentence for the model.\n\nPrograms in RTFS have further \
         kinds of their own (`:type`, `:arithmetic`, what they `throw`); the bodies of answers over HTTP keep them, and \
         everywhere else these are `failed`. If a program fails because of a call, its error has the kind of \
         that call: where the table says that nothing has run, that holds for this call. The calls before it have been made. `cargo test -p orla documentation` \
         with `ORLA_WRITE_DOCS=1` writes this page.\n\n| kind | meaning | what to do |\n|---|---|---|\n"
        .to_owned();
    for kind in &ERROR_KINDS {
        let _ = writeln!(out, "| `{}` | {} | {} |", kind.word, cell(kind.meaning), cell(kind.remedy));
    }
    out
}

fn cell(text: &str) -> String {
    text.replace('|', "\\|").replace('\n', " ")
}
