//! The executors, with one module for each kind of provider (RTFS capability system §2.2).

#![warn(missing_docs)]

pub mod a2a;
pub mod builtin;
pub mod capsule;
mod confined;
mod deadline;
pub mod http;
pub mod mcp;
mod names;
pub mod openapi;
pub mod plugin;
mod process;
pub mod remote;
pub mod sign_in;
mod span;
pub mod stream;
pub mod tool;

pub use names::NameRules;
