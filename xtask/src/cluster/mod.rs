//! Several nodes over a real NATS server, which is installed below `target/cluster`.

mod access;
mod approvals;
mod balancer;
mod chaos;
mod cost;
mod faults;
mod foreign;
mod kills;
mod limits;
mod questions;
mod sessions;
mod shared;
mod traffic;
mod versions;

use std::fs;
use std::os::unix::fs::{PermissionsExt as _, symlink};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use serde_json::{Value, json};

use crate::bench::client::Connection;
use crate::install;
use crate::parts::{self, Parts};
use crate::process;
use crate::server::{self, Server};
use crate::tally::Tally;
use crate::{Outcome, root, target};
use orla_e2e::free_port;

/// How long anything may take that is waited for.
const TIMEOUT: Duration = Duration::from_secs(60);
/// How many checks run at once, each with nodes and a NATS server of its own. They wait most of the time.
const AT_ONCE: usize = 5;
/// How long a node stands still.
const STANDSTILL: Duration = Duration::from_secs(30);

/// A tool that says where it runs, and notes that it was called.
const WHERE: &str = "#!/bin/sh\n# /// orla\n# description: Says where it runs.\n# annotations: {idempotentHint: true}\n# ///\necho x >> calls; pwd\n";
/// A tool that takes a while and can be called again.
const SLOW: &str = "#!/bin/sh\n# /// orla\n# description: Takes a while.\n# annotations: {idempotentHint: true}\n# ///\necho x >> slow-calls; while [ ! -f go ]; do sleep 0.05; done; pwd\n";
/// A tool that takes a while and must not be called again.
const ONCE: &str = "#!/bin/sh\n# /// orla\n# description: Takes a while, once.\n# ///\necho x >> once-calls; while [ ! -f go ]; do sleep 0.05; done; pwd\n";
/// A tool that returns its input.
const ECHO: &str = "#!/bin/sh\n# /// orla\n# description: Returns its input.\n# annotations: {readOnlyHint: true}\n# ///\ncat\n";

pub(crate) fn run(arguments: &[String]) -> Outcome {
    let mut names: Vec<&str> = CHECKS.iter().chain(ALONE).map(|(part, ..)| *part).collect();
    names.push(FOREIGN);
    names.sort_unstable();
    names.dedup();
    let parts = Parts::of(arguments, &[parts::QUICK], &names)?;
    let binary = server::binary()?;
    let world = World::new(binary, parts.is_quick)?;
    let mut tally = Tally::default();
    let (chosen, told) =
        (Mutex::new(CHECKS.iter().filter(|(part, ..)| parts.has(part))), Mutex::new(&mut tally));
    let next = || lock(&chosen).next();
    std::thread::scope(|scope| {
        for _ in 0..AT_ONCE {
            scope.spawn(|| {
                while let Some((_, what, check)) = next() {
                    let result = check(&world);
                    lock(&told).check(what, result);
                }
            });
        }
    });
    for (_, what, check) in ALONE.iter().filter(|(part, ..)| parts.has(part)) {
        tally.check(what, check(&world));
    }
    if parts.has("chaos") && !parts.is_quick {
        tally.check("a node that stands still for 30 s is fenced off", world.fenced(STANDSTILL));
    }
    if parts.has(FOREIGN) && !parts.is_quick {
        world.foreign(&mut tally)?;
    }
    Ok(tally.close())
}

/// The part that needs programs of others.
const FOREIGN: &str = "foreign";

type Check = fn(&World) -> Result<(), String>;

/// The checks that need the machine for themselves.
const ALONE: &[(&str, &str, Check)] = &[
    ("cost", "what a call costs", World::cost),
    ("cost", "what nodes, calls, lists and changes cost NATS", World::traffic),
    ("cost", "how many calls one, two and three instances answer", World::throughput),
    ("chaos", "nodes and NATS servers die under load", World::chaos),
];

