//! Notifications to clients: streams of events, changes and subscriptions.

pub(crate) mod changes;
pub(crate) mod notices;
pub(crate) mod parts;
pub(crate) mod pending_changes;
pub(crate) mod sent_changes;
pub(crate) mod stream;
pub(crate) mod subscriptions;
