//! The entry for this server in the configuration of a client.

use http::Response;
use maud::html;
use orla_server::PageBody;
use serde_json::json;

use super::shell::Page;
use crate::Ask;
use crate::exact::Json;
use crate::site::sessions;
use crate::text::{escaped_strings, plain};
use crate::view::snippet;

pub(crate) fn page(ask: &Ask<'_>) -> Response<PageBody> {
    let scheme = if ask.visit.is_tls { "https" } else { "http" };
    let address = format!("{scheme}://{}/mcp", sessions::host(ask.visit.head));
    let mut entry = json!({"type": "http", "url": address});
    if ask.principal.is_some() {
        entry["headers"] = json!({"Authorization": "Bearer ${ORLA_TOKEN}"});
    }
    let entry = escaped_strings(&Json::of(&json!({"mcpServers": {"orla": entry}})).pretty());
    // Only callers that may see the configuration see paths of this machine.
    let local = if ask.may_configure() { ask.console.embedder.connections() } else { Vec::new() };
    let body = html! {
        section aria-labelledby="http" {
            h2 id="http" { "Over HTTP" }
            p { "Any client that speaks MCP over HTTP reaches this server at " code { (plain(&address)) } "." }
            (snippet("Entry for a client that reads mcpServers", &entry))
        }
        @if !local.is_empty() {
            section aria-labelledby="local" {
                h2 id="local" { "A client on this machine" }
                p.note { "It starts a server of its own with the same configuration. " code { "orla connect CLIENT --write" } " puts the entry into the file." }
                @for client in &local {
                    details {
                        summary { (client.title) }
                        p { "Add this to " code { (plain(&client.file)) } ". " (client.then) }
                        (snippet(client.title, &client.text))
                    }
                }
            }
        }
    };
    Page::new("Connect").part("Connect").reply(ask, &body)
}
