//! The page of one capability: its description, and a form that calls it.

use std::sync::Arc;
use std::time::Duration;

use http::{Response, StatusCode};
use maud::{Markup, html};
use orla_marketplace::{Entry, JsonText, REDACTED, RuntimeError, Violation, discovery};
use orla_server::{PageBody, StatusRow};
use serde_json::Value;

use super::shell::{Page, csrf_token};
use super::{call, catalogue, expired, missing};
use crate::Ask;
use crate::exact::Json;
use crate::form::{Form, MAX_INPUT};
use crate::runs::Run;
use crate::site::{query, reply};
use crate::text::{escaped_strings, plain, quoted};
use crate::view;

/// The text of a violation for a missing value.
const NOTHING: &str = "nothing";
/// How long a browser waits for the end of a call before it sees its progress.
pub(crate) const MAX_WAIT: Duration = Duration::from_millis(1_500);

/// Returns the form, empty or with the input of the query.
pub(crate) async fn page(ask: &Ask<'_>, id: &str) -> Response<PageBody> {
    let Some(entry) = ask.learned_entry(id).await else { return unknown(ask, id) };
    let schema = schema(&entry);
    let run = ask.queried("run").and_then(|run| ask.console.runs.get(run, ask.principal.as_ref()));
    let input = match (run, ask.queried("call")) {
        (Some(run), _) => Some(run.input.clone()),
        (None, Some(call)) => call::input_of(ask, call).await,
        (None, None) => None,
    };
    let form = match input.as_deref() {
        Some(input) if input.len() > MAX_INPUT => too_large(),
        Some(input) => match Json::parse(input) {
            Ok(input) => Form::of_input(&schema, &input),
            Err(_) => Form::empty(&schema),
        },
        None => Form::empty(&schema),
    };
    show(ask, &entry, StatusCode::OK, &form, input).await
}

/// Returns a submitted form: a button of the form, or a call.
pub(crate) async fn submit(ask: &Ask<'_>, id: &str) -> Response<PageBody> {
    let Some(mut fields) = ask.verified_form() else { return expired(ask) };
    let Some(entry) = ask.learned_entry(id).await else { return unknown(ask, id) };
    let schema = schema(&entry);
    if fields.is_truncated() {
        let mut form = too_large();
        form.problems.push("There are too many fields. Nothing was called.".to_owned());
        return show(ask, &entry, StatusCode::PAYLOAD_TOO_LARGE, &form, None).await;
    }
    let pressed = fields.get("_do").map(str::to_owned);
    if pressed.is_some_and(|button| fields.apply_button(&button)) {
        return show(ask, &entry, StatusCode::OK, &Form::of_fields(&schema, &fields), None).await;
    }
    let (mut form, input) = match fields.get("_raw") {
        Some(raw) => {
            let raw = raw.to_owned();
            match Json::parse(&raw) {
                Ok(_) if raw.len() > MAX_INPUT => (too_large(), raw),
                Ok(json) => {
                    let mut form = Form::of_input(&schema, &json);
                    form.read();
                    (form, raw)
                }
                Err(error) => {
                    let mut form = Form::empty(&schema);
                    form.problems.push(format!("The input is not JSON: {}", error.0));
                    return show(ask, &entry, StatusCode::UNPROCESSABLE_ENTITY, &form, Some(raw)).await;
                }
            }
        }
        None => {
            let mut form = Form::of_fields(&schema, &fields);
            let input = form.read().to_string();
            if form.has_problems() {
                let input = visible_input(&schema, &input).0;
                return show(ask, &entry, StatusCode::UNPROCESSABLE_ENTITY, &form, Some(input)).await;
            }
            (form, input)
        }
    };
    let (visible, secrets) = visible_input(&schema, &input);
    if secrets.iter().any(|secret| secret == REDACTED) {
        form.problems
            .push(format!("A secret of this input is not shown. Enter it in the place of {REDACTED}."));
        return show(ask, &entry, StatusCode::UNPROCESSABLE_ENTITY, &form, Some(visible)).await;
    }
    let text = match JsonText::parse(input.clone()) {
        Ok(text) => text,
        Err(error) => {
            form.problems.push(format!("The input is not JSON: {error}"));
            return show(ask, &entry, StatusCode::UNPROCESSABLE_ENTITY, &form, Some(visible)).await;
        }
    };
    let started = ask.console.runs.start(&entry.name, text, visible.clone(), ask.principal.clone());
    let Some(run) = started else {
        form.problems.push("Too many calls that you started here still run.".to_owned());
        return show(ask, &entry, StatusCode::SERVICE_UNAVAILABLE, &form, Some(visible)).await;
    };
    run.settled(MAX_WAIT).await;
    if let Some(violations) = refused_input(&run) {
        for violation in &violations {
            form.blame(&violation.path, &sentence(violation, &secrets));
        }
        return show(ask, &entry, StatusCode::UNPROCESSABLE_ENTITY, &form, Some(visible)).await;
    }
    reply::see(&format!("/console/runs/{}", run.id))
}

