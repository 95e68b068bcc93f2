//! What providers ask clients.

pub(super) mod questions;
pub(super) mod requests;
