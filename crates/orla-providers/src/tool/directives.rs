//! Directives of a running tool: lines on standard error that are meant for the caller.
//!
//! ```text
//! ::progress 3/10 copying files
//! ::progress 0.3 copying files
//! ::log warning disk is nearly full
//! ```
//!
//! [`Filter`] takes standard error as it arrives, in pieces of any size. A line that is a directive
//! becomes a [`Notice`] when its end arrives. Everything else is passed on unchanged and immediately,
//! including lines that only look like a directive. Pure: no I/O, no clock.

use std::str::FromStr;

use orla_marketplace::{LogLevel, Notice, NoticeSink, Progress};
use orla_process::runner::OutputFilter;

/// The maximum length of a directive, in bytes. A longer line is plain text.
pub const MAX_LINE: usize = 8 * 1024;

/// Splits standard error into notices and text. Holds back at most one possible directive.
#[derive(Debug, Default)]
pub struct Filter {
    /// Receives the notices.
    notices: NoticeSink,
    /// The beginning of a line that may be a directive.
    held: Vec<u8>,
    /// Whether the current line is known to be text.
    in_text: bool,
    /// How the tool counts its progress, once it has reported some.
    scale: Option<Scale>,
}

/// How a tool counts its progress. Values in the other form are converted, so that the numbers can be
/// compared.
#[derive(Clone, Copy, Debug)]
enum Scale {
    /// As a fraction of 1.
    Share,
    /// As steps of the newest total.
    Steps(f64),
}

impl OutputFilter for Filter {
    fn feed(&mut self, mut bytes: &[u8], keep: &mut dyn FnMut(&[u8])) {
        while !bytes.is_empty() {
            let end = bytes.iter().position(|byte| *byte == b'\n').map(|at| at + 1);
            let (line, rest) = bytes.split_at(end.unwrap_or(bytes.len()));
            bytes = rest;
            if self.in_text {
                keep(line);
                self.in_text = end.is_none();
                continue;
            }
            // Most lines are text, which their first bytes show.
            if self.held.is_empty() && !may_be_directive(line) {
                keep(line);
                self.in_text = end.is_none();
                continue;
            }
            self.held.extend_from_slice(line);
            if end.is_some() {
                self.decide(keep);
            } else if self.held.len() > MAX_LINE || !may_be_directive(&self.held) {
                keep(&self.held);
                self.held.clear();
                self.in_text = true;
            }
        }
    }

    /// The last line needs no newline.
    fn finish(&mut self, keep: &mut dyn FnMut(&[u8])) {
        if !self.held.is_empty() {
            self.decide(keep);
        }
    }
}

impl Filter {
    /// Creates a filter whose notices go to `notices`.
    pub fn new(notices: NoticeSink) -> Self {
        Self { notices, ..Self::default() }
    }

    fn decide(&mut self, keep: &mut dyn FnMut(&[u8])) {
        match directive(&self.held) {
            Some(Directive::Log(notice)) => self.notices.send(notice),
            Some(Directive::Progress(progress, scale)) => {
                let progress = self.scaled(progress, scale);
                self.notices.send(Notice::Progress(progress));
            }
            None => keep(&self.held),
        }
        self.held.clear();
    }

    /// Converts progress to the form of the tool's first report.
    fn scaled(&mut self, progress: Progress, form: Scale) -> Progress {
        let (done, total) = match (*self.scale.get_or_insert(form), form) {
            (Scale::Steps(_), Scale::Steps(total)) => {
                self.scale = Some(form);
                (progress.progress, total)
            }
            (Scale::Steps(total), Scale::Share) => (progress.progress * total, total),
            (Scale::Share, Scale::Steps(total)) => (progress.progress / total, 1.0),
            (Scale::Share, Scale::Share) => (progress.progress, 1.0),
        };
        Progress { progress: done, total: Some(total), ..progress }
    }
}

/// The meaning of a directive.
enum Directive {
    /// Progress, and how the line counts it.
    Progress(Progress, Scale),
    Log(Notice),
}

const PREFIXES: [&[u8]; 2] = [b"::progress ", b"::log "];

/// Returns whether a line with this beginning can be a directive.
fn may_be_directive(start: &[u8]) -> bool {
    PREFIXES.iter().any(|prefix| {
        let common = prefix.len().min(start.len());
        start[..common] == prefix[..common]
    })
}

/// Parses a line as a directive.
fn directive(line: &[u8]) -> Option<Directive> {
    if line.len() > MAX_LINE {
        return None;
    }
    let line = str::from_utf8(line).ok()?;
    let line = line.strip_suffix('\n').unwrap_or(line);
    let line = line.strip_suffix('\r').unwrap_or(line);
    if let Some(rest) = line.strip_prefix("::progress ") {
        return progress(rest);
    }
    let (level, message) = line.strip_prefix("::log ")?.trim_start().split_once(' ')?;
    let message = message.trim();
    let level = LogLevel::from_str(level).ok()?;
    (!message.is_empty()).then(|| Directive::Log(Notice::Log { level, message: message.into() }))
}

fn progress(text: &str) -> Option<Directive> {
    let (amount, message) = text.trim().split_once(' ').unwrap_or((text.trim(), ""));
    let (progress, scale) = match amount.split_once('/') {
        Some((done, total)) => {
            (number(done)?, Scale::Steps(number(total).filter(|total| *total > 0.0)?))
        }
        None => (number(amount).filter(|share| *share <= 1.0)?, Scale::Share),
    };
    let message = Some(message.trim()).filter(|message| !message.is_empty()).map(str::to_owned);
    Some(Directive::Progress(Progress { progress, total: None, message }, scale))
}

