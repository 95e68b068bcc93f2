//! Errors as values.

use std::borrow::Cow;
use std::fmt;
use std::sync::LazyLock;

use crate::map::Map;
use crate::scalar::Keyword;
use crate::syntax::{Position, Source, Span};
use crate::types::Violation;
use crate::value::Value;

/// The reason why a run, or a part of it, returned no value. `catch` receives it as a map.
#[derive(Clone, Debug)]
pub struct Error {
    /// The kind that `catch` selects by: `type`, `arithmetic`, `limit`, `timeout`, or the kind given to
    /// `throw`.
    pub kind: Cow<'static, str>,
    /// A sentence for the author of the program.
    pub message: String,
    /// Further data for programs; `nil` if there is none.
    pub data: Value,
    /// The capability that failed, if any.
    pub capability: Option<String>,
    /// The cause, in the form that `catch` receives; `nil` if none.
    pub cause: Value,
    /// The place where the error occurred.
    pub at: Option<Box<Origin>>,
    /// Whether the error ends the run without calling a handler.
    pub(crate) is_final: bool,
    /// Whether its data describes how the result of a function violates its annotation. A separate field
    /// would make every error larger.
    pub(crate) breaks_result: bool,
}

/// Formats a count: `1 item`, `2 items`.
pub fn counted(count: u64, one: &str) -> String {
    if count == 1 { format!("1 {one}") } else { format!("{count} {one}s") }
}

/// A place in a text.
#[derive(Clone, Debug)]
pub struct Origin {
    /// The line and column of its start.
    pub position: Position,
    /// The text and the span, unless the error has passed through `catch`.
    pub source: Option<(Source, Span)>,
}

impl Error {
    /// Creates an error of this kind; the machine adds its place.
    pub fn new(kind: impl Into<Cow<'static, str>>, message: impl Into<String>) -> Self {
        Self {
            kind: kind.into(),
            message: message.into(),
            data: Value::Nil,
            capability: None,
            cause: Value::Nil,
            at: None,
            is_final: false,
            breaks_result: false,
        }
    }

    /// Adds data for programs.
    pub fn with_data(self, data: Value) -> Self {
        Self { data, ..self }
    }

    /// Sets the capability that failed.
    pub fn with_capability(self, id: impl Into<String>) -> Self {
        Self { capability: Some(id.into()), ..self }
    }

    /// Wraps the error of a program that was called as the capability `id`. The kind, the message and
    /// the data stay, and the original place becomes the cause. Of programs that call each other
    /// repeatedly, one level is kept, and of the whole chain the innermost levels.
    pub fn through(&self, id: &str) -> Self {
        let cause = match self.level() {
            Some(level) if !self.repeats(&level) => Value::Map(level),
            _ => self.cause.clone(),
        };
        Self {
            kind: self.kind.clone(),
            message: self.message.clone(),
            data: self.data.clone(),
            capability: Some(id.to_owned()),
            cause,
            at: None,
            is_final: false,
            breaks_result: false,
        }
    }

    /// Returns the place as a level of the chain. `None` if the place is unknown, or if there are enough
    /// levels already.
    fn level(&self) -> Option<Map> {
        const MAX_LEVELS: usize = 8;
        let at = self.at.as_ref()?;
        let mut level = Map::new();
        let keys = &*KEYS;
        let capability = self.capability.as_ref().map(|id| Value::keyword(id.as_str()));
        let cause = Some(self.cause.clone()).filter(|cause| !matches!(cause, Value::Nil));
        let members =
            [(&keys.at, Some(at.to_value())), (&keys.capability, capability), (&keys.cause, cause)];
        for (key, value) in members {
            if let Some(value) = value {
                level.insert(Value::Keyword(key.clone()), value).ok()?;
            }
        }
        (self.levels().count() < MAX_LEVELS).then_some(level)
    }

    /// Returns whether the next level of this error is the same place.
    fn repeats(&self, level: &Map) -> bool {
        let within = self.levels().next();
        let same = |key| within.is_some_and(|within| within.get_keyword(key) == level.get_keyword(key));
        same("at") && same("capability")
    }

    /// Returns the places in the programs that the error passed through, the outermost first.
    fn levels(&self) -> impl Iterator<Item = &Map> {
        fn level(cause: &Value) -> Option<&Map> {
            let Value::Map(level) = cause else { return None };
            // An error passed to `throw` as a cause has a message; a level has none.
            let is_level = level.get_keyword("at").is_some() && level.get_keyword("message").is_none();
            is_level.then_some(level)
        }
        std::iter::successors(level(&self.cause), |within| level(within.get_keyword("cause")?))
    }

