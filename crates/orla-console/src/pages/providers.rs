//! Who provides what is served: processes, servers, agents, instances, and how they are.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use http::Response;
use maud::{Markup, html};
use orla_marketplace::Entry;
use orla_server::{PageBody, StatusRow};

use super::missing;
use super::shell::Page;
use crate::Ask;
use crate::site::query;
use crate::text::{duration, plain};

/// One provider, with what it serves.
struct Provider {
    row: StatusRow,
    count: usize,
}

pub(crate) async fn page(ask: &Ask<'_>) -> Response<PageBody> {
    let (market, catalog) = (Arc::clone(&ask.console.market), Arc::clone(&ask.catalog));
    let principal = ask.principal.clone();
    let gathered = tokio::task::spawn_blocking(move || {
        let mut providers: BTreeMap<(&'static str, String), Provider> = BTreeMap::new();
        let permitted = |entry: &&Arc<Entry>| catalog.permits(principal.as_ref(), entry).is_ok();
        for entry in catalog.entries().iter().filter(permitted) {
            let kind = entry.manifest.provider.kind();
            let id = &entry.manifest.id;
            // What has no provider of its own in its id is a provider itself, except for tools and what is built in.
            let own = match kind {
                "tool" | "local" | "rtfs" | "discovery" => String::new(),
                _ => id.split_once('.').map_or(id.as_str(), |(provider, _)| provider).to_owned(),
            };
            providers
                .entry((kind, own))
                .and_modify(|provider| provider.count += 1)
                .or_insert_with(|| Provider { row: StatusRow::of(&market, entry), count: 1 });
        }
        let problems = market.provider_problems_for(&catalog, principal.as_ref(), None);
        let problems: Vec<(String, String)> =
            problems.into_iter().map(|problem| (problem.name, problem.text)).collect();
        (providers, problems)
    });
    let Ok((providers, problems)) = gathered.await else {
        return missing(ask, "The providers cannot be shown now.");
    };
    let redactor = ask.console.market.redaction();
    let market = &ask.console.market;
    let body = html! {
        p.note {
            (market.running()) " calls run and " (market.waiting()) " wait. Processes are confined: " (market.confinement()) "."
        }
        @if !problems.is_empty() {
            ul.problems { @for (name, text) in &problems { li { strong { (plain(name)) } " " (plain(&redactor.text(text))) } } }
        }
        table.list {
            thead { tr { th scope="col" { "Provider" } th scope="col" { "State" } th.amount scope="col" { "Serves" } th.wide scope="col" { "Process" } th.wide scope="col" { "Sandbox" } } }
            tbody { @for ((kind, name), provider) in &providers { (row(kind, name, provider, &redactor)) } }
        }
        p.note { "A SIGHUP to the server reads the configuration and the tools again." }
    };
    Page::new("Providers").part("Providers").reply(ask, &body)
}

fn row(kind: &str, name: &str, provider: &Provider, redactor: &orla_marketplace::Redactor) -> Markup {
    let row = &provider.row;
    let shown = match (kind, name) {
        ("tool", _) => "Tools directory",
        ("local", _) => "Built-ins",
        ("rtfs", _) => "Programs",
        ("discovery", _) => "Search",
        (_, name) => name,
    };
    let state = row.state.as_deref();
    let class = match state.map(str::to_ascii_lowercase).as_deref() {
        Some("ready" | "connected" | "available" | "running") => "good",
        Some("stopped" | "crashed" | "unavailable" | "failed") => "bad",
        Some("starting" | "reloading" | "stopping") => "busy",
        _ => "",
    };
    html! {
        tr {
            th scope="row" {
                @if name.is_empty() { (shown) } @else { a href={ "/console/catalogue?q=" (query::part(name)) } { (plain(shown)) } }
                " " span.badge { (kind) }
            }
            td {
                @if let Some(state) = state { span class={ "badge " (class) } { (plain(state)) } } @else { span.note { "–" } }
                @if let Some(failure) = &row.last_failure { " " span.note { (plain(&redactor.text(failure))) } }
            }
            td.amount { (provider.count) }
            td.wide {
                @if let Some(pid) = row.pid { (pid) }
                @if let Some(uptime) = row.uptime_ms { span.note { ", up " (duration(Duration::from_millis(uptime))) } }
                @if let Some(restarts) = row.restarts.filter(|restarts| *restarts > 0) { span.note { ", " (restarts) " restarts" } }
            }
            td.wide { @if let (Some(sandbox), false) = (&row.sandbox, name.is_empty()) { span.badge { (sandbox.level) } } }
        }
    }
}
