//! Loads a document and imports it.

use std::io::Read;
use std::path::{Path, PathBuf};
use std::time::Duration;

use futures_util::future::join_all;
use orla_marketplace::Redirects;
use orla_process::file::reason;
use tokio::time::Instant;
use url::Url;

use super::bundle::{Bundle, MAX_BYTES};
use super::document::{Document, Warning};
use super::import::{FETCH_TIMEOUT, Imported, import};
use super::settings::{Location, OpenApiSettings};
use crate::http::HttpExecutor;

/// How many files of one document are fetched at once.
const MAX_CONCURRENT_FETCHES: usize = 8;

/// The reason why a document could not be used. Displayed as `FILE: …`, with line and column if they are
/// known.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{document}: {problem}")]
pub struct ImportError {
    /// The path or address of the document.
    pub document: String,
    /// The problem.
    pub problem: String,
}

/// Reads or fetches a document and the files that it refers to, and makes capabilities from its
/// operations.
///
/// The function may take as long as the settings' timeout (30 s without one). It uses the processor for
/// seconds if the document is very large.
///
/// # Errors
/// The document cannot be read, or is not an OpenAPI document.
pub async fn load(settings: &OpenApiSettings) -> Result<Imported, ImportError> {
    match &settings.document {
        Location::File(path) => {
            let (settings, own) = (settings.clone(), path.clone());
            let read = tokio::task::spawn_blocking(move || {
                let text = read(&own, MAX_BYTES)
                    .map_err(|problem| error(&own.display().to_string(), problem))?;
                import_text(&text, &settings)
            });
            read.await.unwrap_or_else(|_| {
                Err(error(&path.display().to_string(), "reading it failed".to_owned()))
            })
        }
        Location::Url(address) => {
            let url = Url::parse(address).map_err(|err| error(address, err.to_string()))?;
            let shown = crate::http::shown(address);
            let timeout = settings.timeout.unwrap_or(FETCH_TIMEOUT).max(Duration::from_secs(1));
            let document = fetch(&url, timeout).await;
            document
                .and_then(|document| import(&document, settings, &shown, Some(&url)))
                .map_err(|problem| error(&shown, problem))
        }
    }
}

/// Reads or fetches a document and the files that it refers to, as one document without other files. It
/// lacks the files that the warnings name.
///
/// # Errors
/// Those of [`load`].
pub async fn bundled(document: &Location) -> Result<(serde_json::Value, Vec<Warning>), ImportError> {
    let read = match document {
        Location::File(path) => {
            let own = path.clone();
            let read = move || read_document(&read(&own, MAX_BYTES)?, file_url(&own).as_ref());
            let read = tokio::task::spawn_blocking(read).await;
            read.unwrap_or_else(|_| Err("reading it failed".to_owned()))
        }
        Location::Url(address) => match Url::parse(address) {
            Ok(url) => fetch(&url, FETCH_TIMEOUT).await,
            Err(err) => Err(err.to_string()),
        },
    };
    let shown = match document {
        Location::File(path) => path.display().to_string(),
        Location::Url(address) => crate::http::shown(address),
    };
    read.map(Document::into_parts).map_err(|problem| error(&shown, problem))
}

/// Makes capabilities from what [`bundled`] has returned, as [`load`] does. No file is read.
///
/// # Errors
/// It is no such document.
pub fn import_bundled(
    document: &serde_json::Value,
    settings: &OpenApiSettings,
) -> Result<Imported, ImportError> {
    let (source, at) = match &settings.document {
        Location::File(path) => (path.display().to_string(), None),
        Location::Url(address) => (crate::http::shown(address), Url::parse(address).ok()),
    };
    let document = Bundle::new(&document.to_string(), None).and_then(Bundle::finish);
    document
        .and_then(|document| import(&document, settings, &source, at.as_ref()))
        .map_err(|problem| error(&source, problem))
}

