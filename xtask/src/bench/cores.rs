//! Which cores the load and the servers run on.
//!
//! Where a machine has enough cores, each side has its own, so that neither takes the other's: what is measured is the server, and not how
//! the system divides cores between it and its clients.

use rustix::thread::{CpuSet, sched_getaffinity, sched_setaffinity};

/// Fewer cores than this are shared.
const ENOUGH: usize = 4;

/// The cores of both sides.
pub(super) struct Cores {
    servers: CpuSet,
    clients: CpuSet,
}

impl Cores {
    /// Returns the first half of the cores that this process may use for servers, the rest for clients.
    /// `None` where there are too few.
    pub(super) fn split() -> Option<Self> {
        let all = sched_getaffinity(None).ok()?;
        let usable: Vec<usize> = (0..CpuSet::MAX_CPU).filter(|core| all.is_set(*core)).collect();
        if usable.len() < ENOUGH {
            return None;
        }
        let (mut servers, mut clients) = (CpuSet::new(), CpuSet::new());
        let (first, rest) = usable.split_at(usable.len() / 2);
        first.iter().for_each(|core| servers.set(*core));
        rest.iter().for_each(|core| clients.set(*core));
        Some(Self { servers, clients })
    }

    /// Moves this thread, and what it starts from now on, to the servers' cores.
    pub(super) fn serve(&self) -> Result<(), String> {
        move_to(&self.servers)
    }

    /// Moves this thread, and what it starts from now on, to the clients' cores.
    pub(super) fn call(&self) -> Result<(), String> {
        move_to(&self.clients)
    }
}

fn move_to(cores: &CpuSet) -> Result<(), String> {
    sched_setaffinity(None, cores).map_err(|err| format!("moving to other cores: {err}"))
}
