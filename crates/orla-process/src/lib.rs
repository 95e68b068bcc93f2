//! Child processes.
pub mod arguments;
pub mod directives;
pub mod naming;
pub mod shebang;
