//! Published `server.json`, from a stand-in of a registry on this machine: how many orla can read, how many it would install
//! and from what, and why not the rest. Then the stand-in fails, as registries do.
//!
//! The files are those of a folder that the caller has: each is a `server.json`, a list of them, or a page of a registry.

use std::collections::BTreeMap;
use std::fs;
use std::io::{BufRead, BufReader, Write};
use std::net::{TcpListener, TcpStream};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use serde_json::{Value, json};

use crate::parts::QUICK;
use crate::tally::Tally;
use crate::{Outcome, process, server};

/// How long one command may take.
const TIMEOUT: Duration = Duration::from_secs(120);
/// The most servers on a page.
const PAGE: usize = 100;
/// How many reasons are printed.
const REASONS: usize = 40;
/// The server whose bundle the stand-in has itself.
const OWN: &str = "io.example/own";

/// How the stand-in answers.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Mode {
    Good,
    Down,
    Slow,
    WrongHash,
    Endless,
    Private,
    Html,
}

pub(crate) fn run(arguments: &[String]) -> Outcome {
    let (quick, folders): (Vec<&String>, Vec<&String>) =
        arguments.iter().partition(|argument| *argument == QUICK);
    let [folder] = folders[..] else {
        return Err("expected a folder with server.json files".to_owned());
    };
    let binary = server::binary()?;
    let project = crate::target("registry")?;
    fs::write(project.join("orla.yaml"), "log_level: error\n").map_err(|err| err.to_string())?;
    let mut servers = BTreeMap::new();
    let (mut files, mut unread) = (0, 0);
    collect(Path::new(folder), &mut |text| {
        files += 1;
        match serde_json::from_str(text) {
            Ok(json) => add(&json, &mut servers),
            Err(_) => unread += 1,
        }
    })?;
    println!("{files} files, {unread} of them no JSON, {} servers by their names", servers.len());
    let stand_in = StandIn::start(servers)?;
    let orla = Orla { binary, project, url: stand_in.url.clone() };
    count(&orla, &stand_in)?;
    let mut tally = Tally::default();
    for (what, mode, words) in [
        ("a registry that is down", Mode::Down, "503"),
        ("one that answers with a page for people", Mode::Html, "not JSON"),
        ("one that gives another hash than that of the bundle", Mode::WrongHash, "SHA-256"),
        ("one that redirects to a private address", Mode::Private, "private address"),
        ("one that does not answer", Mode::Slow, "does not answer"),
    ] {
        if mode != Mode::Slow || quick.is_empty() {
            stand_in.set(mode);
            tally.check(what, orla.is_refused(&["add", OWN, "--yes"], words));
        }
    }
    stand_in.set(Mode::Endless);
    tally.check("one with pages for ever", orla.is_refused(&["search", "x"], "pages"));
    let is_clean = match orla.project.join("orla.lock").exists() {
        true => Err("orla.lock is there".to_owned()),
        false => Ok(()),
    };
    tally.check("nothing was installed", is_clean);
    Ok(tally.close())
}

/// Prints what would be installed, and why not the rest.
fn count(orla: &Orla, stand_in: &StandIn) -> Result<(), String> {
    let (mut read, mut from, mut reasons) = (0, BTreeMap::new(), BTreeMap::new());
    let names: Vec<String> = stand_in.names();
    for name in &names {
        let text = orla.run(&["search", name, "--json", "--limit", "100"])?.stdout_of_success()?;
        let found: Vec<Value> = serde_json::from_str(&text).map_err(|err| err.to_string())?;
        let Some(row) = found.iter().find(|row| row["name"] == **name) else {
            *reasons.entry("it cannot be read".to_owned()).or_insert(0) += 1;
            continue;
        };
        read += 1;
        match row["from"].as_str() {
            Some(kind) => *from.entry(kind.to_owned()).or_insert(0) += 1,
            None => {
                let why = row["why_not"].as_str().unwrap_or("no reason").replace(name, "it");
                *reasons.entry(why).or_insert(0) += 1;
            }
        }
    }
    let installs: usize = from.values().sum();
    println!("{:>6}  servers", names.len());
    println!("{read:>6}  are read");
    println!(
        "{installs:>6}  resolve to something that is installed, unless it turns out to be a container image:"
    );
    for (kind, count) in &from {
        println!("{count:>14}  {kind}");
    }
    println!("{:>6}  are not installed:", names.len() - installs);
    let mut reasons: Vec<(String, usize)> = reasons.into_iter().collect();
    reasons.sort_by_key(|(_, count)| std::cmp::Reverse(*count));
    for (why, count) in reasons.iter().take(REASONS) {
        println!("{count:>14}  {why}");
    }
    if reasons.len() > REASONS {
        println!("                {} more reasons", reasons.len() - REASONS);
    }
    Ok(())
}

