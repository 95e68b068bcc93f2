//! An event as one line: a JSON object, or text for people. Pure functions.

use std::error::Error;
use std::fmt::{Debug, Write as _};
use std::time::{SystemTime, UNIX_EPOCH};

use jiff::fmt::temporal::DateTimePrinter;
use orla_marketplace::Redactor;
use tracing::field::{Field as Name, Visit};

use crate::config::Severity;
use crate::render::Styled;
use crate::text::on_one_line;

/// Characters of one field's text that are logged.
const MAX_TEXT: usize = 16 * 1024;

/// The fields of an event or a span, in the order in which they were recorded.
#[derive(Clone, Debug, Default)]
pub(crate) struct Fields(Vec<(&'static str, Field)>);

/// A value as JSON has it.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum Field {
    Text(String),
    Bool(bool),
    Signed(i64),
    Unsigned(u64),
    Float(f64),
}

impl Fields {
    /// No fields, with capacity for those of most events.
    pub(crate) fn with_room() -> Self {
        Self(Vec::with_capacity(8))
    }

    /// Adds a field, or replaces its value.
    pub(crate) fn add(&mut self, name: &'static str, value: Field) {
        match self.0.iter_mut().find(|(known, _)| *known == name) {
            Some((_, old)) => *old = value,
            None => self.0.push((name, value)),
        }
    }

    /// Adds the fields of `other` that are not here yet.
    pub(crate) fn add_missing(&mut self, other: &Self) {
        for (name, value) in &other.0 {
            if !self.0.iter().any(|(known, _)| known == name) {
                self.0.push((name, value.clone()));
            }
        }
    }

    /// Replaces secrets in texts.
    pub(crate) fn redact(&mut self, redactor: &Redactor) {
        if redactor.is_empty() {
            return;
        }
        for (_, field) in &mut self.0 {
            if let Field::Text(text) = field
                && redactor.finds(text)
            {
                *text = redactor.text(text).into_owned();
            }
        }
    }

    fn message(&self) -> &str {
        match self.0.iter().find(|(name, _)| *name == "message") {
            Some((_, Field::Text(text))) => text,
            _ => "",
        }
    }

    /// Returns the source and the text, if the event is a line of a capsule's standard error.
    fn spoken(&self) -> Option<(&str, &str)> {
        let text = |name: &str| match self.0.iter().find(|(known, _)| *known == name) {
            Some((_, Field::Text(text))) => Some(text.as_str()),
            _ => None,
        };
        (self.message() == "stderr")
            .then_some((text("capsule").or_else(|| text("plugin"))?, text("line")?))
    }

    fn text(&mut self, name: &Name, mut text: String) {
        // No text has more characters than bytes.
        if text.len() > MAX_TEXT
            && let Some((end, _)) = text.char_indices().nth(MAX_TEXT)
        {
            let more = text.len() - end;
            text.truncate(end);
            let _ = write!(text, "… ({more} bytes more)");
        }
        self.add(name.name(), Field::Text(text));
    }
}

impl Visit for Fields {
    fn record_f64(&mut self, name: &Name, value: f64) {
        self.add(name.name(), Field::Float(value));
    }

    fn record_i64(&mut self, name: &Name, value: i64) {
        self.add(name.name(), Field::Signed(value));
    }

    fn record_u64(&mut self, name: &Name, value: u64) {
        self.add(name.name(), Field::Unsigned(value));
    }

    fn record_bool(&mut self, name: &Name, value: bool) {
        self.add(name.name(), Field::Bool(value));
    }

    fn record_str(&mut self, name: &Name, value: &str) {
        self.text(name, value.to_owned());
    }

    fn record_error(&mut self, name: &Name, value: &(dyn Error + 'static)) {
        let mut text = value.to_string();
        let mut cause = value.source();
        while let Some(error) = cause {
            let _ = write!(text, ": {error}");
            cause = error.source();
        }
        self.text(name, text);
    }

    fn record_debug(&mut self, name: &Name, value: &dyn Debug) {
        self.text(name, format!("{value:?}"));
    }
}

/// One JSON object: `timestamp`, `level`, `message`, and the other fields. Every call has such a line, so it is
/// written in one pass.
pub(crate) fn json(at: SystemTime, level: Severity, fields: &Fields) -> Styled {
    let mut line = Vec::with_capacity(128 + 32 * fields.0.len());
    line.extend_from_slice(br#"{"timestamp":""#);
    line.extend_from_slice(timestamp(at).as_bytes());
    line.extend_from_slice(br#"","level":""#);
    line.extend_from_slice(level.as_str().as_bytes());
    line.extend_from_slice(br#"","message":"#);
    push(&mut line, fields.message());
    for (name, value) in &fields.0 {
        line.extend_from_slice(match *name {
            "message" => continue,
            // A field must not be mistaken for a member of the line itself.
            "timestamp" | "level" => br#","field_"#,
            _ => br#",""#,
        });
        line.extend_from_slice(name.as_bytes());
        line.extend_from_slice(br#"":"#);
        match value {
            Field::Text(text) => push(&mut line, text),
            Field::Bool(value) => push(&mut line, value),
            Field::Signed(value) => push(&mut line, value),
            Field::Unsigned(value) => push(&mut line, value),
            Field::Float(value) if value.is_finite() => push(&mut line, value),
            Field::Float(value) => push(&mut line, &value.to_string()),
        }
    }
    line.extend_from_slice(b"}\n");
    Styled::json(String::from_utf8(line).unwrap_or_default())
}

fn push<T: serde::Serialize + ?Sized>(line: &mut Vec<u8>, value: &T) {
    let _ = serde_json::to_writer(line, value);
}

/// One line of text: `08:03:24.120 WARN  message  name=value`.
pub(crate) fn pretty(at: SystemTime, level: Severity, fields: &Fields, colours: bool) -> Styled {
    let mut line = Styled::default();
    let style = |style: &'static str| if colours { style } else { "" };
    let (name, of_level) = match level {
        Severity::Debug => ("DEBUG", "34"),
        Severity::Info => ("INFO ", "32"),
        Severity::Warn => ("WARN ", "33"),
        Severity::Error => ("ERROR", "31"),
        Severity::Fatal => ("FATAL", "1;31"),
    };
    let time = timestamp(at);
    line.paint(style("2"), time.get(11..23).unwrap_or(&time));
    line.push(" ");
    if let Some((capsule, words)) = fields.spoken() {
        line.paint(style("36"), &format!("{} |", on_one_line(capsule)));
        line.push(&format!(" {}\n", on_one_line(words)));
        return line;
    }
    line.paint(style(of_level), name);
    line.push(&format!(" {}", on_one_line(fields.message())));
    for (name, value) in fields.0.iter().filter(|(name, _)| *name != "message") {
        let value = match value {
            Field::Text(text) if is_word(text) => on_one_line(text),
            Field::Text(text) => format!("\"{}\"", on_one_line(text).replace('"', "\\\"")),
            Field::Bool(value) => value.to_string(),
            Field::Signed(value) => value.to_string(),
            Field::Unsigned(value) => value.to_string(),
            Field::Float(value) => value.to_string(),
        };
        line.push("  ");
        line.paint(style("2"), &format!("{name}="));
        line.push(&value);
    }
    line.push("\n");
    line
}

fn is_word(text: &str) -> bool {
    !text.is_empty() && !text.chars().any(|c| c.is_whitespace() || c.is_control() || c == '"')
}

const PRINTER: DateTimePrinter = DateTimePrinter::new().precision(Some(3));

/// RFC 3339 in UTC with milliseconds: `2026-11-20T08:03:24.120Z`.
pub(crate) fn timestamp(at: SystemTime) -> String {
    let since = at.duration_since(UNIX_EPOCH).unwrap_or_default();
    let millis = i64::try_from(since.as_millis()).unwrap_or(i64::MAX);
    let at = jiff::Timestamp::from_millisecond(millis).unwrap_or(jiff::Timestamp::MAX);
    PRINTER.timestamp_to_string(&at)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Duration;

    fn at(seconds: u64, millis: u64) -> SystemTime {
        UNIX_EPOCH + Duration::from_secs(seconds) + Duration::from_millis(millis)
    }

    fn fields() -> Fields {
        Fields(vec![
            ("message", Field::Text("call finished".into())),
            ("capability", Field::Text("ls".into())),
            ("duration_ms", Field::Float(1.5)),
            ("level", Field::Text("x".into())),
            ("error", Field::Text("two\nlines \x1b[31m".into())),
        ])
    }

    #[test]
    fn timestamps_are_rfc_3339() {
        let cases = [
            (0, 0, "1970-01-01T00:00:00.000Z"),
            (951_782_399, 7, "2000-02-28T23:59:59.007Z"),
            (951_782_400, 0, "2000-02-29T00:00:00.000Z"),
            (1_795_161_804, 120, "2026-11-20T08:03:24.120Z"),
            (4_107_542_400, 0, "2100-03-01T00:00:00.000Z"),
        ];
        for (seconds, millis, expected) in cases {
            assert_eq!(timestamp(at(seconds, millis)), expected);
        }
    }

    #[test]
    fn json_is_one_flat_object_on_one_line() {
        let line = json(at(0, 0), Severity::Warn, &fields());
        let expected = r#"{"timestamp":"1970-01-01T00:00:00.000Z","level":"warn","message":"call finished","capability":"ls","duration_ms":1.5,"field_level":"x","error":"two\nlines \u001b[31m"}"#;
        assert_eq!(line.as_str(), format!("{expected}\n"));
    }

    #[test]
    fn pretty_is_one_line_without_control_characters() {
        let line = pretty(at(0, 0), Severity::Warn, &fields(), false);
        assert_eq!(
            line.as_str(),
            "00:00:00.000 WARN  call finished  capability=ls  duration_ms=1.5  level=x  error=\"two\\nlines \\u{1b}[31m\"\n"
        );
        assert!(
            pretty(at(0, 0), Severity::Fatal, &fields(), true)
                .as_str()
                .contains("\x1b[1;31mFATAL\x1b[0m")
        );
    }

    #[test]
    fn what_a_capsule_says_is_shown_as_it_said_it() {
        let spoken = Fields(vec![
            ("message", Field::Text("stderr".into())),
            ("capsule", Field::Text("notes".into())),
            ("line", Field::Text("loaded \"3\" notes\x07".into())),
        ]);
        let line = pretty(at(0, 0), Severity::Info, &spoken, true);
        assert_eq!(
            line.as_str(),
            "\x1b[2m00:00:00.000\x1b[0m \x1b[36mnotes |\x1b[0m loaded \"3\" notes\\u{7}\n"
        );
    }

    #[test]
    fn a_field_recorded_again_has_its_last_value() {
        let mut fields = Fields::default();
        fields.add("outcome", Field::Text("?".into()));
        fields.add("outcome", Field::Text("ok".into()));
        let mut outer = Fields::default();
        outer.add("outcome", Field::Bool(false));
        outer.add("id", Field::Unsigned(1));
        fields.add_missing(&outer);
        assert_eq!(fields.0, [("outcome", Field::Text("ok".into())), ("id", Field::Unsigned(1))]);
    }
}
