//! The built-in functions as capabilities (RTFS capability system §2.3, §4).
//!
//! [`registrations`] describes each function of the [`CapabilityRegistry`](orla_registry::CapabilityRegistry), and
//! [`LocalExecutor`] runs it: synchronously, in microseconds, without I/O.
//!
//! # How it works
//!
//! A built-in reads each of its arguments by its type. The marketplace therefore checks neither its
//! input nor its output, and compiles no schema for it
//! ([`checks_types`](orla_marketplace::CapabilityExecutor::checks_types)). The schema is compiled only
//! if a built-in refuses its arguments, to report all mistakes at once. A large input is processed
//! outside the threads that serve requests.

mod executor;
mod source;

pub use executor::LocalExecutor;
pub use source::{SOURCE, registration_of, registrations};

#[cfg(test)]
mod tests;