/// Fetches a document, and then the files that it refers to, a few at a time.
async fn fetch(url: &Url, timeout: Duration) -> Result<Document, String> {
    let executor = HttpExecutor::new();
    let deadline = Instant::now() + timeout;
    let get = async |url: &Url, redirects, max_bytes| {
        let timeout = deadline.saturating_duration_since(Instant::now());
        let bytes = executor.fetch(url.as_str(), redirects, max_bytes, timeout).await?;
        decoded(&bytes)
    };
    let text = get(url, Redirects::Any, MAX_BYTES).await?;
    let mut bundle = Bundle::new(&text, Some(url))?;
    loop {
        let mut waiting = bundle.take_waiting();
        if waiting.is_empty() {
            return bundle.finish();
        }
        let rest = waiting.split_off(waiting.len().min(MAX_CONCURRENT_FETCHES));
        let max_bytes = bundle.remaining() / waiting.len();
        let texts = join_all(waiting.iter().map(|(_, url)| get(url, Redirects::SameOrigin, max_bytes)));
        for ((name, url), text) in waiting.iter().zip(texts.await) {
            bundle.add(name.clone(), url, text);
        }
        bundle.wait_for(rest);
    }
}

/// Makes capabilities from the text of a document, as [`load`] does. For a document that is a file, the
/// other files are read.
///
/// # Errors
/// It is no such document.
pub fn import_text(text: &str, settings: &OpenApiSettings) -> Result<Imported, ImportError> {
    let (source, at, own) = match &settings.document {
        Location::File(path) => (path.display().to_string(), None, file_url(path)),
        Location::Url(address) => (crate::http::shown(address), Url::parse(address).ok(), None),
    };
    read_document(text, own.as_ref())
        .and_then(|document| import(&document, settings, &source, at.as_ref()))
        .map_err(|problem| error(&source, problem))
}

fn file_url(path: &Path) -> Option<Url> {
    std::path::absolute(path).ok().and_then(|path| Url::from_file_path(path).ok())
}

/// Makes a document of a text and of the files below its directory, if it is the text of the file `own`.
fn read_document(text: &str, own: Option<&Url>) -> Result<Document, String> {
    let mut bundle = Bundle::new(text, own)?;
    let directory = own.and_then(directory_of);
    loop {
        let waiting = bundle.take_waiting();
        if waiting.is_empty() {
            return bundle.finish();
        }
        for (name, url) in waiting {
            let text = read_below(directory.as_deref(), &url, bundle.remaining());
            bundle.add(name, &url, text);
        }
    }
}

/// Returns the directory of a file, without symbolic links.
fn directory_of(file: &Url) -> Option<PathBuf> {
    file.to_file_path().ok()?.parent()?.canonicalize().ok()
}

/// Reads a file below a directory, even if its path has symbolic links.
fn read_below(directory: Option<&Path>, url: &Url, max_bytes: usize) -> Result<String, String> {
    let path = url.to_file_path().map_err(|()| "this is not a path".to_owned())?;
    let path = path.canonicalize().map_err(|err| reason(&err))?;
    match directory {
        Some(directory) if path.starts_with(directory) => read(&path, max_bytes),
        _ => Err("it is outside of the document's directory".to_owned()),
    }
}

fn error(document: &str, problem: String) -> ImportError {
    ImportError { document: document.to_owned(), problem }
}

fn read(path: &Path, max_bytes: usize) -> Result<String, String> {
    // Opening a FIFO would wait for its writer, and a directory has no text.
    if !std::fs::metadata(path).map_err(|err| reason(&err))?.is_file() {
        return Err("it is not a file".to_owned());
    }
    let file = std::fs::File::open(path).map_err(|err| reason(&err))?;
    let mut bytes = Vec::new();
    file.take(max_bytes as u64 + 1).read_to_end(&mut bytes).map_err(|err| reason(&err))?;
    if bytes.len() > max_bytes {
        return Err(format!("it is larger than {max_bytes} bytes"));
    }
    decoded(&bytes)
}