/// Passes the texts of all JSON files below a folder to `take`.
fn collect(folder: &Path, take: &mut impl FnMut(&str)) -> Result<(), String> {
    let problem = |err: std::io::Error| format!("{}: {err}", folder.display());
    for entry in fs::read_dir(folder).map_err(problem)? {
        let path = entry.map_err(problem)?.path();
        if path.is_dir() {
            collect(&path, take)?;
        } else if path.extension().is_some_and(|extension| extension == "json") {
            take(&fs::read_to_string(&path).unwrap_or_default());
        }
    }
    Ok(())
}

/// Adds the servers of a file, the newest of each name last.
fn add(json: &Value, servers: &mut BTreeMap<String, Value>) {
    let list = json.as_array().or_else(|| json["servers"].as_array());
    match (list, json["server"].is_object()) {
        (Some(list), _) => list.iter().for_each(|one| add(one, servers)),
        (None, true) => add(&json["server"], servers),
        (None, false) => {
            if let Some(name) = json["name"].as_str() {
                servers.insert(name.to_owned(), json.clone());
            }
        }
    }
}

/// The program under test.
struct Orla {
    binary: PathBuf,
    project: PathBuf,
    url: String,
}

impl Orla {
    fn run(&self, arguments: &[&str]) -> Result<process::Finished, String> {
        let mut orla = Command::new(&self.binary);
        orla.args(arguments).args(["--registry", &self.url]).current_dir(&self.project);
        for place in ["HOME", "XDG_CACHE_HOME", "XDG_STATE_HOME"] {
            orla.env(place, &self.project);
        }
        process::run(&mut orla, &self.project, TIMEOUT)
    }

    fn is_refused(&self, arguments: &[&str], words: &str) -> Result<(), String> {
        let finished = self.run(arguments)?;
        match !finished.status.success() && finished.stderr.contains(words) {
            true => Ok(()),
            false => Err(format!("{}: {}", finished.status, finished.stderr.trim())),
        }
    }
}

/// A registry on this machine.
struct StandIn {
    url: String,
    state: Arc<State>,
}

struct State {
    servers: BTreeMap<String, Value>,
    mode: Mutex<Mode>,
    hits: AtomicUsize,
}

impl StandIn {
    fn start(mut servers: BTreeMap<String, Value>) -> Result<Self, String> {
        let listener = TcpListener::bind("127.0.0.1:0").map_err(|err| err.to_string())?;
        let url = format!("http://{}", listener.local_addr().map_err(|err| err.to_string())?);
        let package = json!({"registryType": "mcpb", "identifier": format!("{url}/own.mcpb"), "fileSha256": "0".repeat(64), "transport": {"type": "stdio"}});
        let own =
            json!({"name": OWN, "description": "Ours.", "version": "1.0.0", "packages": [package]});
        servers.insert(OWN.to_owned(), own);
        let state = Arc::new(State { servers, mode: Mutex::new(Mode::Good), hits: AtomicUsize::new(0) });
        let serving = Arc::clone(&state);
        std::thread::spawn(move || {
            for stream in listener.incoming().map_while(Result::ok) {
                let state = Arc::clone(&serving);
                std::thread::spawn(move || answer(stream, &state));
            }
        });
        Ok(Self { url, state })
    }

