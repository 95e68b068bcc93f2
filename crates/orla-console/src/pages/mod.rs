//! The pages, one file for each, and the choice of the page for a request.

mod audit;
mod call;
pub(crate) mod calls;
mod capability;
mod catalogue;
mod configuration;
mod connect;
mod nodes;
mod policy;
mod programs;
mod providers;
mod run;
pub(crate) mod shell;
pub(crate) mod sign_in;
mod tasks;

use http::{Method, Response, StatusCode};
use maud::html;
use orla_server::PageBody;

use crate::Ask;
use crate::site::{query, reply};
use shell::Page;

/// Answers the request of a visitor that is known.
pub(crate) async fn answer(ask: &Ask<'_>) -> Response<PageBody> {
    let path = ask.visit.head.uri.path().strip_prefix("/console").unwrap_or_default();
    let parts: Option<Vec<String>> =
        path.split('/').filter(|part| !part.is_empty()).map(query::decoded).collect();
    let parts = parts.unwrap_or_default();
    let parts: Vec<&str> = parts.iter().map(String::as_str).collect();
    let is_post = ask.visit.head.method == Method::POST;
    if let Some(history) = ask.console.history() {
        match (is_post, &parts[..]) {
            (false, [] | ["calls"]) => return calls::page(ask, history).await,
            (false, ["live"]) => return calls::live(ask, history),
            (false, ["calls", id]) => return call::page(ask, history, id).await,
            (true, ["calls", id, "again"]) => return call::again(ask, history, id).await,
            (true, ["calls", id, "cancel"]) => return calls::cancel(ask, history, id),
            _ => {}
        }
    }
    if let Some(all) = ask.console.tasks.get() {
        match (is_post, &parts[..]) {
            (false, ["tasks"]) => return tasks::page(ask, all).await,
            (false, ["tasks", id]) => return tasks::show(ask, all, id).await,
            (true, ["tasks", id, "cancel"]) => return tasks::cancel(ask, all, id).await,
            _ => {}
        }
    }
    if ask.may_configure() {
        match (is_post, &parts[..]) {
            (false, ["configuration"]) => return configuration::page(ask),
            (true, ["configuration", "reload"]) => return configuration::reload(ask),
            _ => {}
        }
    }
    match (is_post, &parts[..]) {
        (false, ["audit"]) => match ask.audit() {
            Some(log) => audit::page(ask, log).await,
            None => missing(ask, "No audit log is kept, or it is not for you."),
        },
        (false, ["audit", "export"]) => match ask.audit() {
            Some(log) => audit::export(ask, log).await,
            None => missing(ask, "No audit log is kept, or it is not for you."),
        },
        (false, ["nodes"]) => match ask.console.embedder.nodes() {
            Some(nodes) => nodes::page(ask, &nodes),
            None => missing(ask, "This server is not a node of a cluster."),
        },
        (true, ["programs", "check"]) => programs::checked(ask).await,
        (false, ["connect"]) => connect::page(ask),
        (false, ["policy"]) => policy::page(ask).await,
        (true, ["policy", id]) => policy::answer(ask, id).await,
        (false, ["programs"]) => programs::page(ask),
        (true, ["programs"]) => programs::submit(ask).await,
        (false, ["providers"]) => providers::page(ask).await,
        (false, ["providers", kind, name]) => providers::process(ask, kind, name).await,
        (false, ["providers", kind, name, "live"]) => providers::live(ask, kind, name).await,
        (true, ["providers", kind, name, "restart"]) => providers::restart(ask, kind, name).await,
        (false, [] | ["catalogue"]) => catalogue::page(ask).await,
        (false, ["catalogue", id]) => capability::page(ask, id).await,
        (true, ["catalogue", id]) => capability::submit(ask, id).await,
        (false, ["runs", id]) => run::page(ask, id),
        (false, ["runs", id, "events"]) => run::events(ask, id),
        (true, ["runs", id, "cancel"]) => run::cancel(ask, id),
        (true, ["runs", id, "answer"]) => run::answer(ask, id).await,
        (_, ["sign-in"]) => reply::see("/console"),
        (true, ["sign-out"]) => sign_in::sign_out(ask),
        _ => missing(ask, "There is no such page."),
    }
}

/// Returns the page for what does not exist, or may not be seen.
pub(crate) fn missing(ask: &Ask<'_>, what: &str) -> Response<PageBody> {
    let body = html! { p { (what) } p { a href="/console" { "Back to the first page" } } };
    Page::new("Not found").status(StatusCode::NOT_FOUND).reply(ask, &body)
}

/// Why a change without its token is forbidden.
const WITHOUT_TOKEN: &str = "a form without a valid token of this console";

/// Returns the answer to a change without its token.
pub(crate) fn expired(ask: &Ask<'_>) -> Response<PageBody> {
    let body = html! {
        p { "This form is too old, or not from this console. Nothing was done." }
        p { a href=(ask.visit.head.uri.path()) { "Open the page again" } }
    };
    let page = Page::new("Not done").status(StatusCode::FORBIDDEN).reply(ask, &body);
    reply::forbidden(page, WITHOUT_TOKEN)
}
