//! The Model Context Protocol, over HTTP and over pipes.
//!
//! `rpc` reads a message, `request_mode` determines whether it belongs to a session, and `dispatch`
//! answers it. `tasks` runs calls that outlive their requests. `session` is the state of a client,
//! `input` the questions of providers to clients, `notify` the notifications to clients.

pub(crate) mod dispatch;
pub(crate) mod http;
mod input;
pub(crate) mod notify;
mod protocol;
mod request_mode;
mod rpc;
pub(crate) mod session;
pub(crate) mod stdio;
pub(crate) mod surfaces;
mod tasks;
pub(crate) mod tools;
