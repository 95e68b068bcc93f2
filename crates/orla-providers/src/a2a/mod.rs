//! Agents that speak the Agent2Agent protocol as providers (RTFS capability system §3.3, §4).
//!
//! [`Agents`] is a [`Source`](orla_marketplace::Source) of capabilities: the skills of the agents that are configured.
//! [`A2AExecutor`] calls them, and those that a capability names by itself.
//!
//! # How it works
//!
//! An `agent` is known by its `card`, which is fetched when it is first needed, checked (`signature`), and says over which
//! `wire` the agent is spoken to: JSON-RPC, HTTP+JSON, gRPC, or JSON-RPC in a WebSocket. A call becomes a message (`input`),
//! what the agent tells is put together (`gather`) and becomes an outcome (`answer`); agents of 0.3 are spoken to in their
//! own `dialect`. Only `agent`, `wire` and `executor` do any I/O.
//!
//! # Invariants
//!
//! - A message is sent once. What is repeated after a cut is the question how its task stands.
//! - Credentials and messages go to the origin that is configured, and to those that are allowed beside it: a card that
//!   leads elsewhere is refused.
//! - When a call ends before its task, the agent is asked to end the task.
//! - What one call keeps is bounded (16 MiB), and what has arrived is reported when time is up.
//!
//! # Decision: the project's types, our transport
//!
//! The types are those of the project's own crates (`a2a-lf`, and `a2a-pb` for gRPC). Its client is not used: it reads
//! answers without a bound, cannot be kept to an origin, takes what a writer of ProtoJSON leaves out for an error,
//! and knows no agent of 0.3.

mod agent;
mod agents;
mod answer;
mod card;
mod dialect;
mod executor;
mod gather;
mod input;
mod settings;
mod signature;
mod wire;

pub use agent::check;
pub use agents::Agents;
pub use executor::A2AExecutor;
pub use settings::{AgentSettings, Protocol};
