//! Gets a document and imports it.

use std::io::Read;
use std::path::Path;
use std::time::Duration;

use url::Url;

use super::import::{Imported, PATIENCE, import};
use super::settings::{Location, OpenApiSettings};
use crate::http::HttpExecutor;

/// The largest document, in bytes.
const MAX_BYTES: usize = 64 * 1024 * 1024;

/// Why a document gave nothing. Reads `FILE: …`, with line and column where they are known.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{document}: {problem}")]
pub struct ImportError {
    /// Where the document is.
    pub document: String,
    /// What is wrong.
    pub problem: String,
}

/// Reads or fetches a document and makes capabilities of its operations.
///
/// It may take as long as the settings' timeout (30 s without one), and uses the processor for up to
/// seconds where the document is very large.
///
/// # Errors
/// The document cannot be had, or is none.
pub async fn load(settings: &OpenApiSettings) -> Result<Imported, ImportError> {
    let (text, source, at) = match &settings.document {
        Location::File(path) => {
            let source = path.display().to_string();
            let own = path.clone();
            let read = tokio::task::spawn_blocking(move || read(&own)).await;
            let text = read.unwrap_or_else(|_| Err("it could not be read".to_owned()));
            (text.map_err(|problem| error(&source, problem))?, source, None)
        }
        Location::Url(address) => {
            let url = Url::parse(address).map_err(|err| error(address, err.to_string()))?;
            let patience = settings.timeout.unwrap_or(PATIENCE).max(Duration::from_secs(1));
            let bytes = HttpExecutor::new().fetch(address, MAX_BYTES, patience).await;
            let text = bytes.and_then(|bytes| decoded(&bytes));
            let shown = crate::http::shown(address);
            (text.map_err(|problem| error(&shown, problem))?, shown, Some(url))
        }
    };
    import(&text, settings, &source, at.as_ref()).map_err(|problem| error(&source, problem))
}

/// Makes capabilities of the text of a document that is at hand, as [`load`] does.
///
/// # Errors
/// It is no such document.
pub fn import_text(text: &str, settings: &OpenApiSettings) -> Result<Imported, ImportError> {
    let (source, at) = match &settings.document {
        Location::File(path) => (path.display().to_string(), None),
        Location::Url(address) => (crate::http::shown(address), Url::parse(address).ok()),
    };
    import(text, settings, &source, at.as_ref()).map_err(|problem| error(&source, problem))
}

fn error(document: &str, problem: String) -> ImportError {
    ImportError { document: document.to_owned(), problem }
}

fn read(path: &Path) -> Result<String, String> {
    let file = std::fs::File::open(path).map_err(|err| reason(&err))?;
    // A fifo would never end, and a directory never begin.
    if !file.metadata().map_err(|err| reason(&err))?.is_file() {
        return Err("it is no file".to_owned());
    }
    let mut bytes = Vec::new();
    file.take(MAX_BYTES as u64 + 1).read_to_end(&mut bytes).map_err(|err| reason(&err))?;
    if bytes.len() > MAX_BYTES {
        return Err(format!("it is larger than {MAX_BYTES} bytes"));
    }
    decoded(&bytes)
}

fn decoded(bytes: &[u8]) -> Result<String, String> {
    orla_process::document::decode(bytes).map(str::to_owned).map_err(|err| err.to_string())
}

fn reason(err: &std::io::Error) -> String {
    let text = err.to_string();
    text.split(" (os error").next().unwrap_or(&text).to_owned()
}
