//! A server with a tool for each language and permission set, and calls of it.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::os::unix::fs::PermissionsExt as _;
use std::os::unix::process::CommandExt as _;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::time::Duration;

use serde_json::{Map, Value, json};

use super::host::{self, Sockets};
use super::probes::{self, Probe};
use crate::bench::client::{self, Connection};
use crate::endure::watch::until;
use crate::server::Server;

/// Where the programs of a system are, for users who have nothing else.
const SYSTEM_PATH: &str = "/usr/local/bin:/usr/bin:/bin";

/// What the error says of a tool that cannot be confined to what it declares.
pub(super) const UNAVAILABLE: &str = "cannot be confined as declared";

/// Who runs the server.
#[derive(Clone, Copy)]
pub(super) struct Account {
    /// `root` or `user`.
    pub(super) name: &'static str,
    /// Whom to become, and their group.
    pub(super) ids: Option<(u32, u32)>,
}

/// Returns the accounts that this process can run a server as.
pub(super) fn accounts() -> Vec<Account> {
    let user = |ids| Account { name: "user", ids };
    match rustix::process::geteuid().is_root() {
        true => vec![Account { name: "root", ids: None }, user(Some((1000, 1000)))],
        false => vec![user(None)],
    }
}

impl Account {
    /// Has a command run as this user, with a small environment.
    pub(super) fn command(self, program: &Path, home: &Path) -> Command {
        let mut command = Command::new(program);
        let more = std::env::var("PATH").unwrap_or_default();
        // A user of another account cannot reach what is installed for this one.
        let path = match self.ids {
            Some(_) => SYSTEM_PATH.to_owned(),
            None => format!("{SYSTEM_PATH}:{more}"),
        };
        command.env_clear().env("PATH", path).env("HOME", home);
        if let Some((uid, gid)) = self.ids {
            // Clears the other groups as well.
            command.uid(uid).gid(gid);
        }
        command
    }
}

/// A language that probes are written in.
#[derive(Clone)]
pub(super) struct Language {
    pub(super) name: &'static str,
    /// The end of its files' names.
    extension: &'static str,
    /// A program, whole.
    pub(super) program: Vec<u8>,
}

/// Returns the languages that are available here, and prints which are missing.
pub(super) fn languages(scratch: &Path) -> Result<Vec<Language>, String> {
    let mut all = Vec::new();
    match compile("probe.c", scratch) {
        Ok(program) => {
            let program = fs::read(program).map_err(|err| err.to_string())?;
            all.push(Language { name: "c", extension: "", program });
        }
        Err(problem) => println!("      no probes in C: {problem}"),
    }
    for (name, extension, program, text) in [
        ("sh", ".sh", "sh", include_str!("../../fixtures/sandbox/probe.sh")),
        ("py", ".py", "python3", include_str!("../../fixtures/sandbox/probe.py")),
        ("node", ".mjs", "node", include_str!("../../fixtures/sandbox/probe.mjs")),
    ] {
        match find(program) {
            Some(path) => {
                let text = text.strip_prefix("#!/bin/sh\n").unwrap_or(text);
                let program = format!("#!{}\n{text}", path.display()).into_bytes();
                all.push(Language { name, extension, program });
            }
            None => println!("      no probes for {program}: it is not in {SYSTEM_PATH} nor in PATH"),
        }
    }
    Ok(all)
}

/// The library that gives `orla` a resolver of its own, beside it.
pub(super) const RESOLVER: &str = "resolver.so";

/// Returns a program in C of the fixtures, compiled statically.
pub(super) fn compile(source: &str, scratch: &Path) -> Result<PathBuf, String> {
    let program = scratch.join(Path::new(source).file_stem().unwrap_or_default());
    cc(source, &["-static"], &program)?;
    Ok(program)
}

/// Gives the copy of `orla` in this folder a name whose address changes with each lookup, if there is cc. A static `orla` does
/// not have it.
pub(super) fn change_resolver(scratch: &Path) -> Result<(), String> {
    cc("resolver.c", &["-shared", "-fPIC"], &scratch.join(RESOLVER))
}