    fn set(&self, mode: Mode) {
        *self.state.mode.lock().unwrap_or_else(PoisonError::into_inner) = mode;
    }

    /// Returns the names of the servers of the folder.
    fn names(&self) -> Vec<String> {
        self.state.servers.keys().filter(|name| *name != OWN).cloned().collect()
    }
}

/// Answers one request.
fn answer(mut stream: TcpStream, state: &State) {
    let Ok(reading) = stream.try_clone() else { return };
    let mut lines = BufReader::new(reading).lines().map_while(Result::ok);
    let first = lines.next().unwrap_or_default();
    lines.find(String::is_empty);
    let mode = *state.mode.lock().unwrap_or_else(PoisonError::into_inner);
    let hit = state.hits.fetch_add(1, Ordering::Relaxed);
    let (status, more, body) = match mode {
        Mode::Slow => {
            // Until the other side has had enough.
            let _ = lines.next();
            return;
        }
        Mode::Down => ("503 Service Unavailable", "", "{}".to_owned()),
        Mode::Html => ("200 OK", "", "<html>sign in</html>".to_owned()),
        Mode::Private => ("302 Found", "location: http://10.1.2.3/\r\n", String::new()),
        Mode::Endless => {
            let page = json!({"servers": [], "metadata": {"nextCursor": hit.to_string()}});
            ("200 OK", "", page.to_string())
        }
        Mode::Good | Mode::WrongHash => {
            let path = decoded(first.split(' ').nth(1).unwrap_or_default());
            match reply(state, &path) {
                Some(body) => ("200 OK", "", body),
                None => ("404 Not Found", "", "{}".to_owned()),
            }
        }
    };
    let head = format!(
        "HTTP/1.1 {status}\r\n{more}connection: close\r\ncontent-length: {}\r\n\r\n{body}",
        body.len()
    );
    let _ = stream.write_all(head.as_bytes());
}

fn reply(state: &State, path: &str) -> Option<String> {
    if path == "/own.mcpb" {
        return Some("no bundle with that hash".to_owned());
    }
    if let Some(query) = path.strip_prefix("/v0.1/servers?") {
        let of = |name: &str| query.split('&').find_map(|pair| pair.strip_prefix(name));
        let words = of("search=").unwrap_or_default().to_lowercase();
        let at: usize = of("cursor=").and_then(|text| text.parse().ok()).unwrap_or_default();
        let size = of("limit=").and_then(|text| text.parse().ok()).unwrap_or(30).min(PAGE);
        let fit = state.servers.iter().filter(|(name, _)| name.to_lowercase().contains(&words));
        let fit: Vec<Value> = fit.map(|(_, server)| json!({"server": server})).collect();
        let next = (at + size < fit.len()).then(|| (at + size).to_string());
        let page: Vec<Value> = fit.into_iter().skip(at).take(size).collect();
        return Some(json!({"servers": page, "metadata": {"nextCursor": next}}).to_string());
    }
    let (name, _) = path.strip_prefix("/v0.1/servers/")?.split_once("/versions/")?;
    Some(json!({"server": state.servers.get(name)?}).to_string())
}

/// Returns the text without the escapes of a URL.
fn decoded(text: &str) -> String {
    let (mut bytes, mut rest) = (Vec::new(), text.as_bytes());
    while let Some((byte, tail)) = rest.split_first() {
        let hex = tail.get(..2).and_then(|hex| std::str::from_utf8(hex).ok());
        let escaped = hex.filter(|_| *byte == b'%').and_then(|hex| u8::from_str_radix(hex, 16).ok());
        bytes.push(escaped.unwrap_or(*byte));
        rest = if escaped.is_some() { &tail[2..] } else { tail };
    }
    String::from_utf8_lossy(&bytes).into_owned()
}
