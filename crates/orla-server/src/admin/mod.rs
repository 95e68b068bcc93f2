//! What operators look at: `/status`, `/quotas`, `/readyz` and `/metrics`.

pub(crate) mod quotas;
pub(crate) mod status;
