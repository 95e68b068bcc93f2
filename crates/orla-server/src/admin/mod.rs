//! The routes for operators: `/status`, `/quotas`, `/approvals`, `/readyz` and `/metrics`.

pub(crate) mod approvals;
pub(crate) mod quotas;
pub(crate) mod status;
