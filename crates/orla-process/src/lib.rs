//! Child processes.
pub mod arguments;
pub mod child;
pub mod directives;
pub mod discovery;
mod exit_watch;
pub mod header;
pub mod limits;
pub mod metadata;
pub mod naming;
pub mod runner;
pub mod shebang;
