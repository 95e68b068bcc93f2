//! Fetches the signatures of packages of npm and PyPI, and verifies them.

use orla_packages::environment::Requirement;
use orla_packages::signature::{Signer, Verifier, npm_bundles, pypi_bundles, pypi_provenance};
use orla_packages::source::{Source, pypi_name};
use orla_packages::{Fetch, FetchError, Wanted};
use reqwest::Url;
use serde_json::Value;

use super::environments;
use super::fetch::Http;
use crate::Failure;
use crate::config::Config;

/// The index of Python packages, unless pip's settings name another one.
const PYPI: &str = "https://pypi.org/simple";
/// The format of an index that names the provenance of files.
const PYPI_JSON: &str = "application/vnd.pypi.simple.v1+json";
/// The maximum size of a document about signatures, in bytes.
const MAX_DOCUMENT: usize = 8 << 20;

/// Returns the signer of a program: of its own archive, not of those that it requires. `None` if it is
/// not signed, or comes from a source whose signatures orla cannot verify.
///
/// # Errors
///
/// Returns an error if its signature is not valid or cannot be fetched.
pub(super) async fn signer(
    program: &Source,
    requires: &[String],
    config: &Config,
) -> Result<Option<Signer>, Failure> {
    let at = |why: String| Failure::failed(format!("{program}: {why}"));
    let is_own = |one: &Requirement| match program {
        Source::Npm { name, .. } => one.is_npm_program(name),
        Source::Pypi { name, .. } => one.is_pypi_program(name),
        _ => false,
    };
    let mut own = requires.iter().filter_map(|text| Requirement::parse(text)).filter(is_own);
    let Some(archive) = own.next() else { return Ok(None) };
    let bundles = match program {
        Source::Npm { .. } => of_npm(&archive).await.map_err(at)?,
        _ => of_pypi(&archive).await.map_err(at)?,
    };
    let verifier = Verifier::new(config.packages.trusted_root.as_deref())
        .map_err(|why| Failure::failed(format!("packages.trusted_root: {why}")))?;
    verifier.verify(&bundles, &archive).map_err(at)
}

async fn of_npm(archive: &Requirement) -> Result<Vec<Value>, String> {
    let Some(url) = environments::npm_attestations(&archive.name, &archive.version)? else {
        return Ok(Vec::new());
    };
    npm_bundles(&get(&url, None, None).await.map_err(|error| error.to_string())?)
}

async fn of_pypi(archive: &Requirement) -> Result<Vec<Value>, String> {
    let index = environments::pip_index()?.unwrap_or_else(|| PYPI.to_owned());
    let project = format!("{}/{}/", index.trim_end_matches('/'), pypi_name(&archive.name));
    let described = match get(&project, None, Some(PYPI_JSON)).await {
        Ok(described) => described,
        // It came from elsewhere, such as a directory of wheels.
        Err(FetchError::Missing(_)) => return Ok(Vec::new()),
        Err(error) => return Err(error.to_string()),
    };
    let Some(provenance) = pypi_provenance(&described, &archive.digest) else { return Ok(Vec::new()) };
    let provenance = Url::parse(&project).and_then(|project| project.join(&provenance));
    let provenance = provenance.map_err(|error| format!("the URL of its provenance: {error}"))?;
    let document = get(provenance.as_str(), Some(&project), None).await;
    pypi_bundles(&document.map_err(|error| error.to_string())?)
}

async fn get(url: &str, named_by: Option<&str>, accept: Option<&str>) -> Result<Vec<u8>, FetchError> {
    Http.get_with(Wanted { url, named_by, max: MAX_DOCUMENT, accept, token: None }).await
}
