//! The nodes of a cluster, as the server shows them.
//!
//! `POST /cluster/nodes/NODE` with `{"drain": true | false}` has a node take no more calls of others, or take them again.

use std::time::Duration;

use async_trait::async_trait;
use bytes::Bytes;
use http::{Response, StatusCode};
use orla_marketplace::Principal;
use serde::{Deserialize, Serialize};
use serde_json::json;

use crate::http::body::Body;
use crate::http::response::{json as json_response, malformed, refused};
use crate::state::Core;

/// The permission to change what nodes do.
const DRAIN: &str = "cluster:drain";

/// A cluster that the server is a node of.
#[async_trait]
pub trait Nodes: Send + Sync {
    /// Returns the nodes that there are now.
    fn rows(&self) -> Vec<NodeRow>;

    /// Returns whether this node hears the others.
    fn is_connected(&self) -> bool;

    /// Returns how often what happened to calls between nodes, each with its word.
    fn events(&self) -> Vec<(&'static str, u64)>;

    /// Has a node take no more calls of others, or take them again.
    ///
    /// # Errors
    ///
    /// Returns why it does not.
    async fn drain(&self, node: &str, drains: bool) -> Result<(), DrainError>;

    /// What tells this process from all others of the cluster.
    fn instance(&self) -> &str;

    /// Returns the other nodes that are there.
    fn others(&self) -> Vec<OtherNode>;

    /// Returns the maximum number of bytes of a question to another node, and of its answer.
    fn room(&self) -> usize;

    /// Asks an instance of another node, in the name of this caller. Its server
    /// [answers](crate::Server::answer_node).
    ///
    /// # Errors
    ///
    /// Returns an error if there is no answer in this time.
    async fn ask(
        &self,
        instance: &str,
        caller: Option<&Principal>,
        question: Bytes,
        patience: Duration,
    ) -> Result<Bytes, NoAnswer>;
}

/// Another node that is there.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct OtherNode {
    /// Its name.
    pub node: String,
    /// What tells its process from all others.
    pub instance: String,
}

/// Why another node gave no answer.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum NoAnswer {
    /// It is not there any more.
    #[error("the node is gone")]
    Gone,
    /// It does not answer.
    #[error("{0}")]
    Silent(String),
}

/// Why a node does not do what it is told.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum DrainError {
    /// No node has this name.
    #[error("no node of the cluster has this name now; see `orla cluster status`")]
    Unknown,
    /// It cannot be told now.
    #[error("the node cannot be told: {0}")]
    Unavailable(String),
}

/// One node of a cluster in `/status` and `orla cluster status --json`.
#[derive(Clone, Debug, Serialize)]
pub struct NodeRow {
    /// Its name.
    pub node: String,
    /// Whether it is there.
    pub alive: bool,
    /// Whether it is this server, and hears no other node now.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub cut_off: bool,
    /// Whether it takes no more calls of others.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub draining: bool,
    /// The ids of what it offers.
    pub capabilities: Vec<String>,
    /// Calls that run there.
    pub running: usize,
    /// The places that its calls hold of cluster-wide bounds.
    #[serde(skip_serializing_if = "is_zero")]
    pub places: usize,
    /// Milliseconds since it was last heard of.
    pub lag_ms: u64,
    /// For how many milliseconds its copy of the store has lagged, because its consumer is stuck.
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

/// Has a node drain, or take calls again.
pub(crate) async fn drain(
    core: &Core,
    principal: Option<&Principal>,
    node: &str,
    body: &Bytes,
) -> Response<Body> {
    #[derive(Deserialize)]
    #[serde(deny_unknown_fields)]
    struct Wanted {
        drain: bool,
    }
    let Some(cluster) = core.cluster() else {
        return refused(StatusCode::NOT_FOUND, "not-found", "this server is not a node of a cluster");
    };
    if !core.market.snapshot().permits_part(principal, "cluster", DRAIN) {
        let what = format!("the policy does not grant {DRAIN}");
        return refused(StatusCode::FORBIDDEN, "denied", &what);
    }
    let Ok(Wanted { drain }) = serde_json::from_slice(body) else {
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
