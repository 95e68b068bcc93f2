//! The configuration in force, with the source of each value and the problems.

use http::Response;
use maud::{Markup, html};
use orla_server::PageBody;

use super::expired;
use super::shell::{Page, button};
use crate::site::reply;
use crate::text::plain;
use crate::{Ask, Setting};

/// The permission to see the configuration, and to have it read again.
const PERMISSION: &str = "configuration:read";

pub(crate) fn page(ask: &Ask<'_>) -> Response<PageBody> {
    let embedder = &ask.console.embedder;
    let (settings, findings) = (embedder.settings(), embedder.findings());
    let redactor = ask.console.market.redaction();
    let (own, defaults): (Vec<&Setting>, Vec<&Setting>) =
        settings.iter().partition(|setting| setting.origin.is_some());
    let body = html! {
        div.actions { (button(ask, "/console/configuration/reload", "Read everything again", "")) }
        section aria-labelledby="findings" {
            h2 id="findings" { "What the check finds" }
            @if findings.is_empty() { p.state { span.badge.good { "ok" } " Nothing is wrong, and nothing looks odd." } }
            @else { ul.problems { @for finding in &findings { li { (plain(&redactor.text(finding))) } } } }
        }
        section aria-labelledby="set" {
            h2 id="set" { "What is set" }
            @if own.is_empty() { p.note { "Nothing: every value is at its default." } } @else { (table(&own, &redactor)) }
        }
        details { summary { "What is at its default" } (table(&defaults, &redactor)) }
    };
    Page::new("Configuration").part("Configuration").reply(ask, &body)
}

fn table(settings: &[&Setting], redactor: &orla_marketplace::Redactor) -> Markup {
    html! {
        table.list {
            thead { tr { th scope="col" { "Key" } th scope="col" { "Value" } th.wide scope="col" { "From" } th.wide scope="col" { "Meaning" } } }
            tbody { @for setting in settings { tr {
                th scope="row" { code { (setting.key) } }
                td { @match &setting.value { Some(value) => code { (plain(&redactor.text(value))) }, None => span.note { "not shown" } } }
                td.wide { @match &setting.origin { Some(origin) => (plain(origin)), None => span.note { "default" } } }
                td.wide { span.note { (plain(&setting.about)) } }
            } } }
        }
    }
}

/// Has everything read again.
pub(crate) fn reload(ask: &Ask<'_>) -> Response<PageBody> {
    if ask.verified_form().is_none() {
        return expired(ask);
    }
    ask.console.embedder.reload();
    reply::see("/console/configuration")
}

impl Ask<'_> {
    /// Returns whether the visitor may see the configuration.
    pub(crate) fn may_configure(&self) -> bool {
        self.catalog.permits_part(self.principal.as_ref(), "configuration", PERMISSION)
    }
}
