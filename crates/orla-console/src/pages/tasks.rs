//! Tasks: calls that outlive their callers.

use std::sync::Arc;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use http::{Response, StatusCode};
use maud::{Markup, html};
use orla_marketplace::Redactor;
use orla_server::PageBody;
use orla_tasks::program::{Timeline, render as render_timeline};
use orla_tasks::{Filter, State, Task, TaskError, TaskId, Tasks, Timestamp, Viewer};

use super::calls::moment;
use super::shell::{Page, button};
use super::{expired, missing};
use crate::Ask;
use crate::exact::Json;
use crate::site::{query, reply};
use crate::text::plain;
use crate::view;

/// The maximum number of rows of one page.
const ROWS: usize = 50;

pub(crate) async fn page(ask: &Ask<'_>, tasks: &Tasks) -> Response<PageBody> {
    let mut filter = Filter::default();
    filter.limit = Some(ROWS + 1);
    filter.before = ask.queried("before").and_then(TaskId::parse);
    let viewer = viewer(ask);
    let listed = match tasks.list(&filter, viewer).await {
        Ok(listed) => listed,
        Err(error) => return unreadable(ask, &error),
    };
    let older = (listed.len() > ROWS).then(|| listed[ROWS - 1].id.as_str().to_owned());
    let body = html! {
        @if listed.is_empty() {
            p.note { @if viewer == Viewer::Operator { "There are no tasks. " } @else { "You have no tasks, and may not see those of others. " } code { "orla task run NAME" } " or " code { "POST /tasks" } " starts one." }
        } @else {
            table.list {
                thead { tr { th scope="col" { "Capability" } th scope="col" { "State" } th.wide scope="col" { "Caller" } th.wide scope="col" { "Created (UTC)" } th.wide scope="col" { "Changed (UTC)" } } }
                tbody { @for task in listed.iter().take(ROWS) { (row(task)) } }
            }
        }
        @if let Some(older) = older { p.pages { a rel="next" href={ "/console/tasks?before=" (query::part(&older)) } { "Older tasks" } } }
    };
    Page::new("Tasks").part("Tasks").reply(ask, &body)
}

fn address(id: &str) -> String {
    format!("/console/tasks/{}", query::part(id))
}

fn row(task: &Arc<Task>) -> Markup {
    html! {
        tr {
            th scope="row" { a href=(address(task.id.as_str())) { (plain(&task.capability)) } @if let Some(schedule) = &task.schedule { " " span.badge { (plain(schedule)) } } }
            td { (state(task.state)) @if let Some(error) = &task.error { " " span.note { (plain(crate::text::first_line(&error.message))) } } }
            td.wide { (caller(task)) }
            td.wide { (moment(time(task.created_at))) }
            td.wide { (moment(time(task.updated_at))) }
        }
    }
}

fn caller(task: &Task) -> Markup {
    html! { @match task.principal_name() { Some(name) => (plain(&name)), None => span.note { "anonymous" } } }
}

/// Which tasks the visitor sees.
fn viewer<'a>(ask: &'a Ask<'_>) -> Viewer<'a> {
    Viewer::of(&ask.console.market, ask.principal.as_ref())
}

fn time(at: Timestamp) -> SystemTime {
    UNIX_EPOCH + Duration::from_millis(at.0)
}

fn state(state: State) -> Markup {
    let class = match state.as_str() {
        "completed" => "good",
        "failed" | "interrupted" => "bad",
        "working" => "busy",
        _ => "warn",
    };
    html! { span class={ "badge " (class) } { (state.as_str()) } }
}

