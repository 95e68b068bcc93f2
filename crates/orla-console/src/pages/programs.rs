//! A place to try programs in RTFS: checked, completed and run, and their problems shown under their lines.

use std::collections::BTreeMap;

use http::{Response, StatusCode};
use maud::{Markup, html};
use orla_marketplace::program::IDS;
use orla_marketplace::program::complete::{Completed, Words, completed};
use orla_marketplace::program::file::ProgramFile;
use orla_marketplace::{Call, JsonText, Payload};
use orla_server::PageBody;
use serde_json::{Value, json};

use super::shell::{Page, csrf_token};
use super::{catalogue, expired, missing};
use crate::Ask;
use crate::exact::Json;
use crate::listing::listing;
use crate::site::reply;
use crate::text::{plain, visible};

/// The initial content of the field.
const SAMPLE: &str = "; `input` is the JSON below. (call :ID {…}) calls a capability.\n(let [numbers (:numbers input)]\n  {:sum (reduce + 0 numbers)\n   :most (reduce max 0 numbers)})\n";
const SAMPLE_INPUT: &str = "{\"numbers\": [3, 1, 2]}";
/// The maximum number of completions that are offered at once.
const MAX_OFFERED: usize = 12;

/// A finding in a program.
struct Finding {
    line: u64,
    column: u64,
    severity: String,
    message: String,
}

pub(crate) fn page(ask: &Ask<'_>) -> Response<PageBody> {
    show(ask, StatusCode::OK, SAMPLE, SAMPLE_INPUT, "", None)
}

/// Checks a program, or runs it.
pub(crate) async fn submit(ask: &Ask<'_>) -> Response<PageBody> {
    let Some(fields) = ask.verified_form() else { return expired(ask) };
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
            return show(ask, StatusCode::UNPROCESSABLE_ENTITY, program, input, &problem, None);
        }
    };
    let found = match check(ask, program).await {
        Ok(found) => found,
        Err(problem) => {
            return show(ask, StatusCode::UNPROCESSABLE_ENTITY, program, input, &problem, None);
        }
    };
    if is_check || found.iter().any(|finding| finding.severity == "error") {
        let status = if is_check { StatusCode::OK } else { StatusCode::UNPROCESSABLE_ENTITY };
        return show(ask, status, program, input, "", Some(&found));
    }
    let members =
        vec![("program".to_owned(), Json::Text(program.to_owned())), ("input".to_owned(), parsed)];
    let Ok(text) = JsonText::parse(Json::Object(members).to_string()) else {
        return show(
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
        return show(ask, StatusCode::SERVICE_UNAVAILABLE, program, input, problem, None);
    };
    run.settled(super::capability::MAX_WAIT).await;
    reply::see(&format!("/console/runs/{}", run.id))
}

/// Returns the findings in the program that is being typed, for its page.
pub(crate) async fn checked(ask: &Ask<'_>) -> Response<PageBody> {
    let Some(fields) = ask.verified_form() else { return expired(ask) };
    if !ask.may_program() {
        return missing(ask, "Programs are not served to you.");
    }
    let program = fields.get("program").unwrap_or_default();
    let found = check(ask, program).await;
    let found = found.as_ref().map(Vec::as_slice);
    let body = html! { (findings(program, Some(found))) (offers(ask, program, fields.get("_at"))) };
    reply::page(StatusCode::OK, body)
}

/// Renders the possible completions at the cursor, whose position is in UTF-16 code units as browsers
/// count them. A click inserts one.
fn offers(ask: &Ask<'_>, program: &str, at: Option<&str>) -> Markup {
    let at = at.and_then(|at| at.parse().ok()).and_then(|at| byte_of(program, at));
    let completed = at.map(|at| completed(&words(ask), |id| schema(ask, id), &program[..at]));
    html! {
        div id="offers" {
            @if let (Some(Completed { from, offered }), Some(at)) = (completed, at) {
                @let units = |at: usize| program[..at].encode_utf16().count();
                @for offer in offered.into_iter().take(MAX_OFFERED) {
                    button.small type="button" data-write=(visible(&offer.text)) data-from=(units(from)) data-to=(units(at)) { code { (plain(&offer.shown)) } }
                    " "
                }
            }
        }
    }
}

