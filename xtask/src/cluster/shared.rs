//! What the nodes of a cluster share: the store, tasks and sessions.

use std::fs;
use std::process::Command;
use std::time::Duration;

use serde_json::{Value, json};

use super::{Node, ONCE, SLOW, WHERE, World, eventually, same, signal, write};
use crate::bench::client::Connection;
use crate::root;

/// How long a node is stopped so that others take it for gone.
const LONGER_THAN_A_LEASE: Duration = Duration::from_secs(14);

impl World {
    /// Runs the test suite of all stores on several nodes of one cluster.
    pub(super) fn store(&self) -> Result<(), String> {
        let nats = self.nats()?;
        let address = format!("nats://127.0.0.1:{}", nats.port);
        let status = Command::new("cargo")
            .args([
                "run",
                "--quiet",
                "--package",
                "orla-cluster",
                "--example",
                "store",
                "--",
                &address,
                "t",
            ])
            .current_dir(root())
            .status()
            .map_err(|err| format!("cargo: {err}"))?;
        if status.success() { Ok(()) } else { Err("a promise is broken".to_owned()) }
    }

    /// A node accepts tasks without NATS, is killed, and hands them over when it has started again and NATS is back.
    pub(super) fn buffered_tasks(&self) -> Result<(), String> {
        let mut nats = self.nats()?;
        let config = nats.config("alpha").replace('}', ", buffer: local}");
        let alpha = self.instance("alpha", &config, &[("once", ONCE)])?;
        let beta = self.node(&nats, "beta", &[])?;
        write(&alpha.folder.join("go"), "")?;
        eventually("beta lists `once`", || beta.lists("once"))?;
        nats.kill()?;
        // A task that a node sends before it knows that NATS is gone may be accepted once NATS is back, although the request fails.
        eventually("both nodes know that NATS is gone", || {
            Ok(alpha.metric("orla_cluster_connected")? == 0.0
                && beta.metric("orla_cluster_connected")? == 0.0)
        })?;
        match beta.start("once") {
            Err(why) if why.contains("503") => {}
            other => return Err(format!("a task of a node without a buffer: {other:?}")),
        }
        let tasks = (0..5).map(|_| alpha.start("once")).collect::<Result<Vec<_>, String>>()?;
        let keyed = json!({"capability": "once", "input": {}, "key": "k"}).to_string();
        match alpha.request("POST", "/tasks", &keyed) {
            Err(why) if why.contains("503") => {}
            other => return Err(format!("a task with a key: {other:?}")),
        }
        let folder = alpha.folder.clone();
        alpha.server.kill()?;
        let alpha = self.start(folder)?;
        for task in &tasks {
            same(&json!(alpha.state(task)?), &json!("queued"))?;
        }
        nats.start()?;
        eventually("the tasks have ended, as each node knows", || {
            let nodes = [&alpha, &beta].into_iter();
            let mut states = nodes.flat_map(|node| tasks.iter().map(|task| node.state(task)));
            states.try_fold(true, |all, state| Ok(all & (state? == "completed")))
        })?;
        same(&json!(alpha.calls("once-calls")), &json!(tasks.len()))
    }

    /// A node that has none of the capabilities accepts tasks, and the nodes that have them run
    /// them.
    pub(super) fn tasks(&self) -> Result<(), String> {
        let nats = self.nats()?;
        let tools = [("slow", SLOW), ("once", ONCE)];
        let alpha = self.node(&nats, "alpha", &tools)?;
        let beta = self.node(&nats, "beta", &[])?;
        eventually("beta lists `once`", || Ok(beta.lists("slow")? && beta.lists("once")?))?;
        let (slow, once) = (beta.start("slow")?, beta.start("once")?);
        eventually("both tasks run", || {
            Ok(alpha.calls("slow-calls") == 1 && alpha.calls("once-calls") == 1)
        })?;
        same(&alpha.get(&format!("/tasks/{slow}"))?["id"], &json!(slow))?;
        let gamma = self.node(&nats, "gamma", &tools)?;
        write(&gamma.folder.join("go"), "")?;
        // It stands still, and what it says afterwards comes too late.
        signal(alpha.server.pid(), "STOP")?;
        let ended = eventually("another node ends the tasks", || {
            Ok(beta.state(&slow)? == "completed" && beta.state(&once)? == "interrupted")
        });
        signal(alpha.server.pid(), "CONT")?;
        ended?;
        write(&alpha.folder.join("go"), "")?;
        eventually("alpha knows the ends", || {
            Ok(alpha.state(&slow)? == "completed" && alpha.state(&once)? == "interrupted")
        })?;
        if (alpha.calls("once-calls"), gamma.calls("once-calls"), gamma.calls("slow-calls")) != (1, 0, 1)
        {
            return Err("a task was not run as often as it may be".to_owned());
        }
        // What a task writes to a folder is of its node. A task is cancelled at any node.
        fs::remove_file(alpha.folder.join("go")).map_err(|err| err.to_string())?;
        fs::remove_file(gamma.folder.join("go")).map_err(|err| err.to_string())?;
        let last = beta.start("once")?;
        eventually("it runs", || Ok(beta.state(&last)? == "working"))?;
        gamma.request("DELETE", &format!("/tasks/{last}"), "")?;
        eventually("every node knows the end", || {
            Ok(alpha.state(&last)? == "cancelled" && beta.state(&last)? == "cancelled")
        })
    }

