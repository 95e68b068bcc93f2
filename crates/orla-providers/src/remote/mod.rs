//! Other instances of orla as providers (RTFS capability system §3.3).
//!
//! [`RemoteRTFSExecutor`] calls one capability of another instance. [`Remotes`] is a
//! [`Source`](orla_marketplace::Source) of all capabilities that the instances of `remotes` serve.
//!
//! # How it works
//!
//! A call is one `POST /rtfs` (`request`). Its answer is an outcome, or the same error that the other
//! instance had (`answer`). Headers carry the call's deadline, trace context and the instances that it
//! has passed through. Dropping the call ends the request, and with it the call at the other instance. A
//! catalogue is read by `GET /rtfs` (`listing`), which is answered again when it has changed: `follow`
//! waits for that.
//!
//! # Invariants
//!
//! - A call is sent once, and its token goes only to the configured origin: no redirect is followed.
//! - Capabilities that would return to their origin are left out of a catalogue, so instances that have each
//!   other's catalogues do not loop.
//! - Memory is bounded: answers, catalogues, and the number of capabilities of an instance.
//!
//! # Deliberately absent
//!
//! Progress of the remote call, and questions to the caller's client: both need a stream, and a call is
//! one request.

mod answer;
mod executor;
mod follow;
mod listing;
mod remotes;
mod request;
mod settings;

pub use executor::RemoteRTFSExecutor;
pub use remotes::Remotes;
pub use request::check;
pub use settings::RemoteSettings;

#[cfg(test)]
mod tests;
