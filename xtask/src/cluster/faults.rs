//! Faults of nodes and of NATS, one at a time.

use std::fs;
use std::io::{BufRead as _, BufReader, Read as _, Write as _};
use std::net::TcpStream;
use std::process::Command;
use std::time::{Duration, Instant};

use serde_json::{Value, json};

use super::chaos::ThreeNats;
use super::{ECHO, Node, ONCE, SLOW, TIMEOUT, WHERE, World, eventually, same, signal, write};
use crate::process;

/// Calls whose input a hostile node announces and never sends.
const ANNOUNCED: usize = 300;
/// Longer than the lease of a node, if it was renewed last when the servers died.
const PAST_LEASE: Duration = Duration::from_secs(16);

impl World {
    /// An instance is suspended while another one takes its name.
    pub(super) fn two_of_one_name(&self) -> Result<(), String> {
        let nats = self.nats()?;
        let tools = [("where", WHERE)];
        let first = self.node(&nats, "alpha", &tools)?;
        let beta = self.node(&nats, "beta", &[])?;
        eventually("beta lists `where`", || beta.lists("where"))?;
        same(&beta.call("where", &json!({}))?, &first.folder_value())?;
        signal(first.server.pid(), "STOP")?;
        let second = self.node(&nats, "alpha", &tools)?;
        let reached = eventually("the second instance is reached", || {
            Ok(beta.call("where", &json!({})).is_ok_and(|there| there == second.folder_value()))
        });
        signal(first.server.pid(), "CONT")?;
        reached?;
        eventually("the first instance gives up its name", || {
            Ok(first.knows("alpha")?["alive"] == json!(false))
        })?;
        let before = [first.calls("calls"), second.calls("calls")];
        for _ in 0..20 {
            same(&beta.call("where", &json!({}))?, &second.folder_value())?;
        }
        let after = [first.calls("calls"), second.calls("calls")];
        if after != [before[0], before[1] + 20] {
            return Err(format!("20 calls made {before:?} to {after:?}"));
        }
        // Its own clients are served.
        same(&first.call("where", &json!({}))?, &first.folder_value())
    }

    /// A NATS server restarts without its data.
    pub(super) fn forgetful_nats(&self) -> Result<(), String> {
        let mut nats = self.nats()?;
        let alpha = self.node(&nats, "alpha", &[("where", WHERE)])?;
        let beta = self.node(&nats, "beta", &[])?;
        eventually("beta lists `where`", || beta.lists("where"))?;
        nats.kill()?;
        fs::remove_dir_all(nats.folder.join("jetstream")).map_err(|err| err.to_string())?;
        nats.start()?;
        let late = self.node(&nats, "late", &[])?;
        eventually("who comes later learns what was there before", || {
            Ok(late.call("where", &json!({})).is_ok_and(|there| there == alpha.folder_value()))
        })?;
        eventually("who was there before calls as before", || {
            Ok(beta.call("where", &json!({})).is_ok_and(|there| there == alpha.folder_value()))
        })
    }

    /// Two of three NATS servers die: the last one passes messages on, and stores none.
    pub(super) fn leaderless_nats(&self) -> Result<(), String> {
        let mut nats = ThreeNats::start(self)?;
        let alpha = self.instance("alpha", &nats.config("alpha"), &[("where", WHERE)])?;
        let beta = self.instance("beta", &nats.config("beta"), &[])?;
        let is_called =
            || Ok(beta.call("where", &json!({})).is_ok_and(|there| there == alpha.folder_value()));
        eventually("beta calls `where`", is_called)?;
        nats.kill(0)?;
        nats.kill(1)?;
        eventually("beta calls `where` over the last server", is_called)?;
        let end = Instant::now() + PAST_LEASE;
        while Instant::now() < end {
            same(&beta.call("where", &json!({}))?, &alpha.folder_value())?;
            std::thread::sleep(Duration::from_millis(100));
        }
        nats.revive()
    }

