//! Nodes and NATS servers that die again and again under load.

use std::collections::{HashMap, HashSet};
use std::fs;
use std::path::PathBuf;
use std::process::Command;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::thread::ScopedJoinHandle;
use std::time::{Duration, Instant};

use serde_json::{Value, json};

use super::{Node, SLOW, TIMEOUT, World, ask, eventually, post, same, signal, value_of, write};
use crate::bench::client::{self, Connection};
use crate::durable::all_tasks;
use crate::server::Server;
use orla_e2e::free_port;

/// Clients at once, half of them with calls that may be repeated.
const CLIENTS: usize = 16;
/// Clients that begin tasks meanwhile.
const STARTERS: usize = 4;
/// The pause before what failed is tried again.
const RETRY: Duration = Duration::from_millis(20);
/// How a call is answered whose connection ended first.
const BROKEN: &str = "the connection ended";
/// A tool that notes its input and may be called again.
const AGAIN: &str = "#!/bin/sh\n# /// orla\n# description: Notes its input.\n# annotations: {idempotentHint: true}\n# ///\nx=$(cat); echo \"$x\" >> again-made; echo \"$x\"\n";
/// A tool that notes its input and must not be called again.
const SINGLE: &str = "#!/bin/sh\n# /// orla\n# description: Notes its input, once.\n# ///\nx=$(cat); echo \"$x\" >> single-made; echo \"$x\"\n";

/// How long and how often what dies, and what is done meanwhile.
#[derive(Clone, Copy)]
struct Plan {
    /// How long nodes die, and then as long nodes and NATS servers.
    phase: Duration,
    /// The pause between two deaths of nodes.
    pause: Duration,
    /// How many tasks are begun.
    tasks: usize,
}

const LONG: Plan = Plan { phase: Duration::from_secs(60), pause: Duration::from_secs(5), tasks: 2_000 };
const QUICK: Plan = Plan { phase: Duration::from_secs(6), pause: Duration::from_secs(2), tasks: 100 };

/// What has died.
#[derive(Default)]
struct Deaths {
    nodes: usize,
    /// NATS servers.
    servers: usize,
}

/// Three NATS servers that are one cluster.
pub(super) struct ThreeNats {
    servers: Vec<Option<Server>>,
    ports: Vec<u16>,
    routes: Vec<u16>,
    folders: Vec<PathBuf>,
    program: PathBuf,
}

/// What the clients do, and where.
struct Load<'a> {
    plan: Plan,
    began: Instant,
    /// A node without tools, which does not die.
    front: &'a Node,
    /// The addresses of the nodes that die.
    addresses: Mutex<Vec<String>>,
    turn: AtomicUsize,
    next_call: AtomicUsize,
    next_task: AtomicUsize,
    is_over: AtomicBool,
}

/// What came of one call.
struct Answer {
    tool: &'static str,
    input: String,
    told: Result<Value, String>,
}

/// A task that was accepted.
struct Accepted {
    id: String,
    tool: &'static str,
    input: String,
}

