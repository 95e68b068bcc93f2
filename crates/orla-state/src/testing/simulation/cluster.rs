//! The nodes of a world.

use std::sync::Arc;
use std::time::Duration;

use tokio::runtime::{Builder, Runtime};
use tokio::task::yield_now;
use tokio::time::advance;

use super::Random;
use super::network::{Delivered, Network};
use crate::StateStore;

/// One in so many steps begins trouble.
const TROUBLE: u64 = 250;
/// The longest pause between two steps, in milliseconds. What a node does in time must not depend on it.
const LONGEST_PAUSE: u64 = 300;
/// Clocks of nodes run this much faster or slower at most, in thousandths.
const SKEW: u64 = 30;
/// How often the tasks of a node run before the next step.
const TURNS: usize = 4;

/// The nodes of a world, and what lies between them.
///
/// A node is a process that runs on its own thread of time: the clock of its runtime is paused, and only the world advances it.
/// While a process is stopped, its clock goes on and nothing else of it. A process that crashes is dropped with all its tasks.
pub struct Cluster<P> {
    network: Arc<Network>,
    nodes: Vec<Node<P>>,
    start: Box<dyn Fn(Birth) -> P>,
    /// Milliseconds since the world began.
    now: u64,
}

/// What a new process begins with. It begins in its runtime.
pub struct Birth {
    /// The place of the node.
    pub node: usize,
    /// The number of the process, which no other process of the world has.
    pub life: u64,
    /// The store as the process reaches it.
    pub store: Arc<dyn StateStore>,
}

struct Node<P> {
    /// `None` while the node is down.
    process: Option<Process<P>>,
    /// What is wrong with the node, and until when.
    trouble: Option<(Trouble, u64)>,
    /// How often it was cut off.
    cuts: u64,
    /// How fast its clock runs, in thousandths.
    pace: u64,
}

struct Process<P> {
    // Dropped first: nothing of a process goes on when it ends.
    runtime: Runtime,
    own: P,
    began: u64,
    /// Microseconds that its clock has run.
    clock: u64,
}

/// What can happen to a node.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Trouble {
    /// Its process is gone.
    Down,
    /// Its process is stopped.
    Stopped,
    /// It cannot reach the store.
    Cut,
    /// Its copy of the store learns nothing.
    Deaf,
}

impl<P> Cluster<P> {
    /// Makes so many nodes, whose processes are made by `start`.
    pub fn new(random: &mut Random, nodes: usize, start: impl Fn(Birth) -> P + 'static) -> Self {
        let mut cluster =
            Self { network: Arc::default(), nodes: Vec::new(), start: Box::new(start), now: 0 };
        for node in 0..nodes {
            let pace = 1_000 - SKEW + random.below(2 * SKEW + 1);
            cluster.nodes.push(Node { process: None, trouble: None, cuts: 0, pace });
            cluster.begin(node);
        }
        cluster
    }

    /// Returns the network.
    pub fn network(&self) -> &Arc<Network> {
        &self.network
    }

    /// Returns the number of nodes.
    pub fn count(&self) -> usize {
        self.nodes.len()
    }

    /// Returns the time since the world began.
    pub fn now(&self) -> Duration {
        Duration::from_millis(self.now)
    }

    /// Returns what has happened, as one number. Worlds of one seed have the same.
    pub fn trace(&self) -> u64 {
        self.network.trace()
    }

    /// Returns the process of a node, unless it is down.
    pub fn process(&self, node: usize) -> Option<&P> {
        self.nodes[node].process.as_ref().map(|process| &process.own)
    }

    /// Returns whether a node's process runs, and is not stopped.
    pub fn runs(&self, node: usize) -> bool {
        let Node { process, trouble, .. } = &self.nodes[node];
        process.is_some() && trouble.is_none_or(|(trouble, _)| trouble != Trouble::Stopped)
    }

    /// Returns the number of the connection of a node to the store, if it has one.
    pub fn connection(&self, node: usize) -> Option<u64> {
        let Node { trouble, cuts, .. } = &self.nodes[node];
        trouble.is_none_or(|(trouble, _)| trouble != Trouble::Cut).then_some(*cuts)
    }

