//! What the nodes of a cluster share: the store.

use std::process::Command;

use super::World;
use crate::root;

impl World {
    /// The suite that every store passes, on several nodes of one cluster.
    pub(super) fn store(&self) -> Result<(), String> {
        let nats = self.nats()?;
        let address = format!("nats://127.0.0.1:{}", nats.port);
        let arguments = ["run", "--quiet", "--package", "orla-cluster", "--example", "store", "--"];
        let status = Command::new("cargo")
            .args(arguments)
            .args([&*address, "t"])
            .current_dir(root())
            .status()
            .map_err(|err| format!("cargo: {err}"))?;
        if status.success() { Ok(()) } else { Err("a promise is broken".to_owned()) }
    }
}
