//! Tool capsules: packages whose process keeps running and serves many calls over MCP (RFC 2).
//!
//! [`packages::find`] finds directories with a [`manifest`]. [`Capsules`] has a supervised process for
//! each capsule, and registers the tools of the processes as capabilities. [`CapsuleExecutor`] calls
//! them. A package with a process for each call is a simple tool ([`packages::registration`]).

mod executor;
pub mod manifest;
pub mod packages;
mod service;
mod source;

pub use executor::{CapsuleExecutor, capsule_of, is_capsule, is_unlearned, package_of};
pub use manifest::Mode;
pub use packages::{Package, Packages};
pub use source::Capsules;

#[cfg(test)]
mod tests;
