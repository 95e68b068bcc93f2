//! Capsules.
#![expect(dead_code, reason = "the parts are put together in the next steps")]
#![expect(unreachable_pub, reason = "the parts are put together in the next steps")]
mod document;
pub mod manifest;
pub mod packages;
mod state;
mod wire;
