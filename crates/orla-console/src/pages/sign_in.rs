//! Signing in with a bearer token, and out.

use std::time::Instant;

use http::{Method, Response, StatusCode, header};
use maud::{Markup, html};
use orla_server::{PageBody, Visit, retry_after};

use super::shell::frame;
use super::{WITHOUT_TOKEN, expired};
use crate::form::Fields;
use crate::site::sessions;
use crate::site::{query, reply};
use crate::{Ask, Inner};

/// Where the form is sent.
pub(crate) const PATH: &str = "/console/sign-in";

/// Answers a visitor that is not known: it has to sign in before it sees any page.
pub(crate) async fn answer(console: &Inner, visit: &Visit<'_>) -> Response<PageBody> {
    let is_sign_in = visit.head.method == Method::POST && visit.head.uri.path() == PATH;
    if !is_sign_in {
        return page(console, visit, StatusCode::UNAUTHORIZED, "");
    }
    let fields = Fields::new(query::pairs(&visit.body));
    if !console.sessions.verify_csrf(fields.get("_csrf").unwrap_or_default(), visit.head, None) {
        let page = page(console, visit, StatusCode::FORBIDDEN, "The form was too old. Try again.");
        return reply::forbidden(page, WITHOUT_TOKEN);
    }
    let token = fields.get("token").unwrap_or_default().trim();
    match visit.gateway.check(token).await {
        Ok(_) => {
            let number = console.sessions.begin(token, Instant::now());
            let mut response = reply::see("/console");
            reply::cookie(&mut response, &sessions::cookie(visit.head, Some(&number), visit.is_tls));
            response
        }
        Err(refused) => match refused.wait {
            None => page(console, visit, StatusCode::UNAUTHORIZED, "This token is not accepted."),
            Some(wait) => {
                let why = "Too many tokens were not accepted. Wait a moment, then try again.";
                let mut response = page(console, visit, StatusCode::TOO_MANY_REQUESTS, why);
                response.headers_mut().insert(header::RETRY_AFTER, retry_after(wait));
                response
            }
        },
    }
}

/// Ends the visitor's session.
pub(crate) fn sign_out(ask: &Ask<'_>) -> Response<PageBody> {
    if ask.verified_form().is_none() {
        return expired(ask);
    }
    ask.console.sessions.end(ask.visit.head);
    let mut response = reply::see("/console");
    reply::cookie(&mut response, &sessions::cookie(ask.visit.head, None, ask.visit.is_tls));
    response
}

fn page(console: &Inner, visit: &Visit<'_>, status: StatusCode, problem: &str) -> Response<PageBody> {
    reply::page(status, frame("Sign in", &html! {}, &form(console, visit, problem)))
}

fn form(console: &Inner, visit: &Visit<'_>, problem: &str) -> Markup {
    let is_bad = !problem.is_empty();
    html! {
        section.sign-in {
            h1 { "Sign in" }
            form method="post" action=(PATH) {
                input type="hidden" name="_csrf" value=(console.sessions.csrf_token(visit.head, None));
                div.field.bad[is_bad] {
                    label for="token" { "Token" }
                    input id="token" name="token" type="password" required autofocus autocomplete="current-password"
                        aria-invalid=[is_bad.then_some("true")] aria-describedby=(if is_bad { "problem help" } else { "help" });
                    @if is_bad { p.error id="problem" role="alert" { (problem) } }
                    p.hint id="help" { "A bearer token of this server, such as one that " code { "orla token create" } " made." }
                }
                p { button.main type="submit" { "Sign in" } }
            }
        }
    }
}
