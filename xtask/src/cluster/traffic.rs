//! What nodes cost NATS: its messages and writes, counted by NATS itself.

use std::collections::BTreeMap;
use std::fs;
use std::net::{Ipv4Addr, SocketAddr};
use std::ops::Sub;
use std::os::unix::fs::PermissionsExt as _;
use std::time::{Duration, Instant};

use orla_e2e::{Http, Request};
use serde_json::{Value, json};

use super::{Nats, Node, WHERE, World, eventually, write};
use orla_e2e::free_port;

/// How many nodes are compared, to tell what each node costs from what each pair of nodes costs.
const NODES: [usize; 2] = [2, 5];

/// What NATS has counted.
#[derive(Clone, Debug, Default)]
struct Traffic {
    /// Messages to NATS and from NATS, and their bytes.
    to: f64,
    to_bytes: f64,
    from: f64,
    from_bytes: f64,
    /// Writes of each stream.
    writes: BTreeMap<String, f64>,
}

impl Sub for Traffic {
    type Output = Self;

    fn sub(mut self, before: Self) -> Self {
        for (stream, count) in before.writes {
            *self.writes.entry(stream).or_default() -= count;
        }
        self.to -= before.to;
        self.to_bytes -= before.to_bytes;
        self.from -= before.from;
        self.from_bytes -= before.from_bytes;
        self
    }
}

impl Traffic {
    /// Returns the part of one of `count`.
    fn each(mut self, count: f64) -> Self {
        for value in [&mut self.to, &mut self.to_bytes, &mut self.from, &mut self.from_bytes] {
            *value /= count;
        }
        self.writes.values_mut().for_each(|value| *value /= count);
        self
    }

    fn print(&self, what: &str) {
        let writes = self.writes.iter().filter(|(_, count)| **count >= 0.005);
        let writes: Vec<String> = writes.map(|(stream, count)| format!("{stream} {count:.2}")).collect();
        println!(
            "      {what:46}{:>9.2}{:>9.0}{:>10.2}{:>10.0}  {}",
            self.to,
            self.to_bytes,
            self.from,
            self.from_bytes,
            writes.join(", ")
        );
    }
}

/// A NATS server that counts.
struct Counting {
    nats: Nats,
    address: SocketAddr,
}

impl Counting {
    fn start(world: &World) -> Result<Self, String> {
        let port = free_port();
        let nats = Nats::with(world, &["-js", "-m", &port.to_string()])?;
        Ok(Self { nats, address: (Ipv4Addr::LOCALHOST, port).into() })
    }

    /// Returns what has been counted so far.
    fn read(&self) -> Result<Traffic, String> {
        let get = |path: &str| {
            let answer = Http::new(self.address).send(&Request::new("GET", path));
            let answer = answer.map_err(|err| format!("{path}: {err}"))?;
            serde_json::from_slice::<Value>(&answer.body).map_err(|err| format!("{path}: {err}"))
        };
        let (all, streams) = (get("/varz")?, get("/jsz?streams=true")?);
        let number = |value: &Value| value.as_f64().ok_or_else(|| format!("no count: {value}"));
        let mut writes = BTreeMap::new();
        for account in streams["account_details"].as_array().into_iter().flatten() {
            for stream in account["stream_detail"].as_array().into_iter().flatten() {
                let name = stream["name"].as_str().unwrap_or_default();
                let name = name.rsplit('-').next().unwrap_or_default().to_owned();
                writes.insert(name, number(&stream["state"]["last_seq"])?);
            }
        }
        Ok(Traffic {
            to: number(&all["in_msgs"])?,
            to_bytes: number(&all["in_bytes"])?,
            from: number(&all["out_msgs"])?,
            from_bytes: number(&all["out_bytes"])?,
            writes,
        })
    }

