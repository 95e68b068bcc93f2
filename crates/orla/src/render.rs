//! The only module that prints. Standard output belongs to the protocol or to a command's answer. All
//! other output goes to standard error.
//!
//! # Terminals
//!
//! All output to a terminal passes through [`put`], in one of two types. A `&str` may come from any
//! source (a tool, a server, a model). On a terminal, its control characters are escaped; elsewhere its
//! bytes are unchanged. [`Styled`] is text with our own colours: its constructors escape foreign text.
//! There is no third type.
//!
//! # Secrets
//!
//! An error, a warning or a remark may quote the configuration. [`redact`] sets the secrets that are
//! replaced in them. The output of a capability is not changed here.
//!
//! Progress bars ([`progress`]) are drawn below all output: [`put`] hides them while it writes.

pub(crate) mod image;
pub(crate) mod progress;

use std::borrow::Cow;
use std::io::{IsTerminal, Write};
use std::sync::{Arc, OnceLock};

use orla_marketplace::Redactor;
use parking_lot::RwLock;

use crate::config::reason;
pub(crate) use crate::text::cut;
use crate::text::{in_json, on_lines, on_one_line};

/// The streams that a command writes.
#[derive(Clone, Copy)]
enum Stream {
    Out,
    Err,
}

/// The secrets that are replaced in errors, warnings and remarks.
static REDACTION: RwLock<Option<Arc<Redactor>>> = RwLock::new(None);

/// From now on, replaces these secrets too in errors, warnings and remarks.
pub(crate) fn redact(more: &Arc<Redactor>) {
    if more.is_empty() {
        return;
    }
    let mut redaction = REDACTION.write();
    *redaction = Some(match &*redaction {
        Some(known) => Arc::new(known.and(more)),
        None => Arc::clone(more),
    });
}

/// Returns the text without secrets.
fn redacted(text: &str) -> Cow<'_, str> {
    match &*REDACTION.read() {
        Some(redactor) => redactor.text(text),
        None => Cow::Borrowed(text),
    }
}

/// Text with colours, safe for a terminal: foreign text in it is escaped.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Styled(String);

impl Styled {
    /// Text on lines, without a colour.
    pub(crate) fn lines(text: &str) -> Self {
        Self(on_lines(text))
    }

    /// JSON text. Its escapes are those of JSON, so it stays the same JSON.
    pub(crate) fn json(text: String) -> Self {
        match in_json(&text) {
            Cow::Borrowed(_) => Self(text),
            Cow::Owned(safe) => Self(safe),
        }
    }

    /// Appends text on lines.
    pub(crate) fn push(&mut self, text: &str) {
        self.0.push_str(&on_lines(text));
    }

    /// Appends text on lines in a style, which is the numbers of an SGR sequence: `1;31`. An empty style adds no sequence.
    pub(crate) fn paint(&mut self, style: &'static str, text: &str) {
        match style {
            "" => self.push(text),
            style => self.0.push_str(&format!("\x1b[{style}m{}\x1b[0m", on_lines(text))),
        }
    }

    /// Appends a text that is safe already.
    pub(crate) fn append(&mut self, text: &Self) {
        self.0.push_str(&text.0);
    }

    /// Bytes of the text.
    pub(crate) fn len(&self) -> usize {
        self.0.len()
    }

    /// Empties the text and keeps at most so much memory for the next.
    pub(crate) fn clear(&mut self, capacity: usize) {
        self.0.clear();
        self.0.shrink_to(capacity);
    }

    /// Returns the text as it goes to the terminal.
    pub(crate) fn as_str(&self) -> &str {
        &self.0
    }
}

/// Writes a command's answer to standard output. A reader that went away is no error, as for any
/// program in a pipeline.
pub(crate) fn out(text: &str) {
    match std::io::stdout().is_terminal() {
        true => put(Stream::Out, on_lines(text).as_bytes()),
        false => put(Stream::Out, text.as_bytes()),
    }
}

/// Writes bytes to standard output: to a terminal as text, elsewhere as they are.
pub(crate) fn out_bytes(bytes: &[u8]) {
    match std::io::stdout().is_terminal() {
        true => out(&String::from_utf8_lossy(bytes)),
        false => put(Stream::Out, bytes),
    }
}

/// Writes a command's answer and ends its line.
pub(crate) fn line(text: &str) {
    out(&format!("{text}\n"));
}

/// Writes JSON to standard output and ends its line. At a terminal, unsafe characters are escaped as in JSON.
pub(crate) fn json_line(text: &str) {
    match std::io::stdout().is_terminal() {
        true => put(Stream::Out, format!("{}\n", in_json(text)).as_bytes()),
        false => line(text),
    }
}

