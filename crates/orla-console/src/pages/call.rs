//! The page of one call: its nested calls, its data, and the available actions.

use std::cmp::Ordering;
use std::time::{Duration, SystemTime};

use http::Response;
use maud::{Markup, html};
use orla_history::{Body, Call, Detail, History, Node, NoticeLine, Query, ReplayError, SpanLine};
use orla_marketplace::CallScope;
use orla_marketplace::id::Pattern;
use orla_server::PageBody;

use super::calls::{address, moment, outcome, unreadable};
use super::capability::copies;
use super::shell::{Page, button};
use super::{expired, missing};
use crate::Ask;
use crate::difference::differences;
use crate::exact::Json;
use crate::plot::waterfall;
use crate::site::{query, reply};
use crate::text::{duration, escaped_strings, plain, shortened};
use crate::view;

/// The maximum number of rows of a waterfall, beyond which no call is begun.
const MAX_SHOWN: usize = 300;
/// The maximum number of differences of two inputs or outputs that are listed.
const MAX_DIFFERENCES: usize = 50;
/// The maximum number of bytes of a value in that list. The whole value stands below.
const MAX_DIFFERENT: usize = 300;
/// How many other calls of the same capability are offered for comparison.
const OTHERS: usize = 8;

/// Returns the page.
pub(crate) async fn page(ask: &Ask<'_>, history: &History, id: &str) -> Response<PageBody> {
    let viewer = ask.viewer();
    let detail = match history.detail(id, &viewer).await {
        Ok(Some(detail)) => detail,
        Ok(None) => return missing(ask, "No call with this id is kept, or it is not yours."),
        Err(error) => return unreadable(ask, &error),
    };
    let call = &detail.row.call;
    let others = match ask.queried("with") {
        Some(_) => Vec::new(),
        None => same(history, call, &viewer).await,
    };
    let compared = match ask.queried("with") {
        Some(other) => history.detail(other, &viewer).await.ok().flatten(),
        None => None,
    };
    let body = html! {
        @if call.outcome == orla_history::RUNNING {
            div.state { (button(ask, &format!("{}/cancel", address(id)), "Cancel", "")) " " a href=(address(id)) { "Refresh" } }
        }
        (facts(ask, &detail))
        @if let Some(other) = &compared {
            (comparison(&detail, other))
        } @else {
            (times(&detail))
            (data(ask, &detail))
            (pasteable(ask, &detail))
            @if !others.is_empty() {
                section aria-labelledby="others" {
                    h2 id="others" { "Compare with another call" }
                    ul.plain { @for other in &others {
                        li { a href={ (address(id)) "?with=" (query::part(&other.id)) } { (moment(other.started_at)) } " " (outcome(other)) " " (duration(other.duration)) }
                    } }
                }
            }
        }
    };
    let aside = html! { p.badges { (outcome(call)) } };
    let title = match call.is_request() {
        true => format!("Request for {}", call.capability),
        false => format!("Call of {}", call.capability),
    };
    Page::new(&title).part("Calls").aside(aside).reply(ask, &body)
}

/// Returns the newest other calls of the same capability.
async fn same(history: &History, call: &Call, viewer: &orla_history::Viewer) -> Vec<Call> {
    // A name with a star in it would be a pattern.
    if call.capability.contains('*') {
        return Vec::new();
    }
    let mut query = Query::default();
    query.capability = Some(Pattern::new(&call.capability));
    query.limit = OTHERS + 1;
    let listed = history.list(&query, viewer).await.unwrap_or_default();
    let is_other = |other: &Call| other.id != call.id && other.is_request() == call.is_request();
    listed.into_iter().filter(is_other).take(OTHERS).collect()
}

