//! Other instances of orla as providers (RTFS capability system §3.3).
//!
//! [`RemoteRTFSExecutor`] calls one capability of another instance; [`Remotes`] is a
//! [`Source`](orla_marketplace::Source) of all that the instances of `remotes` serve.
//!
//! # How it works
//!
//! A call is one `POST /rtfs` (`request`), and its answer an outcome or the same error that the other instance had
//! (`answer`). Headers carry the call's deadline, trace context and the instances that it has passed through.
//! Dropping the call ends the request, and with it the call there. A catalogue is read by `GET /rtfs` (`listing`),
//! which is answered again when it has changed: `follow` waits for that.
//!
//! # Invariants
//!
//! - A call is sent once, and its token goes to the configured origin alone: no redirect is followed.
//! - Capabilities that would return to their origin are left out of a catalogue, so instances that have each
//!   other's catalogues do not loop.
//! - Memory is bounded: answers, catalogues, and how many capabilities one has.
//!
//! # Deliberately absent
//!
//! Progress of the call there, and questions to the caller's client: both need a stream, and a call is one
//! request.

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
