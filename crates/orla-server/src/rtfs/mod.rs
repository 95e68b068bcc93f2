//! `/rtfs`: programs and calls in RTFS's terms, and what instances of orla say to each other.

pub(crate) mod federation;
pub(crate) mod programs;
