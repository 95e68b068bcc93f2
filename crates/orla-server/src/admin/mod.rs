//! What operators look at: `/status`, `/readyz` and `/metrics`.

pub(crate) mod status;