/// Writes text with colours to standard output and ends its line.
pub(crate) fn styled_line(text: &Styled) {
    put(Stream::Out, format!("{}\n", text.0).as_bytes());
}

/// Clears the terminal of standard output and writes this; elsewhere it is appended.
pub(crate) fn screen(text: &str) {
    match std::io::stdout().is_terminal() {
        true => put(Stream::Out, format!("\x1b[H\x1b[2J{}", on_lines(text)).as_bytes()),
        false => out(text),
    }
}

/// `error: …`.
pub(crate) fn error(text: &str) {
    labelled("1;31", "error", text);
}

/// `warning: …`.
pub(crate) fn warning(text: &str) {
    labelled("1;33", "warning", text);
}

/// A remark for the person at the terminal, such as a message of a call.
pub(crate) fn note(text: &str) {
    remark("2", text.trim_end(), "\n");
}

/// Prints a question to the person at the terminal, who answers on the same line.
pub(crate) fn question(text: &str) {
    remark("1", &on_one_line(text), "");
}

/// Text to standard error, such as that of a tool. If it cannot be written, the exit code still reports the outcome.
pub(crate) fn err(text: &str) {
    match stderr_is_terminal() {
        true => put(Stream::Err, on_lines(text).as_bytes()),
        false => put(Stream::Err, text.as_bytes()),
    }
}

/// Whole lines of the log.
pub(crate) fn log(lines: &Styled) {
    if lines.0.is_empty() {
        return;
    }
    put(Stream::Err, lines.0.as_bytes());
}

fn labelled(style: &'static str, label: &str, text: &str) {
    let mut shown = Styled::default();
    shown.paint(if stderr_has_colours() { style } else { "" }, label);
    shown.push(&format!(": {}\n", redacted(text).trim_end()));
    put(Stream::Err, shown.0.as_bytes());
}

fn remark(style: &'static str, text: &str, end: &str) {
    let mut shown = Styled::default();
    shown.paint(if stderr_has_colours() { style } else { "" }, &redacted(text));
    shown.push(end);
    put(Stream::Err, shown.0.as_bytes());
}

/// The reason why a part of the answer could not be written.
static UNWRITTEN: OnceLock<String> = OnceLock::new();

/// Returns why a part of the answer could not be written to standard output, such as a full disk. A
/// reader that went away is not an error.
pub(crate) fn unwritten() -> Option<&'static str> {
    UNWRITTEN.get().map(String::as_str)
}

/// Writes bytes that are safe for their destination, above the progress bars. All output goes through here.
fn put(stream: Stream, bytes: &[u8]) {
    progress::lifted(|| match stream {
        Stream::Out => {
            let mut stdout = std::io::stdout().lock();
            let written = stdout.write_all(bytes).and_then(|()| stdout.flush());
            if let Err(error) = written
                && error.kind() != std::io::ErrorKind::BrokenPipe
            {
                UNWRITTEN.get_or_init(|| reason(&error));
            }
        }
        Stream::Err => drop(std::io::stderr().lock().write_all(bytes)),
    });
}

/// Columns of the terminal of standard output; unlimited elsewhere.
pub(crate) fn width() -> usize {
    if !std::io::stdout().is_terminal() {
        return usize::MAX;
    }
    std::env::var("COLUMNS").ok().and_then(|columns| columns.parse().ok()).unwrap_or(100)
}

/// Returns whether standard error is a terminal.
pub(crate) fn stderr_is_terminal() -> bool {
    std::io::stderr().is_terminal()
}

/// Returns whether standard error shows colours and may.
pub(crate) fn stderr_has_colours() -> bool {
    stderr_is_terminal() && may_have_colours()
}

/// Returns whether standard output is a terminal with colours.
pub(crate) fn stdout_has_colours() -> bool {
    std::io::stdout().is_terminal() && may_have_colours()
}

/// <https://no-color.org>, and terminals without colours.
fn may_have_colours() -> bool {
    let refused = std::env::var_os("NO_COLOR").is_some_and(|value| !value.is_empty());
    !refused && std::env::var_os("TERM").is_none_or(|term| term != "dumb")
}

/// Columns as wide as their widest cell, two spaces apart; the last one is cut to the width. Of each
/// cell the first line is shown, without control characters.
pub(crate) fn table(head: &[&str], rows: &[Vec<String>], width: usize) -> String {
    let columns = head.len();
    let shown = |cell: &String| on_one_line(cell.lines().next().unwrap_or_default());
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
