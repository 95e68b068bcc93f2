//! MCP over a child's standard input and output.

use std::io::{BufRead, BufReader, Write};
use std::ops::Deref;
use std::process::{Child, ChildStdin, ExitStatus, Stdio as Pipe};
use std::sync::mpsc::{Receiver, RecvTimeoutError, sync_channel};
use std::time::Instant;

use serde_json::{Value, json};

use crate::mcp::{RpcError, SESSION_BASED, ToolResult, initialize, result_of};
use crate::process::memory_kib;
use crate::server::show_log;
use crate::wait::{TEST_TIMEOUT, eventually};
use crate::world::{World, kill, spawn};

const LOG: &str = ".server.log";

/// A server over stdio, seen by its client. It ends when this is dropped.
#[derive(Debug)]
pub struct Stdio {
    child: Child,
    input: Option<ChildStdin>,
    output: Receiver<String>,
    next_id: u64,
    world: World,
}

/// A line that the server wrote.
pub type StdioMessage = Value;

impl Stdio {
    pub(crate) fn start(world: World) -> Self {
        let log = std::fs::File::create(world.path(LOG)).expect("a log file");
        let mut command = world.server_command();
        let mut child = spawn(command.stdin(Pipe::piped()).stdout(Pipe::piped()).stderr(log));
        let input = child.stdin.take();
        let stdout = child.stdout.take().expect("its output is a pipe");
        let (sender, output) = sync_channel(10_000);
        std::thread::spawn(move || {
            for line in BufReader::new(stdout).lines() {
                let Ok(line) = line else { break };
                if sender.send(line).is_err() {
                    break;
                }
            }
        });
        Self { child, input, output, next_id: 1, world }
    }

    /// Opens the connection as clients of the session-based revisions do.
    #[must_use]
    pub fn initialized(mut self) -> Self {
        let answer = self.request("initialize", initialize(SESSION_BASED));
        assert_eq!(answer.expect("initialize succeeds")["serverInfo"]["name"], "orla");
        self.notify("notifications/initialized", json!({}));
        self
    }

    /// Sends any bytes.
    pub fn raw(&mut self, bytes: &[u8]) -> std::io::Result<()> {
        let input = self.input.as_mut().expect("its input is open");
        input.write_all(bytes)?;
        input.flush()
    }

    /// Sends a message.
    #[expect(clippy::needless_pass_by_value, reason = "calls read as `send(json!(…))`")]
    pub fn send(&mut self, message: Value) {
        self.raw(format!("{message}\n").as_bytes()).expect("the server reads its input");
    }

    /// Sends a request, and returns its id.
    #[expect(clippy::needless_pass_by_value, reason = "calls read as `begin(method, json!(…))`")]
    pub fn begin(&mut self, method: &str, params: Value) -> u64 {
        self.next_id += 1;
        let id = self.next_id;
        self.send(json!({"jsonrpc": "2.0", "id": id, "method": method, "params": params}));
        id
    }

    /// Sends a notification.
    #[expect(clippy::needless_pass_by_value, reason = "calls read as `notify(method, json!(…))`")]
    pub fn notify(&mut self, method: &str, params: Value) {
        self.send(json!({"jsonrpc": "2.0", "method": method, "params": params}));
    }

    /// Returns the next message; `None` once the server has closed its output.
    pub fn next_message(&mut self) -> Option<StdioMessage> {
        let deadline = Instant::now() + TEST_TIMEOUT;
        match self.output.recv_timeout(deadline.saturating_duration_since(Instant::now())) {
            Ok(line) => {
                let parsed = serde_json::from_str(&line);
                Some(parsed.unwrap_or_else(|err| {
                    panic!("stdout carries nothing but the protocol: {err}: {line}")
                }))
            }
            Err(RecvTimeoutError::Disconnected) => None,
            Err(RecvTimeoutError::Timeout) => panic!("no message within {TEST_TIMEOUT:?}"),
        }
    }

    /// Waits for the answer to a request. Earlier messages are added to `others`.
    pub fn answer(&mut self, id: u64, others: &mut Vec<StdioMessage>) -> Result<Value, RpcError> {
        loop {
            let message = self.next_message().expect("the server still speaks");
            if message["id"] == id && message.get("method").is_none() {
                return result_of(&message, 0);
            }
            others.push(message);
        }
    }

    /// Sends a request and waits for its result.
    pub fn request(&mut self, method: &str, params: Value) -> Result<Value, RpcError> {
        let id = self.begin(method, params);
        self.answer(id, &mut Vec::new())
    }

    /// Calls a tool.
    #[expect(clippy::needless_pass_by_value, reason = "calls read as `call(name, json!(…))`")]
    pub fn call(&mut self, name: &str, arguments: Value) -> ToolResult {
        let id = self.begin("tools/call", json!({"name": name, "arguments": arguments}));
        let mut notifications = Vec::new();
        let json = self.answer(id, &mut notifications).unwrap_or_else(|err| panic!("{name}: {err}"));
        ToolResult { json, notifications }
    }

    /// Closes the server's input.
    pub fn close_input(&mut self) {
        self.input = None;
    }

    /// Sends a signal to the server.
    pub fn signal(&self, signal: rustix::process::Signal) {
        kill(self.child.id(), signal);
    }

    /// Waits for the server's end.
    pub fn wait(&mut self) -> ExitStatus {
        let child = &mut self.child;
        eventually("the server ends", || child.try_wait().expect("a child can be waited for"))
    }

    /// Returns the peak resident memory of the server, in KiB.
    pub fn peak_resident_kib(&self) -> u64 {
        memory_kib(self.child.id(), "VmHWM").expect("the server's memory is known")
    }

    /// Everything that it has logged.
    pub fn log(&self) -> String {
        self.world.read(LOG)
    }
}

impl Deref for Stdio {
    type Target = World;
    fn deref(&self) -> &World {
        &self.world
    }
}

impl Drop for Stdio {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
        if std::thread::panicking() {
            show_log(&self.log(), None);
        }
    }
}
