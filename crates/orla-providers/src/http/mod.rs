//! HTTP APIs as providers (RTFS capability system §3.3).
//!
//! # How it works
//!
//! The settings of an [`HttpCapability`](orla_marketplace::HttpCapability) alone decide how a call
//! becomes a request. `request` fills templates (`template`), parameters (`parameter`) and the body
//! (`body`) with the call's arguments (`arguments`), each encoded for its place (`encode`).
//! [`HttpExecutor`] sends the request through pooled clients (`client`), follows redirects (`redirect`),
//! and reads the answer up to its limit. `answer` turns the answer into a value, content blocks or an
//! error. `transport` explains failures of the connection. Only `executor` and `client` do any I/O.
//!
//! # Invariants
//!
//! - No input changes the origin of a request. Credentials go to that origin only.
//! - A call is sent once.
//! - Memory is bounded by `max_answer_bytes`, for any answer, compressed or not.
//! - No redirect leads to an address of a smaller reach (public, private, loopback, link-local), unless that is allowed.
//!
//! # Deliberately absent
//!
//! Retries, circuit breakers and validation, which the marketplace does for all providers; cookies that
//! servers set; caches.

mod answer;
mod arguments;
pub(crate) mod body;
mod client;
mod encode;
mod executor;
mod parameter;
mod redirect;
mod request;
mod template;
mod transport;
mod webhook;

pub(crate) use client::Clients;
pub use client::HttpLimits;
pub use executor::HttpExecutor;
pub(crate) use executor::read as read_body;
pub(crate) use executor::{refused, request as request_of};
pub(crate) use redirect::host as host_of;
pub(crate) use request::shown;
pub(crate) use request::{Prepared, prepare};
pub use request::{check, origin, path_arguments};
pub(crate) use transport::{Stage, failure};
pub use webhook::WebHooks;

#[cfg(test)]
pub(crate) mod test_server;
#[cfg(test)]
mod tests;
