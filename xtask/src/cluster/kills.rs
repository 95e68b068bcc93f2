//! The program of `durable::kills` on three nodes, of which the one that runs it is killed after every step.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::time::{Duration, Instant};

use serde_json::Value;

use super::{Node, TIMEOUT, World, eventually};
use crate::durable::kills::{self, Host, Seen};

/// How many programs run, and how many where it has to be quick.
const RUNS: (usize, usize) = (200, 3);
/// How many of them run at once, each with nodes and a NATS server of its own.
const AT_ONCE: usize = 8;
/// After each so many kills, the node comes back only when another one has gone on.
const AWAY: usize = 16;

impl World {
    /// Runs programs.
    pub(super) fn kills(&self) -> Result<(), String> {
        let runs = if self.is_quick { RUNS.1 } else { RUNS.0 };
        let seen = kills::run_all(runs, AT_ONCE, |_| self.killed())?;
        println!("      {seen}");
        Ok(())
    }

    fn killed(&self) -> Result<Seen, String> {
        let nats = self.nats()?;
        let steps = self.fresh("steps")?.join("steps");
        let mut three = Three { world: self, alive: BTreeMap::new(), dead: None, kills: 0 };
        for name in ["alpha", "beta", "gamma"] {
            let folder = self.folder_of(name, &nats.config(name), &[])?;
            kills::tools(&folder, &steps)?;
            three.alive.insert(name.to_owned(), self.start(folder)?);
        }
        let alpha = &three.alive["alpha"];
        for name in ["beta", "gamma"] {
            eventually("alpha knows all nodes", || Ok(alpha.knows(name)?["alive"] == true))?;
        }
        let id = kills::begin(&alpha.server)?;
        kills::kill_after_steps(&mut three, &id, &steps)
    }
}

/// The nodes of a program.
struct Three<'a> {
    world: &'a World,
    alive: BTreeMap<String, Node>,
    /// The name and the folder of the one that was killed.
    dead: Option<(String, PathBuf)>,
    kills: usize,
}

impl Three<'_> {
    fn start_dead(&mut self) -> Result<(), String> {
        if let Some((name, folder)) = self.dead.take() {
            self.alive.insert(name, self.world.start(folder)?);
        }
        Ok(())
    }
}

impl Host for Three<'_> {
    /// A node that has just begun may not have the task yet.
    fn task(&self, id: &str) -> Result<Value, String> {
        let end = Instant::now() + TIMEOUT;
        loop {
            let mut problem = String::new();
            for node in self.alive.values() {
                match kills::task_at(&node.server, id) {
                    Ok(task) => return Ok(task),
                    Err(err) => problem = err,
                }
            }
            if Instant::now() > end {
                return Err(format!("no node shows the task: {problem}"));
            }
            std::thread::sleep(Duration::from_millis(20));
        }
    }

    fn kill(&mut self, id: &str) -> Result<bool, String> {
        self.start_dead()?;
        // A task that is over, or that waits for a node, has none.
        let task = self.task(id)?;
        let Some(name) = task["node"].as_str() else { return Ok(false) };
        let Some((name, node)) = self.alive.remove_entry(name) else {
            return Err(format!("no node is named {name}: {task}"));
        };
        node.server.kill()?;
        self.dead = Some((name, node.folder));
        self.kills += 1;
        Ok(true)
    }

    fn revive(&mut self) -> Result<(), String> {
        if self.kills.is_multiple_of(AWAY) { Ok(()) } else { self.start_dead() }
    }
}