    /// The node of a program is killed, and another one continues it. No call that must not be
    /// repeated is made twice.
    pub(super) fn programs(&self) -> Result<(), String> {
        let nats = self.nats()?;
        let tools = [("slow", SLOW), ("once", ONCE)];
        let alpha = self.node(&nats, "alpha", &tools)?;
        let beta = self.node(&nats, "beta", &tools)?;
        write(&alpha.folder.join("go"), "")?;
        write(&beta.folder.join("go"), "")?;
        let calls = (0..5).map(|_| "(call :once {})").collect::<Vec<_>>().join(" ");
        let text = format!(
            "(do {calls} (await-event \"go\") (call :slow {{}}) (try (call :once {{}}) (catch :interrupted e 0)) 7)"
        );
        let body = json!({ "program": text }).to_string();
        let begun = alpha.request("POST", "/tasks", &body)?;
        let id = begun["id"].as_str().ok_or_else(|| begun.to_string())?.to_owned();
        let all = || alpha.calls("once-calls") + beta.calls("once-calls");
        // A tool looks for `go` after it has written its line, so its answer is waited for.
        eventually("the calls are answered", || Ok(all() == 5 && alpha.answered(&id)? == 5))?;
        fs::remove_file(alpha.folder.join("go")).map_err(|err| err.to_string())?;
        fs::remove_file(beta.folder.join("go")).map_err(|err| err.to_string())?;
        beta.request("POST", &format!("/tasks/{id}/events/go"), "1")?;
        eventually("a node goes on", || Ok(alpha.calls("slow-calls") + beta.calls("slow-calls") == 1))?;
        let (dies, lives) = if alpha.calls("slow-calls") == 1 { (alpha, beta) } else { (beta, alpha) };
        let before = dies.calls("once-calls");
        dies.server.kill()?;
        write(&lives.folder.join("go"), "")?;
        eventually("the other node ends it", || Ok(lives.state(&id)? == "completed"))?;
        same(&json!(before + lives.calls("once-calls")), &json!(6))
    }

    /// A node is suspended for longer than a lease, and one starts while NATS is unavailable. Neither
    /// considers the others gone.
    pub(super) fn judging(&self) -> Result<(), String> {
        let mut nats = self.nats()?;
        let tools = [("slow", SLOW), ("once", ONCE)];
        let alpha = self.node(&nats, "alpha", &tools)?;
        let (slow, once) = (alpha.start("slow")?, alpha.start("once")?);
        eventually("both tasks run", || {
            Ok(alpha.calls("slow-calls") == 1 && alpha.calls("once-calls") == 1)
        })?;
        // A node that is there before them could take one.
        let beta = self.node(&nats, "beta", &tools)?;
        eventually("beta knows the tasks", || {
            Ok([&slow, &once].iter().all(|id| beta.state(id).is_ok_and(|state| state == "working")))
        })?;
        signal(beta.server.pid(), "STOP")?;
        std::thread::sleep(LONGER_THAN_A_LEASE);
        signal(beta.server.pid(), "CONT")?;
        let run_on = |node: &Node| -> Result<(), String> {
            // Time for the other node to do what it must not.
            std::thread::sleep(LONGER_THAN_A_LEASE);
            for id in [&slow, &once] {
                same(&json!(node.state(id)?), &json!("working"))?;
            }
            Ok(())
        };
        run_on(&beta)?;
        nats.kill()?;
        let gamma = self.node(&nats, "gamma", &tools)?;
        nats.start()?;
        eventually("gamma knows the tasks", || {
            Ok(gamma.state(&slow).is_ok_and(|state| state == "working"))
        })?;
        run_on(&gamma)?;
        write(&alpha.folder.join("go"), "")?;
        eventually("alpha ends its tasks", || {
            Ok(gamma.state(&slow)? == "completed" && gamma.state(&once)? == "completed")
        })?;
        let others = [&beta, &gamma].map(|node| node.calls("slow-calls") + node.calls("once-calls"));
        same(&json!(others), &json!([0, 0]))
    }

