//! Calls between nodes.
//!
//! A call is a message with a [`CallHead`](head::CallHead) and the input, or its beginning. From then on both ends send
//! frames: the node that runs it its heartbeats, notices, questions and the result, and the caller its heartbeats,
//! answers and cancellation. Payloads that do not fit into one message go in chunks, with credit-based flow control.
//!
//! `head`, `frame` and `payload` are pure. `exchange` is one end of a call, `executor` makes calls, `serve` runs those
//! of other nodes.

mod exchange;
mod executor;
mod frame;
mod head;
mod payload;
mod questions;
mod recent;
mod serve;

use std::time::Duration;

pub use executor::ClusterExecutor;
#[cfg(feature = "testing")]
pub(crate) use head::{read_notice, write_notice};
pub(crate) use serve::Serving;

/// The interval of heartbeats.
const HEARTBEAT: Duration = Duration::from_secs(3);
/// After this time without a frame, the other end is lost.
const PEER_TIMEOUT: Duration = Duration::from_secs(6);
/// The largest input and the largest result, in bytes.
const MAX_BYTES: usize = 64 * 1024 * 1024;
/// The maximum number of questions of one call that are open.
const MAX_QUESTIONS: usize = 16;
/// The initial flow-control window, in bytes.
const WINDOW: usize = 4 * 1024 * 1024;
