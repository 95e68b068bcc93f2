//! `docs/rtfs-library.md` is written from the table of the library, and this fails where it is not.
//! `ORLA_WRITE_DOCS=1 cargo test -p rtfs --test documentation` writes it.

#![expect(clippy::unwrap_used, reason = "the page is a file, and this a test")]

use std::fmt::Write as _;
use std::path::Path;

const INTRODUCTION: &str = "\
# The library of RTFS

Every name of the language: how it is written, the types of what it takes and gives, and what it gives. At the prompt of
`orla rtfs`, `:doc map` shows a row of this page. [RTFS](rtfs.md) describes the language itself.

In types, `?` may be nil or absent, `&` is for any number of arguments, and `|` is a choice.
";

#[test]
fn the_page_is_up_to_date() {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/rtfs-library.md");
    let page = page(include_str!("../src/builtins/library.txt"));
    if std::env::var_os("ORLA_WRITE_DOCS").is_some() {
        std::fs::write(&path, &page).unwrap();
    }
    let written = std::fs::read_to_string(&path).unwrap_or_default();
    assert!(written == page, "docs/rtfs-library.md is out of date: ORLA_WRITE_DOCS=1 writes it");
}

fn page(table: &str) -> String {
    let mut out = INTRODUCTION.to_owned();
    let mut rows = table.lines().skip_while(|line| *line != FORMS);
    let section = |out: &mut String, name: &str| {
        write!(out, "\n## {name}\n\n| | types | |\n|---|---|---|\n").unwrap();
    };
    // Behind it are names that no program can use.
    for line in rows.by_ref().take_while(|line| !line.contains("no program can name")) {
        if line == FORMS {
            section(&mut out, "Special forms");
        } else if let Some(name) = line.strip_prefix("# ") {
            section(&mut out, name);
        } else {
            out.push_str(&row(line));
        }
    }
    out
}

/// What stands before the special forms in the table.
const FORMS: &str = "# Special forms first, as they are written.";

fn row(line: &str) -> String {
    let [names, params, types, text] = line.splitn(4, " | ").collect::<Vec<_>>()[..] else {
        panic!("a row of four: {line}");
    };
    let name = names.split(' ').next().unwrap();
    let way = |params: &str| format!("`({})`", cell(format!("{name} {}", params.trim()).trim()));
    let ways: Vec<String> = params.split(';').map(way).collect();
    let others: Vec<String> =
        names.split(' ').skip(1).map(|other| format!("`{}`", cell(other))).collect();
    let also = if others.is_empty() { String::new() } else { format!("<br>also {}", others.join(", ")) };
    let types = if types == "-" { String::new() } else { format!("`{}`", cell(types)) };
    format!("| {}{also} | {types} | {} |\n", ways.join("<br>"), sentence(text))
}

fn cell(text: &str) -> String {
    text.replace('|', "\\|")
}

/// Returns a sentence, whose code is in parentheses, brackets and keywords: nothing of it is HTML.
fn sentence(text: &str) -> String {
    cell(text).replace('<', "&lt;").replace('*', "\\*").replace('_', "\\_")
}
