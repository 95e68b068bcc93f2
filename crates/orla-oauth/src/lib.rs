//! orla as an OAuth client: tokens for the servers that it calls (OAuth 2.1, MCP authorization, RFC 8693).
//!
//! # How it works
//!
//! An [`Upstream`] is the sign-in at one server. Before a request, it provides the token for the
//! caller's [`Subject`]. After a 401 or 403, it reads the challenge and renews the token if that needs
//! no user. Tokens are [cached](cache), and concurrent requests for the same subject share one renewal.
//! A user signs in through [`login`]: by an authorization code with PKCE, or by a device code.
//!
//! The interpretation of documents is pure and tested without a network: [`challenge`], [`metadata`],
//! [`pkce`], [`scope`], [`grant`], [`token`].
//!
//! # Invariants
//!
//! - A token goes only to the server that it was obtained for, and only for the subject that it was obtained for.
//! - The credentials of a client go only to the authorization server that issued them, or that the settings name.
//! - A refresh token is used once at a time. A renewal is completed and stored even if its caller goes away.
//! - No secret is in a `Debug`, a `Display` or a log line.
//!
//! # Decision: no client library
//!
//! The crate `oauth2` covers the forms of the token endpoint. It has no discovery, no resource
//! indicators, no token exchange and no limit on the size of a response, which are most of this crate.

#![warn(missing_docs)]

pub mod cache;
pub mod challenge;
mod discovery;
mod error;
pub mod grant;
mod http;
mod link;
pub mod login;
pub mod metadata;
pub mod pkce;
mod record;
mod registration;
pub mod scope;
mod secret;
mod settings;
mod store;
mod stored;
pub mod token;
mod upstream;

pub use challenge::Challenge;
pub use error::{Error, SignInNeeded};
pub use http::{Http, UNKNOWN_AUTHORITY, connection_problem, root_cause};
pub use link::Link;
pub use scope::Scopes;
pub use secret::Secret;
pub use settings::{AuthSettings, GrantKind, Per};
pub use store::{Change, MemoryStore, TokenStore};
pub use upstream::{Subject, Upstream};
