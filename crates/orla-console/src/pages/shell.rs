//! The frame of every page.

use http::{Response, StatusCode};
use maud::{DOCTYPE, Markup, html};
use orla_marketplace::Principal;
use orla_server::PageBody;

use crate::Ask;
use crate::site::{assets, reply};
use crate::text::{plain, visible};

/// The parts of the console, in the order of the navigation.
const PARTS: &[(&str, &str)] = &[
    ("/console", "Calls"),
    ("/console/catalogue", "Catalogue"),
    ("/console/programs", "Programs"),
    ("/console/providers", "Providers"),
    ("/console/tasks", "Tasks"),
    ("/console/nodes", "Nodes"),
    ("/console/policy", "Policy"),
    ("/console/audit", "Audit"),
    ("/console/configuration", "Configuration"),
    ("/console/connect", "Connect"),
];

/// A page without its content.
pub(crate) struct Page<'a> {
    title: &'a str,
    part: &'a str,
    status: StatusCode,
    /// Beside the title.
    aside: Markup,
}

impl<'a> Page<'a> {
    /// A page with this title, which is its heading.
    pub(crate) fn new(title: &'a str) -> Self {
        Self { title, part: "", status: StatusCode::OK, aside: html! {} }
    }

    /// Returns the part of the console that it belongs to.
    pub(crate) fn part(self, part: &'a str) -> Self {
        Self { part, ..self }
    }

    pub(crate) fn status(self, status: StatusCode) -> Self {
        Self { status, ..self }
    }

    pub(crate) fn aside(self, aside: Markup) -> Self {
        Self { aside, ..self }
    }

    /// Returns the response.
    pub(crate) fn reply(self, ask: &Ask<'_>, content: &Markup) -> Response<PageBody> {
        let navigation = html! {
            nav aria-label="Parts of the console" {
                ul { @for (place, name) in PARTS.iter().filter(|(_, name)| ask.has(name)) {
                    li { a href=(place) aria-current=[(*name == self.part).then_some("page")] { (name) } }
                } }
            }
            @if let Some(principal) = &ask.principal { (signed_in(ask, principal)) }
        };
        let heading = html! { div.heading { h1 { (plain(self.title)) } (self.aside) } };
        reply::page(self.status, frame(self.title, &navigation, &html! { (heading) (content) }))
    }
}

impl Ask<'_> {
    /// Returns whether the console has this part.
    fn has(&self, part: &str) -> bool {
        match part {
            "Calls" => self.console.history().is_some(),
            "Programs" => self.may_program(),
            "Tasks" => self.console.tasks.get().is_some(),
            "Nodes" => self.console.embedder.nodes().is_some(),
            "Audit" => self.audit().is_some(),
            "Configuration" => self.may_configure(),
            _ => true,
        }
    }
}

/// Renders the identity of the visitor.
fn signed_in(ask: &Ask<'_>, principal: &Principal) -> Markup {
    html! {
        form.who method="post" action="/console/sign-out" {
            (csrf_token(ask))
            span { (plain(principal.name())) }
            button.small type="submit" { "Sign out" }
        }
    }
}

/// Returns the field that every form for a change has.
pub(crate) fn csrf_token(ask: &Ask<'_>) -> Markup {
    html! { input type="hidden" name="_csrf" value=(ask.csrf_token()); }
}

/// Returns a form with one button.
pub(crate) fn button(ask: &Ask<'_>, action: &str, label: &str, about: &str) -> Markup {
    html! {
        form.inline method="post" action=(action) {
            (csrf_token(ask))
            button.small type="submit" { (label) @if !about.is_empty() { span.unseen { " " (visible(about)) } } }
        }
    }
}

/// Returns a whole page.
pub(crate) fn frame(title: &str, navigation: &Markup, content: &Markup) -> Markup {
    html! {
        (DOCTYPE)
        html lang="en" {
            head {
                meta charset="utf-8";
                title { (visible(title)) " · orla" }
                meta name="viewport" content="width=device-width, initial-scale=1";
                meta name="color-scheme" content="light dark";
                meta name="htmx-config" content=r#"{"includeIndicatorCSS":false,"history":false}"#;
                link rel="stylesheet" href=(assets::address("console.css"));
                link rel="icon" type="image/svg+xml" href=(assets::address("icon.svg"));
                script src=(assets::address("htmx.js")) defer {}
                script src=(assets::address("hx-sse.js")) defer {}
                script src=(assets::address("console.js")) defer {}
            }
            body {
                a.skip href="#main" { "Skip to the content" }
                header {
                    a.brand href="/console" { "orla" }
                    (navigation)
                }
                main id="main" tabindex="-1" { (content) }
            }
        }
    }
}