/// Returns the problems with the input of a call, if the call failed because of them.
fn refused_input(run: &Run) -> Option<Vec<Violation>> {
    let (_, result) = run.snapshot().end?;
    match &*result {
        Err(RuntimeError::InvalidInput { violations, .. }) => Some(violations.clone()),
        _ => None,
    }
}

/// Returns the text beside the field for a violation. The violation repeats the beginning of the value,
/// which may be secret.
fn sentence(violation: &Violation, secrets: &[String]) -> String {
    let begins = |secret: &String| secret.chars().take(8).collect::<String>();
    let is_secret = secrets.iter().any(|secret| violation.got.contains(&begins(secret)));
    let whole = match is_secret && violation.got != NOTHING {
        true => Violation { got: REDACTED.to_owned(), ..violation.clone() }.to_string(),
        false => violation.to_string(),
    };
    let path = format!("{}: ", violation.path);
    whole.strip_prefix(&path).map_or(whole.clone(), str::to_owned)
}

/// Returns the input as a page shows it, and the secrets that it does not show.
fn visible_input(schema: &Value, input: &str) -> (String, Vec<String>) {
    orla_history::redacted(schema, input).unwrap_or_else(|| (input.to_owned(), Vec::new()))
}

fn too_large() -> Form {
    Form::without_fields(&format!("the input is larger than {} KiB", MAX_INPUT / 1024))
}

fn schema(entry: &Entry) -> Value {
    serde_json::from_str(entry.input_schema().as_str()).unwrap_or_default()
}

fn unknown(ask: &Ask<'_>, id: &str) -> Response<PageBody> {
    let similar = ask.catalog.similar_for(ask.principal.as_ref(), id);
    let near = similar.first().map(|near| format!(" Did you mean {near}?")).unwrap_or_default();
    missing(ask, &format!("Nothing with this name is served to you.{near}"))
}

impl Ask<'_> {
    /// Returns the capability with this name, if the visitor may know about it.
    pub(crate) fn entry(&self, id: &str) -> Option<Arc<Entry>> {
        self.catalog.visible(self.principal.as_ref(), id).cloned()
    }

    /// Like [`entry`](Self::entry), but also asks the providers that have not answered yet.
    async fn learned_entry(&self, id: &str) -> Option<Arc<Entry>> {
        if let Some(entry) = self.entry(id) {
            return Some(entry);
        }
        self.console.market.prepare_listing().await;
        self.console.market.snapshot().visible(self.principal.as_ref(), id).cloned()
    }
}

async fn show(
    ask: &Ask<'_>,
    entry: &Arc<Entry>,
    status: StatusCode,
    form: &Form,
    raw: Option<String>,
) -> Response<PageBody> {
    let (known, market) = (Arc::clone(entry), Arc::clone(&ask.console.market));
    // Provenance and attestation may read files.
    let facts = tokio::task::spawn_blocking(move || {
        (discovery::description(&known), StatusRow::of(&market, &known))
    });
    let Ok((described, row)) = facts.await else { return missing(ask, "It cannot be described now.") };
    let title = entry.manifest.title().filter(|title| *title != &*entry.name);
    let raw = raw.unwrap_or_else(|| {
        let example = Json::of(&described["example"]["json"]["input"]);
        example.pretty()
    });
    let body = html! {
        @if let Some(title) = title { p.lead { (plain(title)) } }
        div.description { (plain(entry.manifest.description.trim())) }
        @if let Some(why) = entry.unavailable() { p.problem role="alert" { "It cannot be called: " (plain(why)) } }
        div.columns {
            section.call aria-labelledby="call" { (forms(ask, entry, form, &raw)) }
            section.facts aria-labelledby="facts" {
                h2 id="facts" { "About it" }
                (facts_of(ask, entry, &described, &row))
            }
        }
        (schemas(&described))
    };
    let aside =
        html! { p.badges { span.badge { (entry.manifest.provider.kind()) } (catalogue::hints(entry)) } };
    Page::new(&entry.name).part("Catalogue").status(status).aside(aside).reply(ask, &body)
}

/// Returns the form of fields, and the one of JSON text.
fn forms(ask: &Ask<'_>, entry: &Entry, form: &Form, raw: &str) -> Markup {
    let action = catalogue::address(entry);
    let is_raw = form.why_raw().is_some();
    html! {
        h2 id="call" { "Call it" }
        @if !is_raw {
            form method="post" action=(action) {
                (csrf_token(ask))
                // The button that a browser presses when a person presses Enter.
                button.unseen type="submit" name="_do" value="run" tabindex="-1" aria-hidden="true" { "Run" }
                div id="fields" {
                    (form.render(&action))
                    @if form.is_empty() { p.hint { "It takes no input." } }
                }
                div.actions { button.main type="submit" name="_do" value="run" { "Run" } }
            }
        }
        details open[is_raw] {
            summary { "Input as JSON" }
            @if let Some(why) = form.why_raw() { p.hint { "The input has no fields, because " (plain(why)) "." } }
            form method="post" action=(action) {
                (csrf_token(ask))
                @if is_raw && !form.problems.is_empty() {
                    ul.problems role="alert" { @for problem in &form.problems { li { (plain(problem)) } } }
                }
                div.field {
                    label for="raw" { "JSON" }
                    textarea.code id="raw" name="_raw" rows=(raw.lines().count().clamp(4, 24)) spellcheck="false" { (raw) }
                }
                div.actions { button.main[is_raw] type="submit" { "Run with this JSON" } }
            }
        }
    }
}

