//! Nodes and NATS servers that die again and again under load.

use std::collections::HashMap;
use std::fs;
use std::path::PathBuf;
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use serde_json::json;

use super::{Node, SLOW, World, eventually, same, signal, write};
use crate::server::Server;
use crate::server::free_port;
use std::process::Command;

/// Clients at once, half of them with calls that may be repeated.
const CLIENTS: usize = 8;
/// The pause between two deaths of nodes.
const PAUSE: Duration = Duration::from_secs(5);
/// A tool that notes its input and may be called again.
const AGAIN: &str = "#!/bin/sh\n# /// orla\n# description: Notes its input.\n# annotations: {idempotentHint: true}\n# ///\nx=$(cat); echo \"$x\" >> again-made; echo \"$x\"\n";
/// A tool that notes its input and must not be called again.
const SINGLE: &str = "#!/bin/sh\n# /// orla\n# description: Notes its input, once.\n# ///\nx=$(cat); echo \"$x\" >> single-made; echo \"$x\"\n";

/// Three NATS servers that are one cluster.
struct ThreeNats {
    servers: Vec<Option<Server>>,
    ports: Vec<u16>,
    routes: Vec<u16>,
    folders: Vec<PathBuf>,
    program: PathBuf,
}

/// What came of one call.
struct Answer {
    tool: &'static str,
    input: String,
    /// The error, if the call failed.
    error: Option<String>,
}

impl World {
    /// Nodes that die every few seconds, and one of three NATS servers meanwhile.
    pub(super) fn chaos(&self, length: Duration) -> Result<(), String> {
        let mut nats = ThreeNats::start(self)?;
        let tools = [("again", AGAIN), ("single", SINGLE)];
        let mut nodes = Vec::new();
        for name in ["alpha", "beta", "gamma"] {
            nodes.push(Some(self.instance(name, &nats.config(name), &tools)?));
        }
        let folders: Vec<PathBuf> = nodes.iter().flatten().map(|node| node.folder.clone()).collect();
        let front = self.instance("front", &nats.config("front"), &[])?;
        for name in ["alpha", "beta", "gamma"] {
            eventually("the front knows all nodes", || {
                Ok(front.knows(name)?["capabilities"] == json!(["again", "single"]))
            })?;
        }
        let (answers, next, is_over) =
            (Mutex::new(Vec::new()), AtomicUsize::new(0), AtomicBool::new(false));
        let deaths = std::thread::scope(|scope| {
            for client in 0..CLIENTS {
                let (front, answers, next, is_over) = (&front, &answers, &next, &is_over);
                scope.spawn(move || {
                    while !is_over.load(Ordering::Relaxed) {
                        let tool = if client % 2 == 0 { "again" } else { "single" };
                        let input = format!("call-{}", next.fetch_add(1, Ordering::Relaxed));
                        let result = front.call(tool, &json!({"stdin": input}));
                        let error = match result {
                            Ok(value) if value == json!(input) => None,
                            Ok(value) => Some(format!("another answer: {value}")),
                            Err(error) => Some(error),
                        };
                        if let Ok(mut answers) = answers.lock() {
                            answers.push(Answer { tool, input, error });
                        }
                    }
                });
            }
            let deaths = self.deaths(&mut nats, &mut nodes, length);
            is_over.store(true, Ordering::Relaxed);
            deaths
        })?;
        let answers = answers.into_inner().map_err(|_| "a thread panicked")?;
        judge(&answers, &folders)?;
        let failed = |tool| answers.iter().filter(|one| one.tool == tool && one.error.is_some()).count();
        println!(
            "      {} calls, {deaths} deaths: {} failed that may be repeated, {} others",
            answers.len(),
            failed("again"),
            failed("single")
        );
        match answers.iter().find(|one| one.tool == "again" && one.error.is_some()) {
            Some(one) => Err(format!("a call that may be repeated failed: {:?}", one.error)),
            None => Ok(()),
        }
    }

    /// Kills and starts again, until the time is over. Returns how often.
    fn deaths(
        &self,
        nats: &mut ThreeNats,
        nodes: &mut [Option<Node>],
        length: Duration,
    ) -> Result<usize, String> {
        let (end, mut deaths) = (Instant::now() + length, 0);
        while Instant::now() < end {
            std::thread::sleep(PAUSE);
            let at = deaths % nodes.len();
            if let Some(Node { server, folder }) = nodes[at].take() {
                server.kill()?;
                let server = Server::start(&self.binary, &folder, &folder)?;
                nodes[at] = Some(Node { server, folder });
            }
            // Each server has the time to catch up before the next one dies.
            if deaths % 3 == 1 {
                nats.kill(deaths / 3 % 3)?;
            } else if deaths % 3 == 2 {
                nats.revive()?;
            }
            deaths += 1;
        }
        nats.revive()?;
        Ok(deaths)
    }

