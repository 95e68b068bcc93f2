//! `orla sandbox`: tries and explains sandboxes, and learns permissions.

mod explain;
mod learn;
mod run;

pub(crate) use explain::run as explain;
pub(crate) use learn::run as learn;
pub(crate) use run::run;
