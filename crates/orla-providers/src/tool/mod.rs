//! The simple tool: an executable file as a capability, with a process for each call (RFC 1).
//!
//! [`Loader`] makes capabilities from a directory's executable files. [`discovery`] examines the files;
//! [`mod@plan`], [`naming`], [`header`] and [`metadata`] interpret names and first bytes.
//! [`ToolExecutor`] runs a call: [`arguments`] converts its JSON to a command line,
//! [`orla_process::runner`] runs the program, [`directives`] extracts progress and log messages from its
//! standard error, and [`mod@result`] reports the result.
//!
//! Both use only the marketplace's public interface: a third party could have written them.
//!
//! # Invariant
//!
//! Arguments are a vector from end to end; no shell ever parses them.

pub mod arguments;
pub mod directives;
pub mod discovery;
mod executor;
pub mod header;
pub mod metadata;
pub mod naming;
pub mod plan;
pub mod result;
mod settings;
mod source;

pub use discovery::{DescriptionFinding, DirectoryError, Finding, ProgramFile};
pub use executor::{ToolExecutor, prestarted};
pub use settings::ToolProvider;
pub(crate) use settings::requires;
pub(crate) use source::united;
pub use source::{
    Fill, Filled, ForeignTerms, ForeignTool, ForeignTools, Loaded, Loader, Override, foreign, unserved,
};