    /// Suspends a node for a while during a call, and checks what it does afterwards.
    pub(super) fn fenced(&self, length: Duration) -> Result<(), String> {
        let nats = self.nats()?;
        let alpha = self.node(&nats, "alpha", &[("slow", SLOW)])?;
        let beta = self.node(&nats, "beta", &[])?;
        eventually("beta lists `slow`", || beta.lists("slow"))?;
        let (gamma, took) = std::thread::scope(|scope| {
            let slow = scope.spawn(|| (beta.call("slow", &json!({})), Instant::now()));
            eventually("the call runs", || Ok(alpha.calls("slow-calls") == 1))?;
            let gamma = self.node(&nats, "gamma", &[("slow", SLOW)])?;
            write(&gamma.folder.join("go"), "")?;
            eventually("beta knows gamma", || {
                Ok(beta.knows("gamma")?["capabilities"] == json!(["slow"]))
            })?;
            signal(alpha.server.pid(), "STOP")?;
            let stopped = Instant::now();
            let (answer, answered) = slow.join().map_err(|_| "a thread panicked")?;
            std::thread::sleep(length.saturating_sub(stopped.elapsed()));
            signal(alpha.server.pid(), "CONT")?;
            same(&answer?, &gamma.folder_value())?;
            Ok::<_, String>((gamma, answered - stopped))
        })?;
        write(&alpha.folder.join("go"), "")?;
        println!("      the call was answered {took:?} after its node stood still");
        // The call of before was given up: it is not answered twice, and not made again.
        eventually("alpha is there again", || Ok(beta.knows("alpha")?["alive"] == json!(true)))?;
        for _ in 0..6 {
            beta.call("slow", &json!({}))?;
        }
        let made = alpha.calls("slow-calls") + gamma.calls("slow-calls");
        if made == 2 + 6 { Ok(()) } else { Err(format!("8 calls were made {made} times")) }
    }
}

/// Checks that every answered call was made, and that no call was repeated that must not be.
fn judge(answers: &[Answer], folders: &[PathBuf]) -> Result<(), String> {
    let count = |file: &str| {
        let mut made = HashMap::<String, usize>::new();
        for folder in folders {
            let text = fs::read_to_string(folder.join(file)).unwrap_or_default();
            for line in text.lines() {
                *made.entry(line.to_owned()).or_default() += 1;
            }
        }
        made
    };
    let made = HashMap::from([("again", count("again-made")), ("single", count("single-made"))]);
    for Answer { tool, input, error } in answers {
        let times = made[tool].get(input).copied().unwrap_or_default();
        if times == 0 && error.is_none() {
            return Err(format!("{input} of {tool} was answered and not made"));
        }
        if *tool == "single" && times > 1 {
            return Err(format!("{input} was made {times} times"));
        }
    }
    Ok(())
}

impl ThreeNats {
    fn start(world: &World) -> Result<Self, String> {
        let mut three = Self {
            servers: vec![None, None, None],
            ports: (0..3).map(|_| free_port()).collect::<Result<_, _>>()?,
            routes: (0..3).map(|_| free_port()).collect::<Result<_, _>>()?,
            folders: (0..3).map(|_| world.fresh("nats")).collect::<Result<_, _>>()?,
            program: world.nats.clone(),
        };
        three.revive()?;
        Ok(three)
    }

    fn kill(&mut self, at: usize) -> Result<(), String> {
        self.servers[at].take().map_or(Ok(()), Server::kill)
    }

    /// Starts those that are not there.
    fn revive(&mut self) -> Result<(), String> {
        let routes: Vec<String> =
            self.routes.iter().map(|port| format!("nats://127.0.0.1:{port}")).collect();
        for at in 0..3 {
            if self.servers[at].is_some() {
                continue;
            }
            let (port, folder) = (self.ports[at], &self.folders[at]);
            let mut command = Command::new(&self.program);
            command
                .args(["-js", "-a", "127.0.0.1", "-p", &port.to_string()])
                .args(["-n", &format!("n{at}"), "--cluster_name", "c", "--cluster"])
                .arg(&routes[at])
                .args(["--routes", &routes.join(","), "-sd"])
                .arg(folder);
            let address = format!("127.0.0.1:{port}");
            self.servers[at] = Some(Server::reachable(command, &folder.join("nats.log"), &address)?);
        }
        Ok(())
    }

    fn config(&self, node: &str) -> String {
        let addresses: Vec<String> =
            self.ports.iter().map(|port| format!("\"nats://127.0.0.1:{port}\"")).collect();
        format!("cluster: {{nats: [{}], name: t, node: {node}}}\n", addresses.join(", "))
    }
}
