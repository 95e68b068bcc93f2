//! The only place that prints. Standard output belongs to the protocol or to a command's answer;
//! everything else goes to standard error.

use std::io::{IsTerminal, Write};

use crate::logging::format::printable;

/// Writes a command's answer to standard output. A reader that went away is no error, as for any
/// program in a pipeline.
pub(crate) fn out(text: &str) {
    let mut stdout = std::io::stdout().lock();
    let _ = stdout.write_all(text.as_bytes()).and_then(|()| stdout.flush());
}

/// Writes a command's answer and ends its line.
pub(crate) fn line(text: &str) {
    out(&format!("{text}\n"));
}

/// `error: …`, on one line.
pub(crate) fn error(text: &str) {
    err(&format!("{}: {}\n", paint("1;31", "error"), printable(text)));
}

/// `warning: …`, on one line.
pub(crate) fn warning(text: &str) {
    err(&format!("{}: {}\n", paint("1;33", "warning"), printable(text)));
}

/// A remark for the person at the terminal, such as the progress of a call.
pub(crate) fn note(text: &str) {
    err(&format!("{}\n", paint("2", &printable(text))));
}

/// A question to the person at the terminal, who answers on the same line.
#[cfg(feature = "agent")]
pub(crate) fn question(text: &str) {
    err(&paint("1", &printable(text)));
}

/// Text to standard error as it is, such as that of a tool. Where nobody reads it, the exit code still
/// says how it went.
pub(crate) fn err(text: &str) {
    let _ = std::io::stderr().lock().write_all(text.as_bytes());
}

/// Columns of the terminal that standard output goes to; endless where it goes elsewhere.
pub(crate) fn width() -> usize {
    if !std::io::stdout().is_terminal() {
        return usize::MAX;
    }
    std::env::var("COLUMNS").ok().and_then(|columns| columns.parse().ok()).unwrap_or(100)
}

/// Whether someone looks at standard error.
pub(crate) fn stderr_is_terminal() -> bool {
    std::io::stderr().is_terminal()
}

/// Whether standard error shows colours and may.
pub(crate) fn stderr_has_colours() -> bool {
    stderr_is_terminal() && may_have_colours()
}

/// The same of standard output.
pub(crate) fn stdout_has_colours() -> bool {
    std::io::stdout().is_terminal() && may_have_colours()
}

/// <https://no-color.org>, and terminals that know none.
fn may_have_colours() -> bool {
    let refused = std::env::var_os("NO_COLOR").is_some_and(|value| !value.is_empty());
    !refused && std::env::var_os("TERM").is_none_or(|term| term != "dumb")
}

fn paint(code: &str, text: &str) -> String {
    if stderr_has_colours() { format!("\x1b[{code}m{text}\x1b[0m") } else { text.to_owned() }
}

/// Columns as wide as their widest cell, two spaces apart; the last one is cut to the width. Of each
/// cell the first line is shown, without control characters.
pub(crate) fn table(head: &[&str], rows: &[Vec<String>], width: usize) -> String {
    let columns = head.len();
    let shown = |cell: &String| printable(cell.lines().next().unwrap_or_default());
    let rows: Vec<Vec<String>> = rows.iter().map(|row| row.iter().map(shown).collect()).collect();
    let cell_width = |column: usize| {
        let cells = rows.iter().filter_map(|row| row.get(column)).map(|cell| cell.chars().count());
        cells.chain([head[column].len()]).max().unwrap_or_default()
    };
    let widths: Vec<usize> = (0..columns).map(cell_width).collect();
    let before_last: usize = widths.iter().take(columns.saturating_sub(1)).map(|w| w + 2).sum();
    let room = width.saturating_sub(before_last).max(20);
    let mut text = String::new();
    let head: Vec<String> = head.iter().map(|cell| (*cell).to_owned()).collect();
    for row in std::iter::once(&head).chain(&rows) {
        let mut line = String::new();
        for (column, cell) in row.iter().enumerate() {
            if column + 1 == columns {
                line.push_str(&cut(cell, room));
            } else {
                line.push_str(&format!("{cell:<width$}  ", width = widths[column]));
            }
        }
        text.push_str(line.trim_end());
        text.push('\n');
    }
    text
}

/// The first line of a text, cut to `width` characters.
pub(crate) fn cut(text: &str, width: usize) -> String {
    let first = text.lines().next().unwrap_or_default();
    if first.chars().count() <= width {
        return first.to_owned();
    }
    let mut cut: String = first.chars().take(width.saturating_sub(1)).collect();
    cut.push('…');
    cut
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_table_is_aligned_and_its_last_column_is_cut() {
        let rows = vec![
            vec!["ls".to_owned(), "sh".to_owned(), "Lists a directory".to_owned()],
            vec!["summarize".to_owned(), String::new(), "é".repeat(40)],
            vec!["x".to_owned(), "\x1b[31m".to_owned(), "one\ntwo".to_owned()],
        ];
        let expected = format!(
            "NAME       RUNS        DESCRIPTION\n\
             ls         sh          Lists a directory\n\
             summarize              {}…\n\
             x          \\u{{1b}}[31m  one\n",
            "é".repeat(19)
        );
        assert_eq!(table(&["NAME", "RUNS", "DESCRIPTION"], &rows, 40), expected);
    }
}
