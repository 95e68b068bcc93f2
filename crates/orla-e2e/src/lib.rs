//! Drives the real binary: files in, requests in, processes and answers observed from outside.
//!
//! # How it works
//!
//! A [`World`] is a temporary directory with tools, prompts and a configuration, filled fluently.
//! [`World::serve`] starts the binary there on a port of its own and gives a [`Server`], from which
//! come clients: sessionless (2026-07-28) and session-based (2025-11-25) MCP ([`Client`]) and plain
//! HTTP ([`Http`]). [`World::serve_stdio`] speaks MCP over pipes, [`World::run`] runs one command.
//!
//! Every process that descends from a world carries its mark in the environment, so that "nothing
//! is left" can be asked of the system ([`World::tool_processes`]) and not of the server.
//!
//! # Invariants
//!
//! - Everything that a world started is ended with it, by its process id, also when the test panics; then
//!   the server's log is printed as well.
//! - Nothing sleeps to wait for something: [`eventually`] polls with a deadline.
//! - Nothing here knows a type of the product: a test that compiles says nothing about the wire.

mod http;
pub mod issuer;
mod mcp;
mod process;
mod server;
mod stdio;
mod terminal;
mod wait;
mod world;

pub use http::{Exchange, Http, Request, Response, Unanswered};
pub use mcp::{Client, Pending, Revision, RpcError, SESSION_BASED, SESSIONLESS, ToolResult};
pub use process::{Process, processes_with};
pub use server::{LogLine, Server};
pub use stdio::{Stdio, StdioMessage};
pub use terminal::Terminal;
pub use wait::{PATIENCE, eventually, within};
pub use world::{Finished, World};
