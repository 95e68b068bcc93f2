//! The tree of a form.

use crate::exact::Json;

/// One value of the input.
#[derive(Clone, Debug)]
pub(crate) struct Node {
    /// The name of its field.
    pub(super) path: String,
    pub(super) label: String,
    pub(super) description: Option<String>,
    /// The requirements of the schema, in words.
    pub(super) rules: Vec<String>,
    pub(super) default: Option<String>,
    /// Whether it must be given.
    pub(super) is_required: bool,
    /// Whether a form without it cannot be right: it and everything around it is required.
    pub(super) is_strict: bool,
    /// Whether it may be `null`, and is.
    pub(super) null: Option<bool>,
    /// Whether a button removes it.
    pub(super) is_removable: bool,
    pub(super) control: Control,
    pub(super) problems: Vec<String>,
    /// Its place in the input that was read.
    pub(super) place: Option<String>,
}

/// How a value is entered.
#[derive(Clone, Debug)]
pub(super) enum Control {
    Text {
        kind: TextKind,
        value: String,
    },
    Number {
        is_whole: bool,
        value: String,
    },
    /// One of the values.
    Select {
        options: Vec<(Json, String)>,
        choice: Choice,
    },
    /// The only value that is possible.
    Fixed(Json),
    Object {
        members: Vec<Node>,
        entries: Vec<Entry>,
        may_add: bool,
    },
    Array {
        items: Vec<Node>,
        may_add: bool,
    },
    Alternatives {
        names: Vec<String>,
        chosen: Option<usize>,
        inner: Option<Box<Node>>,
    },
    /// The fields are hidden until they are requested.
    Closed,
    /// JSON text; anything that is not JSON is a text.
    Any {
        value: String,
    },
    /// JSON text, and why there are no fields if there are none.
    Raw {
        value: String,
        why: Option<String>,
    },
}

/// What is chosen of several values.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Choice {
    Nothing,
    /// The option with this index.
    Option(usize),
    /// A text that is none of them. No browser sends it, but a program may.
    Other(String),
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum TextKind {
    Line,
    Lines,
    Date,
    Email,
    Address,
    Secret,
    /// Base64, which a browser can make of a file.
    File,
}

/// A member that the schema does not list.
#[derive(Clone, Debug)]
pub(super) struct Entry {
    /// The key, and whether it has its own field.
    pub(super) key: String,
    pub(super) has_field: bool,
    pub(super) node: Node,
}

impl Node {
    /// Returns an input that has no fields.
    pub(super) fn raw(why: &str) -> Self {
        Self {
            path: String::new(),
            label: "Input".to_owned(),
            description: None,
            rules: Vec::new(),
            default: None,
            is_required: true,
            is_strict: true,
            null: None,
            is_removable: false,
            control: Control::Raw { value: String::new(), why: Some(why.to_owned()) },
            problems: Vec::new(),
            place: None,
        }
    }

    pub(super) fn why_raw(&self) -> Option<&str> {
        match &self.control {
            Control::Raw { why, .. } => why.as_deref(),
            _ => None,
        }
    }

    pub(super) fn is_empty(&self) -> bool {
        matches!(&self.control, Control::Object { members, entries, may_add: false } if members.is_empty() && entries.is_empty())
    }

    pub(super) fn has_problems(&self) -> bool {
        !self.problems.is_empty() || self.children().into_iter().any(Self::has_problems)
    }

    pub(super) fn children(&self) -> Vec<&Self> {
        match &self.control {
            Control::Object { members, entries, .. } => {
                members.iter().chain(entries.iter().map(|entry| &entry.node)).collect()
            }
            Control::Array { items, .. } => items.iter().collect(),
            Control::Alternatives { inner, .. } => inner.iter().map(|inner| &**inner).collect(),
            _ => Vec::new(),
        }
    }
}
