//! The nodes of a cluster, as the server shows them.

use serde::Serialize;

/// Says which nodes there are now.
pub(crate) type ShowNodes = dyn Fn() -> Vec<NodeRow> + Send + Sync;

/// One node of a cluster in `/status` and `orla cluster status --json`.
#[derive(Clone, Debug, Serialize)]
pub struct NodeRow {
    /// Its name.
    pub node: String,
    /// Whether it is there.
    pub alive: bool,
    /// The ids of what it offers.
    pub capabilities: Vec<String>,
    /// Calls that run there.
    pub running: usize,
    /// Milliseconds since it was last heard of.
    pub lag_ms: u64,
}
