//! A place to try programs in RTFS: checked, run, and their problems shown under their lines.

use http::{Response, StatusCode};
use maud::{Markup, html};
use orla_marketplace::program::IDS;
use orla_marketplace::{Call, JsonText, Payload};
use orla_server::PageBody;
use serde_json::{Value, json};

use super::shell::{Page, change_token};
use super::{catalogue, expired, missing};
use crate::Ask;
use crate::exact::Json;
use crate::site::reply;
use crate::text::plain;

/// What stands in the field at first.
const SAMPLE: &str = "; `input` is the JSON below. (call :ID {…}) calls a capability.\n(let [numbers (:numbers input)]\n  {:sum (reduce + 0 numbers)\n   :most (reduce max 0 numbers)})\n";
const SAMPLE_INPUT: &str = "{\"numbers\": [3, 1, 2]}";
/// The most bytes of a program that is shown line by line.
const MAX_LISTED: usize = 64 * 1024;

/// What was found in a program.
struct Finding {
    line: u64,
    column: u64,
    severity: String,
    message: String,
}

pub(crate) fn page(ask: &Ask<'_>) -> Response<PageBody> {
    shown(ask, StatusCode::OK, SAMPLE, SAMPLE_INPUT, "", None)
}

/// Checks a program, or runs it.
pub(crate) async fn submit(ask: &Ask<'_>) -> Response<PageBody> {
    let Some(fields) = ask.change() else { return expired(ask) };
    if !ask.may_program() {
        return missing(ask, "Programs are not served to you.");
    }
    let program = fields.get("program").unwrap_or_default();
    let input = fields.get("input").unwrap_or_default();
    let is_check = fields.get("_do") == Some("check");
    let parsed = match input.trim() {
        "" => Ok(Json::Null),
        text => Json::parse(text),
    };
    let parsed = match parsed {
        Ok(parsed) => parsed,
        Err(error) => {
            let problem = format!("The input is not JSON: {}", error.0);
            return shown(ask, StatusCode::UNPROCESSABLE_ENTITY, program, input, &problem, None);
        }
    };
    let found = match check(ask, program).await {
        Ok(found) => found,
        Err(problem) => {
            return shown(ask, StatusCode::UNPROCESSABLE_ENTITY, program, input, &problem, None);
        }
    };
    if is_check || found.iter().any(|finding| finding.severity == "error") {
        let status = if is_check { StatusCode::OK } else { StatusCode::UNPROCESSABLE_ENTITY };
        return shown(ask, status, program, input, "", Some(&found));
    }
    let members =
        vec![("program".to_owned(), Json::Text(program.to_owned())), ("input".to_owned(), parsed)];
    let Ok(text) = JsonText::parse(Json::Object(members).to_string()) else {
        return shown(
            ask,
            StatusCode::UNPROCESSABLE_ENTITY,
            program,
            input,
            "The input is not JSON.",
            None,
        );
    };
    let shown_input = text.as_str().to_owned();
    let Some(run) = ask.console.runs.start(IDS[0], text, shown_input, ask.principal.clone()) else {
        let problem = "Too many calls that you started here still run.";
        return shown(ask, StatusCode::SERVICE_UNAVAILABLE, program, input, problem, None);
    };
    run.settled(super::capability::PATIENCE).await;
    reply::see(&format!("/console/runs/{}", run.id))
}

/// What was found in a program that is being typed, for the page that shows it.
pub(crate) async fn checked(ask: &Ask<'_>) -> Response<PageBody> {
    let Some(fields) = ask.change() else { return expired(ask) };
    if !ask.may_program() {
        return missing(ask, "Programs are not served to you.");
    }
    let program = fields.get("program").unwrap_or_default();
    let found = check(ask, program).await;
    let found = found.as_ref().map(Vec::as_slice);
    reply::page(StatusCode::OK, findings(program, Some(found)))
}

/// What the checker says, in the name of the visitor.
async fn check(ask: &Ask<'_>, program: &str) -> Result<Vec<Finding>, String> {
    let input = JsonText::of(&json!({"program": program})).map_err(|err| err.to_string())?;
    let mut call = Call::to(IDS[1]).with(Payload::from_json(input));
    call.scope.principal.clone_from(&ask.principal);
    let outcome = ask.console.market.call(call).await.map_err(|err| err.to_string())?;
    let structured = outcome.structured.as_ref().and_then(|payload| payload.json().ok());
    let checked: Value =
        structured.and_then(|json| serde_json::from_str(json.as_str()).ok()).unwrap_or_default();
    let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
    let finding = |problem: &Value| Finding {
        line: problem["line"].as_u64().unwrap_or(1),
        column: problem["column"].as_u64().unwrap_or(1),
        severity: text(&problem["severity"]),
        message: text(&problem["message"]),
    };
    Ok(checked["problems"].as_array().into_iter().flatten().map(finding).collect())
}