    /// Lets the process of a node do something, unless the node is down. It does not survive the process.
    pub fn spawn<F: Future<Output = ()> + Send + 'static>(
        &mut self,
        node: usize,
        work: impl FnOnce(&P) -> F,
    ) {
        if let Some(process) = &self.nodes[node].process {
            let _context = process.runtime.enter();
            let work = work(&process.own);
            process.runtime.spawn(work);
        }
        self.run(node);
    }

    /// Makes one step: a message is delivered, a copy learns something, time passes, or trouble begins. In a world that is not
    /// `busy`, no message is lost and no trouble begins.
    pub fn step(&mut self, random: &mut Random, is_busy: bool) {
        if is_busy && random.one_in(TROUBLE) {
            return self.trouble(random);
        }
        match random.below(16) {
            0..8 => match self.network.deliver(random, is_busy) {
                Delivered::Nothing => self.pass(random),
                Delivered::Away => {}
                Delivered::To(node) => self.run(node),
            },
            8..13 => {
                let node = random.index(self.nodes.len());
                match self.runs(node) && self.network.feed(node) {
                    true => self.run(node),
                    false => self.pass(random),
                }
            }
            _ => self.pass(random),
        }
    }

    /// Some time passes for all nodes.
    fn pass(&mut self, random: &mut Random) {
        self.now += match random.below(4) {
            0 => 1 + random.below(LONGEST_PAUSE),
            _ => 1 + random.below(LONGEST_PAUSE / 8),
        };
        self.network.set_now(self.now);
        for node in 0..self.nodes.len() {
            if let Some((trouble, until)) = self.nodes[node].trouble
                && until <= self.now
            {
                self.nodes[node].trouble = None;
                match trouble {
                    Trouble::Down => self.begin(node),
                    Trouble::Stopped => {}
                    Trouble::Cut => self.network.cut(node, false),
                    Trouble::Deaf => self.network.deafen(node, false),
                }
            }
            self.run(node);
        }
    }

    /// One node, or rarely every node, has trouble for a while.
    fn trouble(&mut self, random: &mut Random) {
        let trouble = match random.below(4) {
            0 => Trouble::Down,
            1 => Trouble::Stopped,
            2 => Trouble::Cut,
            _ => Trouble::Deaf,
        };
        let longest = if random.one_in(2) { 2_000 } else { 25_000 };
        let until = self.now + 1 + random.below(longest);
        let (only, is_common) = (random.index(self.nodes.len()), random.one_in(8));
        for (node, at) in self.nodes.iter_mut().enumerate() {
            if (node != only && !is_common) || at.trouble.is_some() {
                continue;
            }
            at.trouble = Some((trouble, until));
            match trouble {
                Trouble::Down => at.process = None,
                Trouble::Stopped => {}
                Trouble::Cut => {
                    at.cuts += 1;
                    self.network.cut(node, true);
                }
                Trouble::Deaf => self.network.deafen(node, true),
            }
        }
    }

    /// Starts the process of a node.
    fn begin(&mut self, node: usize) {
        let runtime = Builder::new_current_thread().enable_time().start_paused(true).build();
        let runtime = runtime.expect("a runtime");
        let (store, life) = self.network.connect(node);
        let own = {
            let _context = runtime.enter();
            (self.start)(Birth { node, life, store })
        };
        let began = self.now;
        self.nodes[node].process = Some(Process { runtime, own, began, clock: 0 });
    }

    /// Lets the tasks of a node run, with its clock as it should be by now.
    fn run(&mut self, node: usize) {
        if !self.runs(node) {
            return;
        }
        let Node { process: Some(process), pace, .. } = &mut self.nodes[node] else { return };
        let clock = (self.now - process.began) * *pace;
        let late = Duration::from_micros(clock - process.clock);
        process.clock = clock;
        process.runtime.block_on(async {
            if !late.is_zero() {
                advance(late).await;
            }
            for _ in 0..TURNS {
                yield_now().await;
            }
        });
    }
}
