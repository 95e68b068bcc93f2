//! The console: pages for people, served by the server itself.
//!
//! [`Console`] makes the pages that `orla-server` serves at `/console`. They are plain HTML and work
//! without JavaScript: forms are sent by POST. With JavaScript, htmx and its extension for server-sent
//! events refresh them.
//!
//! # How it works
//!
//! A request arrives as a [`Visit`]. The guard has passed its Host and Origin, and its caller is known
//! or unknown. An unknown caller gets the sign-in page. [`Console::answer`] chooses the page by the
//! path; each page is a file in `pages/`, which queries the marketplace in the name of its visitor. A
//! call from a page takes the marketplace's call path, and is kept in `runs.rs`.
//!
//! # Invariants
//!
//! - All HTML comes from `maud`'s templates, which escape; nothing here passes HTML through.
//! - A visitor sees and does what the policy allows its principal: pages query the catalogue as that
//!   principal.
//! - A change needs the token of the visitor's own session, and the same origin.
//! - No page loads anything from elsewhere, and the policy of its response forbids it.
//! - All stored data is bounded.
//!
//! # Deliberately absent
//!
//! A browser framework, and a build step for one.

#![warn(missing_docs)]

mod difference;
mod embedder;
mod exact;
mod form;
mod listing;
mod pages;
mod plot;
mod runs;
mod site;
mod text;
mod view;

use std::sync::{Arc, OnceLock};
use std::time::Instant;

use async_trait::async_trait;
use http::request::Parts;
use http::{Method, Response, StatusCode, header};
use orla_history::History;
use orla_marketplace::{CapabilityMarketplace, Catalog, Principal};
use orla_server::{PageBody, Pages, Visit, Visitor};
use orla_tasks::Tasks;

pub use crate::embedder::{
    AuditLog, Caller, Connection, Embedder, Explanation, Process, Setting, Verified,
};

use crate::form::Fields;
use crate::runs::Runs;
use crate::site::sessions::{self, Sessions};
use crate::site::{assets, query, reply};

/// The maximum number of bytes of the form to sign in.
const MAX_SIGN_IN: usize = 16 * 1024;

/// The pages of one server. Cloning shares it.
#[derive(Clone)]
pub struct Console(Arc<Inner>);

struct Inner {
    market: Arc<CapabilityMarketplace>,
    sessions: Sessions,
    runs: Runs,
    history: Option<History>,
    tasks: OnceLock<Tasks>,
    embedder: Arc<dyn Embedder>,
}

/// A request of a visitor that is known.
struct Ask<'a> {
    console: &'a Inner,
    visit: Visit<'a>,
    principal: Option<Principal>,
    /// The fields of the query.
    query: Vec<(String, String)>,
    catalog: Arc<Catalog>,
}

impl Inner {
    /// Returns the history, if calls are kept.
    fn history(&self) -> Option<&History> {
        self.history.as_ref().filter(|history| history.is_enabled())
    }
}

impl Console {
    /// The pages for a marketplace, and for the history of its calls if one is kept.
    pub fn new(
        market: Arc<CapabilityMarketplace>,
        history: Option<History>,
        embedder: Arc<dyn Embedder>,
    ) -> Self {
        let runs = Runs::new(Arc::clone(&market));
        Self(Arc::new(Inner {
            market,
            sessions: Sessions::new(),
            runs,
            history,
            tasks: OnceLock::new(),
            embedder,
        }))
    }

    /// Shows these tasks. The first ones stay.
    pub fn show_tasks(&self, tasks: Tasks) {
        drop(self.0.tasks.set(tasks));
    }

    /// Ends the calls that were started on pages, and waits for them.
    pub async fn close(&self) {
        self.0.runs.close().await;
    }
}

#[async_trait]
impl Pages for Console {
    fn token(&self, head: &Parts) -> Option<Box<str>> {
        self.0.sessions.token(head, Instant::now()).map(|token| Box::from(&*token))
    }

    fn max_anonymous_body(&self, head: &Parts) -> usize {
        if head.uri.path() == pages::sign_in::PATH { MAX_SIGN_IN } else { 0 }
    }

    async fn answer(&self, visit: Visit<'_>) -> Response<PageBody> {
        let path = visit.head.uri.path();
        let is_post = visit.head.method == Method::POST;
        if path.starts_with(assets::PATH) {
            return assets::answer(path, &visit.head.headers);
        }
        if is_post && !is_same_origin(visit.head) {
            let refused = reply::refused(
                StatusCode::FORBIDDEN,
                "a change must come from a page of this console\n",
            );
            return reply::forbidden(refused, "a change that comes from another page");
        }
        if is_post && !query::is_form(&visit.head.headers) {
            return reply::refused(
                StatusCode::UNSUPPORTED_MEDIA_TYPE,
                "expected the fields of a form\n",
            );
        }
        let principal = match visit.visitor.clone() {
            Visitor::Known(principal) => principal,
            Visitor::Unknown => return pages::sign_in::answer(&self.0, &visit).await,
        };
        let query = query::pairs(visit.head.uri.query().unwrap_or_default().as_bytes());
        let ask = Ask { console: &self.0, visit, principal, query, catalog: self.0.market.snapshot() };
        pages::answer(&ask).await
    }
}

impl Ask<'_> {
    /// Returns a field of the query, if it is not empty.
    fn queried(&self, name: &str) -> Option<&str> {
        let field = self.query.iter().find(|(own, _)| own == name);
        field.map(|(_, value)| value.as_str()).filter(|value| !value.is_empty())
    }

    /// Returns the fields of a submitted form. `None` if its CSRF token is not valid.
    fn verified_form(&self) -> Option<Fields> {
        let fields = Fields::new(query::pairs(&self.visit.body));
        let token = fields.get("_csrf").unwrap_or_default();
        let is_valid =
            self.console.sessions.verify_csrf(token, self.visit.head, self.principal.as_ref());
        is_valid.then_some(fields)
    }

    /// Returns the CSRF token of the visitor.
    fn csrf_token(&self) -> String {
        self.console.sessions.csrf_token(self.visit.head, self.principal.as_ref())
    }
}

/// Returns whether a request comes from a page of this server, according to the browser.
fn is_same_origin(head: &Parts) -> bool {
    let site = head.headers.get("sec-fetch-site");
    if site.is_some_and(|site| site != "same-origin" && site != "none") {
        return false;
    }
    let Some(origin) = head.headers.get(header::ORIGIN) else { return true };
    let authority = origin.to_str().ok().and_then(|origin| origin.split_once("://"));
    authority.is_some_and(|(_, authority)| authority.eq_ignore_ascii_case(sessions::host(head)))
}

#[cfg(test)]
mod tests {
    use http::Request;

    use super::*;

    #[test]
    fn changes_come_from_the_same_origin() {
        let of = |pairs: &[(&str, &str)]| {
            let request = Request::post("/console").header("host", "localhost:8080");
            let request =
                pairs.iter().fold(request, |request, (name, value)| request.header(*name, *value));
            is_same_origin(&request.body(()).unwrap().into_parts().0)
        };
        assert!(of(&[]) && of(&[("origin", "http://localhost:8080")]));
        assert!(of(&[("origin", "http://localhost:8080"), ("sec-fetch-site", "same-origin")]));
        for other in ["http://localhost:3000", "null", "http://evil.example", "localhost:8080"] {
            assert!(!of(&[("origin", other)]), "{other}");
        }
        assert!(!of(&[("sec-fetch-site", "same-site")]));
    }
}
