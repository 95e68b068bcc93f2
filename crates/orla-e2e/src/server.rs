//! A running server, with requests to it and observations of it.

use std::net::{SocketAddr, TcpStream};
use std::ops::Deref;
use std::process::{Child, ExitStatus};

use rustix::process::Signal;
use serde_json::Value;

use crate::http::{Http, Request, Response};
use crate::mcp::{Client, Revision};
use crate::process::{self, Process};
use crate::wait::eventually;
use crate::world::{World, kill, spawn};

const LOG: &str = ".server.log";
/// How much of the log a failed test shows.
const SHOWN: usize = 20_000;

/// A server over HTTP. It ends when this is dropped; if the test panics then, its log is printed.
#[derive(Debug)]
pub struct Server {
    child: Child,
    address: SocketAddr,
    ended: Option<ExitStatus>,
    // Last: the directory and other processes in it are removed after the server.
    world: World,
}

/// One line of the log.
#[derive(Clone, Debug)]
pub struct LogLine(pub Value);

impl Server {
    pub(crate) fn start(world: World) -> Self {
        Self::started(world, address_in)
    }

    pub(crate) fn start_at(world: World, address: SocketAddr) -> Self {
        Self::started(world, |_| TcpStream::connect(address).is_ok().then_some(address))
    }

    fn started(world: World, listens: impl Fn(&str) -> Option<SocketAddr>) -> Self {
        let nowhere = SocketAddr::from(([127, 0, 0, 1], 0));
        let mut server = Self { child: launch(&world), address: nowhere, ended: None, world };
        server.wait_until(listens);
        server
    }

    fn wait_until(&mut self, listens: impl Fn(&str) -> Option<SocketAddr>) {
        self.address = eventually("the server listens", || {
            let status = self.child.try_wait().expect("a child can be waited for");
            assert!(status.is_none(), "the server ended with {status:?}");
            listens(&self.log())
        });
    }

    /// Starts a server that has ended once more in the same world; comes back when it listens.
    pub fn start_again(&mut self) {
        assert!(!self.is_alive(), "it has ended");
        self.child = launch(&self.world);
        self.ended = None;
        self.wait_until(address_in);
    }

    /// Where it listens.
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// Returns the server's process id.
    pub fn id(&self) -> u32 {
        self.child.id()
    }

    /// Returns a client without a session (2026-07-28).
    pub fn client(&self) -> Client {
        Client::connect(self.address, Revision::Sessionless, None)
    }

    /// Returns a client with a session (2025-11-25), initialized.
    pub fn session(&self) -> Client {
        Client::connect(self.address, Revision::Session, None)
    }

    /// Returns a client without a session, with this bearer token.
    pub fn client_as(&self, token: &str) -> Client {
        Client::connect(self.address, Revision::Sessionless, Some(token))
    }

    /// Returns a client with a session, with this bearer token.
    pub fn session_as(&self, token: &str) -> Client {
        Client::connect(self.address, Revision::Session, Some(token))
    }

    /// Returns a session of a client with these capabilities.
    pub fn session_able_to(&self, capabilities: &Value) -> Client {
        Client::connect_able_to(self.address, capabilities)
    }

    /// Both kinds of clients.
    pub fn clients(&self) -> [Client; 2] {
        [self.client(), self.session()]
    }

    /// Plain HTTP.
    pub fn http(&self) -> Http {
        Http::new(self.address)
    }

    /// Sends a JSON document with this bearer token.
    pub fn send_as(&self, method: &str, path: &str, token: &str, body: &str) -> Response {
        let request = Request::new(method, path).header("content-type", "application/json").body(body);
        self.http().send(&request.bearer(token)).expect("an answer")
    }

    /// Gets a document with this bearer token.
    pub fn get_as(&self, path: &str, token: &str) -> Response {
        self.send_as("GET", path, token, "")
    }

    /// `/status`.
    pub fn status(&self) -> Value {
        self.http().get("/status").json()
    }

    /// Returns the number of the snapshot that is served.
    pub fn generation(&self) -> u64 {
        let status = self.status();
        status["generation"].as_u64().unwrap_or_else(|| panic!("no generation in {status}"))
    }

    /// Sends a signal to the server, and to it alone.
    pub fn signal(&self, signal: Signal) {
        kill(self.id(), signal);
    }

    /// SIGHUP; comes back when a new snapshot is served.
    pub fn reload(&self) {
        let before = self.generation();
        self.signal(Signal::HUP);
        eventually("the reload takes effect", || self.generation() > before);
    }

    /// SIGTERM; comes back when the server has ended.
    pub fn terminate(&mut self) -> ExitStatus {
        self.signal(Signal::TERM);
        self.wait()
    }

    /// Kills the server with SIGKILL, and returns when it is gone. Its processes may take a moment
    /// longer to end.
    pub fn kill(&mut self) {
        let _ = self.child.kill();
        self.wait();
    }

    /// Waits for the server's end.
    pub fn wait(&mut self) -> ExitStatus {
        let child = &mut self.child;
        let status =
            eventually("the server ends", || child.try_wait().expect("a child can be waited for"));
        self.ended = Some(status);
        status
    }