    /// Returns what `work` costs, without what `idle` costs each second.
    fn during(
        &self,
        idle: &Traffic,
        work: impl FnOnce() -> Result<(), String>,
    ) -> Result<Traffic, String> {
        let (before, began) = (self.read()?, Instant::now());
        work()?;
        let cost = self.read()? - before;
        Ok(cost - idle.clone().each(1.0 / began.elapsed().as_secs_f64()))
    }

    /// Returns what is counted each second while nothing is done.
    fn idle(&self, time: Duration) -> Result<Traffic, String> {
        let (before, began) = (self.read()?, Instant::now());
        std::thread::sleep(time);
        Ok((self.read()? - before).each(began.elapsed().as_secs_f64()))
    }
}

impl World {
    /// Prints what nodes, calls, lists and changes cost NATS.
    pub(super) fn traffic(&self) -> Result<(), String> {
        let (idle_time, count) = match self.is_quick {
            true => (Duration::from_secs(6), 50),
            false => (Duration::from_secs(30), 500),
        };
        let each = |traffic: Traffic| traffic.each(f64::from(count));
        println!(
            "      {:46}{:>9}{:>9}{:>10}{:>10}  writes",
            "", "to NATS", "bytes", "from NATS", "bytes"
        );
        for nodes in NODES {
            let nats = Counting::start(self)?;
            let start = |at: usize| {
                let tools: &[(&str, &str)] = if at == 0 { &[("where", WHERE)] } else { &[] };
                self.node(&nats.nats, &format!("node{at}"), tools)
            };
            let all = (0..nodes).map(start).collect::<Result<Vec<Node>, String>>()?;
            for node in &all {
                eventually("all nodes know each other", || knows_all(node, &all))?;
            }
            let idle = nats.idle(idle_time)?;
            let what = format!("{nodes} nodes, each second");
            idle.print(&what);
            if nodes != NODES[0] {
                let more = nats.during(&idle, || {
                    let late = self.node(&nats.nats, "late", &[])?;
                    eventually("all know it", || knows_all(&late, &all))
                })?;
                more.print("one more node begins");
                continue;
            }
            let (first, second) = (&all[0], &all[1]);
            let calls = nats.during(&idle, || {
                (0..count).try_for_each(|_| second.call("where", &json!({})).map(drop))
            })?;
            each(calls).print("a call of another node");
            let sessions =
                nats.during(&idle, || (0..count).try_for_each(|_| first.initialize().map(drop)))?;
            each(sessions).print("a session begins");
            let session = first.initialize()?;
            let list = |node: &Node, session: &str| {
                node.in_session(session, "tools/list", &json!({})).map(drop)
            };
            let begun = (0..count).map(|_| first.initialize()).collect::<Result<Vec<_>, _>>()?;
            let lists = nats.during(&idle, || begun.iter().try_for_each(|it| list(first, it)))?;
            each(lists).print("its first list");
            list(first, &session)?;
            let again = nats.during(&idle, || (0..count).try_for_each(|_| list(first, &session)))?;
            each(again).print("a list again");
            let moved = nats.during(&idle, || {
                begun.iter().try_for_each(|it| second.in_session(it, "ping", &json!({})).map(drop))
            })?;
            each(moved).print("its first request at another node");
            let changed = nats.during(&idle, || {
                let later = first.folder.join("tools/later");
                write(&later, WHERE)?;
                fs::set_permissions(&later, fs::Permissions::from_mode(0o755))
                    .map_err(|err| err.to_string())?;
                first.server.hang_up()?;
                eventually("the other node lists it", || second.lists("later"))
            })?;
            changed.print("a node offers one capability more");
        }
        Ok(())
    }
}

fn knows_all(node: &Node, all: &[Node]) -> Result<bool, String> {
    let status = node.get("/status")?;
    let nodes = status["cluster"]["nodes"].as_array().cloned().unwrap_or_default();
    let has_tool = |node: &Value| node["node"] == "node0" && node["capabilities"] == json!(["where"]);
    Ok(nodes.len() >= all.len() && nodes.iter().any(has_tool))
}