    /// A client of NATS may do everything, and does.
    pub(super) fn hostile_node(&self) -> Result<(), String> {
        let nats = self.nats()?;
        let alpha = self.node(&nats, "alpha", &[("echo", ECHO), ("where", WHERE)])?;
        let mut hostile = Raw::connect(nats.port)?;
        hostile.say("SUB orla.t.to.> 1\r\nPING\r\n")?;
        hostile.until(|line, _, _| line == "PONG")?;
        let beta = self.node(&nats, "beta", &[])?;
        eventually("beta lists `echo`", || beta.lists("echo"))?;
        same(&beta.call("where", &json!({}))?, &alpha.folder_value())?;
        let mut call = (String::new(), String::new(), Vec::new());
        hostile.until(|line, header, payload| {
            let subject = line.split(' ').nth(1).unwrap_or_default();
            if subject.contains(".alpha.") && subject.contains(".call.") {
                call = (subject.to_owned(), header.to_owned(), payload.to_owned());
            }
            !call.0.is_empty()
        })?;
        let (subject, header, payload) = call;
        let start = header.find('{').ok_or("a call has no header")?;
        let header = header[start..].trim();
        // The call again, although it has ended.
        hostile.publish(&subject, header, &payload)?;
        let mut head: Value = serde_json::from_str(header).map_err(|err| err.to_string())?;
        (head["bytes"], head["timeout_ms"]) = (json!(60_000_000), json!(3_600_000));
        for number in 0..ANNOUNCED {
            head["token"] = json!(format!("{number:032x}"));
            hostile.publish(&subject, &head.to_string(), b"{")?;
        }
        // What is not a call, not a frame, and nobody's.
        for text in ["", "7", "result 0 5", "{\"v\":1}"] {
            hostile.publish(&subject, text, b"\xff")?;
            hostile.publish(&subject.replace(".call.", ".in."), text, b"\xff")?;
        }
        for lie in [
            json!({"node": "alpha"}).to_string(),
            json!({"v": 1, "node": "alpha", "instance": "0".repeat(16), "epoch": u64::MAX, "offer": "0".repeat(64),
                "since": u64::MAX, "parts": 4096, "running": 0, "limit": 1})
            .to_string(),
        ] {
            hostile.say(&format!("PUB $KV.orla-t-leases.evil {}\r\n{lie}\r\n", lie.len()))?;
        }
        hostile.say("PING\r\n")?;
        hostile.until(|line, _, _| line == "PONG")?;
        let large = json!("y".repeat(2_000_000));
        same(&beta.call("echo", &json!({"stdin": large}))?, &large)?;
        same(&alpha.call("echo", &json!({"stdin": large}))?, &large)?;
        let held = alpha.metric("orla_memory_held_bytes")?;
        if held > 10_000_000.0 {
            return Err(format!("what was announced holds {held} bytes"));
        }
        same(&json!(alpha.calls("calls")), &json!(1))
    }

