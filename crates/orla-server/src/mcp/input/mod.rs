//! Questions of providers to clients.

pub(super) mod questions;
pub(super) mod requests;