    /// Creates the error of a value that has the wrong type.
    pub(crate) fn broken(violations: &[Violation]) -> Self {
        let all: Vec<_> = violations.iter().map(ToString::to_string).collect();
        Self::new("type", all.join("; "))
    }

    /// Creates the error of a result that has the wrong type. If the host called the function, the host
    /// gets each violation.
    pub(crate) fn broken_by_result(violations: &[Violation]) -> Self {
        let all = violations.iter().filter_map(|violation| {
            let Violation { path, expected, got } = violation;
            Value::vector([path, expected, got].map(|text| text.as_str().into()).into()).ok()
        });
        let data = Value::vector(all.collect()).unwrap_or_default();
        Self { breaks_result: true, ..Self::broken(violations).with_data(data) }
    }

    /// Hides the violations from everyone but the host that called the function.
    pub(crate) fn hide_result(&mut self) {
        if std::mem::take(&mut self.breaks_result) {
            self.data = Value::Nil;
        }
    }

    /// Returns how the result of the function that [ended the run](crate::Run::then) violates its
    /// annotation; `None` for any other error.
    pub fn broken_result(&self) -> Option<Vec<Violation>> {
        let of = |violation: &Value| match violation.items()? {
            [Value::Str(path), Value::Str(expected), Value::Str(got)] => {
                let [path, expected, got] = [path, expected, got].map(|text| text.as_str().to_owned());
                Some(Violation { path, expected, got })
            }
            _ => None,
        };
        let all = self.data.items().filter(|_| self.breaks_result)?;
        Some(all.iter().filter_map(of).collect())
    }

    /// Makes the error final, so that no handler of the program sees it.
    pub(crate) fn into_final(self) -> Self {
        Self { is_final: true, ..self }
    }

    /// Creates the error of a reached limit, with `which` in its data, so that programs can distinguish
    /// limits.
    pub(crate) fn limit(which: &'static str, message: impl Into<String>) -> Self {
        let mut data = Map::new();
        let inserted = data.insert(Value::keyword("limit"), Value::keyword(which));
        debug_assert!(inserted.is_ok(), "flat");
        Self::new("limit", message).with_data(Value::Map(data))
    }

    /// Formats the error as `file:3:5: type: message`, with the line and carets below it if the text is
    /// known, and a line for each program that it passed through.
    pub fn report(&self) -> String {
        let Self { kind, message, .. } = self;
        let mut report = match self.at.as_deref() {
            Some(Origin { position, source }) => {
                let Position { line, column } = position;
                let place = format!("{line}:{column}: {kind}: {message}");
                match source {
                    Some((source, span)) if source.name().is_empty() => {
                        format!("{place}\n{}", source.excerpt(*span))
                    }
                    Some((source, span)) => {
                        format!("{}:{place}\n{}", source.name(), source.excerpt(*span))
                    }
                    None => place,
                }
            }
            None => format!("{kind}: {message}"),
        };
        let mut name = self.capability.clone();
        for level in self.levels() {
            let Some(position) = level.get_keyword("at").and_then(Origin::position_in) else { break };
            let Position { line, column } = position;
            report.push_str(&format!(
                "\nin {} at {line}:{column}",
                name.as_deref().unwrap_or("a program")
            ));
            name = level.get_keyword("capability").map(name_in);
        }
        report
    }

    /// Returns the value that `catch` binds.
    pub fn to_value(&self) -> Value {
        let mut map = Map::new();
        let mut put = |key: &Keyword, value: Value| {
            // A value that is too deep for a map is left out.
            let _ = map.insert(Value::Keyword(key.clone()), value);
        };
        let keys = &*KEYS;
        put(&keys.kind, Value::Keyword(Keyword::new(&*self.kind)));
        put(&keys.message, self.message.as_str().into());
        if let Some(capability) = &self.capability {
            put(&keys.capability, Value::keyword(capability.as_str()));
        }
        if !matches!(self.data, Value::Nil) {
            put(&keys.data, self.data.clone());
        }
        if !matches!(self.cause, Value::Nil) {
            put(&keys.cause, self.cause.clone());
        }
        if let Some(at) = &self.at {
            put(&keys.at, at.to_value());
        }
        map.mark_error();
        Value::Map(map)
    }