/// Returns the facts about the capability, in rows.
fn facts_of(ask: &Ask<'_>, entry: &Entry, described: &Value, row: &StatusRow) -> Markup {
    let redactor = ask.console.market.redaction();
    let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
    let list = |value: &Value| value.as_array().into_iter().flatten().map(text).collect::<Vec<_>>();
    let from = &described["provenance"];
    let sandbox = row.sandbox.as_ref();
    let single = [
        ("Id", entry.manifest.id.clone()),
        ("Provider", row.provider.clone()),
        ("Version", text(&described["version"])),
        ("Route", text(&described["route"])),
        ("State", row.state.clone().unwrap_or_default()),
        ("Last failure", row.last_failure.clone().unwrap_or_default()),
        ("Source", row.source.clone().unwrap_or_else(|| text(&from["source"]))),
        ("Runs with", row.interpreter.clone().unwrap_or_default()),
        ("Content hash", text(&from["content_hash"])),
        ("Attested by", text(&described["attestation"]["authority"])),
        ("As a task", text(&described["task"])),
        ("Sandbox", sandbox.map(|sandbox| sandbox.level.to_owned()).unwrap_or_default()),
        ("Input", text(&described["input"]["type"])),
        ("", text(&described["input"]["enforcement"])),
        ("Output", text(&described["output"]["type"])),
        ("", text(&described["output"]["enforcement"])),
    ];
    let lists = [
        ("Permissions", list(&described["permissions"])),
        ("Providers", list(&described["providers"])),
        ("Not in force", sandbox.map(|sandbox| sandbox.missing.clone()).unwrap_or_default()),
    ];
    let example = &described["example"];
    let (input, id) = (Json::of(&example["json"]["input"]), &entry.manifest.id);
    html! {
        dl.facts {
            @for (name, value) in single.iter().filter(|(_, value)| !value.is_empty()) {
                div { dt { (name) } dd { (plain(&redactor.text(value))) } }
            }
            @for (name, values) in lists.iter().filter(|(_, values)| !values.is_empty()) {
                div { dt { (name) } dd { ul { @for value in values { li { code { (plain(value)) } } } } } }
            }
            @for (name, value) in described["metadata"].as_object().into_iter().flatten() {
                div { dt { (plain(name)) } dd { (plain(&text(value))) } }
            }
        }
        (copies(ask, id, &input, &text(&example["rtfs"])))
    }
}

/// Returns a call as text to be pasted.
pub(crate) fn copies(ask: &Ask<'_>, id: &str, input: &Json, rtfs: &str) -> Markup {
    let body = Json::Object(vec![
        ("call".to_owned(), Json::Text(id.to_owned())),
        ("input".to_owned(), input.clone()),
    ]);
    let scheme = if ask.visit.is_tls { "https" } else { "http" };
    let host = crate::site::sessions::host(ask.visit.head);
    let token = if ask.principal.is_some() { " -H \"Authorization: Bearer $ORLA_TOKEN\"" } else { "" };
    let curl = format!(
        "curl {scheme}://{host}/rtfs{token} -H 'Content-Type: application/json' -d {}",
        quoted(&escaped_strings(&body.to_string()))
    );
    html! {
        (view::snippet("orla call", &command(id, input)))
        (view::snippet("curl", &curl))
        @if !rtfs.is_empty() { (view::snippet("RTFS", &escaped_strings(rtfs))) }
    }
}

/// Returns the command that makes a call.
fn command(id: &str, input: &Json) -> String {
    let mut words = vec!["orla".to_owned(), "call".to_owned(), quoted(id)];
    if let Json::Object(members) = input {
        for (key, value) in members {
            // A text that could be read as JSON is written as JSON.
            let plain = match value {
                Json::Text(text) if Json::parse(text).is_err() => text.clone(),
                value => value.to_string(),
            };
            words.push(quoted(&format!("{key}={plain}")));
        }
    }
    words.join(" ")
}

fn schemas(described: &Value) -> Markup {
    let schemas = [("Input schema", "input"), ("Output schema", "output")];
    let schemas = schemas.map(|(name, key)| (name, &described[key]["json_schema"]));
    html! {
        @for (name, schema) in schemas.iter().filter(|(_, schema)| !schema.is_null()) {
            details { summary { (name) } pre tabindex="0" { (plain(&Json::of(schema).pretty())) } }
        }
    }
}

/// Returns the address of the form with the input of a call that was started here.
pub(crate) fn again(target: &str, run: &str) -> String {
    format!("/console/catalogue/{}?run={}", query::part(target), query::part(run))
}
