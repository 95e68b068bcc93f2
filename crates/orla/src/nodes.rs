//! The cluster, as the server shows it.

use std::sync::Arc;

use async_trait::async_trait;
use orla_cluster::{Cluster, NodeStatus, OrderError};
use orla_server::{DrainError, NodeRow, Nodes};
use orla_tasks::{Foreign, Sharing};

/// The nodes of the cluster that this instance is one of.
pub(crate) struct ClusterNodes(pub(crate) Arc<Cluster>);

#[async_trait]
impl Nodes for ClusterNodes {
    fn rows(&self) -> Vec<NodeRow> {
        self.0.status().into_iter().map(row).collect()
    }

    fn is_connected(&self) -> bool {
        self.0.is_connected()
    }

    fn events(&self) -> Vec<(&'static str, u64)> {
        self.0.events()
    }

    async fn drain(&self, node: &str, drains: bool) -> Result<(), DrainError> {
        self.0.drain(node, drains).await.map_err(|error| match error {
            OrderError::Unknown => DrainError::Unknown,
            other => DrainError::Unavailable(other.to_string()),
        })
    }
}

fn row(status: NodeStatus) -> NodeRow {
    let NodeStatus { node, alive, draining, capabilities, running, places, lag_ms, .. } = status;
    NodeRow { node, alive, draining, capabilities, running, places, lag_ms }
}

/// How this node shares the tasks of its cluster: it runs those of the capabilities that it has itself.
pub(crate) fn sharing(cluster: &Arc<Cluster>) -> Sharing {
    let draining = Arc::clone(cluster);
    Sharing {
        node: cluster.node().to_owned(),
        runs: Box::new(|entry| entry.manifest.provider.kind() != orla_cluster::KIND),
        admits: {
            let cluster = Arc::clone(cluster);
            Box::new(move |task: Foreign<'_>| {
                cluster.admits(task.capability, task.is_program, task.is_identified)
            })
        },
        takes: Box::new(move || !draining.is_draining()),
    }
}
