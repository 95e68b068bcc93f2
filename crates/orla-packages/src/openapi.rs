//! An OpenAPI document as an archive, which is locked like any other. No I/O.

use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::archive::{File, assemble};

/// The name of the document in the archive.
pub const DOCUMENT: &str = "orla-openapi.json";
/// The maximum size of the document, in bytes.
pub const MAX_DOCUMENT: usize = 65 << 20;

/// An OpenAPI document, with all files that it refers to.
#[derive(Clone, Debug, Deserialize, PartialEq, Serialize)]
#[serde(deny_unknown_fields)]
pub struct OpenApi {
    /// Its address, if it has one: servers may be relative to it.
    pub url: Option<String>,
    /// The document.
    pub document: Value,
}

impl OpenApi {
    /// Parses the document.
    ///
    /// # Errors
    /// It is not such a document.
    pub fn read(text: &[u8]) -> Result<Self, String> {
        serde_json::from_slice(text).map_err(|error| format!("{DOCUMENT}: {error}"))
    }

    /// Returns the archive, which is equal for equal documents.
    ///
    /// # Errors
    /// It is too large.
    pub fn archive(&self) -> Result<Vec<u8>, String> {
        let content = serde_json::to_vec(self).map_err(|error| error.to_string())?;
        if content.len() > MAX_DOCUMENT {
            return Err(format!("it has more than {} MiB", MAX_DOCUMENT >> 20));
        }
        let file = File { name: DOCUMENT.to_owned(), is_executable: false, content };
        assemble(&[file]).map_err(|error| error.to_string())
    }

    /// Returns a text of the document's `info`.
    pub fn info(&self, key: &str) -> &str {
        let text = self.document.get("info").and_then(|info| info.get(key)?.as_str());
        text.unwrap_or_default()
    }
}
