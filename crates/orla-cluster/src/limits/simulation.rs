//! A simulation of counts on several nodes, over a network that loses, delays, repeats and reorders messages.
//!
//! The nodes run the whole of [`ClusterPermits`] on the store of a simulated cluster
//! ([`orla_state::testing::simulation`]). Calls take places at any node and give them back, or end with their process. After a
//! while nothing fails any more, every place is given back, and all of them have to be free.
//!
//! The invariants: [`PLACES`], [`RATE`] and [`FREE`]. A process that is stopped runs no call; as soon as it goes on, it must
//! know which calls it has lost.

use std::sync::Arc;
use std::time::Duration;

use orla_marketplace::{Claim, Period, Permits as _, QuotaRule, Rate, Taken};
use orla_state::testing::simulation::{Birth, Cluster, Random, check_repeated, check_worlds};
use parking_lot::Mutex;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use super::ClusterPermits;

const PLACES: &str = "never more calls run than there are places";
const RATE: &str = "never more calls are admitted than the rate permits";
const FREE: &str = "places come back, at the latest with the lease of their node";

/// Seeds that failed in the past.
const SEEDS: [u64; 2] = [1, 2];

const NODES: usize = 3;
/// The number of places.
const MOST: usize = 2;
/// The number of calls in a minute.
const CALLS: u64 = 6;
/// How long the calls of a world run: some are still there when the lease of their node is over.
const LENGTHS: [u64; 3] = [1, 8, 64];
/// The number of steps of one world after which nothing fails.
const BUSY: u64 = 4_000;
/// The maximum number of steps of one world.
const LONGEST: u64 = 40_000;

/// The process of a node.
struct Process {
    permits: Arc<ClusterPermits>,
    life: u64,
}

/// A call that runs.
struct Running {
    node: usize,
    life: u64,
    taken: Taken,
}

/// What the calls of a world share with the nodes.
#[derive(Default)]
struct Common {
    running: Vec<Running>,
    /// The number of calls that were admitted by the rate.
    rated: u64,
    /// The clock of the store, as each node knows it.
    clocks: [Option<Duration>; NODES],
}

struct World {
    cluster: Cluster<Process>,
    common: Arc<Mutex<Common>>,
    /// How long calls run, as a factor.
    length: u64,
    steps: u64,
}

fn places() -> Vec<Claim> {
    let mut rule = QuotaRule::new("quotas[0]");
    rule.concurrent = Some(MOST);
    vec![Claim::new(rule, None).unwrap()]
}

fn rate() -> Vec<Claim> {
    let mut rule = QuotaRule::new("quotas[1]");
    rule.rate = Some(Rate::new(CALLS, Period::Minute));
    vec![Claim::new(rule, None).unwrap()]
}

impl World {
    fn new(random: &mut Random) -> Self {
        let common = Arc::new(Mutex::new(Common::default()));
        let clocks = Arc::clone(&common);
        let cluster = Cluster::new(random, NODES, move |birth: Birth| {
            let (clocks, node) = (Arc::clone(&clocks), birth.node);
            let permits = ClusterPermits::new("n", Arc::new(move || clocks.lock().clocks[node]));
            let serving = Arc::clone(&permits).serve(birth.store, CancellationToken::new());
            TaskTracker::new().spawn(serving);
            Process { permits, life: birth.life }
        });
        Self { cluster, common, length: LENGTHS[random.index(LENGTHS.len())], steps: 0 }
    }

    /// Makes one step. Returns whether the world is over.
    fn step(&mut self, random: &mut Random) -> bool {
        self.steps += 1;
        assert!(self.steps < LONGEST, "{FREE}");
        let is_busy = self.steps < BUSY;
        self.set_clocks();
        match random.below(24) {
            0 => self.take(random.index(NODES), true),
            1 if is_busy => self.take(random.index(NODES), false),
            2 if is_busy && random.one_in(self.length) => self.give(random),
            _ => self.cluster.step(random, is_busy),
        }
        if self.steps == BUSY {
            let given = std::mem::take(&mut self.common.lock().running);
            drop(given);
        }
        let running = self.count();
        assert!(running <= MOST, "{PLACES}: {running} run");
        let minutes = self.cluster.now().as_secs_f64() / 60.0;
        let rated = self.common.lock().rated;
        assert!(rated as f64 <= CALLS as f64 * (1.0 + minutes), "{RATE}: {rated} in {minutes} minutes");
        !is_busy && running == MOST
    }

    fn set_clocks(&self) {
        let now = Duration::from_secs(1_000) + self.cluster.now();
        let mut common = self.common.lock();
        for (node, clock) in common.clocks.iter_mut().enumerate() {
            *clock = self.cluster.connection(node).map(|_| now);
        }
    }

    /// A call takes a place, or is counted by the rate.
    fn take(&mut self, node: usize, takes_place: bool) {
        let common = Arc::clone(&self.common);
        self.cluster.spawn(node, |process| {
            let (permits, life) = (Arc::clone(&process.permits), process.life);
            async move {
                let claims = if takes_place { places() } else { rate() };
                let Ok(taken) = permits.take(claims).await else { return };
                let mut common = common.lock();
                match takes_place {
                    true => common.running.push(Running { node, life, taken }),
                    false => common.rated += 1,
                }
            }
        });
    }

    /// A call ends.
    fn give(&self, random: &mut Random) {
        let mut common = self.common.lock();
        if !common.running.is_empty() {
            let at = random.index(common.running.len());
            let ended = common.running.swap_remove(at);
            drop(common);
            drop(ended);
        }
    }

    /// Returns the number of calls that run now. Those that have lost their place end, and those of a process end with it.
    fn count(&self) -> usize {
        let is_lost = |taken: &Taken| taken.lost().is_some_and(CancellationToken::is_cancelled);
        let lives = |running: &Running| {
            let process = self.cluster.process(running.node);
            process.is_some_and(|process| process.life == running.life)
        };
        let ended: Vec<Running> = self
            .common
            .lock()
            .running
            .extract_if(.., |running| !lives(running) || is_lost(&running.taken))
            .collect();
        drop(ended);
        self.common.lock().running.iter().filter(|running| self.cluster.runs(running.node)).count()
    }
}

#[test]
fn places_hold_over_any_network_and_any_trouble_of_nodes() {
    check_worlds("permits", &SEEDS, LONGEST, World::new, World::step);
}

#[test]
fn a_world_of_permits_follows_from_its_seed() {
    let trace = |world: &World| (world.steps, world.cluster.trace());
    check_repeated(World::new, World::step, trace);
}