fn facts(ask: &Ask<'_>, detail: &Detail) -> Markup {
    let (row, call) = (&detail.row, &detail.row.call);
    let capability = html! { (plain(&call.capability)) };
    // It may be served no more.
    let capability = match is_served(ask, call) {
        true => html! { a href={ "/console/catalogue/" (query::part(&call.name)) } { (capability) } },
        false => capability,
    };
    html! {
        dl.facts {
            div { dt { (subject(call)) } dd { (capability) " " span.badge { (plain(&call.kind)) } } }
            div { dt { "Began" } dd { (moment(call.started_at)) " UTC" } }
            div { dt { "Took" } dd { (times_of(call)) } }
            div { dt { "Caller" } dd { @match &call.principal { Some(name) => (plain(name)), None => "anonymous" } } }
            @if let Some(client) = &call.client { div { dt { "Client" } dd { (plain(&client.to_string())) } } }
            @if let Some(session) = &call.session {
                div { dt { "Session" } dd { a href={ "/console?session=" (query::part(session)) } { code { (plain(session)) } } } }
            }
            div { dt { "Id" } dd { code { (plain(&call.id)) } } }
            @if let Some(parent) = &call.parent { div { dt { "Within" } dd { a href=(address(parent)) { (plain(parent)) } } } }
            @if let Some(trace) = &row.trace { div { dt { "Trace" } dd { code { (plain(&trace.trace_id)) } } } }
        }
        @if let Some(error) = &row.error { pre.problem { (plain(error)) } }
    }
}

/// Returns whether a capability is served under the name of this call. A prompt may have the name of one too.
fn is_served(ask: &Ask<'_>, call: &Call) -> bool {
    !call.is_request() && ask.entry(&call.name).is_some()
}

/// Returns what was called or asked for.
fn subject(call: &Call) -> &'static str {
    match &*call.kind {
        "prompt" => "Prompt",
        "resource" => "Resource",
        _ => "Capability",
    }
}

/// Returns how long a call took, and what of that were its queue, its provider and its validation.
fn times_of(call: &Call) -> Markup {
    let (executed, validated) = (call.executed.unwrap_or_default(), call.validated.unwrap_or_default());
    let steps =
        [(call.queued, " in the queue"), (executed, " in its provider"), (validated, " in validation")];
    let steps: Vec<String> = steps
        .iter()
        .filter(|(time, _)| !time.is_zero())
        .map(|(time, what)| format!("{}{what}", duration(*time)))
        .collect();
    html! { (duration(call.duration)) @if !steps.is_empty() { ": " (steps.join(", ")) } }
}

/// A row of the waterfall.
struct Bar<'a> {
    depth: usize,
    part: Part<'a>,
    /// From the beginning of the outermost call to its own.
    after: Duration,
    took: Duration,
}

enum Part<'a> {
    Call(&'a Call),
    Span(&'a SpanLine),
}

impl Bar<'_> {
    fn is_failed(&self) -> bool {
        match self.part {
            Part::Call(call) => call.is_failed(),
            Part::Span(span) => span.is_failed(),
        }
    }

    fn name(&self) -> Markup {
        match self.part {
            Part::Call(call) if self.depth == 0 => plain(&call.capability),
            Part::Call(call) => html! { a href=(address(&call.id)) { (plain(&call.capability)) } },
            Part::Span(span) => plain(&span.name),
        }
    }

    fn outcome(&self) -> Markup {
        match self.part {
            Part::Call(call) => outcome(call),
            Part::Span(span) => html! { (span.outcome()) },
        }
    }
}

