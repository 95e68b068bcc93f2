//! Streamable HTTP: the endpoint `/mcp`, and answers that become streams of events.

pub(crate) mod endpoint;
pub(crate) mod exchange;
