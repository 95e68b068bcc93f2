//! The embedded files: htmx with its extension for server-sent events, our script, our stylesheet. A
//! file's address contains the hash of its content, so that browsers can cache it forever.

use std::io::Write;
use std::sync::LazyLock;

use bytes::Bytes;
use flate2::Compression;
use flate2::write::GzEncoder;
use http::{HeaderMap, HeaderValue, Response, StatusCode, header};
use orla_server::PageBody;
use ring::digest::{SHA256, digest};

use super::reply;

/// Where they are.
pub(crate) const PATH: &str = "/console/assets/";

/// One file.
pub(crate) struct Asset {
    name: &'static str,
    kind: &'static str,
    content: &'static [u8],
    hash: String,
    compressed: Bytes,
}

macro_rules! asset {
    ($name:literal, $kind:literal) => {
        Asset::new($name, $kind, include_bytes!(concat!("../../assets/", $name)))
    };
}

static ASSETS: LazyLock<[Asset; 5]> = LazyLock::new(|| {
    [
        asset!("htmx.js", "text/javascript; charset=utf-8"),
        asset!("hx-sse.js", "text/javascript; charset=utf-8"),
        asset!("console.js", "text/javascript; charset=utf-8"),
        asset!("console.css", "text/css; charset=utf-8"),
        asset!("icon.svg", "image/svg+xml"),
    ]
});

impl Asset {
    fn new(name: &'static str, kind: &'static str, content: &'static [u8]) -> Self {
        let hash = hex::encode(&digest(&SHA256, content).as_ref()[..8]);
        let mut encoder = GzEncoder::new(Vec::new(), Compression::best());
        // Writing to memory does not fail; without the compressed form, the plain one is sent.
        let compressed = encoder.write_all(content).and_then(|()| encoder.finish()).unwrap_or_default();
        Self { name, kind, content, hash, compressed: compressed.into() }
    }
}

/// Returns the address of a file.
pub(crate) fn address(name: &str) -> String {
    let asset = ASSETS.iter().find(|asset| asset.name == name);
    asset.map_or_else(String::new, |asset| format!("{PATH}{}-{name}", asset.hash))
}

/// Answers the request for a file.
pub(crate) fn answer(path: &str, headers: &HeaderMap) -> Response<PageBody> {
    let wanted = path.strip_prefix(PATH).unwrap_or_default();
    let is = |asset: &&Asset| wanted.strip_suffix(asset.name) == Some(&format!("{}-", asset.hash));
    let Some(asset) = ASSETS.iter().find(is) else { return reply::missing() };
    let accepts = headers.get(header::ACCEPT_ENCODING).and_then(|value| value.to_str().ok());
    let accepts =
        accepts.is_some_and(|value| value.split(',').any(|word| word.trim().starts_with("gzip")));
    let is_compressed = accepts && !asset.compressed.is_empty();
    let body = match is_compressed {
        true => asset.compressed.clone(),
        false => Bytes::from_static(asset.content),
    };
    let mut response = reply::of(StatusCode::OK, asset.kind, body);
    let headers = response.headers_mut();
    headers
        .insert(header::CACHE_CONTROL, HeaderValue::from_static("public, max-age=31536000, immutable"));
    headers.insert(header::VARY, HeaderValue::from_static("accept-encoding"));
    if is_compressed {
        headers.insert(header::CONTENT_ENCODING, HeaderValue::from_static("gzip"));
    }
    response
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_first_page_is_light() {
        let files: usize = ASSETS.iter().map(|asset| asset.compressed.len()).sum();
        assert!(files < 40_000, "{files}");
    }

    #[test]
    fn a_file_is_found_by_its_hash_alone() {
        let status = |path: &str| answer(path, &HeaderMap::new()).status();
        assert_eq!(status(&address("htmx.js")), StatusCode::OK);
        assert_eq!(status("/console/assets/0-htmx.js"), StatusCode::NOT_FOUND);
        assert_eq!(status("/console/assets/htmx.js"), StatusCode::NOT_FOUND);
    }
}