/// Returns the rows of a call, its spans, and the calls within it.
fn bars<'a>(call: &'a Call, children: &'a [Node]) -> Vec<Bar<'a>> {
    fn add<'a>(
        call: &'a Call,
        children: &'a [Node],
        depth: usize,
        began: SystemTime,
        bars: &mut Vec<Bar<'a>>,
    ) {
        let after = call.started_at.duration_since(began).unwrap_or_default();
        bars.push(Bar { depth, part: Part::Call(call), after, took: call.duration });
        let of_millis = |ms: f64| Duration::try_from_secs_f64(ms / 1000.0).unwrap_or_default();
        bars.extend(call.spans.iter().map(|span| Bar {
            depth: depth + 1,
            part: Part::Span(span),
            after: after + of_millis(span.at_ms),
            took: of_millis(span.duration_ms),
        }));
        for node in children {
            if bars.len() >= MAX_SHOWN {
                return;
            }
            add(&node.call, &node.children, depth + 1, began, bars);
        }
    }
    let mut bars = Vec::new();
    add(call, children, 0, call.started_at, &mut bars);
    bars
}

/// Returns the waterfall of the call, its processes and requests, and the calls within it.
fn times(detail: &Detail) -> Markup {
    let bars = bars(&detail.row.call, &detail.children);
    if bars.len() == 1 {
        return html! {};
    }
    let end = |bar: &Bar<'_>| bar.after + bar.took;
    let whole = bars.iter().map(end).max().unwrap_or_default();
    html! {
        section aria-labelledby="times" {
            h2 id="times" { "Where its time went" }
            div.scroll tabindex="0" role="group" aria-label="Waterfall" {
                table.waterfall {
                    thead { tr { th scope="col" { "What" } th scope="col" { "Outcome" } th.amount scope="col" { "After" } th.amount scope="col" { "Took" } th.bars scope="col" { span.unseen { "When" } } } }
                    tbody { @for bar in &bars {
                        tr {
                            th scope="row" class={ "depth-" (bar.depth.min(8)) } { (bar.name()) }
                            td { (bar.outcome()) }
                            td.amount { (duration(bar.after)) }
                            td.amount { (duration(bar.took)) }
                            td.bars { (waterfall(if bar.is_failed() { "bar bad" } else { "bar" }, bar.after, bar.took, whole)) }
                        }
                    } }
                }
            }
            @if bars.len() >= MAX_SHOWN { p.note { "The first " (bars.len()) " rows." } }
        }
    }
}

/// Input, output, notices and standard error.
fn data(ask: &Ask<'_>, detail: &Detail) -> Markup {
    let row = &detail.row;
    html! {
        @if !row.call.is_request() { div.actions {
            (button(ask, &format!("{}/again", address(&row.call.id)), "Run again", ""))
            @if is_served(ask, &row.call) {
                a.button href={ "/console/catalogue/" (query::part(&row.call.name)) "?call=" (query::part(&row.call.id)) } { "Edit and run" }
            }
        } }
        section aria-labelledby="in" {
            h2 id="in" { "Input" }
            (body(row.input.as_ref(), false))
        }
        section aria-labelledby="out" {
            h2 id="out" { "Output" }
            (body(row.output.as_ref(), true))
        }
        @if let Some(stderr) = row.stderr.as_deref().filter(|text| !text.is_empty()) {
            section aria-labelledby="err" {
                h2 id="err" { "Standard error" }
                pre tabindex="0" { (plain(stderr)) }
            }
        }
        @if !row.notices.is_empty() {
            section aria-labelledby="said" {
                h2 id="said" { "Log" }
                ol.log { @for line in &row.notices { li { (notice(line)) } } }
                @if row.more_notices > 0 { p.note { "and " (row.more_notices) " more" } }
            }
        }
    }
}

fn body(body: Option<&Body>, is_result: bool) -> Markup {
    let Some(body) = body else { return html! { p.note { "None is kept." } } };
    match body.whole().map(Json::parse) {
        Some(Ok(json)) if is_result => view::result(&json),
        Some(Ok(json)) => view::value(&json),
        _ => html! {
            pre tabindex="0" { (plain(&body.text)) }
            @if body.is_cut() { p.note { "The first " (body.text.len()) " of " (body.bytes) " bytes." } }
        },
    }
}