/// The parts by which the other checks are chosen, what they show, and the checks.
const CHECKS: &[(&str, &str, Check)] = &[
    // What takes long begins first.
    ("kills", "a program whose node is killed after every step ends right", World::kills),
    ("tasks", "the store keeps what every store promises", World::store),
    ("tasks", "a task is run by any node, and goes on when its node is gone", World::tasks),
    ("tasks", "a program goes on at another node", World::programs),
    ("tasks", "a task accepted without NATS runs when it is back", World::buffered_tasks),
    ("tasks", "a node that stood still or starts alone takes nothing of others", World::judging),
    ("calls", "a tool of another node is listed and called", World::listed_and_called),
    ("calls", "large inputs and results arrive whole", World::large),
    ("calls", "what is here wins, and equal nodes share the calls", World::shared),
    ("faults", "a node that dies during a call: repeated or told", World::dying),
    (
        "faults",
        "a repeatable call that lost its node is made at one that offers it later",
        World::joined_late,
    ),
    ("faults", "a node that stands still is given up", World::stopped),
    ("faults", "without NATS the node goes on, and with it again the cluster", World::without_nats),
    ("faults", "of two instances with one name, a call reaches one", World::two_of_one_name),
    ("faults", "a NATS server that lost its data is given it again", World::forgetful_nats),
    ("faults", "nodes call each other while JetStream has no leader", World::leaderless_nats),
    ("faults", "a node that floods and lies harms its own calls alone", World::hostile_node),
    ("calls", "a node without room passes its calls on", World::full_node),
    ("calls", "a node that drains finishes its calls and takes no more", World::draining),
    ("calls", "a call runs on the node that it names, or fails", World::pinned),
    ("sessions", "a session is served by every node", World::sessions),
    ("sessions", "a session that moves with each request misses nothing", World::moving_sessions),
    ("sessions", "a session calls the versions that it listed at every node", World::listed_versions),
    ("sessions", "a question to a client without a session is answered at any node", World::questions),
    ("limits", "quotas and max_concurrency hold over all nodes", World::limits),
    (
        "approvals",
        "a call that waits for an approval is shown and answered at every node",
        World::approvals,
    ),
    (
        "approvals",
        "a program's call that waits for an approval is asked about anew when its node is gone",
        World::asked_anew,
    ),
    ("example", "examples/cluster: run.sh", World::example),
    ("access", "a node needs the documented subjects alone", World::permitted),
    ("access", "nodes join over TLS with certificates and credentials", World::encrypted),
    ("access", "what keeps a node from joining is one line", World::refused),
];

/// The folder of a run, and what runs in it.
struct World {
    binary: PathBuf,
    nats: PathBuf,
    folder: PathBuf,
    is_quick: bool,
    /// Numbers folders.
    next: AtomicUsize,
}

/// A NATS server with JetStream.
struct Nats {
    server: Option<Server>,
    port: u16,
    folder: PathBuf,
    nats: PathBuf,
}

/// A node and its folder.
struct Node {
    server: Server,
    folder: PathBuf,
}

impl World {
    fn new(binary: PathBuf, is_quick: bool) -> Result<Self, String> {
        let nats = install_nats()?;
        let folder = target("cluster/run")?;
        fs::remove_dir_all(&folder).map_err(|err| err.to_string())?;
        fs::create_dir_all(&folder).map_err(|err| err.to_string())?;
        Ok(Self { binary, nats, folder, is_quick, next: AtomicUsize::new(1) })
    }

    fn fresh(&self, name: &str) -> Result<PathBuf, String> {
        let number = self.next.fetch_add(1, Ordering::Relaxed);
        let folder = self.folder.join(format!("{number}-{name}"));
        fs::create_dir_all(&folder).map_err(|err| err.to_string())?;
        Ok(folder)
    }

    fn nats(&self) -> Result<Nats, String> {
        let mut nats = Nats {
            server: None,
            port: free_port(),
            folder: self.fresh("nats")?,
            nats: self.nats.clone(),
        };
        nats.start()?;
        Ok(nats)
    }

