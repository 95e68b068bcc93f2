//! A call that was started on a page: its progress, its questions, its result.

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use futures_util::stream::unfold;
use http::Response;
use maud::{Markup, html};
use orla_marketplace::{Outcome, Progress, RuntimeError, RuntimeResult};
use orla_server::PageBody;
use serde_json::Value;

use super::capability::{again, copies};
use super::shell::{Page, button, csrf_token};
use super::{calls, expired, missing};
use crate::Ask;
use crate::exact::Json;
use crate::form::{Fields, Form};
use crate::runs::{Question, Run, Snapshot, outcome_json};
use crate::site::{query, reply};
use crate::text::plain;
use crate::view;

/// The shortest time between two events of one stream.
const PACE: Duration = Duration::from_millis(200);
/// How long a stream may be quiet.
const KEEP_ALIVE: Duration = Duration::from_secs(15);
/// How long a browser waits for what follows an answer.
const MAX_WAIT: Duration = Duration::from_millis(1_000);

pub(crate) fn page(ask: &Ask<'_>, id: &str) -> Response<PageBody> {
    let Some(run) = ask.console.runs.get(id, ask.principal.as_ref()) else { return not_found(ask) };
    show(ask, &run, None)
}

/// Returns the page; with `form`, the answer to a question as it was submitted.
fn show(ask: &Ask<'_>, run: &Arc<Run>, form: Option<&Form>) -> Response<PageBody> {
    let snapshot = run.snapshot();
    let is_over = snapshot.end.is_some();
    let address = format!("/console/runs/{}", run.id);
    let input = Json::parse(&run.input).unwrap_or(Json::Null);
    let body = html! {
        // A stream only while there is something to wait for: a question's fields must not be replaced under a person's hands.
        @if is_over || snapshot.question.is_some() {
            div id="run" { (status(&snapshot)) }
        } @else {
            div id="run" hx-sse:connect={ (address) "/events" } hx-swap="innerHTML" hx-sse:close="done" data-reload-on="done question" {
                (status(&snapshot))
            }
            noscript { p { a href=(address) { "Refresh" } } }
        }
        @if let Some(question) = &snapshot.question { (question_form(ask, run, question, form)) }
        div.actions {
            @if is_over {
                a.button href=(again(&run.target, &run.id)) { "Edit and run again" }
                @if ask.console.history().is_some() { a.button href=(calls::address(&run.call)) { "In the history" } }
            } @else {
                (button(ask, &format!("{address}/cancel"), "Cancel", ""))
            }
        }
        section aria-labelledby="input" {
            h2 id="input" { "Input" }
            (view::value(&input))
        }
        details {
            summary { "The same call elsewhere" }
            (copies(ask, &run.target, &input, ""))
        }
    };
    let link = html! { p { a href={ "/console/catalogue/" (query::part(&run.target)) } { "About " (plain(&run.target)) } } };
    Page::new(&format!("Call of {}", run.target)).part("Catalogue").aside(link).reply(ask, &body)
}

fn not_found(ask: &Ask<'_>) -> Response<PageBody> {
    missing(ask, "This call is not kept any longer, or is not yours.")
}

/// Renders the progress so far.
fn status(snapshot: &Snapshot) -> Markup {
    html! {
        @match &snapshot.end {
            None => {
                p.state { span.badge.busy { "running" } @if let Some(progress) = &snapshot.progress { " " (bar(progress)) } }
            }
            Some((took, result)) => (ended(*took, result)),
        }
        @if !snapshot.lines.is_empty() {
            details open[snapshot.end.is_none()] {
                summary { "Messages" }
                ol.log { @for line in &snapshot.lines { li { span.badge { (line.level) } " " (plain(&line.text)) } } }
            }
        }
    }
}

fn bar(progress: &Progress) -> Markup {
    html! {
        @match progress.total.filter(|total| *total > 0.0) {
            Some(total) => progress aria-label="Progress" max=(total) value=(progress.progress) {},
            None => span.number { (progress.progress) },
        }
        @if let Some(message) = &progress.message { " " span.note { (plain(message)) } }
    }
}

fn ended(took: Duration, result: &RuntimeResult<Outcome>) -> Markup {
    let took = format!("{:.1} ms", took.as_secs_f64() * 1000.0);
    let (word, class) = match result {
        Ok(outcome) if outcome.is_error == Some(true) => ("failed", "bad"),
        Ok(_) => ("ok", "good"),
        Err(error) => (error.kind(), "bad"),
    };
    html! {
        p.state role="status" { span class={ "badge " (class) } { (word) } " " span.note { "after " (took) } }
        section aria-labelledby="result" {
            h2 id="result" { "Result" }
            @match result.as_ref().map(outcome_json) {
                Ok(Ok(output)) => (view::result(&output)),
                Ok(Err(error)) => (failed(&error)),
                Err(error) => (failed(error)),
            }
        }
    }
}

