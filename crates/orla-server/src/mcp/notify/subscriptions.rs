//! Subscriptions to resources, with their subscribers and surfaces.
//!
//! # How it works
//!
//! A [`Topic`] is a URI that at least one client has subscribed to. Its surface gets one subscription
//! for any number of clients, and one cancellation when the last client has left. A [`Subscription`] is
//! a client's part in it; dropping it unsubscribes, so the end of a session or a listener ends its
//! subscriptions. The changes for a client wait in its [`Subscriber`], each URI once: a client that does
//! not listen costs no more than its subscriptions.

use std::collections::{BTreeSet, HashMap};
use std::sync::{Arc, Weak};

use orla_marketplace::{Call, Catalog, Item, JsonText, Principal, Subject, Surface};
use parking_lot::Mutex;
use rmcp::model::ErrorData;
use tokio::sync::Notify;

use crate::mcp::surfaces::SurfaceRequest;
use crate::state::Core;

/// The maximum number of subscriptions of one session or listener.
pub(crate) const MAX_SUBSCRIPTIONS: usize = 1024;

/// One client that is notified of changed resources.
#[derive(Default)]
pub(crate) struct Subscriber {
    principal: Option<Principal>,
    changed: Mutex<BTreeSet<Arc<str>>>,
    /// Notified when a change is waiting.
    pub(crate) woken: Notify,
    /// A further action on each change.
    on_change: Option<Box<dyn Fn() + Send + Sync>>,
}

impl Subscriber {
    /// Creates a subscriber. It is notified of resources that this principal may use.
    pub(crate) fn new(principal: Option<Principal>) -> Self {
        Self { principal, ..Self::default() }
    }

    /// Adds an action that runs on each change.
    pub(crate) fn on_change(mut self, notify: impl Fn() + Send + Sync + 'static) -> Self {
        self.on_change = Some(Box::new(notify));
        self
    }

    /// Returns the resources that have changed since the last call.
    pub(crate) fn take(&self) -> BTreeSet<Arc<str>> {
        std::mem::take(&mut *self.changed.lock())
    }

    /// Notes that a resource has changed.
    pub(crate) fn notify(&self, uri: &Arc<str>) {
        self.changed.lock().insert(Arc::clone(uri));
        self.woken.notify_one();
        if let Some(on_change) = &self.on_change {
            on_change();
        }
    }

    /// Puts back changes that were taken and could not be sent.
    pub(crate) fn put_back(&self, uris: impl IntoIterator<Item = String>) {
        self.changed.lock().extend(uris.into_iter().map(Arc::from));
        self.woken.notify_one();
    }
}

/// Every topic.
#[derive(Default)]
pub(crate) struct Subscriptions(Mutex<HashMap<Arc<str>, Arc<Topic>>>);

#[derive(Default)]
struct Topic {
    /// The surface that has the subscription. Locked while it subscribes, so that a second subscriber waits for
    /// the result of the first.
    owner: tokio::sync::Mutex<Option<Arc<dyn Surface>>>,
    subscribers: Mutex<Vec<Arc<Subscriber>>>,
}

impl Topic {
    fn is_empty(&self) -> bool {
        self.subscribers.lock().is_empty()
    }

    /// Notifies the subscribers that may use the item now; their rights when they subscribed do not count.
    fn notify(&self, uri: &Arc<str>, catalog: &Catalog, item: &Item) {
        for subscriber in &*self.subscribers.lock() {
            if catalog.permits_item(subscriber.principal.as_ref(), item).is_ok() {
                subscriber.notify(uri);
            }
        }
    }
}

/// One client's subscription to one resource.
pub(crate) struct Subscription {
    core: Weak<Core>,
    uri: Arc<str>,
    topic: Arc<Topic>,
    subscriber: Arc<Subscriber>,
}

impl Subscriptions {
    /// Subscribes. The first subscriber of a resource also asks the surfaces.
    ///
    /// # Errors
    ///
    /// Returns the error of the surfaces.
    pub(crate) async fn join(
        &self,
        core: &Arc<Core>,
        asking: &SurfaceRequest<'_>,
        uri: &str,
        subscriber: &Arc<Subscriber>,
    ) -> Result<Subscription, ErrorData> {
        let uri: Arc<str> = uri.into();
        let topic = Arc::clone(self.0.lock().entry(Arc::clone(&uri)).or_default());
        // A provider may report a change directly after its answer, so the subscriber is there before it.
        topic.subscribers.lock().push(Arc::clone(subscriber));
        let core = Arc::downgrade(core);
        let subscription = Subscription { core, uri, topic, subscriber: Arc::clone(subscriber) };
        let Subscription { uri, topic, .. } = &subscription;
        let mut owner = topic.owner.lock().await;
        let params = params(uri);
        let accepted = match owner.clone() {
            Some(surface) => asking.admitted(&surface, uri, &params).map(|()| surface),
            None => asking.owner("resources/subscribe", &params).await,
        };
        // An error drops the subscription, and with it the subscriber.
        *owner = Some(accepted?);
        drop(owner);
        Ok(subscription)
    }

    /// Notifies the subscribers of a resource that the surface has changed it.
    pub(crate) fn updated(&self, catalog: &Catalog, surface: &dyn Surface, uri: &str) {
        if let Some((uri, topic)) = self.0.lock().get_key_value(uri)
            && let Some(item) = surface.item(Subject::Resource(uri))
        {
            topic.notify(uri, catalog, &item);
        }
    }

