//! The protocol of plugins, one JSON line for each message in both directions (RTFS capability system §3.3, §4).
//! No I/O here.
//!
//! `conversation` holds the state of one pair of pipes; [`wire`] defines the lines.

pub(crate) mod conversation;
pub mod wire;

/// The beginning of the reason if the answer to `describe` is not valid.
pub(crate) const MALFORMED: &str = "it does not answer describe with its functions";