fn notice(line: &NoticeLine) -> Markup {
    html! {
        span.note { (format!("{:.0} ms", line.at_ms)) } " "
        @if let Some(level) = &line.level { span.badge { (plain(level)) } " " }
        @if let Some(progress) = line.progress {
            span.number { (progress) @if let Some(total) = line.total { " of " (total) } } " "
        }
        @if let Some(message) = &line.message { (plain(message)) }
    }
}

/// Returns the call as text to be pasted.
fn pasteable(ask: &Ask<'_>, detail: &Detail) -> Markup {
    let call = &detail.row.call;
    let input = parsed(detail.row.input.as_ref()).filter(|_| !call.is_request());
    let Some(input) = input else { return html! {} };
    let value = |json: &Json| {
        let text = orla_marketplace::JsonText::parse(json.to_string()).ok()?;
        let value = orla_marketplace::Payload::from_json(text);
        Some(value.value().ok()?.pr_str())
    };
    let program = value(&input).map(|input| format!("(call :{} {input})", call.capability));
    let expected = match (&detail.row.error, parsed(detail.row.output.as_ref())) {
        (Some(_), _) => Some(("error", Json::Text(call.outcome.clone()))),
        (None, Some(output)) => {
            Some(("output", output.get("structuredContent").cloned().unwrap_or(output)))
        }
        (None, None) => None,
    };
    let case = expected.map(|(what, value)| {
        Json::Object(vec![
            ("name".to_owned(), Json::Text(format!("{} {}", call.capability, call.id))),
            ("capability".to_owned(), Json::Text(call.capability.clone())),
            ("input".to_owned(), input.clone()),
            ("expect".to_owned(), Json::Object(vec![(what.to_owned(), value)])),
        ])
    });
    html! {
        details {
            summary { "The same call elsewhere" }
            (copies(ask, &call.capability, &input, program.as_deref().unwrap_or_default()))
            @if let Some(case) = case { (view::snippet("Test", &escaped_strings(&case.pretty()))) }
        }
    }
}

/// Two calls side by side, and where they differ.
fn comparison(one: &Detail, other: &Detail) -> Markup {
    let side = |detail: &Detail, name: &str| {
        let call = &detail.row.call;
        html! {
            section {
                h2 { (name) " " (outcome(call)) }
                p.note { (moment(call.started_at)) " UTC, " (times_of(call)) }
                @if let Some(error) = &detail.row.error { pre.problem { (plain(error)) } }
                h3 { "Input" } (body(detail.row.input.as_ref(), false))
                h3 { "Output" } (body(detail.row.output.as_ref(), true))
            }
        }
    };
    let input = Compared::of(one.row.input.as_ref(), other.row.input.as_ref());
    let output = Compared::of(one.row.output.as_ref(), other.row.output.as_ref());
    html! {
        p.lead {
            @match (input.is_same(), output.is_same()) {
                (true, true) => "Same input, same output.",
                (true, false) => "Same input, another output.",
                (false, true) => "Another input, same output.",
                (false, false) => "Another input, another output.",
            }
            " " (in_time(one.row.call.duration, other.row.call.duration))
        }
        (input.shown("Input"))
        (output.shown("Output"))
        div.columns.even { (side(one, "This call")) (side(other, "The other")) }
    }
}

/// Returns how much longer or shorter the other call took.
fn in_time(one: Duration, other: Duration) -> String {
    let by = duration(one.abs_diff(other));
    match other.cmp(&one) {
        _ if duration(one) == duration(other) => "Both took as long.".to_owned(),
        Ordering::Less => format!("The other took {by} less."),
        Ordering::Equal | Ordering::Greater => format!("The other took {by} more."),
    }
}

/// Returns the value of a body, if it is whole.
fn parsed(body: Option<&Body>) -> Option<Json> {
    Json::parse(body?.whole()?).ok()
}

/// The inputs or the outputs of two calls.
enum Compared {
    /// Both are whole.
    Json(Json, Json),
    /// At least one is not. They are compared as far as they are kept.
    Text { is_same: bool },
}