    /// A session goes on when its node is gone.
    pub(super) fn sessions(&self) -> Result<(), String> {
        let nats = self.nats()?;
        let alpha = self.node(&nats, "alpha", &[("where", WHERE)])?;
        let beta = self.node(&nats, "beta", &[("where", WHERE)])?;
        let session = alpha.initialize()?;
        let listed = |node: &Node| node.in_session(&session, "tools/list", &json!({}));
        for node in [&alpha, &beta, &alpha, &beta] {
            let (status, answer) = listed(node)?;
            if status != 200 || answer["result"]["tools"].as_array().is_none_or(Vec::is_empty) {
                return Err(format!("{status} {answer}"));
            }
        }
        let level = json!({"level": "error"});
        same(&json!(beta.in_session(&session, "logging/setLevel", &level)?.0), &json!(200))?;
        alpha.server.kill()?;
        same(&json!(listed(&beta)?.0), &json!(200))?;
        let other = session.replace(|digit: char| digit == session.chars().next().unwrap_or('0'), "a");
        let other = if other == session { session.replace('a', "b") } else { other };
        same(&json!(beta.in_session(&other, "tools/list", &json!({}))?.0), &json!(404))
    }
}

impl Node {
    /// Starts a task, and gives its id.
    fn start(&self, capability: &str) -> Result<String, String> {
        let body = json!({"capability": capability, "input": {}}).to_string();
        let answer = self.request("POST", "/tasks", &body)?;
        answer["id"].as_str().map(str::to_owned).ok_or_else(|| answer.to_string())
    }

    fn request(&self, method: &str, path: &str, body: &str) -> Result<Value, String> {
        let head =
            format!("{method} {path} HTTP/1.1\r\nhost: localhost\r\ncontent-type: application/json\r\n");
        let request = format!("{head}content-length: {}\r\n\r\n{body}", body.len());
        let mut connection = Connection::open(&self.server.address)?;
        let answer = connection.exchange(request.as_bytes())?;
        match answer.status {
            200..300 => Ok(serde_json::from_slice(answer.body).unwrap_or_default()),
            status => Err(format!("{method} {path}: {status} {}", String::from_utf8_lossy(answer.body))),
        }
    }

    pub(super) fn state(&self, task: &str) -> Result<String, String> {
        Ok(self.get(&format!("/tasks/{task}"))?["state"].as_str().unwrap_or_default().to_owned())
    }

    /// Begins a session, and gives its id.
    pub(super) fn initialize(&self) -> Result<String, String> {
        let client = json!({"name": "xtask", "version": "1"});
        let params = json!({"protocolVersion": "2025-11-25", "capabilities": {}, "clientInfo": client});
        let mut connection = Connection::open(&self.server.address)?;
        let answer = connection.exchange(&message("initialize", &params, ""))?;
        let name = "mcp-session-id:";
        let head = answer.head.to_ascii_lowercase();
        let session = head.lines().find_map(|line| line.strip_prefix(name));
        session.map(|session| session.trim().to_owned()).ok_or_else(|| "no session began".to_owned())
    }

    /// The status and the answer of a request in a session.
    pub(super) fn in_session(
        &self,
        session: &str,
        method: &str,
        params: &Value,
    ) -> Result<(u16, Value), String> {
        let headers = format!("mcp-session-id: {session}\r\nmcp-protocol-version: 2025-11-25\r\n");
        let mut connection = Connection::open(&self.server.address)?;
        let answer = connection.exchange(&message(method, params, &headers))?;
        Ok((answer.status, serde_json::from_slice(answer.body).unwrap_or_default()))
    }
}

/// Returns a message of the Model Context Protocol over HTTP.
pub(super) fn message(method: &str, params: &Value, headers: &str) -> Vec<u8> {
    let body = json!({"jsonrpc": "2.0", "id": 1, "method": method, "params": params}).to_string();
    let head = "POST /mcp HTTP/1.1\r\nhost: localhost\r\ncontent-type: application/json\r\naccept: application/json, text/event-stream\r\n";
    format!("{head}{headers}content-length: {}\r\n\r\n{body}", body.len()).into_bytes()
}
