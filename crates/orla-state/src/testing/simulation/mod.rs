//! The simulation of worlds, each of which follows from a seed.
//!
//! [`simulate`] makes the steps of one world after another. [`Cluster`] has the nodes of a world: each is a process with a
//! clock of its own, behind a [`Network`] that loses, delays, repeats and reorders messages.
//!
//! # What is deliberately absent
//!
//! The clocks of walls. Whatever a process reads from [`SystemTime`](std::time::SystemTime) is that of the machine, and must
//! not decide anything in a world.

mod cluster;
mod network;

pub use cluster::{Birth, Cluster};
pub use network::{Network, Written};

/// The random numbers of a world.
pub struct Random(u64);

impl Random {
    /// Returns the numbers that follow from a seed.
    pub fn new(seed: u64) -> Self {
        // splitmix64, so that successive seeds have nothing in common.
        let mut mixed = seed.wrapping_add(0x9e37_79b9_7f4a_7c15);
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        Self((mixed ^ (mixed >> 31)).max(1))
    }

    /// Returns the next number, which is less than `end`.
    pub fn below(&mut self, end: u64) -> u64 {
        // xorshift64*
        self.0 ^= self.0 >> 12;
        self.0 ^= self.0 << 25;
        self.0 ^= self.0 >> 27;
        self.0.wrapping_mul(0x2545_f491_4f6c_dd1d) % end
    }

    /// Returns the place of an item of so many.
    pub fn index(&mut self, count: usize) -> usize {
        self.below(count as u64) as usize
    }

    /// Returns `true` once in so many times.
    pub fn one_in(&mut self, times: u64) -> bool {
        self.below(times) == 0
    }
}

/// Says how a world that fails is repeated.
struct Repeated<'a> {
    name: &'a str,
    seed: u64,
}

impl Drop for Repeated<'_> {
    fn drop(&mut self) {
        if std::thread::panicking() {
            eprintln!("this fails again with: cargo xtask simulate {} 1 {}", self.name, self.seed);
        }
    }
}

/// Makes the steps of worlds until there are so many steps and the last world is over. `step` returns whether its world is
/// over. The seed of the first world is `seed`, that of each later world is one more. Returns the number of worlds.
///
/// # Panics
/// A world panics. The message says how to repeat that world alone.
pub fn simulate<W>(
    name: &str,
    seed: u64,
    steps: u64,
    new: impl Fn(&mut Random) -> W,
    step: impl Fn(&mut W, &mut Random) -> bool,
) -> u64 {
    let (mut made, mut worlds) = (0, 0);
    while made < steps {
        let repeated = Repeated { name, seed: seed.wrapping_add(worlds) };
        let mut random = Random::new(repeated.seed);
        let mut world = new(&mut random);
        loop {
            made += 1;
            if step(&mut world, &mut random) {
                break;
            }
        }
        worlds += 1;
    }
    worlds
}

/// Returns the number of steps to simulate, and the seed: those of `cargo xtask simulate`, or else these.
pub fn steps_and_seed(steps: u64, seed: u64) -> (u64, u64) {
    let number = |name: &str| std::env::var(name).ok().and_then(|text| text.parse().ok());
    (number("ORLA_SIMULATION_STEPS").unwrap_or(steps), number("ORLA_SIMULATION_SEED").unwrap_or(seed))
}

/// Simulates the worlds of these seeds, and then as many others as there are steps ([`steps_and_seed`]).
///
/// # Panics
/// A world panics, or a world has more than `longest` steps on average.
pub fn check_worlds<W>(
    name: &str,
    seeds: &[u64],
    longest: u64,
    new: impl Fn(&mut Random) -> W,
    step: impl Fn(&mut W, &mut Random) -> bool,
) {
    for &seed in seeds {
        simulate(name, seed, 1, &new, &step);
    }
    let (steps, seed) = steps_and_seed(20_000, 20_261_126);
    assert!(simulate(name, seed, steps, new, step) > steps / longest);
}

/// Simulates a world twice, and checks that both times the same has happened.
///
/// # Panics
/// The traces differ.
pub fn check_repeated<W, T: PartialEq + std::fmt::Debug>(
    new: impl Fn(&mut Random) -> W,
    step: impl Fn(&mut W, &mut Random) -> bool,
    trace: impl Fn(&W) -> T,
) {
    let simulated = || {
        let mut random = Random::new(7);
        let mut world = new(&mut random);
        while !step(&mut world, &mut random) {}
        trace(&world)
    };
    assert_eq!(simulated(), simulated());
}
