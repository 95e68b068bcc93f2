//! Errors as values.

use std::borrow::Cow;
use std::fmt;
use std::sync::LazyLock;

use crate::map::Map;
use crate::scalar::Keyword;
use crate::syntax::{Position, Source, Span};
use crate::value::Value;

/// Why a run, or a part of it, gave no value. `catch` sees it as a map.
#[derive(Clone, Debug)]
pub struct Error {
    /// What `catch` selects by: `type`, `arithmetic`, `limit`, `timeout`, or what `throw` said.
    pub kind: Cow<'static, str>,
    /// A sentence for whoever wrote the program.
    pub message: String,
    /// More, for programs; `nil` if there is none.
    pub data: Value,
    /// The capability that failed, if it was one.
    pub capability: Option<String>,
    /// What this is the consequence of, as `catch` would see it; `nil` if nothing.
    pub cause: Value,
    /// Where it came from.
    pub at: Option<Box<Origin>>,
    /// Whether it ends the run without a handler being asked.
    pub(crate) is_final: bool,
}

/// A place in a text.
#[derive(Clone, Debug)]
pub struct Origin {
    /// Line and column of its start.
    pub position: Position,
    /// The text and the stretch, unless the error has been through `catch`.
    pub source: Option<(Source, Span)>,
}

impl Error {
    /// An error of this kind; the machine adds where it came from.
    pub fn new(kind: impl Into<Cow<'static, str>>, message: impl Into<String>) -> Self {
        Self {
            kind: kind.into(),
            message: message.into(),
            data: Value::Nil,
            capability: None,
            cause: Value::Nil,
            at: None,
            is_final: false,
        }
    }

    /// The same with data for programs.
    pub fn with_data(self, data: Value) -> Self {
        Self { data, ..self }
    }

    /// The same, said to come from a capability.
    pub fn with_capability(self, id: impl Into<String>) -> Self {
        Self { capability: Some(id.into()), ..self }
    }

    /// The same, but no handler of the program sees it.
    pub(crate) fn into_final(self) -> Self {
        Self { is_final: true, ..self }
    }

    /// A limit was reached: `which` in its data, so that programs can tell them apart.
    pub(crate) fn limit(which: &'static str, message: impl Into<String>) -> Self {
        let mut data = Map::new();
        let inserted = data.insert(Value::keyword("limit"), Value::keyword(which));
        debug_assert!(inserted.is_ok(), "flat");
        Self::new("limit", message).with_data(Value::Map(data))
    }

    /// `file:3:5: type: message`, with the line and carets below it where the text is known.
    pub fn report(&self) -> String {
        let Self { kind, message, .. } = self;
        match self.at.as_deref() {
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
        }
    }

    /// What `catch` binds.
    pub fn to_value(&self) -> Value {
        let mut map = Map::new();
        let mut put = |key: &Keyword, value: Value| {
            // What is too deep to be part of a map is left out.
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
            let mut place = Map::new();
            for (key, n) in [(&keys.line, at.position.line), (&keys.column, at.position.column)] {
                let _ = place.insert(Value::Keyword(key.clone()), Value::Int(n.into()));
            }
            put(&keys.at, Value::Map(place));
        }
        map.mark_error();
        Value::Map(map)
    }

    /// What `throw` makes of a value: an error as it is, if the value says its `:kind`; else one of
    /// kind `thrown` with the value as its data.
    pub fn from_value(value: Value) -> Self {
        let Value::Map(map) = &value else { return Self::thrown(value) };
        let Some(Value::Keyword(kind)) = map.get_keyword("kind") else { return Self::thrown(value) };
        let get = |key: &str| map.get_keyword(key).cloned().unwrap_or_default();
        let number = |at: &Map, key: &str| match at.get_keyword(key) {
            Some(Value::Int(n)) => u32::try_from(*n).ok(),
            _ => None,
        };
        let at = match get("at") {
            Value::Map(at) if map.is_error() => match (number(&at, "line"), number(&at, "column")) {
                (Some(line), Some(column)) => {
                    Some(Box::new(Origin { position: Position { line, column }, source: None }))
                }
                _ => None,
            },
            _ => None,
        };
        let capability = match get("capability") {
            Value::Nil => None,
            Value::Keyword(id) => Some(id.name().to_owned()),
            other => Some(other.to_string()),
        };
        Self {
            kind: kind.name().to_owned().into(),
            message: get("message").to_string(),
            data: get("data"),
            capability,
            cause: get("cause"),
            at,
            is_final: false,
        }
    }

    fn thrown(value: Value) -> Self {
        Self::new("thrown", value.to_string()).with_data(value)
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