impl World {
    /// Nodes that die every few seconds, and then one of three NATS servers meanwhile.
    pub(super) fn chaos(&self) -> Result<(), String> {
        let plan = if self.is_quick { QUICK } else { LONG };
        let mut nats = ThreeNats::start(self)?;
        let tools = [("again", AGAIN), ("single", SINGLE)];
        let names = ["alpha", "beta", "gamma"];
        let start = |name: &&str| self.instance(name, &nats.config(name), &tools);
        let mut nodes: Vec<Node> = names.iter().map(start).collect::<Result<_, _>>()?;
        let front = self.instance("front", &nats.config("front"), &[])?;
        for name in names {
            eventually("the front knows all nodes", || {
                Ok(front.knows(name)?["capabilities"] == json!(["again", "single"]))
            })?;
        }
        let load = Load::new(plan, &front, &nodes);
        let (deaths, answers, accepted) = std::thread::scope(|scope| {
            let load = &load;
            let clients: Vec<_> =
                (0..CLIENTS).map(|client| scope.spawn(move || load.make_calls(client))).collect();
            let starters: Vec<_> = (0..STARTERS).map(|_| scope.spawn(|| load.begin_tasks())).collect();
            let deaths = self.deaths(&mut nats, &mut nodes, load);
            let accepted: Vec<_> = starters.into_iter().map(joined).collect();
            load.is_over.store(true, Ordering::Relaxed);
            let answers: Vec<_> = clients.into_iter().map(joined).collect();
            let answers: Vec<Answer> = answers.into_iter().flatten().flatten().collect();
            let accepted = accepted.into_iter().collect::<Result<Result<Vec<_>, _>, _>>()??;
            Ok::<_, String>((deaths?, answers, accepted.into_iter().flatten().collect::<Vec<_>>()))
        })?;
        await_ends(&front, &accepted)?;
        let made = Made::read(&nodes);
        let failed = judge_calls(&answers, &made)?;
        let Deaths { nodes: node_deaths, servers } = deaths;
        println!(
            "      {} calls, {node_deaths} deaths of nodes and {servers} of NATS servers: {failed} failed that may not be repeated, no others",
            answers.len()
        );
        if servers == 0 {
            return Err("no NATS server died".to_owned());
        }
        most_succeeded(failed, answers.iter().filter(|answer| answer.tool == "single").count())?;
        nodes.push(front);
        let interrupted = judge_tasks(&accepted, &made, &nodes)?;
        println!(
            "      {} tasks: {interrupted} were interrupted, which may not be repeated",
            accepted.len()
        );
        most_succeeded(interrupted, accepted.iter().filter(|task| task.tool == "single").count())
    }

