//! The executors of the remote kinds of provider (RTFS capability system §2.2), one module each.

#![warn(missing_docs)]

#[cfg(feature = "http")]
pub mod http;
#[cfg(feature = "mcp")]
pub mod mcp;
#[cfg(feature = "http")]
pub mod openapi;
