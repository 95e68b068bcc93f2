//! Notifies clients of changed lists and changed resources.
//!
//! # How it works
//!
//! One task, [`fan_out`], follows the marketplace's snapshots and the notifications of the newest one's
//! surfaces. It counts the changes of each list in [`Lists`], which every open stream watches, and
//! reports changed resources to their subscribers. A slow or closed stream misses only the number of
//! changes.

use std::pin::Pin;
use std::sync::Arc;

use futures_util::stream::{SelectAll, unfold};
use futures_util::{FutureExt, Stream, StreamExt};
use orla_marketplace::{Catalog, Surface, SurfaceNotice};
use tokio::sync::broadcast;
use tokio::sync::broadcast::error::RecvError;

use crate::mcp::surfaces;
use crate::state::Core;

/// How often each list has changed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Lists {
    pub(crate) tools: u64,
    pub(crate) prompts: u64,
    pub(crate) resources: u64,
}

impl Lists {
    /// Returns the names of the lists that have changed since `notified`. Updates `notified`.
    pub(crate) fn changed_since(self, notified: &mut Self) -> Vec<&'static str> {
        let mut names = Vec::new();
        for (name, now, notified) in [
            ("tools", self.tools, &mut notified.tools),
            ("prompts", self.prompts, &mut notified.prompts),
            ("resources", self.resources, &mut notified.resources),
        ] {
            if now > *notified {
                *notified = now;
                names.push(name);
            }
        }
        names
    }
}

/// A notification of a surface.
struct SurfaceEvent {
    surface: Arc<dyn Surface>,
    /// `None` if notifications were missed.
    notice: Option<SurfaceNotice>,
}

type Notices = SelectAll<Pin<Box<dyn Stream<Item = SurfaceEvent> + Send>>>;

/// Tells clients of changes for as long as the server runs.
pub(crate) async fn fan_out(core: Arc<Core>) {
    let mut generations = core.market.changes();
    generations.mark_unchanged();
    let mut known = core.market.snapshot();
    let mut notices = listen(&known);
    loop {
        tokio::select! {
            () = core.draining.cancelled() => return,
            changed = generations.changed() => {
                if changed.is_err() {
                    return;
                }
                let newest = core.market.snapshot();
                // Subscribe to the new surfaces first, then drain the old ones, so that no notification is lost.
                let mut old = std::mem::replace(&mut notices, listen(&newest));
                while let Some(Some(event)) = old.next().now_or_never() {
                    forward(&core, event);
                }
                let resources = serves_resources(&known) || serves_resources(&newest);
                if !same_surfaces(&known, &newest) {
                    core.pending_changes.add_list("prompts");
                    core.pending_changes.add_list("resources");
                }
                core.lists.send_modify(|lists| {
                    lists.tools += 1;
                    lists.prompts += 1;
                    lists.resources += u64::from(resources);
                });
                known = newest;
                let moving = Arc::clone(&core);
                core.tracker.spawn(async move {
                    tokio::select! {
                        () = moving.subscriptions.move_to_newest(&moving) => {}
                        () = moving.draining.cancelled() => {}
                    }
                });
            }
            Some(event) = notices.next(), if !notices.is_empty() => forward(&core, event),
        }
    }
}

fn same_surfaces(known: &Catalog, newest: &Catalog) -> bool {
    let (known, newest) = (known.surfaces(), newest.surfaces());
    known.len() == newest.len() && known.iter().zip(newest).all(|(one, other)| Arc::ptr_eq(one, other))
}

fn serves_resources(catalog: &Catalog) -> bool {
    surfaces::serves(catalog, "resources/list") || surfaces::serves(catalog, "resources/read")
}

fn listen(catalog: &Catalog) -> Notices {
    let next_event = |(surface, mut from): (Arc<dyn Surface>, broadcast::Receiver<SurfaceNotice>)| async move {
        let notice = match from.recv().await {
            Ok(notice) => Some(notice),
            Err(RecvError::Lagged(_)) => None,
            Err(RecvError::Closed) => return None,
        };
        Some((SurfaceEvent { surface: Arc::clone(&surface), notice }, (surface, from)))
    };
    let receivers = catalog
        .surfaces()
        .iter()
        .filter_map(|surface| surface.notices().map(|notices| (Arc::clone(surface), notices)));
    receivers
        .map(|receiver| -> Pin<Box<dyn Stream<Item = SurfaceEvent> + Send>> {
            Box::pin(unfold(receiver, next_event))
        })
        .collect()
}

fn forward(core: &Core, SurfaceEvent { surface, notice }: SurfaceEvent) {
    match notice {
        Some(SurfaceNotice::PromptsChanged) => {
            core.lists.send_modify(|lists| lists.prompts += 1);
            core.pending_changes.add_list("prompts");
        }
        Some(SurfaceNotice::ResourcesChanged) => {
            core.lists.send_modify(|lists| lists.resources += 1);
            core.pending_changes.add_list("resources");
        }
        Some(SurfaceNotice::ResourceUpdated { uri }) => {
            core.subscriptions.updated(&core.market.snapshot(), &*surface, &uri);
        }
        Some(other) => tracing::debug!(notice = ?other, "this notice is not passed on"),
        None => {
            core.lists.send_modify(|lists| {
                lists.prompts += 1;
                lists.resources += 1;
            });
            core.subscriptions.all_updated(&core.market.snapshot(), &*surface);
            ["prompts", "resources"].into_iter().for_each(|list| core.pending_changes.add_list(list));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_change_is_reported_once() {
        let mut notified = Lists { tools: 1, prompts: 1, resources: 0 };
        let now = Lists { tools: 2, prompts: 1, resources: 3 };
        assert_eq!(now.changed_since(&mut notified), ["tools", "resources"]);
        assert!(now.changed_since(&mut notified).is_empty() && now == notified);
        assert!(Lists::default().changed_since(&mut notified).is_empty(), "an older view tells nothing");
    }
}
