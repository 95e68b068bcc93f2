//! Agents that speak the Agent2Agent protocol as providers (RTFS capability system §3.3, §4).
//!
//! [`Agents`] is a [`Source`](orla_marketplace::Source) of capabilities: the skills of the configured
//! agents. [`A2AExecutor`] calls them, and agents whose address a capability gives.
//!
//! # How it works
//!
//! An `agent` is described by its `card`, which is fetched when it is first needed, and checked
//! (`signature`). The card names the `wire`: JSON-RPC, HTTP+JSON, gRPC, or JSON-RPC in a WebSocket. A
//! call becomes a message (`input`). The events of the agent are collected (`gather`) and become an
//! outcome (`answer`). Agents of 0.3 have their own `dialect`. Only `agent`, `wire` and `executor` do
//! any I/O.
//!
//! # Invariants
//!
//! - A message is sent once. After a lost connection, only the query for its task's state is repeated.
//! - Credentials and messages go only to the configured origin and the additionally allowed ones. A card
//!   with another origin is refused.
//! - When a call ends before its task, the agent is asked to end the task.
//! - The data of one call is bounded (16 MiB). When the time is over, the data that has arrived is
//!   returned.
//!
//! # Decision: the project's types, our transport
//!
//! The types come from the A2A project's own crates (`a2a-lf`, and `a2a-pb` for gRPC). The project's
//! client is not used: it reads answers without a bound, cannot be restricted to an origin, rejects
//! members that a writer of ProtoJSON may omit, and does not support agents of 0.3.

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
