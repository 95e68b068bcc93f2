//! A registry of MCP servers on this machine, which can fail in all the ways that a registry can.

use std::collections::BTreeMap;
use std::io::{BufRead, BufReader, Write};
use std::net::{TcpListener, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use parking_lot::Mutex;
use serde_json::{Value, json};

/// How it answers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Mode {
    Ok,
    /// With the status 500.
    Fails,
    Html,
    /// The bundle is another than the one with the digest.
    OtherBytes,
    OtherName,
    /// With half of its bodies.
    Cut,
    /// Redirects to itself, endlessly.
    Redirects,
    RedirectsTo(&'static str),
    BundleAt(&'static str),
    /// With pages that have a next one each.
    Endless,
}

#[derive(Debug)]
struct State {
    mode: Mode,
    /// By name: the servers, from the oldest.
    servers: BTreeMap<String, Vec<Value>>,
    files: BTreeMap<String, Vec<u8>>,
    /// Whether paths below `/v2/` require a token, which every client can get.
    wants_token: bool,
}

/// The token of the substitute registry.
const TOKEN: &str = "anonymous-token";

#[derive(Debug)]
pub(crate) struct Registry {
    state: Arc<Mutex<State>>,
    hits: Arc<AtomicUsize>,
    listener: TcpListener,
}

impl Registry {
    pub(crate) fn start() -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
        let state = State {
            mode: Mode::Ok,
            servers: BTreeMap::new(),
            files: BTreeMap::new(),
            wants_token: false,
        };
        let registry = Self { state: Arc::new(Mutex::new(state)), hits: Arc::default(), listener };
        let (state, hits) = (Arc::clone(&registry.state), Arc::clone(&registry.hits));
        let (accepting, url) = (registry.listener.try_clone().expect("a listener"), registry.url());
        std::thread::spawn(move || {
            for stream in accepting.incoming() {
                let Ok(stream) = stream else { return };
                let number = hits.fetch_add(1, Ordering::Relaxed);
                if url.is_empty() || answer(stream, &state.lock(), &url, number).is_none() {
                    return;
                }
            }
        });
        registry
    }

    pub(crate) fn url(&self) -> String {
        format!("http://{}", self.listener.local_addr().expect("an address"))
    }

    pub(crate) fn hits(&self) -> usize {
        self.hits.load(Ordering::Relaxed)
    }

    pub(crate) fn set(&self, mode: Mode) {
        self.state.lock().mode = mode;
    }

    /// Returns the host and the port, as references of OCI have them.
    pub(crate) fn host(&self) -> String {
        self.url().trim_start_matches("http://").to_owned()
    }

    /// Requires a token below `/v2/`, which every client can get.
    pub(crate) fn want_token(&self) {
        let mut state = self.state.lock();
        state.wants_token = true;
        let path = "/token?service=registry&scope=repository%3Aacme%2Ftools%3Apull";
        let answer = json!({"token": TOKEN}).to_string().into_bytes();
        state.files.insert(path.to_owned(), answer);
    }

    /// Serves a file.
    pub(crate) fn serve(&self, path: &str, content: &[u8]) {
        self.state.lock().files.insert(path.to_owned(), content.to_vec());
    }

    /// Adds a version of a server, which is a package.
    pub(crate) fn add_package(&self, name: &str, version: &str, package: &Value) {
        let server =
            json!({"name": name, "description": "Weather.", "version": version, "packages": [package]});
        self.state.lock().servers.entry(name.to_owned()).or_default().push(server);
    }

    /// Adds a version of a server, as it was published.
    pub(crate) fn add_server(&self, server: &Value) {
        let name = server["name"].as_str().expect("it has a name").to_owned();
        self.state.lock().servers.entry(name).or_default().push(server.clone());
    }

    /// Adds a version of a server that runs elsewhere.
    pub(crate) fn add_remote(&self, name: &str, version: &str, remotes: &Value) {
        let server =
            json!({"name": name, "description": "Far.", "version": version, "remotes": remotes});
        self.state.lock().servers.entry(name.to_owned()).or_default().push(server);
    }

    /// Adds a version of a server, which is a bundle.
    pub(crate) fn add(&self, name: &str, version: &str, bundle: &[u8]) {
        let file = format!("/files/{version}.mcpb");
        let package = json!({
            "registryType": "mcpb", "identifier": format!("{}{file}", self.url()), "version": version,
            "fileSha256": sha256(bundle), "transport": {"type": "stdio"},
        });
        self.serve(&file, bundle);
        self.add_package(name, version, &package);
    }
}

impl Drop for Registry {
    fn drop(&mut self) {
        // The thread ends at a request of this kind, and its listener closes.
        if let Ok(mut stream) = TcpStream::connect(self.listener.local_addr().expect("an address")) {
            let _ = stream.write_all(b"END\r\n\r\n");
            let _ = std::io::copy(&mut stream, &mut std::io::sink());
        }
    }
}

/// Returns the SHA-256 in hexadecimal digits.
pub(crate) fn sha256(bytes: &[u8]) -> String {
    let digest = ring::digest::digest(&ring::digest::SHA256, bytes);
    digest.as_ref().iter().map(|byte| format!("{byte:02x}")).collect()
}

/// Answers one request. `None` if it is the last one.
fn answer(stream: TcpStream, state: &State, url: &str, number: usize) -> Option<()> {
    let mut lines = BufReader::new(stream.try_clone().ok()?).lines();
    let first = lines.next().and_then(Result::ok).unwrap_or_default();
    let mut has_token = false;
    for line in lines.map_while(Result::ok) {
        if line.is_empty() {
            break;
        }
        has_token |= line.eq_ignore_ascii_case(&format!("authorization: Bearer {TOKEN}"));
    }
    if first == "END" {
        return None;
    }
    let asked = first.split(' ').nth(1).unwrap_or_default();
    let path = if asked.starts_with("/token") { asked.to_owned() } else { asked.replace("%2F", "/") };
    let is_refused = state.wants_token && path.starts_with("/v2/") && !has_token;
    let (status, body) = match is_refused {
        true => ("401 Unauthorized", b"{}".to_vec()),
        false => reply(state, &path, url, number),
    };
    let mut head = format!("HTTP/1.1 {status}\r\nconnection: close\r\n");
    match state.mode {
        Mode::Redirects => head.push_str(&format!("location: {url}{path}\r\n")),
        Mode::RedirectsTo(place) => head.push_str(&format!("location: {place}\r\n")),
        _ => {}
    }
    if is_refused {
        head.push_str(&format!(
            "www-authenticate: Bearer realm=\"{url}/token\",service=\"registry\",scope=\"repository:acme/tools:pull\"\r\n"
        ));
    }
    if path.starts_with("/simple/") {
        let is_json = body.starts_with(b"{");
        let kind = if is_json { "application/vnd.pypi.simple.v1+json" } else { "text/html" };
        head.push_str(&format!("content-type: {kind}\r\n"));
    }
    head.push_str(&format!("content-length: {}\r\n\r\n", body.len()));
    let sent = if state.mode == Mode::Cut { &body[..body.len() / 2] } else { &body[..] };
    let mut stream = stream;
    let _ = stream.write_all(head.as_bytes()).and_then(|()| stream.write_all(sent));
    Some(())
}

fn reply(state: &State, path: &str, url: &str, number: usize) -> (&'static str, Vec<u8>) {
    match state.mode {
        Mode::Fails => return ("500 Internal Server Error", b"oops".to_vec()),
        Mode::Html => return ("200 OK", b"<html>sign in</html>".to_vec()),
        Mode::Redirects | Mode::RedirectsTo(_) => return ("302 Found", Vec::new()),
        _ => {}
    }
    if let Some(file) = state.files.get(path) {
        let other = [&file[..], b"more"].concat();
        return ("200 OK", if state.mode == Mode::OtherBytes { other } else { file.clone() });
    }
    let page = |servers: Vec<&Value>, next: Option<String>| {
        let servers: Vec<Value> = servers.into_iter().map(|server| json!({"server": server})).collect();
        json!({"servers": servers, "metadata": {"nextCursor": next}}).to_string().into_bytes()
    };
    if let Some(query) = path.strip_prefix("/v0.1/servers?") {
        let cursor = query.split("cursor=").nth(1).and_then(|rest| rest.parse().ok()).unwrap_or(0_usize);
        if state.mode == Mode::Endless {
            return ("200 OK", page(Vec::new(), Some(number.to_string())));
        }
        let latest: Vec<&Value> =
            state.servers.values().filter_map(|versions| versions.last()).collect();
        let next = (cursor + 1 < latest.len()).then(|| (cursor + 1).to_string());
        return ("200 OK", page(latest.into_iter().skip(cursor).take(1).collect(), next));
    }
    let rest = path.strip_prefix("/v0.1/servers/").unwrap_or_default();
    let found = rest.split_once("/versions/").and_then(|(name, version)| {
        let versions = state.servers.get(name)?;
        match version {
            "latest" => versions.last(),
            version => versions.iter().find(|server| server["version"] == version),
        }
    });
    let Some(server) = found else { return ("404 Not Found", b"{}".to_vec()) };
    let mut server = server.clone();
    match state.mode {
        Mode::OtherName => server["name"] = json!("io.github.evil/weather"),
        Mode::BundleAt(place) => server["packages"][0]["identifier"] = json!(place),
        _ => {}
    }
    let _ = url;
    ("200 OK", json!({"server": server}).to_string().into_bytes())
}