fn shown(
    ask: &Ask<'_>,
    status: StatusCode,
    program: &str,
    input: &str,
    problem: &str,
    found: Option<&[Finding]>,
) -> Response<PageBody> {
    if !ask.may_program() {
        return missing(ask, "Programs are not served to you.");
    }
    let is_bad = !problem.is_empty() || found.is_some_and(|found| !found.is_empty());
    let saved = ask.catalog.entries().iter().filter(|entry| {
        entry.manifest.provider.kind() == "rtfs"
            && !IDS.contains(&&*entry.manifest.id)
            && ask.catalog.permits(ask.principal.as_ref(), entry).is_ok()
    });
    let saved: Vec<_> = saved.take(100).collect();
    let body = html! {
        p.note { "A program in RTFS calls what is served to you, within the limits of the server. It runs as one call, with its calls below it in the history." }
        @if !problem.is_empty() { p.problem role="alert" { (plain(problem)) } }
        (findings(program, found.map(Ok)))
        form method="post" action="/console/programs" {
            (change_token(ask))
            div.field {
                label for="program" { "Program" }
                textarea.code id="program" name="program" rows=(program.lines().count().clamp(8, 30)) spellcheck="false"
                    aria-invalid=[is_bad.then_some("true")] aria-describedby="findings"
                    hx-post="/console/programs/check" hx-trigger="input changed delay:700ms" hx-include="closest form"
                    hx-target="#findings" hx-select="#findings" hx-swap="outerHTML" {
                    @if program.starts_with('\n') { "\n" }
                    (program)
                }
            }
            div.field {
                label for="input" { "Input as JSON" }
                textarea.code id="input" name="input" rows=(input.lines().count().clamp(2, 12)) spellcheck="false" { (input) }
            }
            div.actions {
                button.main type="submit" name="_do" value="run" { "Run" }
                button type="submit" name="_do" value="check" { "Check" }
            }
        }
        @if !saved.is_empty() {
            section aria-labelledby="saved" {
                h2 id="saved" { "Saved programs" }
                ul.plain { @for entry in &saved { li { a href=(catalogue::address(entry)) { (plain(&entry.name)) } " " span.note { (plain(crate::text::first_line(&entry.manifest.description))) } } } }
            }
        }
    };
    Page::new("Programs").part("Programs").status(status).reply(ask, &body)
}

/// What was found, or why nothing could be; empty before a program was checked.
fn findings(program: &str, found: Option<Result<&[Finding], &String>>) -> Markup {
    html! {
        div id="findings" role="status" {
            @match found {
                None => {}
                Some(Err(why)) => p.problem { (plain(why)) },
                Some(Ok([])) => p.state { span.badge.good { "ok" } " No mistakes were found." },
                Some(Ok(found)) => (lines(program, found)),
            }
        }
    }
}

/// The program with what was found under its lines.
fn lines(program: &str, found: &[Finding]) -> Markup {
    let lines = crate::text::shortened(program, MAX_LISTED).0.lines();
    let of_line = |number: usize| found.iter().filter(move |finding| finding.line == number as u64);
    let beyond = found.iter().filter(|finding| finding.line as usize > program.lines().count().max(1));
    html! {
        ol.program {
            @for (at, line) in lines.enumerate() {
                li {
                    code { (plain(line)) }
                    @for finding in of_line(at + 1) { (said(finding)) }
                }
            }
            @for finding in beyond { li { (said(finding)) } }
        }
    }
}

fn said(finding: &Finding) -> Markup {
    let class = if finding.severity == "error" { "bad" } else { "warn" };
    html! {
        p.finding { span class={ "badge " (class) } { (plain(&finding.severity)) } " " span.note { (finding.line) ":" (finding.column) } " " (plain(&finding.message)) }
    }
}

impl Ask<'_> {
    /// Whether the visitor may run programs.
    pub(crate) fn may_program(&self) -> bool {
        IDS.iter().all(|id| self.entry(id).is_some())
    }
}