/// Returns the byte position after this many UTF-16 code units of a text.
fn byte_of(text: &str, units: usize) -> Option<usize> {
    let mut left = units;
    let mut ends = text.char_indices().map(|(at, c)| (at, c.len_utf16())).chain([(text.len(), 0)]);
    ends.find_map(|(at, width)| {
        let is_there = left == 0;
        left = left.saturating_sub(width);
        is_there.then_some(at)
    })
}

/// Returns the names that a program of the visitor may use.
fn words(ask: &Ask<'_>) -> Words {
    let permitted = ask.catalog.permitted(ask.principal.as_ref());
    Words::new([], permitted.map(|entry| entry.manifest.id.as_str()))
}

fn schema(ask: &Ask<'_>, id: &str) -> Option<Value> {
    serde_json::from_str(ask.entry(id)?.input_schema().as_str()).ok()
}

/// Returns the findings of the checker, in the name of the visitor.
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

fn show(
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
    let saved = ask
        .catalog
        .permitted(ask.principal.as_ref())
        .filter(|entry| entry.manifest.provider.settings::<ProgramFile>().is_ok());
    let saved: Vec<_> = saved.take(100).collect();
    let body = html! {
        p.note { "A program in RTFS calls what is served to you, within the limits of the server. It runs as one call, with its calls below it in the history." }
        @if !problem.is_empty() { p.problem role="alert" { (plain(problem)) } }
        (findings(program, found.map(Ok)))
        form method="post" action="/console/programs" {
            (csrf_token(ask))
            div.field {
                label for="program" { "Program" }
                textarea.code id="program" name="program" rows=(program.lines().count().clamp(8, 30)) spellcheck="false"
                    aria-invalid=[is_bad.then_some("true")] aria-describedby="findings"
                    hx-post="/console/programs/check" hx-trigger="input changed delay:700ms" hx-include="closest form"
                    hx-target="#findings" hx-select="#findings" hx-swap="outerHTML" hx-select-oob="#offers" data-at="at" {
                    @if program.starts_with('\n') { "\n" }
                    (program)
                }
            }
            input type="hidden" id="at" name="_at";
            div id="offers" {}
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

/// Renders the findings, or why there are none; empty before a program was checked.
fn findings(program: &str, found: Option<Result<&[Finding], &String>>) -> Markup {
    html! {
        div id="findings" role="status" {
            @match found {
                None => {}
                Some(Err(why)) => p.problem { (plain(why)) },
                Some(Ok(found)) => {
                    @if found.is_empty() { p.state { span.badge.good { "ok" } " No mistakes were found." } }
                    (lines(program, found))
                }
            }
        }
    }
}

/// Returns the program with the findings under its lines.
fn lines(program: &str, found: &[Finding]) -> Markup {
    let mut under = BTreeMap::<u64, Vec<Markup>>::new();
    for finding in found {
        under.entry(finding.line).or_default().push(finding_text(finding));
    }
    listing(program, under)
}

fn finding_text(finding: &Finding) -> Markup {
    let class = if finding.severity == "error" { "bad" } else { "warn" };
    html! {
        p.finding { span class={ "badge " (class) } { (plain(&finding.severity)) } " " span.note { (finding.line) ":" (finding.column) } " " (plain(&finding.message)) }
    }
}

impl Ask<'_> {
    /// Returns whether the visitor may run programs.
    pub(crate) fn may_program(&self) -> bool {
        IDS.iter().all(|id| self.entry(id).is_some())
    }
}

#[cfg(test)]
mod tests {
    use super::byte_of;

    #[test]
    fn places_are_counted_as_browsers_count_them() {
        let text = "a\u{1f600}b";
        for (units, byte) in [(0, Some(0)), (1, Some(1)), (3, Some(5)), (4, Some(6)), (5, None)] {
            assert_eq!(byte_of(text, units), byte, "{units}");
        }
    }
}
