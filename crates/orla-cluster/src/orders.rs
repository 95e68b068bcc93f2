//! Orders of operators to nodes, which any node can send.
//!
//! An order is a message to `orla.CLUSTER.drain.NODE`, so the permissions of NATS decide which nodes may
//! give orders.

use std::time::Duration;

use async_nats::{Message, StatusCode, Subscriber};
use bytes::Bytes;
use futures_util::StreamExt;
use tokio::time::timeout;

use crate::link::Link;
use crate::presence::is_name;
use crate::shared::Shared;

/// How long a node may take to answer.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(5);
const DRAIN: &str = "drain";
const TAKE: &str = "take";

/// The reason why a node does not follow an order.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum OrderError {
    /// No node has this name.
    #[error("no node of the cluster has this name")]
    Unknown,
    /// The order cannot be sent now.
    #[error("{0}")]
    Unavailable(String),
}

/// Subscribes to the orders for this node.
pub(crate) async fn receive(link: &Link) -> Result<Subscriber, String> {
    link.subscribe(subject(link, &link.settings.node)).await
}

/// Follows the orders to this node.
pub(crate) async fn follow(link: &Link, shared: &Shared, mut orders: Subscriber) {
    while let Some(order) = orders.next().await {
        let Some(drains) = parse(&order.payload) else { continue };
        if shared.drain(drains) {
            tracing::info!(drains, "this node was told whether to take calls of others");
        }
        let Some(reply) = order.reply.filter(|reply| link.is_of_cluster(reply)) else { continue };
        drop(link.send(reply.to_string(), None, "done", Bytes::new()).await);
    }
}

/// Has another node take no more calls of others, or take them again.
pub(crate) async fn send(link: &Link, node: &str, drains: bool) -> Result<(), OrderError> {
    if !is_name(node) {
        return Err(OrderError::Unknown);
    }
    let mut inbox = link.open().map_err(OrderError::Unavailable)?;
    let (order, reply) = (if drains { DRAIN } else { TAKE }, link.own_frames(&inbox.token));
    let sent =
        link.send(subject(link, node), Some(reply), "order", Bytes::from_static(order.as_bytes()));
    sent.await.map_err(OrderError::Unavailable)?;
    match timeout(ANSWER_TIMEOUT, inbox.next()).await {
        Ok(Some(Message { status: Some(StatusCode::NO_RESPONDERS), .. })) => Err(OrderError::Unknown),
        Ok(Some(_)) => Ok(()),
        Ok(None) | Err(_) => Err(OrderError::Unavailable("it does not answer".to_owned())),
    }
}

fn parse(order: &[u8]) -> Option<bool> {
    match order {
        order if order == DRAIN.as_bytes() => Some(true),
        order if order == TAKE.as_bytes() => Some(false),
        _ => None,
    }
}

fn subject(link: &Link, node: &str) -> String {
    format!("orla.{}.drain.{node}", link.settings.name)
}
