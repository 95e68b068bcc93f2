//! `/rtfs`: programs and calls in RTFS's terms, and the protocol between instances of orla.

pub(crate) mod federation;
pub(crate) mod programs;
