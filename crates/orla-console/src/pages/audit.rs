//! The audit log: whether its chain is whole, and its newest records.

use std::sync::Arc;
use std::time::SystemTime;

use http::{HeaderValue, Response, StatusCode, header};
use maud::{Markup, html};
use orla_history::{time_of, timestamp};
use orla_server::PageBody;
use serde_json::Value;

use super::calls::address;
use super::missing;
use super::shell::Page;
use crate::site::{query, reply};
use crate::text::plain;
use crate::{Ask, AuditLog, Verified};

/// The permission to see what all callers did.
const PERMISSION: &str = "audit:read";
/// Bytes at the end of the log that a page looks through, and an export.
const MAX_SHOWN: u64 = 8 << 20;
const MAX_EXPORTED: u64 = 64 << 20;
/// A larger log is verified only on request.
const MAX_VERIFIED: u64 = 16 << 20;
/// The maximum number of records of a page.
const ROWS: usize = 200;
/// The times that can be chosen: the value, its name.
const SPANS: [(&str, &str); 4] =
    [("10m", "10 minutes"), ("1h", "hour"), ("1d", "day"), ("7d", "7 days")];

/// Which records are wanted.
struct Filter {
    /// Each is a member of a record and the text that it must have; empty if it does not matter.
    members: [(&'static str, String); 4],
    /// One of [`SPANS`], or empty.
    since: String,
}

impl Filter {
    fn of(ask: &Ask<'_>) -> Self {
        let members = ["event", "capability", "principal", "outcome"];
        let queried = |name: &str| ask.queried(name).unwrap_or_default().to_owned();
        let since = queried("since");
        let since = if SPANS.iter().any(|(word, _)| *word == since) { since } else { String::new() };
        Self { members: members.map(|name| (name, queried(name))), since }
    }

    /// Returns the records that are wanted, as their lines, the oldest first.
    fn wanted(&self, lines: Vec<String>) -> Vec<(String, Value)> {
        let since = time_of(&self.since).unwrap_or(SystemTime::UNIX_EPOCH);
        let since = if self.since.is_empty() { String::new() } else { timestamp(since) };
        let is_wanted = |record: &Value| {
            let has = |(name, text): &(&str, String)| text.is_empty() || record[*name] == **text;
            // Times of one form are ordered as their texts.
            let is_new = since.is_empty() || record["time"].as_str().is_some_and(|time| *time >= *since);
            is_new && self.members.iter().all(has)
        };
        let read = |line: String| serde_json::from_str(&line).ok().map(|record: Value| (line, record));
        lines.into_iter().filter_map(read).filter(|(_, record)| is_wanted(record)).collect()
    }

    /// Returns the equivalent query.
    fn query(&self) -> String {
        let since = ("since", self.since.clone());
        let set = self.members.iter().chain([&since]).filter(|(_, text)| !text.is_empty());
        let parts: Vec<String> =
            set.map(|(name, text)| format!("{name}={}", query::part(text))).collect();
        if parts.is_empty() { String::new() } else { format!("?{}", parts.join("&")) }
    }
}

/// The content of a page.
struct Shown {
    /// `None` if the chain was not walked.
    chain: Option<Result<Verified, String>>,
    records: Vec<(String, Value)>,
}

pub(crate) async fn page(ask: &Ask<'_>, log: Arc<dyn AuditLog>) -> Response<PageBody> {
    let (filter, is_asked) = (Filter::of(ask), ask.queried("verify").is_some());
    let gathered = tokio::task::spawn_blocking(move || {
        let is_verified = is_asked || log.bytes()? <= MAX_VERIFIED;
        let chain = is_verified.then(|| log.verify());
        let records = filter.wanted(log.newest(MAX_SHOWN)?);
        Ok::<_, String>((filter, Shown { chain, records }))
    });
    let (filter, shown) = match gathered.await {
        Ok(Ok(gathered)) => gathered,
        Ok(Err(why)) => return unreadable(ask, &why),
        Err(_) => return missing(ask, "The audit log cannot be shown now."),
    };
    let newest = shown.records.iter().rev().take(ROWS);
    let body = html! {
        (chain(shown.chain.as_ref()))
        (form(&filter))
        @if shown.records.is_empty() { p.note { "No records that fit." } } @else {
            table.list {
                thead { tr {
                    th scope="col" { "Event" } th scope="col" { "Outcome" } th scope="col" { "Caller" }
                    th.wide scope="col" { "Time (UTC)" } th.wide.amount scope="col" { "Record" }
                } }
                tbody { @for (_, record) in newest { (row(record)) } }
            }
            p.note {
                @if shown.records.len() > ROWS { "The newest " (ROWS) " of " (shown.records.len()) ". " }
                a href={ "/console/audit/export" (filter.query()) } download="audit.jsonl" { "Export as JSON lines" }
            }
        }
    };
    Page::new("Audit").part("Audit").reply(ask, &body)
}

/// Returns the selected records, as they are stored in the log.
pub(crate) async fn export(ask: &Ask<'_>, log: Arc<dyn AuditLog>) -> Response<PageBody> {
    let filter = Filter::of(ask);
    let gathered = tokio::task::spawn_blocking(move || {
        let mut text = String::new();
        for (line, _) in filter.wanted(log.newest(MAX_EXPORTED)?) {
            text.push_str(&line);
            text.push('\n');
        }
        Ok::<_, String>(text)
    });
    match gathered.await {
        Ok(Ok(text)) => {
            let mut response = reply::of(StatusCode::OK, "application/x-ndjson", text);
            let name = HeaderValue::from_static("attachment; filename=\"audit.jsonl\"");
            response.headers_mut().insert(header::CONTENT_DISPOSITION, name);
            response
        }
        Ok(Err(why)) => unreadable(ask, &why),
        Err(_) => missing(ask, "The audit log cannot be shown now."),
    }
}

fn unreadable(ask: &Ask<'_>, why: &str) -> Response<PageBody> {
    let body = html! { p.problem { (plain(why)) } p { a href="/console/audit" { "Try again" } } };
    Page::new("Audit").part("Audit").status(StatusCode::INTERNAL_SERVER_ERROR).reply(ask, &body)
}

fn chain(chain: Option<&Result<Verified, String>>) -> Markup {
    html! {
        @match chain {
            Some(Ok(Verified { records, hash })) => p.state role="status" {
                span.badge.good { "whole" } " The chain of all " (records) " records is as it was written. The last hash is "
                code.hash { (plain(hash)) } "."
            },
            Some(Err(why)) => p.problem role="status" { span.badge.bad { "broken" } " " (plain(why)) },
            None => p.state {
                span.badge { "not verified" } " The log is large. "
                a href="/console/audit?verify=1" { "Verify its chain now" }
            },
        }
        p.note { code { "orla audit verify" } " also checks signatures, and whether records are missing at the end." }
    }
}

fn form(filter: &Filter) -> Markup {
    html! {
        search {
            form.filter action="/console/audit" method="get" {
                @for (name, text) in &filter.members {
                    div.field {
                        label for=(name) { (label(name)) }
                        input id=(name) name=(name) type="search" value=(text) placeholder="any" autocomplete="off";
                    }
                }
                div.field {
                    label for="since" { "Within the last" }
                    select id="since" name="since" {
                        option value="" { "any time" }
                        @for (word, name) in SPANS { option value=(word) selected[filter.since == word] { (name) } }
                    }
                }
                button type="submit" { "Show" }
            }
        }
    }
}

fn label(member: &str) -> &'static str {
    match member {
        "event" => "Event",
        "capability" => "Capability",
        "principal" => "Caller",
        _ => "Outcome",
    }
}

fn row(record: &Value) -> Markup {
    let text = |name: &str| record[name].as_str().unwrap_or_default();
    let class = match text("outcome") {
        "" => "",
        "ok" => "good",
        "denied" | "quota" | "approval" | "cancelled" | "busy" => "warn",
        _ => "bad",
    };
    let time = text("time");
    let (day, clock) = time.split_once('T').unwrap_or((time, ""));
    html! {
        tr {
            th scope="row" {
                span.badge { (plain(text("event"))) } " "
                @match (text("capability"), text("call_id")) {
                    ("", _) => {}
                    (capability, "") => (plain(capability)),
                    (capability, id) => a href=(address(id)) { (plain(capability)) },
                }
                @if !text("reason").is_empty() { " " span.note { (plain(text("reason"))) } }
            }
            td { @if !class.is_empty() { span class={ "badge " (class) } { (plain(text("outcome"))) } } @if !text("rule").is_empty() { " " span.note { (plain(text("rule"))) } } }
            td { @if text("principal").is_empty() { span.note { "–" } } @else { (plain(text("principal"))) } }
            td.wide { span.note { (plain(day)) } " " (plain(clock.trim_end_matches('Z'))) }
            td.wide.amount { (record["seq"].as_u64().unwrap_or_default()) }
        }
    }
}

impl Ask<'_> {
    /// Returns the audit log, if there is one and the visitor may see it.
    pub(crate) fn audit(&self) -> Option<Arc<dyn AuditLog>> {
        let is_allowed = self.catalog.permits_of_others(self.principal.as_ref(), "audit", PERMISSION);
        self.console.embedder.audit().filter(|_| is_allowed)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn records_are_chosen_by_their_members_and_keep_their_text() {
        let lines = [
            r#"{"seq":1,"time":"2026-11-20T08:00:00.000Z","event":"started"}"#,
            r#"{"seq":2,"time":"2026-11-20T08:00:01.000Z","event":"call","capability":"add","outcome":"ok","n":1.10}"#,
            r#"{"seq":3,"time":"2999-11-20T08:00:02.000Z","event":"call","capability":"add","outcome":"denied"}"#,
            "not json",
        ];
        let chosen = |event: &str, outcome: &str, since: &str| {
            let members =
                [("event", event), ("capability", ""), ("principal", ""), ("outcome", outcome)];
            let members = members.map(|(name, text)| (name, text.to_owned()));
            let filter = Filter { members, since: since.to_owned() };
            let lines = filter.wanted(lines.iter().map(|line| (*line).to_owned()).collect());
            lines.into_iter().map(|(line, _)| line).collect::<Vec<_>>()
        };
        assert_eq!(chosen("", "", ""), lines[..3]);
        assert_eq!(chosen("call", "ok", ""), lines[1..2]);
        assert_eq!(chosen("", "", "1h"), lines[2..3]);
    }
}
