//! Answers requests for pages (`pages`): authenticates the visitor, reads the body, and ends the answer
//! together with the visitor's credential.

use std::net::IpAddr;
use std::sync::Arc;

use async_trait::async_trait;
use bytes::Bytes;
use futures_util::StreamExt as _;
use http::header::{ACCEPT, AUTHORIZATION, EXPECT, LOCATION};
use http::request::Parts;
use http::{HeaderValue, Method, Response, StatusCode};
use hyper::body::Incoming;
use orla_marketplace::{AnswerError, Principal};

use crate::admin::approvals;
use crate::forbidden;
use crate::http::body::{self, Body};
use crate::http::forbidden::{Forbidden, ForbiddenBy};
use crate::http::response::{closing, names, not_allowed, text, why_unreadable};
use crate::http::url::below;
use crate::pages::{Gateway, PageBody, Pages, Refused, Visit, Visitor};
use crate::routes::{
    authenticate, challenged, count_failure, unauthenticated, unauthenticated_with, while_authenticated,
};
use crate::state::{Core, Settings};
use crate::throttle::Verdict;
use crate::waiting::{ApprovalRefused, ApprovalRequest};

/// Where pages are.
const PATH: &str = "/console";

/// Checks tokens as if the request of a visitor had carried them.
struct ServerGateway<'a> {
    core: &'a Arc<Core>,
    settings: &'a Settings,
    head: &'a Parts,
    peer: IpAddr,
}

#[async_trait]
impl Gateway for ServerGateway<'_> {
    async fn check(&self, token: &str) -> Result<Option<Principal>, Refused> {
        let head = with_token(self.head, token);
        authenticate(self.core, self.settings, &head, self.peer).await.map_err(|denied| {
            let verdict = count_failure(self.core, self.settings, self.peer, &head, denied);
            Refused { wait: if let Verdict::Limited { wait, .. } = verdict { Some(wait) } else { None } }
        })
    }

    async fn approvals(&self, principal: Option<&Principal>) -> Vec<ApprovalRequest> {
        approvals::all(self.core, principal).await
    }

    async fn decide_approval(
        &self,
        principal: Option<&Principal>,
        id: &str,
        approve: bool,
    ) -> Result<(), ApprovalRefused> {
        let decided = approvals::decide(self.core, principal, id, approve).await;
        if let Err(error @ ApprovalRefused::Local(AnswerError::NotAllowed)) = &decided {
            let forbidden = Forbidden { by: ForbiddenBy::Policy, reason: error.to_string().into() };
            forbidden::report(self.core, self.peer, principal, Some(self.head), forbidden);
        }
        decided
    }
}

/// Returns whether a path leads to pages.
pub(crate) fn is_console_path(path: &str) -> bool {
    below(PATH, path).is_some()
}

/// Returns whether a browser opens the root of the server.
pub(crate) fn is_browser_at_root(head: &Parts) -> bool {
    head.uri.path() == "/"
        && matches!(head.method, Method::GET | Method::HEAD)
        && head.headers.contains_key(ACCEPT)
        && names(&head.headers, "text/html")
}

/// Leads a browser to the pages.
pub(crate) fn redirect() -> Response<Body> {
    let mut response = text(StatusCode::SEE_OTHER, "the console is at /console\n");
    response.headers_mut().insert(LOCATION, HeaderValue::from_static(PATH));
    response
}

/// Answers a request for a page.
pub(crate) async fn serve(
    core: &Arc<Core>,
    settings: &Settings,
    pages: &Arc<dyn Pages>,
    head: &Parts,
    body: Incoming,
    peer: IpAddr,
) -> Response<Body> {
    let is_post = match head.method {
        Method::GET | Method::HEAD => false,
        Method::POST => true,
        _ => return not_allowed("GET, HEAD, POST"),
    };
    // A token in the header counts as on every route.
    let own = head.headers.contains_key(AUTHORIZATION);
    let with_cookie = pages.token(head).filter(|_| !own).map(|token| with_token(head, &token));
    let known = authenticate(core, settings, with_cookie.as_ref().unwrap_or(head), peer).await;
    let denied = known.as_ref().err().copied();
    if let Some(denied) = denied.filter(|_| own) {
        return unauthenticated(core, settings, peer, head, denied);
    }
    let principal = known.ok();
    let is_known = principal.is_some();
    let visitor = principal.clone().map_or(Visitor::Unknown, Visitor::Known);
    let answered = async {
        // A stranger must not use up the memory of requests.
        let most = match (is_post, &visitor) {
            (false, _) => 0,
            (true, Visitor::Known(_)) => settings.options.max_body_bytes,
            (true, Visitor::Unknown) => {
                pages.max_anonymous_body(head).min(settings.options.max_body_bytes)
            }
        };
        let body = match most {
            0 => Bytes::new(),
            most => {
                let time = settings.options.body_timeout;
                let discards = is_known && !head.headers.contains_key(EXPECT);
                match body::read(body, core.market.memory(), most, time, discards).await {
                    Ok(body) => body,
                    Err(status) => {
                        let why = why_unreadable(status, most);
                        return closing(text(status, format!("{why}\n")));
                    }
                }
            }
        };
        let gateway = ServerGateway { core, settings, head, peer };
        let is_tls = core.tls.get().is_some();
        let visit = Visit { head, body, visitor, is_tls, gateway: &gateway };
        let response = pages.answer(visit).await;
        // A token that was tried on the page has been counted.
        let is_sign_in = is_post && most > 0;
        let response = response.map(|body| match body {
            PageBody::Whole(bytes) => Body::Whole(bytes),
            // A client that follows a live page does not keep the server from ending.
            PageBody::Stream(stream) => {
                Body::stream(stream.take_until(core.draining.clone().cancelled_owned()))
            }
        });
        let response = match denied.filter(|_| response.status() == StatusCode::UNAUTHORIZED) {
            Some(denied) if is_sign_in => challenged(core, settings, head, denied, response),
            Some(denied) => unauthenticated_with(core, settings, peer, head, denied, response),
            None => response,
        };
        if is_post && most == 0 { closing(response) } else { response }
    };
    while_authenticated(
        core,
        settings,
        principal.as_ref().and_then(Option::as_ref),
        head,
        peer,
        answered,
    )
    .await
}

/// Returns the request as if it had carried a token.
fn with_token(head: &Parts, token: &str) -> Parts {
    let mut head = head.clone();
    // A text that no header can contain cannot be a token.
    let value = HeaderValue::from_str(&format!("Bearer {token}"));
    head.headers.insert(AUTHORIZATION, value.unwrap_or(HeaderValue::from_static("Bearer ?")));
    head
}
