//! Many instances as one: a common catalogue and calls between nodes, over NATS with
//! JetStream.
//!
//! [`Cluster`] is a [`Source`](orla_marketplace::Source) of the other nodes' capabilities, and
//! [`ClusterExecutor`] calls them. No other crate uses NATS.
//!
//! # How it works
//!
//! A node's lease shows that it is alive, and its offer lists its capabilities (`presence`; both are
//! entries of key-value buckets). `registry` knows all nodes. It decides, without I/O, which
//! capabilities are served and which node gets a call. A call is one message to a node and the frames
//! that come back (`call`). `link` is the connection: all messages to a node arrive at one subscription,
//! in the order in which they were sent. `member` renews this node's lease and receives those of the
//! others, and `learner` reads their offers.
//!
//! # Invariants
//!
//! - Data from other nodes is bounded and checked before it is used. Digests are computed here, from
//!   their content.
//! - A frame reaches a call only by its random token, so that a node cannot answer calls that it was not
//!   given.
//! - If two processes use the name of one node, a call reaches only one of them.
//! - A call that may have begun elsewhere is made again only if it is idempotent.
//! - Without NATS, everything outside the cluster continues to work.
//!
//! # Deliberately absent
//!
//! Secrets: the credential of a caller stays on the node that it called. Item-by-item streams.

#![warn(missing_docs)]

mod call;
mod caller;
mod cluster;
mod error;
mod inbox;
mod inquiry;
mod learner;
mod limits;
mod link;
mod member;
mod orders;
mod presence;
mod provider;
mod settings;
mod shared;
mod store;
#[cfg(feature = "testing")]
pub mod testing;

pub use call::ClusterExecutor;
pub use cluster::{Cluster, Version};
pub use error::ClusterError;
pub use inquiry::{Answerer, NoReply};
pub use orders::OrderError;
pub use presence::{MAX_NAME, NodeStatus, is_name};
pub use provider::is_of_nodes;
pub use settings::{Buffering, ClusterSettings, TlsFiles};
