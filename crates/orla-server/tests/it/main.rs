//! The server driven over real sockets and in-memory pipes, with capabilities that need no process.

#![expect(clippy::unwrap_used, reason = "a test that meets what it does not expect has failed")]

mod agent;
mod http;
mod lifecycle;
mod nodes;
mod questions;
mod questions_of_nodes;
mod sessions;
mod shared_sessions;
mod stdio;
mod subscriptions;
mod support;