    /// Converts the argument of `throw`: an error, if the value has a `:kind`; else an error of kind
    /// `thrown` with the value as its data.
    pub fn from_value(value: Value) -> Self {
        let Value::Map(map) = &value else { return Self::thrown(value) };
        let Some(Value::Keyword(kind)) = map.get_keyword("kind") else { return Self::thrown(value) };
        let get = |key: &str| map.get_keyword(key).cloned().unwrap_or_default();
        let at = map.get_keyword("at").filter(|_| map.is_error()).and_then(Origin::position_in);
        let at = at.map(|position| Box::new(Origin { position, source: None }));
        let capability = match get("capability") {
            Value::Nil => None,
            id => Some(name_in(&id)),
        };
        Self {
            kind: kind.name().to_owned().into(),
            message: get("message").to_string(),
            data: get("data"),
            capability,
            cause: get("cause"),
            at,
            is_final: false,
            breaks_result: false,
        }
    }

    fn thrown(value: Value) -> Self {
        Self::new("thrown", value.to_string()).with_data(value)
    }
}

impl Origin {
    /// Returns `{:line 1, :column 2}`.
    fn to_value(&self) -> Value {
        let mut place = Map::new();
        let keys = &*KEYS;
        for (key, n) in [(&keys.line, self.position.line), (&keys.column, self.position.column)] {
            // The map is flat, so it cannot be too deep.
            let _ = place.insert(Value::Keyword(key.clone()), Value::Int(n.into()));
        }
        Value::Map(place)
    }

    /// Returns the position that a value represents, if it does.
    fn position_in(value: &Value) -> Option<Position> {
        let Value::Map(at) = value else { return None };
        let number = |key: &str| match at.get_keyword(key) {
            Some(Value::Int(n)) => u32::try_from(*n).ok(),
            _ => None,
        };
        Some(Position { line: number("line")?, column: number("column")? })
    }
}

/// Returns the id of a capability as text.
fn name_in(id: &Value) -> String {
    match id {
        Value::Keyword(id) => id.name().to_owned(),
        other => other.to_string(),
    }
}

struct Keys {
    kind: Keyword,
    message: Keyword,
    capability: Keyword,
    data: Keyword,
    cause: Keyword,
    at: Keyword,
    line: Keyword,
    column: Keyword,
}

static KEYS: LazyLock<Keys> = LazyLock::new(|| Keys {
    kind: Keyword::new("kind"),
    message: Keyword::new("message"),
    capability: Keyword::new("capability"),
    data: Keyword::new("data"),
    cause: Keyword::new("cause"),
    at: Keyword::new("at"),
    line: Keyword::new("line"),
    column: Keyword::new("column"),
});

/// `type: message`
impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", self.kind, self.message)
    }
}

impl std::error::Error for Error {}

#[cfg(test)]
mod tests {
    use super::*;

    fn failed_at(line: u32) -> Error {
        let position = Position { line, column: 1 };
        let mut error = Error::limit("steps", "more than 10 steps");
        error.at = Some(Box::new(Origin { position, source: None }));
        error
    }

    fn called(error: &Error, id: &str, line: u32) -> Error {
        Error { at: failed_at(line).at, ..error.through(id) }
    }

    #[test]
    fn an_error_keeps_what_it_is_through_programs_and_names_each_once() {
        let outer = called(&called(&failed_at(3), "inner", 2), "outer", 1);
        assert_eq!(outer.report(), "1:1: limit: more than 10 steps\nin outer at 2:1\nin inner at 3:1");
        let again = Error::from_value(outer.to_value());
        assert_eq!(again.report(), outer.report());
        assert_eq!(outer.data.pr_str(), "{:limit :steps}");
        assert_eq!(
            outer.cause.pr_str(),
            "{:at {:line 2, :column 1}, :capability :inner, :cause {:at {:line 3, :column 1}}}"
        );
    }

    #[test]
    fn programs_that_call_each_other_are_named_a_few_times_at_most() {
        let mut same = failed_at(7);
        let mut many = failed_at(7);
        for line in 1..100 {
            same = called(&same, "again", 2);
            many = called(&many, "more", line);
        }
        assert_eq!(same.report(), "2:1: limit: more than 10 steps\nin again at 2:1\nin again at 7:1");
        assert_eq!(many.report().lines().count(), 9);
        assert!(many.report().ends_with("in more at 7:1"), "{}", many.report());
    }
}
