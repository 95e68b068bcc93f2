//! Drives the real binary: files in, requests in, processes and answers observed from outside.
//!
//! # How it works
//!
//! A [`World`] is a temporary directory with tools, prompts and a configuration, filled fluently.
//! [`World::serve`] starts the binary there on a free port and returns a [`Server`], which creates
//! clients: sessionless (2026-07-28) and session-based (2025-11-25) MCP ([`Client`]) and plain HTTP
//! ([`Http`]). [`World::serve_stdio`] speaks MCP over pipes, [`World::run`] runs one command.
//!
//! Every process that descends from a world carries its mark in the environment, so that a test can ask
//! the system rather than the server whether any process is left ([`World::tool_processes`]).
//!
//! # Invariants
//!
//! - Every process that a world started is ended with it, by its process id, even when the test panics.
//!   In that case, the server's log is printed as well.
//! - No code sleeps to wait for a condition. [`eventually`] polls with a deadline.
//! - This crate uses no type of the product, so the tests check the wire format itself.

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
pub use wait::{TEST_TIMEOUT, eventually, within};
pub use world::{Finished, World, free_port};