    fn node(&self, nats: &Nats, name: &str, tools: &[(&str, &str)]) -> Result<Node, String> {
        let cluster = nats.config(name);
        let config = format!("{cluster}max_body_bytes: 10000000\nmax_output_bytes: 10000000\n");
        self.instance(name, &config, tools)
    }

    fn instance(&self, name: &str, config: &str, tools: &[(&str, &str)]) -> Result<Node, String> {
        self.start(self.folder_of(name, config, tools)?)
    }

    /// Starts the node of a folder.
    fn start(&self, folder: PathBuf) -> Result<Node, String> {
        Ok(Node { server: Server::start(&self.binary, &folder, &folder)?, folder })
    }

    fn folder_of(&self, name: &str, config: &str, tools: &[(&str, &str)]) -> Result<PathBuf, String> {
        let folder = self.fresh(name)?;
        write(&folder.join("orla.yaml"), config)?;
        fs::create_dir_all(folder.join("tools")).map_err(|err| err.to_string())?;
        for (tool, text) in tools {
            let path = folder.join("tools").join(tool);
            write(
                &path,
                &text
                    .replace(">> ", &format!(">> {}/", folder.display()))
                    .replace("-f go", &format!("-f {}/go", folder.display()))
                    .replace("pwd", &format!("echo {}", folder.display())),
            )?;
            fs::set_permissions(&path, fs::Permissions::from_mode(0o755))
                .map_err(|err| err.to_string())?;
        }
        Ok(folder)
    }

    fn listed_and_called(&self) -> Result<(), String> {
        let nats = self.nats()?;
        let alpha = self.node(&nats, "alpha", &[("where", WHERE)])?;
        let beta = self.node(&nats, "beta", &[])?;
        eventually("beta lists `where`", || beta.lists("where"))?;
        same(&beta.call("where", &json!({}))?, &alpha.folder_value())?;
        write(&alpha.folder.join("tools/later"), WHERE)?;
        let later = alpha.folder.join("tools/later");
        fs::set_permissions(&later, fs::Permissions::from_mode(0o755)).map_err(|err| err.to_string())?;
        alpha.server.hang_up()?;
        eventually("beta lists what came later", || beta.lists("later"))?;
        let gone = alpha.server.end(TIMEOUT)?;
        if !gone.success() {
            return Err(format!("alpha ended with {gone}"));
        }
        eventually("beta does not list what is gone", || beta.lists("where").map(|is_listed| !is_listed))
    }

    fn large(&self) -> Result<(), String> {
        let nats = self.nats()?;
        let _alpha = self.node(&nats, "alpha", &[("echo", ECHO)])?;
        let beta = self.node(&nats, "beta", &[])?;
        eventually("beta lists `echo`", || beta.lists("echo"))?;
        for size in [10, 600_000, 3_000_000] {
            let text = json!("x".repeat(size));
            same(&beta.call("echo", &json!({"stdin": text}))?, &text)?;
        }
        Ok(())
    }

    fn shared(&self) -> Result<(), String> {
        let nats = self.nats()?;
        let tools = [("where", WHERE)];
        let nodes = [self.node(&nats, "alpha", &tools)?, self.node(&nats, "beta", &tools)?];
        let gamma = self.node(&nats, "gamma", &[])?;
        eventually("gamma lists `where`", || gamma.lists("where"))?;
        eventually("gamma knows three nodes", || {
            let status = gamma.get("/status")?;
            let nodes = status["cluster"]["nodes"].as_array().cloned().unwrap_or_default();
            Ok(nodes.iter().filter(|node| node["capabilities"] == json!(["where"])).count() == 2)
        })?;
        for _ in 0..20 {
            gamma.call("where", &json!({}))?;
        }
        let counts: Vec<usize> = nodes.iter().map(|node| node.calls("calls")).collect();
        if counts.iter().sum::<usize>() != 20 || counts.contains(&0) {
            return Err(format!("the calls went {counts:?}"));
        }
        same(&nodes[0].call("where", &json!({}))?, &nodes[0].folder_value())
    }

