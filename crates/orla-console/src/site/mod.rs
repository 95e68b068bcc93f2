//! The common parts of all pages: embedded files, responses, sessions.

pub(crate) mod assets;
pub(crate) mod query;
pub(crate) mod reply;
pub(crate) mod sessions;