fn cc(source: &str, flags: &[&str], output: &Path) -> Result<(), String> {
    let source = crate::root().join("xtask/fixtures/sandbox").join(source);
    let mut cc = Command::new("cc");
    cc.arg("-O1").args(flags).arg("-o").arg(output).arg(&source);
    let output = cc.output().map_err(|err| format!("cc: {err}"))?;
    match output.status.success() {
        true => Ok(()),
        false => Err(format!("cc: {}", String::from_utf8_lossy(&output.stderr).trim())),
    }
}

fn find(program: &str) -> Option<PathBuf> {
    let path = format!("{SYSTEM_PATH}:{}", std::env::var("PATH").unwrap_or_default());
    path.split(':').map(|folder| Path::new(folder).join(program)).find(|path| path.is_file())
}

/// What came of one call with probes.
pub(super) enum Called {
    /// What each probe said.
    Outcomes(BTreeMap<String, String>),
    /// The capability is unavailable.
    Unavailable,
    /// The call was ended by a limit, of this name.
    Ended(String),
}

/// A server, and the host around it.
pub(super) struct World {
    pub(super) base: PathBuf,
    pub(super) server: Server,
    account: Account,
    sockets: Sockets,
    victim: Child,
}

impl Drop for World {
    fn drop(&mut self) {
        let _ = self.victim.kill();
        let _ = self.victim.wait();
    }
}

impl World {
    /// Returns a server in the empty folder `base`, of which the account runs a copy of `orla`, through
    /// `wrapper` if there is one.
    pub(super) fn start(
        orla: &Path,
        base: &Path,
        account: Account,
        languages: &[Language],
        wrapper: &[&str],
    ) -> Result<Self, String> {
        let problem = |err: std::io::Error| format!("{}: {err}", base.display());
        host::reset_files(base, None).map_err(problem)?;
        let sockets = Sockets::open(base).map_err(problem)?;
        let mut tools = Map::new();
        for set in probes::SETS.into_iter().chain([probes::NEIGHBOUR]) {
            for language in languages {
                let name = tool(language, set);
                let path = base.join("tools").join(format!("{name}{}", language.extension));
                executable(&path, &language.program)?;
                tools.insert(name, probes::declaration(set, base, sockets.port));
            }
        }
        // JSON is YAML.
        let configuration = json!({"tools": tools, "max_concurrency": 16}).to_string();
        fs::write(base.join("orla.yaml"), configuration).map_err(problem)?;
        host::reset_files(base, account.ids).map_err(problem)?;
        let mut victim = account.command(Path::new("sleep"), base);
        let victim = victim.arg("100000").stdin(Stdio::null()).spawn().map_err(problem)?;
        let server = serve(orla, base, account, wrapper)?;
        Ok(Self { base: base.to_owned(), server, account, sockets, victim })
    }

    /// Runs probes in one call of the tool of this language and set. Says also what this changed on the host that the set may not
    /// change.
    pub(super) fn probe(
        &self,
        language: &Language,
        set: &str,
        probes: &[&Probe],
    ) -> Result<(Called, Vec<String>), String> {
        let problem = |err: std::io::Error| err.to_string();
        host::reset_files(&self.base, self.account.ids).map_err(problem)?;
        let (files, counts) = (host::outside(&self.base).map_err(problem)?, self.sockets.counts());
        let called = self.call(language, set, probes)?;
        if set == probes::OPEN {
            return Ok((called, Vec::new()));
        }
        let now = host::outside(&self.base).map_err(problem)?;
        let paths: BTreeSet<&String> = files.keys().chain(now.keys()).collect();
        let changed = paths.into_iter().filter(|path| files.get(*path) != now.get(*path));
        let mut harm: Vec<String> = changed.map(|path| format!("{path} was changed")).collect();
        for (socket, count) in self.sockets.counts() {
            if count > counts[socket] && !probes::may_reach(set, socket) {
                harm.push(format!("the socket {socket} was reached"));
            }
        }
        if until(Duration::from_secs(1), "daemons end", || host::daemons(&self.base).is_empty()).is_err()
        {
            harm.push("a process was left".to_owned());
        }
        Ok((called, harm))
    }