/// Parses a plain decimal number: digits, with at most one point.
fn number(text: &str) -> Option<f64> {
    if text.is_empty() || !text.bytes().all(|byte| byte.is_ascii_digit() || byte == b'.') {
        return None;
    }
    text.parse().ok().filter(|number: &f64| number.is_finite())
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use parking_lot::Mutex;

    use super::*;
    use proptest::prelude::*;

    #[derive(Debug, Default, PartialEq)]
    struct Taken {
        text: Vec<u8>,
        notices: Vec<Notice>,
    }

    /// A filter with the notices that it has emitted.
    struct Filtering {
        filter: Filter,
        text: Vec<u8>,
        notices: Arc<Mutex<Vec<Notice>>>,
    }

    impl Filtering {
        fn new() -> Self {
            let notices = Arc::new(Mutex::new(Vec::new()));
            let sink = Arc::clone(&notices);
            let sink = NoticeSink::new(move |notice| sink.lock().push(notice));
            Self { filter: Filter::new(sink), text: Vec::new(), notices }
        }

        fn feed(&mut self, bytes: &[u8]) {
            self.filter.feed(bytes, &mut |text| self.text.extend_from_slice(text));
        }

        fn taken(&self) -> Taken {
            Taken { text: self.text.clone(), notices: self.notices.lock().clone() }
        }
    }

    fn filtered<'a>(pieces: impl IntoIterator<Item = &'a [u8]>) -> Taken {
        let mut filtering = Filtering::new();
        pieces.into_iter().for_each(|piece| filtering.feed(piece));
        filtering.filter.finish(&mut |text| filtering.text.extend_from_slice(text));
        filtering.taken()
    }

    fn at(progress: f64, total: f64, message: &str) -> Notice {
        let message = (!message.is_empty()).then(|| message.to_owned());
        Notice::Progress(Progress { progress, total: Some(total), message })
    }

    #[test]
    fn directives_are_taken_out_of_the_text() {
        let log = |level, message: &str| Notice::Log { level, message: message.into() };
        let cases: &[(&str, Notice)] = &[
            ("::progress 3/10 copying files\n", at(3.0, 10.0, "copying files")),
            ("::progress 0.3 nearly\n", at(0.3, 1.0, "nearly")),
            ("::progress 1\n", at(1.0, 1.0, "")),
            ("::progress 2.5/10", at(2.5, 10.0, "")),
            ("::progress 1/2 crlf\r\n", at(1.0, 2.0, "crlf")),
            ("::log warning disk is full\n", log(LogLevel::Warning, "disk is full")),
            ("::log debug x", log(LogLevel::Debug, "x")),
        ];
        for (line, notice) in cases {
            let taken = filtered([line.as_bytes()]);
            assert_eq!(taken, Taken { text: vec![], notices: vec![notice.clone()] }, "{line}");
        }
    }

    #[test]
    fn lines_that_only_look_like_directives_stay() {
        for line in [
            "::progress many things\n",
            "::progress 3/0 nothing\n",
            "::progress 50 percent\n",
            "::progress -1/3\n",
            "::progress inf\n",
            "::progress 1e3/1e4\n",
            "::progress\n",
            "::progress",
            "::log loud message\n",
            "::log warning\n",
            "::log warning \n",
            " ::progress 1/2\n",
            "::Progress 1/2\n",
            "text ::progress 1/2\n",
            "::prog",
            ":\n",
            "\n",
            "::log warning \u{fffd}",
        ] {
            let taken = filtered([line.as_bytes()]);
            if line.ends_with('\u{fffd}') {
                assert_eq!(taken.notices.len(), 1);
            } else {
                assert_eq!(taken, Taken { text: line.into(), notices: vec![] }, "{line}");
            }
        }
        let invalid: &[u8] = b"::log warning \xff\n";
        assert_eq!(filtered([invalid]).text, invalid);
    }

    #[test]
    fn a_directive_is_delivered_when_its_line_ends() {
        let mut filtering = Filtering::new();
        filtering.feed(b"text without end ::progress 1/3\n::progress 1");
        assert!(filtering.taken().notices.is_empty());
        filtering.feed(b"/3\n");
        assert_eq!(filtering.taken().notices, [at(1.0, 3.0, "")]);
        assert_eq!(filtering.text, b"text without end ::progress 1/3\n");
    }

    #[test]
    fn plain_text_is_not_held_back() {
        let mut filtering = Filtering::new();
        filtering.feed(b"::pro");
        filtering.feed(b"filing");
        assert_eq!(filtering.text, b"::profiling");
    }

    #[test]
    fn an_endless_line_is_text_and_memory_stays_bounded() {
        let mut filtering = Filtering::new();
        filtering.feed(b"::progress 1/2 ");
        for _ in 0..100 {
            filtering.feed(&[b'x'; 1000]);
            assert!(filtering.filter.held.len() <= MAX_LINE + 1000);
        }
        filtering.feed(b"\n::progress 1/2\n");
        assert_eq!((filtering.text.len(), filtering.taken().notices.len()), (100_016, 1));
    }

    proptest! {
        #[test]
        fn the_pieces_do_not_matter(
            lines in proptest::collection::vec("(::progress [0-9]/[0-9] x|::log error y|::progres|[a-z:]{0,9}|)(\n|\r\n|)", 0..12),
            sizes in proptest::collection::vec(1..9_usize, 1..20),
        ) {
            let whole = lines.concat().into_bytes();
            let mut pieces = Vec::new();
            let (mut rest, mut turn) = (&whole[..], sizes.iter().cycle());
            while !rest.is_empty() {
                let (piece, after) = rest.split_at((*turn.next().unwrap()).min(rest.len()));
                pieces.push(piece);
                rest = after;
            }
            prop_assert_eq!(filtered(pieces), filtered([&whole[..]]));
        }
    }
}
