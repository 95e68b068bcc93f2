//! `orla cluster`.

use clap::Subcommand;

use super::Settings;

pub(super) const CLUSTER: &str = "\
Examples:
  orla cluster status
  orla cluster status --json --url http://127.0.0.1:8080 | jq -r '.nodes[].node'
  orla cluster drain alpha                 # alpha takes no more calls of others
  orla cluster drain alpha --undo

ORLA_TOKEN is sent as the bearer token, if it is set.";

#[derive(Clone, Debug, Subcommand)]
pub(crate) enum Cluster {
    /// Show the nodes as a running server knows them
    Status {
        /// The server; http://HOST:PORT of the configuration if absent
        #[arg(long)]
        url: Option<String>,
        /// Print JSON: {nodes: [{node, alive, capabilities, running, lag_ms, tasks}]}
        #[arg(long)]
        json: bool,
        #[command(flatten)]
        settings: Settings,
    },
    /// Stop a node from taking calls of other nodes; it finishes its running calls
    Drain {
        /// The name of the node
        node: String,
        /// Let it take calls again
        #[arg(long)]
        undo: bool,
        /// A server of the cluster; http://HOST:PORT of the configuration if absent
        #[arg(long)]
        url: Option<String>,
        #[command(flatten)]
        settings: Settings,
    },
}