    /// Runs probes in one call.
    pub(super) fn call(
        &self,
        language: &Language,
        set: &str,
        probes: &[&Probe],
    ) -> Result<Called, String> {
        let mut input: BTreeMap<&str, String> = self.sockets.places.clone();
        let at = |name: &str| self.base.join(name).display().to_string();
        let names: Vec<&str> = probes.iter().map(|probe| probe.name).collect();
        input.extend([
            ("probes", names.join(" ")),
            ("base", self.base.display().to_string()),
            ("in", at("in")),
            ("work", at("work")),
            ("other", at("other")),
            ("run", at("run")),
            ("victim", self.victim.id().to_string()),
            ("server", self.server.pid().to_string()),
            ("port", self.server.address.rsplit(':').next().unwrap_or_default().to_owned()),
        ]);
        let arguments = json!({"stdin": json!(input).to_string()});
        let called = call(&self.server.address, &tool(language, set), &arguments)?;
        if called["isError"] == true {
            let text = text(&called);
            if text.contains(UNAVAILABLE) {
                return Ok(Called::Unavailable);
            }
            if let Some((_, limit)) = text.split_once("limit of ") {
                let name = limit.split(|c: char| !c.is_ascii_lowercase() && c != '_').next();
                return Ok(Called::Ended(name.unwrap_or_default().to_owned()));
            }
            return Err(format!("{} in {set}: {called}", language.name));
        }
        let output = called["structuredContent"]["stdout"].as_str().unwrap_or_default();
        let pairs = output.lines().filter_map(|line| line.split_once(' '));
        let outcomes: BTreeMap<String, String> =
            pairs.map(|(name, outcome)| (name.to_owned(), outcome.to_owned())).collect();
        match names.iter().all(|name| outcomes.contains_key(*name)) {
            true => Ok(Called::Outcomes(outcomes)),
            false => Err(format!("{} in {set} did not run all probes: {called}", language.name)),
        }
    }

    /// Returns whether the kernel has all that confinement to any set needs.
    pub(super) fn can_confine(&self, orla: &Path) -> Result<bool, String> {
        let mut doctor = self::orla(orla, &self.base, self.account, &[]);
        let report = self::doctor(&mut doctor)?.0;
        let has_landlock = report["landlock_abi"].as_u64().is_some_and(|version| version >= 4);
        Ok(has_landlock && report["seccomp"] == true && report["namespaces"] == true)
    }

    /// What the server says of its capabilities.
    pub(super) fn status(&self) -> Result<Value, String> {
        status(&self.server.address)
    }
}

/// What a server says of its capabilities.
pub(super) fn status(address: &str) -> Result<Value, String> {
    let mut connection = Connection::open(address)?;
    let request = b"GET /status HTTP/1.1\r\nhost: localhost\r\n\r\n";
    let answer = connection.exchange(request)?;
    serde_json::from_slice(answer.body).map_err(|err| format!("/status: {err}"))
}

/// `orla` in a folder, as an account and through a wrapper if there is one.
pub(super) fn orla(orla: &Path, base: &Path, account: Account, wrapper: &[&str]) -> Command {
    let mut words = wrapper.iter().map(Path::new).chain([orla]);
    let mut command = account.command(words.next().unwrap_or(orla), base);
    command.args(words).current_dir(base);
    command.env("ORLA_PROBE_SECRET", "secret").env("ORLA_PROBE_DECLARED", "declared");
    let resolver = orla.with_file_name(RESOLVER);
    if resolver.exists() {
        command.env("LD_PRELOAD", resolver);
    }
    command
}

