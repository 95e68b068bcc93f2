//! The seam for pages for people. They are made by another crate, and are served below `/console` behind the same guard and
//! the same authentication as every other route.
//!
//! A browser cannot send a token with each request, so pages may keep one for it: [`Pages::token`] says which token the
//! cookies of a request stand for, and it is checked as if the request had carried it. A visitor without a valid
//! credential reaches the pages as [`Visitor::Unknown`], for them to ask for one; [`Door::check`] is how they try it.
//! Failures there count as everywhere (`auth.limits`).

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
    /// Returns the bearer token that the cookies of a request stand for.
    fn token(&self, head: &Parts) -> Option<Box<str>>;

    /// Returns the maximum number of bytes that a visitor who is not known may send to this place. At 0,
    /// nothing of the body is read.
    fn most_from_strangers(&self, head: &Parts) -> usize;

    /// Answers a request. To a response with status 401, the server adds how a client gets a token; who has failed too often
    /// (`auth.limits`) gets it with status 429.
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
    /// Who asks.
    pub visitor: Visitor,
    /// Whether it came over TLS.
    pub is_tls: bool,
    /// Checks credentials.
    pub door: &'a dyn Door,
}

/// Who asks for a page.
#[derive(Clone, Debug)]
pub enum Visitor {
    /// Someone who has to present a credential first.
    Unknown,
    /// A caller; `None` is an anonymous one, which is admitted where no credentials are configured.
    Known(Option<Principal>),
}

/// Checks what a visitor presents.
#[async_trait]
pub trait Door: Send + Sync {
    /// Returns whether a bearer token is one that requests are accepted with. A failure is counted and
    /// recorded.
    ///
    /// # Errors
    ///
    /// Returns an error if it is not.
    async fn check(&self, token: &str) -> Result<Option<Principal>, Refused>;

    /// Returns the calls that wait for an approval: those that this caller may answer, and its own. In a
    /// cluster, of all nodes.
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