    fn dying(&self) -> Result<(), String> {
        let nats = self.nats()?;
        let tools = [("slow", SLOW), ("once", ONCE)];
        let alpha = self.node(&nats, "alpha", &tools)?;
        let beta = self.node(&nats, "beta", &[])?;
        eventually("beta lists `slow`", || beta.lists("slow"))?;
        let folder = alpha.folder.clone();
        let (slow, once, gamma) = std::thread::scope(|scope| {
            let slow = scope.spawn(|| beta.call("slow", &json!({})));
            let once = scope.spawn(|| beta.call("once", &json!({})));
            let began = eventually("both calls run", || {
                Ok(alpha.calls("slow-calls") == 1 && alpha.calls("once-calls") == 1)
            });
            let gamma = self.node(&nats, "gamma", &tools)?;
            write(&gamma.folder.join("go"), "")?;
            eventually("beta knows gamma", || {
                Ok(beta.get("/status")?["cluster"]["nodes"].as_array().is_some_and(|nodes| {
                    nodes.iter().any(|node| {
                        node["node"] == "gamma" && node["capabilities"] == json!(["once", "slow"])
                    })
                }))
            })?;
            alpha.server.kill()?;
            let slow = slow.join().map_err(|_| "a thread panicked")?;
            let once = once.join().map_err(|_| "a thread panicked")?;
            began.map(|()| (slow, once, gamma))
        })?;
        same(&slow?, &gamma.folder_value())?;
        let Err(told) = once else { return Err("a call was made twice".to_owned()) };
        if !told.contains("node alpha of the cluster was lost") || !told.contains("unavailable") {
            return Err(format!("the caller is told: {told}"));
        }
        let count = fs::read_to_string(folder.join("once-calls")).map_or(0, |text| text.lines().count());
        if (count, gamma.calls("once-calls")) != (1, 0) {
            return Err("a call that must not be repeated was".to_owned());
        }
        Ok(())
    }

    fn stopped(&self) -> Result<(), String> {
        let nats = self.nats()?;
        let alpha = self.node(&nats, "alpha", &[("slow", SLOW)])?;
        let beta = self.node(&nats, "beta", &[])?;
        eventually("beta lists `slow`", || beta.lists("slow"))?;
        let gamma = std::thread::scope(|scope| {
            let slow = scope.spawn(|| beta.call("slow", &json!({})));
            eventually("the call runs", || Ok(alpha.calls("slow-calls") == 1))?;
            let gamma = self.node(&nats, "gamma", &[("slow", SLOW)])?;
            write(&gamma.folder.join("go"), "")?;
            eventually("beta knows gamma", || {
                Ok(beta.get("/status")?["cluster"]["nodes"].as_array().is_some_and(|nodes| {
                    nodes.len() == 3
                        && nodes.iter().any(|node| {
                            node["node"] == "gamma" && node["capabilities"] == json!(["slow"])
                        })
                }))
            })?;
            signal(alpha.server.pid(), "STOP")?;
            let answer = slow.join().map_err(|_| "a thread panicked")?;
            signal(alpha.server.pid(), "CONT")?;
            same(&answer?, &gamma.folder_value())?;
            Ok::<_, String>(gamma)
        })?;
        drop(gamma);
        write(&alpha.folder.join("go"), "")?;
        eventually("alpha is there again", || {
            Ok(beta.call("slow", &json!({})).is_ok_and(|there| there == alpha.folder_value()))
        })
    }