/// Returns what `orla doctor` reports, and how it ended.
pub(super) fn doctor(orla: &mut Command) -> Result<(Value, ExitStatus), String> {
    let output = orla
        .args(["doctor", "--json"])
        .stdin(Stdio::null())
        .output()
        .map_err(|err| format!("orla doctor: {err}"))?;
    let report = serde_json::from_slice(&output.stdout)
        .map_err(|err| format!("orla doctor: {err}: {}", String::from_utf8_lossy(&output.stderr)))?;
    Ok((report, output.status))
}

/// Returns a server in a folder with a configuration.
pub(super) fn serve(
    orla: &Path,
    base: &Path,
    account: Account,
    wrapper: &[&str],
) -> Result<Server, String> {
    let mut command = self::orla(orla, base, account, wrapper);
    command.args(["--port", "0", "--log-format", "json"]);
    Server::listening(command, &base.join("server.log"), crate::server::address)
}

/// Writes a program that everybody may run.
pub(super) fn executable(path: &Path, program: impl AsRef<[u8]>) -> Result<(), String> {
    let problem = |err: std::io::Error| format!("{}: {err}", path.display());
    if let Some(folder) = path.parent() {
        fs::create_dir_all(folder).map_err(problem)?;
    }
    fs::write(path, program).map_err(problem)?;
    fs::set_permissions(path, fs::Permissions::from_mode(0o755)).map_err(problem)
}

/// Returns the tool of a language and a set.
pub(super) fn tool(language: &Language, set: &str) -> String {
    format!("{}_{set}", language.name)
}

/// Calls a tool, which may take long. Gives the result.
pub(super) fn call(address: &str, tool: &str, arguments: &Value) -> Result<Value, String> {
    result(&mut Connection::open(address)?, &client::call(tool, arguments))
        .map_err(|problem| format!("{tool}: {problem}"))
}

/// Sends a request of MCP, and returns its result.
pub(super) fn result(connection: &mut Connection, request: &[u8]) -> Result<Value, String> {
    let answer = connection.exchange(request)?;
    let message = message(answer.body).ok_or_else(|| {
        format!("unexpected answer: {}{}", answer.head, String::from_utf8_lossy(answer.body))
    })?;
    match message.get("result") {
        Some(result) => Ok(result.clone()),
        None => Err(message["error"].to_string()),
    }
}

/// Returns the text of a result.
pub(super) fn text(result: &Value) -> String {
    let blocks = result["content"].as_array().into_iter().flatten();
    blocks.filter_map(|block| block["text"].as_str()).collect::<Vec<_>>().join("\n")
}

/// The answer in a body: a message, or the last one of an event stream in chunks.
pub(super) fn message(body: &[u8]) -> Option<Value> {
    if let Ok(message) = serde_json::from_slice(body) {
        return Some(message);
    }
    let (mut rest, mut whole) = (body, Vec::new());
    while let Some(end) = rest.windows(2).position(|two| two == b"\r\n") {
        let size = usize::from_str_radix(std::str::from_utf8(&rest[..end]).ok()?, 16).ok()?;
        whole.extend_from_slice(rest.get(end + 2..end + 2 + size)?);
        rest = rest.get(end + 4 + size..)?;
    }
    let text = String::from_utf8(whole).ok()?;
    let mut messages =
        text.lines().rev().filter_map(|line| serde_json::from_str(line.strip_prefix("data:")?).ok());
    messages.find(|message: &Value| message.get("result").or(message.get("error")).is_some())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_answer_is_found_in_a_stream_in_chunks() {
        let event = "data: {\"result\":{}}\n\n";
        let body = format!("6\r\n: hi\n\n\r\n{:x}\r\n{event}\r\n0\r\n\r\n", event.len());
        assert_eq!(message(body.as_bytes()), Some(json!({"result": {}})));
        assert_eq!(message(b"{\"error\":1}"), Some(json!({"error": 1})));
    }
}