    /// Returns whether the server still runs.
    pub fn is_alive(&mut self) -> bool {
        self.child.try_wait().expect("a child can be waited for").is_none()
    }

    /// Everything that it has logged.
    pub fn log(&self) -> String {
        self.world.read(LOG)
    }

    /// Returns the log's lines; panics at a line that is not JSON.
    pub fn log_lines(&self) -> Vec<LogLine> {
        let log = self.log();
        // The last line may be half written.
        let complete = log.rfind('\n').map_or("", |end| &log[..end]);
        let parse = |line| serde_json::from_str(line).unwrap_or_else(|err| panic!("{err}: {line}"));
        complete.lines().map(|line| LogLine(parse(line))).collect()
    }

    /// Returns the log's lines of one level.
    pub fn logged(&self, level: &str) -> Vec<LogLine> {
        let mut lines = self.log_lines();
        lines.retain(|line| line.level() == level);
        lines
    }

    /// Waits for a line of the log that contains all of these texts.
    pub fn log_says(&self, words: &[&str]) -> String {
        eventually(&format!("the log says {words:?}"), || {
            let log = self.log();
            log.lines().find(|line| words.iter().all(|word| line.contains(word))).map(str::to_owned)
        })
    }

    /// Returns the server's resident memory in KiB.
    pub fn resident_kib(&self) -> u64 {
        process::memory_kib(self.id(), "VmRSS").expect("the server's memory is known")
    }

    /// Returns the peak resident memory of the server, in KiB.
    pub fn peak_resident_kib(&self) -> u64 {
        process::memory_kib(self.id(), "VmHWM").expect("the server's memory is known")
    }

    /// Returns how many descriptors the server has open; `None` if that may not be known.
    pub fn descriptors(&self) -> Option<usize> {
        process::descriptors(self.id())
    }

    /// Returns the server's children that have ended and were not waited for.
    pub fn zombies(&self) -> usize {
        process::children(self.id()).iter().filter(|(_, state)| *state == 'Z').count()
    }

    /// Returns the server's living children: tools and helpers.
    pub fn children(&self) -> Vec<Process> {
        process::children(self.id()).into_iter().filter_map(|(id, _)| Process::read(id)).collect()
    }

    /// Asserts that no process of a tool runs any more, and that nothing was left behind.
    pub fn assert_no_tool_is_left(&self) {
        let mut left = Vec::new();
        eventually("no tool runs and no zombie is left", || {
            left = self.tool_processes();
            left.is_empty() && self.zombies() == 0
        });
    }
}

fn launch(world: &World) -> Child {
    let log = std::fs::File::create(world.path(LOG)).expect("a log file");
    spawn(world.server_command().stderr(log))
}

impl Deref for Server {
    type Target = World;
    fn deref(&self) -> &World {
        &self.world
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
        if std::thread::panicking() {
            show_log(&self.log(), self.ended);
        }
    }
}

#[expect(clippy::print_stderr, reason = "the test harness shows what a failed test printed")]
pub(crate) fn show_log(log: &str, ended: Option<ExitStatus>) {
    let start = log.ceil_char_boundary(log.len().saturating_sub(SHOWN));
    eprintln!("--- the server's log ({ended:?})\n{}---", &log[start..]);
}

/// Returns the address in the line `listening`, in any format of the log.
fn address_in(log: &str) -> Option<SocketAddr> {
    let complete = &log[..=log.rfind('\n')?];
    let line = complete.lines().find(|line| line.contains("listening"))?;
    let outside = |c: char| !(c.is_ascii_hexdigit() || matches!(c, '.' | ':' | '[' | ']'));
    // Colour codes end in a letter; the address itself has none of these characters around it.
    line.split(outside).find_map(|word| word.trim_matches(':').parse().ok())
}

impl LogLine {
    /// `debug`, `info`, `warn`, `error`, `fatal`.
    pub fn level(&self) -> String {
        self.0["level"].as_str().unwrap_or_default().to_lowercase()
    }

    /// Returns a field, in any format.
    pub fn field(&self, name: &str) -> &Value {
        match self.0.get(name) {
            Some(value) => value,
            None => &self.0["fields"][name],
        }
    }

    /// The message of the event.
    pub fn message(&self) -> &str {
        self.field("message").as_str().unwrap_or_default()
    }

    /// Returns whether all of these texts occur somewhere in the line.
    pub fn says(&self, words: &[&str]) -> bool {
        let line = self.0.to_string();
        words.iter().all(|word| line.contains(word))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_address_is_found_in_both_formats_and_only_in_a_complete_line() {
        let expected = Some(SocketAddr::from(([127, 0, 0, 1], 4711)));
        let json = "{\"level\":\"info\",\"message\":\"listening\",\"address\":\"127.0.0.1:4711\"}\n";
        assert_eq!(address_in(json), expected);
        assert_eq!(address_in(&json[..json.len() - 1]), None);
        let pretty = "2026-11-20T08:00:00Z \u{1b}[32m INFO\u{1b}[0m listening \u{1b}[3maddress\u{1b}[0m=127.0.0.1:4711\n";
        assert_eq!(address_in(pretty), expected);
        assert_eq!(address_in("{\"address\":\"127.0.0.1:4711\"}\n"), None);
    }
}
