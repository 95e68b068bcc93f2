//! The calls: those that run, and those that have ended, newest first.

use std::sync::Arc;
use std::time::{Duration, SystemTime};

use bytes::Bytes;
use futures_util::stream::unfold;
use http::Response;
use maud::{Markup, html};
use orla_history::{Call, History, HistoryError, Query, Running, Viewer, timestamp};
use orla_marketplace::id::Pattern;
use orla_server::PageBody;

use super::run::event;
use super::shell::Page;
use super::{expired, missing};
use crate::Ask;
use crate::plot::Summary;
use crate::site::{query, reply};
use crate::text::{duration, plain, visible};

/// The maximum number of rows of one page.
const ROWS: usize = 50;
/// The maximum number of calls that the plots are made of.
const SAMPLE: usize = 1_000;
/// The shortest time between two updates of a table: faster ones could not be read.
const PACE: Duration = Duration::from_millis(1_000);
/// How long a stream may be quiet.
const KEEP_ALIVE: Duration = Duration::from_secs(15);
/// The spans of time to choose from, in seconds.
const SPANS: [(&str, &str, u64); 4] =
    [("10m", "10 minutes", 600), ("1h", "hour", 3_600), ("1d", "day", 86_400), ("7d", "week", 604_800)];

/// The selection of a visitor, as the address expresses it.
#[derive(Clone, Default)]
struct Filter {
    capability: String,
    principal: String,
    client: String,
    session: String,
    failed: bool,
    within: bool,
    since: String,
    before: Option<String>,
}

impl Filter {
    fn of(ask: &Ask<'_>) -> Self {
        let text = |name: &str| ask.queried(name).unwrap_or_default().to_owned();
        Self {
            capability: text("capability"),
            principal: text("principal"),
            client: text("client"),
            session: text("session"),
            failed: ask.queried("failed").is_some(),
            within: ask.queried("within").is_some(),
            since: text("since"),
            before: ask.queried("before").map(str::to_owned),
        }
    }

    fn query(&self, limit: usize) -> Query {
        let mut query = Query::default();
        let words = |text: &str| Some(text.trim().to_owned()).filter(|text| !text.is_empty());
        query.capability = words(&self.capability).map(|pattern| {
            // A part of a name matches any name that contains it.
            Pattern::new(if pattern.contains('*') { pattern } else { format!("*{pattern}*") })
        });
        query.principal = words(&self.principal);
        query.client = words(&self.client);
        query.session = words(&self.session);
        query.failed = self.failed;
        query.outermost = !self.within;
        let span = SPANS.iter().find(|(word, _, _)| *word == self.since);
        query.since = span
            .and_then(|(_, _, seconds)| SystemTime::now().checked_sub(Duration::from_secs(*seconds)));
        query.before.clone_from(&self.before);
        query.limit = limit;
        query
    }

    /// Returns the query of an address, with another place to begin at.
    fn address(&self, before: Option<&str>) -> String {
        let mut out = String::new();
        let mut add = |name: &str, value: &str| {
            if !value.is_empty() {
                out.push_str(if out.is_empty() { "?" } else { "&" });
                out.push_str(&format!("{name}={}", query::part(value)));
            }
        };
        add("capability", &self.capability);
        add("principal", &self.principal);
        add("client", &self.client);
        add("session", &self.session);
        add("failed", if self.failed { "1" } else { "" });
        add("within", if self.within { "1" } else { "" });
        add("since", &self.since);
        add("before", before.unwrap_or_default());
        out
    }
}

/// Returns the page.
pub(crate) async fn page(ask: &Ask<'_>, history: &History) -> Response<PageBody> {
    let filter = Filter::of(ask);
    let viewer = ask.viewer();
    let listed = match table(ask, history, &filter, &viewer).await {
        Ok(listed) => listed,
        Err(error) => return unreadable(ask, &error),
    };
    let plots = match filter.before {
        Some(_) => html! {},
        None => summary(history, &filter, &viewer).await,
    };
    let is_live = filter.before.is_none();
    let body = html! {
        (form(&filter, &viewer))
        @if is_live {
            div hx-sse:connect={ "/console/live" (filter.address(None)) } hx-swap="innerMorph" id="live" { (plots) (listed) }
        } @else {
            (listed)
        }
    };
    Page::new("Calls").part("Calls").reply(ask, &body)
}

