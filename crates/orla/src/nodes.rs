//! The cluster, as the server shows it.

use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use bytes::Bytes;
use orla_cluster::{Answerer, Cluster, NoReply, NodeStatus, OrderError};
use orla_marketplace::{Catalog, Principal};
use orla_server::{DrainError, NoAnswer, NodeRow, Nodes, OtherNode, Server};
use orla_state::StateStore;
use orla_tasks::{Foreign, Sharing};

use crate::served::Served;

/// The nodes of the cluster that this instance is one of.
pub(crate) struct ClusterNodes {
    pub(crate) cluster: Arc<Cluster>,
    pub(crate) served: Arc<Served>,
}

#[async_trait]
impl Nodes for ClusterNodes {
    fn rows(&self) -> Vec<NodeRow> {
        node_rows(&self.cluster)
    }

    fn is_connected(&self) -> bool {
        self.cluster.is_connected()
    }

    fn events(&self) -> Vec<(&'static str, u64)> {
        self.cluster.events()
    }

    fn versions(&self, catalog: &Catalog) -> Vec<(String, String)> {
        self.cluster.versions_in(catalog)
    }

    fn with_versions(&self, versions: &[(&str, &str)]) -> Option<Arc<Catalog>> {
        self.served.with_versions(&self.cluster.versions(versions))
    }

    async fn drain(&self, node: &str, drains: bool) -> Result<(), DrainError> {
        self.cluster.drain(node, drains).await.map_err(|error| match error {
            OrderError::Unknown => DrainError::Unknown,
            other => DrainError::Unavailable(other.to_string()),
        })
    }

    fn instance(&self) -> &str {
        self.cluster.instance()
    }

    fn others(&self) -> Vec<OtherNode> {
        let peers = self.cluster.peers().into_iter();
        peers.map(|(node, instance)| OtherNode { node, instance }).collect()
    }

    fn max_payload(&self) -> usize {
        self.cluster.max_payload()
    }

    async fn ask(
        &self,
        instance: &str,
        caller: Option<&Principal>,
        question: Bytes,
        max_wait: Duration,
    ) -> Result<Bytes, NoAnswer> {
        let answer = self.cluster.ask(instance, caller, question, max_wait).await;
        answer.map_err(|error| match error {
            NoReply::Gone => NoAnswer::Gone,
            other => NoAnswer::Silent(other.to_string()),
        })
    }
}

/// Answers the questions of other nodes.
pub(crate) struct Answers(pub(crate) Server);

#[async_trait]
impl Answerer for Answers {
    async fn answer(&self, caller: Option<Principal>, question: Bytes) -> Bytes {
        self.0.answer_node(caller.as_ref(), &question).await
    }
}

/// Returns the nodes that there are now.
pub(crate) fn node_rows(cluster: &Cluster) -> Vec<NodeRow> {
    cluster.status().into_iter().map(row).collect()
}

fn row(status: NodeStatus) -> NodeRow {
    let NodeStatus {
        node,
        alive,
        cut_off,
        draining,
        capabilities,
        running,
        places,
        lag_ms,
        stuck_ms,
        ..
    } = status;
    NodeRow { node, alive, cut_off, draining, capabilities, running, places, lag_ms, stuck_ms }
}

/// Returns how this node shares the tasks of its cluster. It runs the tasks of its own capabilities. `own` keeps the tasks that it
/// accepts without the cluster.
pub(crate) fn sharing(
    cluster: &Arc<Cluster>,
    own: Option<Arc<dyn StateStore>>,
    accepts_alone: bool,
) -> Sharing {
    let draining = Arc::clone(cluster);
    Sharing {
        node: cluster.node().to_owned(),
        runs: Box::new(|entry| !orla_cluster::is_of_nodes(&entry.manifest.provider)),
        admits: {
            let cluster = Arc::clone(cluster);
            Box::new(move |task: Foreign<'_>| {
                cluster.admits(task.capability, task.is_program, task.is_identified)
            })
        },
        takes: Box::new(move || !draining.is_draining()),
        own,
        accepts_alone,
    }
}
