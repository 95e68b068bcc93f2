//! The served capabilities: a list with a search.

use std::sync::Arc;

use http::Response;
use maud::{Markup, html};
use orla_marketplace::{ANNOTATIONS, Entry};
use orla_server::PageBody;

use super::shell::Page;
use crate::Ask;
use crate::site::query;
use crate::text::{first_line, plain};

/// The maximum number of rows of one page.
const ROWS: usize = 100;

pub(crate) async fn page(ask: &Ask<'_>) -> Response<PageBody> {
    ask.console.market.prepare_listing().await;
    let catalog = ask.console.market.snapshot();
    let words = ask.queried("q").unwrap_or_default();
    let is_all = ask.queried("all").is_some();
    let first = ask.queried("from").and_then(|from| from.parse::<usize>().ok()).unwrap_or_default();
    let permitted = || catalog.permitted(ask.principal.as_ref());
    let found: Vec<Arc<Entry>> = match words {
        "" => permitted().filter(|entry| is_all || entry.is_listed()).cloned().collect(),
        words => {
            let admits = |entry: &Entry| catalog.permits(ask.principal.as_ref(), entry).is_ok();
            let hits = catalog.search_where(words, ROWS, admits);
            hits.into_iter().map(|hit| hit.entry).collect()
        }
    };
    let hidden = match is_all || !words.is_empty() {
        true => 0,
        false => permitted().filter(|entry| !entry.is_listed()).count(),
    };
    let problems = ask.console.market.problems_for(&catalog, ask.principal.as_ref(), None);
    let address = |from: usize| {
        let all = if is_all { "&all=1" } else { "" };
        format!("/console/catalogue?q={}{all}&from={from}", query::part(words))
    };
    let shown = found.iter().skip(first).take(ROWS);
    let body = html! {
        search {
            form.filter action="/console/catalogue" method="get" {
                label.unseen for="q" { "Search" }
                input id="q" name="q" type="search" value=(words) placeholder="Search by what it does" autocomplete="off"
                    hx-get="/console/catalogue" hx-trigger="input changed delay:250ms" hx-target="#list" hx-select="#list" hx-swap="outerHTML";
                button type="submit" { "Search" }
            }
        }
        div id="list" aria-live="polite" {
            @if !problems.is_empty() {
                ul.problems { @for problem in &problems { li { (plain(&ask.console.market.redaction().text(problem))) } } }
            }
            p.note {
                @match (found.len(), words.is_empty()) {
                    (0, true) => "Nothing is served yet. Put an executable file into the tools directory.",
                    (0, false) => "Nothing fits. Fewer or other words find more.",
                    (1, _) => "One capability",
                    (count, _) => { (count) " capabilities" }
                }
                @if hidden > 0 {
                    ", and " a href="/console/catalogue?all=1" { (hidden) " that are not listed" } " (built-ins and others that are found by search)."
                }
            }
            @if !found.is_empty() {
                table.list {
                    thead { tr { th scope="col" { "Name" } th scope="col" { "Description" } th.wide scope="col" { "Kind" } } }
                    tbody { @for entry in shown { (row(entry)) } }
                }
            }
            @if first > 0 || first.saturating_add(ROWS) < found.len() {
                p.pages {
                    @if first > 0 { a rel="prev" href=(address(first.saturating_sub(ROWS))) { "Previous" } }
                    @if first.saturating_add(ROWS) < found.len() { a rel="next" href=(address(first.saturating_add(ROWS))) { "Next" } }
                }
            }
        }
    };
    Page::new("Catalogue").part("Catalogue").reply(ask, &body)
}

fn row(entry: &Entry) -> Markup {
    let manifest = &entry.manifest;
    html! {
        tr {
            th scope="row" { a href=(address(entry)) { (plain(&entry.name)) } }
            td {
                (plain(first_line(&manifest.description)))
                @if let Some(why) = entry.unavailable() { " " span.badge.bad { "unavailable" } " " span.note { (plain(first_line(why))) } }
            }
            td.wide { span.badge { (manifest.provider.kind()) } (hints(entry)) }
        }
    }
}

/// Where a capability's page is.
pub(crate) fn address(entry: &Entry) -> String {
    format!("/console/catalogue/{}", query::part(&entry.name))
}

/// Renders the provider's hints about its effects.
pub(crate) fn hints(entry: &Entry) -> Markup {
    let annotations = entry.manifest.metadata.get(ANNOTATIONS);
    let annotations = annotations.and_then(|text| serde_json::from_str::<serde_json::Value>(text).ok());
    let is = |name: &str| annotations.as_ref().and_then(|all| all.get(name)?.as_bool()) == Some(true);
    html! {
        @if is("readOnlyHint") { " " span.badge.good { "reads only" } }
        @if is("destructiveHint") { " " span.badge.warn { "destructive" } }
        @if is("idempotentHint") { " " span.badge { "idempotent" } }
    }
}
