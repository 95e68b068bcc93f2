//! The nodes of the cluster, as this server knows them.

use std::time::Duration;

use http::Response;
use maud::{Markup, html};
use orla_server::{NodeRow, PageBody};

use super::shell::Page;
use crate::Ask;
use crate::site::query;
use crate::text::{duration, plain};

/// How many capabilities of a node are named.
const SHOWN: usize = 20;

pub(crate) fn page(ask: &Ask<'_>, nodes: &[NodeRow]) -> Response<PageBody> {
    let body = html! {
        p.note { "What this server heard of the nodes of its cluster, itself included." }
        @if nodes.is_empty() { p.state { "No node is known yet." } } @else {
            table.list {
                thead { tr { th scope="col" { "Node" } th scope="col" { "State" } th.amount scope="col" { "Runs" } th.amount scope="col" { "Heard of" } th.wide scope="col" { "Offers" } } }
                tbody { @for node in nodes { (row(ask, node)) } }
            }
        }
    };
    Page::new("Nodes").part("Nodes").reply(ask, &body)
}

fn row(ask: &Ask<'_>, node: &NodeRow) -> Markup {
    let (class, state) = match (node.alive, node.cut_off, node.draining) {
        (false, _, _) => ("bad", "gone"),
        (true, true, _) => ("bad", "cut off"),
        (true, false, true) => ("warn", "draining"),
        (true, false, false) => ("good", "alive"),
    };
    // As in `/status`, if capabilities are concealed, only those of the visitor are named.
    let principal = ask.principal.as_ref();
    let is_shown =
        |id: &&String| !ask.catalog.conceals() || ask.catalog.visible(principal, id).is_some();
    let offers: Vec<&String> = node.capabilities.iter().filter(is_shown).collect();
    html! {
        tr {
            th scope="row" { (plain(&node.node)) }
            td { span class={ "badge " (class) } { (state) } }
            td.amount { (node.running) }
            td.amount { (duration(Duration::from_millis(node.lag_ms))) " ago" }
            td.wide {
                @for (at, id) in offers.iter().take(SHOWN).enumerate() {
                    @if at > 0 { ", " }
                    @match ask.catalog.visible(principal, id) {
                        Some(entry) => a href={ "/console/catalogue/" (query::part(&entry.name)) } { (plain(id)) },
                        None => (plain(id)),
                    }
                }
                @if offers.len() > SHOWN { span.note { " and " (offers.len() - SHOWN) " more" } }
            }
        }
    }
}
