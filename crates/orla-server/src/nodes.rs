//! The nodes of a cluster, as the server shows them.
//!
//! `POST /cluster/nodes/NODE` with `{"drain": true | false}` makes a node stop taking calls of other
//! nodes, or take them again.

use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use bytes::Bytes;
use http::{Response, StatusCode};
use orla_marketplace::{Catalog, Principal};
use serde::{Deserialize, Serialize};
use serde_json::json;

use crate::http::body::Body;
use crate::http::response::{forbidden, json as json_response, malformed, refused};
use crate::state::Core;

/// The permission to change the state of nodes.
const DRAIN: &str = "cluster:drain";

/// A cluster that the server is a node of.
#[async_trait]
pub trait Nodes: Send + Sync {
    /// Returns the nodes that there are now.
    fn rows(&self) -> Vec<NodeRow>;

    /// Returns whether this node receives messages of the others.
    fn is_connected(&self) -> bool;

    /// Returns the counts of events of calls between nodes, each with its word.
    fn events(&self) -> Vec<(&'static str, u64)>;

    /// Returns the versions of the capabilities of a snapshot that nodes share: the id of each, and a digest of its version.
    fn versions(&self, catalog: &Catalog) -> Vec<(String, String)>;

    /// Returns a snapshot like the newest one that has these versions in place of others, if it can be made. Calls of a version go
    /// to the nodes that offer it. A version that no node offers is that of this node, or unavailable if this node has none.
    fn with_versions(&self, versions: &[(&str, &str)]) -> Option<Arc<Catalog>>;

    /// Makes a node stop taking calls of other nodes, or take them again.
    ///
    /// # Errors
    ///
    /// Returns why the node does not.
    async fn drain(&self, node: &str, drains: bool) -> Result<(), DrainError>;

    /// Returns an identifier of this process, unique in the cluster.
    fn instance(&self) -> &str;

    /// Returns the other nodes that are present.
    fn others(&self) -> Vec<OtherNode>;

    /// Returns the maximum number of bytes of a question to another node, and of its answer.
    fn max_payload(&self) -> usize;

    /// Asks an instance of another node, in the name of this caller. Its server
    /// [answers](crate::Server::answer_node).
    ///
    /// # Errors
    ///
    /// Returns an error if no answer arrives within this time.
    async fn ask(
        &self,
        instance: &str,
        caller: Option<&Principal>,
        question: Bytes,
        max_wait: Duration,
    ) -> Result<Bytes, NoAnswer>;
}

/// Returns a question to another node. Its first word names the part of the server that answers it.
pub(crate) fn question(word: &[u8], request: &impl Serialize) -> Bytes {
    let mut question = [word, b" "].concat();
    question.extend(serde_json::to_vec(request).unwrap_or_default());
    question.into()
}

/// Another node that is present.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct OtherNode {
    /// Its name.
    pub node: String,
    /// The identifier of its process.
    pub instance: String,
}

/// The reason why another node gave no answer.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum NoAnswer {
    /// The node is no longer present.
    #[error("the node is gone")]
    Gone,
    /// The node does not answer.
    #[error("{0}")]
    Silent(String),
}

/// The reason why a node does not follow a drain request.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum DrainError {
    /// No node has this name.
    #[error("no node of the cluster has this name now; see `orla cluster status`")]
    Unknown,
    /// The request cannot reach the node now.
    #[error("the node cannot be told: {0}")]
    Unavailable(String),
}

/// One node of a cluster in `/status` and `orla cluster status --json`.
#[derive(Clone, Debug, Serialize)]
pub struct NodeRow {
    /// Its name.
    pub node: String,
    /// Whether the node is present.
    pub alive: bool,
    /// Whether the node is this server and currently receives no messages of other nodes.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub cut_off: bool,
    /// Whether the node has stopped taking calls of others.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub draining: bool,
    /// The ids of its capabilities.
    pub capabilities: Vec<String>,
    /// The number of calls that run there.
    pub running: usize,
    /// The number of places that its calls hold in cluster-wide limits.
    #[serde(skip_serializing_if = "is_zero")]
    pub places: usize,
    /// The number of milliseconds since its last message.
    pub lag_ms: u64,
    /// For how many milliseconds its copy of the store has lagged behind because its consumer is stuck.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub stuck_ms: Option<u64>,
}

#[expect(clippy::trivially_copy_pass_by_ref, reason = "serde passes a reference")]
fn is_zero(number: &usize) -> bool {
    *number == 0
}

/// The values for `/metrics`.
pub(crate) struct ClusterGauges {
    pub(crate) is_connected: bool,
    /// How many nodes are in each state.
    pub(crate) nodes: [(&'static str, u64); 3],
    pub(crate) events: Vec<(&'static str, u64)>,
}

pub(crate) fn gauges(core: &Core) -> Option<ClusterGauges> {
    let cluster = core.cluster()?;
    let mut nodes = [("alive", 0), ("draining", 0), ("gone", 0)];
    for row in cluster.rows() {
        let state = match (row.alive, row.draining) {
            (true, false) => 0,
            (true, true) => 1,
            (false, _) => 2,
        };
        nodes[state].1 += 1;
    }
    Some(ClusterGauges { is_connected: cluster.is_connected(), nodes, events: cluster.events() })
}

/// Makes a node drain, or take calls again.
pub(crate) async fn drain(
    core: &Core,
    principal: Option<&Principal>,
    node: &str,
    body: &Bytes,
) -> Response<Body> {
    #[derive(Deserialize)]
    #[serde(deny_unknown_fields)]
    struct DrainRequest {
        drain: bool,
    }
    let Some(cluster) = core.cluster() else {
        return refused(StatusCode::NOT_FOUND, "not-found", "this server is not a node of a cluster");
    };
    if !core.market.snapshot().permits_part(principal, "cluster", DRAIN) {
        return forbidden(format!("the policy does not grant {DRAIN}"));
    }
    let Ok(DrainRequest { drain }) = serde_json::from_slice(body) else {
        let expected = r#"expected {"drain": true} or {"drain": false}"#;
        return malformed(expected);
    };
    match cluster.drain(node, drain).await {
        Ok(()) => json_response(StatusCode::OK, json!({"node": node, "draining": drain}).to_string()),
        Err(error @ DrainError::Unknown) => {
            refused(StatusCode::NOT_FOUND, "not-found", &error.to_string())
        }
        Err(error) => refused(StatusCode::SERVICE_UNAVAILABLE, "unavailable", &error.to_string()),
    }
}
