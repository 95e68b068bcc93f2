//! What is said with one server of the Model Context Protocol, whatever it is reached through. No I/O here.
//!
//! # How it works
//!
//! A [`Peer`] is something that can be asked: a supervised process (a capsule) or a server
//! behind HTTP. [`call`] makes the call of a tool of it, and [`PeerSurface`] serves what it has besides tools.
//! Both go in [`input_requests`] where the server answers with questions instead of a result (2026-07-28).
//! `Conversation` is everything that is said over one pair of pipes; [`wire`] is JSON-RPC.
//!
//! # What is deliberately absent
//!
//! The SDK's client. Its types know every member that a message may have, and lose the others, as they lose
//! the text of numbers; its service makes a tree of every result (2.0 ms for 100 KB where the envelope
//! alone costs 0.07 ms). Here a result is the text it came in, from end to end.

#![warn(missing_docs)]

pub mod answer;
pub mod conversation;
pub mod framing;
pub mod input_requests;
mod messages;
pub mod mode;
pub mod object;
mod param_headers;
mod peer;
mod scan;
mod subscriptions;
mod surface;
mod tools;
pub mod wire;

pub use conversation::{
    Ask, Caller, Failure, Fault, Handshake, MAX_PAGES, MAX_TOOLS, Reply, ServerInfo, only,
    write_client_answer,
};
pub use input_requests::QUESTIONS;
pub use messages::Messages;
pub use mode::RequestMode;
pub use param_headers::ParamHeader;
pub use peer::{Ending, Peer, call, failure};
pub use subscriptions::{Subscriptions, TooMany};
pub use surface::PeerSurface;
pub use tools::describe;
