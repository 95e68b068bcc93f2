//! The nodes that are present, and their offers. Pure.

mod lease;
mod offer;
mod read_queue;
mod registry;

pub use lease::{MAX_NAME, is_name};
pub use registry::NodeStatus;

pub(crate) use lease::{Lease, VERSION, is_instance};
pub(crate) use offer::{MAX_OFFER, Offered, Offers};
pub(crate) use read_queue::ReadQueue;
pub(crate) use registry::{Candidate, LEASE, Learned, Peer, Registry};
