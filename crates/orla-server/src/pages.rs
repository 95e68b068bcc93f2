//! The interface to pages for people. Another crate makes the pages. They are served below `/console`
//! behind the same guard and the same authentication as every other route.
//!
//! A browser cannot send a token with each request, so the pages may keep one for it. [`Pages::token`]
//! returns the token for the cookies of a request, and the token is checked as if the request had
//! carried it. A visitor without a valid credential reaches the pages as [`Visitor::Unknown`], so that
//! the pages can ask for a credential and check it with [`Gateway::check`]. Failures of this check count
//! like all others (`auth.limits`).

use std::pin::Pin;
use std::time::Duration;

use async_trait::async_trait;
use bytes::Bytes;
use futures_util::Stream;
use http::Response;
use http::request::Parts;
use orla_marketplace::Principal;

use crate::waiting::{ApprovalRefused, ApprovalRequest};

/// Pages for people. They answer everything at `/console` and below it.
#[async_trait]
pub trait Pages: Send + Sync {
    /// Returns the bearer token for the cookies of a request.
    fn token(&self, head: &Parts) -> Option<Box<str>>;

    /// Returns the maximum size of a body that an unknown visitor may send to this path. At 0, the body
    /// is not read.
    fn max_anonymous_body(&self, head: &Parts) -> usize;

    /// Answers a request. To a response with status 401, the server adds how a client gets a token. A
    /// visitor that has failed too often (`auth.limits`) gets the response with status 429.
    async fn answer(&self, visit: Visit<'_>) -> Response<PageBody>;
}

/// A request for a page.
#[non_exhaustive]
pub struct Visit<'a> {
    /// Its head. The guard has passed its Host and its Origin.
    pub head: &'a Parts,
    /// Its body, which is read only for POST, and from unknown callers only where they may send
    /// one.
    pub body: Bytes,
    /// The visitor.
    pub visitor: Visitor,
    /// Whether it came over TLS.
    pub is_tls: bool,
    /// Checks credentials.
    pub gateway: &'a dyn Gateway,
}

/// The visitor that requests a page.
#[derive(Clone, Debug)]
pub enum Visitor {
    /// A visitor that must first present a credential.
    Unknown,
    /// A caller. `None` is an anonymous caller, which is admitted if no credentials are configured.
    Known(Option<Principal>),
}

/// Checks a visitor's credentials.
#[async_trait]
pub trait Gateway: Send + Sync {
    /// Checks whether requests with this bearer token are accepted. A failure is counted and recorded.
    ///
    /// # Errors
    ///
    /// Returns an error if they are not.
    async fn check(&self, token: &str) -> Result<Option<Principal>, Refused>;

    /// Returns the calls that wait for an approval: those that this caller may answer, and its own. In a
    /// cluster, includes the calls of all nodes.
    async fn approvals(&self, principal: Option<&Principal>) -> Vec<ApprovalRequest>;

    /// Answers the question about a call in the name of this caller.
    ///
    /// # Errors
    ///
    /// Returns an error if there is no such question, or the caller may not answer it.
    async fn decide_approval(
        &self,
        principal: Option<&Principal>,
        id: &str,
        approve: bool,
    ) -> Result<(), ApprovalRefused>;
}

/// A token that was not accepted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Refused {
    /// How long the visitor has to wait, if it failed too often.
    pub wait: Option<Duration>,
}

/// The body of a page.
pub enum PageBody {
    /// All of it.
    Whole(Bytes),
    /// Parts as they come, such as server-sent events.
    Stream(Pin<Box<dyn Stream<Item = Bytes> + Send>>),
}