    /// The script of the example finds its programs in `PATH`.
    fn example(&self) -> Result<(), String> {
        let folder = self.fresh("example")?;
        for (name, program) in [("orla", &self.binary), ("nats-server", &self.nats)] {
            let program = program.canonicalize().map_err(|err| format!("{name}: {err}"))?;
            symlink(program, folder.join(name)).map_err(|err| format!("{name}: {err}"))?;
        }
        let path = std::env::var("PATH").unwrap_or_default();
        let mut script = Command::new(root().join("examples/cluster/run.sh"));
        script.arg("--once").env("PATH", format!("{}:{path}", folder.display()));
        let printed = process::run(&mut script, &folder, TIMEOUT)?.stdout_of_success()?;
        let (status, answer) = printed.split_once("alpha calls a tool of gamma:").unwrap_or_default();
        match ["alpha", "beta", "gamma"].iter().all(|node| status.contains(node)) {
            true if answer.trim().ends_with("/gamma") => Ok(()),
            _ => Err(format!("it printed {printed}")),
        }
    }

    fn without_nats(&self) -> Result<(), String> {
        let mut nats = self.nats()?;
        let alpha = self.node(&nats, "alpha", &[("where", WHERE)])?;
        let beta = self.node(&nats, "beta", &[("own", WHERE)])?;
        eventually("beta lists `where`", || beta.lists("where"))?;
        nats.kill()?;
        eventually("far calls are unavailable", || {
            Ok(beta.call("where", &json!({})).is_err_and(|told| told.contains("unavailable")))
        })?;
        same(&beta.call("own", &json!({}))?, &beta.folder_value())?;
        if !beta.lists("where")? {
            return Err("what is unavailable is not listed any more".to_owned());
        }
        let late = self.node(&nats, "late", &[("own", WHERE)])?;
        same(&late.call("own", &json!({}))?, &late.folder_value())?;
        nats.start()?;
        eventually("far calls work again", || {
            Ok(beta.call("where", &json!({})).is_ok_and(|there| there == alpha.folder_value()))
        })?;
        eventually("who came without NATS joins", || {
            Ok(late.call("where", &json!({})).is_ok_and(|there| there == alpha.folder_value()))
        })
    }
}

impl Nats {
    fn with(world: &World, options: &[&str]) -> Result<Self, String> {
        let (port, folder) = (free_port(), world.fresh("nats")?);
        let mut nats = Self { server: None, port, folder, nats: world.nats.clone() };
        nats.start_with(options)?;
        Ok(nats)
    }

    fn start(&mut self) -> Result<(), String> {
        self.start_with(&["-js"])
    }

    fn start_with(&mut self, options: &[&str]) -> Result<(), String> {
        let mut command = Command::new(&self.nats);
        command
            .args(["-a", "127.0.0.1", "-p", &self.port.to_string(), "-sd"])
            .arg(&self.folder)
            .args(options);
        let address = format!("127.0.0.1:{}", self.port);
        self.server = Some(Server::reachable(command, &self.folder.join("nats.log"), &address)?);
        Ok(())
    }

    fn kill(&mut self) -> Result<(), String> {
        self.server.take().map_or(Ok(()), Server::kill)
    }

    /// The configuration of a node that uses this server.
    fn config(&self, node: &str) -> String {
        format!("cluster: {{nats: \"nats://127.0.0.1:{}\", name: t, node: {node}}}\n", self.port)
    }
}

impl Node {
    fn folder_value(&self) -> Value {
        json!(self.folder.display().to_string())
    }

    /// Returns the value of a call, or its error.
    fn call(&self, capability: &str, input: &Value) -> Result<Value, String> {
        let request = post(&json!({"call": capability, "input": input}));
        value_of(&self.exchange(&request)?)
    }

    fn get(&self, path: &str) -> Result<Value, String> {
        self.exchange(format!("GET {path} HTTP/1.1\r\nhost: localhost\r\n\r\n").as_bytes())
    }

    fn exchange(&self, request: &[u8]) -> Result<Value, String> {
        Ok(ask(&self.server.address, request)?.1)
    }