/// Returns an error, preceded by the output before it.
fn failed(error: &RuntimeError) -> Markup {
    let output = error.outcome().and_then(|outcome| outcome_json(outcome).ok());
    html! {
        pre.problem { (plain(&error.to_string())) }
        @if let Some(output) = output { (view::result(&output)) }
    }
}

/// Returns the form of a question.
fn question_form(ask: &Ask<'_>, run: &Run, question: &Question, form: Option<&Form>) -> Markup {
    let empty;
    let form = match form {
        Some(form) => form,
        None => {
            empty = Form::empty(&object(&question.schema));
            &empty
        }
    };
    let action = format!("/console/runs/{}/answer", run.id);
    html! {
        section.question aria-labelledby="question" {
            h2 id="question" { "It asks" }
            p { (plain(&question.message)) }
            form method="post" action=(action) {
                (csrf_token(ask))
                input type="hidden" name="_question" value=(question.number);
                div id="fields" { (form.render(&action)) }
                div.actions {
                    button.main type="submit" name="_do" value="accept" { "Answer" }
                    button type="submit" name="_do" value="decline" formnovalidate { "Decline" }
                    button type="submit" name="_do" value="cancel" formnovalidate { "Dismiss" }
                }
            }
        }
    }
}

fn object(schema: &Value) -> Value {
    if schema.is_object() {
        schema.clone()
    } else {
        serde_json::json!({"type": "object", "properties": {}})
    }
}

/// Returns the answer to a question.
pub(crate) async fn answer(ask: &Ask<'_>, id: &str) -> Response<PageBody> {
    let Some(mut fields) = ask.verified_form() else { return expired(ask) };
    let Some(run) = ask.console.runs.get(id, ask.principal.as_ref()) else { return not_found(ask) };
    let address = format!("/console/runs/{id}");
    let Some(question) = run.snapshot().question else { return reply::see(&address) };
    let number = fields.get("_question").and_then(|number| number.parse().ok());
    let button = fields.get("_do").unwrap_or("accept").to_owned();
    let answer = match &*button {
        "decline" | "cancel" => format!(r#"{{"action":"{button}"}}"#),
        button => match accepted(&question, &mut fields, button) {
            Ok(content) => format!(r#"{{"action":"accept","content":{content}}}"#),
            Err(form) => return show(ask, &run, Some(&form)),
        },
    };
    run.answer(number.unwrap_or_default(), answer);
    run.settled(MAX_WAIT).await;
    reply::see(&address)
}

/// Returns the entered answer, or the form to show again.
fn accepted(question: &Question, fields: &mut Fields, button: &str) -> Result<Json, Box<Form>> {
    let schema = object(&question.schema);
    let is_button = fields.apply_button(button);
    let mut form = Form::of_fields(&schema, fields);
    if is_button {
        return Err(Box::new(form));
    }
    let content = form.read();
    let required = schema.get("required").and_then(Value::as_array).into_iter().flatten();
    for name in required.filter_map(Value::as_str).filter(|name| content.get(name).is_none()) {
        form.blame(&format!("input.{name}"), "an answer is needed");
    }
    if form.has_problems() { Err(Box::new(form)) } else { Ok(content) }
}

/// Withdraws the call.
pub(crate) fn cancel(ask: &Ask<'_>, id: &str) -> Response<PageBody> {
    if ask.verified_form().is_none() {
        return expired(ask);
    }
    let Some(run) = ask.console.runs.get(id, ask.principal.as_ref()) else { return not_found(ask) };
    run.cancel();
    reply::see(&format!("/console/runs/{id}"))
}

/// Streams the progress as server-sent events: the status as HTML, and `done` or `question` when the
/// page must change.
pub(crate) fn events(ask: &Ask<'_>, id: &str) -> Response<PageBody> {
    let Some(run) = ask.console.runs.get(id, ask.principal.as_ref()) else { return not_found(ask) };
    let changes = run.changes();
    let events = unfold((run, changes, false), |(run, mut changes, is_last)| async move {
        if is_last {
            return None;
        }
        tokio::time::sleep(PACE).await;
        let snapshot = run.snapshot();
        if snapshot.end.is_none() && snapshot.question.is_none() {
            let event = match tokio::time::timeout(KEEP_ALIVE, changes.changed()).await {
                Ok(_) => event("", &status(&run.snapshot()).into_string()),
                Err(_) => Bytes::from_static(b": \n\n"),
            };
            return Some((event, (run, changes, false)));
        }
        let name = if snapshot.end.is_some() { "done" } else { "question" };
        Some((event(name, name), (run, changes, true)))
    });
    reply::events(events)
}

/// One event. A message without a name is HTML for the page.
pub(crate) fn event(name: &str, data: &str) -> Bytes {
    let mut out = String::with_capacity(data.len() + 64);
    if !name.is_empty() {
        out.push_str(&format!("event: {name}\n"));
    }
    for line in data.split(['\n', '\r']) {
        out.push_str(&format!("data: {line}\n"));
    }
    out.push('\n');
    out.into()
}
