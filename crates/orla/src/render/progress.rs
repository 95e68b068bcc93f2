//! Progress at a terminal: a bar for each call that reports progress, drawn in place on standard error and removed
//! while anything else is written.

use std::sync::OnceLock;

use indicatif::{MultiProgress, ProgressBar, ProgressState, ProgressStyle};
use orla_marketplace::{Notice, NoticeSink, Progress};
use parking_lot::Mutex;

use super::{cut, note, stderr_is_terminal};
use crate::text::on_one_line;

/// Steps of a bar from its beginning to its end. Progress is fractional, a bar is not.
const STEPS: u64 = 10_000;
/// Characters of a call's name that its bar shows.
const LABEL: usize = 32;

/// All bars of this process; there is one terminal.
static BARS: OnceLock<MultiProgress> = OnceLock::new();

/// Writes something while no bar is in the way.
pub(super) fn lifted<R>(write: impl FnOnce() -> R) -> R {
    match BARS.get() {
        Some(bars) => bars.suspend(write),
        None => write(),
    }
}

/// Shows the notices of a call and of a program's calls within it: progress as bars, messages as lines above them.
/// `wants` chooses the notices that are shown.
pub(crate) fn sink(label: &str, wants: fn(&Notice) -> bool) -> NoticeSink {
    let bar = Bar::new(label);
    let take = move |notice| {
        if wants(&notice) {
            bar.show(&notice);
        }
    };
    NoticeSink::new(take).with_calls(move |id| within(id, wants))
}

/// Returns a sink for the notices of a call that a program makes. Its text belongs to the program.
fn within(label: &str, wants: fn(&Notice) -> bool) -> NoticeSink {
    let bar = Bar::new(label);
    let take = move |notice: Notice| {
        if wants(&notice) && !matches!(notice, Notice::Text(_)) {
            bar.show(&notice);
        }
    };
    NoticeSink::new(take).with_calls(move |id| within(id, wants))
}

/// The bar of one call. It is drawn at the first report of progress, and removed when this is dropped.
pub(crate) struct Bar {
    label: String,
    drawn: Mutex<Option<Drawn>>,
}

struct Drawn {
    bar: ProgressBar,
    total: Option<f64>,
}

impl Bar {
    pub(crate) fn new(label: &str) -> Self {
        Self { label: cut(&on_one_line(label), LABEL), drawn: Mutex::default() }
    }

    /// Shows a notice of the call.
    pub(crate) fn show(&self, notice: &Notice) {
        match notice {
            Notice::Progress(progress) if can_draw() => self.draw(progress),
            Notice::Progress(progress) => note(&in_words(progress)),
            Notice::Log { level, message } => note(&format!("[{}] {message}", level.as_str())),
            Notice::Text(text) => note(text),
        }
    }

    fn draw(&self, progress: &Progress) {
        let total = progress.total.filter(|total| *total > 0.0 && total.is_finite());
        let mut drawn = self.drawn.lock();
        let shown = drawn.get_or_insert_with(|| {
            let bar = ProgressBar::no_length().with_style(style(total));
            Drawn { bar: BARS.get_or_init(MultiProgress::new).add(bar), total }
        });
        if shown.total != total {
            shown.bar.set_style(style(total));
            shown.total = total;
        }
        let done = progress.progress.max(0.0);
        shown.bar.set_prefix(format!("{} {}", self.label, how_far(done, total)));
        shown.bar.set_message(progress.message.as_deref().map(on_one_line).unwrap_or_default());
        match total {
            Some(total) => {
                shown.bar.set_length(STEPS);
                // The fraction is at most 1: nothing is cut off.
                shown.bar.set_position(((done / total).min(1.0) * STEPS as f64) as u64);
            }
            None => shown.bar.set_position(done as u64),
        }
    }
}

impl Drop for Bar {
    fn drop(&mut self) {
        let drawn = self.drawn.get_mut();
        if let Some(Drawn { bar, .. }) = drawn.take() {
            bar.finish_and_clear();
        }
    }
}

/// Returns whether bars can move in place on standard error.
fn can_draw() -> bool {
    stderr_is_terminal() && std::env::var_os("TERM").is_some_and(|term| term != "dumb")
}

/// Done and total, a bar, the rate, the time left and the message; without a total, the known parts.
fn style(total: Option<f64>) -> ProgressStyle {
    let unit = total.map_or(1.0, |total| total / STEPS as f64);
    let rate = move |state: &ProgressState, out: &mut dyn std::fmt::Write| {
        let _ = write!(out, "{:.1}/s", state.per_sec() * unit);
    };
    // The template is the program's own and tested; were it wrong, the default would show.
    let style = ProgressStyle::with_template(template(total.is_some()));
    let style = style.unwrap_or_else(|_| ProgressStyle::default_bar());
    style.with_key("rate", rate).progress_chars("=> ")
}

fn template(has_total: bool) -> &'static str {
    match has_total {
        true => "{prefix} [{bar:24}] {rate}, {eta} left {wide_msg}",
        false => "{spinner} {prefix} {rate} {wide_msg}",
    }
}

/// Progress as a line of text.
fn in_words(progress: &Progress) -> String {
    let far = how_far(progress.progress, progress.total);
    match &progress.message {
        Some(message) => format!("{far} {message}"),
        None => far,
    }
}

fn how_far(done: f64, total: Option<f64>) -> String {
    total.map_or_else(|| done.to_string(), |total| format!("{done}/{total}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn progress_is_a_line_where_no_bar_can_move() {
        let progress = |total, message: Option<&str>| Progress {
            progress: 1.5,
            total,
            message: message.map(str::to_owned),
        };
        assert_eq!(in_words(&progress(Some(3.0), Some("m"))), "1.5/3 m");
        assert_eq!(in_words(&progress(None, None)), "1.5");
    }

    #[test]
    fn the_templates_are_well_formed() {
        assert!(ProgressStyle::with_template(template(true)).is_ok());
        assert!(ProgressStyle::with_template(template(false)).is_ok());
    }
}
