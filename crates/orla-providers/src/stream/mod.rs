//! Streams as providers (RTFS capability system §3.2): sources, sinks, transforms and streams in both directions,
//! over server-sent events, lines of HTTP bodies, WebSockets, and lines of programs.
//!
//! # How it works
//!
//! [`StreamExecutor`] opens a stream (`connect`) and gives a handle on it (`handle`). Nothing is read before
//! somebody asks for the next item, and no task reads ahead: what a producer sends too fast waits in its
//! connection or its pipe, and then with it. Dropping the handle closes the connection or ends the program at
//! once. `source` reads what comes and cuts it into items (`items`, `crate::sse`), `sink` writes; `resume`
//! decides what follows when a connection is cut. A call of a stream collects items (`collect`), and
//! [`Streams`] serves sources as resources that can be subscribed to.
//!
//! # Invariants
//!
//! - An item that was read is given once, also when whoever asked for it went away meanwhile.
//! - Memory is bounded: by the largest item, and by how many values wait to be sent.
//! - Of server-sent events with ids none is lost and none given twice, as far as the server keeps them.

mod collect;
mod connect;
mod executor;
mod handle;
mod items;
mod resume;
mod sink;
mod source;
mod surface;

pub use connect::check;
pub use executor::StreamExecutor;
pub use executor::call_schema;
pub use surface::Streams;

#[cfg(test)]
mod tests;