    /// Notifies all subscribers that resources of the surface may have changed; it is not known which.
    pub(crate) fn all_updated(&self, catalog: &Catalog, surface: &dyn Surface) {
        for (uri, topic) in &*self.0.lock() {
            if let Some(item) = surface.item(Subject::Resource(uri)) {
                topic.notify(uri, catalog, &item);
            }
        }
    }

    /// Subscribes again at the newest snapshot where its surfaces differ. The old surfaces are not
    /// asked: they are gone, or the new surfaces represent the same provider.
    pub(crate) async fn move_to_newest(&self, core: &Core) {
        let newest = core.market.snapshot();
        let topics: Vec<(Arc<str>, Arc<Topic>)> =
            self.0.lock().iter().map(|(uri, topic)| (Arc::clone(uri), Arc::clone(topic))).collect();
        for (uri, topic) in topics {
            let mut owner = topic.owner.lock().await;
            let stays = owner.as_ref().is_some_and(|surface| {
                newest.surfaces().iter().any(|other| Arc::ptr_eq(surface, other))
            });
            if !stays && !topic.is_empty() {
                *owner = resubscribe(core, &newest, &uri).await;
            }
            drop(owner);
            self.forget(&uri, topic);
        }
    }

    /// Unsubscribes from the surface when no subscriber is left.
    async fn release(&self, core: &Core, uri: &Arc<str>, topic: Arc<Topic>) {
        let mut owner = topic.owner.lock().await;
        if topic.is_empty()
            && let Some(surface) = owner.take()
        {
            let ctx = core.market.surface_context(&Call::to(surface.owner()));
            let params = params(uri);
            let unsubscribed = tokio::select! {
                unsubscribed = surface.request("resources/unsubscribe", &params, &ctx) => unsubscribed.map(drop),
                // The server is ending, so the subscription ends anyway.
                () = core.draining.cancelled() => Ok(()),
            };
            if let Err(err) = unsubscribed {
                tracing::debug!(owner = surface.owner(), uri = &**uri, error = %err, "not unsubscribed");
            }
        }
        drop(owner);
        self.forget(uri, topic);
    }

    /// Releases a topic, and removes it if no subscriber uses it or is about to.
    fn forget(&self, uri: &Arc<str>, topic: Arc<Topic>) {
        let mut topics = self.0.lock();
        // Returned under the lock: if several leave at once, the last one sees that it is the last.
        drop(topic);
        if topics.get(uri).is_some_and(|topic| Arc::strong_count(topic) == 1 && topic.is_empty()) {
            topics.remove(uri);
        }
    }
}

/// Returns the surface of the newest snapshot that accepts a subscription. Permissions of each
/// subscriber are checked when there is a change to report.
async fn resubscribe(core: &Core, newest: &Catalog, uri: &str) -> Option<Arc<dyn Surface>> {
    let method = "resources/subscribe";
    let mut error = None;
    for surface in newest.surfaces().iter().filter(|surface| surface.serves(method)) {
        let ctx = core.market.surface_context(&Call::to(surface.owner()));
        match surface.request(method, &params(uri), &ctx).await {
            Ok(_) => return Some(Arc::clone(surface)),
            Err(err) => error = Some(err.to_string()),
        }
    }
    tracing::warn!(uri, error, "a subscription is lost for now");
    None
}

impl Subscription {
    /// Unsubscribes, and waits until the surface has been notified.
    pub(crate) async fn leave(mut self, core: &Core) {
        self.detach();
        self.core = Weak::new();
        let (uri, topic) = (Arc::clone(&self.uri), Arc::clone(&self.topic));
        drop(self);
        core.subscriptions.release(core, &uri, topic).await;
    }

    fn detach(&self) {
        let mut subscribers = self.topic.subscribers.lock();
        if let Some(at) = subscribers.iter().position(|it| Arc::ptr_eq(it, &self.subscriber)) {
            subscribers.swap_remove(at);
        }
    }
}

impl Drop for Subscription {
    fn drop(&mut self) {
        let Some(core) = self.core.upgrade() else { return };
        self.detach();
        let Ok(runtime) = tokio::runtime::Handle::try_current() else { return };
        // Its own part of the topic, for this one is only gone after this.
        let topic = std::mem::take(&mut self.topic);
        let uri = Arc::clone(&self.uri);
        let tracker = core.tracker.clone();
        tracker.spawn_on(async move { core.subscriptions.release(&core, &uri, topic).await }, &runtime);
    }
}

fn params(uri: &str) -> JsonText {
    let params = JsonText::of(&serde_json::json!({ "uri": uri }));
    params.unwrap_or_else(|_| orla_mcp::object::empty())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_last_holder_of_a_topic_removes_it() {
        let subscriptions = Subscriptions::default();
        let uri: Arc<str> = "a:b".into();
        let hold = || Arc::clone(subscriptions.0.lock().entry(Arc::clone(&uri)).or_default());
        let (one, two) = (hold(), hold());
        two.subscribers.lock().push(Arc::default());
        subscriptions.forget(&uri, one);
        assert_eq!(subscriptions.0.lock().len(), 1, "another is at it");
        two.subscribers.lock().clear();
        subscriptions.forget(&uri, two);
        assert!(subscriptions.0.lock().is_empty());
    }
}
