//! Calls that wait for an approval, quotas, and what the policy permits.

use std::time::SystemTime;

use http::Response;
use maud::{Markup, html};
use orla_marketplace::{Principal, QuotaUsage};
use orla_server::{ApprovalRequest, PageBody};

use super::shell::{Page, csrf_token};
use super::{expired, missing};
use crate::exact::Json;
use crate::site::{query, reply};
use crate::text::{duration, plain};
use crate::{Ask, Caller, Explanation, view};

pub(crate) async fn page(ask: &Ask<'_>) -> Response<PageBody> {
    let principal = ask.principal.as_ref();
    let market = &ask.console.market;
    let pending = ask.visit.gateway.approvals(principal).await;
    let quotas = market.quotas().usage_of(principal);
    let body = html! {
        section aria-labelledby="approvals" {
            h2 id="approvals" { "Waiting for an approval" }
            @if pending.is_empty() { p.note { "No call waits that you made or may approve." } }
            @for one in &pending { (waiting(ask, one)) }
        }
        section aria-labelledby="quotas" {
            h2 id="quotas" { "Your quotas" }
            @if quotas.is_empty() { p.note { "Nothing bounds how much you may use." } } @else { (used(&quotas)) }
        }
        section aria-labelledby="you" {
            h2 id="you" { "Who you are" }
            (visitor(principal))
        }
        @if ask.may_configure() {
            section aria-labelledby="who" {
                h2 id="who" { "Who may call what" }
                (question(ask))
                p.note { "Approvals and quotas may still stop a call." }
                @if let (Some(who), Some(what)) = (ask.queried("caller"), ask.queried("capability")) { (explained(ask, who, what)) }
            }
        }
    };
    Page::new("Policy").part("Policy").reply(ask, &body)
}

fn waiting(ask: &Ask<'_>, one: &ApprovalRequest) -> Markup {
    let input = Json::parse(one.input.as_str()).ok();
    let left = one.expires_at.duration_since(SystemTime::now()).unwrap_or_default();
    html! {
        article.question aria-label={ "Call of " (one.capability) } {
            p {
                strong { (plain(&one.capability)) } " called by "
                (plain(one.principal.as_ref().map_or("an anonymous caller", Principal::name)))
                @if let Some(node) = &one.node { " at node " (plain(node)) }
                ", " span.note { (duration(left)) " left" }
            }
            @if let Some(input) = input { (view::value(&input)) }
            @if one.is_answerable {
                form.actions method="post" action={ "/console/policy/" (query::part(&one.id)) } {
                    (csrf_token(ask))
                    button.main type="submit" name="_do" value="approve" { "Approve" }
                    button type="submit" name="_do" value="deny" { "Deny" }
                }
            } @else { p.note { "Someone else has to answer." } }
        }
    }
}

fn used(quotas: &[QuotaUsage]) -> Markup {
    html! {
        table.list {
            thead { tr { th scope="col" { "Rule" } th scope="col" { "Counted for" } th.amount scope="col" { "Left" } th.amount scope="col" { "Running" } } }
            tbody { @for one in quotas { tr {
                th scope="row" { (plain(&one.rule.name)) }
                td { @match &one.caller { Some(caller) => (plain(caller)), None => span.note { "nothing yet" } } }
                td.amount {
                    @match one.remaining { Some(left) => { (left) " calls" } None => "–" }
                    @if !one.retry_after.is_zero() { " " span.note { "again in " (duration(one.retry_after)) } }
                }
                td.amount { (one.running) }
            } } }
        }
    }
}

fn visitor(principal: Option<&Principal>) -> Markup {
    let Some(principal) = principal else {
        return html! { p.note { "An anonymous caller: this server does not identify callers." } };
    };
    let list = |items: Vec<&str>| items.join(", ");
    let rows = [
        ("Name", principal.name().to_owned()),
        ("Identified by", principal.identified_by().to_string()),
        ("Groups", list(principal.groups().collect())),
        ("Scopes", list(principal.scopes().collect())),
    ];
    html! {
        dl.facts { @for (name, value) in rows.iter().filter(|(_, value)| !value.is_empty()) { div { dt { (name) } dd { (plain(value)) } } } }
    }
}

/// The members of the question who may call what: their names, labels and placeholders.
const MEMBERS: [(&str, &str, &str); 4] = [
    ("caller", "Caller", "a name, group:NAME, scope:NAME or anonymous"),
    ("groups", "Its groups", "none"),
    ("scopes", "The scopes of its token", "none"),
    ("capability", "Capability", "a name or an id"),
];

fn question(ask: &Ask<'_>) -> Markup {
    let is_required = |name: &str| matches!(name, "caller" | "capability");
    html! {
        search {
            form.filter action="/console/policy#who" method="get" {
                @for (name, label, placeholder) in MEMBERS {
                    div.field {
                        label for=(name) { (label) }
                        input id=(name) name=(name) value=(ask.queried(name).unwrap_or_default()) placeholder=(placeholder)
                            required[is_required(name)] autocomplete="off";
                    }
                }
                button type="submit" { "Explain" }
            }
        }
    }
}

fn explained(ask: &Ask<'_>, who: &str, what: &str) -> Markup {
    let Some(entry) = ask.catalog.get(what) else {
        return html! { p.problem { "Nothing is served as " (plain(what)) "." } };
    };
    let words = |name: &str| {
        let words = ask.queried(name).unwrap_or_default().split([' ', ',']);
        words.filter(|word| !word.is_empty()).map(str::to_owned).collect()
    };
    let caller = Caller { name: who, groups: words("groups"), scopes: words("scopes") };
    let Explanation { is_allowed, reasons } = ask.console.embedder.explain(&caller, entry);
    html! {
        p.state {
            @if is_allowed { span.badge.good { "allowed" } } @else { span.badge.bad { "denied" } }
            " " (plain(who)) @if is_allowed { " may call " } @else { " may not call " } (plain(&entry.manifest.id))
        }
        ul.plain { @for reason in &reasons { li { (plain(reason)) } } }
    }
}

/// Answers the question about a call.
pub(crate) async fn answer(ask: &Ask<'_>, id: &str) -> Response<PageBody> {
    let Some(fields) = ask.verified_form() else { return expired(ask) };
    let is_approval = match fields.get("_do") {
        Some("approve") => true,
        Some("deny") => false,
        _ => return missing(ask, "Approve or deny."),
    };
    let principal = ask.principal.as_ref();
    match ask.visit.gateway.decide_approval(principal, id, is_approval).await {
        Ok(()) => reply::see("/console/policy"),
        Err(error) => {
            let (status, text) = (error.status(), error.to_string());
            let body = html! { p.problem { (plain(&text)) } p { a href="/console/policy" { "Back" } } };
            Page::new("Not done").part("Policy").status(status).reply(ask, &body)
        }
    }
}
