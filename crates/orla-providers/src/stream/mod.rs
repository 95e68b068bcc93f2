//! Streams as providers (RTFS capability system §3.2): sources, sinks, transforms and streams in both directions,
//! over server-sent events, lines of HTTP bodies, WebSockets, and lines of programs.
//!
//! # How it works
//!
//! [`StreamExecutor`] opens a stream (`connect`) and returns a handle on it (`handle`). Nothing is read
//! before the next item is requested, and no task reads ahead. The items of a fast producer wait in its
//! connection or its pipe, and then the producer waits. Dropping the handle closes the connection or
//! ends the program immediately. `source` reads data and splits it into items (`items`,
//! `orla_mcp::framing`); `sink` writes. `resume` decides what happens when a connection breaks. A call
//! of a stream collects items (`collect`), and [`Streams`] serves sources as resources that can be
//! subscribed to.
//!
//! # Invariants
//!
//! - An item that was read is returned once, even if its reader was dropped meanwhile.
//! - Memory is bounded by the maximum item size, and by the number of values that wait to be sent.
//! - Server-sent events with ids are neither lost nor repeated, as far as the server keeps them.

mod collect;
mod connect;
mod executor;
mod handle;
mod items;
mod resume;
mod sink;
mod source;
mod surface;

pub use connect::{check, check_program, sandbox_of};
pub use executor::StreamExecutor;
pub use executor::call_schema;
pub use surface::Streams;

#[cfg(test)]
mod tests;
