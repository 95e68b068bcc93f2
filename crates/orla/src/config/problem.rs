//! What is wrong with a configuration, and where.

use std::fmt;
use std::path::{Path, PathBuf};

use orla_document::Position;
use orla_marketplace::Redactor;

/// One thing that is wrong with the configuration, and where.
///
/// Reads `tool_dir: unknown key, did you mean tools_dir? at orla.yaml:3:1`.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Problem {
    /// Sorts problems in the order of the file.
    at: Option<(PathBuf, Position)>,
    text: String,
}

impl Problem {
    pub(crate) fn new(text: String) -> Self {
        Self { at: None, text }
    }

    pub(crate) fn at(path: &Path, at: Position, text: String) -> Self {
        Self { at: Some((path.to_owned(), at)), text }
    }

    /// Replaces secrets in the text.
    pub(super) fn redact(&mut self, redactor: &Redactor) {
        self.text = redactor.text(&self.text).into_owned();
    }
}

impl fmt::Display for Problem {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.text)?;
        match &self.at {
            Some((path, at)) => write!(f, " at {}:{}:{}", path.display(), at.line, at.column),
            None => Ok(()),
        }
    }
}