    /// Returns a value of `/metrics`.
    fn metric(&self, name: &str) -> Result<f64, String> {
        let mut connection = Connection::open(&self.server.address)?;
        let answer = connection.exchange(b"GET /metrics HTTP/1.1\r\nhost: localhost\r\n\r\n")?;
        let text = String::from_utf8_lossy(answer.body);
        let line = text.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(' '));
        line.and_then(|value| value.parse().ok()).ok_or_else(|| format!("no metric {name}"))
    }

    fn lists(&self, name: &str) -> Result<bool, String> {
        let status = self.get("/status")?;
        let rows = status["capabilities"].as_array().cloned().unwrap_or_default();
        Ok(rows.iter().any(|row| row["id"] == name))
    }

    /// What it says of a node.
    fn knows(&self, name: &str) -> Result<Value, String> {
        let nodes = self.get("/status")?["cluster"]["nodes"].as_array().cloned().unwrap_or_default();
        Ok(nodes.into_iter().find(|node| node["node"] == name).unwrap_or_default())
    }

    /// Returns how many calls of a program have been answered.
    fn answered(&self, id: &str) -> Result<usize, String> {
        Ok(crate::durable::kills::answered(&self.get(&format!("/tasks/{id}"))?))
    }

    /// Returns how many calls a tool has noted.
    fn calls(&self, file: &str) -> usize {
        fs::read_to_string(self.folder.join(file)).map_or(0, |text| text.lines().count())
    }
}

/// Returns the value in the answer to a call, or its error.
fn value_of(answer: &Value) -> Result<Value, String> {
    match answer.get("value") {
        Some(value) => Ok(json!(value["stdout"].as_str().unwrap_or_default().trim())),
        None => Err(answer["error"].to_string()),
    }
}

/// Returns the status and the JSON of the answer to a request.
fn ask(address: &str, request: &[u8]) -> Result<(u16, Value), String> {
    let mut connection = Connection::open(address)?;
    let answer = connection.exchange(request)?;
    let body = serde_json::from_slice(answer.body).map_err(|err| err.to_string())?;
    Ok((answer.status, body))
}

/// Returns a call without the Model Context Protocol around it, answered by one JSON object.
fn post(body: &Value) -> Vec<u8> {
    let body = body.to_string();
    let head =
        "POST /rtfs HTTP/1.1\r\nhost: localhost\r\ncontent-type: application/json\r\ncontent-length:";
    format!("{head} {}\r\n\r\n{body}", body.len()).into_bytes()
}

/// Installs the NATS server, and says where it is.
fn install_nats() -> Result<PathBuf, String> {
    let pins = install::pins("cluster").join("requirements.txt");
    let python = install::python(&target("cluster")?, &pins, "python")?;
    Ok(python.with_file_name("nats-server"))
}

fn eventually(what: &str, holds: impl Fn() -> Result<bool, String>) -> Result<(), String> {
    let end = Instant::now() + TIMEOUT;
    while !holds()? {
        if Instant::now() > end {
            return Err(format!("never: {what}"));
        }
        std::thread::sleep(Duration::from_millis(20));
    }
    Ok(())
}

fn same(got: &Value, wanted: &Value) -> Result<(), String> {
    let short = |value: &Value| value.to_string().chars().take(200).collect::<String>();
    if got == wanted { Ok(()) } else { Err(format!("got {}, wanted {}", short(got), short(wanted))) }
}

fn signal(pid: u32, name: &str) -> Result<(), String> {
    let sent = Command::new("kill").args([format!("-{name}"), pid.to_string()]).status();
    match sent {
        Ok(status) if status.success() => Ok(()),
        other => Err(format!("kill: {other:?}")),
    }
}

fn lock<T>(of: &Mutex<T>) -> MutexGuard<'_, T> {
    of.lock().unwrap_or_else(PoisonError::into_inner)
}

fn write(path: &Path, text: &str) -> Result<(), String> {
    fs::write(path, text).map_err(|err| format!("{}: {err}", path.display()))
}
