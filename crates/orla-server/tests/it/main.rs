//! The server driven over real sockets and in-memory pipes, with capabilities that need no process.

mod http;
mod lifecycle;
mod sessions;
mod stdio;
mod support;
