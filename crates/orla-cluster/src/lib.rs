//! Many instances as one (design §15): a common catalogue and calls between nodes, over NATS with JetStream.
//!
//! [`Cluster`] is a [`Source`](orla_marketplace::Source) of what the other nodes offer, and [`ClusterExecutor`] calls
//! it. Nothing else in the tree knows NATS.
//!
//! # How it works
//!
//! A node's lease shows that it is alive, and its offer lists its capabilities (`presence`; both
//! are entries of key-value buckets). `registry` knows all nodes and decides, without I/O, what is
//! served and which node gets a call. A call is one message to a node and the frames that come
//! back (`call`). `link` is the connection: all messages to a node arrive at one subscription, in
//! the order in which they were sent. `member` keeps this node's lease and hears those of the
//! others, and `learner` reads what they offer.
//!
//! # Invariants
//!
//! - Data from other nodes is bounded and checked before it is used. Digests are computed here,
//!   from their content.
//! - A frame reaches a call only by its random token, so that a node cannot answer calls that it was not given.
//! - Of two processes with the name of one node, a call reaches one.
//! - A call that may have begun elsewhere is made again only if it is idempotent.
//! - Without NATS, everything outside the cluster continues to work.
//!
//! # Deliberately absent
//!
//! Secrets: the credential of a caller stays on the node that it called. Streams that are read item by item.

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

pub use call::ClusterExecutor;
pub use cluster::Cluster;
pub use error::ClusterError;
pub use inquiry::{Answerer, NoReply};
pub use orders::OrderError;
pub use presence::{MAX_NAME, NodeStatus, is_name};
pub use provider::is_of_nodes;
pub use settings::{ClusterSettings, TlsFiles};
