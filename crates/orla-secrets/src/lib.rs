//! Secrets by name: the store that keeps them, and references to them in texts.
//!
//! A [`SecretStore`] is a file that is encrypted at rest. Its key is in the keyring of the operating system, or in a
//! file beside it ([`Protection`]). A [`Resolver`] gives the values of the references `${secret:NAME}`, `${file:PATH}`
//! and `${command:LINE}`.
//!
//! # Invariants
//!
//! - A value never appears in a `Debug` or in an error ([`Secret`]).
//! - The files are readable only by their owner, and a file that others can read is refused.
//! - A store is changed as a whole: a reader sees the state before or after a change, and changes of
//!   several processes follow one another.
//!
//! # Deliberately absent
//!
//! Knowledge of configurations: callers decide where references are allowed.

mod command;
mod key;
mod resolver;
mod sealed;
mod secret;
mod store;
mod terminal;

pub use key::Protection;
pub use resolver::{Reference, ReferenceError, Resolver, Source};
pub use secret::Secret;
pub use store::{SecretStore, StoreError, is_name};
pub use terminal::read_hidden;
