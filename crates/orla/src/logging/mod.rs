//! The log (RFC 1 §8): one line for each event, on standard error, always.
//!
//! # How it works
//!
//! Code logs through `tracing`. [`Log`] is the one layer: it decides by level and target whether an event is
//! wanted, renders it ([`mod@format`]) and passes the line to a thread that writes ([`writer`]). Level and form
//! are atomics, so that a reload changes them.
//!
//! # Levels
//!
//! `tracing` has no `fatal`. An event with the target [`FATAL`] (see [`fatal!`]) is one: it is printed as `fatal`,
//! and `log_level: fatal` shows only it. Libraries log from `warn` on at any level, because their `info` is about
//! themselves.
//!
//! [`fatal!`]: crate::fatal

pub(crate) mod format;
mod writer;

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU8, Ordering};
use std::time::{Duration, SystemTime};

use orla_marketplace::Redactor;
use parking_lot::RwLock;
use tracing::level_filters::LevelFilter;
use tracing::span::{Attributes, Id, Record};
use tracing::subscriber::Interest;
use tracing::{Event, Level, Metadata, Subscriber};
use tracing_subscriber::layer::{Context, Layer, SubscriberExt};
use tracing_subscriber::registry::LookupSpan;

use crate::config::{LogFormat, Severity};
use crate::render::Styled;
use format::Fields;
use writer::Writer;

/// The target of fatal events, with which the program ends.
pub(crate) const FATAL: &str = "orla::fatal";

/// Logs why the program ends.
#[macro_export]
macro_rules! fatal {
    ($($arg:tt)+) => { tracing::error!(target: "orla::fatal", $($arg)+) };
}

/// The running log. It is flushed when this is dropped, at the end of the program.
pub(crate) struct Logging {
    settings: Arc<Settings>,
    writer: Writer,
}

/// The settings that a reload may change.
struct Settings {
    level: AtomicU8,
    pretty: AtomicBool,
    colours: bool,
    /// Replaces secrets.
    redactor: RwLock<Arc<Redactor>>,
}

struct Log {
    settings: Arc<Settings>,
    writer: Writer,
}

impl Logging {
    /// Starts the log and sends panics to it too.
    pub(crate) fn start(level: Severity, format: LogFormat) -> Self {
        let settings = Arc::new(Settings {
            level: AtomicU8::new(level as u8),
            pretty: AtomicBool::new(format == LogFormat::Pretty),
            colours: crate::render::stderr_has_colours(),
            redactor: RwLock::default(),
        });
        let writer = Writer::start(Arc::clone(&settings));
        let layer = Log { settings: Arc::clone(&settings), writer: writer.clone() };
        let subscriber = tracing_subscriber::registry().with(layer);
        // A second log in one process (in tests) does not replace the first.
        let _ = tracing::subscriber::set_global_default(subscriber);
        log_panics();
        Self { settings, writer }
    }

    /// Takes the level and the form of a new configuration.
    pub(crate) fn change(&self, level: Severity, format: LogFormat) {
        self.settings.level.store(level as u8, Ordering::Relaxed);
        self.settings.pretty.store(format == LogFormat::Pretty, Ordering::Relaxed);
        tracing::callsite::rebuild_interest_cache();
    }

    /// Replaces these secrets from now on.
    pub(crate) fn redact(&self, redactor: Arc<Redactor>) {
        *self.settings.redactor.write() = redactor;
    }

    /// Waits until all earlier events are written, for a limited time.
    pub(crate) fn flush(&self) {
        self.writer.flush(Duration::from_secs(1));
    }
}

impl Drop for Logging {
    fn drop(&mut self) {
        self.flush();
    }
}

impl Settings {
    fn level(&self) -> Severity {
        const ALL: [Severity; 5] =
            [Severity::Debug, Severity::Info, Severity::Warn, Severity::Error, Severity::Fatal];
        ALL[usize::from(self.level.load(Ordering::Relaxed)).min(ALL.len() - 1)]
    }

    /// Returns an event with the current time, in the configured form.
    fn line(&self, level: Severity, fields: &Fields) -> Styled {
        let now = SystemTime::now();
        if self.pretty.load(Ordering::Relaxed) {
            format::pretty(now, level, fields, self.colours)
        } else {
            format::json(now, level, fields)
        }
    }

    fn wants(&self, metadata: &Metadata<'_>) -> bool {
        let level = self.level();
        let level = match metadata.target() {
            target if is_ours(target) => level,
            // It warns about messages that providers send every time.
            target if target.starts_with("genai") => level.max(Severity::Error),
            _ => level.max(Severity::Warn),
        };
        severity(metadata) >= level && *metadata.level() != Level::TRACE
    }
}

/// Returns whether the event comes from orla itself, or a library it uses.
fn is_ours(target: &str) -> bool {
    ["orla", "rtfs"].iter().any(|ours| {
        target.strip_prefix(ours).is_some_and(|rest| rest.is_empty() || rest.starts_with([':', '_']))
    })
}

