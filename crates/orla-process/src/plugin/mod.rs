//! What is said with one plugin: a program that answers one JSON line with another (RTFS capability system
//! §3.3, §4). No I/O here.
//!
//! `Conversation` is everything that is said over one pair of pipes, [`wire`] its lines. The process
//! has the supervisor that capsules have ([`capsule`](crate::capsule)).

pub(crate) mod conversation;
pub mod wire;

/// How the reason begins if the answer to `describe` is not valid.
pub const MALFORMED: &str = "it does not answer describe with its functions";

/// How one plugin is spoken to.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Manner {
    /// It is asked what it serves, before anything else.
    pub(crate) describes: bool,
    /// It is given one call at a time.
    pub(crate) is_serial: bool,
}
