//! HTTP without MCP: access control, the bytes of connections and bodies, and the forms of responses.

pub(crate) mod body;
pub(crate) mod forbidden;
mod framing;
pub(crate) mod guard;
pub(crate) mod idle_timeout;
pub(crate) mod json_body;
pub(crate) mod repoll;
pub(crate) mod response;
pub(crate) mod url;