fn severity(metadata: &Metadata<'_>) -> Severity {
    match *metadata.level() {
        Level::ERROR if metadata.target() == FATAL => Severity::Fatal,
        Level::ERROR => Severity::Error,
        Level::WARN => Severity::Warn,
        Level::INFO => Severity::Info,
        _ => Severity::Debug,
    }
}

impl<S: Subscriber + for<'a> LookupSpan<'a>> Layer<S> for Log {
    fn register_callsite(&self, metadata: &'static Metadata<'static>) -> Interest {
        if self.settings.wants(metadata) { Interest::always() } else { Interest::never() }
    }

    fn enabled(&self, metadata: &Metadata<'_>, _: Context<'_, S>) -> bool {
        self.settings.wants(metadata)
    }

    fn max_level_hint(&self) -> Option<LevelFilter> {
        Some(match self.settings.level() {
            Severity::Debug => LevelFilter::DEBUG,
            Severity::Info => LevelFilter::INFO,
            Severity::Warn => LevelFilter::WARN,
            Severity::Error | Severity::Fatal => LevelFilter::ERROR,
        })
    }

    fn on_new_span(&self, attributes: &Attributes<'_>, id: &Id, ctx: Context<'_, S>) {
        let Some(span) = ctx.span(id) else { return };
        let mut fields = Fields::default();
        attributes.record(&mut fields);
        span.extensions_mut().insert(fields);
    }

    fn on_record(&self, id: &Id, values: &Record<'_>, ctx: Context<'_, S>) {
        let Some(span) = ctx.span(id) else { return };
        if let Some(fields) = span.extensions_mut().get_mut::<Fields>() {
            values.record(fields);
        }
    }

    fn on_event(&self, event: &Event<'_>, ctx: Context<'_, S>) {
        let metadata = event.metadata();
        let mut fields = Fields::with_room();
        event.record(&mut fields);
        // An event's own fields override those of the spans around it, and inner spans override outer ones.
        for span in ctx.event_scope(event).into_iter().flatten() {
            if let Some(outer) = span.extensions().get::<Fields>() {
                fields.add_missing(outer);
            }
        }
        fields.redact(&self.settings.redactor.read());
        if !is_ours(metadata.target()) {
            fields.add("target", format::Field::Text(metadata.target().to_owned()));
        }
        self.writer.write(self.settings.line(severity(metadata), &fields));
    }
}

/// Logs a panic as one event; the default hook would write raw text into the JSON.
fn log_panics() {
    std::panic::set_hook(Box::new(|info| {
        let payload = info.payload();
        let text = payload.downcast_ref::<&str>().map(|text| (*text).to_owned());
        let text = text.or_else(|| payload.downcast_ref::<String>().cloned());
        let location = info.location().map(ToString::to_string);
        let thread = std::thread::current();
        tracing::error!(
            panic = text.as_deref().unwrap_or("a value that is not text"),
            location,
            thread = thread.name().unwrap_or("unnamed"),
            "panicked"
        );
    }));
}

#[cfg(test)]
impl Settings {
    fn of(level: Severity, pretty: bool) -> Self {
        let (level, pretty) = (AtomicU8::new(level as u8), AtomicBool::new(pretty));
        Self { level, pretty, colours: false, redactor: RwLock::default() }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn libraries_are_told_from_orla() {
        for ours in ["orla", "orla::fatal", "orla_process::runner", "rtfs"] {
            assert!(is_ours(ours), "{ours}");
        }
        for theirs in ["hyper", "orlando::x", "notify"] {
            assert!(!is_ours(theirs), "{theirs}");
        }
    }

    #[test]
    fn fatal_is_a_level_above_error_and_can_be_switched_while_it_runs() {
        let settings = Arc::new(Settings::of(Severity::Fatal, false));
        let (writer, lines) = Writer::for_tests();
        let log = Log { settings: Arc::clone(&settings), writer };
        let subscriber = tracing_subscriber::registry().with(log);
        tracing::subscriber::with_default(subscriber, || {
            tracing::callsite::rebuild_interest_cache();
            tracing::error!("hidden");
            crate::fatal!(port = 80, "shown");
            settings.level.store(Severity::Info as u8, Ordering::Relaxed);
            tracing::callsite::rebuild_interest_cache();
            let span = tracing::info_span!("call", id = "c1", port = 1);
            let _entered = span.enter();
            tracing::info!(port = 2, "now shown");
            tracing::debug!("hidden");
            tracing::info!(target: "hyper", "hidden");
            tracing::warn!(target: "hyper", "a library");
        });
        let lines: Vec<serde_json::Value> =
            lines.try_iter().map(|line| serde_json::from_str(line.as_str()).unwrap()).collect();
        let shown: Vec<_> =
            lines.iter().map(|line| (line["level"].as_str(), line["message"].as_str())).collect();
        assert_eq!(
            shown,
            [
                (Some("fatal"), Some("shown")),
                (Some("info"), Some("now shown")),
                (Some("warn"), Some("a library")),
            ]
        );
        assert_eq!((&lines[1]["port"], &lines[1]["id"]), (&2.into(), &"c1".into()));
        assert_eq!(lines[2]["target"], "hyper");
    }
}