    /// Kills and starts again, until the time is over.
    fn deaths(
        &self,
        nats: &mut ThreeNats,
        nodes: &mut Vec<Node>,
        load: &Load<'_>,
    ) -> Result<Deaths, String> {
        let (plan, mut deaths, mut round) = (load.plan, Deaths::default(), 0);
        while load.began.elapsed() < plan.phase * 2 {
            std::thread::sleep(plan.pause);
            let at = deaths.nodes % nodes.len();
            let Node { server, folder } = nodes.remove(at);
            server.kill()?;
            let node = self.start(folder)?;
            load.move_to(at, &node);
            nodes.insert(at, node);
            deaths.nodes += 1;
            if load.began.elapsed() < plan.phase {
                continue;
            }
            // Each server has the time to catch up before the next one dies.
            match round % 3 {
                0 => {
                    nats.kill(deaths.servers % 3)?;
                    deaths.servers += 1;
                }
                1 => nats.revive()?,
                _ => {}
            }
            round += 1;
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

fn joined<T>(thread: ScopedJoinHandle<'_, T>) -> Result<T, String> {
    thread.join().map_err(|_| "a thread panicked".to_owned())
}

impl<'a> Load<'a> {
    fn new(plan: Plan, front: &'a Node, nodes: &[Node]) -> Self {
        let addresses = nodes.iter().map(|node| node.server.address.clone()).collect();
        Self {
            plan,
            began: Instant::now(),
            front,
            addresses: Mutex::new(addresses),
            turn: AtomicUsize::new(0),
            next_call: AtomicUsize::new(0),
            next_task: AtomicUsize::new(0),
            is_over: AtomicBool::new(false),
        }
    }

    fn addresses(&self) -> MutexGuard<'_, Vec<String>> {
        self.addresses.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// A node was started again.
    fn move_to(&self, at: usize, node: &Node) {
        self.addresses()[at].clone_from(&node.server.address);
    }

    /// Returns the address of the node whose turn it is.
    fn address(&self) -> String {
        let addresses = self.addresses();
        addresses[self.turn.fetch_add(1, Ordering::Relaxed) % addresses.len()].clone()
    }

    /// Makes calls until it is over: half of the clients at the front, the others at the nodes.
    fn make_calls(&self, client: usize) -> Vec<Answer> {
        let tool = if client.is_multiple_of(2) { "again" } else { "single" };
        let mut answers = Vec::new();
        while !self.is_over.load(Ordering::Relaxed) {
            let input = format!("call-{}", self.next_call.fetch_add(1, Ordering::Relaxed));
            let body = json!({"stdin": input});
            let told = match client < CLIENTS / 2 {
                true => self.front.call(tool, &body),
                false => self.call_a_node(tool, &body),
            };
            answers.push(Answer { tool, input, told });
        }
        answers
    }

    /// Calls one of the nodes. If it dies, and the call may be repeated, another one.
    fn call_a_node(&self, tool: &str, input: &Value) -> Result<Value, String> {
        let request = post(&json!({"call": tool, "input": input}));
        let end = Instant::now() + TIMEOUT;
        loop {
            let broken = match ask(&self.address(), &request) {
                Ok((_, answer)) => return value_of(&answer),
                Err(err) => err,
            };
            std::thread::sleep(RETRY);
            if tool == "single" || Instant::now() > end {
                return Err(format!("{BROKEN}: {broken}"));
            }
        }
    }

    /// Begins tasks at the nodes, spread over the whole time.
    fn begin_tasks(&self) -> Result<Vec<Accepted>, String> {
        let (mut accepted, tasks) = (Vec::new(), self.plan.tasks);
        loop {
            let number = self.next_task.fetch_add(1, Ordering::Relaxed);
            if number >= tasks {
                return Ok(accepted);
            }
            let due = self.plan.phase.mul_f64(2.0 * number as f64 / tasks as f64);
            std::thread::sleep(due.saturating_sub(self.began.elapsed()));
            let tool = if number.is_multiple_of(2) { "again" } else { "single" };
            let input = format!("task-{number}");
            accepted.push(Accepted { id: self.begin_task(tool, &input)?, tool, input });
        }
    }

    /// Begins a task, and asks again with its key until a node has accepted it.
    fn begin_task(&self, tool: &str, input: &str) -> Result<String, String> {
        let body = json!({"capability": tool, "input": {"stdin": input}, "key": input});
        let request = client::post("/tasks", &[], &body);
        let end = Instant::now() + TIMEOUT;
        loop {
            let answer = ask(&self.address(), &request);
            match &answer {
                Ok((200 | 202, task)) if task["id"].is_string() => {
                    return Ok(task["id"].as_str().unwrap_or_default().to_owned());
                }
                Ok((503, _)) | Err(_) if Instant::now() < end => std::thread::sleep(RETRY),
                _ => return Err(format!("{input} is not accepted: {answer:?}")),
            }
        }
    }
}

/// How often a tool was called with an input, as was seen outside of orla.
struct Made(HashMap<(&'static str, String), usize>);

impl Made {
    fn read(nodes: &[Node]) -> Self {
        let mut made = HashMap::new();
        for node in nodes {
            for (tool, file) in [("again", "again-made"), ("single", "single-made")] {
                let text = fs::read_to_string(node.folder.join(file)).unwrap_or_default();
                text.lines().for_each(|line| *made.entry((tool, line.to_owned())).or_default() += 1);
            }
        }
        Self(made)
    }

    /// Checks that what was answered was made, and that nothing was repeated that must not be.
    fn check(&self, tool: &'static str, input: &str, is_answered: bool) -> Result<(), String> {
        let times = self.0.get(&(tool, input.to_owned())).copied().unwrap_or_default();
        if times == 0 && is_answered {
            return Err(format!("{input} of {tool} was answered and not made"));
        }
        if tool == "single" && times > 1 {
            return Err(format!("{input} was made {times} times"));
        }
        Ok(())
    }
}

/// Checks that at least half of the calls or tasks that may not be repeated had a result.
fn most_succeeded(failed: usize, all: usize) -> Result<(), String> {
    if failed * 2 > all {
        return Err(format!("{failed} of {all} that may not be repeated had no result"));
    }
    Ok(())
}

/// Checks the calls. Returns how many failed, as only those may that must not be repeated, and that say why.
fn judge_calls(answers: &[Answer], made: &Made) -> Result<usize, String> {
    let mut failed = 0;
    for Answer { tool, input, told } in answers {
        made.check(tool, input, told.is_ok())?;
        match told {
            Ok(value) => same(value, &json!(input))?,
            Err(told) if *tool == "again" => {
                return Err(format!("a call that may be repeated failed: {told}"));
            }
            Err(told) if told.contains("unavailable") || told.starts_with(BROKEN) => failed += 1,
            Err(told) => return Err(format!("a call failed otherwise: {told}")),
        }
    }
    Ok(failed)
}

/// Waits until all tasks are over.
fn await_ends(front: &Node, accepted: &[Accepted]) -> Result<(), String> {
    accepted.iter().try_for_each(|task| {
        eventually(&format!("{} ends", task.input), || {
            Ok(["completed", "failed", "interrupted"].contains(&&*front.state(&task.id)?))
        })
    })
}

/// Checks that each task has one result, the same at each node. Returns how many were interrupted.
fn judge_tasks(accepted: &[Accepted], made: &Made, nodes: &[Node]) -> Result<usize, String> {
    let mut interrupted = 0;
    for Accepted { id, tool, input } in accepted {
        let path = format!("/tasks/{id}");
        let task = nodes[0].get(&path)?;
        let is_interrupted = task["state"] == "interrupted" && *tool == "single";
        made.check(tool, input, !is_interrupted)?;
        if !is_interrupted {
            same(&task["state"], &json!("completed"))?;
            same(&task["result"]["stdout"], &json!(format!("{input}\n")))?;
        }
        interrupted += usize::from(is_interrupted);
        for node in &nodes[1..] {
            eventually("every node has the end of a task", || Ok(node.get(&path)? == task))?;
        }
    }
    let ids: HashSet<String> = accepted.iter().map(|task| task.id.clone()).collect();
    let all = all_tasks(&mut Connection::open(&nodes[0].server.address)?)?;
    same(&json!([ids.len(), all.len()]), &json!([accepted.len(), accepted.len()]))?;
    Ok(interrupted)
}

impl ThreeNats {
    pub(super) fn start(world: &World) -> Result<Self, String> {
        let mut three = Self {
            servers: vec![None, None, None],
            ports: (0..3).map(|_| free_port()).collect(),
            routes: (0..3).map(|_| free_port()).collect(),
            folders: (0..3).map(|_| world.fresh("nats")).collect::<Result<_, _>>()?,
            program: world.nats.clone(),
        };
        three.revive()?;
        Ok(three)
    }

    pub(super) fn kill(&mut self, at: usize) -> Result<(), String> {
        self.servers[at].take().map_or(Ok(()), Server::kill)
    }

    /// Starts those that are not there.
    pub(super) fn revive(&mut self) -> Result<(), String> {
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

    pub(super) fn config(&self, node: &str) -> String {
        let addresses: Vec<String> =
            self.ports.iter().map(|port| format!("\"nats://127.0.0.1:{port}\"")).collect();
        format!("cluster: {{nats: [{}], name: t, node: {node}}}\n", addresses.join(", "))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_call_that_is_wrong_is_found() {
        let made = |times| {
            Made(HashMap::from([(("again", "a".to_owned()), 2), (("single", "s".to_owned()), times)]))
        };
        let judge = |tool, input: &str, told: Result<&str, &str>, made: &Made| {
            let told = told.map(|value| json!(value)).map_err(str::to_owned);
            judge_calls(&[Answer { tool, input: input.to_owned(), told }], made)
        };
        assert_eq!(judge("again", "a", Ok("a"), &made(1)), Ok(0));
        assert_eq!(judge("single", "s", Ok("s"), &made(1)), Ok(0));
        assert_eq!(judge("single", "s", Err("unavailable"), &made(1)), Ok(1));
        assert_eq!(judge("single", "t", Err(BROKEN), &made(1)), Ok(1));
        for (name, result) in [
            ("made twice", judge("single", "s", Err(BROKEN), &made(2))),
            ("never made", judge("single", "t", Ok("t"), &made(1))),
            ("another answer", judge("single", "s", Ok("t"), &made(1))),
            ("an error that does not say why", judge("single", "s", Err("timeout"), &made(1))),
            ("a failure of what may be repeated", judge("again", "a", Err("unavailable"), &made(1))),
        ] {
            assert!(result.is_err(), "{name}");
        }
    }
}
