//! Notifications to clients: streams of events, changes and subscriptions.

pub(crate) mod changes;
pub(crate) mod notices;
pub(crate) mod stream;
pub(crate) mod subscriptions;
pub(crate) mod told;
pub(crate) mod unheard;
