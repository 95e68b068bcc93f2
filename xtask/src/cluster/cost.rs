//! What a call of another node costs, and how many calls one, two and three instances make.

use std::slice;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use serde_json::json;

use super::{Nats, Node, World, eventually, post};
use crate::bench::client::{Connection, side_by_side};
use crate::bench::stats::median;

/// A program that is computed at once: what is measured is the way there and back.
const PROGRAM: &str = "(+ 1 2)";
/// The answer to a call of it.
const ANSWER: &[u8] = br#"{"value":3}"#;
/// Clients at once, spread evenly over one, two or three instances.
const CLIENTS: usize = 12;

/// How much is measured.
#[derive(Clone, Copy)]
struct Plan {
    /// Sequential calls.
    calls: usize,
    /// How often each number of instances is measured, and how long.
    rounds: usize,
    round: Duration,
}

const LONG: Plan = Plan { calls: 2_000, rounds: 9, round: Duration::from_secs(2) };
const QUICK: Plan = Plan { calls: 200, rounds: 3, round: Duration::from_millis(300) };

/// Nodes that have a tool, and one that has not.
struct Instances {
    nodes: Vec<Node>,
    front: Node,
    /// Calls each second of every round: at the nodes, and at the front.
    rates: [Vec<f64>; 2],
    _nats: Nats,
}

impl World {
    /// Prints what a call costs here, at another node, and at another instance over HTTP.
    pub(super) fn cost(&self) -> Result<(), String> {
        let (nats, calls) = (self.nats()?, self.cost_plan().calls);
        let alpha = self.node(&nats, "alpha", &[("three.rtfs", &program())])?;
        let beta = self.node(&nats, "beta", &[])?;
        eventually("beta lists `three`", || beta.lists("three"))?;
        let remotes = format!("remotes: {{a: \"http://{}\"}}\n", alpha.server.address);
        let remote = self.instance("remote", &remotes, &[])?;
        eventually("a remote instance lists `a.three`", || {
            Ok(remote.call("a.three", &json!({})).is_ok())
        })?;
        let here = alpha.time("three", calls)?;
        let (over_nats, over_http) = (beta.time("three", calls)?, remote.time("a.three", calls)?);
        println!(
            "      {PROGRAM}: here {here:?}, over NATS {over_nats:?}, over HTTP {over_http:?} (medians of {calls})"
        );
        Ok(())
    }

    /// Prints how many calls one, two and three instances make.
    pub(super) fn throughput(&self) -> Result<(), String> {
        let (plan, mut all) = (self.cost_plan(), Vec::new());
        for count in 1..=3 {
            all.push(self.instances(count)?);
        }
        for _ in 0..plan.rounds {
            for instances in &mut all {
                instances.measure(plan.round)?;
            }
            // Another one is the first of the next round.
            all.rotate_left(1);
        }
        all.sort_by_key(|instances| instances.nodes.len());
        println!("      calls of {PROGRAM} each second, medians of {} rounds", plan.rounds);
        println!("      {:32}{:>12}{:>12}{:>12}", "instances", 1, 2, 3);
        for (at, what) in ["called themselves", "called through another one"].iter().enumerate() {
            let rates: Vec<String> =
                all.iter().map(|one| format!("{:>12.0}", median(one.rates[at].clone()))).collect();
            println!("      {what:32}{}", rates.concat());
        }
        Ok(())
    }

    fn cost_plan(&self) -> Plan {
        if self.is_quick { QUICK } else { LONG }
    }

    /// Starts so many nodes with a tool, and one without.
    fn instances(&self, count: usize) -> Result<Instances, String> {
        let nats = self.nats()?;
        let names = &["alpha", "beta", "gamma"][..count];
        let start = |name: &&str| self.node(&nats, name, &[("three.rtfs", &program())]);
        let nodes = names.iter().map(start).collect::<Result<_, _>>()?;
        let front = self.node(&nats, "front", &[])?;
        for name in names {
            eventually("the front knows all nodes", || {
                Ok(front.knows(name)?["capabilities"] == json!(["three"]))
            })?;
        }
        Ok(Instances { nodes, front, rates: [Vec::new(), Vec::new()], _nats: nats })
    }
}

impl Instances {
    /// Measures one round.
    fn measure(&mut self, time: Duration) -> Result<(), String> {
        self.rates[0].push(rate(&self.nodes, time)?);
        self.rates[1].push(rate(slice::from_ref(&self.front), time)?);
        Ok(())
    }
}

impl Node {
    /// Returns the median latency of `calls` sequential calls.
    fn time(&self, capability: &str, calls: usize) -> Result<Duration, String> {
        let request = post(&json!({"call": capability}));
        let mut connection = Connection::open(&self.server.address)?;
        let mut times = Vec::with_capacity(calls);
        for _ in 0..calls {
            let began = Instant::now();
            call(&mut connection, &request)?;
            times.push(began.elapsed());
        }
        times.sort();
        times.get(calls / 2).copied().ok_or_else(|| "no calls".to_owned())
    }
}

/// Returns how many calls clients make each second, which are spread over these nodes.
fn rate(nodes: &[Node], time: Duration) -> Result<f64, String> {
    let request = post(&json!({"call": "three"}));
    let (turn, began) = (AtomicUsize::new(0), Instant::now());
    let counts = side_by_side(CLIENTS, || {
        let node = &nodes[turn.fetch_add(1, Ordering::Relaxed) % nodes.len()];
        let (mut connection, mut count) = (Connection::open(&node.server.address)?, 0_u32);
        while began.elapsed() < time {
            call(&mut connection, &request)?;
            count += 1;
        }
        Ok(vec![count])
    })?;
    Ok(f64::from(counts.iter().sum::<u32>()) / began.elapsed().as_secs_f64())
}

fn call(connection: &mut Connection, request: &[u8]) -> Result<(), String> {
    let answer = connection.exchange(request)?;
    match answer.body == ANSWER {
        true => Ok(()),
        false => Err(String::from_utf8_lossy(answer.body).into_owned()),
    }
}

fn program() -> String {
    format!("; Three.\n(defn main [] :- :int {PROGRAM})\n")
}