fn decoded(bytes: &[u8]) -> Result<String, String> {
    orla_document::decode(bytes).map(str::to_owned).map_err(|err| err.to_string())
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
        let server = Server::start(|request, to| match request.path() {
            "/api/openapi.json" => answer(to, "200 OK", "", PETS.as_bytes()),
            "/moved" => redirect(to, 301, "/api/openapi.json"),
            _ => answer(to, "404 Not Found", "", b""),
        });
        let imported = loaded(Location::Url(format!("{}/moved", server.url()))).await.unwrap();
        let manifest = &imported.registrations[0].manifest;
        assert_eq!(manifest.id, "pets.list");
        let http: &HttpCapability = manifest.provider.settings().unwrap();
        // The address is relative to the configured one, not to the target of a redirect.
        assert_eq!(http.base_url, format!("{}/v2", server.url()));
        let secret = format!("{}/none.json?token=s3cret", server.url());
        assert_eq!(
            loaded(Location::Url(secret)).await.unwrap_err(),
            format!("{}/none.json: {} answers 404 Not Found", server.url(), server.host())
        );
    }

    #[tokio::test]
    async fn the_files_of_a_document_are_fetched_from_its_origin_alone() {
        let other = Server::start(|_, to| answer(to, "200 OK", "", b"operationId: elsewhere"));
        let elsewhere = format!("{}/x.yml", other.url());
        let document = serde_json::json!({"openapi": "3.0.0", "info": {"title": "Pets"}, "paths": {
            "/a": {"get": {"$ref": "ops/a.yml"}},
            "/b": {"get": {"$ref": elsewhere}},
            "/c": {"get": {"$ref": "ops/moved.yml"}},
            "/d": {"get": {"$ref": "ops/none.yml"}},
        }});
        let document = document.to_string();
        let moved = elsewhere.clone();
        let server = Server::start(move |request, to| match request.path() {
            "/api/openapi.json" => answer(to, "200 OK", "", document.as_bytes()),
            "/api/ops/a.yml" => answer(to, "200 OK", "", b"operationId: a"),
            "/api/ops/moved.yml" => redirect(to, 302, &moved),
            _ => answer(to, "404 Not Found", "", b""),
        });
        let address = format!("{}/api/openapi.json", server.url());
        let imported = loaded(Location::Url(address)).await.unwrap();
        let ids: Vec<_> = imported.registrations.iter().map(|one| one.manifest.id.as_str()).collect();
        assert_eq!(ids, ["pets.a"]);
        let warnings: Vec<_> = imported.warnings.iter().map(ToString::to_string).collect();
        for (warning, words) in warnings.iter().zip([
            "#/paths/~1b/get: http://",
            "#/paths/~1c/get: /api/ops/moved.yml cannot be read: ",
            "#/paths/~1d/get: /api/ops/none.yml cannot be read: ",
        ]) {
            assert!(warning.starts_with(words), "{warning}");
        }
        assert!(warnings[0].contains("leads out of the document's directory or origin"), "{warnings:?}");
        assert!(warnings[1].contains("another origin"), "{warnings:?}");
        assert_eq!(warnings.len(), 3, "{warnings:?}");
        assert!(other.requests().is_empty(), "nothing is fetched from another origin");
    }

    #[tokio::test]
    async fn unreadable_documents_are_named_with_the_reason() {
        let dir = tempfile::tempdir().unwrap();
        let write = |name: &str, content: &[u8]| {
            let path = dir.path().join(name);
            std::fs::write(&path, content).unwrap();
            path
        };
        let cases = [
            (dir.path().join("none.yaml"), "No such file or directory"),
            (dir.path().to_owned(), "it is not a file"),
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
            "#/paths/~1pets/get: its server is \"../v2\": set base_url to the address for requests; the operation is left out"
        );
    }
}