    /// A request to another node tells a node to take no more calls.
    pub(super) fn draining(&self) -> Result<(), String> {
        let nats = self.nats()?;
        let tools = [("once", ONCE), ("where", WHERE)];
        let alpha = self.node(&nats, "alpha", &tools)?;
        let gamma = self.node(&nats, "gamma", &[])?;
        eventually("gamma lists `once`", || gamma.lists("once"))?;
        let drain = |node: &str, more: &[&str]| {
            let mut command = Command::new(&self.binary);
            let url = format!("http://{}", gamma.server.address);
            command.args(["cluster", "drain", node, "--url", &url]).args(more);
            process::run(&mut command, &gamma.folder, TIMEOUT)
        };
        std::thread::scope(|scope| {
            let running = scope.spawn(|| gamma.call("once", &json!({})));
            eventually("alpha runs it", || Ok(alpha.calls("once-calls") == 1))?;
            drain("alpha", &[])?.stdout_of_success()?;
            eventually("gamma sees that alpha drains", || {
                Ok(gamma.knows("alpha")?["draining"] == json!(true))
            })?;
            let told = gamma.call("where", &json!({})).err().unwrap_or_default();
            if alpha.calls("calls") != 0 || told.is_empty() {
                return Err(format!("a node that drains was called: {told}"));
            }
            same(&alpha.call("where", &json!({}))?, &alpha.folder_value())?;
            write(&alpha.folder.join("go"), "")?;
            same(&running.join().map_err(|_| "a thread panicked")??, &alpha.folder_value())
        })?;
        if drain("nobody", &[])?.status.success() {
            return Err("a node that is not there was told to drain".to_owned());
        }
        drain("alpha", &["--undo"])?.stdout_of_success()?;
        eventually("alpha takes calls again", || {
            Ok(gamma.call("where", &json!({})).is_ok_and(|there| there == alpha.folder_value()))
        })?;
        let sent = gamma.metric(r#"orla_cluster_calls_total{event="sent"}"#)?;
        if sent < 2.0 || gamma.metric(r#"orla_cluster_nodes{state="alive"}"#)? < 2.0 {
            return Err(format!("the metrics count {sent} calls"));
        }
        Ok(())
    }

    /// A call that may be repeated loses the only node that has its capability, and another one offers it later.
    pub(super) fn joined_late(&self) -> Result<(), String> {
        let nats = self.nats()?;
        let tools = [("slow", SLOW)];
        let alpha = self.node(&nats, "alpha", &tools)?;
        let beta = self.node(&nats, "beta", &[])?;
        eventually("beta lists `slow`", || beta.lists("slow"))?;
        let gamma = self.node(&nats, "gamma", &tools)?;
        let (tool, away) = (gamma.folder.join("tools/slow"), gamma.folder.join("slow"));
        let moved = |from, to| fs::rename(from, to).map_err(|err| err.to_string());
        moved(&tool, &away)?;
        gamma.server.hang_up()?;
        write(&gamma.folder.join("go"), "")?;
        eventually("gamma does not offer it", || Ok(beta.knows("gamma")?["capabilities"] == json!([])))?;
        std::thread::scope(|scope| {
            let slow = scope.spawn(|| beta.call("slow", &json!({})));
            eventually("the call runs", || Ok(alpha.calls("slow-calls") == 1))?;
            alpha.server.kill()?;
            eventually("beta loses alpha", || {
                Ok(beta.metric(r#"orla_cluster_calls_total{event="lost"}"#)? > 0.0)
            })?;
            moved(&away, &tool)?;
            gamma.server.hang_up()?;
            same(&slow.join().map_err(|_| "a thread panicked")??, &gamma.folder_value())
        })
    }

    /// Calls that name a node.
    pub(super) fn pinned(&self) -> Result<(), String> {
        let nats = self.nats()?;
        let tools = [("where", WHERE)];
        let nodes = [self.node(&nats, "alpha", &tools)?, self.node(&nats, "beta", &tools)?];
        let gamma = self.node(&nats, "gamma", &[("own", WHERE)])?;
        for node in ["alpha", "beta"] {
            eventually("gamma knows both", || {
                Ok(gamma.knows(node)?["capabilities"] == json!(["where"]))
            })?;
        }
        for _ in 0..5 {
            same(&gamma.call_at("where", &json!("beta"))?, &nodes[1].folder_value())?;
        }
        same(&gamma.call_at("own", &json!("gamma"))?, &gamma.folder_value())?;
        let counts = || [nodes[0].calls("calls"), nodes[1].calls("calls"), gamma.calls("calls")];
        let before = counts();
        for (tool, node) in [
            ("where", json!("gamma")),
            ("where", json!("nobody")),
            ("where", json!(7)),
            ("own", json!("beta")),
        ] {
            if let Ok(there) = gamma.call_at(tool, &node) {
                return Err(format!("{tool} at {node} ran at {there}"));
            }
        }
        if counts() != before { Err("a call ran on another node".to_owned()) } else { Ok(()) }
    }

    /// The only place of one node is taken; another node has room.
    pub(super) fn full_node(&self) -> Result<(), String> {
        let nats = self.nats()?;
        let full = |name: &str| {
            let config = format!("{}max_concurrency: 1\nmax_queue: 0\n", nats.config(name));
            self.instance(name, &config, &[("once", ONCE)])
        };
        let alpha = full("alpha")?;
        let gamma = self.node(&nats, "gamma", &[])?;
        eventually("gamma lists `once`", || gamma.lists("once"))?;
        std::thread::scope(|scope| {
            let first = scope.spawn(|| gamma.call("once", &json!({})));
            eventually("alpha is full", || Ok(alpha.calls("once-calls") == 1))?;
            let told = gamma.call("once", &json!({})).err().unwrap_or_default();
            if !told.contains("busy") {
                return Err(format!("a call that nobody has room for: {told}"));
            }
            let beta = full("beta")?;
            write(&beta.folder.join("go"), "")?;
            eventually("gamma knows beta", || {
                Ok(gamma.knows("beta")?["capabilities"] == json!(["once"]))
            })?;
            for _ in 0..4 {
                same(&gamma.call("once", &json!({}))?, &beta.folder_value())?;
            }
            write(&alpha.folder.join("go"), "")?;
            same(&first.join().map_err(|_| "a thread panicked")??, &alpha.folder_value())
        })
    }
}

impl Node {
    /// Makes a call on a certain node.
    fn call_at(&self, tool: &str, node: &Value) -> Result<Value, String> {
        let meta = json!({"orla/node": node, "io.modelcontextprotocol/protocolVersion": "2026-07-28",
            "io.modelcontextprotocol/clientCapabilities": {}});
        let params = json!({"name": tool, "arguments": {}, "_meta": meta});
        let body =
            json!({"jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": params}).to_string();
        let head = format!(
            "POST /mcp HTTP/1.1\r\nhost: localhost\r\ncontent-type: application/json\r\n\
             accept: application/json, text/event-stream\r\nmcp-protocol-version: 2026-07-28\r\n\
             mcp-method: tools/call\r\nmcp-name: {tool}\r\ncontent-length: {}\r\n\r\n",
            body.len()
        );
        let answer = self.exchange(format!("{head}{body}").as_bytes())?;
        let result = &answer["result"];
        match &result["content"][0]["text"] {
            Value::String(text) if result["isError"] != json!(true) => Ok(json!(text.trim())),
            _ => Err(answer.to_string()),
        }
    }
}

/// A client of NATS that knows no rules.
struct Raw {
    reader: BufReader<TcpStream>,
}

impl Raw {
    fn connect(port: u16) -> Result<Self, String> {
        let stream = TcpStream::connect(("127.0.0.1", port)).map_err(|err| err.to_string())?;
        stream.set_read_timeout(Some(TIMEOUT)).map_err(|err| err.to_string())?;
        let mut raw = Self { reader: BufReader::new(stream) };
        raw.say("CONNECT {\"verbose\":false,\"headers\":true,\"no_responders\":true}\r\n")?;
        Ok(raw)
    }

    fn say(&mut self, text: &str) -> Result<(), String> {
        self.reader.get_mut().write_all(text.as_bytes()).map_err(|err| err.to_string())
    }

    fn publish(&mut self, subject: &str, header: &str, payload: &[u8]) -> Result<(), String> {
        let headers = format!("NATS/1.0\r\norla: {header}\r\n\r\n");
        let (of, all) = (headers.len(), headers.len() + payload.len());
        self.say(&format!("HPUB {subject} {of} {all}\r\n{headers}"))?;
        let stream = self.reader.get_mut();
        stream.write_all(&[payload, b"\r\n"].concat()).map_err(|err| err.to_string())
    }

    /// Reads until this says that it is enough: of a line, and the header and the payload that follow it.
    fn until(&mut self, mut enough: impl FnMut(&str, &str, &[u8]) -> bool) -> Result<(), String> {
        loop {
            let mut line = String::new();
            self.reader.read_line(&mut line).map_err(|err| err.to_string())?;
            let line = line.trim_end();
            if line.is_empty() {
                return Err("the connection ended".to_owned());
            }
            if line == "PING" {
                self.say("PONG\r\n")?;
            }
            let sizes = match line.split(' ').collect::<Vec<_>>()[..] {
                ["HMSG", .., of, all] => Some((of, all)),
                ["MSG", .., all] => Some(("0", all)),
                _ => None,
            };
            let Some((of, all)) = sizes else {
                if enough(line, "", &[]) {
                    return Ok(());
                }
                continue;
            };
            let number = |text: &str| text.parse::<usize>().map_err(|err| err.to_string());
            let (of, all) = (number(of)?, number(all)?);
            let mut bytes = vec![0; all + 2];
            self.reader.read_exact(&mut bytes).map_err(|err| err.to_string())?;
            if enough(line, &String::from_utf8_lossy(&bytes[..of]), &bytes[of..all]) {
                return Ok(());
            }
        }
    }
}
