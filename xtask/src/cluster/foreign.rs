//! The conformance suite and the official SDKs as clients of three nodes behind a load balancer, each request at another node than
//! the one before.

use std::fs;
use std::path::Path;

use super::balancer::Balancer;
use super::{Node, World, eventually, write};
use crate::install;
use crate::interop::{clients, conformance};
use crate::tally::Tally;
use crate::{copy_folder, root};

/// The names of the nodes.
const NODES: [&str; 3] = ["alpha", "beta", "gamma"];

impl World {
    /// Each scenario, and each call of each client, is a check.
    pub(super) fn foreign(&self, tally: &mut Tally) -> Result<(), String> {
        let foreign = install::programs("clients", true)?;
        let fixtures = root().join("xtask/fixtures/conformance");
        self.behind_balancer(&fixtures, &["tools", "prompts", "servers"], |address| {
            let results = self.fresh("results")?;
            conformance::suite(address, "conformance of three nodes", false, &results, &foreign, tally)
        })?;
        self.behind_balancer(&root(), &["tools", "prompts"], |address| {
            let calls = clients::expected()?;
            for client in clients::all() {
                let url = format!("http://{address}/mcp");
                clients::judge_all(client, "three nodes", &[url], &foreign, &calls, tally);
            }
            Ok(())
        })
    }

    /// Starts three nodes with these parts of a folder each, and a load balancer before them, whose address `check` gets.
    fn behind_balancer(
        &self,
        from: &Path,
        parts: &[&str],
        check: impl FnOnce(&str) -> Result<(), String>,
    ) -> Result<(), String> {
        let nats = self.nats()?;
        let configuration = fs::read_to_string(from.join("orla.yaml")).unwrap_or_default();
        let start = |name: &&str| {
            let folder = self.fresh(name)?;
            for part in parts {
                copy_folder(&from.join(part), &folder.join(part))?;
            }
            write(&folder.join("orla.yaml"), &format!("{}{configuration}", nats.config(name)))?;
            let node = self.start(folder)?;
            write(&node.folder.join("server.pid"), &node.server.pid().to_string())?;
            Ok(node)
        };
        let nodes: Vec<Node> = NODES.iter().map(start).collect::<Result<_, String>>()?;
        eventually("the nodes know each other", || {
            let mut known = nodes.iter().flat_map(|node| NODES.map(|name| node.knows(name)));
            known.try_fold(true, |all, known| Ok(all & (known?["alive"] == true)))
        })?;
        let balancer = Balancer::start(nodes.iter().map(|node| node.server.address.clone()).collect())?;
        check(&balancer.address)
    }
}
