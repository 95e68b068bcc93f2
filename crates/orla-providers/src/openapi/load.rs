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

#[cfg(test)]
mod tests {
    use orla_marketplace::HttpCapability;

    use super::*;
    use crate::http::test_server::{Server, answer, redirect};

    const PETS: &str = r#"{"openapi": "3.1.0", "info": {"title": "Pets"}, "servers": [{"url": "../v2"}],
        "paths": {"/pets": {"get": {"operationId": "list"}}}}"#;

    async fn loaded(document: Location) -> Result<Imported, String> {
        load(&OpenApiSettings::new(document)).await.map_err(|err| err.to_string())
    }

    #[tokio::test]
    async fn a_document_is_fetched_and_its_server_is_relative_to_it() {
        let server = Server::start(|asked, to| match asked.path() {
            "/api/openapi.json" => answer(to, "200 OK", "", PETS.as_bytes()),
            "/moved" => redirect(to, 301, "/api/openapi.json"),
            _ => answer(to, "404 Not Found", "", b""),
        });
        let imported = loaded(Location::Url(format!("{}/moved", server.url()))).await.unwrap();
        let manifest = &imported.registrations[0].manifest;
        assert_eq!(manifest.id, "pets.list");
        let http: &HttpCapability = manifest.provider.settings().unwrap();
        // Relative to the configured address, not to where that redirects.
        assert_eq!(http.base_url, format!("{}/v2", server.url()));
        let secret = format!("{}/none.json?token=s3cret", server.url());
        assert_eq!(
            loaded(Location::Url(secret)).await.unwrap_err(),
            format!("{}/none.json: {} answers 404 Not Found", server.url(), server.host())
        );
    }

    #[tokio::test]
    async fn what_cannot_be_read_says_which_and_why() {
        let dir = tempfile::tempdir().unwrap();
        let write = |name: &str, content: &[u8]| {
            let path = dir.path().join(name);
            std::fs::write(&path, content).unwrap();
            path
        };
        let cases = [
            (dir.path().join("none.yaml"), "No such file or directory"),
            (dir.path().to_owned(), "it is no file"),
            (write("broken.yaml", b"a: [1\nb: 2"), "2:2: "),
            (write("latin.yaml", b"openapi: \xfc"), "1:10: not UTF-8 (at byte 9)"),
            (write("old.json", br#"{"swagger": "2.0"}"#), "this is Swagger 2.0"),
        ];
        for (path, problem) in cases {
            let error = loaded(Location::File(path.clone())).await.unwrap_err();
            assert!(error.starts_with(&format!("{}: {problem}", path.display())), "{error}");
        }
        let good = write("pets.json", PETS.as_bytes());
        let imported = loaded(Location::File(good)).await.unwrap();
        assert_eq!(
            imported.warnings[0].to_string(),
            "#/paths/~1pets/get: its server is \"../v2\": say with base_url where requests go; the operation is left out"
        );
    }
}