fn form(filter: &Filter, viewer: &Viewer) -> Markup {
    html! {
        search {
            form.filter action="/console" method="get" {
                div.field {
                    label for="capability" { "Capability" }
                    input id="capability" name="capability" type="search" value=(filter.capability) placeholder="name or pattern" autocomplete="off";
                }
                @if *viewer == Viewer::All {
                    div.field {
                        label for="principal" { "Caller" }
                        input id="principal" name="principal" type="search" value=(filter.principal) placeholder="anyone" autocomplete="off";
                    }
                }
                div.field {
                    label for="client" { "Client" }
                    input id="client" name="client" type="search" value=(filter.client) placeholder="any program" autocomplete="off";
                }
                @if !filter.session.is_empty() {
                    div.field {
                        label for="session" { "Session" }
                        input id="session" name="session" type="search" value=(filter.session) autocomplete="off";
                    }
                }
                div.field {
                    label for="since" { "Within the last" }
                    select id="since" name="since" {
                        option value="" { "any time" }
                        @for (word, name, _) in SPANS { option value=(word) selected[filter.since == word] { (name) } }
                    }
                }
                label.inline { input type="checkbox" name="failed" value="1" checked[filter.failed]; " only failed" }
                label.inline { input type="checkbox" name="within" value="1" checked[filter.within]; " also calls within calls" }
                button type="submit" { "Show" }
            }
        }
    }
}

async fn summary(history: &History, filter: &Filter, viewer: &Viewer) -> Markup {
    let sample = history.list(&filter.query(SAMPLE), viewer).await.unwrap_or_default();
    let plots = Summary::of(&sample, SystemTime::now());
    html! { @if let Some(plots) = plots { (plots.render(sample.len() >= SAMPLE)) } }
}

/// Renders the running and the finished calls.
async fn table(
    ask: &Ask<'_>,
    history: &History,
    filter: &Filter,
    viewer: &Viewer,
) -> Result<Markup, HistoryError> {
    let token = ask.csrf_token();
    rows(history, filter, viewer, &token).await
}

async fn rows(
    history: &History,
    filter: &Filter,
    viewer: &Viewer,
    token: &str,
) -> Result<Markup, HistoryError> {
    let calls = history.list(&filter.query(ROWS + 1), viewer).await?;
    let query = filter.query(ROWS);
    let running = match filter.before {
        Some(_) => Vec::new(),
        None => history.running(viewer),
    };
    let running: Vec<&Running> = running
        .iter()
        .filter(|running| !query.failed && query.admits(&running.call))
        .take(ROWS)
        .collect();
    let older = (calls.len() > ROWS).then(|| calls[ROWS - 1].id.clone());
    let dropped = history.dropped();
    Ok(html! {
        @if calls.is_empty() && running.is_empty() {
            p.note { "No calls yet that fit. Call something from an agent, with " code { "orla call" } ", or from the " a href="/console/catalogue" { "catalogue" } "." }
        } @else {
            table.list {
                thead { tr {
                    th scope="col" { "Capability" } th scope="col" { "Outcome" } th.amount scope="col" { "Took" }
                    th.wide scope="col" { "Caller" } th.wide scope="col" { "Began (UTC)" }
                } }
                tbody {
                    @for running in running { (running_row(running, token)) }
                    @for call in calls.iter().take(ROWS) { (row(call)) }
                }
            }
        }
        @if let Some(older) = older {
            p.pages { a rel="next" href={ "/console" (filter.address(Some(&older))) } { "Older calls" } }
        }
        @if dropped > 0 { p.note { (dropped) " calls are missing: they ended faster than they could be written down." } }
    })
}

fn row(call: &Call) -> Markup {
    html! {
        tr id={ "c-" (call.id) } {
            th scope="row" { @if call.parent.is_some() { span.note { "↳ " } } (link(call)) }
            td { (outcome(call)) }
            td.amount { (duration(call.duration)) }
            td.wide { (caller(call)) }
            td.wide { (moment(call.started_at)) }
        }
    }
}

/// Returns a link to the page of a call, and its kind if it is a request.
fn link(call: &Call) -> Markup {
    html! { a href=(address(&call.id)) { (plain(&call.capability)) } @if call.is_request() { " " span.badge { (plain(&call.kind)) } } }
}