/// One task.
pub(crate) async fn show(ask: &Ask<'_>, tasks: &Tasks, id: &str) -> Response<PageBody> {
    let task = match tasks.get(id, viewer(ask)).await {
        Ok(task) => task,
        Err(error) => return unreadable(ask, &error),
    };
    let parsed =
        |text: Option<orla_marketplace::JsonText>| text.and_then(|text| Json::parse(text.as_str()).ok());
    // The configuration may have given secrets to it.
    let secrets = ask.console.market.redaction();
    let input = tasks.input(&task.id).await.ok().flatten().map(|input| secrets.json(input));
    let input = parsed(input);
    let result = parsed(tasks.result(&task.id).await.ok().flatten());
    let timeline = tasks.journal(&task).await.ok().flatten();
    let body = html! {
        dl.facts {
            div { dt { "Id" } dd { code { (plain(task.id.as_str())) } } }
            div { dt { "Caller" } dd { (caller(&task)) } }
            div { dt { "Created" } dd { (moment(time(task.created_at))) " UTC" } }
            div { dt { "Changed" } dd { (moment(time(task.updated_at))) " UTC" } }
            @if let Some(key) = &task.key { div { dt { "Idempotency key" } dd { (plain(key)) } } }
            @if let Some(schedule) = &task.schedule { div { dt { "Schedule" } dd { (plain(schedule)) } } }
        }
        @if let Some(error) = &task.error { pre.problem { (plain(&error.kind)) ": " (plain(&error.message)) } }
        @if let Some(progress) = &task.progress {
            p.state {
                @if let Some(total) = progress.total.filter(|total| *total > 0.0) {
                    progress aria-label="Progress" max=(total) value=(progress.progress) {}
                } @else { span.number { (progress.progress) } }
                @if let Some(message) = &progress.message { " " span.note { (plain(message)) } }
            }
        }
        @if !task.state.is_terminal() {
            div.actions { (button(ask, &format!("{}/cancel", address(id)), "Cancel", "")) a.button href=(address(id)) { "Refresh" } }
        }
        @if let Some(input) = &input { section aria-labelledby="in" { h2 id="in" { "Input" } (view::value(input)) } }
        @if let Some(result) = &result { section aria-labelledby="out" { h2 id="out" { "Result" } (view::result(result)) } }
        @if let Some(timeline) = timeline.filter(|timeline| !timeline.steps.is_empty()) { (journal(&task, timeline, &secrets)) }
        @if !task.log.is_empty() {
            section aria-labelledby="said" {
                h2 id="said" { "Log" }
                ol.log { @for line in &task.log { li { span.badge { (plain(&line.level)) } " " (plain(&line.message)) } } }
            }
        }
    };
    let aside = html! { p.badges { (state(task.state)) } };
    Page::new(&format!("Task of {}", task.capability)).part("Tasks").aside(aside).reply(ask, &body)
}

/// Returns what a program has done so far, as a tree.
fn journal(task: &Task, mut timeline: Timeline, secrets: &Redactor) -> Markup {
    if task.state == State::Completed {
        timeline.stands_at.clear();
    }
    let tree = render_timeline("", &timeline);
    html! {
        section aria-labelledby="journal" {
            h2 id="journal" { "Journal" }
            pre tabindex="0" { (plain(&secrets.text(tree.trim_start_matches('\n')))) }
        }
    }
}

/// Cancels a task.
pub(crate) async fn cancel(ask: &Ask<'_>, tasks: &Tasks, id: &str) -> Response<PageBody> {
    if ask.verified_form().is_none() {
        return expired(ask);
    }
    match tasks.cancel(id, Viewer::managing(&ask.console.market, ask.principal.as_ref())).await {
        Ok(_) => reply::see(&address(id)),
        Err(error) => not_cancelled(ask, &error),
    }
}

fn unreadable(ask: &Ask<'_>, error: &TaskError) -> Response<PageBody> {
    failed(ask, "Cannot show tasks", error)
}

fn not_cancelled(ask: &Ask<'_>, error: &TaskError) -> Response<PageBody> {
    failed(ask, "Task not cancelled", error)
}

fn failed(ask: &Ask<'_>, title: &str, error: &TaskError) -> Response<PageBody> {
    if matches!(error, TaskError::Unknown(_)) {
        return missing(ask, "No task has this id, or it is not yours to see or to change.");
    }
    let text = error.to_string();
    let body =
        html! { p.problem { (plain(&text)) } p { a href="/console/tasks" { "Back to the tasks" } } };
    Page::new(title).part("Tasks").status(status_of(error)).reply(ask, &body)
}

fn status_of(error: &TaskError) -> StatusCode {
    match error {
        TaskError::State(_) | TaskError::Closing => StatusCode::SERVICE_UNAVAILABLE,
        _ => StatusCode::CONFLICT,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_a_refusal_is_a_conflict() {
        assert_eq!(status_of(&TaskError::Closing), 503);
        assert_eq!(status_of(&TaskError::Over(State::Completed)), 409);
    }
}
