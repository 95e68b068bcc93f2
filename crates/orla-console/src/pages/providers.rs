//! The providers of the served capabilities: processes, servers, agents and instances, with their
//! states.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use futures_util::stream::unfold;
use http::Response;
use maud::{Markup, html};
use orla_marketplace::{Catalog, Principal, Redactor};
use orla_server::{PageBody, StatusRow};

use super::run::event;
use super::shell::{Page, button};
use super::{expired, missing};
use crate::site::{query, reply};
use crate::text::{duration, plain};
use crate::{Ask, Process};

/// The permission to restart the processes of providers, and to see their output.
const PERMISSION: &str = "providers:manage";
/// The interval between two checks for output of a process, and the number of quiet checks after which a
/// stream sends a keep-alive.
const PACE: Duration = Duration::from_secs(1);
const KEEP_ALIVE: u32 = 15;

/// One provider, with its capabilities.
struct Provider {
    row: StatusRow,
    count: usize,
}

/// The providers of the permitted capabilities, by kind and name, and the problems of providers.
struct Gathered {
    providers: BTreeMap<(&'static str, String), Provider>,
    problems: Vec<(String, String)>,
}

async fn gathered(ask: &Ask<'_>) -> Option<Gathered> {
    let (market, catalog) = (Arc::clone(&ask.console.market), Arc::clone(&ask.catalog));
    let principal = ask.principal.clone();
    let gathered = tokio::task::spawn_blocking(move || {
        let mut providers: BTreeMap<(&'static str, String), Provider> = BTreeMap::new();
        for entry in catalog.permitted(principal.as_ref()) {
            let kind = entry.manifest.provider.kind();
            let id = &entry.manifest.id;
            // A capability without a provider in its id is a provider itself, except for tools and
            // built-ins.
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
        let problems = problems.into_iter().map(|problem| (problem.name, problem.text)).collect();
        Gathered { providers, problems }
    });
    gathered.await.ok()
}

pub(crate) async fn page(ask: &Ask<'_>) -> Response<PageBody> {
    let Some(Gathered { providers, problems }) = gathered(ask).await else {
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
            tbody { @for ((kind, name), provider) in &providers { (row(ask, kind, name, provider, &redactor)) } }
        }
        @if ask.may_configure() {
            div.actions { (button(ask, "/console/configuration/reload", "Read the configuration and the tools again", "")) }
        }
    };
    Page::new("Providers").part("Providers").reply(ask, &body)
}

fn row(ask: &Ask<'_>, kind: &str, name: &str, provider: &Provider, redactor: &Redactor) -> Markup {
    let row = &provider.row;
    let place = ask.process(kind, name).map(|_| address(kind, name));
    let shown = match (kind, name) {
        ("tool", _) => "Tools directory",
        ("local", _) => "Built-ins",
        ("rtfs", _) => "Programs",
        ("discovery", _) => "Search",
        (_, name) => name,
    };
    html! {
        tr {
            th scope="row" {
                @if name.is_empty() { (shown) } @else { a href={ "/console/catalogue?q=" (query::part(name)) } { (plain(shown)) } }
                " " span.badge { (kind) }
            }
            td {
                (state(row, redactor))
                @if let Some(place) = &place { " " a href=(place) { "Process" span.unseen { " of " (plain(shown)) } } }
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

/// Returns its state, and why it failed last.
fn state(row: &StatusRow, redactor: &Redactor) -> Markup {
    let state = row.state.as_deref();
    let class = match state.map(str::to_ascii_lowercase).as_deref() {
        Some("ready" | "connected" | "available" | "running") => "good",
        Some("stopped" | "crashed" | "unavailable" | "failed") => "bad",
        Some("starting" | "reloading" | "stopping") => "busy",
        _ => "",
    };
    html! {
        @if let Some(state) = state { span class={ "badge " (class) } { (plain(state)) } } @else { span.note { "–" } }
        @if let Some(failure) = &row.last_failure { " " span.note { (plain(&redactor.text(failure))) } }
    }
}

fn address(kind: &str, name: &str) -> String {
    format!("/console/providers/{}/{}", query::part(kind), query::part(name))
}

/// Returns the process of one provider: its state, and its output on standard error.
pub(crate) async fn process(ask: &Ask<'_>, kind: &str, name: &str) -> Response<PageBody> {
    let Some((provider, process)) = permitted(ask, kind, name).await else {
        return missing(ask, NO_PROCESS);
    };
    let (place, redactor) = (address(kind, name), ask.console.market.redaction());
    let row = &provider.row;
    let body = html! {
        dl.facts {
            div { dt { "State" } dd { (state(row, &redactor)) } }
            @if let Some(pid) = row.pid { div { dt { "Process" } dd { (pid) @if let Some(uptime) = row.uptime_ms { ", up " (duration(Duration::from_millis(uptime))) } } } }
            @if let Some(restarts) = row.restarts { div { dt { "Restarts" } dd { (restarts) } } }
            div { dt { "Serves" } dd { a href={ "/console/catalogue?q=" (query::part(name)) } { (provider.count) } } }
        }
        div.actions { (button(ask, &format!("{place}/restart"), "Restart", name)) }
        section aria-labelledby="said" {
            h2 id="said" { "What it wrote to standard error" }
            div id="tail" hx-sse:connect={ (place) "/live" } hx-swap="innerHTML" { (tail(&process.stderr_lines(), &redactor)) }
        }
    };
    Page::new(name).part("Providers").reply(ask, &body)
}

fn tail(lines: &[String], redactor: &Redactor) -> Markup {
    if lines.is_empty() {
        return html! { p.note { "Nothing yet." } };
    }
    let text: Vec<_> = lines.iter().map(|line| redactor.text(line)).collect();
    html! { pre tabindex="0" { (plain(&text.join("\n"))) } }
}

/// Streams its output as server-sent events.
pub(crate) async fn live(ask: &Ask<'_>, kind: &str, name: &str) -> Response<PageBody> {
    let Some((_, process)) = permitted(ask, kind, name).await else { return missing(ask, NO_PROCESS) };
    let (console, principal) = (Arc::clone(&ask.console.market), ask.principal.clone());
    let state = (process, console, principal, None::<Vec<String>>, 0_u32);
    let events = unfold(state, |(process, market, principal, mut shown, mut quiet)| async move {
        loop {
            tokio::time::sleep(PACE).await;
            if !may_manage(&market.snapshot(), principal.as_ref()) {
                return None;
            }
            let lines = process.stderr_lines();
            if shown.as_ref() != Some(&lines) {
                let page = event("", &tail(&lines, &market.redaction()).into_string());
                return Some((page, (process, market, principal, Some(lines), 0)));
            }
            quiet += 1;
            if quiet >= KEEP_ALIVE {
                shown = Some(lines);
                return Some((Bytes::from_static(b": \n\n"), (process, market, principal, shown, 0)));
            }
        }
    });
    reply::events(events)
}

/// Restarts the process of a provider.
pub(crate) async fn restart(ask: &Ask<'_>, kind: &str, name: &str) -> Response<PageBody> {
    if ask.verified_form().is_none() {
        return expired(ask);
    }
    let Some((_, process)) = permitted(ask, kind, name).await else { return missing(ask, NO_PROCESS) };
    process.restart();
    reply::see(&address(kind, name))
}

/// Returns a provider that serves the visitor something, with its process.
async fn permitted(ask: &Ask<'_>, kind: &str, name: &str) -> Option<(Provider, Arc<dyn Process>)> {
    let process = ask.process(kind, name)?;
    let providers = gathered(ask).await?.providers;
    let found = providers.into_iter().find(|((own, of), _)| *own == kind && *of == name);
    found.map(|(_, provider)| (provider, process))
}

const NO_PROCESS: &str = "No provider with this name has a process, or it is not for you.";

/// Providers serve all callers.
fn may_manage(catalog: &Catalog, principal: Option<&Principal>) -> bool {
    catalog.permits_of_others(principal, "providers", PERMISSION)
}

impl Ask<'_> {
    /// Returns the process of a provider, if it has one and the visitor may look at it.
    fn process(&self, kind: &str, name: &str) -> Option<Arc<dyn Process>> {
        let process = self.console.embedder.process(kind, name)?;
        may_manage(&self.catalog, self.principal.as_ref()).then_some(process)
    }
}
