//! Who is there, and what they offer. Pure.

mod lease;
mod offer;
mod registry;

pub use lease::{MAX_NAME, is_name};
pub use registry::NodeStatus;

pub(crate) use lease::{Lease, VERSION};
pub(crate) use offer::{MAX_OFFER, Offered, Offers, hex};
pub(crate) use registry::{Candidate, LEASE, Registry};
