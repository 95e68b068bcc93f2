//! HTTP without MCP: access control, the bytes of connections and bodies, and the forms of responses.

pub(crate) mod body;
mod framing;
pub(crate) mod guard;
pub(crate) mod idle_timeout;
pub(crate) mod query;
pub(crate) mod response;