fn running_row(running: &Running, token: &str) -> Markup {
    let call = &running.call;
    html! {
        tr.running id={ "c-" (call.id) } {
            th scope="row" { (link(call)) }
            td {
                (outcome(call))
                @if let Some(progress) = &running.progress {
                    " "
                    @if let Some(total) = progress.total.filter(|total| *total > 0.0) {
                        progress aria-label="Progress" max=(total) value=(progress.progress) {}
                    } @else { span.number { (progress.progress) } }
                    @if let Some(message) = &progress.message { " " span.note { (plain(message)) } }
                }
                " "
                form.inline method="post" action={ (address(&call.id)) "/cancel" } {
                    input type="hidden" name="_csrf" value=(token);
                    button.small type="submit" { "Cancel" span.unseen { " " (visible(&call.capability)) } }
                }
            }
            td.amount { (duration(call.duration)) }
            td.wide { (caller(call)) }
            td.wide { (moment(call.started_at)) }
        }
    }
}

/// Where the page of a call is.
pub(crate) fn address(id: &str) -> String {
    format!("/console/calls/{}", query::part(id))
}

fn caller(call: &Call) -> Markup {
    html! { @match &call.principal { Some(name) => (plain(name)), None => span.note { "anonymous" } } }
}

/// Returns how a call ended.
pub(crate) fn outcome(call: &Call) -> Markup {
    if call.waits_for_approval {
        return html! { span.badge.warn { (orla_history::WAITING) } };
    }
    let class = match &*call.outcome {
        "ok" => "good",
        orla_history::RUNNING => "busy",
        "denied" | "quota" | "approval" | "cancelled" | "busy" => "warn",
        _ => "bad",
    };
    html! { span class={ "badge " (class) } { (plain(&call.outcome)) } }
}

/// Returns a time, in UTC.
pub(crate) fn moment(at: SystemTime) -> Markup {
    let text = timestamp(at);
    let (day, clock) = text.split_once('T').unwrap_or((&text, ""));
    let clock = clock.trim_end_matches('Z');
    html! { time datetime=(text) { span.note { (day) } " " (clock) } }
}

/// Returns the table and the plots as server-sent events when they change.
pub(crate) fn live(ask: &Ask<'_>, history: &History) -> Response<PageBody> {
    let (filter, token) = (Filter::of(ask), ask.csrf_token());
    let (market, principal) = (Arc::clone(&ask.console.market), ask.principal.clone());
    let mut changes = history.changes();
    // Something may have changed since the page was made.
    changes.mark_changed();
    let state = (history.clone(), filter, market, principal, token, changes);
    let events = unfold(state, |(history, filter, market, principal, token, mut changes)| async move {
        tokio::time::sleep(PACE).await;
        let event = match tokio::time::timeout(KEEP_ALIVE, changes.changed()).await {
            Ok(Ok(())) => {
                changes.mark_unchanged();
                // The visitor's permissions may have changed, too.
                let viewer = Viewer::of(&market, principal.as_ref());
                let plots = summary(&history, &filter, &viewer).await;
                match rows(&history, &filter, &viewer, &token).await {
                    Ok(rows) => event("", &html! { (plots) (rows) }.into_string()),
                    Err(_) => return None,
                }
            }
            // The history has ended.
            Ok(Err(_)) => return None,
            Err(_) => Bytes::from_static(b": \n\n"),
        };
        Some((event, (history, filter, market, principal, token, changes)))
    });
    reply::events(events)
}

/// Withdraws a call that runs.
pub(crate) fn cancel(ask: &Ask<'_>, history: &History, id: &str) -> Response<PageBody> {
    if ask.verified_form().is_none() {
        return expired(ask);
    }
    let canceller = Viewer::cancelling(&ask.console.market, ask.principal.as_ref());
    match history.cancel(id, &canceller) {
        true => reply::see("/console"),
        false => missing(ask, "This call does not run any longer, or is not yours."),
    }
}

/// Returns the answer if the history cannot be read.
pub(crate) fn unreadable(ask: &Ask<'_>, error: &HistoryError) -> Response<PageBody> {
    let text = error.to_string();
    let body = html! { p.problem { (plain(&text)) } p { a href="/console" { "Try again" } } };
    Page::new("Calls").part("Calls").status(http::StatusCode::INTERNAL_SERVER_ERROR).reply(ask, &body)
}

impl Ask<'_> {
    /// Which calls the visitor sees.
    pub(crate) fn viewer(&self) -> Viewer {
        Viewer::of(&self.console.market, self.principal.as_ref())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_filter_is_its_address() {
        let filter = Filter { capability: "a&b".to_owned(), failed: true, ..Filter::default() };
        assert_eq!(filter.address(Some("x/1")), "?capability=a%26b&failed=1&before=x%2F1");
        assert_eq!(Filter::default().address(None), "");
    }
}