impl Compared {
    fn of(one: Option<&Body>, other: Option<&Body>) -> Self {
        match (parsed(one), parsed(other)) {
            (Some(one), Some(other)) => Self::Json(one, other),
            _ => Self::Text { is_same: one == other },
        }
    }

    fn is_same(&self) -> bool {
        match self {
            Self::Json(one, other) => one.is_same(other),
            Self::Text { is_same } => *is_same,
        }
    }

    /// Returns the places where they differ.
    fn shown(&self, name: &str) -> Markup {
        let found = match self {
            _ if self.is_same() => return html! {},
            Self::Json(one, other) => differences(one, other, MAX_DIFFERENCES),
            Self::Text { .. } => {
                return html! { p.note { (name) ": not whole here, so it is not compared by its parts." } };
            }
        };
        let cell = |value: Option<&Json>| {
            let Some(text) = value.map(Json::to_string) else {
                return html! { span.note { "absent" } };
            };
            let (shown, cut) = shortened(&text, MAX_DIFFERENT);
            html! { code { (plain(shown)) } @if cut > 0 { span.escape { "… " (cut) " bytes more" } } }
        };
        html! {
            section aria-label={ "Differences of the " (name.to_lowercase()) } {
                h2 { (name) ": what differs" }
                div.scroll tabindex="0" role="group" aria-label={ (name) " differences" } {
                    table.list {
                        thead { tr { th scope="col" { "Place" } th scope="col" { "This call" } th scope="col" { "The other" } } }
                        tbody { @for place in &found.places { tr {
                            th scope="row" { @if place.path.is_empty() { "the whole" } @else { code { (plain(&place.path)) } } }
                            td { (cell(place.one)) }
                            td { (cell(place.other)) }
                        } } }
                    }
                }
                @if found.has_more { p.note { "The first " (MAX_DIFFERENCES) " differences." } }
            }
        }
    }
}

/// Makes the call again.
pub(crate) async fn again(ask: &Ask<'_>, history: &History, id: &str) -> Response<PageBody> {
    if ask.verified_form().is_none() {
        return expired(ask);
    }
    let mut scope = CallScope::default();
    scope.principal.clone_from(&ask.principal);
    match history.replay(id, &ask.viewer(), None, scope).await {
        Ok(id) => {
            settle(history, &id).await;
            reply::see(&address(&id))
        }
        Err(ReplayError::Unknown) => missing(ask, "No call with this id is kept, or it is not yours."),
        Err(error) => {
            let body = html! { p.problem { (plain(&error.to_string())) } p { a href=(address(id)) { "Back to the call" } } };
            Page::new("Not run")
                .part("Calls")
                .status(http::StatusCode::UNPROCESSABLE_ENTITY)
                .reply(ask, &body)
        }
    }
}

/// Waits a moment for the end of a call.
pub(crate) async fn settle(history: &History, id: &str) {
    let viewer = orla_history::Viewer::All;
    let mut changes = history.changes();
    let ended = async {
        loop {
            let is_running = history.running(&viewer).iter().any(|running| running.call.id == id);
            let is_known = is_running || matches!(history.detail(id, &viewer).await, Ok(Some(_)));
            if (is_known && !is_running) || changes.changed().await.is_err() {
                return;
            }
            // Other calls change more often than this has to be looked at.
            tokio::time::sleep(Duration::from_millis(30)).await;
        }
    };
    let _late = tokio::time::timeout(Duration::from_millis(800), ended).await;
}

/// Returns the input of a call of the history, for its form.
pub(crate) async fn input_of(ask: &Ask<'_>, id: &str) -> Option<String> {
    let detail = ask.console.history()?.detail(id, &ask.viewer()).await.ok()??;
    let input = detail.row.input.as_ref().filter(|_| !detail.row.call.is_request());
    input?.original().map(str::to_owned)
}
