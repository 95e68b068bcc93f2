//! Message framing: lines, and server-sent events.

mod lines;
mod sse;

pub use lines::{Lines, MAX_MESSAGE, Outgoing, TooLong, end_line, quoted};
pub use sse::{Event, Events, TooLarge};
